"""How a reader uses the tests to copy."""

import torch

from attnref.judge.properties import future_is_hidden


def test_a_layer_that_is_checked():
    # --8<-- [start:use]
    from attnref import GroupedQueryAttention

    layer = GroupedQueryAttention(d_model=24, n_heads=6, n_kv_heads=2)
    for weight in layer.parameters():
        weight.data *= 5
    future_is_hidden(layer, torch.randn(3, 7, 24))
    # --8<-- [end:use]
