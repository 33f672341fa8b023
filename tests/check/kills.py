"""What notices each mistake of the catalogue, found by running it.

    python -m tests.check.kills [ID ...]

writes kills.json: for each mistake the tests to copy that fail with its lines,
two of our own tests that do, and whether all shapes stay right. Our own run
with the mistake planted, in a process forked from one that has torch imported;
those that are recorded come first, then the tests of the changed module.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from attnref.check.catalogue import (
    PLAIN,
    Lines,
    Planted,
    catalogue,
    planted,
)
from sitekit import ROOT

RECORD = Path(__file__).with_suffix(".json")
MOST = 2  # tests of our own that are named
# pytest rewrites what it is told to collect: it would find the file as it is.
OPTIONS = ["-q", "--assert=plain", "--hypothesis-seed=0"]
OPTIONS += ["-p", "no:cacheprovider", "-p", "no:xdist"]
OPTIONS += ["-p", "no:unraisableexception", "-p", "no:threadexception"]


class Failures:
    """A pytest plugin: the tests that failed."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)


def tests_of(module: str) -> list[str]:
    """The files with the tests of a module of the package."""
    if module.startswith(PLAIN):
        stem = module.removeprefix(PLAIN)
        own = f"tests/reference/plain/test_{stem}.py"
        if (ROOT / own).exists():
            return [own]
        layer = f"tests/reference/layers/test_{stem}.py"
        every = "tests/reference/plain/test_plain.py", layer
        return [file for file in every if (ROOT / file).exists()]
    folder, _, stem = module.rpartition(".")
    files = ROOT.glob(f"tests/reference/{folder}/test_{stem}.py")
    return [str(file.relative_to(ROOT)) for file in files]


def noticed(id: str, recorded: list[str]) -> list[str]:
    """In a process of its own: the package is imported here, with the fault."""
    variant = catalogue()[id].variants[0]
    finder = Planted(variant)
    for name in [m for m in sys.modules if m.split(".")[0] == "attnref"]:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    # Of work, not of waiting: the machine may be busy with other things.
    signal.setitimer(signal.ITIMER_PROF, 120)
    # Neither the examples of docstrings nor tracebacks are asked for.
    quick = ["-o", "addopts=", "--tb=no", f"--maxfail={MOST}"]
    for tests in (recorded, tests_of(variant[0].module)):
        if tests:
            failures = Failures()
            pytest.main([*OPTIONS, *quick, *tests], plugins=[failures])
            if failures.failed:
                return failures.failed[:MOST]
    return []


def forked(work: Callable[[], list[str]]) -> list[str]:
    """What it gives in a process of its own, which has torch; nothing if that
    is ended."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            os.write(writer, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        text = file.read()
    os.waitpid(pid, 0)
    return list(json.loads(text or b"[]"))


def all_noticed(ids: list[str]) -> dict[str, list[str]]:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    known = {id: record.get(id, {}).get("tests", []) for id in ids}
    return {id: forked(partial(noticed, id, known[id])) for id in ids}


# ------------------------------------------------------------------- shapes


def shapes(variant: tuple[Lines, ...]) -> list[Any]:
    """Of what functions and layers return: all that a test of shapes sees."""
    torch.manual_seed(0)
    made = planted(variant)
    is_plain = variant and variant[0].module.startswith(PLAIN)
    values = of_plain(made) if is_plain else of_package(made)
    return [getattr(value, "shape", value) for value in values]


def of_plain(p: Any) -> list[Any]:
    x = torch.randn(3, 7, 48)
    q, k = torch.randn(3, 6, 7, 8), torch.randn(3, 6, 7, 8)
    valid = torch.ones(3, 7, dtype=torch.bool)
    valid[0, :2] = False
    mask = p.masks.causal_mask(7) & p.masks.padding_mask(valid)
    out, lse = p.flash.flash(q, k, k, mask, tile=(2, 4))
    made = [
        p.softmax.softmax(x),
        p.softmax.online_softmax(x, 5),
        mask,
        p.masks.window_mask(3, 7, 2),
        p.masks.document_mask(valid.long()),
        p.attention.attention(q, k, k, mask),
        *(out, lse, *p.merge.merge([out, out], [lse, lse])),
        p.sinks.attention_with_sinks(q, k, k, torch.zeros(6), mask),
        p.sinks.streaming_mask(3, 7, 1, 2),
        p.alibi.alibi(6, 3, 7),
        p.alibi.slopes(6),
        p.alibi.biased_attention(q, k, k, p.alibi.alibi(6, 7), 5.0, mask),
        *p.ring.RingKVCache(4).append(q, k),
        shared_blocks(p.paged.Pool(3, 4, (2, 8)), q[0, :2]),
        p.order.todays_heads(
            *(q, k, k, k, k[0, 0, 0], k[0, 0, 0]),
            *(lambda x: x, 5.0, torch.zeros(6), mask),
        ),
        p.order.norm_of_all_heads(q, x[0, 0]),
        *p.order.query_and_gate(x, 6),
        p.rope.rope(q, torch.arange(7)),
        p.mha.MHA(48, 6)(x),
        p.mqa.MQA(48, 6)(x),
        p.cross.CrossAttention(48, 6)(x, x[:, :4], valid[:, :4]),
        p.gated_delta.GatedDeltaNet(48, 2, 4, 3, 5)(x, None, valid),
        p.lightning.LightningAttention(48, 6, 8)(x, None, valid),
    ]
    f, v4 = (1.0, 0.1), p.deepseek_v4
    for index in ((), (2, 6, 1)):
        layer = v4.CompressedAttention(48, 6, 8, 3, f, 9, 7, 2, 2, index)
        made += [layer(x), layer(x, None, valid)]
        cache = v4.CompressedCache()
        made += [layer(x[:, :6], cache), layer(x[:, 6:], cache), cache.length]
    mla = p.mla.MLA(48, 6, 10, 6, 4, 5)
    made += [mla(x, absorbed=False), mla(x, None, valid, absorbed=True)]
    for layer, cache in (
        (p.gqa.GQA(48, 6, 2), p.gqa.KVCache(8)),
        (mla, p.mla.KVCache(8)),
        (
            p.dsa.DSA(48, 6, 10, 6, 4, 5, 7, (3, 8, 2), 1e4, True),
            p.dsa.KVCache(8),
        ),
    ):
        made += [layer(x[:, :6], cache), layer(x[:, 6:], cache), cache.length]
    return made


def shared_blocks(pool: Any, new: Any) -> Any:
    table: list[int] = []
    pool.append(table, list(range(7)), new)
    return pool.gather(table, 7)


def of_package(p: Any) -> list[Any]:
    x, q, k = (
        torch.randn(3, 7, 48),
        torch.randn(3, 6, 7, 8),
        torch.randn(3, 2, 7, 8),
    )
    valid = torch.ones(3, 7, dtype=torch.bool)
    valid[0, :2] = False
    mask = p.causal_mask(7) & p.padding_mask(valid)
    made = [
        p.softmax(x),
        p.online_softmax(x, chunk=5),
        p.attention_weights(q, k, mask),
        *(core(q, k, k, mask) for core in (p.sdpa, p.flash)),
        p.fused(q, k, k, mask),
        p.split_kv(q, k, k, mask, sinks=torch.zeros(6)),
        *p.flash_lse(q, k, k, mask),
        *p.rope_table(torch.arange(7), 8),
        p.with_prefix(q, (k[:1], k[:1]), k, k, mask),
    ]
    sizes = {"d_model": 48, "n_heads": 6}
    latent = {"kv_lora_rank": 10, "qk_nope_head_dim": 6, "v_head_dim": 5}
    layers = [
        p.MultiHeadAttention(**sizes, rope_theta=1e4),
        p.MultiQueryAttention(**sizes, rope_theta=1e4),
        p.GroupedQueryAttention(**sizes, n_kv_heads=2, rope_theta=1e4),
        p.MultiHeadLatentAttention(**sizes, **latent, qk_rope_head_dim=4),
    ]
    for layer in layers:
        made.append(layer(x, mask=p.padding_mask(valid)))
        for cache in (p.KVCache(8), p.GrowingKVCache()):
            made += [layer(x[:, :6], cache=cache), layer(x[:, 6:], cache=cache)]
            made.append(cache.length)
        made += layer.state_dict().values()
    ring, token = p.RingKVCache(3, first=1), torch.randn(3, 2, 1, 8)
    made += [*ring.append(token, token), *ring.append(k, k)]
    yarn = p.Yarn(8.0, 4096)
    made += p.rope_table(torch.arange(7), 8, scaling=yarn)
    at = torch.arange(7)
    made.append(p.Chunk(3)(at[:, None], at))
    cross = p.CrossAttention(**sizes)
    made.append(cross(x, x[:, :4]))
    return made


@torch.no_grad()
def same_shape(id: str) -> bool:
    variant = catalogue()[id].variants[0]
    try:
        return shapes(variant) == shapes((Lines(variant[0].module, ()),))
    except Exception:
        return False


def main(ids: list[str]) -> None:
    from tests.check.suites import failing

    record = json.loads(RECORD.read_text(encoding="utf-8"))
    for id, tests in all_noticed(ids).items():
        mistake = catalogue()[id]
        record[id] = {
            "properties": failing(mistake.variants[0]),
            "tests": tests,
            "same_shape": same_shape(id),
        }
    lines = [f'"{id}": {json.dumps(record[id])}' for id in catalogue()]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:] or [*catalogue()])
