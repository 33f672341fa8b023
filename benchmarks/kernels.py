"""The Triton kernels, compiled for GPUs that are not there.

    python -m benchmarks.kernels          what `ptxas` says: kernels.json

What is compiled is what the functions launch: they run on tensors without data.
`make bench-gpu` measures them.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from attnref.kernels import launch

OUT = Path(__file__).with_name("kernels.json")
FILES = "flash", "decode", "mla_decode", "gated_delta"
TARGETS = {"sm_80": 164, "sm_90": 227}  # KiB of shared memory for a block
REGISTERS = 255  # the most that a thread may have
TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
}


def call_flash(file: Any, dtype: Any, D: int = 128, **options: Any) -> None:
    q, k, v = (torch.empty(1, h, 4096, D, dtype=dtype) for h in (32, 8, 8))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    out, lse = file.flash(q, k, v, **options)
    torch.autograd.grad((out, lse), (q, k, v), (out, lse))


def call_decode(file: Any, dtype: Any, paged: bool = False) -> None:
    q, S = torch.empty(1, 32, 1, 128, dtype=dtype), 131_072
    shape = (S // 16, 8, 16, 128) if paged else (1, 8, S, 128)
    table = torch.empty(1, S // 16, dtype=torch.int32) if paged else None
    k, v = (torch.empty(shape, dtype=dtype) for _ in "kv")
    lengths = torch.empty(1, dtype=torch.int32)
    file.decode(q, k, v, lengths, table=table)


def call_mla(file: Any, dtype: Any, H: int) -> None:
    q = torch.empty(1, H, 1, 576, dtype=dtype)
    cache = torch.empty(1, 131_072, 576, dtype=dtype)
    lengths = torch.empty(1, dtype=torch.int32)
    file.mla_decode(q, cache, lengths, 512, scale=192**-0.5)


def call_delta(file: Any, dtype: Any) -> None:
    q, k, v = (torch.empty(1, 32, 4096, 128, dtype=dtype) for _ in "qkv")
    decay, beta = (torch.empty(1, 32, 4096) for _ in "gb")
    state = torch.empty(1, 32, 128, 128)
    file.gated_delta(q, k, v, decay, beta, state)


CALLS: dict[str, tuple[str, Callable[..., None]]] = {
    "flash": ("flash", call_flash),
    "flash, window, softcap": (
        "flash",
        partial(call_flash, window=1024, softcap=50.0),
    ),
    "flash, heads of 256": ("flash", partial(call_flash, D=256)),
    "decode": ("decode", call_decode),
    "decode, paged": ("decode", partial(call_decode, paged=True)),
    "mla_decode, 16 heads": ("mla_decode", partial(call_mla, H=16)),
    "mla_decode, 128 heads": ("mla_decode", partial(call_mla, H=128)),
    "gated_delta": ("gated_delta", call_delta),
}


class Launched(NamedTuple):
    """A kernel, and all that it was launched with."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    named: dict[str, Any]

    @property
    def name(self) -> str:
        return self.kernel.function.__name__.strip("_")


def launched(name: str, target: str) -> list[Launched]:
    """What a call in bfloat16 would launch on a GPU."""
    stem, call = CALLS[name]
    file, found = import_module(f"attnref.kernels.{stem}"), []

    def record(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*arguments: Any, **named: Any) -> None:
            found.append(Launched(kernel, grid, arguments, named))

        return run

    with ExitStack() as stack:
        stack.enter_context(torch.device("meta"))
        stack.enter_context(patch.object(launch.Kernel, "__getitem__", record))
        stack.enter_context(patch.object(file, "check_place"))
        if hasattr(file, "has_wgmma"):
            wgmma = patch.object(file, "has_wgmma", lambda _: target == "sm_90")
            stack.enter_context(wgmma)
        call(file, torch.bfloat16)
    return found


def compiled(item: Launched, target: str) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    options = {x: item.named[x] for x in item.named if x.startswith("num_")}
    sizes = {x: y for x, y in item.named.items() if x not in options}
    function = item.kernel.compiled
    signature: dict[str, str] = {}
    hints: dict[tuple[int, ...], Any] = {}
    values = iter(item.arguments)
    for place, name in enumerate(function.arg_names):
        value = sizes[name] if name in sizes else next(values)
        one = isinstance(value, int) and value == 1  # Triton folds it
        if name in sizes or value is None or one:
            signature[name], sizes[name] = "constexpr", value
        elif isinstance(value, Tensor):
            signature[name] = TYPES[value.dtype]
            hints[(place,)] = [["tt.divisibility", 16]]
        else:
            whole = isinstance(value, int)
            signature[name] = "i32" if whole else "fp32"
            if whole and value % 16 == 0:
                hints[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(function, signature, sizes, hints)
    backend = GPUTarget("cuda", int(target[3:]), 32)
    return triton.compile(source, target=backend, options=options)


def assembled(result: Any, target: str) -> dict[str, Any]:
    """Registers of a thread and bytes spilled, as `ptxas` says."""
    import triton

    chip = f"{target}a" if target == "sm_90" else target
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(result.asm["ptx"])
        file.flush()
        command = [triton.knobs.nvidia.ptxas.path, "-v", f"--gpu-name={chip}"]
        done = subprocess.run(
            [*command, file.name, "-o", os.devnull],
            capture_output=True,
            text=True,
            check=True,
        )
    unit = re.search(r"wgmma|mma\.sync", result.asm["ptx"])
    return {
        "registers": int(re.search(r"Used (\d+) registers", done.stderr)[1]),  # type: ignore[index]
        "spilled": int(re.search(r"(\d+) bytes spill st", done.stderr)[1]),  # type: ignore[index]
        "shared": round(result.metadata.shared / 1024, 1),
        "unit": unit[0] if unit else "",
        "warps": result.metadata.num_warps,
    }


def ahead(
    names: list[str], target: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in names:
        for item in launched(name, target):
            row = assembled(compiled(item, target), target)
            yield f"{name}: {item.name}", row


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels")
    parser.add_argument("--only", choices=CALLS)
    parser.add_argument("--target", choices=TARGETS, action="append")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    os.environ["TRITON_INTERPRET"] = "0"
    import triton

    names = [options.only] if options.only else list(CALLS)
    result: dict[str, Any] = {"triton": triton.__version__}
    for target in options.target or TARGETS:
        rows = {}
        for name, row in ahead(names, target):
            rows[name] = row
            sys.stderr.write(f"{target} {name} {row}\n")
        result[target] = rows
    text = re.sub(r"\n {3,}|\n  (?=})", " ", json.dumps(result, indent=1))
    options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
