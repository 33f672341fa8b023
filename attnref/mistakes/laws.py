"""What wrong attention breaks: tests to copy, each of one function or layer.

Each asserts something of what it is given and needs PyTorch alone.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


# --8<-- [start:equals_torch]
def equals_torch(core: Callable[..., Tensor]) -> None:
    """`core(q, k, v, mask)` computes what PyTorch computes, grouped heads,
    a mask and keys of another width than the values included."""
    torch.manual_seed(0)
    q = 3 * torch.randn(3, 6, 5, 8, dtype=torch.float64)
    k = torch.randn(3, 2, 7, 8, dtype=torch.float64)
    v = torch.randn(3, 2, 7, 4, dtype=torch.float64)
    mask = torch.rand(3, 1, 5, 7) < 0.6
    mask[..., 0] = True
    for seen in (None, mask):
        wanted = F.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, enable_gqa=True
        )
        torch.testing.assert_close(core(q, k, v, seen), wanted)


# --8<-- [end:equals_torch]


# --8<-- [start:future_is_hidden]
def future_is_hidden(layer: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Another last token changes no output before it."""
    other = x.clone()
    other[:, -1] += 1
    change = (layer(other) - layer(x)).abs().amax(dim=(0, 2))
    assert change[-1] > 0, "the last token does not see itself"
    assert change[:-1].max() == 0, f"outputs before it move: {change}"


# --8<-- [end:future_is_hidden]


# --8<-- [start:past_is_seen]
def past_is_seen(layer: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Another first token changes every output."""
    other = x.clone()
    other[:, 0] += 1
    change = (layer(other) - layer(x)).abs().amax(dim=(0, 2))
    assert change.min() > 0, f"outputs that do not move: {change}"


# --8<-- [end:past_is_seen]


# --8<-- [start:rows_are_apart]
def rows_are_apart(layer: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Each row of a batch gets what it gets alone."""
    alone = torch.cat([layer(row[None]) for row in x])
    torch.testing.assert_close(layer(x), alone)


# --8<-- [end:rows_are_apart]
