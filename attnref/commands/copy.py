"""attnref copy: one file, or one folder, that runs without the package.

Of a subject with a plain form, that file as it is. Of all else, and with
--full, nothing is kept by hand: the package's own source is read as a syntax
tree, and what the asked names need is put together from it, torch aside. Code
that would mean something else in a copy is refused, with its place.
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

from attnref.check.words import wide
from attnref.words import (
    LICENCE,
    add_language,
    address,
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
    about: str  # the first line of its docstring
    imports: dict[str, Import]
    definitions: dict[str, Definition]
    refused: str  # what a copy of it cannot hold; "" if nothing


@cache
def read(module: str) -> Module:
    """`core.sdpa`: its imports and definitions, by name."""
    text = path_of(module).read_text(encoding="utf-8")
    lines, tree = text.splitlines(), ast.parse(text)
    imports: dict[str, Import] = {}
    definitions: dict[str, Definition] = {}
    first, last, refused = tree.body[0], "", ""
    for node in _statements(tree.body):
        name = _bound(node)
        why = _refused(node, definitions, last)
        if why and not refused:
            place = f"{source_of(module)}:{node.lineno}"
            refused = f"{place}: {why}, which a copy cannot hold"
        if isinstance(node, ast.Import | ast.ImportFrom):
            of = getattr(node, "module", None)
            for a in node.names:
                local = a.asname or a.name
                imports[local] = Import(
                    of or a.name, a.name if of else "", local
                )
        else:
            # Of a function with overloads, all that bind its name are one.
            first = first if name == last else node
            own = _text(lines, first, node)
            definitions[name] = Definition(module, name, own, _used(own))
        last = name
    about = (ast.get_docstring(tree) or "").split("\n")[0]
    return Module(about, imports, definitions, refused)


def copied(module: str) -> Module:
    """The same, of a module that may be copied."""
    here = read(module)
    if here.refused:
        raise ValueError(here.refused)
    return here


def path_of(module: str) -> Path:
    return PACKAGE.joinpath(*module.split(".")).with_suffix(".py")


def source_of(module: str) -> str:
    """`core.sdpa`: attnref/core/sdpa.py."""
    return f"attnref/{module.replace('.', '/')}.py"


def text_of(module: str) -> str:
    """Its file as it is, without markers."""
    lines = path_of(module).read_text(encoding="utf-8").split("\n")
    text = "\n".join(x for x in lines if not MARKER.fullmatch(x))
    return re.sub(r"\n{4,}", "\n\n\n", text).strip("\n") + "\n"


def imported_by(module: str) -> list[str]:
    """The modules of the package that it imports from."""
    modules = (i.module for i in read(module).imports.values())
    ours = (m.removeprefix(OURS) for m in modules if m.startswith(OURS))
    return list(dict.fromkeys(ours))


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those that a copy needs; what is imported for types alone, it has."""
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


def _bound(node: ast.stmt) -> str:
    """The name that a statement defines, if it is one name."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    names = [t.id for t in targets if isinstance(t, ast.Name)]
    return names[0] if len(names) == len(targets) == 1 else ""


def _refused(node: ast.stmt, before: Container[str], last: str) -> str:
    """What a statement does that it would not do in a copy; "" if nothing.

    `before` are the names that the module has defined so far.
    """
    if isinstance(node, ast.Import | ast.ImportFrom):
        return _import_refused(node)
    name = _bound(node)
    if not name:
        return f"`{ast.unparse(node).splitlines()[0]}` at the top of a file"
    if name in before and name != last:
        return f"a second {name}"
    for part in ast.walk(node):
        if isinstance(part, ast.Import | ast.ImportFrom | ast.Name):
            code = ast.unparse(part)
            if code == "__file__" or " attnref" in code:
                return f"`{code}` within {name}"
    for decorator in getattr(node, "decorator_list", []):
        whole = getattr(decorator, "func", decorator)
        for part in ast.walk(decorator):
            if (
                isinstance(part, ast.Name)
                and part is not whole
                and part.id in before
            ):
                return f"`@{ast.unparse(decorator)}`"
    return ""


def _import_refused(node: ast.Import | ast.ImportFrom) -> str:
    code = f"`{ast.unparse(node)}`"
    if isinstance(node, ast.Import):
        ours = any(a.name.split(".")[0] == "attnref" for a in node.names)
        deep = any("." in a.name and not a.asname for a in node.names)
        return f"{code} without a name of its own" if ours or deep else ""
    module = node.module or ""
    if node.level or module in ("attnref", "__future__"):
        return code
    for a in node.names:
        if a.name == "*":
            return code
        inner = f"{module}.{a.name}".removeprefix(OURS)
        if module.startswith(OURS) and (a.asname or path_of(inner).exists()):
            return f"{code}, not a name as it is"
    return ""


def _text(lines: list[str], node: ast.stmt, last: ast.stmt) -> str:
    """The lines from one statement to another and the comment above them."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(d.lineno for d in decorators)]) - 1
    while first and lines[first - 1].startswith("#"):
        if MARKER.fullmatch(lines[first - 1]):
            break
        first -= 1
    own = lines[first : last.end_lineno]
    return "\n".join(x for x in own if not MARKER.fullmatch(x))


def _used(text: str) -> frozenset[str]:
    """The names from outside that a definition reads."""

    def globals_of(table: symtable.SymbolTable, top: bool) -> Iterator[str]:
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (top or symbol.is_global()):
                yield symbol.get_name()
        for child in table.get_children():
            yield from globals_of(child, False)

    quoted = {
        name
        for node in ast.walk(ast.parse(text))
        for field in ("annotation", "returns")
        for name in _quoted(getattr(node, field, None))
    }
    table = symtable.symtable(text, "", "exec")
    return frozenset(quoted.union(globals_of(table, True)))


def _quoted(annotation: ast.AST | None) -> Iterator[str]:
    """Names in the strings of an annotation: "Rule", not Literal["half"]."""
    if isinstance(annotation, ast.Constant):
        if isinstance(annotation.value, str):
            inside = ast.walk(ast.parse(annotation.value, mode="eval"))
            yield from (n.id for n in inside if isinstance(n, ast.Name))
    elif isinstance(annotation, ast.Subscript) and (
        ast.unparse(annotation.value).endswith("Literal")
    ):
        return
    elif annotation is not None:
        for child in ast.iter_child_nodes(annotation):
            yield from _quoted(child)


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
    """`gqa`: the public names that its copy is made for, all but loop forms."""
    stems: dict[str, list[str]] = {}
    for name, module in public().items():
        if not name.endswith("_loop"):
            stems.setdefault(module.rpartition(".")[2], []).append(name)
    return stems


def plain() -> dict[str, Path]:
    """The files of the plain forms, by what one asks for."""
    folder = PACKAGE / "plain"
    return {path.stem: path for path in sorted(folder.glob("[!_.]*.py"))}


def plain_form(words: list[str]) -> Path | None:
    """The plain form that is asked for: alone, since it stands alone."""
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
    """Public names; that of a file stands for all in it but its loop forms.

    Examples:
        >>> names_for(["gqa", "KVCache", "attnref/layers/mha.py"])
        ['GroupedQueryAttention', 'KVCache', 'MultiHeadAttention']
        >>> names_for(["sofmax"])
        Traceback (most recent call last):
        ValueError: there is no 'sofmax'; did you mean softmax, online_softmax?
    """
    stems, alone = files(), {name.lower(): [name] for name in public()}
    folders = {module.partition(".")[0] for module in public().values()}
    names: dict[str, None] = {}
    for word in filter(None, ",".join(words).split(",")):
        plain = word.strip().lower().replace("-", "_")
        *way, stem = re.split(r"[/.]", plain.removesuffix(".py"))
        # softmax is a name and a file: softmax.py, core.softmax mean the file.
        file = plain.endswith(".py") or folders.intersection(way[-1:])
        known = alone | stems if file else stems | alone
        if stem not in known:
            meanings = {n: n if n in stems else known[n][0] for n in known}
            meant = hint(stem, meanings) or message("; --list prints all names")
            raise ValueError(message("there is no {!r}", word) + meant)
        names |= dict.fromkeys(known[stem])
    return list(names)


def needed(names: Iterable[str], module: str = "") -> list[Definition]:
    """The definitions that these names need, dependencies first; of public
    names, or of those of one module."""
    reached: set[tuple[str, str]] = set()

    def reach(module: str, name: str) -> None:
        here = copied(module)
        ours = here.imports.get(name)
        if name in here.definitions:
            if (module, name) not in reached:
                reached.add((module, name))
                for used in here.definitions[name].uses:
                    reach(module, used)
        elif ours and ours.module.startswith(OURS):
            reach(ours.module.removeprefix(OURS), ours.name)

    for name in names:
        reach(module or public()[name], name)
    return [
        definition
        for module in with_imported(module for module, _ in sorted(reached))
        for name, definition in read(module).definitions.items()
        if (module, name) in reached
    ]


def with_imported(modules: Iterable[str]) -> list[str]:
    """These modules and all that they import, each after those it imports."""
    ordered: list[str] = []
    seen: set[str] = set()

    def visit(module: str) -> None:
        if module not in seen:
            seen.add(module)
            for imported in imported_by(module):
                visit(imported)
            ordered.append(module)

    for module in modules:
        visit(module)
    return ordered


def one_file(names: Iterable[str], address: str = "", module: str = "") -> str:
    """A module that holds these names and all that they need.

    The header says where it is from: `address`, if one is known. Nothing else
    depends on it. Names that are not public are of one `module`, and no
    command makes a copy of them.
    """
    names = list(names)
    definitions = needed(names, module)
    outside = {
        imported
        for definition in definitions
        for local, imported in read(definition.module).imports.items()
        if local in definition.uses and not imported.module.startswith(OURS)
    }
    there = _one_meaning_each(definitions, outside)
    parts = dict.fromkeys(
        part
        for d in definitions
        for part in (
            _heading(d.module),
            _without_strange_examples(d.text, there),
        )
    )
    first, *others = parts
    command = "" if module else f"Made by: {_command(names)}"
    head = [_header(names, address, command), _imports(outside), first]
    return "\n\n\n".join(["\n\n".join(filter(None, head)), *others]) + "\n"


def _header(names: list[str], address: str, command: str) -> str:
    lines = [
        *_wrapped(f"{', '.join(names)}: one file that needs only torch.", 77),
        "",
        f"Cut from attnref {version()}. {LICENCE}",
        *([f"Source: {address}"] if address else []),
        *_wrapped(command),
    ]
    return '"""' + "\n".join(lines) + '\n"""'


def _command(names: list[str]) -> str:
    words, left = [], dict.fromkeys(names)
    for stem, own in files().items():
        if {*own} <= left.keys():
            words.append(f"{stem}.py")
            left = {name: None for name in left if name not in own}
    return f"python -m attnref copy --full {' '.join([*words, *left])}"


def _heading(module: str) -> str:
    file = source_of(module).removeprefix("attnref/")
    return "\n".join(
        f"# {x}" for x in [file, *_wrapped(read(module).about, 78)]
    )


def _wrapped(text: str, width: int = 80) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False)


def _one_meaning_each(
    definitions: list[Definition], outside: set[Import]
) -> dict[str, str]:
    """Where each name of a copy comes from; one that would be two is refused,
    and one that would be found by code which means Python's own."""
    meant: dict[str, str] = {}
    sources = [(d.name, f"attnref.{d.module}") for d in definitions]
    sources += [(i.local, f"{i.module}.{i.name}") for i in sorted(outside)]
    for name, source in sources:
        if meant.setdefault(name, source) != source:
            raise ValueError(
                message(
                    "{} is defined in {} and in {}", name, meant[name], source
                )
            )
    for d in definitions:
        here = read(d.module)
        for name in d.uses - {*here.definitions, *here.imports}:
            if name in meant:
                raise ValueError(
                    message(
                        "{} is Python's own in attnref.{}, and defined in {}",
                        name,
                        d.module,
                        meant[name],
                    )
                )
    return meant


def _without_strange_examples(text: str, there: Iterable[str]) -> str:
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
        strange = _used(code) - {*there} - own - {*dir(builtins)}
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
        here, text = copied(module), text_of(module)
        path = path_of(module).relative_to(PACKAGE)
        up = "." * (module.count(".") + 1)
        if ">>> from attnref" in text:
            there = {*here.definitions, *here.imports}
            text = _without_strange_examples(text, there) + "\n"
        files[path.as_posix()] = re.sub(
            r"^( *from )attnref\.", rf"\g<1>{up}", text, flags=re.M
        )
        for folder in path.parents:
            files.setdefault((folder / "__init__.py").as_posix(), "")
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
    """What may be asked for: files, then names, and how long a copy is."""
    rows = [("plain form", "lines", "what it is")]
    for stem, path in plain().items():
        text = path.read_text(encoding="utf-8")
        about = (ast.get_docstring(ast.parse(text)) or "").split("\n")[0]
        word = stem.replace("_", "-")
        rows.append((word, str(len(text.splitlines())), about))
    rows += [("", "", ""), ("--full", "lines", "what it stands for")]
    alone = {name.lower() for name in public()}
    for stem, names in files().items():
        # softmax is the function, and block the class.
        word = f"{stem}.py" if stem in alone else stem.replace("_", "-")
        rows.append((word, _length(names), ", ".join(names)))
    rows += [("", "", ""), ("name", "lines", "where it is defined")]
    for name, module in public().items():
        rows.append((name, _length([name]), source_of(module)))
    widest = max(len(word) for word, _, _ in rows)
    margin = " " * (widest + 9)
    lines = list[str]()
    for row in rows:
        word, n, what = map(message, row)
        space = " " * (widest - wide(word)), " " * (7 - wide(n))
        line = f"{word}{space[0]}{space[1]}{n}  {what}"
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
        return listed()
    if options.config:
        if options.names or options.full or options.folder:
            raise ValueError(
                message("--config does not take names: it writes one file")
            )
        from attnref.released.generate import file_of

        return _written(options, file_of(options.config))
    full = options.full or options.folder
    form = None if full else plain_form(options.names)
    names = [] if form else names_for(options.names)
    if not names and not form:
        raise ValueError(message("pass one or more names; --list prints all"))

    def one() -> str:
        if form:
            return form.read_text(encoding="utf-8")
        return one_file(names, address())

    if not options.folder:
        return _written(options, one())
    top = Path(options.folder)
    texts = {top / file: text for file, text in a_folder(names).items()}
    return _stored(options, top, texts)


def _written(options: argparse.Namespace, text: str) -> str:
    """One file, printed or stored."""
    if options.output in (None, "-"):
        return text.removesuffix("\n")
    top = Path(options.output)
    if options.output.endswith("/") or top.is_dir():
        raise ValueError(
            message("{} is a folder; pass it as --folder", options.output)
        )
    return _stored(options, top, {top: text})


def _stored(
    options: argparse.Namespace, top: Path, texts: dict[Path, str]
) -> str:
    _check_room(texts, options.force)
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    lines = [
        message("{}: {} lines", path, len(text.splitlines()))
        for path, text in texts.items()
    ]
    return "\n".join([*lines, *_noted(top, texts)])


def _check_room(texts: Iterable[Path], force: bool) -> None:
    """Nothing is written unless all can be."""
    for path in texts:
        for place in path.parents:
            if place.exists() and not place.is_dir():
                raise ValueError(message("{} is a file, not a folder", place))
        if path.exists() and not force:
            raise ValueError(
                message("{} already exists; --force overwrites it", path)
            )


def _noted(top: Path, texts: Container[Path]) -> Iterator[str]:
    """What to know of what was written: nobody removes what else is there."""
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
        help="every layer of a model, from its config.json, as one file",
    )
    parser.add_argument(
        "--full", action="store_true", help="the package's form of a subject"
    )
    parser.add_argument(
        "--force", action="store_true", help="overwrite existing files"
    )
    add_language(parser)
    parser.set_defaults(run=run)
