"""The table of released models, which can be sorted and filtered, what the
names of its parts mean, and a strip per model with a cell per layer."""

from collections import ChainMap, Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

from markupsafe import Markup

from attnref.commands.kv import CONTEXTS, describe
from attnref.numbers.kv_memory import growth, kv_bytes, size, state_bytes
from attnref.numbers.shapes import Chunked, Compressed, Full, Group, Mla, Model, Recurrent, Sliding
from attnref.released.parts import PARTS, sentence
from attnref.released.specs import find_model
from attnref.released.specs import models as known
from sitekit.drawing.strips import KINDS, Cells, paths
from sitekit.markdown.render import Cell, Row, Sorted, Words, render
from sitekit.markdown.tables import links
from sitekit.released import released as models
from sitekit.released.told import heads

HEADS = {"grouped", "wide", "narrow_v"}  # what the heads say
ROPE = "no_rope", "alibi", "theta", "partial", "interleaved", "scaled"
SPANS = "window", "chunk"
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
    *, language: str, caption: str, head: list[str], kinds: dict[str, str], words: dict[str, str]
) -> str:
    """All models, newest first, those without a page after the others. All
    numbers are in the page: its script only sorts and filters."""
    texts, names, paged = Words(words), Words(kinds), models.released()
    # Without a month: after those of its year that have one.
    newest_first = sorted(known().values(), key=lambda m: (m.id in paged, m.date), reverse=True)
    names.used.update(*map(kinds_of, newest_first))
    names.check("kinds")
    parts = {
        part: models.part_word(part, "name", language)
        for part in PARTS
        if sum(part in x.parts for x in paged.values()) not in (0, len(paged))
    }
    rows = [_row(model, language, texts) for model in newest_first]
    return render(
        "released",
        caption=caption,
        head=head,
        rows=rows,
        views=[view for view in VIEWS if view],
        names={name: view for view, names_of_view in VIEWS.items() for name in names_of_view},
        sorts=SORTS,
        models=newest_first,
        strips=[Markup(_strip(model, language)) for model in newest_first],
        held=[[*kinds_of(x), *(paged[x.id].parts if x.id in paged else ())] for x in newest_first],
        words=texts,
        kinds=kinds,
        parts={n: name for n, name in parts.items() if n not in AS_KINDS},
        meanings=list(_meanings(paged.values(), parts, language)),
        makers=sorted({model.family for model in newest_first}),
    )


def _meanings(
    pages: Iterable[models.Released], parts: dict[str, str], language: str
) -> Iterator[Row]:
    """Each part, with the sentence of the first model that has it."""
    for part, name in parts.items():
        model = next(model for model in pages if part in model.parts)
        meaning = sentence(part, model.records, models.words(), language)
        yield [name, meaning, f"[{model.name}](released/{model.id}.md)"]


def _strip(model: Model, language: str) -> str:
    if model.id in models.released():
        return models.strip(models.released()[model.id], language)
    strip, is_ordered = cells(model)
    html = models.strip_of([kind for kind, _ in strip], language)
    return html if is_ordered else html.replace('"strip"', '"strip unordered"')


def _row(model: Model, language: str, words: Words) -> list[Cell]:
    per_token, state = growth(model), state_bytes(model)
    page = models.released().get(model.id)
    name: str = model.name
    about: list[Cell] = [*["–"] * len(VIEWS["attention"])]
    if page:
        name = f"[{name}](released/{model.id}.md)"
        name += page.full_name(language).removeprefix(model.name)
        about = _about(page, language, words)
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
        Sorted(float(per_token.first), size(per_token.first)),
        *about,
        Sorted(float(per_token.later), size(per_token.later)),
        Sorted(state, size(state) if state else "–"),
        *(Sorted(n := kv_bytes(model, t), size(n), _beyond(model, t)) for t in CONTEXTS),
        [_describe(group, words) for group in model.groups],
        Sorted(month, model.date),
        Sorted(model.max_context, context),
        Sorted(model.params or 0, params),
        words[model.confidence],
        place if page else " ".join(links(x) for x in model.sources),
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
    mixers = {mixer.kind for mixer in model.reading.mixers.values()}
    seen = max((x.window or x.chunk or 0) for x in model.attends.values())
    shapes = words["join"].join(map(heads, models.kinds_of(model)))
    return [
        f"`{model.config['model_type']}`",
        Sorted(r.n_heads, shapes),
        named({*ROPE}),
        Sorted(seen, f"{seen:,}" if seen else "–"),
        named({*PARTS} - HEADS - {*ROPE} - {*SPANS}, sorted(mixers)),
        Sorted(model.lines, str(model.lines)),
    ]


NAMES_OF_GROUPS = {Mla: "MLA", Compressed: "shared", Recurrent: "state"}


def kinds_of(model: Model) -> list[str]:
    """What a model's attention is made of, for the filter."""
    result = set()
    for group in model.groups:
        if isinstance(group, Full):
            result.add(group.variant)
            if group.window is not None:
                result.add("window")
        elif not (isinstance(group, Recurrent) and group.beside):
            result.add(NAMES_OF_GROUPS[type(group)])
        if any(store.role == "index" for store in group.stores):
            result.add("index")
    return sorted(result)


def _describe(group: Group, words: Words) -> str:
    """`52 × GQA 32/16 · 128, window 1,024`, in the page's words."""
    signs = {"by": " × ", "heads": " · {}", "and": "/"}
    return f"{group.layers} × {describe(group, ChainMap(signs, words))}"


# The order, where a rule is known: this unit, repeated. test_caches.py of the
# oracles holds it against the configuration that transformers makes for so many
# layers. Of all other models with layers of several kinds, only their numbers
# are known.
UNITS = {
    "WF": "gemma-2-2b gemma-2-9b gemma-2-27b gpt-oss-120b gpt-oss-20b",
    "WWWF": "command-r7b command-a exaone-4.0-32b olmo-3-7b olmo-3-32b olmo-3.1-32b",
    "WWWWWF": "gemma-3-4b gemma-3-12b gemma-3-27b gemma-4-31b gemma-4-26b inkling",
    "FWWWWF" + 7 * "WWWWWF": "mimo-v2.5",
    "CCCF": "llama-4-scout",
    "RRRF": "qwen3-next-80b olmo-hybrid-7b qwen3.5-397b qwen3.5-9b qwen3.5-27b qwen3.5-35b-a3b",
}
RULES = {id: unit for unit, ids in UNITS.items() for id in ids.split()}
REUSE = {"gemma-4-e2b": 20}  # layers that read what others store


def letter(group: Group) -> str:
    """Which tokens it stores: all, a window, or none but a state."""
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
        rows.append((model, ordered, len(strip), paths(strip), text))
    longest = max(n for _, _, n, _, _ in rows)
    legend = [
        (paths([(kind, False)] * 3), worded[f"{name}_means"])
        for kind, (name, _) in KINDS.items()
        if f"{name}_means" in words
    ]
    if "index_means" in words:
        legend.append((paths([("L", True)] * 3), worded["index_means"]))
    return render(
        "strips", words=worded, strips=rows, longest=longest, legend=legend, caption=caption
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
