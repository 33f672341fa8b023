"""Your model: what a config.json says, first of one, then of any that is
entered. The script of the page is made of the Python that writes it here. And
what is refused, what each part is worth, and all families that are known."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from attnref.released import record
from attnref.released.devices import devices
from attnref.released.generate import source, sources
from attnref.released.record import attention_of, families
from attnref.released.specs import models as known_models
from attnref.words import origin, speaking
from sitekit import ROOT
from sitekit.drawn.operations import GPUS
from sitekit.drawn.released import KINDS, drawn
from sitekit.markdown.render import Rows, Words, render
from sitekit.released import released as models
from sitekit.released import told
from sitekit.released.javascript import Table, bundle, of_table, string, strings
from sitekit.released.jinja import of_templates

FIRST = "qwen3-8b"
RANKS = 1, 2, 4, 8, 16, 32
BOUND = 2e-6  # of the relative error against transformers, which a test holds
CHOSEN: dict[str, Any] = {
    "device": "h100",
    "ranks": 1,
    "weights": "bf16",
    "cache": "bf16",
}
CHOSEN |= {"tokens": 32_768}
SENTENCES = "weighs", "uncounted", "fits", "none", "step"
REFUSALS = (
    *("empty", "html", "place", "quotes"),
    *("comma", "json", "offline", "object", "unknown"),
)


def yours(
    *,
    language: str,
    part: str,
    head: list[str] | None = None,
    caption: str = "",
    words: dict[str, str] | None = None,
) -> str:
    """A part of the page, as it is for the first model."""
    own, data = Words(words), told.answer(text(), models.words(), language)
    facts: dict[str, Any] = {"part": part, "words": own, "caption": caption}
    if part == "form":
        facts["models"] = {m.id: m.name for m in models.released().values()}
        facts["text"], facts["first"] = text(), FIRST
        facts["known"] = {"words": _words(language), "kinds": KINDS}
        facts["known"]["refusals"] = {name: own[name] for name in REFUSALS}
    if part == "card":
        strip = drawn([(letter, False) for letter in data["letters"]])
        facts |= {"strip": strip, "said": data}
        facts["card"] = models.card(
            models.released()[FIRST].name,
            told.counted(text()),
            data["whole"],
            language,
            [*devices()],
            RANKS,
            computes=True,
        )
    if part == "layers":
        facts |= {"said": data, "head": head}
    if part == "rope":
        facts |= {"curves": data["curves"], "label": own["label"]}
        facts["ticks"] = [
            (told.HEIGHT - 10 * n, f"1e{n}") for n in (1, 3, 5, 7)
        ]
        facts["sentences"] = [
            own["turns"].format(*ends) for _, _, *ends in data["curves"]
        ]
        facts["known"] = {"turns": own["turns"]}
    if part == "differs":
        first = models.released()[FIRST]
        lost = models.losses(first.records)
        facts["list"] = models.listed(first.records, lost, language)
        facts["nothing"], facts["model"] = not data["differs"], first.name
        facts["known"] = _losses(language)
    if part == "memory":
        facts["found"] = told.memory(told.counted(text()), use(), own)
        facts["head"] = head
        facts["known"] = {
            "whole": data["whole"],
            "words": {name: own[name] for name in SENTENCES},
            "devices": {
                id: [device.mib, GPUS[id].bandwidth if id in GPUS else None]
                for id, device in devices().items()
            },
        }
    return render("yours", **facts)


def use(**changed: Any) -> told.Use:
    chosen = CHOSEN | changed
    gpu = GPUS.get(chosen["device"])
    return told.Use(
        mib=devices()[chosen.pop("device")].mib,
        bandwidth=gpu.bandwidth if gpu else None,
        **chosen,
    )


def _words(language: str) -> dict[str, Any]:
    """Of released.yml, in one language."""
    every = models.words()
    page = {n: every["page"][n] for n in ("join", "some")}
    parts = {n: {"differs": p["differs"]} for n, p in every["parts"].items()}
    others = {n: every[n] for n in ("letters", "kinds", "norms", "gates")}

    def of_one(value: Any) -> Any:
        if isinstance(value, dict) and language in value:
            return {language: value[language]}
        return {name: of_one(each) for name, each in value.items()}

    return dict(of_one({"page": page, "parts": parts, **others}))


def text() -> str:
    """The config.json of the first model."""
    return written(models.released()[FIRST].config)


def written(config: dict[str, Any]) -> str:
    return json.dumps(config, indent=2, ensure_ascii=False, sort_keys=True)


@cache
def script() -> str:
    """assets/record.js: the record, the file and the numbers of a config."""
    roots = ["answer", "read", "lines_of"]
    roots += ["counted", "card", "memory", "Use"]
    return bundle(
        [("sitekit.released.told", name) for name in roots],
        {
            **_table().functions,
            "attnref.released.generate.template": of_templates(
                {name: source(name) for name in sources()}
            ),
            "attnref.words.chinese": "()=>$.dict([])",
            "attnref.words.origin": f"()=>{json.dumps(origin())}",
        },
    )


@cache
def _table() -> Table:
    own = Path(str(record.__file__))
    return of_table(*map(own.with_name, ("sizes.toml", "families.toml")))


def configs() -> str:
    """assets/configs.js: what is data, the table of families and the
    config.json of each model to choose."""
    # A text each: 1e6 is not 1000000 in a file that is made of it.
    texts = {
        id: json.dumps(
            model.config,
            ensure_ascii=False,
            separators=(",", ":"),
            sort_keys=True,  # a twentieth less to download
        )
        for id, model in models.released().items()
    }
    families = string(_table().entries)
    return f"const familiesTable={families};\nconst configs={strings(texts)};\n"


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
    first: dict[str, tuple[float, models.Released]] = {}
    for model in models.released().values():
        for part, error in models.losses(model.records).items():
            first.setdefault(part, (error, model))
    having = [m.parts for m in models.released().values()]
    return [
        [
            models.part_word(part, "lost", language),
            f"[{model.name}](released/{model.id}.md)",
            f"{error:.2g}",
            str(sum(part in parts for parts in having)),
        ]
        for part, (error, model) in sorted(
            first.items(), key=lambda item: -item[1][0]
        )
    ]


def _losses(language: str) -> dict[str, Any]:
    """What the output of each released model loses with each part, and of a
    config that is none of them, that of the first model of its family."""
    every = models.released().values()
    losses = {
        model.id: {
            part: float(f"{error:.2g}")
            for part, error in models.losses(model.records).items()
        }
        for model in every
    }
    return {
        "losses": losses,
        "first": {model.family: model.id for model in reversed([*every])},
        "loaders": {
            part: models.part_word(part, "lost", language)
            for part in {p: None for lost in losses.values() for p in lost}
        },
        "damage": models.word("damage", language, loader="{}", n="{}"),
        "lines": models.word("lines", language, n="{}"),
        "few": models.FEW,
    }


def _names(row: dict[str, Any], language: str) -> Iterator[str]:
    kinds = models.words()["layers"]
    yield from (kinds[kind][language] for kind in row["mixers"])
    for part in row["parts"]:
        yield models.part_word(part, "name", language)


def known(language: str) -> Rows:
    join = models.word("join", language)
    return [
        [
            f"`{family}`",
            f"{row['error']:.0e}",
            str(row["lines"]),
            join.join(f"`{kind}`" for kind in row["without"]),
            join.join(_names(row, language)) or "–",
        ]
        for family, row in sorted(_record().items())
    ]
