"""Splitting a projection into heads, normalising heads, and merging them."""

# --8<-- [start:imports]
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


# --8<-- [start:norm]
class RMSNorm(nn.RMSNorm):
    """Computes in the dtype of its weight: under autocast the two differ."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


# --8<-- [end:norm]
