"""Python of this project as JavaScript, for the page that reads a config.json.

Only what the named functions need is taken along. python.js has what the
language itself brings: integers are BigInt and floats are numbers, so that both
stay apart; all operators, attributes and calls of methods go through it.
"""

import ast
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from string import ascii_letters
from typing import Any, NamedTuple

from attnref.released.expression import FUNCTIONS, names_in

PACKAGES = "attnref.", "sitekit."
LIBRARY = "\n// The library"
# `r` is what a table of sizes reads from.
LETTERS = sorted({*ascii_letters} - {"r"})
RESERVED = {
    *("new", "default", "this", "function", "var", "let", "const", "switch"),
    *("case", "delete", "do", "enum", "export", "extends", "null", "super"),
    *("throw", "catch", "typeof", "void", "instanceof", "static", "package"),
    *("true", "false", "debugger", "eval", "arguments", "undefined"),
}
OPERATORS = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.BitOr: "or",
}
# Builtins that are functions in python.js, and no classes.
PLAIN = {
    *("$b.abs", "$b.all", "$b.any", "$b.bool", "$b.enumerate", "$b.filter"),
    *("$b.float", "$b.getattr", "$b.hasattr", "$b.int", "$b.isinstance"),
    *("$b.len", "$b.max", "$b.min", "$b.next", "$b.range", "$b.repr"),
    *("$b.set", "$b.sorted", "$b.str", "$b.sum", "$b.tuple", "$b.zip"),
}
COMPARED = {
    ast.Eq: "$.eq({},{})",
    ast.NotEq: "!$.eq({},{})",
    ast.Lt: "$.lt({},{})",
    ast.LtE: "$.le({},{})",
    ast.Gt: "$.lt({1},{0})",
    ast.GtE: "$.le({1},{0})",
    ast.Is: "({}==={})",
    ast.IsNot: "({}!=={})",
    ast.In: "$.has({1},{0})",
    ast.NotIn: "!$.has({1},{0})",
}


class UnsupportedError(Exception):
    """A construct that has no JavaScript here."""


class Module:
    """A module of this project: its statements by what they define."""

    def __init__(self, name: str) -> None:
        self.name = name
        path = import_module(name).__file__
        self.tree = ast.parse(Path(str(path)).read_text("utf-8"))
        self.defined: dict[str, ast.stmt] = {}
        self.imported: dict[str, tuple[str, str]] = {}
        for node in self.tree.body:
            match node:
                case ast.ImportFrom(module, names):
                    for alias in names:
                        where = str(module), alias.name
                        self.imported[alias.asname or alias.name] = where
                case ast.Import(names):
                    for alias in names:
                        self.imported[alias.asname or alias.name] = (alias.name, "")
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    self.defined[name] = node
                case ast.Assign([ast.Name(name)]):
                    self.defined[name] = node
                case ast.AnnAssign(ast.Name(name), _, value) if value:
                    self.defined[name] = node

    @property
    def short(self) -> str:
        return self.name.replace(".", "_")


@cache
def module(name: str) -> Module:
    return Module(name)


def javascript(roots: Sequence[tuple[str, str]], given: Mapping[str, str]) -> str:
    """A script that defines these functions, and all that they call.

    A root is the name of a module and that of a function in it. Some functions
    are `given` in JavaScript, by these two names with a dot between them.
    """
    needed: dict[str, set[str]] = {}
    order: list[str] = []
    todo = list(roots)
    while todo:
        where, name = todo.pop()
        source = module(where)
        if name in source.imported:
            other, its = source.imported[name]
            if other.startswith(PACKAGES):
                todo.append((other, its))
        if name not in source.defined or name in needed.get(where, ()):
            continue
        needed.setdefault(where, set()).add(name)
        text = given.get(f"{where}.{name}")
        read = _read(source.defined[name])
        read = {*re.findall(r"\w+", text)} if text else read
        todo += [(where, name) for name in read]

    def put(where: str) -> None:
        for other, _ in module(where).imported.values():
            if other in needed and other not in order:
                put(other)
        if where not in order:
            order.append(where)

    for where in needed:
        put(where)
    nodes = [
        module(where).defined[name]
        for where in order
        for name in needed[where]
        if f"{where}.{name}" not in given
    ]
    keywords = {name for node in nodes for name in _with_keywords(node)}
    parts = [_module(module(where), needed, given, keywords) for where in order]
    public = ", ".join(f"{name}: {module(at).short}.{name}" for at, name in roots)
    return "\n".join([*parts, f"return {{ $, $b, {public} }};"])


def _read(node: ast.AST) -> set[str]:
    """The names that a definition reads when it runs."""
    return {
        child.id
        for child in _live(node)
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load)
    }


def _with_keywords(node: ast.AST) -> Iterator[str]:
    """The names of what is called with names of parameters."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and call.keywords:
            yield ast.unparse(call.func).split(".")[-1]


def _live(node: ast.AST) -> Iterator[ast.AST]:
    """All below, without annotations: fields are of builtin types alone."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _live(child)


def _module(
    source: Module, needed: dict[str, set[str]], given: Mapping[str, str], keywords: set[str]
) -> str:
    own = needed[source.name]
    lines = [f"const {source.short}=(()=>{{"]
    nodes = [n for name, n in source.defined.items() if name in own]
    read = set().union(*map(_read, nodes))
    imports: dict[str, list[str]] = {}
    for name, (where, its) in source.imported.items():
        if name not in read:
            continue
        place = f"$.modules[{json.dumps(where)}]"
        if its in needed.get(where, ()):
            place = module(where).short
        if its:
            entry = its if its == _name(name) else f"{its}:{_name(name)}"
            imports.setdefault(place, []).append(entry)
        else:
            lines.append(f"const {_name(name)}={place};")
    for place, entries in imports.items():
        lines.append(f"const{{{','.join(entries)}}}={place};")
    if "__file__" in read:
        lines.append(f"const __file__={json.dumps(source.name + '.py')};")
    known = {*own, *source.imported, "__file__"}
    places = {name: (source.name, name) for name in own} | source.imported
    functions = {
        name
        for name, (where, defined) in places.items()
        if defined in needed.get(where, ())
        and isinstance(module(where).defined[defined], ast.FunctionDef)
    }
    for name, node in source.defined.items():
        if name not in own:
            continue
        if text := given.get(f"{source.name}.{name}"):
            lines.append(f"const {name}={text};")
        else:
            lines += Script(known, functions=functions, keywords=keywords).statement(node)
    lines.append(f"return{{{','.join(map(_name, sorted(own)))}}};")
    text = "\n".join([*lines, "})();"])
    return re.sub(r"(?<=[;{}])\n(?!const \w+=\$\.def)", "", text)


def _name(name: str) -> str:
    return f"{name}_" if name in RESERVED else name


class Table(NamedTuple):
    """Entries of families.toml; an expression is a number in them."""

    entries: str  # as JSON
    functions: dict[str, str]  # what is `given`, of the table `familiesTable`


def of_table(*paths: Path) -> Table:
    """The tables of attnref.released, their expressions as functions of what
    they read."""
    texts: dict[str, int] = {}

    def entries(row: dict[str, Any]) -> dict[str, Any]:
        return {
            name: str(texts.setdefault(entry, len(texts)))
            if isinstance(entry, str) and name != "like"
            else entry
            for name, entry in row.items()
        }

    rows = {}
    texts_of = (path.read_text("utf-8") for path in paths)
    for name, row in [r for t in texts_of for r in tomllib.loads(t).items()]:
        kinds = [p for p in ("weights", "state", "mixer") if p in row]
        parts = {part: entries(row[part]) for part in kinds}
        rows[name] = row if name == "_fields" else {**entries(row), **parts}
    of = "(entry)=>isText(entry)?_parsed[entry]"
    parsed = ",\n".join(map(expression, texts))
    functions = {
        "attnref.released.record._table": "cache(()=>loads(familiesTable))",
        "attnref.released.expression._parsed": f"[{parsed}].map({NAMED})",
        "attnref.released.expression.names_in": f"{of}[0]:[]",
        "attnref.released.expression.quotes": "(entry,text)=>isText(entry)&&"
        "String(_parsed[entry][1]).includes(JSON.stringify(text))",
        "attnref.released.expression.value_of": "(entry,fields)=>isText(entry)?"
        "_parsed[entry][1]((name)=>$.at(fields,name)):entry",
    }
    return Table(json.dumps(rows, separators=(",", ":")), functions)


# The names that a function reads stand in its text. Where their order differs
# from that in Python, which a message may show, they are written beside it.
NAMED = (
    "([run,names])=>[names??[...new Set("
    '[...String(run).matchAll(/\\br\\("(\\w+)"\\)/g)].map((read)=>read[1]))],run]'
)


def expression(text: str) -> str:
    """A function of what reads the names of an expression, and these names
    unless they can be read from it."""
    tree = ast.parse(f"({text})", mode="eval")
    run = Script(set(), by_name="r").value(tree.body)
    names = [*dict.fromkeys(re.findall(r'\br\("(\w+)"\)', run))]
    known = "" if names == [*names_in(text)] else f",{json.dumps(names_in(text))}"
    return f"[r=>{run}{known}]"


def bundle(roots: Sequence[tuple[str, str]], given: Mapping[str, str] | None = None) -> str:
    """A script of its own, in which `python` has these functions.

    `given` are written already. What is given nothing reads no config, and
    needs only the first part of python.js.
    """
    own = Path(__file__).with_name("python.js").read_text("utf-8")
    if given is None:
        own = own[: own.index(LIBRARY)]
    parts = [
        "const python = (() => {",
        re.sub(r"(?m)^\s*(//.*\n\s*)*", "", own),
        javascript(roots, given or {}),
        "})();",
    ]
    return "\n".join(parts)


def strings(texts: dict[str, str]) -> str:
    """An object of strings."""
    pairs = (f"{json.dumps(name)}:{string(texts[name])}" for name in texts)
    return "{" + ",\n".join(pairs) + "}"


def string(text: str) -> str:
    """In ' for such texts are full of \"."""
    quoted = json.dumps(text, ensure_ascii=False)[1:-1]
    apart = re.split(r"(\\.)", quoted.replace("'", "\\'"))
    return "'" + "".join('"' if x == '\\"' else x for x in apart) + "'"


class Script:
    """JavaScript of statements; `known` are the names of their module, and
    `functions` those that are called without a detour. A name is declared by
    what `binds` wherever it is bound: `var` may say so again. Only functions
    that are called with `keywords` have the names of their parameters. Local
    names are `short`, for a reader has to wait for them."""

    def __init__(
        self,
        known: set[str],
        by_name: str = "",
        binds: str = "const",
        functions: Iterable[str] = (),
        keywords: Iterable[str] = (),
    ) -> None:
        self.known, self.by_name, self.binds = known, by_name, binds
        self.functions, self.keywords = {*functions}, {*keywords}
        self.short: dict[str, str] = {}
        self.counted = 0  # names made up
        self.signatures: list[tuple[str, str]] = []  # of methods
        self.caches: list[str] = []  # names of cached properties

    def within(self, names: Iterable[str], binds: str = "var") -> "Script":
        """That of a scope in this one, which binds `names`."""
        own = dict.fromkeys(names)
        known, functions = {*self.known, *own}, self.functions - own.keys()
        inner = Script(known, self.by_name, binds, functions, self.keywords)
        taken = {*known, *self.short.values()}
        free = [letter for letter in LETTERS if letter not in taken]
        if len(free) < len(own):
            raise UnsupportedError("more names than letters")
        inner.short = self.short | dict(zip(own, free, strict=False))
        return inner

    def name(self, name: str) -> str:
        return self.short.get(name) or _name(name)

    def fresh(self) -> str:
        self.counted += 1
        return f"$${self.counted}"

    # Statements.

    def block(self, nodes: Iterable[ast.stmt]) -> list[str]:
        return [line for node in nodes for line in self.statement(node)]

    def statement(self, node: ast.stmt) -> list[str]:
        match node:
            case ast.Expr(ast.Constant(str())) | ast.Pass():
                return []
            case ast.Expr(ast.Yield(value)):
                given = self.value(value) if value else "null"
                return [f"yield {given};"]
            case ast.Expr(ast.YieldFrom(value)):
                return [f"yield* $.it({self.value(value)});"]
            case ast.Expr(value):
                return [f"{self.value(value)};"]
            case ast.Return(value):
                return [f"return {self.value(value) if value else 'null'};"]
            case ast.Assign([target], value):
                return self.assigned(target, self.value(value))
            case ast.Assign([*targets, last], value):
                lines = self.assigned(last, self.value(value))
                for target in targets:
                    lines += self.assigned(target, self.value(last))
                return lines
            case ast.AnnAssign(target, _, value):
                return self.assigned(target, self.value(value)) if value else []
            case ast.AugAssign(target, op, value):
                name = OPERATORS[type(op)]
                name = "iadd" if name == "add" else name
                new = f"$.{name}({self.value(target)},{self.value(value)})"
                return self.assigned(target, new)
            case ast.If(test, body, orelse):
                lines = [f"if({self.truth(test)}){{", *self.block(body)]
                if orelse:
                    lines += ["}else{", *self.block(orelse)]
                return [*lines, "}"]
            case ast.While(test, body, []):
                return [f"while({self.truth(test)}){{", *self.block(body), "}"]
            case ast.For(target, over, body, []):
                item, lines = self.item(target)
                head = f"for({item} of $.it({self.value(over)})){{"
                return [head, *lines, *self.block(body), "}"]
            case ast.Break():
                return ["break;"]
            case ast.Continue():
                return ["continue;"]
            case ast.Raise(None, None):
                return ["throw $error;"]
            case ast.Raise(ast.expr() as error, _):
                return [f"throw {self.value(error)};"]
            case ast.Try(body, handlers, [], []):
                return self.tried(body, handlers)
            case ast.FunctionDef():
                return self.function(node)
            case ast.ClassDef():
                return self.klass(node)
        raise UnsupportedError(f"line {node.lineno}: {ast.unparse(node)[:80]}")

    def assigned(self, target: ast.expr, value: str) -> list[str]:
        match target:
            case ast.Name(name):
                return [f"{self.binds} {self.name(name)}={value};"]
            case ast.Attribute(inner, name):
                return [f"{self.value(inner)}.{name}={value};"]
            case ast.Subscript(inner, ast.Slice(ast.expr() as low, None)):
                start = self.value(low)
                return [f"$.put({self.value(inner)},{start},{value});"]
            case ast.Subscript(inner, at):
                return [f"$.put({self.value(inner)},{self.value(at)},{value});"]
            case ast.Tuple(parts) | ast.List(parts):
                return self.unpacked(parts, value)
        raise UnsupportedError(ast.unparse(target))

    def item(self, target: ast.expr) -> tuple[str, list[str]]:
        """What a loop declares, and the statements that unpack it."""
        if isinstance(target, ast.Name):
            return f"{self.binds} {self.name(target.id)}", []
        item = self.fresh()
        return f"const {item}", self.assigned(target, item)

    def unpacked(self, parts: Sequence[ast.expr], value: str) -> list[str]:
        star = [isinstance(part, ast.Starred) for part in parts]
        at = f",{star.index(True)}" if any(star) else ""
        names: list[str] = []
        lines: list[str] = []
        for part in parts:
            inner = part.value if isinstance(part, ast.Starred) else part
            if isinstance(inner, ast.Name):
                names.append(self.name(inner.id))
            else:
                names.append(self.fresh())
                lines += self.assigned(inner, names[-1])
        head = f"{self.binds}[{','.join(names)}]"
        return [f"{head}=$.unpack({value},{len(parts)}{at});", *lines]

    def tried(self, body: list[ast.stmt], handlers: list[ast.ExceptHandler]) -> list[str]:
        lines = ["try{", *self.block(body), "}catch($e){"]
        lines.append("const $error=$.caught($e);")
        for handler in handlers:
            kinds = self.value(handler.type) if handler.type else "$b.Exception"
            lines.append(f"if($b.isinstance($error,{kinds})){{")
            if handler.name:
                lines.append(f"{self.binds} {self.name(handler.name)}=$error;")
            lines += [*self.block(handler.body), "}else "]
        return [*lines, "throw $error;", "}"]

    # Functions and classes.

    def function(self, node: ast.FunctionDef, method: bool = False) -> list[str]:
        args = node.args
        names = [arg.arg for arg in args.args]
        own = _bound(node.body) - {*names}
        named = {arg.arg for arg in (args.vararg, args.kwarg) if arg}
        named |= {arg.arg for arg in args.kwonlyargs}
        inner = self.within([*names, *sorted(own | named)])
        first, rest = "", names
        if method:
            first, rest = f"const {inner.name(names[0])}=this;", names[1:]
        defaults = [None] * (len(names) - len(args.defaults)) + args.defaults
        listed = []
        for name, default in zip(names, defaults, strict=True):
            if name in rest:
                text = f"={self.value(default)}" if default else ""
                listed.append(inner.name(name) + text)
        body = [first] if first else []
        if args.vararg:
            if args.kwonlyargs or args.kwarg:
                raise UnsupportedError(f"{node.name}: * and names")
            listed.append(f"...{inner.name(args.vararg.arg)}")
        if args.kwonlyargs or args.kwarg:
            listed.append("$kw={}")
            for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True):
                given = f"$kw.{arg.arg}"
                if value:
                    given = f"{given}===undefined?{self.value(value)}:{given}"
                body.append(f"const {inner.name(arg.arg)}={given};")
            if args.kwarg:
                body.append(f"const {inner.name(args.kwarg.arg)}=$.dictof($kw);")
        if left := sorted(_bound(node.body, ast.NamedExpr)):
            body.append(f"var {','.join(map(inner.name, left))};")
        body += inner.block(node.body)
        star = "*" if _yields(node) else ""
        head = f"({','.join(listed)}){{"
        if not star and not isinstance(node.body[-1], ast.Return | ast.Raise):
            body.append("return null;")
        signature = json.dumps(rest, separators=(",", ":"))
        is_named = node.name in {"__init__", *self.keywords}
        if method:
            decorators = {ast.unparse(d) for d in node.decorator_list}
            if "cached_property" in decorators:
                self.caches.append(node.name)
            if decorators & {"property", "cached_property"}:
                return [f"get {node.name}{head}", *body, "}"]
            if is_named:
                self.signatures.append((node.name, signature))
            return [f"{star}{node.name}{head}", *body, "}"]
        made = f"{f'$.def({signature},' if is_named else '('}function{star}{head}"
        for decorator in node.decorator_list:
            made = f"{self.value(decorator)}({made}"
        end = "})" + ")" * len(node.decorator_list) + ";"
        name = f"{self.binds} {self.name(node.name)}"
        return [f"{name}={made}", *body, end]

    def klass(self, node: ast.ClassDef) -> list[str]:
        bases = [b.value if isinstance(b, ast.Subscript) else b for b in node.bases]
        kinds = [ast.unparse(base) for base in bases]
        parent = "$.Instance"
        if bases and kinds != ["NamedTuple"]:
            parent = self.value(bases[0])
        body, fields = [], []
        methods = self.within(())
        for child in node.body:
            match child:
                case ast.FunctionDef():
                    body += methods.function(child, method=True)
                case ast.AnnAssign(ast.Name(name), kind, value):
                    given = f"()=>{self.value(value)}" if value else "null"
                    fields.append(f'["{name}",{given},{self.annotation(kind)}]')
                case ast.Assign([ast.Name(name)], value):
                    body.append(f"static {name}={self.value(value)};")
                case ast.Expr(ast.Constant()) | ast.Pass():
                    pass
                case _:
                    raise UnsupportedError(ast.unparse(child))
        name = self.name(node.name)
        lines = [f"{self.binds} {name}=class extends {parent}{{", *body]
        lines.append("};")
        data = kinds == ["NamedTuple"] or node.decorator_list
        if data:
            which = "namedtuple" if kinds == ["NamedTuple"] else "dataclass"
            listed = ",".join(fields)
            lines.append(f'$.{which}({name},"{node.name}",[{listed}]);')
        for method, signature in methods.signatures:
            lines.append(f'$.signed({name},"{method}",{signature});')
        if methods.caches:
            names = json.dumps(methods.caches, separators=(",", ":"))
            lines.append(f"$.cached({name},{names});")
        return lines

    def annotation(self, node: ast.expr) -> str:
        """The type of a field, if it is made of builtins."""
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        plain = names <= {"int", "float", "str", "bool", "tuple"}
        return self.value(node) if plain else "null"

    # Expressions.

    def truth(self, node: ast.expr) -> str:
        match node:
            case ast.Compare():
                return self.value(node)
            case ast.UnaryOp(ast.Not(), inner):
                return f"!{self.truth(inner)}"
            case ast.BoolOp(op, parts):
                sign = "&&" if isinstance(op, ast.And) else "||"
                return f"({sign.join(map(self.truth, parts))})"
        return f"$.t({self.value(node)})"

    def constant(self, value: Any) -> str:
        match value:
            case None | True | False:
                return json.dumps(value)
            case int():
                return f"{value}n"
            case float() | str():
                return json.dumps(value)
        if value is ...:
            return '"..."'
        raise UnsupportedError(repr(value))

    def values(self, nodes: Iterable[ast.expr]) -> str:
        return ",".join(
            f"...$.it({self.value(n.value)})" if isinstance(n, ast.Starred) else self.value(n)
            for n in nodes
        )

    def value(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value):
                return self.constant(value)
            case ast.Name(name):
                return self.named(name)
            case ast.Tuple(parts):
                return f"$.tuple({self.values(parts)})"
            case ast.List(parts):
                return f"[{self.values(parts)}]"
            case ast.Set(parts):
                return f"$.set([{self.values(parts)}])"
            case ast.Dict(keys, values):
                listed = (
                    f"[{self.value(k)},{self.value(v)}]" if k else f"...$.pairs({self.value(v)})"
                    for k, v in zip(keys, values, strict=True)
                )
                return f"$.dict([{','.join(listed)}])"
            case ast.Attribute(inner, name):
                return f'$.get({self.value(inner)},"{name}")'
            case ast.Subscript(inner, ast.Slice(low, high, step)):
                ends = (self.value(x) if x else "null" for x in (low, high, step))
                return f"$.slice({self.value(inner)},{','.join(ends)})"
            case ast.Subscript(inner, at):
                return f"$.at({self.value(inner)},{self.value(at)})"
            case ast.BinOp(left, op, right):
                name = OPERATORS[type(op)]
                return f"$.{name}({self.value(left)},{self.value(right)})"
            case ast.UnaryOp(ast.Not(), _):
                return self.truth(node)
            case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as n)):
                return self.constant(-n)
            case ast.UnaryOp(ast.USub(), inner):
                return f"$.neg({self.value(inner)})"
            case ast.BoolOp(op, [*parts, last]):
                name = "all" if isinstance(op, ast.And) else "any"
                text = self.value(last)
                for part in reversed(parts):
                    text = f"$.{name}({self.value(part)},()=>{text})"
                return text
            case ast.Compare(left, ops, rights):
                lefts = [left, *rights[:-1]]
                tests = [
                    COMPARED[type(op)].format(self.value(a), self.value(b))
                    for op, a, b in zip(ops, lefts, rights, strict=True)
                ]
                text = "&&".join(tests)
                return f"({text})" if len(tests) > 1 else text
            case ast.IfExp(test, yes, no):
                both = f"{self.value(yes)}:{self.value(no)}"
                return f"({self.truth(test)}?{both})"
            case ast.Call():
                return self.call(node)
            case ast.JoinedStr(parts):
                return f"({'+'.join(map(self.value, parts))})" if parts else '""'
            case ast.FormattedValue(value, how, spec):
                given = [self.value(value)]
                given += [f"{how}"] if spec or how != -1 else []
                given += [self.value(spec)] if spec else []
                return f"$.format({','.join(given)})"
            case ast.NamedExpr(ast.Name(name), value):
                return f"({self.name(name)}={self.value(value)})"
            case ast.Lambda(args, body):
                given = [arg.arg for arg in args.args]
                inside = self.within(given)
                head = ",".join(map(inside.name, given))
                return f"(({head})=>{inside.value(body)})"
            case ast.ListComp(part, loops):
                return f"[...{self.loop(part, loops)}]"
            case ast.GeneratorExp(part, loops):
                return self.loop(part, loops)
            case ast.SetComp(part, loops):
                return f"$.set({self.loop(part, loops)})"
            case ast.DictComp(key, value, loops):
                pair = ast.Tuple([key, value], ast.Load())
                return f"$.dict({self.loop(pair, loops)})"
        raise UnsupportedError(ast.unparse(node))

    def named(self, name: str) -> str:
        if name in self.known:
            return self.name(name)
        if self.by_name and name not in FUNCTIONS:
            return f'{self.by_name}("{name}")'
        if self.by_name and name == "sqrt":
            return "$.modules.math.sqrt"
        return f"$b.{name}"

    def loop(self, part: ast.expr, loops: list[ast.comprehension]) -> str:
        names = {n.id for loop in loops for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
        inner = self.within(sorted(names), "let")
        inner.counted = self.counted + 1
        lines, end = [], ""
        outer = self
        for loop in loops:
            over = outer.value(loop.iter)
            item, unpacked = inner.item(loop.target)
            lines += [f"for({item} of $.it({over})){{", *unpacked]
            for test in loop.ifs:
                lines.append(f"if(!{inner.truth(test)})continue;")
            end += "}"
            outer = inner
        self.counted = inner.counted
        text = "\n".join([*lines, f"yield {inner.value(part)};"])
        return f"(function*(){{{text}{end}}})()"

    def call(self, node: ast.Call) -> str:
        named = ",".join(
            f"{k.arg}:{self.value(k.value)}" if k.arg else f"...$.object({self.value(k.value)})"
            for k in node.keywords
        )
        given = self.values(node.args)
        match node.func:
            case ast.Attribute(ast.Call(ast.Name("super")), name):
                return f"super.{name}({given})"
            case ast.Attribute(inner, name):
                head = f'{self.value(inner)},"{name}",[{given}]'
                return f"$.send({head}{f',{{{named}}}' if named else ''})"
        called, name = self.value(node.func), ast.unparse(node.func)
        if not named and (called in PLAIN or name in self.functions):
            return f"{called}({given})"
        head = f"{called},[{given}]"
        return f"$.call({head}{f',{{{named}}}' if named else ''})"


def _yields(node: ast.FunctionDef) -> bool:
    return any(isinstance(n, ast.Yield | ast.YieldFrom) for n in _same_scope(node.body))


def _same_scope(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All below, without what stands in functions and classes in it."""
    for node in nodes:
        yield node
        if not isinstance(
            node,
            ast.FunctionDef
            | ast.ClassDef
            | ast.Lambda
            | ast.ListComp
            | ast.SetComp
            | ast.DictComp
            | ast.GeneratorExp,
        ):
            yield from _same_scope(ast.iter_child_nodes(node))
        elif not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            for child in ast.walk(node):  # := binds outside
                if isinstance(child, ast.NamedExpr):
                    yield child


def _bound(nodes: Sequence[ast.stmt], kinds: type[ast.AST] = ast.AST) -> set[str]:
    """The names that statements of a function bind, by nodes of some kinds."""
    names: set[str] = set()
    for node in filter(lambda node: isinstance(node, kinds), _same_scope(nodes)):
        match node:
            case ast.Name(name, ast.Store()):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.NamedExpr(ast.Name(name)):
                names.add(name)
            case ast.ExceptHandler(_, str(name)):
                names.add(name)
    return names
