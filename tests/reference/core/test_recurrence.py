"""The three forms of the recurrence, beside each other and transformers."""

from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F

from attnref.core.recurrence import chunked, drift, quadratic, scan
from tests.kit.compare import relative_error
from tests.kit.layers import DV, B, D, H, K, T

LONG = 131
FORMS = {
    "in chunks of 64": chunked,
    "in chunks of 7": partial(chunked, chunk=7),
    "at once": quadratic,
}
# How a token decays what was before it, and whether the delta rule corrects.
DECAYS = ("none", "of heads", "of channels")
KINDS = [*product(DECAYS, (False, True), (H, K))]


def inputs(decays, delta, heads, length=LONG, dtype=torch.float64):
    """What a form reads; keys are of length 1, and `heads` of them shared."""
    normal = partial(torch.randn, dtype=dtype)
    q, k = (F.normalize(normal(B, heads, length, D), dim=-1) for _ in range(2))
    decay = -2 * torch.rand(B, H, length, D, dtype=dtype)
    decay = {
        "none": decay[..., 0] * 0,
        "of heads": decay[..., 0],
        "of channels": decay,
    }[decays]
    given = q, k, normal(B, H, length, DV), decay, normal(B, H, D, DV)
    beta = torch.rand(B, H, length, dtype=dtype) if delta else None
    return given, {"beta": beta}


def shapes():
    """For the shape comments."""
    given, more = inputs("of heads", True, H, T, torch.float32)
    for form in (scan, quadratic):
        form(*given, **more)


def packed():
    """Numbers of documents of a row: one goes on, others are empty."""
    document = torch.zeros(B, LONG, dtype=torch.int64)
    document[0, 3:] += 1
    document[0, 70:] += 3
    document[1] = torch.arange(LONG) // 2 + 1
    document[2, 64:] += 1
    return document


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_forms_are_equal_and_their_gradients_too(form, kind):
    given, more = inputs(*kind)
    for document in (None, packed()):
        every = []
        for each in (scan, form):
            leaves = [x.clone().requires_grad_() for x in given]
            outs = each(*leaves, **more, document=document)
            sum(x.square().sum() for x in outs).backward()
            every.append([*outs, *(x.grad for x in leaves)])
        for got, want in zip(*reversed(every), strict=True):
            assert relative_error(got, want) <= 1e-12


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nothing_passes_from_a_document_to_the_next(kind):
    (q, k, v, decay, state), more = inputs(*kind)
    document = packed()
    for form in (scan, quadratic, chunked):
        out, left = form(q, k, v, decay, state, **more, document=document)
        for row, number in {*product(range(B), range(67))}:
            own = document[row] == number
            if not own.any():
                continue
            some = [x[row : row + 1, :, own] for x in (q, k, v, decay)]
            before = state[row : row + 1] * (number == 0)
            beta = more["beta"]
            if beta is not None:
                beta = beta[row : row + 1, :, own]
            want, end = scan(*some, before, beta=beta)
            assert relative_error(out[row : row + 1, :, own], want) <= 1e-12
            if own[-1]:
                assert relative_error(left[row : row + 1], end) <= 1e-12


@pytest.mark.parametrize("length", [1, 63, 64, 65, 129])
def test_they_are_the_functions_of_transformers(length):
    import transformers.models.kimi_linear.modeling_kimi_linear as kimi
    import transformers.models.mamba2.modeling_mamba2 as mamba
    import transformers.models.qwen3_next.modeling_qwen3_next as qwen

    for name, heads, decays in (
        ("qwen", K, "of heads"),
        ("kimi", H, "of channels"),
        ("mamba", K, "of heads"),
    ):
        given, more = inputs(decays, name != "mamba", heads, length)
        given = [x.float() for x in given]
        *tokens, state = given
        q, k, v, g = (x.transpose(1, 2) for x in tokens)
        if name == "mamba":
            step, rate = -g, -torch.ones(H)
            want, end = mamba.mamba2_chunk_scan(
                v / step[..., None],
                step,
                rate,
                k,
                q,
                16,
                initial_states=state.mT,
                return_final_states=True,
            )
            end = end.mT
        else:
            more["beta"] = more["beta"].float()
            rule = qwen.torch_chunk_gated_delta_rule
            if name == "kimi":
                rule = kimi.chunk_kimi_delta_attention
            want, end = rule(
                q * D**0.5,  # they scale it
                k,
                v,
                g=g,
                beta=more["beta"].mT,
                initial_state=state,
                output_final_state=True,
            )
        for form in (scan, quadratic, chunked):
            out, left = form(*given, **more)
            assert relative_error(out, want.transpose(1, 2)) <= 5e-6, name
            assert relative_error(left, end) <= 5e-6, name


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_state_that_has_gone_is_0_and_not_nan(kind):
    """In float32, e^-256 is 0, and e^256 is infinite."""
    given, more = inputs(*kind, length=128, dtype=torch.float32)
    given = [x.requires_grad_() for x in (*given[:3], given[3] * 0 - 2)] + [
        given[4].requires_grad_()
    ]
    want, end = scan(*(x.double() for x in given), beta=more["beta"])
    for form in (scan, quadratic, partial(chunked, chunk=128)):
        out, left = form(*given, **more)
        assert relative_error(out, want) <= 1e-5
        assert relative_error(left, end) <= 1e-5
        out.square().sum().backward()
        assert all(x.grad.isfinite().all() for x in given if x.is_leaf)


@pytest.mark.parametrize("strongest", [1e3, 1e4, torch.inf])
@pytest.mark.parametrize("delta", [False, True], ids=["adds", "delta rule"])
@pytest.mark.parametrize("decays", DECAYS[1:])
def test_strong_decays_cost_no_digits(decays, delta, strongest):
    """Sums of a whole chunk hold few digits of the small decays in it."""
    torch.manual_seed(0)
    (q, k, v, weak, state), more = inputs(decays, delta, K)
    strong = torch.rand_like(weak) < 0.3
    decay = (weak / 10).where(~strong, strongest * weak)
    given = [x.float() for x in (q, k, v, decay, state)]
    more = {name: x if x is None else x.float() for name, x in more.items()}
    exact = {name: x if x is None else x.double() for name, x in more.items()}
    want, end = scan(*(x.double() for x in given), **exact)
    for form in (scan, *FORMS.values()):
        out, left = form(*given, **more)
        assert relative_error(out, want) <= 1e-6
        assert relative_error(left, end) <= 1e-6


def test_no_tokens_leave_the_state_as_it_is():
    for kind in KINDS:
        (*given, state), more = inputs(*kind, length=0)
        for form in (scan, *FORMS.values()):
            out, left = form(*given, state, **more)
            assert out.shape == (B, H, 0, DV) and torch.equal(left, state)


def test_a_rounded_state_drifts_and_one_in_float32_does_not():
    torch.manual_seed(0)
    (q, k, v, decay, _), more = inputs("of heads", True, H, 500, torch.float32)
    decay = decay / 100
    errors = drift(q, k, v, decay, **more)
    assert errors.shape == (500,) and errors[0] == 0  # nothing was stored yet
    assert 1e-3 < errors[-100:].mean() < 0.05
    assert errors[1:10].mean() < errors[-100:].mean()
    half = drift(q, k, v, decay, **more, dtype=torch.float16)
    assert half[-100:].mean() < errors[-100:].mean() / 4  # has 3 more bits
    same = drift(q, k, v, decay, **more, dtype=torch.float32)
    assert torch.equal(same, torch.zeros(500))
