"""A solution's file as a module: Python, or the cells of a notebook."""

import ast
import json
import linecache
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any


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
    """What defines these names in the cells of a notebook: functions, classes
    and values, and what they need in turn. Magics are left out."""
    cells = json.loads(Path(file).read_text(encoding="utf-8"))["cells"]
    lines = list[str]()
    for cell in cells:
        if cell["cell_type"] == "code":
            lines += without_magics("".join(cell["source"])).splitlines()
    text = "\n".join(lines)
    linecache.cache[file] = (len(text), None, [f"{x}\n" for x in lines], file)
    body = ast.parse(text, file).body
    wanted, chosen = {*names}, set[int]()
    while True:
        more = {
            n
            for n, node in enumerate(body)
            if n not in chosen and wanted & _defined(node)
        }
        if not more:
            break
        chosen |= more
        for n in more:
            every = ast.walk(body[n])
            wanted |= {x.id for x in every if isinstance(x, ast.Name)}
    some = [node for n, node in enumerate(body) if n in chosen]
    return compile(ast.Module(some, []), file, "exec")


# `%time`, `!ls`, `files = !ls`, `?x`, `x.shape?`
MAGIC = r"(?m)^([ \t]*)(?:[%!?]|[\w., ]+=[ ]*[!%]|[\w.]+[?]{1,2};?[ ]*$).*"


def without_magics(cell: str) -> str:
    """What is Python of a cell: all, or but for its magics, or nothing of
    `%%bash`."""
    for text in (cell, re.sub(MAGIC, r"\1pass # magic", cell)):
        with suppress(SyntaxError):
            ast.parse(text)
            return text
    left = "\n" * len(cell.splitlines())
    return left if cell.startswith("%%") else text


def _defined(node: ast.stmt) -> set[str]:
    """The names that a statement at the top of a file defines; `*` is any."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(a.asname or a.name).partition(".")[0] for a in node.names}
    every = ast.walk(node)
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        names = (x for x in every if isinstance(x, ast.Name))
        return {x.id for x in names if isinstance(x.ctx, ast.Store)}
    return set()
