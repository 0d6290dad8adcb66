"""The folder for statistics and sockets: only one of this user alone counts, and only our own files
in it go.

As root, two users without a name in a mount namespace with a /tmp of its own: one sets traps, the
other falls in, or not.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import farapp
import toolcase

VICTIM, OTHER = 64123, 64125
PRELOAD = os.path.join(farapp.build, "preload", "libfarpage-preload.so")
# Needs more of its node when a line comes, and its child connects to the node itself.
GROW = """
import os
y = bytearray(b"y" * (24 << 20))
print(os.getpid(), flush=True)
input()
x = bytearray(48 << 20); x[::4096] = b"x" * 12288
child = os.fork()
os.write(1, b"%d\\n" % (sum(bytes(x)[::4096]) // ord("x")))
if child: os.wait()
"""
STATSWRITER = os.environ["FARPAGE_STATSWRITER"]
DEAD = 4194304  # above every pid_max
TRAP = f"""
exec 3<{farapp.build}
mount -t tmpfs -o mode=1777 tmpfs /tmp
mkdir -p {farapp.build} && mount --bind /proc/self/fd/3 {farapp.build}
exec 3<&-
setpriv --reuid={OTHER} --regid={OTHER} --clear-groups sh -c '
	mkdir /tmp/farpage-{VICTIM} && chmod 755 /tmp/farpage-{VICTIM} && ln -s "$1" /tmp/farpage-{VICTIM}/run-1' sh "$1"
shift
exec setpriv --reuid={VICTIM} --regid={VICTIM} --clear-groups "$@"
"""


def touch(folder, *names):
    for name in names:
        with open(os.path.join(folder, name), "w") as out:
            out.write("precious")


class OwnFolder(toolcase.ToolCase):
    def setUp(self):
        super().setUp()
        os.mkdir(self.runtime, 0o700)

    def tearDown(self):
        """Folders stay, on purpose."""

    def run_dir(self, name, mode=0o700):
        folder = os.path.join(self.runtime, name)
        os.mkdir(folder)
        os.chmod(folder, mode)
        return folder

    def dead_page(self, folder, name):
        subprocess.run([STATSWRITER, os.path.join(folder, name)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)

    def readers(self):
        self.assertEqual(self.farpage("ps", "--json"), (0, b"[]\n", ""))
        self.assertFails(self.farpage("hist"), 1, "no program")

    def test_a_dead_run_goes(self):
        folder = self.run_dir("run-77")
        self.dead_page(folder, "%p.stats")
        open(os.path.join(folder, f"{DEAD}.stats.abcdef"), "w").close()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.join(folder, "node.sock"))
        self.readers()
        self.assertFalse(os.path.exists(folder))

    def test_what_is_not_ours_stays(self):
        folder = self.run_dir("run-77")
        kept = ["1.stats", "notes.txt", "node.sock", "x.stats", f"0{DEAD}.stats", f"{DEAD}.stats.abcdefg", ".hidden"]
        touch(folder, *kept)
        self.dead_page(folder, "mine.stats")
        os.symlink("/etc/hostname", os.path.join(folder, f"{DEAD}.stats.abcdef"))
        self.readers()
        self.assertEqual(sorted(os.listdir(folder)), sorted([*kept, "mine.stats", f"{DEAD}.stats.abcdef"]))

    def test_a_link_is_no_folder(self):
        target = self.path("documents")
        os.mkdir(target, 0o700)
        self.dead_page(target, "%p.stats")
        link = os.path.join(self.runtime, "run-77")
        os.symlink(target, link)
        self.readers()
        self.assertEqual(len(os.listdir(target)), 1)

    def test_names_are_exact(self):
        for name in ("run-", "run-77x", "run-077", "run-x", "run-77.old"):
            folder = self.run_dir(name)
            self.dead_page(folder, "%p.stats")
            self.readers()
            self.assertEqual(len(os.listdir(folder)), 1, name)

    def test_an_open_folder_does_not_count(self):
        folder = self.run_dir("run-77", 0o770)
        self.dead_page(folder, "%p.stats")
        self.readers()
        self.assertEqual(len(os.listdir(folder)), 1)
        self.dead_page(self.runtime, "%p.stats")
        os.chmod(self.runtime, 0o777)
        for command in (("ps",), ("top",), ("hist",), ("run", "true"), ("bench", "link")):
            status, out, err = self.farpage(*command)
            self.assertEqual(status, 125 if command[0] == "run" else 1, command)
            for word in (self.runtime, "chmod 700", "FARPAGE_RUNTIME_DIR"):
                self.assertIn(word, err, command)
        self.assertEqual(len(os.listdir(self.runtime)), 2)


# Ends in the way that the first argument names, with far memory in use.
ENDS = """
import os, signal, sys
x = bytearray(1 << 20)
print("ready", flush=True)
input()
how = sys.argv[1]
if how == "child" and os.fork(): os.wait()
if how in ("_exit", "child"): os._exit(0)
if how == "killed": os.kill(os.getpid(), signal.SIGKILL)
if how == "exec": os.execve("/bin/true", ["true"], {})
"""


class Ended(toolcase.ToolCase):
    """The page of a program that has not ended in good order goes when the next program starts."""

    def setUp(self):
        super().setUp()
        farapp.need_userfaultfd()
        self.node = farapp.Node("256M")
        self.addCleanup(self.node.stop)
        self.plain = {**self.env, "LD_PRELOAD": PRELOAD, "FARPAGE_NODES": self.node.url, "FARPAGE_LOCAL_MEMORY": "16M"}

    def program(self, how):
        process = subprocess.Popen(["/usr/bin/python3", "-c", ENDS, how], env=self.plain, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE)
        self.addCleanup(self._end, process)
        self.assertEqual(self.line(process), "ready")
        return process

    def test_each_end(self):
        for how in ("_exit", "killed", "exec", "child"):
            process, living = self.program(how), self.program("returns")
            process.communicate(b"\n", toolcase.TIMEOUT)
            self.assertEqual(process.returncode, -signal.SIGKILL if how == "killed" else 0)
            subprocess.run(["/bin/true"], env=self.plain, check=True)
            self.assertEqual(os.listdir(self.runtime), [f"{living.pid}.stats"], how)
            living.communicate(b"\n", toolcase.TIMEOUT)
            self.assertEqual(os.listdir(self.runtime), [], how)

    def test_children(self):
        """A server whose workers end by _exit: each fork removes the page of the worker before."""
        done = subprocess.run(
            ["/usr/bin/python3", "-c", """
import os
for worker in range(5):
    if os.fork() == 0:
        print(len(os.listdir(os.environ["FARPAGE_RUNTIME_DIR"])), flush=True)
        os._exit(0)
    os.wait()
"""], env=self.plain, stdout=subprocess.PIPE, check=True)
        self.assertEqual(done.stdout, b"2\n" * 5)

    def test_a_run(self):
        """What a run has left that was killed."""
        self.program("_exit").communicate(b"\n", toolcase.TIMEOUT)
        os.mkdir(os.path.join(self.runtime, "run-77"), 0o700)
        subprocess.run([STATSWRITER, os.path.join(self.runtime, "run-77", "%p.stats")], stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, check=True)
        self.assertEqual(len(os.listdir(self.runtime)), 2)
        self.assertEqual(self.farpage("run", "--pool-size", "64M", "--", "/bin/true")[0], 0)
        self.assertEqual(os.listdir(self.runtime), [])


@unittest.skipIf(os.geteuid(), "needs root, to become two users")
class TwoUsers(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="farpage-rundir.", dir="/var/tmp")
        self.addCleanup(shutil.rmtree, self.dir)
        os.chmod(self.dir, 0o755)
        self.home = os.path.join(self.dir, "home")
        self.documents = os.path.join(self.home, "documents")
        for path in (self.home, self.documents):
            os.mkdir(path, 0o700)
        touch(self.documents, "thesis.tex", "1.stats")
        subprocess.run([STATSWRITER, os.path.join(self.documents, "%p.stats")], stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, check=True)
        self.precious = sorted(os.listdir(self.documents))
        for folder, _, names in os.walk(self.home):
            for path in (folder, *(os.path.join(folder, name) for name in names)):
                os.chown(path, VICTIM, VICTIM)

    def run_trapped(self, *command, **env):
        """As the victim, whose folder somebody else has made in /tmp."""
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", "set -e" + TRAP, "sh", self.documents, *command],
            capture_output=True, timeout=toolcase.TIMEOUT, stdin=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C", **env})
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def assert_untouched(self):
        self.assertEqual(sorted(os.listdir(self.documents)), self.precious)

    def test_a_planted_link(self):
        for command, status in ((("ps", "--json"), 0), (("hist",), 1), (("ps",), 0)):
            done = self.run_trapped(toolcase.FARPAGE, *command, HOME=self.home)
            self.assertEqual(done[0], status, done)
            self.assert_untouched()

    def test_a_planted_link_in_a_folder_that_is_named(self):
        for command in ("ps", "hist", "top"):
            status, out, err = self.run_trapped(toolcase.FARPAGE, command, HOME=self.home,
                                                FARPAGE_RUNTIME_DIR=f"/tmp/farpage-{VICTIM}")
            self.assertEqual((status, out), (1, ""), command)
            self.assertIn("FARPAGE_RUNTIME_DIR", err)
            self.assert_untouched()

    def test_the_fallback_is_at_home(self):
        writes = f'd=$HOME/.cache/farpage && {farapp.farpage} ps >/dev/null; {farapp.farpage} bench link --op rpc ' \
                 '--sizes 4K --depths 1 --seconds 0.01 >/dev/null && stat -c "%a %u" $HOME/.cache $d && ls -A $d'
        self.assertEqual(self.run_trapped("sh", "-c", writes, HOME=self.home),
                         (0, f"700 {VICTIM}\n700 {VICTIM}\n", ""))

    def test_nothing_names_a_folder(self):
        status, out, err = self.run_trapped(toolcase.FARPAGE, "ps")
        self.assertEqual((status, out), (1, ""))
        for name in ("FARPAGE_RUNTIME_DIR", "HOME"):
            self.assertIn(name, err)


@unittest.skipIf(os.geteuid(), "needs root, to make pid namespaces")
class OtherNamespaces(toolcase.ToolCase):
    """Programs in several pid namespaces, as in containers, have the same numbers and share the
    folder."""

    def elsewhere(self, *command, **env):
        """The first process of a pid namespace of its own."""
        process = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "env", *command], env={**self.env, **env},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(self._end, process)
        self.first_line = self.line(process)
        return process

    def end(self, process, *lines):
        out, _ = process.communicate(b"\n", toolcase.TIMEOUT)
        self.assertEqual((process.returncode, out.decode().split()), (0, list(lines)))

    def within_deadline(self, holds):
        deadline = time.monotonic() + toolcase.TIMEOUT
        while not holds():
            self.assertLess(time.monotonic(), deadline)

    def names(self):
        return sorted(os.listdir(self.runtime))

    def test_a_page_is_not_taken_for_a_dead_ones(self):
        os.mkdir(self.runtime, 0o700)
        process = self.elsewhere(STATSWRITER, os.path.join(self.runtime, "%p.stats"))
        self.assertEqual(self.first_line, "1")
        for command in (("ps", "--json"), ("ps",)):
            self.assertEqual(self.farpage(*command)[0], 0)
            self.assertEqual(self.names(), ["1.stats"])
        self.assertEqual(self.farpage("ps", "--json"), (0, b"[]\n", ""))
        self.assertFails(self.farpage("hist", "--pid", "1"), 1, "process 1")
        process.kill()
        self.within_deadline(lambda: self.farpage("ps")[0] == 0 and not self.names())

    def test_programs_with_the_same_number(self):
        farapp.need_userfaultfd()
        socket_path = self.path("socket")
        node = farapp.Node(config=f"listen: unix:{socket_path}\npools: [{{name: main, size: 512M}}]\n")
        self.addCleanup(node.stop)
        env = {"FARPAGE_NODES": f"shm:{socket_path}", "FARPAGE_LOCAL_MEMORY": "16M"}
        program = (f"LD_PRELOAD={PRELOAD}", "/usr/bin/python3", "-c", GROW)
        one = self.elsewhere(*program, **env)
        self.assertEqual(self.names(), ["1.stats"])
        two = self.elsewhere(*program, **env)
        self.assertEqual(self.names(), ["1.stats", "2.stats"])
        self.end(one, "12288", "12288")
        self.assertEqual(self.names(), ["2.stats"])
        self.end(two, "12288", "12288")
        self.assertEqual(self.names(), [])

    def test_runs_with_the_same_number(self):
        farapp.need_userfaultfd()
        run = (toolcase.FARPAGE, "run", "--local-memory", "16M", "--pool-size", "256M", "--", "/usr/bin/python3", "-c", GROW)
        one, two = self.elsewhere(*run), self.elsewhere(*run)
        self.assertEqual(self.farpage("ps", "--json"), (0, b"[]\n", ""))
        self.assertEqual([name for name in self.names() if name.startswith("run-")], ["run-1", "run-2"])
        self.end(one, "12288", "12288")
        self.assertEqual([name for name in self.names() if name.startswith("run-")], ["run-2"])
        self.end(two, "12288", "12288")
        self.assertEqual(self.names(), [])

    def test_a_program_below_its_run(self):
        """It counts until its end, although its number is another's for `farpage run`."""
        farapp.need_userfaultfd()
        inside = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "/usr/bin/python3", "-c", GROW)
        process = self.start("run", "--local-memory", "16M", "--pool-size", "1G", "--stats-file", self.path("sum"), "--",
                             *inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.assertEqual(self.line(process), "1")
        self.within_deadline(lambda: self.faults() > 0)
        before = self.faults()
        self.end(process, "12288", "12288")
        self.assertGreater(self.faults(), before + 1000)

    def faults(self):
        status, out, err = self.farpage("hist", "--stats-file", self.path("sum"), "--format", "json")
        self.assertEqual(status, 0, err)
        return json.loads(out)["count"]


if __name__ == "__main__":
    toolcase.main(needs_userfaultfd=False)
