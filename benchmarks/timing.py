"""How contenders are timed: in turns, in one order and then in the other.

Every turn runs each contender once, so that a ratio of two is taken between
neighbours in time; the median of these ratios does not move when the machine
becomes slower for a while. The clock is an argument: `cpu` counts the time of
this thread, so that a neighbour who takes the processor away is not counted;
one who uses its memory bandwidth still is.
"""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Protocol

import torch
from torch import Tensor

Call = Callable[[], object]
Clock = Callable[[Call], float]
COLD = 160 * 2**20  # bytes to read before the same cache is read again
SIDE = 768  # of the matrices whose product is the probe of arithmetic
READ, GEMM = "read the inputs", "matrix product"
LIBRARIES = ("torch", "transformers", "x-transformers")


def cpu(call: Call) -> float:
    """Milliseconds of processor time of this thread."""
    start = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - start) / 1e6


def in_turns(
    calls: dict[str, Call],
    *,
    seconds: float,
    turns: tuple[int, int] = (4, 60),
    clock: Clock = cpu,
) -> dict[str, list[float]]:
    """What each takes in each turn, for about so many seconds.

    `turns` bounds how often each one runs, whatever the seconds are.
    """
    for call in calls.values():
        call()  # once, not counted
    took: dict[str, list[float]] = {name: [] for name in calls}
    fewest, most = turns
    end = time.monotonic() + seconds
    for turn in range(most):
        if turn >= fewest and turn % 2 == 0 and time.monotonic() > end:
            break
        for name in (*calls,) if turn % 2 == 0 else reversed(calls):
            took[name].append(clock(calls[name]))
    return took


@dataclass
class Measured:
    """What was measured of each contender, in each turn."""

    unit: str
    values: dict[str, list[float]]
    shares: dict[str, list[float]] = field(default_factory=dict)
    probes: dict[str, list[float]] = field(default_factory=dict)

    def ratios(self, name: str, base: str) -> list[float]:
        """How many times that of `base` the value is, turn by turn."""
        pairs = zip(self.values[name], self.values[base], strict=True)
        return [a / b for a, b in pairs]

    def with_slow(self, ours: str, slow: str) -> "Measured":
        """As if ours were this slow one."""
        values = self.values | {ours: self.values[slow]}
        shares = self.shares | {ours: self.shares.get(slow, [])}
        return replace(self, values=values, shares=shares)


class Setting(Protocol):
    """One line of an experiment: all contenders at one size."""

    def only(self, names: Collection[str]) -> "Setting":
        """The same with these contenders alone."""
        ...

    def measure(self, seconds: float, clock: Clock = ...) -> Measured: ...

    def errors(self) -> dict[str, float]:
        """Of each, where there is a truth in float64."""
        ...


@dataclass
class Timed:
    """Contenders that are called on the same inputs; the first is the base.

    `pool` holds copies of the inputs, of which each call takes the next one,
    so that it finds none of it in the processor's cache. `truth` computes the
    result in float64. With `flops`, what the machine could do at best is
    measured beside the contenders: adding up all elements of the inputs after
    the first, and so many operations of a product of matrices `side` wide. The
    greater of both is the limit, and a share is the limit divided by the time.
    """

    ways: dict[str, Callable[..., Any]]
    pool: Sequence[tuple[Any, ...]] = ((),)
    truth: Callable[..., Tensor] | None = None
    flops: int = 0
    side: int = SIDE
    # Calls per turn, of those where one is too short for the clock.
    repeats: Mapping[str, int] = field(default_factory=dict)

    def only(self, names: Collection[str]) -> "Timed":
        ways = {n: way for n, way in self.ways.items() if n in names}
        return replace(self, ways=ways)

    def measure(self, seconds: float, clock: Clock = cpu) -> Measured:
        inputs = cycle(self.pool)

        def on_inputs(way: Callable[..., Any], repeats: int = 1) -> Call:
            if repeats == 1:
                return lambda: way(*next(inputs))
            return lambda: [way(*next(inputs)) for _ in range(repeats)]

        calls = {
            name: on_inputs(way, self.repeats.get(name, 1))
            for name, way in self.ways.items()
        }
        if self.flops:
            first, *_ = self.pool[0]
            sizes = 2, self.side, self.side
            a, b = torch.randn(sizes, device=first.device).to(first)
            calls[READ] = on_inputs(read)
            calls[GEMM] = lambda: a @ b
        took = in_turns(calls, seconds=seconds, clock=clock)
        result = Measured("ms", {})
        for name, times in took.items():
            if name in self.ways:
                repeated = self.repeats.get(name, 1)
                result.values[name] = [t / repeated for t in times]
        if self.flops:
            product = 2 * self.side**3
            products = [t * self.flops / product for t in took[GEMM]]
            limit = [*map(max, took[READ], products)]
            for name, times in result.values.items():
                pairs = zip(limit, times, strict=True)
                result.shares[name] = [least / t for least, t in pairs]
            large = sum(x.nbytes for x in self.pool[0][1:])
            result.probes = {
                "GB/s": [large / t / 1e6 for t in took[READ]],
                "GFLOP/s": [product / t / 1e6 for t in took[GEMM]],
            }
        return result

    def errors(self) -> dict[str, float]:
        """Of each: the largest error, relative to the largest element."""
        if self.truth is None:
            return {}
        wide = [
            x.double() if isinstance(x, Tensor) and x.is_floating_point() else x
            for x in self.pool[0]
        ]
        want = self.truth(*wide)
        largest = want.abs().max()
        return {
            name: float((way(*self.pool[0]) - want).abs().max() / largest)
            for name, way in self.ways.items()
        }


@dataclass
class Processes:
    """Each contender in a process of its own: what it prints is its value."""

    unit: str
    commands: dict[str, list[str]]
    runs: int = 1

    def only(self, names: Collection[str]) -> "Processes":
        chosen = {n: way for n, way in self.commands.items() if n in names}
        return replace(self, commands=chosen)

    def errors(self) -> dict[str, float]:
        return {}

    def measure(self, seconds: float, clock: Clock = cpu) -> Measured:
        result = Measured(self.unit, {name: [] for name in self.commands})
        for _ in range(self.runs):
            for name, command in self.commands.items():
                done = subprocess.run(
                    [sys.executable, *command],
                    cwd=Path(__file__).parents[1],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                result.values[name].append(float(done.stdout))
        return result


def read(first: Tensor, *inputs: Tensor) -> list[Tensor]:
    """Each element once, and one addition; halves are added in pairs."""
    wide = [x.view(torch.float32) for x in inputs]
    return [x.sum() for x in wide]


def cold(one: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    """The inputs, and copies of all but the first, `COLD` bytes in all."""
    first, *large = one
    copies = -(-COLD // max(1, sum(x.nbytes for x in large)))
    rest = [(first, *(x.clone() for x in large)) for _ in range(1, copies)]
    return [one, *rest]


def middle(values: Sequence[float]) -> list[float]:
    """Lower quartile, median and upper quartile, to four digits."""
    if len(values) == 1:
        values = [*values, *values]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return [float(f"{x:.4g}") for x in (low, median(values), high)]


def machine(libraries: Sequence[str] = LIBRARIES) -> dict[str, object]:
    """What the machine is, without a name of its own."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [x.split(":")[1].strip() for x in lines if "model name" in x]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "threads": 1,
        "python": platform.python_version(),
        **{name: version(name) for name in libraries},
    }
