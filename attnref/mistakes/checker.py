"""Which laws a solution of an exercise breaks, and which known mistake it is.

Right answers are those of this package, and a mistake's are those of a package
with the mistake in it. A solution that answers every probe as such a package
does has this mistake.
"""

import ast
import math
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from importlib import metadata
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnref.mistakes.catalogue import (
    PACKAGE,
    PAGES,
    Mistake,
    Text,
    catalogue,
    files,
    load,
)
from attnref.mistakes.exercises import (
    EXERCISES,
    LAWS,
    Outputs,
    Probe,
    Solution,
    SolutionError,
)
from attnref.mistakes.tasks import task

# The largest difference that is rounding, relative to the largest right number.
ROUNDING = {
    torch.float64: 1e-4,  # a solution may compute in float32
    torch.float32: 1e-3,
    torch.bfloat16: 0.1,
    torch.float16: 0.02,
}
CLEARLY = 5  # so many times more, a mistake differs from what is right
# So many pairs of mistakes are tried, the likeliest first: of pairs planted at
# random, more than nine in ten are among them. Each takes 20 to 40 ms.
PAIRS = 100
CHANCE = "dropout-in-evaluation"
RUNTIME = "RuntimeError: "

Form = Callable[[Any], object]


# ----------------------------------------------------------------- answers


class Answer(NamedTuple):
    """What a solution gives on a probe: outputs, or why there are none."""

    outputs: Outputs
    raised: Text | None = None
    where: tuple[str, ...] = ()  # lines of the solution that raised it
    modified: tuple[str, ...] = ()  # inputs that it modified


def ask(
    solution: Solution,
    probe: Probe,
    caught: tuple[type[BaseException], ...] = (Exception, SystemExit),
) -> Answer:
    """The answer to a probe, of a solution in this process."""
    given = {name: _copied(value) for name, value in probe.inputs.items()}
    outputs: Outputs = ()
    raised: Text | None = None
    where: tuple[str, ...] = ()
    try:
        with torch.no_grad():
            outputs = tuple(map(_readable, probe.drive(solution, given)))
    except SolutionError as error:
        raised = error.text
    except caught as error:
        raised, where = error_of(error)
    modified = (
        name
        for name, value in probe.inputs.items()
        if not _is_same(value, given[name])
    )
    return Answer(outputs, raised, where, tuple(modified))


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(v) for v in value]
    return value.clone() if isinstance(value, Tensor) else value


def _is_same(before: Any, after: Any) -> bool:
    if isinstance(before, list):
        return len(before) == len(after) and all(map(_is_same, before, after))
    if not isinstance(before, Tensor):
        return bool(before == after)
    return before.shape == after.shape and torch.equal(
        before.nan_to_num(), after.nan_to_num()
    )


def _readable(x: Tensor) -> Tensor:
    """A plain tensor of real numbers, of no more elements than are needed."""
    if x.numel() > 100_000:
        raise SolutionError(
            f"a tensor of shape {tuple(x.shape)} is returned",
            f"返回了形状为 {tuple(x.shape)} 的张量",
        )
    if x.is_complex() or x.layout != torch.strided or x.is_quantized:
        raise SolutionError(
            f"a tensor of {x.dtype} in layout {x.layout} is returned",
            f"返回的张量是 {x.dtype}，布局 {x.layout}",
        )
    return x.detach().cpu().as_subclass(Tensor)


def error_of(error: BaseException) -> tuple[Text, tuple[str, ...]]:
    """An error of a solution in a line, and the lines that led to it."""
    return _message(error), _where(error)


def _message(error: BaseException) -> Text:
    try:
        words = str(error).split("\n")[0][:300]
    except Exception:
        words = ""
    what = f"{type(error).__name__}: {words}".removesuffix(": ")
    if isinstance(error, MemoryError) or "can't allocate memory" in words:
        return Text(
            f"it needs more memory than it may use ({what})",
            f"需要的内存超过了上限（{what}）",
        )
    if isinstance(error, SyntaxError | UnicodeError) or "null byte" in words:
        return Text(f"it is no Python ({what})", f"这不是 Python（{what}）")
    if isinstance(error, NotImplementedError) and not words:
        return Text("it is not filled in yet", "还没有写")
    if isinstance(error, SystemExit):
        return Text(f"it ends the program ({what})", f"它退出了程序（{what}）")
    return Text(what, what)


def _where(error: BaseException) -> tuple[str, ...]:
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{Path(error.filename).name}:{error.lineno}"
        return (f"{place}: {(error.text or '').strip()[:160]}",)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not Path(frame.filename).is_relative_to(PACKAGE)
    ]
    if not frames:
        return ()
    file = frames[0].filename
    own = [f for f in frames if f.filename == file][-3:]
    return tuple(
        f"{Path(file).name}:{f.lineno}: {(f.line or '').strip()[:160]}"
        for f in own
    )


# ---------------------------------------------------------------- verdicts


@dataclass(frozen=True)
class Verdict:
    """Whether a property holds, on how many inputs, and where it does not."""

    law: str
    title: Text
    tried: int
    difference: float
    """The largest, or that of the smallest input on which it fails."""
    fault: Text | None = None
    sizes: str = ""
    probe: int = -1
    raised: bool = False
    """Whether there was an error, of which `fault` tells."""

    @property
    def passed(self) -> bool:
        return self.fault is None


def difference(got: Tensor, wanted: Tensor) -> tuple[float, Text | None]:
    """The largest difference, and what to say if it is not rounding."""
    if got.shape != wanted.shape:
        shapes = tuple(got.shape), tuple(wanted.shape)
        return math.inf, Text(
            "the shape is {}, and should be {}".format(*shapes),
            "形状是 {}，应为 {}".format(*shapes),
        )
    if (got.dtype == torch.bool) != (wanted.dtype == torch.bool):
        kinds = got.dtype, wanted.dtype
        return math.inf, Text(
            "the dtype is {}, and should be {}".format(*kinds),
            "dtype 是 {}，应为 {}".format(*kinds),
        )
    if not got.numel():
        return 0.0, None
    a, b = got.double(), wanted.double()
    gaps = (a - b).abs().nan_to_num(nan=math.inf, posinf=math.inf)
    gaps[(a == b) | (a.isnan() & b.isnan())] = 0
    worst = float(gaps.max())
    if worst <= rounding(wanted):
        return worst, None
    at = tuple(int(n) for n in torch.unravel_index(gaps.argmax(), gaps.shape))
    is_bool = got.dtype == torch.bool
    x, y = (bool(t[at]) if is_bool else f"{float(t[at]):.4g}" for t in (a, b))
    place = str(at if len(at) != 1 else at[0])
    return worst, Text(
        f"{x} at {place} should be {y}", f"在 {place} 处是 {x}，应为 {y}"
    )


def rounding(wanted: Tensor) -> float:
    if not wanted.is_floating_point():
        return 0.0
    size = wanted.double().abs()
    size = size[size.isfinite()]
    largest = float(size.max()) if len(size) else 1.0
    return ROUNDING.get(wanted.dtype, 1e-4) * max(1.0, largest)


def fault(
    probe: Probe, answer: Answer, right: Answer
) -> tuple[float, Text | None]:
    """By how much an answer breaks the law of its probe, and how."""
    if answer.raised is not None:
        return math.inf, answer.raised
    got, wanted = _halves(probe, answer, right)
    if _of_other_dtype(probe, answer, right):
        kinds = got[0].dtype, wanted[0].dtype
        return math.inf, Text(
            "the dtype is {}, and should be {}".format(*kinds),
            "dtype 是 {}，应为 {}".format(*kinds),
        )
    differences = [difference(a, b) for a, b in zip(got, wanted, strict=True)]
    return max(differences, key=lambda each: (each[1] is not None, each[0]))


def verdicts(
    probes: Sequence[Probe], answers: Sequence[Answer], rights: Sequence[Answer]
) -> tuple[Verdict, ...]:
    """One for each law that the probes are under."""
    results = []
    for law in LAWS:
        under = [n for n, probe in enumerate(probes) if probe.law == law]
        worst = 0.0
        for n in under:
            much, how = fault(probes[n], answers[n], rights[n])
            if how is not None:
                broken = _broken(law, len(under), much, how, probes, n)
                raised = answers[n].raised is not None
                results.append(replace(broken, raised=raised))
                break
            worst = max(worst, much)
        else:
            if under:
                results.append(Verdict(law, LAWS[law].title, len(under), worst))
    for n, answer in enumerate(answers):
        if answer.modified:
            names = ", ".join(answer.modified)
            how = Text(f"{names} changes", f"{names} 被改了")
            all = len(answers)
            results.append(_broken("untouched", all, math.inf, how, probes, n))
            break
    else:
        title = LAWS["untouched"].title
        results.append(Verdict("untouched", title, len(answers), 0.0))
    return tuple(results)


def _broken(
    law: str,
    tried: int,
    much: float,
    how: Text,
    probes: Sequence[Probe],
    n: int,
) -> Verdict:
    title, sizes = LAWS[law].title, probes[n].sizes
    return Verdict(law, title, tried, much, how, sizes, n)


# ------------------------------------------------------------- recognition


class Rights(NamedTuple):
    """The probes of an exercise, the right answers, and for each form which
    functions of this package it calls."""

    probes: tuple[Probe, ...]
    answers: tuple[Answer, ...]
    calls: tuple[set[tuple[str, str]], ...]


@cache
def rights(name: str) -> Rights:
    probes = tuple(EXERCISES[name].probes())
    package = load()  # anew, so that nothing is remembered and so not called
    forms = EXERCISES[name].forms
    answers, calls = [], []
    for form in forms:
        given, called = _with_calls(partial(_all, name, form, package, probes))
        answers.append(given)
        calls.append(called)
    return Rights(probes, answers[0], tuple(calls))


def _all(
    name: str, form: Form, package: ModuleType, probes: Sequence[Probe]
) -> tuple[Answer, ...]:
    solution = Solution(name, form(package))
    return tuple(ask(solution, probe) for probe in probes)


def _with_calls(
    work: Callable[[], tuple[Answer, ...]],
) -> tuple[tuple[Answer, ...], set[tuple[str, str]]]:
    """Its result, and the files and names of the functions that it calls."""
    calls: set[tuple[str, str]] = set()
    done: list[tuple[Answer, ...]] = []

    def called(frame: Any, event: str, _: object) -> None:
        if event == "call":
            calls.add((frame.f_code.co_filename, frame.f_code.co_name))

    def run() -> None:
        sys.setprofile(called)
        done.append(work())

    # In a thread of its own, no profiler of the caller's is in the way.
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return done[0], calls


class Variant:
    """A form of a package with mistakes in it, which answers probe by probe."""

    def __init__(self, name: str, form: Form, package: ModuleType) -> None:
        self.probes = rights(name).probes
        self.solution = Solution(name, form(package))
        self.answers: dict[int, Answer] = {}

    def answer(self, n: int) -> Answer:
        if n not in self.answers:
            self.answers[n] = ask(self.solution, self.probes[n])
        return self.answers[n]


@cache
def variants(name: str, *ids: str) -> tuple[Variant, ...]:
    """A package with these mistakes in it, in each form that calls the
    functions that they change."""
    forms = [
        form
        for form, calls in zip(
            EXERCISES[name].forms, rights(name).calls, strict=True
        )
        if all(_concerns(catalogue()[id], calls) for id in ids)
    ]
    try:
        package = _package(*ids) if forms else None
    except Exception:  # two that change the same lines, for example
        return ()
    return tuple(Variant(name, form, package) for form in forms if package)


@lru_cache(maxsize=256)
def _package(*ids: str) -> ModuleType:
    return load(*(catalogue()[id] for id in ids))


def _concerns(mistake: Mistake, calls: set[tuple[str, str]]) -> bool:
    """Whether a function is called whose lines the mistake replaces."""
    for module, right, _ in mistake.lines:
        file = str(PACKAGE / f"{module.replace('.', '/')}.py")
        function = _function_of(module, right)
        if any(file == f and function in (None, n) for f, n in calls):
            return True
    return False


@cache
def _function_of(module: str, lines: str) -> str | None:
    """The innermost function around these lines, if there is one."""
    text, functions = _functions(module)
    first = text[: text.index(lines.strip("\n"))].count("\n") + 1
    around = [
        node
        for node in functions
        if node.lineno <= first <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno).name if around else None


@cache
def _functions(module: str) -> tuple[str, list[ast.FunctionDef]]:
    path = PACKAGE / f"{module.replace('.', '/')}.py"
    text = path.read_text(encoding="utf-8")
    nodes = ast.walk(ast.parse(text))
    return text, [node for node in nodes if isinstance(node, ast.FunctionDef)]


def clearly_wrong(probe: Probe, answer: Answer, right: Answer) -> bool:
    """Whether this answer tells a mistake: an error alone does not."""
    if answer.raised is not None or not LAWS[probe.law].told:
        return False
    pairs = zip(answer.outputs, right.outputs, strict=True)
    return _of_other_dtype(probe, answer, right) or any(
        a.shape != b.shape
        or difference(a, b)[0] > CLEARLY * max(rounding(b), 1e-9)
        for a, b in pairs
    )


def kind_of(answer: Answer) -> str:
    """How an error of PyTorch begins, up to the first number. What code raises
    itself has no kind: it tells what it is."""
    message = answer.raised.en if answer.raised is not None else ""
    return re.split(r"[\d(\[]", message)[0] if RUNTIME in message else ""


def alike(probe: Probe, one: Answer, other: Answer) -> bool:
    """Whether two solutions answer a probe alike, for any error as for one."""
    if one.raised is not None or other.raised is not None:
        return one.raised is not None and other.raised is not None
    pairs = zip(one.outputs, other.outputs, strict=True)
    return not _of_other_dtype(probe, one, other) and all(
        difference(a, b)[1] is None for a, b in pairs
    )


def _of_other_dtype(probe: Probe, one: Answer, other: Answer) -> bool:
    return (
        probe.law == "dtype" and one.outputs[0].dtype != other.outputs[0].dtype
    )


class Explained(NamedTuple):
    """What gives a solution's answers, and whether there were more pairs of
    mistakes than are tried."""

    mistakes: tuple[tuple[str, ...], ...]
    unfinished: bool = False


def explained(name: str, answers: Sequence[Answer]) -> Explained:
    """The mistakes, or else pairs of them, that give these answers.

    In half precision a solution may fail for a reason of its own: what agrees
    with it there too comes first, but need not exist.
    """
    probes, right, _ = rights(name)
    usable = [n for n, probe in enumerate(probes) if LAWS[probe.law].told]
    failing = [
        n
        for n in usable
        if fault(probes[n], answers[n], right[n])[1] is not None
    ]
    if not failing:  # what fails is a law by which no mistake is recognised
        return Explained(())
    usable.sort(key=lambda n: n not in failing)
    but_half = [n for n in usable if probes[n].law != "dtype"]
    fails_there = [n for n in failing if n in but_half]
    only_errors = all(kind_of(answers[n]) for n in failing)

    def explains(wrong: Variant, on: Sequence[int]) -> bool:
        return all(
            alike(probes[n], answers[n], wrong.answer(n)) for n in on
        ) and any(
            clearly_wrong(probes[n], wrong.answer(n), right[n]) for n in on
        )

    def raises(wrong: Variant) -> bool:
        """Where the solution is wrong it raises an error, as this does. It may
        raise on a few inputs more: whether `view` succeeds also depends on how
        the code around it lays out its tensors."""
        few = len(failing) // 5
        for n in usable:
            other = wrong.answer(n)
            if n not in failing or other.raised is None:
                few -= n in failing
                if few < 0 or not alike(probes[n], other, right[n]):
                    return False
            elif not kind_of(other) or kind_of(other) != kind_of(answers[n]):
                return False
        return True

    def among(
        groups: Iterable[tuple[str, ...]],
    ) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
        """Those that agree on all inputs, and on all but in half precision."""
        whole: list[tuple[str, ...]] = []
        most: list[tuple[str, ...]] = []
        for ids in groups:
            every = variants(name, *ids)
            if only_errors:
                if any(map(raises, every)):
                    whole.append(ids)
            elif any(explains(wrong, usable) for wrong in every):
                whole.append(ids)
            elif fails_there and any(explains(w, but_half) for w in every):
                most.append(ids)
        return whole, most

    def wrong_at(id: str) -> set[int]:
        return {
            n
            for n in some
            for wrong in variants(name, id)
            if not alike(probes[n], wrong.answer(n), right[n])
        }

    def alike_to(id: str) -> set[int]:
        return {
            n
            for n in some
            for wrong in variants(name, id)
            if alike(probes[n], wrong.answer(n), answers[n])
        }

    alone, most = among((id,) for id in catalogue())
    if alone or only_errors:
        return Explained(tuple(alone))
    last = len(probes) - 1  # that repeats a call
    if not most and last in failing and answers[last].raised is None:
        # Answers by chance are no package's; attention has it from dropout.
        return Explained(((CHANCE,),) if variants(name, CHANCE) else ())
    # Of two, each is wrong somewhere, and both together where the solution is.
    some = [n for n in failing if n not in fails_there] if most else fails_there
    some = (some or failing)[:6]
    places = {id: at for id in catalogue() if (at := wrong_at(id))}
    if most:  # one of the two is known, and the other shows in half precision
        known = {id for (id,) in most}
        places = {id: places.get(id, set()) for id in (*known, *places)}
        pairs = [ids for ids in combinations(places, 2) if known & {*ids}]
    else:
        pairs = [*combinations(places, 2)]
    # Where only one of the two shows, the answer is that of this one alone.
    alike_at = {id: alike_to(id) for id in places}

    def likely(ids: tuple[str, ...]) -> tuple[int, int]:
        one, other = ids
        return (
            len(alike_at[one] | alike_at[other]),
            len(places[one] | places[other]),
        )

    pairs.sort(key=likely, reverse=True)
    both, nearly = among(pairs[:PAIRS])
    return Explained(tuple(both or most or nearly), len(pairs) > PAIRS)


# ------------------------------------------------------------------ report


@dataclass(frozen=True)
class Report:
    """What `check` found.

    `mistakes` are the known mistakes that the solution has, by their ids: one
    tuple for each explanation of all its answers, `()` if there is none. A
    tuple of two ids stands for two mistakes made together.
    """

    exercise: str
    verdicts: tuple[Verdict, ...] = ()
    mistakes: tuple[tuple[str, ...], ...] = ()
    error: Text | None = None
    where: tuple[str, ...] = ()
    smallest: Text | None = None
    printed: str = ""
    language: str = "en"
    unfinished: bool = False
    """Whether there were more pairs of known mistakes than are tried."""

    @property
    def passed(self) -> bool:
        """Whether all properties hold."""
        return self.error is None and not self.failures

    @property
    def failures(self) -> tuple[Verdict, ...]:
        """The properties that do not hold."""
        return tuple(v for v in self.verdicts if not v.passed)

    def text(self, *, language: str | None = None, colour: bool = False) -> str:
        """The report in words, "en" or "zh"."""
        return "\n".join(_Words(self, language or self.language, colour).all())

    def __str__(self) -> str:
        return self.text()

    def as_json(self) -> dict[str, object]:
        """The same as numbers and words in one language, for programs."""
        words = _Words(self, self.language, False)

        def finite(number: float) -> float | None:
            return number if math.isfinite(number) else None

        return {
            "exercise": self.exercise,
            "passed": self.passed,
            "error": words.of(self.error),
            "where": list(self.where),
            "laws": [
                {
                    "law": v.law,
                    "title": words.of(v.title),
                    "passed": v.passed,
                    "inputs": v.tried,
                    "difference": finite(v.difference),
                    "input": v.sizes or None,
                    "fault": words.of(v.fault),
                }
                for v in self.verdicts
            ],
            "mistakes": [
                [
                    {
                        "id": id,
                        "title": words.of(catalogue()[id].title),
                        "page": page_of(id, self.language),
                    }
                    for id in ids
                ]
                for ids in self.mistakes
            ],
            "unfinished": self.unfinished,
            "smallest": words.of(self.smallest),
            "printed": self.printed,
        }


RED = 31
GREEN = 32
BOLD = 1
DIM = 2
WORDS = {
    "passes": Text(
        "{name}: all {n} properties hold.", "{name}：{n} 条性质都成立。"
    ),
    "fails": Text(
        "{name}: {n} of {all} properties do not hold.",
        "{name}：{all} 条性质中有 {n} 条不成立。",
    ),
    "fails_one": Text(
        "{name}: 1 of {all} properties does not hold.",
        "{name}：{all} 条性质中有 1 条不成立。",
    ),
    "ok": Text("holds", "成立"),
    "no": Text("FAILS", "不成立"),
    "tried": Text(
        "(tried: {n}, difference: {d})", "（试了 {n} 个输入，最多差 {d}）"
    ),
    "on": Text("{sizes}: {fault}", "{sizes}：{fault}"),
    "again": Text("the same error", "同样的错误"),
    "one": Text("This is a known mistake:", "这是一个已知的错误："),
    "two": Text("These are two known mistakes:", "这是两个已知的错误："),
    "either": Text(
        "It is one of these known mistakes; no input tried here tells them "
        "apart:",
        "这是下列已知错误之一，这里试过的输入分不出是哪一个：",
    ),
    "lines": Text(
        "In attnref's own code, {file}: - is the mistake, + is right.",
        "对应 attnref 自己的代码 {file}：- 是错的，+ 是对的。",
    ),
    "none": Text(
        "This is none of the mistakes that attnref knows.",
        "这不是 attnref 已知的错误。",
    ),
    "unfinished": Text(
        "Of pairs of them, only the {n} likeliest were tried.",
        "它们的两两组合只试了最可能的 {n} 种。",
    ),
    "printed": Text("What it printed:", "它打印的内容："),
}


class _Words:
    """The lines of a report in one language."""

    def __init__(self, report: Report, language: str, colour: bool) -> None:
        if language not in Text._fields:
            raise ValueError(f"{language=} is neither 'en' nor 'zh'")
        self.report, self.language, self.colour = report, language, colour

    def of(self, text: Text | None) -> str | None:
        return None if text is None else str(getattr(text, self.language))

    def say(self, word: str, **values: object) -> str:
        return str(self.of(WORDS[word])).format(**values)

    def in_colour(self, code: int, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.colour else text

    def all(self) -> Iterator[str]:
        report = self.report
        if report.error is not None:
            message = f"{report.exercise}: {self.of(report.error)}"
            yield self.in_colour(RED, message)
            yield from (f"  {line}" for line in report.where)
        else:
            yield self.summary()
            if not report.passed:
                yield from self.recognised()
            yield ""
            yield from self.laws()
        if report.printed:
            yield f"\n{self.say('printed')}"
            yield from (f"  {x}" for x in report.printed.splitlines())

    def summary(self) -> str:
        report = self.report
        word, failed = "passes", len(report.failures)
        numbers = {"n": len(report.verdicts), "all": len(report.verdicts)}
        if failed:
            word, numbers["n"] = "fails", failed
        if failed == 1:
            word = "fails_one"
        first = self.say(word, name=report.exercise, **numbers)
        return self.in_colour(RED if failed else GREEN, first)

    def laws(self) -> Iterator[str]:
        report = self.report
        before: Text | None = None
        ok, no = self.say("ok"), self.say("no")
        for v in report.verdicts:
            mark = self.in_colour(
                GREEN if v.passed else RED, ok if v.passed else no
            )
            room = " " * (
                max(map(_wide, (ok, no))) - _wide(ok if v.passed else no)
            )
            line = f"  {mark}{room}  {self.of(v.title)}"
            if v.passed:
                much = f"{v.difference:.0e}" if v.difference else "0"
                tried = self.say("tried", n=v.tried, d=much)
                yield f"{line} {self.in_colour(DIM, tried)}"
            else:
                yield line
                fault = self.of(v.fault)
                if v.raised and v.fault == before:
                    fault = self.say("again")
                elif v.raised:
                    before = v.fault
                text = self.say("on", sizes=v.sizes, fault=fault)
                yield from _wrapped(text, "         ")
        yield from (f"         {line}" for line in report.where)

    def recognised(self) -> Iterator[str]:
        report = self.report
        yield ""
        if not report.mistakes:
            yield self.in_colour(BOLD, self.say("none"))
            if report.unfinished:
                yield self.say("unfinished", n=PAIRS)
            if report.smallest is not None:
                yield str(self.of(report.smallest))
            return
        several = len(report.mistakes) > 1
        word = "either" if several else "one"
        if not several and len(report.mistakes[0]) > 1:
            word = "two"
        yield self.in_colour(BOLD, self.say(word))
        for ids in report.mistakes:
            if several:
                titles = (self.of(catalogue()[id].title) for id in ids)
                yield f"- {' + '.join(map(str, titles))}"
                yield from (f"  {page_of(id, self.language)}" for id in ids)
            else:
                for id in ids:
                    yield from self.mistake(catalogue()[id])

    def mistake(self, mistake: Mistake) -> Iterator[str]:
        yield f"\n{self.in_colour(BOLD, str(self.of(mistake.title)))}\n"
        places: dict[tuple[str, str], list[str]] = {}
        for module, right, wrong in mistake.lines:
            file = f"attnref/{module.replace('.', '/')}.py"
            places.setdefault((right, wrong), []).append(file)
        before = ""
        for (right, wrong), same in places.items():
            text = self.say("lines", file=", ".join(same))
            yield from _wrapped(text, "  ") if text != before else ("",)
            before = text
            for sign, code, lines in (("-", RED, wrong), ("+", GREEN, right)):
                for line in lines.strip("\n").splitlines():
                    yield self.in_colour(code, f"  {sign} {line}")
        yield ""
        yield from _wrapped(str(self.of(mistake.notice)), "  ")
        yield f"  {page_of(mistake.id, self.language)}"


# A word, a tuple with what is around it, or one Chinese character; what closes
# a clause stays with it.
WIDE = "\u2e80-\uffff"
CLOSING = "[，。；：、）]*"
WORD = (
    rf"(?:[^\s(){WIDE}]*\([^()]*\)[^\s{WIDE}]*|[{WIDE}]|[^\s{WIDE}]+)"
    rf"{CLOSING}|\s+"
)


def _wide(text: str) -> int:
    """In a terminal a Chinese character is as wide as two letters."""
    return sum(2 if ord(c) > 0x2E7F else 1 for c in text)


def _wrapped(text: str, margin: str) -> Iterator[str]:
    """Lines of at most 80 columns; Chinese breaks between any characters."""
    line = ""
    for word in re.findall(WORD, text):
        if line and _wide(margin + line + word.rstrip()) > 80:
            yield margin + line.rstrip()
            line = ""
        line += word if line else word.lstrip()
    yield margin + line.rstrip()


@cache
def site() -> str:
    """Where the installed package says that its site is, if it does."""
    url = os.environ.get("SITE_URL")
    if not url:
        try:
            urls = metadata.metadata("attnref").get_all("Project-URL")
        except metadata.PackageNotFoundError:
            urls = None
        named = dict(url.split(", ", 1) for url in urls or ())
        url = named.get("Documentation", "")
    return f"{url.rstrip('/')}/" if url else ""


def page_of(id: str, language: str) -> str:
    """The address of a mistake; below that of the site, if this is known."""
    stems = (s for s, all in files().items() if id in (m.id for m in all))
    part = "zh/" if language == "zh" else ""
    return f"{site()}{part}{PAGES[next(stems)]}/#{id}"


SMALLEST = {
    "head": Text("The smallest input on which it fails:", "出错的最小输入："),
    "raises": Text("it raises {}", "它抛出 {}"),
    "gives": Text("it gives  {}", "它给出   {}"),
    "right": Text("right is  {}", "正确的是 {}"),
}


def smallest(probe: Probe, answer: Answer, right: Answer) -> Text:
    """A failing input, as code if it is short, what is given and is right."""
    code = [f"{n} = {_as_code(v)}" for n, v in probe.inputs.items()]
    tensors = [x for x in map(_listed, probe.inputs.values())]
    if sum(x.numel() for some in tensors for x in some) > 80:
        code = [probe.sizes]
    shown: list[tuple[str, str | Text]] = []
    if answer.raised is not None:
        shown.append(("raises", answer.raised))
    else:
        got, wanted = _halves(probe, answer, right)
        for a, b in zip(got, wanted, strict=True):
            if difference(a, b)[1] is not None:
                shown += [("gives", _short(a)), ("right", _short(b))]
                break
        if not shown and _of_other_dtype(probe, answer, right):
            shown.append(("gives", str(got[0].dtype)))
            shown.append(("right", str(wanted[0].dtype)))
    texts = []
    for n in range(len(Text._fields)):
        lines = [SMALLEST["head"][n], *code]
        for word, what in shown:
            value = what[n] if isinstance(what, Text) else what
            lines.append(SMALLEST[word][n].format(value))
        texts.append("\n  ".join(lines))
    return Text(*texts)


def _halves(
    probe: Probe, answer: Answer, right: Answer
) -> tuple[Outputs, Outputs]:
    """What is compared: with what is right, or one half with the other."""
    got = answer.outputs
    if not LAWS[probe.law].own:
        return got, right.outputs
    return got[: len(got) // 2], got[len(got) // 2 :]


def _listed(value: Any) -> list[Tensor]:
    several = value if isinstance(value, list) else [value]
    return [x for x in several if isinstance(x, Tensor)]


def _as_code(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_as_code, value))}]"
    if not isinstance(value, Tensor):
        return repr(value)
    kind = f", dtype={value.dtype}" if value.is_floating_point() else ""
    return f"torch.tensor({value.tolist()}{kind})"


def _short(x: Tensor) -> str:
    values = x.double().flatten()[:12].tolist()
    words = [f"{v:.4g}" for v in values]
    if x.dtype == torch.bool:
        words = [str(bool(v)) for v in values]
    more = ", ..." if x.numel() > len(values) else ""
    return f"{tuple(x.shape)}: {', '.join(words)}{more}"


def judged(
    name: str, answers: Sequence[Answer], *, language: str, printed: str = ""
) -> Report:
    """The report on all answers of a solution."""
    probes, right, _ = rights(name)
    if all(answer.raised is not None for answer in answers):
        return Report(
            name,
            error=answers[0].raised,
            where=answers[0].where,
            printed=printed,
            language=language,
        )
    laws = verdicts(probes, answers, right)
    failed = [v for v in laws if not v.passed]
    explanation = Explained(())
    where: tuple[str, ...] = ()
    least = None
    if failed:
        explanation = explained(name, answers)
        n = min(v.probe for v in failed)
        where = next(
            (answers[v.probe].where for v in failed if answers[v.probe].where),
            (),
        )
        least = smallest(probes[n], answers[n], right[n])
    return Report(
        name,
        laws,
        explanation.mistakes,
        None,
        where,
        least,
        printed,
        language,
        explanation.unfinished,
    )


def check(exercise: str, solution: object, *, language: str = "en") -> Report:
    """Check a solution of an exercise of `attnref check`, for a course's tests.

    `solution` is the function or class that the exercise asks for, or a module
    or dict that has it. It runs in this process, and without limits of time or
    memory; the command runs it in a process of its own.

    Examples:
        >>> report = check("softmax", lambda x, dim=-1: x.softmax(dim))
        >>> report.passed, [verdict.law for verdict in report.failures]
        (False, ['empty'])
    """
    name = task(exercise)
    try:
        made = Solution(name, solution)
    except SolutionError as error:
        return Report(name, error=error.text, language=language)
    answers = tuple(ask(made, probe) for probe in rights(name).probes)
    return judged(name, answers, language=language)
