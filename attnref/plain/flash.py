"""FlashAttention and its gradients: scores exist one tile at a time.

Needs only PyTorch.
"""

import torch


def flash(q, k, v, mask=None, tile=(64, 64)):
    """Attention and the log-sum-exp of the scores, (B, H, T, Dv), (B, H, T)."""
    (B, H, T, D), S, Dv = q.shape, v.shape[2], v.shape[3]
    if mask is not None:
        mask = mask.expand(B, H, T, S)
    # Sums of many tiles need float32, whatever the inputs are.
    dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
    q, k, v = q.to(wide), k.to(wide), v.to(wide)
    outs, lses = [], []
    for i in range(0, T, tile[0]):
        rows = slice(i, i + tile[0])
        queries = q[:, :, rows] * D**-0.5
        # The largest score so far: finite, or a hidden tile would give NaN.
        m = torch.full_like(queries[..., :1], torch.finfo(q.dtype).min)
        total = torch.zeros_like(m)  # the sum of exp(score - m)
        acc = queries.new_zeros(*queries.shape[:3], Dv)  # and of the values
        for j in range(0, S, tile[1]):
            columns = slice(j, j + tile[1])
            scores = queries @ k[:, :, columns].mT
            if mask is not None:
                seen = mask[:, :, rows, columns]
                scores = scores.masked_fill(~seen, -torch.inf)
            larger = torch.maximum(m, scores.amax(dim=-1, keepdim=True))
            p, rescale = (scores - larger).exp(), (m - larger).exp()
            total = total * rescale + p.sum(dim=-1, keepdim=True)
            acc = acc * rescale + p @ v[:, :, columns]
            m = larger
        outs.append(acc / total.where(total > 0, 1))  # a row without keys: 0
        lses.append((m + total.log())[..., 0])
    return torch.cat(outs, dim=2).to(dtype), torch.cat(lses, dim=2)


def flash_backward(
    d_out, q, k, v, out, lse, mask=None, sinks=None, tile=(64, 64)
):
    """The gradients of q, k, v and, if there are sinks (H,), of the sinks.

    d_out is the gradient of out. out and lse are those of the forward pass,
    with sinks those that add_sinks returns.
    """
    T, S, scale = q.shape[2], k.shape[2], q.shape[3] ** -0.5
    if mask is not None:
        mask = mask.expand(*q.shape[:3], S)
    (height, width), dtype = tile, q.dtype
    wide = torch.promote_types(dtype, torch.float32)
    d_out, q, k, v, out = (x.to(wide) for x in (d_out, q, k, v, out))
    delta = (d_out * out).sum(dim=-1, keepdim=True)  # (B, H, T, 1)
    d_q, d_k, d_v = (torch.zeros_like(x) for x in (q, k, v))
    for left in range(0, S, width):  # then these rows of d_k, d_v are whole
        keys = slice(left, left + width)
        for top in range(0, T, height):
            rows = slice(top, top + height)
            scores = scale * q[:, :, rows] @ k[:, :, keys].mT
            p = (scores - lse[:, :, rows, None]).exp()  # the weights again
            if mask is not None:
                p = p.masked_fill(~mask[:, :, rows, keys], 0)
            d_p = d_out[:, :, rows] @ v[:, :, keys].mT
            d_scores = scale * p * (d_p - delta[:, :, rows])
            d_q[:, :, rows] += d_scores @ k[:, :, keys]
            d_k[:, :, keys] += d_scores.mT @ q[:, :, rows]
            d_v[:, :, keys] += p.mT @ d_out[:, :, rows]
    grads = d_q.to(dtype), d_k.to(dtype), d_v.to(dtype)
    if sinks is None:
        return grads
    # The weight of a sink; with neither a key nor a sink, 0 and not NaN.
    p = (sinks[:, None] - lse).exp().nan_to_num(0.0)  # (B, H, T)
    return *grads, -(p * delta[..., 0]).sum(dim=(0, 2)).to(sinks.dtype)
