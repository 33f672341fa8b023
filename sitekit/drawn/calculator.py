"""The calculator: its markup, and what its script computes.

sitekit/released/javascript.py makes a script of `calculated` and all that it
calls, so that the page computes what the build does.
"""

import re
from collections.abc import Mapping
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
from attnref.released.specs import models
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
LIMITS = dict.fromkeys(SHAPE, 100_000)
LIMITS |= {"tokens": 10**9, "batch": 10**6, "ranks": 10**4}
LIMITS |= {"params": 10**14}
SCALES = ("8/16", "8/32", "16/32", "16/64", "16/128")
KINDS = {
    kind.__name__: kind
    for kind in (Full, Sliding, Chunked, Mla, Compressed, Recurrent)
}


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
    known: dict[str, dict[str, Any]] = {}
    for model in models().values():
        known[model.id] = {
            "name": model.name,
            "groups": [
                [type(g).__name__, *vars(g).values()] for g in model.groups
            ],
            "shape": shape_of(model),
        }
        if model.params is not None:
            known[model.id]["params"] = model.params
        if (shipped := model.shipped) is not None:
            own = [shipped.kv, shipped.index, shipped.window]
            known[model.id]["shipped"] = own
    return known


def model_of(known: Mapping[str, Any]) -> Model:
    """A model again, of what `data` has of it: its name and its sizes."""
    groups = []
    for kind, *values in known["groups"]:
        names = [field.name for field in fields(KINDS[kind])]
        groups.append(KINDS[kind](**dict(zip(names, values, strict=True))))
    model = replace(sized(known["name"], *groups), params=known.get("params"))
    if "shipped" not in known:
        return model
    kv, index, window = known["shipped"]
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
    """Bytes of a model on each device, weights and cache; and its row."""

    weights: int
    cache: int
    row: list[str]


def taken(
    model: Model, dtype: str | Storage, entered: Entered, endless: str
) -> Taken:
    """What a model takes; weights that are unknown or not counted, nothing."""
    how: dict[str, Any] = {"dtype": dtype, "ranks": entered.ranks}
    weights = 0
    if model.params and entered.weights != "none":
        weights = weight_bytes(model, entered.weights, ranks=entered.ranks)
    left = entered.budget - weights
    tokens, batch = entered.tokens, entered.batch
    total = kv_bytes(model, tokens, batch=batch, **how)
    longest = longest_context(model, left, batch=batch, **how)
    row = [
        model.name,
        exact(growth(model, **how).later),
        f"{total:,}",
        size(total),
        endless if longest is None else f"{longest:,}",
        f"{largest_batch(model, tokens, left, **how):,}",
    ]
    return Taken(weights, total, row)


def calculated(
    entered: Entered,
    shape: dict[str, int],
    first: Mapping[str, Any] | None,
    second: Mapping[str, Any] | None,
    words: Mapping[str, str],
) -> dict[str, Any]:
    """What is shown of a model, or of a shape if there is no first, and of
    the variants in this shape."""
    shipped = entered.dtype == "shipped"
    plain: str | Storage = "bf16" if shipped else entered.dtype
    if entered.scale != "none":
        bits, block = map(int, entered.scale.split("/"))
        plain = DTYPES[entered.dtype]._replace(scale_bits=bits, block=block)
    forms = forms_of(shape)
    own = model_of(first) if first else sized(words["own"], forms["gqa"])
    alike = [own, *(sized(words[name], forms[name]) for name in forms)]
    own, *variants = (replace(m, params=entered.params) for m in alike)
    chosen = [own, model_of(second)] if second else [own]
    dtype = "shipped" if shipped else plain
    rows = [
        *(taken(model, dtype, entered, words["endless"]) for model in chosen),
        *(taken(model, plain, entered, words["endless"]) for model in variants),
    ]
    budget = entered.budget
    most = max(budget, *(each.weights + each.cache for each in rows))
    sentences = []
    for model, each in zip(chosen, rows, strict=False):
        fits = each.weights + each.cache <= budget
        beside = words["beside"].format(size(each.weights))
        text = words["said" if fits else "said_over"].format(
            model.name,
            size(each.cache),
            f"{entered.batch:,}",
            f"{entered.tokens:,}",
            beside if each.weights else "",
            size(budget),
        )
        counted = model.params or entered.weights == "none"
        sentences.append(text if counted else text + words["unknown"])
    return {
        "said": sentences,
        "limit": f"{100 * budget / most:g}",
        "bars": [
            [
                each.row[0],
                f"{100 * each.weights / most:g}",
                f"{100 * each.cache / most:g}",
                size(each.cache),
                each.weights + each.cache > budget,
            ]
            for each in rows
        ],
        "rows": [each.row for each in rows],
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


def calculator(*, words: dict[str, str]) -> str:
    """The form with all its texts, and its result before any input."""
    texts, known = Words(words), data()
    model = models()[CHOSEN["model"]]
    assert model.params
    entered = Entered(
        **USE,
        dtype=CHOSEN["dtype"],
        scale=CHOSEN["scale"],
        weights=CHOSEN["weights"],
        params=model.params,
        budget=bytes_of(BUDGET),
    )
    shape = shape_of(model)
    texts.used |= {*USED.findall(SCRIPT.read_text(encoding="utf-8"))}
    texts.used |= {"own", "said_over", "unknown"}  # said of other models
    return render(
        "calculator",
        words=texts,
        use=USE,
        chosen=CHOSEN,
        budget=BUDGET,
        models=models().values(),
        dtypes={name: name for name in DTYPES} | {"shipped": texts["shipped"]},
        weights={"none": texts["uncounted"]} | {name: name for name in DTYPES},
        params=f"{model.params:,}",
        scales={"none": texts["none"]}
        | {s: texts["scaled"].format(*s.split("/")) for s in SCALES},
        shape={name: shape[name] for name in SHAPE},
        contexts=CONTEXTS,
        **calculated(entered, shape, known[model.id], None, texts),
        head=[texts[column] for column in COLUMNS],
        known={
            "models": known,
            "limits": LIMITS,
            "defaults": {
                "shape": SHAPE,
                "use": USE,
                **CHOSEN,
                "budget": BUDGET,
            },
            "words": words,
        },
    )


@cache
def script() -> str:
    """assets/calculated.js: what the page's own script calls."""
    names = "calculated", "Entered", "bytes_of"
    return bundle([COUNT, *((__name__, name) for name in names)])
