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
    ROPE_FIELDS,
    ROPES,
    UNREADABLE,
    AttentionRecord,
    Family,
    Fields,
    MixerRecord,
    families,
    fields_of,
    kinds_in,
    layers_of,
    left_out,
    mixers_of,
    present,
    sized,
)
from attnref.released.weights import params_of
from attnref.words import message

LONGEST = (
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
# They may be 0.
ABSENT = "kv_lora_rank", "qk_rope_head_dim", "index_dim", *STATE[:-1]
LAST = "stores", "times", "ratio", *HEADS, *ABSENT  # made of the others
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


def model_from_config(
    config: Mapping[str, Any] | str | PathLike[str],
) -> Model:
    """What the cache of a model holds, from its `config.json`.

    A layer whose state is unknown is an error, because a sum without it would
    be wrong. So is an unknown field whose name says that it may change what
    is stored; other unknown fields are its `unread`.

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
    family = str(given.get("model_type"))
    row = families().get(family) or sized().get(family)
    unread = _unread(family, row, given) if row else []
    longest = context_of(given)
    groups: dict[Group, int] = {}
    counted, note = None, ""
    if row and "stores" in row.fields:
        for group, times in _stored(family, row, given):
            groups[group] = groups.get(group, 0) + times
        if "note" in row.fields:
            note = str(value_of(row.fields["note"], {}))
    else:
        read = {n: x for n, x in given.items() if n not in unread}
        for key in ("rope_parameters", "rope_scaling"):
            if isinstance(read.get(key), Mapping):
                read[key] = _known_rope(read[key])
        layers, mixers = layers_of(read), mixers_of(read)
        for layer, (kind, record) in enumerate(layers):
            mixer = mixers.get(layer)
            record = record and within(record, longest)
            if mixer and mixer.kind == "CompressedAttention":
                own: list[Group] = [_compressed(mixer)]
            else:
                own = _groups(family, given, layer, kind, record)
            if mixer and mixer.n_kv_heads:
                own.append(_convolved(mixer))
            for group in own:
                groups[group] = groups.get(group, 0) + 1
        counted = None if unread else params_of(read, layers)
        if any(isinstance(group, Compressed) for group in groups):
            note = "the state of the compressor is not counted"
    name = given.get("_name_or_path")
    if isinstance(config, (str, PathLike)):
        name = fspath(config)
    return Model(
        id=str(name or family),
        name=str(name or family),
        family=family,
        date="",
        max_context=longest,
        groups=tuple(replace(group, layers=n) for group, n in groups.items()),
        sources=(here,),
        confidence="given",
        params=counted and counted[0],
        params_in=counted and here,
        attention_params=counted and counted[1],
        note=note,
        unread=tuple(unread),
    )


def context_of(given: Mapping[str, Any]) -> int:
    """The tokens that the model of a config may read, or 0."""
    longest = next((given[n] for n in LONGEST if given.get(n)), 0)
    return longest if isinstance(longest, int) and longest > 1 else 0


def within(r: AttentionRecord, context: int) -> AttentionRecord:
    """A window as long as the longest text hides nothing."""
    wide = context and r.window and r.window >= context
    return replace(r, window=None) if wide else r


def _unread(family: str, row: Family, given: Mapping[str, Any]) -> list[str]:
    """Fields that are not known and change no bytes; others are refused."""
    attention, unknown = left_out(row, given)
    names = unknown if "stores" in row.fields else attention + unknown
    wrong = [n for n in names if any(part in WORDS for part in n.split("_"))]
    if wrong:
        fields = ", ".join(f"{n}={given[n]!r}"[:80] for n in wrong)
        raise ValueError(
            message(
                "{}: these fields are not known and may change what is "
                "stored: {}",
                family,
                fields,
            )
        )
    return names


def _known_rope(rope: Mapping[str, Any]) -> dict[str, Any]:
    """What a config says of RoPE, if it is known: it changes no bytes."""
    return {
        name: _known_rope(value) if isinstance(value, Mapping) else value
        for name, value in rope.items()
        if isinstance(value, Mapping)
        or (name in ROPE_FIELDS if "type" not in name else value in ROPES)
    }


def _stored(
    family: str, row: Family, given: Mapping[str, Any]
) -> list[tuple[Group, int]]:
    """What the layers of a family of sizes.toml store, and how many times."""
    result: list[tuple[Group, int]] = []
    names = [n for n in row.fields if n not in ("kind", "note")]
    names = sorted(names, key=LAST.__contains__)  # made of the others
    for layer, kind in enumerate(kinds_in(family, row, given)):
        read = Fields(present(row, given), layer=layer, layer_type=kind)
        for name in names:
            try:
                read[name] = value_of(row.fields[name], read)
            except UNREADABLE:
                raise ValueError(message(UNREAD, family, name)) from None
        times = _size(family, read, "times") if read["times"] else 1
        if read["stores"]:
            made, needed = STORES[read["stores"]]
            needed += tuple(n for n in ("index_dim", "ratio") if read[n])
            sizes: dict[str, Any] = {n: _size(family, read, n) for n in needed}
            result.append((made(layers=1, **sizes), times))
        state = _state(family, row, given, layer, kind)
        if state["conv_kernel"]:
            result.append((_recurrent(family, state), times))
    return result


def _groups(
    family: str,
    given: Mapping[str, Any],
    layer: int,
    kind: str,
    record: AttentionRecord | None,
) -> list[Group]:
    """What one layer stores."""
    state = _state(family, families()[family], given, layer, kind)
    group = record and group_of(record)
    groups: list[Group] = [group] if group else []
    if "state_heads" in state and (state["beside"] or not record):
        groups.append(_recurrent(family, state))
    return groups


def _compressed(r: MixerRecord) -> Compressed:
    return Compressed(
        layers=1,
        q_heads=r.n_heads,
        dim=r.key_dim,
        sliding_window=r.window or 0,
        ratio=r.rate if r.rate > 1 else None,
        index_dim=r.index_dim if r.index_own else 0,
    )


def _convolved(r: MixerRecord) -> Group:
    """The keys and values beside the inputs of the convolutions."""
    sizes = {
        "layers": 1,
        "q_heads": r.n_heads,
        "kv_heads": r.n_kv_heads,
        "head_dim": r.key_dim,
        "v_head_dim": r.key_dim,
    }
    if r.window:
        return Sliding(**sizes, sliding_window=r.window)
    return Full(**sizes)


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


def _state(
    family: str, row: Family, given: Mapping[str, Any], layer: int, kind: str
) -> Fields:
    """What a layer keeps beside keys and values, as the table says it."""
    if not row.state and kind not in SOFTMAX and "stores" not in row.fields:
        raise ValueError(
            message(
                "{}: what layers of the kind {} store is not known, so the "
                "cache would be counted too small",
                family,
                kind,
            )
        )
    read, state = Fields(given, layer=layer, layer_type=kind), Fields()
    for name, entry in row.state.items():
        try:
            state[name] = read[name] = value_of(entry, read)
        except UNREADABLE:
            raise ValueError(message(UNREAD, family, name)) from None
    return Fields() if kind in (state["nothing"] or ()) else state


def _recurrent(family: str, state: Fields) -> Recurrent:
    sizes = {name: _size(family, state, name) for name in STATE}
    return Recurrent(layers=1, **sizes, beside=bool(state["beside"]))


def _size(family: str, read: Fields, name: str) -> int:
    size, least = read[name], 0 if name in ABSENT else 1
    if not isinstance(size, int) or size < least:
        raise ValueError(
            message("{}: {}={} is not a valid size", family, name, size)
        )
    return size
