"""PyTorch's flex_attention, not compiled. Needs torch."""

import torch
from torch.nn.attention.flex_attention import AuxRequest, flex_attention


def attend(q, k, v, mask=None, scale=None, softcap=None, log_sum_exp=None):
    q, k, v = map(torch.as_tensor, (q, k, v))
    B, H, T, S = *q.shape[:3], k.shape[2]
    if mask is not None:
        mask = torch.as_tensor(mask).expand(B, H, T, S)

    def change(score, b, h, i, j):
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if mask is None:
            return score
        cell = mask[b, h, i, j]
        if mask.dtype == torch.bool:
            return torch.where(cell, score, -torch.inf)
        return score + cell

    result = flex_attention(
        q,
        k,
        v,
        score_mod=change,
        scale=scale,
        enable_gqa=k.shape[1] != H,
        return_aux=AuxRequest(lse=True),
    )
    return (result[0], result[1].lse) if log_sum_exp else result[0]
