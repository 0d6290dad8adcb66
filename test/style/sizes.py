"""No function of more than 50 lines, no file of more than 700: see CONTRIBUTING.md.

A function's lines are those between the braces of its body, which stand alone in the first column.
Labels of a switch do not count: one with a call for each label is a table.
"""
import re

import sources

FUNCTION_LINES = 50
FILE_LINES = 700
BODY = re.compile(r"^(\w[^\n]*(?:\n[^\n{}]+)*)\n\{\n(.*?)^\}$", re.MULTILINE | re.DOTALL)
LABEL = re.compile(r"^\s*(?:case .*|default):\s*$", re.MULTILINE)
ENDINGS = (".c", ".h", ".py", ".sh")  # a .def is a table


def check(path, text):
    faults = []
    lines = text.count("\n")
    if lines > FILE_LINES:
        faults.append(f"{path}: {lines} lines; {FILE_LINES} at most")
    if path.endswith((".c", ".h")):
        code = sources.code_of_c(text)
        for function in BODY.finditer(code):
            inside = function[2].count("\n") - len(LABEL.findall(function[2]))
            name = re.search(r"(?!__attribute__)\b(\w+)\((?!\()", function[1])
            if inside > FUNCTION_LINES:
                number = code.count("\n", 0, function.start()) + 1
                faults.append(f"{path}:{number}: {name[1] if name else '?'} has {inside} lines; {FUNCTION_LINES} at most")
    return faults


def function(lines):
    return "int f(void)\n{\n" + "\tif (g()) {\n\t}\n" * (lines // 2) + "}\n"


SAMPLES = [
    ("long.c", function(52), True),
    ("arguments.c", "static int\nf(int one,\n  int two)\n{\n" + "\tg();\n" * 51 + "}\n", True),
    ("short.c", function(50) + "\n" + function(50), False),
    ("switch.c", "int f(int n)\n{\n\tswitch (n) {\n" + "\tcase 1:\n\t\treturn 2;\n" * 40 + "\t}\n}\n", False),
    ("table.c", "static int t[] = {\n" + "\t1,\n" * 60 + "};\n", False),
    ("long.py", "x = 1\n" * 701, True),
    ("short.py", "x = 1\n" * 700, False),
]

sources.run(check, SAMPLES, sources.files(sources.FOLDERS + ("test", "scripts"), ENDINGS))
