"""What the tests share."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from sitekit import ROOT

settings.register_profile("attnref", deadline=None, max_examples=60)
settings.load_profile("attnref")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference, relative to the largest entry of the oracle."""
    if theirs.numel() == 0:
        assert ours.shape == theirs.shape
        return 0.0
    difference = (ours.double() - theirs.double()).abs().max()
    return float(difference / theirs.double().abs().max().clamp_min(1e-300))


class Site(NamedTuple):
    folder: Path
    log: str


def build(folder: Path, source: Path = ROOT, **env: str) -> Site:
    """Both languages, strictly; raises with the log if that fails."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", folder],
        cwd=source,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"} | env,
        capture_output=True,
        text=True,
    )
    log = done.stdout + done.stderr
    if done.returncode:
        raise RuntimeError(log)
    return Site(folder, log)


def copy_of_the_sources(folder: Path) -> Path:
    """What a build reads, in another place, to plant faults in."""
    target = folder / "a copy"
    target.mkdir()
    for name in ("attnref", "sitekit", "docs", "overrides", "tests"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, target / name, ignore=ignore)
    for name in ("mkdocs.yml", "mkdocs.zh.yml"):
        shutil.copy(ROOT / name, target / name)
    return target


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return build(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="session")
def html_pages(site: Site) -> list[Path]:
    return sorted(site.folder.rglob("*.html"))
