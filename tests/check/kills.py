"""What notices each mistake of the catalogue, found by running it.

    python -m tests.check.kills [ID ...]

writes kills.json: for each mistake the tests to copy that fail with its lines,
two of our own tests that fail, and whether all shapes stay right. Our own tests
run with the mistake planted, in a process forked from one that has torch
imported: first the tests on record, then those of the changed module, then
those of all cores.

    python -m tests.check.kills LAYER

plants the faults of `faults.py` in `attnref/layers/LAYER.py` instead, and says
of each which test of `tests/reference` notices it. It records nothing.
"""

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from attnref.judge.catalogue import (
    PLAIN,
    Lines,
    Planted,
    catalogue,
    planted,
)
from sitekit import ROOT
from tests.check.faults import Fault, faults

RECORD = Path(__file__).with_suffix(".json")
MAX_TESTS = 2  # tests of our own that are named
CORE_TESTS = ["tests/reference/core/test_cores.py"]  # the properties of all
# pytest rewrites what it is told to collect: it would find the file as it is.
OPTIONS = ["-q", "--assert=plain", "--hypothesis-seed=0"]
OPTIONS += ["-p", "no:cacheprovider", "-p", "no:xdist"]
OPTIONS += ["-p", "no:unraisableexception", "-p", "no:threadexception"]


class Failures:
    """A pytest plugin that keeps the names of the tests that failed."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)


def tests_of(module: str) -> list[str]:
    """The files with the tests of a module of the package."""
    if module.startswith(PLAIN):
        stem = module.removeprefix(PLAIN)
        path = f"tests/reference/plain/test_{stem}.py"
        if (ROOT / path).exists():
            return [path]
        several = "tests/reference/plain/test_ranks.py"
        text = (ROOT / several).read_text(encoding="utf-8")
        if re.search(rf"plain(\.| import ){stem}\b", text):
            return [several]
        layer = f"tests/reference/layers/test_{stem}.py"
        paths = "tests/reference/plain/test_plain.py", layer
        return [file for file in paths if (ROOT / file).exists()]
    folder, _, stem = module.rpartition(".")
    files = ROOT.glob(f"tests/reference/{folder}/test_{stem}.py")
    return [str(file.relative_to(ROOT)) for file in files]


def failing_tests(id: str, known_tests: list[str]) -> list[str]:
    """The first of our own tests that fail with this mistake planted.

    This has to run in a process of its own, as the package is imported anew.
    """
    variant = catalogue()[id].variants[0]
    suites = known_tests, tests_of(variant[0].module), CORE_TESTS
    return failures_of(Planted(variant), *suites, most=MAX_TESTS)


def failures_of(
    finder: Planted, *suites: list[str], most: int, seconds: int = 120
) -> list[str]:
    """The first tests that fail of the first suite in which some do."""
    for name in [m for m in sys.modules if m.split(".")[0] == "attnref"]:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    # The limit is on computing time: the machine may be busy otherwise.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    # Without the examples of docstrings, and without tracebacks.
    quick = ["-o", "addopts=", "--tb=no", f"--maxfail={most}"]
    for tests in suites:
        if tests:
            failures = Failures()
            pytest.main([*OPTIONS, *quick, *tests], plugins=[failures])
            if failures.failed:
                return failures.failed[:most]
    return []


# ------------------------------------------------------- faults of a layer


def find_test(layer: str, fault: Fault) -> list[str]:
    """The first test that fails: of the layer's file, or else a property."""
    finder = Planted(())
    finder.texts[f"layers.{layer}"] = fault.source
    suites = (
        [f"tests/reference/layers/test_{layer}.py", "-m", "not audit"],
        ["tests/reference", "-k", layer, "-m", "not audit"],
    )
    return failures_of(finder, *suites, most=1, seconds=300)


def plant(layer: str) -> None:
    """Print each fault of a layer with the test that notices it."""
    path = ROOT / f"attnref/layers/{layer}.py"
    planted_faults = faults(path.read_text(encoding="utf-8"))
    unnoticed = 0
    for fault in planted_faults:
        tests = fork(partial(find_test, layer, fault))
        unnoticed += not tests
        print(fault, f"    {tests[0] if tests else 'NO TEST'}", sep="\n")
    total = len(planted_faults)
    print(f"{total - unnoticed} of {total} faults are noticed")


def fork(work: Callable[[], list[str]]) -> list[str]:
    """Run it in a copy of this process, which has torch imported. If the copy
    is killed, the result is empty."""
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


def find_tests(ids: list[str]) -> dict[str, list[str]]:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    known = {id: record.get(id, {}).get("tests", []) for id in ids}
    return {id: fork(partial(failing_tests, id, known[id])) for id in ids}


# ------------------------------------------------------------------- shapes


def shapes(variant: tuple[Lines, ...]) -> list[Any]:
    """The shapes of what functions and layers return, all that a test of
    shapes sees."""
    torch.manual_seed(0)
    package = planted(variant)
    is_plain = variant and variant[0].module.startswith(PLAIN)
    values = plain_values(package) if is_plain else package_values(package)
    return [getattr(value, "shape", value) for value in values]


def plain_values(p: Any) -> list[Any]:
    x = torch.randn(3, 7, 48)
    q, k = torch.randn(3, 6, 7, 8), torch.randn(3, 6, 7, 8)
    valid = torch.ones(3, 7, dtype=torch.bool)
    valid[0, :2] = False
    mask = p.masks.causal_mask(7) & p.masks.padding_mask(valid)
    out, lse = p.flash.flash(q, k, k, mask, tile=(2, 4))
    values = [
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
        values += [layer(x), layer(x, None, valid)]
        cache = v4.CompressedCache()
        values += [layer(x[:, :6], cache), layer(x[:, 6:], cache), cache.length]
    mla = p.mla.MLA(48, 6, 10, 6, 4, 5)
    values += [mla(x, absorbed=False), mla(x, None, valid, absorbed=True)]
    for layer, cache in (
        (p.gqa.GQA(48, 6, 2), p.gqa.KVCache(8)),
        (mla, p.mla.KVCache(8)),
        (
            p.dsa.DSA(48, 6, 10, 6, 4, 5, 7, (3, 8, 2), 1e4, True),
            p.dsa.KVCache(8),
        ),
    ):
        values += [layer(x[:, :6], cache), layer(x[:, 6:], cache), cache.length]
    return values


def shared_blocks(pool: Any, rows: Any) -> Any:
    table: list[int] = []
    pool.append(table, list(range(7)), rows)
    return pool.gather(table, 7)


def package_values(p: Any) -> list[Any]:
    x, q, k = (
        torch.randn(3, 7, 48),
        torch.randn(3, 6, 7, 8),
        torch.randn(3, 2, 7, 8),
    )
    valid = torch.ones(3, 7, dtype=torch.bool)
    valid[0, :2] = False
    mask = p.causal_mask(7) & p.padding_mask(valid)
    outs = [
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
        outs.append(layer(x, mask=p.padding_mask(valid)))
        for cache in (p.KVCache(8), p.GrowingKVCache()):
            outs += [layer(x[:, :6], cache=cache), layer(x[:, 6:], cache=cache)]
            outs.append(cache.length)
        outs += layer.state_dict().values()
    ring, token = p.RingKVCache(3, first=1), torch.randn(3, 2, 1, 8)
    outs += [*ring.append(token, token), *ring.append(k, k)]
    yarn = p.Yarn(8.0, 4096)
    outs += p.rope_table(torch.arange(7), 8, scaling=yarn)
    t = torch.arange(7)
    outs.append(p.Chunk(3)(t[:, None], t))
    cross = p.CrossAttention(**sizes)
    outs.append(cross(x, x[:, :4]))
    return outs


@torch.no_grad()
def same_shape(id: str) -> bool:
    variant = catalogue()[id].variants[0]
    try:
        return shapes(variant) == shapes((Lines(variant[0].module, ()),))
    except Exception:
        return False


def main(ids: list[str]) -> None:
    if layers := {x for x in ids if (ROOT / f"attnref/layers/{x}.py").exists()}:
        for layer in sorted(layers):
            plant(layer)
        return
    from tests.check.suites import failing

    record = json.loads(RECORD.read_text(encoding="utf-8"))
    for id, tests in find_tests(ids).items():
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
