"""Pairs as turning arrows, and wavelengths of the pairs."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

import attnref
from sitekit.drawing import steps
from sitekit.drawing.steps import Frame, Steps
from sitekit.markdown.render import Row

FAR = 12  # as far as the curve of the scores goes


def _turned(position: int) -> Tensor:
    """Four pairs that point to the right, rotated, as complex numbers."""
    x = torch.tensor([1.0] * 4 + [0.0] * 4).double().expand(1, 1, 1, 8)
    table = attnref.rope_table(torch.tensor([position]), 8)
    return torch.complex(*attnref.apply_rope(x, *table)[0, 0, 0].chunk(2))


def _score(query: int, key: int) -> float:
    """Of this vector, with length 1, at two positions."""
    return (_turned(query) * _turned(key).conj()).real.mean().item()


def turning() -> Steps:
    """A clock for each pair, with the hands of a key and a query; below it
    the angle between them, and the score at each distance."""
    frames, radius = [], 36
    curve = [
        complex(64 + 24 * d, 208 - 56 * _score(d, 0)) for d in range(FAR + 1)
    ]
    for query, key in ((0, 0), (1, 0), (3, 0), (6, 0), (8, 5)):
        marks, far = [], query - key
        angles = (_turned(query) / _turned(key)).angle().rad2deg().tolist()
        for p, angle in enumerate(angles):
            middle = complex(50 + 93 * p, 62)
            marks.append(steps.text("soft small", middle.real, 10, f"p = {p}"))
            marks.append(steps.circle("dial", middle.real, middle.imag, radius))
            for kind, at in (("key", key), ("query", query)):
                hand = radius * _turned(at)[p].item().conjugate()
                marks.append(steps.arrow(kind, middle, middle + hand))
            marks.append(
                steps.text("small", middle.real, 110, f"{angle:.3g}\u00b0")
            )
        score = _score(query, key)
        dot = curve[far]
        marks += [
            steps.path("axes", [complex(64, 208), complex(360, 208)]),
            steps.path("curve", curve),
            steps.circle("query", dot.real, dot.imag, 5),
            steps.text("soft small end", 52, 162, "{score}"),
            steps.text("soft small", 64, 226, "0"),
            steps.text("soft small", 64 + 24 * FAR, 226, str(FAR)),
            steps.text("soft small", 208, 226, "{distance}"),
            steps.text("query end", 52, 182, f"{score:.2f}"),
        ]
        facts = {"query": str(query), "key": str(key), "far": str(far)}
        frames.append(Frame(marks, facts | {"score": f"{score:.2f}"}))
    return Steps(380, 236, frames)


def distances() -> Iterator[Row]:
    """The cosine of each pair at each distance, and their mean."""
    cos, _ = attnref.rope_table(torch.arange(6), 8)
    for distance, row in enumerate(cos):
        cells = [*row.tolist(), row.mean().item()]
        yield [str(distance), *(f"{cell:.2f}" for cell in cells)]


def wavelengths(dim: int) -> Iterator[Row]:
    """Tokens until a pair has turned once, for two bases."""
    for p in (0, dim // 8, dim // 4, 3 * dim // 8, dim // 2 - 1):
        turn = [2 * math.pi * theta ** (2 * p / dim) for theta in (1e4, 5e5)]
        yield [str(p), *(f"{n:,.0f}" if n > 100 else f"{n:.1f}" for n in turn)]


def numbers() -> dict[str, object]:
    """What the text says of the slowest pair."""
    return {"slowest": 10_000 ** (1 - 2 / 128)}
