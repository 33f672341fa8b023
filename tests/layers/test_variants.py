"""MHA, MQA, GQA and cross-attention: what their pages say of each."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.exc import UserError
from torch.export import Dim

from attnref import (
    CrossAttention,
    GroupedQueryAttention,
    GrowingKVCache,
    KVCache,
    MultiHeadAttention,
    MultiHeadLatentAttention,
    MultiQueryAttention,
    mha_to_gqa,
    padding_mask,
    sdpa,
    token_positions,
    weights_of_torch_mha,
)
from tests.conftest import relative_error

B, T, S, E, H, K, D = 2, 7, 11, 24, 6, 3, 4
VARIANTS = {
    "mha": (MultiHeadAttention, {}, H),
    "mqa": (MultiQueryAttention, {}, 1),
    "gqa": (GroupedQueryAttention, {"n_kv_heads": K}, K),
}


def variant(name, **options):
    cls, sizes, _ = VARIANTS[name]
    layer = cls(d_model=E, n_heads=H, **sizes, **options)
    for p in layer.parameters():
        nn.init.normal_(p, std=0.5)
    return layer.double()


def tokens(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("bias", "o_bias", "which"),
    [
        (False, None, ""),
        (True, None, "qkvo"),
        (True, False, "qkv"),
        (False, True, "o"),
    ],
)
@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_are_named_and_shaped_as_in_checkpoints(
    name, bias, o_bias, which
):
    layer, kv_heads = variant(name, bias=bias, o_bias=o_bias), VARIANTS[name][2]
    rows = {"q": H * D, "k": kv_heads * D, "v": kv_heads * D, "o": E}
    want = {f"{p}_proj.weight": (n, E) for p, n in rows.items()}
    want |= {f"{p}_proj.bias": (rows[p],) for p in which}
    got = {name: tuple(p.shape) for name, p in layer.state_dict().items()}
    assert got == want


@pytest.mark.parametrize("name", VARIANTS)
def test_no_token_sees_a_later_one(name):
    layer, x = variant(name), tokens(B, T, E)
    before = layer(x)
    x[:, -1] += 1
    after = layer(x)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert (before[:, -1] - after[:, -1]).abs().max() > 0.1


@pytest.mark.parametrize("name", VARIANTS)
def test_an_encoder_layer_sees_both_ways(name):
    layer, x = variant(name, causal=False), tokens(B, T, E)
    before = layer(x)
    x[:, -1] += 1
    assert (before - layer(x)).abs().amax(-1).min() > 1e-9


@pytest.mark.parametrize("name", VARIANTS)
def test_a_head_width_of_its_own(name):
    layer = variant(name, head_dim=10)
    assert layer.q_proj.weight.shape == (H * 10, E)
    assert layer(tokens(B, T, E)).shape == (B, T, E)


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_reach_every_parameter_and_are_right(name):
    layer, x = variant(name, bias=True, rope_theta=100.0), tokens(1, 3, E)
    layer(x).square().sum().backward()
    for parameter in layer.parameters():
        # Without RoPE, a key's bias would move all scores of a row alike.
        assert parameter.grad.abs().max() > 0
    weights = dict(layer.named_parameters())

    def run(*values):
        named = dict(zip(weights, values, strict=True))
        return torch.func.functional_call(layer, named, (x,))

    inputs = [w.detach().requires_grad_() for w in weights.values()]
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)


def test_a_layer_compiles_for_any_length():
    layer = variant("gqa", rope_theta=100.0)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    valid = torch.arange(9) < torch.tensor([[3], [9]])
    for T, named in (
        (5, {}),
        (9, {}),  # from here on, the length is a symbol
        (9, {"mask": padding_mask(valid)}),
        (9, {"positions": token_positions(valid)}),
        (9, {"positions": torch.arange(9)}),
    ):
        x = tokens(B, T, E)
        assert relative_error(compiled(x, **named), layer(x, **named)) == 0


def test_a_print_of_a_tensor_breaks_the_graph():
    class Chatty(MultiHeadAttention):
        def forward(self, x):
            print(x.abs().max())
            return super().forward(x)

    layer, x = Chatty(d_model=E, n_heads=H).double(), tokens(B, T, E)
    layer(x)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="print"):
        torch.compile(layer, fullgraph=True, backend="eager")(x)


LENGTHS = {"by itself": Dim.AUTO, "by name": Dim("T", min=2, max=64)}


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("mha", "by itself"),
        ("gqa", "by itself"),
        ("mla", "by itself"),
        # Not GQA, nor MLA absorbed: torch does not see that their heads,
        # stacked along the queries, put no bound on T.
        ("mha", "by name"),
        ("mla", "by name"),
    ],
)
def test_a_layer_is_exported_for_any_length(name, length):
    if name == "mla":
        layer = MultiHeadLatentAttention(
            d_model=E,
            n_heads=3,
            kv_lora_rank=14,
            qk_nope_head_dim=10,
            qk_rope_head_dim=8,
            v_head_dim=6,
        ).double()
    else:
        layer = variant(name, rope_theta=100.0)
    x = tokens(3, T, E)
    exported = torch.export.export(
        layer, (x,), dynamic_shapes={"x": {1: LENGTHS[length]}}
    ).module()
    for T_ in (T, 13, 2):
        x = tokens(3, T_, E)
        assert relative_error(exported(x), layer(x)) <= 1e-12


def test_torch_bounds_a_length_with_a_name_where_heads_are_stacked():
    """As the page of the cache says, until torch can prove it wrong."""
    with pytest.raises(UserError, match=r"Constraints violated \(T\)"):
        torch.export.export(
            variant("gqa"),
            (tokens(3, T, E),),
            dynamic_shapes={"x": {1: LENGTHS["by name"]}},
        )


def test_cross_attention_compiles_for_any_length():
    layer = CrossAttention(d_model=E, n_heads=H).double()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    valid = torch.arange(11) < torch.tensor([[3], [11]])
    for T, S, named in ((5, 7, {}), (9, 11, {}), (9, 11, {"mask": valid})):
        x, context = tokens(B, T, E), tokens(B, S, E)
        named = {name: padding_mask(m) for name, m in named.items()}
        want = layer(x, context, **named)
        assert relative_error(compiled(x, context, **named), want) == 0


def test_heads_are_merged_by_position():
    # --8<-- [start:merge]
    heads = torch.arange(12).view(1, 2, 3, 2)  # 2 heads, 3 positions, width 2
    right = heads.transpose(1, 2).reshape(1, 3, 4)
    wrong = heads.transpose(-1, -2).reshape(1, 3, 4)
    assert right[0].tolist() == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    assert wrong[0].tolist() == [[0, 2, 4, 1], [3, 5, 6, 8], [10, 7, 9, 11]]
    # --8<-- [end:merge]


def test_a_right_padded_row_is_the_row_alone():
    layer, x = variant("mha"), tokens(B, T, E)
    # --8<-- [start:padded]
    from attnref import padding_mask

    valid = torch.tensor([[True] * 5 + [False] * 2, [True] * 7])
    together = layer(x, mask=padding_mask(valid))
    alone = layer(x[:1, :5])
    assert torch.allclose(together[:1, :5], alone, rtol=0, atol=1e-12)
    # --8<-- [end:padded]


def test_dropout_is_for_training():
    x = tokens(B, T, E)
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
    x = tokens(B, T, E)
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
    k = torch.tensor([10, 20, 30]).view(1, 3, 1, 1)  # 3 key heads, for 6
    together = k.repeat_interleave(2, dim=1).flatten()
    assert together.tolist() == [10, 10, 20, 20, 30, 30]  # head h reads h // 2
    in_turn = k.repeat(1, 2, 1, 1).flatten()
    assert in_turn.tolist() == [10, 20, 30, 10, 20, 30]  # reads h % 3: wrong
    # --8<-- [end:order]


def test_mean_pooling_is_exact_where_heads_are_alike():
    # --8<-- [start:pooled]
    from torch import nn

    mha = MultiHeadAttention(d_model=24, n_heads=6).double()
    nn.init.normal_(mha.q_proj.weight)  # sharp: flat weights hide mistakes
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    gap = (mha_to_gqa(mha, 3)(x) - mha(x)).abs().max()
    assert gap > 0.01  # in general, training has to close this
    with torch.no_grad():
        for p in mha.k_proj, mha.v_proj:
            heads = p.weight.view(3, 2, 4, 24)  # pairs of heads
            heads[:, 1] = heads[:, 0]  # each pair made alike
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


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_cross_attention_reads_real_tokens_only(kv_heads):
    layer = CrossAttention(d_model=24, n_heads=6, n_kv_heads=kv_heads).double()
    x, context = tokens(B, T, 24), tokens(B, S, 24)
    valid = torch.arange(S) < torch.tensor([[4], [S]])
    got = layer(x, context, mask=padding_mask(valid))
    alone = layer(x[:1], context[:1, :4])
    assert relative_error(got[:1], alone) <= 1e-12


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
