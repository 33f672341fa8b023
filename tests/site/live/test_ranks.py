"""Ranks that wait: the figure counts what the package does."""

from attnref.numbers.ranks import pairs, placed, waiting
from tests.kit.live import computed

TOKENS = 16


def test_pairs_are_those_of_the_package(show):
    page = show("ranks")
    states = [
        {"ranks": n, "how": how, "step": 0}
        for n in range(1, 5)
        for how in ("zigzag", "striped", "contiguous")
    ]
    results = computed(page, "ranks", states)
    for state, result in zip(states, results, strict=True):
        options = TOKENS, state["ranks"], state["how"]
        assert result["held"] == placed(*options)
        assert result["pairs"] == pairs(*options)
        ideal = sum(result["totals"]) / state["ranks"]
        assert abs(result["all"] / ideal - waiting(*options)) < 1e-9
