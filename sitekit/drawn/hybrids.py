"""What models with recurrent layers keep: strips, bytes and snapshots."""

from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from attnref.numbers.kv_memory import group_bytes, growth, kv_bytes, size, state_bytes
from attnref.numbers.shapes import Model, Recurrent
from attnref.plain.recall import attended, recalled, written
from attnref.released.specs import find_model
from sitekit.drawn import released
from sitekit.drawn.memory import BF16
from sitekit.markdown.render import Row
from sitekit.markdown.tables import exact

IDS = "kimi-k3 qwen3.8-2.4t nemotron-3-super-120b qwen3.5-397b qwen3.5-9b"
IDS += " olmo-hybrid-7b kimi-linear-48b qwen3-next-80b granite-4.0-h-350m"
IDS += " lfm2-1.2b"
QWEN = "qwen3-next-80b"


def strips(*, caption: str, words: dict[str, str]) -> str:
    ids = IDS.split()
    return released.strips(caption=caption, words=words, ids=ids)


def _recurrent(model: Model) -> int:
    return sum(g.layers for g in model.groups if isinstance(g, Recurrent))


def _without_states(model: Model, tokens: int) -> int:
    """Bytes, if all layers were as those that cache tokens."""
    n_caching = model.layers - _recurrent(model)
    cache_bytes = sum(
        group_bytes(group, tokens, BF16)
        for group in model.groups
        if not isinstance(group, Recurrent)
    )
    return cache_bytes * model.layers // n_caching


def kept() -> Iterator[Row]:
    """Bytes of a sequence, of states and of the rest, by its length."""
    for id in IDS.split():
        model = find_model(id)
        n_recurrent, states = _recurrent(model), state_bytes(model)
        total_bytes = kv_bytes(model, 131_072)
        yield [
            model.name,
            f"{n_recurrent} + {model.layers - n_recurrent}",
            size(states),
            exact(growth(model).later),
            size(kv_bytes(model, 4096)),
            size(total_bytes),
            f"{_without_states(model, 131_072) / total_bytes:.1f}",
        ]


DISTANCES = 64, 512, 4096


def spaced() -> Iterator[Row]:
    """A snapshot for every so many tokens of Qwen3-Next."""
    model = find_model(QWEN)
    states, later = state_bytes(model), growth(model).later
    for n in DISTANCES:
        per_token = Fraction(states, n)
        yield [f"{n:,}", size(per_token), f"{float(per_token / later):.3g}", f"{(n - 1) / 2:g}"]


TEXTS, D, GATE, STATES = 16, 32, 0.99, 4  # a state has D rows


@cache
def _recalls(pairs: int) -> list[float]:
    """What each kind of layer recalls of so many pairs, then of second values."""
    generator = torch.Generator().manual_seed(0)
    shape = (STATES + 2, TEXTS, pairs, D)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
    *keys, v, new = F.normalize(drawn, dim=-1)
    k = keys[0]
    reads = [
        k @ written(k, v),
        k @ written(k, v, delta=True),
        k @ written(k, v, decay=GATE, delta=True),
        sum(each @ written(each, v, delta=True) for each in keys),
        attended(k, k, v),
    ]
    twice = torch.cat((k, k), dim=1), torch.cat((v, new), dim=1)
    again = [
        k @ written(*twice),
        k @ written(*twice, delta=True),
        k @ written(*twice, decay=GATE, delta=True),
        attended(k, *twice),
    ]
    values = torch.cat((new, v), dim=1)
    return [recalled(x, v) for x in reads] + [recalled(x, values) for x in again]


def recall() -> Iterator[Row]:
    """The share of pairs that is recalled, by how many were stored."""
    for pairs in (D // 4, D // 2, D, 2 * D, 4 * D):
        yield [str(pairs), *(f"{x:.0%}" for x in _recalls(pairs))]


def numbers() -> dict[str, Any]:
    model = find_model(QWEN)
    states, later = state_bytes(model), growth(model).later
    drafts = 4
    added, corrected, _, four, *_ = _recalls(2 * D)
    *_, added_again, corrected_again, _, attended_again = _recalls(D // 2)
    return {
        "rows": D,
        "gate": GATE,
        "texts": TEXTS,
        "pairs": 2 * D,
        "few": D // 2,
        "added": added,
        "corrected": corrected,
        "four": four,
        "added_again": added_again,
        "corrected_again": corrected_again,
        "attended_again": attended_again,
        "states": size(states),
        "token": size(later),
        "worth": f"{int(states / later):,}",
        "drafts": drafts,
        "each_draft": size(drafts * states),
        "sequences": f"{64 * states / 2**30:.1f}",
        "of_8": size(state_bytes(model, ranks=8)),
    }
