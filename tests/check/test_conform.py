"""`attnref conform`: right engines are not accused, wrong ones are named."""

import json
import shutil
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attnref.__main__ import main
from attnref.judge import conform
from attnref.judge.catalogue import catalogue
from attnref.judge.conform import Engine
from tests.check.plugin import run_pytest
from tests.engines import RECORD

ADAPTERS = Path(__file__).with_name("adapters.py")
CHOICES = {
    "alignment": "top-left",
    "mask-polarity": "true-is-hidden",
    "default-scale": "one",
    "head-order": "interleaved",
    "empty-row": "nan",
}
PAIRS = [*combinations(CHOICES, 2)]


def with_torch(choices):
    """torch's own call, in these conventions."""

    def attend(q, k, v, mask=None, causal=False, scale=None, dropout=0.0):
        G, T, S = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
        if mask is not None and mask.dtype == torch.bool:
            mask = ~mask if "mask-polarity" in choices else mask
            hidden = ~mask.any(-1, keepdim=True)
        else:
            hidden = torch.zeros((), dtype=torch.bool)
        if scale is None:
            scale = 1.0 if "default-scale" in choices else None
        if "head-order" in choices:
            k, v = (x.repeat(1, G, 1, 1) for x in (k, v))
        if causal and "alignment" not in choices:
            past = torch.ones(T, S, dtype=torch.bool).tril(S - T)
            mask, causal = past if mask is None else mask & past, False
        out = F.scaled_dot_product_attention(
            q, k, v, mask, dropout, causal, scale=scale, enable_gqa=True
        )
        if "empty-row" in choices:
            out = out.masked_fill(hidden, torch.nan)
        return out

    return attend


def with_numpy(choices):
    """The formula, with all options, in these conventions."""

    def attend(
        q, k, v, mask=None, causal=False, scale=None, softcap=None, window=None,
        sinks=None, log_sum_exp=False,
    ):  # fmt: skip
        G, T, S = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
        order = "head-order" in choices
        k, v = (
            np.tile(x, (1, G, 1, 1)) if order else x.repeat(G, 1)
            for x in (k, v)
        )
        if scale is None:
            scale = 1 if "default-scale" in choices else q.shape[-1] ** -0.5
        scores = q @ k.swapaxes(2, 3) * scale
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        first = 0 if "alignment" in choices else S - T
        keep = np.ones((T, S), bool)
        if causal:
            keep = np.tril(keep, first)
        if window:
            keep = np.triu(keep, first - window + 1)
        if mask is not None and mask.dtype == bool:
            keep = keep & (~mask if "mask-polarity" in choices else mask)
        elif mask is not None:
            scores = scores + mask
        scores = np.where(keep, scores, -np.inf)
        if sinks is not None:
            sink = np.broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1))
            scores = np.concatenate((scores, sink), -1)
        with np.errstate(all="ignore"):
            top = scores.max(-1, keepdims=True, initial=-np.inf)
            e = np.exp(scores - top)
            total = e.sum(-1, keepdims=True)
            weights, lse = e / total, (top + np.log(total))[..., 0]
        if "empty-row" not in choices:
            weights, lse = (
                np.nan_to_num(weights),
                np.nan_to_num(lse, nan=-np.inf),
            )
        out = weights[..., :S] @ v
        return (out, lse) if log_sum_exp else out

    return attend


def answers(name, attend, **functions):
    module = SimpleNamespace(attend=attend, **functions)
    return {x.behaviour: x for x in conform.conform(Engine(name, module))}


@pytest.mark.parametrize("attend", [with_torch, with_numpy])
@pytest.mark.parametrize("choices", PAIRS, ids=" ".join)
def test_a_right_engine_in_other_conventions_has_no_mistake(choices, attend):
    result = answers("right", attend(choices))
    assert not [x for x in result.values() if x.mistake]
    assert not [x for x in result.values() if x.answer == conform.OTHER]
    for behaviour, answer in CHOICES.items():
        assert (result[behaviour].answer == answer) == (behaviour in choices)
    assert result["causal"].answer == "itself-and-before"


# Why a mistake cannot be told from its output.
UNNAMED = {
    "causal-top-left": "the convention of torch, JAX and ONNX",
    "scale-missing": "a convention: the caller scales",
    "window-one-more": "a convention: W or W + 1",
    "empty-row-nan": "a convention: an empty row is NaN",
    "mask-minus-1e9": "a convention: an empty row is the mean",
    "mask-minus-1e9-added": "a convention: an empty row is the mean",
    "softmax-epsilon": "differs by less than rounding, where the sum is >= 1",
    "softmax-stays-float32": "a convention: the dtype of the output",
    "scale-in-float32": "differs by less than rounding in float32",
    "dropout-in-evaluation": "random",
    "softcap-before-scale": "a convention where numbers are a mask, not a bias",
}
# Mistakes whose name another one takes, which explains more of the answers.
SAME = {"masks-joined-by-or": "mask-argument-ignored"}


def planted(plain):
    """The plain forms as an engine, with the lines of a mistake in them."""

    def attend(
        q, k, v, mask=None, causal=False, softcap=None, sinks=None, window=None
    ):  # fmt: skip
        G, T, S = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
        k, v = (x.repeat_interleave(G, 1) for x in (k, v))
        bias = None
        if mask is not None and mask.dtype != torch.bool:
            bias, mask = mask, None
        if causal:
            past = plain.masks.causal_mask(T, S)
            if window:
                past = plain.masks.window_mask(T, S, window)
            mask = past if mask is None else mask & past
        if sinks is not None:
            return plain.sinks.attention_with_sinks(q, k, v, sinks, mask)
        if softcap or bias is not None:
            form = plain.alibi.biased_attention
            return form(q, k, v, bias, softcap or None, mask)
        return plain.attention.attention(q, k, v, mask)

    def gradients(q, k, v, cotangent, mask=None):
        leaves = [x.requires_grad_() for x in (q, k, v)]
        grads = torch.autograd.grad(
            attend(*leaves, mask), leaves, cotangent, materialize_grads=True
        )
        return grads

    return {"attend": attend, "gradients": gradients}


def named(plain):
    module = SimpleNamespace(**planted(plain), torch=torch)
    result = conform.conform(Engine("planted", module))
    return {x.mistake for x in result if x.mistake}


FORMS = conform.wrong_forms()
IDS = [*dict.fromkeys(id for id, _ in FORMS)]
QUICK = ("softmax-overflow", "input-modified", "softmax-detached")


@pytest.mark.parametrize(
    "id",
    [
        x if x in QUICK else pytest.param(x, marks=pytest.mark.audit)
        for x in IDS
    ],
)
def test_each_mistake_in_an_engine_is_named(id):
    """Each variant has a name, and at least one that of its mistake."""
    names = [named(plain) for mistake, plain in FORMS if mistake == id]
    if id in UNNAMED:
        assert not all(names)
    else:
        assert all(names)
        assert any(SAME.get(id, id) in x for x in names), names


def test_mistakes_that_are_not_named_are_in_the_catalogue():
    assert set(UNNAMED) <= set(catalogue()) & set(IDS)


EXPECTED = {
    "top_left_and_nan": set(),
    "true_is_hidden": set(),
    "unscaled_and_interleaved": set(),
    "mean_and_wider_window": set(),
    "powers_of_two": set(),
    "minus_1e9_in_float64": set(),
    "numbers_alone": set(),
    "softmax_over_queries": {"softmax-over-queries"},
    "scale_of_values": {"scale-model-width"},
    "sees_next": {"causal-sees-next"},
    "never_itself": {"causal-without-itself"},
    "no_maximum": {"softmax-overflow"},
    "softcap_after_mask": {"softcap-after-mask"},
    "hidden_by_minus_100": {"flash-mask-of-a-finite-number"},
    "scales_in_place": {"input-modified"},
    "values_tiled": {"groups-tiled"},
    "read_by_head": {"merge-without-transpose"},
    "pairs_of_keys": {"flash-no-rescaling"},
}


@pytest.mark.parametrize("function", EXPECTED)
def test_adapters_of_strangers_are_judged_by_their_outputs(function):
    engine = conform.load(f"{ADAPTERS}:{function}")
    result = conform.conform(engine)
    assert {x.mistake for x in result if x.mistake} == EXPECTED[function]
    if not EXPECTED[function]:
        assert conform.OTHER not in {x.answer for x in result}


def test_an_adapter_that_fails_is_one_line(tmp_path, capsys):
    path = tmp_path / "broken.py"
    for text, line in {
        "import nothing_like_this": "No module named 'nothing_like_this'",
        "1 +": "SyntaxError",
        "x = 1": "broken has no function attend",
        "def attend(q, k, v): return q.T @ 0": "call of attend fails: ValueErr",
    }.items():
        path.write_text(text, encoding="utf-8")
        with pytest.raises(SystemExit):
            main(["conform", str(path)])
        (message,) = capsys.readouterr().err.strip().splitlines()[-1:]
        assert line in message


def test_the_stub_runs_as_it_stands(tmp_path):
    path = tmp_path / "my_engine.py"
    main(["conform", "--stub", str(path)])
    rows = json.loads(main(["conform", "--json", str(path)]))
    assert {x["engine"] for x in rows} == {"my_engine"}
    result = {x["behaviour"]: x["is"] for x in rows}
    assert [*result] == [*conform.behaviours()]
    assert result["alignment"] == "top-left"
    assert not [x for x in rows if x["mistake"]]


def test_engines_of_the_package_call_the_library_of_their_name():
    result = {
        x.behaviour: x.answer for x in conform.conform(conform.builtin("torch"))
    }
    assert result["empty-row"] == "zero"
    assert "torch" in conform.installed()
    assert not {"_stub", "_onnx"} & set(conform.known())


PLUGIN = """
from adapters import {function} as attend
EXPECTED = {expected}
"""


@pytest.mark.parametrize(
    "function, expected, outcome",
    [
        ("top_left_and_nan", {"alignment": "top-left"}, None),
        ("top_left_and_nan", {"alignment": "bottom-right"}, "alignment"),
        ("sees_next", {}, "causal"),
        ("top_left_and_nan", {"no-such-behaviour": "x"}, "no-such-behaviour"),
    ],
)
def test_pytest_fails_for_mistakes_and_for_what_is_not_expected(
    tmp_path, function, expected, outcome
):
    text = PLUGIN.format(function=function, expected=expected)
    (tmp_path / "my_engine.py").write_text(text, encoding="utf-8")
    shutil.copy(ADAPTERS, tmp_path)
    code, said = run_pytest(tmp_path, "my_engine.py")
    assert bool(code) == bool(outcome), said
    assert (outcome or "passed") in said


@pytest.mark.filterwarnings("ignore")  # flex_attention is not compiled here
def test_the_record_is_what_the_engines_of_torch_do_here():
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    assert record["versions"].keys() >= {"torch", "jax", "onnxruntime"}
    for engine, recorded in record["answers"].items():
        assert [*recorded] == [*conform.behaviours()], engine
    for engine in ("torch", "torch_math", "torch_flex"):
        for x in conform.conform(conform.builtin(engine)):
            answer, mistake, _ = record["answers"][engine][x.behaviour]
            assert (x.answer, x.mistake or "") == (answer, mistake), x


def test_what_the_page_says_of_all_engines_is_in_the_record():
    answers = json.loads(RECORD.read_text(encoding="utf-8"))["answers"]
    either = {conform.REFUSED, conform.ABSENT}
    for behaviour, answer in {
        "head-order": "contiguous",
        "mask-of-two-axes": "for-all",
        "mask-per-head": "each-its-own",
        "scale-passed": "multiplied",
    }.items():
        assert {x[behaviour][0] for x in answers.values()} - either == {answer}
