#!/usr/bin/python3
"""Samples comments and paragraphs for a reader with fresh eyes: each that has to be read twice is
to be mended. A comment is shown with its code. Usage: sample_prose.py [SEED [COMMENTS
[PARAGRAPHS]]]; the seed is printed."""
import os
import random
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
LEAST_WORDS = 8


def tracked(*patterns):
    listed = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, check=True, capture_output=True, text=True)
    return listed.stdout.split()


def text_of(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def with_code(text, comment):
    """The lines of a comment, and the two that follow one without code beside it."""
    start = text.rfind("\n", 0, comment.start()) + 1
    end = (text.find("\n", comment.end()) + 1 or len(text)) - 1
    if not text[start:comment.start()].strip() and start > 0:
        for _ in range(2):
            end = (text.find("\n", end + 1) + 1 or len(text)) - 1
    return text[start:end]


def comments():
    for path in tracked("*.c", "*.h", "*.def", ":!test/fuzz/*/*"):
        text = text_of(path)
        for found in re.finditer(r'"(?:\\.|[^"\\\n])*"|/\*(.*?)\*/|//([^\n]*)', text, re.DOTALL):
            body = found.group(1) or found.group(2) or ""
            if len(re.findall(r"\w+", body)) >= LEAST_WORDS:
                yield path, line_of(text, found.start()), with_code(text, found)


def without_code(path, text):
    """Blank lines for blocks of code, and for the macros that part the paragraphs of a man page."""
    if path.endswith(".md"):
        return re.sub(r"^```.*?^```$", lambda code: "\n" * code.group(0).count("\n"), text, flags=re.M | re.S)
    text = re.sub(r"^\.(EX|nf)$.*?^\.(EE|fi)$", lambda code: "\n" * code.group(0).count("\n"), text, flags=re.M | re.S)
    return re.sub(r"^\.(TH|SH|SS|P|PP|TP|IP|RS|RE|PD|ad|hy|nh)\b.*$", "", text, flags=re.M)


def paragraphs():
    for path in tracked("*.md", "doc/man/*"):
        text = without_code(path, text_of(path))
        for found in re.finditer(r"(?:^(?![|#]|\s*$).*\n?)+", text, re.M):
            if len(re.findall(r"\w+", found.group(0))) >= LEAST_WORDS:
                yield path, line_of(text, found.start()), found.group(0)


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.randrange(1 << 32)
    wanted = [int(n) for n in sys.argv[2:4]] or [40, 20]
    chooser = random.Random(seed)
    print(f"seed {seed}")
    for number, source in zip(wanted, (comments, paragraphs)):
        pieces = sorted(source())
        for path, line, body in sorted(chooser.sample(pieces, min(number, len(pieces)))):
            print(f"\n== {path}:{line}\n{body.rstrip()}")


main()
