"""The navigation stands in mkdocs.yml, once for both languages: a page goes by
its own title, and so nothing else lists the pages.

A page that is not in it is reached from one that is, its door, and belongs to
the same section. `::: pages Variants` on a page becomes a list of the pages of
that section, in the order of the navigation, each with the `summary` of its
front matter.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from sitekit.adapter import BuildError
from sitekit.markdown import pages

LIST = re.compile(r"^( *)::: pages (.+)$", re.MULTILINE)
COLON = {"en": ": ", "zh": "："}


def name_of(title: str) -> str:
    """Of "Memory: how much a KV cache needs", the name is Memory."""
    return re.split("[:：]", title)[0]


def translated(entry: Any, words: dict[str, str]) -> Any:
    """The navigation with its words in another language."""
    if isinstance(entry, list):
        return [translated(each, words) for each in entry]
    if isinstance(entry, str):
        return entry
    ((word, below),) = entry.items()
    if word not in words:
        why = f"mkdocs.zh.yml: extra.navigation has no word for {word!r}"
        raise BuildError(why)
    return {words[word]: translated(below, words)}


def door_of(page: Any, entries: Iterable[Any]) -> Any:
    """The entry that is called as the page's folder, or else stands in it."""
    folder = PurePosixPath(page.file.src_uri).parent
    files = {PurePosixPath(entry.file.src_uri): entry for entry in entries}
    beside = (entry for file, entry in files.items() if file.parent == folder)
    return files.get(folder.with_suffix(".md")) or next(beside)


def with_lists(
    markdown: str, here: Any, everything: Iterable[Any], config: Any
) -> str:
    """The Markdown of the page `here`, with its lists of pages."""
    words = config.extra.get("navigation", {})

    def written(match: re.Match[str]) -> str:
        section = words.get(match[2], match[2])
        matches = [
            _line(page.file, here.file, COLON[config.theme["language"]])
            for page in everything
            if page.parent and page.parent.title == section
        ]
        if not matches:
            why = f"{here.file.src_uri}: the navigation has no {match[2]!r}"
            raise BuildError(why)
        return "\n".join(match[1] + line for line in matches)

    return LIST.sub(written, markdown)


def _line(file: Any, here: Any, colon: str) -> str:
    matter = pages.front_matter(Path(file.abs_src_path))
    if "summary" not in matter:
        why = f"{file.src_uri} has no `summary` in its front matter, a sentence"
        raise BuildError(f"{why} for the list of {here.src_uri}")
    link = os.path.relpath(file.src_uri, PurePosixPath(here.src_uri).parent)
    return f"1. [{name_of(matter['title'])}]({link}){colon}{matter['summary']}"
