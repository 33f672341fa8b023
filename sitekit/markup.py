"""Markdown extension: lighter markup than the theme's own.

Every table stands in a box of its own, which scrolls: the theme does so with
JavaScript and for some tables only. In code, spans that would not change a
colour are left out: two thirds of all elements of a page. The copy buttons
are in the page from the start; made by the theme, they block it for 0.2 s.
"""

import re
from html import escape
from typing import Any
from xml.etree.ElementTree import Element

from markdown import Extension, Markdown
from markdown.postprocessors import Postprocessor
from markdown.treeprocessors import Treeprocessor

COPIED = re.compile(
    r'(<div class="language-(?:py|python|bash|pycon) highlight">'
    r"(?:(?!</div>).)*</pre>)"
    r"(?=</div>)",
    re.DOTALL,
)
# Markdown asks for a space after **...。**, Chinese type has none.
SPACED = re.compile("(?<=[。：；！？]</strong>) ")
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
        text = SPACED.sub("", PLAIN.sub(r"\1", text))
        return COPIED.sub(lambda block: block[0] + self.button, text)


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
