"""What a solution is tried on: inputs, each under a property.

The right answers are those of the first form of an exercise (forms.py).
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from attnref.check.catalogue import PACKAGE, Plain, load
from attnref.check.forms import FORMS, Form
from attnref.check.properties import (
    SHARING,
    blocks_hold_each_text,
    decoding_is_the_full_pass,
    future_is_hidden,
    heads_are_apart,
    lengths_are_kept,
    pads_are_unseen,
    rows_are_apart,
    scores_are_relative,
    sequences_are_apart,
)
from attnref.check.tasks import TASKS
from attnref.check.words import WORDS, phrase
from attnref.words import Text

__all__ = ["EXERCISES", "PROPERTIES", "Exercise", "Form", "Probe"]
__all__ += ["Solution", "SolutionError", "calls_attnref"]

Inputs = dict[str, Any]
Outputs = tuple[Tensor, ...]


class Judgement(NamedTuple):
    """How a property is judged. `own`: not by right answers; the first half of
    the outputs is compared with the second. `unit`: these are what it takes, or
    the limit if this is more, and the limit."""

    title: Text
    own: bool = False
    unit: Text | None = None


PROPERTIES = {
    (name := key.removeprefix("property ").strip("*")): Judgement(
        title, key[-1] == "*", WORDS.get(f"unit {name}")
    )
    for key, title in WORDS.items()
    if key.startswith("property ")
}
# What zeros have too: it counts where results are right.
HOLLOW = {name for name, of in PROPERTIES.items() if of.own or of.unit}
HOLLOW |= {"untouched"}


class SolutionError(Exception):
    """What is wrong with a solution, in both languages."""

    def __init__(self, word: str, **values: object) -> None:
        self.text = phrase(word, **values)
        super().__init__(self.text.en)


class Solution:
    """The functions of a solution, called as the exercise says."""

    def __init__(self, name: str, given: object) -> None:
        """From a module or another object that has them; of an exercise that
        asks for one function or class, this may be given by itself."""
        wanted = TASKS[name].names
        self.name, self.given = name, {}
        alone = callable(given) and len(wanted) == 1
        for function in wanted:
            made = given if alone else getattr(given, function, None)
            if isinstance(given, dict):
                made = given.get(function)
            if not callable(made):
                every = ", ".join(TASKS[name].signatures)
                raise SolutionError("absent", function=function, asked=every)
            self.given[function] = made
            if len(wanted) == 1:  # of several, the others can be judged
                self.bound(function, dict(TASKS[name].functions[function]))

    def bound(self, function: str, inputs: Inputs) -> tuple[list[Any], Inputs]:
        """The required by position, the others by name."""
        task = TASKS[self.name]
        made, defaults = self.given[function], task.functions[function]
        first = [inputs[word] for word in defaults if not defaults[word]]
        others = {word: inputs[word] for word in inputs if defaults[word]}
        try:
            inspect.signature(made).bind(*first, **others)
        except TypeError as error:
            signature = task.signatures[task.names.index(function)]
            raise SolutionError("call", said=signature, error=error) from None
        except ValueError:  # of C, it has no signature
            pass
        return first, others

    def __call__(self, function: str = "", /, **inputs: Any) -> Any:
        function = function or TASKS[self.name].names[0]
        first, others = self.bound(function, inputs)
        return self.given[function](*first, **others)

    def one(self, function: str = "", /, **inputs: Any) -> Tensor:
        """What it returns, which is one tensor."""
        return a_tensor(self(function, **inputs))

    def two(self, function: str = "", /, **inputs: Any) -> tuple[Any, Any]:
        """What it returns, which is a pair that begins with a tensor."""
        return a_pair(self(function, **inputs))


def a_tensor(value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise SolutionError("tensor", kind=type(value).__name__)
    return value


def a_pair(value: object) -> tuple[Tensor, Any]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise SolutionError("pair", kind=type(value).__name__)
    return a_tensor(value[0]), value[1]


Drive = Callable[[Solution, Inputs], Outputs]
Subject = Callable[[Solution, Inputs], tuple[Any, ...]]


class Probe(NamedTuple):
    """One input under one property: `drive` calls the solution with it."""

    under: str
    inputs: Inputs
    drive: Drive
    function: str = ""  # of an exercise of several

    @property
    def sizes(self) -> str:
        """The input in a line: `x (3, 5, 12), n_heads=6`."""
        words = []
        for name, value in self.inputs.items():
            if isinstance(value, Tensor):
                words.append(f"{name} {tuple(value.shape)}")
            elif isinstance(value, list):
                words.append(f"{name} {len(value)} x {tuple(value[0].shape)}")
            elif value is not None:
                words.append(f"{name}={value}")
        return ", ".join(words)


class Exercise(NamedTuple):
    """The first of `forms` is right; `drawn` gives its probes."""

    forms: tuple[Form, ...]
    drawn: Callable[[], list[Probe]]

    def probes(self) -> Iterator[Probe]:
        """All, of which the last repeat one of each function."""
        every = self.drawn()
        last = {p.function: p for p in every if p.under == "same"}
        for probe in last.values():
            again = twice(probe.drive)
            every.append(probe._replace(under="twice", drive=again))
        for probe in every:
            yield probe._replace(drive=seeded(probe.drive))


def driving(made: Callable[..., Outputs]) -> Callable[..., Drive]:
    """What makes a drive of what `made` is given after solution and inputs."""
    return lambda *how: lambda f, i: made(f, i, *how)


@driving
def seeded(f: Solution, i: Inputs, drive: Drive) -> Outputs:
    """So that dropout answers alike in every solution that has it."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return drive(f, i)


@driving
def twice(f: Solution, i: Inputs, drive: Drive) -> Outputs:
    return drive(f, i) + drive(f, i)


def calls_attnref(solution: Solution) -> bool:
    """Whether a solution runs code of this package, which is no solution."""
    files: set[Path] = set()

    def called(frame: Any, event: str, _: object) -> None:
        if event == "call":
            files.add(Path(frame.f_code.co_filename))

    probe, *_ = EXERCISES[solution.name].probes()
    before = sys.getprofile()
    sys.setprofile(called)
    try:
        with torch.no_grad():
            probe.drive(solution, probe.inputs)
    except Exception:  # it is judged elsewhere
        pass
    finally:
        sys.setprofile(before)
    return any(
        file.is_relative_to(PACKAGE) and file.parent != Path(__file__).parent
        for file in files
    )


# ------------------------------------------------------------------ inputs


class Draw:
    """Small multiples of a quarter: they can be read, and typed again."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, most: int = 8) -> Tensor:
        drawn = torch.randint(-most, most + 1, shape, generator=self.generator)
        return drawn.double() / 4

    def mask(self, *shape: int) -> Tensor:
        """Some keys hidden, never all of a row."""
        seen = torch.rand(shape, generator=self.generator) < 0.6
        seen[..., 0] |= ~seen.any(-1)
        return seen


def left_pads(B: int, S: int) -> Tensor:
    """`valid` `(B, S)`: row b begins with b pads, and the last is whole."""
    return torch.arange(S) >= (torch.arange(B)[:, None] + 1) % B


def causal(T: int, S: int) -> Tensor:
    return torch.ones(T, S, dtype=torch.bool).tril(S - T)


def plain(f: Solution, i: Inputs) -> Outputs:
    return (f.one(**i),)


# The properties that a page shows, by their names here.
SHOWN = {
    "future": future_is_hidden,
    "pads": pads_are_unseen,
    "rows": rows_are_apart,
    "heads": heads_are_apart,
    "tokens": heads_are_apart,  # queries stand where heads do
    "chunks": decoding_is_the_full_pass,
    "apart": sequences_are_apart,
    "norm": lengths_are_kept,
    "relative": scores_are_relative,
}


class Probes(list[Probe]):
    """The probes of an exercise: `add("same", inputs, inputs)` adds two."""

    def __init__(self, drive: Drive = plain, function: str = "") -> None:
        self.drive, self.function = drive, function

    def __call__(
        self, under: str, *every: Inputs, by: Drive | None = None, of: str = ""
    ) -> None:
        if of and not by:
            by = lambda f, i: (f.one(of, **i),)  # noqa: E731
        how = by or self.drive, of or self.function
        self += [Probe(under, inputs, *how) for inputs in every]

    def on(self, under: str, inputs: Inputs, subject: Subject) -> None:
        """Under a property of `SHOWN`, whose arguments are made of a solution
        and inputs: its outputs are all that is observed, then all expected."""

        def drive(f: Solution, i: Inputs) -> Outputs:
            pairs = SHOWN[under].pairs(*subject(f, i))
            both = zip(*(pair[:2] for pair in pairs), strict=True)
            return tuple(map(torch.as_tensor, chain(*both)))

        self(under, inputs, by=drive)

    def dtypes(self, inputs: Inputs, by: Drive | None = None) -> None:
        drive = by or self.drive
        self("dtype", cast(inputs, torch.float32), by=drive)
        self("dtype", cast(inputs, torch.bfloat16), by=unless_raised(drive))
        self.half("dtype", inputs, drive)

    def half(self, under: str, inputs: Inputs, by: Drive | None = None) -> None:
        drive = unless_raised(by or self.drive)
        self(under, cast(inputs, torch.float16), by=drive)


@driving
def unless_raised(f: Solution, i: Inputs, drive: Drive) -> Outputs:
    """An error in half precision is no wrong answer: nobody goes on with it."""
    try:
        return drive(f, i)
    except SolutionError:  # what it returns is refused, by us
        raise
    except Exception:
        return drive(_right(f.name), i)


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Inputs whose floats are of this dtype."""
    return of_floats(value, lambda x: x.to(dtype))


def finer(value: Any) -> Any:
    """Inputs of more digits than half precision has."""
    return of_floats(
        value, lambda x: x + torch.arange(x.numel()).sin().view(x.shape) / 16
    )


def of_floats(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, dict):
        return {name: of_floats(x, change) for name, x in value.items()}
    if isinstance(value, list):
        return [of_floats(x, change) for x in value]
    floats = isinstance(value, Tensor) and value.is_floating_point()
    return change(value) if floats else value


def of(drive: Drive, *names: str) -> Subject:
    """A function of these inputs, and them; lists are joined, by tokens."""

    def subject(f: Solution, i: Inputs) -> tuple[Any, ...]:
        def run(*given: Tensor) -> Tensor:
            new: Inputs = dict(zip(names, given, strict=True))
            for name in names:
                if isinstance(i[name], list):
                    sizes = [part.shape[2] for part in i[name]]
                    new[name] = new[name].split(sizes, dim=2)
            return joined(*drive(f, i | new))

        values = (i[name] for name in names)
        lists = (
            x if isinstance(x, Tensor) else torch.cat(x, 2) for x in values
        )
        return run, *lists

    return subject


def joined(first: Tensor, *others: Tensor) -> Tensor:
    """Outputs beside each other; a log-sum-exp is one more element."""
    wide = [x[..., None] if x.dim() < first.dim() else x for x in others]
    fit = all(x.shape[:-1] == first.shape[:-1] for x in wide)
    return torch.cat((first, *wide), dim=-1) if wide and fit else first


def beside(drive: Drive, *names: str) -> Subject:
    """The same of these inputs beside each other, as one."""

    def subject(f: Solution, i: Inputs) -> tuple[Any, ...]:
        widths = [i[name].shape[-1] for name in names]
        run, *parts = of(drive, *names)(f, i)
        together = torch.cat(parts, dim=-1)
        return lambda x: run(*x.split(widths, dim=-1)), together

    return subject


def with_pads(subject: Subject, axis: int = 1) -> Subject:
    """A function of tokens, on this axis, and of which are no pads."""

    def padded(f: Solution, i: Inputs) -> tuple[Any, ...]:
        _, x = subject(f, i)

        def run(x: Tensor, valid: Tensor) -> Tensor:
            of_mask, _ = subject(f, i | {"mask": valid[:, None, None]})
            out: Tensor = of_mask(x.transpose(1, axis))
            return out.transpose(1, axis)

        return run, x.transpose(1, axis)

    return padded


@cache
def _right(name: str) -> Solution:
    form, *_ = FORMS[name]
    return Solution(name, form.make(load() if form.package else Plain()))


class Numbers(TorchFunctionMode):
    """Whether tensors are read as numbers of Python."""

    seen = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        read = ("tolist", "item", "numpy", "__float__", "__array__", "tensor")
        constant = args and isinstance(args[0], int | float)  # no tensor
        self.seen |= getattr(func, "__name__", "") in read and not constant
        return func(*args, **kwargs or {})


@driving
def gradients(f: Solution, i: Inputs, drive: Drive, *names: str) -> Outputs:
    """Those of the inputs, and right ones; or right ones alone, of a solution
    that computes with numbers of Python: it has none."""

    def of(f: Solution) -> Outputs:
        leaves = {name: i[name].clone().requires_grad_() for name in names}
        with torch.enable_grad(), Numbers() as numbers, catch_warnings():
            simplefilter("ignore")  # of a number of what has gradients
            try:
                out, *_ = drive(f, i | leaves)
            except Exception:  # .numpy() raises; others show without gradients
                return ()
            if numbers.seen:
                return ()
            if not out.requires_grad:
                return tuple(map(torch.zeros_like, leaves.values()))
            slopes = torch.arange(out.numel()).cos().view(out.shape)
            of_what = [*leaves.values()]
            return torch.autograd.grad(
                (out * slopes).sum(), of_what, materialize_grads=True
            )

    right = of(_right(f.name))
    return (of(f) or right) + right


class Watched(TorchDispatchMode):
    """What `count` gives of each operation, what it gets and its result."""

    def __init__(self, count: Callable[[Any, Any, Any], int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count, self.counts = count, [0]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # it would be imported, for a second
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **kwargs or {})
        self.counts.append(self.count(func, args, out))
        return out


def unwritten(func: Any, args: Any, out: Any) -> int:
    """Make it NaN: there may be what another solution has written there."""
    if "empty" in func.overloadpacket.__name__ and out.is_floating_point():
        out.fill_(torch.nan)
    return 0


def limited(took: float, limit: float) -> Outputs:
    may = torch.tensor([float(limit)])
    return torch.tensor([float(took)]).maximum(may), may


# --------------------------------------------------------- softmax and masks

APART = 900 * torch.tensor([[0.0], [1.0], [-1.0]], dtype=torch.float64)


@driving
def sums(f: Solution, i: Inputs, drive: Drive, times: int = 600) -> Outputs:
    """By how much the sums of the weights miss 1, which are the outputs if all
    values are 1; enlarged, since what counts as rounding is large. One score of
    a row decides: a number that is added to the sum of its terms shows most."""
    out = drive(f, i)[0]
    total = out[..., :1] if "v" in i else out.sum(-1, keepdim=True)
    missed = times * (total - 1)
    return missed, total, torch.zeros_like(total), total


def softmax_probes() -> list[Probe]:
    draw, add = Draw(1), Probes()
    for shape, dim in (
        *(((2,), -1), ((2, 3), -1), ((3, 3), 0), ((5, 1), -1)),
        *(((3, 5, 7), 1), ((3, 5, 7), -1), ((3, 5, 7), 0)),
        *(((2, 3, 5, 7), -2), ((3, 67), -1)),
    ):
        add("same", {"x": draw(*shape), "dim": dim})
    add("same", {"x": draw(3, 3, 3)})
    x = draw(3, 5, most=40)
    add("large", *({"x": y} for y in (x + 800, x - 5000, x + APART)))
    add("large", {"x": 100 * x, "dim": 0})
    hidden = x.masked_fill(x > 4, -torch.inf)
    add("large", {"x": hidden, "dim": -1})
    add("gradients", {"x": hidden, "dim": -1}, by=gradients(plain, "x"))
    hidden = hidden.clone()
    hidden[1] = -torch.inf
    add("empty", {"x": hidden, "dim": -1}, {"x": hidden.mT, "dim": 0})
    add("sums", {"x": 100 * x, "dim": -1}, by=sums(plain))
    long = cast({"x": draw(2, 601, most=1)}, torch.bfloat16)
    add("sums", long, by=unless_raised(sums(plain, 1)))
    add.dtypes({"x": draw(3, 11, most=60), "dim": -1})
    add.half("empty", {"x": hidden, "dim": -1})
    return add


REDUCED = {"amax", "aminmax", "max", "sum", "mean", "sort", "topk", "cummax"}
REDUCED |= {"logsumexp", "_logcumsumexp", "logcumsumexp", "cumsum", "_softmax"}
REDUCED |= {"_log_softmax", "_safe_softmax", "mv", "mm", "dot"}


def pieces(f: Solution, i: Inputs) -> Outputs:
    def count(func: Any, args: Any, out: Any) -> int:
        if func.overloadpacket.__name__ not in REDUCED:
            return 0
        return args[0].numel() if args[0].is_floating_point() else 0

    with Watched(count) as watched:
        f.one(**i)
    return limited(max(watched.counts), 2 * i["chunk"])


def online_probes() -> list[Probe]:
    draw, add = Draw(2), Probes()
    rows = torch.arange(3.0, dtype=torch.float64)[:, None] * draw(1, 7)
    x = draw(3, 7, most=40)
    hidden = x.clone()
    hidden[:, :3] = -torch.inf
    empty = hidden.clone()
    empty[1] = -torch.inf
    for under, given, chunk in (
        ("same", draw(2), 1),
        ("same", draw(2, 3), 2),
        ("same", draw(7).sort().values, 2),
        ("same", draw(7).sort(descending=True).values, 3),
        ("same", rows, 7),
        ("same", draw(3, 5, 7), 9),
        ("same", draw(3, 67), 5),
        ("large", 50 * x + 900, 2),
        ("large", x - 5000, 2),
        ("large", x + APART, 3),
        ("large", hidden, 2),
        ("large", hidden.flip(1), 2),
        ("empty", empty, 2),
    ):
        add(under, {"x": given, "chunk": chunk})
    add("pieces", {"x": draw(61), "chunk": 7}, by=pieces)
    add("sums", {"x": 100 * x, "chunk": 3}, by=sums(plain))
    long = cast({"x": draw(2, 601, most=1)}, torch.bfloat16)
    add("sums", long | {"chunk": 7}, by=unless_raised(sums(plain, 1)))
    add.dtypes({"x": draw(3, 11, most=60), "chunk": 4})
    add.half("empty", {"x": empty, "chunk": 2})
    return add


def masks_probes() -> list[Probe]:
    add = Probes()

    def of(function: str, **inputs: Any) -> None:
        add("same", inputs, of=function)

    def on_scores(function: str, H: int, **inputs: Tensor) -> None:
        """What counts is what the mask hides of scores (B, H, S, S)."""

        def drive(f: Solution, i: Inputs) -> Outputs:
            (given,) = inputs
            mask = f.one(function, **{given: i[given]})
            B, S = i[given].shape
            try:
                return (mask.broadcast_to(B, H, S, S),)
            except RuntimeError:
                sizes = {"sizes": tuple(mask.shape), "scores": (B, H, S, S)}
                raise SolutionError(
                    "broadcast", function=function, **sizes
                ) from None

        add("same", inputs | {"n_heads": H}, by=drive, of=function)

    for T, S in ((1, 1), (2, 2), (1, 3), (3, 3), (2, 5), (17, 67)):
        of("causal_mask", T=T, S=S)
    for B, S, H in ((1, 2, 1), (2, 3, 2), (3, 3, 2), (3, 3, 3), (3, 5, 2)):
        valid = left_pads(B, S) if B > 1 else left_pads(2, S)[:1]
        for pads in (valid, valid.flip(1)):
            on_scores("padding_mask", H, valid=pads)
    sizes = ((2, 2, 1), (3, 3, 2), (1, 4, 2), (2, 5, 3), (2, 3, 7), (7, 7, 7))
    for T, S, size in (*sizes, (17, 67, 11)):
        of("window_mask", T=T, S=S, size=size)
    some = [[0, 0, 1, 1, 1], [0, 1, 2, 2, 0], [3, 3, 3, 3, 3]]
    for ids, H in (([[0, 1]], 1), (some, 2), (some, 3)):
        on_scores("document_mask", H, ids=torch.tensor(ids))
    return add


# ------------------------------------------------------------------- cores


def heads(draw: Draw, *sizes: int, most: int = 12) -> Inputs:
    """q, k, v of B, H, T, S, D, Dv."""
    B, H, T, S, D, Dv = sizes
    q, k = draw(B, H, T, D, most=most), draw(B, H, S, D, most=most)
    return {"q": q, "k": k, "v": draw(B, H, S, Dv)}


def core_probes(drive: Drive = plain) -> list[Probe]:
    draw, add = Draw(3), Probes(drive)
    triangle = {"mask": causal(3, 3)}
    add("same", heads(draw, 1, 1, 1, 2, 2, 1), heads(draw, 1, 1, 2, 3, 2, 2))
    add("same", heads(draw, 1, 1, 3, 3, 2, 2) | triangle)
    sizes = 3, 2, 5, 7, 4, 3
    add("same", finer(heads(draw, *sizes)) | {"mask": None})
    add("same", heads(draw, 3, 2, 5, 7, 3, 4), heads(draw, 1, 2, 7, 1, 3, 4))
    square, some = heads(draw, 3, 3, 3, 3, 3, 3), heads(draw, *sizes)
    add("same", square | triangle)
    pads = left_pads(3, 7)[:, None, None]
    masks = [draw.mask(B, H, 5, 7) for B, H in ((3, 1), (3, 2), (1, 2))]
    for seen in (causal(5, 7), pads, *masks):
        add("same", some | {"mask": seen})
    equal = left_pads(3, 3)[:, None, None] & causal(3, 3)
    add("same", square | {"mask": equal | torch.eye(3, dtype=torch.bool)})
    one = {name: x[:1] for name, x in some.items()}
    add("same", one | {"mask": masks[2]})
    longer = heads(draw, 3, 2, 1, 67, 5, 4)
    add("same", longer | {"mask": draw.mask(3, 1, 1, 67)})
    longer = heads(draw, 1, 2, 131, 97, 3, 4)
    add("same", longer, longer | {"mask": draw.mask(1, 2, 131, 97)})
    # Pads on the left: their rows see no key, as a causal mask is on top.
    empty = left_pads(3, 5)[:, None, None] & causal(5, 5)
    five = heads(draw, 3, 2, 5, 5, 4, 3) | {"mask": empty}
    uneven = draw.mask(3, 2, 5, 5) & empty.flip(-2, -1)
    add("empty", five, five | {"mask": uneven})
    large = some | {"q": 128 * some["q"], "mask": causal(5, 7)}
    # All scores far below zero, those that are hidden far above.
    k = some["k"].abs() + 1
    late = (torch.arange(7) >= torch.tensor([[1], [5], [0]]))[:, None, None]
    low = {"q": 2**16 * (some["q"].abs() + 1), "k": k.where(~late.mT, -k)}
    add("large", large, some | low | {"mask": late})
    tokens = beside(drive, "k", "v")
    five_causal = five | {"mask": causal(5, 5)}
    add.on("future", five_causal, tokens)
    add.on("pads", some | {"q": some["k"], "mask": pads}, with_pads(tokens, 2))
    add.on("rows", some | {"mask": masks[0]}, of(drive, "q", "k", "v", "mask"))
    add.on("heads", some, of(drive, "q", "k", "v"))
    learnt = gradients(drive, "q", "k", "v")
    add("gradients", five, some | {"mask": masks[1]}, by=learnt)
    ones = {"q": 1024 * some["q"], "v": torch.ones_like(some["v"])}
    add("sums", some | ones, by=sums(drive))
    mild = heads(draw, *sizes, most=4) | {"mask": causal(5, 7)}
    add.dtypes(mild)
    add.half("empty", heads(draw, 3, 2, 5, 5, 4, 3, most=4) | {"mask": empty})
    return add


def pair(f: Solution, i: Inputs) -> Outputs:
    """The log-sum-exp may be in float32; it need not be more exact than out."""
    out, lse = f.two(**i)
    is_lse = a_tensor(lse).dim() < out.dim()
    return out, lse.to(out.dtype) if is_lse else lse


def tiles(f: Solution, i: Inputs) -> Outputs:
    def count(func: Any, args: Any, out: Any) -> int:
        made = (x for x in tree_leaves(out) if isinstance(x, Tensor))
        floats = (x.numel() for x in made if x.is_floating_point())
        return 0 if func.is_view else max(floats, default=0)

    with Watched(count) as watched:
        f.two(**i)
    return limited(max(watched.counts), i["q"].numel() * i["k"].numel() / 8)


def flash_probes() -> list[Probe]:
    add = Probes(pair)
    for n, (under, inputs, by, _) in enumerate(core_probes(pair)):
        tile = (1, 1), (2, 3), (8, 8), (5, 2)
        more = {"tile": tile[n % 5 - 1]} if n % 5 and under != "large" else {}
        if len(inputs["q"][0, 0]) > 99:
            more = {"tile": (32, 24)}
        if under != "gradients":
            add(under, inputs | more, by=by)
    narrow = heads(Draw(12), 1, 1, 16, 128, 1, 1) | {"tile": (4, 8)}
    add("tiles", narrow, by=tiles)
    return add


def merge_probes() -> list[Probe]:
    draw, add = Draw(4), Probes(pair)

    def parts(n: int, *sizes: int) -> Inputs:
        outs = [draw(*sizes) for _ in range(n)]
        return {"outs": outs, "lses": [draw(*sizes[:-1]) for _ in range(n)]}

    add("same", parts(2, 1, 1, 1, 1), parts(1, 1, 1, 2, 2))
    add("same", parts(2, 3, 2, 5, 4), parts(3, 3, 3, 3, 3))
    add("same", parts(5, 3, 2, 1, 4), finer(parts(17, 3, 2, 7, 4)))
    some = parts(3, 3, 2, 5, 4)
    for far in (800, -800):
        add("large", some | {"lses": [far + 40 * lse for lse in some["lses"]]})
    apart = 800 * torch.arange(5.0, dtype=torch.float64)  # query by query
    add("large", some | {"lses": [lse - apart for lse in some["lses"]]})
    none = [lse.clone() for lse in some["lses"]]
    none[0][:, :, :3] = none[1][:, :, 2:] = -torch.inf
    for out, lse in zip(some["outs"], none, strict=True):
        out[lse == -torch.inf] = 0
    add("same", some | {"lses": none})
    none = [lse.clone() for lse in none]
    none[2][:, 0] = -torch.inf
    add("empty", some | {"lses": none})
    add.on("rows", some, of(pair, "outs", "lses"))
    add.dtypes(parts(3, 3, 2, 5, 4))
    return add


def rope_probes() -> list[Probe]:
    draw, add = Draw(5), Probes()

    def at(x: Tensor, start: int, **others: float) -> Inputs:
        places = torch.arange(start, start + x.shape[2])
        return {"x": x, "positions": places} | others

    add("same", at(draw(1, 1, 2, 2), 0), at(draw(1, 1, 2, 4), 1))
    add("same", at(draw(3, 2, 5, 8), 0), at(draw(3, 2, 4, 6), 11, theta=50.0))
    add("same", at(draw(3, 3, 4, 4), 0, theta=50.0), at(draw(3, 4, 4, 6), 1))
    add("same", at(draw(3, 2, 1, 16), 7, theta=5e5))
    mixed, away = [3, 0, 7, 7, 61], [2053, 0, 4099, 511, 30011]
    add("same", {"x": draw(3, 2, 5, 8), "positions": torch.tensor(mixed)})

    def as_right(f: Solution, i: Inputs) -> Outputs:
        return f.one(**i), _right("rope").one(**i)

    distant = {"x": draw(3, 2, 5, 4), "positions": torch.tensor(away)}
    add("far", distant, by=as_right)

    some = at(draw(3, 2, 5, 8), 3)
    placed = of(plain, "x", "positions")
    add.on("norm", some, placed)
    add.on("relative", some, placed)
    add.on("rows", some, of(plain, "x"))
    add("gradients", some, by=gradients(plain, "x"))
    add.dtypes(at(draw(3, 2, 5, 8), 300))
    return add


def scaling_probes() -> list[Probe]:
    def freed(function: str, f: Solution, i: Inputs) -> Outputs:
        """Logarithms: small frequencies count as much as large ones."""
        if function != "yarn":
            return (f.one(function, **i).log(),)
        slowed, size = f.two(function, **i)
        return slowed.log(), torch.as_tensor(size).double().view(1)

    add = Probes()

    def of(
        function: str, D: int, base: float, under: str = "same", **how: Any
    ) -> None:
        given: Inputs = {
            "f": base ** (-torch.arange(0, D, 2).double() / D)
        } | how
        add(under, given, by=partial(freed, function), of=function)

    for D, base, factor in ((4, 1e4, 2.0), (8, 1e4, 8.0), (64, 5e5, 32.0)):
        of("linear", D, base, factor=factor)
        of("ntk", D, base, factor=factor)
        of("llama3", D, base, factor=factor, length=256 * D)
        of("yarn", D, base, factor=factor, length=256 * D)
    of("llama3", 128, 5e5, factor=8.0, length=8192, low=2.0, high=5.0)
    of("yarn", 64, 1.5e5, factor=32.0, length=4096, fast=16.0, slow=2.0)
    of("yarn", 16, 1e4, factor=4.0, length=100)  # the ramp begins before 0
    of("yarn", 64, 5e4, "step", factor=64.0, length=4096, fast=1.0)  # K2
    of("yarn", 16, 1e4, "step", factor=4.0, length=6, fast=1.0)  # no width
    return add


def sinks_probes() -> list[Probe]:
    draw, add = Draw(13), Probes(plain, "attention_with_sinks")
    for T, S, first, window in (
        *((2, 2, 0, 1), (3, 3, 1, 1), (1, 6, 2, 3), (9, 9, 2, 3)),
        *((4, 7, 3, 2), (5, 5, 4, 4), (3, 11, 0, 4)),
    ):
        sizes = {"T": T, "S": S, "first": first, "window": window}
        add("same", sizes, of="streaming_mask")
    for under, i, by, _ in core_probes():
        if under != "sums":  # those of the keys alone are below 1
            add(under, i | {"sinks": draw(i["q"].shape[1]).to(i["q"])}, by=by)
    some = heads(draw, 3, 2, 5, 7, 4, 3) | {"sinks": draw(2)}
    learnt = gradients(plain, "q", "sinks")
    far = {"sinks": torch.tensor([100.0, -100.0])}
    add("gradients", some, cast(some | far, torch.float32), by=learnt)
    return add


def alibi_probes() -> list[Probe]:
    draw, add = Draw(15), Probes(plain, "biased_attention")

    def of(function: str, inputs: Inputs) -> None:
        by = lambda f, i: (f.one(function, **i).double(),)  # noqa: E731
        add("same", inputs, by=by, of=function)

    for H in (1, 2, 8, 6, 12, 40):
        of("slopes", {"n_heads": H})
    for H, T, S in ((1, 1, 2), (2, 3, None), (4, 2, 7), (12, 5, 5), (8, 1, 67)):
        of("alibi", {"n_heads": H, "T": T, "S": S})
    for n, (under, i, by, _) in enumerate(core_probes()):
        H, T, S = i["q"].shape[1], i["q"].shape[2], i["k"].shape[2]
        bias = draw(H, T, S).to(i["q"]) if n % 4 in (1, 3) else None
        cap = 3.0 if n % 4 in (2, 3) else None
        add(under, i | {"bias": bias, "softcap": cap}, by=by)
    return add


def order_probes() -> list[Probe]:
    draw, add = Draw(16), Probes()

    def drawn(B: int, H: int, T: int, D: int, most: int = 8) -> Inputs:
        names = "q", "k", "v", "gate"
        made: Inputs = {name: draw(B, H, T, D, most=most) for name in names}
        made |= {"q_weight": draw(D) + 2.5, "k_weight": draw(D) + 2.5}
        made |= {"positions": 3 * torch.arange(T) + 7, "softcap": 3.0}
        return made | {"sinks": draw(H), "mask": causal(T, T)}

    add("same", drawn(1, 1, 1, 2), drawn(1, 1, 2, 2), drawn(1, 2, 3, 4))
    some = drawn(3, 2, 5, 6)
    add("same", some, drawn(3, 3, 3, 4) | {"softcap": 50.0}, drawn(2, 4, 23, 8))
    tiny = {name: some[name] / 1000 for name in ("q", "k")}  # next to eps
    add("same", some | tiny)
    masks = [draw.mask(B, H, 5, 5) for B, H in ((3, 1), (3, 2), (1, 2))]
    add("same", *(some | {"mask": mask} for mask in masks))
    valid = left_pads(3, 5)
    pads = valid[:, None, None]
    add("empty", some | {"mask": pads & causal(5, 5)})
    near = {"positions": torch.arange(5), "softcap": 1e3}
    add("large", some | near | {"q_weight": 64 * some["q_weight"]})
    tokens = "q", "k", "v", "gate"
    add.on("future", some, beside(plain, *tokens))
    pad = with_pads(beside(plain, "k", "v"), 2)
    add.on("pads", some | {"mask": pads}, pad)
    add.on("rows", some | {"mask": masks[0]}, of(plain, *tokens, "mask"))
    add.on("heads", some, of(plain, *tokens))
    learnt = gradients(plain, "q", "k", "v", "gate", "q_weight", "sinks")
    add("gradients", drawn(3, 2, 5, 6, most=4), by=learnt)
    add.dtypes(drawn(3, 2, 5, 6, most=4))
    return add


# ------------------------------------------------------------------ layers


def layer_inputs(draw: Draw, *sizes: int, most: int = 3) -> Inputs:
    """x and weights of B, T, E, H, K."""
    B, T, E, H, K = sizes
    small = K * E // H
    inputs: Inputs = {"x": draw(B, T, E)}
    for name, rows in (("w_q", E), ("w_k", small), ("w_v", small), ("w_o", E)):
        inputs[name] = draw(rows, E, most=most)
    return inputs | {"n_heads": H}


def below_zero(i: Inputs, tokens: str = "x") -> Inputs:
    """All scores far below zero, and exact in float32."""
    low = {"x": i["x"].abs() + 1, tokens: i[tokens].abs() + 1}
    return i | low | {"w_q": 2**12 * i["w_q"].abs(), "w_k": -i["w_k"].abs()}


def heads_of_layer(f: Solution, i: Inputs) -> tuple[Any, ...]:
    """The heads of a layer without output projection, by their queries."""
    H = i["n_heads"]

    def run(w_q: Tensor) -> Tensor:
        out = f.one(**i | {"w_q": w_q[0].flatten(0, 1)})
        each: Tensor = out.unflatten(-1, (H, -1))
        return each.transpose(1, 2)

    return run, i["w_q"].unflatten(0, (H, -1))[None]


def layer_probes(kv_heads: dict[int, int], *, gqa: bool) -> list[Probe]:
    """Of mha, mqa and gqa: `kv_heads` by query heads."""
    draw, add = Draw(6), Probes()

    def drawn(B: int, T: int, E: int, H: int, most: int = 3) -> Inputs:
        K = kv_heads[H]
        inputs = layer_inputs(draw, B, T, E, H, K, most=most)
        return inputs | ({"n_kv_heads": K} if gqa else {})

    add("same", drawn(1, 1, 2, 1), drawn(1, 2, 2, 1), drawn(1, 2, 4, 2))
    add("same", drawn(1, 2, 4, 2) | {"mask": causal(2, 2)}, drawn(1, 2, 4, 4))
    some, equal = drawn(3, 5, 12, 6), drawn(3, 3, 12, 3)
    five, three = causal(5, 5), causal(3, 3)
    valid = left_pads(3, 5)
    pads = valid[:, None, None]
    masks = [draw.mask(B, H, 5, 5) for B, H in ((3, 1), (3, 6), (1, 6))]
    add("same", finer(some) | {"mask": None})
    for mask in (five, pads, *masks):
        add("same", some | {"mask": mask})
    add("same", some | {"x": some["x"][:1], "mask": masks[2]})
    long = drawn(1, 300, 16, 2)
    add("same", long, long | {"mask": causal(300, 300)})
    right = left_pads(3, 3).flip(1)[:, None, None] & three
    add("same", equal | {"mask": three}, equal | {"mask": right})
    add("same", drawn(3, 17, 40, 8) | {"mask": causal(17, 17)})
    add("empty", *(some | {"mask": mask & five} for mask in (pads, masks[1])))
    add("large", some | {"w_q": 64 * some["w_q"], "mask": five})
    add("large", below_zero(equal) | {"mask": three})
    tokens = of(plain, "x")
    add.on("future", some | {"mask": five}, tokens)
    add.on("pads", some | {"mask": pads}, with_pads(tokens))
    add.on("rows", some | {"mask": masks[0]}, of(plain, "x", "mask"))
    shown = some | {"w_o": torch.eye(12, dtype=torch.float64)}
    add.on("heads", shown, heads_of_layer)
    mild = drawn(3, 5, 12, 6, most=2)
    learnt = gradients(plain, "x")
    add("gradients", mild | {"mask": five}, by=learnt)
    add("gradients", mild | {"mask": pads & five}, by=learnt)
    add.dtypes(mild | {"mask": five})
    return add


def cross_probes() -> list[Probe]:
    draw, add = Draw(7), Probes()

    def drawn(*sizes: int, most: int = 3) -> Inputs:
        B, T, S, E, C, H = sizes
        inputs: Inputs = {"x": draw(B, T, E), "context": draw(B, S, C)}
        for name, width in (("w_q", E), ("w_k", C), ("w_v", C), ("w_o", E)):
            inputs[name] = draw(E, width, most=most)
        return inputs | {"n_heads": H}

    add("same", drawn(1, 1, 1, 2, 2, 1), drawn(1, 1, 2, 2, 2, 1))
    some, equal = drawn(3, 5, 7, 12, 4, 6), drawn(3, 3, 3, 12, 12, 3)
    add("same", drawn(1, 2, 3, 4, 2, 2), finer(some) | {"mask": None}, equal)
    add("same", drawn(3, 5, 5, 12, 12, 3), drawn(3, 23, 17, 20, 6, 4))
    valid = left_pads(3, 7)
    pads, seen = valid[:, None, None], draw.mask(3, 1, 5, 7)
    every = draw.mask(3, 6, 5, 7)
    for mask in (pads, pads.flip(3), seen, every, causal(5, 7)):
        add("same", some | {"mask": mask})
    one = {name: some[name][:1] for name in ("x", "context")}
    add("same", some | one | {"mask": every[:1]})
    three = {"mask": left_pads(3, 3)[:, None, None]}
    add("same", equal | three)
    add("large", some | {"w_q": 256 * some["w_q"], "mask": seen})
    add("large", below_zero(equal, "context") | three)
    queries = left_pads(3, 5)[:, None, :, None]
    add("empty", some | {"mask": pads & queries})
    add("empty", some | {"mask": every & queries & pads})
    seven = {"x": some["x"][:, [0, 1, 2, 3, 4, 0, 1]], "mask": pads}
    add.on("pads", some | seven, with_pads(of(plain, "context")))
    add.on("tokens", some, of(plain, "x"))
    add.on("rows", some | {"mask": seen}, of(plain, "x", "context", "mask"))
    mild = drawn(3, 5, 7, 12, 4, 6, most=2)
    learnt = gradients(plain, "x", "context")
    add("gradients", mild | {"mask": pads}, by=learnt)
    add.dtypes(mild | {"mask": pads})
    return add


# ------------------------------------------------------------------ caches


@driving
def in_chunks(f: Solution, i: Inputs, *chunks: int) -> Outputs:
    """The outputs of calls with so many tokens each, as one."""
    first, *others = i["x"].split(chunks, dim=1)
    out, cache = f.two(**i | {"x": first})
    outs = [out]
    for part in others:
        out, cache = f.two(**i | {"x": part, "cache": cache})
        outs.append(out)
    return (torch.cat(outs, dim=1),)


def once(f: Solution, i: Inputs) -> Outputs:
    return (f.two(**i)[0],)


def decoder(f: Solution, i: Inputs) -> tuple[Any, ...]:
    """A solution with a cache as a layer with one."""

    def run(x: Tensor, cache: dict[str, Any] | None = None) -> Tensor:
        past = None if cache is None else cache.get("kept")
        out, past = f.two(**i | {"x": x, "cache": past})
        if cache is not None:
            cache["kept"] = past
        return a_tensor(out)

    return run, dict, i["x"]


def far(f: Solution, i: Inputs) -> Outputs:
    """After 4,100 tokens; in a solution that loops over them after 500."""

    def operations(T: int) -> int:
        with Watched(lambda *_: 1) as watched:
            f.two(**i | {"x": i["x"][:, :T]})
        return sum(watched.counts)

    T = 503 if operations(23) > 2 * operations(7) else i["x"].shape[1]
    return _end(f, i, T), _right_far(f.name, T, i["x"].dtype)


def _end(f: Solution, i: Inputs, T: int) -> Tensor:
    parts = (*(512,) * ((T - 3) // 512), (T - 3) % 512, 3)
    i = i | {"x": i["x"][:, :T]}
    return in_chunks(*parts)(f, i)[0][:, -5:]


@cache
def _right_far(name: str, T: int, dtype: torch.dtype) -> Tensor:
    every = (p.inputs for p in EXERCISES[name].drawn() if p.under == "far")
    i = next(i for i in every if i["x"].dtype == dtype)
    return _end(_right(name), i, T)


def cached_probes(
    inputs: Callable[..., Inputs], per_token: Callable[[Inputs], int]
) -> Probes:
    """`inputs` of B, T and how large the weights are, or of small widths;
    `per_token` is how many numbers a token needs in the cache."""
    add = Probes(once)
    add("same", *(inputs(1, T, small=True) for T in (1, 2)))
    tiny = inputs(1, 2, small=True)
    add.on("chunks", tiny | {"x": tiny["x"][:, [0, 1, 0]]}, decoder)
    equal, some = inputs(3, 3), inputs(3, 5)
    H = equal["n_heads"]
    add("same", equal | {"cache": None}, inputs(H, H), some)
    default = {name: some[name] for name in some if name != "theta"}
    add("same", finer(default), by=in_chunks(1, 1, 1, 1, 1))
    add.on("chunks", some, decoder)
    add("same", inputs(2, 23), by=in_chunks(17, 1, 5))
    add.on("future", some, of(once, "x"))
    add.on("rows", some, of(in_chunks(4, 1), "x"))
    add.on("apart", some, decoder)
    large = cast(some, torch.float32)
    add("large", large | {"w_q": 64 * large["w_q"]}, by=in_chunks(4, 1))

    def small(f: Solution, i: Inputs) -> Outputs:
        """On average, of more tokens than a buffer has room for."""
        first, *parts = i["x"].split((5, 19, 1, 1, 38), dim=1)
        with Watched(unwritten):
            _, cache = f.two(**i | {"x": first})
            before = {at: t.clone() for at, t in stored(cache).items()}
            for part in parts:
                _, cache = f.two(**i | {"x": part, "cache": cache})
        took, need = grown(before, stored(cache)) / 59, per_token(i)
        # As much again is free in a buffer that was just doubled.
        return limited(took if took >= 2 * need else 0, need)

    add("small", inputs(1, 64), by=small)
    long = cast(inputs(1, 4100, small=True), torch.float32)
    long["x"][:, :2] *= 8  # what a window loses must weigh
    add("far", {n: long[n] for n in long if n != "theta"}, by=far)
    mild = inputs(3, 5, most=2)
    add.dtypes(mild, by=in_chunks(4, 1))
    return add


def cached_layer_probes(H: int, K: int) -> list[Probe]:
    draw = Draw(8)
    others: Inputs = {} if H == K else {"n_kv_heads": K, "theta": 50.0}

    def inputs(B: int, T: int, most: int = 3, *, small: bool = False) -> Inputs:
        if small:
            few = {"n_kv_heads": 1} if others else {}
            made = layer_inputs(draw, B, T, 4, 2, 1 if others else 2)
            return made | others | few
        return layer_inputs(draw, B, T, 4 * H, H, K, most=most) | others

    add = cached_probes(inputs, lambda i: 2 * len(i["w_k"]))
    if others:  # angles of 2,000 tokens, of what has 8 bits
        long = layer_inputs(draw, 1, 2053, 8, 1, 1) | others | {"n_kv_heads": 1}
        add("far", cast(long, torch.bfloat16), by=unless_raised(far))
    return add


def mla_inputs(draw: Draw, *sizes: int, most: int = 3) -> Inputs:
    """x and weights of B, T, E, H, R, Dn, Dr, Dv."""
    B, T, E, H, R, Dn, Dr, Dv = sizes
    return {
        "x": draw(B, T, E),
        "w_q": draw(H * (Dn + Dr), E, most=most),
        "w_kv_a": draw(R + Dr, E, most=most),
        "w_norm": draw(R) + 2.5,
        "w_kv_b": draw(H * (Dn + Dv), R, most=most),
        "w_o": draw(E, H * Dv, most=most),
        "n_heads": H,
        "theta": 50.0,
    }


def mla_probes(*, absorbed: bool) -> list[Probe]:
    draw = Draw(9)

    def inputs(B: int, T: int, most: int = 3, *, small: bool = False) -> Inputs:
        # Even: complex numbers in the style of DeepSeek's code need it.
        sizes = (2, 1, 2, 2, 2, 1) if small else (23, 5, 8, 6, 4, 7)
        return mla_inputs(draw, B, T, *sizes, most=most)

    add = cached_probes(inputs, lambda i: len(i["w_kv_a"]))
    tiny = inputs(3, 5)
    add("same", tiny | {"x": tiny["x"] / 4096})  # of the size of eps

    def flops(f: Solution, i: Inputs) -> Outputs:
        """Of a decode step, or half of what expanding all keys needs."""
        _, cache = f.two(**i | {"x": i["x"][:, :-1]})

        def count(func: Any, args: Any, out: Any) -> int:
            of = flop_registry.get(func.overloadpacket)
            return of(*args, out_val=out) if of else 0

        with Watched(count) as watched:
            f.two(**i | {"x": i["x"][:, -1:], "cache": cache})
        return limited(sum(watched.counts), 128 * i["w_kv_b"].numel())

    if absorbed:
        wide = mla_inputs(draw, 1, 128, 8, 4, 6, 16, 2, 16)
        add("absorbed", wide, by=flops)
    return add


def of_pads(f: Solution, i: Inputs) -> Iterator[Tensor]:
    """Of each row in three calls, what its real tokens get."""
    cache, outs = None, list[Tensor]()
    for part in (slice(0, 4), slice(4, 5), slice(5, None)):
        now = {"x": i["x"][:, part], "valid": i["valid"][:, part]}
        out, cache = f.two(**i | now | {"cache": cache})
        outs.append(out)
    for out, valid in zip(torch.cat(outs, dim=1), i["valid"], strict=True):
        yield out[valid]


def beside_rows_alone(f: Solution, i: Inputs) -> Outputs:
    """Rows with pads, and then the same without."""
    rows = zip(i["x"], i["valid"], strict=True)
    every = {name: i[name] for name in i if name != "valid"}
    alone = (f.two(**every | {"x": x[real][None]})[0][0] for x, real in rows)
    return *of_pads(f, i), *alone


def gated_delta_probes() -> list[Probe]:
    draw, add = Draw(17), Probes(once)

    def inputs(B: int, T: int, *sizes: int, most: int = 3) -> Inputs:
        """Of E, key heads, value heads and the widths of both."""
        E, K, H, D, Dv = sizes or (6, 2, 4, 3, 5)
        C = 2 * K * D + H * Dv
        made = {"x": draw(B, T, E), "w_qkv": draw(C, E, most=most)}
        made |= {"w_z": draw(H * Dv, E, most=most), "w_b": draw(H, E, most=2)}
        made |= {"w_a": draw(H, E, most=1), "w_conv": draw(C, 4, most=most)}
        made |= {"A_log": draw(H, most=4) - 2, "dt_bias": draw(H, most=4)}
        made |= {"w_norm": draw(Dv) + 2.5, "w_o": draw(E, H * Dv, most=most)}
        return made | {"n_heads": K}

    small = 2, 1, 1, 1, 2
    add("same", inputs(1, 1, *small), inputs(1, 2, *small))
    equal, some = inputs(3, 3, 4, 3, 3, 3, 3), inputs(3, 5)
    add("same", equal | {"cache": None}, some)
    add("same", finer(some), by=in_chunks(1, 1, 1, 1, 1))
    add("same", some | {"x": some["x"] / 1024})  # of the size of eps
    add("same", inputs(2, 70), by=in_chunks(64, 1, 5))
    add.on("chunks", some, decoder)
    add.on("future", some, of(once, "x"))
    add.on("rows", some, of(in_chunks(4, 1), "x"))
    add.on("apart", some, decoder)
    long = inputs(3, 9)
    at, row = torch.arange(9), torch.arange(3)[:, None]
    for valid in (at > row, (at < 3) | (at > 3 + row), at < 9 - row):
        padded = long | {"valid": valid}
        add("same", padded, by=lambda f, i: tuple(of_pads(f, i)))
        add("pads", padded, by=beside_rows_alone)

    def fixed(f: Solution, i: Inputs) -> Outputs:
        """Between 5 and 64 tokens, a state does not grow."""
        _, cache = f.two(**i | {"x": i["x"][:, :5]})
        before = sum(t.numel() for t in stored(cache).values())
        _, cache = f.two(**i | {"x": i["x"][:, 5:], "cache": cache})
        after = sum(t.numel() for t in stored(cache).values())
        return limited((after - before) / 59, 0)

    add("small", inputs(1, 64), by=fixed)
    add.dtypes(inputs(3, 5, most=2), by=in_chunks(4, 1))
    return add


def stored(cache: object) -> dict[int, Tensor]:
    """The floats that a cache holds, wherever it holds them."""
    result: dict[int, Tensor] = {}
    seen: dict[int, object] = {}
    left: list[Any] = [cache]
    while left:
        value = left.pop()
        if id(value) in seen or isinstance(value, str | type):
            continue
        seen[id(value)] = value
        if isinstance(value, Tensor):
            base = value if value._base is None else value._base
            other = result.get(base.data_ptr())
            if value.is_floating_point() and (
                other is None or other.numel() < value.numel()
            ):
                result[base.data_ptr()] = value
            continue
        if isinstance(value, dict):
            left += value.values()
        elif hasattr(value, "__iter__") and hasattr(value, "__len__"):
            left += value
        slots = getattr(type(value), "__slots__", ())
        left += [getattr(value, name, None) for name in (*slots, "__dict__")]
    return result


def grown(before: dict[int, Tensor], after: dict[int, Tensor]) -> int:
    """By how many numbers; in a buffer, how many were written."""

    same = {
        at: old
        for at, old in before.items()
        if at in after and after[at].shape == old.shape
    }
    total = 0
    for at, old in same.items():  # what was never written may be NaN
        new = after[at]
        total += int(((new != old) & ~(new.isnan() & old.isnan())).sum())
    total += sum(t.numel() for at, t in after.items() if at not in same)
    return total - sum(t.numel() for at, t in before.items() if at not in same)


def dsa_probes() -> list[Probe]:
    draw, add = Draw(17), Probes()

    def drawn(*sizes: int, mask: Tensor | None = None, most: int = 6) -> Inputs:
        """Of B, H, T, S, D, Dv, Hi, topk."""
        B, H, T, S, D, Dv, Hi, topk = sizes
        made = heads(draw, B, H, T, S, D, Dv, most=most) | {"topk": topk}
        k, q, w = draw(B, 1, S, 4), draw(B, Hi, T, 4), draw(B, T, Hi)
        while topk < S:  # until the last key chosen and the next lie apart
            products = (q @ k.mT).clamp(min=0) * w.mT[..., None]
            scores = products.sum(1, keepdim=True)
            if mask is not None:
                scores = scores.masked_fill(~mask, -torch.inf)
            best = scores.topk(topk + 1).values[:, 0]
            near = best[..., -2] - best[..., -1] < products.abs().max() / 9
            if not near.any():
                break
            q = q.where(~near[:, None, :, None], draw(*q.shape))
            w = w.where(~near[..., None], draw(*w.shape))
        made |= {"q_index": q, "k_index": k, "weights": w}
        return made | ({} if mask is None else {"mask": mask})

    add("same", drawn(1, 1, 1, 2, 2, 1, 1, 1), drawn(1, 1, 2, 3, 2, 2, 2, 2))
    sizes = 3, 2, 5, 7, 4, 3, 6, 3
    some, seen = drawn(*sizes), drawn(*sizes, mask=causal(5, 7))
    add("same", some | {"mask": None}, seen, some | {"topk": 7})
    add("same", some | {"topk": 9}, drawn(3, 3, 3, 3, 3, 3, 3, 1))
    valid = left_pads(3, 7)[:, None, None]
    masks = valid, draw.mask(3, 1, 5, 7), causal(5, 7) & valid.flip(3)
    add("same", *(drawn(*sizes, mask=mask) for mask in masks))
    add(
        "same", drawn(2, 2, 1, 67, 5, 4, 5, 11), drawn(1, 4, 61, 61, 4, 3, 8, 8)
    )
    square, triangle = (3, 2, 5, 5, 4, 3, 6, 2), causal(5, 5)
    empty = left_pads(3, 5)[:, None, None] & triangle
    add("empty", drawn(*square, mask=empty))
    add("large", seen | {"q": 128 * seen["q"]})
    ahead = drawn(*square, mask=triangle)
    add.on("future", ahead, beside(plain, "k", "v"))
    names = "q", "k", "v", "q_index", "k_index", "weights"
    add.on("rows", some, of(plain, *names))
    add.on("heads", some, of(plain, "q", "k", "v"))
    add("gradients", seen, by=gradients(plain, "q", "k", "v"))
    add.dtypes(drawn(*sizes, mask=causal(5, 7), most=4))
    return add


def cache_probes() -> list[Probe]:
    draw = Draw(10)

    def drawn(max_len: int, chunks: tuple[int, ...], *sizes: int) -> Inputs:
        """Keys and values of B, K, D."""
        B, K, D = sizes
        # Of more digits than half precision has.
        keys = [draw(B, K, T, D, most=3999) for T in chunks]
        values = [draw(*k.shape, most=3999) for k in keys]
        return {"max_len": max_len, "k": keys, "v": values}

    def appended(cache: Any, k: Tensor, v: Tensor) -> Outputs:
        """What an append returns, as it is at this moment."""
        keys, values = a_pair(cache.append(k, v))
        length = torch.tensor([float(cache.length)])
        return keys.clone(), a_tensor(values).clone(), length

    def steps(f: Solution, i: Inputs) -> Outputs:
        cache = f(max_len=i["max_len"])
        outs = [torch.tensor([float(cache.length)])]
        for k, v in zip(i["k"], i["v"], strict=True):
            outs += appended(cache, k, v)
        return tuple(outs)

    def last(f: Solution, i: Inputs) -> Outputs:
        return steps(f, i)[-3:-1]

    def apart(f: Solution, i: Inputs) -> Outputs:
        """Two caches in turns, and the second alone."""
        a, b = (f(max_len=i["max_len"]) for _ in range(2))
        got: Outputs = ()
        for k, v in zip(i["k"], i["v"], strict=True):
            appended(a, k + 1, v + 1)
            got = appended(b, k, v)
        return got + steps(f, i)[-3:]

    def full(f: Solution, i: Inputs) -> Outputs:
        """The second does not fit, and the third does."""
        cache = f(max_len=i["max_len"])
        appended(cache, i["k"][0], i["v"][0])
        refused = 0.0
        try:
            cache.append(i["k"][1], i["v"][1])
        except Exception:
            refused = 1.0
        outcome = torch.tensor([refused, float(cache.length)])
        return outcome, *appended(cache, i["k"][2], i["v"][2])

    add, some = Probes(steps), drawn(7, (3, 1, 1), 3, 2, 4)
    add("same", drawn(1, (1,), 1, 1, 1), drawn(2, (1, 1), 1, 1, 2), some)
    add("same", drawn(7, (1,) * 7, 3, 2, 4), drawn(4, (3, 1), 3, 3, 3))
    add("same", drawn(2100, (2053, 1, 46), 1, 1, 2))
    for chunks in ((3, 2, 1), (4, 1, 0), (1, 5, 3)):
        add("full", drawn(4, chunks, 3, 2, 4), by=full)
    add.on("rows", some, of(last, "k", "v"))
    add("apart", some, by=apart)
    for parts in ((3,), (3, 1)):
        add.dtypes(drawn(7, parts, 3, 2, 4), by=last)
    return add


def ring_probes() -> list[Probe]:
    draw = Draw(14)

    def drawn(W: int, chunks: tuple[int, ...], *sizes: int) -> Inputs:
        B, K, D = sizes or (3, 2, 4)
        keys = [draw(B, K, T, D) for T in chunks]
        return {"W": W, "k": keys, "v": [draw(*k.shape) for k in keys]}

    def steps(f: Solution, i: Inputs) -> Outputs:
        cache, outs = f(W=i["W"]), list[Tensor]()
        for k, v in zip(i["k"], i["v"], strict=True):
            keys, values, at = cache.append(k, v)
            outs += [a_tensor(x).clone() for x in (keys, values, at)]
        return tuple(outs)

    def last(f: Solution, i: Inputs) -> Outputs:
        return steps(f, i)[-3:-1]

    add, some = Probes(steps, "RingKVCache"), drawn(4, (3, 1, 1, 1, 2, 1))
    add("same", drawn(1, (1, 1), 1, 1, 1), drawn(2, (1, 1, 1), 1, 1, 2), some)
    for chunks in ((4, 1), (5, 1), (11, 1, 1), (1,) * 9, (1, 4, 3, 1)):
        add("same", finer(drawn(4, chunks)))
    for W, T, at in (
        (3, 1, [0, -1, -1]),
        (3, 1, [6, 4, 5]),
        (4, 2, [4, 5, -1, 3, 0, 1, 2]),
        (4, 5, [8, 5, 6, 7, 9, 10, 11, 12, 13]),
    ):
        j = torch.tensor(at)
        i = torch.arange(T) + 1 + j.max() - T
        add("same", {"i": i, "j": j, "W": W}, of="sees")
    add.on("rows", some, of(last, "k", "v"))
    add.dtypes(drawn(4, (3, 1, 6, 1)), by=last)
    return add


def paged_probes() -> list[Probe]:
    def steps(f: Solution, i: Inputs) -> Outputs:
        """The number of blocks found, and all that each text gets back."""
        dtype = i["of"].dtype

        def new_pool(blocks: int, size: int, shape: Any, dtype: Any) -> Any:
            return f(blocks=blocks, size=size, shape=shape, dtype=dtype)

        sizes = i["script"], i["size"], dtype
        pairs = blocks_hold_each_text.pairs(new_pool, *sizes)
        return tuple(torch.as_tensor(seen) for seen, _ in pairs)

    def drawn(script: str, size: int = 3) -> Inputs:
        return {
            "script": script,
            "size": size,
            "of": torch.zeros(1, dtype=torch.float64),
        }

    add, grown = Probes(steps), "a0abcdefgh b0xyz a+ijkl b+w b-0 c0lmnopqr"
    add("same", drawn("a0abcd"), drawn("a0ab a+c a+defg"), drawn(grown))
    add("same", drawn("a0abcdefgh b=a b+x a+ij a-0 b-4 b+ze"))
    add("same", drawn("a0abcdefgh b2abcdefx c0defabc d1abcdef"))
    add("same", drawn("a0abc b3abcd a-0 b+e c0xy", 1), drawn(SHARING))
    add("full", drawn("a0abcdefgh z? a+i"), drawn("z? a0ab z? a+cd"))
    add("same", drawn("a0abcd b0xyzw a+e b+v a+fgh b+uts a-3 b+r a+x"))
    add.dtypes(drawn("a0abcdefgh b=a b+x a+ij c2abcdefg a-0"))
    return add


def pooled_probes() -> list[Probe]:
    draw, add = Draw(11), Probes(pair)

    def of(H: int, K: int, D: int, E: int) -> Inputs:
        sizes = {"n_heads": H, "n_kv_heads": K}
        return {"w_k": draw(H * D, E), "w_v": draw(H * D, E)} | sizes

    for sizes in ((1, 1, 1, 1), (2, 1, 1, 1), (4, 2, 1, 1), (4, 2, 2, 2)):
        add("same", of(*sizes))
    for sizes in ((6, 2, 5, 7), (6, 3, 5, 7), (6, 6, 5, 7), (9, 3, 3, 27)):
        add("same", of(*sizes))
    add.dtypes(of(6, 2, 5, 7))
    return add


SHARED = {1: 1, 2: 1, 4: 2, 6: 2, 3: 3, 8: 4}
PROBES: dict[str, Callable[[], list[Probe]]] = {
    "softmax": softmax_probes,
    "online_softmax": online_probes,
    "masks": masks_probes,
    "sdpa": core_probes,
    "mha": partial(layer_probes, {H: H for H in SHARED}, gqa=False),
    "mha_cached": partial(cached_layer_probes, 3, 3),
    "mqa": partial(layer_probes, dict.fromkeys(SHARED, 1), gqa=False),
    "gqa": partial(layer_probes, SHARED, gqa=True),
    "llama": partial(cached_layer_probes, 6, 2),
    "cross": cross_probes,
    "rope": rope_probes,
    "kv_cache": cache_probes,
    "mla_latent": partial(mla_probes, absorbed=False),
    "mla_absorbed": partial(mla_probes, absorbed=True),
    "dsa": dsa_probes,
    "mha_to_gqa": pooled_probes,
    "flash": flash_probes,
    "merge": merge_probes,
    "sinks": sinks_probes,
    "alibi": alibi_probes,
    "order": order_probes,
    "scaling": scaling_probes,
    "ring": ring_probes,
    "paged": paged_probes,
    "gated_delta": gated_delta_probes,
}
EXERCISES = {
    name: Exercise(tuple(FORMS[name]), drawn) for name, drawn in PROBES.items()
}


@cache
def properties_of(name: str) -> tuple[tuple[str, str], ...]:
    """Those of an exercise, each with the function that has to have it."""
    probes = [*EXERCISES[name].probes()]
    used = {(p.function, p.under) for p in probes}
    for p in probes:
        if any(hasattr(x, "__len__") for x in p.inputs.values()):  # a tensor
            used.add((p.function, "untouched"))
    functions = ["", *TASKS[name].names]
    return tuple(x for x in product(functions, PROPERTIES) if x in used)
