"""What the attention of a released model depends on, read from its config."""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from attnref.released.expression import names_in, value_of
from attnref.words import message


@dataclass(frozen=True)
class AttentionRecord:
    """What the attention of one layer depends on; `attention_of` fills it.

    Sizes first, then what is done to x, to queries and keys, to the scores,
    and to the output, in this order.
    """

    family: str
    kind: str  # that of the layer, as the config calls it
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    v_head_dim: int
    d_out: int = 0  # unless d_model
    # projections
    qkv_bias: bool = False
    o_bias: bool = False
    # "q, k, v", "per head", or "q, v, k in four parts"
    fused: str | None = None
    transposed: bool = False
    k_is_v: bool = False
    shares: int | None = None  # the layer whose keys and values it reads
    is_shared: bool = False
    # MLA
    q_rank: int | None = None
    kv_rank: int | None = None
    rope_dim: int = 0
    latent_factor: float = 1.0
    rope_norm: bool = False  # of the key that RoPE turns
    # DSA and others: an indexer chooses the keys of each query
    index_topk: int | None = None  # tokens, or blocks of them
    index_heads: int = 0
    index_dim: int = 0
    index_layout: str = "half"
    index_last: bool = False  # RoPE turns the last channels of its keys
    index_eps: float = 1e-6
    index_pool: str | None = None  # of blocks: "max", "mean" or "learned"
    index_block: int = 1  # tokens of one
    index_local: int = 0  # the latest blocks, which are always read
    index_own: bool = False  # or what an earlier layer has chosen
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
    rope_share: float = 1.0
    rope_size: float = 1.0
    # queries by their position
    q_factor: float = 1.0
    q_growth: float = 0.0
    q_growth_from: int = 0
    q_growth_every: int = 1
    q_power: float = 0.0
    # scores
    scale: float = 1.0
    alibi: bool = False
    softcap: float | None = None
    window: int | None = None
    chunk: int | None = None
    with_sinks: bool = False
    # output
    head_norm: bool = False
    gate: str | None = None  # "per channel", "per head" or "in q_proj"
    gate_act: str = "sigmoid"
    gate_bias: bool = False
    sub_norm: bool = False


@dataclass(frozen=True)
class MixerRecord:
    """All that a layer depends on which keeps a state of fixed size.

    Such a layer has a template of its own, `mixers/KIND.py.jinja`, which reads
    these fields. Where it stands beside attention, a layer has both records.
    """

    family: str
    kind: str  # of the template
    d_model: int
    n_heads: int = 0  # of queries and keys
    n_v_heads: int = 0  # of values, and of states
    key_dim: int = 0
    value_dim: int = 0
    kernel: int = 0  # of the short convolution
    rank: int = 0  # of Mamba's time step
    n_layers: int = 0
    layout: str = ""  # how the projections are fused
    low_rank: bool = False  # gates
    bias: bool = False
    o_bias: bool = False
    conv_bias: bool = False
    eps: float = 1e-6
    gate: str = "silu"
    gated_norm: str = ""  # "gate, norm", "norm, gate", or no norm
    beta_factor: float = 1.0
    bound: float = 0.0  # of the logarithm of a decay
    dt_min: float = 0.0
    dt_max: float = 0.0  # or none
    in_factor: float = 1.0
    factors: tuple[float, ...] = ()
    together: bool = False  # with attention, on the same x
    out_factor: float = 1.0
    attention_in: float = 1.0
    attention_out: float = 1.0
    # of attention, to a window, with a bias by distance
    n_kv_heads: int = 0
    window: int | None = None
    rel_dim: int = 0
    rel_extent: int = 0
    q_growth: float = 0.0
    q_growth_from: int = 1
    # to compressed entries
    rate: int = 1  # tokens of one entry
    index_own: bool = False
    index_topk: int = 0  # entries of a query
    index_heads: int = 0
    index_dim: int = 0
    q_rank: int = 0
    o_rank: int = 0
    groups: int = 0  # of heads, in the first projection of the output
    rope_theta: float = 1e4
    rope_width: int = 0
    rope_kind: str = "default"
    rope_factor: float = 1.0
    rope_length: int = 0
    rope_low: float = 1.0
    rope_high: float = 32.0
    scale: float = 1.0


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
    """Those that are known, by `model_type`."""
    rows = _rows().items()
    return {n: row for n, row in rows if "stores" not in row.fields}


@cache
def sized() -> dict[str, Family]:
    """Those of which it is known what they store, and no more."""
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
    """All rows. One that gives the code too goes before one of sizes."""
    rows: dict[str, Any] = {}
    for name in ("sizes.toml", "families.toml"):
        path = Path(__file__).with_name(name)
        rows |= tomllib.loads(path.read_text("utf-8"))
    return rows


@cache
def _part(name: str, part: str) -> dict[str, Any]:
    """A part of a row, with what it takes from the same part of another."""
    row = _table()[name]
    own = dict(row.get(part, {}))
    if part == "fields":
        own = {k: v for k, v in row.items() if not isinstance(v, dict)}
    like = own.pop("like", row.get("like"))
    return {**_part(like, part), **own} if like else own


UNREADABLE = TypeError, LookupError, ArithmeticError, AttributeError
WRONG = "{}: a field of the config has a value of a wrong type"
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
    given = fields_of(config)
    return _record(given, kinds_of(given), layer)


def _record(
    given: Mapping[str, Any], kinds: Sequence[str], layer: int
) -> AttentionRecord:
    family, row = _family(given)
    try:
        return _checked(_layer(family, row, given, kinds, layer))
    except UNREADABLE:
        raise ValueError(message(WRONG, family)) from None


def _layer(
    family: str,
    row: Family,
    given: Mapping[str, Any],
    kinds: Sequence[str],
    layer: int,
) -> AttentionRecord:
    if not 0 <= layer < len(kinds):
        raise ValueError(
            message("layer={}, but the model has {} layers", layer, len(kinds))
        )
    kind = kinds[layer]
    indexed = kind == INDEXED and "index_topk" not in row.fields
    if kind not in KINDS or indexed:
        raise ValueError(
            message(
                "{}: layer {} is {}, not softmax attention", family, layer, kind
            )
        )
    values = Fields(present(row, given), layer=layer, layer_type=kind)
    values["own"] = _own(values, layer)
    values["rope"] = _rope(family, row, given, values)
    shares, is_shared = _sharing(
        family, kinds, layer, values["num_kv_shared_layers"] or 0
    )
    own = {f.name for f in fields(AttentionRecord)}
    others = [name for name in row.fields if name != "kind"]
    for name in sorted(others, key=lambda name: name in own):
        values[name] = _value(family, name, row.fields[name], values, given)
    record = {name: values[name] for name in others if name in own}
    return AttentionRecord(
        **record, family=family, kind=kind, shares=shares, is_shared=is_shared
    )


def mixers_of(given: Mapping[str, Any]) -> dict[int, MixerRecord]:
    """The records of all layers that keep a state, by layer."""
    family, row = _family(given)
    result = {}
    for layer, kind in enumerate(kinds_of(given)):
        values = Fields(present(row, given), layer=layer, layer_type=kind)
        if "kind" in row.mixer:
            values["kind"] = value_of(row.mixer["kind"], values)
        if not values["kind"]:
            continue
        entries = {**row.state, **row.mixer}
        for name, entry in entries.items():
            values[name] = _value(family, name, entry, values, given)
        own = {f.name: f.type for f in fields(MixerRecord)}
        record = {name: values[name] for name in entries if name in own}
        for name, value in record.items():
            counts = own[name] is int and name in row.mixer
            if not _fits(value, own[name]) or (counts and value < 1):
                raise ValueError(message(NO_VALUE, family, name, value))
        result[layer] = _divided(MixerRecord(**record, family=family))
    return result


def _divided(r: MixerRecord) -> MixerRecord:
    if r.n_heads and r.n_v_heads % r.n_heads:
        raise ValueError(
            message(
                "{}: {} heads of keys do not divide {} of values",
                r.family,
                r.n_heads,
                r.n_v_heads,
            )
        )
    if r.n_kv_heads and r.n_heads % r.n_kv_heads:
        raise ValueError(
            message(
                "{}: n_kv_heads={} does not divide n_heads={}",
                r.family,
                r.n_kv_heads,
                r.n_heads,
            )
        )
    return r


def _sharing(
    family: str, kinds: Sequence[str], layer: int, readers: int
) -> tuple[int | None, bool]:
    """Whose keys and values a layer reads, and whether others read its own.

    The last layers are readers, each of the last layer of its kind before them.
    """
    first = len(kinds) - readers
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


def _value(
    family: str,
    name: str,
    entry: Any,
    values: Mapping[str, Any],
    given: Mapping[str, Any],
) -> Any:
    """What a field of the record is, or an error that says of what."""
    names = names_in(entry)
    try:
        value = value_of(entry, values)
        if isinstance(value, complex):  # (-8) ** -0.5
            raise TypeError(name)
    except (*UNREADABLE, ValueError):
        made_of = ", ".join(f"{n}={values[n]!r}" for n in names if n in values)
        raise ValueError(
            message(
                "{}: {} cannot be computed from {}", family, name, made_of[:200]
            )
        ) from None
    if name in SIZES:
        of = {n: given[n] for n in names if n in given}
        _size(value, family, of or {n: value for n in names[:1]})
    return value


def records_of(
    config: Mapping[str, object] | str | PathLike[str],
) -> dict[int, AttentionRecord]:
    """The records of all layers that have softmax attention, by layer."""
    given = fields_of(config)
    layers = enumerate(layers_of(given))
    records = {layer: record for layer, (_, record) in layers if record}
    if not records and not mixers_of(given):
        family, _ = _family(given)
        kinds = message(", ").join(sorted(set(kinds_of(given))))
        raise ValueError(
            message(
                "{}: no layer has softmax attention; all are {}",
                family,
                kinds[:200],
            )
        )
    return records


SIZES = "d_model", "n_heads", "n_kv_heads", "head_dim", "v_head_dim"
MANY = 1000  # layers
HUGE = 2**31
INDEXED = "indexed_attention"
CALLED = {  # in some files, what is called otherwise today
    "attention": "full_attention",
    "hybrid": "full_attention",  # beside a state
    "deepseek_sparse_attention": INDEXED,
    "minimax_m3_sparse": INDEXED,
}
KINDS = "full_attention", "sliding_attention", "chunked_attention", INDEXED
ROPES = "default", "linear", "llama3", "yarn", "longrope", "proportional"
DRAFTS = "eagle", "dflash", "dspark", "draft", "medusa"
# What a file of images too says once, beside the fields of its text model.
OUTSIDE = "tie_word_embeddings", "quantization_config", "torch_dtype", "dtype"
# What a file says of RoPE that was written before transformers 5.
BEFORE = (
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


def layers_of(given: Mapping[str, Any]) -> Layers:
    """What the config calls each layer, and the record of its attention."""
    kinds = kinds_of(given)
    return [
        (kind, _record(given, kinds, layer) if kind in KINDS else None)
        for layer, kind in enumerate(kinds)
    ]


def kinds_of(given: Mapping[str, Any]) -> list[str]:
    """What the config calls each of its layers, once its fields are known."""
    family, row = _family(given)
    _check_fields(family, row, given)
    return kinds_in(family, row, given)


def kinds_in(family: str, row: Family, given: Mapping[str, Any]) -> list[str]:
    """The same of a config of this row, with whatever fields it has."""
    try:
        return _kinds(family, row, given)
    except UNREADABLE:
        raise ValueError(message(WRONG, family)) from None


def fields_of(config: Any) -> dict[str, Any]:
    """The fields of the config, or of that of its text model."""
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if isinstance(config, (str, PathLike)):
        config = parsed(Path(config).read_text("utf-8-sig"))
        if not isinstance(config, Mapping):
            kind = type(config).__name__
            raise ValueError(
                message("the file contains {}, not an object", kind)
            )
    if not isinstance(config, Mapping):
        raise TypeError(f"config is {type(config).__name__}; pass an object")
    text, given = config.get("text_config"), dict(config)
    if isinstance(text, Mapping):
        given = dict(text)
        for name in ("model_type", *OUTSIDE):
            if given.get(name) is None and name in config:
                given[name] = config[name]
    family = given.get("model_type")
    if family == "kimi_k2":  # so it is called on the Hub
        given["model_type"] = "deepseek_v3"
    if f"{family}_text" in families():  # of images too, without text_config
        given["model_type"] = f"{family}_text"
    return given


def parsed(text: str) -> Any:
    """What a text in JSON holds."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}"
        raise ValueError(message("the file is not JSON: {}", at)) from None
    except (ValueError, RecursionError):
        raise ValueError(
            message("the file has a number or a nesting that is too long")
        ) from None


def _family(given: Mapping[str, Any]) -> tuple[str, Family]:
    family = given.get("model_type")
    if not isinstance(family, str):
        raise ValueError(message("the config has no model_type"))
    if family not in families():
        raise ValueError(
            message(
                "model_type={!r} is none of the {} families whose attention is "
                "known",
                family,
                len(families()),
            )
        )
    return family, families()[family]


def left_out(
    row: Family, given: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Fields that say something and that the row leaves out: those that may
    change attention, and those that nobody knows."""
    attention, other = _field_names()
    known = row.reads | other
    names = [name for name, value in given.items() if value]
    names = [name for name in names if name not in known]
    return (
        [name for name in names if name in attention],
        [name for name in names if name not in attention],
    )


def _check_fields(family: str, row: Family, given: Mapping[str, Any]) -> None:
    """Refuse fields that may change attention and that the row leaves out."""
    classes = str(given.get("architectures")).lower()
    if given.get("draft_vocab_size") or any(n in classes for n in DRAFTS):
        raise ValueError(
            message(
                "{}: this is a draft model, whose attention differs from the "
                "family",
                family,
            )
        )
    unread, unknown = left_out(row, given)
    fields = ", ".join(f"{n}={given[n]!r}"[:80] for n in unread + unknown)
    if unread:
        raise ValueError(
            message("{}: attention does not read {}", family, fields)
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
    """Fields of configs that may change attention, and those that do not."""
    fields = _table()["_fields"]
    return {*fields["attention"].split()}, {*fields["others"].split()}


def _size(size: Any, family: str, given: Mapping[str, Any]) -> int:
    """A size, or an error with what the config says of it."""
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        text = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise ValueError(
            message("{}: {} is not a positive number", family, text[:200])
        )
    return size


def present(row: Family, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say something: given, or what their absence means."""
    return {k: v for k, v in {**row.defaults, **given}.items() if v is not None}


def _kinds(family: str, row: Family, given: Mapping[str, Any]) -> list[str]:
    """What the config calls its layers."""
    read = present(row, given)
    blocks = read.get("layers_block_type")
    names = "num_hidden_layers", "n_layer", "n_layers", "num_layers"
    name = next((name for name in names if name in read), names[0])
    size = len(blocks) if blocks else read.get(name)
    count = _size(size, family, {name: size})
    if count > MANY:
        raise ValueError(
            message("{}: {} layers are more than {}", family, count, MANY)
        )
    return [_kind(row, read, layer) for layer in range(count)]


def _kind(row: Family, read: Mapping[str, Any], layer: int) -> str:
    """What the config calls this layer."""
    kinds = read.get("layer_types") or read.get("layers_block_type")
    if kinds:
        kind = str(kinds[layer])
        kind = CALLED.get(kind, kind)
        values = Fields(read)
        for name in ("old", "called"):
            values[name] = value_of(row.fields.get(name), values)
        return str((values["called"] or {}).get(kind, kind))
    if "kind" not in row.fields:
        differ = "layer_type" in names_in(row.fields.get("window"))
        if differ and read.get("sliding_window"):
            raise ValueError(message("the config has no layer_types"))
        return "full_attention"
    values = Fields(read, layer=layer)
    for name in ("has_rope", "kind"):
        if name in row.fields:
            values[name] = value_of(row.fields[name], values)
    if values["kind"] is None:
        raise ValueError(message("the config has no layer_types"))
    return str(values["kind"])


def _own(read: Mapping[str, Any], layer: int) -> Mapping[str, Any]:
    """What the config says of one layer alone."""
    own = read.get("per_layer_config") or {}
    try:
        layers = {int(key): each for key, each in own.items()}  # "05" is one
    except ValueError:
        raise TypeError("a layer that is no number") from None
    return dict(layers.get(layer) or {})


def _of_kind(
    rope: Mapping[str, Any] | None, kind: str
) -> Mapping[str, Any] | None:
    """What holds for this kind of layer, if the kinds differ."""
    if rope and all(isinstance(v, Mapping | None) for v in rope.values()):
        return rope.get(kind) or {}
    return rope


def _written(
    row: Family, given: Mapping[str, Any], values: Mapping[str, Any]
) -> Mapping[str, Any]:
    """What the config says of RoPE in this layer, as transformers 5 writes it.

    `rope_parameters` says it all. A file from before has `rope_theta` and
    `rope_scaling`, and layers with a window may have a base of their own, which
    no scaling changes.
    """
    kind = values["layer_type"]
    rope = _of_kind(given.get("rope_parameters"), kind)
    if rope is not None:
        return rope
    default = row.defaults.get("rope_parameters") or {}
    rope = _of_kind(default, kind) or {}
    if not any(given.get(name) for name in BEFORE):
        return rope
    theta, scaling = "rope_theta", values["rope_scaling"]
    if kind == "sliding_attention" and kind in default:
        scaling = None
        if "rope_local_base_freq" in row.reads:
            theta = "rope_local_base_freq"
    base = given.get(theta) or given.get("rotary_emb_base")
    base = base or rope.get("rope_theta") or values["rope_theta"]
    old = dict(scaling or {})
    return {**old, "rope_theta": old.get("rope_theta") or base}


def _rope(
    family: str,
    row: Family,
    given: Mapping[str, Any],
    values: Mapping[str, Any],
) -> dict[str, Any]:
    """The same, complete: what an expression of the table calls `rope`."""
    rope = dict(_written(row, given, values))
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
    share = given.get("partial_rotary_factor") or given.get("rotary_pct")
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
    rope["size"], rope["sharper"] = _sizes(rope)
    return rope


def _sizes(rope: Mapping[str, Any]) -> tuple[float, float]:
    """By how much the kind scales cosines and sines, and the scores of MLA."""
    factor, given = rope.get("factor") or 1.0, rope.get("attention_factor")

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
    return given or size, mscale("mscale_all_dim") ** 2


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
    if r.n_heads % r.n_kv_heads:
        raise ValueError(
            message(
                "{}: n_kv_heads={} does not divide n_heads={}",
                r.family,
                r.n_kv_heads,
                r.n_heads,
            )
        )
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
