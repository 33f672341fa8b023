"""Of the questions: their numbers, RoPE and its scalings, and a quantised
cache."""

import json
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attnref import Yarn, crossover, sdpa
from attnref.numbers.cost import attention_cost, mla_cost
from attnref.numbers.kv_memory import Storage, kv_bytes, size, state_bytes, weight_bytes
from attnref.released.from_config import model_from_config
from attnref.released.record import read_config
from attnref.released.specs import find_model
from sitekit import ROOT
from sitekit.drawn.mla import V3, WIDTHS, v3
from sitekit.drawn.operations import H100
from sitekit.markdown.render import Row

LAYER: dict[str, Any] = {"d_model": 4096, "n_heads": 32, "n_kv_heads": 8}
LLAMA, V3_MODEL = find_model("llama-3.1-8b"), find_model("deepseek-v3")
LARGE = find_model("llama-3.1-70b")
# A step looks up one row of this table for each token.
EMBEDDING = 128_256 * 4096
READ = weight_bytes(LLAMA) - 2 * EMBEDDING  # as many bytes as FLOPs per token
LINK = 400e9 / 8  # bytes per second of a link of 400 Gb/s

WIDTH, PAIRS = 128, (0, 16, 32, 48, 63)
LENGTH, FACTOR = 4096, 8  # tokens in training, and how much is asked for


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
    ways = (plain / FACTOR, _frequencies(longer), Yarn(FACTOR, LENGTH).slowed(plain, theta))
    for pair in PAIRS:
        turns = LENGTH * plain[pair] / (2 * math.pi)
        ratios = [f"{plain[pair] / way[pair]:.2f}" for way in ways]
        yield [str(pair), f"{turns:,.2f}", *ratios]


def rounded(x: Tensor, bits: int, axis: int) -> Tensor:
    """x on `2 ** bits` levels between its least and largest along an axis."""
    low, high = x.amin(axis, keepdim=True), x.amax(axis, keepdim=True)
    step = (high - low) / (2**bits - 1)
    out: Tensor = ((x - low) / step).round() * step + low
    return out


def cache() -> tuple[Tensor, Tensor, Tensor]:
    """Queries, and 64 keys and values; two channels of the keys are large."""
    draw = torch.Generator().manual_seed(0)
    dtype = torch.float64
    q = torch.randn(1, 1, 256, 64, generator=draw, dtype=dtype)
    k, v = torch.randn(2, 1, 1, 64, 64, generator=draw, dtype=dtype)
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
        for changed_tensor in "kv":
            for axis in axes.values():
                new_k = rounded(k, bits, axis) if changed_tensor == "k" else k
                new_v = rounded(v, bits, axis) if changed_tensor == "v" else v
                error = (sdpa(q, new_k, new_v) - exact).norm() / exact.norm()
                row.append(f"{error:.3f}")
        yield row


def numbers() -> dict[str, object]:
    """What the answers say."""
    return (
        _of_layers()
        | _of_steps()
        | _of_serving()
        | _by_hand()
        | _of_v3()
        | _of_contexts()
        | _of_training()
        | _of_a_fleet()
        | _of_all_reduces()
        | _of_caches()
        | _of_exchanges()
    )


def _in_formula(n: int) -> str:
    """A comma of TeX would have a space behind it."""
    return f"{n:,}".replace(",", "{,}")


def _of_layers() -> dict[str, object]:
    q = 32 * 8192 * 128 * 2
    a_sequence, mistral = kv_bytes(LLAMA, 131_072), find_model("mistral-7b")
    steps = range(1000)  # of a generation
    without_cache = sum(attention_cost(**LAYER, new=i + 1).flops for i in steps)
    with_cache = sum(attention_cost(**LAYER, past=i).flops for i in steps)
    return {
        "wide": LAYER["d_model"],
        "narrow": WIDTH,
        "square": LAYER["d_model"] ** 2,
        "in_factors": 2 * LAYER["d_model"] * WIDTH,
        "a_sequence": size(a_sequence),
        "a_sequence_of_mha": size(4 * a_sequence),
        "spread": WIDTH**-0.5,
        "overflow": math.log(torch.finfo(torch.float16).max),
        "qkv_and_output": size(2 * q + 2 * q // 4),
        "scores": size(32 * 8192**2 * 2),
        "of_mha": attention_cost(d_model=4096, n_heads=32).parameters,
        "ring": size(kv_bytes(mistral, 32_768)),
        "no_ring": size(32_768 * kv_bytes(mistral, 1)),
        "afresh": without_cache / 1e12,
        "cached": with_cache / 1e12,
        "times_less": without_cache / with_cache,
        "of_a_token": kv_bytes(LLAMA, 1),
        "of_a_token_in_kib": size(kv_bytes(LLAMA, 1)),
        "entry": 512 + 64,
        "of_gqa": 2 * 8 * 128,
        "of_mqa": 2 * 128,
    }


def _of_steps() -> dict[str, object]:
    cache, ridge = kv_bytes(LLAMA, 8192), H100.ridge
    single, batch_of_32 = ((READ + n * cache) / H100.bandwidth for n in (1, 32))
    absorbed = mla_cost(**V3, form="absorbed", past=8191)
    return {
        "cache": size(cache),
        "sequence_of_16k": size(kv_bytes(LLAMA, 16_384)),
        "ridge": ridge,
        "weights": READ / 1e9,
        "read_weights": READ / H100.bandwidth * 1e3,
        "read_cache": cache / H100.bandwidth * 1e3,
        "step": single * 1e3,
        "rate": 1 / single,
        "step_of_32": batch_of_32 * 1e3,
        "rate_of_32": 32 / batch_of_32,
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

    def accepted(a: float, k: int) -> float:
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
        "drafts": accepted(0.8, 4),
        "long_drafts": accepted(0.8, 8),
        "poor_drafts": accepted(0.6, 4),
        "sending": kv_bytes(LLAMA, 8192) / LINK * 1e3,
        "long": 131_072,
        "long_70b": kv_bytes(LARGE, 131_072) / LINK * 1e3,
        "long_v3": kv_bytes(V3_MODEL, 131_072) / LINK * 1e3,
        "of_v3": size(kv_bytes(V3_MODEL, 8192)),
        "sending_v3": kv_bytes(V3_MODEL, 8192) / LINK * 1e3,
        "prefill": (matrices + attention) / H100.peak * 1e3,
    }


def _attend(scores: list[float], values: list[float]) -> tuple[Tensor, ...]:
    weights = torch.tensor(scores).float().softmax(-1)
    return (*weights, weights @ torch.tensor(values).float())


def _by_hand() -> dict[str, object]:
    score = 1 / math.sqrt(2)
    one, second_weight, first = _attend([0, score], [1, 3])
    *_, second = _attend([0, score], [2, 4])
    few, many, _, head_0 = _attend([0, 2, 2], [2, 0, 2])
    high, low, _, head_1 = _attend([1, 0, 1], [0, 4, 4])
    return {
        "score": score,
        "exp_of_it": math.exp(score),
        "weight_1": one,
        "weight_2": second_weight,
        "out_1": first,
        "out_2": second,
        "few": few,
        "many": many,
        "head_0": head_0,
        "high": high,
        "low": low,
        "head_1": head_1,
        "mixed": head_0 + head_1,
    }


def _of_v3() -> dict[str, object]:
    weights = {n: p.numel() for n, p in v3().named_parameters()}
    norms = sum(n for name, n in weights.items() if "norm" in name)
    attention, expert = sum(weights.values()), 3 * 7168 * 2048
    rest = (256 + 1) * expert + 256 * 7168
    return {
        "q_a": weights["q_a_proj.weight"],
        "q_b": weights["q_b_proj.weight"],
        "kv_a": weights["kv_a_proj_with_mqa.weight"],
        "kv_b": weights["kv_b_proj.weight"],
        "o": weights["o_proj.weight"],
        "norms": norms,
        "attention": attention,
        "expert": expert,
        "rest": rest,
        "share": attention / (attention + rest),
    }


def _of_contexts() -> dict[str, object]:
    hybrid, gemma = map(find_model, ("qwen3-next-80b", "gemma-3-27b"))
    state = state_bytes(hybrid)
    four, forty = ((0.1 * math.log(s) + 1) ** 2 for s in (4, 40))
    return {
        "ntk_base": int(1e4 * 8 ** (128 / (128 - 2))),
        "yarn_of_4": four,
        "yarn_of_40": forty,
        "states": size(state),
        "beside_states": size(kv_bytes(hybrid, 131_072) - state),
        "gemma": size(kv_bytes(gemma, 131_072)),
        "at_8k": size(kv_bytes(LLAMA, 8192)),
        "at_128k": size(kv_bytes(LLAMA, 131_072)),
        "of_attention": 32 * 4 * 4096,
        "equal_at": READ / (32 * 4 * 4096),
        "caches": math.ceil(READ / (32 * kv_bytes(LLAMA, 1))),
    }


def _of_training() -> dict[str, object]:
    # Six vectors of the model's width, keys and values, three of the FFN.
    elements = 6 * 4096 + 2 * 8 * 128 + 3 * 14_336
    layer, scores = 8192 * elements * 2, 32 * 8192**2 * 2
    tiles = 8192 // 128  # of queries: each reads all keys and values
    return {
        "elements": elements,
        "of_keys": 2 * 8 * 128,
        "layer": layer / 2**30,
        "all_layers": size(32 * layer),
        "scores": size(scores),
        "wide_scores": size(2 * scores),
        "inputs": size(32 * 8192 * 4096 * 2),
        "tiles_read": size(tiles * 2 * 8192 * 128 * 2),
        "scores_of_a_head": size(4 * 8192**2 * 2),
    }


def _of_a_fleet() -> dict[str, object]:
    """A thousand users, on groups of eight devices of 80 GB."""
    cache, weights = kv_bytes(LARGE, 32_768), weight_bytes(LARGE)
    in_time = 0.028 * 0.75 * H100.bandwidth  # bytes that a device reads
    stored, timely, timely_fp8 = (
        int((8 * device_bytes - weights) // user_bytes)
        for device_bytes, user_bytes in ((80e9, cache), (in_time, cache), (in_time, cache / 2))
    )
    groups = [-(-1000 // users) for users in (stored, timely, timely_fp8)]
    return {
        "of_a_token_of_70b": size(kv_bytes(LARGE, 1)),
        "of_a_user": size(cache),
        "large": weights / 1e9,
        "held": stored,
        "groups": groups[0],
        "gpus": 8 * groups[0],
        "of_a_full_one": 80e9 / H100.bandwidth * 1e3,
        "in_time": in_time / 1e9,
        "read": timely,
        "groups_in_time": groups[1],
        "gpus_in_time": 8 * groups[1],
        "read_of_fp8": timely_fp8,
        "gpus_of_fp8": 8 * groups[2],
    }


def _of_all_reduces() -> dict[str, object]:
    """Over a ring of eight, two per layer; and chunks of a prompt."""
    step, prompt = (tokens * 8192 * 2 for tokens in (32, 8192))
    a_step, a_prompt = (2 * 7 / 8 * n / 450e9 for n in (step, prompt))
    matrices = weight_bytes(LARGE) - 4 * 128_256 * 8192
    blocks = READ - 2 * EMBEDDING  # only the last token needs logits
    read = sum(kv_bytes(LLAMA, 512 * n) for n in range(1, 17))
    return {
        "sent": size(step),
        "of_all_reduce": a_step * 1e6,
        "sent_of_a_prompt": size(prompt),
        "sending_a_prompt": a_prompt * 1e6,
        "all_of_a_step": 160 * a_step * 1e3,
        "all_of_a_prompt": 160 * a_prompt * 1e3,
        "latency": 160 * 10 / 1e3,
        "computing": matrices * 8192 / (8 * H100.peak) * 1e3,
        "chunk": blocks * 512 / H100.peak * 1e3,
        "large_chunk": blocks * 2048 / H100.peak * 1e3,
        "chunks_read": read / 2**30,
        "chunk_of_mla": math.ceil(crossover(**WIDTHS)),
        "reading_chunks": read / H100.bandwidth * 1e3,
    }


def _shared_layers() -> dict[str, object]:
    """Gemma 4 E2B's cache, and what it would be if no layer read another's."""
    model = find_model("gemma-4-e2b")
    rows = json.loads((ROOT / "attnref/released/specs.json").read_text("utf-8"))["models"]
    config = next(row["config"] for row in rows if row["id"] == "gemma-4-e2b")
    apart = model_from_config(read_config(config | {"num_kv_shared_layers": 0}))
    return {"of_e2b": size(kv_bytes(model, 32_768)), "of_e2b_apart": size(kv_bytes(apart, 32_768))}


def _of_caches() -> dict[str, object]:
    return {
        "from_host": 2**30 / 64e9 * 1e3,
        "from_hbm": 2**30 / H100.bandwidth * 1e3,
        "for_a_ring": H100.peak / LINK * 8 / 32,
        "gla": 256 + 64,
        "gla_times": (512 + 64) / (256 + 64),
        "on_each": 2 * 8 * 128 // 8,
        "image": size(1600 * kv_bytes(LLAMA, 1)),
        "image_apart": size(1600 * 8 * 2 * 8 * 128 * 2),
        "between_layers": size(kv_bytes(LLAMA, 8192) / 2),
        **_shared_layers(),
    }


def _of_exchanges() -> dict[str, object]:
    """Bytes per token and layer of Llama-3.1-8B that a device sends."""
    ring, ulysses = (heads * 128 * 2 for heads in (2 * 8, 2 * 32 + 2 * 8))
    result: dict[str, object] = {"mfa": 2 * 256}
    for N in 2, 4, 8:
        result[f"ring_{N}"] = (N - 1) * ring
        result[f"ulysses_{N}"] = (N - 1) * ulysses // N
    return result
