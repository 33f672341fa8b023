"""Names in other code: the places that the page links, and what it says."""

import inspect
import re
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn
from torch.testing import assert_close
from transformers.masking_utils import sliding_window_overlay
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    apply_rotary_pos_emb,
)

import attnref
from attnref import apply_rope, rope_table, split_qkv, weights_of_torch_mha
from attnref.layers.mla import Parts
from sitekit import ROOT
from sitekit.drawn import names
from sitekit.markdown import pages
from tests.kit.pages import fences

# Query heads, of which two share each of the K key/value heads.
B, T, H, K, D = 3, 7, 10, 5, 4
SITE = Path(transformers.__file__).parents[1]
# What is installed: the folder in its repository that is not in the package.
INSTALLED = {"transformers": "src/", "PyTorch": ""}


def rows():
    for rows in names.read()["tables"].values():
        yield from rows


def places():
    """Each name, with one place that has it."""
    for row in rows():
        for name, every in row["names"].items():
            yield from ((name, place) for place in every)


def word(name):
    """What a line is searched for: `W_UK (R, H, Dn)` is `W_UK`."""
    return name if name[0] in "([" else re.split(r",? |=|\[", name)[0]


def test_each_name_is_linked_to_a_line_of_a_release_or_a_commit():
    links = [names.address(place) for _, place in places()]
    at = r"(?:[0-9a-f]{40}|(?:core_|gguf-)?v\d+\.\d+\.\d+(?:\.post\d)?)"
    place = rf"https://github\.com/[\w-]+/[\w.-]+/blob/{at}/[\w./-]+\.py#L\d+"
    assert len(links) > 250
    assert [link for link in links if not re.fullmatch(place, link)] == []
    files = names.read()["code"].items()
    listed = {(base, file) for base, b in files for file in b["files"]}
    assert {tuple(p.split()[:2]) for _, p in places()} == listed


def test_the_installed_libraries_have_each_name_on_its_line():
    code = names.read()["code"]
    assert code["transformers"]["at"] == f"v{transformers.__version__}"
    assert code["PyTorch"]["at"] == torch.version.git_version
    wrong, read = [], 0
    for name, place in places():
        base, file, line = place.split()
        if base in INSTALLED:
            path = code[base]["files"][file].removeprefix(INSTALLED[base])
            lines = (SITE / path).read_text("utf-8").splitlines()
            whole = re.compile(rf"(?<!\w){re.escape(word(name))}(?!\w)")
            have = [i for i, text in enumerate(lines, 1) if whole.search(text)]
            read += 1
            if int(line) not in have:
                wrong.append(f"{name}: {place}, but it is on {have[:9]}")
    assert read > 50
    assert wrong == []


def own_names():
    """What the package calls anything: functions, arguments, attributes,
    parameters."""
    sizes = {"d_model": 8, "n_heads": 2}
    widths = ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "q_lora_rank")
    latent = {name: 4 for name in widths} | {"qk_rope_head_dim": 4}
    layers = (
        attnref.GroupedQueryAttention(n_kv_heads=1, **sizes),
        attnref.MultiHeadLatentAttention(**sizes, **latent),
    )
    for layer in layers:
        yield from (*vars(layer), *dict(layer.named_children()))
        yield from inspect.signature(layer.forward).parameters
    yield from (*dir(attnref.Cache), *vars(attnref.KVCache(1)))
    yield from Parts._fields
    for name in attnref.__all__:
        yield from (name, *inspect.signature(getattr(attnref, name)).parameters)
    legend = (ROOT / "docs/en/conventions.md").read_text("utf-8")
    yield from re.findall(r"^\| `(\w+)` \|", legend, flags=re.M)


def test_what_is_called_ours_is_in_the_package_and_on_the_page_linked():
    known = {*own_names(), "half", "interleaved", "W", "tokens"}
    # Local names of the code that the page on absorption shows.
    known |= {"w_uk", "w_uv", "entry", "cos", "sin", "p"}
    for row in rows():
        ours = f"{row.get('here', '')} {row.get('letter', '')}"
        assert {*re.findall(r"[A-Za-z_]+", ours)} <= known, ours
        if "here" in row and "page" in row:
            path, _, place = row["page"].partition("#")
            text = pages.program(pages.body_of(ROOT / "docs/en" / path))
            text += (ROOT / "docs/en" / path).read_text("utf-8")
            assert f"{{ #{place} }}" in text
            ours = row["here"].partition(" (")[0]
            assert {*re.findall(r"\w+", ours)} <= {*re.findall(r"\w+", text)}


def test_every_table_is_on_the_page_and_has_a_word_for_each_row():
    shown = [spec for _, spec in fences("names") if "words" in spec]
    named = [re.findall(r'"(\w+)"', spec["table"]) for spec in shown]
    assert [name for (name,) in named] == [*names.read()["tables"]]
    cells = names.names("masks")
    assert cells[0][0].key == "may"
    assert cells[0][2][0].startswith(
        "`attn_mask` [PyTorch](https://github.com/pytorch/pytorch/blob/"
    )
    assert "`w_vc` `(H, R, Dv)` [SGLang]" in names.names("matrices")[1][2][3]
    assert len(names.code_bases()) == 9


def test_groups_are_counted_in_two_ways():
    config = transformers.LlamaConfig(
        hidden_size=H * D, num_attention_heads=H, num_key_value_heads=K
    )
    assert LlamaAttention(config, 0).num_key_value_groups == H // K != K


def test_widths_of_mla_in_transformers():
    config = transformers.DeepseekV3Config()
    assert config.qk_head_dim == 192
    assert config.head_dim == config.qk_rope_head_dim == 64
    assert config.num_key_value_heads == 128  # and one latent
    source = inspect.getsource(modeling_deepseek_v3.DeepseekV3Attention)
    latent = "kv_nope = self.kv_a_layernorm(kv_nope)"
    stored = "cache.update(kv_nope, k_rot"
    assert 0 < source.index(latent) < source.index(stored)


# --8<-- [start:split]
def split_fused(weight, n_kv_heads, head_dim):
    """The rows of a fused projection, group by group, as three matrices."""
    groups = weight.unflatten(0, (n_kv_heads, -1, head_dim))
    q, k, v = groups.tensor_split((-2, -1), dim=1)
    return [part.flatten(0, 2) for part in (q, k, v)]


# --8<-- [end:split]


def test_a_fused_projection_is_split_group_by_group():
    # --8<-- [start:fused]
    import torch

    # Four query heads share two key/value heads; each has a single row.
    fused = ["q1", "q2", "k1", "v1", "q3", "q4", "k2", "v2"]
    parts = split_fused(torch.arange(8)[:, None], n_kv_heads=2, head_dim=1)
    q, k, v = ([fused[row] for row in part.flatten()] for part in parts)
    assert q == ["q1", "q2", "q3", "q4"]
    assert k == ["k1", "k2"] and v == ["v1", "v2"]
    # --8<-- [end:fused]


X = torch.randn(B, T, H * D, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("n_kv_heads", [H, K], ids=["neox", "falcon"])
def test_fused_rows_are_split_as_the_package_splits_them(n_kv_heads):
    """By head or by group: tests/reference/oracles/test_convert.py compares
    that with the models which have such rows."""
    rows = torch.randn((H + 2 * n_kv_heads) * D, H * D)
    parts = split_fused(rows, n_kv_heads, D)
    wanted = split_qkv(rows, H, n_kv_heads, by="group")
    assert all(map(torch.equal, parts, wanted))


def test_gpt2_stores_the_transpose_and_torch_all_queries_first():
    config = transformers.GPT2Config(n_embd=H * D, n_head=H)
    c_attn = GPT2Attention(config, layer_idx=0).c_attn
    assert c_attn.weight.shape == (H * D, 3 * H * D)  # (in, out)
    assert_close(c_attn(X), X @ c_attn.weight + c_attn.bias)
    theirs = nn.MultiheadAttention(H * D, H)
    assert not theirs.batch_first  # it takes (T, B, E)
    q, k, v = theirs.in_proj_weight.chunk(3)
    ours = weights_of_torch_mha(theirs)
    assert torch.equal(q, ours["q_proj.weight"])
    assert torch.equal(v, ours["v_proj.weight"])


def test_the_matrices_of_mla_in_each_layout():
    # --8<-- [start:matrices]
    from torch.testing import assert_close

    from attnref import MultiHeadLatentAttention

    H, R, Dn, Dr, Dv, tokens = 3, 41, 19, 8, 23, 5
    layer = MultiHeadLatentAttention(
        d_model=29,
        n_heads=H,
        kv_lora_rank=R,
        qk_nope_head_dim=Dn,
        qk_rope_head_dim=Dr,
        v_head_dim=Dv,
    )
    up = layer.kv_b_proj.weight.view(H, Dn + Dv, R)
    w_uk, w_uv = up.split((Dn, Dv), dim=1)  # as here and in DeepSeek's code

    W_UK = w_uk.permute(2, 0, 1)  # vLLM: (R, H, Dn)
    W_UK_T = W_UK.permute(1, 2, 0)  # vLLM: (H, Dn, R)
    w_kc = w_uk  # SGLang: (H, Dn, R)
    W_UV = w_vc = w_uv.mT  # vLLM's parameter, and SGLang: (H, R, Dv)
    assert torch.equal(W_UK_T, w_kc)

    # Per token: a query of each head, a latent, a weighted sum of latents.
    q_nope, c = torch.randn(tokens, H, Dn), torch.randn(tokens, R)
    mixed = torch.randn(tokens, H, R)

    # The same scores, from keys that are computed and from absorbed queries.
    k_nope, v = layer.kv_b_proj(c).view(tokens, H, -1).split((Dn, Dv), dim=-1)
    scores = torch.einsum("thd,shd->hts", q_nope, k_nope)
    ql_nope = torch.bmm(q_nope.transpose(0, 1), W_UK_T)  # (H, tokens, R)
    assert_close(ql_nope @ c.T, scores)
    assert_close(ql_nope, torch.einsum("thd,rhd->htr", q_nope, W_UK))

    # The same values, and each head's output from its sum of latents.
    assert_close(torch.einsum("sr,hrd->shd", c, w_vc), v)
    out = torch.bmm(mixed.transpose(0, 1), W_UV)  # (H, tokens, Dv)
    assert_close(out, torch.einsum("thr,hdr->htd", mixed, w_uv))
    # --8<-- [end:matrices]


def test_packed_sequences_are_those_of_a_padded_batch():
    # --8<-- [start:layouts]
    from itertools import pairwise

    from torch.nn.functional import pad

    from attnref import causal_mask, padding_mask, sdpa

    B, H, T, D = 3, 6, 5, 4
    q, k, v = torch.randn(3, B, H, T, D)  # here and in PyTorch
    bshd = q.transpose(1, 2)  # FlashAttention, DeepSeek
    sbhd = q.permute(2, 0, 1, 3)  # Megatron
    assert bshd.shape == (B, T, H, D) and sbhd.shape == (T, B, H, D)
    assert torch.equal(sbhd.permute(1, 2, 0, 3), q)

    # Rows of different lengths, padded on the right or packed without pads.
    lengths = torch.tensor([5, 2, 4])
    valid = torch.arange(T) < lengths[:, None]
    cu_seqlens = pad(lengths.cumsum(0), (1, 0))
    assert cu_seqlens.tolist() == [0, 5, 7, 11]
    packed = [x.transpose(1, 2)[valid] for x in (q, k, v)]  # thd
    assert packed[0].shape == (11, H, D)

    padded = sdpa(q, k, v, causal_mask(T) & padding_mask(valid))
    for row, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
        alone = [x[None, start:end].transpose(1, 2) for x in packed]
        n = end - start
        assert_close(sdpa(*alone, causal_mask(n))[0], padded[row, :, :n])
    # --8<-- [end:layouts]


def test_a_sliding_window_of_w_includes_the_query_itself():
    """For FlashAttention, whose bounds are inclusive, it is `(W - 1, 0)`."""
    W, i = 4, 10
    inside = sliding_window_overlay(W)
    assert [j for j in range(i + 1) if inside(0, 0, i, j)] == [7, 8, 9, 10]
    left, right = W - 1, 0
    assert [*range(i - left, i + right + 1)] == [7, 8, 9, 10]


def test_layouts_of_rope_have_two_names_for_one_switch():
    """Llama in transformers is `half`; DeepSeek's complex numbers pair
    neighbours, as `interleaved` does."""
    x = torch.randn(B, H, T, D)
    cos, sin = rope_table(torch.arange(T), D)
    wide = [torch.cat((t, t), dim=-1)[None].float() for t in (cos, sin)]
    theirs, _ = apply_rotary_pos_emb(x, x, *wide)
    assert_close(apply_rope(x, cos, sin, layout="half"), theirs)
    freqs_cis = torch.complex(cos, sin)
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)))
    turned = torch.view_as_real(pairs * freqs_cis).flatten(-2).float()
    assert_close(apply_rope(x, cos, sin, layout="interleaved"), turned)
    config = transformers.DeepseekV3Config()
    assert config.rope_interleave
    assert "rope_theta" in transformers.LlamaConfig().rope_parameters


def test_what_else_the_page_says_of_transformers():
    scale = transformers.Gemma2Config().query_pre_attn_scalar ** -0.5
    config = transformers.Gemma2Config()
    assert Gemma2Attention(config, 0).scaling == scale
    cache = transformers.DynamicCache()
    for layer in range(2):  # one object for all layers
        cache.update(torch.ones(B, K, T, D), torch.ones(B, K, T, D), layer)
    assert cache.get_seq_length() == T
    config = transformers.LlamaConfig(num_hidden_layers=1)
    static = transformers.StaticCache(config, max_cache_len=T)
    static.update(torch.ones(B, K, T, D), torch.ones(B, K, T, D), 0)
    for each in (cache, static):
        each.crop(-2)
        assert each.get_seq_length() == T - 2
        with pytest.raises((ValueError, RuntimeError), match="negative"):
            each.crop(2)


@torch.no_grad()
def test_a_cache_of_transformers_is_called_cache_and_has_an_older_name():
    sizes = {"hidden_size": H * D, "intermediate_size": 7, "vocab_size": 11}
    heads = {"num_attention_heads": H, "num_key_value_heads": K}
    config = transformers.LlamaConfig(num_hidden_layers=1, **sizes, **heads)
    model, tokens = transformers.LlamaModel(config), torch.zeros(B, T).long()
    out = model(tokens, use_cache=True)
    assert out.past_key_values is out.cache
    assert model(tokens, cache=out.cache).cache.get_seq_length() == 2 * T
    with pytest.warns(FutureWarning, match=r"removed in version 5\.40"):
        model(tokens, past_key_values=out.cache)
    assert out.cache.get_seq_length() == 3 * T


@torch.no_grad()
def test_what_the_page_says_of_caches_since_transformers_5():
    sizes = {"hidden_size": H * D, "intermediate_size": 7, "vocab_size": 11}
    heads = {"num_attention_heads": H, "num_key_value_heads": K}
    config = transformers.MistralConfig(
        num_hidden_layers=1, sliding_window=4, **sizes, **heads
    )
    model = transformers.MistralModel(config).eval()
    tokens = torch.randint(11, (B, T))
    out = model(tokens).last_hidden_state

    pair = torch.randn(2, B, K, 2, config.head_dim)
    with pytest.raises(AttributeError, match="'tuple' object"):
        model(tokens, cache=(tuple(pair),))
    wrapped = transformers.DynamicCache((tuple(pair),))
    assert model(tokens, cache=wrapped).cache.get_seq_length() == T + 2

    late = torch.arange(100, 100 + T)
    assert_close(model(tokens, cache_position=late).last_hidden_state, out)
    late[-1] += 100
    moved = model(tokens, position_ids=late[None]).last_hidden_state
    assert (moved - out).abs().max() > 1e-3, "position_ids count"

    gone = ("HybridCache", "from_legacy_cache")
    for where in (transformers, transformers.DynamicCache):
        assert not any(hasattr(where, name) for name in gone)
    cache_utils = transformers.cache_utils
    assert cache_utils.SlidingWindowCache is transformers.StaticCache
    of_config = transformers.DynamicCache(config=config)
    for cache, kept in ((transformers.DynamicCache(), T), (of_config, 3)):
        model(tokens, cache=cache)
        assert cache.layers[0].keys.shape[2] == kept
    static = transformers.StaticCache(config, max_cache_len=T)
    model(tokens, cache=static)
    assert static.layers[0].keys.shape[2] == 4
    hybrid = transformers.Qwen3NextConfig(num_hidden_layers=4)
    kinds = [
        isinstance(layer, cache_utils.LinearAttentionLayer)
        for layer in transformers.DynamicCache(config=hybrid).layers
    ]
    assert kinds == [True, True, True, False]


def test_gemma_2_is_run_with_eager_attention_and_refuses_sdpa():
    sizes = {"hidden_size": 8, "intermediate_size": 7, "vocab_size": 11}
    config = transformers.Gemma2Config(num_hidden_layers=1, **sizes)
    model = transformers.Gemma2ForCausalLM(config)
    assert model.config._attn_implementation == "eager"
    with pytest.raises(ValueError, match="does not support an attention"):
        model.set_attn_implementation("sdpa")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_models_with_sinks_are_those_that_the_page_names(language):
    """Which have a parameter for them; the page of sinks says so of each."""
    folder = Path(transformers.__file__).parent / "models"
    parameter = re.compile(r"self\.sinks = nn\.Parameter")
    models = {
        path.parent.name
        for path in folder.glob("*/modeling_*.py")
        if parameter.search(path.read_text(encoding="utf-8"))
    }
    page = (ROOT / f"docs/{language}/core/sinks.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"^- \*\*.*gpt-oss.*transformers.*$", page, re.M)
    assert {*re.findall(r"`(\w+)`", sentence)} | {"gpt_oss"} == models
    for name, line in (
        ("hy_v4", "attn_output * torch.sigmoid(gate_states)"),
        ("inkling2", "sinks = self.sink_proj(hidden_states)"),
    ):
        code = (folder / name / f"modeling_{name}.py").read_text("utf-8")
        assert line in code and f"`{name}`" in page
