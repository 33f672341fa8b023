"""assets/known-mistakes.js: what the door to mistakes looks through, loaded at
the first key."""

import json
from collections.abc import Iterator

from attnref.judge.catalogue import PAGES, mistakes_by_file
from sitekit.check import find, mistakes
from sitekit.check.evidence import SYMPTOMS, evidence
from sitekit.markdown.render import inline
from sitekit.search import sections_of


def _entries(language: str) -> Iterator[dict[str, str]]:
    for name, held in mistakes_by_file().items():
        aliases = sections_of(PAGES[name])
        for mistake in held:
            _, wrong = mistakes.outputs(mistake.id)
            errors = [wrong.splitlines()[0]] if isinstance(wrong, str) else []
            # Many type the English words of a subject.
            english = mistake.title.en if language != "en" else ""
            yield {
                "id": mistake.id,
                "symptom": evidence()[mistake.id].symptom,
                "title": inline(getattr(mistake.title, language)),
                "notice": inline(getattr(mistake.notice, language)),
                "more": english,
                "called": " ".join([*errors, *aliases.get(mistake.id, ())]),
                "lines": mistakes.code_and_pictures(mistake, language),
            }


def script(language: str) -> str:
    """What the script of the page looks through."""
    sections = sections_of(find.DOOR)
    symptoms = {
        key: {
            "title": find.capital(getattr(text, language)),
            "called": " ".join([text.en, text.zh, *sections.get(key, ())]),
            **find.branches(find.tree()[key], language),
        }
        for key, text in SYMPTOMS.items()
    }
    known = {"symptoms": symptoms, "entries": [*_entries(language)]}
    return f"known={json.dumps(known, ensure_ascii=False, separators=(',', ':'))}"
