"""Figures and computed tables hold what the pages say of them."""

import ast
import json
import re
from types import SimpleNamespace

import pytest
import torch
import yaml

import attnref
from attnref.judge.tasks import TASKS
from attnref.numbers.kv_memory import size
from attnref.plain.tensor_parallel import rows
from attnref.released.specs import models
from sitekit import ROOT
from sitekit.drawing.heatmap import heatmap
from sitekit.drawn import (
    absorption,
    cross,
    decoder,
    flash,
    index,
    kernels,
    kv_cache,
    masks,
    merge,
    mha,
    rope,
    rules,
    sdpa,
    split_heads,
    transformers,
)
from sitekit.markdown import calls
from sitekit.markdown.fences import Fence, drawing
from sitekit.markdown.mathml import mathml
from sitekit.markdown.pages import markdown_files
from sitekit.markdown.render import Word, inline
from sitekit.markdown.source import CALLS, DRAWN
from tests.kit.pages import fences

AXES = ("query", "key")


def html_of(stem, number, language="en"):
    """The HTML of a fence as its page has it."""
    kind, spec = fences(stem, language)[number]
    return drawing(yaml.safe_dump(spec), kind, Fence(stem, language))


def panels(html):
    """The matrix of each heat map, as it is drawn."""
    for picture in html.split("<svg")[1:]:
        number = r'class="(?:on|off|zero|weight)"[^>]*>([^<]+)<'
        cells = re.findall(number, picture)
        width = len(set(re.findall(r'<rect [^>]*? x="([^"]+)"', picture)))
        values = [float(cell) for cell in cells]
        yield [values[i : i + width] for i in range(0, len(cells), width)]


def words(folder):
    """What the Python files below name, and `file.name` for what is of one:
    definitions and strings do not count."""
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                file = (node.module or "").rpartition(".")[2]
                yield from (f"{file}.{name.name}" for name in node.names)
            elif isinstance(node, ast.Attribute):
                yield f"{ast.unparse(node.value)}.{node.attr}"
            elif isinstance(node, ast.Name):
                yield f"{path.stem}.{node.id}"


def drawn_by_pages():
    """`file.name` of what their fences call, and of kinds of fence."""
    for page in {path.stem for path in markdown_files("en")}:
        file = page.replace("-", "_")
        for kind, spec in fences(page):
            yield f"{file}.{kind}"
            for part in (spec, *spec.get("panels", ())):
                text = " ".join(str(part[key]) for key in CALLS if key in part)
                for name in re.findall(r"[a-z_][\w.]*", text):
                    yield name if "." in name else f"{file}.{name}"


@pytest.mark.whole
def test_what_a_file_draws_is_on_a_page_and_in_a_test():
    """What it defines is called by a fence or by what draws; what gives neither
    rows nor numbers, which are recorded, is named in a test."""
    called, used, tested = (
        {*drawn_by_pages()},
        {*words("sitekit")},
        {*words("tests")},
    )
    recorded = (ROOT / "tests/site/tables.json").read_text(encoding="utf-8")
    stems = {path.stem for path in markdown_files("en")}
    for page in calls.pages():
        assert page in stems, f"sitekit/drawn: {page} is no page"
        file = page.replace("-", "_")
        for name in calls.functions_of(page).keys() - {
            "numbers"
        }:  # of the text
            own = f"{file}.{name}"
            place = f"sitekit/drawn/{file}.py: {name}"
            assert own in called | used, (
                f"{place} is drawn by no page: delete it"
            )
            is_recorded = re.search(rf'^"{page}: {name}\b', recorded, re.M)
            if own in called and name not in DRAWN and not is_recorded:
                why = (
                    "is compared in no test: compare it, as test_drawn.py does"
                )
                assert own in tested, f"{place} {why}"


def test_the_masks_of_rules():
    causal = attnref.causal_mask(6)
    assert torch.equal(masks.window(6, 3), causal.triu(-2))
    assert torch.equal(rules.prefix(6, 3), causal | (torch.arange(6) < 3))
    slots = torch.tensor([3, 4, 2, -1])
    assert rules.slots(slots, 2).int().tolist() == [[1, 0, 1, 0], [1, 1, 0, 0]]
    ids = torch.tensor([0, 0, 0, 1, 1])
    blocks = torch.block_diag(
        attnref.causal_mask(3), attnref.causal_mask(2)
    ).bool()
    assert torch.equal(masks.documents(ids), blocks)


def test_a_filler_does_what_it_should_while_a_key_is_left():
    # The page says: as long as one key is allowed, it nearly does.
    scores = torch.tensor(masks.SCORES)
    keep = torch.tensor([True, True, False, False])
    want = torch.softmax(scores.masked_fill(~keep, -torch.inf), -1)
    for dtype in masks.DTYPES:
        for filler in (-1e9, -1e20, torch.finfo(dtype).min):
            s = scores.to(dtype)
            got = torch.softmax(s + (~keep).to(dtype) * filler, -1)
            assert torch.allclose(got.float(), want, atol=1e-2)


def test_a_score_that_stands_out_does_not_drown_in_the_filler():
    scores = torch.tensor([40.0, 2.0, 3.0, 0.5])
    weights = torch.softmax(scores + torch.ones(4) * -1e9, -1)
    assert weights[0] > 0.999


def test_the_table_of_checkpoints_is_what_was_recorded():
    text = transformers.ORACLES.read_text(encoding="utf-8")
    records = json.loads(text)["checkpoints"]
    for row, record in zip(transformers.checkpoints(), records, strict=True):
        model, verdict, error, reason, cure, from_config = row
        assert model.startswith(f"`{record['model_type']}`")
        assert record["config"] in model and verdict.key == record["verdict"]
        assert all(f"`{name}`" in cure for name in record["cure"])
        assert from_config.key == record["from_config"]
        if verdict.key == "wrong":
            assert (float(error), reason.key) == (
                record["found"],
                record["reason"],
            )
        else:
            assert error == "" and reason == ", ".join(
                f"`{name}`" for name in record["found"] or ()
            )


def test_tiles_that_are_hidden_have_no_number():
    numbers = [flash.order(w).numbers[::2, ::2].tolist() for w in (None, 3)]
    assert numbers == [
        [[1, 0, 0], [2, 3, 0], [4, 5, 6]],
        [[1, 0, 0], [2, 3, 0], [0, 4, 5]],
    ]
    for w in (None, 3):
        tiles = flash.order(w)
        assert tiles.numbers[tiles.allowed].all()
    html = html_of("flash", 4)
    assert html.count('class="made"') == 2 * (3 + 5)  # boxes and numbers


def test_parts_are_merged_into_what_torch_computes():
    *parts, total, mean = cells(merge.merged())
    lse = merge.SCORES.logsumexp(0)
    out = merge.SCORES.softmax(0) @ merge.VALUES
    assert total[3:5] == [f"{out:.3f}", f"{lse:.4f}"]
    assert float(parts[2][5]) > 0.5, "more than the other two, says the caption"
    assert float(mean[3]) < float(total[3]) - 8
    texts = [texts for _, texts in merge.split().boxes]
    assert texts[1] == [row[0] for row in parts] and texts[3] == [total[3]]
    assert texts[2] == [f"{row[3]}; {row[4]}" for row in parts]
    html = html_of("merge", 0)
    assert all(f">{text}<" in html for text in texts[2])
    assert [len(texts) for _, texts in merge.cascade(3).boxes] == [3, 1, 3, 3]
    with pytest.raises(ValueError, match="1 words, 4 steps"):
        merge.split().drawing(("", ""), title="", words=[""])


def test_attention_by_hand_is_what_torch_computes():
    x, mask = sdpa.EMBEDDED, torch.ones(4, 4).tril().bool() & sdpa.VALID
    out = torch.nn.functional.scaled_dot_product_attention(x, x, x, mask)

    def vector(text):
        return torch.tensor([float(n) for n in text.strip("()").split(",")])

    for i, row in enumerate(sdpa.outputs()):
        assert torch.allclose(vector(row[-1]), out[i], atol=0.005)
        assert len(row[2].split(",")) == len(row[3].split(",")) == mask[i].sum()


def test_two_heads_listen_to_different_tokens():
    future = torch.ones(3, 3, dtype=torch.bool).triu(1)
    for n in (0, 1):
        x = mha.EMBEDDED[:, 2 * n : 2 * n + 2]
        scores = (x @ x.T / 2**0.5).masked_fill(future, -torch.inf)
        assert torch.allclose(mha.head(n), scores.softmax(-1))
        # "you" listens to "I" in head 0, to "like" in head 1.
        assert mha.head(n)[2, n] > 0.4 > 0.1 > mha.head(n)[2, 1 - n]


def test_dot_products_spread_like_the_root_of_the_width():
    for row in sdpa.dot_products():
        width, spread, top, top_scaled, slope, slope_scaled = map(float, row)
        assert slope < slope_scaled
        assert 0.9 < slope_scaled < 1 - 1 / 32  # the most that 32 keys allow
        assert 4.5 < 32 * top_scaled < 5.5  # "about five times"
        assert abs(spread / width**0.5 - 1) < 0.05
        assert top_scaled < 0.2 < top


def test_the_masks_are_those_of_the_functions():
    triangle = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    literal = [
        triangle,
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0]],
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]],
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]],
        triangle,
        [[1, 1, 1, 0], [1, 1, 1, 1]],
        [[1, 1, 1, 1]],
        [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]],
        [[1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]],
    ]
    matrices = [
        m for i in range(1, 4) for m in panels(html_of("masks", i, "zh"))
    ]
    assert matrices == literal[4:]
    explorer = [
        m for i in range(1, 9) for m in panels(html_of("rules", i, "zh"))
    ]
    prefix = [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    new_tokens, left_padded, documents = literal[5], literal[7], literal[3]
    assert explorer == [
        *(triangle, new_tokens, literal[2], prefix, literal[1], left_padded),
        *(documents, masks.chunks(4, 2).int().tolist()),
    ]
    weights = sdpa.weights()
    assert torch.allclose(weights.sum(-1), torch.ones(4))
    assert (weights[:, 3] == 0).all()


def test_a_model_is_as_large_as_its_source_says():
    spec = models()["llama-3.1-8b"]
    rows = [*decoder.parameters()]
    assert rows[-1][1] == f"{spec.params:,}" and rows[0][1] == "1,342,177,280"
    assert [texts for _, texts in decoder.model().boxes] == [
        ["3 x 7"],
        *[["3 x 7 x 96"]] * 4,
        ["3 x 7 x 101"],
    ]
    assert [kind for kind, _ in decoder.block().boxes].index("on") == 1


def test_the_scores_by_distance_are_those_of_rope():
    x = torch.ones(1, 1, 6, 8).double() / 8**0.5
    rotated_x = attnref.apply_rope(x, *attnref.rope_table(torch.arange(6), 8))
    scores = (rotated_x @ rotated_x.mT)[0, 0, 0].tolist()
    assert [row[-1] for row in rope.distances()] == [f"{s:.2f}" for s in scores]
    assert min(scores) == scores[3]  # in the prose


def test_a_cache_saves_between_what_projections_and_attention_do():
    for tokens, _, _, ratio, *_ in kv_cache.saved():
        N, ratio = (float(n.replace(",", "")) for n in (tokens, ratio))
        assert ratio + 0.05 > (N + 1) / 2 and ratio < (2 * N + 1) / 3


RECT = re.compile(
    r'<rect class="([^"]+)" x="([^"]+)" y="([^"]+)" width="([^"]+)" '
    r'height="([^"]+)"'
)


def rects(picture, *kinds):
    """x, y, width and height of those boxes."""
    boxes = [(k, [*map(float, place)]) for k, *place in RECT.findall(picture)]
    return [place for kind, place in boxes if kind in kinds]


# Per token in bfloat16: 32 layers, 32 query heads of 128; MLA as DeepSeek-V3.
BYTES = {"MHA": 32 * 2 * 32, "GQA": 8 * 2 * 32, "MQA": 1 * 2 * 32}
BYTES = {name: n * 2 * 128 for name, n in BYTES.items()}
BYTES["MLA"] = 32 * (512 + 64) * 2


def test_the_cards_of_home_show_the_bytes_of_each_variant():
    words, boxes = ["{0}, {1}"], {}
    for name, n in BYTES.items():
        card = index.card(name, heads=8).drawing(AXES, title=name, words=words)
        (track,), (fill,) = rects(card.svg, "track"), rects(card.svg, "fill")
        assert fill[2] == pytest.approx(max(2, track[2] * n / BYTES["MHA"]))
        assert card.below == [f"{size(n)}, {size(n * 131_072)}"]
        kinds = ("key", "value", "latent", "key made", "value made")
        boxes[name] = [len(rects(card.svg, kind)) for kind in kinds]
        assert len(rects(card.svg, "query")) == 8
        assert card.svg.count("<line") == (16 if name == "MLA" else 8)
    assert boxes == {
        "MHA": [8, 8, 0, 0, 0],
        "GQA": [2, 2, 0, 0, 0],
        "MQA": [1, 1, 0, 0, 0],
        "MLA": [1, 0, 1, 8, 8],
    }


@pytest.mark.parametrize("narrow", [False, True])
def test_a_decode_step_is_drawn_to_scale(narrow):
    plot = index.step(slowed=200)
    picture = plot.narrow if narrow else plot.wide
    strips = rects(picture, "key", "value", "latent", "weights")
    (left, *_), width = strips[0], strips[0][2]
    areas = [w * h for x, _, w, h in strips if x == left and w == width]
    weights = (8_030_261_248 - 128_256 * 4096) * 2 / 131_072  # no embedding
    k_and_v = [BYTES[name] / 2 for name in ("MHA", "GQA", "MQA") for _ in "kv"]
    read = [*k_and_v, BYTES["MLA"] * 8 / 9, BYTES["MLA"] / 9, weights]
    ratios = [area / n for area, n in zip(areas, read, strict=True)]
    assert ratios == pytest.approx([ratios[0]] * 9, rel=1e-4)
    times = re.findall(r"--time:([\d.]+)s", picture)
    for time, row, n in zip(
        times, plot.rows, [*BYTES.values(), weights], strict=True
    ):
        ms = 131_072 * n / 3.35e9
        assert float(row[-1]) == pytest.approx(ms, rel=1e-2)
        assert float(time) == pytest.approx(0.2 * ms, rel=1e-2)
        assert row[3] == size(131_072 * n) and f">{row[3]} · " in picture


def test_only_gradients_notice_all_mistakes_on_several_devices():
    """As the caption says; test_tables.py compares the record."""
    record = json.loads((ROOT / "tests/site/tables.json").read_text())
    _, *checks = zip(*record["ranks-mistakes: checks"], strict=True)
    noticed = [{*column} == {"<yes>"} for column in checks]
    assert noticed == [False] * 4 + [True] + [False] * 2


def test_home_counts_what_is_checked():
    names = cells(index.checked())
    counts = {key: int(n) for n, key in names}
    catalogue = json.loads((ROOT / "tests/check/kills.json").read_text())
    assert counts["mistakes"] == len(catalogue)
    assert counts["released"] == len(models())
    assert counts["exercises"] == len(TASKS)
    assert counts["shapes"] > 100


def test_colours_of_a_meaning_are_read_on_paper_and_under_letters():
    style = (ROOT / "overrides/assets/attnref.css").read_text(encoding="utf-8")

    def luminance(colour):
        rgb = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
            for c in rgb
        ]
        return sum(
            a * b for a, b in zip(linear, (0.2126, 0.7152, 0.0722), strict=True)
        )

    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6});", part))
        for part in style.split("@media not print", 1)
    )
    meant = dict(re.findall(r"--(\w+): var\(--([\w-]+)\);", style))
    for scheme in (light, dark):

        def contrast(name, ground, scheme=scheme):
            pair = sorted(
                luminance(scheme.get(n) or scheme[meant[n]])
                for n in (name, ground)
            )
            return (pair[1] + 0.05) / (pair[0] + 0.05)

        stored = "query", "rope", "latent", "key", "value"
        for name in (*stored, "mask"):  # text, also on a shelf
            assert contrast(name, "paper") >= 4.5, name
            assert contrast(name, "raised") >= 4.5, name
        for name in stored:  # letters on what is filled
            assert contrast(name, "on-green") >= 4.5, name
        for name in ("ink", "ink-soft"):  # letters of weights and sizes
            assert contrast(name, "raised") >= 4.5, name
        assert contrast("ink", "line") >= 4.5
        for name in ("recomputed", "ink-soft"):  # outlines, arrows
            assert contrast(name, "paper") >= 3, name


def test_a_figure_shows_every_number_and_label():
    matrix = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    labels = {"rows": ["<pad>", "b"], "columns": ["c", "d"]}
    picture = heatmap(matrix, AXES, title="A & B", **labels).svg
    for text in (">1.00<", ">0<", ">0.25<", ">0.75<", "&lt;pad&gt;"):
        assert text in picture
    assert 'aria-label="A &amp; B"' in picture
    assert "#" not in picture, "a colour of its own would not follow the scheme"


def test_an_unknown_command_stops_the_build():
    with pytest.raises(ValueError, match=r"formula '\\\\foo x'"):
        mathml(r"\foo x", display=False)


def cells(rows):
    return [[c.key if isinstance(c, Word) else c for c in row] for row in rows]


def test_absorbing_pays_below_the_crossover():
    ratio = {int(n): float(r) for n, r in absorption.chunks()}
    assert all(r < 1 for n, r in ratio.items() if n < 164)
    assert all(r > 1 for n, r in ratio.items() if n > 164)
    assert ratio[164] == 1


def test_a_text_may_hold_code_a_formula_and_a_link():
    out = inline("a `b < c` $c$ [d](https://e.org/?f&g) <h> & 1. # x_y_z")
    assert "<code>b &lt; c</code>" in out and "<math" in out
    assert '<a href="https://e.org/?f&amp;g">d</a> &lt;h&gt;' in out
    assert out.endswith("&amp; 1. # x_y_z") and "<p>" not in out


def test_what_is_drawn_is_named_by_its_call():
    call = "causal_mask(2, S=3) & padding_mask([[True, True, False]])"
    mask = calls.value(call, "softmax")
    assert mask[0, 0].int().tolist() == [[1, 1, 0], [1, 1, 0]]
    assert calls.value("biases.decays(8)", "kv-cache").shape == (3, 8)
    assert calls.value("decays(8)", "biases").shape == (3, 8)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (
            "open('x')",
            "there is no 'open' in sitekit/drawn/mla.py or",
        ),
        ("torch.load('x')", "there is no sitekit/drawn/torch.py"),
        ("__import__('os').system('x')", "there is no sitekit/drawn/"),
        ("(lambda: 1)()", "there is no 'lambda: 1'"),
        ("causal_mask.__globals__", "there is no sitekit/drawn/causal_mask.py"),
        ("causal_mask(len([1]))", "'len([1])' is no literal"),
        ("_stored((1, 2))", "there is no '_stored'"),
        ("code(1)", "there is no 'code'"),
        ("mla.causal_mask(3)", "there is no 'mla.causal_mask'"),
        ("clame", "; did you mean 'claim' or 'caches' or 'Llama3'?"),
        ("causal_mask(3", "is no call such as f(3)"),
    ],
)
def test_nothing_else_can_be_called(call, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        calls.value(call, "mla")


def test_a_name_that_stands_twice_is_refused(monkeypatch):
    monkeypatch.setattr(calls, "functions_of", calls.functions_of.__wrapped__)
    monkeypatch.setattr(masks, "causal_mask", masks.outcome, raising=False)
    why = r"masks.py defines \['causal_mask'\], as attnref does; give it"
    with pytest.raises(ValueError, match=why):
        calls.value("fully_masked", "masks")


def test_the_cache_of_a_context_is_that_of_the_layer_and_of_transformers():
    from transformers import BartConfig, WhisperConfig
    from transformers.models.mllama.configuration_mllama import MllamaTextConfig

    bart, whisper, llama = BartConfig(), WhisperConfig(), MllamaTextConfig()
    readers = len(llama.cross_attention_layers)
    rows = {name.key: rest for name, *rest in cross.contexts()}
    assert [*map(int, rows["bart"][:2])] == [
        bart.decoder_layers,
        bart.decoder_attention_heads,
    ]
    assert rows["whisper"][3] == f"{whisper.max_source_positions:,}"
    assert cross.MODELS["llama"][1:4] == (
        readers,
        llama.num_hidden_layers - readers,
        llama.num_key_value_heads,
    )
    for name, (tokens, layers, _, K, D) in cross.MODELS.items():
        sizes = {"d_model": 8, "n_heads": K, "head_dim": D}
        with torch.device("meta"):
            layer = attnref.CrossAttention(**sizes).bfloat16()
            cache = attnref.KVCache(tokens)
            x = torch.empty(1, tokens, 8, dtype=torch.bfloat16)
            with torch.no_grad():
                layer(x[:, :1], x, cache=cache)
        assert rows[name][4] == size(layers * cache.nbytes)


def test_programs_of_kernels_read_the_blocks_that_are_drawn():
    """A prompt: those that the mask shows, from left to right. A decode step:
    each span is one program's."""
    numbers = kernels.prompt_grid().numbers
    shown = attnref.causal_mask(8).view(4, 2, 4, 2).any(3).any(1)
    assert torch.equal(numbers > 0, shown)
    for row in numbers:
        steps = row[row > 0].tolist()
        assert steps == [*range(1, len(steps) + 1)]
    assert kernels.decode_grid().numbers.tolist() == [
        [1, 1, 2, 2],
        [3, 3, 4, 4],
    ]


def test_the_bytes_of_kernels_are_those_of_the_layers():
    """By the arithmetic of caches, and of prompts."""
    long, heads = kernels.LONG, kernels.KV_HEADS
    tensors = [torch.empty(1, heads, long, 128, device="meta").bfloat16()] * 2
    read, flops = kernels.CASES["decode"]
    assert read == sum(x.nbytes for x in tensors)
    assert flops == 4 * 32 * long * 128
    entry = torch.empty(1, long, 512 + 64, device="meta").bfloat16()
    assert kernels.CASES["mla_decode, 16 heads"][0] == entry.nbytes
    limits = {row[0].key: row[-1].key for row in kernels.roofline()}
    assert limits.pop("flash") == "compute"
    assert {*limits.values()} == {"memory"}


@pytest.mark.parametrize(
    ("heads", "K", "n"), [(8, 2, 4), (12, 3, 3), (6, 1, 2)]
)
def test_the_heads_of_devices_are_those_that_the_plain_form_cuts(heads, K, n):
    drawn = split_heads.boxes(n_heads=heads, n_kv_heads=K, ranks=n)
    cuts = (heads, drawn.queries, False), (K, drawn.keys, True)
    for count, parts, copied in cuts:
        numbers = torch.arange(count)[:, None]
        for r, part in enumerate(parts):
            group = SimpleNamespace(rank=r, size=n)
            cut = rows(numbers, count, group, copied=copied)
            assert cut.flatten().tolist() == part
