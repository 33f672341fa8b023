"""What `attnref check` says to somebody who takes the course."""

import re
from itertools import pairwise

import pytest

from attnref.judge.catalogue import catalogue
from attnref.judge.checker import candidates, check
from attnref.judge.report import Report
from attnref.judge.tasks import COURSE
from sitekit.markdown import pages, parity


def test_a_step_of_the_course_without_an_exercise_is_named():
    """Rows of the table that stand between two exercises of the command."""
    course = pages.body_of(parity.twin("learn/course", "en"))
    rows = re.findall(r"(?m)^\| (\d+) \| \[([^]]+)\].*$", course)
    lines = re.findall(r"(?m)^\| \d+ .*$", course)
    last = ""
    between: dict[str, list[str]] = {}
    for (step, _), line in zip(rows, lines, strict=True):
        if match := re.search(r"`attnref check (\w+)`\]", line):
            last = match[1]
        else:
            between.setdefault(last, []).append(step)
    assert [*between] == ["mha_cached", "mla_latent"]
    for name, following in pairwise(COURSE):
        for language in ("en", "zh"):
            text = Report(name).text(language=language)
            assert text.endswith(f"attnref check {following} --stub")
            words = text.splitlines()[-1].partition("attnref")[0]
            steps = re.findall(r"\d+", words)
            assert bool(steps) == (name in between)
            assert name not in between or {*steps} & {*between[name]}


def test_several_mistakes_with_the_same_outputs_make_a_short_first_line():
    known = [id for id in catalogue() if id.startswith(("cache", "is-causal"))]
    for n, words in ((2, "another"), (4, "one of 3 other")):
        report = Report("mha_cached", mistakes=tuple((x,) for x in known[:n]))
        first = report.text().splitlines()[0]
        title = catalogue()[known[0]].title.en
        assert first.startswith(f"mha_cached: {title} (or {words} mistake")


def test_heads_are_stacked_only_where_groups_are():
    """Without groups, this mistake is another one: is_causal with a cache."""
    id = "is-causal-with-stacked-heads"
    for name, has_groups in (("mha", 0), ("mha_cached", 0), ("llama", 1)):
        known = {x for candidate in candidates(name) for x in candidate.ids}
        assert (id in known) == has_groups


@pytest.mark.parametrize("show", [False, True])
def test_a_softmax_is_not_explained_by_masks(show):
    """They come three steps later."""
    report = check("softmax", lambda x, dim=-1: x.softmax(dim))
    text = report.text(show=show)
    assert text.startswith("softmax: A row in which every score is -inf gives")
    assert "mask" not in text and "attention.py" not in text
    assert ("In attnref/plain/softmax.py: lines with -" in text) == show
    assert ".txt" not in text  # nobody looks into an installed package
    assert report.as_json()["mistakes"][0][0]["title"].startswith("A row in")


def test_what_is_missing_in_a_return_is_named():
    words = {
        "mha_cached": "the output and the cache for the next call",
        "flash": "the output and the log-sum-exp",
    }
    for name, what in words.items():
        report = check(name, lambda x, *rest, **options: x)
        assert f"return two values, {what}; the type returned is" in str(report)


def test_a_program_shows_which_queries_see_no_key():
    def sdpa(q, k, v, mask=None):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores.softmax(-1) @ v

    report = check("sdpa", sdpa)
    *_, line = re.findall(r'print\(given\["mask"\].*', report.smallest)
    assert line.endswith("# False: some query sees no key")
    exec(report.smallest, {"sdpa": sdpa})
