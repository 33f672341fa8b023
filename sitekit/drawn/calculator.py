"""The calculator: its markup, and the data of its script.

The script gets the stores of all models, and repeats attnref's arithmetic.
"""

import re
from dataclasses import replace
from math import gcd
from typing import Any

from attnref.commands.kv import CONTEXTS
from attnref.numbers import kv_memory
from attnref.numbers.kv_memory import DTYPES, FIXED, growth, kv_bytes, size
from attnref.numbers.shapes import Compressed, Full, Mla, Model, Recurrent
from attnref.released.specs import models
from sitekit import ROOT
from sitekit.drawn.memory import SHAPE, forms_of
from sitekit.markdown.render import Words, render
from sitekit.markdown.tables import exact

USE = {"tokens": 131_072, "batch": 1, "ranks": 1}
CHOSEN = {"model": "llama-3.1-8b", "second": "none", "dtype": "bf16"}
CHOSEN |= {"scale": "none", "weights": "bf16"}
BUDGET = "80"
LIMITS = dict.fromkeys(SHAPE, 100_000)
LIMITS |= {"tokens": 10**9, "batch": 10**6, "ranks": 10**4}
LIMITS |= {"params": 10**14}
STORED = ("kv", "window", "index")
SCALES = ("8/16", "8/32", "16/32", "16/64", "16/128")


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
    """What the script knows, apart from texts."""
    known: dict[str, dict[str, Any]] = {}
    for model in models().values():
        known[model.id] = {
            "name": model.name,
            "stores": [[g.layers, *s] for g in model.groups for s in g.stores],
            "shape": shape_of(model),
        }
        if model.params is not None:
            known[model.id]["params"] = model.params
        if (shipped := model.shipped) is not None:
            own = {name: getattr(shipped, name) for name in STORED}
            known[model.id]["shipped"] = own
    return {
        "models": known,
        "dtypes": {name: storage.bits for name, storage in DTYPES.items()},
        "fixed": {role: storage.bits for role, storage in FIXED.items()},
        "limits": LIMITS,
        "defaults": {"shape": SHAPE, "use": USE, **CHOSEN, "budget": BUDGET},
    }


# The texts that the script uses, beside the names of its rows.
SCRIPT = ROOT / "overrides" / "assets" / "calculator.js"
ASKED = re.compile(r'(?:\bwords\.|say\(")(\w+)')
COLUMNS = ("form", "later", "total", "readable", "longest", "largest")


def calculator(*, words: dict[str, str]) -> str:
    """The form with all its texts, and its result before any input."""
    told, model = Words(words), models()[CHOSEN["model"]]
    budget, tokens = int(BUDGET) * 2**30, USE["tokens"]
    weights = kv_memory.weight_bytes(model, CHOSEN["weights"])
    left = budget - weights
    forms = {model.name: model} | {
        told[name]: replace(model, groups=(group,))
        for name, group in forms_of(shape_of(model)).items()
    }
    rows, totals = [], {}
    for name, form in forms.items():
        totals[name] = total = kv_bytes(form, tokens)
        longest = kv_memory.longest_context(form, left)
        most = kv_memory.largest_batch(form, tokens, left)
        later = exact(growth(form).later), f"{total:,}", size(total)
        rows.append([name, *later, f"{longest:,}", f"{most:,}"])
    full = max(budget, weights + max(totals.values()))
    told.used |= {*ASKED.findall(SCRIPT.read_text(encoding="utf-8"))}
    return render(
        "calculator",
        words=told,
        use=USE,
        chosen=CHOSEN,
        budget=BUDGET,
        models=models().values(),
        dtypes={name: name for name in DTYPES} | {"shipped": told["shipped"]},
        weights={"none": told["uncounted"]} | {name: name for name in DTYPES},
        params=f"{model.params:,}",
        scales={"none": told["none"]}
        | {s: told["scaled"].format(*s.split("/")) for s in SCALES},
        shape={name: shape_of(model)[name] for name in SHAPE},
        contexts=CONTEXTS,
        said=told["said"].format(
            model.name,
            size(totals[model.name]),
            USE["batch"],
            f"{tokens:,}",
            told["beside"].format(size(weights)),
            size(budget),
        ),
        weighed=f"{100 * weights / full:g}",
        bars=[
            (name, f"{100 * total / full:g}", size(total))
            for name, total in totals.items()
        ],
        head=[told[column] for column in COLUMNS],
        rows=rows,
        known={**data(), "words": words},
    )
