"""How small a test of attention may be: the smallest sizes of each mistake."""

from collections.abc import Callable, Iterator
from typing import Any

from attnref.judge.catalogue import PAGES, catalogue, mistakes_by_file
from sitekit.check.mistakes import IN_HALF, smallest
from sitekit.markdown.render import Row, Word

LENGTHS, COUNTS = ("T", "S", "held", "W", "topk"), ("H", "Hi")
WIDTHS = ("E", "C", "D", "Dv", "R", "Dn", "Dr", "Rq", "Di")


def _sizes(id: str) -> dict[str, Any]:
    """The smallest sizes of a mistake, by what a test has to choose."""
    sizes = smallest()[id]["sizes"]

    def most(letters: tuple[str, ...]) -> int:
        return max((sizes.get(letter, 1) for letter in letters), default=1)

    calls = sizes.get("chunks") or []
    return {
        "calls": len(calls) > 1,
        "pads": any(sizes.get("pads", ())) or "real" in sizes,
        "rows": most(("B",)),
        "heads": most(COUNTS),
        "kv_heads": most(("K",)),
        "length": max(most(LENGTHS), sum(calls)),
        "width": most(WIDTHS),
    }


# What a mistake may need, in the order of the table.
NEEDS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "calls": lambda sizes: sizes["calls"],
    "pads": lambda sizes: sizes["pads"],
    "rows": lambda sizes: sizes["rows"] > 1,
    "kv_heads": lambda sizes: sizes["kv_heads"] > 1,
    "heads": lambda sizes: sizes["heads"] > 1,
    "length": lambda sizes: sizes["length"] > 2,
    "width": lambda sizes: sizes["width"] > 2,
    "none": lambda sizes: not any(NEEDS[need](sizes) for need in [*NEEDS][:-1]),
}
# Tests, each larger than the one before.
TESTS: tuple[dict[str, Any], ...] = (
    {"rows": 1, "length": 2, "heads": 1, "kv_heads": 1, "width": 2},
    {"rows": 1, "length": 4, "heads": 4, "kv_heads": 2, "width": 4},
    {"rows": 1, "length": 4, "heads": 4, "kv_heads": 2, "width": 4, "calls": True},
    {"rows": 3, "length": 6, "heads": 6, "kv_heads": 2, "width": 8, "calls": True, "pads": True},
)


def _fits(id: str, test: dict[str, Any]) -> bool:
    return all(n <= test.get(name, False) for name, n in _sizes(id).items())


def enough() -> Iterator[Row]:
    """How many mistakes fit into tests of these sizes."""
    for test in TESTS:
        fitting = [id for id in smallest() if _fits(id, test)]
        letters = ("rows", "length", "heads", "kv_heads", "width")
        calls = Word("several" if test.get("calls") else "one")
        pads = Word("pads" if test.get("pads") else "no_pads")
        yield [str(len(fitting)), *(str(test[x]) for x in letters), calls, pads]


def needs() -> Iterator[Row]:
    """Which mistakes need what, so that a test without it misses them."""
    pages = {m.id: PAGES[stem] for stem, mistakes in mistakes_by_file().items() for m in mistakes}
    for need, applies in NEEDS.items():
        ids = [id for id in smallest() if applies(_sizes(id))]
        links = ", ".join(f"[{id}](page:{pages[id]}#{id})" for id in ids)
        yield [Word(need), str(len(ids)), links if need != "none" else Word("rest")]


def numbers() -> dict[str, object]:
    record = smallest()
    return {
        "measured": len(record),
        "listed": len(catalogue()),
        "in_half": sum(entry["off"] < IN_HALF for entry in record.values()),
    }
