"""The absorbed form of MLA: the algebra, what it is good for, and what it
needs of the weights."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attnref import (
    DeepSeekSparseAttention,
    KVCache,
    MultiHeadLatentAttention,
    absorbed_weights,
    apply_rope,
    crossover,
    form_of,
    rope_table,
    sdpa,
)
from sitekit.drawn.absorption import rounding
from sitekit.drawn.mla import V3
from tests.cores import ATTEND, CORES
from tests.kit.attention import Made
from tests.kit.caches import refused, unchanged
from tests.kit.compare import relative_error
from tests.kit.mla import (
    DN,
    DR,
    DV,
    FORMS,
    OPTIONS,
    E,
    H,
    Q,
    R,
    T,
    mla,
    tokens,
)


def test_what_the_cache_of_each_form_holds():
    # --8<-- [start:holds]
    from attnref import KVCache, MultiHeadLatentAttention

    layer = MultiHeadLatentAttention(
        d_model=96,
        n_heads=6,
        kv_lora_rank=20,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=10,
    ).double()
    x = torch.randn(2, 9, 96, dtype=torch.float64)
    held = {}
    for form in "expanded", "latent", "absorbed":
        cache = KVCache(max_len=9)
        with torch.no_grad():
            chunks = [layer(x[:, :5], cache=cache, form=form)]
            chunks += [layer(x[:, 5:6], cache=cache, form=form)]
        out = torch.cat(chunks, dim=1)
        assert torch.allclose(out, layer(x)[:, :6], rtol=0, atol=1e-12)
        held[form] = [tuple(t.shape) for t in cache.stored]
    assert held["expanded"] == [(2, 6, 6, 24), (2, 6, 6, 10)]
    assert held["latent"] == held["absorbed"] == [(2, 1, 6, 28)]
    # --8<-- [end:holds]


def test_scores_move_from_keys_to_latents():
    # --8<-- [start:score]
    import torch

    q = torch.randn(16, dtype=torch.float64)  # the query of one head
    c = torch.randn(7, 24, dtype=torch.float64)  # seven latents
    w_uk = torch.randn(16, 24, dtype=torch.float64)  # W^UK of this head
    keys = c @ w_uk.mT  # the keys that the expanded form caches
    assert torch.allclose(keys @ q, c @ (w_uk.mT @ q), rtol=0, atol=1e-12)
    # --8<-- [end:score]


def test_values_move_behind_the_sum():
    c = tokens(7, 24)
    # --8<-- [start:value]
    weights = torch.softmax(torch.randn(7, dtype=torch.float64), dim=-1)
    w_uv = torch.randn(12, 24, dtype=torch.float64)  # W^UV of this head
    before = weights @ (c @ w_uv.mT)  # values first, as in expanded form
    after = w_uv @ (weights @ c)  # the weighted sum of latents first
    assert torch.allclose(before, after, rtol=0, atol=1e-12)
    # --8<-- [end:value]


@pytest.mark.parametrize("options", OPTIONS[:2])
def test_absorbed_weights_are_all_that_is_needed(options):
    layer, x = mla(**options), tokens()
    query, output = absorbed_weights(layer)
    assert not query.requires_grad and not output.requires_grad
    assert query.shape[1:] == (R + DR, Q if "q_lora_rank" in options else E)
    assert output.shape == (E, H, R)
    source = x
    if "q_lora_rank" in options:
        source = layer.q_a_layernorm(layer.q_a_proj(x))
    q = torch.einsum("bti,hri->bhtr", source, query)
    joint = layer.kv_a_proj_with_mqa(x)[:, None]
    c = layer.kv_a_layernorm(joint[..., :R])
    table = rope_table(torch.arange(T), DR)
    q_rope, k_rope = (
        apply_rope(y[..., R:], *table, layout="interleaved") for y in (q, joint)
    )
    past = torch.ones(T, T).tril().bool()
    mixed = sdpa(
        torch.cat((q[..., :R], q_rope), -1),
        torch.cat((c, k_rope), -1),
        c,
        past,
        scale=(DN + DR) ** -0.5,
    )
    got = torch.einsum("bhtr,ehr->bte", mixed, output)
    if layer.o_proj.bias is not None:
        got = got + layer.o_proj.bias
    assert relative_error(got, layer(x, form="expanded")) <= 1e-12


@pytest.mark.parametrize(
    ("R", "dn", "dv"), [(512, 128, 128), (256, 64, 128), (24, 16, 12)]
)
def test_the_crossover_is_where_the_costs_meet(R, dn, dv):
    """Counted from the products of the two forms, on a long past."""
    n = crossover(kv_lora_rank=R, qk_nope_head_dim=dn, v_head_dim=dv)
    S, dr = 1e9, 64
    latent = S * R * (dn + dv) + n * S * (dn + dr + dv)
    absorbed = n * S * (R + dr + R)
    assert abs(latent / absorbed - 1) < 1e-12


def test_absorbing_a_tiny_latent_is_always_cheaper():
    sizes = {"kv_lora_rank": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    assert crossover(**sizes) == float("inf")


def test_which_form_costs_less():
    with torch.device("meta"):
        layer = MultiHeadLatentAttention(**V3)
    assert form_of(layer, 1, 4096) == "absorbed"
    assert form_of(layer, 160, 1_000_000) == "absorbed"
    assert form_of(layer, 180, 1_000_000) == "latent"
    assert form_of(layer, 4096) == "latent"
    assert form_of(layer, 1, cached=False) == "expanded"


@torch.no_grad()
@pytest.mark.parametrize("new", [1, 2, 8, 40])
@pytest.mark.parametrize("past", [0, 1, 30])
def test_the_default_form_is_the_cheapest_by_the_count_of_torch(new, past):
    """Expanded without a cache; with one, the cheaper of the other two."""
    layer, x = mla(), tokens(3, past + new, E)

    def flops(cache, **options):
        if past:
            layer(x[:, :past], cache=cache, form="latent")
        with FlopCounterMode(display=False) as count:
            layer(x[:, past:], cache=cache, **options)
        return count.get_total_flops()

    each = {form: flops(KVCache(past + new), form=form) for form in FORMS[1:]}
    cache, least = KVCache(past + new), min(each.values())
    assert flops(cache) == least < max(each.values())
    assert each[form_of(layer, new, past)] == least
    assert len(cache.stored) == 1
    with FlopCounterMode(display=False) as count:
        layer(x)
    alone = count.get_total_flops()
    with FlopCounterMode(display=False) as count:
        layer(x, form="expanded")
    assert alone == count.get_total_flops()


@pytest.mark.parametrize(
    "name", [c for c in ATTEND if CORES[c].copies_keys is not None]
)
@torch.no_grad()
def test_no_step_makes_keys_and_no_prompt_makes_all_scores(name):
    """Unless the core is declared to. Nor does a step copy the weights for
    each row of the batch."""
    core = CORES[name]
    sizes = {"d_model": E, "n_heads": H, "kv_lora_rank": 64}
    sizes |= {"qk_nope_head_dim": 40, "qk_rope_head_dim": 8, "v_head_dim": 24}
    # As users call it, in tiles that are not those of the tests.
    layer = MultiHeadLatentAttention(**sizes, attend=core.function).eval()
    x, cache = torch.randn(3, 512, E), KVCache(512)
    for part in x.split([511, 1], dim=1):
        with Made(x, *layer.parameters(), *cache.stored) as made:
            layer(part, cache=cache)
    copies = made.largest >= layer.kv_b_proj.weight.nbytes
    assert copies == core.copies_keys, "declare `copies_keys`"
    for cache in None, KVCache(512):
        with Made(x) as made:
            layer(x[:1], cache=cache)
        keeps = made.largest >= 4 * 512 * 512  # the scores of one head
        assert keeps == core.keeps_scores, "declare `keeps_scores`"


class LoRA(nn.Module):
    """What PEFT puts in the place of a linear layer."""

    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        a, b = base.in_features, base.out_features
        self.a = nn.Linear(a, rank, bias=False, dtype=torch.float64)
        self.b = nn.Linear(rank, b, bias=False, dtype=torch.float64)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


@pytest.mark.parametrize("form", [None, "expanded", "latent"])
@pytest.mark.parametrize("cached", [False, True])
def test_an_adapter_on_kv_b_proj_works_and_is_trained(cached, form):
    layer, merged, x = mla(q_lora_rank=Q), mla(q_lora_rank=Q), tokens(3, T, E)
    merged.load_state_dict(layer.state_dict())
    bare = layer(x)
    layer.kv_b_proj = adapter = LoRA(layer.kv_b_proj)
    with torch.no_grad():
        merged.kv_b_proj.weight += adapter.b.weight @ adapter.a.weight
    want = merged(x, form="expanded")
    assert relative_error(bare, want) > 0.1
    if not cached:
        got = layer(x, form=form)
        got.square().sum().backward()
        for weight in (adapter.a.weight, adapter.b.weight):
            assert weight.grad.abs().max() > 1e-3
    else:
        cache = KVCache(T)
        with torch.no_grad():  # one by one, where absorbing would be cheaper
            steps = [layer(t, cache=cache, form=form) for t in x.split(1, 1)]
        got = torch.cat(steps, dim=1)
    assert relative_error(got, want) <= 1e-12


def subclassed(linear):
    other = type("Quantised", (nn.Linear,), {})(R, H * (DN + DV), bias=False)
    other.load_state_dict(linear.state_dict())
    return other.double()


def hooked(method):
    def change(linear):
        getattr(linear, method)(lambda *_: None)
        return linear

    return change


def patched(linear):
    linear.forward = lambda x: nn.Linear.forward(linear, x) * 2
    return linear


def biased(linear):
    linear.bias = nn.Parameter(torch.ones(len(linear.weight)).double())
    return linear


CHANGED = {
    "adapter": LoRA,
    "subclass": subclassed,
    "hook": hooked("register_forward_hook"),
    "hook before": hooked("register_forward_pre_hook"),
    "hook behind": hooked("register_full_backward_hook"),
    "hook behind, before": hooked("register_full_backward_pre_hook"),
    "another forward": patched,
    "bias": biased,
}


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_what_absorbing_would_pass_by_is_not_absorbed(change):
    layer, x, cache = mla(), tokens(3, T, E), KVCache(T)
    layer(x[:, :4], cache=cache)
    layer.kv_b_proj = change(layer.kv_b_proj)
    with refused("or pass form='latent' or 'expanded'", cache, error=TypeError):
        layer(x[:, 4:5], cache=cache, form="absorbed")
    with pytest.raises(TypeError, match=r"kv_b_proj is .*: absorption reads"):
        absorbed_weights(layer)
    assert form_of(layer, 1, T) == "latent"
    want = layer(x, form="expanded")
    again = KVCache(T)
    got = [layer(t, cache=again) for t in x.split(1, dim=1)]
    assert relative_error(torch.cat(got, dim=1), want) <= 1e-12


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_what_dsa_would_pass_by_is_refused(change):
    """Its one form reads the weight alone, with chosen keys or all of them."""
    layer = DeepSeekSparseAttention(
        d_model=E,
        n_heads=H,
        kv_lora_rank=R,
        qk_nope_head_dim=DN,
        qk_rope_head_dim=DR,
        v_head_dim=DV,
        q_lora_rank=Q,
        index_n_heads=2,
        index_head_dim=DR,
        index_topk=5,
    ).double()
    layer.kv_b_proj, cache = change(layer.kv_b_proj), KVCache(T)
    says = r"^kv_b_proj is .*: absorption reads .* the weight first$"
    for length in (5, T):
        with unchanged(cache), pytest.raises(TypeError, match=says):
            layer(tokens(3, length, E), cache=cache)


@pytest.mark.parametrize("name", ["q_proj", "q_b_proj", "o_proj"])
def test_only_plain_matrices_are_multiplied(name):
    layer = mla(q_lora_rank=Q if name == "q_b_proj" else None, bias=True)
    absorbed_weights(layer)  # a bias of o_proj may be there: it stays apart
    setattr(layer, name, LoRA(getattr(layer, name)))
    with pytest.raises(TypeError, match=rf"{name} is tests\.\S+\.LoRA, not"):
        absorbed_weights(layer)


def test_prefill_and_decode_take_turns_on_one_cache():
    layer, x = mla(), tokens()
    # --8<-- [start:turns]
    with torch.no_grad():
        cache = KVCache(max_len=9)
        parts = [layer(x[:, :7], cache=cache, form="latent")]
        parts += [layer(x[:, 7:8], cache=cache, form="absorbed")]
        parts += [layer(x[:, 8:], cache=cache)]  # chooses for itself
        assert form_of(layer, 7) == "latent"
        assert form_of(layer, 1, 8) == "absorbed"
    together = torch.cat(parts, dim=1)
    assert torch.allclose(together, layer(x), rtol=0, atol=1e-12)
    # --8<-- [end:turns]
    cache.crop(8)
    other_form = pytest.raises(ValueError, match="1 tensors per token")
    with other_form, torch.no_grad():
        layer(x[:, :1], cache=cache, form="expanded")


def test_bfloat16_takes_each_form_as_far_and_not_to_the_same_place():
    rows = {form.key: cells for form, *cells in rounding()}
    exact = [float(cells[0].rstrip("%")) for cells in rows.values()]
    assert 0.3 < min(exact) <= max(exact) < 1.1 * min(exact) < 1.5
    assert rows["expanded"][1] == rows["latent"][1] == "0.00%"
    assert 0.3 < float(rows["absorbed"][1].rstrip("%")) < 1.0
