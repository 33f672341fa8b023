"""The table of released models, which can be sorted and filtered, what the
names of its parts mean, and a strip per model with a cell per layer."""

from collections import ChainMap, Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

from markupsafe import Markup

from attnref.commands.kv import CONTEXTS, describe
from attnref.numbers.kv_memory import growth, kv_bytes, size, state_bytes
from attnref.numbers.shapes import (
    Chunked,
    Compressed,
    Full,
    Group,
    Mla,
    Model,
    Recurrent,
    Sliding,
)
from attnref.released.record import fields_of, mixers_of
from attnref.released.specs import find_model
from attnref.released.specs import models as known
from sitekit.markdown.render import Cell, Row, Sorted, Words, render
from sitekit.markdown.tables import links
from sitekit.released import released as models
from sitekit.released.told import PARTS, heads, sentence

HEADS = {"grouped", "wide", "narrow_v"}  # what the heads say
ROPE = "no_rope", "alibi", "theta", "partial", "interleaved", "scaled"
SEEN = "window", "chunk"
AS_KINDS = {"mla", "indexer", "blocks", "grouped", "window"}
SORTS = "", "name", "token", "-token", "-context", "-params"
# The columns, by name; those of a view after those that each view has.
VIEWS = {
    "": ("name", "strip", "token"),
    "attention": ("type", "heads", "rope", "window", "parts", "lines"),
    "memory": ("later", "state", *map(str, CONTEXTS), "groups"),
    "sources": ("date", "context", "params", "confidence", "source"),
}


def released(
    *,
    language: str,
    caption: str,
    head: list[str],
    kinds: dict[str, str],
    words: dict[str, str],
) -> str:
    """All models, newest first. All numbers are in the page: its script only
    sorts and filters."""
    worded, names, paged = Words(words), Words(kinds), models.released()
    # Without a month: after those of its year that have one.
    every = sorted(known().values(), key=lambda m: m.date, reverse=True)
    names.used.update(*map(kinds_of, every))
    names.check("kinds")
    parts = {
        part: models.part_word(part, "name", language)
        for part in PARTS
        if sum(part in x.parts for x in paged.values()) not in (0, len(paged))
    }
    rows = [_row(model, language, worded) for model in every]
    return render(
        "released",
        caption=caption,
        head=head,
        rows=rows,
        views=[view for view in VIEWS if view],
        names={name: view for view, its in VIEWS.items() for name in its},
        sorts=SORTS,
        models=every,
        strips=[Markup(_strip(model, language)) for model in every],
        held=[
            [*kinds_of(x), *(paged[x.id].parts if x.id in paged else ())]
            for x in every
        ],
        words=worded,
        kinds=kinds,
        parts={n: name for n, name in parts.items() if n not in AS_KINDS},
        meanings=list(_meanings(paged.values(), parts, language)),
        makers=sorted({model.family for model in every}),
    )


def _meanings(
    every: Iterable[models.Released], parts: dict[str, str], language: str
) -> Iterator[Row]:
    """Of each part the sentence on the page of the first model with it."""
    for part, name in parts.items():
        model = next(model for model in every if part in model.parts)
        meaning = sentence(part, model.records, models.words(), language)
        yield [name, meaning, f"[{model.name}](released/{model.id}.md)"]


def _strip(model: Model, language: str) -> str:
    if model.id in models.released():
        return models.strip(models.released()[model.id], language)
    strip, ordered = cells(model)
    html = models.strip_of([kind for kind, _ in strip], language)
    return html if ordered else html.replace('"strip"', '"strip unordered"')


def _row(model: Model, language: str, words: Words) -> list[Cell]:
    added, state = growth(model), state_bytes(model)
    own = models.released().get(model.id)
    name: str = model.name
    about: list[Cell] = [*["–"] * len(VIEWS["attention"])]
    if own:
        name = f"[{name}](released/{model.id}.md)"
        name += own.called(language).removeprefix(model.name)
        about = _about(own, language, words)
    context, params = f"{model.max_context:,}", "–"
    if model.context is not None:
        context = f"[{context}]({model.context.url})"
    if model.params is not None and model.params_in is not None:
        params = f"{float(f'{model.params / 1e9:.4g}'):,g}B"
        if model.params_in not in model.sources:  # which stand in the row
            params = f"[{params}]({model.params_in.url})"
    month = float(model.date.replace("-", "."))
    # A page tells the sources of its config.
    place = f"[config.json](released/{model.id}.md#sources)"
    return [
        name,
        "",
        Sorted(float(added.first), size(added.first)),
        *about,
        Sorted(float(added.later), size(added.later)),
        Sorted(state, size(state) if state else "–"),
        *(
            Sorted(n := kv_bytes(model, t), size(n), _beyond(model, t))
            for t in CONTEXTS
        ),
        [_described(group, words) for group in model.groups],
        Sorted(month, model.date),
        Sorted(model.max_context, context),
        Sorted(model.params or 0, params),
        words[model.confidence],
        place if own else " ".join(links(x) for x in model.sources),
    ]


def _beyond(model: Model, tokens: int) -> str:
    return "beyond" if tokens > model.max_context else ""


def _about(model: models.Released, language: str, words: Words) -> list[Cell]:
    """What its config says of its attention."""

    def named(parts: set[str], kinds: Iterable[str] = ()) -> str:
        shown = [part for part in model.parts if part in parts]
        names = [models.words()["layers"][kind][language] for kind in kinds]
        names += [models.part_word(part, "name", language) for part in shown]
        return words["join"].join(names) or "–"

    r = next(iter(model.attends.values()))
    mixers = {m.kind for m in mixers_of(fields_of(model.config)).values()}
    seen = max((x.window or x.chunk or 0) for x in model.attends.values())
    shapes = words["join"].join(map(heads, models.kinds_of(model)))
    return [
        f"`{model.config['model_type']}`",
        Sorted(r.n_heads, shapes),
        named({*ROPE}),
        Sorted(seen, f"{seen:,}" if seen else "–"),
        named({*PARTS} - HEADS - {*ROPE} - {*SEEN}, sorted(mixers)),
        Sorted(model.lines, str(model.lines)),
    ]


OTHERS = {Mla: "MLA", Compressed: "shared", Recurrent: "state"}


def kinds_of(model: Model) -> list[str]:
    """What a model's attention is made of, for the filter."""
    result = set()
    for group in model.groups:
        if isinstance(group, Full):
            result.add(group.variant)
            if group.window is not None:
                result.add("window")
        elif not (isinstance(group, Recurrent) and group.beside):
            result.add(OTHERS[type(group)])
        if any(store.role == "index" for store in group.stores):
            result.add("index")
    return sorted(result)


def _described(group: Group, words: Words) -> str:
    """`52 × GQA 32/16 · 128, window 1,024`, in the page's words."""
    short = {"by": " × ", "heads": " · {}", "and": "/"}
    return f"{group.layers} × {describe(group, ChainMap(short, words))}"


# The order, where a rule is known: this unit, repeated. test_caches.py of the
# oracles holds it against the configuration that transformers makes for so many
# layers. Of all other models with layers of several kinds, only their numbers
# are known.
UNITS = {
    "WF": "gemma-2-2b gemma-2-9b gemma-2-27b gpt-oss-120b gpt-oss-20b",
    "WWWF": "command-r7b command-a exaone-4.0-32b olmo-3-7b olmo-3-32b"
    " olmo-3.1-32b",
    "WWWWWF": "gemma-3-4b gemma-3-12b gemma-3-27b gemma-4-31b gemma-4-26b"
    " inkling",
    "FWWWWF" + 7 * "WWWWWF": "mimo-v2.5",
    "CCCF": "llama-4-scout",
    "RRRF": "qwen3-next-80b olmo-hybrid-7b qwen3.5-397b qwen3.5-9b qwen3.5-27b"
    " qwen3.5-35b-a3b",
}
RULES = {id: unit for unit, ids in UNITS.items() for id in ids.split()}
REUSE = {"gemma-4-e2b": 20}  # layers that read what others store

# A letter for each kind, and for each of its strokes the middle and the width,
# of a height of 10: told apart without colour, too.
KINDS: dict[str, tuple[str, list[tuple[float, float]]]] = {
    "F": ("full", [(5, 10)]),
    "W": ("window", [(7.5, 5)]),
    "C": ("chunk", [(6, 2), (9, 2)]),
    "L": ("latent", [(2.2, 4.4), (7.8, 4.4)]),
    "K": ("compressed", [(3.5, 1.6), (6, 1.6), (8.5, 1.6)]),
    "R": ("recurrent", [(9, 2)]),
    "S": ("shared", [(9.6, 0.8)]),
}


def letter(group: Group) -> str:
    """Of the tokens that it stores: all, a window, or none but a state."""
    match group:
        case Recurrent():
            return "R"
        case Mla():
            return "L"
        case Chunked():
            return "C"
        case Sliding() | Compressed(ratio=None):
            return "W"
        case Compressed():
            return "K"
    return "F"


Cells = list[tuple[str, bool]]  # and whether an indexer selects what it reads


def cells(model: Model) -> tuple[Cells, bool]:
    """A cell per layer, and whether their order is known: else they stand in
    groups, which the file of models has in no order."""
    if unit := RULES.get(model.id):
        return [(k, False) for k in (unit * model.layers)[: model.layers]], True
    result = [
        (letter(group), bool(getattr(group, "index_dim", 0)))
        for group in model.groups
        if not getattr(group, "beside", False)
        for _ in range(group.layers)
    ]
    result += [("S", False)] * REUSE.get(model.id, 0)
    return result, len({*result}) == 1


def drawn(strip: Cells) -> Markup:
    """Paths: of each kind its runs, which the style cuts into layers."""
    runs: dict[tuple[str, float, float], str] = {}

    def stroke(name: str, y: float, wide: float, at: int, long: int) -> None:
        place = f"M{at} {y:g}h{long}"
        key = (name, y, wide)
        runs[key] = runs.get(key, "") + place

    at = 0
    for (kind, selected), run in groupby(strip):
        name, strokes = KINDS[kind]
        long = len([*run])
        for y, wide in strokes:
            stroke(name, y, wide, at, long)
        if selected:
            stroke("index", 5, 2, at, long)
        at += long
    return Markup("").join(
        Markup(f'<path class="{name}" stroke-width="{wide:g}" d="{d}"/>')
        for (name, _, wide), d in runs.items()
    )


def strips(*, caption: str, words: dict[str, str], ids: Iterable[str]) -> str:
    """Of these models."""
    worded, rows = Words(words), []
    for model in map(find_model, ids):
        strip, ordered = cells(model)
        parts = Counter(kind for kind, _ in strip)
        phrases = [f"{n} {worded[KINDS[kind][0]]}" for kind, n in parts.items()]
        if selected := sum(chosen for _, chosen in strip):
            phrases.append(worded["selected"].format(selected))
        text = worded["join"].join(phrases)
        rows.append((model, ordered, len(strip), drawn(strip), text))
    longest = max(n for _, _, n, _, _ in rows)
    legend = [
        (drawn([(kind, False)] * 3), worded[f"{name}_means"])
        for kind, (name, _) in KINDS.items()
        if f"{name}_means" in words
    ]
    if "index_means" in words:
        legend.append((drawn([("L", True)] * 3), worded["index_means"]))
    return render(
        "strips",
        words=worded,
        strips=rows,
        longest=longest,
        legend=legend,
        caption=caption,
    )


def patterns() -> Iterator[Row]:
    """Models by the unit that they repeat."""
    result: dict[str, list[str]] = {}
    for id, unit in RULES.items():
        runs = [f"{len([*run])} {kind}" for kind, run in groupby(unit)]
        # All but one begin with their unit; the last repeats it in the end.
        result.setdefault(" + ".join(runs[-2:]), []).append(known()[id].name)
    for unit, names in result.items():
        yield [unit, ", ".join(names)]
