"""Grouped-query attention: what its page says of it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.exc import UserError
from torch.export import Dim

from attnref import (
    GroupedQueryAttention,
    MultiHeadAttention,
    MultiHeadLatentAttention,
    grouped_query_loop,
    mha_to_gqa,
)
from attnref.numbers.cost import attention_cost
from tests.kit import sampled
from tests.kit.compare import relative_error
from tests.kit.layers import (
    HEADS,
    LATENT,
    ROPE,
    B,
    E,
    K,
    T,
    Variant,
    full,
    sharp,
    tokens,
)

VARIANT = Variant(
    GroupedQueryAttention,
    HEADS | {"n_kv_heads": K},
    attention_cost,
    full(K),
    options=ROPE,
    kv_heads=lambda heads, groups: groups,
)


def exported(layer):
    length = {"x": {1: Dim("T", min=2, max=64)}}
    return torch.export.export(layer, (tokens(),), dynamic_shapes=length)


MHA, MLA = MultiHeadAttention(**HEADS), MultiHeadLatentAttention(**LATENT)


@pytest.mark.parametrize("layer", sampled([MHA, MLA], [MHA]), ids=type)
def test_a_length_may_have_a_name(layer):
    module = exported(sharp(layer)).module()
    for length in (T, 13, 2):
        x = tokens(B, length, E)
        assert relative_error(module(x), layer(x)) <= 1e-12


def test_torch_bounds_a_length_with_a_name_where_heads_are_stacked():
    """As the page of the cache says, until torch can prove it wrong: it does
    not see that heads stacked along the queries put no bound on T."""
    with pytest.raises(UserError, match=r"Constraints violated \(T\)"):
        exported(sharp(GroupedQueryAttention(**VARIANT.sizes)))


def test_the_heads_of_a_group_stand_together():
    k = torch.tensor([10, 20, 30]).view(1, 3, 1, 1)  # 3 key heads for 6 queries
    together = k.repeat_interleave(2, dim=1).flatten()
    assert together.tolist() == [10, 10, 20, 20, 30, 30]  # head h reads h // 2
    in_turn = k.repeat(1, 2, 1, 1).flatten()
    assert in_turn.tolist() == [10, 20, 30, 10, 20, 30]  # wrong: reads h % 3


def test_mean_pooling_is_exact_where_heads_are_alike():
    # --8<-- [start:pooled]
    from torch import nn

    mha = MultiHeadAttention(d_model=24, n_heads=6).double()
    nn.init.normal_(mha.q_proj.weight)  # a flat softmax would hide errors
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    gap = (mha_to_gqa(mha, 3)(x) - mha(x)).abs().max()
    assert gap > 0.01  # further training has to close this gap
    with torch.no_grad():
        for p in mha.k_proj, mha.v_proj:
            heads = p.weight.view(3, 2, 4, 24)  # pairs of heads
            heads[:, 1] = heads[:, 0]  # make each pair identical
    gap = (mha_to_gqa(mha, 3)(x) - mha(x)).abs().max()
    assert gap < 1e-12
    # --8<-- [end:pooled]


def test_the_loop_of_gqa_is_the_layer():
    # --8<-- [start:gqa_loop]
    from attnref import causal_mask

    layer = GroupedQueryAttention(d_model=24, n_heads=6, n_kv_heads=3).double()
    nn.init.normal_(layer.q_proj.weight)  # a flat softmax would hide errors
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    wq = layer.q_proj.weight.view(6, 4, 24).mT
    wk, wv = (p.weight.view(3, 4, 24).mT for p in (layer.k_proj, layer.v_proj))
    wo = layer.o_proj.weight.mT
    loop = grouped_query_loop(x, wq, wk, wv, wo, causal_mask(7))
    assert torch.allclose(loop, layer(x), rtol=0, atol=1e-12)
    # --8<-- [end:gqa_loop]
    assert relative_error(loop, layer(x)) <= 1e-12


def test_without_the_transpose_a_token_attends_to_itself_alone():
    fused = F.scaled_dot_product_attention
    q, k, v = torch.randn(3, 3, 7, 6, 4)  # B, T, H, D: no transpose
    before = fused(q, k, v)  # takes T for the heads, and H for the positions
    k[:, 2], v[:, 2] = 1, 2  # without a mask, all seven outputs should change
    changed = (fused(q, k, v) != before).flatten(2).any(2)
    assert changed.tolist() == [[False] * 2 + [True] + [False] * 4] * 3
    k, v = k[:, :, :1], v[:, :, :1]  # one key head: softmax over one key
    assert torch.equal(fused(q, k, v), v.expand(3, 7, 6, 4))  # v itself
