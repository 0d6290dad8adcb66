"""Reads the pictures (SVG) that farpage draws. Room: test/lib."""
import collections
import xml.etree.ElementTree as tree

SVG = "{http://www.w3.org/2000/svg}"
Panel = collections.namedtuple("Panel", "title legend curves")


def points(line):
    return [tuple(map(float, point.split(","))) for point in line.get("points").split()]


def panels(path):
    """Each plot of the picture: its title, the lines of its legend, the points of its curves. An
    error if the file is not well-formed."""
    root = tree.parse(path).getroot()
    found = []
    for group in root.findall(f"{SVG}g"):
        texts = group.findall(f"{SVG}text")
        names = [text.text for text in texts if text.get("class") == "text" and text.get("x") == "124"]
        found.append(Panel(texts[0].text, names, [points(line) for line in group.findall(f"{SVG}polyline")]))
    return found
