"""A cgroup with a memory limit, v1 or v2, for processes of a test. It goes with the test, also if
that is killed."""
import os
import signal
import time

DEADLINE_S = 20


def find_parent():
    """Where such groups can be made, and the name of their limit. None: nowhere."""
    v1, v2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
    if os.access(f"{v1}/memory.limit_in_bytes", os.R_OK) and os.access(v1, os.W_OK):
        return v1, "memory.limit_in_bytes"
    try:
        with open(f"{v2}/cgroup.subtree_control", encoding="ascii") as f:
            if "memory" not in f.read():
                with open(f"{v2}/cgroup.subtree_control", "w", encoding="ascii") as control:
                    control.write("+memory")
    except OSError:
        return None
    return (v2, "memory.max") if os.access(v2, os.W_OK) else None


class MemoryCgroup:
    """enter() goes as a preexec function to what shall run in it; remove() kills whatever is left
    there."""

    def __init__(self, limit_bytes):
        parent, limit = find_parent()
        self.path = f"{parent}/farpage-test-{os.getpid()}-{time.monotonic_ns()}"
        read_end, self.watched = os.pipe()
        self.remover = os.fork()
        if self.remover == 0:
            os.close(self.watched)
            os.setsid()
            os.read(read_end, 1)  # its other end is closed: the test is over, or dead
            self.clear()
            os._exit(0)
        os.close(read_end)
        os.mkdir(self.path)
        self.limit_name = f"{self.path}/{limit}"
        with open(self.limit_name, "w", encoding="ascii") as f:
            f.write(str(limit_bytes))

    def clear(self):
        end = time.monotonic() + DEADLINE_S
        while os.path.isdir(self.path) and time.monotonic() < end:
            try:
                with open(f"{self.path}/cgroup.procs", encoding="ascii") as f:
                    for pid in f:
                        os.kill(int(pid), signal.SIGKILL)
                os.rmdir(self.path)
            except OSError:
                time.sleep(0.01)

    def enter(self):
        with open(f"{self.path}/cgroup.procs", "w", encoding="ascii") as f:
            f.write(str(os.getpid()))

    def peak_bytes(self):
        """The most that it has had."""
        name = next(name for name in ("memory.max_usage_in_bytes", "memory.peak") if os.path.exists(f"{self.path}/{name}"))
        with open(f"{self.path}/{name}", encoding="ascii") as f:
            return int(f.read())

    def remove(self):
        os.close(self.watched)
        os.waitpid(self.remover, 0)
