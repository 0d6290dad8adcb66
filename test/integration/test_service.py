"""Farpage on a host with systemd: farpaged.service as it is installed, and redis-server.service
with far memory by the drop-in of doc/operations.md. What the test does to the host, it reads there.

    FARPAGE_BUILD=build test/integration/test_service.py SOURCES
"""
import hashlib
import json
import os
import re
import sys
import time
import unittest

import farapp
import redisapp
import servicehost

SOURCES = os.path.abspath(sys.argv[1])
with open(os.path.join(SOURCES, "doc/operations.md"), encoding="utf-8") as document:
    DOCUMENT = document.read()
MAKE = f"make -C {SOURCES} BUILD={farapp.build}"
DROP_IN = "/etc/systemd/system/redis-server.service.d/farpage.conf"
CONFIG = "/etc/farpage/farpaged.yaml"
NODE = ["shm:/run/farpaged/socket", "--secret-file", "/etc/farpage/secret"]
UNIT = "/lib/systemd/system/redis-server.service"
LOCAL_MIB = 16
N_VALUES = 600
VALUE_BYTES = 100_000


def section(title):
    """The blocks of a section of the document: their language and text."""
    text = DOCUMENT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def keys_of(text):
    """The keys of a unit, and of the environment those of the variables."""
    return set(re.findall(r"^(?:Environment=)?(\w+)=", text, re.MULTILINE))


def value(number):
    """A value that differs from all others, and can't be compressed."""
    return hashlib.shake_128(str(number).encode()).digest(VALUE_BYTES)


class Service(unittest.TestCase):
    """One host; the tests build upon each other, in the order of their names."""

    @classmethod
    def setUpClass(cls):
        cls.host = servicehost.ServiceHost(farapp.build, SOURCES)
        cls.addClassCleanup(cls.host.close)
        cls.sh(f"systemctl start systemd-journald; {SOURCES}/scripts/tell_host.sh")  # what make install does at its end
        cls.sh("chgrp farpage /dev/userfaultfd; chmod 660 /dev/userfaultfd")  # what udev does by our rule
        cls.sh("echo 'unixsocket /run/redis/redis.sock' >>/etc/redis/redis.conf")

    @classmethod
    def sh(cls, text):
        """Runs lines that have to succeed; returns what they say."""
        done = cls.host.run("sh", "-ec", text)
        if done.returncode:
            raise AssertionError(f"{text}\n{done.stdout}{done.stderr}\n{cls.host.run('journalctl', '-n', '30', '--no-pager').stdout}")
        return done.stdout

    def show(self, unit, what):
        return self.sh(f"systemctl show -P {what} {unit}").strip()

    def says(self, unit, words, since):
        """Waits until the unit's log has these words."""
        end = time.monotonic() + servicehost.TIMEOUT_S
        while words not in (log := self.sh(f"journalctl --no-pager -q -o cat -u {unit} --after-cursor='{since}'")):
            self.assertLess(time.monotonic(), end, f"{words!r} is not in: {log}")
            time.sleep(0.05)

    def now(self):
        """Where the log ends."""
        return re.search(r"-- cursor: (.*)", self.sh("journalctl -q -n 1 --show-cursor -o cat")).group(1)

    def write(self, path, text):
        with open(self.host.path(path), "w", encoding="utf-8") as out:
            out.write(text)

    def write_drop_in(self, text):
        self.write(DROP_IN, text)
        self.sh("systemctl daemon-reload; systemctl stop redis-server; systemctl reset-failed")

    def drop_in(self):
        return next(text for language, text in section("Give a service far memory") if language == "ini")

    def redis_pid(self):
        return int(self.show("redis-server", "MainPID"))

    def has_far_memory(self):
        with open(self.host.path(f"/proc/{self.redis_pid()}/maps"), encoding="utf-8") as maps:
            return "libfarpage-preload.so" in maps.read()

    def redis(self):
        connection = redisapp.Connection(self.host.path("/run/redis/redis.sock"))
        self.addCleanup(connection.close)
        return connection

    def programs(self):
        return json.loads(self.sh("farpage ps --json"))

    def node(self, *words):
        done = self.host.run("farpage", "node", *words, *NODE, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    # ---- the tests ----

    def test_1_a_node_with_a_secret(self):
        """It served without one before."""
        (_, make), (_, auth), (_, start) = section("Make a secret")
        self.sh(f"systemctl start farpaged; farpage node status {NODE[0]}")
        self.sh(f"cat >>{CONFIG} <<'END'\n{auth}END")
        self.sh(make.replace("-o farpage", "-o root"))  # the wrong owner
        self.assertIn("/etc/farpage/secret", self.host.run("sh", "-ec", start).stderr)
        self.sh(make + start)
        self.assertEqual(self.show("farpaged", "ActiveState"), "active")
        self.assertIn("wants a secret", self.host.run("farpage", "node", "status", NODE[0]).stderr)
        self.assertEqual(os.stat(self.host.path("/run/farpaged")).st_mode & 0o777, 0o750)

        since = self.now()
        self.sh("chown root /etc/farpage/secret")
        self.assertNotEqual(self.host.run("systemctl", "restart", "farpaged").returncode, 0)
        self.says("farpaged", "/etc/farpage/secret", since)
        self.sh("systemctl stop farpaged; systemctl reset-failed; chown farpage /etc/farpage/secret; systemctl start farpaged")
        self.assertIn("0 sessions", self.show("farpaged", "StatusText"))

    def test_2_a_service_with_far_memory(self):
        (_, environment), _, (_, start) = section("Give a service far memory")
        self.assertIn("--local-memory 1G", environment)
        self.sh(environment.replace("1G", f"{LOCAL_MIB}M"))
        self.write_drop_in(self.drop_in() + "Environment=FARPAGE_LOG=info\n")
        since = self.now()
        listed = self.sh(start)
        self.assertIn("redis-server", listed)
        self.assertTrue(self.has_far_memory())
        self.assertNotIn("user-mode", self.sh(f"journalctl -q -o cat -u redis-server --after-cursor='{since}'"))

    def test_3_each_line_of_the_drop_in(self):
        """Without the line, what the document says happens."""
        tried = {
            "SupplementaryGroups": "this user may not connect",
            "ExecPaths": "cannot be preloaded",
            "SystemCallFilter": "status=31/SYS",
            "BindPaths": "only user-mode faults are permitted",
            "DeviceAllow": "only user-mode faults are permitted",
            "FARPAGE_RUNTIME_DIR": None,
        }
        self.assertEqual(keys_of(self.drop_in()) - set(tried), {"Wants", "After", "EnvironmentFile", "LimitMEMLOCK"})
        for key, says in tried.items():
            with self.subTest(without=key):
                lines = [line for line in self.drop_in().splitlines() if key not in keys_of(line)]
                self.write_drop_in("\n".join([*lines, "Environment=FARPAGE_LOG=info", ""]))
                since = self.now()
                self.host.run("systemctl", "start", "redis-server")
                if says:
                    self.says("redis-server", says, since)
                else:
                    self.assertTrue(os.listdir(self.host.path("/var/lib/redis/.cache/farpage")))

        with self.subTest("the secret of another user"):
            self.write_drop_in(self.drop_in())
            self.sh("chown root /etc/farpage/redis-secret")
            since = self.now()
            self.host.run("systemctl", "start", "redis-server")
            self.says("redis-server", "/etc/farpage/redis-secret", since)
            self.sh("chown redis /etc/farpage/redis-secret")

    def test_4_more_data_than_local_memory(self):
        self.write_drop_in(self.drop_in())
        self.sh("systemctl start redis-server")
        connection = self.redis()
        for i in range(N_VALUES):
            self.assertEqual(connection.ask("SET", i, value(i)), b"OK")
        program, = self.programs()
        self.assertEqual((program["command"], program["pid"]), ("redis-server", self.redis_pid()))
        self.assertLessEqual(program["resident_bytes"], LOCAL_MIB << 20)
        self.assertGreater(program["remote_bytes"], N_VALUES * VALUE_BYTES / 2)
        self.check_values(connection)
        self.assertIn(connection.ask("BGSAVE"), [b"Background saving started"])
        end = time.monotonic() + servicehost.TIMEOUT_S
        while (info := connection.info("persistence"))["rdb_bgsave_in_progress"] == "1":
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        self.assertEqual(info["rdb_last_bgsave_status"], "ok")

    def check_values(self, connection):
        for i in range(N_VALUES):
            self.assertEqual(connection.ask("GET", i), value(i))

    def test_5_reload_and_restart_of_the_node(self):
        redis, node = self.redis_pid(), self.show("farpaged", "MainPID")
        self.sh(f"sed -i 's/max_sessions: 4096/max_sessions: 7/' {CONFIG}")
        since = self.now()
        self.sh("systemctl reload farpaged")
        self.says("farpaged", "read again", since)
        self.assertEqual(self.show("farpaged", "MainPID"), node)
        self.check_values(self.redis())
        self.sh("systemctl restart farpaged")
        self.assertNotEqual(self.show("farpaged", "MainPID"), node)
        self.check_values(self.redis())
        self.assertEqual(self.redis_pid(), redis)

    def test_6_a_node_out_of_service(self):
        self.node("drain")
        self.assertEqual(self.node("status")["state"], "draining")
        self.await_true(lambda: self.show("farpaged", "StatusText").startswith("draining: "))
        self.check_values(self.redis())
        self.sh("systemctl stop redis-server")
        self.await_empty()
        stop, start = (re.search(f"`(systemctl {verb} [^`]*farpaged)`", DOCUMENT)[1] for verb in ("mask", "unmask"))
        self.sh(stop)
        self.host.run("systemctl", "start", "redis-server")  # wants the node
        self.assertEqual(self.show("farpaged", "ActiveState"), "inactive")
        self.sh(f"systemctl stop redis-server; systemctl reset-failed; {start}; systemctl start farpaged")

    def await_empty(self):
        self.await_true(lambda: not any(session["leased_bytes"] for session in self.node("status")["sessions"]))

    def await_true(self, condition):
        end = time.monotonic() + servicehost.TIMEOUT_S
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def test_7_a_unit_without_restrictions(self):
        """Takes the drop-in without the lines that the document keeps for restricted units."""
        rows = DOCUMENT.split("| line | only if the unit has |\n")[1].split("\n\n")[0]
        left_out = set(re.findall(r"`(\w+)=`", "".join(row.split("|")[1] for row in rows.splitlines())))
        lines = [line for line in self.drop_in().splitlines() if not keys_of(line) & left_out]
        self.assertEqual(len(lines), len(self.drop_in().splitlines()) - 5)
        own = ["User=redis", "RuntimeDirectory=plain", "ExecStart=/bin/sleep infinity", ""]
        self.write("/run/systemd/system/plain.service", "\n".join(lines + own).replace("/run/redis", "/run/plain"))
        self.sh("systemctl daemon-reload; systemctl start plain")
        end = time.monotonic() + servicehost.TIMEOUT_S
        while not (programs := self.programs()):  # systemd does not wait until the program runs
            self.assertLess(time.monotonic(), end)
        program, = programs
        self.assertEqual(program["pid"], int(self.show("plain", "MainPID")))

    def test_8_removal(self):
        (_, services), (_, node) = section("Remove everything")
        self.assertIn("make uninstall\n", node)
        self.sh(services)
        self.assertFalse(self.has_far_memory())
        refused = self.host.run("sh", "-c", f"{MAKE} uninstall")
        self.assertIn("the service farpaged is in use", refused.stderr)
        self.sh(node.replace("make uninstall\n", f"{MAKE} uninstall\n"))
        self.assertEqual(self.show("farpaged", "LoadState"), "not-found")
        for path in ("/usr/local/bin/farpage", "/etc/farpage", "/run/farpage", "/run/farpaged", os.path.dirname(DROP_IN)):
            self.assertFalse(os.path.exists(self.host.path(path)), path)
        self.assertNotIn("farpage", self.sh("getent passwd"))


if __name__ == "__main__":
    if reason := servicehost.why_not() or (None if os.path.exists(UNIT) else "redis-server is not installed"):
        farapp.skip(reason)
    unittest.main(verbosity=2, argv=sys.argv[:1], failfast=True)
