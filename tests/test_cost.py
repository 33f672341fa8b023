"""Costs from sizes alone, against layers that run and are counted."""

from fractions import Fraction

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnref import (
    CrossAttention,
    GroupedQueryAttention,
    KVCache,
    MultiHeadAttention,
    MultiHeadLatentAttention,
    MultiQueryAttention,
    crossover,
)
from attnref.cost import Cost, attention_cost, cross_cost, mla_cost
from sitekit.latent import V3

CALLS = [
    {"batch": 1, "new": 1, "past": 0},
    {"batch": 1, "new": 1, "past": 12},
    {"batch": 3, "new": 7, "past": 0},
    {"batch": 2, "new": 5, "past": 11},
]


@torch.no_grad()
def counted(layer, *, batch, new, past, **told):
    """Parameters, FLOPs and numbers in the cache, of a layer that runs."""
    cache = KVCache(past + new)
    if past:
        layer(torch.zeros(batch, past, layer.d_model), cache=cache, **told)
    with FlopCounterMode(display=False) as count:
        layer(torch.zeros(batch, new, layer.d_model), cache=cache, **told)
    parameters = sum(p.numel() for p in layer.parameters())
    return parameters, count.get_total_flops(), cache.nbytes // 4


def shown(cost):
    return cost.parameters, cost.flops, cost.cached


BIASES = [
    {"bias": False},
    {"bias": True},
    {"bias": True, "o_bias": False},
    {"o_bias": True},
]


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("bias", BIASES, ids=str)
@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (MultiHeadAttention, {"d_model": 30, "n_heads": 6}),
        (MultiHeadAttention, {"d_model": 30, "n_heads": 6, "head_dim": 7}),
        (
            GroupedQueryAttention,
            {"d_model": 30, "n_heads": 6, "n_kv_heads": 3, "head_dim": 7},
        ),
        (GroupedQueryAttention, {"d_model": 30, "n_heads": 6, "n_kv_heads": 2}),
        (MultiQueryAttention, {"d_model": 30, "n_heads": 6, "head_dim": 11}),
    ],
)
def test_the_cost_is_what_torch_counts(kind, sizes, bias, call):
    told = dict(sizes, n_kv_heads=1) if kind is MultiQueryAttention else sizes
    cost = attention_cost(**told, **bias, **call)
    assert shown(cost) == counted(kind(**sizes, **bias), **call)


SIZES = {
    "d_model": 34,
    "n_heads": 3,
    "kv_lora_rank": 22,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 8,
    "v_head_dim": 7,
}


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("form", ["expanded", "latent", "absorbed"])
@pytest.mark.parametrize("rank", [None, 13])
@pytest.mark.parametrize("bias", [False, True])
def test_the_cost_of_each_form_of_mla_is_what_torch_counts(
    rank, bias, form, call
):
    layer = MultiHeadLatentAttention(**SIZES, q_lora_rank=rank, bias=bias)
    cost = mla_cost(**SIZES, q_lora_rank=rank, bias=bias, form=form, **call)
    assert shown(cost) == counted(layer, form=form, **call)


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
            assert shown(cost) == counted(layer, batch=1, **call)
        layer = MultiHeadLatentAttention(**V3)
        for form in ("expanded", "latent", "absorbed"):
            cost = mla_cost(**V3, form=form, **call)
            assert shown(cost) == counted(layer, batch=1, form=form, **call)


@torch.no_grad()
@pytest.mark.parametrize("bias", BIASES, ids=str)
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    "extra", [{}, {"n_kv_heads": 2, "d_context": 19, "head_dim": 7}]
)
def test_the_cost_of_cross_attention_is_what_torch_counts(extra, cached, bias):
    layer = CrossAttention(d_model=30, n_heads=6, **bias, **extra)
    x, context = torch.zeros(3, 5, 30), torch.zeros(3, 13, layer.d_context)
    cache = KVCache(13)
    if cached:
        layer(x, context, cache=cache)
    with FlopCounterMode(display=False) as count:
        layer(x, None if cached else context, cache=cache)
    cost = cross_cost(
        d_model=30,
        n_heads=6,
        **bias,
        batch=3,  # not 2: 2 + 2 is 2 * 2
        new=5,
        context=13,
        cached=cached,
        **extra,
    )
    assert cost.flops == count.get_total_flops()
    assert cost.parameters == sum(p.numel() for p in layer.parameters())
    assert cost.cached == cache.nbytes // 4
    unread = (layer.k_proj, layer.v_proj) if cached else ()
    idle = sum(p.numel() for part in unread for p in part.parameters())
    assert cost.bytes_read("fp32") == 4 * (cost.parameters - idle + cost.cached)


def test_scores_and_values_are_counted_apart():
    layer = GroupedQueryAttention(
        d_model=30, n_heads=6, n_kv_heads=3, head_dim=7
    )
    cost = attention_cost(
        d_model=30, n_heads=6, n_kv_heads=3, head_dim=7, batch=3, new=5, past=4
    )
    with FlopCounterMode(display=False) as count, torch.no_grad():
        layer.q_proj(torch.zeros(3, 5, 30))
        layer.k_proj(torch.zeros(3, 5, 30))
        layer.v_proj(torch.zeros(3, 5, 30))
        layer.o_proj(torch.zeros(3, 5, 42))
    assert cost.projections == count.get_total_flops()
    with FlopCounterMode(display=False) as count:
        torch.zeros(3, 6, 5, 7) @ torch.zeros(3, 6, 9, 7).mT
    assert cost.scores == cost.values == count.get_total_flops()


def test_fewer_key_heads_leave_the_flops_of_attention_alone():
    # --8<-- [start:heads]
    from attnref.cost import attention_cost

    shape = dict(d_model=4096, n_heads=32, past=8191)
    mha, gqa, mqa = (attention_cost(**shape, n_kv_heads=K) for K in (32, 8, 1))
    assert mha.scores == gqa.scores == mqa.scores
    assert mha.values == gqa.values == mqa.values
    assert mha.cached == 4 * gqa.cached == 32 * mqa.cached
    assert mqa.parameters / mha.parameters == 33 / 64
    # --8<-- [end:heads]
    assert [c.attention_intensity() for c in (mha, gqa, mqa)] == [1, 4, 32]


def test_a_step_reads_each_weight_and_each_cached_number_once():
    cost = Cost(1000, 2000, 300, 500, 40)
    assert cost.bytes_read() == 2080
    assert cost.bytes_read("fp32") == 4160
    assert cost.intensity() == Fraction(2800, 2080)
    assert cost.intensity("fp32") == Fraction(2800, 4160)
    assert cost.attention_intensity("int8") == 800 / 40
    assert Cost(1, 2, 3, 4, 2).bytes_read("int4") == 2  # half a byte is one


def test_the_forms_of_mla_cross_where_the_package_says():
    sizes = {k: SIZES[k] for k in ("kv_lora_rank", "qk_nope_head_dim")}
    point = crossover(**sizes, v_head_dim=7)
    for new, cheaper in ((1, "absorbed"), (int(2 * point), "latent")):
        flops = {
            form: mla_cost(**SIZES, form=form, new=new, past=100_000).flops
            for form in ("latent", "absorbed")
        }
        assert min(flops, key=flops.get) == cheaper


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
    with pytest.raises(ValueError, match="form='naive' is none of expanded"):
        mla_cost(**SIZES, form="naive")


CROSS = {"d_model": 30, "n_heads": 6, "context": 13}
ONE_STEP = {"batch": 1, "new": 1}


@pytest.mark.parametrize(
    ("function", "sizes", "size"),
    [
        *((mla_cost, SIZES, size) for size in SIZES),
        *((mla_cost, SIZES, size) for size in [*ONE_STEP, "q_lora_rank"]),
        *((cross_cost, CROSS, size) for size in ["context", *ONE_STEP]),
    ],
)
def test_each_size_is_above_0(function, sizes, size):
    with pytest.raises(ValueError, match=f"^{size}=0 must be at least 1"):
        function(**sizes | {size: 0})


def test_unless_told_a_cost_is_that_of_one_token_on_nothing():
    past = ONE_STEP | {"past": 0}
    small = {"d_model": 30, "n_heads": 6}
    assert attention_cost(**small) == attention_cost(**small, **past)
    assert mla_cost(**SIZES) == mla_cost(**SIZES, **past)
    told = cross_cost(**CROSS, **ONE_STEP, cached=False)
    assert cross_cost(**CROSS) == told
