"""The caches that keep everything: their room, and what they copy."""

import numpy
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnref import GrowingKVCache, KVCache
from tests.kit.caches import (
    filled,
    kv,
)
from tests.kit.refusals import refusals

CACHES = {"room": KVCache, "growing": lambda max_len: GrowingKVCache()}


@refusals(
    """
    >>> KVCache(0)
    ValueError: max_len=0 must be at least 1
    >>> KVCache(-3)
    ValueError: max_len=-3 must be at least 1
    >>> KVCache(6.0)
    TypeError: max_len is float; pass an int
    >>> KVCache(True)
    TypeError: max_len is bool; pass an int
    """
)
def test_room_is_for_a_whole_number_of_tokens(call, error, message):
    assert type(KVCache(numpy.int64(6)).max_len) is int
    with pytest.raises(error, match=message):
        eval(call)


@pytest.mark.parametrize(
    ("dtype", "itemsize"), [(torch.bfloat16, 2), (torch.float64, 8)], ids=str
)
def test_bytes_are_those_of_the_room_or_of_the_tokens(dtype, itemsize):
    room, growing = (
        filled(CACHES[name], 4, max_len=11, dtype=dtype)
        for name in ("room", "growing")
    )
    assert room.nbytes == 2 * 3 * 11 * (5 + 7) * itemsize
    assert growing.nbytes == 2 * 3 * 4 * (5 + 7) * itemsize
    for cache in room, growing:
        cache.append(*kv(1, dtype=dtype))
    assert room.nbytes == 2 * 3 * 11 * (5 + 7) * itemsize
    assert growing.nbytes == 2 * 3 * 5 * (5 + 7) * itemsize


def test_the_room_is_written_to_in_place():
    cache = KVCache(max_len=6)
    where = [t.data_ptr() for t in cache.append(*kv(2))]
    for _ in range(3):
        assert [t.data_ptr() for t in cache.append(*kv())] == where
    cache.crop(1)
    assert [t.data_ptr() for t in cache.append(*kv(5))] == where
    cache.reorder(torch.tensor([1, 0]))  # as many rows as before
    assert [t.data_ptr() for t in cache.stored] == where


class _Written(TorchDispatchMode):
    """The bytes that operations write; views and empty room write none."""

    def __init__(self):
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view and func != torch.ops.aten.empty.memory_format:
            self.nbytes += getattr(out, "nbytes", 0)
        return out


@pytest.mark.parametrize("steps", [1, 2, 13, 31])
def test_the_room_writes_each_token_once_and_cat_writes_all_again(steps):
    token = 2 * 3 * (5 + 7) * 4  # bytes
    for cache, tokens in (
        (KVCache(max_len=31), steps),
        (GrowingKVCache(), steps * (steps + 1) // 2),
    ):
        news = [kv() for _ in range(steps)]
        with _Written() as written:
            for new in news:
                cache.append(*new)
        assert written.nbytes == tokens * token


@pytest.mark.parametrize(("name", "times"), [("room", 2), ("growing", 1)])
def test_reordering_copies_what_is_used_and_not_the_room(name, times):
    """Gathered, and put where there is room: twice 4 of 1000 tokens."""
    cache = filled(CACHES[name], 4, max_len=1000, B=3)
    with _Written() as written:
        cache.reorder(torch.tensor([2, 0, 2]))
    looked_at = 2 * 8  # the smallest and the largest of the rows
    assert written.nbytes - looked_at == times * 4 * 3 * 3 * (5 + 7) * 4


def test_appending_by_cat_copies_everything_again():
    # --8<-- [start:room]
    token = torch.ones(1, 3, 1, 4)
    room, growing = KVCache(max_len=100), GrowingKVCache()
    k, _ = room.append(token, token)
    where = k.data_ptr()
    for _ in range(99):
        k, _ = room.append(token, token)
    assert k.data_ptr() == where  # nothing was moved
    k, _ = growing.append(token, token)
    where = k.data_ptr()
    k, _ = growing.append(token, token)
    assert k.data_ptr() != where  # all was copied to a new place
    assert (growing.nbytes, room.nbytes) == (2 * 96, 100 * 96)
    # --8<-- [end:room]
