"""What a solution is asked: inputs, laws, and this package's own answers.

An exercise has probes, inputs on which a solution is called, each under a law.
A form is this package in the shape of a solution, so right answers and those of
a package with a mistake in it come in the same way.
"""

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attnref.mistakes.catalogue import Text
from attnref.mistakes.tasks import TASKS

Inputs = dict[str, Any]
Outputs = tuple[Tensor, ...]


class Law(NamedTuple):
    """`own`: not compared with right answers, but the first half of the
    outputs with the second. `told`: a mistake is recognised by it too."""

    title: Text
    own: bool = False
    told: bool = True


LAWS = {
    "same": Law(Text("computes what attnref computes", "与 attnref 算得一样")),
    "empty": Law(
        Text(
            "gives zeros where no key may be seen",
            "一个键都看不到时，输出为零",
        )
    ),
    "large": Law(Text("is right for large scores too", "分数很大时也算得对")),
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
    "small": Law(
        Text(
            "caches no more elements per token than it needs",
            "每个 token 缓存的元素不比需要的多",
        ),
        own=True,
    ),
    "absorbed": Law(
        Text(
            "decodes without expanding cached keys and values (FLOPs)",
            "解码时不展开缓存里的键和值（FLOPs）",
        ),
        own=True,
        told=False,
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


@dataclass(frozen=True)
class Exercise:
    """`forms` are this package, or one with a mistake, as solutions: a mistake
    is looked for in each that calls the functions which it changes."""

    forms: tuple[Callable[[Any], object], ...]
    drawn: Callable[[], Iterator[Probe]]

    def probes(self) -> Iterator[Probe]:
        """All, of which the last repeats one."""
        every = [*self.drawn()]
        yield from every
        *_, last = (probe for probe in every if probe.law == "same")

        def twice(f: Solution, i: Inputs) -> Outputs:
            return last.drive(f, i) + last.drive(f, i)

        yield Probe("twice", last.inputs, twice)


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
        told = {n: i for n, i in inputs.items()}
        for name in names:
            value = inputs[name]
            several = isinstance(value, list)
            told[name] = (
                [v.to(dtype) for v in value] if several else value.to(dtype)
            )
        yield Probe(law, told, drive)


def by_rows(drive: Drive, *names: str) -> Drive:
    """All rows of a batch at once, and each alone."""

    def driven(f: Solution, i: Inputs) -> Outputs:
        B = 3
        alone = [
            drive(f, i | {name: _row(i[name], b, B) for name in names})
            for b in range(B)
        ]
        joined = (torch.cat(parts) for parts in zip(*alone, strict=True))
        return drive(f, i) + tuple(joined)

    return driven


def _row(value: Any, b: int, B: int) -> Any:
    if isinstance(value, list):
        return [_row(v, b, B) for v in value]
    return value[b : b + 1] if len(value) == B else value


def compared(
    drive: Drive, change: Callable[[Inputs], Inputs], kept: Any
) -> Drive:
    """Before and after a change: what is kept of both must be equal. `kept`
    is an index, or gives one for the inputs."""

    def driven(f: Solution, i: Inputs) -> Outputs:
        at: Any = kept(i) if callable(kept) else kept
        other = drive(f, change(i))
        return tuple(x[at] for x in drive(f, i) + other)

    return driven


def change(where: Any, *names: str) -> Callable[[Inputs], Inputs]:
    def made(i: Inputs) -> Inputs:
        at = where(i) if callable(where) else where
        return i | {name: changed(i[name], at) for name in names}

    return made


# --------------------------------------------------------- softmax and masks


def softmax_probes() -> Iterator[Probe]:
    draw = Draw(1)
    for shape, dim in (
        ((2,), -1),
        ((2, 3), -1),
        ((3, 3), 0),
        ((3, 5, 7), 1),
        ((3, 5, 7), -1),
    ):
        yield Probe("same", {"x": draw(*shape), "dim": dim}, plain)
    x = draw(3, 5, most=40)
    yield Probe("large", {"x": x + 800, "dim": -1}, plain)
    yield Probe("large", {"x": 100 * x, "dim": 0}, plain)
    apart = 900 * torch.tensor([[0.0], [1.0], [-1.0]], dtype=torch.float64)
    yield Probe("large", {"x": x + apart, "dim": -1}, plain)
    hidden = x.masked_fill(x > 4, -torch.inf)
    yield Probe("large", {"x": hidden, "dim": -1}, plain)
    hidden = hidden.clone()
    hidden[1] = -torch.inf
    yield Probe("empty", {"x": hidden, "dim": -1}, plain)
    inputs = {"x": draw(3, 11, most=60), "dim": -1}
    yield from of_dtypes("dtype", inputs, plain, "x")


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
    ):
        yield Probe("same", {"x": x, "chunk": chunk}, plain)
    x = draw(3, 7, most=40)
    yield Probe("large", {"x": 50 * x + 900, "chunk": 2}, plain)
    apart = 900 * torch.tensor([[0.0], [1.0], [-1.0]], dtype=torch.float64)
    yield Probe("large", {"x": x + apart, "chunk": 3}, plain)
    x[:, :3] = -torch.inf
    yield Probe("large", {"x": x, "chunk": 2}, plain)
    x = x.clone()
    x[1] = -torch.inf
    yield Probe("empty", {"x": x, "chunk": 2}, plain)
    inputs = {"x": draw(3, 11, most=60), "chunk": 4}
    yield from of_dtypes("dtype", inputs, plain, "x")


def masks_of(p: Any) -> object:
    def window_mask(T: int, S: int, size: int) -> Tensor:
        i, j = torch.arange(S - T, S)[:, None], torch.arange(S)
        found: Tensor = p.Window(size)(i, j)
        return found

    def document_mask(ids: Tensor) -> Tensor:
        at = torch.arange(ids.shape[1])
        found: Tensor = (p.Causal() & p.Documents(ids))(at[:, None], at)
        return found

    return SimpleNamespace(
        causal_mask=p.causal_mask,
        padding_mask=p.padding_mask,
        window_mask=window_mask,
        document_mask=document_mask,
    )


def masks_by_causal(
    p: Any, window: Callable[..., Tensor] | None = None
) -> object:
    """Those with a window and documents from causal_mask, as many write them,
    or the one with documents alone."""

    def window_mask(T: int, S: int, size: int) -> Tensor:
        i, j = torch.arange(S - T, S)[:, None], torch.arange(S)
        found: Tensor = p.causal_mask(T, S) & (j > i - size)
        return found

    def document_mask(ids: Tensor) -> Tensor:
        same = ids[:, None, :, None] == ids[:, None, None]
        found: Tensor = same & p.causal_mask(ids.shape[1])
        return found

    return SimpleNamespace(
        causal_mask=p.causal_mask,
        padding_mask=p.padding_mask,
        window_mask=window or window_mask,
        document_mask=document_mask,
    )


def documents_by_causal(p: Any) -> object:
    return masks_by_causal(p, vars(masks_of(p))["window_mask"])


def masks_probes() -> Iterator[Probe]:
    def of(function: str, **inputs: Any) -> Probe:
        def drive(f: Solution, i: Inputs) -> Outputs:
            return (f.one(function, **i),)

        return Probe("same", inputs, drive)

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

    for T, S in ((1, 1), (2, 2), (1, 3), (3, 3), (2, 5)):
        yield of("causal_mask", T=T, S=S)
    for B, S, H in ((1, 2, 1), (2, 3, 2), (3, 3, 2), (3, 3, 3), (3, 5, 2)):
        valid = left_pads(B, S) if B > 1 else left_pads(2, S)[:1]
        for pads in (valid, valid.flip(1)):
            yield on_scores("padding_mask", H, valid=pads)
    for T, S, size in ((2, 2, 1), (3, 3, 2), (1, 4, 2), (2, 5, 3), (2, 3, 7)):
        yield of("window_mask", T=T, S=S, size=size)
    some = [[0, 0, 1, 1, 1], [0, 1, 2, 2, 0], [3, 3, 3, 3, 3]]
    for ids, H in (([[0, 1]], 1), (some, 2), (some, 3)):
        yield on_scores("document_mask", H, ids=torch.tensor(ids))


# ------------------------------------------------------------------- cores


def heads(draw: Draw, *sizes: int, most: int = 12) -> Inputs:
    """q, k, v of B, H, T, S, D, Dv, and no mask."""
    B, H, T, S, D, Dv = sizes
    q, k = draw(B, H, T, D, most=most), draw(B, H, S, D, most=most)
    return {"q": q, "k": k, "v": draw(B, H, S, Dv), "mask": None}


def core_probes(drive: Drive) -> Iterator[Probe]:
    draw = Draw(3)
    yield Probe("same", heads(draw, 1, 1, 1, 2, 2, 1), drive)
    yield Probe("same", heads(draw, 1, 1, 2, 3, 2, 2), drive)
    mask = {"mask": causal(3, 3)}
    yield Probe("same", heads(draw, 1, 1, 3, 3, 2, 2) | mask, drive)
    yield Probe("same", heads(draw, 3, 2, 5, 7, 4, 3), drive)
    yield Probe("same", heads(draw, 3, 2, 5, 7, 3, 4), drive)
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
    ):
        yield Probe("same", some | {"mask": seen}, drive)
    equal = left_pads(3, 3)[:, None, None] & causal(3, 3)
    equal = equal | torch.eye(3, dtype=torch.bool)
    yield Probe("same", square | {"mask": equal}, drive)
    # Pads on the left: their rows see no key, as a causal mask is on top.
    empty = left_pads(3, 5)[:, None, None] & causal(5, 5)
    five = heads(draw, 3, 2, 5, 5, 4, 3) | {"mask": empty}
    yield Probe("empty", five, drive)
    large = some | {"q": 100 * some["q"], "mask": causal(5, 7)}
    yield Probe("large", large, drive)
    last, key = (..., slice(-1, None), slice(None)), {"mask": causal(5, 5)}
    yield Probe(
        "future",
        five | key,
        compared(
            drive, change(last, "k", "v"), (slice(None), slice(None), slice(-1))
        ),
    )

    def hidden(i: Inputs) -> Any:
        return (~i["mask"]).expand(3, 2, 1, 7)[:, :, 0]

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
    mild = heads(draw, *sizes, most=4) | {"mask": causal(5, 7)}
    yield from of_dtypes("dtype", mild, drive, "q", "k", "v")


def pair(f: Solution, i: Inputs) -> Outputs:
    """The log-sum-exp may be in float32; it need not be more exact than out."""
    out, lse = f.two(**i)
    return out, a_tensor(lse).to(out.dtype)


def flash_probes() -> Iterator[Probe]:
    for n, probe in enumerate(core_probes(pair)):
        tile = ((2, 4), (1, 1), (2, 3), (8, 8))[n % 4]
        yield probe._replace(inputs=probe.inputs | {"tile": tile})


def merge_probes() -> Iterator[Probe]:
    draw = Draw(4)

    def parts(n: int, *sizes: int) -> Inputs:
        outs = [draw(*sizes) for _ in range(n)]
        return {"outs": outs, "lses": [draw(*sizes[:-1]) for _ in range(n)]}

    yield Probe("same", parts(2, 1, 1, 1, 1), pair)
    yield Probe("same", parts(1, 1, 1, 2, 2), pair)
    for n, *sizes in ((2, 3, 2, 5, 4), (3, 3, 3, 3, 3), (5, 3, 2, 1, 4)):
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
    mixed = {"x": draw(3, 2, 5, 8), "positions": torch.tensor([3, 0, 7, 7, 61])}
    yield Probe("same", mixed, plain)

    def norms(f: Solution, i: Inputs) -> Outputs:
        return f.one(**i).norm(dim=-1), i["x"].norm(dim=-1)

    def scores(f: Solution, i: Inputs) -> Outputs:
        """Of pairs of the same two vectors, at equal distances."""
        near = f.one(**i)
        far = f.one(**i | {"positions": i["positions"] + 13})
        return near @ near.mT, far @ far.mT

    yield Probe("norm", of(draw(3, 2, 5, 8), 3), norms)
    yield Probe("relative", of(draw(3, 2, 5, 8), 3), scores)
    yield Probe("rows", of(draw(3, 2, 5, 8), 3), by_rows(plain, "x"))
    yield from of_dtypes("dtype", of(draw(3, 2, 5, 8), 300), plain, "x")


# ------------------------------------------------------------------ layers

WEIGHTS = {
    "w_q": "q_proj",
    "w_k": "k_proj",
    "w_v": "v_proj",
    "w_o": "o_proj",
    "w_kv_a": "kv_a_proj_with_mqa",
    "w_norm": "kv_a_layernorm",
    "w_kv_b": "kv_b_proj",
}


def built(kind: Any, weights: Inputs, **sizes: Any) -> Any:
    """A layer with these weights."""
    with torch.device("meta"):
        layer = kind(**sizes)
    for name, weight in weights.items():
        holder = getattr(layer, WEIGHTS[name])
        if holder.weight.shape != weight.shape:
            raise ValueError(f"{name} {tuple(weight.shape)}")
        holder.weight = torch.nn.Parameter(weight, requires_grad=False)
    return layer.eval()


def self_attention(p: Any, attend: str = "sdpa") -> Callable[..., Tensor]:
    """mha, mqa or gqa, by the sizes of what it is given."""

    def attention(
        x: Tensor,
        w_q: Tensor,
        w_k: Tensor,
        w_v: Tensor,
        w_o: Tensor,
        n_heads: int,
        n_kv_heads: int | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        E = x.shape[2]
        weights = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}
        sizes = {"d_model": E, "n_heads": n_heads, "causal": False}
        sizes["attend"] = getattr(p, attend)
        kind = p.MultiHeadAttention
        if n_kv_heads is not None:
            kind, sizes["n_kv_heads"] = p.GroupedQueryAttention, n_kv_heads
        elif len(w_k) < E:
            kind = p.MultiQueryAttention
        out: Tensor = built(kind, weights, **sizes)(x, mask=mask)
        return out

    return attention


def repeated(p: Any) -> Callable[..., Tensor]:
    """gqa and mqa as MHA, with the weights of each key/value head repeated."""

    def attention(
        x: Tensor,
        w_q: Tensor,
        w_k: Tensor,
        w_v: Tensor,
        w_o: Tensor,
        n_heads: int,
        n_kv_heads: int | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        E = x.shape[2]

        def every(w: Tensor) -> Tensor:
            per_head = w.view(-1, E // n_heads, E)
            return per_head.repeat_interleave(E // len(w), 0).reshape(E, E)

        weights = {"w_q": w_q, "w_k": every(w_k), "w_v": every(w_v)}
        layer = built(
            p.MultiHeadAttention,
            weights | {"w_o": w_o},
            d_model=E,
            n_heads=n_heads,
            causal=False,
        )
        out: Tensor = layer(x, mask=mask)
        return out

    return attention


def loop(p: Any) -> Callable[..., Tensor]:
    """The same, by the loops over heads."""

    def attention(
        x: Tensor,
        w_q: Tensor,
        w_k: Tensor,
        w_v: Tensor,
        w_o: Tensor,
        n_heads: int,
        n_kv_heads: int | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        E = x.shape[2]

        def per_head(w: Tensor) -> Tensor:
            return w.view(-1, E // n_heads, E).mT

        run, k, v = p.multi_head_loop, per_head(w_k), per_head(w_v)
        if n_kv_heads is not None:
            run = p.grouped_query_loop
        elif len(w_k) < E:
            run, k, v = p.multi_query_loop, k[0], v[0]
        if mask is not None and mask.dim() == 4:
            mask = mask[:, 0]
        out: Tensor = run(x, per_head(w_q), k, v, w_o.mT, mask)
        return out

    return attention


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


def layer_probes(kv_heads: Sequence[int], *, gqa: bool) -> Iterator[Probe]:
    """Of mha, mqa and gqa: `kv_heads` of 1, 2, 4, 6 and 3 query heads."""
    draw = Draw(6)

    def of(B: int, T: int, E: int, H: int, most: int = 3) -> Inputs:
        K = kv_heads[(1, 2, 4, 6, 3).index(H)]
        others = {"n_kv_heads": K} if gqa else {}
        inputs = layer_inputs(draw, B, T, E, H, K, most=most)
        return inputs | others | {"mask": None}

    yield Probe("same", of(1, 1, 2, 1), plain)
    yield Probe("same", of(1, 2, 2, 1), plain)
    yield Probe("same", of(1, 2, 4, 2), plain)
    yield Probe("same", of(1, 2, 4, 2) | {"mask": causal(2, 2)}, plain)
    yield Probe("same", of(1, 2, 4, 4), plain)
    some = of(3, 5, 12, 6)
    yield Probe("same", some, plain)
    seen = draw.mask(3, 1, 5, 5)
    pads = left_pads(3, 5)[:, None, None]
    for mask in (causal(5, 5), pads, seen):
        yield Probe("same", some | {"mask": mask}, plain)
    equal = of(3, 3, 12, 3)
    yield Probe("same", equal | {"mask": causal(3, 3)}, plain)
    right = left_pads(3, 3).flip(1)[:, None, None] & causal(3, 3)
    yield Probe("same", equal | {"mask": right}, plain)
    yield Probe("empty", some | {"mask": pads & causal(5, 5)}, plain)
    large = some | {"w_q": 80 * some["w_q"], "mask": causal(5, 5)}
    yield Probe("large", large, plain)
    last = (slice(None), slice(-1, None))
    before = (slice(None), slice(-1))
    yield Probe(
        "future",
        some | {"mask": causal(5, 5)},
        compared(plain, change(last, "x"), before),
    )
    yield Probe(
        "pads",
        some | {"mask": pads},
        compared(
            plain,
            change(~left_pads(3, 5), "x"),
            left_pads(3, 5),
        ),
    )
    yield Probe("rows", some | {"mask": seen}, by_rows(plain, "x", "mask"))
    shown = some | {"w_o": torch.eye(12, dtype=torch.float64)}
    yield Probe(
        "heads",
        shown,
        compared(plain, change(slice(2), "w_q"), (..., slice(2, None))),
    )
    mild = of(3, 5, 12, 6, most=2) | {"mask": causal(5, 5)}
    yield from of_dtypes("dtype", mild, plain, "x", "w_q", "w_k", "w_v", "w_o")


def cross_of(p: Any, attend: str = "sdpa") -> Callable[..., Tensor]:
    def cross(
        x: Tensor,
        context: Tensor,
        w_q: Tensor,
        w_k: Tensor,
        w_v: Tensor,
        w_o: Tensor,
        n_heads: int,
        mask: Tensor | None = None,
    ) -> Tensor:
        weights = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}
        layer = built(
            p.CrossAttention,
            weights,
            d_model=x.shape[2],
            n_heads=n_heads,
            d_context=context.shape[2],
            attend=getattr(p, attend),
        )
        out: Tensor = layer(x, context, mask=mask)
        return out

    return cross


def cross_probes() -> Iterator[Probe]:
    draw = Draw(7)

    def of(
        B: int, T: int, S: int, E: int, C: int, H: int, most: int = 3
    ) -> Inputs:
        inputs = {"x": draw(B, T, E), "context": draw(B, S, C)}
        for name, width in (("w_q", E), ("w_k", C), ("w_v", C), ("w_o", E)):
            inputs[name] = draw(E, width, most=most)
        return inputs | {"n_heads": H, "mask": None}

    yield Probe("same", of(1, 1, 1, 2, 2, 1), plain)
    yield Probe("same", of(1, 1, 2, 2, 2, 1), plain)
    yield Probe("same", of(1, 2, 3, 4, 2, 2), plain)
    some = of(3, 5, 7, 12, 4, 6)
    yield Probe("same", some, plain)
    yield Probe("same", of(3, 5, 5, 12, 12, 3), plain)
    yield Probe("same", of(3, 3, 3, 12, 12, 3), plain)
    pads, seen = left_pads(3, 7)[:, None, None], draw.mask(3, 1, 5, 7)
    for mask in (pads, pads.flip(3), seen):
        yield Probe("same", some | {"mask": mask}, plain)
    equal = of(3, 3, 3, 12, 12, 3) | {"mask": left_pads(3, 3)[:, None, None]}
    yield Probe("same", equal, plain)
    large = some | {"w_q": 200 * some["w_q"], "mask": seen}
    yield Probe("large", large, plain)
    queries = left_pads(3, 5)[:, None, :, None]
    yield Probe("empty", some | {"mask": pads & queries}, plain)
    yield Probe(
        "pads",
        some | {"mask": pads},
        compared(plain, change(~left_pads(3, 7), "context"), ...),
    )
    first, others = (slice(None), 0), (slice(None), slice(1, None))
    yield Probe("tokens", some, compared(plain, change(first, "x"), others))
    masked = some | {"mask": seen}
    yield Probe("rows", masked, by_rows(plain, "x", "context", "mask"))
    mild = of(3, 5, 7, 12, 4, 6, most=2) | {"mask": pads}
    names = ("x", "context", "w_q", "w_k", "w_v", "w_o")
    yield from of_dtypes("dtype", mild, plain, *names)


# ------------------------------------------------------------------ caches


def cached_of(
    p: Any,
    kept: str = "GrowingKVCache",
    attend: str = "sdpa",
    *,
    masked: bool = False,
) -> Callable[..., tuple[Tensor, Any]]:
    """mha_cached and llama; `masked`: the layer is not causal by itself, but is
    given a mask of causal_mask."""

    def attention(
        x: Tensor,
        w_q: Tensor,
        w_k: Tensor,
        w_v: Tensor,
        w_o: Tensor,
        n_heads: int,
        n_kv_heads: int | None = None,
        theta: float | None = None,
        cache: Any = None,
    ) -> tuple[Tensor, Any]:
        sizes = {"d_model": x.shape[2], "n_heads": n_heads, "rope_theta": theta}
        sizes["causal"] = not masked
        kind = p.MultiHeadAttention
        if n_kv_heads is not None:
            kind, sizes["n_kv_heads"] = p.GroupedQueryAttention, n_kv_heads
        weights = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}
        layer = built(kind, weights, attend=getattr(p, attend), **sizes)
        if cache is None:
            cache = made_cache(p, kept)
        T, mask = x.shape[1], None
        if masked:
            mask = p.causal_mask(T, cache.length + T)
        return layer(x, mask=mask, cache=cache), cache

    return attention


def made_cache(p: Any, kept: str) -> Any:
    return p.KVCache(16) if kept == "KVCache" else p.GrowingKVCache()


def mla_of(
    p: Any, form: str | None = None, kept: str = "GrowingKVCache"
) -> Callable[..., tuple[Tensor, Any]]:
    def mla(
        x: Tensor,
        w_q: Tensor,
        w_kv_a: Tensor,
        w_norm: Tensor,
        w_kv_b: Tensor,
        w_o: Tensor,
        n_heads: int,
        theta: float = 10000.0,
        cache: Any = None,
    ) -> tuple[Tensor, Any]:
        R, H = len(w_norm), n_heads
        Dr, Dv = len(w_kv_a) - R, w_o.shape[1] // H
        weights = {"w_q": w_q, "w_kv_a": w_kv_a, "w_norm": w_norm}
        layer = built(
            p.MultiHeadLatentAttention,
            weights | {"w_kv_b": w_kv_b, "w_o": w_o},
            d_model=x.shape[2],
            n_heads=H,
            kv_lora_rank=R,
            qk_nope_head_dim=len(w_q) // H - Dr,
            qk_rope_head_dim=Dr,
            v_head_dim=Dv,
            rope_theta=theta,
        )
        if cache is None:
            cache = made_cache(p, kept)
        return layer(x, cache=cache, form=form), cache

    return mla


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
        kept, outs = None, []
        for part in i["x"].split(chunks, dim=1):
            out, kept = f.two(**i | {"x": part, "cache": kept})
            outs.append(out)
        return (torch.cat(outs, dim=1),)

    return driven


def chunks_equal(*chunks: int) -> Drive:
    def driven(f: Solution, i: Inputs) -> Outputs:
        return in_chunks(*chunks)(f, i) + once(f, i)

    return driven


def once(f: Solution, i: Inputs) -> Outputs:
    return (f.two(**i, cache=None)[0],)


def interleaved(f: Solution, i: Inputs) -> Outputs:
    """Two sequences in turns, and the second alone."""
    one = i["x"]
    other = changed(one, ...)
    _, a = f.two(**i | {"x": one[:, :2], "cache": None})
    first, b = f.two(**i | {"x": other[:, :3], "cache": None})
    _, a = f.two(**i | {"x": one[:, 2:3], "cache": a})
    then, b = f.two(**i | {"x": other[:, 3:4], "cache": b})
    whole = once(f, i | {"x": other[:, :4]})
    return torch.cat((first, then), dim=1), *whole


def cached_probes(
    inputs: Callable[..., Inputs], per_token: Callable[[Inputs], int]
) -> Iterator[Probe]:
    """`inputs` of B, T and how large the weights are, or of small widths;
    `per_token` is how many elements a token needs in the cache."""
    for T in (1, 2):
        yield Probe("same", inputs(1, T, small=True), once)
    yield Probe("chunks", inputs(1, 2, small=True), chunks_equal(1, 1))
    equal = inputs(3, 3)
    yield Probe("same", equal, once)
    H = equal["n_heads"]
    yield Probe("same", inputs(H, H), once)
    some = inputs(3, 5)
    yield Probe("same", some, once)
    yield Probe("same", some, in_chunks(1, 1, 1, 1, 1))
    for chunks in ((1,) * 5, (3, 1, 1), (2, 3)):
        yield Probe("chunks", some, chunks_equal(*chunks))
    last = (slice(None), slice(-1, None))
    before = (slice(None), slice(-1))
    yield Probe("future", some, compared(once, change(last, "x"), before))
    yield Probe("rows", some, by_rows(in_chunks(4, 1), "x"))
    yield Probe("apart", some, interleaved)

    def small(f: Solution, i: Inputs) -> Outputs:
        """How many elements one more token adds, or how many it may."""
        _, kept = f.two(**i | {"x": i["x"][:, :4], "cache": None})
        before = elements(kept)
        _, kept = f.two(**i | {"x": i["x"][:, 4:], "cache": kept})
        may = torch.tensor([float(per_token(i))])
        new = torch.tensor([float(elements(kept) - before)])
        return torch.maximum(new, may), may

    yield Probe("small", inputs(1, 5), small)
    mild = inputs(3, 5, most=2)
    names = (n for n in mild if isinstance(mild[n], Tensor))
    yield from of_dtypes("dtype", mild, in_chunks(4, 1), *names)


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
        sizes = (2, 1, 2, 1, 2, 1) if small else (10, 3, 5, 6, 4, 7)
        return mla_inputs(draw, B, T, *sizes, most=most)

    yield from cached_probes(inputs, lambda i: len(i["w_kv_a"]))

    def flops(f: Solution, i: Inputs) -> Outputs:
        """Of a decode step, or half of what expanding all keys needs."""
        _, kept = f.two(**i | {"x": i["x"][:, :-1], "cache": None})
        with FlopCounterMode(display=False) as counter:
            f.two(**i | {"x": i["x"][:, -1:], "cache": kept})
        may = torch.tensor([float(i["x"].shape[1] * i["w_kv_b"].numel())])
        took = torch.tensor([float(counter.get_total_flops())])
        return torch.maximum(took, may), may

    if absorbed:
        wide = mla_inputs(draw, 1, 16, 8, 4, 6, 16, 2, 16)
        yield Probe("absorbed", wide, flops)


def elements(kept: object) -> int:
    """Of all tensors that a cache holds, wherever it holds them."""
    found: dict[int, Tensor] = {}
    seen: set[int] = set()

    def look(value: object) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, Tensor):
            found[id(value)] = value
        elif isinstance(value, dict):
            look([*value.values()])
        elif isinstance(value, list | tuple):
            for each in value:
                look(each)
        elif hasattr(value, "__dict__"):
            look(vars(value))

    look(kept)
    return sum(t.numel() for t in found.values())


def cache_probes() -> Iterator[Probe]:
    draw = Draw(10)

    def of(max_len: int, chunks: Sequence[int], *sizes: int) -> Inputs:
        """Keys and values of B, K, D."""
        B, K, D = sizes
        keys = [draw(B, K, T, D) for T in chunks]
        return {
            "max_len": max_len,
            "k": keys,
            "v": [draw(*k.shape) for k in keys],
        }

    def stored(cache: Any, k: Tensor, v: Tensor) -> Outputs:
        """What an append returns, as it is at this moment."""
        keys, values = a_pair(cache.append(k, v))
        length = torch.tensor([float(cache.length)])
        return keys.clone(), a_tensor(values).clone(), length

    def steps(f: Solution, i: Inputs) -> Outputs:
        cache = f(max_len=i["max_len"])
        found = [torch.tensor([float(cache.length)])]
        for k, v in zip(i["k"], i["v"], strict=True):
            found += stored(cache, k, v)
        return tuple(found)

    def last(f: Solution, i: Inputs) -> Outputs:
        return steps(f, i)[-3:-1]

    def apart(f: Solution, i: Inputs) -> Outputs:
        """Two caches in turns, and the second alone."""
        a, b = (f(max_len=i["max_len"]) for _ in range(2))
        got: Outputs = ()
        for k, v in zip(i["k"], i["v"], strict=True):
            stored(a, k + 1, v + 1)
            got = stored(b, k, v)
        return got + steps(f, i)[-3:]

    def full(f: Solution, i: Inputs) -> Outputs:
        """The second does not fit, and the third does."""
        cache = f(max_len=i["max_len"])
        stored(cache, i["k"][0], i["v"][0])
        try:
            cache.append(i["k"][1], i["v"][1])
        except Exception:
            refused = torch.tensor([1.0, float(cache.length)])
        else:
            refused = torch.tensor([0.0, float(cache.length)])
        return refused, *stored(cache, i["k"][2], i["v"][2])

    yield Probe("same", of(1, (1,), 1, 1, 1), steps)
    yield Probe("same", of(2, (1, 1), 1, 1, 2), steps)
    yield Probe("same", of(7, (3, 1, 1), 3, 2, 4), steps)
    yield Probe("same", of(7, (1,) * 7, 3, 2, 4), steps)
    yield Probe("same", of(4, (3, 1), 3, 3, 3), steps)
    yield Probe("full", of(4, (3, 2, 1), 3, 2, 4), full)
    yield Probe("full", of(4, (4, 1, 0), 3, 2, 4), full)
    yield Probe("full", of(4, (1, 5, 3), 3, 2, 4), full)
    yield Probe("rows", of(7, (3, 1, 1), 3, 2, 4), by_rows(last, "k", "v"))
    yield Probe("apart", of(7, (3, 1, 1), 3, 2, 4), apart)
    yield from of_dtypes("dtype", of(7, (3,), 3, 2, 4), last, "k", "v")
    yield from of_dtypes("dtype", of(7, (3, 1), 3, 2, 4), last, "k", "v")


# ------------------------------------------------------------- conversions


def pooled_of(p: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    def mha_to_gqa(
        w_k: Tensor, w_v: Tensor, n_heads: int, n_kv_heads: int
    ) -> tuple[Tensor, Tensor]:
        rows, E = w_k.shape
        mha = built(
            p.MultiHeadAttention,
            {"w_q": w_k, "w_k": w_k, "w_v": w_v, "w_o": w_k.mT},
            d_model=E,
            n_heads=n_heads,
            head_dim=rows // n_heads,
        )
        gqa = p.mha_to_gqa(mha, n_kv_heads)
        return gqa.k_proj.weight.detach(), gqa.v_proj.weight.detach()

    return mha_to_gqa


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


# --------------------------------------------------------------- exercises


def attend_of(p: Any) -> Callable[..., Tensor]:
    """sdpa, from the weights."""

    def sdpa(
        q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        weights: Tensor = p.attention_weights(q, k, mask)
        return weights @ v

    return sdpa


def online_of(p: Any) -> Callable[..., Tensor]:
    def online_softmax(x: Tensor, chunk: int) -> Tensor:
        found: Tensor = p.online_softmax(x, chunk=chunk)
        return found

    return online_softmax


def weights_of(p: Any) -> Callable[..., Tensor]:
    """A softmax: the weights of keys of one element for a query of 1."""

    def softmax(x: Tensor, dim: int = -1) -> Tensor:
        rows = x.movedim(dim, -1)
        keys = rows.reshape(-1, 1, rows.shape[-1], 1)
        mask = (keys != -torch.inf).transpose(2, 3)
        keys = keys.masked_fill(keys == -torch.inf, 0)
        weights: Tensor = p.attention_weights(
            torch.ones_like(keys[:, :, :1]), keys, mask
        )
        return weights.reshape(rows.shape).movedim(-1, dim)

    return softmax


def flash_of(p: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    def flash(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        tile: tuple[int, int] = (2, 4),
    ) -> tuple[Tensor, Tensor]:
        out, lse = p.flash_lse(q, k, v, mask, tile=tile)
        return out, lse

    return flash


def unskipped(p: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    """flash where no tile is skipped: one more row sees every key."""

    def flash(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        tile: tuple[int, int] = (2, 4),
    ) -> tuple[Tensor, Tensor]:
        (B, H, T, _), S = q.shape, k.shape[2]
        seen = torch.ones(T, S, dtype=torch.bool) if mask is None else mask
        given = (q, k, v, seen.expand(B, H, T, S))
        more = (torch.cat((x, torch.ones_like(x[:1]))) for x in given)
        out, lse = p.flash_lse(*more, tile=tile)
        return out[:B], lse[:B]

    return flash


SELF = (self_attention, partial(self_attention, attend="fused"), loop)
CACHED = (
    cached_of,
    partial(cached_of, kept="KVCache"),
    partial(cached_of, attend="fused"),
    partial(cached_of, masked=True),
)


def rope_of(p: Any) -> Callable[..., Tensor]:
    def rope(x: Tensor, positions: Tensor, theta: float = 10000.0) -> Tensor:
        cos, sin = p.rope_table(positions, x.shape[-1], theta=theta)
        found: Tensor = p.apply_rope(x, cos, sin)
        return found

    return rope


EXERCISES = {
    "softmax": Exercise((lambda p: p.softmax, weights_of), softmax_probes),
    "online_softmax": Exercise(
        (online_of, lambda p: lambda x, chunk: weights_of(p)(x)), online_probes
    ),
    "masks": Exercise(
        (masks_of, masks_by_causal, documents_by_causal), masks_probes
    ),
    "sdpa": Exercise(
        (lambda p: p.sdpa, lambda p: p.fused, attend_of),
        partial(core_probes, plain),
    ),
    "mha": Exercise(SELF, partial(layer_probes, (1, 2, 4, 6, 3), gqa=False)),
    "mha_cached": Exercise(CACHED, partial(cached_layer_probes, 3, 3)),
    "mqa": Exercise(
        (*SELF, repeated), partial(layer_probes, (1, 1, 1, 1, 1), gqa=False)
    ),
    "gqa": Exercise(
        (*SELF, repeated), partial(layer_probes, (1, 1, 2, 2, 3), gqa=True)
    ),
    "llama": Exercise(CACHED, partial(cached_layer_probes, 6, 2)),
    "cross": Exercise((cross_of,), cross_probes),
    "rope": Exercise((rope_of,), rope_probes),
    "kv_cache": Exercise((lambda p: p.KVCache,), cache_probes),
    "mla_latent": Exercise(
        (
            partial(mla_of, form="latent"),
            partial(mla_of, form="latent", kept="KVCache"),
            mla_of,
        ),
        partial(mla_probes, absorbed=False),
    ),
    "mla_absorbed": Exercise(
        (
            partial(mla_of, form="absorbed"),
            partial(mla_of, form="absorbed", kept="KVCache"),
        ),
        partial(mla_probes, absorbed=True),
    ),
    "mha_to_gqa": Exercise((pooled_of,), pooled_probes),
    "flash": Exercise((flash_of, unskipped), flash_probes),
    "merge": Exercise((lambda p: p.merge,), merge_probes),
}
