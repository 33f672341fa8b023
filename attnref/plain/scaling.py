"""RoPE scaling: slower frequencies for texts longer than in training.

Needs only PyTorch.
"""

import torch


def frequencies(D, theta=10000.0):
    """(D // 2,): the angle of each pair per token, the fastest first."""
    return theta ** (-torch.arange(0, D, 2).double() / D)  # (D // 2,)


def linear(f, factor):
    return f / factor  # (D // 2,)


def ntk(f, factor):
    """The first pair stays, the last one is slowed by the factor."""
    p = torch.arange(len(f)).double()  # (D // 2,)
    return f * factor ** (-p / max(len(f) - 1, 1))  # (D // 2,)


def llama3(f, factor, length, low=1.0, high=4.0):
    """Pairs with few turns within the trained length are slowed."""
    turns = length * f / (2 * torch.pi)  # (D // 2,)
    kept = ((turns - low) / (high - low)).clamp(0, 1)  # (D // 2,)
    return f * kept + f / factor * (1 - kept)  # (D // 2,)


def yarn(f, factor, length, fast=32.0, slow=1.0):
    """As llama3, but linear in p; and the size of cosines and sines."""
    if len(f) < 2:
        raise ValueError(f"YaRN takes the base from f[1], and {len(f)=}")
    p = torch.arange(len(f)).double()  # (D // 2,)
    ends = 2 * torch.pi * f.new_tensor([fast, slow]) / length  # as frequencies
    ends = ends.log() / f[1].log()  # as pairs: the logarithm of f is linear
    first, last = ends[0].floor().clamp(min=0), ends[1].ceil()
    last = last.clamp(max=2 * len(f) - 1)
    slowed = ((p - first) / (last - first or 0.001)).clamp(0, 1)  # (D // 2,)
    size = 0.1 * f.new_tensor(factor).log().item() + 1
    return f * (1 - slowed) + f / factor * slowed, size


def rotate(x, positions, f, size=1.0):
    """Rotate x (B, H, T, D) as RoPE does, with these frequencies."""
    if x.shape[-1] != 2 * len(f):
        raise ValueError(f"D={x.shape[-1]}, and {len(f)} pairs to rotate")
    angle = positions[:, None] * f  # (T, D // 2)
    cos, sin = (size * t.to(x.dtype) for t in (angle.cos(), angle.sin()))
    a, b = x.chunk(2, dim=-1)  # (..., T, D // 2)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
