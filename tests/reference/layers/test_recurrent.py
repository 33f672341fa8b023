"""The recurrent layers, each beside that of transformers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from attnref.plain import gated_delta, kda, mamba2
from tests.kit.compare import relative_error
from tests.kit.layers import DV, B, D, E, H, K, T, sharp, tokens

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


def theirs(model: str, layer: str, **config: Any) -> nn.Module:
    """A layer of transformers that is called as ours is, without a mask."""
    import transformers

    made = getattr(transformers, f"{model}Config")(
        hidden_size=E, num_hidden_layers=1, **config
    )
    home = type(made).__module__.replace("configuration", "modeling")
    found = getattr(__import__(home, fromlist=[layer]), layer)(made, 0)
    found.config = made
    return sharp(found).float()


class Kind(NamedTuple):
    """A recurrent layer: that of transformers, the plain form and its sizes."""

    oracle: Callable[[], nn.Module]
    plain: Callable[[], nn.Module]
    bound: float = 2e-5  # of the relative error, in float32


LINEAR = {"layer_types": ["linear_attention"]}
KINDS = {
    "gated_delta": Kind(
        lambda: theirs(
            "Qwen3_5Text",
            "Qwen3_5GatedDeltaNet",
            linear_num_key_heads=K,
            linear_num_value_heads=H,
            linear_key_head_dim=D,
            linear_value_head_dim=DV,
            **LINEAR,
        ),
        lambda: gated_delta.GatedDeltaNet(E, K, H, D, DV),
    ),
    "kda": Kind(
        lambda: theirs(
            "KimiLinear",
            "KimiLinearDeltaAttention",
            linear_num_heads=H,
            linear_head_dim=D,
            **LINEAR,
        ),
        lambda: kda.KDA(E, H, D),
    ),
    "mamba2": Kind(
        lambda: theirs(
            "Mamba2",
            "Mamba2Mixer",
            num_heads=H,
            head_dim=E,
            expand=H,  # the width of all heads, in that of the model
            n_groups=K,
            state_size=D,
            chunk_size=16,
        ),
        lambda: mamba2.Mamba2(E, H, K, D, E),
        5e-6,
    ),
}


@torch.no_grad()
def shapes():
    """For the shape comments: T tokens, of which some are pads, and T more."""
    valid = torch.ones(B, 2 * T, dtype=torch.bool)
    valid[0, 0] = valid[1, T:] = False
    for layer, state in (
        (kda.KDA(E, H, D), kda.State()),
        (mamba2.Mamba2(E, H, K, D, DV), mamba2.State()),
    ):
        for end in (T, 2 * T):
            layer(torch.randn(B, T, E), state, valid[:, :end])


@pytest.fixture(params=KINDS)
def ours(request):
    """A layer with the weights of an oracle, and how it is called."""
    kind = KINDS[request.param]
    oracle, layer = kind.oracle(), kind.plain()
    layer.load_state_dict(oracle.state_dict())
    state = __import__(type(layer).__module__, fromlist=["State"]).State
    return oracle, layer, state, kind.bound


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@torch.no_grad()
def test_it_is_that_of_transformers(ours, chunks):
    from transformers import DynamicCache

    oracle, read, make, bound = ours
    x, cache = tokens(B, sum(chunks), E).float(), make()
    there, got, want = DynamicCache(config=oracle.config), [], []
    for part in x.split(chunks, dim=1):
        got.append(read(part, cache))
        want.append(oracle(part, cache=there))
    assert relative_error(torch.cat(got, 1), torch.cat(want, 1)) <= bound


@pytest.mark.parametrize("pads", PADS)
@torch.no_grad()
def test_rows_with_pads_are_those_rows_alone(ours, pads):
    """Whatever the pads hold, and where chunks end within them."""
    oracle, read, make, bound = ours
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
            assert relative_error(got[row : row + 1, real], want) <= bound
