"""Each kernel compiled for GPUs that are not there: none spills."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.kernels import CALLS, OUT, REGISTERS, TARGETS, launched
from sitekit import ROOT
from tests.kit import kernels, sampled

pytestmark = pytest.mark.skipif(
    bool(kernels.ABSENT), reason=kernels.ABSENT or "-"
)
RECORD = json.loads(OUT.read_text(encoding="utf-8"))
EACH = [(name, target) for name in CALLS for target in TARGETS]
QUICK = [("decode", "sm_90"), ("flash", "sm_80")]


@pytest.mark.parametrize(("name", "target"), sampled(EACH, QUICK))
def test_it_compiles_as_recorded(name, target, tmp_path):
    """In a process of its own: here Triton may be its interpreter."""
    out = tmp_path / "kernels.json"
    words = ["--only", name, "--target", target, "--out", str(out)]
    subprocess.run(
        [sys.executable, "-m", "benchmarks.kernels", *words],
        cwd=ROOT,
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path)},
        check=True,
        capture_output=True,
    )
    rows = json.loads(out.read_text())
    assert rows["triton"] == RECORD["triton"]
    assert rows[target].items() <= RECORD[target].items()
    assert rows[target]


def test_nothing_spills_and_all_fits():
    for target, room in TARGETS.items():
        names = {
            f"{name}: {item.name}"
            for name in CALLS
            for item in launched(name, target)
        }
        assert RECORD[target].keys() == names
        for row in RECORD[target].values():
            assert row["spilled"] == 0
            assert row["registers"] <= REGISTERS and row["shared"] <= room


def test_the_key_cache_is_split_among_as_many_programs_as_a_gpu_runs():
    (attend, merge) = launched("decode", "sm_90")
    assert attend.grid == (64, 8, 1) and merge.grid == (32, 1)
    (attend, _) = launched("mla_decode, 128 heads", "sm_90")
    assert attend.grid[:2] == (2, 128)  # of 64 heads, on the same tokens
    (attend, _) = launched("mla_decode, 128 heads", "sm_80")
    assert attend.grid[:2] == (4, 66)
