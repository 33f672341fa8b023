"""RoPE scaling: slower frequencies for texts longer than those of training.

Needs PyTorch alone.
"""

import math

import torch


def frequencies(D, theta=10000.0):
    """(D // 2,): the angle of each pair per token, the fastest first."""
    return theta ** (-torch.arange(0, D, 2).double() / D)  # (D // 2,)


def linear(f, factor):
    return f / factor  # (D // 2,)


def ntk(f, factor):
    """The first pair stays, the last one is slowed by the factor."""
    p = torch.arange(len(f)).double()  # (D // 2,)
    return f * factor ** (-p / (len(f) - 1))  # (D // 2,)


def llama3(f, factor, length, low=1.0, high=4.0):
    """Pairs with few turns within the trained length are slowed."""
    turns = length * f / (2 * math.pi)  # (D // 2,)
    kept = ((turns - low) / (high - low)).clamp(0, 1)  # (D // 2,)
    return f * kept + f / factor * (1 - kept)  # (D // 2,)


def yarn(f, theta, factor, length, fast=32.0, slow=1.0):
    """The same pairs, blended by p, and the size of cosines and sines."""
    D = 2 * len(f)
    wave = [length / (2 * math.pi * turns) for turns in (fast, slow)]
    first, last = (D * math.log(x) / (2 * math.log(theta)) for x in wave)
    first, last = max(math.floor(first), 0), min(math.ceil(last), D - 1)
    p = torch.arange(D // 2).double()  # (D // 2,)
    slowed = ((p - first) / (last - first or 0.001)).clamp(0, 1)  # (D // 2,)
    return f * (1 - slowed) + f / factor * slowed, 0.1 * math.log(factor) + 1


def rotate(x, positions, f, size=1.0):
    """Rotate x (B, H, T, D) as RoPE does, with these frequencies."""
    angle = positions[:, None] * f  # (T, D // 2)
    cos, sin = (size * t.to(x.dtype) for t in (angle.cos(), angle.sin()))
    a, b = x.chunk(2, dim=-1)  # (..., T, D // 2)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
