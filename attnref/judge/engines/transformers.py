"""The eager attention of transformers, as Llama has it. Needs transformers."""

from types import SimpleNamespace

import torch
from transformers.models.llama.modeling_llama import eager_attention_forward


def attend(q, k, v, mask=None, scale=None):
    q, k, v = map(torch.as_tensor, (q, k, v))
    mask = None if mask is None else torch.as_tensor(mask)
    if mask is not None and mask.dtype == torch.bool:
        # This attention adds its mask; transformers' eager_mask writes it so.
        mask = torch.where(mask, 0.0, torch.finfo(q.dtype).min).to(q.dtype)
    groups = q.shape[1] // k.shape[1]
    module = SimpleNamespace(num_key_value_groups=groups, training=False)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out, _ = eager_attention_forward(module, q, k, v, mask, scale)
    return out.transpose(1, 2)
