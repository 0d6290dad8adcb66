"""Programs that define functions under names of the C library's (ownnames.c), or are linked to a
library that does: the agent calls none of them."""
import os
import subprocess

import toolcase

PROGRAMS = os.environ["FARPAGE_OWNNAMES"].split(":")


class OwnNames(toolcase.ToolCase):
    def check(self, *options):
        for program in PROGRAMS:
            plain = subprocess.run([program], capture_output=True, text=True, timeout=toolcase.TIMEOUT)
            self.assertEqual((plain.returncode, plain.stdout, plain.stderr), (0, "done\n", ""), program)
            far = self.farpage("run", "--local-memory", "256K", *options, "--", program)
            self.assertEqual(far, (0, b"done\n", ""), program)

    def test_thread(self):
        self.check()

    def test_inline(self):
        self.check("--fault-mode", "inline")



toolcase.main()
