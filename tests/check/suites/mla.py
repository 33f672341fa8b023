"""Of MLA and its absorbed form."""

from functools import partial
from typing import Any

from torch import Tensor

from attnref.check.properties import (
    decoding_is_the_full_pass,
    full_cache_refuses,
    is_mla,
    latent_is_cached,
    module_is_called,
    order_is_seen,
    pads_change_nothing,
    refusal_changes_nothing,
    rope_is_as_published,
    yarn_scales_scores,
)
from tests.check.suites.layer import (
    filled,
    refused_append,
    step_by_step,
    tokens,
)

SIZES = 24, 6, 8, 5  # R, Dn, Dr, Dv; H is 3
LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def layer(p: Any) -> Any:
    return filled(p.mla.MLA(12, 3, *SIZES).double())


def by_hand(p: Any, absorbed: bool) -> tuple[Any, ...]:
    """What `is_mla` needs."""
    made = layer(p)

    def run(x: Tensor) -> Any:
        return made(x, absorbed=absorbed)

    return run, dict(made.state_dict()), tokens(6, 12).double(), (3, *SIZES)


def stored(p: Any) -> tuple[Any, ...]:
    def after(x: Tensor) -> Any:
        cache = p.mla.KVCache(x.shape[1])
        layer(p)(x, cache)
        return [cache.stored]

    return after, tokens(2, 6, 12).double(), SIZES[0] + SIZES[2]


def hooked(p: Any) -> tuple[Any, ...]:
    made = layer(p)
    x = tokens(1, 6, 12).double()
    return lambda x: made(x, absorbed=False), made.kv_b_proj, x


def stretched(p: Any) -> tuple[float, int, float, float]:
    """A layer stretched 40 times by YaRN."""
    yarn = p.Yarn(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
    rope = p.Rope(scaling=yarn)
    sizes = dict(zip(LATENT, SIZES, strict=True))
    made = p.MultiHeadLatentAttention(d_model=12, n_heads=3, rope=rope, **sizes)
    return made.scale, 6 + 8, 40.0, 1.0


def decoded(absorbed: bool) -> Any:
    """A layer that reads its text in chunks."""

    def of(p: Any) -> tuple[Any, ...]:
        run = partial(layer(p), absorbed=absorbed)
        return run, lambda: p.mla.KVCache(6), tokens(2, 6, 12).double()

    return of


def padded(p: Any) -> tuple[Any]:
    return step_by_step(p.mla, filled(p.mla.MLA(8, 2, *SIZES)))


def rotated(p: Any) -> tuple[Any, ...]:
    return lambda x, at: p.mla.rope(x, at, 100.0), 100.0, True


SUITES = {
    "plain.mla": (
        (is_mla, lambda p: by_hand(p, absorbed=False)),
        (is_mla, lambda p: by_hand(p, absorbed=True)),
        (order_is_seen, lambda p: (layer(p), tokens(2, 6, 12).double())),
        (rope_is_as_published, rotated),
        (decoding_is_the_full_pass, decoded(absorbed=False)),
        (decoding_is_the_full_pass, decoded(absorbed=True)),
        (pads_change_nothing, padded),
        (latent_is_cached, stored),
        (module_is_called, hooked),
        (full_cache_refuses, lambda p: (p.mla.KVCache,)),
        (refusal_changes_nothing, lambda p: refused_append(p.mla.KVCache)),
    ),
    "layers.mla": ((yarn_scales_scores, stretched),),
}
