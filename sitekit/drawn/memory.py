"""Bytes of caches: by variant, model, device and format, and as published."""

from collections.abc import Iterator
from fractions import Fraction
from math import log2
from typing import Any

from matplotlib.figure import Figure
from matplotlib.transforms import Affine2D

from attnref.numbers import kv_memory, specs
from attnref.numbers.kv_memory import DTYPES, Storage, growth, kv_bytes, size
from attnref.numbers.specs import Full, Group, Mla, Model, find_model
from sitekit import plots
from sitekit.drawn.mla import V3
from sitekit.plots import Plot
from sitekit.render import Cell, Row, Sorted, Word, Words, check_columns, render
from sitekit.svg import room
from sitekit.tables import code, exact, links

BF16 = DTYPES["bf16"]
CONTEXTS = (4096, 32_768, 131_072, 1_048_576)
GIB = 2**30


# LLaMA-7B's, with 8 key/value heads for GQA and the latent of DeepSeek-V3.
SHAPE = dict.fromkeys(("layers", "heads"), 32) | {"kv_heads": 8}
SHAPE |= dict.fromkeys(("head_dim", "v_head_dim"), 128)
SHAPE |= {name: V3[name] for name in ("kv_lora_rank", "qk_rope_head_dim")}


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


def variants() -> Iterator[Row]:
    """Each variant of LLaMA-7B's shape: 32 layers of 32 heads of 128."""
    layers, forms = SHAPE["layers"], forms_of(SHAPE)
    most = kv_memory.token_bytes(forms["mha"], BF16).later
    for name, formula in (
        ("mha", r"$2\,h\,d_k$"),
        ("gqa", r"$2\,h_{kv}\,d_k$"),
        ("mla", "$d_c + d_r$"),
        ("mqa", r"$2\,d_k$"),
    ):
        kept = kv_memory.token_bytes(forms[name], BF16).later
        yield [
            Word(name),
            formula,
            f"{int(kept) // 2:,}",
            exact(layers * kept),
            size(layers * kept * 4096),
            f"{float(most / kept):.3g}",
        ]


FITS = "llama-2-7b llama-3.1-70b llama-3.1-8b gpt-oss-120b deepseek-v3"
FITS += " deepseek-v4-flash mistral-7b"


def fits() -> Iterator[Row]:
    """What 80 GiB of cache hold, on one device."""
    for model in map(find_model, FITS.split()):
        row: Row = [model.name]
        for dtype in ("bf16", "int8"):
            longest = kv_memory.longest_context(model, 80 * GIB, dtype=dtype)
            row.append(Word("endless") if longest is None else f"{longest:,}")
        for tokens in (4096, 131_072):
            row.append(f"{kv_memory.largest_batch(model, tokens, 80 * GIB):,}")
        yield row


RANKED = "llama-2-7b llama-3.1-8b qwen3-235b falcon-7b deepseek-v3"


def ranks() -> Iterator[Row]:
    """Bytes per token on each device, with heads split over 1 to 16."""
    for model in map(find_model, RANKED.split()):
        (group,) = model.groups
        split = (growth(model, ranks=n).later for n in (1, 2, 4, 8, 16))
        yield [model.name, str(group.stores[0].heads), *map(exact, split)]


PLAIN = ("fp32", "bf16", "fp8", "int8", "int4")


def formats() -> Iterator[Row]:
    """A token of one layer of Llama-3.1-8B, in several formats."""
    (group,) = find_model("llama-3.1-8b").groups
    (store,) = group.stores
    formats: list[tuple[Cell, Storage]] = [
        *(
            (code(n), DTYPES[n])
            for n in ("fp32", "bf16", "fp8", "int8", "int4")
        ),
        (Word("row"), Storage(8, scale_bits=16, block=128)),
        (Word("block"), Storage(4, scale_bits=16, block=32)),
    ]
    for name, storage in formats:
        bits, taken = (
            storage.bits_for(128) / 128,
            kv_memory.entry_bytes(store, storage),
        )
        share = taken / kv_memory.entry_bytes(store, BF16)
        yield [name, f"{bits:g}", f"{taken:,}", f"{share:.1%}"]


def shipped() -> Iterator[Row]:
    """Bytes per entry as the kernels of DeepSeek's models store it."""
    for model in specs.models().values():
        if model.shipped is not None:
            yield [
                model.name,
                str(model.shipped.kv),
                str(model.shipped.window or model.shipped.kv)
                if any(isinstance(g, specs.Compressed) for g in model.groups)
                else "–",
                str(model.shipped.index),
                exact(growth(model).later),
                exact(growth(model, dtype="shipped").later),
                links(*model.shipped.sources),
            ]


def claims() -> Iterator[Row]:
    """Published statements, and the same computed from specs."""

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
    yield [Word("groups"), f"{latent} / {one}", f"{latent / one:g}"]
    for name, n in (("mha", H * one), ("own", own)):
        yield [Word(name), f"{n:,} / {latent}", f"{n / latent:.1f}"]
    for name, now in (("architecture", v2), ("six", six)):
        saved = f"{float(1 - now / old):.1%}"
        yield [Word(name), f"1 − {exact(now)} / {exact(old)}", saved]
    for name, now in (("flash", flash), ("pro", pro)):
        share = f"{float(now / v32):.1%}"
        yield [Word(name), f"{exact(now)} / {exact(v32)}", share]
    yield [
        Word("v41"),
        f"3 · ({kv} + {index}) / 2 + {kv} + {index}",
        exact(v41),
    ]
    yield [
        Word("v1"),
        f"{exact(old)} / {exact(v41)}",
        f"{float(old / v41):.1f}",
    ]
    whole = size(kv_bytes(find_model("qwen3-8b"), 131_072))
    yield [Word("qwen"), f"{exact(later('qwen3-8b'))} · 131,072", whole]


OTHERS = {Mla: "MLA", specs.Compressed: "shared", specs.Recurrent: "state"}


def kinds_of(model: Model) -> list[str]:
    """What a model's attention is made of, for the filter."""
    found = set()
    for group in model.groups:
        if isinstance(group, Full):
            found.add(group.variant)
            if group.window is not None:
                found.add("window")
        else:
            found.add(OTHERS[type(group)])
        if any(store.role == "index" for store in group.stores):
            found.add("index")
    return sorted(found)


def _described(group: Group, words: Words) -> str:
    """`52 × GQA 32/16 · 128, window 1,024`, in the page's words."""
    if isinstance(group, specs.Recurrent):
        what = words["states"].format(
            group.state_heads, f"{group.key_dim} × {group.value_dim}"
        )
        return f"{group.layers} × {what}"
    if isinstance(group, Mla):
        what = f"MLA {group.kv_lora_rank} + {group.qk_rope_head_dim}"
        what += "" if group.rotated else words["nope"]
    elif isinstance(group, specs.Compressed):
        what = words["shared"].format(group.dim)
        what += words["window"].format(f"{group.sliding_window:,}")
        if group.ratio is not None:
            what += words["entries"].format(group.ratio)
    else:
        widths = dict.fromkeys((group.head_dim, group.v_head_dim))
        what = f"{group.variant} {group.q_heads or '?'}/{group.kv_heads} · "
        what += "/".join(map(str, widths))
        if group.window is not None:
            name = "chunk" if isinstance(group, specs.Chunked) else "window"
            what += words[name].format(f"{group.window:,}")
    if any(store.role == "index" for store in group.stores):
        what += words["index"].format(group.index_dim)
    return f"{group.layers} × {what}"


def _row(model: Model, words: Words) -> Row:
    added, held = growth(model), kv_memory.state_bytes(model)
    row: Row = [
        model.name,
        *(Sorted(float(n), exact(n)) for n in (added.first, added.later)),
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
    head: list[str],
    kinds: dict[str, str],
    words: dict[str, str],
) -> str:
    """All numbers are in the page: its script only sorts and filters."""
    known, told, names = [*specs.models().values()], Words(words), Words(kinds)
    rows = [_row(model, told) for model in known]
    check_columns(head, rows)
    names.used.update(*map(kinds_of, known))
    names.check("kinds")
    html = render(
        "models",
        caption=caption,
        head=head,
        kinds=kinds,
        kinds_of=kinds_of,
        words=told,
        models=known,
        rows=rows,
    )
    told.check()
    return html


TWELVE = (
    "llama-2-7b llama-3.1-70b qwen3-235b llama-3.1-8b gemma-3-27b deepseek-v3 "
    "gpt-oss-120b kimi-k3 qwen3-next-80b falcon-7b deepseek-v4-flash mistral-7b"
)
DOZEN = TWELVE.split()
PLOT = (1024, 16_384, 131_072, 1_048_576)  # tokens of its table
LOOKS: dict[str, tuple[str, Any]] = {
    "whole": (plots.WARM, "-"),
    "window": (plots.BLUE, (0, (6, 2))),
    "latent": (plots.GREEN, "-"),
    "state": (plots.PURPLE, (0, (2, 1.5))),
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
    figure, axes = plots.axes_in(width, height, box)
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
    plots.logarithmic(axes.xaxis, 2, ticks, (tokens[0], tokens[-1]))
    plots.logarithmic(axes.yaxis, 2, {m: size(m) for m in marks}, (low, high))
    axes.grid(True)
    axes.set_xlabel("{tokens}")
    pixels = Affine2D().scale(1 / box[2], 1 / box[3]) + axes.transAxes
    axes.text(0, box[3] + 8, "{bytes}", transform=pixels)
    span = box[3] / log2(high / low)
    heights = [log2(taken / low) * span for taken, _ in ends]
    for name, (_, colour), at, to in zip(
        names, ends, heights, plots.apart(heights, 16), strict=True
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


def contexts() -> Plot:
    rows: list[Row] = []
    for model in map(find_model, DOZEN):
        rows.append([model.name, *(size(kv_bytes(model, t)) for t in PLOT)])
    return plots.plotted(_contexts, rows)
