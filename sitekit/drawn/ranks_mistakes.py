"""Which check notices which mistake on several devices."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attnref.judge.catalogue import Plain, mistakes_by_file
from attnref.judge.exercises import (
    EXERCISES,
    HEADS_SPLIT,
    TOKENS_SPLIT,
    Draw,
    Drive,
    Inputs,
    Solution,
    Split,
    call_on_ranks,
    gradients_on_ranks,
    places,
    text_on_ranks,
)
from attnref.words import Text
from sitekit.markdown.render import Row, Word

TOKENS, HEADS, KEY_HEADS = 16, 8, 2
Run = Callable[[Plain, Inputs], tuple[Tensor, ...]]


class Subject(NamedTuple):
    """How plain forms compute on all ranks: the output and the gradients of inputs, and in
    which inputs a token stands."""

    output: Run
    gradients: Run
    make: Callable[[int], Inputs]
    tokens: tuple[str, ...]
    axis: int
    first: list[int]  # the tokens of the first of four ranks


def _exercise(name: str, split: Split, function: str = "") -> tuple[Run, Run]:
    """The plain forms of an exercise: the output of all ranks, and the gradients."""
    form = EXERCISES[name].forms[1]

    def run(drive: Drive, p: Plain, inputs: Inputs) -> tuple[Tensor, ...]:
        return drive(Solution(name, form.make(p)), inputs)

    output, gradients = call_on_ranks(split, function), gradients_on_ranks(split, function)
    return partial(run, output), partial(run, gradients)


def _text(n: int) -> Inputs:
    return text_on_ranks(Draw(1), places(n, TOKENS), 1, HEADS, KEY_HEADS, 4, 4)


def _ring(n: int) -> Inputs:
    return _text(n) | {"sinks": torch.ones(HEADS).double()}


def _layer(n: int) -> Inputs:
    draw = Draw(1)
    inputs: Inputs = {"x": draw(1, TOKENS, 6)}
    rows = {"w_q": HEADS, "w_k": KEY_HEADS, "w_v": KEY_HEADS}
    inputs |= {name: draw(4 * heads, 6, limit=3) for name, heads in rows.items()}
    sizes = {"n_heads": HEADS, "n_kv_heads": KEY_HEADS, "ranks": n}
    return inputs | {"w_o": draw(6, 4 * HEADS, limit=3)} | sizes


def _recurrence(n: int) -> Inputs:
    draw, shape = Draw(1), (1, 2, TOKENS)
    inputs: Inputs = {"q": draw(*shape, 4), "k": F.normalize(draw(*shape, 4), dim=-1)}
    inputs |= {"v": draw(*shape, 4), "decay": -draw(*shape).abs() / 9}
    return inputs | {"beta": draw(*shape).sigmoid(), "ranks": n}


def _relayed(p: Plain, inputs: Inputs, *, gradients: bool = False) -> tuple[Tensor, ...]:
    """The delta rule over a text in equal parts."""
    *tensors, n = inputs.values()

    def work(group: Any) -> list[Tensor]:
        parts = [x.chunk(n, dim=2)[group.rank].clone().requires_grad_() for x in tensors]
        out, _ = p.relay.relay(p.gated_delta.delta_rule, *parts, group=group)
        above = torch.arange(TOKENS * 8.0).cos().view(1, 2, TOKENS, 4).chunk(n, dim=2)
        if gradients:
            return [*torch.autograd.grad(out, parts, above[group.rank].to(out))]
        return [out.detach()]

    ranks = zip(*p.ranks.on_threads(work, n), strict=True)
    return tuple(torch.cat(parts, dim=2) for parts in ranks)


def _subjects() -> dict[str, Subject]:
    zigzag, whole = [0, 1, 14, 15], [*range(TOKENS)]
    ring = _exercise("ring_attention", TOKENS_SPLIT)
    ulysses = _exercise("split_heads", TOKENS_SPLIT, "ulysses")
    heads = _exercise("split_heads", HEADS_SPLIT, "tensor_parallel")
    relay = _relayed, partial(_relayed, gradients=True)
    return {
        "plain.ring_attention": Subject(*ring, _ring, ("k", "v"), 2, zigzag),
        "plain.ulysses": Subject(*ulysses, _text, ("k", "v"), 2, zigzag),
        "plain.tensor_parallel": Subject(*heads, _layer, ("x",), -2, whole),
        "plain.relay": Subject(*relay, _recurrence, ("v",), 2, [0, 1, 2, 3]),
    }


def _differ(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    return any(bool((a - b).abs().max() > 1e-6) for a, b in zip(one, other, strict=True))


def _norm(tensors: tuple[Tensor, ...]) -> tuple[Tensor]:
    return (torch.cat([x.flatten() for x in tensors]).norm(),)


def _notices(subject: Subject, p: Plain) -> Iterator[bool]:
    """What each check says of plain forms: whether it notices something."""
    right, inputs = Plain(), subject.make(4)
    (out,), (want,) = subject.output(p, inputs), subject.output(right, inputs)

    def moved(token: int) -> Tensor:
        """By how much each token's output moves if this token changes."""
        changed = dict(inputs)
        for name in subject.tokens:
            changed[name] = inputs[name].clone()
            changed[name].select(subject.axis, token).add_(1)
        (other,) = subject.output(p, changed)
        return (other - out).abs().movedim(-2, 0).flatten(1).amax(dim=1)

    yield _differ((out,), (want,))
    yield bool((moved(0) < 1e-6).any())  # a token that does not see the first one
    yield bool((moved(TOKENS - 1)[:-1] > 1e-6).any())  # one that sees the last one
    first = torch.tensor(subject.first)
    yield _differ((out.index_select(-2, first),), (want.index_select(-2, first),))
    gradients, expected = (subject.gradients(x, inputs) for x in (p, right))
    yield _differ(gradients, expected)
    yield _differ(_norm(gradients), _norm(expected))
    two = subject.make(2)
    runs = (subject.output, subject.gradients)
    yield any(_differ(run(p, two), run(right, two)) for run in runs)


def checks() -> Iterator[Row]:
    """A mistake, and which checks notice it."""
    subjects = _subjects()
    for id, title, _, variants in mistakes_by_file()["ranks"]:
        p = Plain(variants[0])
        noticed = _notices(subjects[variants[0][0].module], p)
        link = Text(*(f"[{words}](#{id})" for words in title))
        yield [link, *(Word("yes" if x else "no") for x in noticed)]
