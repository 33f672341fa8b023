"""The table of models and the calculator: markup and data for their scripts.

All numbers of the table are in the page; its script only sorts and filters.
The calculator gets the models as stores, and does attnref's arithmetic anew.
"""

import json
from dataclasses import replace
from html import escape
from typing import Any

from attnref.numbers.kv_memory import (
    DTYPES,
    FIXED,
    growth,
    kv_bytes,
    largest_batch,
    longest_context,
    size,
    state_bytes,
)
from attnref.numbers.specs import (
    Chunked,
    Compressed,
    Full,
    Group,
    Mla,
    Model,
    Recurrent,
    Source,
    models,
)
from sitekit.numbers import CONTEXTS, SHAPE, exact, forms_of

Words = dict[str, str]


def kinds(model: Model) -> list[str]:
    """What a model's attention is made of, for the filter."""
    found = set()
    for group in model.groups:
        if isinstance(group, Full):
            found.add(group.variant)
            if group.window is not None:
                found.add("window")
        else:
            name = {Mla: "MLA", Compressed: "shared", Recurrent: "state"}
            found.add(name[type(group)])
        if any(store.role == "index" for store in group.stores):
            found.add("index")
    return sorted(found)


def _described(group: Group, words: Words) -> str:
    """`52 × GQA 32/16 · 128, window 1,024`, in the page's words."""
    if isinstance(group, Recurrent):
        what = words["states"].format(
            group.state_heads, f"{group.key_dim} × {group.value_dim}"
        )
        return f"{group.layers} × {what}"
    if isinstance(group, Mla):
        what = f"MLA {group.kv_lora_rank} + {group.qk_rope_head_dim}"
        what += "" if group.rotated else words["nope"]
    elif isinstance(group, Compressed):
        what = words["shared"].format(group.dim)
        what += words["window"].format(f"{group.sliding_window:,}")
        if group.ratio is not None:
            what += words["entries"].format(group.ratio)
    else:
        widths = dict.fromkeys((group.head_dim, group.v_head_dim))
        what = f"{group.variant} {group.q_heads or '?'}/{group.kv_heads} · "
        what += "/".join(map(str, widths))
        if group.window is not None:
            name = "chunk" if isinstance(group, Chunked) else "window"
            what += words[name].format(f"{group.window:,}")
    if any(store.role == "index" for store in group.stores):
        what += words["index"].format(group.index_dim)
    return f"{group.layers} × {what}"


def _cell(value: float, text: str, name: str = "") -> str:
    kind = f' class="{name}"' if name else ""
    return f'<td data-value="{value}"{kind}>{text}</td>'


def _link(source: Source, text: str) -> str:
    return f'<a href="{escape(source.url)}">{text}</a>'


def _line(model: Model, words: Words) -> str:
    added, held = growth(model), state_bytes(model)
    layers = "<br>".join(
        escape(_described(group, words)) for group in model.groups
    )
    first, later = float(added.first), float(added.later)
    cells = [
        _cell(first, exact(added.first)),
        _cell(later, exact(added.later)),
        _cell(held, size(held) if held else "–"),
    ]
    for tokens in CONTEXTS:
        taken = kv_bytes(model, tokens)
        far = "beyond" if tokens > model.max_context else ""
        cells.append(_cell(taken, size(taken), far))
    context, params = f"{model.max_context:,}", "–"
    if model.context is not None:
        context = _link(model.context, context)
    if model.params is not None and model.params_in is not None:
        billions = float(f"{model.params / 1e9:.4g}")
        params = _link(model.params_in, f"{billions:,g}B")
    sources = " ".join(_link(s, escape(s.label)) for s in model.sources)
    return (
        f'<tr data-family="{escape(model.family)}" '
        f'data-kinds="{" ".join(kinds(model))}">'
        f'<th scope="row">{escape(model.name)}</th>{"".join(cells)}'
        f"<td>{layers}</td><td>{model.date}</td>"
        f"{_cell(model.max_context, context)}"
        f"{_cell(model.params or 0, params)}"
        f"<td>{escape(words[model.confidence])}</td><td>{sources}</td></tr>"
    )


def _choice(label: str, name: str, options: list[tuple[str, str]]) -> str:
    listed = "".join(
        f'<option value="{escape(value)}">{escape(text)}</option>'
        for value, text in options
    )
    return (
        f"<label>{escape(label)} "
        f'<select name="{name}">{listed}</select></label>'
    )


def table_of_models(spec: dict[str, Any]) -> str:
    """caption, head, family, kind, all, found, kinds, words."""
    families = sorted({m.family for m in models().values()}, key=str.lower)
    present = {kind for m in models().values() for kind in kinds(m)}
    if present != set(spec["kinds"]):
        raise ValueError(f"kinds are {sorted(present)}")
    every = ("", spec["all"])
    head = "".join(
        f'<th scope="col"><button type="button">{escape(cell)}</button></th>'
        for cell in spec["head"][:-1]
    )
    rows = "".join(_line(m, spec["words"]) for m in models().values())
    n = len(models())
    return (
        '<figure class="computed models"><div class="controls">'
        + _choice(
            spec["family"], "family", [every, *((f, f) for f in families)]
        )
        + _choice(spec["kind"], "kinds", [every, *spec["kinds"].items()])
        + f'<output data-text="{escape(spec["found"])}">'
        f"{spec['found'].format(n, n)}</output></div>"
        '<div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(spec["label"])}">'
        f'<table class="tabular"><thead><tr>{head}'
        f'<th scope="col">{escape(spec["head"][-1])}</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
        f"<figcaption>{escape(spec['caption'], quote=False)}</figcaption>"
        "</figure>"
    )


# --- the calculator ------------------------------------------------------

USE = {"tokens": 131_072, "batch": 1, "ranks": 1}
CHOSEN = {"model": "llama-3.1-8b", "dtype": "bf16", "scale": "none"}
BUDGET = "80"
LIMITS = {
    **dict.fromkeys(SHAPE, 100_000),
    "tokens": 10**9,
    "batch": 10**6,
    "ranks": 10**4,
}
SCALES = ("8/16", "8/32", "16/32", "16/64", "16/128")


def shape_of(model: Model) -> dict[str, int]:
    """The shape whose forms are compared with a model: that of its layers
    with all tokens in view, if it has such, and as many of them as it has
    layers that attend."""
    attending = [g for g in model.groups if not isinstance(g, Recurrent)]
    group = max(attending, key=lambda g: type(g) is Full)
    shape = {**SHAPE, "layers": sum(g.layers for g in attending)}
    shape["heads"] = group.q_heads or SHAPE["heads"]
    if isinstance(group, Full):
        shape["kv_heads"] = group.kv_heads
        shape["head_dim"] = group.head_dim
        shape["v_head_dim"] = group.v_head_dim
    elif isinstance(group, Compressed):
        shape["kv_heads"] = 1
        shape["head_dim"] = shape["v_head_dim"] = group.dim
    elif isinstance(group, Mla):
        shape["head_dim"] = group.qk_nope_head_dim or SHAPE["head_dim"]
        shape["v_head_dim"] = group.v_head_dim or SHAPE["v_head_dim"]
        shape["kv_lora_rank"] = group.kv_lora_rank
        shape["qk_rope_head_dim"] = group.qk_rope_head_dim
    return shape


def data() -> dict[str, Any]:
    """What the calculator knows, apart from words."""
    known = {}
    for model in models().values():
        known[model.id] = {
            "name": model.name,
            "stores": [
                [g.layers, s.role, s.heads, s.widths, s.window, s.ratio]
                for g in model.groups
                for s in g.stores
            ],
            "shape": shape_of(model),
        }
        if model.shipped is not None:
            known[model.id]["shipped"] = {
                "kv": model.shipped.kv,
                "window": model.shipped.window,
                "index": model.shipped.index,
            }
    return {
        "models": known,
        "dtypes": {name: storage.bits for name, storage in DTYPES.items()},
        "fixed": {role: storage.bits for role, storage in FIXED.items()},
        "limits": LIMITS,
        "defaults": {"shape": SHAPE, "use": USE, **CHOSEN, "budget": BUDGET},
    }


def _input(words: Words, name: str, value: object) -> str:
    listed = ' list="contexts"' if name == "tokens" else ""
    return (
        f"<label><span>{escape(words[name])}</span>"
        f'<input name="{name}" value="{value}" inputmode="decimal" '
        f'autocomplete="off" spellcheck="false"{listed}></label>'
    )


def _select(words: Words, name: str, options: str) -> str:
    return (
        f"<label><span>{escape(words[name])}</span>"
        f'<select name="{name}">{options}</select></label>'
    )


def _options(values: dict[str, str], chosen: str) -> str:
    return "".join(
        f'<option value="{escape(value)}"'
        f"{' selected' if value == chosen else ''}>{escape(text)}</option>"
        for value, text in values.items()
    )


def _models_by_family(words: Words) -> str:
    families = sorted({m.family for m in models().values()}, key=str.lower)
    groups = [_options({"own": words["own"]}, CHOSEN["model"])]
    for family in families:
        members = {
            m.id: m.name for m in models().values() if m.family == family
        }
        groups.append(
            f'<optgroup label="{escape(family)}">'
            f"{_options(members, CHOSEN['model'])}</optgroup>"
        )
    return "".join(groups)


def _results(words: Words) -> tuple[str, str, str]:
    """What stands there before anything is entered, as the script has it:
    the sentence, the bars and the rows. So nothing moves when it starts."""
    model = models()[CHOSEN["model"]]
    budget = int(BUDGET) * 2**30
    forms = {model.name: model} | {
        words[name]: replace(model, groups=(group,))
        for name, group in forms_of(shape_of(model)).items()
    }
    totals = {
        name: kv_bytes(form, USE["tokens"]) for name, form in forms.items()
    }
    most = max(budget, *totals.values())
    bars = "".join(
        f'<div class="bar"><span class="name">{escape(name)}</span>'
        '<div class="track"><div class="fill" '
        f'style="width: {100 * total / most:g}%"></div></div>'
        f'<span class="value">{size(total)}</span></div>'
        for name, total in totals.items()
    )
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        f"<td>{exact(growth(form).later)}</td><td>{totals[name]:,}</td>"
        f"<td>{size(totals[name])}</td>"
        f"<td>{longest_context(form, budget):,}</td>"
        f"<td>{largest_batch(form, USE['tokens'], budget):,}</td></tr>"
        for name, form in forms.items()
    )
    said = words["said"].format(
        model.name,
        size(totals[model.name]),
        USE["batch"],
        f"{USE['tokens']:,}",
        size(budget),
    )
    return escape(said), bars, rows


def calculator(spec: dict[str, Words]) -> str:
    """words: every text of the form, of its results and of its refusals."""
    words = spec["words"]
    missing = {*SHAPE, *USE, *CHOSEN, "budget"} - set(words)
    if missing:
        raise ValueError(f"words are missing: {sorted(missing)}")
    dtypes = {name: name for name in DTYPES} | {"shipped": words["shipped"]}
    scales = {"none": words["none"]} | {
        scale: words["scaled"].format(*scale.split("/")) for scale in SCALES
    }
    chosen = shape_of(models()[CHOSEN["model"]])
    use = "".join(
        [
            _input(words, "tokens", USE["tokens"]),
            _input(words, "batch", USE["batch"]),
            _select(words, "dtype", _options(dtypes, CHOSEN["dtype"])),
            _select(words, "scale", _options(scales, CHOSEN["scale"])),
            _input(words, "budget", BUDGET),
            _input(words, "ranks", USE["ranks"]),
        ]
    )
    shape = "".join(_input(words, name, chosen[name]) for name in SHAPE)
    contexts = "".join(f'<option value="{n}">' for n in CONTEXTS)
    columns = ("form", "later", "total", "readable", "longest", "largest")
    head = "".join(f'<th scope="col">{escape(words[c])}</th>' for c in columns)
    said, bars, rows = _results(words)
    # "</" would end the script element; in JSON a slash may be escaped.
    known = json.dumps(
        {**data(), "words": words}, ensure_ascii=False, separators=(",", ":")
    ).replace("</", "<\\/")
    return (
        f'<noscript><p class="without">{escape(words["noscript"])}</p>'
        '</noscript><div class="calculator"><form>'
        f'<fieldset class="first"><legend>{escape(words["what"])}</legend>'
        f"{_select(words, 'model', _models_by_family(words))}{use}</fieldset>"
        f"<fieldset><legend>{escape(words['shape'])}</legend>{shape}</fieldset>"
        f'<datalist id="contexts">{contexts}</datalist></form>'
        '<ul class="problems" role="alert" hidden></ul>'
        f'<output class="said" aria-live="polite">{said}</output>'
        f'<div class="bars" style="--budget: 100%" aria-hidden="true">{bars}'
        "</div>"
        '<div class="scroll"><table class="tabular">'
        f'<thead><tr>{head}</tr></thead><tbody class="body">{rows}</tbody>'
        "</table></div>"
        f'<script type="application/json">{known}</script></div>'
    )
