"""Markdown extension: every table stands in a box of its own, which scrolls.

The theme does so with JavaScript and for some tables only; here the markup
is the same without it.
"""

from xml.etree.ElementTree import Element

from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor


class _Wrap(Treeprocessor):
    def run(self, root: Element) -> None:
        for parent in list(root.iter()):
            for i, child in enumerate(parent):
                if child.tag == "table":
                    child.set("class", "tabular")
                    box = Element("div", {"class": "scroll"})
                    box.tail, child.tail = child.tail, None
                    box.append(child)
                    parent[i] = box


class Wrap(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.treeprocessors.register(_Wrap(md), "wrap", 0)


def makeExtension(**kwargs: object) -> Wrap:  # noqa: N802
    return Wrap(**kwargs)
