"""The shape of a model, read from its config.json."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from attnref.released.mixers import (
    CompressedAttention,
    GatedConvolvedAttention,
    KeysRecord,
    window_of,
)
from attnref.released.record import (
    READ_ERRORS,
    ROPE_FIELDS,
    ROPES,
    SOFTMAX_KINDS,
    AttentionRecord,
    Config,
    Family,
    Fields,
    check_no_draft,
    families,
    kinds_in,
    left_out,
    present,
    sized,
)
from attnref.released.weights import params_of
from attnref.words import message

LENGTHS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    *("model_max_length", "max_sequence_length"),
)
STATE = "state_heads", "key_dim", "value_dim", "conv_channels", "conv_kernel"
UNREAD = "{}: {} cannot be read"
HEADS = "q_heads", "kv_heads", "head_dim", "v_head_dim"
STORES: dict[str, tuple[type[Group], tuple[str, ...]]] = {
    "full": (Full, HEADS),
    "sliding": (Sliding, (*HEADS, "sliding_window")),
    "mla": (Mla, ("q_heads", "kv_lora_rank", "qk_rope_head_dim")),
    "compressed": (Compressed, ("q_heads", "dim", "sliding_window")),
}
# Sizes that may be 0.
ABSENT = "kv_lora_rank", "qk_rope_head_dim", "index_dim", *STATE[:-1]
# Entries that read other entries: they are computed after these.
LAST = "stores", "times", "ratio", *HEADS, *ABSENT
# What layers store, and how many of them or how often.
GroupTimes = Sequence[tuple[Group, int]]
# A field may change what is stored if such a word is part of its name.
WORDS = {
    *("head", "heads", "kv", "key", "keys", "value", "values", "cache"),
    *("window", "sliding", "swa", "local", "global", "cross", "hybrid"),
    *("layer", "layers", "block", "blocks", "chunk", "pattern", "every"),
    *("interval", "freq", "type", "types", "method", "architecture"),
    *("dim", "size", "num", "n", "rank", "lora", "latent", "group", "groups"),
    *("index", "indexer", "share", "shared", "sharing", "source", "sources"),
    *("state", "conv", "kernel", "compress", "compression", "ratio", "ratios"),
    *("rates", "loop", "loops", "passes", "cycles", "recurrent", "memory"),
    *("multi", "query", "config", "mode", "k", "v", "idxs"),
}


def model_from_config(config: Config) -> Model:
    """What the cache of a model holds, from its `config.json`.

    A layer whose state is unknown is an error, because a sum without it would
    be wrong. So is an unknown field whose name says that it may change what
    is stored; other unknown fields are its `unread`.

    Examples:
        >>> from attnref.released.record import read_config
        >>> config = {"model_type": "llama", "num_hidden_layers": 32}
        >>> config |= {"hidden_size": 4096, "num_attention_heads": 32}
        >>> config |= {"num_key_value_heads": 8}
        >>> model_from_config(read_config(config)).groups
        (Full(layers=32, q_heads=32, kv_heads=8, head_dim=128, v_head_dim=128,
        index_dim=0),)
    """
    source = Source("config.json", "")
    as_published, pairs = config, config.fields.get("num_layers")
    if config.family == "longcat_flash" and isinstance(pairs, int):
        fields = {**config.fields, "num_hidden_layers": 2 * pairs}
        config = Config(fields, config.path)
    family = config.family
    row = families().get(family) or sized().get(family)
    check_no_draft(family, config.fields)
    unread = _unread(config, row) if row else []
    context = context_of(config)
    params, note = None, ""
    if row and "stores" in row.fields:
        groups = _groups_by_sizes(config, row)
    else:
        lenient = _lenient(config, unread)
        groups = _groups_by_records(config, lenient, context)
        params = None if unread else params_of(_lenient(as_published, unread))
        if any(isinstance(group, Compressed) for group, _ in groups):
            note = "the state of the compressor is not counted"
    if row and "note" in row.fields:
        note = str(value_of(row.fields["note"], {}))
    layers: dict[Group, int] = {}
    for group, times in groups:
        layers[group] = layers.get(group, 0) + times
    name = str(config.path or config.fields.get("_name_or_path") or family)
    return Model(
        id=name,
        name=name,
        family=family,
        date="",
        max_context=context,
        groups=tuple(replace(group, layers=n) for group, n in layers.items()),
        sources=(source,),
        confidence="given",
        params=params and params[0],
        params_in=params and source,
        attention_params=params and params[1],
        note=note,
        unread=tuple(unread),
    )


def context_of(config: Config) -> int:
    """The tokens that the model of a config may read, or 0."""
    lengths = (config.fields[n] for n in LENGTHS if config.fields.get(n))
    length = next(lengths, 0)
    return length if isinstance(length, int) and length > 1 else 0


def drop_wide_window(r: AttentionRecord, context: int) -> AttentionRecord:
    """A window as long as the longest text hides nothing."""
    is_wide = context and r.window and r.window >= context
    return replace(r, window=None) if is_wide else r


def _unread(config: Config, row: Family) -> list[str]:
    """Fields that are not known and change no bytes; others are refused."""
    attention, unknown = left_out(row, config.fields)
    names = unknown if "stores" in row.fields else attention + unknown
    suspects = [n for n in names if any(w in WORDS for w in n.split("_"))]
    if suspects:
        fields = ", ".join(f"{n}={config.fields[n]!r}"[:80] for n in suspects)
        raise ValueError(
            message(
                "{}: these fields are not known and may change what is "
                "stored: {}",
                config.family,
                fields,
            )
        )
    return names


def _lenient(config: Config, unread: Sequence[str]) -> Config:
    """The config without what is not known and changes no bytes: `unread`, an
    activation, parts of RoPE, and whether tokens see later ones. If there is
    nothing of the kind, it is the same object."""
    fields = {n: x for n, x in config.fields.items() if n not in unread}
    fields.pop("is_causal", None)
    if fields.get("hidden_act") != "silu":
        fields.pop("hidden_act", None)
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(fields.get(name), Mapping):
            fields[name] = _known_rope(fields[name])
    is_same = fields == config.fields
    return config if is_same else Config(fields, config.path)


def _known_rope(rope: Mapping[str, Any]) -> dict[str, Any]:
    """What a config says of RoPE, if it is known: it changes no bytes."""
    return {
        name: _known_rope(value) if isinstance(value, Mapping) else value
        for name, value in rope.items()
        if isinstance(value, Mapping)
        or (name in ROPE_FIELDS if "type" not in name else value in ROPES)
    }


def _groups_by_sizes(config: Config, row: Family) -> GroupTimes:
    """What the layers of a family of sizes.toml store, and how many times."""
    family = config.family
    result: list[tuple[Group, int]] = []
    names = [n for n in row.fields if n not in ("kind", "note")]
    names = sorted(names, key=LAST.__contains__)
    for layer, kind in enumerate(kinds_in(family, row, config.fields)):
        values = Fields(
            present(row, config.fields), layer=layer, layer_type=kind
        )
        for name in names:
            try:
                values[name] = value_of(row.fields[name], values)
            except READ_ERRORS:
                raise ValueError(message(UNREAD, family, name)) from None
        times = _size(family, values, "times") if values["times"] else 1
        if values["stores"]:
            group_type, size_names = STORES[values["stores"]]
            size_names += tuple(n for n in ("index_dim", "ratio") if values[n])
            sizes: dict[str, Any] = {
                n: _size(family, values, n) for n in size_names
            }
            result.append((group_type(layers=1, **sizes), times))
        state = _state(config, row, layer, kind)
        if state["conv_kernel"]:
            result.append((_recurrent(family, state), times))
    return result


def _groups_by_records(
    config: Config, lenient: Config, context: int
) -> GroupTimes:
    """What each layer stores, by its records, which `lenient` has."""
    layers, mixers = lenient.layers, lenient.mixers
    result: list[tuple[Group, int]] = []
    for layer, (kind, record) in enumerate(layers):
        mixer = mixers.get(layer)
        if isinstance(mixer, CompressedAttention):
            groups: list[Group] = [_compressed_group(mixer)]
        else:
            record = record and drop_wide_window(record, context)
            groups = _layer_groups(config, layer, kind, record)
        if isinstance(mixer, KeysRecord):
            groups.append(_keys_group(mixer))
        times = 1
        if isinstance(mixer, GatedConvolvedAttention):
            times = mixer.passes
        result += [(group, times) for group in groups]
    return result


def _layer_groups(
    config: Config, layer: int, kind: str, record: AttentionRecord | None
) -> list[Group]:
    """What one layer stores."""
    state = _state(config, config.row, layer, kind)
    group = record and group_of(record)
    groups: list[Group] = [group] if group else []
    if "state_heads" in state and (state["beside"] or not record):
        groups.append(_recurrent(config.family, state))
    return groups


def _compressed_group(r: CompressedAttention) -> Compressed:
    return Compressed(
        layers=1,
        q_heads=r.n_heads,
        dim=r.key_dim,
        sliding_window=r.window or 0,
        ratio=r.rate if r.rate > 1 else None,
        index_dim=r.index_dim if r.index_own else 0,
    )


def _keys_group(r: KeysRecord) -> Group:
    """The keys and values, beside what else a layer keeps."""
    sizes = {
        "layers": 1,
        "q_heads": r.n_heads,
        "kv_heads": r.n_kv_heads,
        "head_dim": r.key_dim,
        "v_head_dim": r.key_dim,
    }
    window = window_of(r)
    if window:
        return Sliding(**sizes, sliding_window=window)
    return Full(**sizes)


def group_of(r: AttentionRecord) -> Group | None:
    """What one layer stores; None, if it reads what another one stores."""
    index = r.index_dim if r.index_own else 0
    if r.index_pool == "learned":
        index *= 2  # a key and what it weighs in the key of its block
    if r.shares is not None:
        if not index:
            return None
        return Mla(
            layers=1,
            q_heads=r.n_heads,
            kv_lora_rank=0,
            qk_rope_head_dim=0,
            index_dim=index,
        )
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


def _state(config: Config, row: Family, layer: int, kind: str) -> Fields:
    """What a layer keeps beside keys and values, as the table says it."""
    known = row.state or row.mixer or "stores" in row.fields
    if not known and kind not in SOFTMAX_KINDS:
        raise ValueError(
            message(
                "{}: what layers of the kind {} store is not known, so the "
                "cache would be counted too small",
                config.family,
                kind,
            )
        )
    fields, state = present(row, config.fields), Fields()
    values = Fields(fields, layer=layer, layer_type=kind)
    for name, entry in row.state.items():
        try:
            state[name] = values[name] = value_of(entry, values)
        except READ_ERRORS:
            raise ValueError(message(UNREAD, config.family, name)) from None
    return Fields() if kind in (state["nothing"] or ()) else state


def _recurrent(family: str, state: Fields) -> Recurrent:
    sizes = {name: _size(family, state, name) for name in STATE}
    return Recurrent(layers=1, **sizes, beside=bool(state["beside"]))


def _size(family: str, values: Fields, name: str) -> int:
    size, least = values[name], 0 if name in ABSENT else 1
    if not isinstance(size, int) or size < least:
        raise ValueError(
            message("{}: {}={} is not a valid size", family, name, size)
        )
    return size
