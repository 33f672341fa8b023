"""attnref copy: one file, or one folder, that runs without the package.

A plain form is copied as it is. For all other names, and with --full, the copy
is made from the package's own source in three steps: `read` finds the imports
and definitions of a module in its syntax tree, `definitions_for` collects those
that the names need, and `one_file` joins their lines. `folder_files` copies
whole modules. Code that would mean something else in a copy is refused, with
its place.
"""

import argparse
import ast
import builtins
import keyword
import re
import symtable
import sys
import textwrap
from collections.abc import Container, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from attnref.judge.words import wide
from attnref.words import (
    LICENCE,
    add_language,
    address,
    chinese,
    hint,
    message,
    version,
)

PACKAGE = Path(__file__).resolve().parent.parent
MARKER = re.compile(r"\s*# --8<-- \[(start|end):[\w-]+\]\s*")
OURS = "attnref."


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
    title: str  # the first line of its docstring
    imports: dict[str, Import]
    definitions: dict[str, Definition]
    refusal: str  # why a copy cannot hold it, "" if it can


@cache
def read(module: str) -> Module:
    """The imports and definitions of a module, `core.sdpa`, by name."""
    text = path_of(module).read_text(encoding="utf-8")
    lines, tree = text.splitlines(), ast.parse(text)
    imports: dict[str, Import] = {}
    definitions: dict[str, Definition] = {}
    start, previous, refusal = tree.body[0], "", ""
    for node in _statements(tree.body):
        name = _name_of(node)
        reason = _refusal(node, definitions, previous)
        if reason and not refusal:
            place = f"{source_of(module)}:{node.lineno}"
            refusal = f"{place}: {reason}, which a copy cannot hold"
        if isinstance(node, ast.Import | ast.ImportFrom):
            for imported in _imports_of(node):
                imports[imported.local] = imported
        else:
            # The overloads of a function and the function are one definition.
            start = start if name == previous else node
            code = _text(lines, start, node)
            definitions[name] = Definition(module, name, code, _used(code))
        previous = name
    title = (ast.get_docstring(tree) or "").split("\n")[0]
    return Module(title, imports, definitions, refusal)


def _imports_of(node: ast.Import | ast.ImportFrom) -> Iterator[Import]:
    module = getattr(node, "module", None)
    for alias in node.names:
        local = alias.asname or alias.name
        if module:
            yield Import(module, alias.name, local)
        else:
            yield Import(alias.name, "", local)


def read_for_copy(module: str) -> Module:
    """The same, or an error if a copy cannot hold the module."""
    contents = read(module)
    if contents.refusal:
        raise ValueError(contents.refusal)
    return contents


def path_of(module: str) -> Path:
    return PACKAGE.joinpath(*module.split(".")).with_suffix(".py")


def source_of(module: str) -> str:
    """`core.sdpa`: attnref/core/sdpa.py."""
    return f"attnref/{module.replace('.', '/')}.py"


def text_of(module: str) -> str:
    """The text of a module's file without markers."""
    lines = path_of(module).read_text(encoding="utf-8").split("\n")
    text = "\n".join(x for x in lines if not MARKER.fullmatch(x))
    return re.sub(r"\n{4,}", "\n\n\n", text).strip("\n") + "\n"


def imported_by(module: str) -> list[str]:
    """The modules of the package that a module imports from."""
    modules = (x.module for x in read(module).imports.values())
    stems = (m.removeprefix(OURS) for m in modules if m.startswith(OURS))
    return list(dict.fromkeys(stems))


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that a copy needs: not docstrings, and what is imported
    under `if TYPE_CHECKING` as if it stood alone."""
    typing = ("if TYPE_CHECKING:", "if typing.TYPE_CHECKING:")
    for node in body:
        if (
            isinstance(node, ast.If)
            and not node.orelse
            and ast.unparse(node).startswith(typing)
        ):
            yield from _statements(node.body)
        elif not isinstance(node, ast.Expr) or not isinstance(
            node.value, ast.Constant
        ):
            yield node


def _name_of(node: ast.stmt) -> str:
    """The name that a statement defines, "" if it is not one name."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    names = [t.id for t in targets if isinstance(t, ast.Name)]
    return names[0] if len(names) == len(targets) == 1 else ""


def _refusal(node: ast.stmt, definitions: Container[str], previous: str) -> str:
    """What a statement does that it would not do in a copy, "" if nothing.

    `definitions` are the names that the module has defined so far, `previous`
    is the last one.
    """
    if isinstance(node, ast.Import | ast.ImportFrom):
        return _import_refusal(node)
    name = _name_of(node)
    if not name:
        return f"`{ast.unparse(node).splitlines()[0]}` at the top of a file"
    if name in definitions and name != previous:
        return f"a second {name}"
    for part in ast.walk(node):
        if isinstance(part, ast.Import | ast.ImportFrom | ast.Name):
            code = ast.unparse(part)
            if code == "__file__" or " attnref" in code:
                return f"`{code}` within {name}"
    for decorator in getattr(node, "decorator_list", []):
        # The decorator itself may be of the module, its arguments may not.
        function = getattr(decorator, "func", decorator)
        for part in ast.walk(decorator):
            if (
                isinstance(part, ast.Name)
                and part is not function
                and part.id in definitions
            ):
                return f"`@{ast.unparse(decorator)}`"
    return ""


def _import_refusal(node: ast.Import | ast.ImportFrom) -> str:
    code = f"`{ast.unparse(node)}`"
    if isinstance(node, ast.Import):
        package = any(a.name.split(".")[0] == "attnref" for a in node.names)
        dotted = any("." in a.name and not a.asname for a in node.names)
        return f"{code} without a name of its own" if package or dotted else ""
    module = node.module or ""
    if node.level or module in ("attnref", "__future__"):
        return code
    for alias in node.names:
        if alias.name == "*":
            return code
        path = path_of(f"{module}.{alias.name}".removeprefix(OURS))
        if module.startswith(OURS) and (alias.asname or path.exists()):
            return f"{code}, not a name as it is"
    return ""


def _text(lines: list[str], first: ast.stmt, last: ast.stmt) -> str:
    """The lines from one statement to another and the comment above them."""
    decorators = getattr(first, "decorator_list", [])
    start = min([first.lineno, *(d.lineno for d in decorators)]) - 1
    while start and lines[start - 1].startswith("#"):
        if MARKER.fullmatch(lines[start - 1]):
            break
        start -= 1
    code = lines[start : last.end_lineno]
    return "\n".join(x for x in code if not MARKER.fullmatch(x))


def _used(text: str) -> frozenset[str]:
    """The names that a definition reads and does not define."""

    def globals_of(table: symtable.SymbolTable, top: bool) -> Iterator[str]:
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (top or symbol.is_global()):
                yield symbol.get_name()
        for child in table.get_children():
            yield from globals_of(child, False)

    names = {
        name
        for node in ast.walk(ast.parse(text))
        for field in ("annotation", "returns")
        for name in _names_in_strings(getattr(node, field, None))
    }
    table = symtable.symtable(text, "", "exec")
    return frozenset(names.union(globals_of(table, True)))


def _names_in_strings(annotation: ast.AST | None) -> Iterator[str]:
    """Names in the strings of an annotation: "Rule", not Literal["half"]."""
    if isinstance(annotation, ast.Constant):
        if isinstance(annotation.value, str):
            nodes = ast.walk(ast.parse(annotation.value, mode="eval"))
            yield from (n.id for n in nodes if isinstance(n, ast.Name))
    elif isinstance(annotation, ast.Subscript) and (
        ast.unparse(annotation.value).endswith("Literal")
    ):
        return
    elif annotation is not None:
        for child in ast.iter_child_nodes(annotation):
            yield from _names_in_strings(child)


@cache
def public() -> dict[str, str]:
    """The names of `attnref.__all__`, each with its module."""
    text = (PACKAGE / "__init__.pyi").read_text(encoding="utf-8")
    return {
        alias.name: (node.module or "").removeprefix(OURS)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(OURS)
        for alias in node.names
        if not alias.asname  # `check as check`: public, and not to be copied
    }


def files() -> dict[str, list[str]]:
    """The public names of each file, `gqa`, that its copy holds: all but loop
    forms."""
    stems: dict[str, list[str]] = {}
    for name, module in public().items():
        if not name.endswith("_loop"):
            stems.setdefault(module.rpartition(".")[2], []).append(name)
    return stems


def plain() -> dict[str, Path]:
    """The files of the plain forms by name."""
    folder = PACKAGE / "plain"
    return {path.stem: path for path in sorted(folder.glob("[!_.]*.py"))}


def plain_form(words: list[str]) -> Path | None:
    """The plain form of these words, if they ask for one. It stands alone, so
    an error if they ask for more."""
    names = [w for w in ",".join(words).lower().split(",") if w]
    stems = (re.sub(r"^plain[/.]|\.py$", "", w) for w in names)
    forms = [plain().get(stem.replace("-", "_")) for stem in stems]
    if len(forms) > 1 and any(forms):
        raise ValueError(
            message(
                "{}: copy one plain form at a time; --full makes one file of "
                "several",
                names[[*map(bool, forms)].index(True)],
            )
        )
    return forms[0] if forms else None


def names_for(words: Iterable[str]) -> list[str]:
    """The public names of some words: a name, or a file for all names in it
    but loop forms.

    Examples:
        >>> names_for(["gqa", "KVCache", "attnref/layers/mha.py"])
        ['GroupedQueryAttention', 'KVCache', 'MultiHeadAttention']
        >>> names_for(["sofmax"])
        Traceback (most recent call last):
        ValueError: there is no 'sofmax'; did you mean softmax, online_softmax?
    """
    by_file, by_name = files(), {name.lower(): [name] for name in public()}
    folders = {module.partition(".")[0] for module in public().values()}
    names: dict[str, None] = {}
    for word in filter(None, ",".join(words).split(",")):
        path = word.strip().lower().replace("-", "_")
        *parents, stem = re.split(r"[/.]", path.removesuffix(".py"))
        # softmax is a name and a file: softmax.py, core.softmax mean the file.
        is_file = path.endswith(".py") or folders.intersection(parents[-1:])
        known = by_name | by_file if is_file else by_file | by_name
        if stem not in known:
            if stem in plain():
                raise ValueError(
                    message(
                        "{!r} is a plain form: copy it without --full and "
                        "--folder",
                        word,
                    )
                )
            texts = {n: n if n in by_file else known[n][0] for n in known}
            end = hint(stem, texts) or message("; --list prints all names")
            raise ValueError(message("there is no {!r}", word) + end)
        names |= dict.fromkeys(known[stem])
    return list(names)


def definitions_for(names: Iterable[str], module: str = "") -> list[Definition]:
    """All definitions that some names need, dependencies first. The names are
    public, or those of one module."""
    keys: set[tuple[str, str]] = set()

    def visit(module: str, name: str) -> None:
        contents = read_for_copy(module)
        imported = contents.imports.get(name)
        if name in contents.definitions:
            if (module, name) not in keys:
                keys.add((module, name))
                for word in contents.definitions[name].uses:
                    visit(module, word)
        elif imported and imported.module.startswith(OURS):
            visit(imported.module.removeprefix(OURS), imported.name)

    for name in names:
        visit(module or public()[name], name)
    return [
        definition
        for module in with_imported(module for module, _ in sorted(keys))
        for name, definition in read(module).definitions.items()
        if (module, name) in keys
    ]


def with_imported(modules: Iterable[str]) -> list[str]:
    """Some modules and all that they import, each after its imports."""
    ordered: list[str] = []
    visited: set[str] = set()

    def visit(module: str) -> None:
        if module not in visited:
            visited.add(module)
            for name in imported_by(module):
                visit(name)
            ordered.append(module)

    for module in modules:
        visit(module)
    return ordered


def one_file(names: Iterable[str], address: str = "", module: str = "") -> str:
    """A module that holds some names and all that they need.

    Its header gives the `address` of the source, if one is known; nothing else
    depends on it. Names that are not public are those of one `module`; no
    command copies them.
    """
    names = list(names)
    definitions = definitions_for(names, module)
    imports = {
        imported
        for definition in definitions
        for local, imported in read(definition.module).imports.items()
        if local in definition.uses and not imported.module.startswith(OURS)
    }
    sources = _sources(definitions, imports)
    parts = dict.fromkeys(  # a heading for the first definition of a module
        part
        for d in definitions
        for part in (_heading(d.module), _own_examples(d.text, sources))
    )
    heading, *texts = parts
    command = "" if module else f"Made by: {_command(names)}"
    head = [_header(names, address, command), _import_lines(imports), heading]
    return "\n\n\n".join(["\n\n".join(filter(None, head)), *texts]) + "\n"


def _header(names: list[str], address: str, command: str) -> str:
    lines = [
        *_wrap(f"{', '.join(names)}: one file that needs only torch.", 77),
        "",
        f"Cut from attnref {version()}. {LICENCE}",
        *([f"Source: {address}"] if address else []),
        *_wrap(command),
    ]
    return '"""' + "\n".join(lines) + '\n"""'


def _command(names: list[str]) -> str:
    """The command that copies these names, with files where it can."""
    words, rest = [], [*dict.fromkeys(names)]
    for stem, members in files().items():
        if {*members} <= {*rest}:
            words.append(f"{stem}.py")
            rest = [name for name in rest if name not in members]
    return f"python -m attnref copy --full {' '.join([*words, *rest])}"


def _heading(module: str) -> str:
    file = source_of(module).removeprefix("attnref/")
    lines = [file, *_wrap(read(module).title, 78)]
    return "\n".join(f"# {line}" for line in lines)


def _wrap(text: str, width: int = 80) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False)


def _sources(
    definitions: list[Definition], imports: set[Import]
) -> dict[str, str]:
    """Where each name of a copy comes from. A name with two sources is refused,
    and one that would hide a name of Python which some code reads."""
    sources: dict[str, str] = {}
    pairs = [(d.name, f"attnref.{d.module}") for d in definitions]
    pairs += [(i.local, f"{i.module}.{i.name}") for i in sorted(imports)]
    for name, source in pairs:
        if sources.setdefault(name, source) != source:
            raise ValueError(
                message(
                    "{} is defined in {} and in {}", name, sources[name], source
                )
            )
    for d in definitions:
        contents = read(d.module)
        for name in d.uses - {*contents.definitions, *contents.imports}:
            if name in sources:
                raise ValueError(
                    message(
                        "{} is Python's own in attnref.{}, and defined in {}",
                        name,
                        d.module,
                        sources[name],
                    )
                )
    return sources


def _own_examples(text: str, names: Iterable[str]) -> str:
    """Leave out the examples that need other names than those of the copy."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        doc = node.body[0]
        if not ast.get_docstring(node) or doc.end_lineno is None:
            continue
        start, end = doc.lineno - 1, doc.end_lineno - 1  # the quotes
        rows = [n for n in range(start, end) if lines[n].strip() == "Examples:"]
        if rows and _needs_others(lines[rows[0] : end + 1], names):
            row = rows[0]
            del lines[row - 1 : end]  # with the empty line above
            if row - 2 == start:  # one line is left: the quotes join it
                lines[start:row] = [lines[start] + lines[row - 1].strip()]
            return _own_examples("\n".join(lines), names)
    return text


def _needs_others(lines: list[str], names: Iterable[str]) -> bool:
    """Whether the examples in these lines read names beyond those given, their
    own and Python's."""
    shown = map(str.strip, lines)
    code = "\n".join(x[4:] for x in shown if x[:4] in (">>> ", "... "))
    symbols = symtable.symtable(code, "", "exec").get_symbols()
    local = {
        s.get_name() for s in symbols if s.is_assigned() or s.is_imported()
    }
    others = _used(code) - {*names} - local - {*dir(builtins)}
    return bool(others) or "from attnref" in code


def _import_lines(imports: set[Import]) -> str:
    """The imports as isort writes them: Python's own, then torch."""
    blocks = []
    for standard in (True, False):
        lines: list[str] = []
        by_module: dict[str, list[Import]] = {}
        for i in sorted(imports):
            top = i.module.split(".")[0]
            if (top in sys.stdlib_module_names) is not standard:
                continue
            if i.name:
                by_module.setdefault(i.module, []).append(i)
            else:
                alias = "" if i.local == i.module else f" as {i.local}"
                lines.append(f"import {i.module}{alias}")
        lines += [
            _from(module, by_module[module]) for module in sorted(by_module)
        ]
        blocks += ["\n".join(lines)] if lines else []
    return "\n\n".join(blocks)


def _from(module: str, imports: list[Import]) -> str:
    """`from module import ...`: constants, then classes, then functions."""

    def rank(i: Import) -> tuple[int, str]:
        constant = i.name.isupper() and len(i.name) > 1
        return (0 if constant else 2 - i.name[0].isupper(), i.name)

    words = [
        i.name if i.name == i.local else f"{i.name} as {i.local}"
        for i in sorted(imports, key=rank)
    ]
    line = f"from {module} import {', '.join(words)}"
    if len(line) > 80:
        line = f"from {module} import (\n    " + ",\n    ".join(words) + ",\n)"
    return line


def folder_files(names: Iterable[str]) -> dict[str, str]:
    """The texts of the files that some names need, by path.

    The files import each other relatively, so that the folder may have any name
    and stand within any package.
    """
    names = list(names)
    files: dict[str, str] = {}
    for module in with_imported(public()[name] for name in names):
        contents, text = read_for_copy(module), text_of(module)
        path = path_of(module).relative_to(PACKAGE)
        dots = "." * (module.count(".") + 1)
        if ">>> from attnref" in text:
            local = {*contents.definitions, *contents.imports}
            text = _own_examples(text, local) + "\n"
        files[path.as_posix()] = re.sub(
            r"^( *from )attnref\.", rf"\g<1>{dots}", text, flags=re.M
        )
        for folder in path.parents:
            files.setdefault((folder / "__init__.py").as_posix(), "")
    homes: dict[str, list[Import]] = {}
    for name in names:
        home = f".{public()[name]}"
        homes.setdefault(home, []).append(Import(home, name, name))
    strings = "".join(f'    "{name}",\n' for name in sorted(names))
    files["__init__.py"] = (
        f'"""Copied from attnref {version()}. {LICENCE}"""\n\n'
        + "\n".join(_from(home, homes[home]) for home in sorted(homes))
        + f"\n\n__all__ = [\n{strings}]\n"
    )
    return dict(sorted(files.items()))


def listing() -> str:
    """A table of the plain forms, files and names, and how long a copy is."""
    rows = [("plain form", "lines", "what it is")]
    for stem, path in plain().items():
        text = path.read_text(encoding="utf-8")
        title = (ast.get_docstring(ast.parse(text)) or "").split("\n")[0]
        word = stem.replace("_", "-")
        rows.append((word, str(len(text.splitlines())), title))
    rows += [("", "", ""), ("--full", "lines", "what it stands for")]
    lower = {name.lower() for name in public()}
    for stem, names in files().items():
        # `softmax` is the function and `block` the class, not the file.
        word = f"{stem}.py" if stem in lower else stem.replace("_", "-")
        rows.append((word, _length(names), ", ".join(names)))
    rows += [("", "", ""), ("name", "lines", "where it is defined")]
    for name, module in public().items():
        rows.append((name, _length([name]), source_of(module)))
    widest = max(len(word) for word, _, _ in rows)
    margin = " " * (widest + 9)
    lines = list[str]()
    for row in rows:
        word, length, title = map(message, row)
        space = " " * (widest - wide(word) + 7 - wide(length))
        line = f"{word}{space}{length}  {title}"
        lines.append(textwrap.fill(line, 80, subsequent_indent=margin))
    return "\n".join(lines)


def _length(names: list[str]) -> str:
    return str(len(one_file(names).splitlines()))


def run(options: argparse.Namespace) -> str:
    if options.list:
        if options.names:
            raise ValueError(
                message("--list does not take names: it prints all")
            )
        return listing()
    if options.dequantise and not options.config:
        raise ValueError(message("--dequantise is for files of --config"))
    if options.config:
        if options.names or options.full or options.folder:
            raise ValueError(
                message("--config does not take names: it writes one file")
            )
        from attnref.released.generate import file_of

        text = file_of(options.config, dequantise=options.dequantise)
        return _write_file(options, in_its_language(text))
    full = options.full or options.folder
    form = None if full else plain_form(options.names)
    names = [] if form else names_for(options.names)
    if not names and not form:
        raise ValueError(message("pass one or more names; --list prints all"))
    if options.folder:
        top = Path(options.folder)
        texts = {top / file: x for file, x in folder_files(names).items()}
        return _write(options, top, texts)
    if form:
        text = form.read_text(encoding="utf-8")
        return _write_file(options, in_its_language(text))
    return _write_file(options, one_file(names, address()))


def in_its_language(code: str) -> str:
    """Code with its comments in the language of messages."""
    from attnref.commands.comments import in_chinese

    return in_chinese(code) if chinese() else code


def _write_file(options: argparse.Namespace, text: str) -> str:
    """Print one file, or write it."""
    if options.output in (None, "-"):
        return text.removesuffix("\n")
    top = Path(options.output)
    if options.output.endswith("/") or top.is_dir():
        raise ValueError(
            message("{} is a folder; pass it as --folder", options.output)
        )
    return _write(options, top, {top: text})


def _write(
    options: argparse.Namespace, top: Path, texts: dict[Path, str]
) -> str:
    """Write files, all below `top`, and return a line for each."""
    _check_paths(texts, options.force)
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    lines = [
        message("{}: {} lines", path, len(text.splitlines()))
        for path, text in texts.items()
    ]
    return "\n".join([*lines, *_notes(top, texts)])


def _check_paths(paths: Iterable[Path], force: bool) -> None:
    """Refuse paths that cannot be written, before anything is written."""
    for path in paths:
        for folder in path.parents:
            if folder.exists() and not folder.is_dir():
                raise ValueError(message("{} is a file, not a folder", folder))
        if path.exists() and not force:
            raise ValueError(
                message("{} already exists; --force overwrites it", path)
            )


def _notes(top: Path, texts: Container[Path]) -> Iterator[str]:
    """Notes about other files in the folder, and names that Python cannot
    import."""
    for folder in sorted({m.partition(".")[0] for m in public().values()}):
        for path in sorted((top / folder).glob("*.py")):
            if path not in texts and path.stat().st_size:
                yield message(
                    "{}: left as it was, and not part of this copy", path
                )
    name = top.resolve().stem if top in texts else top.resolve().name
    if not name.isidentifier() or keyword.iskeyword(name):
        yield message("note: Python cannot import what is called {!r}", name)


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "copy",
        help="code that runs without the package",
        description="Print the plain form of a subject, which needs only "
        "PyTorch. With --full or --folder: one file, or several, with what "
        "you name and all that it needs of the package.",
        epilog=message(
            "example: {}", "%(prog)s --full gqa kv-cache -o attention.py"
        ),
    )
    parser.add_argument(
        "names", nargs="*", metavar="name", help="gqa, KVCache, sdpa, ..."
    )
    add = parser.add_mutually_exclusive_group().add_argument
    add("-o", "--output", metavar="FILE", help="write it there; - prints it")
    add("--folder", metavar="DIR", help="several files that import each other")
    add("--list", action="store_true", help="every name that can be copied")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="every layer of a model, from its config.json or the folder that "
        "holds it, as one file",
    )
    parser.add_argument(
        "--dequantise",
        action="store_true",
        help="with --config: a file that loads quantised weights, too",
    )
    parser.add_argument(
        "--full", action="store_true", help="the package's form of a subject"
    )
    parser.add_argument(
        "--force", action="store_true", help="overwrite existing files"
    )
    add_language(parser)
    parser.set_defaults(run=run)
