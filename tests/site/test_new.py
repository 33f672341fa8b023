"""make new: what it writes runs, is typed and builds as it stands."""

import subprocess
import sys

import pytest

from sitekit import new as skeleton
from tests.conftest import build, copy_of_the_sources


def test_a_new_layer_stands_in_all_its_places(tmp_path):
    source = copy_of_the_sources(tmp_path)

    def run(*command):
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=source,
            capture_output=True,
            text=True,
        )

    done = run("sitekit", "new", "two_part")
    assert done.returncode == 0, done.stderr
    assert "left to do" in done.stdout
    again = run("sitekit", "new", "two_part")
    assert again.stderr == "attnref/layers/two_part.py is there already\n"
    site = build(tmp_path / "site", source).folder
    for home in ("", "zh/"):
        page = site / home / "layers" / "two_part" / "index.html"
        assert "TwoPartAttention" in page.read_text(encoding="utf-8")
    program = "from attnref import TwoPartAttention as L; import torch; "
    program += "x = torch.randn(3, 5, 64); "
    program += "print(L(d_model=64, n_heads=8, n_kv_heads=2)(x).shape)"
    out = subprocess.run(
        [sys.executable, "-c", program], cwd=source, capture_output=True
    )
    assert out.stdout == b"torch.Size([3, 5, 64])\n"
    tests = run(
        "pytest", "-q", "-c", "/dev/null", "tests/layers/test_two_part.py"
    )
    assert "compare TwoPartAttention with a module" in tests.stdout


def test_a_name_that_is_no_name_is_refused():
    with pytest.raises(ValueError, match="'a b' is no name of a file"):
        skeleton.new("a b")
