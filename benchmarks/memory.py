"""What no clock shows: peaks of memory, and imports, in fresh processes.

    python -m benchmarks.memory "flash" float32 GQA 4096

prints the megabytes that this way to attend takes at its peak, beyond its
inputs and its output. It is the sum of what torch's allocator gave and took
back, inside kernels too. The memory of the process would also hold what ran
before, and what was freed and not returned.
"""

import sys
from itertools import accumulate
from typing import Any

import torch
from torch.profiler import profile

from benchmarks.cores import CAUSAL, SLOW, WINDOWED, prompt
from benchmarks.timing import Processes

IMPORT = """
import time, torch
start = time.process_time()
import attnref
names = [getattr(attnref, name) for name in attnref.__all__]
print((time.process_time() - start) * 1e3)
"""


def allocations(log: profile) -> list[int]:
    """Bytes, in the order of time; below 0 where they were freed."""
    assert log.profiler is not None and log.profiler.kineto_results is not None
    waiting: list[Any] = log.profiler.kineto_results.experimental_event_tree()
    events = []
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.name == "[memory]":
            size = event.typed[1].alloc_size
            events.append((event.start_time_ns, len(events), size))
    return [size for _, _, size in sorted(events)]


@torch.no_grad()
def peak(way: str, dtype: str, shape: str, tokens: int) -> float:
    torch.set_num_threads(1)
    call = (WINDOWED if shape == "window" else CAUSAL)[way]
    given = prompt(dtype, shape, tokens)
    call(*prompt(dtype, shape, 512))  # what libraries keep
    with profile(profile_memory=True) as log:
        out = call(*given)
    return (max(accumulate(allocations(log))) - out.nbytes) / 1e6


def memory(dtype: str, shape: str, tokens: int) -> Processes:
    """At the peak of a prompt, beyond inputs and output."""
    sizes = [dtype, shape, str(tokens)]
    ways = (
        [*WINDOWED]
        if shape == "window"
        else [
            name
            for name in CAUSAL
            if (tokens <= 4096 or name not in (*SLOW, "torch, bool mask"))
            and (shape == "MLA" or name != "torch, padded values")
        ]
    )
    return Processes(
        "MB", {n: ["-m", "benchmarks.memory", n, *sizes] for n in ways}
    )


def imports() -> Processes:
    """After torch: attnref, with all its names."""
    return Processes("ms", {"attnref": ["-c", IMPORT]}, runs=5)


if __name__ == "__main__":
    way, dtype, shape, tokens = sys.argv[1:]
    print(peak(way, dtype, shape, int(tokens)))
