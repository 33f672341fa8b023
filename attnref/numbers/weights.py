"""Bytes of a model's weights: named matrices, each in its format."""

# --8<-- [start:weights]
from collections.abc import Iterable
from typing import NamedTuple


class Format(NamedTuple):
    """A format of matrices: bits of an element, and scales of its blocks.

    A block has `rows` x `columns` elements, 0 meaning all, and `scale` bits
    beside them. Each matrix has `extra` bytes, and some `per_column`.

    Examples:
        >>> Format(8, 128, 128, scale=32).bytes_for(576, 7168)
        4129888
    """

    bits: int = 16
    rows: int = 1
    columns: int = 0
    scale: int = 0
    extra: int = 0
    per_column: int = 0

    def bytes_for(self, rows: int, columns: int) -> int:
        """Bytes of a matrix; a block at an edge has a scale of its own."""
        down = -(-rows // (self.rows or rows))
        across = -(-columns // (self.columns or columns))
        bits = rows * columns * self.bits + down * across * self.scale
        return -(-bits // 8) + self.extra + columns * self.per_column


class Matrix(NamedTuple):
    """`copies` matrices of one shape, such as those of a layer's experts.

    Devices split them into `parts`, or, if that is 0, as they like; each has
    all of what has one part.
    """

    name: str
    rows: int
    columns: int
    copies: int = 1
    parts: int = 0
    attention: bool = False

    @property
    def params(self) -> int:
        return self.copies * self.rows * self.columns


class Share(NamedTuple):
    """The bytes of all matrices that are split into as many parts."""

    size: int
    parts: int
    attention: bool


def device_bytes(
    shares: Iterable[Share], ranks: int = 1, dp_attention: bool = False
) -> int:
    """Bytes of the weights on each device.

    With `dp_attention` each device has all weights of attention.

    Examples:
        >>> device_bytes([Share(1200, 4, True), Share(7, 1, False)], ranks=8)
        307
    """
    total = 0
    for size, parts, attention in shares:
        if dp_attention and attention:
            parts = 1
        most = min(ranks, parts or ranks)
        # The device with most parts has this many of them.
        total += -(-size * -(-(parts or ranks) // most) // (parts or ranks))
    return total


# --8<-- [end:weights]
