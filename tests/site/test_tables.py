"""What pages compute is what was recorded: the rows of their tables and plots,
matrices, and the numbers of their steps and of their text.

    python -m tests.site.test_tables

records it anew; in the diff of tables.json, each number that a change of code
has changed is to be read and meant.
"""

import json
import re

import pytest
import torch

from sitekit import ROOT
from sitekit.markdown import calls
from sitekit.markdown.render import Sorted, Word
from tests.kit.pages import fences

RECORD = ROOT / "tests/site/tables.json"
# Lists of links and of files; and what oracles.json has recorded.
UNRECORDED = ("bibliography", "files", "index", "names", "transformers")
UNRECORDED += ("known-answers",)  # test_known_answers.py has one of them
UNRECORDED += ("same-output",)  # rounding depends on the processor
PAGES = [stem for stem in calls.pages() if stem not in UNRECORDED]
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def text_of(cell):
    if isinstance(cell, list):
        return " / ".join(map(text_of, cell))
    if isinstance(cell, Word):
        return " ".join((f"<{cell.key}>", *cell.numbers))
    if isinstance(cell, float):
        return f"{cell:.6g}"
    return cell.text if isinstance(cell, Sorted) else str(cell)


def computed(stem):
    """What a page computes, by the call that it names."""
    result = {}
    for _, spec in fences(stem):
        for kind in ("table", "plot", "steps"):
            if kind in spec:
                value = calls.value(spec[kind], stem)
                if kind == "steps":
                    value = [frame.facts.values() for frame in value.frames]
                rows = value.rows if kind == "plot" else value
                key = f"{stem}: {spec[kind]}"
                result[key] = [[text_of(cell) for cell in row] for row in rows]
        for panel in spec.get("panels", ()):
            value = (
                calls.value(panel["draw"], stem) if "draw" in panel else None
            )
            if isinstance(value, torch.Tensor):
                result[f"{stem}: {panel['draw']}"] = [
                    [text_of(float(x)) for x in row.flatten()]
                    for row in torch.atleast_2d(value)
                ]
    if "numbers" in calls.functions_of(stem):
        numbers = calls.value("numbers", stem).items()
        result[f"{stem}: numbers"] = [
            [name, text_of(n if isinstance(n, int | str) else float(n))]
            for name, n in numbers
        ]
    return result


def alike(now, was):
    """The same but for the last digit of a fraction, which may depend on the
    processor."""
    if NUMBER.sub("#", now) != NUMBER.sub("#", was):
        return False
    for one, old in zip(NUMBER.findall(now), NUMBER.findall(was), strict=True):
        mantissa, _, exponent = old.partition("e")
        digits = len(mantissa.partition(".")[2])
        off = 1.01 * 10 ** (int(exponent or 0) - digits) if digits else 0
        a, b = (float(n.replace(",", "")) for n in (one, old))
        if abs(a - b) > off:
            return False
    return True


@pytest.fixture(scope="module")
def recorded():
    return json.loads(RECORD.read_text(encoding="utf-8"))


@pytest.mark.parametrize("stem", PAGES)
def test_a_page_computes_what_was_recorded(stem, recorded):
    now = computed(stem)
    was = {k: rows for k, rows in recorded.items() if k.startswith(f"{stem}: ")}
    assert now.keys() == was.keys()
    for call, rows in now.items():
        assert len(rows) == len(was[call]), call
        for row, old in zip(rows, was[call], strict=True):
            assert len(row) == len(old), call
            assert all(map(alike, row, old)), f"{call}: {row}, {old} recorded"


def test_only_the_last_digit_of_a_fraction_may_differ():
    assert alike("0.45 ms", "0.46 ms") and alike("1.21e38", "1.22e38")
    assert alike("<nan> 1,024", "<nan> 1,024")
    for now, was in (
        ("0.45 ms", "0.47 ms"),
        ("1,024", "1,025"),
        ("0.45 ms", "0.45 s"),
        ("1.20e38", "1.20e39"),
        ("1 2", "1 2 3"),
        ("<nan>", "<zeros>"),
    ):
        assert not alike(now, was)


def main():
    lines = [
        f"{json.dumps(call)}: {json.dumps(rows, ensure_ascii=False)}"
        for stem in PAGES
        for call, rows in computed(stem).items()
    ]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
