#!/usr/bin/python3
"""memcached_load.py FOLDER MIB: starts memcached with four threads, fills it with MIB of values
from eight clients at once, changes some of them in several ways while others are read back, and
verifies every answer. Prints what is in it at the end.
"""
import hashlib
import os
import pwd
import socket
import subprocess
import sys
import threading
import time

FOLDER, MIB = sys.argv[1], int(sys.argv[2])
SOCKET = os.path.join(FOLDER, f"memcached.{os.getpid()}")
CLIENTS, VALUE_BYTES = 8, 8000
KEYS = MIB * (1 << 20) // VALUE_BYTES // CLIENTS
failures = []


class Client:
    def __init__(self, number):
        self.number = number
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(SOCKET)
        self.file = self.socket.makefile("rb")

    def key(self, i):
        return f"c{self.number}-{i}"

    def value(self, i, version):
        seed = f"{self.number} {i} {version} ".encode()
        return (seed * (VALUE_BYTES // len(seed) + 1))[: VALUE_BYTES - i % 97]

    def ask(self, request, answer):
        self.socket.sendall(request)
        line = self.file.readline()
        if line != answer:
            raise AssertionError(f"{request[:60]!r}: {line!r}, not {answer!r}")

    def store(self, verb, i, value, answer=b"STORED\r\n"):
        self.ask(f"{verb} {self.key(i)} 0 0 {len(value)}\r\n".encode() + value + b"\r\n", answer)

    def fetch(self, i):
        self.socket.sendall(f"get {self.key(i)}\r\n".encode())
        head = self.file.readline().split()
        if head == [b"END"]:
            return None
        value = self.file.read(int(head[3]) + 2)[:-2]
        if self.file.readline() != b"END\r\n":
            raise AssertionError("no END")
        return value

    def expected(self, i):
        if i % 5 == 0:
            return None
        return self.value(i, 2) if i % 3 == 0 else self.value(i, 1) + b"+tail" if i % 7 == 0 else self.value(i, 1)

    def work(self):
        for i in range(KEYS):
            self.store("set", i, self.value(i, 1))
            back = i * 31 % (i + 1)
            if i % 4 == 0 and self.fetch(back) != self.value(back, 1):
                raise AssertionError(f"{self.key(back)} is not what was stored")
        for i in range(KEYS):
            if i % 5 == 0:
                self.ask(f"delete {self.key(i)}\r\n".encode(), b"DELETED\r\n")
            elif i % 3 == 0:
                self.store("replace", i, self.value(i, 2))
            elif i % 7 == 0:
                self.store("append", i, b"+tail")
        self.store("add", 1, b"late", b"NOT_STORED\r\n")

    def verify(self, seen):
        for i in range(KEYS):
            value = self.fetch(i)
            if value != self.expected(i):
                raise AssertionError(f"{self.key(i)} is {(value or b'')[:40]!r}")
            seen.update(value or b"-")


def guarded(work):
    try:
        work()
    except (AssertionError, OSError, ValueError, IndexError) as error:
        failures.append(str(error))


def drive():
    clients = [Client(number) for number in range(CLIENTS)]
    threads = [threading.Thread(target=guarded, args=(client.work,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = hashlib.blake2b()
    for client in clients:
        guarded(lambda: client.verify(seen))
    print(f"{KEYS * CLIENTS} keys, {seen.hexdigest()}")


def main():
    user = pwd.getpwuid(os.getuid()).pw_name
    server = subprocess.Popen(["/usr/bin/memcached", "-u", user, "-s", SOCKET, "-t", "4", "-m", str(4 * MIB), "-I", "1m"])
    try:
        until = time.monotonic() + 60
        while not os.path.exists(SOCKET) and server.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        drive()
    finally:
        server.terminate()
        print("memcached ended with", server.wait(60))
    sys.exit("\n".join(failures[:5]))


main()
