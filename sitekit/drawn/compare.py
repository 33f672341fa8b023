"""The four variants side by side, and their times."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from markupsafe import Markup
from torch import Tensor

import attnref
from attnref.numbers.cost import Cost, attention_cost, mla_cost
from attnref.numbers.kv_memory import size
from attnref.numbers.specs import find_model
from sitekit import svg
from sitekit.drawn.measured import sizes, slug, spread
from sitekit.drawn.mla import V3, narrow, stored
from sitekit.recorded import inputs_of
from sitekit.render import Cell, Row, Word
from sitekit.tables import code

# All four with 128 query heads of 128 in a model as wide as DeepSeek-V3.
KV_HEADS = {"mha": 128, "gqa": 8, "mqa": 1}
WIDE: dict[str, Any] = {"d_model": 7168, "n_heads": 128, "head_dim": 128}
FOUND_IN = {
    "mha": ("gpt2", "llama-2-7b"),
    "gqa": ("llama-3.1-8b", "qwen3-32b"),
    "mqa": ("palm-540b", "falcon-7b"),
    "mla": ("deepseek-v3", "kimi-k2"),
}
KEYS = {
    "mha": r"$X W_n^K$",
    "gqa": r"$X W_{\lfloor n / g \rfloor}^K$",
    "mqa": r"$X W^K$",
    "mla": r"$[W_n^{UK} c_j;\; k_j^R]$",
}
VALUES = KEYS | {"mla": r"$W_n^{UV} c_j$"}


def _costs(**named: Any) -> list[Cost]:
    heads = KV_HEADS.values()
    plain = [attention_cost(**WIDE, n_kv_heads=K, **named) for K in heads]
    return [*plain, mla_cost(**V3, **named)]


def side_by_side() -> Iterator[Row]:
    """A row for each property: of MHA, GQA-8, MQA and MLA."""
    grouped = attnref.GroupedQueryAttention
    layers = (
        grouped(**WIDE | {"d_model": 8}, n_kv_heads=K)
        for K in KV_HEADS.values()
    )
    caches = [*map(stored, layers), stored(narrow())]
    costs = _costs()
    least = caches[0].nbytes
    done = [cost.scores + cost.values for cost in costs]
    expanded = mla_cost(**V3, form="expanded")
    several: list[Cell] = [f"{flops:,}" for flops in done]
    several[3] = [f"{expanded.scores + expanded.values:,}", str(several[3])]
    found = [
        [f"[{m.name}]({m.sources[0].url})" for m in map(find_model, ids)]
        for ids in FOUND_IN.values()
    ]
    yield [Word("keys"), *KEYS.values()]
    yield [Word("values"), *(VALUES[n].replace("^K", "^V") for n in VALUES)]
    held: list[Cell] = [
        [code((t.shape[1], t.shape[3])) for t in cache.stored]
        for cache in caches
    ]
    yield [Word("cached"), *held]
    yield [Word("elements"), *(f"{c.nbytes // 2:,}" for c in caches)]
    yield [Word("bytes"), *(size(c.nbytes) for c in caches)]
    yield [Word("share"), *(f"{c.nbytes / least:.2%}" for c in caches)]
    yield [Word("parameters"), *(f"{c.parameters / 1e6:,.1f}" for c in costs)]
    yield [Word("flops"), *several]
    of_byte = (float(cost.attention_intensity()) for cost in costs)
    yield [Word("intensity"), *(f"{n:,.4g}" for n in of_byte)]
    yield [Word("split"), *(str(c.stored[0].shape[1]) for c in caches)]
    yield [Word("found"), *found]


class Wired(NamedTuple):
    """Found by experiment in MLA: which query heads change with the keys and
    values of one head, `(H, H)`, with the latent and with the RoPE key,
    `(H,)`; and which with the latent while nothing is made from it."""

    up: Tensor
    latent: Tensor
    rope: Tensor
    past_up: Tensor

    def drawing(
        self, axes: tuple[str, str], *, title: str, words: list[str]
    ) -> svg.Drawing:
        """RoPE key above the query heads, and the latent below the heads that
        are made from it. `words`: RoPE key, latent, cached, computed."""
        H = len(self.up)
        rope, latent, cached, computed = words
        names = [f"{kind}{i}" for kind in ("q", "kv") for i in range(H)]
        box = max(24, svg.room(names, 11, svg.BOLD)) + 4
        ends = svg.room((rope, latent), 11, svg.BOLD) + 16
        heads, middle = H * (box + 2), H * (box + 2) / 2 + 2
        width = heads + 10 + svg.room((*axes, computed), 11.5)
        width = max(width, middle + ends / 2 + 8 + svg.room([cached], 11.5))
        top, q, kv, bottom = 16, 86, 146, 216

        def place(i: int) -> float:
            return middle + ((i + 0.5) / H - 0.5) * heads

        def text(kind: str, x: float, y: float, word: str) -> Markup:
            return svg.TEXT.format(kind, x, y, "", word)

        def boxed(kind: str, x: float, y: float, w: float, word: str) -> Markup:
            drawn = svg.BOX.format(kind, x - w / 2, y - 12, w, 24, 4, "")
            return drawn + text(f"{kind} head", x, y, word)

        marks = []
        for i in range(H):
            if self.rope[i]:
                marks.append(svg.LINE.format(middle, top, place(i), q))
            if self.latent[i] and not self.past_up[i]:
                marks.append(svg.LINE.format(place(i), kv, middle, bottom))
        for i, j in self.up.nonzero().tolist():
            marks.append(svg.LINE.format(place(i), q, place(j), kv))
        for i in range(H):
            marks.append(boxed("off", place(i), q, box, names[i]))
            marks.append(boxed("made", place(i), kv, box, names[H + i]))
        for y, word in ((top, rope), (bottom, latent)):
            marks.append(boxed("on", middle, y, ends, word))
            x = middle + ends / 2 + 8
            marks.append(text("axis beside", x, y, cached))
        for y, word in ((q, axes[0]), (kv - 8, axes[1]), (kv + 8, computed)):
            marks.append(text("axis beside", heads + 10, y, word))
        drawn = svg.SVG.format(width, 232, title, Markup("").join(marks))
        return svg.Drawing(title, svg.room([title], 1, svg.BOLD), width, drawn)


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
        before, kept = run(), rows.clone()
        change(rows)
        found = (run() != before).any(-1).any(1)[0]
        rows.copy_(kept)
        return found

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


LENGTHS = (1024, 4096, 16_384)  # tokens: the columns of the table of times
READS = {"read": 32, "MHA": 32, "GQA-8": 8, "GQA-2": 2, "MQA": 1}


def milliseconds(name: str, tokens: int) -> list[float]:
    """As measured: lower quartile, median, upper quartile."""
    if name == "read":  # the rate is in the file
        found = sizes("decode")[f"float32, MHA, {tokens}"]
        moved = 2 * READS[name] * 128 * tokens * 4
        return [moved / x / 1e6 for x in reversed(found["probes"]["GB/s"])]
    found = sizes("decode")[f"float32, {name}, {tokens}"]
    return list(found["ways"]["fused"]["value"])


def decoding() -> Iterator[Row]:
    """The variants: milliseconds at each length, and beside the last of them,
    relative to MHA, the bytes that are read."""
    for name, heads in READS.items():
        row: Row = [Word(slug(name))]
        row += [spread(milliseconds(name, tokens)) for tokens in LENGTHS]
        took, base = (milliseconds(n, LENGTHS[-1])[1] for n in (name, "MHA"))
        share = heads / READS["MHA"]
        yield [*row, f"{took / base:.3g}", f"{share:.3g}"]
