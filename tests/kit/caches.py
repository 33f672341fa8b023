"""Caches beside plain lists, and what a refusal leaves unchanged."""

import itertools
import re
from contextlib import contextmanager

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from attnref import Everything
from attnref.judge import histories
from attnref.judge.histories import Rows, fault

B, K, T, D, DV = 2, histories.K, 11, 5, 7
CPU = torch.device("cpu")


def kv(T=1, *, B=B, **options):
    """K and V of `T` new tokens; their widths differ, as MLA's will."""
    k = torch.randn(B, K, T, D, **options)
    return k, torch.randn(B, K, T, DV, **options)


def filled(make, T=4, *, max_len=6, **options):
    cache = make(max_len)
    cache.append(*kv(T, **options))
    return cache


def agree(ours, expected):
    """Whether all tensors are equal, dtypes included."""
    return len(ours) == len(expected) and all(
        x.dtype == y.dtype and torch.equal(x, y)
        for x, y in zip(ours, expected, strict=True)
    )


def standing(tensors, positions, so_far, needed=()):
    """Whether each key is the one that was appended at its position, none is
    there twice, and none is missing that is needed."""
    rows = so_far[0].shape[0]
    if positions is None:
        positions = torch.arange(so_far[0].shape[2])
    positions = positions.expand(rows, tensors[0].shape[2])
    past = [[x[row] for x in so_far] for row in range(rows)]
    return [x.dtype for x in tensors] == [x.dtype for x in so_far] and not (
        fault(tensors, past, positions, [needed] * rows)
    )


def holds(cache, so_far):
    return standing(cache.stored, cache.positions(0, CPU), so_far)


def append(cache, tensors, so_far):
    """Append, and check: each key is stored once, where `positions` says, and
    none is missing that `keeps` shows to the new tokens.
    """
    n, end = tensors[0].shape[2], so_far[0].shape[2]
    keeps, positions = cache.keeps, cache.positions(n, CPU)
    stored = cache.append(*tensors)
    i, j = torch.arange(end - n, end)[:, None], torch.arange(end)
    needed = j[keeps(i, j).expand(n, end).any(0)].tolist()
    assert standing(stored, positions, so_far, needed)


@contextmanager
def unchanged(*caches):
    """Check that the body leaves these caches as they were."""
    states = [
        (c.length, c.nbytes, [t.clone() for t in c.stored]) for c in caches
    ]
    yield
    for cache, (length, nbytes, tensors) in zip(caches, states, strict=True):
        assert (cache.length, cache.nbytes) == (length, nbytes)
        assert agree(cache.stored, tensors)


@contextmanager
def refused(message, *caches, error=ValueError):
    """Check that the body raises, and leaves these caches as they were."""
    pattern = rf"(?<!\w){re.escape(message)}"  # from the first of a word on
    with unchanged(*caches), pytest.raises(error, match=pattern):
        yield


class Lists(RuleBasedStateMachine):
    """A cache, compared with one list per row; a number stands for a token."""

    def __init__(self, make):
        super().__init__()
        self.cache = make(6)
        self.rows = Rows(0)
        self.keeps, self.back = self.cache.keeps, False
        self.saved = None

    def tensors(self, rows):
        return histories.tensors(rows, D, DV)

    @rule(n=st.integers(0, 4))
    def append(self, n):
        end = self.rows.length + n
        room = getattr(self.cache, "max_len", None)
        if room is not None and end > room:
            says = f"{end - n} stored and {n} new make {end} > max_len={room}"
            with refused(says, self.cache):
                self.cache.append(*kv(n, B=len(self.rows.rows) or B))
            return
        if not self.rows.rows:
            self.rows.rows = [[] for _ in range(B)]
        new = self.rows.append([[True] * n for _ in self.rows.rows])
        append(self.cache, self.tensors(new), self.tensors(self.rows.rows))

    @rule(n=st.integers(-1, 7))
    def crop(self, n):
        """A cache that keeps a part of the past may refuse, if it says so."""
        if not 0 <= n <= self.rows.length:
            says = f"crop to {n}, but {self.rows.length} are stored"
            with refused(says, self.cache):
                self.cache.crop(n)
            return
        try:
            self.cache.crop(n)
        except ValueError as error:
            assert f"crop to {n}, kept from" in str(error)
            assert n < self.rows.length and self.keeps != Everything()
        else:
            self.back |= n < self.rows.length
            self.rows.crop(n)

    @rule(order=st.lists(st.integers(-1, 3), min_size=1, max_size=4))
    def reorder(self, order):
        if all(0 <= i < len(self.rows.rows) for i in order):
            self.cache.reorder(torch.tensor(order))
            self.rows.reorder(order)
        else:
            with refused(f"the cache has B={len(self.rows.rows)}", self.cache):
                self.cache.reorder(torch.tensor(order))

    @rule()
    def snapshot(self):
        self.saved = self.cache.snapshot(), self.rows.rows, self.back

    @precondition(lambda self: self.saved)
    @rule()
    def restore(self):
        """Restore the same snapshot again and again, whatever came between."""
        snapshot, self.rows.rows, self.back = self.saved
        self.cache.restore(snapshot)

    @rule()
    def reset(self):
        self.rows.rows, self.back = [], False
        self.cache.reset()

    @invariant()
    def agree(self):
        assert self.cache.length == self.rows.length
        if self.rows.rows:
            assert holds(self.cache, self.tensors(self.rows.rows))
        else:
            assert (self.cache.nbytes, self.cache.stored) == (0, ())
        # Only a rollback leaves less.
        assert self.cache.keeps == self.keeps or self.back

    @classmethod
    def run(cls, make):
        """Begin with sequences that chance seldom finds: to go back just so far
        that a cache which keeps a part has lost what it should still hold."""
        for before, back, new in itertools.product(*map(range, (10, 6, 5))):
            lists = cls(make)
            try:
                lists.append(n=before)
                lists.snapshot()
                for _ in range(2):
                    lists.crop(n=lists.rows.length - back)
                    for n in (new, 1):
                        lists.append(n=n)
                        lists.agree()
                for _ in range(2):
                    lists.restore()
                    lists.agree()
                    lists.append(n=1)
            except AssertionError as error:
                error.add_note(f"{before=}, {back=}, {new=}, twice")
                raise
        steps = settings(stateful_step_count=15)
        run_state_machine_as_test(lambda: cls(make), settings=steps)
