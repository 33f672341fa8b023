"""The KV cache: keys and values of earlier tokens, kept for later ones."""

# --8<-- [start:imports]
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from attnref.core.checks import check_sizes, whole_number
from attnref.core.masks import Everything, Rule, rule_of

# --8<-- [end:imports]


# --8<-- [start:cache]
class Cache(ABC):
    """The base class of all caches: one per layer, for inference only.

    Every cache has `length`, `nbytes`, `reset`, `reorder`, `snapshot` and
    `restore`. `can` says what else it does: `"append"` keys to attend to,
    `"crop"` them, or hold a `"state"` of fixed size, which `update` replaces.
    What a cache cannot do it refuses. Every method acts on the whole batch.

    One that appends holds tensors `(B, K, S, D)`, whose widths may differ: keys
    and values for most variants. Batch size, heads, dtype and device are those
    of the first tensors stored. All rows have the same length, unless `crop`
    was given one for each: `lengths` then holds them, and is None otherwise.

    `length` counts the tokens that were read, in the longest row. A cache
    need not return all of them: `keeps` says which it returns, `positions`
    their numbers, which count what was read, from 0 and pads included.

    A subclass stores its tensors in `buffers`, a tuple: `nbytes`, `reset`
    and, unless it is overridden, `stored` read it, and `reorder` and `restore`
    replace it. `handed` is what a layer leaves there for later layers that read
    its keys, and `rotated` the length of the text for which it has rotated
    these, where RoPE's angles depend on it.
    """

    can: tuple[str, ...] = ("append", "crop")

    keeps: Rule
    """The rule that says which keys the cache keeps.

    `append` returns at least the keys that this rule shows to the new tokens.
    A layer whose rule may show more refuses the cache. Every subclass that
    appends sets it, in the class or on the instance before
    `super().__init__()`.
    """

    def __init__(self) -> None:
        has_rule = hasattr(type(self), "keeps") or "keeps" in vars(self)
        if "append" in self.can and not has_rule:
            raise TypeError(
                f"{type(self).__name__} has no `keeps`: set it to a Rule, in "
                "the class or before super().__init__()"
            )
        self.buffers: tuple[Tensor, ...] = ()
        self.length: int = 0
        self.lengths: Tensor | None = None
        self.handed: object = None
        self.rotated: int = 0
        self._given_positions: Tensor | None = None

    @abstractmethod
    def append(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Store new tokens; returns all tensors kept, each `(B, K, S, D)`."""

    @property
    def state(self) -> tuple[Tensor, ...]:
        """The state after all tokens so far; empty before the first."""
        raise AttributeError(str(self._cannot("state")))

    def update(self, new: int, *state: Tensor) -> None:
        """Replace the state by the one after `new` more tokens."""
        raise self._cannot("state")

    def _cannot(self, ability: str) -> TypeError:
        lacks = {
            "append": "append keys: such a layer needs KVCache(max_len)",
            "crop": "crop: take a snapshot() before the draft and restore() it",
            "state": "hold a state: such a layer needs StateCache()",
        }
        return TypeError(f"{type(self).__name__} cannot {lacks[ability]}")

    def positions(self, new: int, device: torch.device) -> Tensor | None:
        """Numbers of the keys that appending `new` tokens will return.

        `(S,)` in the order of the keys, or `(B, S)` if the rows differ, -1 = an
        empty slot. None, as here, means 0, 1, 2, ... and costs nothing. A layer
        asks before it appends, so that a mask of the wrong shape is refused
        before anything changes.
        """
        return None

    def returns(self, new: int) -> Rule | None:
        """A rule that shows all keys that appending `new` tokens will return.

        It shows each of them to each of these tokens. None, as here, means that
        no such rule is known.
        """
        return None

    def positions_of(self, new: Tensor | None, T: int) -> Tensor | None:
        """Positions of all tokens so far and of `T` new ones: `(B, S)`.

        `new` are the positions of the new tokens, `(1, T)` or `(B, T)`; None
        means their numbers. While all positions are numbers, the result is
        None. A layer asks before it appends, and then stores the result by
        `remember`.
        """
        before, end = self._given_positions, self.length
        example = new if before is None else before
        if example is None:
            return None
        numbers = torch.arange(end + T, device=example.device)[None]
        past = numbers[:, :end] if before is None else before[:, :end]
        at = self.next_positions(T)
        if new is None:
            new = numbers[:, end:] if at is None else at
        rows = max(len(past), len(new))
        if self.lengths is not None:
            rows = len(self.lengths)
        pair = past.expand(rows, -1), new.to(past).expand(rows, -1)
        joined = torch.cat(pair, dim=1)
        return joined if at is None else joined.scatter(1, at, pair[1])

    def next_positions(self, T: int) -> Tensor | None:
        """Numbers of the next `T` tokens, `(B, T)`, if the rows differ."""
        if self.lengths is None:
            return None
        new = torch.arange(T, device=self.lengths.device)
        return self.lengths[:, None] + new

    def remember(self, token_positions: Tensor | None) -> None:
        """Store the positions of all tokens, for later calls of the layer."""
        self._given_positions = token_positions

    def check_room(self, new: int) -> None:
        """Refuse `new` more tokens if they do not fit.

        Here they always do: a cache with a limit overrides this.
        """
        return

    @property
    def stored(self) -> tuple[Tensor, ...]:
        """The tensors kept, as views: writing to them changes the cache.

        The keys stand at `positions(0, ...)`.
        """
        return tuple(buffer[:, :, : self.length] for buffer in self.buffers)

    @property
    def nbytes(self) -> int:
        """Allocated memory of the tensors in bytes, used or not."""
        return sum(buffer.nbytes for buffer in self.buffers)

    def reset(self) -> None:
        """Forget all tokens and release the memory."""
        self.buffers, self.length = (), 0
        self.lengths = self._given_positions = self.handed = None
        self.rotated = 0

    def crop(self, length: int | Tensor) -> None:
        """Roll back: keep only the first `length` tokens of every row.

        `length` `(B,)` has a number for each row, for a batch whose rows accept
        different numbers of draft tokens. The next tokens of a row then follow
        the tokens that it kept.

        A cache that has dropped tokens may keep less afterwards, and then says
        in `keeps`, or refuse to go back that far.
        """
        if "crop" not in self.can:
            raise self._cannot("crop")
        if isinstance(length, Tensor):
            self._crop_rows(length)
            return
        length = whole_number("length", length)
        if not 0 <= length <= self.length:
            raise ValueError(f"crop to {length}, but {self.length} are stored")
        if self.lengths is not None:
            self._crop_rows(self.lengths.clamp(max=length))
            return
        self._check_back(length)
        self.length = length

    def _check_back(self, length: int | Tensor) -> None:
        """Refuse to go back so far; here, all tokens are kept."""
        return

    def _crop_rows(self, lengths: Tensor) -> None:
        B = self.buffers[0].shape[0] if self.buffers else 0
        if lengths.shape != (B,) or lengths.dtype != torch.int64:
            raise ValueError(
                f"lengths is {lengths.dtype} of shape {tuple(lengths.shape)}; "
                f"pass int64, one for each of {B} rows"
            )
        stored = self.length if self.lengths is None else self.lengths
        if not ((lengths >= 0) & (lengths <= stored)).all():
            raise ValueError(
                f"crop to {lengths.tolist()}, but {stored} are stored"
            )
        self._check_back(lengths)
        self.length = max(lengths.tolist(), default=0)
        alike = bool((lengths == self.length).all())
        self.lengths = None if alike else lengths.clone()

    def _extend(self, new: int) -> None:
        """Count `new` more tokens in every row."""
        self.length += new
        if self.lengths is not None:
            self.lengths = self.lengths + new

    def _write(self, buffer: Tensor, new: Tensor) -> None:
        """Store new tokens, each in the column of its number."""
        at = self.next_positions(new.shape[2])
        buffer[:, :, self.length : self.length + new.shape[2]] = new
        if at is not None:  # a shorter row sees none of those just written
            rows = torch.arange(len(at), device=at.device)[:, None]
            buffer[rows, :, at] = new.transpose(1, 2)

    def reorder(self, rows: Tensor) -> None:
        """Row `i` becomes the old row `rows[i]`, for beam search.

        Stored tokens are copied, unused room is not. Views that `append`
        returned earlier may change. On an accelerator, indices out of range
        are reported by the device: checking them here would force a
        synchronisation.
        """
        B = self.buffers[0].shape[0] if self.buffers else 0
        if rows.dim() != 1 or rows.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"rows is {rows.dtype} of shape {tuple(rows.shape)}; pass "
                "integers, one per row"
            )
        if len(rows) and (rows.device.type == "cpu" or not B):
            first, last = int(rows.min()), int(rows.max())
            if not 0 <= first <= last < B:
                raise ValueError(
                    f"rows go from {first} to {last}, the cache has B={B}"
                )
        with torch.inference_mode(False), torch.no_grad():
            moved = [t.index_select(0, rows) for t in self.stored]
            self.buffers = tuple(map(self._with_room, moved, self.buffers))
            if self.lengths is not None:
                self.lengths = self.lengths.index_select(0, rows)
                self.length = max(self.lengths.tolist(), default=0)
            at = self._given_positions
            if at is not None and len(at) > 1:
                self._given_positions = at.index_select(0, rows)

    def snapshot(self) -> tuple[dict[str, object], tuple[Tensor, ...]]:
        """A copy of what is stored, to which `restore` goes back.

        The copy is small for a state or a ring, and as large as the text for a
        cache that keeps all tokens. There, `crop` goes back without a copy.
        """
        shapes = tuple(buffer.shape for buffer in self.buffers)
        with torch.inference_mode(False), torch.no_grad():
            copies = tuple(t.clone() for t in self.stored)
        return {**vars(self), "buffers": shapes}, copies

    def restore(
        self, snapshot: tuple[dict[str, object], tuple[Tensor, ...]]
    ) -> None:
        """Forget all tokens since the snapshot, which does not change."""
        rest, tensors = snapshot
        shapes: Any = rest["buffers"]
        vars(self).update(rest)
        with torch.inference_mode(False), torch.no_grad():
            self.buffers = tuple(
                self._with_room(t.clone(), t.new_empty(1).expand(shape))
                for t, shape in zip(tensors, shapes, strict=True)
            )

    def _with_room(
        self, tokens: Tensor, buffer: Tensor | None = None
    ) -> Tensor:
        """The tensor to hold, if these are all the tokens so far.

        `buffer` is the one before, whose room is kept; if it is contiguous, its
        memory may be used again.
        """
        if buffer is None or buffer.shape[2:] == tokens.shape[2:]:
            return tokens
        roomy = tokens.new_empty((len(tokens), *buffer.shape[1:]))
        roomy[:, :, : tokens.shape[2]] = tokens
        return roomy

    def _check(self, tensors: tuple[Tensor, ...]) -> None:
        if not tensors:
            raise ValueError("nothing to append")
        B, K, T, _ = (*tensors[0].shape, 0, 0, 0, 0)[:4]
        for new in tensors:  # that of an indexer has one head
            fits = new.dim() == 4 and new.shape[1] in (1, K)
            if not fits or (new.shape[0], new.shape[2]) != (B, T):
                shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
                raise ValueError(
                    f"appended shapes {shapes}: each needs 4 axes "
                    "(B, K, T, D), all the same B, K and T"
                )
            if torch.is_grad_enabled() and new.requires_grad:
                raise ValueError(
                    "a cache keeps no gradients: decode under torch.no_grad()"
                )
        if not self.buffers:
            return
        if len(tensors) != len(self.buffers):
            raise ValueError(
                f"the cache holds {len(self.buffers)} tensors per token, "
                f"but got {len(tensors)}"
            )
        for buffer, new in zip(self.buffers, tensors, strict=True):
            B, K, _, D = buffer.shape
            if (*new.shape[:2], new.shape[3]) != (B, K, D):
                raise ValueError(
                    f"the cache holds B={B}, K={K}, D={D}, but got "
                    f"B={new.shape[0]}, K={new.shape[1]}, D={new.shape[3]}"
                )
            if (buffer.dtype, buffer.device) != (new.dtype, new.device):
                raise ValueError(
                    f"the cache holds {buffer.dtype} on {buffer.device}, "
                    f"but got {new.dtype} on {new.device}"
                )


def past_of(
    cache: Cache | None, causal: bool | Rule, needs: str = "append"
) -> int:
    """Number of tokens already in a layer's cache; 0 without a cache.

    A cache that cannot do what the layer needs, or that keeps less than the
    layer's rule may show, is refused. Any object with the methods of `Cache` is
    accepted.
    """
    if cache is None:
        return 0
    if not hasattr(cache, "length"):
        kind = type(cache).__name__
        if isinstance(cache, type):
            kind = f"the class {cache.__name__}"
        raise TypeError(
            f"cache is {kind}; pass one cache, such as KVCache(max_len)"
        )
    if needs not in getattr(cache, "can", Cache.can):
        raise Cache._cannot(cache, needs)
    if needs != "append":
        return cache.length
    rule = rule_of(causal)
    if not cache.keeps.covers(rule):
        raise ValueError(
            f"the layer's rule is {rule}, and {type(cache).__name__} keeps "
            f"{cache.keeps}: pass a cache that keeps as much; KVCache and "
            "GrowingKVCache keep everything"
        )
    return cache.length


def check_appended(
    cache: Cache,
    keys: Tensor,
    numbers: Tensor | None,
    at: Tensor | None = None,
) -> None:
    """Store the positions; refuse other keys than the cache had announced."""
    if at is not None:
        cache.remember(at)
    wanted = cache.length if numbers is None else numbers.shape[-1]
    if keys.shape[2] != wanted:
        raise ValueError(
            f"{type(cache).__name__}.append returned {keys.shape[2]} keys, and "
            f"its `positions` say {wanted}: a cache that does not return all "
            "tokens in order defines `positions`"
        )


# --8<-- [end:cache]


# --8<-- [start:preallocated]
class KVCache(Cache):
    """Preallocated for `max_len` tokens: appending copies only new tokens.

    Examples:
        >>> cache = KVCache(max_len=6)
        >>> prompt, token = torch.ones(1, 2, 5, 4), torch.zeros(1, 2, 1, 4)
        >>> k, v = cache.append(prompt, prompt)
        >>> k, v = cache.append(token, token)
        >>> k.shape, cache.length, cache.nbytes
        (torch.Size([1, 2, 6, 4]), 6, 384)
        >>> cache.append(token, token)
        Traceback (most recent call last):
        ValueError: 6 stored and 1 new make 7 > max_len=6
    """

    keeps: Rule = Everything()

    def __init__(self, max_len: int) -> None:
        check_sizes(max_len=max_len)
        super().__init__()
        self.max_len = int(max_len)

    def check_room(self, new: int) -> None:
        end = self.length + new
        if end > self.max_len:
            raise ValueError(
                f"{self.length} stored and {new} new make {end} > "
                f"max_len={self.max_len}"
            )

    def append(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        self._check(tensors)
        new = tensors[0].shape[2]
        self.check_room(new)
        if not self.buffers:
            # Made outside inference mode, they can be written to in any mode.
            with torch.inference_mode(False), torch.no_grad():
                self.buffers = tuple(
                    self._with_room(t[:, :, :0]) for t in tensors
                )
        for buffer, tokens in zip(self.buffers, tensors, strict=True):
            self._write(buffer, tokens)
        self._extend(new)
        return self.stored

    def _with_room(
        self, tokens: Tensor, buffer: Tensor | None = None
    ) -> Tensor:
        B, K, T, D = tokens.shape
        again = buffer is not None and buffer.is_contiguous()
        if buffer is None or not again or len(buffer) != B:
            room = (B, K, self.max_len, D)
            buffer = torch.empty(room, dtype=tokens.dtype, device=tokens.device)
        buffer[:, :, :T] = tokens
        return buffer


# --8<-- [end:preallocated]


# --8<-- [start:growing]
class GrowingKVCache(Cache):
    """Grows without a limit: each append copies all earlier tokens again.

    Examples:
        >>> cache = GrowingKVCache()
        >>> token = torch.ones(1, 2, 1, 4)
        >>> for _ in range(3):
        ...     k, v = cache.append(token, token)
        >>> k.shape, cache.length, cache.nbytes
        (torch.Size([1, 2, 3, 4]), 3, 192)
    """

    keeps: Rule = Everything()

    def append(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        self._check(tensors)
        before = self.stored or tuple(new[:, :, :0] for new in tensors)
        with torch.no_grad():
            self.buffers = tuple(
                torch.cat((old, new), dim=2)
                for old, new in zip(before, tensors, strict=True)
            )
            if self.lengths is not None:  # a row's own end comes earlier
                for buffer, new in zip(self.buffers, tensors, strict=True):
                    self._write(buffer, new)
        self._extend(tensors[0].shape[2])
        return self.stored

    def _with_room(
        self, tokens: Tensor, buffer: Tensor | None = None
    ) -> Tensor:
        return tokens


# --8<-- [end:growing]
