#!/usr/bin/env python3
"""Writes the corpora of the fuzz targets that speak the protocol, with the codec of test/lib. Run it when the protocol grows."""
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))

from farpaged import (ADOPT, ADOPTED, ATTACH, ATTACHED, AUTH, BYE, CHALLENGE, CONTROL, DATA, DRAIN, DRAINED, ERROR, FAREWELL, FULL, HELLO,
                      INFO, INFO_REPLY, LEASE, LEASED, LINK, MAGIC, PING, PONG, QP, QP_REPLY, READ, RELEASE, RELEASED, RESUME, STATUS,
                      STATUS_REPLY, WELCOME, WRITE, WRITTEN, frame, table)

PAGE = 4096
OTHER = b"\xee" * 24  # fuzz_node.c puts id and token of its session here
NONE = bytes(24)
SECRET, RESUMED, KEYS = 1, 2, 4  # how fuzz_client.c opens its session


def hello(purpose=CONTROL, session=NONE, features=0):
    return frame(HELLO, struct.pack("<BBBBI", 1, 1, purpose, 0, features) + session + b"n" * 32 + b"fuzz".ljust(64, b"\0"))


def welcome(features=0, session_id=1, token=b"t" * 16):
    return frame(WELCOME, struct.pack("<B3xIQ16sIIII32x", 1, features, session_id, token, 4195336, 256, 30000, 0))


def leased(kind=LEASED, lease_id=1, flags=0, address=0, key=0, tag=1):
    return frame(kind, struct.pack("<QIIQII", PAGE, lease_id, flags, address, key, 0), tag)


def qp(kind):
    return frame(kind, struct.pack("<IIHBBI16s", 17, 5, 1, 3, 4, 0, b"g" * 16))


def lease(size=PAGE):
    return frame(LEASE, struct.pack("<QII", size, 0, 0), 2)


def of_id(kind, lease_id=1):
    return frame(kind, struct.pack("<II", lease_id, 0), 3)


def cm(kind):
    if kind == "cm":
        return struct.pack("<IBBBBQ16s16s", MAGIC, 1, 1, LINK, 0, 7, b"n" * 16, b"p" * 16)
    return struct.pack("<IB3xiI", MAGIC, 1, 0, 0)


AUTH_FRAME = frame(AUTH, b"p" * 32)
ADOPT_FRAME = frame(ADOPT, OTHER, 4)
CHALLENGE_FRAME = frame(CHALLENGE, b"N" * 32 + struct.pack("<B3xI", 1, 0))
READ_FRAME = frame(READ, table([(1, 16, 0), (1, 8, PAGE - 8)]), 5)
WRITE_FRAME = frame(WRITE, table([(1, 16, 0), (1, 8, 64)]) + b"w" * 24, 6)
INFO_PAYLOAD = struct.pack("<QQQQ", 1 << 30, 1 << 29, PAGE, 0)

REQUESTS = {
    "hello": hello(), "hello-link": hello(LINK, OTHER), "auth": AUTH_FRAME, "ping": frame(PING, b"ping"), "bye": frame(BYE),
    "lease": lease(), "release": of_id(RELEASE), "info": frame(INFO), "status": frame(STATUS), "drain": frame(DRAIN),
    "attach": of_id(ATTACH), "adopt": ADOPT_FRAME, "read": READ_FRAME, "write": WRITE_FRAME, "qp": qp(QP),
}
ANSWERS = {
    "error": frame(ERROR, status=FULL), "challenge": CHALLENGE_FRAME, "welcome": welcome(), "pong": frame(PONG, b"ping"),
    "farewell": frame(FAREWELL), "leased": leased(), "leased-key": leased(flags=2, address=PAGE, key=9),
    "released": frame(RELEASED), "info_reply": frame(INFO_REPLY, INFO_PAYLOAD), "status_reply": frame(STATUS_REPLY, b"{}"),
    "drained": frame(DRAINED, struct.pack("<QII", PAGE, 1, 0)), "attached": leased(ATTACHED, flags=6, address=PAGE, key=9),
    "adopted": frame(ADOPTED, struct.pack("<II", 3, 0)), "data": frame(DATA, b"d" * 24), "written": frame(WRITTEN),
    "qp_reply": qp(QP_REPLY), "cm": cm("cm"), "cm_reply": cm("cm_reply"),
}
SHAKEN = hello() + AUTH_FRAME
LINKED = hello(LINK, OTHER) + AUTH_FRAME


def answered(kind, payload=b"", status=0):
    """The handshake of a node, then its answer to the first call."""
    return CHALLENGE_FRAME + welcome() + frame(kind, payload, 1, status=status) + frame(FAREWELL, tag=2)


def client(calls, stream, opening=0):
    """The eighth call's number is 8, since 0 ends the calls."""
    return bytes([opening]) + bytes(call or 8 for call in calls) + b"\0" + stream


CORPORA = {
    "wire": {**REQUESTS, **ANSWERS},
    "inbox": {
        "control": b"\x07" + SHAKEN + lease() + of_id(RELEASE) + frame(BYE),
        "link": b"\x13" + LINKED + READ_FRAME + WRITE_FRAME + READ_FRAME + frame(PING, b"p" * 40),
        "calls": b"\x01" + of_id(ATTACH) + ADOPT_FRAME + frame(INFO) + frame(STATUS) + frame(DRAIN) + qp(QP),
    },
    "node": {
        "control": SHAKEN + frame(INFO) + frame(STATUS) + frame(PING, b"ping") + frame(BYE),
        "lease": SHAKEN + lease() + of_id(RELEASE) + lease(65536),
        "memfd": hello(features=1) + AUTH_FRAME + lease() + of_id(ATTACH),
        "link": LINKED + READ_FRAME + WRITE_FRAME + READ_FRAME,
        "link-qp": LINKED + qp(QP) + frame(PING),
        "resume": hello(RESUME, OTHER) + AUTH_FRAME + of_id(ATTACH) + of_id(RELEASE),
        "adopt": SHAKEN + ADOPT_FRAME + of_id(ATTACH) + of_id(RELEASE),
    },
    "client": {
        "lease": client([0, 2], CHALLENGE_FRAME + welcome() + leased() + frame(RELEASED, tag=2) + frame(FAREWELL, tag=3)),
        "lease-key": client([0], CHALLENGE_FRAME + welcome(2) + leased(flags=2, address=PAGE, key=9) + frame(FAREWELL, tag=2), KEYS),
        "lease-full": client([0], answered(ERROR, status=FULL)),
        "attach": client([1], CHALLENGE_FRAME + welcome() + leased(ATTACHED, flags=4) + frame(FAREWELL, tag=2), RESUMED),
        "info": client([3], answered(INFO_REPLY, INFO_PAYLOAD)),
        "status": client([4], answered(STATUS_REPLY, b'{"state":"serving"}')),
        "drain": client([5], answered(DRAINED, struct.pack("<QII", PAGE, 1, 0))),
        "ping": client([6], answered(PONG, bytes(range(1, 17)))),
        "adopt": client([7], answered(ADOPTED, struct.pack("<II", 3, 0))),
        "secret": client([3], answered(INFO_REPLY, INFO_PAYLOAD), SECRET),
        "late": client([3], CHALLENGE_FRAME + welcome() + leased(tag=1) + frame(INFO_REPLY, INFO_PAYLOAD, 1)),
    },
    "url": {
        "shm": b"shm:/run/farpaged/socket", "abstract": b"shm:@name", "tcp": b"tcp://mem1:7460", "ipv6": b"tcp://[fe80::1]:80",
        "rdma": b"rdma://10.0.0.1", "rdma-tcp": b"rdma+tcp://mem1", "auto": b"auto://10.0.0.1,mem2,[::1]:7460",
        "several": b"tcp://a,b,c,d,e,f,g,h:1",
    },
    "statspage": {
        "sound": b"\xff\xff", "short": struct.pack("<H", 100),
        "head": b"\xff\xff" + struct.pack("<QII", 0x3153544154535046, 3, 0) + bytes(24) + b"x" * 64,
        "version": b"\xff\xff" + struct.pack("<QI", 0x3153544154535046, 2),
    },
}


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    for target, seeds in CORPORA.items():
        os.makedirs(os.path.join(here, target), exist_ok=True)
        for name, data in seeds.items():
            with open(os.path.join(here, target, name), "wb") as f:
                f.write(data)


if __name__ == "__main__":
    main()
