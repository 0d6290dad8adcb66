"""farpage node: what a memory node says of itself, as it says it and for a person; and asking it to
drain."""
import json
import os
import socket

import farapp
import farpaged
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

    def test_json(self):
        said = json.loads(self.status(self.tcp, "--json"))
        self.assertEqual([pool["name"] for pool in said["pools"]], ["fast", "slow"])
        self.assertEqual(len(said["sessions"]), 1)  # that of the command itself
        for part in ("version", "state", "counters"):
            self.assertIn(part, said)

    def test_text(self):
        client = self.start("bench", "link", self.tcp, "--seconds", "600", "--op", "read", stdout=-3, stderr=-3)
        while len(json.loads(self.status(self.tcp, "--json"))["sessions"]) < 2 or "8.0 MiB" not in (
                text := self.status(self.tcp)):
            self.assertIsNone(client.poll())
        client.kill()
        lines = text.splitlines()
        self.assertRegex(lines[0], r"^version \S+, pid [0-9]+, uptime .*, state serving")
        at = lines.index("pools:")
        self.assertEqual(lines[at + 1].split()[:2], ["name", "backing"])
        self.assertEqual([line.split()[0] for line in lines[at + 2:at + 4]], ["fast", "slow"])
        self.assertEqual(lines[at + 1].index("backing"), lines[at + 2].index("memfd"))  # aligned
        self.assertIn("64.0 MiB", lines[at + 2])
        self.assertNotIn("-1", lines[at + 2])  # bound to no NUMA node
        self.assertRegex(text, r"(?m)^counters: .*read ")
        at = lines.index("sessions:")
        self.assertEqual(len(lines[at + 2:]), 2)
        self.assertTrue(any("farpage[%d]" % client.pid in line and "8.0 MiB" in line for line in lines[at + 2:]), text)
        self.assertFalse(any(mark in text for mark in '{}"'))

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
            self.assertFails(self.farpage("node", command, self.tcp), 1, "not permitted", "UNIX socket")
        self.assertEqual(json.loads(self.status(self.tcp, "--json"))["state"], "serving")

    def test_unreachable(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            for url in (f"tcp://127.0.0.1:{port}", f"auto://127.0.0.1:{port}", f"tcp://127.0.0.1,127.0.0.2:{port}"):
                self.assertFails(self.farpage("node", "status", url), 1, url, "nothing listens there")
        self.assertFails(self.farpage("node", "status", "nonsense"), 1, "URL", "rdma://")
        self.assertFails(self.farpage("node", "status", "tcp://" + ",".join(["h"] * 9)), 1, "tcp://h,h")

    def test_usage(self):
        for args in ((), ("status",), ("drain",), ("restart", self.tcp), ("status", self.tcp, "more")):
            self.assertFails(self.farpage("node", *args), 2, "usage: farpage node")
        self.assertFails(self.farpage("node", "status"), 2, "and the URL of a node")


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
        raw = '{"name":\n"\x1b[31m\x07'  # no JSON: shown as it is but for these
        for args in ((), ("--json",)):
            self.assertEqual(self.shown(raw, *args), '{"name":\n" [31m \n', args)

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
                    farpaged.HELLO: bytes(32) + bytes([1, 0, 0, 0]) + bytes(4),
                    farpaged.AUTH: self._welcome(),
                    farpaged.STATUS: self.text,
                    farpaged.BYE: b"",
                }[kind]
                stream.write(farpaged.HEADER.pack(farpaged.MAGIC, 1, kind + 1, 0, len(answer), 0, tag) + answer)
                stream.flush()

    @staticmethod
    def _welcome():
        """A session of number 1, the least limits, no proof, no grace, no idle limit."""
        limits = (4195336).to_bytes(4, "little") + (1).to_bytes(4, "little")
        return bytes([1, 0, 0, 0]) + bytes(4) + (1).to_bytes(8, "little") + bytes(range(16)) + limits + bytes(40)


if __name__ == "__main__":
    toolcase.main(needs_userfaultfd=False)
