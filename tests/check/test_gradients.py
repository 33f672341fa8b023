"""The gradients of known answers: by finite differences, and of mistakes."""

import inspect
from functools import partial

import numpy as np
import pytest
import torch

from attnref.commands import match
from attnref.judge import vectors
from attnref.judge.catalogue import Plain, every_variant
from attnref.judge.differences import largest, largest_difference
from attnref.judge.gradients import backward, cotangent, gradients
from tests.check import numpy_port
from tests.check.numpy_port import attention_gradients
from tests.kit import sampled

CASES = [
    name
    for name in vectors.cases()
    if not name.startswith("mask-")  # a mask has no gradient
]
QUICK = ("softmax-hidden", "flash-masked", "gqa-cached", "merge", "dsa-cached")
# A case in which each mistake of the backward pass is seen.
SEEN = {
    "backward-without-row-sum": "mha",
    "backward-scale": "sdpa",
    "backward-keys-detached": "flash",
    "backward-earlier-calls-detached": "gated-delta-cached",
    "backward-state-not-carried": "gated-delta",
    "backward-group-not-summed": "gqa",
    "backward-groups-mixed": "gqa",
    "backward-rope-turns-on": "rope",
    "backward-sinks": "sinks",
    "backward-lse-before-mask": "sdpa-masked",
    "backward-without-mask": "sdpa-masked",
    "backward-without-lse": "flash",
    "backward-norm-by-parts": "todays-heads",
    "backward-weights-of-parts": "merge",
    "backward-rescaling-detached": "flash-masked",
    "backward-choice-has-gradient": "dsa",
}


@pytest.mark.parametrize("name", sampled(CASES, QUICK))
def test_gradients_are_those_of_finite_differences(name):
    """Along one direction for each input, from both sides."""
    inputs = {}
    right, _ = vectors.run_case(name, Plain(), inputs)
    found = gradients(name, partial(vectors.run_with_graph, name), inputs)
    above = cotangent(name, right)
    assert torch.equal(found.pop("cotangent"), above)
    floats = {x for x, y in inputs.items() if y.is_floating_point()}
    labels = {x: x.removeprefix("input/") for x in floats}
    labels = {x: y.removeprefix("weight/") for x, y in labels.items()}
    assert {*found} == {f"gradient/{x}" for x in labels.values()}
    total = 0.0
    for path, label in labels.items():
        along, step = torch.randn_like(inputs[path]), 1e-6
        along = along.where(inputs[path].isfinite(), 0)
        sides = []
        for sign in 1, -1:
            moved = inputs | {path: inputs[path] + sign * step * along}
            out, _ = vectors.run_case(name, Plain(), moved)
            sides.append((out.where(above != 0, 0) * above).sum())
        slope = (sides[0] - sides[1]) / (2 * step)
        want = (found[f"gradient/{label}"] * along).sum()
        size = max(1.0, float(want.abs()))
        assert abs(slope - want) <= 1e-6 * size, label
        total += float(want.abs())
    assert total > 0


def test_a_mask_has_no_gradient():
    tensors, about = vectors.compute("mask-window")
    assert not any("gradient" in x or x == "cotangent" for x in tensors)
    assert about["backward"] == {}


def test_each_mistake_of_backward_has_a_case_and_is_in_the_data():
    assert {*backward()} == {*SEEN}
    for mistake in backward().values():
        assert all(mistake.title) and all(mistake.notice)


@pytest.mark.parametrize("id", SEEN)
def test_a_mistake_of_backward_leaves_the_output_and_is_named(id):
    """In each dtype, from a second run of the wrong code."""
    name = SEEN[id]
    tensors, about = vectors.compute(name)
    modules = {f"plain.{stem}" for stem in about["plain"]}
    variant = next(
        v
        for v in every_variant(backward()[id])
        if {lines.module for lines in v} <= modules
    )
    inputs = {
        x: y.double() if y.is_floating_point() else y
        for x, y in tensors.items()
        if x.startswith(("input/", "weight/"))
    }
    out, _ = vectors.run_case(name, Plain(variant), dict(inputs))
    gap = largest_difference(out, tensors["output"])
    assert gap <= about["tolerance"]["float32"]["output"]
    run = partial(vectors.run_with_graph, name)
    for dtype in torch.float64, torch.float32, torch.bfloat16:
        wrong = gradients(name, run, inputs, Plain(variant), dtype)
        result = match.gradients_of(wrong_names(wrong), tensors, about)
        assert id in result["mistakes"], (dtype, result)
        line = match.line_of(result, about, "zh")
        first = backward()[result["mistakes"][0]]
        assert id in line and first.title.zh in line
        right = wrong_names(gradients(name, run, inputs, dtype=dtype))
        assert match.gradients_of(right, tensors, about)["is"] == "right"


def wrong_names(found):
    return {x: y for x, y in found.items() if x != "cotangent"}


def test_gradients_are_right_or_wrong_by_name_or_unknown():
    tensors, about = vectors.compute("gqa")
    mine = {x: y for x, y in tensors.items() if x.startswith("gradient/")}
    assert match.compare(mine, tensors, about)["is"] == "right"
    both = mine | {"output": tensors["output"]}
    result = match.compare(both, tensors, about)
    assert result["is"] == result["gradients"]["is"] == "right"
    assert match.line_of(result, about, "en").endswith("\ngradients: right")
    some = mine | {"gradient/x": mine["gradient/x"] * 1.1}
    result = match.compare(some, tensors, about)
    assert (result["is"], result["wrong"]) == ("unknown", ["gradient/x"])
    assert match.line_of(result, about, "en") == (
        "gradients of x are wrong; no known mistake has all of them"
    )
    with pytest.raises(ValueError, match="the case has no tensor 'gradient/y'"):
        match.compare({"gradient/y": mine["gradient/x"]}, tensors, about)
    nan = {"gradient/x": mine["gradient/x"] * torch.nan}
    assert match.compare(nan, tensors, about)["is"] == "unknown"


def test_no_two_mistakes_of_a_case_have_the_same_gradients():
    tensors, about = vectors.compute("gqa-cached")
    names = [x for x in tensors if x.startswith("gradient/")]
    ways = [*about["backward"]]
    assert len(ways) > 10
    for n, one in enumerate(ways):
        for other in ways[:n]:
            ours, theirs = (
                [tensors.get(f"mistake/{way}/{x}", tensors[x]) for x in names]
                for way in (one, other)
            )
            apart = (
                largest_difference(a, b) / (largest(a) or 1.0)
                for a, b in zip(ours, theirs, strict=True)
            )
            assert max(apart) > 1e-3, (one, other)


# What a port to NumPy may get wrong: a line of it, and another one.
SLIPS = {
    "no row sum": ("- delta)", "- 0 * delta)", "backward-without-row-sum"),
    "scale twice": ("k * scale,", "k * scale**2,", "unknown"),
    "scale twice in both": (
        "swapaxes(-1, -2) - delta)",
        "swapaxes(-1, -2) - delta) * scale",
        "backward-scale",
    ),
    "no scale": (
        "swapaxes(-1, -2) - delta)",
        "swapaxes(-1, -2) - delta) / scale",
        "backward-scale",
    ),
    "k is a constant": ("@ q * scale", "@ q * 0", "backward-keys-detached"),
    "v is a constant": (
        '"gradient/v": p',
        '"gradient/v": 0 * p',
        "backward-keys-detached",
    ),
    "k and v are constants": (
        "return {",
        "p, q = 0 * p, 0 * q\n    return {",
        "backward-keys-detached",
    ),
    "log-sum-exp of all keys": (
        "    delta = ",
        "    every = q @ k.swapaxes(-1, -2) * scale\n"
        "    out = p @ v\n"
        "    p = np.where(mask, np.exp(every), 0)\n"
        "    p /= np.exp(every).sum(-1, keepdims=True)\n"
        "    delta = (d_out * out).sum(-1, keepdims=True)\n"
        "    unused = ",
        "backward-lse-before-mask",
    ),
}


def by_the_port(tensors, right="", wrong=""):
    text = inspect.getsource(numpy_port.attention_gradients)
    assert right in text
    names = {"np": np}
    exec(text.replace(right, wrong, 1), names)
    arrays = {x: y.numpy() for x, y in tensors.items()}
    found = names["attention_gradients"](arrays)
    return {x: torch.from_numpy(y).float() for x, y in found.items()}


@pytest.mark.parametrize("slip", SLIPS)
def test_slips_of_a_port_to_numpy_have_their_names(slip):
    """From the file alone: the port knows nothing of autograd."""
    right, wrong, id = SLIPS[slip]
    tensors, about = vectors.compute("sdpa-masked")
    result = match.compare(by_the_port(tensors, right, wrong), tensors, about)
    if id == "unknown":
        assert (result["is"], result["wrong"]) == ("unknown", ["gradient/q"])
    else:
        assert result["is"] == "mistake" and result["mistakes"][0] == id
    assert match.compare(by_the_port(tensors), tensors, about)["is"] == "right"


def test_what_the_page_shows():
    # --8<-- [start:gradients]
    import torch

    from attnref.commands.match import compare
    from attnref.judge.vectors import compute

    tensors, about = compute("sdpa-masked")  # or read them from the file
    arrays = {name: x.numpy() for name, x in tensors.items()}
    mine = attention_gradients(arrays)
    mine = {name: torch.from_numpy(x) for name, x in mine.items()}
    assert compare(mine, tensors, about)["is"] == "right"

    mine["gradient/k"] *= 0  # as if k had been detached
    result = compare(mine, tensors, about)
    assert result["mistakes"] == ["backward-keys-detached"]
    # --8<-- [end:gradients]
