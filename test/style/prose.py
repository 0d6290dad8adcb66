"""prose.py [--fix [FILE...]]: lines of prose, in comments and in documents, have 100 columns at
most.

Code has the limit of .clang-format, also with a comment behind it. Drawings, tables, blocks of code
and lines with an address are no prose: what has box characters, arrows, or two spaces in a row
stays as it is. --fix wraps the paragraphs that are too wide, and no others.
"""
import re
import sys

import sources

WIDTH = 100
BEHIND_CODE = 110  # as .clang-format has it
RAGGED = 90  # a line that ends before this column, although the next word had room, ends on purpose
C, SHELL, PYTHON, DOCUMENT = (".c", ".h", ".def"), (".sh", "meson.build"), (".py",), (".md",)
DRAWN = re.compile(r"-{5,}|[\u2190-\u21ff\u2500-\u25ff]|--+>|<--+|==+>|\+--|\S {2,}\S|://|\\$|\\[a-z]\b")
DIRECTIVE = re.compile(r"(shellcheck|pylint|noqa|type:|!)\b|!")
ITEM = re.compile(r"([-*+]|\d+\.) ")
WORD = re.compile(r"(?:`[^`\n]{1,95}`|\S)+")


def width(line):
    return len(line.expandtabs(8))


class Line:
    """A line of comment or document: what stands before the prose, the prose, and what ends the
    comment."""

    def __init__(self, number, before, text, after="", rest=None, limit=WIDTH):
        lead = len(text) - len(text.lstrip(" "))
        self.number, self.before, self.text, self.after = number, before, text[lead:].rstrip(), after
        self.rest = before if rest is None else rest  # what stands before the next line of its paragraph
        self.lead, self.limit = lead, limit

    def whole(self):
        return (self.before + " " * self.lead + self.text).rstrip() + self.after

    def is_prose(self):
        return bool(self.text) and not DRAWN.search(self.text) and not DIRECTIVE.match(self.text)

    def is_wide(self):
        return self.is_prose() and width(self.whole()) > self.limit


def paragraphs(lines):
    """Groups of lines that can be filled anew: prose, one after the other, the first with an
    indentation of its own."""
    group = []
    for line in lines:
        if group and not continues(group, line):
            yield group
            group = []
        if line.is_prose():
            group.append(line)
    if group:
        yield group


def continues(group, line):
    last = group[-1]
    if not line.is_prose() or line.number != last.number + 1 or last.after or ITEM.match(line.text):
        return False
    hangs = line.lead >= last.lead if len(group) == 1 else line.lead == last.lead
    ended = width(last.whole()) + 1 + len(line.text.split()[0]) <= RAGGED
    return hangs and not ended


def fill(group):
    """The text of the lines that the group becomes."""
    first, last = group[0], group[-1]
    item = ITEM.match(first.text)
    lead = group[1].lead if len(group) > 1 else first.lead + (len(item[0]) if item else 0)
    words = WORD.findall(" ".join(line.text for line in group))
    filled, now = [], first.before + " " * first.lead + words[0]
    for i, word in enumerate(words[1:], 2):
        ends = last.after if i == len(words) else ""
        if width(now + " " + word + ends) > WIDTH:
            filled.append(now)
            now = first.rest + " " * lead + word
        else:
            now += " " + word
    return filled + [now + last.after]


# ---- where prose is ----


def lines_of_c(text):
    rows = text.split("\n")
    for token in sources.TOKEN.finditer(text):
        if not sources.is_comment(token[0]):
            continue
        number = text.count("\n", 0, token.start()) + 1
        before = rows[number - 1][: token.start() - text.rfind("\n", 0, token.start()) - 1]
        limit = BEHIND_CODE if before.strip() else WIDTH
        if token[0].startswith("//"):
            yield Line(number, before + "//", token[0][2:], limit=limit)
            continue
        bodies = token[0].split("\n")
        if rows[number + len(bodies) - 2].rstrip()[-2:] != "*/":
            continue  # code follows
        rest = re.match(r"\s*", before)[0] + " *"
        for i, body in enumerate(bodies):
            after = ""
            if i == len(bodies) - 1:
                body, after = re.sub(r"\s*\*/$", "", body), " */" if body.strip() != "*/" else "*/"
            if i == 0:
                yield Line(number, before + "/*", body[2:], after, rest, limit)
            elif limit == WIDTH:
                star = re.match(r"(\s*\*)(.*)", body)
                if star:
                    yield Line(number + i, star[1], star[2], after)


def lines_of_shell(text):
    rows = text.split("\n")
    for number in sorted(sources.comments_of_shell(text)):
        mark = re.match(r"(\s*#)(.*)", rows[number - 1])
        yield Line(number, mark[1], mark[2])


def lines_of_python(text):
    rows = text.split("\n")
    for number in sorted(sources.comments_of_python(text)):
        row = rows[number - 1]
        mark = re.match(r"(\s*#)(.*)", row)
        if mark:
            yield Line(number, mark[1], mark[2])
            continue
        quotes = re.match(r'(\s*)(""")?(.*?)("""\s*)?$', row)
        indent = quotes[1]
        yield Line(number, indent + (quotes[2] or ""), quotes[3], (quotes[4] or "").rstrip(), indent)


def lines_of_document(text):
    fenced = False
    previous = ""
    for number, row in enumerate(text.split("\n"), 1):
        if row.lstrip().startswith("```"):
            fenced = not fenced
        indent = re.match(r" *", row)[0]
        code = fenced or (len(indent) >= 4 and not previous.strip())
        if not code and not row.lstrip().startswith(("|", "#", "<", "```", ">")):
            yield Line(number, "", row)
        previous = row if not (code and not fenced) else previous


def lines_of(path, text):
    ways = ((C, lines_of_c), (SHELL, lines_of_shell), (PYTHON, lines_of_python), (DOCUMENT, lines_of_document))
    return next(list(lines(text)) for endings, lines in ways if path.endswith(endings))


def check(path, text):
    wide = (line for line in lines_of(path, text) if line.is_wide())
    return [f"{path}:{line.number}: {width(line.whole())} columns of prose; {line.limit} at most" for line in wide]


def fixed(path, text):
    rows = text.split("\n")
    for group in reversed(list(paragraphs(lines_of(path, text)))):
        if any(line.is_wide() and line.limit == WIDTH for line in group):
            first, last = group[0].number, group[-1].number
            rows[first - 1 : last] = fill(group)
    return "\n".join(rows)


def fix(paths):
    for path in paths:
        text = sources.read(path)
        wrapped = fixed(path, text)
        if wrapped != text:
            with open(f"{sources.ROOT}/{path}", "w", encoding="utf-8") as f:
                f.write(wrapped)


LONG = "word " * 22 + "end."
SAMPLES = [
    ("one.c", f"int f(void); /* short */\n\t/* {LONG} */\n", True),
    ("block.h", f"/*\n * {LONG}\n */\n", True),
    ("slashes.c", f"// {LONG}\n", True),
    ("drawing.c", f"/*\n * one ──► {LONG}\n * two   {LONG}\n */\n", False),
    ("text.c", f'static const char *text = "/* {LONG} */";\n', False),
    ("short.c", "/* short */\n", False),
    ("one.sh", f"true\n# {LONG}\n", True),
    ("text.sh", f"cat <<END\n# {LONG}\nEND\n", False),
    ("one.py", f'def f():\n    """{LONG}"""\n', True),
    ("mark.py", f"# {LONG}\n", True),
    ("text.py", f"x = '# {LONG}'\n", False),
    ("one.md", f"# Title\n\n{LONG}\n", True),
    ("item.md", f"- {LONG}\n", True),
    ("table.md", f"| {LONG} |\n\n```\n{LONG}\n```\n\nhttp://{LONG}\n\n    {LONG}\n", False),
]


def all_paths():
    ours = sources.FOLDERS + ("test", "scripts")
    return (
        sources.files(ours, C + SHELL + PYTHON)
        + sources.files(("doc", "test"), DOCUMENT)
        + ["README.md", "CONTRIBUTING.md", "meson.build"]
    )


def main():
    for path, text, _ in SAMPLES:
        again = check(path, fixed(path, text))
        if again:
            sys.exit(f"--fix does not work: {again} is left of the sample {path!r}:\n{fixed(path, text)}")
    if sys.argv[1:2] == ["--fix"]:
        fix(sys.argv[2:] or all_paths())
    else:
        sources.run(check, SAMPLES, all_paths())


main()
