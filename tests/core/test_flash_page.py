"""What the page on FlashAttention says of it; the unit tests are beside."""

import math

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from attnref import causal_mask, sdpa
from attnref.core.flash import Tiles, flash, flash_lse, parts


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

    def kept(attend, n):
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
    assert [kept(flash, n) for n in (64, 512)] == [34 * 64, 34 * 512]
    assert kept(sdpa, 512) > 2 * 512 * 512
    # --8<-- [end:saved]


def test_the_formulas_of_the_backward_pass():
    # --8<-- [start:gradients]
    q, k, v = (torch.randn(2, 3, 7, 5).double().requires_grad_() for _ in "qkv")
    out, lse = flash_lse(3 * q, k, v, tile=(2, 3))
    d_out = torch.randn_like(out)
    want = torch.autograd.grad(sdpa(3 * q, k, v), (q, k, v), d_out)
    tiled = torch.autograd.grad(out, (q, k, v), d_out)

    with torch.no_grad():
        scale = 5**-0.5
        p = (3 * scale * q @ k.mT - lse[..., None]).exp()
        delta = (d_out * out).sum(-1, keepdim=True)
        d_scores = p * (d_out @ v.mT - delta)
        d_q, d_k = 3 * scale * d_scores @ k, 3 * scale * d_scores.mT @ q
        whole = d_q, d_k, p.mT @ d_out
    torch.testing.assert_close(whole, want)
    torch.testing.assert_close(tiled, want)
    # --8<-- [end:gradients]


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
    mixed = flash(q, entry, c, causal_mask(7, 11), scale=12**-0.5)
    want = sdpa(q, entry, c, causal_mask(7, 11), scale=12**-0.5)
    torch.testing.assert_close(mixed, want)
    # --8<-- [end:mla]


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


def test_sums_that_are_not_rescaled():
    # --8<-- [start:rescale]
    s, values = torch.tensor([1.0, 3.0]), torch.tensor([10.0, 30.0])
    acc, total, m = values[0], 1.0, s[0]  # the first tile
    larger = torch.maximum(m, s[1])  # the second
    rescale = (m - larger).exp()
    right = (acc * rescale + values[1]) / (total * rescale + 1)
    torch.testing.assert_close(right, s.softmax(0) @ values)
    wrong = (acc + values[1]) / (total * rescale + 1)
    assert wrong > values.max()  # 35.2 is no mean of 10 and 30
    # --8<-- [end:rescale]
    assert wrong.item() == pytest.approx(35.2, abs=0.05)


def test_parts_are_not_averaged():
    # --8<-- [start:average]
    s, values = torch.tensor([1.0, 1.0, 3.0]), torch.tensor([0.0, 0.0, 9.0])
    halves = [slice(0, 2), slice(2, 3)]
    outs = torch.stack([s[i].softmax(0) @ values[i] for i in halves])
    lses = torch.stack([s[i].logsumexp(0) for i in halves])
    whole = s.softmax(0) @ values
    torch.testing.assert_close(lses.softmax(0) @ outs, whole)
    assert (outs.mean() - whole).abs() > 2.5  # 4.5, and not 7.08
    # --8<-- [end:average]
    assert whole.item() == pytest.approx(7.08, abs=0.005)
    assert outs.mean() == 4.5


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
