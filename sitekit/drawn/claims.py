"""What is computed against claims that are wrong.

A row has the claim, what holds and how one knows it: the page's own words,
with what is computed here in the last of them.
"""

from collections.abc import Iterator
from math import sqrt

import torch
import torch.nn.functional as F

import attnref
from attnref.numbers.cost import attention_cost, mla_cost
from attnref.numbers.kv_memory import growth
from attnref.numbers.shapes import Full, Mla
from attnref.released.specs import find_model, models
from sitekit.check import mistakes
from sitekit.drawn import absorption, masks, measured, memory, operations
from sitekit.drawn.mla import V3, absorbed, narrow, stored
from sitekit.drawn.released import kinds_of
from sitekit.markdown.render import Row, Word
from sitekit.markdown.tables import code, exact


def _row(key: str, *values: str) -> Row:
    return [Word(key), Word(f"{key}_holds"), Word(f"{key}_by", values)]


def origins() -> Iterator[Row]:
    yield _row("additive")
    yield _row("older")
    yield _row("weights")
    heads = []
    for id in ("palm-540b", "llama-1-65b", "llama-2-7b", "llama-2-70b"):
        model = find_model(id)
        (group,) = model.groups
        assert isinstance(group, Full)
        heads += [str(group.q_heads), str(group.kv_heads)]
    yield _row("llama", *heads)
    last = max(model.date[:4] for model in models().values())
    kinds = [
        kind
        for model in models().values()
        if model.date.startswith(last)
        for kind in kinds_of(model)
    ]
    counts = (str(kinds.count(k)) for k in ("MHA", "GQA", "MQA", "MLA"))
    yield _row("stages", last, *counts)
    yield _row("performance")


def sharing() -> Iterator[Row]:
    """The FLOPs are those of a formula, which tests compare with what torch
    counts."""
    flops = []
    for K in (8, 4, 2, 1):
        cost = attention_cost(d_model=512, n_heads=8, n_kv_heads=K, new=1024)
        parts = map(operations.mega, (cost.projections, cost.scores + cost.values))
        flops.append(" + ".join(parts))
    yield _row("flops", *flops)
    share = {row[0].key: row[2] for row in operations.pairs() if isinstance(row[0], Word)}
    order = ("mha", "gqa", "mqa", "expanded", "absorbed")
    yield _row("order", *(str(share[key]) for key in order))
    yield _row("fastest")
    yield _row("group", f"8 / 2 = {8 // 2}")
    yield _row("groups")
    q, k = torch.zeros(2, 6, 5, 7), torch.zeros(2, 1, 7, 5)
    shapes = [code(tuple(t.shape)) for t in (q, k, q @ k)]
    yield _row("direct", f"{shapes[0]} @ {shapes[1]} → {shapes[2]}")
    head = torch.zeros(1, 2, 1024, 128)
    repeated = head.repeat_interleave(4, dim=1)
    view = head[:, :, None].expand(1, 2, 4, 1024, 128)
    sizes = (t.untyped_storage().nbytes() for t in (head, repeated, view))
    yield _row("repeat", *(f"{size:,}" for size in sizes))
    key, case = "float32, {}, 16384", measured.sizes("decode")
    slow = case[key.format("GQA-8")]["ways"]["torch, repeat_interleave"]
    plain = case[key.format("MHA")]["ways"]["fused"]
    times = (measured.digits(way["value"][1]) for way in (slow, plain))
    yield _row("faster", *times)
    shares = []
    for id in ("llama-2-7b", "llama-1-65b"):
        model = find_model(id)
        assert model.params is not None
        per_million = float(growth(model).later) / (model.params / 1e6)
        shares.append(f"{per_million:.1f}")
    yield _row("larger", *shares)
    yield _row("convert")
    yield _row("deployed")


def latent() -> Iterator[Row]:
    cache = stored(narrow())
    (group,) = find_model("deepseek-v3").groups
    assert isinstance(group, Mla) and group.qk_nope_head_dim
    R, Dr = group.kv_lora_rank, group.qk_rope_head_dim
    yield _row("entry", f"{R} + {Dr} = {cache.nbytes // 2}")
    savings = {row[0].key: str(row[2]) for row in memory.claims() if isinstance(row[0], Word)}
    yield _row("saves", savings["architecture"], savings["six"])
    yield _row("decomposed")
    weights, elements = zip(*(row[1:] for row in absorption.wrong()), strict=True)
    yield _row("absorbed", *map(str, (*weights, *elements)))
    yield _row("unsaid")
    _, width, rank = absorbed()[0].shape
    H = V3["n_heads"]
    yield _row("wabs", code((H, width, rank)), f"{width} = {R} + {Dr}")
    yield _row("destroyed")
    yield _row("rope_width", str(Dr), str(group.qk_nope_head_dim))
    yield _row("query")
    keys = group.qk_nope_head_dim + Dr
    yield _row("scale", f"√({R + Dr} / {keys}) = {sqrt((R + Dr) / keys):.2f}")
    flops = [mla_cost(**V3, form=form, past=4096).flops for form in ("latent", "absorbed")]
    times = (f"{n / 1e9:,.1f}" for n in flops)
    yield _row("small", *times, f"{flops[0] / flops[1]:.0f}")
    yield _row("unmasked")
    ratios = (
        f"{new:,} / {new + past:,} = {new / (new + past):.2g}"
        for new, past in ((4096, 0), (1, 4096))
    )
    yield _row("friendly", *ratios)
    yield _row("quality")
    yield _row("rank")
    yield _row("residual")
    yield _row("long")
    yield _row("v4")
    (sparse,) = find_model("deepseek-v3.2").groups
    widths = [sum(store.widths) for store in sparse.stores]
    yield _row("sparse", f"{' + '.join(map(str, widths))} = {sum(widths)}")


def masked() -> Iterator[Row]:
    upper = torch.ones(3, 3).int().triu(diagonal=1)
    yield _row("triangle", code(upper.tolist()))
    mask = attnref.causal_mask(4)
    rows = torch.full((4, 4), 0.25) * mask
    yield _row("after", *(f"{row:g}" for row in rows.sum(-1).tolist()))
    times = torch.softmax(torch.ones(4) * mask[0], -1)
    yield _row("times", f"{times[~mask[0]].sum():.0%}")
    far = torch.tensor(-1e9)
    difference = (3 + far - far).item()
    yield _row("filler", f"(3 − 1e9) + 1e9 = {difference:g}")
    scores, no_keys = torch.ones(4), torch.zeros(4, dtype=torch.bool)
    gives = [torch.softmax(scores.masked_fill(~no_keys, low), -1) for low in (-torch.inf, -1e9)]
    query, keys = torch.ones(1, 1, 1, 4), torch.ones(1, 1, 4, 4)
    values = torch.eye(4)[None, None]
    attend = F.scaled_dot_product_attention
    gives.append(attend(query, keys, values, no_keys[None]).flatten())
    yield _row("empty", *(f"{x[0]:g}" for x in gives))
    top = attend(query, keys, values, is_causal=True).flatten()
    yield _row("cached", code([int(x) for x in top]))
    yield _row("both")
    yield _row("packed")
    (last,) = {int(n) for n in masks.window(6, 3)[3:].sum(-1)}
    yield _row("window", str(last), str(3 + 1))
    large = torch.tensor([12.0, 0.0], dtype=torch.float16).exp()
    plain = (large / large.sum()).tolist()
    yield _row("naive", f"`exp(12)` = {large[0]:g}", str(plain))
    yield _row("approximate")
    wide, head = 512, 64
    ratio = sqrt(wide / head)
    yield _row("root", f"√({wide} / {head}) = {ratio:.2f}")


def cached() -> Iterator[Row]:
    yield _row("prefill")
    model = find_model("qwen3-32b")
    (group,) = model.groups
    assert isinstance(group, Full) and group.q_heads
    width, heads = 5120, group.q_heads
    division = f"{width:,} / {heads} = {width // heads}"
    yield _row("width", division, str(group.head_dim))
    split: list[str] = []
    for id in ("llama-3.1-8b", "deepseek-v3"):
        model = find_model(id)
        token, share = (growth(model).later, growth(model, ranks=16).later)
        split += map(exact, (token, token / 16, share))
    yield _row("ranks", *split)
    yield _row("defaults")


def coded() -> Iterator[Row]:
    transposed = torch.zeros(2, 3, 4).transpose(0, 1)
    assert not transposed.is_contiguous()
    shape = tuple(transposed.view(3, 2, 2, 2).shape)
    yield _row("view", str(transposed.stride()), f"`view{shape}`")
    yield _row("layout")
    kills = mistakes.kills().values()
    unseen = sum(record["same_shape"] for record in kills)
    yield _row("shapes", str(unseen), str(len(kills)))
    yield _row("initial", *_flat())
    yield _row("comment")


@torch.no_grad()
def _flat() -> Iterator[str]:
    """The largest of 8 weights, and what the other layout of RoPE changes:
    with small inputs, and with inputs and queries that are large."""
    torch.manual_seed(0)
    layer = attnref.MultiHeadAttention(d_model=512, n_heads=8)
    assert layer.v_proj is not None  # keys are not the values
    cos, sin = attnref.rope_table(torch.arange(8), 64)
    x0 = torch.randn(1, 8, 512)
    for spread, times in ((0.02, 1), (1, 64)):
        x = spread * x0
        q, k, v = (
            proj(x).view(1, 8, 8, 64).transpose(1, 2)
            for proj in (layer.q_proj, layer.k_proj, layer.v_proj)
        )
        halves, pairs = (
            [attnref.apply_rope(t, cos, sin, layout=name) for t in (times * q, k)]
            for name in ("half", "interleaved")
        )
        right, wrong = (attnref.sdpa(q, k, v) for q, k in (halves, pairs))
        weight = attnref.attention_weights(halves[0], halves[1]).amax(-1).mean()
        change = (wrong - right).norm() / right.norm()
        yield from (f"{weight:.3f}", f"{change:.2%}")
