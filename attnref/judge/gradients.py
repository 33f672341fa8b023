"""Gradients of the known answers, and the gradients of mistakes of backward.

A case has one cotangent: the gradient of some loss with respect to the output.
The gradients of inputs and weights follow by autograd through the plain forms,
in float64. A mistake of backward.txt has the right output and wrong gradients.
"""

from collections.abc import Callable, Container, Iterator
from functools import cache
from math import log2
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from torch import Tensor
from torch.autograd.graph import allow_mutation_on_saved_tensors

from attnref.judge.catalogue import (
    Mistake,
    Plain,
    Variant,
    catalogue,
    every_variant,
    mistakes_by_file,
    read,
)
from attnref.judge.differences import as_stored, largest, largest_difference

GRID = 64  # inputs, weights and cotangents are multiples of 1 / GRID
LONG = 3000  # elements: the gradient of a longer input is left out if it can be
PAGE = "mistakes/known-answers/#gradients"  # where mistakes of backward are
ROUNDINGS = 4  # a mistake differs by more than so many roundings of float32
Run = Callable[[Plain, dict[str, Tensor], torch.dtype], tuple[Tensor, Any]]


@cache
def backward() -> dict[str, Mistake]:
    """The mistakes of the backward pass, by id."""
    path = Path(__file__).with_name("backward.txt")
    mistakes = read(path.read_text(encoding="utf-8"))
    return {mistake.id: mistake for mistake in mistakes}


def entry(id: str) -> Mistake:
    """A mistake of the catalogue, or of the backward pass."""
    return catalogue().get(id) or backward()[id]


def cotangent(name: str, out: Tensor) -> Tensor:
    """The gradient of the output: multiples of 1/64, and 0 where the output is
    not finite."""
    seed = crc32(f"{name} cotangent".encode())
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(-GRID, GRID + 1, out.shape, generator=generator)
    return (steps.double() / GRID).where(out.isfinite(), 0)


def gradients(
    name: str,
    run: Run,
    inputs: dict[str, Tensor],
    p: Plain | None = None,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Tensor]:
    """The cotangent and the gradient of each input and weight, by name.

    Nothing if the output is a mask. A hidden score, -inf, has no gradient.
    """
    with torch.enable_grad(), allow_mutation_on_saved_tensors():
        out, case = run(p or Plain(), dict(inputs), dtype)
        if not out.is_floating_point():
            return {}
        above = cotangent(name, out.detach())
        leaves = [leaf for group in case.leaves.values() for leaf in group]
        parts = iter(
            torch.autograd.grad(
                out, leaves, above.to(out.dtype), materialize_grads=True
            )
        )
    result = {"cotangent": above}
    found = {
        path: sum((next(parts) for _ in group), torch.zeros(()))
        for path, group in case.leaves.items()
    }
    if "weight/qkv_proj.weight" in inputs:  # one matrix in the model
        rows = [found.pop(f"weight/{x}_proj.weight") for x in "qkv"]
        found["weight/qkv_proj.weight"] = torch.cat(rows)
    for path, gradient in found.items():
        if not inputs[path].is_floating_point():
            continue  # drawn as numbers, and then a mask
        shown = inputs[path].isfinite()
        label = path.removeprefix("input/").removeprefix("weight/")
        result[f"gradient/{label}"] = gradient.where(shown, 0)
    return result


def wrong_gradients(
    name: str,
    run: Run,
    right: dict[str, Tensor],
    inputs: dict[str, Tensor],
    modules: tuple[str, ...],
    least: dict[str, float],
    seen: Container[str] = (),
) -> tuple[dict[str, Tensor], dict[str, list[str]]]:
    """The gradients of each mistake, where they differ by more than rounding;
    and the ids of all mistakes that give the same. Those that are `seen` in
    the output are left out."""
    tensors: dict[str, Tensor] = {}
    ids: dict[str, list[str]] = {}
    kept: dict[str, dict[str, Tensor]] = {}
    for id, variant in _planted(modules):
        if id in seen:
            continue
        try:
            found = gradients(name, run, inputs, Plain(variant))
        except RuntimeError:  # cut off altogether
            continue
        wrong = {
            path: _coarse(found[path], right[path])
            for path in right
            if path in least
            and largest_difference(found[path], right[path])
            > ROUNDINGS * least[path]
        }
        short = {x: y for x, y in wrong.items() if y.numel() <= LONG}
        wrong = short or wrong
        if not wrong:
            continue
        same = next((way for way in kept if _agree(kept[way], wrong)), None)
        if same is None:
            count = sum(way.split("/")[0] == id for way in kept)
            same = f"{id}/{count + 1}" if count else id
            kept[same], ids[same] = wrong, []
            tensors |= {f"mistake/{same}/{x}": y for x, y in wrong.items()}
        if id not in ids[same]:
            ids[same].append(id)
    return tensors, ids


def _coarse(wrong: Tensor, right: Tensor) -> Tensor:
    """About two digits: a quarter as much to download."""
    gap = min(largest(right) / 64, largest_difference(wrong, right) / 8)
    step = 2.0 ** round(log2(gap or 1e-3))
    return as_stored((wrong / step).round() * step)


def _planted(modules: tuple[str, ...]) -> Iterator[tuple[str, Variant]]:
    """On several ranks, some mistakes of the catalogue have right outputs."""
    ranks = {mistake.id: mistake for mistake in mistakes_by_file()["ranks"]}
    for id, mistake in (backward() | ranks).items():
        for variant in every_variant(mistake):
            if {lines.module for lines in variant} <= {*modules}:
                yield id, variant


def _agree(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        largest_difference(one[x], other[x]) <= 1e-4 * largest(one[x])
        for x in one
    )
