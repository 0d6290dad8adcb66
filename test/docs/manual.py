"""The documents and the commands, as the tests of this folder read them. Room: test/docs.

FARPAGE_BUILD names the build folder. A page is read from its source, so that what it says does not
depend on how it is formatted.
"""
import functools
import glob
import os
import re
import shlex
import subprocess

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
BUILD = os.environ["FARPAGE_BUILD"]
PROGRAMS = {"farpage": os.path.join(BUILD, "tools/farpage"), "farpaged": os.path.join(BUILD, "daemon/farpaged")}
GROUPS = {"bench": ("fault", "link", "touch", "apps")}  # commands that have commands of their own
TIMEOUT = 60


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


# ---- commands ----


@functools.lru_cache(maxsize=None)
def shown_help(command):
    """What `COMMAND --help` prints."""
    words = command.split()
    return subprocess.run([PROGRAMS[words[0]], *words[1:], "--help"], check=True, capture_output=True, text=True,
                          timeout=TIMEOUT).stdout


def subcommands():
    """Every command that has options of its own, as it is typed."""
    listed = re.findall(r"^  (\w+) +\S", shown_help("farpage"), re.MULTILINE)
    found = ["farpage", "farpaged"]
    for name in listed:
        found += [f"farpage {name}"] if name not in GROUPS else []
        found += [f"farpage {name} {more}" for more in GROUPS.get(name, ())]
    return found


def options_of(command):
    """The options that --help lists: of each whether it takes a value."""
    options = {}
    for row in re.findall(r"^  (-.*)", shown_help(command), re.MULTILINE):
        names = re.match(r"(?:-{1,2}[\w-]+(?: [A-Z]+\b)?[,;]? ?)+", row)[0]
        for name, value in re.findall(r"(-{1,2}[\w-]+)( [A-Z]+\b)?", names):
            options[name] = bool(value)
    return options


# ---- man pages ----


def plain(text):
    """A piece of a page's source without its markup."""
    text = re.sub(r"\\f(?:[BIRP]|\(..)", "", text)
    for mark, meaning in (("\\-", "-"), ("\\e", "\\"), ("\\(bu", "*"), ("\\(mc", "µ"), ("\\&", ""), ("\\(aq", "'")):
        text = text.replace(mark, meaning)
    return text


def line_text(line):
    """The text of a line, which may be a macro that changes the font."""
    macro = re.match(r"\.([BIR]{1,2}|SM|IP|TH|SH|SS) *(.*)", line)
    if not macro:
        return "" if line.startswith((".", "'")) else plain(line)
    words = re.findall(r'"([^"]*)"|(\S+)', macro[2])
    return plain(("" if len(macro[1]) == 2 and macro[1] not in ("SM", "IP", "TH", "SH", "SS") else " ").join(a or b for a, b in words))


class Page:
    def __init__(self, path):
        self.path, self.source = path, read(path)
        self.name = os.path.basename(path)
        self.section = self.name[-1]
        self.alias = re.match(r"\.so man\d/(\S+)", self.source)
        self.lines = self.source.splitlines()

    def sections(self):
        """Title and lines of each section."""
        found, title = {}, None
        for line in self.lines:
            if line.startswith(".SH"):
                title = line_text(line)
            found.setdefault(title, []).append(line)
        return found

    def tags(self, lines=None):
        """The text of each line that a .TP makes the head of a paragraph."""
        lines = self.lines if lines is None else lines
        return [line_text(lines[i + 1]) for i, line in enumerate(lines[:-1]) if re.fullmatch(r"\.TP.*|\.TQ", line)]

    def text(self, lines=None):
        return "\n".join(line_text(line) for line in (self.lines if lines is None else lines))

    def options(self, lines=None):
        """The options that have a paragraph: of each whether it takes a value."""
        options = {}
        for tag in self.tags(lines):
            for names in re.findall(r"(?:^|, )(-.*?)(?=, -|$| \()", tag):
                name = re.match(r"-{1,2}[\w-]+", names)[0]
                options[name] = " " in names
        return options

    def synopsis(self):
        return " ".join(self.text(self.sections().get("SYNOPSIS", [])).split())

    def examples(self):
        """The command lines that it shows, with their comments."""
        lines = []
        for title, source in self.sections().items():
            shown = re.findall(r"^\.EX\n(.*?)^\.EE$", "\n".join(source) + "\n", re.DOTALL | re.MULTILINE)
            if title != "SYNOPSIS" and self.section in "1578":
                lines += [line for block in shown for line in shell_lines(plain(block))]
        return lines


def pages():
    return [Page(os.path.relpath(path, ROOT)) for path in sorted(glob.glob(os.path.join(ROOT, "doc/man/*.[1-8]")))]


def page_of(command):
    """The page of a command: that of `farpage bench link` is farpage-bench(1)."""
    name = "-".join(command.split()[:2])
    return Page(f"doc/man/{name}.{8 if name == 'farpaged' else 1}")


# ---- command lines ----


def shell_lines(text):
    """Logical lines: a backslash at the end of a line continues it."""
    return [line.strip() for line in re.sub(r"\\\n\s*", "", text).splitlines() if line.strip()]


def fences(path):
    """Each block of a document in Markdown: its language and its text."""
    return re.findall(r"^ *```(\w+)\n(.*?)^ *```$", read(path), re.DOTALL | re.MULTILINE)


def spans(path):
    """Commands in the running text of a document, and in its tables."""
    text = re.sub(r"^ *```.*?^ *```$", "", read(path), flags=re.DOTALL | re.MULTILINE)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def span_lines(path):
    """The spans that are command lines. A span that only names a command is left out."""
    return [span for span in spans(path)
            if re.match(r"(farpaged?|make|openssl|sudo) ", span) and not re.fullmatch(r"farpaged?( [a-z]+)*", span)]


def documents():
    return ["README.md", "CONTRIBUTING.md"] + [os.path.relpath(path, ROOT) for path in sorted(glob.glob(os.path.join(ROOT, "doc/*.md")))]


def words_of(line):
    """The words of a command line up to its comment; no words if the shell would not take it."""
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return []
