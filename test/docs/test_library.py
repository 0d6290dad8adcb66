"""Each call of the library has a man page that says what its header says.

    FARPAGE_BUILD=build test/docs/test_library.py
"""
import os
import re
import subprocess
import unittest

import manual

HEADER = manual.read("include/farpage/farpage.h")
CALL = re.compile(r"(/\*(?:(?!\*/).)*\*/\n)FAR_API ([^;]*?\b(far_\w+)\([^;]*);", re.DOTALL)
DESCRIBED = {"far_options": "far_open", "far_stats": "far_get_stats", "far_hold": "far_hold"}


def squeezed(text):
    return re.sub(r"\s*([(),*])\s*", r"\1", " ".join(text.split()))


def page(call):
    found = manual.Page(f"doc/man/{call}.3")
    return manual.Page(f"doc/man/{found.alias[1]}") if found.alias else found


def tags(call, title=None):
    lines = page(call).sections()[title] if title else page(call).lines
    return re.findall(r"[\w-]+", " ".join(manual.Page.tags(page(call), lines)))


def without_comments(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


class Library(unittest.TestCase):
    def calls(self):
        found = CALL.findall(HEADER)
        self.assertEqual({name for _, _, name in found}, set(re.findall(r"\b(far_\w+)\(", without_comments(HEADER))))
        return found

    def test_prototypes(self):
        for _, prototype, name in self.calls():
            with self.subTest(name):
                self.assertIn(squeezed(prototype) + ";", squeezed(manual.plain("\n".join(page(name).sections()["SYNOPSIS"]))))
                self.assertRegex(page(name).text(page(name).sections()["NAME"]), r"\b%s\b.* - " % name)
                self.assertIn(f"{name}(3)", manual.Page("doc/man/farpage.3").text())

    def test_errors(self):
        """If two calls share a page, the page has the errors of both."""
        of_page, of_header = {}, {}
        for comment, _, name in self.calls():
            errors = set(re.findall(r"-E[A-Z0-9]+", comment))
            of_header.setdefault(page(name).path, set()).update(errors)
            of_page[page(name).path] = set(tags(name, "ERRORS")) if "ERRORS" in page(name).sections() else set()
        self.assertEqual(of_header, of_page)

    def test_members(self):
        for struct, body in re.findall(r"^struct (far_\w+) \{(.*?)^\};", HEADER, re.DOTALL | re.MULTILINE):
            members = re.findall(r"(\w+)(?:\[\d+\])?;", without_comments(body))
            with self.subTest(struct):
                self.assertEqual(members, [tag for tag in tags(DESCRIBED[struct]) if tag in members])
                self.assertFalse([tag for tag in tags(DESCRIBED[struct], "DESCRIPTION") if tag not in members])

    def test_constants(self):
        known = set(re.findall(r"^\tFAR_(\w+)", HEADER, re.MULTILINE))
        texts = " ".join(p.text(p.lines[1:]) for p in manual.pages() if p.section == "3")
        self.assertEqual(known, set(re.findall(r"\bFAR_([A-Z_]+)", texts)))

    def test_pages_name_only_what_exists(self):
        known = set(re.findall(r"\bfar_\w+", HEADER))
        for p in manual.pages():
            with self.subTest(p.path):
                self.assertLessEqual(set(re.findall(r"\bfar_\w+" if p.section == "3" else r"\b(far_\w+)\(", p.text())), known)

    def test_examples_compile(self):
        compiled = 0
        for p in (p for p in manual.pages() if p.section == "3" and "EXAMPLES" in p.sections()):
            for source in re.findall(r"^\.EX\n(.*?)^\.EE$", "\n".join(p.sections()["EXAMPLES"]), re.DOTALL | re.MULTILINE):
                done = subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", os.path.join(manual.ROOT, "include"), "-x",
                                       "c", "-fsyntax-only", "-"], input=manual.plain(source), capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                compiled += 1
        self.assertGreater(compiled, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
