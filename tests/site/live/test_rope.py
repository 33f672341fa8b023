"""A query and a key that are moved along a text, and scalings of RoPE."""

import math
import random

import pytest
import torch

import attnref
from sitekit.drawn import rope
from tests.kit.live import computed, equal


def drawn_states(count: int) -> list[dict]:
    chance = random.Random(7)
    states = []
    for n in range(count):
        i = chance.randint(0, 63)
        places = {
            "i": i,
            "j": chance.randint(0, i),
            "pair": chance.randint(0, 1),
        }
        sizes = {
            "base": chance.choice(rope.BASES),
            "D": chance.choice(rope.WIDTHS),
        }
        rule = ("none", "linear", "ntk", "yarn")[n % 4]
        states.append(
            {**places, **sizes, "rule": rule, "stretch": chance.randint(1, 3)}
        )
    return states


def rotated(positions: list[float], state: dict, scaling) -> torch.Tensor:
    """A vector of length 1, its pairs equally long, at these positions."""
    D, n = state["D"], len(positions)
    x = torch.cat((torch.ones(n, D // 2), torch.zeros(n, D // 2)), -1).double()
    table = attnref.rope_table(
        torch.tensor(positions), D, theta=float(state["base"]), scaling=scaling
    )
    return attnref.apply_rope(x[None, None] / (D // 2) ** 0.5, *table)[0, 0]


def test_its_numbers_are_those_of_the_package(show):
    """With the scaling that its line of code names."""
    states, codes = drawn_states(200), {None}
    for state, result in zip(
        states, computed(show("rope"), "rope", states), strict=True
    ):
        code = result.get("code")
        codes.add(code)
        scaling = eval(code, vars(attnref)) if code else None
        assert (scaling is None) == (state["rule"] == "none")
        q, k = rotated([state["i"], state["j"]], state, scaling)
        equal(result["score"], q @ k)
        scale = scaling.table_scale if scaling else 1.0
        for name, x in (("query", q), ("key", k)):
            a, b = x.chunk(2)
            length = scale / (state["D"] // 2) ** 0.5
            equal([math.cos(z) for z in result[name]], a / length)
            equal([math.sin(z) for z in result[name]], b / length)
        far = rotated([*range(64)], state, scaling)
        equal(result["curve"][::2], far @ far[0])
        plain = rotated([*range(64)], state, None)
        equal(result["before"][::2], plain @ plain[0])
        cosines = far[:, state["pair"]] / far[0, state["pair"]]
        equal(result["cosines"][::2], cosines)
    scalings = rope.stretched()["scalings"].values()
    assert codes == {None, *(scaling["code"] for scaling in scalings)}


def test_an_angle_is_unseen_if_training_did_not_turn_so_far(show):
    states = drawn_states(200)
    for state, result in zip(
        states, computed(show("rope"), "rope", states), strict=True
    ):
        code = result.get("code")
        scaling = eval(code, vars(attnref)) if code else None
        q, k = rotated([state["i"], state["j"]], state, scaling)
        q, k = (torch.complex(*x.chunk(2)) for x in (q, k))
        angle = (q / k).angle() % (2 * math.pi)
        speeds = state["base"] ** (
            -torch.arange(0, state["D"], 2).double() / state["D"]
        )
        met = rope.TRAINED * speeds
        new = (angle > met + 1e-6) & (angle < 2 * math.pi - 1e-6)
        assert result["unseen"] == new.nonzero().flatten().tolist()


def test_both_move_and_the_score_stays(show):
    page = show("rope")
    score = "document.querySelector('.live').figure.result.score"
    before = page.evaluate(score)
    page.get_by_label("both positions").press("Shift+ArrowRight")
    assert page.evaluate("document.querySelector('.live').figure.state.i") == 13
    assert page.evaluate(score) == pytest.approx(before, abs=1e-12)


def test_who_stretches_gets_a_scaling(show):
    page = show("rope")
    page.locator("[name=stretch]").press("ArrowUp")
    assert page.locator("[name=rule]").input_value() == "linear"
