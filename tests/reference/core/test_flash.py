import math
from functools import partial

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.attention.flex_attention import create_block_mask

from attnref import (
    Causal,
    Everything,
    RuleMask,
    causal_mask,
    flash,
    flash_lse,
    sdpa,
)
from attnref.core.flash import Tiles, parts
from attnref.judge.properties import far_scores
from tests.kit.attention import (
    DV,
    B,
    Blocks,
    D,
    H,
    K,
    Made,
    S,
    T,
    gradients,
    leaves,
    qkv,
)
from tests.kit.compare import relative_error
from tests.kit.core import Core
from tests.kit.refusals import refusals

SIZES = (2, 3), (1, 1), (4, 4), (7, 11), (16, 32)
CORE = Core(
    flash,
    tuple({"tile": size} for size in SIZES),
    lacks={
        "second derivatives": "^flash has no second derivative; use sdpa$",
        "torch.func": "^flash does not run under torch.func, as in vmap or",
    },
    blocks=True,
    half_grouped=2.5,
)


def test_the_log_sum_exp_and_the_gradients_are_those_of_torch():
    """Of its own FlashAttention, whose backward pass is given ours too."""
    ops = torch.ops.aten
    q, k, v = qkv(K=H, S=T, DV=D)
    out, lse = flash_lse(
        *leaves(q, k, v), RuleMask(Causal(), T, T, 0), tile=(3, 2)
    )
    theirs, their_lse = ops._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, True
    )
    assert relative_error(out, theirs) <= 1e-12
    assert relative_error(lse, their_lse) <= 1e-12
    above = torch.randn_like(out)
    wanted = ops._scaled_dot_product_flash_attention_for_cpu_backward(
        above, q, k, v, theirs, their_lse, 0.0, True
    )
    mask = RuleMask(Causal(), T, T, 0)
    grads = gradients(flash, (q, k, v), above, mask, tile=(3, 2))
    for ours, other in zip(grads, wanted, strict=True):
        assert relative_error(ours, other) <= 1e-12


def test_the_log_sum_exp_in_words():
    q, k, v = qkv()
    mask = torch.rand(T, S) > 0.4
    mask[2] = False
    lse = flash_lse(q, k, v, mask, tile=(2, 3))[1]
    scores = q @ k.repeat_interleave(H // K, dim=1).mT * D**-0.5
    scores = scores.masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(lse, scores.logsumexp(-1))
    assert (lse[:, :, 2] == -torch.inf).all()
    half = (x.bfloat16() for x in (q, k, v))
    assert flash_lse(*half)[1].dtype == torch.float32
    meta = (x.to("meta") for x in (q, k, v))
    assert flash_lse(*meta, tile=(2, 3))[1].shape == (B, H, T)


def test_gradients_with_those_of_the_log_sum_exp():
    q, k, v = leaves(*qkv(B=1, T=3, S=5, H=4, K=2, D=3, DV=2))
    mask = torch.rand(3, 5) > 0.3
    for tile in (1, 2), (2, 3):
        assert gradcheck(
            lambda *x, t=tile: flash_lse(*x, mask, tile=t), (q, k, v)
        )
    # A query without any key: its log-sum-exp is -inf, and has no gradient.
    mask[1] = False
    assert gradcheck(lambda *x: flash(*x, mask, tile=(2, 3)), (q, k, v))
    out, lse = flash_lse(q, k, v, mask, tile=(2, 3))
    (out.sum() + lse.exp().sum()).backward()
    assert (q.grad[:, :, 1] == 0).all()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_an_error_that_is_not_of_torch_func_stays():
    inputs = (x.to("meta") for x in qkv())  # where nothing can be drawn
    with pytest.raises(RuntimeError, match=r"^(?!flash does)"):
        flash(*inputs, dropout=0.5)


def test_a_row_whose_scores_overflowed_has_no_gradient():
    k, v = torch.full((1, 1, 3, 1), -1e30), torch.randn(1, 1, 3, 2)
    q, k = leaves(-k[:, :, :1], k)
    out, lse = flash_lse(q, k, v)
    out.sum().backward()
    assert lse == -torch.inf
    for zeros in out, q.grad, k.grad:
        assert (zeros == 0).all()


def tiles_of(rule, *, T=640, tile=(128, 64)):
    """How many tiles are left, of how many."""
    cut = Tiles(T, T, RuleMask(rule, T, T, 0), *tile)
    by_rows, by_columns = (
        sum(len(list(of(part))) for part in parts(T, size))
        for of, size in zip((cut.of_rows, cut.of_columns), tile, strict=True)
    )
    assert by_rows == by_columns
    return by_rows, len(parts(T, tile[0])) * len(parts(T, tile[1]))


def test_tiles_in_which_nobody_sees_a_key_are_left_out(monkeypatch):
    assert tiles_of(Everything(), T=6, tile=(1, 1)) == (36, 36)
    assert tiles_of(Causal(), T=6, tile=(1, 1)) == (21, 36)
    assert tiles_of(Causal()) == (30, 50)
    assert tiles_of(Blocks()) < (20, 50)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert tiles_of(Causal()) == (50, 50)  # in a graph it is not known


@pytest.mark.parametrize("rule", [Causal(), Blocks()])
def test_work_is_done_for_no_tile_that_is_hidden(rule, monkeypatch):
    q, k, v = leaves(*qkv(T=12, S=12))
    products, bmm = [], torch.bmm

    def counted(*given, **out):
        products.append(given)
        return bmm(*given, **out)

    monkeypatch.setattr(torch, "bmm", counted)
    out = flash(q, k, v, RuleMask(rule, 12, 12, 0), tile=(2, 2))
    left, of = tiles_of(rule, T=12, tile=(2, 2))
    assert (len(products), of) == (left, 36)
    out.sum().backward()
    assert len(products) == 3 * left  # two more of them in the backward pass


def test_no_matrix_of_all_scores_is_made():
    """Forward and backward: the largest tensor grows with S as keys do."""
    largest = {}
    for n in 256, 1024:
        q, k, v = leaves(*qkv(torch.float32, B=1, T=n, S=n, H=2, K=1))
        with Made(q, k, v) as made:
            out = flash(q, k, v, RuleMask(Causal(), n, n, 0), tile=(16, 16))
            out.sum().backward()
        largest[n] = made.largest
        assert made.largest == 4 * 2 * n * DV  # the output
    assert largest[1024] == 4 * largest[256]
    few = q[:, :, :3].detach()
    with Made(few, k, v) as made, torch.no_grad():
        flash(few, k, v, tile=(3, 16))
    assert made.largest == 4 * 2 * 3 * 16  # a tile of the scores


@torch.no_grad()
def test_few_queries_have_wider_tiles_that_are_no_larger(monkeypatch):
    products, bmm = [], torch.bmm
    monkeypatch.setattr(
        torch, "bmm", lambda *x, **y: (products.append(x), bmm(*x, **y))[1]
    )
    widths = {1: 512, 32: 512, 64: 256, 128: 128, 300: 128}
    for n, width in widths.items():
        for keys in 1024, 4096:
            q, k, v = qkv(torch.float32, B=1, T=n, S=keys, H=2, K=1)
            products.clear()
            with Made(q, k, v) as made:
                flash(q, k, v)
            assert len(products) == -(-n // 128) * keys // width
            # A tile of the scores, however many keys there are.
            assert made.largest == 4 * 2 * min(n, 128) * width
            assert made.largest <= 4 * 2 * 128 * 128


@refusals(
    """
    >>> flash(q, k, v, tile=(0, 3))
    ValueError: height=0 must be at least 1
    >>> flash(q, k, v, tile=(3, 2.0))
    TypeError: width is float; pass an int
    >>> flash(q, k, v, dropout=1.0)
    ValueError: dropout=1.0 must be at least 0 and
    >>> flash(q, k, v, scale="1")
    TypeError: scale is str; pass a float
    >>> flash(q, k, v, mask=RuleMask(Causal(), T, T, 0))
    ValueError: mask is for 7 queries and 7 keys, and not for T=7 and S=11
    """
)
def test_bad_input_is_refused(call, error, message):
    q, k, v = qkv()
    with pytest.raises(error, match=message):
        eval(call)


# What the page says and shows.


def test_equals_torch_and_no_score_is_kept():
    # --8<-- [start:equal]
    import torch.nn.functional as F

    from attnref import causal_mask

    q = 4 * torch.randn(2, 6, 7, 5, dtype=torch.float64)  # (B, H, T, D)
    k = torch.randn(2, 3, 11, 5, dtype=torch.float64)  # (B, K, S, D)
    v = torch.randn(2, 3, 11, 13, dtype=torch.float64)  # (B, K, S, Dv)
    mask = causal_mask(7, 11)  # (T, S)
    theirs = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    for tile in [(1, 1), (2, 3), (4, 4), (128, 128)]:
        torch.testing.assert_close(flash(q, k, v, mask, tile=tile), theirs)
    # --8<-- [end:equal]


def test_what_is_saved_is_linear():
    # --8<-- [start:saved]
    from torch.autograd.graph import saved_tensors_hooks

    from attnref import sdpa

    def saved(attend, n):
        """The elements that autograd keeps, each storage counted once."""
        q = torch.randn(1, 2, n, 4, requires_grad=True)
        storages = {}

        def note(x):
            storages[x.untyped_storage().data_ptr()] = x.numel()
            return x

        with saved_tensors_hooks(note, lambda x: x):
            attend(q, q.clone(), q.clone())
        return sum(storages.values())

    # 4 * 2 * n * 4 for q, k, v and out, and 2 * n for the log-sum-exp.
    assert [saved(flash, n) for n in (64, 512)] == [34 * 64, 34 * 512]
    assert saved(sdpa, 512) > 2 * 512 * 512
    # --8<-- [end:saved]


def test_hidden_tiles_are_not_computed():
    # --8<-- [start:skipped]
    def computed(mask):
        tiles = Tiles(8, 8, mask, height=2, width=2)
        return [tile for rows in parts(8, 2) for tile in tiles.of_rows(rows)]

    causal = causal_mask(8)
    assert len(computed(None)) == 16
    assert len(computed(causal)) == 10
    assert sum(t.seen is not None for t in computed(causal)) == 4
    # --8<-- [end:skipped]
    for mask in (None, causal, causal & ~causal.tril(-3)):
        theirs = create_block_mask(
            lambda b, h, i, j, m=mask: i >= 0 if m is None else m[i, j],
            None, None, 8, 8, device="cpu", BLOCK_SIZE=2,
        )  # fmt: skip
        many = theirs.kv_num_blocks.sum()
        many = many + theirs.full_kv_num_blocks.sum()
        assert many == len(computed(mask))
        # torch has no mask for tiles that are seen whole, either
        half = sum(t.seen is not None for t in computed(mask))
        assert theirs.kv_num_blocks.sum() == half


def test_absorbed_mla_is_one_key_head_whose_values_are_part_of_the_keys():
    # --8<-- [start:mla]
    R, Dr = 16, 4  # 512 and 64 in DeepSeek-V3
    q = torch.randn(2, 6, 7, R + Dr)  # (B, H, T, R + Dr)
    entry = torch.randn(2, 1, 11, R + Dr)  # (B, 1, S, R + Dr); of the cache
    c = entry[..., :R]  # (B, 1, S, R); the latent, read as values
    scale = 12**-0.5  # the width of expanded keys; 192 in DeepSeek-V3
    mixed = flash(q, entry, c, causal_mask(7, 11), scale=scale)
    want = sdpa(q, entry, c, causal_mask(7, 11), scale=scale)
    torch.testing.assert_close(mixed, want)
    # --8<-- [end:mla]


@pytest.mark.parametrize("tile", [(1, 1), (2, 3), (4, 3), (4, 6)])
def test_scores_far_from_zero(tile):
    """Far from each other, too, and hidden ones above all that are seen."""
    far_scores(partial(flash, tile=tile))


def test_a_mask_after_the_maximum():
    # --8<-- [start:late]
    s = torch.tensor([1.0, 200.0])  # float32
    seen = torch.tensor([True, False])
    late = (s - s.max()).exp() * seen  # e^-199 is 0
    assert (late / late.sum()).isnan().all()
    s = s.masked_fill(~seen, -torch.inf)
    assert (s - s.max()).exp().tolist() == [1, 0]
    # --8<-- [end:late]


def test_a_first_tile_without_any_key():
    # --8<-- [start:empty]
    m = torch.full((1,), -torch.inf)  # no key of the first tile is seen
    assert (m - torch.maximum(m, m)).exp().isnan().all()

    seen = torch.ones(1, 4).bool()
    seen[:, :2] = False
    x = torch.randn(1, 1, 4, 3)
    both = torch.cat((seen, ~seen))  # so that no tile is skipped
    out = flash(x[:, :, :2], x, x, both, tile=(2, 2))
    torch.testing.assert_close(out, sdpa(x[:, :, :2], x, x, both))
    assert flash(x[:, :, :2], x, x, both & False).eq(0).all()
    # --8<-- [end:empty]


def test_the_maximum_alone_does_not_give_the_weights():
    # --8<-- [start:statistics]
    s = torch.tensor([2.0, 1.0, 2.0])
    m, lse = s.max(), s.logsumexp(0)
    assert (s - m).exp().sum() > 2  # the maximum alone: no weights
    torch.testing.assert_close((s - lse).exp(), s.softmax(0))
    # --8<-- [end:statistics]
    total = (s - m).exp().sum()
    torch.testing.assert_close((s - m).exp() / total, s.softmax(0))


def test_the_row_sum_of_the_backward_pass():
    # --8<-- [start:delta]
    s = torch.tensor([2.0, 1.0, 0.0], requires_grad=True)
    values = torch.tensor([100.0, 101.0, 102.0])
    out = s.softmax(0) @ values
    (right,) = torch.autograd.grad(out, s)
    p = s.detach().softmax(0)
    torch.testing.assert_close(p * (values - out.detach()), right)
    assert right.sum().abs() < 1e-4
    assert (p * values).sum() > 100  # without the row sum
    # --8<-- [end:delta]
    assert math.isclose((p * values).sum().item(), out.item(), rel_tol=1e-6)
