"""Three scores, an offset and a temperature, in the range of three dtypes."""

import math

import torch

import attnref
from sitekit.drawn import softmax
from tests.kit.live import computed, equal


def states(n=80):
    """Drawn scores; the offsets reach below and above each range."""
    for k in range(n):
        yield {
            "scores": (torch.rand(3, dtype=torch.float64) * 7 - 3).tolist(),
            "offset": (-100, -30, 0, 0, 6, 20, 60, 100)[k % 8],
            "temperature": (0.25, 0.5, 1, 1.75, 4)[k % 5],
            "safe": k % 3 == 0,
            "dtype": ("float16", "bfloat16", "float32")[k // 8 % 3],
        }


def x_of(state):
    scores = torch.tensor(state["scores"], dtype=torch.float64)
    return (scores + state["offset"]) / state["temperature"]


def test_its_weights_are_those_of_the_package(show):
    drawn = [*states()]
    finite = 0
    for state, result in zip(
        drawn, computed(show("softmax"), "softmax", drawn), strict=True
    ):
        want = attnref.softmax(x_of(state))
        if state["safe"]:
            equal(result["weights"], want, 1e-6)
        elif state["dtype"] == "float32" and abs(x_of(state)).max() < 60:
            equal(result["weights"], want)
            finite += 1
    assert finite > 3


def test_it_overflows_and_underflows_where_torch_does(show):
    drawn = [{**s, "safe": False} for s in states(120)]
    kinds = set()
    for state, result in zip(
        drawn, computed(show("softmax"), "softmax", drawn), strict=True
    ):
        x = x_of(state)
        limits = [math.log(z) for z in softmax.ranges()[state["dtype"]]]
        if any(abs(z - end) < 1.5 for z in x.tolist() for end in limits):
            continue  # rounding decides
        e = x.to(getattr(torch, state["dtype"])).exp()
        assert [z is None or math.isinf(z) for z in result["e"]] == [
            math.isinf(z) for z in e.tolist()
        ]
        assert [z == 0 for z in result["e"]] == [z == 0 for z in e.tolist()]
        lost = (e / e.sum()).isnan().tolist()
        assert [z is None or math.isnan(z) for z in result["weights"]] == lost
        kinds.add((bool(e.isinf().any()), bool((e == 0).all())))
    assert kinds == {(False, False), (True, False), (False, True)}


def test_an_offset_changes_nothing_and_a_temperature_does(show):
    page = show("softmax")
    usual, shifted, sharp = computed(
        page, "softmax", [{}, {"offset": 5}, {"temperature": 0.5}]
    )
    equal(shifted["weights"], usual["weights"])
    equal(usual["weights"], attnref.softmax(torch.tensor([2.0, 1, 0]).double()))
    assert max(sharp["weights"]) > max(usual["weights"]) + 0.1
