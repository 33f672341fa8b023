"""What benchmarks/measured.json says, as tables and plots."""

import json
import re
from collections.abc import Iterator
from functools import cache, partial
from math import ceil, floor, log10
from typing import Any

from matplotlib.figure import Figure

from sitekit import ROOT, plots
from sitekit.plots import Plot
from sitekit.render import Row, Word
from sitekit.svg import room

MEASURED = ROOT / "benchmarks" / "measured.json"
THREADS = ROOT / "benchmarks" / "threads.json"
HEADS = {"MHA": 32, "GQA-8": 8, "MQA": 1}  # key/value heads
LIMIT = "limit"  # in a plot, beside the contenders
LOOKS: list[dict[str, Any]] = [
    {"color": plots.GREEN, "marker": "o"},
    {"color": plots.WARM, "marker": "s"},
    {"color": plots.BLUE, "marker": "^"},
    {"color": plots.PURPLE, "marker": "D"},
    {"color": plots.INK, "marker": "v"},
    {"color": plots.SOFT, "marker": "o", "linestyle": (0, (6, 2))},
]
LAST: dict[str, Any] = {"color": plots.SOFT, "linestyle": (0, (2, 2))}


@cache
def kept() -> dict[str, Any]:
    return dict(json.loads(MEASURED.read_text(encoding="utf-8")))


def sizes(case: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = kept()["cases"][case]["at"]
    return found


def slug(way: str) -> str:
    """The key under which a page has words for a contender."""
    return re.sub(r"\W+", "_", way)


def digits(x: float) -> str:
    """Three of them, also where the last is 0."""
    return f"{x:,.0f}" if x >= 100 else f"{x:#.3g}".rstrip(".")


def spread(three: list[float], unit: str = "") -> str:
    """Median, and in brackets the quartiles."""
    low, median, high = map(digits, three)
    if len({*three}) == 1:  # it ran once
        return f"{median}{unit}"
    return f"{median}{unit} ({low}–{high})"


def percent(three: list[float]) -> str:
    # Where a part would be lost, it is not rounded away.
    low, median, high = (f"{100 * x:.2g}" for x in three)
    return f"{median}% ({low}–{high})"


def times(
    case: str, at: tuple[str, ...], names: tuple[str, ...] = ()
) -> Iterator[Row]:
    """Of these contenders, or all, at each size: the median, how many times
    that of the first, and the share of the limit where one was measured."""
    unit = kept()["cases"][case]["unit"]
    found = [sizes(case)[size]["ways"] for size in at]
    first = next(iter(found[0]))
    every = dict.fromkeys(name for ways in found for name in ways)
    for name in names or every:
        row: Row = [Word(slug(name))]
        for ways in found:
            if name not in ways:
                row.append("–")
                continue
            way = ways[name]
            lines = [f"{digits(way['value'][1])} {unit}"]
            lines += [spread(way["ratio"], "×")] if name != first else ["1×"]
            if "share" in way:
                lines.append(f"{100 * way['share'][1]:.2g}%")
            row.append([*lines])
        yield row


# Case, what is slow or large and where, and what it is compared with.
FINDINGS = {
    "heads": ("decode", "float32, MHA, 32768", "fused", "float32, MQA, 32768"),
    "repeated": (
        "decode",
        "float32, GQA-8, 32768",
        "torch, repeat_interleave",
        "fused",
    ),
    "growing": ("append", "32768", "torch.cat", "KVCache"),
    "expanded": (
        "mla",
        "float32, 8192",
        "transformers sdpa, StaticCache",
        "fused",
    ),
    "scores": ("memory", "float32, GQA, 4096", "sdpa", "flash"),
}


def findings() -> Iterator[Row]:
    """How many times the one is of the other: a way, or the same one there."""
    for key, (case, at, way, other) in FINDINGS.items():
        ways = sizes(case)[at]["ways"]
        than = ways.get(other) or sizes(case)[other]["ways"][way]
        times = ways[way]["value"][1] / than["value"][1]
        tokens = int(at.rpartition(", ")[2])
        what: list[str | Word] = [Word(key), Word(f"{key}_of")]
        yield [f"{digits(times)}×", f"{tokens:,}", what]


def result(goal: dict[str, Any]) -> str:
    """A bound between the quartiles: another run may end on the other side."""
    low, _, high = goal["found"]
    ends = [goal[key] for key in ("least", "most") if key in goal]
    if any(low <= end <= high for end in ends):
        return "tie"
    return "met" if goal["met"] else "missed"


def goals() -> Iterator[Row]:
    """A row per goal, a line for each number of tokens."""
    units = {name: case["unit"] for name, case in kept()["cases"].items()}
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in kept()["goals"]:
        rows.setdefault(line["goal"], []).append(line)
    for name, lines in rows.items():
        one = lines[0]
        what, show = one["what"], "{:g}".format
        unit = {"times as long": "×", "times as fast": "×"}.get(what, "")
        of = f"{what} {one['peer']}"
        if what == "value":
            unit = f" {units[one['case']]}"
            of = f"{what}{unit}"
        elif one["case"] == "memory":
            of = f"times as much {one['peer']}"
        if what == "share":
            show, unit = "{:.0%}".format, ""
        ends = [show(one[key]) for key in ("least", "most") if key in one]
        sign = "" if len(ends) == 2 else "≥ " if "least" in one else "≤ "
        tokens = [line["at"].rpartition(", ")[2] for line in lines]
        goal: list[str | Word] = [Word(slug(name))]
        goal.append(Word(slug(of)))
        results: list[str | Word] = [Word(result(line)) for line in lines]
        yield [
            goal,
            [f"{int(n):,}" if n.isdigit() else n or "–" for n in tokens],
            f"{sign}{'–'.join(ends)}{unit}",
            [
                percent(x["found"])
                if what == "share"
                else spread(x["found"], unit)
                for x in lines
            ],
            results,
        ]


def threads(dtype: str) -> Iterator[Row]:
    """Milliseconds of the busiest thread, by the number of threads."""
    found: dict[str, Any] = json.loads(THREADS.read_text("utf-8"))["at"]
    for size, counts in found.items():
        of, shape = size.split(", ")
        if of == dtype:
            ways = [*next(iter(counts.values()))]
            names: list[str | Word] = [Word(slug(way)) for way in ways]
            row: Row = [Word(slug(shape)), names]
            for each in counts.values():
                row.append([digits(each[way][1]) for way in ways])
            yield row


def machine() -> Iterator[Row]:
    found, cases = kept(), kept()["cases"].values()
    for name in ("processor", "cores", "threads", "python"):
        yield [Word(name), str(found[name])]
    for name in ("torch", "transformers", "x-transformers"):
        yield [Word(slug(name)), str(found[name])]
    for dtype in ("float32", "bfloat16"):
        probes = sizes("decode")[f"{dtype}, MHA, 32768"]["probes"]
        rates = [spread(probes[unit]) for unit in ("GB/s", "GFLOP/s")]
        yield [Word(dtype), f"{rates[0]} GB/s, {rates[1]} GFLOP/s"]
    turns = [size["turns"] for case in cases for size in case["at"].values()]
    yield [Word("turns"), _between(turns)]
    yield [Word("busy"), _between([case["busy"] for case in cases])]
    yield [Word("date"), _between([case["date"] for case in cases])]


def _between(values: list[Any]) -> str:
    ends = [str(value) for value in (min(values), max(values))]
    return "–".join(dict.fromkeys(ends))


def variants(dtype: str, tokens: int) -> Iterator[Row]:
    """What limits a decode step, for each number of key/value heads."""
    found = {n: sizes("decode")[f"{dtype}, {n}, {tokens}"] for n in HEADS}
    width = {"float32": 4, "bfloat16": 2}[dtype]
    base: dict[str, float] = {}
    for name, K in HEADS.items():
        rates = {n: three[1] for n, three in found[name]["probes"].items()}
        moved, flops = 2 * K * tokens * 128 * width, 4 * 32 * tokens * 128
        row: Row = [Word(slug(name)), f"{K / 32:.3g}", f"{flops / moved:g}"]
        row.append(digits(moved / rates["GB/s"] / 1e6))
        row.append(digits(flops / rates["GFLOP/s"] / 1e6))
        for way in ("fused", "sdpa"):
            took = found[name]["ways"][way]["value"][1]
            base.setdefault(way, took)
            row.append([digits(took), f"{took / base[way]:.3g}"])
        yield row


ERRORS = {
    "decode": "{}, GQA-8, 8192",
    "layer": "{}, Llama-3-8B, 8192",
    "prefill": "{}, GQA, 1024",
}


def errors(case: str) -> Iterator[Row]:
    """The largest, in units of the largest element of the output."""
    found = [
        sizes(case)[ERRORS[case].format(dtype)]["ways"]
        for dtype in ("float32", "bfloat16")
    ]
    for name in found[0]:
        told = (f"{ways[name]['error']:.1e}" for ways in found)
        yield [Word(slug(name)), *told]


def curves(
    case: str, size: str, ways: tuple[str, ...]
) -> dict[str, dict[int, float]]:
    """The medians at each number of tokens, and the limit if there is one."""
    lines: dict[str, dict[int, float]] = {}
    for key, found in sizes(case).items():
        rest, _, tokens = key.rpartition(", ")
        if rest != size:
            continue
        for name in ways:
            if name in found["ways"]:
                value = found["ways"][name]["value"][1]
                lines.setdefault(slug(name), {})[int(tokens)] = value
        first = found["ways"][ways[0]]
        if "share" in first:
            least = first["share"][1] * first["value"][1]
            lines.setdefault(LIMIT, {})[int(tokens)] = least
    return lines


def _growth(
    narrow: bool, *, lines: dict[str, dict[int, float]], short: str
) -> Figure:
    """Time or memory against tokens, both axes logarithmic."""
    every = [y for line in lines.values() for y in line.values()]
    low, high = floor(log10(min(every))), ceil(log10(max(every)))
    marks = {10.0**i: f"{10.0**i:,.12g}" for i in range(low, high + 1)}
    tokens = sorted({x for line in lines.values() for x in line})
    legend = 20 * len(lines)
    left = room(marks.values(), 11) + 8
    width, height = (358, 300 + legend) if narrow else (700, 310)
    wide = width - left - (26 if narrow else 270)
    below = 48 + legend + 10 if narrow else 46
    box = (left, below, wide, height - below - 30)
    figure, axes, pixels = plots.axes_in(
        (width, height),
        box,
        x=(2, {t: f"{t:,}" for t in tokens}, (tokens[0], tokens[-1])),
        y=(10, marks, (10.0**low, 10.0**high)),
    )
    axes.set_xlabel("{tokens}")
    axes.text(0, box[3] + 9, f"{{{short}}}", transform=pixels)
    inside: Any = {"transform": pixels, "clip_on": False}
    order = sorted(lines, key=lambda name: -max(lines[name].values()))
    looks = dict(zip((n for n in lines if n != LIMIT), LOOKS, strict=False))
    x, y = (-left + 4, -66) if narrow else (wide + 22, box[3] - 14)
    for i, name in enumerate(order):
        look = {"linewidth": 1.8, "markersize": 5} | looks.get(name, LAST)
        axes.plot(
            [*lines[name]], [*lines[name].values()], **look, clip_on=False
        )
        at = y - 20 * i
        axes.plot([x, x + 26], [at, at], **look, **inside)
        axes.text(x + 34, at, f"{{{name}}}", va="center", transform=pixels)
    return figure


def growth(case: str, size: str, ways: tuple[str, ...]) -> Plot:
    lines = curves(case, size, ways)
    tokens = sorted({x for line in lines.values() for x in line})
    rows: list[Row] = [
        [Word(n), *(digits(line[t]) if t in line else "–" for t in tokens)]
        for n, line in lines.items()
    ]
    unit = kept()["cases"][case]["unit"]
    draw = partial(_growth, lines=lines, short=unit)
    draw.__name__ = slug(f"growth {case} {size}")  # type: ignore[attr-defined]
    return plots.plotted(draw, rows)
