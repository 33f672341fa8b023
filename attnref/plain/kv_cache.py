"""A KV cache: keys and values of all tokens so far. Needs only PyTorch."""

import torch


class KVCache:
    """Room for max_len tokens of one layer."""

    def __init__(self, max_len):
        self.max_len, self.length, self.stored = max_len, 0, None

    def append(self, *new):
        """Store the new k and v, (B, K, T, D) each; return all so far."""
        new = torch.stack(new)  # (n, B, K, T, D); n = 2: k and v
        end = self.length + new.shape[3]
        if end > self.max_len:
            raise ValueError(f"{end} tokens, room for {self.max_len}")
        if self.stored is None:
            shape = (*new.shape[:3], self.max_len, new.shape[4])
            self.stored = new.new_empty(shape)  # (n, B, K, max_len, D)
        self.stored[:, :, :, self.length : end] = new
        self.length = end
        return self.stored[:, :, :, :end].unbind()
