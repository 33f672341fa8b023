"""What attention on several devices sends, and how long its ranks wait."""

from bisect import bisect_right
from fractions import Fraction
from math import ceil, lcm
from typing import NamedTuple

from attnref.core.checks import check_sizes
from attnref.numbers.shapes import Full, Group, Mla, Recurrent


class Sent(NamedTuple):
    """Bytes that a rank sends in one layer."""

    forward: int
    backward: int


def per_rank(tokens: int, ranks: int) -> int:
    """Tokens of one rank in two equal chunks, pads included."""
    check_sizes(tokens=tokens, ranks=ranks)
    return 2 * ceil(Fraction(tokens, 2 * ranks))


def ring_sent(
    *,
    ranks: int,
    tokens: int,
    kv_width: int,
    batch: int = 1,
    size: int = 2,
) -> Sent:
    """A ring passes keys, values and positions on; backward gradients, too.

    `kv_width` is what a token stores: `n_kv_heads * (D + Dv)` elements of
    `size` bytes. Gradients have at least 4, and go one step further: home.

    Examples:
        >>> ring_sent(ranks=8, tokens=131_072, kv_width=8 * (128 + 128))
        Sent(forward=470680392, backward=1544421376)
    """
    rows = batch * per_rank(tokens, ranks)
    keys = (ranks - 1) * rows * (kv_width * size + 8)
    home = ranks * rows * kv_width * max(4, size) if ranks > 1 else 0
    return Sent(keys + shapes_sent(ranks), keys + home)


def shapes_sent(ranks: int, tensors: int = 3) -> int:
    """Of each tensor, four axes and the size of an element."""
    return (ranks - 1) * tensors * 5 * 8


def ulysses_sent(
    *,
    ranks: int,
    tokens: int,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    v_head_dim: int | None = None,
    batch: int = 1,
    size: int = 2,
) -> Sent:
    """Two all-to-alls: of queries, keys and values, and of outputs.

    Fewer key heads than ranks are sent several times.

    Examples:
        >>> heads = dict(n_heads=32, n_kv_heads=8, head_dim=128)
        >>> ulysses_sent(ranks=8, tokens=131_072, **heads)
        Sent(forward=294519624, backward=293601280)
    """
    rows = batch * per_rank(tokens, ranks)
    copied = lcm(n_kv_heads, ranks)
    width = head_dim + (head_dim if v_head_dim is None else v_head_dim)
    heads = rows * (n_heads + copied) * width * size
    away = (ranks - 1) * heads // ranks
    return Sent(away + (ranks - 1) * 8 * rows + shapes_sent(ranks), away)


def sum_sent(*, ranks: int, elements: int, size: int = 2) -> int:
    """An all-reduce: each rank sums one part, and the parts are gathered."""
    check_sizes(ranks=ranks, elements=elements)
    return 2 * (ranks - 1) * ceil(Fraction(elements, ranks)) * size


def tensor_parallel_sent(
    *,
    ranks: int,
    tokens: int,
    d_model: int,
    latent: int = 0,
    batch: int = 1,
    size: int = 2,
) -> Sent:
    """Heads are split: one sum of outputs, backward one of the input.

    With a `latent` (MLA) of so many elements per token, its gradient, too.

    Examples:
        >>> tensor_parallel_sent(ranks=8, tokens=131_072, d_model=4096)
        Sent(forward=1879048192, backward=1879048192)
    """
    rows = batch * tokens
    whole = sum_sent(ranks=ranks, elements=rows * d_model, size=size)
    if not latent:
        return Sent(whole, whole)
    more = sum_sent(ranks=ranks, elements=rows * latent, size=size)
    return Sent(whole, whole + more)


def relay_sent(
    *,
    ranks: int,
    heads: int,
    key_dim: int,
    value_dim: int,
    batch: int = 1,
    size: int = 4,
    scan: bool = False,
) -> Sent:
    """A recurrent layer passes its state on, however many tokens there are.

    With `scan`, pairs of a state and of what becomes of an earlier one, in
    all `1 + log2(ranks)` steps; at the ends of the line a rank sends less.

    Examples:
        >>> sizes = dict(heads=32, key_dim=128, value_dim=128)
        >>> relay_sent(ranks=8, **sizes)
        Sent(forward=2097712, backward=2097152)
    """
    check_sizes(ranks=ranks, heads=heads)
    rows = batch * heads * key_dim * size
    pairs = ((ranks - 1).bit_length() + 1) * rows * (key_dim + value_dim)
    state = (pairs if scan else rows * value_dim) if ranks > 1 else 0
    return Sent(state + shapes_sent(ranks, 2), state)


def decode_sent(
    *,
    ranks: int,
    n_heads: int,
    v_head_dim: int,
    batch: int = 1,
    size: int = 4,
    own_heads: bool = False,
) -> int:
    """Bytes per step if tokens are split: outputs and log-sum-exps.

    With `own_heads`, each rank gets only the heads that it goes on with.

    Examples:
        >>> decode_sent(ranks=8, n_heads=32, v_head_dim=128)
        115584
        >>> decode_sent(ranks=8, n_heads=32, v_head_dim=128, own_heads=True)
        14448
    """
    check_sizes(ranks=ranks, n_heads=n_heads, v_head_dim=v_head_dim)
    heads = ceil(Fraction(n_heads, ranks)) if own_heads else n_heads
    return (ranks - 1) * batch * heads * (v_head_dim + 1) * size


def group_sent(
    group: Group, *, ranks: int, tokens: int, batch: int = 1
) -> dict[str, int]:
    """Bytes of a forward pass in bfloat16, by each way that fits the layers.

    Examples:
        >>> from attnref.released.specs import find_model
        >>> group_sent(find_model("llama-3.1-8b").groups[0], ranks=8, tokens=16)
        {'ring': 58296, 'ulysses': 36792}
    """
    text = {"ranks": ranks, "tokens": tokens, "batch": batch}
    if isinstance(group, Recurrent) and group.state_heads:
        state = relay_sent(
            ranks=ranks,
            heads=group.state_heads,
            key_dim=group.key_dim,
            value_dim=group.value_dim,
            batch=batch,
        )
        return {"relay": state.forward}
    if isinstance(group, Mla):
        width = group.kv_lora_rank + group.qk_rope_head_dim
        return {"ring": ring_sent(kv_width=width, **text).forward}
    if not isinstance(group, Full):
        return {}
    K, D, Dv = group.kv_heads, group.head_dim, group.v_head_dim
    ways = {"ring": ring_sent(kv_width=K * (D + Dv), **text).forward}
    if group.q_heads and group.q_heads % ranks == 0:
        heads = {"n_heads": group.q_heads, "n_kv_heads": K, "head_dim": D}
        ways["ulysses"] = ulysses_sent(v_head_dim=Dv, **heads, **text).forward
    return ways


def placed(tokens: int, ranks: int, how: str = "zigzag") -> list[list[int]]:
    """The positions that each rank holds."""
    size = per_rank(tokens, ranks) // 2
    chunks = [
        [*range(start, min(start + size, tokens))]
        for start in range(0, 2 * ranks * size, size)
    ]
    if how == "striped":
        return [[*range(r, tokens, ranks)] for r in range(ranks)]
    if how == "zigzag":
        return [chunks[r] + chunks[-1 - r] for r in range(ranks)]
    if how == "contiguous":
        return [chunks[2 * r] + chunks[2 * r + 1] for r in range(ranks)]
    raise ValueError(f"{how=} is not zigzag, contiguous or striped")


def pairs(tokens: int, ranks: int, how: str = "zigzag") -> list[list[int]]:
    """Pairs of a query and a key that it sees, by step and rank.

    Examples:
        >>> pairs(16, 4, "contiguous")[0], pairs(16, 4)[0]
        ([10, 10, 10, 10], [10, 10, 10, 10])
        >>> pairs(16, 4, "contiguous")[3], pairs(16, 4)[3]
        ([0, 0, 0, 16], [8, 8, 8, 8])
    """
    held = placed(tokens, ranks, how)
    return [
        [
            sum(bisect_right(held[r - step], i) for i in held[r])
            for r in range(ranks)
        ]
        for step in range(ranks)
    ]


def waiting(tokens: int, ranks: int, how: str = "zigzag") -> Fraction:
    """How much longer a ring takes than if no rank waited for another.

    Examples:
        >>> [float(waiting(512, n, "contiguous")) for n in (2, 4, 8)]
        [1.4990253411306043, 1.7485380116959064, 1.8732943469785575]
    """
    table = pairs(tokens, ranks, how)
    return Fraction(ranks * sum(map(max, table)), sum(map(sum, table)))
