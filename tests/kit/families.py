"""Tiny models of transformers, one of each family, and what their attention
is given and gives."""

import importlib
import inspect
import math
import random
import re
from copy import deepcopy
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import yaml
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
from sitekit import ROOT


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
KNOWN = yaml.safe_load((ROOT / "tests/kit/families.yml").read_text("utf-8"))


def each(table: str) -> dict[str, Any]:
    """An entry a name, also where several have one."""
    entries = KNOWN[table].items()
    return {name: size for names, size in entries for name in names.split()}


SIZES = {
    n: size for size, names in KNOWN["sizes"].items() for n in names.split()
}
OWN, FLAGS, SIZED = map(each, ("own", "flags", "sized"))


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
    given |= deepcopy(OWN.get(family) or SIZED.get(family, {}))
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
