"""Every layer and every cache, once: the laws of the tests loop over these.

A new layer is one entry of `VARIANTS` (MLA has one for each form), a new cache
one of `CACHES`, a new core one of `CORES`. `laws/test_laws.py` names what is
missing here, and holds the laws that each entry is then under; `test_kv_cache`,
`test_positions`, `test_block`, `test_bad_input`, `test_cost`,
`test_shape_comments` and the oracles loop over the same. Which cache serves
which layer is read from the rules of both: see `SERVING`. Laws that depend on
what a token sees ask `seen`.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import flex_attention

from attnref import (
    Attend,
    Cache,
    CrossAttention,
    GroupedQueryAttention,
    GrowingKVCache,
    KVCache,
    Llama3,
    MultiHeadAttention,
    MultiHeadLatentAttention,
    MultiQueryAttention,
    RingKVCache,
    Rope,
    Rule,
    Yarn,
    flash,
    flex,
    fused,
    padding_mask,
    sdpa,
    split_kv,
)
from attnref.core.masks import rule_of
from attnref.numbers.cost import Cost, attention_cost, cross_cost, mla_cost
from attnref.numbers.shapes import Full, Group, Mla

# Prime, and no two alike, but for H = 2 K, and for D and DR, of which RoPE
# wants pairs. S is the length of a context, C its width.
B, T, S, E, C, H, K, D = 3, 7, 11, 13, 17, 10, 5, 4
R, DN, DR, DV, Q = 41, 19, 8, 23, 29

# Each makes a cache for so many tokens, of which it may keep a part.
CACHES: dict[str, Callable[[int], Cache]] = {
    "room": KVCache,
    "growing": lambda max_len: GrowingKVCache(),
    "ring": lambda max_len: RingKVCache(4),
}
# What a layer may be given as `attend=`; the tiles are smaller than the inputs.
CORES: dict[str, Attend] = {
    "sdpa": sdpa,
    "fused": fused,
    "flash": partial(flash, tile=(2, 3)),
    "flex": partial(flex, compiled=False),
    "split_kv": partial(split_kv, splits=3),
}
NO_GRADIENTS = {"flex"}  # on a CPU, nor dropout
# Else PyTorch traces even the form that is not compiled, for each shape anew.
flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
NOTHING: dict[str, Any] = {}


class Variant(NamedTuple):
    """A layer, and what the laws need to know of it.

    Whether it takes positions or reads a context is not said here but read
    from its signature, see `takes`; what its tokens see, from the layer that
    was built, see `rule`.
    """

    layer: type[nn.Module]
    sizes: dict[str, int]  # to the constructor
    cost: Callable[..., Cost]  # of these sizes, and of a call
    group: Group  # what it needs of the past, in the words of attnref.specs
    told: dict[str, Any] = NOTHING  # to forward
    options: tuple[dict[str, Any], ...] = (NOTHING,)  # to the constructor
    # Key heads beside so many query heads in so many groups, if the layer
    # projects to heads as Llama's does: transformers and torch are oracles.
    kv_heads: Callable[[int, int], int] | None = None


def _kept(kv_heads: int, head_dim: int = D, v_head_dim: int = D) -> Full:
    return Full(
        layers=1,
        q_heads=H,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
    )


ONE_LATENT = Mla(layers=1, q_heads=H, kv_lora_rank=R, qk_rope_head_dim=DR)
HEADS = {"d_model": E, "n_heads": H, "head_dim": D}
LATENT = {"d_model": E, "n_heads": H, "kv_lora_rank": R}
LATENT |= {"qk_nope_head_dim": DN, "qk_rope_head_dim": DR, "v_head_dim": DV}
PARTIAL = Rope(100.0, width=2, scaling=Llama3(4.0, 1.0, 4.0, 16))
ROPE = ({}, {"rope": PARTIAL, "bias": True})
STRETCHED = Rope(
    layout="interleaved",
    scaling=Yarn(4.0, 64, mscale=0.707, mscale_all_dim=0.5),
)
VARIANTS = {
    "mha": Variant(
        MultiHeadAttention,
        HEADS,
        attention_cost,
        _kept(H),
        options=ROPE,
        kv_heads=lambda heads, groups: heads,
    ),
    "mqa": Variant(
        MultiQueryAttention,
        HEADS,
        partial(attention_cost, n_kv_heads=1),
        _kept(1),
        options=ROPE,
        kv_heads=lambda heads, groups: 1,
    ),
    "gqa": Variant(
        GroupedQueryAttention,
        HEADS | {"n_kv_heads": K},
        attention_cost,
        _kept(K),
        options=ROPE,
        kv_heads=lambda heads, groups: groups,
    ),
    "cross": Variant(
        CrossAttention,
        HEADS | {"n_kv_heads": K, "d_context": C},
        cross_cost,
        _kept(K),
        options=({}, {"bias": True}),
    ),
    **{
        f"mla {form}": Variant(
            MultiHeadLatentAttention,
            LATENT,
            partial(mla_cost, form=form),
            _kept(H, DN + DR, DV) if form == "expanded" else ONE_LATENT,
            told={"form": form},
            options=(
                {},
                {"q_lora_rank": Q, "bias": True},
                {"rope": Rope()},
                {"rope": STRETCHED, "q_lora_rank": Q},
            ),
        )
        for form in ("expanded", "latent", "absorbed")
    },
}


def takes(name: str, word: str) -> bool:
    """Whether the layer, or its forward, has a parameter of that name."""
    layer = VARIANTS[name].layer
    signatures = map(inspect.signature, (layer, layer.forward))
    return any(word in signature.parameters for signature in signatures)


DECODERS = [name for name in VARIANTS if not takes(name, "context")]
READERS = [name for name in VARIANTS if name not in DECODERS]
# One entry a class: where the form is its own choice.
ONCE = [*{VARIANTS[name].layer: name for name in reversed(VARIANTS)}.values()]
ONCE.reverse()


def built(name: str, **options: Any) -> nn.Module:
    """The layer as it is made, in float32."""
    return VARIANTS[name].layer(**VARIANTS[name].sizes | options)


def rule(layer: nn.Module) -> Rule:
    """What its tokens see: everything, if it has no `causal`."""
    return rule_of(getattr(layer, "causal", False))


def seen(rule: Rule, length: int) -> Tensor:
    """Which of so many tokens, a row each, sees which: `(length, length)`."""
    at = torch.arange(length)
    return rule(at[:, None], at).expand(length, length)


# By the name of a layer, the caches that keep all it needs, by theirs.
SERVING: dict[str, dict[str, Callable[[int], Cache]]] = {
    name: {
        cache: make
        for cache, make in CACHES.items()
        if make(T).keeps.covers(rule(built(name)))
    }
    for name in VARIANTS
}

each_variant = pytest.mark.parametrize("name", VARIANTS)
each_decoder = pytest.mark.parametrize("name", DECODERS)
each_layer = pytest.mark.parametrize("name", ONCE)
each_core = pytest.mark.parametrize("core", [*CORES][1:])  # beside `sdpa`
each_cache = pytest.mark.parametrize("make", CACHES.values(), ids=CACHES)


def each_cache_of(name: str, *others: None) -> pytest.MarkDecorator:
    """Each that serves the layer, and None for no cache, if it is given."""
    makes = SERVING[name]
    return pytest.mark.parametrize(
        "make",
        [*others, *makes.values()],
        ids=["none"] * len(others) + [*makes],
    )


def pairs(names: Iterable[str]) -> pytest.MarkDecorator:
    """Each of the layers with each cache that serves it; in `make test`, GQA,
    and the others with the first alone."""
    return pytest.mark.parametrize(
        ("name", "make"),
        [
            pytest.param(
                name,
                make,
                id=f"{name}, {cache}",
                marks=pytest.mark.audit if i and name != "gqa" else (),
            )
            for name in names
            for i, (cache, make) in enumerate(SERVING[name].items())
        ],
    )


every_pair = pairs(VARIANTS)


def sharp(module: nn.Module) -> nn.Module:
    """With weights with which softmax decides: flat ones hide mistakes."""
    for name, p in module.named_parameters():
        nn.init.normal_(p, mean=float("norm" in name), std=0.5)
    return module.double().eval()


def variant(name: str, **options: Any) -> nn.Module:
    return sharp(built(name, **options))


def tokens(*shape: int) -> Tensor:
    return torch.randn(*(shape or (B, T, E)), dtype=torch.float64)


def inputs(name: str, length: int = T, rows: int = B) -> tuple[Tensor, ...]:
    """What the layer reads: `x`, and a context where it takes one."""
    x = tokens(rows, length, E)
    return (x, tokens(rows, S, C)) if takes(name, "context") else (x,)


def run(
    name: str,
    layer: Callable[..., Tensor],
    given: tuple[Tensor, ...],
    chunks: tuple[int, ...] | None = None,
    cache: Cache | None = None,
    valid: Tensor | None = None,
    positions: Tensor | None = None,
    **told: Any,
) -> Tensor:
    """`x` chunk by chunk; a context goes with the first, and is then cached.

    `valid` is of all keys, `positions` of all tokens: each chunk is told its
    part. Without chunks it is one pass.
    """
    x, *context = given
    told = VARIANTS[name].told | told
    told |= dict(zip(("context",), context, strict=False))
    outs = []
    for start, end in pairwise(accumulate(chunks or x.shape[1:2], initial=0)):
        if valid is not None:
            seen = valid if takes(name, "context") else valid[:, :end]
            told["mask"] = padding_mask(seen)
        if positions is not None:
            told["positions"] = positions[..., start:end]
        outs.append(layer(x[:, start:end], cache=cache, **told))
        told.pop("context", None)
    return torch.cat(outs, dim=1)
