import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from attnref import online_softmax, softmax
from tests.kit.compare import relative_error

EPS = {
    torch.float64: 1e-15,
    torch.float32: 1e-6,
    torch.bfloat16: 2**-8,
    torch.float16: 2**-11,
}
INF = math.inf
FORMS = {
    "at once": softmax,
    "in chunks of 1": lambda x, dim=-1: online_softmax(x, dim, chunk=1),
    "in chunks of 3": lambda x, dim=-1: online_softmax(x, dim, chunk=3),
    "in one chunk": lambda x, dim=-1: online_softmax(x, dim, chunk=100),
}


@pytest.fixture(params=FORMS, ids=lambda name: name.replace(" ", "-"))
def form(request):
    return FORMS[request.param]


def test_the_naive_form_overflows_and_the_stable_one_does_not():
    # --8<-- [start:naive]
    def naive(x, dim=-1):
        return x.exp() / x.exp().sum(dim, keepdim=True)

    x = torch.tensor([12.0, 12.0], dtype=torch.float16)
    assert x.exp().isinf().all()  # 65504 is the largest number of float16
    assert naive(x).isnan().all()  # inf / inf
    assert naive(x - x.max()).tolist() == [0.5, 0.5]
    # --8<-- [end:naive]
    assert softmax(x).tolist() == [0.5, 0.5]


def test_subtracting_a_constant_changes_nothing():
    x = torch.randn(7, dtype=torch.float64)
    for shift in (-1000.0, 3.0, 1000.0):
        torch.testing.assert_close(softmax(x + shift), softmax(x))


@pytest.mark.parametrize("dtype", EPS, ids=str)
@pytest.mark.parametrize(
    "row",
    [
        [3.0],
        [-5000.0],
        [2.0, 2.0, 2.0, 2.0],
        [1e4, 1e4, 1e4],
        [60000.0, -60000.0, 59000.0],
        [1.0, -INF, 3.0, -INF],
        [-INF, -INF, -INF, 0.5],
        [-INF, 7.0],
        [12.0, 11.0, 0.0, -3.0, 5.0, 5.0, 2.0],
    ],
    ids=str,
)
def test_equals_torch_in_every_dtype(form, row, dtype):
    x = torch.tensor(row, dtype=dtype)
    assert form(x).dtype == dtype
    # bfloat16 rounds the input; the oracle sees the same rounded numbers.
    oracle = torch.softmax(x.double(), -1)
    assert relative_error(form(x), oracle) <= EPS[dtype]
    assert relative_error(form(x), torch.softmax(x, -1)) <= 2 * EPS[dtype]


def test_half_precision_sums_do_not_overflow():
    x = torch.zeros(70_000, dtype=torch.float16)  # e^0 = 1, 70,000 times
    assert x.exp().sum().isinf()  # 65504 is the largest number
    assert (x.exp() / x.exp().sum() == 0).all()
    assert (softmax(x) == torch.tensor(1 / 70_000).half()).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_rounded_once(form, dtype):
    x = (5 * torch.randn(50, 101)).to(dtype)
    want = torch.softmax(x.double(), -1).to(dtype)
    assert (form(x) == want).double().mean() > 0.99


@given(
    st.integers(1, 4),
    st.integers(1, 13),
    st.integers(1, 5),
    st.integers(1, 6),
    st.sampled_from([1.0, 30.0, 1000.0]),
    st.floats(0, 0.9),
    st.integers(0, 2**32 - 1),
)
def test_equals_torch_over_any_axis(A, B, C, chunk, spread, masked, seed):
    torch.manual_seed(seed)
    x = torch.randn(A, B, C, dtype=torch.float64) * spread
    x[torch.rand_like(x) < masked] = -INF
    for dim in (-3, -1, 1, 2):
        oracle = torch.softmax(x, dim).nan_to_num(0.0)
        for ours in (softmax(x, dim), online_softmax(x, dim, chunk=chunk)):
            assert relative_error(ours, oracle) <= 1e-14


def test_an_empty_row_gives_zeros_where_torch_gives_nan(form):
    # --8<-- [start:empty]
    from attnref import softmax

    row = torch.full((3,), -torch.inf, requires_grad=True)
    assert torch.softmax(row, -1).isnan().all()
    assert softmax(row).tolist() == [0.0, 0.0, 0.0]

    softmax(row).sum().backward()
    assert row.grad.tolist() == [0.0, 0.0, 0.0]
    # --8<-- [end:empty]
    assert form(row).tolist() == [0.0, 0.0, 0.0]
    row.grad = None
    form(row).sum().backward()
    assert row.grad.tolist() == [0.0, 0.0, 0.0]


def test_the_online_form_equals_softmax_for_every_chunk():
    # --8<-- [start:online_equal]
    x = 30 * torch.randn(5, 11, dtype=torch.float64)
    for chunk in (1, 2, 5, 11, 99):
        torch.testing.assert_close(
            online_softmax(x, chunk=chunk), torch.softmax(x, -1)
        )
    # --8<-- [end:online_equal]


def test_gradients_are_those_of_softmax(form):
    x = (3 * torch.randn(3, 5, dtype=torch.float64)).requires_grad_()
    assert gradcheck(form, (x,))
    tied = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(form, (tied,))


def test_the_maximum_is_a_constant_for_autograd(form):
    steps = [form(torch.randn(3, 5, requires_grad=True)).grad_fn]
    for step in steps:
        steps += [each for each, _ in step.next_functions if each]
    names = {step.name() for step in steps}
    assert "ExpBackward0" in names
    assert not names & {"AmaxBackward0", "MaximumBackward0"}


def test_the_online_form_never_sees_a_row_whole(monkeypatch):
    seen = []
    exp = torch.Tensor.exp
    monkeypatch.setattr(
        torch.Tensor, "exp", lambda x: (seen.append(x.shape[-1]), exp(x))[1]
    )
    online_softmax(torch.randn(2, 11), chunk=3)
    assert max(seen) == 3


def test_a_single_number_has_the_weight_one():
    assert softmax(torch.tensor(3.0)) == 1
    with pytest.raises(ValueError, match="no axis to split"):
        online_softmax(torch.tensor(3.0), chunk=1)


def test_an_axis_of_length_zero_stays_empty(form):
    for shape in (2, 0), (0, 2):
        x = torch.zeros(shape)
        assert form(x).shape == shape and form(x) is not x


def test_bad_input_is_refused():
    with pytest.raises(TypeError, match=r"x is torch\.int64"):
        softmax(torch.tensor([1, 2]))
    with pytest.raises(TypeError, match=r"x is torch\.bool"):
        online_softmax(torch.tensor([True]), chunk=1)
    with pytest.raises(ValueError, match="chunk=0 must be at least 1"):
        online_softmax(torch.ones(2), chunk=0)


# --8<-- [start:checker]
def check_softmax(candidate):
    """Raise unless `candidate(x)` is a softmax along the last axis."""
    rows = {
        "a plain row": [1.0, 2.0, 3.0],
        "a single entry": [5.0],
        "equal logits": [7.0, 7.0, 7.0, 7.0],
        "huge logits": [1e4, 1e4 - 1, -1e4],
        "entries of -inf": [0.0, -torch.inf, 1.0],
    }
    batches = {n: torch.tensor([[r], [r[::-1]]]) for n, r in rows.items()}
    batches["rows far apart"] = torch.tensor([[[0.0, 1.0], [900.0, 901.0]]])
    for name, x in batches.items():
        want, got = torch.softmax(x, -1), candidate(x)
        assert got.shape == want.shape, f"{name}: {got.shape}"
        assert torch.allclose(got, want, atol=0), f"{name}: {got}, not {want}"


# --8<-- [end:checker]


def test_the_checker_accepts_ours_and_refuses_wrong_ones():
    # --8<-- [start:check]
    check_softmax(softmax)  # put yours here
    # --8<-- [end:check]
    wrong = {
        "huge logits": lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
        "equal logits": lambda x: (
            torch.softmax(x, -1) if x.shape[-1] != 4 else x / 7
        ),
        "entries of -inf": lambda x: torch.softmax(x.clamp_min(-20), -1),
    }
    for name, candidate in wrong.items():
        with pytest.raises(AssertionError, match=name):
            check_softmax(candidate)
    for axis in (0, 1):
        with pytest.raises(AssertionError, match="a plain row"):
            check_softmax(lambda x, axis=axis: torch.softmax(x, axis))
    with pytest.raises(AssertionError, match="rows far apart"):
        check_softmax(  # one maximum for all rows
            lambda x: (x - x.max()).exp() / (x - x.max()).exp().sum(-1, True)
        )

    def two_lines(x):
        e = (x - x.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True)

    check_softmax(two_lines)
    with pytest.raises(AssertionError, match=r"torch.Size\(\[1, 3\]\)"):
        check_softmax(lambda x: torch.softmax(x, -1)[0])
