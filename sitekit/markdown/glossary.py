"""Terms: the first use of one in the prose of a page leads to the glossary.

The glossary is the page learn/glossary: each of its items is a term, a link to
the page that explains it, the meaning, and an id. What is added to a page is
added after the search and the notebooks have read it.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from sitekit.adapter import get_relative_url
from sitekit.markdown import pages
from sitekit.markdown.parity import twin

PLACE = "learn/glossary"
NONE = (PLACE, "index", "learn/bibliography")  # and the pages of the API
ITEM = re.compile(
    r"^- \[(?P<term>.+?)\]\(\.\./(?P<page>.+?)\.md.*?\).*?[:：] ?"
    r"(?:(?P<full>[^:：。]{4,40})[:：])?.+\n"
    r"  \{ #(?P<id>[\w-]+) \}$",
    re.MULTILINE,
)
PIECE = re.compile(
    r"<(?P<whole>math|pre|script|svg)\b.*?</(?P=whole)>"  # at once: most tags
    r"|<(?P<end>/?)(?P<tag>[a-zA-Z][\w-]*)[^>]*?>|[^<]+|<",
    re.DOTALL,
)
PROSE = {"p", "li"}
APART = {
    *("a", "button", "code", "dl", "figure", "label", "math", "pre", "script"),
    *("select", "summary", "svg", "table", *(f"h{n}" for n in range(1, 7))),
}
HAN = "[一-鿿]"


class Term(NamedTuple):
    id: str
    page: str  # that explains it


def terms(language: str) -> dict[str, Term]:
    """By the term in small letters, the longest first. The full name of an
    abbreviation begins its meaning, and is a term too."""
    return _terms(pages.body_of(twin(PLACE, language)))[0]


@lru_cache(2)
def _terms(body: str) -> tuple[dict[str, Term], re.Pattern[str]]:
    result = {
        name.lower(): Term(item["id"], item["page"])
        for item in ITEM.finditer(body)
        for name in (item["term"], item["term"].isupper() and item["full"])
        if name
    }
    names = sorted(result, key=len, reverse=True)
    return {name: result[name] for name in names}, _any_of(names)


def _any_of(names: list[str]) -> re.Pattern[str]:
    """The longest first. Of a Chinese term of one character, such as 键, many
    words are made: it stands alone or before one that joins two. So does one
    that ends others, such as 注意力, or it belongs to the term before it."""
    heads = "|".join(
        name
        for name in names
        if any(n[1:].endswith(name) for n in names)
        and len(name) > 1
        and not name.isascii()
    )

    def one(name: str) -> str:
        if name.isascii():
            ends = f"(?:{re.escape(name[:-1])}ies|" * name.endswith("y")
            plural = f"{re.escape(name)}s?" + ")" * name.endswith("y")
            return rf"{ends}{plural}(?![\w-]|\.\w)"
        if name in heads.split("|"):
            return rf"(?:(?<!{HAN})|(?<=[的做是算和与对])){name}"
        if len(name) == 1:
            return rf"(?<!{HAN}){name}(?=[、和与])"
        return rf"(?<!多){re.escape(name)}(?!头)" + f"(?:{heads})?" * bool(
            heads
        )

    each = [f"(?P<t{n}>{one(name)})" for n, name in enumerate(names)]
    # Within a word, one look tells that no English term begins.
    english, chinese = (
        "|".join(
            e for e, x in zip(each, names, strict=True) if x.isascii() is of
        )
        for of in (True, False)
    )
    pattern = rf"{chinese}|(?<![\w-])(?:{english})".removeprefix("|")
    return re.compile(pattern, re.IGNORECASE | re.ASCII)


def linked(html: str, stem: str, language: str, urls: dict[str, str]) -> str:
    """The article with these links, at most one per term."""
    if stem in NONE or stem.startswith("api"):
        return html
    every, pattern = _terms(pages.body_of(twin(PLACE, language)))
    names = [*every]
    place = get_relative_url(urls[PLACE], urls[stem])
    seen = {term.id for term in every.values() if term.page == stem}

    def link(match: re.Match[str]) -> str:
        term = every[names[int(str(match.lastgroup)[1:])]].id
        if term in seen:
            return match[0]
        seen.add(term)
        return f'<a class="term" href="{place}#{term}">{match[0]}</a>'

    written, prose, apart = [], 0, 0
    for piece in PIECE.finditer(html):
        tag, by = str(piece["tag"]).lower(), -1 if piece["end"] else 1
        if piece["tag"] and not piece[0].endswith("/>"):
            prose += by * (tag in PROSE)
            apart += by * (tag in APART)
        text = piece[0]
        if not (piece["tag"] or piece["whole"]) and prose > 0 and not apart:
            text = pattern.sub(link, text)
        written.append(text)
    return "".join(written)
