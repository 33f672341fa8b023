"""Eight keys of eight channels in few bits."""

import torch

from attnref.plain.quantised import quantise, restore, to_fp8
from sitekit.drawn import quantised
from tests.kit.live import equal

HADAMARD = torch.ones(1, 1, dtype=torch.float64)
for _ in range(3):
    pair = torch.cat((HADAMARD, HADAMARD), dim=1)
    HADAMARD = torch.cat((pair, torch.cat((HADAMARD, -HADAMARD), dim=1)))
HADAMARD /= 8**0.5

COMPUTE = """states => states.map(([state, keys]) => {
  const { usual, compute } = live.figures.bits;
  const { data } = document.querySelector('[data-live="bits"]').figure;
  return compute({ ...usual, ...state }, { ...data, keys });
})"""


def stored(keys, state):
    """The keys as the plain form restores them."""
    k = keys.clone()
    k[:, state["channel"]] += state["size"]
    x = k @ HADAMARD if state["rotated"] else k
    if state["bits"] == "fp8":
        scale = x.abs().max().float() / 448
        back = to_fp8(x, scale).float() * scale
    else:
        bits, group = int(state["bits"]), int(state["group"])
        dim = -1 if state["along"] == "token" else -2
        back = restore(*quantise(x, bits, dim, group), bits, dim)
    back = back.double()
    return k, back @ HADAMARD.mT if state["rotated"] else back


def test_its_keys_are_those_of_the_package(show):
    page = show("bits")
    states, keys = [], []
    for n in range(96):
        state = {
            "bits": ("8", "4", "2", "fp8")[n % 4],
            "along": ("token", "channel")[n // 4 % 2],
            "group": ("4", "8")[n // 8 % 2],
            "rotated": bool(n // 24 % 2),
            "size": 20 * torch.rand(()).item(),
            "channel": n % 8,
        }
        size = (0.01, 1, 30)[n % 3]  # FP8 has steps of its own near 0
        keys.append(size * torch.randn(8, 8, dtype=torch.float64))
        states.append(state)
    drawn = [[s, k.tolist()] for s, k in zip(states, keys, strict=True)]
    for result, state, k in zip(
        page.evaluate(COMPUTE, drawn), states, keys, strict=True
    ):
        exact, back = stored(k, state)
        equal(result["keys"], exact)
        equal(result["restored"], back)
        equal(result["error"], (back - exact).abs().mean())
        equal(result["errors"][result["now"]], result["error"])


def test_bits_with_scales_are_those_of_the_cache():
    k = torch.randn(1, 1, 8, 8)
    bits = quantised.eight()["bits"]
    for name, of_an_element in bits.items():
        if name == "fp8":
            assert 8 * to_fp8(k, 1.0).nbytes == of_an_element * k.numel()
            continue
        b, g = map(int, name.split(","))
        parts = quantise(k, b, -1, g)
        assert 8 * sum(x.nbytes for x in parts) == of_an_element * k.numel()
