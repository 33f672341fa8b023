"""What is wrong with a figure or a table stops the build and is named.

The faults are planted in builds: Markdown swallows what a fence raises, so
that a function which raises proves nothing.
"""

import json
import re
import subprocess
import sys

import pytest

from sitekit import ROOT
from tests.conftest import copy_of_the_sources

WHERE = {
    "figure": "core/masks",
    "table": "core/masks",
    "plot": "numbers/compute",
    "models": "numbers/memory",
    "calculator": "numbers/calculator",
}


def fence(kind):
    """The first fence of a kind, as a page of the site has it."""
    path = ROOT / "docs" / "zh" / f"{WHERE[kind]}.md"
    text = path.read_text(encoding="utf-8")
    return re.search(rf"^```{kind}\n.*?^```\n", text, re.M | re.S)[0]


# Each folder as a site of one page, with the real one's extensions and plugins.
BUILD = """
import json, logging, sys
from pathlib import Path
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort
from sitekit import CONFIGS

said = []
logging.getLogger("mkdocs").addHandler(logging.Handler(logging.ERROR))
logging.getLogger("mkdocs").handlers[0].emit = (
    lambda record: said.append(record.getMessage())
)
outcomes = []
for folder in sys.argv[1:]:
    config = load_config(
        str(CONFIGS["zh"]),
        docs_dir=folder,
        site_dir=folder + "-site",
        nav=[{"Page": "page.md"}],
        strict=True,
    )
    config.plugins.on_startup(command="build", dirty=False)
    said.clear()
    try:
        build(config)
        outcomes.append(Path(folder + "-site/page/index.html").read_text())
    except Abort:
        outcomes.append(said[-1])
    config.plugins.on_shutdown()
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The built page of all fences as they are, and what each fault gives."""
    base = tmp_path_factory.mktemp("fences")
    pages = {"none": "\n".join(map(fence, WHERE))}
    for name, ((kind, old, new), _) in FAULTS.items():
        pages[name] = re.sub(old, new, fence(kind), count=1)
        assert pages[name] != fence(kind)
    folders = [base / str(i) for i in range(len(pages))]
    for folder, body in zip(folders, pages.values(), strict=True):
        folder.mkdir()
        page = folder / "page.md"
        page.write_text(f"# Title\n\nText.\n\n{body}", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(pages, json.loads(done.stdout), strict=True))


FAULTS = {
    "a scene that does not exist": (
        ("figure", "scene: padding", "scene: paddin"),
        "there is no 'paddin'",
    ),
    "a label too many": (
        ("figure", r"rows: \[(.*?)\]", r"rows: [\1, x]"),
        "5 x 5 labels for a 4 x 4 figure",
    ),
    "a figure without its axes": (
        ("figure", r"axes: .*\n", ""),
        "there is no 'axes'",
    ),
    "a table that does not exist": (
        ("table", "table: fully_masked", "table: fully"),
        "there is no 'fully'",
    ),
    "a head too few": (
        ("table", r"head: \[[^,]*, ", "head: ["),
        "5 heads for 6 columns",
    ),
    "a word that is missing": (
        ("table", r"\n  nan: .*", ""),
        "there is no 'nan'",
    ),
    "a word that is never used": (
        ("table", r"\n  nan: ", "\n  none: x\n  nan: "),
        "words never used: {'none'}",
    ),
    "a plot that does not exist": (
        ("plot", "plot: roofline", "plot: rooflin"),
        "there is no 'rooflin'",
    ),
    "a kind of model that is missing": (
        ("models", r"\n  MQA: MQA", ""),
        "kinds are",
    ),
    "a word of the calculator that is missing": (
        ("calculator", r"\n  budget: .*", ""),
        "words are missing: ['budget']",
    ),
    "no YAML": (
        ("figure", "axes: ", "axes: ["),
        "while parsing a flow sequence",
    ),
}


def test_the_fences_as_they_are_build(outcomes):
    html = outcomes["none"]
    assert html.count("<figure") == 4 and 'class="calculator"' in html


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_fence_stops_the_build(outcomes, name):
    (kind, _, _), reason = FAULTS[name]
    assert f"page.md:5: the fence '{kind}': " in outcomes[name]
    assert reason in outcomes[name]


def test_a_broken_fence_is_told_in_a_line(tmp_path):
    """As it is typed: one line with page, fence and reason, and no site."""
    source = copy_of_the_sources(tmp_path)
    page = source / "docs" / "en" / "core" / "softmax.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("table: exp_range", "table: range"), "utf-8")
    line = text[: text.index("```table")].count("\n") + 1
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=source,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    place = f"docs/en/core/softmax.md:{line}"
    assert f"{place}: the fence 'table': there is no 'range'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (source / "site" / "core" / "softmax" / "index.html").exists()
