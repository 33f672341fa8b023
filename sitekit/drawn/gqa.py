"""How heads share keys and values, and how those of a group are stacked."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from attnref.core.sdpa import _fold
from attnref.numbers.cost import attention_cost
from attnref.numbers.kv_memory import kv_bytes, size
from attnref.numbers.shapes import Full
from attnref.released.specs import find_model
from sitekit.drawn.operations import CONTEXT, LLAMA, decode, mega
from sitekit.markdown.render import Row

# The model of the live figure at first, and others that one may choose.
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "qwen2.5-7b", "starcoder")
LENGTHS = range(10, 21)  # powers of two, in tokens


def sharing() -> list[dict[str, Any]]:
    """Models, and for each number of key/value heads that divides their query
    heads: the bytes of a token, and the cache of each length as text."""
    result = []
    for model in map(find_model, MODELS):
        (group,) = model.groups
        assert isinstance(group, Full) and group.q_heads
        H, caches = group.q_heads, []
        for K in (K for K in range(H, 0, -1) if H % K == 0):
            with_heads = replace(model, groups=(replace(group, kv_heads=K),))
            sizes = [size(kv_bytes(with_heads, 2**n)) for n in LENGTHS]
            caches.append({"heads": K, "token": kv_bytes(with_heads, 1), "sizes": sizes})
        sizes_of_model = {"heads": H, "kv_heads": group.kv_heads, "width": group.head_dim}
        result.append({"name": model.name, **sizes_of_model, "caches": caches})
    return result


def fold(n_heads: int, n_kv_heads: int, queries: int) -> Iterator[Row]:
    """Which rows, (head, query), stand in the product of each key head."""
    pairs = torch.cartesian_prod(torch.arange(n_heads), torch.arange(queries))
    tags = pairs.view(1, n_heads, queries, 2)
    for k, row in enumerate(_fold(tags, n_kv_heads)[0].tolist()):
        yield [str(k), ", ".join(f"({head}, {query})" for head, query in row)]


def compare() -> Iterator[Row]:
    """Parameters, FLOPs and bytes of one decode step of MHA, GQA and MQA."""
    for name, K in (("MHA", 32), ("GQA", 8), ("GQA", 4), ("MQA", 1)):
        cost = attention_cost(**LLAMA, n_kv_heads=K, past=CONTEXT - 1)
        yield [
            f"{name}, `K` = {K}",
            mega(cost.parameters),
            mega(cost.projections),
            mega(cost.scores + cost.values),
            size(2 * cost.cached),
            f"{float(cost.attention_intensity()):.0f}",
        ]


def numbers() -> dict[str, object]:
    """Bytes per token of Llama-3.1-8B, of one layer and of all, and the share
    of MHA's parameters that MQA has."""
    token, costs = kv_bytes(find_model("llama-3.1-8b"), 1), decode()
    parameters = costs["mqa"].parameters / costs["mha"].parameters
    return {"layer": token // 32, "token": token, "parameters": parameters}
