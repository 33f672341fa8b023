"""Attention shapes of released models, each with its sources."""

import json
import re
from collections.abc import Iterator, Mapping
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
from attnref.released.record import read_config
from attnref.words import hint, message, plain

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


def date_key(date: str) -> str:
    """To sort dates by: an unknown month stands behind the known ones.

    Examples:
        >>> sorted(["2026", "2026-02", "2025"], key=date_key)
        ['2025', '2026-02', '2026']
    """
    return f"{date}-13"[:7]


class _Models(Mapping[str, Model]):
    """Each is read when it is asked for: of a config it takes milliseconds."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        rows = sorted(rows, key=lambda row: date_key(row["date"]))
        self.rows = {row["id"]: row for row in rows}
        self.models: dict[str, Model] = {}

    def __getitem__(self, id: str) -> Model:
        if id not in self.models:
            self.models[id] = _model(dict(self.rows[id]))
        return self.models[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def _model(row: dict[str, Any]) -> Model:
    sources = [*row.pop("sources", [])]
    for name in ("context", "params_in"):
        if name in row:
            row[name] = _source(row[name])
    if "shipped" in row:
        kernels = [_source(text) for text in row["shipped"]["sources"]]
        row["shipped"] = Shipped(**row["shipped"] | {"sources": (*kernels,)})
    if "config" in row:
        sources.append(row.pop("config_in"))
        row = _facts(row.pop("config"), _source(sources[-1]), row) | row
    else:
        row["groups"] = tuple(map(_group, row["groups"]))
    return Model(sources=tuple(map(_source, sources)), **row)


def _source(text: str) -> Source:
    """A source from its text: a place, or a place and what to find there."""
    label, _, rest = text.partition(":")
    places = {**PLACES, **_specs()["places"]}
    url = places[label].format(rest)
    if label == "GitHub":
        return Source("/".join(rest.split("/")[:2]), url)
    return Source(text if label == "arXiv" else label, url)


def _facts(
    config: dict[str, Any], source: Source, row: dict[str, Any]
) -> dict[str, Any]:
    """What the config.json of a model says of it."""
    model = model_from_config(read_config(config))
    last = sorted(model.groups, key=lambda g: isinstance(g, Recurrent))
    facts: dict[str, Any] = {"groups": tuple(last)}
    facts["max_context"] = model.max_context
    facts["attention_params"] = model.attention_params
    if "params" not in row:
        facts["params"] = model.params
        facts["params_in"] = model.params and source
    return facts


def _group(record: dict[str, Any]) -> Group:
    sizes = dict(record)
    return KINDS[sizes.pop("kind")](**sizes)


@cache
def models() -> Mapping[str, Model]:
    """All models that attnref knows, by their ids, oldest first.

    Examples:
        >>> models()["llama-3.1-8b"].groups[0].kv_heads
        8
    """
    return _Models(_specs()["models"])


def chinese_names() -> dict[str, str]:
    """Families of models by their Chinese names."""
    return dict(_specs()["called"])


@cache
def configs() -> dict[str, dict[str, Any]]:
    """What the config.json of released models says, by the ids of `models`."""
    rows = _specs()["models"]
    return {row["id"]: row["config"] for row in rows if "config" in row}


@cache
def _specs() -> dict[str, Any]:
    path = Path(__file__).with_name("specs.json")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _english(text: str) -> str:
    """With English names of families: for 通义千问3-8B or 智谱 GLM-4.5."""
    if not text.isascii():
        for name, family in chinese_names().items():
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
    if id in models():
        return models()[id]
    ids = {row["name"]: row["id"] for row in _specs()["models"]}
    ids |= {id: id for id in models()}
    english = _english(str(id))
    spellings = {plain(english), plain(english.rpartition("/")[2])}
    matches = {ids[text] for text in ids if plain(text) in spellings}
    if len(matches) != 1:
        error = message("there is no model {!r}", id)
        raise ValueError(error + hint(english, ids))
    return models()[matches.pop()]
