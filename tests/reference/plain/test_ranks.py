"""Attention on several ranks is attention on one, to the bit on processes."""

import time
import weakref
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import attnref
from attnref.core.masks import dense
from attnref.core.recurrence import chunked, units
from attnref.core.recurrence import scan as scan_of
from attnref.judge.threads import OnRanks
from attnref.numbers import ranks as numbers
from attnref.plain import gated_delta
from attnref.plain import tensor_parallel as tp
from attnref.plain.merge import merge
from attnref.plain.ranks import Group, Threads, on_processes, on_threads
from attnref.plain.relay import after_tail, relay
from attnref.plain.ring_attention import (
    causal,
    join,
    place,
    ring_attention,
    visible,
)
from attnref.plain.ulysses import ulysses
from tests.kit import layers as kit
from tests.kit.core import Core

B, H, K, D, DV = 3, 12, 4, 5, 7


def draw(*shapes, seed=0):
    """The same on all ranks: threads share the generator of torch."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator).double() for s in shapes]


def window(i, j):
    """As one writes it: pads, at -1, are just before the first token."""
    return (j <= i) & (j > i - 5)


def documents(i, j):
    """Documents begin at 0, 3 and 11, in the last row at 0, 7 and 8. Pads, at
    -1, get the number of the last one, as in PyTorch's indexing."""
    starts = torch.tensor([[3, 11], [3, 11], [7, 8]])[..., None]
    ids = (torch.arange(32) >= starts).sum(1)
    rows = torch.arange(B)[:, None, None]
    return (j <= i) & (ids[rows, i] == ids[rows, j])


def whole_text(T, K=K):
    """q, k, v, the gradient of the output, and sinks. Scores are sharp."""
    shapes = (H, D), (K, D), (K, DV), (H, DV)
    q, *rest = draw(*[(B, heads, T, width) for heads, width in shapes], (H,))
    return 3 * q, *rest


def with_pads(positions):
    """The second row begins with two pads, the last one with all but one."""
    pads = torch.tensor([[0], [2], [positions.max().item()]])
    return positions.expand(B, -1).where(positions >= pads, -1)


def answers(attention, *leaves, dout):
    """The output, and the gradients of all leaves."""
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    out = attention(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


def on_one(T, rule, K=K):
    """The oracle: PyTorch's attention, with the sink as a key of no value."""
    *qkv, dout, sinks = whole_text(T, K)
    positions = with_pads(torch.arange(T))
    keep = rule(positions[:, :, None], positions[:, None])
    keep &= (positions >= 0)[:, None]  # no query sees a pad
    keep = F.pad(keep, (0, 1), value=True)[:, None]  # B, 1, T, T + 1

    def attention(q, k, v, sinks):
        k, v = (x.repeat_interleave(H // K, dim=1) for x in (k, v))
        bias = torch.where(keep, 0.0, -torch.inf).double().repeat(1, H, 1, 1)
        bias = torch.cat(
            (bias[..., :T], bias[..., T:] + sinks[:, None, None]), -1
        )
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, bias)

    return answers(attention, *qkv, sinks, dout=dout)


def on_ranks(group, T, rule, how, inner=1, K=K):
    """What one rank computes of it: Ulysses among `inner` ranks, a ring of
    these. The last two are bytes that it sends."""
    *qkv, dout, sinks = whole_text(T, K)
    placed = place(T, group.size, how)[group.rank]
    positions = with_pads(torch.arange(T))[:, placed].where(placed >= 0, -1)
    parts = [x[:, :, placed] for x in qkv]
    dout = dout[:, :, placed] * (placed >= 0)[:, None]
    first = group.rank // inner * inner
    near = group.part(range(first, first + inner))
    far = group.part(range(group.rank % inner, group.size, inner))
    sent = []

    def attention(q, k, v, sinks):
        local = sinks.unflatten(0, (inner, -1))[near.rank]
        ring = partial(ring_attention, group=far, rule=rule, sinks=local)
        out = ulysses(q, k, v, positions, near, ring)
        sent.append(group.sent)
        return out

    if inner == 1:

        def attention(q, k, v, sinks):
            out = ring_attention(q, k, v, positions, group, rule, sinks)
            sent.append(group.sent)
            return out

    out, *grads, dsinks = answers(attention, *parts, sinks, dout=dout)
    sent.append(group.sent - sent[0])
    return out, *grads, group.total(dsinks), sent


def compare(results, T, n, how, want, bound=1e-12):
    placed = place(T, n, how)
    for parts, right in zip(zip(*results, strict=True), want, strict=False):
        whole = parts[0] if right.dim() == 1 else join(parts, placed)
        most = right.abs().max().item()
        assert_close(whole, right, rtol=0, atol=bound * most)


def ring_core(q, k, v, mask=None, *, scale=None, ranks=2):
    """A ring as a core, for any mask: its rule reads the mask at positions.

    Queries and keys are split in zigzag. A mask for each head makes rows of
    the heads, each with keys of its own.
    """
    if q.is_meta:
        raise ValueError("ranks compare sizes, which are numbers")
    B, H, T, _ = q.shape
    S, N = k.shape[2], max(q.shape[2], k.shape[2], 1)
    placed = place(N, ranks)
    keep = torch.ones(B, 1, T, S, dtype=torch.bool)
    keep = keep if mask is None else keep & dense(mask)
    heads = keep.shape[1]
    if heads > 1:
        k, v = (x.repeat_interleave(H // k.shape[1], 1) for x in (k, v))
        q, k, v = (x.flatten(0, 1)[:, None] for x in (q, k, v))
    keep = F.pad(keep, (0, N - S, 0, N - T)).flatten(0, 1)
    rows = torch.arange(len(keep))[:, None, None]

    def rule(i, j):
        return keep[rows, i.clamp(min=0), j.clamp(min=0)] & (i >= 0) & (j >= 0)

    def work(group, q, k, v):
        return ring_attention(q, k, v, placed[group.rank], group, rule)

    q = q if scale is None else q * (scale * q.shape[3] ** 0.5)
    parts = (F.pad(x, (0, 0, 0, N - x.shape[2])) for x in (q, k, v))
    parts = (x[:, :, placed].movedim(2, 0) for x in parts)
    out = join([*OnRanks.apply(work, *parts)], placed)[:, :, :T]
    return out.view(B, H, T, v.shape[3]) if heads > 1 else out


CORES = {
    "ring_attention": Core(
        ring_core,
        ({"ranks": 3}, {"ranks": 1}),
        lacks={
            "bias": "unexpected keyword argument 'bias'",
            "compile": "",  # nothing compiles threads
            "dropout": "unexpected keyword argument 'dropout'",
            "meta": "^ranks compare sizes",
            "second derivatives": "differentiate twice",
            "sinks": "unexpected keyword argument 'sinks'",  # tested above
            "softcap": "unexpected keyword argument 'softcap'",
            "torch.func": "override the setup_context staticmethod",
        },
        internal=True,
        blocks=None,
        slow=True,
    )
}

RULES = {"causal": causal, "window": window, "documents": documents}


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("rule", RULES)
def test_a_ring_is_attention_on_one_device(n, rule):
    for how in ("zigzag", "contiguous", "striped"):
        for T in (17, 8 * n)[: 1 + (how == "zigzag")]:  # 17: there are pads
            work = partial(on_ranks, T=T, rule=RULES[rule], how=how)
            compare(on_threads(work, n), T, n, how, on_one(T, RULES[rule]))


@pytest.mark.parametrize(
    ("n", "inner", "K"),
    [(2, 2, 4), (3, 3, 4), (4, 4, 2), (4, 4, 12), (4, 2, 3)],
)
def test_ulysses_and_the_hybrid_are_attention_on_one_device(n, inner, K):
    for name, how in zip(
        RULES, ("zigzag", "contiguous", "striped"), strict=True
    ):
        want = on_one(17, RULES[name], K)
        work = partial(
            on_ranks, T=17, rule=RULES[name], how=how, inner=inner, K=K
        )
        compare(on_threads(work, n), 17, n, how, want)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_bytes_of_attention_are_those_of_the_formula(n):
    sizes = {"ranks": n, "tokens": 17, "batch": B, "size": 8}
    work = partial(on_ranks, T=17, rule=causal, how="zigzag")
    want = numbers.ring_sent(kv_width=K * (D + DV), **sizes)
    for *_, sent in on_threads(work, n):
        assert sent == [want.forward, want.backward]
    for heads in (2, 3, K, H):
        want = numbers.ulysses_sent(
            n_heads=H, n_kv_heads=heads, head_dim=D, v_head_dim=DV, **sizes
        )
        for *_, sent in on_threads(partial(work, inner=n, K=heads), n):
            if n > 1:  # with one, it is the ring
                assert sent == [want.forward, want.backward]


def most_buffers(group):
    """How many tensors of keys that a rank receives into exist at once."""
    q, k, v = draw((B, H, 20, D), (B, K, 20, D), (B, K, 20, DV))
    parts = [x[:, :, group.rank :: group.size] for x in (q, k, v)]
    start, held, most = group.start, [], []

    def watch(out, into):
        got = [x for _, x in into if x.shape == parts[1].shape]
        held.extend(map(weakref.ref, got))
        most.append(sum(x() is not None for x in held))
        return start(out, into)

    group.start = watch
    at = torch.arange(group.rank, 20, group.size)
    with torch.no_grad():
        ring_attention(*parts, at, group)
    return max(most)


def test_a_rank_stores_the_keys_that_it_reads_and_those_that_arrive():
    """And its own: three in all, however many ranks there are."""
    assert on_threads(most_buffers, 5) == [2] * 5


def test_a_kernel_without_positions_computes_zigzag_in_three_calls():
    """All queries and the first half of earlier keys, the second half and all
    later keys, and a causal square of its own."""
    held, t = place(24, 4)[:, None], 6
    for r, s in product(range(4), repeat=2):
        call = torch.zeros(t, t, dtype=torch.bool)
        if s == r:
            call |= torch.ones_like(call).tril()
        elif s < r:
            call[:, : t // 2] = True
        else:
            call[t // 2 :] = True
        assert visible(causal, held[r], held[s])[0].equal(call)


def plain_ulysses(group):
    """With the attention of its own file, in bfloat16, beside a ring."""
    q, k, v, dout, _ = (x.bfloat16() for x in whole_text(16))
    placed = place(16, group.size)[group.rank]
    parts = [x[:, :, placed] for x in (q, k, v)]
    how = {"dout": dout[:, :, placed]}
    ring = partial(ring_attention, positions=placed, group=group)
    sdpa = partial(ulysses, positions=placed, group=group)
    return answers(sdpa, *parts, **how), answers(ring, *parts, **how)


def test_bfloat16_is_that_of_one_device():
    *qkv, dout, _ = (x.bfloat16().double() for x in whole_text(16))
    sdpa = partial(F.scaled_dot_product_attention, is_causal=True)
    want = answers(partial(sdpa, enable_gqa=True), *qkv, dout=dout)
    for results in zip(*on_threads(plain_ulysses, 4), strict=True):
        assert results[0][0].dtype == torch.bfloat16
        results = [[x.double() for x in rank] for rank in results]
        compare(results, 16, 4, "zigzag", want, 0.02)


# Heads split.

E, R, DN, DR, DV2 = 24, 11, 6, 4, 5


def turn(x):
    """RoPE of all tokens, with base 50."""
    table = attnref.rope_table(torch.arange(x.shape[2]), x.shape[3], theta=50.0)
    return attnref.apply_rope(x, *(t.to(x.dtype) for t in table))


def gqa_weights(K):
    shapes = (H * 4, E), (K * 4, E), (K * 4, E), (E, H * 4)
    x, dout, *weights = draw((B, 7, E), (B, 7, E), *shapes)
    return (
        x,
        dout,
        [w / w.shape[1] ** 0.5 * (1 + (w is weights[0])) for w in weights],
    )


def gqa_on_ranks(group, K):
    x, dout, weights = gqa_weights(K)
    some = partial(tp.rows, copied=True)
    cuts = [(tp.rows, H), (some, K), (some, K), (tp.columns, H)]
    parts = [
        cut(w, heads, group)
        for w, (cut, heads) in zip(weights, cuts, strict=True)
    ]
    sent = []

    def layer(x, *weights):
        out = tp.gqa(x, *weights, 4, group, turn)
        sent.append(group.sent)
        return out

    out, dx, *grads = answers(layer, x, *parts, dout=dout)
    sent.append(group.sent - sent[0])
    one = grads[1]  # without the sum over copies
    grads[1:3] = [tp.copies(K, group).total(g) for g in grads[1:3]]
    return out, dx, grads, one, sent


@pytest.mark.parametrize(
    ("n", "K"), [(1, 4), (2, 4), (3, 3), (4, 4), (4, 2), (4, 1), (3, 12)]
)
def test_gqa_with_its_heads_split_is_gqa(n, K):
    x, dout, weights = gqa_weights(K)
    layer = attnref.GroupedQueryAttention(
        d_model=E, n_heads=H, n_kv_heads=K, head_dim=4, rope_theta=50.0
    ).double()
    names = "q_proj", "k_proj", "v_proj", "o_proj"
    for name, w in zip(names, weights, strict=True):
        getattr(layer, name).weight = nn.Parameter(w)
    x.requires_grad_()
    want = layer(x)
    want.backward(dout)
    total = numbers.tensor_parallel_sent(
        ranks=n, tokens=7, d_model=E, batch=B, size=8
    )
    for r, (out, dx, grads, one, sent) in enumerate(
        on_threads(gqa_on_ranks, n, K)
    ):
        group = Rank(r, n)
        assert_close(out, want, rtol=0, atol=1e-12)
        assert_close(dx, x.grad, rtol=1e-12, atol=1e-12)
        for name, grad in zip(names, grads, strict=True):
            right = getattr(layer, name).weight.grad
            copied = name in ("k_proj", "v_proj")
            if name == "o_proj":
                right = tp.columns(right, H, group)
            else:
                right = tp.rows(right, K if copied else H, group, copied)
            assert_close(grad, right, rtol=1e-12, atol=1e-12)
        right = tp.rows(layer.k_proj.weight.grad, K, group, copied=True)
        assert torch.allclose(one, right) == (n <= K)
        assert sent == [total.forward, total.backward]


class Rank:
    """What `rows` reads of a group."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size


def mla_weights():
    shapes = (H * (DN + DR), E), (R + DR, E), (H * (DN + DV2), R), (E, H * DV2)
    x, dout, *weights = draw((B, 7, E), (B, 7, E), *shapes)
    return x, dout, [w / w.shape[1] ** 0.5 for w in weights]


def mla_on_ranks(group):
    x, dout, (q, down, up, o) = mla_weights()
    parts = tp.rows(q, H, group), down, tp.rows(up, H, group)
    parts += (tp.columns(o, H, group),)
    sent = []

    def layer(x, *weights):
        out = tp.mla(x, *weights, DN, DV2, group, turn)
        sent.append(group.sent)
        return out

    results = answers(layer, x, *parts, dout=dout)
    return results, [sent[0], group.sent - sent[0]]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_mla_with_its_heads_split_is_mla(n):
    x, dout, weights = mla_weights()

    def whole(x, q, down, up, o):
        latent = F.linear(x, down)
        k, v = (
            F.linear(latent[..., :R], up)
            .unflatten(2, (H, -1))
            .split((DN, DV2), dim=3)
        )
        rotated = turn(latent[:, None, :, R:]).expand(-1, H, -1, -1)
        k = torch.cat((k.transpose(1, 2), rotated), dim=3)
        q = F.linear(x, q).unflatten(2, (H, -1)).transpose(1, 2)
        q = torch.cat((q[..., :DN], turn(q[..., DN:])), dim=3)
        out = attnref.sdpa(q, k, v.transpose(1, 2), attnref.causal_mask(7))
        return F.linear(out.transpose(1, 2).flatten(2), o)

    out, dx, *grads = answers(whole, x, *weights, dout=dout)
    bytes_sent = numbers.tensor_parallel_sent(
        ranks=n, tokens=7, d_model=E, latent=R + DR, batch=B, size=8
    )
    for r, (results, sent) in enumerate(on_threads(mla_on_ranks, n)):
        group = Rank(r, n)
        want = [out, dx, *grads]
        want[2], want[4] = (tp.rows(w, H, group) for w in (want[2], want[4]))
        want[5] = tp.columns(want[5], H, group)
        for got, right in zip(results, want, strict=True):
            assert_close(got, right, rtol=1e-12, atol=1e-12)
        assert sent == [*bytes_sent]


# Recurrent layers.


def recurrent_inputs(T, kind):
    q, k, v, decay, beta, dout = draw(
        (B, 2, T, D), (B, 2, T, D), (B, 2, T, DV), (B, 2, T), (B, 2, T),
        (B, 2, T, DV),
    )  # fmt: skip
    gates = [-0.3 * decay.exp(), beta.sigmoid()]
    first = draw((B, 2, D, DV), seed=1)[0]
    return [q, units(k), v, *gates[: 1 + (kind == "delta")], first], dout


def reader(kind):
    if kind == "delta":
        return gated_delta.delta_rule
    return lambda q, k, v, decay, state: chunked(q, k, v, decay, state)


def relayed(group, cuts, kind, scan):
    (*inputs, first), dout = recurrent_inputs(cuts[-1], kind)
    mine = slice(*cuts[group.rank :][:2])
    parts = [x[:, :, mine] for x in inputs]
    sent = []

    def reads(*parts):
        *parts, first = parts
        first = None if scan else first
        out, end = relay(
            reader(kind), *parts, group=group, first=first, scan=scan
        )
        ends.append(end.detach())
        sent.append(group.sent)
        return out

    ends = []
    leaves = [*parts, first]
    leaves = [x.clone().requires_grad_() for x in leaves]
    out = reads(*leaves)
    used = leaves[: len(leaves) - scan]
    grads = torch.autograd.grad(out, used, dout[:, :, mine])
    return out.detach(), ends[0], grads, [sent[0], group.sent - sent[0]]


@pytest.mark.parametrize("kind", ["delta", "decay"])
@pytest.mark.parametrize("scan", [False, True])
def test_a_relayed_state_is_that_of_one_device(kind, scan):
    for cuts in ((0, 9), (0, 4, 9), (0, 1, 6, 11), (0, 3, 7, 8, 14)):
        n, T = len(cuts) - 1, cuts[-1]
        (*inputs, first), dout = recurrent_inputs(T, kind)
        first = first * (not scan)
        leaves = [x.clone().requires_grad_() for x in (*inputs, first)]
        *parts, start = leaves
        beta = parts[4] if kind == "delta" else None
        want, end = scan_of(*parts[:4], start, beta=beta)
        grads = torch.autograd.grad(want, leaves[: len(leaves) - scan], dout)
        results = on_threads(relayed, n, cuts, kind, scan)
        close = partial(assert_close, rtol=1e-12, atol=1e-12)
        close(torch.cat([out for out, *_ in results], dim=2), want.detach())
        close(results[-1][1], end.detach())
        for i, right in enumerate(grads[: len(inputs)]):
            close(torch.cat([got[i] for _, _, got, _ in results], 2), right)
        if not scan:
            close(sum(got[-1] for _, _, got, _ in results), grads[-1])
        bytes_sent = numbers.relay_sent(
            ranks=n, heads=2, key_dim=D, value_dim=DV, batch=B, size=8,
            scan=scan,
        )  # fmt: skip
        sent = [*zip(*(x for *_, x in results), strict=True)]
        if scan:  # the ranks at the ends send less
            assert max(sent[0]) <= bytes_sent.forward
        else:
            sizes = numbers.shapes_sent(n, 2)
            assert sent[0] == (*[bytes_sent.forward] * (n - 1), sizes)
            assert sent[1] == (0, *[bytes_sent.backward] * (n - 1))


def convolved(group, cuts):
    x, weight, dout = draw((B, cuts[-1], 5), (5, 1, 4), (B, 5, cuts[-1]))
    mine = slice(*cuts[group.rank :][:2])

    def conv(x):
        return F.conv1d(after_tail(x, 3, group).mT, weight, groups=5)

    return answers(conv, x[:, mine], dout=dout[..., mine])


def test_a_convolution_reads_the_tail_of_the_rank_before():
    cuts = (0, 3, 8, 13)
    x, weight, dout = draw((B, 13, 5), (5, 1, 4), (B, 5, 13))

    def conv(x):
        return F.conv1d(F.pad(x, (0, 0, 3, 0)).mT, weight, groups=5)

    out, dx = answers(conv, x, dout=dout)
    outs, grads = zip(*on_threads(convolved, 3, cuts), strict=True)
    assert_close(torch.cat(outs, dim=2), out)
    assert_close(torch.cat(grads, dim=1), dx)
    with pytest.raises(ValueError, match="2 tokens on a rank, but width=3"):
        on_threads(convolved, 3, (0, 2, 8, 13))


# One step of decoding, tokens split.


def decoded(group):
    q, k, v = draw((B, H, 1, D), (B, K, 11, D), (B, K, 11, DV))
    mine = slice(group.rank, None, group.size)  # token p: rank p mod n
    part = attnref.flash_lse(3 * q, k[:, :, mine], v[:, :, mine])
    outs, lses = (group.gather(x) for x in part)
    whole, sent = merge(outs.unbind(), lses.unbind())[0], group.sent
    # As engines do it: to each rank only the heads that it goes on with.
    own = (x.unflatten(1, (group.size, -1)).movedim(1, 0) for x in part)
    outs, lses = (group.swap(x).unbind() for x in own)
    return whole, sent, merge(outs, lses)[0], group.sent - sent


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_decode_step_with_split_tokens_is_one_of_all(n):
    q, k, v = draw((B, H, 1, D), (B, K, 11, D), (B, K, 11, DV))
    want = F.scaled_dot_product_attention(3 * q, k, v, enable_gqa=True)
    sizes = {"n_heads": H, "v_head_dim": DV, "batch": B, "size": 8}
    results = on_threads(decoded, n)
    for r, (out, sent, mine, less) in enumerate(results):
        assert_close(out, want, rtol=1e-12, atol=1e-12)
        assert_close(mine, want.chunk(n, dim=1)[r], rtol=1e-12, atol=1e-12)
        assert sent == numbers.decode_sent(ranks=n, **sizes)
        assert less == numbers.decode_sent(ranks=n, own_heads=True, **sizes)


# What goes wrong is said, and nobody waits in vain.


def broken(group, how, seconds=0):
    if group.rank == 1 and how == "dies":
        raise KeyError("rank 1 has no such file")
    if group.rank == 1 and how == "sleeps":
        return time.sleep(seconds)
    T = 5 if group.rank == 1 and how == "disagrees" else 4
    x = torch.zeros(2, 6, T, 8)
    places = torch.arange(T) + T * group.rank
    kv = x[:, : 4 if how == "heads" else 2]
    work = ulysses if how == "heads" else ring_attention
    try:
        return work(x, kv, kv, places, group)
    except RuntimeError as error:
        ENDED.append(str(error))
        raise


ENDED = []  # what the ranks that did not fail were told


REFUSED = {
    "dies": (KeyError, "no such file"),
    "sleeps": (TimeoutError, r"rank \d waited 1 s for rank 1"),
    "disagrees": (ValueError, r"rank 1 has sizes \[2, 6, 5, 8, 4, 2, 2, 5"),
    "heads": (ValueError, "4 ranks do not divide 6 query heads"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_a_rank_that_fails_stops_all(how):
    kind, text = REFUSED[how]
    ENDED.clear()
    with pytest.raises(kind, match=text):
        on_threads(broken, 4, how, seconds=1)
    if how == "dies":
        assert ENDED == ["rank 1 stopped"] * 3


def relay_of(B):
    q, v, gate = (torch.zeros(B, 2, 4, *more) for more in ((3,), (5,), ()))
    rule = gated_delta.delta_rule
    return lambda group: relay(rule, q, q, v, gate, gate, group=group)


def layer_of(T):
    w = torch.zeros(8, 8)
    parts = w, w[:4], w[:4], w
    return lambda group: tp.gqa(torch.zeros(2, T, 8), *parts, 4, group)


def tail_of(B):
    return lambda group: after_tail(torch.zeros(B, 5, 4), 3, group)


def test_states_of_other_sizes_are_refused_on_all_ranks():
    """Before the first of them is sent: with NCCL a group begins with a call
    of all its ranks."""
    with pytest.raises(ValueError, match=r"rank 1 has sizes \[2, 2, 3, 3, 4"):
        on_threads(lambda group: relay_of(1 + min(group.rank, 1))(group), 3)


@pytest.mark.parametrize("make", [layer_of, tail_of])
def test_a_message_of_another_size_is_refused(make):
    """Also where it could be broadcast: rank 0 has one row or token."""

    def work(group):
        return make(1 if group.rank == 0 else 2)(group)

    with pytest.raises(ValueError, match=r"rank \d sent \[.*\], not \["):
        on_threads(work, 3)


@pytest.mark.parametrize("work", [gqa_on_ranks, mla_on_ranks])
def test_query_heads_that_ranks_do_not_divide_are_refused(work):
    """Else two ranks would compute one of them, and the output be doubled."""
    args = (2,) if work is gqa_on_ranks else ()
    with pytest.raises(ValueError, match="12 heads cannot be split over 24"):
        on_threads(work, 24, *args)


def test_key_heads_that_cannot_be_split_are_refused():
    with pytest.raises(ValueError, match="6 heads cannot be split over 4"):
        tp.rows(torch.zeros(12, 3), 6, Rank(0, 4), copied=True)


def test_waiting_is_what_the_rules_count():
    for how in ("zigzag", "contiguous", "striped"):
        for T, n in ((17, 3), (32, 4), (5, 4)):
            held = place(T, n, how)[:, None]  # n rows
            table = [
                [visible(causal, held[r], held[r - step]).sum().item()
                 for r in range(n)]
                for step in range(n)
            ]  # fmt: skip
            assert numbers.pairs(T, n, how) == table


# The same on processes.

SAME = {
    "ring": (4, on_ranks, (17, documents, "zigzag")),
    "ring, two": (2, on_ranks, (17, window, "striped")),
    "ulysses": (4, on_ranks, (17, causal, "zigzag", 4, 2)),
    "hybrid": (4, on_ranks, (17, causal, "zigzag", 2, 3)),
    "gqa": (4, gqa_on_ranks, (2,)),
    "mla": (3, mla_on_ranks, ()),
    "relay": (3, relayed, ((0, 1, 6, 11), "delta", False)),
    "scan": (3, relayed, ((0, 1, 6, 11), "delta", True)),
    "convolution": (3, convolved, ((0, 3, 8, 13),)),
    "decode": (3, decoded, ()),
}


def all_of(group):
    torch.set_num_threads(1)
    return [
        work(group.part(range(n)), *args) if group.rank < n else None
        for n, work, args in SAME.values()
    ]


@pytest.mark.audit
def test_threads_are_processes_to_the_bit():
    threads, processes = on_threads(all_of, 4), on_processes(all_of, 4)
    for a, b in zip(threads, processes, strict=True):
        assert_close(a, b, rtol=0, atol=0)


@pytest.mark.audit
@pytest.mark.parametrize("how", ["dies", "sleeps", "disagrees"])
def test_a_process_that_fails_stops_all(how):
    late = r"rank \d got no answer from rank 1\n"
    text = {
        "dies": f"no such file|{late}",  # whichever error comes first
        "sleeps": late,
        "disagrees": "rank 1 has sizes",
    }
    with pytest.raises(Exception, match=text[how]):
        on_processes(broken, 4, how, 15, seconds=5)


def torchs_ring(group):
    """The output and the gradients of PyTorch's own ring, and of this one."""
    from torch.distributed.tensor.experimental._context_parallel import (
        _attention as theirs,
    )

    def attend(q, k, v, is_causal):
        return aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, is_causal
        )

    def backward(*, grad_out, query, key, value, out, logsumexp, is_causal):
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_out, query, key, value, out, logsumexp, 0.0, is_causal
        )

    aten, world = torch.ops.aten, torch.distributed.group.WORLD
    theirs._cp_options.convert_to_f32 = False
    T = 8 * group.size
    q, k, v, dout = draw(*[(B, H, T, 16)] * 4)
    placed = place(T, group.size)[group.rank]
    q, k, v, dout = (x[:, :, placed].contiguous() for x in (3 * q, k, v, dout))
    out, lse = theirs._templated_ring_attention(
        world, 2, attend, q, k, v, is_causal=True
    )
    grads = theirs._templated_ring_attention_backward(
        world, 2, backward, dout, "grad_out", q, k, v, out, lse, is_causal=True
    )
    ring = partial(ring_attention, positions=placed, group=group)
    return [out, *grads[:3]], answers(ring, q, k, v, dout=dout)


@pytest.mark.audit
def test_the_ring_is_that_of_pytorch():
    for want, got in on_processes(torchs_ring, 3):
        assert_close(got, want, rtol=1e-12, atol=1e-12)


def summed(q, k, v, state):
    """Linear attention without decay."""
    states = (k[..., None] * v[..., None, :]).cumsum(2) + state[:, :, None]
    return (q[..., None, :] @ states)[..., 0, :], states[:, :, -1]


def shapes():
    """Each subject on one rank, for its comments: threads are not traced."""
    group, at = Group([0], 0, Threads(1, 1)), torch.arange(kit.T)
    sizes = (kit.H, kit.D), (kit.K, kit.D), (kit.K, kit.DV)
    q, k, v = (torch.randn(kit.B, h, kit.T, d) for h, d in sizes)
    q.requires_grad_()
    ring_attention(q, k, v, at, group).sum().backward()
    ulysses(q, k, v, at, group)
    relay(summed, q, q, v.repeat(1, kit.H // kit.K, 1, 1), group=group)
    x, width = torch.randn(kit.B, kit.T, kit.E), kit.H * kit.D
    sizes = width, kit.K * kit.D, kit.K * kit.D
    weights = [torch.randn(rows, kit.E) for rows in sizes]
    tp.gqa(x, *weights, torch.randn(kit.E, width), kit.D, group)
    up = kit.H * (kit.DN + kit.DV), kit.R
    weights = (kit.H * (kit.DN + kit.DR), kit.E), (kit.R + kit.DR, kit.E), up
    weights = map(torch.randn, (*weights, (kit.E, kit.H * kit.DV)))
    tp.mla(x, *weights, kit.DN, kit.DV, group)
