"""A mask that one paints, and the lines of code that compute it."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import attnref
import attnref.plain.masks as plain
from sitekit.drawn.rules import mask_of
from tests.kit import live
from tests.kit.live import computed

RULES = ("causal", "window", "chunk", "documents", "all")


def drawn_states(count: int, seed: int) -> list[dict]:
    chance = random.Random(seed)
    states = []
    for n in range(count):
        S = chance.randint(1, 16)
        T, W = chance.randint(1, S), chance.randint(1, S)
        left = chance.choice([0, chance.randint(0, S)])
        right = chance.choice([0, chance.randint(0, S - left)])
        pads = {"left": left, "right": right}
        states.append({"rule": RULES[n % 5], "T": T, "S": S, "W": W, **pads})
    return states


def bits(mask: Tensor) -> str:
    return "".join(str(int(cell)) for cell in mask.flatten())


def package(rule: str, T: int, S: int, W: int, left: int, right: int) -> Tensor:
    """What attnref computes of a rule."""
    ids = torch.arange(S) >= W
    masks = {
        "causal": lambda: attnref.causal_mask(T, S),
        "window": lambda: mask_of(attnref.Window(W), S)[-T:],
        "chunk": lambda: mask_of(attnref.Chunk(W), S)[-T:],
        "documents": lambda: mask_of(
            attnref.Causal() & attnref.Documents(ids.long()), S
        )[-T:],
        "all": lambda: torch.ones(T, S, dtype=torch.bool),
    }
    j = torch.arange(S)
    valid = ((j >= left) & (j < S - right))[None]
    return (masks[rule]() & attnref.padding_mask(valid)).view(T, S)


def test_each_line_evaluated_is_the_mask_that_it_shows(show):
    """As Python, with the names above it and those of attnref/plain/masks.py;
    and the first line is what the package computes."""
    states = drawn_states(500, seed=56)
    for state, result in zip(
        states, computed(show("mask"), "mask", states), strict=True
    ):
        names = {"torch": torch, **vars(plain)}
        exec("\n".join(result["names"]), names)
        shape = 1, 1, state["T"], state["S"]
        for (line, _), mask in zip(
            result["lines"], result["masks"], strict=True
        ):
            got = eval(line, names).expand(shape)
            assert bits(got) == mask, (state, line)
        assert result["masks"][0] == bits(package(**state)), state


def test_the_right_lines_are_those_of_the_plain_form(show):
    results = computed(show("mask"), "mask", [{"rule": r} for r in RULES[:2]])
    source = live.ROOT.joinpath("attnref/plain/masks.py").read_text("utf-8")
    for result, name in zip(
        results, ("causal_mask", "window_mask"), strict=True
    ):
        line, called = result["lines"][0]
        assert called == name
        end = line.partition(".")[2].replace("W", "size")
        assert f").{end}" in source


def test_is_causal_is_what_pytorch_does(show):
    states = [{"T": T, "S": S, "line": 1} for S in (4, 7) for T in (1, 3, S)]
    for state, result in zip(
        states, computed(show("mask"), "mask", states), strict=True
    ):
        q = torch.zeros(1, 1, state["T"], 4)
        k, v = torch.zeros(1, 1, state["S"], 4), torch.eye(state["S"])
        out = F.scaled_dot_product_attention(
            q, k, v[None, None], is_causal=True
        )
        assert result["lines"][1][1] == "is_causal=True"
        assert result["cells"] == bits(out > 0)
        assert bool(result["wrong"]) == (state["T"] < state["S"])
        assert result["lit"][:2] == [state["T"] == state["S"], True]


def test_a_painted_mask_of_a_rule_is_found(show):
    """Its line, its W and its pads compute it, or others the very same."""
    wanted = drawn_states(60, seed=3)
    states = [
        {
            "rule": "causal",
            "T": s["T"],
            "S": s["S"],
            "painted": bits(package(**s)),
        }
        for s in wanted
    ]
    page = show("mask")
    results = computed(page, "mask", states)
    for state, result in zip(states, results, strict=True):
        if found := result.get("found"):
            found.pop("line")
            assert bits(package(**found)) == state["painted"]
        else:
            assert any(result["lit"])
    odd = {"T": 2, "S": 3, "painted": "010101"}
    assert not computed(page, "mask", [odd])[0].get("found")


def cell(page, i: int, j: int) -> tuple[float, float]:
    """Where a cell of the usual sizes is."""
    box = page.locator(".live svg").bounding_box()
    unit, size = box["width"] / 400, 356 / 8
    return (
        box["x"] + unit * (42 + size * (j + 0.5)),
        box["y"] + unit * (40 + size * (i + 0.5)),
    )


@pytest.mark.parametrize("language", ["en", "zh"])
def test_cells_are_painted_by_mouse_and_keys(show, language):
    page = show("mask", language)
    said, lit = page.locator(".said"), page.locator(".choices .bad")
    first, last = cell(page, 5, 6), cell(page, 5, 7)
    page.mouse.move(*first)
    page.mouse.down()
    page.mouse.move(*last, steps=4)
    page.mouse.up()
    cells = "document.querySelector('.live').figure.result.cells"
    assert page.evaluate(cells)[8:16] == "11111111"
    assert "2" in said.inner_text()
    assert not lit.count()
    page.locator(".hit").press(" ")  # the cell that was painted last
    page.locator(".hit").press("ArrowLeft")
    page.locator(".hit").press(" ")
    assert page.evaluate(cells)[8:16] == "11111100"
    assert page.locator(".choices .lit").count() == 1
    page.locator(".choices label").nth(1).click()
    assert page.evaluate(cells) == "".join(
        "1" * (r + 1) + "0" * (7 - r) for r in range(4)
    )
    assert lit.count() == 1
    assert page.faults == []


def test_the_line_of_another_rule_is_offered_and_taken(show):
    page = show("mask")
    painted = bits(
        attnref.causal_mask(4, 8) & mask_of(attnref.Window(2), 8)[-4:]
    )
    page.goto(f"{page.url}?mask.painted={painted}")
    before = page.evaluate(
        "document.querySelector('.live').figure.result.cells"
    )
    page.locator(".choices label").last.click()
    rule = page.locator("[name=rule]").input_value()
    assert (rule, page.locator("[name=W]").input_value()) == ("window", "2")
    after = page.evaluate("document.querySelector('.live').figure.result")
    assert (after["cells"], after["wrong"]) == (before, [])


def test_moving_w_asks_for_a_window(show):
    page = show("mask")
    page.locator("[name=W]").press("ArrowUp")
    assert page.locator("[name=rule]").input_value() == "window"
