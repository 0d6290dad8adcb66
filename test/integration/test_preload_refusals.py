"""The preload library alone, by LD_PRELOAD: what is wrong is said in one line, and the program does
not run."""
import glob
import os
import shutil
import signal
import socket
import subprocess
import sys
import unittest

import farapp

PRELOAD = os.path.join(farapp.build, "preload", "libfarpage-preload.so")
REFUSED = 125
NOBODY = 65534


class Refusals(unittest.TestCase):
    def run_with(self, preload=PRELOAD, user=None, program=("/bin/echo", "ran"), **variables):
        env = {name: value for name, value in os.environ.items() if not name.startswith("FARPAGE_")}
        env |= {"FARPAGE_" + name: value for name, value in variables.items()}
        done = subprocess.run(
            program, env={**env, "LD_PRELOAD": preload}, capture_output=True, text=True, timeout=60, user=user
        )
        return done.returncode, done.stdout, done.stderr

    def assert_refused(self, *texts, **variables):
        status, out, err = self.run_with(**variables)
        self.assertEqual((status, out), (REFUSED, ""), err)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertTrue(err.startswith("farpage: preload: "), err)
        for text in texts:
            self.assertIn(text, err)

    def test_no_node(self):
        self.assert_refused("FARPAGE_NODES", "farpage run")
        self.assert_refused("FARPAGE_NODES", NODES=",")

    def test_bad_settings(self):
        self.assert_refused("FARPAGE_LOCAL_MEMORY", "at least 64K", "'4K'", LOCAL_MEMORY="4K", NODES="shm:/x")
        self.assert_refused("FARPAGE_HEAP", "all, large, large:SIZE", HEAP="most", NODES="shm:/x")
        self.assert_refused("FARPAGE_FAULT_MODE", "thread, inline", FAULT_MODE="outline", NODES="shm:/x")
        self.assert_refused("irectory", "/tmp", CONFIG="/tmp", NODES="shm:/x")

    @unittest.skipIf(os.uname().machine != "x86_64", "the versions are those of x86-64")
    def test_old_versions(self):
        """Today's function would harm what was linked to the old one. Libraries of the program
        count, also those with the old table of symbols. Where it harms nothing, the start goes
        on."""
        old = os.path.join(farapp.build, "test", "integration", "oldversion-harmed")
        library = os.path.join(os.path.dirname(old), "liboldversion-harmed.so")
        self.assert_refused("the program was linked to the old function realpath@GLIBC_2.2.5", "link it anew", program=[old])
        self.assert_refused(library, "realpath@GLIBC_2.2.5", preload=f"{PRELOAD}:{library}")
        self.assert_refused("FARPAGE_NODES", program=[old.replace("harmed", "unharmed")])
        self.assert_refused("FARPAGE_NODES", preload=f"{PRELOAD}:{library.replace('harmed', 'unharmed')}")

    def test_absent_node(self):
        self.assert_refused("shm:/nowhere/socket", "farpaged running", NODES="shm:/nowhere/socket")
        self.assert_refused("tcp://127.0.0.1:1", "farpaged running", NODES="tcp://127.0.0.1:1", PATIENCE="50ms")
        self.assert_refused("ftp://x", NODES="ftp://x")

    def test_node_that_is_cut_off(self):
        """A program may execute another while its node is cut off. The new one starts once the node
        is back."""
        node = farapp.Node("64M")
        self.addCleanup(node.log.close)
        self.addCleanup(node.stop)
        os.kill(node.process.pid, signal.SIGSTOP)
        env = {**os.environ, "LD_PRELOAD": PRELOAD, "FARPAGE_NODES": node.url, "FARPAGE_DEADLINE": "200ms"}
        program = subprocess.Popen(["/bin/echo", "ran"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            said = program.stderr.readline()
        finally:
            os.kill(node.process.pid, signal.SIGCONT)
        out, err = program.communicate(timeout=60)
        self.assertIn(f"node {node.url}: no answer", said)
        self.assertIn("the start of this program waits up to 30.0 s", said)
        self.assertEqual((program.returncode, out, err), (0, "ran\n", ""))

    def test_node_that_stays_away(self):
        """The wait ends when it was said to end."""
        status, out, err = self.run_with(NODES="tcp://127.0.0.1:1", PATIENCE="500ms")
        self.assertEqual((status, out), (REFUSED, ""), err)
        self.assertRegex(err, "(?s)waits up to 500 ms\\n.*farpaged running.*\\n$")

    @unittest.skipIf(os.getuid(), "only root can become another user")
    def test_another_users_node(self):
        """As a child that gives up root finds its parent's private node."""
        os.chmod(farapp.workdir, 0o755)
        for library in glob.glob(os.path.join(os.path.dirname(PRELOAD), "*.so")):
            shutil.copy(library, farapp.workdir)
        own = os.path.join(farapp.workdir, "own")
        os.mkdir(own, 0o700)
        with socket.socket(socket.AF_UNIX) as node:
            node.bind(os.path.join(own, "node.sock"))
            node.listen()
            preload = os.path.join(farapp.workdir, os.path.basename(PRELOAD))
            self.assert_refused("this user may not connect", NODES=f"shm:{own}/node.sock", preload=preload, user=NOBODY)


if __name__ == "__main__":
    farapp.need_userfaultfd()
    unittest.main(argv=sys.argv[:1])
