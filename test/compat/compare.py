#!/usr/bin/python3
"""compare.py TITLE PLAIN FAR: two files of results, a test a line: a word for how it ended (ok,
err, skip...), a space, its name.

Prints a line for the table of doc/compatibility.md, and each test that did not end alike. A test
may occur several times; then each of its ends counts. Ends with 1 if a test that passes plain does
not pass far.
"""
import collections
import sys

PASSED = "ok"


def read(path):
    results = collections.defaultdict(list)
    with open(path, errors="replace") as lines:
        for line in lines:
            how, _, name = line.rstrip("\n").partition(" ")
            results[name].append(how)
    return results


def worst(ends):
    return next((end for end in sorted(ends) if end != PASSED), PASSED) if ends else "absent"


def count(results):
    ends = collections.Counter(end for name in results for end in results[name])
    return ", ".join(f"{n} {end}" for end, n in ends.most_common())


def main():
    title, plain, far = sys.argv[1], read(sys.argv[2]), read(sys.argv[3])
    differing = [name for name in sorted({*plain, *far}) if sorted(plain[name]) != sorted(far[name])]
    lost = [name for name in differing if worst(plain[name]) == PASSED and worst(far[name]) != PASSED]
    print(f"| {title} | {count(plain)} | {count(far)} | {len(lost)} lost |")
    for name in differing:
        print(f"  {name}: plain {worst(plain[name])} ({len(plain[name])}), far {worst(far[name])} ({len(far[name])})")
    sys.exit(bool(lost) or not plain)


main()
