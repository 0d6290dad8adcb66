"""A program writes far memory to the file, or the pipe, that is its standard error, too. While such
a write waits for a page, it holds the kernel's lock of that file. The agent's own lines on standard
error must not wait for it, or nobody would fetch the page.
"""
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import farapp

DEADLINE_S = 20
PROGRAM = """
import os, stat, sys
far = memoryview(bytearray(os.urandom(1 << 20) * 32))
put = os.write if stat.S_ISFIFO(os.fstat(1).st_mode) else lambda fd, what: os.pwrite(fd, what, 1 << 20)
while True:
    for at in range(0, len(far), 1 << 18):
        put(1, far[at : at + (1 << 18)])
        os.write(int(sys.argv[1]), b".")
"""


class Output(unittest.TestCase):
    def setUp(self):
        self.node = farapp.Node("256M")
        self.addCleanup(self.node.log.close)
        self.addCleanup(self.node.stop)

    def start(self, out):
        """Starts the program, whose output and errors go to `out`. Gives where it tells of its
        progress."""
        read_end, write_end = os.pipe()
        self.addCleanup(os.close, read_end)
        program = subprocess.Popen(
            [farapp.farpage, "run", "--local-memory", "2M", "--node", self.node.url, "--deadline", "300ms", "--",
             "/usr/bin/python3", "-c", PROGRAM, str(write_end)], pass_fds=[write_end], stdout=out, stderr=out, start_new_session=True)
        os.close(write_end)
        self.addCleanup(program.wait)
        self.addCleanup(os.killpg, program.pid, signal.SIGKILL)
        return read_end

    def await_progress(self, progress, n):
        while n > 0:
            self.assertTrue(select.select([progress], [], [], DEADLINE_S)[0], "the program hangs")
            n -= len(os.read(progress, n))

    def await_cut(self):
        """Until the first try to reconnect has failed: then the agent says so."""
        until = time.monotonic() + DEADLINE_S
        nodes = []
        while not any(node["url"] == self.node.url and node["state"] == "cut off" for node in nodes):
            self.assertLess(time.monotonic(), until)
            shown = subprocess.run([farapp.farpage, "ps", "--json"], check=True, capture_output=True, text=True).stdout
            nodes = [node for row in json.loads(shown) for node in row["nodes"]]

    def goes_on_after_an_outage(self, out):
        progress = self.start(out)
        self.await_progress(progress, 200)  # the memory was passed once
        os.kill(self.node.process.pid, signal.SIGSTOP)
        try:
            self.await_cut()
        finally:
            os.kill(self.node.process.pid, signal.SIGCONT)
        while select.select([progress], [], [], 0)[0]:
            os.read(progress, 1 << 16)
        self.await_progress(progress, 200)

    def test_file(self):
        with tempfile.TemporaryFile(dir=farapp.workdir) as out:
            self.goes_on_after_an_outage(out)

    def test_pipe(self):
        with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
            self.goes_on_after_an_outage(reader.stdin)
            self.doCleanups()
            reader.stdin.close()


if __name__ == "__main__":
    farapp.need_userfaultfd()
    unittest.main(argv=sys.argv[:1])
