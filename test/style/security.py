"""security.py BUILD: each threat of doc/security.md names a test, and each test that a document
names exists."""
import fnmatch
import glob
import json
import os
import re
import sys

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
DOC = os.path.join(TOP, "doc/security.md")


def check_threats(tests):
    failed, in_threats = False, False
    with open(DOC, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if not line.startswith("|"):
                in_threats = False
                continue
            cells = line.strip().strip("|").split("|")
            if cells[0].strip() == "threat":
                in_threats = True
                continue
            if not in_threats or cells[0].startswith("---"):
                continue
            named = re.findall(r"`([^`]+)`", cells[-1])
            for name in [name for name in named if name not in tests] + ([] if named else ["(none)"]):
                print(f"doc/security.md:{number}: no such test: {name}")
                failed = True
    return failed


def check_names(tests):
    """A name may have a *, or be that of several tests without their endings."""
    failed, suites = False, {test.split("-")[0] for test in tests}
    for path in sorted(glob.glob(os.path.join(TOP, "doc/*.md"))):
        with open(path, encoding="utf-8") as f:
            lines = f.read().splitlines()
        for number, line in enumerate(lines, 1):
            for name in re.findall(r"`([a-z]+-[\w*-]+)`", line):
                if name.split("-")[0] in suites and not fnmatch.filter(tests, name) and not fnmatch.filter(tests, name + "-*"):
                    print(f"{os.path.relpath(path, TOP)}:{number}: no such test: {name}")
                    failed = True
    return failed


def main():
    with open(os.path.join(sys.argv[1], "meson-info/intro-tests.json"), encoding="utf-8") as f:
        tests = {test["name"] for test in json.load(f)}
    return check_threats(tests) | check_names(tests)


if __name__ == "__main__":
    sys.exit(main())
