"""redis-server as a program under test, and a client that keeps many requests under way. Room:
test/lib, over farapp.

Over rdma, FARPAGE_TEST_RDMA is the address of the node that is started here, in the network
namespace FARPAGE_TEST_NODE_NETNS if that is set, as the server is in FARPAGE_TEST_PROGRAM_NETNS. Or
FARPAGE_TEST_NODE is the URL of a node that runs elsewhere, with the secret FARPAGE_TEST_SECRET.
"""
import os
import socket
import subprocess
import sys
import time

import farapp

ADDRESS = os.environ.get("FARPAGE_TEST_RDMA")
NODE = os.environ.get("FARPAGE_TEST_NODE")
SECRET = os.environ.get("FARPAGE_TEST_SECRET", "open-sesame-open-sesame")
REDIS = "/usr/bin/redis-server"
UP_WITHIN_S = 60


def inside(variable, command):
    netns = os.environ.get(variable)
    return ["ip", "netns", "exec", netns, *command] if netns else command


class RdmaNode(farapp.Node):
    CONFIG = f'listen: "rdma://{ADDRESS}:7461"\npools: [ {{ name: main, size: 256M }} ]\n'

    def __init__(self):
        super().__init__(config=self.CONFIG + f"auth: {{ secret_file: {secret_file()} }}\n", prefix=inside("FARPAGE_TEST_NODE_NETNS", []))


def secret_file():
    path = os.path.join(farapp.workdir, "secret")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as out:
        out.write(SECRET + "\n")
    return path


def command(*words):
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


class Connection:
    """Speaks the protocol itself, so that the server and not the client is what takes the time."""

    def __init__(self, path, timeout=120):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        self.socket.connect(path)
        self.replies = self.socket.makefile("rb", buffering=1 << 20)

    def send(self, requests):
        self.socket.sendall(b"".join(requests))

    def reply(self):
        line = self.replies.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return self.replies.read(int(rest) + 2)[:-2] if int(rest) >= 0 else None
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        if kind == b":":
            return int(rest)
        if kind == b"+":
            return rest
        raise RuntimeError(f"redis-server says {line!r}" if line else "redis-server hung up")

    def ask(self, *words):
        self.send([command(*words)])
        return self.reply()

    def info(self, section):
        lines = self.ask("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def close(self):
        self.replies.close()
        self.socket.close()


class Server:
    """A redis-server in a folder of its own, under prefix if that is given; a context manager that
    ends it."""

    def __init__(self, name, *options, prefix=()):
        self.dir = os.path.join(farapp.workdir, name)
        os.makedirs(self.dir, exist_ok=True)
        self.path = os.path.join(self.dir, "redis.sock")
        self.log_path = os.path.join(self.dir, "redis.log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [*prefix, REDIS, "--port", "0", "--unixsocket", self.path, "--dir", self.dir, "--save", "", *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def log(self):
        return farapp.text_of(self.log_path)

    def connect(self, timeout=120):
        until = time.monotonic() + UP_WITHIN_S
        while True:
            try:
                connection = Connection(self.path, timeout)
                if connection.ask("PING") == b"PONG":
                    return connection
            except (OSError, RuntimeError):  # not listening yet, or loading
                pass
            if self.process.poll() is not None or time.monotonic() > until:
                sys.exit(f"FAILED: redis-server did not come up:\n{self.log()}")
            time.sleep(0.05)

    def shut_down(self, connection):
        connection.send([command("SHUTDOWN", "NOSAVE")])
        return self.process.wait(120)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
