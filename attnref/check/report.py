"""What `attnref check` says: the properties, a known mistake, and a program
that shows what is wrong, in the two languages of the site."""

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

from attnref.check.catalogue import (
    PAGES,
    Mistake,
    Variant,
    catalogue,
    every_variant,
    files,
)
from attnref.check.exercises import HOLLOW, properties_of
from attnref.check.tasks import TASKS
from attnref.check.words import WORDS, phrase, wide, wrapped
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
        finite = math.isfinite
        judged = [
            {
                "function": v.function or None,
                "property": v.name,
                "title": words.of(v.title),
                "passed": v.passed,
                "inputs": v.tried,
                "difference": v.difference if finite(v.difference) else None,
                "input": v.sizes or None,
                "fault": words.of(v.fault),
            }
            for v in self.verdicts
        ]
        known = {
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
            "error": words.of(self.error),
            "where": list(self.where),
            "properties": judged,
            "mistakes": [[known[id] for id in ids] for ids in self.mistakes],
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
PLAIN = {"absorbed", "tiles", "pieces", "untouched"}


def at_an_edge(report: Report) -> bool:
    """Whether all is right where a query sees some key, as in a textbook."""
    failed = {v.name for v in report.failures}
    return failed in ({"empty"}, {"empty", "gradients"})


class _Words:
    """The lines of a report in one language."""

    def __init__(self, language: str, colour: bool = False) -> None:
        if language not in Text._fields:
            raise ValueError(f"{language=} is neither 'en' nor 'zh'")
        self.language, self.colour = language, colour

    def of(self, text: Text | None) -> str | None:
        return None if text is None else str(getattr(text, self.language))

    def title(self, id: str) -> str:
        return str(self.of(catalogue()[id].title))

    def say(self, word: str, **values: object) -> str:
        return str(self.of(phrase(word, **values)))

    def in_colour(self, code: int, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.colour else text

    def report(self, report: Report, *, show: bool) -> Iterator[str]:
        if report.error is not None:
            message = f"{report.exercise}: {self.of(report.error)}"
            yield self.in_colour(RED, message)
            yield from (f"  {line}" for line in report.where)
        else:
            yield self.summary(report)
            if any(v.name not in PLAIN for v in report.failures):
                yield from self.recognised(report, show)
            yield ""
            yield from self.properties(report)
            if report.smallest:
                yield f"\n{self.say('smallest')}\n"
                yield self.program(report.smallest)
        if report.printed:
            yield f"\n{self.say('printed')}"
            yield from (f"  {x}" for x in report.printed.splitlines())

    def program(self, text: str) -> str:
        for word in ("gives", "right", "raises", "must"):
            text = text.replace(WORDS[word].en, self.say(word))
        return text

    def summary(self, report: Report) -> str:
        """What is wrong, if it is known, and how many properties fail."""
        failed, all = len(report.failures), len(report.verdicts)
        word = ("passes", "fails_one", "fails")[min(failed, 2)]
        if at_an_edge(report):
            word = "edge"
        text = self.say(word, name=report.exercise, n=failed or all, all=all)
        every = (" + ".join(map(self.title, ids)) for ids in report.mistakes)
        name = " | ".join(every)
        if report.stage == "memory":
            name = self.say("remembers")
        if name:
            start, colon, text = text.partition(self.say("colon"))
            text = f"{start}{colon}{name}\n{text[:1].upper()}{text[1:]}"
        return self.in_colour(RED if failed else GREEN, text)

    def properties(self, report: Report) -> Iterator[str]:
        """Those that fail, and what else holds; or each that holds."""
        before: Text | None = None
        ok, no = self.say("ok"), self.say("no")
        held: dict[str, list[str]] = {}
        for v in report.verdicts:
            title = str(self.of(v.title))
            named = f"{v.function}{self.say('colon') if v.function else ''}"
            if v.passed and report.failures:
                held.setdefault(named, []).append(title)
                continue
            line = f"  {self.in_colour(RED, no)}  {named}{title}"
            if v.passed:
                line = f"  {self.in_colour(GREEN, ok)}  {named}{title}"
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
                where = f"{v.sizes}{self.say('colon')}"
                yield from wrapped(f"{where}{fault}", " " * 9)
        yield from (f"         {line}" for line in report.where)
        every = "; ".join(f"{x}{'; '.join(y)}" for x, y in held.items())
        room = " " * (wide(no) - wide(ok) + 2)
        for n, line in enumerate(wrapped(every, " " * 9) if held else ()):
            mark = f"  {self.in_colour(GREEN, ok)}{room}"
            yield line if n else f"{mark}{line.lstrip()}"

    def hint(self, report: Report) -> str:
        """Where to look, in a sentence or two."""
        if not report.stage or (report.stage == "unclear" and report.mistakes):
            return ""
        if at_an_edge(report):
            return ""
        where = phrase(f"stage {report.stage}", factor=f"{report.factor:.3g}")
        return self.say("hint", where=where)

    def recognised(self, report: Report, show: bool) -> Iterator[str]:
        if hint := self.hint(report):
            yield from wrapped(hint, "")
        yield ""
        if not report.mistakes:
            yield self.in_colour(BOLD, self.say("none"))
            if report.unfinished:
                yield self.say("unfinished")
            return
        word = "two" if len(report.mistakes[0]) > 1 else "one"
        if len(report.mistakes) > 1:
            word = "either"
        known = [f"where {prop}" for prop in report.differs]
        apart = [self.say(word) for word in known if word in WORDS]
        where = self.say("and").join(apart)
        but = self.say("but", where=where) if apart else ""
        numbers = {"n": report.agrees, "all": report.tried}
        yield from wrapped(self.say(word, **numbers, but=but), "")
        for ids, lines in zip(report.mistakes, report.lines, strict=True):
            for id in ids:
                mistake = catalogue()[id]
                its = {*chain(*every_variant(mistake))}
                own = tuple(each for each in lines if each in its)
                if report.mistakes != ((id,),):  # else in the first line
                    yield f"\n{self.in_colour(BOLD, self.title(id))}"
                yield from self.mistake(mistake, own if show else ())

    def mistake(self, mistake: Mistake, variant: Variant) -> Iterator[str]:
        yield ""
        for lines in (each for each in variant if each.diff):
            file = f"attnref/{lines.module.replace('.', '/')}.py"
            yield from wrapped(self.say("lines", file=file), "  ")
            for line in lines.diff:
                code = {"-": RED, "+": GREEN}.get(line[:1], 0)
                yield self.in_colour(code, f"  {line}")
            yield ""
        yield from wrapped(str(self.of(mistake.notice)), "  ")
        yield f"  {page_of(mistake.id, self.language)}"
        if not variant:
            yield f"  {self.say('show')}"


def explanation(id: str, language: str) -> str:
    """An entry of the catalogue, with its lines."""
    mistake = catalogue()[id]
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
        named = dict(url.split(", ", 1) for url in urls or ())
        url = named.get("Documentation", "")
    return f"{url.rstrip('/')}/" if url else ""


def page_of(id: str, language: str) -> str:
    """The address of a mistake on the site, or where its entry is installed if
    the site is not known."""
    stems = (s for s, all in files().items() if id in (m.id for m in all))
    stem = next(stems)
    if not site():
        path = Path(__file__).with_name("mistakes") / f"{stem}.txt"
        lines = path.read_text(encoding="utf-8").splitlines()
        return f"{path}:{lines.index(f'id: {id}') + 1}"
    part = "zh/" if language == "zh" else ""
    return f"{site()}{part}{PAGES[stem]}/#{id}"


# ------------------------------------------------------------- reproductions

LINES = 15
KINDS = {torch.float64: "double", torch.float32: "float"}
KINDS |= {torch.float16: "half", torch.bfloat16: "bfloat16"}
LITERAL = 60  # elements of the tensors of an input that is written out


def apart(got: Any, wanted: Any) -> tuple[str, str]:
    """Two numbers that differ, with as many digits as show it."""
    return unequal([got.item()], [wanted.item()])


def unequal(got: list[float], wanted: list[float]) -> tuple[str, str]:
    """Both with as many digits as it takes; booleans as they are printed."""

    def row(values: list[float], digits: int) -> str:
        return ", ".join(
            str(x) if isinstance(x, bool) else f"{x:.{digits}g}" for x in values
        )

    one = other = ""
    for digits in (4, 6, 9, 17):
        one, other = row(got, digits), row(wanted, digits)
        if one != other:
            break
    return one, other


class Program:
    """Code that makes calls of a solution, the last of which is wrong."""

    def __init__(
        self,
        name: str,
        probe: int,
        given: dict[str, Any],
        file: str,
        literal: int = LITERAL,
        twice: Sequence[Any] = (),
    ) -> None:
        self.name, self.given, self.twice = name, given, twice
        self.again = (name, probe, given, file, 0, twice)
        self.head, self.body = list[str](), list[str]()
        self.names: dict[int, str] = {}  # of what is there, by its id
        wanted = ", ".join(TASKS[name].names)
        path = Path(file)
        if file and path.suffix == ".py" and path.stem.isidentifier():
            self.head = ["import torch", f"from {path.stem} import {wanted}"]
        elif path.suffix == ".py":
            run = f'globals().update(run_path("{path.name}"))'
            self.head = ["import torch", "from runpy import run_path", "", run]
        else:
            self.head = [f"import torch  # {path.name or 'yours'}: {wanted}"]
        every = [x for v in given.values() for x in tensors_of(v)]
        self.long = sum(x.numel() for x in every) > literal
        if self.long:
            self.head.append("from attnref.check.checker import inputs_at")
            self.body.append(f'given = inputs_at("{name}", {probe})')
        for word, value in given.items():
            if tensors_of(value):
                base = f'given["{word}"]' if self.long else word
                if not self.long:
                    self.body += _statement(f"{word} = ", _literal(value))
                self.names[id(value)] = base
                if isinstance(value, list):
                    pairs = enumerate(value)
                    self.names |= {id(x): f"{base}[{i}]" for i, x in pairs}

    def expression(self, value: Any, word: str) -> str:
        """What gives a value: what is there, a slice of it, or a literal."""
        if id(value) in self.names:
            return self.names[id(value)]
        if isinstance(value, Tensor):
            for each in (x for v in self.given.values() for x in tensors_of(v)):
                if at := _slice(value, each):
                    return f"{self.names[id(each)]}{at}"
            if value.numel() > LITERAL // 3:
                raise LookupError(word)
        return _literal(value)

    def call(self, n: int, call: Any, several: bool, times: str = "") -> None:
        """Add a call, whose results are then there."""
        mark = str(n + 1) if several else ""
        inputs = dict(call.inputs)
        function, owner = call.function, inputs.pop("self", None)
        if owner is not None:
            function = f"{self.expression(owner, 'cache')}.append"
            required = [*inputs]
        else:
            defaults = TASKS[self.name].functions[function]
            required = [word for word in defaults if not defaults[word]]
        given = {
            w: (times if tensors_of(v) else "") + self.expression(v, w)
            for w, v in inputs.items()
            if v is not None or w in required
        }
        first = [given[w] for w in required if w in given]
        others = [f"{w}={v}" for w, v in given.items() if w not in required]
        results = [f"out{mark}"]
        if owner is not None:
            n = len(tensors_of(call.result)) or 2
            results = [f"{word}{mark}" for word in ("k", "v", "at")[:n]]
        elif isinstance(call.result, tuple | list) and len(call.result) == 2:
            kinds = {Tensor: "lse", float: "size"}
            second = kinds.get(type(call.result[1]), "cache")
            results.append(f"{second}{mark}")
            self.names[id(call.result[1])] = results[1]
        elif not isinstance(call.result, Tensor) and call.result is not None:
            results = [f"cache{mark}"]
            self.names[id(call.result)] = results[0]
        self.results = results
        start = f"{', '.join(results)} = {function}("
        self.body += _statement(start, f"{', '.join([*first, *others])})")

    def text(
        self,
        calls: Sequence[Any],
        got: Sequence[Tensor],
        end: Sequence[str],
        changed: str = "",
    ) -> str:
        """All of it: the calls, and what the last one gives. `end` says it if
        it gives nothing, and `changed` is an input that it modifies. "" if a
        call cannot be written in a few lines."""
        if changed:
            name = self.names[id(self.given[changed])]
            self.body.append(f"before = {name}.clone()")
            end = [f"print({name}.equal(before))  # False, right is True"]
        try:
            for call in self.twice:  # earlier ones, with other numbers
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
        self.body += end or _compared(self.results, got, calls[-1].outputs)
        lines = [*self.head, "", *self.body]
        if len(lines) > LINES and not self.long:
            return Program(*self.again).text(calls, got, end, changed)
        return "\n".join(lines)


def tensors_of(value: Any) -> list[Tensor]:
    several = value if isinstance(value, list | tuple) else [value]
    return [x for x in several if isinstance(x, Tensor)]


def _slice(value: Tensor, of: Tensor) -> str:
    """`[:, 2:3]` if this is a slice of that, or "" if not."""
    if (
        value.untyped_storage().data_ptr() != of.untyped_storage().data_ptr()
        or value.stride() != of.stride()
    ):
        same = value.dtype == of.dtype and value.shape == of.shape
        return "[:]" if same and value.equal(of) else ""
    left, words = int(value.storage_offset()), list[str]()
    for size, all, step in zip(value.shape, of.shape, of.stride(), strict=True):
        start, left = divmod(left, step) if step else (0, left)
        words.append(":" if size == all else f"{start}:{start + size}")
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


def _compared(
    names: Sequence[str], got: Sequence[Tensor], wanted: Sequence[Tensor]
) -> Iterator[str]:
    """What the first wrong one of some tensors is, and what it should be."""
    for name, a, b in zip(names, got, wanted, strict=False):
        is_bool = (a.dtype == torch.bool) != (b.dtype == torch.bool)
        if a.shape != b.shape:
            yield f"print({name}.shape)  # {[*a.shape]}, right is {[*b.shape]}"
        elif not is_bool and bool((gaps_of(a, b) > rounding(b)).any()):
            *before, last = place(gaps_of(a, b))
            start = max(0, min(last - 2, a.shape[-1] - 5))
            row: Any = (*before, slice(start, start + 5))
            x, y = unequal(a[row].tolist(), b[row].tolist())
            index = [*map(str, before), f"{start}:{start + len(a[row])}"]
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


def rounding(wanted: Tensor) -> float:
    if not wanted.is_floating_point():
        return 0.0
    size = wanted.double().abs()
    size = size[size.isfinite()]
    largest = float(size.max()) if len(size) else 1.0
    return ROUNDING.get(wanted.dtype, 1e-4) * max(1.0, largest)


def place(gaps: Tensor) -> tuple[int, ...]:
    """Where it is largest."""
    return tuple((gaps == gaps.max()).nonzero()[0].tolist())


def gaps_of(got: Tensor, wanted: Tensor) -> Tensor:
    """How far each element is from what it should be."""
    a, b = got.double(), wanted.double()
    gaps = (a - b).abs().nan_to_num(nan=math.inf, posinf=math.inf)
    gaps[(a == b) | (a.isnan() & b.isnan())] = 0
    return gaps
