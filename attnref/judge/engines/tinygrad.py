"""tinygrad's own call, on its device PYTHON. Needs tinygrad."""

import os

os.environ.setdefault("DEV", "PYTHON")  # needs no compiler
from tinygrad import Tensor


def attend(q, k, v, mask=None, causal=False):
    several = q.shape[1] != k.shape[1]
    q, k, v = map(Tensor, (q, k, v))
    mask = None if mask is None else Tensor(mask)
    out = q.scaled_dot_product_attention(
        k, v, attn_mask=mask, is_causal=causal, enable_gqa=several
    )
    return out.numpy()
