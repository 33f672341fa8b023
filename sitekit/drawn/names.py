"""What other code calls our quantities, each name with the line that has it.

The rows are in names.toml. A name there is followed by its places, each a code
base, one of its files and a line: tests/site/use/test_names.py reads those of
the code bases that are installed. What follows a name in brackets is its shape.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from sitekit.markdown import source
from sitekit.markdown.render import Row, Rows, Word
from sitekit.markdown.tables import code

ROWS = Path(__file__).with_name("names.toml")


@cache
def read() -> dict[str, Any]:
    return source.table_of(ROWS)


def code_bases() -> Rows:
    """A link to each code base, at the revision that was read."""
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
    ours = _code_of(row.get("here", ""))
    if ours and "page" in row:
        ours = f"[{ours}](../{row['page']})"
    letter = _code_of(row.get("letter", ""))
    cells = [*filter(None, (ours, letter, row.get("symbol")))]
    return [
        Word(row["what"]),
        cells if ours or letter else ["–", *cells],
        [f"{_code_of(name)} {' · '.join(_links(places))}" for name, places in row["names"].items()],
    ]


def _code_of(name: str) -> str:
    """`W_UK (R, H, Dn)` is a name and a shape; `(B, H, T, D)` a shape."""
    name, bracket, shape = name.partition(" (")
    if bracket:
        return f"{code(name)} {code('(' + shape)}"
    is_list = re.fullmatch(r"\w+(, \w+)*", name)
    return code(*(name.split(", ") if is_list else filter(None, [name])))


def address(place: str) -> str:
    """`vLLM mla 203` is line 203 of a file in that code base."""
    base, file, line = place.split()
    b = read()["code"][base]
    path = f"{b['at']}/{b['files'][file]}"
    return f"https://github.com/{b['repository']}/blob/{path}#L{line}"


def _links(places: list[str]) -> Iterator[str]:
    """Links by code base; they name the file if one of them has two places."""
    bases = [place.split()[0] for place in places]
    for base, place in zip(bases, places, strict=True):
        file = f" ({place.split()[1]})" if bases.count(base) > 1 else ""
        yield f"[{base}{file}]({address(place)})"
