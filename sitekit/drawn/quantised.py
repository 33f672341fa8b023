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
    packed, step, low = quantise(x, bits, dim, group)
    back: Tensor = restore(packed, step, low, bits, dim)
    return back.to(x.dtype)


def in_fp8(x: Tensor, scale: float | Tensor) -> Tensor:
    back: Tensor = to_fp8(x, scale).float() * scale
    return back.to(x.dtype)


def calibrated(x: Tensor) -> Tensor:
    """With one scale for the tensor: its largest element becomes 448."""
    return in_fp8(x, x.abs().max().float() / 448)


def error(
    q: Tensor, k: Tensor, v: Tensor, ours: tuple[Tensor, Tensor]
) -> float:
    """Of the output of attention, relative to it."""
    exact = sdpa(q, k, v)
    return float((sdpa(q, *ours) - exact).norm() / exact.norm())


def keys() -> Tensor:
    """Six tokens with four channels, of which one is large in all tokens."""
    draw = torch.Generator().manual_seed(5)
    k = torch.randn(6, 4, generator=draw)
    k[:, 2] = k[:, 2] + 9
    return k.mul(10).round().div(10) + 0.0  # without a -0


def missed(along: str) -> Tensor:
    """By how much 2 bits miss these keys, with groups along either axis."""
    k = keys()
    dim, group = (CHANNELS, 4) if along == "channels" else (TOKENS, 6)
    return (rounded(k, 2, dim, group) - k).abs()


@cache
def _errors() -> dict[tuple[str, int], float]:
    q, k, v = with_large_channels()
    return {
        (name, bits): error(
            q, k, v, (rounded(k, bits, of_k), rounded(v, bits, of_v))
        )
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
        of = [f"{_errors()[name, bits]:.3f}" for name in LAYOUTS]
        rows.append((Word(f"bits{bits}"), Storage(bits, 32, GROUP), of))
    for name, storage, errors in rows:
        whole = kv_bytes(LLAMA, CONTEXT, dtype=storage)
        per = storage.bits_for(GROUP) / 8 / GROUP
        yield [name, f"{per:g}", size(whole), *(e or "–" for e in errors)]


def _errors_drawn(narrow: bool) -> Figure:
    """Error against bytes per element: a line for each layout."""
    wide, high = (358, 330) if narrow else (640, 330)
    left, right = 46, 14 if narrow else 190
    box = (
        left,
        86 if narrow else 44,
        wide - left - right,
        205 if narrow else 250,
    )
    marks = {x: f"{x:g}" for x in (0.01, 0.03, 0.1, 0.3, 1.0)}
    each = {b: Storage(b, 32, GROUP) for b in (2, 4, 8)}
    bits_of = {b: x.bits_for(GROUP) / GROUP for b, x in each.items()}
    figure, axes, pixels = plots.axes_in(
        (wide, high),
        box,
        x=(0, {x: f"{x:g}" for x in (*bits_of.values(), 8)}, (2.4, 9.6)),
        y=(10, marks, (0.006, 1.6)),
    )
    axes.set_xlabel("{bits}")
    axes.text(0, box[3] + 8, "{error}", transform=pixels)
    marked = {n: (c, "o") for n, c in LOOKS.items()}
    marked["fp8"] = plots.PURPLE, "s"
    x, y = (2 - left, -50) if narrow else (box[2] + 18, box[3] - 12)
    inside: Any = {"transform": pixels, "clip_on": False}
    for i, (name, (colour, mark)) in enumerate(marked.items()):
        places, line = [8.0], [_fp8_error()]
        if name in LAYOUTS:
            places = [*bits_of.values()]
            line = [_errors()[name, bits] for bits in bits_of]
        # Two lines nearly meet: the thin one lies on the other.
        look: Any = {"color": colour, "linewidth": 1.2 if i == 2 else 3.5}
        axes.plot(places, line, f"{mark}-", **look, markersize=5 + 3 * (i != 2))
        column, row = divmod(i, 2) if narrow else (0, i)
        at, high = x + 170 * column, y - 20 * row
        axes.plot([at], [high], mark, color=colour, **inside)
        axes.text(at + 9, high, f"{{{name}}}", va="center", transform=pixels)
    return figure


def errors() -> Plot:
    rows: list[Row] = [
        [Word(name), *(f"{_errors()[name, bits]:.3f}" for bits in (2, 4, 8))]
        for name in LAYOUTS
    ]
    return plots.plotted(_errors_drawn, rows)


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
    half = (x / scale.bfloat16()).to(torch.float8_e4m3fn)
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
        "off": float((half != to_fp8(x, scale)).float().mean()),
        "key": float(_errors()["kivi", 4]),
        "wrong": float(_errors()["token", 4]),
    }
