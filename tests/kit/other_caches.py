"""Caches written to show that nothing else has to change for them: one keeps a
chunk, and one keeps everything in another order.
"""

import torch

from attnref import Cache, Chunk, Everything


class ChunkCache(Cache):
    """The tokens of the chunk that is not full yet."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    @property
    def keeps(self):
        return Chunk(self.size)

    @property
    def stored(self):
        return self.buffers

    def positions(self, new, device):
        start = self.length - self.length % self.size
        return torch.arange(start, self.length + new, device=device)

    def append(self, *tensors):
        self._check(tensors)
        stored = self.buffers or tuple(t[:, :, :0] for t in tensors)
        joined = tuple(
            torch.cat(pair, dim=2) for pair in zip(stored, tensors, strict=True)
        )
        self.length += tensors[0].shape[2]
        full = joined[0].shape[2] - self.length % self.size
        self.buffers = tuple(t[:, :, full:].clone() for t in joined)
        return joined

    def crop(self, length):
        start = self.length - self.length % self.size
        if 0 <= length < start:
            raise ValueError(f"crop to {length}, kept from {start} on")
        super().crop(length)
        self.buffers = tuple(t[:, :, : length - start] for t in self.buffers)


class Slots(Cache):
    """Room for ten tokens, made once, by a class that knows no more."""

    keeps = Everything()

    def append(self, *tensors):
        self._check(tensors)
        if not self.buffers:
            self.buffers = tuple(
                t.new_zeros((*t.shape[:2], 10, t.shape[3])) for t in tensors
            )
        for buffer, t in zip(self.buffers, tensors, strict=True):
            buffer[:, :, self.length : self.length + t.shape[2]] = t
        self.length += tensors[0].shape[2]
        return self.stored


class Backwards(Cache):
    """Everything, the newest first."""

    keeps = Everything()

    def positions(self, new, device):
        return torch.arange(self.length + new - 1, -1, -1, device=device)

    def append(self, *tensors):
        self._check(tensors)
        stored = self.stored or tuple(t[:, :, :0] for t in tensors)
        self.buffers = tuple(
            torch.cat((t.flip(2), earlier), dim=2)
            for t, earlier in zip(tensors, stored, strict=True)
        )
        self.length += tensors[0].shape[2]
        return self.buffers

    def crop(self, length):
        count = self.length - length
        super().crop(length)
        self.buffers = tuple(t[:, :, count:] for t in self.buffers)
