"""What two layers of attention learn: losses, and where their heads look, as
tests/site/test_trained.py recorded them."""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from functools import cache
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import torch
from markupsafe import Markup
from matplotlib.figure import Figure

from attnref.core.fused import fused
from attnref.layers.block import Block, Decoder
from attnref.layers.gqa import GroupedQueryAttention
from sitekit.drawing import plots, svg
from sitekit.drawing.plots import Plot
from sitekit.markdown.render import Row, Word

RECORD = Path(__file__).with_suffix(".json")
STRIDE = 5  # steps
EXAMPLE = "FLAMINGOFLAMINGO"
PERIOD = len(EXAMPLE) // 2
# The least mean loss of new symbols: of those that are left, each is as likely,
# and which of six periods a row has is not known either.
PERIODS = range(5, 11)
LOSS_OF_NEW = [sum(log(16 - t) for t in range(1, n)) for n in PERIODS]
FLOOR = (sum(LOSS_OF_NEW) + 6 * log(6)) / sum(PERIODS)
# The plain form, one layer of it, and with mistakes of the catalogue.
RUNS = ("right", "one", "not-causal", "split-by-view-alone", "rope-over-heads")


@cache
def runs() -> dict[str, dict[str, Any]]:
    rows = json.loads(RECORD.read_text(encoding="utf-8"))["runs"]
    return {row["name"]: row for row in rows}


def run(name: str) -> dict[str, Any]:
    return runs()[name]


LOOKS = {"before": -1, "after": 1 - PERIOD, "next": 1}


def looks(head: list[list[int]]) -> dict[str, float]:
    """How much of a head's weights, in the second half of the example, is on
    the token before, on what came after the same symbol, on the next token."""
    rows = range(PERIOD, 2 * PERIOD - 1)
    return {
        name: sum(head[t][t + offset] for t in rows) / 100 / len(rows)
        for name, offset in LOOKS.items()
    }


def kinds(run: dict[str, Any]) -> list[str]:
    """What each head mostly does, if it mostly does one thing."""
    looks_of_heads = [looks(head) for head in run["heads"]]
    strongest = [max(shares, key=shares.__getitem__) for shares in looks_of_heads]
    pairs = zip(strongest, looks_of_heads, strict=True)
    return [name if shares[name] > 0.4 else "other" for name, shares in pairs]


def trainings() -> Iterator[Row]:
    for name, run in runs().items():
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
            losses_of_new, losses_of_repeated = zip(*run(name)["course"], strict=True)
            steps = [STRIDE * i for i in range(len(losses_of_new))]
            axes.patch.set_visible(False)
            axes.axhline(FLOOR, color=plots.SOFT, lw=1, ls=(0, (2, 2)))
            axes.plot(steps, losses_of_new, color=plots.WARM, lw=1.6, ls=(0, (5, 1.5)))
            axes.plot(steps, losses_of_repeated, color=plots.GREEN, lw=1.8)
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
        [Word(name.replace("-", "_")), str(STRIDE * i), *(f"{loss:.2f}" for loss in losses)]
        for name in RUNS
        for i, losses in enumerate(run(name)["course"])
        if i % 20 == 0
    ]
    return plots.plotted(draw, rows)


STRONG = {5: 0.2, 20: 0.45, 45: 0.7, 75: 1}  # from which %, how opaque
PITCH, SQUARE = 11, 10  # px: of the squares of a head
CELLS = 35  # px: where the squares begin, on both axes


def decoder(n_layers: int, n_tokens: int, theta: float, **sizes: Any) -> Decoder:
    E = sizes["d_model"]
    layers = [
        GroupedQueryAttention(**sizes, rope_theta=theta, attend=fused) for _ in range(n_layers)
    ]
    blocks = [Block(layer, d_model=E, d_ff=2 * E) for layer in layers]
    return Decoder(blocks, d_model=E, n_tokens=n_tokens).eval()


def trained_decoder() -> Decoder:
    """The right model as a decoder of this package: its two layers of attention,
    without a feed-forward network."""
    model = decoder(2, 16, 10.0, d_model=64, n_heads=2, n_kv_heads=2)
    stored = bytearray(b64decode(_parameters()))
    numbers = torch.frombuffer(stored, dtype=torch.bfloat16).float()
    blocks: Any = model.layers
    parts: list[Any] = [model.embed_tokens]
    for block in blocks:
        layer = block.self_attn
        parts += [layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj]
        torch.nn.init.zeros_(block.mlp.down_proj.weight)  # it adds nothing
    parts += [block.input_layernorm for block in blocks]
    parts += [model.norm, model.lm_head]
    weights = [part.weight for part in parts]
    torch.nn.utils.vector_to_parameters(numbers, weights)
    return model


def _parameters() -> str:
    parameters: str = json.loads(RECORD.read_text(encoding="utf-8"))["parameters"]
    return parameters


def script() -> str:
    """assets/weights.js: the parameters of the right model. All lower bytes
    stand before all upper ones, which are alike: it travels compressed."""
    raw = b64decode(_parameters())
    split = b64encode(raw[::2] + raw[1::2]).decode()
    return f'const trainedWeights = "{split}";\n'


class Head(NamedTuple):
    """The weights of a head in %, (T, T)."""

    weights: list[list[int]]

    def drawing(self, axes: tuple[str, str], *, title: str) -> svg.Drawing:
        """A square for each weight from 5 %, the stronger the larger it is; a
        path for all of one strength, since a heat map has too many bytes."""
        paths = dict.fromkeys(STRONG, "")
        for t, row in enumerate(self.weights):
            for s, weight in enumerate(row):
                least = max((d for d in STRONG if d <= weight), default=None)
                if least is not None:
                    corner = f"M{CELLS + s * PITCH} {CELLS + t * PITCH}"
                    paths[least] += f"{corner}h{SQUARE}v{SQUARE}h-{SQUARE}z"
        marks = [
            Markup('<path class="weight" d="{}" fill-opacity="{}"/>').format(path, STRONG[least])
            for least, path in paths.items()
            if path
        ]
        side = PITCH * len(EXAMPLE)
        marks.append(svg.box("frame", CELLS, CELLS, side, side, rx=0))
        for n, symbol in enumerate(EXAMPLE):
            middle = CELLS + PITCH * (n + 0.5)
            marks.append(svg.text("symbol", middle, CELLS - 7, symbol))
            marks.append(svg.text("symbol", CELLS - 9, middle, symbol))
        marks.append(svg.axis_names(axes, CELLS + side / 2, CELLS + side / 2))
        size = CELLS + side + 1
        picture = svg.picture(size, size, title, marks)
        return svg.Drawing(title, svg.room([title], 1), size, picture)


def head(name: str, number: int) -> Head:
    """A head of the model, by its number among those of all layers."""
    return Head(run(name)["heads"][number])


def numbers() -> dict[str, object]:
    """Losses that the text tells."""
    return {"floor": FLOOR, "one_layer": run("one")["again"]}
