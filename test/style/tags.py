"""Tags of structs, unions and enums are unique over the product, and so are the guards of headers:
one word, one meaning.

The program needs one name for each thing, so that a search finds one definition.
"""
import collections
import re

import sources

TAG = re.compile(r"\b(struct|union|enum)\s+(\w+)\s*\{")
GUARD = re.compile(r"\A\s*#ifndef (\w+)")

defined = collections.defaultdict(list)  # by name: where


def check(path, text):
    """Of what stood in the files before this one, too."""
    code = sources.code_of_c(text)
    names = [(m[2], code.count("\n", 0, m.start()) + 1) for m in TAG.finditer(code)]
    if path.endswith(".h"):
        names += [(m[1], 1) for m in GUARD.finditer(code)]
    faults = []
    for name, number in names:
        if defined[name]:
            faults.append(f"{path}:{number}: {name} is also in {', '.join(defined[name])}")
        defined[name].append(f"{path}:{number}")
    return faults


SAMPLES = [
    ("sample1.c", "struct sample_one {\n};\n// struct sample_two { }\nstruct sample_one *f(struct sample_one s);\n", False),
    ("sample2.c", "enum sample_two {\n};\n", False),
    ("sample3.c", "static const struct sample_one {\n} s;\n", True),
    ("sample4.h", "#ifndef SAMPLE_H\n#define SAMPLE_H\n#endif\n", False),
    ("sample5.h", "// A comment.\n#ifndef SAMPLE_H\n#define SAMPLE_H\n#endif\n", True),
]

sources.run(check, SAMPLES, sources.files(sources.FOLDERS, (".c", ".h")))
