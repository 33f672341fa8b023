"""What engines of attention do, as `make engines` has recorded it."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from attnref.judge.conform import ABSENT, OTHER, REFUSED, Behaviour, behaviours
from attnref.judge.histories import N_HISTORIES
from sitekit import ROOT
from sitekit.markdown import source
from sitekit.markdown.render import Cell, Row, Word

RECORD = ROOT / "sitekit/drawn/engines.json"


@cache
def record() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(source.text_of(RECORD))
    return result


def numbers() -> dict[str, Any]:
    caches = [x for x in behaviours().values() if x.call == "cache"]
    return {
        "behaviours": len(behaviours()) - len(caches),
        "histories": N_HISTORIES,
        "date": record()["date"],
    }


def _answers(behaviour: str) -> dict[str, str]:
    return {x: y[behaviour][0] for x, y in record()["answers"].items()}


def _named(behaviour: str) -> set[str]:
    """The answers apart from refusals."""
    return {x for x in _answers(behaviour).values() if x not in (ABSENT, REFUSED)}


def _link(behaviour: Behaviour) -> str:
    return f"[{behaviour.id}](page:{behaviour.page})"


def _word(answer: str) -> str | Word:
    if answer in (OTHER, REFUSED):
        return Word(answer)
    return "–" if answer == ABSENT else answer


def versions() -> Iterator[Row]:
    for library, version in record()["versions"].items():
        names = [x for x in record()["answers"] if x.split("_")[0] == library]
        yield [f"{library} {version}", ", ".join(names)]


def differ() -> Iterator[Row]:
    """Where two engines give different answers: a column for each engine."""
    for id, behaviour in behaviours().items():
        if len(_named(id)) > 1:
            cells: list[Cell] = [_word(x) for x in _answers(id).values()]
            yield [_link(behaviour), *cells]


def questions() -> Iterator[Row]:
    """What each behaviour asks, and the answers that engines gave."""
    for id, behaviour in behaviours().items():
        if behaviour.call == "cache":
            continue
        answers = sorted(_named(id) - {OTHER})
        yield [_link(behaviour), behaviour.text, ", ".join(answers) or "–"]


def agree() -> Iterator[Row]:
    """Where all that answer agree: the answer, and who refuses."""
    for id, behaviour in behaviours().items():
        if len(_named(id)) == 1:
            answers = _answers(id)
            refusing = [x for x, y in answers.items() if y == REFUSED]
            absent = [x for x, y in answers.items() if y == ABSENT]
            count = f"{len(answers) - len(refusing) - len(absent)}"
            row: Row = [_link(behaviour), *_named(id), count]
            yield [*row, ", ".join(refusing) or "–"]


def refusals() -> Iterator[Row]:
    """Each refusal in the engine's own words; the same ones in one row."""
    rows = dict[tuple[str, str], list[str]]()
    for engine, answers in record()["answers"].items():
        for behaviour, (answer, _, words) in answers.items():
            if answer == REFUSED:
                rows.setdefault((engine, words), []).append(behaviour)
    for (engine, words), ids in rows.items():
        yield [engine, ", ".join(ids), f"`{words.replace('`', chr(39))}`"]
