"""Your model: what a config.json says, first of one, then of any that is
entered. The script of the page is made of the Python that writes it here. And
what is refused, what each part is worth, and all families that are known."""

import json
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from attnref.released import record
from attnref.released.devices import devices
from attnref.released.difference import difference
from attnref.released.generate import source, sources
from attnref.released.record import attention_of, families
from attnref.released.specs import models as known_models
from attnref.words import chinese, origin, speaking
from sitekit import ROOT
from sitekit.drawing.strips import KINDS, paths
from sitekit.drawn.operations import GPUS
from sitekit.markdown.render import Rows, Word, Words, render
from sitekit.released import released as models
from sitekit.released import told
from sitekit.released.javascript import Table, bundle, of_table, string, strings
from sitekit.released.jinja import of_templates

FIRST = "qwen3-8b"
RANKS = 1, 2, 4, 8, 16, 32
BOUND = 2e-6  # of the relative error against transformers, which a test holds
CHOSEN: dict[str, Any] = {"device": "h100", "ranks": 1, "weights": "bf16", "cache": "bf16"}
CHOSEN |= {"tokens": 32_768}
SENTENCES = "weighs", "uncounted", "fits", "none", "step", "state"
OTHERS = "letters", "kinds", "norms", "gates", "keys", "join", "some"
FILTERS = "$,$b,when,unless,otherwise"  # what compiled templates read
REFUSALS = (
    *("empty", "html", "place", "quotes"),
    *("comma", "json", "offline", "object", "unknown", "blank"),
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
    texts, data = Words(words), told.answer(text(), models.words(), language)
    facts: dict[str, Any] = {"part": part, "words": texts, "caption": caption}
    if part == "form":
        facts["models"] = {m.id: m.name for m in models.released().values()}
        facts["text"], facts["first"] = text(), FIRST
        facts["known"] = {"words": _words(language), "kinds": KINDS}
        facts["known"]["refusals"] = {name: texts[name] for name in REFUSALS}
    if part == "card":
        strip = paths([(letter, False) for letter in data["letters"]])
        facts |= {"strip": strip, "said": data}
        facts["card"] = models.card(
            models.released()[FIRST].name,
            told.counted(text()),
            data["reused"],
            language,
            [*devices()],
            RANKS,
            computes=True,
        )
    if part == "layers":
        facts |= {"said": data, "head": head}
    if part == "rope":
        facts |= {"curves": data["curves"], "label": texts["label"]}
        facts["ticks"] = [(told.HEIGHT - 10 * n, f"1e{n}") for n in (1, 3, 5, 7)]
        facts["sentences"] = [texts["turns"].format(*ends) for _, _, *ends in data["curves"]]
        facts["known"] = {"turns": texts["turns"]}
    if part == "differs":
        first = models.released()[FIRST]
        losses = models.losses(first.records)
        facts["list"] = models.list_differences(first.records, losses, language)
        facts["nothing"], facts["model"] = not data["differs"], first.name
        facts["known"] = _losses(language)
    if part == "memory":
        facts["found"] = told.memory(told.counted(text()), told.Stored([]), use(), texts)
        facts["head"] = head
        facts["known"] = {
            "reused": data["reused"],
            "words": {name: texts[name] for name in SENTENCES},
            "devices": {
                id: [device.mib, GPUS[id].bandwidth if id in GPUS else None]
                for id, device in devices().items()
            },
        }
    return render("yours", **facts)


def use(**changes: Any) -> told.Use:
    chosen = CHOSEN | changes
    gpu = GPUS.get(chosen["device"])
    return told.Use(
        mib=devices()[chosen.pop("device")].mib, bandwidth=gpu.bandwidth if gpu else None, **chosen
    )


def _words(language: str) -> dict[str, Any]:
    """Of parts.toml, in one language."""
    every = models.words()
    parts = {n: {"differs": p["differs"]} for n, p in every["parts"].items()}
    others = {n: every[n] for n in OTHERS}

    def of_one(value: Any) -> Any:
        if isinstance(value, dict) and language in value:
            return {language: value[language]}
        return {name: of_one(each) for name, each in value.items()}

    return dict(of_one({"parts": parts, **others}))


def text() -> str:
    """The config.json of the first model."""
    return written(models.released()[FIRST].config)


def written(config: dict[str, Any]) -> str:
    return json.dumps(config, indent=2, ensure_ascii=False, sort_keys=True)


def script(language: str) -> str:
    """assets/record.js: the record, the file and the numbers of a config. Its
    messages are in the language of the page."""
    text = _script()
    with speaking(language):
        messages = {
            english: text_zh
            for english, text_zh in chinese().items()
            if json.dumps(english) in text
        }
    return f"const messages={strings(messages)};\n{text}"


@cache
def _script() -> str:
    roots = ["answer", "read", "lines_of"]
    roots += ["weighed", "card", "memory", "Use"]
    return bundle(
        [*(("sitekit.released.told", name) for name in roots), ("attnref.words", "message")],
        {
            **_table().functions,
            "attnref.released.generate.template": (
                f"(t=>(name='attention')=>t[name]??mixerTemplates({{{FILTERS}}})[name])"
                f"({of_templates(_templates(mixers=False))})"
            ),
            "attnref.released.published._rows": f"cache(()=>loads({_published()}))",
            # Beside what is pasted, there are no files.
            "attnref.released.stored.nvidia_file": "()=>null",
            "attnref.released.stored.index_bytes": "()=>0n",
            "attnref.released.stored.checked_pattern": "(text)=>text",
            "attnref.words.chinese": "cache(()=>$.from(messages))",
            "attnref.words.origin": f"()=>{json.dumps(origin())}",
        },
    )


def mixers() -> str:
    """assets/mixers.js: the templates of other layers than softmax attention,
    which come once a config has such a layer."""
    return f"mixerTemplates=({{{FILTERS}}})=>({of_templates(_templates(mixers=True))});\n"


def _templates(*, mixers: bool) -> dict[str, str]:
    paths = sources().items()
    return {name: source(name) for name, p in paths if (p.parent.name == "mixers") is mixers}


def _published() -> str:
    """What published files call weights, as JSON in a string."""
    path = Path(str(record.__file__)).with_name("checkpoints.toml")
    return string(json.dumps(tomllib.loads(path.read_text("utf-8"))))


@cache
def _table() -> Table:
    file = Path(str(record.__file__))
    return of_table(*map(file.with_name, ("sizes.toml", "families.toml")))


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
    *,
    language: str,
    what: str,
    caption: str,
    head: list[object],
    words: dict[str, str] | None = None,
) -> str:
    tables = {"refused": refused, "parts": parts, "families": known, "fields": differing}
    rows = tables[what](language)
    text = caption.format(**counts(), layers=" / ".join(map(str, two()["layers"])))
    return render("table", caption=text, head=head, rows=rows, words=Words(words))


@cache
def two() -> dict[str, Any]:
    """What differs between the model of most ports and the first model."""
    first, second = (models.released()[id].reading for id in ("llama-3.1-8b", FIRST))
    return difference(first, second)


def differing(language: str) -> Rows:
    (kinds,) = two()["kinds"]
    rows: Rows = [[f"`{name}`", *map(str, pair)] for name, pair in kinds["fields"].items()]
    return [*rows, [Word("token"), *map("{:,}".format, two()["bytes"]["token"])]]


def numbers() -> dict[str, object]:
    """The number of models whose file has every layer."""
    all_models = [*known_models().values()]
    nothing = {"mlp", "moe"}  # feed-forward layers mix no tokens
    files = {n: m for n, m in models.released().items() if {*m.missing_kinds} <= nothing}
    year = max(model.date for model in all_models)[:4]
    recent = [model.id for model in all_models if model.date.startswith(year)]
    return {
        "models": len(all_models),
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
    """What tests/released/oracles/test_families.py recorded."""
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
        {"model_type": "rwkv"},
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
        for part, (error, model) in sorted(first.items(), key=lambda item: -item[1][0])
    ]


def _losses(language: str) -> dict[str, Any]:
    """What the output of each released model loses with each part, and of a
    config that is none of them, that of the first model of its family."""
    pages = models.released().values()
    losses = {
        model.id: {
            part: float(f"{error:.2g}") for part, error in models.losses(model.records).items()
        }
        for model in pages
    }
    return {
        "losses": losses,
        "first": {model.family: model.id for model in reversed([*pages])},
        "loaders": {
            part: models.part_word(part, "lost", language)
            for part in {p: None for losses_of_model in losses.values() for p in losses_of_model}
        },
        "damage": models.word("damage", language, loader="{}", n="{}"),
        "lines": models.word("lines", language, n="{}"),
        "few": models.UNFOLDED,
    }


def _names(row: dict[str, Any], language: str) -> Iterator[str]:
    kinds = models.words()["layers"]
    yield from (kinds[kind][language] for kind in row["mixers"])
    for part in row["parts"]:
        yield models.part_word(part, "name", language)


def known(language: str) -> Rows:
    join = models.words()["join"][language]
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
