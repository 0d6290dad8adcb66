#!/usr/bin/env python3
"""Writes the corpora of the fuzz targets that speak the protocol, with the codec of test/lib. Run
it when the protocol grows."""
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))

from farpaged import (ADOPT, ADOPTED, ATTACH, ATTACHED, AUTH, BYE, CHALLENGE, CONTROL, DATA, DENIED, DRAIN, DRAINED, ERROR, FAREWELL, FULL,
                      HELLO, INFO, INFO_REPLY, LEASE, LEASED, LINK, MAGIC, PING, PONG, QP, QP_REPLY, READ, RELEASE, RELEASED, RESUME, STATUS,
                      STATUS_REPLY, UNDRAIN, UNDRAINED, VERSION, WELCOME, WRITE, WRITTEN, frame, table)

PAGE = 4096
LEAST = 1 << 20  # of a lease
NONE = bytes(24)
# what fuzz_node.c fills in: sessions and proofs
OTHER, MAPS = b"\xee" * 24, b"\xed" * 24
ALL, NO_RIGHT = b"\xec" * 32, b"\xeb" * 32
SECRETS, TCP = 1, 2  # the node that it asks, and how
SECRET, RESUMED, KEYS, MAPPED = 1, 2, 4, 8  # how fuzz_client.c opens its session
CALLS = [None, ATTACH, RELEASE, INFO, STATUS, DRAIN, PING, ADOPT, LEASE, UNDRAIN]  # their numbers there


def hello(purpose=CONTROL, session=NONE, features=0):
    return frame(HELLO, struct.pack("<BBBBI", VERSION, VERSION, purpose, 0, features) + session + b"n" * 32 + b"fuzz".ljust(64, b"\0"))


def challenge(version=VERSION, flags=0):
    return frame(CHALLENGE, b"N" * 32 + struct.pack("<B3xI", version, flags))


def welcome(features=0, session_id=1, token=b"t" * 16, proof=bytes(32), version=VERSION):
    return frame(WELCOME, struct.pack("<B3xIQ16sIIII32s", version, features, session_id, token, 4195336, 256, 30000, 0, proof))


def leased(kind=LEASED, lease_id=1, flags=0, address=0, key=0, tag=1, size=PAGE):
    return frame(kind, struct.pack("<QIIQII", size, lease_id, flags, address, key, 0), tag)


def qp(kind):
    return frame(kind, struct.pack("<IIHBBI16s", 17, 5, 1, 3, 4, 0, b"g" * 16))


def lease(size=LEAST):
    return frame(LEASE, struct.pack("<QII", size, 0, 0), 2)


def of_id(kind, lease_id=1):
    return frame(kind, struct.pack("<II", lease_id, 0), 3)


def cm(kind):
    if kind == "cm":
        return struct.pack("<IBBBBQ16s16s", MAGIC, VERSION, VERSION, LINK, 0, 7, b"n" * 16, b"p" * 16)
    return struct.pack("<IB3xiI", MAGIC, VERSION, 0, 0)


AUTH_FRAME = frame(AUTH, b"p" * 32)
ADOPT_FRAME = frame(ADOPT, OTHER, 4)
CHALLENGE_FRAME = challenge()
READ_FRAME = frame(READ, table([(1, 16, 0), (1, 8, PAGE - 8)]), 5)
WRITE_FRAME = frame(WRITE, table([(1, 16, 0), (1, 8, 64)]) + b"w" * 24, 6)
DENIED_READ = frame(READ, table([(1, 16, LEAST - 8)]), 7)
DENIED_WRITE = frame(WRITE, table([(9, 8, 0)]) + b"w" * 8, 8)
PROVEN = b"\xee" * 32  # fuzz_client.c puts the node's proof here
DRAINED_PAYLOAD = struct.pack("<QII", PAGE, 1, 0)
REFUSAL = struct.pack("<HHIQQ", 4, 1, 0, 1 << 30, 1 << 29)
INFO_PAYLOAD = struct.pack("<QQQQQ", 1 << 30, 1 << 29, PAGE, 0, PAGE) + REFUSAL

REQUESTS = {
    "hello": hello(), "hello-link": hello(LINK, OTHER), "auth": AUTH_FRAME, "ping": frame(PING, b"ping"), "bye": frame(BYE),
    "lease": lease(), "release": of_id(RELEASE), "info": frame(INFO), "status": frame(STATUS), "drain": frame(DRAIN),
    "undrain": frame(UNDRAIN), "attach": of_id(ATTACH), "adopt": ADOPT_FRAME, "read": READ_FRAME, "write": WRITE_FRAME, "qp": qp(QP),
}
ANSWERS = {
    "error": frame(ERROR, status=FULL), "error-why": frame(ERROR, REFUSAL, status=FULL), "challenge": CHALLENGE_FRAME, "welcome": welcome(), "pong": frame(PONG, b"ping"),
    "farewell": frame(FAREWELL), "leased": leased(), "leased-key": leased(flags=2, address=PAGE, key=9),
    "released": frame(RELEASED), "info_reply": frame(INFO_REPLY, INFO_PAYLOAD), "status_reply": frame(STATUS_REPLY, b"{}"),
    "drained": frame(DRAINED, DRAINED_PAYLOAD), "attached": leased(ATTACHED, flags=6, address=PAGE, key=9),
    "undrained": frame(UNDRAINED), "adopted": frame(ADOPTED, struct.pack("<II", 3, 0)), "data": frame(DATA, b"d" * 24), "written": frame(WRITTEN),
    "qp_reply": qp(QP_REPLY), "cm": cm("cm"), "cm_reply": cm("cm_reply"),
}
# each decodes as a frame, and its payload says what it must not
WRONG = {
    "lease": frame(LEASE, struct.pack("<QII", 0, 0, 0)), "release": of_id(RELEASE, 0), "attach": of_id(ATTACH, 1 << 16),
    "adopt": frame(ADOPT, bytes(24)), "qp": frame(QP, bytes(32)), "read": frame(READ, table([(0, 16, 0)])),
    "write": frame(WRITE, table([(1, 16, 0)]) + b"w"),
}
WRONG_ELSEWHERE = {
    "error": frame(ERROR, REFUSAL[:2] + b"\xff" * 22, status=FULL),
    "hello": frame(HELLO, bytes(128)), "challenge": challenge(0), "welcome": welcome(session_id=0), "leased": leased(size=0),
    "attached": leased(ATTACHED, lease_id=0), "info_reply": frame(INFO_REPLY, INFO_PAYLOAD[::-1]),
    "drained": frame(DRAINED, b"\xff" * 16), "adopted": frame(ADOPTED, b"\xff" * 8), "qp_reply": frame(QP_REPLY, bytes(32)),
}
SHAKEN = hello() + AUTH_FRAME
PROVED = hello() + frame(AUTH, ALL)
LINKED = hello(LINK, OTHER) + AUTH_FRAME


def answered(kind, payload=b"", status=0):
    """The handshake of a node, then its answer to the first call."""
    return met(frame(kind, payload, 1, status=status), frame(FAREWELL, tag=2))


def met(*frames):
    """What a node says after its handshake."""
    return CHALLENGE_FRAME + welcome() + b"".join(frames)


def node(how, *frames):
    return bytes([how]) + b"".join(frames)


def answer(request, kind=DATA, status=0, n_bytes=32, number=None):
    """Of fuzz_link.c's requests, the first of which is 0, or of one that its link never had."""
    tag = (request if number is None else number) + 1
    payload = bytes([request + 1]) * n_bytes if kind == DATA else b""
    return frame(kind, payload, tag, status=status)


def client(calls, stream, opening=0):
    return bytes([opening]) + bytes(map(CALLS.index, calls)) + b"\0" + stream


def word(index, value):
    """A word of a histogram (common/hist.h)."""
    return struct.pack("<HQ", index, value % (1 << 64))


def bucket(ns):
    """The index of the word that counts a latency."""
    ns = min(ns, (1 << 37) - 1)
    shift = max(ns.bit_length() - 7, 0)
    return 4 + (shift << 6) + (ns >> shift)


def hist(counts):
    """A sound histogram: how often each latency was counted."""
    head = [sum(counts.values()), sum(ns * n for ns, n in counts.items()), ~min(counts), max(counts)]
    return b"".join(word(i, value) for i, value in enumerate(head)) + b"".join(word(bucket(ns), n) for ns, n in counts.items())


CORPORA = {
    "wire": {**REQUESTS, **ANSWERS, **{f"wrong-{name}": data for name, data in {**WRONG, **WRONG_ELSEWHERE}.items()}},
    "inbox": {
        "control": b"\x07" + SHAKEN + lease() + of_id(RELEASE) + frame(BYE),
        "link": b"\x13" + LINKED + READ_FRAME + WRITE_FRAME + READ_FRAME + frame(PING, b"p" * 40),
        "requests": b"\x05" + b"".join(REQUESTS.values()),
        **{f"wrong-{name}": b"\x09" + WRONG[name] for name in ("read", "write")},
        **{f"answer-{name}": b"\x03" + data for name, data in ANSWERS.items() if not name.startswith("cm")},
        "calls": b"\x01" + of_id(ATTACH) + ADOPT_FRAME + frame(INFO) + frame(STATUS) + frame(DRAIN) + qp(QP),
    },
    "node": {
        "control": node(0, SHAKEN, frame(INFO), frame(STATUS), frame(PING, b"ping"), frame(BYE)),
        "control-tcp": node(TCP, SHAKEN, frame(INFO), frame(PING), lease(), of_id(RELEASE), frame(BYE)),
        "lease": node(0, SHAKEN, lease(), of_id(RELEASE), lease(2 * LEAST), of_id(ATTACH), of_id(RELEASE), of_id(RELEASE)),
        "lease-full": node(0, SHAKEN, lease(16 * LEAST), lease(), lease(), lease(), lease(), frame(INFO)),
        "lease-odd": node(0, SHAKEN, lease(LEAST + 1)),
        "memfd": node(0, hello(features=1), AUTH_FRAME, lease(), of_id(ATTACH), of_id(RELEASE), of_id(ATTACH)),
        "drain": node(0, SHAKEN, frame(DRAIN), lease(), frame(UNDRAIN), lease(), frame(DRAIN)),
        "operator": node(0, hello(features=8), AUTH_FRAME, frame(INFO), frame(STATUS), lease(), frame(DRAIN), frame(UNDRAIN), frame(BYE)),
        "drain-tcp": node(TCP, SHAKEN, frame(DRAIN), frame(UNDRAIN)),
        "link": node(0, LINKED, READ_FRAME, WRITE_FRAME, READ_FRAME, DENIED_READ, DENIED_WRITE, frame(PING, b"p" * 40)),
        "link-tcp": node(TCP, LINKED, WRITE_FRAME, READ_FRAME),
        "link-qp": node(0, LINKED, qp(QP), frame(PING)),
        "link-wrong": node(0, hello(LINK, b"\x01" + bytes(23)), AUTH_FRAME),
        "link-maps": node(0, hello(LINK, MAPS), AUTH_FRAME),
        "resume": node(0, hello(RESUME, OTHER), AUTH_FRAME, of_id(ATTACH), of_id(RELEASE), lease(), frame(BYE)),
        "resume-tcp": node(TCP, hello(RESUME, OTHER), AUTH_FRAME, of_id(ATTACH)),
        "resume-wrong": node(0, hello(RESUME, b"\x01" + bytes(23)), AUTH_FRAME),
        "resume-maps": node(0, hello(RESUME, MAPS), AUTH_FRAME),
        "adopt": node(0, SHAKEN, frame(ADOPT, b"\x01" + bytes(23), 4), ADOPT_FRAME, of_id(ATTACH), ADOPT_FRAME, of_id(RELEASE)),
        "adopt-maps": node(0, SHAKEN, frame(ADOPT, MAPS, 4), of_id(ATTACH)),
        "version": node(0, frame(HELLO, b"\x03\x03\x01" + bytes(125))),
        "secret": node(SECRETS, PROVED, lease(), frame(INFO), frame(STATUS), lease(4 * LEAST), frame(DRAIN), frame(UNDRAIN), frame(BYE)),
        "secret-tcp": node(SECRETS | TCP, PROVED, lease(), of_id(RELEASE), frame(DRAIN), frame(BYE)),
        "secret-link": node(SECRETS, hello(LINK, OTHER), frame(AUTH, ALL), READ_FRAME, WRITE_FRAME),
        "secret-resume": node(SECRETS | TCP, hello(RESUME, OTHER), frame(AUTH, ALL), of_id(ATTACH), of_id(RELEASE)),
        "secret-adopt": node(SECRETS, PROVED, ADOPT_FRAME, of_id(ATTACH)),
        "secret-of-another": node(SECRETS, hello(RESUME, OTHER), frame(AUTH, NO_RIGHT)),
        "secret-link-of-another": node(SECRETS, hello(LINK, OTHER), frame(AUTH, NO_RIGHT)),
        "secret-no-right": node(SECRETS, hello(), frame(AUTH, NO_RIGHT), lease(), ADOPT_FRAME, frame(STATUS), frame(DRAIN),
                                frame(UNDRAIN), frame(INFO)),
        "secret-none": node(SECRETS, SHAKEN),
        **{f"early-{name}": node(0, data) for name, data in REQUESTS.items() if not name.startswith("hello")},
        **{f"wrong-{name}": node(0, SHAKEN, data) for name, data in WRONG.items()},
        **{f"wrong-link-{name}": node(0, LINKED, data) for name, data in WRONG.items()},
        "hello-twice": node(0, hello(), hello()),
    },
    "client": {
        "lease": client([LEASE, RELEASE], met(leased(), frame(RELEASED, tag=2), frame(FAREWELL, tag=3))),
        "lease-key": client([LEASE], CHALLENGE_FRAME + welcome(2) + leased(flags=2, address=PAGE, key=9) + frame(FAREWELL, tag=2), KEYS),
        "lease-memfd": client([LEASE], CHALLENGE_FRAME + welcome(1) + leased(flags=1) + frame(FAREWELL, tag=2), MAPPED),
        "lease-short": client([LEASE, INFO], met(leased(size=0))),
        "lease-twice": client([LEASE, LEASE], met(leased(), leased(tag=2))),
        "attach": client([ATTACH], met(leased(ATTACHED, flags=4), frame(FAREWELL, tag=2)), RESUMED),
        "attach-broken": client([LEASE, INFO, ATTACH], met(leased(), frame(INFO_REPLY, INFO_PAYLOAD, 99))),
        "attach-other": client([ATTACH, INFO], met(leased(ATTACHED, lease_id=2)), RESUMED),
        "release-resumed": client([RELEASE, RELEASE], met(frame(RELEASED, tag=1), frame(ERROR, status=DENIED, tag=2)), RESUMED),
        "release-wrong": client([LEASE, RELEASE], met(leased(), leased(tag=2))),
        "info": client([INFO], answered(INFO_REPLY, INFO_PAYLOAD)),
        "info-wrong": client([INFO, INFO], answered(INFO_REPLY, INFO_PAYLOAD[::-1]) + frame(INFO_REPLY, INFO_PAYLOAD, 2)),
        "status": client([STATUS], answered(STATUS_REPLY, b'{"state":"serving"}')),
        "status-wrong": client([STATUS], answered(PONG, b"{}")),
        "drain": client([DRAIN, UNDRAIN], met(frame(DRAINED, DRAINED_PAYLOAD, 1), frame(UNDRAINED, tag=2), frame(FAREWELL, tag=3))),
        "drain-wrong": client([DRAIN, DRAIN], met(frame(DRAINED, b"\xff" * 16, 1), frame(DRAINED, DRAINED_PAYLOAD, 2))),
        "undrain-wrong": client([UNDRAIN], answered(RELEASED)),
        "ping": client([PING], answered(PONG, bytes(range(1, 17)))),
        "ping-wrong": client([PING, INFO], answered(PONG, bytes(16))),
        "adopt": client([ADOPT, RELEASE], met(frame(ADOPTED, struct.pack("<II", 3, 0), 1), frame(RELEASED, tag=2))),
        "adopt-wrong": client([ADOPT], answered(ADOPTED, b"\xff" * 8)),
        "secret": client([INFO], CHALLENGE_FRAME + welcome(proof=PROVEN) + frame(INFO_REPLY, INFO_PAYLOAD, 1), SECRET),
        "secret-resumed": client([ATTACH], CHALLENGE_FRAME + welcome(proof=PROVEN) + leased(ATTACHED), SECRET | RESUMED),
        "secret-unproved": client([INFO], answered(INFO_REPLY, INFO_PAYLOAD), SECRET),
        "late": client([INFO, INFO, PING], met(frame(INFO_REPLY, INFO_PAYLOAD, 1), leased(), frame(INFO_REPLY, INFO_PAYLOAD, 2),
                                               frame(RELEASED, tag=3), frame(PONG, bytes(range(3, 19)), 4))),
        "never-asked": client([INFO], met(frame(INFO_REPLY, INFO_PAYLOAD, 99), frame(INFO_REPLY, INFO_PAYLOAD, 1))),
        "never-asked-key": client([LEASE], met(leased(flags=2, address=PAGE, key=9))),
        "too-long": client([INFO], met(frame(DATA, tag=1, length=1 << 20))),
        "challenge-wrong": client([INFO], challenge(0)), "challenge-version": client([INFO], challenge(3)),
        "welcome-wrong": client([INFO], CHALLENGE_FRAME + welcome(session_id=0)),
        "welcome-version": client([INFO], CHALLENGE_FRAME + welcome(version=3)),
        "welcome-no-keys": client([INFO], CHALLENGE_FRAME + welcome(), KEYS),
        "welcome-other-session": client([INFO], CHALLENGE_FRAME + welcome(session_id=2), RESUMED),
        **{f"refused-{status}": client([LEASE], answered(ERROR, status=status)) for status in range(1, 13)},
        "refused-why": client([LEASE, INFO], met(frame(ERROR, REFUSAL, 1, status=FULL), frame(INFO_REPLY, INFO_PAYLOAD, 2))),
        "refused-at-once-why": client([INFO], frame(ERROR, REFUSAL, status=DENIED)),
        "refused-at-once": client([INFO], frame(ERROR, status=DENIED)),
    },
    "link": {
        "reads": b"\x00" + answer(0) + answer(1) + answer(2),
        "reads-turned": b"\x00" + answer(2) + answer(0) + answer(1),
        "writes": b"\x07" + answer(0, WRITTEN) + answer(1, WRITTEN) + answer(2, WRITTEN),
        "mixed": b"\x02" + answer(0) + answer(1, WRITTEN) + answer(2),
        "refused": b"\x02" + answer(0) + answer(1, ERROR, DENIED) + answer(2), "refused-full": b"\x00" + answer(0, ERROR, FULL),
        "twice": b"\x00" + answer(0) + answer(0) + answer(1) + answer(2),
        "short": b"\x00" + answer(0, n_bytes=31), "long": b"\x00" + answer(0, n_bytes=33),
        "wrong-kind": b"\x00" + answer(0) + answer(1, WRITTEN), "wrong-kind-write": b"\x02" + answer(1),
        "never-asked": b"\x00" + answer(0, number=9),
        "cut": b"\x00" + answer(0) + answer(1)[:40],
        "request": b"\x00" + frame(PING, tag=256),
    },
    "hist": {
        "empty": b"", "hist": hist({1000: 5}), "two": hist({7: 1, 90_000_000_000: 3}), "many": hist({9 ** i: i + 1 for i in range(11)}),
        "huge": hist({1000: 1 << 63}), "contradiction": hist({1000: 5}) + word(0, 5000), "beyond": hist({1000: 5}) + word(3, 1 << 62),
        "longest": hist({(1 << 64) - 1: 1}),
    },
    "url": {
        "shm": b"shm:/run/farpaged/socket", "abstract": b"shm:@name", "tcp": b"tcp://mem1:7460", "ipv6": b"tcp://[fe80::1]:80",
        "rdma": b"rdma://10.0.0.1", "rdma-tcp": b"rdma+tcp://mem1", "auto": b"auto://10.0.0.1,mem2,[::1]:7460",
        "several": b"tcp://a,b,c,d,e,f,g,h:1",
    },
    "statspage": {
        "sound": b"\xff\xff", "short": struct.pack("<H", 100),
        "head": b"\xff\xff" + struct.pack("<QII", 0x3153544154535046, 4, 0) + bytes(24) + b"x" * 64,
        "version": b"\xff\xff" + struct.pack("<QI", 0x3153544154535046, 3),
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
