"""mLSTM beside xLSTM of transformers, whole and in chunks."""

import copy

import pytest
import torch

from attnref import StateCache, padding_mask
from attnref.layers.mlstm import MLSTM
from attnref.numbers.cost import recurrent_cost
from attnref.numbers.shapes import Recurrent
from attnref.plain import mlstm as plain
from tests.kit.compare import relative_error
from tests.kit.layers import DV, B, D, E, H, T, Variant, sharp, tokens

SIZES = {"d_model": E, "n_heads": H, "key_dim": D, "value_dim": DV}
LONG = 131


def cost(*, d_model, n_heads, key_dim, value_dim, **call):
    """Of q, k, two gates; v, its gate, the output; a norm and two biases."""
    weights = d_model * n_heads * (2 * key_dim + 3 * value_dim + 2)
    heads, widths = (n_heads, n_heads), (key_dim, value_dim + 1)
    vectors = n_heads * (value_dim + 2)
    return recurrent_cost(heads, widths, weights, vectors, 0, **call)


VARIANT = Variant(
    MLSTM,
    SIZES,
    cost,
    Recurrent(
        layers=1,
        state_heads=H,
        key_dim=D,
        value_dim=DV + 1,  # the last column is the sum of all keys
        conv_channels=0,
        conv_kernel=1,
    ),
    options=({}, {"gate_cap": 4.0}),
    page=False,
)


@torch.no_grad()
def shapes():
    """For the shape comments."""
    layer, state = plain.MLSTM(E, H, D, DV), plain.MLSTMState()
    package, cache = MLSTM(**SIZES), StateCache()
    for end in (T, 2 * T):
        x, valid = torch.randn(B, T, E), torch.ones(B, end, dtype=torch.bool)
        layer(x, state, valid)
        package(x, cache=cache, mask=padding_mask(valid))


def xlstm(**options):
    """The layer of transformers; in float64, nothing in it is rounded."""
    from transformers.models.xlstm import modeling_xlstm, xLSTMConfig

    config = xLSTMConfig(
        hidden_size=E,
        num_heads=H,
        qk_dim_factor=(H * D + 0.5) / E,  # they drop the half
        v_dim_factor=(H * DV + 0.5) / E,
        **options,
    )
    return sharp(modeling_xlstm.xLSTMLayer(config))


WHOLE = {"mode": "train", "norm_reduction_force_float32": False, "eps": 0.0}
SHIFTS = {"as drawn": 0.0, "large": 15.0, "small": -12.0}


def same(theirs, shift=0.0, **options):
    """Ours and the plain form, with their weights; gates start at `shift`."""
    theirs.igate_preact.bias.data += shift
    layer, form = MLSTM(**SIZES, **options), plain.MLSTM(E, H, D, DV)
    for each in (layer, form):
        each.to(theirs.q.weight.dtype).load_state_dict(theirs.state_dict())
    return layer, form


@pytest.mark.parametrize("shift", SHIFTS.values(), ids=SHIFTS)
@torch.no_grad()
def test_it_is_that_of_transformers_in_float64(shift):
    """Read at once, which is where theirs computes in float64, and without the
    1e-6 that theirs adds to the divisor in units of its running maximum."""
    theirs, x = xlstm(chunk_size=LONG, **WHOLE), tokens(B, LONG, E)
    for ours in same(theirs, shift):
        assert relative_error(ours(x), theirs(x)[0]) <= 1e-11


CHUNKS = {
    "whole": (LONG,),
    "single tokens": (1,) * 9,
    "ragged": (5, 1, 1, 63, 61),
    "at the borders of chunks": (64, 1, 65, 63, 129),
}


@pytest.mark.parametrize("shift", SHIFTS.values(), ids=SHIFTS)
@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@torch.no_grad()
def test_it_is_that_of_transformers_in_chunks(chunks, shift):
    theirs = xlstm().float()
    layer, form = same(theirs, shift)
    x = tokens(B, sum(chunks), E).float()
    cache, kept, state, outs = StateCache(), plain.MLSTMState(), None, []
    for part in x.split(chunks, dim=1):
        want, state = theirs(part, state)
        outs.append((layer(part, cache=cache), form(part, kept), want))
    got, plainly, want = (
        torch.cat(each, dim=1) for each in zip(*outs, strict=True)
    )
    assert relative_error(got, want) <= 2e-5
    assert relative_error(plainly, want) <= 2e-5


@torch.no_grad()
def test_another_cap_is_that_of_transformers():
    theirs = xlstm(chunk_size=T, gate_soft_cap=4.0, **WHOLE)
    layer, _ = same(theirs, 9.0, gate_cap=4.0)
    x = tokens()
    assert relative_error(layer(x), theirs(x)[0]) <= 1e-11
    with pytest.raises(ValueError, match=r"gate_cap=41 is not above 0 and at"):
        MLSTM(**SIZES, gate_cap=41)


@torch.no_grad()
def test_gates_of_layers_in_half_precision_are_exponents_in_float32():
    """e^15 is no number of float16; in bfloat16, 15 is one of few."""
    theirs, x = xlstm(), tokens(B, LONG, E).half()
    for ours in same(theirs, SHIFTS["large"]):
        rounded = ours.half()
        want = copy.deepcopy(rounded).double()(x.double())
        assert relative_error(rounded(x), want) <= 0.01


def test_the_plain_form_is_that_of_the_package():
    layer, form = sharp(MLSTM(**SIZES)), plain.MLSTM(E, H, D, DV)
    form.double().load_state_dict(layer.state_dict())
    x, state = tokens(), plain.MLSTMState()
    for valid in (None, torch.arange(T) >= torch.tensor([[0], [3], [1]])):
        mask = None if valid is None else padding_mask(valid)
        assert relative_error(form(x, None, valid), layer(x, mask=mask)) < 1e-12
    parts = [form(part, state) for part in x.split([3, 1, 3], dim=1)]
    assert relative_error(torch.cat(parts, dim=1), layer(x)) < 1e-12
