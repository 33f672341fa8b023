"""Tables and flows of MLA: its own sizes, most of it unallocated."""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import attnref
from attnref.layers import mla
from attnref.numbers.cost import Cost, mla_cost
from attnref.numbers.kv_memory import size
from sitekit.kept import kept
from sitekit.tables import Cell, Word, code, empty, walk

FORMS = ("expanded", "latent", "absorbed")
SMALL: dict[str, Any] = {
    "d_model": 96,
    "n_heads": 6,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
}
V3: dict[str, Any] = {
    "d_model": 7168,
    "n_heads": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "q_lora_rank": 1536,
}
V3_LAYERS = 61


def _v3() -> attnref.MultiHeadLatentAttention:
    with torch.device("meta"):
        return attnref.MultiHeadLatentAttention(**V3).bfloat16()


def walk_mla() -> list[list[Cell]]:
    layer = attnref.MultiHeadLatentAttention(**SMALL)
    cache = attnref.KVCache(12)
    cache.append(torch.zeros(2, 1, 5, 28))
    letters = {"R": 20, "Dn": 16, "Dr": 8, "Dv": 10}
    return walk(layer, torch.zeros(2, 7, 96), letters=letters, cache=cache)


def mla_cache() -> list[list[Cell]]:
    """What each form stores for a token of DeepSeek-V3."""
    rows: list[list[Cell]] = []
    for form in FORMS:
        cache = attnref.KVCache(1)
        with torch.no_grad():
            _v3()(empty(1, 1, V3["d_model"]), cache=cache, form=form)
        shapes = [code((t.shape[1], t.shape[3])) for t in cache.stored]
        numbers = cache.nbytes // 2
        rows.append(
            [
                form,
                ", ".join(shapes),
                f"{numbers:,}",
                f"{cache.nbytes:,}",
                f"{cache.nbytes * V3_LAYERS:,}",
            ]
        )
    return rows


def _stored(*widths: tuple[int, int]) -> int:
    """Numbers a token of a cache of such tensors: heads and width of each."""
    cache = attnref.KVCache(1)
    cache.append(*(empty(1, heads, 1, width) for heads, width in widths))
    return cache.nbytes // 2


def budget() -> Tensor:
    """Numbers a token and layer: MHA, GQA-8, MLA, MQA with heads of 128."""
    pairs = [[(K, 128)] * 2 for K in (128, 8)] + [[(1, 576)], [(1, 128)] * 2]
    return torch.tensor([_stored(*widths) for widths in pairs])


def mla_budget() -> list[list[Cell]]:
    latent = _stored((1, 576))
    sizes = {
        "mha": _stored((128, 128), (128, 128)),
        "expanded": _stored((128, 192), (128, 128)),
        "gqa8": _stored((8, 128), (8, 128)),
        "gqa": 2.25 * _stored((1, 128), (1, 128)),
        "mla": latent,
        "mqa": _stored((1, 128), (1, 128)),
    }
    return [
        [Word(name), f"{numbers:,.0f}", f"{numbers / latent:.3g}"]
        for name, numbers in sizes.items()
    ]


def mla_claim() -> list[list[Cell]]:
    old = 95 * _stored((8, 128), (8, 128)) * 2
    new = 60 * _stored((1, 576)) * 2
    rows: list[list[Cell]] = [[Word("old"), f"{old:,}", ""]]
    for name, held in (("new", new), ("six", new * 6 // 16)):
        rows.append([Word(name), f"{held:,}", f"{1 - held / old:.1%}"])
    return rows


def _apart(form: str, new: int) -> Cost:
    """A step of `new` tokens after 4096, less what all forms share."""
    cost = mla_cost(**V3, form=form, new=new, past=4096)
    shared = sum(
        p.numel()
        for name, p in _v3().named_parameters()
        if p.dim() == 2 and "kv_b" not in name
    )
    return cost._replace(projections=cost.projections - 2 * new * shared)


def mla_step() -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for form in FORMS:
        cost = _apart(form, 1)
        held = 2 * cost.cached
        rows.append(
            [
                form,
                f"{cost.flops / 1e6:,.0f}",
                size(held),
                f"{cost.flops / held:,.0f}",
            ]
        )
    return rows


def mla_chunks() -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for new in (1, 16, 64, 128, 171, 256, 512):
        absorbed, latent = _apart("absorbed", new), _apart("latent", new)
        rows.append([str(new), f"{absorbed.flops / latent.flops:.2f}"])
    return rows


def mla_merged() -> list[list[Cell]]:
    layer = _v3()
    query, output = attnref.absorbed_weights(layer)
    up = layer.kv_b_proj.weight.numel() // 2  # half for keys, half for values
    apart = (layer.q_b_proj.weight.numel(), layer.o_proj.weight.numel())
    return [
        [Word(name), f"{(kept + up) / 1e6:.1f}", f"{merged.numel() / 1e6:.1f}"]
        for name, kept, merged in zip(
            ("query", "output"), apart, (query, output), strict=True
        )
    ]


def mla_wrong() -> list[list[Cell]]:
    E, keys, R = 5120, 128 * 128, 512
    with torch.device("meta"):
        down, up = nn.Linear(E, R, bias=False), nn.Linear(R, keys, bias=False)
        merged = up.weight @ down.weight
    factors = down.weight.numel() + up.weight.numel()
    return [
        [Word("latent"), f"{factors / 1e6:.1f}", f"{R:,}"],
        [Word("merged"), f"{merged.numel() / 1e6:.1f}", f"{keys:,}"],
    ]


@kept
def mla_rounding() -> list[list[Cell]]:
    """How far bfloat16 takes each form from float64, and from the first."""
    torch.manual_seed(0)
    sizes = V3 | {"d_model": 1024, "n_heads": 8, "q_lora_rank": 256}
    layer, x = (
        attnref.MultiHeadLatentAttention(**sizes),
        torch.randn(2, 64, 1024),
    )
    with torch.no_grad():
        layer.q_b_proj.weight.mul_(8)  # so that softmax decides
        layer, x = layer.bfloat16(), x.bfloat16()
        rounded = [layer(x, form=form).double() for form in FORMS]
        exact = layer.double()(x.double())

    def apart(a: Tensor, b: Tensor) -> str:
        return f"{(a - b).norm() / exact.norm():.2%}"

    return [
        [form, apart(out, exact), apart(out, rounded[0])]
        for form, out in zip(FORMS, rounded, strict=True)
    ]


TABLES: dict[str, Callable[[], list[list[Cell]]]] = {
    "walk_mla": walk_mla,
    "mla_cache": mla_cache,
    "mla_budget": mla_budget,
    "mla_claim": mla_claim,
    "mla_step": mla_step,
    "mla_chunks": mla_chunks,
    "mla_merged": mla_merged,
    "mla_wrong": mla_wrong,
    "mla_rounding": mla_rounding,
}


def flow(form: str) -> dict[str, list[tuple[int, ...]]]:
    """Shapes in a step of one token on five, as the layer meets them.

    `made` are keys and values that stand in no cache: made at this step.
    `asked` is the query that attention gets.
    """
    layer, cache = attnref.MultiHeadLatentAttention(**SMALL), attnref.KVCache(6)
    calls: list[tuple[Tensor, ...]] = []

    def watched(
        q: Tensor, k: Tensor, v: Tensor, *a: object, **b: object
    ) -> Tensor:
        out = attnref.sdpa(q, k, v, *a, **b)  # type: ignore[arg-type]
        calls.append((q, k, v, out))
        return out

    with patch.object(mla, "sdpa", watched), torch.no_grad():
        layer(torch.zeros(1, 5, 96), cache=cache, form=form)
        layer(torch.zeros(1, 1, 96), cache=cache, form=form)
    q, k, v, out = (tuple(t.shape[1:]) for t in calls[-1])
    cached = [tuple(t.shape[1:]) for t in cache.stored]
    H, Dr = SMALL["n_heads"], SMALL["qk_rope_head_dim"]
    expanded = k[0] > 1 and k not in cached
    return {
        "query": [(H, 1, SMALL["qk_nope_head_dim"] + Dr)],
        "cache": cached,
        "made": [k, v] if expanded else [],
        "attention": [out],
        "heads": [(H, 1, SMALL["v_head_dim"])],
        "asked": [q],
    }


BARS: dict[str, Callable[[], Tensor]] = {"budget": budget}
FLOWS = {form: partial(flow, form) for form in FORMS}
