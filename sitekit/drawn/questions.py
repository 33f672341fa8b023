"""Of the fifty questions: their numbers, RoPE and its scalings, and a quantised
cache."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attnref import Yarn, crossover, sdpa
from attnref.numbers.cost import attention_cost, mla_cost
from attnref.numbers.kv_memory import (
    Storage,
    kv_bytes,
    size,
    weight_bytes,
)
from attnref.released.specs import find_model
from sitekit.drawn.mla import V3, WIDTHS
from sitekit.drawn.operations import H100
from sitekit.markdown.render import Row

LAYER: dict[str, Any] = {"d_model": 4096, "n_heads": 32, "n_kv_heads": 8}
LLAMA, V3_MODEL = find_model("llama-3.1-8b"), find_model("deepseek-v3")
# A step looks up one row of this table for each token.
EMBEDDING = 128_256 * 4096
READ = weight_bytes(LLAMA) - 2 * EMBEDDING  # as many bytes as FLOPs per token
LINK = 400e9 / 8  # bytes per second of a link of 400 Gb/s

WIDTH, PAIRS = 128, (0, 16, 32, 48, 63)
TRAINED, FACTOR = 4096, 8  # tokens in training, and how much is asked for


def _frequencies(theta: float) -> Tensor:
    pairs = torch.arange(0, WIDTH, 2, dtype=torch.float64)
    return theta ** (-pairs / WIDTH)


def wavelengths() -> Iterator[Row]:
    """After how many tokens a pair has made a whole turn, for two bases."""
    turns = [2 * math.pi / _frequencies(theta) for theta in (1e4, 5e5)]
    for pair in PAIRS:
        yield [str(pair), *(f"{turn[pair]:,.1f}" for turn in turns)]


def scalings() -> Iterator[Row]:
    """What each method divides the frequency of a pair by."""
    theta = 1e4
    plain = _frequencies(theta)
    longer = theta * FACTOR ** (WIDTH / (WIDTH - 2))
    ways = (
        plain / FACTOR,
        _frequencies(longer),
        Yarn(FACTOR, TRAINED).slowed(plain, theta),
    )
    for pair in PAIRS:
        turns = TRAINED * plain[pair] / (2 * math.pi)
        divided = [f"{plain[pair] / way[pair]:.2f}" for way in ways]
        yield [str(pair), f"{turns:,.2f}", *divided]


def rounded(x: Tensor, bits: int, axis: int) -> Tensor:
    """To `2 ** bits` levels between least and largest along an axis."""
    low, high = x.amin(axis, keepdim=True), x.amax(axis, keepdim=True)
    step = (high - low) / (2**bits - 1)
    out: Tensor = ((x - low) / step).round() * step + low
    return out


def cache() -> tuple[Tensor, Tensor, Tensor]:
    """Queries, and 64 keys and values; two channels of the keys are large."""
    draw = torch.Generator().manual_seed(0)
    wide = torch.float64
    q = torch.randn(1, 1, 256, 64, generator=draw, dtype=wide)
    k, v = torch.randn(2, 1, 1, 64, 64, generator=draw, dtype=wide)
    k[..., 3] *= 12
    k[..., 40] *= 8
    return q, k, v


def quantised() -> Iterator[Row]:
    """Error of attention's output where keys or values are rounded."""
    q, k, v = cache()
    exact = sdpa(q, k, v)
    axes = {"channel": -2, "token": -1}
    for bits in (8, 4, 2):
        row: Row = [str(bits)]
        for which in "kv":
            for axis in axes.values():
                new_k = rounded(k, bits, axis) if which == "k" else k
                new_v = rounded(v, bits, axis) if which == "v" else v
                error = (sdpa(q, new_k, new_v) - exact).norm() / exact.norm()
                row.append(f"{error:.3f}")
        yield row


def numbers() -> dict[str, object]:
    """What the answers say."""
    return _of_layers() | _of_steps() | _of_serving()


def _in_formula(n: int) -> str:
    """A comma of TeX would have a space behind it."""
    return f"{n:,}".replace(",", "{,}")


def _of_layers() -> dict[str, object]:
    q = 32 * 8192 * 128 * 2
    a_sequence, mistral = kv_bytes(LLAMA, 131_072), find_model("mistral-7b")
    steps = range(1000)  # of a generation
    afresh = sum(attention_cost(**LAYER, new=i + 1).flops for i in steps)
    cached = sum(attention_cost(**LAYER, past=i).flops for i in steps)
    return {
        "a_sequence": size(a_sequence),
        "a_sequence_of_mha": size(4 * a_sequence),
        "spread": WIDTH**-0.5,
        "overflow": math.log(torch.finfo(torch.float16).max),
        "qkv_and_output": size(2 * q + 2 * q // 4),
        "scores": size(32 * 8192**2 * 2),
        "of_mha": attention_cost(d_model=4096, n_heads=32).parameters,
        "ring": size(kv_bytes(mistral, 32_768)),
        "no_ring": size(32_768 * kv_bytes(mistral, 1)),
        "afresh": afresh / 1e12,
        "cached": cached / 1e12,
        "times_less": afresh / cached,
        "of_a_token": kv_bytes(LLAMA, 1),
        "of_a_token_in_kib": size(kv_bytes(LLAMA, 1)),
        "entry": 512 + 64,
        "of_gqa": 2 * 8 * 128,
        "of_mqa": 2 * 128,
    }


def _of_steps() -> dict[str, object]:
    cache, ridge = kv_bytes(LLAMA, 8192), H100.ridge
    one, many = ((READ + n * cache) / H100.bandwidth for n in (1, 32))
    absorbed = mla_cost(**V3, form="absorbed", past=8191)
    return {
        "cache": size(cache),
        "sequence_of_16k": size(kv_bytes(LLAMA, 16_384)),
        "ridge": ridge,
        "weights": READ / 1e9,
        "read_weights": READ / H100.bandwidth * 1e3,
        "read_cache": cache / H100.bandwidth * 1e3,
        "step": one * 1e3,
        "rate": 1 / one,
        "step_of_32": many * 1e3,
        "rate_of_32": 32 / many,
        "bound_batch": math.ceil(ridge),
        "sequences": int(60 * 2**30 // kv_bytes(LLAMA, 16_384)),
        "flops_per_token": _in_formula(32 * 4 * 4096),
        "bytes_per_token": _in_formula(kv_bytes(LLAMA, 1)),
        # READ + 4 * a token * S FLOPs on a token * S bytes in each sequence
        "longest": READ / (kv_bytes(LLAMA, 1) * (ridge - 4)),
        "absorbed": absorbed.attention_intensity(),
        "crossover": crossover(**WIDTHS),
    }


def _of_serving() -> dict[str, object]:
    tokens, prompt, samples, block = 1100, 1000, 4, 16
    blocks, shared = -(-tokens // block), prompt // block
    # The output table multiplies the last token, the embedding none.
    matrices = (READ - 2 * EMBEDDING) * 8192 + 2 * EMBEDDING
    attention = LLAMA.groups[0].layers * 4 * 4096 * 8192 * 8193 // 2

    def drafted(a: float, k: int) -> float:
        return sum(a**i for i in range(k + 1))

    return {
        "most_empty": block - 1,
        "blocks": blocks,
        "empty": blocks * block - tokens,
        "full": tokens / 8192,
        "block": size(kv_bytes(LLAMA, block)),
        "shared": shared,
        "apart": samples * blocks,
        "together": shared + samples * (blocks - shared),
        # 16 bits for the scale, 16 for the minimum
        "bits": Storage(4, scale_bits=32, block=32).bits_for(32) / 32,
        "verifying": 4 * (4 + 1),
        "drafts": drafted(0.8, 4),
        "long_drafts": drafted(0.8, 8),
        "poor_drafts": drafted(0.6, 4),
        "sending": kv_bytes(LLAMA, 8192) / LINK * 1e3,
        "of_v3": size(kv_bytes(V3_MODEL, 8192)),
        "sending_v3": kv_bytes(V3_MODEL, 8192) / LINK * 1e3,
        "prefill": (matrices + attention) / H100.peak * 1e3,
    }
