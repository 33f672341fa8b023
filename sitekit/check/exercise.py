"""`::: exercise gqa llama` ends what a page explains: write it yourself.

The exercises of `attnref check` give all of the section: what to write, the
file to fill in, hints, a solution, and the mistakes that `check` knows.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from html import escape
from pathlib import PurePosixPath

from attnref.judge.catalogue import PAGES, files
from attnref.judge.checker import candidates
from attnref.judge.exercises import EXERCISES, PROPERTIES
from attnref.judge.tasks import TASKS, stub
from attnref.words import Text
from sitekit.adapter import BuildError
from sitekit.markdown import pages

LINE = re.compile(r"^::: exercise (.+)$", re.MULTILINE)
PLACE = re.compile(r'\{ #([\w-]+) \}$|--8<-- "attnref/([\w/]+)\.py', re.MULTILINE)
SENTENCE = {"en": r".+?\.(?=\s|$)", "zh": ".+?。"}
# Properties of every exercise, or of which the file to fill in says enough.
COMMON = {"same", "twice", "dtype"}
HINTS = 3
TITLE = Text("Write it yourself", "自己写一遍")
FILE = Text("The file to fill in: `{name}.py`", "要填写的文件：`{name}.py`")
HINT = Text("Hints: what is checked", "提示：判分时看什么")
CHECK = Text(
    "[Download the file](files:exercises/{name}.py) and fill it in: "
    "`attnref check {name} {name}.py` [checks it]({check}) and compares it "
    "with [{n} known mistakes]({mistakes}). "
    "A solution: {solution}{aside}.",
    "[下载这个文件](files:exercises/{name}.py)，填好之后，"
    "`attnref check {name} {name}.py` 会[检查]({check})它，并与 "
    "[{n} 个已知错误]({mistakes})逐一对照。"
    "正确的代码：{solution}{aside}。",
)
ROTATES = Text(", with RoPE", "（带 RoPE）")


@cache
def places() -> dict[str, str]:
    """The page on which each exercise stands."""
    return {
        name: pages.stem_of(path)
        for path in pages.markdown_files("en")
        for match in LINE.finditer(pages.body_of(path))
        for name in match[1].split()
    }


def write_exercises(markdown: str, page: str, language: str) -> str:
    """The Markdown of the page with this path, with its exercises."""

    def section(match: re.Match[str]) -> str:
        lines = [f"## {getattr(TITLE, language)} {{ #exercise }}", ""]
        for name in match[1].split():
            if name not in TASKS:
                raise BuildError(f"{page}: there is no exercise {name}")
            lines += _exercise(name, markdown, page, language)
        return "\n".join(lines)

    return LINE.sub(section, markdown)


def _exercise(name: str, markdown: str, page: str, language: str) -> Iterator[str]:
    def link(stem: str) -> str:
        return os.path.relpath(f"{stem}.md", PurePosixPath(page).parent)

    signatures = (f"`{signature}`" for signature in TASKS[name].signatures)
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
    counts = _mistake_counts(name)
    solutions = [_solution(x, markdown, page) for x in _modules(name)]
    links = (f"[`{file}`]({link(stem) if stem else ''}#{id})" for stem, id, file in solutions)
    file = solutions[0][2]
    rotates = file == "gqa.py" and "theta" not in TASKS[name].signatures[0]
    yield getattr(CHECK, language).format(
        name=name,
        check=link("mistakes/check"),
        n=counts.total(),
        mistakes=link(counts.most_common(1)[0][0]),
        solution=(", " if language == "en" else "、").join(links),
        aside=getattr(ROTATES, language) if rotates else "",
    )
    yield ""


def _signatures(name: str, language: str) -> str:
    """The first sentence of what to write, in one line."""
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
        name: [*dict.fromkeys(probe.prop for probe in exercise.probes())]
        for name, exercise in EXERCISES.items()
    }


def _hints(name: str) -> list[Text]:
    """The properties of an exercise that the fewest other exercises have."""
    counts = Counter(x for props in _properties().values() for x in props)
    props = [prop for prop in _properties()[name] if prop not in COMMON]
    rarest = sorted(props, key=counts.__getitem__)[:HINTS]
    return [PROPERTIES[prop].title for prop in rarest]


@cache
def _mistake_counts(name: str) -> Counter[str]:
    """How many of the mistakes that an exercise knows stand on each page."""
    ids = {id for candidate in candidates(name) for id in candidate.ids}
    return Counter(
        PAGES[file]
        for file, mistakes in files().items()
        for mistake in mistakes
        if mistake.id in ids
    )


def module_of(name: str) -> str:
    """The module that does what an exercise asks for: the plain form with its
    name or that of a function, if its forms use that one, or the module of its
    first form."""
    forms = EXERCISES[name].forms
    for stem in (name, *TASKS[name].names):
        if any(f"plain.{stem}" in form.modules for form in forms):
            return f"plain.{stem}"
    [module] = forms[0].modules
    return module


def _modules(name: str) -> list[str]:
    """The modules that do what an exercise asks for: of several functions, the
    plain form of each, if each has one."""
    runs = {module for form in EXERCISES[name].forms for module in form.modules}
    modules = [f"plain.{function}" for function in TASKS[name].names]
    return modules if {*modules} <= runs else [module_of(name)]


def _solution(module: str, markdown: str, page: str) -> tuple[str, str, str]:
    """Where a solution stands: page ("" for this one), id of its section,
    file."""
    file = module.replace(".", "/")
    if block := _first({file}, markdown):
        return "", *block
    stems = {pages.stem_of(path): path for path in pages.markdown_files("en")}
    subject = file.rpartition("/")[2]

    def other(stem: str) -> bool:
        return stem.rpartition("/")[2].replace("-", "_") != subject

    for stem in sorted(stems, key=other):  # the page of this name comes first
        if block := _first({file}, pages.body_of(stems[stem])):
            return stem, *block
    raise BuildError(f"{page}: no page shows {file}.py, a solution")


def _first(modules: set[str], markdown: str) -> tuple[str, str] | None:
    """The section that first includes one of these files, and the file."""
    id = ""
    for match in PLACE.finditer(markdown):
        id = match[1] or id
        if match[2] in modules:
            return id, PurePosixPath(f"{match[2]}.py").name
    return None
