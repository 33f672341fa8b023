"""FlashAttention, forward: the scores exist one tile at a time.

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
