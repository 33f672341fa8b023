"""The plain forms at work: the example that stands below each on its page."""

import torch

from attnref.plain.attention import attention
from attnref.plain.gqa import GQA, KVCache


def test_attention():
    # --8<-- [start:attention]
    mask = torch.tensor([[True, False], [True, True]])
    q = k = v = torch.tensor([[[[2.0, 0.0], [1.0, 1.0]]]])  # two tokens
    out = attention(q, k, v, mask)
    assert out.tolist() == [[[[2.0, 0.0], [1.5, 0.5]]]]
    # --8<-- [end:attention]


def test_gqa():
    # --8<-- [start:gqa]
    layer = GQA(d_model=64, n_heads=8, n_kv_heads=2)  # heads of width 8
    x = torch.randn(3, 7, 64)  # three sequences of seven tokens
    cache = KVCache(max_len=7)
    steps = [layer(token, cache) for token in x.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), layer(x))
    assert cache.stored.shape == (2, 3, 2, 7, 8)  # keys and values of 2 heads
    # --8<-- [end:gqa]
