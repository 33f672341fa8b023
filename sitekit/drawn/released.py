"""The table of released models, which can be sorted and filtered, what the
names of its parts mean, and a strip per model with a cell per layer."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

from markupsafe import Markup

from attnref.numbers.kv_memory import size
from attnref.numbers.shapes import (
    Chunked,
    Compressed,
    Group,
    Mla,
    Model,
    Recurrent,
    Sliding,
)
from attnref.released.specs import find_model
from attnref.released.specs import models as known
from sitekit.markdown.render import Cell, Row, Sorted, Words, render
from sitekit.released import released as models
from sitekit.released.told import PARTS, heads, sentence

HEADS = {"grouped", "wide", "narrow_v"}  # what the heads say
ROPE = "no_rope", "alibi", "theta", "partial", "interleaved", "scaled"
SEEN = "window", "chunk"


def released(
    *, language: str, caption: str, head: list[str], words: dict[str, str]
) -> str:
    """All numbers are in the page: its script only sorts and filters."""
    worded = Words(words)
    every = [*models.released().values()]
    listed = [
        (
            _row(model, language, worded),
            Markup(models.strip(model, language)),
            model,
        )
        for model in every
    ]
    parts = {
        part: models.part_word(part, "name", language)
        for part in PARTS
        if sum(part in model.parts for model in every) not in (0, len(every))
    }
    return render(
        "released",
        caption=caption,
        head=head,
        rows=[[*row, ""] for row, _, _ in listed],
        listed=listed,
        words=worded,
        parts=parts,
        meanings=list(_meanings(every, parts, language)),
        makers={name: name for name in sorted({*map(_maker, every)})},
        maker=_maker,
    )


def _meanings(
    every: Iterable[models.Released], parts: dict[str, str], language: str
) -> Iterator[Row]:
    """Of each part the sentence on the page of the first model with it."""
    for part, name in parts.items():
        model = next(model for model in every if part in model.parts)
        meaning = sentence(part, model.records, models.words(), language)
        yield [name, meaning, f"[{model.name}](released/{model.id}.md)"]


def _maker(model: models.Released) -> str:
    return model.model.family


def _row(model: models.Released, language: str, words: Words) -> list[Cell]:
    r = next(iter(model.attends.values()))

    def named(parts: object) -> str:
        shown = [part for part in model.parts if part in parts]  # type: ignore[operator]
        names = (models.part_word(part, "name", language) for part in shown)
        return words["join"].join(names) or words["none"]

    seen = max((x.window or x.chunk or 0) for x in model.attends.values())
    others = {*PARTS} - HEADS - {*ROPE} - {*SEEN}
    name = f"[{model.name}](released/{model.id}.md)"
    name += model.called(language).removeprefix(model.name)
    shapes = words["join"].join(map(heads, models.kinds_of(model)))
    bytes = models.per_token(model)
    return [
        name,
        f"`{r.family}`",
        Sorted(r.n_heads, shapes),
        named({*ROPE}),
        Sorted(seen, f"{seen:,}" if seen else words["none"]),
        named(others),
        Sorted(bytes, size(bytes)),
        Sorted(model.lines, str(model.lines)),
    ]


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


def strips(
    *, caption: str, words: dict[str, str], ids: Iterable[str] = ()
) -> str:
    """Of these models, or of all."""
    worded, rows = Words(words), []
    for model in map(find_model, ids or known()):
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
