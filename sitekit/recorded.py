"""What a layer does while it runs: its shapes, and which heads it joins."""

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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


def recorded(
    layer: Any, *inputs: Tensor, **named: Any
) -> tuple[Rows, dict[str, int]]:
    """What the shape comments of a layer's `forward` say, and what came; and
    the size of each of their letters."""
    file = str(inspect.getsourcefile(type(layer)))
    source = Path(file).read_text(encoding="utf-8")
    lines, first = inspect.getsourcelines(type(layer).forward)
    body = range(first, first + len(lines))
    letters = {
        letter: getattr(layer, name)
        for letter, name in WIDTHS.items()
        if hasattr(layer, name)
    }
    tracer = Tracer({file: source}, letters)
    with tracer, torch.no_grad():
        layer(*inputs, **named)
    if tracer.faults:
        raise ValueError("; ".join(tracer.faults))
    rows: Rows = []
    sizes: dict[str, int] = {}
    for line, c in tracer.comments[file].items():
        if (file, line) in tracer.seen and line in body:
            shape, known = tracer.seen[file, line]
            name = ", ".join(c.targets) or "return"
            rows.append([f"`{name}`", f"`{c.text}`", f"`{shape}`"])
            sizes |= {n: known[n] for n in c.letters}
        elif (file, line) in tracer.unclear and line in body:
            why = "a walk needs another size for each letter"
            raise ValueError(
                f"{c.text} has {tracer.unclear[file, line]}: {why}"
            )
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
