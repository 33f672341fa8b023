"""`::: notes` below a block, and a list: what a reader may ask at its lines.

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
COMMENT = "<!-- notes -->"  # Markdown leaves it where it is
BLOCK = re.compile(
    r'(?P<head><div class="language-python highlight"><span class="filename">'
    r"(?P<file>[^<]*)</span><pre><code>)(?P<code>[^\0]*?)\n"
    r"(?P<tail></code></pre><button[^>]*></button></div>)\s*"
    rf"{COMMENT}\s*<ul>(?P<notes>[^\0]*?)</ul>"
)
NOTE = re.compile(
    r"\s*<li>\s*(?P<about><code>(?P<piece>[^<]*)</code>[:：]\s*)"
    r"(?P<text>[^\0]*?)</li>\s*"
)
MARK = Text("Note {}", "注 {}")
BACK = Text("To line {}", "回到第 {} 行")


def mark(markdown: str) -> str:
    return LINE.sub(COMMENT, markdown)


def place(html: str, page: str, language: str) -> str:
    """Move the notes of a page beside the lines of code that they are about."""

    def move(block: re.Match[str]) -> str:
        if rest := NOTE.sub("", block["notes"]):
            raise BuildError(f"{page}: {rest!r} is no note: - `code`: text")
        name = PurePosixPath(block["file"]).stem.replace("_", "-")
        lines = block["code"].split("\n")
        matches = [*NOTE.finditer(block["notes"])]
        pieces = [unescape(note["piece"]) for note in matches]
        try:
            indices = [*_lines_of(pieces, lines)]
        except ValueError as error:
            reason = f"{page}: a note on {block['file']}: {error}"
            raise BuildError(reason) from error
        items = f'<ol style="--at:{indices[0]};--in:{len(lines)}">'
        spans = pairwise([*indices, len(lines)])
        for n, (line, next_line) in enumerate(spans, 1):
            mark, back = (
                f'<a class="mark" id="{prefix}-{name}-{n}"'
                f' href="#{target}-{name}-{n}"'
                f' aria-label="{getattr(label, language).format(number)}"'
                for prefix, target, label, number in (
                    ("mark", "note", MARK, n),
                    ("line", "mark", BACK, line + 1),
                )
            )
            about = f' aria-describedby="note-{name}-{n}"'
            lines[line] += f"{mark}{about}></a>"
            note = matches[n - 1]
            items += (
                f'<li id="note-{name}-{n}" style="--to:{next_line - line}"><p>'
                f"{back}></a><span>{note['about']}</span>{note['text']}</p></li>"
            )
        code = "\n".join(lines) + "\n"
        items = f'<div class="notes" data-search-exclude>{items}</ol></div>'
        return f"{block['head']}{code}{block['tail']}\n{items}"

    html = BLOCK.sub(move, html)
    if COMMENT in html:
        raise BuildError(f"{page}: notes not below a block titled with a file")
    return html


def _lines_of(pieces: list[str], lines: list[str]) -> Iterator[int]:
    """The index of the line on which each piece of the code stands."""
    plain_lines = [unescape(re.sub("<[^>]*>", "", line)) for line in lines]
    last = -1
    for piece in pieces:
        found = [i for i, line in enumerate(plain_lines) if piece in line]
        if len(found) != 1 or plain_lines[found[0]].count(piece) != 1:
            numbers = [i + 1 for i in found]
            reason = "has to be on one line once: it is on"
            raise ValueError(f"`{piece}` {reason} {numbers}")
        if found[0] <= last:
            raise ValueError(f"`{piece}` is not below the note before it")
        yield (last := found[0])
