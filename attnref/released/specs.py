"""Attention shapes of released models, each with its sources."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attnref.numbers.shapes import (
    Chunked,
    Compressed,
    Full,
    Group,
    Mla,
    Model,
    Recurrent,
    Shipped,
    Sliding,
    Source,
)
from attnref.released.from_config import model_from_config
from attnref.words import hint, plain

KINDS: Mapping[str, type[Group]] = MappingProxyType(
    {
        "full": Full,
        "sliding": Sliding,
        "chunked": Chunked,
        "mla": Mla,
        "compressed": Compressed,
        "recurrent": Recurrent,
    }
)
PLACES = {
    "GitHub": "https://github.com/{}",
    "arXiv": "https://arxiv.org/abs/{}",
    "Hugging Face": "https://huggingface.co/{}/blob/main/config.json",
    "Hugging Face card": "https://huggingface.co/{}",
    "transformers": "https://github.com/huggingface/transformers/blob/v5.24.0/"
    "src/transformers/models/{0}/configuration_{0}.py",
}


STATE = "state_heads", "key_dim", "value_dim"  # 0: a convolution alone


class _Row:
    """A record of the file, with errors that say where it is wrong."""

    def __init__(self, where: str, record: object) -> None:
        self.where = where
        if not isinstance(record, dict):
            raise self.wrong(f"{record!r} is not a record")
        self.record = record

    def wrong(self, what: str) -> ValueError:
        return ValueError(f"specs.json: {self.where}: {what}")

    def list_of(self, name: str) -> list[Any]:
        value = self.record.get(name)
        if not isinstance(value, list) or not value:
            raise self.wrong(f"{name} is missing")
        return value

    def build(self, kind: type[Any], **ready: Any) -> Any:
        """An instance of `kind` from the record; `ready` is taken as it is."""
        known = {f.name: f for f in fields(kind)}
        for name in self.record:
            if name not in known:
                close = get_close_matches(name, known, 1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise self.wrong(
                    f"{name} is not a field of {kind.__name__}{hint}"
                )
        values = {}
        for name, field in known.items():
            if name in ready:
                values[name] = ready[name]
            elif name in self.record:
                values[name] = self.checked(name, field.type)
            elif field.default is MISSING:
                raise self.wrong(f"{name} is missing")
        return kind(**values)

    def checked(self, name: str, kind: Any) -> Any:
        value = self.record[name]
        if value is None and kind == int | None:
            return None
        wanted = kind if kind in (str, bool) else int
        if type(value) is not wanted:
            raise self.wrong(f"{name} is {value!r}")
        least = 0 if name in STATE else 1
        if type(value) is int and value < least:
            raise self.wrong(f"{name}={value} must be at least {least}")
        return value


def _source(
    row: _Row, field: str, text: object, places: Mapping[str, str]
) -> Source:
    """A source from its text: a place, or a place and what to find there."""
    label, _, rest = str(text).partition(":")
    if label not in places or ("{" in places[label]) != bool(rest):
        raise row.wrong(f"{field}: {text!r} names no known place")
    if label == "GitHub":
        label = "/".join(rest.split("/")[:2])
        return Source(label, PLACES["GitHub"].format(rest))
    shown = f"{label}:{rest}" if label == "arXiv" else label
    return Source(shown, places[label].format(rest))


def _told(row: _Row, source: Source) -> dict[str, Any]:
    """What the config.json of a model says of it, unless the row does."""
    try:
        model = model_from_config(row.record.pop("config"))
    except ValueError as error:
        raise row.wrong(str(error)) from None
    last = sorted(model.groups, key=lambda g: isinstance(g, Recurrent))
    told: dict[str, Any] = {"groups": tuple(last)}
    if "max_context" not in row.record:
        told["max_context"] = model.max_context
    if not {"params", "params_in"} & {*row.record}:
        told |= {"params": model.params, "params_in": model.params and source}
    if "attention_params" not in row.record:
        told["attention_params"] = model.attention_params
    return told


def _group(where: str, record: object) -> Group:
    row = _Row(where, record)
    kind = row.record.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise row.wrong(f"kind is {kind!r}, not one of {', '.join(KINDS)}")
    group: Group = row.build(KINDS[kind])
    if isinstance(group, Full) and (group.q_heads or 0) % group.kv_heads:
        raise row.wrong(
            f"kv_heads={group.kv_heads} does not divide q_heads={group.q_heads}"
        )
    if isinstance(group, Compressed) and group.index_dim and not group.ratio:
        raise row.wrong(
            "index_dim without ratio: there are no entries to index"
        )
    return group


def _model(
    record: object, places: Mapping[str, str], makers: set[str]
) -> Model:
    row = _Row("a model", record)
    row.where = str(row.record.get("id", row.record))
    shipped = row.record.get("shipped")
    if shipped is not None:
        part = _Row(f"{row.where}: shipped", shipped)
        kernels = part.list_of("sources")
        read_at = [_source(part, "sources", text, places) for text in kernels]
        shipped = part.build(Shipped, sources=tuple(read_at))
    names = row.record.get("sources") or []
    if "config" in row.record:
        at = row.record.pop("config_in", None)
        source, names = _source(row, "config_in", at, places), [*names, at]
        told: dict[str, Any] = _told(row, source)
    else:
        groups = enumerate(row.list_of("groups"))
        told = {
            "groups": tuple(
                _group(f"{row.where}: groups[{i}]", group)
                for i, group in groups
            )
        }
    if not isinstance(names, list) or not names:
        raise row.wrong("sources is missing")
    sources = tuple(_source(row, "sources", text, places) for text in names)
    for name in ("context", "params_in"):
        if name in row.record:
            told[name] = _source(row, name, row.record[name], places)
    model: Model = row.build(Model, sources=sources, shipped=shipped, **told)
    if not re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", model.id):
        raise row.wrong("id may only have small letters, digits, - and .")
    if not re.fullmatch(r"20\d\d(-(0[1-9]|1[0-2]))?", model.date):
        raise row.wrong(f"date is {model.date!r}; write it as 2024-07")
    heads = [s.heads for g in model.groups for s in g.stores]
    if model.shipped and max(heads) > 1:
        raise row.wrong("shipped: only for caches with one head, shared by all")
    if model.confidence not in ("high", "medium"):
        raise row.wrong(f"confidence is {model.confidence!r}")
    read_in = {str(text).partition(":")[0] for text in names}
    if model.confidence == "high" and not read_in & makers and len(read_in) < 2:
        raise row.wrong(
            f"confidence is 'high', but {read_in.pop()} is the only source, "
            "and not one of the model's makers"
        )
    if (model.params is None) != (model.params_in is None):
        raise row.wrong("params and params_in go together; give both or none")
    return model


def when(date: str) -> str:
    """To sort dates by: an unknown month stands behind the known ones.

    Examples:
        >>> sorted(["2026", "2026-02", "2025"], key=when)
        ['2025', '2026-02', '2026']
    """
    return f"{date}-13"[:7]


class _Models(Mapping[str, Model]):
    """Each is read when it is asked for: of a config it takes milliseconds."""

    def __init__(self, text: str) -> None:
        file = _Row("the file", json.loads(text))
        here = _Row("places", file.record.get("places")).record
        self.places = {**PLACES, **here}
        self.makers = {*file.list_of("makers")}
        if not self.makers <= {*self.places}:
            wrong = min(self.makers - {*self.places})
            raise file.wrong(f"makers: {wrong!r} is not a place")
        rows: dict[str, Any] = {}
        for record in file.list_of("models"):
            id = str(_Row("a model", record).record.get("id"))
            if id in rows:
                raise ValueError(f"specs.json: {id} is listed twice")
            rows[id] = record
        self.rows = dict(
            sorted(rows.items(), key=lambda row: when(str(row[1].get("date"))))
        )
        self.models: dict[str, Model] = {}

    def __getitem__(self, id: str) -> Model:
        if id not in self.models:
            row = dict(self.rows[id])
            self.models[id] = _model(row, self.places, self.makers)
        return self.models[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def read(text: str) -> dict[str, Model]:
    """Read the text of a file such as specs.json: models by their ids."""
    return dict(_Models(text))


@cache
def models() -> Mapping[str, Model]:
    """All models that attnref knows, by their ids, oldest first.

    Examples:
        >>> models()["llama-3.1-8b"].groups[0].kv_heads
        8
    """
    return _Models(_specs())


def called() -> dict[str, str]:
    """Families of models by their Chinese names."""
    return dict(json.loads(_specs())["called"])


@cache
def configs() -> dict[str, dict[str, Any]]:
    """What the config.json of released models says, by the ids of `models`."""
    rows = json.loads(_specs())["models"]
    return {row["id"]: row["config"] for row in rows if "config" in row}


@cache
def _specs() -> str:
    return Path(__file__).with_name("specs.json").read_text(encoding="utf-8")


def _english(text: str) -> str:
    """With English names of families: for 通义千问3-8B or 智谱 GLM-4.5."""
    if not text.isascii():
        for name, family in called().items():
            pattern = rf"{name}[\s-]*(?:{family})?"
            text = re.sub(pattern, family, text, flags=re.IGNORECASE)
    return text


def find_model(id: str) -> Model:
    """A model by its id or its name. The error suggests similar ids.

    Case and separators do not matter, nor does an organisation in front, and
    families may have their Chinese names.

    Examples:
        >>> find_model("gpt2").groups
        (Full(layers=12, q_heads=12, kv_heads=12, head_dim=64, v_head_dim=64,
        index_dim=0),)
        >>> find_model("meta-llama/Llama-3.1-8B").id
        'llama-3.1-8b'
        >>> find_model("通义千问3-8B").id, find_model("智谱 GLM-4.5").id
        ('qwen3-8b', 'glm-4.5')
        >>> find_model("falcon")
        Traceback (most recent call last):
        ValueError: there is no model 'falcon'; did you mean falcon-7b?
    """
    known = models()
    if id in known:
        return known[id]
    rows = json.loads(_specs())["models"]
    whole, texts = str(id), {row["name"]: row["id"] for row in rows}
    texts |= {id: id for id in known}
    english = _english(whole)
    spellings = {plain(english), plain(english.rpartition("/")[2])}
    meant = {texts[text] for text in texts if plain(text) in spellings}
    if len(meant) != 1:
        raise ValueError(f"there is no model {id!r}{hint(english, texts)}")
    return known[meant.pop()]
