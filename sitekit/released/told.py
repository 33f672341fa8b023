"""What a config.json says of a model's attention, in words and numbers.

javascript.py makes a script of this file for the page "Your model".
`words` is what parts.toml of the package holds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from attnref.numbers.kv_memory import (
    DTYPES,
    growth,
    kv_bytes,
    largest_batch,
    reserved,
    size,
    state_bytes,
    weight_bytes,
)
from attnref.numbers.shapes import Chunked, Compressed, Full, Group, Mla, Model, Recurrent, Store
from attnref.numbers.weights import Share, device_bytes
from attnref.released.from_config import context_of, drop_wide_window, group_of, model_from_config
from attnref.released.generate import file_from, rendered
from attnref.released.parts import (
    PARTS,
    Records,
    Saying,
    composition,
    letters,
    number,
    parts_of,
    sentence,
    theta_of,
)
from attnref.released.record import AttentionRecord, Config, parsed, read_config
from attnref.released.stored import dtype_of, stored_shares

LENGTHS = 4096, 32_768, 131_072, 1_048_576
SHARE = 0.9  # of a device's memory, which engines use
USUAL = 131_072  # tokens
FORMATS = "bf16", "fp8", "int4"
CONFIG = "config"  # weights in the format of their files
BY_SIZE = "1 h100", "2 h100", "4 h100", "8 h100", "8 h200", "8 b200"


NO_SENTENCE = {"grouped"}  # the numbers of heads say it
NO_LINES = {"window", "chunk"}  # masks and caches have them


def heads(r: AttentionRecord) -> str:
    return f"{r.n_heads} / {r.n_kv_heads} / {r.head_dim}"


def differs(records: Records, words: Saying, language: str) -> list[tuple[str, str]]:
    """The parts that Llama does not have, each with a sentence."""
    return [
        (part, sentence(part, records, words, language))
        for part in parts_of(records)
        if part not in NO_SENTENCE
    ]


def without(part: str, r: AttentionRecord, records: Records) -> AttentionRecord | None:
    """The record as a loader reads it that does not know the part, or None
    if no loader could."""
    change = PARTS[part].without
    if part == "theta":
        return replace(r, rope_theta=theta_of(records))
    return replace(r, **change(r)) if change else None


def lines_of(part: str, records: Records) -> list[str]:
    """The lines of a layer's code that a part needs, as a diff.

    No line of a part moves other lines."""
    r = records[parts_of(records)[part][0]]
    other = without(part, r, records)
    if part in NO_LINES or not other:
        return []
    old, new = (
        [x for x in rendered({0: y}, inside=True).split("\n") if x.strip()] for y in (other, r)
    )
    result, rest = [], [*new]
    for line in old:
        if line not in rest:
            result.append("- " + line)
            continue
        while rest[0] != line:
            result.append("+ " + rest.pop(0))
        rest.pop(0)
    result += ["+ " + line for line in rest]
    indent = min((len(x[2:]) - len(x[2:].strip()) for x in result), default=0)
    return [x[:2] + x[2 + indent :] for x in result]


class Curve(NamedTuple):
    """Tokens in which each pair of channels turns once, as lines of a plot
    with 100 units of width, and 10 of height for each power of ten."""

    scaled: str
    plain: str  # as if RoPE were not scaled
    shortest: str
    longest: str


HEIGHT = 80  # up to 10**8 tokens


def curve(r: AttentionRecord) -> Curve:
    """The curve of a layer with RoPE."""
    scaled, plain = _turns(r), _turns(replace(r, rope_kind="default"))
    return Curve(
        _line(scaled),
        _line(plain) if r.rope_kind != "default" else "",
        f"{min(scaled):,.0f}",
        f"{float(f'{max(scaled):.3g}'):,.0f}",
    )


def _turns(r: AttentionRecord) -> list[float]:
    """Tokens in which each pair turns once, without pairs that never turn."""
    return [2 * math.pi / f for f in frequencies(r) if f]


def frequencies(r: AttentionRecord) -> list[float]:
    """RoPE: the angle of each pair per position, as the file of `r` has it."""
    D = r.rope_width
    theta: Any = r.rope_theta
    rates = [theta ** -(p / D) for p in range(0, D, 2)]
    if r.rope_kind == "linear":
        return [f / r.rope_factor for f in rates]
    if r.rope_kind == "longrope":
        return [f / s for f, s in zip(rates, r.rope_short, strict=True)]
    if r.rope_kind == "proportional":
        pairs = int(r.rope_share * D / 2)
        return [*rates[:pairs], *(0.0 for _ in rates[pairs:])]
    keep = [1.0 for _ in rates]
    if r.rope_kind == "llama3":
        turns = [r.rope_length * f / (2 * math.pi) for f in rates]
        width = r.rope_high - r.rope_low
        keep = [(n - r.rope_low) / width for n in turns]
    if r.rope_kind == "yarn":
        steps = D / (2 * math.log(theta))
        turn = r.rope_length / (2 * math.pi)  # a pair turns once in this length
        low = steps * math.log(turn / r.rope_high)
        high = steps * math.log(turn / r.rope_low)
        if r.rope_truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, D - 1)
        keep = [1 - (n - low) / (high - low or 0.001) for n in range(D // 2)]
    keep = [min(max(k, 0.0), 1.0) for k in keep]
    return [f * k + f / r.rope_factor * (1 - k) for f, k in zip(rates, keep, strict=True)]


def _line(turns: Sequence[float]) -> str:
    step = 100 / len(turns)
    heights = (HEIGHT - 10 * math.log10(n) for n in turns)
    points = [f"{(n + 0.5) * step:.2f} {y:.2f}" for n, y in enumerate(heights)]
    return "M" + "L".join(points)


def read(text: str) -> tuple[Config, Records]:
    """A config, and its records without windows as long as the longest text."""
    config = read_config(parsed(text))
    context = context_of(config)
    return config, {layer: drop_wide_window(r, context) for layer, r in config.records.items()}


def answer(text: str, words: Saying, language: str) -> dict[str, Any]:
    """What the page shows of the text of a config.json."""
    config, records = read(text)
    kinds = letters(config, records)
    return {
        "family": config.family,
        "reused": reused(records),
        "letters": kinds,
        "said": composition(kinds, words, language),
        "differs": differs(records, words, language),
        "kinds": _kinds(records),
        "curves": _curves(records),
        "file": file_from(config),
    }


def _curves(records: Records) -> list[list[str]]:
    """The curve of each kind of RoPE in a model, if any pair turns."""
    result: dict[tuple[Any, ...], list[str]] = {}
    for r in records.values():
        kind = r.rope_theta, r.rope_width, r.rope_kind, r.rope_factor
        known = r.rope_theta and not r.rope_learned
        if known and kind not in result and _turns(r):
            result[kind] = [*curve(r)]
    return [*result.values()]


def _kinds(records: Records) -> list[list[str]]:
    """Layers, heads, RoPE and tokens in sight of each kind of layer."""
    counts: dict[tuple[str, ...], int] = {}
    for r in records.values():
        rope = "-"
        if r.rope_theta:
            rope = f"{number(r.rope_theta)} / {r.rope_width}"
            if r.rope_kind != "default":
                rope += f", {r.rope_kind}"
        span = r.window or r.chunk
        row = heads(r), rope, f"{span:,}" if span else "-"
        counts[row] = counts.get(row, 0) + 1
    return [[str(n), *row] for row, n in counts.items()]


def counted(text: str) -> Model:
    """The sizes of the model of a config.json."""
    return model_from_config(read_config(parsed(text)))


def unshared(group: Group) -> int:
    """Elements of a token in one layer, if each query head had its own key and
    value; 0 if that is not known."""
    if isinstance(group, Full):
        return (group.q_heads or 0) * (group.head_dim + group.v_head_dim)
    if isinstance(group, Mla):
        plain, value = group.qk_nope_head_dim, group.v_head_dim
        if plain is None or value is None:
            return 0
        return group.q_heads * (plain + group.qk_rope_head_dim + value)
    if isinstance(group, Compressed):
        return 2 * (group.q_heads or 0) * group.dim
    return 0


def elements(store: Store) -> int:
    """Elements of one entry of a store."""
    return store.heads * sum(store.widths)


def reused(records: Records) -> list[int]:
    """Elements per token of the layers that read the keys of others, if these
    layers stored keys too: with one per query head, and as the others do."""
    full = stored = 0
    for r in records.values():
        group = group_of(replace(r, shares=None))
        if group and r.shares is not None:
            full += unshared(group)
            stored += elements(group.stores[0])
    return [full, stored]


# What makes the keys and values of a model smaller, or adds to them.
CAUSES = (*("heads", "latent", "vector", "layers"), *("windows", "chunks", "entries", "index"))


def factors(model: Model, reuse: Sequence[int], tokens: int) -> dict[str, float]:
    """How many times smaller the keys and values of a text are than if each
    query head had its own, of all tokens; and the factor of each cause, after
    those before it. `reuse` is what `reused` gives; states are not counted."""
    full, stored = reuse
    savings = {name: 0 for name in CAUSES}
    savings["heads"] = (full - stored) * tokens
    savings["layers"] = stored * tokens
    total = full * tokens
    for group in model.groups:
        n, width = group.layers, unshared(group)
        total += n * width * tokens
        stores = [s for s in group.stores if s.role == "kv"]
        if stores:
            name, short = "heads", "windows"
            if isinstance(group, Mla):
                name = "latent"
            if isinstance(group, Compressed):
                name = "vector"
            if isinstance(group, Chunked):
                short = "chunks"
            if len(stores) > 1:
                short = "entries"
            entry = elements(stores[0])
            savings[name] += n * (width - entry) * tokens
            kept = sum(elements(s) * s.entries(tokens) for s in stores)
            savings[short] += n * (entry * tokens - kept)
        index = [s for s in group.stores if s.role == "index"]
        kept = sum(elements(s) * s.entries(tokens) for s in index)
        savings["index"] -= n * kept
    # Nothing is left of a text shorter than one compressed entry.
    result = {"times": total / (total - sum(savings.values()) or 1)}
    for name, saving in savings.items():
        result[name] = total / (total - saving or 1)
        total -= saving
    return result


class Stored(NamedTuple):
    """The weights as the files of a config store them, or why they are not
    counted; neither, if the config names no format."""

    shares: list[Share]
    why: str = ""


def weighed(text: str) -> tuple[Model, Stored]:
    """The sizes of the model of a config.json, and its weights as stored."""
    config = read_config(parsed(text))
    model = model_from_config(config)
    if not (config.quantization or dtype_of(config)):
        return model, Stored([])
    try:
        return model, Stored(stored_shares(config))
    except ValueError as error:
        return model, Stored([], str(error))


def weights_in(dtype: str, model: Model, kept: Stored | None, ranks: int) -> int:
    """Bytes of the weights on each device, in a dtype or as in the files."""
    if dtype != CONFIG:
        return weight_bytes(model, dtype, ranks=ranks)
    if kept is not None and kept.shares:
        return device_bytes(kept.shares, ranks)
    return weight_bytes(model, "bf16", ranks=ranks)


def card(
    model: Model,
    reuse: Sequence[int],
    mib: Mapping[str, int],
    ranks: Sequence[int],
    kept: Stored | None = None,
) -> dict[str, Any]:
    """The card of a model: its rows at each length of the slider, for whatever
    device and formats one chooses. `reuse` is what `reused` gives, or empty if
    no layer is known; with what is `kept`, weights may be as in the files."""
    formats = [*FORMATS]
    if kept is not None:
        formats = [CONFIG, *FORMATS] if kept.shares else [*FORMATS, CONFIG]
    longest = model.max_context or LENGTHS[0]
    tokens = [2**k for k in range(12, 21) if 2**k <= longest]
    if not tokens or keeps_state(model):
        tokens = [longest]
    position = len([n for n in tokens if n <= USUAL]) - 1
    ways = [f"{way} {name} bf16" for name in formats for way in BY_SIZE]
    result = {
        "tokens": tokens,
        "by": {name: _stored(model, reuse, tokens, name) for name in FORMATS},
        "factors": _factors(model, reuse, tokens),
        "at": position,
        "way": ways[-1],
    }
    if model.params is None:
        longest = model.max_context
        return result | ({"context": f"{longest:,}"} if longest else {})
    batches: dict[str, list[int]] = {}
    for n in ranks:
        weights = {name: weights_in(name, model, kept, n) for name in formats}
        for dtype in FORMATS:
            caches = [kv_bytes(model, t, dtype=dtype, ranks=n) for t in tokens]
            for name, weight in weights.items():
                for device, total in mib.items():
                    room = int(total * 2**20 * SHARE) - weight
                    if room >= caches[0]:
                        way = f"{n} {device} {name} {dtype}"
                        batches[way] = [room // cache for cache in caches]
    # The smallest device that holds the model.
    fits = [way for way in ways if way in batches and batches[way][position]]
    return result | {"fits": batches, "way": fits[0] if fits else ways[-1]}


def keeps_state(model: Model) -> bool:
    """Whether the layers store only states of one size, no keys or values."""
    return all(isinstance(group, Recurrent) for group in model.groups)


def compared(model: Model, reuse: Sequence[int]) -> bool:
    """Whether one knows what its keys and values would be without sharing."""
    groups = [g for g in model.groups if not isinstance(g, Recurrent)]
    return bool(reuse and groups and all(unshared(g) for g in groups))


def _factors(model: Model, reuse: Sequence[int], tokens: Sequence[int]) -> dict[str, list[str]]:
    """The factors that are not 1 at each length, and their product."""
    if not compared(model, reuse):
        return {}
    columns = [factors(model, reuse, n) for n in tokens]
    rows = {name: [x[name] for x in columns] for name in ("times", *CAUSES)}
    return {
        name: [f"{x:,.0f}" if x > 99 else f"{x:.3g}" for x in row]
        for name, row in rows.items()
        if any(x != 1 for x in row)
    }


def _stored(
    model: Model, reuse: Sequence[int], tokens: Sequence[int], dtype: str
) -> dict[str, Any]:
    """Sizes of caches and states at each length, as texts."""
    caches = [kv_bytes(model, n, dtype=dtype) for n in tokens]
    if keeps_state(model):
        return {"state": [size(n) for n in caches]}
    rows: dict[str, Any] = {
        "token": size(growth(model, dtype=dtype).first),
        "cache": [size(n) for n in caches],
    }
    states = state_bytes(model)
    if states:
        rows["states"] = size(states)
    if compared(model, reuse):
        full = sum(group.layers * unshared(group) for group in model.groups)
        bits = DTYPES[dtype].bits_for(full + reuse[0])
        totals = [bits * n / 8 + states for n in tokens]
        pairs = zip(caches, totals, strict=True)
        rows["whole"] = [size(n) for n in totals]
        rows["part"] = [f"{100 * cache / n:.2f}%" for cache, n in pairs]
    return rows


class Use(NamedTuple):
    """The device that a model is to run on, and the formats."""

    mib: int
    bandwidth: float | None
    ranks: int
    weights: str
    cache: str
    tokens: int


def memory(model: Model, kept: Stored, use: Use, words: Saying) -> dict[str, Any]:
    """The rows and sentences of the page on the memory of a model."""
    full, tokens, ranks = reserved(model), use.tokens, use.ranks

    def cache(model: Model, tokens: int, ranks: int = 1) -> int:
        return kv_bytes(model, tokens, dtype=use.cache, ranks=ranks)

    lengths = [n for n in LENGTHS if n <= model.max_context]
    rows = [[f"{n:,}", size(cache(model, n)), size(cache(full, n))] for n in lengths or LENGTHS]
    lines = []
    if keeps_state(model):
        rows, lines = [], [words["state"].format(size(cache(model, 1)))]
    if kept.why:
        lines.append(kept.why)
    if model.params is None:
        return {"rows": rows, "said": [*lines, words["uncounted"]]}
    per_text = cache(model, tokens, ranks)
    weights = weights_in(use.weights, model, kept, ranks)
    lines.append(words["weighs"].format(f"{model.params:,}", size(weights)))
    room = int(use.mib * 2**20 * SHARE) - weights
    batch = largest_batch(model, tokens, room, dtype=use.cache, ranks=ranks)
    fits = words["fits"] if batch else words["none"]
    lines.append(fits.format(f"{batch:,}", f"{tokens:,}", size(per_text)))
    if use.bandwidth and batch:
        step = f"{1e3 * (weights + batch * per_text) / use.bandwidth:.3g}"
        lines.append(words["step"].format(step))
    return {"rows": rows, "said": lines}
