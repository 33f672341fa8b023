"""The relative bias beside the attention of T5.

Softcap, sinks and ALiBi: tests/released/oracles/test_layers.py.
"""

import pytest
import torch
from torch import nn
from transformers.models.t5 import modeling_t5 as t5

from attnref import RelativeBias, causal_mask, flash, sdpa, split_kv
from attnref.core.heads import merge_heads, split_heads
from tests.kit.compare import relative_error

B, T, E, D = 3, 13, 24, 8
EXACT, BOUND, WRONG = 1e-12, 1e-6, 1e-2


def made(kind, *given, **options):
    """A layer whose scores are far apart; `torch.empty` is filled, too."""
    layer = kind(*given, **options).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def additive(seen, dtype=torch.float32):
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, -torch.inf)


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
