"""Weights from elsewhere do what they did where they came from."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from attnref import (
    MultiHeadAttention,
    MultiHeadLatentAttention,
    Rope,
    Scores,
    apply_rope,
    dequantised,
    flash,
    mha_to_gqa,
    rope_rows,
    rope_table,
    sdpa,
    weights_of_torch_mha,
)
from tests.kit.compare import relative_error
from tests.kit.refusals import refusals

B, T, E, H, D = 2, 7, 11, 6, 10
SIZES = st.fixed_dictionaries(
    {
        "kv_heads": st.integers(1, 3),
        "group": st.integers(1, 4),
        "half": st.integers(1, 3),
        "width": st.integers(1, 7),
        "seed": st.integers(0, 2**32 - 1),
    }
)
DEFAULTS = {
    "dropout": 0.0,
    "causal": True,
    "rope": None,
    "attend": sdpa,
}
SCORES = Scores(scale=0.7, softcap=5.0, sinks=True)
OPTIONS = st.fixed_dictionaries(
    {
        "bias": st.booleans(),
        "o_bias": st.sampled_from([None, False, True]),
        "causal": st.booleans(),
        "rope": st.sampled_from([None, Rope(100.0)]),
        "scores": st.sampled_from([None, SCORES]),
    }
)


def mha(*, d_model=E, n_heads=H, head_dim=D, **options):
    """A layer whose weights are so large that softmax decides."""
    layer = MultiHeadAttention(
        d_model=d_model, n_heads=n_heads, head_dim=head_dim, **options
    )
    for p in layer.parameters():
        nn.init.normal_(p, std=0.7)
    return layer.double()


@torch.no_grad()
def tied(layer, kv_heads):
    """The same layer, each group's keys and values those of its first head."""
    for p in (*layer.k_proj.parameters(), *layer.v_proj.parameters()):
        heads = p.view(kv_heads, -1, layer.head_dim, *p.shape[1:])
        heads.copy_(heads[:, :1].expand_as(heads))
    return layer


def inputs(width=E):
    return torch.randn(B, T, width, dtype=torch.float64)


@given(sizes=SIZES, options=OPTIONS)
def test_pooling_is_exact_where_the_heads_of_a_group_are_alike(sizes, options):
    torch.manual_seed(sizes["seed"])
    K, E = sizes["kv_heads"], sizes["width"]
    n_heads, head_dim = K * sizes["group"], 2 * sizes["half"]
    layer = mha(d_model=E, n_heads=n_heads, head_dim=head_dim, **options)
    tied(layer, K)
    x = inputs(E)
    assert relative_error(mha_to_gqa(layer, K)(x), layer(x)) <= 1e-12


@pytest.mark.parametrize(
    ("kv_heads", "means"),
    [(1, [[11, 22]]), (2, [[2, 4], [20, 40]])],
)
def test_a_mean_is_over_the_heads_that_stand_together(kv_heads, means):
    layer = mha(d_model=1, n_heads=4, head_dim=2, bias=True)
    rows = torch.tensor([[1, 2], [3, 6], [10, 20], [30, 60]]).flatten()
    with torch.no_grad():
        layer.k_proj.weight[:, 0] = layer.k_proj.bias[:] = rows
        layer.v_proj.weight[:, 0] = layer.v_proj.bias[:] = -rows
    gqa, want = mha_to_gqa(layer, kv_heads), torch.tensor(means).double()
    for got in (gqa.k_proj.weight, gqa.k_proj.bias):
        assert torch.equal(got.view(-1, 2), want)
    for got in (gqa.v_proj.weight, gqa.v_proj.bias):
        assert torch.equal(got.view(-1, 2), -want)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_queries_and_output_are_kept(kv_heads, bias):
    layer = mha(bias=bias)
    gqa = mha_to_gqa(layer, kv_heads)
    for name in ("q_proj", "o_proj"):
        ours, theirs = getattr(gqa, name), getattr(layer, name)
        assert torch.equal(ours.weight, theirs.weight)
        assert (ours.bias is None) == (theirs.bias is None) == (not bias)
        assert ours.bias is None or torch.equal(ours.bias, theirs.bias)


def test_with_a_key_head_for_each_query_head_nothing_changes():
    layer, x = mha(bias=True, rope_theta=100.0), inputs()
    gqa = mha_to_gqa(layer, H)
    for name, weight in layer.state_dict().items():
        assert torch.equal(gqa.state_dict()[name], weight)
    assert torch.equal(gqa(x), layer(x))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dropout": 0.25},
        {"causal": False},
        {"rope": Rope(100.0)},
        {"attend": flash},
    ],
    ids=lambda options: "".join(options) or "none",
)
@pytest.mark.parametrize("training", [True, False])
def test_what_is_no_weight_is_kept(options, training):
    layer = mha(**options).train(training)
    gqa = mha_to_gqa(layer, 2)
    for name in ("d_model", "n_heads", "head_dim", *DEFAULTS):
        assert getattr(gqa, name) == getattr(layer, name)
    assert {n: getattr(gqa, n) for n in DEFAULTS} == DEFAULTS | options
    assert gqa.n_kv_heads == 2
    assert all(m.training is training for m in gqa.modules())


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str
)
def test_weights_keep_their_dtype_and_can_be_trained(dtype):
    gqa = mha_to_gqa(mha(bias=True).to(dtype), 2)
    for p in gqa.parameters():
        assert p.dtype == dtype
        assert p.requires_grad


def test_the_original_is_neither_changed_nor_shared():
    layer = mha(bias=True)
    before = {n: w.clone() for n, w in layer.state_dict().items()}
    gqa = mha_to_gqa(layer, 2)
    with torch.no_grad():
        for p in gqa.parameters():
            p.zero_()
    for name, weight in layer.state_dict().items():
        assert torch.equal(weight, before[name])
        assert weight.any()


def scores(q_proj, k_proj, x, theta, layout):
    """`(weight, bias)` of both, turned: what q says to k, before softmax."""
    table = rope_table(torch.arange(T), D, theta=theta)
    turned = []
    for weight, bias in (q_proj, k_proj):
        heads = (x @ weight.mT + bias).view(B, T, -1, D).transpose(1, 2)
        turned.append(apply_rope(heads, *table, layout=layout))
    return turned[0] @ turned[1].mT


def projection():
    rows = {"dtype": torch.float64}
    return torch.randn(3 * D, E, **rows), torch.randn(3 * D, **rows)


def moved(projection, to="half"):
    return tuple(rope_rows(part, D, to=to) for part in projection)


@pytest.mark.parametrize("theta", [2.0, 100.0, 500000.0])
def test_with_moved_rows_the_other_layout_gives_the_same_scores(theta):
    q, k, x = projection(), projection(), inputs()
    interleaved = scores(q, k, x, theta, "interleaved")
    half = scores(moved(q), moved(k), x, theta, "half")
    assert relative_error(half, interleaved) <= 1e-12
    back = moved(q, "interleaved"), moved(k, "interleaved")
    half = scores(q, k, x, theta, "half")
    interleaved = scores(*back, x, theta, "interleaved")
    assert relative_error(interleaved, half) <= 1e-12


def test_rows_move_within_their_head():
    rows, there = torch.arange(8), torch.tensor([0, 2, 1, 3, 4, 6, 5, 7])
    assert torch.equal(rope_rows(rows, 4, to="half"), there)
    one_head = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    assert torch.equal(rope_rows(rows, 8, to="half"), one_head)
    matrix = torch.arange(16).view(8, 2)
    assert torch.equal(rope_rows(matrix, 4, to="half"), matrix[there])


@given(
    heads=st.integers(1, 5), half=st.integers(1, 9), columns=st.integers(0, 3)
)
def test_there_and_back_is_where_it_was(heads, half, columns):
    shape = (heads * 2 * half, columns) if columns else (heads * 2 * half,)
    rows = torch.arange(heads * 2 * half * max(columns, 1)).view(shape)
    for there, back in (("half", "interleaved"), ("interleaved", "half")):
        moved = rope_rows(rows, 2 * half, to=there)
        assert moved.shape == rows.shape
        assert torch.equal(rope_rows(moved, 2 * half, to=back), rows)


@pytest.mark.parametrize("bias", [False, True])
def test_the_weights_of_torch_have_our_names_and_no_gradients(bias):
    theirs = nn.MultiheadAttention(12, 3, bias=bias)
    weights = weights_of_torch_mha(theirs)
    ours = MultiHeadAttention(d_model=12, n_heads=3, bias=bias)
    want = {n: w.shape for n, w in ours.state_dict().items()}
    assert {n: w.shape for n, w in weights.items()} == want
    assert not any(w.requires_grad for w in weights.values())


def in_float8(weight, block):
    """As DeepSeek's `weight_quant`: square by square, 448 for its largest.
    The weight, the scales, and what the two stand for."""
    rows, columns = (-(-size // block) for size in weight.shape)
    narrow = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    scales, meant = torch.empty(rows, columns), torch.empty(weight.shape)
    for i in range(rows):
        for j in range(columns):
            square = (
                slice(i * block, (i + 1) * block),
                slice(j * block, (j + 1) * block),
            )
            scales[i, j] = weight[square].abs().max() / 448
            narrow[square] = (weight[square] / scales[i, j]).to(narrow.dtype)
            meant[square] = narrow[square].float() * scales[i, j]
    return narrow, scales, meant


@pytest.mark.parametrize(
    ("shape", "block"), [((576, 256), 128), ((130, 300), 128), ((7, 12), 5)]
)
def test_float8_weights_are_dequantised_as_transformers_does(shape, block):
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    # Squares of very different sizes: a scale in the wrong place shows.
    weight = torch.randn(shape) * 10 ** torch.linspace(-3, 3, shape[1])
    weight *= 10 ** torch.linspace(-2, 2, shape[0])[:, None]
    narrow, scales, _ = in_float8(weight, block)
    checkpoint = {"x.weight": narrow, "x.weight_scale_inv": scales}
    got = dequantised(checkpoint, block=block, dtype=torch.float32)
    # Theirs takes whole squares only: filled up, and cut again.
    padded = torch.zeros([n * block for n in scales.shape]).to(narrow.dtype)
    padded[: shape[0], : shape[1]] = narrow
    whole = Fp8Dequantize(None)._dequantize_one(padded, scales)
    assert list(got) == ["x.weight"]
    assert torch.equal(got["x.weight"], whole[: shape[0], : shape[1]])
    error = (got["x.weight"] - weight).abs()
    for i in range(scales.shape[0]):  # half a step of e4m3 at its largest
        part = slice(i * block, (i + 1) * block)
        assert error[part].max() <= 16 * scales[i].max()


@torch.no_grad()
def test_a_float8_checkpoint_of_deepseek_loads_and_is_right():
    """Refused as it is; wrong by orders where its scales are left out."""
    sizes = {
        "d_model": 24,
        "n_heads": 3,
        "kv_lora_rank": 14,
        "qk_nope_head_dim": 10,
        "qk_rope_head_dim": 8,
        "v_head_dim": 6,
        "q_lora_rank": 20,
    }
    layer = MultiHeadLatentAttention(**sizes)
    exact, published, meant = layer.state_dict(), {}, {}
    for name, weight in exact.items():
        if weight.dim() == 2:
            weight.normal_(std=0.5)
            narrow, scales, meant[name] = in_float8(weight, 5)
            published |= {name: narrow, f"{name}_scale_inv": scales}
        else:
            published[name] = meant[name] = weight
    x = torch.randn(3, 7, 24)
    ours = MultiHeadLatentAttention(**sizes)
    with pytest.raises(RuntimeError, match="weight_scale_inv"):
        ours.load_state_dict(published)
    ours.load_state_dict(published, strict=False)
    assert relative_error(ours(x), layer(x)) > 1e3
    wide = dequantised(published, block=5, dtype=torch.float32)
    ours.load_state_dict(wide)
    assert relative_error(ours(x), layer(x)) < 0.2
    layer.load_state_dict(meant)
    assert relative_error(ours(x), layer(x)) <= 1e-6
    assert wide["kv_a_layernorm.weight"] is exact["kv_a_layernorm.weight"]
    default = dequantised(published, block=5)["o_proj.weight"]
    assert torch.equal(default, wide["o_proj.weight"].bfloat16())


EIGHT = torch.ones(7, 12).to(torch.float8_e4m3fn)


def in_fives(**checkpoint):
    return dequantised(checkpoint, block=5)


@refusals(
    """
    >>> mha_to_gqa(mha(), 4)
    ValueError: n_kv_heads=4 does not divide n_heads=6
    >>> mha_to_gqa(mha(), 12)
    ValueError: n_kv_heads=12 does not divide n_heads=6
    >>> mha_to_gqa(mha(), 0)
    ValueError: n_kv_heads=0 must be at least 1
    >>> mha_to_gqa(mha(), 2.0)
    TypeError: n_kv_heads is float; pass an int
    >>> in_fives(w=EIGHT)
    ValueError: w is torch.float8_e4m3fn, but w_scale_inv
    >>> in_fives(w=EIGHT.to(torch.float8_e5m2))
    ValueError: w is torch.float8_e5m2, but w_scale_inv is missing
    >>> in_fives(w_scale_inv=torch.ones(2, 3))
    ValueError: w_scale_inv is given without its weight
    >>> in_fives(w=EIGHT.float(), w_scale_inv=torch.ones(2, 3))
    ValueError: w has scales, but is torch.float32, not float8
    >>> in_fives(w=EIGHT, w_scale_inv=torch.ones(3, 2))
    ValueError: w has shape (7, 12) and scales of shape (3, 2); block=5 needs
        (2, 3)
    >>> in_fives(w=EIGHT, w_scale_inv=torch.ones(2, 3, dtype=torch.uint8))
    TypeError: w_scale_inv is torch.uint8; it must be floating
    >>> in_fives(w=EIGHT[0], w_scale_inv=torch.ones(3))
    ValueError: w has shape (12,) and scales of shape (3,); block=5 needs
    >>> dequantised({"w": EIGHT}, block=0)
    ValueError: block=0 must be at least 1
    >>> rope_rows(torch.zeros(10, 3), 4, to="half")
    ValueError: 10 rows with head_dim=4: head_dim must be even and
    >>> rope_rows(torch.zeros(9, 3), 3, to="half")
    ValueError: 9 rows with head_dim=3: head_dim must be even
    >>> rope_rows(torch.zeros(4, 3), 1, to="half")
    ValueError: 4 rows with head_dim=1: head_dim must be even
    >>> rope_rows(torch.zeros(2, 3), 4, to="half")
    ValueError: 2 rows with head_dim=4: head_dim must be even
    >>> rope_rows(torch.zeros(8, 3), 4, to="hf")
    ValueError: to='hf' is neither 'half' nor 'interleaved'
    >>> rope_rows(torch.zeros(8, 3), 0, to="half")
    ValueError: head_dim=0 must be at least 1
    >>> rope_rows(torch.zeros(8, 3), -2, to="half")
    ValueError: head_dim=-2 must be at least 1
    >>> weights_of_torch_mha(nn.MultiheadAttention(12, 3, add_bias_kv=True))
    ValueError: add_bias_kv and add_zero_attn are not supported
    >>> weights_of_torch_mha(nn.MultiheadAttention(12, 3, add_zero_attn=True))
    ValueError: add_bias_kv and add_zero_attn are not supported
    """
)
def test_what_does_not_fit_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        eval(call)


def test_what_a_float8_checkpoint_may_hold_besides():
    """Squares of 128, scales in float8 too, no gradients; other bytes stay."""
    weight = torch.randn(257, 130)
    narrow, scales, _ = in_float8(weight, 128)
    scales = scales.mul(1000).to(torch.float8_e5m2)
    others = {"seen": torch.arange(3).byte(), "mask": torch.ones(4).bool()}
    checkpoint = {
        "w": narrow,
        "w_scale_inv": nn.Parameter(scales.float()),
        **others,
    }
    wide = dequantised(checkpoint)
    assert not wide["w"].requires_grad
    assert {name: wide[name] for name in others} == others
    checkpoint["w_scale_inv"] = scales
    assert torch.equal(dequantised(checkpoint)["w"], wide["w"])
    # Experts that are stacked have a matrix of scales each.
    scales, single = scales.float(), {"dtype": torch.float32}
    stacked = {"w": narrow.expand(2, -1, -1)}
    stacked["w_scale_inv"] = torch.stack((scales, 2 * scales))
    one = dequantised(checkpoint, **single)["w"]
    experts = dequantised(stacked, **single)["w"]
    assert torch.equal(experts, torch.stack((one, 2 * one)))


def test_the_weights_of_torch_are_wrong_in_a_layer_left_causal():
    """Nothing is refused, and the result differs."""
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double()
    x = torch.randn(3, 7, 12, dtype=torch.float64)
    want, _ = theirs(x, x, x, need_weights=False)
    for causal in (True, False):
        ours = MultiHeadAttention(
            d_model=12, n_heads=3, bias=True, causal=causal
        ).double()
        ours.load_state_dict(weights_of_torch_mha(theirs))
        assert (relative_error(ours(x), want) > 0.01) is causal
