"""A state of fixed size, and what a cache cannot do."""

import itertools

import pytest
import torch

from attnref import GatedDeltaNet, GrowingKVCache, StateCache
from tests.kit.caches import unchanged
from tests.kit.refusals import refusals

CACHES = {"state": lambda max_len: StateCache()}


def filled():
    cache = StateCache()
    cache.update(3, torch.randn(2, 3, 5, 7), torch.randn(2, 11, 3).bfloat16())
    return cache


@refusals(
    """
    >>> state.crop(2)
    TypeError: StateCache cannot crop: take a snapshot() before the draft and
        restore() it
    >>> state.append(torch.ones(2, 3, 1, 5))
    TypeError: StateCache cannot append keys: such a layer needs KVCache(max_l
    >>> keys.update(1, torch.ones(2, 3))
    TypeError: GrowingKVCache cannot hold a state: such a layer needs StateCach
    >>> keys.state
    AttributeError: GrowingKVCache cannot hold a state: such a layer needs Stat
    """
)
def test_what_a_cache_cannot_do_it_says_and_what_to_do_instead(
    call, error, message
):
    state, keys = filled(), GrowingKVCache()
    with unchanged(state, keys), pytest.raises(error, match=message):
        eval(call)


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


def test_a_snapshot_takes_back_a_draft():
    # --8<-- [start:draft]
    import torch

    from attnref import GatedDeltaNet, StateCache

    sizes = {"n_heads": 2, "n_v_heads": 4, "key_dim": 8, "value_dim": 12}
    layer = GatedDeltaNet(d_model=64, **sizes).requires_grad_(False)
    text, draft = torch.randn(3, 10, 64), torch.randn(3, 4, 64)
    draft[:, :2] = text[:, 7:9]  # the first two of four are right
    cache = StateCache()
    layer(text[:, :7], cache=cache)
    before = cache.snapshot()
    layer(draft, cache=cache)  # checks all four at once
    cache.restore(before)
    layer(draft[:, :2], cache=cache)  # and reads the accepted ones again
    last = layer(text[:, 9:], cache=cache)
    torch.testing.assert_close(last, layer(text)[:, 9:])
    # --8<-- [end:draft]


def test_packed_texts_are_apart():
    # --8<-- [start:packed]
    import torch

    from attnref import Causal, Documents, GatedDeltaNet

    sizes = {"n_heads": 2, "n_v_heads": 4, "key_dim": 8, "value_dim": 12}
    layer = GatedDeltaNet(d_model=64, **sizes)
    first, second = torch.randn(2, 1, 5, 64)
    ids = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, 1])
    packed = torch.cat((first, second), dim=1)
    layer.causal = Causal() & Documents(ids)
    got = layer(packed)[:, 5:]
    layer.causal = Causal()
    torch.testing.assert_close(got, layer(second))
    # --8<-- [end:packed]


@torch.no_grad()
def test_half_a_snapshot_is_wrong_from_where_the_page_says():
    """Without the inputs of the convolution three tokens, and what they wrote;
    without the matrix from the first one."""
    sizes = {"n_heads": 2, "n_v_heads": 4, "key_dim": 8, "value_dim": 12}
    layer = GatedDeltaNet(d_model=64, **sizes).double()
    text, draft = torch.randn(2, 3, 29, 64).double()
    for lost, rate in itertools.product((0, 1), (-3, 2)):
        layer.A_log.fill_(rate)  # what was written fades slowly, or soon
        cache = StateCache()
        layer(text[:, :20], cache=cache)
        before, right = cache.state, cache.snapshot()
        layer(draft[:, :5], cache=cache)
        after = cache.state
        cache.restore(right)
        cache.update(0, *(after[i] if i == lost else before[i] for i in (0, 1)))
        off = layer(text[:, 20:], cache=cache) - layer(text)[:, 20:]
        off = off.abs().amax(dim=(0, 2))
        assert off[0] > 1e-5
        if rate < 0:
            assert off.min() > 1e-3, "what was written stays"
        elif lost == 1:
            assert off[:3].min() > 20 * off[3:].max(), "three are read wrongly"
