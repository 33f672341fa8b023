"""Each plain form gives what the package gives, and what torch gives."""

import ast
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import attnref
from attnref.layers.gated_delta import GatedDeltaNet
from attnref.layers.lightning import LightningAttention
from attnref.plain import (
    alibi,
    gated_delta,
    gqa,
    kv_cache,
    lightning,
    llama,
    masks,
    mla,
    order,
    rope,
)
from attnref.plain import scaling as scaled
from attnref.plain.attention import attention
from attnref.plain.cross import CrossAttention
from attnref.plain.delta_backward import delta_backward
from attnref.plain.dsa import DSA
from attnref.plain.flash import flash, flash_backward
from attnref.plain.index_loss import index_loss, recall, warm_up
from attnref.plain.merge import merge
from attnref.plain.mha import MHA
from attnref.plain.mqa import MQA
from attnref.plain.ring import RingKVCache, sees
from attnref.plain.sample import sample
from attnref.plain.sinks import (
    add_sinks,
    attention_with_sinks,
    streaming_mask,
    streaming_positions,
)
from attnref.plain.softmax import online_softmax, softmax
from attnref.plain.window import window_attention
from sitekit import ROOT
from tests.kit import plain as kit
from tests.kit.attention import Made
from tests.kit.layers import DN, DR, DV, LATENT, Q, R, sharp, tokens
from tests.kit.memory import Held, allocated
from tests.kit.plain import FORMS, outputs

B, T, S, H, K, D, C = 3, 7, 11, 10, 5, 6, 17
E = H * D
VALID = torch.arange(T) >= torch.tensor([[0], [1], [T - 2]])  # pads before


def equal(ours, theirs, bound=1e-12):
    assert_close(ours, theirs, rtol=bound, atol=bound)


def same_in_all_ways(ours, theirs, **options):
    """With the same weights: at once and in chunks, with and without pads."""
    x = tokens(B, T, E)
    for valid in (None, VALID):
        mask = None if valid is None else attnref.padding_mask(valid)
        for got in outputs(ours, theirs, x, valid, (3, 1, 2, 1), **options):
            equal(got, theirs(x, mask=mask))


def test_what_two_files_need_is_in_both_in_the_same_words():
    texts = defaultdict(dict)
    for path in (ROOT / "attnref" / "plain").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                part = ast.get_source_segment(text, node)
                texts[node.name][path.stem] = part
    for other in ("mla", "dsa", "deepseek_v4"):  # of other pairs
        del texts["rope"][other]
    for name, files in {
        "rope": {"rope", "gqa", "llama"},
        "KVCache": {"kv_cache", "gqa", "llama", "mla", "dsa"},
        "GQA": {"gqa", "llama"},
    }.items():
        assert files <= texts[name].keys()
    for name, places in texts.items():
        assert len({*places.values()}) == 1, name


def test_softmax_is_that_of_the_package():
    x = 300 * torch.randn(B, T, S).double()
    x[0, 1] = x[0, 2, :5] = -torch.inf
    equal(softmax(x), attnref.softmax(x))
    equal(softmax(x, dim=1), attnref.softmax(x, dim=1))
    for chunk in (1, 2, 5, 2 * S):
        equal(online_softmax(x, chunk), attnref.softmax(x))


def test_softmax_has_the_gradients_of_torch():
    x = torch.randn(B, T, S).double().requires_grad_()
    both = (softmax(x), x.softmax(dim=-1))
    grads = [torch.autograd.grad(w.square().sum(), x)[0] for w in both]
    equal(*grads)


@pytest.fixture
def scores():
    """q, k, v that are sharp, and a mask that differs by head: to some queries
    every key, or the first of them, is hidden."""
    q, k, v = tokens(B, H, T, D), tokens(B, H, S, D), tokens(B, H, S, DV)
    mask = torch.rand(B, H, T, S) > 0.4
    mask[0, 0, 1] = mask[:, 1, :, : S - 3] = False
    return 4 * q, k, v, mask


def test_attention_is_that_of_the_package_and_of_torch(scores):
    *qkv, mask = scores
    for some in (None, mask, mask[:, :1, :1], mask[1, 0]):
        out = attention(*qkv, some)
        equal(out, attnref.sdpa(*qkv, some))
        equal(out, F.scaled_dot_product_attention(*qkv, some))


def biased(q, k, v, mask=None):
    return alibi.biased_attention(q, k, v, None, None, mask)


@pytest.mark.parametrize("form", [attention, biased])
def test_a_mask_with_more_axes_than_the_queries_is_refused(form):
    q, k, v = tokens(B, T, D), tokens(B, S, D), tokens(B, S, DV)
    mask = torch.rand(B, T, S) > 0.4
    equal(form(q, k, v, mask), F.scaled_dot_product_attention(q, k, v, mask))
    for more in (mask[:, None], mask[:, None, :1], mask[:1, None]):
        with pytest.raises(RuntimeError, match=r"sizes provided \(3\)"):
            form(q, k, v, more)


def test_flash_and_merge_are_those_of_the_package(scores):
    q, k, v, mask = scores
    for some in (None, mask, mask[:, :1, :1], mask[1, 0]):
        for far in (1, 200):  # scores are large, and rows far apart
            want = attnref.flash_lse(far * q, k, v, some)
            equal(flash(far * q, k, v, some), want, 1e-10)
            for tile in ((2, 3), (T, S), (3, 1)):
                equal(flash(far * q, k, v, some, tile), want, 1e-10)
    spans = slice(2), slice(2, 3), slice(3, S)
    for far in (1, 200):  # exp(lse) would overflow
        row, want = far * q, attnref.flash_lse(far * q, k, v, mask)
        parts = [
            flash(row, k[:, :, j], v[:, :, j], mask[..., j]) for j in spans
        ]
        equal(merge(*zip(*parts, strict=True)), want, 1e-10)
    nothing = torch.full((B, H, T), -torch.inf)
    assert (merge([q], [nothing])[0] == 0).all()  # whatever q is
    out, lse = flash(q, k, v, mask)
    unread = torch.full_like(out, torch.nan)  # a kernel left it as it was
    equal(merge([out, unread], [lse, nothing]), (out, lse))


@pytest.mark.parametrize("factor", [1, 200])  # scores apart by hundreds
@pytest.mark.parametrize("sunk", [False, True])
def test_the_backward_pass_in_tiles_is_that_of_autograd(scores, factor, sunk):
    q, k, v, mask = scores
    q = factor * q
    sinks = 3 * tokens(H) if sunk else None
    if sunk:
        sinks[0] = -torch.inf  # none; some rows of this head see nothing
    d_out = tokens(B, H, T, v.shape[-1])
    for some in (None, mask, mask[:, :1, :1], mask[1, 0]):
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        options = {}
        if sunk:
            inputs.append(sinks.clone().requires_grad_())
            options["sinks"] = inputs[-1]
        whole = attnref.sdpa(*inputs[:3], some, **options)
        want = torch.autograd.grad(whole, inputs, d_out)
        out, lse = flash(q, k, v, some)
        if sunk:
            out, lse = add_sinks(out, lse, sinks)
        saved = d_out, q, k, v, out, lse, some, sinks
        for tile in ((2, 3), (T, S), (3, 1)):
            equal(flash_backward(*saved, tile), want, 1e-10)
    half = [x.to(torch.bfloat16) for x in (d_out, q, k, v)]
    out, lse = flash(*half[1:], mask)
    grads = flash_backward(*half, out, lse, mask)
    assert {x.dtype for x in grads} == {torch.bfloat16}


def test_sinks_are_those_of_the_package(scores):
    *qkv, mask = scores
    logits = 3 * tokens(H)
    logits[0] = -torch.inf  # none; to a query of this head no key is left
    for some in (None, mask, mask[:, :1, :1]):
        want = attnref.sdpa(*qkv, some, sinks=logits)
        equal(attention_with_sinks(*qkv, logits, some), want)
        out, lse = add_sinks(*flash(*qkv, some), logits)
        equal(out, want, 1e-10)
        equal(lse, attnref.flash_lse(*qkv, some, sinks=logits)[1], 1e-10)
    lazy = attnref.RuleMask(attnref.Window(3), T, S, S - T).dense()
    assert (streaming_mask(T, S, 0, 3) == lazy).all()
    assert streaming_mask(1, S, S, 1).all()
    for length, want in ((3, [0, 1, 2]), (9, [0, 1, 6, 7, 8])):
        left, places = streaming_positions(length, 2, 3)
        assert left.tolist() == want
        assert places.tolist() == [*range(len(want))]


def test_biases_and_softcap_are_those_of_the_package(scores):
    *qkv, mask = scores
    bias = alibi.alibi(H, T, S)
    for some, options in (
        (None, {"softcap": 3.0}),
        (mask, {"bias": attnref.Alibi(H)}),
        (mask, {"softcap": 3.0, "bias": attnref.Alibi(H)}),
    ):
        added = bias if "bias" in options else None
        got = alibi.biased_attention(*qkv, added, options.get("softcap"), some)
        equal(got, attnref.sdpa(*qkv, some, **options))


@pytest.mark.parametrize("added", ["bias", "sinks", "order"])
def test_what_is_added_to_scores_may_be_float32_in_bfloat16(added):
    qkv = [tokens(B, H, n, D).bfloat16() for n in (T, S, S)]
    sinks, mask = 3 * torch.randn(H), attnref.causal_mask(T, S)

    def run(*qkv):
        if added == "bias":
            return alibi.biased_attention(
                *qkv, alibi.alibi(H, T, S), None, mask
            )
        if added == "sinks":
            return attention_with_sinks(*qkv, sinks, mask)
        ones, gate = qkv[0].new_ones(D), torch.ones_like(qkv[0])
        args = ones, ones, nn.Identity(), 3.0, sinks, mask
        return order.todays_heads(*qkv, gate, *args)

    out, want = run(*qkv), run(*(y.double() for y in qkv))
    assert out.dtype == torch.bfloat16
    equal(out.double(), want, 0.03)


def test_scaled_frequencies_are_those_of_the_package():
    for D, theta in ((64, 1e4), (128, 5e5), (6, 10.0), (2, 1e4)):
        f = scaled.frequencies(D, theta)
        pairs = [
            (scaled.linear(f, 8.0), attnref.PositionInterpolation(8.0)),
            (scaled.ntk(f, 8.0), attnref.Ntk(8.0)),
            (scaled.llama3(f, 8.0, 8192), attnref.Llama3(8.0, 1.0, 4.0, 8192)),
        ]
        # In a text of 4 tokens even the fastest pair turns less than 0.7 times,
        # and the ramp has no width.
        yarns = ((40.0, 4096, 32.0, 1.0), (32.0, 4096, 1.0, 1.0))
        for factor, length, *turns in (*yarns, (8.0, 4, 32.0, 0.7)) * (D > 2):
            ours = attnref.Yarn(factor, length, *turns)
            slowed, size = scaled.yarn(f, factor, length, *turns)
            assert size == pytest.approx(ours.table_scale, rel=1e-15)
            pairs.append((slowed, ours))
            x, at = tokens(B, H, T, D), torch.randint(9999, (T,))
            table = attnref.rope_table(at, D, theta=theta, scaling=ours)
            want = attnref.apply_rope(x, *table)
            equal(scaled.rotate(x, at, slowed, size), want)
        for got, ours in pairs:
            equal(got, ours.slowed(f, theta), 1e-15)


def test_the_order_of_the_plain_form_is_that_of_a_layer():
    config = {"model_type": "qwen3", "num_hidden_layers": 1, "head_dim": 8}
    config |= {"hidden_size": H * 8, "num_attention_heads": H}
    config |= {"num_key_value_heads": H, "rope_theta": 50.0}
    r = replace(attnref.attention_of(config), softcap=3.0, with_sinks=True)
    layer = attnref.ConfiguredAttention(replace(r, gate="in q_proj")).double()
    for weight in layer.parameters():
        nn.init.normal_(weight)
    layer.o_proj.weight.data.copy_(torch.eye(H * 8))
    x = torch.randn(3, T, H * 8).double()
    q, gate = order.query_and_gate(layer.q_proj(x), H)
    k, v = (
        project(x).unflatten(-1, (H, 8)).transpose(1, 2)
        for project in (layer.k_proj, layer.v_proj)
    )
    out = order.todays_heads(
        *(q, k, v, gate),
        layer.q_norm.weight,
        layer.k_norm.weight,
        lambda x: rope.rope(x, torch.arange(T), 50.0),
        3.0,
        layer.sinks,
        attnref.causal_mask(T),
    )
    equal(out.transpose(1, 2).flatten(2), layer(x), 1e-6)


def test_a_norm_of_all_heads_is_that_of_torch_before_they_are_split():
    x, weight = tokens(B, T, H * D), torch.rand(H * D).double()
    heads = x.unflatten(-1, (H, D)).transpose(1, 2)
    ours = order.norm_of_all_heads(heads, weight).transpose(1, 2).flatten(2)
    equal(ours, F.rms_norm(x, (H * D,), weight, 1e-6))


@pytest.mark.parametrize("form", [attention, lambda *x: flash(*x)[0]])
def test_a_query_without_keys_gives_zeros_and_the_right_gradients(scores, form):
    *inputs, mask = scores
    inputs = [x.requires_grad_() for x in inputs]
    ours, theirs = (f(*inputs, mask) for f in (form, attnref.sdpa))
    assert (ours[0, 0, 1] == 0).all()
    grads = (
        torch.autograd.grad(o.square().sum(), inputs) for o in (ours, theirs)
    )
    equal(*grads, 1e-10)


def test_masks_are_those_of_the_package():
    i, j = torch.arange(S - T, S)[:, None], torch.arange(S)
    assert_close(masks.causal_mask(T, S), attnref.causal_mask(T, S))
    assert_close(masks.causal_mask(T), attnref.causal_mask(T))
    assert_close(masks.padding_mask(VALID), attnref.padding_mask(VALID))
    for size in (1, 3, 2 * S):
        window = attnref.Window(size)(i, j)
        assert_close(masks.window_mask(T, S, size), window)
    ids = torch.randint(0, 3, (B, S))
    rule = attnref.Causal() & attnref.Documents(ids)
    assert_close(masks.document_mask(ids), rule(j[:, None], j))


@pytest.mark.parametrize(
    ("file", "layout"),
    [(rope, "half"), (gqa, "half"), (llama, "half"), (mla, "interleaved")],
)
def test_rope_is_that_of_the_package(file, layout):
    at = torch.tensor([0, 1, 2, 70, 3, 99_999, 5])
    for x, bound in (
        (tokens(B, H, T, 6), 1e-10),
        (torch.randn(B, H, T, 6), 1e-6),
    ):
        for options in ({}, {"theta": 50.0}):
            table = attnref.rope_table(at, 6, **options)
            want = attnref.apply_rope(x, *table, layout=layout)
            equal(file.rope(x, at, **options), want, bound)


def test_mha_is_that_of_the_package_and_of_torch():
    theirs = sharp(attnref.MultiHeadAttention(d_model=E, n_heads=H))
    ours, x = MHA(E, H).double(), tokens(B, T, E)
    ours.load_state_dict(theirs.state_dict())
    equal(ours(x), theirs(x))
    torchs = nn.MultiheadAttention(E, H, bias=False, batch_first=True)
    *rows, o_proj = ours.state_dict().values()
    joined = {"in_proj_weight": torch.cat(rows), "out_proj.weight": o_proj}
    torchs.double().load_state_dict(joined)
    equal(ours(x), torchs(x, x, x, attn_mask=~masks.causal_mask(T))[0])
    equal(ours.eval()(x), theirs(x))


def test_mqa_is_that_of_the_package_and_of_torch():
    theirs = sharp(attnref.MultiQueryAttention(d_model=E, n_heads=H))
    ours, x = MQA(E, H).double(), tokens(B, T, E)
    ours.load_state_dict(theirs.state_dict())
    equal(ours(x), theirs(x))
    cache = kv_cache.KVCache(T)
    chunks = [ours(part, cache) for part in x.split((3, 1, 2, 1), dim=1)]
    equal(torch.cat(chunks, dim=1), theirs(x))
    assert cache.stored.shape == (2, B, 1, T, D)
    torchs = nn.MultiheadAttention(E, H, bias=False, batch_first=True)
    q, k, v, o = ours.state_dict().values()
    joined = torch.cat((q, k.repeat(H, 1), v.repeat(H, 1)))
    torchs.double().load_state_dict(
        {"in_proj_weight": joined, "out_proj.weight": o}
    )
    equal(ours(x), torchs(x, x, x, attn_mask=~masks.causal_mask(T))[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_window_by_blocks_is_that_of_transformers_mask(dtype):
    from transformers.masking_utils import sliding_window_causal_mask_function

    S, q, k, v = 67, *(tokens(B, n, 67, D).to(dtype) for n in (H, K, K))
    at = torch.arange(S)
    for W in (1, 5, 13, 100):
        seen = sliding_window_causal_mask_function(W)(0, 0, at[:, None], at)
        for T, size in ((67, 7), (67, 100), (29, 11), (1, 7), (0, 7)):
            new, mask = 4 * q[:, :, S - T :], seen[S - T :]
            want = F.scaled_dot_product_attention(
                *(x.double() for x in (new, k, v)), mask, enable_gqa=True
            )
            bound = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
            got = window_attention(new, k, v, W, size)
            assert got.dtype == dtype
            assert_close(got.double(), want, rtol=bound, atol=bound)


def test_a_window_by_blocks_takes_no_memory_of_all_queries_by_all_keys():
    q, k, v = torch.randn(3, 1, 2, 2003, 16)
    one = q.nbytes  # a mask of all keys has T * T bytes, and as floats 4
    with torch.no_grad(), Held() as held:
        window_attention(q, k, v, W=64, size=64)
    assert held.most < 6 * one < 2003**2 / 2, "three inputs, the output twice"


def test_mqa_copies_no_key_for_its_heads():
    layer, cache = MQA(E, H), kv_cache.KVCache(2002)
    layer(torch.randn(B, 2000, E), cache)
    new, copy = torch.randn(B, 1, E), B * H * 2000 * D * 4
    with torch.no_grad():
        assert allocated(lambda: layer(new, cache)) < copy / 2
        q, (k, _) = torch.randn(B, H, 1, D), cache.stored
        assert allocated(lambda: q @ k.mT) > copy


@pytest.mark.parametrize("kv_heads", [1, K, H])
@pytest.mark.parametrize("file", [gqa, llama])
def test_gqa_is_that_of_the_package(file, kv_heads):
    sizes = {"d_model": E, "n_heads": H, "n_kv_heads": kv_heads}
    for theta, more in ((1e4, {}), (50.0, {"head_dim": 8})):
        theirs = attnref.GroupedQueryAttention(
            **sizes, **more, rope_theta=theta
        )
        options = more | {"theta": theta} if more else {}
        same_in_all_ways(file.GQA(**sizes, **options), sharp(theirs))
    ours, cache = file.GQA(**sizes), file.KVCache(T)
    ours(torch.randn(B, T, E), cache)
    assert cache.stored.shape == (2, B, kv_heads, T, D)


@pytest.mark.parametrize("rank", [None, Q])
def test_both_forms_of_mla_are_those_of_the_package(rank):
    sizes = LATENT | {"d_model": E, "n_heads": H, "q_lora_rank": rank}
    for theta, options in ((1e4, {}), (50.0, {"theta": 50.0})):
        theirs = attnref.MultiHeadLatentAttention(
            **sizes, rope=attnref.Rope(theta, layout="interleaved")
        )
        ours = mla.MLA(E, H, R, DN, DR, DV, rank, **options)
        for absorbed in (None, False):
            same_in_all_ways(ours, sharp(theirs), absorbed=absorbed)
        ours.kv_b_proj.forward = None  # is not called, as it is absorbed
        same_in_all_ways(ours, theirs, absorbed=True)
        with pytest.raises(TypeError):  # and is called where it is not
            ours(torch.ones(1, 1, E).double(), absorbed=False)


@pytest.mark.parametrize("past", [0, 1, 40, 400])
def test_mla_takes_the_form_with_fewer_products(past):
    def products(new, **options):
        cache = mla.KVCache(past + new)
        if past:
            layer(torch.randn(B, past, E), cache)
        with FlopCounterMode(display=False) as counter:
            layer(torch.randn(B, new, E), cache, **options)
        return counter.get_total_flops()

    layer, fewest = mla.MLA(E, H, R, DN, DR, DV), []
    for new in (1, 2, 15, 30, 60, 300):
        both = [products(new, absorbed=a) for a in (False, True)]
        fewest.append(both.index(min(both)))
        assert products(new) == min(both)
    assert fewest == {0: [0] * 6, 400: [1, 1, 1, 1, 0, 0]}.get(past, fewest)


def test_llama_is_a_decoder_of_the_package():
    def block():
        heads = {"d_model": E, "n_heads": H, "n_kv_heads": K}
        layer = attnref.GroupedQueryAttention(**heads, rope_theta=1e4)
        return attnref.Block(layer, d_model=E, d_ff=59, eps=1e-5)

    sizes = {"n_tokens": 61, "d_model": E, "eps": 1e-5}
    theirs = sharp(attnref.Decoder([block(), block()], **sizes))
    theirs.embed_tokens.weight.data *= 0.01  # so small that eps is felt
    ours = llama.Llama(61, 2, E, 59, n_heads=H, n_kv_heads=K).double()
    head = theirs.lm_head.weight
    ours.model.load_state_dict(
        {n: w for n, w in theirs.state_dict().items() if "lm_head" not in n}
    )
    ours.lm_head.weight = head
    ids = torch.randint(61, (B, T))
    for valid in (None, VALID):
        mask = None if valid is None else attnref.padding_mask(valid)
        equal(ours(ids, valid=valid), theirs(ids, mask=mask))
        want = attnref.greedy(theirs, ids, 9, valid=valid)
        assert torch.equal(ours.generate(ids, 9, valid), want)
    logits = []
    ours.lm_head.register_forward_hook(lambda *call: logits.append(call[2]))
    ours.generate(ids, 1)
    assert not logits[0].requires_grad


def test_sample_draws_from_the_distribution_of_the_package(monkeypatch):
    drawn, draw = [], torch.multinomial

    def multinomial(p, n, **_):
        drawn.append(p)
        return draw(p, n)

    monkeypatch.setattr(torch, "multinomial", multinomial)
    logits, both = 3 * torch.randn(B, 61), {"top_k": 11, "top_p": 0.6}
    for how in ({}, {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}, both):
        torch.manual_seed(3)
        ours = sample(logits, **how)
        torch.manual_seed(3)
        assert torch.equal(ours, attnref.sampled(**how)(logits))
        assert_close(*drawn[-2:])
    sample(3 * torch.randn(B, 32_000), top_p=1.0)
    assert (drawn[-1] > 0).all()  # though the sum of fewer is rounded to 1
    sample(torch.zeros(B, 4), top_p=0.5)  # two of them reach it
    assert ((drawn[-1] > 0).sum(-1) == 2).all()


@pytest.mark.parametrize("width", [None, C])
def test_cross_attention_is_that_of_the_package(width):
    sizes = {"d_model": E, "n_heads": H, "d_context": width}
    theirs = sharp(attnref.CrossAttention(**sizes))
    ours = CrossAttention(**sizes).double()
    ours.load_state_dict(theirs.state_dict())
    x, context = tokens(B, T, E), tokens(B, S, width or E)
    valid = torch.arange(S) < torch.tensor([[S], [3], [0]])
    equal(ours(x, context), theirs(x, context))
    mask = attnref.padding_mask(valid)
    equal(ours(x, context, valid), theirs(x, context, mask=mask))


@pytest.mark.parametrize("file", [kv_cache, gqa, llama, mla])
def test_a_cache_returns_all_and_is_unchanged_by_what_does_not_fit(file):
    cache, other = file.KVCache(T), file.KVCache(T)
    kv = tokens(2, B, K, T, D)
    for start, end in ((0, 3), (3, 4), (4, T - 1)):
        stored = cache.append(*kv[:, :, :, start:end])
        other.append(*-kv[:, :, :, start:end])
        assert torch.equal(torch.stack(stored), kv[:, :, :, :end])
    with pytest.raises(ValueError, match=f"{T + 1} tokens, room for {T}"):
        cache.append(*kv[:, :, :, :2])
    stored = cache.append(*kv[:, :, :, -1:])
    assert torch.equal(torch.stack(stored), kv) and cache.length == T
    empty = file.KVCache(T - 1)
    with pytest.raises(ValueError, match=f"{T} tokens, room for {T - 1}"):
        empty.append(*kv)
    assert empty.append(*kv[:, :1, :, :2])[0].shape == (1, K, 2, D)


def test_sizes_that_do_not_divide_are_refused():
    for file in (gqa, llama):
        with pytest.raises(ValueError, match="n_kv_heads=4 does not divide n_"):
            file.GQA(E, H, 4)
        for sizes in ((32, 5, 5), (10, 3, 1)):
            with pytest.raises(
                ValueError, match=r"n_heads=\d does not divide d_model"
            ):
                file.GQA(*sizes)
        assert file.GQA(32, 5, 5, head_dim=6)(tokens(B, T, 32).float()).any()
    for layer in (MHA, MQA, CrossAttention):
        with pytest.raises(ValueError, match="n_heads=7 does not divide d_mod"):
            layer(E, 7)


@pytest.mark.parametrize("file", [rope, gqa, llama, mla])
def test_an_odd_head_width_is_refused(file):
    with pytest.raises(ValueError, match="D=3 is odd: RoPE rotates pairs"):
        file.rope(tokens(B, H, T, 3), torch.arange(T))


def test_frequencies_that_do_not_fit_are_refused():
    x, at = tokens(B, H, T, 3), torch.arange(T)
    for f in (scaled.frequencies(3), scaled.frequencies(2)):
        with pytest.raises(ValueError, match=rf"D=3, and {len(f)} pairs"):
            scaled.rotate(x, at, f)
    with pytest.raises(ValueError, match=r"f\[1\], and len\(f\)=1"):
        scaled.yarn(scaled.frequencies(2), 8.0, 4096)


@pytest.mark.parametrize("name", FORMS)
def test_no_rows_and_no_tokens_give_none(name):
    """At once, and after other tokens, which then stay as they were."""
    form, x = FORMS[name](), torch.randn(B, T, kit.E)
    for shape in ((0, T, kit.E), (B, 0, kit.E), (0, 0, kit.E)):
        for valid in (None, torch.ones(shape[:2], dtype=torch.bool)):
            got = called(name, form, torch.randn(shape), None, valid)
            assert got.shape == shape
    cache = kit.cache_of(form, 2 * T)
    if cache is not None:
        called(name, form, x[:, :3], cache)
        assert called(name, form, x[:, :0], cache).shape == (B, 0, kit.E)
        assert cache.length == 3
        rest = called(name, form, x[:, 3:], cache)
        equal(rest, called(name, form, x)[:, 3:], 1e-5)


def called(name, form, x, cache=None, valid=None):
    """Cross-attention reads x as its context too, whose pads it is told."""
    how = {"cache": cache, "valid": valid, "context": x}
    taken = kit.parameters(form)
    return form(x, **{word: how[word] for word in how if word in taken})


def test_every_plain_form_that_takes_pads_is_among_those_tried():
    tried = {name.split(",")[0] for name in kit.WITH_VALID}
    assert tried == kit.layers_with_valid()


@pytest.mark.parametrize("name", kit.WITH_VALID)
@pytest.mark.parametrize("past", [0, 4])
def test_pads_of_other_tokens_are_refused(name, past):
    """`valid` is of all tokens so far: of the new ones alone, of one or of one
    more, it would hide other tokens, or lose them without a word. One row may
    be read as all of them, if it means that."""
    if name == "cross" and past:
        return  # it has no cache
    form, S = FORMS[name](), past + T
    x, valid = torch.randn(B, S, kit.E), torch.ones(B, S, dtype=torch.bool)
    valid[1:, :2] = False

    def read(pads):
        cache = kit.cache_of(form, S) if past else None
        if past:
            called(name, form, x[:, :past], cache, valid[:, :past])
        return called(name, form, x[:, past:], cache, pads)

    want = read(valid)
    for pads in (
        *(valid[:, :n] for n in (1, S - 1)),
        *(valid[:, -n:] for n in (1, T, S - 1) if n < S),
        F.pad(valid, (0, 1), value=True),
        F.pad(valid, (1, 0), value=True),
        valid[:1],
        valid[:1, :1],
    ):
        try:
            got = read(pads)
        except ValueError:
            continue
        equal(got, read(pads.expand(B, S)), 0)
        assert pads.shape == (1, S)
    assert read(valid).equal(want)


@pytest.mark.parametrize("name", ["mqa", "gqa", "mla", "llama"])
def test_a_cache_of_other_rows_is_refused(name):
    """That the one row would broadcast over."""
    layer, cache = FORMS[name](), kv_cache.KVCache(T)
    layer(torch.randn(B, 2, kit.E), cache)
    with pytest.raises(RuntimeError, match="shape"):
        layer(torch.randn(1, 1, kit.E), cache)


def test_everything_stays_on_its_device():
    """The meta device computes nothing, and refuses what is elsewhere."""
    with torch.device("meta"):
        model = llama.Llama(53, 2, E, 59, n_heads=H, n_kv_heads=K)
        layer, latent = gqa.GQA(E, H, K), mla.MLA(E, H, R, DN, DR, DV)
        x, valid = torch.empty(B, T, E), torch.ones(B, T, dtype=torch.bool)
        ids = torch.zeros(B, T, dtype=torch.int64)
        at = torch.arange(T)
    assert model.generate(ids, 2, valid).device.type == "meta"
    assert layer(x, None, valid).shape == x.shape
    assert rope.rope(x, at).shape == x.shape
    cache = mla.KVCache(S)
    assert latent(x, cache, valid).shape == x.shape
    assert cache.stored.shape == (1, B, 1, S, R + DR)


@pytest.mark.parametrize("sizes", [(13,) + (1,) * 10, (2, 1, 9, 0, 3, 1, 7)])
def test_a_ring_gives_what_a_full_cache_gives_with_a_window(sizes):
    """A prompt longer than the ring; and every chunk, of every length."""
    q, k, v = tokens(B, H, 23, D), tokens(B, K, 23, D), tokens(B, K, 23, D)
    at = torch.arange(23)
    want = F.scaled_dot_product_attention(
        q, k, v, sees(at, at, 5), enable_gqa=True
    )
    cache, got = RingKVCache(5), []
    for i in at.split(sizes):
        keys, values, j = cache.append(k[:, :, i], v[:, :, i])
        mask = sees(i, j, 5)
        got.append(
            F.scaled_dot_product_attention(
                q[:, :, i], keys, values, mask, enable_gqa=True
            )
        )
    equal(torch.cat(got, dim=2), want)
    assert cache.stored.shape == (2, B, K, 5, D)


@torch.no_grad()
def test_recurrent_layers_are_those_of_the_package():
    """At once and in chunks, with pads between the tokens and behind them."""
    deltas = {"n_heads": K, "n_v_heads": H, "key_dim": 4, "value_dim": DV}
    heads = {"n_heads": H, "head_dim": D, "layer_idx": 1, "n_layers": 3}
    x, valid = tokens(B, T, E), torch.ones(B, T, dtype=torch.bool)
    valid[1, 2:4] = valid[2, 1] = valid[2, 5:] = False
    for ours, state, theirs in (
        (
            gated_delta.GatedDeltaNet(E, K, H, 4, DV),
            gated_delta.State,
            GatedDeltaNet(d_model=E, **deltas),
        ),
        (
            lightning.LightningAttention(E, *heads.values()),
            lightning.LightningState,
            LightningAttention(d_model=E, **heads),
        ),
    ):
        ours.load_state_dict(sharp(theirs).state_dict())
        for chunks in ((T,), (3, 2, 1, 1)):
            cache, other, end = state(), attnref.StateCache(), 0
            for part in x.split(chunks, dim=1):
                end += part.shape[1]
                real = valid[:, end - part.shape[1] : end]
                mask = attnref.padding_mask(valid[:, :end])
                got = ours.double()(part, cache, valid[:, :end])
                want = theirs(part, cache=other, mask=mask)
                equal(got[real], want[real], 1e-10)


@pytest.mark.parametrize("file", [gqa, llama])
@torch.no_grad()
def test_one_token_copies_no_keys_for_the_heads_that_share_them(file):
    """Without a kernel for them, as on a GPU with a mask, `enable_gqa` does."""
    layer, cache = file.GQA(42, 6, 3, head_dim=10), file.KVCache(29)
    x = torch.randn(3, 29, 42)
    whole = layer(x)
    layer(x[:, :-1], cache)
    with sdpa_kernel(SDPBackend.MATH), Made(cache.stored) as made:
        last = layer(x[:, -1:], cache)
    assert made.largest < 3 * 6 * 29 * 10 * x.itemsize
    assert_close(last, whole[:, -1:])


def test_the_loss_of_an_indexer_is_torchs_divergence():
    scores = tokens(B, T, S)
    hidden = torch.ones(B, T, S).triu(S - T + 1).bool()
    hidden[1, 2] = True  # a pad: it sees no key
    weights = tokens(B, H, T, S).softmax(-1)
    scores = scores.masked_fill(hidden, -torch.inf).requires_grad_()
    weights = weights.masked_fill(hidden[:, None], 0)
    loss = index_loss(scores, weights)
    seeing = ~hidden.all(dim=-1)
    target = weights.sum(1)[seeing]
    target = target / target.sum(-1, keepdim=True)
    log_p = scores[seeing].log_softmax(-1).clamp(min=-1e30)  # kl_div: 0 * inf
    want = F.kl_div(log_p, target, reduction="batchmean")
    equal(loss, want, 1e-6)
    (grad,) = torch.autograd.grad(loss, scores)
    assert grad.isfinite().all() and (grad[hidden] == 0).all()
    assert index_loss(weights.mean(1).log(), weights) < 1e-12


@pytest.mark.parametrize("T", [1, 8, 13])
@pytest.mark.parametrize("strength", [1e-3, 1.0, 40.0])
@pytest.mark.parametrize("same", [0, 5])
def test_gradients_of_the_delta_rule_by_chunks_are_those_of_autograd(
    T, strength, same
):
    """Slow and strong decay; keys that differ, and keys nearly alike."""
    q, k, v = tokens(B, H, T, D), tokens(B, H, T, D), tokens(B, H, T, DV)
    k = F.normalize(k + same, dim=-1)
    decay, beta = -strength * tokens(B, H, T).exp(), tokens(B, H, T).sigmoid()
    inputs = [q, k, v, decay, beta, tokens(B, H, D, DV)]
    out, state = gated_delta.delta_rule(*(x.requires_grad_() for x in inputs))
    above = torch.randn_like(out), torch.randn_like(state)
    want = torch.autograd.grad((out, state), inputs, above)
    for chunk in (1, 4, 5, 64):
        with torch.no_grad():
            got = delta_backward(*inputs, *above, chunk=chunk)
        for ours, theirs in zip(got, want, strict=True):
            equal(ours, theirs, 1e-10)


def test_a_state_that_was_reset_has_no_gradient_beyond_it():
    """A decay of -inf begins a new document."""
    q, k = tokens(2, B, H, 7, D)
    v, d_out = tokens(2, B, H, 7, DV)
    decay, beta = tokens(B, H, 7).abs().neg(), tokens(B, H, 7).sigmoid()
    decay[:, :, 3], d_out[:, :, :3] = -torch.inf, 0
    state = tokens(B, H, D, DV)
    inputs = q, k, v, decay, beta, state
    whole = delta_backward(*inputs, d_out, state, chunk=4)
    later = [x[:, :, 3:] for x in (*inputs[:5], d_out)]
    later[3] = later[3].clone()
    later[3][:, :, 0] = 0
    part = delta_backward(*later[:5], 0 * state, later[5], state, chunk=4)
    for name in range(3):
        equal(whole[name][:, :, 3:], part[name], 1e-10)
        assert not whole[name][:, :, :3].any()
    assert not whole[5].any() and all(x.isfinite().all() for x in whole)


def test_a_warm_up_trains_the_indexer_alone():
    torch.manual_seed(0)
    layer = DSA(32, 4, 16, 8, 8, 8, 24, (4, 16, 3), 1e4, halves=True)
    x, c_q = torch.randn(2, B, 9, 32)[0], torch.randn(B, 9, 24)
    x.requires_grad_(), c_q.requires_grad_()
    at, mask = torch.arange(9), torch.ones(B, 9, 9).tril().bool()
    scores = torch.randn(B, 4, 9, 9).masked_fill(~mask[:, None], -torch.inf)
    weights = (3 * scores).softmax(-1).requires_grad_()
    before = {k: p.clone() for k, p in layer.state_dict().items()}
    batch = x, c_q, at, mask, weights
    losses = list(warm_up(layer.indexer, [batch] * 40, lr=0.03))
    assert losses[-1] < losses[0] / 2
    changed = {
        k for k, p in layer.state_dict().items() if (p != before[k]).any()
    }
    assert changed == {k for k in before if k.startswith("indexer.")}
    assert x.grad is c_q.grad is weights.grad is None
    # The best choice has the largest share; reading every key has all of it.
    target = weights.sum(1)
    best = recall(target.topk(3).indices, weights)
    chosen = layer.indexer(x, c_q, at, layer.indexer.key(x, at), mask)
    assert recall(target.topk(3, largest=False).indices, weights) < 0.5
    assert recall(chosen, weights) <= best < 1
    assert recall(target.topk(9).indices, weights) == pytest.approx(1)
