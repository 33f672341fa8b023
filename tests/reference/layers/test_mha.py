"""Multi-head attention: what its page says of it."""

import pytest
import torch
from torch import nn

from attnref import (
    MultiHeadAttention,
    multi_head_loop,
    weights_of_torch_mha,
)
from attnref.numbers.cost import attention_cost
from tests.kit.compare import relative_error
from tests.kit.layers import (
    HEADS,
    ROPE,
    B,
    H,
    T,
    Variant,
    full,
    tokens,
)

VARIANT = Variant(
    MultiHeadAttention,
    HEADS,
    attention_cost,
    full(H),
    options=ROPE,
    kv_heads=lambda heads, groups: heads,
)


def test_a_print_of_a_tensor_breaks_the_graph():
    class Chatty(MultiHeadAttention):
        def forward(self, x):
            print(x.abs().max())
            return super().forward(x)

    layer, x = Chatty(**HEADS).double(), tokens()
    layer(x)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="print"):
        torch.compile(layer, fullgraph=True, backend="eager")(x)


def test_heads_are_merged_by_position():
    heads = torch.arange(12).view(1, 2, 3, 2)  # 2 heads, 3 positions, width 2
    right = heads.transpose(1, 2).reshape(1, 3, 4)
    wrong = heads.transpose(-1, -2).reshape(1, 3, 4)
    assert right[0].tolist() == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    assert wrong[0].tolist() == [[0, 2, 4, 1], [3, 5, 6, 8], [10, 7, 9, 11]]


def test_a_right_padded_row_is_the_row_alone():
    # --8<-- [start:padded]
    from attnref import MultiHeadAttention, padding_mask

    layer = MultiHeadAttention(d_model=24, n_heads=6, causal=False).double()
    x = torch.randn(3, 7, 24, dtype=torch.float64)
    valid = torch.arange(7) < torch.tensor([[5], [7], [7]])  # two pads
    together = layer(x, mask=padding_mask(valid))
    alone = layer(x[:1, :5])
    assert torch.allclose(together[:1, :5], alone, rtol=0, atol=1e-12)
    # --8<-- [end:padded]


def test_dropout_is_for_training():
    x = tokens(B, T, 24)
    # --8<-- [start:dropout]
    leaky = MultiHeadAttention(d_model=24, n_heads=6, dropout=0.5).double()
    assert not torch.equal(leaky(x), leaky(x))
    leaky.eval()
    assert torch.equal(leaky(x), leaky(x))
    # --8<-- [end:dropout]


def test_mha_with_the_weights_of_torch():
    x = tokens(B, T, 24)
    # --8<-- [start:torch_mha]
    theirs = nn.MultiheadAttention(24, 6, batch_first=True).double()
    ours = MultiHeadAttention(d_model=24, n_heads=6, bias=True).double()
    ours.load_state_dict(weights_of_torch_mha(theirs))
    future = torch.ones(7, 7).triu(1).bool()  # True = may NOT attend
    want, _ = theirs(x, x, x, attn_mask=future, need_weights=False)
    assert torch.allclose(ours(x), want, rtol=0, atol=1e-12)
    # --8<-- [end:torch_mha]
    assert relative_error(ours(x), want) <= 1e-12


def test_the_loop_of_mha_is_the_layer():
    # --8<-- [start:mha_loop]
    from attnref import causal_mask

    layer = MultiHeadAttention(d_model=24, n_heads=6).double()
    nn.init.normal_(layer.q_proj.weight)  # a flat softmax would hide errors
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    # nn.Linear stores W transposed, with the rows of all heads stacked.
    wq, wk, wv = (
        p.weight.view(6, 4, 24).mT
        for p in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    wo = layer.o_proj.weight.mT
    loop = multi_head_loop(x, wq, wk, wv, wo, causal_mask(7))
    assert torch.allclose(loop, layer(x), rtol=0, atol=1e-12)
    # --8<-- [end:mha_loop]
    assert relative_error(loop, layer(x)) <= 1e-12
