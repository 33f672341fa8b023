"""Your model: what a config.json says, first of one, then of any that is
entered. The script of the page is made of the Python that writes it here."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from attnref.numbers.kv_memory import DTYPES
from attnref.released import record
from attnref.released.devices import devices
from attnref.released.generate import source, sources
from attnref.words import origin
from sitekit.drawn.calculator import COUNT
from sitekit.drawn.layer_patterns import KINDS, drawn
from sitekit.drawn.operations import GPUS
from sitekit.markdown.render import Words, inline, render
from sitekit.released import released as models
from sitekit.released import told
from sitekit.released.javascript import Table, bundle, of_table, string, strings
from sitekit.released.jinja import of_templates

FIRST = "qwen3-8b"
CHOSEN: dict[str, Any] = {
    "device": "h100",
    "ranks": 1,
    "weights": "bf16",
    "cache": "bf16",
}
CHOSEN |= {"tokens": 32_768}
SENTENCES = "token", "weighs", "uncounted", "fits", "none", "step"
REFUSALS = (
    *("empty", "html", "place", "quotes"),
    *("comma", "json", "object", "unknown"),
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
    if part == "layers":
        strip = drawn([(letter, False) for letter in data["letters"]])
        facts |= {"strip": strip, "said": data, "head": head}
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
        facts["sentences"] = [inline(sentence) for sentence in data["differs"]]
    if part == "memory":
        facts["devices"] = [(id, d.name) for id, d in devices().items()]
        facts |= {"dtypes": [(n, n) for n in DTYPES], "chosen": CHOSEN}
        facts["found"] = told.memory(told.counted(text()), use(), own)
        facts["head"] = head
        facts["known"] = {
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
    return json.dumps(config, indent=2, ensure_ascii=False)


@cache
def script() -> str:
    """assets/record.js: the record, the file and the numbers of a config."""
    roots = ["answer", "counted", "memory", "Use"]
    return bundle(
        [COUNT, *(("sitekit.released.told", name) for name in roots)],
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
        id: json.dumps(model.config, ensure_ascii=False, separators=(",", ":"))
        for id, model in models.released().items()
    }
    families = string(_table().entries)
    return f"const familiesTable={families};\nconst configs={strings(texts)};\n"
