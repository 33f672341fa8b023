"""The layers against torch's own attention, in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import causal_lower_right

from attnref import (
    CrossAttention,
    GroupedQueryAttention,
    GrowingKVCache,
    KVCache,
    MultiHeadAttention,
    MultiQueryAttention,
    attention_weights,
    padding_mask,
    weights_of_torch_mha,
)
from tests.conftest import relative_error

B, T, S, H, D, CONTEXT = 2, 5, 11, 8, 3, 13
E = H * D  # nn.MultiheadAttention has no head_dim
WIDE = 7  # a head_dim that d_model does not give
BOUND = 1e-12


@pytest.fixture(autouse=True)
def _float64(_seed):
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def sharpened(layer):
    """Weights that peak softmax, and biases that are not zero."""
    for weight in layer.parameters():
        nn.init.normal_(weight, std=0.5)
    return layer.eval()


def heads_of(projected, width):
    return projected.unflatten(-1, (-1, width)).transpose(1, 2)


# What nn.MultiheadAttention offers, next to layers with its weights.


def pair(*, cross, bias=True, d_context=None, dropout=0.0):
    """Its weights come first: the copy is made from them."""
    theirs = sharpened(
        nn.MultiheadAttention(
            E,
            H,
            bias=bias,
            kdim=d_context,
            vdim=d_context,
            dropout=dropout,
            batch_first=True,
        )
    )
    sizes = {"d_model": E, "n_heads": H, "bias": bias, "dropout": dropout}
    if cross:
        ours = CrossAttention(**sizes, d_context=d_context)
    else:
        ours = MultiHeadAttention(**sizes, causal=False)
    ours.load_state_dict(weights_of_torch_mha(theirs))
    return ours.eval(), theirs


def inputs(*, cross, d_context=None):
    x = torch.randn(B, T, E)
    return x, torch.randn(B, S, d_context or E) if cross else x


def some_keys(*shape):
    """A bool mask, True = may attend, with a key for each query: where there
    is none, nn.MultiheadAttention gives NaN."""
    mask = torch.rand(shape) > 0.5
    mask[..., 0] = True
    return mask


def masks_for(name, keys):
    """Ours, and the same in the words of nn.MultiheadAttention."""
    valid = some_keys(B, keys)
    pairs, each_head = some_keys(T, keys), some_keys(B, H, T, keys)
    return {
        "none": (None, {}),
        "padding": (padding_mask(valid), {"key_padding_mask": ~valid}),
        "pairs": (pairs, {"attn_mask": ~pairs}),
        "each head": (each_head, {"attn_mask": ~each_head.flatten(0, 1)}),
        "both": (
            padding_mask(valid) & pairs,
            {"key_padding_mask": ~valid, "attn_mask": ~pairs},
        ),
    }[name]


KINDS = {
    "self": {"cross": False},
    "cross": {"cross": True},
    "cross, of another width": {"cross": True, "d_context": CONTEXT},
}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
masks = pytest.mark.parametrize(
    "mask", ["none", "padding", "pairs", "each head", "both"]
)


@kinds
@masks
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize(
    "gradients",
    [torch.no_grad, torch.enable_grad],  # without: its fast path
)
def test_outputs_are_those_of_multihead_attention(kind, mask, bias, gradients):
    ours, theirs = pair(**kind, bias=bias)
    x, context = inputs(**kind)
    mask, told = masks_for(mask, context.shape[1])
    given = (x, context) if kind["cross"] else (x,)
    with gradients():
        want, _ = theirs(x, context, context, need_weights=False, **told)
        assert relative_error(ours(*given, mask=mask), want) <= BOUND


@kinds
@masks
def test_weights_are_those_of_multihead_attention(kind, mask):
    ours, theirs = pair(**kind)
    x, context = inputs(**kind)
    mask, told = masks_for(mask, context.shape[1])
    _, want = theirs(x, context, context, average_attn_weights=False, **told)
    q, k = heads_of(ours.q_proj(x), D), heads_of(ours.k_proj(context), D)
    assert want.max() > 0.9, "too flat to show a fault"
    assert relative_error(attention_weights(q, k, mask), want) <= BOUND


@kinds
def test_gradients_are_those_of_multihead_attention(kind):
    ours, theirs = pair(**kind)
    x, context = (t.requires_grad_() for t in inputs(**kind))
    want, _ = theirs(x, context, context)
    given = (x, context) if kind["cross"] else (x,)
    to = ours(*given), want
    ours, theirs = (torch.autograd.grad(y.square().sum(), given) for y in to)
    for our, their in zip(ours, theirs, strict=True):
        assert relative_error(our, their) <= BOUND


@kinds
def test_dropout_drops_what_multihead_attention_drops(kind):
    ours, theirs = pair(**kind, dropout=0.4)
    x, context = inputs(**kind)
    given = (x, context) if kind["cross"] else (x,)
    torch.manual_seed(1)
    want, _ = theirs.train()(x, context, context)
    torch.manual_seed(1)
    assert relative_error(ours.train()(*given), want) <= BOUND
    want, _ = theirs.eval()(x, context, context)
    assert relative_error(ours.eval()(*given), want) <= BOUND


def test_where_multihead_attention_gives_nan_a_blind_query_gives_zeros():
    ours, theirs = pair(cross=True, bias=False)
    x, context = inputs(cross=True)
    mask = some_keys(T, S)
    mask[2] = False
    want, _ = theirs(x, context, context, attn_mask=~mask)
    got = ours(x, context, mask=mask)
    assert want[:, 2].isnan().all()
    assert (got[:, 2] == 0).all()
    seeing = mask.any(-1)
    assert relative_error(got[:, seeing], want[:, seeing]) <= BOUND


# What F.scaled_dot_product_attention makes of a layer's own projections.

SIZES = {
    "d_model": CONTEXT,
    "n_heads": H,
    "head_dim": WIDE,
    "bias": True,
    "dropout": 0.4,  # in training only
}
LAYERS = {
    "MHA": (MultiHeadAttention, {}),
    "GQA of 8": (GroupedQueryAttention, {"n_kv_heads": 8}),
    "GQA of 2": (GroupedQueryAttention, {"n_kv_heads": 2}),
    "GQA of 1": (GroupedQueryAttention, {"n_kv_heads": 1}),
    "MQA": (MultiQueryAttention, {}),
}
layers = pytest.mark.parametrize(("kind", "heads"), LAYERS.values(), ids=LAYERS)


def through_torch(layer, x, context, mask=None, last=None, dropout=0.0):
    """The `last` queries, all unless given, and torch's attention."""
    q = heads_of(layer.q_proj(x), WIDE)
    k, v = (heads_of(p(context), WIDE) for p in (layer.k_proj, layer.v_proj))
    heads = F.scaled_dot_product_attention(
        q[:, :, -(last or x.shape[1]) :],
        k,
        v,
        attn_mask=mask,
        dropout_p=dropout,
        enable_gqa=True,
    )
    return layer.o_proj(heads.transpose(1, 2).flatten(2))


def random_mask(name, T, S):
    """Some queries may see nothing: zeros, for torch too."""
    return {
        "none": None,
        "padding": padding_mask(torch.rand(B, S) > 0.5),
        "pairs": torch.rand(T, S) > 0.5,
        "each head": torch.rand(B, H, T, S) > 0.5,
        "nothing": torch.zeros(T, S, dtype=torch.bool),
    }[name]


every_mask = pytest.mark.parametrize(
    "mask", ["none", "padding", "pairs", "each head", "nothing"]
)


@layers
@every_mask
def test_a_layer_is_its_projections_around_torchs_attention(kind, heads, mask):
    layer = sharpened(kind(**SIZES, **heads, causal=False))
    x = torch.randn(B, T, CONTEXT)
    mask = random_mask(mask, T, T)
    want = through_torch(layer, x, x, mask)
    assert relative_error(layer(x, mask=mask), want) <= BOUND


@layers
def test_a_layer_is_causal_as_torch_is(kind, heads):
    layer = sharpened(kind(**SIZES, **heads))
    x = torch.randn(B, T, CONTEXT)
    want = through_torch(layer, x, x, causal_lower_right(T, T))
    assert relative_error(layer(x), want) <= BOUND


@layers
def test_a_layer_drops_what_torch_drops(kind, heads):
    layer = sharpened(kind(**SIZES, **heads, causal=False)).train()
    x = torch.randn(B, T, CONTEXT)
    torch.manual_seed(1)
    want = through_torch(layer, x, x, dropout=0.4)
    torch.manual_seed(1)
    assert relative_error(layer(x), want) <= BOUND


@layers
@every_mask
@pytest.mark.parametrize("new", [1, T])
@pytest.mark.parametrize("room", [lambda: KVCache(S), GrowingKVCache])
def test_new_tokens_see_the_cache_and_no_later_one(
    kind, heads, mask, new, room
):
    layer, cache = sharpened(kind(**SIZES, **heads)), room()
    x = torch.randn(B, S, CONTEXT)
    mask = random_mask(mask, new, S)
    lower_right = torch.ones(new, S, dtype=torch.bool).tril(S - new)
    both = causal_lower_right(new, S) if mask is None else mask & lower_right
    with torch.no_grad():
        layer(x[:, :-new], cache=cache)
        got = layer(x[:, -new:], mask=mask, cache=cache)
        want = through_torch(layer, x, x, both, last=new)
    assert relative_error(got, want) <= BOUND


@every_mask
@pytest.mark.parametrize("kv_heads", [8, 2, 1])
@pytest.mark.parametrize("cached", [False, True])
def test_cross_attention_may_be_grouped_as_torchs(mask, kv_heads, cached):
    sizes = SIZES | {"n_kv_heads": kv_heads, "d_context": CONTEXT + 4}
    layer, cache = sharpened(CrossAttention(**sizes)), KVCache(S)
    x, context = torch.randn(B, T, CONTEXT), torch.randn(B, S, CONTEXT + 4)
    mask = random_mask(mask, T, S)
    with torch.no_grad():
        if cached:
            layer(x, context, cache=cache)
            got = layer(x, mask=mask, cache=cache)
        else:
            got = layer(x, context, mask=mask)
        want = through_torch(layer, x, context, mask)
    assert relative_error(got, want) <= BOUND
