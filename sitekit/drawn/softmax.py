"""Temperatures, where exp overflows, and the online form step by step."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

import attnref
from sitekit.drawing import steps
from sitekit.drawing.steps import Frame, Steps
from sitekit.drawn.masks import DTYPES
from sitekit.markdown.render import Row
from sitekit.markdown.tables import code


def _number(x: float) -> str:
    """Three significant digits: 6.55e+4 -> 65500, 3.4e+38 -> 3.40e38."""
    if math.isinf(x):
        return "inf"
    if 1e-3 <= abs(x) < 1e6:
        return f"{x:.3g}" if abs(x) < 1000 else f"{x:.0f}"
    mantissa, exponent = f"{x:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def weights(temperature: float, more: float = 0) -> Tensor:
    """Of the scores 2, 1 and 0, to two digits; or of larger ones."""
    scores = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64) + more
    return attnref.softmax(scores / temperature).round(decimals=2)


def temperatures() -> Steps:
    """Scores, what they are divided by, and weights as bars."""
    frames = []
    for temperature, more in ((1, 0), (1, 100), (0.5, 0), (2, 0)):
        values = weights(temperature, more).tolist()
        marks = [
            steps.text("soft small end", 112, 16, "{score}"),
            steps.text("soft small start", 130, 16, "{weight}"),
        ]
        for n, w in enumerate(values):
            y = 54 + 44 * n
            score = f"{2 - n + more:g}"
            if temperature != 1:
                score += f" / {temperature:g}"
            marks += [
                steps.text("query end", 112, y, score),
                steps.box("share", 130, y - 13, 190 * w, 26),
                steps.text("start", 138 + 190 * w, y, f"{w:.2f}"),
            ]
        scores = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64) + more
        exponentials = (scores / temperature).exp()
        both = {"exponentials": exponentials.tolist(), "weights": values}
        facts = {k: ", ".join(f"{x:.2f}" for x in v) for k, v in both.items()}
        facts["sum"] = f"{exponentials.sum():.2f}"
        frames.append(Frame(marks, facts))
    return Steps(380, 170, frames)


def exp_range() -> Iterator[Row]:
    """Where exp overflows in each dtype, and what the naive form returns."""
    for dtype in DTYPES:
        largest = torch.finfo(dtype).max
        limit = math.log(largest)
        past = torch.tensor([math.floor(limit) + 1.0, 0.0], dtype=dtype)
        both = past.exp() / past.exp().sum(), attnref.softmax(past)
        yield [
            code(dtype),
            _number(largest),
            f"{limit:.1f}",
            _number(torch.tensor(12.0, dtype=dtype).exp().item()),
            *(code([round(w, 3) for w in x.tolist()]) for x in both),
        ]


# Small scores, so that each number can be checked, and a value for each.
SCORES = (1.0, 0.0, 2.0, 1.0, 0.0)
VALUES = (10.0, 20.0, 30.0, 40.0, 50.0)


def chunks() -> Iterator[Row]:
    """Maximum, sum and output after each chunk of two scores."""
    m, total, out = -math.inf, 0.0, 0.0
    for start in range(0, len(SCORES), 2):
        scores = SCORES[start : start + 2]
        largest = max(m, *scores)
        scale = math.exp(m - largest)
        new = [math.exp(s - largest) for s in scores]
        values = VALUES[start : start + 2]
        total = total * scale + sum(new)
        out = out * scale + sum(e * v for e, v in zip(new, values, strict=True))
        m = largest
        yield [
            ", ".join(f"{s:g}" for s in scores),
            f"{m:g}",
            f"{scale:.4f}",
            f"{total:.4f}",
            f"{out:.2f}",
            f"{out / total:.2f}",
        ]


def numbers() -> dict[str, object]:
    """What the text says of three scores, and of chunks."""
    one, two, three = weights(temperature=1).tolist()
    (_, _, _, first, *_), (_, _, factor, both, *_), *_ = chunks()
    return {
        "exp_of_2": math.exp(2),
        "exp_of_1": math.exp(1),
        "sum": math.exp(2) + math.exp(1) + 1,
        "first": one,
        "second": two,
        "third": three,
        "rescaled": math.exp(-1),
        "two_chunks": 1 + math.exp(-1),
        "overflow": math.log(torch.finfo(torch.float16).max),
        "sum_1": first,
        "factor": factor,
        "sum_2": both,
    }
