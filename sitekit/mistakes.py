"""What pages say of the catalogue of mistakes.

`::: mistakes softmax masks` on a page becomes an entry for each mistake in
these files of attnref/mistakes, `::: symptoms` the list of all entries by what
one sees, `::: shapes` how many have the right shape, and `::: exercises` the
table of those of `attnref check`. All are Markdown, in the language of the
page: the words of an entry stand in the catalogue, its numbers and heat maps
are computed.
"""

import difflib
import os
import re
from collections.abc import Iterator, Sequence
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
from sitekit import find, svg
from sitekit.adapter import BuildError
from sitekit.markup import button
from sitekit.render import render

ENTRIES = re.compile(r"^::: mistakes (.+)$", re.MULTILINE)
LISTS = re.compile(r"^::: (symptoms|shapes|exercises)$", re.MULTILINE)
ADDRESS = re.compile(
    r"https://(?:www\.)?"
    r"(?:github\.com/([\w.-]+/[\w.-]+)(?:/(?:issues|pull)/(\d+))?|([^/]+))"
)
PICTURES = re.compile(r"(?:<p>)?<!-- (\w+) of ([\w-]+) -->(?:</p>)?")
WORDS = {
    "symptom": Text("Symptom", "症状"),
    "notice": Text("How to notice it", "怎么发现"),
    "caught": Text("Caught by", "能发现它的测试"),
    "found": Text("Met in", "出现在"),
    "more": Text(
        "How to notice it, its tests, and where it was met",
        "怎么发现、哪些测试能发现、在哪里出现过",
    ),
    "marked": Text(
        "Lines marked - are wrong, those marked + are right. {shapes} "
        "[All mistakes by symptom]({symptoms}).",
        "标 - 的行是错的，标 + 的行是对的。{shapes}"
        "也可以[按症状查找]({symptoms})。",
    ),
    "shapes": Text(
        "Of {all} mistakes, {n} return the right shape, so no test of shapes "
        "notices them.",
        "{all} 个错误里，{n} 个的输出形状是对的，检查形状的测试发现不了。",
    ),
    "where": Text("{0} {1}, {2} {3}", "{0} {1}、{2} {3}"),
    "there": Text("{wrong} instead of {right}", "{wrong}，应为 {right}"),
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
}
MANY = 12  # more than this many of a symptom are told apart further
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


def told(mistake: Mistake, text: str, language: str) -> str:
    """A sentence with its numbers."""
    right, wrong = seen(mistake.id)
    facts = {"right": number(right), "wrong": number(wrong)}
    if isinstance(wrong, Tensor) and wrong.shape == right.shape:
        far = (right - wrong).abs()
        facts["change"] = f"{far.max():.3g}"
        if right.dim() == 2:
            row, column = divmod(int(far.argmax()), right.shape[1])
            at = {
                "right": number(right[row, column]),
                "wrong": number(wrong[row, column]),
            }
            # "query, from position 2000 on"
            down, across = (
                re.split("[,，]", getattr(axis, language))[0]
                for axis in mistake.axes
            )
            word = {k: getattr(WORDS[k], language) for k in ("where", "there")}
            facts["where"] = word["where"].format(down, row, across, column)
            facts["there"] = word["there"].format(**at)
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


def source(address: str) -> str:
    match = ADDRESS.match(address)
    assert match
    repository, number, host = match.groups()
    name = f"{repository} #{number}" if number else repository or host
    return f"[{name}]({address})"


def diffs(mistake: Mistake, language: str) -> str:
    """HTML: the lines of an entry as diffs."""
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
    return "".join(html)


def coloured(lines: str) -> str:
    kinds = {"-": "gd", "+": "gi"}
    return "".join(
        f'<span class="{kinds[line[0]]}">{escape(line)}</span>\n'
        if line[:1] in kinds
        else f"{escape(line)}\n"
        for line in lines.splitlines()
    )


def figure(mistake: Mistake, language: str) -> str:
    """HTML: both heat maps, if there are any."""
    right, wrong = seen(mistake.id)
    if right.dim() != 2 or isinstance(wrong, str):
        return ""
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
    return render("figure", panels=drawn, caption="")


def with_pictures(html: str, language: str) -> str:
    """Once Markdown and the search have read the page, which takes them long:
    each `<!-- diffs of ID -->` and `<!-- figure of ID -->` becomes what it
    stands for."""
    drawn = {"diffs": diffs, "figure": figure}
    return PICTURES.sub(
        lambda match: drawn[match[1]](catalogue()[match[2]], language), html
    )


def entry(mistake: Mistake, language: str, link: Any) -> Iterator[str]:
    def word(text: Text) -> str:
        return str(getattr(text, language))

    def said(key: str, text: str) -> str:
        end = "" if text.endswith(("。", ".", "`")) else word(WORDS["end"])
        name = word(WORDS[key])
        return f"    - **{name}**{word(WORDS['colon'])}{text}{end}"

    between = word(WORDS["and"])
    yield f"## {word(mistake.title)} {{ #{mistake.id} }}"
    yield ""
    yield told(mistake, word(mistake.seen), language)
    yield ""
    yield f"<!-- diffs of {mistake.id} -->"
    yield ""
    yield f'??? more "{word(WORDS["more"])}"'
    yield ""
    yield f"    <!-- figure of {mistake.id} -->"
    yield ""
    symptom = word(SYMPTOMS[mistake.symptom])
    symptoms = link("mistakes/by-symptom")
    yield said("symptom", f"[{symptom}]({symptoms}#{mistake.symptom})")
    yield said("notice", told(mistake, word(mistake.notice), language))
    law = mistake.law.__name__
    tests = [f"[`{law}`]({link(TESTS)}#{law})"]
    # Without the parameters of a test: dict, since several may be of one.
    tests += dict.fromkeys(f"`{t.partition('[')[0]}`" for t in mistake.tests)
    yield said("caught", between.join(tests))
    if mistake.found:
        found = map(source, mistake.found)
        yield said("found", between.join(found))
    yield ""


def groups(question: Any, names: set[str]) -> Iterator[tuple[Any, set[str]]]:
    """The mistakes by the first answer that leads to them, and by the next one
    where they are many."""
    for answer in question["answers"]:
        held = names & find.reached(answer)
        names = names - held
        if "ask" in answer and len(held) > MANY:
            for texts, below in groups(answer, held):
                yield [answer["if"], *texts], below
        elif held:
            yield [answer["if"]], held


def symptoms(language: str, link: Any) -> Iterator[str]:
    """All entries, each below what one sees of it."""
    place = {
        mistake.id: f"[{getattr(mistake.title, language)}]"
        f"({link(PAGES[name])}#{mistake.id})"
        for name, held in files().items()
        for mistake in held
    }
    for key, symptom in SYMPTOMS.items():
        title = getattr(symptom, language)
        yield f"## {title[0].upper()}{title[1:]} {{ #{key} }}"
        yield ""
        every = {m.id for m in catalogue().values() if m.symptom == key}
        question = find.tree()[key]
        asked = getattr(Text(*question["ask"]), language)
        yield asked.replace("](#", f"]({link('mistakes/find-your-bug')}#")
        yield ""
        for answers, held in groups(question, every):
            said = (getattr(Text(*texts), language) for texts in answers)
            yield f"**{' · '.join(said)}**"
            yield ""
            yield from (f"- {place[name]}" for name in place if name in held)
            yield ""


def shapes(mistakes: Sequence[Mistake], language: str) -> str:
    """How many have the right shape, of how many."""
    text: str = getattr(WORDS["shapes"], language)
    n = sum(mistake.same_shape for mistake in mistakes)
    return text.format(all=len(mistakes), n=n)


def every_shape(language: str, _: Any) -> Iterator[str]:
    yield shapes([*catalogue().values()], language)


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
        held = [mistake for name in names for mistake in files()[name]]
        marked = getattr(WORDS["marked"], language).format(
            shapes=shapes(held, language), symptoms=link("mistakes/by-symptom")
        )
        lines = (line for m in held for line in entry(m, language, link))
        return "\n".join([marked, "", *lines])

    lists = {
        "symptoms": symptoms,
        "shapes": every_shape,
        "exercises": exercises,
    }
    return LISTS.sub(
        lambda match: "\n".join(lists[match[1]](language, link)),
        ENTRIES.sub(entries, markdown),
    )
