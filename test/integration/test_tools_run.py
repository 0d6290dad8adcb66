"""farpage run: the program's input, output, signals and end are its own, and whatever is wrong is
said before it starts."""
import json
import os
import platform
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import unittest

import farapp
import farpaged
import seccomp
import toolcase

MAN = os.path.join(os.path.dirname(__file__), "..", "..", "doc", "man")
SMALL = ("--local-memory", "16M", "--pool-size", "256M")
ECHO = ("/usr/bin/python3", "-c", "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())")
CLOSE_RANGE = 436  # on every processor
CATCH = """
import os, signal, sys
wanted = {signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
os.write(1, b"ready\\n")
while True:
    signo = signal.sigwait(wanted)  # a handler of python's would wait for the next signal if it came before a pause
    os.write(1, signal.Signals(signo).name.encode() + b"\\n")
    if signo == signal.SIGTERM: sys.exit(3)
"""


# Waits for a line, then needs more of the node than it had when it got it, and has a child that
# does so too.
GROW = """
import os, sys
print("ready", flush=True)
sys.stdin.readline()
x = bytearray(48 << 20); x[::4096] = b"x" * 12288
child = os.fork()
os.write(1, b"%d\\n" % (sum(bytes(x)[::4096]) // ord("x")))
if child: os.wait()
"""

# So many threads read into random pages of their own, one page each in turn.
FAULT_BY_TURNS = """
import os, random, sys, threading
n = int(sys.argv[1])
x = memoryview(bytearray(64 << 20))
zero = os.open("/dev/zero", os.O_RDONLY)
turns = [threading.Semaphore(i == 0) for i in range(n)]
def touch(i):
    for page in random.sample(range(i, 16384, n), 6000 // n):
        turns[i].acquire()
        os.readv(zero, [x[page << 12:(page << 12) + 1]])
        turns[(i + 1) % n].release()
threads = [threading.Thread(target=touch, args=[i]) for i in range(n)]
[t.start() for t in threads]
[t.join() for t in threads]
"""


class Program(toolcase.ToolCase):
    def run_far(self, *command, **options):
        return self.farpage("run", *SMALL, "--", *command, **options)

    def test_exit_status(self):
        for status in (0, 1, 2, 77, 125, 255):
            self.assertEqual(self.run_far("sh", "-c", f"exit {status}"), (status, b"", ""))

    def test_file_size_limit(self):
        """It is the program's, not its private node's; where the node can't lift it, that is
        said."""
        for hard in ("unlimited", 0):
            done = subprocess.run(["prlimit", f"--fsize=0:{hard}", farapp.farpage, "run", *SMALL, "--", "/usr/bin/python3", "-c", GROW],
                                  input="go\n", capture_output=True, text=True, env=self.env, timeout=toolcase.TIMEOUT)
            if done.returncode:
                self.assertEqual((hard, done.returncode), (0, 125), done.stderr)
                self.assertIn("ulimit -f unlimited", done.stderr)
            else:
                self.assertEqual(done.stdout, "ready\n12288\n12288\n", done.stderr)

    def test_filter_of_system_calls(self):
        """The guard's descriptor table needs close_range, and unshare is not missed."""
        unshare = 97 if platform.machine() == "aarch64" else 272
        for numbers, status in (([unshare], 0), ([CLOSE_RANGE], 125)):
            done = subprocess.run([farapp.farpage, "run", *SMALL, "--", "true"], capture_output=True, text=True, env=self.env,
                                  timeout=toolcase.TIMEOUT, preexec_fn=lambda numbers=numbers: seccomp.refuse(*numbers))
            self.assertEqual(done.returncode, status, done.stderr)
            if status:
                self.assertIn("CLOSE_RANGE_UNSHARE: Operation not permitted", done.stderr)

    def test_address_space_limits(self):
        """They are the program's, and neither ours nor the node's; also where they can't be raised,
        and with the node within them."""
        drop = ("setpriv", "--bounding-set", "-sys_resource") if os.geteuid() == 0 else ()
        told = "import resource; print(resource.getrlimit(resource.RLIMIT_%s), flush=True)\n"
        for prefix in ((), drop):
            for name, number in (("AS", 4096000000), ("DATA", 4096000000)):
                for limit in (f"{number}:{number}", f"{number}:unlimited"):
                    with self.subTest(prefix=prefix, name=name, limit=limit):
                        done = subprocess.run([*prefix, "prlimit", f"--{name.lower()}={limit}", farapp.farpage, "run",
                                               "--local-memory", "16M", "--", "/usr/bin/python3", "-c", told % name + GROW],
                                              input="go\n", capture_output=True, text=True, env=self.env, timeout=toolcase.TIMEOUT)
                        hard = -1 if "unlimited" in limit else number
                        self.assertEqual((done.returncode, done.stdout, done.stderr),
                                         (0, f"({number}, {hard})\nready\n12288\n12288\n", ""))

    def test_end_by_signal(self):
        for signo in (signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT):
            self.assertEqual(self.run_far("sh", "-c", f"kill -{int(signo)} $$"), (-signo, b"", ""))

    def test_streams_are_untouched(self):
        data = os.urandom(3 << 20) + bytes(range(256))
        status, out, err = self.run_far(*ECHO, data=data)
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(out, data)

    def test_stdin_is_not_read(self):
        """What the program does not read is still there for the next."""
        read_fd, write_fd = os.pipe()
        os.write(write_fd, b"rest")
        os.close(write_fd)
        self.run_far("true", stdin=read_fd)
        self.assertEqual(os.read(read_fd, 100), b"rest")
        os.close(read_fd)

    def test_no_descriptor_leaks(self):
        status, out, _ = self.run_far("ls", "/proc/self/fd")
        listed = subprocess.run(["ls", "/proc/self/fd"], stdin=subprocess.DEVNULL, capture_output=True, check=True)
        own = [fd for fd in out.split() if int(fd) < 10]
        self.assertEqual((status, own), (0, [fd for fd in listed.stdout.split() if int(fd) < 10]))

    def test_arguments_and_options_after_the_command(self):
        status, out, _ = self.run_far("printf", "%s|", "--report", "", "a b")
        self.assertEqual((status, out), (0, b"--report||a b|"))
        status, out, _ = self.farpage("run", *SMALL, "printf", "%s", "--report")
        self.assertEqual((status, out), (0, b"--report"))

    def test_signals_to_run_reach_the_program_once(self):
        process = self.start("run", *SMALL, "--", "/usr/bin/python3", "-c", CATCH, stdout=subprocess.PIPE)
        self.assertEqual(self.line(process), "ready")
        for signo in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT):
            process.send_signal(signo)
            self.assertEqual(self.line(process), signo.name)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.line(process), "SIGTERM")
        self.assertEqual(process.stdout.read(), b"")
        self.assertEqual(process.wait(toolcase.TIMEOUT), 3)

    def test_program_goes_on_without_run(self):
        node = farapp.Node("256M")
        self.addCleanup(node.stop)
        process = self.start(
            "run", "--local-memory", "16M", "--node", node.url, "--", "/usr/bin/python3", "-c",
            "import os, sys; print(os.getpid(), flush=True); sys.stdin.read(); print(sum(range(10 ** 6)), flush=True)",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        self.line(process)
        process.kill()
        process.wait()
        process.stdin.close()
        self.assertEqual(self.line(process), str(sum(range(10**6))))
        self.assertEqual(process.stdout.read(), b"")
        self.assertEqual(self.farpage("ps")[0], 0)  # takes away what the killed run left

    def node_of_its_own(self):
        """A descriptor that tells the end of the private node, and the process that it is."""
        run, = (name for name in os.listdir(self.runtime) if name.startswith("run-"))
        status, out, err = self.farpage("node", "status", "--json", f"shm:{self.runtime}/{run}/node.sock")
        self.assertEqual(status, 0, err)
        fd = os.pidfd_open(json.loads(out)["pid"])
        self.addCleanup(os.close, fd)
        return fd

    def goes_on_alone(self, process, node_fd):
        """What is left of the program has its memory, and the node and its folder go with it."""
        self.assertEqual(select.select([node_fd], [], [], 0)[0], [])
        process.stdin.write(b"\n")
        process.stdin.flush()
        self.assertEqual([self.line(process), self.line(process), process.stdout.read()], ["12288", "12288", b""])
        self.assertTrue(select.select([node_fd], [], [], toolcase.TIMEOUT)[0], "the private node is still there")

    def test_what_it_leaves_behind_keeps_its_memory(self):
        """Without holding up who waits for the command, or for the end of its stderr."""
        process = self.start("run", "--local-memory", "1M", "--pool-size", "256M", "--", "sh", "-c",
                             "exec 3<&0; /usr/bin/python3 -c '%s' <&3 2>/dev/null & read x" % GROW,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(self.line(process), "ready")
        node_fd = self.node_of_its_own()
        process.stdin.write(b"\n")  # sh reads byte by byte
        process.stdin.flush()
        self.assertEqual(process.wait(toolcase.TIMEOUT), 0)
        self.assertEqual(process.stderr.read(), b"")
        self.goes_on_alone(process, node_fd)

    def test_private_node_stays_when_run_is_killed(self):
        process = self.start("run", "--local-memory", "1M", "--pool-size", "256M", "--", "/usr/bin/python3", "-c", GROW,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.assertEqual(self.line(process), "ready")
        node_fd = self.node_of_its_own()
        process.kill()
        process.wait()
        self.goes_on_alone(process, node_fd)

    def test_few_descriptors(self):
        """It runs, or somebody says what is short."""
        node = farapp.Node(config=f"listen: unix:{self.path('sock')}\npools: [{{name: main, size: 256M}}]\n")
        self.addCleanup(node.stop)
        fill = "x = bytearray(48 << 20); x[::4096] = b'x' * 12288; print(sum(bytes(x)[::4096]) // ord('x'))"
        ran = []
        for options in (("--node", node.url), ("--pool-size", "256M")):
            for limit in range(4, 20):
                done = subprocess.run(["prlimit", f"--nofile={limit}", farapp.farpage, "run", "--local-memory", "16M", *options,
                                       "/usr/bin/python3", "-S", "-c", fill], capture_output=True, text=True, env=self.env,
                                      stdin=subprocess.DEVNULL, timeout=toolcase.TIMEOUT)
                ran.append(done.returncode == 0)
                with self.subTest(limit=limit, options=options):
                    if done.returncode:
                        self.assertRegex(done.stderr, "ulimit -n|Too many open files|Error 24")
                    else:
                        self.assertEqual(done.stdout, "12288\n")
        self.assertIn(True, ran)

    def test_closed_streams(self):
        """Even without room for high numbers, no descriptor of ours takes a stream's number, open
        or closed."""
        for closed, to in ((0, 1), (0, 2), (1, 2), (2, 1)):
            done = subprocess.run(["sh", "-c", f'ulimit -n 300; exec "$@" {closed}>&-', "sh", farapp.farpage, "run", *SMALL, "--",
                                   "sh", "-c", f"test -e /proc/$$/fd/{closed} || echo hello >&{to}"],
                                  capture_output=True, text=True, env=self.env, stdin=subprocess.DEVNULL, timeout=toolcase.TIMEOUT)
            with self.subTest(closed=closed, to=to):
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "hello\n" * (to == 1), "hello\n" * (to == 2)))

    def test_report_and_stats_file(self):
        stats = self.path("run.stats")
        status, out, err = self.farpage(
            "run", *SMALL, "--report", "--stats-file", stats, "--",
            "sh", "-c", "/usr/bin/python3 -c 'x = bytearray(64 << 20); print(len(x))'; /usr/bin/python3 -c 'print(1)'",
        )
        self.assertEqual((status, out), (0, b"67108864\n1\n"))
        for word in ("report", "processes", "local memory", "faults", "moved", "evicted", "p99", "nodes:", " shm:"):
            self.assertIn(word, err)
        self.assertEqual(self.farpage("hist", "--stats-file", stats)[0], 0)

    def test_help_without_a_mistake(self):
        """What there is, for who asks; each way gives what --help gives."""
        for same, words in (("--help", ()), ("--help", ("help",)), ("bench --help", ("bench",)), ("run --help", ("help", "run")),
                            ("bench fault --help", ("help", "bench", "fault")), ("bench fault --help", ("bench", "help", "fault"))):
            with self.subTest(words):
                outcome = self.farpage(*words)
                self.assertEqual((outcome[0], outcome[2]), (0, ""))
                self.assertEqual(outcome, self.farpage(*same.split()))
        self.assertFails(self.farpage("help", "nosuch"), 2, "nosuch: no such command")

    def test_private_node_needs_no_secret(self):
        """Neither a secret of the environment nor one of the file keeps a program from its private
        node, and systemd's socket of the program is not the node's."""
        secret = self.path("secret", "xyzzy-xyzzy-xyzzy\n")
        os.chmod(secret, 0o600)
        for env in ({"FARPAGE_SECRET_FILE": secret}, {"FARPAGE_CONFIG": self.path("far.yaml", f"secret_file: {secret}\n")}):
            with self.subTest(env):
                self.assertEqual(self.farpage("run", *SMALL, "true", env=env), (0, b"", ""))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(self.path("notify"))
            self.assertEqual(self.farpage("run", *SMALL, "true", env={"NOTIFY_SOCKET": self.path("notify")})[0], 0)
            notify.setblocking(False)
            self.assertRaises(BlockingIOError, notify.recv, 4096)

    def test_report_of_children_that_needed_no_node(self):
        """Forked children that never touched a far page know nothing of the node, and say so."""
        node = SecretNode(self, "the right one of two")
        status, _, err = self.farpage("run", "--local-memory", "16M", "--report", "--node", node.url, "--secret-file", self.path("node.secret"),
                                      "sh", "-c", "date | cat")
        self.assertEqual(status, 0, err)
        self.assertNotIn("cut off", err)
        self.assertRegex(err, r"\b(up|not yet connected)\b")

    @unittest.skipUnless(os.geteuid() == 0, "takes a mount namespace")
    def test_report_without_room_for_statistics(self):
        """It does not claim that the program had no far memory."""
        os.makedirs(self.runtime, 0o700)
        script = 'mount -t tmpfs -o size=4k,mode=700 none "$FARPAGE_RUNTIME_DIR" || exit 77; exec "$@"'
        done = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", toolcase.FARPAGE, "run", *SMALL, "--report", "true"], env=self.env,
                              capture_output=True, text=True, timeout=toolcase.TIMEOUT)
        if done.returncode == 77:
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"does not see it: its page of statistics: .*No space left(.*\n)+.*none had room for its page")

    def test_report_of_a_short_program(self):
        """Its peak is known, though it is over before anybody looks, and however it ends."""
        for end in ("pass", "import os; os._exit(0)", "import os; os.kill(os.getpid(), 9)"):
            with self.subTest(end):
                err = self.farpage("run", *SMALL, "--report", "--", "/usr/bin/python3", "-S", "-c", end)[2]
                self.assertRegex(err, r"local memory: peak [1-9][0-9.]* [MK]iB, budget 16.0 MiB")

    def test_advice_for_several_threads(self):
        for threads, mode, advised in (("1", "thread", False), ("2", "thread", True), ("2", "inline", False)):
            with self.subTest(threads=threads, mode=mode):
                err = self.farpage("run", *SMALL, "--report", "--fault-mode", mode, "--",
                                   "/usr/bin/python3", "-c", FAULT_BY_TURNS, threads)[2]
                self.assertIn("faults counted", err)
                self.assertEqual("advice: several threads" in err, advised, err)

    def test_report_of_a_killed_program(self):
        status, _, err = self.farpage(
            "run", *SMALL, "--report", "--", "/usr/bin/python3", "-c",
            "import os; x = bytearray(64 << 20); os.kill(os.getpid(), 9)",
        )
        self.assertEqual(status, -signal.SIGKILL)
        self.assertRegex(err, r"faults counted [1-9]")


class BadInput(toolcase.ToolCase):
    def assertRefused(self, args, *words, command=("true",), status=125, env=None):
        self.assertFails(self.farpage("run", *args, "--", *command, env=env), status, *words)

    def test_sizes(self):
        for size in ("0", "12X", "-1", "1.5.5M", "101%", "x%", "99999999999999999999G"):
            self.assertRefused(("--local-memory", size), "--local-memory: must be")
            self.assertRefused((), "FARPAGE_LOCAL_MEMORY: must be", env={"FARPAGE_LOCAL_MEMORY": size})
        self.assertRefused(("--local-memory", "32K"), "64")
        self.assertRefused(("--local-memory", ""), "empty")
        for size in ("0", "abc", "3", "999T"):
            self.assertRefused(("--pool-size", size), "--pool-size", size)
        self.assertRefused(("--pool-size", "999T"), "64.0 TiB")
        for named in (("--node", "tcp://127.0.0.1:1"), ("--config", self.path("nodes.yaml", "nodes: [tcp://127.0.0.1:1]\n"))):
            self.assertRefused(("--pool-size", "64M", *named), "--pool-size: no private node is started")

    def test_words(self):
        for option in ("fault-mode", "heap", "capture", "affinity", "readahead", "deadline", "patience", "on-loss", "core"):
            self.assertRefused((f"--{option}", "nonsense"), f"--{option}: ", "nonsense")
        self.assertRefused(("--no-such-option",), "--no-such-option")

    def test_variables_are_checked_too(self):
        self.assertRefused((), "nonsense", env={"FARPAGE_LOCAL_MEMORY": "nonsense"})

    def test_misspelt_variables(self):
        for name, meant in (("NODE", "NODES"), ("LOCAL", "LOCAL_MEMORY"), ("MEMORY", "LOCAL_MEMORY"),
                            ("LOCAL_MEMROY", "LOCAL_MEMORY"), ("RDMA_DEVIC", "RDMA_DEVICE")):
            self.assertEqual(self.farpage("run", *SMALL, "true", env={f"FARPAGE_{name}": "1"}),
                             (0, b"", f"farpage: run: FARPAGE_{name} has no effect: is FARPAGE_{meant} meant?\n"))
        for name in ("OF_MY_OWN", "A", "FAR", "PAGE", "MEM"):
            self.assertEqual(self.farpage("run", *SMALL, "true", env={f"FARPAGE_{name}": "1"}), (0, b"", ""))

    def test_no_command(self):
        self.assertFails(self.farpage("run"), 125, "no command")
        self.assertRefused((), "'': command not found", command=("",), status=127)

    def test_command_not_found(self):
        self.assertRefused((), "no-such-program", command=("no-such-program",), status=127)
        self.assertRefused((), "/no/such", command=("/no/such",), status=127)

    def test_command_not_executable(self):
        self.assertRefused((), "data", command=(self.path("data", "text"),), status=126)
        self.assertRefused((), self.dir, command=(self.dir,), status=126)

    def test_interpreter_missing(self):
        script = self.path("script", "#!/no/such/interpreter\n")
        os.chmod(script, 0o755)
        self.assertRefused((), "/no/such/interpreter", command=(script,))

    def test_static_program(self):
        source, program = self.path("p.c", "int main(void) { return 0; }\n"), self.path("static")
        if subprocess.run(["cc", "-static", "-o", program, source], capture_output=True).returncode:
            self.skipTest("no compiler that links statically")
        self.assertRefused((), "statically linked", command=(program,))

    def test_sanitizer_of_a_program_that_another_starts(self):
        """The preload library sees it by a function of the sanitizer."""
        for start, name in (("tsan", "ThreadSanitizer"), ("hwasan", "HWAddressSanitizer"), ("lsan", "LeakSanitizer")):
            source = self.path("p.c", "void __%s_init(void) {}\nint main(void) { return 0; }\n" % start)
            program = self.path("program")
            if subprocess.run(["cc", "-rdynamic", "-o", program, source], capture_output=True).returncode:
                self.skipTest("no compiler")
            self.assertRefused((), "farpage: preload: ", name, command=("env", program))

    def test_absent_node(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = "tcp://127.0.0.1:%d" % unused.getsockname()[1]
            self.assertRefused(("--node", url), url)
        self.assertRefused(("--node", "shm:" + self.path("none.sock")), "none.sock")

    def test_bad_url(self):
        for url in ("nonsense", "tcp://", "http://localhost", "tcp://localhost:99999"):
            self.assertRefused(("--node", url), url)

    def test_peer_of_another_protocol(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            def serve():
                peer, _ = server.accept()
                with peer:
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" * 8)
                    peer.recv(1 << 16)

            thread = threading.Thread(target=serve)
            thread.start()
            url = "tcp://127.0.0.1:%d" % server.getsockname()[1]
            self.assertRefused(("--node", url), url)
            thread.join()

    def test_what_is_no_node(self):
        for url in "127.0.0.1:7460", "http://127.0.0.1", "mem1":
            self.assertRefused(("--node", url), f"node {url}: not a node URL: use shm:PATH, tcp://HOST")
            self.assertRefused(("--node", "tcp://127.0.0.1:1", "--node", url), f"node {url}: not a node URL")
        self.assertRefused(("--node", "tcp://no-such-host.invalid"), "cannot be resolved")
        self.assertRefused(("--node", "shm:/" + "x" * 120), "may have 107 bytes")

    def secret(self, name, text):
        """A file that holds it, as the rule for secrets wants it."""
        path = self.path(name, text)
        os.chmod(path, 0o600)
        return path

    def test_secrets(self):
        node = SecretNode(self, "the right one of two")
        right, wrong = self.secret("right", "the right one of two\n"), self.secret("wrong", "the wrong one of two\n")
        self.assertRefused(("--node", node.url), node.url, "secret")
        self.assertRefused(("--node", node.url, "--secret-file", wrong), node.url, "secret")
        self.assertRefused(("--node", node.url, "--secret-file", self.path("absent")), "absent")
        outcome = self.farpage("run", "--local-memory", "16M", "--node", node.url, "--secret-file", right, "true")
        self.assertEqual(outcome, (0, b"", ""))
        os.chmod(right, 0o644)
        self.assertRefused(("--node", node.url, "--secret-file", right), right, "other users may read or write it: chmod o-rw")

    def test_one_copy_of_the_secret_is_in_memory(self):
        secret = "a secret of this test alone"
        node = SecretNode(self, secret)
        program = self.start("run", "--local-memory", "16M", "--node", node.url, "--secret-file", self.secret("file", secret), "cat",
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        program.stdin.write(b"up\n")
        program.stdin.flush()
        self.assertEqual(program.stdout.readline(), b"up\n")
        with open(f"/proc/{program.pid}/task/{program.pid}/children", encoding="ascii") as children:
            pids = [program.pid, *map(int, children.read().split())]
        self.assertEqual([farpaged.copies_in_memory(pid, secret) for pid in pids], [0, 1])
        program.stdin.close()
        self.assertEqual(program.wait(toolcase.TIMEOUT), 0)
        program.stdout.close()

    def test_config(self):
        for text in ("no_such_key: 1\n", "local_memory: [1]\n", "local_memory: 12X\n", "{\n"):
            config = self.path("bad.yaml", text)
            self.assertRefused(("--config", config), "bad.yaml:")
        self.assertRefused(("--config", self.dir), self.dir)
        self.assertRefused(("--config", self.path("absent.yaml")), "absent.yaml")

    def options(self):
        """All that the command knows: each begins with nothing, so that nothing is an abbreviation
        of all."""
        err = self.farpage("run", "--=x")[2]
        found = set(re.findall("'--([a-z-]+)'", err)) - {"help", "version", "print-env"}  # no settings
        self.assertGreater(len(found), 15, err)
        return found

    def test_each_option_has_a_variable_a_key_and_its_lines(self):
        page, preload = (self.man(name) for name in ("farpage-run.1", "farpage-preload.7"))
        shown = self.farpage("run", "--help")[1].decode()
        for option in sorted(self.options()):
            with self.subTest(option):
                key = {"node": "nodes"}.get(option, option.replace("-", "_"))
                variable = "FARPAGE_" + key.upper()
                self.assertIn(f"  --{option} ", shown)
                self.assertTrue(re.search(rf"(?m)^--{option}( .*)?\({variable}[,)]", page), "farpage-run.1")
                if option == "config":
                    self.assertTrue(variable in preload, "farpage-preload.7")
                    continue
                self.assertTrue(re.search(rf"(?m)^{variable} \({key}\)$", preload), "farpage-preload.7")
                # a map is no value of any setting, and no key of another name is known
                self.assertRefused(("--config", self.path("map.yaml", key + ": {a: 1}\n")), "map.yaml:1", key)

    def test_each_key_of_a_mapping_has_a_variable_and_its_lines(self):
        """These have no option."""
        preload = self.man("farpage-preload.7")
        for mapping in ("rdma", "reconnect"):
            err = self.farpage("run", "--config", self.path("map.yaml", mapping + ": {no_such_key: 1}\n"), "true")[2]
            keys = re.search(r"allowed here: (.*)", err)[1].split(", ")
            self.assertGreater(len(keys), 2, err)
            for key in keys:
                with self.subTest(mapping, key=key):
                    variable = f"FARPAGE_{mapping}_{key}".upper()
                    self.assertTrue(re.search(rf"(?m)^{variable} \({mapping}\.{key}\)$", preload), "farpage-preload.7")
                    if key != "device":  # any name may be one's
                        self.assertRefused((), variable, "nonsense", env={variable: "nonsense"})

    def test_rdma_device_that_does_not_exist(self):
        for how in ({"env": {"FARPAGE_RDMA_DEVICE": "nosuch0", "FARPAGE_RDMA_DEVICE_PORT": "2"}},
                    {"options": ("--config", self.path("far.yaml", "rdma: {device: nosuch0, device_port: 2}\n"))}):
            self.assertRefused((*how.get("options", ()), "--node", "rdma+tcp://127.0.0.1"),
                               "no RDMA device 'nosuch0' with an active port 2 here: this machine has", env=how.get("env", {}))

    @staticmethod
    def man(name):
        """A page as text, without its macros of font."""
        with open(os.path.join(MAN, name), encoding="utf-8") as page:
            return re.sub(r"\\f.", "", page.read()).replace("\\-", "-")

    def test_report_and_pool_size_without_options(self):
        config = self.path("far.yaml", "report: true\npool_size: 32M\nlocal_memory: 16M\n")
        status, out, err = self.farpage("run", "--config", config, "true")
        self.assertEqual((status, out), (0, b""), err)
        self.assertIn("faults", err)
        self.assertEqual(self.farpage("run", "--config", config, "true", env={"FARPAGE_REPORT": "0"}), (0, b"", ""))
        self.assertIn("faults", self.farpage("run", "true", env={"FARPAGE_REPORT": "1"})[2])
        fill = (sys.executable, "-c", "x = bytearray(64 << 20)")
        for args, env in ((("--config", config), {}), ((), {"FARPAGE_POOL_SIZE": "32M"})):
            status, _, err = self.farpage("run", *args, *fill, env=env)
            self.assertNotEqual(status, 0)
            self.assertIn("MemoryError", err)
        self.assertRefused((), "FARPAGE_POOL_SIZE", "1.0 MiB", env={"FARPAGE_POOL_SIZE": "1023K"})

    def test_stats_file(self):
        self.assertRefused(("--stats-file", "/no/such/folder/x"), "/no/such/folder/x")

    def test_runtime_folder(self):
        self.assertRefused((), "FARPAGE_RUNTIME_DIR", env={"FARPAGE_RUNTIME_DIR": self.path("file", "")})
        outcome = self.farpage("run", "--", "true", env={"FARPAGE_RUNTIME_DIR": self.path("x" * 120)})
        self.assertFails(outcome, 125, "its path may have 107 bytes: set FARPAGE_RUNTIME_DIR to a shorter folder")
        self.assertEqual(outcome[2].count("\n"), 1)

    def test_parts_missing(self):
        self.assertRefused((), "FARPAGE_PRELOAD", env={"FARPAGE_PRELOAD": self.path("none.so")})
        self.assertRefused((), "FARPAGE_DAEMON", env={"FARPAGE_DAEMON": self.path("none")})

    def test_private_node_that_ends_at_once(self):
        self.assertRefused((), "private memory node", env={"FARPAGE_DAEMON": "/bin/false"})


class PrintEnv(toolcase.ToolCase):
    """farpage run --print-env: the same without farpage run."""
    def print_env(self, *options, env=None):
        status, out, err = self.farpage("run", "--print-env", *options, env=env)
        self.assertEqual((status, err), (0, ""))
        return out.decode()

    def test_program_has_far_memory(self):
        node = farapp.Node("256M")
        self.addCleanup(node.stop)
        text = self.print_env("--node", node.url, "--config", self.path("a config.yaml", "local_memory: 16M\n"))
        code = "import subprocess as s, sys; x = bytearray(8 << 20); s.run([sys.argv[1], 'ps', '--json'], check=True)"
        self.assertIn("a config.yaml\"\n", text)
        file = self.path("program.env", text)
        program = f"/usr/bin/python3 -S -c \"{code}\" {farapp.farpage}"
        done = subprocess.run(["/bin/sh", "-c", f"(set -a; . {file}; exec {program})"], capture_output=True, text=True, env=self.env,
                              timeout=toolcase.TIMEOUT)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        listed = {program["command"]: program for program in json.loads(done.stdout)}
        self.assertEqual(listed["python3"]["nodes"][0]["url"], node.url)
        self.assertGreater(listed["python3"]["mapped_bytes"], 8 << 20)

    def test_what_is_printed(self):
        value = 'a "$`\\ b'
        open(self.path("secret"), "w").close()
        text = subprocess.run(
            [farapp.farpage, "run", "--print-env", "--node", "shm:a sock", "--node", "tcp://a,b", "--node", "shm:@c",
             "--config", "far.yaml"],
            cwd=self.dir, capture_output=True, text=True, timeout=toolcase.TIMEOUT,
            env={**self.env, "LD_PRELOAD": "", "FARPAGE_STATS_FILE": value, "FARPAGE_REPORT": "1", "FARPAGE_HEAP": "",
                 "FARPAGE_PATIENCE": "5s"}, input=self.path("far.yaml", "local_memory: 16M\n")).stdout
        shown = subprocess.run(["/bin/sh", "-c", text + "set"], capture_output=True, text=True, timeout=toolcase.TIMEOUT,
                               env={}).stdout
        self.assertIn("FARPAGE_STATS_FILE='%s/%s'\n" % (self.dir, value), shown)
        self.assertEqual({line.split("=")[0] for line in text.splitlines()},
                         {"LD_PRELOAD", "FARPAGE_NODES", "FARPAGE_CONFIG", "FARPAGE_STATS_FILE", "FARPAGE_PATIENCE",
                          "FARPAGE_RUNTIME_DIR"})
        for line in (f'FARPAGE_NODES="shm:{self.dir}/a sock,tcp://a,b,shm:@c"', f"FARPAGE_CONFIG={self.dir}/far.yaml",
                     "LD_PRELOAD=" + os.path.join(farapp.build, "preload", "libfarpage-preload.so")):
            self.assertIn(line, text.splitlines())

    def test_what_it_can_not_do(self):
        for options, words in (((), "name the memory nodes"), (("--node", "tcp://a", "--report"), "--report"),
                               (("--node", "tcp://a", "--heap", "x"), "--heap: must be"),
                               (("--node", "tcp://a", "true"), "takes no command")):
            self.assertFails(self.farpage("run", "--print-env", *options), 125, words)


class SecretNode:
    def __init__(self, case, secret):
        config = case.path("node.yaml", "listen: tcp://127.0.0.1:0\npools:\n  - name: main\n    size: 256M\n"
                                        f"auth:\n  secret_file: {case.path('node.secret', secret)}\n")
        os.chmod(os.path.join(os.path.dirname(config), "node.secret"), 0o600)
        read_fd, write_fd = os.pipe()
        self.process = subprocess.Popen(
            [os.path.join(farapp.build, "daemon", "farpaged"), "--config", config, "--ready-fd", str(write_fd)],
            pass_fds=[write_fd], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        case.addCleanup(case._end, self.process)
        os.close(write_fd)
        with open(read_fd) as ready:
            self.url = ready.readline().strip()


if __name__ == "__main__":
    toolcase.main()
