"""One file for one model: `attention.py.jinja` with what its records say.

Of each field of the records, the template has `r.x`, a value; `t.x`, what is
written for it; and `on.x`: whether layers have it, which is True, False or,
where the layers of a model differ, the text of a test, such as `self.window`.
`when(on.x)` puts that test over some lines.
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

from attnref.released.record import (
    MANY,
    AttentionRecord,
    MixerRecord,
    families,
    fields_of,
    kinds_of,
    mixers_of,
    records_of,
)
from attnref.words import message, origin

On = bool | str
ROPE = "rope_width", "rope_layout", "rope_backwards", "rope_kind", "rope_size"
SCALING = (
    *("rope_factor", "rope_length", "rope_low", "rope_high"),
    *("rope_truncate", "rope_short", "rope_long", "rope_share"),
)
INDEX = (
    *("index_heads", "index_dim", "index_layout", "index_last", "index_eps"),
    *("index_pool", "index_block", "index_local"),
)
# Values that change nothing, beside those that are false.
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
}
# Fields that are read only where another one holds.
OWNERS = {
    **{name: "rope_theta" for name in ROPE},
    **{name: "rope_kind" for name in SCALING},
    **{name: "index_own" for name in INDEX},
    "norm_late": "norm",
}
# What a test is called, unless as its field.
TESTS = {
    "rope_theta": "use_rope",
    "rope_kind": "rope_scaled",
    "norm": "use_norm",
    "q_growth": "q_grows",
    "shares": "shares is not None",
    "index_topk": "indexed",
    "rate": "compressed",
}
# What may be there in some layers, and in others not.
SOME = {
    *("rope_theta", "rope_kind", "norm", "q_growth", "q_power", "shares"),
    *("is_shared", "k_is_v", "index_own", "window", "chunk", "with_sinks"),
    *("index_topk", "rate"),
}
# What may differ where it is there.
SIZES = {
    *("d_model", "n_heads", "n_kv_heads", "head_dim", "v_head_dim"),
    *("qkv_bias", "o_bias", "rope_theta", "rope_width", "rope_factor"),
    *("rope_length", "rope_low", "rope_high", "rope_share", "rope_size"),
    *("q_growth", "q_growth_from", "q_growth_every", "q_power", "scale"),
    *("window", "chunk", "shares"),
    *("q_rank", "kv_rank", "rope_dim", "latent_factor", "q_factor", "rate"),
    *("key_dim", "rel_extent"),
}


def file_of(config: Mapping[str, object] | str | PathLike[str]) -> str:
    """Write the attention of one model as one file, from its config.

    The file needs only PyTorch and contains what the layers of this model do,
    with their sizes written out.

    Examples:
        >>> config = {"model_type": "mistral", "num_hidden_layers": 2}
        >>> config |= {"hidden_size": 64, "num_attention_heads": 8}
        >>> text = file_of(config | {"head_dim": 8, "sliding_window": 16})
        >>> "q_norm" in text, "max_len}" in text, "[:, :, -16:]" in text
        (False, False, True)
    """
    given = fields_of(config)
    return file_from(records_of(given), given)


def file_from(
    records: Mapping[int, AttentionRecord], given: Mapping[str, Any]
) -> str:
    """That of `file_of`, from the records of the layers and the config."""
    mixers = mixers_of(given)
    names = dict(families()[given["model_type"]].names)
    at = names.pop("at", "model.layers.{}.self_attn")
    where = names.pop("mixer", at)
    first, other = min(records, default=MANY), min(mixers, default=MANY)
    others = f"  # attention: {at.split('}.')[1]}" if where != at else ""
    text = rendered(
        records,
        first=min(first, other),
        at=(at if first < other else where).format(min(first, other)),
        family=given["model_type"],
        others=others if other < first else "",
        mixed=bool(mixers),
        picked=any(x.together or x.n_layers for x in mixers.values()),
        ramp=any(x.rope_kind == "yarn" for x in mixers.values()),
        remarks=_remarks(given),
    )
    for ours, theirs in names.items():
        text = re.sub(rf"\b{ours}\b", theirs, text)
    if not mixers:
        return f"{text}\n\nmixer = Attention  # for every layer\n"
    kinds = ["None"] * len(kinds_of(given))
    for layer in records:
        kinds[layer] = "Attention"
    for layer, each in mixers.items():
        kinds[layer] = "Both" if each.together else each.kind
    for kind in {x.kind: True for x in mixers.values()}:
        own = {n: x for n, x in mixers.items() if x.kind == kind}
        r, t, on = _fields([*{x: True for x in own.values()}])
        part = template(kind).render({"r": r, "t": t, "on": on})
        text += f"\n\n{_tabled(part, own, t, on)}"
    table = _table(kinds)
    if len(table) > 70:
        table = f"(\n{_filled(table)}\n)"
    text += f"\n\n# Of each layer.\nKINDS = {table}\n\n\n"
    if "None" not in kinds:
        return f"{text}{MIXER}    return KINDS[layer](layer)\n"
    doc = MIXER.replace(".", "; None, if it mixes no tokens.")
    return f"{text}{doc}    return KINDS[layer] and KINDS[layer](layer)\n"


MIXER = '''def mixer(layer):
    """The module of a layer."""
'''


NO_ATTENTION = AttentionRecord("", "", 1, 1, 1, 1, 1)


def rendered(
    records: Mapping[int, AttentionRecord],
    *,
    first: int = 0,
    at: str = "",
    family: str = "",
    others: str = "",
    mixed: bool = False,
    picked: bool = False,
    ramp: bool = False,
    remarks: str = "",
    inside: bool = False,
) -> str:
    """The template of attention; `inside` the package, as a subclass of its
    layer."""
    every = [*{x: True for x in records.values()}] or [NO_ATTENTION]
    r, t, on = _fields(every)
    known: dict[str, Any] = {"r": r, "t": t, "on": on, "inside": inside}
    known |= {"attends": bool(records), "ramp": ramp}
    known |= {"family": family or every[0].family, "at": at, "first": first}
    known |= {"others": others, "mixed": mixed, "picked": picked}
    known |= {"remarks": remarks, "constants": _constants(r)}
    known["nested"] = at.startswith("model.")  # beside one of images
    rotated = [x for x in every if x.rope_theta]
    known["partial"] = any(
        x.rope_width != (x.rope_dim or x.head_dim) for x in rotated
    )
    known["scaled"] = any(
        x.scale != x.head_dim**-0.5 or x.kv_rank for x in every
    )
    whole = all(x.rope_width == x.head_dim for x in rotated)
    known["turned"] = t["head_dim" if whole else "rope_width"]
    known["widths"] = t["rope_width"].startswith("self.")
    known["partial"] |= any(
        x.index_pool in ("max", "mean") and x.index_dim != x.rope_width
        for x in rotated
    )
    indexed = [x for x in every if x.index_own]
    known["sizes"] = _fields(indexed or every)[1]
    known["same_v"] = all(x.v_head_dim == x.head_dim for x in every)
    known["reuses"] = any(x.index_topk and not x.index_own for x in every)
    windows = [t[name] for name in ("window", "chunk") if on[name]]
    far = windows[0] if on["window"] is True else " or ".join(windows)
    known["far"], known["fixed"] = far, bool(far) and "self." not in far
    known["sized"] = t["rope_size"].startswith("self.")
    text: str = template().render(known)
    return _tabled(text, records, t, on) if records else text.strip() + "\n"


def _tabled(
    text: str,
    records: Mapping[int, AttentionRecord | MixerRecord],
    t: Mapping[str, str],
    on: Mapping[str, On],
) -> str:
    """The same, with a table of each field in which the layers differ."""
    read = set(re.findall(r"\bself\.(\w+)", text))
    rows = [records.get(n) for n in range(max(records) + 1)]
    own, tables = "", ["# Of each layer."]
    for name in t:
        test = TESTS.get(name, name).split()[0]
        attributes = [] if isinstance(on[name], bool) else [test]
        if t[name] == f"self.{name}" and name not in attributes:
            attributes.append(name)
        for attribute in [a for a in attributes if a in read]:
            own += f"        self.{attribute} = {attribute.upper()}[layer]\n"
            of = _is_on if attribute != name else getattr
            table = _table([_literal(x and of(x, name)) for x in rows])
            tables.append(f"{attribute.upper()} = {table}")
    above = "\n".join([*tables, "\n\n"]) if own else ""
    text = text.replace("@FIELDS@\n", own).replace("@TABLES@\n", above)
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
    take the blank lines above them along. `%% above` is what layers with a
    state share, and `%% rows` what those do that read rows one by one."""
    text, folder = sources()[name].read_text("utf-8"), Path(__file__).parent
    for line, shared in (("above", "recurrent"), ("rows", "rows")):
        if f"%% {line}\n" in text:
            part = (folder / f"mixers/{shared}.py.jinja").read_text("utf-8")
            text = text.replace(f"%% {line}\n", part)
    return re.sub(r"(?m)^%% (.*)$", r"{% \1 %}", text)


def sources() -> dict[str, Path]:
    """The templates, by name: attention, and each kind of a MixerRecord."""
    folder = Path(__file__).parent
    paths = [folder / "attention.py.jinja", *folder.glob("mixers/[A-Z]*")]
    return {path.name.partition(".")[0]: path for path in paths}


def when(text: str, on: On) -> str:
    """Lines of the layers where `on` holds."""
    return _under(f"if {on}:", text) if isinstance(on, str) else text * on


def unless(text: str, on: On) -> str:
    """Lines of the other layers."""
    if isinstance(on, bool):
        return when(text, not on)
    other = on.replace("is not", "is")
    return when(text, f"not {on}" if other == on else other)


def otherwise(text: str, on: On) -> str:
    """Lines of the other layers, below those of `when(on)`."""
    return _under("else:", text) if isinstance(on, str) else unless(text, on)


def _under(head: str, text: str) -> str:
    if not text.strip():
        return ""
    column = re.sub(r"(?s)\S.*", "", text)
    return f"{column}{head}\n" + textwrap.indent(text, "    ")


def _fields(
    every: Sequence[AttentionRecord | MixerRecord],
) -> tuple[dict[str, Any], dict[str, str], dict[str, On]]:
    """`r`, `t` and `on` of the template."""
    r: dict[str, Any] = {}
    t: dict[str, str] = {}
    on: dict[str, On] = {}
    for name in (field.name for field in fields(every[0])):
        owner = OWNERS.get(name)
        users = [x for x in every if not owner or _is_on(x, owner)]
        has = [_is_on(x, name) for x in users]
        some = any(has) and not all(has) and name in SOME
        on[name] = f"self.{TESTS.get(name, name)}" if some else any(has)
        of = [x for x in users if _is_on(x, name)] if some else users
        values = [*{getattr(x, name): True for x in of or every}]
        if len(values) > 1 and name not in {"kind", *SIZES}:
            raise ValueError(
                message(
                    "{}: the layers differ in {}, which is not written in one "
                    "file",
                    every[0].family,
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
    if name == "shares":  # the first layer is 0
        return value is not None
    return bool(value) and value != NEUTRAL.get(name)


def _remarks(given: Mapping[str, Any]) -> str:
    """What the weights or the positions of a model need besides."""
    text = ""
    if given.get("quantization_config"):
        text += "The weights are quantised: dequantise them first.\n"
    for name in ("rope_parameters", "rope_scaling"):
        rope = given.get(name)
        if isinstance(rope, Mapping) and "mrope_section" in rope:
            text += "For text: a token of an image has three positions.\n"
            break
    return text + origin()


def _constants(r: Mapping[str, Any]) -> str:
    """The many factors of RoPE."""
    lines = []
    for name in ("rope_short", "rope_long"):
        text = repr(r[name])
        if len(text) > 60:
            inside = textwrap.indent(textwrap.fill(text[1:-1], 75), "    ")
            text = f"(\n{inside},\n)"
        lines.append(f"{name.upper()} = {text}")
    return "\n".join(lines)


def _table(texts: Sequence[str]) -> str:
    """A field of all layers, with what repeats in it written once."""
    ways = [_joined(texts)]
    for start, period in product(range(len(texts) // 2), range(2, 13)):
        tail = texts[start:]
        times = len(tail) // period
        if times > 1 and tail[period:] == tail[:-period]:
            once = _joined(tail[:period])
            once = f"({once})" if " + " in once else once
            parts = [_joined(texts[:start]), f"{times} * {once}"]
            parts += [_joined(tail[times * period :])]
            ways.append(" + ".join(filter(None, parts)))
    return min(ways, key=len)


def _filled(table: str) -> str:
    """In lines, which end with a comma or before a +."""
    glued = table.replace(" * ", "\0*\0").replace(" + ", " +\0")
    lines = textwrap.fill(glued, 75).replace("\0", " ")
    return textwrap.indent(lines, "    ")


def _joined(values: Sequence[str]) -> str:
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
