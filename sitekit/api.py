"""The pages of the API, one for each folder of the package.

`::: attnref.core.masks: dense, Rule` on one of them documents these names.
`::: names` becomes a list of all names, each with a link.
"""

import re
from collections.abc import Iterator

from sitekit.markdown import pages, source
from sitekit.nav import COLON

LINE = re.compile(r"^::: (attnref\.[\w.]+): (.+)$", re.MULTILINE)
COMMA = {"en": ", ", "zh": "、"}
NAMES = re.compile(r"^::: names$", re.MULTILINE)
SECTION = re.compile(r"^## ([^\n]+) { #([\w-]+) }$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def places_in(markdown: str) -> list[str]:
    """attnref.core.masks.dense, attnref.core.masks.Rule, ..."""
    return [
        f"{module}.{name}" for module, names in LINE.findall(markdown) for name in names.split(", ")
    ]


def _pages(language: str) -> Iterator[tuple[str, str]]:
    """The stem and text of each page of the API."""
    for path in pages.markdown_files(language):
        if pages.stem_of(path).startswith("api/"):
            yield pages.stem_of(path), source.text_of(path)


def places(language: str = "en") -> list[str]:
    """All names that pages of the API document."""
    return [p for _, text in _pages(language) for p in places_in(text)]


def page_of(place: str) -> str:
    """The stem of the page that documents a name."""
    return next(stem for stem, text in _pages("en") if place in places_in(text))


def list_names(markdown: str, language: str) -> str:
    """Write a directive for each name that a page documents."""

    def directives(match: re.Match[str]) -> str:
        return "\n\n".join(f"::: {place}" for place in places_in(match[0]))

    if NAMES.search(markdown):
        markdown = NAMES.sub("\n".join(_index(language)), markdown)
    return LINE.sub(directives, markdown)


def _index(language: str) -> Iterator[str]:
    for stem, text in _pages(language):
        room = stem.removeprefix("api/")
        yield f"\n## [attnref.{room}]({stem}.md) {{ #{room} }}\n"
        for title, id, part in SECTION.findall(text):
            names = ((p.rpartition(".")[2], p) for p in places_in(part))
            links = (f"[`{name}`][{place}]" for name, place in names)
            link = f"[{title}]({stem}.md#{id}){COLON[language]}"
            yield f"- {link}{COMMA[language].join(links)}"
