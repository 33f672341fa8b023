"""The page "Find your bug": questions that lead from a symptom to mistakes.

`::: questions` on a page becomes those of sitekit/drawn/find_your_bug.yml, in
the language of the page: below each symptom a question, and each answer folds
out the next question or the entries that are likely. It is HTML that needs no
script. Each answer has an address, which opens it.
"""

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath
from typing import Any

import yaml

from attnref.check.catalogue import PAGES, files
from attnref.words import Text
from sitekit import ROOT
from sitekit.check.evidence import SYMPTOMS, evidence

QUESTIONS = re.compile(r"^::: questions$", re.MULTILINE)
TREE = ROOT / "sitekit/drawn/find_your_bug.yml"
ALL = Text(
    "See also [all {} mistakes with this symptom]({}).",
    "这一类[共收录 {} 个错误]({})。",
)


@cache
def tree() -> dict[str, Any]:
    """By symptom, its first question."""
    return dict(yaml.safe_load(TREE.read_text(encoding="utf-8")))


def reached(question: Any) -> set[str]:
    """The mistakes to which a question, or an answer, leads."""
    likely = {*question.get("likely", ())}
    return likely.union(*map(reached, question.get("answers", ())))


def expanded(markdown: str, here: str, language: str) -> str:
    """The Markdown of the page `here`, a path, with its questions."""

    def link(to: str) -> str:
        return os.path.relpath(f"{to}.md", PurePosixPath(here).parent)

    if not QUESTIONS.search(markdown):
        return markdown
    entries = {
        mistake.id: f"[{getattr(mistake.title, language)}]"
        f"({link(PAGES[name])}#{mistake.id})"
        for name, held in files().items()
        for mistake in held
    }

    def parts(question: Any, key: str) -> Iterator[str]:
        yield text(question["ask"])
        yield ""
        for answer in question["answers"]:
            word, *texts = answer["if"]
            yield f'??? answer "<span id={key}-{word}>{text(texts)}</span>"'
            below = (
                parts(answer, key)
                if "ask" in answer
                else [f"- {entries[name]}" for name in answer["likely"]]
            )
            yield ""
            yield from (f"    {line}".rstrip() for line in below)
            yield ""

    def text(texts: list[str]) -> str:
        return str(getattr(Text(*texts), language))

    def every() -> Iterator[str]:
        for key, question in tree().items():
            symptom = getattr(SYMPTOMS[key], language)
            yield f"## {symptom[0].upper()}{symptom[1:]} {{ #{key} }}"
            yield ""
            yield from parts(question, key)
            number = sum(of.symptom == key for of in evidence().values())
            to = f"{link('mistakes/by-symptom')}#{key}"
            yield getattr(ALL, language).format(number, to)
            yield ""

    return QUESTIONS.sub(lambda _: "\n".join(every()), markdown)
