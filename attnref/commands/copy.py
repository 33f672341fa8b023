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
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).resolve().parent.parent
MARKER = re.compile(r"\s*# --8<-- \[(start|end):[\w-]+\]\s*")
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
        alias.name: (node.module or "").removeprefix("attnref.")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("attnref.")
        for alias in node.names
    }


def version() -> str:
    text = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.M)
    return found[1] if found else "?"


def asked_for(words: Iterable[str]) -> list[str]:
    """Public names: `gqa` is those of its file, but for the loop forms.

    Examples:
        >>> asked_for(["gqa", "KVCache"])
        ['GroupedQueryAttention', 'KVCache']
        >>> asked_for(["GroupedQuerryAttention"])
        Traceback (most recent call last):
        ValueError: no 'GroupedQuerryAttention'; near: GroupedQueryAttention
    """
    files: dict[str, list[str]] = {}
    for name, module in public().items():
        if not name.endswith("_loop"):
            files.setdefault(module.rpartition(".")[2], []).append(name)
    known = {name.lower(): [name] for name in public()} | files
    found: dict[str, None] = {}
    for word in words:
        plain = word.lower().replace("-", "_").removesuffix(".py")
        # A function whose file has its name: `softmax`, `sdpa`.
        names = [word] if word in public() else known.get(plain)
        if not names:
            near = difflib.get_close_matches(plain, known, cutoff=0.5)
            told = dict.fromkeys(
                (known[n][0] if n not in files else n) for n in near
            )
            hint = f"near: {', '.join(told)}" if told else "see --list"
            raise ValueError(f"no {word!r}; {hint}")
        found |= dict.fromkeys(names)
    return list(found)


def needed(names: Iterable[str]) -> list[Definition]:
    """The definitions that these names need, dependencies first."""
    reached: dict[tuple[str, str], Definition] = {}
    order: dict[str, None] = {}  # of the modules

    def reach(module: str, name: str) -> None:
        if (module, name) in reached:
            return
        here = read(module)
        definition = here.definitions[name]
        reached[module, name] = definition
        for used in sorted(definition.uses):
            ours = here.imports.get(used)
            if used in here.definitions:
                reach(module, used)
            elif ours and ours.module.startswith("attnref."):
                reach(ours.module.removeprefix("attnref."), ours.name)
        order[module] = None

    for name in names:
        reach(public()[name], name)
    return [
        reached[module, name]
        for module in order
        for name in read(module).definitions
        if (module, name) in reached
    ]


def _order(definitions: list[Definition]) -> list[str]:
    """The modules, each after those that it imports from."""
    modules = dict.fromkeys(d.module for d in definitions)
    done: dict[str, None] = {}

    def visit(module: str) -> None:
        for imported in read(module).imports.values():
            before = imported.module.removeprefix("attnref.")
            if before in modules and before not in done:
                visit(before)
        done[module] = None

    for module in modules:
        if module not in done:
            visit(module)
    return list(done)


def one_file(names: Iterable[str]) -> str:
    """A module that holds these names and all that they need."""
    names = list(names)
    found = needed(names)
    by_module = {
        module: [d for d in found if d.module == module]
        for module in _order(found)
    }
    renamed = _unique(found)
    outside: set[Import] = set()
    texts: list[str] = []
    there = {d.name for d in found}
    for module, definitions in by_module.items():
        imports = read(module).imports
        for definition in definitions:
            used = {imports[u] for u in definition.uses if u in imports}
            outside |= {i for i in used if not i.module.startswith("attnref")}
    at_hand = there | {i.local for i in outside}
    for module, definitions in by_module.items():
        for definition in definitions:
            text = _without_strange_examples(definition, at_hand)
            texts.append(_rename(text, renamed.get(module, {}), module))
    head = [_header(names, [*by_module]), _imports(outside)]
    return "\n\n\n".join(["\n\n".join(filter(None, head)), *texts]) + "\n"


def _header(names: list[str], modules: list[str]) -> str:
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
    """New names for private ones that two modules have: `_a` of x is `_x_a`."""
    modules: dict[str, list[str]] = {}
    for definition in found:
        modules.setdefault(definition.name, []).append(definition.module)
    renamed: dict[str, dict[str, str]] = {}
    for name, homes in modules.items():
        if len(homes) > 1:
            if not name.startswith("_"):
                raise ValueError(f"{name} is defined in {' and '.join(homes)}")
            for home in homes:
                stem = home.rpartition(".")[2]
                renamed.setdefault(home, {})[name] = f"_{stem}{name}"
    return renamed


def _rename(text: str, names: dict[str, str], module: str) -> str:
    """Definitions and uses of private names, under other names."""
    for old, new in names.items():
        text = re.sub(rf"(?<![\w.]){re.escape(old)}\b", new, text)
    return text


def _without_strange_examples(definition: Definition, there: set[str]) -> str:
    """Examples that need what this file does not hold are left out."""
    text, lines = definition.text, definition.text.splitlines()
    node = ast.parse(text).body[0]
    for part in ast.walk(node):
        if not isinstance(part, ast.ClassDef | ast.FunctionDef):
            continue
        doc = part.body[0]
        if not ast.get_docstring(part) or doc.end_lineno is None:
            continue
        rows = range(doc.lineno - 1, doc.end_lineno - 1)
        at = next((i for i in rows if lines[i].strip() == "Examples:"), None)
        if at is None:
            continue
        code = "\n".join(
            line.strip()[4:]
            for line in lines[at : doc.end_lineno]
            if line.strip().startswith((">>> ", "... "))
        )
        own = {a.name for n in _imports_in(code) for a in n.names}
        known = there | own | _assigned(code) | set(dir(builtins))
        strange = _used(code) - known
        if strange or any(
            isinstance(n, ast.ImportFrom) and (n.module or "")[:7] == "attnref"
            for n in _imports_in(code)
        ):
            del lines[at - 1 : doc.end_lineno - 1]
            if at - 2 == doc.lineno - 1:  # a line is left: the quotes join it
                lines[at - 2 : at] = [lines[at - 2] + lines[at - 1].strip()]
            return _without_strange_examples(
                definition._replace(text="\n".join(lines)), there
            )
    return "\n".join(lines)


def _imports_in(code: str) -> list[ast.Import | ast.ImportFrom]:
    return [
        node
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]


def _assigned(code: str) -> set[str]:
    table = symtable.symtable(code, "", "exec")
    return {s.get_name() for s in table.get_symbols() if s.is_assigned()}


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
    for module in _whole([public()[name] for name in names]):
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


def _whole(modules: Iterable[str]) -> list[str]:
    """These modules and all that they import."""
    found: dict[str, None] = {}

    def visit(module: str) -> None:
        found[module] = None
        for imported in read(module).imports.values():
            before = imported.module.removeprefix("attnref.")
            if before != imported.module and before not in found:
                visit(before)

    for module in modules:
        visit(module)
    return list(found)


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
