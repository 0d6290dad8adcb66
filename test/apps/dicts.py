#!/usr/bin/python3
"""A python3 program with 125 MiB (large: 500) of dicts and lists: builds, looks up, changes, sorts
and drops."""
import farapp

PROGRAM = f"N = {640_000 if farapp.large else 160_000}\n" + """
import hashlib
table = {i: [i, str(i * 7919), bytes([i % 251]) * 280, {"next": (i * 31 + 7) % N}] for i in range(N)}
seen, at = hashlib.blake2b(), 1
for _ in range(50_000):
    row = table[at]
    seen.update(row[2])
    row[3]["visits"] = row[3].get("visits", 0) + 1
    at = row[3]["next"]
print(at, seen.hexdigest())
for i in range(0, N, 3):
    del table[i]
table.update((i, [i, "new", b"", {"next": i}]) for i in range(N, N + 100_000))
names = sorted(row[1] for row in table.values())
print(len(names), hashlib.blake2b("".join(names).encode()).hexdigest())
print(sum(row[3].get("visits", 0) for row in table.values()), sum(len(row[2]) for row in table.values()))
"""


def test():
    farapp.compare([farapp.need_program("/usr/bin/python3"), "-c", PROGRAM])


farapp.main(test)
