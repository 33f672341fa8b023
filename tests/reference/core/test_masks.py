import re
from dataclasses import dataclass
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask

from attnref import (
    Causal,
    Chunk,
    Documents,
    Everything,
    GroupedQueryAttention,
    Prefix,
    Rule,
    RuleMask,
    Window,
    causal_mask,
    cross_mask,
    decoder_mask,
    flash,
    fused,
    mask_mod,
    padding_mask,
    padding_mask_from_hf,
    sdpa,
)
from attnref.core.masks import _rows, dense, part_of
from tests.kit.attention import Blocks, Made
from tests.kit.refusals import refusals

TWO = torch.tensor([[True, True, False]])  # tokens and a pad
FOUR = torch.tensor([[True, True, True, False], [True, True, False, False]])


MATRICES = {
    "padding": (padding_mask(FOUR), "1110 1100"),
    "causal": (causal_mask(4), "1000 1100 1110 1111"),
    "at the right": (causal_mask(2, 5), "11110 11111"),
    "one query": (causal_mask(1, 5), "11111"),
    "more queries than keys": (causal_mask(5, 3), "000 000 100 110 111"),
    "causal and pads": (causal_mask(3) & padding_mask(TWO), "100 110 110"),
    "cross": (cross_mask(TWO, FOUR[:1]), "1110 1110 0000"),
    "window": (causal_mask(4).triu(-1), "1000 1100 0110 0011"),
    "chunks": (
        Chunk(3)(torch.arange(7)[:, None], torch.arange(7)),
        "1000000 1100000 1110000 0001000 0001100 0001110 0000001",
    ),
}


@pytest.mark.parametrize(("mask", "rows"), MATRICES.values(), ids=MATRICES)
def test_masks_in_ones_and_zeros(mask, rows):
    wanted = [[int(x) for x in row] for row in rows.split()]
    assert mask.int().flatten(0, -2).tolist() == wanted
    assert mask.dtype == torch.bool and mask.dim() in (2, 4)
    assert mask.dim() == 2 or mask.shape[1] == 1  # for all heads


def test_a_padded_row_equals_the_row_alone():
    # --8<-- [start:alone]
    alone = torch.randn(1, 1, 2, 8)  # two tokens
    pads = torch.randn(1, 1, 2, 8)  # their content must not matter
    want = sdpa(alone, alone, alone, causal_mask(2))

    right = torch.cat([alone, pads], dim=2)
    valid = torch.tensor([[True, True, False, False]])
    mask = causal_mask(4) & padding_mask(valid)
    got = sdpa(right, right, right, mask)
    torch.testing.assert_close(got[:, :, :2], want)

    left = torch.cat([pads, alone], dim=2)
    mask = causal_mask(4) & padding_mask(valid.flip(1))
    got = sdpa(left, left, left, mask)
    torch.testing.assert_close(got[:, :, 2:], want)
    # --8<-- [end:alone]


def test_two_additive_masks_compete_in_a_left_padded_row():
    # --8<-- [start:compete]
    from attnref import softmax

    scores = torch.zeros(4)  # the first query, a pad
    causal = torch.tensor([0.0, -1e9, -1e9, -1e9])
    padding = torch.tensor([-1e9, 0.0, 0.0, 0.0])
    weights = torch.softmax(scores + causal + padding, -1)
    assert weights.tolist() == [0.25] * 4  # three quarters on the future

    allowed = (causal == 0) & (padding == 0)
    weights = softmax(scores.masked_fill(~allowed, -torch.inf))
    assert weights.tolist() == [0.0] * 4
    # --8<-- [end:compete]


def test_a_pad_must_hold_finite_numbers():
    # --8<-- [start:finite]
    x = torch.randn(1, 1, 3, 8)
    x[:, :, 2] = torch.nan  # a pad, as in memory that was never written
    valid = torch.tensor([[True, True, False]])
    assert sdpa(x, x, x, padding_mask(valid)).isnan().all()  # 0 * NaN
    # --8<-- [end:finite]
    theirs = F.scaled_dot_product_attention(x, x, x, padding_mask(valid))
    assert theirs.isnan().all()


def test_a_mask_is_made_on_the_given_device():
    assert causal_mask(2, 3, device="meta").device.type == "meta"


def test_is_causal_of_torch_is_aligned_at_the_top_left():
    # --8<-- [start:top_left]
    import torch.nn.functional as F

    from attnref import sdpa

    q = torch.randn(1, 1, 1, 8)  # one new query ...
    k, v = torch.randn(2, 1, 1, 5, 8)  # ... and five keys in the cache
    trap = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(trap, v[:, :, :1])  # it sees only key 0

    right = F.scaled_dot_product_attention(q, k, v, causal_mask(1, 5))
    torch.testing.assert_close(right, sdpa(q, k, v))
    # --8<-- [end:top_left]


def test_a_mask_beside_is_causal_depends_on_the_kernel():
    k, v = torch.randn(2, 1, 1, 5, 8)
    # --8<-- [start:both]
    from torch.nn.attention import SDPBackend, sdpa_kernel

    mask = padding_mask(torch.tensor([[True, True, True, False, False]]))
    try:
        with sdpa_kernel(SDPBackend.MATH):
            F.scaled_dot_product_attention(k, k, v, mask, is_causal=True)
        raise AssertionError("this kernel accepts only one of them")
    except RuntimeError as error:
        assert "attn_mask should not be set when is_causal" in str(error)
    joined = F.scaled_dot_product_attention(k, k, v, mask & causal_mask(5))
    # --8<-- [end:both]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = F.scaled_dot_product_attention(k, k, v, mask, is_causal=True)
        new = k[:, :, :2]  # two queries, five keys
        few = F.scaled_dot_product_attention(new, k, v, mask, is_causal=True)
    torch.testing.assert_close(out, joined)
    torch.testing.assert_close(few, out[:, :, :2])  # the first two rows


def test_a_rule_holds_wherever_the_keys_are():
    # --8<-- [start:rule]
    import torch

    from attnref import Window, causal_mask, decoder_mask, padding_mask

    options = {"causal": Window(2), "device": torch.device("cpu")}
    mask = decoder_mask(None, (1, 1, 4, 4), **options)  # without a cache
    assert torch.equal(mask.dense(), causal_mask(4).triu(-1))

    slots = torch.tensor([3, 4, 2])  # tokens 3 and 4 replaced 0 and 1
    mask = decoder_mask(None, (1, 1, 1, 5), positions=slots, **options)
    assert mask.dense().int().tolist() == [[1, 1, 0]]  # 4 sees 3 and itself

    valid = padding_mask(torch.tensor([[True, True, True, False, True]]))
    mask = decoder_mask(valid, (1, 1, 1, 5), positions=slots, **options)
    assert mask.dense().int().tolist() == [[[[0, 1, 0]]]]  # token 3 is a pad
    # --8<-- [end:rule]


def test_a_single_query_keeps_the_padding_mask():
    padding = padding_mask(torch.tensor([[False, True, True]]))
    options = {"causal": True, "device": torch.device("cpu")}
    mask = dense(decoder_mask(padding, (1, 1, 1, 3), **options))
    assert mask.int().tolist() == [[[[0, 1, 1]]]]
    # As it is: one query hides nothing more.
    assert decoder_mask(padding, (1, 1, 1, 3), **options) is padding
    assert decoder_mask(None, (1, 1, 1, 3), **options) is None
    # Of a window this is known of numbers alone, not of positions.
    given = {"causal": Window(3), "token_positions": torch.tensor([[0, 1, 4]])}
    mask = decoder_mask(None, (1, 1, 1, 3), **options | given)
    assert mask.dense().int().tolist() == [[0, 0, 1]]


def test_what_reads_numbers_sees_the_same_at_any_positions():
    i, j = torch.arange(7)[:, None], torch.arange(7)
    for rule in Causal(), Everything(), Documents(IDS[0]):
        assert rule.by_number is True
        assert torch.equal(rule(i, j, at=(6 - i, 6 - j)), rule(i, j))


def test_a_prefix_is_seen_by_all():
    # --8<-- [start:prefix]
    mask = RuleMask(Prefix(2), T=4, S=4, past=0).dense()
    assert mask.int().tolist() == [
        [1, 1, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [1, 1, 1, 1],
    ]
    lengths = torch.tensor([2, 0])  # one for each row of the batch
    both = RuleMask(Prefix(lengths), T=4, S=4, past=0).dense()
    assert both.shape == (2, 1, 4, 4)
    assert torch.equal(both[0, 0], mask)
    assert torch.equal(both[1, 0], causal_mask(4))
    # --8<-- [end:prefix]


def test_tokens_of_one_image_see_each_other():
    # --8<-- [start:images]
    from attnref import KVCache, MultiHeadAttention

    image = torch.tensor([[-1, 0, 0, -1, 1, 1, 1]])  # -1: text
    same = (image[:, :, None] == image[:, None]) & (image >= 0)[:, None]
    mask = causal_mask(7) | same[:, None]  # (B, 1, T, T)
    assert mask[0, 0].int().tolist()[3:6] == [
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 1, 1],
    ]
    layer = MultiHeadAttention(d_model=16, n_heads=2, causal=False)
    x, cache = torch.randn(1, 7, 16), KVCache(7)
    with torch.no_grad():
        whole = layer(x, mask=mask)
        first = layer(x[:, :4], mask=mask[..., :4, :4], cache=cache)
        rest = layer(x[:, 4:], mask=mask[..., 4:, :], cache=cache)
    torch.testing.assert_close(torch.cat((first, rest), dim=1), whole)
    # --8<-- [end:images]
    with torch.no_grad():  # a border within the second image
        cache.reset()
        layer(x[:, :5], mask=mask[..., :5, :5], cache=cache)
        cut = layer(x[:, 5:], mask=mask[..., 5:, :], cache=cache)
        torch.testing.assert_close(cut, whole[:, 5:])
        early = layer(x[:, :5], mask=mask[..., :5, :5])
    assert (early - whole[:, :5]).abs().max() > 0.01 * whole.abs().max()


def test_packed_documents_are_computed_as_if_alone():
    # --8<-- [start:documents]
    from attnref import sdpa

    ids = torch.tensor([[0, 0, 0, 1, 1]])
    mask = RuleMask(Causal() & Documents(ids), T=5, S=5, past=0)
    x = torch.randn(1, 1, 5, 8)
    packed = sdpa(x, x, x, mask)
    for part in slice(0, 3), slice(3, 5):
        alone = x[:, :, part]
        want = sdpa(alone, alone, alone, causal_mask(alone.shape[2]))
        torch.testing.assert_close(packed[:, :, part], want)
    # --8<-- [end:documents]


def test_torch_takes_each_kind_of_mask():
    # --8<-- [start:torch]
    import torch.nn.functional as F

    from attnref import sdpa

    x = torch.randn(1, 1, 4, 8)  # q, k and v of four tokens
    valid = torch.tensor([[True, True, True, False]])  # the last is a pad
    mask = causal_mask(4) & padding_mask(valid)
    theirs = F.scaled_dot_product_attention(x, x, x, attn_mask=mask)
    torch.testing.assert_close(sdpa(x, x, x, mask), theirs)
    # --8<-- [end:torch]


def test_each_kind_of_mask_and_what_sdpa_takes_for_it():
    # --8<-- [start:state_causal]
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from attnref import causal_mask, sdpa

    x = torch.randn(3, 2, 4, 8)  # q, k and v of 4 tokens
    ours = sdpa(x, x, x, causal_mask(4))
    theirs = scaled_dot_product_attention(x, x, x, is_causal=True)
    torch.testing.assert_close(ours, theirs)
    # --8<-- [end:state_causal]
    # --8<-- [start:state_cache]
    new = x[:, :, 2:]  # is_causal=True would be wrong
    mask = causal_mask(2, 4)
    theirs = scaled_dot_product_attention(new, x, x, mask)
    torch.testing.assert_close(ours[:, :, 2:], theirs)
    # --8<-- [end:state_cache]
    # --8<-- [start:state_window]
    from attnref import RuleMask, Window

    mask = RuleMask(Window(2), T=4, S=4, past=0).dense()
    theirs = scaled_dot_product_attention(x, x, x, mask)
    torch.testing.assert_close(sdpa(x, x, x, mask), theirs)
    # --8<-- [end:state_window]
    # --8<-- [start:state_prefix]
    from attnref import Prefix, RuleMask

    mask = RuleMask(Prefix(2), T=4, S=4, past=0).dense()
    theirs = scaled_dot_product_attention(x, x, x, mask)
    torch.testing.assert_close(sdpa(x, x, x, mask), theirs)
    # --8<-- [end:state_prefix]
    # --8<-- [start:state_right]
    from attnref import causal_mask, padding_mask

    valid = torch.tensor([[True, True, True, False]])
    mask = causal_mask(4) & padding_mask(valid)
    theirs = scaled_dot_product_attention(x, x, x, mask)
    torch.testing.assert_close(sdpa(x, x, x, mask), theirs)
    # --8<-- [end:state_right]
    # --8<-- [start:state_left]
    from attnref import causal_mask, padding_mask

    valid = torch.tensor([[False, False, True, True]])
    mask = causal_mask(4) & padding_mask(valid)
    ours = sdpa(x, x, x, mask)
    assert ours[:, :, :2].eq(0).all()
    theirs = scaled_dot_product_attention(x, x, x, mask)
    torch.testing.assert_close(ours[:, :, 2:], theirs[:, :, 2:])
    # --8<-- [end:state_left]
    # --8<-- [start:state_documents]
    from attnref import Causal, Documents, RuleMask

    rule = Causal() & Documents(torch.tensor([[0, 0, 1, 1]]))
    mask = RuleMask(rule, T=4, S=4, past=0).dense()
    theirs = scaled_dot_product_attention(x, x, x, mask)
    torch.testing.assert_close(sdpa(x, x, x, mask), theirs)
    # --8<-- [end:state_documents]
    # --8<-- [start:state_chunks]
    chunk = torch.arange(4) // 2
    mask = causal_mask(4) & (chunk[:, None] == chunk)
    theirs = scaled_dot_product_attention(x, x, x, mask)
    torch.testing.assert_close(sdpa(x, x, x, mask), theirs)
    # --8<-- [end:state_chunks]


def test_a_rule_of_your_own():
    # --8<-- [start:own]
    from dataclasses import dataclass

    from attnref import Causal, RuleMask

    @dataclass(frozen=True)
    class Dilated(Causal):
        step: int

        def shows(self, i, j):
            return super().shows(i, j) & ((i - j) % self.step == 0)

    mask = RuleMask(Dilated(2), T=4, S=4, past=0).dense()
    assert mask.int().tolist() == [
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [1, 0, 1, 0],
        [0, 1, 0, 1],
    ]
    # --8<-- [end:own]


def test_one_rule_is_both_a_mask_and_a_mask_mod():
    # --8<-- [start:mod]
    from torch.nn.attention.flex_attention import create_mask

    rule = Window(3) & Documents(torch.tensor([[0] * 5, [0, 0, 1, 1, 1]]))
    theirs = create_mask(mask_mod(rule), 2, 1, 5, 5, device="cpu")
    assert torch.equal(theirs, RuleMask(rule, T=5, S=5, past=0).dense())
    # --8<-- [end:mod]


@dataclass(frozen=True)
class First(Rule):
    """Looks at the key alone."""

    def shows(self, i, j):
        return j < 4


IDS = torch.tensor([[0] * 3 + [1] * 5 + [2] * 3, [4] * 7 + [2] * 4])
LENGTHS = torch.tensor([5, 0])
RULES = [
    Causal(),
    Everything(),
    Blocks(),
    First(),
    Window(3),
    Prefix(7),
    Prefix(LENGTHS),
    Documents(IDS[0]),
    Window(4) & Documents(IDS),
    First() & Prefix(LENGTHS) & Documents(IDS),
]


def masks_of_every_shape(full):
    """None, and one with each of the axes whole or of size 1."""
    yield None
    for sides in product(*[(1, n) for n in full]):
        yield torch.rand(sides) > 0.4
    for sides in product(*[(1, n) for n in full[2:]]):
        yield torch.rand(sides) > 0.4


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_parts_of_a_lazy_mask_are_those_of_the_whole(rule):
    """With keys anywhere, empty slots and a mask of any shape beside it."""
    B, H, T, S = full = 2, 3, 5, 11
    slots = torch.tensor([8, 9, 10, -1, 4, 5, 7, -1])
    for positions in None, slots:
        at = torch.arange(S) if positions is None else positions
        sees = rule(torch.arange(S - T, S)[:, None], at)  # (T, slots)
        width = len(at)
        for beside in masks_of_every_shape((B, H, T, width)):
            lazy = RuleMask(rule, T, width, S - T, positions, beside)
            want = sees.expand(*sees.shape[:-2], T, -1)
            if beside is not None:
                want = want & beside
            assert torch.equal(lazy.dense(), want)
            assert torch.equal(dense(lazy), want)
            for height, width_of_tile in ((2, 3), (5, 1), (1, 20)):
                rows = [
                    torch.cat(
                        [
                            part_of(lazy, slice(i, i + height), slice(j, end))
                            for j in range(0, width, width_of_tile)
                            for end in [j + width_of_tile]
                        ],
                        dim=-1,
                    )
                    for i in range(0, T, height)
                ]
                assert torch.equal(torch.cat(rows, dim=-2), want)
    seen = torch.tensor([[True, False], [False, False]])
    assert part_of(seen, slice(0, 1), slice(1, 2)).tolist() == [[False]]
    options = {"causal": rule, "device": torch.device("cpu")}
    for beside in masks_of_every_shape(full):
        if beside is not None and beside.shape[-1] == S:
            lazy = decoder_mask(beside, full, positions=slots, **options)
            sees = rule(torch.arange(S - T, S)[:, None], slots)
            sees = sees.expand(*sees.shape[:-2], T, -1)
            want = sees & beside[..., slots]
            assert torch.equal(dense(lazy), want)
            assert not want[..., slots == -1].any()


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_for_flex_attention_a_mask_is_the_same(rule):
    """By its own `create_mask`, which asks for one pair after the other."""
    B, H, T, S = full = 2, 3, 5, 11
    slots = torch.tensor([8, 9, 10, -1, 4, 5, 7, -1])
    padding = torch.rand(B, 1, 1, S) > 0.4
    for mask in (
        RuleMask(rule, T, S, S - T),
        RuleMask(rule, T, len(slots), S - T, slots),
        RuleMask(rule, T, S, S - T, None, padding),
        RuleMask(rule, T, S, S - T, None, torch.rand(full) > 0.4),
        padding,
        torch.rand(T, 1) > 0.4,
        torch.rand(full) > 0.4,
    ):
        want = dense(mask)
        sizes = B, H, T, want.shape[-1] if want.shape[-1] > 1 else S
        got = create_mask(mask_mod(mask), *sizes, device="cpu")
        assert torch.equal(got, want.expand(sizes))
    alone = create_mask(mask_mod(rule), B, H, S, S, device="cpu")
    want = dense(RuleMask(rule, S, S, 0))
    assert torch.equal(alone, want.expand(B, H, S, S))


def test_a_rule_that_hides_nothing_says_so_only_then():
    options = {"device": torch.device("cpu")}
    for rule in RULES:
        for T, S in ((0, 0), (1, 1), (1, 3), (1, 4), (1, 11), (2, 2), (5, 11)):
            rule.check(2, S, **options)
            whole = bool(dense(RuleMask(rule, T, S, S - T)).all())
            assert whole or not rule.hides_nothing(T, S), (rule, T, S)
    for rule, most in ((Window(3), 3), (Window(3) & Causal(), 3)):
        hidden = [rule.hides_nothing(1, S) for S in range(1, 6)]
        assert hidden == [most >= S for S in range(1, 6)]
    assert (Prefix(2) & Causal()).hides_nothing(1, 9)
    assert not (Prefix(2) & Documents(IDS)).hides_nothing(1, 9)


@dataclass(frozen=True)
class Sparse(Window):
    """Shows less than the window of its size."""

    def shows(self, i, j):
        return super().shows(i, j) & (j % 2 == 0)


class Fewer(Prefix):
    """Shows less than the prefix of its length."""

    def shows_in(self, row, i, j):
        return super().shows_in(row, i, j) & (j % 2 == 0)


class Even(Rule):
    """Has no sizes, and so needs no decorator to be equal to another."""

    def shows(self, i, j):
        return j % 2 == 0


def test_which_cache_keeps_enough_for_which_rule():
    documents, prefix = Documents(IDS), Prefix(LENGTHS)
    for keeps, rule, answer in (
        (Window(3), Window(3), True),
        (Window(4), Window(3), True),
        (Window(3), Window(4), False),
        (Window(3), Causal(), False),
        (Window(3), Prefix(2), False),
        (Window(3), documents, False),
        (Window(3), documents & Window(3), True),
        (Window(3), documents & Window(4) & Causal(), False),
        (Window(3), Sparse(3), True),
        (Sparse(3), Window(3), False),
        (Sparse(3), Sparse(3), True),
        (Everything(), Window(3) & documents, True),
        (Causal(), Window(3) & Causal(), True),
        (Causal(), Causal() & documents, True),
        (documents & Window(3), documents & Window(2), True),
        (documents & Window(3), Window(2), False),
        (documents, Documents(IDS), False),  # by identity: not compared
        (prefix, prefix & Causal(), True),
        (prefix, Prefix(LENGTHS), False),
        (prefix, prefix & documents, True),
        (Fewer(3), Causal(), False),
        (Even(), Even() & Causal(), True),
    ):
        assert keeps.covers(rule) is answer, (keeps, rule)
    joined = (Causal() & Window(3)) & (documents & Causal())
    assert joined.parts == (Causal(), Window(3), documents, Causal())
    assert len({Window(3), Window(3), documents, Prefix(LENGTHS), joined}) == 4
    assert not Sparse(3).hides_nothing(1, 1)
    assert not Fewer(3).hides_nothing(1, 1)
    with pytest.raises(TypeError, match="unsupported operand"):
        Causal() & torch.ones(3, 3).bool()


@refusals(
    """
    >>> Window(0)
    ValueError: size=0 must be at least 1
    >>> Window(2.0)
    TypeError: size is float; pass an int
    >>> Prefix(-1)
    ValueError: length=-1 must be at least 0
    >>> Prefix(torch.ones(2))
    TypeError: length is torch.float32; pass a tensor of int32 or int64
    >>> Prefix(torch.tensor(3))
    ValueError: length has shape (); it needs 1 axis
    >>> Documents([0, 1])
    TypeError: ids is list; pass a tensor of int32 or int64
    >>> Documents(IDS[None])
    ValueError: ids has shape (1, 2, 11); it needs 1 or 2 axes
    >>> ruled(Causal() & Documents(IDS), rows=3)
    ValueError: ids of the rule has shape (2, 11) for 3 rows of 11 tokens
    >>> ruled(Documents(IDS[:, :10]))
    ValueError: ids of the rule has shape (2, 10) for 2 rows of 11 tokens
    >>> ruled(Documents(IDS[0, :10]))
    ValueError: ids of the rule has shape (10,) for 2 rows of 11 tokens
    >>> ruled(Prefix(LENGTHS), rows=1)
    ValueError: length of the rule has shape (2,) for 1 rows of 11 tokens
    >>> ruled(Documents(IDS.to("meta")))
    ValueError: ids of the rule is on meta, q on cpu
    """
)
def test_a_rule_that_does_not_fit_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        eval(call)


def ruled(rule, *, rows=2, T=2, S=11):
    """Both where a layer makes the mask and where a core reads it."""
    cpu, full = torch.device("cpu"), (rows, 1, T, S)
    q, k = torch.randn(rows, 1, T, 3), torch.randn(rows, 1, S, 3)
    try:
        decoder_mask(None, full, causal=rule, device=cpu)
    except ValueError as error:
        with pytest.raises(ValueError, match=re.escape(str(error))):
            sdpa(q, k, k, RuleMask(rule, T, S, S - T))
        raise


def test_a_mask_of_a_rule_knows_whether_it_is_the_triangle():
    for mask, answer in (
        (RuleMask(Causal(), 5, 5, 0), True),
        (RuleMask(Blocks(), 5, 5, 0), False),  # a subclass may hide more
        (RuleMask(Everything(), 5, 5, 0), False),
        (RuleMask(Causal(), 4, 5, 1), False),
        (RuleMask(Causal(), 4, 5, 0), False),
        (RuleMask(Causal(), 5, 5, 1), False),
        (RuleMask(Causal(), 5, 5, 0, torch.arange(5)), False),
        (RuleMask(Causal(), 5, 5, 0, None, torch.rand(1, 5) > 0.5), False),
    ):
        assert mask.is_triangle() is answer
        if answer:
            assert torch.equal(mask.dense(), causal_mask(mask.T))


def test_a_mask_of_a_rule_is_built_where_its_tensors_are():
    for rule in Causal(), Documents(IDS.to("meta")), Prefix(LENGTHS.to("meta")):
        for at in None, torch.arange(11, device="meta"):
            mask = RuleMask(rule, 5, 11, 6, at, device="meta")
            assert mask.dense().device.type == "meta"
    slots = {"positions": at, "token_positions": at[None]}
    device = torch.device("meta")  # what was dropped is not looked at
    decoder_mask(None, (2, 1, 1, 11), causal=rule, device=device, **slots)
    assert _rows(IDS.to("meta")).device.type == "meta"


def test_what_a_layer_has_checked_is_not_checked_again():
    checked = []

    class Counted(Window):
        def check(self, B, S, device):
            checked.append((B, S))

    seen = torch.rand(1, 1, 4, 9) > 0.4
    for slots in None, torch.tensor([2, 3, 4, 5, 6, 7, 8]):
        mask, other = (
            decoder_mask(
                seen,
                (2, 3, 4, 9),
                causal=Counted(5),
                device=torch.device("cpu"),
                positions=slots,
            )
            for _ in range(2)
        )
        checked.clear()
        width = 9 if slots is None else 7
        x, y = torch.randn(2, 3, 4, 5), torch.randn(2, 3, width, 5)
        assert torch.equal(sdpa(x, y, y, mask), sdpa(x, y, y, dense(mask)))
        assert checked == []
        sdpa(x[:1], y[:1], y[:1], mask)  # for other sizes it is
        assert checked == [(1, 9)]
        # Their tensors are not compared.
        plain = [RuleMask(Causal(), 4, 9, 5, None, seen) for _ in range(2)]
        assert mask != other and plain[0] != plain[1]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (
            RuleMask(Causal(), 4, 5, 1),
            "mask is for 4 queries and 5 keys, and not for T=5 and S=5",
        ),
        (
            RuleMask(Causal(), 5, 7, 2),
            "mask is for 5 queries and 7 keys, and not for T=5 and S=5",
        ),
        (
            RuleMask(Causal(), 5, 5, 0, None, torch.ones(5, 4).bool()),
            "mask has shape (5, 4), which does not broadcast to (B, H, T, S) "
            "= (2, 3, 5, 5)",
        ),
        (
            RuleMask(
                Causal(), 5, 5, 0, token_positions=torch.zeros(3, 5).int()
            ),
            "token_positions has shape (3, 5); 2 rows of 5 tokens need (2, 5)",
        ),
    ],
)
def test_a_lazy_mask_of_another_size_is_refused(mask, message):
    x = torch.randn(2, 3, 5, 8)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        sdpa(x, x, x, mask)


@pytest.mark.parametrize(
    "core", [partial(flash, tile=(512, 512)), fused], ids=["flash", "fused"]
)
@torch.no_grad()
def test_a_causal_prompt_of_16k_is_read_without_a_mask_of_all_pairs(core):
    """Nor with all scores; the same count finds a mask that is built."""

    def largest(attend, n):
        x, sizes = torch.randn(1, n, 2), {"n_heads": 2, "n_kv_heads": 1}
        layer = GroupedQueryAttention(d_model=2, **sizes, attend=attend)
        with Made(x, *layer.parameters()) as made:
            layer(x)
        return made.largest

    def densely(q, k, v, mask, **options):
        return core(q, k, v, dense(mask), **options)

    assert largest(core, 2**14) < 2**28 / 100
    assert largest(densely, 2**11) >= 2**22


@given(st.integers(0, 6), st.integers(0, 6))
def test_causal_mask_in_words(T, S):
    mask = causal_mask(T, S)
    assert mask.shape == (T, S)
    assert mask.dtype == torch.bool
    for i in range(T):
        for j in range(S):
            assert mask[i, j].item() is (j <= i + S - T)


def test_a_hugging_face_mask_becomes_ours():
    # --8<-- [start:hf]
    attention_mask = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1]])
    mask = padding_mask_from_hf(attention_mask)
    assert mask.shape == (2, 1, 1, 4)
    assert torch.equal(mask, padding_mask(attention_mask.bool()))
    # --8<-- [end:hf]
    for dtype in (torch.bool, torch.int32, torch.float32):
        assert torch.equal(padding_mask_from_hf(attention_mask.to(dtype)), mask)
    unseen = torch.ones(2, 4, dtype=torch.bool, device="meta")
    assert padding_mask_from_hf(unseen).shape == (2, 1, 1, 4)  # not looked at


def test_weights_of_i_like_you_under_both_masks():
    from attnref import attention_weights

    # I, like, you, <pad> as four vectors of width 2
    x = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0], [1.0, 1.0]])
    x = x[None, None]  # one sentence, one head
    valid = torch.tensor([[True, True, True, False]])
    mask = causal_mask(4) & padding_mask(valid)
    weights = attention_weights(x, x, mask)[0, 0]
    torch.testing.assert_close(weights.sum(-1), torch.ones(4))
    assert (weights[~mask[0, 0]] == 0).all()
    from sitekit.drawn import sdpa

    assert torch.equal(sdpa.weights(), weights)


def test_the_loss_skips_pads():
    # --8<-- [start:loss]
    import torch.nn.functional as F

    from attnref import sdpa

    ids = torch.tensor([[1, 2, 3, 0], [3, 4, 0, 0]])  # 0 = a pad
    embeddings = torch.randn(5, 16)

    def loss(ids, skip_pads=True):
        real = ids != 0
        mask = causal_mask(ids.shape[1]) & padding_mask(real)
        x = embeddings[ids][:, None]  # one head
        logits = sdpa(x, x, x, mask)[:, 0] @ embeddings.mT
        next_ids = ids[:, 1:]
        if skip_pads:  # cross_entropy leaves out targets of -100
            both = real[:, :-1] & real[:, 1:]  # left pads and right ones
            next_ids = next_ids.masked_fill(~both, -100)
        return F.cross_entropy(logits[:, :-1].mT, next_ids, reduction="sum")

    alone = loss(ids[:1, :3]) + loss(ids[1:, :2])  # without padding
    torch.testing.assert_close(loss(ids), alone)
    left = torch.tensor([[0, 1, 2, 3], [0, 0, 3, 4]])
    torch.testing.assert_close(loss(left), alone)
    assert loss(ids, skip_pads=False) > alone
    # --8<-- [end:loss]


ONE, TRUE = (1, 1, 1, 1), torch.ones(2, 3, dtype=torch.bool)


@refusals(
    """
    >>> padding_mask(torch.ones(2, 3))
    TypeError: valid is torch.float32; pass bool...valid.bool()
    >>> padding_mask(TRUE[0])
    ValueError: valid has shape (3,); it needs (B, S), one row per sequence
    >>> cross_mask(TRUE, torch.ones(5, 7).bool())
    ValueError: valid has B=2, context_valid B=5
    >>> cross_mask(TRUE, torch.ones(2, 3))
    TypeError: context_valid is torch.float32
    >>> cross_mask(torch.ones(2, 3), TRUE)
    TypeError: valid is torch.float32
    >>> cross_mask(TRUE[0], TRUE)
    ValueError: valid has shape (3,)
    >>> cross_mask(TRUE, TRUE.to("meta"))
    ValueError: valid is on cpu, context_valid on meta
    >>> Rule()(torch.tensor(0), torch.tensor(0))
    NotImplementedError:
    >>> decoder_mask(None, ONE, causal=lambda i, j: j <= i, device=ONE)
    TypeError: causal is function; pass True, False or a Rule
    >>> decoder_mask(None, ONE, causal=Causal, device=ONE)
    TypeError: causal is <class '...Causal'>;
    >>> decoder_mask(None, ONE, causal=1, device=ONE)
    TypeError: causal is int; pass True, False or
    >>> causal_mask(-1, 3)
    ValueError: T=-1 and S=3 must not be negative
    >>> causal_mask(3, -1)
    ValueError: T=3 and S=-1 must not be negative
    >>> padding_mask_from_hf(torch.tensor([[0.0, -1e9]]))
    ValueError: values other than 0 and 1...mask == 0
    >>> padding_mask_from_hf(torch.ones(2, 1, 3, 3))
    ValueError: shape (2, 1, 3, 3); a tokenizer gives (B, S)
    """
)
def test_bad_input_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        eval(call)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (Window(3), "mask is Window; pass a rule as a layer's `causal`"),
        (
            RuleMask(Window(3), T=5, S=5, past=0),
            "mask is RuleMask; give a layer a rule as `causal`",
        ),
    ],
)
def test_a_layer_takes_no_rule_as_its_mask(mask, message):
    full = (3, 6, 5, 5)
    with pytest.raises(TypeError, match=re.escape(message)):
        decoder_mask(mask, full, causal=True, device=torch.device("cpu"))
