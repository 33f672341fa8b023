"""The attention `flex_attention` of transformers, not compiled.

Needs transformers."""

from types import SimpleNamespace

import torch
from transformers.integrations.flex_attention import flex_attention_forward

from attnref.judge.engines.torch_flex import block_mask


def attend(q, k, v, mask=None, scale=None, softcap=None, sinks=None):
    q, k, v = map(torch.as_tensor, (q, k, v))
    if mask is not None:
        mask = torch.as_tensor(mask)
        if mask.dtype == torch.bool:
            mask = block_mask(mask, q, k)  # as transformers writes its masks
        else:
            mask = mask.expand(len(q), *mask.shape[1:])
    sinks = None if sinks is None else torch.as_tensor(sinks)
    with torch.compiler.set_stance("force_eager"):
        out, _ = flex_attention_forward(
            SimpleNamespace(training=False),
            q,
            k,
            v,
            mask,
            scale,
            softcap,
            sinks,
        )
    return out.transpose(1, 2)
