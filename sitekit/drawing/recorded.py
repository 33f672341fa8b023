"""What a layer does while it runs: which heads it joins."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Watching(TorchDispatchMode):
    """What `__torch_dispatch__` of a subclass is called for."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip its compiler, torch would have to import it


@torch.no_grad()
def wiring(layer: Any) -> Tensor:
    """Which query head changes when a key/value head does: `(H, K)`.

    Found by experiment: each value head in turn is made another, and what
    reaches `o_proj` is compared head by head.
    """
    inputs = inputs_of(layer, 1, 5, 5)
    heads: list[Tensor] = []
    layer.o_proj.register_forward_pre_hook(
        lambda _, args: heads.append(args[0].unflatten(-1, (layer.n_heads, -1)))
    )

    def run() -> Tensor:
        layer(*inputs)
        return heads.pop()

    before = run()
    columns = []
    for rows in layer.v_proj.weight.split(layer.head_dim):
        saved = rows.clone()
        rows += 1
        columns.append((run() != before).any(-1).any(1)[0])
        rows.copy_(saved)
    return torch.stack(columns, dim=1)


def inputs_of(layer: Any, rows: int, new: int, context: int) -> list[Tensor]:
    """What a layer reads: its input, and a context if it has one."""
    inputs = [torch.randn(rows, new, layer.d_model)]
    if hasattr(layer, "d_context"):
        inputs.append(torch.randn(rows, context, layer.d_context))
    return inputs
