"""Right in bfloat16 and float16 over 4,000 tokens: whatever can be copied.

A state, an angle of RoPE, a distance of ALiBi or a running sum that is kept in
half precision is wrong far into a text, not at its beginning. Written files are
tried in released/oracles/test_half_precision.py.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

import attnref
from attnref.plain import (
    alibi,
    attention,
    flash,
    gated_delta,
    masks,
    merge,
    order,
    ranks,
    relay,
    ring,
    ring_attention,
    rope,
    scaling,
    sinks,
    softmax,
    tensor_parallel,
    ulysses,
    window,
)
from tests.kit import plain
from tests.kit.layers import C, E, H
from tests.kit.plain import CHOOSING, FILES, FORMS, cache_of
from tests.kit.rounding import (
    LENGTH,
    SPAN,
    growth,
    in_half_precision,
    parsed,
    parts,
    slow,
)
from tests.variants import LAYERS, SERVING, built, needs, run, takes


def read(form, x):
    if "context" in plain.parameters(form):
        return form(x, x.roll(1, dims=1))
    cache = cache_of(form, LENGTH)
    if cache is None:
        return form(x)
    each = parts(x, state=hasattr(cache, "state"))
    return torch.cat([form(part, cache) for part in each], dim=1)


@in_half_precision(
    FORMS,
    """
    gqa bfloat16
    gated_delta bfloat16
    kda float16
    lightning, last bfloat16
    mamba2 bfloat16
    """,
)
def test_a_plain_form_rounds_late_tokens_as_early_ones(case):
    name, dtype = parsed(case)
    form = slow(FORMS[name]())
    assert growth(form, read, dtype, plain.E, choosing=name in CHOOSING) <= 3


def causal(q, k):
    return masks.causal_mask(q.shape[2], k.shape[2])


def split(q, k, v, mask):
    """By parts of the keys that are merged."""
    keys = k.split(700, 2), v.split(700, 2), mask.split(700, -1)
    results = [flash.flash(q, *part) for part in zip(*keys, strict=True)]
    return merge.merge(*zip(*results, strict=True))[0]


def ringed(q, k, v, _):
    cache, n = ring.RingKVCache(1000), q.shape[2]
    cache.append(k[:, :, :-n], v[:, :, :-n])
    k, v, at = cache.append(k[:, :, -n:], v[:, :, -n:])
    seen = ring.sees(torch.arange(cache.length - n, cache.length), at, 1000)
    return attention.attention(q, k, v, seen)


def turned(q, k, v, mask, turn):
    at = torch.arange(k.shape[2])
    q, k = turn(q, at[-q.shape[2] :]), turn(k, at)
    return attention.attention(q, k, v, mask)


def scaled(x, at):
    f, size = scaling.yarn(scaling.frequencies(x.shape[-1]), 4.0, 1024)
    return scaling.rotate(x, at, f, size)


def ordered(q, k, v, mask):
    """Its turn is called for the queries, and then for the keys."""
    at = torch.arange(k.shape[2])
    ats = iter((at[-q.shape[2] :], at))
    ones, logits = q.new_ones(q.shape[-1]), q.new_tensor([-1.0, 4.0])
    parts = q, k, v, torch.zeros_like(q), ones, ones
    turn = lambda x: rope.rope(x, next(ats))  # noqa: E731
    return order.todays_heads(*parts, turn, 30.0, logits, mask)


def weights(q, k, mask):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.masked_fill(~mask, -torch.inf)


def biased(q, k, v, mask):
    bias = alibi.alibi(q.shape[1], q.shape[2], k.shape[2])
    return alibi.biased_attention(q, k, v, bias, 30.0, mask)


def sunk(q, k, v, mask):
    logits = q.new_tensor([-1.0, 4.0])
    return sinks.add_sinks(*flash.flash(q, k, v, mask), logits)[0]


# By file: attention of q, k, v under a mask.
FUNCTIONS = {
    "attention": attention.attention,
    "softmax": lambda q, k, v, m: softmax.softmax(weights(q, k, m)) @ v,
    "softmax, online": lambda q, k, v, m: (
        softmax.online_softmax(weights(q, k, m), 16) @ v
    ),
    "flash": lambda *qkvm: flash.flash(*qkvm, tile=(64, 16))[0],
    "merge": split,
    "alibi": biased,
    "sinks": lambda q, k, v, m: sinks.attention_with_sinks(
        q, k, v, q.new_tensor([-1.0, 4.0]), m
    ),
    "sinks, added": sunk,
    "rope": partial(turned, turn=rope.rope),
    "scaling": partial(turned, turn=scaled),
    "order": ordered,
    "window": lambda q, k, v, _: window.window_attention(q, k, v, 1000),
    "ring": ringed,
}


@in_half_precision(
    FUNCTIONS,
    """
    alibi bfloat16
    flash bfloat16
    rope float16
    softmax, online bfloat16
    """,
)
def test_a_plain_function_rounds_late_tokens_as_early_ones(case):
    """Of 2 heads, whose values do not cancel each other."""
    name, dtype = parsed(case)

    def read(layer, x):
        q, k, v = layer(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        outs = []
        for n in range(0, x.shape[1], SPAN):
            end = min(n + SPAN, x.shape[1])
            new = q[:, :, n:end], k[:, :, :end], v[:, :, :end] + 1
            outs.append(FUNCTIONS[name](*new, causal(*new[:2])))
        return torch.cat(outs, dim=2).transpose(1, 2)

    layer = slow(nn.Linear(E, 3 * 2 * 8, bias=False))
    layer.weight.data *= 3**0.5  # scores of 1
    assert growth(layer, read, dtype, E) <= 3


class OnRanks(nn.Module):
    """Projections, and what several ranks compute of them: threads here, four
    of them if their number divides the text."""

    def __init__(self, work, *widths):
        super().__init__()
        self.work = work
        self.projections = nn.ModuleList(
            nn.Linear(E, width, bias=False) for width in widths
        )

    def forward(self, x):
        n = 1 if x.shape[1] % 8 else 4
        return self.work(self.projections, x, n)


def heads_of(x, projections):
    return [p(x).unflatten(2, (-1, 8)).transpose(1, 2) for p in projections]


def by_tokens(attend):
    def work(projections, x, n):
        q, k, v = heads_of(x, projections)
        v = v + 1  # so that they do not cancel each other
        placed = ring_attention.place(x.shape[1], n)

        def one(group):
            positions = placed[group.rank]
            parts = (y[:, :, positions] for y in (q, k, v))
            return attend(*parts, positions, group)

        outs = ranks.on_threads(torch.no_grad()(one), n)
        return ring_attention.join(outs, placed).transpose(1, 2)

    return work


def by_heads(projections, x, n):
    q, k, v, o = (p.weight for p in projections)

    def one(group):
        parts = [tensor_parallel.rows(w, 4, group) for w in (q, k, v)]
        parts.append(tensor_parallel.columns(o.mT, 4, group))
        return tensor_parallel.gqa(x, *parts, 8, group)

    return ranks.on_threads(torch.no_grad()(one), n)[0]


def relayed(projections, x, n):
    """States that forget in ten to ten thousand tokens."""
    wide = torch.promote_types(x.dtype, torch.float32)
    q, k, v = (y.to(wide) for y in heads_of(x, projections))
    k = F.normalize(k, dim=-1)
    rates = torch.logspace(-4, -1, 4, dtype=wide)[:, None]
    decay = -rates.expand(*k.shape[:3])
    beta = torch.full_like(decay, 0.1)
    texts = [y.split(y.shape[2] // n, dim=2) for y in (q, k, v, decay, beta)]

    def one(group):
        parts = [y[group.rank] for y in texts]
        return relay.relay(gated_delta.delta_rule, *parts, group=group)[0]

    outs = ranks.on_threads(torch.no_grad()(one), n)
    return torch.cat(outs, dim=2).transpose(1, 2).to(x.dtype)


RANKS = {
    "ring_attention": partial(
        OnRanks, by_tokens(ring_attention.ring_attention), 32, 16, 16
    ),
    "ulysses": partial(OnRanks, by_tokens(ulysses.ulysses), 32, 16, 16),
    "tensor_parallel": partial(OnRanks, by_heads, 32, 32, 32, 32),
    "relay": partial(OnRanks, relayed, 32, 32, 32),
}


@in_half_precision(
    RANKS,
    """
    ring_attention bfloat16
    tensor_parallel float16
    relay bfloat16
    """,
)
def test_several_ranks_round_late_tokens_as_early_ones(case):
    name, dtype = parsed(case)
    form = slow(RANKS[name]())
    assert growth(form, read, dtype, E) <= 3


# They compute nothing of which rounding could grow: bools, what was stored or
# sent, a single token, a loss, a share, and bits of which rounding is the
# subject; or what MQA does.
WITHOUT = {"masks", "kv_cache", "paged", "sample", "quantised", "mha_cached"}
WITHOUT |= {"ranks", "index_loss", "low_bits", "delta_backward"}
WITHOUT |= {"radix", "recall"}


def test_each_plain_form_is_tried():
    tried = {name.split(",")[0] for name in (*FORMS, *FUNCTIONS, *RANKS)}
    assert tried | WITHOUT == {*FILES} and not tried & WITHOUT


CASES = {
    f"{name}, {n}": (name, options)
    for name, variant in LAYERS.items()
    for n, options in enumerate(variant.options)
}
SOME_CORES = {
    "fused": attnref.fused,
    "flash": attnref.flash,
    "split_kv": attnref.split_kv,
}
ALIBI = attnref.Scores(bias=attnref.Alibi(H))
CASES |= {"gqa, alibi": ("gqa", {"scores": ALIBI})}
CASES |= {
    f"gqa, {core}": ("gqa", {"rope_theta": 1e4, "attend": attend})
    for core, attend in SOME_CORES.items()
}


@in_half_precision(CASES, "mamba2, 0 float16")
def test_a_layer_rounds_late_tokens_as_early_ones(case):
    layer, dtype = parsed(case)
    name, options = CASES[layer]
    [make, *_] = SERVING[name].values()

    def read(layer, x):
        context = [x.repeat(1, 1, 2)[..., :C]] if takes(name, "context") else []
        each = parts(x, state=needs(name) == "state")
        sizes = tuple(part.shape[1] for part in each)
        return run(name, layer, (x, *context), sizes, make(LENGTH))

    layer = slow(built(name, **options))
    choosing = bool(LAYERS[name].choosing)
    assert growth(layer, read, dtype, E, choosing=choosing) <= 3
