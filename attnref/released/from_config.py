"""The shape of a model, read from its config.json."""

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike, fspath
from typing import Any

from attnref.numbers.shapes import (
    Chunked,
    Compressed,
    Full,
    Group,
    Mla,
    Model,
    Recurrent,
    Sliding,
    Source,
)
from attnref.released.expression import value_of
from attnref.released.record import KINDS as SOFTMAX
from attnref.released.record import (
    UNREADABLE,
    AttentionRecord,
    Fields,
    MixerRecord,
    families,
    fields_of,
    layers_of,
    mixers_of,
)
from attnref.released.weights import params_of
from attnref.words import message

LONGEST = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    *("model_max_length", "max_sequence_length"),
)
STATE = "state_heads", "key_dim", "value_dim", "conv_channels", "conv_kernel"


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
        pairs = given.get("num_layers")
        if isinstance(pairs, int):
            given["num_hidden_layers"] = 2 * pairs
    layers, mixers = layers_of(given), mixers_of(given)
    groups: dict[Group, int] = {}
    for layer, (kind, record) in enumerate(layers):
        mixer = mixers.get(layer)
        if mixer and mixer.window:
            own: list[Group] = [_compressed(mixer)]
        else:
            own = _groups(given, layer, kind, record)
        for group in own:
            groups[group] = groups.get(group, 0) + 1
    longest = next((given[n] for n in LONGEST if given.get(n)), 0)
    counted = params_of(given, layers)
    family, name = given["model_type"], given.get("_name_or_path")
    if isinstance(config, (str, PathLike)):
        name = fspath(config)
    return Model(
        id=str(name or family),
        name=str(name or family),
        family=family,
        date="",
        max_context=longest if isinstance(longest, int) else 0,
        groups=tuple(replace(group, layers=n) for group, n in groups.items()),
        sources=(here,),
        confidence="given",
        params=counted and counted[0],
        params_in=counted and here,
        attention_params=counted and counted[1],
    )


def _groups(
    given: Mapping[str, Any],
    layer: int,
    kind: str,
    record: AttentionRecord | None,
) -> list[Group]:
    """What one layer stores."""
    state = _state(given, layer, kind)
    group = record and group_of(record)
    groups: list[Group] = [group] if group else []
    if "state_heads" in state and (state["beside"] or not record):
        sizes = {name: _size(given, state, name) for name in STATE}
        groups.append(Recurrent(layers=1, **sizes))
    return groups


def _compressed(r: MixerRecord) -> Compressed:
    return Compressed(
        layers=1,
        q_heads=r.n_heads,
        dim=r.key_dim,
        sliding_window=r.window,
        ratio=r.rate if r.rate > 1 else None,
        index_dim=r.index_dim if r.index_own else 0,
    )


def group_of(r: AttentionRecord) -> Group | None:
    """What one layer stores; None, if it reads what another one stores."""
    if r.shares is not None:
        return None
    index = r.index_dim if r.index_own else 0
    if r.index_pool == "learned":
        index *= 2  # a key and what it weighs in the key of its block
    if r.kv_rank:
        return Mla(
            layers=1,
            q_heads=r.n_heads,
            kv_lora_rank=r.kv_rank,
            qk_rope_head_dim=r.rope_dim,
            qk_nope_head_dim=r.head_dim - r.rope_dim,
            v_head_dim=r.v_head_dim,
            rotated=r.rope_theta is not None,
            index_dim=index,
            sliding_window=r.window,
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
    if r.chunk:
        return Chunked(**sizes, chunk=r.chunk)
    return Full(**sizes, index_dim=index)


def _state(given: Mapping[str, Any], layer: int, kind: str) -> Fields:
    """What a layer keeps beside keys and values, as the table says it."""
    family = given["model_type"]
    entries = families()[family].state
    if not entries and kind not in SOFTMAX:
        raise ValueError(
            message(
                "{}: what layers of the kind {} store is not known, so the "
                "cache would be counted too small",
                family,
                kind,
            )
        )
    read, state = Fields(given, layer=layer), Fields()
    for name, entry in entries.items():
        try:
            state[name] = read[name] = value_of(entry, read)
        except UNREADABLE:
            raise ValueError(f"{family}: {name} cannot be read") from None
    return Fields() if kind in (state["nothing"] or ()) else state


def _size(given: Mapping[str, Any], state: Fields, name: str) -> int:
    size, least = state[name], 1 if name == "conv_kernel" else 0
    if not isinstance(size, int) or size < least:
        raise ValueError(f"{given['model_type']}: {name}={size} is no size")
    return size
