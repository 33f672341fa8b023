import re
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from attnref import (
    Causal,
    RuleMask,
    causal_mask,
    flash_lse,
    merge,
    sdpa,
    split_kv,
    with_prefix,
)
from tests.conftest import relative_error
from tests.core.test_flash import gradients, leaves
from tests.core.test_sdpa import DV, MASKS, B, D, H, K, Made, S, T, qkv


def merged(q, k, v, mask, sizes):
    """Attention to parts of the keys of these sizes, merged."""
    found = [
        flash_lse(q, some, values, seen, tile=(3, 2))
        for some, values, seen in zip(
            k.split(sizes, dim=2),
            v.split(sizes, dim=2),
            mask.expand(B, H, T, S).split(sizes, dim=3),
            strict=True,
        )
    ]
    return merge(*zip(*found, strict=True))


@given(
    st.lists(st.integers(0, S), max_size=4).map(sorted),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
)
def test_parts_of_any_size_are_merged_into_all(cuts, dense, seed):
    """Also one in which a query sees nothing, and one without keys."""
    torch.manual_seed(seed)
    q, k, v = qkv()
    mask = torch.rand(B, H, T, S) < dense
    ends = [0, *cuts, S]
    sizes = [b - a for a, b in pairwise(ends)]
    out, lse = merged(q, k, v, mask, sizes)
    assert relative_error(out, sdpa(q, k, v, mask)) <= 1e-12
    torch.testing.assert_close(lse, flash_lse(q, k, v, mask)[1])


def test_gradients_go_through_it():
    q, k, v = qkv()
    mask = torch.rand(B, H, T, S) > 0.5
    mask[:, :, 2, :4] = False  # of the first part this query sees nothing
    mask[:, :, 3] = False  # and this one no key at all
    above = torch.randn(B, H, T, DV, dtype=q.dtype)
    want = gradients(sdpa, (q, k, v), above, mask)
    got = gradients(lambda *x: merged(*x, [4, 2, 5])[0], (q, k, v), above, mask)
    for ours, theirs in zip(got, want, strict=True):
        assert relative_error(ours, theirs) <= 1e-12
    # Merged again, and with a gradient of the log-sum-exp.
    copies = leaves(q, k, v)
    out, lse = merged(*copies, mask, [4, 2, 5])
    again, total = merge([out, out], [lse, lse])
    assert relative_error(again, out) <= 1e-12
    (again.sum() + total.exp().sum()).backward()
    assert all(x.grad.isfinite().all() for x in copies)
    small = leaves(torch.randn(3, 1, 2, 2, 5).double(), torch.randn(3, 1, 2, 2))
    assert gradcheck(
        lambda outs, lses: merge(outs.unbind(), lses.unbind()),
        [x.detach().double().requires_grad_() for x in small],
    )


def test_the_plain_mean_of_the_parts_is_wrong():
    q, k, v = qkv()
    mask = causal_mask(T, S)
    found = [
        flash_lse(q, k[:, :, part], v[:, :, part], mask[:, part])
        for part in (slice(6), slice(6, None))
    ]
    outs, lses = zip(*found, strict=True)
    want = sdpa(q, k, v, mask)
    assert relative_error(merge(outs, lses)[0], want) <= 1e-12
    assert relative_error(sum(outs) / 2, want) > 0.3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_kept(dtype):
    q, k, v = qkv(dtype, S=128)
    exact = sdpa(*(x.double() for x in (q, k, v)))
    got = split_kv(q, k, v)
    assert got.dtype == dtype
    ours, theirs = (relative_error(x, exact) for x in (got, sdpa(q, k, v)))
    assert ours <= 3 * theirs  # each part is rounded, then the whole


@pytest.mark.parametrize("splits", [1, 2, 4, S, 20])
def test_split_into_any_number_of_parts_it_is_sdpa(splits):
    masks = MASKS | {"lazy": lambda: RuleMask(Causal(), T, S, S - T)}
    for make in masks.values():
        for kv_heads in (1, 3, 6):
            (q, k, v), mask = qkv(K=kv_heads), make()
            got = split_kv(q, k, v, mask, scale=0.4, splits=splits)
            want = sdpa(q, k, v, mask, scale=0.4)
            assert relative_error(got, want) <= 1e-12
    empty = split_kv(*qkv(S=0), splits=splits)
    assert empty.shape == (B, H, T, DV)
    assert (empty == 0).all()


def shared_and_own(P=17):
    q, k, v = qkv()
    prefix = tuple(
        torch.randn(1, K, P, width, dtype=q.dtype) for width in (D, DV)
    )
    whole = tuple(
        torch.cat((x.expand(B, -1, -1, -1), own), dim=2)
        for x, own in zip(prefix, (k, v), strict=True)
    )
    return q, prefix, k, v, whole


def test_with_a_shared_prefix_it_is_sdpa_over_all_keys():
    q, prefix, k, v, whole = shared_and_own()
    own = torch.rand(B, 1, T, S) > 0.4
    own[0, :, 2] = False  # this query sees the prefix alone
    seen = torch.cat((own.new_ones(B, 1, T, 17), own), dim=3)
    for mask, all_keys in ((None, None), (own, seen)):
        got = with_prefix(q, prefix, k, v, mask, scale=0.4)
        want = sdpa(q, *whole, all_keys, scale=0.4)
        assert relative_error(got, want) <= 1e-12
    lazy = RuleMask(Causal(), T, S, S - T)
    seen = torch.cat((own.new_ones(T, 17), causal_mask(T, S)), dim=1)
    got, want = with_prefix(q, prefix, k, v, lazy), sdpa(q, *whole, seen)
    assert relative_error(got, want) <= 1e-12


def test_a_prefix_without_any_new_query():
    q, prefix, k, v, _ = shared_and_own()
    assert with_prefix(q[:, :, :0], prefix, k, v).shape == (B, H, 0, DV)


@torch.no_grad()
def test_a_prefix_is_not_repeated_for_each_row():
    q, prefix, k, v, _ = shared_and_own(1009)
    with Made(q, *prefix, k, v) as made:
        with_prefix(q, prefix, k, v)
    assert made.largest < prefix[0].nbytes


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda q, k, v: merge([], []), ValueError, "0 outputs, 0 log-sum-"),
        (
            lambda q, k, v: merge([q], [q[..., 0], q[..., 0]]),
            ValueError,
            "1 outputs, 2 log-sum-exps",
        ),
        (
            lambda q, k, v: merge([q], [q[..., :1]]),
            ValueError,
            "an output of shape (2, 6, 7, 5) beside a log-sum-exp of shape "
            "(2, 6, 7, 1)",
        ),
        (
            lambda q, k, v: merge([q, q[:1]], [q[..., 0], q[:1, ..., 0]]),
            ValueError,
            "the first output is of shape (2, 6, 7, 5)",
        ),
        (
            lambda q, k, v: split_kv(q, k, v, splits=0),
            ValueError,
            "splits=0 must be at least 1",
        ),
        (
            lambda q, k, v: split_kv(q, k, v, causal_mask(T)),
            ValueError,
            "mask has shape (7, 7), which does not broadcast",
        ),
        (
            lambda q, k, v: with_prefix(q, (k, v), k, v),
            ValueError,
            "q has B=1, v has B=2",
        ),
    ],
)
def test_bad_input_is_refused(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call(*qkv())
