"""Quantised caches: what groups do to an outlier, errors and bytes by bits,
keys with a bias, and the FP8 entry of a sparse MLA."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from attnref import apply_rope, rope_table, sdpa
from attnref.numbers.kv_memory import Storage, growth, kv_bytes, size
from attnref.plain.quantised import quantise, restore, to_fp8
from attnref.released.specs import find_model
from sitekit.drawing import plots
from sitekit.drawing.plots import Plot
from sitekit.drawn.questions import cache as with_large_channels
from sitekit.markdown.render import Row, Word

GROUP, CONTEXT = 32, 131_072
LLAMA, V32 = find_model("llama-3.1-8b"), find_model("deepseek-v3.2")
CHANNELS, TOKENS = -1, -2  # along which a group runs
KIVI = TOKENS, CHANNELS  # of keys, and of values
LAYOUTS = {"kivi": KIVI, "token": (CHANNELS,) * 2, "channel": (TOKENS,) * 2}
LOOKS = {"kivi": plots.GREEN, "token": plots.WARM, "channel": plots.BLUE}


def rounded(x: Tensor, bits: int, dim: int, group: int = GROUP) -> Tensor:
    """x as the plain form restores it."""
    codes, step, low = quantise(x, bits, dim, group)
    back: Tensor = restore(codes, step, low, bits, dim)
    return back.to(x.dtype)


def in_fp8(x: Tensor, scale: float | Tensor) -> Tensor:
    back: Tensor = to_fp8(x, scale).float() * scale
    return back.to(x.dtype)


def calibrated(x: Tensor) -> Tensor:
    """x in FP8 with one scale, by which its largest element becomes 448."""
    return in_fp8(x, x.abs().max().float() / 448)


def error(q: Tensor, k: Tensor, v: Tensor, ours: tuple[Tensor, Tensor]) -> float:
    """The relative error of attention's output with our keys and values."""
    exact = sdpa(q, k, v)
    return float((sdpa(q, *ours) - exact).norm() / exact.norm())


def eight() -> dict[str, Any]:
    """Eight keys of eight channels, and what an element of them needs: bits by
    format, with the scales of its group."""
    draw = torch.Generator().manual_seed(5)
    k = torch.randn(8, 8, generator=draw).double().mul(10).round().div(10)
    bits = {f"{b},{g}": Storage(b, 32, g).bits_for(g) / g for b in (8, 4, 2) for g in (4, 8)}
    return {"keys": (k + 0.0).tolist(), "bits": bits | {"fp8": 8.0}}


@cache
def _errors() -> dict[tuple[str, int], float]:
    q, k, v = with_large_channels()
    return {
        (name, bits): error(q, k, v, (rounded(k, bits, of_k), rounded(v, bits, of_v)))
        for name, (of_k, of_v) in LAYOUTS.items()
        for bits in (8, 4, 2)
    }


def _fp8_error() -> float:
    q, k, v = with_large_channels()
    return error(q, k, v, (calibrated(k), calibrated(v)))


def formats() -> Iterator[Row]:
    """Bytes with scales, the cache of a model, and errors by layout."""
    rows: list[tuple[str | Word, Storage, list[str]]] = [
        ("`bf16`", Storage(16), ["", "", ""]),
        (Word("fp8"), Storage(8), [f"{_fp8_error():.3f}"] * 3),
    ]
    for bits in (8, 4, 2):
        errors = [f"{_errors()[name, bits]:.3f}" for name in LAYOUTS]
        rows.append((Word(f"bits{bits}"), Storage(bits, 32, GROUP), errors))
    for name, storage, errors in rows:
        cache_bytes = kv_bytes(LLAMA, CONTEXT, dtype=storage)
        per_element = storage.bits_for(GROUP) / 8 / GROUP
        yield [name, f"{per_element:g}", size(cache_bytes), *(e or "–" for e in errors)]


def _error_curves(narrow: bool) -> Figure:
    """Error against bytes per element: a line for each layout."""
    marks = {x: f"{x:g}" for x in (0.01, 0.03, 0.1, 0.3, 1.0)}
    formats = {b: Storage(b, 32, GROUP) for b in (2, 4, 8)}
    bits = {b: x.bits_for(GROUP) / GROUP for b, x in formats.items()}
    wide = plots.Edges(left=46, right=190, below=44, above=36)
    chart = plots.make_chart(
        (plots.PHONE if narrow else 640, 330),
        plots.Edges(46, 14, below=86, above=39) if narrow else wide,
        x=(0, {x: f"{x:g}" for x in (*bits.values(), 8)}, (2.4, 9.6)),
        y=(10, marks, (0.006, 1.6)),
    )
    chart.name_axes("{bits}", "{error}")
    looks = {name: (colour, "o") for name, colour in LOOKS.items()}
    looks["fp8"] = plots.PURPLE, "s"
    x, y = (2 - wide.left, -50) if narrow else (chart.width + 18, chart.height - 12)
    for n, (name, (colour, marker)) in enumerate(looks.items()):
        line: tuple[list[float], list[float]] = [8.0], [_fp8_error()]
        if name in LAYOUTS:
            line = [*bits.values()], [_errors()[name, b] for b in bits]
        # Two lines nearly meet: the thin one lies on the other.
        width, size = (1.2, 5) if n == 2 else (3.5, 8)
        look: Any = {"color": colour, "marker": marker}
        chart.axes.plot(*line, linewidth=width, markersize=size, **look)
        column, row = divmod(n, 2) if narrow else (0, n)
        place = x + 170 * column, y - plots.ROW * row
        chart.key(*place, f"{{{name}}}", sample=0, linestyle="", **look)
    return chart.figure


def errors() -> Plot:
    rows: list[Row] = [
        [Word(name), *(f"{_errors()[name, bits]:.3f}" for bits in (2, 4, 8))] for name in LAYOUTS
    ]
    return plots.plotted(_error_curves, rows)


PAIR = 40  # of 64: RoPE turns it by less than a radian in 256 tokens


def biased(bias: float) -> tuple[Tensor, Tensor, Tensor]:
    """256 tokens of 128 channels; one channel of the keys has a bias, which
    RoPE rotates into the other one of its pair."""
    draw = torch.Generator().manual_seed(2)
    q, k, v = torch.randn(3, 1, 1, 256, 128, generator=draw).double()
    k[..., PAIR] += bias
    cos, sin = (x.double() for x in rope_table(torch.arange(256), 128))
    return apply_rope(q, cos, sin), apply_rope(k, cos, sin), v


def outliers() -> Iterator[Row]:
    """Error of the output if keys alone are stored in fewer bits."""
    for bias in (0, 10, 30, 100, 300):
        q, k, v = biased(bias)
        ways = (
            in_fp8(k, 1.0),
            calibrated(k),
            rounded(k, 8, CHANNELS),
            rounded(k, 8, TOKENS),
            rounded(k, 4, TOKENS),
        )
        yield [f"{bias:,}", *(f"{error(q, k, v, (w, v)):.3f}" for w in ways)]


def numbers() -> dict[str, object]:
    """What the text says."""
    shipped, (group,) = V32.shipped, V32.groups
    assert shipped is not None
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(1))
    x = x.bfloat16()
    scale = x.abs().max().float() / 448
    in_bfloat16 = (x / scale.bfloat16()).to(torch.float8_e4m3fn)
    return {
        "plain": size(kv_bytes(LLAMA, CONTEXT)),
        "four": size(kv_bytes(LLAMA, CONTEXT, dtype=Storage(4, 32, GROUP))),
        "bound": 128**0.5,
        "int8": _errors()["kivi", 8],
        "int4": _errors()["kivi", 4],
        "fp8": _fp8_error(),
        "entry": shipped.kv,
        "index": shipped.index,
        "both": shipped.kv + shipped.index,
        "naive": sum(sum(store.widths) for store in group.stores),
        "of_v32": size(growth(V32, dtype="shipped").later),
        "of_v32_bf16": size(growth(V32).later),
        "off": float((in_bfloat16 != to_fp8(x, scale)).float().mean()),
        "key": float(_errors()["kivi", 4]),
        "wrong": float(_errors()["token", 4]),
    }
