"""How much the output differs between two ways to compute it, by dtype: by
rounding, by typical bugs, and not at all where sums keep their order."""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnref.caches.kv_cache import KVCache
from attnref.core.flash import flash
from attnref.core.fused import fused
from attnref.core.masks import causal_mask, padding_mask
from attnref.core.merge import split_kv
from attnref.core.sdpa import sdpa
from attnref.layers.block import Block, Decoder
from attnref.layers.gqa import GroupedQueryAttention
from sitekit.drawing.recorded import Watching
from sitekit.drawn.trained import RECORDED
from sitekit.markdown.render import Row, Word

DTYPES = torch.float64, torch.float32, torch.float16, torch.bfloat16
MISSING = 0, 3, 7  # tokens by which the rows of a padded batch are shorter


def decoder(
    n_layers: int, n_tokens: int, theta: float, **sizes: Any
) -> Decoder:
    E = sizes["d_model"]
    layers = [
        GroupedQueryAttention(**sizes, rope_theta=theta, attend=fused)
        for _ in range(n_layers)
    ]
    blocks = [Block(layer, d_model=E, d_ff=2 * E) for layer in layers]
    return Decoder(blocks, d_model=E, n_tokens=n_tokens).eval()


def _random() -> tuple[Decoder, Tensor]:
    """Four layers, and three rows of tokens. Weights so large that attention
    is not flat."""
    sizes = {"d_model": 128, "n_heads": 8, "n_kv_heads": 2}
    model = decoder(4, 503, 1e4, **sizes)
    for weight in model.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=1.5 * weight.shape[1] ** -0.5)
    return model, torch.randint(503, (3, 37))


def trained() -> tuple[Decoder, Tensor]:
    """The two layers of the page learn/trained, and rows that repeat eight
    symbols: 64 wide, without a feed-forward network."""
    sizes = {"d_model": 64, "n_heads": 2, "n_kv_heads": 2}
    model = decoder(2, 16, 10.0, **sizes)
    kept = bytearray(b64decode(json.loads(RECORDED.read_text())["parameters"]))
    numbers = torch.frombuffer(kept, dtype=torch.bfloat16).float()
    blocks: Any = model.layers
    parts: list[Any] = [model.embed_tokens]
    for block in blocks:
        of = block.self_attn
        parts += [of.q_proj, of.k_proj, of.v_proj, of.o_proj]
        torch.nn.init.zeros_(block.mlp.down_proj.weight)  # it adds nothing
    parts += [block.input_layernorm for block in blocks]
    parts += [model.norm, model.lm_head]
    weights = [part.weight for part in parts]
    torch.nn.utils.vector_to_parameters(numbers, weights)
    words = torch.rand(8, 16).argsort(dim=1)[:, :8]
    return model, words.repeat(1, 3)


MODELS = {"random": _random, "trained": trained}


def decoded(model: Decoder, tokens: Tensor, late: int | None = 0) -> Tensor:
    """The first half at once, then one token per step, at positions that are
    `late` too high, or 0 at each step (None)."""
    T = tokens.shape[1]
    caches = [KVCache(T) for _ in model.layers]
    logits = [model(tokens[:, : T // 2], caches=caches)]
    for i in range(T // 2, T):
        at = torch.tensor([0 if late is None else i + late])
        logits.append(model(tokens[:, i : i + 1], caches=caches, positions=at))
    return torch.cat(logits, dim=1)


def chunked(model: Decoder, tokens: Tensor) -> Tensor:
    caches = [KVCache(tokens.shape[1]) for _ in model.layers]
    sizes = [5, 7, 1, tokens.shape[1] - 13]
    return torch.cat(
        [model(part, caches=caches) for part in tokens.split(sizes, dim=1)], 1
    )


def padded(
    model: Decoder, tokens: Tensor, *, left: bool, masked: bool = True
) -> list[Tensor]:
    """Each row has tokens fewer than the one above it, and pads for them."""
    rows = torch.zeros_like(tokens[:3])  # a pad is token 0
    valid = torch.zeros_like(rows, dtype=torch.bool)
    for row, real, n, given in zip(rows, valid, MISSING, tokens, strict=False):
        real[n:] = True
        if not left:
            real[:] = real.flip(0)
        row[real] = given[: len(given) - n]
    mask = padding_mask(valid) if masked else None
    logits = model(rows, mask=mask)
    return [each[real] for each, real in zip(logits, valid, strict=True)]


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
    return F.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )


def rounded_cache(
    q: Tensor, k: Tensor, v: Tensor, *mask: Any, **options: Any
) -> Tensor:
    k, v = (x.bfloat16().to(q.dtype) for x in (k, v))
    return fused(q, k, v, *mask, **options)


Way = Callable[..., Tensor | Sequence[Tensor]]
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
    ways = RIGHT | WRONG
    start = tokens.shape[1] // 2
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for dtype in DTYPES:
        model = model.to(dtype)
        for key, (way, other) in ways.items():
            pairs = [
                (got[start:].double(), want[start : len(got)].double())
                for got, want in zip(
                    way(model, tokens), other(model, tokens), strict=False
                )
            ]
            got, want = (torch.cat(part) for part in zip(*pairs, strict=True))
            ratio = (got - want).abs().max() / want.abs().max()
            same = (got.argmax(-1) == want.argmax(-1)).double().mean()
            found[key].append((ratio.item(), same.item()))
    return found


def shown(ratio: float) -> str:
    if ratio == 0:
        return "0"
    return f"{ratio:.1%}" if ratio >= 0.0005 else f"{ratio:.0e}"


def differences(model: str, wrong: bool = False) -> Iterator[Row]:
    for key in WRONG if wrong else RIGHT:
        ratios, same = zip(*measured(model)[key], strict=True)
        yield [Word(key), *map(shown, ratios), f"{same[-1]:.0%}"]


Core = Callable[..., Tensor]
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
        split_kv(one, k, v, seen, splits=splits)
        for one, seen in zip(q.split(1, dim=2), mask.split(1), strict=True)
    ]
    return torch.cat(outs, dim=2)


CORES: dict[str, Core] = {
    "fused": fused,
    "flash": flash,
    "flash_fixed": with_room(partial(flash, tile=(1, PART))),
    "split_kv": split_kv,
    "split_fixed": with_room(one_by_one),
}


class _Products(Watching):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.number += "bmm" in str(func) or "attention" in str(func)
        return func(*args, **(kwargs or {}))


@cache
@torch.no_grad()
def _compared() -> list[Row]:
    """By core, in float32: the largest difference to a prompt of three rows
    where a row is alone, where it is read in chunks, and where each token is
    decoded; and how many products of matrices the prompt takes."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        T, (q, k, v) = 105, torch.randn(3, 3, 6, 105, 64)
    k, v = k[:, :2], v[:, :2]  # 6 query heads, 2 key/value heads
    seen, rows = causal_mask(T), []

    def read(core: Core, sizes: Sequence[int], first: int = 3) -> Tensor:
        outs, end = [], 0
        for size in sizes:
            new, end = slice(end, end + size), end + size
            given = q[:first, :, new], k[:first, :, :end], v[:first, :, :end]
            outs.append(core(*given, seen[new, :end]))
        return torch.cat(outs, dim=2)

    for name, core in CORES.items():
        with _Products() as products:
            want = read(core, [T])
        row: list[Any] = [Word(name)]
        for sizes, first in (([T], 1), ([7, 64, 34], 3), ([1] * T, 3)):
            got = read(core, sizes, first)
            ratio = (got - want[:first]).abs().max() / want.abs().max()
            row.append(shown(ratio.item()))
        rows.append([*row, f"{products.number:,}"])
    return rows


def invariance() -> list[Row]:
    return _compared()


def numbers() -> dict[str, object]:
    """What the text says of the tables."""
    at = dict(zip(DTYPES, range(4), strict=True))
    found = {name: measured(name) for name in MODELS}
    half, full = at[torch.bfloat16], at[torch.float64]
    rounding = [found["random"][way][half] for way in RIGHT]
    return {
        "rounding": shown(max(ratio for ratio, _ in rounding)),
        "fewest": min(same for _, same in rounding),
        "exact": max(found["random"][way][full][0] for way in RIGHT),
        "late": shown(found["trained"]["late"][half][0]),
        "late_same": found["trained"]["late"][half][1],
        "rounded": shown(found["random"]["rounded"][full][0]),
    }
