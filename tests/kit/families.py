"""Tiny models of transformers, one of each family, with the inputs and outputs
of their attention."""

import importlib
import inspect
import math
import random
import re
from copy import deepcopy
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    DynamicCache,
    KimiLinearConfig,
    KimiLinearForCausalLM,
    MiMoV2FlashConfig,
    MiMoV2FlashForCausalLM,
    PretrainedConfig,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.glm5_next.modeling_glm5_next import (
    Glm5NextTextForgetGate,
)
from transformers.models.kimi_linear.modeling_kimi_linear import (
    KimiLinearDeltaAttention,
)

from attnref.numbers.shapes import Model
from attnref.released.from_config import model_from_config
from attnref.released.mixers import MixerRecord
from attnref.released.record import AttentionRecord, families, read_config
from sitekit import ROOT


class MiMoV2Config(MiMoV2FlashConfig):
    model_type = "mimo_v2"

    attention_value_scale: float | None = None

    def __post_init__(self, **fields: Any) -> None:
        bases = fields.get("rope_theta"), fields.get("swa_rope_theta")
        if self.rope_parameters is None and all(bases):
            share = fields["partial_rotary_factor"]
            rope = {"rope_type": "default", "partial_rotary_factor": share}
            self.rope_parameters = {
                f"{kind}_attention": rope | {"rope_theta": base}
                for kind, base in zip(("full", "sliding"), bases, strict=True)
            }
        super().__post_init__(**fields)


class Rows(nn.Module):
    """Some rows of a projection that has its weights elsewhere."""

    def __init__(self, projection: nn.Linear, start: int, end: int) -> None:
        super().__init__()
        self.source = [projection], slice(start, end)

    def forward(self, x: Tensor) -> Tensor:
        [projection], rows = self.source
        return F.linear(x, projection.weight[rows])


class MiMoV2(MiMoV2FlashForCausalLM):
    """The model as its makers store it: one projection for queries, keys and
    values, and another name for the sinks."""

    config_class = MiMoV2Config

    def __init__(self, config: MiMoV2Config) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            attn = layer.self_attn
            parts = "q_proj", "k_proj", "v_proj"
            widths = (getattr(attn, name).out_features for name in parts)
            ends = [0, *accumulate(widths)]
            attn.qkv_proj = nn.Linear(config.hidden_size, ends[-1], bias=False)
            for name, rows in zip(parts, pairwise(ends), strict=True):
                setattr(attn, name, Rows(attn.qkv_proj, *rows))
            if attn.sinks is not None:
                attn.attention_sink_bias = attn._parameters.pop("sinks")
                vars(attn)["sinks"] = attn.attention_sink_bias


class KimiK3(KimiLinearForCausalLM):
    """Kimi Linear with what its config has in Kimi K3, which transformers does
    not know: the bounded decay of GLM-5.3, one matrix for the gate of KDA, and
    a gate of MLA."""

    def __init__(self, config: KimiLinearConfig) -> None:
        super().__init__(config)
        fields = getattr(config, "linear_attn_config", None) or {}
        for layer in self.model.layers:
            mixer, E = layer.self_attn, config.hidden_size
            if not isinstance(mixer, KimiLinearDeltaAttention):
                if getattr(config, "mla_use_output_gate", False):
                    gate_output(mixer, E)
                continue
            if fields.get("gate_lower_bound"):
                options = config.to_dict() | {
                    "linear_lower_bound": fields["gate_lower_bound"]
                }
                gate = Glm5NextTextForgetGate(SimpleNamespace(**options))
                mixer.forget_gate = gate
            if fields.get("use_full_rank_gate"):
                del mixer.g_a_proj, mixer.g_b_proj
                mixer.g_proj = nn.Linear(E, mixer.qkv_dim, bias=False)
                vars(mixer)["g_a_proj"] = nn.Identity()
                vars(mixer)["g_b_proj"] = mixer.g_proj


def gate_output(attn: nn.Module, width: int) -> None:
    """Multiply what the heads return by a gate of the layer's input."""
    attn.g_proj = nn.Linear(width, attn.o_proj.in_features, bias=False)
    inputs: list[Tensor] = []

    def keep_input(module, args, keywords):
        inputs[:] = [args[0] if args else keywords["hidden_states"]]

    def gate(module, args):
        return (args[0] * attn.g_proj(inputs[0]).sigmoid(),)

    attn.register_forward_pre_hook(keep_input, with_kwargs=True)
    attn.o_proj.register_forward_pre_hook(gate)


CONFIG_MAPPING.register("mimo_v2", MiMoV2Config)
AutoModelForCausalLM.register(KimiLinearConfig, KimiK3, exist_ok=True)
AutoModelForCausalLM.register(MiMoV2Config, MiMoV2)
FAMILIES = sorted(families())
LAYERS, LENGTH, ROWS = 4, 24, 3
CHUNKS = {
    "whole": (24,),
    "prefill and decode": (13, *(11 * (1,))),
    "ragged": (9, 5, 1, 4, 1, 1, 3),
}
# Families that are read at once: without a cache, or with layers read twice.
WHOLE = "ctrl", "granite4_vision_text", "openai-gpt"
# Families whose layers may run several times, each time with another cache.
LOOPS = ("inkling2_loop_text",)
# Families whose recurrent layers begin anew at a call of several tokens.
RESTARTS = "falcon_mamba", "jamba", "mamba", "recurrent_gemma"
TABLES = yaml.safe_load((ROOT / "tests/kit/families.yml").read_text("utf-8"))


def by_name(table: str) -> dict[str, Any]:
    """An entry for each name; several names may share one in the file."""
    entries = TABLES[table].items()
    return {name: size for names, size in entries for name in names.split()}


SIZES = {
    n: size for size, names in TABLES["sizes"].items() for n in names.split()
}
OWN, FLAGS, SIZED = map(by_name, ("own", "flags", "sized"))


def records_of(source: Any) -> dict[int, AttentionRecord]:
    """The records of softmax attention in the layers of a config."""
    return read_config(source).records


def mixers_of(source: Any) -> dict[int, MixerRecord]:
    """The records of the layers of a config that keep a state."""
    return read_config(source).mixers


def shape_of(source: Any) -> Model:
    """What the cache of a config's model holds."""
    return model_from_config(read_config(source))


def config_of(family: str, **options: Any) -> PretrainedConfig:
    """The configuration of a tiny model, of odd sizes."""
    kind = CONFIG_MAPPING[family]
    defaults = kind().to_dict()
    optional = "num_key_value_heads", "pad_token_id"
    fields = {
        name: size
        for name, size in SIZES.items()
        if name in defaults and (defaults[name] is not None or name in optional)
    }
    partial = "partial_rotary_factor" in str(defaults.get("rope_parameters"))
    if partial and "head_dim" in fields:
        fields["head_dim"] = 16
    fields |= deepcopy(OWN.get(family) or SIZED.get(family, {}))
    kinds = defaults.get("layer_types")
    if kinds and "num_hidden_layers" in defaults:
        different = [*dict.fromkeys(kinds)]
        count = fields["num_hidden_layers"]
        fields.setdefault("layer_types", (different * count)[:count])
    config = kind(**fields | options)
    config._attn_implementation = "eager"
    return config


def model_of(config: PretrainedConfig) -> nn.Module:
    """A model of random weights, far from the 0.02 that hides faults."""
    torch.manual_seed(0)
    model = class_of(config)._from_config(config, attn_implementation="eager")
    if config.model_type == "mistral_large4_text":
        lend_alpha(model)
    for name, weight in model.named_parameters():
        is_vector = weight.dim() == 1 or name.endswith("norm.scale")
        if "norm" in name.lower() and is_vector:
            weight.data = ("bias" not in name) + 0.3 * torch.randn_like(weight)
        elif weight.is_floating_point():
            weight.data.normal_(std=0.2)
    return model.eval().requires_grad_(False)


def lend_alpha(model: nn.Module) -> None:
    """LeRoPE: show its factors, which stand outside of the layers, in each
    layer that has RoPE too, as ours. The model has them once."""
    for layer in model.layers:
        if layer.self_attn.use_rope:
            layer.self_attn.alpha = model.rotary_emb.alpha

    def forget(model, weights, prefix, _):
        for name in [n for n in weights if n.endswith("self_attn.alpha")]:
            del weights[name]

    model.register_state_dict_post_hook(forget)


def class_of(config: PretrainedConfig) -> Any:
    for auto in (AutoModelForCausalLM, AutoModel):
        if type(config) in auto._model_mapping:
            entry = auto._model_mapping[type(config)]
            return entry[0] if isinstance(entry, tuple) else entry
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
    """The attention of one layer of a model, or its recurrent mixer, and what
    went through it."""

    layer: int
    module: nn.Module
    calls: list[tuple[Tensor, Tensor]]  # x, and the output of o_proj
    inputs: list[dict[str, Tensor]]  # beside x, by our names

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
    """The inputs and outputs of the attention, or of the recurrent mixer, of
    each layer, chunk by chunk."""
    if family in ROW_BY_ROW and valid is not None:
        return seen_alone(model, family, chunks, valid)
    last = families()[family].names.get("o_proj", "o_proj")
    layers, hooks = [], []
    for name, module in model.named_modules():
        layer = next((int(p) for p in name.split(".") if p.isdigit()), 0)
        if re.search(NOT_TEXT, type(module).__name__):
            continue
        calls: list[tuple[Tensor, Tensor]] = []
        inputs: list[dict[str, Tensor]] = []
        result = Seen(layer, module, calls, inputs)
        projections = {*module._modules} & PROJECTIONS
        attends = last in module._modules and projections
        if not result.recurrent and not attends:
            continue
        layers.append(result)

        def record_input(module, args, keywords, calls=calls, inputs=inputs):
            calls.append((args[0] if args else keywords["hidden_states"], None))
            given = {n: keywords.get(name) for n, name in INPUTS.items()}
            inputs.append({n: x for n, x in given.items() if x is not None})

        def record_output(module, args, out, calls=calls):
            out = out[0] if isinstance(out, tuple) else out
            calls[-1] = calls[-1][0].clone(), out.clone()

        hooks.append(
            module.register_forward_pre_hook(record_input, with_kwargs=True)
        )
        output_module = module if result.recurrent else module._modules[last]
        hooks.append(output_module.register_forward_hook(record_output))
    tokens = torch.randint(3, 41, (rows, sum(chunks)))
    parameters = inspect.signature(model.forward).parameters
    past, start = None, 0
    if family == "recurrent_gemma" and len(chunks) > 1:
        past = DynamicCache(config=model.config)  # its output has none
    for T in chunks:
        end = start + T
        options = {}
        if valid is not None:
            options["attention_mask"] = valid[:, :end].long()
            if "position_ids" in parameters:
                positions = (valid.cumsum(1) - 1).clamp(min=0)
                options["position_ids"] = positions[:, start:end]
        out = model(
            input_ids=tokens[:, start:end],
            cache=past,
            use_cache=len(chunks) > 1,
            **options,
        )
        past, start = getattr(out, "cache", past), end
    for hook in hooks:
        hook.remove()
    if family in LOOPS:
        layers = [run for one in layers for run in runs_of(one, len(chunks))]
    return layers


def runs_of(layer: Seen, steps: int) -> list[Seen]:
    """What a layer does that runs several times at each step, by its runs."""
    n = len(layer.calls) // steps
    return [
        layer._replace(calls=layer.calls[run::n], inputs=layer.inputs[run::n])
        for run in range(n)
    ]


def seen_alone(
    model: nn.Module, family: str, chunks: tuple[int, ...], valid: Tensor
) -> list[Seen]:
    """The same as `seen`, but each row runs alone and without its pads."""
    rows = []
    for pads in (~valid).sum(1).tolist():
        row_chunks = chunks[0] - pads, *chunks[1:]
        rows.append(seen(model, family, row_chunks, None, 1))
    joined = []
    for layers in zip(*rows, strict=True):
        calls = []
        steps = zip(*(layer.calls for layer in layers), strict=True)
        for T, step in zip(chunks, steps, strict=True):
            tensors = torch.randn(2, len(rows), T, step[0][0].shape[2])
            for row, pair in enumerate(step):
                for target, part in zip(tensors, pair, strict=True):
                    target[row, T - part.shape[1] :] = part[0]
            calls.append((tensors[0], tensors[1]))
        joined.append(layers[0]._replace(calls=calls))
    return joined


# In transformers, blocks of tokens of these start at the first pad, or pads
# are told only for the tokens of a call.
ROW_BY_ROW = (
    *("deepseek_v4", "falcon_mamba", "mamba", "minimax_m3_vl_text"),
    *("recurrent_gemma", "xlstm"),
)
# What keys and values are projected from, where that is not x.
INPUTS = {
    "key_input": "key_hidden_states",
    "value_input": "value_hidden_states",
}
NOT_TEXT = "(Vision|Audio)(?!Text)"  # of Granite 4 Vision, the text too
RECURRENT = (
    r"kV4Attention|TextLinearAttention|Delta|\wMixer$|MambaLayer$|Lightning|"
    r"Inkling(2(Loop)?(Sliding|Full))?Attention"
    "|ShortConv$|xLSTMLayer|JetMoeAttention|RecurrentBlock|ZayaAttention"
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
