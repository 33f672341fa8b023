"""What the attention of a released model depends on, read from its config."""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

from attnref.released.expression import names_in, quotes, value_of
from attnref.released.mixers import (
    RECORDS,
    GatedDeltaNet,
    KeysRecord,
    Mamba2,
    MixerRecord,
)
from attnref.words import message


@dataclass(frozen=True)
class AttentionRecord:
    """What the attention of one layer depends on; `attention_of` fills it.

    Sizes first, then what is done to x, to queries and keys, to the scores,
    and to the output, in this order.
    """

    family: str
    kind: str  # of the layer, as the config calls it
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    v_head_dim: int
    d_out: int = 0  # 0: d_model
    # projections
    qkv_bias: bool = False
    o_bias: bool = False
    # "q, k, v", "per head", or "q, v, k in four parts"
    fused: str | None = None
    transposed: bool = False
    k_is_v: bool = False
    # the layer whose keys and values, or latents, it reads
    shares: int | None = None
    is_shared: bool = False
    # MLA
    q_rank: int | None = None
    kv_rank: int | None = None
    rope_dim: int = 0
    latent_factor: float = 1.0
    rope_norm: bool = False  # RMSNorm of the key that RoPE turns
    # DSA and others: an indexer chooses the keys of each query
    index_topk: int | None = None  # tokens or blocks per query
    index_heads: int = 0
    index_dim: int = 0
    index_layout: str = "half"
    index_last: bool = False  # RoPE turns the last channels of its keys
    index_eps: float = 1e-6
    index_pool: str | None = None  # of blocks: "max", "mean" or "learned"
    index_block: int = 1  # tokens per block
    index_local: int = 0  # number of latest blocks, which are always read
    index_own: bool = False  # False: reads the choice of an earlier layer
    # queries, keys and values
    clip: float | None = None
    k_factor: float = 1.0
    v_factor: float = 1.0
    norm: str | None = None
    norm_weight: str | None = "w"
    norm_eps: float = 1e-6
    norm_late: bool = False  # after RoPE
    v_norm: bool = False
    # RoPE
    rope_theta: float | None = None
    rope_width: int = 0
    rope_layout: str = "half"
    rope_backwards: bool = False
    rope_kind: str = "default"
    rope_factor: float = 1.0
    rope_length: int = 0
    rope_low: float = 1.0
    rope_high: float = 1.0
    rope_truncate: bool = True
    rope_short: tuple[float, ...] = ()
    rope_long: tuple[float, ...] = ()
    # The share of pairs that turn, where rope_kind is "proportional".
    rope_share: float = 1.0
    rope_size: float = 1.0  # a factor of cosines and sines
    # LeRoPE: each pair turns exp(alpha) times as fast. The alphas are learned,
    # once for all layers.
    rope_learned: bool = False
    # queries by their position
    q_factor: float = 1.0
    q_growth: float = 0.0
    q_growth_from: int = 0
    q_growth_every: int = 1
    q_power: float = 0.0
    q_log: bool = False  # by learned factors of its logarithm, in each head
    # scores
    scale: float = 1.0
    alibi: bool = False
    softcap: float | None = None
    window: int | None = None
    chunk: int | None = None
    with_sinks: bool = False
    # output
    differential: int | None = None  # pairs of heads: the layer's number
    head_norm: bool = False
    gate: str | None = None  # "per channel", "per head" or "in q_proj"
    gate_act: str = "sigmoid"
    gate_bias: bool = False
    sub_norm: bool = False


OF_ROPE = {
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "rotary_emb_base",
    "rotary_pct",
}
Entries = Mapping[str, Any]  # numbers, booleans, and expressions as text


class Family(NamedTuple):
    """A row of `families.toml`, with what it takes from the row it is like."""

    fields: Entries  # of the record, from those of the config
    weights: Entries  # parameters beside attention
    state: Entries  # what a layer keeps beside keys and values
    mixer: Entries  # of the record of a layer that keeps a state
    names: Mapping[str, str]  # of weights: ours, and as transformers has them
    defaults: Mapping[str, Any]  # of fields that a config may leave out

    @property
    def reads(self) -> set[str]:
        """The fields of the config that its attention reads."""
        names = read_by(self.fields) | read_by(self.mixer)
        return names | OF_ROPE if "rope" in names else names


def read_by(entries: Entries) -> set[str]:
    """The names that entries of the table read."""
    return {name for entry in entries.values() for name in names_in(entry)}


@cache
def families() -> dict[str, Family]:
    """The families whose attention is known, by `model_type`."""
    rows = _rows().items()
    return {n: row for n, row in rows if "stores" not in row.fields}


@cache
def sized() -> dict[str, Family]:
    """The families of which it is known only what they store."""
    rows = _rows().items()
    return {n: row for n, row in rows if "stores" in row.fields}


@cache
def _rows() -> dict[str, Family]:
    return {
        name: Family(
            fields=_part(name, "fields"),
            weights=_part(name, "weights"),
            state=_part(name, "state"),
            mixer=_part(name, "mixer"),
            names=_part(name, "names"),
            defaults=row.get("defaults", {}),
        )
        for name, row in _table().items()
        if not name.startswith("_")
    }


@cache
def _table() -> dict[str, Any]:
    """All rows. A row of families.toml replaces one of sizes.toml."""
    rows: dict[str, Any] = {}
    for name in ("sizes.toml", "families.toml"):
        path = Path(__file__).with_name(name)
        rows |= tomllib.loads(path.read_text("utf-8"))
    return rows


@cache
def _part(name: str, part: str) -> dict[str, Any]:
    """A part of a row, with what it takes from the same part of another."""
    row = _table()[name]
    entries = dict(row.get(part, {}))
    if part == "fields":
        entries = {k: v for k, v in row.items() if not isinstance(v, dict)}
    like = entries.pop("like", row.get("like"))
    return {**_part(like, part), **entries} if like else entries


READ_ERRORS = TypeError, LookupError, ArithmeticError, AttributeError
WRONG_TYPE = "{}: a field of the config has a value of a wrong type"
NO_VALUE = "{}: {}={!r} is not a valid value"


def attention_of(
    config: Mapping[str, object] | str | PathLike[str], layer: int = 0
) -> AttentionRecord:
    """Read what the attention of one layer depends on from a `config.json`.

    `config` is the content of `config.json`, its path, or a configuration of
    transformers. Fields are read under their names before and after
    transformers 5. An unread field that could change attention is an error.

    Examples:
        >>> config = {"model_type": "qwen3", "num_hidden_layers": 28}
        >>> config |= {"hidden_size": 1024, "num_attention_heads": 16}
        >>> attention_of(config | {"num_key_value_heads": 8}).norm
        'RMS of a head'
        >>> attention_of(config | {"attn_logit_softcapping": 50.0})
        Traceback (most recent call last):
        ValueError: qwen3: attention does not read attn_logit_softcapping=50.0
    """
    return read_config(config).record(layer)


def _layer(
    config: "Config", kinds: Sequence[str], layer: int
) -> AttentionRecord:
    family, row = config.family, config.row
    if not 0 <= layer < len(kinds):
        raise ValueError(
            message("layer={}, but the model has {} layers", layer, len(kinds))
        )
    kind = kinds[layer]
    indexed = kind == INDEXED and "index_topk" not in row.fields
    if kind not in SOFTMAX_KINDS or indexed:
        raise ValueError(
            message(
                "{}: layer {} is {}, not softmax attention", family, layer, kind
            )
        )
    values = Fields(present(row, config.fields), layer=layer, layer_type=kind)
    values["own"] = _layer_config(values, layer)
    values["rope"] = _rope(family, row, config.fields, values)
    if "sources" in row.fields:
        shares, is_shared = _latents(family, row, values, len(kinds))
    else:
        shares, is_shared = _sharing(
            family, kinds, layer, values["num_kv_shared_layers"] or 0
        )
    known = {field.name for field in fields(AttentionRecord)}
    names = [name for name in row.fields if name != "kind"]
    # First the helpers, then the fields of the record: a field that comes from
    # another row may read a helper that this row puts below it.
    for name in sorted(names, key=lambda name: name in known):
        values[name] = _value(family, name, row.fields, values, config.fields)
    record = {name: values[name] for name in names if name in known}
    return AttentionRecord(
        **record, family=family, kind=kind, shares=shares, is_shared=is_shared
    )


def _mixers(config: "Config") -> dict[int, MixerRecord]:
    """The records of all layers that have a template of their own, by layer."""
    family, row = config.family, config.row
    entries = {**row.state, **row.mixer}
    records: dict[int, MixerRecord] = {}
    for layer, kind in enumerate(config.kinds):
        values = Fields(
            present(row, config.fields), layer=layer, layer_type=kind
        )
        mixer = value_of(row.mixer.get("kind"), values)
        if mixer is None:
            continue
        for name in entries:
            values[name] = _value(family, name, entries, values, config.fields)
        types = {f.name: f.type for f in fields(RECORDS[mixer])}
        sizes = {name: values[name] for name in entries if name in types}
        for name, value in sizes.items():
            counts = types[name] is int and name in row.mixer
            if not _fits(value, types[name]) or (counts and value < 1):
                raise ValueError(
                    _fault(family, name, entries, values, config.fields)
                )
        records[layer] = _check_heads(RECORDS[mixer](family=family, **sizes))
    return records


def _check_heads(r: MixerRecord) -> MixerRecord:
    """Refuse groups of heads of different sizes."""
    if isinstance(r, GatedDeltaNet | Mamba2) and r.n_v_heads % r.n_heads:
        raise ValueError(
            message(
                "{}: {} heads of keys do not divide {} of values",
                r.family,
                r.n_heads,
                r.n_v_heads,
            )
        )
    if isinstance(r, KeysRecord):
        _check_groups(r)
    return r


def _check_groups(r: AttentionRecord | KeysRecord) -> None:
    """Refuse key heads that do not divide the query heads."""
    if r.n_heads % r.n_kv_heads:
        raise ValueError(
            message(
                "{}: n_kv_heads={} does not divide n_heads={}",
                r.family,
                r.n_kv_heads,
                r.n_heads,
            )
        )


def _sharing(
    family: str, kinds: Sequence[str], layer: int, n_readers: int
) -> tuple[int | None, bool]:
    """Whose keys and values a layer reads, and whether others read its own.

    The last layers are readers, each of the last layer of its kind before them.
    """
    first = len(kinds) - n_readers
    if not first < len(kinds):
        return None, False
    same = [n for n in range(first) if kinds[n] == kinds[layer]]
    if layer < first:
        return None, layer == same[-1]
    if not same:
        raise ValueError(
            message("{}: no layer has keys for layer {}", family, layer)
        )
    return same[-1], False


def _latents(
    family: str, row: Family, values: Mapping[str, Any], count: int
) -> tuple[int | None, bool]:
    """The same where `sources` says of each layer whose latents it reads.

    Layers with RoPE may read those of the last one before them that has RoPE
    and is read, and layers without RoPE of the last one without: transformers
    hands on no others.
    """
    layer, sources = values["layer"], value_of(row.fields["sources"], values)
    sources = [*range(count)] if sources is None else sources

    def turns(n: int) -> bool:
        at_n = Fields({**values, "layer": n})
        return bool(value_of(row.fields["has_rope"], at_n))

    if len(sources) == count and sources[layer] == layer:
        return None, layer in sources[layer + 1 :]
    before = (layer - back for back in range(1, layer + 1))
    handed = (n for n in before if sources[n] == n and n in sources[n + 1 :])
    last = next((n for n in handed if turns(n) == turns(layer)), None)
    if len(sources) != count or last != sources[layer]:
        raise ValueError(
            message(
                "{}: layer {} cannot read the latents of layer {}",
                family,
                layer,
                sources[layer],
            )
        )
    return last, False


def _fault(
    family: str,
    name: str,
    entries: Entries,
    values: Mapping[str, Any],
    config: Mapping[str, Any],
) -> str:
    """Why an entry has no value, in terms of the fields of the config."""
    sources = [*_sources(name, entries)]
    found = [n for n in sources if config.get(n) is not None]
    absent = [n for n in sources if n not in values]
    if not found and absent:
        return message("{}: the config has no {}", family, ", ".join(absent))
    text = ", ".join(f"{n}={config.get(n)!r}"[:80] for n in found or sources)
    if name == "unused":
        return message("{}: attention is not known for {}", family, text)
    if found and absent:
        text += "".join(f", {n}=None" for n in absent)
    return message(
        "{}: {} cannot be computed from {}", family, name, text[:200]
    )


def _sources(name: str, entries: Entries) -> dict[str, None]:
    """The fields of a config that an entry reads, also by other entries."""
    result: dict[str, None] = {}
    for part in names_in(entries[name]):
        if part != name and part in entries:
            result |= _sources(part, entries)
        else:
            result[part] = None
    return result


def _value(
    family: str,
    name: str,
    entries: Entries,
    values: Mapping[str, Any],
    config: Mapping[str, Any],
) -> Any:
    """The value of an entry, or an error that names the fields it reads."""
    entry = entries[name]
    names = names_in(entry)
    try:
        value = value_of(entry, values)
        if isinstance(value, complex):  # (-8) ** -0.5
            raise TypeError(name)
    except (*READ_ERRORS, ValueError):
        text = _fault(family, name, entries, values, config)
        raise ValueError(text) from None
    if name in POSITIVE:
        sizes = {n: config[n] for n in names if n in config}
        _size(value, family, sizes or {n: value for n in names[:1]})
    return value


POSITIVE = "d_model", "n_heads", "n_kv_heads", "head_dim", "v_head_dim"
MAX_LAYERS = 1000
HUGE = 2**31
# Fields that may not be negative, also where no layer reads them.
WINDOWS = "sliding_window", "attention_chunk_size"
# Fields of which False is the change: without them, the attention has it on.
CHANGES_IF_OFF = {"rotary", "scale_attn_weights", "use_pos_enc", "use_rope"}
INDEXED = "indexed_attention"
KIND_NAMES = {  # kinds of layers by the names that some files give them
    "attention": "full_attention",
    "hybrid": "full_attention",  # beside a state
    "deepseek_sparse_attention": INDEXED,
    "minimax_m3_sparse": INDEXED,
    "recurrent": "linear_attention",
}
SOFTMAX_KINDS = (
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    INDEXED,
)
ROPES = "default", "linear", "llama3", "yarn", "longrope", "proportional"
DRAFTS = "eagle", "dflash", "dspark", "draft", "medusa"
FAMILY = {  # the family behind other names in files
    "deepseek_ref": "deepseek_v4",
    "inkling_mm_model": "inkling_text",
    "inkling_model": "inkling_text",
    "kimi_k2": "deepseek_v3",
    "mimo": "qwen2",
    "minimax_m3": "minimax_m3_vl_text",
    "qwen3_asr": "qwen3",
    "qwen3_asr_text": "qwen3",
    "qwen3_asr_thinker": "qwen3",
}
# Fields that the file of a model of images has beside its text model.
OUTSIDE = (
    *("tie_word_embeddings", "torch_dtype", "dtype"),
    *("quantization_config", "quantization"),
)
# Fields of RoPE in a file that was written before transformers 5.
OLD_ROPE = (
    *("rope_theta", "rope_scaling"),
    *("rotary_emb_base", "rope_local_base_freq"),
)
ROPE_FIELDS = {
    *("rope_type", "type", "rope_theta", "factor", "truncate"),
    *("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"),
    *("mscale", "mscale_all_dim", "attention_factor"),
    *("short_factor", "long_factor", "partial_rotary_factor"),
    *("original_max_position_embeddings", "max_position_embeddings"),
    *("llama_4_scaling_beta", "mrope_section", "mrope_interleaved"),
}


class Fields(dict[str, Any]):
    """The fields that an expression reads; what is not there is None."""

    def __missing__(self, name: str) -> None:
        return None


Layers = Sequence[tuple[str, AttentionRecord | None]]


@dataclass(frozen=True, eq=False)
class Config:
    """A model's `config.json`, and what has been read from it.

    `read_config` makes it. Kinds and records are computed when they are first
    asked for, and then kept: whatever needs them is handed this object.
    """

    fields: Mapping[str, Any]  # of the text model
    path: str | None = None  # if it was read from a file
    outer_model_type: str = ""  # the model_type of the whole file

    @property
    def family(self) -> str:
        """Its `model_type`, whether the family is known or not."""
        return str(self.fields.get("model_type"))

    @property
    def quantization(self) -> Any:
        """What it says of the format of its weights; MLX says it twice."""
        fields = self.fields
        return fields.get("quantization_config") or fields.get("quantization")

    @property
    def row(self) -> Family:
        """What `families.toml` says of the family."""
        family = self.fields.get("model_type")
        if not isinstance(family, str):
            raise ValueError(message("the config has no model_type"))
        if family not in families():
            raise ValueError(
                message(
                    "model_type={!r} is none of the {} families whose "
                    "attention is known",
                    family,
                    len(families()),
                )
            )
        return families()[family]

    @cached_property
    def kinds(self) -> list[str]:
        """What the config calls each of its layers.

        A field that may change attention and that nobody reads is an error.
        """
        _check_fields(self.family, self.row, self.fields)
        return kinds_in(self.family, self.row, self.fields)

    @cached_property
    def layers(self) -> Layers:
        """The kind of each layer, and the record of its attention."""
        return [
            (kind, self.record(layer) if kind in SOFTMAX_KINDS else None)
            for layer, kind in enumerate(self.kinds)
        ]

    @cached_property
    def records(self) -> dict[int, AttentionRecord]:
        """The records of the layers that have softmax attention, by layer."""
        layers = enumerate(self.layers)
        records = {layer: record for layer, (_, record) in layers if record}
        if not records and not self.mixers:
            kinds = message(", ").join(sorted(set(self.kinds)))
            raise ValueError(
                message(
                    "{}: no layer has softmax attention; all are {}",
                    self.family,
                    kinds[:200],
                )
            )
        return records

    @cached_property
    def mixers(self) -> dict[int, MixerRecord]:
        """The records of layers with a template of their own, by layer."""
        return _mixers(self)

    def record(self, layer: int) -> AttentionRecord:
        """The record of the attention of one layer."""
        kinds = self.kinds
        try:
            return _checked(_layer(self, kinds, layer))
        except READ_ERRORS:
            raise ValueError(message(WRONG_TYPE, self.family)) from None


def kinds_in(family: str, row: Family, config: Mapping[str, Any]) -> list[str]:
    """What a config of this row calls its layers, whatever fields it has."""
    try:
        return _kinds(family, row, config)
    except READ_ERRORS:
        raise ValueError(message(WRONG_TYPE, family)) from None


def read_config(source: Any) -> Config:
    """Read a config: what its file holds, the path of the file or its folder,
    or that of transformers.

    If the model reads images too, the fields are those of its text model.
    """
    path = None
    if hasattr(source, "to_dict"):
        source = source.to_dict()
    if isinstance(source, (str, PathLike)):
        path = fspath(source)
        if Path(path).is_dir():
            path = fspath(Path(path, "config.json"))
        source = parsed(Path(path).read_text("utf-8-sig"))
        if not isinstance(source, Mapping):
            kind = type(source).__name__
            raise ValueError(
                message("the file contains {}, not an object", kind)
            )
    if not isinstance(source, Mapping):
        raise TypeError(f"config is {type(source).__name__}; pass an object")
    fields = dict(source)
    outer_model_type = str(source.get("model_type"))
    for part in ("thinker_config", "text_config"):
        outer, inner = fields, fields.get(part)
        if isinstance(inner, Mapping):
            fields = dict(inner)
            for name in ("model_type", *OUTSIDE):
                if fields.get(name) is None and name in outer:
                    fields[name] = outer[name]
    family = fields.get("model_type")
    if isinstance(family, str):
        fields["model_type"] = FAMILY.get(family, family)
    if f"{family}_text" in families():  # of images too, without text_config
        fields["model_type"] = f"{family}_text"
    return Config(fields, path, outer_model_type)


def parsed(text: str) -> Any:
    """What a text in JSON holds."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = message("line {}, column {}", error.lineno, error.colno)
        raise ValueError(message("the file is not JSON: {}", at)) from None
    except (ValueError, RecursionError):
        raise ValueError(
            message("the file has a number or a nesting that is too long")
        ) from None


def left_out(
    row: Family, config: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Fields that the row does not read, unless they are empty, 0, None, or
    False where that changes nothing: first those that may change attention,
    then those that are unknown."""
    attention, others = _field_names()
    known = row.reads | others
    names = [
        name
        for name, value in config.items()
        if value or (value is False and name in CHANGES_IF_OFF)
    ]
    names = [name for name in names if name not in known]
    return (
        [name for name in names if name in attention],
        [name for name in names if name not in attention],
    )


def _left_out_within(
    row: Family, config: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """Fields within one that the row reads, if no entry of the row names
    them, with their values."""
    others = _field_names()[1]
    entries = (*row.fields.values(), *row.mixer.values(), *row.state.values())
    found = []
    for name in sorted(row.reads - OF_ROPE):
        fields = config.get(name)
        if not isinstance(fields, Mapping):
            continue
        for key, value in fields.items():
            named = any(quotes(entry, key) for entry in entries)
            skipped = named or key in others or isinstance(value, Mapping)
            if value and not skipped:
                found.append((f"{name}.{key}", value))
    return found


def check_no_draft(family: str, config: Mapping[str, Any]) -> None:
    """Refuse the small model that writes drafts for one of this family."""
    classes = str(config.get("architectures")).lower()
    if config.get("draft_vocab_size") or any(n in classes for n in DRAFTS):
        raise ValueError(
            message(
                "{}: this is a draft model, whose attention differs from the "
                "family",
                family,
            )
        )


def _check_fields(family: str, row: Family, config: Mapping[str, Any]) -> None:
    """Refuse fields that may change attention and that the row leaves out."""
    check_no_draft(family, config)
    for name in WINDOWS:
        size = config.get(name)
        if isinstance(size, (int, float)) and size < 0:
            raise ValueError(
                message("{}: {}={} is not positive", family, name, size)
            )
    if config.get("is_causal") is False:
        raise ValueError(
            message(
                "{}: with is_causal=False each token sees all others; only "
                "causal attention is known",
                family,
            )
        )
    inner = _left_out_within(row, config)
    if inner:
        text = ", ".join(f"{name}={value!r}"[:80] for name, value in inner)
        raise ValueError(
            message("{}: attention does not read {}", family, text)
        )
    unread, unknown = left_out(row, config)
    fields = ", ".join(f"{n}={config[n]!r}"[:80] for n in unread + unknown)
    if unread:
        raise ValueError(
            message("{}: attention does not read {}", family, fields)
        )
    if any(isinstance(config[name], Mapping) for name in unknown):
        raise ValueError(
            message(
                "{}: unknown fields may change attention, or hold the text "
                "model: {}",
                family,
                fields,
            )
        )
    if unknown:
        raise ValueError(
            message(
                "{}: unknown fields may change attention; remove those that do "
                "not: {}",
                family,
                fields,
            )
        )


@cache
def _field_names() -> tuple[set[str], set[str]]:
    """The fields of configs that may change attention, and the others."""
    fields = _table()["_fields"]
    return {*fields["attention"].split()}, {*fields["others"].split()}


def _size(size: Any, family: str, config: Mapping[str, Any]) -> int:
    """Return a size, or refuse it with the fields that it comes from."""
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        text = ", ".join(f"{name}={value!r}" for name, value in config.items())
        raise ValueError(
            message("{}: {} is not a positive number", family, text[:200])
        )
    return size


def present(row: Family, config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that have a value, in the config or by default."""
    return {
        k: v for k, v in {**row.defaults, **config}.items() if v is not None
    }


def _kinds(family: str, row: Family, config: Mapping[str, Any]) -> list[str]:
    """What the config calls its layers."""
    values = present(row, config)
    pattern = value_of(row.fields.get("pattern"), Fields(values))
    blocks = values.get("layers_block_type")
    names = (
        *("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        "num_blocks",
    )
    name = next((name for name in names if name in values), names[0])
    size = len(blocks) if blocks else values.get(name)
    count = _size(size, family, {name: size})
    if count > MAX_LAYERS:
        raise ValueError(
            message("{}: {} layers are more than {}", family, count, MAX_LAYERS)
        )
    if pattern:  # it repeats
        kinds = [pattern[layer % len(pattern)] for layer in range(count)]
        values = {**values, "layer_types": kinds}
    for name in ("layer_types", "layers_block_type"):
        kinds = values.get(name) or [""] * count
        if isinstance(kinds, str):
            raise ValueError(message(NO_VALUE, family, name, kinds))
        if len(kinds) < count:
            raise ValueError(
                message(
                    "{}: {} has {} entries for {} layers",
                    family,
                    name,
                    len(kinds),
                    count,
                )
            )
    return [_kind(row, values, layer) for layer in range(count)]


def _kind(row: Family, config: Mapping[str, Any], layer: int) -> str:
    """What the config calls this layer."""
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if kinds:
        kind = str(kinds[layer])
        kind = KIND_NAMES.get(kind, kind)
        values = Fields(config)
        for name in ("old", "called"):
            values[name] = value_of(row.fields.get(name), values)
        return str((values["called"] or {}).get(kind, kind))
    if "kind" not in row.fields:
        differ = "layer_type" in names_in(row.fields.get("window"))
        if differ and config.get("sliding_window"):
            raise ValueError(message("the config has no layer_types"))
        return "full_attention"
    values = Fields(config, layer=layer)
    for name in ("has_rope", "kind"):
        if name in row.fields:
            values[name] = value_of(row.fields[name], values)
    if values["kind"] is None:
        raise ValueError(message("the config has no layer_types"))
    return str(values["kind"])


def _layer_config(config: Mapping[str, Any], layer: int) -> Mapping[str, Any]:
    """The fields that hold for one layer alone."""
    layers = config.get("per_layer_config") or {}
    try:
        layers = {int(key): entry for key, entry in layers.items()}  # "05" is 5
    except ValueError:
        raise TypeError("a layer that is no number") from None
    return dict(layers.get(layer) or {})


def _rope_of_kind(
    rope: Mapping[str, Any] | None, kind: str
) -> Mapping[str, Any] | None:
    """The part of RoPE for this kind of layer, if the kinds differ."""
    if rope and all(isinstance(v, Mapping | None) for v in rope.values()):
        return rope.get(kind) or {}
    return rope


def _rope_parameters(
    row: Family, config: Mapping[str, Any], values: Mapping[str, Any]
) -> Mapping[str, Any]:
    """RoPE in this layer, as transformers 5 writes it.

    `rope_parameters` says it all. An older file has `rope_theta` and
    `rope_scaling`. There, layers with a window may have a base of their own,
    which no scaling changes.
    """
    kind = values["layer_type"]
    rope = _rope_of_kind(config.get("rope_parameters"), kind)
    if rope is not None:
        return rope
    default = row.defaults.get("rope_parameters") or {}
    rope = _rope_of_kind(default, kind) or {}
    if not any(config.get(name) for name in OLD_ROPE):
        return rope
    theta, scaling = "rope_theta", values["rope_scaling"]
    if kind == "sliding_attention" and kind in default:
        scaling = None
        if "rope_local_base_freq" in row.reads:
            theta = "rope_local_base_freq"
    base = config.get(theta) or config.get("rotary_emb_base")
    base = base or rope.get("rope_theta") or values["rope_theta"]
    scaling = dict(scaling or {})
    return {**scaling, "rope_theta": scaling.get("rope_theta") or base}


def _rope(
    family: str,
    row: Family,
    config: Mapping[str, Any],
    values: Mapping[str, Any],
) -> dict[str, Any]:
    """RoPE in this layer with all defaults: `rope` in expressions."""
    for name in ("rope_parameters", "rope_scaling"):
        part = config.get(name) or {}
        if not isinstance(part, Mapping):
            raise ValueError(message(NO_VALUE, family, name, part))
    rope = dict(_rope_parameters(row, config, values))
    for name, value in rope.items():
        if isinstance(value, str) and name not in ("rope_type", "type"):
            raise ValueError(message(NO_VALUE, family, name, value))
    unknown = sorted(rope.keys() - ROPE_FIELDS)
    if unknown:
        raise ValueError(
            message("{}: RoPE has the unknown field {!r}", family, unknown[0])
        )
    theta = rope.setdefault("rope_theta", values["rope_theta"])
    rope["rope_theta"] = theta and float(theta)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "mrope":
        kind = "default"  # for text, all three positions are one
    if kind not in ROPES:
        raise ValueError(
            message("{}: RoPE of kind {!r} is not known", family, kind)
        )
    rope["kind"] = kind
    share = config.get("partial_rotary_factor") or config.get("rotary_pct")
    share = share or values["partial_rotary_factor"] or 1.0
    rope.setdefault("partial_rotary_factor", share)
    length = (
        rope.get("original_max_position_embeddings")
        or values["original_max_position_embeddings"]
        or values["max_position_embeddings"]
    )
    rope["original_max_position_embeddings"] = length
    if kind == "longrope":
        longest = rope.get("factor", 0) * length
        longest = longest or values["max_position_embeddings"]
        rope.setdefault("longest", longest)
    rope["size"], rope["sharper"] = _rope_sizes(rope)
    return rope


def _rope_sizes(rope: Mapping[str, Any]) -> tuple[float, float]:
    """The factors of cosines and sines, and of the scores of MLA."""
    factor = rope.get("factor") or 1.0

    def mscale(name: str) -> float:
        return 0.1 * (rope.get(name) or 0.0) * math.log(factor) + 1.0

    size = 1.0
    if rope["kind"] == "yarn":
        size = 0.1 * math.log(factor) + 1.0
        if rope.get("mscale") and rope.get("mscale_all_dim"):
            size = mscale("mscale") / mscale("mscale_all_dim")
    if rope["kind"] == "longrope":
        longest, length = (
            rope["longest"],
            rope["original_max_position_embeddings"],
        )
        more = math.log(max(longest / length, 1))
        size = math.sqrt(1 + more / math.log(length))
    return rope.get("attention_factor") or size, mscale("mscale_all_dim") ** 2


def _fits(value: object, kind: Any) -> bool:
    """Whether a value is of the type that a field has."""
    if kind == tuple[float, ...]:
        return isinstance(value, tuple) and all(_fits(x, float) for x in value)
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, int):
        return abs(value) < HUGE and (kind is float or isinstance(value, kind))
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, kind)


def _checked(record: AttentionRecord) -> AttentionRecord:
    r = record
    for field in fields(r):
        value = getattr(r, field.name)
        if not _fits(value, field.type):
            raise ValueError(message(NO_VALUE, r.family, field.name, value))
    for name in ("window", "chunk", "softcap", "clip", "rope_theta"):
        size = getattr(r, name)
        if size is not None and size <= 0:
            raise ValueError(
                message("{}: {}={} is not positive", r.family, name, size)
            )
    _check_groups(r)
    least = min((r.rope_theta or 2.0) - 1, r.rope_low, r.rope_high)
    if r.rope_kind == "yarn" and min(least, r.rope_length) <= 0:
        raise ValueError(
            message("{}: YaRN cannot take the logarithm of its sizes", r.family)
        )
    factors = {len(r.rope_short), len(r.rope_long)} - {r.rope_width // 2}
    if r.rope_kind == "longrope" and factors:
        raise ValueError(
            message(
                "{}: RoPE rotates {} pairs and has {} factors",
                r.family,
                r.rope_width // 2,
                factors.pop(),
            )
        )
    if r.rope_theta is not None and r.rope_width % 2:
        raise ValueError(
            message(
                "{}: RoPE rotates {} channels, an odd number",
                r.family,
                r.rope_width,
            )
        )
    if not 0 <= r.rope_width <= (r.rope_dim or r.head_dim):
        raise ValueError(
            message(
                "{}: RoPE rotates {} channels of {}",
                r.family,
                r.rope_width,
                r.rope_dim or r.head_dim,
            )
        )
    return record
