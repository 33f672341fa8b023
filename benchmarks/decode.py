"""Time attention in a decode step on a CPU, with one thread; writes JSON.

    python benchmarks/decode.py

One new query per head attends to a cache of random keys and values in float32.
Projections are left out: they cost the same at every length. All contenders
of a length take turns, in one order and then in the other, and before a cache
is read again others of at least `COLD` bytes have been, as in a model whose
other layers come in between. The clock is the CPU time of the thread, so that
a neighbour who takes the processor away is not counted; one who uses its
memory bandwidth still is. Both ends of the middle half of the times are kept
beside the median.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles

import torch
import torch.nn.functional as F
from torch import Tensor

from attnref import GrowingKVCache, KVCache, sdpa

COLD = 160 * 2**20
KV_HEADS = {"mha": 32, "gqa8": 8, "gqa2": 2, "mqa": 1}
HEADS, WIDTH = 32, 128
Cached = tuple[Tensor, Tensor]


def caches(K: int, tokens: int, cold: int) -> Iterator[Cached]:
    """Keys and values, in turn from so many caches that each is cold."""
    one = torch.randn(2, 1, K, tokens, WIDTH)
    copies = [one.clone() for _ in range(-(-cold // one.nbytes))]
    while True:
        yield from ((k, v) for k, v in copies)


def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    times = HEADS // k.shape[1]
    k, v = (t.repeat_interleave(times, dim=1) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v)


def enabled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows = q.reshape(1, k.shape[1], -1, WIDTH)
    return F.scaled_dot_product_attention(rows, k, v).view(1, HEADS, 1, -1)


def read(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What the memory allows: each element once, and one addition."""
    return k.sum() + v.sum()


def appending(
    cache: KVCache | GrowingKVCache, tokens: int
) -> Callable[[], Cached]:
    K = KV_HEADS["gqa8"]
    cache.append(*torch.randn(2, 1, K, tokens, WIDTH))
    new = torch.randn(2, 1, K, 1, WIDTH)

    def append() -> Cached:
        cache.crop(tokens)
        k, v = cache.append(*new)
        return k, v

    return append


def contenders(tokens: int, cold: int) -> dict[str, Callable[[], object]]:
    q = torch.randn(1, HEADS, 1, WIDTH)
    pools = {name: caches(K, tokens, cold) for name, K in KV_HEADS.items()}

    def on(
        name: str, attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Callable[[], Tensor]:
        return lambda: attend(q, *next(pools[name]))

    ways = {"folded": folded, "enabled": enabled, "repeated": repeated}
    return {
        "read": on("mha", read),
        **{name: on(name, sdpa) for name in KV_HEADS},
        **{name: on("gqa8", attend) for name, attend in ways.items()},
        "room": appending(KVCache(tokens + 1), tokens),
        "cat": appending(GrowingKVCache(), tokens),
    }


def timed(tokens: int, rounds: int, cold: int) -> dict[str, list[float]]:
    """Milliseconds of each contender: lower quartile, median, upper one."""
    runs = contenders(tokens, cold)
    took: dict[str, list[float]] = {name: [] for name in runs}
    for name in runs:
        runs[name]()  # once, not counted
    for _ in range(rounds):
        for name in [*runs, *reversed(runs)]:
            start = time.thread_time_ns()
            runs[name]()
            took[name].append((time.thread_time_ns() - start) / 1e6)
    return {
        name: [float(f"{t:.4g}") for t in quantiles(times, n=4)]
        for name, times in took.items()
    }


def processor() -> str:
    """What the machine says of its processor, which is no name of its own."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [x.split(":")[1].strip() for x in lines if "model name" in x]
    return names[0] if names else platform.machine()


@torch.no_grad()
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[1024, 4096, 16_384]
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--cold", type=int, default=COLD)
    place = Path(__file__).with_suffix(".json")
    parser.add_argument("--out", type=Path, default=place)
    asked = parser.parse_args(arguments)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processor": processor(),
        "cores": os.cpu_count(),
        "busy": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
        "rounds": 2 * asked.rounds,
        "ms": {
            str(tokens): timed(tokens, asked.rounds, asked.cold)
            for tokens in asked.tokens
        },
    }
    torch.set_num_threads(threads)
    # One contender per line: a rerun is then a diff that can be read.
    text = json.dumps(found, indent=1)
    lines = text.replace("[\n    ", "[").replace("\n   ]", "]")
    asked.out.write_text(lines.replace(",\n    ", ", ") + "\n")


if __name__ == "__main__":
    main()
