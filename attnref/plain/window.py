"""A window of W tokens, by blocks of queries. Needs only PyTorch 2.5+."""

import torch
import torch.nn.functional as F


def window_attention(q, k, v, W, size=256):
    """q (B, H, T, D): the last T of the S tokens of k and v (B, K, S, D).

    A mask has size x (size + W - 1) elements instead of T x S.
    """
    past, outs = k.shape[2] - q.shape[2], []
    for rows in q.split(size, dim=2):
        first = max(past - W + 1, 0)  # the oldest key that one of them sees
        end = past + rows.shape[2]
        i = torch.arange(past, end, device=q.device)[:, None]
        j = torch.arange(first, end, device=q.device)
        mask = (j <= i) & (j > i - W)  # is_causal would align it top left
        kv = k[:, :, first:end], v[:, :, first:end]
        out = F.scaled_dot_product_attention(rows, *kv, mask, enable_gqa=True)
        outs.append(out)
        past = end
    return torch.cat(outs, dim=2)  # (B, H, T, D)
