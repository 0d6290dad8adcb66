#!/usr/bin/python3
"""The example of README.md, compiled as it is printed and run against a memory node."""
import os
import re
import shlex
import subprocess
import sys

import farapp

WORDS = (256 << 20) // 8


def compile_example(binary):
    with open(os.path.join(sys.argv[1], "README.md"), encoding="utf-8") as readme:
        source = re.search(r"^```c\n(.*?)^```$", readme.read(), re.DOTALL | re.MULTILINE).group(1)
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "farpage"], check=True, capture_output=True, text=True,
        env={**os.environ, "PKG_CONFIG_PATH": os.path.join(farapp.build, "meson-uninstalled")},
    ).stdout
    subprocess.run(
        ["cc", "-Wall", "-Wextra", "-Werror", "-x", "c", "-", "-o", binary, *shlex.split(flags)],
        input=source, text=True, check=True,
    )


def test():
    binary = os.path.join(farapp.workdir, "example")
    compile_example(binary)
    node = farapp.Node("1G")
    try:
        shown = subprocess.run(
            [binary, node.url], timeout=120, capture_output=True, text=True,
            env={**os.environ, "LD_LIBRARY_PATH": os.path.join(farapp.build, "uffd", "libfarpage")},
        )
    finally:
        node.stop()
    print(shown.stdout + shown.stderr, end="")
    farapp.check(shown.returncode == 0, f"exit status {shown.returncode}")
    total, local, mapped, fetched = map(int, re.findall(r"\d+", shown.stdout))
    farapp.check(total == WORDS * (WORDS - 1) // 2, "the sum is wrong")
    farapp.check(local <= 16 and mapped == 256 and fetched >= 200, "that was not far memory")


farapp.main(test)
