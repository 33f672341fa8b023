"""Costs from sizes alone, against layers that run and are counted."""

import itertools
import operator
from fractions import Fraction

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnref import (
    GroupedQueryAttention,
    KVCache,
    MultiHeadLatentAttention,
    crossover,
)
from attnref.numbers.cost import Cost, attention_cost, cross_cost, mla_cost
from sitekit.drawn.mla import V3
from tests.kit.layers import DN, DV, LATENT, D, E, H, Q, R, S
from tests.variants import LAYERS, VARIANTS, built, every_mixer, takes

CALLS = [
    {"batch": 1, "new": 1, "past": 0},
    {"batch": 1, "new": 1, "past": 12},
    {"batch": 3, "new": 7, "past": 0},
    {"batch": 3, "new": 5, "past": 11},
    {"batch": 2, "new": 131, "past": 1},
]


@torch.no_grad()
def counted(layer, make=KVCache, *, batch, new, past, context=None, **options):
    """Parameters, FLOPs, and elements of the keys and values that are read, of
    a layer that runs; and how many cached tokens the new ones are multiplied
    with, where the cache says that it is not all.
    """
    cache, first = make(context or past + new), ()
    if context:
        first = (torch.zeros(batch, context, layer.d_context),)
    if past:
        x = torch.zeros(batch, past, layer.d_model)
        layer(x, *first, cache=cache, **options)
        first = ()
    at = cache.positions(new, torch.device("cpu"))
    with FlopCounterMode(display=False) as count:
        x = torch.zeros(batch, new, layer.d_model)
        layer(x, *first, cache=cache, **options)
    parameters = sum(p.numel() for p in layer.parameters())
    if "append" not in cache.can:
        elements = sum(t.numel() for t in cache.stored)
        return (parameters, count.get_total_flops(), elements), past
    slots = cache.stored[0].shape[2]
    keys = slots if at is None else len(at)
    read = cache.nbytes // 4 // slots * keys
    met = past if at is None else keys - new
    return (parameters, count.get_total_flops(), read), met


def agree(name, cost, want, options, call):
    """What a cost says, and what was counted: parameters, FLOPs, elements."""
    says = dict(zip(("parameters", "flops", "cached"), want, strict=True))
    wrong = [
        f"{field} is {getattr(cost, field)}, counted were {number}"
        for field, number in says.items()
        if getattr(cost, field) != number
    ]
    assert not wrong, (
        f"the cost of {name} with {options} for {call}: {'; '.join(wrong)}. "
        f"It is `cost=` of VARIANT in the test file of {name!r}: mend the "
        "function of attnref/numbers/cost.py that it names, or name another"
    )


def spelled(name):
    """The options of the constructor that a cost depends on, in all ways."""
    ways = {
        "bias": (False, True),
        "o_bias": (None, False, True),
        "q_lora_rank": (None, Q),
    }
    ways = {
        word: tried
        for word, tried in ways.items()
        if takes(name, word) and word not in LAYERS[name].sizes
    }
    for chosen in itertools.product(*ways.values()):
        yield dict(zip(ways, chosen, strict=True))


@every_mixer
def test_the_cost_is_what_torch_counts(name, make):
    """Of a context, what is past is what has been cached; of tokens, those
    that a cache still holds, and in its empty slots holds room for."""
    wider = {"head_dim": None, "d_model": 3 * H}
    widths = ({}, wider) if takes(name, "head_dim") else ({},)
    context = {"context": S} if takes(name, "context") else {}
    for call, width in itertools.product(CALLS, widths):
        for options in spelled(name):
            layer = built(name, **options, **width)
            more = LAYERS[name].forward | context
            want, met = counted(layer, make, **call, **more)
            at = {"past": met}
            if context:
                at = context | {"cached": call["past"] > 0}
            at |= {"batch": call["batch"], "new": call["new"]}
            sizes = LAYERS[name].sizes | options | width
            cost = LAYERS[name].cost(**sizes, **at)
            agree(name, cost, want, options | width, at)
            unread = (layer.k_proj, layer.v_proj) if at.get("cached") else ()
            idle = sum(p.numel() for part in unread for p in part.parameters())
            assert cost.idle == idle, (
                f"the cost of {name} with {options}: `idle` is {cost.idle}, "
                f"but {idle} parameters are not read for {at}"
            )


@pytest.mark.parametrize(
    "call", [{"new": 1, "past": 4096}, {"new": 171, "past": 96}], ids=str
)
def test_costs_of_the_pages_are_what_torch_counts(call):
    """In the shapes of Llama-3.1-8B and of DeepSeek-V3, unallocated."""
    llama = {"d_model": 4096, "n_heads": 32}
    with torch.device("meta"):
        for K in (32, 8, 1):
            layer = GroupedQueryAttention(**llama, n_kv_heads=K)
            cost = attention_cost(**llama, n_kv_heads=K, **call)
            want, _ = counted(layer, batch=1, **call)
            agree("gqa", cost, want, {"n_kv_heads": K}, call)
        layer = MultiHeadLatentAttention(**V3)
        for form in ("expanded", "latent", "absorbed"):
            cost = mla_cost(**V3, form=form, **call)
            want, _ = counted(layer, batch=1, form=form, **call)
            agree(f"mla {form}", cost, want, {}, call)


def test_scores_and_values_are_counted_apart():
    layer, sizes = built("gqa"), VARIANTS["gqa"].sizes
    cost = attention_cost(**sizes, batch=3, new=5, past=4)
    with FlopCounterMode(display=False) as count, torch.no_grad():
        layer.q_proj(torch.zeros(3, 5, E))
        layer.k_proj(torch.zeros(3, 5, E))
        layer.v_proj(torch.zeros(3, 5, E))
        layer.o_proj(torch.zeros(3, 5, H * D))
    assert cost.projections == count.get_total_flops()
    with FlopCounterMode(display=False) as count:
        torch.zeros(3, H, 5, D) @ torch.zeros(3, H, 9, D).mT
    assert cost.scores == cost.values == count.get_total_flops()


def test_fewer_key_heads_leave_the_flops_of_attention_alone():
    # --8<-- [start:heads]
    from attnref.numbers.cost import attention_cost

    shape = dict(d_model=4096, n_heads=32, past=8191)
    mha, gqa, mqa = (attention_cost(**shape, n_kv_heads=K) for K in (32, 8, 1))
    assert mha.scores == gqa.scores == mqa.scores
    assert mha.values == gqa.values == mqa.values
    assert mha.cached == 4 * gqa.cached == 32 * mqa.cached
    assert mqa.parameters / mha.parameters == 33 / 64
    # --8<-- [end:heads]
    assert [c.attention_intensity() for c in (mha, gqa, mqa)] == [1, 4, 32]


def test_a_batch_raises_the_intensity_of_matrices_and_not_of_attention():
    shape = dict(d_model=4096, n_heads=32, past=8191)
    for K in (32, 8, 1):
        for B in (1, 64):
            cost = attention_cost(**shape, n_kv_heads=K, batch=B)
            assert cost.projections == B * 2 * cost.parameters
            assert cost.attention_intensity() == 32 // K
            assert cost.attention_intensity("fp8") == 2 * 32 // K

    v3 = dict(d_model=7168, n_heads=128, kv_lora_rank=512, q_lora_rank=1536)
    v3 |= dict(qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    cost = mla_cost(**v3, past=8191)
    assert cost.attention_intensity() == Fraction(128 * 1088, 576)


def test_a_step_reads_each_weight_and_each_cached_element_once():
    cost = Cost(1000, 2000, 300, 500, 40)
    assert cost.bytes_read() == 2080
    assert cost.bytes_read("fp32") == 4160
    assert cost._replace(idle=240).bytes_read() == 1600  # 240 are not read
    assert cost.intensity() == Fraction(2800, 2080)
    assert cost.intensity("fp32") == Fraction(2800, 4160)
    assert cost.attention_intensity("int8") == 800 / 40
    assert Cost(1, 2, 3, 4, 2).bytes_read("int4") == 2  # half a byte is one


def test_the_forms_of_mla_cross_where_the_package_says():
    point = crossover(kv_lora_rank=R, qk_nope_head_dim=DN, v_head_dim=DV)
    for new, cheaper in ((1, "absorbed"), (int(2 * point), "latent")):
        flops = {
            form: mla_cost(**LATENT, form=form, new=new, past=100_000).flops
            for form in ("latent", "absorbed")
        }
        assert min(flops, key=flops.get) == cheaper


@pytest.mark.parametrize("past", [0, 1, 97, 4096, 131_072])
def test_the_forms_cross_at_any_length_of_the_cache(past):
    """By the FLOPs on both sides; with an empty cache no token is absorbed."""
    v3 = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "v_head_dim": 128}
    rest = {"d_model": 29, "n_heads": 3, "qk_rope_head_dim": 64}

    def saved(new):
        costs = (
            mla_cost(**v3, **rest, form=form, new=new, past=past)
            for form in ("latent", "absorbed")
        )
        return operator.sub(*(cost.flops for cost in costs))

    point = crossover(**v3, past=past)
    below = int(point)
    assert saved(below + 1) < 0 and (below == 0 or saved(below) > 0)
    # Between two whole numbers, too: the difference is a quadratic in T.
    a, b, c = saved(1), saved(2), saved(3)
    second = (a - 2 * b + c) / 2
    first = b - a - 3 * second
    root = second * point**2 + first * point + (a - first - second)
    assert abs(root) <= 1e-9 * max(abs(saved(1000)), 1)
    with pytest.raises(ValueError, match="past=-1 must be at least 0"):
        crossover(**v3, past=-1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"new": 0}, "new=0 must be at least 1"),
        ({"past": -1}, "past=-1 must be at least 0"),
        ({"past": 0.0}, "past is float; pass an int"),
        ({"past": None}, "past is NoneType; pass an int"),
        ({"batch": 1.0}, "batch is float"),
        ({"n_kv_heads": 4}, "n_kv_heads=4 does not divide n_heads=6"),
    ],
)
def test_sizes_that_cannot_be_are_refused(wrong, message):
    with pytest.raises((ValueError, TypeError), match=message):
        attention_cost(**{"d_model": 30, "n_heads": 6} | wrong)


def test_a_context_that_cannot_be_is_refused():
    sizes = {"d_model": 30, "n_heads": 6}
    with pytest.raises(ValueError, match="d_context=-4 must be at least 1"):
        cross_cost(**sizes, context=3, d_context=-4)
    with pytest.raises(
        ValueError, match=r"no dtype 'bf61'; did you mean bf16\?"
    ):
        cross_cost(**sizes, context=3).intensity("bf61")


def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match="form='naive' is not one of expanded"):
        mla_cost(**LATENT, form="naive")
    with pytest.raises(ValueError, match="q_lora_rank=0 must be at least 1"):
        mla_cost(**LATENT, q_lora_rank=0)


CROSS = {"d_model": 30, "n_heads": 6, "context": 13}
ONE_STEP = {"batch": 1, "new": 1}


@pytest.mark.parametrize(
    ("function", "sizes", "size"),
    [
        *((mla_cost, LATENT, size) for size in LATENT),
        *((mla_cost, LATENT, size) for size in [*ONE_STEP, "q_lora_rank"]),
        *((cross_cost, CROSS, size) for size in ["context", *ONE_STEP]),
    ],
)
def test_each_size_is_above_0(function, sizes, size):
    with pytest.raises(ValueError, match=f"^{size}=0 must be at least 1"):
        function(**sizes | {size: 0})


def test_by_default_a_cost_is_for_one_token_on_nothing():
    past = ONE_STEP | {"past": 0, "bias": False}
    small = {"d_model": 30, "n_heads": 6}
    assert attention_cost(**small) == attention_cost(**small, **past)
    assert mla_cost(**LATENT) == mla_cost(**LATENT, **past)
    cost = cross_cost(**CROSS, **ONE_STEP, cached=False, bias=False)
    assert cross_cost(**CROSS) == cost
