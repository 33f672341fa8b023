"""`::: exercise gqa llama` ends what a page explains: write it yourself.

All of the section is derived from the exercises of `attnref check`: what is
asked, the file to fill in, hints, a solution, and the mistakes that it knows.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from html import escape
from pathlib import PurePosixPath

from attnref.check.catalogue import PAGES, files
from attnref.check.checker import candidates
from attnref.check.exercises import EXERCISES, PROPERTIES
from attnref.check.tasks import TASKS, stub
from attnref.words import Text
from sitekit.adapter import BuildError
from sitekit.markdown import pages

LINE = re.compile(r"^::: exercise (.+)$", re.MULTILINE)
PLACE = re.compile(
    r'\{ #([\w-]+) \}$|--8<-- "attnref/([\w/]+)\.py', re.MULTILINE
)
SENTENCE = {"en": r".+?\.(?=\s|$)", "zh": ".+?。"}
# Asked of every exercise, or said in the file to fill in.
COMMON = {"same", "twice", "dtype"}
HINTS = 3
TITLE = Text("Write it yourself", "自己写一遍")
FILE = Text("The file to fill in: `{name}.py`", "要填写的文件：`{name}.py`")
HINT = Text("Hints: what is checked", "提示：判分时看什么")
CHECK = Text(
    "[Download the file](files:exercises/{name}.py) and fill it in: "
    "`attnref check {name} {name}.py` [checks it]({check}) and compares it "
    "with [{n} known mistakes]({mistakes}). "
    "A solution: [`{file}`]({solution}){aside}.",
    "[下载这个文件](files:exercises/{name}.py)，填好之后，"
    "`attnref check {name} {name}.py` 会[检查]({check})它，并与 "
    "[{n} 个已知错误]({mistakes})逐一对照。"
    "正确的代码：[`{file}`]({solution}){aside}。",
)
ROTATES = Text(", with RoPE", "（带 RoPE）")


def places() -> dict[str, str]:
    """The page on which each exercise stands."""
    return {
        name: pages.stem_of(path)
        for path in pages.markdown_files("en")
        for match in LINE.finditer(pages.body_of(path))
        for name in match[1].split()
    }


def expanded(markdown: str, here: str, language: str) -> str:
    """The Markdown of the page `here`, a path, with its exercises."""

    def section(match: re.Match[str]) -> str:
        lines = [f"## {getattr(TITLE, language)} {{ #exercise }}", ""]
        for name in match[1].split():
            if name not in TASKS:
                raise BuildError(f"{here}: there is no exercise {name}")
            lines += _exercise(name, markdown, here, language)
        return "\n".join(lines)

    return LINE.sub(section, markdown)


def _exercise(
    name: str, markdown: str, here: str, language: str
) -> Iterator[str]:
    def link(stem: str) -> str:
        return os.path.relpath(f"{stem}.md", PurePosixPath(here).parent)

    signatures = (f"`{each}`" for each in TASKS[name].signatures)
    yield f"{'<br>'.join(signatures)}<br>"
    yield _signatures(name, language)
    yield ""
    yield f'??? note "{getattr(FILE, language).format(name=name)}"'
    yield ""
    yield "    ```py"
    yield from (f"    {line}" for line in stub(name, language).splitlines())
    yield "    ```"
    yield ""
    if hints := _hints(name):
        yield f'    ??? note "{getattr(HINT, language)}"'
        yield ""
        yield from (f"        - {getattr(hint, language)}" for hint in hints)
        yield ""
    known = _known(name)
    stem, id, file = _solution(name, markdown, here)
    rotates = file == "gqa.py" and "theta" not in TASKS[name].signatures[0]
    yield getattr(CHECK, language).format(
        name=name,
        check=link("mistakes/check"),
        n=known.total(),
        mistakes=link(known.most_common(1)[0][0]),
        file=file,
        solution=f"{link(stem) if stem else ''}#{id}",
        aside=getattr(ROTATES, language) if rotates else "",
    )
    yield ""


def _signatures(name: str, language: str) -> str:
    """The first sentence of what is asked, in a line."""
    about = getattr(TASKS[name].about, language)
    match = re.match(SENTENCE[language], about, re.DOTALL)
    assert match is not None, name
    han = r"[\u3000-\u9fff\uff00-\uffef]"
    line = re.sub(rf"(?<={han})\n|\n(?={han})", "", match[0])
    line = escape(line.replace("\n", " "), quote=False)
    return re.sub(r"([\\`*_\[\]])", r"\\\1", line)


@cache
def _properties() -> dict[str, list[str]]:
    return {
        name: [*dict.fromkeys(probe.under for probe in exercise.probes())]
        for name, exercise in EXERCISES.items()
    }


def _hints(name: str) -> list[Text]:
    """The properties that few exercises are asked for say most of this one."""
    counts = Counter(prop for each in _properties().values() for prop in each)
    own = [prop for prop in _properties()[name] if prop not in COMMON]
    return [
        PROPERTIES[prop].title for prop in sorted(own, key=counts.__getitem__)
    ][:HINTS]


@cache
def _known(name: str) -> Counter[str]:
    """On which pages the mistakes are that are tried, and how many."""
    ids = {id for candidate in candidates(name) for id in candidate.ids}
    return Counter(
        PAGES[file]
        for file, held in files().items()
        for mistake in held
        if mistake.id in ids
    )


def _solution(name: str, markdown: str, here: str) -> tuple[str, str, str]:
    """Where the code is whose mistakes are known: page ("" for this one), id
    of the section, and file."""
    forms = EXERCISES[name].forms
    modules = {m.replace(".", "/") for form in forms for m in form.modules}
    if (block := _first(modules, markdown)) is None:
        first = {m.replace(".", "/") for m in forms[0].modules}
        for path in pages.markdown_files("en"):
            stem = pages.stem_of(path)
            own = stem.rpartition("/")[2].replace("-", "_")
            of_page = {m for m in first if m.rpartition("/")[2] == own}
            if block := _first(of_page, pages.body_of(path)):
                return stem, *block
        raise BuildError(f"{here}: no page shows a solution of {name}")
    return "", *block


def _first(modules: set[str], markdown: str) -> tuple[str, str] | None:
    """The section that first includes one of these files, and the file."""
    id = ""
    for match in PLACE.finditer(markdown):
        id = match[1] or id
        if match[2] in modules:
            return id, PurePosixPath(f"{match[2]}.py").name
    return None
