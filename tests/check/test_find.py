"""The page "Find your bug": what one tries, and where the questions lead."""

import json
import re
import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

import attnref
from attnref.judge.catalogue import (
    Plain,
    Planted,
    catalogue,
    every_variant,
    fresh,
    load,
)
from sitekit.check import find, known
from sitekit.check.evidence import SYMPTOMS, evidence
from sitekit.markdown.pages import (
    body_of,
    markdown_files,
    python_blocks,
)

ENGLISH, CHINESE = (
    next(p for p in markdown_files(language) if p.stem == "find-your-bug")
    for language in ("en", "zh")
)


def test_a_right_layer_passes_all_that_one_tries():
    # --8<-- [start:first]
    import torch
    import torch.nn.functional as F

    from attnref import GroupedQueryAttention, KVCache, padding_mask

    torch.manual_seed(0)
    B, T, E, H, K, D = 3, 7, 11, 6, 2, 4  # no two are equal
    sizes = {"d_model": E, "n_heads": H, "n_kv_heads": K, "head_dim": D}
    layer = GroupedQueryAttention(**sizes, rope_theta=100.0)  # put yours here
    layer = layer.double().eval()
    for weight in layer.parameters():
        torch.nn.init.normal_(weight)  # large: softmax is far from uniform
    x = torch.randn(B, T, E, dtype=torch.float64)
    # --8<-- [end:first]
    # --8<-- [start:rows]
    alone = torch.cat([layer(row[None]) for row in x])
    torch.testing.assert_close(layer(x), alone)
    # --8<-- [end:rows]
    # --8<-- [start:last]
    other = x.clone()
    other[:, -1] += 1  # or another token than the last one
    moved = (layer(other) != layer(x)).any(2).tolist()
    assert moved == [[False] * (T - 1) + [True]] * B, moved
    # --8<-- [end:last]
    # --8<-- [start:pads]
    valid = torch.ones(B, T, dtype=torch.bool)
    valid[0, :2] = False  # two pads on the left of one row
    other = x.masked_fill(~valid[:, :, None], 9.0)
    mask = padding_mask(valid)  # (B, 1, 1, S); True = may attend
    moved = layer(other, mask=mask) != layer(x, mask=mask)
    assert not moved[valid].any(), "real tokens see the pads"
    # --8<-- [end:pads]
    # --8<-- [start:torch]
    q = layer.q_proj(x).view(B, T, H, D).transpose(1, 2)
    k = layer.k_proj(x).view(B, T, K, D).transpose(1, 2)
    v = layer.v_proj(x).view(B, T, K, D).transpose(1, 2)
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    wanted = layer.o_proj(o.transpose(1, 2).reshape(B, T, H * D))
    still = torch.zeros(T)  # a rotation by 0: RoPE changes nothing
    torch.testing.assert_close(layer(x, positions=still), wanted)
    # --8<-- [end:torch]
    # --8<-- [start:weights]
    from attnref import attention_weights, causal_mask

    A = attention_weights(q, k, causal_mask(T))  # or your own
    assert not A.triu(1).any(), "later keys have a weight"
    torch.testing.assert_close(A.sum(-1), torch.ones_like(A[..., 0]))
    # --8<-- [end:weights]
    # --8<-- [start:gradients]
    layer(x).square().sum().backward()
    unused = [n for n, p in layer.named_parameters() if not p.grad.all()]
    assert unused == []
    # --8<-- [end:gradients]
    # --8<-- [start:decode]
    cache = KVCache(2 * T)  # more room than tokens
    with torch.no_grad():
        parts = x[:1].split([3] + [1] * (T - 3), dim=1)  # prompt, steps
        steps = torch.cat([layer(part, cache=cache) for part in parts], dim=1)
        error = (steps - layer(x[:1])).abs().amax(dim=(0, 2))
    assert error.max() < 1e-9, f"by token: {error.tolist()}"
    # --8<-- [end:decode]
    # --8<-- [start:shift]
    t = torch.arange(T)
    shifted = layer(x, positions=t + 5)
    torch.testing.assert_close(shifted, layer(x, positions=t))
    # --8<-- [end:shift]


MODULES = "plain.gqa", "plain.attention", "plain.mha"


def variant_of(name, *modules):
    """The variant of a mistake in the first of these modules that it is in."""
    variants = [*every_variant(catalogue()[name])]
    single = [v for v in reversed(variants) if len({x.module for x in v}) == 1]
    by_module = {v[0].module: v for v in single}
    return next((by_module[m] for m in modules if m in by_module), variants[0])


def stand_in(variant):
    """What the page imports from attnref. Its layer is a plain form with the
    lines of this variant."""
    forms, modules = Plain(variant), {lines.module for lines in variant}
    form = forms.gqa
    rope = form.rope

    def attend(q, k, v, mask, **_):
        k, v = (
            t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v)
        )
        return forms.attention.attention(q, k, v, mask)

    def weights(q, k, mask):
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        one = torch.eye(k.shape[2], dtype=k.dtype).expand(*k.shape[:3], -1)
        return forms.attention.attention(q, k, one, mask)

    class Layer(form.GQA):
        def __init__(self, rope_theta, **sizes):
            super().__init__(theta=rope_theta, **sizes)

        def forward(self, x, mask=None, cache=None, positions=None):
            def rotate(x, t, theta):
                return rope(x, t if positions is None else positions, theta)

            form.rope = rotate
            return super().forward(
                x, cache, mask if mask is None else mask[:, 0, 0]
            )

    class Mha(forms.mha.MHA):
        def __init__(self, d_model, n_heads, **_):
            super().__init__(d_model, n_heads)

        def forward(self, x, **_):
            return super().forward(x)

    if "plain.attention" in modules:
        form.F = SimpleNamespace(scaled_dot_product_attention=attend)
    return SimpleNamespace(
        GroupedQueryAttention=Mha if "plain.mha" in modules else Layer,
        KVCache=form.KVCache,
        attention_weights=weights,
        causal_mask=attnref.causal_mask,
        padding_mask=attnref.padding_mask,
    )


def run_block(block, name=None):
    """What fails when the page runs this block with this mistake planted."""
    blocks = re.findall(r'test_find\.py:(\w+)"', body_of(ENGLISH))
    texts = dict(zip(blocks, python_blocks(body_of(ENGLISH)), strict=True))
    needs = ["first", "torch"] if block == "weights" else ["first"]
    modules = ("plain.attention",) if block == "weights" else MODULES
    variant = variant_of(name, *modules) if name else ()
    package = {}
    if all(lines.module in MODULES for lines in variant):
        package["attnref"] = stand_in(variant)
    if "plain.mha" in {lines.module for lines in variant}:
        sizes = "3, 7, 11, 6, 2, 4", "3, 7, 12, 6, 6, 2"
        texts["first"] = texts["first"].replace(*sizes)
    names: dict[str, Any] = {}
    with (
        fresh(Planted(() if package else variant)),
        mock.patch.dict(sys.modules, package),
    ):
        for need in needs:
            with suppress(AssertionError):
                exec(texts[need], names)
        try:
            exec(texts[block], names)
        except Exception as error:
            return str(error), names
    return "", names


# The mistakes that each block of the page notices, as its questions say.
NOTICES = {
    "rows": "batch-and-heads-swapped",
    "last": "not-causal mask-inverted merge-without-transpose",
    "pads": "mask-argument-ignored padding-of-queries mask-times-tiny",
    "torch": """
        groups-tiled queries-of-a-group-summed attention-across-heads
        batch-and-heads-swapped split-by-view-alone merge-without-transpose
        merge-swaps-length-and-width heads-interleaved
    """,
    "weights": """
        mask-times-scores mask-times-tiny mask-added-as-ones mask-inverted
        mask-after-softmax softmax-over-queries softmax-over-heads
    """,
    "gradients": "output-projection-missing values-from-the-key-projection",
    "shift": """
        rope-on-values rope-queries-only rope-mixed-layouts rope-no-minus
    """,
}
MISSES = {
    "weights": "keys-viewed-not-transposed",
    "gradients": "queries-of-a-group-summed not-causal",
    "shift": """
        rope-other-layout rope-sign rope-theta-ignored rope-pair-index
        rope-exponent
    """,
}
WRONG_FROM = {
    "cache-prefill-unmasked": "the prompt",
    "keys-rotated-twice": "the prompt",
    "positions-restart": "the first step",
    "positions-off-by-one": "the first step",
    "cache-no-batch": None,
    "cache-chunk-mask": "the first step",
}


@pytest.mark.parametrize(
    ("block", "name"),
    [(block, name) for block in NOTICES for name in NOTICES[block].split()],
)
def test_what_one_tries_notices_a_mistake(block, name):
    assert run_block(block)[0] == ""
    assert run_block(block, name)[0]


@pytest.mark.parametrize(
    ("block", "name"),
    [(b, name) for b in MISSES for name in MISSES[b].split()],
)
def test_what_one_tries_does_not_notice_another(block, name):
    assert run_block(block, name)[0] == ""


@pytest.mark.parametrize("name", WRONG_FROM)
def test_decoding_is_wrong_from_the_prompt_or_from_the_first_step(name):
    _, names = run_block("decode", name)
    wrong = (names["error"] > 1e-9).tolist()
    place = {wrong[3]: "the first step", any(wrong[:3]): "the prompt"}
    assert place.get(True) == WRONG_FROM[name]


def paths(question, depth=0):
    """The ids of all mistakes to which a question leads."""
    assert depth < 3, question["ask"]
    assert 2 <= len(question["answers"]) <= 5
    for answer in question["answers"]:
        assert answer.keys() - {"if"} in ({"likely"}, {"ask", "answers"})
        if "ask" in answer:
            yield from paths(answer, depth + 1)
        else:
            assert 1 <= len(answer["likely"]) <= 6, answer
            assert len({*answer["likely"]}) == len(answer["likely"])
            yield from answer["likely"]


def test_at_most_three_questions_lead_from_its_symptom_to_each_mistake():
    assert [*find.tree()] == [*SYMPTOMS]
    ids = {key: {*paths(find.tree()[key])} for key in SYMPTOMS}
    everything = set().union(*ids.values())
    assert everything - catalogue().keys() == set()
    assert evidence().keys() == catalogue().keys()
    symptoms = {name: entry.symptom for name, entry in evidence().items()}
    assert {n: key for n, key in symptoms.items() if n not in ids[key]} == {}


@pytest.mark.parametrize(
    "name",
    [
        "groups-tiled",
        "queries-of-a-group-summed",
        "sequence-repeated-for-heads",
        "group-found-by-number",
        "queries-of-the-first-group",
    ],
)
def test_as_many_key_value_heads_tell_wrong_groups_apart(name):
    outputs = []
    variant = catalogue()[name].variants[0]
    for lines in (), variant:
        torch.manual_seed(0)
        x, *weights = torch.randn(3, 7, 5), *torch.randn(3, 4, 5, 2)
        if variant[0].module == "plain.gqa":
            outputs.append(Plain(lines).gqa.GQA(5, 4, 4, head_dim=2)(x))
        else:
            loop = load(lines).layers.gqa.grouped_query_loop
            outputs.append(loop(x, *weights, torch.randn(8, 5)))
    right = torch.allclose(*outputs)
    yes, no = find.tree()["heads"]["answers"][1]["answers"]
    likely = {True: {*yes["likely"]}, False: {*paths(no)}}
    assert name in likely[right] - likely[not right]


def texts(question):
    yield question["ask"]
    for answer in question["answers"]:
        word, *sentences = answer["if"]
        assert re.fullmatch("[a-z-]+", word)
        yield sentences
        if "ask" in answer:
            yield from texts(answer)


def test_each_question_is_in_both_languages():
    anchors = re.findall(r"\{ #([\w-]+) \}", body_of(ENGLISH))
    for question in find.tree().values():
        for english, chinese in texts(question):
            assert not re.search("[\u3000-\u9fff\uff00-\uffef]", english)
            words = re.sub(r"`[^`]*`|\(#[\w-]+\)", "", chinese)
            assert re.search("[\u4e00-\u9fff]", words) or chinese == english
            links = [
                re.findall(r"\(#([\w-]+)\)", x) for x in (english, chinese)
            ]
            assert links[0] == links[1]
            assert {*links[0]} <= {*anchors}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_door_has_all_questions_in_its_language(language):
    """Without markup that would be seen, each answer at its own address."""
    code = known.script(language).removeprefix("known=")
    data = json.loads(code)
    assert {entry["id"] for entry in data["entries"]} == {*catalogue()}
    addresses = []

    def look(question, symptom):
        assert not re.search(r"`|\]\(", question.get("ask", ""))
        for answer in question.get("answers", ()):
            assert not re.search(r"`|\]\(", answer["say"])
            addresses.append(f"{symptom}-{answer['key']}")
            look(answer, symptom)

    for symptom, question in data["symptoms"].items():
        look(question, symptom)
    assert len(addresses) == len({*addresses}) > 100
    ids = {id for key in SYMPTOMS for id in paths(find.tree()[key])}
    assert ids == {*catalogue()}


def test_code_and_links_of_a_sentence_are_marked():
    assert find.inline("a `<b>` [c](#d-e) & f") == (
        'a <code>&lt;b&gt;</code> <a href="#d-e">c</a> &amp; f'
    )
