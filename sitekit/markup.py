"""Markdown extension: lighter markup than the theme's own.

Every table stands in a box of its own, which scrolls: the theme does so with
JavaScript and for some tables only. In code, spans that would not change a
colour are left out: two thirds of all elements of a page.
"""

import re
from xml.etree.ElementTree import Element

from markdown import Extension, Markdown
from markdown.postprocessors import Postprocessor
from markdown.treeprocessors import Treeprocessor

PLAIN = re.compile(r'<span class="(?:n|o|p|w|nb|bp|nn)">([^<]*)</span>')


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


class _PlainCode(Postprocessor):
    def run(self, text: str) -> str:
        return PLAIN.sub(r"\1", text)


class Markup(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.treeprocessors.register(_Boxes(md), "boxes", 0)
        md.postprocessors.register(_PlainCode(md), "plain_code", 0)


def makeExtension(**kwargs: object) -> Markup:  # noqa: N802
    return Markup(**kwargs)
