"""flood.py KIND URL N SECRET: N connections, 60 a session, that ask for more than they can get, for
ever.

KIND: read (READs of 16 bytes, answers thrown away), ping (4 KiB PINGs, unread), status (STATUS,
thrown away). Writes a newline when all of them flood. The caller ends it by a signal.
"""
import selectors
import socket
import sys

from farpaged import PING, READ, STATUS, Connection, Session, frame, table

BATCH = 256
LINKS = 60  # of one session


class Node:
    """What a session wants to know of a node that is not ours."""

    secret = None

    def connect(self, url, **_):
        if url.startswith("shm:"):
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(url[4:])
            return sock
        host, port = url[6:].rsplit(":", 1)
        return socket.create_connection((host, int(port)))


def open_flood(kind, url, n, secret):
    """Returns connections, and what each sends over and over."""
    node = Node()
    if kind == "status":
        return [Session(node, url, secret=secret) for _ in range(n)], frame(STATUS) * BATCH
    session = Session(node, url, secret=secret)
    if kind == "read":
        lease_id, _, _ = session.lease(1 << 20)
        request = frame(READ, table([(lease_id, 16, 0)])) * BATCH
    else:
        request = frame(PING, bytes(4096)) * BATCH
    sessions = [session] + [Session(node, url, secret=secret) for _ in range(n // LINKS)]
    return [sessions[i // LINKS].link() for i in range(n)] + sessions, request


def main():
    kind, url, n, secret = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].encode()
    conns, request = open_flood(kind, url, n, secret)
    selector = selectors.DefaultSelector()
    sent = {}
    waste = bytearray(1 << 20)
    for conn in conns[:n]:
        conn.sock.setblocking(False)
        sent[conn.sock] = 0
        selector.register(conn.sock, selectors.EVENT_WRITE | (selectors.EVENT_READ if kind != "ping" else 0))
    print(flush=True)
    while True:
        for key, events in selector.select():
            sock = key.fileobj
            if events & selectors.EVENT_READ:
                try:
                    if not sock.recv_into(waste):
                        return
                except BlockingIOError:
                    pass
            if events & selectors.EVENT_WRITE:
                at = sent[sock] % len(request)
                try:
                    sent[sock] += sock.send(request[at:])
                except BlockingIOError:
                    pass


if __name__ == "__main__":
    main()
