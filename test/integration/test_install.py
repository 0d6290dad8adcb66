"""What `make install` puts where: it runs from there, the unit finds what it starts and reads, and
the pages render.

    FARPAGE_BUILD=build test/integration/test_install.py
"""
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import farapp
import toolcase


def install(dest):
    subprocess.run(["meson", "install", "-C", farapp.build, "--no-rebuild", "--quiet"], env={**os.environ, "DESTDIR": dest},
                   check=True, stdout=subprocess.DEVNULL, timeout=toolcase.TIMEOUT)


class Installed(toolcase.ToolCase):
    @classmethod
    def setUpClass(cls):
        cls.dest = tempfile.mkdtemp(prefix="farpage-dest.")
        cls.addClassCleanup(shutil.rmtree, cls.dest)
        install(cls.dest)

    def find(self, name):
        found = [os.path.join(folder, name) for folder, _, files in os.walk(self.dest) if name in files]
        self.assertEqual(len(found), 1, name)
        return found[0]

    def test_it_runs(self):
        """With its own parts, not those of the build folder."""
        env = {**self.env, "LD_LIBRARY_PATH": os.path.dirname(self.find("libfarpage.so.0.1.0"))}
        maps = subprocess.run([self.find("farpage"), "run", "--pool-size", "64M", "cat", "/proc/self/maps"], env=env, check=True,
                              capture_output=True, text=True, timeout=toolcase.TIMEOUT).stdout
        self.assertIn(self.find("libfarpage-preload.so"), maps)
        self.assertNotIn(farapp.build, maps)

    def test_the_unit_finds_its_parts(self):
        with open(self.find("farpaged.service")) as unit:
            daemon, config = re.search(r"ExecStart=(\S+) --config (\S+)", unit.read()).groups()
        self.assertEqual(self.dest + daemon, self.find("farpaged"))
        self.assertEqual(self.dest + config, self.find("farpaged.yaml"))
        subprocess.run([self.dest + daemon, "--config", self.dest + config, "--check"], check=True, stdout=subprocess.DEVNULL)

    def test_a_configuration_stays(self):
        path = self.find("farpaged.yaml")
        with open(path, "a") as config:
            config.write("# mine\n")
        install(self.dest)
        with open(path) as config:
            self.assertTrue(config.read().endswith("# mine\n"))

    @unittest.skipUnless(shutil.which("man") and shutil.which("groff"), "there is no man")
    def test_pages_render(self):
        pages = [os.path.join(folder, name) for folder, _, files in os.walk(os.path.join(self.dest)) for name in files
                 if re.fullmatch(r"far.*\.[1-8]", name)]
        self.assertGreaterEqual(len(pages), 9)
        for page in pages:
            shown = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", page], env={**self.env, "LC_ALL": "C.UTF-8"},
                                   capture_output=True, text=True, timeout=toolcase.TIMEOUT)
            self.assertEqual((shown.returncode, shown.stderr), (0, ""), page)
            self.assertIn("NAME", shown.stdout)


if __name__ == "__main__":
    toolcase.main()
