"""Quantised weights are what the libraries of their formats read in them."""

import json
from pathlib import Path

import pytest
import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from attnref.released.dequantise import REFUSED, dequantised

CASES = json.loads(
    Path(__file__).with_name("quantised.json").read_text(encoding="utf-8")
)


def tensor_of(written):
    dtype = getattr(torch, written["dtype"])
    if dtype.itemsize == 1:
        raw = torch.tensor(written["values"], dtype=torch.uint8).view(dtype)
    else:
        raw = torch.tensor(written["values"], dtype=dtype)
    return raw.view(written["shape"])


def stored(name):
    case = CASES[name]
    tensors = {key: tensor_of(x) for key, x in case["tensors"].items()}
    return tensors, case["quant"], case["weight"]


def assert_is(weight, digest):
    """Its corner, and the sums of its rows and columns."""
    for got, want in (
        (weight[:4, :8], digest["corner"]),
        (weight.double().sum(1), digest["rows"]),
        (weight.double().sum(0), digest["columns"]),
    ):
        want = torch.tensor(want, dtype=torch.float64)
        torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_format_is_read_as_its_library_reads_it(name):
    tensors, quant, digest = stored(name)
    tensors = {f"q_proj.{key}": x for key, x in tensors.items()}
    read = dequantised(tensors, quant)
    assert read.keys() == {"q_proj.weight"}
    assert read["q_proj.weight"].dtype == torch.float32
    assert_is(read["q_proj.weight"], digest)


@pytest.mark.parametrize("name", CASES)
def test_scales_in_another_order_are_noticed(name):
    tensors, quant, digest = stored(name)
    (key,) = {"weight_scale", "scales"} & tensors.keys()
    scale = tensors[key]
    order = torch.arange(scale.numel()).flip(0)
    turned = scale.float().flatten()[order].view(scale.shape).to(scale.dtype)
    read = dequantised(tensors | {key: turned}, quant)
    with pytest.raises(AssertionError):
        assert_is(read["weight"], digest)


def test_mxfp4_is_that_of_transformers():
    """Experts of gpt-oss: `(E, rows, groups, 16)` bytes, a scale per group."""
    blocks = torch.randint(0, 256, (3, 8, 4, 16), dtype=torch.uint8)
    scales = torch.randint(120, 134, (3, 8, 4), dtype=torch.uint8)
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    for expert, want in enumerate(theirs):
        parts = {"weight_packed": blocks[expert].flatten(1)}
        parts["weight_scale"] = scales[expert]
        got = dequantised(parts, {})["weight"]
        assert torch.equal(got, want.float().T)


@pytest.mark.parametrize("last", ["weight_scale_inv", "scale"])
@pytest.mark.parametrize("rows", [256, 200])
def test_blocks_of_fp8_have_a_scale_each(last, rows):
    """The last block of rows may be shorter, as that of kv_a_proj is."""
    weight = torch.randn(rows, 384).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 3)
    want = weight.float()
    for i in range(2):
        for j in range(3):
            block = slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128)
            want[block] *= scale[i, j]
    quant = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    got = dequantised({"o.weight": weight, f"o.{last}": scale}, quant)
    assert torch.equal(got["o.weight"], want)
    with pytest.raises(ValueError, match="blocks of 128"):
        dequantised({"weight": weight, last: torch.rand(3, 3)}, quant)


def test_what_is_not_quantised_stays():
    weights = {"q.weight": torch.randn(2, 2), "q.bias": torch.randn(2)}
    read = dequantised(weights, {"quant_method": "fp8"})
    assert all(read[name] is weight for name, weight in weights.items())


@pytest.mark.parametrize("method", sorted(REFUSED))
def test_other_methods_are_refused_by_name(method):
    packed = {"weight": torch.ones(1), "absmax": torch.ones(1)}
    with pytest.raises(ValueError, match=method):
        dequantised(packed, {"quant_method": method})
