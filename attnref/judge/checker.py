"""Judge a solution of an exercise: which properties it lacks, and which known
mistake explains that.

Plain forms give the right answers; plain forms with a mistake planted in them
give the answers of that mistake. A solution has a mistake if both answer alike
on the inputs that tell the mistake, and on nearly all others.
"""

import errno
import math
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import chain, combinations
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnref.judge.catalogue import (
    PACKAGE,
    PLAIN,
    Mistake,
    Variant,
    catalogue,
    every_variant,
    load,
    planted,
)
from attnref.judge.exercises import (
    EXERCISES,
    PROPERTIES,
    Drive,
    Inputs,
    Outputs,
    Probe,
    Solution,
    SolutionError,
    causal,
    floats_of,
    map_floats,
    properties_of,
    ranks_of,
)
from attnref.judge.forms import Form, one_thread
from attnref.judge.gradients import backward
from attnref.judge.report import (
    SELF_EXPLAINING,
    Program,
    Report,
    Verdict,
    digits_of,
    digits_of_rows,
    gaps_of,
    lines_of_wrong_tensor,
    place,
    rounding,
    tensors_of,
)
from attnref.judge.tasks import TASKS, exercise_name
from attnref.judge.threads import RankError
from attnref.judge.words import phrase
from attnref.words import Text

CLEARLY = 5  # roundings by which a mistake must differ from the right answer
# Pairs of mistakes that are tried, the likeliest first: of pairs planted at
# random, more than nine in ten are among them.
PAIRS = 100
FEW = 3  # inputs on which a class must raise, to be recognised by its errors
COSTLY = 4000  # elements: larger inputs are tried last
# Limits of memory and time: to exceed one says little about which mistake it
# is. But `small`, the size of a cache, does.
UNNAMED = {name for name, x in PROPERTIES.items() if x.unit} - {"small"}
MAX_DIFFERING = 1 / 5  # of the failing inputs: a mistake may differ on them
# Properties of edge cases: a solution with a known mistake may fail these for
# another reason too, so that a difference there costs a candidate only half.
EDGES = {"empty", "large", "sums", "gradients", "dtype"}
# Mistakes that need an argument of this name, which few exercises have.
NEEDS = {"mask-argument-ignored": "mask", "causal-in-training-only": "train"}
# In these exercises each query head has its own keys: nothing is stacked.
UNGROUPED = {"mha", "mha_cached"}
RUNTIME = "RuntimeError: "
# Their lines are not those of a solution.
LIBRARIES = PACKAGE, Path(torch.__file__).parent


# ----------------------------------------------------------------- answers


class Answer(NamedTuple):
    """What a solution gives for a probe: outputs, or the error it raises."""

    outputs: Outputs
    error: Text | None = None
    trace: tuple[str, ...] = ()  # lines of the solution that led to the error
    changes: tuple[str, ...] = ()  # names of the inputs that it modified
    calls: tuple[Outputs, ...] = ()  # results of each of its calls


class Call(NamedTuple):
    """One call of a solution; `append` is a method of what another returned."""

    function: str
    inputs: Inputs
    result: Any
    outputs: Outputs


class Spy(Solution):
    """A solution that records its calls."""

    def __init__(self, solution: Solution) -> None:
        vars(self).update(vars(solution))
        self.calls: list[Call] = []

    def __call__(self, function: str = "", /, **inputs: Any) -> Any:
        name = function or TASKS[self.name].names[0]
        result = self.record(name, inputs, partial(super().__call__, name))
        if asks_class(self.name) and name == TASKS[self.name].names[0]:
            return CacheSpy(self, result)
        return result

    def record(
        self, name: str, inputs: Inputs, call: Callable[..., Any]
    ) -> Any:
        result: Any = None
        try:
            result = call(**inputs)
        finally:
            copies = tuple(readable(x).clone() for x in tensors_of(result))
            self.calls.append(Call(name, inputs, result, copies))
        return result


class CacheSpy:
    """A cache that records each `append` and each `gather`."""

    def __init__(self, spy: Spy, cache: Any) -> None:
        self.spy, self.cache = spy, cache

    def append(self, k: Any, v: Any, *more: Any) -> Any:
        if more:  # a pool takes other arguments, and no program shows it
            return self.cache.append(k, v, *more)

        def call(**inputs: Any) -> Any:
            return inputs["self"].append(k, v)

        inputs = {"self": self.cache, "k": k, "v": v}
        return self.spy.record("append", inputs, call)

    def gather(self, *arguments: Any) -> Any:
        call = partial(self.cache.gather, *arguments)
        return self.spy.record("gather", {}, call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)


def ask(
    solution: Solution,
    probe: Probe,
    catch: tuple[type[BaseException], ...] = (Exception, SystemExit),
    *,
    record: bool = False,
) -> Answer:
    """Run a probe with a solution, in this process; `record` its calls."""
    inputs = {name: _copy(value) for name, value in probe.inputs.items()}
    outputs: Outputs = ()
    message: Text | None = None
    trace: tuple[str, ...] = ()
    spy = Spy(solution) if record else solution
    try:
        with torch.no_grad():
            outputs = tuple(map(readable, probe.drive(spy, inputs)))
    except SolutionError as error:
        message, trace = error.text, _trace(error)
    except catch as error:
        message, trace = error_of(error)
    changes = (
        name
        for name, value in probe.inputs.items()
        if not _is_same(value, inputs[name])
    )
    calls = (c.outputs for c in spy.calls) if isinstance(spy, Spy) else ()
    return Answer(outputs, message, trace, tuple(changes), tuple(calls))


def _copy(value: Any) -> Any:
    if isinstance(value, list):
        return [_copy(v) for v in value]
    return value.clone() if isinstance(value, Tensor) else value


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, list):
        return len(value) == len(other) and all(map(_is_same, value, other))
    if not isinstance(value, Tensor):
        return bool(value == other)
    return value.shape == other.shape and torch.equal(
        value.nan_to_num(), other.nan_to_num()
    )


def readable(x: Tensor) -> Tensor:
    """Return a plain CPU tensor; refuse huge, complex or sparse ones."""
    if x.numel() > 100_000:
        raise SolutionError("long", shape=tuple(x.shape))
    if x.is_complex() or x.layout != torch.strided or x.is_quantized:
        raise SolutionError("layout", x=x)
    return x.detach().cpu().as_subclass(Tensor)


def error_of(error: BaseException) -> tuple[Text, tuple[str, ...]]:
    """A line that describes an error, and the lines of code that led to it."""
    if isinstance(error, RankError) and error.__cause__:
        what, trace = error_of(error.__cause__)
        return phrase("rank", what=what, rank=error.rank, n=error.size), trace
    return _message(error), _trace(error)


def _message(error: BaseException) -> Text:
    try:
        words = str(error).split("\n")[0][:300]
    except Exception:
        words = ""
    what = f"{type(error).__name__}: {words}".removesuffix(": ")
    no_memory = "can't allocate memory" in words  # PyTorch says
    if isinstance(error, OSError):
        no_memory = error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or no_memory:
        return phrase("memory", what=what)
    if isinstance(error, SyntaxError | UnicodeError) or "null byte" in words:
        return phrase("syntax", what=what)
    if isinstance(error, NotImplementedError) and not words:
        return phrase("empty")
    if isinstance(error, SystemExit):
        return phrase("exit", what=what)
    return Text(what, what)


def _trace(error: BaseException) -> tuple[str, ...]:
    """Return the last three lines of the solution's file in the traceback."""
    if isinstance(error, SyntaxError) and error.filename:
        spot = f"{Path(error.filename).name}:{error.lineno}"
        return (f"{spot}: {(error.text or '').strip()[:160]}",)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(map(Path(frame.filename).is_relative_to, LIBRARIES))
    ]
    file = frames[0].filename if frames else ""
    return tuple(
        f"{Path(file).name}:{frame.lineno}: {(frame.line or '').strip()[:160]}"
        for frame in [f for f in frames if f.filename == file][-3:]
    )


# ---------------------------------------------------------------- verdicts


def difference(actual: Tensor, expected: Tensor) -> tuple[float, Text | None]:
    """The largest difference, and what to say if it is not rounding."""
    if actual.shape != expected.shape:
        shapes = {"got": tuple(actual.shape), "wanted": tuple(expected.shape)}
        return math.inf, phrase("shape", **shapes)
    dtypes = {"got": actual.dtype, "wanted": expected.dtype}
    if (actual.dtype == torch.bool) != (expected.dtype == torch.bool):
        return math.inf, phrase("dtype", **dtypes)
    if not actual.numel():
        return 0.0, None
    gaps = gaps_of(actual, expected)
    largest = float(gaps.max())
    if largest <= rounding(expected):
        return largest, None
    index, wrong = place(gaps), int((gaps > rounding(expected)).sum())
    x, y = digits_of(actual[index], expected[index])
    spot = str(index if len(index) != 1 else index[0])
    counts = {"wrong": wrong, "all": gaps.numel()}
    return largest, phrase("number", x=x, y=y, spot=spot, **counts)


def fault(
    probe: Probe, answer: Answer, right: Answer
) -> tuple[float, Text | None]:
    """By how much an answer violates the property of its probe, and the words
    for it, None if it does not."""
    if answer.error is not None:
        return math.inf, answer.error
    actual, expected = answer.outputs, right.outputs
    judgement = PROPERTIES[probe.prop]
    if judgement.halves:
        half = len(actual) // 2
        actual, expected = actual[:half], actual[half:]
    for x, y in _dtype_differences(probe, answer, right):
        return math.inf, phrase("dtype", got=x.dtype, wanted=y.dtype)
    if judgement.unit is not None and float(actual[0]) > float(expected[0]):
        a, b = int(actual[0]), int(expected[0])
        return a - b, phrase("limit", a=a, b=b, unit=judgement.unit)
    differences = [*map(difference, actual, expected)]
    size, text = max(differences, key=lambda x: (x[1] is not None, x[0]))
    if text is not None and probe.prop == "gradients":
        pairs = zip(floats_of(probe.inputs), actual, differences, strict=True)
        return size, _wrong_gradients([x for x in pairs if x[2][1]])
    if text is not None and probe.prop == "sums" and math.isfinite(size):
        total = actual[1][place(gaps_of(actual[0], expected[0]))]
        text = phrase("sum", x=digits_of_rows([float(total)], [1.0])[0])
    elif text is not None and "f" in probe.inputs:
        text = phrase("logarithms", how=text)
    return size, text


def _wrong_gradients(
    wrong: Sequence[tuple[str, Tensor, tuple[float, Any]]],
) -> Text:
    """Which gradients are wrong: those that are 0, and one of the others."""
    cut = [name for name, gradient, _ in wrong if not gradient.any()]
    others = [(name, how) for name, _, (_, how) in wrong if name not in cut]
    texts = []
    if cut:
        texts.append(phrase("cut", names=", ".join(cut)))
    if others:
        names = ", ".join(name for name, _ in others)
        name, how = others[0]
        texts.append(phrase("gradient", names=names, name=name, how=how))
    return Text(*map("; ".join, zip(*texts, strict=True)))


def verdicts(name: str, answers: Sequence[Answer]) -> tuple[Verdict, ...]:
    """Judge each property; "untouched" is judged on the inputs of all."""
    return tuple(
        _verdict(name, function, prop, answers)
        for function, prop in properties_of(name)
    )


def _verdict(
    name: str, function: str, prop: str, answers: Sequence[Answer]
) -> Verdict:
    """Judge a property on its inputs, up to the first that violates it."""
    probes, right = answer_key(name).probes, answer_key(name).answers
    title = PROPERTIES[prop].title
    indices = [
        n
        for n, probe in enumerate(probes)
        if probe.function == function and prop in (probe.prop, "untouched")
    ]
    largest = 0.0
    for n in indices:
        if prop == "untouched":
            names = ", ".join(answers[n].changes)
            text = phrase("modified", names=names) if names else None
            size = math.inf if names else 0.0
        else:
            size, text = fault(probes[n], answers[n], right[n])
        if text is not None:
            return Verdict(
                prop,
                title,
                len(indices),
                size,
                text,
                sizes=probes[n].sizes,
                probe=n,
                raised=text is answers[n].error,
                function=function,
            )
        largest = max(largest, size)
    return Verdict(prop, title, len(indices), largest, function=function)


# ------------------------------------------------------------- recognition


class AnswerKey(NamedTuple):
    """The probes of an exercise and the right answers; `all_answers` include
    those to the probes of the stages."""

    probes: tuple[Probe, ...]
    answers: tuple[Answer, ...]
    stages: tuple[str, ...]  # of each of the last probes of `probes_of`
    all_answers: tuple[Answer, ...]


class Anew(NamedTuple):
    """What `ask_anew` returns: a probe by its number, and two answers to it."""

    probe: int
    fresh: Answer
    after_call: Answer


@cache
def answer_key(name: str) -> AnswerKey:
    probes, stages = _probes_and_stages(name)
    solution = right_solution(name)
    answers = tuple(ask(solution, probe, record=True) for probe in probes)
    n = len(probes) - len(stages)
    return AnswerKey(probes[:n], answers[:n], stages, answers)


def right_solution(name: str) -> Solution:
    form = EXERCISES[name].forms[0]
    return Solution(name, form.make(load() if form.package else planted(())))


@cache
def _probes_and_stages(name: str) -> tuple[tuple[Probe, ...], tuple[str, ...]]:
    probes = [*EXERCISES[name].probes()]
    pairs = [*stage_probes(probes)]
    probes += (probe for _, probe in pairs)
    return tuple(probes), tuple(stage for stage, _ in pairs)


def probes_of(name: str) -> tuple[Probe, ...]:
    """All probes of an exercise, and then those of the stages."""
    return _probes_and_stages(name)[0]


class Candidate:
    """A form of the exercise with mistakes planted in it, and its answers."""

    def __init__(
        self, name: str, form: Form, variant: Variant, *ids: str
    ) -> None:
        self.name, self.form, self.variant, self.ids = name, form, variant, ids
        self.answers: dict[int, Answer] = {}
        self.solution: Solution | None = None

    def answer(self, n: int) -> Answer:
        # The state of a class depends on all earlier probes.
        start = 0 if asks_class(self.name) else n
        for m in range(start, n + 1):
            if m not in self.answers:
                self.answers[m] = self._ask(probes_of(self.name)[m])
        return self.answers[n]

    def _ask(self, probe: Probe) -> Answer:
        try:
            if self.solution is None:
                functions = self.form.make(_planted(self.variant))
                self.solution = Solution(self.name, functions)
        except Exception as error:  # two mistakes change the same lines
            return Answer((), Text(str(error), str(error)))
        return ask(self.solution, probe)


@lru_cache(maxsize=256)
def _planted(variant: Variant) -> Any:
    return planted(variant)


@cache
def candidates(
    name: str, mistakes: Callable[[], dict[str, Mistake]] = catalogue
) -> tuple[Candidate, ...]:
    """Plant each variant of each mistake in each form that runs its lines.

    A form is left out if another that runs them has fewer modules, or if an
    earlier one has the same modules and leaves other functions unused.
    """
    result, own = [], EXERCISES[name].forms[0].modules
    for mistake in mistakes().values():
        if NEEDS.get(mistake.id, "") not in {"", *arguments(name)}:
            continue
        if name in UNGROUPED and mistake.id == "is-causal-with-stacked-heads":
            continue
        # A report shows the first lines that fit: those of this exercise.
        for variant in sorted(
            every_variant(mistake),
            key=lambda lines: own.isdisjoint(x.module for x in lines),
        ):
            plain = all(lines.module.startswith(PLAIN) for lines in variant)
            forms = [
                form
                for form in EXERCISES[name].forms
                if form.package != plain and any(map(form.runs, variant))
            ]
            result += [
                Candidate(name, form, variant, mistake.id)
                for n, form in enumerate(forms)
                if not any(form.modules > other.modules for other in forms)
                and not any(
                    form.modules == other.modules
                    and form.unused != other.unused
                    for other in forms[:n]
                )
            ]
    return tuple(result)


def clearly_wrong(probe: Probe, answer: Answer, right: Answer) -> bool:
    """Whether this answer tells a mistake: an error alone does not."""
    if answer.error is not None:
        return False
    pairs = zip(answer.outputs, right.outputs, strict=True)
    return bool(_dtype_differences(probe, answer, right)) or any(
        a.shape != b.shape
        or difference(a, b)[0] > CLEARLY * max(rounding(b), 1e-9)
        for a, b in pairs
    )


def kind_of(answer: Answer) -> str:
    """How an error of PyTorch begins, up to the first number. An error that
    code raises itself has no kind: its message tells what it is."""
    message = answer.error.en if answer.error is not None else ""
    return re.split(r"[\d(\[]", message)[0] if RUNTIME in message else ""


def same_answer(probe: Probe, one: Answer, other: Answer) -> bool:
    """Whether two solutions answer a probe alike; all errors are alike."""
    if one.error is not None or other.error is not None:
        return one.error is not None and other.error is not None
    if PROPERTIES[probe.prop].unit is not None:  # both too much, or neither
        too_much = (a.outputs[0].gt(a.outputs[1]) for a in (one, other))
        return len({*map(bool, too_much)}) == 1
    pairs = zip(one.outputs, other.outputs, strict=True)
    return not _dtype_differences(probe, one, other) and all(
        a.shape == b.shape
        and (a.dtype == torch.bool) == (b.dtype == torch.bool)
        and (not a.numel() or float(gaps_of(a, b).max()) <= rounding(b))
        for a, b in pairs
    )


def _dtype_differences(
    probe: Probe, one: Answer, other: Answer
) -> list[tuple[Tensor, Tensor]]:
    """The outputs of other dtypes, if the probe is one of dtypes."""
    pairs = zip(one.outputs, other.outputs, strict=True)
    asks_dtype = probe.prop == "dtype"
    return [(a, b) for a, b in pairs if asks_dtype and a.dtype != b.dtype]


def is_neither_constant_nor_input(probe: Probe, answer: Answer) -> bool:
    """Whether an answer is neither a constant nor the first input."""
    outputs = next(filter(None, answer.calls), None)
    if outputs is None:
        return False
    out, tensors = outputs[0], next(map(tensors_of, probe.inputs.values()))
    start = out.flatten()[:0]
    if tensors and tensors[0].dim() == out.dim():
        start = tensors[0][tuple(map(slice, out.shape))]
    is_input = out.double().equal(start.double())
    return not is_input and bool((out != out.flatten()[:1]).any())


class Explanation(NamedTuple):
    """The known mistakes that a solution has; the fields are those of Report.

    On `agrees` of `tried` inputs, each of `mistakes` gives the solution's
    answer; it differs only on inputs of the properties `differs`. `lines` are
    the planted variants. The search is `unfinished` if more pairs of mistakes
    are possible than are tried.
    """

    mistakes: tuple[tuple[str, ...], ...] = ()
    agrees: int = 0
    tried: int = 0
    differs: tuple[str, ...] = ()
    unfinished: bool = False
    lines: tuple[Variant, ...] = ()


@dataclass(frozen=True, eq=False)
class Row:
    """One input on which a solution is compared with known mistakes."""

    index: int  # of the probe
    probe: Probe
    answer: Answer
    right: Answer
    failed: bool
    weight: float
    """What a different answer costs a mistake: 1, or 0.5 for the properties of
    EDGES. It costs nothing in half precision and in gradients, where a solution
    may fail for another reason, unless it fails there only."""

    @property
    def decides(self) -> bool:
        return self.failed and self.weight > 0

    @property
    def size(self) -> int:
        return size_of(self.probe)


class Match(NamedTuple):
    """The mistakes that differ least from a solution, and where they do."""

    rows: list[Row]
    lines: dict[tuple[str, ...], Variant]  # by the ids of the mistakes


class Comparison:
    """A table of the inputs on which a solution is compared with mistakes.

    It has those of each function that fails on some. First come cheap inputs
    on which the solution fails: they soon tell mistakes apart.
    """

    def __init__(self, name: str, answers: Sequence[Answer]) -> None:
        self.name, self.answers = name, answers
        probes, right = answer_key(name).probes, answer_key(name).answers
        failed = {
            n
            for n in recognising(name)
            if fault(probes[n], answers[n], right[n])[1] is not None
            # After a solution has modified its inputs, its results say nothing.
            and not (answers[n].changes and len(answers[n].calls) > 1)
        }
        functions = {probes[n].function for n in failed}
        only_lenient = all(is_lenient(probes[n]) for n in failed)

        def row(n: int) -> Row:
            weight = 0.5 if probes[n].prop in EDGES else 1.0
            if is_lenient(probes[n]) and not only_lenient:
                weight = 0.0
            return Row(n, probes[n], answers[n], right[n], n in failed, weight)

        def rank(row: Row) -> tuple[bool, bool, bool, int]:
            return not row.weight, row.size > COSTLY, not row.decides, row.size

        indices = (
            n for n in recognising(name) if probes[n].function in functions
        )
        self.rows = sorted(map(row, indices), key=rank)
        failing = [row for row in self.rows if row.failed]
        self.properties = {row.probe.prop for row in failing}
        self.smallest = min((row.size for row in failing), default=0)
        self.only_errors = all(kind_of(row.answer) for row in failing)
        self.deciding = [row for row in self.rows if row.decides]

    def agrees(self, candidate: Candidate, row: Row) -> bool:
        answer = candidate.answer(row.index)
        raises = self.only_errors and row.answer.error is not None
        if raises and not asks_class(self.name):
            return kind_of(row.answer) == kind_of(answer)
        return same_answer(row.probe, row.answer, answer)

    def differing(self, candidate: Candidate, limit: float) -> list[Row] | None:
        """The rows on which a candidate differs; None if they weigh more than
        the limit, or if it is not clear that it explains the others."""
        differing: list[Row] = []
        for row in self.rows:
            if not self.agrees(candidate, row):
                differing.append(row)
                limit -= row.weight
                if limit < 0:
                    return None
        common = [row for row in self.deciding if row not in differing]
        if asks_class(self.name):
            # Both must raise in the same places, and nowhere else.
            passes = len(self.rows) > len(self.deciding)
            sure = passes and not differing and len(common) >= FEW
        else:
            sure = self.only_errors
        clear = (
            clearly_wrong(row.probe, candidate.answer(row.index), row.right)
            for row in common
        )
        return differing if sure or any(clear) else None

    def best(self, candidates: Iterable[Candidate], limit: float) -> Match:
        """The candidates that differ least, if at most by the limit."""
        match = Match([], {})
        least: tuple[float, int] = limit, len(self.rows)
        for candidate in candidates:
            if least == (0, 0) and candidate.ids in match.lines:
                continue
            rows = self.differing(candidate, least[0])
            if rows is None:
                continue
            rank = sum(row.weight for row in rows), len(rows)
            if rank < least:
                match, least = Match(rows, {}), rank
            if rank == least:
                match.lines.setdefault(candidate.ids, candidate.variant)
        return match


def recognising(name: str) -> list[int]:
    """The probes by which mistakes are recognised."""
    probes = answer_key(name).probes
    return [n for n, p in enumerate(probes) if p.prop not in UNNAMED]


def explain(name: str, answers: Sequence[Answer]) -> Explanation:
    """Find the mistakes that give these answers, or else pairs of them: those
    that differ least, and on few of the inputs that fail."""
    if not any(map(is_neither_constant_nor_input, probes_of(name), answers)):
        return Explanation()
    table = Comparison(name, answers)
    if not table.rows:
        return _explain_changes(name, answers)
    match = table.best(likely(table), len(table.deciding) * MAX_DIFFERING)
    unfinished = False
    certain = match.lines and not any(row.weight for row in match.rows)
    if not (certain or table.only_errors or table.properties == {"small"}):
        pairs = [*likely_pairs(table, {*match.lines})]
        unfinished = not match.lines and len(pairs) > PAIRS
        match_of_two = table.best(pairs[:PAIRS], 0)
        if match_of_two.lines:
            match, unfinished = match_of_two, False
    agrees = len(table.rows) - len(match.rows) if match.lines else 0
    differs = dict.fromkeys(row.probe.prop for row in match.rows)
    return Explanation(
        mistakes=tuple(match.lines),
        agrees=agrees,
        tried=len(table.rows),
        differs=tuple(differs),
        unfinished=unfinished,
        lines=tuple(match.lines.values()),
    )


def _explain_changes(name: str, answers: Sequence[Answer]) -> Explanation:
    """Explain a failure of "untouched" alone: the input is modified."""
    indices = recognising(name)
    if not any(answers[n].changes for n in indices):
        return Explanation()
    mistake, n = catalogue()["input-modified"], len(indices)
    return Explanation(((mistake.id,),), n, n, lines=mistake.variants[:1])


def likely(table: Comparison) -> list[Candidate]:
    """The candidates that are tried. If only the size of a cache is wrong, or
    only large and far inputs fail, they are those that speak of it; if only
    gradients are, those of the backward pass come first."""
    word, forward = "", candidates(table.name)
    if table.properties == {"gradients"}:
        return [*candidates(table.name, backward), *forward]
    if table.properties == {"small"}:
        word = "cache"
    elif table.properties == {"far"} and table.smallest > COSTLY:
        word = "position"
    return [
        candidate
        for candidate in forward
        if any(
            word in line
            for lines in candidate.variant
            for line in (lines.module, *lines.diff)
        )
    ]


class Single(NamedTuple):
    """A candidate for a pair, and among a few inputs those on which it answers
    as the solution, and those on which it is wrong."""

    agreeing: set[int]
    failing: set[int]
    candidate: Candidate


def likely_pairs(
    table: Comparison, matches: set[tuple[str, ...]]
) -> Iterator[Candidate]:
    """Pairs of mistakes in one form, the likeliest first.

    Each mistake is wrong somewhere, and where only one of the two shows, the
    answer of the pair is that of this one. Pairs that hold one of `matches`,
    the best single mistakes, come first.
    """
    indices = _indices_for_pairs(table)
    pairs = []
    for first, second in combinations(_singles(table, indices), 2):
        one, other = first.candidate, second.candidate
        form = _common_form(one, other)
        if form and one.ids != other.ids:
            rank = (
                bool(matches & {one.ids, other.ids}),
                len(first.agreeing | second.agreeing),
                len(first.failing | second.failing),
            )
            pairs.append((rank, form, one, other))
    for _, form, one, other in sorted(pairs, key=itemgetter(0), reverse=True):
        ids = sorted((*one.ids, *other.ids))
        yield Candidate(table.name, form, one.variant + other.variant, *ids)


def _indices_for_pairs(table: Comparison) -> list[int]:
    """A few cheap inputs that fail: the smallest, one for each property and
    each set of arguments, the largest; and those of the stages that fail."""
    probes, right = probes_of(table.name), answer_key(table.name)
    cheap = [row.index for row in table.deciding if row.size < COSTLY]
    if not cheap:
        return []
    kinds = {
        (probes[n].prop, *probes[n].inputs): n for n in reversed(cheap)
    }.values()
    indices = [*dict.fromkeys((*cheap[:2], *kinds, *cheap[-1:]))][:6]
    return indices + [
        n
        for n in range(len(right.probes), len(probes))
        if not same_answer(probes[n], table.answers[n], right.all_answers[n])
    ]


def _singles(table: Comparison, indices: list[int]) -> list[Single]:
    """The candidates that are wrong on some of these inputs, without those
    that answer there as an earlier one does."""
    probes, right = probes_of(table.name), answer_key(table.name).all_answers
    singles: dict[tuple[Any, ...], Single] = {}
    for candidate in candidates(table.name) if indices else ():
        agreeing, failing, sums = set[int](), set[int](), list[str]()
        for n in indices:
            answer = candidate.answer(n)
            if same_answer(probes[n], answer, table.answers[n]):
                agreeing.add(n)
            if not same_answer(probes[n], answer, right[n]):
                failing.add(n)
            sums += (f"{_digest(x):.4g}" for x in answer.outputs)
        if failing:
            single = Single(agreeing, failing, candidate)
            singles.setdefault((id(candidate.form), *sums), single)
    return [*singles.values()]


def _digest(x: Tensor) -> float:
    """A number that depends on the order of the elements too."""
    slopes = torch.arange(x.numel(), dtype=torch.float64).cos()
    return float(x.double().flatten() @ slopes)


def _common_form(one: Candidate, other: Candidate) -> Form | None:
    """The form of one of two candidates in which the mistakes of both show."""
    variants = one.variant, other.variant
    modules = {lines.module for variant in variants for lines in variant}
    for form in (one.form, other.form):
        if modules <= form.modules and all(
            any(map(form.runs, variant)) for variant in variants
        ):
            return form
    return None


def arguments(name: str) -> set[str]:
    """What the functions of an exercise are called with."""
    return {*chain(*TASKS[name].functions.values())}


def asks_class(name: str) -> bool:
    return TASKS[name].stub.startswith("class ")


def is_lenient(probe: Probe) -> bool:
    """Whether a solution may fail this probe without having a known mistake."""
    tensors = (x for value in probe.inputs.values() for x in tensors_of(value))
    half = (torch.float16, torch.bfloat16)
    return probe.prop in ("gradients", "dtype") or any(
        x.dtype in half for x in tensors
    )


def size_of(probe: Probe) -> int:
    """How many elements the inputs have."""
    values = probe.inputs.values()
    return sum(x.numel() for value in values for x in tensors_of(value))


# -------------------------------------------------------------------- stages


def _output(solution: Solution, inputs: Inputs) -> Outputs:
    out = solution(**inputs)
    return (out[0] if isinstance(out, tuple | list) else out,)


def _last_query(solution: Solution, inputs: Inputs) -> Outputs:
    """The output of the last query, which sees all keys, whatever the mask."""
    return (_output(solution, inputs)[0][..., -1:, :],)


def stage_probes(probes: Sequence[Probe]) -> Iterator[tuple[str, Probe]]:
    """Probes on which attention is right up to a stage, whatever follows it:
    the first that fails tells the stage."""
    unmasked = [
        p for p in probes if p.prop == "same" and p.inputs.get("mask") is None
    ]
    # Long inputs have one row.
    batches = [p for p in unmasked if "(1, " not in p.sizes[:8]]
    inputs = max(batches, key=size_of).inputs if unmasked else {}

    def probe(stage: str, drive: Drive = _last_query, /, **changes: Any) -> Any:
        changes = {n: x for n, x in changes.items() if n in inputs}
        return stage, Probe("same", inputs | changes, drive)

    if any(p.inputs.keys() == {"q", "k", "v", "positions"} for p in probes):
        yield from _stages_of_ranks(probes)
        return
    if {"sinks", "bias", "w_qkv"} & {*inputs}:  # the weights are others
        return
    if "q" in inputs:
        q, k, v = inputs["q"], inputs["k"], inputs["v"]
        one_key = {"k": k[:, :, 1:2], "v": v[:, :, 1:2]}
        # A key of zeros before it, whose value is zero.
        two_keys = {n: torch.cat((0 * x, x), dim=2) for n, x in one_key.items()}
        mask = causal(q.shape[2], k.shape[2])
        equal_values = v[:, :, :1].expand_as(v)
        yield probe("values", q=q[:, :, -1:], **one_key)
        yield probe("softmax", _output, v=equal_values, mask=mask)
        yield probe("values", q=0 * q)
        yield probe("mask", _output, q=0 * q, mask=mask)
        yield probe("scale", q=q[:, :, -1:], **two_keys)
        yield probe("scores")
    elif "w_o" in inputs:
        w_o, x = inputs["w_o"], inputs["x"]
        context = inputs["context" if "context" in inputs else "x"]
        identity = torch.eye(w_o.shape[1], dtype=w_o.dtype)
        inputs = inputs | {"w_o": identity}
        tokens = {"x": x, "context": context}
        one_key = {n: y[:, 1:2] for n, y in tokens.items()}
        two_keys = {n: torch.cat((0 * y, y), dim=1) for n, y in one_key.items()}
        equal_keys = {n: y[:, :1].expand_as(y) for n, y in tokens.items()}
        mask = causal(x.shape[1], context.shape[1])
        zeros = 0 * inputs["w_q"]
        yield probe("values", **one_key)
        yield probe("output", **one_key, w_o=w_o)
        yield probe("merge", w_q=zeros)
        yield probe("softmax", _output, **equal_keys, mask=mask)
        yield probe("mask", _output, w_q=zeros, mask=mask)
        yield probe("scale", **two_keys)
        yield probe("rotation" if "theta" in inputs else "scores")


def _stages_of_ranks(probes: Sequence[Probe]) -> Iterator[tuple[str, Probe]]:
    """One rank, several ranks with tokens in order, and with others; the
    largest inputs of each."""
    largest = dict[str, Probe]()
    for probe in sorted(probes, key=size_of):
        positions = probe.inputs.get("positions")
        others = probe.inputs.keys() - {"q", "k", "v", "positions"}
        if positions is None or others or probe.prop != "same":
            continue
        rows = (row[row >= 0] for row in positions.flatten(1))
        in_order = all(bool((row.diff() > 0).all()) for row in rows)
        several = "merge_ranks" if in_order else "places"
        largest["alone" if positions.shape[1] == 1 else several] = probe
    for stage in ("alone", "merge_ranks", "places"):
        yield stage, largest[stage]


# Properties that fail at one stage only, if a call with all tokens is right.
STAGE_OF = {
    **dict.fromkeys(("chunks", "apart", "small"), "cache"),
    **dict.fromkeys(("large", "empty"), "softmax"),
    **dict.fromkeys(("future", "pads"), "masked"),
}


def find_stage(
    name: str, answers: Sequence[Answer], properties: Sequence[str]
) -> tuple[str, float]:
    """The stage where a solution that fails these properties goes wrong; for a
    wrong scale also how many times the right one it is."""
    if {*properties} == {"gradients"}:
        on_ranks = "group" in arguments(name)
        return (stage_backward(name, answers) if on_ranks else "gradients"), 0
    _, _, stages, right = answer_key(name)
    probes = probes_of(name)
    start = len(probes) - len(stages)
    for n, stage in enumerate(stages, start):
        if answers[n].error is not None:
            return "unclear", 0
        if same_answer(probes[n], answers[n], right[n]):
            continue
        if stage == "scale":
            # The first probe of a stage gives the value of the only key.
            value, actual, expected = (
                answer.outputs[0]
                for answer in (right[start], answers[n], right[n])
            )
            factor = _scale_factor(value, actual, expected)
            return ("scale", factor) if factor else ("scores", 0)
        return stage, 0
    if SELF_EXPLAINING.issuperset(properties):
        return "", 0
    # Of other properties, some have only inputs with a mask or of many tiles.
    wrong = [
        n
        for n in range(start)
        if probes[n].prop == "same"
        and not same_answer(probes[n], answers[n], right[n])
    ]
    kinds = [STAGE_OF[prop] for prop in properties if prop in STAGE_OF]
    if not stages or "cache" in kinds:
        return ("cache" if stages else ""), 0
    if len({*kinds}) == 1 == len(properties):
        return kinds[0], 0
    pairs = [
        (answers[n].outputs[0], right[n].outputs[0])
        for n in wrong
        if name == "flash" and len(answers[n].outputs) == 2
    ]
    if pairs and all(difference(a, b)[1] is None for a, b in pairs):
        return "lse", 0
    if wrong and all(probes[n].inputs.get("mask") is not None for n in wrong):
        return "masked", 0
    for word in ("sinks", "first"):
        if wrong and all(word in probes[n].inputs for n in wrong):
            return f"with_{word}", 0
    return ("tiles" if wrong and name == "flash" else "unclear"), 0


def stage_backward(name: str, answers: Sequence[Answer]) -> str:
    """What is wrong with gradients on several ranks, if no output is."""
    probes, right = answer_key(name).probes, answer_key(name).answers
    wrong = [
        (ranks_of(probe.inputs), answer.outputs, expected.outputs)
        for probe, answer, expected in zip(probes, answers, right, strict=False)
        if probe.prop == "gradients"
        and fault(probe, answer, expected)[1] is not None
    ]
    if any(n == 1 for n, *_ in wrong):
        return "alone_backward"
    if all(
        outputs
        and all(
            difference(x, y)[1] is None or difference(x, n * y)[1] is None
            for x, y in zip(outputs, expected, strict=True)
        )
        for n, outputs, expected in wrong
    ):
        return "summed"
    return "ranks"


def _scale_factor(value: Tensor, actual: Tensor, expected: Tensor) -> float:
    """How many times too large the scores are, if all are, else 0. The outputs
    are those of one key with this value and another of zeros."""
    if actual.shape != expected.shape or value.shape != expected.shape:
        return 0
    weight = expected / value
    usable = (value != 0) & ((weight - 0.5).abs() < 0.49)
    usable &= (weight - 0.5).abs() > 0.01
    ratio = (actual / value)[usable].logit() / weight[usable].logit()
    median = float(ratio.median()) if len(ratio) else 0.0
    equal = bool(((ratio - median).abs() <= 0.01 * abs(median)).all())
    several = len({round(w, 4) for w in weight[usable].tolist()}) > 2
    return median if equal and several and median > 0 else 0


# ------------------------------------------------------------------- verdict


def judge(
    name: str,
    answers: Sequence[Answer],
    new_answers: Anew | None = None,
    *,
    file: str = "",
) -> Report:
    """Report on the answers of a solution to all probes of an exercise.

    `new_answers` are what `ask_anew` returns; they tell whether the solution
    remembers earlier calls.
    """
    probes, right = answer_key(name).probes, answer_key(name).answers
    all_answers, answers = answers, answers[: len(probes)]
    if all(
        answer.error is not None or is_lenient(probe)
        for probe, answer in zip(probes, answers, strict=True)
    ):
        return Report(name, error=answers[0].error, where=answers[0].trace)
    judged = verdicts(name, answers)
    failures = [v for v in judged if not v.passed]
    if not failures:
        return Report(name, judged, avoided=avoided(name))
    explanation = explain(name, all_answers)
    stage, factor = find_stage(name, all_answers, [v.name for v in failures])
    # What fails elsewhere, too, shows it better than a row without keys.
    indices = sorted(
        {v.probe for v in failures},
        key=lambda n: (probes[n].prop == "empty", size_of(probes[n])),
    )
    programs = (reproduction(name, n, answers[n], file) for n in indices)
    traces = (answers[n].trace for n in indices)
    report = Report(
        name,
        judged,
        **explanation._asdict(),
        where=next(filter(None, traces), ()),
        smallest=next(filter(None, programs), ""),
        stage=stage,
        factor=factor,
    )
    if explanation.mistakes or new_answers is None:
        return report
    n, fresh, after_call = new_answers
    is_right = partial(same_answer, probes[n], right[n])
    if is_right(answers[n]) or not is_right(fresh):
        return report
    program = ""
    if not is_right(after_call):
        program = reproduction(name, n, after_call, file, repeat=True)
    return replace(report, stage="memory", factor=0, smallest=program)


def ask_anew(name: str, make: Callable[[], Solution]) -> Anew:
    """The last probe, and two answers of new solutions: one that is asked
    nothing before, and one that is asked with other numbers before."""
    n = max(
        n for n, p in enumerate(answer_key(name).probes) if p.prop == "same"
    )
    probe = answer_key(name).probes[n]
    fresh = ask(make(), probe, (BaseException,), record=True)
    inputs = map_floats(probe.inputs, lambda x: 2 * x)
    solution = make()
    ask(solution, probe._replace(inputs=inputs), (BaseException,))
    after_call = ask(solution, probe, (BaseException,), record=True)
    return Anew(n, fresh, after_call)


def inputs_at(name: str, n: int) -> Inputs:
    """The inputs of a probe, anew."""
    inputs = answer_key(name).probes[n].inputs
    return {name: _copy(value) for name, value in inputs.items()}


def reproduction(
    name: str, n: int, answer: Answer, file: str, *, repeat: bool = False
) -> str:
    """A program that shows the first call on which a solution is wrong; with
    `repeat`, after all calls with inputs that are twice as large."""
    probe, right = answer_key(name).probes[n], answer_key(name).answers[n]
    if "script" in probe.inputs:  # a script of a pool is shorter than a program
        return ""
    if "group" in arguments(name):
        return _program_of_ranks(name, n, answer, file)
    index = _first_wrong_call(name, probe, answer, right)
    if index is None:
        return ""
    results = answer.calls[index] if index < len(answer.calls) else ()
    spy, inputs = Spy(right_solution(name)), inputs_at(name, n)
    with torch.no_grad():
        probe.drive(spy, inputs)
    end = []
    if not results and answer.error is not None:
        end = [f"# it raises {answer.error.en}"[:80]]
    elif results and not right.calls[index]:
        end = ["# it must raise, and does not"]
    changed = answer.changes[0] if answer.changes else ""
    program = Program(name, n, inputs, file, repeats=spy.calls * repeat)
    calls = _needed_calls(probe, spy.calls[: index + 1])
    return program.text(calls, results, end, changed)


def _program_of_ranks(name: str, n: int, answer: Answer, file: str) -> str:
    """A program that runs all ranks on the inputs of a probe."""
    probe, right = answer_key(name).probes[n], answer_key(name).answers[n]
    names = ["out"]
    if probe.prop == "gradients":
        names = [f"d{word}" for word in floats_of(probe.inputs)]
    if len(right.outputs) != len(names):  # of two halves
        return ""
    call = f'run_on_ranks("{name}", {n}, globals(), inputs)'
    call = f"{', '.join(names)} = {call}"
    if len(names) == 1:
        call = call.replace("out", "(out,)")
    end = [f"# it raises {answer.error.en}"[:80]] if answer.error else []
    lines = end or lines_of_wrong_tensor(names, answer.outputs, right.outputs)
    head = Program(name, n, {}, file).head
    head.append("from attnref.judge.checker import inputs_at, run_on_ranks")
    start = f'inputs = inputs_at("{name}", {n})'
    shown = "positions" if "positions" in probe.inputs else "ranks"
    show = f'print("{shown}:", inputs["{shown}"])'
    return "\n".join([*head, "", start, show, call, *lines])


def run_on_ranks(
    name: str, n: int, solution: object, inputs: Inputs
) -> Outputs:
    """The outputs of all ranks for a probe, joined, or their gradients."""
    drive = answer_key(name).probes[n].drive
    return drive(Solution(name, solution), inputs)


def _first_wrong_call(
    name: str, probe: Probe, answer: Answer, right: Answer
) -> int | None:
    count = 1 if name in ("flash", "merge") else None  # lse may be float32
    for index, expected in enumerate(right.calls):
        actual = answer.calls[index] if index < len(answer.calls) else ()
        pairs = [*zip(actual, expected, strict=False)]
        other_dtype = any(a.dtype != b.dtype for a, b in pairs[:count])
        if (
            any(difference(a, b)[1] is not None for a, b in pairs)
            or (other_dtype and probe.prop == "dtype")
            or len(actual) != len(expected)
            or answer.changes
        ):
            return index
    return None


def _needed_calls(probe: Probe, calls: Sequence[Call]) -> list[Call]:
    """The last call, and the earlier ones that made the cache it goes on
    with; all of them, if the property is about several calls."""
    *earlier, last = calls
    needed, caches = [last], _caches(last)
    for call in reversed(earlier):
        parts = call.result if isinstance(call.result, tuple | list) else ()
        ids = {id(call.result), *map(id, parts), *_caches(call)}
        if ids & caches or probe.prop in ("apart", "twice"):
            needed.insert(0, call)
            caches |= _caches(call)
    return needed


def _caches(call: Call) -> set[int]:
    """The ids of the caches that a call goes on with."""
    values = (call.inputs.get(word) for word in ("cache", "self"))
    return {id(value) for value in values if value is not None}


def avoided(name: str) -> tuple[str, ...]:
    """The mistakes that a solution of an exercise could have, first those of
    the modules that do what it asks for, and of few others."""
    runs = {
        exercise: {module for form in value.forms for module in form.modules}
        for exercise, value in EXERCISES.items()
    }

    def spread(id: str) -> tuple[bool, int, int]:
        places = {x.module for lines in catalogue()[id].variants for x in lines}
        uses = sum(bool(places & modules) for modules in runs.values())
        return not places <= runs[name], len(places), uses

    single = (c.ids for c in candidates(name) if len(c.ids) == 1)
    return tuple(sorted(dict.fromkeys(id for (id,) in single), key=spread))


def check(exercise: str, solution: object, *, language: str = "en") -> Report:
    """Check a solution of an exercise of `attnref check`, for a course's tests.

    `solution` is the function or class that the exercise asks for, or a module
    or dict that has it. It runs in this process, and without limits of time or
    memory; the command runs it in a process of its own.

    Examples:
        >>> report = check("softmax", lambda x, dim=-1: x.softmax(dim))
        >>> report.passed, [verdict.name for verdict in report.failures]
        (False, ['empty'])
    """
    name = exercise_name(exercise)
    try:
        functions = Solution(name, solution)
    except SolutionError as error:
        return Report(name, error=error.text, language=language)
    with one_thread():
        probes = probes_of(name)
        answers = [ask(functions, probe, record=True) for probe in probes]
        return replace(judge(name, answers), language=language)
