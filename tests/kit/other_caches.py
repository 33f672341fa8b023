"""Caches that keep a part of the past, written to show that nothing else has to
change for them: a ring, a ring after the first tokens, a chunk, and one that
keeps everything in another order.
"""

from dataclasses import dataclass

import torch

from attnref import Cache, Causal, Everything, Rule


@dataclass(frozen=True)
class Window(Causal):
    """The last `size` tokens, the query's own included, and the `first`."""

    size: int
    first: int = 0

    def shows(self, i, j):
        near = (j > i - self.size) | (j < self.first)
        return super().shows(i, j) & near

    def covers(self, other):
        if isinstance(other, Chunk):
            return other.size <= self.size
        return (
            isinstance(other, Window)
            and other.size <= self.size
            and other.first <= self.first
        )

    def hides_nothing(self, T, S):
        return T <= 1 and self.size >= S


@dataclass(frozen=True)
class Chunk(Rule):
    """The tokens of a chunk of `size` see the past of their own chunk."""

    size: int

    def shows(self, i, j):
        return (j <= i) & (i // self.size == j // self.size)


class Ring(Cache):
    """Slot `p % size` holds position `p`; the `first` have slots before it.

    One token gets the slots as they are, in whatever order. Several get what
    the slots held before and themselves, so that they may be more than `size`.
    """

    def __init__(self, size, first=0):
        super().__init__()
        self.size, self.first, self.lost = size, first, 0

    @property
    def keeps(self):
        size = self.size
        if self.lost > self.first:  # then a rollback may have left less
            size = min(size, self.length - self.lost + 1)
        return Window(size, self.first)

    @property
    def stored(self):
        return self.buffers

    def positions(self, new, device):
        if new == 1:
            return self._at(self.length + 1, device)
        after = torch.arange(self.length, self.length + new, device=device)
        return torch.cat((self._at(self.length, device), after))

    def _at(self, length, device):
        """Which position each slot holds after so many tokens."""
        slots = torch.arange(self.first + self.size, device=device)
        at = length - 1 - (length - 1 - slots) % self.size
        at = at.where((at >= self.first) & (at >= self.lost), -1)
        opening = (slots < self.first) & (slots < length)
        return slots.where(opening, at.where(slots >= self.first, -1))

    def append(self, *tensors):
        self._check(tensors)
        new, start = tensors[0].shape[2], self.length
        end, device = start + new, tensors[0].device
        with torch.inference_mode(False), torch.no_grad():
            if not self.buffers:
                B, K = tensors[0].shape[:2]
                self.buffers = tuple(
                    t.new_zeros(B, K, self.first + self.size, t.shape[3])
                    for t in tensors
                )
            longer = tuple(
                torch.cat(pair, dim=2)
                for pair in zip(self.buffers, tensors, strict=True)
                if new != 1
            )
            p = torch.arange(start, end, device=device)
            for buffer, t in zip(self.buffers, tensors, strict=True):
                if start < self.first:
                    buffer[:, :, start : min(end, self.first)] = t[
                        :, :, : max(0, min(end, self.first) - start)
                    ]
                since = max(end - self.size, self.first, start) - start
                slots = self.first + (p[since:] - self.first) % self.size
                buffer.index_copy_(2, slots, t[:, :, since:])
        self.length, self.lost = end, max(self.lost, end - self.size)
        return longer or self.buffers

    def crop(self, length):
        if self.lost > self.first and 0 <= length < self.lost:
            raise ValueError(f"crop to {length}, kept from {self.lost} on")
        super().crop(length)

    def reset(self):
        super().reset()
        self.lost = 0


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
        before = self.buffers or tuple(t[:, :, :0] for t in tensors)
        both = tuple(
            torch.cat(pair, dim=2) for pair in zip(before, tensors, strict=True)
        )
        self.length += tensors[0].shape[2]
        full = both[0].shape[2] - self.length % self.size
        self.buffers = tuple(t[:, :, full:].clone() for t in both)
        return both

    def crop(self, length):
        start = self.length - self.length % self.size
        if 0 <= length < start:
            raise ValueError(f"crop to {length}, kept from {start} on")
        super().crop(length)
        self.buffers = tuple(t[:, :, : length - start] for t in self.buffers)


class Backwards(Cache):
    """Everything, the newest first."""

    keeps = Everything()

    def positions(self, new, device):
        return torch.arange(self.length + new - 1, -1, -1, device=device)

    def append(self, *tensors):
        self._check(tensors)
        before = self.stored or tuple(t[:, :, :0] for t in tensors)
        self.buffers = tuple(
            torch.cat((t.flip(2), old), dim=2)
            for t, old in zip(tensors, before, strict=True)
        )
        self.length += tensors[0].shape[2]
        return self.buffers

    def crop(self, length):
        dropped = self.length - length
        super().crop(length)
        self.buffers = tuple(t[:, :, dropped:] for t in self.buffers)
