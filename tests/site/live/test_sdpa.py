"""One query and four keys on a plane."""

import torch

import attnref
from tests.kit.live import computed, equal


def test_its_numbers_are_those_of_the_package(show):
    page = show("sdpa")
    states, outs, weights = [], [], []
    for n in range(60):
        q, k, v = (torch.randn(s, dtype=torch.float64) for s in (2, 8, 8))
        seen = torch.rand(4) < 0.7 if n else torch.zeros(4, dtype=torch.bool)
        factor, scaled = 0.25 * n % 8, bool(n % 3)
        flags = {f"k{j + 1}": bool(x) for j, x in enumerate(seen)}
        states.append(
            {
                "q": q.clamp(-3, 3).tolist(),
                "k": k.clamp(-3, 3).tolist(),
                "v": v.clamp(-3, 3).tolist(),
                "factor": factor,
                "scaled": scaled,
                **flags,
            }
        )
        heads = [x.clamp(-3, 3).view(1, 1, -1, 2) for x in (q, k, v)]
        scale = factor * (2**-0.5 if scaled else 1)
        outs.append(attnref.sdpa(*heads, seen.view(1, 4), scale=scale)[0, 0, 0])
        weights.append(
            attnref.attention_weights(*heads[:2], seen.view(1, 4), scale=scale)[
                0, 0, 0
            ]
        )
    results = computed(page, "sdpa", states)
    equal([r["out"] for r in results], torch.stack(outs))
    equal([r["weights"] for r in results], torch.stack(weights))
