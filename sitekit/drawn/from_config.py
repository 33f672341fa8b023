"""From a config.json to code: what is refused, what each part is worth, and
all families that are known."""

import json
from typing import Any

from attnref.released.record import attention_of, families
from attnref.released.specs import models as known_models
from attnref.words import speaking
from sitekit import ROOT
from sitekit.markdown.render import Rows, Words, render
from sitekit.released import released as models

BOUND = 2e-6  # of the relative error against transformers, which a test holds


def released(
    *, language: str, what: str, caption: str, head: list[object]
) -> str:
    made = {"refused": refused, "parts": parts, "families": known}
    rows = made[what](language)
    text = caption.format(**counts())
    return render(
        "table", caption=text, head=head, rows=rows, words=Words(None)
    )


def numbers() -> dict[str, object]:
    """Of how many models the file has every layer."""
    every = [*known_models().values()]
    nothing = {"mlp", "moe"}  # feed-forward layers mix no tokens
    files = {n: m for n, m in models.released().items() if {*m.left} <= nothing}
    year = max(model.date for model in every)[:4]
    recent = [model.id for model in every if model.date.startswith(year)]
    return {
        "models": len(every),
        "whole": len(files),
        "year": year,
        "recent": len(recent),
        "recent_whole": len({*recent} & files.keys()),
    }


def counts() -> dict[str, Any]:
    """What the page says of the families in numbers."""
    lines = [row["lines"] for row in _record().values()]
    return {
        "families": len(lines),
        "bound": f"{BOUND:.0e}",
        "shortest": min(lines),
        "longest": max(lines),
    }


def _record() -> dict[str, Any]:
    """As tests/released/oracles/test_families.py wrote it."""
    path = ROOT / "sitekit/drawn/families.json"
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if record.keys() != families().keys():
        raise ValueError(f"{path.name} is not of these families: record it")
    return record


def refused(language: str) -> Rows:
    """What is changed in the config of a model, and what one is told: by the
    command, in the language of the page."""
    config = models.released()["llama-3.3-70b"].config
    changes = (
        {"model_type": "kimi_k3"},
        {"rope_scaling": {"type": "dynamic"}},
        {"attn_logit_softcapping": 50.0},
        {"use_new_attention": True},
    )
    rows: Rows = []
    for change in changes:
        try:
            with speaking(language):
                attention_of(config | change)
        except ValueError as error:
            ((key, value),) = change.items()
            rows.append([f"`{key}: {json.dumps(value)}`", str(error)])
    if len(rows) != len(changes):
        raise ValueError("a config that should be refused is read")
    return rows


def parts(language: str) -> Rows:
    """Each part left out once, of the first model that has it."""
    first: dict[str, tuple[float, str]] = {}
    having: dict[str, int] = {}
    for model in models.released().values():
        for part, error in models.losses(model.records).items():
            having[part] = having.get(part, 0) + 1
            place = f"[{model.name}](released/{model.id}.md)"
            first.setdefault(part, (error, place))
    return [
        [
            models.part_word(part, "lost", language),
            place,
            f"{error:.2g}",
            str(having[part]),
        ]
        for part, (error, place) in sorted(
            first.items(), key=lambda item: -item[1][0]
        )
    ]


def known(language: str) -> Rows:
    join = models.word("join", language)
    return [
        [
            f"`{family}`",
            f"{row['error']:.0e}",
            str(row["lines"]),
            join.join(f"`{kind}`" for kind in row["without"]),
            join.join(
                models.part_word(part, "name", language)
                for part in row["parts"]
            )
            or "Llama",
        ]
        for family, row in sorted(_record().items())
    ]
