"""What models with recurrent layers keep: strips, bytes and snapshots."""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from attnref.numbers.kv_memory import group_bytes, growth, kv_bytes, size, state_bytes
from attnref.numbers.shapes import Model, Recurrent
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


def numbers() -> dict[str, Any]:
    model = find_model(QWEN)
    states, later = state_bytes(model), growth(model).later
    drafts = 4
    return {
        "states": size(states),
        "token": size(later),
        "worth": f"{int(states / later):,}",
        "drafts": drafts,
        "each_draft": size(drafts * states),
        "sequences": f"{64 * states / 2**30:.1f}",
        "of_8": size(state_bytes(model, ranks=8)),
    }
