"""Tiny models of transformers, one of each family, and what their attention
is given and gives."""

import importlib
import inspect
import math
import random
import re
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    MiMoV2FlashConfig,
    MiMoV2FlashForCausalLM,
    PretrainedConfig,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attnref.released.record import families


class MiMoV2Config(MiMoV2FlashConfig):
    model_type = "mimo_v2"

    attention_value_scale: float | None = None

    def __post_init__(self, **given: Any) -> None:
        bases = given.get("rope_theta"), given.get("swa_rope_theta")
        if self.rope_parameters is None and all(bases):
            share = given["partial_rotary_factor"]
            rope = {"rope_type": "default", "partial_rotary_factor": share}
            self.rope_parameters = {
                f"{kind}_attention": rope | {"rope_theta": base}
                for kind, base in zip(("full", "sliding"), bases, strict=True)
            }
        super().__post_init__(**given)


class Rows(nn.Module):
    """Some rows of a projection that has its weights elsewhere."""

    def __init__(self, whole: nn.Linear, start: int, end: int) -> None:
        super().__init__()
        self.of = [whole], slice(start, end)

    def forward(self, x: Tensor) -> Tensor:
        [whole], rows = self.of
        return F.linear(x, whole.weight[rows])


class MiMoV2(MiMoV2FlashForCausalLM):
    """What its makers have: one projection, and the sinks by another name."""

    config_class = MiMoV2Config

    def __init__(self, config: MiMoV2Config) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            own = layer.self_attn
            parts = "q_proj", "k_proj", "v_proj"
            ends = [0, *accumulate(getattr(own, n).out_features for n in parts)]
            own.qkv_proj = nn.Linear(config.hidden_size, ends[-1], bias=False)
            for name, rows in zip(parts, pairwise(ends), strict=True):
                setattr(own, name, Rows(own.qkv_proj, *rows))
            if own.sinks is not None:
                own.attention_sink_bias = own._parameters.pop("sinks")
                vars(own)["sinks"] = own.attention_sink_bias


CONFIG_MAPPING.register("mimo_v2", MiMoV2Config)
AutoModelForCausalLM.register(MiMoV2Config, MiMoV2)
FAMILIES = sorted(families())
LAYERS, LENGTH, ROWS = 4, 24, 3
CHUNKS = {
    "whole": (24,),
    "prefill and decode": (13, *(11 * (1,))),
    "ragged": (9, 5, 1, 4, 1, 1, 3),
}
# Those that are read whole: they have no cache, or read each layer twice.
WHOLE = "ctrl", "granite4_vision_text", "openai-gpt"
# Whose recurrent layers begin anew at a call of several tokens.
RESTARTS = ("jamba",)


def each(names: str, size: Any) -> dict[str, Any]:
    return dict.fromkeys(names.split(), size)


SIZES = {
    **each("hidden_size n_embd d_model", 60),
    **each("num_attention_heads n_head n_heads num_heads attention_heads", 6),
    **each("num_hidden_layers n_layer n_layers num_layers", LAYERS),
    **each("num_local_experts num_experts n_routed_experts moe_num_experts", 4),
    **each("intermediate_size n_inner ffn_dim dff moe_intermediate_size", 16),
    **each("shared_expert_intermediate_size expert_ffn_hidden_size", 16),
    **each("ffn_hidden_size moe_hidden_size kv_lora_rank", 16),
    **each("linear_num_value_heads", 4),
    **each("linear_num_key_heads num_experts_per_tok eos_token_id", 2),
    **each("linear_key_head_dim qk_rope_head_dim", 8),
    **each("linear_value_head_dim", 12),
    **each("linear_conv_kernel_dim", 3),
    **each("hidden_size_per_layer_input laurel_rank", 8),
    **each("num_key_value_heads", 3),
    **each("head_dim v_head_dim", 10),
    **each("vocab_size vocab_size_per_layer_input", 41),
    **each("n_group topk_group first_k_dense_replace bos_token_id", 1),
    **each("num_nextn_predict_layers pad_token_id", 0),
    **each("max_position_embeddings n_positions", 128),
    **each("sliding_window attention_chunk_size window_size", 7),
    **each("q_lora_rank", 20),
    **each("qk_nope_head_dim", 12),
}
PAIRS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 1]}
HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.4}
GROWING = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "llama_4_scaling_beta": 0.1,
}
MLA = {"num_key_value_heads": 6, "head_dim": 8}
DSA = MLA | {"index_topk": 5, "index_n_heads": 3, "index_head_dim": 14}
MAMBA = {"mamba_n_heads": 6, "mamba_d_state": 8, "mamba_n_groups": 2}
MIXED = ["sliding_attention", "full_attention"]
WIDE = {str(layer): {"head_dim": 12} for layer in (1, 3, 5)}
INKLING = {
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 6,
}


# What a family needs beside the sizes.
OWN: dict[str, dict[str, Any]] = {
    **each("axk1 deepseek_v3 glm4_moe_lite minicpm3 sarvam_mla youtu", MLA),
    "bamba": MAMBA | {"attn_layer_indices": [1, 3], "head_dim": 8},
    "zamba2": {
        "n_mamba_heads": 6,
        "mamba_d_state": 8,
        "mamba_ngroups": 2,
        "num_mem_blocks": 2,
        "num_key_value_heads": 6,
        "hybrid_layer_ids": [1, 3],
        "layers_block_type": 2 * ["linear_attention", "hybrid"],
    },
    "falcon_h1": MAMBA | {"mamba_d_ssm": 66},
    "granitemoehybrid": MAMBA
    | {"layer_types": 2 * ["linear_attention", "full_attention"]},
    "kimi_linear": MLA
    | {"linear_num_heads": 2, "linear_head_dim": 8}
    | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "bailing_hybrid": MLA
    | {"num_expert_group": 1, "num_experts": 4, "num_experts_per_token": 2}
    | {"layer_types": 2 * ["linear_attention", "full_attention"]},
    "dbrx": {
        "attn_config": {"kv_n_heads": 3, "clip_qkv": 0.7, "rope_theta": 1e4}
    },
    "deepseek_v2": MLA | {"num_experts_per_tok": 2},
    **each("deepseek_v32 glm_moe_dsa", DSA),
    "axk2": DSA | {"n_group": 1, "topk_group": 1},
    "deepseek_v4": {
        "head_dim": 24,
        "o_groups": 3,
        "o_lora_rank": 10,
        "index_n_heads": 11,
        "index_head_dim": 14,
        "index_topk": 2,
        "num_key_value_heads": 1,
        "partial_rotary_factor": 0.34,
        "compress_rates": {
            "compressed_sparse_attention": 3,
            "heavily_compressed_attention": 5,
        },
        "rope_parameters": GROWING | {"attention_factor": 1.0},
        "hc_mult": 2,
        "layer_types": [
            "sliding_attention",
            "heavily_compressed_attention",
            "compressed_sparse_attention",
            "sliding_attention",
        ],
    },
    "hy_v4": DSA | {"hc_mult": 2},
    "inkling_text": INKLING | {"rel_extent": 11, "sliding_window_size": 7},
    "hy_v4_vl_text": DSA
    | {"hc_mult": 2, "rope_parameters": PAIRS | {"mrope_section": [2, 1, 1]}},
    "dots3_note_text": DSA
    | {
        "num_key_value_heads": 6,
        "n_shared_experts": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 7,
        "per_layer_config": {
            str(layer): {
                **each("num_attention_heads num_key_value_heads", 4),
                **each("q_lora_rank kv_lora_rank", 18),
                "head_dim": 14,
                "qk_nope_head_dim": 8,
                "qk_rope_head_dim": 6,
                "v_head_dim": 12,
            }
            for layer in (1, 3)
        },
        "layer_types": 2 * ["indexed_attention", "sliding_attention"],
    },
    "glm5_next_text": DSA
    | {"index_topk": 6, "index_kpool": 3, "qk_rope_head_dim": 0}
    | {"index_n_heads": 11}  # with fewer, scores of 0 are a tie
    | {"linear_num_heads": 2, "linear_head_dim": 8, "hc_mult": 2}
    | {"linear_lower_bound": -0.7},
    "minimax_m3_vl_text": {
        "index_n_heads": 3,
        "index_head_dim": 12,
        "index_block_size": 3,
        "index_topk_blocks": 3,
        "rotary_dim": 8,
        "rope_parameters": HALF | {"partial_rotary_factor": 0.8},
        "layer_types": 2 * ["full_attention", "minimax_m3_sparse"],
    },
    "qwen4_exp_text": {
        "output_gate_type": "sigmoid",
        "indexer_n_heads": 11,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 14,
        "indexer_budget": 9,
        "indexer_compress_ratio": 3,
        "hc_count": 2,
        "hc_lowrank": 8,
        "rope_parameters": HALF,
    },
    "longcat_flash": MLA | {"zero_expert_num": 2, "moe_topk": 2},
    "mistral4": MLA
    | {"head_dim": 20}
    | {"rope_parameters": GROWING | {"partial_rotary_factor": 0.4}},
    "ministral3": {"rope_parameters": GROWING},
    **each("codegen gptj", {"rotary_dim": 6}),
    "cohere_compass_text": {
        "layer_types": 2 * MIXED,
        "rope_parameters": {
            "full_attention": None,
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "dots1": {
        "n_shared_experts": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
    },
    "ernie4_5_moe": {"moe_k": 2},
    "ernie4_5_vl_moe_text": {
        "moe_intermediate_size": [16, 16],
        "moe_k": 2,
        "rope_parameters": PAIRS,
    },
    **each(
        "glm4v_text glm_ocr_text qwen2_vl_text qwen2_5_vl_text "
        "cosmos3_edge_text paddleocr_vl_text hunyuan_vl_text "
        "qwen2_5_omni_text",
        {"head_dim": 10, "rope_parameters": PAIRS},
    ),
    "glm4v_moe_text": {
        "head_dim": 12,
        "rope_parameters": HALF
        | {"partial_rotary_factor": 0.5, "mrope_section": [1, 1, 1]},
    },
    "glm4_moe": {"head_dim": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    **each("hunyuan_v1_dense hunyuan_v1_moe ministral", {"head_dim": 10}),
    **each("lfm2 lfm2_moe", {"layer_types": 2 * ["conv", "full_attention"]}),
    "muse_spark_text": {"expert_dim": 16},
    **each("phi persimmon", {"head_dim": 10, "rope_parameters": HALF}),
    "gemma3n_text": {
        "num_hidden_layers": 6,
        "layer_types": 3 * MIXED,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": 6 * [0.0],
    },
    "gemma4_text": {
        "num_hidden_layers": 6,
        "layer_types": 3 * MIXED,
        "num_kv_shared_layers": 2,
        "per_layer_config": WIDE,
    },
    "gemma4_unified_text": {
        "per_layer_config": {
            str(layer): {"head_dim": 12, "num_key_value_heads": 2}
            for layer in (1, 3)
        },
        "attention_k_eq_v": True,
    },
    "deepseek_ocr2_text": {"mlp_layer_types": 4 * ["dense"]},
    "falcon": {
        "num_kv_heads": 3,
        "new_decoder_architecture": True,
        "alibi": False,
    },
    "mimo_v2_flash": {"head_dim": 24},
    "mimo_v2": {
        "head_dim": 24,
        "attention_projection_layout": "fused_qkv",
        "attention_value_scale": 0.61,
        "swa_num_key_value_heads": 6,
        "add_swa_attention_sink_bias": True,
    },
    "phi4_multimodal": {  # whose other models are as small
        name: {
            **each("hidden_size num_attention_heads", 16),
            **each("intermediate_size num_hidden_layers num_blocks", 1),
        }
        for name in ("vision_config", "audio_config")
    },
    "opt": {"word_embed_proj_dim": 60},
    "step3p5": {"sliding_window": 7},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_dt_rank": 4,
    },
}
# Flags that are off by default, and change attention where they are on.
FLAGS = {
    "llama": {"attention_bias": True},
    "cohere": {"use_qk_norm": True},
    "falcon": {"new_decoder_architecture": False, "multi_query": True},
    "falcon_h1": {
        "key_multiplier": 1.7,
        "attention_in_multiplier": 1.2,
        "attention_out_multiplier": 0.7,
        "ssm_in_multiplier": 0.6,
        "ssm_out_multiplier": 1.3,
        "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
        "mamba_rms_norm": True,
    },
    "deepseek_v3": {  # the ends of the ramp of Kimi K2 are one
        "rope_parameters": GROWING | {"beta_fast": 1.0, "beta_slow": 1.0}
    },
    "gemma3_text": {
        "rope_parameters": {
            "full_attention": {
                "rope_type": "linear",
                "rope_theta": 1e4,
                "factor": 8.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e2},
        }
    },
    "glm4_moe": {"use_qk_norm": True},
    "glm_moe_dsa": {"indexer_types": ["full", "shared", "full", "shared"]},
    "zamba2": {"use_mem_rope": True},
    "granitemoehybrid": {"position_embedding_type": "rope"},
    "inkling_text": {"log_scaling_n_floor": 5, "log_scaling_alpha": 0.4},
    "kimi_linear": {"q_lora_rank": 20},
    "gpt2": {"scale_attn_by_inverse_layer_idx": True},
    "gpt_bigcode": {"multi_query": False},
    "mixtral": {"sliding_window": 7},
    "phi": {"qk_layernorm": True},
    "phi3": {
        "sliding_window": 7,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0, 1.1, 1.3, 1.7, 2.5],
            "long_factor": [1.2, 2.0, 5.0, 9.0, 16.0],
        },
        "original_max_position_embeddings": 8,
    },
    "llama4_text": {"floor_scale": 5, "attn_scale": 0.5},
    "minimax_m2": {"rotary_dim": 4},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 2},
}


INDEXED = {
    "num_key_value_heads": 6,
    "index_head_dim": 16,
    "index_n_heads": 2,
}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
# Families of which sizes.toml knows what they store.
SIZED: dict[str, dict[str, Any]] = {
    **each("doge falcon_mamba hrm_text jetmoe mamba", {}),
    "diffllama": {
        "hidden_size": 40,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "dory": {
        "layer_types": MIXED + MIXED,
        "n_input_layers": 1,
        "n_recurrent_layers": 2,
        "n_output_layers": 1,
    },
    "gpt_neox_japanese": {"rotary_pct": 1.0},
    "inkling2_loop_text": INKLING
    | {
        "loop_layer_index_start": 1,
        "loop_layer_index_end": 3,
        "n_layers_per_attn_res_block": 1,
    },
    "inkling2_text": INKLING,
    "mamba2": {
        "num_heads": 4,
        "head_dim": 30,
        "n_groups": 2,
        "state_size": 6,
        "expand": 2,
    },
    "mistral_large4_text": INDEXED
    | {
        "kv_source_layers": [0, 0, 2, 2],
        "indexer_types": ["full", "full", "full", "shared"],
        "no_rope_layers": 4 * [1],
    },
    "zaya": {"num_experts_per_tok": 1},
}


def config_of(family: str, **more: Any) -> PretrainedConfig:
    """The configuration of a tiny model, of odd sizes."""
    kind = CONFIG_MAPPING[family]
    known = kind().to_dict()
    optional = "num_key_value_heads", "pad_token_id"
    given = {
        name: size
        for name, size in SIZES.items()
        if name in known and (known[name] is not None or name in optional)
    }
    partial = "partial_rotary_factor" in str(known.get("rope_parameters"))
    if partial and "head_dim" in given:
        given["head_dim"] = 16
    given |= OWN.get(family) or SIZED.get(family, {})
    kinds = known.get("layer_types")
    if kinds and "num_hidden_layers" in known:
        different = [*dict.fromkeys(kinds)]
        count = given["num_hidden_layers"]
        given.setdefault("layer_types", (different * LAYERS)[:count])
    config = kind(**given | more)
    config._attn_implementation = "eager"
    return config


def model_of(config: PretrainedConfig) -> nn.Module:
    """A model of random weights, far from the 0.02 that hides faults."""
    torch.manual_seed(0)
    model = _class_of(config)._from_config(config, attn_implementation="eager")
    for name, weight in model.named_parameters():
        if "norm" in name.lower() and weight.dim() == 1:
            weight.data = ("bias" not in name) + 0.3 * torch.randn_like(weight)
        elif weight.is_floating_point():
            weight.data.normal_(std=0.2)
    return model.eval().requires_grad_(False)


def _class_of(config: PretrainedConfig) -> Any:
    for auto in (AutoModelForCausalLM, AutoModel):
        if type(config) in auto._model_mapping:
            known = auto._model_mapping[type(config)]
            return known[0] if isinstance(known, tuple) else known
    module = type(config).__module__.replace("configuration_", "modeling_")
    classes = vars(importlib.import_module(module)).items()
    return next(
        kind
        for name, kind in classes
        if inspect.isclass(kind)
        and issubclass(kind, nn.Module)
        and "PreTrained" not in name
        and (
            getattr(kind, "config_class", None) is type(config)
            or name.endswith("TextModel")
        )
    )


class Seen(NamedTuple):
    """The attention of one layer of a model, or what keeps its state, and what
    went through it."""

    layer: int
    module: nn.Module
    calls: list[tuple[Tensor, Tensor]]  # x, and the output of o_proj

    @property
    def recurrent(self) -> bool:
        return re.search(RECURRENT, type(self.module).__name__) is not None


def seen(
    model: nn.Module,
    family: str,
    chunks: tuple[int, ...],
    valid: Tensor | None,
    rows: int = ROWS,
) -> list[Seen]:
    """What the attention of each layer was given and gave, chunk by chunk; and
    what keeps a state."""
    if family in ALONE and valid is not None:
        return seen_alone(model, family, chunks, valid)
    last = families()[family].names.get("o_proj", "o_proj")
    layers, hooks = [], []
    for name, module in model.named_modules():
        layer = next((int(p) for p in name.split(".") if p.isdigit()), 0)
        if re.search(OTHERS, type(module).__name__):
            continue
        calls: list[tuple[Tensor, Tensor]] = []
        result = Seen(layer, module, calls)
        projections = {*module._modules} & PROJECTIONS
        attends = last in module._modules and projections
        if not result.recurrent and not attends:
            continue
        layers.append(result)

        def given(module, args, named, calls=calls):
            calls.append((args[0] if args else named["hidden_states"], None))

        def gave(module, args, out, calls=calls):
            out = out[0] if isinstance(out, tuple) else out
            calls[-1] = calls[-1][0].clone(), out.clone()

        hooks.append(module.register_forward_pre_hook(given, with_kwargs=True))
        gives = module if result.recurrent else module._modules[last]
        hooks.append(gives.register_forward_hook(gave))
    tokens = torch.randint(3, 41, (rows, sum(chunks)))
    takes = inspect.signature(model.forward).parameters
    past, start = None, 0
    for T in chunks:
        end = start + T
        more = {}
        if valid is not None:
            more["attention_mask"] = valid[:, :end].long()
            if "position_ids" in takes:
                at = (valid.cumsum(1) - 1).clamp(min=0)
                more["position_ids"] = at[:, start:end]
        out = model(
            input_ids=tokens[:, start:end],
            cache=past,
            use_cache=len(chunks) > 1,
            **more,
        )
        past, start = getattr(out, "cache", None), end
    for hook in hooks:
        hook.remove()
    return layers


def seen_alone(
    model: nn.Module, family: str, chunks: tuple[int, ...], valid: Tensor
) -> list[Seen]:
    """The same, of rows that each run without their pads."""
    rows = []
    for pads in (~valid).sum(1).tolist():
        own = chunks[0] - pads, *chunks[1:]
        rows.append(seen(model, family, own, None, 1))
    together = []
    for layers in zip(*rows, strict=True):
        calls = []
        steps = zip(*(layer.calls for layer in layers), strict=True)
        for T, step in zip(chunks, steps, strict=True):
            both = torch.randn(2, len(rows), T, step[0][0].shape[2])
            for row, pair in enumerate(step):
                for whole, part in zip(both, pair, strict=True):
                    whole[row, T - part.shape[1] :] = part[0]
            calls.append((both[0], both[1]))
        together.append(layers[0]._replace(calls=calls))
    return together


# Whose blocks of tokens start at the first pad, in transformers.
ALONE = "deepseek_v4", "minimax_m3_vl_text"
OTHERS = "(Vision|Audio)(?!Text)"  # of Granite 4 Vision, the text too
RECURRENT = (
    r"kV4Attention|InklingAttention|TextLinearAttention|Delta|\wMixer$|"
    r"MambaLayer$|Lightning"
    "|ShortConv$"
)
PROJECTIONS = {
    *("q_proj", "qkv_proj", "query_key_value", "q_b_proj", "c_attn"),
    *("Wqkv", "Wq", "q_gate_proj"),
}


# What may stand in a field.
HOSTILE = [
    *(None, 0, -1, 1, 7, 10**30, 1.5, -0.5, math.inf, math.nan, True, False),
    *("x", "", "1e4", [], [1], [None] * 4, {}, {"a": 1}, {"__proto__": 1}),
    *(["full_attention"], ["sliding_attention"] * 4, [[["global"], 4]]),
    {"rope_type": "yarn"},
    {"rope_type": "llama3", "factor": "8"},
    {"rope_type": "linear", "rope_theta": -1.0, "factor": 0},
    {"full_attention": {"rope_type": []}},
]


def spoiled(family: str, chance: random.Random) -> dict[str, Any]:
    """The config of a family with one to three fields that hold anything."""
    config: dict[str, Any] = config_of(family).to_dict()
    for name in chance.sample([*config], chance.randint(1, 3)):
        if name != "model_type":
            config[name] = chance.choice(HOSTILE)
    return config
