"""Compare, Choose, Exercises: the checkers, the tables, dates and times."""

import re
from collections import Counter
from datetime import datetime

import pytest
import torch
from transformers.models.inkling2_loop.configuration_inkling2_loop import (
    Inkling2LoopTextConfig,
)
from transformers.models.qwen4_exp.configuration_qwen4_exp import (
    Qwen4ExpTextConfig,
)

import attnref
from attnref import GroupedQueryAttention, KVCache
from attnref.numbers.kv_memory import kv_bytes
from attnref.released.specs import find_model, models
from sitekit import ROOT
from sitekit.drawn import choose, compare
from sitekit.markdown.pages import body_of
from sitekit.markdown.render import Word
from tests.kit.pages import cells, section

COMPARE, EXERCISES = (
    body_of(ROOT / f"docs/en/learn/{name}.md")
    for name in ("compare", "exercises")
)


def test_gqa_is_mla_whose_latent_holds_all_its_heads():
    # --8<-- [start:choose_transmla]
    import torch

    from attnref import causal_mask, sdpa
    from attnref.plain.rope import rope

    H, K, D, T = 8, 4, 16, 9
    q, k, v = (torch.randn(1, n, T, D).double() for n in (H, K, K))
    at, mask, scale = torch.arange(T), causal_mask(T), D**-0.5
    gqa = sdpa(rope(q, at), rope(k, at), v, mask)

    # One K x K rotation per frequency mixes the heads of keys. A channel and
    # its partner, D / 2 further, share it, so that RoPE changes nothing.
    mix = torch.linalg.qr(torch.randn(D // 2, K, K).double()).Q.repeat(2, 1, 1)
    head = torch.eye(K).double().repeat_interleave(H // K, 0)  # which, of h
    q = torch.einsum("bhtd,hk,dkc->bhtcd", q, head, mix)  # (1, H, T, K, D)
    k = torch.einsum("bktd,dkc->btcd", k, mix)[:, None]  # one for all heads
    q, k = (rope(x.transpose(2, 3), at).transpose(2, 3) for x in (q, k))
    latent = v.transpose(1, 2).flatten(2)[:, None]  # (1, 1, T, K * D)
    out = sdpa(q.flatten(3), k.flatten(3), latent, mask, scale=scale)
    out = torch.einsum("bhtkd,hk->bhtd", out.unflatten(-1, (K, D)), head)
    torch.testing.assert_close(out, gqa)  # absorbed MLA, R = Dr = K D
    # --8<-- [end:choose_transmla]


# --8<-- [start:check_gqa]
def check_gqa(make):
    """Raise unless `make(d_model, n_heads, n_kv_heads)` is a GQA layer.

    It is causal, and its projections are called q_proj, k_proj, v_proj, o_proj.
    """
    import torch
    import torch.nn.functional as F

    B, T, E, H, D = 3, 5, 42, 6, 7
    x = torch.randn(B, T, E)
    for K in (6, 2, 1):
        layer = make(E, H, K)
        shape = tuple(layer.k_proj.weight.shape)
        assert shape == (K * D, E), f"k_proj of {K} heads is {shape}"
        with torch.no_grad():
            layer.q_proj.weight.mul_(20)  # softmax far from uniform
            q = layer.q_proj(x).view(B, T, H, D).transpose(1, 2)
            k = layer.k_proj(x).view(B, T, K, D).transpose(1, 2)
            v = layer.v_proj(x).view(B, T, K, D).transpose(1, 2)
            got = layer(x)
        each = {"repeat_interleave": [], "repeat": []}
        for t in (k, v):
            each["repeat_interleave"].append(t.repeat_interleave(H // K, 1))
            each["repeat"].append(t.repeat(1, H // K, 1, 1))

        def attended(how="repeat_interleave", each=each, q=q, **named):
            named = {"is_causal": True} | named
            return F.scaled_dot_product_attention(q, *each[how], **named)

        def same(heads, got=got, layer=layer):
            want = layer.o_proj(heads.reshape(B, T, H * D))
            return got.shape == want.shape and torch.allclose(
                got, want, atol=1e-5
            )

        mistakes = {
            "query head h reads head h % K": attended("repeat"),
            "it is not causal": attended(is_causal=False),
            "the scale is that of d_model": attended(scale=E**-0.5),
        }
        if not same(attended().transpose(1, 2)):
            seen = [
                name
                for name, heads in mistakes.items()
                if same(heads.transpose(1, 2))
            ]
            if same(attended()):
                seen = ["heads are merged without transpose(1, 2)"]
            raise AssertionError(f"{K=}: {seen[0] if seen else 'wrong'}")
    try:
        make(E, H, 4)
    except ValueError:
        return
    raise AssertionError("4 key/value heads for 6 query heads were accepted")


# --8<-- [end:check_gqa]


def test_the_checker_of_gqa_accepts_ours_and_names_mistakes():
    # --8<-- [start:gqa]
    import torch
    from torch import nn

    class Grouped(nn.Module):
        def __init__(self, d_model, n_heads, n_kv_heads):
            super().__init__()
            if d_model % n_heads or n_heads % n_kv_heads:
                raise ValueError(f"{d_model=}, {n_heads=}, {n_kv_heads=}")
            self.H, self.K, self.D = n_heads, n_kv_heads, d_model // n_heads
            self.q_proj = nn.Linear(d_model, d_model, bias=False)
            self.k_proj = nn.Linear(d_model, self.K * self.D, bias=False)
            self.v_proj = nn.Linear(d_model, self.K * self.D, bias=False)
            self.o_proj = nn.Linear(d_model, d_model, bias=False)

        def forward(self, x):
            B, T, E = x.shape
            H, K, D = self.H, self.K, self.D
            q = self.q_proj(x).view(B, T, H, D).transpose(1, 2)  # (B, H, T, D)
            k = self.k_proj(x).view(B, T, K, D).transpose(1, 2)  # (B, K, T, D)
            v = self.v_proj(x).view(B, T, K, D).transpose(1, 2)  # (B, K, T, D)
            rows = q.reshape(B, K, H // K * T, D)  # a group below each other
            mask = torch.ones(T, T, dtype=torch.bool).tril().repeat(H // K, 1)
            heads = nn.functional.scaled_dot_product_attention(
                rows, k, v, attn_mask=mask
            ).view(B, H, T, D)
            return self.o_proj(heads.transpose(1, 2).reshape(B, T, E))

    # --8<-- [end:gqa]

    def ours(d_model, n_heads, n_kv_heads):
        return GroupedQueryAttention(
            d_model=d_model, n_heads=n_heads, n_kv_heads=n_kv_heads
        )

    check_gqa(ours)
    # --8<-- [start:gqa_checked]
    check_gqa(Grouped)  # put yours here
    # --8<-- [end:gqa_checked]

    class Wrong(Grouped):
        how, merged, named = "repeat_interleave", True, {}

        def forward(self, x):
            q, k, v = (
                p(x).unflatten(-1, (-1, self.D)).transpose(1, 2)
                for p in (self.q_proj, self.k_proj, self.v_proj)
            )
            index = torch.arange(self.H)
            index = index // (self.H // self.K)
            if self.how == "repeat":
                index = torch.arange(self.H) % self.K
            heads = nn.functional.scaled_dot_product_attention(
                q, k[:, index], v[:, index], **{"is_causal": True} | self.named
            )
            if self.merged:
                heads = heads.transpose(1, 2)
            return self.o_proj(heads.reshape(x.shape))

    check_gqa(Wrong)
    for message, how in (
        ("K=2: query head h reads head h % K", {"how": "repeat"}),
        ("K=6: it is not causal", {"named": {"is_causal": False}}),
        ("K=6: the scale is that of d_model", {"named": {"scale": 42**-0.5}}),
        ("K=6: heads are merged without transpose", {"merged": False}),
        ("K=6: wrong", {"named": {"scale": 1.0}}),
    ):
        with pytest.raises(AssertionError, match=message):
            check_gqa(type("Wrong", (Wrong,), how))
    with pytest.raises(AssertionError, match="k_proj of 2 heads"):
        check_gqa(lambda E, H, K: ours(E, H, H))
    with pytest.raises(AssertionError, match="were accepted"):
        check_gqa(lambda E, H, K: Grouped(E, H, 1 if H % K else K))


# --8<-- [start:check_conversion]
def check_conversion(convert):
    """Raise unless `convert(mha, n_kv_heads)` pools the heads of a group."""
    import torch

    from attnref import MultiHeadAttention

    H, K, D, E = 6, 2, 7, 42
    mha = MultiHeadAttention(d_model=E, n_heads=H)
    gqa = convert(mha, K)
    for name in ("k_proj", "v_proj"):
        heads = getattr(mha, name).weight.detach().split(D)
        for g, got in enumerate(getattr(gqa, name).weight.detach().split(D)):
            want = sum(heads[g * H // K : (g + 1) * H // K]) * K / H
            same = got.shape == want.shape and torch.allclose(got, want)
            assert same, f"{name}: head {g} is not the mean of its group"
    with torch.no_grad():
        for name in ("k_proj", "v_proj"):  # heads of a group that are alike
            weight = getattr(mha, name).weight.view(K, H // K, D, E)
            weight[:, 1:] = weight[:, :1].clone()
        x = torch.randn(3, 5, E)
        same = torch.allclose(convert(mha, K)(x), mha(x), atol=1e-5)
        assert same, "with equal heads in each group the output changes"


# --8<-- [end:check_conversion]


def test_the_checker_of_conversions_accepts_ours_and_refuses_others():
    # --8<-- [start:converted]
    from attnref import mha_to_gqa

    check_conversion(mha_to_gqa)  # put yours here
    # --8<-- [end:converted]

    def first(mha, K):
        gqa = mha_to_gqa(mha, K)
        H, D = mha.n_heads, mha.head_dim
        for name in ("k_proj", "v_proj"):
            heads = getattr(mha, name).weight.detach().unflatten(0, (H, D))
            new = heads[:: H // K].flatten(0, 1)
            getattr(gqa, name).weight.data = new
        return gqa

    with pytest.raises(AssertionError, match="k_proj: head 0 is not the mean"):
        check_conversion(first)

    def queries_too(mha, K):
        gqa = mha_to_gqa(mha, K)
        gqa.q_proj.weight.data = gqa.q_proj.weight.data.roll(7, 0)
        return gqa

    with pytest.raises(AssertionError, match="the output changes"):
        check_conversion(queries_too)


# --8<-- [start:check_cache]
def check_cache(make):
    """Raise unless `make(max_len)` is a preallocated KV cache.

    `append(k, v)` takes `(B, K, T, D)`, gives all keys and values so far, and
    raises ValueError where they do not fit; `length` counts the tokens.
    """
    import torch

    B, K, D, room = 3, 2, 5, 7
    k, v = torch.randn(2, B, K, room + 1, D, dtype=torch.float64)
    cache, other = make(room), make(room)
    places = set()
    for start, end in ((0, 4), (4, 5), (5, 6)):
        got = cache.append(k[:, :, start:end], v[:, :, start:end])
        for name, held, whole in zip(
            ("keys", "values"), got, (k, v), strict=True
        ):
            want = whole[:, :, :end]
            what = (
                f"{name} after {end} tokens: {tuple(held.shape)} {held.dtype}"
            )
            assert (held.shape, held.dtype) == (want.shape, want.dtype), what
            assert torch.equal(held, want), f"{name} after {end} are others"
        assert cache.length == end, f"length is {cache.length}, not {end}"
        places.add((got[0].data_ptr(), got[1].data_ptr()))
    assert len(places) == 1, "it copies what was stored: not preallocated"
    try:
        cache.append(k[:, :, 6:8], v[:, :, 6:8])
    except ValueError:
        assert cache.length == 6, "what was refused was counted"
    else:
        raise AssertionError("2 tokens were taken where there is room for 1")
    got, _ = cache.append(k[:, :, 6:7], v[:, :, 6:7])
    assert torch.equal(got, k[:, :, :7]), "what was refused left its marks"
    other.append(v[:, :, :1], k[:, :, :1])
    assert torch.equal(got, k[:, :, :7]), "two caches share their memory"


# --8<-- [end:check_cache]


# --8<-- [start:cache]
class Stored:
    def __init__(self, max_len):
        self.max_len, self.length, self.held = max_len, 0, None

    def append(self, k, v):
        B, K, T, D = k.shape
        end = self.length + T
        if end > self.max_len:
            raise ValueError(f"{end} tokens, room for {self.max_len}")
        if self.held is None:  # dtype and device are those of the first keys
            self.held = k.new_empty(2, B, K, self.max_len, D)
        self.held[0, :, :, self.length : end] = k
        self.held[1, :, :, self.length : end] = v
        self.length = end
        return self.held[0, :, :, :end], self.held[1, :, :, :end]


# --8<-- [end:cache]


class OfTheNotes:
    """No batch axis, no check, float32."""

    def __init__(self, max_len):
        self.held = torch.zeros(2, 3, 2, max_len, 5)
        self.length = 0

    def append(self, k, v):
        end = self.length + k.shape[2]
        for held, new in zip(self.held, (k, v), strict=True):
            room = held[:, :, self.length : end]
            room[:] = new[:, :, : room.shape[2]]
        self.length = end
        return tuple(held[:, :, :end] for held in self.held)


class Double(OfTheNotes):
    def __init__(self, max_len):
        super().__init__(max_len)
        self.held = self.held.double()


class Counting(Double):
    def append(self, k, v):
        got = super().append(k, v)
        if self.length > 7:
            raise ValueError
        return got


class Marking(Double):
    def append(self, k, v):
        if self.length + k.shape[2] > 7:
            self.held[:, :, :, 0] = 0
            raise ValueError
        return super().append(k, v)


class Growing:
    def __init__(self, max_len):
        self.cache = attnref.GrowingKVCache()

    def append(self, k, v):
        if self.cache.length + k.shape[2] > 7:
            raise ValueError
        return self.cache.append(k, v)

    @property
    def length(self):
        return self.cache.length


class Shared(Stored):
    one = torch.empty(2, 3, 2, 7, 5, dtype=torch.float64)

    def __init__(self, max_len):
        super().__init__(max_len)
        self.held = self.one


class Swapped(Stored):
    def append(self, k, v):
        return super().append(k, v)[::-1]


class Whole(Stored):
    def append(self, k, v):
        super().append(k, v)
        return self.held[0], self.held[1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (OfTheNotes, "torch.float32"),
        (Double, "2 tokens were taken"),
        (Counting, "what was refused was counted"),
        (Marking, "left its marks"),
        (Growing, "not preallocated"),
        (Swapped, "keys after 4 are others"),
        (Shared, "share their memory"),
        (Whole, r"keys after 4 tokens: \(3, 2, 7, 5\)"),
    ],
)
def test_the_checker_of_caches_refuses(wrong, message):
    with pytest.raises(AssertionError, match=message):
        check_cache(wrong)


def test_the_checker_of_caches_accepts_ours():
    check_cache(KVCache)
    # --8<-- [start:cache_checked]
    check_cache(Stored)  # put yours here
    # --8<-- [end:cache_checked]


# Without a paper, and no rows of specs.json.
RELEASED = ("Qwen3.8-Flash-Next", "Inkling 2 Mini")


def test_what_the_timeline_says_of_layers_is_what_transformers_has():
    kinds = Qwen4ExpTextConfig().layer_types
    assert {*kinds[3::4]} == {"indexed_attention"}
    assert {*kinds} - {*kinds[3::4]} == {"linear_attention"}
    looped = Inkling2LoopTextConfig()
    layers = looped.loop_layer_index_end - looped.loop_layer_index_start
    assert (layers, looped.num_hidden_layers, looped.loop_num_passes) == (
        *(12, 24, 3),
    )
    rows = cells(section("timeline", COMPARE))
    assert {*RELEASED} <= {what.partition(":")[0] for _, what, *_ in rows}


def test_the_months_are_those_of_the_sources():
    months = []
    for date, what, page, source in cells(section("timeline", COMPARE)):
        when = datetime.strptime(date, "%B&nbsp;%Y")
        papers = re.findall(r"arxiv\.org/abs/(\d{4})\.", source)
        for paper in papers:
            assert paper == f"{when:%y%m}", what
        name = what.partition(":")[0]
        if not papers and name not in RELEASED:
            assert find_model(name.lower()).date == f"{when:%Y-%m}"
        assert ".md" in page or "(#" in page
        months.append(when)
    assert months == sorted(months) and len(months) > 20


def by_name(rows):
    return {r[0].key if isinstance(r[0], Word) else r[0]: r[1:] for r in rows}


def test_the_calls_that_a_choice_leads_to():
    # --8<-- [start:choose_mha]
    import torch

    from attnref import MultiHeadAttention, padding_mask

    sizes = {"d_model": 1024, "n_heads": 16}
    mha = MultiHeadAttention(**sizes, causal=False)
    real = torch.tensor([[True] * 7 + [False] * 2])
    out = mha(torch.randn(1, 9, 1024), mask=padding_mask(real))
    # --8<-- [end:choose_mha]
    assert out.shape == (1, 9, 1024)
    # --8<-- [start:choose_convert]
    from attnref import mha_to_gqa

    smaller = mha_to_gqa(mha, 8)  # then train on
    # --8<-- [end:choose_convert]
    assert smaller.n_kv_heads == 8
    # --8<-- [start:choose_gqa]
    from attnref import GroupedQueryAttention, KVCache

    gqa = GroupedQueryAttention(**sizes, n_kv_heads=8, rope_theta=1e4)
    cache = KVCache(max_len=100)
    with torch.no_grad():
        prompt = gqa(torch.randn(1, 9, 1024), cache=cache)
        token = gqa(torch.randn(1, 1, 1024), cache=cache)
    # --8<-- [end:choose_gqa]
    assert prompt.shape == (1, 9, 1024) and token.shape == (1, 1, 1024)
    assert cache.length == 10
    # --8<-- [start:choose_mla]
    from attnref import MultiHeadLatentAttention

    mla = MultiHeadLatentAttention(
        **sizes,
        kv_lora_rank=512,
        qk_nope_head_dim=64,
        qk_rope_head_dim=64,
        v_head_dim=64,
    )
    cache = KVCache(max_len=100)
    with torch.no_grad():
        prompt = mla(torch.randn(1, 9, 1024), cache=cache)
        token = mla(torch.randn(1, 1, 1024), cache=cache)
    # --8<-- [end:choose_mla]
    assert token.shape == (1, 1, 1024) and cache.length == 10


def test_who_stores_least_on_several_devices():
    rows = by_name(choose.devices())
    mha, gqa, mqa, mla = (
        [int(n.replace(",", "")) for n in rows[name]]
        for name in ("mha", "gqa", "mqa", "mla")
    )
    less = [g < m for g, m in zip(gqa, mla, strict=True)]
    assert less == [False, False, True, True, True], "from four on"
    assert gqa[3] == mqa[3], "on eight"


def test_the_years_are_those_of_the_models():
    rows = by_name(choose.released())
    assert sum(int(row[0]) for row in rows.values()) == len(models())
    mla = Counter(
        m.date[:4]
        for m in models().values()
        if any(hasattr(g, "kv_lora_rank") for g in m.groups)
    )
    assert {y: int(row[4]) for y, row in rows.items() if row[4] != "–"} == mla
    assert sum(int(row[2]) for row in rows.values() if row[2] != "–") > (
        len(models()) / 2
    ), "most models in our table have GQA, says the page"
    grouped = [
        {g.kv_heads for g in m.groups if getattr(g, "variant", "") == "GQA"}
        for m in models().values()
    ]
    usual = sum(8 in heads for heads in grouped)
    assert usual > sum(map(bool, grouped)) / 2, "usually with 8 heads"


def test_what_the_pages_say_of_models_is_so():
    llama = find_model("llama-3.1-8b")
    of_mha = 4 * kv_bytes(llama, 131_072)
    assert 80e9 - 2 * llama.params < of_mha, "no room for one sequence"
    windows = find_model("gpt-oss-120b").groups
    assert [g.layers for g in windows] == [18, 18], "every second layer"


def test_what_the_page_says_of_the_times_is_so():
    def median(name, tokens=16_384):
        return compare.milliseconds(name, tokens)[1]

    for name in compare.READS:
        row = [median(name, tokens) for tokens in compare.LENGTHS]
        assert row == sorted(row), "longer with a longer cache"
    steps = [median(n) for n in ("MHA", "GQA-8", "GQA-2", "MQA")]
    assert steps == sorted(steps, reverse=True), "faster with fewer heads"
    shares = [
        median(name) / median("MHA") * 32 / K
        for name, K in compare.READS.items()
        if name != "read"
    ]
    assert shares == sorted(shares), "the gain is smaller than that of bytes"
