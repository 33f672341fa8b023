"""An adapter for attnref conform: call your engine in place of the last lines.

q is (B, H, T, D), k and v are (B, K, S, D), the output is (B, H, T, D): NumPy
arrays, or torch tensors if this file imports torch. Options are found by these
names in the signature, and **kwargs offers none. Delete those that your engine
does not have: they are not asked for. Raise an error for what it does not take:
it is shown as refused. Inputs are float32, in three questions float16 and in
one float64; if your library rounds it by a setting, such as jax_enable_x64, set
that above. An engine that refuses bools and adds numbers is asked with masks of
0 and -inf.
"""

import torch


def attend(q, k, v, mask=None, causal=False, scale=None):
    """mask is bool or float, in one question int64, and broadcasts to (B, H, T,
    S). If your engine has a mask and a bias, pass floats as the bias and all
    else as the mask, as your callers do."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return sdpa(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=True)


# More options: softcap (a number), sinks (H,), window (tokens), dropout (a
# share), log_sum_exp (True: return the output and the log-sum-exp). More
# functions: gradients(q, k, v, cotangent, mask=None) -> those of q, k and v;
# rotate(x, positions, theta) -> x (B, H, T, D), rotated by RoPE.
EXPECTED = {"alignment": "top-left"}  # your choices, for pytest --attnref


class Cache:
    """One layer's. Delete what yours does not have. k and v are (2, 3, T, 4),
    float32: 2 rows, 3 key heads of 4 elements, at most 32 tokens in all."""

    window = None  # or how many tokens each sees, itself included, such as 4
    exact = True  # False: more than the window is returned, a mask hides it
    chunk = None  # or how many tokens one append takes at most, such as 1

    def __init__(self):
        self.k = self.v = torch.empty(2, 3, 0, 4)

    def append(self, k, v):
        """k and v are new, T = 1 to 7. Return all that is kept, in order; or
        else the token in each slot as well, (S,) or (B, S), -1 = none."""
        self.k = torch.cat((self.k, k), dim=2)
        self.v = torch.cat((self.v, v), dim=2)
        return self.k, self.v

    def crop(self, length):
        self.k, self.v = self.k[:, :, :length], self.v[:, :, :length]

    def reorder(self, rows):
        self.k, self.v = self.k[rows], self.v[rows]


# More of a cache: length, of the text, tokens that a window dropped included;
# reset(); snapshot() and restore(what it returned); append(self, k, v, valid)
# with valid (B, T), False = a pad: tokens are then counted without pads.
