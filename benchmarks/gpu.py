"""Measures attention alone on one GPU, in bfloat16, within ten minutes.

    python -m benchmarks.gpu                  writes benchmarks/gpu.json
    python -m benchmarks.gpu --device cpu     tiny sizes, to try the script

It needs PyTorch and nothing else. The file has the structure of
`measured.json`, see `__main__.py`, and is written after each size. `gpu` names
the device, its driver and its libraries. At each size there are also `kernels`,
those that a contender runs in one call, as PyTorch's profiler names them, and
`skipped`: which contenders cannot run, and what PyTorch says of it. `left_out`
lists the sizes that are not measured, with the reason.
"""

import argparse
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from attnref import flex, fused, sdpa, split_kv
from attnref.kernels.decode import decode as kernels_decode
from attnref.kernels.flash import flash as kernels_flash
from attnref.kernels.mla_decode import mla_decode
from benchmarks.__main__ import entry, key, text
from benchmarks.cores import (
    CAUSAL,
    DTYPES,
    EXACT,
    HEADS,
    KV_HEADS,
    SHAPES,
    WIDTH,
    folded,
    prompt,
    repeated,
    torch_sdpa,
    triangle,
)
from benchmarks.goals import At, Goal
from benchmarks.timing import Call, Clock, Measured, Timed, cold, cpu, machine

OUT = Path(__file__).with_name("gpu.json")
Way = Callable[..., Tensor]
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
# Query heads over one absorbed key head, 576 wide, whose first 512 elements
# are the values: DeepSeek-V2-Lite's and DeepSeek-V3's.
ABSORBED = {"MLA-16": 16, "MLA-128": 128}
LATENT, RANK = 576, 512
SIDES = {"cuda": 4096, "cpu": 64}  # of the matrices of the probe
AXES = {
    "decode": ("dtype", "heads", "batch", "tokens"),
    "prefill": ("dtype", "shape", "tokens"),
}


def sizes(
    batches: Sequence[int], cached: Sequence[int], prompts: Sequence[int]
) -> list[tuple[str, At]]:
    heads = (*KV_HEADS, *ABSORBED)
    steps = [(h, b, n) for n in cached for b in batches for h in heads]
    return [
        *(("decode", ("bfloat16", *at)) for at in steps if at[0] != "GQA-2"),
        *(("prefill", ("bfloat16", s, n)) for n in prompts for s in SHAPES),
    ]


SIZES = {
    "cuda": sizes(
        (1, 16, 64), (8192, 32_768, 131_072), (1024, 2048, 4096, 16_384)
    ),
    "cpu": sizes((3,), (16,), (16,)),
}
GOALS = [
    Goal(
        f"decode core on a GPU, {heads}",
        "decode",
        tuple(
            ("bfloat16", heads, batch, n)
            for batch in (16, 64)
            for n in (32_768, 131_072)
        ),
        ours,
        "share",
        least=least,
    )
    for heads, ours, least in (
        ("GQA-8", "fused", 0.6),
        ("MLA-16", "fused", 0.4),
        ("MLA-128", "fused", 0.4),
    )
]
GOALS += [
    Goal(
        f"decode by a kernel, {heads}",
        "decode",
        tuple(("bfloat16", heads, batch, 131_072) for batch in (1, 16)),
        "kernel",
        "share",
        least=0.6,
    )
    for heads in ("GQA-8", "MLA-16", "MLA-128")
]
GOALS.append(
    Goal(
        "prompt by a kernel, GQA",
        "prefill",
        (("bfloat16", "GQA", 16_384),),
        "kernel",
        "times as fast",
        "is_causal, flash",
        least=0.6,
    )
)


def events(call: Call) -> float:
    """Milliseconds between two events on the GPU.

    It sleeps for about a millisecond first, in which the host puts the kernels
    of the call into the queue: a step of a model does not wait for the host
    either, if it is a CUDA graph.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
    torch.cuda._sleep(2_000_000)  # cycles
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


CLOCKS: dict[str, Clock] = {"cuda": events, "cpu": cpu}


def forced(way: Way, backend: SDPBackend) -> Way:
    """With this kernel of PyTorch alone."""

    def run(*given: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return way(*given)

    return run


def bytes_of(case: str, at: At) -> int:
    """Of all keys and values."""
    *_, tokens = at
    if case == "decode":
        _, heads, batch, _ = at
        absorbed = heads in ABSORBED
        row = LATENT if absorbed else 2 * KV_HEADS[heads] * WIDTH
        return int(batch * tokens * row * DTYPES[at[0]].itemsize)
    _, K, D, Dv = SHAPES[at[1]]
    return int(tokens * K * (D + Dv) * DTYPES[at[0]].itemsize)


def decode(
    device: str, dtype: str, heads: str, batch: int, tokens: int
) -> Timed:
    """One new query per row and head attends to so many keys and values."""
    random = partial(torch.randn, device=device, dtype=DTYPES[dtype])
    enabled = partial(torch_sdpa, enable_gqa=True)
    ways: dict[str, Way] = {
        "torch, enable_gqa": enabled,
        "sdpa": sdpa,
        "fused": fused,
    }
    if tokens <= EXACT:  # one is a loop in Python, one compiles for seconds
        ways["split_kv"] = split_kv
        ways["flex"] = partial(flex, compiled=device != "cpu")
    for name, backend in BACKENDS.items():
        ways[f"folded, {name}"] = forced(folded, backend)
    H, width, values = HEADS, WIDTH, WIDTH
    lengths = torch.full((batch,), tokens, dtype=torch.int32, device=device)
    ways["kernel"] = lambda q, k, v: kernels_decode(q, k, v, lengths)
    if heads != "MHA":
        ways["torch, repeat_interleave"] = repeated
        for name, backend in BACKENDS.items():
            ways[f"enable_gqa, {name}"] = forced(enabled, backend)
    if heads in ABSORBED:
        H, width, values = ABSORBED[heads], LATENT, RANK
        stored = (random(batch, 1, tokens, width),)
        ways = {
            name: lambda q, x, way=way: way(q, x, x[..., :RANK])
            for name, way in ways.items()
        }
        ways["kernel"] = lambda q, x: mla_decode(
            q, x[:, 0], lengths, RANK, scale=LATENT**-0.5
        )
    else:
        stored = tuple(
            random(batch, KV_HEADS[heads], tokens, width) for _ in "kv"
        )
    truth = ways["sdpa"] if batch * tokens <= EXACT else None
    one = (random(batch, H, 1, width), *stored)
    flops = 2 * batch * H * tokens * (width + values)
    return Timed(
        ways,
        cold(one) if device == "cuda" else [one],
        truth,
        flops=flops,
        side=SIDES[device],
    )


def prefill(device: str, dtype: str, shape: str, tokens: int) -> Timed:
    """A prompt under the causal mask."""
    ways = {
        name: way
        for name, way in CAUSAL.items()
        if shape == "MLA" or name != "torch, padded values"
    }
    # A loop in Python: tiles that are large enough for a GPU.
    ways["flash"] = partial(CAUSAL["flash"], tile=(1024, 1024))
    for name, backend in BACKENDS.items():
        ways[f"is_causal, {name}"] = forced(CAUSAL["torch, is_causal"], backend)

    def flexible(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex(q, k, v, triangle(q), compiled=device != "cpu")

    ways["flex"] = flexible
    ways["kernel"] = lambda q, k, v: kernels_flash(q, k, v)[0]
    truth = CAUSAL["sdpa"] if tokens <= 2048 else None
    H, _, D, Dv = SHAPES[shape]
    flops = H * tokens * (tokens + 1) * (D + Dv)
    given = prompt(dtype, shape, tokens, device)
    return Timed(ways, [given], truth, flops=flops, side=SIDES[device])


MAKE: dict[str, Callable[..., Timed]] = {"decode": decode, "prefill": prefill}


def kernels(call: Call, device: str) -> list[str]:
    """Those of one call, each once; on a CPU PyTorch's operators."""
    kind = device.upper()
    both = {ProfilerActivity.CPU, getattr(ProfilerActivity, kind)}
    with profile(activities=both) as seen:
        call()
        if device == "cuda":  # they run after the call has returned
            torch.cuda.synchronize()
    names = [
        event.name.removeprefix("void ").split("<")[0]
        for event in seen.events() or ()
        if event.device_type == getattr(DeviceType, kind)
    ]
    return [*dict.fromkeys(names)]


def tried(
    setting: Timed, device: str
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """What runs, with the names of its kernels; what does not, and why."""
    ran: dict[str, list[str]] = {}
    skipped = {}
    for name, way in setting.ways.items():
        call = partial(way, *setting.pool[0])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                call()  # compiles
                ran[name] = kernels(call, device)
            except Exception as error:  # compilers may raise any
                reasons = [str(error), *(str(x.message) for x in caught)]
                lines = [x.split("\n")[0].split(" (Trig")[0] for x in reasons]
                skipped[name] = " ".join(dict.fromkeys(lines))
    return ran, skipped


def about(device: str) -> dict[str, object]:
    """The device, or the CPU that stands for it."""
    result: dict[str, object] = {
        "device": device,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }
    if device == "cuda":
        result["device"] = torch.cuda.get_device_name()
        if shutil.which("nvidia-smi"):
            query = ["--query-gpu=driver_version", "--format=csv,noheader"]
            driver = subprocess.check_output(["nvidia-smi", *query], text=True)
            result["driver"] = driver.split()[0]
    return result


def why_not(size: tuple[str, At], device: str, is_late: bool) -> str:
    """Why this size is not measured, if it is not."""
    if is_late:
        return "no time left"
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.compiler.reset()  # after many sizes it compiles no more
        free, _ = torch.cuda.mem_get_info()
        if bytes_of(*size) > free // 2:  # the other half is for contenders
            many = f"{bytes_of(*size) / 1e9:.0f} GB of keys and values"
            return f"{many}, in {free / 1e9:.0f} GB of memory"
    return ""


@torch.no_grad()
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--device", choices=CLOCKS, default="cuda")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=1.0, help="per size")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    device = options.device
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU here; --device cpu tries the script")
    start, longest = time.monotonic(), 0.0
    results: dict[tuple[str, At], Measured] = {}
    cases: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    lines: list[dict[str, object]] = []
    wanted = {(goal.case, at) for goal in GOALS for at in goal.at}
    plan = sorted(SIZES[device], key=lambda size: size not in wanted)
    for number, (case, at) in enumerate(plan):
        began = time.monotonic()
        left = 60 * options.minutes - (began - start)
        where = f"{number + 1} of {len(plan)}, {case} {key(at)}"
        sys.stderr.write(f"{where}, at most {left:.0f} s left\n")
        is_late = left < max(longest, 1e-9)
        if reason := why_not((case, at), device, is_late):
            left_out[f"{case}, {key(at)}"] = reason
        else:
            torch.manual_seed(0)
            setting = MAKE[case](device, *at)
            ran, skipped = tried(setting, device)
            longest = max(longest, time.monotonic() - began)
            if not ran:
                left_out[f"{case}, {key(at)}"] = " ".join({*skipped.values()})
            else:
                setting = setting.only(ran)
                now = setting.measure(options.seconds, CLOCKS[device])
                results[case, at] = now
                header: dict[str, Any] = {"axes": AXES[case], "unit": now.unit}
                header["date"] = datetime.now(UTC).strftime("%Y-%m-%d")
                beside = {"kernels": ran, "skipped": skipped}
                row = entry(now, setting.errors()) | beside
                cases.setdefault(case, header | {"at": {}})["at"][key(at)] = row
                longest = max(longest, time.monotonic() - began)
                lines += [
                    goal.line(results, at)
                    for goal in GOALS
                    if (case, at) in {(goal.case, x) for x in goal.at}
                    and goal.ours in ran
                ]
            del setting  # before the next one is made
        result = machine(["torch"]) | {"gpu": about(device), "cases": cases}
        result |= {"goals": lines, "left_out": left_out}
        options.out.write_text(text(result), encoding="utf-8")
    for line in lines:
        verdict = "met" if line["met"] else "MISSED"
        sys.stderr.write(f"{verdict}: {line}\n")


if __name__ == "__main__":
    main()
