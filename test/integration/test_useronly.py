"""A host that permits only user-mode faults: an ordinary user without access to /dev/userfaultfd.

    FARPAGE_BUILD=build test/integration/test_useronly.py [--all]

System calls, and the kernel's frames of signals, meet far memory there that they can't fault on, in
either fault mode. Needs root, to become somebody else, as test_unprivileged.py does.
"""
import os
import sys

import farapp
import test_unprivileged
import toolcase

# ctypes: what the kernel says to userfaultfd, plain and with UFFD_USER_MODE_ONLY
PROBE = ("import ctypes; c = ctypes.CDLL(None, use_errno=True); a = c.syscall(323, 0o2000000); e = ctypes.get_errno(); "
         "b = c.syscall(323, 0o2000000 | 1); print(a, e, b >= 0)")
# fault mode, transport and more; --all: all of them
CHURN = [("thread", "tcp", "protect", "1024"), ("inline", "shm", "move", "64"), ("thread", "shm", "move", "64"),
         ("inline", "tcp", "protect", "16")]
PROGRAMS = [("signals", "shm", "thread"), ("showers", "shm", "thread"), ("calls", "shm", "thread"), ("map", "shm", "thread"),
            ("masks", "shm", "thread"), ("cancel", "tcp", "thread"), ("masks", "tcp", "inline"), ("cancel", "shm", "inline"),
            ("signals", "shm", "inline"), ("showers", "tcp", "inline"), ("calls", "tcp", "thread"), ("calls", "shm", "inline"),
            ("heap", "tcp", "inline"), ("heap", "shm", "thread"), ("map", "tcp", "inline"), ("process", "shm", "thread")]


def some(rows, n):
    return rows if "--all" in sys.argv else rows[:n]


class UserOnly(test_unprivileged.Unprivileged):
    def run_closed(self, program, *args):
        path = os.path.join(farapp.build, "test/integration", program)
        status, out, err = self.run_as("closed", path, *args, env={"FP_TEST_USER_ONLY": "1"})
        print(*[line for line in (out.decode(errors="replace") + err).splitlines() if "SEED" in line], sep="\n")
        self.assertEqual(status, 0, out.decode(errors="replace")[-3000:] + err[-3000:])

    def test_churn(self):
        for mode, transport, capture, pages in some(CHURN, 2):
            with self.subTest(mode=mode, transport=transport):
                self.run_closed("churn", "--farpaged", os.path.join(farapp.build, "daemon/farpaged"), "--fault-mode", mode,
                                "--transport", transport, "--capture", capture, "--local-pages", pages,
                                "--seconds", "10" if "--all" in sys.argv else "5")

    def test_programs(self):
        for name, scheme, mode in some(PROGRAMS, 4):
            with self.subTest(name, scheme=scheme, mode=mode):
                self.run_closed("test_preload_" + name, os.path.join(farapp.build, "daemon/farpaged"),
                                os.path.join(farapp.build, "preload/libfarpage-preload.so"), scheme,
                                "FARPAGE_FAULT_MODE=" + mode, "FARPAGE_HEAP=all")

    def test_run(self):
        """farpage run tries what the program will have, and says of it only in the report."""
        for mode in ("thread", "inline"):
            with self.subTest(mode):
                self.assertEqual(self.run_far("closed", options=("--fault-mode", mode)), (0, test_unprivileged.FILLED, ""))
        status, out, err = self.run_far("closed", options=("--report",))
        self.assertEqual((status, out), (0, test_unprivileged.FILLED), err)
        self.assertIn("only user-mode faults", err)
        self.assertNotIn("user-mode", self.run_far("member", options=("--report",))[2])

    def test_it_is_so_here(self):
        status, out, err = self.run_as("closed", sys.executable, "-c", PROBE)
        self.assertEqual((status, out), (0, b"-1 1 True\n"), err)


def can_run():
    test_unprivileged.can_become()
    if test_unprivileged.Permission.sysctl() != "0":
        farapp.skip("vm.unprivileged_userfaultfd is on: everybody may have all faults")
    if os.uname().machine != "x86_64":
        farapp.skip("calls are held on x86-64 alone")


if __name__ == "__main__":
    can_run()
    toolcase.main(needs_userfaultfd=False)
