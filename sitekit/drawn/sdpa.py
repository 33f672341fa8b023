"""Attention by hand, and why scores are scaled."""

from collections.abc import Iterator

import torch
from markupsafe import Markup
from torch import Tensor

import attnref
from attnref.numbers.kv_memory import size
from sitekit.drawing import steps
from sitekit.drawing.steps import Frame, Steps
from sitekit.markdown.render import Row, Word

# I like you <pad> as four vectors of width 2.
TOKENS: Row = [Word("first"), Word("second"), Word("third"), "`<pad>`"]
EMBEDDED = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0], [1.0, 1.0]])
VALID = torch.tensor([[True, True, True, False]])


def weights() -> Tensor:
    x = EMBEDDED[None, None]
    mask = attnref.causal_mask(4) & attnref.padding_mask(VALID)
    return attnref.attention_weights(x, x, mask)[0, 0]


def vector(x: Tensor) -> str:
    return f"({', '.join(f'{round(n, 2):g}' for n in x.tolist())})"


def outputs() -> Iterator[Row]:
    """Dot products, weights and output of each query."""
    allowed = attnref.causal_mask(4) & VALID
    out = weights() @ EMBEDDED
    for i, token in enumerate(TOKENS):
        seen = allowed[i]
        dots = EMBEDDED[seen] @ EMBEDDED[i]
        yield [
            token,
            vector(EMBEDDED[i]),
            ", ".join(f"{d:g}" for d in dots.tolist()),
            ", ".join(f"{w:.2f}" for w in weights()[i][seen].tolist()),
            vector(out[i]),
        ]


def dot_products() -> Iterator[Row]:
    """Spread of the scores, largest weight and slope, unscaled and scaled."""
    samples, keys = 4096, 32
    for D in (4, 16, 64, 256):
        torch.manual_seed(0)
        q = torch.randn(1, samples, 1, D)
        k = torch.randn(1, samples, keys, D)
        dots = q @ k.mT
        both = [attnref.attention_weights(q, k, scale=s) for s in (1, D**-0.5)]
        top = [A.amax(-1).mean() for A in both]
        slope = [(A * (1 - A)).sum(-1).mean() for A in both]
        yield [
            str(D),
            f"{dots.std().item():.1f}",
            *(f"{mean.item():.2f}" for mean in (*top, *slope)),
        ]


# Three words for the steps: the query of the last one, keys and values.
QUERY = torch.tensor([1.0, 2.0])
KEYS = torch.tensor([[2.0, 0.0], [1.0, 1.0], [-1.0, 1.0]])
OF_KEYS = torch.tensor([[2.0, 0.0], [0.0, 2.0], [-2.0, -1.0]])
UNIT, INDEX = 34, "\u2081\u2082\u2083"


def _plane(x: float) -> tuple[complex, list[Markup]]:
    """Its origin, and its axes."""
    origin, half = complex(x, 98), 2.35 * UNIT
    cross = ((-half, half), (-half * 1j, half * 1j))
    axes = [steps.path("axes", [origin + a, origin + b]) for a, b in cross]
    return origin, axes


def _at(origin: complex, vector: Tensor) -> complex:
    x, y = vector.tolist()
    return origin + UNIT * complex(x, -y)


def _named(kind: str, name: str, origin: complex, vector: Tensor) -> Markup:
    """An arrow with its letter beyond its tip."""
    tip = _at(origin, vector)
    beyond = tip + 13 * (tip - origin) / abs(tip - origin)
    letter = steps.text(kind, beyond.real, beyond.imag, name)
    return steps.arrow(kind, origin, tip) + letter


def three_words() -> Steps:
    """One query, three keys and values: arrows and dot products, scores,
    weights, and the output within the triangle of the values."""
    q, k, v = QUERY[None, None, None], KEYS[None, None], OF_KEYS[None, None]
    dots = KEYS @ QUERY
    scores = dots / 2**0.5
    weight = attnref.attention_weights(q, k)[0, 0, 0]
    out = attnref.sdpa(q, k, v)[0, 0, 0]
    left, axes = _plane(92)
    right, more = _plane(286)
    query = _named("query", "q", left, QUERY)
    keys = [
        _named("key", f"k{i}", left, key)
        for i, key in zip(INDEX, KEYS, strict=True)
    ]
    values = [
        _named("value", f"v{i}", right, value)
        for i, value in zip(INDEX, OF_KEYS, strict=True)
    ]
    facts = {
        "dots": ", ".join(f"{d:g}" for d in dots.tolist()),
        "scores": ", ".join(f"{s:.2f}" for s in scores.tolist()),
        "weights": ", ".join(f"{w:.2f}" for w in weight.tolist()),
        "output": vector(out),
    }

    def rows(head: str, cells: list[str]) -> Iterator[Markup]:
        """Beside the plane, one row per word."""
        yield steps.text("soft small start", 200, 34, head)
        words = ("first", "second", "third")
        for n, (word, cell) in enumerate(zip(words, cells, strict=True)):
            y = 70 + 40 * n
            yield steps.text("start", 200, y, f"{{{word}}}")
            yield steps.text("key end", 268, y, f"k{INDEX[n]}")
            yield steps.text("end", 372, y, cell)

    ends = [KEYS[i] @ QUERY / (QUERY @ QUERY) * QUERY for i in range(3)]
    shadows = [
        steps.path("ray", [_at(left, key), _at(left, end)])
        for key, end in zip(KEYS, ends, strict=True)
    ]
    compared = [*axes, query, *keys, *shadows]
    shares = [
        steps.box("query-share", 282, 61 + 40 * n, 50 * w, 18)
        for n, w in enumerate(weight.tolist())
    ]
    hull = steps.path("hull", [_at(right, x) for x in OF_KEYS], closed=True)
    sums = [
        steps.text("start", 8, 50 + 36 * n, f"{w:.2f} \u00b7")
        + steps.text("value start", 62, 50 + 36 * n, f"v{INDEX[n]}")
        + steps.text("start soft", 88, 50 + 36 * n, f"= {vector(w * x)}")
        for n, (w, x) in enumerate(zip(weight, OF_KEYS, strict=True))
    ]
    total = steps.text("value start", 8, 166, f"o = {vector(out)}")
    divided = [
        f"{d:g} → {s:.2f}"
        for d, s in zip(dots.tolist(), scores.tolist(), strict=True)
    ]
    drawn = [
        [*axes, *more, query, *keys, *values],
        [*compared, *rows("q \u00b7 k", [f"{d:g}" for d in dots.tolist()])],
        [*compared, *rows("q \u00b7 k / \u221a2", divided)],
        [
            *compared,
            *shares,
            *rows("softmax", [f"{w:.2f}" for w in weight.tolist()]),
        ],
        [
            *(*more, hull, *values, *sums, total),
            _named("out value", "o", right, out),
        ],
    ]
    return Steps(380, 196, [Frame(marks, facts) for marks in drawn])


def numbers() -> dict[str, object]:
    """What the text says of the third word, and of scores in memory."""
    scores = EMBEDDED[:3] @ EMBEDDED[2] / 2**0.5
    of_like, of_you = scores[1:].tolist()
    exponentials, (first, second, third, _) = scores.exp(), weights()[2]
    return {
        "score_2": of_like,
        "score_3": of_you,
        "exp_2": exponentials[1],
        "exp_3": exponentials[2],
        "sum": exponentials.sum(),
        "weight_1": first,
        "weight_2": second,
        "weight_3": third,
        "scores": size(12 * 32 * 8192**2),
    }
