"""What `make install` puts where: it runs from there, the unit finds what it starts and reads, and
the pages render.

    FARPAGE_BUILD=build test/integration/test_install.py
"""
import json
import os
import pwd
import re
import shutil
import subprocess
import tempfile
import unittest

import farapp
import toolcase


SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts")


def files_below(folder):
    return [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names]


def uninstall(dest, check=True):
    return subprocess.run([os.path.join(SCRIPTS, "uninstall.py"), farapp.build], env={**os.environ, "DESTDIR": dest},
                          check=check, capture_output=True, text=True, timeout=toolcase.TIMEOUT)


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
        found = [path for path in files_below(self.dest) if os.path.basename(path) == name and "completions" not in path]
        self.assertEqual(len(found), 1, name)
        return found[0]

    def test_it_runs(self):
        """With its own parts, not those of the build folder."""
        env = {**self.env, "LD_LIBRARY_PATH": os.path.dirname(self.find("libfarpage.so.0.1.0"))}
        maps = subprocess.run([self.find("farpage"), "run", "--pool-size", "64M", "cat", "/proc/self/maps"], env=env, check=True,
                              capture_output=True, text=True, timeout=toolcase.TIMEOUT).stdout
        self.assertIn(self.find("libfarpage-preload.so"), maps)
        self.assertNotIn(farapp.build, maps)

    def test_preload_library_by_name(self):
        """Preloads the library by its name, which the loader finds, and by the path that farpage
        run prints."""
        env = {**self.env, "LD_LIBRARY_PATH": os.path.dirname(self.find("libfarpage.so.0.1.0"))}
        printed = subprocess.run([self.find("farpage"), "run", "--print-env", "--node", "tcp://127.0.0.1:1"], env=env, check=True,
                                 capture_output=True, text=True, timeout=toolcase.TIMEOUT).stdout
        self.assertIn("LD_PRELOAD=" + self.find("libfarpage-preload.so"), printed.splitlines())
        done = subprocess.run(["/bin/true"], env={**env, "LD_PRELOAD": "libfarpage-preload.so"}, capture_output=True, text=True,
                              timeout=toolcase.TIMEOUT)
        self.assertEqual(done.returncode, 125)  # it is there, and lacks a node
        self.assertIn("no memory node: set FARPAGE_NODES", done.stderr)

    def test_the_unit_finds_its_parts(self):
        with open(self.find("farpaged.service")) as unit:
            daemon, config = re.search(r"ExecStart=(\S+) --config (\S+)", unit.read()).groups()
        self.assertEqual(self.dest + daemon, self.find("farpaged"))
        self.assertEqual(self.dest + config, self.find("farpaged.yaml"))
        subprocess.run([self.dest + daemon, "--config", self.dest + config, "--check", "--user", pwd.getpwuid(os.geteuid()).pw_name], check=True, stdout=subprocess.DEVNULL)

    def test_a_configuration_stays(self):
        path = self.find("farpaged.yaml")
        with open(path, "a") as config:
            config.write("# mine\n")
        install(self.dest)
        with open(path) as config:
            self.assertTrue(config.read().endswith("# mine\n"))

    def test_completions(self):
        for name, mark in (("farpaged", "complete -F"), ("_farpage", "#compdef farpage farpaged")):
            found = [path for path in files_below(self.dest) if os.path.basename(path) == name and "/share/" in path]
            self.assertEqual(len(found), 1, found)
            with open(found[0]) as script:
                self.assertIn(mark, script.read())

    @unittest.skipUnless(shutil.which("man") and shutil.which("groff"), "there is no man")
    def test_pages_render(self):
        pages = [os.path.join(folder, name) for folder, _, files in os.walk(os.path.join(self.dest)) for name in files
                 if re.fullmatch(r"far.*\.[1-8]", name)]
        self.assertGreaterEqual(len(pages), 20)
        for page in pages:
            shown = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", page], env={
                **self.env, "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MANOPT": ""},
                                   capture_output=True, text=True, timeout=toolcase.TIMEOUT,
                                   cwd=os.path.dirname(os.path.dirname(page)))  # where .so finds another page
            self.assertEqual((shown.returncode, shown.stderr), (0, ""), page)
            self.assertIn("NAME", shown.stdout)


class Uninstalled(unittest.TestCase):
    def setUp(self):
        self.dest = tempfile.mkdtemp(prefix="farpage-dest.")
        self.addCleanup(shutil.rmtree, self.dest)

    def test_nothing_is_left(self):
        install(self.dest)
        self.assertGreater(len(files_below(self.dest)), 20)
        uninstall(self.dest)
        self.assertEqual(files_below(self.dest), [])
        self.assertFalse([folder for folder, _, _ in os.walk(self.dest) if os.path.basename(folder) == "farpage"])
        again = uninstall(self.dest, check=False)
        self.assertEqual((again.returncode, again.stdout), (1, ""))
        self.assertIn(f"nothing of {farapp.build} is installed in {self.dest}/", again.stderr)

    def test_a_relative_folder(self):
        """A relative DESTDIR begins at the build folder, for install and for uninstall."""
        relative = os.path.relpath(self.dest, farapp.build)
        install(relative)
        self.assertGreater(len(files_below(self.dest)), 20)
        uninstall(relative)
        self.assertEqual(files_below(self.dest), [])

    def test_what_can_not_be_removed(self):
        install(self.dest)
        unit = next(path for path in files_below(self.dest) if path.endswith("/farpaged.service"))
        os.remove(unit)
        os.mkdir(unit)
        done = uninstall(self.dest, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, f"uninstall: {unit}: Is a directory. If root installed it, use `sudo make uninstall`\n")

    def test_what_others_own_stays(self):
        install(self.dest)
        configuration = next(path for path in files_below(self.dest) if path.endswith("/farpaged.yaml"))
        secret = os.path.join(os.path.dirname(configuration), "secret")
        for path in (configuration, secret):
            with open(path, "a") as changed:
                changed.write("# mine\n")
        self.assertIn(f"Keeping {configuration}", uninstall(self.dest).stdout)
        self.assertEqual(set(files_below(self.dest)), {configuration, secret})


class Host(unittest.TestCase):
    """What scripts/tell_host.sh says to a host with systemd and udev. Their commands are stubs,
    each of which writes what it was told."""

    STUBS = {"ldconfig": "", "systemctl": "", "systemd-sysusers": '[ "$1" = farpage.conf ]', "systemd-tmpfiles": '[ "$2" = farpage.conf ]',
             "udevadm": '[ "$1" = control ] || [ -e /dev/userfaultfd ]'}

    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("takes a mount namespace")
        self.folder = tempfile.mkdtemp(prefix="farpage-host.")
        self.addCleanup(shutil.rmtree, self.folder)
        for name, rule in self.STUBS.items():
            path = os.path.join(self.folder, name)
            with open(path, "w") as stub:
                stub.write(f'#!/bin/sh\necho {name} "$@" >&3\n{rule}\n')
            os.chmod(path, 0o755)

    def tell(self, prepare):
        """Returns the commands and their words. Empty folders hide files of ours on this
        machine."""
        script = ("set -e; for folder in /etc /usr/local/lib /usr/lib; do for kind in sysusers.d tmpfiles.d; do "
                  '[ ! -d $folder/$kind ] || mount -t tmpfs x $folder/$kind; done; done\n'
                  "mount -t tmpfs x /run; mkdir -p /run/systemd/system /run/udev; "
                  "/usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/run/udev/control\")'\n"
                  f'{prepare}; exec 3>&1; PATH="$0:$PATH" exec "$1"')
        done = subprocess.run(["unshare", "-m", "sh", "-c", script, self.folder, os.path.abspath(os.path.join(SCRIPTS, "tell_host.sh"))],
                              capture_output=True, text=True, timeout=toolcase.TIMEOUT)
        if "unshare" in done.stderr or "mount" in done.stderr:
            self.skipTest(done.stderr.strip())
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout.splitlines()

    FILES = "mkdir /run/sysusers.d /run/tmpfiles.d; touch /run/sysusers.d/farpage.conf /run/tmpfiles.d/farpage.conf"

    def test_only_our_files_are_applied(self):
        self.assertEqual(self.tell(f"{self.FILES}; mount -t tmpfs x /dev; touch /dev/userfaultfd"), [
            "ldconfig", "systemctl daemon-reload", "systemd-sysusers farpage.conf", "systemd-tmpfiles --create farpage.conf",
            "udevadm control --reload", "udevadm trigger --name-match=userfaultfd"])

    def test_a_kernel_without_the_device(self):
        self.assertEqual(self.tell(f"{self.FILES}; mount -t tmpfs x /dev")[-1], "udevadm control --reload")

    def test_after_an_uninstall(self):
        self.assertEqual(self.tell("mount -t tmpfs x /dev"), ["ldconfig", "systemctl daemon-reload", "udevadm control --reload"])


class Targets(unittest.TestCase):
    def test_make_builds_no_tests(self):
        """`make` builds what is installed, and all of it."""
        built = subprocess.run([os.path.join(SCRIPTS, "targets.py"), farapp.build, "installed"], check=True, capture_output=True,
                               text=True).stdout.split()
        self.assertFalse([file for file in built if file.startswith("test/")])
        with open(os.path.join(farapp.build, "meson-info/intro-installed.json")) as installed:
            wanted = {os.path.relpath(path, os.path.realpath(farapp.build)) for path in json.load(installed)
                      if path.startswith(os.path.realpath(farapp.build)) and re.search(r"/(tools|daemon|preload|uffd)/", path)}
        self.assertEqual(wanted, set(built))
        for file in built:
            linked = subprocess.run(["readelf", "-d", os.path.join(farapp.build, file)], check=True, capture_output=True, text=True)
            self.assertNotIn("cmocka", linked.stdout)

    def test_no_cmocka_is_needed(self):
        """A build folder without the tests, on a machine without cmocka."""
        folder = tempfile.mkdtemp(prefix="farpage-build.")
        self.addCleanup(shutil.rmtree, folder)
        hidden = os.path.join(folder, "pkg-config")
        with open(hidden, "w") as script:
            script.write('#!/bin/sh\ncase "$*" in *cmocka*) exit 1 ;; esac\nexec pkg-config "$@"\n')
        os.chmod(hidden, 0o755)
        done = subprocess.run(["meson", "setup", os.path.join(folder, "build")], cwd=os.path.join(SCRIPTS, ".."), capture_output=True,
                              text=True, env={**os.environ, "PKG_CONFIG": hidden}, timeout=150)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, "cmocka found: .*NO")
        self.assertFalse(os.path.exists(os.path.join(folder, "build/test")))


if __name__ == "__main__":
    toolcase.main()
