"""Caches of engines, compared with lists: right ones pass, and of a wrong one
the shortest history that shows it is printed."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import cache_utils

from attnref.judge import conform
from tests.check.plugin import run_pytest

SLOTS, W = 32, 4


class Growing:
    """What all others are, but for one line."""

    def __init__(self):
        self.k, self.v = torch.empty(2, 2, 3, 0, 4)

    @property
    def length(self):
        return self.k.shape[2]

    def append(self, k, v):
        self.k = torch.cat((self.k, k), dim=2)
        self.v = torch.cat((self.v, v), dim=2)
        return self.k, self.v

    def crop(self, length):
        self.k, self.v = self.k[:, :, :length], self.v[:, :, :length]

    def reorder(self, rows):
        self.k, self.v = self.k[rows], self.v[rows]

    def snapshot(self):
        return self.k, self.v

    def restore(self, state):
        self.k, self.v = state

    def reset(self):
        self.__init__()


class Buffer:
    """Room for all, in NumPy, written to in place; all slots are returned."""

    def __init__(self):
        self.kv, self.n = np.zeros((2, 2, 3, SLOTS, 4)), 0

    def append(self, k, v):
        start, self.n = self.n, self.n + k.shape[2]
        self.kv[:, :, :, start : self.n] = k, v
        slots = np.arange(SLOTS)
        return *self.kv, np.where(slots < self.n, slots, -1)

    def crop(self, length):
        self.n = length

    def snapshot(self):
        return self.kv.copy(), self.n

    def restore(self, state):
        self.kv, self.n = state[0].copy(), state[1]


class Ring:
    """Token p is in slot p % W; a mask hides the one that it overwrites."""

    window, exact = W, False

    def __init__(self):
        self.k, self.v = torch.zeros(2, 2, 3, W, 4)
        self.at, self.n = torch.full((W,), -1), 0

    def slots(self, p):
        return p % W

    def append(self, k, v):
        p = torch.arange(self.n, self.n + k.shape[2])
        all_k, all_v = torch.cat((self.k, k), 2), torch.cat((self.v, v), 2)
        at, last = torch.cat((self.at, p)), p[-W:]
        slots = self.slots(last)
        self.k[:, :, slots] = k[:, :, -W:]
        self.v[:, :, slots] = v[:, :, -W:]
        self.at[slots] = last
        self.n += len(p)
        return all_k, all_v, at

    def crop(self, length):
        if length < self.n:
            raise ValueError("a ring cannot go back")


class RingInAnyOrder(Ring):
    """A single token sees the slots as they are."""

    exact = True

    def append(self, k, v):
        result = super().append(k, v)
        if k.shape[2] == 1:
            return self.k[:, :, : self.n], self.v[:, :, : self.n]
        return result


class Padded:
    """Rows of real tokens, each with its own length."""

    def __init__(self):
        self.k, self.v = torch.zeros(2, 2, 3, SLOTS, 4)
        self.n = torch.zeros(2, dtype=torch.long)

    def counted(self, real):
        return real.sum()

    def append(self, k, v, valid):
        for b, real in enumerate(valid):
            slots = self.n[b] + torch.arange(int(real.sum()))
            self.k[b][:, slots] = k[b][:, real]
            self.v[b][:, slots] = v[b][:, real]
            self.n[b] += self.counted(real)
        slots = torch.arange(SLOTS).expand(2, -1)
        return self.k, self.v, slots.where(slots < self.n[:, None], -1)


# --8<-- [start:dynamic]
class Dynamic:  # Cache, in the adapter's file
    def __init__(self):
        self.layer = cache_utils.DynamicLayer()

    def append(self, k, v):
        return self.layer.update(k, v)

    def length(self):
        return int(self.layer.get_seq_length())

    def crop(self, length):
        self.layer.crop(length - self.length())

    def reorder(self, rows):
        self.layer.reorder_cache(rows)


# --8<-- [end:dynamic]
class Static(Dynamic):
    def __init__(self):
        self.layer = cache_utils.StaticLayer(SLOTS)

    def append(self, k, v):
        k, v = self.layer.update(k, v)
        slots = torch.arange(SLOTS)
        return k, v, slots.where(slots < self.length(), -1)


class Sliding(Dynamic):
    window = W

    def __init__(self):
        self.layer = cache_utils.DynamicSlidingWindowLayer(W)


def answers(kind, *operations):
    """To these questions, or to all."""
    library = np if issubclass(kind, Buffer) else torch
    module = SimpleNamespace(Cache=kind, **{library.__name__: library})
    engine = conform.Engine("mine", module)
    result = {}
    for id, behaviour in conform.behaviours().items():
        operation = id.removeprefix("cache-")
        if operation not in (operations or (operation,)):
            continue
        if engine.offers(behaviour):
            answer, _ = conform.ask(engine, behaviour, conform.Conventions())
            result[operation] = answer
    return result


@pytest.mark.parametrize(
    "kind, asked",
    [
        (Growing, "append crop reorder snapshot reset together"),
        (Buffer, "append crop snapshot together"),
        (Ring, "append together"),
        (RingInAnyOrder, "append together"),
        (Padded, "append pads together"),
        (Dynamic, "append crop reorder together"),
        (Static, "append crop reorder together"),
        (Sliding, "append crop reorder together"),
    ],
)
def test_a_right_cache_is_as_lists_are(kind, asked):
    result = answers(kind)
    right = [x for x, y in result.items() if y.answer == "right"]
    assert right == asked.split(), result
    if kind is Ring:
        assert result["crop"].answer == "refused"
        assert result["crop"].detail == "ValueError: a ring cannot go back"


class CropsToOneMore(Growing):
    length = None

    def crop(self, length):
        super().crop(length + 1)


class ReordersKeysAlone(Growing):
    def reorder(self, rows):
        self.k = self.k[rows]


class ReordersInPlace(Growing):
    def reorder(self, rows):
        self.k, self.v = self.k.clone(), self.v.clone()
        for b, row in enumerate(rows):
            self.k[b], self.v[b] = self.k[row], self.v[row]


class CountsAfterReset(Buffer):
    def reset(self):
        self.kv = np.zeros_like(self.kv)


class SavesAView(Buffer):
    def snapshot(self):
        return self.kv, self.n

    def restore(self, state):
        self.kv, self.n = state


class ReturnsTheBuffer(Buffer):
    def append(self, k, v):
        return super().append(k, v)[:2]


class CountsSlotsFromEachChunk(Ring):
    def slots(self, p):
        return (p - self.n) % W


class DropsTooEarly(Ring):
    """Of a chunk, the first token needs what the last one overwrites."""

    def append(self, k, v):
        super().append(k, v)
        return self.k, self.v, self.at


class CountsPads(Padded):
    def counted(self, real):
        return len(real)


class ChangesAndRefuses(Growing):
    def crop(self, length):
        super().crop(length)
        raise ValueError("not now")


class Recording(Sliding):
    """A window of transformers that records its past, to go back."""

    def __init__(self):
        super().__init__()
        self.layer.activate_past_recording()


@pytest.mark.parametrize(
    "kind, operation, history, fault",
    [
        (
            CropsToOneMore,
            "crop",
            "append(1); crop(0); append(1)",
            "2 keys instead of 1: row 0 still has token 0, which crop(0) "
            "removed",
        ),
        (
            ReordersKeysAlone,
            "reorder",
            "append(1); reorder([1, 0]); append(1)",
            "row 0: the value of token 0 is that of token 0 of row 1",
        ),
        (
            ReordersInPlace,
            "reorder",
            "append(1); reorder([1, 0]); append(1)",
            "row 1: the key of token 0 is that of token 0 of row 0",
        ),
        (
            CountsAfterReset,
            "reset",
            "append(1); reset(); append(1)",
            "row 0: a key at position 1, but it has 1 tokens",
        ),
        (
            SavesAView,
            "together",
            "append(1); snapshot(); crop(0); append(1); restore(); append(1)",
            "row 0: the key of token 0 is that of token 0, which restore() "
            "removed",
        ),
        (
            ReturnsTheBuffer,
            "append",
            "append(1)",
            "32 keys instead of 1: cut them off, or return the token in each "
            "slot, -1 = none",
        ),
        (
            CountsSlotsFromEachChunk,
            "append",
            "append(1); append(1); append(1)",
            "row 0: token 0 is missing, which token 2 sees",
        ),
        (
            DropsTooEarly,
            "append",
            "append(5)",
            "row 0: token 0, which is new, is missing",
        ),
        (
            CountsPads,
            "pads",
            "append([[1], [0]])",
            "row 1: a key at position 0, but it has 0 tokens",
        ),
        (
            ChangesAndRefuses,
            "crop",
            "append(1); crop(0), which is refused",
            "length is 0, not 1",
        ),
        (
            Recording,
            "crop",
            "append(5); crop(4); crop(3); append(1)",
            "row 0: token 0 is missing, which token 3 sees",
        ),
    ],
)
def test_of_a_wrong_cache_the_shortest_history_is_named(
    kind, operation, history, fault
):
    (answer,) = answers(kind, operation).values()
    assert answer.answer == "differs"
    assert answer.detail == f"{history}: {fault}"


ADAPTER = """
import torch


class Cache:
    def __init__(self):
        self.k, self.v = torch.empty(2, 2, 3, 0, 4)

    def append(self, k, v):
        self.k, self.v = torch.cat((self.k, k), 2), torch.cat((self.v, v), 2)
        return self.k, self.v

    def reorder(self, rows):
        self.k = self.k[rows]
"""


def test_pytest_prints_the_shortest_history(tmp_path):
    (tmp_path / "my_cache.py").write_text(ADAPTER, encoding="utf-8")
    _, said = run_pytest(tmp_path, "my_cache.py")
    assert "2 failed, 1 passed" in said  # reorder, together; append
    history = "append(1); reorder([1, 0]); append(1): row 0: the value of"
    assert f"not as lists are: {history}" in said
