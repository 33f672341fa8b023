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
from typing import Any, NamedTuple

from attnref.released.expression import FUNCTIONS, names_in

PACKAGES = "attnref.", "sitekit."
LIBRARY = "\n// The library"
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
COMPARED = {
    ast.Eq: "$.eq({},{})",
    ast.NotEq: "!$.eq({},{})",
    ast.Lt: "$.lt({},{})",
    ast.LtE: "$.le({},{})",
    ast.Gt: "$.lt({1},{0})",
    ast.GtE: "$.le({1},{0})",
    ast.Is: "({} === {})",
    ast.IsNot: "({} !== {})",
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
                        self.imported[alias.asname or alias.name] = (
                            alias.name,
                            "",
                        )
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


def javascript(
    roots: Sequence[tuple[str, str]], given: Mapping[str, str]
) -> str:
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
    parts = [_module(module(where), needed, given) for where in order]
    public = ", ".join(
        f"{name}: {module(at).short}.{name}" for at, name in roots
    )
    return "\n".join([*parts, f"return {{ $, $b, {public} }};"])


def _read(node: ast.AST) -> set[str]:
    """The names that a definition reads when it runs."""
    return {
        child.id
        for child in _live(node)
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load)
    }


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
    source: Module, needed: dict[str, set[str]], given: Mapping[str, str]
) -> str:
    own = needed[source.name]
    lines = [f"const {source.short} = (() => {{"]
    nodes = [n for name, n in source.defined.items() if name in own]
    read = set().union(*map(_read, nodes))
    for name, (where, its) in source.imported.items():
        if name not in read:
            continue
        if where in needed and its in needed[where]:
            lines.append(f"const {_name(name)} = {module(where).short}.{its};")
        else:
            at = f"$.modules[{json.dumps(where)}]"
            value = f"{at}.{its}" if its else at
            lines.append(f"const {_name(name)}={value};")
    lines.append(f"const __file__ = {json.dumps(source.name + '.py')};")
    known = {*own, *source.imported, "__file__"}
    for name, node in source.defined.items():
        if name not in own:
            continue
        if text := given.get(f"{source.name}.{name}"):
            lines.append(f"const {name}={text};")
        else:
            lines += Script(known).statement(node)
    lines.append(f"return {{ {', '.join(map(_name, sorted(own)))} }};")
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
        "attnref.released.expression._parsed": f"[{parsed}]",
        "attnref.released.expression.names_in": f"{of}[0]:[]",
        "attnref.released.expression.value_of": "(entry,fields)=>isText(entry)?"
        "_parsed[entry][1]((name)=>$.at(fields,name)):entry",
    }
    return Table(json.dumps(rows, separators=(",", ":")), functions)


def expression(text: str) -> str:
    """The names that an expression reads, and a function of what reads them."""
    tree = ast.parse(f"({text})", mode="eval")
    run = Script(set(), by_name="r").value(tree.body)
    return f"[{json.dumps(names_in(text))},r=>{run}]"


def bundle(
    roots: Sequence[tuple[str, str]], given: Mapping[str, str] | None = None
) -> str:
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
    """JavaScript of statements; `known` are the names of their module."""

    def __init__(
        self, known: set[str], by_name: str = "", inside: bool = False
    ) -> None:
        self.known, self.by_name, self.inside = known, by_name, inside
        self.counted = 0  # names made up
        self.signatures: list[tuple[str, str]] = []  # of methods

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
                return [
                    f"while ({self.truth(test)}) {{",
                    *self.block(body),
                    "}",
                ]
            case ast.For(target, over, body, []):
                if self.inside and isinstance(target, ast.Name):
                    item, lines = _name(target.id), []
                else:
                    item = self.fresh()
                    lines = self.assigned(target, item)
                    item = f"const {item}"
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
                return [f"{self.keyword()}{_name(name)}={value};"]
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

    def keyword(self) -> str:
        return "" if self.inside else "const "

    def unpacked(self, parts: Sequence[ast.expr], value: str) -> list[str]:
        star = [isinstance(part, ast.Starred) for part in parts]
        at = star.index(True) if any(star) else -1
        item = self.fresh()
        lines = [f"const {item}=$.unpack({value},{len(parts)},{at});"]
        for n, part in enumerate(parts):
            inner = part.value if isinstance(part, ast.Starred) else part
            lines += self.assigned(inner, f"{item}[{n}]")
        return lines

    def tried(
        self, body: list[ast.stmt], handlers: list[ast.ExceptHandler]
    ) -> list[str]:
        lines = ["try {", *self.block(body), "} catch ($e) {"]
        lines.append("const $error = $.caught($e);")
        for handler in handlers:
            kinds = self.value(handler.type) if handler.type else "$b.Exception"
            lines.append(f"if ($b.isinstance($error, {kinds})) {{")
            if handler.name:
                lines.append(f"{_name(handler.name)} = $error;")
            lines += [*self.block(handler.body), "} else"]
        return [*lines, "throw $error;", "}"]

    # Functions and classes.

    def function(
        self, node: ast.FunctionDef, method: bool = False
    ) -> list[str]:
        args = node.args
        names = [arg.arg for arg in args.args]
        inner = Script({*self.known, *names}, self.by_name, inside=True)
        own = _bound(node.body) - {*names}
        named = {arg.arg for arg in (args.vararg, args.kwarg) if arg}
        named |= {arg.arg for arg in args.kwonlyargs}
        inner.known |= own | named
        first, rest = "", names
        if method:
            first, rest = f"const {names[0]}=this;", names[1:]
        defaults = [None] * (len(names) - len(args.defaults)) + args.defaults
        listed = []
        for name, default in zip(names, defaults, strict=True):
            if name in rest:
                text = f"={self.value(default)}" if default else ""
                listed.append(_name(name) + text)
        body = [first] if first else []
        if args.vararg:
            if args.kwonlyargs or args.kwarg:
                raise UnsupportedError(f"{node.name}: * and names")
            listed.append(f"...{_name(args.vararg.arg)}")
        if args.kwonlyargs or args.kwarg:
            listed.append("$kw={}")
            for arg, value in zip(
                args.kwonlyargs, args.kw_defaults, strict=True
            ):
                given = f"$kw.{arg.arg}"
                if value:
                    given = f"{given}===undefined?{self.value(value)}:{given}"
                body.append(f"const {_name(arg.arg)}={given};")
            if args.kwarg:
                body.append(f"const {args.kwarg.arg} = $.dictof($kw);")
        if left := sorted(own - named - {*names}):
            body.append(f"let {','.join(map(_name, left))};")
        body += inner.block(node.body)
        star = "*" if _yields(node) else ""
        head = f"({','.join(listed)}){{"
        if not star and not isinstance(node.body[-1], ast.Return | ast.Raise):
            body.append("return null;")
        signature = json.dumps(rest, separators=(",", ":"))
        if method:
            decorators = {ast.unparse(d) for d in node.decorator_list}
            word = "get " if "property" in decorators else star
            self.signatures.append((node.name, signature))
            return [f"{word}{node.name}{head}", *body, "}"]
        made = f"$.def({signature},function{star}{head}"
        for decorator in node.decorator_list:
            made = f"{self.value(decorator)}({made}"
        end = "})" + ")" * len(node.decorator_list) + ";"
        name = f"{self.keyword()}{_name(node.name)}"
        return [f"{name}={made}", *body, end]

    def klass(self, node: ast.ClassDef) -> list[str]:
        bases = [
            b.value if isinstance(b, ast.Subscript) else b for b in node.bases
        ]
        kinds = [ast.unparse(base) for base in bases]
        parent = "$.Instance"
        if bases and kinds != ["NamedTuple"]:
            parent = self.value(bases[0])
        body, fields = [], []
        methods = Script(self.known, inside=True)
        for child in node.body:
            match child:
                case ast.FunctionDef():
                    body += methods.function(child, method=True)
                case ast.AnnAssign(ast.Name(name), kind, value):
                    given = f"()=>{self.value(value)}" if value else "null"
                    fields.append(
                        f'["{name}",{given},()=>{self.annotation(kind)}]'
                    )
                case ast.Assign([ast.Name(name)], value):
                    body.append(f"static {name} = {self.value(value)};")
                case ast.Expr(ast.Constant()) | ast.Pass():
                    pass
                case _:
                    raise UnsupportedError(ast.unparse(child))
        name = _name(node.name)
        lines = [f"{self.keyword()}{name} = class extends {parent} {{", *body]
        lines.append("};")
        data = kinds == ["NamedTuple"] or node.decorator_list
        if data:
            which = "namedtuple" if kinds == ["NamedTuple"] else "dataclass"
            listed = ",".join(fields)
            lines.append(f'$.{which}({name}, "{node.name}",[{listed}]);')
        for method, signature in methods.signatures:
            lines.append(f'$.signed({name}, "{method}", {signature});')
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
                sign = " && " if isinstance(op, ast.And) else " || "
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
            f"...$.it({self.value(n.value)})"
            if isinstance(n, ast.Starred)
            else self.value(n)
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
                    f"[{self.value(k)},{self.value(v)}]"
                    if k
                    else f"...$.pairs({self.value(v)})"
                    for k, v in zip(keys, values, strict=True)
                )
                return f"$.dict([{','.join(listed)}])"
            case ast.Attribute(inner, name):
                return f'$.get({self.value(inner)},"{name}")'
            case ast.Subscript(inner, ast.Slice(low, high, step)):
                ends = (
                    self.value(x) if x else "null" for x in (low, high, step)
                )
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
                text = " && ".join(tests)
                return f"({text})" if len(tests) > 1 else text
            case ast.IfExp(test, yes, no):
                both = f"{self.value(yes)}:{self.value(no)}"
                return f"({self.truth(test)}?{both})"
            case ast.Call():
                return self.call(node)
            case ast.JoinedStr(parts):
                return "(" + "+".join(['""', *map(self.value, parts)]) + ")"
            case ast.FormattedValue(value, how, spec):
                given = [self.value(value), f"{how}"]
                given += [self.value(spec)] if spec else []
                return f"$.format({','.join(given)})"
            case ast.NamedExpr(ast.Name(name), value):
                return f"({_name(name)}={self.value(value)})"
            case ast.Lambda(args, body):
                given = [arg.arg for arg in args.args]
                inside = Script({*self.known, *given}, self.by_name)
                head = ", ".join(map(_name, given))
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
            return _name(name)
        if self.by_name and name not in FUNCTIONS:
            return f'{self.by_name}("{name}")'
        if self.by_name and name == "sqrt":
            return "$.modules.math.sqrt"
        return f"$b.{name}"

    def loop(self, part: ast.expr, loops: list[ast.comprehension]) -> str:
        names = {
            n.id
            for loop in loops
            for n in ast.walk(loop.target)
            if isinstance(n, ast.Name)
        }
        inner = Script({*self.known, *names}, self.by_name, inside=True)
        inner.counted = self.counted + 1
        lines, end = [], ""
        outer = self
        for loop in loops:
            over = outer.value(loop.iter)
            if isinstance(loop.target, ast.Name):
                item = f"let {_name(loop.target.id)}"
            else:
                item = f"const {inner.fresh()}"
            lines.append(f"for({item} of $.it({over})){{")
            if not isinstance(loop.target, ast.Name):
                own = sorted(
                    n.id
                    for n in ast.walk(loop.target)
                    if isinstance(n, ast.Name)
                )
                lines.append(f"let {', '.join(map(_name, own))};")
                lines += inner.assigned(loop.target, item[6:])
            for test in loop.ifs:
                lines.append(f"if(!{inner.truth(test)})continue;")
            end += "}"
            outer = inner
        self.counted = inner.counted
        text = "\n".join([*lines, f"yield {inner.value(part)};"])
        return f"(function*(){{{text}{end}}})()"

    def call(self, node: ast.Call) -> str:
        named = ",".join(
            f"{k.arg}:{self.value(k.value)}"
            if k.arg
            else f"...$.object({self.value(k.value)})"
            for k in node.keywords
        )
        given = self.values(node.args)
        match node.func:
            case ast.Attribute(ast.Call(ast.Name("super")), name):
                return f"super.{name}({given})"
            case ast.Attribute(inner, name):
                head = f'{self.value(inner)},"{name}",[{given}]'
                return f"$.send({head}{f',{{{named}}}' if named else ''})"
        head = f"{self.value(node.func)},[{given}]"
        return f"$.call({head}{f',{{{named}}}' if named else ''})"


def _yields(node: ast.FunctionDef) -> bool:
    return any(
        isinstance(n, ast.Yield | ast.YieldFrom) for n in _same_scope(node.body)
    )


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


def _bound(nodes: Sequence[ast.stmt]) -> set[str]:
    """The names that statements of a function bind."""
    names: set[str] = set()
    for node in _same_scope(nodes):
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
