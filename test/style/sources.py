"""What the tests of the sources' form share: which files are ours, and which part of a file is
comment.

A test of the form proves on samples of its own that it can fail, before it looks at the tree:
run().
"""
import ast
import os
import re
import subprocess
import sys
import tokenize

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
FOLDERS = ("common", "transport", "store", "uffd", "preload", "daemon", "tools", "include")
TOKEN = re.compile(r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL)
HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")


def files(folders, endings):
    """Paths below the root, sorted. Build folders are not ours."""
    found = []
    for folder in folders:
        for path, folders_in, names in os.walk(os.path.join(ROOT, folder)):
            folders_in[:] = [f for f in folders_in if not f.startswith((".", "build"))]
            found += [os.path.relpath(os.path.join(path, name), ROOT) for name in names if name.endswith(endings)]
    return sorted(found)


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def is_comment(token):
    return token.startswith(("/*", "//"))


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def code_of_c(text):
    """The text with its comments and strings blanked: lines and columns stay."""
    return TOKEN.sub(lambda m: blank(m[0]), text)


def comments_of_c(text):
    """Numbers of the lines that a comment has a part in."""
    numbers = set()
    for token in TOKEN.finditer(text):
        if is_comment(token[0]):
            first = text.count("\n", 0, token.start()) + 1
            numbers.update(range(first, first + token[0].count("\n") + 1))
    return numbers


def comments_of_python(text):
    """Comments that have a line of their own, and the documentation of modules, classes and
    functions."""
    numbers = set()
    lines = iter(text.splitlines(keepends=True))
    for token in tokenize.generate_tokens(lambda: next(lines, "")):
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
            numbers.add(token.start[0])
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False):
            numbers.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return numbers


def comments_of_shell(text):
    """Lines that are comments as a whole, but for those of documents that the shell passes on."""
    numbers, end = set(), None
    for number, line in enumerate(text.splitlines(), 1):
        if end:
            end = None if line.strip() == end else end
        elif re.match(r"\s*#", line):
            numbers.add(number)
        elif document := HEREDOC.search(line):
            end = document[2]
    return numbers


def run(check, samples, paths):
    """check(path, text) lists the faults of a text. Samples: (path, text, whether it is faulty)."""
    for path, text, faulty in samples:
        found = check(path, text)
        if bool(found) != faulty:
            sys.exit(f"the check does not work: it says {found} of the sample {path!r}:\n{text}")
    faults = [fault for path in paths for fault in check(path, read(path))]
    print("\n".join(faults))
    print(f"{len(paths)} files, {len(faults)} faults")
    sys.exit(bool(faults))
