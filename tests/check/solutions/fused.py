"""PyTorch's own attention: F.scaled_dot_product_attention, and its module.

It computes in the dtype of its inputs and rounds otherwise than the plain
forms; RoPE's angles are in float32, as in transformers.
"""

import torch
import torch.nn.functional as F
from torch import nn


def sdpa(q, k, v, mask=None):
    out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    return out if mask is None else out * mask.any(-1, keepdim=True)


def gqa(x, w_q, w_k, w_v, w_o, n_heads, n_kv_heads, mask=None):
    q, k, v = F.linear(x, w_q), F.linear(x, w_k), F.linear(x, w_v)
    q = q.unflatten(-1, (n_heads, -1)).transpose(1, 2)
    k, v = (y.unflatten(-1, (n_kv_heads, -1)).transpose(1, 2) for y in (k, v))
    return F.linear(sdpa(q, k, v, mask).transpose(1, 2).flatten(2), w_o)


def mha(x, w_q, w_k, w_v, w_o, n_heads, mask=None):
    """A new module draws random weights, and these have gradients, too. In its
    mask True hides a key, and a row without keys would be NaN."""
    B, T, E = x.shape
    layer = nn.MultiheadAttention(E, n_heads, bias=False, batch_first=True)
    layer.in_proj_weight = nn.Parameter(torch.cat((w_q, w_k, w_v)))
    layer.out_proj.weight = nn.Parameter(torch.eye(E).to(w_o))
    if mask is None:
        mask = torch.ones(T, T, dtype=torch.bool)
    mask = mask.expand(B, n_heads, T, T)
    sees_key = mask.any(-1, keepdim=True)
    hides = (~mask & sees_key).flatten(0, 1)
    out, _ = layer(x, x, x, attn_mask=hides, need_weights=False)
    heads = out.view(B, T, n_heads, -1).transpose(1, 2) * sees_key
    return F.linear(heads.transpose(1, 2).flatten(2), w_o)


def mqa(x, w_q, w_k, w_v, w_o, n_heads, mask=None):
    return gqa(x, w_q, w_k, w_v, w_o, n_heads, 1, mask)


def cross(x, context, w_q, w_k, w_v, w_o, n_heads, mask=None):
    q = F.linear(x, w_q).unflatten(-1, (n_heads, -1)).transpose(1, 2)
    k, v = (
        F.linear(context, w).unflatten(-1, (n_heads, -1)).transpose(1, 2)
        for w in (w_k, w_v)
    )
    return F.linear(sdpa(q, k, v, mask).transpose(1, 2).flatten(2), w_o)


def llama(
    x, w_q, w_k, w_v, w_o, n_heads, n_kv_heads, theta=10000.0, cache=None
):
    """RoPE as in transformers: tables as wide as a head, in float32."""
    past = 0 if cache is None else cache[0].shape[2]
    T, D = x.shape[1], x.shape[2] // n_heads
    q = F.linear(x, w_q).unflatten(-1, (n_heads, D)).transpose(1, 2)
    k, v = (
        F.linear(x, w).unflatten(-1, (n_kv_heads, D)).transpose(1, 2)
        for w in (w_k, w_v)
    )
    inverse = 1.0 / theta ** (torch.arange(0, D, 2).float() / D)
    angles = torch.arange(past, past + T).float()[:, None] * inverse
    angles = torch.cat((angles, angles), dim=-1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    def rotate_half(y):
        a, b = y.chunk(2, dim=-1)
        return torch.cat((-b, a), dim=-1)

    q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
    if cache is not None:
        k, v = (
            torch.cat(two, dim=2) for two in zip(cache, (k, v), strict=True)
        )
    mask = torch.ones(T, past + T, dtype=torch.bool).tril(past)
    out = sdpa(q, k, v, mask).transpose(1, 2).flatten(2)
    return F.linear(out, w_o), (k, v)


def mha_cached(x, w_q, w_k, w_v, w_o, n_heads, cache=None):
    q, k, v = (
        F.linear(x, w).unflatten(-1, (n_heads, -1)).transpose(1, 2)
        for w in (w_q, w_k, w_v)
    )
    if cache is not None:
        k, v = (
            torch.cat(two, dim=2) for two in zip(cache, (k, v), strict=True)
        )
    T, S = q.shape[2], k.shape[2]
    out = sdpa(q, k, v, torch.ones(T, S, dtype=torch.bool).tril(S - T))
    return F.linear(out.transpose(1, 2).flatten(2), w_o), (k, v)


class Everyone(torch.autograd.Function):
    """x of all ranks, as the ranks of Llama 3 gather keys and values."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return group.gather(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.group.total(grad)[ctx.group.rank], None


def ring_attention(q, k, v, positions, group, first=None, sinks=None):
    """All keys at once; the sink is one more key, and the last."""
    k, v = (torch.cat(Everyone.apply(x, group).unbind(), 2) for x in (k, v))
    j = torch.cat(group.gather(positions).unbind(), 1)[:, None]
    mask = (j >= 0) & (j <= positions[:, :, None])
    if first is not None:
        mask = mask & (j >= first[:, :, None])
    mask = mask[:, None]
    if sinks is None:
        return sdpa(q, k, v, mask)
    bias = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -torch.inf)
    B, H, T, _ = q.shape
    sink = sinks.view(-1, 1, 1).expand(B, H, T, 1).to(q.dtype)
    bias = torch.cat((bias.expand(B, H, -1, -1), sink), dim=-1)
    k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, bias, enable_gqa=True)


def ulysses(q, k, v, positions, group):
    """Every rank computes some heads, of what all ranks gather."""
    n, r = group.size, group.rank
    heads, k = q.shape[1] // n, k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    v = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    q, k, v = (
        torch.cat(Everyone.apply(x, group).unbind(), 2)[:, r * heads :][
            :, :heads
        ]
        for x in (q, k, v)
    )
    p = torch.cat(group.gather(positions).unbind(), 1)
    mask = (p[:, None] >= 0) & (p[:, None] <= p[:, :, None])
    out = Everyone.apply(sdpa(q, k, v, mask[:, None]), group)
    T = positions.shape[1]
    return torch.cat(out.unbind(), 1)[:, :, r * T : (r + 1) * T]


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.group.gather(grad).sum(0), None


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return group.gather(x).sum(0)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def tensor_parallel(x, w_q, w_k, w_v, w_o, n_heads, n_kv_heads, group):
    x, n = Same.apply(x, group), group.size
    sharing = [
        r
        for r in range(n)
        if r * n_kv_heads // n == group.rank * n_kv_heads // n
    ]
    if len(sharing) > 1 and n_kv_heads < n:
        part = group.part(sharing)
        w_k, w_v = Same.apply(w_k, part), Same.apply(w_v, part)
    D = len(w_q) * n // n_heads
    q, k, v = (
        F.linear(x, w).unflatten(2, (-1, D)).transpose(1, 2)
        for w in (w_q, w_k, w_v)
    )
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    return Sum.apply(F.linear(out.transpose(1, 2).flatten(2), w_o), group)
