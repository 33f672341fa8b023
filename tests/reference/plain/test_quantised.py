"""The quantised plain cache beside transformers' FP8 layer and quanto, and what
its groups may miss at most."""

import pytest
import torch
from transformers.cache_utils import Fp8QuantizedLayer

from attnref.plain.gqa import GQA, KVCache
from attnref.plain.quantised import (
    QuantisedCache,
    quantise,
    restore,
    to_fp8,
)

B, K, D, G, RESIDUAL = 3, 2, 24, 12, 7  # 24 is divided by 12, and by 4 codes
WAYS = [(bits, dim) for bits in (8, 4, 2) for dim in (-1, -2)]
DTYPES = torch.float32, torch.bfloat16, torch.float16


def uneven(*shape, dtype=torch.float32):
    """Numbers of other sizes in each channel; one channel is constant, and one
    has steps finer than its minimum in 16 bits, so that codes end at 0."""
    x = torch.randn(shape) * torch.logspace(-2, 1, shape[-1])
    x[..., 5], x[..., 7] = 3.0, 300 + x[..., 7]
    return x.to(dtype)


@pytest.mark.parametrize(("bits", "dim"), WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_element_is_missed_by_more_than_half_a_step(bits, dim, dtype):
    x = uneven(B, K, 3 * G, D, dtype=dtype)
    packed, step, low = quantise(x, bits, dim, G)
    missed = (restore(packed, step, low, bits, dim) - x.float()).abs()
    grouped, groups = (t.unflatten(dim, (-1, G)) for t in (missed, x.float()))
    # The minimum is rounded to 16 bits, and the codes end there.
    slack = groups.abs().amax(dim, keepdim=True) * 2**-11
    assert (grouped <= step.float() / 2 + slack).all()
    high, least = groups.amax(dim, keepdim=True), groups.amin(dim, keepdim=True)
    width = (high - least) / (2**bits - 1)
    torch.testing.assert_close(step.float(), width, rtol=1e-3, atol=2e-7)
    stored = sum(part.nbytes for part in (packed, step, low))
    assert 8 * G * stored == x.numel() * (G * bits + 32)  # two in 16 bits


@pytest.mark.parametrize(("bits", "dim"), WAYS)
def test_what_lies_on_the_grid_comes_back_as_it_was(bits, dim):
    codes = torch.randint(2**bits, (B, K, 3 * G, D)).float()
    codes.unflatten(dim, (-1, G)).select(dim, 0).fill_(0)
    codes.unflatten(dim, (-1, G)).select(dim, 1).fill_(2**bits - 1)
    x = codes / 4 - 2
    assert torch.equal(restore(*quantise(x, bits, dim, G), bits, dim), x)


@pytest.mark.parametrize("chunks", [(60,), (1,) * 60, (23, 1, 1, 17, 18)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_cache_stores_the_same_whatever_the_chunks(chunks, dtype):
    """Groups begin at token 0, and no token is rounded twice."""
    k, v = uneven(2, B, K, 60, D, dtype=dtype)
    cache, end = QuantisedCache(4, G, RESIDUAL), 0
    for n in chunks:
        new = (x[:, :, end : end + n] for x in (k, v))
        whole = (60 - RESIDUAL) // G * G  # what is packed in the end
        old = max(end - RESIDUAL, 0) // G * G  # and before this call
        result, end = cache.append(*new), end + n
        for x, back, dim in zip((k, v), result, (-2, -1), strict=True):
            assert back.dtype == dtype and cache.length == end
            want = x[:, :, :end].clone()
            if old:
                part = quantise(x[:, :, :old], 4, dim, G)
                want[:, :, :old] = restore(*part, 4, dim).to(dtype)
            assert torch.equal(back, want)
    assert [sum(p[0].shape[2] for p in old) for old in cache.old] == (
        [whole // G, whole]
    )
    assert cache.new[0].untyped_storage().nbytes() == (
        2 * B * K * (60 - whole) * D * dtype.itemsize
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_decodes_far_into_a_text_with_it(dtype):
    """After 3,000 tokens; keys are stored rotated, and rows stay apart."""
    torch.manual_seed(3)
    layer = GQA(64, 4, K, head_dim=16).to(dtype)
    x = torch.randn(B, 3005, 64).to(dtype)
    caches = KVCache(3005), QuantisedCache(8, 8, 9), QuantisedCache(8, 8, 9)
    others = x.clone()
    others[1:] = 5 * torch.randn_like(others[1:])
    outs = []
    with torch.no_grad():
        for cache, text in zip(caches, (x, x, others), strict=True):
            parts = text.split((3000, 2, 1, 2), dim=1)
            out = [layer(part, cache) for part in parts][1:]
            outs.append(torch.cat(out, dim=1).float())
    exact, result, apart = outs
    assert 0 < (result - exact).norm() / exact.norm() < 0.02
    assert torch.equal(result[0], apart[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp8_is_that_of_transformers_bit_for_bit(dtype):
    """The scale is that of the first call: what is larger later is clipped."""
    k, v = uneven(2, B, K, 40, D, dtype=dtype)
    theirs, codes = Fp8QuantizedLayer(), [[], []]
    scales = [x[:, :, :13].abs().max().float() / 448 for x in (k, v)]
    k[:, :, 30:] *= 100
    for start, end in ((0, 13), (13, 14), (14, 40)):
        parts = [x[:, :, start:end] for x in (k, v)]
        result = theirs.update(*parts)
        for mine, part, scale in zip(codes, parts, scales, strict=True):
            mine.append(to_fp8(part, scale))
    stored = theirs._quantized_keys, theirs._quantized_values
    for mine, (their, scale), ours, back in zip(
        codes, stored, scales, result, strict=True
    ):
        whole = torch.cat(mine, dim=2)
        assert scale == ours and torch.equal(whole.float(), their.float())
        assert torch.equal((whole.float() * ours).to(dtype), back)
    last = (result[0] - k)[:, :, 30:].float().norm()
    assert last / k[:, :, 30:].float().norm() > 0.9


def test_groups_are_those_of_quanto():
    """Which rounds steps in another way, and so a few codes."""
    quanto = pytest.importorskip("optimum.quanto")
    x = uneven(B, K, 64, 32)
    for bits, qtype in ((4, quanto.qint4), (2, quanto.qint2)):
        for dim, rows in ((-1, x), (-2, x.transpose(-1, -2))):
            rows = rows.reshape(-1, 32)
            scale, shift = quanto.MaxOptimizer()(rows, qtype, 0, 32)
            theirs = quanto.quantize_weight(rows, qtype, 0, scale, shift, 32)
            ours = restore(*quantise(x, bits, dim, 32), bits, dim)
            ours = (ours.mT if dim == -2 else ours).reshape(-1, 32)
            both = [(y - rows).norm() for y in (ours, theirs.dequantize())]
            assert both[0] / both[1] == pytest.approx(1, abs=0.02)
