"""Every layer and every cache, found where they are tested: the properties of
the tests loop over these.

A layer says in its own test file, as `VARIANT = Variant(...)`, what tests need
to know of it, or in `VARIANTS` if it has several forms; a cache says in
`CACHES` how it is made. No list names them: `reference/layers` and
`reference/caches` are read. What a layer is under is read from what it offers:
all properties of a mixer, those of attention if it takes `attend=`, and those
of each cache that does what it needs. Cores are those of `tests/cores.py`.
"""

import inspect
from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnref import Cache, Rule, padding_mask
from attnref.core.masks import rule_of
from tests.cores import ATTEND
from tests.kit.declared import declared
from tests.kit.layers import (
    B,
    C,
    E,
    S,
    T,
    Variant,
    sharp,
    tokens,
)

LAYERS: dict[str, Variant] = declared("layers", "VARIANT")
# Each makes a cache for so many tokens, of which it may keep a part.
CACHES: dict[str, Callable[[int], Cache]] = declared("caches", "CACHE")
APPENDING = {n: make for n, make in CACHES.items() if "append" in make(1).can}


def takes(name: str, word: str) -> bool:
    """Whether the layer, or its forward, has a parameter of that name."""
    layer = LAYERS[name].layer
    signatures = map(inspect.signature, (layer, layer.forward))
    return any(word in signature.parameters for signature in signatures)


def once(names: Iterable[str]) -> list[str]:
    """One entry a class: where the form is its own choice."""
    last_first = {LAYERS[name].layer: name for name in reversed([*names])}
    return [*last_first.values()][::-1]


READERS = [name for name in LAYERS if takes(name, "context")]
MIXERS = [name for name in LAYERS if name not in READERS]
VARIANTS = {name: v for name, v in LAYERS.items() if takes(name, "attend")}
DECODERS = [name for name in MIXERS if name in VARIANTS]
ONCE = once(VARIANTS)


def built(name: str, **options: Any) -> nn.Module:
    """The layer as it is made, in float32."""
    return LAYERS[name].layer(**LAYERS[name].sizes | options)


def rule(layer: nn.Module) -> Rule:
    """What its tokens see: everything, if it has no `causal`."""
    return rule_of(getattr(layer, "causal", False))


def seen(rule: Rule, length: int) -> Tensor:
    """Which of so many tokens, a row each, sees which: `(length, length)`."""
    at = torch.arange(length)
    return rule(at[:, None], at).expand(length, length)


def needs(name: str) -> str:
    """What the layer needs of a cache: `"append"`, or a `"state"`."""
    return getattr(LAYERS[name].layer, "needs", "append")


def serves(make: Callable[[int], Cache], name: str) -> bool:
    """Whether such a cache keeps all that a layer needs."""
    cache, wanted = make(T), needs(name)
    if wanted not in cache.can:
        return False
    return wanted != "append" or cache.keeps.covers(rule(built(name)))


# By the name of a layer, the caches that keep all it needs, by theirs.
SERVING: dict[str, dict[str, Callable[[int], Cache]]] = {
    name: {cache: make for cache, make in CACHES.items() if serves(make, name)}
    for name in LAYERS
}

each_variant = pytest.mark.parametrize("name", VARIANTS)
each_mixer = pytest.mark.parametrize("name", LAYERS)
each_decoder = pytest.mark.parametrize("name", DECODERS)
each_layer = pytest.mark.parametrize("name", ONCE)
each_core_in_a_layer = pytest.mark.parametrize(
    "core", [name for name in ATTEND if name != "sdpa"]
)
each_cache = pytest.mark.parametrize("make", APPENDING.values(), ids=APPENDING)
every_cache = pytest.mark.parametrize("make", CACHES.values(), ids=CACHES)


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


every_pair = pairs(VARIANTS)  # of attention
every_mixer = pairs(LAYERS)


def variant(name: str, **options: Any) -> nn.Module:
    return sharp(built(name, **options))


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
    **options: Any,
) -> Tensor:
    """`x` chunk by chunk; a context goes with the first, and is then cached.

    `valid` is of all keys, `positions` of all tokens: each chunk is told its
    part. Without chunks it is one pass.
    """
    x, *context = given
    options = LAYERS[name].forward | options
    options |= dict(zip(("context",), context, strict=False))
    outs = []
    for start, end in pairwise(accumulate(chunks or x.shape[1:2], initial=0)):
        if valid is not None:
            seen = valid if takes(name, "context") else valid[:, :end]
            options["mask"] = padding_mask(seen)
        if positions is not None:
            options["positions"] = positions[..., start:end]
        outs.append(layer(x[:, start:end], cache=cache, **options))
        options.pop("context", None)
    return torch.cat(outs, dim=1)
