"""RoPE against multiplication by exp(i angle), in Python's own numbers."""

import cmath

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.autograd import gradcheck

from attnref import Rope, Yarn, apply_rope, rope_table, rotate, token_positions
from attnref.core import rope
from tests.kit.attention import Made
from tests.kit.compare import relative_error
from tests.kit.refusals import refusals

B, H, K, T, D = 2, 6, 3, 7, 10
LAYOUTS = ["half", "interleaved"]
PLACES = {
    "from 0": torch.arange(T),
    "far out": torch.arange(T) + 4093,
    "in no order": torch.tensor([5, 0, 3, 3, 97, 1, 2]),
    "of each row": torch.randint(
        0, 1000, (B, T), generator=torch.Generator().manual_seed(1)
    ),
    "between": torch.arange(T) / 3,
    "before 0": torch.arange(T) - 3,
}
places = pytest.mark.parametrize("positions", PLACES.values(), ids=PLACES)
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def turns(positions, dim, theta=10000.0):
    """`exp(i * position * theta ** (-2 i / dim))`, complex, `(..., dim / 2)`"""
    steps = [theta ** (-2 * i / dim) for i in range(dim // 2)]
    numbers = [
        cmath.exp(1j * p * step)
        for p in positions.flatten().tolist()
        for step in steps
    ]
    table = torch.tensor(numbers, dtype=torch.complex128)
    return table.view(*positions.shape, dim // 2)


def pairs(x, layout):
    """Pair `i` of `x` as one complex number."""
    i = torch.arange(x.shape[-1] // 2)
    if layout == "half":
        return torch.complex(x[..., i], x[..., i + len(i)])
    return torch.complex(x[..., 2 * i], x[..., 2 * i + 1])


def vectors(*shape):
    return torch.randn(*(shape or (B, H, T, D)), dtype=torch.float64)


@given(
    positions=st.lists(st.integers(-1000, 1000), min_size=1, max_size=5),
    half=st.integers(1, 70),
    theta=st.floats(1.0, 1e7),
)
def test_tables_are_right_for_every_width_and_theta(positions, half, theta):
    at = torch.tensor(positions)
    table = torch.complex(*rope_table(at, 2 * half, theta=theta))
    assert (table - turns(at, 2 * half, theta)).abs().max() <= 1e-12


def test_far_positions_keep_the_digits_that_float32_loses():
    far = torch.arange(131071, 131071 - 64, -1)
    want = turns(far, 128)
    cos, sin = rope_table(far, 128)
    assert (torch.complex(cos, sin) - want).abs().max() <= 1e-10
    # By hand in float32: neighbours are 1 / 128 apart up there.
    steps = 1 / 10000 ** (torch.arange(0, 128, 2) / 128)
    narrow = (far.float()[:, None] * steps).cos()
    assert narrow.dtype == torch.float32
    assert (narrow - want.real).abs().max() > 1e-3


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int64, torch.float16, torch.float32], ids=str
)
def test_tables_are_float64_whatever_counts_the_positions(dtype):
    at = torch.arange(T)
    for ours, want in zip(
        rope_table(at.to(dtype), D), rope_table(at, D), strict=True
    ):
        assert ours.dtype == torch.float64
        assert torch.equal(ours, want)


def test_tables_are_made_where_the_positions_are():
    cos, sin = rope_table(torch.arange(T, device="meta"), D)
    assert cos.device.type == sin.device.type == "meta"
    x = torch.empty(B, H, T, D, device="meta")
    assert apply_rope(x, cos, sin).shape == (B, H, T, D)


@layouts
@places
def test_turning_is_complex_multiplication(layout, positions):
    x = vectors()
    got = apply_rope(x, *rope_table(positions, D), layout=layout)
    turn = turns(positions, D).unsqueeze(-3)  # for every head
    want = pairs(x, layout) * turn
    assert (pairs(got, layout) - want).abs().max() <= 1e-12


def test_the_layout_is_half_by_default():
    x, table = vectors(), rope_table(torch.arange(T), D)
    half, interleaved = (apply_rope(x, *table, layout=name) for name in LAYOUTS)
    assert torch.equal(apply_rope(x, *table), half)
    assert (half - interleaved).abs().max() > 1


@layouts
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_rounded_once(layout, dtype):
    x = vectors(B, H, 127, D).to(dtype)
    at = torch.arange(127) + 1009
    ours = apply_rope(x, *rope_table(at, D), layout=layout)
    assert ours.dtype == dtype
    ours = pairs(ours.double(), layout)
    exact = pairs(x.double(), layout) * turns(at, D)
    for part in ("real", "imag"):
        got, want = getattr(ours, part), getattr(exact, part)
        one_rounding = torch.finfo(dtype).eps / 2 * want.abs()
        assert ((got - want).abs() <= one_rounding + 1e-6).all()


@layouts
def test_float32_is_as_exact_as_float32_can_be(layout):
    x, at = vectors().float(), torch.arange(T) + 131064
    ours = apply_rope(x, *rope_table(at, D), layout=layout)
    exact = pairs(x.double(), layout) * turns(at, D)
    assert ours.dtype == torch.float32
    assert (pairs(ours.double(), layout) - exact).abs().max() <= 1e-6


@layouts
@pytest.mark.parametrize("rows", [(), (B,)])
def test_gradients(layout, rows):
    table = rope_table(torch.randint(0, 50, (*rows, 3)), 4)
    x = vectors(B, 2, 3, 4).requires_grad_()
    assert gradcheck(lambda x: apply_rope(x, *table, layout=layout), x)


def q_and_k():
    return vectors(B, H, T, D), vectors(B, K, T, D)


@pytest.mark.parametrize("past", [0, 1, 5, 4093])
def test_new_tokens_follow_the_past(past):
    q, k = q_and_k()
    options = {"past": past} if past else {}
    turned = rotate(q, k, rope=Rope(100.0), **options)
    at = torch.tensor([past + i for i in range(T)])
    for got, x in zip(turned, (q, k), strict=True):
        want = pairs(x, "half") * turns(at, D, 100.0)
        assert (pairs(got, "half") - want).abs().max() <= 1e-12


@pytest.mark.parametrize("name", ["in no order", "of each row"])
def test_positions_that_are_given_take_the_place_of_the_past(name):
    (q, k), at = q_and_k(), PLACES[name]
    turned = rotate(q, k, rope=Rope(100.0), past=13, positions=at)
    for got, x in zip(turned, (q, k), strict=True):
        want = pairs(x, "half") * turns(at, D, 100.0).unsqueeze(-3)
        assert (pairs(got, "half") - want).abs().max() <= 1e-12


@pytest.mark.parametrize(
    ("path", "stored"),
    [
        ("past", 1),
        ("positions", 0),
        ("traced", 0),
        ("parameter", 0),
        ("compiled", 0),
    ],
)
def test_theta_yarn_and_layout_reach_every_table(path, stored, monkeypatch):
    """And what a compiler or a tracer sees is not stored."""
    (q, k), at, yarn = q_and_k(), torch.arange(3, 3 + T), Yarn(4.0, 64)
    where = {"past": 3}
    if path == "positions":
        where = {"positions": at}
    elif path == "traced":  # its sizes are tensors
        where = {"past": torch.tensor(3)}
    elif path == "parameter":
        q = torch.nn.Parameter(q)
    elif path == "compiled":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    rope._stored.cache_clear()
    how = {"layout": "interleaved"}
    table = rope_table(at, D, theta=50.0, scaling=yarn)
    for got, x in zip(
        rotate(q, k, rope=Rope(50.0, scaling=yarn, **how), **where),
        (q, k),
        strict=True,
    ):
        assert relative_error(got, apply_rope(x, *table, **how)) <= 1e-12
    assert rope._stored.cache_info().currsize == stored
    if path in ("past", "compiled"):  # on the device of the queries
        q, k = q.to("meta"), k.to("meta")
        assert rotate(q, k, rope=Rope(50.0), past=3)[1].device.type == "meta"


def test_stored_tables_are_wide_for_half_precision():
    q = vectors().bfloat16()
    got, _ = rotate(q, q, rope=Rope(50.0), past=200)
    table = rope_table(torch.arange(200, 200 + T), D, theta=50.0)
    assert torch.equal(got, apply_rope(q, *table))


def test_in_float32_nothing_is_computed_in_float64():
    x, table = vectors().float(), rope_table(torch.arange(T), D)
    for given in table, tuple(t.float() for t in table):
        with Made(x, *given) as made:
            apply_rope(x, *given)
        assert made.largest == x.nbytes
    rotate(x, x, rope=Rope(10.0))
    tables = rope._stored(D, 10.0, None, x.device, x.dtype).first(256)
    assert [t.dtype for t in tables] == [torch.float32] * 2


def test_without_theta_nothing_turns():
    q, k = q_and_k()
    same = rotate(q, k, rope=None, past=5)
    assert same[0] is q
    assert same[1] is k


@pytest.mark.parametrize(
    ("valid", "positions"),
    [
        ([1, 1, 1, 1], [0, 1, 2, 3]),
        ([1, 1, 0, 0], [0, 1, 1, 1]),
        ([0, 0, 1, 1], [0, 0, 0, 1]),
        ([1, 0, 0, 1, 1], [0, 0, 0, 1, 2]),
        ([0, 1, 0, 1, 0], [0, 0, 0, 1, 1]),
        ([0, 0, 0], [0, 0, 0]),
        ([], []),
    ],
)
def test_tokens_are_counted_and_pads_are_not(valid, positions):
    row = torch.tensor([valid]).bool()
    assert token_positions(row).tolist() == [positions]
    twice = torch.cat((row, torch.ones_like(row)))
    assert token_positions(twice).tolist() == [
        positions,
        list(range(len(valid))),
    ]


X, TABLE = torch.ones(B, H, T, D), rope_table(torch.arange(T), D)
ROWS = rope_table(torch.zeros(3, T), D)


@refusals(
    """
    >>> rope_table(torch.arange(3), 5)
    ValueError: dim=5 must be even
    >>> rope_table(torch.arange(3), 0)
    ValueError: dim=0 must be even
    >>> rope_table(torch.arange(3), -2)
    ValueError: dim=-2 must be even
    >>> rope_table(torch.arange(3), 4, theta=0.0)
    ValueError: theta=0.0 must be positive
    >>> rope_table(torch.arange(3), 4, theta=torch.nan)
    ValueError: theta=nan must be positive
    >>> apply_rope(X, *TABLE, layout="neox")
    ValueError: layout='neox' is neither 'half' nor 'interleaved'
    >>> apply_rope(X[0], *TABLE)
    ValueError: x has shape (6, 7, 10); it needs 4 axes (B, H, T, D)
    >>> apply_rope(X[..., :9], *TABLE)
    ValueError: x has shape (2, 6, 7, 9); it needs 4 axes (B, H, T, D) and an
        even D
    >>> apply_rope(X[:, :, :1], *TABLE)
    ValueError: tables of shape (7, 5) and (7, 5) do not fit x of shape (2, 6,
        1, 10)
    >>> apply_rope(X, *(t[:1] for t in TABLE))
    ValueError: tables of shape (1, 5) and (1, 5) do not fit
    >>> apply_rope(X, *(t[:, :4] for t in TABLE))
    ValueError: (7, 4) and (7, 4) do not fit x of shape (2, 6, 7, 10): 7
        positions with 5 angles each are (7, 5) or (2, 7, 5)
    >>> apply_rope(X, *ROWS)
    ValueError: tables of shape (3, 7, 5) and (3, 7, 5) do not fit
    >>> apply_rope(X, TABLE[0], TABLE[1][:1])
    ValueError: tables of shape (7, 5) and (1, 5) do not fit
    >>> rotate(X, X, rope=Rope(10.0), positions=torch.arange(6))
    ValueError: positions has shape (6,); 2 rows of 7 tokens need (7,) or (2,
        7)
    >>> rotate(X, X, rope=Rope(10.0), positions=torch.zeros(3, T))
    ValueError: positions has shape (3, 7); 2 rows of 7 tokens
    >>> rotate(X, X, rope=Rope(9.0), positions=torch.ones(T).to("meta"))
    ValueError: positions are on meta, q on cpu
    >>> rotate(X, X, rope=None, positions=torch.arange(T))
    ValueError: positions are given, but rope is None
    >>> rope_table(X[0, 0, 0].bool(), D)
    TypeError: positions are torch.bool; pass real numbers
    >>> rope_table(X[0, 0, 0].cfloat(), D)
    TypeError: positions are torch.complex64; pass real numbers
    >>> token_positions(X[0, 0].long())
    TypeError: valid is torch.int64; pass bool
    >>> token_positions(X[0, 0])
    TypeError: valid is torch.float32; pass bool
    >>> apply_rope(X.long(), *TABLE)
    TypeError: ...torch.int64
    """
)
def test_what_does_not_fit_is_refused_with_numbers(call, error, message):
    with pytest.raises(error, match=message):
        eval(call)


def test_one_row_of_positions_is_for_all_rows():
    """As transformers makes `position_ids`."""
    x, places = torch.randn(3, 6, T, 10), torch.randint(50, (1, T))
    for got, want in zip(
        rotate(x, x, rope=Rope(10.0), positions=places),
        rotate(x, x, rope=Rope(10.0), positions=places.expand(3, T)),
        strict=True,
    ):
        assert torch.equal(got, want)


def test_layers_and_steps_share_the_tables_of_the_first_positions(monkeypatch):
    made = []

    def counted(positions, *args, **named):
        made.append(len(positions))
        return rope_table(positions, *args, **named)

    monkeypatch.setattr(rope, "rope_table", counted)
    rope._stored.cache_clear()
    for past in (249, 0, 3, 250, 505, 506, 1):
        q, k = vectors(), vectors()
        at = torch.arange(past, past + T)
        table = rope_table(at, D, theta=50.0)
        for _ in range(3):
            got = rotate(q, k, rope=Rope(50.0), past=past)
            for x, turned in zip((q, k), got, strict=True):
                want = apply_rope(x, *table)
                assert relative_error(turned, want) <= 1e-14
    assert made == [256, 512, 1024]
    for _ in range(3):  # a model of many kinds of layers, step by step
        for theta in range(50, 80):
            rotate(q, k, rope=Rope(float(theta)))
    assert len(made) == 3 + 29


def test_tables_that_were_made_in_one_mode_serve_all_others():
    q, k = vectors(), vectors()
    want = rotate(q, k, rope=Rope(50.0), positions=torch.arange(T))[0]

    def turned(q):
        return rotate(q, q, rope=Rope(50.0))[0].square().sum()

    def faked():
        with FakeTensorMode() as mode:
            turned(mode.from_tensor(q))

    for first in (
        lambda: torch.inference_mode()(turned)(q),
        lambda: torch.func.grad(turned)(q),
        lambda: torch.func.vmap(turned)(q[None]),
        faked,
    ):
        rope._stored.cache_clear()
        first()
        x = q.clone().requires_grad_()
        got = rotate(x, k, rope=Rope(50.0))[0]
        assert relative_error(got, want) <= 1e-14
        got.sum().backward()
        assert x.grad.any()
