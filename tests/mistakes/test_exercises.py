"""The exercises of `attnref check`: right solutions pass in every style, wrong
ones do not."""

import inspect
import json
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

import attnref
from attnref.mistakes import checker
from attnref.mistakes.catalogue import catalogue, planted
from attnref.mistakes.checker import check, explained, right_solution, rights
from attnref.mistakes.exercises import (
    EXERCISES,
    LAWS,
    Solution,
    calls_attnref,
)
from attnref.mistakes.tasks import TASKS, stub, task
from tests.kit import sampled
from tests.mistakes.solutions import wrong

STYLES = ("loops", "einsum", "module", "fused", "plain")


@pytest.mark.parametrize("style", sampled(STYLES, ["einsum", "plain"]))
def test_right_solutions_pass_in_every_style(style):
    module = import_module(f"tests.mistakes.solutions.{style}")
    names = [
        n for n, t in TASKS.items() if all(map(module.__dict__.get, t.names))
    ]
    assert len(names) >= 5
    for name in names:
        report = check(name, module)
        assert report.passed, str(report)
        assert report.mistakes == () and report.failures == ()
        assert calls_attnref(Solution(name, module)) == (style == "plain")


def test_every_form_of_every_exercise_is_right():
    """So that what a planted mistake changes is its own."""
    assert [*TASKS] == [*EXERCISES]
    for name, exercise in EXERCISES.items():
        for form in exercise.forms:
            whole = attnref if form.package else planted(())
            report = check(name, form.make(whole))
            assert report.passed, f"{sorted(form.modules)} {report}"
        for probe in rights(name).probes:
            assert probe.law in LAWS and probe.sizes


WRONG = ("maximum_from_zero", "weights_detached", "other_eps", "without_tiles")


@pytest.mark.parametrize("name", sampled(wrong.REFUSED, WRONG))
def test_wrong_solutions_are_refused(name):
    exercise, laws = wrong.REFUSED[name]
    report = check(exercise, getattr(wrong, name))
    assert {v.law for v in report.failures} == {*laws.split()}, str(report)


def test_small_inputs_are_tried_first():
    """So that the smallest failing input is the first."""
    for name in EXERCISES:
        sizes = [
            checker.size_of(probe)
            for probe in rights(name).probes
            if probe.law == "same"
        ]
        assert sizes[0] == min(sizes), name
        assert sizes[0] <= 80, name


# ------------------------------------------------------------- told otherwise


def doubled(x, dim=-1):
    return 2 * x.softmax(dim).nan_to_num()


def test_an_unknown_mistake_is_told_with_the_smallest_input():
    report = check("softmax", doubled)
    assert report.mistakes == ()
    law, *_ = report.failures
    assert (law.law, law.sizes) == ("same", "x (2,), dim=-1")
    (x,) = (p.inputs["x"] for p in rights("softmax").probes[:1])
    told = str(report).partition("This is none of the mistakes")[2]
    assert f"x = torch.tensor({x.tolist()}, dtype=torch.float64)" in told
    gives, right = 2 * x.softmax(0), x.softmax(0)
    assert f"it gives  (2,): {gives[0]:.4g}, {gives[1]:.4g}" in told
    assert f"right is  (2,): {right[0]:.4g}, {right[1]:.4g}" in told
    assert "不是 attnref 已知的错误" in report.text(language="zh")
    assert not report.unfinished and "Of pairs" not in str(report)


@pytest.mark.parametrize(
    ("name", "solution"),
    [
        ("softmax", lambda x, dim=-1: x.softmax(dim)),
        ("online_softmax", lambda x, chunk: x.softmax(-1)),
    ],
)
def test_softmax_is_told_that_a_row_without_keys_is_nan(name, solution):
    """The first thing that many would write, and a mistake of attention."""
    assert check(name, solution).mistakes == (("empty-row-nan",),)


def test_that_not_all_pairs_were_tried_is_said(scaled, monkeypatch):
    """Else "none of the known mistakes" would be claimed of pairs too."""
    monkeypatch.setattr(checker, "PAIRS", 0)
    report = check("sdpa", lambda q, k, v, mask=None: 2 * q @ k.mT @ v)
    assert report.mistakes == () and report.unfinished
    assert report.as_json()["unfinished"]
    assert "Of pairs of them, only the 0 likeliest were tried." in str(report)
    assert "只试了最可能的 0 种" in report.text(language="zh")


@pytest.mark.parametrize(
    ("solution", "said"),
    [
        (lambda x: x.softmax(-1), "cannot be called as softmax(x, dim=-1)"),
        (lambda x, dim=-1: [0.5], "a tensor is asked for, and the type"),
        (lambda x, dim=-1: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda x, dim=-1: exit(3), "it ends the program (SystemExit: 3)"),
        (
            lambda x, dim=-1: x.expand(9**9, *x.shape),
            "a tensor of shape (387420",
        ),
        (lambda x, dim=-1: x.to_sparse(), "in layout torch.sparse_coo"),
        (SimpleNamespace(sofmax=doubled), "there is no softmax; the exercise"),
        ({"softmax": 3}, "there is no softmax; the exercise asks for softmax"),
    ],
)
def test_what_cannot_be_judged_is_said_in_a_line(solution, said):
    report = check("softmax", solution)
    assert not report.passed and report.error is not None
    assert report.error.en.startswith(said) or said in report.error.en
    assert report.error.zh != "" and report.mistakes == ()
    assert str(report).startswith(f"softmax: {report.error.en}")


def test_an_error_is_told_with_the_lines_that_raise_it():
    def softmax(x, dim=-1):
        if x.dim() == 3:
            raise KeyError("q_proj")
        return x.softmax(dim).nan_to_num()

    report = check("softmax", softmax)
    law, _ = report.failures
    assert law.fault.en == "KeyError: 'q_proj'"
    assert str(report).count("\n         x (3, 5, 7), dim=1: KeyError") == 1
    assert "x (3, 5, 7), dim=-1: the same error" in str(report)
    assert report.mistakes == ()
    assert report.where[-1].endswith('raise KeyError("q_proj")')


def test_input_that_is_modified_is_told():
    def softmax(x, dim=-1):
        x -= x.amax(dim, keepdim=True)
        return x.softmax(dim).nan_to_num()

    report = check("softmax", softmax)
    assert [v.law for v in report.failures] == ["untouched"]
    assert report.failures[0].fault.en == "x changes"


def test_the_dtype_is_kept():
    report = check("softmax", lambda x, dim=-1: x.double().softmax(dim))
    assert {v.law for v in report.failures} == {"dtype", "empty"}
    (law,) = (v for v in report.failures if v.law == "dtype")
    assert (
        law.fault.en
        == "the dtype is torch.float64, and should be torch.float32"
    )


def test_where_the_dtype_alone_is_wrong_both_are_shown():
    def softmax(x, dim=-1):
        return x.double().softmax(dim).nan_to_num()

    report = check("softmax", softmax)
    assert str(report).startswith("softmax: 1 of 6 properties does not hold.")
    said = "it gives  torch.float64\n  right is  torch.float32\n"
    assert said in str(report)


@pytest.mark.parametrize(
    "told",
    [
        "q (3, 2, 5, 4), k (3, 2, 7, 4), v (3, 2, 7, 3), mask (5, 7), "
        "tile=(2, 3)：在 (1, 0, 2) 处是 2，应为 1",
        "max_len=2, k 2 x (1, 1, 1, 2), v 2 x (1, 1, 1, 2)：形状是 "
        "(1, 1, 2, 2)，应为 (1, 1, 1, 2)",
    ],
)
def test_lines_break_within_no_tuple_and_before_no_comma(told):
    lines = [*checker._wrapped(told, " " * 9)]
    assert len(lines) == 2 and max(map(checker._wide, lines)) <= 80
    assert all(line.count("(") == line.count(")") for line in lines)
    assert not lines[1].strip().startswith("，")


def test_a_cache_larger_than_it_need_be_is_told():
    """MLA that keeps the keys and values of all heads."""
    solution = SimpleNamespace(
        **vars(import_module("tests.mistakes.solutions.einsum"))
    )

    def mla_latent(x, *weights, theta=10000.0, cache=None):
        past = None if cache is None else cache[:2]
        out, kept = solution.einsum_latent(x, *weights, theta=theta, cache=past)
        return out, (*kept, torch.zeros(1, kept[0].shape[1], 30))

    solution.einsum_latent = solution.mla_latent
    report = check("mla_latent", mla_latent)
    (law,) = report.failures
    assert (law.law, law.fault.en) == ("small", "39 at 0 should be 9")


def test_absorption_that_expands_is_told():
    solution = import_module("tests.mistakes.solutions.einsum")
    report = check("mla_absorbed", solution.mla_latent)
    assert [v.law for v in report.failures] == ["absorbed"]
    assert check("mla_absorbed", solution.mla_absorbed).passed


def test_a_report_is_also_numbers():
    report = check("sdpa", otherwise("mask-times-tiny"), language="zh")
    told = json.loads(json.dumps(report.as_json()))
    assert (told["exercise"], told["passed"]) == ("sdpa", False)
    failed = {law["law"] for law in told["laws"] if not law["passed"]}
    assert failed == {v.law for v in report.failures} >= {"future", "pads"}
    ((mistake,),) = told["mistakes"]
    title = catalogue()["mask-times-tiny"].title.zh
    page = "zh/mistakes/attention-mistakes/#mask-times-tiny"
    assert mistake == {"id": "mask-times-tiny", "title": title, "page": page}


def test_a_mistake_is_told_with_its_lines_and_its_page(monkeypatch):
    checker.site.cache_clear()
    monkeypatch.setenv("SITE_URL", "https://example.org/site")
    report = check("sdpa", otherwise("mask-times-tiny"))
    text = str(report)
    checker.site.cache_clear()
    (lines,) = catalogue()["mask-times-tiny"].lines
    assert f"  - {lines.wrong.strip(chr(10))}" in text
    assert f"  + {lines.right.strip(chr(10))}" in text
    assert catalogue()["mask-times-tiny"].title.en in text
    page = "mistakes/attention-mistakes/#mask-times-tiny"
    assert f"https://example.org/site/{page}" in text
    assert "\033[" not in text and "\033[31m" in report.text(colour=True)
    with pytest.raises(ValueError, match="language='fr' is neither 'en' nor"):
        report.text(language="fr")


def test_an_exercise_is_found_by_what_people_write():
    assert task("Online-Softmax") == "online_softmax"
    with pytest.raises(ValueError, match="no exercise 'gpa'; did you mean gqa"):
        task("gpa")
    with pytest.raises(ValueError, match="no exercise 'zebra'; --list prints"):
        check("zebra", doubled)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_stub_is_told_to_be_empty(language):
    for name in TASKS:
        text = stub(name, language)
        assert max(map(checker._wide, text.splitlines())) <= 80
        found = {}
        exec(text, found)
        report = check(name, found)
        assert report.error.en == "it is not filled in yet", str(report)


def test_a_solution_is_asked_in_this_process_alone():
    """`check` for teachers takes a function, a module or a dict of names."""
    module = import_module("tests.mistakes.solutions.einsum")
    for solution in (module.softmax, module, {"softmax": module.softmax}):
        assert check("softmax", solution).passed
    assert attnref.check is check
    assert Solution("masks", module).given["padding_mask"]
    assert explained("softmax", rights("softmax").answers).mistakes == ()
