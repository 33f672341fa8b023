"""Histories of a cache, compared with plain lists: the shortest that fails.

A token is a number, and its key and value say which one it is: so whatever a
cache returns, one can say which token stands there, even one that was taken
back. `Rows` is what a cache should hold, `fault` compares what it returned, and
`shortest` draws histories and takes out of one that fails whatever it fails
without.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from attnref.judge.arrays import as_tensor, in_words, one_line
from attnref.words import message

B, K, D = 2, 3, 4
ROOM = 32  # tokens of a history: a cache must have room for them
N_HISTORIES, N_STEPS = 150, 16
N_DECODING = 30  # of the histories: the first ones append single tokens
PAD = 500.0
Valid = list[list[bool]]  # B rows of T; False = a pad
History = list[tuple[str, Any]]  # of steps
Array = Callable[[Tensor], Any]  # what the adapter computes with
# Tokens that were removed: position, row, and the step that did it.
Gone = dict[float, tuple[int, int, str]]


class Rows:
    """A list of tokens for each row of the batch."""

    def __init__(self, B: int = B) -> None:
        self.rows: list[list[float]] = [[] for _ in range(B)]
        self.number = 0  # of tokens so far: no two are the same
        self.gone: Gone = {}

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

    def note(self, before: Sequence[Sequence[float]], step: str) -> None:
        """Which tokens of these rows `step` has removed."""
        for r, row in enumerate(before):
            self.gone |= {x: (j, r, step) for j, x in enumerate(row)}
        for x in (x for row in self.rows for x in row):
            self.gone.pop(x, None)

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
    gone: Gone | None = None,
    first: int | None = None,
) -> str:
    """What is wrong in the first row that is wrong, or "".

    `stored` are keys and values `(B, K, S, D)`, `so_far` those that were
    appended, `(K, n, D)` of each row. `positions`, `(B, S)`, say which of these
    each should be, -1 = none. `needed` are those of each row that must be
    there, `gone` says of tokens that were removed what they were, and `first`
    is the first new token, if a window drops what it does not see.
    """
    for b, past in enumerate(so_far):
        real = positions[b] >= 0
        at, n = positions[b][real], past[0].shape[1]
        if (at >= n).any():
            text = "row {}: a key at position {}, but it has {} tokens"
            return message(text, b, int(at.max()), n)
        for n_th, (x, y) in enumerate(zip(stored, past, strict=True)):
            x = x[b][:, real]
            equal = (x == y[:, at]).all(dim=2).all(dim=0)
            if not equal.all():
                s = int(equal.int().argmin())
                pasts = [every[n_th] for every in so_far]
                of = owner(x[:, s], b, pasts, gone or {})
                text = "row {}: the {} of token {} is that of {}"
                name = message("value" if n_th else "key")
                return message(text, b, name, int(at[s]), of)
        kept = at.tolist()
        for j in sorted({*needed[b], *kept}):
            if j not in kept:
                text = "row {}: token {} is missing"
                if first is not None and j < first:
                    text = "row {}: token {} is missing, which token {} sees"
                elif first is not None:
                    text = "row {}: token {}, which is new, is missing"
                return message(text, b, j, first)
            if kept.count(j) > 1:
                return message("row {}: token {} is there twice", b, j)
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


def owner(x: Tensor, b: int, pasts: Sequence[Tensor], gone: Gone) -> str:
    """Whose key or value `(K, D)` this is."""
    for r in sorted(range(len(pasts)), key=lambda r: r != b):
        for j in range(pasts[r].shape[1]):
            if torch.equal(pasts[r][:, j], x):
                if r == b:
                    return message("token {}", j)
                return message("token {} of row {}", j, r)
    if is_token(x, PAD):
        return message("a pad")
    return removed(x, b, gone) or message("no token")


def is_token(x: Tensor, number: float) -> bool:
    """Whether this is its key `(K, D)`, or its value: one with another sign."""
    (key,) = tensors([[number]], x.shape[-1])
    return torch.equal(key[0, :, 0], x.abs().float())


def removed(x: Tensor, b: int, gone: Gone) -> str:
    """Which token that is no more has this key or value `(K, D)`, or ""."""
    for number, (j, r, step) in gone.items():
        if is_token(x, number):
            if r == b:
                return message("token {}, which {} removed", j, step)
            text = "token {} of row {}, which {} removed"
            return message(text, j, r, step)
    return ""


# --------------------------------------------------------- playing a history


def operations(kind: Any) -> set[str]:
    """What a class of caches can do."""
    names = ("append", "crop", "reorder", "snapshot", "reset")
    result = {x for x in names if callable(getattr(kind, x, None))}
    takes_pads = "valid" in signature(kind.append).parameters
    return result | ({"pads"} if takes_pads else set())


class Played:
    """A history, done to a cache and to lists, until they differ."""

    def __init__(self, kind: Any, history: History, array: Array) -> None:
        self.cache, self.rows, self.array = kind(), Rows(), array
        self.window: int | None = getattr(self.cache, "window", None)
        self.exact: bool = getattr(self.cache, "exact", True)
        self.pads = "pads" in operations(kind)
        self.saved: tuple[Any, list[list[float]]] | None = None
        self.lines = list[str]()  # what was done
        self.done = set[str]()  # the operations that it did
        self.refused = dict[str, str]()  # what it said of the others
        self.fault = ""  # what is wrong after the last step
        self.raised = False  # by append
        self.history = History()  # up to there
        for step, value in history:
            self.history.append((step, value))
            self.fault = getattr(self, step)(value) or self.wrong_length()
            if self.fault:
                break

    def append(self, valid: Valid) -> str:
        T = len(valid[0])
        shown = [[*map(int, row)] for row in valid]
        self.lines.append(f"append({shown if self.pads else T})")
        options = {"valid": self.array(torch.tensor(valid))}
        new = map(self.array, tensors(self.rows.append(valid), D, D))
        try:
            output = self.cache.append(*new, **(options if self.pads else {}))
        except Exception as error:
            self.raised = True
            said = message("append raises {}", one_line(error))
            text = "{}; if it takes one token at a time, write chunk = 1"
            return message(text, said) if T > 1 else said
        try:
            k, v, *positions = map(as_tensor, output)
        except Exception:
            return message("append returned {}, not (k, v)", in_words(output))
        S = k.shape[2:3]
        for name, x in {"keys": k, "values": v}.items():
            if x.dim() != 4 or x.shape != (B, K, *S, D):
                right = f"({B}, {K}, {S[0] if S else 'S'}, {D})"
                text = "{} are {}, not {}"
                return message(text, message(name), (*x.shape,), right)
        k, v = k.float(), v.float()
        so_far, needed = self.rows.tensors(D, D), list[range]()
        for (keys, _), real in zip(so_far, valid, strict=True):
            n = keys.shape[1]
            seen = n if self.window is None else self.window - 1 + sum(real)
            needed.append(range(max(0, n - seen), n))
        if positions:
            try:
                at = positions[0].long().expand(B, *S)
            except RuntimeError:
                text = "the tokens of {} slots are {}: return (S,) or (B, S)"
                return message(text, *S, (*positions[0].shape,))
        elif self.pads:
            return message("with pads, return the token in each slot, too")
        elif S[0] > n:
            return self.too_many(k, n)
        else:
            at = torch.arange(n - S[0], n).expand(B, *S)
        gone, first = self.rows.gone, None
        if self.window and not self.pads:
            first = n - T
        if wrong := fault((k, v), so_far, at, needed, gone, first):
            # What one token sees may be in any order: it needs no mask.
            at = places(k, so_far)
            masked = S[0] > len(needed[0]) and not self.exact
            if T > 1 or positions or masked or (at < 0).any():
                return wrong
            if fault((k, v), so_far, at, needed):
                return wrong
        return self.beyond_the_window(at, needed) if T == 1 else ""

    def too_many(self, k: Tensor, n: int) -> str:
        """More keys than there are tokens: what the others are, if known."""
        wrong = message("{} keys instead of {}", k.shape[2], n)
        for x in k[0].unbind(dim=1):
            if of := removed(x, 0, self.rows.gone):
                return message("{}: row 0 still has {}", wrong, of)
        text = "{}: cut them off, or return the token in each slot, -1 = none"
        return message(text, wrong)

    def beyond_the_window(self, at: Tensor, needed: Sequence[range]) -> str:
        """Whether a single token is given more than it sees."""
        for b, tokens in enumerate(needed):
            count = int((at[b] >= 0).sum())
            if self.window and self.exact and count > len(tokens):
                text = "row {}: {} tokens returned, a window of {} has {}"
                wrong = message(text, b, count, self.window, len(tokens))
                text = "{}; if a mask hides the rest, write exact = False"
                return message(text, wrong)
        return ""

    def change(
        self, name: str, *values: Any, shown: Any, done: Callable[[], None]
    ) -> Any:
        """It may refuse, if afterwards it is what it was."""
        self.lines.append(f"{name}({shown})")
        try:
            result = getattr(self.cache, name)(*values)
        except Exception as error:
            self.refused[name] = one_line(error)
            self.lines[-1] += message(", which is refused")
            return None
        before = self.rows.rows
        done()
        self.rows.note(before, f"{name}({shown})")
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
        try:
            length = getattr(self.cache, "length", None)
            length = length() if callable(length) else length
        except Exception as error:
            return message("length raises {}", one_line(error))
        if self.pads or length is None or length == self.rows.length:
            return ""
        return message("length is {}, not {}", length, self.rows.length)

    def __str__(self) -> str:
        return f"{'; '.join(self.lines)}: {self.fault}"


# ------------------------------------------------------ drawing and shrinking


def drawn(seed: int, names: Sequence[str], pads: bool, chunk: int) -> History:
    """Some steps, of which every other one appends, at most `chunk` tokens."""
    pick = random.Random(seed).choice
    history, room = History(), ROOM
    for _ in range(pick(range(2, N_STEPS))):
        name = pick(("append", *names)) if history else "append"
        value: Any = None
        if name == "append":
            T = min(room, chunk, pick((1, 1, 1, 2, 3, 5, 7)))
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


def smaller(history: History, chunk: int) -> Iterator[History]:
    """Histories with one or two steps less, or with a smaller step, or with
    two calls of `append` made one, of at most `chunk` tokens."""
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
                if len(joined[0]) <= chunk:
                    both = [(name, joined)]
                    yield [*history[: i - 1], *both, *history[i + 1 :]]
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
    most = getattr(kind(), "chunk", None) or ROOM
    for seed in range(N_HISTORIES):
        chunk = 1 if seed < N_DECODING else most
        steps = [x for x in names if x != "pads"]
        history = drawn(seed, steps, pads, chunk)
        found = Played(kind, history, array)
        while found.fault:
            shorter_ones = smaller(found.history, most)
            less = (Played(kind, x, array) for x in shorter_ones)
            # Two calls made one may be refused: that is another fault.
            alike = (x for x in less if x.raised <= found.raised)
            shorter = next((x for x in alike if x.fault), None)
            if shorter is None:
                return found, {}
            found = shorter
        done |= found.done
        refused |= found.refused
    return None, {x: said for x, said in refused.items() if x not in done}
