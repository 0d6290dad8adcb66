"""An ordinary user: the essential suites with access to /dev/userfaultfd by group, what is refused
and what helps, low limits.

    FARPAGE_BUILD=build test/integration/test_unprivileged.py [--all]

Needs root, to become somebody else: a user and a group without a name, and a device node of their
own in a mount namespace. The host stays as it is. --all runs every test of the suites unit,
conformance, fuzz, integration and fault that way, which takes minutes.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import farapp
import toolcase

USER, GROUP = "64123", "64124"
TIMEOUT = 300
SUITES = {"unit", "conformance", "fuzz", "integration", "fault"}
ESSENTIAL = ("integration-preload-fds-shm-all", "integration-preload-heap-shm-all", "integration-preload-map-shm-all",
             "integration-libfarpage-shm", "integration-libfarpage-tcp", "integration-tools-run", "integration-tools-rules",
             "unit-statspage", "unit-settings", "unit-hist", "unit-pool", "unit-listen", "unit-log", "fuzz-yamlconf")
# Makes what /dev has for the user, becomes the user, and runs the rest of the line.
BECOME = r"""
set -e
case $1 in
absent)
	mount -t tmpfs -o mode=755 tmpfs /dev
	mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/zero c 1 5; mknod -m 666 /dev/full c 1 7; mknod -m 666 /dev/urandom c 1 9
	mkdir -m 1777 /dev/shm; ln -s /proc/self/fd /dev/fd ;;
*)
	mount -t tmpfs -o mode=755 tmpfs "$2"
	mknod "$2/node" c "$(tr : ' ' </sys/class/misc/userfaultfd/dev | cut -d' ' -f1)" "$(cut -d: -f2 </sys/class/misc/userfaultfd/dev)"
	chmod 600 "$2/node"
	[ "$1" = closed ] || { chgrp GROUP "$2/node"; chmod 660 "$2/node"; }
	mount --bind "$2/node" /dev/userfaultfd ;;
esac
groups=--clear-groups
[ "$1" != member ] || groups=--groups=GROUP
caps='--inh-caps=-all --bounding-set=-all'
[ "$1" != capable ] || caps='--inh-caps=+sys_ptrace --ambient-caps=+sys_ptrace'
shift 2
exec setpriv --reuid=USER --regid=USER $groups $caps "$@"
""".replace("USER", USER).replace("GROUP", GROUP)
FILL = "x = bytearray(48 << 20); x[::4096] = b'x' * 12288; y = bytes(x); print(sum(y[::4096]))"
FILLED = b"%d\n" % (12288 * ord("x"))


def become(how, mount_point, command):
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", BECOME, "sh", how, mount_point, *command]


def environment(extra):
    keep = {name: os.environ[name] for name in ("PYTHONPATH", "FARPAGE_BUILD", "LD_LIBRARY_PATH") if name in os.environ}
    return {**keep, "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C", "PYTHONDONTWRITEBYTECODE": "1", **extra}


class Unprivileged(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="farpage-user.")
        self.addCleanup(shutil.rmtree, self.dir)
        os.chmod(self.dir, 0o755)
        self.runtime = os.path.join(self.dir, "runtime")
        self.mount_point = os.path.join(self.dir, "mnt")
        self.home = os.path.join(self.dir, "home")
        for path in (self.runtime, self.mount_point, self.home):
            os.mkdir(path)
        for path in (self.runtime, self.home):
            os.chown(path, int(USER), int(USER))
            os.chmod(path, 0o700)

    def run_as(self, how, *command, env=None):
        env = environment({"FARPAGE_RUNTIME_DIR": self.runtime, "HOME": self.home, "TMPDIR": self.home, **(env or {})})
        done = subprocess.run(become(how, self.mount_point, command), stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=TIMEOUT, env=env, cwd=farapp.build)
        return done.returncode, done.stdout, done.stderr.decode(errors="replace")

    def run_far(self, how, *limits, options=(), program=FILL):
        prefix = ("prlimit", *limits) if limits else ()
        pool = () if "--node" in options else ("--pool-size", "256M")
        return self.run_as(how, *prefix, farapp.farpage, "run", "--local-memory", "16M", *pool, *options,
                           "--", "/usr/bin/python3", "-c", program)


class Suites(Unprivileged):
    def test_suites(self):
        listed = subprocess.run(["meson", "introspect", "--tests", farapp.build], check=True, capture_output=True).stdout
        wanted = [test for test in json.loads(listed) if self.is_wanted(test)]
        self.assertGreaterEqual(len(wanted), 10)
        skipped = []
        for test in wanted:
            with self.subTest(test["name"]):
                own = {name: value for name, value in test["env"].items() if name != "FARPAGE_RUNTIME_DIR"}
                status, out, err = self.run_as("member", *test["cmd"], env=own)
                if status == 77:
                    skipped.append(test["name"])
                else:
                    self.assertEqual(status, 0, out.decode(errors="replace")[-3000:] + err[-3000:])
        print(f"{len(wanted)} tests as an ordinary user; skipped: {', '.join(skipped) or 'none'}")
        self.assertLess(len(skipped), len(wanted) / 2)

    @staticmethod
    def is_wanted(test):
        if "--all" not in sys.argv:
            return test["name"] in ESSENTIAL
        return "unprivileged" not in test["name"] and any(s.split(":")[-1] in SUITES for s in test["suite"])


class Permission(Unprivileged):
    def assert_refused(self, how, *words):
        """What brackets no system calls needs all faults; a program under farpage run goes on with
        those of user mode."""
        status, out, err = self.run_as(how, farapp.farpage, "bench", "touch", "--transport", "shm", "--size", "1M", "--rounds", "1")
        self.assertEqual((status, out), (1, b""), err)
        for word in words:
            self.assertIn(word, err)
        self.assertIn("--inh-caps +sys_ptrace --ambient-caps +sys_ptrace", err)
        if self.sysctl() == "0":
            self.assertIn("`sudo sysctl vm.unprivileged_userfaultfd=1`", err)

    @staticmethod
    def sysctl():
        with open("/proc/sys/vm/unprivileged_userfaultfd") as value:
            return value.read().strip()

    def test_refusals_name_what_helps(self):
        if self.sysctl() != "0":
            self.skipTest("vm.unprivileged_userfaultfd is on: everybody may")
        self.assert_refused("stranger", "usermod -aG")
        self.assert_refused("closed", f"setfacl -m u:{USER}:rw /dev/userfaultfd", "chgrp farpage /dev/userfaultfd")
        self.assert_refused("absent", "--device /dev/userfaultfd")

    def test_what_they_name_helps(self):
        self.assertEqual(self.run_far("member"), (0, FILLED, ""))
        self.assertEqual(self.run_far("capable"), (0, FILLED, ""))


class Limits(Unprivileged):
    """Either the program runs right, or nothing of it does and the message has the command that
    helps."""

    def assert_runs_or_says(self, limit, remedy, options=()):
        status, out, err = self.run_far("member", limit, options=options)
        if status:
            self.assertEqual((status, out), (125, b""), err)
            self.assertIn(remedy, err)
        else:
            self.assertEqual(out, FILLED)
        return status == 0

    def ran(self, option, values, remedy, options=()):
        return [value for value in values if self.assert_runs_or_says(f"--{option}={value}", remedy, options)]

    def test_open_files(self):
        self.assertIn(64, self.ran("nofile", (4, 6, 8, 12, 64), "ulimit -n"))

    def test_address_space(self):
        self.assertEqual(self.ran("as", (100 << 20, 600 << 20, 16 << 30), "ulimit -v"), [600 << 20, 16 << 30])

    def test_locked_memory(self):
        self.ran("memlock", (0, 65536), "ulimit -l")
        self.assertTrue(self.assert_runs_or_says(f"--memlock={8 << 20}", "ulimit -l"))

    def test_at_a_node_of_its_own(self):
        """Where the node is not the program's, only what the program itself needs counts."""
        node = farapp.Node("256M")
        self.addCleanup(node.stop)
        options = ("--node", node.url)
        self.assertEqual(self.ran("memlock", (0, 65536), "ulimit -l", options), [0, 65536])
        self.assertIn(64, self.ran("nofile", (5, 8, 64), "ulimit -n", options))


def can_become():
    if os.geteuid() != 0:
        farapp.skip("needs root, to become another user")
    if not os.path.exists("/dev/userfaultfd") or not os.path.exists("/sys/class/misc/userfaultfd/dev"):
        farapp.skip("there is no /dev/userfaultfd (Linux 6.1)")
    for tool in ("unshare", "setpriv", "prlimit"):
        if not shutil.which(tool):
            farapp.skip(f"{tool} (util-linux) is not installed")
    with tempfile.TemporaryDirectory() as mount_point:
        tried = subprocess.run(become("member", mount_point, ["test", "-r", "/dev/userfaultfd"]), capture_output=True, text=True)
        if tried.returncode:
            farapp.skip(f"no mount namespace with a device of its own here: {tried.stderr.strip()}")
        tried = subprocess.run(become("member", mount_point, ["test", "-x", farapp.farpage]), capture_output=True)
        if tried.returncode:
            farapp.skip(f"{farapp.build} can't be read by other users")


if __name__ == "__main__":
    can_become()
    toolcase.main(needs_userfaultfd=False)
