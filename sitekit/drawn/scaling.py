"""What scaled frequencies do to pairs, to scores and to keys in a cache."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

import attnref
from attnref import (
    DynamicNtk,
    Llama3,
    LongRope,
    Ntk,
    PositionInterpolation,
    Proportional,
    Scaling,
    Yarn,
)
from attnref.released.record import attention_of
from attnref.released.specs import configs, find_model
from sitekit.drawing import plots
from sitekit.drawing.plots import Plot, Scale
from sitekit.drawn.measured import LOOKS
from sitekit.drawn.sinks import far
from sitekit.markdown.render import Row, Word

# config.json of Phi-3.5-mini, in hundredths: a factor per pair.
SHORT = """
    100 102 103 103 105 105 105 105 105 107 110 111 116 116 117 129
    134 168 179 182 185 188 191 194 199 202 202 202 202 202 202 203
    203 203 203 203 203 203 203 203 208 209 219 222 259 273 275 284"""
LONG = """
    108 111 114 134 159 160 162 262 323 323 479 740 770 909 1220 1767
    2446 2857 3042 3084 3259 3293 4232 4496 5034 5045 5755 5793 5821 6014
    6261 6262 6271 6314 6314 6377 6393 6396 6397 6402 6407 6408 6412 6441
    6448 6451 6453 6484"""
PHI = LongRope(
    [int(n) / 100 for n in SHORT.split()], [int(n) / 100 for n in LONG.split()], 4096, factor=32.0
)
GITHUB, FACE = "https://github.com", "https://huggingface.co"


class ReleasedRope(NamedTuple):
    """A released model: its RoPE, the width that rotates, who says so."""

    kind: str
    scaling: Scaling
    theta: float
    width: int
    source: str
    mla: bool = False


CODE = f"{GITHUB}/huggingface/transformers/blob/v5.24.0/src/transformers/models"
V3 = f"{GITHUB}/deepseek-ai/DeepSeek-V3/blob/9b4e978/inference/model.py"
LLAMA = f"{GITHUB}/meta-llama/llama-models/blob"
LLAMA += "/d42f3959d14418bbf1ae1bebe54a84f757b89410/models/llama3/model.py"
OSS = f"{GITHUB}/openai/gpt-oss/blob/0568dfc94f09469e2968c2b90e50561d1b3fc424"
MODELS = {
    "Gemma 3": ReleasedRope(
        "linear", PositionInterpolation(8.0), 1e6, 256, "https://arxiv.org/abs/2503.19786"
    ),
    "HY-MT1.5": ReleasedRope("ntk", Ntk(1000.0), 1e4, 128, f"{GITHUB}/onnxruntime/mobius/pull/293"),
    "Llama 3.1": ReleasedRope("llama3", Llama3(8.0, 1.0, 4.0, 8192), 5e5, 128, LLAMA),
    "Qwen2.5": ReleasedRope(
        "yarn", Yarn(4.0, 32768), 1e6, 128, f"{FACE}/Qwen/Qwen2.5-7B-Instruct#processing-long-texts"
    ),
    "gpt-oss": ReleasedRope(
        "yarn", Yarn(32.0, 4096, truncate=False), 1.5e5, 64, f"{OSS}/gpt_oss/torch/model.py"
    ),
    "DeepSeek-V3": ReleasedRope(
        "yarn", Yarn(40.0, 4096, mscale=1.0, mscale_all_dim=1.0), 1e4, 64, V3, mla=True
    ),
    "Kimi K2": ReleasedRope(
        "yarn",
        Yarn(32.0, 4096, beta_fast=1.0, mscale=1.0, mscale_all_dim=1.0),
        5e4,
        64,
        f"{GITHUB}/radixark/miles/issues/335",
        mla=True,
    ),
    "Ministral 3": ReleasedRope(
        "yarn",
        Yarn(16.0, 16384, mscale=1.0, mscale_all_dim=1.0),
        1e6,
        128,
        f"{CODE}/ministral3/configuration_ministral3.py",
    ),
    "Phi-3.5-mini": ReleasedRope(
        "longrope", PHI, 1e4, 96, f"{FACE}/microsoft/Phi-3.5-mini-instruct/blob/main/config.json"
    ),
    "Gemma 4": ReleasedRope(
        "proportional", Proportional(0.25), 1e6, 512, f"{CODE}/gemma4/configuration_gemma4.py"
    ),
}
PLOTTED = ("HY-MT1.5", "Phi-3.5-mini", "DeepSeek-V3", "Kimi K2", "Llama 3.1")


def plain(theta: float, width: int) -> Tensor:
    return theta ** (-torch.arange(0, width, 2).double() / width)


def slower(rope: ReleasedRope) -> Tensor:
    """How many times slower each pair is at the longest texts."""
    frequencies = plain(rope.theta, rope.width)
    return frequencies / rope.scaling.at(2**20).slowed(frequencies, rope.theta)


def number(x: float) -> str:
    return f"{x:.3g}" if x < 100 else f"{x:,.0f}"


Lines = dict[str, tuple[list[float], list[float]]]


def _curves(narrow: bool, *, lines: Lines, x: Scale, y: Scale, length: int = 0) -> Figure:
    """Lines with their names beside them; `length` is marked."""
    curves = {}
    for i, (name, (xs, ys)) in enumerate(lines.items()):
        markers = i * 2 % 8, max(len(xs) // 6, 1)  # not all in one column
        curves[name] = plots.Curve(xs, ys, LOOKS[i], markers)
    return plots.curves(
        narrow,
        curves,
        x=x,
        y=y,
        names=("{below}", "{above}"),
        left=44,
        legend=220,
        landmark=(length, "{trained}") if length else None,
    )


def curves() -> Plot:
    """How many times slower each pair turns, model by model."""
    lines: Lines = {}
    for name in (*PLOTTED, "Gemma 3"):
        rope = MODELS[name]
        ys = slower(rope).tolist()
        xs = [100 * p / (len(ys) - 1) for p in range(len(ys))]
        lines[f"{name}, {rope.kind}"] = xs, ys
    rows: list[Row] = []
    for name in MODELS:
        ratio = slower(MODELS[name]).tolist()
        indices = [round(share * (len(ratio) - 1) / 4) for share in range(5)]
        cells = [Word("still") if math.isinf(ratio[p]) else number(ratio[p]) for p in indices]
        rows.append([name, f"`{MODELS[name].kind}`", *cells])
    shares = {float(n): f"{n}{chr(160)}%" for n in range(0, 101, 25)}
    steps = {float(10**n): f"{10**n:,}" for n in range(4)}
    draw = partial(_curves, lines=lines, x=(0, shares, (0.0, 100.0)), y=(10, steps, (0.9, 1000.0)))
    draw.__name__ = "curves"  # type: ignore[attr-defined]
    return plots.plotted(draw, rows)


OF_LLAMA: dict[str, Scaling | None] = {
    "none": None,
    "ntk": Ntk(8.0),
    "llama3": Llama3(8.0, 1.0, 4.0, 8192),
    "yarn": Yarn(8.0, 8192),
    "linear": PositionInterpolation(8.0),
}


def score(scaling: Scaling | None, distance: float) -> float:
    """The score of a vector with itself, all pairs alike, in Llama 3.1: the
    mean of the cosines around this distance."""
    theta, width = MODELS["Llama 3.1"].theta, MODELS["Llama 3.1"].width
    f = plain(theta, width)
    f = f if scaling is None else scaling.slowed(f, theta)
    distances = distance * 2 ** torch.linspace(-1, 1, 4000).double()
    return (distances[:, None] * f).cos().mean().item()


def scores() -> Plot:
    """The score against the distance, by kind."""
    last = find_model("llama-3.1-8b").max_context
    far_out = [2 ** (n / 2) for n in range(round(2 * math.log2(last)) + 1)]
    lines: Lines = {
        f"{{{name}}}" if scaling is None else name: (far_out, [score(scaling, d) for d in far_out])
        for name, scaling in OF_LLAMA.items()
    }
    distances = (1, 8, 64, 512, 8192, 65536, last)
    rows: list[Row] = [
        [
            Word(name) if scaling is None else f"`{name}`",
            *(f"{score(scaling, d):.2f}" for d in distances),
        ]
        for name, scaling in OF_LLAMA.items()
    ]
    marks = {float(d): f"{d:,}" for d in (1, 8, 64, 512, 8192, last)}
    steps = {n / 4: f"{n / 4:g}" for n in range(5)}
    draw = partial(
        _curves,
        lines=lines,
        x=(2, marks, (1.0, float(last))),
        y=(0, steps, (0.0, 1.0)),
        length=8192,
    )
    draw.__name__ = "scores"  # type: ignore[attr-defined]
    return plots.plotted(draw, rows)


def released() -> Iterator[Row]:
    """Models and their numbers; what their scores are multiplied by."""
    for name, (kind, scaling, theta, width, source, mla) in MODELS.items():
        factor = getattr(scaling, "factor", None)
        length = getattr(scaling, "original_max_len", None)
        size = scaling.table_scale
        scores = size**2 * (scaling.softmax_scale if mla else 1.0)
        yield [
            f"[{name}]({source})",
            f"`{kind}`",
            f"{theta:,.0f}",
            str(width),
            "–" if factor is None else f"{factor:g}",
            "–" if length is None else f"{length:,}",
            f"{size:.4g}",
            f"{scores:.4g}",
        ]


def yarn_ramp() -> Iterator[Row]:
    """The pairs of DeepSeek-V3's RoPE key before and after YaRN."""
    _, yarn, theta, dim, *_ = MODELS["DeepSeek-V3"]
    plain_frequencies = plain(theta, dim)
    slowed_frequencies = yarn.slowed(plain_frequencies, theta)
    ramp = (1 - slowed_frequencies / plain_frequencies) / (1 - 1 / 40)
    for p in (0, 10, 13, 16, 20, 23, 31):
        waves = [2 * math.pi / f[p].item() for f in (plain_frequencies, slowed_frequencies)]
        yield [
            str(p),
            f"{4096 / waves[0]:.2f}",
            f"{ramp[p].item():.2f}",
            *(f"{n:,.0f}" if n > 100 else f"{n:.1f}" for n in waves),
        ]


def turned(x: Tensor, theta: float, scaling: Scaling | None, first: int = 0) -> Tensor:
    positions = torch.arange(first, first + x.shape[2])
    table = attnref.rope_table(positions, x.shape[3], theta=theta, scaling=scaling)
    return attnref.apply_rope(x, *table)


def stale() -> Iterator[Row]:
    """A prompt of the trained length, then token by token: the last output
    with the keys of the cache, and with all keys rotated anew."""
    torch.manual_seed(0)
    length, last = 4096, 5120
    lengths = length, length + 1, length + 256, last
    columns = []
    for scaling, width in ((DynamicNtk(8.0, length), 128), (PHI, 96)):
        q, k, v = torch.randn(3, 1, 4, last, width)
        parts = [turned(k[:, :, :length], 1e4, scaling.at(length))]
        for j in range(length, last):
            token = k[:, :, j : j + 1]
            parts.append(turned(token, 1e4, scaling.at(j + 1), j))
        cache, column = torch.cat(parts, dim=2), []
        for T in lengths:
            now = scaling.at(T)
            query = turned(3 * q[:, :, T - 1 : T], 1e4, now, T - 1)
            out, want = (
                attnref.sdpa(query, keys, v[:, :, :T])
                for keys in (cache[:, :, :T], turned(k[:, :, :T], 1e4, now))
            )
            column.append(far(out, want))
        columns.append(column)
    for T, *row in zip(lengths, *columns, strict=True):
        yield [f"{T:,}", *row]


def mistaken() -> Iterator[Row]:
    """The output of the last of some tokens: how far each mistake is."""
    torch.manual_seed(0)
    T = 8192
    qkv = torch.randn(3, 1, 4, T, 128)
    oss = Yarn(32.0, 4096, truncate=False)

    def out(name: str, scaling: Scaling | None) -> Tensor:
        _, _, theta, width, *_ = MODELS[name]
        q, k, v = qkv[..., :width]
        query = turned(3 * q[:, :, -1:], theta, scaling, T - 1)
        return attnref.sdpa(query, turned(k, theta, scaling), v)

    for word, name, wrong in (
        ("none", "Llama 3.1", None),
        ("all", "Llama 3.1", PositionInterpolation(8.0)),
        ("length", "Llama 3.1", Llama3(8.0, 1.0, 4.0, 131072)),
        ("size", "gpt-oss", replace(oss, attention_factor=1.0)),
        ("whole", "gpt-oss", replace(oss, truncate=True)),
        ("betas", "Kimi K2", Yarn(32.0, 4096, mscale=1.0, mscale_all_dim=1.0)),
    ):
        want = out(name, MODELS[name].scaling)
        yield [name, Word(word), far(out(name, wrong), want)]


def growing() -> Iterator[Row]:
    """The factors of queries in Llama 4 and Ministral 3."""
    positions = torch.tensor([8190, 8191, 16383, 16384, 131072, 1048576])
    ids = "llama-4-scout", "ministral-3-3b"
    records = [attention_of(configs()[id], layer=3) for id in ids]
    for i in positions:
        steps = [(i + r.q_growth_from) // r.q_growth_every for r in records]
        factors = [1 + r.q_growth * n.log1p() for r, n in zip(records, steps, strict=True)]
        yield [f"{int(i):,}", *(f"{x.item():.3f}" for x in factors)]


def numbers() -> dict[str, object]:
    """The score without scaling where training ends."""
    return {"score": score(None, 8192)}
