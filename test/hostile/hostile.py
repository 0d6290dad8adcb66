"""hostile.py ATTACK TRANSPORT: one attack on a farpaged beside a client that behaves well.

Turns of the client alone and turns beside the attack alternate. The client may lose no byte and no
session. The median p99 of its turns beside the attack is at most SLOWER times that of its turns
alone. The daemon's memory and descriptors stay within bounds, and are back to the start when the
attackers are gone.

Over rdma, in a guest, the processors are the device: whoever keeps it busy slows everybody,
whatever a node does. There the client is alone at its node, while the same attackers are busy with
another node.
"""
import contextlib
import ctypes
import mmap
import multiprocessing
import os
import random
import resource
import select
import signal
import statistics
import sys
import time
import traceback

import attacks
import memcgroup
from farpaged import DEADLINE_S, OPERATOR, Farpaged, Refused
from wellbehaved import WellBehavedProcess

TURNS = 2
MAX_TURNS = 7
TURN_S = 1.0
LONG_ALONE_S, LIFE_S, TELL_S = 30, 8, 10  # of a long turn: the turn alone; an attacker's life; between two lines
SLOWER = 5
# A p99 below it says more about the machine than about the node: the kernel handles packets that
# arrived for up to 2 ms in one piece, and twice that if a second CPU's turn comes first.
FLOOR_S = 0.004
SHARED_FLOOR_S = 0.02  # the same where the attackers, who would have machines of their own, take the node's processors
# Where it takes longer to clear FLOOR_BYTES than SLOW_S, each change of a page table costs 5 to 10
# µs. There, beside new sessions, a lease takes 5 ms in one run and 50 to 90 ms in the next. We do
# not know why: the node's threads wait less than 2 ms for a CPU, but its loop runs for up to 0.9 s
# in one piece.
FLOOR_BYTES, SLOW_S, SLOW_FLOOR_S = 4 << 20, 0.005, 0.1
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


class Ready:
    """An attack has begun. It has no lock: who is killed with one in hand keeps it for ever."""

    def __init__(self):
        self.read_end, self.write_end = os.pipe()
        self.said, self.times = False, multiprocessing.RawValue("Q", 0)

    def set(self):
        if not self.said:
            os.write(self.write_end, b"r")
            self.said = True
            self.times.value += 1

    def await_set(self):
        if not select.select([self.read_end], [], [], DEADLINE_S)[0]:
            raise AssertionError("an attacker could not begin")

    def close(self):
        os.close(self.read_end)
        os.close(self.write_end)


class Attackers:
    """The processes of one turn of an attack. They run until they are killed, as crashing clients
    do. With life_s, each dies about so often, and another one begins."""

    def __init__(self, attack, node, url, life_s=None):
        jobs = attack.jobs(node, url)
        self.life_s = life_s
        self.ready = [Ready() for _ in jobs]
        self.processes = [multiprocessing.Process(target=self.serve, args=(i, node, *job), daemon=True) for i, job in enumerate(jobs)]
        for process in self.processes:
            process.start()
        for ready in self.ready:
            ready.await_set()

    def serve(self, i, node, attack, url):
        os.setpgrp()
        node.secret, ready = attack.secrets(url)[1], self.ready[i]
        if url.startswith("rdma:"):
            os.nice(19)  # elsewhere they have machines of their own
        if url.startswith("shm:") and os.geteuid() == 0:
            os.setgid(ATTACKER_UID)
            os.setuid(ATTACKER_UID)
        die_with_parent()  # after setuid, which forgets it
        if self.life_s:
            self.live(node, attack, url, ready, random.Random(f"{SEED} {i}"))
        try:
            attack.run(node, url, ready)
        except Exception:  # pylint: disable=broad-except
            traceback.print_exc()
        ready.set()
        signal.pause()  # what it has, it keeps until the turn is over

    def live(self, node, attack, url, ready, dice):
        """Life after life. One that the node refuses ends at once: others have the quota."""
        while True:
            pid = os.fork()
            if pid == 0:
                self.live_once(node, attack, url, ready)
            end = time.monotonic() + self.life_s * dice.uniform(0.5, 1.5)
            while not (over := os.waitpid(pid, os.WNOHANG)[0]) and time.monotonic() < end:
                time.sleep(SAMPLE_S)
            if not over:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            if not ready.times.value:
                os.write(ready.write_end, b"r")  # nobody waits for one that can't begin yet
            time.sleep(self.life_s * dice.uniform(0, 0.2))

    @staticmethod
    def live_once(node, attack, url, ready):
        die_with_parent()
        try:
            attack.run(node, url, ready)
            signal.pause()
        except (Refused, OSError, EOFError):
            pass
        except BaseException:  # pylint: disable=broad-except
            traceback.print_exc()
        os._exit(0)

    def end(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with the life that it may just have begun
            process.kill()
        for process in self.processes:
            process.join()
        for ready in self.ready:
            ready.close()


class Trial:
    """One attack over one transport. With long_s there is one turn of that length."""

    def __init__(self, attack, transport, long_s=None):
        self.attack, self.long_s, self.lives = attack, long_s, []
        self.cgroup = memcgroup.MemoryCgroup(attack.cgroup_bytes) if attack.cgroup_bytes and memcgroup.find_parent() else None
        self.node = Farpaged(attack.config(transport), preexec=self.prepare)
        self.other = Farpaged(attack.config(transport), preexec=self.prepare) if transport == "rdma" else None
        self.pid = self.node.process.pid
        self.transport, self.turns, self.max_turns = transport, TURNS, MAX_TURNS
        self.alone_s = self.turn_s = TURN_S
        if long_s:
            self.turns = self.max_turns = 1
            self.alone_s, self.turn_s = min(LONG_ALONE_S, long_s), long_s
        self.url = self.url_of(self.node)
        self.secret = attack.secrets(self.url)[0]
        self.good = WellBehavedProcess(self.node, self.url, self.secret, SEED)
        attacks.Attack.overheard = self.good.call("tell_token")
        # soft rdma is the kernel's threads: they must not come after the node's
        self.floor_s = FLOOR_S if not self.other and prefer(self.pid, self.good.process.pid) else SHARED_FLOOR_S
        if clearing_s() > SLOW_S:
            self.floor_s = SLOW_FLOOR_S
        self.watcher = self.node.session(self.node.urls[0] if transport == "rdma" else self.url, secret=self.secret)
        self.alone, self.beside, self.peak_bytes, self.peak_fds, self.operator_s = [], [], 0, 0, []
        warm = self.good.call("run", TURN_S, attack.resumes)
        if self.other:
            print("nobody attacked: p99", ", ".join(f"{kind} {p99(took) * 1e3:.2f} ms" for kind, took in warm.items() if took))
        self.start_free = self.watcher.info()[1]
        self.start_bytes, self.start_fds = resident_bytes(self.pid), descriptors(self.pid)

    def prepare(self):
        die_with_parent()
        if self.cgroup:
            self.cgroup.enter()
        if self.attack.descriptors:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.attack.descriptors,) * 2)

    def url_of(self, node):
        return next(url for url in node.urls if url.startswith(self.transport + ":"))

    def watch(self, seconds):
        begin = told = time.monotonic()
        while (now := time.monotonic()) < begin + seconds and self.node.process.poll() is None:
            self.peak_bytes = max(self.peak_bytes, resident_bytes(self.pid))
            self.peak_fds = max(self.peak_fds, descriptors(self.pid))
            time.sleep(SAMPLE_S)
            if self.long_s and now > told + TELL_S:
                told = now
                self.tell(now - begin)

    def tell(self, seconds):
        """A line of progress, and an operator's question, which the node must answer."""
        self.watcher.info()  # it must not seem idle
        begin, operator = time.monotonic(), None
        while not operator:
            with contextlib.suppress(ConnectionError, EOFError):
                operator = self.node.session(self.node.urls[0], secret=self.secret, features=OPERATOR)
                state = operator.status()
            if time.monotonic() > begin + DEADLINE_S:
                raise AssertionError("the node has no place for an operator")
        operator.close()
        self.operator_s.append(time.monotonic() - begin)
        print(f"  {seconds / 60:.1f} of {self.long_s / 60:.1f} min: {resident_bytes(self.pid) - self.start_bytes >> 20} MiB and "
              f"{descriptors(self.pid) - self.start_fds} descriptors more, {len(state['sessions'])} sessions", flush=True)

    def attacked(self, node):
        """What the client says of a turn in which this node is attacked."""
        attackers = Attackers(self.attack, node, self.url_of(node), LIFE_S if self.long_s else None)
        try:
            self.good.pipe.send(("run", self.turn_s, self.attack.resumes))
            self.watch(self.turn_s)
            return self.good.answer()
        finally:
            self.lives = [ready.times.value for ready in attackers.ready]
            attackers.end()

    def turn(self):
        if self.other:
            self.alone.append(self.attacked(self.other))
        else:
            self.alone.append(self.good.call("run", self.alone_s, self.attack.resumes))
        self.beside.append(self.attacked(self.node))
        if not self.long_s:
            self.await_calm()

    def await_calm(self):
        """What the attackers had must be given back soon after they are gone."""
        end = time.monotonic() + DEADLINE_S
        while True:
            missing, grown = self.start_free - self.watcher.info()[1], resident_bytes(self.pid) - self.start_bytes
            more = descriptors(self.pid) - self.start_fds
            # in a cgroup, the node says what is left there: less, if it has grown itself
            if missing <= (2 * self.attack.slack_bytes if self.cgroup else 0) and grown <= self.attack.slack_bytes and more <= 0:
                return
            if time.monotonic() > end:
                raise AssertionError(f"the attackers are gone, but the pool misses {missing >> 10} KiB, and the daemon has "
                                     f"{grown >> 10} KiB and {more} descriptors more than before")
            time.sleep(SAMPLE_S)

    def too_slow(self, kind):
        """Why the calls of a kind are too slow beside the attack; None: they are not."""
        alone = statistics.median(p99(turn[kind]) for turn in self.alone)
        beside = statistics.median(p99(turn[kind]) for turn in self.beside)
        n, bound = sum(len(turn[kind]) for turn in self.beside), max(SLOWER * alone, self.floor_s)
        middle = statistics.median(sample for turn in self.beside for sample in turn[kind] or [0])
        print(f"{kind}: p99 {alone * 1e3:.2f} ms alone, {beside * 1e3:.2f} ms beside the attack, bound {bound * 1e3:.2f} ms; "
              f"p50 beside it {middle * 1e3:.2f} ms ({n} calls)", flush=True)
        if beside > bound:
            return f"{kind}: more than {SLOWER} times slower beside the attack"
        return None if n else f"{kind}: never done beside the attack"

    def check_speed(self):
        """A busy machine may spoil a turn: more of them are taken before the attack is blamed."""
        kinds = [kind for kind in self.alone[0] if self.alone[0][kind]]
        while reasons := [reason for kind in kinds if (reason := self.too_slow(kind))]:
            if len(self.alone) == self.max_turns:
                raise AssertionError("; ".join(reasons))
            self.turn()

    def check_bounds(self):
        grown, fds = self.peak_bytes - self.start_bytes, self.peak_fds - self.start_fds
        bound = self.attack.bound_bytes + (attacks.RDMA_QUOTA_BYTES if self.other else 0)  # a device keeps leases in memory
        print(f"memory: {grown >> 20} MiB more at most, bound {bound >> 20} MiB")
        if self.cgroup:
            print(f"the daemon's cgroup: {self.cgroup.peak_bytes() >> 20} MiB at most of {self.attack.cgroup_bytes >> 20} MiB")
        print(f"descriptors: {fds} more at most" + (f", bound {self.attack.bound_fds}" if self.attack.bound_fds else ""), flush=True)
        if grown > bound:
            raise AssertionError(f"the daemon grew by {grown >> 20} MiB: more than {bound >> 20} MiB")
        if self.attack.bound_fds and fds > self.attack.bound_fds:
            raise AssertionError(f"the daemon opened {fds} descriptors more: more than {self.attack.bound_fds}")

    def run(self):
        for _ in range(self.turns):
            self.turn()
        wrong = []
        for check in (self.check_speed, lambda: self.good.call("verify_all"), self.check_bounds, self.await_calm):
            try:
                check()
            except AssertionError as error:
                wrong.append(str(error))
        if wrong:
            raise AssertionError("; ".join(wrong))
        self.good.end()
        self.watcher.close()
        if self.attack.verdict:
            self.attack.verdict(self.node)
        if self.operator_s:
            print(f"operators: {len(self.operator_s)} asked, the slowest was answered after {max(self.operator_s) * 1e3:.0f} ms")

    def done(self):
        """Ends the nodes, which must end well."""
        for node in filter(None, (self.node, self.other)):
            node.__exit__()


def try_attack(attack, transport, long_s=None):
    """Raises what went wrong."""
    with attack.stage():
        trial = Trial(attack, transport, long_s)
        try:
            trial.run()
            trial.done()
        except BaseException:
            print(trial.node.log()[-1000:], flush=True)
            trial.node.process.kill()
            raise
        finally:
            trial.good.process.kill()  # it holds what the cgroup's remover waits for
            if trial.cgroup:
                trial.cgroup.remove()
    return trial


def main():
    attack, transport = attacks.ATTACKS[sys.argv[1]], sys.argv[2]
    print(f"SEED={SEED}", flush=True)
    random.seed(SEED)
    reason = attack.why_not()
    if reason:
        print(f"skipped: {reason}")
        return SKIPPED
    try_attack(attack, transport)
    return 0


if __name__ == "__main__":
    sys.exit(main())
