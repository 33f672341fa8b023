"""Tables of memory and compute: all from attnref's specs, bytes and costs."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

from attnref.numbers.cost import Cost, attention_cost, mla_cost
from attnref.numbers.kv_memory import (
    DTYPES,
    Storage,
    entry_bytes,
    growth,
    kv_bytes,
    largest_batch,
    longest_context,
    size,
    token_bytes,
)
from attnref.numbers.specs import (
    Compressed,
    Full,
    Group,
    Mla,
    Source,
    find_model,
    models,
)
from sitekit.latent import V3
from sitekit.tables import Cell, Word, code

BF16 = DTYPES["bf16"]
CONTEXTS = (4096, 32_768, 131_072, 1_048_576)
GIB = 2**30


def short(tokens: int) -> str:
    """A number of tokens as one says it: 4K, 1M."""
    for unit, letter in ((2**20, "M"), (2**10, "K")):
        if tokens % unit == 0:
            return f"{tokens // unit}{letter}"
    return f"{tokens:,}"


def exact(n: Fraction) -> str:
    """A number of bytes, with the decimals that it has."""
    return f"{n.numerator:,}" if n.denominator == 1 else f"{float(n):,.2f}"


# Models for the pages of MHA, MQA and GQA, which hold one kind of layer.
FAMILIAR = {
    "mha": ("gpt2", "llama-1-65b", "llama-2-7b"),
    "mqa": ("palm-540b", "falcon-7b"),
    "gqa": (
        "llama-2-70b",
        "llama-3.1-8b",
        "llama-3.1-405b",
        "qwen3-32b",
        "qwen3-235b",
        "minimax-m2",
    ),
}


def familiar(kind: str) -> list[list[Cell]]:
    """Released models of a kind, and what a token costs them in bfloat16."""
    rows: list[list[Cell]] = []
    for name in FAMILIAR[kind]:
        model = find_model(name)
        (group,) = model.groups
        if not isinstance(group, Full) or group.variant != kind.upper():
            raise ValueError(f"{name} is not {kind}")
        rows.append(
            [
                model.name,
                str(group.layers),
                str(group.q_heads),
                str(group.kv_heads),
                str(group.head_dim),
                exact(growth(model).later),
                size(kv_bytes(model, 4096)),
                links(model.sources[:1]),
            ]
        )
    return rows


# --- memory --------------------------------------------------------------


# LLaMA-7B's, with 8 key/value heads for GQA and the latent of DeepSeek-V3.
SHAPE = {
    "layers": 32,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "v_head_dim": 128,
    "kv_lora_rank": V3["kv_lora_rank"],
    "qk_rope_head_dim": V3["qk_rope_head_dim"],
}


def forms_of(shape: dict[str, int]) -> dict[str, Group]:
    """The layers of a shape, with the cache of each variant."""

    def heads(kv_heads: int) -> Full:
        return Full(
            layers=shape["layers"],
            q_heads=shape["heads"],
            kv_heads=kv_heads,
            head_dim=shape["head_dim"],
            v_head_dim=shape["v_head_dim"],
        )

    return {
        "mha": heads(shape["heads"]),
        "gqa": heads(shape["kv_heads"]),
        "mla": Mla(
            layers=shape["layers"],
            q_heads=shape["heads"],
            kv_lora_rank=shape["kv_lora_rank"],
            qk_rope_head_dim=shape["qk_rope_head_dim"],
        ),
        "mqa": heads(1),
    }


def variants() -> list[list[Cell]]:
    """Each variant of LLaMA-7B's shape: 32 layers of 32 heads of 128."""
    layers, forms = SHAPE["layers"], forms_of(SHAPE)
    most = token_bytes(forms["mha"], BF16).later
    rows: list[list[Cell]] = []
    for name, formula in (
        ("mha", r"$2\,h\,d_h$"),
        ("gqa", r"$2\,K\,d_h$"),
        ("mla", r"$d_c + d_h^R$"),
        ("mqa", r"$2\,d_h$"),
    ):
        kept = token_bytes(forms[name], BF16).later
        rows.append(
            [
                Word(name),
                formula,
                f"{int(kept) // 2:,}",
                exact(layers * kept),
                size(layers * kept * 4096),
                f"{float(most / kept):.3g}",
            ]
        )
    return rows


DOZEN = (
    "llama-2-7b",
    "llama-3.1-70b",
    "qwen3-235b",
    "llama-3.1-8b",
    "gemma-3-27b",
    "deepseek-v3",
    "gpt-oss-120b",
    "kimi-k3",
    "qwen3-next-80b",
    "falcon-7b",
    "deepseek-v4-flash",
    "mistral-7b",
)


PLOT = (1024, 16_384, 131_072, 1_048_576)  # tokens of its table


def fits() -> list[list[Cell]]:
    """What 80 GiB of cache hold, on one device."""
    rows: list[list[Cell]] = []
    for name in (
        "llama-2-7b",
        "llama-3.1-70b",
        "llama-3.1-8b",
        "gpt-oss-120b",
        "deepseek-v3",
        "deepseek-v4-flash",
        "mistral-7b",
    ):
        model = find_model(name)
        longest = longest_context(model, 80 * GIB)
        int8 = longest_context(model, 80 * GIB, dtype="int8")
        rows.append(
            [
                model.name,
                Word("endless") if longest is None else f"{longest:,}",
                Word("endless") if int8 is None else f"{int8:,}",
                f"{largest_batch(model, 4096, 80 * GIB):,}",
                f"{largest_batch(model, 131_072, 80 * GIB):,}",
            ]
        )
    return rows


RANKS = (1, 2, 4, 8, 16)


def ranks() -> list[list[Cell]]:
    """Bytes of a token on each device, as heads are split over more."""
    rows: list[list[Cell]] = []
    for name in (
        "llama-2-7b",
        "llama-3.1-8b",
        "qwen3-235b",
        "falcon-7b",
        "deepseek-v3",
    ):
        model = find_model(name)
        (group,) = model.groups
        rows.append(
            [
                model.name,
                str(group.stores[0].heads),
                *(exact(growth(model, ranks=n).later) for n in RANKS),
            ]
        )
    return rows


def formats() -> list[list[Cell]]:
    """A token of one layer of Llama-3.1-8B, in numbers of several widths."""
    (group,) = find_model("llama-3.1-8b").groups
    (store,) = group.stores
    plain: list[tuple[Cell, Storage]] = [
        (code(name), DTYPES[name])
        for name in ("fp32", "bf16", "fp8", "int8", "int4")
    ]
    scaled: list[tuple[Cell, Storage]] = [
        (Word("row"), Storage(8, scale_bits=16, block=128)),
        (Word("block"), Storage(4, scale_bits=16, block=32)),
    ]
    least = entry_bytes(store, BF16)
    return [
        [
            name,
            f"{storage.bits_for(128) / 128:g}",
            f"{entry_bytes(store, storage):,}",
            f"{entry_bytes(store, storage) / least:.1%}",
        ]
        for name, storage in (*plain, *scaled)
    ]


def links(sources: tuple[Source, ...]) -> str:
    return ", ".join(f"[{s.label}]({s.url})" for s in sources)


def shipped() -> list[list[Cell]]:
    """Entries as the kernels of DeepSeek's models store them."""
    rows: list[list[Cell]] = []
    for model in models().values():
        if model.shipped is not None:
            rows.append(
                [
                    model.name,
                    str(model.shipped.kv),
                    str(model.shipped.window or model.shipped.kv)
                    if any(isinstance(g, Compressed) for g in model.groups)
                    else "–",
                    str(model.shipped.index),
                    exact(growth(model).later),
                    exact(growth(model, dtype="shipped").later),
                    links(model.shipped.sources),
                ]
            )
    return rows


def claims() -> list[list[Cell]]:
    """What was published, and the same from specs."""

    def later(name: str, dtype: str | Storage = "bf16") -> Fraction:
        return growth(find_model(name), dtype=dtype).later

    (v3,) = find_model("deepseek-v3").groups
    assert isinstance(v3, Mla) and v3.qk_nope_head_dim and v3.v_head_dim
    H, one = v3.q_heads, v3.qk_nope_head_dim + v3.v_head_dim
    own = H * (one + v3.qk_rope_head_dim)
    latent = v3.kv_lora_rank + v3.qk_rope_head_dim
    model = find_model("deepseek-v4.1-flash")
    assert model.shipped is not None
    kv, index = model.shipped.kv, model.shipped.index
    old, v2 = later("deepseek-67b"), later("deepseek-v2")
    six = later("deepseek-v2", Storage(6))
    v32 = later("deepseek-v3.2", "shipped")
    flash = later("deepseek-v4-flash", "shipped")
    pro = later("deepseek-v4-pro", "shipped")
    v41 = later("deepseek-v4.1-flash", "shipped")
    return [
        [Word("groups"), f"{latent} / {one}", f"{latent / one:g}"],
        [Word("mha"), f"{H * one:,} / {latent}", f"{H * one / latent:.1f}"],
        [Word("own"), f"{own:,} / {latent}", f"{own / latent:.1f}"],
        [
            Word("architecture"),
            f"1 − {exact(v2)} / {exact(old)}",
            f"{float(1 - v2 / old):.1%}",
        ],
        [
            Word("six"),
            f"1 − {exact(six)} / {exact(old)}",
            f"{float(1 - six / old):.1%}",
        ],
        [
            Word("flash"),
            f"{exact(flash)} / {exact(v32)}",
            f"{float(flash / v32):.1%}",
        ],
        [
            Word("pro"),
            f"{exact(pro)} / {exact(v32)}",
            f"{float(pro / v32):.1%}",
        ],
        [
            Word("v41"),
            f"3 · ({kv} + {index}) / 2 + {kv} + {index}",
            exact(v41),
        ],
        [
            Word("v1"),
            f"{exact(old)} / {exact(v41)}",
            f"{float(old / v41):.1f}",
        ],
        [
            Word("qwen"),
            f"{exact(later('qwen3-8b'))} · 131,072",
            size(kv_bytes(find_model("qwen3-8b"), 131_072)),
        ],
    ]


# --- compute -------------------------------------------------------------

LLAMA: dict[str, Any] = {"d_model": 4096, "n_heads": 32}
SEEN = 8192  # tokens that a decode step reads


def decode() -> dict[str, Cost]:
    """One token after 8191: MHA, GQA, MQA of Llama's shape, MLA of V3's."""
    past = SEEN - 1
    return {
        "mha": attention_cost(**LLAMA, past=past),
        "gqa": attention_cost(**LLAMA, n_kv_heads=8, past=past),
        "mqa": attention_cost(**LLAMA, n_kv_heads=1, past=past),
        "expanded": mla_cost(**V3, form="expanded", past=past),
        "latent": mla_cost(**V3, form="latent", past=past),
        "absorbed": mla_cost(**V3, form="absorbed", past=past),
    }


def _mega(n: int) -> str:
    return f"{n / 1e6:,.1f}"


def step() -> list[list[Cell]]:
    return [
        [
            Word(name),
            _mega(cost.parameters),
            _mega(cost.projections),
            _mega(cost.scores),
            _mega(cost.values),
            size(2 * cost.cached),
            f"{float(cost.attention_intensity()):,.4g}",
            f"{float(cost.intensity()):,.4g}",
        ]
        for name, cost in decode().items()
    ]


PEAK, BANDWIDTH = 989e12, 3.35e12  # H100 SXM, bfloat16 without sparsity


def least() -> list[list[Cell]]:
    """The least time that attention of this step can take on such a GPU."""
    rows: list[list[Cell]] = []
    for name, cost in decode().items():
        if name == "latent":
            continue
        read = 2 * cost.cached / BANDWIDTH * 1e6
        done = (cost.scores + cost.values) / PEAK * 1e6
        rows.append(
            [
                Word(name),
                f"{read:.2f}",
                f"{done:.2f}",
                f"{max(read, done):.2f}",
            ]
        )
    return rows


def compare() -> list[list[Cell]]:
    """The same step of MHA, GQA-8 and MQA: what differs, and what does not."""
    costs = decode()
    rows: list[list[Cell]] = []
    for key, name, K in (
        ("mha", "MHA", 32),
        ("gqa", "GQA-8", 8),
        ("mqa", "MQA", 1),
    ):
        cost = costs[key]
        rows.append(
            [
                name,
                str(K),
                _mega(cost.parameters),
                _mega(cost.projections),
                _mega(cost.scores + cost.values),
                size(2 * cost.cached / SEEN),
                size(2 * cost.cached),
                f"{float(cost.attention_intensity()):.0f}",
            ]
        )
    return rows


def saved() -> list[list[Cell]]:
    """Operations to generate N tokens with and without a cache, one layer."""
    rows: list[list[Cell]] = []
    layer = LLAMA | {"n_kv_heads": 8}
    for N in (4, 16, 64):
        afresh = sum(
            attention_cost(**layer, new=t).flops for t in range(1, N + 1)
        )
        cached = sum(attention_cost(**layer, past=t).flops for t in range(N))
        rows.append(
            [
                str(N),
                f"{afresh / 1e9:,.1f}",
                f"{cached / 1e9:,.1f}",
                f"{afresh / cached:,.1f}",
            ]
        )
    return rows


def pairs() -> list[list[Cell]]:
    """Operations for one query and one key, 128 heads of 128."""
    heads: dict[str, Any] = {"d_model": 16_384, "n_heads": 128}
    costs = {
        "mha": attention_cost(**heads),
        "gqa": attention_cost(**heads, n_kv_heads=8),
        "mqa": attention_cost(**heads, n_kv_heads=1),
        "expanded": mla_cost(**V3, form="expanded"),
        "absorbed": mla_cost(**V3, form="absorbed"),
    }
    plain = costs["mha"].scores + costs["mha"].values
    return [
        [
            Word(name),
            f"{cost.scores + cost.values:,}",
            f"{(cost.scores + cost.values) / plain:g}",
            f"{cost.cached:,}",
        ]
        for name, cost in costs.items()
    ]


def prompt() -> list[list[Cell]]:
    """A whole prompt at once, GQA-8 of Llama's shape."""
    rows: list[list[Cell]] = []
    for new in (1024, 4096, 16_384, 65_536):
        cost = attention_cost(**LLAMA, n_kv_heads=8, new=new)
        products = cost.scores + cost.values
        rows.append(
            [
                f"{new:,}",
                f"{cost.projections / 1e9:,.0f}",
                f"{products / 1e9:,.0f}",
                f"{products / cost.flops:.0%}",
            ]
        )
    return rows


def batches() -> list[list[Cell]]:
    """Decoding more sequences at once: weights are shared, caches not."""
    rows: list[list[Cell]] = []
    for batch in (1, 8, 64, 256):
        cost = attention_cost(**LLAMA, n_kv_heads=8, past=SEEN - 1, batch=batch)
        rows.append(
            [
                str(batch),
                size(2 * cost.parameters),
                size(2 * cost.cached),
                f"{cost.cached / (cost.cached + cost.parameters):.0%}",
                f"{float(cost.intensity()):.3g}",
            ]
        )
    return rows


TABLES: dict[str, Callable[[], list[list[Cell]]]] = {
    **{f"models_{kind}": partial(familiar, kind) for kind in FAMILIAR},
    "variants": variants,
    "fits": fits,
    "ranks": ranks,
    "formats": formats,
    "shipped": shipped,
    "claims": claims,
    "step": step,
    "compare": compare,
    "saved": saved,
    "least": least,
    "pairs": pairs,
    "prompt": prompt,
    "batches": batches,
}
