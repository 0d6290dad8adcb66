"""The ways to a node by rdma, for clients that speak the wire by hand: see rdmaclient.c, which
RDMACLIENT names.

Each process loads it for itself: what libibverbs has opened does not survive a fork.
"""
import ctypes
import hashlib
import hmac
import os
import socket
import struct

MAGIC = 0x50524146
MAX_TRANSFER = 65536


def library():
    if library.loaded[0] != os.getpid():
        lib = ctypes.CDLL(os.environ["RDMACLIENT"])
        lib.rdma_dial.argtypes = [ctypes.c_char_p, ctypes.c_uint, ctypes.c_char_p, ctypes.c_size_t]
        lib.rdma_link.argtypes = [*lib.rdma_dial.argtypes, ctypes.POINTER(ctypes.c_void_p)]
        lib.rdma_link_close.argtypes = [ctypes.c_void_p]
        lib.rdma_transfer.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_char_p,
                                      ctypes.c_uint32]
        lib.rdma_flood.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint, ctypes.c_uint64, ctypes.c_uint32]
        library.loaded = os.getpid(), lib
    return library.loaded[1]


library.loaded = 0, None


def address(url):
    host, port = url.removeprefix("rdma://").rsplit(":", 1)
    return host.encode(), int(port)


def check(result):
    if result < 0:
        raise OSError(-result, os.strerror(-result))  # which picks the class, ConnectionRefusedError and the like
    return result


def request(purpose, key, session_id=0):
    """The private data of a connection request; key is the secret or, of a link, the token."""
    said = struct.pack("<IBBBBQ16s", MAGIC, 1, 1, purpose, 0, session_id, os.urandom(16))
    return said + (hmac.digest(key, b"farpage/1 cm" + said, hashlib.sha256)[:16] if key else bytes(16))


def dial(url, private):
    """A control stream, as a socket."""
    return socket.socket(fileno=check(library().rdma_dial(*address(url), private, len(private))))


class RdmaLink:
    """A queue pair of a session. keys: of each of its leases, address and key."""

    def __init__(self, url, private, keys):
        self.keys = keys
        self.handle = ctypes.c_void_p()
        check(library().rdma_link(*address(url), private, len(private), ctypes.byref(self.handle)))
        self.buffer = ctypes.create_string_buffer(MAX_TRANSFER)

    def read(self, segment):
        lease_id, size, offset = segment
        base, key = self.keys[lease_id]
        check(library().rdma_transfer(self.handle, 0, base + offset, key, self.buffer, size))
        return self.buffer[:size]

    def write(self, segments, data):
        (lease_id, size, offset), = segments
        base, key = self.keys[lease_id]
        check(library().rdma_transfer(self.handle, 1, base + offset, key, data, size))

    def close(self):
        library().rdma_link_close(self.handle)


def flood(links, lease_id):
    """READs on all of them, as many as they take, for ever."""
    handles = (ctypes.c_void_p * len(links))(*[link.handle for link in links])
    library().rdma_flood(handles, len(links), *links[0].keys[lease_id])
