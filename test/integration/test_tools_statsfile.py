"""A program is always in farpage ps. A stats file is a further name of its counters, however the
program was started and however it ends."""
import json
import os
import re
import signal
import subprocess
import time

import farapp
import toolcase

PRELOAD = os.path.join(farapp.build, "preload", "libfarpage-preload.so")
# Takes some far memory, forks a child that does so too, and waits until its stdin ends. Each writes
# its line in one call: print makes two of it where PYTHONUNBUFFERED is set, and the lines mix.
WAITS = """
import os
x = bytearray(4 << 20)
child = os.fork()
y = bytearray(1 << 20)
os.write(1, b"%d\\n" % os.getpid())
os.read(0, 1)
if child: os.wait()
"""


class StatsFile(toolcase.ToolCase):
    def setUp(self):
        super().setUp()
        self.node = farapp.Node(config=f"listen: unix:{self.path('sock')}\npools: [{{name: main, size: 256M}}]\n")
        self.addCleanup(self.node.stop)
        self.files = self.path("files")
        os.mkdir(self.files)

    def ways(self):
        """The three ways to name the file, and the environment and command of each."""
        file = os.path.join(self.files, "some.%p.stats")
        config = self.path("far.yaml", f"stats_file: {file}\n")
        run = (farapp.farpage, "run", "--node", self.node.url, "--local-memory", "16M")
        preload = {"LD_PRELOAD": PRELOAD, "FARPAGE_NODES": self.node.url, "FARPAGE_LOCAL_MEMORY": "16M"}
        return {
            "option": (run + ("--stats-file", file), {}),
            "variable": (run, {"FARPAGE_STATS_FILE": file}),
            "key": (run + ("--config", config), {}),
            "key, with a report": (run + ("--config", config, "--report"), {}),
            "preload, variable": ((), {**preload, "FARPAGE_STATS_FILE": file}),
            "preload, key": ((), {**preload, "FARPAGE_CONFIG": config}),
        }

    def began(self, way):
        """The program, the numbers of its two processes, and of the first that was started."""
        command, env = self.ways()[way]
        process = subprocess.Popen([*command, "/usr/bin/python3", "-S", "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, bufsize=0, env={**self.env, **env})
        self.addCleanup(self._end, process)
        return process, {int(self.line(process)), int(self.line(process))}

    def count(self, *of):
        status, out, err = self.farpage("hist", "--format", "json", *of)
        self.assertEqual((status, err), (0, ""))
        return json.loads(out)["count"]

    def wait_for_counts(self, pid):
        """The copy that ps reads is brought up to date many times a second."""
        deadline = time.monotonic() + toolcase.TIMEOUT
        while not self.count("--pid", str(pid)):
            self.assertLess(time.monotonic(), deadline, "nothing is counted")

    def test_is_in_ps_and_in_the_file(self):
        for way in self.ways():
            with self.subTest(way):
                process, pids = self.began(way)
                listed = json.loads(self.farpage("ps", "--json")[1])
                self.assertEqual({program["pid"] for program in listed}, pids)
                for program in listed:
                    self.assertEqual(program["nodes"][0]["url"], self.node.url)
                    self.wait_for_counts(program["pid"])
                process.communicate(b"\n\n", timeout=toolcase.TIMEOUT)
                files = os.listdir(self.files)
                own = pids if "preload" in way else {process.pid}  # the number of `farpage run` stands for all
                self.assertEqual({int(name.split(".")[1]) for name in files}, own)
                for name in files:
                    self.assertGreater(self.count("--stats-file", os.path.join(self.files, name)), 0)
                    os.remove(os.path.join(self.files, name))
                self.assertEqual(os.listdir(self.runtime), [], "pages that nobody needs")

    def test_file_of_one_name_is_the_parent_s(self):
        file = os.path.join(self.files, "one.stats")
        env = {"LD_PRELOAD": PRELOAD, "FARPAGE_NODES": self.node.url, "FARPAGE_STATS_FILE": file}
        process = subprocess.Popen(["/usr/bin/python3", "-S", "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   bufsize=0, env={**self.env, **env})
        self.addCleanup(self._end, process)
        pids = {int(self.line(process)), int(self.line(process))}
        self.assertEqual({program["pid"] for program in json.loads(self.farpage("ps", "--json")[1])}, pids)
        process.send_signal(signal.SIGKILL)  # its file has every count all the same
        process.wait()
        process.stdin.close()
        self.assertEqual(process.stdout.read(), b"")  # now its child has ended, too
        self.assertEqual(os.listdir(self.files), ["one.stats"])
        self.assertGreater(self.count("--stats-file", file), 0)

    def test_exec_loses_no_counts(self):
        """Neither the file nor the report, however soon the process calls exec."""
        code = "import os, sys; x = bytearray(b'x' * (32 << 20)); os.execv(*eval(sys.argv[1]))"
        file = os.path.join(self.files, "exec.stats")
        again = ["/usr/bin/python3", "-S", "-c", "x = bytearray(b'x' * (1 << 20))"]
        for program in (["/bin/true"], again):
            with self.subTest(program):
                status, _, err = self.farpage("run", "--node", self.node.url, "--local-memory", "8M", "--report", "--stats-file", file,
                                              "--", "/usr/bin/python3", "-S", "-c", code, repr((program[0], program)))
                self.assertEqual(status, 0, err)
                self.assertGreater(int(re.search(r"faults counted (\d+)", err)[1]), 300, err)
                self.assertGreater(self.count("--stats-file", file), 300)

    def test_a_file_that_is_cut_short(self):
        """It is whole again with the next update."""
        file = os.path.join(self.files, "cut.stats")
        process = self.start("run", "--node", self.node.url, "--local-memory", "16M", "--stats-file", file, "--",
                             "/usr/bin/python3", "-S", "-c", WAITS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.line(process)
        self.line(process)
        os.truncate(file, 0)
        process.communicate(b"\n\n", timeout=toolcase.TIMEOUT)
        self.assertEqual(process.returncode, 0)
        self.assertGreater(self.count("--stats-file", file), 0)

    def test_file_where_ps_looks(self):
        """The file that the user chose is also the page that ps reads: one row for each process."""
        env = {"LD_PRELOAD": PRELOAD, "FARPAGE_NODES": self.node.url, "FARPAGE_STATS_FILE": os.path.join(self.runtime, "%p.stats")}
        process = subprocess.Popen(["/usr/bin/python3", "-S", "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   bufsize=0, env={**self.env, **env})
        self.addCleanup(self._end, process)
        pids = [int(self.line(process)), int(self.line(process))]
        self.assertCountEqual([program["pid"] for program in json.loads(self.farpage("ps", "--json")[1])], pids)

    def test_run_within_a_run(self):
        """The outer one's report and file have the processes of the inner one, which is in ps."""
        file = os.path.join(self.files, "outer.stats")
        run = ("run", "--node", self.node.url, "--local-memory", "16M")
        process = self.start(*run, "--stats-file", file, "--", farapp.farpage, *run, "--", "/usr/bin/python3", "-S", "-c", WAITS,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        pids = {int(self.line(process)), int(self.line(process))}
        self.assertLessEqual(pids, {program["pid"] for program in json.loads(self.farpage("ps", "--json")[1])})
        process.communicate(b"\n\n", timeout=toolcase.TIMEOUT)
        self.assertEqual(os.listdir(self.files), ["outer.stats"])
        self.assertGreater(self.count("--stats-file", file), 0)

    def test_run_or_program_with_a_file_inside_a_run(self):
        """What names a file for an inner run or program has its effect there, and only there."""
        file, code = os.path.join(self.files, "inner.stats"), "x = bytearray(8 << 20)"
        config = self.path("far.yaml", f"stats_file: {file}\n")
        run = ("run", "--node", self.node.url, "--local-memory", "16M")
        program = ("/usr/bin/python3", "-S", "-c", code)
        named = ("/usr/bin/env", f"FARPAGE_STATS_FILE={file}")
        for inner in ((*named, farapp.farpage, *run, "--", *program), (farapp.farpage, *run, "--config", config, "--", *program),
                      (farapp.farpage, *run, "--stats-file", file, "--", *program), (*named, *program)):
            with self.subTest(inner):
                status, _, err = self.farpage(*run, "--report", "--", *inner)
                self.assertEqual(status, 0, err)
                self.assertGreater(self.count("--stats-file", file), 0)
                os.remove(file)

    def test_report_around_a_run(self):
        """The inner run has no report of its own. The outer run's report has its processes."""
        run = ("run", "--node", self.node.url, "--local-memory", "16M")
        config = self.path("far.yaml", "local_memory: 16M\n")
        for more in ((), ("--config", config)):
            status, _, err = self.farpage(*run, "--report", "--", farapp.farpage, *run, *more, "--", "/usr/bin/python3", "-S", "-c",
                                          "x = bytearray(b'x' * (32 << 20))")
            self.assertEqual(status, 0, err)
            self.assertEqual(err.count("farpage: report: "), 1, err)
            self.assertNotIn("no statistics", err)

    def test_program_without_a_folder(self):
        """It goes on, and one line says that it is not seen. Its file has every count all the
        same."""
        file = os.path.join(self.files, "one.stats")
        preload = {"LD_PRELOAD": PRELOAD, "FARPAGE_NODES": self.node.url, "FARPAGE_LOCAL_MEMORY": "1M",
                   "FARPAGE_RUNTIME_DIR": self.path("no/such/folder")}
        for more in ({}, {"FARPAGE_STATS_FILE": file}, {"FARPAGE_RUN_DIR": self.path("ended")}):
            done = subprocess.run(["/usr/bin/python3", "-S", "-c", "x = bytearray(b'x' * (8 << 20))"], capture_output=True, text=True,
                                  env={**self.env, **preload, **more}, timeout=toolcase.TIMEOUT)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stderr, r"^farpage: stats: process \d+ goes on, but `farpage ps` does not see it: [^\n]*"
                                          r"FARPAGE_RUNTIME_DIR[^\n]*\n$")
        self.assertGreater(self.count("--stats-file", file), 0)

    def test_names_that_can_not_be_a_file(self):
        os.mkfifo(self.path("fifo"))
        preload = {"LD_PRELOAD": PRELOAD, "FARPAGE_NODES": self.node.url}
        for name, words in ((self.dir, "it is a folder: name a file in it"), (self.path("fifo"), "no regular file of this user"),
                            ("/no/such/folder/x", "No such file or directory")):
            with self.subTest(name):
                said = f"stats file {name}: "
                self.assertFails(self.farpage("run", "--node", self.node.url, "--stats-file", name, "true"), 125, said, words)
                done = subprocess.run(["/bin/true"], capture_output=True, text=True, timeout=toolcase.TIMEOUT,
                                      env={**self.env, **preload, "FARPAGE_STATS_FILE": name})
                self.assertEqual(done.returncode, 125)
                self.assertIn(said, done.stderr)
                self.assertIn(words, done.stderr)


if __name__ == "__main__":
    toolcase.main()
