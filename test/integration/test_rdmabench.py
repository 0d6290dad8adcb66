"""farpage bench link over rdma: every operation, at every protocol, with its bandwidth, against a
farpaged of its own.

FARPAGE_TEST_RDMA is the node's address; skipped without it. The figures are printed, not judged:
soft devices.
"""
import json
import os
import subprocess
import unittest

from farpaged import Farpaged, auth, secret_file

ADDRESS = os.environ.get("FARPAGE_TEST_RDMA")
SECRET = "open-sesame-open-sesame"
CONFIG = f"""
listen: [ "rdma://{ADDRESS}:7461" ]
pools: [ {{ name: main, size: 64M }} ]
{auth(SECRET)}"""


@unittest.skipUnless(ADDRESS, "no RDMA device: FARPAGE_TEST_RDMA is not set")
class RdmaBench(unittest.TestCase):
    def bench(self, *args):
        """The cells of a way, by operation, bytes of a request and depth."""
        done = subprocess.run([os.environ["FARPAGE"], "bench", "link", f"rdma://{ADDRESS}:7461", "--json", "--seconds", "0.05",
                               "--secret-file", secret_file(SECRET), *args], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        way, = json.loads(done.stdout)["ways"]
        self.assertEqual(way["transport"], "rdma")
        return {(cell["op"], cell["request_bytes"], cell["depth"]): cell for cell in way["cells"]}

    def test_each_operation(self):
        with Farpaged(CONFIG) as node:
            self.assertTrue(node.urls, node.log())
            cells = self.bench("--sizes", "64,4K,64K,16x4K", "--depths", "1,16")
            for protocol in ("inline", "eager", "registered"):
                for (op, size, depth), cell in self.bench("--sizes", "64,4K", "--depths", "1,16", "--protocol",
                                                          protocol, "--op", "read,write").items():
                    cells[f"{op}, {protocol}", size, depth] = cell
        self.assertEqual({op for op, _, _ in cells}, {"rpc"} | {
            op + protocol for op in ("read", "write") for protocol in ("", ", inline", ", eager", ", registered")})
        for (op, size, depth), cell in cells.items():
            self.assertGreater(cell["requests"], 0)
            print(f"{op} of {size} bytes, {depth} at a time: p50 {cell['p50_us']:.1f} µs, {cell['gib_per_second'] * 1024:.2f} MiB/s")


if __name__ == "__main__":
    unittest.main(verbosity=2)
