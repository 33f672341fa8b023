"""What stays in no clock: peaks of memory, and imports, in fresh processes.

    python -m benchmarks.memory "flash" float32 GQA 4096

prints the megabytes that this way to attend takes at its peak, beyond its
inputs and its output.
"""

import re
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.cores import CAUSAL, SLOW, prompt
from benchmarks.timing import Clock, Found, cpu

ROOT = Path(__file__).parents[1]
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


@dataclass
class Processes:
    """Each contender in a process of its own: what it prints is its value."""

    unit: str
    commands: dict[str, list[str]]
    runs: int = 1

    def only(self, names: Collection[str]) -> "Processes":
        kept = {n: way for n, way in self.commands.items() if n in names}
        return replace(self, commands=kept)

    def errors(self) -> dict[str, float]:
        return {}

    def measure(self, seconds: float, clock: Clock = cpu) -> Found:
        found = Found(self.unit, {name: [] for name in self.commands})
        for _ in range(self.runs):
            for name, command in self.commands.items():
                done = subprocess.run(
                    [sys.executable, *command],
                    cwd=ROOT,
                    capture_output=True,
                    text=True,
                    check=True,
                )
                found.values[name].append(float(done.stdout))
        return found


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
