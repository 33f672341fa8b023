"""What a layer does while it runs: its shapes, and which heads it joins."""

import ast
import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sitekit.render import Rows
from sitekit.shapes import Tracer, comments

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
    for c in comments(source).values():
        shape = tracer.seen.get((file, c.line))
        if not first <= c.line < first + len(lines):
            continue
        if not shape and (alike := tracer.unclear.get((file, c.line))):
            why = "a walk needs another size for each letter"
            raise ValueError(f"{c.text} has {alike}: {why}")
        if shape:
            name = ", ".join(c.targets) or "return"
            rows.append([f"`{name}`", f"`{c.text}`", f"`{shape}`"])
            for dim, size in zip(c.dims[::-1], shape[::-1], strict=False):
                names = {n.id for n in ast.walk(dim) if isinstance(n, ast.Name)}
                sizes |= {n: letters[n] for n in names & letters.keys()}
                if isinstance(dim, ast.Name):
                    sizes[dim.id] = size
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
