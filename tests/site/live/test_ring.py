"""A ring of slots: what the figure says that it holds, returns and refuses is
what `RingKVCache` does."""

import random
import re

import torch

import attnref
from tests.kit.live import computed

CPU = torch.device("cpu")


def replay(ops, W, reserve):
    cache = attnref.RingKVCache(W, reserve=reserve)
    refused, returned = None, None
    for op in ops:
        refused, returned = None, None
        if op == "b":
            try:
                cache.crop(cache.length - 1)
            except ValueError as error:
                refused = [int(n) for n in re.findall(r"\d+", str(error))[:3]]
            continue
        new = torch.arange(cache.length, cache.length + int(op)).float()
        positions = cache.positions(int(op), CPU).tolist()
        (k,) = cache.append(new[None, None, :, None])
        returned = positions
        letters = k.flatten().tolist()
        assert [letters[i] for i, p in enumerate(positions) if p >= 0] == [
            p for p in positions if p >= 0
        ]
    return cache, refused, returned


def test_its_slots_and_refusals_are_those_of_the_package(show):
    page, draw = show("ring"), random.Random(0)
    states, wants = [], []
    for n in range(120):
        W, reserve = draw.randint(2, 6), draw.randint(0, 3)
        ops, length = "", 0
        for _ in range(n % 14 + 1):
            op = draw.choice("11235bbbbbb")
            if op == "b":
                _, refused, _ = replay(ops, W, reserve)
                if not length or refused:  # nothing to add to a refusal
                    continue
            ops += op
            length = replay(ops, W, reserve)[0].length
        states.append({"ops": ops, "W": W, "reserve": reserve})
        wants.append(replay(ops, W, reserve))
    refusals = 0
    results = computed(page, "ring", states)
    for state, result, want in zip(states, results, wants, strict=True):
        cache, refused, returned = want
        assert result["length"] == cache.length
        assert result["held"] == cache.positions(0, CPU).tolist()
        if not result["done"]:
            continue
        last = result["done"][-1]
        if refused:
            refusals += 1
            assert [last[key] for key in ("to", "lost", "needed")] == refused
        else:
            assert not last.get("refused")
        if returned is None:
            continue
        assert last["returned"] == returned
        rule = attnref.Window(state["W"])
        S = cache.length
        mask = attnref.RuleMask(rule, 1, S, S - 1).dense().flatten().tolist()
        assert result["sees"] == [p for p, seen in enumerate(mask) if seen]
    assert refusals > 3
