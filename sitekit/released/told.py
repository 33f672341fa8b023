"""What a config.json says of a model's attention, in words and numbers.

javascript.py makes a script of this file for the page "Your model".
`words` is what released.yml holds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from attnref.numbers.kv_memory import (
    DTYPES,
    growth,
    kv_bytes,
    largest_batch,
    reserved,
    size,
    weight_bytes,
)
from attnref.numbers.shapes import Model
from attnref.released.from_config import (
    context_of,
    model_from_config,
    within,
)
from attnref.released.generate import file_from, rendered
from attnref.released.record import (
    AttentionRecord,
    fields_of,
    kinds_of,
    mixers_of,
    parsed,
    records_of,
)

Records = Mapping[int, AttentionRecord]
Saying = Mapping[str, Any]
Change = dict[str, Any]
LENGTHS = 4096, 32_768, 131_072, 1_048_576
SHARE = 0.9  # of a device's memory, which engines use
USUAL = 131_072  # tokens
FORMATS = "bf16", "fp8", "int4"
BY_SIZE = "1 h100", "2 h100", "4 h100", "8 h100", "8 h200", "8 b200"


class Part(NamedTuple):
    """What a record says beyond Llama's, and the record without it."""

    holds: Callable[[AttentionRecord], object]
    without: Callable[[AttentionRecord], Change] | None = None


def standard(r: AttentionRecord) -> float:
    return float(r.head_dim**-0.5)


# In the order in which they are told.
PARTS: dict[str, Part] = {
    "mla": Part(lambda r: r.kv_rank),
    "indexer": Part(
        lambda r: r.index_topk and not r.index_pool,
        lambda r: {"index_topk": None, "index_own": False},
    ),
    "blocks": Part(
        lambda r: r.index_pool,
        lambda r: {"index_topk": None, "index_own": False, "index_pool": None},
    ),
    "grouped": Part(lambda r: r.n_kv_heads < r.n_heads and not r.kv_rank),
    "wide": Part(
        lambda r: r.n_heads * r.head_dim != r.d_model and not r.kv_rank
    ),
    "narrow_v": Part(lambda r: r.v_head_dim != r.head_dim and not r.kv_rank),
    "fused": Part(lambda r: r.fused),
    "bias": Part(
        lambda r: r.qkv_bias or r.o_bias,
        lambda r: {"qkv_bias": False, "o_bias": False},
    ),
    "shares": Part(lambda r: r.shares is not None),
    "k_is_v": Part(lambda r: r.k_is_v),
    "clip": Part(lambda r: r.clip, lambda r: {"clip": None}),
    "k_factor": Part(lambda r: r.k_factor != 1, lambda r: {"k_factor": 1.0}),
    "v_factor": Part(lambda r: r.v_factor != 1, lambda r: {"v_factor": 1.0}),
    "norm": Part(
        lambda r: r.norm, lambda r: {"norm": None, "norm_late": False}
    ),
    "norm_weight": Part(
        lambda r: r.norm and r.norm_weight == "1 + w",
        lambda r: {"norm_weight": "w"},
    ),
    "norm_late": Part(  # without a weight, both orders are one
        lambda r: r.norm_late and r.norm_weight,
        lambda r: {"norm_late": False},
    ),
    "v_norm": Part(lambda r: r.v_norm, lambda r: {"v_norm": False}),
    "no_rope": Part(
        lambda r: not r.rope_theta and not r.alibi,
        lambda r: {"rope_theta": 1e4, "rope_width": r.rope_dim or r.head_dim},
    ),
    "alibi": Part(lambda r: r.alibi, lambda r: {"alibi": False}),
    "theta": Part(lambda r: False),  # of a model: see `parts_of`
    "partial": Part(
        lambda r: r.rope_theta and r.rope_width < (r.rope_dim or r.head_dim),
        lambda r: {"rope_width": r.head_dim},
    ),
    "interleaved": Part(
        lambda r: r.rope_theta and r.rope_layout != "half",
        lambda r: {"rope_layout": "half"},
    ),
    "scaled": Part(
        lambda r: r.rope_theta and r.rope_kind != "default",
        lambda r: {"rope_kind": "default", "rope_size": 1.0},
    ),
    "growth": Part(
        lambda r: r.q_growth or r.q_power,
        lambda r: {"q_growth": 0.0, "q_power": 0.0},
    ),
    "scale": Part(
        lambda r: abs(r.scale / standard(r) - 1) > 1e-6,
        lambda r: {"scale": standard(r)},
    ),
    "softcap": Part(lambda r: r.softcap, lambda r: {"softcap": None}),
    "window": Part(lambda r: r.window, lambda r: {"window": None}),
    "chunk": Part(lambda r: r.chunk, lambda r: {"chunk": None}),
    "sinks": Part(lambda r: r.with_sinks, lambda r: {"with_sinks": False}),
    "head_norm": Part(lambda r: r.head_norm, lambda r: {"head_norm": False}),
    "gate": Part(
        lambda r: r.gate, lambda r: {"gate": None, "gate_bias": False}
    ),
    "sub_norm": Part(lambda r: r.sub_norm, lambda r: {"sub_norm": False}),
}
NOT_TOLD = {"grouped"}  # in a sentence: the heads say it
UNSAID = {"window", "chunk"}  # their lines are those of masks and caches


def parts_of(records: Records) -> dict[str, list[int]]:
    """The parts that a model has, each with its layers."""
    result = {
        name: [n for n, r in records.items() if part.holds(r)]
        for name, part in PARTS.items()
    }
    most = theta_of(records)
    result["theta"] = [
        n for n, r in records.items() if r.rope_theta not in (None, most)
    ]
    return {name: layers for name, layers in result.items() if layers}


def theta_of(records: Records) -> float:
    """That of the layers that see furthest."""
    return max((r.rope_theta or 0.0 for r in records.values()), default=0.0)


def letters(given: Mapping[str, Any], records: Records) -> list[str]:
    """A letter of KINDS in drawn/released.py per layer that attends or keeps a
    state."""
    pattern = given.get("hybrid_override_pattern")
    others = pattern if isinstance(pattern, str) else ""
    result = []
    mixers = mixers_of(given)
    for layer in range(len(kinds_of(given))):
        r, mixer = records.get(layer), mixers.get(layer)
        if mixer is not None and (mixer.window or mixer.n_kv_heads):
            whole = "F" if mixer.window is None else "W"
            result.append("K" if mixer.rate > 1 else whole)
        elif r is None:
            result += [] if others[layer : layer + 1] in ("E", "-") else ["R"]
        elif r.shares is not None:
            result.append("S")
        else:
            kinds = {"L": r.kv_rank, "W": r.window, "C": r.chunk, "F": True}
            result.append(next(k for k, holds in kinds.items() if holds))
    return result


def composition(kinds: Sequence[str], words: Saying, language: str) -> str:
    """How many layers there are of each kind."""
    counted: dict[str, int] = {}
    for letter in kinds:
        counted[letter] = counted.get(letter, 0) + 1
    phrases = [
        words["letters"][letter][language].format(n)
        for letter, n in counted.items()
    ]
    joined: str = words["page"]["join"][language].join(phrases)
    return joined


def number(n: float) -> str:
    """A power of ten as one, and 0.125 as it is."""
    return f"{n:,.0f}" if n == int(n) else f"{n:.4g}"


def sentence(part: str, records: Records, words: Saying, language: str) -> str:
    """In a sentence, with its numbers and where it holds."""
    layers = parts_of(records)[part]
    r = records[layers[0]]

    def called(kind: str, name: str | None) -> str:
        return str(words[kind].get(name, {}).get(language, ""))

    facts = vars(r) | {
        "Dh": r.head_dim,
        "group": r.n_heads // r.n_kv_heads,
        "width": r.n_heads * r.head_dim,
        "share": number(r.rope_width / (r.rope_dim or r.head_dim)),
        "kind": called("kinds", r.rope_kind),
        "norm_of": called("norms", r.norm),
        "gate_of": called("gates", r.gate),
        "theta": number(r.rope_theta or 0),
        "most": number(theta_of(records)),
        "scale_of": f"{r.scale:.4g}",
        "usual": f"{standard(r):.4g}",
    }
    some = ""
    if len(layers) < len(records):
        some = words["page"]["some"][language]
        some = some.format(n=len(layers), all=len(records))
    text: str = words["parts"][part]["differs"][language]
    return text.format(**facts, some=some)


def heads(r: AttentionRecord) -> str:
    return f"{r.n_heads} / {r.n_kv_heads} / {r.head_dim}"


def differs(
    records: Records, words: Saying, language: str
) -> list[tuple[str, str]]:
    """What is not as in Llama, in a sentence each."""
    return [
        (part, sentence(part, records, words, language))
        for part in parts_of(records)
        if part not in NOT_TOLD
    ]


def without(
    part: str, r: AttentionRecord, records: Records
) -> AttentionRecord | None:
    """The record of a loader that knows nothing of a part, if one could be."""
    change = PARTS[part].without
    if part == "theta":
        return replace(r, rope_theta=theta_of(records))
    return replace(r, **change(r)) if change else None


def lines_of(part: str, records: Records) -> list[str]:
    """The lines of a layer's code that a part needs, as a diff."""
    r = records[parts_of(records)[part][0]]
    other = without(part, r, records)
    if part in UNSAID or not other:
        return []
    old, new = (
        [x for x in rendered({0: y}, inside=True).split("\n") if x.strip()]
        for y in (other, r)
    )
    result, rest = [], [*new]  # no line moves
    for line in old:
        if line not in rest:
            result.append("- " + line)
            continue
        while rest[0] != line:
            result.append("+ " + rest.pop(0))
        rest.pop(0)
    result += ["+ " + line for line in rest]
    deep = min((len(x[2:]) - len(x[2:].strip()) for x in result), default=0)
    return [x[:2] + x[2 + deep :] for x in result]


class Curve(NamedTuple):
    """Tokens in which each pair of channels turns once, as lines of a plot
    with 100 units of width, and 10 of height for each power of ten."""

    scaled: str
    plain: str  # as if RoPE were not scaled
    shortest: str
    longest: str


HEIGHT = 80  # up to 10**8 tokens


def curve(r: AttentionRecord) -> Curve:
    """That of a layer with RoPE."""
    scaled, plain = _turns(r), _turns(replace(r, rope_kind="default"))
    return Curve(
        _line(scaled),
        _line(plain) if r.rope_kind != "default" else "",
        f"{min(scaled):,.0f}",
        f"{float(f'{max(scaled):.3g}'):,.0f}",
    )


def _turns(r: AttentionRecord) -> list[float]:
    """The pairs that do not turn are left out."""
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
        turned = int(r.rope_share * D / 2)
        return [*rates[:turned], *(0.0 for _ in rates[turned:])]
    keep = [1.0 for _ in rates]
    if r.rope_kind == "llama3":
        turns = [r.rope_length * f / (2 * math.pi) for f in rates]
        wide = r.rope_high - r.rope_low
        keep = [(n - r.rope_low) / wide for n in turns]
    if r.rope_kind == "yarn":
        steps = D / (2 * math.log(theta))
        once = r.rope_length / (2 * math.pi)  # it turns once in this length
        low = steps * math.log(once / r.rope_high)
        high = steps * math.log(once / r.rope_low)
        if r.rope_truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, D - 1)
        keep = [1 - (n - low) / (high - low or 0.001) for n in range(D // 2)]
    keep = [min(max(k, 0.0), 1.0) for k in keep]
    return [
        f * k + f / r.rope_factor * (1 - k)
        for f, k in zip(rates, keep, strict=True)
    ]


def _line(turns: Sequence[float]) -> str:
    step = 100 / len(turns)
    heights = (HEIGHT - 10 * math.log10(n) for n in turns)
    points = [f"{(n + 0.5) * step:.2f} {y:.2f}" for n, y in enumerate(heights)]
    return "M" + "L".join(points)


def read(text: str) -> tuple[Change, Records, Records]:
    """The fields of a config, its records, and those without windows as long
    as the longest text."""
    given = fields_of(parsed(text))
    exact, context = records_of(given), context_of(given)
    return given, exact, {n: within(r, context) for n, r in exact.items()}


def answer(text: str, words: Saying, language: str) -> dict[str, Any]:
    """What the page shows of the text of a config.json."""
    given, exact, records = read(text)
    kinds = letters(given, records)
    return {
        "family": given["model_type"],
        "whole": unshared(attending(given, records)),
        "letters": kinds,
        "said": composition(kinds, words, language),
        "differs": differs(records, words, language),
        "kinds": _kinds(records),
        "curves": _curves(records),
        "file": file_from(exact, given),
    }


def _curves(records: Records) -> list[list[str]]:
    """Of each kind of RoPE in a model."""
    result: dict[tuple[Any, ...], list[str]] = {}
    for r in records.values():
        kind = r.rope_theta, r.rope_width, r.rope_kind, r.rope_factor
        if r.rope_theta and kind not in result:
            result[kind] = [*curve(r)]
    return [*result.values()]


def _kinds(records: Records) -> list[list[str]]:
    """Layers, heads, RoPE and tokens in sight of each kind of layer."""
    counted: dict[tuple[str, ...], int] = {}
    for r in records.values():
        rope = "-"
        if r.rope_theta:
            rope = f"{number(r.rope_theta)} / {r.rope_width}"
            if r.rope_kind != "default":
                rope += f", {r.rope_kind}"
        seen = r.window or r.chunk
        row = heads(r), rope, f"{seen:,}" if seen else "-"
        counted[row] = counted.get(row, 0) + 1
    return [[str(n), *row] for row, n in counted.items()]


def counted(text: str) -> Model:
    """The sizes of the model of a config.json."""
    return model_from_config(fields_of(parsed(text)))


# The card of a model: its rows by the lengths of the slider.


def attending(given: Mapping[str, Any], records: Records) -> Records:
    """The layers with keys and values, those of a template too."""
    if records:
        return records
    return {
        layer: AttentionRecord(
            r.family,
            r.kind,
            r.d_model,
            r.n_heads,
            r.n_kv_heads or 1,
            r.key_dim,
            r.key_dim,
            window=r.window,
        )
        for layer, r in mixers_of(given).items()
    }


def unshared(records: Records) -> int:
    """Elements of a token, if all query heads had their keys and values."""
    heads = (r.n_heads * (r.head_dim + r.v_head_dim) for r in records.values())
    return sum(heads)


def card(
    model: Model,
    whole: int,
    mib: Mapping[str, int],
    ranks: Sequence[int],
) -> dict[str, Any]:
    """Whatever one chooses there. `whole` is what `unshared` gives, or 0."""
    longest = model.max_context or LENGTHS[0]
    tokens = [2**k for k in range(12, 21) if 2**k <= longest] or [longest]
    at = len([n for n in tokens if n <= USUAL]) - 1
    ways = [f"{way} {name} bf16" for name in FORMATS for way in BY_SIZE]
    result = {
        "tokens": tokens,
        "by": {name: _stored(model, whole, tokens, name) for name in FORMATS},
        "at": at,
        "way": ways[-1],
    }
    if model.params is None:
        return result | {"context": f"{model.max_context:,}"}
    fits: dict[str, list[int]] = {}
    for n in ranks:
        own = {name: weight_bytes(model, name, ranks=n) for name in FORMATS}
        for dtype in FORMATS:
            each = [kv_bytes(model, t, dtype=dtype, ranks=n) for t in tokens]
            for weights, taken in own.items():
                for device, most in mib.items():
                    room = int(most * 2**20 * SHARE) - taken
                    if room >= each[0]:
                        way = f"{n} {device} {weights} {dtype}"
                        fits[way] = [room // one for one in each]
    # The smallest that holds the model.
    holds = [way for way in ways if way in fits and fits[way][at]]
    return result | {"fits": fits, "way": holds[0] if holds else ways[-1]}


def _stored(
    model: Model, whole: int, tokens: Sequence[int], dtype: str
) -> dict[str, Any]:
    cache = [kv_bytes(model, n, dtype=dtype) for n in tokens]
    rows: dict[str, Any] = {
        "token": size(growth(model, dtype=dtype).first),
        "cache": [size(n) for n in cache],
    }
    if whole:
        bits = DTYPES[dtype].bits_for(whole)
        both = [(c, bits * n / 8) for c, n in zip(cache, tokens, strict=True)]
        rows["whole"] = [size(n) for _, n in both]
        rows["part"] = [f"{100 * c / n:.2f}%" for c, n in both]
        if both[0][0] < both[0][1]:  # otherwise each head has its own
            times = [n / c for c, n in both]
            rows["times"] = [
                f"{x:,.0f}" if x > 99 else f"{x:.3g}" for x in times
            ]
    return rows


class Use(NamedTuple):
    """What a model is to run on, and in which formats."""

    mib: int
    bandwidth: float | None
    ranks: int
    weights: str
    cache: str
    tokens: int


def memory(model: Model, use: Use, words: Saying) -> dict[str, Any]:
    """What the page shows of the memory of a model."""
    full, tokens, ranks = reserved(model), use.tokens, use.ranks

    def held(model: Model, tokens: int, ranks: int = 1) -> int:
        return kv_bytes(model, tokens, dtype=use.cache, ranks=ranks)

    some = [n for n in LENGTHS if n <= model.max_context]
    rows = [
        [f"{n:,}", size(held(model, n)), size(held(full, n))]
        for n in some or LENGTHS
    ]
    if model.params is None:
        return {"rows": rows, "said": [words["uncounted"]]}
    each = held(model, tokens, ranks)
    own = weight_bytes(model, use.weights, ranks=ranks)
    lines = [words["weighs"].format(f"{model.params:,}", size(own))]
    left = int(use.mib * 2**20 * SHARE) - own
    most = largest_batch(model, tokens, left, dtype=use.cache, ranks=ranks)
    fits = words["fits"] if most else words["none"]
    lines.append(fits.format(f"{most:,}", f"{tokens:,}", size(each)))
    if use.bandwidth and most:
        step = f"{1e3 * (own + most * each) / use.bandwidth:.3g}"
        lines.append(words["step"].format(step))
    return {"rows": rows, "said": lines}
