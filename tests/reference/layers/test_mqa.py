"""Multi-query attention: what its page says of it."""

from functools import partial

import torch
from torch import nn

from attnref import MultiQueryAttention, causal_mask, multi_query_loop
from attnref.numbers.cost import attention_cost
from tests.kit.compare import relative_error
from tests.kit.layers import HEADS, ROPE, Variant, full, sharp, tokens

VARIANT = Variant(
    MultiQueryAttention,
    HEADS,
    partial(attention_cost, n_kv_heads=1),
    full(1),
    options=ROPE,
    kv_heads=lambda heads, groups: 1,
    page="layers/gqa",
)


def test_the_loop_of_mqa_is_the_layer():
    # --8<-- [start:mqa_loop]
    from attnref import causal_mask

    layer = MultiQueryAttention(d_model=24, n_heads=6).double()
    nn.init.normal_(layer.q_proj.weight)  # a flat softmax would hide errors
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    wq = layer.q_proj.weight.view(6, 4, 24).mT
    wk, wv = layer.k_proj.weight.mT, layer.v_proj.weight.mT
    wo = layer.o_proj.weight.mT
    loop = multi_query_loop(x, wq, wk, wv, wo, causal_mask(7))
    assert torch.allclose(loop, layer(x), rtol=0, atol=1e-12)
    # --8<-- [end:mqa_loop]
    assert relative_error(loop, layer(x)) <= 1e-12


def test_the_heads_of_mqa_differ_through_their_queries_alone():
    layer, x = (
        sharp(MultiQueryAttention(d_model=24, n_heads=6)),
        tokens(2, 7, 24),
    )
    # --8<-- [start:queries]
    from attnref import attention_weights

    q = layer.q_proj(x).view(2, 7, 6, 4).transpose(1, 2)
    k = layer.k_proj(x).unsqueeze(1)  # one key head for all
    maps = attention_weights(q, k, causal_mask(7))
    assert (maps[:, 0] - maps[:, 1]).abs().max() > 0.1  # heads differ
    alike = q[:, :1].expand(2, 6, 7, 4)  # the first head's queries, for all
    maps = attention_weights(alike, k, causal_mask(7))
    assert torch.equal(maps, maps[:, :1].expand(2, 6, 7, 7))  # identical
    # --8<-- [end:queries]
