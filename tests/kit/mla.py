"""A small MLA layer with weights that are sharp, in all its options."""

import torch

from attnref import MultiHeadLatentAttention, Rope
from tests.kit.layers import STRETCHED, sharp

B, T, E, H = 3, 9, 24, 5
R, DN, DR, DV, Q = 14, 10, 8, 6, 20
FORMS = ["expanded", "latent", "absorbed"]

OPTIONS = [
    {},
    {"q_lora_rank": Q, "bias": True},
    {"rope": Rope()},
    {"rope": STRETCHED, "q_lora_rank": Q},
    {"causal": False},
]


def mla(**options):
    layer = MultiHeadLatentAttention(
        d_model=E,
        n_heads=H,
        kv_lora_rank=R,
        qk_nope_head_dim=DN,
        qk_rope_head_dim=DR,
        v_head_dim=DV,
        **options,
    )
    return sharp(layer)


def tokens(*shape):
    return torch.randn(*(shape or (B, T, E)), dtype=torch.float64)
