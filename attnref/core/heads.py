"""Splitting a projection into heads, normalising heads, and merging them."""

# --8<-- [start:imports]
from typing import TypeGuard

from torch import Tensor, nn

# --8<-- [end:imports]


# --8<-- [start:heads]
def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """`(B, T, H * D)`, with the heads side by side, as `(B, H, T, D)`.

    Examples:
        >>> import torch
        >>> x = torch.arange(8).view(1, 2, 4)  # two tokens, two heads of 2
        >>> split_heads(x, 2).tolist()
        [[[[0, 1], [4, 5]], [[2, 3], [6, 7]]]]
    """
    B, T, width = x.shape
    H, D = n_heads, width // n_heads
    return x.view(B, T, H, D).transpose(1, 2)  # (B, H, T, D)


def merge_heads(heads: Tensor) -> Tensor:
    """`(B, H, T, D)` as `(B, T, H * D)`: the opposite of `split_heads`."""
    B, H, T, D = heads.shape
    return heads.transpose(1, 2).reshape(B, T, H * D)  # (B, T, H * D)


# --8<-- [end:heads]


# --8<-- [start:matrix]
_HOOKS = ("forward", "forward_pre", "backward", "backward_pre")


def _wraps(weight: object) -> bool:
    """Whether a tensor is made of others: of int8 and scales, for example."""
    return hasattr(weight, "__tensor_flatten__")


def is_matrix(
    linear: nn.Module, *, biased: bool = False
) -> TypeGuard[nn.Linear]:
    """Whether calling `linear` only multiplies by its weight."""
    return (
        type(linear) is nn.Linear
        and not _wraps(linear.weight)
        and (biased or linear.bias is None)
        and "forward" not in vars(linear)
        and not any(getattr(linear, f"_{when}_hooks") for when in _HOOKS)
    )


def matrix(
    name: str, linear: nn.Module, *, biased: bool = False, other: str = ""
) -> Tensor:
    """The weight of a module that is used without calling the module.

    `other` is what the caller can do instead, for the message.
    """
    if not is_matrix(linear, biased=biased):
        kind = type(linear)  # adapters of PEFT are called Linear, too
        called = f"{kind.__module__}.{kind.__qualname__}"
        if kind is nn.Linear and _wraps(linear.weight):
            called += f" of {type(linear.weight).__name__}"
        raise TypeError(
            f"{name} is {called}, not a plain "
            f"nn.Linear without a hook{'' if biased else ' or a bias'}: "
            "absorption reads only its weight, and the rest would be lost. "
            f"Merge an adapter into the weight first{other}"
        )
    return linear.weight


# --8<-- [end:matrix]


# --8<-- [start:norm]
class RMSNorm(nn.RMSNorm):
    """Computes in the dtype of its weight: under autocast the two differ."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


# --8<-- [end:norm]
