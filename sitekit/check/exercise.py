"""`::: exercise gqa llama` ends what a page explains: write it yourself.

The exercises of `attnref check` give all of the section: what to write, the
file to fill in, hints, a solution, and the mistakes that `check` knows. The
solution is a plain form if that fits, which its parameters decide; if not, it is
code of the tests.
"""

import ast
import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from html import escape
from pathlib import PurePosixPath

from attnref.judge.catalogue import PACKAGE, PAGES, mistakes_by_file
from attnref.judge.checker import candidates
from attnref.judge.exercises import EXERCISES, PROPERTIES
from attnref.judge.solution import needed
from attnref.judge.tasks import TASKS, file_to_fill
from attnref.words import Text
from sitekit import ROOT
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
    "with [{n} known mistakes]({mistakes}). ",
    "[下载这个文件](files:exercises/{name}.py)，填好之后，"
    "`attnref check {name} {name}.py` 会[检查]({check})它，并与 "
    "[{n} 个已知错误]({mistakes})逐一对照。",
)
LINKED = Text("A solution: [`{file}`]({at}){renamed}.", "正确的代码：[`{file}`]({at}){renamed}。")
RENAMED = Text(", with `{old}` renamed `{new}`", "，把 `{old}` 改名为 `{new}`")
OTHER = Text(
    "[`{file}`]({at}){aside} has another signature, so the command refuses it; "
    "a solution is in the fold.",
    "[`{file}`]({at}) {aside}签名不同，不能直接拿来判分；能通过的写法在折叠里。",
)
FOLD = Text("A solution that passes, {n} lines", "能通过检查的代码，{n} 行")
# What a plain form has that its exercise does not ask for.
CAUSAL = Text(" is causal and", "是因果的，")
ASIDES = {"mha": CAUSAL, "mqa": CAUSAL}
ASIDES["gqa"] = Text(" is causal, applies RoPE and", "是因果的，带 RoPE，")
IMPORTS = ast.Import, ast.ImportFrom
# Tests check that they pass, all in one file.
SOLUTIONS = ROOT / "tests/check/solutions/einsum.py"


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
    signatures = (f"`{signature}`" for signature in TASKS[name].signatures)
    yield f"{'<br>'.join(signatures)}<br>"
    yield _signatures(name, language)
    yield ""
    yield f'??? note "{getattr(FILE, language).format(name=name)}"'
    yield ""
    yield "    ```py"
    yield from (f"    {line}" for line in file_to_fill(name, language).splitlines())
    yield "    ```"
    yield ""
    if hints := _hints(name):
        yield f'    ??? note "{getattr(HINT, language)}"'
        yield ""
        yield from (f"        - {getattr(hint, language)}" for hint in hints)
        yield ""
    sentence, *fold = solution(name, markdown, page, language)
    yield from (f"    {line}".rstrip() for line in fold)
    counts = _mistake_counts(name)
    said = getattr(CHECK, language).format(
        name=name,
        check=_link("mistakes/check", page),
        n=counts.total(),
        mistakes=_link(counts.most_common(1)[0][0], page),
    )
    yield said + sentence
    yield ""


def solution(name: str, markdown: str, page: str, language: str) -> Iterator[str]:
    """Where a solution is: a file of the package, in which a function may have
    another name, if its parameters are those of the exercise; else its code."""
    place, file = _place(name, markdown, page)
    path = PACKAGE / f"{module_of(name).replace('.', '/')}.py"
    asked = {function: [*words] for function, words in TASKS[name].functions.items()}
    defined = _parameters(path.read_text("utf-8"))
    if asked.items() <= defined.items():
        yield getattr(LINKED, language).format(file=file, at=place, renamed="")
        return
    alike = [x for x in defined if [defined[x]] == [*asked.values()]]
    if len(alike) == 1:
        renamed = getattr(RENAMED, language).format(old=alike[0], new=name)
        yield getattr(LINKED, language).format(file=file, at=place, renamed=renamed)
        return
    aside = getattr(ASIDES[name], language) if name in ASIDES else ""
    yield getattr(OTHER, language).format(file=file, at=place, aside=aside)
    code = code_of(name)
    yield f'??? note "{getattr(FOLD, language).format(n=len(code))}"'
    yield ""
    yield "    ```py"
    yield from (f"    {line}".rstrip() for line in code)
    yield "    ```"
    yield ""


def _parameters(text: str) -> dict[str, list[str]]:
    """Of each function and class of a file, how its parameters are called."""
    result = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            functions = [x for x in ast.walk(node) if isinstance(x, ast.FunctionDef)]
            words = [x.arg for f in functions[:1] for x in f.args.args if x.arg != "self"]
            result[node.name] = words
    return result


def code_of(name: str) -> list[str]:
    """The part of SOLUTIONS that an exercise needs, as the lines of a file."""
    text = SOLUTIONS.read_text("utf-8")
    lines, code = text.splitlines(), list[str]()
    before: ast.stmt | None = None
    for node in needed(ast.parse(text).body, TASKS[name].names):
        assert node.end_lineno is not None
        if before is not None:
            both = isinstance(before, ast.Import) and isinstance(node, IMPORTS)
            code += [] if both else ["", ""]
        code += lines[node.lineno - 1 : node.end_lineno]
        before = node
    return code


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
        for file, mistakes in mistakes_by_file().items()
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


def _link(stem: str, page: str) -> str:
    return os.path.relpath(f"{stem}.md", PurePosixPath(page).parent)


def _place(name: str, markdown: str, page: str) -> tuple[str, str]:
    """Where the file that does what an exercise asks for is shown, and its name."""
    path = module_of(name).replace(".", "/")
    if block := _first({path}, markdown):
        return f"#{block[0]}", block[1]
    for other in pages.markdown_files("en"):
        stem = pages.stem_of(other)
        subject = stem.rpartition("/")[2].replace("-", "_")
        if subject == path.rpartition("/")[2] and (block := _first({path}, pages.body_of(other))):
            return f"{_link(stem, page)}#{block[0]}", block[1]
    raise BuildError(f"{page}: no page shows {path}.py, which does what {name} asks for")


def _first(modules: set[str], markdown: str) -> tuple[str, str] | None:
    """The section that first includes one of these files, and the file."""
    id = ""
    for match in PLACE.finditer(markdown):
        id = match[1] or id
        if match[2] in modules:
            return id, PurePosixPath(f"{match[2]}.py").name
    return None
