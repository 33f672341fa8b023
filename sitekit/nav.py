"""The navigation stands in mkdocs.yml, once for both languages: a page goes by
its own title, and so nothing else lists the pages.

`::: pages core caches` on a page becomes a list of the pages in these folders,
in the order of the navigation, each with the `summary` of its front matter.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.exceptions import BuildError

from sitekit import pages

LIST = re.compile(r"^::: pages ([\w ]+)$", re.MULTILINE)


def name_of(title: str) -> str:
    """Of "Memory: what a KV cache takes", the name is Memory."""
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


COLON = {"en": ": ", "zh": "："}


def with_lists(
    markdown: str, here: Any, everything: Iterable[Any], language: str
) -> str:
    """The Markdown of the page `here`, with its lists of pages."""

    def written(match: re.Match[str]) -> str:
        folders = match[1].split()
        lines = [
            COLON[language].join(_parts(page.file, here.file))
            for page in everything
            if PurePosixPath(page.file.src_uri).parent.name in folders
        ]
        return "\n".join(lines)

    return LIST.sub(written, markdown)


def _parts(file: Any, here: Any) -> tuple[str, str]:
    told = pages.front_matter(Path(file.abs_src_path))
    if "summary" not in told:
        why = f"{file.src_uri} has no `summary` in its front matter, a sentence"
        raise BuildError(f"{why} for the list of {here.src_uri}")
    folder = PurePosixPath(here.src_uri).parent
    link = os.path.relpath(file.src_uri, folder)
    return f"1. [{name_of(told['title'])}]({link})", told["summary"]
