"""Which keys an indexer chooses, and what that saves."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attnref.numbers.cost import Cost, attention_cost, dsa_cost, mla_cost
from attnref.numbers.kv_memory import size
from attnref.plain.dsa import DSA
from sitekit.drawn.measured import sizes
from sitekit.drawn.mla import V3
from sitekit.markdown.render import Row, Word

TOKENS, TOPK = 9, 3
INDEX: dict[str, Any] = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
CONTEXTS = {"4K": 4096, "32K": 2**15, "128K": 2**17, "1M": 2**20}


def read() -> Tensor:
    """Which keys are chosen, in a run of the plain form with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        index = 8, 16, TOPK
        layer = DSA(32, 4, 16, 8, 8, 8, 24, index, 10000.0, halves=True)
        chosen: list[Tensor] = []
        layer.indexer.register_forward_hook(lambda *call: chosen.append(call[-1]))
        with torch.no_grad():
            layer(torch.randn(1, TOKENS, 32))
    read = torch.zeros(TOKENS, TOKENS).scatter(1, chosen[0][0], 1.0)
    return read.tril().bool()


def seen() -> Tensor:
    return torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()


def _layers(context: int) -> Iterator[tuple[str, Cost]]:
    """A decode step of one layer with so many tokens."""
    past = context - 1
    gqa: dict[str, Any] = {"d_model": 7168, "n_heads": 128, "n_kv_heads": 8}
    yield "gqa", attention_cost(**gqa, head_dim=128, past=past)
    yield "mla", mla_cost(**V3, past=past)
    yield "dsa", dsa_cost(**V3, **INDEX, past=past)


def costs() -> Iterator[Row]:
    """What a step keeps, reads and computes, without the projections."""
    for name, context in CONTEXTS.items():
        for word, cost in _layers(context):
            cache_bytes, skipped_bytes = 2 * cost.cached, 2 * cost.skipped
            flops = (cost.scores + cost.values) / 1e9
            yield [
                name,
                Word(word),
                size(cache_bytes),
                size(cache_bytes - skipped_bytes),
                f"{flops:.3g}",
            ]


def numbers() -> dict[str, object]:
    """What the text says of a step at 128K tokens, and of a measured one."""
    layers = dict(_layers(CONTEXTS["128K"]))
    dsa, times = layers["dsa"], sizes("chosen")["float32, 32768"]["ways"]
    flops = dsa.scores + dsa.values
    chosen_time = times["chosen keys"]["value"][1]
    full_time = times["all keys, fused"]["value"][1]
    return {
        "entry": 512 + 64 + 128,
        "less_read": layers["mla"].cached / (dsa.cached - dsa.skipped),
        "fewer": (layers["mla"].scores + layers["mla"].values) / flops,
        "of_indexer": 2 * 2**17 * 64 * (128 + 1) / flops,
        "index_head": 64 * 128,
        "per_key": 128 * (512 + 64 + 512),
        "time": chosen_time / full_time,
        "index_share": dsa.parameters / layers["mla"].parameters - 1,
    }
