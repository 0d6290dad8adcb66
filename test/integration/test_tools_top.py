"""farpage top: on a terminal of several sizes, as JSON, and for root with the programs of all
users, which farpage ps and farpage hist see, too."""
import fcntl
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest

import terminal
import toolcase

STATSWRITER = os.environ["FARPAGE_STATSWRITER"]
OTHER = 64127  # a user without a name


class WithPrograms(toolcase.ToolCase):
    def setUp(self):
        super().setUp()
        os.makedirs(self.runtime, mode=0o700)

    def program(self, *args, folder=None, prefix=(), name=STATSWRITER):
        """A living program with known figures."""
        process = subprocess.Popen([*prefix, name, os.path.join(folder or self.runtime, "%p.stats"), *args],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(self._end, process)
        self.assertEqual(int(self.line(process)), process.pid)
        return process

    def fault(self, process, n, us):
        process.stdin.write(f"{n} {us}\n".encode())
        process.stdin.flush()

    def end(self, process):
        process.stdin.close()
        self.assertEqual(process.wait(toolcase.TIMEOUT), 0)

    def poke(self, process, old, new):
        """Changes a field of its page."""
        old, new = (value if isinstance(value, bytes) else value.to_bytes(8, "little") for value in (old, new))
        with open(os.path.join(self.runtime, f"{process.pid}.stats"), "r+b") as page:
            data = page.read()
            page.seek(next(at for at in range(0, len(data), 8) if data.startswith(old, at)))
            page.write(new)

    def keep_faulting(self, programs, faults):
        """Lets the programs count faults again and again: faults(i) gives pairs of a number and
        microseconds for the i-th program. Returns a function that ends this."""
        stop = threading.Event()

        def fault_all():
            while not stop.wait(0.05):
                for i, program in enumerate(programs):
                    for n, us in faults(i):
                        self.fault(program, n, us)

        def end():
            stop.set()
            thread.join()
        thread = threading.Thread(target=fault_all)
        thread.start()
        self.addCleanup(end)
        return end

    def top(self, columns=80, rows=24, **env):
        window = terminal.Terminal([toolcase.FARPAGE, "top"], columns, rows, {**self.runtime_env(), **env})
        self.addCleanup(window.close)
        return window

    def runtime_env(self):
        return {"FARPAGE_RUNTIME_DIR": self.runtime}

    def pids(self, lines):
        """The process numbers of the rows that are seen."""
        return [int(line.split()[0]) for line in lines if "statswri" in line]

    def assertFits(self, lines, columns, rows):
        self.assertLessEqual(len(lines), rows)
        self.assertLessEqual(max(map(len, lines)), columns, "\n".join(lines))


class OnATerminal(WithPrograms):
    def test_sizes_order_and_keys(self):
        programs = [self.program() for _ in range(20)]
        end_faults = self.keep_faulting(programs, lambda i: [(10 * i + 10, 100 * i + 100)])
        by_rate = [program.pid for program in reversed(programs)]
        with self.top() as top:
            lines = top.wait_for(lambda lines: self.pids(lines) == by_rate and lines[3].split()[3] != "-")
            self.assertFits(lines, 80, 24)
            self.assertIn("20 programs", lines[0])
            self.assertRegex(lines[0], "by faults/s$")
            self.assertEqual(lines[2].split(), ["PID", "COMMAND", "FAULTS/S", "P50", "P99", "P50ALL", "P99ALL", "LOCAL",
                                                "BUDGET", "FAR"])
            pid, command, rate, p50, p99, _, _, local, budget, far = lines[3].split()
            self.assertEqual((command, local, budget, far), ("statswriter", "63.0M", "64.0M", "512M"))
            self.assertGreater(int(rate), 100)
            # of the last second: 2 ms exactly; of the life: 1 µs to 1 ms as well
            self.assertAlmostEqual(float(p50.removesuffix("ms")), 2, delta=0.02)
            self.assertEqual(p50, p99)
            self.assertIn("q quit", lines[-1])
            top.type("p")
            top.wait_for(lambda lines: lines[0].endswith("by PID") and self.pids(lines) == sorted(by_rate))
            top.type("p")
            by_pid = sorted(by_rate, reverse=True)
            top.wait_for(lambda lines: lines[0].endswith("by PID, reversed") and self.pids(lines) == by_pid)
            self.small(top, sorted(by_rate, reverse=True))
            self.large(top)
            end_faults()
            self.ends(top, programs)

    def small(self, top, pids):
        """15 rows have room for 11 programs; the header stays while the others scroll in."""
        top.resize(60, 15)
        lines = top.wait_for(lambda lines: len(lines) == 15 and "1-11 of 20" in lines[-1])
        self.assertFits(lines, 60, 15)
        self.assertEqual(lines[2].split(), ["PID", "COMMAND", "FAULTS/S", "P50", "P99", "P50ALL", "P99ALL", "LOCAL"])
        self.assertEqual(self.pids(lines), pids[:11])
        for key, first in (("Down", 1), ("j", 2), ("PageDown", 9), ("Up", 8), ("Home", 0), ("End", 9), ("g", 0)):
            top.type(key)
            lines = top.wait_for(lambda lines, first=first: self.pids(lines) == pids[first:first + 11])
            self.assertIn("COMMAND", lines[2])
        top.type("?")
        self.assertFits(top.wait_for_text("programs that have far memory"), 60, 15)
        top.type("End")
        self.assertIn("space bar", "".join(top.wait_for_text("^Z")))
        top.type("q")  # back to the programs
        top.wait_for(lambda lines: self.pids(lines) == pids[:11])
        top.resize(30, 4)  # the least that says something
        lines = top.wait_for(lambda lines: len(lines) == 4 and "1-1 of 20" in lines[-1])
        self.assertEqual(self.pids(lines), pids[:1])

    def large(self, top):
        top.resize(200, 50)
        lines = top.wait_for(lambda lines: len(lines) == 50 and len(self.pids(lines)) == 20)
        for title in ("REMOTE", "READ/S", "WRITE/S", "MODE", "NODES"):
            self.assertIn(title, lines[2])
        self.assertIn("shm:/lost!", lines[3])
        top.type("?")
        self.assertFits(top.wait_for_text("^Z"), 60, 50)  # no line is cut on a narrow terminal
        top.type("?")
        top.wait_for(lambda lines: len(self.pids(lines)) == 20)

    def ends(self, top, programs):
        """A program that ends, the last one, and the command itself."""
        self.end(programs[0])
        top.wait_for(lambda lines: "19 programs" in "".join(lines) and programs[0].pid not in self.pids(lines))
        for program in programs[1:]:
            program.kill()
        top.wait_for_text("has far memory now")
        top.resize(80, 24)
        top.wait_for(lambda lines: len(lines) == 24 and "has far memory now" in lines[3])
        top.type("q")
        lines = top.wait_for_text("ended with 0")
        self.assertNotIn("COMMAND", "".join(lines))
        self.assertEqual(top.scrolled_away(), 0)

    def test_each_key_sorts(self):
        """Four programs, A to D by PID, in another order for each column."""
        programs = sorted((self.program() for _ in range(4)), key=lambda program: program.pid)
        names, rates, local, far = (b"b", b"d", b"a", b"c"), (4, 8, 2, 6), (20, 10, 40, 30), (100, 200, 300, 400)
        p50, p99, p99all = (4000, 1000, 3000, 2000), (20000, 30000, 40000, 10000), (300000, 200000, 100000, 400000)
        for i, program in enumerate(programs):
            self.poke(program, b"statswriter", b"statswri-" + names[i] + b"\0")
            self.poke(program, 63 << 20, local[i] << 20)
            self.poke(program, 512 << 20, far[i] << 20)
            self.fault(program, 5000, p99all[i])
        self.keep_faulting(programs, lambda i: [(9 * rates[i], p50[i]), (rates[i], p99[i])])
        with self.top() as top:
            top.wait_for(lambda lines: self.pids(lines))
            for key, title, order in (("5", "P50", "ACDB"), ("9", "P99", "CBAD"), ("a", "P99ALL", "DABC"), ("l", "local memory", "CDAB"),
                                      ("m", "far memory", "DCBA"), ("r", "bytes read", "BDAC"), ("w", "bytes written", "BDAC"),
                                      ("p", "PID", "ABCD"), ("c", "command", "CADB"), ("f", "faults/s", "BDAC")):
                pids = [programs["ABCD".index(letter)].pid for letter in order]
                top.type(key)
                top.wait_for(lambda lines, title=title, pids=pids: lines[0].endswith("by " + title) and self.pids(lines) == pids)

    def test_a_rate_is_known_after_two_looks(self):
        """The first drawing lasts a second: this test reads the bytes that made it."""
        self.program()
        output, drawn = self.path("output", ""), ""
        command = ["sh", "-c", 'read go; exec "$0" top', toolcase.FARPAGE]
        with terminal.Terminal(command, env=self.runtime_env()) as top:
            top.tmux("pipe-pane", f"cat > {output}")
            top.type("Enter")
            top.wait_for_text("q quit")
            while "q quit" not in drawn:
                with open(output, encoding="utf-8") as file:
                    drawn = file.read()
        drawn = drawn.partition("q quit")[0]
        self.assertIn("- faults/s", drawn)
        self.assertRegex(drawn, r"statswriter(?:[ \t]|\x1b\[[0-9;]*[A-Za-z])*-")

    def test_none_interrupt_and_trouble(self):
        with self.top(60, 15) as top:
            top.wait_for(lambda lines: "0 programs" in lines[0] and "has far memory now" in lines[3])
            os.truncate(os.path.join(self.runtime, f"{self.program().pid}.stats"), 4096)
            top.wait_for(lambda lines: "cut short" in lines[-1])  # a warning disturbs nothing
            os.chmod(self.runtime, 0o777)
            lines = top.wait_for_text("ended with 1")
            self.assertIn("chmod 700", "".join(lines))
            os.chmod(self.runtime, 0o700)
        with self.top() as top:
            top.wait_for_text("has far memory now")
            top.type("C-c")
            top.wait_for_text("ended with 0")

    def test_every_end_gives_the_terminal_back(self):
        for end in ("q", "C-c", "C-\\", signal.SIGTERM, signal.SIGHUP):
            with self.subTest(end), self.top() as top:
                top.wait_for_text("has far memory now")
                self.assertFalse(top.is_plain())
                if isinstance(end, str):
                    top.type(end)
                else:
                    top.signal(end)
                top.wait_for_text("ended with 0")
                self.assertTrue(top.is_plain())

    def test_stop_resize_and_go_on(self):
        self.program()
        with terminal.Terminal(["bash", "--norc", "-i"], env={**self.runtime_env(), "PS1": "> "}) as shell:
            shell.wait_for_text(">")
            shell.type(f"{toolcase.FARPAGE} top", "Enter")
            shell.wait_for(lambda lines: len(lines) == 24 and "q quit" in lines[-1])
            shell.type("C-z")
            shell.wait_for_text("Stopped")
            shell.resize(60, 15)
            shell.type("fg", "Enter")
            lines = shell.wait_for(lambda lines: len(lines) == 15 and "q quit" in lines[-1] and self.pids(lines))
            self.assertFits(lines, 60, 15)
            self.assertFalse(shell.wraps(), lines)
            shell.type("q")
            shell.wait_for(lambda lines: not self.pids(lines))

    def test_a_node_counts_once(self):
        """However many programs it serves. Each of these has one lost node, and one that is cut
        off."""
        for _ in range(3):
            self.program()
        with self.top() as top:
            lines = top.wait_for(lambda lines: "3 programs" in lines[0])
            self.assertIn("nodes: 1 lost, 1 cut off ", lines[1])

    def test_keys_that_are_none(self):
        """NUL, and sequences that the terminal's description does not have."""
        self.program()
        with self.top() as top:
            top.wait_for_text("statswriter")
            top.type("C-Space")
            top.type("-H", "1b", "5b", "39", "39", "3b", "35", "70")
            top.type("?")
            top.wait_for_text("keys sort by a column")
            top.type("q")
            lines = top.wait_for_text("statswriter")
            self.assertRegex(lines[0], "by faults/s$")

    def test_what_another_program_writes(self):
        """^L draws over it. LINES and COLUMNS of the environment do not count."""
        with self.top(LINES="7", COLUMNS="40") as top:
            top.wait_for_text("has far memory now")
            top.write("\033[12;1Hfrom elsewhere")
            top.wait_for_text("from elsewhere")
            top.type("C-l")
            lines = top.wait_for(lambda lines: "from elsewhere" not in "".join(lines))
            self.assertIn("has far memory now", lines[3])
            self.assertIn("q quit", lines[23])

    def test_no_descriptors(self):
        """It says why it ends."""
        command = ["prlimit", "--nofile=4", toolcase.FARPAGE, "top"]
        with terminal.Terminal(command, env=self.runtime_env()) as top:
            self.assertIn("farpage: screen: ", "".join(top.wait_for_text("ended with 1")))

    def test_a_name_controls_nothing(self):
        name = self.path("a\033[7mb\u009bc€")
        os.symlink(STATSWRITER, name)
        self.program(name=name)
        with self.top() as top:
            top.wait_for(lambda lines: lines[3].split()[1:2] == ["a?[7mb?c€"])
        json_text = self.farpage("ps", "--json")[1]
        self.assertTrue(json_text.isascii(), json_text)
        self.assertEqual(json.loads(json_text)[0]["command"], os.path.basename(name))

    def test_a_terminal_that_can_do_little(self):
        """Tables, one after the other; a locale without UTF-8 gets ASCII."""
        program = self.program()
        for term in ("TERM=dumb", "TERM=no-such-terminal", "--unset=TERM"):
            command = ["env", term, toolcase.FARPAGE, "top"]
            with self.subTest(term), terminal.Terminal(command, env=self.runtime_env()) as top:
                self.assertEqual(self.pids(top.wait_for_text("statswriter"))[0], program.pid)
                top.wait_for(lambda lines: len(self.pids(lines)) > 1)
                self.assertFalse(top.wraps(), top.history())
        with self.top(LC_ALL="C") as top:
            lines = top.wait_for_text("statswriter")
            self.assertRegex("".join(lines), "[0-9]us ")


class Ps(WithPrograms):
    """Its tables fit the terminal, but have all columns in a pipe."""

    def test_sizes(self):
        self.program()
        text = self.farpage("ps")[1].decode()
        self.assertIn("tcp://other-way?", text)
        for columns, rows, shows in ((80, 24, "p99"), (60, 15, "budget"), (120, 30, "nodes"), (200, 50, "nodes")):
            with terminal.Terminal([toolcase.FARPAGE, "ps"], columns, rows, self.env) as window:
                window.wait_for_text("ended with 0")
                self.assertFalse(window.wraps(), window.screen())
                lines = window.history()
                self.assertIn(shows, lines[1].split())
                self.assertTrue(any("other-way" in line and "cut off" in line for line in lines), lines)
                self.assertEqual(any("shortened" in line for line in lines), columns < 200)

    def test_wide_characters(self):
        """A name of five of them is ten columns wide."""
        name = self.path("日本語日本")
        os.symlink(STATSWRITER, name)
        self.program()
        self.program(name=name)
        with terminal.Terminal([toolcase.FARPAGE, "ps"], env=self.runtime_env()) as window:
            window.wait_for_text("ended with 0")
            first, second = sorted(line.index("512.0 MiB") for line in window.screen() if "512.0 MiB" in line)
            self.assertEqual(first + 5, second)  # aligned: tmux gives such a character once

    def test_no_faults_yet(self):
        self.program("idle")
        lines = self.farpage("ps")[1].decode().splitlines()
        row = dict(zip(lines[1].split(), re.split("  +", lines[2].strip())))
        self.assertEqual((row["p50"], row["p99"], row["faults"]), ("-", "-", "0"))

    def test_none(self):
        self.assertEqual(self.farpage("ps"), (0, b"No program of this user has far memory now.\n", ""))


class InAPipe(WithPrograms):
    def test_a_rate_is_known_after_two_looks(self):
        self.program()
        top = self.start("top", stdout=subprocess.PIPE)
        rates = []
        while len(rates) < 2:
            titles = self.line(top).split()
            if titles[:1] == ["pid"]:
                rates.append(re.split("  +", self.line(top).strip())[titles.index("faults/s")])
        self.assertEqual(rates, ["-", "0"])
        top.terminate()
        self.assertEqual(top.wait(toolcase.TIMEOUT), 0)


class AsJson(WithPrograms):
    def test_two_far_memories_in_one_process(self):
        """Each has a row, and is compared with itself. `farpage hist` adds them up."""
        program = self.program("two")
        top = self.start("top", "--json", stdout=subprocess.PIPE)

        def look():
            shown = json.loads(self.line(top))["programs"]
            self.assertEqual([row["pid"] for row in shown], [program.pid] * 2)
            return [row["faults_per_s"] for row in shown]
        self.assertEqual(look(), [0, 0])
        self.fault(program, 1000, 5000)
        while (rates := look()) == [0, 0]:
            pass
        self.assertGreater(rates[0], 100)
        self.assertEqual(rates[1], 0)
        top.terminate()
        top.wait(toolcase.TIMEOUT)
        for of in ([], ["--pid", str(program.pid)]):
            status, out, err = self.farpage("hist", "--format", "json", *of)
            self.assertEqual((status, err, json.loads(out)["count"]), (0, "", 3100))

    def test_ends_within_output_that_is_stuck(self):
        for _ in range(8):
            pid = self.program().pid
        for command in ("top", "--json"), ("hist", "--live", "--format", "csv", "--pid", str(pid)):
            for number in signal.SIGINT, signal.SIGTERM:
                with self.subTest(command, signal=number):
                    pipe, end = os.pipe()
                    self.addCleanup(os.close, pipe)
                    size = fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
                    process = self.start(*command, stdout=end)
                    os.close(end)
                    self.wait_until(lambda: self.unread(pipe) == size)
                    process.send_signal(number)
                    self.assertEqual(process.wait(toolcase.TIMEOUT), 0)

    @staticmethod
    def unread(pipe):
        return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]

    def wait_until(self, holds):
        deadline = time.monotonic() + toolcase.TIMEOUT
        while not holds():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def test_counters_that_no_json_number_holds(self):
        program = self.program()
        self.poke(program, 512 << 20, 2**64 - 1)
        self.assertEqual(json.loads(self.farpage("ps", "--json")[1])[0]["mapped_bytes"], 2**63 - 1)
        self.assertNotIn("-1", self.farpage("ps")[1].decode().splitlines()[2])

    def test_a_line_for_each_second(self):
        program = self.program()
        top = self.start("top", "--json", stdout=subprocess.PIPE)
        shown = json.loads(self.line(top))
        (first,) = shown["programs"]
        self.assertEqual((first["pid"], first["command"], first["uid"]), (program.pid, "statswriter", os.geteuid()))
        self.assertEqual((first["faults_per_s"], first["interval_fault_p99_ns"]), (0, None))
        self.assertGreater(shown["interval_ns"], 10**8)
        self.fault(program, 1000, 5000)
        while not (second := json.loads(self.line(top))["programs"][0])["faults_per_s"]:
            pass
        self.assertAlmostEqual(second["interval_fault_p50_ns"], 5e6, delta=5e4)
        self.assertAlmostEqual(second["fault_p99_ns"], 5e6, delta=5e4)
        self.assertAlmostEqual(second["fetched_bytes_per_s"] / 4096, second["faults_per_s"], delta=1)
        self.end(program)
        while json.loads(self.line(top))["programs"]:
            pass
        top.terminate()
        self.assertEqual(top.wait(toolcase.TIMEOUT), 0)


@unittest.skipIf(os.geteuid(), "needs root, to be two users")
class AllUsers(WithPrograms):
    """Root sees every user's programs, wherever their folder is; an ordinary user sees its own."""

    def setUp(self):
        super().setUp()
        del self.env["FARPAGE_RUNTIME_DIR"]  # else root sees this folder alone
        self.folder = tempfile.mkdtemp(prefix="farpage-other.", dir="/var/tmp")
        self.addCleanup(shutil.rmtree, self.folder)
        os.chown(self.folder, OTHER, OTHER)
        self.as_other = ("setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups")
        self.other = self.program(folder=self.folder, prefix=self.as_other)
        self.own = self.program()

    def runtime_env(self):
        return {}

    def ps(self, *prefix):
        done = subprocess.run([*prefix, toolcase.FARPAGE, "ps", "--json"], env=self.env, capture_output=True, check=True,
                              timeout=toolcase.TIMEOUT)
        return {program["pid"]: program for program in json.loads(done.stdout)}

    def test_ps(self):
        seen = self.ps()
        self.assertEqual((seen[self.other.pid]["uid"], seen[self.other.pid]["user"]), (OTHER, str(OTHER)))
        self.assertEqual((seen[self.own.pid]["uid"], seen[self.own.pid]["user"]), (0, "root"))
        text = self.farpage("ps")[1].decode()
        self.assertRegex(text, rf"(?m)^ +{self.other.pid} +{OTHER} +statswriter ")
        self.assertEqual(os.listdir(self.folder), [f"{self.other.pid}.stats"])

    def test_a_file_of_another_user(self):
        """A program is its user's, whoever owns the file."""
        path = os.path.join(self.folder, f"{self.other.pid}.stats")
        os.chown(path, OTHER + 1, OTHER)
        self.assertEqual(self.ps()[self.other.pid]["uid"], OTHER)

    def test_a_folder_that_is_named_is_the_only_one(self):
        self.env["FARPAGE_RUNTIME_DIR"] = self.runtime
        self.assertEqual(list(self.ps()), [self.own.pid])

    def test_another_user_sees_its_own(self):
        """Wherever the folder of a program is."""
        shared = os.path.join(self.folder, "farpage")
        os.rename(os.path.join(self.folder, f"{self.other.pid}.stats"), os.path.join(self.folder, "x"))
        os.mkdir(shared, 0o700)
        os.chown(shared, OTHER, OTHER)
        own = self.program(folder=shared, prefix=self.as_other)
        self.env["XDG_RUNTIME_DIR"] = self.folder
        self.assertEqual(list(self.ps(*self.as_other)), sorted((own.pid, self.other.pid)))
        self.assertIn(self.other.pid, self.ps())  # root finds it, too

    def test_two_far_memories_in_one_process(self):
        program = self.program("two", folder=self.folder, prefix=self.as_other)
        shown = json.loads(self.farpage("ps", "--json")[1])
        self.assertEqual([row["pid"] for row in shown].count(program.pid), 2)

    def test_a_process_that_maps_a_file_very_often(self):
        """It cannot keep root's ps busy."""
        code = f"""
import ctypes, fcntl, mmap, os, sys
size, path = {os.path.getsize(os.path.join(self.folder, f"{self.other.pid}.stats"))}, sys.argv[1]
libc = ctypes.CDLL(None)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_size_t]
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
os.truncate(fd, size + mmap.PAGESIZE)
fcntl.flock(fd, fcntl.LOCK_EX)
for _ in range(60000):
    libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
os.write(1, b"ready\\n")
os.read(0, 1)
"""
        process = subprocess.Popen([*self.as_other, sys.executable, "-c", code, os.path.join(self.folder, "many")],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(self._end, process)
        self.assertEqual(self.line(process), "ready")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.assertIn(self.other.pid, self.ps())
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.assertLess(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3)

    def test_root_without_capabilities(self):
        """It sees its own programs only, and says so."""
        pid = str(self.other.pid)
        for lost in "-sys_admin,-checkpoint_restore", "-sys_ptrace":
            done = subprocess.run(["setpriv", f"--bounding-set={lost}", f"--inh-caps={lost}", toolcase.FARPAGE, "hist", "--pid", pid], env=self.env,
                                  capture_output=True, text=True, timeout=toolcase.TIMEOUT)
            self.assertEqual(done.returncode, 1)
            self.assertIn("or is another user's", done.stderr)

    def test_hist(self):
        status, out, err = self.farpage("hist", "--pid", str(self.other.pid), "--format", "json")
        self.assertEqual((status, err, json.loads(out)["count"]), (0, "", 1000))

    def test_a_page_that_names_another_process(self):
        """A user cannot speak for another's program."""
        path = os.path.join(self.folder, f"{self.other.pid}.stats")
        with open(path, "r+b") as page:
            page.seek(16)  # pid
            page.write(self.own.pid.to_bytes(4, "little"))
        seen = self.ps()
        self.assertNotIn(self.other.pid, seen)
        self.assertEqual(seen[self.own.pid]["uid"], 0)

    def test_a_page_of_any_bytes(self):
        """A user cannot hide a program by bytes in its page."""
        with open(os.path.join(self.folder, f"{self.other.pid}.stats"), "r+b") as page:
            data = page.read()
            for text in b"statswriter", b"thread", b"move", b"tcp://far":
                page.seek(data.index(text))
                page.write(b"\xff")
        seen = self.ps()[self.other.pid]
        self.assertEqual((seen["command"], seen["fault_mode"], seen["capture"]), ("?tatswriter", "?hread", "?ove"))
        self.assertEqual(seen["nodes"][0]["url"][:5], "?cp:/")
        self.assertRegex(self.farpage("ps")[1].decode(), rf"(?m)^ +{self.other.pid} +{OTHER} +\?tatswriter +\?hread ")

    def test_top(self):
        with self.top() as top:
            lines = top.wait_for(lambda lines: {self.own.pid, self.other.pid} <= set(self.pids(lines)))
            self.assertFits(lines, 80, 24)
            self.assertEqual(lines[2].split()[:3], ["PID", "USER", "COMMAND"])
            self.assertIn("P99ALL", lines[2])
            self.assertIn([str(self.other.pid), str(OTHER)], [line.split()[:2] for line in lines])
            top.resize(80, 200)  # other programs of this machine are there, too
            for title in ("by user", "by user, reversed"):
                top.type("u")
                pids = self.pids(top.wait_for(lambda lines, title=title: lines[0].endswith(title) and len(lines) == 200 and "q quit" in lines[-1]))
                self.assertEqual(pids.index(self.other.pid) < pids.index(self.own.pid), title == "by user")


if __name__ == "__main__":
    terminal.need_tmux()
    toolcase.main(needs_userfaultfd=False)
