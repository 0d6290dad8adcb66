#!/usr/bin/python3
"""scripts/summary.py STATUS:SECONDS:LOG[:PLACE]...: adds up what stages of `meson test` came to.

Each LOG is one that meson wrote (one JSON object a line, one for each test); STATUS is meson's exit
status; SECONDS is how long the stage took; PLACE says where the tests ran, if not on this machine.
Prints how long each stage and each suite of it took with its longest tests, what failed and what
was skipped and why, then 'N passed, N failed, N skipped'. Ends with 1 if anything failed. A stage
that broke without naming a failed test counts as one failure; so does a run in which nothing passed
and nothing gave a reason to skip. A LOG that ends in `.done` is none: that
stage has a time and no tests.
"""
import json
import os
import re
import sys

PASSED = {"OK", "EXPECTEDFAIL"}
LONGEST = 4  # tests that are named for each stage
CMOCKA_SKIP = re.compile(r"^\[  SKIPPED \] (\w+)$", re.MULTILINE)


def read_log(path):
    """A guest that was switched off may leave half a line."""
    try:
        with open(path, encoding="utf-8") as log:
            return [json.loads(line) for line in log if line.endswith("\n")]
    except FileNotFoundError:
        return []


def last_line(test):
    lines = (test.get("stdout", "") + "\n" + test.get("stderr", "")).split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")


def minutes(seconds):
    return f"{int(seconds) // 60:3}:{int(seconds) % 60:02}"


def print_times(stage, seconds, tests):
    """A suite's time is the sum over its tests, of which several may have run at once."""
    longest = sorted(tests, key=lambda t: -t.get("duration", 0))[:LONGEST]
    named = ", ".join(f"{t['name'].rpartition(' ')[2]} {t.get('duration', 0):.0f}" for t in longest)
    print(f"time {minutes(seconds)}  {stage}" + (f": {len(tests)} tests ({named} s)" if tests else ""))
    suites = {}
    for test in tests:
        suite = test["name"].rpartition(" / ")[0].rpartition(":")[2]
        suites[suite] = suites.get(suite, 0) + test.get("duration", 0)
    if len(suites) > 1:
        for suite, total in sorted(suites.items(), key=lambda s: -s[1]):
            print(f"     {minutes(total)}    {suite}")


class Summary:
    def __init__(self):
        self.passed = 0
        self.failed = []
        self.skipped = []

    def add_test(self, folder, test):
        name = f"{folder}: {test['name'].rpartition(' ')[2]}"
        if test["result"] == "SKIP":
            self.skipped.append(f"{name}: {last_line(test)}")
        elif test["result"] in PASSED:
            self.passed += 1
            cases = dict.fromkeys(CMOCKA_SKIP.findall(test.get("stdout", "") + test.get("stderr", "")))
            self.skipped += [f"{name}: {case}" for case in cases]
        else:
            self.failed.append(f"{name}: {test['result']}")

    def add_stage(self, status, seconds, path, place=None):
        stage = os.path.basename(path).removesuffix(".json")
        if stage.endswith(".done"):
            print_times(stage.removesuffix(".done"), seconds, [])
            if status != 0:
                self.failed.append(f"{stage.removesuffix('.done')}: ended with {status}")
            return
        folder = f"{place} {stage}" if place else path.split(os.sep)[0]
        tests = read_log(path)
        print_times(f"{place} {stage}" if place else stage, seconds, tests)
        failed_before = len(self.failed)
        for test in tests:
            self.add_test(folder, test)
        if (status != 0 or not tests) and len(self.failed) == failed_before:
            self.failed.append(f"{stage}: ended with {status} after {len(tests)} tests")


def main():
    summary = Summary()
    for argument in sys.argv[1:]:
        status, seconds, path, *place = argument.split(":")
        summary.add_stage(int(status), int(seconds), path, *place)
    for name in summary.failed:
        print(f"failed   {name}")
    for name in summary.skipped:
        print(f"skipped  {name}")
    print(f"{summary.passed} passed, {len(summary.failed)} failed, {len(summary.skipped)} skipped")
    return 1 if summary.failed or not (summary.passed or summary.skipped) else 0


sys.exit(main())
