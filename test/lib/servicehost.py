"""A host with systemd and the installed Farpage, made of namespaces. It needs root, and starts in
seconds. Room: test/lib.

systemd is the first process of a PID namespace, so everything on the host ends with it. Its root is
this machine's, under an overlay in memory (servicehost.sh). A process of its own cleans up, also if
the test is killed.
"""
import os
import subprocess
import tempfile
import time

SYSTEMD = "/lib/systemd/systemd"
TIMEOUT_S = 60


def cgroup2():
    """Where the machine has cgroups of version 2, alone or beside version 1. None: nowhere."""
    with open("/proc/mounts", encoding="ascii") as mounts:
        places = [line.split()[1] for line in mounts if line.split()[2] == "cgroup2"]
    return next((place for place in places if os.access(place, os.W_OK)), None)


def why_not():
    """Why there can be no such host here; None: there can."""
    if os.geteuid() != 0:
        return "a host with systemd needs root"
    if not os.access(SYSTEMD, os.X_OK):
        return "systemd is not installed"
    if not cgroup2():
        return "there are no cgroups of version 2"
    if not os.path.exists("/dev/userfaultfd"):
        return "there is no /dev/userfaultfd"
    made = subprocess.run(["unshare", "--mount", "--pid", "--cgroup", "--net", "--uts", "--ipc", "--fork", "mount", "-t", "tmpfs", "x", "/mnt"],
                          capture_output=True, text=True, timeout=TIMEOUT_S)
    return f"namespaces are not permitted: {made.stderr.strip()}" if made.returncode else None


class ServiceHost:
    def __init__(self, build, sources):
        self.folder = tempfile.mkdtemp(prefix="farpage-host.")
        self.cgroup = os.path.join(cgroup2(), os.path.basename(self.folder))
        self.log = open(os.path.join(self.folder, "log"), "wb")  # of what runs before systemd
        self.top = os.path.join(self.folder, "top")
        os.mkdir(self.top)
        os.mkdir(self.cgroup)
        self.process = self.start(build, sources)
        self.watch()
        try:
            self.await_systemd()
        except BaseException:
            self.close()
            raise

    def start(self, build, sources):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "servicehost.sh")
        return subprocess.Popen(
            ["unshare", "--cgroup", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child",
             "bash", script, self.top, build, sources],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, preexec_fn=self.enter_cgroup)

    def enter_cgroup(self):
        with open(f"{self.cgroup}/cgroup.procs", "w", encoding="ascii") as procs:
            procs.write("0")

    def watch(self):
        """Starts the process that cleans up when the test closes the pipe, or dies."""
        read_end, self.watched = os.pipe()
        self.cleaner = os.fork()
        if self.cleaner == 0:
            try:
                os.close(self.watched)
                os.setsid()
                os.read(read_end, 1)
                self.clear()
            finally:
                os._exit(os.path.exists(self.folder))
        os.close(read_end)

    def clear(self):
        with open(f"{self.cgroup}/cgroup.kill", "w", encoding="ascii") as kill:  # Linux 5.14
            kill.write("1")
        end = time.monotonic() + TIMEOUT_S
        while not self.remove_folders() and time.monotonic() < end:
            time.sleep(0.02)

    def remove_folders(self):
        try:
            for folder, _, _ in os.walk(self.cgroup, topdown=False):
                os.rmdir(folder)
        except OSError:  # processes that are still ending
            return False
        os.rmdir(self.top)
        os.unlink(self.log.name)
        os.rmdir(self.folder)
        return True

    def systemd_pid(self):
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children", encoding="ascii") as children:
            pids = children.read().split()
        if pids and os.readlink(f"/proc/{pids[0]}/exe").endswith("/systemd"):
            return int(pids[0])
        return None

    def await_systemd(self):
        end = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < end:
            self.pid = self.systemd_pid()
            if self.pid and "running" in self.run("systemctl", "is-system-running").stdout:
                return
            time.sleep(0.05)
        with open(self.log.name, encoding="utf-8") as log:
            raise RuntimeError(f"systemd did not come up: {log.read()}")

    def run(self, *command, timeout=TIMEOUT_S, **options):
        """Runs a command on the host."""
        return subprocess.run(["nsenter", "--target", str(self.pid), "--all", "--root", "--wd", *command], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=timeout, env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **options})

    def path(self, path):
        """Where this process finds a file of the host."""
        return f"/proc/{self.pid}/root{path}"

    def close(self):
        os.close(self.watched)
        if os.waitpid(self.cleaner, 0)[1]:
            raise RuntimeError(f"{self.folder} and {self.cgroup} could not be removed")
        self.process.wait(TIMEOUT_S)
        self.log.close()
