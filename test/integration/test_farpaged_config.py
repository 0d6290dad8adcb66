"""farpaged and what it is told: each mistake has a message that names it, and a non-zero exit."""
import os
import pwd
import re
import pty
import socket
import subprocess
import tempfile
import unittest

import seccomp
from farpaged import BOTH, CHECK, Farpaged, main

IO_URING_SETUP = 425  # on every processor
POOL = "pools: [ { name: main, size: 64M } ]\n"



def without_warnings(err):
    """Lines of stderr, but for those that the machine causes: little memory, another address."""
    return "".join(line for line in err.splitlines(True) if "pools without preallocate need" not in line and "does not have the address" not in line)


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
        status, _, err = farpaged("--config", path, *([] if serve else CHECK))
        self.assertEqual(status, 1, err)
        for word in words:
            self.assertIn(word, err)

    def accepted(self, text):
        status, out, err = farpaged("--config", self.write(text), *CHECK)
        self.assertEqual((status, without_warnings(err)), (0, ""))
        self.assertIn("valid", out)

    def test_good(self):
        self.accepted(BOTH.replace("SOCKET", "DIR/socket"))
        self.accepted("listen: unix:DIR/socket\n" + POOL)
        self.accepted("listen: [ unix:@name, 'tcp://[::1]:0', tcp://127.1.2.3, tcp://localhost:9 ]\n" + POOL)

    def test_shipped_example(self):
        example = os.environ["FARPAGED_EXAMPLE"]
        status, _, err = farpaged("--config", example, *CHECK)
        self.assertEqual((status, without_warnings(err)), (0, ""))
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
                      "handshake_timeout: 0", "drain_timeout: []"):
            with self.subTest(limit):
                self.refused(f"listen: unix:DIR/s\nlimits: {{ {limit} }}\n" + POOL, limit.split(":")[0])
        self.refused("listen: unix:DIR/s\nlog_level: loud\n" + POOL, "debug")
        for key, word in (("device_port: 256", "1..255"), ("retry_count: 3", "device, device_port")):
            with self.subTest(key):
                self.refused(f"listen: unix:DIR/s\nrdma: {{ {key} }}\n" + POOL, "farpaged.yaml:2:", key.split(":")[0], word)
        self.accepted("listen: unix:DIR/s\nrdma: { device: x, device_port: 2 }\n" + POOL)

    def test_old_keys(self):
        """A file of an older node is still valid, but each key without effect is named with its
        line."""
        text = "listen: unix:DIR/s\nlimits: { drain_timeout: 5s }\nrdma:\n  rnr_retry_count: 3\n  ack_timeout: 1s\n" + POOL
        status, _, err = farpaged("--config", self.write(text), *CHECK)
        self.assertEqual(status, 0, err)
        for place, key in ((":2:", "limits.drain_timeout"), (":4:", "rdma.rnr_retry_count"), (":5:", "rdma.ack_timeout")):
            self.assertRegex(err, f"{place}[0-9]+: {key} has no effect: remove this line")

    def test_rdma_device_that_does_not_exist(self):
        self.refused("listen: unix:DIR/s\nrdma: { device: nosuch0 }\n" + POOL,
                     "no RDMA device 'nosuch0' with an active port here: this machine has", serve=True)

    def test_addresses(self):
        for address in ("socket", "unix:socket", "unix:", "unix:@", "tcp://", "tcp://127.0.0.1:65536", "tcp://mem1:1",
                        "tcp://127.0.0.1:", "tcp://127.0.0.1:x", "http://127.0.0.1:1"):
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
        self.write("0123456789abcdef\n", "secret", 0o602)
        self.refused(config, "may read or write it: chmod o-rw ")
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
            status, _, err = farpaged("--config", path, *CHECK)
            self.assertEqual(status, 1)
            self.assertIn(word, err)

    def test_addresses_twice(self):
        for one, other in (("unix:DIR/s", "unix:DIR/s"), ("unix:@x", "unix:@x"), ("tcp://127.0.0.1:7460", "tcp://localhost"),
                           ("tcp://127.0.0.1:7461", "rdma://127.0.0.1"), ("tcp://[::1]:80", "tcp://[::1]:80")):
            with self.subTest(one):
                self.refused(f"listen:\n - '{one}'\n - '{other}'\n" + POOL, "farpaged.yaml:3:4: listen[1]: '", "is taken by listen[0]")
        self.write("0123456789abcdef\n", "secret", 0o600)
        self.refused("listen: [tcp://0.0.0.0:7460, tcp://192.0.2.1:7460]\nauth: { secret_file: DIR/secret }\n" + POOL, "is taken by")
        for both in ("'tcp://[::]:7460', tcp://127.0.0.1:7460", "tcp://0.0.0.0:7460, 'tcp://[::]:7460'"):
            self.refused(f"listen: [{both}]\nauth: {{ secret_file: DIR/secret }}\n" + POOL, "is taken by")
        self.accepted("listen: [tcp://127.0.0.1:0, tcp://127.0.0.1:0, tcp://127.0.0.2:80, tcp://127.0.0.1:80]\n" + POOL)

    def test_places(self):
        """What the table of keys can't express is told with line and column, too."""
        self.write("0123456789abcdef\n", "secret", 0o600)
        for text, place in (("listen:\n  - unix:DIR/s\n  - mem1\n", "3:5: listen[1]: "), ("listen: mem1\n", "1:9: listen[0]: "),
                            ("listen: unix:/" + "x" * 200 + "\n", "1:9: listen[0]: the path of a UNIX socket may have 107 bytes, not 201"),
                            ("listen: tcp://192.0.2.1\n", "1:9: listen[0]: "), ("listen: unix:DIR/s\nauth:\n  secret_file: DIR/none\n", "3:16: auth.secret_file: "),
                            ("listen: unix:DIR/s\nauth: { secrets: [] }\n", "2:7: auth: "),
                            ("listen: unix:DIR/s\nauth:\n secrets:\n  - file: DIR/secret\n    name: a b\n", "5:11: auth.secrets[0].name: "),
                            ("listen: unix:DIR/s\nauth:\n secrets:\n  - file: DIR/secret\n    name: a\n    rights: [lease, x]\n",
                             "6:21: auth.secrets[0].rights[1]: ")):
            with self.subTest(text):
                self.refused(text + POOL, "farpaged.yaml:" + place)
        many = ", ".join(f"{{ name: p{i}, size: 1M }}" for i in range(65))
        self.refused(f"listen: unix:DIR/s\npools: [ {many} ]\n", "farpaged.yaml:2:8: pools: there are 65; a node has at most 64")
        self.refused("listen: unix:DIR/s\npools:\n - name: a\n   size: 1048577\n", "farpaged.yaml:4:10: pools[0].size: must be a multiple")

    def test_address_in_use(self):
        self.write("0123456789abcdef\n", "secret", 0o600)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            self.refused(f"listen: tcp://127.0.0.1:{taken.getsockname()[1]}\n" + POOL, "in use", "choose another",
                         serve=True)
        with socket.socket(socket.AF_UNIX) as taken:
            taken.bind(os.path.join(self.dir.name, "s"))
            taken.listen()
            self.refused("listen: unix:DIR/s\n" + POOL, "in use", serve=True)
        self.refused("listen: unix:DIR/absent/s\n" + POOL, "absent/s", "the folder of the socket does not exist", serve=True)
        self.refused("listen: tcp://192.0.2.1:7460\nauth: { secret_file: DIR/secret }\n" + POOL, "does not have that address", serve=True)

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
        for serve in False, True:
            self.refused("listen: unix:DIR/s\n" + POOL, "farpaged.yaml:1:9: listen[0]: ", "/s': that file is not a socket", serve=serve)
        self.assertTrue(os.path.exists(os.path.join(self.dir.name, "s")))


    NOBODYS = "listen: unix:DIR/s\nauth: { secret_file: DIR/secret }\n" + POOL

    @unittest.skipUnless(os.geteuid() == 0, "only root can check for another user")
    def test_secret_of_the_user_that_will_serve(self):
        os.chmod(self.dir.name, 0o755)
        config = self.write(self.NOBODYS, mode=0o644)
        secret = self.write("0123456789abcdef\n", "secret", 0o600)
        self.accepted(self.NOBODYS)
        os.chmod(config, 0o644)
        status, _, err = farpaged("--check", "--config", config, "--user", "nobody")
        self.assertEqual(status, 1)
        self.assertIn(f"auth.secret_file: {secret}: the user nobody may not read it", err)
        self.assertIn("chown", err)
        self.assertIn("(checked for the user nobody, who will serve", err)
        os.chown(secret, pwd.getpwnam("nobody").pw_uid, -1)
        status, out, err = farpaged("--check", "--config", config, "--user", "nobody")
        self.assertEqual((status, out, err), (0, f"{config}: valid for the user nobody\n", ""))

    @unittest.skipUnless(os.geteuid() == 0, "takes a mount namespace")
    def test_it_checks_for_the_user_of_the_unit(self):
        """Where there is a user farpage, root need not name it."""
        os.chmod(self.dir.name, 0o755)
        config = self.write(self.NOBODYS, mode=0o644)
        self.write("0123456789abcdef\n", "secret", 0o600)
        with open("/etc/passwd", encoding="utf-8") as f:
            users = self.write(f.read() + "farpage:x:64999:64999::/:/bin/false\n", "passwd", 0o644)
        script = 'mount --bind "$0" /etc/passwd && exec "$FARPAGED" --check --config "$1"'
        done = subprocess.run(["unshare", "-m", "sh", "-c", script, users, config], capture_output=True, text=True, timeout=20, check=False)
        if "mount" in done.stderr or "unshare" in done.stderr:
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 1)
        self.assertIn("the user farpage may not read it", done.stderr)

    @unittest.skipUnless(os.geteuid() == 0, "takes a mount namespace")
    def test_a_user_namespace_without_the_user(self):
        """Root there can't become the user farpage: it checks for itself, unless --user names the
        user."""
        config = self.write("listen: unix:DIR/s\n" + POOL)
        with open("/etc/passwd", encoding="utf-8") as f:
            users = self.write(f.read() + "farpage:x:64999:64999::/:/bin/false\n", "passwd", 0o644)
        script = 'mount --bind "$0" /etc/passwd || exit 77; exec "$FARPAGED" --check --config "$@"'
        for words, status, says in (([], 0, "checked for the present user: this process cannot become the user farpage: "),
                                    (["--user", "farpage"], 2, "--user farpage: this process cannot become that user: ")):
            done = subprocess.run(["unshare", "-r", "-m", "sh", "-c", script, users, config, *words], capture_output=True, text=True,
                                  timeout=20, check=False)
            if done.returncode == 77 or "unshare" in done.stderr:
                self.skipTest(done.stderr.strip())
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn(says, done.stderr)
            self.assertEqual(done.stdout, "" if status else f"{config}: valid\n")

    def test_who_may_check_for_another(self):
        config = self.write("listen: unix:DIR/s\n" + POOL)
        self.assertEqual(farpaged("--check", "--config", config, "--user", "no-such-user")[0], 2)
        self.assertIn("--user is for --check", farpaged("--config", config, "--user", "root")[2])

    def test_pools_that_the_host_has_not(self):
        text = "listen: unix:DIR/s\npools: [ { name: a, size: 32T } ]\n"
        status, out, err = farpaged(*CHECK, "--config", self.write(text))
        self.assertEqual(status, 0)
        self.assertIn("valid", out)
        self.assertIn("pools without preallocate need 32.0 TiB, the node can have only", err)
        status, out, err = farpaged(*CHECK, "--config", self.write(text.replace("32T", "32T, preallocate: true")))
        self.assertEqual((status, out), (1, ""))
        self.assertIn("pools with preallocate need 32.0 TiB, and this machine has ", err)
        status, out, err = farpaged(*CHECK, "--config", self.write(text.replace("32T", "32T, backing: hugetlb")))
        self.assertEqual(status, 0)
        self.assertIn("pools of hugetlb need 16777216 huge pages, this machine has ", err)
        odd = self.write(text.replace("32T", "33558528, backing: hugetlb"))
        status, out, err = farpaged(*CHECK, "--config", odd)
        self.assertEqual((status, out), (1, ""), err)
        self.assertIn("size must be a multiple of the huge page size", err)

    def test_addresses_that_the_machine_has_not(self):
        self.write("0123456789abcdef\n", "secret", 0o600)
        config = self.write("listen: [ 'tcp://127.0.0.1:1', 'tcp://192.0.2.1:7460' ]\nauth: { secret_file: DIR/secret }\n" + POOL)
        status, _, err = farpaged(*CHECK, "--config", config)
        self.assertEqual(status, 0, err)
        self.assertIn("listen[1]: this machine does not have the address of 'tcp://192.0.2.1:7460' now", err)
        self.assertNotIn("listen[0]", err)

    def test_private_pool_that_the_host_has_not(self):
        with Farpaged(args=["--private", "--listen", f"unix:@farpaged-test-pool-{os.getpid()}", "--pool-size", "32T"]) as node:
            node.await_log("the pool of 32.0 TiB is larger than this machine's memory and swap")

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
        for option in "--version", "-V":
            self.assertEqual(farpaged(option)[:2], (0, "farpaged 0.1.0\n"))
        self.assertEqual(farpaged("-h"), farpaged("--help"))
        self.assertIn("--config FILE", farpaged("--help")[1])

    def test_wrong(self):
        for args in ([], ["--nonsense"], ["--config"], ["--config", "/x", "more"], ["--private"], ["--check"],
                     ["--private", "--listen", "unix:@x"], ["--private", "--listen", "unix:@x", "--pool-size", "0"],
                     ["--private", "--listen", "unix:@x", "--pool-size", "9E"], ["--config", "/x", "--listen", "unix:@x"],
                     ["--config", "/x", "--ready-fd", "one"], ["--config", "/x", "--link-delay", "1"],
                     ["--private", "--listen", "unix:@x", "--pool-size", "1G", "--link-delay", "10001"]):
            with self.subTest(args):
                status, _, err = farpaged(*args)
                self.assertEqual(status, 2)
                self.assertIn("--help", err)
        for args, said in ((["--config="], "--config: its value is empty"), (["--ready-fd="], "--ready-fd: its value is empty"),
                           (["--pool-size="], "--pool-size: its value is empty"), (["--config"], "--config: its value is missing"),
                           (["--chek"], "--chek: there is no such option"), (["--check=1"], "--check=1: this option takes no value"),
                           (["-xh"], "-x: there is no such option"), (["-x=1"], "-x: there is no such option"),
                           (["--c"], "--c: several options begin like this"),
                           (["--ready-fd", "77"], "--ready-fd 77: this descriptor is not open"),
                           (["--pool-size", "999T"], "--pool-size 999T: it must be from 1M to 64T"),
                           (["--pool-size", "lots"], "--pool-size lots: not a size such as 512M")):
            with self.subTest(args):
                self.assertIn(said, farpaged(*args)[2])
        status, _, err = farpaged("--private", "--listen", "tcp://0.0.0.0:0", "--pool-size", "1G")
        self.assertEqual(status, 1)
        self.assertIn("other machines", err)


class Times(unittest.TestCase):
    """A line in a file or on a terminal has the time of its event. The journal notes it by
    itself."""

    TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} farpaged: "

    def test_file(self):
        with Farpaged(BOTH) as node:
            for line in node.log().splitlines():
                self.assertRegex(line, "^" + self.TIME)

    def test_terminal(self):
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        with tempfile.TemporaryDirectory(prefix="farpaged-test.") as folder:
            config = os.path.join(folder, "farpaged.yaml")
            with open(config, "w", encoding="utf-8") as f:
                f.write(f"listen: unix:{folder}/s\n" + POOL)
            node = subprocess.Popen([os.environ["FARPAGED"], "--config", config], stderr=theirs)
            os.close(theirs)
            said = b""
            while b"serves" not in said:
                said += os.read(ours, 4096)
            node.terminate()
            self.assertEqual(node.wait(20), 0)
        self.assertTrue(re.match(self.TIME, said.decode()), said)

    def test_pipe(self):
        """Who reads a pipe notes the time as it likes."""
        with tempfile.TemporaryDirectory(prefix="farpaged-test.") as folder:
            config = os.path.join(folder, "farpaged.yaml")
            with open(config, "w", encoding="utf-8") as f:
                f.write(f"listen: unix:{folder}/s\n" + POOL)
            node = subprocess.Popen([os.environ["FARPAGED"], "--config", config], stderr=subprocess.PIPE)
            with node.stderr:
                self.assertTrue(node.stderr.readline().startswith(b"farpaged: "))
                node.terminate()
                self.assertEqual(node.wait(20), 0)


if __name__ == "__main__":
    main()
