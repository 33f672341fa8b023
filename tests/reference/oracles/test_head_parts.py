"""Norms, gates, sinks and scales of today's heads against transformers.

A row per family: whole, with a prefill and single tokens, in ragged chunks,
and with pads on the left.
"""

import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from transformers import AutoConfig, DynamicCache

from attnref import (
    Gate,
    GroupedQueryAttention,
    HeadParts,
    KVCache,
    LongQueries,
    Norm,
    Rope,
    rope_rows,
)
from sitekit import ROOT
from sitekit.markdown.pages import body_of
from tests.kit.compare import relative_error
from tests.kit.oracles import (
    BOUND,
    CHUNKS,
    LENGTH,
    SIZES,
    THETA,
    WRONG,
    B,
    E,
    H,
    K,
    in_ours,
    in_theirs,
    padded,
    positions_of,
    sharpened,
)

D = 10
FULL = {"layer_types": ["full_attention"]}
PLAIN: dict[str, Any] = {}
BASE = {"rope_type": "default", "rope_theta": THETA}
EACH = {"full_attention": BASE}


class Row(NamedTuple):
    """A family: its configuration, and what our layer is told."""

    model: str
    parts: HeadParts
    config: dict[str, Any] = PLAIN
    layer: int = 0
    told: dict[str, Any] = PLAIN
    renamed: dict[str, str] = PLAIN
    moved: bool = False  # q_proj and k_proj by rope_rows
    inner: str = "eager"
    rope: dict[str, Any] = BASE
    tables: str = "half"
    counted: bool = False  # theirs counts pads as positions


ONE = Norm(weight="1 + w")
G = {"g_proj.weight": "gate_proj.weight"}
NOPE = {"rope": None}
ROWS = {
    "qwen3": Row("qwen3", HeadParts(Norm())),
    "gemma 3": Row(
        "gemma3_text", HeadParts(ONE, scale=256**-0.5), FULL, rope=EACH
    ),
    "gemma 2": Row(
        "gemma2",
        HeadParts(scale=144**-0.5, softcap=2.0),
        FULL | {"query_pre_attn_scalar": 144, "attn_logit_softcapping": 2.0},
    ),
    "olmo 2": Row("olmo2", HeadParts(Norm("width", eps=1e-5))),
    "hunyuan": Row(
        "hunyuan_v1_dense",
        HeadParts(Norm(eps=1e-5), norm_after_rope=True),
        renamed={
            "query_layernorm.weight": "q_norm.weight",
            "key_layernorm.weight": "k_norm.weight",
        },
    ),
    "cohere": Row(
        "cohere",
        HeadParts(Norm("each", "layer", eps=1e-5)),
        {"use_qk_norm": True},
        moved=True,
        tables="interleaved",
    ),
    "llama 4": Row(
        "llama4_text",
        HeadParts(Norm(weight=None, eps=1e-5), norm_after_rope=True),
        {"no_rope_layers": [1]},
        told={"rope": Rope(THETA, layout="interleaved")},
        tables="complex",
    ),
    "llama 4 without rope": Row(
        "llama4_text",
        HeadParts(long_queries=LongQueries(2.0, 5, shift=1)),
        {"no_rope_layers": [0], "floor_scale": 5, "attn_scale": 2.0},
        told=NOPE,
        counted=True,
    ),
    "ministral 3": Row(
        "ministral3",
        HeadParts(long_queries=LongQueries(2.0, 5)),
        {
            "sliding_window": None,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": THETA,
                "llama_4_scaling_beta": 2.0,
                "original_max_position_embeddings": 5,
            },
        },
    ),
    "gate in q_proj": Row(
        "qwen3_next",
        HeadParts(ONE, gate=Gate(in_query=True)),
        FULL | {"partial_rotary_factor": 1.0},
    ),
    "gate": Row(
        "afmoe",
        HeadParts(Norm(eps=1e-5), gate=Gate()),
        FULL,
        told=NOPE,
    ),
    "gate per head": Row(
        "step3p5",
        HeadParts(Norm(weight="1 + w", eps=1e-5), gate=Gate("head")),
        FULL,
        renamed=G,
    ),
    "softplus": Row(
        "laguna",
        HeadParts(Norm(), gate=Gate("head", "softplus")),
        FULL,
        renamed=G,
        rope=EACH,
    ),
    "gpt-oss": Row(
        "gpt_oss",
        HeadParts(sinks=True),
        FULL,
        told={"bias": True},
        tables="short",
    ),
    "granite": Row(
        "granite", HeadParts(scale=0.9), {"attention_multiplier": 0.9}
    ),
    "smollm 3": Row("smollm3", HeadParts(), {"no_rope_layers": [0]}, told=NOPE),
    "cohere 2": Row("cohere2", HeadParts(), FULL, told=NOPE),
    "gemma 4": Row(
        "gemma4_text",
        HeadParts(
            Norm(),
            value_norm=Norm(weight=None),
            key_is_value=True,
            scale=1.0,
        ),
        FULL
        | {"attention_k_eq_v": True, "num_kv_shared_layers": 0}
        | {"global_head_dim": D, "num_global_key_value_heads": K},
        rope=EACH,
    ),
}


def pair(row):
    """Their layer and ours, with the same weights."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        row.model,
        **SIZES
        | {
            "num_key_value_heads": K,
            "head_dim": D,
            "rope_theta": THETA,
            "rope_parameters": row.rope,
            "attn_implementation": row.inner,
        }
        | row.config,
    )
    place = type(config).__module__.replace(".configuration_", ".modeling_")
    parts = import_module(place)
    name = type(config).__name__.removesuffix("Config")
    if row.model == "step3p5":
        name = "Step3p7"
    if not hasattr(parts, f"{name}Attention"):
        name = name.removesuffix("Text")
    heads = [H] if row.model == "laguna" else []
    theirs = sharpened(
        getattr(parts, f"{name}Attention")(config, row.layer, *heads)
    )
    weights = {row.renamed.get(n, n): w for n, w in theirs.state_dict().items()}
    if row.moved:
        for n in ("q_proj.weight", "k_proj.weight"):
            weights[n] = rope_rows(weights[n], D, to="half")
        for n in ("q_norm.weight", "k_norm.weight"):
            w = weights[n]
            weights[n] = rope_rows(w.flatten(), D, to="half").view_as(w)
    ours = GroupedQueryAttention(
        d_model=E,
        n_heads=H,
        n_kv_heads=K,
        head_dim=D,
        parts=row.parts,
        **{"rope": Rope(THETA)} | row.told,
    )
    ours.load_state_dict(weights)
    return ours.eval().requires_grad_(False), theirs


def tables(row, positions):
    """Cosines and sines in the form that the family takes."""
    pairs = torch.arange(0, D, 2).double()
    angles = positions[..., None] * THETA ** (-pairs / D)
    if row.tables == "complex":
        return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
    if row.tables == "half":
        angles = torch.cat((angles, angles), dim=-1)
    if row.tables == "interleaved":
        angles = angles.repeat_interleave(2, dim=-1)
    return angles.cos().float(), angles.sin().float()


def in_family(row, theirs, x, chunks=(LENGTH,), **told):
    """`in_theirs`, with what this family alone is told."""
    now = {}

    def rotary(_, positions):
        now["positions"] = positions
        return tables(row, positions)

    def layer(x, **more):
        if row.model == "ministral3":
            more["position_ids"] = now["positions"]
        if row.model == "gemma4_text":
            more["shared_kv_states"] = {}
        return theirs(x, **more)

    return in_theirs(layer, theirs.config, x, chunks, rotary=rotary, **told)


@pytest.mark.parametrize("name", ROWS)
def test_a_family_is_computed_as_by_transformers(name):
    row = ROWS[name]
    ours, theirs = (layer.double() for layer in pair(row))
    x = torch.randn(B, LENGTH, E).double()
    want = in_family(row, theirs, x)
    for chunks in CHUNKS.values():
        got = in_ours(ours, x, chunks, KVCache(LENGTH))
        assert relative_error(got, want) <= BOUND, chunks
        cache = DynamicCache(config=theirs.config)
        step = in_family(row, theirs, x, chunks, cache=cache)
        assert relative_error(got, step) <= BOUND, chunks


@pytest.mark.parametrize("name", [n for n in ROWS if not ROWS[n].counted])
def test_a_family_with_pads_is_computed_as_by_transformers(name):
    row = ROWS[name]
    ours, theirs = pair(row)
    x, valid = torch.randn(B, LENGTH, E), padded("left")
    told = {"valid": valid, "positions": positions_of(valid)}
    want = in_family(row, theirs, x, **told)
    if ours.rope is None and ours.parts.long_queries is None:
        del told["positions"]
    for chunks in CHUNKS.values():
        got = in_ours(ours, x, chunks, KVCache(LENGTH), **told)
        assert relative_error(got[valid], want[valid]) <= BOUND, chunks


@pytest.mark.parametrize("name", ROWS)
def test_each_part_of_a_family_is_seen(name):
    row = ROWS[name]
    ours, theirs = pair(row)
    x = torch.randn(B, LENGTH, E)
    want = in_family(row, theirs, x)
    for field, value in vars(row.parts).items():
        if value == getattr(HeadParts(), field):
            continue
        if field in ("key_is_value", "gate", "norm_after_rope"):
            continue
        ours.parts = replace(row.parts, **{field: getattr(HeadParts(), field)})
        assert relative_error(ours(x), want) >= WRONG, field


def test_the_page_names_the_families_with_a_logit_of_sinks():
    models = Path(transformers.__file__).parent / "models"
    having = {
        path.parent.name
        for path in models.glob("*/modeling_*.py")
        if "self.sinks = nn.Parameter(" in path.read_text(encoding="utf-8")
    }
    for language in ("en", "zh"):
        text = body_of(ROOT / f"docs/{language}/core/sinks.md")
        (line,) = (x for x in text.splitlines() if "`deepseek_v4`" in x)
        assert {*re.findall(r"`(\w+)`", line)} == having - {"gpt_oss"}
