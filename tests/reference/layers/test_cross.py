"""Cross-attention: what its page says of it."""

import pytest
import torch
from torch import nn

from attnref import CrossAttention, KVCache, weights_of_torch_mha
from attnref.numbers.cost import cross_cost
from tests.cores import ATTEND
from tests.kit.compare import relative_error
from tests.kit.layers import HEADS, B, C, K, S, T, Variant, full, tokens

VARIANT = Variant(
    CrossAttention,
    HEADS | {"n_kv_heads": K, "d_context": C},
    cross_cost,
    full(K),
    options=({}, {"bias": True}),
)


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


@pytest.mark.filterwarnings("ignore")  # flex asks to be compiled
@pytest.mark.parametrize("attend", ATTEND.values(), ids=ATTEND)
@torch.no_grad()
def test_rows_of_a_context_that_were_cropped_differ_in_length(attend):
    theirs = nn.MultiheadAttention(24, 6, kdim=20, vdim=20, batch_first=True)
    ours = CrossAttention(
        d_model=24, n_heads=6, d_context=20, bias=True, attend=attend
    ).double()
    ours.load_state_dict(weights_of_torch_mha(theirs.double()))
    x, context = tokens(B, T, 24), tokens(B, S, 20)
    cache, lengths = KVCache(S), torch.arange(S, S - B, -1)
    ours(x, context, cache=cache)
    cache.crop(lengths)
    pads = torch.arange(S) >= lengths[:, None]
    want, _ = theirs(x, context, context, key_padding_mask=pads)
    for some in (slice(None), slice(2, 3)):
        got = ours(x[:, some], cache=cache)
        assert relative_error(got, want[:, some]) <= 1e-12
