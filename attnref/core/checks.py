"""Checks of sizes and inputs that all layers share."""

# --8<-- [start:imports]
import operator

# --8<-- [end:imports]


# --8<-- [start:layer]
def check_layer(
    d_model: int,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int | None,
    dropout: float,
    attend: object = None,
) -> int:
    """Check the options of a layer and return the width of a head.

    Examples:
        >>> sizes = dict(n_heads=8, n_kv_heads=2, head_dim=None, dropout=0.0)
        >>> check_layer(d_model=64, **sizes)
        8
        >>> check_layer(d_model=60, **sizes)
        Traceback (most recent call last):
        ValueError: n_heads=8 does not divide d_model=60; pass head_dim
    """
    check_sizes(d_model=d_model, n_heads=n_heads, n_kv_heads=n_kv_heads)
    if n_heads % n_kv_heads:
        raise ValueError(f"{n_kv_heads=} does not divide {n_heads=}")
    if head_dim is None:
        if d_model % n_heads:
            raise ValueError(
                f"{n_heads=} does not divide {d_model=}; pass head_dim"
            )
        head_dim = d_model // n_heads
    check_sizes(head_dim=head_dim)
    if not 0 <= dropout < 1:
        raise ValueError(f"{dropout=} must be at least 0 and below 1")
    if not (attend is None or callable(attend)):
        raise TypeError(f"{attend=} is not callable; pass sdpa, fused or flash")
    return head_dim


def check_sizes(**sizes: int) -> None:
    """Each must be an integer of at least 1, an int or numpy's `int64`."""
    _check_from(1, sizes)


def check_counts(**counts: int) -> None:
    """Each must be an integer of at least 0."""
    _check_from(0, counts)


def _check_from(least: int, numbers: dict[str, int]) -> None:
    for name, number in numbers.items():
        if whole_number(name, number) < least:
            raise ValueError(f"{name}={number} must be at least {least}")


def whole_number(name: str, number: int) -> int:
    """The number as an int; True and False are refused."""
    kind = type(number)
    # Of numpy's integers only int64: products of narrower ones overflow.
    if kind is bool or not (
        isinstance(number, int)
        or (kind.__module__, kind.__name__) == ("numpy", "int64")
    ):
        raise TypeError(f"{name} is {kind.__name__}; pass an int")
    return operator.index(number)


def check_input(name: str, shape: tuple[int, ...], width: int) -> None:
    """The shape of an input must be `(B, T, width)`."""
    if len(shape) != 3:
        raise ValueError(
            f"{name} has shape {tuple(shape)}; it needs 3 axes: "
            "batch, positions, width"
        )
    if shape[2] != width:
        raise ValueError(
            f"{name} has width {shape[2]}, the layer was built for {width}"
        )


# --8<-- [end:layer]
