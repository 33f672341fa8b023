"""What a layer does while it runs: its shapes, and which heads it joins."""

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnref.caches.past import self_attention
from sitekit.render import Rows
from sitekit.shapes import Tracer

# What no shape tells by itself, by the name that layers have for it.
WIDTHS = {
    "R": "kv_lora_rank",
    "Dn": "qk_nope_head_dim",
    "Dr": "qk_rope_head_dim",
    "Dv": "v_head_dim",
}
ORDER = ("B", "T", "S", "H", "K", "R", "D", *list(WIDTHS)[1:], "E")


class Watching(TorchDispatchMode):
    """What `__torch_dispatch__` of a subclass is called for."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip its compiler, torch would have to import it


def recorded(
    layer: Any, *inputs: Tensor, **named: Any
) -> tuple[Rows, dict[str, int]]:
    """What the shape comments of a layer's `forward` say, and of what it calls
    between its projections, and what came; and the size of each letter."""
    bodies: dict[str, range] = {}
    for called in self_attention, type(layer).forward:
        file = str(inspect.getsourcefile(called))
        lines, first = inspect.getsourcelines(called)
        bodies[file] = range(first, first + len(lines))
    letters = {
        letter: getattr(layer, name)
        for letter, name in WIDTHS.items()
        if hasattr(layer, name)
    }
    sources = {name: Path(name).read_text(encoding="utf-8") for name in bodies}
    tracer = Tracer(sources, letters)
    with tracer, torch.no_grad():
        layer(*inputs, **named)
    if tracer.faults:
        raise ValueError("; ".join(tracer.faults))
    rows: Rows = []
    sizes: dict[str, int] = {}
    for (name, line), alike in tracer.unclear.items():
        if name == file and line in bodies[file]:
            text = tracer.comments[name][line].text
            why = "a walk needs another size for each letter"
            raise ValueError(f"{text} has {alike}: {why}")
    for (name, line), (shape, known) in tracer.seen.items():  # as they ran
        c = tracer.comments[name][line]
        if line in bodies[name] and (c.targets or name == file):
            value = ", ".join(c.targets) or "return"
            rows.append([f"`{value}`", f"`{c.text}`", f"`{shape}`"])
            sizes |= {n: known[n] for n in c.letters}
    return rows, {k: sizes[k] for k in sorted(sizes, key=ORDER.index)}


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
        kept = rows.clone()
        rows += 1
        columns.append((run() != before).any(-1).any(1)[0])
        rows.copy_(kept)
    return torch.stack(columns, dim=1)


def inputs_of(layer: Any, rows: int, new: int, context: int) -> list[Tensor]:
    """What a layer reads: its input, and a context if it has one."""
    inputs = [torch.randn(rows, new, layer.d_model)]
    if hasattr(layer, "d_context"):
        inputs.append(torch.randn(rows, context, layer.d_context))
    return inputs
