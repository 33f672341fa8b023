"""What pages say of the catalogue of mistakes.

`::: mistakes softmax masks` on a page becomes an entry for each mistake in
these files of attnref/mistakes, `::: symptoms` the list of all entries by what
one sees, and `::: exercises` the table of those of `attnref check`. All are
Markdown, in the language of the page: the words of an entry stand in the
catalogue, its numbers and heat maps are computed.
"""

import difflib
import os
import re
from collections.abc import Iterator
from functools import cache
from html import escape
from itertools import groupby
from pathlib import PurePosixPath
from textwrap import dedent
from typing import Any

import torch
from torch import Tensor

import attnref
from attnref.mistakes.catalogue import (
    NOTES,
    PAGES,
    SYMPTOMS,
    Lines,
    Mistake,
    Text,
    catalogue,
    files,
    load,
)
from attnref.mistakes.tasks import TASKS
from sitekit import svg
from sitekit.adapter import BuildError
from sitekit.markup import button
from sitekit.render import render

ENTRIES = re.compile(r"^::: mistakes (.+)$", re.MULTILINE)
LISTS = re.compile(r"^::: (symptoms|exercises)$", re.MULTILINE)
ADDRESS = re.compile(
    r"https://(?:www\.)?"
    r"(?:github\.com/([\w.-]+/[\w.-]+)(?:/(?:issues|pull)/(\d+))?|([^/]+))"
)
PICTURES = re.compile(r"<!-- pictures of ([\w-]+) -->")
WORDS = {
    "symptom": Text("Symptom", "症状"),
    "notice": Text("How to notice it", "怎么发现"),
    "hidden": Text("Why no shape shows it", "为什么形状上看不出来"),
    "caught": Text("Caught by", "能发现它的测试"),
    "found": Text("Met in", "出现在"),
    "notes": Text("the notes from which this site grew", "本站前身的学习笔记"),
    "colon": Text(": ", "："),
    "and": Text(", ", "、"),
    "end": Text(".", "。"),
    "exercise": Text("exercise", "练习"),
    "asked": Text("what to write", "要写的函数"),
    "copy": Text("Copy fix", "复制正确代码"),
    "copied": Text("Copied", "已复制"),
    "file": Text("wrong (-) and right (+)", "错误（-）与正确（+）"),
    "right": Text("right", "正确"),
    "wrong": Text("wrong", "错误"),
    "drawn": Text(
        "Computed with the right lines and with the wrong ones.",
        "分别用正确的代码和错误的代码算出。",
    ),
}
TESTS = "mistakes/tests"  # the page that shows the laws


@cache
def seen(name: str) -> tuple[Tensor, Tensor | str]:
    """What one would see: right and wrong, or the error that is raised."""
    mistake = catalogue()[name]
    right = mistake.shown(attnref).detach()
    try:
        return right, mistake.shown(load(mistake)).detach()
    except Exception as error:
        return right, str(error)


def number(found: Tensor | str) -> str:
    """As text, with no more digits than one compares; counts are whole."""
    if isinstance(found, str):
        return f"`{found.splitlines()[0]}`"
    return ", ".join(
        f"{n:,.0f}" if abs(n) < 1e9 and n == round(n) else f"{n:.3g}"
        for n in found.double().flatten().tolist()
    )


def told(mistake: Mistake, text: str) -> str:
    """A sentence with its numbers."""
    right, wrong = seen(mistake.id)
    facts = {"right": number(right), "wrong": number(wrong)}
    if isinstance(wrong, Tensor) and wrong.shape == right.shape:
        facts["change"] = f"{(right - wrong).abs().max():.3g}"
    return re.sub(r"\{(\w+)\}", lambda match: facts[match[1]], text)


def diff(lines: Lines) -> str:
    """The wrong lines and the right ones, as a patch that mends them."""
    wrong, right = (
        text.strip("\n").splitlines() for text in (lines.wrong, lines.right)
    )
    both = dedent("\n".join([*wrong, *right])).splitlines()
    wrong, right = both[: len(wrong)], both[len(wrong) :]
    found = []
    matcher = difflib.SequenceMatcher(None, wrong, right, autojunk=False)
    for kind, i, j, m, n in matcher.get_opcodes():
        if kind == "equal":
            found += [f" {line}".rstrip() for line in right[m:n]]
        else:
            found += [f"-{line}" for line in wrong[i:j]]
            found += [f"+{line}" for line in right[m:n]]
    return "\n".join(found)


def source(address: str, language: str) -> str:
    if address == NOTES:
        return str(getattr(WORDS["notes"], language))
    match = ADDRESS.match(address)
    assert match
    repository, number, host = match.groups()
    name = f"{repository} #{number}" if number else repository or host
    return f"[{name}]({address})"


def pictures(mistake: Mistake, language: str) -> str:
    """HTML: the lines of an entry as diffs, and both heat maps, if any."""
    shown: dict[str, list[str]] = {}
    for module, parts in groupby(mistake.lines, lambda lines: lines.module):
        file = f"attnref/{module.replace('.', '/')}.py"
        shown.setdefault("\n\n".join(map(diff, parts)), []).append(file)
    copy = button(*(getattr(WORDS[k], language) for k in ("copy", "copied")))
    html = [
        f'<div class="language-diff highlight">'
        f'<span class="filename">{", ".join(held)}</span>'
        f"<pre><span></span><code>{coloured(lines)}</code></pre>{copy}</div>"
        for lines, held in shown.items()
    ]
    right, wrong = seen(mistake.id)
    if right.dim() == 2 and isinstance(wrong, Tensor):
        html.append(figure(mistake, right, wrong, language))
    return "".join(html)


def coloured(lines: str) -> str:
    kinds = {"-": "gd", "+": "gi"}
    return "".join(
        f'<span class="{kinds[line[0]]}">{escape(line)}</span>\n'
        if line[:1] in kinds
        else f"{escape(line)}\n"
        for line in lines.splitlines()
    )


def figure(
    mistake: Mistake, right: Tensor, wrong: Tensor, language: str
) -> str:
    both = torch.cat([right.flatten(), wrong.flatten()])
    masks = bool(((both == 0) | (both == 1)).all())
    down, across = (getattr(axis, language) for axis in mistake.axes)
    drawn = []
    for kind, matrix in (("wrong", wrong), ("right", right)):
        rows, columns = matrix.shape
        panel = svg.heatmap(
            matrix.bool() if masks else matrix,
            (down, across),
            title=getattr(WORDS[kind], language),
            rows=[*range(rows)],
            columns=[*range(columns)],
        )
        drawn.append(panel._asdict())
    caption = getattr(WORDS["drawn"], language)
    return render("figure", panels=drawn, caption=caption)


def with_pictures(html: str, language: str) -> str:
    """Once Markdown and the search have read the page, which takes them long:
    each `<!-- pictures of ID -->` becomes what it stands for."""
    return PICTURES.sub(
        lambda match: pictures(catalogue()[match[1]], language), html
    )


def entry(mistake: Mistake, language: str, link: Any) -> Iterator[str]:
    def word(text: Text) -> str:
        return str(getattr(text, language))

    def said(key: str, text: str) -> str:
        end = "" if text.endswith(("。", ".", "`")) else word(WORDS["end"])
        return f"- **{word(WORDS[key])}**{word(WORDS['colon'])}{text}{end}"

    between = word(WORDS["and"])
    yield f"## {word(mistake.title)} {{ #{mistake.id} }}"
    yield ""
    yield told(mistake, word(mistake.seen))
    yield ""
    yield f"<!-- pictures of {mistake.id} -->"
    yield ""
    symptom = word(SYMPTOMS[mistake.symptom])
    symptoms = link("mistakes/by-symptom")
    yield said("symptom", f"[{symptom}]({symptoms}#{mistake.symptom})")
    yield said("notice", told(mistake, word(mistake.notice)))
    if mistake.hidden:
        yield said("hidden", told(mistake, word(mistake.hidden)))
    law = mistake.law.__name__
    tests = [f"[`{law}`]({link(TESTS)}#{law})"]
    # Without the parameters of a test: dict, since several may be of one.
    tests += dict.fromkeys(f"`{t.partition('[')[0]}`" for t in mistake.tests)
    yield said("caught", between.join(tests))
    if mistake.found:
        found = [source(address, language) for address in mistake.found]
        yield said("found", between.join(found))
    yield ""


def symptoms(language: str, link: Any) -> Iterator[str]:
    """All entries, each below what one sees of it."""
    colon = getattr(WORDS["colon"], language)
    for key, symptom in SYMPTOMS.items():
        title = getattr(symptom, language)
        yield f"## {title[0].upper()}{title[1:]} {{ #{key} }}"
        yield ""
        for name, held in files().items():
            for mistake in held:
                if mistake.symptom == key:
                    title = getattr(mistake.title, language)
                    text = told(mistake, getattr(mistake.seen, language))
                    place = f"{link(PAGES[name])}#{mistake.id}"
                    yield f"- [{title}]({place}){colon}{text}"
        yield ""


def exercises(language: str, _: Any) -> Iterator[str]:
    heads = (getattr(WORDS[key], language) for key in ("exercise", "asked"))
    yield f"| {' | '.join(heads)} |"
    yield "| --- | --- |"
    for name, asked in TASKS.items():
        defined = "<br>".join(f"`{each}`" for each in asked.signatures)
        title = getattr(asked.title, language)
        yield f"| `{name}` | {title}<br>{defined} |"
    yield ""


def expanded(markdown: str, here: str, language: str) -> str:
    """The Markdown of the page `here`, a path, with its entries."""

    def link(to: str) -> str:
        return os.path.relpath(f"{to}.md", PurePosixPath(here).parent)

    def entries(match: re.Match[str]) -> str:
        names = match[1].split()
        if unknown := names - files().keys():
            raise BuildError(f"{here}: no mistakes are told in {unknown}")
        return "\n".join(
            line
            for name in names
            for mistake in files()[name]
            for line in entry(mistake, language, link)
        )

    lists = {"symptoms": symptoms, "exercises": exercises}
    return LISTS.sub(
        lambda match: "\n".join(lists[match[1]](language, link)),
        ENTRIES.sub(entries, markdown),
    )
