"""Six tokens that are written into a state of 2 by 2."""

import torch

from attnref.core.recurrence import chunked, scan
from tests.kit import budget
from tests.kit.live import computed, equal

RULES = ("linear", "decay", "delta", "gated")


def test_its_states_are_those_of_the_package(show):
    """Token by token they are those of `scan`, three at once of `chunked`."""
    page = show("state")
    states, wants, reads = [], [], []
    for n in range(48):
        turns = torch.rand(6, dtype=torch.float64) * 360
        v = torch.randn(6, 2, dtype=torch.float64).clamp(-4, 4)
        beta, decay = torch.rand(2, dtype=torch.float64).mul(0.9).add(0.1)
        t, rule = n % 6 + 1, RULES[n // 6 % 4]
        states.append(
            {
                "rule": rule,
                "t": t,
                "k": turns.tolist(),
                "v": v.flatten().tolist(),
                "beta": beta.item(),
                "decay": decay.item(),
            }
        )
        angles = turns.deg2rad()
        k = torch.stack((angles.cos(), angles.sin()), dim=-1)[:t].view(
            1, 1, t, 2
        )
        ones = torch.ones(1, 1, t, dtype=torch.float64)
        g = ones * (decay.log() if rule in ("decay", "gated") else 0)
        b = ones * beta if rule in ("delta", "gated") else None
        empty = k.new_zeros(1, 1, 2, 2)
        tokens = (k, k, v[:t].view(1, 1, t, 2), g)
        _, want = scan(*tokens, empty, beta=b)
        _, same = chunked(*tokens, empty, beta=b, chunk=3)
        equal(same.tolist(), want)
        wants.append(want[0, 0])
        reads.append((k @ want)[0, 0])
    results = computed(page, "state", states)
    equal([r["state"] for r in results], torch.stack(wants))
    equal([r["chunk"]["state"] for r in results], torch.stack(wants))
    for result, read in zip(results, reads, strict=True):
        equal(result["reads"], read)


def test_what_it_says_of_the_earlier_keys_is_what_the_bars_show(show):
    """With every rule: which of them is furthest off, or that none is."""
    page = show("state")
    for rule in RULES:
        for t in range(2, 7):
            for k in ([8, 100, 28, 155, 290, 120], [0, 90, 0, 90, 0, 90]):
                part = {"rule": rule, "t": t, "beta": 0.7, "k": k}
                text, errors = page.evaluate(
                    """(part) => {
                      const { figure } = document.querySelector(".live");
                      figure.change({ ...live.figures.state.usual, ...part });
                      const said = figure.box.querySelector(".said");
                      return [said.textContent, figure.result.errors];
                    }""",
                    part,
                )
                *earlier, last = errors
                most = max(earlier)
                n = earlier.index(most)
                key = f"k{'₁₂₃₄₅₆'[n]} is furthest off: it misses its value by"
                assert (f"{key} {most:.2f}" in text) == (most >= 0.005)
                assert ("still reads its value" in text) == (most < 0.005)
                assert ("exactly" in text) == (last < 0.005)


def test_what_is_read_never_leaves_the_plane(show):
    """Beyond its edge stands an arrow; each name has a place of its own."""
    page = show("state")
    page.evaluate(budget.FORCE, "DejaVu Sans")  # the widest
    for rule in RULES:
        names = page.evaluate(
            """(rule) => {
              const { figure } = document.querySelector(".live");
              figure.change({ ...live.figures.state.usual, rule, t: 6 });
              const svg = figure.stage.querySelectorAll("svg")[1];
              return [...svg.querySelectorAll("text")].map((text) => {
                const { x, y, width, height } = text.getBBox();
                return [text.textContent, x, y, x + width, y + height];
              });
            }""",
            rule,
        )
        assert len(names) == 12
        for i, (name, left, top, right, bottom) in enumerate(names):
            assert 0 <= left < right <= 400, name
            assert 0 <= top < bottom <= 214, name
            for other, x, y, end, low in names[:i]:
                apart = left >= end or right <= x or top >= low or bottom <= y
                assert apart, f"{rule}: {name} over {other}"
