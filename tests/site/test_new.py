"""make new: what it writes runs, is typed and builds as it stands, is under
the properties, and says what is left."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from sitekit import ROOT
from sitekit import new as skeleton
from sitekit.markdown import parity
from tests.kit.one_page import OnePage
from tests.kit.site import build, copy_of_the_sources

COMMANDS = """
import sys
from sitekit.__main__ import main

for words in (
    ["new", "layer", "two-part", "--title=Two parts: how", "--title-zh=两段"]
    + ["--keeps=state"],
    "new layer few-keys --keeps keys".split(),
    "new cache last_few --kind Few".split(),
    "new page caches/last-few".split(),
    "new layer two_part --keeps state".split(),  # there already
    "new layer three-part".split(),  # keeps keys, or a state?
    "new page core/gqa".split(),  # there are layers/gqa
    "synced two-part".split(),
):
    try:
        print(main(words))
    except ValueError as error:
        print(error, file=sys.stderr)
"""


def run(folder, *command):
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The sources, with a layer, a cache and a page more."""
    source = copy_of_the_sources(tmp_path_factory.mktemp("new"))
    shutil.copy(ROOT / "conftest.py", source)
    done = run(source, "-c", COMMANDS)
    assert done.stdout.count("left to do") == 4, done.stderr
    refused = done.stderr.splitlines()
    assert refused[:3] == [
        "there is a page 'two-part' already",
        "what does three-part keep of earlier tokens? KEEPS=keys (a variant of "
        "attention) or KEEPS=state (a recurrence)",
        "there is a page 'gqa' already",
    ]
    place = "docs/en/layers/two-part.md: still to be written: TODO: "
    assert refused[3].startswith(place)
    return source


DEAD = "\n[dead](nowhere.md) and [dead](masks.md#no-such-anchor)\n"


@pytest.mark.audit
def test_what_is_new_is_built_and_dead_links_stop_the_whole_build(
    source, tmp_path
):
    """They are planted in the Chinese half, and nothing else is wrong. A build
    stops for warnings at its end, when all pages are there."""
    site, page = tmp_path / "site", source / "docs/zh/core/softmax.md"
    text = page.read_text("utf-8")
    page.write_text(text + DEAD, "utf-8")
    with pytest.raises(RuntimeError) as failure:
        build(site, source)
    page.write_text(text, "utf-8")
    log = str(failure.value)
    wrong = [line for line in log.splitlines() if "WARNING" in line]
    assert ["nowhere.md" in line for line in wrong] == [True, False]
    assert ["#no-such-anchor" in line for line in wrong] == [False, True]
    assert "Aborted with 2 warnings in strict mode" in log
    for home, title in (("", "Two parts"), ("zh/", "两段")):

        def text(place, home=home):
            return (site / home / place / "index.html").read_text("utf-8")

        assert "TwoPart" in text("layers/two-part")
        assert 'id="plain/two_part.py"' in text("layers/two-part")
        assert f'<a href="layers/two-part/">{title}</a>' in text("")
        assert "_with_room" in text("caches/last-few")


def test_a_layer_is_five_files_and_a_line_of_navigation(source):
    """And a cache two: no list has to be touched."""
    changed = set()
    for path in source.rglob("*"):
        own = ROOT / path.relative_to(source)
        if path.suffix in (".py", ".md", ".yml", ".pyi") and not (
            own.exists() and own.read_bytes() == path.read_bytes()
        ):
            changed.add(str(path.relative_to(source)))
    layers = {"mkdocs.yml"}
    for file in ("two_part", "few_keys"):
        layers |= {f"attnref/{x}/{file}.py" for x in ("plain", "layers")}
        layers.add(f"tests/reference/layers/test_{file}.py")
        page = f"layers/{file.replace('_', '-')}.md"
        layers |= {f"docs/{lang}/{page}" for lang in ("en", "zh")}
    cache = {"attnref/caches/last_few.py"}
    cache |= {"tests/reference/caches/test_last_few.py"}
    pages = {f"docs/{lang}/caches/last-few.md" for lang in ("en", "zh")}
    assert changed == layers | cache | pages
    lines = [
        (folder / "mkdocs.yml").read_text("utf-8").splitlines()
        for folder in (source, ROOT)
    ]
    assert len(lines[0]) == len(lines[1]) + 3


def test_what_is_new_is_under_the_properties_and_three_things_are_left(source):
    names = "two_part", "few_keys"
    checked = [
        f"attnref/{x}/{n}.py" for x in ("layers", "plain") for n in names
    ]
    checked += ["attnref/caches/last_few.py"]
    checked += [f"tests/reference/{x}" for x in ("layers", "caches")]
    checked += [
        "tests/reference/test_properties.py",
        "tests/house/test_public.py",
    ]
    checked += ["tests/reference/test_shape_comments.py"]
    checked += ["tests/site/test_parity.py", "tests/site/test_pages.py"]
    ours = "two_part or two-part or few_keys or few-keys"
    ours += " or last-few or last_few or written_down"
    ours += " or make_new or shape_comment_of_the_package"
    how = ("-q", "-p", "no:cacheprovider", "-m", "not audit", "-k", ours)
    done = run(source, "-m", "pytest", *how, *checked)
    failed = re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE)
    oracle = "test_it_is_what_somebody_else_computes"
    pages = "tests/site/test_parity.py::test_a_page_and_its_twin_are_in_line"
    assert {*failed} == {
        "tests/reference/test_properties.py::"
        "test_what_make_new_leaves_to_be_decided_is_decided",
        *(f"tests/reference/layers/test_{n}.py::{oracle}" for n in names),
        f"tests/reference/caches/test_last_few.py::{oracle}",
        f"{pages}[layers/two-part]",
        f"{pages}[layers/few-keys]",
        f"{pages}[caches/last-few]",
    }, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 25
    assert "compare TwoPart with a module of transformers" in done.stdout
    assert "attnref/layers/two_part.py:1: " in done.stdout


def test_pages_that_speak_of_what_is_new_are_named_but_not_for_any_word():
    places = skeleton.spoken_of("sliding-gqa", "Sliding attention").split("\n")
    assert "these pages already speak of 'sliding':" in places
    masks = (ROOT / "docs/en/core/masks.md").read_text("utf-8").splitlines()
    lines = [str(n) for n, x in enumerate(masks, 1) if "sliding" in x.lower()]
    assert f"  docs/en/core/masks.md:{','.join(lines)}" in places
    assert skeleton.spoken_of("attention", "The attention") == ""


@pytest.mark.parametrize(
    ("what", "name"), [("layer", "a b"), ("cache", "core/x"), ("page", "x")]
)
def test_a_name_that_is_no_name_is_refused(what, name):
    with pytest.raises(ValueError, match=f"'{name}' is no name of a {what}"):
        skeleton.new(what, name)


def test_a_page_that_is_not_there_is_not_checked():
    with pytest.raises(ValueError, match=r"no page .* is called 'gqb'"):
        parity.whole_stem("gqb")


def test_make_check_is_typed_as_one_types_it():
    """With a path it would not render the page. The environment is that of
    this test, and is not made again."""
    words = ["make", "check", "PAGE=course", "-o", ".venv/ready"]
    words += [f'PY="{sys.executable}"']  # the folder's name may have a space
    env = os.environ | {"PYTEST_ADDOPTS": "-rp"}
    done = subprocess.run(
        words, cwd=ROOT, env=env, capture_output=True, text=True
    )
    rendered = r"^PASSED tests/kit/built_page.py::\w+\[(\w+)\]$"
    languages = re.findall(rendered, done.stdout, re.MULTILINE)
    assert languages == ["en", "zh"], done.stdout + done.stderr
    assert "PASSED tests/site/test_parity.py" in done.stdout


def test_a_page_is_checked_with_the_properties_of_its_code():
    page = OnePage("layers/absorption")
    assert ROOT / "tests/reference/layers/test_mla.py" in page.files
    assert page.named.search(
        "test_properties.py::test_bytes[mla absorbed, room]"
    )
    assert page.named.search("test_drawn.py::test_absorption_is_drawn")
    assert not page.named.search("test_properties.py::test_bytes[gqa, room]")
    assert page.is_meant_by(ROOT / "docs" / "zh" / "layers" / "absorption.md")
    assert page.is_meant_by("zh/layers/absorption/")
    assert not page.is_meant_by("layers/mla/")
    assert OnePage("index").is_meant_by("zh/")
    cache = OnePage("caches/kv-cache")
    assert cache.named.search("test_properties.py::test_bytes[gqa, room]")
    assert cache.named.search("test_kv_cache.py::test_room")
