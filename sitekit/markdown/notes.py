"""`::: notes` below a block, and a list: what one may ask at its lines.

    - `text of the code`: the note

This text stands once in the block. A mark at the end of its line leads to the
note, and back; the code, which is copied and searched, stays as it ran.
"""

import re
from collections.abc import Iterator
from html import unescape
from itertools import pairwise
from pathlib import PurePosixPath

from attnref.words import Text
from sitekit.adapter import BuildError

LINE = re.compile("^::: notes$", re.MULTILINE)
HERE = "<!-- notes -->"  # the same to Markdown
BLOCK = re.compile(
    r'(?P<head><div class="language-python highlight"><span class="filename">'
    r"(?P<file>[^<]*)</span><pre><code>)(?P<code>[^\0]*?)\n"
    r"(?P<tail></code></pre><button[^>]*></button></div>)\s*"
    rf"{HERE}\s*<ul>(?P<notes>[^\0]*?)</ul>"
)
NOTE = re.compile(
    r"\s*<li>\s*(?P<about><code>(?P<piece>[^<]*)</code>[:：]\s*)"
    r"(?P<text>[^\0]*?)</li>\s*"
)
MARK = Text("Note {}", "注 {}")
BACK = Text("To line {}", "回到第 {} 行")


def expanded(markdown: str) -> str:
    return LINE.sub(HERE, markdown)


def placed(html: str, page: str, language: str) -> str:
    """The HTML of a page, with its notes in the blocks that they are about."""

    def place(block: re.Match[str]) -> str:
        if left := NOTE.sub("", block["notes"]):
            raise BuildError(f"{page}: {left!r} is no note: - `code`: text")
        name = PurePosixPath(block["file"]).stem.replace("_", "-")
        lines = block["code"].split("\n")
        matches = [*NOTE.finditer(block["notes"])]
        pieces = [unescape(note["piece"]) for note in matches]
        try:
            at = [*_lines_of(pieces, lines)]
        except ValueError as error:
            why = f"{page}: a note on {block['file']}: {error}"
            raise BuildError(why) from error
        listed = f'<ol style="--at:{at[0]};--in:{len(lines)}">'
        for n, (line, after) in enumerate(pairwise([*at, len(lines)]), 1):
            mark, back = (
                f'<a class="mark" id="{here}-{name}-{n}"'
                f' href="#{there}-{name}-{n}"'
                f' aria-label="{getattr(label, language).format(number)}"'
                for here, there, label, number in (
                    ("mark", "note", MARK, n),
                    ("line", "mark", BACK, line + 1),
                )
            )
            about = f' aria-describedby="note-{name}-{n}"'
            lines[line] += f"{mark}{about}></a>"
            note = matches[n - 1]
            listed += (
                f'<li id="note-{name}-{n}" style="--to:{after - line}"><p>'
                f"{back}></a><span>{note['about']}</span>{note['text']}</p></li>"
            )
        code = "\n".join(lines) + "\n"
        listed = f'<div class="notes" data-search-exclude>{listed}</ol></div>'
        return f"{block['head']}{code}{block['tail']}\n{listed}"

    html = BLOCK.sub(place, html)
    if HERE in html:
        raise BuildError(f"{page}: notes not below a block titled with a file")
    return html


def _lines_of(pieces: list[str], lines: list[str]) -> Iterator[int]:
    """Where each piece of the code stands."""
    bare = [unescape(re.sub("<[^>]*>", "", line)) for line in lines]
    before = -1
    for piece in pieces:
        at = [i for i, line in enumerate(bare) if piece in line]
        if len(at) != 1 or bare[at[0]].count(piece) != 1:
            numbers = [i + 1 for i in at]
            why = "has to be on one line once: it is on"
            raise ValueError(f"`{piece}` {why} {numbers}")
        if at[0] <= before:
            raise ValueError(f"`{piece}` is not below the note before it")
        yield (before := at[0])
