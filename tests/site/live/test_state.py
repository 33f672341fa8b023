"""Six tokens that are written into a state of 2 by 2."""

import torch

from attnref.core.recurrence import chunked, scan
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
