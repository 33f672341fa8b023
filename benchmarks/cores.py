"""Attention alone, without projections: tensors in, tensors out."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnref import Causal, RuleMask, flash, fused, sdpa, split_kv
from attnref.core.few import few
from attnref.layers.dsa import Indexer, gathered
from attnref.plain.window import window_attention
from benchmarks.timing import Timed, cold

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
HEADS, WIDTH = 32, 128
EXACT = 8192  # tokens up to which errors are looked for: float64 is slow
KV_HEADS = {"MHA": 32, "GQA-8": 8, "GQA-2": 2, "MQA": 1}
torch_sdpa = F.scaled_dot_product_attention


def repeated(q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Tensor:
    """Torch's attention on heads that are copied first."""
    times = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(times, dim=1) for x in (k, v))
    return torch_sdpa(q, k, v, **named)


def folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Torch's attention, the heads of a group stacked on the query axis."""
    rows = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])
    return torch_sdpa(rows, k, v).reshape(*q.shape[:3], v.shape[3])


def x_transformers(**options: Any) -> Callable[..., Tensor]:
    """Theirs. Head `h` reads key head `h % K`, so heads are put in order."""
    with warnings.catch_warnings():  # it uses torch.jit
        warnings.simplefilter("ignore", DeprecationWarning)
        from x_transformers.attend import Attend

    attend = Attend(**options)

    def way(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        K = k.shape[1]
        q = q.unflatten(1, (K, -1)).transpose(1, 2).flatten(1, 2)
        out: Tensor = attend(q, k, v)[0]
        return out.unflatten(1, (-1, K)).transpose(1, 2).flatten(1, 2)

    return way


def decode(dtype: str, heads: str, tokens: int) -> Timed:
    """One new query per head attends to so many keys and values."""
    K = KV_HEADS[heads]
    q = torch.randn(1, HEADS, 1, WIDTH).to(DTYPES[dtype])
    k, v = torch.randn(2, 1, K, tokens, WIDTH).to(DTYPES[dtype])
    enabled = partial(torch_sdpa, enable_gqa=True)
    ways: dict[str, Callable[..., Tensor]] = {
        "fused": fused,
        "sdpa": sdpa,
        "flash": flash,
        "split_kv": split_kv,
        "torch, folded": folded,
        "torch, enable_gqa": enabled,
    }
    if K < HEADS:
        ways |= {
            "torch, repeat_interleave": repeated,
            "x-transformers, einsum": x_transformers(),
            "x-transformers, flash": x_transformers(flash=True),
        }
    truth = enabled if tokens <= EXACT else None
    flops = 4 * HEADS * tokens * WIDTH
    return Timed(ways, cold((q, k, v)), truth, flops)


def step(dtype: str, heads: str, tokens: int) -> Timed:
    """What `fused` decides for one new query per head: who of both is it?"""
    every = decode(dtype, heads, tokens)
    ways = {"torch, folded": folded, "few": few, "fused": fused}
    return replace(every, ways=ways, flops=0)


def triangle(q: Tensor) -> RuleMask:
    T = q.shape[2]
    return RuleMask(Causal(), T, T, 0, device=q.device)


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As in most readable code: repeat, scores, mask, softmax, values."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * q.shape[3] ** -0.5
    seen = torch.ones_like(scores[0, 0], dtype=torch.bool).tril()
    scores = scores.masked_fill(~seen, -torch.inf)
    return scores.softmax(-1, dtype=torch.float32).to(q.dtype) @ v


def masked(q: Tensor, k: Tensor, v: Tensor, window: int = 0) -> Tensor:
    sizes = q.shape[2], k.shape[2]
    seen = torch.ones(sizes, dtype=torch.bool, device=q.device).tril()
    seen = seen.triu(1 - window) if window else seen
    return torch_sdpa(q, k, v, attn_mask=seen, enable_gqa=True)


def padded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Values as wide as the keys, with zeros: torch's kernel wants that."""
    wide = F.pad(v, (0, q.shape[3] - v.shape[3]))
    out = torch_sdpa(q, k, wide, is_causal=True, enable_gqa=True)
    return out[..., : v.shape[3]]


# The first is the base of the ratios.
CAUSAL: dict[str, Callable[..., Tensor]] = {
    "torch, is_causal": partial(torch_sdpa, is_causal=True, enable_gqa=True),
    "torch, bool mask": masked,
    "torch, padded values": padded,
    "eager": eager,
    **{
        name: lambda q, k, v, core=core, **named: core(
            q, k, v, triangle(q), **named
        )
        for name, core in {"sdpa": sdpa, "fused": fused, "flash": flash}.items()
    },
}
# Query heads, key/value heads, width of keys, of values.
SHAPES = {
    "GQA": (16, 4, 128, 128),
    "MLA": (16, 16, 192, 128),
    "window": (4, 1, 128, 128),
}
WINDOW = 512
WINDOWED: dict[str, Callable[..., Tensor]] = {
    "torch, bool mask": partial(masked, window=WINDOW),
    "plain form, blocks": partial(window_attention, W=WINDOW),
}
SLOW = ("eager", "sdpa")  # with all weights in memory at once


def prompt(
    dtype: str, shape: str, tokens: int, device: str = "cpu"
) -> tuple[Tensor, ...]:
    H, K, D, Dv = SHAPES[shape]
    sizes = ((H, D), (K, D), (K, Dv))
    return tuple(
        torch.randn(1, n, tokens, width, device=device).to(DTYPES[dtype])
        for n, width in sizes
    )


def prefill(dtype: str, shape: str, tokens: int) -> Timed:
    """A prompt under the causal mask; the slow ways to 2048 tokens."""
    given = prompt(dtype, shape, tokens)
    ways = {
        name: way
        for name, way in CAUSAL.items()
        if (tokens <= 2048 or name not in (*SLOW, "torch, bool mask"))
        and (shape == "MLA" or way is not padded)
    }
    ways["flash, tiles of 256"] = partial(CAUSAL["flash"], tile=(256, 256))
    truth = CAUSAL["torch, is_causal"] if tokens <= 1024 else None
    return Timed(ways, [given], truth)


def windowed(dtype: str, tokens: int) -> Timed:
    """A prompt with a window: one mask of all scores, or one for each block."""
    truth = WINDOWED["torch, bool mask"] if tokens <= 1024 else None
    return Timed(WINDOWED, [prompt(dtype, "window", tokens)], truth)


def given_mask(dtype: str, tokens: int) -> Timed:
    """`flash` with the causal mask as a tensor, which it does not know."""
    given = prompt(dtype, "GQA", tokens)
    seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    ways = {
        "torch, is_causal": CAUSAL["torch, is_causal"],
        "flash": lambda q, k, v: flash(q, k, v, seen),
        "fused": lambda q, k, v: fused(q, k, v, seen),
    }
    truth = CAUSAL["torch, is_causal"] if tokens <= 1024 else None
    return Timed(ways, [given], truth)


def backward(dtype: str, shape: str, tokens: int) -> Timed:
    """Forward and backward of a prompt: the gradients of q, k and v."""
    q, k, v = prompt(dtype, shape, tokens)
    above = torch.randn(*q.shape[:3], v.shape[3]).to(q.dtype)

    def through(name: str, **named: Any) -> Callable[..., Tensor]:
        way = CAUSAL[name]

        @torch.enable_grad()
        def run(*given: Tensor) -> Tensor:
            *leaves, d_out = (x.detach() for x in given)
            leaves = [x.requires_grad_() for x in leaves]
            out = way(*leaves, **named)
            grads = torch.autograd.grad(out, leaves, d_out)
            return torch.cat([g.flatten() for g in grads])

        return run

    names = ("torch, is_causal", "sdpa", "fused", "flash")
    ways = {name: through(name) for name in names}
    ways["flash, tiles of 256"] = through("flash", tile=(256, 256))
    truth = ways["torch, is_causal"] if tokens <= 1024 else None
    return Timed(ways, [(q, k, v, above)], truth)


def latent(dtype: str, tokens: int) -> Timed:
    """A decode step on cached latents: one head of keys for 16 of queries,
    576 wide, whose first 512 elements are the values."""
    q = torch.randn(1, 16, 1, 576).to(DTYPES[dtype])
    entry = torch.randn(1, 1, tokens, 576).to(DTYPES[dtype])
    ways = {
        name: lambda q, entry, core=core: core(q, entry, entry[..., :512])
        for name, core in {
            "fused": fused,
            "sdpa": sdpa,
            "flash": flash,
            "flash, tiles of 128": partial(flash, tile=(128, 128)),
        }.items()
    }

    def truth(q: Tensor, entry: Tensor) -> Tensor:
        return repeated(q, entry, entry[..., :512])

    flops = 2 * 16 * tokens * (576 + 512)
    return Timed(ways, cold((q, entry)), truth, flops)


def chosen(dtype: str, tokens: int) -> Timed:
    """The same with the heads of DeepSeek-V3.2, 128, and an indexer of 64 that
    chooses 2,048 of the keys."""
    indexer = Indexer(
        d_model=7168, q_lora_rank=1536, n_heads=64, head_dim=128, topk=2048
    )
    indexer = indexer.to(DTYPES[dtype]).requires_grad_(False)
    shapes = (1, 128, 1, 576), (1, 1, tokens, 576), (1, 1, 7168)
    shapes += (1, 64, 1, 128), (1, 1, tokens, 128)
    given = [torch.randn(shape).to(DTYPES[dtype]) for shape in shapes]

    def every(core: Any, q: Tensor, entry: Tensor, *_: Tensor) -> Any:
        return core(q, entry, entry[..., :512])

    def read(q: Tensor, entry: Tensor, *index: Tensor) -> Tensor:
        q, picked, _ = gathered(q, entry, indexer(*index, None), None)
        return fused(q, picked, picked[..., :512])

    def masked(q: Tensor, entry: Tensor, *index: Tensor) -> Tensor:
        mask = torch.zeros(1, 1, tokens, dtype=torch.bool)
        mask.scatter_(2, indexer(*index, None), True)
        return fused(q, entry, entry[..., :512], mask[:, None])

    ways = {
        "chosen keys": read,
        "chosen keys, the others masked": masked,
        "all keys, fused": partial(every, fused),
        "all keys, sdpa": partial(every, sdpa),
    }
    return Timed(ways, cold(tuple(given)), None)
