"""The attention `sdpa` of transformers. Needs transformers."""

from types import SimpleNamespace

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward


def attend(q, k, v, mask=None, causal=False, scale=None):
    q, k, v = map(torch.as_tensor, (q, k, v))
    mask = None if mask is None else torch.as_tensor(mask)
    groups = q.shape[1] // k.shape[1]
    module = SimpleNamespace(num_key_value_groups=groups, is_causal=causal)
    out, _ = sdpa_attention_forward(
        module, q, k, v, mask, scaling=scale, is_causal=causal
    )
    return out.transpose(1, 2)
