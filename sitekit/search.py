"""What the search is told of a page, beside the words of its text.

A page goes by its titles in both languages, the name of its file, and the
`aliases` of its front matter: what else readers call it. A section goes by the
functions and classes whose code it shows. Both stand as `names` in the entries
of the index; overrides/assets/search.js ranks by them.
"""

import re
from pathlib import PurePosixPath
from typing import Any

from sitekit import CONFIGS, pages, parity

DEFINED = re.compile(r"(?:^|>)(?:def|class) ([a-zA-Z]\w+)", re.MULTILINE)
CONTROL = re.compile(r"<select\b.*?</select>", re.DOTALL)
CELL = re.compile(r"(?=</(?:td|th|div|text|figcaption|summary)>)")


def names_of(page: Any) -> list[str]:
    stem = page.file.src_uri.removesuffix(".md")
    told = [str(page.title), PurePosixPath(stem).name]
    for language in CONFIGS:
        path = parity.twin(stem, language)
        known = pages.front_matter(path) if path.exists() else {}
        # Of "Memory: what a KV cache takes", the name is Memory.
        told += re.split("[:：]", known.get("title", ""))[:1]
        told += known.get("aliases", [])
    names = []
    for name in told:
        # "Multi-head attention (MHA)" holds two, and some type a third,
        # multiheadattention.
        for part in filter(None, re.split(r"\s*[()（）]", name)):
            names += [part, re.sub(r"[\s-]", "", part)]
    return list(dict.fromkeys(name.lower() for name in names))


def readable(html: str) -> str:
    """Without controls, and with a space after each cell and label: the
    search's parser drops the tags, and so would join their words."""
    return CELL.sub(" ", CONTROL.sub("", html))


def add_names(entries: list[dict[str, Any]], names: list[str]) -> None:
    """To the entry of a page and to those of its sections, which follow."""
    for i, entry in enumerate(entries):
        entry["names"] = DEFINED.findall(entry["text"]) if i else names
