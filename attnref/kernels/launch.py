"""What all kernels share: Triton is imported when the first one runs."""

# --8<-- [start:launch]
from collections.abc import Callable
from functools import cached_property
from math import ceil
from typing import Any

import torch
from torch import Tensor


class constexpr(int):  # noqa: N801, Triton's name
    """The type of an argument that is known when a kernel is compiled."""


class Kernel:
    """A function in Triton's language, compiled when it first runs.

    `kernel[grid](...)` runs it once for each place of the grid.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self.compiled[grid]  # type: ignore[no-any-return]

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError("a kernel runs on a grid: kernel[grid](...)")

    @cached_property
    def compiled(self) -> Any:
        triton, names = _triton(), self.function.__globals__
        names["tl"] = triton.language
        names["constexpr"] = triton.language.constexpr
        for name in self.function.__code__.co_names:
            if isinstance(names.get(name), Kernel):  # another one calls it
                names[name] = names[name].compiled
        return triton.jit(self.function)


def _triton() -> Any:
    try:
        import triton
        import triton.language
    except ImportError as error:
        raise ImportError(
            'kernels need Triton: pip install "attnref[kernels]"'
        ) from error
    return triton


def check_place(kernel: str, *tensors: Tensor) -> None:
    """Tensors must be on one GPU, or on a CPU with TRITON_INTERPRET=1."""
    devices = {x.device for x in tensors}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"{kernel}: the inputs are on {names}")
    (device,) = devices
    interpreted = _triton().knobs.runtime.interpret
    if device.type != "cuda" and not (interpreted and device.type == "cpu"):
        raise ValueError(
            f"{kernel} runs on a GPU, and the inputs are on {device}; on a "
            "CPU, set TRITON_INTERPRET=1 before Triton is imported"
        )


def check_dtype(kernel: str, *tensors: Tensor) -> None:
    dtypes = {x.dtype for x in tensors}
    known = {torch.float32, torch.float16, torch.bfloat16}
    if len(dtypes) > 1 or not dtypes <= known:
        names = ", ".join(sorted(str(x)[6:] for x in dtypes))
        raise TypeError(
            f"{kernel} takes float32, float16 or bfloat16, the same for all "
            f"inputs, and not {names}"
        )


def has_wgmma(x: Tensor) -> bool:
    """Whether four warps multiply together, which needs fewer registers."""
    if x.device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(x.device)[0] in (9, 10)


def power_of_2(n: int) -> int:
    """The smallest power of 2 that is at least `n`, and at least 16.

    Tensor cores multiply blocks of 16; a block has a power of 2 of elements.
    """
    return 1 << max(4, (n - 1).bit_length())


def span_for(S: int, rows: int, programs: int, block: int) -> int:
    """How many keys a program reads, so that about `programs` run at once.

    Each of `rows` programs has all S keys; with few of them, keys are split.
    """
    parts = max(1, programs // max(1, rows))
    return block * max(1, ceil(S / (parts * block)))


# --8<-- [end:launch]
