"""Boolean masks: True = may attend; masks are combined with `&`."""

# --8<-- [start:imports]
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnref.core.checks import check_counts, check_sizes

# --8<-- [end:imports]


# --8<-- [start:causal]
def causal_mask(
    T: int, S: int | None = None, *, device: torch.device | str | None = None
) -> Tensor:
    """The causal mask `(T, S)`, bottom-right aligned: it hides later keys.

    The `T` queries are the last `T` of the `S` positions: row `i` may attend
    to key `j` where `j <= i + S - T`, and the last row to every key. With
    `T = S` (the default) this is the lower triangle.

    Examples:
        >>> causal_mask(2, 5).int()
        tensor([[1, 1, 1, 1, 0],
                [1, 1, 1, 1, 1]], dtype=torch.int32)
    """
    S = T if S is None else S
    if T < 0 or S < 0:
        raise ValueError(f"{T=} and {S=} must not be negative")
    full = torch.ones(T, S, dtype=torch.bool, device=device)  # (T, S)
    return full.tril(S - T)  # (T, S)


# --8<-- [end:causal]


# --8<-- [start:padding]
def padding_mask(valid: Tensor) -> Tensor:
    """The padding mask `(B, 1, 1, S)` from `valid` `(B, S)`: it hides pads.

    In `valid`, True = a real token; pads may stand on either side. The axes
    of size 1 broadcast over all heads and all queries.

    Examples:
        >>> valid = torch.tensor([[True, True, True], [True, False, False]])
        >>> padding_mask(valid).shape
        torch.Size([2, 1, 1, 3])
    """
    _check_valid("valid", valid)
    return valid[:, None, None, :]  # (B, 1, 1, S)


# --8<-- [end:padding]


# --8<-- [start:cross]
def cross_mask(valid: Tensor, context_valid: Tensor) -> Tensor:
    """The mask `(B, 1, T, S)` of cross-attention: real queries see real keys.

    `valid` `(B, T)` marks the real queries and `context_valid` `(B, S)` the
    real keys of the other sequence, True = real. A pad as a query sees no
    key, so that its output is zero.

    Examples:
        >>> valid = torch.tensor([[True, True, False]])
        >>> context_valid = torch.tensor([[True, False]])
        >>> cross_mask(valid, context_valid)[0, 0].int()
        tensor([[1, 0],
                [1, 0],
                [0, 0]], dtype=torch.int32)
    """
    _check_valid("valid", valid)
    _check_valid("context_valid", context_valid)
    if len(valid) != len(context_valid):
        raise ValueError(
            f"valid has B={len(valid)}, context_valid B={len(context_valid)}"
        )
    if valid.device != context_valid.device:
        raise ValueError(
            f"valid is on {valid.device}, context_valid on "
            f"{context_valid.device}"
        )
    queries = valid[:, None, :, None]
    keys = context_valid[:, None, None, :]  # (B, 1, 1, S)
    return queries & keys  # (B, 1, T, S)


# --8<-- [end:cross]


# --8<-- [start:hf]
def padding_mask_from_hf(attention_mask: Tensor) -> Tensor:
    """The padding mask from a Hugging Face tokenizer's `attention_mask`.

    `(B, S)` of 0 and 1, 1 = real, becomes `(B, 1, 1, S)` bool, True = real.
    The values are checked, which on an accelerator waits for the device.

    Examples:
        >>> padding_mask_from_hf(torch.tensor([[1, 1, 0]]))
        tensor([[[[ True,  True, False]]]])
    """
    if attention_mask.dim() != 2:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}; "
            "a tokenizer gives (B, S)"
        )
    if attention_mask.dtype == torch.bool:
        return padding_mask(attention_mask)  # (B, 1, 1, S)
    real = attention_mask == 1
    if not (real | (attention_mask == 0)).all():
        raise ValueError(
            "attention_mask has values other than 0 and 1; an additive "
            "mask (0 = may attend) becomes bool by `mask == 0`"
        )
    return padding_mask(real)  # (B, 1, 1, S)


# --8<-- [end:hf]


# --8<-- [start:rules]
@dataclass(frozen=True)
class Rule:
    """Which keys a query may see, as a condition on two positions.

    `rule(i, j)` is True where the query of token `i` may see the key of token
    `j`; `i` and `j` broadcast. They are numbers of tokens: these count what a
    row has received, from 0 and pads included; `j = -1` is an empty slot,
    which is never seen.

    The position of a token is its number, unless a layer is given
    `positions`: then `at` holds the positions of the queries and of the keys,
    and pads count only as these say. Numbers still decide which of two tokens
    is the later one: if two share a position, as a pad and the token before it
    may, the first does not see the second.

    A layer has a rule, and a cache states by a rule which keys it keeps.
    `one & other` shows what both show.
    """

    def __call__(
        self,
        i: Tensor,
        j: Tensor,
        row: Tensor | None = None,
        at: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        seen = j >= 0
        for rule in self.parts:
            if at is None or rule.by_number:
                seen = seen & rule.shows_in(row, i, j)
            else:
                ahead = (j > i) & (at[1] <= at[0])  # later, but not further on
                seen = seen & ~ahead & rule.shows_in(row, *at)
        return seen

    def shows(self, i: Tensor, j: Tensor) -> Tensor | bool:
        """The condition for keys that exist; every subclass defines it."""
        raise NotImplementedError

    def shows_in(
        self, row: Tensor | None, i: Tensor, j: Tensor
    ) -> Tensor | bool:
        """`shows` in one row of the batch, or in all: `(B, 1, T, S)`.

        Only a rule that differs between rows defines it, instead of `shows`.
        """
        return self.shows(i, j)

    def __and__(self, other: "Rule") -> "Rule":
        if not hasattr(other, "parts"):
            return NotImplemented
        return All((*self.parts, *other.parts))

    @property
    def parts(self) -> "tuple[Rule, ...]":
        """The rules that `&` has joined."""
        return (self,)

    @property
    def by_number(self) -> bool:
        """Whether it reads only the numbers of tokens, never positions."""
        return False

    @property
    def documents(self) -> Tensor | None:
        """The number of each token's document, if it hides only the others."""
        return None

    @property
    def reach(self) -> float:
        """The most tokens, up to its own, that a query may see."""
        return torch.inf

    def covers(self, other: "Rule") -> bool:
        """Whether a cache with this rule keeps every key that `other` shows."""
        return any(self == part for part in other.parts)

    def hides_nothing(self, T: int, S: int) -> bool:
        """Whether the last `T` of `S` tokens see all `S`: no mask needed."""
        return False

    def check(self, B: int, S: int, device: torch.device) -> None:
        """Refuse `B` rows of `S` tokens, if the rule was made for others."""


@dataclass(frozen=True)
class All(Rule):
    """Shows what all of several rules show; `&` makes it."""

    rules: tuple[Rule, ...]

    @property
    def parts(self) -> tuple[Rule, ...]:
        return self.rules

    @property
    def by_number(self) -> bool:
        return all(rule.by_number for rule in self.rules)

    @property
    def reach(self) -> float:
        return min(rule.reach for rule in self.rules)

    def covers(self, other: Rule) -> bool:
        return all(rule.covers(other) for rule in self.rules)

    def hides_nothing(self, T: int, S: int) -> bool:
        return all(rule.hides_nothing(T, S) for rule in self.rules)

    def check(self, B: int, S: int, device: torch.device) -> None:
        for rule in self.rules:
            rule.check(B, S, device)


@dataclass(frozen=True)
class Everything(Rule):
    """Every query may see every key.

    Examples:
        >>> i, j = torch.tensor([[3], [4]]), torch.tensor([4, -1, 2, 3])
        >>> Everything()(i, j).int()
        tensor([1, 0, 1, 1], dtype=torch.int32)
    """

    def shows(self, i: Tensor, j: Tensor) -> bool:
        return True

    @property
    def by_number(self) -> bool:
        return True

    def covers(self, other: Rule) -> bool:
        return True

    def hides_nothing(self, T: int, S: int) -> bool:
        return True


@dataclass(frozen=True)
class Causal(Rule):
    """A query may see its own position and those before it.

    Examples:
        >>> i, j = torch.tensor([[3], [4]]), torch.tensor([4, -1, 2, 3])
        >>> Causal()(i, j).int()
        tensor([[0, 0, 1, 1],
                [1, 0, 1, 1]], dtype=torch.int32)
    """

    def shows(self, i: Tensor, j: Tensor) -> Tensor:
        return j <= i

    @property
    def by_number(self) -> bool:
        return type(self) is Causal  # a subclass may measure a distance

    def hides_nothing(self, T: int, S: int) -> bool:
        # A single query is the last token. A subclass may hide more.
        return type(self) is Causal and T <= 1


def rule_of(causal: bool | Rule) -> Rule:
    """The rule that `causal` stands for: True, False, or a rule itself.

    Any object with the methods of `Rule` is accepted.
    """
    if isinstance(causal, bool):
        return Causal() if causal else Everything()
    is_class = isinstance(causal, type)
    if is_class or not hasattr(causal, "hides_nothing"):
        kind = causal if is_class else type(causal).__name__
        raise TypeError(f"causal is {kind}; pass True, False or a Rule")
    return causal


# --8<-- [end:rules]


# --8<-- [start:windows]
@dataclass(frozen=True)
class Window(Rule):
    """A query sees itself and the `size - 1` tokens before it.

    With `first=n` it also sees the first `n` tokens, however far back.

    Examples:
        >>> i, j = torch.tensor([[3], [4]]), torch.tensor([4, -1, 2, 3])
        >>> Window(2)(i, j).int()
        tensor([[0, 0, 1, 1],
                [1, 0, 0, 1]], dtype=torch.int32)
    """

    size: int
    first: int = 0

    def __post_init__(self) -> None:
        check_sizes(size=self.size)
        check_counts(first=self.first)

    def shows(self, i: Tensor, j: Tensor) -> Tensor:
        near = j > i - self.size
        if self.first:
            near = near | (j < self.first)
        return (j <= i) & near

    @property
    def reach(self) -> float:
        return torch.inf if self.first else self.size

    def covers(self, other: Rule) -> bool:
        if type(self) is not Window:  # a subclass may show less
            return super().covers(other)
        return other.reach <= self.size or any(
            getattr(part, "first", torch.inf) <= self.first
            and getattr(part, "size", torch.inf) <= self.size
            for part in other.parts
        )

    def hides_nothing(self, T: int, S: int) -> bool:
        return type(self) is Window and T <= 1 and self.size >= S


@dataclass(frozen=True)
class Chunk(Rule):
    """A query sees the past of its own chunk of `size` tokens, and no other.

    Examples:
        >>> at = torch.arange(4)
        >>> Chunk(2)(at[:, None], at).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 0, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)
    """

    size: int

    def __post_init__(self) -> None:
        check_sizes(size=self.size)

    def shows(self, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (i // self.size == j // self.size)

    @property
    def reach(self) -> float:
        return self.size

    def hides_nothing(self, T: int, S: int) -> bool:
        return type(self) is Chunk and T <= 1 and self.size >= S


# --8<-- [end:windows]


# --8<-- [start:prefix]
@dataclass(frozen=True)
class Prefix(Rule):
    """Every query sees the first `length` tokens; beyond, it is causal.

    `length` is a number, or a tensor `(B,)` with one for each row. All of the
    prefix must be read in one chunk: an earlier chunk does not see later keys.

    Examples:
        >>> at = torch.arange(4)
        >>> Prefix(2)(at[:, None], at).int()
        tensor([[1, 1, 0, 0],
                [1, 1, 0, 0],
                [1, 1, 1, 0],
                [1, 1, 1, 1]], dtype=torch.int32)
    """

    length: int | Tensor

    def __eq__(self, other: object) -> bool:
        return self is other  # tensors are not compared

    __hash__ = object.__hash__

    def __post_init__(self) -> None:
        if not isinstance(self.length, Tensor):
            check_counts(length=self.length)
        else:
            _check_whole("length", self.length, dims=(1,))

    def shows_in(self, row: Tensor | None, i: Tensor, j: Tensor) -> Tensor:
        length = self.length
        if isinstance(length, Tensor):
            length = length[_rows(length) if row is None else row]
        return (j < length) | (j <= i)

    def covers(self, other: Rule) -> bool:
        whole = type(self) is Prefix and Causal().covers(other)
        return whole or super().covers(other)

    def hides_nothing(self, T: int, S: int) -> bool:
        return type(self) is Prefix and T <= 1

    def check(self, B: int, S: int, device: torch.device) -> None:
        if isinstance(self.length, Tensor):
            _check_made_for("length", self.length, (B, S), device)


# --8<-- [end:prefix]


# --8<-- [start:documents]
@dataclass(frozen=True)
class Documents(Rule):
    """A query sees the keys whose document has the same number as its own.

    `ids` has the number of each token's document, `(B, S)`, or `(S,)` if it
    is the same in all rows. It must cover all tokens so far, those in a cache
    and pads included, in the order in which they came: their positions do not
    matter here, and may start again in each document.

    Examples:
        >>> rule = Causal() & Documents(torch.tensor([0, 0, 1, 1]))
        >>> rule(torch.arange(4)[:, None], torch.arange(4)).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 0, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)
    """

    ids: Tensor

    def __eq__(self, other: object) -> bool:
        return self is other  # tensors are not compared

    __hash__ = object.__hash__

    def __post_init__(self) -> None:
        _check_whole("ids", self.ids, dims=(1, 2))

    def shows_in(self, row: Tensor | None, i: Tensor, j: Tensor) -> Tensor:
        ids = self.ids
        if ids.dim() == 1:
            return ids[i] == ids[j]
        row = _rows(ids) if row is None else row
        return ids[row, i] == ids[row, j]

    @property
    def by_number(self) -> bool:
        return True

    @property
    def documents(self) -> Tensor | None:
        return self.ids if type(self) is Documents else None

    def check(self, B: int, S: int, device: torch.device) -> None:
        _check_made_for("ids", self.ids, (B, S), device)


# --8<-- [end:documents]


# --8<-- [start:fits]
def _rows(x: Tensor) -> Tensor:
    return torch.arange(len(x), device=x.device)[:, None, None, None]


def _check_whole(name: str, x: Tensor, dims: tuple[int, ...]) -> None:
    if not isinstance(x, Tensor) or x.dtype not in (torch.int32, torch.int64):
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"{name} is {kind}; pass a tensor of int32 or int64")
    if x.dim() not in dims:
        axes = {(1,): "1 axis", (1, 2): "1 or 2 axes"}[dims]
        raise ValueError(f"{name} has shape {tuple(x.shape)}; it needs {axes}")


def _check_made_for(
    name: str, x: Tensor, full: tuple[int, int], device: torch.device
) -> None:
    """The rows must match; there may be more tokens, which are to come."""
    B, S = full
    by_row, by_token = name == "length" or x.dim() == 2, name == "ids"
    if (by_row and len(x) != B) or (by_token and x.shape[-1] < S):
        raise ValueError(
            f"{name} of the rule has shape {tuple(x.shape)} for {B} rows of "
            f"{S} tokens, cached ones included"
        )
    if x.device != device:
        raise ValueError(f"{name} of the rule is on {x.device}, q on {device}")


# --8<-- [end:fits]


# --8<-- [start:lazy]
@dataclass(frozen=True, eq=False)
class RuleMask:
    """The mask of a rule; parts of it are built when needed.

    The `T` queries are the tokens after the first `past`; `positions` holds
    the numbers of the `S` keys, -1 = an empty slot, and None means 0 to S - 1.
    `token_positions` `(B, past + T)` or `(1, past + T)` holds the positions
    of all tokens so far, in the order of their numbers, where a layer was
    given positions. Where rows have received different numbers of tokens,
    `lengths` `(B,)` holds these numbers, `past` is the largest of them, and
    `positions`, if given, is `(B, S)`. The mask is `(T, S)`, or
    `(B, 1, T, S)` if anything differs between rows. `mask`, if there is one,
    hides more: it is bool and broadcasts to `(B, H, T, S)`. With `shows_all`
    nothing else hides a key, and the positions are there for a bias.

    Examples:
        >>> mask = RuleMask(Causal(), T=2, S=5, past=3)
        >>> mask.part(slice(0, 1), slice(2, 5)).int()
        tensor([[1, 1, 0]], dtype=torch.int32)
        >>> torch.equal(mask.dense(), causal_mask(2, 5))
        True
    """

    rule: Rule
    T: int
    S: int
    past: int
    positions: Tensor | None = None
    mask: Tensor | None = None
    device: torch.device | str | None = None
    token_positions: Tensor | None = None
    lengths: Tensor | None = None
    shows_all: bool = False

    def part(self, rows: slice, columns: slice) -> Tensor:
        """Which of some queries see which of some keys: True = may attend."""
        i, j = self.numbers(rows, columns)
        shown = self._shown(i, j)  # may look at j alone
        shown = shown.expand(*shown.shape[:-2], i.shape[-2], j.shape[-1])
        mask = part_of(self.mask, rows, columns)
        return shown if mask is None else mask & shown

    def numbers(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        """The numbers of some queries `(T, 1)` and of some keys `(S,)`.

        Where the rows of the batch differ: `(B, 1, T, 1)` and `(B, 1, 1, S)`.
        """
        new = torch.arange(self.T, device=self.device)[rows, None]
        i = new + self.past
        if self.lengths is not None:
            i = new + self.lengths[:, None, None, None]
        j = self.positions
        if j is None:
            j = torch.arange(self.S, device=self.device)
        j = j[..., columns]
        return i, j[:, None, None] if j.dim() == 2 else j

    def number(
        self, row: Tensor, i: Tensor, j: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same for query `i` and key `j` in one row."""
        query = i + (self.past if self.lengths is None else self.lengths[row])
        keys = self.positions
        if keys is None:
            return query, j
        return query, keys[j] if keys.dim() == 1 else keys[row, j]

    def places(
        self, i: Tensor, j: Tensor, row: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The positions of the tokens with these numbers."""
        return self._positions_of(i, j, row) or (i, j)

    def _shown(self, i: Tensor, j: Tensor, row: Tensor | None = None) -> Tensor:
        """What the rule says of tokens; none that a row lacks is seen."""
        seen = self.rule(i, j, row, self._positions_of(i, j, row))
        if self.lengths is None:
            return seen
        end = self.lengths + self.T
        end = end[:, None, None, None] if row is None else end[row]
        return seen & (j < end)

    def _positions_of(
        self, i: Tensor, j: Tensor, row: Tensor | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """The positions of tokens `i` and `j`, if not their numbers."""
        positions = self.token_positions
        if positions is None:
            return None
        if len(positions) == 1:
            return positions[0, i], positions[0, j]
        row = _rows(positions) if row is None else row
        return positions[row, i], positions[row, j]

    def dense(self) -> Tensor:
        """The whole mask as one tensor."""
        return self.part(slice(None), slice(None))

    def is_triangle(self) -> bool:
        """Whether it is `causal_mask(T)`, known without building it."""
        restrictions = self.positions, self.mask, self.lengths
        unrestricted = all(x is None for x in restrictions)
        square = self.past == 0 and self.T == self.S
        return unrestricted and square and self.rule == Causal()


@dataclass(frozen=True, eq=False)
class CheckedMask(RuleMask):
    """A `RuleMask` that a layer has checked for heads of the sizes `full`.

    `full` is `(B, H, T, S)`. A core does not check it again for these sizes.
    """

    full: tuple[int, int, int, int] | None = None


Mask = Tensor | RuleMask | None


def part_of(mask: Mask, rows: slice, columns: slice) -> Tensor | None:
    """The part of a mask for some queries and some keys."""
    mask = hiding(mask)
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        return mask.part(rows, columns)
    return cut(mask, rows, columns)


def hiding(mask: Mask) -> Mask:
    """The part of a mask that may hide keys; the rest says where these are."""
    if mask is None or isinstance(mask, Tensor) or not mask.shows_all:
        return mask
    return mask.mask


def cut(x: Tensor, rows: slice, columns: slice) -> Tensor:
    """The same for a tensor, a mask or a bias."""
    # An axis of size 1 broadcasts: each part of it is the whole.
    rows = rows if x.shape[-2] > 1 else slice(None)
    columns = columns if x.shape[-1] > 1 else slice(None)
    return x[..., rows, columns]


def dense(mask: Mask) -> Tensor | None:
    """Any mask as a tensor, for code that is not written for rules.

    Examples:
        >>> dense(RuleMask(Causal(), T=1, S=3, past=2))
        tensor([[True, True, True]])
    """
    mask = hiding(mask)
    return mask if mask is None or isinstance(mask, Tensor) else mask.dense()


# --8<-- [end:lazy]


# --8<-- [start:mod]
def mask_mod(
    mask: Tensor | RuleMask | Rule,
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """A mask or a rule as the `mask_mod` of PyTorch's `flex_attention`.

    The function takes the indices of row, head, query and key: tensors without
    axes. For a rule, the indices are the numbers of the tokens.

    Examples:
        >>> seen = mask_mod(Window(2))
        >>> b, h, q_idx, kv_idx = torch.tensor([0, 0, 3, 2])
        >>> seen(b, h, q_idx, kv_idx), seen(b, h, q_idx, kv_idx - 1)
        (tensor(True), tensor(False))
    """
    if isinstance(mask, Tensor):
        full_mask = mask[(None,) * (4 - mask.dim()) + (...,)]

        def look_up(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            # An axis of size 1 broadcasts.
            indices = zip((b, h, i, j), full_mask.shape, strict=True)
            return full_mask[tuple(x if n > 1 else x * 0 for x, n in indices)]

        return look_up
    source: Any = mask
    if not hasattr(source, "past"):  # a rule: the indices are the numbers
        source = RuleMask(source, T=0, S=0, past=0)
    lazy: RuleMask = source
    tensor_mod = None if lazy.mask is None else mask_mod(lazy.mask)

    def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        shown = lazy._shown(*lazy.number(b, i, j), b)
        return shown if tensor_mod is None else shown & tensor_mod(b, h, i, j)

    return sees


# --8<-- [end:mod]


# --8<-- [start:decoder]
@dataclass(frozen=True, eq=False)
class View:
    """What a call sees: `T` new tokens in each of `B` rows, after `past`.

    It is made before the cache changes, and a layer reads nothing else of the
    cache. `mask` is the caller's, with a column for each of the `past + T`
    tokens. `positions`, `(T,)` or `(B, T)`, are those of the new tokens; None
    means that they are counted from `past`. Where rows have read different
    numbers of tokens, `lengths` `(B,)` holds these numbers, and `past` is the
    largest of them.

    Where the cache keeps keys, `keys` holds the number of each that it will
    return, `(S,)` or `(B, S)`, -1 = an empty slot, and None means all tokens
    in order. `kept` is a rule that shows them all to every new token, if one is
    known, and `token_positions` has the positions of all tokens so far, where
    they are not their numbers and something in the layer counts them.
    """

    B: int
    T: int
    past: int
    device: torch.device
    mask: Tensor | None = None
    positions: Tensor | None = None
    lengths: Tensor | None = None
    keys: Tensor | None = None
    kept: Rule | None = None
    token_positions: Tensor | None = None

    def numbers(self) -> Tensor:
        """The columns of the new tokens in `mask`, `(T,)` or `(B, T)`."""
        new = torch.arange(self.T, device=self.device)
        past = self.past if self.lengths is None else self.lengths[:, None]
        return past + new

    def real(self) -> Tensor | None:
        """Which of the new tokens are real, `(B, T)`; None: all of them.

        For layers that read their tokens in order, whatever a query may see:
        they refuse any mask that is not a padding mask.
        """
        if self.mask is None:
            return None
        _check_no_rule(self.mask)
        check_mask(self.mask, (self.B, 1, self.T, self._all), self.device)
        if self.mask.shape[1:] != (1, 1, self._all):
            raise ValueError(
                f"mask has shape {tuple(self.mask.shape)}, and the layer reads "
                f"its tokens in order: give it padding_mask(valid), "
                f"{(self.B, 1, 1, self._all)}, of all tokens so far"
            )
        valid = self.mask[:, 0, 0].expand(self.B, -1)
        return valid.gather(1, self.numbers().expand(self.B, -1))

    def documents(self, causal: bool | Rule) -> Tensor | None:
        """How often a document has begun, at each new token: `(B, T)`.

        For layers that read their tokens in order: 0 is the document of the
        last token before. None, if the rule packs none into a row; a rule that
        hides anything else is refused. A pad does not begin a document; a
        number that comes back after another begins a new one.
        """
        rule, S = rule_of(causal), self._all
        rule.check(self.B, S, self.device)
        packed = [p.documents for p in rule.parts if p.documents is not None]
        others = [part for part in rule.parts if part.documents is None]
        if not others or any(part != Causal() for part in others):
            raise ValueError(
                f"the rule is {rule}, and the layer reads its tokens in order: "
                "pass True, or Causal() & Documents(ids)"
            )
        if not packed:
            return None
        numbers = torch.arange(S, device=self.device).expand(self.B, S)
        if self.mask is not None:
            numbers = numbers.where(self.mask[:, 0, 0].expand(self.B, S), -1)
        last = numbers.cummax(dim=1).values.roll(1, dims=1)  # real one before
        begins = torch.zeros_like(numbers, dtype=torch.bool)
        for ids in packed:
            ids = ids.expand(self.B, -1)[:, :S]
            begins |= ids != ids.gather(1, last.clamp(min=0))
        begins &= (numbers >= 0) & (last >= 0)
        begins[:, :1] = False
        return begins[:, self.past :].cumsum(dim=1)

    def shown(self, causal: bool | Rule, H: int) -> Mask:
        """The mask that a layer with `H` heads applies: see `decoder_mask`."""
        B, T, S, past = self.B, self.T, self._all, self.past
        mask, keys, at = self.mask, self.keys, self.token_positions
        if mask is not None:
            _check_no_rule(mask)
            check_mask(mask, (B, H, T, S), self.device)
            if mask.shape[-1] != S:
                raise ValueError(
                    f"mask has shape {tuple(mask.shape)} for {S} keys: it must "
                    "cover every key, cached ones included"
                )
        rule = rule_of(causal)
        rule.check(B, S, self.device)
        if S == 0:  # there is no token: all slots are empty
            return None
        numbered = at is None and keys is None and self.lengths is None
        if numbered and rule.hides_nothing(T, S):
            return mask
        all_so_far = RuleMask(
            rule, T, S, past, None, mask, self.device, at, self.lengths
        )
        shows_all = False
        if keys is not None:
            if at is not None:
                _check_dropped(all_so_far, keys)
            S = keys.shape[-1]
            if mask is not None and keys.dim() == 1:
                mask = mask[..., keys]  # -1: last column, hidden by the rule
            elif mask is not None:
                mask = mask.expand(B, *mask.shape[-3:-1] or (1,), past + T)
                columns = keys[:, None, None].clamp(min=0)
                mask = mask.gather(-1, columns.expand(*mask.shape[:3], S))
            kept = self.kept
            shows_all = kept is not None and at is None and rule.covers(kept)
        fields = vars(all_so_far) | {"S": S, "positions": keys, "mask": mask}
        fields |= {"shows_all": shows_all, "full": (B, H, T, S)}
        return CheckedMask(**fields)

    @property
    def _all(self) -> int:
        return self.past + self.T


def decoder_mask(
    mask: Tensor | None,
    full: tuple[int, int, int, int],
    *,
    causal: bool | Rule,
    device: torch.device,
    positions: Tensor | None = None,
    token_positions: Tensor | None = None,
    lengths: Tensor | None = None,
    kept: Rule | None = None,
) -> Mask:
    """The mask that a layer applies: the caller's mask and the layer's rule.

    `full` is `(B, H, T, S)`, where `S` counts all tokens so far: those that
    the cache has seen and the `T` new ones. `mask` must have a column for
    each of these `S` tokens, in this order, even if the cache has dropped
    some. A mask of the new tokens alone is refused: if it broadcast over all
    keys, every pad in the cache would be seen.

    `positions` holds the number of each key, -1 = an empty slot; None means
    0 to S - 1. `lengths` and `token_positions` are those of a `RuleMask`, and
    column `j` of `mask` is then token `j` of each row. Where they let the
    rule show a key that the cache has dropped, as pads between tokens do, this
    is refused. `kept` is a rule that shows all of these keys to every query,
    if one is known. The result has one column per key. If the rule hides none
    of the keys 0 to S - 1, it is `mask`; otherwise it is a `RuleMask`, which
    has not built any part yet and which cores do not check again.

    Examples:
        >>> valid = torch.tensor([[False, True, True]])
        >>> full, cpu = (1, 1, 2, 3), torch.device("cpu")
        >>> mask = padding_mask(valid)
        >>> decoder_mask(mask, full, causal=True, device=cpu).dense().int()
        tensor([[[[0, 1, 0],
                  [0, 1, 1]]]], dtype=torch.int32)
    """
    B, H, T, S = full
    view = View(
        B,
        T,
        S - T,
        device,
        mask,
        lengths=lengths,
        keys=positions,
        kept=kept,
        token_positions=token_positions,
    )
    return view.shown(causal, H)


def _check_no_rule(mask: object) -> None:
    if hasattr(mask, "rule"):
        raise TypeError("mask is RuleMask; give a layer a rule as `causal`")


def _check_dropped(lazy: RuleMask, keys: Tensor) -> None:
    """Refuse a cache that has dropped a key which some query may see."""
    if keys.device.type == "meta":
        return
    S, keys = lazy.S, keys if keys.dim() == 2 else keys[None]
    dropped = torch.ones(len(keys), S + 1, dtype=torch.bool, device=keys.device)
    dropped.scatter_(1, keys.where(keys >= 0, S), False)
    if (lazy.dense() & dropped[:, None, None, :S]).any():
        raise ValueError(
            f"the rule is {lazy.rule}, and at the positions given it shows "
            "a key that the cache has dropped: pads stand between the tokens. "
            "Pass a larger cache, or pad on the left"
        )


# --8<-- [end:decoder]


# --8<-- [start:check]
def _check_valid(name: str, valid: Tensor) -> None:
    if valid.dtype != torch.bool:
        raise TypeError(
            f"{name} is {valid.dtype}; pass bool, True = a real token "
            f"(from a tokenizer's 0/1 mask: {name}.bool())"
        )
    if valid.dim() != 2:
        raise ValueError(
            f"{name} has shape {tuple(valid.shape)}; it needs (B, S), one row "
            "per sequence"
        )


# --8<-- [end:check]


# --8<-- [start:refused]
def check_mask(
    mask: Tensor | RuleMask,
    full: tuple[int, int, int, int],
    device: torch.device,
) -> None:
    """Refuse a mask that is not bool or does not broadcast to `full`."""
    if not isinstance(mask, Tensor):
        if not hasattr(mask, "dense"):
            kind = type(mask).__name__
            fix = "pass a bool tensor"
            if hasattr(mask, "hides_nothing"):
                fix = "pass a rule as a layer's `causal`, or in a RuleMask"
            raise TypeError(f"mask is {kind}; {fix}")
        if (full, device) == (getattr(mask, "full", None), mask.device):
            return  # a layer has checked it
        if full[2:] != (mask.T, mask.S):
            raise ValueError(
                f"mask is for {mask.T} queries and {mask.S} keys, "
                f"and not for T={full[2]} and S={full[3]}"
            )
        at, so_far = mask.token_positions, mask.past + mask.T
        if at is not None and at.shape not in ((1, so_far), (full[0], so_far)):
            raise ValueError(
                f"token_positions has shape {tuple(at.shape)}; {full[0]} rows "
                f"of {so_far} tokens need {(full[0], so_far)}"
            )
        mask.rule.check(full[0], mask.past + mask.T, device)
        if mask.mask is not None:
            check_mask(mask.mask, full, device)
        return
    shape = tuple(mask.shape)
    B, H, T, S = full
    if mask.dtype != torch.bool:
        if shape == (B, S):
            fix = "padding_mask_from_hf(mask) if it is a tokenizer's, 1 = real"
        elif mask.is_floating_point():
            fix = "mask == 0 if it is additive, 0 or -inf"
        else:
            fix = "mask.bool() if 1 = may attend"
        raise TypeError(
            f"mask is {mask.dtype}; pass bool, True = may attend: {fix}"
        )
    if mask.device != device:
        raise ValueError(f"mask is on {mask.device}, q on {device}")
    if len(shape) == 3:
        # (B, T, S) or (H, T, S)? Broadcasting would read it as the latter.
        raise ValueError(
            f"mask has shape {shape}: 3 axes can mean (B, T, S) or "
            f"(H, T, S); write mask[:, None] or mask[None]"
        )
    if len(shape) not in (2, 4) or any(
        m != 1 and m != n
        for m, n in zip(shape, full[-len(shape) :], strict=True)
    ):
        hint = ""
        if shape == (B, S):
            hint = f"; padding_mask(valid) gives {(B, 1, 1, S)}"
        raise ValueError(
            f"mask has shape {shape}, which does not broadcast to "
            f"(B, H, T, S) = {full}{hint}"
        )


# --8<-- [end:refused]
