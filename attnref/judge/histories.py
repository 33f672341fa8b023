"""Histories of a cache, compared with plain lists: the shortest that fails.

A token is a number, and its key and value say which one it is: so whatever a
cache returns, one can say which token stands there. `Rows` is what a cache
should hold, `fault` compares what it returned, and `shortest` draws histories
and takes out of one that fails whatever it fails without.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor

B, K, D = 2, 3, 4
ROOM = 32  # tokens of a history: a cache must have room for them
N_HISTORIES, N_STEPS = 150, 16
PAD = 500.0
Valid = list[list[bool]]  # B rows of T; False = a pad
History = list[tuple[str, Any]]  # of steps
Array = Callable[[Tensor], Any]  # what the adapter computes with


class Rows:
    """A list of tokens for each row of the batch."""

    def __init__(self, B: int = B) -> None:
        self.rows: list[list[float]] = [[] for _ in range(B)]
        self.number = 0  # of tokens so far: no two are the same

    @property
    def length(self) -> int:
        return max(map(len, self.rows), default=0)

    def append(self, valid: Sequence[Sequence[bool]]) -> list[list[float]]:
        """The new tokens of each row; pads are not kept."""
        new = list[list[float]]()
        for real in valid:
            self.number += len(real)
            numbers = range(self.number - len(real), self.number)
            both = zip(numbers, real, strict=True)
            new.append([n if is_real else PAD for n, is_real in both])
        self.rows = [
            [*row, *(x for x in more if x != PAD)]
            for row, more in zip(self.rows, new, strict=True)
        ]
        return new

    def crop(self, length: int) -> None:
        self.rows = [row[:length] for row in self.rows]

    def reorder(self, order: Sequence[int]) -> None:
        self.rows = [self.rows[r] for r in order]

    def tensors(self, *widths: int) -> list[list[Tensor]]:
        """Keys and values `(K, n, D)` of each row."""
        return [[x[0] for x in tensors([row], *widths)] for row in self.rows]


def tensors(rows: list[list[float]], *widths: int) -> list[Tensor]:
    """Keys and values `(B, K, T, D)` of these tokens, exact in float16."""
    x = torch.tensor(rows, dtype=torch.float32).view(len(rows), 1, -1, 1)
    x = x + torch.arange(K).view(-1, 1, 1) / 4
    return [x.expand(-1, -1, -1, D) * (-1) ** n for n, D in enumerate(widths)]


# ------------------------------------------------------------------ comparing


def fault(
    stored: Sequence[Tensor],
    so_far: Sequence[Sequence[Tensor]],
    positions: Tensor,
    needed: Sequence[Sequence[int]],
) -> str:
    """What is wrong in the first row that is wrong, or "".

    `stored` are keys and values `(B, K, S, D)`, `so_far` those that were
    appended, `(K, n, D)` of each row. `positions`, `(B, S)`, say which of these
    each should be, -1 = none. `needed` are those of each row that must be
    there.
    """
    for b, past in enumerate(so_far):
        real = positions[b] >= 0
        at, n = positions[b][real], past[0].shape[1]
        if (at >= n).any():
            last = int(at.max())
            return f"row {b}: a key at position {last}, but it has {n} tokens"
        for n_th, (x, y) in enumerate(zip(stored, past, strict=True)):
            x = x[b][:, real]
            equal = (x == y[:, at]).all(dim=2).all(dim=0)
            if not equal.all():
                s = int(equal.int().argmin())
                of = owner(x[:, s], b, [every[n_th] for every in so_far])
                name = "value" if n_th else "key"
                return f"row {b}: the {name} of token {int(at[s])} is {of}"
        kept = at.tolist()
        for j in sorted({*needed[b], *kept}):
            if kept.count(j) != 1:
                times = "there twice" if j in kept else "missing"
                return f"row {b}: token {j} is {times}"
    return ""


def places(k: Tensor, so_far: Sequence[Sequence[Tensor]]) -> Tensor:
    """Where these keys `(B, K, S, D)` stand, `(B, S)`; -1 = nowhere."""
    result = torch.full((k.shape[0], k.shape[2]), -1)
    for b, (keys, *_) in enumerate(so_far):
        for s in range(k.shape[2]):
            equal = (keys == k[b, :, s : s + 1]).all(dim=2).all(dim=0)
            if equal.any():
                result[b, s] = equal.int().argmax()
    return result


def owner(x: Tensor, b: int, pasts: Sequence[Tensor]) -> str:
    """Whose key or value `(K, D)` this is."""
    for r in sorted(range(len(pasts)), key=lambda r: r != b):
        for j in range(pasts[r].shape[1]):
            if torch.equal(pasts[r][:, j], x):
                return f"that of token {j}" + f" of row {r}" * (r != b)
    return "that of none that is left"


# --------------------------------------------------------- playing a history


def operations(kind: Any) -> set[str]:
    """What a class of caches can do."""
    names = ("append", "crop", "reorder", "snapshot", "reset")
    result = {x for x in names if callable(getattr(kind, x, None))}
    takes_pads = "valid" in signature(kind.append).parameters
    return result | ({"pads"} if takes_pads else set())


def one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


class Played:
    """A history, done to a cache and to lists, until they differ."""

    def __init__(self, kind: Any, history: History, array: Array) -> None:
        self.cache, self.rows, self.array = kind(), Rows(), array
        self.window: int | None = getattr(kind, "window", None)
        self.pads = "pads" in operations(kind)
        self.saved: tuple[Any, list[list[float]]] | None = None
        self.lines = list[str]()  # what was done
        self.done = set[str]()  # the operations that it did
        self.refused = dict[str, str]()  # what it said of the others
        self.fault = ""  # what is wrong after the last step
        self.history = History()  # up to there
        for step, value in history:
            self.history.append((step, value))
            self.fault = getattr(self, step)(value) or self.wrong_length()
            if self.fault:
                break

    def append(self, valid: Valid) -> str:
        shown = [[*map(int, row)] for row in valid]
        self.lines.append(f"append({shown if self.pads else len(valid[0])})")
        options = {"valid": self.array(torch.tensor(valid))}
        new = map(self.array, tensors(self.rows.append(valid), D, D))
        try:
            outputs = self.cache.append(*new, **(options if self.pads else {}))
            k, v, *positions = map(torch.as_tensor, outputs)
        except Exception as error:
            return f"append raises {one_line(error)}"
        S = k.shape[2:3]
        for name, x in {"keys": k, "values": v}.items():
            if x.shape != (B, K, *S, D):
                return f"{name} are {(*x.shape,)}, not {(B, K, *S, D)}"
        so_far, needed = self.rows.tensors(D, D), list[range]()
        for (keys, _), real in zip(so_far, valid, strict=True):
            n = keys.shape[1]
            seen = n if self.window is None else self.window - 1 + sum(real)
            needed.append(range(max(0, n - seen), n))
        if positions:
            at = positions[0].expand(B, *S)
        elif self.pads:
            return "with pads, positions are needed beside keys and values"
        elif S[0] > n:
            return f"{S[0]} keys of {n} tokens: return their positions, too"
        else:
            at = torch.arange(n - S[0], n).expand(B, *S)
        wrong = fault((k.float(), v.float()), so_far, at, needed)
        if wrong and not positions and len(valid[0]) == 1:
            # What one token sees may be in any order: it needs no mask.
            at = places(k.float(), so_far)
            exactly = S[0] == len(needed[0])
            if exactly and not fault((k, v), so_far, at, needed):
                return ""
        return wrong

    def change(
        self, name: str, *values: Any, shown: Any, done: Callable[[], None]
    ) -> Any:
        """It may refuse, if afterwards it is what it was."""
        self.lines.append(f"{name}({shown})")
        try:
            result = getattr(self.cache, name)(*values)
        except Exception as error:
            self.refused[name] = one_line(error)
            self.lines[-1] += ", which is refused"
            return None
        done()
        self.done.add(name)
        return result

    def crop(self, back: int) -> None:
        n = max(0, self.rows.length - back)
        self.change("crop", n, shown=n, done=lambda: self.rows.crop(n))

    def reorder(self, order: list[int]) -> None:
        rows, done = torch.tensor(order), lambda: self.rows.reorder(order)
        self.change("reorder", self.array(rows), shown=order, done=done)

    def reset(self, _: None) -> None:
        self.change("reset", shown="", done=lambda: self.rows.crop(0))

    def snapshot(self, _: None) -> None:
        rows = self.rows.rows
        state = self.change("snapshot", shown="", done=lambda: None)
        if state is not None:
            self.saved = state, rows

    def restore(self, _: None) -> None:
        if self.saved is None:
            return
        state, rows = self.saved

        def done() -> None:
            self.rows.rows = rows

        self.change("restore", state, shown="", done=done)

    def wrong_length(self) -> str:
        length = getattr(self.cache, "length", None)
        length = length() if callable(length) else length
        if self.pads or length is None or length == self.rows.length:
            return ""
        return f"length is {length}, not {self.rows.length}"

    def __str__(self) -> str:
        return f"{'; '.join(self.lines)}: {self.fault}"


# ------------------------------------------------------ drawing and shrinking


def drawn(seed: int, names: Sequence[str], pads: bool) -> History:
    """Some steps, of which every other one appends."""
    pick = random.Random(seed).choice
    history, room = History(), ROOM
    for _ in range(pick(range(2, N_STEPS))):
        name = pick(("append", *names)) if history else "append"
        value: Any = None
        if name == "append":
            T = min(room, pick((1, 1, 1, 2, 3, 5, 7)))
            value = [
                [not pads or pick((True, True, False)) for _ in range(T)]
                for _ in range(B)
            ]
            room -= T
            if T == 0:
                break
        elif name == "crop":
            value = pick((1, 1, 2, 3, 5))
        elif name == "reorder":
            value = [pick(range(B)) for _ in range(B)]
        history.append((name, value))
    return history


def smaller(history: History) -> Iterator[History]:
    """Histories with one or two steps less, or with a smaller step, or with
    two calls of `append` made one."""
    for i in range(len(history)):
        for j in range(i, len(history)):
            yield [x for n, x in enumerate(history) if n not in (i, j)]
    for i, (name, value) in enumerate(history):
        values: list[Any] = []
        if name == "append":
            T = len(value[0])
            values = [[row[:t] for row in value] for t in range(1, T)]
            values += [[row[t:] for row in value] for t in range(1, T)]
            if not all(map(all, value)):
                values.append([[True] * T for _ in value])
            if i and history[i - 1][0] == name:
                first = history[i - 1][1]
                joined = [a + b for a, b in zip(first, value, strict=True)]
                yield [*history[: i - 1], (name, joined), *history[i + 1 :]]
        elif name == "crop":
            values = [*range(1, value)]
        for x in values:
            yield [*history[:i], (name, x), *history[i + 1 :]]


def shortest(
    kind: Any, names: Sequence[str], array: Array
) -> tuple[Played | None, dict[str, str]]:
    """A history of these operations whose result is wrong, and from which
    nothing can be taken; and what the cache says of operations that it always
    refuses."""
    pads, done, refused = "pads" in names, set[str](), dict[str, str]()
    if "snapshot" in names:
        names = [*names, "restore"]
    for seed in range(N_HISTORIES):
        history = drawn(seed, [x for x in names if x != "pads"], pads)
        found = Played(kind, history, array)
        while found.fault:
            less = (Played(kind, x, array) for x in smaller(found.history))
            shorter = next((x for x in less if x.fault), None)
            if shorter is None:
                return found, {}
            found = shorter
        done |= found.done
        refused |= found.refused
    return None, {x: said for x, said in refused.items() if x not in done}
