"""Rotary position embedding (RoPE). Needs only PyTorch."""

import torch


def rope(x, positions, theta=10000.0):
    """Rotate x (B, H, T, D) by its positions (T,): p and p + D/2 are a pair."""
    D = x.shape[-1]
    if D % 2:
        raise ValueError(f"{D=} is odd: RoPE rotates pairs of elements")
    p = torch.arange(D // 2, device=x.device).double()  # float32 is too coarse
    angle = positions[:, None] * theta ** (-2 * p / D)  # (T, D // 2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)  # (T, D // 2)
    a, b = x.chunk(2, dim=-1)  # (..., T, D // 2)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
