"""A comment is a test: every shape comment is reached, and right."""

from pathlib import Path

import pytest
import torch

import attnref
from sitekit import ROOT
from sitekit.pages import body_of, markdown_files, program
from tests.shape_tracer import Tracer, comments

B, T, S, H, K, D, DV = 2, 7, 11, 6, 3, 5, 13
LETTERS = {"B": B, "T": T, "S": S, "H": H, "K": K, "D": D, "Dv": DV}


def every_public_call():
    """Each public function once a branch; a size of its own for each letter,
    prime but for H = 2 K."""
    q = torch.randn(B, H, T, D)
    k, v = torch.randn(B, K, S, D), torch.randn(B, K, S, DV)
    valid = torch.ones(B, S, dtype=torch.bool)
    attnref.softmax(q)
    attnref.online_softmax(q, chunk=2)
    mask = attnref.causal_mask(T, S)
    attnref.padding_mask(valid)
    attnref.padding_mask_from_hf(valid.long())
    attnref.padding_mask_from_hf(valid)
    attnref.cross_mask(torch.ones(B, T, dtype=torch.bool), valid)
    attnref.attention_weights(q, k)
    attnref.sdpa(q, k, v, mask)


def test_every_shape_comment_of_the_package_is_right():
    files = (ROOT / "attnref").rglob("*.py")
    sources = {str(p): p.read_text(encoding="utf-8") for p in files}
    tracer = Tracer(sources, LETTERS)
    with tracer:
        every_public_call()
    assert tracer.faults == []
    assert tracer.unreached() == []
    assert len(tracer.reached) >= 15


PAGES = markdown_files("en") + markdown_files("zh")


@pytest.mark.parametrize(
    "path", PAGES, ids=lambda p: str(p.relative_to(ROOT / "docs"))
)
def test_every_shape_comment_of_a_page_is_right(path):
    source = program(body_of(path))
    tracer = Tracer({"page": source})
    with tracer:
        exec(compile(source, "page", "exec"), {"__name__": "page"})
    # What comes from the package is reached above; with the sizes of an
    # example two letters may be equal, so only the package's lines may be.
    package = _package_lines()
    ours = {
        c.line
        for c in comments(source).values()
        if source.splitlines()[c.line - 1].strip() not in package
    }
    reached = {line for _, line in tracer.reached}
    assert ours <= reached, "never reached"
    places = tuple(f"page:{line}: " for line in ours)
    assert [f for f in tracer.faults if f.startswith(places)] == []


def _package_lines():
    files = (ROOT / "attnref").rglob("*.py")
    return {
        line.strip()
        for p in files
        for line in Path(p).read_text(encoding="utf-8").splitlines()
    }


RIGHT = """
def f(x, y):
    B, T = x.shape
    z = x.mT  # (T, B)
    w = (
        z
        + 0
    )  # (T, B); a copy
    if y:
        return w.mT  # (B, T)
    a, b = x, x + 1  # (B, T)
    z += 1  # (T, B)
    return w @ x  # (T, T)
"""
WRONG = {
    "two axes swapped": ("x.mT  # (T, B)", "x.mT  # (B, T)"),
    "an axis too many": ("z += 1  # (T, B)", "z += 1  # (1, T, B)"),
    "a wrong sum": ("# (B, T)\n    z", "# (B, T + 1)\n    z"),
    "a wrong return": ("w @ x  # (T, T)", "w @ x  # (T, B)"),
    "a statement of several lines": ("# (T, B); a copy", "# (B, T); a copy"),
    "an unknown letter": ("w @ x  # (T, T)", "w @ x  # (T, 2 * Z)"),
}


def run(source, *calls):
    tracer = Tracer({"f": source})
    scope = {}
    exec(compile(source, "f", "exec"), scope)
    with tracer:
        for call in calls:
            scope["f"](*call)
    return tracer


def test_right_comments_pass():
    x = torch.ones(3, 5)
    tracer = run(RIGHT, (x, True), (x, False))
    assert tracer.faults == []
    assert tracer.unreached() == []


@pytest.mark.parametrize("fault", WRONG)
def test_each_wrong_comment_is_seen(fault):
    old, new = WRONG[fault]
    assert old in RIGHT
    x = torch.ones(3, 5)
    tracer = run(RIGHT.replace(old, new), (x, True), (x, False))
    assert tracer.faults != []


def test_a_letter_that_names_the_wrong_axis_is_seen():
    # No local variable says what B and S are; the letters of the run do.
    source = "def f(x):\n    return x.mT  # (S, B)\n"
    for letters, right in (({"B": 3, "S": 5}, True), ({"B": 5, "S": 3}, False)):
        tracer = Tracer({"f": source}, letters)
        scope = {}
        exec(compile(source, "f", "exec"), scope)
        with tracer:
            scope["f"](torch.ones(3, 5))
        assert (tracer.faults == []) is right


@pytest.mark.parametrize(
    "comment", ["# (B, T) lower", "#(B, T)", "# [B, T]", "# (B, T"]
)
def test_a_comment_that_is_almost_one_is_seen(comment):
    with pytest.raises(ValueError, match="is no shape comment"):
        comments(f"y = x  {comment}\n")


def test_two_letters_of_one_size_are_seen():
    x = torch.ones(5, 5)
    tracer = run(RIGHT, (x, True), (x, False))
    assert "two letters have one size" in tracer.faults[0]


def test_a_comment_that_no_run_reaches_is_seen():
    tracer = run(RIGHT, (torch.ones(3, 5), True))
    assert [line for _, line, _ in tracer.unreached()] == [11, 12, 13]


def test_a_comment_that_belongs_to_nothing_is_seen():
    with pytest.raises(ValueError, match="belongs to nothing"):
        comments("f(x)  # (B, T)\n")
