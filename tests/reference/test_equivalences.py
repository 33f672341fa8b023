"""Equations between variants: what is called the same, is."""

import pytest
import torch
from torch import nn

from attnref import (
    GroupedQueryAttention,
    KVCache,
    MultiHeadAttention,
    apply_rope,
    grouped_query_loop,
    multi_head_loop,
    multi_query_loop,
    rope_rows,
    rope_table,
    sdpa,
)
from tests.kit.compare import relative_error
from tests.kit.layers import B, D, E, H, T, tokens
from tests.variants import variant


def test_gqa_with_a_key_head_for_each_query_head_is_mha():
    # --8<-- [start:gqa_is_mha]
    import torch
    from torch import nn

    from attnref import GroupedQueryAttention
    from attnref.plain.mha import MHA

    gqa = GroupedQueryAttention(d_model=24, n_heads=6, n_kv_heads=6).double()
    nn.init.normal_(gqa.q_proj.weight)  # a flat softmax would hide errors
    mha = MHA(d_model=24, n_heads=6).double()  # shares no code with the layer
    mha.load_state_dict(gqa.state_dict())
    x = torch.randn(3, 7, 24, dtype=torch.float64)
    assert torch.allclose(gqa(x), mha(x), rtol=0, atol=1e-12)
    # --8<-- [end:gqa_is_mha]


def test_gqa_with_one_key_head_is_mqa():
    # --8<-- [start:gqa_is_mqa]
    from attnref.plain.mqa import MQA

    gqa = GroupedQueryAttention(d_model=24, n_heads=6, n_kv_heads=1).double()
    nn.init.normal_(gqa.q_proj.weight)
    mqa = MQA(d_model=24, n_heads=6).double()
    mqa.load_state_dict(gqa.state_dict())
    x = torch.randn(3, 7, 24, dtype=torch.float64)
    assert torch.allclose(gqa(x), mqa(x), rtol=0, atol=1e-12)
    # --8<-- [end:gqa_is_mqa]


def test_a_broken_layer_is_no_longer_equal(monkeypatch):
    """Of classes that inherit from each other, both would be broken."""
    forward = GroupedQueryAttention.forward
    monkeypatch.setattr(
        GroupedQueryAttention,
        "forward",
        lambda self, x, **options: forward(self, x, **options).flip(1),
    )
    for proof in (
        test_gqa_with_a_key_head_for_each_query_head_is_mha,
        test_gqa_with_one_key_head_is_mqa,
    ):
        with pytest.raises(AssertionError):
            proof()


LOOPS = {
    "mha": multi_head_loop,
    "gqa": grouped_query_loop,
    "mqa": multi_query_loop,
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_without_a_mask_is_the_layer_that_sees_everything(name):
    # The root of a head_dim of 4 is its half.
    layer, x = variant(name, causal=False, head_dim=10), tokens(3, T, E)
    wq, wk, wv = (
        p.weight.view(-1, layer.head_dim, E).mT
        for p in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    if name == "mqa":
        wk, wv = wk[0], wv[0]
    loop = LOOPS[name](x, wq, wk, wv, layer.o_proj.weight.mT)
    assert relative_error(loop, layer(x)) <= 1e-12


def test_cached_in_any_chunks_is_the_full_pass():
    # --8<-- [start:cached]
    from torch import nn

    from attnref import GroupedQueryAttention, GrowingKVCache, KVCache

    layer = GroupedQueryAttention(
        d_model=24, n_heads=6, n_kv_heads=3, rope_theta=10000.0
    ).double()
    nn.init.normal_(layer.q_proj.weight)  # a flat softmax would hide errors
    x = torch.randn(2, 9, 24, dtype=torch.float64)
    whole = layer(x)
    for cache in KVCache(9), GrowingKVCache():
        for sizes in [1] * 9, [2, 2, 2, 2, 1], [5, 4], [9], [4, 1, 3, 1]:
            cache.reset()
            with torch.no_grad():
                chunks = x.split(sizes, dim=1)
                parts = [layer(chunk, cache=cache) for chunk in chunks]
            out = torch.cat(parts, dim=1)
            assert torch.allclose(out, whole, rtol=0, atol=1e-12)
    # --8<-- [end:cached]


def test_the_steps_of_a_generation():
    layer = variant("gqa", rope_theta=10000.0)
    x = tokens(2, 9, E)
    whole = layer(x)
    # --8<-- [start:steps]
    cache = KVCache(max_len=9)
    with torch.no_grad():
        prompt = layer(x[:, :4], cache=cache)  # prefill: writes 4 tokens
        assert cache.length == 4
        token = layer(x[:, 4:5], cache=cache)  # decode: writes 1, reads 5
        assert cache.length == 5
        chunk = layer(x[:, 5:8], cache=cache)  # 3 at once, still causal
        assert cache.length == 8
        cache.crop(5)  # as if those 3 were rejected draft tokens
        again = layer(x[:, 5:6], cache=cache)
        assert cache.length == 6
    assert torch.allclose(prompt, whole[:, :4], rtol=0, atol=1e-12)
    assert torch.allclose(token, whole[:, 4:5], rtol=0, atol=1e-12)
    assert torch.allclose(chunk, whole[:, 5:8], rtol=0, atol=1e-12)
    assert torch.allclose(again, whole[:, 5:6], rtol=0, atol=1e-12)
    # --8<-- [end:steps]


def test_right_padding_moves_positions():
    layer = variant("gqa", rope_theta=10000.0)
    x = tokens(2, 9, E)
    # --8<-- [start:right]
    from attnref import padding_mask, token_positions

    valid = torch.ones(2, 6, dtype=torch.bool)
    valid[0, 3:5] = False  # row 0: 3 tokens, 2 pads, then the new token
    mask = padding_mask(valid)
    with torch.no_grad():
        cache = KVCache(max_len=6)
        layer(x[:, :5], mask=mask[..., :5], cache=cache)
        positions = token_positions(valid)[:, -1:]
        assert positions.tolist() == [[3], [5]]  # slot 5 in both rows
        right = layer(x[:, 5:6], mask=mask, cache=cache, positions=positions)
        cache.crop(5)
        wrong = layer(x[:, 5:6], mask=mask, cache=cache)
        cache.crop(torch.tensor([3, 5]))  # drops the pads
        dropped = layer(x[:, 5:6], cache=cache)
        row = torch.cat((x[:1, :3], x[:1, 5:6]), dim=1)  # row 0 without pads
        alone = layer(row)[:, -1:]
    assert torch.allclose(right[:1], alone, rtol=0, atol=1e-12)
    assert torch.allclose(dropped[:1], alone, rtol=0, atol=1e-12)
    assert (wrong[:1] - alone).abs().max() > 1e-3
    # --8<-- [end:right]


def test_without_positions_tokens_may_change_places():
    # --8<-- [start:equivariance]
    layer = MultiHeadAttention(d_model=24, n_heads=6, causal=False).double()
    nn.init.normal_(layer.q_proj.weight)
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    moved = layer(x[:, order])
    assert torch.allclose(moved, layer(x)[:, order], rtol=0, atol=1e-12)
    # --8<-- [end:equivariance]
    assert relative_error(moved, layer(x)[:, order]) <= 1e-12


def test_with_rope_tokens_may_not_change_places():
    # --8<-- [start:order]
    from torch import nn

    from attnref import MultiHeadAttention

    layer = MultiHeadAttention(
        d_model=24, n_heads=6, causal=False, rope_theta=10000.0
    ).double()
    nn.init.normal_(layer.q_proj.weight)  # a flat softmax would hide errors
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    moved = layer(x[:, order])
    assert (moved - layer(x)[:, order]).abs().max() > 0.01
    # --8<-- [end:order]


def test_rope_scores_depend_on_the_distance_only():
    # --8<-- [start:relative]
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)

    def score(i, j):
        at_i = rope_table(torch.tensor([i]), 8)
        at_j = rope_table(torch.tensor([j]), 8)
        return (apply_rope(q, *at_i) * apply_rope(k, *at_j)).sum()

    assert (score(5, 2) - score(1005, 1002)).abs() < 1e-12
    assert (score(5, 2) - score(5, 3)).abs() > 1e-3
    # --8<-- [end:relative]


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("shift", [1, 17, 4096])
def test_all_positions_may_be_shifted(layout, shift):
    q, k, v = tokens(3, B, H, T, D)
    one, two = (
        rope_table(torch.arange(T) + s, D, theta=100.0) for s in (0, shift)
    )
    outs = [
        sdpa(
            apply_rope(q, *t, layout=layout),
            apply_rope(k, *t, layout=layout),
            v,
        )
        for t in (one, two)
    ]
    assert relative_error(*outs) <= 1e-12


def test_the_layouts_differ_by_an_order_of_rows():
    # --8<-- [start:layouts]
    wq, wk = torch.randn(2, 3 * 8, 24, dtype=torch.float64)  # 3 heads of 8
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    table = rope_table(torch.arange(7), 8)

    def scores(wq, wk, layout):
        q, k = ((x @ w.mT).view(2, 7, 3, 8).transpose(1, 2) for w in (wq, wk))
        q, k = (apply_rope(z, *table, layout=layout) for z in (q, k))
        return q @ k.mT

    want = scores(wq, wk, "interleaved")
    moved = (rope_rows(w, 8, to="half") for w in (wq, wk))
    assert torch.allclose(scores(*moved, "half"), want, rtol=0, atol=1e-12)
    assert (scores(wq, wk, "half") - want).abs().max() > 1
    # --8<-- [end:layouts]
