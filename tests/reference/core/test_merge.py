import math
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from attnref import (
    Alibi,
    Causal,
    Documents,
    Everything,
    Prefix,
    RuleMask,
    Window,
    add_sinks,
    causal_mask,
    flash,
    flash_lse,
    merge,
    sdpa,
    split_kv,
    with_prefix,
)
from attnref.core.biases import place
from attnref.core.masks import dense
from tests.kit.attention import (
    DV,
    B,
    Blocks,
    D,
    H,
    K,
    Made,
    S,
    T,
    leaves,
    qkv,
)
from tests.kit.compare import relative_error
from tests.kit.core import Core
from tests.kit.refusals import refusals


def merged(q, k, v, mask, sizes, *, bias=None, sinks=None, **options):
    """Attention to parts of the keys of these sizes, merged; the sinks once."""
    full = q.shape[:3] + k.shape[2:3]
    bias = place(bias, mask, q, k)
    mask = q.new_ones((), dtype=torch.bool) if mask is None else dense(mask)
    parts = [k.split(sizes, 2), v.split(sizes, 2)]
    parts += [mask.expand(full).split(sizes, 3)]
    if bias is None:
        biases = [None] * len(sizes)
    else:
        biases = bias.dense().expand(full).split(sizes, 3)
    options = {"tile": (3, 2)} | options
    results = [
        flash_lse(q, *part, bias=bias, **options)
        for *part, bias in zip(*parts, biases, strict=True)
    ]
    out, lse = merge(*zip(*results, strict=True))
    return (out, lse) if sinks is None else add_sinks(out, lse, sinks)


def in_two(q, k, v, mask=None, **options):
    size = k.shape[2] // 3
    return merged(q, k, v, mask, [size, k.shape[2] - size], **options)[0]


OF_FLASH = {
    "second derivatives": "^flash has no second derivative; use sdpa$",
    "torch.func": "^flash does not run under torch.func, as in vmap or",
}
# Each part is rounded, then their mean.
ROUNDING = {"half": 3, "half_grouped": 3}
CORES = {
    "split_kv": Core(
        split_kv,
        tuple({"splits": n} for n in (3, 1, 2, S, 20, 4)),
        lacks=OF_FLASH,
        blocks=True,
        **ROUNDING,
    ),
    "merge": Core(
        in_two,
        ({}, {"tile": (16, 32)}),
        lacks=OF_FLASH,
        internal=True,
        blocks=True,
        **ROUNDING,
    ),
}


@given(
    st.lists(st.integers(0, S), max_size=4).map(sorted),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
)
def test_parts_of_any_size_are_merged_into_all(cuts, dense, seed):
    """Also one in which a query sees nothing, and one without keys."""
    torch.manual_seed(seed)
    q, k, v = qkv()
    mask = torch.rand(B, H, T, S) < dense
    ends = [0, *cuts, S]
    sizes = [b - a for a, b in pairwise(ends)]
    out, lse = merged(q, k, v, mask, sizes)
    assert relative_error(out, sdpa(q, k, v, mask)) <= 1e-12
    torch.testing.assert_close(lse, flash_lse(q, k, v, mask)[1])


def test_gradients_go_through_it():
    q, k, v = qkv()
    mask = torch.rand(B, H, T, S) > 0.5
    mask[:, :, 2, :4] = False  # of the first part this query sees nothing
    mask[:, :, 3] = False  # and this one no key at all
    # Merged again, and with a gradient of the log-sum-exp.
    copies = leaves(q, k, v)
    out, lse = merged(*copies, mask, [4, 2, 5])
    again, total = merge([out, out], [lse, lse])
    assert relative_error(again, out) <= 1e-12
    (again.sum() + total.exp().sum()).backward()
    assert all(x.grad.isfinite().all() for x in copies)
    small = leaves(torch.randn(3, 1, 2, 2, 5).double(), torch.randn(3, 1, 2, 2))
    assert gradcheck(
        lambda outs, lses: merge(outs.unbind(), lses.unbind()),
        [x.detach().double().requires_grad_() for x in small],
    )


def test_parts_of_torchs_kernel_are_merged_into_its_own_attention():
    # --8<-- [start:oracle]
    import torch.nn.functional as F

    q = 4 * torch.randn(3, 6, 5, 16)  # (B, H, T, D)
    k = torch.randn(3, 6, 11, 16)  # (B, H, S, D)
    v = torch.randn(3, 6, 11, 16)  # (B, H, S, D)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    keys = slice(0, 4), slice(4, 9), slice(9, 11)
    pieces = [kernel(q, k[:, :, i], v[:, :, i]) for i in keys]
    out, lse = merge([o for o, _ in pieces], [x for _, x in pieces])
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v))
    torch.testing.assert_close(lse, kernel(q, k, v)[1])

    # --8<-- [end:oracle]
    # --8<-- [start:order]
    def two(a, b):
        return merge([a[0], b[0]], [a[1], b[1]])

    first, second, third = pieces
    for some in (
        two(two(first, second), third),
        two(third, two(second, first)),
    ):
        torch.testing.assert_close(some, (out, lse))
    # --8<-- [end:order]


@pytest.mark.skipif(
    torch.__version__ < "2.5", reason="flex_attention came with PyTorch 2.5"
)
@pytest.mark.filterwarnings("ignore")  # it is not compiled here
def test_the_log_sum_exp_of_a_part_is_that_of_flex_attention():
    from torch.nn.attention import flex_attention as flex

    options = {"return_lse": True}
    if hasattr(flex, "AuxRequest"):  # its newer name
        options = {"return_aux": flex.AuxRequest(lse=True)}
    q, k, v = qkv(torch.float32, D=16, DV=16)
    parts = []
    for x, y in zip(k.split(4, dim=2), v.split(4, dim=2), strict=True):
        out, beside = flex.flex_attention(q, x, y, enable_gqa=True, **options)
        parts.append((out, getattr(beside, "lse", beside)))
    out, lse = merge(*zip(*parts, strict=True))
    torch.testing.assert_close(out, sdpa(q, k, v))
    torch.testing.assert_close(lse, flash_lse(q, k, v)[1])


def test_a_decode_step_in_parts():
    # --8<-- [start:step]
    from attnref import sdpa

    q = torch.randn(1, 32, 1, 128)  # one new token, 32 query heads
    k = torch.randn(1, 8, 999, 128)  # 999 tokens in the cache
    v = torch.randn(1, 8, 999, 128)
    out = split_kv(q, k, v, splits=16)
    torch.testing.assert_close(out, sdpa(q, k, v))
    # --8<-- [end:step]


def test_a_causal_prompt_after_a_shared_prefix():
    # --8<-- [start:prompt]
    from attnref import causal_mask

    q = 2 * torch.randn(3, 6, 5, 16)  # (B, H, T, D)
    k = torch.randn(3, 2, 5, 16)  # (B, K, T, D)
    v = torch.randn(3, 2, 5, 13)  # (B, K, T, Dv)
    first_k = torch.randn(1, 2, 17, 16)  # (1, K, P, D); once, not per row
    first_v = torch.randn(1, 2, 17, 13)  # (1, K, P, Dv)
    prefix = first_k, first_v
    out = with_prefix(q, prefix, k, v, causal_mask(5))  # (B, H, T, Dv)

    whole_k = torch.cat((first_k.expand(3, -1, -1, -1), k), dim=2)
    whole_v = torch.cat((first_v.expand(3, -1, -1, -1), v), dim=2)
    want = sdpa(q, whole_k, whole_v, causal_mask(5, 17 + 5))
    torch.testing.assert_close(out, want)
    # --8<-- [end:prompt]
    # --8<-- [start:average]
    shared = [x.expand(3, -1, -1, -1) for x in prefix]
    first, second = flash_lse(q, *shared), flash_lse(q, k, v, causal_mask(5))
    outs, lses = [first[0], second[0]], [first[1], second[1]]
    torch.testing.assert_close(merge(outs, lses)[0], want)
    mean = sum(outs) / 2
    assert (mean - want).norm() > 0.3 * want.norm()
    # --8<-- [end:average]
    # --8<-- [start:base]
    in_base_2 = [lse * 1.442695 for lse in lses]  # log2(e)
    mixed = merge(outs, in_base_2)[0]
    assert (mixed - want).norm() > 0.03 * want.norm()
    natural = [lse * 0.693147 for lse in in_base_2]  # ln(2)
    torch.testing.assert_close(merge(outs, natural)[0], want)
    # --8<-- [end:base]
    # --8<-- [start:twice]
    seen = causal_mask(5, 17 + 5)
    twice = with_prefix(q, prefix, whole_k, whole_v, seen)
    assert (twice - want).norm() > 0.03 * want.norm()
    # --8<-- [end:twice]
    # --8<-- [start:mask]
    try:
        with_prefix(q, prefix, k, v, causal_mask(5, 17 + 5))
        raise AssertionError("the mask is for 22 keys, and 5 are given")
    except ValueError as error:
        assert "does not broadcast" in str(error)
    # --8<-- [end:mask]


def test_a_layer_after_a_shared_prefix():
    # --8<-- [start:layer]
    from attnref import GroupedQueryAttention, KVCache

    torch.manual_seed(0)
    shape = {"d_model": 48, "n_heads": 6, "n_kv_heads": 2}
    layer = GroupedQueryAttention(**shape, rope_theta=10000.0).eval()
    for weight in layer.parameters():
        weight.data *= 4  # sharp: one key counts more than another
    prompt, own = torch.randn(1, 17, 48), torch.randn(3, 5, 48)

    with torch.no_grad():
        cache = KVCache(17)
        layer(prompt, cache=cache)
        stored = cache.stored  # keys and values, each (1, K, P, D)
        rows = torch.cat((prompt.expand(3, -1, -1), own), dim=1)
        expected = layer(rows)[:, 17:]

        def after_prefix(q, k, v, mask=None, *, scale=None, dropout=0.0):
            return with_prefix(q, stored, k, v, mask, scale=scale)

        layer.attend = after_prefix
        out = layer(own, positions=torch.arange(17, 17 + 5))
        torch.testing.assert_close(out, expected)
        # --8<-- [end:layer]
        # --8<-- [start:positions]
        with torch.no_grad():
            wrong = layer(own)  # as if the prefix were not there
        assert (wrong - expected).norm() > 0.1 * expected.norm()
        # --8<-- [end:positions]


def test_mla_in_parts():
    # --8<-- [start:mla]
    from attnref import KVCache, MultiHeadLatentAttention

    mla = MultiHeadLatentAttention(
        d_model=48,
        n_heads=6,
        kv_lora_rank=20,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=8,
    ).eval()

    tokens, outs = torch.randn(3, 23, 48), []
    for mla.attend in sdpa, split_kv:
        cache = KVCache(23)
        with torch.no_grad():
            mla(tokens[:, :22], cache=cache, form="absorbed")
            outs.append(mla(tokens[:, 22:], cache=cache, form="absorbed"))
    torch.testing.assert_close(*outs)
    # --8<-- [end:mla]


def test_a_part_without_keys():
    # --8<-- [start:empty]
    zeros, none = torch.zeros(1, 1, 1, 4), torch.full((1, 1, 1), -torch.inf)
    by_formula = torch.stack((none, none)).softmax(0)  # -inf - (-inf)
    assert by_formula.isnan().all()
    out, lse = merge([zeros, zeros], [none, none])
    assert out.eq(0).all() and lse.eq(-torch.inf).all()

    some, high = torch.randn(1, 1, 1, 4), torch.zeros(1, 1, 1)
    nan = torch.full_like(zeros, torch.nan)
    out, lse = merge([some, nan], [high, none])  # it does not count
    assert torch.equal(out, some) and torch.equal(lse, high)
    assert merge([some, zeros], [high, -none])[0].isnan().all()  # +inf
    # --8<-- [end:empty]


def test_the_answer_of_the_exercise():
    outs = torch.tensor([[[[0.0]]]]), torch.tensor([[[[8.0]]]])
    lses = torch.tensor([[[2.0]]]), torch.tensor([[[2 + math.log(3)]]])
    out, lse = merge(outs, lses)
    torch.testing.assert_close(out.item(), 6.0)
    torch.testing.assert_close(lse.item(), 2 + math.log(4))


class Read(TorchDispatchMode):
    """The elements of the right factors, keys and values, of all products."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket is torch.ops.aten.bmm:
            self.elements += args[1].numel()
        elif func is torch.ops.aten.baddbmm_.default:
            self.elements += args[2].numel()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rows", [1, 3, 7])
@torch.no_grad()
def test_the_keys_of_a_prefix_are_read_once(rows):
    """The factor that the page's table of bytes gives."""
    P, own, width = 211, 13, D + DV
    q, k, v = qkv(B=rows, T=1, S=own)
    prefix = torch.randn(1, K, P, D), torch.randn(1, K, P, DV)
    prefix = tuple(x.to(q.dtype) for x in prefix)
    with Read() as shared:
        with_prefix(q, prefix, k, v)
    with Read() as apart:
        whole = (x.expand(rows, -1, -1, -1) for x in prefix)
        flash(q, *(torch.cat(x, 2) for x in zip(whole, (k, v), strict=True)))
    assert shared.elements == K * width * (P + rows * own)
    assert apart.elements == K * width * rows * (P + own)


@pytest.mark.parametrize("part", ["softcap", "sinks", "both"])
def test_after_a_prefix_scores_are_capped_and_sinks_count_once(part):
    q, k, v = qkv()
    prefix = tuple(torch.randn(1, K, 5, n).to(q.dtype) for n in (D, DV))
    options = {"softcap": 2.0, "sinks": torch.randn(H).double()}
    options = options if part == "both" else {part: options[part]}
    joined = (
        torch.cat((first.expand(B, -1, -1, -1), own), dim=2)
        for first, own in zip(prefix, (k, v), strict=True)
    )
    want = sdpa(q, *joined, causal_mask(T, 5 + S), **options)
    got = with_prefix(q, prefix, k, v, causal_mask(T, S), **options)
    assert relative_error(got, want) <= 1e-12
    with pytest.raises(TypeError, match="unexpected keyword argument 'bias'"):
        with_prefix(q, prefix, k, v, bias=Alibi(H))


def test_rounding_does_not_grow_with_the_number_of_parts():
    q, k, v = qkv(torch.bfloat16, T=1, S=512, D=64)
    exact = sdpa(*(x.double() for x in (q, k, v)))
    once = relative_error(exact.bfloat16(), exact)
    for splits in (1, 8, 64, 512):
        got = split_kv(q, k, v, splits=splits)
        assert relative_error(got, exact) <= 3 * once


def test_the_keys_are_cut_into_so_many_parts(monkeypatch):
    sizes, q, k, v = [], *qkv(S=20)
    monkeypatch.setattr(
        "attnref.core.merge.flash_lse",
        lambda q, k, *rest, **how: (
            sizes.append(k.shape[2]) or flash_lse(q, k, *rest, **how)
        ),
    )
    for length, options, want in (
        (S, {"splits": 1}, [11]),
        (S, {"splits": 2}, [6, 5]),
        (20, {}, [5, 5, 5, 5]),  # 4 unless given
        (S, {"splits": 4}, [3, 3, 3, 2]),
        (S, {"splits": 20}, [1] * 11),
        (0, {}, [0]),
    ):
        sizes.clear()
        split_kv(q, k[:, :, :length], v[:, :, :length], **options)
        assert sizes == want


def test_the_maximum_is_a_constant_for_autograd():
    (q, k, v), nodes, names = leaves(*qkv()), [], set()
    nodes.append(merged(q, k, v, torch.ones(T, S).bool(), [4, 7])[0].grad_fn)
    while nodes:
        node = nodes.pop()
        names.add(type(node).__name__)
        nodes += [
            following for following, _ in node.next_functions if following
        ]
    assert "ExpBackward0" in names and "AmaxBackward0" not in names


def shared_and_own(P=17):
    q, k, v = qkv()
    prefix = tuple(
        torch.randn(1, K, P, width, dtype=q.dtype) for width in (D, DV)
    )
    whole = tuple(
        torch.cat((x.expand(B, -1, -1, -1), own), dim=2)
        for x, own in zip(prefix, (k, v), strict=True)
    )
    return q, prefix, k, v, whole


def test_with_a_shared_prefix_it_is_sdpa_over_all_keys():
    q, prefix, k, v, whole = shared_and_own()
    own = torch.rand(B, 1, T, S) > 0.4
    own[0, :, 2] = False  # this query sees the prefix alone
    seen = torch.cat((own.new_ones(B, 1, T, 17), own), dim=3)
    for mask, all_keys in ((None, None), (own, seen)):
        got = with_prefix(q, prefix, k, v, mask, scale=0.4)
        want = sdpa(q, *whole, all_keys, scale=0.4)
        assert relative_error(got, want) <= 1e-12
    lazy = RuleMask(Causal(), T, S, S - T)
    seen = torch.cat((own.new_ones(T, 17), causal_mask(T, S)), dim=1)
    want = sdpa(q, *whole, seen)
    wide = RuleMask(Window(17 + S), T, S, S - T)  # it reaches the first token
    both = RuleMask(Prefix(0) & Everything(), T, S, S - T)
    for mask in lazy, wide, both:
        got = with_prefix(q, prefix, k, v, mask)
        assert relative_error(got, want) <= 1e-12


def test_a_prefix_without_any_new_query():
    q, prefix, k, v, _ = shared_and_own()
    assert with_prefix(q[:, :, :0], prefix, k, v).shape == (B, H, 0, DV)


@torch.no_grad()
def test_a_prefix_is_not_repeated_for_each_row():
    q, prefix, k, v, _ = shared_and_own(4001)
    with Made(q, *prefix, k, v) as made:
        with_prefix(q, prefix, k, v)
    assert made.largest < prefix[0].nbytes


# --8<-- [start:stripes]
def striped(rank, world, q, k, v, mask, sinks, file, results):
    """What process `rank` of `world` does in a decode step: its own keys, and
    then the merge of all parts."""
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=world
    )
    own = slice(rank, None, world)  # token p is stored by process p % world
    part = flash_lse(q, k[:, :, own], v[:, :, own], mask[..., own])
    every = [[torch.empty_like(x) for _ in range(world)] for x in part]
    for parts, mine in zip(every, part, strict=True):
        dist.all_gather(parts, mine)
    out, lse = merge(*every)
    results[rank].copy_(add_sinks(out, lse, sinks)[0])  # once, not per part
    dist.destroy_process_group()


# --8<-- [end:stripes]


@pytest.mark.parametrize("kind", ["gqa", "mla", "one token"])
@pytest.mark.parametrize(
    ("dtype", "bound"),
    [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.02)],
    ids=str,
)
def test_two_processes_store_every_other_key(kind, dtype, bound, tmp_path):
    """Rows begin with pads that hold noise, and each head has a sink. With a
    single token, the second process has no key at all."""
    S, heads = (1, 3) if kind == "one token" else (3001, 1 + (kind == "gqa"))
    q, k, v = qkv(dtype, B=3, K=heads, T=1, S=S, D=19)
    v = k[..., :DV] if kind == "mla" else v  # the latent is key and value
    mask = torch.ones(3, 1, 1, S, dtype=torch.bool)
    if S > 1:
        mask[1, ..., :2], mask[2, ..., :1013] = False, False
        k = k.masked_fill(~mask.mT, 1e4)
    sinks = torch.tensor([12.0, -2.0, 16.0, 9.0, 14.0, 3.0]).to(dtype)
    results = torch.zeros(2, 3, H, 1, DV, dtype=dtype).share_memory_()
    given = (2, q, k, v, mask, sinks, tmp_path / "group", results)
    torch.multiprocessing.start_processes(
        striped, given, nprocs=2, start_method="fork"
    )
    keys, values = (x.double().repeat_interleave(H // heads, 1) for x in (k, v))
    scores = q.double() @ keys.mT * 19**-0.5
    scores = scores.masked_fill(~mask, -torch.inf)
    column = sinks.double()[:, None, None].expand(3, H, 1, 1)
    weights = torch.cat((scores, column), dim=-1).softmax(dim=-1)
    want = weights[..., :-1] @ values
    for each in results:
        assert relative_error(each, want) <= bound
    each_part = [
        flash_lse(
            q, *(x[:, :, i::2] for x in (k, v)), mask[..., i::2], sinks=sinks
        )
        for i in range(2)
    ]
    twice = merge(*zip(*each_part, strict=True))[0]
    assert relative_error(twice, want) > 0.05  # a sink in each process


HIDING = Causal() & Documents(torch.zeros(S).int()), Blocks()


@refusals(
    """
    >>> merge([], [])
    ValueError: 0 outputs, 0 log-sum-
    >>> merge([q], [q[..., 0], q[..., 0]])
    ValueError: 1 outputs, 2 log-sum-exps
    >>> merge([q], [q[..., :1]])
    ValueError: an output of shape (2, 6, 7, 5) with a log-sum-exp of shape
        (2, 6, 7, 1)
    >>> merge([q, q[:1]], [q[..., 0], q[:1, ..., 0]])
    ValueError: the first output has shape (2, 6, 7, 5)
    >>> split_kv(q, k, v, splits=0)
    ValueError: splits=0 must be at least 1
    >>> with_prefix(q, (k, v), k, v)
    ValueError: k of the prefix has shape (2, 3, 11, 5); it needs (1, 3, P, 5)
    >>> with_prefix(q, (k[:1, :1], v[:1, :1]), k, v)
    ValueError: k of the prefix has shape (1, 1, 11, 5); it needs (1, 3, P, 5)
    >>> with_prefix(q, (k[:1], v[:1, ..., :9]), k, v)
    ValueError: v of the prefix has shape (1, 3, 11, 9); it needs (1, 3, P, 13)
    >>> with_prefix(q, (k[:1],), k, v)
    ValueError: prefix holds 1 tensors, not k and v
    >>> with_prefix(q[0], (k[:1], v[:1]), k, v)
    ValueError: q has shape (6, 7, 5); it needs 4 axes
    >>> with_prefix(q, (k[:1], v[:1]), k, v, RuleMask(Window(21), T, S, S - T))
    ValueError: Window(size=21, first=0) may hide a part of the prefix of 11
    >>> with_prefix(q, (k[:1], v[:1]), k, v, RuleMask(HIDING[0], T, S, S - T))
    ValueError: Documents(...) may hide a part of the prefix of 11 tokens
    >>> with_prefix(q, (k[:1], v[:1]), k, v, RuleMask(HIDING[1], T, S, S - T))
    ValueError: Blocks() may hide a part of the prefix of 11 tokens
    """
)
def test_bad_input_is_refused(call, error, message):
    q, k, v = qkv()
    with pytest.raises(error, match=message):
        eval(call)
