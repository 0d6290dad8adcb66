#!/usr/bin/python3
"""scripts/demo_data.py load|verify SOCKET [KEYS]: fills a redis-server with values that follow from
their keys, and reads every one back, in another order, to compare it byte for byte.
`benchmark-value` prints the value that redis-benchmark is to set. KEYS, a multiple of 500, stands
for a run without redis-benchmark.

Speaks the protocol itself, many requests at once, so that the server and not this client is what
takes the time.
"""
import random
import socket
import sys

KEYS = int(sys.argv[3]) if len(sys.argv) > 3 else 210_000
VALUE_BYTES = 2048
BATCH = 500
STRIDE = 262_147  # a prime: key numbers times it, modulo KEYS, are every number once, far from each other
BENCHMARK_KEYS = 20_000
BENCHMARK_VALUE = ("far memory " * 100)[:1000].replace(" ", "-").encode()
NOISE = random.Random(20_260_801).randbytes(1 << 20)


def value_of(number):
    """Incompressible, and no two alike."""
    head = b"%024d" % number
    start = number * 7_919 % (len(NOISE) - VALUE_BYTES)
    return head + NOISE[start : start + VALUE_BYTES - len(head)]


def command(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def bulk(value):
    return b"$%d\r\n%b\r\n" % (len(value), value)


class Server:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(path)
        self.replies = self.socket.makefile("rb", buffering=1 << 20)

    def ask(self, requests):
        self.socket.sendall(b"".join(requests))

    def expect(self, reply, what):
        got = self.replies.read(len(reply))
        if got != reply:
            sys.exit(f"demo: WRONG BYTES: {what}: got {got[:64]!r}..., not {reply[:64]!r}...")

    def bulk(self):
        """One value, or None."""
        length = int(self.replies.readline()[1:])
        return self.replies.read(length + 2)[:-2] if length >= 0 else None


def batches(verb):
    for first in range(0, KEYS, BATCH):
        if first and first % (KEYS // 5) == 0:
            print(f"    {verb} {first * VALUE_BYTES >> 20} MiB", flush=True)
        yield range(first, first + BATCH)


def load(server):
    for batch in batches("loaded"):
        server.ask(command(b"SET", b"far:%012d" % number, value_of(number)) for number in batch)
        server.expect(b"+OK\r\n" * len(batch), f"SET of keys {batch}")
    print(f"  loaded {KEYS} values, {KEYS * VALUE_BYTES >> 20} MiB")


def verify(server):
    for batch in batches("compared"):
        numbers = [index * STRIDE % KEYS for index in batch]
        server.ask(command(b"GET", b"far:%012d" % number) for number in numbers)
        for number in numbers:
            server.expect(bulk(value_of(number)), f"key far:{number:012d}")
    found = verify_benchmark(server) if len(sys.argv) == 3 else 0
    print(f"  read back {KEYS} values of ours and {found} of redis-benchmark's: every byte equal")


def verify_benchmark(server):
    found = 0
    for first in range(0, BENCHMARK_KEYS, BATCH):
        server.ask(command(b"GET", b"bench:%012d" % number) for number in range(first, first + BATCH))
        for number in range(first, first + BATCH):
            value = server.bulk()
            if value not in (None, BENCHMARK_VALUE):
                sys.exit(f"demo: WRONG BYTES: key bench:{number:012d}: got {value[:64]!r}...")
            found += value is not None
    if found == 0:
        sys.exit("demo: redis-benchmark's keys are gone")
    return found


def main():
    assert KEYS % BATCH == 0, "KEYS: a multiple of 500"
    if sys.argv[1:] == ["benchmark-value"]:
        print(BENCHMARK_VALUE.decode())
    else:
        {"load": load, "verify": verify}[sys.argv[1]](Server(sys.argv[2]))


main()
