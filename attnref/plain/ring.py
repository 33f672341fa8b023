"""A window of W tokens, and a ring of W slots for it. Needs only PyTorch.

append returns k, v and the position of each key, -1 = an empty slot.
"""

import torch


def sees(i, j, W):
    """Which keys at j (S,) the queries at i (T,) see: W, itself included."""
    i = i[:, None]  # (T, 1)
    return (j >= 0) & (j <= i) & (j > i - W)  # (T, S)


class RingKVCache:
    """The last W tokens of one layer: token p is in slot p % W."""

    def __init__(self, W):
        self.W, self.length, self.stored = W, 0, None

    def append(self, *new):
        """Store the new k and v, (B, K, T, D) each."""
        new = torch.stack(new)  # (n, B, K, T, D); n = 2: k and v
        if self.stored is None:
            shape = (*new.shape[:3], self.W, new.shape[4])
            self.stored = new.new_zeros(shape)  # (n, B, K, W, D)
            self.at = torch.full((self.W,), -1, device=new.device)  # (W,)
        end = self.length + new.shape[3]
        p = torch.arange(self.length, end, device=new.device)  # (T,)
        both = torch.cat((self.stored, new), dim=3)  # (n, B, K, W + T, D)
        at = torch.cat((self.at, p))  # (W + T,)
        last = p[-self.W :]
        self.stored[:, :, :, last % self.W] = new[:, :, :, -self.W :]
        self.at[last % self.W] = last
        self.length = end
        if len(p) == 1:
            return *self.stored.unbind(), self.at
        return *both.unbind(), at
