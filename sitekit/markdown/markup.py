"""Markdown extension: lighter markup than the theme's own.

Every table stands in a box of its own, which scrolls: the theme does so with
JavaScript and for some tables only. In code, spans that would not change a
colour are left out: two thirds of all elements of a page. The copy buttons
are in the page from the start; made by the theme, they block it for 0.2 s.
A table says which of its cells are long, and so may wrap; where too much stands
in a row for a phone, each cell has the head of its column.
"""

import re
from html import escape, unescape
from itertools import count
from typing import Any
from xml.etree.ElementTree import Element

from markdown import Extension, Markdown
from markdown.postprocessors import Postprocessor
from markdown.treeprocessors import Treeprocessor

COPYABLE = re.compile(
    r'(<div class="language-(?:py|python|bash|pycon|diff) highlight">'
    r"(?:(?!</div>).)*</pre>)"
    r"(?=</div>)",
    re.DOTALL,
)
# Markdown asks for a space after **...。**, Chinese type has none.
SPACE = re.compile("(?<=[。：；！？]</strong>) ")
# Names of attnref in a signature become links, others only spans with a title.
FOREIGN = re.compile(r'<autoref identifier="(?!attnref\.)[^>]*>([^<]*)</autoref>')
PLAIN = re.compile(
    r'<span class="(?:n|o|p|w|kc|nb|bp|nn)">'
    r"((?:<autoref[^>]*>)?[^<]*(?:</autoref>)?)</span>"
)
TABLE = re.compile(r'(<div class="scroll"[^>]*><table class="tabular)">(.*?)</table>', re.DOTALL)
CELL = re.compile(r"<(t[hd])\b([^>]*)>(.*?)</\1>", re.DOTALL)
CLASS = re.compile(r' class="([^"]*)"')
TAG = re.compile("<[^>]*>")
EMPTY_LINK = re.compile("<a [^>]*></a>")
FIRST, LONG, WRAPS = 17, 24, 35  # letters of a cell: it may, or has to, wrap
PHONE, LEAST = 46, 22  # letters of a line, and of a column that wraps


class _Boxes(Treeprocessor):
    def run(self, root: Element) -> None:
        for parent in list(root.iter()):
            for i, child in enumerate(parent):
                if child.tag == "table":
                    child.set("class", "tabular")
                    box = Element("div", {"class": "scroll"})
                    box.tail, child.tail = child.tail, None
                    box.append(child)
                    parent[i] = box


def _letters(html: str) -> int:
    """How many letters the longest line of a cell has. Chinese ones count
    twice, and a link without a text gets a title later."""
    lines = TAG.sub("", EMPTY_LINK.sub("." * LEAST, html.replace("<br>", "\n")))
    return max(
        sum(1 + (c > "\u2e7f") for c in line.strip()) for line in unescape(lines).split("\n")
    )


def _table(match: re.Match[str]) -> str:
    """Give long cells of a table the class `long`, and the table the class
    `stacked` if a phone has to put its cells below each other."""
    head, _, body = match[2].partition("</thead>")
    names = [TAG.sub("", c[3]) for c in CELL.finditer(head)]
    rows = [[*CELL.finditer(row)] for row in re.split("(?=<tr)", body)]
    columns = [
        max(map(_letters, (c[3] for c in column)), default=0)
        for column in zip(*filter(None, rows), strict=False)
    ]
    room = sum(min(n, LEAST) + 2 for n in columns) - 2
    rest = max(columns[1:], default=0)
    wraps = rest > WRAPS or (rest > LONG and sum(columns) > 2 * PHONE + LEAST)
    is_stacked = wraps and room > PHONE and "<button" not in head

    def cell(c: re.Match[str], column: int) -> str:
        attributes = c[2]
        if _letters(c[3]) > (LONG if column else FIRST):
            classes = CLASS.search(attributes)
            attributes = CLASS.sub("", attributes)
            attributes += f' class="{classes[1] + " " if classes else ""}long"'
        if is_stacked and column and c[3]:
            attributes += f' data-head="{names[column]}"'
        return f"<{c[1]}{attributes}>{c[3]}</{c[1]}>"

    def row(html: str) -> str:
        numbers = count()
        return CELL.sub(lambda c: cell(c, next(numbers)), html)

    body = "".join(map(row, re.split("(?=<tr)", body)))
    kind = " stacked" if is_stacked else ""
    return f'{match[1]}{kind}">{head}</thead>{body}</table>'


def button(copy: str, copied: str) -> str:
    return (
        f'<button class="copy" type="button" aria-label="{escape(copy)}"'
        f' data-done="{escape(copied)}"></button>'
    )


class _Code(Postprocessor):
    def __init__(self, md: Markdown, copy: str, copied: str) -> None:
        super().__init__(md)
        self.button = button(copy, copied)

    def run(self, text: str) -> str:
        text = SPACE.sub("", text).replace("<pre><span></span>", "<pre>")
        text = PLAIN.sub(r"\1", FOREIGN.sub(r"\1", text))
        text = COPYABLE.sub(lambda block: block[0] + self.button, text)
        return TABLE.sub(_table, text)


class Markup(Extension):
    def __init__(self, **kwargs: Any) -> None:
        self.config = {
            "copy": ["Copy", "the button of a block of code"],
            "copied": ["Copied", "the same button once it was pressed"],
        }
        super().__init__(**kwargs)

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.treeprocessors.register(_Boxes(md), "boxes", 0)
        md.postprocessors.register(_Code(md, **self.getConfigs()), "code", 0)


def makeExtension(**kwargs: Any) -> Markup:  # noqa: N802
    return Markup(**kwargs)
