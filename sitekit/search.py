"""What the search is told of a page, beside the words of its text.

A page goes by its titles in both languages, the name of its file, the files of
the package that it explains, and the `aliases` of its front matter: what else
readers call it. A section goes by the functions and classes whose code it
shows, and that of all downloads by their names. Both stand as `names` in the
entries of the index; overrides/assets/search.js ranks by them. So many of a
page's as `titles` says are no aliases. The Chinese ones are words that jieba
does not cut.
"""

import re
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

import jieba  # type: ignore[import-untyped]

from sitekit import CONFIGS, pages, parity
from sitekit.files import Where, everything, texts
from sitekit.nav import name_of

DEFINED = re.compile(r"(?:^|>)(?:def|class) ([a-zA-Z]\w+)", re.MULTILINE)
DOCUMENTED = re.compile(r"#attnref\.[\w.]*\.(\w+)$")
CONTROL = re.compile(r"<select\b.*?</select>", re.DOTALL)
DRAWING = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
CELL = re.compile(r"(?=</(?:td|th|div|text|figcaption|summary)>)")
HAN = re.compile(r"[\u4e00-\u9fff]{2,}")
JOINT = re.compile("[的和与]|之间")  # between two words


def words() -> frozenset[str]:
    """The Chinese words that titles and aliases are made of."""
    told = map(pages.front_matter, pages.markdown_files("zh"))
    names = " ".join(
        " ".join((name_of(page.get("title", "")), *page.get("aliases", [])))
        for page in told
    )
    return frozenset(HAN.findall(JOINT.sub(" ", names)))


@lru_cache(1)
def _teach(words: frozenset[str]) -> None:
    """From the start whenever they change: a word that jieba is told twice
    weighs more, and others are cut otherwise."""
    jieba.dt.initialized = False
    for word in sorted(words):
        jieba.add_word(word)
    _known.clear()


def names_of(page: Any, where: Where) -> tuple[list[str], int]:
    """And how many of them are titles or files: these come first."""
    stem = page.file.src_uri.removesuffix(".md")
    titles, aliases = [str(page.title), PurePosixPath(stem).name], []
    for language in CONFIGS:
        path = parity.twin(stem, language)
        told = pages.front_matter(path) if path.exists() else {}
        titles.append(name_of(told.get("title", "")))
        aliases += told.get("aliases", [])
    # "Multi-head attention (MHA)" holds two, and some write a third,
    # multiheadattention.
    parts = [
        p for title in titles for p in re.split(r"\s*[()（）]", title) if p
    ]
    whole = [re.sub(r"[\s-]", "", part) for part in parts]
    files = [
        file.name
        for source, file in everything().items()
        if where.home(source) == stem
    ]
    shown = {name.lower(): None for name in [*parts, *whole, *files]}
    return [*(shown | {name.lower(): None for name in aliases})], len(shown)


_known: dict[str, tuple[object, list[Any]]] = {}


def listen(index: Any) -> None:
    """Have the theme's index take up names too. It is a third of a build: what
    is known of a page that did not change is kept for the next."""
    _teach(words())
    where = Where()
    add = index.add_entry_from_context

    def add_with_names(page: Any) -> None:
        held, html = len(index.entries), page.content
        own, titles = names_of(page, where)
        names = [*map(index._segment_chinese, own)]
        key = page.title, html, page.meta, names
        if _known.get(page.url, (None,))[0] == key:
            index.entries.extend(_known[page.url][1])
            return
        page.content = readable(html)
        add(page)
        page.content = html
        _add_names(index.entries[held:], names)
        index.entries[held]["titles"] = titles
        _known[page.url] = key, index.entries[held:]

    index.add_entry_from_context = add_with_names


def readable(html: str) -> str:
    """Without controls and drawings, and with a space after each cell and
    label: the search's parser drops the tags, and so would join their words."""
    return CELL.sub(" ", DRAWING.sub("", CONTROL.sub("", html)))


def _add_names(entries: list[dict[str, Any]], names: list[str]) -> None:
    """To the entry of a page and to those of its sections, which follow."""
    for i, entry in enumerate(entries):
        defined = DEFINED.findall(entry["text"]) + DOCUMENTED.findall(
            entry["location"]
        )
        if entry["location"] == "files/#list":
            defined += texts()
        entry["names"] = [name.lower() for name in defined] if i else names
