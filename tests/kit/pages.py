"""Reading the pages: as they are written, and as they are built."""

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import yaml

from sitekit import ROOT
from sitekit.markdown import pages, source

PAGES = pages.markdown_files("en") + pages.markdown_files("zh")


def section(name, text):
    """The text below the heading with that id."""
    (result,) = re.findall(rf"{{ #{name} }}\n(.*?)(?:\n## |\Z)", text, re.S)
    return result


def cells(text):
    """Rows of the Markdown tables, without their heads."""
    rows = [re.split(r" *\| *", x)[1:-1] for x in text.splitlines() if "|" in x]
    return [row for row in rows[2:] if not set(row[0]) <= set("- ")]


def fences(stem, language="en"):
    """The kind and the YAML of each fence of a page that draws."""
    paths = [p for p in pages.markdown_files(language) if p.stem == stem]
    path, *_ = sorted(paths, key=lambda path: path.parent.name == "api")
    page = pages.render(pages.body_of(path), expand=False)
    blocks = (b for b in page.blocks if b.language in source.DRAWN)
    return [(block.language, yaml.safe_load(block.text)) for block in blocks]


# Half of all tags: the colours of code.
COLOUR = re.compile(r'</?span(?: class="[^"]*")?>')


@cache
class Reader(HTMLParser):
    """Python blocks, ids, links and formulas of a built page, which is read
    once, whichever tests look at it."""

    def __init__(self, path):
        HTMLParser.__init__(self)
        self.blocks, self.ids, self.links, self.math = [], set(), [], ""
        self.head, self.lang = [], ""
        self.depth, self.code, self.in_math = 0, None, False
        self.feed(COLOUR.sub("", path.read_text(encoding="utf-8")))

    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if tag == "html":
            self.lang = a["lang"]
        if "id" in a:
            self.ids.add(a["id"])
        for key in ("href", "src"):
            if key in a and tag != "link":
                self.links.append(a[key])
        if tag == "link":
            self.head.append(a)
            if a["rel"] not in ("alternate", "canonical", "prev", "next"):
                self.links.append(a["href"])
        if tag == "div":
            classes = (a.get("class") or "").split()
            if self.depth or (
                "language-python" in classes and "doc-signature" not in classes
            ):
                self.depth += 1
        if tag == "code" and self.depth:
            self.code = ""
        if tag == "math":
            self.in_math = True

    def handle_endtag(self, tag):
        if tag == "div" and self.depth:
            self.depth -= 1
        if tag == "code" and self.code is not None:
            self.blocks.append(self.code)
            self.code = None
        if tag == "math":
            self.in_math = False

    def handle_data(self, data):
        if self.code is not None:
            self.code += data
        if self.in_math:
            self.math += data


def built(site, path):
    """The built page of a Markdown file."""
    language, *rest = path.relative_to(ROOT / "docs").parts
    stem = Path(*rest).with_suffix("")
    folder = site.folder / ("" if language == "en" else language)
    parent = folder if stem.name == "index" else folder / stem
    return parent / "index.html"
