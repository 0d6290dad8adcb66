"""What farpage-json(5) lists, and whether a document has it. Room: test/lib."""
import re

TYPES = {int: "number", float: "number", str: "text", dict: "object", list: "list of objects", type(None): "null"}


def documented(page):
    """Of each section of the page: the types of its fields, by path."""
    with open(page, encoding="utf-8") as source:
        sections = re.split(r"^\.SH (.+)\n", source.read(), flags=re.MULTILINE)
    return {title: dict(re.findall(r"^\\fB(\S+)\\fR \((.+)\)$", text, flags=re.MULTILINE))
            for title, text in zip(sections[1::2], sections[2::2])}


def type_of(value):
    return "true or false" if isinstance(value, bool) else TYPES[type(value)]


def fields(value, path=""):
    """Each path below value, with the type that is seen there."""
    if isinstance(value, list):
        for item in value:
            yield from fields(item, path + "[]")
    elif isinstance(value, dict):
        for name, member in value.items():
            below = f"{path}.{name}" if path else name
            yield below, type_of(member)
            yield from fields(member, below)


def check(case, value, wanted, unseen=()):
    """value has the fields that are wanted, and each is of its type. The test case fails if not."""
    seen = {}
    for path, kind in fields(value):
        seen.setdefault(path, set()).add(kind)
    missing = {path for path in wanted if not path.startswith(unseen)} if unseen else set(wanted)
    case.assertEqual(missing - set(seen), set(), "listed in farpage-json(5), but not printed")
    case.assertEqual(set(seen) - set(wanted), set(), "printed, but not listed in farpage-json(5)")
    for path, kinds in seen.items():
        allowed = {wanted[path], *wanted[path].split(" or ")}
        case.assertLessEqual(kinds, allowed, path)
