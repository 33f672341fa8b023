"""Triton's interpreter on a CPU, mended, and as strict as a GPU is careless.

It runs the programs of a grid one after another, in NumPy. `mend` adds what it
lacks, and reports as a `FaultError` what a GPU may do in another way:

- products and casts of bfloat16 are right; other arithmetic on it is refused;
- float32 products round their factors to TF32 unless they say "ieee";
- nothing outside the tensors of a launch is loaded or stored;
- no element is stored by two programs, or stored by one and loaded by another.
"""

from functools import cache

import numpy as np
import torch


class FaultError(Exception):
    """What a GPU would not do, or not always in the same way."""


class Launch:
    """The memory of one launch, and which program touches what."""

    def __init__(self, tensors):
        ends = [(x.data_ptr(), x) for x in tensors if x.numel()]
        self.ranges = [(start, start + _nbytes(x)) for start, x in ends]
        self.stored, self.loaded = [], []

    def note(self, touched, program, pointers, mask):
        shown = np.broadcast_to(mask.data, pointers.data.shape)
        addresses = np.unique(pointers.data[shown])
        inside = np.zeros(addresses.shape, bool)
        for start, end in self.ranges:
            inside |= (start <= addresses) & (addresses < end)
        if not inside.all():
            count = int((~inside).sum())
            raise FaultError(
                f"{count} elements outside every tensor of the launch"
            )
        touched.append((addresses, program))

    def check(self):
        if not self.stored:
            return
        addresses, programs = _joined(self.stored)
        order = addresses.argsort(kind="stable")
        addresses, programs = addresses[order], programs[order]
        again = (addresses[1:] == addresses[:-1]) & (
            programs[1:] != programs[:-1]
        )
        if again.any():
            raise FaultError(
                f"{int(again.sum())} elements stored by two programs"
            )
        loaded, readers = _joined(self.loaded)
        places = addresses.searchsorted(loaded).clip(max=len(addresses) - 1)
        stale = (addresses[places] == loaded) & (programs[places] != readers)
        if stale.any():
            raise FaultError(
                f"{int(stale.sum())} elements of another program read"
            )


def _joined(touched):
    addresses = np.concatenate([addresses for addresses, _ in touched])
    sizes = [len(addresses) for addresses, _ in touched]
    return addresses, np.repeat([program for _, program in touched], sizes)


def _nbytes(x):
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return (last + 1) * x.element_size()


@cache
def mend():
    """Once a process; the interpreter has no public place for any of it."""
    import triton.language as tl
    from triton.runtime import interpreter

    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    handle, convert = interpreter.TensorHandle, interpreter._convert_float
    old = {
        name: getattr(builder, name)
        for name in (
            "create_dot",
            "create_masked_load",
            "create_masked_store",
            "binary_op",
            "unary_op",
        )
    }
    launches = []

    def rounded(x, before, after, mode):
        if (before, after) != (tl.float32, tl.bfloat16):
            return convert(x, before, after, mode)
        near = torch.from_numpy(np.ascontiguousarray(x)).bfloat16()
        return near.view(torch.int16).numpy().view(np.uint16)

    def factor(x, precision):
        """As tensor cores read it."""
        if x.dtype.scalar == tl.bfloat16:
            bits = x.data.astype(np.uint32) << 16
        elif x.dtype.scalar == tl.float32 and precision.name == "TF32":
            bits = np.ascontiguousarray(x.data).view(np.uint32)
            bits = (bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)
        else:
            return x
        return handle(bits.view(np.float32), tl.float32)

    def dot(self, a, b, total, precision, *rest):
        a, b = factor(a, precision), factor(b, precision)
        return old["create_dot"](self, a, b, total, precision, *rest)

    def program(self):
        x, y, z = self.grid_idx
        return (x << 42) + (y << 21) + z

    def load(self, pointers, mask, *rest):
        launch = launches[-1]
        launch.note(launch.loaded, program(self), pointers, mask)
        return old["create_masked_load"](self, pointers, mask, *rest)

    def store(self, pointers, value, mask, *rest):
        launch = launches[-1]
        launch.note(launch.stored, program(self), pointers, mask)
        return old["create_masked_store"](self, pointers, value, mask, *rest)

    def refusing(name):
        def operate(self, x, *rest):
            if x.dtype.scalar == tl.bfloat16:
                raise FaultError("arithmetic on bfloat16: cast it to float32")
            return old[name](self, x, *rest)

        return operate

    start = executor.__call__

    def launch(self, *arguments, **named):
        tensors = [*arguments, *named.values()]
        tensors = [x for x in tensors if isinstance(x, torch.Tensor)]
        launches.append(Launch(tensors))
        try:
            start(self, *arguments, **named)
            launches[-1].check()
        finally:
            launches.pop()

    interpreter._convert_float = rounded
    builder.create_dot = dot
    builder.create_masked_load, builder.create_masked_store = load, store
    builder.binary_op = refusing("binary_op")
    builder.unary_op = refusing("unary_op")
    executor.__call__ = launch
