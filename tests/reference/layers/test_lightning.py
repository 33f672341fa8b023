"""Lightning attention, beside that of transformers."""

import pytest
import torch

from attnref import Causal, Documents, StateCache, Window, padding_mask
from attnref.layers.lightning import LightningAttention
from attnref.numbers.cost import lightning_cost
from attnref.numbers.shapes import Recurrent
from attnref.plain import lightning as plain
from tests.kit.compare import relative_error
from tests.kit.layers import B, D, E, H, T, Variant, sharp, tokens

LAYER = {"layer_idx": 2, "n_layers": 5}
VARIANT = Variant(
    LightningAttention,
    {"d_model": E, "n_heads": H, "head_dim": D},
    lightning_cost,
    Recurrent(
        layers=1,
        state_heads=H,
        key_dim=D,
        value_dim=D,
        conv_channels=0,
        conv_kernel=1,
    ),
    options=({}, LAYER),
    page=False,
)
LONG = 131
CHUNKS = {
    "whole": (LONG,),
    "single tokens": (1,) * 9,
    "ragged": (5, 1, 1, 63, 61),
    "at the borders of chunks": (64, 1, 65),
}
PADS = {
    "none": torch.ones(B, LONG, dtype=torch.bool),
    "left": torch.arange(LONG) >= torch.tensor([[0], [70], [1]]),
    # Of a prompt padded on the right, and the tokens after it.
    "right": (torch.arange(LONG) < torch.tensor([[9], [3], [70]]))
    | (torch.arange(LONG) >= 70),
    "amid": torch.arange(LONG) % torch.tensor([[2], [7], [LONG]]) != 1,
}


@torch.no_grad()
def shapes():
    """For the shape comments: T tokens, of which some are pads, and T more."""
    valid = torch.ones(B, 2 * T, dtype=torch.bool)
    valid[0, 0] = valid[1, T:] = False
    layer, state = plain.LightningAttention(E, H, D), plain.LightningState()
    ids = torch.arange(2 * T) // 5
    for rule in (True, Causal() & Documents(ids)):
        package = LightningAttention(**VARIANT.sizes, causal=rule)
        cache = StateCache()
        for end in (T, 2 * T):
            seen, x = valid[:, :end], torch.randn(B, T, E)
            package(x, cache=cache, mask=padding_mask(seen))
    for end in (T, 2 * T):
        layer(torch.randn(B, T, E), state, valid[:, :end])


@pytest.fixture(params=["plain", "package"])
def ours(request):
    """A layer with the weights of an oracle, and how it is called."""
    import transformers.models.minimax as theirs

    config = theirs.MiniMaxConfig(
        hidden_size=E,
        num_attention_heads=H,
        head_dim=D,
        num_hidden_layers=LAYER["n_layers"],
        layer_types=["linear_attention"] * LAYER["n_layers"],
        block_size=16,
    )
    modeling = theirs.modeling_minimax
    module = modeling.MiniMaxLightningAttention(config, LAYER["layer_idx"])
    oracle = sharp(module).float()
    weights = dict(oracle.named_parameters())
    buffers = {"slope_rate", "query_decay", "key_decay", "diagonal_decay"}
    assert oracle.state_dict().keys() == weights.keys() | buffers

    def theirs_read(x, cache=None):
        return oracle(x, None, None, cache=cache)[0]

    if request.param == "package":
        layer = LightningAttention(**VARIANT.sizes, **LAYER)
        layer.load_state_dict(weights)

        def read(x, cache, valid):
            return layer(x, cache=cache, mask=padding_mask(valid))

        return theirs_read, modeling.MiniMaxCache, read, StateCache
    layer = plain.LightningAttention(E, H, D, **LAYER)
    layer.load_state_dict(weights)
    return theirs_read, modeling.MiniMaxCache, layer, plain.LightningState


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@torch.no_grad()
def test_it_is_that_of_transformers(ours, chunks):
    oracle, theirs, read, make = ours
    x, cache = tokens(B, sum(chunks), E).float(), make()
    there, got, end = theirs(), [], 0
    want = []
    for part in x.split(chunks, dim=1):
        end += part.shape[1]
        got.append(read(part, cache, PADS["none"][:, :end]))
        want.append(oracle(part, there))
    assert relative_error(torch.cat(got, 1), torch.cat(want, 1)) <= 5e-6


@pytest.mark.parametrize("pads", PADS)
@torch.no_grad()
def test_rows_with_pads_are_those_rows_alone(ours, pads):
    """Whatever the pads hold, and where chunks end within them."""
    oracle, _, read, make = ours
    x, valid = tokens(B, LONG, E).float(), PADS[pads]
    x = torch.where(valid[..., None], x, torch.nan)
    for chunks in ((LONG,), (5, 1, 1, 63, 61)):
        cache, got, end = make(), [], 0
        for part in x.split(chunks, dim=1):
            end += part.shape[1]
            got.append(read(part, cache, valid[:, :end]))
        got = torch.cat(got, dim=1)
        for row, real in enumerate(valid):
            want = oracle(x[row : row + 1, real])
            assert relative_error(got[row : row + 1, real], want) <= 5e-6


def test_the_plain_form_trains_as_the_package_does():
    layer = sharp(LightningAttention(**VARIANT.sizes, **LAYER))
    other = plain.LightningAttention(E, H, D, **LAYER).double()
    other.load_state_dict(layer.state_dict())
    x = tokens(B, 70, E)
    layer(x).square().sum().backward()
    other(x).square().sum().backward()
    for ours, same in zip(layer.parameters(), other.parameters(), strict=True):
        assert relative_error(ours.grad, same.grad) <= 1e-11


@torch.no_grad()
def test_what_float16_cannot_hold_is_normed_before_it_is_rounded():
    layer = LightningAttention(**VARIANT.sizes)
    x = 300 * torch.randn(B, T, E).half()
    want = layer.half().float()(x.float())
    assert relative_error(layer.half()(x), want) <= 0.02


def test_sizes_and_masks_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="layer_idx=5 is not below n_layers=5"):
        LightningAttention(**VARIANT.sizes, layer_idx=5, n_layers=5)
    with pytest.raises(ValueError, match="layer_idx=-1 must be at least 0"):
        LightningAttention(**VARIANT.sizes, layer_idx=-1)
    layer, x = sharp(LightningAttention(**VARIANT.sizes)), tokens()
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    with pytest.raises(ValueError, match="reads its tokens in order: give it"):
        layer(x, mask=mask)
    window = LightningAttention(**VARIANT.sizes, causal=Window(3))
    with pytest.raises(ValueError, match=r"rule is Window\(size=3, .*in order"):
        window.double()(x)
