"""Faults planted one at a time in the package, and what no test notices.

    python -m tests.mutants --size 120 --seed 1      # make mutants
    python -m tests.mutants --size 0 --only cost     # all of one module
    python -m tests.mutants --size 0 --only cost:131,checks

A mutant is a module with one operator, constant, condition, argument or
statement changed; not what says what holds anyway: the `strict=True` of a zip,
the 0 of `x[0:]`, the `staticmethod` of what is called of its class.
It meets the tests that reach the changed lines, quick ones first, and of these
those that killed others before, until one fails or `--seconds` of work are
spent. Nothing is written: each runs in a process of its own, forked from one
that has collected all tests, in which the changed functions get their new code.
What changes more than functions, or functions that ran when the tests were
collected, has the package and its tests imported again.

What survives meets the oracles that name something of its module, where no
`--tests` are chosen; of a file of these, as many tests as start in a minute.

First all tests run on the package as it is, which tells what lines each of them
reaches; that is remembered until something changes that they read. What ends by
a timeout, of work and not of waiting, counts as killed.
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
import inspect
import math
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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import accumulate, chain, pairwise
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import hypothesis
import pytest

ROOT = Path.cwd()
PACKAGE = ROOT / "attnref"
# What other folders hold is faults themselves, or commands.
FOLDERS = ("plain", "core", "caches", "layers", "numbers", "released")
# Tests that read the package, or run it in other processes.
READERS = {"test_install", "test_layering", "test_public", "test_mutants"}
OURS = {"attnref", "sitekit", "tests", "benchmarks", "conftest"}

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
    def module(self) -> str:
        name = self.path.relative_to(ROOT).with_suffix("")
        return name.as_posix().replace("/", ".")

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
                if isinstance(child, ast.FunctionDef) and (
                    ast.unparse(child.body[-1]) == "..."  # a protocol's
                ):
                    continue
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
            if bound is not None and self.code(bound) != "0":
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
            if self.code(decorator) == "staticmethod":
                continue
            start, end = self.span(decorator)  # behind its @
            yield from self.cut(node, "decorator dropped", start - 1, end)


class Planted(importlib.abc.MetaPathFinder):
    """Finds one module of the package with another text."""

    def __init__(self, mutant: Mutant) -> None:
        self.name, self.mutant = mutant.module, mutant

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        mutant = self.mutant

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str) -> Any:
                return compile(mutant.source, str(mutant.path), "exec")

        loader = Loader(name, str(mutant.path))
        return importlib.util.spec_from_file_location(name, loader=loader)


# A function of a module: its name and its first line.
Key = tuple[str, int]


class Functions:
    """The functions of the package that this process has, to be changed."""

    def __init__(self) -> None:
        self.living: dict[tuple[str, Key], list[FunctionType]] = {}
        for each in gc.get_objects():
            if type(each) is FunctionType:
                code = each.__code__
                place = code.co_filename, key_of(code)
                self.living.setdefault(place, []).append(each)

    def changed(self, mutant: Mutant) -> list[tuple[FunctionType, CodeType]]:
        """Which get what code; none if the mutant is not in functions alone,
        such as a default, a decorator or what a module names."""
        old, new = (
            compile(text, str(mutant.path), "exec")
            for text in (mutant.path.read_text(encoding="utf-8"), mutant.source)
        )
        before, after = dict(functions_in(old)), dict(functions_in(new))
        if outside(old) != outside(new) or before.keys() != after.keys():
            return []
        pairs = []
        for key in before:
            if before[key] != after[key]:
                living = self.living.get((str(mutant.path), key), [])
                if not living or before[key].co_freevars != (
                    after[key].co_freevars
                ):
                    return []
                pairs += [(each, after[key]) for each in living]
        return pairs


def key_of(code: CodeType) -> Key:
    return code.co_qualname, code.co_firstlineno


def functions_in(code: CodeType) -> Iterator[tuple[Key, CodeType]]:
    """Those of a module and its classes, not those within functions."""
    for part in code.co_consts:
        if isinstance(part, CodeType):
            if part.co_flags & inspect.CO_OPTIMIZED:
                yield key_of(part), part
            else:  # the body of a class
                yield from functions_in(part)


def outside(code: CodeType) -> Any:
    """What runs when the module is imported."""
    parts = [
        repr(part)
        if not isinstance(part, CodeType)
        else key_of(part)
        if part.co_flags & inspect.CO_OPTIMIZED
        else outside(part)
        for part in code.co_consts
    ]
    return code.co_code, code.co_names, parts


class Reached(NamedTuple):
    """A test: its seconds of work, and which lines of the package it runs."""

    seconds: float
    lines: dict[str, set[int]]


class Session:
    """A pytest plugin: collects, and then does with the tests what it likes."""

    def __init__(self, work: Callable[[list[Any]], None]) -> None:
        self.work = work
        self.early: set[tuple[str, Key]] = set()

    def pytest_configure(self) -> None:
        quick_failures()

    def pytest_collection(self) -> None:
        def called(frame: Any, event: str, arg: Any) -> None:
            code = frame.f_code
            if code.co_filename.startswith(str(PACKAGE)):
                self.early.add((code.co_filename, key_of(code)))

        sys.settrace(called)

    def pytest_collection_finish(self) -> None:
        sys.settrace(None)

    def pytest_runtestloop(self, session: Any) -> bool:
        self.work(session.items)
        return True


class Chosen:
    """A pytest plugin: these tests alone, in this order, each in its time."""

    def __init__(self, order: dict[str, float]) -> None:
        self.order = order
        self.failed = ""

    def pytest_configure(self) -> None:
        quick_failures()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        places = {nodeid: i for i, nodeid in enumerate(self.order)}
        items[:] = [i for i in items if i.nodeid in places]
        items.sort(key=lambda item: places[item.nodeid])

    def pytest_runtest_setup(self, item: Any) -> None:
        end_after(limit(self.order[item.nodeid]))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid


def quick_failures() -> None:
    """That a test fails is enough: no smaller example is looked for."""
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    usual = hypothesis.settings()
    hypothesis.settings.register_profile(
        "mutants", usual, phases=phases, database=None
    )
    hypothesis.settings.load_profile("mutants")


# pytest rewrites what it is told to collect: it would find the file as it is.
OPTIONS = ["-q", "--assert=plain", "--hypothesis-seed=0"]
OPTIONS += ["-p", "no:cacheprovider", "-p", "no:xdist"]
OPTIONS += ["-p", "no:unraisableexception", "-p", "no:threadexception"]
# What measures time says that other processes run; a sweep repeats a test.
QUIET = ["-s", "--tb=native", "-m", "not audit"]


class Ended(NamedTuple):
    """A process: what it was for, its result, and its seconds of work."""

    what: Any
    result: Any  # None if it was killed
    seconds: float


class Pool:
    """So many processes at once, each forked from this one."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.running: dict[int, tuple[Any, Path]] = {}
        self.started = 0
        self.temporary = tempfile.TemporaryDirectory(prefix="mutants-")
        self.folder = Path(self.temporary.name)

    def start(self, what: Any, work: Callable[[], Any]) -> None:
        self.started += 1
        out = self.folder / str(self.started)
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
                sys.stderr.flush()
            finally:
                os._exit(1)
        self.running[pid] = what, out

    def ended(self) -> Ended:
        """The next that ends."""
        pid, status, used = os.wait4(-1, 0)
        what, out = self.running.pop(pid)
        result = None
        if not os.WIFSIGNALED(status):
            if status:
                print(Path(f"{out}.log").read_text()[-3000:])
            else:
                result = pickle.loads(out.read_bytes())
        for each in (out, Path(f"{out}.log")):
            each.unlink(missing_ok=True)
        return Ended(what, result, used.ru_utime + used.ru_stime)

    def over(
        self, tasks: Iterable[tuple[Any, Callable[[], Any]]]
    ) -> Iterator[Ended]:
        waiting = iter(tasks)
        while True:
            while len(self.running) < self.jobs:
                task = next(waiting, None)
                if task is None:
                    break
                self.start(*task)
            if not self.running:
                return
            yield self.ended()


def warm_up(files: Iterable[Path]) -> None:
    """Imports what they import, except what is under test."""
    for path in files:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            of = getattr(node, "module", None)
            for alias in node.names:
                name = of or alias.name
                if name.split(".")[0] in OURS:
                    continue
                with suppress(ImportError, AttributeError):
                    module = importlib.import_module(name)
                    if of:
                        getattr(module, alias.name)


def modules() -> list[Path]:
    return [
        path
        for folder in FOLDERS
        for path in sorted((PACKAGE / folder).glob("*.py"))
        if path.stem != "__init__"
    ]


def test_files(only: str = "") -> list[str]:
    """Those that import the package, and the package's own examples; of these
    folders or modules: `core,cost`."""
    files = [
        path
        for folder in ("reference", "released")
        for path in sorted((ROOT / "tests" / folder).rglob("test_*.py"))
        if path.parent.name != "oracles"
        and re.search("(?m)^(from|import) attnref", path.read_text("utf-8"))
        and path.stem not in READERS
    ]
    files += [path for path in modules() if ">>>" in path.read_text("utf-8")]
    chosen = {*only.split(",")} if only else set()
    return [
        str(path.relative_to(ROOT))
        for path in files
        if not only
        or chosen & {path.parent.name, path.stem.removeprefix("test_")}
    ]


def oracles_of(mutants: list[Mutant]) -> list[str]:
    """Those that name a class or a function of what was changed."""
    names = {
        node.name
        for path in {mutant.path for mutant in mutants}
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef))
    }
    return [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").glob("*/oracles/test_*.py"))
        if names & {*re.findall(r"\w+", path.read_text("utf-8"))}
    ]


def limit(seconds: float) -> float:
    """Of work, for a test that takes so much: an endless loop ends there."""
    return 10 + 10 * seconds


def end_after(seconds: float) -> None:
    """Of work, not of waiting: the machine may be busy with other things."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)


def recorded(items: list[Any]) -> tuple[dict[str, Reached], dict[str, str]]:
    """What each test reaches, and why some fail as the package is."""
    tests: dict[str, Reached] = {}
    failed = {}
    start = time.process_time()
    for item, following in pairwise([*items, None]):
        oracle = item.path.parent.name == "oracles"
        if oracle and time.process_time() - start > 60:
            break
        forget()
        tracer = Tracer()
        began = time.process_time()
        sys.settrace(tracer.called)
        why = failure(item, following)
        sys.settrace(None)
        took = time.process_time() - began
        forget()
        if why and not (why := failure(item, following)):
            # Some compilers refuse to be traced: then all of its module.
            stem = item.path.stem.removeprefix("test_")
            tracer.lines |= {
                str(path.relative_to(ROOT)): set(range(1, 10_000))
                for path in modules()
                if path.stem == stem
            }
        if why:
            failed[item.nodeid] = why
        tests[item.nodeid] = Reached(took, tracer.lines)
    return tests, failed


class Tracer:
    """Which lines of the package run."""

    def __init__(self) -> None:
        self.lines: dict[str, set[int]] = {}

    def called(self, frame: Any, event: str, arg: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(str(PACKAGE)):
            return None
        place = file[len(f"{ROOT}/") :]
        seen = self.lines.setdefault(place, set())

        def line(frame: Any, event: str, arg: Any) -> Any:
            seen.add(frame.f_lineno)
            return line

        return line(frame, event, arg)


def failure(item: Any, following: Any) -> str:
    """The last line of what pytest says of it; none if it passes."""
    reports: list[str] = []

    class Reports:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                reports.append(report.longreprtext.rstrip() or "fails")

    plugins = item.config.pluginmanager
    name = plugins.register(Reports())
    # With all that stands around a test, such as its filters of warnings.
    item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
    plugins.unregister(name=name)
    return reports[0].rpartition("\n")[2] if reports else ""


def forget() -> None:
    """What functions remember is not run again."""
    for name, module in [*sys.modules.items()]:
        if name.startswith("attnref"):
            for function in vars(module).values():
                getattr(function, "cache_clear", bool)()


@functools.cache
def surroundings() -> bytes:
    """Of all that a test of the package may read; other tests apart."""
    torch = sys.modules.get("torch")
    parts: list[Any] = [sys.version, getattr(torch, "__version__", "")]
    files = (ROOT / "attnref").rglob("*.py"), (ROOT / "tests").glob("*.py")
    for path in sorted(chain(*files, (ROOT / "tests" / "kit").glob("*.py"))):
        if path.name != "mutants.py":
            parts.append((str(path), path.read_bytes()))
    return repr(parts).encode()


def remembered(file: str) -> Path:
    """Where it is written what the tests of a file reach."""
    text = (ROOT / file).read_bytes()
    key = hashlib.sha256(surroundings() + file.encode() + text).hexdigest()
    return Path(tempfile.gettempdir(), f"attnref-reached-{key}")


class Run:
    """All mutants of one run."""

    def __init__(
        self, mutants: list[Mutant], jobs: int, seconds: float
    ) -> None:
        self.mutants, self.seconds = mutants, seconds
        self.pool = Pool(jobs)
        self.tests: dict[str, Reached] = {}
        self.kills: Counter[str] = Counter()
        self.ends: dict[Path, Counter[str]] = {}
        self.alive: list[Mutant] = []
        self.plugin = Session(self.work)

    def work(self, items: list[Any]) -> None:
        """With all tests of the package collected."""
        self.items = {item.nodeid: item for item in items}
        self.functions = Functions()
        gc.freeze()  # so that no process looks through all of torch again
        self.record()
        self.meet()

    def record(self) -> None:
        by_file: dict[str, list[Any]] = {}
        for name, item in self.items.items():
            by_file.setdefault(name.split("::")[0], []).append(item)
        tasks = []
        for file, items in by_file.items():
            if remembered(file).exists():
                result = pickle.loads(remembered(file).read_bytes())
                self.add(result)
            else:
                tasks.append((file, functools.partial(recorded, items)))
        for i, (file, result, seconds) in enumerate(self.pool.over(tasks), 1):
            print(
                f"recorded {i} of {len(tasks)} files of tests: {file}"
                f" ({seconds:.1f} s)",
                flush=True,
            )
            assert result, f"{file} did not end"
            remembered(file).write_bytes(pickle.dumps(result))
            self.add(result)

    def add(self, result: tuple[dict[str, Reached], dict[str, str]]) -> None:
        tests, failed = result
        for name in failed:
            print(f"left out, it fails as it is: {name}: {failed[name]}")
        self.tests |= {k: v for k, v in tests.items() if k not in failed}

    def reaching(self, mutant: Mutant) -> list[str]:
        """The tests that reach it, those first that may tell soonest."""
        path = str(mutant.path.relative_to(ROOT))
        names = [
            name
            for name, test in self.tests.items()
            if test.lines.get(path, set()) & {*mutant.lines}
        ]
        # Not all that use a class or a constant run a line of it.
        if mutant.lines.start == 1:
            files = {name.split("::")[0] for name in names}
            names = [n for n in self.tests if n.split("::")[0] in files]
        own = {f"test_{mutant.path.stem}", mutant.path.stem}

        def rank(name: str) -> tuple[float, bool, str, float]:
            seconds = self.tests[name].seconds
            file = name.split("::")[0]
            slow = round(math.log2(max(seconds, 0.1)))
            kills = self.kills[name] if slow < 0 else 0
            return slow, -kills, Path(file).stem not in own, file, seconds

        return sorted(names, key=rank)

    def affordable(self, names: list[str]) -> list[str]:
        """The first of them, with so much work in all."""
        sums = accumulate(self.tests[name].seconds for name in names)
        pairs = zip(names, sums, strict=True)
        return [
            n for i, (n, s) in enumerate(pairs) if s < self.seconds or not i
        ]

    def met(self, mutant: Mutant, names: list[str]) -> str:
        """Which test fails, or none; in a process of its own."""
        # Endless memory ends the process, as endless loops do.
        resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
        changed = self.functions.changed(mutant)
        early = {
            (each.__code__.co_filename, key_of(each.__code__))
            for each, _ in changed
        }
        if not changed or early & self.plugin.early:
            return self.met_anew(mutant, names)
        forget()
        for function, code in changed:
            function.__code__ = code
        for name, following in pairwise([*names, None]):
            end_after(limit(self.tests[name].seconds))
            next_item = self.items[following] if following else None
            if failure(self.items[name], next_item):
                return name
        return ""

    def met_anew(self, mutant: Mutant, names: list[str]) -> str:
        """The same with the package and its tests imported again."""
        for name in [*sys.modules]:
            if name.split(".")[0] in OURS:
                del sys.modules[name]
        sys.meta_path.insert(0, Planted(mutant))
        chosen = Chosen({name: self.tests[name].seconds for name in names})
        for file in dict.fromkeys(name.split("::")[0] for name in names):
            end_after(limit(10))
            end = pytest.main([*OPTIONS, *QUIET, "-x", file], plugins=[chosen])
            # 1 if a test fails; 2, 3 or 4 if it cannot even be collected; 5
            # if the mutant gives its tests other names.
            if end not in (0, 5):
                return chosen.failed or f"{file} at its import"
        return ""

    def tasks(self) -> Iterator[tuple[Any, Callable[[], str]]]:
        for mutant in self.mutants:
            names = self.reaching(mutant)
            some = self.affordable(names)
            if names:
                what = mutant, f"{len(some)} of {len(names)} tests"
                yield what, functools.partial(self.met, mutant, some)
            else:
                self.note(mutant, "survived", "no test reaches it")

    def meet(self) -> None:
        self.total = 0.0
        self.begun = time.monotonic()
        for (mutant, tests), result, seconds in self.pool.over(self.tasks()):
            self.total += seconds
            if result:
                self.kills[result] += 1
                how = f"by {result} ({seconds:.1f} s)"
                self.note(mutant, "killed", how)
            elif result is None:
                how = f"or a crash ({seconds:.1f} s)"
                self.note(mutant, "timeout", how)
            else:
                self.note(mutant, "survived", f"{tests} ({seconds:.1f} s)")

    def note(self, mutant: Mutant, end: str, how: str) -> None:
        self.ends.setdefault(mutant.path, Counter())[end] += 1
        self.alive += [mutant] * (end == "survived")
        n, of = sum(map(Counter.total, self.ends.values())), len(self.mutants)
        left = (time.monotonic() - self.begun) / n * (of - n)
        print(f"{n} of {of}: {mutant.place} {mutant.kind}: {end} {how}", end="")
        print(f"; {left:.0f} s left" if n % 10 == 0 else "")
        if end != "killed":
            print(mutant.diff())
        sys.stdout.flush()

    def over(self, files: list[str]) -> "Run":
        """With the tests of these files."""
        warm_up([*map(Path, files), *modules()])
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(self.pool.folder / "x")
        print(f"the tests of {len(files)} files are collected", flush=True)
        end = pytest.main([*OPTIONS, *QUIET, *files], plugins=[self.plugin])
        assert end in (0, 5), end
        return self

    def again(self, files: list[str]) -> None:
        """What is still alive, with the tests of other files."""
        for path, count in (
            Run(self.alive, self.pool.jobs, self.seconds)
            .over(files)
            .ends.items()
        ):
            self.ends[path] += count
            self.ends[path]["survived"] -= count.total()

    def summary(self) -> None:
        print(f"\n{'module':28}{'killed':>8}{'timeout':>9}{'survived':>10}")
        for path, count in sorted(self.ends.items()):
            row = [count[end] for end in ("killed", "timeout", "survived")]
            name = str(path.relative_to(ROOT))
            print(f"{name:28}{row[0]:8}{row[1]:9}{row[2]:10}")
        alive = sum(n["survived"] for n in self.ends.values())
        dead = len(self.mutants) - alive
        share = 100 * dead / len(self.mutants)
        used = [
            resource.getrusage(who)
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ]
        work = sum(u.ru_utime + u.ru_stime for u in used)
        print(f"{dead} of {len(self.mutants)} die ({share:.1f} %)")
        print(f"{work:.0f} s of work, {self.total:.0f} s of it with mutants")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--size", type=int, default=120, help="0 for all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", default="", help="core, cost, or cost:131,masks"
    )
    parser.add_argument("--tests", default="", help="only these: core,cost")
    parser.add_argument(
        "--seconds", type=float, default=10, help="of tests for a mutant"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()

    os.environ["OMP_NUM_THREADS"] = "1"
    # A process that compiles with threads of its own cannot be forked.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    lines: dict[str, set[int]] = {}  # of a module or folder; none for all
    for place in filter(None, options.only.split(",")):
        name, _, line = place.partition(":")
        lines.setdefault(name, set()).update([int(line)] if line else [])
    mutants = []
    for path in modules():
        names = lines.keys() & {path.stem, path.parent.name}
        if path.parent.name == "plain":  # the stems are those of others
            names &= {"plain"}
        if names or not lines:
            wanted = set().union(*map(lines.get, names))
            some = Planter(path).all()
            mutants += [m for m in some if not wanted or m.line in wanted]
    print(f"{len(mutants)} mutants", end="")
    if options.size and options.size < len(mutants):
        mutants = random.Random(options.seed).sample(mutants, options.size)
    if not mutants:
        sys.exit(f"no mutant is in {options.only!r}")
    print(f", {len(mutants)} planted (seed {options.seed})", flush=True)

    run = Run(mutants, options.jobs, options.seconds)
    run.over(test_files(options.tests))
    if (oracles := oracles_of(run.alive)) and not options.tests:
        run.again(oracles)
    run.summary()


if __name__ == "__main__":
    main()
