"""Faults planted one at a time in the package, and what no test notices.

    python -m tests.mutants --size 120 --seed 1      # make mutants
    python -m tests.mutants --size 0 --only cost     # all of one module
    python -m tests.mutants --size 0 --only cost:131,checks

A mutant is a module with one operator, constant, condition, argument or
statement changed; not the `strict=True` of a zip, which says what holds anyway.
Nothing is written: each runs in a process of its own, forked from one that has
torch imported, and there the import of that module finds the changed text. It
meets the tests that reach the changed lines, those of the module first and
quick ones before slow ones, until one fails. First all tests run on the package
as it is, which tells what lines each of them reaches; that is remembered until
something changes that they read. What ends by a timeout counts as killed.
"""

import argparse
import ast
import difflib
import functools
import gc
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pickle
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "attnref"
OURS = {"attnref", "sitekit", "tests"}
# Tests of the built site say nothing of the package; those of a time would
# say that two processes run at once.
NOT_RUN = {"site", "html_pages", "address", "chromium", "visit", "verdicts"}

SWAPS: dict[type[ast.AST], str] = {
    **{ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*"},
    **{ast.FloorDiv: "*", ast.Mod: "//", ast.Pow: "*", ast.MatMult: "*"},
    **{ast.LShift: ">>", ast.BitAnd: "|", ast.BitOr: "&"},
    **{ast.And: "or", ast.Or: "and"},
    **{ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"},
    **{ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is"},
    **{ast.In: "not in", ast.NotIn: "in"},
}
SAME: dict[type[ast.AST], str] = {
    **{ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="},
    **{ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is", ast.IsNot: "is not"},
    **{ast.In: "in", ast.NotIn: "not in", ast.And: "and", ast.Or: "or"},
}
COMMUTE = ("max", "min", "maximum", "transpose", "promote_types")
# What needs no brackets, wherever it stands.
PLAIN = (ast.Name, ast.Constant, ast.Attribute, ast.Subscript, ast.Call)
NEGATED_BY_SWAP = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)


class Mutant(NamedTuple):
    path: Path
    line: int
    kind: str
    source: str
    lines: range  # a test that reaches none of them cannot tell

    @property
    def place(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    def diff(self) -> str:
        old = self.path.read_text(encoding="utf-8").splitlines()
        lines = difflib.unified_diff(
            old, self.source.splitlines(), n=0, lineterm=""
        )
        shown = [x for x in list(lines)[2:] if x[0] != "@" and x[1:].strip()]
        return "\n".join(f"    {x[0]} {x[1:].strip()}" for x in shown)


class Planter:
    """All mutants of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_bytes()
        self.starts = [0]
        for line in self.text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.tree = ast.parse(self.text)
        self.modules = {
            alias.asname or alias.name
            for node in ast.walk(self.tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
            if alias.asname or alias.name.islower()
        }
        self.parents = {
            child: node
            for node in ast.walk(self.tree)
            for child in ast.iter_child_nodes(node)
        }

    def span(self, node: Any) -> tuple[int, int]:
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def code(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.text[start:end].decode()

    def all(self) -> list[Mutant]:
        found = [m for node in self.nodes(self.tree) for m in self.of(node)]
        unlike = {ast.dump(self.tree)}
        mutants = []
        for mutant in found:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                dump = ast.dump(ast.parse(mutant.source))
            if dump not in unlike:
                mutants.append(mutant)
            unlike.add(dump)
        return sorted(mutants, key=lambda m: (m.line, m.kind, m.source))

    def nodes(self, node: ast.AST) -> Iterator[ast.AST]:
        """Without docstrings, annotations, imports and texts of errors."""
        yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST):
                    continue
                text = isinstance(child, ast.Expr) and isinstance(
                    child.value, ast.Constant
                )
                dunder = (
                    isinstance(child, ast.Assign)
                    and isinstance(child.targets[0], ast.Name)
                    and child.targets[0].id.startswith("__")
                )
                if isinstance(child, ast.Raise):
                    yield child
                elif not (text or dunder) and not isinstance(
                    child, (ast.Import, ast.ImportFrom, ast.JoinedStr)
                ):
                    yield from self.nodes(child)

    def reaching(self, node: ast.AST) -> range:
        """The lines of its statement; of a definition's head, its body."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        last = node.end_lineno or node.lineno
        first, body = node.lineno, getattr(node, "body", None)
        if isinstance(node, ast.FunctionDef):
            if isinstance(body[-1], ast.Expr):  # a docstring, which never runs
                return range(1, len(self.starts))
            first = body[0].lineno
        elif body:
            last = max(first, body[0].lineno - 1)
        inside: ast.AST = node
        while not isinstance(inside, (ast.FunctionDef, ast.Module)):
            inside = self.parents[inside]
        if isinstance(inside, ast.Module):
            return range(1, len(self.starts))
        return range(first, last + 1)

    def put(self, node: Any, kind: str, *new: str) -> Iterator[Mutant]:
        """With other code for a node; later lines stay where they are."""
        start, end = self.span(node)
        for text in new:
            lost = self.text[start:end].count(b"\n") - text.count("\n")
            if isinstance(node, ast.stmt):
                text += "\n" * lost
            elif (
                lost
                or self.text[end : end + 1] == b"."  # not 7.sort()
                or not isinstance(ast.parse(text).body[0].value, PLAIN)
            ):
                text = f"({text}{chr(10) * lost})"
            source = self.text[:start] + text.encode() + self.text[end:]
            yield Mutant(
                self.path,
                node.lineno,
                kind,
                source.decode(),
                self.reaching(node),
            )

    def cut(
        self, node: Any, kind: str, start: int, end: int
    ) -> Iterator[Mutant]:
        """Without a piece of its text, but for the ends of lines."""
        ends = b"\n" * self.text[start:end].count(b"\n")
        source = self.text[:start] + ends + self.text[end:]
        line = self.text[:start].count(b"\n") + 1
        lines = self.reaching(node)
        yield Mutant(self.path, line, kind, source.decode(), lines)

    def of(self, node: Any) -> Iterator[Mutant]:
        kinds = [type(node).__name__] + ["stmt"] * isinstance(node, ast.stmt)
        for kind in kinds:
            plant = getattr(self, f"plant_{kind.lower()}", None)
            if plant:
                yield from plant(node)

    def joined(self, parts: list[ast.expr], between: list[str]) -> str:
        """`(a) op (b) op (c)`, brackets only where something might bind."""
        words = []
        for part in parts:
            code = self.code(part)
            words.append(code if isinstance(part, PLAIN) else f"({code})")
        ends = [*between, ""]
        pairs = zip(words, ends, strict=True)
        return " ".join(w for pair in pairs for w in pair if w)

    def plant_binop(self, node: ast.BinOp) -> Iterator[Mutant]:
        swap = [SWAPS[type(node.op)]]
        code = self.joined([node.left, node.right], swap)
        yield from self.put(node, "operator", code)

    def plant_augassign(self, node: ast.AugAssign) -> Iterator[Mutant]:
        target, value = self.code(node.target), self.code(node.value)
        swap = SWAPS[type(node.op)]
        yield from self.put(node, "operator", f"{target} {swap}= {value}")
        yield from self.put(node, "statement dropped", "pass")

    def plant_boolop(self, node: ast.BoolOp) -> Iterator[Mutant]:
        word, other = SAME[type(node.op)], SWAPS[type(node.op)]
        gaps = len(node.values) - 1
        for i in range(gaps):
            words = [other if j == i else word for j in range(gaps)]
            yield from self.put(
                node, "condition", self.joined(node.values, words)
            )
        for i in range(gaps + 1):
            kept = node.values[:i] + node.values[i + 1 :]
            code = self.joined(kept, [word] * (gaps - 1))
            yield from self.put(node, "condition", code)

    def plant_compare(self, node: ast.Compare) -> Iterator[Mutant]:
        for i, op in enumerate(node.ops):
            words = [SAME[type(o)] for o in node.ops]
            words[i] = SWAPS[type(op)]
            code = self.joined([node.left, *node.comparators], words)
            yield from self.put(node, "comparison", code)

    def negated(self, test: ast.expr) -> Iterator[Mutant]:
        by_swap = isinstance(test, ast.Compare) and (
            len(test.ops) == 1 and isinstance(test.ops[0], NEGATED_BY_SWAP)
        )
        by_drop = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        if not by_swap and not by_drop:
            yield from self.put(test, "negated", f"not ({self.code(test)})")

    def plant_if(self, node: ast.If) -> Iterator[Mutant]:
        yield from self.negated(node.test)

    def plant_while(self, node: ast.While) -> Iterator[Mutant]:
        yield from self.negated(node.test)

    def plant_ifexp(self, node: ast.IfExp) -> Iterator[Mutant]:
        yield from self.negated(node.test)

    def plant_comprehension(self, node: ast.comprehension) -> Iterator[Mutant]:
        for test in node.ifs:
            yield from self.negated(test)
            yield from self.put(test, "condition", "True")

    def plant_unaryop(self, node: ast.UnaryOp) -> Iterator[Mutant]:
        # -1 becomes -2; as 1, it is often the same axis.
        if not isinstance(node.operand, ast.Constant):
            yield from self.put(node, "operator", self.code(node.operand))

    def plant_constant(self, node: ast.Constant) -> Iterator[Mutant]:
        old, parent = node.value, self.parents[node]
        if isinstance(parent, ast.keyword) and parent.arg == "strict":
            return
        if isinstance(old, bool):
            yield from self.put(node, "constant", str(not old))
        elif isinstance(old, int):
            yield from self.put(node, "constant", str(old + 1))
        elif isinstance(old, float):
            yield from self.put(node, "constant", repr(2 * old or 1.0))
        elif isinstance(old, str) and " " not in old:
            yield from self.put(node, "constant", repr(old + "x"))

    def plant_slice(self, node: ast.Slice) -> Iterator[Mutant]:
        for bound in (node.lower, node.upper):
            if bound is not None:
                yield from self.cut(node, "bound dropped", *self.span(bound))

    def plant_call(self, node: ast.Call) -> Iterator[Mutant]:
        args, words = node.args, node.keywords
        left: ast.expr | None = args[0] if args else None
        if isinstance(node.func, ast.Attribute):
            receiver = node.func.value
            if self.code(receiver) not in self.modules | {"self", "super()"}:
                left = receiver
        alone = isinstance(self.parents[node], ast.Expr)
        if left and not alone and not isinstance(left, ast.Starred):
            yield from self.put(node, "call dropped", self.code(left))
        name = self.code(node.func)
        told = [self.code(a) for a in args]
        spans = sorted(self.span(part) for part in [*args, *words])
        for word in words:
            if word.arg == "strict":
                continue
            start, end = self.span(word)
            after = [other for other in spans if other[0] > start]
            before = [other for other in spans if other[1] < end]
            if after:
                end = after[0][0]
            elif before:
                start = before[-1][1]
            yield from self.cut(word, "keyword dropped", start, end)
        named = [self.code(word) for word in words]
        for i in range(len(told) - 1):
            if name.split(".")[-1] in COMMUTE:
                break
            swapped = [*told[:i], told[i + 1], told[i], *told[i + 2 :], *named]
            code = f"{name}({', '.join(swapped)})"
            yield from self.put(node, "arguments swapped", code)

    def plant_with(self, node: ast.With) -> Iterator[Mutant]:
        for item in node.items:
            nothing = '__import__("contextlib").nullcontext()'
            yield from self.put(item.context_expr, "with dropped", nothing)

    def plant_stmt(self, node: ast.stmt) -> Iterator[Mutant]:
        inner = self.parents[node]
        while not isinstance(inner, (ast.FunctionDef, ast.Module)):
            inner = self.parents[inner]
        if not isinstance(inner, ast.FunctionDef):
            return
        drop = isinstance(node, (ast.Expr, ast.Raise, ast.Break))
        if isinstance(node, ast.Return):  # those that leave early
            drop = node is not inner.body[-1]
        if isinstance(node, ast.Assign):
            names = [
                n
                for target in node.targets
                for n in ast.walk(target)
                if isinstance(n, ast.Name)
            ]
            bound = {a.arg for a in ast.walk(inner) if isinstance(a, ast.arg)}
            bound |= {
                n.id
                for n in ast.walk(inner)
                if isinstance(n, ast.Name)
                and isinstance(n.ctx, ast.Store)
                and n.lineno < node.lineno
            }
            # Where a name has no value yet, any test would notice.
            drop = all(
                isinstance(n.ctx, ast.Load) or n.id in bound for n in names
            )
        if drop:
            yield from self.put(node, "statement dropped", "pass")

    def plant_functiondef(self, node: ast.FunctionDef) -> Iterator[Mutant]:
        yield from self.undecorated(node)

    def plant_classdef(self, node: ast.ClassDef) -> Iterator[Mutant]:
        yield from self.undecorated(node)

    def undecorated(self, node: Any) -> Iterator[Mutant]:
        for decorator in node.decorator_list:
            start, end = self.span(decorator)  # behind its @
            yield from self.cut(node, "decorator dropped", start - 1, end)


class Planted(importlib.abc.MetaPathFinder):
    """Finds one module of the package with another text."""

    def __init__(self, mutant: Mutant) -> None:
        name = mutant.path.relative_to(ROOT).with_suffix("")
        self.name = name.as_posix().replace("/", ".")
        self.mutant = mutant

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        mutant = self.mutant

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str) -> Any:
                return compile(mutant.source, str(mutant.path), "exec")

        loader = Loader(name, str(mutant.path))
        return importlib.util.spec_from_file_location(name, loader=loader)


class Reached(NamedTuple):
    """A test: how long it takes, and which lines of the package it runs."""

    seconds: float
    lines: dict[str, set[int]]


class Recorder:
    """A pytest plugin: what each test reaches."""

    def __init__(self) -> None:
        self.tests: dict[str, Reached] = {}
        self.failed: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = filter(worth_running, items)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        lines: dict[str, set[int]] = {}
        ours, start = str(PACKAGE), len(f"{ROOT}/")

        def called(frame: Any, event: str, arg: Any) -> Any:
            file = frame.f_code.co_filename
            if not file.startswith(ours):
                return None
            seen = lines.setdefault(file[start:], set())

            def line(frame: Any, event: str, arg: Any) -> Any:
                seen.add(frame.f_lineno)
                return line

            return line(frame, event, arg)

        for name, module in [*sys.modules.items()]:
            if name.startswith("attnref"):  # what is remembered is not run
                for function in vars(module).values():
                    getattr(function, "cache_clear", bool)()
        began = time.monotonic()
        sys.settrace(called)
        yield
        sys.settrace(None)
        self.tests[item.nodeid] = Reached(time.monotonic() - began, lines)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.add(report.nodeid)


def worth_running(item: Any) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    return not NOT_RUN & {*fixtures}


class Chosen:
    """A pytest plugin: these tests alone, in this order, each in its time."""

    def __init__(self, order: dict[str, float]) -> None:
        self.order = order

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        places = {nodeid: i for i, nodeid in enumerate(self.order)}
        items[:] = [i for i in items if i.nodeid in places]
        items.sort(key=lambda item: places[item.nodeid])

    def pytest_runtest_setup(self, item: Any) -> None:
        end_after(10 + 10 * self.order[item.nodeid])


# pytest rewrites what it is told to collect: it would find the file as it is.
OPTIONS = ["-q", "--assert=plain", "--hypothesis-seed=0"]
OPTIONS += ["-p", "no:cacheprovider", "-p", "no:xdist"]
OPTIONS += ["-p", "no:unraisableexception", "-p", "no:threadexception"]


class Pool:
    """So many processes at once, each forked from this one."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.running: dict[int, tuple[Any, Path, float]] = {}
        self.kept = tempfile.TemporaryDirectory(prefix="mutants-")
        self.folder = Path(self.kept.name)

    def start(self, what: Any, work: Callable[[], Any]) -> None:
        out = self.folder / f"{len(list(self.folder.iterdir()))}"
        out.touch()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            try:
                log = os.open(f"{out}.log", os.O_CREAT | os.O_WRONLY)
                os.dup2(log, 1)
                os.dup2(log, 2)
                out.write_bytes(pickle.dumps(work()))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        self.running[pid] = what, out, time.monotonic()

    def ended(self) -> tuple[Any, Any, float]:
        """The next that ends: what it was, its result or None if killed."""
        pid, status = os.wait()
        what, out, start = self.running.pop(pid)
        if os.WIFSIGNALED(status):
            return what, None, start
        if status:
            print(Path(f"{out}.log").read_text()[-3000:])
            return what, None, start
        return what, pickle.loads(out.read_bytes()), start

    def over(
        self, tasks: list[tuple[Any, Callable[[], Any]]]
    ) -> Iterator[tuple[Any, Any, float]]:
        waiting = deque(tasks)
        while waiting or self.running:
            while waiting and len(self.running) < self.jobs:
                self.start(*waiting.popleft())
            yield self.ended()


def warm_up() -> None:
    """Imports what the tests import, except what is under test."""
    for folder in sorted(OURS):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if not isinstance(node, (ast.Import, ast.ImportFrom)):
                    continue
                of = getattr(node, "module", None)
                for alias in node.names:
                    name = of or alias.name
                    if name.split(".")[0] in OURS | {"benchmarks", "conftest"}:
                        continue
                    with suppress(ImportError, AttributeError):
                        module = importlib.import_module(name)
                        if of:
                            getattr(module, alias.name)


def test_files() -> list[str]:
    """Those that import the package, and its own examples."""
    files = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "\nfrom attnref" in text or "\nimport attnref" in text:
            files.append(path)
    files += [p for p in modules() if ">>>" in p.read_text(encoding="utf-8")]
    return [str(p.relative_to(ROOT)) for p in files]


def modules() -> list[Path]:
    """The package, without its command line, its lists of names and the
    entries of mistakes, which are faults themselves."""
    found = sorted(PACKAGE.rglob("*.py"))
    return [
        p
        for p in found
        if not p.stem.startswith("__")
        and p.parent.name != "commands"
        and "\nMISTAKES = " not in p.read_text(encoding="utf-8")
    ]


def end_after(seconds: float) -> None:
    """Of work, not of waiting: the machine may be busy with other things."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)


@functools.cache
def surroundings() -> str:
    """Of all that a test may read; other tests apart."""
    parts: list[Any] = [
        sys.version,
        importlib.import_module("torch").__version__,
    ]
    for name in (".", "attnref", "sitekit", "docs", "overrides", "tests"):
        folder = ROOT / name
        found = folder.glob("*") if folder == ROOT else folder.rglob("*")
        for path in sorted(found):
            other = (
                path.name.startswith(("test_", ".")) or path.suffix == ".pyc"
            )
            if not other and path.is_file():
                parts.append((str(path.relative_to(ROOT)), path.read_bytes()))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def with_imported(file: Path) -> set[Path]:
    """A file of tests, and those that it takes something from."""
    found, new = set(), {file}
    while new:
        found |= new
        text = "".join(path.read_text(encoding="utf-8") for path in new)
        names = re.findall(r"(?m)^from (tests[.\w]*\.test_\w+) import", text)
        new = {ROOT / f"{n.replace('.', '/')}.py" for n in names} - found
    return found


def recorded(file: str) -> tuple[dict[str, Reached], set[str]]:
    """Remembered until something changes that the file may read."""
    text = [p.read_bytes() for p in sorted(with_imported(ROOT / file))]
    key = hashlib.sha256(repr((surroundings(), file, text)).encode())
    kept = Path(tempfile.gettempdir(), f"attnref-reached-{key.hexdigest()}")
    if kept.exists():
        return pickle.loads(kept.read_bytes())
    recorder = Recorder()
    end = pytest.main([*OPTIONS, file], plugins=[recorder])
    assert end in (0, 1, 5), end  # 1 if tests fail, 5 if there are none
    kept.write_bytes(pickle.dumps((recorder.tests, recorder.failed)))
    return recorder.tests, recorder.failed


def met(mutant: Mutant, tests: dict[str, Reached]) -> str:
    """`"survived"`, or `"killed"`."""
    # Endless loops and endless memory end the process.
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
    end_after(120)
    sys.meta_path.insert(0, Planted(mutant))
    chosen = Chosen({name: test.seconds for name, test in tests.items()})
    for file in dict.fromkeys(name.split("::")[0] for name in tests):
        end = pytest.main([*OPTIONS, "-x", file], plugins=[chosen])
        # 1 if a test fails; 2, 3 or 4 if it cannot even be collected; 5 if
        # the mutant gives its tests other names.
        if end not in (0, 5):
            return "killed"
    return "survived"


def reaching(mutant: Mutant, tests: dict[str, Reached]) -> dict[str, Reached]:
    """The tests that reach a mutant: its own file's first, quick ones first."""
    own = {f"test_{mutant.path.stem}", mutant.path.stem}
    path = str(mutant.path.relative_to(ROOT))
    names = [
        name
        for name, test in tests.items()
        if test.lines.get(path, set()) & {*mutant.lines}
    ]
    if mutant.lines.start == 1:  # nor do all that use a class run a line of it
        files = {name.split("::")[0] for name in names}
        names = [name for name in tests if name.split("::")[0] in files]
    took: Counter[str] = Counter()
    for name in names:
        took[name.split("::")[0]] += tests[name].seconds

    def rank(name: str) -> tuple[bool, float, float]:
        file = name.split("::")[0]
        return Path(file).stem not in own, took[file], tests[name].seconds

    return {name: tests[name] for name in sorted(names, key=rank)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--size", type=int, default=120, help="0 for all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="cost, or cost:131,masks")
    parser.add_argument("--jobs", type=int, default=2)
    told = parser.parse_args()

    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    mutants = [m for path in modules() for m in Planter(path).all()]
    print(f"{len(mutants)} mutants of {len(modules())} modules")
    if told.only:
        places = [place.split(":") for place in told.only.split(",")]
        mutants = [
            m
            for m in mutants
            for stem, *line in places
            if m.path.stem == stem and line in ([], [str(m.line)])
        ]
    if told.size and told.size < len(mutants):
        mutants = random.Random(told.seed).sample(mutants, told.size)
        mutants.sort(key=lambda m: (m.path, m.line))
    print(f"{len(mutants)} are planted (seed {told.seed})", flush=True)
    if not mutants:
        sys.exit(f"no mutant is in {told.only!r}")

    pool = Pool(told.jobs)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(pool.folder / "examples")
    warm_up()
    loaded = [name for name in sys.modules if name.split(".")[0] == "attnref"]
    assert not loaded, loaded
    surroundings()
    gc.freeze()  # so that no process looks through all of torch again
    tests: dict[str, Reached] = {}
    start = time.monotonic()
    for file, result, _ in pool.over(
        [(file, functools.partial(recorded, file)) for file in test_files()]
    ):
        assert result, f"{file} did not end"
        if result[1]:
            print(f"left out, they fail as it is: {sorted(result[1])}")
        tests |= {k: v for k, v in result[0].items() if k not in result[1]}
    took = time.monotonic() - start
    print(f"{len(tests)} tests on the package as it is: {took:.0f} s")

    ends: dict[Path, Counter[str]] = {}

    def note(mutant: Mutant, end: str, how: str) -> None:
        ends.setdefault(mutant.path, Counter())[end] += 1
        if end != "killed":
            print(f"\n{mutant.place} {mutant.kind}: {end}, {how}")
            print(mutant.diff(), flush=True)

    tasks = []
    for mutant in mutants:
        those = reaching(mutant, tests)
        if those:
            work = functools.partial(met, mutant, those)
            tasks.append(((mutant, len(those)), work))
        else:
            note(mutant, "survived", "no test reaches it")
    start = time.monotonic()
    for (mutant, n), end, since in pool.over(tasks):
        spent = time.monotonic() - since
        note(mutant, end or "timeout", f"{n} tests in {spent:.0f} s")
    took = time.monotonic() - start

    print(f"\n{'module':28}{'killed':>8}{'timeout':>9}{'survived':>10}")
    for path, count in sorted(ends.items()):
        row = [count[end] for end in ("killed", "timeout", "survived")]
        name = str(path.relative_to(ROOT))
        print(f"{name:28}{row[0]:8}{row[1]:9}{row[2]:10}")
    dead = sum(n["killed"] + n["timeout"] for n in ends.values())
    share = 100 * dead / len(mutants)
    print(f"{dead} of {len(mutants)} die ({share:.1f} %), in {took:.0f} s")


if __name__ == "__main__":
    main()
