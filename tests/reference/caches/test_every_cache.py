"""What every cache that appends keys does: beside plain lists, and beside
`torch.cat` of everything."""

from contextlib import nullcontext

import pytest
import torch

from tests.kit.caches import (
    CPU,
    DV,
    B,
    D,
    K,
    Lists,
    append,
    filled,
    holds,
    kv,
    refused,
    unchanged,
)
from tests.kit.other_caches import Slots
from tests.kit.refusals import refusals
from tests.variants import APPENDING, each_cache

# Those that return all keys, and in order.
WHOLE = {
    name: make
    for name, make in APPENDING.items()
    if make(1).positions(1, CPU) is None
}


each_whole_cache = pytest.mark.parametrize("make", WHOLE.values(), ids=WHOLE)


MODES = {
    "plain": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


@each_cache
@pytest.mark.parametrize("widths", [(5,), (7, 2), (5, 1, 3)])
def test_any_number_of_tensors_of_any_widths(make, widths):
    cache = make(3)
    so_far = [torch.randn(B, 1, 3, D) for D in widths]
    for t in range(3):
        new = [x[:, :, t : t + 1] for x in so_far]
        append(cache, new, [x[:, :, : t + 1] for x in so_far])


@each_cache
def test_what_was_appended_is_copied(make):
    cache, new = make(6), kv(3)
    copies = [x.clone() for x in new]
    cache.append(*new)
    for x in new:
        x.zero_()
    assert holds(cache, copies)


@each_cache
def test_a_reset_cache_is_a_new_one(make):
    cache = filled(make)
    cache.reset()
    assert (cache.length, cache.nbytes, cache.stored) == (0, 0, ())
    other = [torch.randn(7, 1, 6, 13, dtype=torch.float64)]
    append(cache, other, other)


@each_cache
@pytest.mark.parametrize(
    "rows", [[0, 1, 2], [2, 0, 1], [1, 1, 2], [2, 2], [0, 1, 1, 2, 2], []]
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_rows_are_repeated_dropped_and_moved(make, rows, dtype):
    cache, old = make(6), kv(4, B=3)
    cache.append(*old)
    cache.reorder(torch.tensor(rows, dtype=dtype))
    moved = [x[rows] for x in old]
    assert cache.length == 4
    assert holds(cache, moved)
    new = kv(2, B=len(rows))
    append(cache, new, [torch.cat(x, 2) for x in zip(moved, new, strict=True)])


@each_cache
def test_rows_that_were_one_part_again(make):
    cache, (latent, _) = make(6), kv(4)  # one tensor, as MLA stores it
    cache.append(latent)
    cache.reorder(torch.tensor([1, 1]))
    one, other = cache.stored[0]
    one.zero_()
    assert one.shape == other.shape and other.any()


@each_cache
def test_reordering_a_cache_with_room_keeps_the_room(make):
    cache = filled(make)
    before = cache.nbytes
    cache.reorder(torch.tensor([1, 0, 1]))
    assert cache.nbytes == before // 2 * 3
    cache.append(*kv(2, B=3))
    assert cache.length == 6


def test_a_cache_of_ones_own_keeps_its_room():
    """Of its room, the methods of the base class know by its buffers."""
    cache, old, new = Slots(), kv(4, B=3), kv(5, B=3)
    cache.append(*old)
    before = cache.snapshot()
    assert sum(t.numel() for t in before[1]) == sum(t.numel() for t in old)
    both = [torch.cat(pair, dim=2) for pair in zip(old, new, strict=True)]
    for back in (lambda: None, cache.reset):
        append(cache, new, both)
        back()
        cache.restore(before)
    rows = torch.tensor([2, 0, 1])
    cache.reorder(rows)
    append(cache, [t[rows] for t in new], [t[rows] for t in both])


@each_cache
@refusals(
    """
    >>> cache.append(k[:1], v[:1])
    ValueError: the cache holds B=2, K=3, D=5, but got B=1, K=3, D=5
    >>> cache.append(k[:, :1], v[:, :1])
    ValueError: the cache holds B=2, K=3, D=5, but got B=2, K=1, D=5
    >>> cache.append(k[..., :1], v)
    ValueError: the cache holds B=2, K=3, D=5, but got B=2, K=3, D=1
    >>> cache.append(k, v[..., :1])
    ValueError: the cache holds B=2, K=3, D=7, but got B=2, K=3, D=1
    >>> cache.append(v, k)
    ValueError: the cache holds B=2, K=3, D=5
    >>> cache.append(k.double(), v.double())
    ValueError: the cache holds torch.float32 on cpu, but got torch.float64 on
        cpu
    >>> cache.append(k, v.bfloat16())
    ValueError: torch.float32 on cpu, but got torch.bfloat16 on cpu
    >>> cache.append(k.to("meta"), v.to("meta"))
    ValueError: the cache holds torch.float32 on cpu, but got torch.float32 on
        meta
    >>> cache.append(k)
    ValueError: the cache holds 2 tensors per token, but got 1
    >>> cache.append(k, v, v)
    ValueError: the cache holds 2 tensors per token, but got 3
    >>> cache.append()
    ValueError: nothing to append
    >>> cache.append(k[0], k[0])
    ValueError: appended shapes (3, 1, 5), (3, 1, 5): each needs 4 axes
    >>> cache.append(k, torch.cat((v, v), dim=2))
    ValueError: appended shapes (2, 3, 1, 5), (2, 3, 2, 7): each needs 4 axes
        (B, K, T, D), all the same B, K and T
    >>> cache.append(k, v[:1])
    ValueError: appended shapes (2, 3, 1, 5), (1, 3, 1, 7)
    >>> cache.append(k, v[:, :2])
    ValueError: appended shapes (2, 3, 1, 5), (2, 2, 1, 7)
    >>> cache.crop(1.5)
    TypeError: length is float; pass an int
    >>> cache.crop(True)
    TypeError: length is bool; pass an int
    >>> cache.reorder(torch.tensor([0, 2]))
    ValueError: rows go from 0 to 2, the cache has B=2
    >>> cache.reorder(torch.tensor([-1, 1]))
    ValueError: rows go from -1 to 1, the cache has B=2
    >>> cache.reorder(torch.tensor([[0, 1]]))
    ValueError: rows is torch.int64 of shape (1, 2)
    >>> cache.reorder(torch.tensor(1))
    ValueError: rows is torch.int64 of shape ()
    >>> cache.reorder(torch.tensor([0.0]))
    ValueError: rows is torch.float32 of shape (1,)
    >>> cache.reorder(torch.tensor([True, False]))
    ValueError: rows is torch.bool of shape (2,)
    >>> make(6).reorder(torch.zeros(2, dtype=torch.int64, device="meta"))
    RuntimeError: ...meta
    """
)
def test_what_does_not_fit_is_refused(make, call, error, message):
    cache, (k, v) = filled(make), kv()
    with unchanged(cache), pytest.raises(error, match=message):
        eval(call)
    cache.append(k, v)
    assert cache.length == 5


@each_whole_cache
def test_a_cache_rolled_back_to_nothing_still_knows_its_sizes(make):
    cache = filled(make)
    cache.crop(0)
    with refused("the cache holds B=2, K=3, D=5, but got B=1", cache):
        cache.append(*kv(B=1))


@each_cache
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str
)
def test_values_are_stored_as_they_come(make, dtype):
    cache, old, new = make(6), kv(2, dtype=dtype), kv(1, dtype=dtype)
    cache.append(*old)
    append(cache, new, [torch.cat(x, 2) for x in zip(old, new, strict=True)])


@each_cache
def test_a_cache_is_where_the_values_are(make):
    cache = filled(make, device="meta")
    at = cache.positions(1, torch.device("meta"))
    keys = 5 if at is None else len(at)
    for t, width in zip(cache.append(*kv(device="meta")), (D, DV), strict=True):
        assert t.device.type == "meta"
        assert t.shape == (B, K, keys, width)


@each_cache
@pytest.mark.parametrize("which", [0, 1])
def test_gradients_are_refused(make, which):
    cache, new = filled(make), kv()
    new[which].requires_grad_()
    with refused("a cache keeps no gradients: decode under torch.no_g", cache):
        cache.append(*new)
    with torch.no_grad():
        got = cache.append(*new)
    assert not any(t.requires_grad for t in got)


@each_cache
def test_no_graph_grows_with_the_tokens(make):
    cache, weight = make(6), torch.randn(D, D, requires_grad=True)
    for _ in range(6):
        with torch.no_grad():
            (k,) = cache.append(torch.randn(B, K, 1, D) @ weight)
        assert k.grad_fn is None


@each_cache
@pytest.mark.parametrize("first", MODES)
@pytest.mark.parametrize("second", MODES)
@pytest.mark.parametrize("third", MODES)
def test_the_mode_may_change_between_appends(make, first, second, third):
    cache, parts = make(6), []
    for mode in first, second, third:
        with MODES[mode]():
            parts.append(kv(2))
            so_far = [torch.cat(x, dim=2) for x in zip(*parts, strict=True)]
            append(cache, parts[-1], so_far)


@each_cache
@pytest.mark.parametrize("reordered", MODES)
@pytest.mark.parametrize("appended", MODES)
def test_the_mode_may_change_between_beams(make, reordered, appended):
    cache, old, new = make(6), kv(2), kv(1)
    cache.append(*old)
    with MODES[reordered]():
        cache.reorder(torch.tensor([1, 0]))
    moved = [x.flip(0) for x in old]
    so_far = [torch.cat(x, 2) for x in zip(moved, new, strict=True)]
    with MODES[appended]():
        append(cache, new, so_far)


@each_cache
def test_reordering_does_not_look_at_rows_on_a_device(make):
    """There, to look is to wait. A meta tensor has no numbers to look at."""
    cache = filled(make, 4, device="meta", B=3)
    cache.reorder(torch.zeros(2, dtype=torch.int64, device="meta"))
    assert [t.shape[:2] for t in cache.stored] == [(2, 3)] * 2


@each_whole_cache
def test_to_write_into_what_is_returned_is_to_change_the_past(make):
    cache = filled(make)
    for t in cache.stored:
        t.zero_()
    k, v = cache.append(*kv())
    for t in k, v:
        assert (t[:, :, :4] == 0).all()
        assert (t[:, :, 4:] != 0).all()


@each_cache
def test_a_cache_does_what_a_list_does(make):
    Lists.run(make)
