"""What the tests of the farpage command share. Room: test/lib.

FARPAGE_BUILD names the build folder. Every test has a folder for sockets and statistics of its own,
so that it neither sees nor disturbs the programs of the user.
"""
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import farapp

FARPAGE = farapp.farpage
TIMEOUT = 60


class ToolCase(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="farpage-tool.")
        self.addCleanup(shutil.rmtree, self.dir)
        self.runtime = os.path.join(self.dir, "runtime")
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("FARPAGE_")},
            "FARPAGE_RUNTIME_DIR": self.runtime,
            "LC_ALL": "C",
        }

    def tearDown(self):
        """No command leaves a folder of a run behind."""
        if os.path.isdir(self.runtime):
            self.assertEqual([name for name in os.listdir(self.runtime) if name.startswith("run-")], [])

    def path(self, name, text=None):
        path = os.path.join(self.dir, name)
        if text is not None:
            with open(path, "w") as out:
                out.write(text)
        return path

    def farpage(self, *args, stdin=subprocess.DEVNULL, data=None, env=None):
        """Runs the command to its end; returns its status, stdout and stderr, the latter as
        text."""
        kind = {"input": data} if data is not None else {"stdin": stdin}
        done = subprocess.run(
            [FARPAGE, *args], capture_output=True, timeout=TIMEOUT, env={**self.env, **(env or {})}, **kind
        )
        return done.returncode, done.stdout, done.stderr.decode(errors="replace")

    def start(self, *args, **options):
        """Starts the command; it is gone when the test ends."""
        process = subprocess.Popen([FARPAGE, *args], env=self.env, **options)
        self.addCleanup(self._end, process)
        return process

    @staticmethod
    def _end(process):
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()

    def line(self, process):
        """The next line of its stdout."""
        self.assertTrue(select.select([process.stdout], [], [], TIMEOUT)[0], "no output within the deadline")
        return process.stdout.readline().decode().rstrip("\n")

    def assertFails(self, outcome, status, *words):
        """It ended with this status, said why on stderr, and nothing on stdout."""
        self.assertEqual(outcome[0], status, outcome[2])
        self.assertEqual(outcome[1], b"")
        for word in words:
            self.assertIn(word, outcome[2])
        self.assertIn("farpage", outcome[2])


def main(needs_userfaultfd=True):
    if needs_userfaultfd:
        farapp.need_userfaultfd()
    try:
        unittest.main(verbosity=2, argv=sys.argv[:1])
    finally:
        shutil.rmtree(farapp.workdir, ignore_errors=True)
