"""A solution's file as a module: Python, or the cells of a notebook."""

import ast
import json
import linecache
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from attnref.judge.words import phrase


class SolutionError(Exception):
    """A solution cannot be judged; `text` says why, in both languages."""

    def __init__(self, word: str, **values: object) -> None:
        self.text = phrase(word, **values)
        super().__init__(self.text.en)


def module_of(file: str, names: Sequence[str] = ()) -> ModuleType:
    """The file as a module; it may import files beside it."""
    module = ModuleType("solution")
    module.__file__ = file
    sys.modules["solution"] = module
    sys.path.insert(0, str(Path(file).parent))
    if file.endswith(".ipynb"):
        code = notebook(file, names)
    else:
        code = compile(Path(file).read_bytes(), file, "exec")
    exec(code, vars(module))
    return module


def notebook(file: str, names: Sequence[str]) -> Any:
    """The code of a notebook that defines these names: functions, classes and
    values, and everything that they use in turn, without magics."""
    cells = json.loads(Path(file).read_text(encoding="utf-8"))["cells"]
    lines = list[str]()
    for cell in cells:
        if cell["cell_type"] == "code":
            lines += without_magics("".join(cell["source"])).splitlines()
    text = "\n".join(lines)
    linecache.cache[file] = (len(text), None, [f"{x}\n" for x in lines], file)
    statements = needed(ast.parse(text, file).body, names)
    return compile(ast.Module(statements, []), file, "exec")


def needed(body: list[ast.stmt], names: Iterable[str]) -> list[ast.stmt]:
    """The statements that define these names, and what they use in turn."""
    required, indices = {*names}, set[int]()
    while True:
        step = {
            n
            for n, node in enumerate(body)
            if n not in indices and required & _definitions(node)
        }
        if not step:
            return [body[n] for n in sorted(indices)]
        indices |= step
        nodes = (x for n in step for x in ast.walk(body[n]))
        required |= {x.id for x in nodes if isinstance(x, ast.Name)}


# `%time`, `!ls`, `files = !ls`, `?x`, `x.shape?`
MAGIC = r"(?m)^([ \t]*)(?:[%!?]|[\w., ]+=[ ]*[!%]|[\w.]+[?]{1,2};?[ ]*$).*"


def without_magics(cell: str) -> str:
    """A cell as Python: as it is if it can be parsed, else with `pass` in place
    of its magics. A cell of `%%bash` and the like becomes empty lines."""
    for text in (cell, re.sub(MAGIC, r"\1pass # magic", cell)):
        with suppress(SyntaxError):
            ast.parse(text)
            return text
    empty = "\n" * len(cell.splitlines())
    return empty if cell.startswith("%%") else text


def _definitions(node: ast.stmt) -> set[str]:
    """The names that a statement at the top of a file defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(a.asname or a.name).partition(".")[0] for a in node.names}
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        names = (x for x in ast.walk(node) if isinstance(x, ast.Name))
        return {x.id for x in names if isinstance(x.ctx, ast.Store)}
    return set()
