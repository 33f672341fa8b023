"""Bytes that are predicted, against caches that are filled; and claims that
were published, to the digits that were printed."""

from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnref.numbers.kv_memory import (
    DTYPES,
    Storage,
    entry_bytes,
    group_bytes,
    growth,
    kv_bytes,
    largest_batch,
    longest_context,
    size,
    state_bytes,
    storage_of,
    token_bytes,
    weight_bytes,
)
from attnref.numbers.shapes import Compressed, Full, Model, Sliding, Store
from attnref.released.specs import find_model, models

TORCH = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
H = 6


def full(kv_heads, head_dim, v_head_dim=None):
    return Full(
        layers=1,
        q_heads=H,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim or head_dim,
    )


def test_a_known_model_takes_what_its_caches_take():
    # --8<-- [start:predicted]
    import torch

    from attnref import KVCache
    from attnref.numbers.kv_memory import kv_bytes
    from attnref.released.specs import find_model

    llama = find_model("llama-3.1-8b")
    tokens, batch = 8192, 4
    caches = [KVCache(tokens) for _ in range(32)]
    for cache in caches:
        k = torch.empty(batch, 8, tokens, 128, device="meta").bfloat16()
        cache.append(k, k)
    held = sum(cache.nbytes for cache in caches)
    assert held == kv_bytes(llama, tokens, batch=batch) == 4 * 2**30
    # --8<-- [end:predicted]


def test_a_claim_2_25_groups():
    """DeepSeek-V2, Table 1: MLA's cache is that of GQA with 2.25 groups."""
    (group,) = find_model("deepseek-v2").groups
    one = token_bytes(full(1, 128), DTYPES["bf16"]).first
    assert token_bytes(group, DTYPES["bf16"]).first / one == Fraction(9, 4)


def test_a_claim_57_and_71_times():
    """Against MHA of heads of 128; against V3's own keys and values."""
    (group,) = find_model("deepseek-v3").groups
    mla = token_bytes(group, DTYPES["bf16"]).first
    plain = token_bytes(full(128, 128), DTYPES["bf16"]).first
    own = token_bytes(full(128, 192, 128), DTYPES["bf16"]).first
    assert f"{float(plain / mla):.0f}" == "57"
    assert f"{float(own / mla):.0f}" == "71"


def test_a_claim_93_3_percent():
    """DeepSeek-V2's abstract: 82.2% by architecture, 93.3% in six bits."""
    old = growth(find_model("deepseek-67b")).later
    new = growth(find_model("deepseek-v2")).later
    six = growth(find_model("deepseek-v2"), dtype=Storage(6)).later
    assert (old, new, six) == (389_120, 69_120, 25_920)
    assert f"{float(1 - new / old):.1%}" == "82.2%"
    assert f"{float(1 - six / old):.1%}" == "93.3%"


def test_a_claim_v4_keeps_7_and_10_percent_of_v3_2():
    old = growth(find_model("deepseek-v3.2"), dtype="shipped").later
    assert old == 61 * (656 + 132) == 48_068
    for name, percent in (("flash", "7"), ("pro", "10")):
        new = growth(find_model(f"deepseek-v4-{name}"), dtype="shipped").later
        assert f"{int(100 * new / old)}" == percent


def test_a_claim_890_bytes_and_437_times():
    v4_1 = growth(find_model("deepseek-v4.1-flash"), dtype="shipped").later
    v4 = growth(find_model("deepseek-v4-flash"), dtype="shipped").later
    assert v4_1 == 890
    assert f"{float(v4 / v4_1):.0f}" == "4"
    assert int(growth(find_model("deepseek-67b")).later / v4_1) == 437


def test_windows_may_be_shipped_in_a_format_of_their_own():
    v4_1, v4 = (find_model(f"deepseek-v4{m}-flash") for m in (".1", ""))
    for model, recent in ((v4_1, 528), (v4, 584)):
        first, later = growth(model, dtype="shipped")
        assert first - later == model.layers * recent
        assert kv_bytes(model, 1, dtype="shipped") >= model.layers * recent


def test_a_claim_qwen3_8b_takes_18_gib():
    assert kv_bytes(find_model("qwen3-8b"), 131_072) == 18 * 2**30
    assert kv_bytes(find_model("qwen3.8-27b"), 131_072) >= 8 * 2**30
    assert growth(find_model("qwen3.8-27b")).later == 65_536


def test_windows_stop_growing_and_states_never_grow():
    oss = find_model("gpt-oss-120b")
    assert growth(oss) == (73_728, 36_864)
    steps = [kv_bytes(oss, t + 1) - kv_bytes(oss, t) for t in (1, 127, 128)]
    assert steps == [73_728, 73_728, 36_864]
    k3 = find_model("kimi-k3")
    assert f"{state_bytes(k3) / 2**20:.0f}" == "429"
    assert f"{state_bytes(find_model('qwen3.8-2.4t')) / 2**20:.0f}" == "560"
    assert kv_bytes(k3, 5) - state_bytes(k3) == 5 * growth(k3).later
    assert state_bytes(k3) == state_bytes(k3, batch=3) // 3


def test_a_chunk_counts_as_full_at_worst():
    scout = find_model("llama-4-scout")
    assert growth(scout) == (196_608, 49_152)
    assert kv_bytes(scout, 8192) == 8192 * 196_608
    assert kv_bytes(scout, 8193) - kv_bytes(scout, 8192) == 49_152


def test_compressed_entries_come_every_few_tokens():
    group = Compressed(
        layers=1, q_heads=4, dim=10, sliding_window=2, ratio=4, index_dim=3
    )
    taken = [group_bytes(group, t, Storage(16)) for t in range(1, 9)]
    window, entry = 2 * 10, 2 * (10 + 3)
    assert taken == [
        window,
        *[2 * window] * 2,
        *[2 * window + entry] * 4,
        2 * window + 2 * entry,
    ]
    assert token_bytes(group, Storage(16)) == (
        window + Fraction(entry, 4),
        Fraction(entry, 4),
    )


def test_scales_come_with_each_block_of_a_head():
    store = Store("kv", 3, (128, 40))
    assert entry_bytes(store, Storage(4)) == 3 * (128 + 40) // 2
    scaled = Storage(4, scale_bits=16, block=32)
    assert entry_bytes(store, scaled) == 3 * (64 + 4 * 2 + 20 + 2 * 2)
    assert entry_bytes(Store("kv", 1, (3,)), Storage(4)) == 2, "whole bytes"


def test_dtypes_are_as_wide_as_those_of_torch():
    for name, dtype in {**TORCH, "int8": torch.int8}.items():
        assert DTYPES[name] == Storage(8 * dtype.itemsize)
    assert DTYPES["fp8"] == Storage(8 * torch.float8_e4m3fn.itemsize)
    assert DTYPES["int4"] == Storage(4)


def test_states_keep_their_own_dtypes():
    k3 = find_model("kimi-k3")
    fixed = kv_bytes(k3, 1, dtype="int4") - growth(k3, dtype="int4").later
    assert fixed == state_bytes(k3)
    matrix, conv = k3.groups[1].stores
    assert entry_bytes(matrix, Storage(4)) == 96 * 128 * 128 * 4
    assert entry_bytes(conv, Storage(32)) == 36_864 * 3 * 2


def test_ranks_split_heads_and_copy_what_all_heads_share():
    llama, mla = find_model("llama-3.1-8b"), find_model("deepseek-v3")
    shares = [growth(llama, ranks=n).later / 4096 for n in (1, 2, 3, 8, 16)]
    assert shares == [32, 16, 12, 4, 4]
    assert growth(mla, ranks=8) == growth(mla)
    falcon = find_model("falcon-7b")
    assert growth(falcon, ranks=8) == growth(falcon)
    k3 = find_model("kimi-k3")
    assert state_bytes(k3, ranks=8) * 8 == state_bytes(k3)


@given(
    st.sampled_from(sorted(models())),
    st.integers(1, 300_000),
    st.integers(1, 9),
    st.sampled_from(sorted(DTYPES)),
    st.integers(1, 16),
)
def test_what_fits_is_the_most_that_fits(name, tokens, batch, dtype, ranks):
    model = find_model(name)
    options = {"dtype": dtype, "ranks": ranks}
    budget = kv_bytes(model, tokens, batch=batch, **options)
    longest = longest_context(model, budget, batch=batch, **options)
    if longest is None:
        assert growth(model, **options).later == 0
        assert kv_bytes(model, 10**9, batch=batch, **options) <= budget
    else:
        assert longest >= tokens
        assert kv_bytes(model, longest, batch=batch, **options) <= budget
        assert kv_bytes(model, longest + 1, batch=batch, **options) > budget
    assert largest_batch(model, tokens, budget, **options) == batch
    assert largest_batch(model, tokens, budget - 1, **options) == batch - 1


def test_what_does_not_fit_at_all_is_0():
    k3 = find_model("kimi-k3")
    least = kv_bytes(k3, 1)
    assert longest_context(k3, least - 1) == 0
    assert longest_context(k3, least) == 1
    assert largest_batch(k3, 1, least - 1) == 0


@given(
    st.sampled_from([m.id for m in models().values() if m.params]),
    st.sampled_from(sorted(DTYPES)),
    st.integers(1, 64),
)
def test_weights_are_split_and_none_is_lost(name, dtype, ranks):
    model = find_model(name)
    whole = weight_bytes(model, dtype)
    assert whole == -(-model.params * DTYPES[dtype].bits // 8)
    part = weight_bytes(model, dtype, ranks=ranks)
    assert (part - 1) * ranks < whole <= part * ranks


def test_less_than_nothing_holds_nothing():
    v3 = find_model("deepseek-v3")
    left = 72 * 10**9 - weight_bytes(v3, "fp8", ranks=8)
    assert left == -11_875_000_000
    for budget in (left, -1, 0):
        assert largest_batch(v3, 1, budget, ranks=8) == 0
        assert longest_context(v3, budget, ranks=8) == 0
    with pytest.raises(ValueError, match="parameters of command-a; pass"):
        weight_bytes(find_model("command-a"))


def test_a_window_that_never_fills_is_still_endless():
    mistral = find_model("mistral-7b")
    whole = kv_bytes(mistral, 4096)
    assert longest_context(mistral, whole) is None
    assert longest_context(mistral, whole - 1) == 4095


@given(st.sampled_from(sorted(models())), st.integers(1, 10**7))
def test_a_token_more_never_takes_less(name, tokens):
    model = find_model(name)
    assert kv_bytes(model, tokens) <= kv_bytes(model, tokens + 1)
    assert kv_bytes(model, tokens) <= state_bytes(model) + tokens * (
        growth(model).first
    )


@given(st.sampled_from(sorted(models())))
def test_at_length_a_token_adds_the_later_growth(name):
    model = find_model(name)
    start, more = 2**20, 2**14  # all windows full; a multiple of all ratios
    added = kv_bytes(model, start + more) - kv_bytes(model, start)
    assert added == more * growth(model).later


def test_a_shape_of_ones_own():
    group = Sliding(
        layers=2,
        q_heads=8,
        kv_heads=2,
        head_dim=16,
        v_head_dim=16,
        sliding_window=10,
    )
    own = replace(find_model("gpt2"), id="own", groups=(group,))
    assert isinstance(own, Model)
    assert kv_bytes(own, 100, dtype="fp32") == 2 * 10 * 2 * 32 * 4


def test_a_size_is_written_in_the_unit_that_fits():
    sizes = (0, 1023, 1024, 1536, 2**20 - 1, 2**50, 2**61)
    assert [size(n) for n in sizes] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1.5 KiB",
        "1 MiB",
        "1024 TiB",
        "2097000 TiB",
    ]


def test_what_cannot_be_is_refused():
    gpt2 = find_model("gpt2")
    with pytest.raises(ValueError, match="tokens=0 must be at least 1"):
        kv_bytes(gpt2, 0)
    with pytest.raises(TypeError, match="tokens is float; pass an int"):
        kv_bytes(gpt2, 1e6)
    fits = partial(longest_context, budget=1)
    for call in (
        growth,
        weight_bytes,
        state_bytes,
        partial(kv_bytes, tokens=1),
        fits,
    ):
        with pytest.raises(ValueError, match="ranks=0 must be at least 1"):
            call(gpt2, ranks=0)
    for call in (state_bytes, partial(kv_bytes, tokens=1), fits):
        with pytest.raises(ValueError, match="batch=-1 must be at least 1"):
            call(gpt2, batch=-1)
    for budget in (1e9, -0.5, True, "80GiB"):
        with pytest.raises(TypeError, match="budget is"):
            longest_context(gpt2, budget)
        with pytest.raises(TypeError, match="budget is"):
            largest_batch(gpt2, 1, budget)
    for wrong in (Storage(0), Storage(-1), Storage(8, -1), Storage(8, 1, 0)):
        with pytest.raises(ValueError, match=r"must be at least [01]"):
            longest_context(gpt2, 10**9, dtype=wrong)
    with pytest.raises(TypeError, match="dtype is int; pass a name"):
        kv_bytes(gpt2, 1, dtype=16)
    with pytest.raises(TypeError, match="scale_bits is float; pass an int"):
        kv_bytes(gpt2, 1, dtype=Storage(4, 0.5))
    for name, meant in (
        ("bf61", "bf16"),
        ("BF16", "bf16"),
        ("torch.bfloat16", "bf16"),
        ("float16", "fp16"),
        ("float8", "fp8"),
        ("shiped", "shipped"),
    ):
        with pytest.raises(ValueError, match=rf"did you mean {meant}\?"):
            storage_of(gpt2, name)
    with pytest.raises(ValueError, match=r"^no dtype 'Z'; there are fp32"):
        storage_of(gpt2, "Z")
    with pytest.raises(ValueError, match=r"the cache of gpt2; name a dtype$"):
        kv_bytes(gpt2, 1, dtype="shipped")
    with pytest.raises(ValueError, match=r"it is known for a, b$"):
        storage_of(gpt2, "shipped", ["a", "b"])


def test_the_longest_context_is_that_of_the_budget_at_its_edges():
    """A budget for fewer tokens than the prefix; and one for more than the
    window, while it may begin inside a block."""
    gpt2, mistral = find_model("gpt2"), find_model("mistral-7b")
    for n in (1, 2, 97):
        budget = kv_bytes(gpt2, n, batch=5, prefix=n - 1)
        for spare, longest in ((0, n), (-1, n - 1)):
            options = {"batch": 5, "prefix": 131}
            assert longest_context(gpt2, budget + spare, **options) == longest
    window, block = 4096, 127
    last = (window // block + 1) * block  # of so many blocks, and one may come
    budget = kv_bytes(mistral, last, block=block)
    assert longest_context(mistral, budget, block=block) == last > window
    budget = kv_bytes(mistral, last + 1, block=block)
    assert longest_context(mistral, budget, block=block) is None


@pytest.mark.parametrize("name", ["gpt2", "gpt-oss-20b", "qwen3.5-9b"])
@pytest.mark.parametrize("block", [1, 16, 127])
def test_blocks_are_those_that_some_token_is_in(name, block):
    """Counted one by one; a window may begin anywhere in a block."""
    model = find_model(name)
    for tokens, prefix in ((1, 0), (128, 127), (300, 0), (300, 130)):
        want = 0
        for group in model.groups:
            for store in group.stores:
                each = group.layers * entry_bytes(store, DTYPES["bf16"])
                if store.fixed:
                    want += 5 * each
                    continue
                window = store.window or tokens
                blocks = max(
                    len(
                        {p // block for p in range(max(last - window, 0), last)}
                    )
                    for last in range(1, max(tokens, window + block) + 1)
                    if store.window or last == tokens
                )
                blocks = min(blocks, -(-tokens // block))
                common = 0 if store.window else prefix // block
                want += (5 * blocks - 4 * common) * block * each
        options = {"block": block, "prefix": prefix}
        assert kv_bytes(model, tokens, batch=5, **options) == want
        assert largest_batch(model, tokens, want, **options) == 5
        assert largest_batch(model, tokens, want - 1, **options) == 4
        longest = longest_context(model, want, batch=5, **options)
        if longest and longest > prefix:
            assert kv_bytes(model, longest, batch=5, **options) <= want
            more = kv_bytes(model, longest + 1, batch=5, **options)
            assert more > want >= kv_bytes(model, tokens, batch=5, **options)
    with pytest.raises(
        ValueError, match="a prefix of 9 tokens needs sequences"
    ):
        kv_bytes(model, 9, prefix=9)
