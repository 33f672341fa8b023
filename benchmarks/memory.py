"""What stays in no clock: peaks of memory, and imports, in fresh processes.

    python -m benchmarks.memory "flash" float32 GQA 4096

prints the megabytes that this way to attend takes at its peak, beyond its
inputs and its output.
"""

import re
import sys
from pathlib import Path

import torch

from benchmarks.cores import CAUSAL, SLOW, prompt
from benchmarks.timing import Processes

IMPORT = """
import time, torch
start = time.process_time()
import attnref
names = [getattr(attnref, name) for name in attnref.__all__]
print((time.process_time() - start) * 1e3)
"""


def megabytes(name: str) -> float:
    """Of this process, in the words of Linux: VmRSS, or VmHWM for the peak."""
    status = Path("/proc/self/status").read_text()
    (found,) = re.findall(rf"{name}:\s+(\d+) kB", status)
    return int(found) * 1024 / 1e6


@torch.no_grad()
def peak(way: str, dtype: str, shape: str, tokens: int) -> float:
    torch.set_num_threads(1)
    given = prompt(dtype, shape, tokens)
    CAUSAL[way](*prompt(dtype, shape, 512))  # what libraries keep
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far
    before = megabytes("VmRSS")
    out = CAUSAL[way](*given)
    return megabytes("VmHWM") - before - out.nbytes / 1e6


def memory(dtype: str, shape: str, tokens: int) -> Processes:
    """At the peak of a prompt, beyond inputs and output."""
    sizes = [dtype, shape, str(tokens)]
    ways = [
        name
        for name in CAUSAL
        if (tokens <= 4096 or name not in (*SLOW, "torch, bool mask"))
        and (shape == "MLA" or name != "torch, padded values")
    ]
    return Processes(
        "MB", {n: ["-m", "benchmarks.memory", n, *sizes] for n in ways}
    )


def imports() -> Processes:
    """After torch: attnref, with all its names."""
    return Processes("ms", {"attnref": ["-c", IMPORT]}, runs=5)


if __name__ == "__main__":
    way, dtype, shape, tokens = sys.argv[1:]
    print(peak(way, dtype, shape, int(tokens)))
