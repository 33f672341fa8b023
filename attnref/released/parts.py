"""The parts of attention that Llama does not have, and their words."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from attnref.released.mixers import (
    CompressedAttention,
    KeysRecord,
    window_of,
)
from attnref.released.record import AttentionRecord, Config

Records = Mapping[int, AttentionRecord]
Saying = Mapping[str, Any]
Change = dict[str, Any]


@cache
def words() -> dict[str, Any]:
    """The words of parts.toml, in both languages."""
    path = Path(__file__).with_suffix(".toml")
    return tomllib.loads(path.read_text("utf-8"))


class Part(NamedTuple):
    """A part of attention that Llama does not have, and a record without it."""

    holds: Callable[[AttentionRecord], object]
    without: Callable[[AttentionRecord], Change] | None = None


def standard(r: AttentionRecord) -> float:
    return float(r.head_dim**-0.5)


# In the order of the page.
PARTS: dict[str, Part] = {
    "mla": Part(lambda r: r.kv_rank),
    "indexer": Part(
        lambda r: r.index_topk and not r.index_pool,
        lambda r: {"index_topk": None, "index_own": False},
    ),
    "blocks": Part(
        lambda r: r.index_pool,
        lambda r: {"index_topk": None, "index_own": False, "index_pool": None},
    ),
    "grouped": Part(lambda r: r.n_kv_heads < r.n_heads and not r.kv_rank),
    "wide": Part(
        lambda r: r.n_heads * r.head_dim != r.d_model and not r.kv_rank
    ),
    "narrow_v": Part(lambda r: r.v_head_dim != r.head_dim and not r.kv_rank),
    "fused": Part(lambda r: r.fused),
    "bias": Part(
        lambda r: r.qkv_bias or r.o_bias,
        lambda r: {"qkv_bias": False, "o_bias": False},
    ),
    "shares": Part(lambda r: r.shares is not None),
    "k_is_v": Part(lambda r: r.k_is_v),
    "clip": Part(lambda r: r.clip, lambda r: {"clip": None}),
    "k_factor": Part(lambda r: r.k_factor != 1, lambda r: {"k_factor": 1.0}),
    "v_factor": Part(lambda r: r.v_factor != 1, lambda r: {"v_factor": 1.0}),
    "norm": Part(
        lambda r: r.norm, lambda r: {"norm": None, "norm_late": False}
    ),
    "norm_weight": Part(
        lambda r: r.norm and r.norm_weight == "1 + w",
        lambda r: {"norm_weight": "w"},
    ),
    "norm_late": Part(  # without a weight, both orders are one
        lambda r: r.norm_late and r.norm_weight, lambda r: {"norm_late": False}
    ),
    "v_norm": Part(lambda r: r.v_norm, lambda r: {"v_norm": False}),
    "no_rope": Part(
        lambda r: not r.rope_theta and not r.alibi,
        lambda r: {"rope_theta": 1e4, "rope_width": r.rope_dim or r.head_dim},
    ),
    "alibi": Part(lambda r: r.alibi, lambda r: {"alibi": False}),
    "theta": Part(lambda r: False),  # of a model: see `parts_of`
    "partial": Part(
        lambda r: r.rope_theta and r.rope_width < (r.rope_dim or r.head_dim),
        lambda r: {"rope_width": r.head_dim},
    ),
    "interleaved": Part(
        lambda r: r.rope_theta and r.rope_layout != "half",
        lambda r: {"rope_layout": "half"},
    ),
    "scaled": Part(
        lambda r: r.rope_theta and r.rope_kind != "default",
        lambda r: {"rope_kind": "default", "rope_size": 1.0},
    ),
    "learned": Part(
        lambda r: r.rope_theta and r.rope_learned,
        lambda r: {"rope_learned": False},
    ),
    "growth": Part(
        lambda r: r.q_growth or r.q_power,
        lambda r: {"q_growth": 0.0, "q_power": 0.0},
    ),
    "log": Part(lambda r: r.q_log, lambda r: {"q_log": False}),
    "scale": Part(
        lambda r: abs(r.scale / standard(r) - 1) > 1e-6,
        lambda r: {"scale": standard(r)},
    ),
    "softcap": Part(lambda r: r.softcap, lambda r: {"softcap": None}),
    "window": Part(lambda r: r.window, lambda r: {"window": None}),
    "chunk": Part(lambda r: r.chunk, lambda r: {"chunk": None}),
    "sinks": Part(lambda r: r.with_sinks, lambda r: {"with_sinks": False}),
    "differential": Part(
        lambda r: r.differential is not None, lambda r: {"differential": None}
    ),
    "head_norm": Part(lambda r: r.head_norm, lambda r: {"head_norm": False}),
    "gate": Part(
        lambda r: r.gate, lambda r: {"gate": None, "gate_bias": False}
    ),
    "sub_norm": Part(lambda r: r.sub_norm, lambda r: {"sub_norm": False}),
}


def parts_of(records: Records) -> dict[str, list[int]]:
    """The parts that a model has, each with its layers."""
    result = {
        name: [n for n, r in records.items() if part.holds(r)]
        for name, part in PARTS.items()
    }
    theta = theta_of(records)
    result["theta"] = [
        n for n, r in records.items() if r.rope_theta not in (None, theta)
    ]
    return {name: layers for name, layers in result.items() if layers}


def theta_of(records: Records) -> float:
    """The base of RoPE of the layers that see furthest: the largest."""
    return max((r.rope_theta or 0.0 for r in records.values()), default=0.0)


def letters(config: Config, records: Records) -> list[str]:
    """A letter of `letters` in parts.toml per layer that attends or keeps a
    state."""
    pattern = config.fields.get("hybrid_override_pattern")
    others = pattern if isinstance(pattern, str) else ""
    result = []
    for layer in range(len(config.kinds)):
        r, mixer = records.get(layer), config.mixers.get(layer)
        if isinstance(mixer, CompressedAttention):
            result.append("K" if mixer.rate > 1 else "W")
        elif isinstance(mixer, KeysRecord):
            result.append("W" if window_of(mixer) else "F")
        elif r is None:
            result += [] if others[layer : layer + 1] in ("E", "-") else ["R"]
        elif r.shares is not None:
            result.append("S")
        else:
            kinds = {"L": r.kv_rank, "W": r.window, "C": r.chunk, "F": True}
            result.append(next(k for k, holds in kinds.items() if holds))
    return result


def composition(kinds: Sequence[str], words: Saying, language: str) -> str:
    """How many layers there are of each kind."""
    counts: dict[str, int] = {}
    for letter in kinds:
        counts[letter] = counts.get(letter, 0) + 1
    phrases = [
        words["letters"][letter][language].format(n)
        for letter, n in counts.items()
    ]
    text: str = words["join"][language].join(phrases)
    return text


def number(n: float) -> str:
    """A power of ten as one, and 0.125 as it is."""
    return f"{n:,.0f}" if n == int(n) else f"{n:.4g}"


def sentence(part: str, records: Records, words: Saying, language: str) -> str:
    """A part in a sentence, with its numbers and the layers that have it."""
    layers = parts_of(records)[part]
    r = records[layers[0]]

    def phrase(kind: str, name: str | None) -> str:
        return str(words[kind].get(name, {}).get(language, ""))

    rotates = any(records[n].rope_theta for n in layers)
    key = ("rotated" if rotates else "plain") if r.rope_dim else None
    facts = vars(r) | {
        "Dh": r.head_dim,
        "group": r.n_heads // r.n_kv_heads,
        "width": r.n_heads * r.head_dim,
        "share": number(r.rope_width / (r.rope_dim or r.head_dim)),
        "kind": phrase("kinds", r.rope_kind),
        "norm_of": phrase("norms", r.norm),
        "gate_of": phrase("gates", r.gate),
        "key_of": phrase("keys", key).format(rope_dim=r.rope_dim),
        "theta": number(r.rope_theta or 0),
        "most": number(theta_of(records)),
        "scale_of": f"{r.scale:.4g}",
        "usual": f"{standard(r):.4g}",
    }
    place = ""
    if len(layers) < len(records):
        place = words["some"][language]
        place = place.format(n=len(layers), all=len(records))
    text: str = words["parts"][part]["differs"][language]
    return text.format(**facts, some=place)
