"""Who stays local: rules by size, kind and library, large:SIZE, and what `farpage ps` and the
report say of it."""
import json
import os
import subprocess
import time

import toolcase

MIB = 1 << 20
# Allocates through the C library and maps memory, both on behalf of this interpreter; says which of
# them are far.
PROBE = """
import ctypes, sys
libc = ctypes.CDLL(None)
{load}
def bounds():
    for name in ("malloc", "mmap"): getattr(lib, name).restype = ctypes.c_void_p
    lib.malloc.argtypes = [ctypes.c_size_t]
    lib.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
bounds()
own = [lib.malloc(n) for n in ({sizes})]
maps = [lib.mmap(None, n, 3, 0x22, -1, 0) for n in ({sizes})]
for p, n in list(zip(own, ({sizes}))) + list(zip(maps, ({sizes}))): ctypes.memset(p, 1, n)
# a fault, by which wait_for_look knows that all this was there: what is opened later is not the kernel's to fill
last = lib.mmap(None, 100000, 0, 0x22, -1, 0)
libc.mprotect(ctypes.c_void_p(last), ctypes.c_size_t(100000), 3)
ctypes.memset(last, 1, 1)
print(*own, *maps, flush=True)
sys.stdin.read()
"""
LIBRARY = """
#include <stdlib.h>
#include <sys/mman.h>
void *my_malloc(size_t n) { void *volatile p = malloc(n); return p; }
void *my_mmap(void *a, size_t n, int p, int f, int d, long o) { void *volatile q = mmap(a, n, p, f, d, o); return q; }
int my_munmap(void *a, size_t n) { volatile int r = munmap(a, n); return r; }
"""
SIZES = (8192, 100000, 2 * MIB)


class Rules(toolcase.ToolCase):
    def far(self, *options, config=None, library=None):
        """Runs the probe; returns which of its allocations and mappings are far, and what ps says
        meanwhile."""
        load = "lib = libc"
        if library:
            load = (f"lib = ctypes.CDLL({library!r}); lib.malloc = lib.my_malloc; lib.mmap = lib.my_mmap")
        probe = PROBE.format(load=load, sizes=", ".join(map(str, SIZES)))
        if config is not None:
            options += ("--config", self.path("rules.yaml", config))
        process = self.start("run", "--local-memory", "64M", "--pool-size", "256M", *options, "--", "/usr/bin/python3", "-c",
                             probe, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        places = [int(place) for place in self.line(process).split()]
        status, out, err = self.farpage("ps", "--json")
        self.assertEqual((status, err), (0, ""))
        (shown,) = [page for page in json.loads(out) if page["command"].startswith("python3")]
        text = self.farpage("ps")[1].decode()
        stats_range = shown["far_start"], shown["far_end"]
        if "--stats-file" in options:
            self.wait_for_look(options[options.index("--stats-file") + 1], shown["pid"])
        self.after = process.communicate(timeout=toolcase.TIMEOUT)
        self.assertEqual(process.returncode, 0, self.after)
        is_far = [stats_range[0] <= p < stats_range[1] for p in places]
        return is_far[:len(SIZES)], is_far[len(SIZES):], shown, text

    def faults(self, *of):
        return json.loads(self.farpage("hist", *of, "--format", "json")[1])["count"]

    def wait_for_look(self, stats, pid):
        """Until the run has looked at what the process is now: then the sum of the pages is in its
        file."""
        faults, deadline = self.faults("--pid", str(pid)), time.monotonic() + toolcase.TIMEOUT
        while self.faults("--stats-file", stats) < faults:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def library(self):
        source, path = self.path("ours.c", LIBRARY), self.path("libours.so.1")
        if subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", path, source], capture_output=True).returncode:
            self.skipTest("no compiler")
        return path

    def test_without_rules(self):
        heap, maps, shown, text = self.far()
        self.assertEqual((heap, maps), ([True] * 3, [False, True, True]))
        self.assertEqual(shown["not_far"]["by_rule_bytes"], 0)
        for kind in ("code", "file", "stack", "anonymous"):
            self.assertGreater(shown["not_far"][kind + "_bytes"], 0, kind)
        self.assertRegex(text, r"(?m)^  pid +by rule +code +file +shared +stack +anonymous *$")
        self.assertRegex(text, rf"(?m)^  {shown['pid']} +0 B +[1-9][0-9.]* .*B *$")
        self.assertGreaterEqual(shown["mapped_bytes"], sum(SIZES))

    def test_large_of_a_size(self):
        self.assertEqual(self.far("--heap", "large")[0], [False, True, True])
        self.assertEqual(self.far("--heap", "large:1M")[0], [False, False, True])
        self.assertEqual(self.far(config="heap: large:4K\n")[0], [True, True, True])

    def test_sizes(self):
        config = ("rules:\n  - {place: local, of: mappings, min: 1M}\n  - {place: far, of: mappings, min: 8K}\n"
                  "  - {place: local, of: heap, min: 50K, max: 1M}\n")
        heap, maps, shown, _ = self.far("--report", "--stats-file", self.path("run.stats"), config=config)
        self.assertEqual((heap, maps), ([True, False, True], [True, True, False]))
        self.assertGreaterEqual(shown["not_far"]["by_rule_bytes"], 2 * MIB)
        self.assertRegex(self.after[1].decode(), r"not far: by rule [2-9][.0-9]* MiB, code [1-9]")

    def test_rules_come_before_the_modes(self):
        config = "heap: none\nrules:\n  - {place: far, of: heap, min: 1M}\n"
        self.assertEqual(self.far(config=config)[0], [False, False, True])

    def test_library(self):
        path = self.library()
        config = "rules:\n  - {place: local, library: 'libours.so*'}\n"
        heap, maps, shown, _ = self.far(config=config, library=path)
        self.assertEqual((heap, maps), ([False] * 3, [False] * 3))
        self.assertGreaterEqual(shown["not_far"]["by_rule_bytes"], sum(SIZES))
        self.assertEqual(self.far(config=config)[0], [True] * 3)
        config = f"heap: none\nrules:\n  - {{place: far, library: '{os.path.dirname(path)}/*'}}\n"
        self.assertEqual(self.far(config=config, library=path)[:2], ([True] * 3, [True] * 3))

    def test_what_is_unmapped_is_not_counted(self):
        path = self.library()
        process = self.start(
            "run", "--local-memory", "16M", "--pool-size", "256M", "--config",
            self.path("rules.yaml", "rules:\n  - {place: local, library: 'libours.so*', of: mappings}\n"),
            "--", "/usr/bin/python3", "-c", f"""
import ctypes, sys
lib = ctypes.CDLL({path!r}); lib.my_mmap.restype = ctypes.c_void_p
a = lib.my_mmap(None, ctypes.c_size_t({8 * MIB}), 3, 0x22, -1, ctypes.c_long(0))
lib.my_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
for step in (lambda: None, lambda: lib.my_munmap(a + {6 * MIB}, {2 * MIB}), lambda: lib.my_munmap(a, {6 * MIB})):
    step(); print("done", flush=True); sys.stdin.readline()
""", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for left in (8, 6, 0):
            self.assertEqual(self.line(process), "done")
            (shown,) = json.loads(self.farpage("ps", "--json")[1])
            self.assertEqual(shown["not_far"]["by_rule_bytes"], left * MIB)
            process.stdin.write(b"\n")
            process.stdin.flush()
        self.assertEqual(process.wait(toolcase.TIMEOUT), 0)


if __name__ == "__main__":
    toolcase.main()
