"""Checkpoints as they are published, of tiny models of transformers."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassClassValidationError
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
    PretrainedConfig,
)
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.core_model_loading import (
    PrefixChange,
    revert_weight_conversion,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attnref.released.generate import file_of
from attnref.released.record import Config, families
from tests.kit.families import config_of


def published(model: nn.Module, family: str) -> dict[str, Tensor]:
    """The tensors of a model as transformers would save them."""
    weights = dict(model.state_dict())
    result = revert_weight_conversion(model, weights)
    steps = get_checkpoint_conversion_mapping(family.removesuffix("_text"))
    if steps and result.keys() == weights.keys():  # only of one with images
        model._weight_conversions = [
            step for step in steps if not isinstance(step, PrefixChange)
        ]
        result = revert_weight_conversion(model, weights)
    return {name: weight.clone() for name, weight in result.items()}


def write(
    folder: Path,
    config: PretrainedConfig | dict[str, Any],
    tensors: dict[str, Tensor],
    shards: int = 1,
) -> Path:
    """A folder as it is published: a config, and one file or several."""
    fields = config if isinstance(config, dict) else config.to_dict()
    text = json.dumps(fields, default=str)
    (folder / "config.json").write_text(text, encoding="utf-8")
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    home = {
        name: f"model-{n % shards}.safetensors"
        for n, name in enumerate(sorted(tensors))
    }
    for file in {*home.values()}:
        part = {name: tensors[name] for name in tensors if home[name] == file}
        save_file(part, folder / file)
    index = json.dumps({"weight_map": home})
    (folder / "model.safetensors.index.json").write_text(index)
    return folder


INKLING = {
    "vision_config": {"model_type": "inkling2_vision", "text_hidden_size": 60}
}
# What a wrapper of a tiny text model needs, so that its parts fit.
PARTS: dict[str, dict[str, Any]] = {
    "emu3": {"vocabulary_map": {"<|extra_200|>": 1}},
    "fun_asr_nano": {
        "adaptor_config": {"hidden_size": 60, "intermediate_size": 15}
    },
    "muse_spark": {
        "audio_config": {"out_hidden_size": 60},
        "vision_config": {"out_hidden_size": 60},
    },
    "granite4_vision": {
        "deepstack_layer_map": [[0, 1]],
        "downsample_rate": "4/8",
    },
    "granite_docling": {"vision_config": {"out_hidden_size": 60}},
    "inkling2": INKLING,
    "inkling2_loop": INKLING,
}
# Where the names that transformers gives back are not those it reads: patterns
# meant for towers have caught the text.
CAUGHT = {
    "kimi_k25": (".blocks.", ".layers."),
    "qianfan_ocr": ("language_model.model.encoder.", "language_model.model."),
}
AUTOS = (
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
    AutoModelForCausalLM,
    AutoModel,
)


def wrappers() -> dict[str, str]:
    """Models of images or sound, with the family of their text."""
    found = {}
    for name in sorted(CONFIG_MAPPING):
        kind = CONFIG_MAPPING[name]
        if "text_config" not in getattr(kind, "sub_configs", {}):
            continue
        with suppress(StrictDataclassClassValidationError):  # of defaults
            family = kind().to_dict()["text_config"]["model_type"]
            if family in families():
                found[name] = family
    return found


def wrapped(name: str, family: str) -> tuple[PretrainedConfig, nn.Module]:
    """A wrapper of a tiny text model, without memory."""
    text = config_of(family).to_dict()
    parts = PARTS.get(name, {})
    config = CONFIG_MAPPING[name](text_config=text, **parts)
    kinds = (auto._model_mapping for auto in AUTOS)
    kind = next(k[type(config)] for k in kinds if type(config) in k)
    kind = kind[0] if isinstance(kind, tuple) else kind
    with torch.device("meta"):
        return config, kind._from_config(config)


def theirs(model: nn.Module, config: Config, layer: int) -> nn.Module:
    """What mixes the tokens of a layer in transformers."""
    names = config.row.names
    place = names.get("at", "model.layers.{}.self_attn")
    if layer in config.mixers:
        place = names.get("mixer", place)
    place = place.partition("{}")[2].removeprefix(".")
    inside = rf"(\.mamba_decoder)?\.{place}" if place else ""
    ends = re.compile(rf"(.*\.)?(layers|h|blocks)\.{layer}{inside}")
    for name, module in model.named_modules():
        if ends.fullmatch(name):
            return module
    raise LookupError(f"layer {layer}: no {place}")


def file(fields: dict[str, Any], **options: Any) -> dict[str, Any]:
    """What the file of a model defines."""
    space: dict[str, Any] = {}
    exec(file_of(fields, **options), space)
    return space
