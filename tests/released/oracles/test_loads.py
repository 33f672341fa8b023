"""What loads into our layers and is right, loads and is wrong, is refused.

Attention modules of transformers with random weights: the defaults of their
configurations but for small sizes and what a row says. The outcome is kept in
`sitekit/drawn/oracles.json`, of which the site makes its tables; after a
change, `python -m tests.released.oracles.test_loads` writes it anew.
"""

import json
import re
from dataclasses import fields, is_dataclass, replace
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
    ConfiguredAttention,
    GroupedQueryAttention,
    Llama3,
    MultiHeadLatentAttention,
    Rope,
    Scores,
    Window,
    Yarn,
    attention_from_config,
    attention_of,
    causal_mask,
    split_qkv,
)
from attnref.released.specs import configs
from sitekit import ROOT
from sitekit.drawn.masks import named
from sitekit.drawn.transformers import ORACLES
from sitekit.markdown.pages import body_of
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
LLAMA31_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


EMPTY: dict[str, Any] = {}


class Row(NamedTuple):
    """A `model_type` of transformers, and how our layer is made for it.

    `cure` is what our layer takes besides its sizes, biases and theta, so
    that it is right: what `reason` names, and nothing else. Where the layer has
    no such option, `record` has the fields in which the model's record differs
    from that of a Llama.
    """

    model: str
    options: dict[str, Any] = EMPTY  # biases
    config: dict[str, Any] = EMPTY
    shown: str = ""  # of the configuration
    layer: int = 0
    batch: int = B
    length: int = 64
    reason: str = ""
    cure: dict[str, Any] = EMPTY
    record: dict[str, Any] = EMPTY


QKV = {"bias": True, "o_bias": False}
LLAMA31 = {"rope": Rope(500_000.0, scaling=Llama3(8.0, 1.0, 4.0, 8192))}
NEIGHBOURS = {"rope": Rope(500_000.0, layout="interleaved")}
HEAD_NORM, FULL_NORM = {"norm": "RMS of a head"}, {"norm": "RMS of all heads"}
SHIFTED_NORM = HEAD_NORM | {"norm_weight": "1 + w"}
WINDOW_RULE = {"causal": Window(WINDOW)}
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
    Row("deepseek_v2", config=MLA),
    Row("deepseek_v3", config=MLA),
    Row(
        "llama",
        config=WIDE | {"rope_parameters": LLAMA31_ROPE},
        shown="llama3, T=64",
        reason="scaled",
        cure=LLAMA31,
    ),
    Row(
        "llama",
        config=WIDE | {"rope_parameters": LLAMA31_ROPE},
        shown="llama3, T=2048",
        batch=1,
        length=2048,
        reason="scaled",
        cure=LLAMA31,
    ),
    Row(
        "mistral",
        config={"sliding_window": WINDOW},
        shown=f"sliding_window={WINDOW}",
        reason="window",
        cure=WINDOW_RULE,
    ),
    Row("cohere", reason="interleaved", cure=NEIGHBOURS),
    Row(
        "smollm3",
        layer=3,
        shown="layer_idx=3",
        reason="nope",
        cure={"rope": None},
    ),
    Row(
        "glm4_moe",
        reason="partial",
        cure={"rope": Rope(width=D // 2)},
    ),
    Row("granite", reason="scale", cure={"scores": Scores(scale=1.0)}),
    Row(
        "gemma2",
        layer=1,
        shown="layer_idx=1",
        reason="softcap",
        cure={"scores": Scores(scale=256**-0.5, softcap=50.0)},
    ),
    Row(
        "llama4_text",
        reason="norm",
        record=HEAD_NORM
        | {"norm_weight": None, "norm_eps": 1e-5, "norm_late": True}
        | {"rope_layout": "interleaved"},
    ),
    Row("qwen3", record=HEAD_NORM),
    Row("qwen3_moe", record=HEAD_NORM),
    Row(
        "gemma3_text",
        config={"sliding_window": WINDOW},
        shown=f"sliding_window={WINDOW}",
        record=SHIFTED_NORM
        | {"scale": 256**-0.5, "rope_theta": 10_000.0, "window": WINDOW},
    ),
    Row("olmo2", record=FULL_NORM | {"norm_eps": 1e-5}),
    Row(
        "minimax_m2",
        config={"rotary_dim": D // 2},
        shown=f"rotary_dim={D // 2}",
        record=FULL_NORM | {"rope_width": D // 2},
    ),
    Row(
        "gpt_oss",
        {"bias": True},
        config={"sliding_window": WINDOW},
        shown=f"sliding_window={WINDOW}",
        cure=WINDOW_RULE
        | {"rope": Rope(150_000.0, scaling=Yarn(32.0, 4096, truncate=False))}
        | {"scores": Scores(sinks=True)},
    ),
    Row(
        "qwen3_next",
        layer=3,
        shown="layer_idx=3",
        record=SHIFTED_NORM | {"rope_width": D // 4, "gate": "in q_proj"},
    ),
    Row("phi3", cure={"split_qkv": "layer"}),
    Row("deepseek_v32", config=MLA),
]


def theirs(row):
    """An attention module with sharp weights, and its RoPE tables."""
    config = AutoConfig.for_model(row.model, **SIZES | row.config)
    place = type(config).__module__.replace(".configuration_", ".modeling_")
    parts = import_module(place)
    name = type(config).__name__.removesuffix("Config")
    names = name, name.removesuffix("Text")
    attention, rotary = (
        next(vars(parts)[n + what] for n in names if hasattr(parts, n + what))
        for what in ("Attention", "RotaryEmbedding")
    )
    return sharpened(attention(config, row.layer)), rotary


def load(row, weights, config):
    """Our layer with these weights, and with all that it can be told."""
    sizes = {"d_model": E, "n_heads": H, **row.options}
    if "kv_b_proj.weight" in weights:
        layer = MultiHeadLatentAttention(**sizes, **LATENT)
    else:
        theta = config.rope_parameters.get("rope_theta")
        sizes = {"rope": theta and Rope(theta)} | sizes
        layout = sizes.pop("split_qkv", None)
        if layout:
            fused = weights.pop("qkv_proj.weight")
            rows = split_qkv(fused, H, K, by=layout)
            for n, weight in zip("qkv", rows, strict=True):
                weights[f"{n}_proj.weight"] = weight
        layer = GroupedQueryAttention(
            **sizes, n_kv_heads=K, head_dim=config.head_dim
        )
    layer.load_state_dict(weights)
    return layer.eval()


def load_into_llama(row, weights, config):
    """The attention of a Llama with what its record differs in, alone."""
    llama = {n: x for n, x in SIZES.items() if n != "attn_implementation"}
    r = attention_of({"model_type": "llama", **llama})
    theta = {"rope_theta": config.rope_parameters.get("rope_theta")}
    layer = ConfiguredAttention(replace(r, **theta | row.record))
    layer.load_state_dict(weights)
    return layer.eval()


def from_config(row, weights, config):
    layer = attention_from_config(config, row.layer)
    layer.load_state_dict(weights)
    return layer.eval()


@torch.no_grad()
def outcome(row, make_layer=load):
    """The verdict; then the error, or the entries that have no place."""
    torch.manual_seed(0)
    attention, rotary = theirs(row)
    config = attention.config
    try:
        ours = make_layer(row, attention.state_dict(), config)
    except ValueError:  # of an unknown family
        return "refused", None
    except RuntimeError as refusal:
        (line,) = (p for p in str(refusal).splitlines() if "Unexpected" in p)
        names = [entry.split(".")[0] for entry in line.split('"')[1::2]]
        return "refused", [*dict.fromkeys(names)]
    x = torch.randn(row.batch, row.length, E)
    positions = torch.arange(row.length)[None]
    window = row.config.get("sliding_window")
    make = create_sliding_window_causal_mask if window else create_causal_mask
    mask = make(
        config=config,
        inputs_embeds=x,
        attention_mask=None,
        cache=None,
        position_ids=positions,
    )
    kind = {"layer_type": "sliding_attention"}
    tables = rotary(config=config)
    expected, weights = attention(
        x,
        position_embeddings=tables(
            x, positions, **kind if row.model == "gemma3_text" else {}
        ),
        attention_mask=mask,
    )
    assert weights.max() > 0.9, "too flat to show a fault"
    error = relative_error(ours(x), expected)
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
        cache=None,
        position_ids=positions,
    )
    tables = llama.LlamaRotaryEmbedding(config)(x, positions)
    out, _ = attention(x, position_embeddings=tables, attention_mask=mask)
    return named(out[0, 0]).key


def spell(options):
    """What our layer takes, as one would write it; of `scores` the fields."""
    for name, value in options.items():
        if name == "split_qkv":
            yield f'split_qkv(..., by="{value}")'
        elif name == "scores":
            yield from changed_fields(value)
        elif isinstance(value, Rope) and value.scaling is not None:
            yield "rope=rope_of(config)"
        else:
            yield f"{name}={spell_value(value)}"


def changed_fields(value):
    """The fields of a dataclass that are not as by default."""
    for f in fields(value):
        own = getattr(value, f.name)
        if own != f.default:
            yield f"{f.name}={spell_value(own)}"


def spell_value(value):
    if not is_dataclass(value):
        return json.dumps(value) if isinstance(value, str) else repr(value)
    inside = ", ".join(changed_fields(value))
    for first in ("theta=", "size=", "over="):
        inside = inside.removeprefix(first)
    return f"{type(value).__name__}({inside})"


def measure():
    rows = []
    for row in ROWS:
        verdict, error = outcome(row)
        rows.append(
            {
                "model_type": row.model,
                "config": row.shown,
                "verdict": verdict,
                "found": error,
                "reason": row.reason,
                "cure": [*spell(row.cure | row.record)],
                "from_config": outcome(row, from_config)[0],
            }
        )
    empty = {inner: blind(inner) for inner in ("eager", "sdpa")}
    return {"checkpoints": rows, "empty": empty}


def test_what_the_site_says_of_checkpoints_is_what_comes_out():
    assert json.loads(ORACLES.read_text(encoding="utf-8")) == measure()


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r.model} {r.shown}")
def test_what_differs_is_all_that_differs(row):
    """With it alone, the layer is right; an indexer has no place in ours."""
    cured = row._replace(options={**row.options, **row.cure})
    if row.cure or row.record:
        assert outcome(row)[0] == ("wrong" if row.reason else "refused")
    make_layer = load_into_llama if row.record else load
    assert outcome(cured, make_layer)[0] == (
        "right" if "v32" not in row.model else "refused"
    )


@torch.no_grad()
def test_a_window_can_be_passed_as_a_mask():
    """W tokens, the query's own included, as transformers counts them."""
    (row,) = (row for row in ROWS if row.reason == "window")
    torch.manual_seed(0)
    attention, rotary = theirs(row)
    ours = load(row, attention.state_dict(), attention.config)
    x, positions = torch.randn(B, 64, E), torch.arange(64)[None]
    mask = create_sliding_window_causal_mask(
        config=attention.config,
        inputs_embeds=x,
        attention_mask=None,
        cache=None,
        position_ids=positions,
    )
    assert (mask[0, 0] == 0).sum(-1).tolist() == [*range(1, 8), *[8] * 57]
    tables = rotary(config=attention.config)(x, positions)
    expected, _ = attention(x, position_embeddings=tables, attention_mask=mask)
    actual = ours(x, mask=causal_mask(64).triu(1 - WINDOW))
    assert relative_error(actual, expected) <= 1e-6


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


def test_the_models_of_the_gqa_page_need_what_it_says():
    ids, _ = (s["models"]["ids"] for _, s in fences("gqa") if "models" in s)
    records = {id: attention_of(configs()[id]) for id in ids}
    parts = {
        id: (r.rope_kind, r.norm, r.rope_width) for id, r in records.items()
    }
    assert parts == {
        "llama-2-70b": ("default", None, 128),
        "llama-3.1-8b": ("llama3", None, 128),
        "qwen3-235b": ("default", "RMS of a head", 128),
        "minimax-m2": ("default", "RMS of all heads", 64),
    }


if __name__ == "__main__":
    result = measure()
    rows = ",\n".join(map(json.dumps, result["checkpoints"]))
    empty = json.dumps(result["empty"])
    text = f'{{"checkpoints": [\n{rows}\n],\n"empty": {empty}}}\n'
    ORACLES.write_text(text, encoding="utf-8")
