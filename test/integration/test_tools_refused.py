"""A node that lends nothing: farpage run says so before it starts anything, a running program says
so once, and the node counts it. Each time with the node, the limit and what to do."""
import json
import os
import subprocess

import farapp
import toolcase

PRELOAD = os.path.join(farapp.build, "preload", "libfarpage-preload.so")
PYTHON = ("/usr/bin/python3", "-S", "-c")
# Each line of its stdin is a number of MiB: takes so much, and says whether it got it. A child does
# the same at the end.
TAKES = """
import os, sys
def take(text):
    try: kept.append(bytearray(int(text) << 20)); return "got it"
    except MemoryError: return "MemoryError"
kept = []
print("ready", flush=True)
for line in sys.stdin: print(take(line), flush=True)
child = os.fork()
if child: os.wait()
else: take("4000")
"""


class Refused(toolcase.ToolCase):
    def node(self, *, size="64M", more=""):
        node = farapp.Node(config=f"listen: unix:{self.path('sock')}\npools: [{{name: main, size: {size}}}]\n{more}")
        self.addCleanup(node.log.close)
        self.addCleanup(node.stop)
        return node

    def run_far(self, *nodes, options=(), code="print('here')"):
        named = [part for node in nodes for part in ("--node", node.url)]
        return self.farpage("run", *named, "--local-memory", "16M", *options, "--", *PYTHON, code)

    def ask(self, command, node):
        status, out, err = self.farpage("node", command, "--json", node.url)
        self.assertEqual(status, 0, err)
        return json.loads(out)

    def refused(self, node, cause):
        return next((row["count"] for row in self.ask("status", node)["refusals"] if row["cause"] == cause), 0)

    def is_refused_at_the_start(self, node, cause, *words):
        outcome = self.run_far(node)
        self.assertFails(outcome, 125, f"farpage: run: node {node.url}: ", *words)
        self.assertEqual(outcome[2].count("\n"), 1, outcome[2])
        self.assertEqual(self.refused(node, cause), 1)
        self.assertRegex(node.text(), f"refused: a lease of .*{words[0]}")

    def program(self, *nodes, options=(), env=None, takes=()):
        """A program that gets numbers of MiB; its answers come from ask_for."""
        command = [farapp.farpage, "run", "--local-memory", "16M", *(part for node in nodes for part in ("--node", node.url)), *options]
        process = subprocess.Popen([*([] if env else command), *PYTHON, TAKES], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env={**self.env, **(env or {})})
        self.addCleanup(self._end, process)
        self.assertEqual(self.line(process), "ready")
        return process

    def ask_for(self, process, mib):
        process.stdin.write(b"%d\n" % mib)
        process.stdin.flush()
        return self.line(process)

    def said(self, process):
        """Ends the program, and returns its stderr."""
        _, err = process.communicate(timeout=toolcase.TIMEOUT)
        self.assertEqual(process.returncode, 0, err)
        return err.decode()

    def test_drained_node_at_the_start(self):
        node = self.node()
        self.ask("drain", node)
        self.is_refused_at_the_start(node, "draining", "the node is drained", "use another node", "farpage node undrain")
        self.ask("undrain", node)
        self.assertEqual(self.run_far(node), (0, b"here\n", ""))

    def test_full_node_at_the_start(self):
        node = self.node(size="8M")
        holder = self.program(node)  # its first lease is all of the pool
        self.is_refused_at_the_start(node, "pools", "the node's pools have 0 B left of 8.0 MiB", "enlarge them")
        self.said(holder)

    def test_quota_at_the_start(self):
        node = self.node(more="limits: {client_quota: 32K}\n")
        self.is_refused_at_the_start(node, "quota", "the client's quota of 32.0 KiB has 32.0 KiB left", "raise the quota",
                                     "it refuses the smallest lease (1 MiB at least): ")

    def test_one_of_two_nodes_lends(self):
        first = self.node()
        self.ask("drain", first)
        second = farapp.Node("64M")
        self.addCleanup(second.log.close)
        self.addCleanup(second.stop)
        status, out, err = self.run_far(first, second)
        self.assertEqual((status, out), (0, b"here\n"))
        self.assertIn(f"node {first.url}: the node is drained", err)
        self.assertEqual(err.count("\n"), 1, err)

    def test_running_program_says_it_once(self):
        node = self.node(size="96M")
        before = self.refused(node, "pools")
        for env in (None, {"LD_PRELOAD": PRELOAD, "FARPAGE_NODES": node.url, "FARPAGE_LOCAL_MEMORY": "16M"}):
            process = self.program(node, env=env)
            self.assertEqual([self.ask_for(process, mib) for mib in (8, 2000, 1000, 8)],
                             ["got it", "MemoryError", "MemoryError", "got it"])
            err = self.said(process)
            self.assertEqual(err.count("\n"), 1, err)
            self.assertRegex(err, rf"a request for 2\.[0-9] GiB of far memory was refused \(ENOMEM\): node {node.url}: "
                                  r"of the node's pools \(96.0 MiB\), none has more than .* left: enlarge them in its configuration")
            now = self.refused(node, "pools")
            self.assertGreater(now, before)
            before = now
        self.assertRegex(node.text(), "refused: a lease of 2.[0-9] GiB to python3.*: of the node's pools")

    def test_private_node_is_quiet(self):
        """The node shares the program's stderr, where the program itself says what it met."""
        process = self.program(options=("--pool-size", "64M"))
        self.assertEqual([self.ask_for(process, 2000) for _ in range(2)], ["MemoryError"] * 2)
        err = self.said(process)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertIn("enlarge them in its configuration (with --pool-size, if farpage run started it)", err)

    def test_program_that_logs_little(self):
        node = self.node()
        process = self.program(node, env={"LD_PRELOAD": PRELOAD, "FARPAGE_NODES": node.url, "FARPAGE_LOCAL_MEMORY": "16M",
                                          "FARPAGE_LOG": "warning"})
        self.assertEqual(self.ask_for(process, 2000), "MemoryError")
        self.assertIn("(ENOMEM): node", self.said(process))

    def test_forked_child_without_a_session(self):
        """The child opens a session of its own. What keeps it out is told, and what to do."""
        node = self.node(size="256M", more="limits: {max_sessions: 1}\n")
        code = ("import os\nx = bytearray(b'x' * (32 << 20))\nif os.fork(): os.wait()\nelse:\n"
                "    try: bytearray(100 << 20)\n    except MemoryError: pass")
        status, _, err = self.run_far(node, options=("--deadline", "1s"), code=code)
        self.assertEqual(status, 0, err)
        limit = f"node {node.url}: the node has 1 session, as many as max_sessions allows: raise limits.max_sessions"
        self.assertIn(f"of far memory was refused (ENOMEM): {limit}", err)
        self.assertGreater(self.refused(node, "max_sessions"), 0)

    def test_node_without_links(self):
        node = farapp.Node(config="listen: tcp://127.0.0.1:0\npools: [{name: main, size: 64M}]\nlimits: {max_connections: 3}\n")
        self.addCleanup(node.log.close)
        self.addCleanup(node.stop)
        outcome = self.run_far(node)
        self.assertFails(outcome, 125, f"farpage: run: node {node.url}: the ", "raise limits.max_connections")
        self.assertEqual(outcome[2].count("\n"), 1, outcome[2])

    def test_node_that_is_drained_later(self):
        node = self.node(size="256M")
        process = self.program(node)
        self.assertEqual(self.ask_for(process, 8), "got it")
        self.ask("drain", node)
        self.assertEqual(self.ask_for(process, 200), "MemoryError")
        err = self.said(process)
        self.assertIn(f"node {node.url}: the node is drained", err)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertGreater(self.refused(node, "draining"), 0)

    def test_each_node_has_its_reason(self):
        first = self.node(size="4G", more="limits: {client_quota: 16M}\n")
        second = farapp.Node("64M")
        self.addCleanup(second.log.close)
        self.addCleanup(second.stop)
        process = self.program(first, second)
        self.assertEqual(self.ask_for(process, 500), "MemoryError")
        err = self.said(process)
        self.assertRegex(err, f"node {first.url}: the client's quota of 16.0 MiB has .* left: .*; node {second.url}: of the node's pools")

    def test_overcommitted_program_starts(self):
        node = self.node(size="64M")
        self.ask("drain", node)
        status, out, err = self.run_far(node, options=("--overcommit",))
        self.assertEqual((status, out), (0, b"here\n"), err)
        self.assertIn("the node is drained", err)

    def test_node_that_is_named_twice(self):
        for urls in (("tcp://127.0.0.1:1", "tcp://127.0.0.1:1"), ("tcp://127.0.0.1", "tcp://127.0.0.1:7460"),
                     ("auto://localhost", "tcp://localhost"), ("tcp://a,b", "shm:/x", "tcp://b"), ("tcp://a", "rdma://a"),
                     ("tcp://a,a",)):
            named = [part for url in urls for part in ("--node", url)]
            self.assertFails(self.farpage("run", *named, "true"), 125, f"node {urls[-1]}: this node is named twice")
        # two nodes of one host, whose ports happen to be the defaults of tcp and of rdma
        for urls in (("tcp://127.0.0.1", "tcp://127.0.0.1:7461"), ("auto://127.0.0.1:7460", "auto://127.0.0.1:7461")):
            named = [part for url in urls for part in ("--node", url)]
            self.assertNotIn("named twice", self.farpage("run", *named, "true")[2])


if __name__ == "__main__":
    toolcase.main()
