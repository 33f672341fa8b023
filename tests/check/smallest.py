"""The smallest sizes at which each mistake of the catalogue shows.

    python -m tests.check.smallest [ID ...]

writes smallest.json: for each mistake a case of the known answers, its sizes,
and by how much the output is off there, as a share of its largest element. No
size alone can be smaller: then the right code refuses it, or with one of three
draws of the inputs and weights the mistake does not show.
"""

import json
import sys
from collections.abc import Iterator
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnref.judge.catalogue import Plain, Variant, catalogue
from attnref.judge.differences import largest, largest_difference
from attnref.judge.forms import one_thread
from attnref.judge.vectors import cases, mistakes_of, modules_of, run_case

RECORD = Path(__file__).with_suffix(".json")
DRAWS = 3
SHOWN = 1e-5  # of the largest element, as assert_close allows in float32
CASES = 3  # that are tried for a mistake, the plainest first
WIDTHS = ("E", "C", "D", "Dv", "R", "Dn", "Dr", "Rq", "Di")
COUNTS = ("S", "B", "Hi", "K", "H", "W", "topk", "held")
CALLS = sorted(
    (calls for n in (2, 3) for calls in product(range(1, 5), repeat=n)),
    key=lambda calls: (sum(calls), len(calls), calls),
)

Sizes = dict[str, Any]  # an int for each letter, lists for chunks and pads


@cache
def _base(case: str) -> tuple[Sizes, tuple[str, ...]]:
    """The sizes that a case reads, and the plain forms that it calls."""
    p = Plain()
    _, run = run_case(case, p, {})
    letters = ("T", *COUNTS, *WIDTHS, "chunks", "pads", "real")
    sizes = {x: run.options[x] for x in letters if x in run.options_read}
    if sizes.get("chunks"):  # their sum
        sizes.pop(_length_of(case), None)
    return {x: n for x, n in sizes.items() if n}, modules_of(p)


def _length_of(case: str) -> str:
    """The letter of the length that comes in chunks."""
    return "S" if cases()[case]["run"] == "ring" else "T"


def _options(case: str, sizes: Sizes) -> dict[str, Any]:
    options = dict(sizes)
    if "chunks" in sizes:
        length = _length_of(case)
        options[length] = sum(sizes["chunks"])
        options["room"] = options[length] + sizes.get("held", 0)
    return options


def _output(case: str, sizes: Sizes, draw: int, variant: Variant) -> Tensor:
    options = _options(case, sizes) | {"draw": f" {draw}"}
    out, _ = run_case(case, Plain(variant), {}, options=options)
    return out


@cache
def _right(case: str, sizes: str, draw: int) -> Tensor | None:
    """The right output, or None where the right code refuses the sizes."""
    try:
        out = _output(case, json.loads(sizes), draw, ())
    except Exception:
        return None
    return out if out.numel() else None


def difference(case: str, sizes: Sizes, variant: Variant) -> float:
    """How far off the mistake is in the draw that shows it least; 0 if it does
    not show there, -1 if the right code refuses these sizes."""
    least = float("inf")
    for draw in range(DRAWS):
        right = _right(case, json.dumps(sizes), draw)
        if right is None:
            return -1
        try:
            out = _output(case, sizes, draw, variant)
        except Exception:
            return 0  # an error is no wrong output
        if out.shape != right.shape:
            return 0
        size = largest(right) or 1.0
        least = min(least, largest_difference(out, right) / size)
    return least if least > SHOWN else 0


def smaller(sizes: Sizes) -> Iterator[Sizes]:
    """The sizes with one of them smaller, from the smallest on."""
    if "chunks" in sizes:
        calls = list(sizes["chunks"])
        key = sum(calls), len(calls), calls
        for chunks in CALLS:
            if (sum(chunks), len(chunks), [*chunks]) < key:
                yield _fit(sizes | {"chunks": [*chunks]})
    for letter in ("T", *COUNTS, *WIDTHS):
        powers = (2**n for n in range(13))
        for n in sorted({*range(1, 9), *powers}):
            if n < sizes.get(letter, 0):
                yield _fit(sizes | {letter: n})
    for letter in ("pads", "real"):
        for row, n in enumerate(sizes.get(letter, ())):
            for fewer in range(n if letter == "pads" else 0):
                rows = list(sizes[letter])
                rows[row] = fewer
                yield sizes | {letter: rows}


def _fit(sizes: Sizes) -> Sizes:
    """Pads for the rows that there are, and no longer than these."""
    result = dict(sizes)
    for letter, longest in (
        ("pads", _length(sizes) - 1),
        ("real", sizes.get("S")),
    ):
        if letter in sizes:
            rows = sizes[letter][: sizes.get("B", 3)]
            result[letter] = [min(n, longest or 0) for n in rows]
    return result


def _length(sizes: Sizes) -> int:
    return sum(sizes["chunks"]) if "chunks" in sizes else sizes.get("T", 1)


def shrink(case: str, variant: Variant) -> tuple[Sizes, float]:
    """The smallest sizes of a case at which a mistake shows, and how much."""
    sizes, _ = _base(case)
    off = difference(case, sizes, variant)
    shrinking = off > 0
    while shrinking:
        shrinking = False
        for fewer in smaller(sizes):
            if (difference_there := difference(case, fewer, variant)) > 0:
                sizes, off, shrinking = fewer, difference_there, True
                break
    return sizes, off


def plainness(case: str) -> tuple[Any, ...]:
    """One call before several, no pads before pads, few elements first."""
    sizes, _ = _base(case)
    numbers = (n for n in sizes.values() if isinstance(n, int))
    return "chunks" in sizes, "pads" in sizes, prod(numbers)


def weight(sizes: Sizes) -> tuple[Any, ...]:
    numbers = [n for n in sizes.values() if isinstance(n, int)]
    chunks = sizes.get("chunks", [1])
    return (
        len(chunks) > 1,
        any(sizes.get("pads", ())),
        prod([*numbers, *chunks]),
    )


@cache
def _plain_cases() -> list[str]:
    names = (x for x, case in cases().items() if case["run"] != "released")
    return sorted((x for x in names if not cases()[x]["config"]), key=plainness)


@cache
def variants(id: str) -> dict[str, Variant]:
    """By case, the first lines of a mistake that show there as the case is."""
    result: dict[str, Variant] = {}
    for case in _plain_cases():
        sizes, modules = _base(case)
        for name, variant, record in mistakes_of(case, modules):
            if name != id or record or len(result) == CASES:
                continue
            if case not in result and difference(case, sizes, variant) > 0:
                result[case] = variant
    return result


def search(id: str) -> dict[str, Any] | None:
    """What smallest.json says of a mistake, if a case shows it."""
    results = []
    for case, variant in variants(id).items():
        sizes, off = shrink(case, variant)
        results.append((weight(sizes), case, sizes, off))
    if not results:
        return None
    _, case, sizes, off = min(results, key=lambda result: result[0])
    return {"case": case, "off": float(f"{off:.2g}"), "sizes": sizes}


def read_record() -> dict[str, dict[str, Any]]:
    return dict(json.loads(RECORD.read_text(encoding="utf-8")))


def main(ids: list[str]) -> None:
    record = {id: search(id) for id in ids or catalogue()}
    if ids:
        record = read_record() | record
    rows = (
        f"{json.dumps(id)}: {json.dumps(record[id])}"
        for id in catalogue()
        if record.get(id)
    )
    RECORD.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with one_thread():
        main(sys.argv[1:])
