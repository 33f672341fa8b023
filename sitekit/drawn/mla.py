"""What the three forms of MLA cache, compared with MHA, GQA and MQA."""

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

import attnref
from attnref.numbers.cost import mla_cost
from attnref.numbers.kv_memory import kv_bytes
from attnref.released.specs import find_model
from sitekit.markdown.render import Row, Word
from sitekit.markdown.tables import code

FORMS = ("expanded", "latent", "absorbed")
HEAD = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
V3: dict[str, Any] = {"d_model": 7168, "n_heads": 128, **HEAD}
V3 |= {"kv_lora_rank": 512, "q_lora_rank": 1536}
V3_LAYERS = 61
WIDTHS = {n: V3[n] for n in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")}


def v3() -> attnref.MultiHeadLatentAttention:
    """The layer on the meta device, to count its weights: nothing runs there,
    since torch would import its compiler for the first call."""
    with torch.device("meta"):
        return attnref.MultiHeadLatentAttention(**V3)


@cache
def narrow() -> attnref.MultiHeadLatentAttention:
    """A layer of a narrow model, in which the same heads cache as much."""
    sizes = V3 | {"d_model": 8, "q_lora_rank": None}
    return attnref.MultiHeadLatentAttention(**sizes)


@cache
def absorbed() -> tuple[Tensor, Tensor]:
    """The merged weights of one head."""
    with torch.no_grad():
        layer = attnref.MultiHeadLatentAttention(**V3 | {"n_heads": 1})
        return attnref.absorbed_weights(layer)


def stored(layer: Any, **options: Any) -> attnref.KVCache:
    """A cache with what a layer stores of one token, in bfloat16."""
    cache = attnref.KVCache(1)
    x = torch.zeros(1, 1, layer.d_model, dtype=torch.bfloat16)
    with torch.no_grad():
        layer.bfloat16()(x, cache=cache, **options)
    return cache


def caches() -> Iterator[Row]:
    """What each form caches per token of DeepSeek-V3."""
    for form in FORMS:
        cache = stored(narrow(), form=form)
        shapes = [(t.shape[1], t.shape[3]) for t in cache.stored]
        sizes = cache.nbytes // 2, cache.nbytes, cache.nbytes * V3_LAYERS
        yield [Word(form), code(*shapes), *(f"{n:,}" for n in sizes)]


def _elements(*widths: tuple[int, int]) -> int:
    """Elements per token in a cache of tensors with these (heads, width)."""
    cache = attnref.KVCache(1)
    cache.append(*(torch.zeros(1, heads, 1, width) for heads, width in widths))
    return cache.nbytes // 4


def _sizes() -> dict[str, int]:
    """Elements per token of MHA, GQA-8, MLA and MQA with heads of 128."""
    pairs = {"mha": 128, "gqa8": 8, "mqa": 1}
    sizes = {name: _elements((K, 128), (K, 128)) for name, K in pairs.items()}
    return sizes | {"mla": _elements((1, 576))}


def compared() -> Iterator[Row]:
    sizes: dict[str, float] = {**_sizes(), "gqa": 2.25 * _sizes()["mqa"]}
    sizes["expanded"] = _elements((128, 192), (128, 128))
    sizes["wide"] = _elements((1, 512 + 128))
    for name in ("mha", "expanded", "gqa8", "gqa", "wide", "mla", "mqa"):
        n = sizes[name]
        yield [Word(name), f"{n:,.0f}", f"{n / sizes['mla']:.3g}"]


def claim() -> Iterator[Row]:
    dense, v2 = 95 * _sizes()["gqa8"] * 2, 60 * _sizes()["mla"] * 2
    yield [Word("old"), f"{dense:,}", ""]
    for name, token_bytes in (("new", v2), ("six", v2 * 6 // 16)):
        yield [Word(name), f"{token_bytes:,}", f"{1 - token_bytes / dense:.1%}"]


def numbers() -> dict[str, object]:
    """What the text says of DeepSeek-V3, and of who compares with what."""
    sizes, H, R = _sizes(), V3["n_heads"], V3["kv_lora_rank"]
    _, architecture, six_bits = (share for *_, share in claim())
    token, of_mha = kv_bytes(find_model("deepseek-v3"), 1), H * (128 + 128)
    expanded, absorbed = (mla_cost(**V3, form=f) for f in ("expanded", "absorbed"))
    return {
        "of_heads": f"{of_mha:,}",
        "of_mha": f"{of_mha:,}".replace(",", "{,}"),
        "entry_bytes": 2 * absorbed.cached,
        "layers": V3_LAYERS,
        "token": token,
        "times": 2 * of_mha * V3_LAYERS / token,
        "products": f"{2 * R + 64:,}".replace(",", "{,}"),
        "expanded_products": 192 + 128,
        "larger": expanded.cached / absorbed.cached,
        "entry": sizes["mla"],
        "latent_products": R * (128 + 128) + 128 + 64 + 128,
        "absorbed_products": 2 * R + 64,
        "wider": (R + 128) / sizes["mla"] - 1,
        "groups": sizes["mla"] / sizes["mqa"],
        "from_tokens": math.ceil(attnref.crossover(**WIDTHS)),
        "llama": 2 * 32 * 128 / sizes["mla"],
        "llama_saves": 1 - sizes["mla"] / (2 * 32 * 128),
        "architecture": architecture,
        "six_bits": six_bits,
        "on_each_of_8": sizes["gqa8"] // 8,
        "yarn": (0.1 * math.log(40) + 1) ** 2,
    }
