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
PAGES_WITHOUT = (PLACE, "index", "learn/bibliography")  # nor those of the API
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
NOT_PROSE = {
    *("a", "button", "code", "dl", "figure", "label", "math", "pre", "script"),
    *("select", "summary", "svg", "table", *(f"h{n}" for n in range(1, 7))),
}
HAN = "[一-鿿]"


class Term(NamedTuple):
    id: str
    page: str  # that explains it


def terms(language: str) -> dict[str, Term]:
    """The terms in small letters, the longest first. The full name of an
    abbreviation stands at the beginning of its meaning, and is a term too."""
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
        if any(n[1:].endswith(name) for n in names) and len(name) > 1 and not name.isascii()
    )

    def pattern_of(name: str) -> str:
        if name.isascii():
            ends = f"(?:{re.escape(name[:-1])}ies|" * name.endswith("y")
            plural = f"{re.escape(name)}s?" + ")" * name.endswith("y")
            return rf"{ends}{plural}(?![\w-]|\.\w)"
        if name in heads.split("|"):
            return rf"(?:(?<!{HAN})|(?<=[的做是算和与对])){name}"
        if len(name) == 1:
            return rf"(?<!{HAN}){name}(?=[、和与])"
        return rf"(?<!多){re.escape(name)}(?!头)" + f"(?:{heads})?" * bool(heads)

    patterns = [f"(?P<t{n}>{pattern_of(name)})" for n, name in enumerate(names)]
    # Within a word, one look tells that no English term begins.
    pairs = [*zip(names, patterns, strict=True)]
    english = "|".join(part for name, part in pairs if name.isascii())
    chinese = "|".join(part for name, part in pairs if not name.isascii())
    pattern = rf"{chinese}|(?<![\w-])(?:{english})".removeprefix("|")
    return re.compile(pattern, re.IGNORECASE | re.ASCII)


def link_terms(html: str, stem: str, language: str, urls: dict[str, str]) -> str:
    """Link the first use of each term in an article to the glossary."""
    if stem in PAGES_WITHOUT or stem.startswith("api"):
        return html
    terms, pattern = _terms(pages.body_of(twin(PLACE, language)))
    names = [*terms]
    page = get_relative_url(urls[PLACE], urls[stem])
    linked_ids = {term.id for term in terms.values() if term.page == stem}

    def link(match: re.Match[str]) -> str:
        term = terms[names[int(str(match.lastgroup)[1:])]].id
        if term in linked_ids:
            return match[0]
        linked_ids.add(term)
        return f'<a class="term" href="{page}#{term}">{match[0]}</a>'

    result, prose_depth, skip_depth = [], 0, 0
    for piece in PIECE.finditer(html):
        tag, step = str(piece["tag"]).lower(), -1 if piece["end"] else 1
        if piece["tag"] and not piece[0].endswith("/>"):
            prose_depth += step * (tag in PROSE)
            skip_depth += step * (tag in NOT_PROSE)
        text = piece[0]
        is_text = not (piece["tag"] or piece["whole"])
        if is_text and prose_depth > 0 and not skip_depth:
            text = pattern.sub(link, text)
        result.append(text)
    return "".join(result)
