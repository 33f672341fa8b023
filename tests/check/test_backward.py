"""`attnref check` and the backward pass: wrong gradients have names, and what
has none is not asked for them."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnref.commands.check import explain
from attnref.judge.catalogue import planted
from attnref.judge.checker import candidates, check
from attnref.judge.exercises import EXERCISES
from attnref.judge.gradients import backward, entry
from tests.kit import sampled
from tests.kit.slips import SCALE, WEIGHTS, replace_lines

TIMES = "(1 + shown - shown.detach())\n"
NO_SUM = "    weights = softmax(scores.detach())\n"
NO_SUM += "    shown = scores.where(weights > 0, 0)\n"
NO_SUM += f"    weights = weights * {TIMES}"
TWICE = SCALE + "    scores = scores.detach() + "
TWICE += "(scores - scores.detach()) * q.shape[-1] ** -0.5\n"
EARLY = """    early = scores.softmax(-1)
    if mask is not None:
        early = early * mask
        scores = torch.where(mask, scores, -torch.inf)
    return Early.apply(q, k, v, early, softmax(scores))
"""
LATE = """    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    weights = softmax(scores)
    return einsum("bhts,bshd->bthd", weights, v)
"""
EVERY = """    every = scores
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    lse = scores.logsumexp(-1, keepdim=True)
    every = (every - lse).exp().nan_to_num(0.0, posinf=0.0)
    return Early.apply(q, k, v, every, softmax(scores))
"""
CHOICE = "    return attention(*heads, chosen.unsqueeze(1)).transpose(1, 2)"
CHOICE += ".to(v.dtype)\n"
SOFT = """    shown = wants.softmax(-1).where(chosen, 0).sum(-1)
    shown = shown[:, None, :, None]
    out = attention(*heads, chosen.unsqueeze(1)).transpose(1, 2)
    return (out * (1 + shown - shown.detach())).to(v.dtype)
"""
HEADS = "    heads = attention(q, k[:, :, reads], v[:, :, reads], mask)\n"
FIRST = """    one = torch.arange(n_heads) % (n_heads // n_kv_heads) == 0
    k, v = (y[:, :, reads] for y in (k, v))
    k, v = (y.where(one[:, None], y.detach()) for y in (k, v))
    heads = attention(q, k, v, mask)
"""
MEAN = """    k, v = (y[:, :, reads] for y in (k, v))
    n = n_heads // n_kv_heads
    k, v = (y.detach() + (y - y.detach()) / n for y in (k, v))
    heads = attention(q, k, v, mask)
"""
PAIR = "    pair = pair * torch.polar(torch.ones_like(angle), angle)\n"
ON = """    turn = torch.polar(torch.ones_like(angle), angle)
    pair = (pair * turn).detach() + (pair - pair.detach()) * turn.conj()
"""
SIZE = "def rms_norm(x, weight):\n    size = x"
COLUMN = "    column = sinks.reshape(-1, 1, 1).expand_as(scores[..., :1])\n"
COLUMN += "    weights = softmax(torch.cat((column, scores), dim=-1))\n"
# Lines of the solutions by einsum, and others with the same output.
SLIPS = {
    "backward-without-row-sum": ("sdpa", (WEIGHTS, NO_SUM)),
    "backward-scale": ("cross", (SCALE, TWICE)),
    "backward-keys-detached": ("mha", (SCALE, SCALE + "    v = v.detach()\n")),
    "backward-earlier-calls-detached": (
        "llama",
        ('(cache["k"], k)', '(cache["k"].detach(), k)'),
        ('(cache["v"], v)', '(cache["v"].detach(), v)'),
    ),
    "backward-state-not-carried": (
        "gated_delta",
        ('"bhvd,bh->bhvd", state', '"bhvd,bh->bhvd", state.detach()'),
    ),
    "backward-group-not-summed": ("gqa", (HEADS, FIRST)),
    "backward-groups-mixed": ("gqa", (HEADS, MEAN)),
    "backward-rope-turns-on": ("rope", (PAIR, ON)),
    "backward-sinks": (
        "sinks",
        (COLUMN, COLUMN.replace("sinks.", "sinks.detach().")),
    ),
    "backward-lse-before-mask": ("sdpa", (LATE, EARLY)),
    "backward-without-mask": ("sdpa", (LATE, EVERY)),
    "backward-norm-by-parts": ("order", (SIZE, f"{SIZE}.detach()")),
    "backward-weights-of-parts": (
        "merge",
        ("torch.exp(x - safe)", "torch.exp(x - safe).detach()"),
    ),
    "backward-rescaling-detached": (
        "flash",
        ("acc = acc * shrink", "acc = acc.detach() * shrink"),
    ),
    "backward-choice-has-gradient": ("dsa", (CHOICE, SOFT)),
}


class Early(torch.autograd.Function):
    """A backward pass with weights from scores without the mask."""

    @staticmethod
    def forward(ctx, q, k, v, early, weights):
        ctx.save_for_backward(q, k, v, early, weights)
        return torch.einsum("bhts,bshd->bthd", weights, v)

    @staticmethod
    def backward(ctx, d_out):
        q, k, v, early, weights = ctx.saved_tensors
        out = torch.einsum("bhts,bshd->bthd", weights, v)
        delta = (d_out * out).sum(-1).transpose(1, 2)[..., None]
        d_p = torch.einsum("bthd,bshd->bhts", d_out, v)
        d_s = early * (d_p - delta) / q.shape[-1] ** 0.5
        dq = torch.einsum("bhts,bshd->bthd", d_s, k)
        dk = torch.einsum("bhts,bthd->bshd", d_s, q)
        return dq, dk, torch.einsum("bhts,bthd->bshd", early, d_out), None, None


# A solution may return a log-sum-exp without a graph, as PyTorch's own kernel
# does: only known answers ask for its gradient.
UNASKED = "backward-without-lse"


def with_slip(id):
    name, *lines = SLIPS[id]
    functions = replace_lines(*lines)
    getattr(functions, TASK.get(name, name)).__globals__["Early"] = Early
    return name, functions


TASK = {"sinks": "attention_with_sinks", "order": "todays_heads"}


def test_each_mistake_of_the_backward_pass_has_a_slip():
    assert {*SLIPS, UNASKED} == {*backward()}


@pytest.mark.parametrize("id", SLIPS)
def test_a_wrong_gradient_in_a_right_solution_has_its_name(id):
    """In a style of code other than that of the catalogue."""
    name, functions = with_slip(id)
    report = check(name, functions)
    assert [v.name for v in report.failures] == ["gradients"], str(report)
    assert (id,) in report.mistakes, str(report)
    for language in ("en", "zh"):
        text = report.text(language=language, show=True)
        assert getattr(entry(id).title, language) in text
        assert re.search(r"attnref/\w+/\w+\.py", text)  # its lines
    assert report.as_json()["mistakes"][0][0]["id"] in (*backward(), id)
    assert entry(id).title.en in explain(id, "en")


def naming(exercise):
    """The exercises in which all mistakes of the backward pass are planted."""
    return exercise in ("flash", "merge", "order", "rope")


# Where lines of a plain form take no effect: one head in each group, keys of
# one element, values that no input gives, and functions that nothing asks for.
NO_EFFECT = {
    "softmax": ("backward-scale", "backward-keys-detached"),
    "mha": ("backward-group-not-summed", "backward-groups-mixed"),
    "mha_cached": ("backward-group-not-summed", "backward-groups-mixed"),
    "kv_cache": ("backward-earlier-calls-detached",),
    "scaling": ("backward-rope-turns-on",),
    "flash": (UNASKED,),
}


@pytest.mark.parametrize("name", sampled(EXERCISES, naming))
def test_each_mistake_that_a_form_can_have_is_named(name):
    for c in candidates(name, backward):
        report = check(name, c.form.make(planted(c.variant)))
        if report.passed:
            assert c.ids[0] in NO_EFFECT[name], c.variant
        else:
            assert c.ids in report.mistakes, str(report)


def attend(q, k, v, mask=None):
    out = F.scaled_dot_product_attention(q, k, v, mask)
    return out if mask is None else out * mask.any(-1, keepdim=True)


def by_modules(frozen):
    """MHA of `nn.Linear`, into which the weights are copied."""

    def mha(x, w_q, w_k, w_v, w_o, n_heads, mask=None):
        parts = []
        for w in (w_q, w_k, w_v, w_o):
            layer = nn.Linear(*w.shape[::-1], bias=False, dtype=w.dtype)
            layer.load_state_dict({"weight": w})
            parts.append(layer.requires_grad_(not frozen))
        q, k, v = (
            part(x).unflatten(-1, (n_heads, -1)).transpose(1, 2)
            for part in parts[:3]
        )
        return parts[3](attend(q, k, v, mask).transpose(1, 2).flatten(2))

    return mha


def in_one_buffer(
    x, w_q, w_k, w_v, w_o, n_heads, cache=None, detach=lambda x: x
):
    """A cache that is written in place, as engines have it."""
    q, k, v = (
        F.linear(x, w).unflatten(-1, (n_heads, -1)).transpose(1, 2)
        for w in (w_q, w_k, w_v)
    )
    B, H, T, D = q.shape
    stored, past = cache or (x.new_zeros(2, B, H, 4200, D), 0)
    stored = detach(stored)
    stored[:, :, :, past : past + T] = torch.stack((k, v))
    mask = torch.ones(T, past + T, dtype=torch.bool).tril(past)
    out = attend(q, *stored[:, :, :, : past + T], mask)
    out = F.linear(out.transpose(1, 2).flatten(2), w_o)
    return out, (stored, past + T)


def in_a_rolled_buffer(x, w_q, w_k, w_v, w_o, n_heads, cache=None):
    """The newest tokens are at its end, and each call moves all others."""
    q, k, v = (
        F.linear(x, w).unflatten(-1, (n_heads, -1)).transpose(1, 2)
        for w in (w_q, w_k, w_v)
    )
    B, H, T, D = q.shape
    stored, past = cache or (x.new_zeros(2, B, H, 4200, D), 0)
    new = torch.stack((k, v))
    stored.copy_(torch.cat((stored[:, :, :, T:], new), dim=3))
    mask = torch.ones(T, past + T, dtype=torch.bool).tril(past)
    out = attend(q, *stored[:, :, :, -(past + T) :], mask)
    out = F.linear(out.transpose(1, 2).flatten(2), w_o)
    return out, (stored, past + T)


def by_numpy(q, k, v, mask=None):
    arrays = (x.detach().double().numpy() for x in (q, k, v))
    return attend(*map(torch.tensor, arrays), mask).to(q.dtype)


def decoding(*inputs, cache=None):
    """A cache without a graph, as for decoding."""
    out, (stored, length) = in_one_buffer(*inputs, cache=cache)
    return out, (stored.detach(), length)


RIGHT = {
    "no_grad": ("sdpa", torch.no_grad()(attend)),
    "inference_mode": ("sdpa", torch.inference_mode()(attend)),
    "NumPy": ("sdpa", by_numpy),
    "modules": ("mha", by_modules(frozen=False)),
    "frozen modules": ("mha", by_modules(frozen=True)),
    "one buffer": ("mha_cached", in_one_buffer),
    "decoding": ("mha_cached", decoding),
    "rolled buffer": ("mha_cached", in_a_rolled_buffer),
    "one buffer, no_grad": ("mha_cached", torch.no_grad()(in_one_buffer)),
}


@pytest.mark.parametrize("way", RIGHT)
def test_what_has_no_gradient_by_intent_is_right(way):
    name, solution = RIGHT[way]
    report = check(name, solution)
    assert report.passed, str(report)
    assert "if it has any" in str(report)


def weight_detached(x, w_q, w_k, *rest, mask=None):
    return replace_lines().mha(x, w_q, w_k.detach(), *rest, mask=mask)


def detached_cache(*inputs, cache=None):
    return in_one_buffer(*inputs, cache=cache, detach=torch.Tensor.detach)


def with_constants(q, k, v, mask=None):
    """Numbers that are read of no float tensor excuse nothing."""
    one = torch.tensor([[1.0]], dtype=q.dtype) * torch.ones(1).long().item()
    return attend(q, one * k.detach(), v, mask)


WRONG = {
    "constants": ("sdpa", with_constants, "k"),
    "all": ("sdpa", lambda *x, mask=None: attend(*x, mask).detach(), "q, k, v"),
    "one": ("sdpa", lambda q, *x, mask=None: attend(q.detach(), *x, mask), "q"),
    "weight": ("mha", weight_detached, "w_k"),
    "part": ("mha_cached", detached_cache, "x, w_k, w_v"),
}


@pytest.mark.parametrize("way", WRONG)
def test_a_wrong_gradient_is_said_to_be_0_or_to_differ(way):
    name, solution, inputs = WRONG[way]
    (verdict,) = check(name, solution).failures
    start = f"the gradient is 0 for {inputs}: the graph is cut there"
    if way == "part":
        start = f"the gradient is wrong for {inputs}; for x, "
    assert verdict.fault.en.startswith(start), verdict.fault
    assert inputs in verdict.fault.zh
