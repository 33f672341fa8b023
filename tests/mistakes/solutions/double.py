"""In float64 inside, whatever the input is."""

import torch


def softmax(x, dim=-1):
    return x.double().softmax(dim).nan_to_num(0.0).to(x.dtype)


def online_softmax(x, chunk):
    parts = x.double().split(chunk, dim=-1)
    lse = torch.stack([p.logsumexp(-1) for p in parts]).logsumexp(0)
    weights = torch.cat([(p - lse[..., None]).exp() for p in parts], dim=-1)
    return weights.nan_to_num(0.0).to(x.dtype)


def sdpa(q, k, v, mask=None):
    return flash(q, k, v, mask)[0]


def flash(q, k, v, mask=None, tile=(2, 4)):
    scores = q.double() @ k.double().mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = scores.softmax(-1).nan_to_num(0.0)
    return (weights @ v.double()).to(q.dtype), lse


def mha(x, w_q, w_k, w_v, w_o, n_heads, mask=None):
    q, k, v = (
        (x.double() @ w.double().T).unflatten(-1, (n_heads, -1)).transpose(1, 2)
        for w in (w_q, w_k, w_v)
    )
    merged = sdpa(q, k, v, mask).transpose(1, 2).flatten(2)
    return (merged @ w_o.double().T).to(x.dtype)


def rope(x, positions, theta=10000.0):
    half = x.shape[-1] // 2
    p = torch.arange(half, dtype=torch.float64)
    angles = positions.double()[:, None] * theta ** (-p / half)
    a, b = x.double().chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def merge(outs, lses):
    lse = torch.stack([each.double() for each in lses])
    shares = lse.softmax(dim=0).nan_to_num(0.0)[..., None]
    mixed = (shares * torch.stack([o.double() for o in outs])).sum(0)
    return mixed.to(outs[0].dtype), lse.logsumexp(0)
