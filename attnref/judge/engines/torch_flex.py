"""PyTorch's flex_attention, not compiled. Needs torch."""

import torch
from torch.nn.attention.flex_attention import (
    AuxRequest,
    create_block_mask,
    flex_attention,
)


def block_mask(mask, q, k):
    sizes = *q.shape[:3], k.shape[2]
    cells = mask.expand(sizes)
    return create_block_mask(
        lambda b, h, i, j: cells[b, h, i, j], *sizes, device="cpu"
    )


def attend(q, k, v, mask=None, scale=None, log_sum_exp=None):
    q, k, v = map(torch.as_tensor, (q, k, v))
    shown = add = None
    if mask is not None:
        mask = torch.as_tensor(mask)
        if mask.is_floating_point():  # is read in a function of the caller
            bias = mask.expand(*q.shape[:3], k.shape[2])

            def add(score, b, h, i, j):
                return score + bias[b, h, i, j]
        else:
            shown = block_mask(mask, q, k)
    result, aux = flex_attention(
        q,
        k,
        v,
        score_mod=add,
        block_mask=shown,
        scale=scale,
        enable_gqa=k.shape[1] != q.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    return (result, aux.lse) if log_sum_exp else result
