"""What the search knows of a page besides the words of its text.

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
from html import escape, unescape
from pathlib import PurePosixPath
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import jieba  # type: ignore[import-untyped]

from attnref.judge.catalogue import catalogue
from attnref.released.specs import chinese_names as makers_of
from sitekit import CONFIGS
from sitekit.adapter import Parser
from sitekit.check.mistakes import diff
from sitekit.files import CodeIndex, downloads, texts
from sitekit.markdown import pages, parity
from sitekit.nav import name_of

DEFINITION = re.compile(r"(?:^|>)(?:def|class) ([a-zA-Z]\w+)", re.MULTILINE)
API_ANCHOR = re.compile(r"#attnref\.[\w.]*\.(\w+)$")
# Half of all tags are the colours of code: the parser need not see them.
COLOUR = re.compile(r"</?span\b[^>]*>")
# A file to fill in says the same on every page.
UNREAD = re.compile(r'<(svg|math|select)\b.*?</\1>|<div class="language-py .*?</div>', re.DOTALL)
INLINE = re.compile(r"<math data-search-exclude>(.*?)</math>", re.DOTALL)
# How a formula within a sentence is written in one line.
JOINED = {"mfrac": "/", "msub": "_", "msup": "^"}
CELL = re.compile(r"(?=</(?:td|th|div|text|figcaption|summary)>)")
# The address of a question that folds out is that of its answer.
# Lines that are put in later: these of an entry are read, others are not.
DIFF = re.compile(r"(?:<p>)?<!-- diffs of ([\w-]+) -->(?:</p>)?")
EMPTY = re.compile(r"<li>(?:(?!</?li>).)*<!-- others of [\w-]+ -->(?:(?!</?li>).)*</li>", re.DOTALL)
FOLD = re.compile(
    r'(<details class="question">\s*)<summary>(.*?)</summary>'
    r'(\s*(?:<[uo]l>\s*)?<\w+ id="([\w-]+)")',
    re.DOTALL,
)
HAN = re.compile(r"[\u4e00-\u9fff]+")
# The names of a model with and without its size, in the front matter of its
# page.
MODELS = "models", "families"
jieba.setLogLevel(logging.WARNING)  # it would tell of its dictionary
JOINT = re.compile("[的和与]|之间")  # between two words


def words() -> frozenset[str]:
    """The Chinese words that titles and aliases are made of."""
    front_matters = map(pages.front_matter, pages.markdown_files("zh"))
    names = " ".join(makers_of())
    names += " ".join(
        " ".join((name_of(page.get("title", "")), *page.get("aliases", [])))
        for page in front_matters
    )
    runs = HAN.findall(JOINT.sub(" ", names))
    return frozenset(run for run in runs if len(run) > 1)


@lru_cache(1)
def _tokenizer(words: frozenset[str]) -> Any:
    """A tokenizer with these words. When they change it is made anew: a word
    that is added twice weighs more."""
    tokenizer = jieba.Tokenizer()
    for word in sorted(words):
        tokenizer.add_word(word)
    return tokenizer


def names_of(page: Any, index: CodeIndex) -> tuple[list[str], int]:
    """All names of a page, and how many of them are titles or files: these come
    first."""
    stem = page.file.src_uri.removesuffix(".md")
    titles, aliases = [str(page.title), PurePosixPath(stem).name], []
    for language in CONFIGS:
        path = parity.twin(stem, language)
        matter = pages.front_matter(path) if path.exists() else {}
        titles.append(name_of(matter.get("title", "")))
        aliases += matter.get("aliases", [])
    for key in ("aliases", "models"):  # of a page that the build writes
        aliases += page.meta.get(key, [])
    # "Multi-head attention (MHA)" holds two, and some write a third,
    # multiheadattention.
    parts = [p for title in titles for p in re.split(r"\s*[()（）]", title) if p]
    joined = [re.sub(r"[\s-]", "", part) for part in parts]
    files = [
        file.file for source, file in downloads().items() if index.home(source) == stem != "files"
    ]
    firsts = {name.lower(): None for name in [*parts, *joined, *files]}
    return [*(firsts | {name.lower(): None for name in aliases})], len(firsts)


def sections_of(stem: str) -> dict[str, list[str]]:
    """What readers of either language call a section, by its id."""
    result: dict[str, list[str]] = {}
    for language in CONFIGS:
        path = parity.twin(stem, language)
        matter = pages.front_matter(path) if path.exists() else {}
        for id, names in matter.get("sections", {}).items():
            result.setdefault(id, []).extend(name.lower() for name in names)
    return result


# The entries of each page, after all that they were made of: an edit under
# `mkdocs serve` makes those anew of the pages that it changed.
_cached: dict[str, tuple[object, list[Any]]] = {}


class Index:
    """The index that the theme fills, in place of its own.

    Every page of the site fetches what the theme takes for the index: it gets
    the settings alone. The entries are a script, since a page from file:// may
    fetch no other file; assets/search.js loads it at the first query.
    """

    PLACE = "search/entries.js"

    def __init__(self, settings: Any) -> None:
        self.settings = {key: settings[key] for key in ("lang", "separator", "pipeline", "fields")}
        self.pages: dict[str, tuple[Any, str]] = {}  # by their addresses

    def add_entry_from_context(self, page: Any) -> None:
        # What is added to the content later is not for the search.
        self.pages[page.url] = page, page.content

    def _entries(self, page: Any, html: str) -> list[Any]:
        names, titles = names_of(page, self.code)
        aliases = sections_of(page.file.src_uri.removesuffix(".md"))
        sources = self.words, (page.title, html, page.meta), names, aliases
        if _cached.get(page.url, (None,))[0] != sources:
            entries = self._read(page, html, names, titles, aliases)
            _cached[page.url] = sources, entries
        return _cached[page.url][1]

    def generate_search_index(self, _: object) -> str:
        return json.dumps({"config": self.settings, "docs": []}, default=str)

    def script(self) -> str:
        if not self.pages:
            raise RuntimeError("the theme has given the search no page")
        self.words, self.code = words(), CodeIndex()
        entries = [entry for page in self.pages.values() for entry in self._entries(*page)]
        text = json.dumps(entries, ensure_ascii=False, separators=(",", ":"))
        return f"entries={text}"

    def _read(
        self, page: Any, html: str, names: list[str], titles: int, aliases: dict[str, list[str]]
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
                entry |= {k: page.meta[k] for k in MODELS if k in page.meta}
            if "boost" in (search := page.meta.get("search") or {}):
                entry["boost"] = search["boost"]
            entries.append(entry)
        return entries

    def _cut(self, text: str) -> str:
        """Cut Chinese into words, with spaces of no width around them."""
        cut = _tokenizer(self.words).cut
        return HAN.sub(lambda run: "\u200b".join(["", *cut(run[0]), ""]), text).strip("\u200b")


def names_in(location: str, text: str) -> list[str]:
    """What a section defines or documents."""
    names = DEFINITION.findall(text) + API_ANCHOR.findall(location)
    if location == "files/#list":
        names += [name.removeprefix("plain/") for name in texts()]
    return [name.lower() for name in names]


def in_line(math: str) -> str:
    """A formula of a sentence as text: h_kv, 1/√d, 2^n."""

    def text_of(part: Element) -> str:
        parts = [(part.text or "").strip(), *map(text_of, part)]
        root = "√" if part.tag == "msqrt" else ""
        if part.tag == "msubsup":
            return "{}_{}^{}".format(*parts[1:])
        return root + JOINED.get(part.tag, "").join(filter(None, parts))

    marks = re.sub(r"&\w+;", _character, f"<math>{math}</math>")
    return escape(text_of(fromstring(marks)))


def lines_of(id: str) -> str:
    """The wrong and the right lines of a mistake."""
    return "\n".join(diff(lines) for lines in catalogue()[id].variants[0])


def _character(entity: re.Match[str]) -> str:
    """Of the names of HTML: XML knows four. Those that show nothing go."""
    character = unescape(entity[0])
    return "" if character in "\u2061\u2062\u2063" else escape(character)


def readable(html: str) -> str:
    """HTML without colours, controls, formulas and drawings, and with a space
    after each cell and label: the parser drops tags, which would join words."""
    html = INLINE.sub(lambda math: in_line(math[1]), html)
    html = DIFF.sub(lambda entry: f"<pre>{escape(lines_of(entry[1]))}</pre>", EMPTY.sub("", html))
    return CELL.sub(" ", UNREAD.sub("", COLOUR.sub("", html)))
