"""One file for one model: `attention.py.jinja` with what its records say.

Of each field of the records, the template has `r.x`, a value; `t.x`, the text
that stands for it in the file; and `on.x`, which says whether layers use it:
True, False or, where the layers of a model differ, the text of a test, such as
`self.window`. `when(on.x)` puts that test over some lines.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from itertools import groupby, product
from os import PathLike
from pathlib import Path
from typing import Any

from attnref.released.expression import value_of
from attnref.released.mixers import (
    CompressedAttention,
    GatedConvolvedAttention,
    Mamba2,
    MixerRecord,
)
from attnref.released.published import (
    UNUSED,
    format_of,
    names_of,
    places,
    places_of,
    tables,
)
from attnref.released.record import (
    MAX_LAYERS,
    AttentionRecord,
    Config,
    Fields,
    present,
    read_config,
)
from attnref.words import message, origin

On = bool | str
ROPE = (
    *("rope_width", "rope_layout", "rope_backwards", "rope_kind", "rope_size"),
    "rope_learned",
)
SCALING = (
    *("rope_factor", "rope_length", "rope_low", "rope_high"),
    *("rope_truncate", "rope_short", "rope_long", "rope_share"),
)
INDEX = (
    *("index_heads", "index_dim", "index_layout", "index_last", "index_eps"),
    *("index_pool", "index_block", "index_local"),
)
# Values that change nothing. False, 0 and None change nothing either.
NEUTRAL: dict[str, Any] = {
    "rope_kind": "default",
    "rope_size": 1.0,
    "latent_factor": 1.0,
    "q_factor": 1.0,
    "k_factor": 1.0,
    "v_factor": 1.0,
    "beta_factor": 1.0,
    "in_factor": 1.0,
    "out_factor": 1.0,
    "attention_in": 1.0,
    "attention_out": 1.0,
    "kernel": 1,
    "index_block": 1,
    "rate": 1,
    "passes": 1,
}
# Fields that are read only where another one is on.
OWNERS = {
    **{name: "rope_theta" for name in ROPE},
    **{name: "rope_kind" for name in SCALING},
    **{name: "index_own" for name in INDEX},
    "norm_late": "norm",
}
# Conditions of the template whose names differ from those of their fields.
CONDITIONS = {
    "rope_theta": "use_rope",
    "rope_kind": "rope_scaled",
    "norm": "use_norm",
    "q_growth": "q_grows",
    "shares": "shares is not None",
    "index_topk": "indexed",
    "rate": "compressed",
}
# Fields that may be on in some layers of a file and off in others.
ON_IN_SOME_LAYERS = {
    *("rope_theta", "rope_kind", "norm", "q_growth", "q_power", "shares"),
    *("is_shared", "k_is_v", "index_own", "window", "chunk", "with_sinks"),
    *("index_topk", "rate", "dynamic"),
}
# Fields whose values may differ between the layers where they are on.
MAY_DIFFER = {
    *("d_model", "n_heads", "n_kv_heads", "head_dim", "v_head_dim"),
    *("qkv_bias", "o_bias", "rope_theta", "rope_width", "rope_factor"),
    *("rope_length", "rope_low", "rope_high", "rope_share", "rope_size"),
    *("q_growth", "q_growth_from", "q_growth_every", "q_power", "scale"),
    *("window", "chunk", "shares", "differential"),
    *("q_rank", "kv_rank", "rope_dim", "latent_factor", "q_factor", "rate"),
    *("key_dim", "rel_extent", "passes"),
}


def file_of(
    config: Mapping[str, object] | str | PathLike[str],
    *,
    dequantise: bool = False,
) -> str:
    """Write the attention of one model as one file, from its config.

    The file needs only PyTorch and contains what the layers of this model do,
    with their sizes written out. Its `load(folder, layer)` gives a layer the
    weights of a folder as published, with safetensors; with `dequantise`, also
    quantised ones.

    Examples:
        >>> config = {"model_type": "mistral", "num_hidden_layers": 2}
        >>> config |= {"hidden_size": 64, "num_attention_heads": 8}
        >>> text = file_of(config | {"head_dim": 8, "sliding_window": 16})
        >>> "q_norm" in text, "max_len}" in text, "[:, :, -16:]" in text
        (False, False, True)
    """
    path = Path(__file__).with_name("dequantise.py")
    code = path.read_text("utf-8") if dequantise else ""
    return file_from(read_config(config), code)


def file_from(config: Config, code: str = "") -> str:
    """The file that `file_of` writes, from a config that has been read. `code`
    is the text of dequantise.py, if the file is to hold it."""
    records, mixers = config.records, config.mixers
    first, other = (  # MAX_LAYERS stands after any layer
        min(layers, default=MAX_LAYERS) for layers in (records, mixers)
    )
    place = places_of(config)[other <= first]
    text = rendered(
        records,
        first=min(first, other),
        place=place.format(min(first, other)),
        family=config.family,
        mixed=bool(mixers),
        math=any(
            isinstance(r, CompressedAttention) and r.rope_kind == "yarn"
            for r in mixers.values()
        ),
        remarks=_remarks(config, bool(code)),
        axes=_axes_text(_axes(config)),
        images=_images(config) or "",
        loads=True,
        dequantises=bool(code),
    )
    for ours, theirs in config.row.names.items():
        if ours not in ("at", "mixer"):
            text = re.sub(rf"\b{ours}\b", theirs, text)
    if code:  # without its docstring and imports
        text += "\n\n" + MESSAGE + code[code.index("# The 16 numbers") :]
    loading = _loading(config, bool(code))
    if not mixers:
        return f"{text}\n\nmixer = Attention  # for every layer\n{loading}"
    kinds = ["None"] * len(config.kinds)
    for layer in records:
        kinds[layer] = "Attention"
    by_kind: dict[str, dict[int, MixerRecord]] = {}
    for layer, r in mixers.items():
        kinds[layer] = "Both" if _is_beside(r) else r.kind
        by_kind.setdefault(r.kind, {})[layer] = r
    for same_kind in by_kind.values():
        text += f"\n\n{mixer_text(same_kind)}"
    table = _table(kinds)
    if len(table) > 70:
        table = f"(\n{_wrap(table)}\n)"
    text += f"\n\n# Of each layer.\nKINDS = {table}\n\n\n"
    if "None" not in kinds:
        return f"{text}{MIXER}    return KINDS[layer](layer)\n{loading}"
    doc = MIXER.replace(".", "; None, if it mixes no tokens.")
    text += f"{doc}    return KINDS[layer] and KINDS[layer](layer)\n"
    return text + loading


def _loading(config: Config, dequantises: bool) -> str:
    """The part of the file that loads weights as they are published."""
    records, mixers, names = config.records, config.mixers, names_of(config)
    attention, mixer = places_of(config)
    alone = [n for n in records if n not in mixers or not _is_beside(mixers[n])]
    place = (mixer if mixers else attention).format("{layer}")
    twice = place[-2:] == ".0"  # in LongCat
    if twice:
        place = place[:-1] + "{part}"
    place, constants = f'f"{place}."', tables(names)
    if mixers and alone and attention != mixer:
        kinds = {"Attention": attention}
        kinds |= {r.kind: mixer for r in mixers.values()}
        constants = f"{places(kinds)}{constants}"
        place = "PLACES[type(module).__name__].format(layer)"
    if dequantises:
        constants += format_of(config.quantization or {})
    every = sorted({*records, *mixers})
    layers = f"range({len(every)})"
    if every != [*range(len(config.kinds))]:
        layers = "(n for n, kind in enumerate(KINDS) if kind)"
    if every != [*range(len(config.kinds))] and not mixers:
        layers = _table([str(layer) for layer in every])
    text: str = template("load").render(
        {
            "tables": constants,
            "place": place,
            "within": names.get("within", ""),
            "outside": names.get("outside", ""),
            "some": mixer[-2:] == "{}",
            "apart": any(n in mixers for n in alone),
            "twice": twice,
            "join": "join" in names,
            "padded": "padded" in names,
            "split": "split" in names,
            "rename": "rename" in names,
            "unused": UNUSED,
            "more": names.get("unused", ""),
            "dequantises": dequantises,
            "method": _method(config),
            "layers": layers,
        }
    )
    return f"\n\n{text}\n"


def _is_beside(r: MixerRecord) -> bool:
    """Whether attention reads the same x."""
    return isinstance(r, Mamba2) and r.together


def mixer_text(records: Mapping[int, MixerRecord]) -> str:
    """The class of the layers of one kind, each with its record."""
    distinct = [*{record: True for record in records.values()}]
    r, t, on = _fields(distinct)
    text = template(distinct[0].kind).render({"r": r, "t": t, "on": on})
    return _tabled(text, records, t, on)


MAX_PAIRS = 1000  # of RoPE, for one of the three positions of a token
MIXER = '''def mixer(layer):
    """The module of a layer."""
'''


NO_ATTENTION = AttentionRecord("", "", 1, 1, 1, 1, 1)


def rendered(
    records: Mapping[int, AttentionRecord],
    *,
    first: int = 0,
    place: str = "",
    family: str = "",
    mixed: bool = False,
    math: bool = False,
    remarks: str = "",
    axes: str = "",
    images: str = "",
    loads: bool = False,
    dequantises: bool = False,
    inside: bool = False,
) -> str:
    """Write the template of attention for these records, by layer.

    `first` is the layer that the first lines load, and `place` where published
    files have it. `mixed`: there are other layers too; `math`: the file needs
    it for these. `axes` and `images`: what tokens of images need. `loads` and
    `dequantises`: for that, it has other imports.
    `inside` the package, the layer is a subclass of `Layer`.
    """
    distinct = [*{r: True for r in records.values()}] or [NO_ATTENTION]
    r, t, on = _fields(distinct)
    rotary = [x for x in distinct if x.rope_theta]
    indexers = [x for x in distinct if x.index_own]
    blocks: On = images == "masks"
    if images == "windows":
        blocks = on["window"]
    same_width = all(x.rope_width == x.head_dim for x in rotary)
    spans = [t[name] for name in ("window", "chunk") if on[name]]
    span = spans[0] if on["window"] is True else " or ".join(spans)
    text: str = template().render(
        {
            "r": r,
            "t": t,
            "on": on,
            "inside": inside,
            "family": family or distinct[0].family,
            "first": first,
            "place": place,
            "remarks": remarks,
            "attends": bool(records),
            "mixed": mixed,
            "math": math,
            "axes": axes if records else "",
            "blocks": blocks,
            "loads": loads,
            "dequantises": dequantises,
            "constants": _constants(r),
            "same_v": all(x.v_head_dim == x.head_dim for x in distinct),
            "scaled": any(
                x.scale != x.head_dim**-0.5 or x.kv_rank for x in distinct
            ),
            "span": span,  # tokens in sight, if they are bounded
            "fixed": bool(span) and "self." not in span,
            # RoPE
            "rope_width": t["head_dim" if same_width else "rope_width"],
            "partial": any(
                x.rope_width != (x.rope_dim or x.head_dim) for x in rotary
            )
            or any(
                x.index_pool in ("max", "mean") and x.index_dim != x.rope_width
                for x in rotary
            ),
            "widths_differ": t["rope_width"].startswith("self."),
            "sizes_differ": t["rope_size"].startswith("self."),
            # the layers with an indexer
            "indexer": _fields(indexers or distinct)[1],
            "reuses": any(x.index_topk and not x.index_own for x in distinct),
        }
    )
    return _tabled(text, records, t, on) if records else text.strip() + "\n"


def _tabled(
    text: str,
    records: Mapping[int, AttentionRecord | MixerRecord],
    t: Mapping[str, str],
    on: Mapping[str, On],
) -> str:
    """The text with a table of each field in which the layers differ."""
    attributes = set(re.findall(r"\bself\.(\w+)", text))
    rows = [records.get(n) for n in range(max(records) + 1)]
    lines, tables = "", ["# Of each layer."]
    for name in t:
        test = CONDITIONS.get(name, name).split()[0]
        names = [] if isinstance(on[name], bool) else [test]
        if t[name] == f"self.{name}" and name not in names:
            names.append(name)
        for attribute in [n for n in names if n in attributes]:
            lines += f"        self.{attribute} = {attribute.upper()}[layer]\n"
            value = _is_on if attribute != name else getattr
            table = _table([_literal(r and value(r, name)) for r in rows])
            line = f"{attribute.upper()} = {table}"
            if len(line) > 79:
                line = f"{attribute.upper()} = (\n{_wrap(table)}\n)"
            tables.append(line)
    head = "\n".join([*tables, "\n\n"]) if lines else ""
    text = text.replace("@FIELDS@\n", lines).replace("@TABLES@\n", head)
    return text.strip() + "\n"


@cache
def template(name: str = "attention") -> Any:
    """A template, read and compiled."""
    from jinja2 import Environment, StrictUndefined  # torch needs it too

    env = Environment(undefined=StrictUndefined, trim_blocks=True)
    env.filters.update(when=when, unless=unless, otherwise=otherwise)
    return env.from_string(source(name))


def source(name: str = "attention") -> str:
    """A template, whose lines `%% x` are `{% x %}`: line statements of Jinja
    take the blank lines above them along. A line `%% include NAME` stands for
    `mixers/NAME.py.jinja`, a part that several kinds of layers share."""

    def include(line: re.Match[str]) -> str:
        path = Path(__file__).parent / f"mixers/{line[1]}.py.jinja"
        return path.read_text("utf-8")

    text = sources()[name].read_text("utf-8")
    text = re.sub(r"(?m)^%% include (\w+)\n", include, text)
    return re.sub(r"(?m)^%% (.*)$", r"{% \1 %}", text)


def sources() -> dict[str, Path]:
    """The templates, by name: attention, and each kind of a MixerRecord."""
    folder = Path(__file__).parent
    paths = [*folder.glob("*.jinja"), *folder.glob("mixers/[A-Z]*")]
    return {path.name.partition(".")[0]: path for path in paths}


def when(text: str, on: On) -> str:
    """Lines for the layers where `on` holds."""
    return _indent(f"if {on}:", text) if isinstance(on, str) else text * on


def unless(text: str, on: On) -> str:
    """Lines for the layers where `on` does not hold."""
    if isinstance(on, bool):
        return when(text, not on)
    test = on.replace("is not", "is")
    return when(text, f"not {on}" if test == on else test)


def otherwise(text: str, on: On) -> str:
    """Lines for the layers where `on` does not hold, below `when(on)`."""
    return _indent("else:", text) if isinstance(on, str) else unless(text, on)


def _indent(head: str, text: str) -> str:
    """The text one step to the right, below `head`."""
    if not text.strip():
        return ""
    column = re.sub(r"(?s)\S.*", "", text)
    return f"{column}{head}\n" + textwrap.indent(text, "    ")


def _fields(
    records: Sequence[AttentionRecord | MixerRecord],
) -> tuple[dict[str, Any], dict[str, str], dict[str, On]]:
    """`r`, `t` and `on` of the template."""
    r: dict[str, Any] = {}
    t: dict[str, str] = {}
    on: dict[str, On] = {}
    for name in (field.name for field in fields(records[0])):
        owner = OWNERS.get(name)
        readers = [x for x in records if not owner or _is_on(x, owner)]
        users = [x for x in readers if _is_on(x, name)]
        differ = name in ON_IN_SOME_LAYERS and 0 < len(users) < len(readers)
        on[name] = (
            f"self.{CONDITIONS.get(name, name)}" if differ else bool(users)
        )
        users = users if differ else readers
        values = [*{getattr(x, name): True for x in users or records}]
        if len(values) > 1 and name not in {"kind", *MAY_DIFFER}:
            raise ValueError(
                message(
                    "{}: the layers differ in {}, which is not written in one "
                    "file",
                    records[0].family,
                    name,
                )
            )
        same = len(values) == 1 and on[name] != f"self.{name}"
        r[name] = values[0]
        t[name] = _literal(values[0]) if same else f"self.{name}"
    return r, t, on


def _is_on(r: AttentionRecord | MixerRecord, name: str) -> bool:
    """Whether a field of the record changes anything."""
    if name in OWNERS and not _is_on(r, OWNERS[name]):
        return False
    value = getattr(r, name)
    if name in ("shares", "differential"):  # the first layer is 0
        return value is not None
    return bool(value) and value != NEUTRAL.get(name)


# In a file that dequantises.
MESSAGE = '''def message(text, *values):
    """The text of an error."""
    return text.format(*values)


'''
IMAGES = {
    "positions": "For text: a token of an image has three positions.\n",
    "others": "For text: the tokens of an image see each other.\n",
}
PLACES = """\
With images, forward takes places= (3, B, T): in time, height and width.
"""
BLOCKS = """\
With images, forward takes blocks= (B, S): numbers of images, -1 for text.
"""
LATENTS = """\
A layer that shares latents is called with latents=earlier.latents.
"""
INPUTS = """\
Full layers take key_input= and value_input= (B, T, E), too.
"""
QUANTISED = "The weights are quantised{}, as published; load {} them.\n"


def _remarks(config: Config, dequantises: bool) -> str:
    """Sentences for the docstring: of other inputs, weights and images."""
    text = ""
    if any(
        isinstance(r, GatedConvolvedAttention) and r.dynamic
        for r in config.mixers.values()
    ):
        text = INPUTS
    if config.quantization:
        does = "dequantises" if dequantises else "refuses"
        text += QUANTISED.format(_method(config), does)
    records = config.records.values()
    if any(r.kv_rank and r.shares is not None for r in records):
        text += LATENTS
    images = _images(config)
    has_window = any(r.window for r in records)
    if _axes(config):
        text += PLACES
    elif images == "masks" or (images == "windows" and has_window):
        text += BLOCKS
    else:
        others = "others" if images == "others" else "positions"
        text += IMAGES[others] if images else ""
    return text + origin()


def _images(config: Config) -> Any:
    """What differs for tokens of images."""
    values = Fields(present(config.row, config.fields))
    return value_of(config.row.fields.get("images"), values)


def _axes(config: Config) -> list[int]:
    """By which place of a token each pair of RoPE turns: 0 in time, 1 in
    height, 2 in width. Empty, if that is not known."""
    images, records = _images(config), config.records.values()
    sizes = {r.rope_width // 2 for r in records if r.rope_theta}
    sections = _sections(config.fields)
    if len(sizes) != 1 or len(sections) != 3:
        return []
    if any(r.index_topk for r in records):
        return []
    (pairs,) = sizes
    axes: list[int] = []
    if images == "in a row":
        axes = [axis for axis in range(3) for _ in range(sections[axis])]
    if images == "interleaved":
        axes = [n % 3 if n < 3 * sections[n % 3] else 0 for n in range(pairs)]
    if images == "height and width, then time":
        axes = sections[0] * [1, 2] + sections[2] * [0]
    return axes if len(axes) == pairs else []


def _axes_text(axes: Sequence[int]) -> str:
    """As a list of which the first part repeats, and the rest."""
    texts = [str(axis) for axis in axes]
    parts = [(texts[:n], texts[n:]) for n in range(len(texts))]
    joined = [" + ".join(map(_table, filter(None, p))) for p in parts]
    return min(joined, key=len) if joined else ""


def _sections(fields: Mapping[str, Any]) -> list[int]:
    """Pairs of RoPE for time, height and width, as the config says them."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = fields.get(name)
        found = rope.get("mrope_section") if isinstance(rope, Mapping) else None
        if found and not isinstance(found, (str, int, float, Mapping)):
            return [n for n in found if _is_size(n)]
    return []


def _is_size(value: Any) -> bool:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number and 0 <= value < MAX_PAIRS


def _method(config: Config) -> str:
    """By what the weights are quantised, if the config says it."""
    quant = config.quantization
    method = quant.get("quant_method") if isinstance(quant, Mapping) else None
    is_word = isinstance(method, str) and re.fullmatch(
        r"[a-zA-Z0-9_-]+", method
    )
    return f" by {method}" if is_word else ""


def _constants(r: Mapping[str, Any]) -> str:
    """The factors of LongRoPE, which are long tuples."""
    lines = []
    for name in ("rope_short", "rope_long"):
        text = repr(r[name])
        if len(text) > 60:
            inside = textwrap.indent(textwrap.fill(text[1:-1], 75), "    ")
            text = f"(\n{inside},\n)"
        lines.append(f"{name.upper()} = {text}")
    return "\n".join(lines)


def _table(texts: Sequence[str]) -> str:
    """The shortest list with an entry for each layer, such as 2 * [a, b]."""
    lists = [_list(texts)]
    for start, period in product(range(len(texts) // 2), range(2, 13)):
        tail = texts[start:]
        times = len(tail) // period
        if times > 1 and tail[period:] == tail[:-period]:
            cycle = _list(tail[:period])
            cycle = f"({cycle})" if " + " in cycle else cycle
            parts = [_list(texts[:start]), f"{times} * {cycle}"]
            parts += [_list(tail[times * period :])]
            lists.append(" + ".join(filter(None, parts)))
    return min(lists, key=len)


def _wrap(table: str) -> str:
    """A table in lines, which end with a comma or before a +."""
    text = table.replace(" * ", "\0*\0").replace(" + ", " +\0")
    lines = textwrap.fill(text, 75).replace("\0", " ")
    return textwrap.indent(lines, "    ")


def _list(values: Sequence[str]) -> str:
    """A list in which equal neighbours are counted, such as 3 * [a] + [b]."""
    parts: list[str] = []
    for value, run in groupby(values):
        n = len([*run])
        if n > 1:
            parts.append(f"{n} * [{value}]")
        elif parts and parts[-1].startswith("["):
            parts[-1] = f"{parts[-1][:-1]}, {value}]"
        else:
            parts.append(f"[{value}]")
    return " + ".join(parts)


def _literal(value: Any) -> str:
    """A constant as one would write it."""
    if isinstance(value, float) and value > 0:
        n = round(value**-2)
        if n % 8 == 0 and 16 < n < 10**6 and n**-0.5 == value:
            return f"{n}**-0.5"
        short = re.sub(r"e\+?(-?)0*", r"e\1", f"{value:.0e}")
        if not 1e-3 <= value < 1e4 and float(short) == value:
            return short  # 1e6
    return repr(value)
