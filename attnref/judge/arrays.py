"""What an adapter returns: the arrays of any library, as tensors."""

from typing import Any

import torch
from torch import Tensor

from attnref.words import message


def as_tensor(output: Any) -> Tensor:
    """A tensor, or whatever NumPy can read; a bfloat16 of JAX as torch's."""
    if isinstance(output, Tensor):
        return output.detach()
    import numpy

    array = numpy.array(output)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(numpy.float32)).bfloat16()
    return torch.from_numpy(array)


def in_words(output: Any) -> str:
    """What was returned instead of arrays."""
    if output is None:
        return "None"
    name = type(output).__name__
    if isinstance(output, tuple | list):
        return message("a {} of {}", name, len(output))
    return message("one array") if hasattr(output, "shape") else name


def one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
