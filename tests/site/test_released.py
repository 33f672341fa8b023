"""Released models: their facts, their files, and the pages that stand in no
file."""

import json
import math
import re
from dataclasses import replace

import pytest

from attnref.__main__ import main
from attnref.numbers.kv_memory import (
    growth,
    kv_bytes,
    largest_batch,
    reserved,
    size,
    state_bytes,
    weight_bytes,
)
from attnref.numbers.shapes import Full, Mla
from attnref.released.devices import find_device
from attnref.released.parts import PARTS, sentence
from attnref.released.record import OLD_ROPE
from attnref.released.specs import models as known
from sitekit import CONFIGS
from sitekit.drawn import your_model
from sitekit.drawn.released import VIEWS, kinds_of
from sitekit.drawn.released import cells as cells_of
from sitekit.markdown.render import Word
from sitekit.released import released, told
from sitekit.released.released import words
from tests.kit import sampled
from tests.kit.pages import Reader

MODELS = released.released()


# As released they leave RoPE to the defaults of transformers, which are theirs.
SILENT = {
    *("falcon", "gemma4_text", "lfm2", "llama", "mimo_v2_flash"),
    "ministral3",
}


@pytest.mark.parametrize("id", MODELS)
def test_a_file_rests_on_a_config_that_says_its_rope(id):
    """Copies for tests and simulators leave it out, and the rest of attention
    too: θ would be 10,000 where the model has 1,000,000."""
    model = MODELS[id]
    rotated = any(r.rope_theta for r in model.records.values())
    if rotated and model.family not in SILENT:
        given = model.reading.fields
        assert any(given.get(name) for name in (*OLD_ROPE, "rope_parameters"))


def test_a_page_says_what_its_record_says():
    text = released.markdown("models/released/gemma-3-27b", "en")
    assert "sees 1,024 tokens, itself included (52 of 62 layers)." in text
    assert "linear scaling (10 of 62 layers)." in text
    assert "θ is 10,000 in these layers and 1,000,000 in the others" in text
    parts = released.losses(MODELS["gemma-3-27b"].records)
    assert {"norm", "norm_weight", "window", "theta", "scaled"} <= {*parts}
    # A model without such parts loses nothing.
    assert released.losses(MODELS["mixtral-8x7b"].records) == {}


def test_a_page_names_each_kind_of_layer_and_leads_to_its_page():
    for model in MODELS.values():
        for language in CONFIGS:
            kinds = released._kinds_of_layers(model, language)
            assert sum(kinds.values()) == model.layers
            assert not any("`" in kind for kind in kinds), model.id
    page = released.markdown("models/released/nemotron-3-nano", "en")
    gqa = "[grouped-query attention](../../layers/gqa.md)"
    assert f"\n- 6 of 52 layers: {gqa}.\n" in page
    assert "\n- 23 of 52 layers: feed-forward layers, which" in page
    assert re.search(r"\n- 23 of 52 layers: .*Mamba-2.* \(recurrent\)\.", page)
    page = released.markdown("models/released/gemma-3-27b", "zh")
    assert "带[滑动窗口](../../caches/windows.md)。\n" in page
    page = released.markdown("models/released/deepseek-v3.2", "en")
    assert re.search(r"All 61 .*mla\.md\), with .*sparse attention", page)


def test_every_part_that_is_left_out_moves_the_output():
    for model in MODELS.values():
        for part, error in released.losses(model.records).items():
            assert error > 1e-3, f"{model.id}: {part}"


def test_every_part_has_its_words():
    words = released.words()["parts"]
    assert [*words] == [*PARTS]
    for name, part in PARTS.items():
        wanted = {"name", "differs"} | ({"lost"} if part.without else set())
        assert {*words[name]} - {"lost"} == wanted - {"lost"}
        assert wanted <= {*words[name]}
        for texts in words[name].values():
            assert {*texts} == {*CONFIGS}


def test_the_page_refuses_what_it_says():
    rows = your_model.refused("en")
    assert rows[0][1].startswith("model_type='rwkv' is none of the")
    assert len({row[1] for row in rows}) == len(rows) == 4


def test_the_page_compares_two_models():
    rows = your_model.differing("en")
    fields = ["`norm`", "`rope_theta`", "`rope_kind`", Word("token")]
    assert [row[0] for row in rows] == fields
    assert rows[1][1:] == ["500000.0", "1000000.0"]
    assert rows[-1][1:] == ["131,072", "147,456"]


@pytest.mark.parametrize("id", sampled(MODELS, ["qwen3-8b", "phi-3-mini"]))
def test_a_download_is_what_the_command_prints(site, tmp_path, id):
    model = MODELS[id]
    config, out = tmp_path / "config.json", tmp_path / "attention.py"
    config.write_text(json.dumps(model.config))
    main(["copy", "--config", str(config), "-o", str(out)])
    place = site.folder / "files/released" / model.file
    assert out.read_bytes() == place.read_bytes()
    assert max(map(len, out.read_text().splitlines())) < 80
    compile(out.read_text(), model.file, "exec")


def test_each_model_has_a_page_in_both_languages_that_leads_to_its_file(site):
    shown = {}
    for root in ("", "zh/"):
        table = site.folder / root / "models/released/index.html"
        listed = set(re.findall(r'href="([\w.-]+)/"', table.read_text("utf-8")))
        assert {*MODELS} <= listed
        for id, model in MODELS.items():
            page = Reader(
                site.folder / root / f"models/released/{id}/index.html"
            )
            file = f"/files/released/{model.file}"
            (link,) = {x for x in page.links if x.endswith(file)}
            ids = {"differs", "file", "memory", "sources"}
            assert ids <= page.ids
            shown.setdefault(id, []).append(link)
    assert all(len(links) == 2 for links in shown.values())


def test_a_card_says_what_the_arithmetic_says():
    """Of lengths, and of devices that hold the weights."""
    model = MODELS["deepseek-v3"]
    mib = {name: find_device(name).mib for name in released.DEVICES}
    has = told.card(model.model, [0, 0], mib, released.RANKS)
    assert has["tokens"] == [2**n for n in range(12, 18)]  # of 163,840
    rows = has["by"]["bf16"]
    assert rows["cache"][-1] == size(kv_bytes(model.model, 131_072))
    assert rows["whole"][-1] == size(2 * 61 * 128 * (192 + 128) * 131_072)
    assert (has["at"], has["way"]) == (5, "8 h200 fp8 bf16")
    for dtype in told.FORMATS:
        left = int(mib["h200"] * 2**20 * 0.9)
        left -= weight_bytes(model.model, "fp8", ranks=8)
        assert has["fits"][f"8 h200 fp8 {dtype}"] == [
            largest_batch(model.model, n, left, dtype=dtype, ranks=8)
            for n in has["tokens"]
        ]
    assert "8 h200 bf16 bf16" not in has["fits"]
    # Every model has one, those of unknown size without devices.
    for each in MODELS.values():
        has = told.card(each.model, [], mib, released.RANKS)
        assert ("fits" in has) == bool(each.model.params)
        assert has["way"].split()[1] in mib


def facts_of(id, language="en"):
    """What the card of a page shows before its script runs."""
    page = released.markdown(f"models/released/{id}", language)
    facts = re.search(r'<dl class="facts">(.*?)</dl>', page, re.DOTALL)[1]
    shown = re.sub(r"<(div|span)[^>]* hidden>.*?</\1>", "", facts, flags=re.S)
    return " ".join(re.sub("<[^>]+>", " ", shown).split())


def test_a_card_names_each_cause_of_a_small_cache():
    for id, language, texts in (
        ("gpt-oss-20b", "en", ["8 × by shared heads", "2 × by windows"]),
        ("gpt-oss-20b", "zh", ["键值头共用： 8 ×", "滑动窗口： 2 ×"]),
        ("llama-4-scout", "en", ["5 × by shared heads", "3.37 × by chunks"]),
        ("gemma-4-e2b", "en", ["8 × by sh", "2.33 × by l", "2.98 × by w"]),
        ("deepseek-v3.2", "en", ["71.1 × by a la", "0.818 × by index"]),
        ("deepseek-v4-flash", "en", ["128 × by one", "7.53 × by comp"]),
    ):
        facts = facts_of(id, language)
        assert all(text in facts for text in texts), facts
    assert "by windows" not in facts_of("qwen3-8b")
    assert "smaller" not in facts_of("llama-2-7b")


def test_the_factors_of_all_causes_multiply_to_the_whole():
    """At each length, with states left out: they are no keys."""
    for model in MODELS.values():
        others, shape = told.reused(model.records), model.model
        heads = [
            r.n_heads * (r.head_dim + r.v_head_dim)
            for r in model.attends.values()
        ]
        both = 1 + (model.family == "longcat_flash")  # two in each layer
        for n in (4096, 131_072, 2**20):
            causes = told.factors(shape, others, n)
            times = causes.pop("times")
            assert math.prod(causes.values()) == pytest.approx(times, 1e-12)
            kept = kv_bytes(shape, n) - state_bytes(shape)
            every = 2 * n * both * sum(heads)
            assert times == pytest.approx(every / kept, 1e-12), model.id


@pytest.mark.parametrize(
    "id, heads", [("gpt-oss-20b", 8), ("llama-4-scout", 5), ("gemma-3-27b", 2)]
)
def test_a_factor_is_what_the_cache_is_without_its_cause(id, heads):
    """With windows kept and a key for each head; and with windows in full."""
    shape = MODELS[id].model
    groups = (replace(g, kv_heads=g.q_heads) for g in shape.groups)
    apart = replace(shape, groups=tuple(groups))
    for n in (4096, 65_536, 131_072):
        causes = told.factors(shape, [0, 0], n)
        assert causes["heads"] == heads
        assert kv_bytes(apart, n) == heads * kv_bytes(shape, n)
        kept = kv_bytes(reserved(shape), n) / kv_bytes(shape, n)
        assert causes["windows"] * causes["chunks"] == kept


@pytest.mark.parametrize("id", ["qwen3.8-27b", "qwen3-next-80b"])
def test_a_card_tells_states_from_keys(id):
    shape = MODELS[id].model
    (full,) = [g for g in shape.groups if isinstance(g, Full)]
    has = told.card(shape, [0, 0], {}, ())
    n, states = has["tokens"][0], state_bytes(shape)
    times = full.q_heads // full.kv_heads
    assert {*has["factors"]["times"]} == {str(times)}
    kept = kv_bytes(shape, n) - states
    rows = has["by"]["bf16"]
    assert rows["whole"][0] == size(times * kept + states)
    facts = facts_of(id)
    assert f"tokens and {size(states)} of states" in facts
    assert "of states" not in facts_of("qwen3-8b")


def test_a_key_that_nothing_rotates_is_no_key_of_rope():
    for model in MODELS.values():
        latent = [r for r in model.records.values() if r.kv_rank]
        turned = any(r.rope_theta for r in latent)
        for language in CONFIGS if latent else ():
            said = dict(told.differs(model.records, words(), language))
            assert ("RoPE" in said["mla"]) is turned, model.id
    kimi = MODELS["kimi-linear-48b"].records
    says = [sentence("mla", kimi, words(), each) for each in CONFIGS]
    assert "512 elements and 64 more key elements, not rotated;" in says[0]
    assert "512 维的潜在向量和 64 维不旋转的键，" in says[1]


def test_a_difference_is_shown_as_the_lines_that_it_needs():
    page = released.markdown("models/released/deepseek-v3", "en")
    diff = page.partition("language-diff")[2].partition("</pre>")[0]
    assert "- a, b = (t.float() for t in x.chunk(2, dim=-1))" in diff
    assert "+ a, b = (t.float() for t in x.unflatten(-1, (-1, 2))" in diff
    assert "pairs the halves changes the output by <strong>1.1</strong>" in page
    # What has no line that Llama's code could have has no diff.
    assert "language-diff" not in released.markdown(
        "models/released/llama-3-8b", "en"
    )


# --- the table of models ---


# Those with a page, then the others.
NEWEST_FIRST = sorted(
    known().values(),
    key=lambda m: (m.id in released.released(), m.date),
    reverse=True,
)
ALL = len(NEWEST_FIRST)
AT = {name: n for n, name in enumerate(sum(VIEWS.values(), ()))}


def shown(page):
    """Without what Chinese names have behind them."""
    names = page.locator(".released tbody tr:visible th").all_inner_texts()
    return [name.partition("（")[0] for name in names]


def test_the_table_holds_every_model_and_its_bytes(visit, address):
    page = visit(address + "models/released/", java_script_enabled=False)
    rows = page.locator(".models > .scroll tbody tr").all()
    assert len(rows) == ALL
    for line, model in zip(rows, NEWEST_FIRST, strict=True):
        texts = line.locator("th, td").all_inner_texts()
        cells = {name: texts[at] for name, at in AT.items()}
        added = growth(model)
        assert cells["name"] == model.name
        assert cells["token"] == size(added.first)
        assert cells["later"] == size(added.later)
        assert cells["context"] == f"{model.max_context:,}"
        assert cells["confidence"] == model.confidence
        latent = [g for g in model.groups if isinstance(g, Mla)]
        unrotated = any(not group.rotated for group in latent)
        assert ("512 + 64, NoPE" in cells["groups"]) is unrotated
        if model.params:
            count = float(cells["params"].removesuffix("B").replace(",", ""))
            assert count * 1e9 == pytest.approx(model.params, rel=1e-3)
        totals = {2**n: size(kv_bytes(model, 2**n)) for n in (12, 15, 17, 20)}
        assert [cells[str(n)] for n in totals] == [*totals.values()]
        assert line.locator(".beyond").all_inner_texts() == [
            total for n, total in totals.items() if n > model.max_context
        ]
        links = [a.get_attribute("href") for a in line.locator("a").all()]
        given = model.context, model.params_in
        apart = [s.url for s in given if s and s not in model.sources]
        sources = [source.url for source in model.sources]
        if model.id in MODELS:
            links.remove(f"{model.id}/")
            sources = [f"{model.id}/#sources"]
        assert links == apart + sources
        strip = line.locator("svg.strip")
        assert ("unordered" in strip.get_attribute("class")) is (
            model.id not in MODELS and not cells_of(model)[1]
        )
    assert not page.locator(".models .controls").is_visible()


def test_the_table_is_searched_filtered_and_sorted_in_its_address(
    visit, address
):
    page = visit(address + "models/released/")
    output = page.locator(".models output")
    for field, value, fits in (
        ("maker", "Gemma", lambda m: m.family == "Gemma"),
        ("with", "MLA", lambda m: "MLA" in kinds_of(m)),
        ("with", "sinks", lambda m: "sinks" in MODELS[m.id].parts),
    ):
        page.locator(f".models [name={field}]").select_option(value)
        names = [
            m.name
            for m in NEWEST_FIRST
            if (m.id in MODELS or value != "sinks") and fits(m)
        ]
        assert shown(page) == names and f"{field}={value}" in page.url
        assert output.inner_text() == f"{len(names)} of {ALL} models"
        page.locator(f".models [name={field}]").select_option("")
    page.fill("[name=find]", "QWEN3 next")
    assert shown(page) == ["Qwen3-Coder-Next", "Qwen3-Next-80B-A3B"]
    page.fill("[name=find]", "zzz")
    assert output.inner_text() == f"0 of {ALL} models"
    page.locator(".reset").click()
    assert len(shown(page)) == ALL and "?" not in page.url
    assert not page.locator(".reset").is_visible()

    page.locator(".models [name=view]").select_option("memory")
    button = page.get_by_role("button", name="1M")
    button.click()
    heads = page.locator(".models > .scroll thead th")
    head = heads.locator(f"xpath=self::*[@data-name='{2**20}']")
    wanted = {*VIEWS[""], *VIEWS["memory"]}
    names = heads.evaluate_all("all => all.map(e => e.dataset.name)")
    assert [*AT] != names == [name for name in AT if name in wanted]
    assert head.get_attribute("aria-sort") == "descending"
    by_name = {m.name: kv_bytes(m, 2**20) for m in NEWEST_FIRST}
    assert [size(by_name[name]) for name in shown(page)] == [
        size(n) for n in sorted(by_name.values(), reverse=True)
    ]
    page.fill("[name=find]", "gemma")
    state = page.url, shown(page)
    again = visit(page.url)
    assert (again.url, shown(again)) == state
    button.focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert shown(page) == state[1][::-1]
    heads.nth(0).locator("button").click()
    assert head.get_attribute("aria-sort") is None
    gemma = [n for n in shown(page) if n.startswith("Gemma 3")]
    assert gemma == [f"Gemma 3 {n}B" for n in (1, 4, 12, 27)]


def test_on_a_phone_a_row_is_a_name_its_bytes_and_a_strip(visit, address):
    """Nothing scrolls within the page, and nothing overlaps."""
    page = visit(address + "zh/models/released/?sort=token", width=320)
    rows = page.locator(".models > .scroll tbody tr")
    box = page.locator(".models > .scroll").evaluate(
        "e => [e.scrollHeight - e.clientHeight, e.scrollWidth - e.clientWidth]"
    )
    assert box == [0, 0]
    assert not page.locator(".released > .scroll thead").is_visible()
    for n in (0, 60):
        name, strip, size = (
            rows.nth(n).locator(f":nth-child({k})").first.bounding_box()
            for k in (1, 2, 3)
        )
        assert name["x"] + name["width"] <= size["x"]
        assert strip["y"] >= name["y"] + name["height"]
        assert rows.nth(n).locator("> :visible").count() == 3
    page.locator("[name=sort]").select_option("name")
    assert shown(page)[0].startswith("Aya")
