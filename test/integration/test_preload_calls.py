"""Every function of the installed C library that makes a system call with a pointer is in the table
of calls.

The list comes from the library itself: its exported functions whose code holds a syscall
instruction, or which call code that does, at any depth, crossed with the prototypes in its
headers. Each must have a row in preload/syscalls/calls.def, be defined by another file of the
preload library, or stand in calls_exceptions.txt with the reason why none of that is needed.
--verbose shows which.

What the preload library defines, it must define by every name that the C library exports.
"""
import argparse
import bisect
import collections
import os
import re
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
TABLE = os.path.join(HERE, "../../preload/syscalls/calls.def")
EXCEPTIONS = os.path.join(HERE, "calls_exceptions.txt")
SKIPPED = 77
# where a search for callers ends: what ends the program, and the writing of streams' buffers
ENDS = {"abort", "__libc_fatal", "__assert_fail", "__chk_fail", "__stack_chk_fail", "__fortify_fail", "exit", "_exit", "_IO_file_overflow"}
ENDS |= {"_dl_exception_create", "__libc_start_main", "error", "warn", "err", "verr", "verrx", "__lll_lock_wait_private", "__lll_lock_wake_private"}
POINTER = re.compile(r"[*\[]|\.\.\.|va_list|_SOCKADDR_ARG|_ptr_t")


def output(*command, check=True):
    return subprocess.run(command, check=check, capture_output=True, text=True).stdout


def c_library():
    with open("/proc/self/maps", encoding="ascii") as maps:
        return next(line.split()[-1] for line in maps if re.search(r"/libc[.-][^/]*so", line))


# ---- the library's code ----


class Code:
    """Functions of a library by their unwind tables: it has no names for most of them."""

    def __init__(self, path):
        self.path = path
        frames = output("readelf", "--debug-dump=frames-interp", path, check=False)  # it misses what was stripped
        pairs = re.findall(r"FDE .*pc=([0-9a-f]+)\.\.([0-9a-f]+)", frames)
        self.ranges = sorted((int(start, 16), int(end, 16)) for start, end in pairs)
        self.starts = [start for start, _ in self.ranges]
        self.names = collections.defaultdict(set)  # exported, by address
        self.ends = set()
        for line in output("readelf", "--wide", "--dyn-syms", path).splitlines():
            f = line.split()
            if len(f) >= 8 and f[3] in ("FUNC", "IFUNC") and f[6] != "UND" and f[4] in ("GLOBAL", "WEAK"):
                name, _, version = f[7].partition("@")
                if name in ENDS:
                    self.ends.add(int(f[1], 16))
                if version.strip("@") != "GLIBC_PRIVATE":  # no program can link to those
                    self.names[int(f[1], 16)].add(name)

    def owner(self, address):
        i = bisect.bisect_right(self.starts, address) - 1
        return self.starts[i] if i >= 0 and address < self.ranges[i][1] else None

    def callers_of_kernel(self):
        """(functions with a syscall instruction, functions that call or jump to one of those, at
        any depth)."""
        direct, callers = set(), collections.defaultdict(set)
        instruction = re.compile(r"^\s*([0-9a-f]+):\s+(syscall|call|j\w+)\b\s*(?:([0-9a-f]+) <)?", re.M)
        for at, name, target in instruction.findall(output("objdump", "-d", "--no-show-raw-insn", self.path)):
            owner = self.owner(int(at, 16))
            if owner is None:
                continue
            if name == "syscall":
                direct.add(owner)
            elif target:
                callers[self.owner(int(target, 16))].add(owner)
        above, new = set(), direct - self.ends
        while new:
            new = set().union(*(callers[f] for f in new)) - above - direct - self.ends - {None}
            above |= new
        return direct, (above | set().union(*(callers[f] for f in direct))) - direct - {None}


# ---- its prototypes ----


def headers():
    paths = output("dpkg", "--listfiles", "libc6-dev").split()
    return [p for p in paths if re.search(r"/include/.*\.h$", p) and not re.search(r"/(bits|asm|scsi|rpc|finclude)/|stubs", p)]


def prototypes(folder):
    """Arguments by name, as the compiler understands all headers that compile together."""
    left = headers()
    source, info = os.path.join(folder, "all.c"), os.path.join(folder, "all.X")
    while True:
        with open(source, "w", encoding="ascii") as f:
            f.write("#include <stdio.h>\n#include <sys/types.h>\n" + "".join(f'#include "{p}"\n' for p in left))
        done = subprocess.run(
            ["gcc", "-w", "-D_GNU_SOURCE", "-O2", "-D_FORTIFY_SOURCE=2", "-c", "-o", "/dev/null", "-aux-info", info, source],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            break
        bad = {int(n) - 3 for n in re.findall(re.escape(source) + r":(\d+)[:,]", done.stderr)}
        bad |= {i for i, p in enumerate(left) if re.search("^" + re.escape(p) + r":\d+:\d+: (fatal )?error", done.stderr, re.M)}
        if not bad:
            raise RuntimeError(done.stderr)
        left = [p for i, p in enumerate(left) if i not in bad]
    found = {}
    with open(info, encoding="utf-8") as f:
        for line in f:
            m = re.match(r"/\* \S+:\d+:\w+ \*/ (?:extern|static) .*?\b(\w+) \((.*?)\);", line)
            if m:
                found.setdefault(m[1], m[2])
    return found


# ---- ours ----


def rows():
    """What calls.def says, by exported name."""
    with open(TABLE, encoding="ascii") as f:
        text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
    found = {}
    for kind, name, rest in re.findall(r"^(CALL|BOTH|ALIAS)\((\w+)(.*?)\)$", text, re.M | re.S):
        rest = " ".join(rest.strip(", ").split())
        found[name] = f"{kind} {rest}"
    return found


def exceptions():
    """name: reason; a line is a reason, a colon and names."""
    found = {}
    with open(EXCEPTIONS, encoding="ascii") as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                reason, names = line.split(":")
                found |= {name: reason for name in names.split()}
    return found


def interposed():
    """What the preload library defines, by rows or otherwise."""
    return set(re.findall(r" [TW] (\w+)$", output("nm", "-D", "--defined-only", options.preload), re.M))


class Calls(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.code = Code(c_library())
        direct, near = cls.code.callers_of_kernel()
        with tempfile.TemporaryDirectory() as folder:
            cls.arguments = prototypes(folder)
        cls.direct, cls.near = cls.named(direct), cls.named(near)
        cls.rows, cls.exceptions, cls.interposed = rows(), exceptions(), interposed()

    @classmethod
    def named(cls, starts):
        """Exported names to the names of the same function."""
        return {name: cls.code.names[start] for start in starts for name in cls.code.names.get(start, ())}

    def takes_pointer(self, name, same):
        """None: nobody knows."""
        if name in self.arguments:
            return bool(POINTER.search(self.arguments[name]))
        known = [bool(POINTER.search(self.arguments[other])) for other in same if other in self.arguments]
        return any(known) if known else None

    def other_names(self):
        """Exported names of functions that the preload library defines by another name."""
        return {name for same in self.code.names.values() if same & self.interposed for name in same - self.interposed}

    def missing(self, functions, unknown_counts):
        missing = []
        for name, same in sorted(functions.items()):
            takes = self.takes_pointer(name, same)
            if takes is False or (takes is None and not unknown_counts):
                continue
            why = self.rows.get(name) or (name in self.interposed and "interposed") or self.exceptions.get(name)
            if "--verbose" in sys.argv or "-v" in sys.argv:
                print(f"{name}: {why}")
            if not why:
                missing.append(name)
        return missing

    def test_list_is_plausible(self):
        self.assertGreater(len(self.direct), 300)
        for name in ("read", "sendmsg", "pthread_cond_wait", "futimens", "statx"):
            self.assertIn(name, self.direct | self.near)
            self.assertTrue(self.takes_pointer(name, ()))
        self.assertIs(self.takes_pointer("getppid", ()), False)

    def test_wrappers_of_system_calls(self):
        self.assertEqual(self.missing(self.direct, True), [])

    def test_what_calls_them(self):
        self.assertEqual(self.missing(self.near, False), [])

    def test_other_names(self):
        self.assertEqual(sorted(self.other_names() - set(self.exceptions)), [])

    def test_rows_are_of_the_library(self):
        """A row by a name that the library does not have is a slip of the pen, and covers
        nothing."""
        exported = set().union(*self.code.names.values())
        self.assertEqual(sorted(set(self.rows) - exported), [])

    def test_exceptions_are_needed(self):
        """An exception that covers nothing hides what it will cover one day."""
        everything = set(self.direct) | set(self.near) | self.other_names()
        self.assertEqual(sorted(set(self.exceptions) - set(everything)), [])
        self.assertEqual(sorted(set(self.exceptions) & self.interposed), [])

    def test_library_interposes_its_rows(self):
        self.assertEqual(sorted(set(self.rows) - self.interposed), [])


def can_run():
    try:
        output("dpkg", "--listfiles", "libc6-dev")
        output("gcc", "--version")
        output("objdump", "--version")
    except (OSError, subprocess.CalledProcessError) as e:
        print(f"what lists the C library's functions is not here: {e}")
        return False
    if os.uname().machine != "x86_64":
        print("the list is made from x86-64 code")
        return False
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("preload")
    parser.add_argument("rest", nargs="*")
    options, rest = parser.parse_known_args()
    if not can_run():
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], *rest])
