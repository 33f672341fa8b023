"""What other code calls our quantities, each name with the line that has it.

The rows are in names.yml. A name there is followed by its places, each a code
base, one of its files and a line: tests/site/use/test_names.py reads those of
the code bases that are installed. What follows a name in brackets is its shape.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from sitekit.markdown.render import Row, Rows, Word
from sitekit.markdown.tables import code

ROWS = Path(__file__).with_name("names.yml")


@cache
def read() -> dict[str, Any]:
    return dict(yaml.safe_load(ROWS.read_text(encoding="utf-8")))


def code_bases() -> Rows:
    """What was read: a link to the whole of each, as it was then."""
    return [
        [
            f"[{base}](https://github.com/{b['repository']}/tree/{b['at']})",
            code(b["repository"]),
            code(b["at"][:12]),
        ]
        for base, b in read()["code"].items()
    ]


def names(table: str) -> Rows:
    """One row per quantity: what it is, ours, and everybody else's."""
    return [_row(row) for row in read()["tables"][table]]


def _row(row: dict[str, Any]) -> Row:
    ours = _shaped(row.get("here", ""))
    if ours and "page" in row:
        ours = f"[{ours}](../{row['page']})"
    letter = _shaped(row.get("letter", ""))
    here = [*filter(None, (ours, letter, row.get("symbol")))]
    return [
        Word(row["what"]),
        here if ours or letter else ["–", *here],
        [
            f"{_shaped(name)} {' · '.join(_links(places))}"
            for name, places in row["names"].items()
        ],
    ]


def _shaped(name: str) -> str:
    """`W_UK (R, H, Dn)` is a name and a shape; `(B, H, T, D)` a shape."""
    name, bracket, shape = name.partition(" (")
    if bracket:
        return f"{code(name)} {code('(' + shape)}"
    several = re.fullmatch(r"\w+(, \w+)*", name)
    return code(*(name.split(", ") if several else filter(None, [name])))


def address(place: str) -> str:
    """`vLLM mla 203` is line 203 of a file in that code base."""
    base, file, line = place.split()
    b = read()["code"][base]
    path = f"{b['at']}/{b['files'][file]}"
    return f"https://github.com/{b['repository']}/blob/{path}#L{line}"


def _links(places: list[str]) -> Iterator[str]:
    """By code base; where one of them has two places, with the file."""
    bases = [place.split()[0] for place in places]
    for base, place in zip(bases, places, strict=True):
        file = f" ({place.split()[1]})" if bases.count(base) > 1 else ""
        yield f"[{base}{file}]({address(place)})"
