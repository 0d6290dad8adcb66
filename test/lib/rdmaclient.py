"""Links to a node by rdma, for clients that speak the wire by hand: see rdmaclient.c, which
RDMACLIENT names.

Each process loads it for itself: what libibverbs has opened does not survive a fork.
"""
import ctypes
import hashlib
import hmac
import os
import struct

MAGIC = 0x50524146
LINK = 2
MAX_TRANSFER = 65536


def library():
    if library.loaded[0] != os.getpid():
        lib = ctypes.CDLL(os.environ["RDMACLIENT"])
        lib.rdma_link.argtypes = [ctypes.c_char_p, ctypes.c_uint, ctypes.c_char_p, ctypes.c_size_t,
                                  ctypes.POINTER(ctypes.c_void_p)]
        lib.rdma_link_close.argtypes = [ctypes.c_void_p]
        lib.rdma_transfer.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_char_p,
                                      ctypes.c_uint32]
        lib.rdma_flood.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint, ctypes.c_uint64, ctypes.c_uint32]
        library.loaded = os.getpid(), lib
    return library.loaded[1]


library.loaded = 0, None


def check(result):
    if result < 0:
        raise OSError(-result, os.strerror(-result))  # which picks the class, ConnectionRefusedError and the like
    return result


def request(session_id, token):
    """The private data of a connection request."""
    said = struct.pack("<IBBBBQ16s", MAGIC, 2, 2, LINK, 0, session_id, os.urandom(16))
    return said + hmac.digest(token, b"farpage/1 cm" + said, hashlib.sha256)[:16]


class RdmaLink:
    """A queue pair of a session. keys: of each of its leases, address and key."""

    def __init__(self, host, port, private, keys):
        self.keys = keys
        self.handle = ctypes.c_void_p()
        check(library().rdma_link(host.encode(), port, private, len(private), ctypes.byref(self.handle)))
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
