"""The four variants side by side: drawn, computed, in code, and their times."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from markupsafe import Markup
from torch import Tensor

import attnref
from attnref.numbers.cost import Cost, attention_cost, mla_cost
from attnref.numbers.kv_memory import DTYPES, entry_bytes, group_bytes, size
from attnref.numbers.shapes import Full, Mla
from attnref.released.specs import find_model, models
from sitekit import ROOT
from sitekit.check.mistakes import coloured
from sitekit.drawing import svg
from sitekit.drawing.recorded import inputs_of, wiring
from sitekit.drawn import operations
from sitekit.drawn.calculator import COUNT, LIMITS
from sitekit.drawn.measured import sizes, slug, spread
from sitekit.drawn.memory import forms_of
from sitekit.drawn.released import kinds_of
from sitekit.markdown.render import Row, Word, Words, render
from sitekit.released.javascript import bundle

# --- which query head reads what --------------------------------------------

LETTERS = {"query": "q", "key": "k", "value": "v", "latent": "c"}
Q, MADE, CACHED = 10, 44, 98  # where they stand in a picture


def wires_of(n_heads: int, n_kv_heads: int) -> tuple[Tensor, Tensor]:
    """Found by running a layer: which query head reads which key/value head,
    `(H, K)`, and which of these are computed from a latent, `(K,)`. It is MLA
    if there are no key/value heads."""
    if not n_kv_heads:
        wired = latent_wiring(n_heads)
        return wired.up, wired.latent
    layer = attnref.GroupedQueryAttention(
        d_model=4 * n_heads, n_heads=n_heads, n_kv_heads=n_kv_heads
    )
    return wiring(layer), torch.zeros(n_kv_heads)


def picture(wires: Tensor, latent: Tensor, wide: int) -> Iterator[Markup]:
    """The heads, and what they read: filled is what is stored."""
    (H, K), made = wires.shape, bool(latent.any())
    row, middle = MADE if made else CACHED, CACHED + 9.5

    def place(i: int, n: int) -> float:
        return wide * (i + 0.5) / n

    def box(
        kind: str, x: float, y: float, word: str, w: int = 17, h: int = 18
    ) -> Iterator[Markup]:
        filled = kind in ("key", "value", "latent")
        rx = 9 if kind == "query" else 3
        yield svg.BOX.format(kind, x - w / 2, y - h / 2, w, h, rx, "")
        ink = "on" if filled else kind
        down = kind == "query"  # q has its ink below the line
        yield svg.TEXT.format(f"{ink} head", x, y - down, "", word)

    for h, k in wires.nonzero().tolist():
        yield svg.LINE.format(place(h, H), Q, place(k, K), row)
    for (k,) in latent.nonzero().tolist():
        yield svg.LINE.format(place(k, K), row + 19, wide / 2, middle)
    for h in range(H):
        yield from box("query", place(h, H), Q, "q")
    for k in range(K):
        for n, name in enumerate(("key", "value")):
            kind = f"{name} made" if made else name
            yield from box(kind, place(k, K), row + 19 * n, LETTERS[name])
    if made:
        yield from box("latent", wide / 2 - 11, middle, "c", 66, 37)
        yield from box("key", wide / 2 + 34, middle, "kᴿ", 20, 37)


class Wired(NamedTuple):
    """Found by experiment in MLA: which query heads change with the keys and
    values of one head, `(H, H)`, with the latent and with the RoPE key,
    `(H,)`; and which with the latent while nothing is made from it."""

    up: Tensor
    latent: Tensor
    rope: Tensor
    past_up: Tensor


@torch.no_grad()
def latent_wiring(n_heads: int) -> Wired:
    sizes: dict[str, Any] = {"kv_lora_rank": 12, "qk_nope_head_dim": 4}
    sizes |= {"qk_rope_head_dim": 2, "v_head_dim": 4}
    layer = attnref.MultiHeadLatentAttention(
        d_model=32, n_heads=n_heads, **sizes
    )
    (x,) = inputs_of(layer, 1, 5, 5)
    heads: list[Tensor] = []
    layer.o_proj.register_forward_pre_hook(
        lambda _, args: heads.append(args[0].unflatten(-1, (n_heads, -1)))
    )

    def run() -> Tensor:
        layer(x)
        return heads.pop()

    def changed(rows: Tensor, change: Callable[[Tensor], object]) -> Tensor:
        """The heads that another value of these weights changes."""
        before, saved = run(), rows.clone()
        change(rows)
        reads = (run() != before).any(-1).any(1)[0]
        rows.copy_(saved)
        return reads

    def another(rows: Tensor) -> Tensor:
        return rows.add_(1)

    up = layer.kv_b_proj.weight
    down, rope = layer.kv_a_proj_with_mqa.weight.tensor_split((12,))
    of_heads = [changed(rows, another) for rows in up.chunk(n_heads)]
    latent, turned = changed(down, another), changed(rope, another)
    up.zero_()  # nothing is made from the latent any more
    return Wired(
        torch.stack(of_heads, dim=1), latent, turned, changed(down, another)
    )


# --- the same sizes for all four ---------------------------------------------

# In the address of the page these are what the calculator calls them.
SIZES = "layers d_model heads kv_heads head_dim kv_lora_rank qk_rope_head_dim"
FIELDS = (*SIZES.split(), "q_lora_rank", "tokens", "ranks")
MOST = LIMITS | dict.fromkeys(("d_model", "q_lora_rank"), 100_000)
WIDTHS = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}


def _preset(id: str, d_model: int, q_lora_rank: int = 0) -> dict[str, int]:
    """The sizes of a model, with the latent of DeepSeek-V3 for MLA and eight
    key/value heads for GQA where it has others."""
    (group,) = find_model(id).groups
    assert isinstance(group, Full | Mla) and group.q_heads
    wide = group.head_dim if isinstance(group, Full) else group.v_head_dim
    assert wide
    return {
        "layers": group.layers,
        "d_model": d_model,
        "heads": group.q_heads,
        "kv_heads": group.kv_heads if isinstance(group, Full) else 8,
        "head_dim": wide,
        **WIDTHS,
        "q_lora_rank": q_lora_rank,
        "tokens": 131_072,
        "ranks": 8,
    }


PRESETS = {
    "llama-3.1-8b": _preset("llama-3.1-8b", 4096),
    "llama-3.1-405b": _preset("llama-3.1-405b", 16_384),
    "deepseek-v3": _preset("deepseek-v3", 7168, 1536),
}
DTYPE = "bf16"


def _costs(shape: dict[str, int]) -> dict[str, list[Cost]]:
    """Of a decode step; for MLA in its absorbed and its expanded form."""
    H, D = shape["heads"], shape["head_dim"]
    of: dict[str, Any] = {"d_model": shape["d_model"], "n_heads": H}
    heads = {"mha": H, "gqa": shape["kv_heads"], "mqa": 1}
    result = {
        name: [attention_cost(**of, head_dim=D, n_kv_heads=K)]
        for name, K in heads.items()
    }
    of |= {name: shape[name] for name in WIDTHS}
    of |= {"qk_nope_head_dim": D, "v_head_dim": D}
    of |= {"q_lora_rank": shape["q_lora_rank"] or None}
    forms = ("absorbed", "expanded")
    return result | {"mla": [mla_cost(**of, form=form) for form in forms]}


def digits(n: float) -> str:
    """To four digits, as `size` has them."""
    return f"{float(f'{n:.4g}'):.10g}"


ROWS = ("cached", "token", "total", "device", "flops", "intensity", "weights")


def facts(shape: dict[str, int], dtype: str = DTYPE) -> dict[str, list[str]]:
    """What each of the four takes: the texts of its column, by ROWS."""
    storage, result = DTYPES[dtype], {}
    forms = forms_of(shape | {"v_head_dim": shape["head_dim"]})
    for name, costs in _costs(shape).items():
        group, cost = forms[name], costs[0]
        (store,) = group.stores
        taken = [
            size(group_bytes(group, shape["tokens"], storage, ranks=ranks))
            for ranks in (1, shape["ranks"])
        ]
        widths = "c ({}), kᴿ ({})" if name == "mla" else "k, v ({}, {})"
        first = store.widths[0] if name == "mla" else store.heads
        result[name] = [
            widths.format(first, store.widths[1]),
            f"{entry_bytes(store, storage):,}",
            *taken,
            " / ".join(f"{c.scores + c.values:,}" for c in costs),
            digits(float(cost.attention_intensity(dtype))),
            f"{cost.parameters:,}",
        ]
    return result


def parts(shape: dict[str, int]) -> dict[str, list[tuple[str, str, int, int]]]:
    """What each stores of a token in a layer: kind, letter, heads, width."""
    H, K, D = (shape[name] for name in ("heads", "kv_heads", "head_dim"))
    result = {
        name: [("key", "k", n, D), ("value", "v", n, D)]
        for name, n in {"mha": H, "gqa": K, "mqa": 1}.items()
    }
    latent, rope = WIDTHS
    result["mla"] = [("latent", "c", 1, shape[latent])]
    result["mla"] += [("key", "kᴿ", 1, shape[rope])]
    return result


NAMES = {"mha": "MHA", "gqa": "GQA", "mqa": "MQA", "mla": "MLA"}
SUMS = {
    "mha": "$2\\,h\\,d_k$",
    "gqa": "$2\\,h_{kv}\\,d_k$",
    "mqa": "$2\\,d_k$",
    "mla": "$d_c + d_r$",
}


def comparison(*, words: dict[str, str]) -> str:
    """The four in the sizes of three models; a script takes any others."""
    worded, drawn = Words(words), {}
    for name, shown in {"mha": 8, "gqa": 2, "mqa": 1, "mla": 0}.items():
        marks = Markup("").join(picture(*wires_of(8, shown), 160))
        drawn[name] = svg.SVG.format(160, 132, NAMES[name], marks)
    worded.used |= {"bad_number", "divides"}
    plain = {k: text.partition(" $")[0] for k, text in words.items()}
    keys = ("bad_number", "divides", "total", "device", *FIELDS)
    return render(
        "comparison",
        words=worded,
        names=NAMES,
        drawn=drawn,
        sums=SUMS,
        told=ROWS,
        fields=FIELDS,
        presets={id: find_model(id).name for id in PRESETS},
        first=PRESETS["llama-3.1-8b"],
        dtypes=[*DTYPES],
        dtype=DTYPE,
        states=[(facts(shape), parts(shape)) for shape in PRESETS.values()],
        found={name: len(ids) for name, ids in having().items()},
        all=len(models()),
        known={
            "presets": [*PRESETS.values()],
            "dtypes": [*DTYPES],
            "most": {name: MOST[name] for name in FIELDS},
            "words": {k: plain[k] for k in keys},
        },
    )


@cache
def script() -> str:
    """assets/compared.js: what the page's own script calls."""
    return bundle([COUNT, (__name__, "facts"), (__name__, "parts")])


def having() -> dict[str, list[str]]:
    """Which models have layers of each of the four."""
    return {
        name: [m.name for m in models().values() if NAMES[name] in kinds_of(m)]
        for name in NAMES
    }


def released() -> Iterator[Row]:
    for name, ids in having().items():
        yield [NAMES[name], str(len(ids)), ", ".join(ids)]


# --- the same in code -------------------------------------------------------

# Of each plain form, the lines that make and keep keys and values.
PATTERNS = {
    "mha": r"self\.[kv]_proj = |k, v = self\.split|q @ k|softmax|weights @",
    "gqa": r"self\.[kv]_proj = |cache\.append|enable_gqa=True",
    "mla": r"self\.kv_\w+ = |cache\.append|k, v = entry|q @ w_k|@ w_v|scale=",
}


def lines_of(name: str) -> list[str]:
    """Those lines of a plain form, without their indents."""
    text = (ROOT / f"attnref/plain/{name}.py").read_text("utf-8")
    body = text[text.index(f"class {name.upper()}(") :].splitlines()
    return [line.strip() for line in body if re.search(PATTERNS[name], line)]


def difference(*, titles: list[str], caption: str) -> str:
    """From MHA to GQA, from GQA to MQA and from there to MLA."""
    mha, gqa, mla = map(lines_of, PATTERNS)
    one = ["GQA(d_model, n_heads, n_kv_heads)", "GQA(d_model, n_heads, 1)"]
    changes = [(mha, gqa), (one[:1], one[1:]), (gqa, mla)]
    signed = [
        "\n".join([*(f"-{x}" for x in old), *(f"+{x}" for x in new)])
        for old, new in changes
    ]
    blocks = zip(titles, map(coloured, signed), strict=True)
    return render("difference", blocks=[*blocks], caption=caption)


# --- times -------------------------------------------------------------------

LENGTHS = (1024, 4096, 16_384)  # tokens: the columns of the table of times
READS = {"read": 32, "MHA": 32, "GQA-8": 8, "GQA-2": 2, "MQA": 1}


def milliseconds(name: str, tokens: int) -> list[float]:
    """As measured: lower quartile, median, upper quartile."""
    if name == "read":  # the rate is in the file
        point = sizes("decode")[f"float32, MHA, {tokens}"]
        moved = 2 * READS[name] * 128 * tokens * 4
        return [moved / x / 1e6 for x in reversed(point["probes"]["GB/s"])]
    point = sizes("decode")[f"float32, {name}, {tokens}"]
    return list(point["ways"]["fused"]["value"])


def decoding() -> Iterator[Row]:
    """The variants: milliseconds at each length, and beside the last of them,
    relative to MHA, the bytes that are read."""
    for name, heads in READS.items():
        row: Row = [Word(slug(name))]
        row += [spread(milliseconds(name, tokens)) for tokens in LENGTHS]
        took, base = (milliseconds(n, LENGTHS[-1])[1] for n in (name, "MHA"))
        share = heads / READS["MHA"]
        yield [*row, f"{took / base:.3g}", f"{share:.3g}"]


def numbers() -> dict[str, object]:
    """What the text says of GPUs and of Kimi K3."""
    latent, state = (group.layers for group in find_model("kimi-k3").groups)
    return {
        "ridge": operations.H100.ridge,
        "ridge_h20": operations.H20.ridge,
        "latent": latent,
        "recurrent": state,
    }
