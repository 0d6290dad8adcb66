"""Every option of every --help is in its man page, and the other way round; no document names an
option that is not there.

    FARPAGE_BUILD=build test/docs/test_options.py
"""
import glob
import os
import re
import subprocess
import unittest

import manual

COMMON = {"-h", "--help", "-V", "--version"}


def of_section(title, command):
    """Whether a section's options are those of the command: OPTIONS OF FAULT AND TOUCH belongs to
    two."""
    words = title.split()
    return words[0] == "OPTIONS" and (len(words) == 1 or command.split()[-1].upper() in words)


def end_of_options(words):
    """Where the program begins that `farpage run` starts: what follows is that program's own."""
    takes_value = manual.options_of("farpage run")
    i = 0
    while i < len(words) and words[i].startswith("-") and words[i] != "--":
        i += 2 if takes_value.get(words[i]) else 1
    return i


def usages(text):
    """Gives the command and the options of each command line of ours in a text. A pipe, a
    bracket and the like end a command line."""
    for name, rest in re.findall(r"\b(farpaged?)((?: +[^\s|;&>#()]+)+)", text):
        words = rest.split()
        if name == "farpage" and words and words[0] in manual.GROUPS and words[1:] and words[1] in manual.GROUPS[words[0]]:
            name, words = f"farpage {words[0]} {words[1]}", words[2:]
        elif name == "farpage" and words and f"farpage {words[0]}" in manual.subcommands():
            name, words = f"farpage {words[0]}", words[1:]
        elif name == "farpage":
            continue
        if name == "farpage run":
            words = words[: end_of_options(words)]
        yield name, [re.match(r"-[\w-]*", word)[0] for word in words if re.match(r"--?[a-zA-Z]", word)]


class Options(unittest.TestCase):
    def test_help_and_pages_agree(self):
        for command in manual.subcommands():
            page = manual.page_of(command)
            lines = [line for title, section in page.sections().items() if title and of_section(title, command) for line in section]
            with self.subTest(command):
                self.assertEqual(manual.options_of(command), page.options(lines), f"--help is first, {page.path} second")

    def test_every_option_of_a_page_is_in_a_section_of_options(self):
        for page in (page for page in manual.pages() if page.section in "18"):
            lines = [line for title, section in page.sections().items() if title and title.startswith("OPTIONS") for line in section]
            with self.subTest(page.path):
                self.assertEqual(page.options(), page.options(lines))

    def test_synopses(self):
        """The synopsis and the first lines of --help name only what is there, and either all of it
        or OPTION."""
        for command in manual.subcommands():
            options = manual.options_of(command)
            usage = manual.shown_help(command).split("\n\n")[0]
            for where, text in (("the usage", usage), (manual.page_of(command).path, manual.page_of(command).synopsis())):
                named = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", text))
                with self.subTest(command, where=where):
                    self.assertLessEqual(named, self.options_of_all(command))
                    if "OPTION" not in text:
                        self.assertLessEqual(set(options) - COMMON, named)

    @staticmethod
    def options_of_all(command):
        """Of the command, and of those that share its page."""
        page = manual.page_of(command).path
        return set().union(*(manual.options_of(other) for other in manual.subcommands() if manual.page_of(other).path == page))

    def test_words(self):
        """What an option takes is what its page says."""
        for command in manual.subcommands():
            for tag in manual.page_of(command).tags():
                for name, words in re.findall(r"(--[\w-]+) ([a-z]+(?:\|[a-z]+)+)", tag.replace("[:SIZE]", "")):
                    if name in manual.options_of(command):
                        with self.subTest(command, option=name):
                            self.assertEqual(set(words.split("|")), allowed(command, name))

    def test_letters(self):
        for command in ["farpage bench"] + manual.subcommands():
            for letter, word in (("-h", "--help"), ("-V", "--version")):
                with self.subTest(command, option=letter):
                    shown = output(command, letter)
                    self.assertEqual(shown, output(command, word))
                    self.assertEqual((shown[0], shown[2]), (0, ""))
            self.assertRegex(output(command, "-V")[1], r"^%s \d+\.\d+\.\d+\n$" % command.split()[0])

    def test_every_command_has_a_page(self):
        """And farpage(1) leads to it."""
        for command in manual.subcommands():
            page = manual.page_of(command)
            self.assertIn(command.split()[-1] if "bench" in command else command, page.text())
            if page.name not in ("farpage.1", "farpaged.8"):
                self.assertIn(page.name[:-2] + "(1)", manual.page_of("farpage").text())


class Documents(unittest.TestCase):
    checked = 0

    def check(self, where, text):
        for command, options in usages(text):
            for option in options:
                self.checked += 1
                with self.subTest(where, command=command):
                    self.assertIn(option, manual.options_of(command))

    def test_command_lines_name_options_that_exist(self):
        for path in manual.documents():
            self.check(path, "\n".join([text for language, text in manual.fences(path) if language in ("sh", "ini")]).replace("\\\n", " "))
            for span in manual.spans(path):
                self.check(path, span)
        for page in manual.pages():
            for line in page.lines:
                self.check(page.path, manual.line_text(line))
        self.assertGreater(self.checked, 40)

    def test_keys(self):
        """The keys of the configuration files, and the variables of the environment."""
        rdma = keys_of("transport/rdma_options.c")
        daemon, described = keys_of("daemon/config.c"), words_of_tags("doc/man/farpaged.yaml.5")
        self.assertLessEqual(daemon, described)
        self.assertLessEqual(described - set("true false memfd hugetlb anonymous lease status admin".split()),
                             daemon | rdma)
        tags = manual.Page("doc/man/farpage-preload.7").tags()
        described = {(variable.lower(), key) for variable, key in re.findall(r"FARPAGE_(\w+) \(([\w.]+)\)", "\n".join(tags))}
        for variable, key in described:
            self.assertEqual(variable, key.replace(".", "_"))
        settings = keys_of("uffd/agent/settings.c") - {"rules", "rdma", "reconnect", "place", "of", "min", "max", "library"}
        self.assertEqual({key.split(".")[-1] for _, key in described}, settings | rdma)

    def test_keys_have_an_effect(self):
        """The field that a key fills is read somewhere: beyond its row, its struct and its
        default."""
        sources = "".join(manual.read(os.path.relpath(path, manual.ROOT)) for room in ("common", "daemon", "store", "tools", "transport", "uffd")
                          for path in glob.glob(os.path.join(manual.ROOT, room, "**/*.[ch]"), recursive=True))
        rows = [row for path in ("transport/rdma_options.c", "daemon/config.c", "uffd/agent/settings.c")
                for row in re.findall(r'FP_CONF_KEY\("(\w+)", \w+, \w+,\s*([\w.]+)', manual.read(path))]
        self.assertGreater(len(rows), 40)
        for key, field in rows:
            with self.subTest(key):
                self.assertRegex(sources, r"(?:->|\.)(?:\w+\.)*%s\b(?! = )" % re.escape(field.split(".")[-1]))

    def test_variables(self):
        """Each option of `farpage run` names its variable, and farpage-preload(7) has it."""
        preload = manual.Page("doc/man/farpage-preload.7").text()
        for tag in manual.page_of("farpage run").tags():
            for option, variable in re.findall(r"^--([\w-]+).* \((FARPAGE_\w+)", tag):
                if option != "node":
                    self.assertEqual(variable, "FARPAGE_" + option.upper().replace("-", "_"))
                self.assertIn(variable, preload)

    def test_pages_that_are_named_exist(self):
        """name(SECTION) in pages and documents, and `man name`."""
        known = {(page.name[:-2], page.section) for page in manual.pages()}
        texts = [(page.path, page.text()) for page in manual.pages()] + [(path, manual.read(path)) for path in manual.documents()]
        for where, text in texts + [(command, manual.shown_help(command)) for command in manual.subcommands()]:
            for name, section in re.findall(r"\b(far[a-z_.-]*)\((\d)\)", text):
                with self.subTest(where):
                    self.assertIn((name, section), known)
            for name in re.findall(r"`man (far[\w.-]*)`", text):
                with self.subTest(where):
                    self.assertIn(name, {name for name, _ in known})

    def test_secrets_are_installed_for_their_reader(self):
        """A text that names the file of a secret also shows how that file gets its owner."""
        texts = {path: manual.read(path) for path in [*manual.documents(), "systemd/farpaged.yaml"]}
        texts |= {page.path: page.text() for page in manual.pages()}
        naming = [path for path, text in texts.items() if "file: /etc/farpage/" in text]
        self.assertGreater(len(naming), 3)
        for path in naming:
            with self.subTest(path):
                self.assertIn("install -o farpage -m 600", texts[path])

    def test_every_page_is_installed(self):
        installed = re.findall(r"'(man/[^']+)'", manual.read("doc/meson.build"))
        self.assertEqual(sorted(installed), [page.path.removeprefix("doc/") for page in manual.pages()])

    def test_make_targets_exist(self):
        targets = set(re.findall(r"^([a-z-]+):", manual.read("Makefile"), re.MULTILINE))
        for path in manual.documents() + ["test/README.md", "test/vm/README.md"]:
            for span in manual.spans(path) + [text for language, text in manual.fences(path) if language == "sh"]:
                for target in re.findall(r"(?:^|\n|&& |sudo )make ([a-z][a-z-]*)", span):
                    with self.subTest(path):
                        self.assertIn(target, targets)


def keys_of(path):
    return set(re.findall(r'FP_CONF_KEY\("(\w+)"', manual.read(path)))


def words_of_tags(path):
    return {word for tag in manual.Page(path).tags() for word in re.findall(r"^[a-z_]+$", tag)}


def output(command, *more):
    words = command.split()
    done = subprocess.run([manual.PROGRAMS[words[0]], *words[1:], *more], capture_output=True, text=True, timeout=manual.TIMEOUT)
    return done.returncode, done.stdout, done.stderr


def allowed(command, option):
    """The words that an error message lists for a value that is none of them."""
    message = output(command, option, "nonsense", *(["true"] if command == "farpage run" else []))[2]
    listed = re.search(r"(?:allowed are|must be one of) (.*?)(?:, not 'nonsense'|$)", message, re.MULTILINE)
    return set(re.sub(r" \(.*?\)|\w+:SIZE", "", listed[1]).split(", ")) - {""} if listed else {message}


if __name__ == "__main__":
    unittest.main(verbosity=2)
