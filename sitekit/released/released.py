"""Released models: in what the attention of each differs from Llama's, what it
stores, its file, and what the output loses with each part.

specs.json has what attention reads of the config.json of each, with its
address. The pages models/released/*.md stand nowhere: `markdown` writes them
for the build, from the words of released.toml, and of parts.toml in the package, where both
languages stand side by side. `::: released qwen3-8b` on a page becomes the file of that model.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnref.numbers.kv_memory import growth, kv_bytes, size, state_bytes
from attnref.numbers.shapes import Model
from attnref.released import parts
from attnref.released.configured import ConfiguredAttention
from attnref.released.devices import devices
from attnref.released.from_config import drop_wide_window, group_of
from attnref.released.generate import file_from
from attnref.released.mixers import CompressedAttention, KeysRecord, window_of
from attnref.released.parts import Records, composition, letters, parts_of, standard
from attnref.released.record import AttentionRecord, Config, read_config
from attnref.released.specs import chinese_names as makers_of
from attnref.released.specs import configs, models
from sitekit import ROOT
from sitekit.adapter import BuildError, get_relative_url
from sitekit.drawing.strips import paths
from sitekit.markdown.calls import near
from sitekit.markdown.render import render
from sitekit.markdown.source import table_of
from sitekit.released import told
from sitekit.released.told import LENGTHS, differs, heads, lines_of, without

FOLDER = "models/released"
TRIAL = """layer = {made}({layer}).eval().requires_grad_(False)
x = torch.randn(3, 9, {d_model})  # (B, T, E)
whole = layer(x)

cache = layer.cache(max_len=9)
steps = [layer(new, cache=cache) for new in x.split((5, 1, 3), dim=1)]
torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=0, atol=1e-4)"""
LINE = re.compile(r"^::: released ([\w.-]+)$", re.MULTILINE)
DEVICES = "4090", "910b", "a100", "h100", "h200", "b200"
RANKS = 1, 2, 4, 8
# The words of a card.
FACTS = {
    "state": "of_state",
    "token": "of_token",
    "cache": "of_text",
    "times": "times",
    "fits": "sequences",
    "context": "context",
}
UNFOLDED = 11  # lines of a diff that need no fold
T, E, D = 24, 60, 16  # of the tiny layers: more tokens than any window
SMALL_SPAN = 7  # their windows and chunks; longer RoPE is scaled beyond 8


# The part of a name that tells sizes of a family apart: 8b, 8x7b, e2b-a4b,
# flash.
SIZE = re.compile(r"(-([ae]?\d[\d.x]*[bmt]|flash|lite|mini|nano|pro|scout|maverick))+$")


def family_of(id: str) -> str:
    return SIZE.sub("", id)


def in_chinese(id: str) -> str:
    """A name with the shortest Chinese one of its family, if any: 千问3-8b,
    which is part of 通义千问3-8b."""
    for chinese, family in sorted(makers_of().items(), key=lambda x: len(x[0])):
        if rest := re.fullmatch(rf"{family}(?![a-z])-?(.*)", id):
            return chinese + rest[1]
    return ""


class Released(NamedTuple):
    """A model of specs.json whose attention its config.json says."""

    model: Model
    config: dict[str, Any]
    reading: Config  # what has been read of it
    records: dict[int, AttentionRecord]
    parts: dict[str, list[int]]

    @property
    def id(self) -> str:
        return self.model.id

    @property
    def name(self) -> str:
        return self.model.name

    def full_name(self, language: str) -> str:
        """Its name, in Chinese with that of its makers."""
        family = self.model.family.lower()
        makers = [name for name, maker in makers_of().items() if maker == family]
        if makers and language == "zh":
            return f"{self.name}（{makers[0]}）"
        return self.name

    @property
    def names(self) -> list[str]:
        """What readers call it, in both languages, with its size."""
        names = self.id, self.name.lower(), in_chinese(self.id)
        return [*dict.fromkeys(filter(None, names))]

    @property
    def family_names(self) -> list[str]:
        """Its names without the size; none if other models bear them too, as
        Qwen3-VL bears qwen3."""
        family = family_of(self.id)
        of_family = (x for x in models() if x.startswith(f"{family}-"))
        if family == self.id or any(family_of(x) != family for x in of_family):
            return []
        return [*filter(None, (family, in_chinese(family)))]

    @property
    def part_names(self) -> list[str]:
        """What readers call what some of its layers have."""
        names = words()["asked"]
        count = len(self.records)
        parts = [p for p, layers in self.parts.items() if len(layers) < count]
        return [name for part in parts for name in names.get(part, [])]

    @property
    def file(self) -> str:
        return re.sub(r"\W", "_", self.id) + ".py"

    @property
    def family(self) -> str:
        return self.reading.family

    @property
    def attends(self) -> Mapping[int, AttentionRecord]:
        """The layers with keys and values, those of a template too."""
        return self.records or {
            layer: AttentionRecord(
                r.family,
                r.kind,
                r.d_model,
                r.n_heads,
                r.n_kv_heads if isinstance(r, KeysRecord) else 1,
                r.key_dim,
                r.key_dim,
                window=window_of(r) if isinstance(r, KeysRecord) else r.window,
            )
            for layer, r in self.reading.mixers.items()
            if isinstance(r, CompressedAttention | KeysRecord)
        }

    @property
    def layers(self) -> int:
        return len(self.reading.kinds)

    @property
    def missing_kinds(self) -> list[str]:
        """The kinds of the layers that its file leaves out."""
        written = {*self.records, *self.reading.mixers}
        kinds = enumerate(self.reading.kinds)
        return [kind for layer, kind in kinds if layer not in written]

    @property
    def text(self) -> str:
        return text_of(self.id)

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())


@cache
def released() -> dict[str, Released]:
    """All models, by id, newest first."""
    result = {}
    for id, config in reversed(configs().items()):
        with suppress(ValueError):  # of another kind than softmax attention
            model, reading = models()[id], read_config(config)
            records = {
                layer: drop_wide_window(r, model.max_context)
                for layer, r in reading.records.items()
            }
            parts = parts_of(records)
            result[id] = Released(model, config, reading, records, parts)
    return result


@cache
def text_of(id: str) -> str:
    """The file of a model."""
    return file_from(released()[id].reading)


def files() -> dict[str, str]:
    """What stands in /files/released/, with the id of its model."""
    return {model.file: id for id, model in released().items()}


# What goes wrong.


def tiny(r: AttentionRecord) -> AttentionRecord:
    """A small layer, with all that the record says except its sizes."""
    group = min(r.n_heads // r.n_kv_heads, 3)
    K = 1 if r.n_kv_heads == 1 else 2
    share = r.rope_width / (r.rope_dim or r.head_dim)
    D_rope = D // 2 if r.kv_rank else D
    width = max(2, round(D_rope * share / 2) * 2)
    small = replace(
        r,
        d_model=E,
        n_heads=K * group,
        n_kv_heads=K,
        head_dim=D,
        v_head_dim=D if r.v_head_dim == r.head_dim else D // 2,
        q_rank=r.q_rank and 20,
        kv_rank=r.kv_rank and 16,
        rope_dim=D_rope if r.kv_rank else 0,
        rope_width=width,
        rope_length=r.rope_length and 8,
        rope_short=_fewer(r.rope_short, width // 2),
        rope_long=_fewer(r.rope_long, width // 2),
        q_growth_every=min(r.q_growth_every, 8),
        window=r.window and SMALL_SPAN,
        chunk=r.chunk and SMALL_SPAN,
        index_topk=r.index_topk and (2 if r.index_pool else SMALL_SPAN),
        index_block=3 if r.index_pool else 1,
        index_heads=min(r.index_heads, 3),
        index_dim=min(r.index_dim, D),
        index_own=bool(r.index_topk),
        shares=None,
        is_shared=False,
    )
    return replace(small, scale=standard(small) * r.scale / standard(r))


def _fewer(values: tuple[float, ...], n: int) -> tuple[float, ...]:
    return tuple(values[i * len(values) // n] for i in range(n) if values)


@cache
def damage(r: AttentionRecord, variant: AttentionRecord) -> float:
    """How far the output moves, relative to its largest element, when a layer
    runs as another, with those of its weights that the other has."""
    outputs, weights, x = _ran(r)
    layer = ConfiguredAttention(variant).eval()
    ours = {n: w for n, w in weights.items() if n in layer.state_dict()}
    if r.gate == "in q_proj" and not variant.gate:
        for name in ("q_proj.weight", "q_proj.bias"):
            if name in ours:
                halves = ours[name].view(r.n_heads, 2, D, -1)
                ours[name] = halves[:, 0].reshape(r.n_heads * D, -1).squeeze(1)
    if r.qkv_bias and not variant.qkv_bias:
        ours = {n: w for n, w in ours.items() if not n.endswith("proj.bias")}
    layer.load_state_dict({**layer.state_dict(), **ours})
    with torch.no_grad():
        outs: Tensor = layer(x)
    return float((outs - outputs).abs().max() / outputs.abs().max())


@cache
def _ran(r: AttentionRecord) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """The output of a layer of random weights; its weights and its input."""
    chance = torch.Generator().manual_seed(0)
    layer = ConfiguredAttention(r).eval()
    weights = {}
    for name, weight in layer.state_dict().items():
        noise = torch.randn(weight.shape, generator=chance)
        norm = "norm" in name and name.endswith("weight")
        weights[name] = 0.3 * noise + (weight if norm else 0)
    layer.load_state_dict(weights)
    x = torch.randn(3, T, E, generator=chance)
    with torch.no_grad():
        return layer(x), weights, x


def losses(records: dict[int, AttentionRecord]) -> dict[str, float]:
    """The damage of each part that can be left out, in its first layer."""
    result = {}
    for name, layers in parts_of(records).items():
        r = tiny(records[layers[0]])
        if variant := without(name, r, records):
            result[name] = damage(r, variant)
    return result


# In words.


@cache
def words() -> dict[str, Any]:
    return parts.words() | table_of(ROOT / "sitekit/released/released.toml")


def word(key: str, language: str, **facts: object) -> str:
    text: str = words()["page"][key][language]
    return text.format(**facts)


def part_word(part: str, key: str, language: str) -> str:
    """`name`, `differs` or `lost` of a part."""
    text: str = words()["parts"][part][key][language]
    return text


def kinds_of(model: Released) -> list[AttentionRecord]:
    """One record of each shape of heads."""
    result: dict[tuple[int, int, int], AttentionRecord] = {}
    for r in model.attends.values():
        result.setdefault((r.n_heads, r.n_kv_heads, r.head_dim), r)
    return [*result.values()]


def per_token(model: Released) -> int:
    """Bytes that a new token adds, in bfloat16, while no window is full."""
    return int(growth(model.model).first)


def strip(model: Released, language: str) -> str:
    """As SVG with its text."""
    kinds = letters(model.reading, model.records)
    return strip_of(kinds, language)


def strip_of(kinds: Sequence[str], language: str) -> str:
    label = composition(kinds, words(), language)
    return (
        f'<svg class="strip" role="img" aria-label="{label}" '
        f'viewBox="0 0 {len(kinds)} 10" preserveAspectRatio="none">'
        f"{paths([(letter, False) for letter in kinds])}</svg>"
    )


def card(
    title: str,
    model: Model,
    reused: Sequence[int],
    language: str,
    kinds: Sequence[str] = DEVICES,
    ranks: Sequence[int] = RANKS,
    computes: bool = False,
) -> str:
    """HTML: the numbers of the first screen, and what sets them. A page that
    `computes` holds what is seen first, and its script the rest."""
    mib = {name: devices()[name].mib for name in kinds}
    data = told.card(model, reused, mib, ranks, told.Stored([]) if computes else None)
    first, way = data["at"], data["way"].split()
    rows = data | data["factors"] | data["by"][way[-1]]
    rows["tokens"] = data["tokens"][first]
    if "fits" in data:
        rows["fits"] = data["fits"].get(data["way"], [0] * (first + 1))
    if computes:
        data["fits"] = {data["way"]: rows["fits"]}
    formats = {name: name for name in told.FORMATS}
    say = {key: text[language] for key, text in words()["page"].items()}
    stored = {told.CONFIG: say["stored"]} if computes else {}
    return render(
        "card",
        title=title,
        data=data,
        now={k: x[first] if isinstance(x, list) else x for k, x in rows.items()},
        way=way,
        say=say,
        facts=FACTS,
        causes={n: words()["causes"][n][language] for n in told.CAUSES},
        choices={
            "ranks": {str(n): f"{n} ×" for n in ranks},
            "device": {name: devices()[name].name for name in kinds},
            "weights": formats | stored,
            "dtype": formats,
        },
    )


def stems() -> list[str]:
    """The pages of all models."""
    return [f"{FOLDER}/{id}" for id in released()]


def markdown(stem: str, language: str) -> str:
    """The page of a model."""
    id = stem.removeprefix(f"{FOLDER}/")
    return "\n".join(_lines(released()[id], language))


def _lines(model: Released, language: str) -> Iterator[str]:
    def say(key: str, **facts: object) -> str:
        return word(key, language, **facts)

    name, model_type = model.name, model.config["model_type"]
    yield "---"
    for key in ("title", "description"):
        label = say(key, name=name, family=model_type, n=model.layers)
        yield f"{key}: {json.dumps(label, ensure_ascii=False)}"
    yield f"model: {model.id}"
    yield "scripts: [card]"
    yield "search: {boost: 0.7}"  # what a family is stands elsewhere
    for key, names in (
        ("aliases", model.part_names),
        ("models", model.names),
        ("families", model.family_names),
    ):
        yield f"{key}: {json.dumps(names, ensure_ascii=False)}"
    yield "---"
    yield f"# {name} {{ #model }}\n"
    about = {"family": model_type, "file": model.file, "n": model.lines}
    yield say("lead", **about) + "\n"
    yield '<figure class="computed strips" markdown="0">'
    yield strip(model, language)
    kinds = letters(model.reading, model.records)
    label = composition(kinds, words(), language)
    yield f"<figcaption>{label}</figcaption></figure>\n"
    for kind, n in _kinds_of_layers(model, language).items():
        key = "of_kind" if n < model.layers else "all_kind"
        yield f"- {say(key, kind=kind, n=n, all=model.layers)}"
    reused = told.reused(model.records)
    yield f"\n{card(name, model.model, reused, language)}"
    yield from _differences(model, language)
    yield f"\n## {say('file')} {{ #file data-search-exclude }}\n"
    yield f"::: released {model.id}\n"
    yield f"## {say('memory')} {{ #memory data-search-exclude }}\n"
    shapes = words()["join"][language].join(f"`{heads(r)}`" for r in kinds_of(model))
    yield say("heads", shapes=shapes, bytes=size(per_token(model))) + "\n"
    lengths = [n for n in LENGTHS if n <= model.model.max_context]
    lengths = lengths or [model.model.max_context]
    shape = model.model
    yield f"| {say('tokens')} | {' | '.join(f'{n:,}' for n in lengths)} |"
    yield "| --- |" + " --- |" * len(lengths)
    sizes = (size(kv_bytes(shape, n)) for n in lengths)
    yield f"| {say('cache')} | {' | '.join(sizes)} |\n"
    if states := state_bytes(shape):
        yield say("states", bytes=size(states)) + "\n"
    elif model.records and len(model.records) < model.layers:
        yield say("without_states") + "\n"
    yield f"## {say('sources')} {{ #sources data-search-exclude }}\n"
    yield say("sources_lead") + "\n"
    for source in reversed(model.model.sources):  # that of the config first
        name = source.url.rpartition("/")[2]
        yield f"- [{source.label}: {name}]({source.url})"
    yield ""
    keys = ", ".join(f"`{key}`" for key in model.reading.fields)
    yield say("fields", keys=keys)


def list_differences(records: Records, errors: Mapping[str, float], language: str) -> str:
    """A list of what is not as in Llama, with the damage and the lines."""
    return render(
        "differs",
        differs=differs(records, words(), language),
        damages={
            part: word(
                "damage", language, loader=part_word(part, "lost", language), n=f"{error:.2g}"
            )
            for part, error in errors.items()
        },
        moved=errors,
        lines={part: lines_of(part, records) for part in parts_of(records)},
        few=UNFOLDED,
        title=word("lines", language, n="{}"),
    )


def _differences(model: Released, language: str) -> Iterator[str]:
    """Each part that Llama does not have: a sentence, its lines of code, and
    what a loader without it does to the output."""

    def say(key: str, **facts: object) -> str:
        return word(key, language, **facts)

    errors = losses(model.records)
    yield f"\n## {say('differs')} {{ #differs data-search-exclude }}\n"
    if errors:
        yield say("wrong_lead", family=model.family) + "\n"
    if differs(model.records, words(), language):
        yield list_differences(model.records, errors, language) + "\n"
    else:
        yield say("nothing" if model.records else "other") + "\n"
    if left_out := model.missing_kinds:
        yield f"{say('others', n=len(left_out), all=model.layers)}\n"
    yield say("wrong_after" if errors else "nothing_wrong" if model.records else "no_other")


def _kinds_of_layers(model: Released, language: str) -> dict[str, int]:
    """What the layers are, with links to what explains it, and how many."""
    known = words()["layers"]

    def linked(name: str) -> str:
        entry = known.get(name, {})
        text: str = entry.get(language, f"`{name}`")
        page = entry.get("page", "")
        there = page and (ROOT / f"docs/en/{page}.md").exists()
        return f"[{text}](../../{page}.md)" if there else text

    def joined(how: str, *parts: str) -> str:
        text: str = known[how][language]
        return text.format(*parts)

    mixers = model.reading.mixers
    counts: dict[str, int] = {}
    for layer in range(model.layers):
        r, mixer, label = model.records.get(layer), mixers.get(layer), ""
        if r:
            group = group_of(replace(r, shares=None))
            label = linked(getattr(group, "variant", type(group).__name__))
            chosen = "Blocks" if r.index_pool else "DSA"
            has = {chosen: r.index_topk, "window": r.window, "chunk": r.chunk}
            has["shared"] = r.shares is not None
            for name in [name for name, holds in has.items() if holds]:
                label += joined("and", linked(name))
        if mixer and r:
            label = joined("beside", label, linked(mixer.kind))
        elif isinstance(mixer, CompressedAttention | KeysRecord):
            if isinstance(mixer, KeysRecord):
                label = linked("GQA") + joined("and", linked(mixer.kind))
            else:
                label = linked(mixer.kind if mixer.rate > 1 else "MQA")
            if window_of(mixer) if isinstance(mixer, KeysRecord) else mixer.window:
                label += joined("and", linked("window"))
        elif mixer:
            label = joined("recurrent", linked(mixer.kind))
        label = label or joined("none")
        counts[label] = counts.get(label, 0) + 1
    return counts


def notebook(id: str, language: str) -> list[str]:
    """Text and code in turn: the file, and the layer with random weights."""
    model = released()[id]
    layer, first = next(iter(model.attends.items()))
    name_of_layer = "Attention" if model.records else "mixer"
    lead = word("notebook", language, name=model.name, layers=model.layers)
    trial = TRIAL.format(made=name_of_layer, layer=layer, d_model=first.d_model)
    code = model.text.partition("\nif __name__ ==")[0]  # no program here
    return [lead, code.rstrip(), word("trial", language), trial]


def show_files(markdown: str, here: str, language: str, urls: dict[str, str]) -> str:
    """The Markdown of a page with the files of models, each with its bar."""
    stem = here.removesuffix(".md")

    def shown(match: re.Match[str]) -> str:
        if match[1] not in released():
            hint = near(match[1], released())
            raise BuildError(f"{stem}: no released model {match[1]!r}{hint}")
        model = released()[match[1]]
        place = f"files/released/{model.file}"
        link = get_relative_url(place, urls[stem])
        copy, copied = word("copy", language), word("copied", language)
        bar = (
            f'<div class="whole" role="group" aria-label="{model.file}">'
            f'<div class="ways"><a class="download" href="{link}" download>'
            f'{model.file}</a><span class="size">'
            f"{word('size', language, n=model.lines)}</span>"
            f'<button class="take" type="button" aria-label="{copy}" '
            f'data-done="{copied}"></button></div></div>'
        )
        return f"{bar}\n\n```py\n{model.text}```\n"

    return LINE.sub(shown, markdown)
