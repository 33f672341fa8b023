"""Records what the makers of formats of quantised weights read in them.

    pip install compressed-tensors torchao autoawq auto-round "mlx[cpu]"
    python -m tests.released.oracles.record_quantised

A case is what a file stores for one module, drawn at random, and the weight
that the library of that format makes of it. The tests need none of them.
"""

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor

RECORD = Path(__file__).with_name("quantised.json")
OUT, IN, GROUP = 32, 64, 32
Case = tuple[str, dict[str, Tensor], dict[str, Any], Tensor]


def words(*shape: int) -> Tensor:
    """Random bits."""
    info = torch.iinfo(torch.int32)
    return torch.randint(info.min, info.max, shape, dtype=torch.int32)


def compressed() -> Iterator[Case]:
    from compressed_tensors.compressors.pack_quantized.helpers import (
        pack_to_int32,
        unpack_from_int32,
    )
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    for bits in (4, 8):
        for symmetric in (True, False):
            for group in (GROUP, None):
                least, most = -(2 ** (bits - 1)), 2 ** (bits - 1)
                q = torch.randint(least, most, (OUT, IN), dtype=torch.int8)
                groups = IN // group if group else 1
                scale = torch.rand(OUT, groups)
                stored = {
                    "weight_packed": pack_to_int32(q, bits),
                    "weight_scale": scale,
                    "weight_shape": torch.tensor([OUT, IN]),
                }
                zero = None
                if not symmetric:
                    shape = (OUT, groups)
                    zero = torch.randint(least, most, shape, dtype=torch.int8)
                    packed = pack_to_int32(zero, bits, packed_dim=0)
                    stored["weight_zero_point"] = packed
                args = QuantizationArgs(
                    num_bits=bits,
                    symmetric=symmetric,
                    strategy="group" if group else "channel",
                    group_size=group,
                )
                read = unpack_from_int32(
                    stored["weight_packed"], bits, torch.Size((OUT, IN))
                )
                name = f"compressed-tensors {bits} {symmetric} {group}"
                yield name, stored, {}, dequantize(read, scale, zero, args)


def awq() -> Iterator[Case]:
    # The package itself imports what it trains with.
    home = Path(find_spec("awq").origin).parent
    read_file = run_path(str(home / "utils/packing_utils.py"))
    stored = {
        "qweight": words(IN, OUT // 8),
        "qzeros": words(IN // GROUP, OUT // 8),
        "scales": torch.rand(IN // GROUP, OUT),
    }
    read = read_file["dequantize_gemm"](
        *stored.values(), bits=4, group_size=GROUP
    )
    yield "AWQ", stored, {"bits": 4, "group_size": GROUP}, read.T


def gptq() -> Iterator[Case]:
    # Of the package itself, only helpers for other numbers of bits are needed.
    for name in ("auto_round", "auto_round.utils"):
        sys.modules[name] = MagicMock()
    bits_of = Path(find_spec("auto_round_extension").origin).parents[1]
    path = bits_of / "auto_round/utils/bit_packing.py"
    helpers = ModuleType("auto_round.utils.bit_packing")
    vars(helpers).update(run_path(str(path)))
    sys.modules["auto_round.utils.bit_packing"] = helpers
    from auto_round_extension.torch import qlinear_torch, qlinear_torch_zp

    versions = {"gptq_v2": qlinear_torch, "gptq": qlinear_torch_zp}
    for version, library in versions.items():
        for bits in (4, 8):
            layer = library.QuantLinear(bits, GROUP, IN, OUT, bias=False)
            per_word = 32 // bits
            layer.qweight = words(IN // per_word, OUT)
            # Even ones: libraries differ in what one more than the largest is.
            even = -1 - sum(1 << (bits * n) for n in range(per_word))
            layer.qzeros = words(IN // GROUP, OUT // per_word) & even
            # Exact in float16, in which the library computes.
            layer.scales = 2.0 ** torch.randint(-3, 3, layer.scales.shape)
            layer.scales = layer.scales.half()
            stored = {
                "qweight": layer.qweight,
                "qzeros": layer.qzeros,
                "scales": layer.scales,
            }
            read = layer(torch.eye(IN)).float().T
            quant = {"bits": bits, "checkpoint_format": version}
            yield f"{version} {bits}", stored, quant, read


def mlx() -> Iterator[Case]:
    import mlx.core as mx

    weight = mx.random.normal((OUT, IN))
    for bits in (2, 4, 8):
        stored = mx.quantize(weight, group_size=GROUP, bits=bits)
        read = mx.dequantize(*stored, group_size=GROUP, bits=bits)
        names = "weight", "scales", "biases"
        tensors = {
            name: torch.tensor(array.tolist(), dtype=dtype)
            for name, array, dtype in zip(
                names,
                stored,
                (torch.uint32, torch.float32, torch.float32),
                strict=True,
            )
        }
        quant = {"bits": bits, "group_size": GROUP}
        yield f"MLX {bits}", tensors, quant, torch.tensor(read.tolist())


def nvfp4() -> Iterator[Case]:
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

    whole = torch.tensor(0.01)
    read = NVFP4Tensor.to_nvfp4(torch.randn(OUT, IN), per_tensor_scale=whole)
    stored = {
        "weight": read.qdata.view(torch.uint8),
        "weight_scale": read.scale.view(torch.float8_e4m3fn).view(OUT, -1),
        "weight_scale_2": whole,
    }
    yield "NVFP4", stored, {}, read.dequantize(torch.float32)


def written(tensor: Tensor) -> dict[str, Any]:
    """A tensor as JSON: what has one byte as bytes."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    raw = tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor
    return {
        "dtype": dtype,
        "shape": [*tensor.shape],
        "values": raw.flatten().tolist(),
    }


def main() -> None:
    torch.manual_seed(0)
    lines = []
    for make in (compressed, awq, gptq, mlx, nvfp4):
        for name, stored, quant, read in make():
            tensors = {key: written(x) for key, x in stored.items()}
            digest = {
                "rows": read.double().sum(1).tolist(),
                "columns": read.double().sum(0).tolist(),
                "corner": read[:4, :8].tolist(),
            }
            case = {"tensors": tensors, "quant": quant, "weight": digest}
            lines.append(f"{json.dumps(name)}: {json.dumps(case)}")
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
