"""farpage node: what a memory node says of itself, as it says it and for a person; and asking it to
drain."""
import json
import os
import socket

import farapp
import farpaged
import terminal
import toolcase

CONFIG = """
listen: [ tcp://127.0.0.1:0, unix:{socket} ]
pools:
  - {{ name: fast, size: 64M }}
  - {{ name: slow, size: 32M, backing: anonymous }}
"""


class Status(toolcase.ToolCase):
    def setUp(self):
        super().setUp()
        os.environ["FARPAGED"] = os.path.join(farapp.build, "daemon", "farpaged")
        self.socket = self.path("socket")
        self.node = farpaged.Farpaged(CONFIG.format(socket=self.socket))
        self.addCleanup(self.node.__exit__, None, None, None)
        self.tcp = next(url for url in self.node.urls if url.startswith("tcp://"))
        self.port = int(self.tcp.rsplit(":", 1)[1])

    def status(self, url, *args):
        status, out, err = self.farpage("node", "status", url, *args)
        self.assertEqual((status, err), (0, ""))
        return out.decode()

    def sessions(self, name, n):
        """Opens n sessions, whose names are name and a number."""
        sessions = [self.node.session(name=f"{name} {i}") for i in range(n)]
        for session in sessions:
            self.addCleanup(session.close)
        return sessions

    def test_json(self):
        said = json.loads(self.status(self.tcp, "--json"))
        self.assertEqual([pool["name"] for pool in said["pools"]], ["fast", "slow"])
        self.assertEqual((said["sessions"], said["operators"]), ([], 1))  # the command itself
        for part in ("version", "state", "counters"):
            self.assertIn(part, said)

    def test_text(self):
        client = self.start("bench", "link", self.tcp, "--seconds", "600", "--op", "read", stdout=-3, stderr=-3)
        while len(json.loads(self.status(self.tcp, "--json"))["sessions"]) < 1 or "8.0 MiB" not in (
                text := self.status(self.tcp)):
            self.assertIsNone(client.poll())
        client.kill()
        lines = text.splitlines()
        self.assertEqual(lines[0], "serving: 8.0 MiB of 96.0 MiB leased, 88.0 MiB free; 1 session")
        self.assertRegex(lines[1], r"^version \S+, pid [0-9]+, uptime .*, state serving")
        at = lines.index("pools:")
        self.assertEqual(lines[at + 1].split()[:2], ["name", "backing"])
        self.assertEqual([line.split()[0] for line in lines[at + 2:at + 4]], ["fast", "slow"])
        self.assertEqual(lines[at + 1].index("backing"), lines[at + 2].index("memfd"))  # aligned
        self.assertIn("64.0 MiB", lines[at + 2])
        self.assertNotIn("-1", lines[at + 2])  # bound to no NUMA node
        self.assertRegex(text, r"(?ms)^counters: .*read .*^clients:")
        at = lines.index("sessions:")
        self.assertIn("farpage[%d]" % client.pid, lines[at + 2])
        self.assertIn("8.0 MiB", lines[at + 2])
        self.assertEqual(len(lines[at + 3:]), 1, text)  # a word about what is left out
        self.assertFalse(any(mark in text for mark in '{}"'))

    def test_many_sessions(self):
        """80 columns and ten sessions, but all if they are asked for; JSON has them anyway."""
        sessions = self.sessions("client", 30)
        sessions[17].lease(1 << 20)
        text = self.status(self.tcp)
        self.assertLessEqual(max(map(len, text.splitlines())), 80, text)
        self.assertIn("30 sessions", text.splitlines()[0])
        self.assertRegex(text, r"(?m)^sessions:\n.*\n.* client 17 .* 1\.0 MiB ")
        self.assertIn("\n  and 20 more\n", text)
        self.assertIn("--sessions shows all", text.splitlines()[-1])
        text = self.status(self.tcp, "--sessions")
        for i in range(30):
            self.assertIn(f"  client {i}  ", text)
        for word in ("adopted leases", "queue pairs", "peer"):
            self.assertIn(word, text)
        self.assertNotIn("shortened", text)
        self.assertEqual(len(json.loads(self.status(self.tcp, "--json"))["sessions"]), 30)
        self.assertFails(self.farpage("node", "drain", self.tcp, "--sessions"), 2, "--sessions", "status")

    def test_terminals(self):
        """No line wraps, and a wide one has room for more columns."""
        self.sessions("a client with a long name", 3)
        for columns, rows, shows in ((80, 24, "read"), (60, 15, "state"), (200, 50, "peer")):
            with terminal.Terminal([toolcase.FARPAGE, "node", "status", self.tcp], columns, rows, self.env) as window:
                window.wait_for_text("ended with 0")
                self.assertFalse(window.wraps(), window.screen())
                lines = window.history()
                self.assertIn(shows, lines[lines.index("sessions:") + 1].split(), lines)
        self.sessions("another client", 27)
        for columns, rows in ((80, 24), (60, 15)):
            command = ["sh", "-c", '"$@"; printf "\\n$ "; read key', "sh", toolcase.FARPAGE, "node", "status", self.tcp]
            with terminal.Terminal(command, columns, rows, self.env) as window:
                lines = window.wait_for(lambda lines: "$" in lines)
                self.assertTrue(any(line.startswith("serving: ") for line in lines), lines)
                self.assertFalse(window.wraps(), lines)
        with terminal.Terminal([toolcase.FARPAGE, "node", "status", self.tcp, "--sessions"], env=self.env) as window:
            window.wait_for_text("ended with 0")
            self.assertTrue(window.wraps())

    def test_urls(self):
        """Every way leads to the same node, and a dead way to the next."""
        pid = json.loads(self.status(self.tcp, "--json"))["pid"]
        for url in (f"shm:{self.socket}", f"auto://127.0.0.1:{self.port}", f"tcp://127.0.0.2,127.0.0.1:{self.port}",
                    f"auto://127.0.0.2,127.0.0.1:{self.port}"):
            self.assertEqual(json.loads(self.status(url, "--json"))["pid"], pid, url)

    def test_drain(self):
        status, out, err = self.farpage("node", "drain", f"shm:{self.socket}", "--json")
        self.assertEqual((status, err, json.loads(out)["leased_bytes"]), (0, "", 0))
        self.assertEqual(json.loads(self.status(self.tcp, "--json"))["state"], "draining")
        self.assertFails(self.farpage("bench", "link", self.tcp), 1, self.tcp)
        self.assertIn("no further leases", self.farpage("node", "drain", f"shm:{self.socket}")[1].decode())
        self.assertIn("granted again", self.farpage("node", "undrain", f"shm:{self.socket}")[1].decode())
        self.assertEqual(json.loads(self.status(self.tcp, "--json"))["state"], "serving")
        status, out, err = self.farpage("bench", "link", self.tcp, "--seconds", "0.1")
        self.assertEqual(status, 0, err)

    def test_who_may_not_drain(self):
        """Over TCP nobody is known, as this node has no secret."""
        for command in "drain", "undrain":
            self.assertFails(self.farpage("node", command, self.tcp), 1, "the right admin", "UNIX socket")
        self.assertEqual(json.loads(self.status(self.tcp, "--json"))["state"], "serving")

    def test_unreachable(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            for url in (f"tcp://127.0.0.1:{port}", f"auto://127.0.0.1:{port}", f"tcp://127.0.0.1,127.0.0.2:{port}"):
                self.assertFails(self.farpage("node", "status", url), 1, url, "nothing listens there")
        for url in "nonsense", f"127.0.0.1:{port}", "http://127.0.0.1", "mem1":
            self.assertFails(self.farpage("node", "status", url), 1, f"{url}: not a node URL", "rdma://")
        self.assertFails(self.farpage("node", "status", "tcp://no-such-host.invalid"), 1, "cannot be resolved", "DNS")
        self.assertFails(self.farpage("node", "status", "shm:/" + "x" * 120), 1, "may have 107 bytes")
        self.assertFails(self.farpage("node", "status", "tcp://" + ",".join(["h"] * 9)), 1, "tcp://h,h")

    def test_usage(self):
        for args in ((), ("status",), ("drain",), ("restart", self.tcp), ("status", self.tcp, "more")):
            self.assertFails(self.farpage("node", *args), 2, "usage: farpage node")
        self.assertFails(self.farpage("node", "status"), 2, "and the URL of a node")


class Secret(toolcase.ToolCase):
    """It comes from the option, or the environment, or the settings' file, as for a program."""

    TEXT = "a secret of this test alone"

    def setUp(self):
        super().setUp()
        os.environ["FARPAGED"] = os.path.join(farapp.build, "daemon", "farpaged")
        self.file = farpaged.secret_file(self.TEXT)
        self.node = farpaged.Farpaged(f"listen: tcp://127.0.0.1:0\npools: [ {{ name: main, size: 8M }} ]\n" + farpaged.auth(self.TEXT))
        self.addCleanup(self.node.__exit__, None, None, None)

    def status(self, *args, **env):
        return self.farpage("node", "status", self.node.urls[0], "--json", *args, env=env)

    def test_where_it_comes_from(self):
        wrong = farpaged.secret_file("some other secret")
        settings = self.path("settings.yaml", f"secret_file: {self.file}\n")
        self.assertFails(self.status(), 1, "the node wants a secret", "--secret-file")
        self.assertFails(self.status(FARPAGE_SECRET_FILE=wrong), 1, "does not know this secret")
        for outcome in (self.status("--secret-file", self.file), self.status(FARPAGE_SECRET_FILE=self.file), self.status(FARPAGE_CONFIG=settings),
                        self.status(FARPAGE_CONFIG=settings, FARPAGE_SECRET_FILE=self.file),
                        self.status("--secret-file", self.file, FARPAGE_SECRET_FILE=wrong)):
            self.assertEqual(outcome[::2], (0, ""))
        self.assertFails(self.status(FARPAGE_CONFIG=settings, FARPAGE_SECRET_FILE=wrong), 1, "does not know this secret")

    def test_one_rule(self):
        """A file that farpaged refuses, each command refuses, and says the same."""
        readable = self.path("readable", self.TEXT + "\n")
        os.chmod(readable, 0o644)
        short = self.path("short", "too short\n")
        os.chmod(short, 0o600)
        for path, said in (readable, "other users may read or write it: chmod o-rw"), (short, "16 to 1024 bytes"), (self.dir, "not a regular file"):
            self.assertFails(self.status("--secret-file", path), 2, f"--secret-file {path}: ", said)
            self.assertFails(self.status(FARPAGE_SECRET_FILE=path), 2, f"FARPAGE_SECRET_FILE: {path}: ", said)
            self.assertFails(self.farpage("bench", "link", self.node.urls[0], "--secret-file", path), 2, said)
        self.assertEqual(self.farpage("bench", "link", self.node.urls[0], "--seconds", "0.1", "--op", "read", "--sizes", "4K", "--depths", "1",
                                      env={"FARPAGE_SECRET_FILE": self.file})[0], 0)


class Outline(toolcase.ToolCase):
    """The text form fits what a node sends, whatever it is: a node of the test's own says it."""

    def shown(self, text, *args):
        node = Speaker(self, text)
        status, out, err = self.farpage("node", "status", node.url, *args)
        self.assertEqual((status, err), (0, ""))
        return out.decode()

    def test_more_and_less_than_we_know(self):
        text = self.shown('{"state":"serving","news":[1,"two",null],"devices":[{"name":"rxe0","mtu":4096},'
                          '{"name":"mlx5_0","active":true,"ports":[{"n":1},{"n":2}],"read_bytes":2048}],'
                          '"sessions":[],"counters":{"reads":7,"idle_ms":1500,"by":[{"op":"a"}],"to":{"x":1}}}')
        self.assertEqual(text.splitlines(), [
            "state serving",
            "news: 1,two,-",
            "devices:",
            "  name    mtu   active  ports    read",
            "  rxe0    4096  -       -        -",
            "  mlx5_0  -     yes     ...,...  2.0 KiB",
            "sessions: none",
            "counters: reads 7, idle 1.50 s, to x=1",
            "counters by:",
            "  op",
            "  a",
        ])

    def test_control_characters_stay_out_of_the_terminal(self):
        self.assertEqual(self.shown('{"name":"a\\u001b[31mb\\u0041\\u20ac\\n"}'), "name a?[31mbA€?\n")
        raw = '{"name":\n"\x1b[31m\x07\u009b€'  # no JSON: shown as it is, without control characters
        for args in ((), ("--json",)):
            self.assertEqual(self.shown(raw, *args), '{"name":\n" [31m   €\n', args)

    def test_what_is_no_object_is_shown_as_it_is(self):
        for text in ("[1,2]", '{"open":', "{}}", '{"a":tru}', "[" * 40 + "]" * 40, '{"a":"\\x"}'):
            self.assertEqual(self.shown(text), text + "\n")


class Speaker:
    """Speaks the protocol as far as one STATUS, whose answer is the given text."""

    def __init__(self, case, text):
        self.text = text.encode()
        self.server = socket.create_server(("127.0.0.1", 0))
        case.addCleanup(self.server.close)
        self.url = "tcp://127.0.0.1:%d" % self.server.getsockname()[1]
        import threading
        thread = threading.Thread(target=self._serve)
        thread.start()
        case.addCleanup(thread.join)
        case.addCleanup(self.server.shutdown, socket.SHUT_RDWR)

    def _serve(self):
        try:
            peer, _ = self.server.accept()
        except OSError:
            return
        peer.settimeout(toolcase.TIMEOUT)
        with peer, peer.makefile("rwb") as stream:
            while len(head := stream.read(farpaged.HEADER.size)) == farpaged.HEADER.size:
                _, _, kind, _, length, _, tag = farpaged.HEADER.unpack(head)
                stream.read(length)
                answer = {
                    farpaged.HELLO: bytes(32) + bytes([farpaged.VERSION, 0, 0, 0]) + bytes(4),
                    farpaged.AUTH: self._welcome(),
                    farpaged.STATUS: self.text,
                    farpaged.BYE: b"",
                }[kind]
                stream.write(farpaged.HEADER.pack(farpaged.MAGIC, 1, kind + 1, 0, len(answer), 0, tag) + answer)
                stream.flush()

    @staticmethod
    def _welcome():
        """A WELCOME for an operator's session: number 1, the least limits, no proof, no grace, no
        idle limit."""
        limits = (4195336).to_bytes(4, "little") + (1).to_bytes(4, "little")
        return bytes([farpaged.VERSION, 0, 0, 0, farpaged.OPERATOR, 0, 0, 0]) + (1).to_bytes(8, "little") + bytes(range(16)) + limits + bytes(40)


if __name__ == "__main__":
    terminal.need_tmux()
    toolcase.main(needs_userfaultfd=False)
