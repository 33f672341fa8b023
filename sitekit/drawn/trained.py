"""What two layers of attention learn: losses, and where their heads look, as
tests/site/test_trained.py recorded them."""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from functools import cache
from math import log
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.figure import Figure

from sitekit.drawing import plots, svg
from sitekit.drawing.plots import Plot
from sitekit.markdown.render import Row, Word

RECORDED = Path(__file__).with_suffix(".json")
EVERY = 5  # steps
EXAMPLE = "FLAMINGOFLAMINGO"
PERIOD = len(EXAMPLE) // 2
# The least mean loss of new symbols: of those that are left, each is as likely,
# and which of six periods a row has is not known either.
PERIODS = range(5, 11)
LEFT = [sum(log(16 - t) for t in range(1, n)) for n in PERIODS]
FLOOR = (sum(LEFT) + 6 * log(6)) / sum(PERIODS)
# The plain form, one layer of it, and with mistakes of the catalogue.
RUNS = ("right", "one", "not-causal", "split-by-view-alone", "rope-over-heads")


@cache
def recorded() -> dict[str, dict[str, Any]]:
    runs = json.loads(RECORDED.read_text(encoding="utf-8"))["runs"]
    return {each["name"]: each for each in runs}


def run(name: str) -> dict[str, Any]:
    return recorded()[name]


LOOKS = {"before": -1, "after": 1 - PERIOD, "next": 1}


def looks(head: list[list[int]]) -> dict[str, float]:
    """How much of a head's weights, in the second half of the example, is on
    the token before, on what came after the same symbol, on the next token."""
    rows = range(PERIOD, 2 * PERIOD - 1)
    return {
        name: sum(head[t][t + by] for t in rows) / 100 / len(rows)
        for name, by in LOOKS.items()
    }


def kinds(run: dict[str, Any]) -> list[str]:
    """What each head mostly does, if it mostly does one thing."""
    each = [looks(head) for head in run["heads"]]
    most = [max(shares, key=shares.__getitem__) for shares in each]
    pairs = zip(most, each, strict=True)
    return [name if shares[name] > 0.4 else "other" for name, shares in pairs]


def trainings() -> Iterator[Row]:
    for name, run in recorded().items():
        heads: list[str | Word] = [*map(Word, dict.fromkeys(kinds(run)))]
        yield [
            Word(name),
            f"{run['new']:.2f}",
            f"{run['again']:.2f}",
            f"{run['completed']:.0%}",
            heads,
        ]


def course() -> Plot:
    """Both losses of each training, and what no model can fall below."""

    def draw(narrow: bool) -> Figure:
        columns, size = (2, (360, 620)) if narrow else (3, (740, 400))
        figure = Figure(figsize=(size[0] / 72, size[1] / 72), dpi=72)
        figure.patch.set_visible(False)
        for n, name in enumerate(RUNS):
            axes = figure.add_subplot(6 // columns, columns, n + 1)
            new, again = zip(*run(name)["course"], strict=True)
            steps = [EVERY * i for i in range(len(new))]
            axes.patch.set_visible(False)
            axes.axhline(FLOOR, color=plots.SOFT, lw=1, ls=(0, (2, 2)))
            axes.plot(steps, new, color=plots.WARM, lw=1.6, ls=(0, (5, 1.5)))
            axes.plot(steps, again, color=plots.GREEN, lw=1.8)
            axes.set(xlim=(0, steps[-1]), ylim=(0, 3.4), xticks=(0, 100, 200))
            word = name.replace("-", "_")
            axes.set_title(f"{{{word}}}", fontsize=11, loc="left")
            axes.tick_params(length=0, pad=5)
            if not n:
                axes.text(60, log(16) + 0.22, "{new}", color=plots.WARM)
                axes.text(150, 0.5, "{again}", color=plots.GREEN)
        figure.subplots_adjust(0.06, 0.06, 0.98, 0.94, hspace=0.35)
        return figure

    rows: list[Row] = [
        [
            Word(name.replace("-", "_")),
            str(EVERY * i),
            *(f"{loss:.2f}" for loss in losses),
        ]
        for name in RUNS
        for i, losses in enumerate(run(name)["course"])
        if i % 20 == 0
    ]
    return plots.plotted(draw, rows)


MAP = Markup('<path class="weight" d="{}" fill-opacity="{}"/>')
STRONG = {5: 0.2, 20: 0.45, 45: 0.7, 75: 1}  # from which %, how opaque


def script() -> str:
    """assets/weights.js: the parameters of the right model. All lower bytes
    stand before all upper ones, which are alike: it travels compressed."""
    every = json.loads(RECORDED.read_text(encoding="utf-8"))["parameters"]
    both = b64decode(every)
    apart = b64encode(both[::2] + both[1::2]).decode()
    return f'const trainedWeights = "{apart}";\n'


class Head(NamedTuple):
    """The weights of a head in %, (T, T)."""

    weights: list[list[int]]

    def drawing(self, axes: tuple[str, str], *, title: str) -> svg.Drawing:
        """A square for each weight from 5 %, the stronger the larger it is."""
        cell, left = 11, 33
        side = cell * len(EXAMPLE)
        paths = dict.fromkeys(STRONG, "")
        for t, row in enumerate(self.weights):
            for s, weight in enumerate(row):
                least = max((d for d in STRONG if d <= weight), default=None)
                if least is not None:
                    corner = f"M{left + s * cell} {left + t * cell}"
                    paths[least] += f"{corner}h10v10h-10z"
        marks = [
            MAP.format(path, STRONG[least])
            for least, path in paths.items()
            if path
        ]
        marks.append(svg.BOX.format("frame", left, left, side, side, 0, ""))
        at = [left + cell * (i + 0.5) for i in range(len(EXAMPLE))]
        marks += [
            mark
            for place, symbol in zip(at, EXAMPLE, strict=True)
            for mark in (
                svg.TEXT.format("symbol", place, left - 7, "", symbol),
                svg.TEXT.format("symbol", left - 9, place, "", symbol),
            )
        ]
        middle = left + side / 2
        turned = svg.UPWARDS.format(10, middle)
        marks.append(svg.TEXT.format("axis", middle, 10, "", axes[1]))
        marks.append(svg.TEXT.format("axis", 0, 0, turned, axes[0]))
        wide = left + side + 1
        drawn = svg.SVG.format(wide, wide, title, Markup("").join(marks))
        return svg.Drawing(title, svg.room([title], 1), wide, drawn)


def head(name: str, number: int) -> Head:
    """Of those of all layers, counted from 0."""
    return Head(run(name)["heads"][number])


def numbers() -> dict[str, object]:
    """Losses that the text tells."""
    return {"floor": FLOOR, "one_layer": run("one")["again"]}
