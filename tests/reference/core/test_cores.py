"""The properties of every core of attention: what it offers, its own test file
declares as `CORE`."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, vmap
from torch.utils.flop_counter import FlopCounterMode

from attnref import (
    Causal,
    Everything,
    RuleMask,
    Window,
    causal_mask,
    padding_mask,
)
from attnref.core.masks import dense
from tests.cores import cores, each_core, each_core_with, sampled_cores
from tests.kit import kernels
from tests.kit.attention import (
    DV,
    EVERY_MASK,
    B,
    D,
    H,
    K,
    S,
    T,
    gradients,
    leaves,
    qkv,
    torch_sdpa,
)
from tests.kit.compare import relative_error

HALF = torch.bfloat16, torch.float16
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{warning}")
    for warning in (
        "flex_attention called without torch.compile",
        "There is a performance drop because",  # of vmap
        ".*should not be instantiated",  # of a compiled `autograd.Function`
    )
]


@pytest.fixture(autouse=True)
def _device(request):
    """What a test makes is made where its core computes."""
    core = request.node.callspec.params["core"]
    if core.package == "triton":
        kernels.prepare()
    if core.device == "cpu":
        yield
    else:
        with torch.device(core.device):
            yield


def results(core, inputs, d_out, mask=None, **options):
    """The output and, if the core has them, the gradients of q, k and v."""
    with torch.no_grad():
        out = core.function(*inputs, mask, **options)
    if not core.offers("gradients"):
        return [out]
    return [out, *gradients(core.function, inputs, d_out, mask, **options)]


def torch_results(inputs, d_out, mask=None, scale=None):
    mask = dense(mask)
    out = torch_sdpa(*inputs, mask, scale)
    return [out, *gradients(torch_sdpa, inputs, d_out, mask, scale)]


@sampled_cores
@pytest.mark.parametrize("mask", EVERY_MASK)
@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_it_is_torchs_attention_under_every_mask(core, mask, kv_heads):
    if not core.offers("masks") and mask not in core.masks:
        return  # refused: see below
    mask = EVERY_MASK[mask]()
    for dtype, bound in core.exact:
        inputs = qkv(dtype, K=kv_heads)
        exact = [x.double() for x in inputs]
        d_out = torch.randn(B, H, T, DV, dtype=dtype)
        for scale in None, 0.7:
            want = torch_results(exact, d_out.double(), mask, scale)
            for options in core.options:
                got = results(core, inputs, d_out, mask, scale=scale, **options)
                assert {x.dtype for x in got} == {dtype}
                assert relative_error(got[0], want[0]) <= bound
                assert (got[0][want[0] == 0] == 0).all()
                for ours, theirs in zip(got[1:], want[1:], strict=False):
                    assert relative_error(ours, theirs) <= 10 * bound


@cores(lambda core: not core.offers("masks"))
@pytest.mark.parametrize("mask", EVERY_MASK)
def test_a_mask_that_a_core_lacks_is_refused(core, mask):
    if mask not in core.masks:
        with pytest.raises(ValueError, match=core.lacks["masks"]):
            core.attend(*qkv(torch.float32), EVERY_MASK[mask]())


@cores(lambda core: core.offers("float64", "masks"), sampled=True)
@given(
    sizes=st.fixed_dictionaries(
        {
            "B": st.integers(0, 3),
            "T": st.integers(0, 6),
            "S": st.integers(0, 8),
            "D": st.integers(1, 5),
            "DV": st.integers(1, 5),
        }
    ),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    axes=st.tuples(*[st.booleans()] * 4),
    density=st.floats(0, 1),
    data=st.data(),
    seed=st.integers(0, 2**32 - 1),
)
def test_it_is_torchs_over_shapes_and_masks(
    core, sizes, kv_heads, group, axes, density, data, seed
):
    torch.manual_seed(seed)
    H = kv_heads * group
    inputs = qkv(K=kv_heads, H=H, **sizes)
    full = (sizes["B"], H, sizes["T"], sizes["S"])
    mask = torch.rand([n if a else 1 for n, a in zip(full, axes, strict=True)])
    mask = mask < density
    d_out = torch.randn(*full[:3], sizes["DV"]).double()
    options = data.draw(st.sampled_from(core.options))
    got = results(core, inputs, d_out, mask, **options)
    want = torch_results(inputs, d_out, mask.expand(full))
    for ours, theirs in zip(got, want, strict=False):
        assert ours.shape == theirs.shape
        # Relative to 1: with one key, the gradients of q and k are zero.
        assert ours.numel() == 0 or (ours - theirs).abs().max() <= 1e-11


@each_core_with("masks")
@pytest.mark.parametrize("dtype", (*HALF, torch.float32), ids=str)
def test_an_empty_row_gives_zeros_in_every_dtype(core, dtype):
    inputs = qkv(dtype)
    mask = padding_mask(torch.tensor([[False] * S, [True] * S]))
    d_out = torch.randn(B, H, T, DV, dtype=dtype)
    got = results(core, inputs, d_out, mask, **core.options[0])
    want = results(core, inputs, d_out, **core.options[0])
    for ours, theirs in zip(got, want, strict=True):
        assert (ours[0] == 0).all()
        bound = 4 * torch.finfo(dtype).eps
        assert relative_error(ours[1], theirs[1]) <= bound


@sampled_cores
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("sharp", [1.0, 16.0])
@pytest.mark.parametrize(
    ("bound", "sizes"), [("half", {"K": H, "DV": 67}), ("half_grouped", {})]
)
def test_half_precision_is_about_as_exact_as_torchs(
    core, dtype, sharp, bound, sizes
):
    inputs = qkv(dtype, sharp=sharp, T=61, S=127, D=67, **sizes)
    exact = [x.double() for x in inputs]
    d_out = torch.randn(B, H, 61, inputs[2].shape[3], dtype=dtype)
    all_got = results(core, inputs, d_out, **core.options[-1])
    all_torchs = torch_results(inputs, d_out)
    all_want = torch_results(exact, d_out.double())
    for got, torchs, want in zip(all_got, all_torchs, all_want, strict=False):
        assert got.dtype == dtype
        ratio = relative_error(got, want) / relative_error(torchs, want)
        assert ratio <= getattr(core, bound), f"of torch's error: `{bound}`"


@sampled_cores
@pytest.mark.parametrize(
    ("dtype", "autocast"),
    [(torch.float32, torch.bfloat16), *zip(HALF, HALF, strict=True)],
    ids=str,
)
def test_autocast_rounds_no_output_and_no_declared_gradient(
    core, dtype, autocast
):
    """For few queries or many, and values of any width."""
    same = []
    for n, width in (1, D), (1, DV), (9, D), (9, DV):
        inputs = qkv(dtype, sharp=16.0, T=n, DV=width)
        d_out = torch.randn(B, H, n, width, dtype=dtype)
        want = results(core, inputs, d_out, **core.options[0])
        with torch.autocast("cpu", dtype=autocast):
            got = results(core, inputs, d_out, **core.options[0])
        assert {x.dtype for x in got} == {dtype}
        assert torch.equal(got[0], want[0])
        same += map(torch.equal, got[1:], want[1:])
    assert all(same) == core.autocast_backward, "declare `autocast_backward`"


@each_core_with("gradients")
def test_second_derivatives_are_right_or_refused(core):
    sizes = {"B": 1, "T": 2, "S": 3, "H": 4, "K": 2, "D": 3, "DV": 2}
    inputs = leaves(*qkv(core.exact[0][0], **sizes))
    if core.offers("second derivatives"):
        assert gradgradcheck(core.attend, inputs)
    else:
        first = core.attend(*inputs).square().sum()
        (dq,) = torch.autograd.grad(first, inputs[0], create_graph=True)
        with pytest.raises(
            RuntimeError, match=core.lacks["second derivatives"]
        ):
            dq.sum().backward()


@each_core_with("gradients")
def test_transforms_of_functions_are_those_of_calls_or_refused(core):
    inputs = qkv(core.exact[0][0])
    stacked = [torch.stack((x, x)) for x in inputs]
    if core.offers("torch.func"):
        out = vmap(core.attend)(*stacked)[1]
        assert relative_error(out, core.attend(*inputs)) <= 1e-12
        dq = grad(lambda *x: core.attend(*x).sum())(*inputs)
        ones = torch.ones(B, H, T, DV).double()
        want = gradients(core.attend, inputs, ones)[0]
        assert relative_error(dq, want) <= 1e-12
    else:
        for transform, given in (vmap, stacked), (grad, inputs):
            with pytest.raises(RuntimeError, match=core.lacks["torch.func"]):
                transform(core.attend)(*given)


@cores(lambda core: not core.offers("gradients"))
def test_gradients_are_refused_and_not_missed_without_a_graph(core):
    inputs = leaves(*qkv())
    with pytest.raises(RuntimeError, match=core.lacks["gradients"]):
        core.attend(*inputs)
    with torch.no_grad():
        assert core.attend(*inputs).shape == (B, H, T, DV)


@each_core
@pytest.mark.parametrize("feature", ["bias", "dropout", "sinks", "softcap"])
def test_a_feature_that_a_core_lacks_is_refused(core, feature):
    value = {"bias": torch.zeros(T, S), "sinks": torch.zeros(H)}.get(
        feature, 0.5
    )
    if not core.offers(feature):
        error = TypeError if core.internal else ValueError
        with pytest.raises(error, match=core.lacks[feature]):
            core.attend(*qkv(torch.float32), **{feature: value})


@each_core_with("bias")
@pytest.mark.parametrize("kv_heads", [K, H])
def test_one_query_has_its_scale_and_its_bias(core, kv_heads):
    """A single query may take another way through a core than many."""
    inputs = qkv(T=1, K=kv_heads)
    bias = torch.randn(1, S).double()
    got = core.attend(*inputs, scale=0.7, bias=bias)
    assert relative_error(got, torch_sdpa(*inputs, bias, 0.7)) <= 1e-12


@each_core_with("dropout")
def test_dropout_takes_weights_away_and_scales_the_others(core):
    q, k, _ = qkv(sharp=0.1, B=1, H=1, K=1, T=31, S=37)
    ones = torch.eye(37).double()[None, None]
    weights = core.attend(q, k, ones)
    drawn = []
    for seed in 1, 1, 2:
        torch.manual_seed(seed)
        mixed = core.attend(q, k, ones, dropout=0.25)
        drawn.append(mixed != 0)
        torch.testing.assert_close(mixed, drawn[-1] * weights / 0.75)
        assert 0.7 < drawn[-1].double().mean() < 0.8
    assert torch.equal(*drawn[:2]) and not torch.equal(*drawn[1:])
    rows = {tuple(row.tolist()) for row in drawn[0].view(31, 37)}
    assert len(rows) == 31  # each row draws anew


@each_core_with("dropout", "gradients")
def test_gradients_go_through_what_dropout_left(core):
    def seeded(*inputs):
        torch.manual_seed(1)
        return core.attend(*inputs, dropout=0.4)

    sizes = {"sharp": 1, "B": 1, "T": 3, "S": 5, "H": 2, "K": 1}
    assert gradcheck(seeded, leaves(*qkv(**sizes, D=3, DV=2)))


@each_core_with("masks")
def test_the_order_of_keys_does_not_count(core):
    (q, k, v), mask = qkv(), torch.rand(B, H, T, S) > 0.4
    d_out = torch.randn(B, H, T, DV).double()
    attend = partial(results, core, d_out=d_out, **core.options[0])
    want = attend((q, k, v), mask=mask)
    order = torch.randperm(S)
    got = attend((q, k[:, :, order], v[:, :, order]), mask=mask[..., order])
    got[2:] = [x[:, :, order.argsort()] for x in got[2:]]
    assert max(map(relative_error, got, want)) <= 1e-12


@each_core
def test_strides_do_not_count_and_inputs_stay(core):
    dtype, bound = core.exact[0]
    inputs = qkv(dtype)
    mask = torch.rand(B, H, T, S) > 0.4 if core.offers("masks") else None
    d_out = torch.randn(B, H, T, DV).to(dtype)
    attend = partial(results, core, d_out=d_out, **core.options[0])
    strided = [x.mT.contiguous().mT for x in inputs]
    copies = [x.clone() for x in strided]
    errors = map(
        relative_error, attend(strided, mask=mask), attend(inputs, mask=mask)
    )
    assert max(errors) <= 10 * bound
    assert all(map(torch.equal, strided, copies))


@cores(lambda core: not core.offers("float64"))
def test_a_dtype_that_a_core_lacks_is_refused(core):
    with pytest.raises(TypeError, match=core.lacks["float64"]):
        core.attend(*qkv())


@each_core_with("compile")
def test_compiled_it_gives_the_same(core):
    torch.compiler.reset()
    inputs, options = qkv(torch.float32), core.options[-1]
    attend = partial(core.function, **options)
    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    for mask in None, causal_mask(T, S), RuleMask(Causal(), T, S, S - T):
        with torch.no_grad():
            got, want = compiled(*inputs, mask), attend(*inputs, mask)
        assert torch.equal(got, want)


@each_core
def test_on_meta_tensors_it_gives_shapes_or_refuses_them(core):
    inputs = [x.to("meta") for x in qkv()]
    d_out = torch.empty(B, H, T, DV, dtype=torch.float64, device="meta")
    lazy = RuleMask(Causal(), T, S, S - T, device="meta")
    if not core.offers("meta"):
        with pytest.raises(ValueError, match=core.lacks["meta"]):
            core.attend(*inputs)
        return
    for mask in None, lazy, lazy.dense():
        got = results(core, inputs, d_out, mask, **core.options[0])
        want = (B, H, T, DV), *(x.shape for x in inputs)
        assert tuple(x.shape for x in got) == want[: len(got)]


@cores(lambda core: core.blocks is not None)
def test_blocks_that_a_rule_hides_are_skipped_where_it_is_declared(core):
    inputs, flops = qkv(K=H, T=300, S=300), []
    for rule in Everything(), Window(2):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            mask = RuleMask(rule, 300, 300, 0)
            core.function(*inputs, mask, **core.options[-1])
        flops.append(counter.get_total_flops())
    assert (flops[1] < 0.7 * flops[0]) == core.blocks, "declare `blocks`"
