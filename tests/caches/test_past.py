"""What self-attention does with its heads, beside what the laws say of it."""

from collections import Counter

import pytest
import torch

from attnref import (
    GroupedQueryAttention,
    KVCache,
    MultiHeadLatentAttention,
    Window,
    padding_mask,
)
from attnref.core import masks
from tests.variants import CORES

SIZES = {"d_model": 12, "n_heads": 4}
LATENT = {
    "kv_lora_rank": 5,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 2,
    "v_head_dim": 3,
}
LAYERS = {
    "gqa": lambda **options: GroupedQueryAttention(
        **SIZES, n_kv_heads=2, **options
    ),
    "mla": lambda **options: MultiHeadLatentAttention(
        **SIZES, **LATENT, **options
    ),
}


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_a_mask_is_checked_once_on_its_way(name, core, monkeypatch):
    """A prompt, a chunk and a step, with pads and a window; by every core."""
    calls = Counter()

    def counted(place, name):
        function = getattr(place, name)

        def call(first, *rest):
            calls[name, type(first).__name__] += 1
            return function(first, *rest)

        monkeypatch.setattr(place, name, call)

    counted(masks, "check_mask")
    counted(Window, "check")
    layer = LAYERS[name](causal=Window(5), attend=CORES[core])
    x, valid, cache = torch.randn(3, 9, 12), torch.rand(3, 9) < 0.8, KVCache(9)
    for start, end in (0, 6), (6, 8), (8, 9):
        calls.clear()
        mask = padding_mask(valid[:, :end])
        layer(x[:, start:end], mask=mask, cache=cache)
        assert calls == {("check_mask", "Tensor"): 1, ("check", "Window"): 1}
