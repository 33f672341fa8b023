"""Few queries on several threads: which way leaves none of them idle.

    OMP_WAIT_POLICY=PASSIVE python -m benchmarks.threads --threads 1,2,8,32

The clock is the processor time of the busiest thread. So there may be more
threads than cores, and other programs beside; what a real machine adds to it
is that all its threads share one memory. Writes threads.json, to which a number
of threads is added, or in which it is replaced.
"""

import argparse
import json
import os
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from attnref.core.few import few
from benchmarks.__main__ import text
from benchmarks.cores import DTYPES, folded, torch_sdpa
from benchmarks.timing import Call, Timed, cold, machine, middle

THREADS = Path(__file__).parent / "threads.json"
WAYS = {
    "torch, folded": folded,
    "torch, enable_gqa": partial(torch_sdpa, enable_gqa=True),
    "few": few,
}
# Query heads, key/value heads, width, cached tokens.
SHAPES = {
    "MQA": (32, 1, 128, 16_384),
    "GQA-2": (32, 2, 128, 16_384),
    "GQA-4": (32, 4, 128, 16_384),
    "GQA-8": (32, 8, 128, 16_384),
    "absorbed MLA": (128, 1, 576, 8192),
}


def _time(thread: str) -> int:
    """Nanoseconds that a thread of this process has run, on Linux."""
    return time.clock_gettime_ns(~int(thread) << 3 | 6)


def busiest(call: Call) -> float:
    """Milliseconds of processor time of the thread with most to do."""
    tasks = "/proc/self/task"
    before = {thread: _time(thread) for thread in os.listdir(tasks)}
    call()
    times = (_time(n) - before.get(n, 0) for n in os.listdir(tasks))
    return max(times) / 1e6


def step(dtype: str, shape: str) -> Timed:
    """One new token; an absorbed entry is both key and value."""
    H, K, D, tokens = SHAPES[shape]
    q = torch.randn(1, H, 1, D).to(DTYPES[dtype])
    k = torch.randn(1, K, tokens, D).to(DTYPES[dtype])
    if K == 1 and H == 128:

        def of_entry(way: object, q: Tensor, entry: Tensor) -> Tensor:
            return way(q, entry, entry)  # type: ignore[operator,no-any-return]

        ways = {name: partial(of_entry, way) for name, way in WAYS.items()}
        return Timed(ways, cold((q, k)))
    return Timed(WAYS, cold((q, k, torch.randn_like(k))))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.threads")
    parser.add_argument("--threads", default="1,2,8,32")
    parser.add_argument("--seconds", type=float, default=0.8, help="a size")
    parser.add_argument("--out", type=Path, default=THREADS)
    options = parser.parse_args(arguments)
    if os.environ.get("OMP_WAIT_POLICY") != "PASSIVE":
        parser.error("set OMP_WAIT_POLICY=PASSIVE: who waits is not busy then")
    out, at = options.out, {}
    if out.exists():
        at = json.loads(out.read_text(encoding="utf-8"))["at"]
    before = torch.get_num_threads()
    for count in map(int, options.threads.split(",")):
        torch.set_num_threads(count)
        for size in ((d, s) for d in DTYPES for s in SHAPES):
            torch.manual_seed(0)
            with torch.no_grad():
                took = step(*size).measure(options.seconds, busiest).values
            counts = at.setdefault(", ".join(size), {})
            counts[str(count)] = {n: middle(x) for n, x in took.items()}
            print(count, *size, counts[str(count)])
    torch.set_num_threads(before)
    about = machine(("torch",))
    del about["threads"]
    out.write_text(text(about | {"at": at}), encoding="utf-8")


if __name__ == "__main__":
    main()
