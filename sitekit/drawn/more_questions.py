"""The numbers of the questions beyond the fifty."""

import math

import torch
from torch import Tensor

from attnref import crossover
from attnref.numbers.kv_memory import (
    kv_bytes,
    size,
    state_bytes,
    weight_bytes,
)
from attnref.released.specs import find_model
from sitekit.drawn import questions
from sitekit.drawn.mla import WIDTHS, v3
from sitekit.drawn.operations import H100
from sitekit.drawn.questions import EMBEDDING, LINK, LLAMA, READ

LARGE = find_model("llama-3.1-70b")


def numbers() -> dict[str, object]:
    """What the answers say."""
    return (
        _by_hand()
        | _of_v3()
        | _of_contexts()
        | _of_training()
        | _of_a_fleet()
        | _of_all_reduces()
        | _of_caches()
    )


def _attended(scores: list[float], values: list[float]) -> tuple[Tensor, ...]:
    weights = torch.tensor(scores).float().softmax(-1)
    return (*weights, weights @ torch.tensor(values).float())


def _by_hand() -> dict[str, object]:
    score = 1 / math.sqrt(2)
    one, other, first = _attended([0, score], [1, 3])
    *_, second = _attended([0, score], [2, 4])
    few, many, _, head_0 = _attended([0, 2, 2], [2, 0, 2])
    high, low, _, head_1 = _attended([1, 0, 1], [0, 4, 4])
    return {
        "score": score,
        "exp_of_it": math.exp(score),
        "weight_1": one,
        "weight_2": other,
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
        "entry": 512 + 64,
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
        "weights": READ / 1e9,
        "of_attention": 32 * 4 * 4096,
        "crossover": READ / (32 * 4 * 4096),
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
    held, read, read_of_fp8 = (
        int((8 * each - weights) // each_user)
        for each, each_user in (
            (80e9, cache),
            (in_time, cache),
            (in_time, cache / 2),
        )
    )
    groups = [-(-1000 // users) for users in (held, read, read_of_fp8)]
    return {
        "of_a_token": size(kv_bytes(LARGE, 1)),
        "of_a_user": size(cache),
        "large": weights / 1e9,
        "held": held,
        "groups": groups[0],
        "gpus": 8 * groups[0],
        "full": 80e9 / H100.bandwidth * 1e3,
        "in_time": in_time / 1e9,
        "read": read,
        "groups_in_time": groups[1],
        "gpus_in_time": 8 * groups[1],
        "read_of_fp8": read_of_fp8,
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
        "sending": a_step * 1e6,
        "sent_of_a_prompt": size(prompt),
        "sending_a_prompt": a_prompt * 1e6,
        "all_of_a_step": 160 * a_step * 1e3,
        "all_of_a_prompt": 160 * a_prompt * 1e3,
        "latency": 160 * 10 / 1e3,
        "computing": matrices * 8192 / (8 * H100.peak) * 1e3,
        "ridge": H100.ridge,
        "chunk": blocks * 512 / H100.peak * 1e3,
        "large_chunk": blocks * 2048 / H100.peak * 1e3,
        "chunks_read": read / 2**30,
        "prefill": questions.numbers()["prefill"],
        "chunk_of_mla": math.ceil(crossover(**WIDTHS)),
        "reading_chunks": read / H100.bandwidth * 1e3,
    }


def _of_caches() -> dict[str, object]:
    return {
        "from_host": 2**30 / 64e9 * 1e3,
        "from_hbm": 2**30 / H100.bandwidth * 1e3,
        "ring": H100.peak / LINK * 8 / 32,
        "gla": 256 + 64,
        "gla_times": (512 + 64) / (256 + 64),
        "of_gqa": 2 * 8 * 128 // 8,
        "image": size(1600 * kv_bytes(LLAMA, 1)),
        "image_apart": size(1600 * 8 * 2 * 8 * 128 * 2),
        "shared": size(kv_bytes(LLAMA, 8192) / 2),
    }
