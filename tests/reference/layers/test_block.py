"""Blocks, decoders and what they generate, against formulas and loops."""

from functools import partial

import numpy
import pytest
import torch
from torch import nn
from transformers import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from attnref import (
    Block,
    Decoder,
    GrowingKVCache,
    KVCache,
    StateCache,
    attention_weights,
    causal_mask,
    fused,
    greedy,
    padding_mask,
    padding_mask_from_hf,
    sampled,
)
from tests.kit.caches import refused
from tests.kit.compare import relative_error
from tests.kit.layers import B, D, E, H, S, T, sharp
from tests.kit.memory import Held
from tests.kit.oracles import LENGTH, decoders, padded
from tests.kit.refusals import refusals
from tests.variants import (
    CACHES,
    DECODERS,
    READERS,
    SERVING,
    VARIANTS,
    built,
    each_cache_of,
    every_pair,
    inputs,
    pairs,
    rule,
    run,
    seen,
)

FF, N = 59, 101
with_each_cache = each_cache_of("gqa", None)


def block(attention, **options):
    return sharp(Block(attention, d_model=E, d_ff=FF, **options))


def rms_norm(x, weight, eps=1e-6):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def swiglu(x, mlp):
    gate, up, down = (p.weight.mT for p in mlp.children())
    g = x @ gate
    return (g / (1 + (-g).exp()) * (x @ up)) @ down


def by_hand(block, x, eps=1e-6, **attention):
    """Normalised before, added after: `x + f(norm(x))`, twice."""
    normed = rms_norm(x, block.input_layernorm.weight, eps)
    x = x + block.self_attn(normed, **attention)
    normed = rms_norm(x, block.post_attention_layernorm.weight, eps)
    return x + swiglu(normed, block.mlp)


class Ear(nn.Module):
    """In the place of attention: remembers what it is given."""

    def forward(self, x, **options):
        self.heard = x, options
        return x


@every_pair
@torch.no_grad()
def test_a_block_normalises_before_and_adds_after(name, make):
    for options in VARIANTS[name].options:
        for eps in (1e-6, 0.5):
            layer, given = block(built(name, **options), eps=eps), inputs(name)
            assert (
                relative_error(
                    run(name, layer, given),
                    run(name, partial(by_hand, layer, eps=eps), given),
                )
                <= 1e-12
            )
        valid = torch.rand(B, given[-1].shape[1]) < 0.7
        want = run(name, partial(by_hand, layer, eps=eps), given, valid=valid)
        got = run(name, layer, given, (3, 4), make(S), valid)
        assert relative_error(got, want) <= 1e-12


def test_attention_gets_what_the_block_gets():
    layer = Block(Ear(), d_model=E, d_ff=FF)
    options = {"mask": 2, "cache": 3, "positions": 5, "context": 7}
    layer(torch.randn(B, T, E), **options)
    assert layer.self_attn.heard[1] == options
    layer(torch.randn(B, T, E))
    assert layer.self_attn.heard[1] == {}


def decoder(name="gqa", layers=2, **options):
    blocks = [
        Block(built(name, **options), d_model=E, d_ff=FF) for _ in range(layers)
    ]
    return sharp(Decoder(blocks, n_tokens=N, d_model=E))


def caches(make, layers=2, room=40):
    return [make(room) for _ in range(layers)]


def prompts(rows=B, length=5):
    return torch.randint(N, (rows, length))


@pytest.mark.parametrize("options", [{}, {"eps": 0.5}], ids=str)
@pytest.mark.parametrize("layers", [0, 1, 3])
def test_a_decoder_is_its_blocks_between_two_tables(layers, options):
    blocks = [Block(built("gqa"), d_model=E, d_ff=FF) for _ in range(layers)]
    model = sharp(Decoder(iter(blocks), n_tokens=N, d_model=E, **options))
    # Numbers so small that it matters what is added to their squares.
    model.embed_tokens.weight.data *= 1e-3
    tokens, mask = prompts(), padding_mask(torch.rand(B, 5) < 0.7)
    for more in ({}, {"mask": mask}):
        x = model.embed_tokens.weight[tokens]
        for each in blocks:
            x = by_hand(each, x, **more)
        normed = rms_norm(x, model.norm.weight, **options)
        want = normed @ model.lm_head.weight.mT
        got = model(tokens, **more)
        assert got.shape == (B, 5, N)
        assert relative_error(got, want) <= 1e-12


@torch.no_grad()
def likeliest(model, prompt, steps):
    """Token by token, each after a full pass over all before it."""
    rows = prompt.tolist()
    for _ in range(steps):
        for row, scores in zip(rows, model(torch.tensor(rows)), strict=True):
            row.append(max(range(N), key=scores[-1].tolist().__getitem__))
    return torch.tensor(rows)


def test_one_layer_and_one_token_are_enough():
    model, prompt = decoder(layers=1), prompts(3, 1)
    got = greedy(model, prompt, 9, caches=caches(CACHES["growing"], 1))
    assert got.tolist() == likeliest(model, prompt, 9).tolist()


# One set of options for each in `make test`: other tests decode with all.
each_option = pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(
            name,
            options,
            id=f"{name}, {options}",
            marks=pytest.mark.audit if i else (),
        )
        for name in DECODERS
        for i, options in enumerate(reversed(VARIANTS[name].options))
    ],
)


@each_option
def test_the_same_tokens_are_generated_with_every_cache(name, options):
    model = decoder(name, **options)
    # Of many, those that repeat themselves least: they show most.
    rows = likeliest(model, prompts(12), 20)
    want = sorted(rows, key=lambda row: -len(row[5:].unique()))[:B]
    assert len(want[-1][5:].unique()) > 4
    want = torch.stack(want)
    prompt = want[:, :5]
    for make in (None, *SERVING[name].values()):
        mine = caches(make) if make else None
        more = VARIANTS[name].forward
        got = greedy(model, prompt, 20, caches=mine, **more)
        assert got.tolist() == want.tolist(), (options, make)


@each_option
def test_a_left_padded_row_generates_what_it_does_alone(name, options):
    pads = [0, 4, 1]
    valid = torch.arange(5) >= torch.tensor(pads)[:, None]
    model, prompt = decoder(name, **options), prompts()
    more = VARIANTS[name].forward
    with torch.no_grad():
        blind = model(prompt, **more)[1, -1]
        aware = model(prompt, mask=padding_mask(valid), **more)[1, -1]
    near = seen(rule(model.layers[0].self_attn), 5)[-1, ~valid[1]].any()
    assert (relative_error(aware, blind) > 1e-3) == near, "pads matter"
    alone = [
        likeliest(model, prompt[row : row + 1, pad:], 13)[0].tolist()
        for row, pad in enumerate(pads)
    ]
    for make in (None, *SERVING[name].values()):
        mine = caches(make) if make else None
        got = greedy(model, prompt, 13, valid=valid, caches=mine, **more)
        assert torch.equal(got[:, :5], prompt)
        rows = zip(got.tolist(), pads, strict=True)
        assert [row[pad:] for row, pad in rows] == alone


def test_valid_is_what_a_tokenizer_gives_or_a_mask_of_ours():
    model, prompt = decoder(rope_theta=100.0), prompts(3)
    valid = torch.arange(5) >= torch.tensor([[0], [3], [1]])
    want = greedy(model, prompt, 9, valid=valid)
    assert not torch.equal(want, greedy(model, prompt, 9))
    for options in (
        valid.long(),
        valid.int(),
        padding_mask(valid),
        padding_mask_from_hf(valid.long()),
    ):
        assert torch.equal(greedy(model, prompt, 9, valid=options), want)


@with_each_cache
@pytest.mark.parametrize("pad", [0, 7])
@pytest.mark.parametrize("all_end", [True, False])
def test_rows_end_where_those_of_transformers_end(all_end, pad, make):
    """With the weights of a Llama, in a batch that is padded."""
    ours, theirs = decoders()
    prompt, valid = torch.randint(1, 53, (3, LENGTH)), padded("left")
    free = greedy(ours, prompt, 12, valid=valid)[:, LENGTH:]
    # Each row has one that no other has; the last may go on to the end.
    ends = [int(free[0, 2]), int(free[1, 4])] + [int(free[2, 9])] * all_end
    want = theirs.generate(
        prompt,
        attention_mask=valid.long(),
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=ends,
        pad_token_id=pad,
    )
    got = greedy(
        ours,
        prompt,
        12,
        valid=valid.long(),
        eos=ends,
        pad=pad,
        caches=[make(40) for _ in ours.layers] if make else None,
    )
    assert got.tolist() == want.tolist()
    assert (got.shape[1] < LENGTH + 12) is all_end
    assert not torch.equal(got[:, LENGTH:], free[:, : got.shape[1] - LENGTH])


def test_a_row_that_has_ended_repeats_its_end_by_default():
    model, prompt = decoder(), prompts(3)
    free = greedy(model, prompt, 9)
    first, second = free[0, 5:7].tolist()
    for eos, then in (
        (second, second),
        (numpy.int64(second), second),
        ([3, second], 3),
        (numpy.array([second, 3]), second),
    ):
        got = greedy(model, prompt, 9, eos=eos)[0, 5:]
        assert got.tolist() == [first, second] + [then] * 7
    for eos in (None, ()):  # as the configuration of a model may have it
        assert torch.equal(greedy(model, prompt, 9, eos=eos), free)
    for eos, kind in ((2.0, "float"), ("2", "str"), ([3, None], "NoneType")):
        with pytest.raises(TypeError, match=f"eos is {kind}; pass an int"):
            greedy(model, prompt, 9, eos=eos)


WARPERS = {
    "plain": ({}, []),
    "cold": ({"temperature": 0.3}, [TemperatureLogitsWarper(0.3)]),
    "hot": ({"temperature": 3.0}, [TemperatureLogitsWarper(3.0)]),
    "top 4": ({"top_k": 4}, [TopKLogitsWarper(4)]),
    "top of more than there are": ({"top_k": 999}, [TopKLogitsWarper(999)]),
    "nucleus": ({"top_p": 0.8}, [TopPLogitsWarper(0.8)]),
    "whole": ({"top_p": 1.0}, []),
    "the likeliest alone": ({"top_p": 1e-6}, [TopPLogitsWarper(1e-6)]),
    "all three": (
        {"temperature": 2.0, "top_k": 20, "top_p": 0.7},
        [
            TemperatureLogitsWarper(2.0),
            TopKLogitsWarper(20),
            TopPLogitsWarper(0.7),
        ],
    ),
}


@pytest.mark.parametrize(("options", "warpers"), WARPERS.values(), ids=WARPERS)
def test_tokens_are_drawn_with_the_probabilities_of_transformers(
    options, warpers, monkeypatch
):
    # Rounded, as in half precision: many tokens are equally likely.
    scores, drawn = torch.randn(200, N) * 3, []
    scores[100:] = scores[100:].round()
    scores[:20] *= 5  # one is nearly certain, and the others are not lost
    want = scores
    for warp in warpers:
        want = warp(None, want)
    want = want.softmax(-1)
    real = torch.multinomial

    def watched(weights, *rest, **named):
        drawn.append(weights)
        return real(weights, *rest, **named)

    monkeypatch.setattr(torch, "multinomial", watched)
    token = sampled(**options)(scores)
    got = drawn[0] / drawn[0].sum(-1, keepdim=True)
    assert torch.equal(got > 0, want > 0)
    assert (got - want).abs().max() <= 1e-6
    assert token.shape == (200,)
    assert (want.gather(1, token[:, None]) > 0).all()


def test_what_is_drawn_often_is_what_is_likely():
    scores = torch.tensor([[0.0, 1.0, 2.0, -1.0, 1.5]])
    generator = torch.Generator().manual_seed(5)
    pick = sampled(temperature=0.8, generator=generator)
    counts = pick(scores.expand(40_000, -1)).bincount(minlength=5)
    want = 40_000 * (scores[0] / 0.8).softmax(-1)
    chi = ((counts - want).square() / want).sum()
    assert chi < 18.5  # 4 degrees of freedom: 1 in 1,000
    generator.manual_seed(5)
    again = pick(scores.expand(40_000, -1)).bincount(minlength=5)
    assert torch.equal(counts, again)


def drawn(scores, **options):
    generator = torch.Generator().manual_seed(7)
    return sampled(generator=generator, **options)(scores)


def test_the_last_token_that_is_needed_is_the_last_that_is_kept():
    """Two that are alike have half the probability each, exactly."""
    alike = torch.zeros(500, 2)
    assert len(drawn(alike, top_p=0.5).unique()) == 1
    assert len(drawn(alike, top_p=0.51).unique()) == 2
    assert torch.equal(drawn(alike, top_p=1.0), drawn(alike))
    assert drawn(torch.zeros(3, 1)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("options", [{}, {"top_k": 40}, {"top_p": 0.9}])
def test_scores_in_half_precision_are_drawn_from_in_float32(options):
    scores = torch.randn(2000, 50).bfloat16()
    want = drawn(scores.float(), temperature=0.7, **options)
    assert torch.equal(drawn(scores, temperature=0.7, **options), want)


@with_each_cache
def test_what_is_picked_is_what_is_read_next(make):
    """Drawn with one seed, the same with every cache, and not the likeliest."""
    model, prompt = decoder(), prompts(3)

    def drawn(make):
        generator = torch.Generator().manual_seed(3)
        mine = caches(make) if make else None
        pick = sampled(temperature=20.0, generator=generator)
        return greedy(model, prompt, 9, caches=mine, pick=pick)

    assert torch.equal(drawn(make), drawn(None))
    assert not torch.equal(drawn(make), greedy(model, prompt, 9))
    cold = sampled(top_k=1)
    assert torch.equal(
        greedy(model, prompt, 9, pick=cold), greedy(model, prompt, 9)
    )


@torch.no_grad()
def test_a_mask_that_hides_nothing_is_not_passed_to_the_layers():
    """It would have `T * T` elements, and the kernel would copy them."""
    model, prompt = decoder(layers=1, attend=fused), prompts(1, 256)
    most, real = [], torch.ones(1, 256, dtype=torch.bool)
    padded = real.index_fill(1, torch.tensor([0]), False)
    for valid in (None, real, padded):
        with Held() as memory:
            greedy(model, prompt, 1, valid=valid)
        most.append(memory.most)
    assert most[0] == most[1] < most[2] - 256 * 256


def test_no_steps_give_the_prompt():
    prompt = prompts()
    assert torch.equal(greedy(decoder(), prompt, 0), prompt)


@each_cache_of("gqa")
def test_without_an_end_no_token_is_looked_at(make):
    """A meta tensor has no numbers; on an accelerator, to look is to wait."""
    model, prompt = decoder().to("meta"), prompts().to("meta")
    got = greedy(model, prompt, 3, caches=caches(make))
    assert (got.shape, got.device.type) == ((B, 5 + 3), "meta")


def test_generating_needs_no_gradients():
    model = decoder()
    mine = caches(CACHES["growing"])
    greedy(model, prompts(), 2, caches=mine)
    assert not any(t.requires_grad for c in mine for t in c.stored)
    with torch.inference_mode():
        assert greedy(model, prompts(), 2, caches=caches(CACHES["room"])).any()


@pytest.mark.parametrize("number", [0, 1, 3])
def test_each_layer_needs_a_cache(number):
    model, mine = decoder(), caches(CACHES["growing"], number)
    message = f"{number} caches for 2 layers: each layer needs its own"
    for call in (model, lambda *a, **k: greedy(*(model, *a, 3), **k)):
        with pytest.raises(ValueError, match=message):
            call(prompts(), caches=mine)
    assert not any(cache.length for cache in mine)


@each_cache_of("gqa")
@torch.no_grad()
def test_two_layers_cannot_share_a_cache(make):
    model, mine = decoder(layers=3), caches(make, 2)
    for shared in ([mine[0], mine[1], mine[0]], [mine[0]] * 3):
        with refused("3 caches for 3 layers, one of them twice", *mine):
            model(prompts(), caches=shared)


@pytest.mark.parametrize("number", [1, 2])
def test_a_list_of_none_is_no_caches(number):
    """A step would be read without its past, and nobody would be told."""
    model = decoder(layers=number)
    for call in (model, lambda *a, **k: greedy(*(model, *a, 3), **k)):
        with pytest.raises(TypeError, match="pass one cache per layer"):
            call(prompts(), caches=[None] * number)


@torch.no_grad()
def test_a_decoder_looks_at_all_caches_before_it_writes_to_one():
    model, tokens = decoder(layers=3), prompts(3, 9)
    mine = [KVCache(9), GrowingKVCache(), KVCache(6)]
    model(tokens[:, :4], caches=mine)
    with refused("4 stored and 5 new make 9 > max_len=6", *mine):
        model(tokens[:, 4:], caches=mine)
    small, mine[2] = mine[2], KVCache(9)
    with refused("caches hold [4, 4, 0] tokens: lengths differ", *mine):
        model(tokens[:, 4:], caches=mine)
    mine[2].append(*small.stored)
    got = model(tokens[:, 4:], caches=mine)
    assert relative_error(got, model(tokens)[:, 4:]) <= 1e-12


@torch.no_grad()
def test_a_mask_that_a_recurrent_layer_cannot_read_changes_no_cache():
    """Attention stands before it, and would have appended."""
    layers = [built("gqa"), built("gated_delta"), built("lightning")]
    blocks = [block(layer) for layer in layers]
    model = sharp(Decoder(blocks, n_tokens=N, d_model=E))
    mine, ids = [KVCache(9), StateCache(), StateCache()], prompts(3, 9)
    valid = torch.ones(3, 9).bool()
    valid[1, :4] = False
    parts = [
        model(ids[:, a:b], caches=mine, mask=padding_mask(valid[:, :b]))
        for a, b in ((0, 5), (5, 6))
    ]
    wide = causal_mask(3, 9)
    for mask in (wide, padding_mask(valid[:, :8])):
        with refused("mask has shape", *mine):
            model(ids[:, 6:], caches=mine, mask=mask)
    parts.append(model(ids[:, 6:], caches=mine, mask=padding_mask(valid)))
    want, got = model(ids, mask=padding_mask(valid)), torch.cat(parts, dim=1)
    assert relative_error(got[valid], want[valid]) <= 1e-12


@pairs(READERS)
@pytest.mark.parametrize("room", [S, 2])
@torch.no_grad()
def test_a_decoder_stores_a_context_once(name, make, room):
    """Which is longer than what it reads, or shorter."""
    model, tokens, more = decoder(name), prompts(), VARIANTS[name].forward
    context = inputs(name)[1][:, :room]
    want, mine = model(tokens, context=context, **more), caches(make, 2, room)
    first = model(tokens[:, :3], context=context, caches=mine, **more)
    got = [
        first,
        *(model(t, caches=mine, **more) for t in tokens[:, 3:].split(1, dim=1)),
    ]
    assert relative_error(torch.cat(got, dim=1), want) <= 1e-12
    assert [cache.length for cache in mine] == [room, room]
    with refused("the cache already holds a context of", *mine):
        model(tokens, context=context, caches=mine, **more)
    small = [KVCache(room), KVCache(room - 1)]
    says = f"0 stored and {room} new make {room} > max_len={room - 1}"
    with refused(says, *small):
        model(tokens[:, :1], context=context, caches=small, **more)


def test_each_layer_gets_the_options_of_the_decoder():
    model = Decoder([Ear(), Ear()], n_tokens=N, d_model=E)
    model(prompts(), form="latent", mask=None, positions=3)
    options = {"form": "latent", "mask": None, "positions": 3, "cache": None}
    assert [ear.heard[1] for ear in model.layers] == [options] * 2
    greedy(model, prompts(), 1, form="expanded")
    assert {ear.heard[1]["form"] for ear in model.layers} == {"expanded"}
    # So a context reaches a layer that has no use for it, and is refused.
    blocks = [*decoder("gqa").layers, *decoder("cross").layers]
    mixed = sharp(Decoder(blocks, n_tokens=N, d_model=E))
    for context in ({}, {"context": inputs("cross")[1]}):
        with pytest.raises((TypeError, ValueError), match="context"):
            mixed(prompts(), **context)


def test_the_last_token_needs_no_room():
    mine = caches(lambda _: KVCache(5 + 6 - 1))
    greedy(decoder(), prompts(), 6, caches=mine)
    assert [cache.length for cache in mine] == [10, 10]


FIRST = torch.arange(5) >= torch.tensor([[0], [2], [5]])  # real, amid pads


@refusals(
    """
    >>> sampled(temperature=0.0)
    ValueError: temperature=0.0 must be positive
    >>> sampled(temperature=torch.nan)
    ValueError: temperature=nan must be
    >>> sampled(top_k=0)
    ValueError: top_k=0 must be at least 1
    >>> sampled(top_k=2.0)
    TypeError: top_k is float; pass an int
    >>> sampled(top_p=0.0)
    ValueError: top_p=0.0 must be above 0 and at most 1
    >>> sampled(top_p=1.5)
    ValueError: top_p=1.5 must be above 0 and at most 1
    >>> greedy(decoder(), prompts(), 3, valid=torch.full((B, 5), 2))
    ValueError: values other than 0 and 1
    >>> greedy(decoder(), prompts(), 3, valid=torch.ones(B, 1, 5, 5).bool())
    ValueError: shape (3, 1, 5, 5)
    >>> greedy(decoder(), prompts(), 3, valid=FIRST[:, 1:])
    ValueError: valid has shape (3, 4), the prompt (3, 5)
    >>> greedy(decoder(), prompts(), 3, valid=FIRST[:1])
    ValueError: valid has shape (1, 5), the prompt (3, 5)
    >>> greedy(decoder(), prompts(), 3, valid=FIRST.roll(1, 0))
    ValueError: ...left
    >>> greedy(decoder(), prompts(), 3, valid=FIRST.roll(2, 1))
    ValueError: ...left
    >>> greedy(decoder(), prompts(), 3, valid=FIRST & FIRST.roll(3, 1))
    ValueError: ...left
    >>> greedy(decoder(), prompts(), 6, caches=caches(KVCache, 2, 4))
    ValueError: 0 stored and 5 new make 5 > max_len=4
    >>> greedy(decoder(), prompts(), 6, caches=caches(KVCache, 2, 5))
    ValueError: 5 stored and 1 new make 6 > max_len=5
    >>> greedy(decoder(), prompts(), 6, caches=caches(KVCache, 2, 8))
    ValueError: 8 stored and 1 new make 9 > max_len=8
    """
)
def test_what_cannot_be_generated_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        eval(call)


def test_used_caches_are_refused():
    model, mine = decoder(), caches(CACHES["growing"])
    greedy(model, prompts(), 3, caches=mine)
    with refused(
        "caches hold 7 tokens of an earlier call: reset() each", *mine
    ):
        greedy(model, prompts(), 3, caches=mine)
    assert [cache.length for cache in mine] == [7, 7]
    for cache in mine:
        cache.reset()
    assert greedy(model, prompts(), 3, caches=mine).shape == (B, 8)


def test_the_weights_of_these_tests_are_sharp():
    model, tokens = decoder("mha"), prompts(1, 31)
    x = model.embed_tokens(tokens)
    attention = model.layers[0].self_attn
    x = model.layers[0].input_layernorm(x)
    q, k = (
        p(x).view(31, H, D).transpose(0, 1)
        for p in (attention.q_proj, attention.k_proj)
    )
    assert attention_weights(q[None], k[None])[..., 1:, :].max() > 0.9


def test_a_decoder_generates_the_same_with_and_without_a_cache():
    # --8<-- [start:generate]
    from attnref import (
        Block,
        Decoder,
        GroupedQueryAttention,
        GrowingKVCache,
        KVCache,
        greedy,
    )

    sizes = {"d_model": 32, "n_heads": 4, "n_kv_heads": 2}
    layers = [GroupedQueryAttention(**sizes, rope_theta=1e4) for _ in range(2)]
    blocks = [Block(layer, d_model=32, d_ff=64) for layer in layers]
    decoder = Decoder(blocks, n_tokens=100, d_model=32)
    prompt = torch.randint(100, (2, 5))
    tokens = greedy(decoder, prompt, 20)
    one_a_layer = [KVCache(max_len=24) for _ in blocks]
    assert torch.equal(greedy(decoder, prompt, 20, caches=one_a_layer), tokens)
    growing = [GrowingKVCache() for _ in blocks]
    assert torch.equal(greedy(decoder, prompt, 20, caches=growing), tokens)
    # --8<-- [end:generate]
    assert len(set(tokens[0].tolist())) > 8
