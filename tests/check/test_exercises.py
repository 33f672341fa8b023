"""The exercises of `attnref check`: right solutions pass in every style, wrong
ones do not."""

import contextlib
import functools
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import attnref
from attnref.judge import checker
from attnref.judge import report as report_words
from attnref.judge.catalogue import catalogue, place_of, planted
from attnref.judge.checker import answer_key, candidates, check
from attnref.judge.exercises import (
    EXERCISES,
    PROPERTIES,
    OperationCounts,
    Solution,
    calls_attnref,
    fill_with_nan,
)
from attnref.judge.process import check_file
from attnref.judge.tasks import TASKS, exercise_name, file_to_fill
from attnref.judge.words import wide
from attnref.plain.scaling import frequencies
from sitekit import ROOT
from tests.check.solutions import fused, wrong
from tests.kit import sampled
from tests.kit.slips import SCALE, WEIGHTS, replace_lines

STYLES = ("loops", "einsum", "fused")


@pytest.mark.parametrize("style", sampled(STYLES, ["einsum"]))
def test_right_solutions_pass_in_every_style(style):
    module = import_module(f"tests.check.solutions.{style}")
    names = [
        n for n, t in TASKS.items() if all(map(module.__dict__.get, t.names))
    ]
    assert len(names) >= 5
    for name in names:
        report = check(name, module)
        assert report.passed, str(report)
        assert report.mistakes == () and report.failures == ()
        assert not calls_attnref(Solution(name, module))


def test_every_form_of_every_exercise_is_right():
    """Otherwise a planted mistake would get the blame for other changes."""
    assert [*TASKS] == [*EXERCISES]
    for name, exercise in EXERCISES.items():
        for form in exercise.forms:
            package = attnref if form.package else planted(())
            report = check(name, form.make(package))
            assert report.passed, f"{sorted(form.modules)} {report}"
        for probe in answer_key(name).probes:
            assert probe.prop in PROPERTIES and probe.sizes


FLOATS = torch.float64, torch.float32
FUNCTIONS = [n for n, t in TASKS.items() if not t.stub.startswith("class ")]


RANKS = {"ring_attention", "split_heads"}


@pytest.mark.parametrize("name", sampled(FUNCTIONS, {*FUNCTIONS} - RANKS))
def test_what_computes_in_float32_and_is_given_float64_is_right(name):
    """Code of papers does so. float32 decides how near is near enough."""

    def cast(old, new, value):
        return tree_map(
            lambda x: x.to(new) if getattr(x, "dtype", 0) == old else x, value
        )

    def in_float32(function):
        @functools.wraps(function)
        def call(*args, **options):
            is_float64 = any(
                getattr(x, "dtype", 0) == torch.float64
                for x in tree_leaves((args, options))
            )
            if is_float64:
                args, options = cast(*FLOATS, (args, options))
            out = function(*args, **options)
            return cast(*FLOATS[::-1], out) if is_float64 else out

        return call

    solution = checker.right_solution(name)
    functions = {n: in_float32(f) for n, f in solution.functions.items()}
    report = check(name, functions)
    assert report.passed, str(report)


WRONG = ("maximum_from_zero", "weights_detached", "other_eps", "without_tiles")


@pytest.mark.parametrize("name", sampled(wrong.SOLUTIONS, WRONG))
def test_wrong_solutions_are_refused(name):
    exercise, broken = wrong.SOLUTIONS[name]
    report = check(exercise, getattr(wrong, name))
    assert {v.name for v in report.failures} == {*broken.split()}, str(report)


def constant_solutions(name):
    """Solutions that compute nothing. They return outputs of the right shape:
    zeros, ones, their input, or a mean."""
    right = import_module("tests.check.solutions.einsum")

    def fill_outputs(fill, word):
        function = getattr(right, word)
        if hasattr(function, "gather"):
            gather = fill_gather(function, fill)
            return type(word, (function,), {"gather": gather})
        if isinstance(function, type):
            append = fill_append(function, fill)
            return type(word, (function,), {"append": append})

        def solution(*args, **options):
            out = function(*args, **options)
            if isinstance(out, tuple):
                return (fill(args, out[0]), *out[1:])
            return fill(args, out)

        return solution

    def fill_append(function, fill):
        def append(self, k, v):
            return [fill((k,), x) for x in function.append(self, k, v)]

        return append

    def fill_gather(function, fill):
        return lambda self, *args: fill(args, function.gather(self, *args))

    def return_input(args, out):
        x = args[0]
        fits = isinstance(x, torch.Tensor) and x.shape == out.shape
        return x.to(out.dtype) + 0 * out if fits else 0 * out

    fills = {
        "zeros": lambda args, out: torch.zeros_like(out),
        "ones": lambda args, out: torch.ones_like(out),
        "input": return_input,
        "mean": lambda args, out: out.double().mean().to(out) + 0 * out,
        "scalar": lambda args, out: out.double().mean().to(out),
    }
    for word, fill in fills.items():
        functions = {w: fill_outputs(fill, w) for w in TASKS[name].names}
        yield word, SimpleNamespace(**functions)


@pytest.mark.parametrize(
    "name", sampled(EXERCISES, ["mha", "mla_latent", "masks", "ring", "alibi"])
)
def test_what_computes_nothing_earns_nothing_and_has_no_name(name):
    for word, solution in constant_solutions(name):
        report = check(name, solution)
        assert report.points == 0 < report.maximum, (word, str(report))
        assert report.mistakes == (), (word, str(report))


def test_small_inputs_are_tried_first():
    """So that the smallest failing input is the first."""
    for name in EXERCISES:
        sizes = [
            checker.size_of(probe)
            for probe in answer_key(name).probes
            if probe.prop == "same"
        ]
        assert sizes[0] == min(sizes), name
        assert sizes[0] <= 80, name


# ---------------------------------------------------------------- recognised


MASK = "        scores = torch.where(mask, scores, -torch.inf)\n"
MERGE = "    flat = heads.reshape(B, T, E)\n"
ANGLE = "    angle = positions.unsqueeze(-1) * frequency\n"
INDEX = "    t = torch.arange(past, past + T)\n"
GROUPS = "    reads = torch.arange(n_heads) // (n_heads // n_kv_heads)\n"
CAUSAL = "    return torch.arange(S) <= torch.arange(T).unsqueeze(1) + past\n"
RISES = "        norm = norm * torch.exp(m - m_new)\n"
LATENT_NORM = "    c = (c / size.sqrt() * w_norm).to(x.dtype)\n"
RELU = "    rights = torch.clamp(rights, min=0)\n"
FULL = "        if self.length + T > self.max_len:\n"
SHRINKS = "            acc = acc * shrink.unsqueeze(-1)\n"
NEAR = "    near = (distance >= 0) & (distance < window)\n"
SOFTCAP = "        scores = softcap * torch.tanh(scores / softcap)\n"
QUERY_NORM = "    q = rope(rms_norm(q, q_weight), positions)\n"
FREE = "    return torch.stack([x / factor for x in f])\n"
SLOTS = "        self.W, self.all, self.length = W, None, 0\n"
MISSING = "        missing = v.view(B, H, Dv) - "
MISSING += 'einsum("bhvd,bhd->bhv", memory, k)\n'
NO_READ = "        missing = v.view(B, H, Dv)\n"
FORGET = "            self.texts[block] = None\n"
TINY = MASK, "        scores = scores - 1e-9 * ~mask\n"
MISTAKES = {
    "online_softmax": ("online-sum-not-rescaled", (RISES, "")),
    "masks": ("causal-sees-next", (CAUSAL, CAUSAL.replace("past", "past + 1"))),
    "sdpa": ("mask-times-tiny", TINY),
    "mha": (
        "output-projection-missing",
        (MERGE, MERGE + "    return flat\n"),
    ),
    "cross": ("scale-missing", (SCALE, "")),
    "gqa": (
        "groups-tiled",
        (GROUPS, "    reads = torch.arange(n_heads) % n_kv_heads\n"),
    ),
    "llama": ("positions-restart", (INDEX, INDEX.replace("past, past +", ""))),
    "mla_latent": (
        "mla-norm-weight-left-out",
        (LATENT_NORM, LATENT_NORM.replace(" * w_norm", "")),
    ),
    "dsa": ("dsa-without-relu", (RELU, "")),
    "kv_cache": ("cache-one-token-short", (FULL, FULL.replace(">", ">="))),
    "flash": ("flash-no-rescaling", (SHRINKS, "")),
    "sinks": (
        "streaming-without-first",
        (NEAR, NEAR + "    return near\n"),
    ),
    "alibi": ("softcap-left-out", (SOFTCAP, "        pass\n")),
    "order": (
        "keys-with-the-query-norm",
        (QUERY_NORM, "    k_weight = q_weight\n" + QUERY_NORM),
    ),
    "scaling": ("linear-factor-multiplies", (FREE, FREE.replace("/", "*"))),
    "gated_delta": ("delta-without-the-correction", (MISSING, NO_READ)),
    "paged": ("paged-stale-hash", (FORGET, "")),
    "ring": ("ring-one-slot-short", (SLOTS, SLOTS.replace("= W", "= W - 1"))),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_in_another_form(name):
    id, *lines = MISTAKES[name]
    report = check(name, replace_lines(*lines))
    assert report.mistakes == ((id,),), str(report)
    assert catalogue()[id].title.zh in report.text(language="zh")


def test_the_lines_of_a_mistake_are_those_that_agree():
    code = "            mask = mask.transpose(1, 2).flatten(1, 2)"
    wrong = next(c for c in candidates("gqa") if f"-{code}" in str(c.variant))
    report = check("gqa", wrong.form.make(planted(wrong.variant)))
    assert report.mistakes == (("groups-tiled",),)
    assert report.lines == (wrong.variant,)
    assert f"\n  -{code}\n" in report.text(show=True)
    assert "--show" in str(report) and code not in str(report)
    two = replace(report, mistakes=(("groups-tiled", "scale-missing"),))
    scale = catalogue()["scale-missing"].variants[0]
    text = replace(two, lines=(wrong.variant + scale,)).text(show=True)
    assert text.count(code) == 1  # of two mistakes, each with its own


@pytest.mark.parametrize("name", ["alibi", "order", "ring", "scaling", "sinks"])
def test_each_mistake_in_a_part_of_todays_heads_is_named(name):
    """The mistakes of its plain form, and one of sinks in code that splits
    keys. No exercise asks for these two functions of plain.scaling."""
    module, unasked = f"plain.{name}", {"frequencies", "rotate"}
    examples = [
        c
        for c in candidates(name)
        if (
            {x.module for x in c.variant} == {module}
            and c.variant in catalogue()[c.ids[0]].variants
            and not unasked & {place_of(x)[-1] for x in c.variant}
        )
        or c.ids == ("sink-in-each-part",)
    ]
    assert len(examples) >= 5
    for c in examples:
        report = check(name, c.form.make(planted(c.variant)))
        assert not report.passed and report.mistakes == (c.ids,), str(report)


def test_two_mistakes_are_named_whose_lines_are_in_two_files():
    """One is in the layer and one in its attention."""
    inverse = MASK, MASK.replace("mask", "~mask")
    report = check("mha", replace_lines(inverse, MISTAKES["mha"][1]))
    assert report.mistakes == (("mask-inverted", "output-projection-missing"),)


def test_mistakes_of_softmax_are_named_in_float32_and_over_any_axis():
    def overflow(x, dim=-1):
        e = x.float().exp()
        return (e / e.sum(dim, keepdim=True)).to(x.dtype)

    def no_move_back(x, dim=-1):
        return x.movedim(dim, -1).softmax(-1).nan_to_num(0.0)

    assert check("softmax", overflow).mistakes == (("softmax-overflow",),)
    report = check("softmax", no_move_back)
    assert report.mistakes == (("weights-transposed",),)


@pytest.mark.parametrize("error", [RuntimeError, TypeError, ValueError])
def test_a_solution_may_refuse_half_precision(error):
    """It may raise any error there, as the exercise says."""

    def solution(x, dim=-1):
        if x.dtype in (torch.float16, torch.bfloat16):
            raise error("float32 or float64")
        return x.softmax(dim).nan_to_num()

    assert check("softmax", solution).passed


def test_weights_without_gradient_and_sums_in_half_precision_fail():
    def sum_in_dtype(x, dim=-1):
        e = (x - x.amax(dim, keepdim=True)).exp()
        return (e / sum(e.split(1, dim))).nan_to_num(0.0)

    def detach(x, dim=-1):
        y = x.detach().double() + torch.tensor(0.0)  # of no tensor
        return sum_in_dtype(y, dim).to(x.dtype)

    report = check("softmax", sum_in_dtype)
    (verdict,) = report.failures
    assert verdict.name == "sums" and verdict.sizes.endswith(", bfloat16")
    sentence = " ".join(str(report).split())  # with its sizes and its dtype
    assert f"{verdict.sizes}: {verdict.fault.en}" in sentence
    report = check("softmax", detach)
    assert [v.name for v in report.failures] == ["gradients"]


def test_a_mistake_is_named_though_some_inputs_differ():
    """Here an empty row is not what it is with this mistake alone."""
    division = "    weights = e / total.where(total > 0, 1)\n"
    no_root = SCALE, SCALE.replace("** 0.5", "")
    wrong = replace_lines(no_root, (division, "    weights = e / total\n"))
    report = check("sdpa", wrong)
    assert report.mistakes == (("empty-row-nan", "scale-twice"),)
    ones = division + "    weights = weights.where(total > 0, 1.0)\n"
    report = check("sdpa", replace_lines(no_root, (division, ones)))
    assert report.mistakes == (("scale-twice",),)
    assert report.differs == ("empty", "gradients")
    text = f"on {report.agrees} of {report.tried} inputs; it differs where a"
    assert text in str(report)
    assert "查询什么都看不到" in report.text(language="zh")


def double(x, dim=-1):
    return 2 * x.softmax(dim).nan_to_num()


def noise(q, k, v, mask=None):
    return attnref.sdpa(q, k, v, mask) * (0.9 + 0.2 * torch.rand(1).double())


def dropout(q, k, v, mask=None):
    weights = attnref.attention_weights(q, k, mask)
    return torch.nn.functional.dropout(weights, 0.1) @ v


@pytest.mark.audit
@pytest.mark.parametrize("name", ["mha_cached", "llama", "mla_latent"])
def test_no_mistake_shows_at_far_positions_alone(name):
    """Mistakes whose lines do not mention positions are not tried there."""
    probes, right = checker.probes_of(name), answer_key(name).all_answers
    far = [n for n, p in enumerate(probes) if p.prop == "far"]
    indices = range(len(answer_key(name).probes))
    skip = "far", *checker.UNNAMED
    rest = [n for n in indices if probes[n].prop not in skip]
    silent = [w for w in candidates(name) if "position" not in str(w.variant)]
    matches = [
        w
        for w in silent
        if all(
            checker.same_answer(probes[n], w.answer(n), right[n]) for n in rest
        )
    ]
    assert len(matches) > 20
    for w in matches:
        for n in far:
            assert checker.same_answer(probes[n], w.answer(n), right[n]), w.ids


def test_dropout_is_named_and_other_chance_is_not():
    assert check("sdpa", dropout).mistakes == (("dropout-in-evaluation",),)
    report = check("sdpa", noise)
    assert report.mistakes == ()
    assert "twice" in {v.name for v in report.failures}


@pytest.mark.parametrize(
    ("name", "solution"),
    [
        ("softmax", double),
        ("softmax", lambda x, dim=-1: torch.zeros_like(x)),
        ("softmax", lambda x, dim=-1: x.view(-1, 7).softmax(dim)),
        ("sdpa", lambda q, k, v, mask=None: v.mean(2, True) + 0 * q @ k.mT @ v),
        ("rope", lambda x, positions, theta=1e4: x),
        ("merge", lambda outs, lses: (sum(outs), sum(lses))),
    ],
)
def test_what_agrees_with_no_mistake_is_accused_of_none(name, solution):
    report = check(name, solution)
    assert not report.passed and report.mistakes == ()
    assert "none of the mistakes that attnref knows" in str(report)
    assert "不是 attnref 已知的错误" in report.text(language="zh")


def test_errors_alone_tell_a_mistake_that_raises_them():
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

    mistakes = check("mha_cached", mha_cached).mistakes
    assert mistakes == (("view-after-the-transpose",),)


# ------------------------------------------------------- located, and shown

STAGES = {
    "values": ("mha", (MERGE, "    heads = heads.tanh()\n" + MERGE)),
    "output": ("mha", (MERGE, MERGE + "    w_o = w_o.mT\n")),
    "merge": ("mha", (MERGE, MERGE.replace(".re", ".transpose(1, 2).re"))),
    "softmax": ("sdpa", (WEIGHTS, WEIGHTS.replace("s)", "s, 2)"))),
    "mask": ("gqa", (MASK, MASK.replace("mask", "mask.roll(1, -1)"))),
    "scale": ("cross", (SCALE, SCALE.replace("0.5", "0.5 * 1.3"))),
    "scores": ("sdpa", (SCALE, SCALE.replace("scores /", "scores.abs() /"))),
    "rotation": ("llama", (ANGLE, ANGLE.replace("* freq", "/ 3 * freq"))),
    "cache": ("llama", (INDEX, INDEX + "    t = t + 7 * (past > 0)\n")),
}


@pytest.mark.parametrize("stage", STAGES)
def test_the_stage_that_goes_wrong_is_located(stage):
    name, lines = STAGES[stage]
    report = check(name, replace_lines(lines))
    assert report.stage == stage, str(report)
    assert report.as_json()["hint"] in str(report).replace("\n", " ")
    if stage == "scale":
        assert "1.3 times" in str(report) and "1.3 倍" in report.text(
            language="zh"
        )


@pytest.mark.parametrize(
    ("name", "solution", "stage"),
    [
        ("sdpa", wrong.weights_detached, "gradients"),
        (
            "mha",
            lambda x, *w, mask=None: fused.mha(x.detach(), *w, mask) + 0 * x,
            "gradients",
        ),
        ("mha", lambda *args, mask=None: fused.mha(*args, mask).float(), ""),
        ("flash", wrong.without_tiles, ""),
        ("sdpa", wrong.mask_of_the_first_head, "masked"),
    ],
)
def test_a_hint_says_nothing_that_is_not_so(name, solution, stage):
    """Where only gradients or the dtype are wrong, masks are not."""
    report = check(name, solution)
    assert report.failures and report.stage in (stage, stage or "unclear")


class Bottomless:
    def __init__(self, max_len):
        self.k, self.v, self.length = [], [], 0

    def append(self, k, v):
        self.k.append(k)
        self.v.append(v)
        self.length += k.shape[2]
        return torch.cat(self.k, 2), torch.cat(self.v, 2)


def one_row(q, k, v, mask=None, tile=(2, 4)):
    if len(q) > 1:
        raise KeyError("batch")
    return replace_lines().flash(q, k, v, mask, tile)


def change_causal_mask(change):
    functions = replace_lines()
    causal = functions.causal_mask
    functions.causal_mask = lambda T, S: change(causal(T, S))
    return functions


def in_place(q, k, v, mask=None):
    q /= q.shape[-1] ** 0.5
    return replace_lines((SCALE, "")).sdpa(q, k, v, mask)


PROGRAMS = [
    ("gqa", lambda: replace_lines(STAGES["mask"][1]).gqa, ""),
    ("llama", lambda: replace_lines(STAGES["cache"][1]).llama, ""),
    ("masks", lambda: replace_lines(MISTAKES["masks"][1]), "True"),
    (
        "softmax",
        lambda: lambda x, dim=-1: x.double().softmax(dim).nan_to_num(),
        "",
    ),
    ("kv_cache", lambda: Bottomless, "it must raise"),
    ("kv_cache", lambda: wrong.ChangedBeforeRaise, "suppress"),
    ("flash", lambda: one_row, "it raises KeyError"),
    ("flash", lambda: wrong.lse_of_the_last_tile, "lse"),
    ("masks", lambda: change_causal_mask(torch.Tensor.float), "out.dtype"),
    ("sdpa", lambda: in_place, "q.equal(before)"),
]


@pytest.mark.parametrize(("name", "make", "fragment"), PROGRAMS)
def test_a_program_shows_what_is_wrong(name, make, fragment):
    """It runs as it is printed, has 15 lines at most and gives what it says."""
    solution = make()
    report = check(name, solution)
    program = report.smallest
    assert fragment in program and len(program.splitlines()) <= 15, program
    assert ("right is" in program) != ("raise" in program)
    data = replace(report, language="zh").as_json()
    assert re.findall("# (it|right)", data["smallest"]) == []
    functions = {
        word: getattr(solution, word, solution) for word in TASKS[name].names
    }
    output = io.StringIO()
    errors = contextlib.suppress(KeyError, ValueError)
    with contextlib.redirect_stdout(output), errors:
        exec(compile(program, "shown.py", "exec"), functions)
    texts = re.findall(r"it gives (.*)|# (\[.*\]|torch\.\w+|False), r", program)
    number = r"-?\d+\.?\d*(?:e-?\d+)?|True|False"
    for text in map("".join, texts):
        printed_text = output.getvalue().partition("dtype=")[0]
        columns = (re.findall(number, x) for x in (text, printed_text))
        a, b = ([float(eval(x)) for x in column] for column in columns)
        assert a == pytest.approx(b, abs=1e-3)
        assert text in printed_text or "it gives" in program


def test_it_is_shown_how_a_file_is_imported():
    lines = [
        report_words.Program("sdpa", 0, {}, name).head[-1] for name in FILES
    ]
    assert lines == [*FILES.values()]


FILES = {
    "": "import torch  # yours: sdpa",
    "/x/mine.py": "from mine import sdpa",
    "/x/mine.ipynb": "import torch  # mine.ipynb: sdpa",
}


@pytest.mark.parametrize("name", ["3hw-sdpa.py", "作业 sdpa.py", "a.b.py"])
def test_a_program_runs_beside_a_file_of_any_name(tmp_path, name):
    text = "def sdpa(q, k, v, mask=None):\n    return q @ k.mT @ v\n"
    (tmp_path / name).write_text(text, encoding="utf-8")
    wrong = check_file("sdpa", tmp_path / name, language="en")
    process = subprocess.run(
        [sys.executable, "-c", wrong.smallest],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )
    assert process.returncode == 0, wrong.smallest + process.stderr
    (literal,) = re.findall("it gives (.*)", wrong.smallest)
    assert literal[:5] in process.stdout


# ------------------------------------------------------------------ in words


def test_what_is_wrong_stands_before_the_properties():
    report = check("sdpa", replace_lines(TINY))
    for language in ("en", "zh"):
        text = report.text(language=language)
        title = getattr(catalogue()["mask-times-tiny"].title, language)
        title_of = getattr(PROPERTIES["same"].title, language)
        assert 0 < text.index(title) < text.index(title_of)


@pytest.mark.parametrize(
    ("solution", "message"),
    [
        (lambda: 0, "cannot be called as softmax(x, dim=-1)"),
        (lambda x, dim=-1: [0.5], "a tensor is asked for, and the type"),
        (lambda x, dim=-1: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda x, dim=-1: exit(3), "it ends the program (SystemExit: 3)"),
        (
            lambda x, dim=-1: x.expand(9**9, *x.shape),
            "a tensor of shape (387420",
        ),
        (lambda x, dim=-1: x.to_sparse(), "in layout torch.sparse_coo"),
        (SimpleNamespace(sofmax=noise), "there is no softmax; the exercise"),
        ({"softmax": 3}, "there is no softmax; the exercise asks for softmax"),
    ],
)
def test_what_cannot_be_judged_is_reported_in_a_line(solution, message):
    report = check("softmax", solution)
    assert not report.passed and report.error is not None
    assert report.error.en.startswith(message) or message in report.error.en
    assert report.error.zh != "" and report.mistakes == ()
    assert str(report).startswith(f"softmax: {report.error.en}")


def test_an_error_is_reported_with_the_lines_that_raise_it():
    def softmax(x, dim=-1):
        if x.dim() == 3:
            raise KeyError("q_proj")
        return x.softmax(dim).nan_to_num()

    report = check("softmax", softmax)
    verdict, _ = report.failures
    assert verdict.fault.en == "KeyError: 'q_proj'"
    assert (
        str(report).count("\n         x (3, 5, 7), dim=1, float64: KeyError")
        == 1
    )
    assert "x (3, 3, 3), float64: the same error" in str(report)
    assert report.mistakes == ()
    assert report.where[-1].endswith('raise KeyError("q_proj")')


def test_input_that_is_modified_is_reported():
    def softmax(x, dim=-1):
        x -= x.amax(dim, keepdim=True).detach()
        return x.softmax(dim).nan_to_num()

    report = check("softmax", softmax)
    assert "untouched" in [v.name for v in report.failures]
    assert report.failures[-1].fault.en == "x changes"


def test_the_dtype_is_kept():
    report = check("softmax", lambda x, dim=-1: x.double().softmax(dim))
    assert {v.name for v in report.failures} == {"dtype", "empty"}
    (verdict,) = (v for v in report.failures if v.name == "dtype")
    assert (
        verdict.fault.en
        == "the dtype is torch.float64, and should be torch.float32"
    )


def test_tables_in_float32_are_reported_in_words_of_rope():
    def rope(x, positions, theta=10000.0):
        angle = positions[:, None] * frequencies(x.shape[-1], theta)
        cos, sin = angle.cos().float(), angle.sin().float()
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    report = check("rope", rope)
    assert report.mistakes == (("softmax-stays-float32",),)
    for language in ("en", "zh"):
        text = report.text(language=language)
        assert text.count("RoPE") >= 2 and ".to(x.dtype)" in text


def test_numbers_that_differ_look_different():
    x, y = torch.tensor([1.0, 1.0 + 1e-7], dtype=torch.float64)
    assert report_words.digits_of(x, y) == ("1", "1.0000001")
    assert report_words.digits_of(x > 0, x < 0) == ("True", "False")


@pytest.mark.parametrize(
    "sentence",
    [
        "q (3, 2, 5, 4), k (3, 2, 7, 4), v (3, 2, 7, 3), mask (5, 7), "
        "tile=(2, 3)：在 (1, 0, 2) 处是 2，应为 1",
        "max_len=2, k 2 x (1, 1, 1, 2), v 2 x (1, 1, 1, 2)：形状是 "
        "(1, 1, 2, 2)，应为 (1, 1, 1, 2)",
    ],
)
def test_lines_break_within_no_tuple_and_before_no_comma(sentence):
    lines = [*report_words.wrapped(sentence, " " * 9)]
    assert len(lines) == 2 and max(map(wide, lines)) <= 80
    assert all(line.count("(") == line.count(")") for line in lines)
    assert not lines[1].strip().startswith("，")


def test_a_cache_larger_than_it_need_be_is_reported():
    """MLA that keeps the keys and values of all heads."""
    solution = SimpleNamespace(
        **vars(import_module("tests.check.solutions.einsum"))
    )

    def mla_latent(x, *weights, theta=10000.0, cache=None):
        past = None if cache is None else cache[:2]
        out, pair = solution.einsum_latent(x, *weights, theta=theta, cache=past)
        return out, (*pair, torch.zeros(1, pair[0].shape[1], 30))

    solution.einsum_latent = solution.mla_latent
    report = check("mla_latent", mla_latent)
    (verdict,) = report.failures
    assert verdict.name == "small"
    assert verdict.fault.en == "42 elements per token, at most 12 are needed"


def test_memory_that_a_cache_never_wrote_holds_no_number():
    """Otherwise it may hold numbers of another cache, and a cache that is too
    large passes."""
    with OperationCounts(fill_with_nan):
        tensors = torch.empty(3), torch.ones(2).new_empty(4)
    assert all(x.isnan().all() for x in tensors)


def test_absorption_that_expands_is_reported():
    solution = import_module("tests.check.solutions.einsum")
    report = check("mla_absorbed", solution.mla_latent)
    assert [v.name for v in report.failures] == ["absorbed"]
    assert check("mla_absorbed", solution.mla_absorbed).passed


def test_a_report_is_also_numbers():
    report = check("sdpa", replace_lines(TINY), language="zh")
    data = json.loads(json.dumps(report.as_json()))
    assert (data["exercise"], data["passed"]) == ("sdpa", False)
    names = {x["property"] for x in data["properties"] if not x["passed"]}
    assert names == {v.name for v in report.failures} >= {"future", "pads"}
    ((mistake,),) = data["mistakes"]
    title = catalogue()["mask-times-tiny"].title.zh
    page = report_words.page_of("mask-times-tiny", "zh")
    assert mistake == {"id": "mask-times-tiny", "title": title, "page": page}
    assert data["hint"] and "import torch" in data["smallest"]
    assert "\033[" not in str(report) and "\033[31m" in report.text(colour=True)
    with pytest.raises(ValueError, match="language='fr' is neither 'en' nor"):
        report.text(language="fr")


def test_an_exercise_is_found_by_what_people_write():
    assert exercise_name("Online-Softmax") == "online_softmax"
    with pytest.raises(ValueError, match="no exercise 'gpa'; did you mean gqa"):
        exercise_name("gpa")
    with pytest.raises(ValueError, match="no exercise 'zebra'; --list prints"):
        check("zebra", double)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_stub_is_reported_as_empty(language):
    for name in TASKS:
        text = file_to_fill(name, language)
        assert max(map(wide, text.splitlines())) <= 80
        namespace = {}
        exec(text, namespace)
        report = check(name, namespace)
        assert report.error.en == "it is not filled in yet", str(report)


def test_a_solution_is_called_in_this_process_only():
    """`check` for teachers takes a function, a module or a dict of names."""
    module = import_module("tests.check.solutions.einsum")
    for solution in (module.softmax, module, {"softmax": module.softmax}):
        assert check("softmax", solution).passed
    assert attnref.check("softmax", module).passed
