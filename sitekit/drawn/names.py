"""What other code calls our quantities, each name with the line that has it.

The rows are in names.yml. A name there is followed by its places, each a code
base, one of its files and a line: tests/use/test_names.py reads those of the
code bases that are installed. What follows a name in brackets is its shape.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from sitekit.render import Row, Rows, Word
from sitekit.tables import code

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
    ours = _shaped(row["here"]) if "here" in row else ""
    if ours and "page" in row:
        ours = f"[{ours}](../{row['page']})"
    here = [ours, code(row["letter"]) if "letter" in row else ""]
    return [
        Word(row["what"]),
        [", ".join(filter(None, here)) or "–", row.get("symbol", "")],
        [
            f"{_shaped(name)} {' · '.join(map(_link, places))}"
            for name, places in row["names"].items()
        ],
    ]


def _shaped(name: str) -> str:
    """`W_UK (R, H, Dn)` is a name and a shape; `(B, H, T, D)` a shape."""
    parts = re.fullmatch(r"(\S.*?)( \(.*\))?", name)
    assert parts is not None
    return " ".join(code(part.strip()) for part in parts.groups() if part)


def address(place: str) -> str:
    """`vLLM mla 203` is line 203 of a file in that code base."""
    base, file, line = place.split()
    b = read()["code"][base]
    path = f"{b['at']}/{b['files'][file]}"
    return f"https://github.com/{b['repository']}/blob/{path}#L{line}"


def _link(place: str) -> str:
    return f"[{place.split()[0]}]({address(place)})"
