"""How published checkpoints call the weights of a layer, and the part of a
written file that loads them: both from the rows of checkpoints.toml."""

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from attnref.released.record import Config

# Before the number of a layer, a text model has these words alone in its names:
# encoders and drafters have others.
TEXT = (
    *("", "base_model", "model", "language_model", "text_model", "thinker"),
    *("llm", "transformer", "backbone", "decoder", "gpt_neox", "biogpt"),
)
# Buffers of some files, and scales of caches: no weights.
UNUSED = r"(masked_)?bias|rotary_emb\.inv_freq|(.*\.)?[qkv]_scale"
# What a config says of the format of its weights, as far as it is read.
FORMAT = (
    *("quant_method", "weight_block_size", "bits", "group_size"),
    "checkpoint_format",
)
LAYERS = "model.layers.{}.self_attn"


def names_of(config: Config) -> Mapping[str, Any]:
    """The row of the wrapper, if it has names of its own, or of the family."""
    for name in (config.outer_model_type, config.family):
        if name in _rows():
            return _row(name)
    return {}


def _row(name: str) -> dict[str, Any]:
    """A row with what it takes from the one that it is like."""
    row = dict(_rows()[name])
    like = row.pop("like", None)
    return {**_row(like), **row} if like else row


@cache
def _rows() -> dict[str, Any]:
    path = Path(__file__).with_name("checkpoints.toml")
    return tomllib.loads(path.read_text("utf-8"))


def places_of(config: Config) -> tuple[str, str]:
    """Where a published layer has its attention, and what else mixes tokens:
    `layers.{}.self_attn`, from the list of the layers on."""
    names = config.row.names
    attention = names.get("at", LAYERS)
    module = names_of(config).get("module")
    if module:
        return module, module
    return _inside(attention), _inside(names.get("mixer", attention))


def _inside(place: str) -> str:
    before, after = place.split(".{}", 1)
    return before.split(".")[-1] + ".{}" + after


def unused_of(names: Mapping[str, Any]) -> str:
    """A pattern of the names of what is no weight."""
    return "|".join(filter(None, (UNUSED, names.get("unused"))))


def places(kinds: Mapping[str, str]) -> str:
    """Where published files have the layers of each class, as a constant."""
    rows = [f'"{kind}": "{place}."' for kind, place in kinds.items()]
    text = "# Where published files have the layers of a class.\n"
    return text + _table("PLACES", rows)


def format_of(quant: Any) -> str:
    """What the config says of quantised weights, as a constant."""
    known = quant if isinstance(quant, Mapping) else {}
    values = {n: known[n] for n in FORMAT if n in known}
    texts = {
        n: _text(x) if isinstance(x, str) else repr(x)
        for n, x in values.items()
    }
    rows = [f'"{n}": {text}' for n, text in texts.items()]
    return "# How the weights are quantised.\n" + _table("FORMAT", rows)


def tables(names: Mapping[str, Any]) -> str:
    """The row as constants of a written file."""
    text = ""
    if "join" in names:
        text += "# Weights, and those whose rows they hold.\n"
        text += _lists("JOIN", names["join"])
    if "split" in names:
        text += "# Published weights, and the names of their rows.\n"
        text += _lists("SPLIT", names["split"])
    if "rename" in names:
        rows = [f"{_text(a)}: {_text(b)}" for a, b in names["rename"].items()]
        text += "# Published names, and those of this file.\n"
        text += _table("RENAME", rows)
    if "padded" in names:
        text += "# Weights that published files fill up with zeros.\n"
        text += f"PADDED = {{{', '.join(map(_text, names['padded']))}}}\n"
    return text


def _lists(name: str, lists: Mapping[str, Sequence[str]]) -> str:
    rows = []
    for key, parts in lists.items():
        inside = "".join(f"        {_text(part)},\n" for part in parts)
        rows.append(f"{_text(key)}: (\n{inside}    )")
    return _table(name, rows)


def _table(name: str, rows: Sequence[str]) -> str:
    inside = "".join(f"    {row},\n" for row in rows)
    return f"{name} = {{\n{inside}}}\n"


def _text(text: str) -> str:
    return f'r"{text}"' if "\\" in text else f'"{text}"'
