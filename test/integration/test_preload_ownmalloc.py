"""A program that brings a malloc of its own (ownmalloc.c): nothing crosses between its allocator
and ours, and a forked child needs nothing of it. Where that can't be, one line says so at the
start."""
import ctypes.util
import os
import subprocess

import farapp
import toolcase

NEW_AND_DELETE = """
import ctypes
new, delete = (getattr(ctypes.CDLL(None), name) for name in ("_Znwm", "_ZdlPv"))
new.restype, new.argtypes, delete.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
for size in range(100, 5100):
    block = new(size)
    ctypes.memset(block, 1, size)
    delete(block)
print("done")
"""
PROGRAM, LIBRARY = os.environ["FARPAGE_OWNMALLOC"].split(":")
DONE = (0, b"printf 42 text\ndone\n", "")


class OwnMalloc(toolcase.ToolCase):
    def run_far(self, *options, what=(LIBRARY,)):
        return self.farpage("run", "--local-memory", "1M", *options, "--", PROGRAM, *what)

    def test_calls_threads_and_forks(self):
        self.assertEqual(self.run_far(), DONE)
        self.assertEqual(self.run_far("--heap", "none"), DONE)

    def test_its_mappings_are_far(self):
        status, out, err = self.run_far("--report")
        self.assertEqual((status, out), DONE[:2])
        self.assertRegex(err, r"far memory: mapped peak 16.0 MiB")
        self.assertRegex(err, r"evicted pages: .*dirty [1-9]")
        self.assertRegex(err, r"\nmalloc: [1-9]\d* of [1-9]\d* process(es)? ha(s|ve) a malloc of its own")

    def test_farpage_malloc_needs_no_line(self):
        self.assertNotIn("malloc:", self.farpage("run", "--report", "--", "true")[2])

    def test_operators_of_another_allocator(self):
        """In the library of jemalloc, new allocates by itself, and delete calls free."""
        library = ctypes.util.find_library("jemalloc")
        if not library:
            self.skipTest("there is no library of jemalloc")
        self.env["LD_PRELOAD"] = library
        self.assertEqual(self.farpage("run", "--local-memory", "4M", "--", "/usr/bin/python3", "-c", NEW_AND_DELETE), (0, b"done\n", ""))

    def test_fork_is_refused_with_values_of_many_keys(self):
        status, out, err = self.run_far(what=())
        self.assertEqual((status, out), (0, b"done\n"), err)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertIn("fork was refused", err)
        self.assertIn("ownmalloc", err)

    def test_fault_mode_inline_is_refused(self):
        outcome = self.run_far("--fault-mode", "inline")
        self.assertFails(outcome, 125, "ownmalloc brings a malloc of its own", "fault mode thread")
        self.assertEqual(outcome[2].count("\n"), 1)

    def test_rdma_is_refused(self):
        """By the preload library alone, as farpage run would look for a device first."""
        preload = os.path.join(farapp.build, "preload", "libfarpage-preload.so")
        done = subprocess.run([PROGRAM], capture_output=True, text=True, timeout=toolcase.TIMEOUT,
                              env={**self.env, "LD_PRELOAD": preload, "FARPAGE_NODES": "rdma://127.0.0.1"})
        self.assertEqual((done.returncode, done.stdout), (125, ""))
        self.assertIn("ownmalloc brings a malloc of its own", done.stderr)
        self.assertIn("tcp://", done.stderr)


toolcase.main()
