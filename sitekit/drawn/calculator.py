"""The calculator: its markup, and what its script computes.

sitekit/released/javascript.py makes a script of `calculated` and all that it
calls, so that the page computes what the build does.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache
from math import gcd
from typing import Any, NamedTuple

from attnref.commands.kv import CONTEXTS
from attnref.numbers.kv_memory import (
    DTYPES,
    Storage,
    growth,
    kv_bytes,
    largest_batch,
    longest_context,
    size,
    weight_bytes,
)
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
)
from attnref.numbers.weights import Share, device_bytes
from attnref.released.record import read_config
from attnref.released.specs import configs, models
from attnref.released.stored import stored_shares
from sitekit import ROOT
from sitekit.drawn.memory import SHAPE, forms_of
from sitekit.markdown.render import Words, render
from sitekit.markdown.tables import exact
from sitekit.released.javascript import bundle

COUNT = "attnref.commands.kv", "count_of"  # reads what people write
USE = {"tokens": 131_072, "batch": 1, "ranks": 1}
CHOSEN = {"model": "llama-3.1-8b", "second": "none", "dtype": "bf16"}
CHOSEN |= {"scale": "none", "weights": "bf16"}
BUDGET = "80"
UNKNOWN = "–"  # as long as nobody says what the weights take
LIMITS = dict.fromkeys(SHAPE, 100_000)
LIMITS |= {"tokens": 10**9, "batch": 10**6, "ranks": 10**4}
LIMITS |= {"params": 10**14}
SCALES = ("8/16", "8/32", "16/32", "16/64", "16/128")
# Formats in which models are served: bits on average, and as a config.json
# says them.
SERVED: dict[str, Storage] = {
    "fp8 128x128": Storage(8, 32, 128 * 128),
    "nvfp4": Storage(4, 8, 16),
    "int4 g128": Storage(4, 20, 128),
}
QUANTISED = {
    "fp8 128x128": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "int4 g128": {"quant_method": "awq", "bits": 4, "group_size": 128},
}
KINDS = {kind.__name__: kind for kind in (Full, Sliding, Chunked, Mla, Compressed, Recurrent)}


def shape_of(model: Model) -> dict[str, int]:
    """The shape in which variants are compared with a model: that of its
    layers that see all tokens, if there are any, for each that attends."""
    attending = [g for g in model.groups if not isinstance(g, Recurrent)]
    group = max(attending, key=lambda g: type(g) is Full)
    has = vars(group) | {"heads": group.q_heads}
    if isinstance(group, Compressed):
        has |= {"kv_heads": 1, "head_dim": group.dim, "v_head_dim": group.dim}
    elif isinstance(group, Mla):
        has["head_dim"] = group.qk_nope_head_dim
    shape = {name: has.get(name) or n for name, n in SHAPE.items()}
    if not has.get("kv_heads"):
        shape["kv_heads"] = gcd(shape["heads"], SHAPE["kv_heads"])
    return shape | {"layers": sum(g.layers for g in attending)}


def data() -> dict[str, Any]:
    """What the script knows of models: see `model_of`."""
    result: dict[str, dict[str, Any]] = {}
    for model in models().values():
        result[model.id] = {
            "name": model.name,
            "groups": [[type(g).__name__, *vars(g).values()] for g in model.groups],
            "shape": shape_of(model),
            "context": model.max_context,
        }
        if model.params is not None:
            result[model.id]["params"] = model.params
            shares = served(model.id)
            if shares:
                result[model.id]["served"] = shares
        if (format := model.shipped) is not None:
            widths = [format.kv, format.index, format.window]
            result[model.id]["shipped"] = widths
    return result


@cache
def served(id: str) -> dict[str, list[list[int]]]:
    """The weights of a model in each format of QUANTISED: bytes, and into how
    many parts devices split them. Of a model whose parameters are published
    rounded, all of its matrices are known too."""
    result: dict[str, list[list[int]]] = {}
    for name, quant in QUANTISED.items():
        fields = configs().get(id)
        if fields is None:
            return {}
        config = read_config({**fields, "quantization_config": quant})
        parts: dict[int, int] = {}
        with suppress(ValueError):
            for share in stored_shares(config):
                parts[share.parts] = parts.get(share.parts, 0) + share.size
            result[name] = [[size, n] for n, size in parts.items()]
    return result


def model_of(entry: Mapping[str, Any]) -> Model:
    """A model again, of what `data` has of it: its name and its sizes."""
    groups = []
    for kind, *values in entry["groups"]:
        names = [field.name for field in fields(KINDS[kind])]
        groups.append(KINDS[kind](**dict(zip(names, values, strict=True))))
    model = replace(sized(entry["name"], *groups), params=entry.get("params"))
    if "shipped" not in entry:
        return model
    kv, index, window = entry["shipped"]
    shipped = Shipped(kv=kv, index=index, window=window, sources=())
    return replace(model, shipped=shipped)


def sized(name: str, *groups: Group) -> Model:
    """A model of which nothing else is known."""
    return Model(
        id="",
        name=name,
        family="",
        date="",
        max_context=0,
        groups=groups,
        sources=(),
        confidence="given",
    )


class Entered(NamedTuple):
    """What is entered: the size of a cache, formats, and a budget in bytes."""

    tokens: int
    batch: int
    ranks: int
    dtype: str
    scale: str
    weights: str
    params: int
    budget: int


class Taken(NamedTuple):
    """Bytes of a model on each device, weights and cache; its row."""

    weights: int
    cache: int
    above: bool  # whether more fits than the model reads
    row: list[str]


def weights_of(model: Model, entry: Mapping[str, Any] | None, entered: Entered) -> int:
    """Bytes of the weights on each device; what is unknown or not counted,
    nothing. In a format of files they are those of all matrices, unless the
    number of parameters is another."""
    if not model.params or entered.weights == "none":
        return 0
    if entered.weights not in SERVED:
        return weight_bytes(model, entered.weights, ranks=entered.ranks)
    known = entry.get("served") if entry and entry.get("params") == model.params else None
    if not known:
        return weight_bytes(model, SERVED[entered.weights], ranks=entered.ranks)
    shares = [Share(size, parts, False) for size, parts in known[entered.weights]]
    return device_bytes(shares, entered.ranks)


def is_known(model: Model, entered: Entered) -> bool:
    """Whether it is known what the weights take, and so what is left."""
    return bool(model.params) or entered.weights == "none"


def taken(
    model: Model,
    dtype: str | Storage,
    entered: Entered,
    endless: str,
    entry: Mapping[str, Any] | None = None,
) -> Taken:
    """What a model takes, of which `entry` is known."""
    options: dict[str, Any] = {"dtype": dtype, "ranks": entered.ranks}
    weights = weights_of(model, entry, entered)
    remaining = entered.budget - weights
    tokens, batch = entered.tokens, entered.batch
    total = kv_bytes(model, tokens, batch=batch, **options)
    longest = longest_context(model, remaining, batch=batch, **options)
    known = is_known(model, entered)
    row = [
        model.name,
        exact(growth(model, **options).later),
        f"{total:,}",
        size(total),
        UNKNOWN if not known else endless if longest is None else f"{longest:,}",
        f"{largest_batch(model, tokens, remaining, **options):,}" if known else UNKNOWN,
    ]
    above = entry is not None and (longest is None or longest > entry["context"])
    return Taken(weights, total, above and known, row)


def calculated(
    entered: Entered,
    shape: dict[str, int],
    first: Mapping[str, Any] | None,
    second: Mapping[str, Any] | None,
    words: Mapping[str, str],
) -> dict[str, Any]:
    """What is shown of a model, or of a shape if there is no first, and of
    the variants in this shape."""
    is_shipped = entered.dtype == "shipped"
    plain: str | Storage = "bf16" if is_shipped else entered.dtype
    if entered.scale != "none":
        bits, block = map(int, entered.scale.split("/"))
        plain = DTYPES[entered.dtype]._replace(scale_bits=bits, block=block)
    forms = forms_of(shape)
    subject = model_of(first) if first else sized(words["own"], forms["gqa"])
    all_models = [subject, *(sized(words[name], forms[name]) for name in forms)]
    subject, *variants = (replace(m, params=entered.params) for m in all_models)
    chosen = [subject, model_of(second)] if second else [subject]
    dtype = "shipped" if is_shipped else plain
    endless, entries = words["endless"], [first, second]
    rows = [
        *(taken(m, dtype, entered, endless, e) for m, e in zip(chosen, entries, strict=False)),
        *(taken(model, plain, entered, endless, first) for model in variants),
    ]
    budget = entered.budget
    longest = max(budget, *(result.weights + result.cache for result in rows))
    sentences = []
    for model, result, entry in zip(chosen, rows, entries, strict=False):
        fits = result.weights + result.cache <= budget
        weights_text = words["beside"].format(size(result.weights))
        fit = "said" if fits else "said_over"
        if fits and not is_known(model, entered):
            fit = "said_unknown"
        text = words[fit].format(
            model.name,
            size(result.cache),
            f"{entered.batch:,}",
            f"{entered.tokens:,}",
            weights_text if result.weights else "",
            size(budget),
        )
        if entry and result.above:
            text += words["above"].format(f"{entry['context']:,}")
        sentences.append(text)
    return {
        "said": sentences,
        "limit": f"{100 * budget / longest:g}",
        "bars": [
            [
                result.row[0],
                f"{100 * result.weights / longest:g}",
                f"{100 * result.cache / longest:g}",
                size(result.cache),
                result.weights + result.cache > budget,
            ]
            for result in rows
        ],
        "rows": [result.row for result in rows],
    }


def bytes_of(text: str) -> int:
    """Bytes of a number of GiB such as 80 or 22.5; 0 if the text is none."""
    match = re.fullmatch(r"(\d{1,7})(?:\.(\d{1,3}))?", text.strip())
    if match is None:
        return 0
    thousandths = int(match[1]) * 1000 + int(f"{match[2] or 0}00"[:3])
    return thousandths * 2**30 // 1000


SCRIPT = ROOT / "overrides" / "assets" / "calculator.js"
USED = re.compile(r"\bwords\.(\w+)")  # texts, by the script
COLUMNS = ("form", "later", "total", "readable", "longest", "largest")
# What stands above all: a word, and the column of the first row.
SHOWN = {"form": 3, "later": 1, "longest": 4, "largest": 5}


def calculator(*, words: dict[str, str]) -> str:
    """The form with all its texts, and its result before any input."""
    texts, models_data = Words(words), data()
    model = models()[CHOSEN["model"]]
    assert model.params
    inputs = Entered(
        **USE,
        dtype=CHOSEN["dtype"],
        scale=CHOSEN["scale"],
        weights=CHOSEN["weights"],
        params=model.params,
        budget=bytes_of(BUDGET),
    )
    shape = shape_of(model)
    texts.used |= {*USED.findall(SCRIPT.read_text(encoding="utf-8"))}
    texts.used |= {"own", "said_over", "said_unknown"}  # said of other models
    result = calculated(inputs, shape, models_data[model.id], None, texts)
    return render(
        "calculator",
        words=texts,
        use=USE,
        chosen=CHOSEN,
        budget=BUDGET,
        models=models().values(),
        dtypes={name: name for name in DTYPES} | {"shipped": texts["shipped"]},
        weights={"none": texts["uncounted"]} | {name: name for name in (*DTYPES, *SERVED)},
        params=f"{model.params:,}",
        scales={"none": texts["none"]} | {s: texts["scaled"].format(*s.split("/")) for s in SCALES},
        shape={name: shape[name] for name in SHAPE},
        contexts=CONTEXTS,
        **result,
        shown={name: result["rows"][0][column] for name, column in SHOWN.items()},
        head=[texts[column] for column in COLUMNS],
        known={
            "models": models_data,
            "limits": LIMITS,
            "shown": [*SHOWN.values()],
            "defaults": {"shape": SHAPE, "use": USE, **CHOSEN, "budget": BUDGET},
            "words": words,
        },
    )


@cache
def script() -> str:
    """assets/calculated.js: what the page's own script calls."""
    names = "calculated", "Entered", "bytes_of"
    return bundle([COUNT, *((__name__, name) for name in names)])
