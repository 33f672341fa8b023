"""Tokens one by one: what the figure says that is held, computed and refused is
what the caches of the package hold, a layer computes and the cache says."""

import random

import pytest
import torch

import attnref
from sitekit.drawn import kv_cache
from sitekit.drawn.kv_cache import ROOM, _WriteCounter
from tests.kit.live import computed


def replay(ops, kind):
    """The last call on a cache, its contents, and all that a layer computes of
    it, with the cache and, by the whole text again, without."""
    layer = attnref.GroupedQueryAttention(d_model=8, n_heads=2, n_kv_heads=1)
    keys = {"with": 0, "without": 0}
    running = "with"
    layer.k_proj.register_forward_hook(
        lambda _, x, __: keys.update({running: keys[running] + x[0].shape[1]})
    )
    fixed = kind == "fixed"
    pair = [
        attnref.KVCache(ROOM) if fixed else attnref.GrowingKVCache()
        for _ in range(2)
    ]
    letters, held = pair
    tokens = written = cached = uncached = 0
    error = ""
    for op in ops:
        error = ""
        try:
            if op == "b":
                for cache in pair:
                    cache.crop(cache.length - 1)
                continue
            new = torch.arange(tokens, tokens + int(op)).float()
            with _WriteCounter() as count:
                letters.append(new[None, None, :, None])
        except ValueError as refused:
            error = str(refused)
            continue
        written += count.bytes // 4
        tokens += int(op)
        S = letters.length
        with torch.no_grad():
            running = "with"
            layer(torch.zeros(1, int(op), 8), cache=held)
            running = "without"
            layer(torch.zeros(1, S, 8))
        cached, uncached = cached + int(op) * S, uncached + S * S
    buffer = letters.buffers[0].flatten().tolist() if tokens else []
    totals = {
        kind: {"computed": keys["with"], "written": written, "scores": cached},
        "none": {"computed": keys["without"], "written": 0, "scores": uncached},
    }
    return buffer, letters.length, error, totals


@pytest.mark.parametrize("kind", ["fixed", "growing"])
def test_it_holds_and_refuses_what_the_cache_of_the_package_does(show, kind):
    page, draw = show("cache"), random.Random(0)
    states, wants = [], []
    for n in range(60):
        ops, length = "", 0
        for _ in range(n % 12 + 1):
            op = draw.choice("11234bbb")
            after = length + (-1 if op == "b" else int(op))
            if kind == "growing" and after > 10:  # the end of the drawing
                continue
            ops += op
            if 0 <= after <= (ROOM if kind == "fixed" else 10):
                length = after
        states.append({"ops": ops, "kind": kind})
        wants.append(replay(ops, kind))
    refusals = 0
    for result, want in zip(
        computed(page, "cache", states), wants, strict=True
    ):
        buffer, length, error, totals = want
        last = result["passes"][-1]
        assert last["held"] == buffer[:length]
        if kind == "fixed":  # what is left of tokens that were rolled back
            assert last["slots"] == buffer[: len(last["slots"])]
        assert last["refused"] == error
        assert totals.items() <= result["totals"].items()
        refusals += bool(error)
    assert refusals > 3


def test_undo_takes_back_and_a_second_refusal_adds_nothing(show):
    page = show("cache")
    kept = page.evaluate(
        """texts => texts.map((ops) => {
          const state = { ops, kind: "fixed" };
          live.figures.cache.mend(state);
          return state.ops;
        })""",
        ["31u", "uu1", "444444", "44u", "bbb", "1x<c>9b"],
    )
    assert kept == ["3", "1", "444", "4", "b", "1b"]


def test_what_a_cache_refuses_is_said_in_its_own_words():
    cache = attnref.KVCache(ROOM)
    cache.append(torch.zeros(1, 1, ROOM, 1))
    with pytest.raises(ValueError) as refused:
        cache.append(torch.zeros(1, 1, 1, 1))
    assert kv_cache.refusals()["append"][f"{ROOM},1"] == str(refused.value)
