"""Quantised weights of published checkpoints as ordinary numbers.

The tensors that are stored for a module tell by their names which format it
is: FP8 and INT8 with scales per block, row or tensor; FP4 of NVIDIA (NVFP4) and
of OCP (MXFP4); packed integers of compressed-tensors, AWQ, GPTQ and MLX.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attnref.words import message

# The 16 numbers of E2M1, by their four bits.
FP4 = 0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6
# Where AWQ packs each of eight columns within a word.
AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]
# Scales of activations, and sizes: the weight does not need them.
BESIDE = {
    *("input_scale", "input_global_scale", "activation_scale"),
    *("input_zero_point", "weight_shape", "bias"),
}
SCALES = "weight_scale_inv", "weight_scale", "scale"
# Methods whose tensors do not say how they are read.
REFUSED = {
    *("bitsandbytes", "torchao", "hqq", "aqlm", "gguf", "quip", "eetq"),
    *("higgs", "vptq", "spqr", "quark"),
}
Parts = Mapping[str, Tensor]


def dequantised(
    tensors: Mapping[str, Tensor], quant: Mapping[str, Any]
) -> dict[str, Tensor]:
    """All `tensors` by name, those of quantised modules in float32.

    `quant` is the `quantization_config` of the model.

    Examples:
        >>> scale = torch.tensor([[2.0]])
        >>> stored = {"o.weight": torch.ones(2, 2, dtype=torch.float8_e4m3fn)}
        >>> dequantised(stored | {"o.weight_scale_inv": scale}, {})
        {'o.weight': tensor([[2., 2.],
                [2., 2.]])}
    """
    modules: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        module, dot, last = name.rpartition(".")
        modules.setdefault(module + dot, {})[last] = tensor
    return {
        module + last: tensor
        for module, parts in modules.items()
        for last, tensor in _parameters(parts, quant).items()
    }


def _parameters(parts: Parts, quant: Mapping[str, Any]) -> dict[str, Tensor]:
    """The parameters of one module, from the tensors stored for it."""
    names = parts.keys() - BESIDE
    method = str(quant.get("quant_method", "")).lower()
    if method in REFUSED and names != {"weight"}:
        raise ValueError(
            message(
                "{}: its tensors are not read here; load the model with "
                "transformers and dequantise it there",
                method,
            )
        )
    bias = {"bias": parts["bias"]} if "bias" in parts else {}
    weight = _weight(parts, names, quant)
    return dict(parts) if weight is None else {"weight": weight, **bias}


def _weight(
    parts: Parts, names: set[str], quant: Mapping[str, Any]
) -> Tensor | None:
    """The weight of a module; None, if it is stored as it is."""
    if names == {"weight", "weight_scale", "weight_scale_2"}:  # of ModelOpt
        scale = parts["weight_scale"].float() * parts["weight_scale_2"].float()
        return _spread(_fp4(parts["weight"]), scale)
    if names == {"weight_packed", "weight_scale", "weight_global_scale"}:
        scale = parts["weight_scale"].float() / parts["weight_global_scale"]
        return _spread(_fp4(parts["weight_packed"]), scale)
    if "weight_packed" in names and "weight_shape" in parts:
        return _compressed(parts)
    if names == {"weight_packed", "weight_scale"}:  # MXFP4, in groups of 32
        scale = _factor(parts["weight_scale"])
        return _spread(_fp4(parts["weight_packed"]), scale)
    if "qweight" in names:
        packs_rows = parts["qweight"].shape[1] == parts["scales"].shape[1]
        return _gptq(parts, quant) if packs_rows else _awq(parts)
    if names == {"weight", "scales", "biases"}:
        return _mlx(parts, quant["bits"], quant["group_size"])
    if len(names) == 2 and "weight" in names:
        (last,) = names - {"weight"}
        if last in SCALES and parts["weight"].itemsize == 1:
            return _scaled(parts["weight"], parts[last], quant)
    return None


def _scaled(weight: Tensor, scale: Tensor, quant: Mapping[str, Any]) -> Tensor:
    """FP8 or INT8; two FP4 a byte, where the scale is a power of 2."""
    if not weight.is_floating_point() and scale.itemsize == 1:
        return _spread(_fp4(weight), _factor(scale))
    block = quant.get("weight_block_size")
    return _spread(weight.float(), _factor(scale), block)


def _factor(scale: Tensor) -> Tensor:
    """A scale as a number: a byte of E8M0 is an exponent of 2."""
    if scale.dtype == torch.uint8:
        return (scale.float() - 127).exp2()
    return scale.float()


def _spread(weight: Tensor, scale: Tensor, block: Any = None) -> Tensor:
    """Each element of a weight `(R, C)` times the scale of its block."""
    if scale.numel() == 1:
        return weight * scale.reshape(())
    if scale.dim() == 1:  # one per row
        scale = scale[:, None]
    for axis in (-2, -1):
        size, count = weight.shape[axis], scale.shape[axis]
        if count in (1, size):
            continue
        length = block[axis] if block else size // count
        if -(-size // length) != count:
            raise ValueError(
                message(
                    "{} scales for {} rows or columns in blocks of {}",
                    count,
                    size,
                    length,
                )
            )
        index = torch.arange(size, device=scale.device) // length
        scale = scale.index_select(axis, index)
    return weight * scale


def _fp4(packed: Tensor) -> Tensor:
    """E2M1: two numbers a byte, the low four bits first."""
    bits = packed.view(torch.uint8)
    pairs = torch.stack((bits & 15, bits >> 4), dim=-1).flatten(-2)
    return torch.tensor(FP4, device=packed.device)[pairs.long()]


def _integers(words: Tensor, bits: int, axis: int = -1) -> Tensor:
    """The integers in words of 32 bits, the lowest first, along an axis."""
    if 32 % bits:
        raise ValueError(
            message("{} bits are split between two words: not read", bits)
        )
    shifts = torch.arange(0, 32, bits, device=words.device)
    words = words.view(torch.int32).movedim(axis, -1)
    numbers = (words[..., None] >> shifts) & (2**bits - 1)
    flat: Tensor = numbers.flatten(-2).movedim(-1, axis)
    return flat


def _compressed(parts: Parts) -> Tensor:
    """compressed-tensors: unsigned integers less a zero point, times scales."""
    words = parts["weight_packed"]
    rows, columns = map(int, parts["weight_shape"])
    bits = 32 // -(-columns // words.shape[1])
    numbers = _integers(words, bits)[:, :columns]
    scale = parts["weight_scale"].float()
    zero = torch.full_like(scale, 2 ** (bits - 1), dtype=torch.int32)
    if "weight_zero_point" in parts:
        zero = _integers(parts["weight_zero_point"], bits, axis=0)[:rows]
    length = -(-columns // scale.shape[1])
    group = torch.arange(columns, device=scale.device) // length
    if "weight_g_idx" in parts:
        group = parts["weight_g_idx"].long()
    weight: Tensor = (numbers - zero[:, group]) * scale[:, group]
    return weight


def _awq(parts: Parts) -> Tensor:
    """AWQ: `(in, out)`, eight columns a word in an order of its own."""
    scale = parts["scales"].float()
    bits = 32 * parts["qweight"].shape[1] // scale.shape[1]
    if bits != 4:
        raise ValueError(message("AWQ with {} bits: only 4 are read", bits))
    numbers, zeros = (
        _integers(parts[name], bits)
        .unflatten(1, (-1, 8))[..., AWQ_ORDER]
        .flatten(1)
        for name in ("qweight", "qzeros")
    )
    rows = torch.arange(len(numbers), device=scale.device)
    group = rows * len(scale) // len(rows)
    weight: Tensor = ((numbers - zeros[group]) * scale[group]).T
    return weight.contiguous()


def _gptq(parts: Parts, quant: Mapping[str, Any]) -> Tensor:
    """GPTQ: `(in, out)`, rows packed; version 1 stores zero points less 1."""
    scale, bits = parts["scales"].float(), int(quant["bits"])
    numbers = _integers(parts["qweight"], bits, axis=0)
    zeros = _integers(parts["qzeros"], bits)
    if quant.get("checkpoint_format") != "gptq_v2":
        zeros = (zeros + 1) & (2**bits - 1)
    rows = torch.arange(len(numbers), device=scale.device)
    group = rows * len(scale) // len(rows)
    if "g_idx" in parts:
        group = parts["g_idx"].long()
    weight: Tensor = ((numbers - zeros[group]) * scale[group]).T
    return weight.contiguous()


def _mlx(parts: Parts, bits: int, length: int) -> Tensor:
    """MLX: scale times integer plus bias, of each group of a row."""
    numbers = _integers(parts["weight"], bits)
    scale, bias = (
        parts[name].float().repeat_interleave(length, 1)
        for name in ("scales", "biases")
    )
    weight: Tensor = numbers * scale + bias
    return weight
