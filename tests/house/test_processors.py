"""No result and no verdict depends on the kind of processor."""

import os
import subprocess
import sys

import pytest

from sitekit import ROOT

# What computes; PyTorch does not compile flex_attention for the oldest kind.
FOLDERS = ["reference", "check", "released"]
BUT = "tests/reference/core/test_flex.py::test_compiled_it_is_sdpa"


@pytest.mark.audit
@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("kind", ["default", "avx2"])
def test_tests_pass_on_a_processor_with_shorter_vectors(kind, folder):
    """Than this one may have: PyTorch computes as if there were no others."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    env |= {"ATEN_CPU_CAPABILITY": kind, "OMP_NUM_THREADS": "1"}
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
    words += ["-m", "not (audit or browser)", f"tests/{folder}"]
    if (kind, folder) == ("default", "reference"):
        words += ["--deselect", BUT]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=env, capture_output=True
    )
    output = done.stdout.decode(errors="replace")
    assert done.returncode == 0, output[-5000:]
