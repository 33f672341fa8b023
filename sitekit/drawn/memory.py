"""Bytes of caches: by variant, model, device and format, and as published."""

from fractions import Fraction
from functools import cache
from math import log2
from typing import Any

from matplotlib.figure import Figure
from matplotlib.transforms import Affine2D

from attnref.kv_memory import (
    DTYPES,
    Storage,
    entry_bytes,
    growth,
    kv_bytes,
    largest_batch,
    longest_context,
    size,
    state_bytes,
    token_bytes,
)
from attnref.specs import (
    Chunked,
    Compressed,
    Full,
    Group,
    Mla,
    Model,
    Recurrent,
    find_model,
)
from attnref.specs import models as known_models
from sitekit.drawn.mla import V3
from sitekit.plots import (
    BLUE,
    GREEN,
    PURPLE,
    WARM,
    Plot,
    apart,
    axes_in,
    logarithmic,
    plotted,
)
from sitekit.render import (
    Cell,
    Rows,
    Sorted,
    Word,
    Words,
    check_columns,
    render,
)
from sitekit.svg import room
from sitekit.tables import code, exact, links

BF16 = DTYPES["bf16"]
CONTEXTS = (4096, 32_768, 131_072, 1_048_576)
GIB = 2**30


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


def variants() -> Rows:
    """Each variant of LLaMA-7B's shape: 32 layers of 32 heads of 128."""
    layers, forms = SHAPE["layers"], forms_of(SHAPE)
    most = token_bytes(forms["mha"], BF16).later
    rows: Rows = []
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


def fits() -> Rows:
    """What 80 GiB of cache hold, on one device."""
    rows: Rows = []
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


def ranks() -> Rows:
    """Bytes of a token on each device, as heads are split over more."""
    rows: Rows = []
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


def formats() -> Rows:
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


def shipped() -> Rows:
    """Entries as the kernels of DeepSeek's models store them."""
    rows: Rows = []
    for model in known_models().values():
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
                    links(*model.shipped.sources),
                ]
            )
    return rows


def claims() -> Rows:
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
        [Word("v41"), f"3 · ({kv} + {index}) / 2 + {kv} + {index}", exact(v41)],
        [Word("v1"), f"{exact(old)} / {exact(v41)}", f"{float(old / v41):.1f}"],
        [
            Word("qwen"),
            f"{exact(later('qwen3-8b'))} · 131,072",
            size(kv_bytes(find_model("qwen3-8b"), 131_072)),
        ],
    ]


def kinds_of(model: Model) -> list[str]:
    """What a model's attention is made of, for the filter."""
    found = set()
    for group in model.groups:
        if isinstance(group, Full):
            found.add(group.variant)
            if group.window is not None:
                found.add("window")
        else:
            name = {Mla: "MLA", Compressed: "shared", Recurrent: "state"}
            found.add(name[type(group)])
        if any(store.role == "index" for store in group.stores):
            found.add("index")
    return sorted(found)


def _described(group: Group, words: Words) -> str:
    """`52 × GQA 32/16 · 128, window 1,024`, in the page's words."""
    if isinstance(group, Recurrent):
        what = words["states"].format(
            group.state_heads, f"{group.key_dim} × {group.value_dim}"
        )
        return f"{group.layers} × {what}"
    if isinstance(group, Mla):
        what = f"MLA {group.kv_lora_rank} + {group.qk_rope_head_dim}"
        what += "" if group.rotated else words["nope"]
    elif isinstance(group, Compressed):
        what = words["shared"].format(group.dim)
        what += words["window"].format(f"{group.sliding_window:,}")
        if group.ratio is not None:
            what += words["entries"].format(group.ratio)
    else:
        widths = dict.fromkeys((group.head_dim, group.v_head_dim))
        what = f"{group.variant} {group.q_heads or '?'}/{group.kv_heads} · "
        what += "/".join(map(str, widths))
        if group.window is not None:
            name = "chunk" if isinstance(group, Chunked) else "window"
            what += words[name].format(f"{group.window:,}")
    if any(store.role == "index" for store in group.stores):
        what += words["index"].format(group.index_dim)
    return f"{group.layers} × {what}"


def _row(model: Model, words: Words) -> list[Cell]:
    added, held = growth(model), state_bytes(model)
    first, later = float(added.first), float(added.later)
    row: list[Cell] = [
        model.name,
        Sorted(first, exact(added.first)),
        Sorted(later, exact(added.later)),
        Sorted(held, size(held) if held else "–"),
    ]
    for tokens in CONTEXTS:
        taken = kv_bytes(model, tokens)
        far = "beyond" if tokens > model.max_context else ""
        row.append(Sorted(taken, size(taken), far))
    context, params = f"{model.max_context:,}", "–"
    if model.context is not None:
        context = f"[{context}]({model.context.url})"
    if model.params is not None and model.params_in is not None:
        billions = float(f"{model.params / 1e9:.4g}")
        params = f"[{billions:,g}B]({model.params_in.url})"
    return [
        *row,
        [_described(group, words) for group in model.groups],
        model.date,
        Sorted(model.max_context, context),
        Sorted(model.params or 0, params),
        words[model.confidence],
        " ".join(links(source) for source in model.sources),
    ]


def models(
    *,
    caption: str,
    label: str,
    family: str,
    kind: str,
    all: str,
    found: str,
    head: list[str],
    kinds: dict[str, str],
    words: dict[str, str],
) -> str:
    """All numbers are in the page: its script only sorts and filters."""
    known, told, names = known_models().values(), Words(words), Words(kinds)
    rows = [_row(model, told) for model in known]
    check_columns(head, rows)
    told.check()
    names.used.update(*map(kinds_of, known))
    names.check("kinds")
    families = sorted({model.family for model in known}, key=str.lower)
    return render(
        "models",
        caption=caption,
        label=label,
        family=family,
        families=[("", all), *((name, name) for name in families)],
        kind=kind,
        kinds=[("", all), *kinds.items()],
        found=found,
        head=head,
        models=[
            {"family": model.family, "kinds": kinds_of(model), "row": row}
            for model, row in zip(known, rows, strict=True)
        ],
    )


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


LOOKS: dict[str, tuple[str, Any]] = {
    "whole": (WARM, "-"),
    "window": (BLUE, (0, (6, 2))),
    "latent": (GREEN, "-"),
    "state": (PURPLE, (0, (2, 1.5))),
}


def short(tokens: int) -> str:
    """A number of tokens as one says it: 4K, 1M."""
    for unit, letter in ((2**20, "M"), (2**10, "K")):
        if tokens % unit == 0:
            return f"{tokens // unit}{letter}"
    return f"{tokens:,}"


def look(name: str) -> str:
    """Which kind of line a model gets."""
    found = set(kinds_of(find_model(name)))
    if "state" in found:
        return "state"
    if found & {"MLA", "shared"}:
        return "latent"
    return "window" if "window" in found else "whole"


def _contexts(narrow: bool) -> Figure:
    """Bytes of the cache against tokens, both in powers of two."""
    low, high = 2.0**22, 2.0**40
    marks = [2.0**i for i in range(22, 41, 3)]
    names = [find_model(name).name for name in DOZEN]
    width, height = (358, 500) if narrow else (700, 446)
    left = room(map(size, marks), 11) + 8
    wide = width - left - room(names, 11) - 18
    box = (left, 124, wide, 352) if narrow else (left, 45, wide, 379)
    figure, axes = axes_in(width, height, box)
    tokens = [2**i for i in range(10, 21)]
    ends = []
    for name in DOZEN:
        model = find_model(name)
        taken = [kv_bytes(model, t) for t in tokens]
        colour, dashes = LOOKS[look(name)]
        axes.plot(tokens, taken, color=colour, linestyle=dashes, linewidth=1.8)
        if model.max_context <= tokens[-1]:
            axes.plot(
                [model.max_context],
                [kv_bytes(model, model.max_context)],
                color=colour,
                marker="o",
                markersize=5,
                linestyle="none",
                clip_on=False,
            )
        ends.append((taken[-1], colour))
    ticks = {float(t): short(t) for t in tokens[::2]}
    logarithmic(axes.xaxis, 2, ticks, (tokens[0], tokens[-1]))
    logarithmic(axes.yaxis, 2, {m: size(m) for m in marks}, (low, high))
    axes.grid(True)
    axes.set_xlabel("{tokens}")
    pixels = Affine2D().scale(1 / box[2], 1 / box[3]) + axes.transAxes
    axes.text(0, box[3] + 8, "{bytes}", transform=pixels)
    span = box[3] / log2(high / low)
    heights = [log2(taken / low) * span for taken, _ in ends]
    for name, (_, colour), at, to in zip(
        names, ends, heights, apart(heights, 16), strict=True
    ):
        axes.annotate(
            name,
            xy=(box[2], at),
            xytext=(box[2] + 16, to),
            xycoords=pixels,
            textcoords=pixels,
            color=colour,
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.8,
                "relpos": (0, 0.5),  # to where the name begins
                "shrinkA": 1,
                "shrinkB": 0,
            },
        )
    # Below the axes of a phone, they begin where the drawing does.
    x, y = (2 - left, -58) if narrow else (10, box[3] - 13)
    for i, key in enumerate(LOOKS):
        colour, dashes = LOOKS[key]
        at = y - 19 * i
        axes.plot(
            [x, x + 23],
            [at, at],
            color=colour,
            linestyle=dashes,
            linewidth=1.8,
            transform=pixels,
            clip_on=False,
        )
        axes.text(x + 28, at, f"{{{key}}}", va="center", transform=pixels)
    return figure


@cache
def contexts() -> Plot:
    chosen = [find_model(name) for name in DOZEN]
    rows: Rows = [
        [m.name, *(size(kv_bytes(m, t)) for t in PLOT)] for m in chosen
    ]
    return plotted(_contexts, rows)
