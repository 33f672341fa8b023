"""The bytes of a model's weights, as its config.json stores them."""

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from attnref.numbers.kv_memory import Storage
from attnref.released.record import UNREADABLE, fields_of
from attnref.released.weights import params_of
from attnref.words import message

WIDTHS = {"float32": 32, "bfloat16": 16, "float16": 16}
# Modules that are small, or no part of a layer, and are not quantised.
FULL = {
    *("lm_head", "embed_tokens", "gate", "router", "e_score_correction_bias"),
    *("mtp", "visual", "vision_tower"),
}


def stored_bytes(config: Mapping[str, Any] | str | PathLike[str]) -> int:
    """Bytes of all weights, quantised as `quantization_config` says.

    Embeddings and the output head keep their dtype. The few numbers in the
    layers that keep it too, such as norms, are counted as if they did not.

    Examples:
        >>> config = {"model_type": "llama", "num_hidden_layers": 1}
        >>> config |= {"hidden_size": 64, "num_attention_heads": 4}
        >>> config |= {"intermediate_size": 128, "vocab_size": 100}
        >>> config |= {"torch_dtype": "bfloat16", "tie_word_embeddings": False}
        >>> four = {"quant_method": "awq", "bits": 4, "group_size": 64}
        >>> stored_bytes(config), stored_bytes(
        ...     config | {"quantization_config": four}
        ... )
        (107904, 47784)
    """
    given = fields_of(config)
    family, quant = given.get("model_type"), given.get("quantization_config")
    if isinstance(config, (str, PathLike)) and not quant:
        beside = Path(config).with_name("hf_quant_config.json")
        if beside.exists():
            raise ValueError(
                message(
                    "{}: weights that are quantised as {} says are not "
                    "counted; pass their size",
                    family,
                    beside.name,
                )
            )
    counted = params_of(given)
    inside = params_of(
        given | {"vocab_size": 0, "vocab_size_per_layer_input": 0}
    )
    if counted is None or inside is None:
        raise ValueError(
            message(
                "{}: its parameters are not counted; pass the size of its "
                "weights",
                family,
            )
        )
    dtype = given.get("torch_dtype") or given.get("dtype")
    width = WIDTHS.get(str(dtype), 16 if quant else 0)
    if not width:
        raise ValueError(
            message(
                "{}: torch_dtype={!r} is not a dtype of weights", family, dtype
            )
        )
    bits = counted[0] * width
    if quant:
        try:
            storage, narrow = _quantised(str(family), quant, *inside)
        except UNREADABLE as error:
            raise ValueError(
                message(
                    "{}: quantization_config cannot be read: {}", family, error
                )
            ) from None
        bits += storage.bits_for(narrow) - narrow * width
    return -(-bits // 8)


def assumed_dtype(config: str | PathLike[str]) -> str | None:
    """The dtype for which weights are taken, if the file says no format."""
    given = fields_of(config)
    if given.get("quantization_config"):
        return None
    return str(given.get("torch_dtype") or given.get("dtype"))


def cache_scheme(config: str | PathLike[str]) -> str | None:
    """The format that a file gives its cache: `kv_cache_scheme` in its
    quantization_config, or what hf_quant_config.json beside it says."""
    quant = fields_of(config).get("quantization_config") or {}
    scheme, beside = quant.get("kv_cache_scheme"), Path(config)
    if scheme is None:
        beside = beside.with_name("hf_quant_config.json")
        text = beside.read_text(encoding="utf-8") if beside.exists() else "{}"
        quant = json.loads(text).get("quantization") or {}
        scheme = quant.get("kv_cache_quant_algo")
    known = {(8, "float"): "fp8", (8, "int"): "int8", "FP8": "fp8", None: None}
    if isinstance(scheme, Mapping):
        scheme = scheme.get("num_bits"), scheme.get("type")
    if scheme not in known:
        raise ValueError(
            message(
                "{}: a cache in {} is not counted; pass --dtype",
                beside.name,
                scheme,
            )
        )
    return known[scheme]


def _quantised(
    family: str, quant: Mapping[str, Any], inside: int, attention: int
) -> tuple[Storage, int]:
    """How the weights in the layers are stored, and how many of them."""
    method = quant.get("quant_method")
    if method == "fp8":
        rows, columns = quant.get("weight_block_size") or (1, 0)
        block = rows * columns
        storage = Storage(8, 32, block) if block else Storage(8)
    elif method in ("awq", "gptq"):
        bits, group = quant["bits"], quant["group_size"]
        storage = Storage(bits)
        if group > 0:  # of each a scale in 16 bits, and a zero point
            storage = Storage(bits, 16 + bits, group)
    elif method == "mxfp4":
        storage = Storage(4, 8, 32)
    else:
        raise ValueError(
            message(
                "{}: weights that are quantised by {!r} are not counted; pass "
                "their size",
                family,
                method,
            )
        )
    whole = method == "mxfp4"  # which is that of experts alone
    names = quant.get("modules_to_not_convert") or quant.get("ignored_layers")
    for name in names or ():
        parts = name.split(".")
        if parts[-1] == "self_attn" and not any(map(str.isdigit, parts)):
            whole = True
        elif not FULL.intersection(parts) and "norm" not in parts[-1]:
            raise ValueError(
                message(
                    "{}: {} is not quantised, which is not counted; pass the "
                    "size of the weights",
                    family,
                    name,
                )
            )
    return storage, inside - attention if whole else inside
