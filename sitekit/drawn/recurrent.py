"""Recurrent layers: how they differ, what a state costs, how it drifts."""

import re
from collections.abc import Iterator
from functools import cache
from math import exp, log
from typing import Any

import torch
from torch import Tensor

from attnref import KimiDeltaAttention
from attnref.core import recurrence
from attnref.numbers.cost import Cost, attention_cost, gated_delta_cost, mla_cost
from attnref.numbers.kv_memory import group_bytes, size
from attnref.numbers.shapes import Full, Group, Mla, Recurrent
from attnref.released.specs import find_model
from sitekit import ROOT
from sitekit.check.mistakes import coloured
from sitekit.drawn.memory import BF16
from sitekit.drawn.mla import V3
from sitekit.markdown.render import Row, Word, render

# The lines of each plain form in which it differs from the first.
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
    base, *variants = map(_lines_of, PATTERNS)
    diffs = [
        "\n".join(
            [f"-{x}" for x in base if x not in variant]
            + [f"+{x}" for x in variant if x not in base]
        )
        for variant in variants
    ]
    blocks = zip(titles, map(coloured, diffs), strict=True)
    return render("difference", blocks=[*blocks], caption=caption)


QWEN = "qwen3-next-80b"
DECAY_BOUND = -5.0  # of Kimi K3: `kda_lower_bound`
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
        flops = ((cost.scores + cost.values) / 1e6 for cost in costs)
        yield [Word(name), *(f"{n:,.0f}" for n in flops)]


STEPS = 16, 256, 2048
DECAYS = 0.9, 0.99, 1.0


@cache
def _drift_errors() -> Tensor:
    """The mean error of the last 16 reads, by steps and decays."""
    generator = torch.Generator().manual_seed(0)
    T, D = STEPS[-1], 32
    q, k, v = torch.randn(3, 1, 1, T, D, generator=generator).double()
    k = torch.nn.functional.normalize(k, dim=-1)
    beta = torch.rand(1, 1, T, generator=generator).double()
    rates = (beta * 0 + log(rate) for rate in DECAYS)
    errors = [recurrence.drift(q, k, v, rate, beta=beta) for rate in rates]
    means = [[error[n - 16 : n].mean() for error in errors] for n in STEPS]
    return torch.tensor(means)


def drift() -> Iterator[Row]:
    """The error of a state that is rounded to bfloat16 after each token."""
    for n, errors in zip(STEPS, _drift_errors().tolist(), strict=True):
        yield [f"{n:,}", *(f"{x:.2%}" for x in errors)]


def numbers() -> dict[str, Any]:
    layers = _layers()
    recurrent, full, llama, latent = layers.values()
    assert isinstance(recurrent, Recurrent) and isinstance(full, Full)
    assert isinstance(llama, Full) and isinstance(latent, Mla)
    state_bytes = _bytes(recurrent, 1)
    state, conv = recurrent.stores
    gates = [
        KimiDeltaAttention(d_model=2, n_heads=1, decay_bound=bound).forget_gate
        for bound in (DECAY_BOUND, None)
    ]
    for gate in gates:
        gate.requires_grad_(False).dt_bias.zero_()
        gate.A_log.zero_()
    nothing = torch.zeros(1, 1, 2)
    bounded_decay, free_decay = (gate(nothing, torch.float32)[0, 0, 0, 0] for gate in gates)
    return {
        "bounded": f"{bounded_decay:.2f}".replace("-", "\u2212"),
        "unbounded": f"{free_decay:.2f}".replace("-", "\u2212"),
        "sixteen": f"{-16 * DECAY_BOUND:g}",
        "slowest_rwkv": exp(-exp(-0.5)),
        "largest": log(torch.finfo(torch.float32).max),
        "heads": recurrent.state_heads,
        "state": size(4 * state.heads * sum(state.widths)),
        "conv": size(2 * conv.heads * sum(conv.widths)),
        "even_qwen": f"{state_bytes // _bytes(full, 1):,}",
        "even_llama": f"{state_bytes // _bytes(llama, 1):,}",
        "even_mla": f"{state_bytes // _bytes(latent, 1):,}",
        "drift": f"{_drift_errors()[-1].max().item():.1%}",
    }
