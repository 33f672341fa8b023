"""A decode step through a whole layer, beside the layers of transformers."""

from collections.abc import Callable
from copy import copy, deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    DeepseekV3Config,
    DynamicCache,
    LlamaConfig,
    StaticCache,
)
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.llama import modeling_llama as llama

from attnref import (
    GroupedQueryAttention,
    KVCache,
    MultiHeadLatentAttention,
    file_of,
    fused,
    sdpa,
)
from attnref.plain.gqa import GQA
from attnref.plain.mla import MLA
from benchmarks.cores import DTYPES, EXACT, repeated
from benchmarks.timing import Timed

# Model width, query heads, key/value heads, width of a head.
SHAPES = {
    "Llama-3-8B": (4096, 32, 8, 128),
    "a quarter": (1024, 8, 2, 128),
    "tiny": (256, 8, 2, 32),
}
THETA = 500_000.0
Step = Callable[[Tensor], Tensor]


def random_weights(layer: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Such that queries and keys have about the size of random ones."""
    layer = layer.to_empty(device="cpu").to(dtype)
    for name, weight in layer.named_parameters():
        if "norm" in name:
            nn.init.ones_(weight)
        else:
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
    return layer.eval().requires_grad_(False)


def theirs(
    layer: nn.Module,
    rope: nn.Module,
    stored: tuple[Tensor, ...],
    cache: type,
    inner: str = "sdpa",
    angles: tuple[Tensor, Tensor] | None = None,
) -> Step:
    """A step of a layer of transformers with tokens in its cache.

    A static cache has room for the new token alone, and the mask with which
    a model calls the layer then. What a model computes once for all layers,
    the mask and the angles of RoPE, is not timed.
    """
    layer, config = copy(layer), copy(layer.config)
    layer.config, config._attn_implementation = config, inner
    S = stored[0].shape[2]
    static = cache is StaticCache
    room: dict[str, Any] = {"max_cache_len": S + 1} if static else {}
    past = cache(config=config, **room)
    past.update(*stored, 0)
    (held,) = past.layers
    mask = torch.ones(1, 1, 1, S + 1, dtype=torch.bool) if static else None
    if angles is None:
        angles = rope(stored[0], torch.tensor([[S]]))

    def step(x: Tensor) -> Tensor:
        if static:
            held.cumulative_length.fill_(S)
        else:
            held.keys, held.values = stored
        out: Tensor = layer(
            hidden_states=x,
            position_embeddings=angles,
            attention_mask=mask,
            cache=past,
        )[0]
        return out

    return step


def ours(layer: nn.Module, stored: tuple[Tensor, ...], attend: Any) -> Step:
    layer, S = copy(layer), stored[0].shape[2]
    layer.attend = attend
    cache = KVCache(S + 1)
    cache.append(*stored)

    def step(x: Tensor) -> Tensor:
        cache.crop(S)
        out: Tensor = layer(x, cache=cache)
        return out

    return step


def repeating(
    q: Tensor, k: Tensor, v: Tensor, mask: Any, *, dropout: float
) -> Tensor:
    return repeated(q, k, v)


def in_float64(
    layer: nn.Module,
    rope: nn.Module,
    stored: tuple[Tensor, ...],
    theta: float,
) -> Step:
    """Theirs, written out, with the same weights and cache.

    Its own angles of RoPE are products in float32, which is not exact enough
    for long caches, so it is given others.
    """
    S = stored[0].shape[2]
    width = rope(stored[0], torch.tensor([[S]]))[0].shape[-1]
    pairs = torch.arange(0, width, 2, dtype=torch.float64) / width
    angles = (S * theta**-pairs).repeat(2)[None, None]

    def step(x: Tensor) -> Tensor:
        wide = deepcopy(layer).double()
        doubled = tuple(t.double() for t in stored)
        given = (angles.cos(), angles.sin())
        return theirs(wide, rope, doubled, DynamicCache, "eager", given)(x)

    return step


def layer(dtype: str, shape: str, tokens: int) -> Timed:
    """One token through a layer of GQA with so many in its cache."""
    E, H, K, D = SHAPES[shape]
    settings: dict[str, Any] = {"attn_implementation": "sdpa"}
    config = LlamaConfig(
        hidden_size=E,
        num_attention_heads=H,
        num_key_value_heads=K,
        head_dim=D,
        num_hidden_layers=1,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        **settings,
    )
    sizes: dict[str, Any] = {
        "d_model": E,
        "n_heads": H,
        "n_kv_heads": K,
        "head_dim": D,
    }
    with torch.device("meta"):
        other = llama.LlamaAttention(config, 0)
        mine = GroupedQueryAttention(**sizes, rope_theta=THETA)
    random_weights(other, DTYPES[dtype])
    mine.load_state_dict(other.state_dict(), assign=True)
    mine.eval().requires_grad_(False)
    rope = llama.LlamaRotaryEmbedding(config)
    k, v = torch.randn(2, 1, K, tokens, D).to(DTYPES[dtype])
    x = torch.randn(1, 1, E).to(DTYPES[dtype])
    ways = {
        "fused": ours(mine, (k, v), fused),
        "sdpa": ours(mine, (k, v), sdpa),
        "repeated heads": ours(mine, (k, v), repeating),
    }
    for inner, cache in (
        ("sdpa", StaticCache),
        ("sdpa", DynamicCache),
        ("eager", StaticCache),
    ):
        name = f"transformers {inner}, {cache.__name__}"
        ways[name] = theirs(other, rope, (k, v), cache, inner)
    truth = in_float64(other, rope, (k, v), THETA) if tokens <= EXACT else None
    repeats = dict.fromkeys(ways, 50) if shape == "tiny" else {}
    return Timed(ways, [(x,)], truth, repeats=repeats)


def mla(dtype: str, tokens: int) -> Timed:
    """One token through a layer of MLA, of the shape of DeepSeek-V2-Lite."""
    E, H, R, Dr, Dn, Dv = 2048, 16, 512, 64, 128, 128
    widths: dict[str, Any] = {"kv_lora_rank": R, "qk_rope_head_dim": Dr}
    widths |= {"qk_nope_head_dim": Dn, "v_head_dim": Dv, "q_lora_rank": None}
    settings = widths | {"attn_implementation": "sdpa"}
    config = DeepseekV3Config(
        hidden_size=E,
        num_attention_heads=H,
        num_key_value_heads=H,
        num_hidden_layers=1,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        **settings,
    )
    with torch.device("meta"):
        other = deepseek.DeepseekV3Attention(config, 0)
        mine = MultiHeadLatentAttention(d_model=E, n_heads=H, **widths)
    random_weights(other, DTYPES[dtype])
    mine.load_state_dict(other.state_dict(), assign=True)
    mine.eval().requires_grad_(False)
    rope = deepseek.DeepseekV3RotaryEmbedding(config)
    entry = torch.randn(1, 1, tokens, R + Dr).to(DTYPES[dtype])
    c, pairs = entry.split((R, Dr), dim=-1)
    # Theirs stores the first elements of all pairs, and then the second.
    halves = torch.cat((pairs[..., ::2], pairs[..., 1::2]), dim=-1)
    stored = (c.contiguous(), halves)
    x = torch.randn(1, 1, E).to(DTYPES[dtype])
    ways = {
        "fused": ours(mine, (entry,), fused),
        "sdpa": ours(mine, (entry,), sdpa),
        **{
            f"transformers sdpa, {cache.__name__}": theirs(
                other, rope, stored, cache
            )
            for cache in (StaticCache, DynamicCache)
        },
    }
    truth = (
        in_float64(other, rope, stored, 10_000.0) if tokens <= EXACT else None
    )
    return Timed(ways, [(x,)], truth)


def prompt(dtype: str, shape: str, tokens: int) -> Timed:
    """A prompt without pads through a whole layer, as in training too."""
    settings: dict[str, Any] = {"attn_implementation": "sdpa"}
    settings |= {"num_hidden_layers": 1}
    settings["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4}
    config: Any
    E, H, K, D = SHAPES["a quarter"]
    sizes: dict[str, Any] = {"hidden_size": E, "num_attention_heads": H}
    with torch.device("meta"):
        if shape == "GQA":
            sizes |= {"num_key_value_heads": K, "head_dim": D}
            config = LlamaConfig(**sizes, **settings)
            other: nn.Module = llama.LlamaAttention(config, 0)
            rope: Any = llama.LlamaRotaryEmbedding
            mine: nn.Module = GroupedQueryAttention(
                d_model=E, n_heads=H, n_kv_heads=K, rope_theta=1e4
            )
            short: nn.Module = GQA(E, H, K)
        else:
            R, Dn, Dr, Dv = 256, 128, 64, 128
            widths: dict[str, Any] = {"kv_lora_rank": R, "q_lora_rank": None}
            widths |= {"qk_nope_head_dim": Dn, "qk_rope_head_dim": Dr}
            widths["v_head_dim"] = Dv
            config = DeepseekV3Config(**sizes, **widths, **settings)
            other = deepseek.DeepseekV3Attention(config, 0)
            rope = deepseek.DeepseekV3RotaryEmbedding
            mine = MultiHeadLatentAttention(d_model=E, n_heads=H, **widths)
            short = MLA(E, H, R, Dn, Dr, Dv)
        space: dict[str, Any] = {}
        exec(file_of(config.to_dict()), space)
        written: nn.Module = space["Attention"]()
    random_weights(other, DTYPES[dtype])
    for layer in (mine, short, written):
        layer.load_state_dict(other.state_dict(), assign=True)
        layer.eval().requires_grad_(False)
    vars(mine)["attend"] = fused
    x = torch.randn(1, tokens, E).to(DTYPES[dtype])
    at = torch.arange(tokens)[None]

    def theirs(x: Tensor, layer: nn.Module = other) -> Tensor:
        angles = rope(config)(x, at)
        out: Tensor = layer(
            hidden_states=x, position_embeddings=angles, attention_mask=None
        )[0]
        return out

    ways = {"transformers": theirs, "plain form": short}
    ways |= {"written file": written, "layer, fused": mine}
    wide = deepcopy(short).double()
    return Timed(ways, [(x,)], wide if tokens <= 1024 else None)
