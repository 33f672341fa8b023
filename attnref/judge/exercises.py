"""The inputs on which a solution is judged: probes, each of one property.

A probe has inputs and a drive: a function that calls a solution with the inputs
and returns the tensors that are judged. The right outputs are those of the
first form of an exercise (forms.py).
"""

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple
from warnings import catch_warnings, simplefilter

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from attnref.judge.catalogue import PACKAGE, Plain, load
from attnref.judge.forms import FORMS, Form
from attnref.judge.properties import (
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
from attnref.judge.solution import SolutionError
from attnref.judge.tasks import TASKS
from attnref.judge.threads import Ranks
from attnref.judge.words import table
from attnref.words import Text

__all__ = ["EXERCISES", "PROPERTIES", "Exercise", "Form", "Probe"]
__all__ += ["Solution", "SolutionError", "calls_attnref"]

Inputs = dict[str, Any]
Outputs = tuple[Tensor, ...]


class Judgement(NamedTuple):
    """How the outputs of a probe are judged.

    As a rule they are compared with the right outputs. With `halves`, their
    first half is compared with their second half. With `unit`, they are
    `(max(usage, limit), limit)` in this unit: equal if the limit is kept.
    """

    title: Text
    halves: bool = False
    unit: Text | None = None


# The drives of these properties return both halves: what is observed, and what
# it should be.
HALVES = {"far", "future", "pads", "sums", "rows", "heads", "tokens", "chunks"}
HALVES |= {"apart", "norm", "relative", "twice"}
HALVES |= {"small", "absorbed", "tiles", "pieces"}  # a usage, and its limit
UNITS = table("unit")
PROPERTIES = {
    name: Judgement(title, name in HALVES, UNITS.get(name))
    for name, title in table("property").items()
}
# A solution that returns zeros has these properties, too: they count only for
# a solution whose results are right.
HOLLOW = HALVES | {"untouched", "gradients"}


class Solution:
    """The functions of a solution, called as the exercise says."""

    def __init__(self, name: str, source: object) -> None:
        """`name` is the name of an exercise. `source` is a module, a dict or an
        object that has the functions, or the function or class itself if the
        exercise asks for only one."""
        task = TASKS[name]
        single = len(task.names) == 1
        self.name, self.functions = name, dict[str, Callable[..., Any]]()
        for function in task.names:
            if isinstance(source, dict):
                code = source.get(function)
            elif single and callable(source):
                code = source
            else:
                code = getattr(source, function, None)
            if not callable(code):
                signatures = ", ".join(task.signatures)
                raise SolutionError(
                    "absent", function=function, asked=signatures
                )
            self.functions[function] = code
            if single:  # of several functions, the others can be judged
                self.arguments(function, dict(task.functions[function]))

    def arguments(
        self, function: str, inputs: Inputs
    ) -> tuple[list[Any], Inputs]:
        """The required inputs, by position, and the optional ones, by name."""
        task, code = TASKS[self.name], self.functions[function]
        defaults = task.functions[function]
        required = [inputs[name] for name in defaults if not defaults[name]]
        optional = {name: inputs[name] for name in inputs if defaults[name]}
        try:
            inspect.signature(code).bind(*required, **optional)
        except TypeError as error:
            signature = task.signatures[task.names.index(function)]
            raise SolutionError("call", said=signature, error=error) from None
        except ValueError:  # a function written in C has no signature
            pass
        return required, optional

    def __call__(self, function: str = "", /, **inputs: Any) -> Any:
        function = function or TASKS[self.name].names[0]
        required, optional = self.arguments(function, inputs)
        return self.functions[function](*required, **optional)

    def tensor(self, function: str = "", /, **inputs: Any) -> Tensor:
        """Call a function that returns a tensor."""
        return require_tensor(self(function, **inputs))

    def pair(self, function: str = "", /, **inputs: Any) -> tuple[Any, Any]:
        """Call a function that returns a tensor and something else."""
        result = self(function, **inputs)
        if isinstance(result, tuple | list) and len(result) == 2:
            return require_tensor(result[0]), result[1]
        defaults = TASKS[self.name].functions[function or self.name]
        second = "cache" if "cache" in defaults else SECOND.get(self.name, "")
        raise SolutionError(
            f"pair {second or 'any'}", kind=type(result).__name__
        )


def require_tensor(value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise SolutionError("tensor", kind=type(value).__name__)
    return value


# What an exercise without a cache returns after its output.
SECOND = {"flash": "lse", "merge": "lse"}


def require_pair(value: object) -> tuple[Tensor, Any]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise SolutionError("pair any", kind=type(value).__name__)
    return require_tensor(value[0]), value[1]


Drive = Callable[[Solution, Inputs], Outputs]
# Returns what a property of `PAGE_PROPERTIES` is called with: a function, then
# its arguments.
Setup = Callable[[Solution, Inputs], tuple[Any, ...]]


class Probe(NamedTuple):
    """Inputs for one property, and a drive that calls a solution with them."""

    prop: str
    inputs: Inputs
    drive: Drive
    function: str = ""  # empty if the exercise asks for only one

    @property
    def sizes(self) -> str:
        """The inputs in one line: `x (3, 5, 12), n_heads=6, float64`."""
        words, inputs = [], self.inputs
        if "positions" in inputs and inputs["positions"].dim() == 3:
            parts = cut_tokens(inputs, 0)
            inputs = {name: parts[name] for name in inputs}
            inputs["ranks"] = ranks_of(self.inputs)
        for name, value in inputs.items():
            if isinstance(value, Tensor):
                words.append(f"{name} {tuple(value.shape)}")
            elif isinstance(value, list):
                words.append(f"{name} {len(value)} x {tuple(value[0].shape)}")
            elif value is not None:
                words.append(f"{name}={value}")
        leaves = tree_leaves(self.inputs)
        tensors = (x for x in leaves if isinstance(x, Tensor))
        floats = (str(x.dtype) for x in tensors if x.is_floating_point())
        dtypes = (dtype.removeprefix("torch.") for dtype in floats)
        return ", ".join([*words, *dict.fromkeys(dtypes)])


class Exercise(NamedTuple):
    """The first form is right. `make_probes` makes the probes of all properties
    but `twice`."""

    forms: tuple[Form, ...]
    make_probes: Callable[[], list[Probe]]

    def probes(self) -> Iterator[Probe]:
        """All probes. The last ones call each function twice."""
        probes = self.make_probes()
        last = {p.function: p for p in probes if p.prop == "same"}
        for probe in last.values():
            drive = call_twice(probe.drive)
            probes.append(probe._replace(prop="twice", drive=drive))
        for probe in probes:
            yield probe._replace(drive=fix_seed(probe.drive))


def fix_seed(drive: Drive) -> Drive:
    """Every solution that has dropout then drops the same weights."""

    def run(solution: Solution, inputs: Inputs) -> Outputs:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return drive(solution, inputs)

    return run


def call_twice(drive: Drive) -> Drive:
    return lambda solution, inputs: (
        drive(solution, inputs) + drive(solution, inputs)
    )


def calls_attnref(solution: Solution) -> bool:
    """Whether a solution runs code of this package: then it solves nothing."""
    files: set[Path] = set()

    def record_file(frame: Any, event: str, _: object) -> None:
        if event == "call":
            files.add(Path(frame.f_code.co_filename))

    probe, *_ = EXERCISES[solution.name].probes()
    profiler = sys.getprofile()
    sys.setprofile(record_file)
    threading.setprofile(record_file)
    try:
        with torch.no_grad():
            probe.drive(solution, probe.inputs)
    except Exception:  # the verdict on this probe reports it
        pass
    finally:
        sys.setprofile(profiler)
        threading.setprofile(None)
    given = Path(__file__).parent, PACKAGE / "plain/ranks.py"
    return any(
        file.is_relative_to(PACKAGE) and not {file, file.parent} & {*given}
        for file in files
    )


# ------------------------------------------------------------------ inputs


class Draw:
    """Random multiples of 1/4, with so few digits that one can type them."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, limit: int = 8) -> Tensor:
        """Numbers from -limit/4 to limit/4, in float64."""
        integers = torch.randint(
            -limit, limit + 1, shape, generator=self.generator
        )
        return integers.double() / 4

    def mask(self, *shape: int) -> Tensor:
        """A random mask in which each query may see at least one key."""
        mask = torch.rand(shape, generator=self.generator) < 0.6
        mask[..., 0] |= ~mask.any(-1)
        return mask


def left_pads(B: int, S: int) -> Tensor:
    """`valid` `(B, S)`: row b begins with b + 1 pads, the last row with 0."""
    return torch.arange(S) >= (torch.arange(B)[:, None] + 1) % B


def causal(T: int, S: int) -> Tensor:
    return torch.ones(T, S, dtype=torch.bool).tril(S - T)


def call(solution: Solution, inputs: Inputs) -> Outputs:
    return (solution.tensor(**inputs),)


# The properties that a page shows, by their names in words.toml.
PAGE_PROPERTIES = {
    "future": future_is_hidden,
    "pads": pads_are_unseen,
    "rows": rows_are_apart,
    "heads": heads_are_apart,
    "tokens": heads_are_apart,  # with queries on the axis of heads
    "chunks": decoding_is_the_full_pass,
    "apart": sequences_are_apart,
    "norm": lengths_are_kept,
    "relative": scores_are_relative,
}


class Probes(list[Probe]):
    """The probes of an exercise: `add("same", inputs, inputs)` adds two.

    Probes that name no other drive and function have the ones given here.
    """

    def __init__(self, drive: Drive = call, function: str = "") -> None:
        self.drive, self.function = drive, function

    def __call__(
        self,
        prop: str,
        *inputs: Inputs,
        drive: Drive | None = None,
        function: str = "",
    ) -> None:
        if function and not drive:
            drive = lambda f, i: (f.tensor(function, **i),)  # noqa: E731
        drive, function = drive or self.drive, function or self.function
        self += [Probe(prop, entry, drive, function) for entry in inputs]

    def from_page(self, prop: str, inputs: Inputs, setup: Setup) -> None:
        """Add a probe of a property of `PAGE_PROPERTIES`. Its outputs are all
        tensors that the property observes, then all that it expects."""

        def drive(solution: Solution, inputs: Inputs) -> Outputs:
            pairs = PAGE_PROPERTIES[prop].pairs(*setup(solution, inputs))
            columns = zip(*(pair[:2] for pair in pairs), strict=True)
            return tuple(map(torch.as_tensor, chain(*columns)))

        self(prop, inputs, drive=drive)

    def dtypes(self, inputs: Inputs, drive: Drive | None = None) -> None:
        """Add probes in float32, bfloat16 and float16."""
        drive = drive or self.drive
        self("dtype", cast(inputs, torch.float32), drive=drive)
        bfloat16 = cast(inputs, torch.bfloat16)
        self("dtype", bfloat16, drive=excuse_errors(drive))
        self.float16("dtype", inputs, drive)

    def float16(
        self, prop: str, inputs: Inputs, drive: Drive | None = None
    ) -> None:
        drive = excuse_errors(drive or self.drive)
        self(prop, cast(inputs, torch.float16), drive=drive)


def excuse_errors(drive: Drive) -> Drive:
    """Return the right outputs where a solution raises an error.

    This is for half precision, in which an error is no wrong result. A
    `SolutionError` is one in any dtype: the solution has returned something
    that cannot be judged.
    """

    def run(solution: Solution, inputs: Inputs) -> Outputs:
        try:
            return drive(solution, inputs)
        except SolutionError:
            raise
        except Exception:
            return drive(reference_solution(solution.name), inputs)

    return run


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Inputs whose floating point tensors have this dtype."""
    return map_floats(value, lambda x: x.to(dtype))


def add_digits(value: Any) -> Any:
    """Inputs with more digits than half precision has."""
    return map_floats(
        value, lambda x: x + torch.arange(x.numel()).sin().view(x.shape) / 16
    )


def map_floats(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Inputs with each floating point tensor changed."""
    if isinstance(value, dict):
        return {name: map_floats(x, change) for name, x in value.items()}
    if isinstance(value, list):
        return [map_floats(x, change) for x in value]
    is_float = isinstance(value, Tensor) and value.is_floating_point()
    return change(value) if is_float else value


def function_of(drive: Drive, *names: str) -> Setup:
    """A setup: a function of the named inputs, then the values of these.

    A list of tensors `(B, K, T, D)` is one value, concatenated along T; the
    function splits it again.
    """

    def setup(solution: Solution, inputs: Inputs) -> tuple[Any, ...]:
        def run(*values: Tensor) -> Tensor:
            changes: Inputs = dict(zip(names, values, strict=True))
            for name in names:
                if isinstance(inputs[name], list):
                    sizes = [part.shape[2] for part in inputs[name]]
                    changes[name] = changes[name].split(sizes, dim=2)
            return concatenate(*drive(solution, inputs | changes))

        values = (inputs[name] for name in names)
        tensors = (
            x if isinstance(x, Tensor) else torch.cat(x, 2) for x in values
        )
        return run, *tensors

    return setup


def concatenate(output: Tensor, *outputs: Tensor) -> Tensor:
    """All outputs along their channels, or the first if shapes differ.

    A log-sum-exp, which has no channels, becomes one channel.
    """
    parts = [x[..., None] if x.dim() < output.dim() else x for x in outputs]
    fit = all(x.shape[:-1] == output.shape[:-1] for x in parts)
    return torch.cat((output, *parts), dim=-1) if parts and fit else output


def function_of_joint(drive: Drive, *names: str) -> Setup:
    """As `function_of`, but the function takes one tensor: the named inputs,
    concatenated along their channels."""

    def setup(solution: Solution, inputs: Inputs) -> tuple[Any, ...]:
        widths = [inputs[name].shape[-1] for name in names]
        run, *values = function_of(drive, *names)(solution, inputs)
        joint = torch.cat(values, dim=-1)
        return lambda x: run(*x.split(widths, dim=-1)), joint

    return setup


def add_padding(setup: Setup, axis: int = 1) -> Setup:
    """A setup whose function takes `valid` `(B, S)` as well, as a mask.

    `axis` is the axis of tokens in the input of the first setup's function.
    """

    def padding_setup(solution: Solution, inputs: Inputs) -> tuple[Any, ...]:
        _, x = setup(solution, inputs)

        def run(x: Tensor, valid: Tensor) -> Tensor:
            mask = valid[:, None, None]
            function, _ = setup(solution, inputs | {"mask": mask})
            out: Tensor = function(x.transpose(1, axis))
            return out.transpose(1, axis)

        return run, x.transpose(1, axis)

    return padding_setup


@cache
def reference_solution(name: str) -> Solution:
    form, *_ = FORMS[name]
    return Solution(name, form.make(load() if form.package else Plain()))


class GraphUse(TorchFunctionMode):
    """What a solution does to the graph of autograd: whether it reads numbers
    of Python, computes without gradients, or makes parameters."""

    METHODS = ("tolist", "item", "numpy", "__float__", "__array__", "tensor")
    reads = pauses = copies = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in self.METHODS:
            leaves = tree_leaves(args[:1])
            tensors = (x for x in leaves if isinstance(x, Tensor))
            self.reads |= any(x.is_floating_point() for x in tensors)
        self.pauses |= not torch.is_grad_enabled()
        self.copies |= any(
            isinstance(x, torch.nn.Parameter) and not x.is_meta for x in args
        )
        return func(*args, **kwargs or {})


def floats_of(inputs: Inputs) -> dict[str, Tensor]:
    """The floating point tensors, those of a list as `outs[0]`."""
    tensors = dict[str, Tensor]()
    for name, value in inputs.items():
        if isinstance(value, list):
            tensors |= {f"{name}[{n}]": x for n, x in enumerate(value)}
        elif isinstance(value, Tensor):
            tensors[name] = value
    return {n: x for n, x in tensors.items() if x.is_floating_point()}


def gradients(drive: Drive) -> Drive:
    """The gradients of the output with respect to all inputs and weights, in
    the order of `floats_of`.

    A solution that computes with numbers of Python or under `no_grad` has none:
    the right ones stand in their place, and it passes. So do those of a weight
    that it has copied into a parameter.
    """

    def compute(
        solution: Solution, inputs: Inputs
    ) -> tuple[Tensor | None, ...]:
        inputs = map_floats(inputs, lambda x: x.clone().requires_grad_())
        leaves = floats_of(inputs)
        # Of what the graph keeps, a cache may write into the memory.
        keep = saved_tensors_hooks(lambda x: x.detach().clone(), lambda x: x)
        with torch.enable_grad(), GraphUse() as use, keep, catch_warnings():
            simplefilter("ignore")  # about a tensor read as a number
            try:
                out, *_ = drive(solution, inputs)
            except Exception:  # .numpy() raises; "same" shows other errors
                return ()
            if use.reads or (use.pauses and not out.requires_grad):
                return ()
            slopes = torch.arange(out.numel()).cos().view(out.shape)
            parts: Any = [None] * len(leaves)
            if out.requires_grad:
                parts = torch.autograd.grad(
                    (out * slopes).sum(), [*leaves.values()], allow_unused=True
                )
        copied = leaves.keys() - TOKENS if use.copies else set()
        return tuple(
            torch.zeros_like(x) if part is None and name not in copied else part
            for (name, x), part in zip(leaves.items(), parts, strict=True)
        )

    def run(solution: Solution, inputs: Inputs) -> Outputs:
        parts: Any = compute(solution, inputs)
        if parts and all(part is not None for part in parts):
            return tuple(parts)
        right: Any = compute(reference_solution(solution.name), inputs)
        pairs = zip(parts or right, right, strict=True)
        return tuple(y if x is None else x for x, y in pairs)

    return run


TOKENS = {"x", "context", "q", "k", "v"}  # inputs that are no weights


class OperationCounts(TorchDispatchMode):
    """Calls `count` with each operation of PyTorch, its arguments and its
    result, and keeps the numbers that it returns."""

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


def fill_with_nan(func: Any, args: Any, out: Any) -> int:
    """Fill new memory with NaN: it may hold numbers of another solution."""
    if "empty" in func.overloadpacket.__name__ and out.is_floating_point():
        out.fill_(torch.nan)
    return 0


def compare_usage(usage: float, limit: float) -> Outputs:
    """The outputs of a property that has a unit."""
    limit_tensor = torch.tensor([float(limit)])
    return torch.tensor([float(usage)]).maximum(limit_tensor), limit_tensor


# --------------------------------------------------------- softmax and masks

ROW_OFFSETS = 900 * torch.tensor([[0.0], [1.0], [-1.0]], dtype=torch.float64)


def weight_sums(drive: Drive, factor: int = 200) -> Drive:
    """By how much the sums of the weights miss 1, times `factor`.

    If all values are 1, the outputs of attention are these sums. The factor is
    there because the tolerance is large: the solution may compute in float32,
    and a sum of four roundings passes. One score of a row is far above the
    others, which shows best a number that is added to the denominator.
    """

    def run(solution: Solution, inputs: Inputs) -> Outputs:
        out = drive(solution, inputs)[0]
        is_attention = "v" in inputs
        total = out[..., :1] if is_attention else out.sum(-1, keepdim=True)
        error = factor * (total - 1)
        return error, total, torch.zeros_like(total), total

    return run


def softmax_probes() -> list[Probe]:
    draw, add = Draw(1), Probes()
    for shape, dim in (
        *(((2,), -1), ((2, 3), -1), ((3, 3), 0), ((5, 1), -1)),
        *(((3, 5, 7), 1), ((3, 5, 7), -1), ((3, 5, 7), 0)),
        *(((2, 3, 5, 7), -2), ((3, 67), -1)),
    ):
        add("same", {"x": draw(*shape), "dim": dim})
    add("same", {"x": draw(3, 3, 3)})
    x = draw(3, 5, limit=40)
    add("large", *({"x": y} for y in (x + 800, x - 5000, x + ROW_OFFSETS)))
    add("large", {"x": 100 * x, "dim": 0})
    masked = x.masked_fill(x > 4, -torch.inf)
    add("large", {"x": masked, "dim": -1})
    add("gradients", {"x": masked, "dim": -1}, drive=gradients(call))
    empty = masked.clone()
    empty[1] = -torch.inf
    add("empty", {"x": empty, "dim": -1}, {"x": empty.mT, "dim": 0})
    add("sums", {"x": 100 * x, "dim": -1}, drive=weight_sums(call))
    long_rows = cast({"x": draw(2, 601, limit=1)}, torch.bfloat16)
    add("sums", long_rows, drive=excuse_errors(weight_sums(call, 1)))
    add.dtypes({"x": draw(3, 11, limit=60), "dim": -1})
    add.float16("empty", {"x": empty, "dim": -1})
    return add


REDUCTIONS = {"amax", "aminmax", "max", "sum", "mean", "sort", "topk", "cummax"}
REDUCTIONS |= {"logsumexp", "_logcumsumexp", "logcumsumexp", "cumsum"}
REDUCTIONS |= {"_softmax", "_log_softmax", "_safe_softmax", "mv", "mm", "dot"}


def reduction_sizes(solution: Solution, inputs: Inputs) -> Outputs:
    """The most scores that one sum or maximum takes."""

    def count(func: Any, args: Any, out: Any) -> int:
        if func.overloadpacket.__name__ not in REDUCTIONS:
            return 0
        return args[0].numel() if args[0].is_floating_point() else 0

    with OperationCounts(count) as operations:
        solution.tensor(**inputs)
    return compare_usage(max(operations.counts), 2 * inputs["chunk"])


def online_probes() -> list[Probe]:
    draw, add = Draw(2), Probes()
    multiples = torch.arange(3.0, dtype=torch.float64)[:, None] * draw(1, 7)
    x = draw(3, 7, limit=40)
    masked = x.clone()
    masked[:, :3] = -torch.inf
    empty = masked.clone()
    empty[1] = -torch.inf
    for prop, scores, chunk in (
        ("same", draw(2), 1),
        ("same", draw(2, 3), 2),
        ("same", draw(7).sort().values, 2),
        ("same", draw(7).sort(descending=True).values, 3),
        ("same", multiples, 7),
        ("same", draw(3, 5, 7), 9),
        ("same", draw(3, 67), 5),
        ("large", 50 * x + 900, 2),
        ("large", x - 5000, 2),
        ("large", x + ROW_OFFSETS, 3),
        ("large", masked, 2),
        ("large", masked.flip(1), 2),
        ("empty", empty, 2),
    ):
        add(prop, {"x": scores, "chunk": chunk})
    add("gradients", {"x": x, "chunk": 2}, drive=gradients(call))
    add("pieces", {"x": draw(61), "chunk": 7}, drive=reduction_sizes)
    add("sums", {"x": 100 * x, "chunk": 3}, drive=weight_sums(call))
    long_rows = cast({"x": draw(2, 601, limit=1)}, torch.bfloat16)
    drive = excuse_errors(weight_sums(call, 1))
    add("sums", long_rows | {"chunk": 7}, drive=drive)
    add.dtypes({"x": draw(3, 11, limit=60), "chunk": 4})
    add.float16("empty", {"x": empty, "chunk": 2})
    return add


def masks_probes() -> list[Probe]:
    add = Probes()

    def add_scores(function: str, H: int, **inputs: Tensor) -> None:
        """Judge what the mask hides of scores `(B, H, S, S)`."""
        (name,) = inputs

        def drive(solution: Solution, inputs: Inputs) -> Outputs:
            mask = solution.tensor(function, **{name: inputs[name]})
            B, S = inputs[name].shape
            try:
                return (mask.broadcast_to(B, H, S, S),)
            except RuntimeError:
                sizes = {"sizes": tuple(mask.shape), "scores": (B, H, S, S)}
                raise SolutionError(
                    "broadcast", function=function, **sizes
                ) from None

        entry = inputs | {"n_heads": H}
        add("same", entry, drive=drive, function=function)

    for T, S in ((1, 1), (2, 2), (1, 3), (3, 3), (2, 5), (17, 67)):
        add("same", {"T": T, "S": S}, function="causal_mask")
    for B, S, H in ((1, 2, 1), (2, 3, 2), (3, 3, 2), (3, 3, 3), (3, 5, 2)):
        valid = left_pads(B, S) if B > 1 else left_pads(2, S)[:1]
        for pads in (valid, valid.flip(1)):
            add_scores("padding_mask", H, valid=pads)
    sizes = ((2, 2, 1), (3, 3, 2), (1, 4, 2), (2, 5, 3), (2, 3, 7), (7, 7, 7))
    for T, S, size in (*sizes, (17, 67, 11)):
        add("same", {"T": T, "S": S, "size": size}, function="window_mask")
    documents = [[0, 0, 1, 1, 1], [0, 1, 2, 2, 0], [3, 3, 3, 3, 3]]
    for ids, H in (([[0, 1]], 1), (documents, 2), (documents, 3)):
        add_scores("document_mask", H, ids=torch.tensor(ids))
    return add


# ------------------------------------------------------------------- cores


def qkv(draw: Draw, *sizes: int, limit: int = 12) -> Inputs:
    """q, k and v; `sizes` are B, H, T, S, D, Dv."""
    B, H, T, S, D, Dv = sizes
    q, k = draw(B, H, T, D, limit=limit), draw(B, H, S, D, limit=limit)
    return {"q": q, "k": k, "v": draw(B, H, S, Dv)}


def core_probes(drive: Drive = call) -> list[Probe]:
    draw, add = Draw(3), Probes(drive)
    triangle = {"mask": causal(3, 3)}
    add("same", qkv(draw, 1, 1, 1, 2, 2, 1), qkv(draw, 1, 1, 2, 3, 2, 2))
    add("same", qkv(draw, 1, 1, 3, 3, 2, 2) | triangle)
    sizes = 3, 2, 5, 7, 4, 3
    add("same", add_digits(qkv(draw, *sizes)) | {"mask": None})
    add("same", qkv(draw, 3, 2, 5, 7, 3, 4), qkv(draw, 1, 2, 7, 1, 3, 4))
    cube, base = qkv(draw, 3, 3, 3, 3, 3, 3), qkv(draw, *sizes)
    add("same", cube | triangle)
    pads = left_pads(3, 7)[:, None, None]
    masks = [draw.mask(B, H, 5, 7) for B, H in ((3, 1), (3, 2), (1, 2))]
    for mask in (causal(5, 7), pads, *masks):
        add("same", base | {"mask": mask})
    square = left_pads(3, 3)[:, None, None] & causal(3, 3)
    add("same", cube | {"mask": square | torch.eye(3, dtype=torch.bool)})
    row = {name: x[:1] for name, x in base.items()}
    add("same", row | {"mask": masks[2]})
    many_keys = qkv(draw, 3, 2, 1, 67, 5, 4)
    add("same", many_keys | {"mask": draw.mask(3, 1, 1, 67)})
    many_tokens = qkv(draw, 1, 2, 131, 97, 3, 4)
    add("same", many_tokens, many_tokens | {"mask": draw.mask(1, 2, 131, 97)})
    # Pads on the left: under a causal mask, their queries see no key.
    empty = left_pads(3, 5)[:, None, None] & causal(5, 5)
    five = qkv(draw, 3, 2, 5, 5, 4, 3) | {"mask": empty}
    uneven = draw.mask(3, 2, 5, 5) & empty.flip(-2, -1)
    add("empty", five, five | {"mask": uneven})
    large = base | {"q": 128 * base["q"], "mask": causal(5, 7)}
    # Scores of visible keys are far below zero, scores of hidden ones above.
    k = base["k"].abs() + 1
    late = (torch.arange(7) >= torch.tensor([[1], [5], [0]]))[:, None, None]
    low = {"q": 2**16 * (base["q"].abs() + 1), "k": k.where(~late.mT, -k)}
    add("large", large, base | low | {"mask": late})
    tokens = function_of_joint(drive, "k", "v")
    five_causal = five | {"mask": causal(5, 5)}
    add.from_page("future", five_causal, tokens)
    queries_as_keys = base | {"q": base["k"], "mask": pads}
    add.from_page("pads", queries_as_keys, add_padding(tokens, 2))
    rows = function_of(drive, "q", "k", "v", "mask")
    add.from_page("rows", base | {"mask": masks[0]}, rows)
    add.from_page("heads", base, function_of(drive, "q", "k", "v"))
    add("gradients", five, base | {"mask": masks[1]}, drive=gradients(drive))
    ones = {"q": 1024 * base["q"], "v": torch.ones_like(base["v"])}
    add("sums", base | ones, drive=weight_sums(drive))
    mild = qkv(draw, *sizes, limit=4) | {"mask": causal(5, 7)}
    add.dtypes(mild)
    mild = qkv(draw, 3, 2, 5, 5, 4, 3, limit=4)
    add.float16("empty", mild | {"mask": empty})
    return add


def call_for_pair(solution: Solution, inputs: Inputs) -> Outputs:
    """The output and the log-sum-exp, which may be in float32: it is judged in
    the dtype of the output."""
    out, lse = solution.pair(**inputs)
    is_lse = require_tensor(lse).dim() < out.dim()
    return out, lse.to(out.dtype) if is_lse else lse


def tensor_sizes(solution: Solution, inputs: Inputs) -> Outputs:
    """The most elements that a new tensor has."""

    def count(func: Any, args: Any, out: Any) -> int:
        tensors = (x for x in tree_leaves(out) if isinstance(x, Tensor))
        sizes = (x.numel() for x in tensors if x.is_floating_point())
        return 0 if func.is_view else max(sizes, default=0)

    with OperationCounts(count) as operations:
        solution.pair(**inputs)
    n_scores = inputs["q"].numel() * inputs["k"].numel()  # D is 1
    return compare_usage(max(operations.counts), n_scores / 8)


def flash_probes() -> list[Probe]:
    add = Probes(call_for_pair)
    for n, (prop, inputs, drive, _) in enumerate(core_probes(call_for_pair)):
        tile = (1, 1), (2, 3), (8, 8), (5, 2)
        options = {"tile": tile[n % 5 - 1]} if n % 5 and prop != "large" else {}
        if len(inputs["q"][0, 0]) > 99:
            options = {"tile": (32, 24)}
        if prop != "gradients":
            add(prop, inputs | options, drive=drive)
    # No tile is hidden as a whole: a solution may skip it.
    draw = Draw(18)
    mild = qkv(draw, 3, 2, 5, 7, 4, 3, limit=4) | {"tile": (2, 3)}
    mild["mask"] = draw.mask(3, 2, 5, 7)
    add("gradients", mild, drive=gradients(call_for_pair))
    narrow = qkv(Draw(12), 1, 1, 16, 128, 1, 1) | {"tile": (4, 8)}
    add("tiles", narrow, drive=tensor_sizes)
    return add


def merge_probes() -> list[Probe]:
    draw, add = Draw(4), Probes(call_for_pair)

    def make(n: int, *sizes: int) -> Inputs:
        outs = [draw(*sizes) for _ in range(n)]
        return {"outs": outs, "lses": [draw(*sizes[:-1]) for _ in range(n)]}

    add("same", make(2, 1, 1, 1, 1), make(1, 1, 1, 2, 2))
    add("same", make(2, 3, 2, 5, 4), make(3, 3, 3, 3, 3))
    add("same", make(5, 3, 2, 1, 4), add_digits(make(17, 3, 2, 7, 4)))
    base = make(3, 3, 2, 5, 4)
    for offset in (800, -800):
        large = [offset + 40 * lse for lse in base["lses"]]
        add("large", base | {"lses": large})
    offsets = 800 * torch.arange(5.0, dtype=torch.float64)  # one per query
    add("large", base | {"lses": [lse - offsets for lse in base["lses"]]})
    lses = [lse.clone() for lse in base["lses"]]
    lses[0][:, :, :3] = lses[1][:, :, 2:] = -torch.inf
    for out, lse in zip(base["outs"], lses, strict=True):
        out[lse == -torch.inf] = 0
    add("same", base | {"lses": lses})
    lses = [lse.clone() for lse in lses]
    lses[2][:, 0] = -torch.inf
    add("empty", base | {"lses": lses})
    add.from_page("rows", base, function_of(call_for_pair, "outs", "lses"))
    add("gradients", base, drive=gradients(call_for_pair))
    add.dtypes(make(3, 3, 2, 5, 4))
    return add


def rope_probes() -> list[Probe]:
    draw, add = Draw(5), Probes()

    def place(x: Tensor, start: int, **options: float) -> Inputs:
        positions = torch.arange(start, start + x.shape[2])
        return {"x": x, "positions": positions} | options

    add("same", place(draw(1, 1, 2, 2), 0), place(draw(1, 1, 2, 4), 1))
    add("same", place(draw(3, 2, 5, 8), 0))
    add("same", place(draw(3, 2, 4, 6), 11, theta=50.0))
    add("same", place(draw(3, 3, 4, 4), 0, theta=50.0))
    add("same", place(draw(3, 4, 4, 6), 1))
    add("same", place(draw(3, 2, 1, 16), 7, theta=5e5))
    unsorted, large = [3, 0, 7, 7, 61], [2053, 0, 4099, 511, 30011]
    add("same", {"x": draw(3, 2, 5, 8), "positions": torch.tensor(unsorted)})

    def call_beside_right(solution: Solution, inputs: Inputs) -> Outputs:
        right = reference_solution("rope")
        return solution.tensor(**inputs), right.tensor(**inputs)

    entry = {"x": draw(3, 2, 5, 4), "positions": torch.tensor(large)}
    add("far", entry, drive=call_beside_right)

    base = place(draw(3, 2, 5, 8), 3)
    both = function_of(call, "x", "positions")
    add.from_page("norm", base, both)
    add.from_page("relative", base, both)
    add.from_page("rows", base, function_of(call, "x"))
    add("gradients", base, drive=gradients(call))
    add.dtypes(place(draw(3, 2, 5, 8), 300))
    return add


def scaling_probes() -> list[Probe]:
    add = Probes()

    def call_for_logarithms(
        function: str, solution: Solution, inputs: Inputs
    ) -> Outputs:
        """In logarithms, small frequencies count as much as large ones."""
        if function != "yarn":
            return (solution.tensor(function, **inputs).log(),)
        frequencies, factor = solution.pair(function, **inputs)
        return frequencies.log(), torch.as_tensor(factor).double().view(1)

    def add_scaling(
        function: str, D: int, base: float, prop: str = "same", **options: Any
    ) -> None:
        f = base ** (-torch.arange(0, D, 2).double() / D)
        inputs: Inputs = {"f": f} | options
        drive = partial(call_for_logarithms, function)
        add(prop, inputs, drive=drive, function=function)

    for D, base, factor in ((4, 1e4, 2.0), (8, 1e4, 8.0), (64, 5e5, 32.0)):
        add_scaling("linear", D, base, factor=factor)
        add_scaling("ntk", D, base, factor=factor)
        add_scaling("llama3", D, base, factor=factor, length=256 * D)
        add_scaling("yarn", D, base, factor=factor, length=256 * D)
    add_scaling("llama3", 128, 5e5, factor=8.0, length=8192, low=2.0, high=5.0)
    turns: dict[str, Any] = {"fast": 16.0, "slow": 2.0}
    add_scaling("yarn", 64, 1.5e5, factor=32.0, length=4096, **turns)
    # The ramp begins before the first frequency.
    add_scaling("yarn", 16, 1e4, factor=4.0, length=100)
    # The ramp of Kimi K2, and a ramp without width.
    add_scaling("yarn", 64, 5e4, "step", factor=64.0, length=4096, fast=1.0)
    add_scaling("yarn", 16, 1e4, "step", factor=4.0, length=6, fast=1.0)
    return add


def sinks_probes() -> list[Probe]:
    draw, add = Draw(13), Probes(call, "attention_with_sinks")
    for T, S, first, window in (
        *((2, 2, 0, 1), (3, 3, 1, 1), (1, 6, 2, 3), (9, 9, 2, 3)),
        *((4, 7, 3, 2), (5, 5, 4, 4), (3, 11, 0, 4)),
    ):
        sizes = {"T": T, "S": S, "first": first, "window": window}
        add("same", sizes, function="streaming_mask")
    for prop, inputs, drive, _ in core_probes():
        if prop != "sums":  # the weights of the keys alone sum to less than 1
            q = inputs["q"]
            sinks = draw(q.shape[1]).to(q)
            add(prop, inputs | {"sinks": sinks}, drive=drive)
    base = qkv(draw, 3, 2, 5, 7, 4, 3) | {"sinks": draw(2)}
    large = cast(base | {"sinks": torch.tensor([100.0, -100.0])}, torch.float32)
    add("gradients", base, large, drive=gradients(call))
    return add


def alibi_probes() -> list[Probe]:
    draw, add = Draw(15), Probes(call, "biased_attention")

    def add_doubles(function: str, inputs: Inputs) -> None:
        drive = lambda f, i: (f.tensor(function, **i).double(),)  # noqa: E731
        add("same", inputs, drive=drive, function=function)

    for H in (1, 2, 8, 6, 12, 40):
        add_doubles("slopes", {"n_heads": H})
    for H, T, S in ((1, 1, 2), (2, 3, None), (4, 2, 7), (12, 5, 5), (8, 1, 67)):
        add_doubles("alibi", {"n_heads": H, "T": T, "S": S})
    for n, (prop, inputs, drive, _) in enumerate(core_probes()):
        q, S = inputs["q"], inputs["k"].shape[2]
        bias = draw(*q.shape[1:3], S).to(q) if n % 4 in (1, 3) else None
        # Under a cap no score decides, and a sum in float32 rounds more.
        cap = 3.0 if n % 4 in (2, 3) and prop != "sums" else None
        add(prop, inputs | {"bias": bias, "softcap": cap}, drive=drive)
    return add


def order_probes() -> list[Probe]:
    draw, add = Draw(16), Probes()
    tokens = "q", "k", "v", "gate"

    def make(B: int, H: int, T: int, D: int, limit: int = 8) -> Inputs:
        inputs: Inputs = {x: draw(B, H, T, D, limit=limit) for x in tokens}
        inputs |= {"q_weight": draw(D) + 2.5, "k_weight": draw(D) + 2.5}
        inputs |= {"positions": 3 * torch.arange(T) + 7, "softcap": 3.0}
        return inputs | {"sinks": draw(H), "mask": causal(T, T)}

    add("same", make(1, 1, 1, 2), make(1, 1, 2, 2), make(1, 2, 3, 4))
    base = make(3, 2, 5, 6)
    add("same", base, make(3, 3, 3, 4) | {"softcap": 50.0}, make(2, 4, 23, 8))
    tiny = {name: base[name] / 1000 for name in ("q", "k")}  # next to eps
    add("same", base | tiny)
    masks = [draw.mask(B, H, 5, 5) for B, H in ((3, 1), (3, 2), (1, 2))]
    add("same", *(base | {"mask": mask} for mask in masks))
    pads = left_pads(3, 5)[:, None, None]
    add("empty", base | {"mask": pads & causal(5, 5)})
    high_cap = {"positions": torch.arange(5), "softcap": 1e3}
    add("large", base | high_cap | {"q_weight": 64 * base["q_weight"]})
    add.from_page("future", base, function_of_joint(call, *tokens))
    keys = add_padding(function_of_joint(call, "k", "v"), 2)
    add.from_page("pads", base | {"mask": pads}, keys)
    rows = function_of(call, *tokens, "mask")
    add.from_page("rows", base | {"mask": masks[0]}, rows)
    add.from_page("heads", base, function_of(call, *tokens))
    add("gradients", make(3, 2, 5, 6, limit=4), drive=gradients(call))
    add.dtypes(make(3, 2, 5, 6, limit=4))
    return add


# ------------------------------------------------------------------ layers


def layer_inputs(draw: Draw, *sizes: int, limit: int = 3) -> Inputs:
    """x and the weights of a layer; `sizes` are B, T, E, H, K."""
    B, T, E, H, K = sizes
    width = K * E // H
    inputs: Inputs = {"x": draw(B, T, E)}
    for name, rows in (("w_q", E), ("w_k", width), ("w_v", width), ("w_o", E)):
        inputs[name] = draw(rows, E, limit=limit)
    return inputs | {"n_heads": H}


def lower_scores(inputs: Inputs, tokens: str = "x") -> Inputs:
    """Inputs whose scores are far below zero, and exact in float32."""
    low = {name: inputs[name].abs() + 1 for name in ("x", tokens)}
    low |= {"w_q": 2**12 * inputs["w_q"].abs(), "w_k": -inputs["w_k"].abs()}
    return inputs | low


def heads_of_layer(solution: Solution, inputs: Inputs) -> tuple[Any, ...]:
    """A setup: a function of the heads' query weights, then these weights. It
    returns the heads' outputs, for inputs whose `w_o` is the identity."""
    H = inputs["n_heads"]

    def run(w_q: Tensor) -> Tensor:
        out = solution.tensor(**inputs | {"w_q": w_q[0].flatten(0, 1)})
        heads: Tensor = out.unflatten(-1, (H, -1))
        return heads.transpose(1, 2)

    return run, inputs["w_q"].unflatten(0, (H, -1))[None]


def layer_probes(kv_heads: dict[int, int], *, gqa: bool) -> list[Probe]:
    """The probes of mha, mqa and gqa; `kv_heads` says how many key/value heads
    a layer with so many query heads has."""
    draw, add = Draw(6), Probes()

    def make(B: int, T: int, E: int, H: int, limit: int = 3) -> Inputs:
        K = kv_heads[H]
        inputs = layer_inputs(draw, B, T, E, H, K, limit=limit)
        return inputs | ({"n_kv_heads": K} if gqa else {})

    add("same", make(1, 1, 2, 1), make(1, 2, 2, 1), make(1, 2, 4, 2))
    add("same", make(1, 2, 4, 2) | {"mask": causal(2, 2)}, make(1, 2, 4, 4))
    base, cube = make(3, 5, 12, 6), make(3, 3, 12, 3)
    five, three = causal(5, 5), causal(3, 3)
    pads = left_pads(3, 5)[:, None, None]
    masks = [draw.mask(B, H, 5, 5) for B, H in ((3, 1), (3, 6), (1, 6))]
    add("same", add_digits(base) | {"mask": None})
    for mask in (five, pads, *masks):
        add("same", base | {"mask": mask})
    add("same", base | {"x": base["x"][:1], "mask": masks[2]})
    many_tokens = make(1, 300, 16, 2)
    add("same", many_tokens, many_tokens | {"mask": causal(300, 300)})
    right_pads = left_pads(3, 3).flip(1)[:, None, None]
    add("same", cube | {"mask": three}, cube | {"mask": right_pads & three})
    add("same", make(3, 17, 40, 8) | {"mask": causal(17, 17)})
    add("empty", *(base | {"mask": mask & five} for mask in (pads, masks[1])))
    add("large", base | {"w_q": 64 * base["w_q"], "mask": five})
    add("large", lower_scores(cube) | {"mask": three})
    tokens = function_of(call, "x")
    add.from_page("future", base | {"mask": five}, tokens)
    add.from_page("pads", base | {"mask": pads}, add_padding(tokens))
    rows = function_of(call, "x", "mask")
    add.from_page("rows", base | {"mask": masks[0]}, rows)
    identity = {"w_o": torch.eye(12, dtype=torch.float64)}
    add.from_page("heads", base | identity, heads_of_layer)
    mild = make(3, 5, 12, 6, limit=2)
    slopes = gradients(call)
    add("gradients", mild | {"mask": five}, drive=slopes)
    add("gradients", mild | {"mask": pads & five}, drive=slopes)
    add.dtypes(mild | {"mask": five})
    return add


def cross_probes() -> list[Probe]:
    draw, add = Draw(7), Probes()

    def make(*sizes: int, limit: int = 3) -> Inputs:
        B, T, S, E, C, H = sizes
        inputs: Inputs = {"x": draw(B, T, E), "context": draw(B, S, C)}
        for name, width in (("w_q", E), ("w_k", C), ("w_v", C), ("w_o", E)):
            inputs[name] = draw(E, width, limit=limit)
        return inputs | {"n_heads": H}

    add("same", make(1, 1, 1, 2, 2, 1), make(1, 1, 2, 2, 2, 1))
    base, cube = make(3, 5, 7, 12, 4, 6), make(3, 3, 3, 12, 12, 3)
    add("same", make(1, 2, 3, 4, 2, 2), add_digits(base) | {"mask": None}, cube)
    add("same", make(3, 5, 5, 12, 12, 3), make(3, 23, 17, 20, 6, 4))
    pads = left_pads(3, 7)[:, None, None]
    shared_mask, mask_per_head = draw.mask(3, 1, 5, 7), draw.mask(3, 6, 5, 7)
    masks = pads, pads.flip(3), shared_mask, mask_per_head, causal(5, 7)
    add("same", *(base | {"mask": mask} for mask in masks))
    row = {name: base[name][:1] for name in ("x", "context")}
    add("same", base | row | {"mask": mask_per_head[:1]})
    three = {"mask": left_pads(3, 3)[:, None, None]}
    add("same", cube | three)
    add("large", base | {"w_q": 256 * base["w_q"], "mask": shared_mask})
    add("large", lower_scores(cube, "context") | three)
    queries = left_pads(3, 5)[:, None, :, None]
    add("empty", base | {"mask": pads & queries})
    add("empty", base | {"mask": mask_per_head & queries & pads})
    seven = {"x": base["x"][:, [0, 1, 2, 3, 4, 0, 1]], "mask": pads}
    context = add_padding(function_of(call, "context"))
    add.from_page("pads", base | seven, context)
    add.from_page("tokens", base, function_of(call, "x"))
    rows = function_of(call, "x", "context", "mask")
    add.from_page("rows", base | {"mask": shared_mask}, rows)
    mild = make(3, 5, 7, 12, 4, 6, limit=2) | {"mask": pads}
    add("gradients", mild, drive=gradients(call))
    add.dtypes(mild)
    return add


# ------------------------------------------------------------------ caches


def call_in_chunks(*lengths: int) -> Drive:
    """Calls with so many tokens each, whose outputs are concatenated."""

    def run(solution: Solution, inputs: Inputs) -> Outputs:
        cache, outs = None, []
        for n, x in enumerate(inputs["x"].split(lengths, dim=1)):
            entry = inputs | {"x": x} | ({"cache": cache} if n else {})
            out, cache = solution.pair(**entry)
            outs.append(out)
        return (torch.cat(outs, dim=1),)

    return run


def call_for_output(solution: Solution, inputs: Inputs) -> Outputs:
    """The output of a function that returns a cache, too."""
    return (solution.pair(**inputs)[0],)


def call_for_training(solution: Solution, inputs: Inputs) -> Outputs:
    """In two chunks; at once if the cache keeps no graph of the first: it is
    meant for decoding."""
    _, cache = solution.pair(**inputs | {"x": inputs["x"][:, :4]})
    keeps_graph = any(x.requires_grad for x in stored_tensors(cache))
    drive = call_in_chunks(4, 1) if keeps_graph else call_for_output
    return drive(solution, inputs)


def decoder(solution: Solution, inputs: Inputs) -> tuple[Any, ...]:
    """A setup: the function as a layer that fills a cache, a function that
    makes an empty cache, and x."""

    def run(x: Tensor, cache: dict[str, Any] | None = None) -> Tensor:
        past = None if cache is None else cache.get("past")
        out, past = solution.pair(**inputs | {"x": x, "cache": past})
        if cache is not None:
            cache["past"] = past
        return require_tensor(out)

    return run, dict, inputs["x"]


def call_far(solution: Solution, inputs: Inputs) -> Outputs:
    """The last outputs of 4,100 tokens; of 503 if the solution loops over
    tokens."""

    def count_operations(T: int) -> int:
        with OperationCounts(lambda *_: 1) as operations:
            solution.pair(**inputs | {"x": inputs["x"][:, :T]})
        return sum(operations.counts)

    x = inputs["x"]
    loops = count_operations(23) > 2 * count_operations(7)
    T = 503 if loops else x.shape[1]
    out = last_outputs(solution, inputs, T)
    return out, right_last_outputs(solution.name, T, x.dtype)


def last_outputs(solution: Solution, inputs: Inputs, T: int) -> Tensor:
    lengths = (*(512,) * ((T - 3) // 512), (T - 3) % 512, 3)
    inputs = inputs | {"x": inputs["x"][:, :T]}
    return call_in_chunks(*lengths)(solution, inputs)[0][:, -5:]


@cache
def right_last_outputs(name: str, T: int, dtype: torch.dtype) -> Tensor:
    probes = EXERCISES[name].make_probes()
    entries = (p.inputs for p in probes if p.prop == "far")
    inputs = next(entry for entry in entries if entry["x"].dtype == dtype)
    return last_outputs(reference_solution(name), inputs, T)


def cached_probes(
    make: Callable[..., Inputs], floats_per_token: Callable[[Inputs], int]
) -> Probes:
    """The probes of layers with a cache of keys and values, or of latents.

    `make(B, T, limit)` makes inputs with weights up to limit/4, `make(B, T,
    small=True)` those of a narrow layer. `floats_per_token` says how many
    numbers the cache needs for a token.
    """
    add = Probes(call_for_output)
    add("same", *(make(1, T, small=True) for T in (1, 2)))
    tiny = make(1, 2, small=True)
    add.from_page("chunks", tiny | {"x": tiny["x"][:, [0, 1, 0]]}, decoder)
    cube, base = make(3, 3), make(3, 5)
    H = cube["n_heads"]
    add("same", cube | {"cache": None}, make(H, H), base)
    without_theta = {name: base[name] for name in base if name != "theta"}
    drive = call_in_chunks(1, 1, 1, 1, 1)
    add("same", add_digits(without_theta), drive=drive)
    add.from_page("chunks", base, decoder)
    add("same", make(2, 23), drive=call_in_chunks(17, 1, 5))
    add.from_page("future", base, function_of(call_for_output, "x"))
    add.from_page("rows", base, function_of(call_in_chunks(4, 1), "x"))
    add.from_page("apart", base, decoder)
    large = cast(base, torch.float32)
    large |= {"w_q": 64 * large["w_q"]}
    add("large", large, drive=call_in_chunks(4, 1))

    def measure_cache(solution: Solution, inputs: Inputs) -> Outputs:
        """The floats per token that the cache stores after the first five: an
        average over many tokens, since a buffer has room for several."""
        x, *parts = inputs["x"].split((5, 19, 1, 1, 38), dim=1)
        with OperationCounts(fill_with_nan):
            _, cache = solution.pair(**inputs | {"x": x})
            before = {key: t.clone() for key, t in stored_floats(cache).items()}
            for x in parts:
                _, cache = solution.pair(**inputs | {"x": x, "cache": cache})
        usage = count_growth(before, stored_floats(cache)) / 59
        limit = floats_per_token(inputs)
        # It may be twice the limit: a buffer that was just doubled has room.
        return compare_usage(usage if usage >= 2 * limit else 0, limit)

    add("small", make(1, 64), drive=measure_cache)
    many_tokens = cast(make(1, 4100, small=True), torch.float32)
    many_tokens["x"][:, :2] *= 8  # a window that loses them is noticed
    many_tokens.pop("theta", None)
    add("far", many_tokens, drive=call_far)
    mild = make(3, 5, limit=2)
    add("gradients", mild, drive=gradients(call_for_training))
    add.dtypes(mild, drive=call_in_chunks(4, 1))
    return add


def cached_layer_probes(H: int, K: int) -> list[Probe]:
    """The probes of MHA with a cache (H equals K), or of Llama's layer."""
    draw = Draw(8)
    options: Inputs = {} if H == K else {"n_kv_heads": K, "theta": 50.0}
    single: Inputs = {"n_kv_heads": 1} if options else {}

    def make(B: int, T: int, limit: int = 3, *, small: bool = False) -> Inputs:
        if small:
            inputs = layer_inputs(draw, B, T, 4, 2, 1 if options else 2)
            return inputs | options | single
        return layer_inputs(draw, B, T, 4 * H, H, K, limit=limit) | options

    add = cached_probes(make, lambda inputs: 2 * len(inputs["w_k"]))
    if options:  # bfloat16, with its 8 bits, holds no angle of 2,000 tokens
        many_tokens = layer_inputs(draw, 1, 2053, 8, 1, 1) | options | single
        drive = excuse_errors(call_far)
        add("far", cast(many_tokens, torch.bfloat16), drive=drive)
    return add


def mla_inputs(draw: Draw, *sizes: int, limit: int = 3) -> Inputs:
    """x and the weights of MLA; `sizes` are B, T, E, H, R, Dn, Dr, Dv."""
    B, T, E, H, R, Dn, Dr, Dv = sizes
    return {
        "x": draw(B, T, E),
        "w_q": draw(H * (Dn + Dr), E, limit=limit),
        "w_kv_a": draw(R + Dr, E, limit=limit),
        "w_norm": draw(R) + 2.5,
        "w_kv_b": draw(H * (Dn + Dv), R, limit=limit),
        "w_o": draw(E, H * Dv, limit=limit),
        "n_heads": H,
        "theta": 50.0,
    }


def mla_probes(*, absorbed: bool) -> list[Probe]:
    draw = Draw(9)

    def make(B: int, T: int, limit: int = 3, *, small: bool = False) -> Inputs:
        # Dn and Dr are even: code like DeepSeek's has complex numbers.
        sizes = (2, 1, 2, 2, 2, 1) if small else (23, 5, 8, 6, 4, 7)
        return mla_inputs(draw, B, T, *sizes, limit=limit)

    add = cached_probes(make, lambda inputs: len(inputs["w_kv_a"]))
    tiny = make(3, 5)
    add("same", tiny | {"x": tiny["x"] / 4096})  # as small as eps

    def decode_flops(solution: Solution, inputs: Inputs) -> Outputs:
        """The FLOPs of one decoding step. The limit is half of the FLOPs that
        expanding all keys and values needs."""
        x = inputs["x"]
        _, cache = solution.pair(**inputs | {"x": x[:, :-1]})

        def count(func: Any, args: Any, out: Any) -> int:
            formula = flop_registry.get(func.overloadpacket)
            return formula(*args, out_val=out) if formula else 0

        with OperationCounts(count) as operations:
            solution.pair(**inputs | {"x": x[:, -1:], "cache": cache})
        limit = 128 * inputs["w_kv_b"].numel()
        return compare_usage(sum(operations.counts), limit)

    if absorbed:
        inputs = mla_inputs(draw, 1, 128, 8, 4, 6, 16, 2, 16)
        add("absorbed", inputs, drive=decode_flops)
    return add


def real_outputs(solution: Solution, inputs: Inputs) -> Outputs:
    """For each row, the outputs of its real tokens, read in three calls."""
    x, valid, cache, outs = inputs["x"], inputs["valid"], None, list[Tensor]()
    for part in (slice(0, 4), slice(4, 5), slice(5, None)):
        entry = {"x": x[:, part], "valid": valid[:, part], "cache": cache}
        out, cache = solution.pair(**inputs | entry)
        outs.append(out)
    rows = zip(torch.cat(outs, dim=1), valid, strict=True)
    return tuple(out[real] for out, real in rows)


def compare_rows_alone(solution: Solution, inputs: Inputs) -> Outputs:
    """The outputs of rows with pads, then the outputs of rows without them."""
    rows = zip(inputs["x"], inputs["valid"], strict=True)
    options = {name: inputs[name] for name in inputs if name != "valid"}
    outs = (
        solution.pair(**options | {"x": x[real][None]})[0][0]
        for x, real in rows
    )
    return *real_outputs(solution, inputs), *outs


def gated_delta_probes() -> list[Probe]:
    draw, add = Draw(17), Probes(call_for_output)

    def make(B: int, T: int, *sizes: int, limit: int = 3) -> Inputs:
        """`sizes` are E, the key heads, the value heads and both widths."""
        E, K, H, D, Dv = sizes or (6, 2, 4, 3, 5)
        C = 2 * K * D + H * Dv
        inputs = {"x": draw(B, T, E), "w_qkv": draw(C, E, limit=limit)}
        inputs |= {"w_z": draw(H * Dv, E, limit=limit)}
        inputs |= {"w_b": draw(H, E, limit=2), "w_a": draw(H, E, limit=1)}
        inputs |= {"w_conv": draw(C, 4, limit=limit)}
        inputs |= {"A_log": draw(H, limit=4) - 2, "dt_bias": draw(H, limit=4)}
        inputs |= {"w_norm": draw(Dv) + 2.5}
        inputs |= {"w_o": draw(E, H * Dv, limit=limit)}
        return inputs | {"n_heads": K}

    small = 2, 1, 1, 1, 2
    add("same", make(1, 1, *small), make(1, 2, *small))
    cube, base = make(3, 3, 4, 3, 3, 3, 3), make(3, 5)
    add("same", cube | {"cache": None}, base)
    add("same", add_digits(base), drive=call_in_chunks(1, 1, 1, 1, 1))
    add("same", base | {"x": base["x"] / 1024})  # as small as eps
    add("same", make(2, 70), drive=call_in_chunks(64, 1, 5))
    add.from_page("chunks", base, decoder)
    add.from_page("future", base, function_of(call_for_output, "x"))
    add.from_page("rows", base, function_of(call_in_chunks(4, 1), "x"))
    add.from_page("apart", base, decoder)
    nine = make(3, 9)
    t, row = torch.arange(9), torch.arange(3)[:, None]
    for valid in (t > row, (t < 3) | (t > 3 + row), t < 9 - row):
        add("same", nine | {"valid": valid}, drive=real_outputs)
        add("pads", nine | {"valid": valid}, drive=compare_rows_alone)

    def measure_state(solution: Solution, inputs: Inputs) -> Outputs:
        """The floats per token that the state grows by after five tokens."""
        x = inputs["x"]
        _, cache = solution.pair(**inputs | {"x": x[:, :5]})
        before = sum(t.numel() for t in stored_floats(cache).values())
        _, cache = solution.pair(**inputs | {"x": x[:, 5:], "cache": cache})
        after = sum(t.numel() for t in stored_floats(cache).values())
        return compare_usage((after - before) / 59, 0)

    add("small", make(1, 64), drive=measure_state)
    mild = make(3, 5, limit=2)
    add("gradients", mild, drive=gradients(call_for_training))
    add.dtypes(mild, drive=call_in_chunks(4, 1))
    return add


def stored_floats(cache: object) -> dict[int, Tensor]:
    """The floating point tensors inside a cache of any kind, each by the
    address of its memory; of several views of one memory, the largest."""
    tensors: dict[int, Tensor] = {}
    for value in stored_tensors(cache):
        base = value if value._base is None else value._base
        view = tensors.get(base.data_ptr())
        if value.is_floating_point() and (
            view is None or view.numel() < value.numel()
        ):
            tensors[base.data_ptr()] = value
    return tensors


def stored_tensors(cache: object) -> Iterator[Tensor]:
    """The tensors inside a cache of any kind."""
    visited: dict[int, object] = {}
    queue: list[Any] = [cache]
    while queue:
        value = queue.pop()
        if id(value) in visited or isinstance(value, str | type):
            continue
        visited[id(value)] = value
        if isinstance(value, Tensor):
            yield value
            continue
        if isinstance(value, dict):
            queue += value.values()
        elif hasattr(value, "__iter__") and hasattr(value, "__len__"):
            queue += value
        slots = getattr(type(value), "__slots__", ())
        queue += [getattr(value, name, None) for name in (*slots, "__dict__")]


def count_growth(old: dict[int, Tensor], new: dict[int, Tensor]) -> int:
    """How many numbers a cache has more than before; in a buffer that is still
    there, how many numbers were written."""
    buffers = {k for k in old if k in new and new[k].shape == old[k].shape}
    total = 0
    for k in buffers:  # memory that was never written may be NaN
        x, y = old[k], new[k]
        total += int(((y != x) & ~(y.isnan() & x.isnan())).sum())
    total += sum(t.numel() for k, t in new.items() if k not in buffers)
    return total - sum(t.numel() for k, t in old.items() if k not in buffers)


def dsa_probes() -> list[Probe]:
    draw, add = Draw(17), Probes()

    def make(*sizes: int, mask: Tensor | None = None, limit: int = 6) -> Inputs:
        """`sizes` are B, H, T, S, D, Dv, Hi, topk."""
        B, H, T, S, D, Dv, Hi, topk = sizes
        inputs = qkv(draw, B, H, T, S, D, Dv, limit=limit) | {"topk": topk}
        k, q, w = draw(B, 1, S, 4), draw(B, Hi, T, 4), draw(B, T, Hi)
        # Drawn again until the last chosen key and the next one lie apart.
        while topk < S:
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
        inputs |= {"q_index": q, "k_index": k, "weights": w}
        return inputs | ({} if mask is None else {"mask": mask})

    add("same", make(1, 1, 1, 2, 2, 1, 1, 1), make(1, 1, 2, 3, 2, 2, 2, 2))
    sizes = 3, 2, 5, 7, 4, 3, 6, 3
    base, base_causal = make(*sizes), make(*sizes, mask=causal(5, 7))
    add("same", base | {"mask": None}, base_causal, base | {"topk": 7})
    add("same", base | {"topk": 9}, make(3, 3, 3, 3, 3, 3, 3, 1))
    pads = left_pads(3, 7)[:, None, None]
    masks = pads, draw.mask(3, 1, 5, 7), causal(5, 7) & pads.flip(3)
    add("same", *(make(*sizes, mask=mask) for mask in masks))
    add("same", make(2, 2, 1, 67, 5, 4, 5, 11), make(1, 4, 61, 61, 4, 3, 8, 8))
    square, triangle = (3, 2, 5, 5, 4, 3, 6, 2), causal(5, 5)
    empty = left_pads(3, 5)[:, None, None] & triangle
    add("empty", make(*square, mask=empty))
    add("large", base_causal | {"q": 128 * base_causal["q"]})
    five = make(*square, mask=triangle)
    add.from_page("future", five, function_of_joint(call, "k", "v"))
    names = "q", "k", "v", "q_index", "k_index", "weights"
    add.from_page("rows", base, function_of(call, *names))
    add.from_page("heads", base, function_of(call, "q", "k", "v"))
    # No product is 0, where ReLU and clamp have two slopes.
    add("gradients", add_digits(base_causal), drive=gradients(call))
    add.dtypes(make(*sizes, mask=causal(5, 7), limit=4))
    return add


def cache_probes() -> list[Probe]:
    draw = Draw(10)

    def make(max_len: int, chunks: tuple[int, ...], *sizes: int) -> Inputs:
        """Keys and values in chunks; `sizes` are B, K, D."""
        B, K, D = sizes
        # With more digits than half precision has.
        keys = [draw(B, K, T, D, limit=3999) for T in chunks]
        values = [draw(*k.shape, limit=3999) for k in keys]
        return {"max_len": max_len, "k": keys, "v": values}

    def append(cache: Any, k: Tensor, v: Tensor) -> Outputs:
        """Append, and copy what is returned, since a cache may change it."""
        keys, values = require_pair(cache.append(k, v))
        length = torch.tensor([float(cache.length)])
        return keys.clone(), require_tensor(values).clone(), length

    def append_all(solution: Solution, inputs: Inputs) -> Outputs:
        cache = solution(max_len=inputs["max_len"])
        outs = [torch.tensor([float(cache.length)])]
        for k, v in zip(inputs["k"], inputs["v"], strict=True):
            outs += append(cache, k, v)
        return tuple(outs)

    def last_pair(solution: Solution, inputs: Inputs) -> Outputs:
        return append_all(solution, inputs)[-3:-1]

    def fill_in_turns(solution: Solution, inputs: Inputs) -> Outputs:
        """Fill two caches in turns, then one with the chunks of the second."""
        a, b = (solution(max_len=inputs["max_len"]) for _ in range(2))
        outs: Outputs = ()
        for k, v in zip(inputs["k"], inputs["v"], strict=True):
            append(a, k + 1, v + 1)
            outs = append(b, k, v)
        return outs + append_all(solution, inputs)[-3:]

    def overfill(solution: Solution, inputs: Inputs) -> Outputs:
        """Append three chunks: the second does not fit, the third does."""
        cache = solution(max_len=inputs["max_len"])
        first, second, third = zip(inputs["k"], inputs["v"], strict=True)
        append(cache, *first)
        n_errors = 0.0
        try:
            cache.append(*second)
        except Exception:
            n_errors = 1.0
        outcome = torch.tensor([n_errors, float(cache.length)])
        return outcome, *append(cache, *third)

    add, base = Probes(append_all), make(7, (3, 1, 1), 3, 2, 4)
    add("same", make(1, (1,), 1, 1, 1), make(2, (1, 1), 1, 1, 2), base)
    add("same", make(7, (1,) * 7, 3, 2, 4), make(4, (3, 1), 3, 3, 3))
    add("same", make(2100, (2053, 1, 46), 1, 1, 2))
    for chunks in ((3, 2, 1), (4, 1, 0), (1, 5, 3)):
        add("full", make(4, chunks, 3, 2, 4), drive=overfill)
    add.from_page("rows", base, function_of(last_pair, "k", "v"))
    add("apart", base, drive=fill_in_turns)
    for lengths in ((3,), (3, 1)):
        add.dtypes(make(7, lengths, 3, 2, 4), drive=last_pair)
    return add


def ring_probes() -> list[Probe]:
    draw = Draw(14)

    def make(W: int, chunks: tuple[int, ...], *sizes: int) -> Inputs:
        """Keys and values in chunks; `sizes` are B, K, D."""
        B, K, D = sizes or (3, 2, 4)
        keys = [draw(B, K, T, D) for T in chunks]
        return {"W": W, "k": keys, "v": [draw(*k.shape) for k in keys]}

    def append_all(solution: Solution, inputs: Inputs) -> Outputs:
        cache, outs = solution(W=inputs["W"]), list[Tensor]()
        for k, v in zip(inputs["k"], inputs["v"], strict=True):
            keys, values, positions = cache.append(k, v)
            result = keys, values, positions
            outs += [require_tensor(x).clone() for x in result]
        return tuple(outs)

    def last_pair(solution: Solution, inputs: Inputs) -> Outputs:
        return append_all(solution, inputs)[-3:-1]

    add = Probes(append_all, "RingKVCache")
    base = make(4, (3, 1, 1, 1, 2, 1))
    add("same", make(1, (1, 1), 1, 1, 1), make(2, (1, 1, 1), 1, 1, 2), base)
    for chunks in ((4, 1), (5, 1), (11, 1, 1), (1,) * 9, (1, 4, 3, 1)):
        add("same", add_digits(make(4, chunks)))
    for W, T, positions in (
        (3, 1, [0, -1, -1]),
        (3, 1, [6, 4, 5]),
        (4, 2, [4, 5, -1, 3, 0, 1, 2]),
        (4, 5, [8, 5, 6, 7, 9, 10, 11, 12, 13]),
    ):
        j = torch.tensor(positions)
        i = torch.arange(T) + 1 + j.max() - T
        add("same", {"i": i, "j": j, "W": W}, function="sees")
    add.from_page("rows", base, function_of(last_pair, "k", "v"))
    add.dtypes(make(4, (3, 1, 6, 1)), drive=last_pair)
    return add


def paged_probes() -> list[Probe]:
    def run_script(solution: Solution, inputs: Inputs) -> Outputs:
        """How many blocks are found, and what each text gets back."""

        def new_pool(blocks: int, size: int, shape: Any, dtype: Any) -> Any:
            return solution(blocks=blocks, size=size, shape=shape, dtype=dtype)

        script, size, dtype = (
            inputs["script"],
            inputs["size"],
            inputs["of"].dtype,
        )
        pairs = blocks_hold_each_text.pairs(new_pool, script, size, dtype)
        return tuple(torch.as_tensor(observed) for observed, _ in pairs)

    def make(script: str, size: int = 3) -> Inputs:
        zero = torch.zeros(1, dtype=torch.float64)  # for its dtype
        return {"script": script, "size": size, "of": zero}

    add = Probes(run_script)
    six_steps = "a0abcdefgh b0xyz a+ijkl b+w b-0 c0lmnopqr"
    add("same", make("a0abcd"), make("a0ab a+c a+defg"), make(six_steps))
    add("same", make("a0abcdefgh b=a b+x a+ij a-0 b-4 b+ze"))
    add("same", make("a0abcdefgh b2abcdefx c0defabc d1abcdef"))
    add("same", make("a0abc b3abcd a-0 b+e c0xy", 1), make(SHARING))
    add("full", make("a0abcdefgh z? a+i"), make("z? a0ab z? a+cd"))
    add("same", make("a0abcd b0xyzw a+e b+v a+fgh b+uts a-3 b+r a+x"))
    add.dtypes(make("a0abcdefgh b=a b+x a+ij c2abcdefg a-0"))
    return add


def pooled_probes() -> list[Probe]:
    draw, add = Draw(11), Probes(call_for_pair)

    def make(H: int, K: int, D: int, E: int) -> Inputs:
        heads = {"n_heads": H, "n_kv_heads": K}
        return {"w_k": draw(H * D, E), "w_v": draw(H * D, E)} | heads

    for sizes in ((1, 1, 1, 1), (2, 1, 1, 1), (4, 2, 1, 1), (4, 2, 2, 2)):
        add("same", make(*sizes))
    for sizes in ((6, 2, 5, 7), (6, 3, 5, 7), (6, 6, 5, 7), (9, 3, 3, 27)):
        add("same", make(*sizes))
    add.dtypes(make(6, 2, 5, 7))
    return add


# ------------------------------------------------------------------- ranks


class Split(NamedTuple):
    """How the inputs of a probe are divided among ranks.

    `size` is how many there are. `cut` gives the inputs of one rank; it also
    cuts, by the name "out", what has the shape of the output. `join` makes one
    tensor of those of all ranks.
    """

    size: Callable[[Inputs], int]
    cut: Callable[[Inputs, int], Inputs]
    join: Callable[[str, Sequence[Tensor], Inputs], Tensor]


def cut_tokens(inputs: Inputs, rank: int) -> Inputs:
    """The tokens at the positions of this rank; a pad holds any token."""
    positions = inputs["positions"][:, rank]
    parts: Inputs = {"positions": positions}
    for name, x in inputs.items():
        if name in ("q", "k", "v", "out"):
            index = positions.clamp(min=0)[:, None, :, None]
            parts[name] = x.take_along_dim(index, dim=2)
        elif name == "first":
            parts[name] = x.gather(1, positions.clamp(min=0))
        elif name == "sinks":
            parts[name] = x.clone()
    if "out" in parts:
        parts["out"] *= (positions >= 0)[:, None, :, None]
    return parts


def join_tokens(name: str, parts: Sequence[Tensor], inputs: Inputs) -> Tensor:
    """The tokens of all ranks at their positions; each rank has a share of the
    gradient of the sinks."""
    if name == "sinks":
        return torch.stack([*parts]).sum(0)
    shape = *inputs["q"].shape[:3], inputs["v"].shape[3]
    whole = torch.zeros(inputs.get(name, torch.empty(shape)).shape)
    whole = F.pad(whole, (0, 0, 0, 1)).to(parts[0].dtype)
    for rank, part in enumerate(parts):
        i = inputs["positions"][:, rank]
        if part.shape[:3] != (*whole.shape[:2], i.shape[1]):
            wanted = *whole.shape[:2], i.shape[1], whole.shape[3]
            raise SolutionError("shape", got=(*part.shape,), wanted=wanted)
        i = i.where(i >= 0, whole.shape[2] - 1)[:, None, :, None]
        whole = whole.scatter(2, i.expand_as(part), part)
    return whole[:, :, :-1]


TOKENS_SPLIT = Split(
    lambda inputs: int(inputs["positions"].shape[1]), cut_tokens, join_tokens
)


def cut_heads(inputs: Inputs, rank: int) -> Inputs:
    """The rows of the weights that make the heads of this rank, the columns
    that read them, and all else whole."""
    parts, n = dict(inputs), inputs["ranks"]
    del parts["ranks"]
    counts = inputs["n_heads"], *[inputs["n_kv_heads"]] * 2, inputs["n_heads"]
    for name, H in zip(("w_q", "w_k", "w_v", "w_o"), counts, strict=True):
        axis, first = int(name == "w_o"), rank * H // n
        heads = inputs[name].unflatten(axis, (H, -1))
        heads = heads.narrow(axis, first, max(1, H // n))
        parts[name] = heads.flatten(axis, axis + 1).clone()
    return parts


HEADS_SPLIT = Split(
    lambda inputs: int(inputs["ranks"]),
    cut_heads,
    lambda name, parts, inputs: torch.stack([*parts]),
)


def ranks_of(inputs: Inputs) -> int:
    """How many ranks the inputs of a probe are for."""
    split = TOKENS_SPLIT if "positions" in inputs else HEADS_SPLIT
    return split.size(inputs)


def call_on_ranks(split: Split, function: str = "") -> Drive:
    """The outputs of all ranks, joined."""

    def drive(solution: Solution, inputs: Inputs) -> Outputs:
        n, changed = split.size(inputs), set[str]()

        def work(group: Any) -> Tensor:
            parts = split.cut(inputs, group.rank)
            copies = {name: _clone(x) for name, x in parts.items()}
            out = solution.tensor(function, **copies, group=group)
            for name, x in parts.items():
                if isinstance(x, Tensor) and not x.equal(copies[name]):
                    changed.add(name)
            return out

        out = split.join("out", Ranks(n).run(work), inputs)
        for name in changed:  # in the inputs of all ranks, it shows
            inputs[name].add_(1)
        return (out,)

    return drive


def gradients_on_ranks(split: Split, function: str = "") -> Drive:
    """The gradients of all inputs, joined, as `gradients` has them."""

    def compute(solution: Solution, inputs: Inputs) -> Outputs:
        ranks = Ranks(split.size(inputs))
        slopes: Any = None

        def forward(group: Any) -> Any:
            parts = split.cut(inputs, group.rank)
            parts = map_floats(parts, lambda x: x.clone().requires_grad_())
            with torch.enable_grad(), GraphUse() as use:
                out = solution.tensor(function, **parts, group=group)
            if use.reads or (use.pauses and not out.requires_grad):
                return None
            copied = floats_of(parts).keys() - TOKENS if use.copies else set()
            return out, floats_of(parts), copied

        def backward(group: Any) -> list[Tensor]:
            out, leaves, _ = results[group.rank]
            above = split.cut(inputs | {"out": slopes}, group.rank)["out"]
            parts: Any = [None] * len(leaves)
            if out.requires_grad:
                parts = torch.autograd.grad(
                    out, [*leaves.values()], above, allow_unused=True
                )
            pairs = zip(leaves.values(), parts, strict=True)
            return [torch.zeros_like(x) if y is None else y for x, y in pairs]

        try:
            results: Any = ranks.run(forward)
        except Exception:  # .numpy() raises; "same" shows other errors
            return ()
        if not all(results):
            return ()
        out = split.join("out", [out for out, *_ in results], inputs)
        slopes = torch.arange(out.numel()).cos().view(out.shape).to(out.dtype)
        if split is HEADS_SPLIT:  # of one output that all ranks have
            slopes = slopes[0]
        names, gradients = results[0][1], ranks.run(backward)
        return tuple(
            torch.empty(0)
            if name in results[0][2]
            else split.join(name, parts, inputs)
            for name, *parts in zip(names, *gradients, strict=True)
        )

    def run(solution: Solution, inputs: Inputs) -> Outputs:
        with catch_warnings():
            simplefilter("ignore")  # about a tensor read as a number
            parts = compute(solution, inputs)
            if parts and all(x.numel() for x in parts):
                return parts
            right = compute(reference_solution(solution.name), inputs)
        pairs = zip(parts or right, right, strict=True)
        return tuple(x if x.numel() else y for x, y in pairs)

    return run


def _clone(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def places(n: int, T: int, how: str = "zigzag") -> Tensor:
    """The positions (1, n, t) of n ranks that hold T tokens; -1 = a pad."""
    placed: Tensor = Plain().ring_attention.place(T, n, how)
    return placed[None]


def text_on_ranks(
    draw: Draw, positions: Tensor, *sizes: int, limit: int = 12
) -> Inputs:
    """q, k and v of a text, and its positions; `sizes` are B, H, K, D, Dv. Each
    row but the last begins with pads."""
    B, H, K, D, Dv = sizes
    T = int(positions.max()) + 1
    heads, keys = draw(B, H, T, D, limit=limit), draw(B, K, T, D, limit=limit)
    pads = (torch.arange(B)[:, None, None] + 1) % B
    positions = positions.expand(B, -1, -1)
    positions = positions.where(positions >= pads, -1)
    values = draw(B, K, T, Dv)
    return {"q": heads, "k": keys, "v": values, "positions": positions}


def add_text_probes(add: Probes, draw: Draw, heads: Sequence[int]) -> None:
    """Probes of a text on 1 to 4 ranks; `heads` are those of keys for 12 of
    queries."""
    name = add.function
    H, drive = 12, call_on_ranks(TOKENS_SPLIT, name)
    add("same", text_on_ranks(draw, places(1, 2), 1, 2, 1, 2, 1))
    in_order = places(2, 4, "contiguous")
    add("same", text_on_ranks(draw, in_order, 1, 2, 1, 2, 1))
    add("same", text_on_ranks(draw, in_order, 1, 2, 2, 2, 2))
    add("same", text_on_ranks(draw, places(2, 4), 1, 2, 2, 2, 2))
    for n, T, how, K in (
        (1, 5, "zigzag", heads[0]),
        (2, 8, "contiguous", heads[-1]),
        (3, 11, "contiguous", heads[0]),
        (3, 6, "zigzag", heads[-1]),
        (4, 17, "zigzag", heads[0]),
        (4, 9, "striped", heads[1]),
    ):
        inputs = text_on_ranks(draw, places(n, T, how), 3, H, K, 4, 3)
        add("same", add_digits(inputs))
    # Ranks that have only pads, and one row with only pads on one rank.
    some = places(3, 6).repeat(3, 1, 1)
    some[1, 2] = -1
    for positions in (places(3, 1), some):
        add("same", text_on_ranks(draw, positions, 3, H, heads[0], 4, 3))
    shuffled = torch.randperm(12, generator=draw.generator).view(1, 4, 3)
    base = text_on_ranks(draw, shuffled, 3, H, heads[0], 4, 3)
    add("same", base)
    add("large", base | {"q": 128 * base["q"]})
    add.from_page("future", base, function_of_joint(drive, "k", "v"))
    rows = function_of(drive, "q", "k", "v", "positions")
    add.from_page("rows", base, rows)
    slopes = gradients_on_ranks(TOKENS_SPLIT, name)
    for n, K in ((1, heads[0]), (4, heads[0]), (3, heads[-1])):
        mild = text_on_ranks(draw, places(n, 4 * n), 2, H, K, 4, 3, limit=4)
        add("gradients", mild, drive=slopes)
    add.dtypes(
        text_on_ranks(draw, places(4, 9), 3, H, heads[-1], 4, 3, limit=4)
    )


def ring_attention_probes() -> list[Probe]:
    draw, add = Draw(19), Probes(call_on_ranks(TOKENS_SPLIT))
    add_text_probes(add, draw, (4, 2))
    slopes = gradients_on_ranks(TOKENS_SPLIT)
    for n, T in ((1, 5), (2, 8), (4, 17)):
        text = text_on_ranks(draw, places(n, T), 3, 4, 2, 4, 3, limit=6)
        t = torch.arange(T)
        ends = torch.tensor([[3], [T // 2], [T - 2]])
        documents = (t * 0).where(t < ends, ends)
        windows = (t - 3).clamp(min=0).expand(3, T)
        sinks = {"sinks": draw(4)}
        add("same", text | {"first": documents}, text | {"first": windows})
        add("same", text | sinks, text | sinks | {"first": documents})
        add("gradients", text | sinks | {"first": documents}, drive=slopes)
    return add


def split_heads_probes() -> list[Probe]:
    draw = Draw(20)
    add = Probes(call_on_ranks(TOKENS_SPLIT, "ulysses"), "ulysses")
    add_text_probes(add, draw, (2, 4, 12))
    name = "tensor_parallel"
    drive = call_on_ranks(HEADS_SPLIT, name)
    slopes = gradients_on_ranks(HEADS_SPLIT, name)

    def make(n: int, *sizes: int, limit: int = 3) -> Inputs:
        """`sizes` are B, T, E, H, K, D."""
        B, T, E, H, K, D = sizes
        inputs: Inputs = {"x": draw(B, T, E)}
        for w, heads in (("w_q", H), ("w_k", K), ("w_v", K)):
            inputs[w] = draw(heads * D, E, limit=limit)
        inputs["w_o"] = draw(E, H * D, limit=limit)
        return inputs | {"n_heads": H, "n_kv_heads": K, "ranks": n}

    def add_layer(prop: str, *inputs: Inputs, drive: Drive = drive) -> None:
        add(prop, *inputs, drive=drive, function=name)

    add_layer("same", make(1, 1, 2, 2, 2, 1, 1), make(2, 1, 2, 2, 2, 2, 1))
    for n, K in ((1, 4), (2, 4), (3, 12), (4, 2), (4, 1)):
        add_layer("same", add_digits(make(n, 3, 5, 6, 12, K, 2)))
        mild = make(n, 2, 5, 6, 12, K, 2, limit=2)
        add_layer("gradients", mild, drive=slopes)
    base = make(4, 3, 5, 6, 12, 2, 2)
    add_layer("large", base | {"w_q": 64 * base["w_q"]})
    rest = Probes(drive, name)
    rest.dtypes(make(4, 3, 5, 6, 12, 2, 2, limit=2))
    return [*add, *rest]


KV_HEADS = {1: 1, 2: 1, 4: 2, 6: 2, 3: 3, 8: 4}  # by query heads
PROBES: dict[str, Callable[[], list[Probe]]] = {
    "softmax": softmax_probes,
    "online_softmax": online_probes,
    "masks": masks_probes,
    "sdpa": core_probes,
    "mha": partial(layer_probes, {H: H for H in KV_HEADS}, gqa=False),
    "mha_cached": partial(cached_layer_probes, 3, 3),
    "mqa": partial(layer_probes, dict.fromkeys(KV_HEADS, 1), gqa=False),
    "gqa": partial(layer_probes, KV_HEADS, gqa=True),
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
    "ring_attention": ring_attention_probes,
    "split_heads": split_heads_probes,
}
EXERCISES = {
    name: Exercise(tuple(FORMS[name]), make) for name, make in PROBES.items()
}


@cache
def properties_of(name: str) -> tuple[tuple[str, str], ...]:
    """The properties of an exercise: pairs of a function, empty if there is
    only one, and a property that this function must have."""
    pairs = set()
    for probe in EXERCISES[name].probes():
        pairs.add((probe.function, probe.prop))
        if any(hasattr(x, "__len__") for x in probe.inputs.values()):  # tensors
            pairs.add((probe.function, "untouched"))
    functions = ["", *TASKS[name].names]
    return tuple(x for x in product(functions, PROPERTIES) if x in pairs)
