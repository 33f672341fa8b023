"""A row of scores in tiles: right, and with four mistakes of the catalogue."""

import math

import pytest
import torch

import attnref
from attnref.judge.catalogue import Plain
from sitekit.drawn import flash
from tests.kit.live import computed, equal

VALUES = torch.tensor(flash.VALUES, dtype=torch.float64)


def states(code, n=40):
    """Drawn scores, each with a size of the tiles."""
    for k in range(n):
        scores = (2 * torch.randn(8, dtype=torch.float64)).clamp(-2, 6)
        yield {"scores": scores.tolist(), "size": 1 + k % 8, "code": code}


def outputs(planted, drawn):
    """What the plain form returns, with these lines in it."""
    for state in drawn:
        scores = torch.tensor(state["scores"], dtype=torch.float64)
        q, k = torch.ones(1, 1, 1, 1).double(), scores.view(1, 1, 8, 1)
        tile = (1, state["size"])
        v = VALUES[None, None]
        out, _ = Plain(planted).flash.flash(q, k, v, tile=tile)
        yield out[0, 0, 0], q, k, v


def test_its_walk_ends_at_what_the_package_returns(show):
    drawn = [*states("right")]
    results = computed(show("flash"), "flash", drawn)
    for result, (out, q, k, v) in zip(results, outputs((), drawn), strict=True):
        *_, last = result["states"]
        equal(last["out"], out)
        equal(result["ring"], attnref.flash(q, k, v)[0, 0, 0])
        equal(result["ring"], attnref.sdpa(q, k, v)[0, 0, 0])
        equal(result["truth"], k.view(8).softmax(0))
        equal(last["m"] + math.log(last["total"]), k.logsumexp((0, 1, 2, 3)))
        assert result["off"] < 1e-9 and abs(result["sum"] - 1) < 1e-9


def test_each_state_is_attention_over_the_keys_that_are_read(show):
    drawn = [*states("right")]
    for state, result in zip(
        drawn, computed(show("flash"), "flash", drawn), strict=True
    ):
        scores = torch.tensor(state["scores"], dtype=torch.float64)
        for n, step in enumerate(result["states"][1:], 1):
            read = scores[: n * state["size"]]
            equal(step["out"], read.softmax(0) @ VALUES[: len(read)])
            assert step["m"] == read.max()


@pytest.mark.parametrize("code", flash.MISTAKES)
def test_a_mistake_ends_where_the_catalogues_lines_do(show, code):
    drawn = [*states(code)]
    results = computed(show("flash"), "flash", drawn)
    wrong = outputs(flash.variant(code), drawn)
    misses = []
    for result, (out, *_) in zip(results, wrong, strict=True):
        *_, last = result["states"]
        equal(last["out"], out)
        weights = torch.tensor(last["weights"], dtype=torch.float64)
        equal((weights @ VALUES).tolist(), out)
        misses.append(result["off"])
    assert max(misses) > 0.3, "it shows"
    assert min(misses) < 1e-9, "a single tile hides it"
    lines = flash.walk()["lines"]
    assert any(is_wrong for _, is_wrong in lines[code])
    assert not any(is_wrong for _, is_wrong in lines["right"])
