"""Runs a real program plain and then with far memory, and compares what it did. Room: test/lib;
used by test/apps.

A test ends with 0, with a message and 1, or with a reason and 77 where it cannot run. FARPAGE_BUILD
names the build folder.
"""
import atexit
import ctypes
import hashlib
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
SKIPPED = 77
BUDGET_FLOOR = 16 * MIB
FETCHES_AT_LEAST = 100
USERFAULTFD_CALL = {"x86_64": 323, "aarch64": 282}

large = sys.argv[1:] == ["large"]  # the sizes of make check-compat; what runs at each check is smaller
build = os.environ["FARPAGE_BUILD"]
farpage = os.path.join(build, "tools", "farpage")
workdir = tempfile.mkdtemp(prefix="farpage-app.")
atexit.register(shutil.rmtree, workdir, ignore_errors=True)


def skip(reason):
    print(reason)
    sys.exit(SKIPPED)


def check(condition, message):
    if not condition:
        sys.exit(f"FAILED: {message}")


def need_program(path):
    """The path itself, so that no look-alike earlier in PATH is run."""
    if not os.access(path, os.X_OK):
        skip(f"{path} is not installed")
    return path


def need_userfaultfd():
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(USERFAULTFD_CALL.get(platform.machine(), -1), os.O_CLOEXEC)
    if fd < 0 and not os.access("/dev/userfaultfd", os.R_OK | os.W_OK):
        skip(f"userfaultfd is not permitted here: {os.strerror(ctypes.get_errno())}")
    if fd >= 0:
        os.close(fd)


class Outcome:
    """What one run came to."""

    def __init__(self, command, timeout, env=None):
        self.command = command
        self.stderr_path = os.path.join(workdir, "stderr")
        begin = time.monotonic()
        with open(self.stderr_path, "wb") as stderr:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True,
                env={**os.environ, "LC_ALL": "C", **(env or {})},
            )
        try:
            self.digest, self.length = self._read(process, begin + timeout)
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        process.returncode = self.status = os.waitstatus_to_exitcode(status)
        self.seconds = time.monotonic() - begin
        self.peak_bytes = usage.ru_maxrss * 1024

    def _read(self, process, deadline):
        digest, length = hashlib.blake2b(), 0
        while True:
            if not select.select([process.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                sys.exit(f"FAILED: still running at its deadline: {self.command}\n{self.stderr()}")
            piece = os.read(process.stdout.fileno(), MIB)
            if not piece:
                process.stdout.close()
                return digest.hexdigest(), length
            digest.update(piece)
            length += len(piece)

    def stderr(self):
        return text_of(self.stderr_path)


def text_of(path):
    """The end of a file."""
    with open(path, errors="replace") as text:
        return text.read()[-4000:]


class Node:
    """A memory node on a free port of loopback, or of a configuration that names one listener."""

    def __init__(self, size=None, *, config=None, prefix=()):
        path = os.path.join(workdir, "node.yaml")
        with open(path, "w") as out:
            out.write(config or f"listen: tcp://127.0.0.1:0\npools:\n  - name: main\n    size: {size}\n")
        read_fd, write_fd = os.pipe()
        self.log = open(os.path.join(workdir, "node.log"), "w+")
        self.process = subprocess.Popen(
            [*prefix, os.path.join(build, "daemon", "farpaged"), "--config", path, "--ready-fd", str(write_fd)],
            pass_fds=[write_fd], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
        )
        os.close(write_fd)
        ready = select.select([read_fd], [], [], 10)[0]
        self.url = os.read(read_fd, 200).decode().strip() if ready else ""
        os.close(read_fd)
        if not self.url:
            self.stop()
            sys.exit(f"FAILED: the memory node did not come up:\n{self.text()}")

    def text(self):
        return text_of(self.log.name)  # not by self.log: the daemon writes at the place of that descriptor

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def fetches(stats_file, phase="fetch"):
    """How many pages the run fetched from nodes because a thread touched them. For another
    phase: how often it was recorded."""
    shown = subprocess.run(
        [farpage, "hist", "--stats-file", stats_file, "--phase", phase, "--format", "json"],
        check=True, capture_output=True, text=True,
    )
    return json.loads(shown.stdout)["count"]


def run_far(command, local_bytes, timeout, env=None, pool="4G", options=(), before=()):
    """Runs command over tcp; returns its outcome and the number of fetches. options are farpage
    run's; before comes before it."""
    node = Node(pool)
    stats_file = os.path.join(workdir, "run.stats")
    wrapped = [*before, farpage, "run", "--node", node.url, "--local-memory", str(local_bytes), "--stats-file", stats_file,
               *options, "--"]
    try:
        outcome = Outcome(wrapped + command, timeout, env)
        check(node.process.poll() is None, f"the memory node ended:\n{node.text()}")
        return outcome, fetches(stats_file)
    finally:
        node.stop()


def compare(command, *, far_command=None, local_bytes=None, timeout=600, env=None, output=True, must_fetch=True, options=(),
            before=()):
    """The whole test: plain, far with a quarter of the plain run's peak, and a verdict."""
    plain = Outcome([*before, *command], timeout, env)
    local_bytes = local_bytes or max(plain.peak_bytes // 4, BUDGET_FLOOR)
    far, fetched = run_far(far_command or command, local_bytes, timeout, env, options=options, before=before)
    print(f"plain {plain.seconds:.1f} s, peak {plain.peak_bytes // MIB} MiB; far {far.seconds:.1f} s "
          f"({far.seconds / plain.seconds:.1f} times), {local_bytes // MIB} MiB local, {fetched} fetches; "
          f"{plain.length} bytes of output", flush=True)
    check(far.status == plain.status, f"exit status {far.status}, plain {plain.status}:\n{far.stderr()}")
    check(not output or (far.length, far.digest) == (plain.length, plain.digest), "the output differs")
    check(not must_fetch or fetched >= FETCHES_AT_LEAST, f"only {fetched} fetches: was it far memory?")


def main(test):
    """Runs test(), and leaves nothing behind even when it is told to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    need_userfaultfd()
    test()
