"""A KV cache in blocks that sequences share. Needs only PyTorch."""

from hashlib import sha256
from itertools import takewhile, zip_longest

import torch


class Pool:  # of blocks; a sequence is a table: the list of its blocks
    def __init__(self, blocks, size, shape, dtype=None):
        *heads, D = shape  # of one token: (2, K, D), or (layers, 2, K, D)
        self.stored = torch.zeros(*heads, blocks, size, D, dtype=dtype)
        self.size, self.readers = size, [0] * blocks  # no reader: it is free
        self.hashes = [None] * blocks  # of full blocks; free ones keep theirs

    def fork(self, table):
        """A table of the same blocks, for one more sequence."""
        for block in table:
            self.readers[block] += 1
        return list(table)

    def release(self, table, length=0):
        """Roll a sequence back to `length` tokens; 0: it is done."""
        while (len(table) - 1) * self.size >= length:
            self.readers[table.pop()] -= 1

    def chain(self, tokens):
        """The hash of each full block: of its tokens and all before them."""
        hash = ""
        for end in range(self.size, len(tokens) + 1, self.size):
            text = f"{hash}{tokens[end - self.size : end]}"
            hash = sha256(text.encode()).hexdigest()
            yield hash

    def find(self, tokens):
        """A table of the full blocks that hold the start of `tokens`."""
        known = takewhile(self.hashes.__contains__, self.chain(tokens[:-1]))
        return self.fork([self.hashes.index(hash) for hash in known])

    def append(self, table, tokens, new):
        """Store `new` (..., T, D), made from the last T of all `tokens`."""
        start, end = len(tokens) - new.shape[-2], len(tokens)
        shared = start % self.size > 0 and self.readers[table[-1]] > 1
        free = [block for block, n in enumerate(self.readers) if n == 0]
        needed = -(-end // self.size) - len(table) + shared  # rounded up
        if needed > len(free):
            raise ValueError(f"{needed} blocks needed, {len(free)} free")
        if shared:  # the last block is half full: write into a copy
            self.stored[..., free[0], :, :] = self.stored[..., table[-1], :, :]
            self.readers[table.pop()] -= 1
        table += self.fork(free[:needed])
        p = torch.arange(start, end)  # (T,)
        block = torch.tensor(table)[p // self.size]  # (T,)
        self.stored[..., block, p % self.size, :] = new
        for block, hash in zip_longest(table, self.chain(tokens)):
            self.hashes[block] = hash  # None: more tokens will be written

    def gather(self, table, length):
        """What the first `length` tokens have stored: (..., length, D)."""
        return self.stored[..., table, :, :].flatten(-3, -2)[..., :length, :]
