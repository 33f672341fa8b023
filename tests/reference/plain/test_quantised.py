"""The quantised plain cache beside transformers' FP8 layer and quanto, and what
its groups may miss at most; FP4 beside torchao's, and attention in 8 bits."""

import pytest
import torch
import torch.nn.functional as F
from transformers.cache_utils import Fp8QuantizedLayer

from attnref.plain import low_bits
from attnref.plain.gqa import GQA, KVCache
from attnref.plain.quantised import (
    QuantisedCache,
    quantise,
    restore,
    to_fp8,
)
from attnref.released.dequantise import FP4, dequantised

B, K, D, G, RESIDUAL = 3, 2, 24, 12, 7  # 24 is divided by 12, and by 4 codes
WAYS = [(bits, dim) for bits in (8, 4, 2) for dim in (-1, -2)]
DTYPES = torch.float32, torch.bfloat16, torch.float16
BIAS = torch.tensor([127], dtype=torch.uint8)  # 2**0 in E8M0


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


def nearest_of_e2m1(x):
    """The sign and the nearest size, found by distance; an even code if two are
    as near."""
    sizes = torch.tensor(FP4[:8])
    distance = (x.abs()[..., None].clamp(max=6) - sizes).abs()
    odd = torch.arange(8) % 2
    return (distance + 1e-6 * odd).argmin(dim=-1) + 8 * x.signbit()


def test_each_number_becomes_the_nearest_of_e2m1():
    """Of a grid that has all the middles, and what lies beyond the largest."""
    x = torch.arange(-512, 512) / 64
    packed = low_bits.to_e2m1(x)
    codes = torch.stack((packed % 16, packed // 16), dim=-1).flatten()
    assert torch.equal(codes.int(), nearest_of_e2m1(x).int())
    every = torch.arange(256, dtype=torch.uint8)
    read = dequantised({"weight_packed": every, "weight_scale": BIAS}, {})
    ours = low_bits.from_e2m1(every[:, None], torch.ones(256, 1))
    assert torch.equal(ours, read["weight"])


def blocks():
    """Of many sizes: one is all zeros, one has each middle of two numbers."""
    x = torch.randn(40, 128) * torch.logspace(-3, 2, 128)
    x[3], x[5] = 0, torch.arange(128) / 16 - 4
    return x


@pytest.mark.audit  # torchao takes long to import
def test_fp4_is_that_of_torchao_bit_for_bit():
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

    x = blocks()
    codes, scale, whole = low_bits.to_nvfp4(x)
    theirs = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=whole)
    assert torch.equal(theirs.qdata.view(torch.uint8), codes.flatten(-2))
    assert torch.equal(theirs.scale.float(), scale[..., 0].float())
    back = low_bits.from_e2m1(codes, scale.float() * whole)
    assert torch.equal(theirs.dequantize(torch.float32), back)
    codes, power = low_bits.to_mxfp4(x)
    theirs = MXTensor.to_mx(x, torch.float4_e2m1fn_x2, 32)
    assert torch.equal(theirs.qdata.view(torch.uint8), codes.flatten(-2))
    seen = x.unflatten(-1, (-1, 32)).any(-1)  # of zeros any scale is right
    powers = theirs.scale.view(torch.uint8)
    assert torch.equal(powers[seen], power[..., 0][seen])
    back = low_bits.from_e2m1(codes, (power.float() - 127).exp2())
    assert torch.equal(theirs.dequantize(torch.float32), back)


def test_published_weights_are_read_as_the_plain_form_writes_them():
    x = blocks()
    codes, scale, whole = low_bits.to_nvfp4(x)
    parts = {"weight": codes.flatten(-2), "weight_scale": scale[..., 0]}
    parts["weight_scale_2"] = whole
    back = low_bits.from_e2m1(codes, scale.float() * whole)
    assert torch.equal(dequantised(parts, {})["weight"], back)
    codes, power = low_bits.to_mxfp4(x)
    parts = {"weight_packed": codes.flatten(-2), "weight_scale": power[..., 0]}
    back = low_bits.from_e2m1(codes, (power.float() - 127).exp2())
    assert torch.equal(dequantised(parts, {})["weight"], back)
    assert (back[3] == 0).all()


def test_a_scale_brings_the_largest_of_its_block_to_the_largest_number():
    """To 6 in NVFP4, as near as e4m3 comes; in MXFP4 from 4 to below 8."""
    x = torch.randn(40, 128).exp()
    x[0, :16] = 0
    codes, scale, whole = low_bits.to_nvfp4(x)
    assert (codes.shape, scale.shape) == ((40, 8, 8), (40, 8, 1))
    assert whole == x.max() / (448 * 6)
    largest = x.unflatten(-1, (-1, 16)).amax(-1, keepdim=True)
    top = (largest / (scale.float() * whole))[largest > 0]
    assert top.min() >= 6 / (1 + 2**-4) and top.max() <= 6 / (1 - 2**-4)
    assert (codes[0, 0] == 0).all()
    back = low_bits.from_e2m1(codes, scale.float() * whole)
    assert (back - x).norm() / x.norm() < 0.15
    codes, power = low_bits.to_mxfp4(x)
    assert (codes.shape, power.shape) == ((40, 4, 16), (40, 4, 1))
    top = x.unflatten(-1, (-1, 32)).amax(-1, keepdim=True)
    top = top / (power.float() - 127).exp2()
    assert top.min() >= 4 and top.max() < 8


@pytest.mark.parametrize("D", [1, 2, 64])
def test_a_rotation_is_a_hadamard_matrix_and_undoes_itself(D):
    x = torch.randn(3, 5, D, dtype=torch.float64)
    ones = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < D:
        matrix = torch.kron(ones, matrix)
    rotated = low_bits.hadamard(x)
    torch.testing.assert_close(rotated, x @ matrix / D**0.5)
    torch.testing.assert_close(low_bits.hadamard(rotated), x)
    torch.testing.assert_close(rotated @ rotated.mT, x @ x.mT)


def in_integers(q, k, v, mask):
    """Products of int8, as a kernel computes them; weights and values as
    numbers of torch's FP8."""
    k = k - k.mean(dim=2, keepdim=True)
    steps = [x.abs().amax(-1, keepdim=True) / 127 for x in (q, k)]
    codes = [
        (x / s).round().to(torch.int8).int()
        for x, s in zip((q, k), steps, strict=True)
    ]
    scores = (codes[0] @ codes[1].mT).double() * steps[0].double()
    scores = scores * steps[1].mT.double() * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~mask, -torch.inf)
    p = (scores - scores.amax(-1, keepdim=True)).exp()
    scale = v.abs().amax(2, keepdim=True) / 448
    numbers = [(p.float() * 448).to(torch.float8_e4m3fn).double()]
    numbers.append((v / scale).to(torch.float8_e4m3fn).double())
    out = numbers[0] @ numbers[1] * scale.double()
    return out / 448 / p.sum(-1, keepdim=True)


def test_attention_in_8_bits_is_that_of_integers():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 40, 64)
    mask = torch.ones(40, 40, dtype=torch.bool).tril()
    got = low_bits.attention_in_8_bits(q, k, v, mask).double()
    want = in_integers(q, k, v, mask)
    # A weight that lies between two of FP8 may fall to either side.
    assert (got - want).norm() / want.norm() < 2e-4
    exact = F.scaled_dot_product_attention(q, k, v, mask).double()
    assert 5e-3 < (got - exact).norm() / exact.norm() < 5e-2


def test_a_channel_that_all_keys_share_is_smoothed_away():
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 1, 2, 50, 64)
    k[..., 7] += 100
    exact = F.scaled_dot_product_attention(q, k, v)
    errors = [
        (low_bits.attention_in_8_bits(q, k, v, smooth=smooth) - exact).norm()
        for smooth in (True, False)
    ]
    assert 4 * errors[0] < errors[1]


def test_a_row_without_keys_and_a_single_key_are_right_in_8_bits():
    q, k, v = torch.randn(3, 1, 2, 3, 16)
    mask = torch.tensor([[False] * 3, [True] * 3, [True] * 3])
    out = low_bits.attention_in_8_bits(q, k, v, mask)
    assert (out[:, :, 0] == 0).all() and out.isfinite().all()
    one = low_bits.attention_in_8_bits(q, k[:, :, :1], v[:, :, :1])
    torch.testing.assert_close(one, v[:, :, :1].expand_as(one))
    zeros = low_bits.attention_in_8_bits(q, 0 * k, 0 * v)
    assert (zeros == 0).all()
