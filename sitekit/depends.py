"""What a page depends on beside its own text: the code that it includes, and
the code that its drawings call.

Read from the files as they are. A file that reads the repository by itself, or
plants lines in the package, depends on all of the package.
"""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath

from attnref.commands import copy
from sitekit import ROOT
from sitekit.drawing.traced import PLAIN
from sitekit.markdown import source
from sitekit.markdown.calls import DRAWN

TABLES = ROOT / "sitekit/markdown/tables.py"  # what any fence may call
# Of these, one cannot see by imports what they read.
WHOLE = (
    "attnref.commands.copy",
    "attnref.check",
    "sitekit.files",
    "sitekit.check.mistakes",
)


CALL = re.compile(rf"^[- ]*(?:{'|'.join(source.CALLS)}): (.*)", re.MULTILINE)


def key(name: str, markdown: str) -> object:
    """Equal for equal code. That of an API page is equal to none: what its
    plugin makes of one page goes into others."""
    if re.search(r"^::: (?!exercise |notes$)", markdown, re.MULTILINE):
        return object()
    fences = [*source.fences(markdown)]
    files = {ROOT / i.path for fence in fences for i in fence.includes}
    if "\n::: exercise " in markdown:
        files |= {
            p for p in package() if p.is_relative_to(ROOT / "attnref/check")
        }
    calls = [
        " ".join(CALL.findall(fence.text))
        for fence in fences
        if fence.language in source.DRAWN
    ]
    if calls:
        page = PurePosixPath(name).stem.replace("-", "_")
        files |= _reached(_named(" ".join([page, *calls])))
    return tuple((path, source.text_of(path)) for path in sorted(files))


def package() -> list[Path]:
    """All of attnref, with its data."""
    return [
        path
        for path in sorted((ROOT / "attnref").rglob("*.*"))
        if path.suffix in (".py", ".json", ".txt", ".toml") and path.exists()
    ]


def package_key() -> object:
    return tuple((path, source.text_of(path)) for path in package())


def _named(text: str) -> Iterator[Path]:
    """The files of what a drawing calls, and of pages whose names it uses."""
    words = set(re.findall(r"\w+", text))
    yield TABLES
    for path in DRAWN.glob("[!_]*.py"):
        if path.stem in words:
            yield path
    for path in PLAIN.glob("[!_]*.py"):
        if f"{path.stem}." in text:
            yield path
    for name, module in copy.public().items():
        if name in words:
            yield copy.path_of(module)


def _reached(paths: Iterator[Path]) -> set[Path]:
    """With all that they import, and data beside it."""
    found, todo = set[Path](), [*paths]
    while todo:
        path = todo.pop()
        if path in found:
            continue
        found.add(path)
        imported, whole = _imported(source.text_of(path))
        if whole:
            return found | set(package())
        todo += map(Path, imported)
        if path.is_relative_to(ROOT / "attnref"):
            found |= set(path.parent.glob("*.json"))
    return found


@lru_cache(1000)
def _imported(text: str) -> tuple[list[str], bool]:
    """The files of attnref and sitekit/drawn that a file uses, and whether it
    depends on more than one can tell."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names} - {"attnref"}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "attnref"
        ):
            names.add(f"attnref.{node.attr}")
    public = copy.public()
    files = set()
    for name in names:
        room, _, rest = name.partition(".")
        if room == "attnref" and rest in public:
            name = f"attnref.{public[rest]}"
        if name.startswith(WHOLE) or name == "sitekit.ROOT":
            return [], True
        if name.startswith(("attnref.", "sitekit.drawn.")):
            for module in (name, name.rpartition(".")[0]):
                path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
                if path.exists():
                    files.add(str(path))
                    break
            else:
                return [], True
    return sorted(files), False
