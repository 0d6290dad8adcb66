"""The preload library alone, by LD_PRELOAD: what is wrong is said in one line, and the program does not run."""
import os
import subprocess
import sys
import unittest

import farapp

PRELOAD = os.path.join(farapp.build, "uffd", "preload", "libfarpage-preload.so")
REFUSED = 125


class Refusals(unittest.TestCase):
    def run_with(self, **variables):
        env = {name: value for name, value in os.environ.items() if not name.startswith("FARPAGE_")}
        env |= {"FARPAGE_" + name: value for name, value in variables.items()}
        done = subprocess.run(
            ["/bin/echo", "ran"], env={**env, "LD_PRELOAD": PRELOAD}, capture_output=True, text=True, timeout=60
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

    def test_absent_node(self):
        self.assert_refused("shm:/nowhere/socket", "farpaged running", NODES="shm:/nowhere/socket")
        self.assert_refused("tcp://127.0.0.1:1", "farpaged running", NODES="tcp://127.0.0.1:1")
        self.assert_refused("ftp://x", NODES="ftp://x")


if __name__ == "__main__":
    farapp.need_userfaultfd()
    unittest.main(argv=sys.argv[:1])
