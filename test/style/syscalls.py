"""doc/syscalls.md against the kernel's own lists: every system call, advice and io_uring operation
of the headers that are installed, and of the kernel that runs, stands there once, by words that the
page explains, and nothing stands there that no kernel has.
"""
import collections
import ctypes
import errno
import os
import re
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(HERE, "../../doc/syscalls.md")
TESTS = os.path.join(HERE, "..")
ROWS = os.path.join(TESTS, "integration/everycall")
SHOWN = os.path.join(HERE, "syscalls_shown.txt")
PREFIX = r"(?:SYS_|NUMBER_|MADV_|ADVICE_|IORING_OP_)?"
SKIPPED = 77
WORDS = {"right", "refused", "ended", "loud", "silent", "-"}
CHANGES = {"memory", "place", "descriptors", "sharing", "limits"}
SYS_MADVISE, SYS_URING_SETUP, SYS_URING_REGISTER, REGISTER_PROBE = 28, 425, 427, 8
BEYOND = 16  # numbers that are tried past the last of the page


# ---- the page ----


class Page:
    def __init__(self):
        with open(PAGE, encoding="utf-8") as f:
            text = f.read()
        self.blocks = {name: body.split() for name, body in re.findall(r"^```(\S+)\n(.*?)^```$", text, re.M | re.S)}
        self.tables = {}  # by the text of their first heading: rows of cells
        for head, body in re.findall(r"^\| (.*?) \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.M):
            cells = [[c.strip() for c in line.strip().strip("|").split("|")] for line in body.splitlines()]
            self.tables[head.strip("`")] = [[row[0].strip("`")] + row[1:] for row in cells]
        newer = [entry.split(":") for entry in self.blocks["newer"]]
        self.numbers = {name: int(number) for number, name in (e for e in newer if len(e) == 2)}
        self.advice_numbers = {name: int(number) for _, number, name in (e for e in newer if len(e) == 3)}

    def calls(self):
        names = [row[0] for row in self.tables["call"]]
        return names + [n for block in ("buffers", "descriptors", "harmless") for n in self.blocks[block]]

    def operations(self):
        names = [row[0] for row in self.tables["IORING_OP_"]]
        return names + [n for block in ("buffer-operations", "harmless-operations") for n in self.blocks[block]]

    def advice(self):
        return [row[0] for row in self.tables["MADV_"]]


# ---- the headers ----


def preprocess(header, *options):
    done = subprocess.run(
        ["gcc", "-E", *options, "-x", "c", "-"], input=f"#include <{header}>\n", capture_output=True, text=True, check=True
    )
    return done.stdout


def defines(header, prefix):
    found = re.findall(rf"^#define {prefix}(\w+)\s+(\d+)$", preprocess(header, "-dM"), re.M)
    return {name: int(number) for name, number in found}


def operations_of_headers():
    body = re.search(r"enum io_uring_op \{(.*?)\}", preprocess("linux/io_uring.h"), re.S)[1]
    return [name for name in re.findall(r"\bIORING_OP_(\w+)", body) if name != "LAST"]


# ---- the tests ----


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


class Shown:
    """Which rows have a run: by the table of calls, or by a line of the file."""

    def __init__(self):
        text = "".join(read(ROWS + end) for end in (".def", ".c"))
        self.calls = set(re.findall(r"\bC\((\w+)", text))
        self.operations = set(re.findall(r"\bU\((\w+)|\bOP_(\w+)[,)](?!$)", text, re.M))
        self.operations = {a or b for a, b in self.operations}
        self.sources, self.not_tried = [], set()
        for line in read(SHOWN).splitlines():
            if not line or line.startswith("#"):
                continue
            where, names = line.split(": ")
            if where.startswith("not tried"):
                self.not_tried |= set(names.split())
            else:
                self.sources += [(where, name) for name in names.split()]
        self.named = {name for _, name in self.sources}


# ---- the kernel that runs ----


def call(number, *args):
    """In a child: nobody knows what it does. The errno, or 0."""
    child = os.fork()
    if child == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) for a in args)) == -1
        os._exit(ctypes.get_errno() if failed else 0)
    status = os.waitpid(child, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0


def operations_of_kernel():
    """How many it has; 0: it does not say."""
    libc = ctypes.CDLL(None)
    params, probe = ctypes.create_string_buffer(120), ctypes.create_string_buffer(16 + 256 * 8)
    ring = libc.syscall(ctypes.c_long(SYS_URING_SETUP), ctypes.c_long(1), params)
    if ring < 0:
        return 0
    failed = libc.syscall(ctypes.c_long(SYS_URING_REGISTER), ctypes.c_long(ring), ctypes.c_long(REGISTER_PROBE), probe, 256)
    os.close(ring)
    return 0 if failed else probe.raw[0] + 1


class Syscalls(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.page = Page()
        cls.known = defines("asm/unistd_64.h", "__NR_")
        cls.advice = defines("asm/mman.h", "MADV_")
        cls.operations = operations_of_headers()

    def test_headers_are_read(self):
        self.assertGreater(len(self.known), 350)
        self.assertGreater(len(self.operations), 45)
        self.assertEqual(self.advice["DONTNEED"], 4)

    def test_every_call_is_listed(self):
        self.assertEqual(sorted(set(self.known) - set(self.page.calls())), [])
        self.assertEqual(sorted(set(self.operations) - set(self.page.operations())), [])
        self.assertEqual(sorted(set(self.advice) - set(self.page.advice())), [])

    def test_nothing_is_listed_twice(self):
        for names in (self.page.calls(), self.page.operations(), self.page.advice()):
            self.assertEqual([n for n, times in collections.Counter(names).items() if times > 1], [])

    def test_nothing_else_is_listed(self):
        """A slip of the pen would cover nothing. Operations have no numbers: those that are newer
        can't be told."""
        self.assertEqual(sorted(set(self.page.calls()) - set(self.known) - set(self.page.numbers)), [])
        self.assertEqual(sorted(set(self.page.advice()) - set(self.advice) - set(self.page.advice_numbers)), [])

    def test_numbers(self):
        for name, number in self.page.numbers.items():
            self.assertEqual(self.known.get(name, number), number, name)
        for name, number in self.page.advice_numbers.items():
            self.assertEqual(self.advice.get(name, number), number, name)

    def test_words(self):
        for head, first in (("call", 2), ("IORING_OP_", 2), ("MADV_", 1)):
            for row in self.page.tables[head]:
                self.assertEqual(len(row), first + 4, row)
                self.assertLessEqual(set(row[first : first + 3]), WORDS, row)
                if first == 2:
                    self.assertIn(row[1], CHANGES, row)
                self.assertNotIn("silent", row[first : first + 2], row)

    def need_a_run(self):
        page, promises = self.page, {"right", "refused", "ended"}
        for head in ("call", "MADV_", "IORING_OP_"):
            first = 1 if head == "MADV_" else 2
            yield from (row[0] for row in page.tables[head] if promises & set(row[first : first + 3]))
        for block in ("buffers", "descriptors", "harmless", "buffer-operations", "harmless-operations"):
            yield from page.blocks[block]

    def test_each_promise_has_a_run(self):
        shown = Shown()
        tried = shown.calls | shown.operations | shown.named
        self.assertEqual(sorted(set(self.need_a_run()) - tried - shown.not_tried), [])
        self.assertEqual(sorted(shown.not_tried & tried), [], "tried and not tried")

    def test_runs_are_there(self):
        shown, listed = Shown(), set(self.page.calls() + self.page.advice() + self.page.operations())
        for where, name in shown.sources:
            self.assertRegex(read(os.path.join(TESTS, where)), rf"\b{PREFIX}{name}\b", where)
        self.assertEqual(sorted((shown.named | shown.not_tried) - listed), [])

    def test_running_kernel_has_no_other_call(self):
        last = max(max(self.known.values()), max(self.page.numbers.values()))
        there = [n for n in range(last + 1, last + 1 + BEYOND) if call(n, *[-1] * 6) != errno.ENOSYS]
        self.assertEqual(there, [], "the running kernel has system calls with these numbers, which doc/syscalls.md does not know")

    def test_running_kernel_has_no_other_advice(self):
        listed = {**self.advice, **self.page.advice_numbers}
        there = {n for n in range(256) if call(SYS_MADVISE, 0, 0, n) == 0}
        self.assertEqual(sorted(there - set(listed.values())), [])

    def test_running_kernel_has_no_other_operation(self):
        self.assertLessEqual(operations_of_kernel(), len(self.page.operations()))


if __name__ == "__main__":
    if os.uname().machine != "x86_64" or not shutil.which("gcc") or not os.path.exists("/usr/include/linux/io_uring.h"):
        print("the list is of x86-64, and its headers are read by gcc: one of the two is not here")
        sys.exit(SKIPPED)
    unittest.main()
