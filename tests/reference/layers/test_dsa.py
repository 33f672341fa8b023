"""DSA, beside the layers of transformers, and beside MLA."""

import pytest
import torch

from attnref import KVCache, MultiHeadLatentAttention, Rope, padding_mask
from attnref.layers.dsa import DeepSeekSparseAttention
from attnref.numbers.cost import dsa_cost
from attnref.numbers.shapes import Mla
from attnref.plain import dsa as plain
from tests.kit.compare import relative_error
from tests.kit.layers import (
    DN,
    DR,
    DV,
    LATENT,
    B,
    E,
    H,
    Q,
    R,
    T,
    Variant,
    sharp,
    tokens,
)

HI, DI = 12, 18  # so many that no sum of ReLUs is 0, where keys would tie
INDEX = {"index_n_heads": HI, "index_head_dim": DI}
VARIANT = Variant(
    DeepSeekSparseAttention,
    LATENT | {"q_lora_rank": Q} | INDEX | {"index_topk": 12},
    dsa_cost,
    Mla(
        layers=1,
        q_heads=H,
        kv_lora_rank=R,
        qk_rope_head_dim=DR,
        index_dim=DI,
    ),
    options=(
        {},
        {"index_topk": 3, "index_layout": "interleaved", "bias": True},
    ),
    choosing=("indexer.",),
    page="beyond/chosen",
)
LONG, TOPK, THETA = 37, 5, 500.0
CHUNKS = {
    "whole": (LONG,),
    "a prompt and single tokens": (30,) + (1,) * 7,
    "ragged": (9, 5, 1, 4, 2, 16),
}
PADS = {
    "none": torch.ones(B, LONG, dtype=torch.bool),
    "left": torch.arange(LONG) >= torch.tensor([[0], [19], [3]]),
    # Of a prompt padded on the right, and the tokens after it.
    "right": (torch.arange(LONG) < torch.tensor([[21], [3], [30]]))
    | (torch.arange(LONG) >= 30),
}


@torch.no_grad()
def shapes():
    """For the shape comments of the package: a prompt, and two tokens of which
    each reads few of the keys."""
    sizes, cache = VARIANT.sizes | {"index_topk": 3}, KVCache(T + 2)
    layer = DeepSeekSparseAttention(
        **sizes, attend=lambda q, *_, **__: q[..., :R]
    )
    for length in (T, 2):
        mask = torch.ones(B, H, length, cache.length + length).bool()
        layer(torch.randn(B, length, E), cache=cache, mask=mask)


@pytest.fixture(params=["DeepSeek-V3.2", "GLM-5"])
def oracle(request):
    """A layer of transformers, and a function that reads a text with it."""
    from transformers import DynamicCache
    from transformers.models import deepseek_v32, glm_moe_dsa

    halves = request.param == "DeepSeek-V3.2"
    model = deepseek_v32 if halves else glm_moe_dsa
    family = "DeepseekV32" if halves else "GlmMoeDsa"
    modeling = getattr(model, f"modeling_{model.__name__.split('.')[-1]}")
    config = getattr(model, f"{family}Config")(
        hidden_size=E,
        num_attention_heads=H,
        num_key_value_heads=H,
        head_dim=DR,
        q_lora_rank=Q,
        index_topk=TOPK,
        num_hidden_layers=1,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        attn_implementation="sdpa",
        **{name: n for name, n in (LATENT | INDEX).items() if n not in (E, H)},
    )
    layer = getattr(modeling, f"{family}Attention")(config, 0)
    pairs = torch.arange(0, DR, 2).double() / DR

    def read(x, chunks, valid, start=0):
        cache, outs, end = DynamicCache(config=config), [], 0
        for part in x.split(chunks, dim=1):
            past, end = end, end + part.shape[1]
            at = torch.arange(start + past, start + end)[None, :, None]
            angles = (at * THETA**-pairs).repeat(1, 1, 2)  # theirs are float32
            seen = torch.ones(end - past, end, dtype=torch.bool).tril(past)
            out = layer(
                hidden_states=part,
                position_embeddings=(
                    angles.cos().to(x.dtype),
                    angles.sin().to(x.dtype),
                ),
                attention_mask=seen & valid[:, None, None, :end],
                cache=cache,
            )
            outs.append(out[0])
        return torch.cat(outs, dim=1)

    return sharp(layer).float(), read, halves


def ours(form, oracle):
    """A layer with the weights of the oracle, and how it reads a text."""
    theirs, _, halves = oracle
    if form == "plain":
        index = HI, DI, TOPK
        layer = plain.DSA(E, H, R, DN, DR, DV, Q, index, THETA, halves)
    else:
        layer = DeepSeekSparseAttention(
            **VARIANT.sizes | {"index_topk": TOPK},
            rope=Rope(THETA, layout="interleaved"),
            index_layout="half" if halves else "interleaved",
        )
    layer.load_state_dict(theirs.state_dict())

    def read(x, chunks, valid, start=0):
        layer.to(x.dtype)
        cache, outs, end = KVCache(LONG), [], 0
        if form == "plain":
            cache = plain.KVCache(LONG)
        for part in x.split(chunks, dim=1):
            past, end = end, end + part.shape[1]
            seen = valid[:, :end]
            if form == "plain":
                outs.append(layer(part, cache, seen))
                continue
            at = torch.arange(start + past, start + end)
            how = {"mask": padding_mask(seen), "positions": at}
            outs.append(layer(part, cache=cache, **how))
        return torch.cat(outs, dim=1)

    return read


@pytest.mark.parametrize("pads", PADS)
@pytest.mark.parametrize("form", ["plain", "package"])
@torch.no_grad()
def test_it_is_that_of_transformers(oracle, form, pads):
    """In any chunks, and whatever pads hold."""
    x, valid = tokens(B, LONG, E).float(), PADS[pads]
    x = torch.where(valid[..., None], x, 30 * torch.randn_like(x))
    read, start = ours(form, oracle), 3000 if form == "package" else 0
    for chunks in CHUNKS.values():
        got, want = (f(x, chunks, valid, start) for f in (read, oracle[1]))
        assert relative_error(got[valid], want[valid]) <= 2e-6, chunks


@pytest.mark.parametrize("form", ["plain", "package"])
@torch.no_grad()
def test_small_index_keys_are_chosen_as_by_transformers(oracle, form):
    """Their variances, which differ by token, are near the norm's eps."""
    x, valid = tokens(B, LONG, E).float(), PADS["none"]
    oracle[0].indexer.wk.weight.mul_(1e-3)
    got, want = (f(x, (LONG,), valid) for f in (ours(form, oracle), oracle[1]))
    assert relative_error(got, want) <= 2e-6


@pytest.mark.parametrize("form", ["plain", "package"])
@torch.no_grad()
def test_in_bfloat16_it_is_that_of_transformers_but_where_keys_nearly_tie(
    oracle, form
):
    """Which of two is chosen is then a question of rounding."""
    oracle[0].bfloat16()
    x, valid = tokens(B, LONG, E).bfloat16(), PADS["left"]
    for chunks in CHUNKS.values():
        got, want = (
            f(x, chunks, valid) for f in (ours(form, oracle), oracle[1])
        )
        off = (got - want).abs().amax(dim=-1)[valid] / want[valid].abs().max()
        assert (off <= 0.02).float().mean() >= 0.93
        assert off.median() <= 0.01


@torch.no_grad()
def test_while_topk_covers_the_text_it_is_mla():
    """And no longer: a text of one more token is another result."""
    layer = sharp(DeepSeekSparseAttention(**VARIANT.sizes))
    mla = sharp(MultiHeadLatentAttention(**LATENT, q_lora_rank=Q))
    mla.load_state_dict(layer.state_dict(), strict=False)
    for length, same in ((11, True), (12, True), (13, False)):
        x = tokens(B, length, E)
        error = relative_error(layer(x)[:, -1], mla(x)[:, -1])
        assert (error <= 1e-12) is same, length


@torch.no_grad()
def test_a_step_reads_only_what_it_has_chosen():
    """The other entries may hold anything; the index keys are all read."""
    layer = sharp(DeepSeekSparseAttention(**VARIANT.sizes | {"index_topk": 3}))
    x, cache, picked = tokens(B, 14, E), KVCache(14), []
    layer(x[:, :13], cache=cache)
    before = cache.snapshot()
    hook = layer.indexer.register_forward_hook(
        lambda *call: picked.append(call[-1])
    )
    want = layer(x[:, 13:], cache=cache)
    hook.remove()
    cache.restore(before)
    (chosen,) = picked
    unread = torch.ones(B, 14, dtype=torch.bool).scatter(1, chosen[:, 0], False)
    entries = cache.buffers[0]
    entries[:, 0, :13].masked_fill_(unread[:, :13, None], torch.nan)
    assert torch.equal(layer(x[:, 13:], cache=cache), want)


@torch.no_grad()
def test_a_mask_that_differs_by_head_leaves_what_any_head_sees_to_be_chosen():
    layer = sharp(DeepSeekSparseAttention(**VARIANT.sizes | {"index_topk": 3}))
    x, mask = tokens(), torch.ones(B, H, T, T, dtype=torch.bool)
    mask[:, :-1, :, 2] = False  # only the last head sees it
    mask[..., 4] = False
    for chunks in ((T,), (6, 1)):
        cache, picked, end = KVCache(T), [], 0
        hook = layer.indexer.register_forward_hook(
            lambda *call, picked=picked: picked.append(call[-1])
        )
        for part in x.split(chunks, dim=1):
            past, end = end, end + part.shape[1]
            layer(part, cache=cache, mask=mask[:, :, past:end, :end])
        hook.remove()
        last = torch.cat([p[:, -1] for p in picked[-1:]])
        assert not (last == 4).any()
        # Queries that see more keys than they choose; others choose any.
        assert (picked[0][:, 5:] == 2).any()


def test_the_plain_form_trains_as_the_package_does():
    sizes = VARIANT.sizes | {"index_topk": 3}
    layer = sharp(DeepSeekSparseAttention(**sizes))
    other = plain.DSA(E, H, R, DN, DR, DV, Q, (HI, DI, 3), 10_000.0, True)
    other.double().load_state_dict(layer.state_dict())
    x = tokens(B, 20, E)
    layer(x).square().sum().backward()
    other(x).square().sum().backward()
    same = dict(other.named_parameters())
    for name, weight in layer.named_parameters():
        if name.startswith("indexer."):
            other = same[name].grad  # its key is split from the entry
            assert weight.grad is None and (other is None or not other.any())
        else:
            assert relative_error(weight.grad, same[name].grad) <= 1e-11


def test_sizes_and_modules_that_do_not_fit_are_refused():
    for wrong, says in (
        ({"index_head_dim": 7}, "=7 must be at least qk_rope_head_dim=8"),
        ({"index_topk": 0}, "index_topk=0 must be at least 1"),
        ({"index_layout": "halves"}, "'halves' is neither 'half' nor"),
    ):
        with pytest.raises(ValueError, match=says):
            DeepSeekSparseAttention(**VARIANT.sizes | wrong)
    layer = DeepSeekSparseAttention(**VARIANT.sizes)
    layer.kv_b_proj = torch.nn.Sequential(layer.kv_b_proj)
    with pytest.raises(TypeError, match=r"kv_b_proj is \S+Sequential, not"):
        layer(torch.randn(B, T, E))
