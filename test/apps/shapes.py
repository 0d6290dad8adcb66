#!/usr/bin/python3
"""Programs of unusual shape, and memory in the hands of the kernel and of others: right, or refused
with a message.

argv: the helpers shapes, kernelio, confine and the library plugin; the fault mode, if it is not
thread. Each is run plain and with far memory, and must print the same. What can't work is refused:
the tests say with which words.
"""
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

import farapp

SHAPES, KERNELIO, CONFINE, PLUGIN = map(os.path.abspath, sys.argv[1:5])
MODE = sys.argv[5] if len(sys.argv) > 5 else "thread"
LOCAL = "3M"
TIMEOUT = 180
REFUSED = 125
ORDINARY_USER = 65534


def run(*command, **options):
    """Status, stdout and stderr."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False, **options)
    return done.returncode, done.stdout, done.stderr


def far(*command, options=(), **more):
    return run(farapp.farpage, "run", "--fault-mode", MODE, "--local-memory", LOCAL, *options, "--", *command, **more)


class Shapes(unittest.TestCase):
    def assertSame(self, *command, options=(), env=None, quiet=True):
        """Plain and far the same, not a word from Farpage, and pages came back from the node."""
        plain = run(*command, env=env)
        status, out, err = far(*command, options=(*options, "--report"), env=env)
        said, _, report = err.partition("farpage: report:")
        self.assertEqual((status, out), plain[:2], err)
        self.assertEqual(plain[0], 0, plain[1] + plain[2])
        if quiet:
            self.assertEqual(said, "")
        moved = re.search(r"moved: fetched ([0-9.]+) [KMG]iB, written ([0-9.]+) [KMG]iB", report)
        self.assertTrue(moved, f"too little moved: was it far memory?\n{err}")

    def test_threads_by_the_thousand(self):
        self.assertSame(SHAPES, "threads")

    def test_signals_in_showers(self):
        self.assertSame(SHAPES, "signals")

    def test_guard_pages(self):
        self.assertSame(SHAPES, "guards")

    def test_libraries_that_come_and_go(self):
        self.assertSame(SHAPES, "libraries", PLUGIN)

    def test_locale(self):
        """In children too, whose threads all look at it."""
        self.assertSame(SHAPES, "locale")

    def test_printf_of_its_own(self):
        self.assertSame(SHAPES, "formats", options=("--local-memory", "1M"))

    def test_preload_of_others(self):
        """LD_PRELOAD in use already: other allocators come after ours, and are not used."""
        libraries = {name: find_library(name) for name in ("jemalloc.so.2", "tcmalloc_minimal.so.4", "mimalloc.so.2.0")}
        for name, path in libraries.items():
            with self.subTest(name):
                if not path:
                    self.skipTest(f"lib{name} is not installed")
                self.assertSame(SHAPES, "table", env={**os.environ, "LD_PRELOAD": path})
        self.assertSame(SHAPES, "table", env={**os.environ, "LD_PRELOAD": PLUGIN})

    def test_jemalloc_of_its_own(self):
        """A library in the program's own folder that has the name of the allocator that Farpage
        uses, and nothing of it."""
        if not os.path.exists(os.path.join(farapp.build, "preload", "libfarpage-jemalloc.so")):
            self.skipTest("Farpage was built without an archive of jemalloc")
        own = os.path.join(farapp.workdir, "own")
        os.mkdir(own)
        shutil.copy(PLUGIN, os.path.join(own, "libjemalloc.so.2"))
        self.assertSame(SHAPES, "table", env={**os.environ, "LD_LIBRARY_PATH": own})

    def test_direct_io(self):
        for capture in ("move", "protect"):
            self.assertSame(KERNELIO, "direct", folder(), options=("--capture", capture))
            self.assertSame(KERNELIO, "readers", folder(), options=("--capture", capture, "--local-memory", "1M"))

    def test_fixed_buffers(self):
        status, out, _ = run(KERNELIO, "fixed", folder())
        if status == farapp.SKIPPED:
            self.skipTest(out)
        self.assertSame(KERNELIO, "fixed", folder())
        self.assertSame(KERNELIO, "border", folder())

    def test_more_is_pinned_than_may_be_local(self):
        """One page waits for the deadline, not each of them: then it would take half an hour."""
        status, out, _ = run(KERNELIO, "fixed", folder())
        if status == farapp.SKIPPED:
            self.skipTest(out)
        self.assertSame(KERNELIO, "pinned", folder(), options=("--deadline", "1s"))

    def test_pages_lent_to_a_pipe(self):
        for capture in ("move", "protect"):
            self.assertSame(KERNELIO, "lend", options=("--capture", capture))

    def test_others_look(self):
        self.assertSame(KERNELIO, "seen")

    def test_shared_memory_stays_local(self):
        self.assertSame(KERNELIO, "shared", folder())
        _, _, err = far(KERNELIO, "shared", folder(), options=("--report",))
        self.assertRegex(err, r"not far:.*shared [1-9][0-9.]* MiB")

    def test_userfaultfd_is_taken_away(self):
        """By a filter, when the program runs: strictly for itself, or mildly for all its
        threads."""
        for way in ("strict", "all-threads"):
            with self.subTest(way):
                self.assertSame(CONFINE, way)


    def test_userfaultfd_of_its_own(self):
        """A range can be registered once only. Memory that stays local is the program's."""
        self.assertEqual(run(CONFINE, "userfaultfd")[0], 0)
        status, out, _ = far(CONFINE, "userfaultfd")
        self.assertEqual((status, out), (1, "UFFDIO_REGISTER: Device or resource busy\n"))
        self.assertEqual(far(CONFINE, "userfaultfd", env={**os.environ, "FARPAGE_MIN_MAPPING": "1G"})[0], 0)


class Looks(unittest.TestCase):
    """A debugger, and what a crash leaves."""

    def test_debugger(self):
        """It can't see what is far, and says so; once brought in, it can. Nothing hangs."""
        gdb = shutil.which("gdb")
        if not gdb:
            self.skipTest("gdb is not installed")
        process = subprocess.Popen(
            [farapp.farpage, "run", "--fault-mode", MODE, "--local-memory", LOCAL, "--", KERNELIO, "sit"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self.assertTrue(select.select([process.stdout], [], [], TIMEOUT)[0])
            pid, address, _ = process.stdout.readline().split()
            status, out, err = run(
                gdb, "--batch", "-nx", "-p", pid, "-ex", f"x/gx {address}", "-ex", f"call (int)madvise({address}, 65536, 22)",
                "-ex", f"x/gx {address}")
            if "ptrace:" in err:
                self.skipTest("ptrace is not permitted here")
            self.assertEqual(status, 0, out + err)
            self.assertIn(f"Cannot access memory at address {address}", out + err)
            self.assertRegex(out, r"0x9e3779b97f4a7c1a")
            out, _ = process.communicate("", TIMEOUT)
            self.assertEqual((process.returncode, out), (0, "sit: every word as it should be\n"))
        finally:
            process.kill()
            process.wait()

    def dump(self, number, *options):
        """Dies by a signal. Returns how many pages of its core are right and zero, and what was
        said."""
        with open("/proc/sys/kernel/core_pattern", encoding="ascii") as pattern:
            if pattern.read().strip() not in ("core", "core.%p"):
                self.skipTest("cores do not go to the current folder here")
        cores = tempfile.mkdtemp(prefix="cores.", dir=farapp.workdir)
        self.addCleanup(shutil.rmtree, cores)
        status, out, err = far(KERNELIO, "dump", str(int(number)), options=options, cwd=cores)
        self.assertEqual(status, -number, err)
        if not os.listdir(cores):
            self.skipTest("this system dumps no cores")
        address, length = (int(word, 0) for word in out.split())
        memory = core_memory(os.path.join(cores, os.listdir(cores)[0]), address, length)
        kinds = {"right": 0, "zero": 0}
        for page in range(0, length, 4096):
            first = page // 8
            words = struct.unpack("<512Q", memory[page : page + 4096])
            expected = tuple(((first + i + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1) ^ 16 for i in range(512))
            kinds["zero" if not any(words) else "right" if words == expected else "wrong"] += 1
        self.assertEqual(kinds["right"] + kinds["zero"], length // 4096)
        return kinds["right"], kinds["zero"], err

    def test_core_dump(self):
        """It is written at once. What was local is right; what was far is missing, and reads as
        zeros."""
        _, zero, err = self.dump(signal.SIGABRT)
        self.assertGreater(zero, 0)
        said = re.fullmatch(r"farpage: run: the core dump of process \d+ has zeros in the place of up to (\d+) far pages: --core full .*\n", err)
        self.assertTrue(said, err)
        self.assertGreaterEqual(int(said[1]), zero)

    def test_full_core_dump(self):
        """Far pages come in first, and the status is as without: after abort, a fault, and a signal
        in another thread."""
        for number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGQUIT):
            with self.subTest(number):
                right, zero, err = self.dump(number, "--core", "full")
                self.assertGreater(right, 0)
                self.assertEqual(zero, 0)
                self.assertRegex(err, r"^farpage: core: \d+ far pages \(.*\) were brought in for the core dump\n$")

    def test_no_core_dump(self):
        """Without a core nothing is brought in, and nothing is said."""
        self.assertEqual(far(KERNELIO, "nocore", options=("--core", "full")), (-signal.SIGABRT, "", ""))


class Places(unittest.TestCase):
    """Programs that want memory at a place of their choice, and have it plain."""

    def test_luajit(self):
        """Machine code lies near its compiler. Without, nothing is compiled."""
        luajit = shutil.which("luajit")
        if not luajit:
            self.skipTest("luajit is not installed")
        script = "local s = 0 for i = 1, 1e6 do s = (s + i) % 7 end print(s, require('jit.util').traceinfo(1) ~= nil)"
        plain = run(luajit, "-e", script)
        self.assertIn("true", plain[1])
        self.assertEqual(far(luajit, "-e", script), plain)

    def test_java(self):
        """A heap that ends below 32 GiB has short pointers without a base to add."""
        java = shutil.which("java")
        if not java:
            self.skipTest("java is not installed")
        for size, plain in (("1G", "32-bit"), ("6G", "Zero based")):  # nothing below 4 GiB is far
            with self.subTest(size):
                command = (java, f"-Xmx{size}", "-Xlog:gc+heap+coops=debug", "-version")
                self.assertIn(plain, run(*command)[1])
                status, out, err = far(*command)
                self.assertEqual(status, 0, err)
                self.assertIn("Zero based", out)


class Refusals(unittest.TestCase):
    def assertRefused(self, outcome, *words):
        self.assertEqual(outcome[0], REFUSED, outcome)
        for word in words:
            self.assertIn(word, outcome[2])

    def test_set_user_id(self):
        if os.getuid():
            self.skipTest("only root can make a set-user-ID program of another user")
        program = os.path.join(farapp.workdir, "setuid")
        shutil.copy(SHAPES, program)
        os.chown(program, ORDINARY_USER, ORDINARY_USER)
        os.chmod(program, 0o4755)
        self.assertRefused(far(program, "table"), "set-user-ID", program)

    def test_go(self):
        """Go's own linker makes static programs; with the C library in it, a program's heap is
        far."""
        go = shutil.which("go")
        if not go:
            self.skipTest("go is not installed")
        self.assertRefused(far(build_go(go, cgo=False)), "statically linked", "Go", "CGO_ENABLED=1")
        program = build_go(go, cgo=True)
        plain, outcome = run(program), far(program)
        self.assertEqual((plain[0], outcome[0], outcome[1]), (0, 0, plain[1]), outcome[2])

    def test_docker(self):
        """Its default profile: the private node is refused, and with another one and the device it
        works."""
        status, out, _ = run(CONFINE, "docker", "/bin/true")
        self.assertEqual(status, 0, out)
        command = (farapp.farpage, "run", "--fault-mode", MODE, "--local-memory", LOCAL)
        self.assertRefused(run(CONFINE, "docker", *command, "--", SHAPES, "table"), "io_uring", "seccomp")
        node = farapp.Node("256M")
        self.addCleanup(node.stop)
        if os.access("/dev/userfaultfd", os.R_OK | os.W_OK):
            outcome = run(CONFINE, "docker", *command, "--node", node.url, "--", SHAPES, "table")
            self.assertEqual(outcome, (0, "table: every word as it should be\n", ""))

    def test_limits(self):
        """Too little address space is said; few descriptors and next to no locked memory do."""
        limited = (farapp.farpage, "run", "--fault-mode", MODE, "--local-memory", LOCAL)
        self.assertRefused(run("/usr/bin/prlimit", "--as=200000000", *limited, "--", SHAPES, "table"), "memory")
        for limit in ("--as=4096000000", "--data=4096000000", "--nofile=32", "--memlock=65536"):
            with self.subTest(limit):
                outcome = run("/usr/bin/prlimit", limit, *limited, "--", SHAPES, "table")
                self.assertEqual(outcome[:2], (0, "table: every word as it should be\n"), outcome[2])


def folder():
    """Where O_DIRECT works, if anywhere: not under /tmp, which may be memory."""
    return farapp.build


def find_library(name):
    found = [os.path.join(top, "lib" + name) for top in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib")]
    return next((path for path in found if os.path.exists(path)), None)


GO = """
package main
%s
import ("fmt"; "hash/fnv"; "sort"; "sync")
type node struct { id int; text []byte; next *node }
func main() {
	%s
	var wait sync.WaitGroup
	sums := make([]uint64, 8)
	for w := 0; w < 8; w++ {
		wait.Add(1)
		go func(w int) {
			defer wait.Done()
			var list *node
			byName := map[string]*node{}
			for i := 0; i < 3000; i++ {
				list = &node{i, make([]byte, 1000+i%%500), list}
				for k := range list.text { list.text[k] = byte(i + k + w) }
				if i%%3 == 0 { byName[fmt.Sprint(i, "-", w)] = list }
			}
			names := []string{}
			for name := range byName { names = append(names, name) }
			sort.Strings(names)
			hash := fnv.New64a()
			for _, name := range names { hash.Write([]byte(name)); hash.Write(byName[name].text) }
			for n := list; n != nil; n = n.next { hash.Write(n.text[:8]) }
			sums[w] = hash.Sum64()
		}(w)
	}
	wait.Wait()
	fmt.Println(sums)
}
"""


def build_go(go, cgo):
    source = os.path.join(farapp.workdir, "graph.go")
    program = os.path.join(farapp.workdir, "go-cgo" if cgo else "go-static")
    with open(source, "w", encoding="ascii") as out:
        out.write(GO % (('import "C"', "_ = C.int(0)") if cgo else ("", "")))
    env = {**os.environ, "CGO_ENABLED": str(int(cgo)), "GOCACHE": os.path.join(farapp.workdir, "go-cache"), "GO111MODULE": "off",
           "GOFLAGS": ""}
    status, out, err = run(go, "build", "-o", program, source, env=env)
    farapp.check(status == 0, out + err)
    return program


def core_memory(path, address, length):
    """What a core file holds of [address, address + length)."""
    memory = bytearray(length)
    with open(path, "rb") as core:
        header = core.read(64)
        offset, (size, count) = struct.unpack_from("<Q", header, 32)[0], struct.unpack_from("<HH", header, 54)
        for i in range(count):
            core.seek(offset + i * size)
            kind, _, at, start, _, in_file, _, _ = struct.unpack("<IIQQQQQQ", core.read(56))
            low, high = max(start, address), min(start + in_file, address + length)
            if kind == 1 and low < high:
                core.seek(at + low - start)
                memory[low - address : high - address] = core.read(high - low)
    return memory


if __name__ == "__main__":
    farapp.need_userfaultfd()
    unittest.main(argv=sys.argv[:1], verbosity=2)
