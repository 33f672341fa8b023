"""Quantised caches: what groups do to an outlier, errors and bytes by bits,
keys with a bias, and the FP8 entry of a sparse MLA."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attnref import apply_rope, rope_table, sdpa
from attnref.core.masks import dense
from attnref.layers.block import Decoder
from attnref.numbers.kv_memory import Storage, growth, kv_bytes, size
from attnref.plain import low_bits
from attnref.plain.quantised import quantise, restore, to_fp8
from attnref.released.specs import find_model
from sitekit.drawn.questions import cache as with_large_channels
from sitekit.drawn.trained import trained_decoder
from sitekit.markdown.render import Row, Word

GROUP, CONTEXT = 32, 131_072
LLAMA, V32 = find_model("llama-3.1-8b"), find_model("deepseek-v3.2")
CHANNELS, TOKENS = -1, -2  # along which a group runs
KIVI = TOKENS, CHANNELS  # of keys, and of values
Code = Callable[..., Tensor]  # what comes back of x, grouped along `dim`


class Layout(NamedTuple):
    """Along what the groups of keys and of values run; both may be rotated."""

    keys: int
    values: int
    rotated: bool = False


LAYOUTS = {
    "kivi": Layout(*KIVI),
    "token": Layout(CHANNELS, CHANNELS),
    "rotated": Layout(CHANNELS, CHANNELS, rotated=True),
    "channel": Layout(TOKENS, TOKENS),
}


def rounded(x: Tensor, bits: int, dim: int, group: int = GROUP) -> Tensor:
    """x as the plain form restores it."""
    codes, step, low = quantise(x, bits, dim, group)
    back: Tensor = restore(codes, step, low, bits, dim)
    return back.to(x.dtype)


def in_fp8(x: Tensor, scale: float | Tensor) -> Tensor:
    back: Tensor = to_fp8(x, scale).float() * scale
    return back.to(x.dtype)


def calibrated(x: Tensor) -> Tensor:
    """x in FP8 with one scale, by which its largest element becomes 448."""
    return in_fp8(x, x.abs().max().float() / 448)


def in_nvfp4(x: Tensor, dim: int = CHANNELS) -> Tensor:
    codes, scale, whole = low_bits.to_nvfp4(x if dim == CHANNELS else x.mT)
    back: Tensor = low_bits.from_e2m1(codes, scale.float() * whole).to(x.dtype)
    return back if dim == CHANNELS else back.mT


def in_mxfp4(x: Tensor, dim: int = CHANNELS) -> Tensor:
    codes, power = low_bits.to_mxfp4(x if dim == CHANNELS else x.mT)
    back: Tensor = low_bits.from_e2m1(codes, (power.float() - 127).exp2()).to(x.dtype)
    return back if dim == CHANNELS else back.mT


def turned(code: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """x rotated, rounded, and rotated back."""
    back: Tensor = low_bits.hadamard(code(low_bits.hadamard(x)))
    return back


class Format(NamedTuple):
    name: str | Word
    storage: Storage
    group: int  # elements that share scales
    code: Code


BF16 = Format("`bf16`", Storage(16), GROUP, lambda x, dim: x)
FORMATS = {
    "fp8": Format(Word("fp8"), Storage(8), GROUP, lambda x, dim: calibrated(x)),
    "nvfp4": Format("NVFP4", Storage(4, 8, 16), 16, in_nvfp4),
    "mxfp4": Format("MXFP4", Storage(4, 8, 32), 32, in_mxfp4),
    "bits8": Format(Word("bits8"), Storage(8, 32, GROUP), GROUP, partial(rounded, bits=8)),
    "bits4": Format(Word("bits4"), Storage(4, 32, GROUP), GROUP, partial(rounded, bits=4)),
    "bits2": Format(Word("bits2"), Storage(2, 32, GROUP), GROUP, partial(rounded, bits=2)),
}


def stored(k: Tensor, v: Tensor, code: Code, layout: Layout) -> tuple[Tensor, Tensor]:
    """Keys and values as they come back from a cache."""
    ways = [partial(code, dim=dim) for dim in layout[:2]]
    if layout.rotated:
        return turned(ways[0], k), turned(ways[1], v)
    return ways[0](k), ways[1](v)


def error(q: Tensor, k: Tensor, v: Tensor, ours: tuple[Tensor, Tensor], mask: Any = None) -> float:
    """The relative error of attention's output with our keys and values."""
    return relative(sdpa(q, *ours, mask), sdpa(q, k, v, mask))


def relative(result: Tensor, exact: Tensor) -> float:
    return float((result - exact).norm() / exact.norm())


def eight() -> dict[str, Any]:
    """Eight keys of eight channels, and what an element of them needs: bits by
    format, with the scales of its group."""
    draw = torch.Generator().manual_seed(5)
    k = torch.randn(8, 8, generator=draw).double().mul(10).round().div(10)
    bits = {f"{b},{g}": Storage(b, 32, g).bits_for(g) / g for b in (8, 4, 2) for g in (4, 8)}
    return {"keys": (k + 0.0).tolist(), "bits": bits | {"fp8": 8.0}}


@cache
def _errors() -> dict[tuple[str, str], float]:
    """Of attention's output, by format and layout."""
    q, k, v = with_large_channels()
    return {
        (name, layout): error(q, k, v, stored(k, v, form.code, way))
        for name, form in FORMATS.items()
        for layout, way in LAYOUTS.items()
    }


def formats() -> Iterator[Row]:
    """Bytes with scales, the cache of a model, and errors by layout."""
    yield [*_bytes(BF16), *["–"] * len(LAYOUTS)]
    for name, form in FORMATS.items():
        errors = [f"{_errors()[name, layout]:.3f}" for layout in LAYOUTS]
        yield [*_bytes(form), *errors]


def _bytes(form: Format) -> Row:
    cache_bytes = kv_bytes(LLAMA, CONTEXT, dtype=form.storage)
    per_element = form.storage.bits_for(form.group) / 8 / form.group
    return [form.name, f"{per_element:g}", size(cache_bytes)]


@cache
def _trained() -> tuple[Decoder, Tensor, list[Any]]:
    """The model of learn/trained, 64 rows of eight symbols four times, and what
    the attention of both layers is given."""
    model = trained_decoder().double()
    draw = torch.Generator().manual_seed(0)
    tokens = torch.rand(64, 16, generator=draw).argsort(dim=1)[:, :8].repeat(1, 4)
    seen: list[Any] = []

    def record(q: Tensor, k: Tensor, v: Tensor, mask: Any, **options: Any) -> Tensor:
        seen.append((q, k, v, dense(mask)))
        return sdpa(q, k, v, mask, **options)

    _logits(model, tokens, record)
    return model, tokens, seen


@torch.no_grad()
def _logits(model: Decoder, tokens: Tensor, attend: Callable[..., Tensor]) -> Tensor:
    blocks: Any = model.layers
    for block in blocks:
        block.self_attn.attend = attend
    logits: Tensor = model(tokens)
    return logits


@cache
def _losses() -> dict[str, float]:
    """Of symbols that were seen before, by format of keys and values."""
    model, tokens, _ = _trained()
    losses = {}
    for name, form in (("bf16", BF16), *FORMATS.items()):

        def attend(
            q: Tensor, k: Tensor, v: Tensor, mask: Any, code: Code = form.code, **options: Any
        ) -> Tensor:
            return sdpa(q, *stored(k, v, code, LAYOUTS["kivi"]), mask, **options)

        logits = _logits(model, tokens, attend)[:, 8:-1]
        each = F.cross_entropy(logits.mT, tokens[:, 9:])
        losses[name] = float(each)
    return losses


def trained() -> Iterator[Row]:
    """The same errors with keys and values of a model that was trained."""
    losses = _losses()
    for name, form in FORMATS.items():
        errors = [
            sum(error(q, k, v, stored(k, v, form.code, way), m) for q, k, v, m in _trained()[2])
            for way in LAYOUTS.values()
        ]
        yield [form.name, *(f"{e / 2:.3f}" for e in errors), f"{losses[name]:.3f}"]


def _spread(x: Tensor) -> float:
    """How much larger the largest channel is than the median: the worst head."""
    sizes = x.square().mean(dim=(0, 2)).sqrt()
    return float((sizes.amax(-1) / sizes.median(-1).values).max())


PAIR = 40  # of 64: RoPE turns it by less than a radian in 256 tokens


def biased(bias: float) -> tuple[Tensor, Tensor, Tensor]:
    """256 tokens of 128 channels; one channel of the keys has a bias, which
    RoPE rotates into the other one of its pair."""
    draw = torch.Generator().manual_seed(2)
    q, k, v = torch.randn(3, 1, 1, 256, 128, generator=draw).double()
    k[..., PAIR] += bias
    cos, sin = (x.double() for x in rope_table(torch.arange(256), 128))
    return apply_rope(q, cos, sin), apply_rope(k, cos, sin), v


def outliers() -> Iterator[Row]:
    """Error of the output if only the keys are stored in fewer bits."""
    for bias in (0, 10, 30, 100, 300):
        q, k, v = biased(bias)
        in_8 = partial(rounded, bits=8, dim=CHANNELS)
        ways = (
            in_fp8(k, 1.0),
            calibrated(k),
            turned(calibrated, k),
            in_8(k),
            turned(in_8, k),
            in_nvfp4(k),
            turned(in_nvfp4, k),
            rounded(k, 4, TOKENS),
        )
        yield [f"{bias:,}", *(f"{error(q, k, v, (w, v)):.3f}" for w in ways)]


R, DR = 512, 64  # a latent and its RoPE key


@cache
def _latents() -> tuple[Tensor, ...]:
    """Queries of 16 heads, absorbed, and 256 latents after an RMSNorm whose
    weights differ; their RoPE keys have two large channels."""
    draw = torch.Generator().manual_seed(4)
    options: Any = {"generator": draw, "dtype": torch.float64}
    latent = torch.randn(256, R, **options)
    latent /= latent.square().mean(-1, keepdim=True).sqrt()
    latent *= (torch.randn(R, **options) / 2).exp()
    key = torch.randn(256, DR, **options)
    key[:, 5] *= 12
    key[:, 40] *= 8
    q, rotated = (torch.randn(16, 64, n, **options) for n in (R, DR))
    # Each part of a score has a deviation of 2.
    return 2 * q / (q @ latent.T).std(), 2 * rotated / (rotated @ key.T).std(), latent, key


def in_tiles(x: Tensor, width: int) -> Tensor:
    """FP8 with a scale per `width` channels of a token."""
    tiles = x.float().unflatten(-1, (-1, width))
    scale = tiles.abs().amax(dim=-1, keepdim=True) / 448
    back: Tensor = (to_fp8(tiles, scale).float() * scale).flatten(-2)
    return back.to(x.dtype)


def latent() -> Iterator[Row]:
    """Bytes, and errors of scores and output, by what is rounded of a latent."""
    q, rotated, c, key = _latents()
    in_4 = partial(rounded, bits=4, dim=CHANNELS)
    both = calibrated(torch.cat((c, key), -1)).split((R, DR), -1)
    per_channel = rounded(c[None], 4, TOKENS)[0]
    four = R // 2 + R // GROUP * 4
    ways: dict[str, tuple[int, Tensor, Tensor]] = {
        "shipped": (R + 16 + 2 * DR, in_tiles(c, 128), key),
        "key8": (R + 16 + DR + 4, in_tiles(c, 128), in_tiles(key, DR)),
        "one": (R + DR, *both),
        "channel": (four + 2 * DR, per_channel, key),
        "token": (four + 2 * DR, in_4(c[None])[0], key),
        "rotated": (four + 2 * DR, turned(in_4, c[None])[0], key),
        "nvfp4": (R // 2 + R // 16 + 2 * DR, in_nvfp4(c), key),
    }

    def scores(c: Tensor, key: Tensor) -> Tensor:
        return q @ c.T + rotated @ key.T

    exact = scores(c, key)
    for name, (n_bytes, *parts) in ways.items():
        got = scores(*parts)
        off = float((got - exact).square().mean().sqrt())
        out = relative(got.softmax(-1) @ parts[0], exact.softmax(-1) @ c)
        yield [Word(name), f"{n_bytes:,}", f"{off:.3f}", f"{out:.3f}"]


def low(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, of_qk: Any, of_p: Any, of_v: Any
) -> Tensor:
    """Attention whose matrices are rounded before both products."""
    q, k = of_qk(q), of_qk(k)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    p = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    out: Tensor = of_p(p) @ of_v(v) / p.sum(dim=-1, keepdim=True)
    return out


def behind_a_sink() -> tuple[Tensor, Tensor, Tensor]:
    """2,048 tokens, of which the first leads all scores by some 8 and has the
    value 0, as a sink does."""
    draw = torch.Generator().manual_seed(3)
    q, k, v = torch.randn(3, 1, 1, 2048, 64, generator=draw).double()
    q, k[..., 0] = q[:, :, :64] / 2, 0
    q[..., 0], k[:, :, 0, 0], v[:, :, 0] = 1, 8 * 8, 0
    return q, k, v


def _ways() -> dict[str, Callable[..., Tensor]]:
    """Attention in few bits: of q, k, v and a mask, all of the same heads."""

    def times(factor: int) -> Callable[[Tensor], Tensor]:
        return lambda p: in_fp8(p, 1 / factor)

    def in_4(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        k = k - k.mean(dim=2, keepdim=True)
        # The largest weight of every row is 1: one scale of P is that of a row.
        return low(q, k, v, mask, in_nvfp4, in_nvfp4, partial(in_nvfp4, dim=TOKENS))

    eight, rotated = low_bits.attention_in_8_bits, partial(turned, calibrated)
    return {
        "plain8": partial(low, of_qk=calibrated, of_p=times(1), of_v=calibrated),
        "flash3": partial(low, of_qk=calibrated, of_p=times(256), of_v=calibrated),
        "turned3": partial(low, of_qk=rotated, of_p=times(256), of_v=calibrated),
        "uneven": partial(eight, smooth=False),
        "sage2": eight,
        "sage3": in_4,
    }


@cache
def _computed() -> dict[str, list[float]]:
    data: list[list[Any]] = [
        [(*with_large_channels(), None)],
        [(*biased(100), None)],
        [(*behind_a_sink(), None)],
        _trained()[2],
    ]
    return {
        name: [
            sum(relative(way(*x).double(), sdpa(*x)) for x in inputs) / len(inputs)
            for inputs in data
        ]
        for name, way in _ways().items()
    }


def computed() -> Iterator[Row]:
    """Error of the output if both products of attention have few bits."""
    for name, errors in _computed().items():
        yield [Word(name), *(f"{error:.3f}" for error in errors)]


def numbers() -> dict[str, object]:
    """What the text says."""
    shipped, (group,) = V32.shipped, V32.groups
    assert shipped is not None
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(1))
    x = x.bfloat16()
    scale = x.abs().max().float() / 448
    in_bfloat16 = (x / scale.bfloat16()).to(torch.float8_e4m3fn)
    return {
        "plain": size(kv_bytes(LLAMA, CONTEXT)),
        "four": size(kv_bytes(LLAMA, CONTEXT, dtype=Storage(4, 32, GROUP))),
        "bound": 128**0.5,
        "int8": _errors()["bits8", "kivi"],
        "int4": _errors()["bits4", "kivi"],
        "fp8": _errors()["fp8", "kivi"],
        "entry": shipped.kv,
        "index": shipped.index,
        "both": shipped.kv + shipped.index,
        "naive": sum(sum(store.widths) for store in group.stores),
        "of_v32": size(growth(V32, dtype="shipped").later),
        "of_v32_bf16": size(growth(V32).later),
        "off": float((in_bfloat16 != to_fp8(x, scale)).float().mean()),
        "key": _errors()["bits4", "kivi"],
        "wrong": _errors()["bits4", "token"],
        "turned": _errors()["bits4", "rotated"],
        "nvfp4": _errors()["nvfp4", "token"],
        "nvfp4_turned": _errors()["nvfp4", "rotated"],
        "loss": _losses()["bf16"],
        "loss4": _losses()["bits4"],
        "loss2": _losses()["bits2"],
        "of_latent": f"{2 * (R + DR):,}",
        "lost": _computed()["plain8"][2],
        "found": _computed()["flash3"][2],
        "spread": max(_spread(x) for _, k, v, _ in _trained()[2] for x in (k, v)),
    }
