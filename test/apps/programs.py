#!/usr/bin/python3
"""programs.py ROW [small|large] [FAULT-MODE]: a program that everybody knows, plain and with a
quarter of its peak local: what it prints must be the same. Rows are the functions below; what they
return is run twice.
"""
import glob
import os
import random
import shutil
import sys

import farapp

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = farapp.MIB
PYTHON = "/usr/bin/python3"
SOMEBODY = 65534  # an ordinary user that every system has
DEFAULTS = ["small", "thread"]


def write(name, text):
    path = os.path.join(farapp.workdir, name)
    with open(path, "w", encoding="ascii") as out:
        out.write(text)
    return path


NUMPY = """
import hashlib, sys
import numpy as np
n, rows = int(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(1)
a = rng.integers(0, 1000, (n, n)).astype(np.float64)   # whole numbers: sums are exact in any order
b = rng.integers(0, 1000, (n, n)).astype(np.float64)
c = a @ b
print(hashlib.blake2b(c).hexdigest(), int(np.trace(c)), int((a.T * b).sum()))
d = rng.integers(0, 1 << 62, rows * 64).reshape(rows, 64)
d.sort(axis=1)
d = d[np.argsort(d[:, 0], kind='stable')]
print(hashlib.blake2b(np.ascontiguousarray(d[::-3, ::5])).hexdigest(), int(np.bitwise_xor.reduce(d, axis=None)))
print(int(np.cumsum(d[:, 7] & 0xffff)[-1]), hashlib.blake2b(np.unique(d[:, 3] & 0xfffff)).hexdigest())
"""


def numpy(large):
    try:
        import numpy as _
    except ImportError:
        farapp.skip("python3-numpy is not installed")
    return [PYTHON, "-c", NUMPY, *(("3500", "400000") if large else ("700", "60000"))]


NODE = """
const n = +process.argv[2], crypto = require('crypto');
let seed = 1;
const next = () => (seed = (Math.imul(seed, 1103515245) + 12345) >>> 0) / 4294967296;
const nodes = [], byName = new Map();
for (let i = 0; i < n; i++) {
  const node = {id: i, name: 'node-' + i.toString(36), weight: next(), edges: [], data: {tags: [i % 7, i % 11], text: 'x' + i}};
  for (let k = 0; k < 4 && i; k++) node.edges.push(nodes[Math.floor(next() * i)]);
  nodes.push(node);
  byName.set(node.name, node);
}
let at = nodes[n - 1], sum = 0;
for (let step = 0; step < n; step++) {
  sum += at.id;
  at = at.edges.length ? at.edges[step % at.edges.length] : nodes[(step * 7919) % n];
}
for (let i = 0; i < n; i += 3) byName.delete(nodes[i].name);
for (let i = 0; i < n; i += 2) nodes[i].data = {tags: [i], text: nodes[i].name + nodes[i].weight};
nodes.sort((x, y) => x.weight - y.weight || x.id - y.id);
const hash = crypto.createHash('sha256');
for (const node of nodes) hash.update(node.name + node.data.text + node.edges.length);
console.log(sum, byName.size, hash.digest('hex'));
"""


def node(large):
    """An object graph of 300 MiB: built, walked, changed and sorted, with the collector at work."""
    program = farapp.need_program("/usr/bin/node")
    return [program, "--max-old-space-size=2048", write("graph.js", NODE), "600000" if large else "120000"]


JAVA = """
import java.util.*;
public class Sort {
  public static void main(String[] args) {
    int n = Integer.parseInt(args[0]);
    long[] words = new long[n];
    SplittableRandom random = new SplittableRandom(7);
    for (int i = 0; i < n; i++) words[i] = random.nextLong();
    Map<Integer, List<String>> churn = new HashMap<>();
    for (int i = 0; i < n / 64; i++) churn.computeIfAbsent(i % 5000, k -> new ArrayList<>()).add("s" + words[i] % 1000);
    Arrays.sort(words);
    long sum = 0, ordered = 1;
    for (int i = 1; i < n; i++) { sum = sum * 31 + words[i]; if (words[i - 1] > words[i]) ordered = 0; }
    long hash = 0;
    for (int k = 0; k < 5000; k++) hash = hash * 31 + String.join(",", churn.getOrDefault(k, List.of())).hashCode();
    System.out.println(ordered + " " + sum + " " + hash);
  }
}
"""


def java(large):
    """512 MiB sorted in a heap of 1 GiB."""
    for name in ("java", "javac"):
        farapp.need_program("/usr/bin/" + name)
    source = write("Sort.java", JAVA)
    if os.spawnv(os.P_WAIT, "/usr/bin/javac", ["javac", "-d", farapp.workdir, source]):
        farapp.check(False, "javac failed")
    heap, words = ("1g", 64 * MIB) if large else ("128m", 6 * MIB)
    return ["/usr/bin/java", f"-Xms{heap}", f"-Xmx{heap}", "-Xshare:auto", "-cp", farapp.workdir, "Sort", str(words)]


def gcc(large):
    """One translation unit of thousands of functions."""
    program = farapp.need_program("/usr/bin/gcc")
    source = random.Random(3)
    lines = ["struct s { long a[8]; struct s *next; };", "long f0(struct s *p, long x) { return x + p->a[0]; }"]
    for i in range(1, 6000 if large else 350):
        a, b, c = (source.randrange(i) for _ in range(3))
        k = source.randrange(1, 1000)
        lines.append(
            f"long f{i}(struct s *p, long x) {{ struct s *q = p; long r = x * {k};\n"
            f"  for (int i = 0; i < 8; i++) {{ switch ((q->a[i] + x) % 9) {{ case 0: r += f{a}(q, r ^ {k}); break;\n"
            f"  case 1: r -= f{b}(p, x + i); break; case 4: q->a[i] = r; break; default: r ^= q->a[i & {k % 8}] * {k}; }}\n"
            f"  if (q->next) q = q->next; }}\n  return r % {k} ? r : f{c}(q, x - 1); }}")
    return [program, "-O2", "-g", "-S", "-o", "-", write("unit.c", "\n".join(lines) + "\n")]


def convert(large):
    program = farapp.need_program("/usr/bin/convert-im6.q16")
    width, height = (4200, 3000) if large else (1300, 1000)
    path, source = os.path.join(farapp.workdir, "noise.ppm"), random.Random(4)
    with open(path, "wb") as out:
        out.write(b"P6 %d %d 255\n" % (width, height))
        for _ in range(height):
            out.write(source.randbytes(3 * width))
    return [program, path, "-rotate", "31", "-blur", "0x2", "-resize", "70%", "-depth", "8", "rgb:-"]


def memcached(large):
    """A server with threads, under load of several clients; all of it under Farpage."""
    farapp.need_program("/usr/bin/memcached")
    return [PYTHON, os.path.join(HERE, "memcached_load.py"), farapp.workdir, "260" if large else "48"]


def postgres(large):
    """Processes that fork, with shared memory between them; all of it under Farpage, as an ordinary
    user."""
    if not glob.glob("/usr/lib/postgresql/*/bin/initdb"):
        farapp.skip("postgresql is not installed")
    folder = farapp.workdir if os.getuid() == 0 else HERE
    return [PYTHON, os.path.join(folder, "postgres_load.py"), farapp.workdir, "large" if large else "small"]


ROWS = {row.__name__: row for row in (numpy, node, java, gcc, convert, memcached, postgres)}


def as_somebody():
    """Postgres refuses root: what runs it then is a user that may use userfaultfd, in folders that
    this user can read."""
    if os.getuid():
        return ()
    bin_dir = os.path.join(farapp.workdir, "bin")
    os.mkdir(bin_dir)
    libraries = glob.glob(os.path.join(farapp.build, "preload", "*.so"))
    for part in ("tools/farpage", "daemon/farpaged", "uffd/libfarpage/libfarpage.so.0", *libraries):
        shutil.copy(os.path.join(farapp.build, part), bin_dir)
    farapp.farpage = os.path.join(bin_dir, "farpage")
    os.environ["LD_LIBRARY_PATH"] = bin_dir
    shutil.copy(os.path.join(HERE, "postgres_load.py"), farapp.workdir)
    os.chown(farapp.workdir, SOMEBODY, SOMEBODY)
    return ("/usr/bin/setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups", "--inh-caps=+sys_ptrace",
            "--ambient-caps=+sys_ptrace", "/usr/bin/env", f"FARPAGE_RUNTIME_DIR={farapp.workdir}/run",
            f"FARPAGE_PRELOAD={bin_dir}/libfarpage-preload.so", f"FARPAGE_DAEMON={bin_dir}/farpaged", f"HOME={farapp.workdir}")


def test():
    name, size, mode = (sys.argv[1:] + DEFAULTS[len(sys.argv) - 2 :])[:3]
    command = ROWS[name](size == "large")
    before = as_somebody() if name == "postgres" else ()
    farapp.compare(command, before=before, options=("--fault-mode", mode), timeout=1800)


if len(sys.argv) == 1:
    sys.exit("usage: programs.py " + "|".join(ROWS) + " [small|large] [FAULT-MODE]")
farapp.main(test)
