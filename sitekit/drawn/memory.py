"""Bytes of caches: by variant, model, device and format, and as published."""

from collections.abc import Iterator
from fractions import Fraction
from math import log2
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from attnref.commands.kv import with_kernels
from attnref.numbers import kv_memory
from attnref.numbers.kv_memory import (
    DTYPES,
    Storage,
    entry_bytes,
    growth,
    kv_bytes,
    reserved,
    size,
)
from attnref.numbers.shapes import (
    Full,
    Group,
    Mla,
    Model,
    Recurrent,
)
from attnref.released import specs
from attnref.released.specs import find_model
from sitekit.drawing import plots
from sitekit.drawing.plots import Plot
from sitekit.drawing.svg import room
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


def forms_of(shape: dict[str, int]) -> dict[str, Group]:
    """The layers of a shape, with the cache of each variant."""

    def of(*names: str) -> dict[str, Any]:
        return {name: shape[name] for name in names}

    widths = of("layers", "head_dim", "v_head_dim")
    latent = of("layers", "kv_lora_rank", "qk_rope_head_dim")
    H, K = shape["heads"], shape["kv_heads"]
    return {
        "mha": Full(**widths, q_heads=H, kv_heads=H),
        "gqa": Full(**widths, q_heads=H, kv_heads=K),
        "mla": Mla(**latent, q_heads=H),
        "mqa": Full(**widths, q_heads=H, kv_heads=1),
    }


def variants() -> Iterator[Row]:
    """Each variant of LLaMA-7B's shape: 32 layers of 32 heads of 128."""
    formulas = {"mha": r"$2\,h\,d_k$", "gqa": r"$2\,h_{kv}\,d_k$"}
    formulas |= {"mla": r"$d_c + d_r$", "mqa": r"$2\,d_k$"}
    layers, most = SHAPE["layers"], Fraction(0)
    for name, group in forms_of(SHAPE).items():
        per_token = kv_memory.token_bytes(group, BF16).later
        most = most or per_token  # MHA comes first
        yield [
            Word(name),
            formulas[name],
            f"{int(per_token) // 2:,}",
            exact(layers * per_token),
            size(layers * per_token * 4096),
            f"{float(most / per_token):.3g}",
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


def turn() -> Iterator[Row]:
    """What is asked of the reader, as one writes it down, and the results."""
    llama, large, v3 = map(
        find_model, ("llama-3.1-8b", "llama-3.1-70b", "deepseek-v3")
    )
    long = 32_768
    yield ["1", "2 × 32 × 8 × 128 × 2", f"{kv_bytes(llama, 1):,}"]
    yield ["2", f"32,768 × {kv_bytes(llama, 1):,}", size(kv_bytes(llama, long))]
    yield ["3", "61 × (512 + 64) × 2", f"{kv_bytes(v3, 1):,}"]
    total = kv_bytes(large, 1, ranks=16)
    yield ["4", "2 × 80 × 1 × 128 × 2", f"{total:,}"]


def ranks() -> Iterator[Row]:
    """Bytes per token on each device, with heads split over 1 to 16."""
    for model in map(find_model, RANKED.split()):
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
        taken = kv_memory.entry_bytes(store, storage)
        share = taken / kv_memory.entry_bytes(store, BF16)
        bits = f"{storage.bits_for(128) / 128:g}"
        yield [name, bits, f"{taken:,}", f"{share:.1%}"]


def shipped() -> Iterator[Row]:
    """Bytes per entry as the kernels of DeepSeek's models store it."""
    for model in specs.models().values():
        if (stored := model.shipped) is None:
            continue
        shared = "shared" in kinds_of(model)
        yield [
            model.name,
            str(stored.kv),
            str(stored.window or stored.kv) if shared else "–",
            str(stored.index),
            exact(growth(model).later),
            exact(growth(model, dtype="shipped").later),
            links(*stored.sources),
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
    old, six = later("deepseek-67b"), later("deepseek-v2", Storage(6))
    v32, flash, pro = (
        later(f"deepseek-{name}", "shipped")
        for name in ("v3.2", "v4-flash", "v4-pro")
    )
    yield [Word("groups"), f"{latent} / {one}", f"{latent / one:g}"]
    for name, n in (("mha", H * one), ("own", own)):
        yield [Word(name), f"{n:,} / {latent}", f"{n / latent:.1f}"]
    for name, now in (("architecture", later("deepseek-v2")), ("six", six)):
        saved = f"{float(1 - now / old):.1%}"
        yield [Word(name), f"1 − {exact(now)} / {exact(old)}", saved]
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


def short(tokens: int) -> str:
    """A number of tokens as one says it: 4K, 1M."""
    for unit, letter in ((2**20, "M"), (2**10, "K")):
        if tokens % unit == 0:
            return f"{tokens // unit}{letter}"
    return f"{tokens:,}"


def look(model: Model) -> str:
    """Which kind of line a model gets."""
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
    width, height = (358, 500) if narrow else (700, 446)
    left = room(marks.values(), 11) + 8
    wide = width - left - room([model.name for model in models], 11) - 18
    box = (left, 124, wide, 352) if narrow else (left, 45, wide, 379)
    tokens = [2**i for i in range(10, 21)]
    figure, axes, pixels = plots.axes_in(
        (width, height),
        box,
        x=(2, {t: short(t) for t in tokens[::2]}, (tokens[0], tokens[-1])),
        y=(2, marks, (2.0**low, 2.0**high)),
    )
    axes.set_xlabel("{tokens}")
    axes.text(0, box[3] + 8, "{bytes}", transform=pixels)
    ends = []
    for model in models:
        taken = [kv_bytes(model, t) for t in tokens]
        axes.plot(tokens, taken, linewidth=1.8, **LOOKS[look(model)])
        if (far := model.max_context) <= tokens[-1]:
            dot = {"color": LOOKS[look(model)]["color"], "clip_on": False}
            axes.plot([far], [kv_bytes(model, far)], "o", markersize=5, **dot)
        ends.append((log2(taken[-1]) - low) / (high - low) * box[3])
    for model, at, to in zip(models, ends, plots.apart(ends, 16), strict=True):
        colour = LOOKS[look(model)]["color"]
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.8}
        # To where the name begins.
        line |= {"relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 0}
        name: Any = {"text": model.name, "va": "center", "color": colour}
        name |= {"xy": (wide, at), "xytext": (wide + 16, to)}
        name |= {"xycoords": pixels, "textcoords": pixels}
        axes.annotate(**name, arrowprops=line)
    # Below the axes of a phone, they begin where the drawing does.
    x, y = (2 - left, -58) if narrow else (10, box[3] - 13)
    inside: Any = {"transform": pixels, "clip_on": False}
    for i, (key, style) in enumerate(LOOKS.items()):
        at = y - 19 * i
        axes.plot([x, x + 23], [at, at], linewidth=1.8, **style, **inside)
        axes.text(x + 28, at, f"{{{key}}}", va="center", transform=pixels)
    return figure


def contexts() -> Plot:
    rows: list[Row] = [
        [model.name, *(size(kv_bytes(model, t)) for t in PLOT)]
        for model in map(find_model, DOZEN)
    ]
    return plots.plotted(_contexts, rows)


ALIGNED = 16  # tokens: a block of attention is a multiple of these
VLLM = "https://github.com/vllm-project/vllm"


def _page(model: Model) -> tuple[int, int]:
    """Bytes of one layer's state, and of one token in one layer of attention,
    in a model of both."""
    taken = {
        isinstance(group, Recurrent): sum(
            entry_bytes(store, DTYPES["bf16"]) for store in group.stores
        )
        for group in model.groups
    }
    return taken[True], taken[False]


def attention_block(model: Model, share: int = 1) -> int:
    """Tokens whose keys fill at least the page of a state; `share` is by how
    much the cache is narrower than bfloat16."""
    state, token = _page(model)
    return -(-state // (ALIGNED * token // share)) * ALIGNED


class Hybrid(NamedTuple):
    """What vLLM 0.19 prints for a hybrid model with so many blocks."""

    tokens: int
    concurrency: float


def hybrid(model: Model, blocks: int, length: int) -> Hybrid:
    """Layers of one kind are in groups of equal size, and each group of a
    request has blocks of its own: of its tokens, or one for its states."""
    least = min(group.layers for group in model.groups)
    groups = sum(-(-group.layers // least) for group in model.groups)
    block, each = attention_block(model), 0
    for group in model.groups:
        needed = 1 if isinstance(group, Recurrent) else -(-length // block)
        each += -(-group.layers // least) * needed
    return Hybrid(blocks // groups * block, blocks / each)


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
        find_model,
        (
            "gpt-oss-120b",
            "qwen3-235b",
            "deepseek-v4-flash",
            "glm-5.2",
            "qwen3.5-27b",
        ),
    )
    both = hybrid(small, 1487, 32_768)
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
            f"{both.tokens:,}; {both.concurrency:.2f}",
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
    ]


def log() -> Iterator[Row]:
    for case in log_cases():
        where = case.url.rsplit("/", 1)[1]
        yield [
            case.model,
            case.engine,
            Word(f"printed_{case.why}", tuple(case.printed.split())),
            case.ours,
            Word(case.why),
            f"[#{where}]({case.url})",
        ]


def _of_log() -> dict[str, object]:
    """What the text says of blocks of attention."""
    large, small = map(find_model, ("qwen3.5-27b", "qwen3.5-9b"))
    state, token = _page(large)
    block = attention_block(large)
    return {
        "block": block,
        "page": size(state),
        "each": token,
        "small": attention_block(small),
        "small_fp8": attention_block(small, 2),
    }


def numbers() -> dict[str, object]:
    """What the text says."""
    llama, flash, states = map(
        find_model, ("llama-3.1-8b", "deepseek-v4-flash", "qwen3.8-2.4t")
    )
    sequence = kv_bytes(llama, 131_072)
    widths = {name.key: n for name, _, n in claims() if isinstance(name, Word)}
    entry = 512 + 64
    v3 = kv_bytes(find_model("deepseek-v3"), 1)
    return _of_log() | {
        "v3_bytes": v3,
        "with_draft": v3 + 2 * entry,
        "draft_share": 2 * entry / v3,
        "sequence": size(sequence),
        "in_gb": sequence / 1e9,
        "times_flash": kv_bytes(find_model("llama-2-7b"), 131_072)
        / kv_bytes(flash, 131_072),
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
