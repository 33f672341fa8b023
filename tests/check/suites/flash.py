"""Of attention in tiles, of its gradients, and of parts that are merged."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnref.check.properties import (
    empty_rows_are_zero,
    equals_torch,
    far_scores,
    gradients_are_slopes,
    gradients_equal_torch,
    parts_make_the_whole,
)
from tests.check.suites.attention import grouped

Core = Callable[..., Tensor]


def in_tiles(p: Any, *tile: int) -> Core:
    return lambda *given: p.flash.flash(*given, tile=tile)[0]


def in_parts(p: Any) -> tuple[Core]:
    """Attention to the first three keys and to the others, merged."""

    def core(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        parts = [
            p.flash.flash(q, k[:, :, i], v[:, :, i], mask[..., i])
            for i in (slice(3), slice(3, None))
        ]
        merged: Tensor = p.merge.merge(*zip(*parts, strict=True))[0]
        return merged

    return (core,)


def dropping(p: Any) -> tuple[Core]:
    """Attention with the same dropout at each call."""

    def core(q: Tensor, k: Tensor, v: Tensor) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return p.flash(q, k, v, dropout=0.5, tile=(2, 3))

    return (core,)


PARTS = (
    (parts_make_the_whole, lambda p: (p.flash.flash, p.merge.merge)),
    (far_scores, in_parts),
)
SUITES = {
    "plain.flash": (
        (equals_torch, lambda p: (grouped(in_tiles(p, 2, 3)),)),
        (far_scores, lambda p: (in_tiles(p, 4, 3),)),
        (empty_rows_are_zero, lambda p: (in_tiles(p, 2, 3),)),
        *PARTS,
    ),
    "plain.merge": PARTS,
    "core.flash": (
        (gradients_equal_torch, lambda p: (partial(p.flash, tile=(2, 3)),)),
        (gradients_are_slopes, dropping),
    ),
}
