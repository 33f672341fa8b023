"""An adapter for attnref conform: call your engine in place of the last line.

q is (B, H, T, D), k and v are (B, K, S, D), the output is (B, H, T, D): NumPy
arrays, or torch tensors if this file imports torch. Delete the options that
your engine does not have: they are not asked for. Raise an error for what it
does not take: it is shown as refused.
"""

import torch


def attend(q, k, v, mask=None, causal=False, scale=None):
    """mask is bool or numbers, and broadcasts to (B, H, T, S)."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return sdpa(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=True)


# More options: softcap (a number), sinks (H,), window (tokens), dropout (a
# share), log_sum_exp (True: return the output and the log-sum-exp). More
# functions: gradients(q, k, v, cotangent, mask=None) -> those of q, k and v;
# rotate(x, positions, theta) -> x (B, H, T, D), rotated by RoPE.
EXPECTED = {"alignment": "top-left"}  # your choices, for pytest --attnref
