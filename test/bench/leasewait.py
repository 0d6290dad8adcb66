#!/usr/bin/python3
"""What a LEASE waits for while the node takes back, or makes, a big one.

A client leases 64 MiB every 50 ms and gives them back. Beside it another client's lease of --size
dies, and one of that size is asked for: p50, p99 and max of LEASE, alone and in the seconds after
each. A preallocated pool of --size and 512 MiB. FARPAGED is the daemon; --over shm passes the big
lease as a memfd. It neither passes nor fails.
"""
import argparse
import threading
import time

from farpaged import MEMFD, Farpaged

MIB = 1 << 20
SMALL = 64 * MIB


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4, metavar="GIB")
    parser.add_argument("--over", choices=("tcp", "shm"), default="tcp")
    parser.add_argument("--seconds", type=float, default=10, help="for which each phase is watched")
    return parser.parse_args()


def client(node):
    session = node.session()
    session.sock.settimeout(600)
    return session


def watch(session, seconds):
    """Seconds that each LEASE took."""
    waits, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.monotonic()
        lease_id, _, _ = session.lease(SMALL)
        waits.append(time.monotonic() - start)
        session.release(lease_id)
        time.sleep(0.05)
    return sorted(waits)


def tell(what, waits):
    p50, p99 = (waits[min(len(waits) - 1, int(len(waits) * q))] for q in (0.5, 0.99))
    print(f"{what:32} {len(waits):5} LEASEs  p50 {p50 * 1e3:8.1f}  p99 {p99 * 1e3:8.1f}  max {waits[-1] * 1e3:8.1f} ms", flush=True)


def main():
    args = parse()
    pool = f"{{ name: main, size: {args.size * 1024 + 512}M, preallocate: true }}"
    with Farpaged(f'listen: [ "unix:SOCKET", "tcp://127.0.0.1:0" ]\npools: [ {pool} ]\n') as node:
        small = client(node)
        big = node.session(node.urls[args.over == "tcp"], features=MEMFD if args.over == "shm" else 0)
        big.sock.settimeout(600)
        tell("alone", watch(small, args.seconds))
        making = threading.Thread(target=lambda: big.lease(args.size << 30))
        making.start()
        tell(f"{args.size} GiB are leased beside it", watch(small, args.seconds))
        making.join()
        big.close()
        tell(f"{args.size} GiB die beside it", watch(small, args.seconds))


if __name__ == "__main__":
    main()
