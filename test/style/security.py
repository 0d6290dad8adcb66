"""security.py BUILD: each test that doc/security.md names exists, and each threat names one."""
import json
import os
import re
import sys

DOC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../doc/security.md")


def main():
    with open(os.path.join(sys.argv[1], "meson-info/intro-tests.json"), encoding="utf-8") as f:
        tests = {test["name"] for test in json.load(f)}
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


if __name__ == "__main__":
    sys.exit(main())
