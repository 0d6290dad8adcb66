"""farpaged and what it is told: each mistake has a message that names it, and a non-zero exit."""
import os
import socket
import subprocess
import tempfile
import unittest

import seccomp
from farpaged import BOTH, Farpaged, main

IO_URING_SETUP = 425  # on every processor
POOL = "pools: [ { name: main, size: 64M } ]\n"


def farpaged(*args):
    done = subprocess.run([os.environ["FARPAGED"], *args], capture_output=True, text=True, timeout=20, check=False)
    return done.returncode, done.stdout, done.stderr


class Config(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(prefix="farpaged-test.")
        self.addCleanup(self.dir.cleanup)

    def write(self, text, name="farpaged.yaml", mode=0o600):
        path = os.path.join(self.dir.name, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text.replace("DIR", self.dir.name))
        os.chmod(path, mode)
        return path

    def refused(self, text, *words, serve=False):
        path = self.write(text)
        status, _, err = farpaged("--config", path, *([] if serve else ["--check"]))
        self.assertEqual(status, 1, err)
        for word in words:
            self.assertIn(word, err)

    def accepted(self, text):
        status, out, err = farpaged("--config", self.write(text), "--check")
        self.assertEqual((status, err), (0, ""))
        self.assertIn("valid", out)

    def test_good(self):
        self.accepted(BOTH.replace("SOCKET", "DIR/socket"))
        self.accepted("listen: unix:DIR/socket\n" + POOL)
        self.accepted("listen: [ unix:@name, 'tcp://[::1]:0', tcp://127.1.2.3, tcp://localhost:9 ]\n" + POOL)

    def test_shipped_example(self):
        example = os.environ["FARPAGED_EXAMPLE"]
        status, _, err = farpaged("--config", example, "--check")
        self.assertEqual((status, err), (0, ""))
        with open(example, encoding="utf-8") as f:
            config = f.read()
        self.assertIn("/run/farpaged/socket", config)
        with Farpaged(config.replace("/run/farpaged/socket", "SOCKET")) as node:
            self.assertEqual(node.urls, [f"shm:{node.socket_path}"], "whom file permissions keep out stays out")
            self.assertEqual(os.stat(node.socket_path).st_mode & 0o777, 0o660)

    def test_keys(self):
        self.refused("listen: unix:DIR/s\nlisen: 3\n" + POOL, "farpaged.yaml:2:", "lisen")
        self.refused("listen: unix:DIR/s\npools: [ { name: a, size: 1G, sise: 1G } ]\n", "sise")
        self.refused("listen: unix:DIR/s\npools: [ { name: a } ]\n", "size")
        self.refused("listen: unix:DIR/s\n", "pools")
        self.refused(POOL, "listen")
        self.refused("listen: []\n" + POOL, "listen")
        self.refused("listen: unix:DIR/s\npools: []\n", "pools")
        self.refused("", "farpaged.yaml")
        self.refused("listen: [", "farpaged.yaml")

    def test_values(self):
        for pool, word in (("size: 0", "size"), ("size: 100", "size"), ("size: 8E", "size"), ("size: -1", "size"),
                           ("size: 99999999T", "size"), ("size: 1048577", "4096"), ("size: lots", "size"),
                           ("size: 1G, backing: paper", "memfd"), ("size: 1G, numa_node: 1000", "numa_node"),
                           ("size: 1G, numa_node: -1", "numa_node"), ("size: 1G, preallocate: maybe", "preallocate")):
            with self.subTest(pool):
                self.refused(f"listen: unix:DIR/s\npools: [ {{ name: a, {pool} }} ]\n", word)
        for name in ("''", "'a b'", "'a\"'", "a" * 64):
            with self.subTest(name):
                self.refused(f"listen: unix:DIR/s\npools: [ {{ name: {name}, size: 1G }} ]\n", "name")
        self.refused("listen: unix:DIR/s\npools: [ { name: a, size: 1G }, { name: a, size: 1G } ]\n", "'a' is taken")
        for limit in ("max_sessions: 0", "max_leases: 65536", "client_quota: 0", "max_requests: many",
                      "handshake_timeout: 0", "drain_timeout: 10d"):
            with self.subTest(limit):
                self.refused(f"listen: unix:DIR/s\nlimits: {{ {limit} }}\n" + POOL, limit.split(":")[0])
        self.refused("listen: unix:DIR/s\nlog_level: loud\n" + POOL, "debug")
        for key, word in (("device_port: 256", "1..255"), ("retry_count: 3", "device, device_port")):
            with self.subTest(key):
                self.refused(f"listen: unix:DIR/s\nrdma: {{ {key} }}\n" + POOL, "farpaged.yaml:2:", key.split(":")[0], word)
        self.accepted("listen: unix:DIR/s\nrdma: { device: x, device_port: 2 }\n" + POOL)

    def test_rdma_device_that_does_not_exist(self):
        self.refused("listen: unix:DIR/s\nrdma: { device: nosuch0 }\n" + POOL,
                     "no RDMA device 'nosuch0' with an active port here: this machine has", serve=True)

    def test_addresses(self):
        for address in ("socket", "unix:socket", "unix:", "unix:@", "tcp://", "tcp://127.0.0.1:65536", "tcp://mem1:1",
                        "tcp://127.0.0.1:", "tcp://127.0.0.1:x", "http://127.0.0.1:1", "unix:/" + "x" * 200):
            with self.subTest(address):
                self.refused(f"listen: '{address}'\n" + POOL, "listen", "tcp://ADDRESS:PORT")

    def test_secret_is_needed_beyond_this_machine(self):
        self.write("0123456789abcdef\n", "secret", 0o600)
        for address in ("tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://192.0.2.1:7460"):
            with self.subTest(address):
                self.refused(f"listen: '{address}'\n" + POOL, address, "auth")
                self.accepted(f"listen: '{address}'\nauth: {{ secret_file: DIR/secret }}\n" + POOL)

    def test_secret(self):
        config = "listen: unix:DIR/s\nauth: { secret_file: DIR/secret }\n" + POOL
        self.refused(config, "secret_file", "No such file")
        self.write("0123456789abcdef\n", "secret", 0o644)
        self.refused(config, "chmod")
        os.chmod(os.path.join(self.dir.name, "secret"), 0o640)
        self.accepted(config)
        self.write("short\n", "secret")
        self.refused(config, "16")
        self.refused("listen: unix:DIR/s\nauth: { secret_file: DIR }\n" + POOL, "regular file")
        self.refused("listen: unix:DIR/s\nauth: { }\n" + POOL, "auth")
        self.refused("listen: unix:DIR/s\nauth: { secret: 0123456789abcdef }\n" + POOL, "unknown key", "secret_file")

    def test_secrets(self):
        config = "listen: unix:DIR/s\n" + POOL + "auth:\n  secrets:\n"
        one = "    - { name: one, file: DIR/secret }\n"
        self.write("0123456789abcdef\n", "secret", 0o600)
        self.write("fedcba9876543210\n", "other", 0o600)
        self.accepted(config + one + "    - { name: two, file: DIR/other, rights: [lease, admin], quota: 1G }\n")
        self.refused(config, "list")
        self.refused(config + "    - { name: one }\n", "'file' is missing")
        self.refused(config + one + "    - { name: two, file: DIR/secret }\n", "same secret")
        self.refused(config + one + "    - { name: one, file: DIR/other }\n", "'one'")
        self.refused(config + "    - { name: uid 0, file: DIR/secret }\n", "name")
        self.refused(config + "    - { name: x, file: DIR/secret, rights: [lease, root] }\n", "'root'", "status")
        self.refused(config + "    - { name: x, file: DIR/none }\n", "No such file")
        self.refused(config + one + "  secret_file: DIR/other\n", "both")
        self.refused(config + "".join(f"    - {{ name: n{i}, file: DIR/secret }}\n" for i in range(33)), "32")

    def test_file(self):
        for path, word in ((self.dir.name, "irectory"), ("/nonexistent/farpaged.yaml", "/nonexistent/farpaged.yaml")):
            status, _, err = farpaged("--config", path, "--check")
            self.assertEqual(status, 1)
            self.assertIn(word, err)

    def test_address_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            self.refused(f"listen: tcp://127.0.0.1:{taken.getsockname()[1]}\n" + POOL, "in use", "choose another",
                         serve=True)
        with socket.socket(socket.AF_UNIX) as taken:
            taken.bind(os.path.join(self.dir.name, "s"))
            taken.listen()
            self.refused("listen: unix:DIR/s\n" + POOL, "in use", serve=True)
        self.refused("listen: unix:DIR/absent/s\n" + POOL, "absent/s", "No such file", serve=True)

    def test_socket_of_a_dead_daemon_is_replaced(self):
        with Farpaged(BOTH) as node:
            node.process.kill()
            node.wait()
            self.assertTrue(os.path.exists(node.socket_path))
            with Farpaged(f"listen: unix:{node.socket_path}\n" + POOL) as second:
                second.session().info()
            self.assertFalse(os.path.exists(node.socket_path))

    def test_a_file_is_not_replaced(self):
        self.write("precious", "s")
        self.refused("listen: unix:DIR/s\n" + POOL, "in use", serve=True)
        self.assertTrue(os.path.exists(os.path.join(self.dir.name, "s")))

    def test_more_memory_than_the_machine_has(self):
        self.refused("listen: unix:DIR/s\npools: [ { name: a, size: 32T, preallocate: true } ]\n", "preallocate wants", serve=True)

    def test_huge_pages_that_are_not_there(self):
        self.refused("listen: unix:DIR/s\npools: [ { name: a, size: 8T, backing: hugetlb } ]\n", "huge page", serve=True)


    def test_io_uring_refused(self):
        path = self.write("listen: unix:DIR/s\n" + POOL)
        done = subprocess.run([os.environ["FARPAGED"], "--config", path], capture_output=True, text=True, timeout=20,
                              check=False, preexec_fn=lambda: seccomp.refuse(IO_URING_SETUP))
        self.assertEqual(done.returncode, 1)
        self.assertIn("kernel.io_uring_disabled", done.stderr)
        self.assertIn("seccomp", done.stderr)


class CommandLine(unittest.TestCase):
    def test_help(self):
        self.assertEqual(farpaged("--version")[:2], (0, "farpaged 0.1.0\n"))
        self.assertIn("--config FILE", farpaged("--help")[1])

    def test_wrong(self):
        for args in ([], ["--nonsense"], ["--config"], ["--config", "/x", "more"], ["--private"], ["--check"],
                     ["--private", "--listen", "unix:@x"], ["--private", "--listen", "unix:@x", "--pool-size", "0"],
                     ["--private", "--listen", "unix:@x", "--pool-size", "9E"], ["--config", "/x", "--listen", "unix:@x"],
                     ["--config", "/x", "--ready-fd", "one"]):
            with self.subTest(args):
                status, _, err = farpaged(*args)
                self.assertEqual(status, 2)
                self.assertIn("--help", err)
        status, _, err = farpaged("--private", "--listen", "tcp://0.0.0.0:0", "--pool-size", "1G")
        self.assertEqual(status, 1)
        self.assertIn("other machines", err)


if __name__ == "__main__":
    main()
