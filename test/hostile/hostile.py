"""hostile.py ATTACK TRANSPORT: one attack on a farpaged beside a client that behaves well.

Turns of the client alone and turns beside the attack alternate. The client may lose no byte and no
session. The median p99 of its turns beside the attack is at most SLOWER times that of its turns
alone. The daemon's memory and descriptors stay within bounds, and are back to the start when the
attackers are gone.

Over rdma, in a guest, the processors are the device: whoever keeps it busy slows everybody,
whatever a node does. There the client is alone at its node, while the same attackers are busy with
another node.
"""
import ctypes
import mmap
import multiprocessing
import os
import random
import resource
import signal
import statistics
import sys
import time
import traceback

import attacks
from farpaged import DEADLINE_S, Farpaged
from wellbehaved import WellBehavedProcess

TURNS, RDMA_TURNS = 3, 2
MAX_TURNS = 7
TURN_S = 1.0
SLOWER = 5
FLOOR_S = 0.002  # a p99 below it says more about the machine than about the node
SHARED_FLOOR_S = 0.02  # the same where the attackers, who would have machines of their own, take the node's processors
# Where it takes longer to clear FLOOR_BYTES than SLOW_S, each change of a page table costs 5 to 10
# µs. There, beside new sessions, a lease takes 5 ms in one run and 50 to 90 ms in the next. We do
# not know why: the node's threads wait less than 2 ms for a CPU, but its loop runs for up to 0.9 s
# in one piece.
FLOOR_BYTES, SLOW_S, SLOW_FLOOR_S = 4 << 20, 0.005, 0.1
SLACK_BYTES = 8 << 20  # what an allocator may keep
SAMPLE_S = 0.05
SKIPPED = 77
SEED = int(os.environ.get("SEED", random.randrange(1 << 32)))
ATTACKER_UID = 65534  # nobody: on UNIX sockets a client without a secret is a user


def clearing_s():
    """How long this machine takes to clear FLOOR_BYTES, page by page."""
    times = []
    for _ in range(3):
        with mmap.mmap(-1, FLOOR_BYTES) as memory:
            begin = time.monotonic()
            memory[::mmap.PAGESIZE] = b"x" * (FLOOR_BYTES // mmap.PAGESIZE)
            times.append(time.monotonic() - begin)
    return min(times)


def resident_bytes(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return sum(int(line.split()[1]) << 10 for line in f if line.startswith(("RssAnon", "RssShmem", "HugetlbPages")))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def p99(samples):
    return sorted(samples)[int(len(samples) * 0.99)] if samples else 0.0


def prefer(pid, client_pid):
    """The node's loop and the client run before all else on this machine; then the node's other
    threads. False: not allowed."""
    try:
        for tid in map(int, os.listdir(f"/proc/{pid}/task")):
            os.sched_setscheduler(tid, os.SCHED_RR, os.sched_param(2 if tid == pid else 1))
        os.sched_setscheduler(client_pid, os.SCHED_RR, os.sched_param(2))
    except PermissionError:
        return False
    return True


def die_with_parent():
    """For what is started here: nothing may outlive a test that is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Attackers:
    """The processes of one turn of an attack. They run until they are killed, as crashing clients
    do."""

    def __init__(self, attack, node, url):
        self.go = multiprocessing.Event()
        self.ready = [multiprocessing.Event() for _ in range(attack.processes)]
        self.processes = [multiprocessing.Process(target=self.serve, args=(attack, node, url, ready), daemon=True)
                          for ready in self.ready]
        for process in self.processes:
            process.start()
        for ready in self.ready:
            if not ready.wait(DEADLINE_S):
                raise AssertionError("an attacker could not begin")

    def serve(self, attack, node, url, ready):
        node.secret = attack.secrets(url)[1]
        if url.startswith("rdma:"):
            os.nice(19)  # elsewhere they have machines of their own
        if url.startswith("shm:") and os.geteuid() == 0:
            os.setgid(ATTACKER_UID)
            os.setuid(ATTACKER_UID)
        die_with_parent()  # after setuid, which forgets it
        try:
            attack.run(node, url, ready)
        except Exception:  # pylint: disable=broad-except
            traceback.print_exc()
        ready.set()
        signal.pause()  # what it has, it keeps until the turn is over

    def end(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()


class Trial:
    """One attack over one transport."""

    def __init__(self, attack, transport):
        self.attack = attack
        self.node = Farpaged(attack.config(transport), preexec=self.prepare)
        self.other = Farpaged(attack.config(transport), preexec=self.prepare) if transport == "rdma" else None
        self.pid = self.node.process.pid
        self.transport, self.turns = transport, RDMA_TURNS if transport == "rdma" else TURNS
        self.url = self.url_of(self.node)
        self.secret = attack.secrets(self.url)[0]
        self.good = WellBehavedProcess(self.node, self.url, self.secret, SEED)
        # soft rdma is the kernel's threads: they must not come after the node's
        self.floor_s = FLOOR_S if not self.other and prefer(self.pid, self.good.process.pid) else SHARED_FLOOR_S
        if clearing_s() > SLOW_S:
            self.floor_s = SLOW_FLOOR_S
        self.watcher = self.node.session(self.node.urls[0] if transport == "rdma" else self.url, secret=self.secret)
        self.alone, self.beside, self.peak_bytes, self.peak_fds = [], [], 0, 0
        warm = self.good.call("run", TURN_S, attack.resumes)
        if self.other:
            print("nobody attacked: p99", ", ".join(f"{kind} {p99(took) * 1e3:.2f} ms" for kind, took in warm.items() if took))
        self.start_free = self.watcher.info()[1]
        self.start_bytes, self.start_fds = resident_bytes(self.pid), descriptors(self.pid)

    def prepare(self):
        die_with_parent()
        if self.attack.descriptors:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.attack.descriptors,) * 2)

    def url_of(self, node):
        return next(url for url in node.urls if url.startswith(self.transport + ":"))

    def watch(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.node.process.poll() is None:
            self.peak_bytes = max(self.peak_bytes, resident_bytes(self.pid))
            self.peak_fds = max(self.peak_fds, descriptors(self.pid))
            time.sleep(SAMPLE_S)

    def attacked(self, node):
        """What the client says of a turn in which this node is attacked."""
        attackers = Attackers(self.attack, node, self.url_of(node))
        try:
            self.good.pipe.send(("run", TURN_S, self.attack.resumes))
            self.watch(TURN_S)
            return self.good.answer()
        finally:
            attackers.end()

    def turn(self):
        if self.other:
            self.alone.append(self.attacked(self.other))
        else:
            self.alone.append(self.good.call("run", TURN_S, self.attack.resumes))
        self.beside.append(self.attacked(self.node))
        self.await_calm()

    def await_calm(self):
        """What the attackers had must be given back soon after they are gone."""
        end = time.monotonic() + DEADLINE_S
        while True:
            missing, grown = self.start_free - self.watcher.info()[1], resident_bytes(self.pid) - self.start_bytes
            more = descriptors(self.pid) - self.start_fds
            if missing <= 0 and grown <= SLACK_BYTES and more <= 0:
                return
            if time.monotonic() > end:
                raise AssertionError(f"the attackers are gone, but the pool misses {missing >> 10} KiB, and the daemon has "
                                     f"{grown >> 10} KiB and {more} descriptors more than before")
            time.sleep(SAMPLE_S)

    def too_slow(self, kind):
        """Why the calls of a kind are too slow beside the attack; None: they are not."""
        alone = statistics.median(p99(turn[kind]) for turn in self.alone)
        beside = statistics.median(p99(turn[kind]) for turn in self.beside)
        n = sum(len(turn[kind]) for turn in self.beside)
        print(f"{kind}: p99 {alone * 1e3:.2f} ms alone, {beside * 1e3:.2f} ms beside the attack ({n} calls)", flush=True)
        if beside > max(SLOWER * alone, self.floor_s):
            return f"{kind}: more than {SLOWER} times slower beside the attack"
        return None if n else f"{kind}: never done beside the attack"

    def check_speed(self):
        """A busy machine may spoil a turn: more of them are taken before the attack is blamed."""
        kinds = [kind for kind in self.alone[0] if self.alone[0][kind]]
        while reasons := [reason for kind in kinds if (reason := self.too_slow(kind))]:
            if len(self.alone) == MAX_TURNS:
                raise AssertionError("; ".join(reasons))
            self.turn()

    def check_bounds(self):
        grown = self.peak_bytes - self.start_bytes
        print(f"memory: {grown >> 20} MiB more at most; descriptors: {self.peak_fds - self.start_fds} more at most", flush=True)
        bound = self.attack.bound_bytes + (attacks.RDMA_QUOTA_BYTES if self.other else 0)  # a device keeps leases in memory
        if grown > bound:
            raise AssertionError(f"the daemon grew by {grown >> 20} MiB: more than {bound >> 20} MiB")

    def run(self):
        for _ in range(self.turns):
            self.turn()
        self.check_speed()
        self.good.call("verify_all")
        self.check_bounds()
        self.good.end()
        self.watcher.close()
        if self.attack.verdict:
            self.attack.verdict(self.node)


def main():
    attack, transport = attacks.ATTACKS[sys.argv[1]], sys.argv[2]
    print(f"SEED={SEED}", flush=True)
    random.seed(SEED)
    reason = attack.why_not()
    if reason:
        print(f"skipped: {reason}")
        return SKIPPED
    with attack.stage():
        trial = Trial(attack, transport)
        try:
            trial.run()
        except BaseException:
            print(trial.node.log()[-1000:])
            trial.node.process.kill()
            raise
        for node in filter(None, (trial.node, trial.other)):
            node.__exit__()
    return 0


if __name__ == "__main__":
    sys.exit(main())
