"""Recurrent layers: a state step by step, what it costs, how it drifts."""

import re
from collections.abc import Iterator
from functools import cache
from math import log
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from attnref.core import recurrence
from attnref.numbers.cost import (
    Cost,
    attention_cost,
    gated_delta_cost,
    mla_cost,
)
from attnref.numbers.kv_memory import group_bytes, size
from attnref.numbers.shapes import Full, Group, Mla, Recurrent
from attnref.plain.gated_delta import delta_rule
from attnref.released.specs import find_model
from sitekit import ROOT
from sitekit.check.mistakes import coloured
from sitekit.drawing import steps, svg
from sitekit.drawing.steps import Frame, Steps
from sitekit.drawn.memory import BF16
from sitekit.drawn.mla import V3
from sitekit.markdown.render import Row, Word, render

# Of six tokens: key, value, decay, beta and query.
ONE, TWO, THREE = torch.eye(3).tolist()
TOKENS: list[tuple[list[float], list[float], float, float, list[float]]] = [
    (ONE, [2, 0, 1, 0], 1.0, 1.0, ONE),
    (TWO, [0, 4, 0, 2], 1.0, 1.0, ONE),
    (ONE, [0, 0, 3, 0], 1.0, 1.0, ONE),
    (TWO, [2, 0, 0, 0], 1.0, 0.5, TWO),
    (THREE, [4, 0, 0, 0], 0.5, 1.0, ONE),
    ([0.6, 0.8, 0], [1, 1, 1, 1], 1.0, 1.0, ONE),
]
CELL, HIGH = 46, 34


def _number(x: float) -> str:
    return f"{round(x, 2) + 0.0:g}".replace("-", "\u2212")


def _cells(kind: str, x: float, y: float, matrix: Tensor) -> Iterator[Markup]:
    """As in a heat map: the larger the number, the fuller its cell."""
    for i, row in enumerate(matrix.tolist()):
        for j, value in enumerate(row):
            left, top = x + CELL * j, y + (HIGH + 2) * i
            full = 0.6 * min(abs(value) / 4, 1)
            ink = Markup(' style="fill-opacity:{:.3f}"').format(full)
            yield steps.box("slot", left, top, CELL - 2, HIGH)
            yield svg.BOX.format(kind, left, top, CELL - 2, HIGH, 3, ink)
            middle = left + CELL / 2 - 1, top + HIGH / 2
            yield steps.text("small", *middle, _number(value))


def state() -> Steps:
    """Six tokens, each written and then read, by the plain form."""
    held, frames = torch.zeros(1, 1, 3, 4), []
    for given in TOKENS:
        key, value, decay, beta, query = map(torch.tensor, given)
        q, k, v = (x.view(1, 1, 1, -1).float() for x in (query, key, value))
        gates = decay.log().view(1, 1, 1), beta.view(1, 1, 1)
        out, after = delta_rule(q, k, v, *gates, held)
        written = k[0, 0] @ (after - decay * held)[0, 0]  # keys have length 1
        marks = [
            steps.text("key", 39, 14, "k"),
            steps.text("value end", 92, 33, "u"),
            *_cells("value", 100, 16, written),
            *_cells("key", 16, 62, k[0, 0].mT),
            *_cells("latent", 100, 62, after[0, 0]),
            steps.text("latent end", 92, 116, "S"),
            steps.text("query", 323, 14, "q"),
            *_cells("share", 300, 62, q[0, 0].mT),
            steps.text("soft end", 92, 201, "o"),
            *_cells("value", 100, 184, out[0, 0]),
        ]
        added = query @ (held[0, 0] + key[:, None] * value)
        facts = {
            "o": ", ".join(map(_number, out.flatten().tolist())),
            "added": ", ".join(map(_number, added.tolist())),
            "v": ", ".join(map(_number, value.tolist())),
        }
        frames.append(Frame(marks, facts))
        held = after
    return Steps(362, 222, frames)


# Of each plain form, the lines in which it differs from the first.
PATTERNS = {
    "gated_delta": r"state = state [*+]|known = |new = |step = |self\.norm\(",
    "kda": r"state = state [*+]|known = |new = |step = |self\.o_norm\(",
    "mamba2": r"state = state [*+]|v = step|step = \(|= heads \+|gate\)|rms_",
}


def _lines_of(name: str) -> list[str]:
    text = (ROOT / f"attnref/plain/{name}.py").read_text("utf-8")
    body = text[text.index("def ") :].splitlines()
    lines = (x.strip() for x in body if re.search(PATTERNS[name], x))
    return [line.partition("  #")[0] for line in lines]


def difference(*, titles: list[str], caption: str) -> str:
    """From Gated DeltaNet to KDA, and to Mamba-2."""
    first, *others = map(_lines_of, PATTERNS)
    signed = [
        "\n".join(
            [f"-{x}" for x in first if x not in other]
            + [f"+{x}" for x in other if x not in first]
        )
        for other in others
    ]
    blocks = zip(titles, map(coloured, signed), strict=True)
    return render("difference", blocks=[*blocks], caption=caption)


QWEN = "qwen3-next-80b"
SIZES = {"d_model": 2048, "n_heads": 16, "n_v_heads": 32}
SIZES |= {"key_dim": 128, "value_dim": 128}
LENGTHS = 4096, 32_768, 131_072, 1_048_576


def _layers() -> dict[str, Group]:
    """One layer of each kind."""
    full, recurrent = find_model(QWEN).groups
    (llama,) = find_model("llama-3.1-8b").groups
    (latent,) = find_model("deepseek-v3").groups
    return {"state": recurrent, "qwen": full, "llama": llama, "mla": latent}


def _bytes(group: Group, tokens: int) -> int:
    return group_bytes(group, tokens, BF16) // group.layers


def costs() -> Iterator[Row]:
    """Bytes of one layer, by the length of the text."""
    for name, group in _layers().items():
        yield [Word(name), *(size(_bytes(group, n)) for n in LENGTHS)]


def _decode(name: str, past: int) -> Cost:
    """A decode step of the layer that a row of the tables names."""
    heads: dict[str, Any]
    match name:
        case "state":
            return gated_delta_cost(**SIZES, past=past)
        case "qwen":
            heads = {"d_model": 2048, "n_heads": 16, "n_kv_heads": 2}
            return attention_cost(**heads | {"head_dim": 256}, past=past)
        case "llama":
            heads = {"d_model": 4096, "n_heads": 32, "n_kv_heads": 8}
            return attention_cost(**heads, past=past)
    return mla_cost(**V3, past=past)


def reads() -> Iterator[Row]:
    """MFLOPs of a decode step without its projections."""
    for name in _layers():
        costs = (_decode(name, n - 1) for n in LENGTHS)
        flops = ((each.scores + each.values) / 1e6 for each in costs)
        yield [Word(name), *(f"{n:,.0f}" for n in flops)]


STEPS = 16, 256, 2048
DECAYS = 0.9, 0.99, 1.0


@cache
def _drifted() -> Tensor:
    """By steps and decays: the mean error of the last 16 reads."""
    generator = torch.Generator().manual_seed(0)
    T, D = STEPS[-1], 32
    q, k, v = torch.randn(3, 1, 1, T, D, generator=generator).double()
    k = torch.nn.functional.normalize(k, dim=-1)
    beta = torch.rand(1, 1, T, generator=generator).double()
    rates = (beta * 0 + log(rate) for rate in DECAYS)
    errors = [recurrence.drift(q, k, v, rate, beta=beta) for rate in rates]
    means = [[each[n - 16 : n].mean() for each in errors] for n in STEPS]
    return torch.tensor(means)


def drift() -> Iterator[Row]:
    """The error of a state that is rounded to bfloat16 after each token."""
    for n, off in zip(STEPS, _drifted().tolist(), strict=True):
        yield [f"{n:,}", *(f"{x:.2%}" for x in off)]


def numbers() -> dict[str, Any]:
    layers = _layers()
    recurrent, full, llama, latent = layers.values()
    assert isinstance(recurrent, Recurrent) and isinstance(full, Full)
    assert isinstance(llama, Full) and isinstance(latent, Mla)
    fixed = _bytes(recurrent, 1)
    state, conv = recurrent.stores
    return {
        "heads": recurrent.state_heads,
        "state": size(4 * state.heads * sum(state.widths)),
        "conv": size(2 * conv.heads * sum(conv.widths)),
        "even_qwen": f"{fixed // _bytes(full, 1):,}",
        "even_llama": f"{fixed // _bytes(llama, 1):,}",
        "even_mla": f"{fixed // _bytes(latent, 1):,}",
        "drift": f"{_drifted()[-1].max().item():.1%}",
    }
