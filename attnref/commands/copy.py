"""attnref copy: one file, or one folder, that runs without the package.

Nothing is kept by hand: the package's own source is read as a syntax tree, and
what the asked names need is put together from it, torch aside.
"""

import argparse
import ast
import builtins
import difflib
import re
import symtable
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).resolve().parent.parent
MARKER = re.compile(r"\s*# --8<-- \[(start|end):[\w-]+\]\s*")
OURS = "attnref."
LICENCE = "MIT-0: no notice needed."


class Import(NamedTuple):
    """`from module import name as local`; without a name, `import module`."""

    module: str
    name: str
    local: str


class Definition(NamedTuple):
    """A function, class or constant of a module."""

    module: str
    name: str
    text: str  # with its decorators and the comment above it
    uses: frozenset[str]  # names of the module, or of Python


class Module(NamedTuple):
    imports: dict[str, Import]
    definitions: dict[str, Definition]


@cache
def read(module: str) -> Module:
    """`core.sdpa`: its imports and definitions, by name."""
    path = PACKAGE.joinpath(*module.split(".")).with_suffix(".py")
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    imports: dict[str, Import] = {}
    definitions: dict[str, Definition] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            for a in node.names:
                local = a.asname or a.name
                imports[local] = Import(a.name, "", local)
        elif isinstance(node, ast.ImportFrom):
            for a in node.names:
                local = a.asname or a.name
                imports[local] = Import(node.module or "", a.name, local)
        else:
            for name in _bound(node):
                own = _text(lines, node)
                definitions[name] = Definition(module, name, own, _used(own))
    return Module(imports, definitions)


def _bound(node: ast.stmt) -> list[str]:
    """The names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [t.id for t in targets if isinstance(t, ast.Name)]


def _text(lines: list[str], node: ast.stmt) -> str:
    """The lines of a statement and of the comment above it."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(d.lineno for d in decorators)]) - 1
    while lines[first - 1].startswith("#") and not MARKER.fullmatch(
        lines[first - 1]
    ):
        first -= 1
    own = lines[first : node.end_lineno]
    return "\n".join(x for x in own if not MARKER.fullmatch(x))


def _used(text: str) -> frozenset[str]:
    """The names from outside that a definition reads."""

    def globals_of(table: symtable.SymbolTable, top: bool) -> Iterator[str]:
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (top or symbol.is_global()):
                yield symbol.get_name()
        for child in table.get_children():
            yield from globals_of(child, False)

    return frozenset(globals_of(symtable.symtable(text, "", "exec"), True))


@cache
def public() -> dict[str, str]:
    """The names of `attnref.__all__`, each with its module."""
    text = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    return {
        alias.name: (node.module or "").removeprefix(OURS)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(OURS)
        for alias in node.names
    }


def version() -> str:
    text = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.M)
    return found[1] if found else "?"


def asked_for(words: Iterable[str]) -> list[str]:
    """Public names; that of a file stands for all in it but its loop forms.

    Examples:
        >>> asked_for(["gqa", "KVCache", "mha.py"])
        ['GroupedQueryAttention', 'KVCache', 'MultiHeadAttention']
        >>> asked_for(["sofmax"])
        Traceback (most recent call last):
        ValueError: no 'sofmax'; near: softmax, online_softmax
    """
    files: dict[str, list[str]] = {}
    for name, module in public().items():
        if not name.endswith("_loop"):
            files.setdefault(module.rpartition(".")[2], []).append(name)
    # Where a name is that of its file too, as softmax is, the file is meant
    # by nobody.
    known = files | {name.lower(): [name] for name in public()}
    found: dict[str, None] = {}
    for word in words:
        plain = word.lower().replace("-", "_").removesuffix(".py")
        if plain not in known:
            near = difflib.get_close_matches(plain, known, cutoff=0.5)
            told = [n if n in files else known[n][0] for n in near]
            hint = f"near: {', '.join(told)}" if told else "see --list"
            raise ValueError(f"no {word!r}; {hint}")
        found |= dict.fromkeys(known[plain])
    return list(found)


def needed(names: Iterable[str]) -> list[Definition]:
    """The definitions that these names need, dependencies first."""
    reached: set[tuple[str, str]] = set()

    def reach(module: str, name: str) -> None:
        if (module, name) in reached:
            return
        reached.add((module, name))
        here = read(module)
        for used in here.definitions[name].uses:
            ours = here.imports.get(used)
            if used in here.definitions:
                reach(module, used)
            elif ours and ours.module.startswith(OURS):
                reach(ours.module.removeprefix(OURS), ours.name)

    for name in names:
        reach(public()[name], name)
    return [
        definition
        for module in with_imported(module for module, _ in sorted(reached))
        for name, definition in read(module).definitions.items()
        if (module, name) in reached
    ]


def with_imported(modules: Iterable[str]) -> list[str]:
    """These modules and all that they import, each after those it imports."""
    found: list[str] = []

    def visit(module: str) -> None:
        for imported in read(module).imports.values():
            if imported.module.startswith(OURS):
                visit(imported.module.removeprefix(OURS))
        if module not in found:
            found.append(module)

    for module in modules:
        visit(module)
    return found


def one_file(names: Iterable[str]) -> str:
    """A module that holds these names and all that they need."""
    names = list(names)
    found = needed(names)
    outside = {
        imported
        for definition in found
        for local, imported in read(definition.module).imports.items()
        if local in definition.uses and not imported.module.startswith(OURS)
    }
    there = {d.name for d in found} | {i.local for i in outside}
    renamed = _unique(found)
    texts = [
        _rename(_without_strange_examples(d.text, there), renamed[d.module])
        for d in found
    ]
    modules = dict.fromkeys(d.module for d in found)
    head = filter(None, [_header(names, modules), _imports(outside)])
    return "\n\n\n".join(["\n\n".join(head), *texts]) + "\n"


def _header(names: list[str], modules: Iterable[str]) -> str:
    files = ", ".join(f"attnref/{m.replace('.', '/')}.py" for m in modules)
    told = [
        f"{', '.join(names)}: one file that needs torch alone.",
        "",
        *_wrapped(f"Cut from attnref {version()}: {files}. {LICENCE}"),
        "",
        *_wrapped(f"Made by: python -m attnref copy {' '.join(names)}"),
    ]
    told[:1] = _wrapped(told[0], 77)
    return '"""' + "\n".join(told) + '\n"""'


def _wrapped(text: str, width: int = 80) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False)


def _unique(found: list[Definition]) -> dict[str, dict[str, str]]:
    """For each module, new names for private ones that another has too: `_a`
    of core/sdpa.py becomes `_sdpa_a`."""
    times = Counter(d.name for d in found)
    renamed: dict[str, dict[str, str]] = {d.module: {} for d in found}
    for definition in found:
        name, module = definition.name, definition.module
        if times[name] > 1 and not name.startswith("_"):
            raise ValueError(f"two files define {name}: copy them apart")
        if times[name] > 1:
            renamed[module][name] = f"_{module.rpartition('.')[2]}{name}"
    return renamed


def _rename(text: str, names: dict[str, str]) -> str:
    for old, new in names.items():
        text = re.sub(rf"(?<![\w.]){re.escape(old)}\b", new, text)
    return text


def _without_strange_examples(text: str, there: set[str]) -> str:
    """Examples that need what the file does not hold are left out."""
    lines = text.splitlines()
    for part in ast.walk(ast.parse(text)):
        if not isinstance(part, ast.ClassDef | ast.FunctionDef):
            continue
        doc = part.body[0]
        if not ast.get_docstring(part) or doc.end_lineno is None:
            continue
        rows = range(doc.lineno - 1, doc.end_lineno - 1)
        at = next((i for i in rows if lines[i].strip() == "Examples:"), None)
        if at is None:
            continue
        shown = map(str.strip, lines[at : doc.end_lineno])
        code = "\n".join(x[4:] for x in shown if x[:4] in (">>> ", "... "))
        table = symtable.symtable(code, "", "exec")
        own = {s.get_name() for s in table.get_symbols() if s.is_assigned()}
        own |= {s.get_name() for s in table.get_symbols() if s.is_imported()}
        strange = _used(code) - there - own - {*dir(builtins)}
        if strange or "from attnref" in code:
            del lines[at - 1 : doc.end_lineno - 1]
            if at - 2 == doc.lineno - 1:  # a line is left: the quotes join it
                lines[at - 2 : at] = [lines[at - 2] + lines[at - 1].strip()]
            return _without_strange_examples("\n".join(lines), there)
    return text


def _imports(outside: set[Import]) -> str:
    """Merged, in the order that isort has: Python's own, then torch."""
    blocks = []
    for ours in (True, False):
        plain: list[str] = []
        whole: dict[str, list[Import]] = {}
        for i in sorted(outside):
            own = i.module.split(".")[0] in sys.stdlib_module_names
            if own is ours and i.name:
                whole.setdefault(i.module, []).append(i)
            elif own is ours:
                alias = "" if i.local == i.module else f" as {i.local}"
                plain.append(f"import {i.module}{alias}")
        plain += [_from(module, whole[module]) for module in sorted(whole)]
        blocks += ["\n".join(plain)] if plain else []
    return "\n\n".join(blocks)


def _from(module: str, imported: list[Import]) -> str:
    def kind(i: Import) -> tuple[int, str]:
        constant = i.name.isupper() and len(i.name) > 1
        return (0 if constant else 2 - i.name[0].isupper(), i.name)

    words = [
        i.name if i.name == i.local else f"{i.name} as {i.local}"
        for i in sorted(imported, key=kind)
    ]
    line = f"from {module} import {', '.join(words)}"
    if len(line) > 80:
        line = f"from {module} import (\n    " + ",\n    ".join(words) + ",\n)"
    return line


def a_folder(names: Iterable[str]) -> dict[str, str]:
    """The files that these names need, as they are but for their imports.

    They import each other relatively: the folder may have any name, and stand
    within any package.
    """
    names = list(names)
    files: dict[str, str] = {}
    for module in with_imported(public()[name] for name in names):
        path = PACKAGE.joinpath(*module.split(".")).with_suffix(".py")
        up = "." * (module.count(".") + 1)
        text = "".join(
            line
            for line in path.read_text(encoding="utf-8").splitlines(True)
            if not MARKER.fullmatch(line.rstrip("\n"))
        )
        files[path.relative_to(PACKAGE).as_posix()] = re.sub(
            r"^from attnref\.", f"from {up}", text, flags=re.M
        )
        for folder in path.relative_to(PACKAGE).parents:
            inside = (folder / "__init__.py").as_posix()
            files.setdefault(inside, "")
    homes: dict[str, list[Import]] = {}
    for name in names:
        home = f".{public()[name]}"
        homes.setdefault(home, []).append(Import(home, name, name))
    quoted = "".join(f'    "{name}",\n' for name in sorted(names))
    files["__init__.py"] = (
        f'"""Copied from attnref {version()}. {LICENCE}"""\n\n'
        + "\n".join(_from(home, homes[home]) for home in sorted(homes))
        + f"\n\n__all__ = [\n{quoted}]\n"
    )
    return dict(sorted(files.items()))


def listed() -> str:
    """Every public name, its file, and how long its copy is."""
    rows = [
        (name, f"attnref/{module.replace('.', '/')}.py", one_file([name]))
        for name, module in public().items()
    ]
    wide = max(len(name) for name, _, _ in rows)
    return "\n".join(
        f"{name:{wide}}  {len(text.splitlines()):4} lines, from {file}"
        for name, file, text in sorted(rows, key=lambda row: row[1])
    )


def run(asked: argparse.Namespace) -> str:
    if asked.list:
        return listed()
    if not asked.names:
        raise ValueError("which name? --list prints all")
    names = asked_for(asked.names)
    if asked.folder:
        files = {
            Path(asked.folder, file): text
            for file, text in a_folder(names).items()
        }
    elif asked.output:
        files = {Path(asked.output): one_file(names)}
    else:
        return one_file(names).removesuffix("\n")
    there = [str(path) for path in files if path.exists()]
    if there and not asked.force:
        raise ValueError(f"{there[0]} is there already; --force overwrites it")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    return "\n".join(
        f"{p}: {len(t.splitlines())} lines" for p, t in files.items()
    )


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "copy",
        help="code that runs without the package",
        description="One file that holds what you name and all that it needs.",
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="name", help="gqa, KVCache, sdpa, ...")
    add("-o", "--output", metavar="FILE", help="write it there")
    add("--folder", metavar="DIR", help="several files that import each other")
    add("--list", action="store_true", help="every name that can be copied")
    add("--force", action="store_true", help="overwrite what is there")
    parser.set_defaults(run=run, fail=parser.error)
