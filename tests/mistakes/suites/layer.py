"""Of the layers, of converted weights and of a whole model."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.mistakes.laws import (
    cache_is_a_list,
    context_is_seen,
    decoding_is_the_full_pass,
    equal_heads_pool,
    equals_multihead_attention,
    evaluation_repeats,
    every_weight_is_used,
    float8_is_near,
    future_is_hidden,
    head_width_is_free,
    layer_equals_torch,
    layouts_agree,
    new_context_is_read,
    pads_are_unseen,
    pads_change_nothing,
    refusal_changes_nothing,
    residual_passes,
    rope_is_as_published,
)


def tokens(*shape: int) -> Tensor:
    """Inputs, the same each time."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator)


def filled(module: Any) -> Any:
    """With the same weights each time, so large that softmax decides."""
    generator = torch.Generator().manual_seed(2)
    for weight in module.parameters():
        nn.init.normal_(weight, std=0.5, generator=generator)
    return module.requires_grad_(False)


def without_rope(form: Any, n_kv_heads: int = 2) -> tuple[Any, ...]:
    """GQA as PyTorch has it."""
    rope, form.rope = form.rope, lambda x, *_: x
    layer = filled(form.GQA(8, 4, n_kv_heads))

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Any:
            old, form.rope = form.rope, lambda x, *_: x
            try:
                return layer(x)
            finally:
                form.rope = old

    form.rope = rope
    return Layer(), layer

SUITES = {}
