"""The layers against torch's own attention, in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnref import (
    CrossAttention,
    MultiHeadAttention,
    attention_weights,
    padding_mask,
    weights_of_torch_mha,
)
from tests.kit.compare import relative_error
from tests.kit.layers import B, C, D, H, K, S, T
from tests.variants import CACHES, built, inputs

E = H * D  # nn.MultiheadAttention has no head_dim
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


def heads_of(projected):
    return projected.unflatten(-1, (-1, D)).transpose(1, 2)


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


def sequences(*, cross, d_context=None):
    x = torch.randn(B, T, E)
    return x, torch.randn(B, S, d_context or E) if cross else x


def some_keys(*shape):
    """A bool mask, True = may attend, with a key for each query: where there
    is none, nn.MultiheadAttention gives NaN."""
    mask = torch.rand(shape) > 0.5
    mask[..., 0] = True
    return mask


def masks_for(keys):
    """Ours, and the same in the words of nn.MultiheadAttention."""
    valid = some_keys(B, keys)
    pairs, each_head = some_keys(T, keys), some_keys(B, H, T, keys)
    return (
        (None, {}),
        (padding_mask(valid), {"key_padding_mask": ~valid}),
        (pairs, {"attn_mask": ~pairs}),
        (each_head, {"attn_mask": ~each_head.flatten(0, 1)}),
        (
            padding_mask(valid) & pairs,
            {"key_padding_mask": ~valid, "attn_mask": ~pairs},
        ),
    )


KINDS = {
    "self": {"cross": False},
    "cross": {"cross": True},
    "cross, of another width": {"cross": True, "d_context": C},
}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@kinds
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_outputs_are_those_of_multihead_attention(kind, bias):
    ours, theirs = pair(**kind, bias=bias)
    x, context = sequences(**kind)
    given = (x, context) if kind["cross"] else (x,)
    for mask, more in masks_for(context.shape[1]):
        for gradients in (torch.enable_grad, torch.no_grad):
            with gradients():  # without: its fast path
                want = theirs(x, context, context, need_weights=False, **more)
                got = ours(*given, mask=mask)
            assert relative_error(got, want[0]) <= BOUND, more


@kinds
def test_weights_are_those_of_multihead_attention(kind):
    ours, theirs = pair(**kind)
    x, context = sequences(**kind)
    q, k = heads_of(ours.q_proj(x)), heads_of(ours.k_proj(context))
    for mask, more in masks_for(context.shape[1]):
        more = more | {"average_attn_weights": False}
        _, want = theirs(x, context, context, **more)
        assert want.max() > 0.9, "too flat to show a fault"
        assert relative_error(attention_weights(q, k, mask), want) <= BOUND


@kinds
def test_dropout_drops_what_multihead_attention_drops(kind):
    ours, theirs = pair(**kind, dropout=0.4)
    x, context = sequences(**kind)
    given = (x, context) if kind["cross"] else (x,)
    torch.manual_seed(1)
    want, _ = theirs.train()(x, context, context)
    torch.manual_seed(1)
    assert relative_error(ours.train()(*given), want) <= BOUND
    want, _ = theirs.eval()(x, context, context)
    assert relative_error(ours.eval()(*given), want) <= BOUND


def test_where_multihead_attention_gives_nan_a_blind_query_gives_zeros():
    ours, theirs = pair(cross=True, bias=False)
    x, context = sequences(cross=True)
    mask = some_keys(T, S)
    mask[2] = False
    want, _ = theirs(x, context, context, attn_mask=~mask)
    got = ours(x, context, mask=mask)
    assert want[:, 2].isnan().all()
    assert (got[:, 2] == 0).all()
    seeing = mask.any(-1)
    assert relative_error(got[:, seeing], want[:, seeing]) <= BOUND


# What F.scaled_dot_product_attention makes of a layer's own projections.

OPTIONS = {"bias": True, "dropout": 0.4}  # which drops in training only


def through_torch(layer, x, context, mask=None):
    q = heads_of(layer.q_proj(x))
    k, v = (heads_of(p(context)) for p in (layer.k_proj, layer.v_proj))
    heads = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, enable_gqa=True
    )
    return layer.o_proj(heads.transpose(1, 2).flatten(2))


def random_masks(T, S):
    """Some queries may see nothing: zeros, for torch too."""
    return (
        None,
        padding_mask(torch.rand(B, S) > 0.5),
        torch.rand(T, S) > 0.5,
        torch.rand(B, H, T, S) > 0.5,
        torch.zeros(T, S, dtype=torch.bool),
    )


@pytest.mark.parametrize("kv_heads", [H, K, 1])
@torch.no_grad()
def test_cross_attention_may_be_grouped_as_torchs(kv_heads):
    layer = sharpened(built("cross", n_kv_heads=kv_heads, **OPTIONS))
    x, context = inputs("cross")
    for mask in random_masks(T, S):
        want, cache = through_torch(layer, x, context, mask), CACHES["room"](S)
        for read, held in (
            ((x, context), None),
            ((x, context), cache),  # fills it
            ((x,), cache),
        ):
            got = layer(*read, mask=mask, cache=held)
            assert relative_error(got, want) <= BOUND
