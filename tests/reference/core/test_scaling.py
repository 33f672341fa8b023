"""Other frequencies of RoPE, against their formulas in Python's own numbers."""

import pytest
import torch

from attnref import (
    DynamicNtk,
    KVCache,
    Llama3,
    LongRope,
    Ntk,
    PositionInterpolation,
    Proportional,
    Rope,
    Yarn,
    rope_table,
    token_positions,
)
from attnref.core import rope
from tests.kit.compare import relative_error
from tests.kit.layers import B, E, T
from tests.kit.mla import STRETCHED
from tests.kit.refusals import refusals
from tests.variants import variant


@pytest.mark.parametrize(
    ("dim", "theta", "yarn", "low", "high"),
    [
        # With `n` turns in 4096 tokens: 32 * ln(4096 / (2 pi n)) / ln(10000).
        (64, 1e4, Yarn(40.0, 4096), 10, 23),  # 10.5 and 22.5
        (16, 1e4, Yarn(4.0, 64, mscale=0.5), 0, 3),  # -0.99 and 2.02
        (16, 1e4, Yarn(4.0, 64, 300.0, 20.0), 0, 1),  # a step: both below 0
        (8, 1e2, Yarn(8.0, 40960, 1160.0), 1, 7),  # 1.5 and 7.6; at most 7
    ],
)
def test_yarn_slows_the_pairs_between_two_by_a_ramp(
    dim, theta, yarn, low, high
):
    plain = [theta ** (-2 * p / dim) for p in range(dim // 2)]
    shares = [(p - low) / (high - low) for p in range(dim // 2)]
    want = torch.tensor(
        [
            f + min(max(s, 0), 1) * (f / yarn.factor - f)
            for f, s in zip(plain, shares, strict=True)
        ],
        dtype=torch.float64,
    )
    got = yarn.slowed(torch.tensor(plain, dtype=torch.float64), theta)
    assert relative_error(got, want) <= 1e-12
    at = torch.arange(T) + 97
    tables = rope_table(at, dim, theta=theta, scaling=yarn)
    for table, of in zip(tables, (torch.cos, torch.sin), strict=True):
        want_table = yarn.table_scale * of(at[:, None] * want)
        assert relative_error(table, want_table) <= 1e-12


def test_yarn_scales_as_deepseek_does():
    assert Yarn(4.0, 64).table_scale == pytest.approx(1.1386, abs=1e-4)
    assert Yarn(4.0, 64).softmax_scale == 1
    # `mscale` alone, or `mscale_all_dim` alone, changes nothing in the tables.
    for alone in {"mscale": 2.0}, {"mscale_all_dim": 2.0}:
        assert Yarn(4.0, 64, **alone).table_scale == Yarn(4.0, 64).table_scale
    both = Yarn(4.0, 64, mscale=1.0, mscale_all_dim=1.0)
    assert both.table_scale == 1
    assert both.softmax_scale == pytest.approx(1.2965, abs=1e-4)
    v3 = Yarn(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
    assert v3.softmax_scale == pytest.approx(1.874, abs=5e-4)  # as the page
    assert STRETCHED.scaling.table_scale == pytest.approx(1.0268, abs=1e-4)
    assert STRETCHED.scaling.softmax_scale == pytest.approx(1.1434, abs=1e-4)


@refusals(
    """
    >>> Yarn(0.5, 64)
    ValueError: factor=0.5 must be at least 1
    >>> Yarn(torch.nan, 64)
    ValueError: factor=nan
    >>> Yarn(4.0, 0)
    ValueError: original_max_len=0 must be at least 1
    >>> Yarn(4.0, 64, beta_fast=0.5)
    ValueError: beta_fast=0.5 must be at least beta_slow=1.0
    >>> Yarn(4.0, 64, beta_slow=40.0)
    ValueError: beta_fast=32.0 must be at least beta_slow=40.0
    >>> Yarn(4.0, 64, beta_slow=0.0)
    ValueError: beta_slow=0.0, and both above 0
    >>> Yarn(4.0, 64, beta_slow=torch.nan)
    ValueError: beta_slow=nan
    >>> PositionInterpolation(0.5)
    ValueError: factor=0.5 must be at least 1
    >>> Ntk(torch.nan)
    ValueError: factor=nan must be at least 1
    >>> DynamicNtk(2.0, 0)
    ValueError: original_max_len=0 must be at least 1
    >>> Llama3(0.9, 1.0, 4.0, 64)
    ValueError: factor=0.9 must be at least 1
    >>> Llama3(8.0, 1.0, 1.0, 64)
    ValueError: high_freq_factor=1.0 must be above low_freq_factor=1.0
    >>> LongRope([1], [1], 64, 0.7)
    ValueError: factor=0.7 must be at least 1
    >>> LongRope([1], [1], 0.5)
    ValueError: original_max_len=0.5 must be
    >>> LongRope([1], [1], 1)
    ValueError: original_max_len=1 gives no scale
    >>> Proportional(0.0)
    ValueError: share=0.0 must be in (0, 1]
    >>> LongRope([1, 2], [1], 64)
    ValueError: short has 2 factors, long 1
    >>> Rope(width=5)
    ValueError: width=5 must be even
    >>> Rope(width=0)
    ValueError: width=0 must be even
    >>> Rope(0.0)
    ValueError: theta=0.0 must be positive
    >>> Rope(layout="neox")
    ValueError: layout='neox' is neither 'half' nor
    >>> variant("gqa", rope=Rope(width=6))
    ValueError: Rope(width=6) rotates more than head_dim=4
    >>> variant("gqa", head_dim=3, rope=Rope())
    ValueError: head_dim=3 is odd
    >>> variant("gqa", rope_theta=9.0, rope=Rope())
    ValueError: rope_theta=9.0 and rope=Rope(
    >>> variant("gqa", rope=Rope(scaling=LongRope([1] * 3, [1] * 3, 64)))
    ValueError: LongRope has 3 factors, one per pair; RoPE rotates 2 pairs
    """
)
def test_what_cannot_be_is_refused_with_numbers(call, error, message):
    with pytest.raises(error, match=message):
        eval(call)


def test_the_limits_themselves_are_accepted():
    assert Yarn(1.0, 1, beta_fast=0.02, beta_slow=0.02).table_scale == 1
    plain = torch.tensor([1.0, 0.1])
    for kind in (
        PositionInterpolation(1.0),
        Ntk(1.0),
        Llama3(1.0, 1.0, 1.1, 64),
        Proportional(1.0),
    ):
        assert torch.equal(kind.slowed(plain, 1e2), plain), kind


# Up to 5 tokens one angle each, and others beyond.
BY_LENGTH = {
    "dynamic": DynamicNtk(8.0, 5),
    "long": LongRope([1.0, 1.0], [1.0, 7.0], 5),
}
lengths = pytest.mark.parametrize("scaling", BY_LENGTH.values(), ids=BY_LENGTH)


@lengths
@torch.no_grad()
def test_stale_keys_are_refused_before_the_cache_changes(scaling):
    layer = variant("gqa", rope=Rope(9.0, scaling=scaling))
    x, cache = torch.randn(B, T, E).double(), KVCache(T)
    for token in x[:, :5].split(1, dim=1):
        layer(token, cache=cache)
    name = type(scaling).__name__
    message = (
        f"the cached keys were rotated for a text of 5 tokens, and {name} "
        "rotates one of 6 by other angles: read the whole text again"
    )
    for options in {}, {"positions": torch.tensor([[5], [2], [5]])}:
        with pytest.raises(ValueError, match=message):
            layer(x[:, 5:6], cache=cache, **options)
    assert cache.length == 5
    # What is no longer than 5 tokens by its positions is not refused.
    layer(x[:, 5:6], cache=cache, positions=torch.tensor([[2], [4], [3]]))
    assert cache.length == 6


@lengths
@torch.no_grad()
def test_a_rollback_does_not_rotate_the_keys_back(scaling):
    """What counts is the length of the text for which they were rotated."""
    layer = variant("gqa", rope=Rope(9.0, scaling=scaling))
    x, cache = torch.randn(B, 7, E).double(), KVCache(9)
    layer(x, cache=cache)
    cache.crop(4)
    with pytest.raises(ValueError, match=r"a text of 7 tokens, and .* of 5 by"):
        layer(x[:, 4:5], cache=cache)
    cache.reset()
    layer(x, cache=cache)
    cache.crop(6)
    again = layer(x[:, 6:], cache=cache)
    assert relative_error(again, layer(x)[:, 6:]) <= 1e-12
    cache.crop(0)
    assert relative_error(layer(x, cache=cache), layer(x)) <= 1e-12


@lengths
@torch.no_grad()
def test_a_text_is_as_long_as_its_positions_say(scaling):
    """Of three rows with 4, 6 and 2 pads before them, none has 6 tokens."""
    fixed = variant("gqa", rope=Rope(9.0))
    layer = variant("gqa", rope=Rope(9.0, scaling=scaling))
    layer.load_state_dict(fixed.state_dict())
    x = torch.randn(B, T, E).double()
    valid = torch.arange(T) >= torch.tensor([[4], [6], [2]])
    more = {"mask": valid[:, None, None], "positions": token_positions(valid)}
    want = fixed(x, **more)[valid]
    assert relative_error(layer(x, **more)[valid], want) <= 1e-12
    more["positions"] += 1
    assert relative_error(layer(x, **more)[valid], want) > 1e-3
    assert relative_error(layer(x), fixed(x)) > 1e-3


def test_tables_of_one_length_alone_are_not_stored():
    layer = variant("gqa", rope=Rope(9.0, scaling=DynamicNtk(4.0, 5)))
    layer(torch.randn(B, 5, E).double())
    stored = rope._stored.cache_info().currsize
    for length in (6, 7, 8):
        layer(torch.randn(B, length, E).double())
    assert rope._stored.cache_info().currsize == stored


def test_lists_of_factors_are_the_same_as_tuples():
    one = LongRope([1.0], [2.0], 64)
    assert one == LongRope((1.0,), (2.0,), 64)
    assert hash(one) == hash(LongRope((1.0,), (2.0,), 64))
