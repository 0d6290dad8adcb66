#!/usr/bin/env python3
"""test/style/rooms.py: the rooms of the house and which of them sees which.

ROOMS is the one table. The test computes the graph of all includes of product code and fails on an
include of a room that may not be seen, on two rooms that include each other, and on a header that
does not compile with its room's include paths. CONTRIBUTING.md's table and drawing must agree with
it.

    rooms.py            checks the tree
    rooms.py --graph    prints the graph
"""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCES = ("common", "transport", "store", "uffd", "preload", "daemon", "tools", "include")

# Each room and the rooms right below it. It sees these, and whatever they see.
ROOMS = {
    "include/farpage": [],
    "common": [],
    "transport": ["common"],
    "store": ["transport"],
    "uffd/kernel": ["store"],
    "uffd/pager": ["store"],
    "uffd/core": ["uffd/kernel", "uffd/pager"],
    "uffd/evict": ["uffd/core"],
    "uffd/fault": ["uffd/evict"],
    "uffd/space": ["uffd/fault"],
    "uffd/agent": ["uffd/space"],
    "uffd/libfarpage": ["uffd/agent", "include/farpage"],
    "preload/door": ["uffd/agent"],
    "preload/syscalls": ["preload/door"],
    "preload/memory": ["preload/syscalls"],
    "preload/signals": ["preload/memory"],
    "preload/process": ["preload/signals"],
    "daemon": ["transport"],
    "tools": ["transport", "include/farpage"],
    "tools/bench": ["tools"],
}

# Headers of other rooms that a room sees besides; * is all of a room.
BESIDES = {
    "tools": ["uffd/agent/settings.h", "uffd/agent/agent.h", "uffd/agent/rules.h"],
    "tools/bench": ["uffd/agent/settings.h"],
}


def below(room, rooms):
    """All rooms that a room sees."""
    seen, todo = set(), list(rooms[room])
    while todo:
        lower = todo.pop()
        if lower not in seen:
            seen.add(lower)
            todo += rooms[lower]
    return seen


def sources(top):
    """Each source file of ours: (room, path)."""
    for source in SOURCES:
        for folder, _, names in os.walk(os.path.join(top, source)):
            for name in sorted(names):
                if re.search(r"\.(c|h|def)$", name):
                    yield os.path.relpath(folder, top), os.path.join(folder, name)


def includes(top):
    """The arrows: (room, lower room) -> [file > header]. A quoted name is looked up in the file's
    own room first."""
    files = list(sources(top))
    headers = {}
    for room, path in files:
        headers.setdefault(os.path.basename(path), []).append(room)
    arrows = {}
    for room, path in files:
        with open(path, encoding="utf-8") as f:
            names = re.findall(r'^\s*#\s*include\s+(?:"([^"]+)"|<(farpage/[^>]+)>)', f.read(), re.M)
        for quoted, public in names:
            name = os.path.basename(quoted or public)
            rooms = headers.get(name, [])
            if room in rooms and not public:
                continue
            for other in rooms:
                arrows.setdefault((room, other), []).append(f"{os.path.basename(path)} > {name}")
    return arrows


def faults(top, rooms=None, besides=None):
    """What is wrong with the tree's includes, a line each."""
    rooms, besides = rooms or ROOMS, BESIDES if besides is None else besides
    arrows, found = includes(top), []
    for room in sorted({room for room, _ in sources(top)} - set(rooms)):
        found.append(f"{room}: a folder with sources that is no room of test/style/rooms.py")
    for (room, other), files in sorted(arrows.items()):
        if room not in rooms or other not in rooms or other in below(room, rooms):
            continue
        allowed = {os.path.basename(h) for h in besides.get(room, []) if os.path.dirname(h) == other}
        wrong = [f for f in files if not allowed & {"*", f.split(" > ")[1]}]
        if wrong:
            found.append(f"{room} may not see {other}: {', '.join(wrong)}")
        if room < other and (other, room) in arrows and wrong:
            found.append(f"{room} and {other} include each other")
    return found


def graph(top):
    """The arrows as text, from the lowest room up."""
    lines, order = [], list(ROOMS)
    arrows = includes(top)
    for room, other in sorted(arrows, key=lambda a: [order.index(r) if r in order else len(order) for r in a]):
        arrow = "->" if room in ROOMS and other in below(room, ROOMS) else "-> (not below it)"
        lines.append(f"  {room} {arrow} {other}  {len(arrows[room, other])}")
    return "\n".join(lines)


def expand(names):
    """`uffd/{kernel, pager}` -> both; a name without a folder -> the room of that last name."""
    prefix, braces = re.fullmatch(r"(?:([\w/]+)/)?\{?([\w/, ]+)\}?", names.strip()).groups()
    for name in braces.split(","):
        last = "/".join(filter(None, (prefix, name.strip())))
        yield from (room for room in ROOMS if room == last or (not prefix and room.split("/")[-1] == last))


def compile_header(room, header):
    """The compiler's complaint about a header that is included alone, with the paths of its room;
    "" if none."""
    lower = below(room, ROOMS) | {room} | {os.path.dirname(h) for h in BESIDES.get(room, [])}
    command = [os.environ.get("CC", "cc"), "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
               "-x", "c", "-Iinclude", *(f"-I{r}" for r in sorted(lower)), "-iquote", ".", "-"]
    done = subprocess.run(command, input=f'#include "{header}"\n', text=True, cwd=TOP, capture_output=True, check=False)
    return done.stderr if done.returncode else ""


class Rooms(unittest.TestCase):
    def test_no_include_runs_upward(self):
        found = faults(TOP)
        self.assertEqual(found, [], "\n" + "\n".join(found) + "\nThe graph:\n" + graph(TOP))

    def test_the_table_itself_runs_one_way(self):
        for room in ROOMS:
            self.assertNotIn(room, below(room, ROOMS))

    def test_headers_compile_alone_with_what_their_room_sees(self):
        headers = [(room, os.path.relpath(path, TOP)) for room, path in sources(TOP) if path.endswith(".h")]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            found = [text for text in pool.map(lambda h: compile_header(*h), headers) if text]
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_a_planted_include_is_found(self):
        with tempfile.TemporaryDirectory() as top:
            for source in SOURCES:
                shutil.copytree(os.path.join(TOP, source), os.path.join(top, source),
                                ignore=lambda folder, names: [n for n in names if os.path.isfile(os.path.join(folder, n))
                                                              and not re.search(r"\.(c|h|def)$", n)])
            for room, file, header in (("uffd/kernel", "planted.c", "far.h"), ("store", "planted.h", "agent.h")):
                path = os.path.join(top, room, file)
                with open(path, "w", encoding="utf-8") as f:
                    f.write(f'#include "{header}"\n')
                self.assertTrue(any(f"{file} > {header}" in line for line in faults(top)), f"{room} -> {header}")
                os.remove(path)
            self.assertEqual(faults(top), faults(TOP))

    def test_contributing_names_the_same_rooms(self):
        with open(os.path.join(TOP, "CONTRIBUTING.md"), encoding="utf-8") as f:
            text = f.read()
        table = text[text.index("| room | what lives there |"):].split("\n\n")[0]
        named = [name.rstrip("/") for name in re.findall(r"^\| `([\w/]+)/` \|", table, re.M)]
        self.assertEqual(sorted(named), sorted([*ROOMS, "test"]))
        chain = re.search(r"common ◄─ transport .*", text).group().split(" ◄─ ")
        for lower, upper in zip(chain, chain[1:]):
            for room in expand(upper):
                self.assertLessEqual(set(expand(lower)), set(ROOMS[room]), f"the drawing: {room} over {lower}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--graph"]:
        print(graph(TOP))
    else:
        unittest.main()
