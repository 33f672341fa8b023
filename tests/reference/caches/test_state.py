"""A state of fixed size, and what a cache cannot do."""

import pytest
import torch

from attnref import GrowingKVCache, KVCache, StateCache
from tests.kit.caches import kv, refused

CACHES = {"state": lambda max_len: StateCache()}


def filled():
    cache = StateCache()
    cache.update(3, torch.randn(2, 3, 5, 7), torch.randn(2, 11, 3).bfloat16())
    return cache


@pytest.mark.parametrize(
    ("cache", "call", "says"),
    [
        (
            filled(),
            lambda cache: cache.crop(2),
            "StateCache cannot crop: take a snapshot() before the draft and "
            "restore() it",
        ),
        (
            filled(),
            lambda cache: cache.append(*kv()),
            "StateCache cannot append keys: such a layer needs KVCache(max_len",
        ),
        (
            GrowingKVCache(),
            lambda cache: cache.update(1, *kv()),
            "GrowingKVCache cannot hold a state: such a layer needs StateCach",
        ),
        (
            KVCache(9),
            lambda cache: cache.state,
            "KVCache cannot hold a state: such a layer needs StateCache()",
        ),
    ],
)
def test_what_a_cache_cannot_do_it_says_and_what_to_do_instead(
    cache, call, says
):
    with refused(says, cache, error=(TypeError, AttributeError)):
        call(cache)


def test_a_state_is_counted_moved_and_forgotten():
    cache = filled()
    state, inputs = cache.state
    assert cache.nbytes == 2 * (3 * 5 * 7 * 4 + 11 * 3 * 2)
    cache.reorder(torch.tensor([1, 1, 0]))
    assert torch.equal(cache.state[0], state[[1, 1, 0]])
    assert torch.equal(cache.state[1], inputs[[1, 1, 0]])
    cache.reset()
    assert (cache.length, cache.nbytes, cache.state) == (0, 0, ())


def test_a_state_keeps_no_more_memory_than_it_needs():
    cache, text = StateCache(), torch.randn(2, 11, 1000)
    cache.update(1, text[..., -3:])
    assert cache.state[0].untyped_storage().nbytes() == cache.nbytes
    text.zero_()
    assert cache.state[0].all()
