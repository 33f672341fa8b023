"""mistakes.json: the catalogue for other programs, in both languages.

mistakes.schema.json, beside it, says what its fields are. A version of the form
only gains fields; what is renamed or goes makes the next version.
"""

import json
from collections.abc import Iterator
from typing import Any

from attnref.judge.catalogue import catalogue
from attnref.words import version
from sitekit import ROOT, adapter
from sitekit.check import mistakes
from sitekit.check.evidence import SYMPTOMS, evidence

VERSION = 1
SCHEMA = "mistakes.schema.json"


def entries(config: Any) -> Iterator[dict[str, Any]]:
    home = config.extra["home_url"] if config.site_url else ""
    for mistake in catalogue().values():
        facts, killers = evidence()[mistake.id], mistakes.kills()[mistake.id]
        notice = {
            language: mistakes.with_numbers(mistake, text, language)
            for language, text in mistake.notice._asdict().items()
        }
        page = adapter.url_of(f"mistakes/{mistake.id}", config)
        yield {
            "id": mistake.id,
            "title": mistake.title._asdict(),
            "symptom": facts.symptom,
            "notice": notice,
            "lines": [
                {"file": x.file, "wrong": x.wrong, "right": x.right} for x in mistake.variants[0]
            ],
            "right_shape": killers["same_shape"],
            "properties": killers["properties"],
            "tests": killers["tests"],
            "seen": facts.met,
            "page": {
                language: f"{home}{root}{page}" for language, root in config.extra["roots"].items()
            },
        }


def text(config: Any) -> str:
    content = {
        "$schema": SCHEMA,
        "version": VERSION,
        "attnref": version(),
        "symptoms": {key: symptom._asdict() for key, symptom in SYMPTOMS.items()},
        "mistakes": [*entries(config)],
    }
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def schema() -> bytes:
    return (ROOT / "sitekit/check" / SCHEMA).read_bytes()
