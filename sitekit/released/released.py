"""Released models: in what the attention of each differs from Llama's, what it
stores, its file, and what the output loses with each part.

specs.json has what attention reads of the config.json of each, with its
address. The pages models/released/*.md stand nowhere: `markdown` writes them
for the build, from the words of released.yml, both languages beside each other.
`::: released qwen3-8b` on a page becomes the file of that model.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
import yaml
from torch import Tensor

from attnref.numbers.kv_memory import (
    growth,
    kv_bytes,
    size,
    state_bytes,
)
from attnref.numbers.shapes import Model
from attnref.released.configured import ConfiguredAttention
from attnref.released.devices import devices
from attnref.released.from_config import group_of, within
from attnref.released.generate import file_of
from attnref.released.record import (
    AttentionRecord,
    fields_of,
    mixers_of,
    records_of,
)
from attnref.released.record import kinds_of as layer_kinds
from attnref.released.specs import called as makers_of
from attnref.released.specs import configs, models
from sitekit import ROOT
from sitekit.adapter import BuildError, get_relative_url
from sitekit.markdown.calls import near
from sitekit.markdown.render import render
from sitekit.released import told
from sitekit.released.told import (
    LENGTHS,
    Records,
    composition,
    differs,
    heads,
    letters,
    lines_of,
    parts_of,
    standard,
    without,
)

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
    "token": "of_token",
    "cache": "of_text",
    "times": "times",
    "fits": "sequences",
    "context": "context",
}
FEW = 11  # lines of a diff that need no fold
T, E, D = 24, 60, 16  # of the tiny layers: more tokens than any window
SHORT = 7  # their windows and chunks; longer RoPE is scaled beyond 8


class Released(NamedTuple):
    """A model of specs.json whose attention its config.json says."""

    model: Model
    config: dict[str, Any]
    records: dict[int, AttentionRecord]
    parts: dict[str, list[int]]

    @property
    def id(self) -> str:
        return self.model.id

    @property
    def name(self) -> str:
        return self.model.name

    def called(self, language: str) -> str:
        """Its name, in Chinese with that of its makers."""
        family = self.model.family.lower()
        makers = [name for name, made in makers_of().items() if made == family]
        if makers and language == "zh":
            return f"{self.name}（{makers[0]}）"
        return self.name

    @property
    def file(self) -> str:
        return re.sub(r"\W", "_", self.id) + ".py"

    @property
    def family(self) -> str:
        return str(fields_of(self.config)["model_type"])

    @property
    def attends(self) -> Mapping[int, AttentionRecord]:
        return told.attending(fields_of(self.config), self.records)

    @property
    def layers(self) -> int:
        return len(layer_kinds(fields_of(self.config)))

    @property
    def left(self) -> list[str]:
        """The kinds of the layers that its file leaves out."""
        given = fields_of(self.config)
        there = {*self.records, *mixers_of(given)}
        kinds = enumerate(layer_kinds(given))
        return [kind for layer, kind in kinds if layer not in there]

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
            longest = models()[id].max_context
            read = records_of(config).items()
            records = {n: within(r, longest) for n, r in read}
            parts = parts_of(records)
            result[id] = Released(models()[id], config, records, parts)
    return result


@cache
def text_of(id: str) -> str:
    """The file of a model."""
    return file_of(released()[id].config)


def files() -> dict[str, str]:
    """What stands in /files/released/, with the id of its model."""
    return {model.file: id for id, model in released().items()}


# What goes wrong.


def tiny(r: AttentionRecord) -> AttentionRecord:
    """The same layer in small, with whatever the record says beside sizes."""
    group = min(r.n_heads // r.n_kv_heads, 3)
    K = 1 if r.n_kv_heads == 1 else 2
    share = r.rope_width / (r.rope_dim or r.head_dim)
    turned = D // 2 if r.kv_rank else D
    width = max(2, round(turned * share / 2) * 2)
    made = replace(
        r,
        d_model=E,
        n_heads=K * group,
        n_kv_heads=K,
        head_dim=D,
        v_head_dim=D if r.v_head_dim == r.head_dim else D // 2,
        q_rank=r.q_rank and 20,
        kv_rank=r.kv_rank and 16,
        rope_dim=turned if r.kv_rank else 0,
        rope_width=width,
        rope_length=r.rope_length and 8,
        rope_short=_fewer(r.rope_short, width // 2),
        rope_long=_fewer(r.rope_long, width // 2),
        q_growth_every=min(r.q_growth_every, 8),
        window=r.window and SHORT,
        chunk=r.chunk and SHORT,
        index_topk=r.index_topk and (2 if r.index_pool else SHORT),
        index_block=3 if r.index_pool else 1,
        index_heads=min(r.index_heads, 3),
        index_dim=min(r.index_dim, D),
        index_own=bool(r.index_topk),
        shares=None,
        is_shared=False,
    )
    return replace(made, scale=standard(made) * r.scale / standard(r))


def _fewer(values: tuple[float, ...], n: int) -> tuple[float, ...]:
    return tuple(values[i * len(values) // n] for i in range(n) if values)


@cache
def lost(r: AttentionRecord, other: AttentionRecord) -> float:
    """How far the output moves, relative to its largest element, when a layer
    runs as another, with those of its weights that the other has."""
    wanted, weights, x = _ran(r)
    layer = ConfiguredAttention(other).eval()
    ours = {n: w for n, w in weights.items() if n in layer.state_dict()}
    if r.gate == "in q_proj" and not other.gate:
        for name in ("q_proj.weight", "q_proj.bias"):
            if name in ours:
                both = ours[name].view(r.n_heads, 2, D, -1)
                ours[name] = both[:, 0].reshape(r.n_heads * D, -1).squeeze(1)
    if r.qkv_bias and not other.qkv_bias:
        ours = {n: w for n, w in ours.items() if not n.endswith("proj.bias")}
    layer.load_state_dict({**layer.state_dict(), **ours})
    with torch.no_grad():
        got: Tensor = layer(x)
    return float((got - wanted).abs().max() / wanted.abs().max())


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
    """Of each part that can be left out, in the first layer that has it."""
    result = {}
    for name, layers in parts_of(records).items():
        r = tiny(records[layers[0]])
        if other := without(name, r, records):
            result[name] = lost(r, other)
    return result


# In words.


@cache
def words() -> dict[str, Any]:
    path = ROOT / "sitekit/released/released.yml"
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def word(key: str, language: str, **facts: object) -> str:
    text: str = words()["page"][key][language]
    return text.format(**facts)


def part_word(part: str, which: str, language: str) -> str:
    """`name`, `differs` or `lost` of a part."""
    text: str = words()["parts"][part][which][language]
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
    kinds = letters(fields_of(model.config), model.records)
    return strip_of(kinds, language)


def strip_of(kinds: Sequence[str], language: str) -> str:
    from sitekit.drawn.released import drawn

    label = composition(kinds, words(), language)
    return (
        f'<svg class="strip" role="img" aria-label="{label}" '
        f'viewBox="0 0 {len(kinds)} 10" preserveAspectRatio="none">'
        f"{drawn([(letter, False) for letter in kinds])}</svg>"
    )


def card(
    title: str,
    model: Model,
    whole: int,
    language: str,
    kinds: Sequence[str] = DEVICES,
    ranks: Sequence[int] = RANKS,
    computes: bool = False,
) -> str:
    """HTML: the numbers of the first screen, and what sets them. A page that
    `computes` holds what is seen first, and its script the rest."""
    mib = {name: devices()[name].mib for name in kinds}
    data = told.card(model, whole, mib, ranks)
    at, way = data["at"], data["way"].split()
    rows = data | data["by"][way[-1]] | {"tokens": data["tokens"][at]}
    if "fits" in data:
        rows["fits"] = data["fits"].get(data["way"], [0] * (at + 1))
    if computes:
        data["fits"] = {data["way"]: rows["fits"]}
    formats = {name: name for name in told.FORMATS}
    return render(
        "card",
        title=title,
        data=data,
        now={k: x[at] if isinstance(x, list) else x for k, x in rows.items()},
        way=way,
        say={key: text[language] for key, text in words()["page"].items()},
        facts=FACTS,
        choices={
            "ranks": {str(n): f"{n} ×" for n in ranks},
            "device": {name: devices()[name].name for name in kinds},
            "weights": formats,
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

    called, model_type = model.name, model.config["model_type"]
    yield "---"
    for key in ("title", "description"):
        label = say(key, name=called, family=model_type, n=model.layers)
        yield f"{key}: {json.dumps(label, ensure_ascii=False)}"
    yield f"model: {model.id}"
    yield "scripts: [card]"
    yield "search: {boost: 0.7}"  # what a family is stands elsewhere
    yield "---"
    yield f"# {called} {{ #model }}\n"
    about = {"family": model_type, "file": model.file, "n": model.lines}
    yield say("lead", **about) + "\n"
    yield '<figure class="computed strips" markdown="0">'
    yield strip(model, language)
    kinds = letters(fields_of(model.config), model.records)
    label = composition(kinds, words(), language)
    yield f"<figcaption>{label}</figcaption></figure>\n"
    for kind, n in _kinds_of_layers(model, language).items():
        which = "of_kind" if n < model.layers else "all_kind"
        yield f"- {say(which, kind=kind, n=n, all=model.layers)}"
    whole = told.unshared(model.attends)
    yield f"\n{card(called, model.model, whole, language)}"
    yield from _differences(model, language)
    yield f"\n## {say('file')} {{ #file data-search-exclude }}\n"
    yield f"::: released {model.id}\n"
    yield f"## {say('memory')} {{ #memory data-search-exclude }}\n"
    shapes = say("join").join(f"`{heads(r)}`" for r in kinds_of(model))
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
    keys = ", ".join(f"`{key}`" for key in fields_of(model.config))
    yield say("fields", keys=keys)


def listed(records: Records, moved: Mapping[str, float], language: str) -> str:
    """A list of what is not as in Llama, with the damage and the lines."""
    return render(
        "differs",
        differs=differs(records, words(), language),
        damages={
            part: word(
                "damage",
                language,
                loader=part_word(part, "lost", language),
                n=f"{error:.2g}",
            )
            for part, error in moved.items()
        },
        moved=moved,
        lines={part: lines_of(part, records) for part in parts_of(records)},
        few=FEW,
        title=word("lines", language, n="{}"),
    )


def _differences(model: Released, language: str) -> Iterator[str]:
    """Each part that Llama does not have: a sentence, its lines of code, and
    what a loader without it does to the output."""

    def say(key: str, **facts: object) -> str:
        return word(key, language, **facts)

    moved = losses(model.records)
    yield f"\n## {say('differs')} {{ #differs data-search-exclude }}\n"
    if moved:
        yield say("wrong_lead", family=model.family) + "\n"
    if differs(model.records, words(), language):
        yield listed(model.records, moved, language) + "\n"
    else:
        yield say("nothing" if model.records else "other") + "\n"
    if left := model.left:
        yield f"{say('others', n=len(left), all=model.layers)}\n"
    yield say(
        "wrong_after"
        if moved
        else "nothing_wrong"
        if model.records
        else "no_other"
    )


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

    mixers = mixers_of(fields_of(model.config))
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
        elif mixer and mixer.window is None and not mixer.n_kv_heads:
            label = joined("recurrent", linked(mixer.kind))
        elif mixer:
            label = linked(mixer.kind if mixer.rate > 1 else "MQA")
            if mixer.n_kv_heads:
                label = linked("GQA") + joined("and", linked(mixer.kind))
            if mixer.window:
                label += joined("and", linked("window"))
        label = label or joined("none")
        counts[label] = counts.get(label, 0) + 1
    return counts


def notebook(id: str, language: str) -> list[str]:
    """Text and code in turn: the file, and the layer with random weights."""
    model = released()[id]
    layer, first = next(iter(model.attends.items()))
    made = "Attention" if model.records else "mixer"
    lead = word("notebook", language, name=model.name, layers=model.layers)
    trial = TRIAL.format(made=made, layer=layer, d_model=first.d_model)
    return [lead, model.text.rstrip(), word("trial", language), trial]


def expanded(
    markdown: str, here: str, language: str, urls: dict[str, str]
) -> str:
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
