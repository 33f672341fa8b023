"""What the files of benchmarks/ say, as tables and plots."""

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache, partial
from math import ceil, floor, log10
from typing import Any

from matplotlib.figure import Figure

from sitekit import ROOT
from sitekit.drawing import plots
from sitekit.drawing.plots import Plot
from sitekit.drawing.svg import room
from sitekit.markdown.render import Row, Word

MEASURED = ROOT / "benchmarks" / "measured.json"
THREADS = ROOT / "benchmarks" / "threads.json"
GPU = ROOT / "benchmarks" / "gpu.json"
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
def recorded() -> dict[str, Any]:
    return dict(json.loads(MEASURED.read_text(encoding="utf-8")))


def sizes(case: str) -> dict[str, dict[str, Any]]:
    result: dict[str, dict[str, Any]] = recorded()["cases"][case]["at"]
    return result


def slug(way: str) -> str:
    """The key under which a page has words for a contender."""
    return re.sub(r"\W+", "_", way)


def digits(x: float) -> str:
    """Three of them, also where the last is 0."""
    return f"{x:,.0f}" if x >= 100 else f"{x:#.3g}".rstrip(".")


def spread(three: list[float]) -> str:
    """Median, and in brackets the quartiles."""
    low, median, high = map(digits, three)
    return f"{median} ({low}–{high})"


def about(x: float) -> str:
    """Two digits: as many as another run would give again."""
    return f"{float(f'{x:.2g}'):,g}"


def _compare(columns: Iterable[tuple[str, str]], names: tuple[str, ...] = ()) -> Iterator[Row]:
    """A row per contender, all of them if none are named: at each size of a
    case its median, and its ratio to the median of the first."""
    cases = [
        (sizes(case)[size]["ways"], recorded()["cases"][case]["unit"]) for case, size in columns
    ]
    names_of_ways = dict.fromkeys(name for ways, _ in cases for name in ways)
    for name in names or names_of_ways:
        row: Row = [Word(slug(name))]
        for ways, unit in cases:
            if name not in ways:
                row.append("–")
                continue
            value, ratio = (ways[name][key][1] for key in ("value", "ratio"))
            row.append([f"{digits(value)} {unit}", f"{about(ratio)}×"])
        yield row


def times(case: str, at: tuple[str, ...], names: tuple[str, ...] = ()) -> Iterator[Row]:
    return _compare([(case, size) for size in at], names)


PROMPTS = (
    ("prefill", "float32, GQA, 2048"),
    ("backward", "float32, GQA, 2048"),
    ("prefill", "float32, MLA, 4096"),
    ("memory", "float32, MLA, 4096"),
)


def prompts() -> Iterator[Row]:
    """A causal prompt: its times, and in the last column its memory."""
    case, size = PROMPTS[-1]
    return _compare(PROMPTS, tuple(sizes(case)[size]["ways"]))


# Case, what is slow or large and where, and what it is compared with.
FINDINGS = {
    "repeated": ("decode", "float32, GQA-8, 32768", "torch, repeat_interleave", "fused"),
    "growing": ("generate", "8192", "torch.cat", "KVCache"),
    "expanded": ("mla", "float32, 8192", "transformers sdpa, StaticCache", "fused"),
    "converted": ("layer", "bfloat16, Llama-3-8B, 32768", "sdpa", "fused"),
    "scores": ("memory", "float32, GQA, 4096", "sdpa", "flash"),
    "heads": ("decode", "float32, MHA, 32768", "fused", "float32, MQA, 32768"),
}


def findings() -> Iterator[Row]:
    """The ratio of what is slow or large to its base (another way at the same
    size, or the same way at another size), and what to do about it."""
    for key, (case, size, way, base) in FINDINGS.items():
        ways = sizes(case)[size]["ways"]
        if base in ways:  # paired in each turn
            times = ways[way]["ratio"][1] / ways[base]["ratio"][1]
        else:
            at_base = sizes(case)[base]["ways"][way]
            times = ways[way]["value"][1] / at_base["value"][1]
        tokens = int(size.rpartition(", ")[2])
        words: list[str | Word] = [Word(key), Word(f"{key}_of")]
        yield [f"{about(times)}×", f"{tokens:,}", words, Word(f"{key}_do")]


def on_a_gpu(case: str, at: tuple[str, ...], names: tuple[str, ...]) -> Iterator[Row]:
    """The median at each size, and its share of what the GPU can do."""
    data: dict[str, Any] = json.loads(GPU.read_text("utf-8"))["cases"][case]
    for name in names:
        row: Row = [Word(slug(name))]
        for size in at:
            way = data["at"][size]["ways"].get(name)
            if way is None:
                row.append("–")
                continue
            value, share = way["value"][1], way["share"][1]
            row.append([f"{digits(value)} {data['unit']}", f"{share:.0%}"])
        yield row


def threads(*shapes: str) -> Iterator[Row]:
    """Milliseconds of the busiest thread, by the number of threads."""
    record: dict[str, Any] = json.loads(THREADS.read_text("utf-8"))
    for shape in shapes:
        counts = record["at"][f"float32, {shape}"]
        ways = [*next(iter(counts.values()))]
        names: list[str | Word] = [Word(slug(way)) for way in ways]
        row: Row = [Word(slug(shape)), names]
        for times in counts.values():
            row.append([digits(times[way][1]) for way in ways])
        yield row


def spreads() -> list[float]:
    """How much each ratio of times varies: the width of its middle half,
    relative to its median."""
    ways = [
        way
        for case in recorded()["cases"].values()
        for size in case["at"].values()
        for way in size["ways"].values()
        if case["unit"] == "ms"
    ]
    ratios = [way["ratio"] for way in ways if len({*way["ratio"]}) > 1]
    return sorted((high - low) / mid for low, mid, high in ratios)


def machine() -> Iterator[Row]:
    record, cases = recorded(), recorded()["cases"].values()
    for name in ("processor", "cores"):
        yield [Word(name), str(record[name])]
    packages = ("python", "torch", "transformers", "x-transformers")
    yield [Word("versions"), [f"{n} {record[n]}" for n in packages]]
    for dtype in ("float32", "bfloat16"):
        probes = sizes("decode")[f"{dtype}, MHA, 32768"]["probes"]
        rates = [digits(probes[unit][1]) for unit in ("GB/s", "GFLOP/s")]
        yield [Word(dtype), [f"{rates[0]} GB/s", f"{rates[1]} GFLOP/s"]]
    widths = spreads()
    shares = (widths[int(share * len(widths))] for share in (0.5, 0.9))
    yield [Word("spread"), [f"{100 * x:.2g}%" for x in shares]]
    dates = sorted(case["date"] for case in cases)
    ends = dict.fromkeys((dates[0], dates[-1]))
    yield [Word("date"), [*ends]]


def variants(dtype: str, tokens: int) -> Iterator[Row]:
    """What limits a decode step, for each number of key/value heads."""
    points = {n: sizes("decode")[f"{dtype}, {n}, {tokens}"] for n in HEADS}
    width = {"float32": 4, "bfloat16": 2}[dtype]
    base = points["MHA"]["ways"]["fused"]["value"][1]
    for name, K in HEADS.items():
        rates = {n: three[1] for n, three in points[name]["probes"].items()}
        bytes_read, flops = 2 * K * tokens * 128 * width, 4 * 32 * tokens * 128
        time = points[name]["ways"]["fused"]["value"][1]
        milliseconds = (bytes_read / rates["GB/s"] / 1e6, flops / rates["GFLOP/s"] / 1e6, time)
        row: Row = [Word(slug(name)), f"1/{32 // K}" if K < 32 else "1"]
        yield [*row, *map(digits, milliseconds), f"{time / base:.2f}"]


def errors() -> Iterator[Row]:
    """The largest, in units of the largest element of the output."""
    by_dtype = [
        sizes("layer")[f"{dtype}, Llama-3-8B, 8192"]["ways"] for dtype in ("float32", "bfloat16")
    ]
    for name in by_dtype[0]:
        cells = (f"{ways[name]['error']:.1e}" for ways in by_dtype)
        yield [Word(slug(name)), *cells]


def curves(case: str, size: str, ways: tuple[str, ...]) -> dict[str, dict[int, float]]:
    """The medians at each number of tokens, and the limit if there is one."""
    lines: dict[str, dict[int, float]] = {}
    for key, point in sizes(case).items():
        rest, _, tokens = key.rpartition(", ")
        if rest != size:
            continue
        for name in ways:
            if name in point["ways"]:
                value = point["ways"][name]["value"][1]
                lines.setdefault(slug(name), {})[int(tokens)] = value
        first = point["ways"][ways[0]]
        if "share" in first:
            least = first["share"][1] * first["value"][1]
            lines.setdefault(LIMIT, {})[int(tokens)] = least
    return lines


def _growth(narrow: bool, *, lines: dict[str, dict[int, float]], unit: str) -> Figure:
    """Time or memory against tokens, both axes logarithmic."""
    values = [y for line in lines.values() for y in line.values()]
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    marks = {10.0**i: f"{10.0**i:,.12g}" for i in range(low, high + 1)}
    tokens = sorted({x for line in lines.values() for x in line})
    looks = dict(zip((n for n in lines if n != LIMIT), LOOKS, strict=False))
    order = sorted(lines, key=lambda name: -max(lines[name].values()))
    curves = {
        f"{{{name}}}": plots.Curve([*lines[name]], [*lines[name].values()], looks.get(name, LAST))
        for name in order
    }
    return plots.curves(
        narrow,
        curves,
        x=(2, {t: f"{t:,}" for t in tokens}, (tokens[0], tokens[-1])),
        y=(10, marks, (10.0**low, 10.0**high)),
        names=("{tokens}", f"{{{unit}}}"),
        left=room(marks.values(), 11) + 8,
        legend=270,
    )


def growth(case: str, size: str, ways: tuple[str, ...]) -> Plot:
    lines = curves(case, size, ways)
    tokens = sorted({x for line in lines.values() for x in line})
    rows: list[Row] = [
        [Word(n), *(digits(line[t]) if t in line else "–" for t in tokens)]
        for n, line in lines.items()
    ]
    unit = recorded()["cases"][case]["unit"]
    draw = partial(_growth, lines=lines, unit=unit)
    draw.__name__ = slug(f"growth {case} {size}")  # type: ignore[attr-defined]
    return plots.plotted(draw, rows)


def numbers() -> dict[str, object]:
    """What the text says of repeated heads on a GPU, with 32,768 tokens."""
    sizes_of_decode = json.loads(GPU.read_text("utf-8"))["cases"]["decode"]["at"]
    times = []
    for batch in (1, 16, 64):
        ways = sizes_of_decode[f"bfloat16, GQA-8, {batch}, 32768"]["ways"]
        way, fused = ways["torch, repeat_interleave"], ways["fused"]
        times.append(way["value"][1] / fused["value"][1])
    return {"repeated_least": min(times), "repeated_most": max(times)}
