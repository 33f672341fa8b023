"""Exercises on several ranks: right answers are those of one device, mistakes
are named, and a rank that fails or waits in vain ends all others at once."""

import contextlib
import functools
import io
import re
import time

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from attnref.commands import match
from attnref.judge import gradients, vectors
from attnref.judge.catalogue import Plain, catalogue, planted
from attnref.judge.checker import (
    answer_key,
    ask,
    candidates,
    check,
    reproduction,
    verdicts,
)
from attnref.judge.exercises import (
    EXERCISES,
    TOKENS_SPLIT,
    Probe,
    Solution,
    call_on_ranks,
    gradients_on_ranks,
)
from attnref.judge.process import check_file
from tests.check.solutions import fused
from tests.kit import sampled
from tests.kit.slips import replace_lines


def on_one(inputs):
    """PyTorch's attention to a whole text, and its gradients."""
    q, k, v, positions, *rest = inputs.values()
    options = dict(zip([*inputs][4:], rest, strict=True))
    B, H, T, _ = q.shape
    real = torch.zeros(B, T, dtype=torch.bool)
    for b, row in enumerate(positions.flatten(1)):
        real[b, row[row >= 0]] = True
    t = torch.arange(T)
    keep = real[:, None] & real[:, :, None] & (t <= t[:, None])
    if "first" in options:
        keep &= t >= options["first"][:, :, None]
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    bias = torch.zeros(B, 1, T, T).double().masked_fill(~keep[:, None], -1e300)
    k, v = (x.repeat_interleave(H // k.shape[1], 1) for x in leaves[1:])
    if "sinks" in options:
        leaves.append(options["sinks"].clone().requires_grad_())
        sink = leaves[-1].view(-1, 1, 1).expand(B, H, T, 1)
        bias = torch.cat((bias.expand(B, H, T, T), sink), dim=-1)
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
    out = F.scaled_dot_product_attention(leaves[0], k, v, bias)
    out = out * real[:, None, :, None]
    slopes = torch.arange(out.numel()).cos().view(out.shape)
    return out, torch.autograd.grad((out * slopes).sum(), leaves)


@pytest.mark.parametrize("name", ["ring_attention", "split_heads"])
def test_right_answers_are_those_of_one_device(name):
    texts = 0
    for probe, answer in zip(*answer_key(name)[:2], strict=True):
        inputs = probe.inputs
        if "positions" not in inputs or inputs["q"].dtype != torch.float64:
            continue
        out, gradients = on_one(inputs)
        want = {"same": (out,), "large": (out,), "gradients": gradients}
        pairs = zip(answer.outputs, want.get(probe.prop, ()), strict=False)
        for got, right in pairs:
            assert_close(got, right, rtol=1e-12, atol=1e-12)
            texts += 1
    assert texts > 12


ROWS = "    i, j = positions.unsqueeze(2), positions.unsqueeze(1)\n"
LOCAL = "    positions = {}.expand_as(positions)\n"
SHOWN = "        mask = (j >= 0) & (j <= i)\n"
SENT = "            k, v = Shift.apply(group, k, v)\n"
WANTED = "    wanted = torch.arange(H) * k.shape[1] // H"
COPIES = "        w_k, w_v = Shared.apply(same, w_k), Shared.apply(same, w_v)\n"
WHOLE = "    x = Shared.apply(group, x)\n"
LCM = " * __import__('math').lcm(n, k.shape[1])"
SUMMED = """        return group.total(x)

    @staticmethod
    def backward(ctx, grad):
        return None, {}
"""
REPEATED = (
    "        heads = (x.repeat_interleave(groups, dim=1) for x in (k, v))"
)
SINK = "        lses.append(sinks.reshape(1, -1, 1).expand_as(lses[0]))\n"
FLASH = "flash(q, *heads, mask.unsqueeze(1), tile=(99, 99))\n"
SLIPS = {
    "ranks-mask-restarts": (ROWS, LOCAL.format("torch.arange(q.shape[2])")),
    "ranks-placed-in-order": (
        ROWS,
        LOCAL.format("group.rank * q.shape[2] + torch.arange(q.shape[2])"),
    ),
    "ranks-local-keys": (SHOWN, f"{SHOWN}        mask = mask & (step == 0)\n"),
    "ranks-gradients-stay": (
        SENT,
        "            k, v = group.shift([k, v])()\n",
    ),
    "ulysses-heads-tiled": (
        WANTED,
        f"    wanted = torch.arange(H){LCM} // H % k.shape[1]",
    ),
    "ranks-copies-apart": (COPIES, "        pass\n"),
    "ranks-input-gradient": (WHOLE, ""),
    "ranks-output-gradient": (
        SUMMED.format("grad"),
        "        ctx.group = group\n" + SUMMED.format("ctx.group.total(grad)"),
    ),
    "ranks-sink-on-each": (
        SINK,
        f"{SINK}        outs, lses = PARTS\n".replace(
            "PARTS",
            "outs + outs[-1:] * (group.size - 1), "
            "lses + lses[-1:] * (group.size - 1)",
        ),
    ),
    "groups-tiled": (
        REPEATED,
        REPEATED.replace(
            "repeat_interleave(groups, dim=1)", "repeat(1, groups, 1, 1)"
        ),
    ),
    "scale-missing": (FLASH, FLASH.replace("q,", "q * q.shape[3] ** 0.5,")),
}
SPLIT = "ulysses-heads-tiled", "ranks-copies-apart", "ranks-input-gradient"
SPLIT += ("ranks-output-gradient",)


def slip(id):
    """The solution by einsum, with this mistake."""
    right, wrong = SLIPS[id]
    if right == ROWS:
        wrong += ROWS
    exercise = "split_heads" if id in SPLIT else "ring_attention"
    return check(exercise, replace_lines((right, wrong)))


def test_gradients_that_stay_are_wrong_and_nothing_else():
    solution = replace_lines(SLIPS["ranks-gradients-stay"]).ring_attention
    solution = Solution("ring_attention", solution)
    answers = [ask(solution, p) for p in answer_key("ring_attention").probes]
    failed = [v for v in verdicts("ring_attention", answers) if not v.passed]
    assert [v.name for v in failed] == ["gradients"]
    assert "the gradient is wrong for k, v; for k" in failed[0].fault.en


@pytest.mark.parametrize("id", sampled(SLIPS, ["ranks-local-keys"]))
def test_a_mistake_is_named_in_another_form(id):
    report = slip(id)
    assert report.mistakes == ((id,),), str(report)
    assert catalogue()[id].title.zh in report.text(language="zh")
    if id == "ranks-gradients-stay":
        assert "must be sent back" in report.as_json()["hint"]


class Twice(torch.autograd.Function):
    """A gradient that is summed over the ranks, as the check does again."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.group.total(grad), None


class Louder(torch.autograd.Function):
    """A gradient that is wrong on any number of ranks."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad


def changed(change):
    """The right solution, called with other inputs."""

    def ring_attention(q, k, v, positions, group, first=None, sinks=None):
        args = change(q, k, v, positions, group, first, sinks)
        return fused.ring_attention(*args)

    return ring_attention


def summed(q, k, v, positions, group, first, sinks):
    sinks = None if sinks is None else Twice.apply(sinks, group)
    return q, k, v, positions, group, first, sinks


def louder(q, k, v, positions, group, first, sinks):
    return q, Louder.apply(k), v, positions, group, first, sinks


def halved(q, k, v, positions, group, first, sinks):
    sinks = None if sinks is None else sinks / 2
    return q, k, v, positions, group, first, sinks


def earlier(q, k, v, positions, group, first, sinks):
    first = None if first is None else first - 1
    return q, k, v, positions, group, first, sinks


HINTS = {
    summed: "gradients are n times too large on n ranks",
    louder: "a gradient is wrong on a single rank, too",
    halved: "look at how the sinks are added",
    earlier: "look at first. Where it is not given",
}


@pytest.mark.parametrize("change", HINTS, ids=lambda x: x.__name__)
def test_a_hint_says_what_is_wrong_on_ranks(change):
    report = check("ring_attention", changed(change))
    assert HINTS[change] in report.as_json()["hint"], str(report)
    assert report.text(language="zh") != str(report)


def test_a_rank_that_does_not_send_pads_is_noticed():
    """In training this is a short last batch, in which a rank has none."""

    def ring_attention(q, k, v, positions, group, first=None, sinks=None):
        out = fused.ring_attention(q, k, v, positions, group, first, sinks)
        if (positions >= 0).any():
            group.gather(positions)
        return out

    (verdict,) = check("ring_attention", ring_attention).failures
    assert "no rank can go on: rank 0 waits for rank" in verdict.fault.en
    assert "positions (3, 2), ranks=3" in verdict.sizes


@pytest.mark.audit
@pytest.mark.parametrize("name", ["ring_attention", "split_heads"])
def test_each_mistake_of_ranks_is_named(name):
    """All variants of all mistakes in the plain forms of rings and heads."""
    modules = EXERCISES[name].forms[1].modules
    variants = [
        c
        for c in candidates(name)
        if {lines.module for lines in c.variant} <= modules
    ]
    assert len(variants) >= 3
    for c in variants:
        report = check(name, c.form.make(planted(c.variant)))
        assert not report.passed and report.mistakes == (c.ids,), str(report)


# ------------------------------------------------- ranks that cannot go on


def dies(group, q):
    if group.rank == 1:
        raise KeyError("q_proj")


def sends(group, q):
    if group.rank == 1:
        group.shift([q])


def waits(group, q):
    if group.rank == 1:
        group.shift([q])()


def disagrees(group, q):
    group.shift([q[:, :, : 2 - group.rank]])()


def receive_first(group, q):
    group.start([], [(1 - group.rank, q.clone())])()


FAILING = {
    receive_first: "rank 0 waits for rank 1; rank 1 waits for rank 0",
    dies: "rank 1 of 2: KeyError: 'q_proj'",
    sends: "rank 1 sent 1 tensors that rank 0 never received",
    waits: "no rank can go on: rank 1 waits for rank 0, which has ended",
    disagrees: "rank 0 expects (1, 2, 2, 2, torch.float64) from rank 1, which",
}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("change", FAILING, ids=lambda x: x.__name__)
def test_a_rank_that_fails_ends_all_with_its_reason(change, backward):
    """At once: it is no time limit that ends them."""

    class Late(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, group):
            ctx.group = group
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            change(ctx.group, grad)
            return grad, None

    def ring_attention(q, k, v, positions, group, first=None, sinks=None):
        late = Late.apply(q, group) if backward else q
        out = fused.ring_attention(late, k, v, positions, group, first, sinks)
        if not backward:
            change(group, q)
        return out

    inputs = answer_key("ring_attention").probes[1].inputs
    drive = (gradients_on_ranks if backward else call_on_ranks)(TOKENS_SPLIT)
    solution = Solution("ring_attention", ring_attention)
    start = time.monotonic()
    answer = ask(solution, Probe("same", inputs, drive))
    assert time.monotonic() - start < 30
    assert FAILING[change] in answer.error.en
    assert answer.error.zh != answer.error.en
    (line,) = [x for x in answer.trace if "test_ranks" in x][-1:] or [""]
    lines = {dies: "raise KeyError", sends: "", receive_first: "group.start("}
    assert lines.get(change, "group.shift([q") in line


DEADLOCK = """
def ring_attention(q, k, v, positions, group, first=None, sinks=None):
    before, after = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    group.start([], [(before, k.clone())])()  # all receive before they send
    group.start([(after, k)], [])()
    return q
"""


def test_a_file_whose_ranks_wait_for_each_other_does_not_hang(tmp_path):
    file = tmp_path / "ring_attention.py"
    file.write_text(DEADLOCK, encoding="utf-8")
    report = check_file("ring_attention", file, language="zh")
    error = report.error.en
    wanted = "no rank can go on: rank 0 waits for rank 0"
    assert wanted in error, report.printed
    assert "没有 rank 能继续：rank 0 在等 rank 0" in report.text()


def test_the_shown_program_runs_all_ranks():
    functions = vars(replace_lines(SLIPS["ranks-local-keys"]))
    solution = Solution("ring_attention", functions)
    answer = ask(solution, answer_key("ring_attention").probes[2])
    program = reproduction("ring_attention", 2, answer, "")
    assert "right is" in program and len(program.splitlines()) <= 15
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "shown.py", "exec"), dict(functions))
    (text,) = re.findall("it gives (.*)", program)
    numbers = (f"{float(x):.4f}" for x in text.split(","))
    assert ", ".join(numbers) in printed.getvalue()


# ------------------------------------------------------------ known answers


@pytest.mark.parametrize(
    ("case", "id"),
    [
        pytest.param(
            *("ring-attention-sinks", "ranks-placed-in-order"),
            marks=pytest.mark.audit,
        ),
        pytest.param(
            *("ring-attention-sinks", "ranks-gradients-stay"),
            marks=pytest.mark.audit,
        ),
        ("ulysses", "ulysses-heads-tiled"),
    ],
)
def test_a_file_of_outputs_or_gradients_names_the_mistake(case, id):
    """Outputs of all ranks are one tensor, and so is each gradient."""
    tensors, about = vectors.compute(case)
    assert tensors["input/q"].shape[0] == about["given"]["n"] == 4
    assert match.compare(tensors, tensors, about)["is"] == "right"
    run = functools.partial(vectors.run_with_graph, case)
    for variant in catalogue()[id].variants:
        inputs = {x: y.double() for x, y in tensors.items() if "input/" in x}
        out, _ = vectors.run_case(case, Plain(variant), dict(inputs))
        mine = gradients.gradients(case, run, dict(inputs), Plain(variant))
        result = match.compare({"output": out} | mine, tensors, about)
        if id in about["backward"]:
            assert result["is"] == "right"
            result = result["gradients"]
            assert result["wrong"] == ["gradient/k", "gradient/v"]
        assert (result["is"], result["mistakes"]) == ("mistake", [id])
