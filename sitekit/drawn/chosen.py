"""Which keys an indexer chooses, and what that saves."""

from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from torch import Tensor

from attnref.numbers.cost import Cost, attention_cost, dsa_cost, mla_cost
from attnref.numbers.kv_memory import size
from attnref.plain.dsa import DSA
from attnref.plain.index_loss import recall, warm_up
from sitekit.drawing import plots
from sitekit.drawing.plots import Plot
from sitekit.drawn.measured import sizes
from sitekit.drawn.mla import V3
from sitekit.markdown.render import Row, Word

TOKENS, TOPK = 9, 3
STEPS, STRIDE = 100, 10  # of the warm-up: batches, and between two readings
TEXT, KINDS, CHOSEN = 48, 12, 8  # tokens, kinds of tokens, keys that are read
INDEX: dict[str, Any] = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
CONTEXTS = {"4K": 4096, "32K": 2**15, "128K": 2**17, "1M": 2**20}


def read() -> Tensor:
    """Which keys are chosen, in a run of the plain form with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        index = 8, 16, TOPK
        layer = DSA(32, 4, 16, 8, 8, 8, 24, index, 10000.0, halves=True)
        chosen: list[Tensor] = []
        layer.indexer.register_forward_hook(lambda *call: chosen.append(call[-1]))
        with torch.no_grad():
            layer(torch.randn(1, TOKENS, 32))
    read = torch.zeros(TOKENS, TOKENS).scatter(1, chosen[0][0], 1.0)
    return read.tril().bool()


def seen() -> Tensor:
    return torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()


def _dense_attention(layer: DSA, x: Tensor) -> tuple[Tensor, ...]:
    """What the indexer reads in dense attention, and attention's weights."""
    inputs: list[tuple[Tensor, ...]] = []
    weights: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        scores = (scale * q @ k.mT).masked_fill(~mask, -torch.inf)
        weights.append(scores.softmax(dim=-1))
        return weights[0] @ v

    hook = layer.indexer.register_forward_pre_hook(lambda _, args: inputs.append(args))
    layer.indexer.topk = x.shape[1]  # all of them
    with torch.no_grad(), patch.object(F, "scaled_dot_product_attention", attend):
        layer(x)
    hook.remove()
    layer.indexer.topk = CHOSEN
    x, c_q, at, _, mask = inputs[0]
    return x, c_q, at, mask, weights[0]


@cache
def recalls() -> dict[str, list[float]]:
    """The share of attention's weight on the chosen keys, during the warm-up.

    Measured on texts that were not trained on: with the target of all heads,
    with that of the first head alone, and of the best choice there is.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = DSA(32, 4, 16, 8, 8, 8, 24, (4, 16, CHOSEN), 10000.0, halves=True)
        layer.double()  # or the curve would depend on the processor
        with torch.no_grad():
            layer.q_b_proj.weight.mul_(6)  # as sharp as after training
        kinds = torch.randn(KINDS, 32, dtype=torch.float64)
        untrained = {k: x.clone() for k, x in layer.indexer.state_dict().items()}

        def texts(count: int) -> Tensor:
            tokens = kinds[torch.randint(KINDS, (count, TEXT))]
            return tokens + 0.1 * torch.randn_like(tokens)

        *inputs, weights = _dense_attention(layer, texts(16))
        best = recall(weights.sum(dim=1).topk(CHOSEN).indices, weights)

        def share_of_choice() -> float:
            x, c_q, at, mask = inputs
            with torch.no_grad():
                k = layer.indexer.key(x, at)
                chosen = layer.indexer(x, c_q, at, k, mask)
                share: float = recall(chosen, weights)
                return share

        curves = {"best": [best]}
        for name, heads in (("all", slice(None)), ("first", slice(1))):
            layer.indexer.load_state_dict(untrained)
            torch.manual_seed(1)
            runs = (_dense_attention(layer, texts(4)) for _ in range(STEPS))
            batches = ((*inputs, weights[:, heads]) for *inputs, weights in runs)
            curves[name] = [share_of_choice()]
            for step, _ in enumerate(warm_up(layer.indexer, batches, lr=0.03), start=1):
                if step % STRIDE == 0:
                    curves[name].append(share_of_choice())
        return curves


def learning() -> Plot:
    """How much of attention's weight the indexer finds, by the step."""
    curves = recalls()
    steps = range(0, STEPS + 1, STRIDE)

    def draw(narrow: bool) -> Figure:
        width = 360 if narrow else 640
        figure = Figure(figsize=(width / 72, 250 / 72), dpi=72)
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        axes.axhline(curves["best"][0], color=plots.SOFT, lw=1, ls=(0, (2, 2)))
        axes.text(STEPS, curves["best"][0] + 0.012, "{best}", color=plots.SOFT, ha="right")
        lines = ("all", plots.GREEN, 0.016), ("first", plots.WARM, -0.036)
        for name, colour, above in lines:
            axes.plot(steps, curves[name], color=colour, lw=1.8)
            height = curves[name][-1] + (-0.045 if name == "all" else above)
            axes.text(STEPS, height, f"{{{name}}}", color=colour, ha="right")
        axes.set(xlim=(0, STEPS), ylim=(0.4, 0.8), yticks=(0.4, 0.5, 0.6, 0.7, 0.8))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:.0f}%"))
        axes.grid(axis="y")
        axes.tick_params(length=0, pad=5)
        axes.set_xlabel("{step}")
        figure.subplots_adjust(0.13 if narrow else 0.08, 0.2, 0.97, 0.96)
        return figure

    rows: list[Row] = [
        [str(step), f"{whole:.0%}", f"{first:.0%}"]
        for step, whole, first in zip(steps, curves["all"], curves["first"], strict=True)
    ]
    return plots.plotted(draw, rows)


def _layers(context: int) -> Iterator[tuple[str, Cost]]:
    """A decode step of one layer with so many tokens."""
    past = context - 1
    gqa: dict[str, Any] = {"d_model": 7168, "n_heads": 128, "n_kv_heads": 8}
    yield "gqa", attention_cost(**gqa, head_dim=128, past=past)
    yield "mla", mla_cost(**V3, past=past)
    yield "dsa", dsa_cost(**V3, **INDEX, past=past)


def costs() -> Iterator[Row]:
    """What a step keeps, reads and computes, without the projections."""
    for name, context in CONTEXTS.items():
        for word, cost in _layers(context):
            cache_bytes, skipped_bytes = 2 * cost.cached, 2 * cost.skipped
            flops = (cost.scores + cost.values) / 1e9
            yield [
                name,
                Word(word),
                size(cache_bytes),
                size(cache_bytes - skipped_bytes),
                f"{flops:.3g}",
            ]


def numbers() -> dict[str, object]:
    """What the text says of a step at 128K tokens, and of a measured one."""
    layers = dict(_layers(CONTEXTS["128K"]))
    dsa, times = layers["dsa"], sizes("chosen")["float32, 32768"]["ways"]
    flops = dsa.scores + dsa.values
    chosen_time = times["chosen keys"]["value"][1]
    full_time = times["all keys, fused"]["value"][1]
    curves = recalls()
    return {
        "untrained": curves["all"][0],
        "trained": curves["all"][-1],
        "first_head": curves["first"][-1],
        "best_choice": curves["best"][0],
        "entry": 512 + 64 + 128,
        "less_read": layers["mla"].cached / (dsa.cached - dsa.skipped),
        "fewer": (layers["mla"].scores + layers["mla"].values) / flops,
        "of_indexer": 2 * 2**17 * 64 * (128 + 1) / flops,
        "index_head": 64 * (128 + 1),
        "per_key": 128 * (512 + 64 + 512),
        "time": chosen_time / full_time,
        "index_share": dsa.parameters / layers["mla"].parameters - 1,
    }
