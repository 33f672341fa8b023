"""The four variants side by side: drawn, computed, in code, and their times."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from attnref.numbers.cost import Cost, attention_cost, mla_cost
from attnref.numbers.kv_memory import DTYPES, entry_bytes, group_bytes, size
from attnref.numbers.shapes import Full, Mla
from attnref.released.specs import find_model, models
from sitekit import ROOT
from sitekit.check.mistakes import coloured
from sitekit.drawing import svg
from sitekit.drawing.heads import HEIGHT, picture, wiring
from sitekit.drawn import operations
from sitekit.drawn.calculator import COUNT, LIMITS
from sitekit.drawn.measured import sizes, slug, spread
from sitekit.drawn.memory import forms_of
from sitekit.drawn.released import kinds_of
from sitekit.markdown.render import Row, Word, Words, render
from sitekit.released.javascript import bundle

# --- the same sizes for all four ---------------------------------------------

# The address of the page has the names that the calculator uses.
SIZES = "layers d_model heads kv_heads head_dim kv_lora_rank qk_rope_head_dim"
FIELDS = (*SIZES.split(), "q_lora_rank", "tokens", "ranks")
MAXIMA = LIMITS | dict.fromkeys(("d_model", "q_lora_rank"), 100_000)
WIDTHS = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}


def _preset(id: str, d_model: int, q_lora_rank: int = 0) -> dict[str, int]:
    """The sizes of a model, with the latent of DeepSeek-V3 for MLA and eight
    key/value heads for GQA where it has others."""
    (group,) = find_model(id).groups
    assert isinstance(group, Full | Mla) and group.q_heads
    head_dim = group.head_dim if isinstance(group, Full) else group.v_head_dim
    assert head_dim
    return {
        "layers": group.layers,
        "d_model": d_model,
        "heads": group.q_heads,
        "kv_heads": group.kv_heads if isinstance(group, Full) else 8,
        "head_dim": head_dim,
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
    """Costs of a decode step; MLA has two, absorbed and expanded."""
    H, D = shape["heads"], shape["head_dim"]
    options: dict[str, Any] = {"d_model": shape["d_model"], "n_heads": H}
    heads = {"mha": H, "gqa": shape["kv_heads"], "mqa": 1}
    result = {
        name: [attention_cost(**options, head_dim=D, n_kv_heads=K)] for name, K in heads.items()
    }
    options |= {name: shape[name] for name in WIDTHS}
    options |= {"qk_nope_head_dim": D, "v_head_dim": D}
    options |= {"q_lora_rank": shape["q_lora_rank"] or None}
    forms = ("absorbed", "expanded")
    return result | {"mla": [mla_cost(**options, form=form) for form in forms]}


def digits(n: float) -> str:
    """A number with four digits, as `size` writes it."""
    return f"{float(f'{n:.4g}'):.10g}"


ROWS = ("cached", "token", "total", "device", "flops", "intensity", "weights")


def facts(shape: dict[str, int], dtype: str = DTYPE) -> dict[str, list[str]]:
    """What each of the four takes: the texts of its column, by ROWS."""
    storage, result = DTYPES[dtype], {}
    forms = forms_of(shape | {"v_head_dim": shape["head_dim"]})
    for name, costs in _costs(shape).items():
        group, cost = forms[name], costs[0]
        (store,) = group.stores
        sizes_of_cache = [
            size(group_bytes(group, shape["tokens"], storage, ranks=ranks))
            for ranks in (1, shape["ranks"])
        ]
        widths = "c ({}), kᴿ ({})" if name == "mla" else "k, v ({}, {})"
        first = store.widths[0] if name == "mla" else store.heads
        result[name] = [
            widths.format(first, store.widths[1]),
            f"{entry_bytes(store, storage):,}",
            *sizes_of_cache,
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


PICTURE = 160  # the width of each of the four, in px


def comparison(*, words: dict[str, str]) -> str:
    """The four in the sizes of three models; a script takes any others."""
    texts, pictures = Words(words), {}
    for name, n_kv_heads in {"mha": 8, "gqa": 2, "mqa": 1, "mla": 0}.items():
        marks = picture(*wiring(8, n_kv_heads), PICTURE)
        pictures[name] = svg.picture(PICTURE, HEIGHT, NAMES[name], marks)
    texts.used |= {"bad_number", "divides"}
    plain = {k: text.partition(" $")[0] for k, text in words.items()}
    keys = ("bad_number", "divides", "total", "device", *FIELDS)
    return render(
        "comparison",
        words=texts,
        names=NAMES,
        drawn=pictures,
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
            "most": {name: MAXIMA[name] for name in FIELDS},
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
        name: [m.name for m in models().values() if NAMES[name] in kinds_of(m)] for name in NAMES
    }


def released() -> Iterator[Row]:
    for name, ids in having().items():
        yield [NAMES[name], str(len(ids)), ", ".join(ids)]


# --- the same in code -------------------------------------------------------

# The lines of each plain form that compute and store keys and values.
PATTERNS = {
    "mha": r"self\.[kv]_proj = |k, v = self\.split|q @ k|softmax|weights @",
    "gqa": r"self\.[kv]_proj = |cache\.append|enable_gqa=True",
    "mla": r"self\.kv_\w+ = |cache\.append|k, v = entry|q @ w_k|@ w_v|scale=",
}


def lines_of(name: str) -> list[str]:
    """The lines of a plain form that match its pattern, without indents."""
    text = (ROOT / f"attnref/plain/{name}.py").read_text("utf-8")
    body = text[text.index(f"class {name.upper()}(") :].splitlines()
    return [line.strip() for line in body if re.search(PATTERNS[name], line)]


def difference(*, titles: list[str], caption: str) -> str:
    """From MHA to GQA, from GQA to MQA and from there to MLA."""
    mha, gqa, mla = map(lines_of, PATTERNS)
    one = ["GQA(d_model, n_heads, n_kv_heads)", "GQA(d_model, n_heads, 1)"]
    changes = [(mha, gqa), (one[:1], one[1:]), (gqa, mla)]
    diffs = ["\n".join([*(f"-{x}" for x in old), *(f"+{x}" for x in new)]) for old, new in changes]
    blocks = zip(titles, map(coloured, diffs), strict=True)
    return render("difference", blocks=[*blocks], caption=caption)


# --- times -------------------------------------------------------------------

LENGTHS = (1024, 4096, 16_384)  # tokens: the columns of the table of times
READS = {"read": 32, "MHA": 32, "GQA-8": 8, "GQA-2": 2, "MQA": 1}


def milliseconds(name: str, tokens: int) -> list[float]:
    """Measured times: lower quartile, median, upper quartile."""
    if name == "read":  # the rate is in the file
        point = sizes("decode")[f"float32, MHA, {tokens}"]
        bytes_read = 2 * READS[name] * 128 * tokens * 4
        return [bytes_read / x / 1e6 for x in reversed(point["probes"]["GB/s"])]
    point = sizes("decode")[f"float32, {name}, {tokens}"]
    return list(point["ways"]["fused"]["value"])


def decoding() -> Iterator[Row]:
    """The variants: milliseconds at each length, and beside the last of them,
    relative to MHA, the bytes that are read."""
    for name, K in READS.items():
        row: Row = [Word(slug(name))]
        row += [spread(milliseconds(name, tokens)) for tokens in LENGTHS]
        took, base = (milliseconds(n, LENGTHS[-1])[1] for n in (name, "MHA"))
        share = K / READS["MHA"]
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
