"""What loads into our layers and is right, loads and is wrong, is refused.

Attention modules of transformers with random weights: the defaults of their
configurations but for small sizes and what a row says. The outcome is kept in
`sitekit/drawn/oracles.json`, of which the site makes its tables; after a
change, `python -m tests.oracles.test_loads` writes it anew.
"""

import json
import re
from importlib import import_module
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoConfig
from transformers.masking_utils import (
    create_causal_mask,
    create_sliding_window_causal_mask,
)
from transformers.models.llama import modeling_llama as llama

from attnref import (
    GroupedQueryAttention,
    Llama3,
    MultiHeadLatentAttention,
    Rope,
    causal_mask,
    rope_rows,
)
from sitekit import ROOT
from sitekit.drawn.checkpoints import ORACLES
from sitekit.drawn.masks import named
from sitekit.pages import body_of
from tests.kit.compare import relative_error
from tests.kit.oracles import sharpened
from tests.kit.pages import fences

B, E, H, K, D, WINDOW = 3, 48, 8, 2, 16, 8
SIZES = {
    "hidden_size": E,
    "num_attention_heads": H,
    "num_key_value_heads": K,
    "head_dim": D,
    "num_hidden_layers": 4,
    "attn_implementation": "eager",
}
LATENT = {
    "q_lora_rank": 14,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
MLA = LATENT | {"num_key_value_heads": H, "head_dim": 4}
# Llama 3.1's own heads and frequencies, and the plain ones.
WIDE = {"head_dim": 128, "max_position_embeddings": 131_072}
BASE = {"rope_type": "default", "rope_theta": 500_000.0}
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


NOTHING: dict[str, Any] = {}


class Row(NamedTuple):
    """A `model_type` of transformers, and how our layer is made for it.

    `cure` replaces what makes a row wrong, and nothing else: with it, the
    outcome is right, so that `reason` is the whole reason.
    """

    model: str
    told: dict[str, Any] = NOTHING  # to our layer, beside its sizes and theta
    moved: bool = False  # q_proj and k_proj by rope_rows
    config: dict[str, Any] = NOTHING
    shown: str = ""  # of the configuration
    layer: int = 0
    batch: int = B
    length: int = 64
    reason: str = ""
    change: str = ""  # with it, it is right: see use/transformers#changes
    cure: dict[str, Any] = NOTHING


QKV, NOPE = {"bias": True, "o_bias": False}, {"rope": None}
LLAMA31 = {"rope": Rope(500_000.0, scaling=Llama3(8.0, 1.0, 4.0, 8192))}
HALF = {"rope": Rope(width=D // 2)}
ROWS = [
    Row("llama"),
    Row(
        "mistral", config={"sliding_window": None}, shown="sliding_window=None"
    ),
    Row("mixtral"),
    Row("gemma"),
    Row("starcoder2", {"bias": True}),
    Row("qwen2", QKV),
    Row("seed_oss", QKV),
    Row("smollm3", NOPE, layer=3, shown="layer_idx=3"),
    Row("cohere", moved=True),
    Row(
        "llama",
        LLAMA31,
        config=WIDE | {"rope_parameters": SCALED},
        shown="llama3, T=2048",
        batch=1,
        length=2048,
    ),
    Row("glm4_moe", HALF),
    Row("deepseek_v2", config=MLA),
    Row("deepseek_v3", config=MLA),
    Row(
        "llama",
        config=WIDE | {"rope_parameters": SCALED},
        shown="llama3, T=64",
        reason="scaled",
        change="rope=rope_of(config)",
        cure={"told": LLAMA31},
    ),
    Row(
        "llama",
        config=WIDE | {"rope_parameters": SCALED},
        shown="llama3, T=2048",
        batch=1,
        length=2048,
        reason="scaled",
        change="rope=rope_of(config)",
        cure={"told": LLAMA31},
    ),
    Row(
        "mistral",
        config={"sliding_window": WINDOW},
        shown=f"sliding_window={WINDOW}",
        reason="window",
        change="causal=Window(W)",
        cure={"config": {"sliding_window": None}},
    ),
    Row(
        "cohere",
        reason="interleaved",
        change="rope_rows",
        cure={"moved": True},
    ),
    Row(
        "smollm3",
        layer=3,
        shown="layer_idx=3",
        reason="nope",
        change="rope=None",
        cure={"told": NOPE},
    ),
    Row(
        "glm4_moe",
        reason="partial",
        change="rope=rope_of(config)",
        cure={"told": HALF},
    ),
    Row(
        "granite",
        reason="scale",
        change="attend=partial(sdpa, scale=m)",
        cure={"config": {"attention_multiplier": D**-0.5}},
    ),
    Row(
        "gemma2",
        layer=1,
        shown="layer_idx=1",
        reason="softcap",
        change="attend=capped",
        cure={
            "config": {
                "attn_logit_softcapping": None,
                "query_pre_attn_scalar": D,
            }
        },
    ),
    Row(
        "llama4_text",
        moved=True,
        reason="norm",
        cure={"config": {"use_qk_norm": False}},
    ),
    Row("qwen3", change="HeadNorm"),
    Row("qwen3_moe", change="HeadNorm"),
    Row("gemma3_text", change="HeadNorm"),
    Row("olmo2", change="HeadNorm"),
    Row("minimax_m2", change="HeadNorm"),
    Row("gpt_oss", {"bias": True}, change="attend=with_sinks"),
    Row("phi3"),
    Row("qwen3_next", layer=3, shown="layer_idx=3"),
    Row("deepseek_v32", config=MLA),
]


def theirs(row):
    """An attention module with sharp weights, and its RoPE tables."""
    config = AutoConfig.for_model(row.model, **SIZES | row.config)
    place = type(config).__module__.replace(".configuration_", ".modeling_")
    parts = import_module(place)
    name = type(config).__name__.removesuffix("Config")
    rotary = getattr(parts, f"{name}RotaryEmbedding", None)
    if not hasattr(parts, f"{name}Attention"):
        name = name.removesuffix("Text")
    attention = getattr(parts, f"{name}Attention")(config, row.layer)
    return sharpened(attention), rotary


def loaded(row, weights, config):
    """Our layer with these weights, and with all that it can be told."""
    sizes = {"d_model": E, "n_heads": H, **row.told}
    if "kv_b_proj.weight" in weights:
        layer = MultiHeadLatentAttention(**sizes, **LATENT)
    else:
        theta = config.rope_parameters.get("rope_theta")
        sizes = {
            "rope": theta and Rope(theta),
            "head_dim": config.head_dim,
        } | sizes
        layer = GroupedQueryAttention(**sizes, n_kv_heads=K)
    if row.moved:
        for name in ("q_proj.weight", "k_proj.weight"):
            weights[name] = rope_rows(weights[name], D, to="half")
    layer.load_state_dict(weights)
    return layer.eval()


@torch.no_grad()
def outcome(row):
    """The verdict; then the error, or the entries that have no place."""
    torch.manual_seed(0)
    attention, rotary = theirs(row)
    config, weights = attention.config, attention.state_dict()
    try:
        ours = loaded(row, weights, config)
    except RuntimeError as refusal:
        (line,) = (p for p in str(refusal).splitlines() if "Unexpected" in p)
        names = [entry.split(".")[0] for entry in line.split('"')[1::2]]
        return "refused", [*dict.fromkeys(names)]
    x = torch.randn(row.batch, row.length, E)
    positions = torch.arange(row.length)[None]
    windowed = row.config.get("sliding_window")
    make = create_sliding_window_causal_mask if windowed else create_causal_mask
    mask = make(
        config=config,
        inputs_embeds=x,
        attention_mask=None,
        past_key_values=None,
        position_ids=positions,
    )
    want, seen = attention(
        x,
        position_embeddings=rotary(config=config)(x, positions),
        attention_mask=mask,
    )
    assert seen.max() > 0.9, "too flat to show a fault"
    error = relative_error(ours(x), want)
    # Their angles are float32: the further a token, the less exact.
    if error <= 1e-6 * max(1, row.length / 64):
        return "right", None
    assert error > 1e-3, f"{row.model}: {error} is neither right nor wrong"
    return "wrong", float(f"{error:.2g}")


@torch.no_grad()
def blind(inner):
    """What the first query of a left-padded row gets, by Llama's layer."""
    config = AutoConfig.for_model(
        "llama",
        **SIZES
        | {"hidden_size": 4, "head_dim": 4, "attn_implementation": inner}
        | {"num_attention_heads": 1, "num_key_value_heads": 1},
    )
    attention = llama.LlamaAttention(config, 0)
    for part in attention.children():
        part.weight.copy_(torch.eye(4))
    x, positions = torch.eye(4)[None], torch.arange(4)[None]
    mask = create_causal_mask(
        config=config,
        inputs_embeds=x,
        attention_mask=torch.tensor([[0, 0, 1, 1]]),
        past_key_values=None,
        position_ids=positions,
    )
    tables = llama.LlamaRotaryEmbedding(config)(x, positions)
    out, _ = attention(x, position_embeddings=tables, attention_mask=mask)
    return named(out[0, 0]).key


def measured():
    rows = []
    for row in ROWS:
        verdict, found = outcome(row)
        told = [
            f"{name}=rope_of(config)"
            if isinstance(value, Rope)
            else f"{name}={value}"
            for name, value in row.told.items()
        ]
        rows.append(
            {
                "model_type": row.model,
                "config": row.shown,
                "told": [*told, "rope_rows"] if row.moved else told,
                "verdict": verdict,
                "found": found,
                "reason": row.reason,
                "change": row.change,
            }
        )
    empty = {inner: blind(inner) for inner in ("eager", "sdpa")}
    return {"checkpoints": rows, "empty": empty}


def test_what_the_site_says_of_checkpoints_is_what_comes_out():
    assert json.loads(ORACLES.read_text(encoding="utf-8")) == measured()


WRONG = [row for row in ROWS if row.reason]


@pytest.mark.parametrize("row", WRONG, ids=lambda r: f"{r.model} {r.reason}")
def test_the_reason_is_the_whole_reason(row):
    assert outcome(row)[0] == "wrong"
    assert outcome(row._replace(**row.cure))[0] == "right"


@torch.no_grad()
def test_a_window_can_be_passed_as_a_mask():
    """W tokens, the query's own included, as transformers counts them."""
    (row,) = (row for row in ROWS if row.reason == "window")
    torch.manual_seed(0)
    attention, rotary = theirs(row)
    ours = loaded(row, attention.state_dict(), attention.config)
    x, positions = torch.randn(B, 64, E), torch.arange(64)[None]
    mask = create_sliding_window_causal_mask(
        config=attention.config,
        inputs_embeds=x,
        attention_mask=None,
        past_key_values=None,
        position_ids=positions,
    )
    assert (mask[0, 0] == 0).sum(-1).tolist() == [*range(1, 8), *[8] * 57]
    tables = rotary(config=attention.config)(x, positions)
    want, _ = attention(x, position_embeddings=tables, attention_mask=mask)
    got = ours(x, mask=causal_mask(64).triu(1 - WINDOW))
    assert relative_error(got, want) <= 1e-6


def test_models_that_the_page_of_masks_names_have_windows_or_chunks():
    for model in ("mistral", "gemma2", "gemma3_text", "gpt_oss", "olmo3"):
        assert AutoConfig.for_model(model).sliding_window > 1
    assert AutoConfig.for_model("cohere2").sliding_window > 1  # Command A
    chunked = AutoConfig.for_model("llama4_text").layer_types
    assert chunked.count("chunked_attention") > len(chunked) / 2


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_of_rope_has_the_errors_of_the_table(language):
    page = body_of(ROOT / "docs" / language / "core" / "rope.md")
    rows = json.loads(ORACLES.read_text(encoding="utf-8"))["checkpoints"]
    errors = [r["found"] for r in rows if r["reason"] == "scaled"]
    assert len(errors) == 2
    assert {*errors} <= {float(n) for n in re.findall(r"\d\.\d+", page)}


def test_of_the_models_of_the_gqa_page_the_layer_is_that_of_one():
    rows = json.loads(ORACLES.read_text(encoding="utf-8"))["checkpoints"]
    verdicts = {  # the best, if there are several
        (r["model_type"], r["config"]): r["verdict"]
        for r in sorted(rows, key=lambda r: r["verdict"] == "right")
    }
    scaled = ("llama", "llama3, T=2048")
    found = {
        "llama-2-70b": verdicts["llama", ""],
        "llama-3.1-8b": verdicts[scaled],
        "llama-3.1-405b": verdicts[scaled],
        "qwen3-32b": verdicts["qwen3", ""],
        "qwen3-235b": verdicts["qwen3_moe", ""],
        "minimax-m2": verdicts["minimax_m2", ""],
    }
    (ids,) = (s["models"]["ids"] for _, s in fences("gqa") if "models" in s)
    assert ids == [*found]
    assert [*found.values()] == [*["right"] * 3, *["refused"] * 3]


if __name__ == "__main__":
    found = measured()
    rows = ",\n".join(map(json.dumps, found["checkpoints"]))
    empty = json.dumps(found["empty"])
    text = f'{{"checkpoints": [\n{rows}\n],\n"empty": {empty}}}\n'
    ORACLES.write_text(text, encoding="utf-8")
