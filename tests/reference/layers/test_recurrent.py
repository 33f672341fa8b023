"""The recurrent layers, each beside that of transformers."""

import io
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise, product
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch._dynamo.exc import UserError
from torch.export import Dim

from attnref import Causal, Documents, StateCache, Window, padding_mask
from attnref.core import recurrence
from attnref.layers.gated_delta import GatedDeltaNet
from attnref.layers.kda import KimiDeltaAttention
from attnref.layers.lightning import LightningAttention
from attnref.layers.mamba2 import Mamba2
from attnref.layers.mlstm import MLSTM
from attnref.layers.short_conv import ShortConvolution
from attnref.numbers import cost
from attnref.numbers.shapes import Recurrent
from attnref.plain import gated_delta, kda, lightning, mamba2
from tests.kit.compare import relative_error
from tests.kit.layers import (
    DV,
    NOTHING,
    B,
    D,
    E,
    H,
    K,
    T,
    Variant,
    sharp,
    tokens,
)


def keeps(channels: int, kernel: int, heads: int = H, value_dim: int = D):
    """What a layer needs of the past, in words of shapes.py."""
    return Recurrent(
        layers=1,
        state_heads=heads,
        key_dim=D,
        value_dim=value_dim,
        conv_channels=channels,
        conv_kernel=kernel,
    )


HEADS = {"d_model": E, "n_heads": H}
LAST = {"layer_idx": 2, "n_layers": 5}
VARIANTS = {
    "gated_delta": Variant(
        GatedDeltaNet,
        {**HEADS, "n_heads": K, "n_v_heads": H, "key_dim": D, "value_dim": DV},
        cost.gated_delta_cost,
        keeps(2 * K * D + H * DV, 4, value_dim=DV),
        options=({}, {"beta_max": 2.0}),
        page=False,
    ),
    "kda": Variant(
        KimiDeltaAttention,
        {**HEADS, "head_dim": D},
        cost.kda_cost,
        keeps(3 * H * D, 4),
        options=({}, {"decay_bound": -0.7, "full_rank_gate": True}),
        page=False,
    ),
    "lightning": Variant(
        LightningAttention,
        {**HEADS, "head_dim": D},
        cost.lightning_cost,
        keeps(0, 1),
        options=({}, LAST),
        page=False,
    ),
    "mamba2": Variant(
        Mamba2,
        {**HEADS, "n_groups": K, "key_dim": D, "value_dim": E},
        cost.mamba2_cost,
        keeps(H * E + 2 * K * D, 4, value_dim=E),
        options=({}, {"bias": True, "conv_bias": False}),
        page=False,
    ),
    "short_conv": Variant(
        ShortConvolution,
        # As many inputs as the tests of properties have tokens: it sees all.
        {"d_model": E, "conv_kernel": T},
        cost.short_conv_cost,
        keeps(E, T, heads=0),
        options=({}, {"bias": True}),
        page=False,
    ),
}
# With mLSTM, whose own file compares it with transformers.
READING = VARIANTS | {
    "mlstm": VARIANTS["gated_delta"]._replace(
        layer=MLSTM,
        sizes={**HEADS, "key_dim": D, "value_dim": DV},
        options=({}, {"gate_cap": 4.0}),
    )
}
LONG = 131
CHUNKS = {
    "whole": (LONG,),
    "single tokens": (1,) * 9,
    "ragged": (5, 1, 1, 63, 61),
    "at the borders of chunks": (64, 1, 65, 63, 129),
}
PADS = {
    "none": torch.ones(B, LONG, dtype=torch.bool),
    "left": torch.arange(LONG) >= torch.tensor([[0], [70], [1]]),
    # Of a prompt padded on the right, and the tokens after it.
    "right": (torch.arange(LONG) < torch.tensor([[9], [3], [70]]))
    | (torch.arange(LONG) >= 70),
    "amid": torch.arange(LONG) % torch.tensor([[2], [7], [LONG]]) != 1,
}


class Kind(NamedTuple):
    """The layer of transformers and its config, and the plain form."""

    model: str
    names: tuple[str, str]
    config: dict[str, Any]
    plain: Callable[[], nn.Module] | None
    bound: float = 2e-5  # of the relative error, in float32
    options: dict[str, Any] = NOTHING  # of the layer in the package
    layer_idx: int = 0

    def theirs(self) -> tuple[nn.Module, Callable[..., Any]]:
        """Their layer, and how a cache for it is made."""
        from transformers import DynamicCache

        home = f"transformers.models.{self.model}"
        options = {"hidden_size": E, "num_hidden_layers": 1} | self.config
        layer, config = self.names
        made = getattr(import_module(home), config)(**options)
        modeling = import_module(f"{home}.modeling_{self.model}")
        oracle = sharp(getattr(modeling, layer)(made, self.layer_idx)).float()
        if self.model == "minimax":  # takes more, and returns a pair
            return oracle, modeling.MiniMaxCache
        return oracle, lambda: DynamicCache(config=made)


def read(oracle: nn.Module, x: torch.Tensor, cache: Any = None):
    if "MiniMax" in type(oracle).__name__:
        return oracle(x, None, None, cache=cache)[0]
    return oracle(x, cache=cache)


LINEAR = {"layer_types": ["linear_attention"]}
KINDS = {
    "gated_delta": Kind(
        "qwen3_5",
        ("Qwen3_5GatedDeltaNet", "Qwen3_5TextConfig"),
        {
            "linear_num_key_heads": K,
            "linear_num_value_heads": H,
            "linear_key_head_dim": D,
            "linear_value_head_dim": DV,
            **LINEAR,
        },
        lambda: gated_delta.GatedDeltaNet(E, K, H, D, DV),
    ),
    "kda": Kind(
        "kimi_linear",
        ("KimiLinearDeltaAttention", "KimiLinearConfig"),
        {"linear_num_heads": H, "linear_head_dim": D, **LINEAR},
        lambda: kda.KDA(E, H, D),
        5e-5,
    ),
    "lightning": Kind(
        "minimax",
        ("MiniMaxLightningAttention", "MiniMaxConfig"),
        {
            "num_attention_heads": H,
            "head_dim": D,
            "num_hidden_layers": LAST["n_layers"],
            "layer_types": 5 * LINEAR["layer_types"],
            "block_size": 16,
        },
        lambda: lightning.LightningAttention(E, H, D, **LAST),
        5e-6,
        LAST,
        LAST["layer_idx"],
    ),
    "mamba2": Kind(
        "mamba2",
        ("Mamba2Mixer", "Mamba2Config"),
        {
            "num_heads": H,
            "head_dim": E,
            "expand": H,  # the width of all heads, in that of the model
            "n_groups": K,
            "state_size": D,
            "chunk_size": 16,
        },
        lambda: mamba2.Mamba2(E, H, K, D, E),
        5e-6,
    ),
    "mamba2 of nemotron_h": Kind(
        "nemotron_h",
        ("NemotronHMamba2Mixer", "NemotronHConfig"),
        {
            "mamba_num_heads": H,
            "mamba_head_dim": E,
            "n_groups": K,
            "ssm_state_size": D,
            "chunk_size": 16,
            "use_bias": True,
            "layer_norm_epsilon": 1e-5,
            "layers_block_type": ["mamba"],
            "time_step_min": 0.0,  # which their single tokens do not read
        },
        None,
        5e-6,
        {"bias": True},
    ),
    "short_conv": Kind(
        "lfm2",
        ("Lfm2ShortConv", "Lfm2Config"),
        {"conv_L_cache": T, "conv_bias": True, "layer_types": ["conv"]},
        None,
        1e-6,
        {"bias": True},
    ),
}


@torch.no_grad()
def shapes():
    """For the shape comments: T tokens, of which some are pads, and T more."""
    valid = torch.ones(B, 2 * T, dtype=torch.bool)
    valid[0, 0] = valid[1, T:] = False
    forms = [
        (kind.plain(), own_cache(kind.plain())())
        for kind in KINDS.values()
        if kind.plain and kind.model != "mamba2"
    ]
    forms.append((mamba2.Mamba2(E, H, K, D, DV), mamba2.State()))
    forms.append((kda.KDA(E, H, D, bound=-5.0), kda.State()))
    for end in (T, 2 * T):
        for layer, state in forms:
            layer(torch.randn(B, T, E), state, valid[:, :end])
    ids = torch.arange(2 * T) // 5
    for name, rule in product(VARIANTS, (True, Causal() & Documents(ids))):
        sizes = VARIANTS[name].sizes
        if name == "mamba2":
            sizes = sizes | {"value_dim": DV}
        package = VARIANTS[name].layer(**sizes, causal=rule)
        cache = StateCache()
        for end in (T, 2 * T):
            seen, x = valid[:, :end], torch.randn(B, T, E)
            package(x, cache=cache, mask=padding_mask(seen))


def own_cache(layer: nn.Module) -> Callable[[], Any]:
    """What a plain form keeps, which its file defines."""
    module = import_module(type(layer).__module__)
    return getattr(module, "State", None) or module.LightningState


FORMS = [
    (name, form)
    for name, kind in KINDS.items()
    for form in ("plain", "package")
    if kind.plain or form == "package"
]


@pytest.fixture(params=FORMS, ids=", ".join)
def ours(request):
    """A layer with the weights of an oracle, how it is called, its cache."""
    name, form = request.param
    kind = KINDS[name]
    oracle, cache = kind.theirs()
    variant = VARIANTS[name.split()[0]]
    layer = variant.layer(**variant.sizes, **kind.options)
    if form == "plain":
        layer = kind.plain()
    layer.load_state_dict(dict(oracle.named_parameters()))
    bound = kind.bound
    if form == "plain":
        return oracle, cache, layer, own_cache(layer), bound

    def call(x, cache, valid):
        return layer(x, cache=cache, mask=padding_mask(valid))

    return oracle, cache, call, StateCache, bound


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@torch.no_grad()
def test_it_is_that_of_transformers(ours, chunks):
    oracle, theirs, call, make, bound = ours
    x, cache, there = tokens(B, sum(chunks), E).float(), make(), theirs()
    got, want, end = [], [], 0
    for part in x.split(chunks, dim=1):
        end += part.shape[1]
        got.append(call(part, cache, torch.ones(B, end, dtype=torch.bool)))
        want.append(read(oracle, part, there))
    assert relative_error(torch.cat(got, 1), torch.cat(want, 1)) <= bound


@pytest.mark.parametrize("pads", PADS)
@torch.no_grad()
def test_rows_with_pads_are_those_rows_alone(ours, pads):
    """Whatever the pads hold, and where chunks end within them."""
    oracle, _, call, make, bound = ours
    x, valid = tokens(B, LONG, E).float(), PADS[pads]
    x = torch.where(valid[..., None], x, torch.nan)
    for chunks in ((LONG,), (5, 1, 1, 63, 61)):
        cache, got, end = make(), [], 0
        for part in x.split(chunks, dim=1):
            end += part.shape[1]
            got.append(call(part, cache, valid[:, :end]))
        got = torch.cat(got, dim=1)
        for row, real in enumerate(valid):
            want = read(oracle, x[row : row + 1, real])
            assert relative_error(got[row : row + 1, real], want) <= bound


@pytest.mark.parametrize("name", [n for n in KINDS if n != "short_conv"])
@torch.no_grad()
def test_only_lightning_rounds_its_state_in_transformers(name):
    """In a layer of bfloat16; all others keep it in float32."""
    oracle, make = KINDS[name].theirs()
    oracle, cache = oracle.bfloat16(), make()
    for length in (T, 1):
        read(oracle, torch.randn(B, length, E).bfloat16(), cache)
    if name == "lightning":
        assert cache.get_linear_cache(LAST["layer_idx"]).dtype == torch.bfloat16
    else:
        assert cache.layers[0].recurrent_states[0].dtype == torch.float32


@pytest.mark.parametrize("name", [n for n, kind in KINDS.items() if kind.plain])
def test_the_plain_form_trains_as_the_package_does(name):
    kind, variant = KINDS[name], VARIANTS[name]
    layer = sharp(variant.layer(**variant.sizes, **kind.options))
    other = kind.plain().double()
    other.load_state_dict(layer.state_dict())
    x = tokens(B, 70, E)
    layer(x).square().sum().backward()
    other(x).square().sum().backward()
    for ours, same in zip(layer.parameters(), other.parameters(), strict=True):
        assert relative_error(ours.grad, same.grad) <= 1e-11


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_in_bfloat16_it_is_near_and_its_state_is_not_rounded(name):
    """In ragged chunks, with pads, and with documents in the rows."""
    variant = VARIANTS[name.split()[0]]
    ids = torch.arange(LONG) // torch.tensor([[200], [50], [7]])
    options = KINDS[name].options | {"causal": Causal() & Documents(ids)}
    layer = variant.layer(**variant.sizes, **options)
    x, valid = torch.randn(B, LONG, E).bfloat16(), PADS["amid"]
    half = variant.layer(**variant.sizes, **options).bfloat16()
    half.load_state_dict(layer.state_dict())
    layer.load_state_dict(half.state_dict())  # as it was rounded
    outs, ends = [], (5, 6, 7, 70, LONG)
    for each, dtype in ((layer, torch.float32), (half, torch.bfloat16)):
        cache, start, parts = StateCache(), 0, []
        for end in ends:
            given = x[:, start:end].to(dtype)
            mask = padding_mask(valid[:, :end])
            parts.append(each(given, cache=cache, mask=mask))
            start = end
        outs.append(torch.cat(parts, dim=1)[valid])
    state, *inputs = cache.state if name != "short_conv" else (None, half)
    assert outs[1].dtype == torch.bfloat16
    assert state is None or state.dtype == torch.float32
    assert 0 < relative_error(outs[1], outs[0]) <= 0.03


@pytest.mark.parametrize("name", [n for n in READING if n != "short_conv"])
@torch.no_grad()
def test_autocast_rounds_nothing_that_is_written_into_a_state(
    name, monkeypatch
):
    variant, x, cache = READING[name], torch.randn(B, LONG, E), StateCache()
    layer, calls = variant.layer(**variant.sizes), []

    def chunked(*given, **options):
        calls.append((given, options))
        return recurrence.chunked(*given, **options)

    monkeypatch.setattr("attnref.caches.state.chunked", chunked)
    with torch.autocast("cpu", torch.bfloat16):
        layer(x, cache=cache)
    [(given, options)] = calls
    assert {t.dtype for t in given} == {torch.float32}
    _, want = recurrence.chunked(*given, **options)
    assert torch.equal(cache.state[0], want)


@torch.no_grad()
def test_the_step_of_mamba2_is_bounded_as_in_a_whole_pass_of_transformers():
    limits = {"time_step_limit": (0.5, 1.0)}
    kind = KINDS["mamba2"]
    oracle, _ = kind._replace(config=kind.config | limits).theirs()
    layer = Mamba2(**VARIANTS["mamba2"].sizes, step_limits=(0.5, 1.0))
    layer.load_state_dict(oracle.state_dict())
    x, cache = tokens(B, LONG, E).float(), StateCache()
    got = torch.cat([layer(t, cache=cache) for t in x.split(1, dim=1)], dim=1)
    assert relative_error(got, oracle(x)) <= kind.bound


@pytest.mark.parametrize("name", [n for n, kind in KINDS.items() if kind.plain])
def test_a_plain_form_is_exported_for_one_length(name):
    """As the page of PyTorch's tools says."""
    layer, x = KINDS[name].plain().requires_grad_(False), torch.randn(B, T, E)
    assert torch.equal(torch.export.export(layer, (x,)).module()(x), layer(x))
    named = {"x": {1: Dim("T", min=1, max=300)}}
    with pytest.raises(UserError, match=rf"it to be a constant \({T}\)"):
        torch.export.export(layer, (x,), dynamic_shapes=named)


def history(draw, length):
    """Numbers of documents, which may return, real tokens, ends of calls."""
    begins = torch.rand(2, length, generator=draw) < 0.4
    ids = begins.cumsum(dim=1) % 3
    valid = torch.rand(2, length, generator=draw) < 0.7
    cuts = torch.rand(length - 1, generator=draw) < 0.4
    return ids, valid, [*(cuts.nonzero()[:, 0] + 1).tolist(), length]


@pytest.mark.parametrize("name", READING)
@torch.no_grad()
def test_in_drawn_histories_each_document_is_as_if_alone(name):
    """Short documents packed into rows, pads that hold NaN and may have another
    number, and calls that end anywhere; each run of real tokens of one number
    is read by itself, at once."""
    variant, draw = READING[name], torch.Generator().manual_seed(0)
    layers = [
        sharp(variant.layer(**variant.sizes, **o)) for o in variant.options
    ]
    for turn in range(40):
        layer, length = layers[turn % 2], 3 + turn % 11
        ids, valid, ends = history(draw, length)
        x = torch.randn(2, length, E, generator=draw).double()
        x = x.where(valid[..., None], torch.nan)
        layer.causal, cache = Causal() & Documents(ids), StateCache()
        got = [
            layer(x[:, n:end], cache=cache, mask=padding_mask(valid[:, :end]))
            for n, end in pairwise([0, *ends])
        ]
        got, layer.causal = torch.cat(got, dim=1), True
        for row in range(2):
            real = valid[row].nonzero()[:, 0]
            same = ids[row, real].unique_consecutive(return_counts=True)[1]
            for run in real.split(same.tolist()):
                want = layer(x[row : row + 1, run])
                assert relative_error(got[row : row + 1, run], want) <= 1e-10


@pytest.mark.parametrize("packed", [False, True], ids=["", "documents"])
@pytest.mark.parametrize("name", READING)
def test_a_layer_is_exported_for_any_length(name, packed):
    """Named, as a `Dim`, and with pads; then saved and loaded."""
    variant, least = READING[name], T if packed else 1
    documents = Documents(torch.arange(301) // 37)
    rule = Causal() & documents if packed else True
    layer = sharp(variant.layer(**variant.sizes, causal=rule))
    layer.requires_grad_(False)
    valid = torch.rand(B, 1, 1, 300) < 0.9
    length = Dim("T", min=least, max=300)
    program = torch.export.export(
        layer,
        (tokens(B, LONG, E),),
        {"mask": valid[..., :LONG].contiguous()},
        dynamic_shapes={"x": {1: length}, "mask": {3: length}},
    )
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    exported = torch.export.load(file).module()
    for n in (1, T, 63, 64, 65, 200):
        if n >= least:
            x, mask = tokens(B, n, E), valid[..., :n]
            want = layer(x, mask=mask)
            assert relative_error(exported(x, mask=mask), want) <= 1e-12


@torch.no_grad()
def test_strong_decays_cost_mamba2_no_digits_of_a_whole_text():
    """Rates from 1 to 128, as a new layer has, and steps that differ much. How
    far float32 is from float64 depends on the processor; read token by token,
    no decays are added up."""
    torch.manual_seed(0)
    kind, sizes = KINDS["mamba2"], {"num_heads": 128, "head_dim": E}
    sizes |= {"expand": 128, "n_groups": 1, "state_size": D, "chunk_size": 64}
    oracle, theirs = kind._replace(config=sizes).theirs()
    sizes = {"n_heads": 128, "value_dim": E, "n_groups": 1, "key_dim": D}
    layer, there = Mamba2(d_model=E, **sizes), theirs()
    layer.in_proj.weight.mul_(8)
    oracle.load_state_dict(layer.state_dict())
    x = torch.randn(B, LONG, E)
    ours, cache = layer(x), StateCache()
    by_token = [layer(token, cache=cache) for token in x.split(1, dim=1)]
    exact = layer.double()(x.double())
    oracle.double()  # in float32, its own rounding would be in the difference
    tokens = x.double().split(1, dim=1)
    want = torch.cat([read(oracle, token, there) for token in tokens], dim=1)
    assert relative_error(exact, want) <= 2e-6
    rounding = relative_error(torch.cat(by_token, dim=1), exact)
    assert relative_error(ours, exact) <= 5 * rounding <= 1e-5


def of_olmo(state):
    """Weights of GatedDeltaNet as Olmo-Hybrid has them: projections apart."""
    parts = state.pop("in_proj_qkv.weight").split((K * D, K * D, H * DV))
    for name, part in zip("qkv", parts, strict=True):
        state[f"{name}_proj.weight"] = part
    for ours, name in (
        ("in_proj_a", "a"),
        ("in_proj_b", "b"),
        ("in_proj_z", "g"),
    ):
        state[f"{name}_proj.weight"] = state.pop(f"{ours}.weight")
    state["o_norm.weight"] = state.pop("norm.weight")
    state["o_proj.weight"] = state.pop("out_proj.weight")
    return state


def of_bailing(state):
    """Weights of KDA as Bailing has them: gates of full rank."""
    for name in ("forget_gate.f", "g"):
        low, high = (state.pop(f"{name}_{part}_proj.weight") for part in "ab")
        state[f"{name}_proj.weight"] = high @ low
    state["forget_gate.A_log"] = state["forget_gate.A_log"].flatten()
    return state


# A layer of transformers with an option of ours, and ours as its weights.
OPTIONS = {
    "gated_delta": (
        Kind(
            "olmo_hybrid",
            ("OlmoHybridGatedDeltaNet", "OlmoHybridConfig"),
            {
                **KINDS["gated_delta"].config,
                "num_attention_heads": H,
                "num_hidden_layers": 2,
                "layer_types": ["linear_attention", "full_attention"],
                "linear_allow_neg_eigval": True,
            },
            None,
            options={"beta_max": 2.0, "eps": 1e-5},
        ),
        of_olmo,
    ),
    "kda": (
        Kind(
            "bailing_hybrid",
            ("BailingHybridDeltaAttention", "BailingHybridConfig"),
            {
                **KINDS["kda"].config,
                "kda_safe_gate": True,
                "kda_lower_bound": -0.7,
                "rms_norm_eps": 1e-5,
            },
            None,
            5e-5,
            {"decay_bound": -0.7},
        ),
        of_bailing,
    ),
}


@torch.no_grad()
def test_one_matrix_gates_as_the_product_of_two_does():
    """And the plain form with the options of Kimi K3 is the layer with them."""
    sizes = VARIANTS["kda"].sizes | {"decay_bound": -5.0}
    two, x = sharp(KimiDeltaAttention(**sizes)), tokens(B, T, E)
    one = KimiDeltaAttention(**sizes, full_rank_gate=True).double()
    state = dict(two.state_dict())
    low, high = (state.pop(f"g_{part}_proj.weight") for part in "ab")
    one.load_state_dict(state | {"g_proj.weight": high @ low})
    torch.testing.assert_close(one(x), two(x))
    own = sharp(KimiDeltaAttention(**sizes, full_rank_gate=True))
    assert torch.linalg.matrix_rank(own.g_proj.weight) > len(low)
    plain = kda.KDA(E, own.n_heads, own.head_dim, bound=-5.0, full_rank=True)
    plain.double().load_state_dict(own.state_dict())
    torch.testing.assert_close(plain(x), own(x))


@pytest.mark.parametrize("name", OPTIONS)
@torch.no_grad()
def test_an_option_is_that_of_a_model_which_has_it(name):
    (kind, theirs), variant = OPTIONS[name], VARIANTS[name]
    oracle, made = kind.theirs()
    layer = sharp(variant.layer(**variant.sizes, **kind.options)).float()
    state = theirs(dict(layer.state_dict()))
    have = dict(oracle.named_parameters())
    oracle.load_state_dict({n: w.view(have[n].shape) for n, w in state.items()})
    x, cache, there = tokens(B, LONG, E).float(), StateCache(), made()
    got, want = [], []
    for part in x.split((5, 1, 1, 63, 61), dim=1):
        got.append(layer(part, cache=cache))
        want.append(read(oracle, part, there))
    got, want = torch.cat(got, dim=1), torch.cat(want, dim=1)
    assert relative_error(got, want) <= kind.bound
    plain = variant.layer(**variant.sizes, eps=1e-5).float()
    plain.load_state_dict(layer.state_dict())
    assert relative_error(plain(x), want) > 0.01


@torch.no_grad()
def test_what_float16_cannot_hold_is_normed_before_it_is_rounded():
    layer = LightningAttention(**VARIANTS["lightning"].sizes)
    x = 300 * torch.randn(B, T, E).half()
    want = layer.half().float()(x.float())
    assert relative_error(layer.half()(x), want) <= 0.02


def test_sizes_that_do_not_fit_are_refused():
    for name, other, message in (
        ("gated_delta", {"n_heads": 3}, "n_heads=3 does not divide n_v_heads"),
        ("mamba2", {"n_groups": 3}, "n_groups=3 does not divide n_heads=10"),
        ("lightning", {"layer_idx": 5, "n_layers": 5}, "=5 is not below n_lay"),
        ("lightning", {"layer_idx": -1}, "layer_idx=-1 must be at least 0"),
        ("kda", {"head_dim": 0}, "head_dim=0 must be at least 1"),
        ("kda", {"decay_bound": 0.0}, "decay_bound=0.0 must be below 0"),
        ("gated_delta", {"beta_max": 2.1}, "beta_max=2.1 is not from 0 to 2"),
        ("short_conv", {"conv_kernel": 0}, "conv_kernel=0 must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            VARIANTS[name].layer(**VARIANTS[name].sizes | other)
    for plain in (
        lambda: gated_delta.GatedDeltaNet(E, 3, H, D, DV),
        lambda: mamba2.Mamba2(E, H, 3, D, DV),
    ):
        with pytest.raises(ValueError, match="does not divide"):
            plain()
    with pytest.raises(ValueError, match="3 groups of keys do not divide 10"):
        cost.mamba2_cost(**VARIANTS["mamba2"].sizes | {"n_groups": 3})


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_masks_and_states_that_do_not_fit_are_refused(name):
    variant, x, cache = VARIANTS[name], tokens(), StateCache()
    layer = sharp(variant.layer(**variant.sizes))
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    with pytest.raises(ValueError, match="reads its tokens in order: give it"):
        layer(x, mask=mask)
    window = variant.layer(**variant.sizes, causal=Window(3)).double()
    with pytest.raises(ValueError, match=r"rule is Window\(size=3, .*in order"):
        window(x)
    layer(x, cache=cache)
    message = "holds .* float64 on cpu.*, and the layer needs .* float32"
    with pytest.raises(ValueError, match=message):
        layer.float()(x.float(), cache=cache)
