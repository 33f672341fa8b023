"""Blocks that texts share: the figure does what the plain form does."""

import random

import pytest
import torch

from attnref.plain import paged
from sitekit.drawn.paged import refusals
from tests.kit.live import computed

SLOTS, NAMES = 24, "ABCD"


class Texts:
    """Texts in a pool, whose tokens store their letters."""

    def __init__(self, size):
        self.pool = paged.Pool(SLOTS // size, size, (1, 1))
        self.tables, self.texts = {}, {}
        self.read = self.alone = 0
        self.error, self.copied = "", None

    def do(self, name, op):
        """Do it; False if there is no such text, or no name for one more."""
        self.error, self.copied = "", None
        text = self.texts.get(name)
        if op == "t":
            return self.add(name, text)
        if text is None:
            return False
        if op == "x":
            self.pool.release(self.tables.pop(name))
            del self.texts[name]
            return True
        unused = [n for n in NAMES if n not in self.texts]
        if unused:
            self.tables[unused[0]] = self.pool.fork(self.tables[name])
            self.texts[unused[0]] = text
            self.alone += len(text)
        return bool(unused)

    def add(self, name, text):
        if text is not None and len(text) >= 12:
            return False
        now = (text or "system") + name.lower()
        table = self.tables[name] if text else self.pool.find(list(now))
        start = len(text) if text else self.pool.size * len(table)
        new = torch.tensor([float(ord(x)) for x in now[start:]])
        before = list(table)
        try:
            self.pool.append(table, list(now), new[None, :, None])
        except ValueError as refused:
            self.error = str(refused)
            if text is None:
                self.pool.release(table)
            return True
        changed = [n for n in zip(before, table, strict=False) if n[0] != n[1]]
        self.copied = changed[0] if changed else None
        self.tables[name], self.texts[name] = table, now
        self.read += len(now) - start
        self.alone += 1 if text else len(now)
        return True

    @property
    def stored(self):
        codes = self.pool.stored.flatten().tolist()
        return [chr(int(code)).strip("\0") for code in codes]


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_its_tables_counts_and_copies_are_those_of_the_pool(show, size):
    page, draw = show("blocks"), random.Random(size)
    states, wants = [], []
    for n in range(60):
        texts, ops, last = Texts(size), "", ("", None)
        for _ in range(n % 20 + 2):
            name, op = draw.choice(NAMES), draw.choice("tttttfx")
            # The figure leaves out a second refusal; so does this.
            if last[0] and ops[-2:] == name + op:
                continue
            if texts.do(name, op):
                ops += name + op
                last = texts.error, texts.copied
        states.append({"ops": ops, "size": str(size)})
        wants.append((texts, *last))
    data = page.locator(".live").evaluate("figure => figure.figure.data")
    refused = copied = 0
    results = computed(page, "blocks", states)
    for result, (texts, error, pair) in zip(results, wants, strict=True):
        assert result["tables"] == texts.tables
        assert result["texts"] == texts.texts
        assert result["readers"] == texts.pool.readers
        assert result["stored"] == texts.stored
        assert (result["read"], result["alone"]) == (texts.read, texts.alone)
        lengths = [len(text) for text in texts.texts.values()]
        used = sum(n > 0 for n in texts.pool.readers)
        assert result["used"] == used
        held = {
            block * size + p % size
            for name, table in texts.tables.items()
            for p in range(len(texts.texts[name]))
            for block in [table[p // size]]
        }
        assert result["empty"] == used * size - len(held)
        blocks = sum(-(-length // size) for length in lengths)
        assert result["apart"] == blocks
        assert result["emptyApart"] == blocks * size - sum(lengths)
        last = result["done"][-1] if result["done"] else {}
        if error:
            assert data[",".join(map(str, last["refused"]))] == error
        if last:
            moved = (last["from"], last["to"]) if "from" in last else None
            assert moved == pair
        refused, copied = refused + bool(error), copied + bool(pair)
    assert refused or size < 6
    assert copied


def test_what_a_full_pool_says_is_said_by_the_plain_form():
    pool = paged.Pool(1, 1, (1, 1))
    with pytest.raises(ValueError) as refused:
        pool.append([], [0, 1, 2], torch.zeros(1, 3, 1))
    assert refusals()["3,1"] == str(refused.value)
