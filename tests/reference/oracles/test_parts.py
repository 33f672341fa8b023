"""Softcap, sinks and biases beside the attention of models that have them.

Each oracle projects with its own weights; RoPE is left out by angles of zero.
"""

import pytest
import torch
from torch import nn
from transformers.models.bloom import modeling_bloom as bloom
from transformers.models.gemma2 import modeling_gemma2 as gemma2
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.mpt import modeling_mpt as mpt
from transformers.models.t5 import modeling_t5 as t5

from attnref import (
    Alibi,
    Causal,
    RelativeBias,
    RuleMask,
    Window,
    causal_mask,
    flash,
    sdpa,
    split_kv,
)
from attnref.core.heads import merge_heads, split_heads
from tests.kit.compare import relative_error

B, T, E, D = 3, 13, 24, 8
EXACT, BOUND, WRONG = 1e-12, 1e-6, 1e-2


def made(kind, *given, **told):
    """A layer whose scores are far apart; `torch.empty` is filled, too."""
    layer = kind(*given, **told).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def additive(seen, dtype=torch.float32):
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, -torch.inf)


def heads(layer, x, n_heads, n_kv_heads):
    q = split_heads(layer.q_proj(x), n_heads)
    k, v = (split_heads(p(x), n_kv_heads) for p in (layer.k_proj, layer.v_proj))
    return q, k, v


def angles_of_zero(width, dtype):
    return torch.ones(B, T, width, dtype=dtype), torch.zeros(
        B, T, width, dtype=dtype
    )


@torch.no_grad()
@pytest.mark.parametrize("core", [sdpa, flash, split_kv])
def test_the_sinks_of_gpt_oss(core):
    config = gpt_oss.GptOssConfig(
        hidden_size=E,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=D,
        sliding_window=5,
        num_hidden_layers=1,
        attn_implementation="eager",
    )
    layer = made(gpt_oss.GptOssAttention, config, 0).double()
    x = torch.randn(B, T, E).double()
    seen = RuleMask(Window(5), T, T, 0)
    want = layer(
        x,
        angles_of_zero(D // 2, x.dtype),
        additive(seen.dense(), x.dtype)[None, None],
    )[0]
    q, k, v = heads(layer, x, 6, 2)

    def error(**told):
        out = layer.o_proj(merge_heads(core(q, k, v, seen, **told)))
        return relative_error(out, want)

    assert error(sinks=layer.sinks) <= EXACT
    assert error() >= WRONG
    assert error(sinks=layer.sinks * D**-0.5) >= WRONG


@torch.no_grad()
@pytest.mark.parametrize("core", [sdpa, flash, split_kv])
def test_the_softcap_of_gemma_2(core):
    config = gemma2.Gemma2Config(
        hidden_size=E,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=D,
        query_pre_attn_scalar=13,
        attn_logit_softcapping=3.0,
        num_hidden_layers=1,
        attn_implementation="eager",
    )
    layer = made(gemma2.Gemma2Attention, config, 0)
    x = torch.randn(B, T, E)
    seen = causal_mask(T)
    want = layer(x, angles_of_zero(D, x.dtype), additive(seen)[None, None])[0]
    q, k, v = heads(layer, x, 6, 2)

    def error(scale=13**-0.5, **told):
        mixed = core(q, k, v, seen, scale=scale, **told)
        return relative_error(layer.o_proj(merge_heads(mixed)), want)

    assert error(softcap=3.0) <= BOUND
    assert error() >= WRONG
    assert error(softcap=3.0 * 13**0.5) >= WRONG  # as if before the scale
    assert error(softcap=3.0, scale=D**-0.5) >= WRONG


@torch.no_grad()
@pytest.mark.parametrize("core", [sdpa, flash, split_kv])
@pytest.mark.parametrize("H", [6, 8])
def test_the_alibi_of_bloom_and_mpt(core, H):
    x = torch.randn(B, T, H * D).double()
    seen = RuleMask(Causal(), T, T, 0)
    config = bloom.BloomConfig(
        hidden_size=H * D, n_head=H, attention_dropout=0.0, hidden_dropout=0.0
    )
    layer = made(bloom.BloomAttention, config, 0).double()
    valid = torch.ones(B, T, dtype=torch.long)
    want = layer(
        x,
        torch.zeros_like(x),
        bloom.build_alibi_tensor(valid, H, x.dtype),
        additive(seen.dense(), x.dtype)[None, None],
    )[0]
    q, k, v = layer._reshape(layer.query_key_value(x))
    out = layer.dense(merge_heads(core(q, k, v, seen, bias=Alibi(H))))
    assert relative_error(out, want) <= BOUND
    out = layer.dense(merge_heads(core(q, k, v, seen)))
    assert relative_error(out, want) >= WRONG

    config = mpt.MptConfig(d_model=H * D, n_heads=H)
    layer = made(mpt.MptAttention, config).double()
    bias = mpt.build_mpt_alibi_tensor(H, T).double()
    want = layer(x, bias, None, ~causal_mask(T)[None, None])[0]
    q, k, v = (split_heads(y, H) for y in layer.Wqkv(x).chunk(3, dim=-1))
    out = layer.out_proj(merge_heads(core(q, k, v, seen, bias=Alibi(H))))
    assert relative_error(out, want) <= BOUND


@torch.no_grad()
@pytest.mark.parametrize("core", [sdpa, flash, split_kv])
@pytest.mark.parametrize("is_decoder", [True, False])
def test_the_relative_bias_of_t5(core, is_decoder):
    long = 157  # beyond the last class of distances
    config = t5.T5Config(
        d_model=E, d_kv=D, num_heads=6, is_decoder=is_decoder, dropout_rate=0.0
    )
    layer = made(
        t5.T5Attention, config, has_relative_attention_bias=True, layer_idx=0
    ).double()
    x = torch.randn(B, long, E).double()
    seen = causal_mask(long) if is_decoder else torch.ones(long, long).bool()
    want = layer(x, additive(seen, x.dtype)[None, None])[0]
    q, k, v = (split_heads(p(x), 6) for p in (layer.q, layer.k, layer.v))
    table = layer.relative_attention_bias.weight
    bias = RelativeBias(table, bidirectional=not is_decoder)
    mixed = core(q, k, v, seen, scale=1.0, bias=bias)
    assert relative_error(layer.o(merge_heads(mixed)), want) <= EXACT
    other = RelativeBias(table, bidirectional=is_decoder)
    mixed = core(q, k, v, seen, scale=1.0, bias=other)
    assert relative_error(layer.o(merge_heads(mixed)), want) >= WRONG
