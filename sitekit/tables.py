"""Tables whose numbers are computed when the page is built.

Each function gives rows of cells. A cell that is a plain string is shown as
it is; a cell `Word("nan")` is looked up in the page's own words.
"""

import inspect
import json
import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import attnref
from attnref.numbers.kv_memory import size
from sitekit.kept import kept
from sitekit.shapes import Tracer, comments


class Word(NamedTuple):
    key: str


Cell = str | Word
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def code(x: object) -> str:
    return f"`{x}`".replace("torch.", "")


def _number(x: float) -> str:
    """Three digits, as one would write them: 6.55e+4 -> 65500, 3.4e38."""
    if math.isinf(x):
        return "inf"
    if 1e-3 <= abs(x) < 1e6:
        return f"{x:.3g}" if abs(x) < 1000 else f"{x:.0f}"
    mantissa, exponent = f"{x:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def exp_range() -> list[list[Cell]]:
    """Where exp overflows in each dtype, and what the naive form returns."""
    rows: list[list[Cell]] = []
    for dtype in DTYPES:
        largest = torch.finfo(dtype).max
        limit = math.log(largest)
        past = torch.tensor([math.floor(limit) + 1.0, 0.0], dtype=dtype)
        naive = past.exp() / past.exp().sum()
        stable = attnref.softmax(past)
        rows.append(
            [
                code(dtype),
                _number(largest),
                f"{limit:.1f}",
                _number(torch.tensor(12.0, dtype=dtype).exp().item()),
                code([round(w, 3) for w in naive.tolist()]),
                code([round(w, 3) for w in stable.tolist()]),
            ]
        )
    return rows


@kept
def dot_products() -> list[list[Cell]]:
    """Spread of q.k and the largest softmax weight, unscaled and scaled."""
    samples, keys = 4096, 32
    rows: list[list[Cell]] = []
    for D in (4, 16, 64, 256):
        torch.manual_seed(0)
        q = torch.randn(1, samples, 1, D)
        k = torch.randn(1, samples, keys, D)
        dots = q @ k.mT
        top = [
            attnref.attention_weights(q, k, scale=s).amax(-1).mean().item()
            for s in (1.0, D**-0.5)
        ]
        rows.append(
            [
                str(D),
                f"{D**0.5:.0f}",
                f"{dots.std().item():.1f}",
                f"{(dots * D**-0.5).std().item():.2f}",
                *(f"{t:.2f}" for t in top),
            ]
        )
    return rows


SCORES = (1.0, 2.0, 3.0, 0.5)


def _added(scores: Tensor, filler: float, times: int = 1) -> Tensor:
    for _ in range(times):  # a padding and a causal mask: each adds its own
        scores = scores + torch.ones_like(scores) * filler
    return torch.softmax(scores, -1)


def _filled(scores: Tensor, filler: float) -> Tensor:
    none = torch.zeros_like(scores, dtype=torch.bool)
    return torch.softmax(scores.masked_fill(~none, filler), -1)


def outcome(weigh: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Word:
    """What comes out for a row whose every key is masked."""
    scores = torch.tensor(SCORES, dtype=dtype)
    try:
        return named(weigh(scores), scores)
    except RuntimeError:
        return Word("refused")


def named(weights: Tensor, scores: Tensor) -> Word:
    """The word for the weights of a row whose every key is masked."""
    if weights.isnan().any():
        return Word("nan")
    if (weights == 0).all():
        return Word("zeros")
    if torch.allclose(weights, torch.softmax(scores, -1), rtol=1e-3):
        return Word("ignored")
    if torch.equal(weights, torch.full_like(weights, 1 / len(SCORES))):
        return Word("uniform")
    raise ValueError(f"no name for the weights {weights.tolist()}")


def fully_masked() -> list[list[Cell]]:
    """-1e9, -1e20, finfo.min and -inf in each dtype, and attnref's bool."""

    def attnref_weights(scores: Tensor) -> Tensor:
        one = torch.ones(1, 1, 1, 1, dtype=scores.dtype)
        nothing = torch.zeros(1, 4, dtype=torch.bool)
        return attnref.attention_weights(
            one, scores.view(1, 1, -1, 1), nothing
        ).flatten()

    rows: list[list[Cell]] = []
    for how, function in (("add", _added), ("fill", _filled)):
        for name in ("-1e9", "-1e20", "finfo.min", "-inf"):
            cells: list[Cell] = [Word(how), code(name)]
            for dtype in DTYPES:
                low = torch.finfo(dtype).min
                filler = low if name == "finfo.min" else float(name)
                cells.append(outcome(partial(function, filler=filler), dtype))
            rows.append(cells)
    twice: list[Cell] = [Word("add2"), code("finfo.min")]
    for dtype in DTYPES:
        low = torch.finfo(dtype).min
        twice.append(outcome(partial(_added, filler=low, times=2), dtype))
    ours: list[Cell] = [Word("ours"), code("False")]
    ours += [outcome(attnref_weights, dtype) for dtype in DTYPES]
    return [*rows[:4], twice, *rows[4:], ours]


def _layer(kind: str, **sizes: Any) -> nn.Module:
    """One of the three by the name of its page."""
    if kind == "mha":
        return attnref.MultiHeadAttention(**sizes)
    if kind == "mqa":
        return attnref.MultiQueryAttention(**sizes)
    return attnref.GroupedQueryAttention(**sizes, n_kv_heads=3)


def walk(
    layer: nn.Module,
    *inputs: Tensor,
    letters: dict[str, int] | None = None,
    **named: Any,
) -> list[list[Cell]]:
    """What the shape comments of a layer's `forward` say, and what came."""
    file = str(inspect.getsourcefile(type(layer)))
    source = Path(file).read_text(encoding="utf-8")
    forward = inspect.getsourcelines(type(layer).forward)
    tracer = Tracer({file: source}, letters)
    with tracer, torch.no_grad():
        layer(*inputs, **named)
    if tracer.faults:
        raise ValueError(tracer.faults)
    first, last = forward[1], forward[1] + len(forward[0])
    return [
        [code(", ".join(c.targets) or "return"), code(c.text), code(shape)]
        for c in comments(source).values()
        if first <= c.line < last and (shape := tracer.seen.get((file, c.line)))
    ]


def walk_self(kind: str) -> list[list[Cell]]:
    layer = _layer(kind, d_model=96, n_heads=6)
    cache = attnref.KVCache(12)
    heads = {"mha": 6, "mqa": 1, "gqa": 3}[kind]
    cache.append(*torch.zeros(2, 2, heads, 5, 16))
    return walk(layer, torch.zeros(2, 7, 96), cache=cache)


def walk_cross() -> list[list[Cell]]:
    layer = attnref.CrossAttention(d_model=96, n_heads=6, n_kv_heads=3)
    cache = attnref.KVCache(12)
    return walk(
        layer, torch.zeros(2, 7, 96), torch.zeros(2, 12, 96), cache=cache
    )


class _Written(TorchDispatchMode):
    """Counts the bytes that cat and copy_ write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.cat, torch.ops.aten.copy_):
            self.bytes += out.nbytes
        return out


@kept
def growth() -> list[list[Cell]]:
    """Bytes written to store N tokens one by one: Llama-3.1-8B, one layer."""
    rows: list[list[Cell]] = []
    token = empty(1, 8, 1, 128)
    for N in (16, 64, 256):
        written = []
        for cache in (attnref.KVCache(N), attnref.GrowingKVCache()):
            with _Written() as count:
                for _ in range(N):
                    cache.append(token, token)
            written.append(count.bytes)
        room, growing = written
        rows.append(
            [
                f"{N:,}",
                size(room),
                size(growing),
                f"{growing / room:,.1f}",
            ]
        )
    return rows


def empty(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


# What transformers does, which no build imports: tests/oracles/test_loads.py.
ORACLES = Path(__file__).with_name("oracles.json")


def _oracles() -> dict[str, Any]:
    return dict(json.loads(ORACLES.read_text(encoding="utf-8")))


def checkpoints() -> list[list[Cell]]:
    """Attention modules of transformers: right here, wrong, or refused."""
    rows: list[list[Cell]] = []
    for row in _oracles()["checkpoints"]:
        model = [row["model_type"], *filter(None, [row["config"]])]
        wrong = row["verdict"] == "wrong"
        why = Word(row["reason"]) if wrong else _codes(row["found"] or ())
        rows.append(
            [
                _codes(model),
                Word(row["verdict"]),
                f"{row['found']:g}" if wrong else "",
                why,
                _codes(row["told"]),
            ]
        )
    return rows


def _codes(names: Iterable[str]) -> str:
    return ", ".join(map(code, names))


def empty_rows() -> list[list[Cell]]:
    """The first query of a left-padded row: what others give, and we.

    Values are unit vectors, so that an output is a row of weights.
    """
    x = torch.eye(4)[None]
    heads, real = x[None], torch.tensor([[False, False, True, True]])
    mask = attnref.causal_mask(4) & attnref.padding_mask(real)
    low = torch.finfo(x.dtype).min
    additive = [
        torch.zeros(4, 4).masked_fill(~mask, filler)
        for filler in (-torch.inf, low)
    ]
    fused = partial(F.scaled_dot_product_attention, heads, heads, heads)
    theirs = nn.MultiheadAttention(4, 1, bias=False, batch_first=True)
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.copy_(torch.eye(4).repeat(len(weight) // 4, 1))
    layer = partial(theirs, x, x, x, attn_mask=~mask[0, 0])
    scores = heads @ heads.mT / 2
    by_hand = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)
    kept = _oracles()["empty"]
    outs = {
        "`torch.softmax`, `masked_fill(-inf)`": by_hand,
        "`F.scaled_dot_product_attention`, `bool`": fused(mask),
        "`F.scaled_dot_product_attention`, `-inf`": fused(additive[0]),
        "`F.scaled_dot_product_attention`, `finfo.min`": fused(additive[1]),
        "`nn.MultiheadAttention`": layer()[0],
        "`nn.MultiheadAttention`, `need_weights=False`": layer(
            need_weights=False
        )[0],
        "transformers, `eager`": kept["eager"],
        "transformers, `sdpa`": kept["sdpa"],
        "`attnref.sdpa`": attnref.sdpa(heads, heads, heads, mask),
    }
    return [
        [
            who,
            Word(out)
            if isinstance(out, str)
            else named(out.flatten()[:4], torch.tensor(SCORES)),
        ]
        for who, out in outs.items()
    ]


TABLES: dict[str, Callable[[], list[list[Cell]]]] = {
    "exp_range": exp_range,
    "dot_products": dot_products,
    "fully_masked": fully_masked,
    "walk_mha": partial(walk_self, "mha"),
    "walk_mqa": partial(walk_self, "mqa"),
    "walk_gqa": partial(walk_self, "gqa"),
    "walk_cross": walk_cross,
    "growth": growth,
    "checkpoints": checkpoints,
    "empty_rows": empty_rows,
}
