"""The exercises of `attnref check`: right solutions pass in every style, and a
known mistake is told by its name, however it is written."""

import inspect
import json
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

import attnref
from attnref.mistakes import checker
from attnref.mistakes.catalogue import Lines, catalogue, load
from attnref.mistakes.checker import (
    CHANCE,
    check,
    clearly_wrong,
    explained,
    rights,
    variants,
)
from attnref.mistakes.exercises import EXERCISES, LAWS, Solution
from attnref.mistakes.tasks import TASKS, stub, task
from tests.kit import sampled
from tests.mistakes.otherwise import OTHERWISE, TOLD_BY_NONE


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """What is no known mistake is looked for among few pairs."""
    monkeypatch.setattr(checker, "PAIRS", 10)


STYLES = ("loops", "einsum", "module", "fused", "plain")


def solves(style):
    """The exercises that a file of solutions solves, each with its module."""
    module = import_module(f"tests.mistakes.solutions.{style}")
    names = [
        n for n, t in TASKS.items() if all(map(module.__dict__.get, t.names))
    ]
    return module, names


@pytest.mark.parametrize("style", sampled(STYLES, ["einsum", "plain"]))
def test_right_solutions_pass_in_every_style(style):
    module, names = solves(style)
    assert len(names) >= 5
    for name in names:
        report = check(name, module)
        assert report.passed, str(report)
        assert report.mistakes == () and report.failures == ()


def test_every_exercise_is_stated_and_solved_in_two_forms():
    assert [*TASKS] == [*EXERCISES]
    assert solves("einsum")[1] == [*TASKS]
    module, names = solves("plain")
    assert sorted([*names, *module.WITHOUT]) == sorted(TASKS)
    for name, told in TASKS.items():
        assert check(name, EXERCISES[name].forms[0](attnref)).passed
        for text in (told.title, told.about):
            assert text.en.strip() and text.zh.strip()
        assert told.signatures == told.signatures and told.names
        for probe in rights(name).probes:
            assert probe.law in LAWS and probe.sizes


def test_small_inputs_are_tried_first():
    """So that the smallest failing input is the first."""
    for name in EXERCISES:
        sizes = [
            sum(
                x.numel()
                for value in probe.inputs.values()
                for x in (value if isinstance(value, list) else [value])
                if isinstance(x, torch.Tensor)
            )
            for probe in rights(name).probes
            if probe.law == "same"
        ]
        assert sizes[0] == min(sizes), name
        assert sizes[0] <= 80, name


# ---------------------------------------------------------------- recognised


@pytest.mark.audit
@pytest.mark.parametrize(
    "id", [id for id in OTHERWISE if id in catalogue() if id != CHANCE]
)
def test_a_mistake_is_told_in_the_form_of_the_package(id):
    name = OTHERWISE[id].exercise
    variant, *_ = variants(name, id)
    report = check(name, variant.solution.given)
    assert not report.passed
    assert (id,) in report.mistakes, str(report)


IDS = [id for id in OTHERWISE if id in catalogue()]
ONE_OF_EACH = {OTHERWISE[id].exercise: id for id in IDS}.values()


@pytest.mark.parametrize("id", sampled(IDS, ONE_OF_EACH))
def test_a_mistake_is_told_in_another_form(id):
    report = check(OTHERWISE[id].exercise, otherwise(id))
    assert not report.passed
    assert (id,) in report.mistakes, str(report)
    assert catalogue()[id].title.zh in report.text(language="zh")


def otherwise(*ids):
    """The solutions by einsum, with these mistakes in them."""
    module = import_module("tests.mistakes.solutions.einsum")
    text = inspect.getsource(module)
    for id in ids:
        for right, wrong in OTHERWISE[id].lines:
            assert text.count(right) == 1, right
            text = text.replace(right, wrong)
    found = {}
    exec(compile(text, "otherwise.py", "exec"), found)
    return SimpleNamespace(**found)


def test_every_mistake_that_fits_an_exercise_has_another_form():
    lacking = catalogue().keys() - {*OTHERWISE, *TOLD_BY_NONE}
    assert not lacking, (
        f"{sorted(lacking)}: write each in another form in "
        "tests/mistakes/otherwise.py, or say there why no exercise tells it"
    )
    stale = {*OTHERWISE, *TOLD_BY_NONE} - catalogue().keys()
    assert not stale, f"{sorted(stale)}: in no file of attnref/mistakes/"


@pytest.mark.audit
def test_no_exercise_tells_what_none_is_said_to_tell():
    for name in EXERCISES:
        told = [
            id for id in TOLD_BY_NONE if id in catalogue() if is_told(name, id)
        ]
        assert not told, f"{name} tells {told}: write them in another form"


def is_told(name, id):
    """In the first form that has it, to save time."""
    right = rights(name)
    return any(
        clearly_wrong(probe, found.answer(n), right.answers[n])
        for found in variants(name, id)[:1]
        for n, probe in enumerate(right.probes)
    )


def test_errors_alone_tell_a_mistake_that_raises_them():
    """Also in a layer that raises on one input more, of four heads in two
    groups, and of two mistakes the one that hides the other."""

    def gqa(x, w_q, w_k, w_v, w_o, n_heads, n_kv_heads, mask=None):
        (B, T, E), G = x.shape, n_heads // n_kv_heads
        q = (x @ w_q.mT).view(B, T, n_heads, -1).transpose(1, 2)
        k, v = (
            (x @ w.mT).view(B, T, n_kv_heads, -1).transpose(1, 2)
            for w in (w_k, w_v)
        )
        k, v = (y.unsqueeze(2).expand(-1, -1, G, -1, -1) for y in (k, v))
        k, v = (y.view(B, n_heads, T, E // n_heads) for y in (k, v))
        out = attnref.sdpa(q, k, v, mask).transpose(1, 2)
        return out.view(B, T, E) @ w_o.mT

    def mha_cached(x, w_q, w_k, w_v, w_o, n_heads, cache=None):
        B, T, E = x.shape
        q, k, v = (
            (x @ w.mT).view(B, T, n_heads, -1).transpose(1, 2)
            for w in (w_q, w_k, w_v)
        )
        if cache is not None:
            k, v = (torch.cat(y, 2) for y in zip(cache, (k, v), strict=True))
        out = attnref.sdpa(q, k, v).transpose(1, 2)
        return out.view(B, T, E) @ w_o.mT, (k, v)

    for name, solution in (("gqa", gqa), ("mha_cached", mha_cached)):
        found = check(name, solution).mistakes
        assert found == (("view-after-the-transpose",),)

    def softmax(x, dim=-1):
        return x.view(-1, 7).softmax(dim)

    assert check("softmax", softmax).mistakes == ()


def own_window(T, S, size):
    i, j = torch.arange(S).unsqueeze(1)[S - T :], torch.arange(S)
    return einsum_masks().causal_mask(T, S) & (i - j < size)


def einsum_masks():
    return otherwise("causal-sees-next")


def test_a_mistake_is_told_in_masks_made_of_the_wrong_one():
    """The wrong causal_mask is called by the other masks, or is in one."""
    wrong = einsum_masks()

    def document_mask(ids):
        same = ids[:, None, :, None] == ids[:, None, None]
        return same & wrong.causal_mask(ids.shape[1], ids.shape[1])

    told = ("causal-sees-next",)
    assert check("masks", wrong).mistakes == (told,)
    wrong.document_mask = document_mask
    assert told in check("masks", wrong).mistakes
    wrong.window_mask = own_window
    assert told in check("masks", wrong).mistakes


@pytest.mark.parametrize("name", ["mqa", "gqa"])
def test_a_mistake_is_told_where_the_keys_are_repeated_for_mha(name):
    """Viewed as (B, H, T, D), with as many key heads as query heads."""

    def solution(x, w_q, w_k, w_v, w_o, n_heads, n_kv_heads=1, mask=None):
        (B, T, E), H = x.shape, n_heads
        k, v = (
            (x @ w.mT)
            .view(B, T, n_kv_heads, -1)
            .repeat_interleave(H // n_kv_heads, dim=2)
            for w in (w_k, w_v)
        )
        q, k, v = (y.reshape(B, H, T, E // H) for y in (x @ w_q.mT, k, v))
        out = attnref.sdpa(q, k, v, mask).transpose(1, 2).reshape(B, T, E)
        return out @ w_o.mT

    def mqa(x, w_q, w_k, w_v, w_o, n_heads, mask=None):
        return solution(x, w_q, w_k, w_v, w_o, n_heads, 1, mask)

    report = check(name, {"mqa": mqa, "gqa": solution})
    assert report.mistakes == (("split-by-view-alone",),)


@pytest.mark.parametrize("name", ["mqa", "gqa", "cross"])
def test_what_all_layers_can_have_is_told_in_each(name):
    right = getattr(import_module("tests.mistakes.solutions.einsum"), name)
    tokens = 2 if name == "cross" else 1  # x, and context

    def unprojected(*given, **others):
        *before, w_o, n_heads = given[: tokens + 5]
        after = given[tokens + 5 :]
        return right(
            *before, torch.eye(len(w_o)).to(w_o), n_heads, *after, **others
        )

    def keys_for_values(*given, **others):
        w_k = given[tokens + 1]
        given = (*given[: tokens + 2], w_k, *given[tokens + 3 :])
        return right(*given, **others)

    def rows_as_tokens(x, *given, **others):
        return right(x.transpose(0, 1), *given, **others).transpose(0, 1)

    told = {
        "output-projection-missing": unprojected,
        "values-from-the-key-projection": keys_for_values,
        "batch-read-as-sequence": rows_as_tokens,
    }
    for id, solution in told.items():
        if (id, name) != ("batch-read-as-sequence", "cross"):
            assert (id,) in check(name, solution).mistakes, id


def test_a_mistake_is_told_where_no_tile_is_skipped():
    module = import_module("tests.mistakes.solutions.einsum")
    text = inspect.getsource(module)
    pairs = OTHERWISE["flash-maximum-of-the-tile"].lines
    for right, wrong in (*pairs, ("if not seen.any()", "if False")):
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    found = {}
    exec(compile(text, "otherwise.py", "exec"), found)
    report = check("flash", found)
    assert report.mistakes == (("flash-maximum-of-the-tile",),)


def test_a_mask_is_told_in_a_layer_that_is_given_it_at_each_step():
    """is_causal=True at each step: its triangle begins at the first key."""

    def mha_cached(x, w_q, w_k, w_v, w_o, n_heads, cache=None):
        B, T, E = x.shape
        q, k, v = (
            (x @ w.mT).view(B, T, n_heads, -1).transpose(1, 2)
            for w in (w_q, w_k, w_v)
        )
        if cache is not None:
            k, v = (torch.cat(y, 2) for y in zip(cache, (k, v), strict=True))
        seen = torch.ones(T, k.shape[2], dtype=torch.bool).tril()
        out = attnref.sdpa(q, k, v, seen).transpose(1, 2).reshape(B, T, E)
        return out @ w_o.mT, (k, v)

    report = check("mha_cached", mha_cached)
    assert report.mistakes == (("causal-top-left",),)


def test_a_mask_is_judged_by_what_it_hides_of_scores():
    """One row of a padding mask for each query is as good as one for all."""
    right = import_module("tests.mistakes.solutions.einsum")
    masks = {name: getattr(right, name) for name in TASKS["masks"].names}

    def square(valid):
        B, S = valid.shape
        return valid.view(B, 1, 1, S).expand(B, 1, S, S)

    assert check("masks", masks | {"padding_mask": square}).passed
    report = check("masks", masks | {"padding_mask": lambda v: square(v)[:, 0]})
    assert report.mistakes == (("padding-on-heads",),)
    report = check(
        "masks", masks | {"padding_mask": lambda v: v[..., None, None]}
    )
    fault = report.failures[0].fault
    assert "does not broadcast to scores (1, 1, 2, 2)" in fault.en
    assert "不能广播到分数 (1, 1, 2, 2)" in fault.zh


def test_a_solution_that_answers_by_chance_is_told():
    def softmax(x, dim=-1):
        return torch.nn.functional.dropout(x.softmax(dim).nan_to_num(), 0.3)

    report = check("softmax", softmax)
    assert "twice" in {v.law for v in report.failures}
    assert report.mistakes == ()


def test_what_is_wrong_is_told_before_the_laws():
    report = check("sdpa", otherwise("mask-times-tiny"))
    for language in ("en", "zh"):
        text = report.text(language=language)
        title = getattr(catalogue()["mask-times-tiny"].title, language)
        law = getattr(LAWS["same"].title, language)
        assert 0 < text.index(title) < text.index(law)


PAIR = "mask-times-tiny", "scale-of-the-test"


@pytest.fixture
def scaled(monkeypatch):
    """A second mistake, of this test's own: it holds whatever is catalogued."""
    lines = Lines(
        "core.sdpa",
        "    q = q.to(wide) * (D**-0.5 if scale is None else scale)",
        "    q = q.to(wide) * (D**-1.0 if scale is None else scale)",
    )
    (text,) = (
        x
        for x in inspect.getsource(attnref.core.sdpa).splitlines()
        if x.startswith(lines.right)
    )
    lines = lines._replace(right=text)
    one = catalogue()[PAIR[0]]
    other = one._replace(id=PAIR[1], lines=(lines,))
    monkeypatch.setattr(
        checker, "catalogue", lambda: {one.id: one, other.id: other}
    )
    for remembered in (checker.variants, checker._package):
        remembered.cache_clear()
    yield
    monkeypatch.undo()
    for remembered in (checker.variants, checker._package):
        remembered.cache_clear()


def test_two_mistakes_together_are_told(scaled):
    def sdpa(q, k, v, mask=None):
        scores = torch.einsum("bhtd,bhsd->bhts", q, k) / q.shape[-1]
        if mask is not None:
            scores = scores - 1e-9 * ~mask
        return scores.softmax(-1) @ v

    report = check("sdpa", sdpa)
    assert report.mistakes == (PAIR,)


PAIRS = {
    "gqa": ("merge-without-transpose", "scale-missing"),
    # RoPE in the other layout, at positions that restart in each call.
    "llama": ("positions-restart", "rope-other-layout"),
}


@pytest.mark.parametrize("name", sampled(PAIRS, ["gqa"]))
def test_the_pair_of_which_each_alone_is_right_somewhere_is_tried_first(name):
    """There are hundreds of pairs, and ten are tried here."""
    package = load(*(catalogue()[id] for id in PAIRS[name]))
    report = check(name, EXERCISES[name].forms[0](package))
    assert report.mistakes == (PAIRS[name],) and report.unfinished


def test_a_second_mistake_that_shows_in_half_precision_alone_is_told():
    """A buffer of float32, which a token beyond its end is not stored in."""

    class KVCache:
        def __init__(self, max_len):
            self.max_len, self.length, self.buffers = max_len, 0, None

        def append(self, *tensors):
            if self.buffers is None:
                B, K, _, D = tensors[0].shape
                self.buffers = torch.zeros(2, B, K, self.max_len, D)
            end = self.length + tensors[0].shape[2]
            for buffer, new in zip(self.buffers, tensors, strict=True):
                buffer[:, :, self.length : end] = new
            self.length = end
            return (*self.buffers[:, :, :, :end],)

    report = check("kv_cache", KVCache)
    assert report.mistakes == (("cache-overflow", "cache-float32"),)
    assert "These are two known mistakes" in str(report)


def test_what_no_input_tells_apart_is_told_as_one_of_them(scaled, monkeypatch):
    one = catalogue()[PAIR[0]]
    twin = one._replace(id="twin")
    monkeypatch.setattr(
        checker, "catalogue", lambda: {one.id: one, "twin": twin}
    )
    monkeypatch.setattr(checker, "page_of", lambda id, language: id)
    report = check("sdpa", otherwise(one.id))
    assert report.mistakes == ((one.id,), ("twin",))
    assert "It is one of these known mistakes" in str(report)


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
