"""Runs every command line of README.md, of the man pages and of doc/operations.md, as it is
printed.

    FARPAGE_BUILD=build test/docs/test_commands.py

The lines run in namespaces of their own, with the addresses, names and files that the documents use
as examples: 192.0.2.7, mem1, /etc/farpage/secret. URL, FILE and PID are filled in, and tcp takes
the place of rdma, which needs a device. A line that can't run here is in NOT_RUN, with the reason.
Nothing here sleeps: a server is awaited until it says that it is ready.
"""
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import farapp
import manual

NOT_RUN = {
    r"^make (demo|check|bench)\b": "takes minutes; CI runs the second, and integration-apps what the first shows",
    r"^make (help|&&)": "belongs to a clone; integration-install installs",
    r"^sudo (make|usermod|setfacl|sysctl)\b": "changes the machine; integration-install and integration-service do the like",
}
# A program that goes on until it is ended, and what it says when it serves.
SERVERS = {r"redis-server$": "Ready to accept connections", r"my-server\)?$": "my-server is ready"}
ENDLESS = r"^farpage (top$|hist .*--live)"  # shows something again and again, until ^C
DEADLINE_S = 120
INSIDE = "FARPAGE_DOCS_INSIDE"
OF_ETC = ("passwd", "group", "nsswitch.conf", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime")
MY_SERVER = """#!/usr/bin/python3
import signal
kept = bytearray(32 << 20)
with open("/proc/self/maps") as maps:
    print("my-server is ready" if "libfarpage-preload.so" in maps.read() else "not preloaded", flush=True)
signal.pause()
"""


def enter_namespaces():
    """Runs this script again where it may have any address and any file in /etc and /run, and
    sees no programs but its own."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *user, "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True)
    if tried.returncode:
        farapp.skip(f"no namespaces here: {tried.stderr.strip()}")
    os.execvpe("unshare", [*command, sys.executable, *sys.argv], {**os.environ, INSIDE: "1"})


class World:
    """What the documents take for granted."""

    def __init__(self, folder):
        self.folder = folder
        self.servers, self.started = [], 0
        self.bin = self.path("bin")
        os.mkdir(self.bin)
        os.symlink(manual.PROGRAMS["farpage"], self.path("bin/farpage"))
        self.write("bin/my-server", MY_SERVER, 0o755)
        self.write("bin/sudo", '#!/bin/sh\nexec "$@"\n', 0o755)  # these namespaces make their user root
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("FARPAGE_")},
            "PATH": self.bin + ":/usr/local/bin:/usr/bin:/bin",  # a user's: farpaged is not in it
            "PKG_CONFIG_PATH": os.path.join(manual.BUILD, "meson-uninstalled"),
            "LD_LIBRARY_PATH": f"{manual.BUILD}/uffd/libfarpage:{manual.BUILD}/preload",
            "LC_ALL": "C",
            "HOME": folder,
        }
        self.set_up_machine()
        self.write("example.c", next(text for language, text in manual.fences("README.md") if language == "c"))
        self.write("big.txt", "".join(f"{i * 7919 % 100003}\n" for i in range(200000)))
        self.write("secret", "a secret of the example\n", 0o600)

    def set_up_machine(self):
        for command in ("mount --make-rprivate /", "ip link set lo up", "ip address add 192.0.2.7/32 dev lo"):
            subprocess.run(command.split(), check=True)
        etc = self.path("etc")
        os.makedirs(etc + "/farpage")
        for name in OF_ETC:
            if os.path.lexists("/etc/" + name):
                subprocess.run(["cp", "-dR", "/etc/" + name, etc], check=True)
        self.write("etc/hosts", "127.0.0.1 localhost\n192.0.2.7 mem1\n")
        self.write("etc/farpage/secret", "a secret of the example\n", 0o600)
        passwd = manual.read("/etc/passwd")
        self.write("etc/passwd", "farpage:x:0:0::/:/bin/sh\n" + passwd)  # the namespaces may have one user alone
        sbin = self.path("sbin")
        os.mkdir(sbin)
        os.symlink(manual.PROGRAMS["farpaged"], sbin + "/farpaged")
        subprocess.run(["mount", "--bind", etc, "/etc"], check=True)
        subprocess.run(["mount", "--bind", sbin, "/usr/local/sbin"], check=True)
        subprocess.run("mount -t tmpfs tmpfs /run".split(), check=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text, mode=0o644):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(self.path(name), mode)

    # ---- what runs ----

    def start(self, line, ready=None, **options):
        """Starts a line; with a text for ready, waits until it has said it."""
        self.started += 1
        with open(self.path(f"log.{self.started}"), "wb") as log:
            process = subprocess.Popen(["bash", "-o", "pipefail", "-c", line], cwd=self.folder, env=self.env, start_new_session=True,
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options)
        process.log_path, process.line = log.name, line
        deadline = time.monotonic() + DEADLINE_S
        while ready and ready not in said(process):
            if process.poll() is not None or time.monotonic() > deadline or "not preloaded" in said(process):
                self.end(process)
                raise AssertionError(f"{line}\nended with {process.returncode} and said:\n{said(process)}")
            select.select([], [], [], 0.02)
        return process

    def serve(self, line, ready):
        """Starts a server, in the place of one that uses the same ports."""
        for server in [s for s in self.servers if s.line.split()[-1] == line.split()[-1]]:
            self.servers.remove(server)
            self.end(server)
        self.servers.append(self.start(line, ready))

    def serve_node(self, line):
        """Starts a node, and waits until its descriptor says that it serves."""
        read_end, write_end = os.pipe()
        node = self.start(f"exec {line} --ready-fd {write_end}", pass_fds=[write_end])
        node.line = line
        os.close(write_end)
        with os.fdopen(read_end) as urls:
            ready = select.select([urls], [], [], DEADLINE_S)[0] and urls.readline()
        self.servers.append(node)
        if not ready:
            raise AssertionError(f"{line}\nsaid:\n{said(node)}")

    @staticmethod
    def end(process, how=signal.SIGTERM):
        """Ends a process with all that it started; returns its status."""
        try:
            os.killpg(process.pid, how)
            status = process.wait(20)
        except ProcessLookupError:
            status = process.wait()
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        return status

    def end_all(self):
        for server in reversed(self.servers):
            self.end(server)
        self.servers.clear()

    # ---- what a line needs ----

    def has(self, what):
        return any(what in server.line for server in self.servers)

    def prepare(self, line):
        """Starts the node that a line talks to, unless an earlier line did, and the program that it
        looks at."""
        if re.search(r"192\.0\.2\.7|mem1", line) and not self.has("mem1.yaml"):
            with_secret = [text for language, text in manual.fences("README.md") if language == "yaml" and "secret_file" in text]
            self.write("mem1.yaml", with_secret[0] + "pools: [{name: main, size: 8G}]\n")
            shutil.copy(self.path("secret"), "/etc/farpage/secret")
            self.serve_node("/usr/local/sbin/farpaged --config mem1.yaml")
        if "127.0.0.1:7460" in line and not self.has("node.yaml"):
            self.serve_node("/usr/local/sbin/farpaged --config node.yaml")
        if "/run/farpaged/socket" in line and not self.has("farpaged.yaml"):
            os.makedirs("/run/farpaged", exist_ok=True)
            shutil.copy(os.path.join(manual.ROOT, "systemd/farpaged.yaml"), self.path("farpaged.yaml"))
            self.serve_node("/usr/local/sbin/farpaged --config farpaged.yaml")
        if re.search(r"\b(ps|top|hist)\b", line) and not self.has("farpage run"):
            self.serve("farpage run --local-memory 16M -- my-server", "my-server is ready")
        for name in re.findall(r"\b\w+\.stats\b", line):
            if not os.path.exists(self.path(name)) and not re.search("--save|--stats-file.* -- ", line):
                self.run(f"farpage run --stats-file {name} -- sort -o /dev/null big.txt")

    def fill_in(self, line):
        """Puts the number of a running program in the place of PID, and shortens measurements."""
        line = re.sub(r"bench link (?!.*--seconds)", "bench link --seconds 0.001 ", line)
        if not re.search(r"--pid (PID|\d+)", line):
            return line
        shown = subprocess.run(["farpage", "ps"], cwd=self.folder, env=self.env, check=True, capture_output=True, text=True).stdout
        return re.sub(r"--pid (PID|\d+)", "--pid " + re.search(r"^ *(\d+) ", shown, re.MULTILINE)[1], line)

    def run(self, line):
        """Runs a line as a reader would: to its end, until it serves, or until ^C."""
        line = re.sub(r"\s+# .*", "", line).replace("rdma://", "tcp://")
        line = re.sub(r"\bFILE\b", "secret", re.sub(r"\bURL\b", "tcp://192.0.2.7", line))
        self.prepare(line)
        line = self.fill_in(line)
        for server, ready in SERVERS.items():
            if re.search(server, line):
                return self.serve(line, ready)
        if re.match(r"\S*farpaged .*--config", line) and "--check" not in line:
            return self.serve_node(line)
        endless = re.match(ENDLESS, line)
        process = self.start("exec " + line if endless else line, "\n" if endless else None)
        try:
            status = self.end(process, signal.SIGINT) if endless else process.wait(DEADLINE_S)
        except BaseException:
            self.end(process, signal.SIGKILL)
            raise
        if status != 0 and not (status == 128 + signal.SIGPIPE and "| head" in line):
            raise AssertionError(f"{line}\nended with {status} and said:\n{said(process)}")
        return None


def said(process):
    with open(process.log_path, encoding="utf-8", errors="replace") as log:
        return log.read()


def why_not(line):
    return next((reason for pattern, reason in NOT_RUN.items() if re.search(pattern, line)), None)


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp(prefix="farpage-docs.")
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        cls.world = World(folder)
        cls.addClassCleanup(cls.world.end_all)
        cls.skipped = []

    def try_line(self, where, line):
        reason = why_not(line)
        if reason:
            self.skipped.append(line)
            return
        with self.subTest(where, line=line):
            begin = time.monotonic()
            self.world.run(line)
            print(f"{where}: {line} ({time.monotonic() - begin:.1f} s)", flush=True)

    def test_all(self):
        """The lines of a document in their order: a node that one starts is there for the next."""
        for language, text in manual.fences("README.md"):
            if language == "yaml" and "pools:" in text:
                self.world.write("node.yaml", text)
            for line in manual.shell_lines(text) if language == "sh" else []:
                self.try_line("README.md", line)
        for path in ("README.md", "doc/operations.md"):
            self.assertGreater(len(manual.span_lines(path)), 5)
            for line in manual.span_lines(path):
                self.try_line(path, line)
        self.world.end_all()
        self.world.env["PATH"] += ":/usr/local/sbin"  # root's: section 8 is for root
        for page in manual.pages():
            self.assertFalse(page.section in "18" and not page.examples(), f"{page.path} has no examples")
            self.assertNotRegex(page.source, r"(?m)^\.nf\n(?:(?!\.fi$).*\n)*?(?:farpaged?|openssl|sudo) ", "only .EX is run")
            for line in page.examples():
                self.try_line(page.name, line)
            self.world.end_all()
        for pattern, reason in NOT_RUN.items():
            self.assertTrue(any(re.search(pattern, line) for line in self.skipped), f"nothing needs {pattern!r}: {reason}")
        print(f"not run: {self.skipped}")

    def test_wrong_lines(self):
        """Lines that must fail are noticed."""
        for line in ("farpage ps --jason", "farpage hist --stats-file /nothing | cat", "farpage run -- my-sever",
                     "farpaged --config /nothing",
                     "LD_PRELOAD=/nothing/libfarpage-preload.so my-server"):
            with self.assertRaises(AssertionError):
                self.world.run(line)


if __name__ == "__main__":
    if INSIDE not in os.environ:
        farapp.need_userfaultfd()
        enter_namespaces()
    unittest.main(verbosity=2)
