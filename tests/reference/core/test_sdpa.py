from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

from attnref import (
    attention_weights,
    causal_mask,
    sdpa,
)
from attnref.core.sdpa import without_autocast
from tests.kit.attention import (
    MASKS,
    B,
    D,
    H,
    K,
    Made,
    S,
    T,
    qkv,
    torch_sdpa,
)
from tests.kit.compare import relative_error
from tests.kit.core import Core
from tests.kit.memory import Held, allocated

CORE = Core(sdpa, keeps_scores=True, autocast_backward=False, float32=1e-6)


def test_the_weights_of_the_tests_are_sharp():
    q, k, _ = qkv()
    assert attention_weights(q, k).max() > 0.9


def test_equals_torch():
    # --8<-- [start:oracle]
    import torch.nn.functional as F

    q = 4 * torch.randn(2, 6, 7, 5, dtype=torch.float64)
    k = torch.randn(2, 3, 11, 5, dtype=torch.float64)
    v = torch.randn(2, 3, 11, 13, dtype=torch.float64)
    mask = torch.rand(2, 1, 7, 11) > 0.3
    theirs = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, enable_gqa=True
    )
    error = (sdpa(q, k, v, mask) - theirs).abs().max() / theirs.abs().max()
    assert error <= 1e-12
    # --8<-- [end:oracle]


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_weights_are_those_of_the_values_and_sum_to_1(mask):
    mask, (q, k, _) = mask(), qkv()
    weights = attention_weights(q, k, mask)
    ones = torch.eye(S).double().expand(B, K, S, S)
    assert relative_error(weights, torch_sdpa(q, k, ones, mask)) <= 1e-12
    # A row sums to 1, or to 0 where nothing is allowed.
    allowed = torch.tensor(True) if mask is None else mask.any(-1)
    sums = weights.sum(-1)
    torch.testing.assert_close(sums, allowed.expand(B, H, T).double())


def test_query_head_h_reads_key_head_h_over_group():
    # --8<-- [start:groups]
    H, K = 6, 3
    q, k = torch.randn(1, H, 4, 8), torch.randn(1, K, 5, 8)
    weights = attention_weights(q, k)
    for n in range(H):
        head = attention_weights(q[:, n : n + 1], k[:, [n // (H // K)]])
        torch.testing.assert_close(weights[:, n : n + 1], head)
    # --8<-- [end:groups]


@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_keys_and_values_are_never_repeated(dtype, heads_first):
    q, k, v = qkv(dtype, T=1, S=1009, D=61, DV=67)
    if not heads_first:  # as a projection leaves them
        k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    with Made(q, k, v) as made:
        sdpa(q, k, v, causal_mask(1, 1009))
    widened = 4 * v.numel()
    assert made.largest <= widened < H // K * widened


def test_keys_and_values_of_a_cache_are_not_copied_at_all():
    q, k, v = qkv(torch.float32, T=1, S=1009, D=61, DV=67)
    with Made(q, k, v) as made:
        sdpa(q, k, v, causal_mask(1, 1009))
    assert made.largest == 4 * B * H * 1009, "scores are the largest"


def test_which_ways_to_share_a_head_copy_it():
    # --8<-- [start:copies]
    import torch.nn.functional as F

    q = torch.randn(3, 6, 1, 8)  # one new token, 6 query heads
    k, v = torch.randn(2, 3, 2, 101, 8)  # 101 keys, 2 key/value heads
    B, H, T, D = q.shape
    K, S = k.shape[1:3]

    def repeated(x):
        return x.repeat_interleave(H // K, dim=1)  # (B, H, S, D)

    def expanded(x):
        x = x[:, :, None].expand(B, K, H // K, S, D)  # a view, stride 0
        return x.reshape(B, H, S, D)  # (B, H, S, D); this copies

    fused = F.scaled_dot_product_attention
    ways = {
        "repeat_interleave": lambda: fused(q, repeated(k), repeated(v)),
        "expand, reshape": lambda: fused(q, expanded(k), expanded(v)),
        "enable_gqa": lambda: fused(q, k, v, enable_gqa=True),
        "folded": lambda: fused(q.reshape(B, K, H // K * T, D), k, v),
        "sdpa": lambda: sdpa(q, k, v),
    }
    copies = {}
    for name, way in ways.items():
        with Made(q, k, v) as made:
            out = way().view(B, H, T, D)
        torch.testing.assert_close(out, sdpa(q, k, v))
        copies[name] = made.largest / k.nbytes
    assert copies["repeat_interleave"] == copies["expand, reshape"] == H // K
    assert max(copies[n] for n in ("enable_gqa", "folded", "sdpa")) < 1

    wide = torch.randn(3, 2, 101, 12)  # wider than the keys: no fused kernel
    with Made(q, k, wide) as made:
        fused(q, k, wide, enable_gqa=True)
    assert made.largest == H // K * wide.nbytes  # torch repeats the heads

    # --8<-- [end:copies]
    # --8<-- [start:broadcast]
    def copied_by_matmul(q, k):
        with Made(q, k) as made:
            q @ k.mT
        return made.largest / k.nbytes

    groups = q.view(B, K, H // K, T, D)
    assert copied_by_matmul(groups, k[:, :, None]) == H // K
    one = k[:, :1].clone()  # MQA: one key head for all 6 query heads
    assert copied_by_matmul(q, one) == H
    assert copied_by_matmul(q[:1], one[:1]) < 1  # one sequence: no copy
    # --8<-- [end:broadcast]

    # Inside kernels too, where no dispatch mode sees.
    wide = [repeated(x) for x in (k, v)]
    ways["having them"] = lambda: fused(q, *wide)
    took = {name: allocated(way) for name, way in ways.items()}
    assert took["repeat_interleave"] > 2 * (H // K) * k.nbytes
    for name in ("having them", "enable_gqa", "folded"):
        assert took[name] < k.nbytes, name


def test_an_expanded_head_has_no_view():
    # --8<-- [start:expand]
    def view_of(k, H):
        B, K, S, D = k.shape
        return k[:, :, None].expand(B, K, H // K, S, D).view(B, H, S, D)

    try:
        view_of(torch.randn(3, 2, 11, 8), 6)
        raise AssertionError("one stride cannot cover several groups")
    except RuntimeError as error:
        assert "Use .reshape(...) instead" in str(error)
    for K in 1, 6:  # MQA and MHA: no error, and no copy
        assert view_of(torch.randn(3, K, 11, 8), 6).shape == (3, 6, 11, 8)
    # --8<-- [end:expand]


def test_torchs_attention_on_folded_heads_is_sdpa():
    # --8<-- [start:folded]
    def folded_sdpa(q, k, v, mask):
        B, H, T, D = q.shape
        K, S, Dv = k.shape[1], *v.shape[2:]
        rows = q.reshape(B, K, H // K * T, D)  # (B, K, H // K * T, D)
        mask = mask.expand(B, H, T, S)  # (B, H, T, S)
        mask = mask.reshape(B, K, H // K * T, S)  # (B, K, H // K * T, S)
        out = F.scaled_dot_product_attention(rows, k, v, attn_mask=mask)
        return out.view(B, H, T, Dv)  # (B, H, T, Dv)

    q = 4 * torch.randn(3, 6, 7, 5, dtype=torch.float64)
    k = torch.randn(3, 2, 11, 5, dtype=torch.float64)
    v = torch.randn(3, 2, 11, 13, dtype=torch.float64)
    mask = torch.rand(3, 1, 7, 11) > 0.3
    mask[0, :, 2] = False  # a query without any key
    ours, theirs = sdpa(q, k, v, mask), folded_sdpa(q, k, v, mask)
    assert (ours - theirs).abs().max() / ours.abs().max() <= 1e-12
    assert (theirs[0, :, 2] == 0).all()
    # --8<-- [end:folded]
    for mask in MASKS.values():
        for kv_heads in (1, 2, 3, 6):
            q, k, v = qkv(K=kv_heads)
            m = mask()
            got = folded_sdpa(q, k, v, causal_mask(T, S) if m is None else m)
            want = sdpa(q, k, v, causal_mask(T, S) if m is None else m)
            assert relative_error(got, want) <= 1e-12


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mask", [None, causal_mask(211)], ids=["-", "causal"])
def test_three_matrices_of_scores_are_held_at_the_peak(mask, dtype):
    q, k, v = qkv(dtype, T=211, S=211)
    with Held() as held:
        sdpa(q, k, v, mask)
    assert 3 <= held.most / (4 * B * H * 211 * 211) < 3.1
    assert 12 * 32 * 8192**2 == 24 * 2**30  # the page's example


def test_a_row_whose_scores_overflowed_gives_zeros_as_torchs_does():
    q, k, v = (torch.full((3, 2, 5, 4), x) for x in (1e20, -1e20, 1.0))
    assert (q @ k.mT == -torch.inf).all()
    assert (sdpa(q, k, v) == 0).all()
    assert (F.scaled_dot_product_attention(q, k, v) == 0).all()


def test_a_row_without_any_key_gives_zeros_and_zero_gradients():
    # --8<-- [start:empty]
    x = torch.randn(1, 1, 3, 4, dtype=torch.float64)
    q, k, v = (x.clone().requires_grad_() for _ in range(3))
    mask = torch.tensor(
        [[True, False, False], [False, False, False], [True, True, True]]
    )
    out = sdpa(q, k, v, mask)
    assert (out[0, 0, 1] == 0).all()

    out.sum().backward()
    assert (q.grad[0, 0, 1] == 0).all()  # no gradient from the empty row
    for t in (q, k, v):
        assert t.grad.isfinite().all()
    # --8<-- [end:empty]


def test_without_autocast_nothing_is_set():
    outside = without_autocast(torch.device("cpu"))
    assert isinstance(outside, nullcontext)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str
)
def test_weights_come_in_the_dtype_of_the_queries(dtype):
    q, k, _ = qkv(dtype)
    assert attention_weights(q, k).dtype == dtype


def test_a_scale_that_is_a_float32_tensor_costs_float64_its_digits():
    # The page says "to about eight": the root of 80 is no float32 number.
    inexact = 1 / torch.sqrt(torch.tensor(80.0)).double()
    assert 1e-9 < abs(inexact * 80**0.5 - 1) < 1e-7


def test_the_future_cannot_be_seen():
    # --8<-- [start:future]
    from attnref import causal_mask

    x = torch.randn(1, 2, 6, 8)
    before = sdpa(x, x, x, causal_mask(6))

    for n in range(6):
        changed = x.clone()
        changed[:, :, n] += 100  # another token n
        after = sdpa(changed, changed, changed, causal_mask(6))
        assert torch.equal(after[:, :, :n], before[:, :, :n])  # bit by bit
        assert not torch.equal(after[:, :, n], before[:, :, n])
    # --8<-- [end:future]


def test_the_scale_is_one_over_the_root_of_the_width():
    # --8<-- [start:variance]
    d = 256
    q, k = torch.randn(2, 10_000, d)  # entries of variance 1
    dots = (q * k).sum(-1)
    assert 15 < dots.std() < 17  # sqrt(256) = 16
    assert 0.9 < (dots * d**-0.5).std() < 1.1
    # --8<-- [end:variance]
    q, k, v = qkv()
    torch.testing.assert_close(
        sdpa(q, k, v), sdpa(q, k, v, scale=1 / D**0.5), rtol=0, atol=1e-14
    )


def test_view_needs_strides_that_fit_not_contiguous_memory():
    # --8<-- [start:view]
    import torch

    heads = torch.randn(2, 3, 4, 5)  # (B, H, T, D)
    merged = heads.transpose(1, 2)  # (B, T, H, D); not contiguous
    try:
        merged.view(2, 4, 15)
        raise AssertionError("H and D lie apart: no view merges them")
    except RuntimeError as error:
        assert "Use .reshape(...) instead" in str(error)
    assert merged.reshape(2, 4, 15).is_contiguous()  # copies

    narrow = torch.randn(2, 3, 4)[:, :, :2]  # not contiguous either ...
    assert narrow.view(2, 3, 2, 1).shape == (2, 3, 2, 1)  # ... and yet
    # --8<-- [end:view]
