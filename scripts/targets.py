#!/usr/bin/python3
"""scripts/targets.py FOLDER SUITE...: prints what ninja has to build for these suites' tests, one a
line. The word `installed` in the place of a suite stands for what `make install` installs."""
import json
import os
import sys


def read(folder, name):
    with open(os.path.join(folder, "meson-info", f"intro-{name}.json"), encoding="utf-8") as f:
        return json.load(f)


def main():
    folder, suites = sys.argv[1], set(sys.argv[2:])
    wanted = set()
    for test in read(folder, "tests"):
        if suites & {suite.rpartition(":")[2] for suite in test["suite"]}:
            wanted.update(test["depends"])
    targets = read(folder, "targets")
    if "installed" in suites:
        wanted.update(target["id"] for target in targets if target["installed"])
    files = {file for target in targets if target["id"] in wanted for file in target["filename"]}
    print("\n".join(sorted(os.path.relpath(file, os.path.realpath(folder)) for file in files)))


main()
