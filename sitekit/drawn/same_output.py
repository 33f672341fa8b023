"""How much the output differs between two ways to compute it, by dtype: by
rounding, by typical bugs, and not at all where sums keep their order."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attnref.caches.kv_cache import Cache, KVCache
from attnref.caches.state import StateCache
from attnref.core.flash import flash
from attnref.core.fused import fused
from attnref.core.masks import causal_mask, padding_mask
from attnref.core.merge import split_kv
from attnref.core.sdpa import sdpa
from attnref.layers.block import Decoder
from attnref.layers.gated_delta import GatedDeltaNet
from sitekit.drawing.recorder import Recorder
from sitekit.drawn.quantised import rounded
from sitekit.drawn.trained import decoder, trained_decoder
from sitekit.markdown.render import Row, Word

DTYPES = torch.float64, torch.float32, torch.float16, torch.bfloat16
MISSING = 0, 3, 7  # tokens by which the rows of a padded batch are shorter


def _random(n_recurrent: int = 0) -> tuple[Decoder, Tensor]:
    """Four layers, of which the first few may have a state instead of keys, and
    three rows of tokens. Weights so large that attention is not flat."""
    sizes = {"d_model": 128, "n_heads": 8, "n_kv_heads": 2}
    model = decoder(4, 503, 1e4, **sizes)
    blocks: Any = model.layers
    for block in blocks[:n_recurrent]:
        block.self_attn = GatedDeltaNet(
            d_model=128, n_heads=4, n_v_heads=8, key_dim=16, value_dim=16
        )
    for weight in model.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=1.5 * weight.shape[1] ** -0.5)
    return model, torch.randint(503, (3, 37))


def trained() -> tuple[Decoder, Tensor]:
    """The two layers of the page learn/trained, and rows that repeat eight
    symbols."""
    model = trained_decoder()
    words = torch.rand(8, 16).argsort(dim=1)[:, :8]
    return model, words.repeat(1, 3)


MODELS: dict[str, Callable[[], tuple[Decoder, Tensor]]] = {
    "random": _random,
    "trained": trained,
    "recurrent": partial(_random, 3),
}


def caches_of(model: Decoder, max_len: int) -> list[Cache]:
    blocks: Any = model.layers
    is_recurrent = [isinstance(block.self_attn, GatedDeltaNet) for block in blocks]
    return [StateCache() if recurs else KVCache(max_len) for recurs in is_recurrent]


def decoded(model: Decoder, tokens: Tensor, late: int | None = 0) -> Tensor:
    """The first half at once, then one token per step, at positions that are
    `late` too high, or 0 at each step (None)."""
    T = tokens.shape[1]
    caches = caches_of(model, T)
    logits = [model(tokens[:, : T // 2], caches=caches)]
    for i in range(T // 2, T):
        step = {} if late == 0 else {"positions": torch.tensor([i + late if late else 0])}
        logits.append(model(tokens[:, i : i + 1], caches=caches, **step))
    return torch.cat(logits, dim=1)


def chunked(model: Decoder, tokens: Tensor) -> Tensor:
    caches = caches_of(model, tokens.shape[1])
    sizes = [5, 7, 1, tokens.shape[1] - 13]
    return torch.cat([model(part, caches=caches) for part in tokens.split(sizes, dim=1)], 1)


def padded(model: Decoder, tokens: Tensor, *, left: bool, masked: bool = True) -> list[Tensor]:
    """Logits of rows of which each has fewer tokens and more pads than the
    one before."""
    rows = torch.zeros_like(tokens[:3])  # a pad is token 0
    valid = torch.zeros_like(rows, dtype=torch.bool)
    for row, real, n, words in zip(rows, valid, MISSING, tokens, strict=False):
        real[n:] = True
        if not left:
            real[:] = real.flip(0)
        row[real] = words[: len(words) - n]
    mask = padding_mask(valid) if masked else None
    logits = model(rows, mask=mask)
    return [row[real] for row, real in zip(logits, valid, strict=True)]


def shorter(model: Decoder, tokens: Tensor) -> list[Tensor]:
    """The rows of `padded`, each alone and without pads."""
    rows = zip(MISSING, tokens, strict=False)
    return [model(row[None, : len(row) - n])[0] for n, row in rows]


def using(core: Any, way: Callable[..., Any]) -> Callable[..., Any]:
    def run(model: Decoder, tokens: Tensor) -> Any:
        blocks: Any = model.layers
        layers = [block.self_attn for block in blocks]
        for layer in layers:
            layer.attend = core
        try:
            return way(model, tokens)
        finally:
            for layer in layers:
                layer.attend = fused

    return run


def whole(model: Decoder, tokens: Tensor) -> Tensor:
    logits: Tensor = model(tokens)
    return logits


def alone(model: Decoder, tokens: Tensor) -> Tensor:
    return torch.cat([decoded(model, row[None]) for row in tokens])


def top_left(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def rounded_cache(q: Tensor, k: Tensor, v: Tensor, *mask: Any, **options: Any) -> Tensor:
    k, v = (x.bfloat16().to(q.dtype) for x in (k, v))
    return fused(q, k, v, *mask, **options)


Core = Callable[..., Tensor]
Way = Callable[..., Any]  # logits, of all rows at once or row by row
# The way, and what it is compared with.
RIGHT: dict[str, tuple[Way, Way]] = {
    "cached": (decoded, whole),
    "chunks": (chunked, whole),
    "batch": (alone, decoded),
    "pads_left": (partial(padded, left=True), shorter),
    "pads_right": (partial(padded, left=False), shorter),
    "sdpa": (using(sdpa, whole), whole),
    "flash": (using(flash, whole), whole),
    "split_kv": (using(split_kv, whole), whole),
}
# Of the ways above, those that read a state in parts.
STATES = {"recurrent": RIGHT["cached"], "recurrent_chunks": RIGHT["chunks"]}
WRONG: dict[str, tuple[Way, Way]] = {
    "late": (partial(decoded, late=1), whole),
    "zero": (partial(decoded, late=None), whole),
    "top_left": (using(top_left, decoded), whole),
    "pads_seen": (partial(padded, left=True, masked=False), shorter),
    "rounded": (using(rounded_cache, decoded), decoded),
}


@cache
@torch.no_grad()
def measured(name: str) -> dict[str, list[tuple[float, float]]]:
    """By way and dtype: the largest difference of logits in units of the
    largest logit, and how often the largest one is of the same token. Counted
    are all tokens after the first half of the row."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, tokens = MODELS[name]()
    ways = STATES if name == "recurrent" else RIGHT | WRONG
    start = tokens.shape[1] // 2
    result: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for dtype in DTYPES:
        model = model.to(dtype)
        for key, (way, reference) in ways.items():
            pairs = [
                (ours[start:].double(), want[start : len(ours)].double())
                for ours, want in zip(way(model, tokens), reference(model, tokens), strict=False)
            ]
            ours, want = (torch.cat(part) for part in zip(*pairs, strict=True))
            ratio = (ours - want).abs().max() / want.abs().max()
            agreement = (ours.argmax(-1) == want.argmax(-1)).double().mean()
            result[key].append((ratio.item(), agreement.item()))
    return result


def percentage(ratio: float) -> str:
    if ratio == 0:
        return "0"
    return f"{ratio:.1%}" if ratio >= 0.0005 else f"{ratio:.0e}"


def differences(model: str, wrong: bool = False) -> Iterator[Row]:
    rows = measured(model)
    shown = {key: rows[key] for key in (WRONG if wrong else RIGHT)}
    if model == "random" and not wrong:
        shown |= measured("recurrent")
    for key, results in shown.items():
        ratios, agreement = zip(*results, strict=True)
        yield [Word(key), *map(percentage, ratios), f"{agreement[-1]:.0%}"]


def stored_in(bits: int) -> Core:
    """Attention that reads keys and values from a cache of so many bits."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *mask: Any, **options: Any) -> Tensor:
        k, v = (rounded(x, bits, -1, x.shape[-1]) for x in (k, v))
        return fused(q, k, v, *mask, **options)

    return attend


# How an engine computes logits of what it samples, and its trainer later: a
# model, and the dtype and way of each.
BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32
Side = tuple[torch.dtype, Way]
SOURCES: dict[str, tuple[str, Side, Side]] = {
    "none": ("random", (FLOAT32, decoded), (FLOAT32, whole)),
    "kernels": ("random", (BFLOAT16, decoded), (BFLOAT16, whole)),
    "weights": ("random", (BFLOAT16, decoded), (FLOAT32, whole)),
    "int8": ("random", (BFLOAT16, using(stored_in(8), decoded)), (BFLOAT16, whole)),
    "int4": ("random", (BFLOAT16, using(stored_in(4), decoded)), (BFLOAT16, whole)),
    "state": ("recurrent", (BFLOAT16, decoded), (BFLOAT16, whole)),
    "late": ("random", (BFLOAT16, partial(decoded, late=1)), (BFLOAT16, whole)),
}
TEXTS, LENGTH = 6, 160  # that are sampled, and tokens of each


class Disagreement(NamedTuple):
    mean: float  # of log-probabilities of sampled tokens, without their sign
    kl: float  # from the engine's probabilities to the trainer's, per token
    token: float  # the importance ratio of a token that is farthest from 1
    text: float  # that of a text: the product of its tokens' ratios


@cache
@torch.no_grad()
def disagreements() -> dict[str, Disagreement]:
    """By source, on the texts that a model samples in bfloat16."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        models = {name: MODELS[name]()[0] for name in ("random", "recurrent")}
        texts = {name: sample_texts(model.bfloat16()) for name, model in models.items()}
    rows: dict[str, Disagreement] = {}
    for source, (name, *sides) in SOURCES.items():
        tokens, start = texts[name], LENGTH // 2 - 1
        engine, trainer = (
            way(models[name].to(dtype), tokens[:, :-1])[:, start:].double().log_softmax(-1)
            for dtype, way in sides
        )
        chosen = tokens[:, start + 1 :, None]
        moved = (trainer.gather(-1, chosen) - engine.gather(-1, chosen))[..., 0]
        rows[source] = Disagreement(
            moved.abs().mean().item(),
            (engine.exp() * (engine - trainer)).sum(-1).mean().item(),
            moved.abs().max().exp().item(),
            moved.sum(dim=1).abs().max().exp().item(),
        )
    return rows


def sample_texts(model: Decoder) -> Tensor:
    """Texts whose first half are drawn tokens, and whose second the model's."""
    tokens = torch.randint(model.lm_head.out_features, (TEXTS, LENGTH // 2))
    caches, last = caches_of(model, LENGTH), tokens
    while tokens.shape[1] < LENGTH:
        likely = model(last, caches=caches)[:, -1].float().softmax(-1)
        last = likely.multinomial(1)
        tokens = torch.cat((tokens, last), dim=1)
    return tokens


def trainer() -> Iterator[Row]:
    for source, found in disagreements().items():
        yield [
            Word(source),
            f"{found.mean:.1g}",
            f"{found.kl:.0e}",
            f"{found.token:.3g}",
            f"{found.text:.3g}",
        ]


PART = 64  # keys


def with_room(core: Core) -> Core:
    """The keys are filled up to a multiple of PART, which no query sees."""

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        room = -k.shape[2] % PART
        k, v = (F.pad(x, (0, 0, 0, room)) for x in (k, v))
        return core(q, k, v, F.pad(mask, (0, room)))

    return attend


def one_by_one(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    splits = k.shape[2] // PART
    outs = [
        split_kv(one, k, v, row_mask, splits=splits)
        for one, row_mask in zip(q.split(1, dim=2), mask.split(1), strict=True)
    ]
    return torch.cat(outs, dim=2)


SOME_CORES: dict[str, Core] = {
    "fused": fused,
    "flash": flash,
    "flash_fixed": with_room(partial(flash, tile=(1, PART))),
    "split_kv": split_kv,
    "split_fixed": with_room(one_by_one),
}


class _Products(Recorder):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += "bmm" in str(func) or "attention" in str(func)
        return func(*args, **(kwargs or {}))


@cache
@torch.no_grad()
def _compare() -> list[Row]:
    """By core, in float32: the largest difference to a prompt of three rows
    where a row is alone, where it is read in chunks, and where each token is
    decoded; and how many products of matrices the prompt takes."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        T, (q, k, v) = 105, torch.randn(3, 3, 6, 105, 64)
    k, v = k[:, :2], v[:, :2]  # 6 query heads, 2 key/value heads
    mask, rows = causal_mask(T), []

    def read(core: Core, sizes: Sequence[int], first: int = 3) -> Tensor:
        outs, end = [], 0
        for size in sizes:
            part, end = slice(end, end + size), end + size
            qkv = q[:first, :, part], k[:first, :, :end], v[:first, :, :end]
            outs.append(core(*qkv, mask[part, :end]))
        return torch.cat(outs, dim=2)

    for name, core in SOME_CORES.items():
        with _Products() as products:
            want = read(core, [T])
        row: list[Any] = [Word(name)]
        for sizes, first in (([T], 1), ([7, 64, 34], 3), ([1] * T, 3)):
            outs = read(core, sizes, first)
            ratio = (outs - want[:first]).abs().max() / want.abs().max()
            row.append(percentage(ratio.item()))
        rows.append([*row, f"{products.number:,}"])
    return rows


def invariance() -> list[Row]:
    return _compare()


def numbers() -> dict[str, object]:
    """What the text says of the tables."""
    index = dict(zip(DTYPES, range(4), strict=True))
    results = {name: measured(name) for name in MODELS}
    bfloat16, float64 = index[torch.bfloat16], index[torch.float64]
    rounding = [results["random"][way][bfloat16] for way in RIGHT]
    return {
        "rounding": percentage(max(ratio for ratio, _ in rounding)),
        "fewest": min(agreement for _, agreement in rounding),
        "exact": max(results["random"][way][float64][0] for way in RIGHT),
        "late": percentage(results["trained"]["late"][bfloat16][0]),
        "late_same": results["trained"]["late"][bfloat16][1],
        "rounded": percentage(results["random"]["rounded"][float64][0]),
        "texts": TEXTS,
        "length": LENGTH // 2,
    }
