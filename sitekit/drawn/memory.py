"""Bytes of caches: by variant, model, device and format, and as published."""

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from math import log2
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from attnref.commands.kv import with_kernels
from attnref.numbers import kv_memory
from attnref.numbers.engines import allocated
from attnref.numbers.kv_memory import (
    DTYPES,
    Storage,
    entry_bytes,
    group_bytes,
    growth,
    kv_bytes,
    reserved,
    size,
)
from attnref.numbers.shapes import Full, Group, Mla, Model, Recurrent
from attnref.released import specs
from attnref.released.specs import find_model
from sitekit.drawing import plots
from sitekit.drawing.plots import Plot
from sitekit.drawing.svg import room
from sitekit.drawing.terms import Terms, terms
from sitekit.drawn.mla import V3
from sitekit.drawn.released import kinds_of
from sitekit.markdown.render import Cell, Row, Word
from sitekit.markdown.tables import code, exact, links

BF16 = DTYPES["bf16"]
GIB = 2**30

# LLaMA-7B's, with 8 key/value heads for GQA and the latent of DeepSeek-V3.
SHAPE = dict.fromkeys(("layers", "heads"), 32) | {"kv_heads": 8}
SHAPE |= dict.fromkeys(("head_dim", "v_head_dim"), 128)
SHAPE |= {name: V3[name] for name in ("kv_lora_rank", "qk_rope_head_dim")}


LONG = {"layers": "layers", "H": "heads", "K": "kv_heads", "D": "head_dim"}
LONG |= {"R": "kv_lora_rank", "Dr": "qk_rope_head_dim"}


def forms_of(shape: dict[str, int]) -> dict[str, Group]:
    """The layers of a shape, with the cache of each variant."""

    def pick(*names: str) -> dict[str, Any]:
        return {name: shape[name] for name in names}

    widths = pick("layers", "head_dim", "v_head_dim")
    latent = pick("layers", "kv_lora_rank", "qk_rope_head_dim")
    H, K = shape["heads"], shape["kv_heads"]
    return {
        "mha": Full(**widths, q_heads=H, kv_heads=H),
        "gqa": Full(**widths, q_heads=H, kv_heads=K),
        "mla": Mla(**latent, q_heads=H),
        "mqa": Full(**widths, q_heads=H, kv_heads=1),
    }


def stored() -> dict[str, Terms]:
    """Bytes of `tokens` tokens in each variant, for a script: heads of D."""

    def one(name: str, tokens: int, **sizes: int) -> int:
        shape = {long: sizes[short] for short, long in LONG.items()}
        return group_bytes(forms_of(shape | {"v_head_dim": sizes["D"]})[name], tokens, BF16)

    least = dict.fromkeys(("tokens", *LONG), 1)
    return {name: terms(partial(one, name), **least) for name in forms_of(SHAPE)}


def variants() -> Iterator[Row]:
    """Each variant of LLaMA-7B's shape: 32 layers of 32 heads of 128."""
    formulas = {"mha": r"$2\,h\,d_k$", "gqa": r"$2\,h_{kv}\,d_k$"}
    formulas |= {"mla": r"$d_c + d_r$", "mqa": r"$2\,d_k$"}
    layers, largest = SHAPE["layers"], Fraction(0)
    for name, group in forms_of(SHAPE).items():
        per_token = kv_memory.token_bytes(group, BF16).later
        largest = largest or per_token  # MHA comes first
        yield [
            Word(name),
            formulas[name],
            f"{int(per_token) // 2:,}",
            exact(layers * per_token),
            size(layers * per_token * 4096),
            f"{float(largest / per_token):.3g}",
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


SPLIT_MODELS = "llama-2-7b llama-3.1-8b llama-3.1-70b qwen3-235b falcon-7b deepseek-v3"


def turn() -> Iterator[Row]:
    """What is asked of the reader, as one writes it down, and the results."""
    llama, large, v3 = map(find_model, ("llama-3.1-8b", "llama-3.1-70b", "deepseek-v3"))
    T = 32_768
    yield ["1", "2 × 32 × 8 × 128 × 2", f"{kv_bytes(llama, 1):,}"]
    yield ["2", f"32,768 × {kv_bytes(llama, 1):,}", size(kv_bytes(llama, T))]
    yield ["3", "61 × (512 + 64) × 2", f"{kv_bytes(v3, 1):,}"]
    total = kv_bytes(large, 1, ranks=16)
    yield ["4", "2 × 80 × 1 × 128 × 2", f"{total:,}"]


def ranks() -> Iterator[Row]:
    """Bytes per token on each device, with heads split over 1 to 16."""
    for model in map(find_model, SPLIT_MODELS.split()):
        (group,) = model.groups
        split = (growth(model, ranks=n).later for n in (1, 2, 4, 8, 16))
        yield [model.name, str(group.stores[0].heads), *map(exact, split)]


def formats() -> Iterator[Row]:
    """A token of one layer of Llama-3.1-8B, in several formats."""
    (group,) = find_model("llama-3.1-8b").groups
    (store,) = group.stores
    plain = ("fp32", "bf16", "fp8", "int8", "int4")
    formats: dict[Cell, Storage] = {code(name): DTYPES[name] for name in plain}
    formats[Word("row")] = Storage(8, scale_bits=16, block=128)
    formats[Word("block")] = Storage(4, scale_bits=16, block=32)
    for name, storage in formats.items():
        entry = kv_memory.entry_bytes(store, storage)
        share = entry / kv_memory.entry_bytes(store, BF16)
        bits = f"{storage.bits_for(128) / 128:g}"
        yield [name, bits, f"{entry:,}", f"{share:.1%}"]


def shipped() -> Iterator[Row]:
    """Bytes per entry as the kernels of DeepSeek's models store it."""
    for model in specs.models().values():
        if (format := model.shipped) is None:
            continue
        is_shared = "shared" in kinds_of(model)
        yield [
            model.name,
            str(format.kv),
            str(format.window or format.kv) if is_shared else "–",
            str(format.index),
            exact(growth(model).later),
            exact(growth(model, dtype="shipped").later),
            links(*format.sources),
        ]


def claims() -> Iterator[Row]:
    """Published statements, and the same computed from specs."""

    def later(name: str, dtype: str | Storage = "bf16") -> Fraction:
        return growth(find_model(name), dtype=dtype).later

    (v3,) = find_model("deepseek-v3").groups
    assert isinstance(v3, Mla) and v3.qk_nope_head_dim and v3.v_head_dim
    H, one = v3.q_heads, v3.qk_nope_head_dim + v3.v_head_dim
    without_latent = H * (one + v3.qk_rope_head_dim)
    latent = v3.kv_lora_rank + v3.qk_rope_head_dim
    dense, six = later("deepseek-67b"), later("deepseek-v2", Storage(6))
    v32, flash, pro = (
        later(f"deepseek-{name}", "shipped") for name in ("v3.2", "v4-flash", "v4-pro")
    )
    yield [Word("groups"), f"{latent} / {one}", f"{latent / one:g}"]
    for name, n in (("mha", H * one), ("own", without_latent)):
        yield [Word(name), f"{n:,} / {latent}", f"{n / latent:.1f}"]
    for name, now in (("architecture", later("deepseek-v2")), ("six", six)):
        saving = f"{float(1 - now / dense):.1%}"
        yield [Word(name), f"1 − {exact(now)} / {exact(dense)}", saving]
    for name, now in (("flash", flash), ("pro", pro)):
        share = f"{float(now / v32):.1%}"
        yield [Word(name), f"{exact(now)} / {exact(v32)}", share]


TWELVE = (
    "llama-2-7b llama-3.1-70b qwen3-235b llama-3.1-8b gemma-3-27b deepseek-v3 "
    "gpt-oss-120b kimi-k3 qwen3-next-80b falcon-7b deepseek-v4-flash mistral-7b"
)
DOZEN = TWELVE.split()
PLOT = (1024, 16_384, 131_072, 1_048_576)  # tokens of its table
LOOKS: dict[str, dict[str, Any]] = {
    "whole": {"color": plots.WARM, "linestyle": "-"},
    "window": {"color": plots.BLUE, "linestyle": (0, (6, 2))},
    "latent": {"color": plots.GREEN, "linestyle": "-"},
    "state": {"color": plots.PURPLE, "linestyle": (0, (2, 1.5))},
}


def format_tokens(tokens: int) -> str:
    """A number of tokens as one says it: 4K, 1M."""
    for unit, letter in ((2**20, "M"), (2**10, "K")):
        if tokens % unit == 0:
            return f"{tokens // unit}{letter}"
    return f"{tokens:,}"


def kind(model: Model) -> str:
    """Which of LOOKS the line of a model has."""
    kinds = {*kinds_of(model)}
    if "state" in kinds:
        return "state"
    if kinds & {"MLA", "shared"}:
        return "latent"
    return "window" if "window" in kinds else "whole"


def _contexts(narrow: bool) -> Figure:
    """Bytes of the cache against tokens, both in powers of two."""
    low, high = 22, 40
    marks = {2.0**i: size(2**i) for i in range(low, high + 1, 3)}
    models = [*map(find_model, DOZEN)]
    tokens = [2**i for i in range(10, 21)]
    left = room(marks.values(), 11) + 8
    names = room([model.name for model in models], 11) + 18
    legend = plots.ROW * len(LOOKS)  # below the axes of a phone
    chart = plots.make_chart(
        (plots.PHONE, 500) if narrow else (plots.WIDE, 446),
        plots.Edges(left, names, below=44 + narrow * (legend + 8), above=24),
        x=(2, {t: format_tokens(t) for t in tokens[::2]}, (tokens[0], tokens[-1])),
        y=(2, marks, (2.0**low, 2.0**high)),
    )
    chart.name_axes("{tokens}", "{bytes}")
    axes, ends = chart.axes, []
    for model in models:
        sizes, look = [kv_bytes(model, t) for t in tokens], LOOKS[kind(model)]
        axes.plot(tokens, sizes, linewidth=1.8, **look)
        if (longest := model.max_context) <= tokens[-1]:
            dot = {"color": look["color"], "clip_on": False}
            end = kv_bytes(model, longest)
            axes.plot([longest], [end], "o", markersize=5, **dot)
        ends.append((log2(sizes[-1]) - low) / (high - low) * chart.height)
    names_y = plots.apart(ends, least=16)
    for model, y, name_y in zip(models, ends, names_y, strict=True):
        colour = LOOKS[kind(model)]["color"]
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.8}
        # It ends where the name begins.
        line |= {"relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 0}
        axes.annotate(
            model.name,
            xy=(chart.width, y),
            xytext=(chart.width + 16, name_y),
            xycoords=chart.inside,
            textcoords=chart.inside,
            va="center",
            color=colour,
            arrowprops=line,
        )
    # Below the axes of a phone, the legend begins where the drawing does.
    x, y = (2 - left, -58) if narrow else (10, chart.height - 13)
    for n, (name, look) in enumerate(LOOKS.items()):
        row = y - plots.ROW * n
        chart.key(x, row, f"{{{name}}}", linewidth=1.8, **look)
    return chart.figure


def contexts() -> Plot:
    rows: list[Row] = [
        [model.name, *(size(kv_bytes(model, t)) for t in PLOT)] for model in map(find_model, DOZEN)
    ]
    return plots.plotted(_contexts, rows)


VLLM = "https://github.com/vllm-project/vllm"


class Hybrid(NamedTuple):
    """What vLLM 0.19 prints for a hybrid model with so many blocks."""

    tokens: int
    concurrency: float


def hybrid(model: Model, blocks: int, length: int, states: int = 1, **options: Any) -> Hybrid:
    """Layers of one kind are in groups of equal size, and each group of a
    request has blocks of its own: of its tokens, or one for its states, or
    two where prefixes are cached."""
    least = min(group.layers for group in model.groups)
    groups = sum(-(-group.layers // least) for group in model.groups)
    block, request = allocated(model, "vllm", **options).block, 0
    for group in model.groups:
        count = states if isinstance(group, Recurrent) else -(-length // block)
        request += -(-group.layers // least) * count
    return Hybrid(blocks // groups * block, blocks / request)


class Case(NamedTuple):
    model: str
    engine: str
    printed: str  # the numbers in what it printed
    ours: str
    why: str  # a word of the page
    url: str


def log_cases() -> list[Case]:
    """Published lines, and ours."""
    oss, qwen, flash, glm, small = map(
        find_model, ("gpt-oss-120b", "qwen3-235b", "deepseek-v4-flash", "glm-5.2", "qwen3.5-27b")
    )
    gemma, mimo, nine, large = map(
        find_model, ("gemma-3-27b", "mimo-v2-flash", "qwen3.5-9b", "qwen3.8-27b")
    )
    small_blocks = hybrid(small, 1487, 32_768)
    sparse = with_kernels(glm)
    assert sparse.shipped is not None
    draft = sparse.shipped.kv + sparse.shipped.index  # one more layer
    return [
        Case(
            oss.name,
            "vLLM",
            "78,384 5.38",
            size(kv_bytes(reserved(oss), 78_384)),
            "windows",
            "https://github.com/alvarobartt/hf-mem/issues/60",
        ),
        Case(
            qwen.name,
            "SGLang, TP 4",
            "367,404 8.23 8.23",
            size(kv_bytes(qwen, 367_404, ranks=4)),
            "exact",
            f"{VLLM}/issues/21348",
        ),
        Case(
            small.name,
            "vLLM 0.19.0",
            "290,864 33.04 32,768",
            f"{small_blocks.tokens:,}; {small_blocks.concurrency:.2f}",
            "groups",
            f"{VLLM}/issues/40691",
        ),
        Case(
            flash.name,
            "vLLM 0.26.0",
            "1,009,661 1.11 912,128",
            f"{1_009_661 / 912_128:.2f}",
            "product",
            f"{VLLM}/issues/51041",
        ),
        Case(
            glm.name,
            "vLLM, fp8_ds_mla",
            "54,728",
            f"{int(growth(sparse, dtype='shipped').later):,} + {draft:,} B",
            "draft",
            "https://github.com/local-inference-lab/vllm/pull/82",
        ),
        Case(
            large.name,
            "vLLM, FP8, TP 2",
            "302,921 4.99",
            f"{_prefixed(large):,}",
            "pairs",
            "https://github.com/mitchross/talos-argocd-proxmox/pull/1995",
        ),
        Case(
            mimo.name,
            "SGLang, TP 4",
            "300,288 8.38 5.59",
            size(_of_windows(mimo, "sglang", 375_360, ranks=4)),
            "pool",
            "https://github.com/sgl-project/sglang/pull/18039",
        ),
        Case(
            gemma.name,
            "llama.cpp",
            "624",
            size(_of_windows(gemma, "llama.cpp", 32_768)),
            "cells",
            "https://github.com/ggml-org/llama.cpp/pull/18720",
        ),
        Case(
            nine.name,
            "llama.cpp",
            "178 306 4,146",
            ", ".join(
                size(kv_bytes(as_cells.model, n, block=as_cells.block))
                for as_cells in [allocated(nine, "llama.cpp")]
                for n in (4096, 8192, 131_072)
            ),
            "floats",
            "https://github.com/jaylfc/taOS/issues/144",
        ),
    ]


def _of_windows(model: Model, engine: str, tokens: int, ranks: int = 1) -> int:
    """Bytes of the layers with a window, as an engine allocates them."""
    served, block = allocated(model, engine, ranks=ranks)
    pairs = zip(model.groups, served.groups, strict=True)
    return sum(
        group_bytes(new, tokens, DTYPES["bf16"], ranks=ranks, block=block)
        for old, new in pairs
        if isinstance(old, Full) and old.window
    )


def _prefixed(model: Model) -> int:
    """The tokens that vLLM prints for 4.99 GiB on each of two devices."""
    options: dict[str, Any] = {"dtype": "fp8", "ranks": 2}
    served = allocated(model, "vllm", **options).model
    states = [group for group in served.groups if isinstance(group, Recurrent)]
    page = entry_bytes(states[0].stores[0], DTYPES["fp8"], ranks=2)
    blocks = int(4.99 * GIB) // (page * min(group.layers for group in served.groups))
    length = 131_072
    return int(hybrid(model, blocks, length, states=2, **options).concurrency * length)


def log() -> Iterator[Row]:
    for case in log_cases():
        number = case.url.rsplit("/", 1)[1]
        yield [
            case.model,
            case.engine,
            Word(f"printed_{case.why}", tuple(case.printed.split())),
            case.ours,
            Word(case.why),
            f"[#{number}]({case.url})",
        ]


def _of_log() -> dict[str, object]:
    """What the text says of blocks of attention."""
    large, small = map(find_model, ("qwen3.5-27b", "qwen3.5-9b"))
    block = allocated(large, "vllm").block
    state, token = (
        sum(entry_bytes(store, DTYPES["bf16"]) for store in group.stores)
        for group in sorted(large.groups, key=lambda g: isinstance(g, Full))
    )
    return {
        "block": block,
        "page": size(state),
        "each": token,
        "small": allocated(small, "vllm").block,
        "small_fp8": allocated(small, "vllm", dtype="fp8").block,
    }


def numbers() -> dict[str, object]:
    """What the text says."""
    llama, flash, states = map(find_model, ("llama-3.1-8b", "deepseek-v4-flash", "qwen3.8-2.4t"))
    sequence = kv_bytes(llama, 131_072)
    widths = {name.key: n for name, _, n in claims() if isinstance(name, Word)}
    entry = 512 + 64
    v3 = kv_bytes(find_model("deepseek-v3"), 1)
    first = {"gemma_27b": "gemma-3-27b", "llama_70b": "llama-3.1-70b"}
    first |= {"gemma_9b": "gemma-2-9b", "llama_8b": "llama-3.1-8b"}
    per_token = {name: size(kv_bytes(find_model(id), 1)) for name, id in first.items()}
    return (
        _of_log()
        | per_token
        | {
            "v3_bytes": v3,
            "with_draft": v3 + 2 * entry,
            "draft_share": 2 * entry / v3,
            "sequence": size(sequence),
            "in_gb": sequence / 1e9,
            "times_flash": kv_bytes(find_model("llama-2-7b"), 131_072) / kv_bytes(flash, 131_072),
            "of_mqa": 2 * 128,
            "entry": entry,
            "lite": 2 * 16 * 128 / entry,
            "llama": 2 * 32 * 128 / entry,
            "v3": widths["mha"],
            "weights": kv_memory.weight_bytes(llama) / GIB,
            "sequences": 60 * GIB // kv_bytes(llama, 16_384),
            "states_of_k3": kv_memory.state_bytes(find_model("kimi-k3")) / 2**20,
            "states": kv_memory.state_bytes(states) / 2**20,
            "six_bits": widths["six"],
            "architecture": widths["architecture"],
        }
    )
