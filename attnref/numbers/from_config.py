"""The shape of a model, read from its config.json."""

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike, fspath
from typing import Any

from attnref.models.record import KINDS as SOFTMAX
from attnref.models.record import (
    AttentionRecord,
    attention_of,
    fields_of,
    kinds_of,
)
from attnref.numbers.specs import (
    Chunked,
    Full,
    Group,
    Mla,
    Model,
    Recurrent,
    Sliding,
    Source,
)
from attnref.numbers.weights import params_of

LONGEST = "max_position_embeddings", "n_positions", "max_seq_len", "seq_length"
# Their layers without softmax are Gated DeltaNet.
DELTA = "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"


def model_from_config(
    config: Mapping[str, Any] | str | PathLike[str],
) -> Model:
    """What the cache of a model holds, from its `config.json`.

    A model with layers whose state is not known is refused: a sum without
    them would be wrong.

    Examples:
        >>> config = {"model_type": "llama", "num_hidden_layers": 32}
        >>> config |= {"hidden_size": 4096, "num_attention_heads": 32}
        >>> model_from_config(config | {"num_key_value_heads": 8}).groups
        (Full(layers=32, q_heads=32, kv_heads=8, head_dim=128, v_head_dim=128,
        index_dim=0),)
    """
    given = fields_of(config)
    here = Source("config.json", "")
    if given.get("model_type") == "longcat_flash":  # two in each layer
        layers = given.get("num_layers")
        if isinstance(layers, int):
            given["num_hidden_layers"] = 2 * layers
    found: dict[Group, int] = {}
    for layer, kind in enumerate(kinds_of(given)):
        for group in _groups(given, layer, kind):
            found[group] = found.get(group, 0) + 1
    longest = next((given[n] for n in LONGEST if given.get(n)), 0)
    counted = params_of(given)
    family, name = given["model_type"], given.get("_name_or_path")
    if isinstance(config, (str, PathLike)):
        name = fspath(config)
    return Model(
        id=str(name or family),
        name=str(name or family),
        family=family,
        date="",
        max_context=longest if isinstance(longest, int) else 0,
        groups=tuple(replace(group, layers=n) for group, n in found.items()),
        sources=(here,),
        confidence="given",
        params=counted and counted[0],
        params_in=counted and here,
        attention_params=counted and counted[1],
    )


def _groups(given: Mapping[str, Any], layer: int, kind: str) -> list[Group]:
    """What one layer stores."""
    family = given["model_type"]
    if family == "falcon_h1" or (kind not in SOFTMAX and family not in DELTA):
        raise ValueError(
            f"{family}: the state of its recurrent layers is not known, so "
            "the cache would be counted too small"
        )
    if kind not in SOFTMAX:
        return [_delta(given)]
    group = group_of(attention_of(given, layer))
    return [group] if group else []


def group_of(r: AttentionRecord) -> Group | None:
    """What one layer stores; None, if it reads what another one stores."""
    if r.shares is not None:
        return None
    if r.kv_rank:
        return Mla(
            layers=1,
            q_heads=r.n_heads,
            kv_lora_rank=r.kv_rank,
            qk_rope_head_dim=r.rope_dim,
            qk_nope_head_dim=r.head_dim - r.rope_dim,
            v_head_dim=r.v_head_dim,
        )
    sizes = {
        "layers": 1,
        "q_heads": r.n_heads,
        "kv_heads": r.n_kv_heads,
        "head_dim": r.head_dim,
        "v_head_dim": r.v_head_dim,
    }
    if r.window:
        return Sliding(**sizes, sliding_window=r.window)
    return Chunked(**sizes, chunk=r.chunk) if r.chunk else Full(**sizes)


def _delta(given: Mapping[str, Any]) -> Recurrent:
    names = [
        *("num_value_heads", "num_key_heads", "key_head_dim"),
        *("value_head_dim", "conv_kernel_dim"),
    ]
    sizes: list[int] = []
    for name in names:
        size = given.get(f"linear_{name}")
        if not isinstance(size, int) or size < 1:
            raise ValueError(
                f"{given['model_type']}: linear_{name}={size} is no positive "
                "number"
            )
        sizes.append(size)
    heads, key_heads, key_dim, value_dim, kernel = sizes
    return Recurrent(
        layers=1,
        state_heads=heads,
        key_dim=key_dim,
        value_dim=value_dim,
        conv_channels=2 * key_heads * key_dim + heads * value_dim,
        conv_kernel=kernel,
    )
