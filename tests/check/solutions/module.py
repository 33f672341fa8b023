"""With PyTorch's own nn.MultiheadAttention inside."""

import torch
from torch import nn


def attended(queries, keys, w_q, w_k, w_v, w_o, n_heads, mask):
    E, C = queries.shape[2], keys.shape[2]
    layer = nn.MultiheadAttention(
        E, n_heads, bias=False, kdim=C, vdim=C, batch_first=True
    )
    with torch.no_grad():
        if E == C:
            layer.in_proj_weight = nn.Parameter(torch.cat((w_q, w_k, w_v)))
        else:
            layer.q_proj_weight = nn.Parameter(w_q)
            layer.k_proj_weight = nn.Parameter(w_k)
            layer.v_proj_weight = nn.Parameter(w_v)
        layer.out_proj.weight = nn.Parameter(torch.eye(E).to(w_o))
    B, T, S = len(queries), queries.shape[1], keys.shape[1]
    hidden, some = None, 1
    if mask is not None:
        mask = mask.expand(B, n_heads, T, S)
        # In PyTorch's module, True = may NOT attend, and an empty row is NaN.
        some = mask.any(-1, keepdim=True)
        hidden = (~mask & some).reshape(B * n_heads, T, S)
    out, _ = layer(queries, keys, keys, attn_mask=hidden, need_weights=False)
    heads = out.view(B, T, n_heads, -1).transpose(1, 2) * some
    return heads.transpose(1, 2).reshape(B, T, E) @ w_o.mT


def mha(x, w_q, w_k, w_v, w_o, n_heads, mask=None):
    return attended(x, x, w_q, w_k, w_v, w_o, n_heads, mask)


def mqa(x, w_q, w_k, w_v, w_o, n_heads, mask=None):
    return gqa(x, w_q, w_k, w_v, w_o, n_heads, 1, mask)


def gqa(x, w_q, w_k, w_v, w_o, n_heads, n_kv_heads, mask=None):
    """Each head's own copy of the weights that its group shares."""
    D, group = x.shape[2] // n_heads, n_heads // n_kv_heads
    w_k, w_v = (
        w.unflatten(0, (-1, D)).repeat_interleave(group, 0).flatten(0, 1)
        for w in (w_k, w_v)
    )
    return mha(x, w_q, w_k, w_v, w_o, n_heads, mask)


def cross(x, context, w_q, w_k, w_v, w_o, n_heads, mask=None):
    return attended(x, context, w_q, w_k, w_v, w_o, n_heads, mask)


def mha_cached(x, w_q, w_k, w_v, w_o, n_heads, cache=None):
    """The cache is the input so far: K and V are computed again."""
    seen = x if cache is None else torch.cat((cache, x), dim=1)
    T, S = x.shape[1], seen.shape[1]
    mask = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    return attended(x, seen, w_q, w_k, w_v, w_o, n_heads, mask), seen
