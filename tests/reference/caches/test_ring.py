"""A ring beside the cache that keeps everything, and rows that go back by
numbers of their own."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnref import (
    GroupedQueryAttention,
    KVCache,
    MultiHeadLatentAttention,
    RingKVCache,
    Rope,
    Window,
    padding_mask,
    sdpa,
)
from attnref.core.masks import hiding
from tests.kit.caches import refused
from tests.kit.compare import relative_error
from tests.kit.layers import HEADS, LATENT, B, E, K, sharp, tokens

CACHES = {"ring": lambda max_len: RingKVCache(4)}
T = 23


def layer(name="gqa", **options):
    made = MultiHeadLatentAttention(**LATENT, rope=Rope(100.0), **options)
    if name == "gqa":
        sizes = HEADS | {"n_kv_heads": K}
        made = GroupedQueryAttention(**sizes, rope=Rope(100.0), **options)
    return sharp(made)


@torch.no_grad()
def test_a_ring_goes_back_over_its_reserve_and_one_token():
    ours, x = layer(causal=Window(5)), tokens(B, T, E)
    want = ours(x)
    for back in range(1, 5):
        cache = RingKVCache(5, reserve=3)
        ours(x[:, :13], cache=cache)
        ours(tokens(B, back, E), cache=cache)  # guesses, and all wrong
        cache.crop(13)
        got = [ours(c, cache=cache) for c in x[:, 13:].split([1, 3, 1, 5], 1)]
        assert relative_error(torch.cat(got, dim=1), want[:, 13:]) <= 1e-12
    cache = RingKVCache(5, reserve=3)
    ours(tokens(B, 18, E), cache=cache)
    says = (
        "kept from 10 on: the next token sees those from 9 on, as window=5; "
        "reserve=3 goes back over 4 tokens of the longest text so far"
    )
    for _ in range(2):  # again where one token less is to go
        with refused(f"crop to 13, {says}", cache):
            cache.crop(13)
        cache.crop(14)
    cache.append(*(t[:, :, :4] for t in cache.stored))
    with refused("crop to [18, 13, 18], kept", cache):
        cache.crop(torch.tensor([18, 13, 18]))
    cache.reset()
    assert relative_error(ours(x, cache=cache), want) <= 1e-12


def test_single_tokens_leave_the_first_where_they_are():
    cache = RingKVCache(3, first=2)
    for p in range(12):
        cache.append(torch.full((3, 2, 1, 4), float(p)))
    assert cache.stored[0][0, 0, :, 0].tolist() == [0, 1, 11, 9, 10]


@torch.no_grad()
def test_lengths_that_do_not_fit_are_refused():
    cache = KVCache(9)
    layer()(tokens(B, 6, E), cache=cache)
    for lengths in ([6, 7, 6], [-1, 6, 6]):
        with refused(f"crop to {lengths}, but 6 are stored", cache):
            cache.crop(torch.tensor(lengths))
    for lengths in (torch.ones(2).long(), torch.ones(B)):
        with refused("lengths is torch.", cache):
            cache.crop(lengths)
    cache.crop(torch.tensor([6, 2, 4]))
    cache.crop(3)  # of every row, the first three at most
    assert cache.lengths.tolist() == [3, 2, 3]
    cache.crop(torch.tensor([1, 1, 1]))
    assert cache.lengths is None and cache.length == 1


@pytest.mark.parametrize("name", ["gqa", "mla expanded"])
@pytest.mark.parametrize(
    ("rule", "make", "slots"),
    [
        (Window(5), lambda: RingKVCache(5), 5),
        (Window(4, first=2), lambda: RingKVCache(4, first=2), 6),
    ],
    ids=["window", "first"],
)
@torch.no_grad()
def test_a_full_ring_needs_no_mask_for_a_token(name, rule, make, slots):
    """It holds what a token sees, and nothing else; pads stay hidden, and rows
    of different lengths have a mask again."""
    masks = []

    def attend(q, k, v, mask=None, **how):
        masks.append(hiding(mask))
        return sdpa(q, k, v, mask, **how)

    ours = layer(name, causal=rule, attend=attend)
    x, starts = tokens(B, T, E), torch.tensor([[0], [1], [9]])
    for valid in (None, padding_mask(torch.arange(T) >= starts)):
        ring, every = make(), KVCache(T)
        for part in (3, *[1] * 7):
            end = ring.length + part
            seen = None if valid is None else valid[..., :end]
            chunk = x[:, end - part : end]
            got, want = (ours(chunk, mask=seen, cache=c) for c in (ring, every))
            assert relative_error(got, want) <= 1e-12
            # Of pads, what says where they stand in the ring is left.
            expected = torch.Tensor if valid is not None else type(None)
            assert isinstance(masks[-2], expected) is (end >= slots)
    ragged = ring.length - torch.tensor([1, 0, 1])
    for cache in (ring, every):
        cache.crop(ragged)
    got, want = (ours(x[:, :1], cache=c) for c in (ring, every))
    assert relative_error(got, want) <= 1e-12 and masks[-2] is not None


@torch.no_grad()
def test_a_step_costs_its_window_however_long_the_text():
    """In bytes that are stored, and in products that are computed."""
    ours, costs = layer(causal=Window(16)), []
    for past in (40, 400):
        cache = RingKVCache(16)
        ours(tokens(B, past, E), cache=cache)
        with FlopCounterMode(display=False) as counted:
            ours(tokens(B, 1, E), cache=cache)
        costs.append((counted.get_total_flops(), cache.nbytes))
        assert cache.nbytes == 16 * sum(
            t[:, :, :1].nbytes for t in cache.stored
        )
    assert costs[0] == costs[1]
