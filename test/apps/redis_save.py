#!/usr/bin/python3
"""BGSAVE and BGREWRITEAOF of a redis-server with a quarter of its data local, while clients write.
What is saved, loaded by a plain redis-server, must be what the keys were at the fork, exactly.
argv: shm, tcp or rdma, and how many rounds.

Every write is a transaction that also counts a clock up, so that the replies tell in which order
the server did them all: the clock in a dump says which writes belong in it, and the log of the
clients says what they wrote.
"""
import collections
import os
import random
import shutil
import sys
import threading
import time

import farapp
import redisapp
from redisapp import command

TRANSPORT, ROUNDS = sys.argv[1], int(sys.argv[2])
SMALL = TRANSPORT == "rdma"  # an emulated guest
WRITERS = 2 if SMALL else 3
KEYS = 900 if SMALL else 5000  # of a writer
VALUE_BYTES = (64, 6000)
LOCAL_BYTES = (5 if SMALL else 36) * farapp.MIB // 4
BATCH = 20
FETCHES_AT_LEAST = 1000
SAVED_WITHIN_S = 300
NOISE = random.Random(20_261_121).randbytes(1 << 20)

Write = collections.namedtuple("Write", "verb key arguments")


def value_of(number, size):
    start = number * 7_919 % (len(NOISE) - VALUE_BYTES[1])
    return b"%016d" % number + NOISE[start:start + size]


class Writer(threading.Thread):
    """Writes to keys of its own until it is stopped; log is what it did, by the server's clock."""

    def __init__(self, server, index, seed):
        super().__init__(daemon=True)
        self.connection = server.connect(SAVED_WITHIN_S)
        self.index, self.random, self.log, self.number = index, random.Random(seed * 100 + index), [], 0
        self.stopping, self.filled, self.error = threading.Event(), threading.Event(), None

    def value(self):
        self.number += 1
        number = self.number * WRITERS + self.index
        return number, self.random.randint(*VALUE_BYTES)

    def choose(self):
        """A write, as verb, key and what makes the value."""
        key, dice = self.random.randrange(KEYS), self.random.random()
        if dice < 0.75:
            return Write("SET", b"s:%d:%d" % (self.index, key), self.value())
        if dice < 0.80:
            return Write("DEL", b"s:%d:%d" % (self.index, key), None)
        if dice < 0.85:
            return Write("APPEND", b"s:%d:%d" % (self.index, key), (self.value()[0], 32))
        if dice < 0.90:
            return Write("RPUSH", b"l:%d:%d" % (self.index, key % 50), (self.value()[0], 200))
        if dice < 0.95:
            return Write("LPOP", b"l:%d:%d" % (self.index, key % 50), None)
        return Write("HSET", b"h:%d:%d" % (self.index, key % 50), (self.value()[0], 200))

    def send(self, writes):
        requests = []
        for write in writes:
            words = [write.verb, write.key]
            if write.verb == "HSET":
                words.append(b"%d" % (write.arguments[0] % 100))
            if write.arguments:
                words.append(value_of(*write.arguments))
            requests += [command("MULTI"), command("INCR", "clock"), command(*words), command("EXEC")]
        self.connection.send(requests)
        for write in writes:
            for _ in range(3):
                self.connection.reply()
            self.log.append((self.connection.reply()[0], write))

    def run(self):
        try:
            for first in range(0, KEYS, BATCH):
                self.send([Write("SET", b"s:%d:%d" % (self.index, key), self.value())
                           for key in range(first, min(first + BATCH, KEYS))])
            self.filled.set()
            while not self.stopping.is_set():
                self.send([self.choose() for _ in range(BATCH)])
        except (OSError, RuntimeError, ValueError, TypeError) as error:
            self.error = error
            self.filled.set()


def state_at(clock, writers):
    """What all keys hold after the first so many writes."""
    state = {}
    for _, write in sorted(entry for writer in writers for entry in writer.log[:] if entry[0] <= clock):
        value = value_of(*write.arguments) if write.arguments else None
        if write.verb == "SET":
            state[write.key] = value
        elif write.verb == "DEL":
            state.pop(write.key, None)
        elif write.verb == "APPEND":
            state[write.key] = state.get(write.key, b"") + value
        elif write.verb == "RPUSH":
            state.setdefault(write.key, []).append(value)
        elif write.verb == "LPOP" and write.key in state:
            state[write.key].pop(0)
            if not state[write.key]:
                del state[write.key]
        elif write.verb == "HSET":
            state.setdefault(write.key, {})[b"%d" % (write.arguments[0] % 100)] = value
    return state


def read_all(connection, keys):
    """The values of all keys, each as what it is in state_at."""
    question = {b"s": lambda key: ("GET", key), b"l": lambda key: ("LRANGE", key, 0, -1), b"h": lambda key: ("HGETALL", key)}
    for first in range(0, len(keys), 200):
        batch = keys[first:first + 200]
        connection.send([command(*question[key[:1]](key)) for key in batch])
        for key in batch:
            value = connection.reply()
            yield key, dict(zip(value[::2], value[1::2])) if key[:1] == b"h" else value


def await_true(condition, what, seconds=SAVED_WITHIN_S):
    until = time.monotonic() + seconds
    while not condition():
        farapp.check(time.monotonic() < until, what)
        time.sleep(0.02)


def compare(name, writers, copy, bounds=None):
    """Loads what copy puts into a plain server's folder. Returns its clock."""
    folder = os.path.join(farapp.workdir, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    options = copy(folder)
    with redisapp.Server(name, *options) as plain:
        connection = plain.connect()
        clock = int(connection.ask("GET", "clock"))
        farapp.check(not bounds or bounds[0] <= clock <= bounds[1], f"{name}: clock {clock}, the fork was within {bounds}")
        # what the server has answered last may be on its way to the log
        await_true(lambda: sum(len(writer.log) for writer in writers) >= clock + WRITERS * BATCH
                   or not any(writer.is_alive() for writer in writers), f"{name}: the writers have stopped")
        state = state_at(clock, writers)
        farapp.check(connection.ask("DBSIZE") == len(state) + 1, f"{name}: not the keys there were")
        for key, value in read_all(connection, sorted(state)):
            farapp.check(value == state[key], f"{name}: {key.decode()} is not what it was at clock {clock}")
        connection.close()
    return clock, len(state)


class Saves:
    """The two ways to save, on a server under load."""

    def __init__(self, server, writers):
        self.server, self.writers, self.control = server, writers, server.connect(SAVED_WITHIN_S)

    def save(self, round_no, verb, running, status, copy):
        begin = time.monotonic()
        before = int(self.control.ask("GET", "clock"))
        self.control.ask(verb)
        after = int(self.control.ask("GET", "clock"))
        await_true(lambda: self.control.info("persistence")[running] == "0", f"{verb} does not end:\n{self.server.log()}")
        seconds, end = time.monotonic() - begin, int(self.control.ask("GET", "clock"))
        farapp.check(self.control.info("persistence")[status] == "ok", f"{verb} failed:\n{self.server.log()}")
        clock, keys = compare("plain", self.writers, copy, (before, after))
        print(f"round {round_no}: {verb}: {keys} keys as they were at write {clock}; {end - clock} writes during its "
              f"{seconds:.1f} s", flush=True)
        return end - clock

    def copy_dump(self, folder):
        shutil.copy(os.path.join(self.server.dir, "dump.rdb"), folder)
        return ()

    def copy_base(self, folder):
        of = os.path.join(self.server.dir, "appendonlydir")
        base = [name for name in os.listdir(of) if name.endswith(".base.rdb")]
        farapp.check(len(base) == 1, f"the files are {base}")
        shutil.copy(os.path.join(of, base[0]), os.path.join(folder, "dump.rdb"))
        return ()

    def copy_log(self, folder):
        shutil.copytree(os.path.join(self.server.dir, "appendonlydir"), os.path.join(folder, "appendonlydir"))
        return "--appendonly", "yes"

    def rounds(self):
        meanwhile = 0
        for round_no in range(1, ROUNDS + 1):
            meanwhile += self.save(round_no, "BGSAVE", "rdb_bgsave_in_progress", "rdb_last_bgsave_status", self.copy_dump)
            meanwhile += self.save(round_no, "BGREWRITEAOF", "aof_rewrite_in_progress", "aof_last_bgrewrite_status",
                                   self.copy_base)
        farapp.check(meanwhile > 20 * ROUNDS, "hardly anything was written meanwhile")


def drive(node_options):
    stats = os.path.join(farapp.workdir, "redis.stats")
    seed = int(os.environ.get("FP_TEST_SEED", time.time_ns() % 1_000_000))
    print(f"FP_TEST_SEED={seed}", flush=True)
    prefix = [farapp.farpage, "run", *node_options, "--local-memory", str(LOCAL_BYTES), "--deadline", "20s",
              "--stats-file", stats, "--"]
    prefix = redisapp.inside("FARPAGE_TEST_PROGRAM_NETNS", prefix)
    options = ("--appendonly", "yes", "--appendfsync", "no", "--rdbcompression", "no", "--auto-aof-rewrite-percentage", "0",
               "--stop-writes-on-bgsave-error", "no")
    with redisapp.Server("far", *options, prefix=prefix) as server:
        saves = Saves(server, writers := [])
        writers += [Writer(server, index, seed) for index in range(WRITERS)]
        for writer in writers:
            writer.start()
        for writer in writers:
            farapp.check(writer.filled.wait(SAVED_WITHIN_S), f"filling takes too long:\n{server.log()}")
        used = int(saves.control.info("memory")["used_memory_dataset"])
        print(f"{used / farapp.MIB:.1f} MiB of data, {LOCAL_BYTES / farapp.MIB:.1f} MiB local", flush=True)
        farapp.check(used >= 4 * LOCAL_BYTES, "there is too little data")
        saves.rounds()
        for writer in writers:
            writer.stopping.set()
            writer.join(60)
            farapp.check(not writer.is_alive() and not writer.error, f"a client: {writer.error}:\n{server.log()}")
        status = server.shut_down(saves.control)
        farapp.check(status == 0, f"redis-server ended with {status}:\n{server.log()}")
        clock, keys = compare("plain", writers, saves.copy_log)
        print(f"at the end: {keys} keys as they were at write {clock}, the last")
        farapp.check(clock == sum(len(writer.log) for writer in writers), "the last writes are missing")
    fetched = farapp.fetches(stats)
    farapp.check(fetched >= FETCHES_AT_LEAST, f"only {fetched} fetches: was it far memory?")


def with_node(node):
    try:
        options = ["--node", node.url]
        drive(options + ["--secret-file", redisapp.secret_file()] if TRANSPORT == "rdma" else options)
        farapp.check(node.process.poll() is None, f"the memory node ended:\n{node.text()}")
    finally:
        node.stop()


def test():
    farapp.need_program(redisapp.REDIS)
    if TRANSPORT == "shm":
        drive([])  # a private node
    elif TRANSPORT == "tcp":
        with_node(farapp.Node("1G"))
    elif redisapp.NODE:
        drive(["--node", redisapp.NODE, "--secret-file", redisapp.secret_file()])
    elif redisapp.ADDRESS:
        with_node(redisapp.RdmaNode())
    else:
        farapp.skip("no RDMA device: FARPAGE_TEST_RDMA is not set")


farapp.main(test)
