"""long.py [--alone] [--minutes N] [--shards N,N...] [ATTACK...]: the attacks of this suite for
minutes instead of a second, on a node with small quotas.

All attacks at once, over tcp and over a UNIX socket, by one hostile client; with --alone one attack
after the other, each with the quotas that it has in the suite. Attackers die and come again all the
time. The bounds are those of hostile.py. When one is not kept, the others are still looked at, and
the exit status is 1.
"""
import argparse
import copy
import os
import random
import sys
import traceback

import attacks
import hostile
from attacks import MIB, SECRETS

SHARDS = "1,2,4"
QUOTA_BYTES = 128 * MIB
SESSIONS, CONNECTIONS, FILES = 512, 2048, 8192
# What doc/security.md says that a client makes the node keep, beside its leases.
HELD_BYTES, CONNECTION_BYTES = 16 * MIB, 52 << 10  # in each loop; for each connection, with its input
STATUS_BYTES = 2 * MIB
OWN_BYTES = 32 * MIB  # tables, and what the allocator keeps


class Together(attacks.Attack):
    """Many attacks at once by one client. The victim is another one."""

    resumes = True
    pool = "{ name: main, size: 4G }"
    limits = f"client_quota: {QUOTA_BYTES}, max_sessions: {SESSIONS}, max_connections: {CONNECTIONS}, handshake_timeout: 2s"
    descriptors = FILES
    cgroup_bytes = 768 * MIB
    # all connections, those of strangers, half of all files for memory that is passed
    bound_fds = CONNECTIONS + CONNECTIONS // 4 + FILES // 2

    def __init__(self, names, shards):
        self.names = names
        loops = shards + 1 if shards > 1 else 1
        self.slack_bytes = (loops + 1) * 8 * MIB  # shards keep their buffers, too
        self.bound_bytes = QUOTA_BYTES + loops * HELD_BYTES + CONNECTIONS * CONNECTION_BYTES + STATUS_BYTES + OWN_BYTES

    def jobs(self, node, url):
        return [(self.part(name), self.url_of(node, transport)) for name in self.names
                for transport in attacks.ATTACKS[name].transports for _ in range(attacks.ATTACKS[name].processes)]

    def titles(self):
        return [f"{name}-{transport}" for name in self.names
                for transport in attacks.ATTACKS[name].transports for _ in range(attacks.ATTACKS[name].processes)]

    @staticmethod
    def url_of(node, transport):
        return next(url for url in node.urls if url.startswith(transport + ":"))

    @staticmethod
    def part(name):
        part = copy.copy(attacks.ATTACKS[name])
        own = part.secrets("tcp:")[1]
        part.secrets = lambda _: (SECRETS[0], own)
        part.lease_bytes = QUOTA_BYTES // 2  # what the attack with large leases takes
        return part


def is_possible(name, together):
    """Those of rdma need a guest. Huge pages need a pool of their own."""
    attack = attacks.ATTACKS[name]
    return attack.transports != ("rdma",) and not attack.why_not() and not (together and name == "punched-memory")


def try_one(title, attack, transport, options, shards):
    """True: the bounds were kept."""
    os.environ["FARPAGE_TEST_SHARDS"] = str(shards)
    print(f"== {title}, shards {shards}, {options.minutes:g} min", flush=True)
    try:
        trial = hostile.try_attack(attack, transport, options.minutes * 60)
    except Exception:  # pylint: disable=broad-except
        traceback.print_exc(limit=-2)
        print(f"FAILED: {title}, shards {shards}", flush=True)
        return False
    titles = attack.titles() if isinstance(attack, Together) else [title] * len(trial.lives)
    print("attackers that the node let begin:", ", ".join(f"{name} {n}" for name, n in zip(titles, trial.lives)))
    print(f"no client ended, no byte was wrong: {title}, shards {shards}", flush=True)
    return True


def trials(options, shards):
    """What is to be tried: title, attack, transport of the victim."""
    names = [name for name in options.attack or attacks.ATTACKS if is_possible(name, not options.alone)]
    if not options.alone:
        return [("all at once" if not options.attack else " ".join(names), Together(names, shards), "tcp")]
    return [(f"{name} {transport}", attacks.ATTACKS[name], transport) for name in names for transport in attacks.ATTACKS[name].transports]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--shards", default=SHARDS)
    parser.add_argument("attack", nargs="*", choices=[[], *attacks.ATTACKS])
    options = parser.parse_args()
    print(f"SEED={hostile.SEED}", flush=True)
    random.seed(hostile.SEED)
    kept = [try_one(*trial, options, shards) for shards in map(int, options.shards.split(",")) for trial in trials(options, shards)]
    print(f"{sum(kept)} of {len(kept)} within their bounds")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
