"""What a solution is asked: inputs, each under a property that is judged.

The right answers are those of the first form of an exercise (forms.py).
"""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from attnref.mistakes.catalogue import PACKAGE, Plain, Text
from attnref.mistakes.forms import FORMS, Form
from attnref.mistakes.tasks import TASKS

__all__ = ["EXERCISES", "LAWS", "Exercise", "Form", "Law", "Probe"]
__all__ += ["Solution", "SolutionError", "calls_attnref"]

Inputs = dict[str, Any]
Outputs = tuple[Tensor, ...]


class Law(NamedTuple):
    """`own`: not compared with right answers, but the first half of the
    outputs with the second. `unit`: these are what it takes, or the limit if
    this is more, and the limit."""

    title: Text
    own: bool = False
    unit: Text | None = None


LAWS = {
    "same": Law(Text("computes what attnref computes", "与 attnref 算得一样")),
    "empty": Law(
        Text(
            "gives zeros where no key may be seen",
            "一个键都看不到时，输出为零",
        )
    ),
    "large": Law(Text("is right for large scores too", "分数很大时也算得对")),
    "far": Law(
        Text("is right at positions far on too", "位置很靠后时也算得对"),
        own=True,
    ),
    "future": Law(
        Text(
            "changes nothing before a token that changes", "看不到未来的 token"
        ),
        own=True,
    ),
    "pads": Law(
        Text("does not depend on what pads hold", "与填充位置的内容无关"),
        own=True,
    ),
    "rows": Law(
        Text(
            "gives each row of a batch what it gets alone", "批次各行互不影响"
        ),
        own=True,
    ),
    "heads": Law(Text("keeps the heads apart", "各个头互不影响"), own=True),
    "tokens": Law(
        Text("gives each query what it gets alone", "各个查询互不影响"),
        own=True,
    ),
    "chunks": Law(
        Text(
            "decodes in chunks to what one call gives",
            "分段解码与一次算完的结果相同",
        ),
        own=True,
    ),
    "apart": Law(
        Text("keeps two sequences apart", "两个序列的缓存互不影响"), own=True
    ),
    "full": Law(
        Text(
            "refuses what does not fit, and is unchanged by it",
            "放不下时拒绝，且什么都不改变",
        )
    ),
    "norm": Law(
        Text("rotates: lengths are kept", "只旋转：长度不变"), own=True
    ),
    "relative": Law(
        Text(
            "gives scores that depend on distances alone",
            "分数只取决于相对距离",
        ),
        own=True,
    ),
    "gradients": Law(
        Text("has the right gradients, if any", "有梯度时，梯度正确"), own=True
    ),
    "small": Law(
        Text(
            "caches no more numbers per token than it needs",
            "每个 token 缓存的数不比需要的多",
        ),
        own=True,
        unit=Text("numbers per token", "个数（每个 token）"),
    ),
    "absorbed": Law(
        Text(
            "decodes without expanding cached keys and values",
            "解码时不展开缓存里的键和值",
        ),
        own=True,
        unit=Text("FLOPs for one token", "FLOPs（一个 token）"),
    ),
    "tiles": Law(
        Text(
            "never holds the scores of more than a few tiles",
            "同一时刻只有少数几块的分数",
        ),
        own=True,
        unit=Text("numbers in the largest tensor", "个数（最大的张量）"),
    ),
    "pieces": Law(
        Text(
            "takes sums and maxima of no more than a chunk or two",
            "每次求和、取最大值不超过一两块",
        ),
        own=True,
        unit=Text("scores at once", "个分数（一次）"),
    ),
    "dtype": Law(
        Text(
            "is right in float32 and in half precision, and keeps the dtype",
            "float32 和半精度下也对，dtype 与输入相同",
        )
    ),
    "twice": Law(Text("gives the same twice", "算两次，结果相同"), own=True),
    "untouched": Law(Text("does not modify its input", "不修改输入")),
}


class SolutionError(Exception):
    """What is wrong with a solution, in both languages."""

    def __init__(self, en: str, zh: str) -> None:
        super().__init__(en)
        self.text = Text(en, zh)


class Solution:
    """The functions of a solution, called as the exercise says."""

    def __init__(self, name: str, given: object) -> None:
        """From a module or another object that has them; of an exercise that
        asks for one function or class, this may be given by itself."""
        wanted = TASKS[name].names
        self.name, self.given = name, {}
        alone = callable(given) and len(wanted) == 1
        for function in wanted:
            found = given if alone else getattr(given, function, None)
            if isinstance(given, dict):
                found = given.get(function)
            if not callable(found):
                asked = ", ".join(TASKS[name].signatures)
                raise SolutionError(
                    f"there is no {function}; the exercise asks for {asked}",
                    f"没有 {function}；这个练习要求 {asked}",
                )
            self.given[function] = found

    def __call__(self, function: str = "", /, **inputs: Any) -> Any:
        """The required by position, the others by name."""
        function = function or TASKS[self.name].names[0]
        found = self.given[function]
        first, others = _bound(self.name, function, inputs)
        try:
            inspect.signature(found).bind(*first, **others)
        except TypeError as error:
            asked = TASKS[self.name]
            n = asked.names.index(function)
            raise SolutionError(
                f"it cannot be called as {asked.signatures[n]}: {error}",
                f"不能按 {asked.signatures[n]} 调用：{error}",
            ) from None
        except ValueError:  # of C, it has no signature
            pass
        return found(*first, **others)

    def one(self, function: str = "", /, **inputs: Any) -> Tensor:
        """What it returns, which is one tensor."""
        return a_tensor(self(function, **inputs))

    def two(self, function: str = "", /, **inputs: Any) -> tuple[Any, Any]:
        """What it returns, which is a pair that begins with a tensor."""
        return a_pair(self(function, **inputs))


@cache
def _parameters(name: str, function: str) -> dict[str, bool]:
    """The parameters of a function of an exercise, and which are optional."""
    for node in ast.parse(TASKS[name].stub).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            words = [a.arg for a in node.args.args]
            required = len(words) - len(node.args.defaults)
            return {word: i >= required for i, word in enumerate(words)}
    return {"max_len": False}


def _bound(
    name: str, function: str, inputs: Inputs
) -> tuple[list[Any], Inputs]:
    optional = _parameters(name, function)
    first = [inputs[word] for word in optional if not optional[word]]
    return first, {w: inputs[w] for w in inputs if optional[w]}


def a_tensor(value: object) -> Tensor:
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        raise SolutionError(
            f"a tensor is asked for, and the type returned is {kind}",
            f"应返回张量，实际返回的是 {kind}",
        )
    return value


def a_pair(value: object) -> tuple[Tensor, Any]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        kind = type(value).__name__
        raise SolutionError(
            f"a pair is asked for, and the type returned is {kind}",
            f"应返回两个值，实际返回的是 {kind}",
        )
    return a_tensor(value[0]), value[1]


Drive = Callable[[Solution, Inputs], Outputs]


class Probe(NamedTuple):
    """One input under one law: `drive` calls the solution with it."""

    law: str
    inputs: Inputs
    drive: Drive

    @property
    def sizes(self) -> str:
        """The input in a line: `x (3, 5, 12), n_heads=6`."""
        words = []
        for name, value in self.inputs.items():
            if isinstance(value, Tensor):
                words.append(f"{name} {tuple(value.shape)}")
            elif isinstance(value, list):
                shapes = [getattr(v, "shape", None) for v in value]
                if shapes and shapes[0] is not None:
                    value = f"{len(value)} x {tuple(shapes[0])}"
                words.append(f"{name} {value}")
            elif value is not None:
                words.append(f"{name}={value}")
        return ", ".join(words)


def calls_attnref(solution: Solution) -> bool:
    """Whether a solution runs code of this package, which is no solution."""
    calls: set[Path] = set()

    def called(frame: Any, event: str, _: object) -> None:
        if event == "call":
            calls.add(Path(frame.f_code.co_filename))

    before = sys.getprofile()
    for probe in EXERCISES[solution.name].probes():
        if probe.law != "same":
            continue
        sys.setprofile(called)
        try:
            with torch.no_grad():
                probe.drive(solution, probe.inputs)
        except Exception:  # it is judged elsewhere
            pass
        finally:
            sys.setprofile(before)
        own = Path(__file__).parent
        return any(
            PACKAGE in at.parents and own not in at.parents for at in calls
        )
    return False


@dataclass(frozen=True)
class Exercise:
    """The first of `forms` is right; `drawn` are its probes."""

    forms: tuple[Form, ...]
    drawn: Callable[[], Iterator[Probe]]

    def probes(self) -> Iterator[Probe]:
        """All, of which the last repeats one."""
        every = [*self.drawn()]
        *_, last = (probe for probe in every if probe.law == "same")

        def twice(f: Solution, i: Inputs) -> Outputs:
            return last.drive(f, i) + last.drive(f, i)

        for probe in (*every, Probe("twice", last.inputs, twice)):
            yield probe._replace(drive=_seeded(probe.drive))


def _seeded(drive: Drive) -> Drive:
    """So that dropout answers alike in every solution that has it."""

    def driven(f: Solution, i: Inputs) -> Outputs:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return drive(f, i)

    return driven


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


def changed(x: Tensor, where: Any) -> Tensor:
    other = x.clone()
    other[where] = other[where] * -2 + 1.75
    return other


def plain(f: Solution, i: Inputs) -> Outputs:
    return (f.one(**i),)


def of_dtypes(
    law: str, inputs: Inputs, drive: Drive, *names: str
) -> Iterator[Probe]:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        cast = dict(inputs)
        for name in names:
            value = inputs[name]
            several = isinstance(value, list)
            cast[name] = (
                [v.to(dtype) for v in value] if several else value.to(dtype)
            )
        yield Probe(law, cast, drive)


def by_rows(drive: Drive, *names: str) -> Drive:
    """All rows of a batch at once, and each alone."""

    def driven(f: Solution, i: Inputs) -> Outputs:
        alone = [
            drive(f, i | {name: _row(i[name], b) for name in names})
            for b in range(3)
        ]
        joined = (torch.cat(parts) for parts in zip(*alone, strict=True))
        return drive(f, i) + tuple(joined)

    return driven


def _row(value: Any, b: int) -> Any:
    if isinstance(value, list):
        return [_row(v, b) for v in value]
    return value[b : b + 1] if len(value) == 3 else value


def compared(
    drive: Drive, change: Callable[[Inputs], Inputs], where: Any
) -> Drive:
    """Before and after a change: `where` both must be equal."""

    def driven(f: Solution, i: Inputs) -> Outputs:
        other = drive(f, change(i))
        return tuple(x[where] for x in drive(f, i) + other)

    return driven


def change(where: Any, *names: str) -> Callable[[Inputs], Inputs]:
    return lambda i: i | {name: changed(i[name], where) for name in names}


@cache
def _right(name: str) -> Solution:
    return Solution(name, FORMS[name][0].make(Plain()))


def of_right(drive: Drive) -> Drive:
    """For a property that compares with right answers by itself."""
    return lambda f, i: drive(f, i) + drive(_right(f.name), i)


class Numbers(TorchFunctionMode):
    """Whether tensors are read as numbers of Python."""

    seen = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        read = ("tolist", "item", "numpy", "__float__", "__array__")
        self.seen |= getattr(func, "__name__", "") in read
        return func(*args, **kwargs or {})


def gradients(drive: Drive, *names: str) -> Drive:
    """Those of the inputs, and right ones; or right ones alone, of a solution
    that computes with numbers of Python: it has none."""

    def of(f: Solution, i: Inputs) -> Outputs:
        leaves = {name: i[name].clone().requires_grad_() for name in names}
        with torch.enable_grad(), Numbers() as numbers:
            try:
                out, *_ = drive(f, i | leaves)
            except RuntimeError:  # as .numpy() raises
                return ()
            if numbers.seen or not out.requires_grad:
                return ()
            some = torch.arange(out.numel()).cos().view(out.shape)
            given = [*leaves.values()]
            return torch.autograd.grad(
                (out * some).sum(),
                given,
                allow_unused=True,
                materialize_grads=True,
            )

    def driven(f: Solution, i: Inputs) -> Outputs:
        right = of(_right(f.name), i)
        return (of(f, i) or right) + right

    return driven


class Watched(TorchDispatchMode):
    """What `count` gives of each operation: it, what it gets and its result."""

    def __init__(self, count: Callable[[Any, Any, Any], int]) -> None:
        super().__init__()
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


def limited(took: float, limit: float) -> Outputs:
    may = torch.tensor([float(limit)])
    return torch.tensor([float(took)]).maximum(may), may


# --------------------------------------------------------- softmax and masks

APART = 900 * torch.tensor([[0.0], [1.0], [-1.0]], dtype=torch.float64)


def softmax_probes() -> Iterator[Probe]:
    draw = Draw(1)
    for shape, dim in (
        ((2,), -1),
        ((2, 3), -1),
        ((3, 3), 0),
        ((5, 1), -1),
        ((3, 5, 7), 1),
        ((3, 5, 7), -1),
        ((3, 5, 7), 0),
        ((2, 3, 5, 7), -2),
        ((3, 67), -1),
    ):
        yield Probe("same", {"x": draw(*shape), "dim": dim}, plain)
    yield Probe("same", {"x": draw(3, 3, 3)}, plain)
    x = draw(3, 5, most=40)
    yield Probe("large", {"x": x + 800}, plain)
    yield Probe("large", {"x": x - 5000}, plain)
    yield Probe("large", {"x": 100 * x, "dim": 0}, plain)
    yield Probe("large", {"x": x + APART, "dim": -1}, plain)
    hidden = x.masked_fill(x > 4, -torch.inf)
    yield Probe("large", {"x": hidden, "dim": -1}, plain)
    seen = {"x": hidden, "dim": -1}
    yield Probe("gradients", seen, gradients(plain, "x"))
    hidden = hidden.clone()
    hidden[1] = -torch.inf
    yield Probe("empty", {"x": hidden, "dim": -1}, plain)
    yield Probe("empty", {"x": hidden.mT, "dim": 0}, plain)
    inputs = {"x": draw(3, 11, most=60), "dim": -1}
    yield from of_dtypes("dtype", inputs, plain, "x")


REDUCED = {"amax", "max", "sum", "logsumexp", "_softmax", "_log_softmax"}
REDUCED |= {"cumsum", "cummax", "logcumsumexp", "mean", "mv", "mm", "dot"}
REDUCED |= {"_logcumsumexp", "_safe_softmax", "aminmax", "sort", "topk"}


def pieces(f: Solution, i: Inputs) -> Outputs:
    def count(func: Any, args: Any, out: Any) -> int:
        if func.overloadpacket.__name__ not in REDUCED:
            return 0
        given = args[0]
        return given.numel() if given.is_floating_point() else 0

    with Watched(count) as watched:
        f.one(**i)
    return limited(max(watched.counts), 2 * i["chunk"])


def online_probes() -> Iterator[Probe]:
    draw = Draw(2)
    rows = torch.arange(3.0, dtype=torch.float64)[:, None] * draw(1, 7)
    for x, chunk in (
        (draw(2), 1),
        (draw(2, 3), 2),
        (draw(7).sort().values, 2),
        (draw(7).sort(descending=True).values, 3),
        (rows, 7),
        (draw(3, 5, 7), 9),
        (draw(3, 67), 5),
    ):
        yield Probe("same", {"x": x, "chunk": chunk}, plain)
    x = draw(3, 7, most=40)
    yield Probe("large", {"x": 50 * x + 900, "chunk": 2}, plain)
    yield Probe("large", {"x": x - 5000, "chunk": 2}, plain)
    yield Probe("large", {"x": x + APART, "chunk": 3}, plain)
    x[:, :3] = -torch.inf
    yield Probe("large", {"x": x, "chunk": 2}, plain)
    yield Probe("large", {"x": x.flip(1), "chunk": 2}, plain)
    x = x.clone()
    x[1] = -torch.inf
    yield Probe("empty", {"x": x, "chunk": 2}, plain)
    yield Probe("pieces", {"x": draw(61), "chunk": 7}, pieces)
    inputs = {"x": draw(3, 11, most=60), "chunk": 4}
    yield from of_dtypes("dtype", inputs, plain, "x")


def masks_probes() -> Iterator[Probe]:
    def of(function: str, **inputs: Any) -> Probe:
        return Probe("same", inputs, lambda f, i: (f.one(function, **i),))

    def on_scores(function: str, H: int, **inputs: Tensor) -> Probe:
        """What counts is what the mask hides of scores (B, H, S, S)."""

        def drive(f: Solution, i: Inputs) -> Outputs:
            (given,) = inputs
            mask = f.one(function, **{given: i[given]})
            B, S = i[given].shape
            try:
                return (mask.broadcast_to(B, H, S, S),)
            except RuntimeError:
                sizes, scores = tuple(mask.shape), (B, H, S, S)
                raise SolutionError(
                    f"{function} gives a mask that does not broadcast to "
                    f"scores {scores}: its shape is {sizes}",
                    f"{function} 给出的掩码不能广播到分数 {scores}："
                    f"它的形状是 {sizes}",
                ) from None

        return Probe("same", inputs | {"n_heads": H}, drive)

    for T, S in ((1, 1), (2, 2), (1, 3), (3, 3), (2, 5), (17, 67)):
        yield of("causal_mask", T=T, S=S)
    for B, S, H in ((1, 2, 1), (2, 3, 2), (3, 3, 2), (3, 3, 3), (3, 5, 2)):
        valid = left_pads(B, S) if B > 1 else left_pads(2, S)[:1]
        for pads in (valid, valid.flip(1)):
            yield on_scores("padding_mask", H, valid=pads)
    for T, S, size in (
        *((2, 2, 1), (3, 3, 2), (1, 4, 2), (2, 5, 3), (2, 3, 7)),
        *((7, 7, 7), (17, 67, 11)),
    ):
        yield of("window_mask", T=T, S=S, size=size)
    some = [[0, 0, 1, 1, 1], [0, 1, 2, 2, 0], [3, 3, 3, 3, 3]]
    for ids, H in (([[0, 1]], 1), (some, 2), (some, 3)):
        yield on_scores("document_mask", H, ids=torch.tensor(ids))


# ------------------------------------------------------------------- cores


def heads(draw: Draw, *sizes: int, most: int = 12) -> Inputs:
    """q, k, v of B, H, T, S, D, Dv."""
    B, H, T, S, D, Dv = sizes
    q, k = draw(B, H, T, D, most=most), draw(B, H, S, D, most=most)
    return {"q": q, "k": k, "v": draw(B, H, S, Dv)}


def core_probes(drive: Drive, *, learns: bool = True) -> Iterator[Probe]:
    draw = Draw(3)
    yield Probe("same", heads(draw, 1, 1, 1, 2, 2, 1), drive)
    yield Probe("same", heads(draw, 1, 1, 2, 3, 2, 2), drive)
    mask = {"mask": causal(3, 3)}
    yield Probe("same", heads(draw, 1, 1, 3, 3, 2, 2) | mask, drive)
    yield Probe("same", heads(draw, 3, 2, 5, 7, 4, 3) | {"mask": None}, drive)
    yield Probe("same", heads(draw, 3, 2, 5, 7, 3, 4), drive)
    yield Probe("same", heads(draw, 1, 2, 7, 1, 3, 4), drive)
    square = heads(draw, 3, 3, 3, 3, 3, 3)
    yield Probe("same", square | {"mask": causal(3, 3)}, drive)
    pads = left_pads(3, 7)[:, None, None]
    sizes = 3, 2, 5, 7, 4, 3
    some = heads(draw, *sizes)
    for seen in (
        causal(5, 7),
        pads,
        draw.mask(3, 1, 5, 7),
        draw.mask(3, 2, 5, 7),
        draw.mask(1, 2, 5, 7),
    ):
        yield Probe("same", some | {"mask": seen}, drive)
    equal = left_pads(3, 3)[:, None, None] & causal(3, 3)
    equal = equal | torch.eye(3, dtype=torch.bool)
    yield Probe("same", square | {"mask": equal}, drive)
    longer = {"mask": draw.mask(3, 1, 1, 67)}
    yield Probe("same", heads(draw, 3, 2, 1, 67, 4, 3) | longer, drive)
    longer = {"mask": draw.mask(1, 2, 37, 23)}
    yield Probe("same", heads(draw, 3, 2, 37, 23, 5, 4) | longer, drive)
    # Pads on the left: their rows see no key, as a causal mask is on top.
    empty = left_pads(3, 5)[:, None, None] & causal(5, 5)
    five = heads(draw, 3, 2, 5, 5, 4, 3) | {"mask": empty}
    yield Probe("empty", five, drive)
    uneven = draw.mask(3, 2, 5, 5) & empty.flip(-2, -1)
    yield Probe("empty", five | {"mask": uneven}, drive)
    large = some | {"q": 128 * some["q"], "mask": causal(5, 7)}
    yield Probe("large", large, drive)
    # All scores far below zero, those that are hidden far above.
    low = {"q": 256 * (some["q"].abs() + 1), "k": -some["k"].abs() - 1}
    low["k"] = low["k"].where(pads.mT, -low["k"])
    yield Probe("large", some | low | {"mask": pads}, drive)
    last, key = (..., slice(-1, None), slice(None)), {"mask": causal(5, 5)}
    before = (slice(None), slice(None), slice(-1))
    yield Probe(
        "future",
        five | key,
        compared(drive, change(last, "k", "v"), before),
    )
    hidden = (~pads).expand(3, 2, 1, 7)[:, :, 0]
    yield Probe(
        "pads",
        some | {"mask": pads},
        compared(drive, change(hidden, "k", "v"), ...),
    )
    masked = some | {"mask": draw.mask(3, 1, 5, 7)}
    yield Probe("rows", masked, by_rows(drive, "q", "k", "v", "mask"))
    head = (slice(None), 0)
    others = (slice(None), slice(1, None))
    yield Probe(
        "heads", some, compared(drive, change(head, "q", "k", "v"), others)
    )
    if learns:
        yield Probe("gradients", five, gradients(drive, "q", "k", "v"))
        large = large | {"q": 4 * some["q"], "mask": draw.mask(3, 2, 5, 7)}
        yield Probe("gradients", large, gradients(drive, "q", "k", "v"))
    mild = heads(draw, *sizes, most=4) | {"mask": causal(5, 7)}
    yield from of_dtypes("dtype", mild, drive, "q", "k", "v")


def pair(f: Solution, i: Inputs) -> Outputs:
    """The log-sum-exp may be in float32; it need not be more exact than out."""
    out, lse = f.two(**i)
    return out, a_tensor(lse).to(out.dtype)


def tiles(f: Solution, i: Inputs) -> Outputs:
    def count(func: Any, args: Any, out: Any) -> int:
        if func.is_view:
            return 0
        made = (x for x in tree_leaves(out) if isinstance(x, Tensor))
        return max(
            (x.numel() for x in made if x.is_floating_point()), default=0
        )

    with Watched(count) as watched:
        f.two(**i)
    B, H, T, S = (*i["q"].shape[:3], i["k"].shape[2])
    return limited(max(watched.counts), B * H * T * S / 8)


def flash_probes() -> Iterator[Probe]:
    for n, probe in enumerate(core_probes(pair, learns=False)):
        tile = ((2, 4), (1, 1), (2, 3), (8, 8), (5, 2))[n % 5]
        more = {"tile": tile} if n % 5 else {}
        yield probe._replace(inputs=probe.inputs | more)
    narrow = heads(Draw(12), 1, 1, 16, 128, 1, 1) | {"tile": (4, 8)}
    yield Probe("tiles", narrow, tiles)


def merge_probes() -> Iterator[Probe]:
    draw = Draw(4)

    def parts(n: int, *sizes: int) -> Inputs:
        outs = [draw(*sizes) for _ in range(n)]
        return {"outs": outs, "lses": [draw(*sizes[:-1]) for _ in range(n)]}

    yield Probe("same", parts(2, 1, 1, 1, 1), pair)
    yield Probe("same", parts(1, 1, 1, 2, 2), pair)
    for n, *sizes in (
        (2, 3, 2, 5, 4),
        (3, 3, 3, 3, 3),
        (5, 3, 2, 1, 4),
        (17, 3, 2, 7, 4),
    ):
        yield Probe("same", parts(n, *sizes), pair)
    large = parts(3, 3, 2, 5, 4)
    higher = [800 + 40 * lse for lse in large["lses"]]
    yield Probe("large", large | {"lses": higher}, pair)
    lower = [-800 + 40 * lse for lse in large["lses"]]
    yield Probe("large", large | {"lses": lower}, pair)
    none = [lse.clone() for lse in large["lses"]]
    none[0][:, :, :3] = none[1][:, :, 2:] = -torch.inf
    for out, lse in zip(large["outs"], none, strict=True):
        out[lse == -torch.inf] = 0
    yield Probe("same", large | {"lses": none}, pair)
    none = [lse.clone() for lse in none]
    none[2][:, 0] = -torch.inf
    yield Probe("empty", large | {"lses": none}, pair)
    yield Probe("rows", large, by_rows(pair, "outs", "lses"))
    mild = parts(3, 3, 2, 5, 4)
    yield from of_dtypes("dtype", mild, pair, "outs", "lses")


def rope_probes() -> Iterator[Probe]:
    draw = Draw(5)

    def of(x: Tensor, start: int, **others: float) -> Inputs:
        at = torch.arange(start, start + x.shape[2])
        return {"x": x, "positions": at} | others

    yield Probe("same", of(draw(1, 1, 2, 2), 0), plain)
    yield Probe("same", of(draw(1, 1, 2, 4), 1), plain)
    yield Probe("same", of(draw(3, 2, 5, 8), 0), plain)
    yield Probe("same", of(draw(3, 2, 4, 6), 11, theta=50.0), plain)
    yield Probe("same", of(draw(3, 3, 4, 4), 0, theta=50.0), plain)
    yield Probe("same", of(draw(3, 2, 1, 16), 7, theta=5e5), plain)
    mixed = {"x": draw(3, 2, 5, 8), "positions": torch.tensor([3, 0, 7, 7, 61])}
    yield Probe("same", mixed, plain)
    far = torch.tensor([2053, 0, 4099, 511, 30011])
    far_on = {"x": draw(3, 2, 5, 4), "positions": far}
    yield Probe("far", far_on, of_right(plain))

    def norms(f: Solution, i: Inputs) -> Outputs:
        return f.one(**i).norm(dim=-1), i["x"].norm(dim=-1)

    def scores(f: Solution, i: Inputs) -> Outputs:
        """Of pairs of the same two vectors, at equal distances."""
        near = f.one(**i)
        far = f.one(**i | {"positions": i["positions"] + 13})
        return near @ near.mT, far @ far.mT

    some = of(draw(3, 2, 5, 8), 3)
    yield Probe("norm", some, norms)
    yield Probe("relative", some, scores)
    yield Probe("rows", some, by_rows(plain, "x"))
    yield Probe("gradients", some, gradients(plain, "x"))
    yield from of_dtypes("dtype", of(draw(3, 2, 5, 8), 300), plain, "x")


# ------------------------------------------------------------------ layers

PROJECTED = ("x", "w_q", "w_k", "w_v", "w_o")


def layer_inputs(
    draw: Draw, *sizes: int, most: int = 3, **others: Any
) -> Inputs:
    """x and weights of B, T, E, H, K."""
    B, T, E, H, K = sizes
    small = K * E // H
    inputs = {"x": draw(B, T, E)}
    for name, rows in (("w_q", E), ("w_k", small), ("w_v", small), ("w_o", E)):
        inputs[name] = draw(rows, E, most=most)
    return inputs | {"n_heads": H} | others


def below_zero(i: Inputs, tokens: str = "x") -> Inputs:
    """All scores far below zero, and exact in float32."""
    low = {"x": i["x"].abs() + 1, tokens: i[tokens].abs() + 1}
    return i | low | {"w_q": 16 * i["w_q"].abs(), "w_k": -i["w_k"].abs()}


def layer_probes(kv_heads: Sequence[int], *, gqa: bool) -> Iterator[Probe]:
    """Of mha, mqa and gqa: `kv_heads` of 1, 2, 4, 6, 3 and 8 query heads."""
    draw = Draw(6)

    def of(B: int, T: int, E: int, H: int, most: int = 3) -> Inputs:
        K = kv_heads[(1, 2, 4, 6, 3, 8).index(H)]
        others = {"n_kv_heads": K} if gqa else {}
        return layer_inputs(draw, B, T, E, H, K, most=most) | others

    yield Probe("same", of(1, 1, 2, 1), plain)
    yield Probe("same", of(1, 2, 2, 1), plain)
    yield Probe("same", of(1, 2, 4, 2), plain)
    yield Probe("same", of(1, 2, 4, 2) | {"mask": causal(2, 2)}, plain)
    yield Probe("same", of(1, 2, 4, 4), plain)
    some = of(3, 5, 12, 6)
    yield Probe("same", some | {"mask": None}, plain)
    seen = draw.mask(3, 1, 5, 5)
    pads = left_pads(3, 5)[:, None, None]
    for mask in (
        causal(5, 5),
        pads,
        seen,
        draw.mask(3, 6, 5, 5),
        draw.mask(1, 6, 5, 5),
    ):
        yield Probe("same", some | {"mask": mask}, plain)
    equal = of(3, 3, 12, 3)
    yield Probe("same", equal | {"mask": causal(3, 3)}, plain)
    right = left_pads(3, 3).flip(1)[:, None, None] & causal(3, 3)
    yield Probe("same", equal | {"mask": right}, plain)
    yield Probe("same", of(3, 17, 40, 8) | {"mask": causal(17, 17)}, plain)
    yield Probe("empty", some | {"mask": pads & causal(5, 5)}, plain)
    uneven = draw.mask(3, 6, 5, 5) & causal(5, 5)
    yield Probe("empty", some | {"mask": uneven}, plain)
    large = some | {"w_q": 64 * some["w_q"], "mask": causal(5, 5)}
    yield Probe("large", large, plain)
    yield Probe("large", below_zero(equal) | {"mask": causal(3, 3)}, plain)
    last = (slice(None), slice(-1, None))
    before = (slice(None), slice(-1))
    yield Probe(
        "future",
        some | {"mask": causal(5, 5)},
        compared(plain, change(last, "x"), before),
    )
    valid = left_pads(3, 5)
    yield Probe(
        "pads",
        some | {"mask": pads},
        compared(plain, change(~valid, "x"), valid),
    )
    yield Probe("rows", some | {"mask": seen}, by_rows(plain, "x", "mask"))
    shown = some | {"w_o": torch.eye(12, dtype=torch.float64)}
    yield Probe(
        "heads",
        shown,
        compared(plain, change(slice(2), "w_q"), (..., slice(2, None))),
    )
    mild = of(3, 5, 12, 6, most=2) | {"mask": causal(5, 5)}
    yield Probe("gradients", mild, gradients(plain, "x"))
    yield from of_dtypes("dtype", mild, plain, *PROJECTED)


def cross_probes() -> Iterator[Probe]:
    draw = Draw(7)

    def of(
        B: int, T: int, S: int, E: int, C: int, H: int, most: int = 3
    ) -> Inputs:
        inputs = {"x": draw(B, T, E), "context": draw(B, S, C)}
        for name, width in (("w_q", E), ("w_k", C), ("w_v", C), ("w_o", E)):
            inputs[name] = draw(E, width, most=most)
        return inputs | {"n_heads": H}

    yield Probe("same", of(1, 1, 1, 2, 2, 1), plain)
    yield Probe("same", of(1, 1, 2, 2, 2, 1), plain)
    yield Probe("same", of(1, 2, 3, 4, 2, 2), plain)
    some = of(3, 5, 7, 12, 4, 6)
    yield Probe("same", some | {"mask": None}, plain)
    yield Probe("same", of(3, 5, 5, 12, 12, 3), plain)
    yield Probe("same", of(3, 3, 3, 12, 12, 3), plain)
    yield Probe("same", of(3, 23, 17, 20, 6, 4), plain)
    pads, seen = left_pads(3, 7)[:, None, None], draw.mask(3, 1, 5, 7)
    every = draw.mask(3, 6, 5, 7)
    for mask in (pads, pads.flip(3), seen, every, causal(5, 7)):
        yield Probe("same", some | {"mask": mask}, plain)
    equal = of(3, 3, 3, 12, 12, 3)
    mask = {"mask": left_pads(3, 3)[:, None, None]}
    yield Probe("same", equal | mask, plain)
    large = some | {"w_q": 256 * some["w_q"], "mask": seen}
    yield Probe("large", large, plain)
    yield Probe("large", below_zero(equal, "context") | mask, plain)
    queries = left_pads(3, 5)[:, None, :, None]
    yield Probe("empty", some | {"mask": pads & queries}, plain)
    yield Probe("empty", some | {"mask": every & queries & pads}, plain)
    hidden = change(~left_pads(3, 7), "context")
    yield Probe("pads", some | {"mask": pads}, compared(plain, hidden, ...))
    first, others = (slice(None), 0), (slice(None), slice(1, None))
    yield Probe("tokens", some, compared(plain, change(first, "x"), others))
    masked = some | {"mask": seen}
    yield Probe("rows", masked, by_rows(plain, "x", "context", "mask"))
    mild = of(3, 5, 7, 12, 4, 6, most=2) | {"mask": pads}
    names = (*PROJECTED, "context")
    yield Probe("gradients", mild, gradients(plain, "x", "context"))
    yield from of_dtypes("dtype", mild, plain, *names)


# ------------------------------------------------------------------ caches


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


def in_chunks(*chunks: int) -> Drive:
    """The outputs of calls with so many tokens each, as one."""

    def driven(f: Solution, i: Inputs) -> Outputs:
        first, *others = i["x"].split(chunks, dim=1)
        out, kept = f.two(**i | {"x": first})
        outs = [out]
        for part in others:
            out, kept = f.two(**i | {"x": part, "cache": kept})
            outs.append(out)
        return (torch.cat(outs, dim=1),)

    return driven


def chunks_equal(*chunks: int) -> Drive:
    def driven(f: Solution, i: Inputs) -> Outputs:
        return in_chunks(*chunks)(f, i) + once(f, i)

    return driven


def once(f: Solution, i: Inputs) -> Outputs:
    return (f.two(**i)[0],)


def interleaved(f: Solution, i: Inputs) -> Outputs:
    """Two sequences in turns, and the second alone."""
    one = i["x"]
    other = changed(one, ...)
    _, a = f.two(**i | {"x": one[:, :2]})
    first, b = f.two(**i | {"x": other[:, :3]})
    _, a = f.two(**i | {"x": one[:, 2:3], "cache": a})
    then, b = f.two(**i | {"x": other[:, 3:4], "cache": b})
    whole = once(f, i | {"x": other[:, :4]})
    return torch.cat((first, then), dim=1), *whole


def cached_probes(
    inputs: Callable[..., Inputs], per_token: Callable[[Inputs], int]
) -> Iterator[Probe]:
    """`inputs` of B, T and how large the weights are, or of small widths;
    `per_token` is how many numbers a token needs in the cache."""
    for T in (1, 2):
        yield Probe("same", inputs(1, T, small=True), once)
    yield Probe("chunks", inputs(1, 2, small=True), chunks_equal(1, 1))
    equal = inputs(3, 3)
    yield Probe("same", equal | {"cache": None}, once)
    H = equal["n_heads"]
    yield Probe("same", inputs(H, H), once)
    some = inputs(3, 5)
    yield Probe("same", some, once)
    default = {name: some[name] for name in some if name != "theta"}
    yield Probe("same", default, in_chunks(1, 1, 1, 1, 1))
    for chunks in ((1,) * 5, (3, 1, 1), (2, 3)):
        yield Probe("chunks", some, chunks_equal(*chunks))
    yield Probe("same", inputs(2, 23), in_chunks(17, 1, 5))
    last = (slice(None), slice(-1, None))
    before = (slice(None), slice(-1))
    yield Probe("future", some, compared(once, change(last, "x"), before))
    yield Probe("rows", some, by_rows(in_chunks(4, 1), "x"))
    yield Probe("apart", some, interleaved)
    large = {n: i.float() if _is(i) else i for n, i in some.items()}
    large["w_q"] = 64 * large["w_q"]
    yield Probe("large", large, in_chunks(4, 1))

    def small(f: Solution, i: Inputs) -> Outputs:
        """On average, of more tokens than a buffer has room for."""
        parts = i["x"].split((5, 19, 1, 1, 38), dim=1)
        _, kept = f.two(**i | {"x": parts[0]})
        before = {at: t.clone() for at, t in stored(kept).items()}
        for part in parts[1:]:
            _, kept = f.two(**i | {"x": part, "cache": kept})
        took = grown(before, stored(kept)) / 59
        # As much again is free in a buffer that was just doubled.
        need = per_token(i)
        return limited(took if took > 2 * need else 0, need)

    yield Probe("small", inputs(1, 64), small)

    if "theta" in some:
        long = inputs(1, 2053, small=True)
        yield Probe("far", {n: long[n] for n in long if n != "theta"}, far)
    mild = inputs(3, 5, most=2)
    names = [n for n in mild if _is(mild[n])]
    yield from of_dtypes("dtype", mild, in_chunks(4, 1), *names)


def far(f: Solution, i: Inputs) -> Outputs:
    """After 2,050 tokens; in a solution that loops over them after 500."""

    def operations(T: int) -> int:
        with Watched(lambda *_: 1) as watched:
            f.two(**i | {"x": i["x"][:, :T]})
        return sum(watched.counts)

    looped = operations(23) > 2 * operations(7)
    T = 503 if looped else i["x"].shape[1]
    i = i | {"x": i["x"][:, :T]}
    return in_chunks(T - 3, 3)(f, i)[0][:, -5:], _right_far(f.name, T)


@cache
def _right_far(name: str, T: int) -> Tensor:
    (i,) = (p.inputs for p in PROBES[name]() if p.law == "far")
    return once(_right(name), i | {"x": i["x"][:, :T]})[0][:, -5:]


def _is(value: object) -> bool:
    return isinstance(value, Tensor)


def cached_layer_probes(H: int, K: int) -> Iterator[Probe]:
    draw = Draw(8)
    others: Inputs = {} if H == K else {"n_kv_heads": K, "theta": 50.0}

    def inputs(B: int, T: int, most: int = 3, *, small: bool = False) -> Inputs:
        if small:
            few = {"n_kv_heads": 1} if others else {}
            made = layer_inputs(draw, B, T, 4, 2, 1 if others else 2)
            return made | others | few
        return layer_inputs(draw, B, T, 4 * H, H, K, most=most) | others

    return cached_probes(inputs, lambda i: 2 * len(i["w_k"]))


def mla_probes(*, absorbed: bool) -> Iterator[Probe]:
    draw = Draw(9)

    def inputs(B: int, T: int, most: int = 3, *, small: bool = False) -> Inputs:
        sizes = (2, 1, 2, 1, 2, 1) if small else (23, 5, 7, 6, 4, 7)
        return mla_inputs(draw, B, T, *sizes, most=most)

    yield from cached_probes(inputs, lambda i: len(i["w_kv_a"]))
    tiny = inputs(3, 5)
    yield Probe("same", tiny | {"x": tiny["x"] / 4096}, once)

    def flops(f: Solution, i: Inputs) -> Outputs:
        """Of a decode step, or half of what expanding all keys needs."""
        _, kept = f.two(**i | {"x": i["x"][:, :-1]})

        def count(func: Any, args: Any, out: Any) -> int:
            flops = flop_registry.get(func.overloadpacket)
            return flops(*args, out_val=out) if flops else 0

        with Watched(count) as watched:
            f.two(**i | {"x": i["x"][:, -1:], "cache": kept})
        most = i["x"].shape[1] * i["w_kv_b"].numel()
        return limited(sum(watched.counts), most)

    if absorbed:
        wide = mla_inputs(draw, 1, 128, 8, 4, 6, 16, 2, 16)
        yield Probe("absorbed", wide, flops)


def stored(kept: object) -> dict[int, Tensor]:
    """The floats that a cache holds, wherever it holds them."""
    found: dict[int, Tensor] = {}
    seen: dict[int, object] = {}
    left = [kept]
    while left:
        value = left.pop()
        if id(value) in seen or isinstance(value, str | type):
            continue
        seen[id(value)] = value
        if isinstance(value, Tensor):
            base = value if value._base is None else value._base
            larger = found.get(base.data_ptr(), value).numel() >= value.numel()
            if value.is_floating_point() and not (
                larger and base.data_ptr() in found
            ):
                found[base.data_ptr()] = value
        elif isinstance(value, dict):
            left += value.values()
        elif hasattr(value, "__iter__") and hasattr(value, "__len__"):
            left += value
        for name in getattr(type(value), "__slots__", ()):
            left.append(getattr(value, name, None))
        left.append(getattr(value, "__dict__", None))
    return found


def grown(before: dict[int, Tensor], after: dict[int, Tensor]) -> int:
    """By how many numbers; in a buffer, how many were written."""
    total = 0
    for at, t in after.items():
        old = before.get(at)
        if old is not None and old.shape == t.shape:
            total += int((t != old).sum())
        else:
            total += t.numel()
    return total - sum(
        t.numel()
        for at, t in before.items()
        if at not in after or after[at].shape != t.shape
    )


def cache_probes() -> Iterator[Probe]:
    draw = Draw(10)

    def of(max_len: int, chunks: Sequence[int], *sizes: int) -> Inputs:
        """Keys and values of B, K, D."""
        B, K, D = sizes
        keys = [draw(B, K, T, D) for T in chunks]
        values = [draw(*k.shape) for k in keys]
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
        try:
            cache.append(i["k"][1], i["v"][1])
        except Exception:
            refused = torch.tensor([1.0, float(cache.length)])
        else:
            refused = torch.tensor([0.0, float(cache.length)])
        return refused, *appended(cache, i["k"][2], i["v"][2])

    some = of(7, (3, 1, 1), 3, 2, 4)
    yield Probe("same", of(1, (1,), 1, 1, 1), steps)
    yield Probe("same", of(2, (1, 1), 1, 1, 2), steps)
    yield Probe("same", some, steps)
    yield Probe("same", of(7, (1,) * 7, 3, 2, 4), steps)
    yield Probe("same", of(4, (3, 1), 3, 3, 3), steps)
    yield Probe("same", of(2100, (2053, 1, 46), 1, 1, 2), steps)
    yield Probe("full", of(4, (3, 2, 1), 3, 2, 4), full)
    yield Probe("full", of(4, (4, 1, 0), 3, 2, 4), full)
    yield Probe("full", of(4, (1, 5, 3), 3, 2, 4), full)
    yield Probe("rows", some, by_rows(last, "k", "v"))
    yield Probe("apart", some, apart)
    yield from of_dtypes("dtype", of(7, (3,), 3, 2, 4), last, "k", "v")
    yield from of_dtypes("dtype", of(7, (3, 1), 3, 2, 4), last, "k", "v")


def pooled_probes() -> Iterator[Probe]:
    draw = Draw(11)

    def of(H: int, K: int, D: int, E: int) -> Inputs:
        sizes = {"n_heads": H, "n_kv_heads": K}
        return {"w_k": draw(H * D, E), "w_v": draw(H * D, E)} | sizes

    for sizes in ((1, 1, 1, 1), (2, 1, 1, 1), (4, 2, 1, 1), (4, 2, 2, 2)):
        yield Probe("same", of(*sizes), pair)
    for sizes in ((6, 2, 5, 7), (6, 3, 5, 7), (6, 6, 5, 7), (9, 3, 3, 3)):
        yield Probe("same", of(*sizes), pair)
    yield from of_dtypes("dtype", of(6, 2, 5, 7), pair, "w_k", "w_v")


PROBES: dict[str, Callable[[], Iterator[Probe]]] = {
    "softmax": softmax_probes,
    "online_softmax": online_probes,
    "masks": masks_probes,
    "sdpa": partial(core_probes, plain),
    "mha": partial(layer_probes, (1, 2, 4, 6, 3, 8), gqa=False),
    "mha_cached": partial(cached_layer_probes, 3, 3),
    "mqa": partial(layer_probes, (1, 1, 1, 1, 1, 1), gqa=False),
    "gqa": partial(layer_probes, (1, 1, 2, 2, 3, 4), gqa=True),
    "llama": partial(cached_layer_probes, 6, 2),
    "cross": cross_probes,
    "rope": rope_probes,
    "kv_cache": cache_probes,
    "mla_latent": partial(mla_probes, absorbed=False),
    "mla_absorbed": partial(mla_probes, absorbed=True),
    "mha_to_gqa": pooled_probes,
    "flash": flash_probes,
    "merge": merge_probes,
}
EXERCISES = {
    name: Exercise(tuple(FORMS[name]), drawn) for name, drawn in PROBES.items()
}
