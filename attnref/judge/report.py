"""The report of `attnref check`, in both languages of the site: the properties,
a known mistake, and a program that shows what is wrong."""

import math
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnref.judge.catalogue import (
    PAGES,
    Mistake,
    Variant,
    every_variant,
    mistakes_by_file,
)
from attnref.judge.exercises import HOLLOW, properties_of
from attnref.judge.gradients import PAGE, entry
from attnref.judge.tasks import COURSE, TASKS
from attnref.judge.words import WORDS, phrase, wide, wrapped
from attnref.words import Text


@dataclass(frozen=True)
class Verdict:
    """Whether a property holds, on how many inputs, and where it does not."""

    name: str
    title: Text
    tried: int
    difference: float
    """The largest one, or the one on the smallest input that fails."""
    fault: Text | None = None
    sizes: str = ""
    probe: int = -1
    raised: bool = False
    """Whether there was an error, which `fault` then says."""
    function: str = ""  # of an exercise of several

    @property
    def passed(self) -> bool:
        return self.fault is None


@dataclass(frozen=True)
class Report:
    """What `check` returns.

    `mistakes` are the known mistakes that the solution has, by their ids: one
    tuple for each explanation of its answers, `()` if there is none. A tuple of
    two ids stands for two mistakes made together. They agree with it on
    `agrees` of `tried` inputs, and not where the properties `differs` are
    judged. `stage` is where it leaves the right path, "" if that is not clear,
    and `smallest` a program that shows it on a small input. `lines` are those
    of the catalogue, for each explanation, that give the same answers.
    """

    exercise: str
    verdicts: tuple[Verdict, ...] = ()
    mistakes: tuple[tuple[str, ...], ...] = ()
    error: Text | None = None
    where: tuple[str, ...] = ()
    smallest: str = ""
    printed: str = ""
    language: str = "en"
    unfinished: bool = False
    """Whether there were more pairs of known mistakes than are tried."""
    agrees: int = 0
    tried: int = 0
    differs: tuple[str, ...] = ()
    stage: str = ""
    factor: float = 0
    """At the stage "scale": the scores, divided by the right ones."""
    lines: tuple[Variant, ...] = ()
    avoided: tuple[str, ...] = ()
    """The known mistakes that a right solution could have, those of the file
    that does what the exercise asks for first."""

    @property
    def passed(self) -> bool:
        """Whether all properties hold."""
        return self.error is None and not self.failures

    @property
    def points(self) -> int:
        """The properties that hold; those that zeros have too, such as being
        the same twice, only of functions whose results are right."""
        held = [v for v in self.verdicts if v.passed]
        right = {v.function for v in held if v.name == "same"}
        return sum(v.function in right or v.name not in HOLLOW for v in held)

    @property
    def maximum(self) -> int:
        """How many points a right solution gets."""
        return len(properties_of(self.exercise))

    @property
    def failures(self) -> tuple[Verdict, ...]:
        """The properties that do not hold."""
        return tuple(v for v in self.verdicts if not v.passed)

    def text(
        self,
        *,
        language: str | None = None,
        colour: bool = False,
        show: bool = False,
    ) -> str:
        """The report in words, "en" or "zh"; `show`: with the wrong and right
        lines of a known mistake."""
        words = _Words(language or self.language, colour)
        return "\n".join(words.report(self, show=show))

    def __str__(self) -> str:
        return self.text()

    def as_json(self) -> dict[str, object]:
        """The same for programs, as numbers and words in one language."""
        words = _Words(self.language)
        words.has_only_scores = self.exercise in ONLY_SCORES
        finite = math.isfinite
        properties = [
            {
                "function": v.function or None,
                "property": v.name,
                "title": words.translate(v.title),
                "passed": v.passed,
                "inputs": v.tried,
                "difference": v.difference if finite(v.difference) else None,
                "input": v.sizes or None,
                "fault": words.translate(v.fault),
            }
            for v in self.verdicts
        ]
        entries = {
            id: {
                "id": id,
                "title": words.title(id),
                "page": page_of(id, self.language),
            }
            for id in chain(*self.mistakes)
        }
        return {
            "exercise": self.exercise,
            "passed": self.passed,
            "points": self.points,
            "maximum": self.maximum,
            "versions": {x: import_module(x).__version__ for x in VERSIONED},
            "error": words.translate(self.error),
            "where": list(self.where),
            "properties": properties,
            "mistakes": [[entries[id] for id in ids] for ids in self.mistakes],
            "unfinished": self.unfinished,
            "agrees": self.agrees,
            "tried": self.tried,
            "differs": list(self.differs),
            "stage": self.stage or None,
            "hint": words.hint(self) or None,
            "smallest": words.program(self.smallest) or None,
            "printed": self.printed,
        }


VERSIONED = "attnref", "torch"
RED = 31
GREEN = 32
BOLD = 1
DIM = 2
# Properties that say by themselves what is wrong.
SELF_EXPLAINING = {"absorbed", "tiles", "pieces", "untouched"}
# Exercises that come before masks.
ONLY_SCORES = {"softmax", "online_softmax"}


def is_edge_case(report: Report) -> bool:
    """Whether a solution is right, as in a textbook, for all queries that see
    some key."""
    failed = {v.name for v in report.failures}
    return failed in ({"empty"}, {"empty", "gradients"})


class _Words:
    """The lines of a report in one language."""

    def __init__(self, language: str, colour: bool = False) -> None:
        if language not in Text._fields:
            raise ValueError(f"{language=} is neither 'en' nor 'zh'")
        self.language, self.colour = language, colour
        self.has_only_scores = False

    def translate(self, text: Text | None) -> str | None:
        return None if text is None else str(getattr(text, self.language))

    def texts(self, id: str) -> list[str | None]:
        """The title and the notice of a mistake."""
        if self.has_only_scores and f"scores {id}" in WORDS:
            return [*self.say(f"scores {id}").split(" || ")]
        return [
            self.translate(entry(id).title),
            self.translate(entry(id).notice),
        ]

    def title(self, id: str) -> str:
        return str(self.texts(id)[0])

    def say(self, word: str, **values: object) -> str:
        return str(self.translate(phrase(word, **values)))

    def in_colour(self, code: int, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.colour else text

    def report(self, report: Report, *, show: bool) -> Iterator[str]:
        self.has_only_scores = report.exercise in ONLY_SCORES
        if report.error is not None:
            message = f"{report.exercise}: {self.translate(report.error)}"
            yield self.in_colour(RED, message)
            yield from (f"  {line}" for line in report.where)
        else:
            yield self.summary(report)
            if any(v.name not in SELF_EXPLAINING for v in report.failures):
                yield from self.recognised(report, show)
            yield ""
            yield from self.properties(report)
            if report.passed:
                yield from self.after_success(report)
            if report.smallest:
                yield f"\n{self.say('smallest')}\n"
                yield self.program(report.smallest)
        if report.printed:
            yield f"\n{self.say('printed')}"
            yield from (f"  {x}" for x in report.printed.splitlines())

    def after_success(self, report: Report) -> Iterator[str]:
        """How many known mistakes a right solution avoids, and what the course
        has next."""
        if report.avoided:
            yield ""
            yield self.say("avoided", n=len(report.avoided))
            yield from (f"  {self.title(id)}" for id in report.avoided[:2])
        if report.exercise in COURSE[:-1]:
            following = COURSE[COURSE.index(report.exercise) + 1]
            before = WORDS.get(f"before {report.exercise}")
            word = "next_exercise" if before else "next"
            text = self.say(word, name=following, before=before)
            yield self.in_colour(BOLD, text)

    def program(self, text: str) -> str:
        for word in ("gives", "right", "raises", "must"):
            text = text.replace(WORDS[word].en, self.say(word))
        return text

    def summary(self, report: Report) -> str:
        """What is wrong, if it is known, and how many properties fail."""
        failed, total = len(report.failures), len(report.verdicts)
        word = ("passes", "fails_one", "fails")[min(failed, 2)]
        if is_edge_case(report):
            word = "edge"
        counts = {"n": failed or total, "all": total}
        text = self.say(word, name=report.exercise, **counts)
        titles = [" + ".join(map(self.title, ids)) for ids in report.mistakes]
        title = titles[0] if titles else ""
        if others := len(titles[1:]):
            word = "or_another" if others == 1 else "or_others"
            title = self.say(word, title=title, n=others)
        if report.stage == "memory":
            title = self.say("remembers")
        if title:
            start, colon, text = text.partition(self.say("colon"))
            text = f"{start}{colon}{title}\n{text[:1].upper()}{text[1:]}"
        return self.in_colour(RED if failed else GREEN, text)

    def properties(self, report: Report) -> Iterator[str]:
        """A line for each failure, and one for all properties that hold; or, if
        none fails, a line for each property."""
        error: Text | None = None  # the last one that was printed
        ok, no = self.say("ok"), self.say("no")
        titles: dict[str, list[str]] = {}  # of the properties that hold
        for v in report.verdicts:
            title = str(self.translate(v.title))
            function = f"{v.function}{self.say('colon') if v.function else ''}"
            if v.passed and report.failures:
                titles.setdefault(function, []).append(title)
            elif v.passed:
                size = f"{v.difference:.0e}" if v.difference else "0"
                word = "tried_one" if v.tried == 1 else "tried"
                counts = self.say(word, n=v.tried, d=size)
                line = f"  {self.in_colour(GREEN, ok)}  {function}{title}"
                yield f"{line} {self.in_colour(DIM, counts)}"
            else:
                yield f"  {self.in_colour(RED, no)}  {function}{title}"
                fault = self.translate(v.fault)
                if v.raised and v.fault == error:
                    fault = self.say("again")
                elif v.raised:
                    error = v.fault
                text = f"{v.sizes}{self.say('colon')}{fault}"
                yield from wrapped(text, " " * 9)
        yield from (f"         {line}" for line in report.where)
        mark = "；" if self.language == "zh" else "; "
        text = mark.join(f"{x}{mark.join(y)}" for x, y in titles.items())
        space = " " * (wide(no) - wide(ok) + 2)
        for n, line in enumerate(wrapped(text, " " * 9) if titles else ()):
            start = f"  {self.in_colour(GREEN, ok)}{space}"
            yield line if n else f"{start}{line.lstrip()}"

    def hint(self, report: Report) -> str:
        """Where to look, in a sentence or two."""
        if not report.stage or (report.stage == "unclear" and report.mistakes):
            return ""
        if is_edge_case(report):
            return ""
        if report.stage == "unclear" and report.where:
            raised = self.say("raised", where=report.where[-1])
            return self.say("hint", where=raised)
        stage = phrase(f"stage {report.stage}", factor=f"{report.factor:.3g}")
        return self.say("hint", where=stage)

    def recognised(self, report: Report, show: bool) -> Iterator[str]:
        if hint := self.hint(report):
            yield from wrapped(hint, "")
        yield ""
        if not report.mistakes:
            several = len(TASKS[report.exercise].names) > 1
            word = "none_together" if several else "none"
            for line in wrapped(self.say(word), ""):
                yield self.in_colour(BOLD, line)
            if report.unfinished:
                yield self.say("unfinished")
            return
        word = "two" if len(report.mistakes[0]) > 1 else "one"
        if len(report.mistakes) > 1:
            word = "either"
        keys = [f"where {prop}" for prop in report.differs]
        places = self.say("and").join(self.say(x) for x in keys if x in WORDS)
        exception = self.say("but", where=places) if places else ""
        numbers = {"n": report.agrees, "all": report.tried}
        yield from wrapped(self.say(word, **numbers, but=exception), "")
        for ids, lines in zip(report.mistakes, report.lines, strict=True):
            for id in ids:
                mistake = entry(id)
                known = {*chain(*every_variant(mistake))}
                variant = tuple(x for x in lines if show and x in known)
                if report.mistakes != ((id,),):  # else in the first line
                    yield f"\n{self.in_colour(BOLD, self.title(id))}"
                yield from self.mistake(mistake, variant)

    def mistake(self, mistake: Mistake, variant: Variant) -> Iterator[str]:
        yield ""
        for lines in (x for x in variant if x.diff):
            word = (
                "lines" if any(x[:1] == "-" for x in lines.diff) else "missing"
            )
            yield from wrapped(self.say(word, file=lines.file), "  ")
            for line in lines.diff:
                code = {"-": RED, "+": GREEN}.get(line[:1], 0)
                yield self.in_colour(code, f"  {line}")
            yield ""
        yield from wrapped(str(self.texts(mistake.id)[1]), "  ")
        if site():
            yield f"  {page_of(mistake.id, self.language)}"
        if not variant:
            yield f"  {self.say('show')}"


def explanation(id: str, language: str) -> str:
    """An entry of the catalogue, with its lines."""
    mistake = entry(id)
    words = _Words(language)
    lines = words.mistake(mistake, mistake.variants[0])
    return "\n".join([words.title(id), *lines])


@cache
def site() -> str:
    """Where the installed package says that its site is, if it does."""
    url = os.environ.get("SITE_URL")
    if not url:
        try:
            urls = metadata.metadata("attnref").get_all("Project-URL")
        except metadata.PackageNotFoundError:
            urls = None
        url_of = dict(url.split(", ", 1) for url in urls or ())
        url = url_of.get("Documentation", "")
    return f"{url.rstrip('/')}/" if url else ""


def page_of(id: str, language: str) -> str:
    """The address of a mistake on the site, or where its entry is installed if
    the site is not known."""
    stems = (
        s for s, xs in mistakes_by_file().items() if id in (x.id for x in xs)
    )
    stem = next(stems, "")  # else of the backward pass
    if not site():
        name = f"mistakes/{stem}.txt" if stem else "backward.txt"
        path = Path(__file__).parent / name
        lines = path.read_text(encoding="utf-8").splitlines()
        return f"{path}:{lines.index(f'id: {id}') + 1}"
    part = "zh/" if language == "zh" else ""
    return f"{site()}{part}{f'{PAGES[stem]}/#{id}' if stem else PAGE}"


# ------------------------------------------------------------- reproductions

LINES = 15
KINDS = {torch.float64: "double", torch.float32: "float"}
KINDS |= {torch.float16: "half", torch.bfloat16: "bfloat16"}
LITERAL = 60  # elements of the tensors of an input that is written out


def digits_of(actual: Any, expected: Any) -> tuple[str, str]:
    """Two numbers, with enough digits to see that they differ."""
    return digits_of_rows([actual.item()], [expected.item()])


def digits_of_rows(
    actual: list[float], expected: list[float]
) -> tuple[str, str]:
    """Two rows of numbers, with enough digits to see that they differ."""

    def row(values: list[float], digits: int) -> str:
        return ", ".join(
            str(x) if isinstance(x, bool) else f"{x:.{digits}g}" for x in values
        )

    one = other = ""
    for digits in (4, 6, 9, 17):
        one, other = row(actual, digits), row(expected, digits)
        if one != other:
            break
    return one, other


class Program:
    """Code that makes calls of a solution, the last of which is wrong.

    Its inputs, those of a probe, are written out if they have few elements, and
    else made by `inputs_at`. `repeats` are calls that it makes before all
    others, with inputs twice as large.
    """

    def __init__(
        self,
        name: str,
        probe: int,
        inputs: dict[str, Any],
        file: str,
        literal: int = LITERAL,
        repeats: Sequence[Any] = (),
    ) -> None:
        self.name, self.inputs, self.repeats = name, inputs, repeats
        self.arguments = name, probe, inputs, file
        self.head, self.body = list[str](), list[str]()
        self.names: dict[int, str] = {}  # by the id of the value
        functions = ", ".join(TASKS[name].names)
        path = Path(file)
        if file and path.suffix == ".py" and path.stem.isidentifier():
            line = f"from {path.stem} import {functions}"
            self.head = ["import torch", line]
        elif path.suffix == ".py":
            line = f'globals().update(run_path("{path.name}"))'
            self.head = ["import torch", "from runpy import run_path", "", line]
        else:
            title = path.name or "yours"
            self.head = [f"import torch  # {title}: {functions}"]
        tensors = [x for value in inputs.values() for x in tensors_of(value)]
        self.is_long = sum(x.numel() for x in tensors) > literal
        if self.is_long:
            self.head.append("from attnref.judge.checker import inputs_at")
            self.body.append(f'given = inputs_at("{name}", {probe})')
            mask = inputs.get("mask")
            if isinstance(mask, Tensor) and not mask.any(-1).all():
                code = 'print(given["mask"].any(-1).all())'
                self.body.append(f"{code}  # False: some query sees no key")
        for word, value in inputs.items():
            if tensors_of(value):
                self._define(word, value)

    def _define(self, word: str, value: Any) -> None:
        """Add an input, and the names of its tensors."""
        base = f'given["{word}"]' if self.is_long else word
        if not self.is_long:
            self.body += _statement(f"{word} = ", _literal(value))
        self.names[id(value)] = base
        if isinstance(value, list):
            for n, x in enumerate(value):
                self.names[id(x)] = f"{base}[{n}]"

    def expression(self, value: Any, word: str) -> str:
        """Code for a value: its name, a slice of an input, or a literal."""
        if id(value) in self.names:
            return self.names[id(value)]
        if isinstance(value, Tensor):
            for x in (x for v in self.inputs.values() for x in tensors_of(v)):
                if index := _slice(value, x):
                    return f"{self.names[id(x)]}{index}"
            if value.numel() > LITERAL // 3:
                raise LookupError(word)
        return _literal(value)

    def call(self, n: int, call: Any, several: bool, factor: str = "") -> None:
        """Add a call and name its results; `factor` multiplies its inputs."""
        number = str(n + 1) if several else ""
        inputs = dict(call.inputs)
        function, cache = call.function, inputs.pop("self", None)
        if cache is not None:
            function = f"{self.expression(cache, 'cache')}.append"
            required = [*inputs]
        else:
            defaults = TASKS[self.name].functions[function]
            required = [word for word in defaults if not defaults[word]]
        code = {
            w: (factor if tensors_of(v) else "") + self.expression(v, w)
            for w, v in inputs.items()
            if v is not None or w in required
        }
        positional = [code[w] for w in required if w in code]
        optional = [f"{w}={x}" for w, x in code.items() if w not in required]
        results = [f"out{number}"]
        if cache is not None:
            count = len(tensors_of(call.result)) or 2
            results = [f"{word}{number}" for word in ("k", "v", "at")[:count]]
        elif isinstance(call.result, tuple | list) and len(call.result) == 2:
            kinds = {Tensor: "lse", float: "size"}
            word = kinds.get(type(call.result[1]), "cache")
            results.append(f"{word}{number}")
            self.names[id(call.result[1])] = results[1]
        elif not isinstance(call.result, Tensor) and call.result is not None:
            results = [f"cache{number}"]
            self.names[id(call.result)] = results[0]
        self.results = results
        start = f"{', '.join(results)} = {function}("
        self.body += _statement(
            start, f"{', '.join([*positional, *optional])})"
        )

    def text(
        self,
        calls: Sequence[Any],
        outputs: Sequence[Tensor],
        end: Sequence[str],
        changed: str = "",
    ) -> str:
        """The code: all calls, and what is wrong with the `outputs` of the last
        one. If it has none, `end` says so; `changed` is an input that it
        modifies. "" if a call cannot be written in a few lines."""
        if changed:
            name = self.names[id(self.inputs[changed])]
            self.body.append(f"before = {name}.clone()")
            end = [f"print({name}.equal(before))  # False, right is True"]
        try:
            for call in self.repeats:
                self.call(0, call, False, "2 * ")
            for n, call in enumerate(calls):
                start = len(self.body)
                self.call(n, call, len(calls) > 1)
                if call.result is None and call is not calls[-1]:
                    self.head[1:1] = ["from contextlib import suppress"]
                    lines = [f"    {line}" for line in self.body[start:]]
                    self.body[start:] = ["with suppress(Exception):", *lines]
        except LookupError:
            return ""
        expected = calls[-1].outputs
        self.body += end or lines_of_wrong_tensor(
            self.results, outputs, expected
        )
        lines = [*self.head, "", *self.body]
        if len(lines) > LINES and not self.is_long:
            short = Program(*self.arguments, literal=0, repeats=self.repeats)
            return short.text(calls, outputs, end, changed)
        return "\n".join(lines)


def tensors_of(value: Any) -> list[Tensor]:
    values = value if isinstance(value, list | tuple) else [value]
    return [x for x in values if isinstance(x, Tensor)]


def _slice(value: Tensor, base: Tensor) -> str:
    """`[:, 2:3]` if the value is this slice of the base, "" if it is none."""
    if (
        value.untyped_storage().data_ptr() != base.untyped_storage().data_ptr()
        or value.stride() != base.stride()
    ):
        same = value.dtype == base.dtype and value.shape == base.shape
        return "[:]" if same and value.equal(base) else ""
    offset, words = int(value.storage_offset()), list[str]()
    for size, length, step in zip(
        value.shape, base.shape, base.stride(), strict=True
    ):
        start, offset = divmod(offset, step) if step else (0, offset)
        words.append(":" if size == length else f"{start}:{start + size}")
    while len(words) > 1 and words[-1] == ":":
        words.pop()
    return f"[{', '.join(words)}]"


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if not isinstance(value, Tensor):
        return repr(value)
    if value.dtype == torch.bool:
        return f"torch.tensor({value.int().tolist()}).bool()"
    if not value.is_floating_point():
        return f"torch.tensor({value.tolist()})"
    quarters, kind = value * 4, KINDS[value.dtype]
    if quarters.equal(quarters.round()) and bool(quarters.isfinite().all()):
        return f"torch.tensor({quarters.int().tolist()}).{kind}() / 4"
    text = re.sub(r"\b(inf|nan)\b", r"torch.\1", str(value.tolist()))
    return f"torch.tensor({text}).{kind}()"


def _statement(start: str, rest: str) -> list[str]:
    """Lines of 80 columns; breaks are within the brackets of `rest`."""
    return textwrap.wrap(
        start + rest,
        80,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def lines_of_wrong_tensor(
    names: Sequence[str], actual: Sequence[Tensor], expected: Sequence[Tensor]
) -> Iterator[str]:
    """Lines that print the first wrong tensor, and say what it should be."""
    for name, a, b in zip(names, actual, expected, strict=False):
        is_bool = (a.dtype == torch.bool) != (b.dtype == torch.bool)
        if a.shape != b.shape:
            yield f"print({name}.shape)  # {[*a.shape]}, right is {[*b.shape]}"
        elif not is_bool and bool((gaps_of(a, b) > rounding(b)).any()):
            *axes, last = place(gaps_of(a, b))
            start = max(0, min(last - 2, a.shape[-1] - 5))
            row: Any = (*axes, slice(start, start + 5))
            x, y = digits_of_rows(a[row].tolist(), b[row].tolist())
            index = [*map(str, axes), f"{start}:{start + len(a[row])}"]
            yield f"print({name}[{', '.join(index)}])"
            yield f"# it gives {x}"
            yield f"# right is {y}"
        elif a.dtype != b.dtype:
            yield f"print({name}.dtype)  # {a.dtype}, right is {b.dtype}"
        else:
            continue
        return


# The largest difference that is rounding, relative to the largest right number.
ROUNDING = {
    torch.float64: 1e-4,  # a solution may compute in float32
    torch.float32: 1e-3,
    torch.bfloat16: 0.1,
    torch.float16: 0.02,
}


def rounding(expected: Tensor) -> float:
    """The largest difference from these right numbers that is rounding."""
    if not expected.is_floating_point():
        return 0.0
    sizes = expected.double().abs()
    sizes = sizes[sizes.isfinite()]
    largest = float(sizes.max()) if len(sizes) else 1.0
    return ROUNDING.get(expected.dtype, 1e-4) * max(1.0, largest)


def place(gaps: Tensor) -> tuple[int, ...]:
    """The index of the largest gap."""
    return tuple((gaps == gaps.max()).nonzero()[0].tolist())


def gaps_of(actual: Tensor, expected: Tensor) -> Tensor:
    """The difference of each element from the right one; NaN is like inf."""
    a, b = actual.double(), expected.double()
    gaps = (a - b).abs().nan_to_num(nan=math.inf, posinf=math.inf)
    gaps[(a == b) | (a.isnan() & b.isnan())] = 0
    return gaps
