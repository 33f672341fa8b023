"""MHA, MQA, GQA and cross-attention: what their pages say of each."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.exc import UserError
from torch.export import Dim

from attnref import (
    CrossAttention,
    GrowingKVCache,
    KVCache,
    MultiHeadAttention,
    mha_to_gqa,
    sdpa,
    weights_of_torch_mha,
)
from tests.conftest import relative_error
from tests.variants import (
    HEADS,
    VARIANTS,
    B,
    D,
    E,
    H,
    K,
    S,
    T,
    tokens,
    variant,
)

PROJECTED = [name for name, v in VARIANTS.items() if v.kv_heads]


@pytest.mark.parametrize(
    ("bias", "o_bias", "which"),
    [
        (False, None, ""),
        (True, None, "qkvo"),
        (True, False, "qkv"),
        (False, True, "o"),
    ],
)
@pytest.mark.parametrize("name", PROJECTED)
def test_parameters_are_named_and_shaped_as_in_checkpoints(
    name, bias, o_bias, which
):
    layer = variant(name, bias=bias, o_bias=o_bias)
    inner = VARIANTS[name].kv_heads(H, K) * D
    rows = {"q": H * D, "k": inner, "v": inner, "o": E}
    want = {f"{p}_proj.weight": (n, E) for p, n in rows.items()}
    want["o_proj.weight"] = (E, H * D)
    want |= {f"{p}_proj.bias": (rows[p],) for p in which}
    got = {name: tuple(p.shape) for name, p in layer.state_dict().items()}
    assert got == want


@pytest.mark.parametrize("name", PROJECTED)
def test_a_head_width_of_its_own(name):
    for head_dim, width, want in ((14, E, 14), (None, 7 * H, 7)):
        layer = variant(name, head_dim=head_dim, d_model=width)
        assert layer.q_proj.weight.shape == (H * want, width)
        assert layer(tokens(B, T, width)).shape == (B, T, width)


def test_a_print_of_a_tensor_breaks_the_graph():
    class Chatty(MultiHeadAttention):
        def forward(self, x):
            print(x.abs().max())
            return super().forward(x)

    layer, x = Chatty(**HEADS).double(), tokens()
    layer(x)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="print"):
        torch.compile(layer, fullgraph=True, backend="eager")(x)


def exported(layer):
    length = {"x": {1: Dim("T", min=2, max=64)}}
    return torch.export.export(layer, (tokens(),), dynamic_shapes=length)


@pytest.mark.parametrize("name", ["mha", "mla expanded"])
def test_a_length_may_have_a_name(name):
    layer = variant(name)
    module = exported(layer).module()
    for length in (T, 13, 2):
        x = tokens(B, length, E)
        assert relative_error(module(x), layer(x)) <= 1e-12


def test_torch_bounds_a_length_with_a_name_where_heads_are_stacked():
    """As the page of the cache says, until torch can prove it wrong: it does
    not see that heads stacked along the queries put no bound on T."""
    with pytest.raises(UserError, match=r"Constraints violated \(T\)"):
        exported(variant("gqa"))


def test_heads_are_merged_by_position():
    # --8<-- [start:merge]
    heads = torch.arange(12).view(1, 2, 3, 2)  # 2 heads, 3 positions, width 2
    right = heads.transpose(1, 2).reshape(1, 3, 4)
    wrong = heads.transpose(-1, -2).reshape(1, 3, 4)
    assert right[0].tolist() == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    assert wrong[0].tolist() == [[0, 2, 4, 1], [3, 5, 6, 8], [10, 7, 9, 11]]
    # --8<-- [end:merge]


def test_a_right_padded_row_is_the_row_alone():
    layer, x = variant("mha"), tokens(2, 7, E)
    # --8<-- [start:padded]
    from attnref import padding_mask

    valid = torch.tensor([[True] * 5 + [False] * 2, [True] * 7])
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


def test_dropout_drops_weights_and_keeps_their_mean():
    q, k = tokens(1, H, 5, D), tokens(1, K, S, D)
    v = torch.ones(1, K, S, 1, dtype=torch.float64)
    out = torch.stack([sdpa(q, k, v, dropout=0.25) for _ in range(4000)])
    assert out.std(0).min() > 0.05
    assert (out.mean(0) - 1).abs().max() < 0.05
    assert torch.equal(sdpa(q, k, v, dropout=0.0), sdpa(q, k, v))


def test_dropout_is_that_of_torch_on_the_weights():
    q, k, v = tokens(B, H, T, D), tokens(B, H, S, D), tokens(B, H, S, D)
    weights = torch.softmax(q @ k.mT / D**0.5, -1)
    torch.manual_seed(3)
    want = F.dropout(weights, 0.5) @ v
    torch.manual_seed(3)
    assert relative_error(sdpa(q, k, v, dropout=0.5), want) <= 1e-12


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


def test_the_heads_of_a_group_stand_together():
    # --8<-- [start:order]
    k = torch.tensor([10, 20, 30]).view(1, 3, 1, 1)  # 3 key heads for 6 queries
    together = k.repeat_interleave(2, dim=1).flatten()
    assert together.tolist() == [10, 10, 20, 20, 30, 30]  # head h reads h // 2
    in_turn = k.repeat(1, 2, 1, 1).flatten()
    assert in_turn.tolist() == [10, 20, 30, 10, 20, 30]  # wrong: reads h % 3
    # --8<-- [end:order]


def test_without_the_transpose_a_token_attends_to_itself_alone():
    fused = F.scaled_dot_product_attention
    # --8<-- [start:across]
    q, k, v = torch.randn(3, 3, 7, 6, 4)  # B, T, H, D: no transpose
    before = fused(q, k, v)  # takes T for the heads, and H for the positions
    k[:, 2], v[:, 2] = 1, 2  # without a mask, all seven outputs should change
    changed = (fused(q, k, v) != before).flatten(2).any(2)
    assert changed.tolist() == [[False] * 2 + [True] + [False] * 4] * 3
    k, v = k[:, :, :1], v[:, :, :1]  # one key head: softmax over one key
    assert torch.equal(fused(q, k, v), v.expand(3, 7, 6, 4))  # v itself
    # --8<-- [end:across]


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


def test_cross_attention_is_that_of_torch():
    # --8<-- [start:cross_torch]
    import torch

    from attnref import weights_of_torch_mha

    theirs = nn.MultiheadAttention(
        24, 6, kdim=20, vdim=20, batch_first=True
    ).double()
    ours = CrossAttention(d_model=24, n_heads=6, d_context=20, bias=True)
    ours.double().load_state_dict(weights_of_torch_mha(theirs))
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    context = torch.randn(2, 11, 20, dtype=torch.float64)
    want, _ = theirs(x, context, context, need_weights=False)
    assert torch.allclose(ours(x, context), want, rtol=0, atol=1e-12)
    # --8<-- [end:cross_torch]
    assert relative_error(ours(x, context), want) <= 1e-12


def test_a_context_is_projected_once():
    ours = CrossAttention(d_model=24, n_heads=6, d_context=20).double()
    x, context = tokens(B, T, 24), tokens(B, S, 20)
    # --8<-- [start:cross_cache]
    from attnref import KVCache

    cache = KVCache(max_len=11)
    with torch.no_grad():
        whole = ours(x, context)
        steps = [ours(x[:, :1], context, cache=cache)]  # fills the cache
        for t in range(1, 7):
            steps.append(ours(x[:, t : t + 1], cache=cache))  # reads it
    assert cache.length == 11  # the context's length, at every step
    assert torch.allclose(torch.cat(steps, 1), whole, rtol=0, atol=1e-12)
    # --8<-- [end:cross_cache]


def test_a_decoder_generates_the_same_with_and_without_a_cache():
    # --8<-- [start:generate]
    from attnref import Block, Decoder, GroupedQueryAttention, greedy

    sizes = {"d_model": 32, "n_heads": 4, "n_kv_heads": 2}
    layers = [GroupedQueryAttention(**sizes, rope_theta=1e4) for _ in range(2)]
    blocks = [Block(layer, d_model=32, d_ff=64) for layer in layers]
    decoder = Decoder(blocks, n_tokens=100, d_model=32)
    prompt = torch.randint(100, (2, 5))
    tokens = greedy(decoder, prompt, 20)
    one_a_layer = [KVCache(max_len=24) for _ in blocks]
    assert torch.equal(greedy(decoder, prompt, 20, caches=one_a_layer), tokens)
    growing = [GrowingKVCache() for _ in blocks]
    assert torch.equal(greedy(decoder, prompt, 20, caches=growing), tokens)
    # --8<-- [end:generate]
    assert len(set(tokens[0].tolist())) > 8


def test_appending_by_cat_copies_everything_again():
    # --8<-- [start:room]
    token = torch.ones(1, 3, 1, 4)
    room, growing = KVCache(max_len=100), GrowingKVCache()
    k, _ = room.append(token, token)
    where = k.data_ptr()
    for _ in range(99):
        k, _ = room.append(token, token)
    assert k.data_ptr() == where  # nothing was moved
    k, _ = growing.append(token, token)
    where = k.data_ptr()
    k, _ = growing.append(token, token)
    assert k.data_ptr() != where  # all was copied to a new place
    assert (growing.nbytes, room.nbytes) == (2 * 96, 100 * 96)
    # --8<-- [end:room]
