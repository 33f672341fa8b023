"""PyTorch's own call, as it chooses a kernel. Needs torch."""

import torch
import torch.nn.functional as F


def attend(q, k, v, mask=None, causal=False, scale=None, dropout=None):
    q, k, v = map(torch.as_tensor, (q, k, v))
    mask = None if mask is None else torch.as_tensor(mask)
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        mask,
        dropout or 0.0,
        causal,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def gradients(q, k, v, cotangent, **options):
    leaves = [torch.as_tensor(x).requires_grad_() for x in (q, k, v)]
    out = attend(*leaves, **options)
    return torch.autograd.grad(out, leaves, torch.as_tensor(cotangent))
