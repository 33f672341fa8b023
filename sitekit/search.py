"""What the search knows of a page, beside the words of its text.

A page goes by its titles in both languages, the name of its file, the files of
the package that it explains, and the `aliases` of its front matter: what else
readers call it. A section goes by the functions and classes whose code it
shows, and that of all downloads by their names; and by those that `sections`
of the front matter gives it, an error message or a question. A question that
folds out is a section too. Names stand as `names` in the entries of the index,
those of `sections` as `aliases`; overrides/assets/search.js ranks by them. So
many of a page's as `titles` says are no aliases. The Chinese ones are words
that jieba does not cut.

Pagefind 1.5 finds 46 of 74 questions of tests/site/test_search.py in English
and 26 of 65 in Chinese, where this finds nine in ten; and it needs a server.
"""

import json
import logging
import re
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

import jieba  # type: ignore[import-untyped]

from sitekit import CONFIGS
from sitekit.adapter import Parser
from sitekit.files import Where, everything, texts
from sitekit.markdown import pages, parity
from sitekit.nav import name_of

DEFINED = re.compile(r"(?:^|>)(?:def|class) ([a-zA-Z]\w+)", re.MULTILINE)
DOCUMENTED = re.compile(r"#attnref\.[\w.]*\.(\w+)$")
# Half of all tags are the colours of code: the parser need not see them.
COLOUR = re.compile(r"</?span\b[^>]*>")
# A file to fill in says the same on every page.
UNREAD = re.compile(
    r'<(svg|math|select)\b.*?</\1>|<div class="language-py .*?</div>', re.DOTALL
)
CELL = re.compile(r"(?=</(?:td|th|div|text|figcaption|summary)>)")
# The address of a question that folds out is that of its answer.
FOLD = re.compile(
    r'(<details class="question">\s*)<summary>(.*?)</summary>'
    r'(\s*(?:<[uo]l>\s*)?<\w+ id="([\w-]+)")',
    re.DOTALL,
)
HAN = re.compile(r"[\u4e00-\u9fff]+")
jieba.setLogLevel(logging.WARNING)  # it would tell of its dictionary
JOINT = re.compile("[的和与]|之间")  # between two words


def words() -> frozenset[str]:
    """The Chinese words that titles and aliases are made of."""
    read = map(pages.front_matter, pages.markdown_files("zh"))
    names = " ".join(
        " ".join((name_of(page.get("title", "")), *page.get("aliases", [])))
        for page in read
    )
    runs = HAN.findall(JOINT.sub(" ", names))
    return frozenset(run for run in runs if len(run) > 1)


@lru_cache(1)
def _tokenizer(words: frozenset[str]) -> Any:
    """A new one whenever they change: a word that is added twice weighs more,
    and others are cut otherwise."""
    tokenizer = jieba.Tokenizer()
    for word in sorted(words):
        tokenizer.add_word(word)
    return tokenizer


def names_of(page: Any, where: Where) -> tuple[list[str], int]:
    """And how many of them are titles or files: these come first."""
    stem = page.file.src_uri.removesuffix(".md")
    titles, aliases = [str(page.title), PurePosixPath(stem).name], []
    for language in CONFIGS:
        path = parity.twin(stem, language)
        matter = pages.front_matter(path) if path.exists() else {}
        titles.append(name_of(matter.get("title", "")))
        aliases += matter.get("aliases", [])
    # "Multi-head attention (MHA)" holds two, and some write a third,
    # multiheadattention.
    parts = [
        p for title in titles for p in re.split(r"\s*[()（）]", title) if p
    ]
    whole = [re.sub(r"[\s-]", "", part) for part in parts]
    files = [
        file.file
        for source, file in everything().items()
        if where.home(source) == stem != "files"
    ]
    shown = {name.lower(): None for name in [*parts, *whole, *files]}
    return [*(shown | {name.lower(): None for name in aliases})], len(shown)


def sections_of(stem: str) -> dict[str, list[str]]:
    """What readers of either language call a section, by its id."""
    result: dict[str, list[str]] = {}
    for language in CONFIGS:
        path = parity.twin(stem, language)
        matter = pages.front_matter(path) if path.exists() else {}
        for id, names in matter.get("sections", {}).items():
            result.setdefault(id, []).extend(name.lower() for name in names)
    return result


# Of each page, what its entries were made of, and they: an edit under `mkdocs
# serve` reads the pages that it changed.
_known: dict[str, tuple[object, list[Any]]] = {}


class Index:
    """In place of the theme's, which it asks for these two things.

    Every page of the site fetches what the theme takes for the index: it gets
    the settings alone. The entries are a script, since a page from file:// may
    fetch no other file; assets/search.js loads it at the first query.
    """

    PLACE = "search/entries.js"

    def __init__(self, settings: Any) -> None:
        self.settings = {
            key: settings[key]
            for key in ("lang", "separator", "pipeline", "fields")
        }
        self.pages: dict[str, tuple[Any, str]] = {}  # by their addresses

    def add_entry_from_context(self, page: Any) -> None:
        # Its content of now: what is added later is not for the search.
        self.pages[page.url] = page, page.content

    def _entries(self, page: Any, html: str) -> list[Any]:
        names, titles = names_of(page, self.where)
        aliases = sections_of(page.file.src_uri.removesuffix(".md"))
        made_of = self.words, (page.title, html, page.meta), names, aliases
        if _known.get(page.url, (None,))[0] != made_of:
            read = self._read(page, html, names, titles, aliases)
            _known[page.url] = made_of, read
        return _known[page.url][1]

    def generate_search_index(self, _: object) -> str:
        return json.dumps({"config": self.settings, "docs": []}, default=str)

    def script(self) -> str:
        if not self.pages:
            raise RuntimeError("the theme has given the search no page")
        self.words, self.where = words(), Where()
        entries = [
            each
            for page in self.pages.values()
            for each in self._entries(*page)
        ]
        text = json.dumps(entries, ensure_ascii=False, separators=(",", ":"))
        return f"entries={text}"

    def _read(
        self,
        page: Any,
        html: str,
        names: list[str],
        titles: int,
        aliases: dict[str, list[str]],
    ) -> list[Any]:
        """The entry of a page and those of its sections."""
        parser = Parser()
        parser.feed(readable(FOLD.sub(r'\1<h3 id="\4">\2</h3>\3', html)))
        folds = {match[4] for match in FOLD.finditer(html)}
        parser.close()
        entries: list[dict[str, Any]] = []
        for section in parser.data:
            if section.is_excluded():
                continue
            title = " ".join("".join(section.title).split())
            text = self._cut("".join(section.text).strip())
            location = page.url + (f"#{section.id}" if section.id else "")
            entry = {
                "location": location,
                "title": self._cut(title or str(page.title)),
                "text": text,
                "names": names_in(location, text),
            }
            if section.id in folds:
                entry["folds"] = True
            if section.id in aliases:
                entry["aliases"] = [*map(self._cut, aliases[section.id])]
            if not entries:
                entry["names"] = [*map(self._cut, names)]
                entry["titles"] = titles
            if "boost" in (search := page.meta.get("search") or {}):
                entry["boost"] = search["boost"]
            entries.append(entry)
        return entries

    def _cut(self, text: str) -> str:
        """Chinese into words, with spaces of no width around them."""
        cut = _tokenizer(self.words).cut
        return HAN.sub(
            lambda run: "\u200b".join(["", *cut(run[0]), ""]), text
        ).strip("\u200b")


def names_in(location: str, text: str) -> list[str]:
    """What a section defines or documents."""
    defined = DEFINED.findall(text) + DOCUMENTED.findall(location)
    if location == "files/#list":
        defined += [name.removeprefix("plain/") for name in texts()]
    return [name.lower() for name in defined]


def readable(html: str) -> str:
    """Without colours, controls, formulas and drawings, and with a space after
    each cell and label: the search's parser drops the tags, and so would join
    their words."""
    return CELL.sub(" ", UNREAD.sub("", COLOUR.sub("", html)))
