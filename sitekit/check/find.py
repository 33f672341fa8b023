"""The page "Find your bug": a field, symptoms to choose, and questions.

`::: door` on a page becomes the field and the ten symptoms. They are links to
the lists further down, `::: symptoms`; with JavaScript, assets/find.js shows
the entries that a choice or the words of the field find, and the questions of
sitekit/drawn/find_your_bug.toml narrow a symptom down. `script` is what it
loads for that at the first key. Each answer has an address, `#nan-mask`.
"""

import re
from functools import cache
from html import escape
from typing import Any

from attnref.words import Text
from sitekit import ROOT
from sitekit.check.evidence import SYMPTOMS
from sitekit.markdown import pages, parity, source
from sitekit.markdown.render import render

DOOR = "mistakes/find-your-bug"
TREE = ROOT / "sitekit/drawn/find_your_bug.toml"
MARKED = re.compile(r"`([^`]+)`|\[([^]]+)\]\((#[\w-]+)\)")
SAY = {
    "label": Text("Error text, line of code or symptom", "报错、一行代码，或者看到的现象"),
    "hint": Text("expected scalar type Float but found BFloat16", "例如：训练正常推理不对"),
    "symptoms": Text("Or choose what you see", "或者挑你看到的现象"),
    "count": Text("{} of {} mistakes", "{1} 个错误里的 {0} 个"),
    "none": Text(
        "No entry has these words. Choose what you see.", "没有找到。挑一个你看到的现象吧。"
    ),
    "all": Text("Show all {}", "显示全部 {} 个"),
    "symptom": Text(
        "This is a symptom. Its questions lead to fewer mistakes:",
        "这是一种症状，回答几个问题可以缩小范围：",
    ),
}


@cache
def tree() -> dict[str, Any]:
    """The first question of each symptom."""
    return source.table_of(TREE)


def inline(text: str) -> str:
    """HTML of a sentence with code and links to sections."""

    def mark(match: re.Match[str]) -> str:
        code, words, address = match.groups()
        return f"<code>{code}</code>" if code else f'<a href="{address}">{words}</a>'

    return MARKED.sub(mark, escape(text, quote=False))


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


@cache
def names(language: str) -> dict[str, list[str]]:
    """What readers say of each symptom, from the page in this language: the
    first stands below it."""
    sections = pages.front_matter(parity.twin(DOOR, language)).get("sections", {})
    return {key: sections.get(key, []) for key in SYMPTOMS}


def door(language: str, to: str) -> str:
    """HTML: the field, which waits for its script, and the symptoms."""
    return render(
        "door",
        to=to,
        say={key: getattr(text, language) for key, text in SAY.items()},
        symptoms={key: capital(getattr(text, language)) for key, text in SYMPTOMS.items()},
        names=names(language),
    )


def branches(question: Any, language: str) -> dict[str, Any]:
    """A question or the mistakes that an answer leads to, in one language."""
    if "likely" in question:
        return {"likely": question["likely"]}
    answers = [
        {"key": answer["if"][0], "say": inline(getattr(Text(*answer["if"][1:]), language))}
        | branches(answer, language)
        for answer in question["answers"]
    ]
    return {"ask": inline(getattr(Text(*question["ask"]), language)), "answers": answers}
