"""Sizes and weights for tests of layers, and what a layer says of itself in its
test file: see `tests/variants.py`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnref import Llama3, Rope, Yarn
from attnref.numbers.cost import Cost
from attnref.numbers.shapes import Full, Group

# Prime, and no two alike, but for H = 2 K, and for D and DR, of which RoPE
# wants pairs. S is the length of a context, C its width.
B, T, S, E, C, H, K, D = 3, 7, 11, 13, 17, 10, 5, 4
R, DN, DR, DV, Q = 41, 19, 8, 23, 29

NOTHING: dict[str, Any] = {}


class Variant(NamedTuple):
    """A layer, and what its tests need to know of it.

    Whether it takes positions or reads a context is not said here but read
    from its signature, see `takes`; what its tokens see, from the layer that
    was built, see `rule`.
    """

    layer: type[nn.Module]
    sizes: dict[str, int]  # to the constructor
    cost: Callable[..., Cost]  # of these sizes, and of a call
    group: Group  # what it needs of the past, in the words of shapes.py
    forward: dict[str, Any] = NOTHING  # to forward
    options: tuple[dict[str, Any], ...] = (NOTHING,)  # to the constructor
    # Key heads beside so many query heads in so many groups, if the layer
    # projects to heads as Llama's does: transformers and torch are oracles.
    kv_heads: Callable[[int, int], int] | None = None
    # Its page, where it is not layers/STEM; False: none explains it yet.
    page: str | bool = True
    # How parameters begin that choose keys: the output has no gradient of them,
    # and of two keys that nearly tie, rounding chooses.
    choosing: tuple[str, ...] = ()


def full(kv_heads: int, head_dim: int = D, v_head_dim: int = D) -> Full:
    """What attention to keys needs of the past, in words of shapes.py."""
    return Full(
        layers=1,
        q_heads=H,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
    )


HEADS = {"d_model": E, "n_heads": H, "head_dim": D}
LATENT = {"d_model": E, "n_heads": H, "kv_lora_rank": R}
LATENT |= {"qk_nope_head_dim": DN, "qk_rope_head_dim": DR, "v_head_dim": DV}
PARTIAL = Rope(100.0, width=2, scaling=Llama3(4.0, 1.0, 4.0, 16))
ROPE = ({}, {"rope": PARTIAL, "bias": True})
STRETCHED = Rope(
    layout="interleaved",
    scaling=Yarn(4.0, 64, mscale=0.707, mscale_all_dim=0.5),
)


def sharp(module: nn.Module) -> nn.Module:
    """With weights with which softmax decides: flat ones hide mistakes."""
    for name, p in module.named_parameters():
        nn.init.normal_(p, mean=float("norm" in name), std=0.5)
    return module.double().eval()


def tokens(*shape: int) -> Tensor:
    return torch.randn(*(shape or (B, T, E)), dtype=torch.float64)
