"""Today's heads: all that is done to queries, keys, scores and outputs.

Needs only PyTorch.
"""

import torch


def rms_norm(x, weight, eps=1e-6):
    """x (B, H, T, D), weight (D,): each head by itself."""
    return x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * weight


def norm_of_all_heads(x, weight, eps=1e-6):
    """x (B, H, T, D), weight (H * D,): one mean for all, as in OLMo 2."""
    mean = x.square().mean(dim=(1, 3), keepdim=True)  # (B, 1, T, 1)
    return x * (mean + eps).rsqrt() * weight.view(x.shape[1], 1, -1)


def query_and_gate(x, n_heads):
    """x (B, T, H * 2 * D): both of head 0, then of 1, as in Qwen3-Next."""
    x = x.unflatten(-1, (n_heads, -1)).transpose(1, 2)  # (B, H, T, 2 * D)
    return x.chunk(2, dim=-1)


def todays_heads(q, k, v, gate, q_weight, k_weight, turn, softcap, sinks, mask):
    """q, gate (B, H, T, D), k, v (B, H, S, D), sinks (H,); turn is RoPE."""
    q, k = rms_norm(q, q_weight), rms_norm(k, k_weight)  # (..., D)
    q, k = turn(q), turn(k)  # (..., D); now keys are cached
    scores = q @ k.mT / q.shape[-1] ** 0.5  # (B, H, T, S)
    scores = softcap * (scores / softcap).tanh()  # (B, H, T, S)
    scores = scores.masked_fill(~mask, -torch.inf)  # (B, H, T, S)
    B, H, T, S = scores.shape
    sink = sinks.view(H, 1, 1).expand(B, H, T, 1)  # (B, H, T, 1)
    weights = torch.cat((scores, sink), dim=-1).softmax(dim=-1).nan_to_num(0.0)
    heads = weights[..., :S].to(v.dtype) @ v  # (B, H, T, D)
    return heads * gate.sigmoid()  # (B, H, T, D)
