"""Several ranks in one process, for exercises: threads that send tensors.

They use the `Group` of plain/ranks.py. Unlike `on_threads` there, nobody waits
for a time limit: once no rank can go on, each is told what it waits for.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnref.judge.catalogue import Plain
from attnref.judge.solution import SolutionError
from attnref.judge.words import phrase
from attnref.words import Text

Group: Any = Plain().ranks.Group


class StuckError(SolutionError):
    """A rank waits for what will never come."""


class RankError(Exception):
    """Its cause ended this rank, and did not end all others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        super().__init__(f"rank {rank} of {size}")


class Ranks:
    """n ranks, and the messages between them."""

    def __init__(self, n: int) -> None:
        self.n, self.change = n, threading.Condition()
        pairs = ((a, b) for a in range(n) for b in range(n))
        self.letters = {pair: deque[Tensor]() for pair in pairs}
        self.waits: dict[int, int] = {}  # a rank, and whom it waits for
        self.ended = set[int]()
        self.stuck: Text | None = None

    def run(self, work: Callable[[Any], Any]) -> list[Any]:
        """What `work(group)` returns on each rank."""
        results: list[Any] = [None] * self.n
        errors = dict[int, BaseException]()
        computes_gradients = torch.is_grad_enabled()  # per thread, in PyTorch
        self.ended, self.stuck = set(), None

        def one(rank: int) -> None:
            try:
                with torch.set_grad_enabled(computes_gradients):
                    results[rank] = work(Group(range(self.n), rank, self))
            except BaseException as error:
                errors[rank] = error
            with self.change:
                self.ended.add(rank)
                self.change.notify_all()

        threads = [
            threading.Thread(target=one, args=(r,), daemon=True)
            for r in range(self.n)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            self.report(errors)
        for (a, b), letters in self.letters.items():
            if letters:
                n = len(letters)
                raise SolutionError("ranks unread", a=a, b=b, n=n)
        return results

    def report(self, errors: dict[int, BaseException]) -> None:
        """Raise the error that ended a rank: others that then waited for it in
        vain are not to blame."""
        first = {
            rank: error
            for rank, error in errors.items()
            if not isinstance(error, StuckError)
        } or errors
        rank = min(first)
        if isinstance(first[rank], SolutionError) or len(first) == self.n:
            raise first[rank]
        raise RankError(rank, self.n) from first[rank]

    def start(
        self,
        me: int,
        out: Sequence[tuple[int, Tensor]],
        into: Sequence[tuple[int, Tensor]],
    ) -> Callable[[], None]:
        """Send and receive, as the links of plain/ranks.py do."""
        with self.change:
            for r, x in out:
                self.letters[me, r].append(x.clone())
            self.change.notify_all()

        def wait() -> None:
            for r, x in into:
                letter = self.receive(me, r)
                got, wanted = ((*y.shape, y.dtype) for y in (letter, x))
                if got != wanted:
                    words = {"got": got, "wanted": wanted}
                    raise SolutionError("ranks other", a=me, b=r, **words)
                x.copy_(letter)

        return wait

    def receive(self, me: int, r: int) -> Tensor:
        with self.change:
            self.waits[me] = r
            while not self.letters[r, me]:
                if self.stuck is None and self.cannot_go_on():
                    self.stuck = self.situation()
                    self.change.notify_all()
                if self.stuck:
                    raise StuckError("ranks stuck", how=self.stuck)
                self.change.wait()
            del self.waits[me]
            return self.letters[r, me].popleft()

    def cannot_go_on(self) -> bool:
        return all(
            a in self.waits and not self.letters[self.waits[a], a]
            for a in range(self.n)
            if a not in self.ended
        )

    def situation(self) -> Text:
        """Which rank waits for which one."""
        texts = [
            phrase(f"ranks {'gone' if b in self.ended else 'wait'}", a=a, b=b)
            for a, b in sorted(self.waits.items())
        ]
        return Text(
            "; ".join(t.en for t in texts), "；".join(t.zh for t in texts)
        )


class OnRanks(torch.autograd.Function):
    """What `work(group, *parts)` returns on each rank, stacked; the first axis
    of each tensor has the parts of the ranks. In the backward pass all ranks
    run again: one thread alone would wait for the others without end."""

    @staticmethod
    def forward(ctx: Any, work: Any, *tensors: Tensor) -> Tensor:
        ctx.ranks = Ranks(len(tensors[0]))
        ctx.leaves = [
            [x.detach().clone().requires_grad_() for x in parts]
            for parts in zip(*tensors, strict=True)
        ]

        def run(group: Any) -> Tensor:
            with torch.set_grad_enabled(any(ctx.needs_input_grad)):
                out: Tensor = work(group, *ctx.leaves[group.rank])
            return out

        ctx.outs = ctx.ranks.run(run)
        return torch.stack([out.detach() for out in ctx.outs])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        def run(group: Any) -> Any:
            r = group.rank
            return torch.autograd.grad(
                ctx.outs[r], ctx.leaves[r], grad[r], materialize_grads=True
            )

        return None, *map(torch.stack, zip(*ctx.ranks.run(run), strict=True))


on_ranks: Callable[..., Tensor] = OnRanks.apply
