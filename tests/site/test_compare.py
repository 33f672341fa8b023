"""Compare: what the script computes is what the package says."""

import random
import re

import pytest
import torch

import attnref
from attnref.numbers.kv_memory import DTYPES
from sitekit.drawing import heads
from sitekit.drawn import compare
from tests.kit import sampled
from tests.kit.site import opened

# Fills the fields as a reader would and reads the columns, for each case.
SWEEP = """(cases) => {
  const { elements } = document.querySelector(".comparison form");
  return cases.map((values) => {
    for (const name in values) elements[name].value = values[name];
    elements.tokens.dispatchEvent(new Event("input", { bubbles: true }));
    const rows = document.querySelectorAll(".state:first-child tr[class^=of-]");
    return [1, 2, 3, 4].map(
      (i) => [...rows].map((row) => row.cells[i].textContent));
  });
}"""
SHOWN = "all => all.filter(e => e.checkVisibility()).map(e => e.innerText)"


@pytest.fixture(scope="module")
def page(chromium, address):
    url = address + "learn/compare/"
    with opened(chromium, url, until="load") as page:
        yield page
        assert page.faults == []


def test_the_script_computes_what_the_package_does(page):
    """To the last digit, in some sizes: they are of one source."""
    pick = random.Random(7)
    cases = []
    for _ in range(40):
        K = pick.choice((1, 2, 3, 8, 13))
        sizes = {name: pick.randint(1, 9999) for name in compare.FIELDS}
        sizes |= {"kv_heads": K, "heads": K * pick.randint(1, 40)}
        sizes["q_lora_rank"] *= pick.randint(0, 1)
        cases.append(sizes | {"dtype": pick.choice([*DTYPES])})
    cases += [x | {"dtype": "bf16"} for x in compare.PRESETS.values()]
    results = []
    for case in cases:
        sizes = {name: case[name] for name in compare.FIELDS}
        results.append([*compare.facts(sizes, case["dtype"]).values()])
    assert page.evaluate(SWEEP, cases) == results


def test_the_address_holds_the_sizes(visit, address):
    url = address + "learn/compare/"
    page = visit(url, until="load")
    page.locator(".presets label").nth(2).click()
    page.locator(".comparison [name=tokens]").fill("1M")
    page.wait_for_url("**heads=128**tokens=1M")
    text = page.locator(".compared").inner_text()
    assert "1,048,576" in text and "68.62 GiB" in text
    assert page.locator(".presets :checked").count() == 0
    again = visit(page.url, until="load")
    assert again.locator(".compared").inner_text() == text
    chinese = visit(page.url.replace(address, f"{address}zh/"), until="load")
    numbers = re.compile(r"[\d,.]+ [KMG]iB")
    chinese_text = chinese.locator(".compared").inner_text()
    assert numbers.findall(chinese_text) == numbers.findall(text)
    page.locator(".presets label").nth(0).click()
    page.wait_for_url(url)


def test_what_cannot_be_is_refused_in_words(visit, address):
    query = "heads=<b>&ranks=0&kv_heads=5&utm=x&q_lora_rank=0&dtype=__proto__"
    page = visit(f"{address}learn/compare/?{query}", until="load")
    text = page.locator(".comparison .problems").inner_text()
    assert "“<b>” is not a whole number" in text and "Devices: “0”" in text
    assert page.locator(".comparison [aria-invalid]").count() == 2
    assert page.locator(".comparison [name=dtype]").input_value() == "bf16"
    page.locator(".comparison [name=heads]").fill("32")
    text = page.locator(".comparison .problems").inner_text()
    assert "must divide" in text and page.faults == []


@pytest.mark.parametrize("root", sampled(["", "zh/"], [""]))
def test_three_sizes_are_there_without_a_script(visit, address, root):
    page = visit(f"{address}{root}learn/compare/", java_script_enabled=False)
    texts = set()
    for i, sizes in enumerate(compare.PRESETS.values()):
        page.locator(".presets label").nth(i).click()
        (text,) = page.eval_on_selector_all(".comparison .state", SHOWN)
        for column in compare.facts(sizes).values():
            assert [one for one in column if one not in text] == []
        texts.add(text)
    assert len(texts) == 3
    assert not page.locator(".comparison [name=tokens]").is_visible()


def test_a_column_by_hand():
    E, H, D, R, Dr, Q, L, S = 7168, 128, 128, 512, 64, 1536, 61, 131_072
    result = compare.facts(compare.PRESETS["deepseek-v3"])
    up = 2 * H * R * D
    weights = Q * (E + H * (D + Dr)) + Q + R
    weights += E * (R + Dr) + up + H * D * E
    flops = 2 * H * (R + Dr + R), 2 * H * (D + Dr + D)
    assert result["mla"] == [
        f"c ({R}), kᴿ ({Dr})",
        f"{2 * (R + Dr):,}",
        f"{L * S * 2 * (R + Dr) / 2**30:.4g} GiB",
        f"{L * S * 2 * (R + Dr) / 2**30:.4g} GiB",  # on every device
        f"{flops[0]:,} / {flops[1]:,}",
        f"{flops[0] / (2 * (R + Dr)):.4g}",
        f"{weights:,}",
    ]
    assert result["mha"][2:4] == ["488 GiB", "61 GiB"], "an eighth of it"
    assert result["gqa"][0] == "k, v (8, 128)"
    assert result["gqa"][-1] == f"{2 * E * H * D + 2 * E * 8 * D:,}"
    parts_of = compare.parts(compare.PRESETS["deepseek-v3"])
    for name, parts in parts_of.items():
        elements = sum(heads * width for *_, heads, width in parts)
        assert f"{2 * elements:,}" == result[name][1]


def test_the_models_of_each_variant():
    ids = {name: names for name, _, names in compare.released()}
    assert "Llama-2-7B" in ids["MHA"] and "DeepSeek-V3" in ids["MLA"]
    assert len(ids["MQA"].split(", ")) == len(compare.having()["mqa"])


@torch.no_grad()
def readers(layer, parts):
    """By experiment: which query heads change, before `o_proj`, with each of
    these parts of the weights, `(H, parts)`."""
    x, outputs = torch.randn(1, 5, layer.d_model), []
    layer.o_proj.register_forward_pre_hook(
        lambda _, args: outputs.append(
            args[0].unflatten(-1, (layer.n_heads, -1))
        )
    )
    columns = []
    for part in parts:
        layer(x)
        saved = part.clone()
        part += 1
        layer(x)
        part.copy_(saved)
        before, after = outputs[-2:]
        columns.append((after != before).any(-1).any(1)[0])
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize("n_kv_heads", [8, 2, 1])
def test_heads_read_what_the_picture_shows(n_kv_heads):
    layer = attnref.GroupedQueryAttention(
        d_model=32, n_heads=8, n_kv_heads=n_kv_heads
    )
    reads, latent = heads.wiring(8, n_kv_heads)
    values = layer.v_proj.weight.split(layer.head_dim)
    assert torch.equal(readers(layer, values), reads.bool())
    assert not latent.any()


@torch.no_grad()
def test_heads_of_mla_read_what_the_latent_makes():
    sizes = {"kv_lora_rank": 12, "qk_nope_head_dim": 4}
    sizes |= {"qk_rope_head_dim": 2, "v_head_dim": 4}
    layer = attnref.MultiHeadLatentAttention(d_model=32, n_heads=8, **sizes)
    reads, latent = heads.wiring(8, 0)
    up = layer.kv_b_proj.weight
    down, rope = layer.kv_a_proj_with_mqa.weight.tensor_split((12,))
    assert torch.equal(readers(layer, up.chunk(8)), reads.bool())
    assert readers(layer, [down, rope]).all() and latent.all()
    up.zero_()  # nothing is made from the latent any more
    assert not readers(layer, [down]).any()


def test_the_difference_has_the_lines_that_matter():
    lines = {name: compare.lines_of(name) for name in compare.PATTERNS}
    assert [*map(len, lines.values())] == [6, 4, 8]
    html = compare.difference(titles=["a", "b", "c"], caption="")
    removed = re.findall(r'class="gd">-(.*?)<', html)
    assert removed[:2] == lines["mha"][:2]
    assert "+GQA(d_model, n_heads, 1)" in html
    words = {name: name for name in WORDS} | {"found": "{0}"}
    assert compare.comparison(words=words).count("<tr") == 3 * 12


WORDS = [*compare.FIELDS, *compare.ROWS, "sizes", "own", "dtype", "bad_number"]
WORDS += ["divides", "wired", "scaled", "formula", "found"]
