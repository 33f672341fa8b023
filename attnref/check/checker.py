"""Which properties a solution of an exercise lacks, and which known mistake it
has.

Right answers are those of the plain forms, and a mistake's are those of a plain
form with the mistake in it. A solution has a mistake if it answers as this does
on the inputs on which it is wrong, and on nearly all others.
"""

import math
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from itertools import chain, combinations
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnref.check.catalogue import (
    PACKAGE,
    Variant,
    catalogue,
    every_variant,
    load,
    planted,
)
from attnref.check.exercises import (
    EXERCISES,
    PROPERTIES,
    Drive,
    Inputs,
    Outputs,
    Probe,
    Solution,
    SolutionError,
    causal,
    of_floats,
    properties_of,
)
from attnref.check.forms import Form, one_thread
from attnref.check.report import (
    PLAIN,
    Program,
    Report,
    Verdict,
    apart,
    gaps_of,
    place,
    rounding,
    tensors_of,
)
from attnref.check.tasks import TASKS, task
from attnref.check.words import phrase
from attnref.words import Text

CLEARLY = 5  # so many times more, a mistake differs from what is right
# So many pairs of mistakes are tried, the likeliest first: of pairs planted at
# random, more than nine in ten are among them.
PAIRS = 100
FEW = 3  # inputs that a class must fail on, to be recognised by errors
COSTLY = 4000  # numbers: an input of more is tried last
# What a mistake is not recognised by.
UNNAMED = {name for name, of in PROPERTIES.items() if of.unit} - {"small"}
NEARLY = 5  # as one input in so many that fail, a mistake may differ from it
EDGES = {"empty", "large", "sums", "gradients", "dtype"}  # as may be spelled
# Those that need an argument, which an exercise has or has not.
NEEDS = {"mask-argument-ignored": "mask", "causal-in-training-only": "train"}
RUNTIME = "RuntimeError: "


# ----------------------------------------------------------------- answers


class Answer(NamedTuple):
    """What a solution gives on a probe: outputs, or why there are none."""

    outputs: Outputs
    raised: Text | None = None
    where: tuple[str, ...] = ()  # lines of the solution that raised it
    modified: tuple[str, ...] = ()  # inputs that it modified
    calls: tuple[Outputs, ...] = ()  # what each of its calls returned


class Call(NamedTuple):
    """One call of a solution; `append` is a method of what another returned."""

    function: str
    inputs: Inputs
    result: Any
    outputs: Outputs


class Spied(Solution):
    """A solution whose calls are recorded."""

    def __init__(self, solution: Solution) -> None:
        vars(self).update(vars(solution))
        self.calls: list[Call] = []

    def __call__(self, function: str = "", /, **inputs: Any) -> Any:
        name = function or TASKS[self.name].names[0]
        call = partial(super().__call__, name)
        result = self.recorded(name, inputs, call)
        made = asks_class(self.name) and name == TASKS[self.name].names[0]
        return SpiedCache(self, result) if made else result

    def recorded(
        self, name: str, inputs: Inputs, call: Callable[..., Any]
    ) -> Any:
        result: Any = None
        try:
            result = call(**inputs)
        finally:
            read = tuple(_readable(x).clone() for x in tensors_of(result))
            self.calls.append(Call(name, inputs, result, read))
        return result


class SpiedCache:
    """A cache whose appends are recorded, or what is gathered from it."""

    def __init__(self, spied: Spied, cache: Any) -> None:
        self.spied, self.cache = spied, cache

    def append(self, k: Any, v: Any, *new: Any) -> Any:
        if new:  # into a pool
            return self.cache.append(k, v, *new)

        def call(**given: Any) -> Any:
            return given["self"].append(k, v)

        given = {"self": self.cache, "k": k, "v": v}
        return self.spied.recorded("append", given, call)

    def gather(self, *given: Any) -> Any:
        def call(**_: Any) -> Any:
            return self.cache.gather(*given)

        return self.spied.recorded("gather", {}, call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)


def ask(
    solution: Solution,
    probe: Probe,
    caught: tuple[type[BaseException], ...] = (Exception, SystemExit),
    *,
    spied: bool = False,
) -> Answer:
    """The answer to a probe, of a solution in this process."""
    given = {name: _copied(value) for name, value in probe.inputs.items()}
    outputs: Outputs = ()
    raised: Text | None = None
    where: tuple[str, ...] = ()
    spy = Spied(solution) if spied else solution
    try:
        with torch.no_grad():
            outputs = tuple(map(_readable, probe.drive(spy, given)))
    except SolutionError as error:
        raised = error.text
    except caught as error:
        raised, where = error_of(error)
    modified = (
        name
        for name, value in probe.inputs.items()
        if not _is_same(value, given[name])
    )
    calls = (c.outputs for c in spy.calls) if isinstance(spy, Spied) else ()
    return Answer(outputs, raised, where, tuple(modified), tuple(calls))


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
        raise SolutionError("long", shape=tuple(x.shape))
    if x.is_complex() or x.layout != torch.strided or x.is_quantized:
        raise SolutionError("layout", x=x)
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
        return phrase("memory", what=what)
    if isinstance(error, SyntaxError | UnicodeError) or "null byte" in words:
        return phrase("syntax", what=what)
    if isinstance(error, NotImplementedError) and not words:
        return phrase("empty")
    if isinstance(error, SystemExit):
        return phrase("exit", what=what)
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


def difference(got: Tensor, wanted: Tensor) -> tuple[float, Text | None]:
    """The largest difference, and what to say if it is not rounding."""
    if got.shape != wanted.shape:
        shapes = {"got": tuple(got.shape), "wanted": tuple(wanted.shape)}
        return math.inf, phrase("shape", **shapes)
    if (got.dtype == torch.bool) != (wanted.dtype == torch.bool):
        return math.inf, phrase("dtype", got=got.dtype, wanted=wanted.dtype)
    if not got.numel():
        return 0.0, None
    gaps = gaps_of(got, wanted)
    worst = float(gaps.max())
    if worst <= rounding(wanted):
        return worst, None
    at, wrong = place(gaps), int((gaps > rounding(wanted)).sum())
    x, y = apart(got[at], wanted[at])
    spot = str(at if len(at) != 1 else at[0])
    counts = {"wrong": wrong, "all": gaps.numel()}
    return worst, phrase("number", x=x, y=y, spot=spot, **counts)


def fault(
    probe: Probe, answer: Answer, right: Answer
) -> tuple[float, Text | None]:
    """By how much an answer misses the property of its probe, and how."""
    if answer.raised is not None:
        return math.inf, answer.raised
    got, wanted, of = answer.outputs, right.outputs, PROPERTIES[probe.under]
    if of.own:  # one half is compared with the other
        half = len(got) // 2
        got, wanted = got[:half], got[half:]
    for x, y in _of_other_dtype(probe, answer, right):
        return math.inf, phrase("dtype", got=x.dtype, wanted=y.dtype)
    if of.unit is not None and float(got[0]) > float(wanted[0]):
        a, b = int(got[0]), int(wanted[0])
        return a - b, phrase("limit", a=a, b=b, unit=of.unit)
    differences = [difference(a, b) for a, b in zip(got, wanted, strict=True)]
    much, how = max(differences, key=lambda x: (x[1] is not None, x[0]))
    if how is not None and probe.under == "sums" and math.isfinite(much):
        total = got[1][place(gaps_of(got[0], wanted[0]))]
        how = phrase("sum", x=f"{float(total):.6g}")
    elif how is not None and "f" in probe.inputs:
        how = phrase("logarithms", how=how)
    return much, how


def verdicts(name: str, answers: Sequence[Answer]) -> tuple[Verdict, ...]:
    """One for each property; "untouched" is one of all inputs."""
    probes, right, *_ = rights(name)
    results = []
    for function, prop in properties_of(name):
        of = PROPERTIES[prop]
        its = [n for n, p in enumerate(probes) if p.function == function]
        tried = [n for n in its if prop in (probes[n].under, "untouched")]
        worst = 0.0
        for n in tried:
            answer, probe = answers[n], probes[n]
            if prop == "untouched":
                names = ", ".join(answer.modified)
                how = phrase("modified", names=names) if names else None
                much = math.inf if names else 0.0
            else:
                much, how = fault(probe, answer, right[n])
            if how is not None:
                raised = how is answer.raised
                where = probe.sizes, n, raised, function
                broken = Verdict(prop, of.title, len(tried), much, how, *where)
                results.append(broken)
                break
            worst = max(worst, much)
        else:
            fits = Verdict(prop, of.title, len(tried), worst, function=function)
            results.append(fits)
    return tuple(results)


# ------------------------------------------------------------- recognition


class Rights(NamedTuple):
    """The probes of an exercise and the right answers; `every` goes on with
    those to the inputs that isolate a stage."""

    probes: tuple[Probe, ...]
    answers: tuple[Answer, ...]
    stages: tuple[str, ...]
    every: tuple[Answer, ...]


@cache
def rights(name: str) -> Rights:
    probes, stages = _probes_and_stages(name)
    right = right_solution(name)
    every = tuple(ask(right, probe, spied=True) for probe in probes)
    n = len(probes) - len(stages)
    return Rights(probes[:n], every[:n], stages, every)


def right_solution(name: str) -> Solution:
    form = EXERCISES[name].forms[0]
    return Solution(name, form.make(load() if form.package else planted(())))


@cache
def _probes_and_stages(name: str) -> tuple[tuple[Probe, ...], tuple[str, ...]]:
    probes = [*EXERCISES[name].probes()]
    staged = [*rungs(probes)]
    every = (*probes, *(probe for _, probe in staged))
    return every, tuple(stage for stage, _ in staged)


def probes_of(name: str) -> tuple[Probe, ...]:
    """All inputs of an exercise, those that isolate a stage included."""
    return _probes_and_stages(name)[0]


class Candidate:
    """A form of the exercise with mistakes in it, which answers if asked."""

    def __init__(
        self, name: str, form: Form, variant: Variant, *ids: str
    ) -> None:
        self.name, self.form, self.variant, self.ids = name, form, variant, ids
        self.answers: dict[int, Answer] = {}
        self.solution: Solution | None = None

    def answer(self, n: int) -> Answer:
        # What a class keeps depends on all that was asked before.
        first = 0 if asks_class(self.name) else n
        for m in range(first, n + 1):
            if m not in self.answers:
                self.answers[m] = self._ask(probes_of(self.name)[m])
        return self.answers[n]

    def _ask(self, probe: Probe) -> Answer:
        try:
            if self.solution is None:
                made = self.form.make(_planted(self.variant))
                self.solution = Solution(self.name, made)
        except Exception as error:  # two that change the same lines
            return Answer((), Text(str(error), str(error)))
        return ask(self.solution, probe)


@lru_cache(maxsize=256)
def _planted(variant: Variant) -> Any:
    return planted(variant)


@cache
def candidates(name: str) -> tuple[Candidate, ...]:
    """Each variant of each mistake, in each form that shows its modules and
    has no others that a form without them has not."""
    result = []
    given = {"", *chain(*TASKS[name].functions.values())}
    for mistake in catalogue().values():
        if NEEDS.get(mistake.id, "") not in given:
            continue
        for variant in every_variant(mistake):
            plain = all(lines.module.startswith("plain.") for lines in variant)
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
    if answer.raised is not None:
        return False
    pairs = zip(answer.outputs, right.outputs, strict=True)
    return bool(_of_other_dtype(probe, answer, right)) or any(
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
    if PROPERTIES[probe.under].unit is not None:  # both too much, or neither
        too_much = (a.outputs[0].gt(a.outputs[1]) for a in (one, other))
        return len({*map(bool, too_much)}) == 1
    pairs = zip(one.outputs, other.outputs, strict=True)
    return not _of_other_dtype(probe, one, other) and all(
        a.shape == b.shape
        and (a.dtype == torch.bool) == (b.dtype == torch.bool)
        and (not a.numel() or float(gaps_of(a, b).max()) <= rounding(b))
        for a, b in pairs
    )


def _of_other_dtype(
    probe: Probe, one: Answer, other: Answer
) -> list[tuple[Tensor, Tensor]]:
    pairs = zip(one.outputs, other.outputs, strict=True)
    counts = probe.under == "dtype"
    return [(a, b) for a, b in pairs if counts and a.dtype != b.dtype]


def computed(probe: Probe, answer: Answer) -> bool:
    """Whether an answer is neither one number nor what was given."""
    first = next(filter(None, answer.calls), None)
    if first is None:
        return False
    out, given = first[0], next(map(tensors_of, probe.inputs.values()))
    like = given and given[0].dim() == out.dim()
    start = (
        given[0][tuple(map(slice, out.shape))] if like else out.flatten()[:0]
    )
    one = out.flatten()[:1]
    return not out.double().equal(start.double()) and bool((out != one).any())


class Explained(NamedTuple):
    """What gives a solution's answers: on `agrees` inputs of `tried`, not on
    those of the properties `differs`; whether more pairs were possible; and the
    `lines` by which each of the mistakes does."""

    mistakes: tuple[tuple[str, ...], ...] = ()
    agrees: int = 0
    tried: int = 0
    differs: tuple[str, ...] = ()
    unfinished: bool = False
    lines: tuple[Variant, ...] = ()


class Comparison:
    """The answers of a solution beside those of mistakes.

    `failing` are the inputs on which it is wrong, and `order` all on which it
    is compared. In half precision and in gradients a solution may fail for a
    reason of its own: these inputs, `half`, have no weight.
    """

    def __init__(self, name: str, answers: Sequence[Answer]) -> None:
        self.name, self.answers = name, answers
        self.probes, self.right = probes_of(name), rights(name).every
        order = [
            n
            for n, probe in enumerate(rights(name).probes)
            if probe.under not in UNNAMED
        ]
        order.sort(key=self.size)
        self.failing = [
            n
            for n in order
            if fault(self.probes[n], answers[n], self.right[n])[1] is not None
            # What it gives after it has modified its inputs tells nothing.
            and not (answers[n].modified and len(answers[n].calls) > 1)
        ]
        self.modified = [n for n in order if answers[n].modified]
        wrong = {self.probes[n].function for n in self.failing}
        self.compared = [n for n in order if self.probes[n].function in wrong]
        half = {n for n in self.compared if lenient(self.probes[n])}
        self.half = set() if half.issuperset(self.failing) else half
        self.first = [n for n in self.failing if n not in self.half]
        # The cheap ones that fail come first, and soon tell two apart.
        self.order = sorted(
            self.compared,
            key=lambda n: (
                n in self.half,
                self.size(n) > COSTLY,
                n not in self.first,
            ),
        )
        self.only_errors = all(kind_of(answers[n]) for n in self.failing)

    def size(self, n: int) -> int:
        return size_of(self.probes[n])

    def weight(self, n: int) -> float:
        if n in self.half:
            return 0
        return 0.5 if self.probes[n].under in EDGES else 1

    def agrees(self, wrong: "Candidate", n: int) -> bool:
        one, other = self.answers[n], wrong.answer(n)
        raised = self.only_errors and one.raised is not None
        if raised and not asks_class(self.name):
            return kind_of(one) == kind_of(other)
        return alike(self.probes[n], one, other)

    def differing(self, wrong: "Candidate", most: float) -> list[int] | None:
        """The inputs on which a mistake differs, if they weigh at most this
        much and it is clear that it explains the others."""
        result: list[int] = []
        for n in self.order:
            if not self.agrees(wrong, n):
                result.append(n)
                most -= self.weight(n)
                if most < 0:
                    return None
        but = [n for n in self.first if n not in result]
        if asks_class(self.name):  # it raises where this does, nowhere else
            right = len(self.order) > len(self.first)
            sure = right and not result and len(but) >= FEW
        else:
            sure = self.only_errors
        clear = (
            clearly_wrong(self.probes[n], wrong.answer(n), self.right[n])
            for n in but
        )
        return result if sure or any(clear) else None

    def best(
        self, tried: Iterable["Candidate"], most: float
    ) -> tuple[list[int], dict[tuple[str, ...], Variant]]:
        """Those that differ least, and where."""
        least: list[int] = []
        ids: dict[tuple[str, ...], Variant] = {}
        rank = most, len(self.order)
        for wrong in tried:
            if rank == (0, 0) and wrong.ids in ids:
                continue
            result = self.differing(wrong, rank[0])
            if result is not None:
                new = sum(map(self.weight, result)), len(result)
                if new < rank:
                    least, rank, ids = result, new, {}
                if new == rank:
                    ids.setdefault(wrong.ids, wrong.variant)
        return least, ids


def explained(name: str, answers: Sequence[Answer]) -> Explained:
    """The mistakes, or else pairs of them, that give these answers: those that
    differ least, and on few inputs beside those that fail."""
    if not any(map(computed, probes_of(name), answers)):
        return Explained()
    its = Comparison(name, answers)
    if not its.failing:
        if not its.modified:  # a property fails by which none is recognised
            return Explained()
        known, n = catalogue()["input-modified"], len(rights(name).probes)
        n -= sum(p.under in UNNAMED for p in rights(name).probes)
        return Explained(((known.id,),), n, n, lines=known.variants[:1])
    under = {its.probes[n].under for n in its.failing}
    far = under == {"far"} and its.size(its.failing[0]) > COSTLY
    slow = "cache" if under == {"small"} else "position" if far else ""
    every = [w for w in candidates(name) if slow in str(w.variant)]
    where, ids = its.best(every, len(its.first) / NEARLY)
    unfinished = False
    certain = bool(ids) and {*where} <= its.half
    if not (certain or its.only_errors or under == {"small"}):
        pairs = [*_pairs(its, {*ids})]
        unfinished = not ids and len(pairs) > PAIRS
        there, both = its.best(pairs[:PAIRS], 0)
        if both:
            where, ids, unfinished = there, both, False
    agree = len(its.compared) - len(where) if ids else 0
    differ = dict.fromkeys(its.probes[n].under for n in where)
    lines = tuple(ids.values())
    return Explained(
        (*ids,), agree, len(its.compared), (*differ,), unfinished, lines
    )


def _pairs(its: Comparison, known: set[tuple[str, ...]]) -> Iterator[Candidate]:
    """Two mistakes in one form, the likeliest first: each is wrong somewhere,
    and where only one of the two shows, the answer is that of this one."""
    probes, right = its.probes, its.right
    cheap = [n for n in its.first if its.size(n) < COSTLY]
    if not cheap:
        return
    kinds = {  # of each property and each function
        (probes[n].under, *probes[n].inputs): n for n in reversed(cheap)
    }.values()
    some = [*dict.fromkeys((*cheap[:2], *kinds, *cheap[-1:]))][:6]
    some += (
        n
        for n in range(len(rights(its.name).probes), len(probes))
        if not alike(probes[n], its.answers[n], right[n])
    )
    seen: dict[tuple[Any, ...], tuple[set[int], set[int], Candidate]] = {}
    for wrong in candidates(its.name):
        given = {n: wrong.answer(n) for n in some}
        like = {n for n in some if alike(probes[n], given[n], its.answers[n])}
        at = {n for n in some if not alike(probes[n], given[n], right[n])}
        sums = (_digest(x) for n in some for x in given[n].outputs)
        key = id(wrong.form), *(f"{each:.4g}" for each in sums)
        if at and key not in seen:  # once of those that answer alike
            seen[key] = like, at, wrong

    pairs = []
    for (like, at, one), (also, there, other) in combinations(seen.values(), 2):
        form = _both(one, other)
        if form and one.ids != other.ids:
            either = bool(known & {one.ids, other.ids})
            rank = either, len(like | also), len(at | there)
            pairs.append((rank, form, one, other))
    for _, form, one, other in sorted(pairs, key=itemgetter(0), reverse=True):
        ids = sorted((*one.ids, *other.ids))
        yield Candidate(its.name, form, one.variant + other.variant, *ids)


def _digest(x: Tensor) -> float:
    """A number that tells outputs apart, of the same elements too."""
    slopes = torch.arange(x.numel(), dtype=torch.float64).cos()
    return float(x.double().flatten() @ slopes)


def _both(one: Candidate, other: Candidate) -> Form | None:
    """That of the two forms in which both mistakes show."""
    both = one.variant, other.variant
    needed = {lines.module for variant in both for lines in variant}
    for form in (one.form, other.form):
        if needed <= form.modules and all(any(map(form.runs, v)) for v in both):
            return form
    return None


def asks_class(name: str) -> bool:
    return TASKS[name].stub.startswith("class ")


def lenient(probe: Probe) -> bool:
    """Of gradients or in other dtypes: an error may count as an answer."""
    every = (x for value in probe.inputs.values() for x in tensors_of(value))
    half = (torch.float16, torch.bfloat16)
    return probe.under in ("gradients", "dtype") or any(
        x.dtype in half for x in every
    )


def size_of(probe: Probe) -> int:
    """How many numbers the input has."""
    every = probe.inputs.values()
    return sum(x.numel() for value in every for x in tensors_of(value))


# -------------------------------------------------------------------- stages


def _first(f: Solution, i: Inputs) -> Outputs:
    out = f(**i)
    return (out[0] if isinstance(out, tuple | list) else out,)


def _last(f: Solution, i: Inputs) -> Outputs:
    """For the last query, which sees all keys, whatever the mask."""
    return (_first(f, i)[0][..., -1:, :],)


def rungs(probes: Sequence[Probe]) -> Iterator[tuple[str, Probe]]:
    """Inputs on which attention is right up to a stage, whatever follows it:
    the first that fails tells the stage."""
    free = [
        p for p in probes if p.under == "same" and p.inputs.get("mask") is None
    ]
    many = [p for p in free if "(1, " not in p.sizes[:8]]  # long are of one row
    i = max(many, key=size_of).inputs if free else {}

    def rung(stage: str, drive: Drive = _last, /, **new: Any) -> Any:
        inputs = i | {n: x for n, x in new.items() if n in i}
        return stage, Probe("same", inputs, drive)

    if {"sinks", "bias", "w_qkv"} & {*i}:  # other weights
        return
    if "q" in i:
        q, k, v = i["q"], i["k"], i["v"]
        one = {"k": k[:, :, 1:2], "v": v[:, :, 1:2]}
        two = {n: torch.cat((0 * x, x), dim=2) for n, x in one.items()}
        mask = causal(q.shape[2], k.shape[2])
        equal = v[:, :, :1].expand_as(v)
        yield rung("values", q=q[:, :, -1:], **one)
        yield rung("softmax", _first, v=equal, mask=mask)
        yield rung("values", q=0 * q)
        yield rung("mask", _first, q=0 * q, mask=mask)
        yield rung("scale", q=q[:, :, -1:], **two)
        yield rung("scores")
    elif "w_o" in i:
        whole = i["w_o"]
        x, keys = i["x"], i["context" if "context" in i else "x"]
        i = i | {"w_o": torch.eye(whole.shape[1], dtype=whole.dtype)}
        one = {"x": x[:, 1:2], "context": keys[:, 1:2]}
        two = {n: torch.cat((0 * y, y), dim=1) for n, y in one.items()}
        mask, none = causal(x.shape[1], keys.shape[1]), 0 * i["w_q"]
        same = {"x": x[:, :1].expand_as(x)}
        same["context"] = keys[:, :1].expand_as(keys)
        yield rung("values", **one)
        yield rung("output", **one, w_o=whole)
        yield rung("merge", w_q=none)
        yield rung("softmax", _first, **same, mask=mask)
        yield rung("mask", _first, w_q=none, mask=mask)
        yield rung("scale", **two)
        yield rung("rotation" if "theta" in i else "scores")


# What only these properties show, if one call with all tokens is right.
STAGE_OF = {
    **dict.fromkeys(("chunks", "apart", "small"), "cache"),
    **dict.fromkeys(("large", "empty"), "softmax"),
    **dict.fromkeys(("future", "pads"), "masked"),
}


def located(
    name: str, answers: Sequence[Answer], under: Sequence[str]
) -> tuple[str, float]:
    """The stage where a solution leaves the right path, and of a wrong scale
    how many times the right one it is."""
    _, _, stages, right = rights(name)
    probes = probes_of(name)
    n = len(probes) - len(stages)
    for at, stage in enumerate(stages, start=n):
        if answers[at].raised is not None:
            return "unclear", 0
        if alike(probes[at], answers[at], right[at]):
            continue
        if stage == "scale":
            of = (right[n], answers[at], right[at])
            factor = _factor(*(answer.outputs[0] for answer in of))
            return ("scale", factor) if factor else ("scores", 0)
        return stage, 0
    if PLAIN.issuperset(under):
        return "", 0
    if {*under} == {"gradients"}:
        return "gradients", 0
    # Of other properties some inputs all have a mask, or are of many tiles.
    same = [m for m in range(n) if probes[m].under == "same"]
    wrong = [m for m in same if not alike(probes[m], answers[m], right[m])]
    kinds = [STAGE_OF[prop] for prop in under if prop in STAGE_OF]
    if not stages or "cache" in kinds:
        return ("cache" if stages else ""), 0
    if len({*kinds}) == 1 == len(under):
        return kinds[0], 0
    pairs = [
        (answers[m].outputs[0], right[m].outputs[0])
        for m in wrong
        if name == "flash" and len(answers[m].outputs) == 2
    ]
    if pairs and all(difference(a, b)[1] is None for a, b in pairs):
        return "lse", 0
    if wrong and all(probes[m].inputs.get("mask") is not None for m in wrong):
        return "masked", 0
    return ("tiles" if wrong and name == "flash" else "unclear"), 0


def _factor(value: Tensor, got: Tensor, right: Tensor) -> float:
    """How many times too large the scores are, if all are, else 0. The outputs
    are those of one key with this value and another of zeros."""
    if got.shape != right.shape or value.shape != right.shape:
        return 0
    weight = right / value
    use = (value != 0) & ((weight - 0.5).abs() < 0.49)
    use &= (weight - 0.5).abs() > 0.01
    ratio = (got / value)[use].logit() / weight[use].logit()
    middle = float(ratio.median()) if len(ratio) else 0.0
    even = bool(((ratio - middle).abs() <= 0.01 * abs(middle)).all())
    several = len({round(w, 4) for w in weight[use].tolist()}) > 2
    return middle if even and several and middle > 0 else 0


# ------------------------------------------------------------------- verdict


def judged(
    name: str, answers: Sequence[Answer], anew: Any = (), *, file: str = ""
) -> Report:
    """The report on all answers of a solution, and on some of a new one."""
    probes = rights(name).probes
    every, answers = answers, answers[: len(probes)]
    if all(
        answer.raised is not None or lenient(probe)
        for probe, answer in zip(probes, answers, strict=True)
    ):
        first = answers[0]
        return Report(name, error=first.raised, where=first.where)
    every_verdict = verdicts(name, answers)
    failed = [v for v in every_verdict if not v.passed]
    if not failed:
        return Report(name, every_verdict)
    why = explained(name, every)
    stage, factor = located(name, every, [v.name for v in failed])
    faulty = sorted({v.probe for v in failed}, key=lambda n: size_of(probes[n]))
    shown = (shown_at(name, n, answers[n], file) for n in faulty)
    report = Report(
        name,
        every_verdict,
        **why._asdict(),
        where=next((a.where for n in faulty if (a := answers[n]).where), ()),
        smallest=next(filter(None, shown), ""),
        stage=stage,
        factor=factor,
    )
    if why.mistakes or not anew:
        return report
    n, alone, after = anew
    like = partial(alike, probes[n], rights(name).answers[n])
    if like(answers[n]) or not like(alone):
        return report
    text = "" if like(after) else shown_at(name, n, after, file, again=True)
    return replace(report, stage="memory", factor=0, smallest=text)


def again(name: str, made: Callable[[], Solution]) -> tuple[int, Any, Any]:
    """The last input, and two answers of new solutions: the first that one
    gives, and that of another after a call with other numbers."""
    probes, stages = _probes_and_stages(name)
    indices = range(len(probes) - len(stages))
    *_, n = (n for n in indices if probes[n].under == "same")
    alone = ask(made(), probes[n], (BaseException,), spied=True)
    other = of_floats(probes[n].inputs, lambda x: 2 * x)
    solution = made()
    ask(solution, probes[n]._replace(inputs=other), (BaseException,))
    return n, alone, ask(solution, probes[n], (BaseException,), spied=True)


def inputs_at(name: str, n: int) -> Inputs:
    """The inputs of a probe, anew."""
    inputs = rights(name).probes[n].inputs
    return {name: _copied(value) for name, value in inputs.items()}


def shown_at(
    name: str, n: int, answer: Answer, file: str, *, again: bool = False
) -> str:
    """A program that shows the first call on which a solution is wrong; with
    `again`, after all calls with inputs that are twice as large."""
    if "script" in rights(name).probes[n].inputs:  # it says more in a line
        return ""
    probe, right = rights(name).probes[n], rights(name).answers[n]
    count = 1 if name in ("flash", "merge") else None  # lse may be float32
    for at, wanted in enumerate(right.calls):
        got = answer.calls[at] if at < len(answer.calls) else ()
        pairs = [*zip(got, wanted, strict=False)]
        odd = any(a.dtype != b.dtype for a, b in pairs[:count])
        if (
            any(difference(a, b)[1] is not None for a, b in pairs)
            or (odd and probe.under == "dtype")
            or len(got) != len(wanted)
            or answer.modified
        ):
            break
    else:
        return ""
    spied, given = Spied(right_solution(name)), inputs_at(name, n)
    with torch.no_grad():
        probe.drive(spied, given)
    *before, last = spied.calls[: at + 1]
    needed, caches = [last], _caches(last)
    for call in reversed(before):
        parts = call.result if isinstance(call.result, tuple | list) else ()
        made = {id(call.result), *map(id, parts), *_caches(call)}
        if made & caches or probe.under in ("apart", "twice"):
            needed.insert(0, call)
            caches |= _caches(call)
    end = []
    if not got and answer.raised is not None:
        end = [f"# it raises {answer.raised.en}"[:80]]
    elif got and not wanted:
        end = ["# it must raise, and does not"]
    changed = answer.modified[0] if answer.modified else ""
    program = Program(name, n, given, file, twice=spied.calls * again)
    return program.text(needed, got, end, changed)


def _caches(call: Call) -> set[int]:
    """What a call is given to go on with."""
    given = (call.inputs.get(word) for word in ("cache", "self"))
    return {id(value) for value in given if value is not None}


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
    name = task(exercise)
    try:
        made = Solution(name, solution)
    except SolutionError as error:
        return Report(name, error=error.text, language=language)
    with one_thread():
        answers = [ask(made, probe, spied=True) for probe in probes_of(name)]
        return replace(judged(name, answers), language=language)
