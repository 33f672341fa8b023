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
    """The name of "Memory: how much a KV cache needs" is Memory."""
    return re.split("[:：]", title)[0]


def translate(entry: Any, words: dict[str, str]) -> Any:
    """The navigation with its words in another language."""
    if isinstance(entry, list):
        return [translate(item, words) for item in entry]
    if isinstance(entry, str):
        return entry
    ((word, inner),) = entry.items()
    if word not in words:
        reason = f"mkdocs.zh.yml: extra.navigation has no word for {word!r}"
        raise BuildError(reason)
    return {words[word]: translate(inner, words)}


def door_of(page: Any, entries: Iterable[Any]) -> Any:
    """The entry with the name of the page's folder, or one in that folder."""
    folder = PurePosixPath(page.file.src_uri).parent
    files = {PurePosixPath(entry.file.src_uri): entry for entry in entries}
    inner = (entry for file, entry in files.items() if file.parent == folder)
    return files.get(folder.with_suffix(".md")) or next(inner)


def list_pages(markdown: str, host: Any, navigation: Iterable[Any], config: Any) -> str:
    """The Markdown of the page `here`, with its lists of pages."""
    words = config.extra.get("navigation", {})

    def write(match: re.Match[str]) -> str:
        section = words.get(match[2], match[2])
        matches = [
            _line(page.file, host.file, COLON[config.theme["language"]])
            for page in navigation
            if page.parent and page.parent.title == section
        ]
        if not matches:
            reason = f"{host.file.src_uri}: the navigation has no {match[2]!r}"
            raise BuildError(reason)
        return "\n".join(match[1] + line for line in matches)

    return LIST.sub(write, markdown)


def _line(file: Any, host: Any, colon: str) -> str:
    matter = pages.front_matter(Path(file.abs_src_path))
    if "summary" not in matter:
        lack = f"{file.src_uri} has no `summary` in its front matter"
        raise BuildError(f"{lack}, a sentence for the list of {host.src_uri}")
    link = os.path.relpath(file.src_uri, PurePosixPath(host.src_uri).parent)
    return f"1. [{name_of(matter['title'])}]({link}){colon}{matter['summary']}"
