"""Gated DeltaNet, beside that of transformers."""

import pytest
import torch

from attnref import Causal, Documents, StateCache, Window, padding_mask
from attnref.layers.gated_delta import GatedDeltaNet
from attnref.numbers.cost import gated_delta_cost
from attnref.numbers.shapes import Recurrent
from attnref.plain import gated_delta as plain
from tests.kit.compare import relative_error
from tests.kit.layers import DV, B, D, E, H, K, T, Variant, sharp, tokens

VARIANT = Variant(
    GatedDeltaNet,
    {
        "d_model": E,
        "n_heads": K,
        "n_v_heads": H,
        "key_dim": D,
        "value_dim": DV,
    },
    gated_delta_cost,
    Recurrent(
        layers=1,
        state_heads=H,
        key_dim=D,
        value_dim=DV,
        conv_channels=2 * K * D + H * DV,
        conv_kernel=4,
    ),
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
    layer, state = plain.GatedDeltaNet(E, K, H, D, DV), plain.State()
    ids = torch.arange(2 * T) // 5
    for rule in (True, Causal() & Documents(ids)):
        package = GatedDeltaNet(**VARIANT.sizes, causal=rule)
        cache = StateCache()
        for end in (T, 2 * T):
            seen, x = valid[:, :end], torch.randn(B, T, E)
            package(x, cache=cache, mask=padding_mask(seen))
    for end in (T, 2 * T):
        layer(x, state, valid[:, :end])


@pytest.fixture(params=["plain", "package"])
def ours(request):
    """A layer with the weights of an oracle, and how it is called."""
    import transformers.models.qwen3_5 as theirs

    config = theirs.Qwen3_5TextConfig(
        hidden_size=E,
        linear_num_key_heads=K,
        linear_num_value_heads=H,
        linear_key_head_dim=D,
        linear_value_head_dim=DV,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    module = theirs.modeling_qwen3_5.Qwen3_5GatedDeltaNet(config, 0)
    oracle = sharp(module).float()
    if request.param == "package":
        layer = GatedDeltaNet(**VARIANT.sizes)
        layer.load_state_dict(oracle.state_dict())

        def read(x, cache, valid):
            return layer(x, cache=cache, mask=padding_mask(valid))

        return oracle, config, read, StateCache
    layer = plain.GatedDeltaNet(E, K, H, D, DV)
    layer.load_state_dict(oracle.state_dict())
    return oracle, config, layer, plain.State


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@torch.no_grad()
def test_it_is_that_of_transformers(ours, chunks):
    from transformers import DynamicCache

    oracle, config, read, make = ours
    x, cache = tokens(B, sum(chunks), E).float(), make()
    there, got, end = DynamicCache(config=config), [], 0
    want = []
    for part in x.split(chunks, dim=1):
        end += part.shape[1]
        got.append(read(part, cache, PADS["none"][:, :end]))
        want.append(oracle(part, cache=there))
    assert relative_error(torch.cat(got, 1), torch.cat(want, 1)) <= 2e-5


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
            assert relative_error(got[row : row + 1, real], want) <= 2e-5


def test_the_plain_form_trains_as_the_package_does():
    layer = sharp(GatedDeltaNet(**VARIANT.sizes))
    other = plain.GatedDeltaNet(E, K, H, D, DV).double()
    other.load_state_dict(layer.state_dict())
    x = tokens(B, 70, E)
    layer(x).square().sum().backward()
    other(x).square().sum().backward()
    for ours, same in zip(layer.parameters(), other.parameters(), strict=True):
        assert relative_error(ours.grad, same.grad) <= 1e-11


def test_sizes_and_masks_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="n_heads=3 does not divide n_v_heads"):
        GatedDeltaNet(**VARIANT.sizes | {"n_heads": 3})
    with pytest.raises(ValueError, match="does not divide"):
        plain.GatedDeltaNet(E, 3, H, D, DV)
    layer, x = sharp(GatedDeltaNet(**VARIANT.sizes)), tokens()
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    with pytest.raises(ValueError, match="reads its tokens in order: give it"):
        layer(x, mask=mask)
    with pytest.raises(ValueError, match=r"rule is Window\(size=3, .*in order"):
        GatedDeltaNet(**VARIANT.sizes, causal=Window(3)).double()(x)
    cache = StateCache()
    with torch.no_grad():
        layer(x, cache=cache)
        says = "holds .* float64 on cpu and .*, and the layer needs .* float32"
        with pytest.raises(ValueError, match=says):
            layer.float()(x.float(), cache=cache)
