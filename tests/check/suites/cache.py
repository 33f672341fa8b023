"""Of RoPE, positions and caches."""

from typing import Any

from torch import Tensor

from attnref.check.properties import (
    cache_is_a_list,
    cache_keeps_no_graph,
    caches_are_apart,
    decoding_is_the_full_pass,
    distances_alone_count,
    frequencies_are_as_published,
    full_cache_refuses,
    longer_text_is_read_again,
    positions_count_tokens,
    refusal_changes_nothing,
    rejected_tokens_leave_nothing,
    ring_is_a_window,
    rope_is_as_published,
)
from tests.check.suites.layer import filled, refused_append, tokens

SIZES = {"d_model": 16, "n_heads": 4, "n_kv_heads": 2, "rope_theta": 100.0}


def placed(package: Any) -> tuple[Any, Tensor]:
    """A layer that is told positions, and an input."""
    layer = filled(package.GroupedQueryAttention(**SIZES))
    return lambda x, at: layer(x, positions=at), tokens(3, 6, 16)


def growing(package: Any) -> tuple[Any, ...]:
    layer = filled(package.GroupedQueryAttention(**SIZES))
    return (
        lambda x, cache=None: layer(x, cache=cache),
        package.GrowingKVCache,
        tokens(2, 6, 16),
    )


def with_plain_cache(p: Any) -> tuple[Any, ...]:
    layer = filled(p.gqa.GQA(8, 2, 1))
    return layer, lambda: p.kv_cache.KVCache(9), tokens(3, 6, 8)


def half(p: Any) -> tuple[Any, ...]:
    layer = filled(p.gqa.GQA(8, 2, 1)).bfloat16()
    return layer, lambda: p.kv_cache.KVCache(9), tokens(3, 6, 8).bfloat16()


def ring(p: Any) -> tuple[Any, ...]:
    """A layer with a window of three tokens and the first, and its ring."""
    window = p.Window(3, 1)
    layer = filled(p.GroupedQueryAttention(**SIZES, causal=window))
    return (
        lambda x, cache=None: layer(x, cache=cache),
        lambda: p.RingKVCache(3, first=1, reserve=1),
        tokens(2, 9, 16),
    )


def outgrown(p: Any) -> tuple[Any, ...]:
    """A layer whose frequencies change after four tokens."""
    rope = p.Rope(100.0, scaling=p.DynamicNtk(8.0, 4))
    sizes = {**SIZES, "rope_theta": None}
    layer = filled(p.GroupedQueryAttention(**sizes, rope=rope))
    return (
        lambda x, cache=None: layer(x, cache=cache),
        p.GrowingKVCache,
        tokens(2, 6, 16),
    )


def scaled(p: Any) -> tuple[Any, ...]:
    """The frequencies of four kinds of scaling, and YaRN's factor."""
    kinds = {
        "linear": p.PositionInterpolation(8.0),
        "ntk": p.Ntk(8.0),
        "llama3": p.Llama3(8.0, 1.0, 4.0, 4096),
        "yarn": p.Yarn(8.0, 4096),
        "step": p.Yarn(8.0, 4096, beta_fast=1.0),
    }
    return (
        lambda kind, *given: kinds[kind].slowed(*given),
        lambda: kinds["yarn"].table_scale,
    )


def plainly_scaled(p: Any) -> tuple[Any, ...]:
    """The same of the plain form."""
    kinds = {
        "linear": lambda f: p.scaling.linear(f, 8.0),
        "ntk": lambda f: p.scaling.ntk(f, 8.0),
        "llama3": lambda f: p.scaling.llama3(f, 8.0, 4096),
        "yarn": lambda f: p.scaling.yarn(f, 8.0, 4096)[0],
        "step": lambda f: p.scaling.yarn(f, 8.0, 4096, fast=1.0)[0],
    }
    return (
        lambda kind, f, theta: kinds[kind](f),
        lambda: p.scaling.yarn(p.scaling.frequencies(8), 8.0, 4096)[1],
    )


SUITES = {
    "plain.rope": (
        (
            rope_is_as_published,
            lambda p: (lambda x, at: p.rope.rope(x, at, 5e5), 5e5),
        ),
    ),
    "core.rope": (
        (distances_alone_count, placed),
        (positions_count_tokens, lambda p: (p.token_positions,)),
        (longer_text_is_read_again, outgrown),
    ),
    "core.scaling": ((frequencies_are_as_published, scaled),),
    "plain.scaling": ((frequencies_are_as_published, plainly_scaled),),
    "plain.ring": (
        (ring_is_a_window, lambda p: (p.ring.RingKVCache, p.ring.sees)),
    ),
    "caches.ring": (
        (decoding_is_the_full_pass, ring),
        (rejected_tokens_leave_nothing, ring),
    ),
    "plain.kv_cache": (
        (full_cache_refuses, lambda p: (p.kv_cache.KVCache,)),
        (caches_are_apart, lambda p: (p.kv_cache.KVCache,)),
        (
            refusal_changes_nothing,
            lambda p: refused_append(p.kv_cache.KVCache),
        ),
        (decoding_is_the_full_pass, with_plain_cache),
        (decoding_is_the_full_pass, half),
    ),
    "caches.kv_cache": (
        (decoding_is_the_full_pass, growing),
        (cache_is_a_list, lambda p: (lambda room: p.GrowingKVCache(),)),
        (cache_keeps_no_graph, lambda p: (lambda room: p.GrowingKVCache(),)),
    ),
}
