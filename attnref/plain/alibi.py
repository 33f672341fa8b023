"""ALiBi and softcap: what is done to scores. Needs only PyTorch."""

import torch


def slopes(n_heads):
    """(H,): 2 ** (-8 / H) and its powers, if H is a power of 2."""
    P = 2 ** (n_heads.bit_length() - 1)  # the largest power of 2 up to H
    # Beyond P, every other slope of 2 * P heads, between the slopes of P.
    order = [h + 1 if h < P else h - P + 0.5 for h in range(n_heads)]
    # In Python: torch.exp2 of float32 depends on the processor and on H.
    return torch.tensor([2 ** (-8 / P * n) for n in order])


def alibi(n_heads, T, S=None):
    """(H, T, S), added to scaled scores: the queries are the last T tokens."""
    S = T if S is None else S
    distance = torch.arange(S - T, S)[:, None] - torch.arange(S)  # (T, S)
    return -slopes(n_heads)[:, None, None] * distance.abs()  # (H, T, S)


def biased_attention(q, k, v, bias=None, softcap=None, mask=None):
    """Scale, bias, softcap, mask, softmax: in this order."""
    scores = q @ k.mT / q.shape[-1] ** 0.5  # (B, H, T, S)
    if bias is not None:
        scores = scores + bias  # (B, H, T, S)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()  # (B, H, T, S)
    if mask is not None:
        scores = scores.masked_fill(~mask.expand_as(scores), -torch.inf)
    weights = scores.softmax(dim=-1)  # (B, H, T, S)
    weights = weights.nan_to_num(0.0)  # (B, H, T, S); a query that sees no key
    return weights.to(v.dtype) @ v  # (B, H, T, Dv)
