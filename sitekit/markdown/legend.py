"""The card of a page that explains: the letters of its shapes, and what a mask
is, both from the page of conventions. Where a pointer rests on a shape in code,
attnref.js reads its letters from the card; without a pointer, on paper and
without JavaScript, the card itself stands at the foot of the page."""

import re

from sitekit.adapter import get_relative_url
from sitekit.markdown import pages
from sitekit.markdown.parity import twin

EXPLAIN = "core/", "layers/", "caches/"
ROW = re.compile(r"^\| `(\w+)` \| [^|]+ \| ([^|]+?) \|", re.MULTILINE)
MASK = re.compile(r"^## (.+) { #masks }\n+.*?\*\*(.+?)\*\*", re.MULTILINE)


def card(content: str, stem: str, language: str, urls: dict[str, str]) -> str:
    """The letters that the code of the page uses, with their meanings."""
    if not stem.startswith(EXPLAIN):
        return ""
    text = pages.body_of(twin("conventions", language))
    code = " ".join(re.findall("<code.*?</code>", content, re.DOTALL))
    used = set(re.findall(r"\b[A-Z][a-z]?\b", re.sub("<[^>]+>", "", code)))
    mask = MASK.search(text)
    assert mask is not None
    link = get_relative_url(urls["conventions"], urls[stem])
    items = [
        (f"<code>{letter}</code>", meaning)
        for letter, meaning in ROW.findall(text)
        if letter in used
    ]
    if "mask" in code:
        items.append((f'<a href="{link}#masks">{mask[1]}</a>', mask[2]))
    rows = "".join(f"<div><dt>{a}</dt><dd>{b}</dd></div>" for a, b in items)
    return f'<dl class="legend">{rows}</dl>'
