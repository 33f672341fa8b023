"""Ten keys, of which an indexer chooses some."""

import torch

import attnref
from tests.kit.live import computed, equal


def test_its_outputs_are_those_of_the_package(show):
    """Those of `sdpa`, with a mask of the keys with the best scores."""
    page = show("chosen")
    values = page.evaluate("live.figures.chosen.values")
    noise = page.evaluate("live.figures.chosen.noise")
    states, outs, fulls, kept = [], [], [], []
    for n in range(60):
        q, k = (torch.randn(s, dtype=torch.float64) for s in (2, 20))
        q, k = 2 * q.clamp(-2, 2), k.clamp(-4, 4)
        topk, error, indexer = n % 10 + 1, n % 7 / 2, n % 4
        states.append(
            {
                "q": q.tolist(),
                "k": k.tolist(),
                "topk": topk,
                "error": error,
                "indexer": indexer,
            }
        )
        q, k = q.view(1, 1, 1, 2), k.view(1, 1, 10, 2)
        v = torch.tensor(values, dtype=torch.float64).view(1, 1, 10, 2)
        off = torch.tensor(noise, dtype=torch.float64).roll(-3 * indexer)
        scores = (q @ k.mT)[0, 0] / 2**0.5 + error * off
        chosen = scores.topk(topk).indices
        mask = torch.zeros(1, 10, dtype=torch.bool).scatter(1, chosen, True)
        outs.append(attnref.sdpa(q, k, v, mask)[0, 0, 0])
        fulls.append(attnref.sdpa(q, k, v)[0, 0, 0])
        weights = attnref.attention_weights(q, k)[0, 0]
        kept.append(weights[mask].sum())
    results = computed(page, "chosen", states)
    equal([r["out"] for r in results], torch.stack(outs))
    equal([r["full"] for r in results], torch.stack(fulls))
    equal([r["share"] for r in results], torch.stack(kept))
    lost = (torch.stack(outs) - torch.stack(fulls)).norm(dim=-1)
    equal([r["lost"] for r in results], lost)
