"""What `farpage ps`, `top` and `node` print with --json is what farpage-json(5) lists: each field,
with its type, and no other. So no field goes or changes unnoticed. test_tools_apps.py does the same
for `farpage bench apps`.
"""
import json
import os
import re
import subprocess
import sys

import farapp
import farpaged
import jsonpage
import toolcase

SOURCE = sys.argv.pop()  # of the node's status
PAGE = sys.argv.pop()
STATSWRITER = os.environ["FARPAGE_STATSWRITER"]
UNITS = ("_bytes", "_ns", "_ms", "_s")
# names without a unit: counts, and numbers that have no unit
PLAIN = re.compile(r"(pid|uid|id|parent|numa_node|far_start|far_end|failures|reconnects|resumes|lost_pages|connections|strangers|"
                   r"listeners|listeners_down|queue_pairs|regions|rejected|denied|leases|adopted_leases|links|reads|writes|"
                   r"refused|evicted|sessions|sessions_\w+|clients_omitted|operators|count|leases_refused|seed|rounds|killed_rounds|"
                   r"workloads|local_percent|seconds|setup_seconds|median|min|max|slowdown|speedup_to_zram)$")
# What this machine cannot show, because RDMA needs devices: test_fields_of_devices reads it from
# the source.
UNSEEN = ("rdma",)
PRINTED = {r"\"": "text", "%s": "true or false", "%u": "number", "%llu": "number", "{": "object", "[": "list of objects"}
CONFIG = """
listen: [ unix:{socket} ]
pools: [ {{ name: main, size: 64M }} ]
shards: 2
"""


class Json(toolcase.ToolCase):
    def setUp(self):
        super().setUp()
        os.makedirs(self.runtime, mode=0o700)
        self.page = jsonpage.documented(PAGE)

    def program(self):
        process = subprocess.Popen([STATSWRITER, os.path.join(self.runtime, "%p.stats")], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE)
        self.addCleanup(self._end, process)
        self.line(process)
        return process

    def json(self, *args):
        status, out, err = self.farpage(*args, "--json")
        self.assertEqual((status, err), (0, ""))
        return json.loads(out)

    def assertDocumented(self, value, wanted, unseen=()):
        jsonpage.check(self, value, wanted, unseen)

    def test_ps(self):
        self.program()
        shown = self.json("ps")
        self.assertEqual(len(shown), 1)
        self.assertDocumented(shown[0], self.page["FARPAGE PS"])

    def test_ps_of_what_cannot_be_read(self):
        """Each program has all fields, even if it has no nodes."""
        process = self.program()
        with open(os.path.join(self.runtime, f"{process.pid}.stats"), "r+b") as stats:
            data = stats.read()
            stats.seek(data.index(b"tcp://far"))
            stats.write(b"\0")
        (shown,) = self.json("ps")
        self.assertEqual(shown["nodes"], [])
        self.assertDocumented(shown, self.page["FARPAGE PS"], ("nodes[]",))

    def test_top(self):
        process = self.program()
        top = self.start("top", "--json", stdout=subprocess.PIPE)
        shown = [json.loads(self.line(top))]
        process.stdin.write(b"100 50\n")
        process.stdin.flush()
        self.program()  # not there when the interval begins
        shown += [json.loads(self.line(top)) for _ in range(2)]
        wanted = dict(self.page["FARPAGE TOP"])
        for path, kind in self.page["FARPAGE PS"].items():
            if not path.startswith("not_far"):
                wanted["programs[]." + path] = kind
        self.assertDocumented(shown, {"[]." + path: kind for path, kind in wanted.items()})

    def test_node(self):
        os.environ["FARPAGED"] = os.path.join(farapp.build, "daemon", "farpaged")
        socket_path = self.path("socket")
        node = farpaged.Farpaged(CONFIG.format(socket=socket_path))
        self.addCleanup(node.__exit__, None, None, None)
        url = f"shm:{socket_path}"
        self.assertDocumented(self.json("node", "drain", url), self.page["FARPAGE NODE DRAIN"])
        session = node.session()
        self.addCleanup(session.close)
        with self.assertRaises(farpaged.Refused):
            session.lease(1 << 20)
        self.assertDocumented(self.json("node", "status", url), self.page["FARPAGE NODE STATUS"], UNSEEN)
        self.assertEqual(self.json("node", "undrain", url), {})

    def test_fields_of_devices(self):
        """The page lists what the node prints of its devices."""
        with open(SOURCE, encoding="utf-8") as source:
            text = source.read()
        printed = {}
        for function, path in (("print_devices", "rdma.devices[]."), ("print_rdma", "rdma.")):
            body = re.search(rf"^static void {function}\(.*?^}}", text, re.DOTALL | re.MULTILINE)[0]
            for name, form in re.findall(r'\\"(\w+)\\":(\\"|%\w+|[{[])', body):
                printed[path + name] = PRINTED[form]
        printed["rdma"] = printed.pop("rdma.rdma")
        printed["rdma.devices"] = printed.pop("rdma.devices[].devices")
        self.assertEqual(printed, {path: kind for path, kind in self.page["FARPAGE NODE STATUS"].items() if path.startswith(UNSEEN)})

    def test_units_are_in_names(self):
        """A number is a count, or its name ends in its unit."""
        n = 0
        for title, wanted in self.page.items():
            for path, kind in wanted.items():
                name = path.rsplit(".", 1)[-1]
                if kind.startswith("number") and not path.startswith("faults."):
                    self.assertTrue(name.endswith(UNITS) or PLAIN.match(name), f"{title}: {path}")
                    n += 1
        self.assertGreater(n, 50)


if __name__ == "__main__":
    toolcase.main(needs_userfaultfd=False)
