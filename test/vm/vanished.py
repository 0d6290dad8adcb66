"""In a pair of guests: the leases of a machine that vanished are given back within a minute, over
each kind of connection. See victim.sh."""
import os
import time
import unittest

from farpaged import Farpaged, main, secret_file

SHARED = os.environ.get("FARPAGE_VM_RESULTS", "")
WAYS = {"rxe": "rdma://10.77.3.2:7461", "siw": "rdma://10.77.4.2:7461", "tcp": "tcp://10.77.3.2:7460"}
COME_S, WITHIN_S = 120, 60 + 10  # a guest's clock runs unevenly


def secret_of(way):
    return f"the secret of the program by {way}"


def config():
    listen = ", ".join(f'"{url}"' for url in ("unix:SOCKET", *WAYS.values()))
    secrets = ", ".join(f"{{ name: {name}, file: {secret_file(secret_of(name))}, rights: [ lease, status ] }}"
                        for name in ("watcher", *WAYS))
    return f"listen: [ {listen} ]\npools: [ {{ name: main, size: 512M }} ]\nauth: {{ secrets: [ {secrets} ] }}\n"


class Vanished(unittest.TestCase):
    def tell(self, name, text=""):
        with open(os.path.join(SHARED, name + ".new"), "w", encoding="utf-8") as out:
            out.write(text)
        os.rename(out.name, os.path.join(SHARED, name))

    @staticmethod
    def ways_with(watcher, least_bytes):
        return {client["name"] for client in watcher.status()["clients"] if client["leased_bytes"] >= least_bytes}

    def test_vanished(self):
        with Farpaged(config()) as node:
            watcher = node.session(secret=secret_of("watcher").encode())
            self.tell("ways", "".join(f"{url} {secret_of(way)}\n" for way, url in WAYS.items()))
            start = time.monotonic()
            while self.ways_with(watcher, 64 << 20) != set(WAYS):
                self.assertLess(time.monotonic() - start, COME_S, node.log())
                time.sleep(0.2)
            time.sleep(5)  # all is quiet
            self.tell("vanish")
            start, left = time.monotonic(), set(WAYS)
            while left:
                self.assertLess(time.monotonic() - start, WITHIN_S, f"{left} is still there\n{node.log()}")
                time.sleep(0.2)
                for way in left - self.ways_with(watcher, 1):
                    print(f"over {way}: given back after {time.monotonic() - start:.0f} s", flush=True)
                    left.remove(way)
            print(node.log())


if __name__ == "__main__":
    main()
