"""The table of released models, which can be sorted and filtered, and what the
names of its parts mean."""

from collections.abc import Iterable, Iterator

from markupsafe import Markup

from attnref.numbers.kv_memory import size
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
