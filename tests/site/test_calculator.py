"""The calculator and the table of models, as a reader uses them."""

import re
from dataclasses import asdict
from functools import partial

import pytest

from attnref.numbers.kv_memory import (
    DTYPES,
    Storage,
    group_bytes,
    growth,
    kv_bytes,
    largest_batch,
    longest_context,
    size,
    weight_bytes,
)
from attnref.numbers.shapes import Full, Mla
from attnref.released.specs import find_model, models
from sitekit.drawn import calculator
from sitekit.drawn.calculator import BUDGET, SCALES, shape_of
from sitekit.drawn.memory import kinds_of
from sitekit.markdown.tables import exact
from sitekit.released.released import released
from tests.kit import sampled
from tests.kit.site import opened

CONTEXTS = (1, 127, 4096, 131_072, 1_048_577, 999_999_937)
GIB = 2**30

# Fills the form as a reader would and reads the rows, for each case.
SWEEP = """(cases) => {
  const form = document.querySelector(".calculator form");
  return cases.map((values) => {
    for (const [name, value] of Object.entries(values)) {
      form.elements[name].value = value;
    }
    const told = new Event("input", { bubbles: true });
    form.elements.model.dispatchEvent(told);
    const rows = document.querySelectorAll(".calculator .body tr");
    return [...rows].map((row) => [...row.cells].map((c) => c.textContent));
  });
}"""


def row(model, tokens, *, budget, batch=1, dtype="bf16", ranks=1):
    """What the first row has to say, by the package."""
    told = {"dtype": dtype, "ranks": ranks}
    total = kv_bytes(model, tokens, batch=batch, **told)
    found = [
        model.name,
        exact(growth(model, **told).later),
        f"{total:,}",
        size(total),
    ]
    if dtype not in ("bf16", "shipped") and isinstance(dtype, str):
        return found  # what fits takes long to find, and is found alike
    longest = longest_context(model, budget, batch=batch, **told)
    return [
        *found,
        "any length" if longest is None else f"{longest:,}",
        f"{largest_batch(model, tokens, budget, **told):,}",
    ]


@pytest.fixture
def visit(visit):
    return partial(visit, until="load")


# What a reader would do who empties the form and starts again.
AGAIN = """() => {
  const { elements } = document.querySelector(".calculator form");
  const fields = [...elements].filter(e => e.name);
  window.standard ??= fields.map(e => e.value);
  fields.forEach((e, i) => e.value = window.standard[i]);
  elements.batch.dispatchEvent(new Event("input", { bubbles: true }));
}"""


@pytest.fixture(scope="module")
def calculator_page(chromium, address):
    url = address + "numbers/calculator/"
    with opened(chromium, url, until="load") as page:
        yield page


@pytest.fixture
def page(calculator_page):
    """One page for all tests, in the state in which it was opened."""
    calculator_page.evaluate(AGAIN)
    yield calculator_page
    assert calculator_page.faults == []
    text = calculator_page.locator("article").inner_text()
    assert "NaN" not in text.replace(problems(calculator_page), "")


def test_it_computes_what_the_package_does(page):
    """Every model, six contexts, every format: digit by digit."""
    cases, expected = [], []
    for i, model in enumerate(models().values()):
        formats = [*DTYPES, *(["shipped"] if model.shipped else [])]
        for dtype in formats:
            for tokens in CONTEXTS:
                batch, ranks = 1 + (i + tokens) % 7, (1, 2, 3, 8)[i % 4]
                cases.append(
                    {
                        "model": model.id,
                        "tokens": tokens,
                        "batch": batch,
                        "dtype": dtype,
                        "ranks": ranks,
                        "weights": "none",
                        "budget": "22.5",
                    }
                )
                expected.append(
                    row(
                        model,
                        tokens,
                        budget=45 * GIB // 2,
                        batch=batch,
                        dtype=dtype,
                        ranks=ranks,
                    )
                )
    found = page.evaluate(SWEEP, cases)
    assert len(found) == len(cases) > 100 * 6 * 6
    for case, rows, want in zip(cases, found, expected, strict=True):
        assert rows[0][: len(want)] == want, case


def test_scales_count_as_in_the_package(page):
    cases, expected = [], []
    for scale in SCALES:
        bits, block = map(int, scale.split("/"))
        for name in ("llama-3.1-8b", "mimo-v2.5", "glm-5", "kimi-k3"):
            model = find_model(name)
            cases.append(
                {
                    "model": name,
                    "tokens": 5000,
                    "dtype": "int4",
                    "scale": scale,
                    "weights": "none",
                }
            )
            expected.append(
                row(
                    model,
                    5000,
                    budget=int(BUDGET) * GIB,
                    dtype=Storage(4, scale_bits=bits, block=block),
                )
            )
    found = page.evaluate(SWEEP, cases)
    assert [rows[0] for rows in found] == expected


def test_what_fits_into_little_is_what_the_package_says(page):
    cases, expected = [], []
    for name in ("mistral-7b", "gpt-oss-20b", "kimi-k3", "deepseek-v4-pro"):
        for thousandths in (1, 25, 125, 499, 501):
            cases.append(
                {
                    "model": name,
                    "tokens": 100,
                    "weights": "none",
                    "budget": f"0.{thousandths:03}",
                }
            )
            budget = thousandths * GIB // 1000
            expected.append(row(find_model(name), 100, budget=budget))
    found = page.evaluate(SWEEP, cases)
    assert [rows[0] for rows in found] == expected
    kinds = {line[4] for line in expected}
    assert {"0", "any length"} < kinds, "both ends are there"


def test_the_forms_of_a_shape_are_those_of_its_layers(page):
    names = ("llama-3.1-8b", "deepseek-v3", "mimo-v2.5", "gemma-4-31b")
    found = page.evaluate(
        SWEEP, [{"model": name, "tokens": 4096} for name in names]
    )
    for name, rows in zip(names, found, strict=True):
        shape = shape_of(find_model(name))
        heads = {
            "layers": shape["layers"],
            "q_heads": shape["heads"],
            "head_dim": shape["head_dim"],
            "v_head_dim": shape["v_head_dim"],
        }
        latent = Mla(
            layers=shape["layers"],
            q_heads=shape["heads"],
            kv_lora_rank=shape["kv_lora_rank"],
            qk_rope_head_dim=shape["qk_rope_head_dim"],
        )
        groups = [
            Full(**heads, kv_heads=shape["heads"]),
            Full(**heads, kv_heads=shape["kv_heads"]),
            latent,
            Full(**heads, kv_heads=1),
        ]
        assert [line[2] for line in rows[1:]] == [
            f"{group_bytes(group, 4096, DTYPES['bf16']):,}" for group in groups
        ]


def test_a_shape_is_that_of_the_layers_with_all_tokens():
    assert shape_of(find_model("gemma-4-31b")) == {
        "layers": 60,
        "heads": 32,
        "kv_heads": 4,
        "head_dim": 512,
        "v_head_dim": 512,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    }
    assert shape_of(find_model("minicpm3-4b"))["kv_lora_rank"] == 256
    assert shape_of(find_model("kimi-k3"))["layers"] == 24
    assert shape_of(find_model("deepseek-v4-flash"))["kv_heads"] == 1
    for model in models().values():
        shape = shape_of(model)
        assert shape["heads"] % shape["kv_heads"] == 0, model.id


@pytest.mark.parametrize("id", models())
def test_windows_take_less_than_their_row_and_states_more(id):
    """What the page says of a model and the row of its own variant."""
    model, tokens = find_model(id), 2**20
    shape = shape_of(model)
    if any(isinstance(group, Mla) for group in model.groups):
        widths = [shape["kv_lora_rank"], shape["qk_rope_head_dim"]]
    else:
        widths = [shape["head_dim"], shape["v_head_dim"]] * shape["kv_heads"]
    row = 2 * tokens * shape["layers"] * sum(widths)
    stores = [store for group in model.groups for store in group.stores]
    if any(s.window is not None or s.ratio > 1 for s in stores):
        assert kv_bytes(model, tokens) < row
    elif any(s.fixed or s.role == "index" for s in stores):
        assert kv_bytes(model, tokens) > row
    else:
        assert kv_bytes(model, tokens) == row


def fill(page, **values):
    for name, value in values.items():
        field = page.locator(f".calculator [name={name}]")
        if field.evaluate("e => e.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)


def said(page):
    return page.locator(".calculator .said").inner_text()


def problems(page):
    return page.locator(".calculator .problems").inner_text()


def test_it_starts_with_a_result(page):
    assert said(page) == (
        "Llama-3.1-8B: 16 GiB of cache for 1 × 131,072 tokens, and 14.96 GiB "
        "of weights. It fits into 80 GiB."
    )
    assert page.locator(".calculator .bar").count() == 5
    widths = page.eval_on_selector_all(
        ".bar .fill", "all => all.map(e => parseFloat(e.style.width))"
    )
    assert widths[0] == widths[2] == 20.0, "16 of 80 GiB"
    assert widths[1] == 80.0, "64 of 80 GiB"


def test_what_is_over_the_budget_is_said_and_seen(page):
    fill(page, batch="8", budget="100", weights="none")
    told = "128 GiB of cache for 8 × 131,072 tokens. It does not fit"
    assert told in said(page)
    over = page.eval_on_selector_all(
        ".bar .fill", "all => all.map(e => e.classList.contains('over'))"
    )
    assert over == [True, True, True, False, False]


def test_what_weights_leave_is_for_the_cache(page):
    """As the package has it, and what its makers' numbers leave open."""
    cases, expected = [], []
    known = [m for m in models().values() if m.params]
    for i, model in enumerate(known):
        ranks, weights = (1, 3, 8)[i % 3], [*DTYPES][i % 6]
        cases.append(
            {
                "model": model.id,
                "params": f"{model.params:,}",
                "tokens": 4096,
                "ranks": ranks,
                "weights": weights,
                "budget": "80",
            }
        )
        left = 80 * GIB - weight_bytes(model, weights, ranks=ranks)
        expected.append(row(model, 4096, budget=left, ranks=ranks))
    found = [rows[0] for rows in page.evaluate(SWEEP, cases)]
    assert found == expected
    assert {"0"} < {line[5] for line in found}, "some do not fit, some do"
    fill(page, model="kimi-k3", ranks="1")
    assert page.locator("[name=params]").input_value() == ""
    assert said(page).endswith(
        "no source gives its parameters: enter their number."
    )
    fill(page, params="700e9", weights="fp8")
    assert f"and {size(700 * 10**9)} of weights" in said(page)


def test_a_second_model_stands_below_the_first(page):
    fill(page, second="gemma-3-27b", tokens="4K")
    first, second = said(page).split("\n")
    assert first.startswith("Llama-3.1-8B: 512 MiB of cache")
    model = find_model("gemma-3-27b")
    assert second.startswith(f"Gemma 3 27B: {size(kv_bytes(model, 4096))} of")
    names = page.locator(".calculator .body th").all_inner_texts()
    assert names[:3] == ["Llama-3.1-8B", "Gemma 3 27B", "same shape, MHA"]
    fill(page, model="deepseek-v4-flash", dtype="shipped")
    assert "No source says how the kernels of each model" in problems(page)


def test_numbers_may_be_written_as_people_do(page):
    for text in ("131072", "131,072", "131_072", "128K", " 128K "):
        fill(page, tokens=text)
        assert "131,072 tokens" in said(page), text
    fill(page, tokens="1M")
    assert "1,048,576 tokens" in said(page)
    for text in ("1e6", "1 000 000", "1\u202f000\u00a0000", "1.0E+06"):
        fill(page, tokens=text)
        assert "1,000,000 tokens" in said(page), text


def test_a_changed_shape_is_a_shape_of_ones_own(page):
    fill(page, kv_heads="4")
    assert page.locator("[name=model]").input_value() == "own"
    assert "a shape of your own: 8 GiB of cache" in said(page)
    fill(page, model="gpt2")
    assert page.locator("[name=layers]").input_value() == "12"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokens": "0"}, "Tokens per sequence: “0” is not a whole number"),
        (
            {"tokens": "-5"},
            "“-5” is not a whole number from 1 to 1,000,000,000",
        ),
        ({"tokens": "1.55e1"}, "“1.55e1” is not a whole number"),
        ({"tokens": "1e10"}, "“1e10” is not a whole number"),
        ({"tokens": "9" * 30}, "is not a whole number"),
        ({"tokens": "1000M"}, "“1000M” is not a whole number"),
        ({"batch": "1.5"}, "Sequences: “1.5” is not a whole number"),
        ({"batch": ""}, "Sequences: “” is not a whole number"),
        ({"ranks": "NaN"}, "“NaN” is not a whole number"),
        ({"budget": "0"}, "“0” is not a number above 0"),
        ({"budget": "Infinity"}, "“Infinity” is not a number above 0"),
        ({"kv_heads": "5"}, "Key/value heads: must divide “Query heads”"),
        ({"tokens": "12,34"}, "“12,34” is not a whole number"),
        ({"dtype": "shipped"}, "No source says how"),
    ],
)
def test_what_cannot_be_is_refused_in_words(page, values, message):
    fill(page, **values)
    assert message in problems(page)
    assert page.locator(".calculator [aria-invalid]").count() == 1
    # What was shown stays, and says that it is old.
    assert page.locator(".calculator .body tr").count() == 5
    assert page.locator(".calculator .bar").count() == 5
    old = said(page).removeprefix("The last result, until this is corrected. ")
    assert old.startswith("Llama-3.1-8B: 16 GiB of") and old != said(page)


def test_what_was_refused_is_computed_once_it_is_corrected(page):
    fill(page, tokens="0", batch="1.5", kv_heads="5")
    assert page.locator(".calculator [aria-invalid]").count() == 3
    fill(page, model="gpt2", tokens="4K", batch="1")
    assert page.locator(".calculator [aria-invalid]").count() == 0
    assert not page.locator(".calculator .problems").is_visible()
    assert "144 MiB" in said(page)


def test_the_address_holds_what_was_entered(visit, address):
    page = visit(address + "numbers/calculator/")
    assert "?" not in page.url
    fill(page, model="deepseek-v4-flash", tokens="1M", batch="3", ranks="2")
    fill(page, dtype="shipped", budget="22.5")
    fill(page, second="deepseek-v4-pro", weights="int4", params="3e11")
    page.wait_for_url("**weights=int4&params=3e11**budget=22.5")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("button.link").click()
    page.wait_for_selector("button.link[aria-label=Copied]")
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    result = page.locator(".calculator .body").inner_text()
    again = visit(page.url)
    assert again.locator(".calculator .body").inner_text() == result
    assert said(again) == said(page)
    chinese = page.url.replace(address, f"{address}zh/")
    numbers = re.findall(r"[\d,.]+ [KMG]iB", result)
    there = visit(chinese).locator(".calculator .body").inner_text()
    assert re.findall(r"[\d,.]+ [KMG]iB", there) == numbers
    fill(page, layers="7", head_dim="96")
    page.wait_for_url("**layers=7**head_dim=96**")
    own = visit(page.url)
    assert own.locator("[name=model]").input_value() == "own"
    assert own.locator("[name=layers]").input_value() == "7"
    assert said(own) == said(page)


# Addresses, and a message for each of their wrong values.
HOSTILE = {
    "model=<img src=x onerror=alert(1)>&tokens=1e309&batch=NaN&dtype=fp3"
    "&scale=0/0&layers=3&budget=%00": (
        "“<img src=x onerror=alert(1)>” is not one of",
        "“1e309” is not a whole number",
        "“NaN” is not a whole number",
        "“fp3” is not one of",
        "“0/0” is not one of",
        "can only set this together with model=own",
        "is not a number above 0",
    ),
    "model=__proto__&tokens=$%26$%26&dtype=shipped&batch=-1": (
        "“__proto__” is not one of",
        "“$&$&” is not a whole number",
        "“-1” is not a whole number",
        "No source says how",
    ),
    "model=constructor&tokens=" + "9" * 400: (
        "“constructor” is not one of",
        "is not a whole number",
    ),
    "model=own&kv_heads=5": ("must divide",),
    "model=own&heads=0": ("“0” is not a whole number",),
}


def test_a_hostile_address_is_told_and_never_run(visit, address):
    page = visit("about:blank")
    for query, messages in HOSTILE.items():
        page.goto(f"{address}numbers/calculator/?{query}", wait_until="load")
        told = problems(page)
        assert [m for m in messages if m not in told] == []
        assert page.locator(".calculator .problems li").count() == len(messages)
        assert page.faults == []
        # Nothing could be computed yet.
        if "must divide" in told or "No source" in told:
            assert said(page) == "The results appear once this is corrected."
            assert page.locator(".calculator .body tr").count() == 0
        assert page.locator("article img").count() == 0
        text = page.locator("article").inner_text().replace(told, "")
        for wrong in ("NaN", "undefined", "Infinity", "[object"):
            assert wrong not in text, wrong


def test_what_others_add_to_an_address_is_left_alone(visit, address):
    query = "utm_source=x&toString=1&__proto__=2&javascript:alert(1)=3"
    page = visit(f"{address}numbers/calculator/?{query}&tokens=4k")
    assert not page.locator(".calculator .problems").is_visible()
    assert "512 MiB of cache for 1 × 4,096 tokens" in said(page)
    assert page.faults == []


def test_a_wrong_value_never_reaches_the_address(visit, address):
    page = visit("about:blank")
    page.clock.install()  # time passes when it is told to
    page.goto(address + "numbers/calculator/", wait_until="load")
    for text in ("4096", "4096x"):
        fill(page, tokens=text)
        page.clock.run_for(60_000)
        assert page.evaluate("location.search") == "?tokens=4096"


def test_a_wrong_value_leaves_the_rest_of_the_address_in_force(visit, address):
    page = visit(f"{address}numbers/calculator/?model=gpt2&tokens=x&batch=2")
    assert "“x” is not a whole number" in problems(page)
    assert said(page).startswith("GPT-2 small: 9 GiB of cache for 2 × 131,072")


def test_it_is_used_with_the_keyboard_and_told_to_all(page):
    page.locator("[name=model]").focus()
    names = []
    for _ in range(17):
        names.append(page.evaluate("document.activeElement.name"))
        page.keyboard.press("Tab")
    assert names == [
        *("model", "second", "tokens", "batch", "dtype", "scale"),
        *("weights", "params", "budget", "ranks"),
        *calculator.SHAPE,
    ]
    page.locator("[name=tokens]").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("4K")
    assert "4,096 tokens" in said(page)
    page.keyboard.press("Enter")
    assert "4,096 tokens" in said(page), "the form is never sent"
    for field in page.locator(".calculator :is(input, select)").all():
        assert field.evaluate("e => e.labels[0].innerText.trim()")
    live = page.locator(".calculator .said")
    assert live.get_attribute("aria-live") == "polite"
    assert page.locator(".problems").get_attribute("role") == "alert"


def test_without_javascript_a_table_stands_there(visit, address):
    page = visit(address + "numbers/calculator/", java_script_enabled=False)
    text = page.locator("article").inner_text()
    assert "the calculator needs JavaScript" in text
    assert page.locator(".calculator .body tr:visible").count() == 5
    assert not page.locator(".calculator :is(form, button)").first.is_visible()


@pytest.mark.parametrize(
    "path",
    sampled(
        ["numbers/calculator/", "zh/numbers/calculator/"],
        ["zh/numbers/calculator/"],
    ),
)
def test_nothing_moves_when_the_script_starts(visit, address, path):
    parts = (".said", ".bars", ".body")
    without = visit(address + path, java_script_enabled=False)
    page = visit(address + path)
    for part in parts:
        there = without.locator(f".calculator {part}").text_content()
        assert there == page.locator(f".calculator {part}").text_content()
    widths = "all => all.map(e => parseFloat(e.style.width))"
    assert without.eval_on_selector_all(".bar .fill", widths) == pytest.approx(
        page.eval_on_selector_all(".bar .fill", widths), abs=0.1
    )


# --- the table of models -------------------------------------------------


def look_at_the_table(page):
    """It is laid out a frame after it comes near."""
    page.locator(".models .scroll").scroll_into_view_if_needed()
    first = page.locator(".models tbody th").first
    for _ in range(100):
        if first.inner_text():
            return
        page.wait_for_timeout(50)


def shown(page):
    return page.locator(".models tbody tr:visible th").all_inner_texts()


def test_the_table_holds_every_model_and_its_bytes(visit, address):
    page = visit(address + "numbers/memory/", java_script_enabled=False)
    look_at_the_table(page)
    rows = page.locator(".models tbody tr").all()
    assert len(rows) == len(models())
    for line, model in zip(rows, models().values(), strict=True):
        cells = line.locator("th, td").all_inner_texts()
        added = growth(model)
        assert cells[0] == model.name
        assert cells[1] == exact(added.first)
        assert cells[2] == exact(added.later)
        assert cells[-4] == f"{model.max_context:,}"
        assert cells[-2] == model.confidence
        latent = [g for g in model.groups if isinstance(g, Mla)]
        unrotated = any(not group.rotated for group in latent)
        assert ("512 + 64, NoPE" in cells[8]) is unrotated
        if model.params:
            count = float(cells[-3].removesuffix("B").replace(",", "")) * 1e9
            assert count == pytest.approx(model.params, rel=1e-3)
        totals = {2**n: size(kv_bytes(model, 2**n)) for n in (12, 15, 17, 20)}
        assert cells[4:8] == [*totals.values()]
        assert line.locator(".beyond").all_inner_texts() == [
            total for n, total in totals.items() if n > model.max_context
        ]
        links = line.locator("a").all()
        told = {model.context, model.params_in} - {*model.sources}
        beside = [
            s.url for s in (model.context, model.params_in) if s and s in told
        ]
        place = f"../../models/released/{model.id}/#sources"
        shape = (
            [place]
            if model.id in released()
            else [source.url for source in model.sources]
        )
        assert [a.get_attribute("href") for a in links] == beside + shape
    assert not page.locator(".models .controls").is_visible()


def test_the_table_is_filtered_by_family_and_by_attention(visit, address):
    page = visit(address + "numbers/memory/")
    look_at_the_table(page)
    page.locator(".models [name=family]").select_option("Gemma")
    gemma = [m.name for m in models().values() if m.family == "Gemma"]
    assert shown(page) == gemma
    found = page.locator(".models output")
    assert found.inner_text() == f"{len(gemma)} of {len(models())} models"
    page.locator(".models [name=family]").select_option("")
    page.locator(".models [name=kinds]").select_option("MLA")
    latent = [m.name for m in models().values() if "MLA" in kinds_of(m)]
    assert shown(page) == latent
    page.locator(".models [name=family]").select_option("Kimi")
    assert shown(page) == [
        m.name
        for m in models().values()
        if "MLA" in kinds_of(m) and m.family == "Kimi"
    ]


def test_the_table_is_sorted_by_a_click_or_a_key(visit, address):
    page = visit(address + "zh/numbers/memory/")
    buttons = page.locator(".models thead button")
    by_bytes = sorted(
        models().values(), key=lambda m: kv_bytes(m, 2**20), reverse=True
    )
    buttons.nth(7).click()
    head = page.locator(".models thead th").nth(7)
    assert head.get_attribute("aria-sort") == "descending"
    listed = [find_model(i) for i in map(id_of, shown(page))]
    totals, wanted = (
        [size(kv_bytes(model, 2**20)) for model in these]
        for these in (listed, by_bytes)
    )
    assert totals == wanted
    buttons.nth(7).focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert shown(page)[-1] == by_bytes[0].name
    buttons.nth(0).click()
    assert head.get_attribute("aria-sort") is None
    names = [name.lower() for name in shown(page)]
    assert names[0].startswith("aya") and names[-1].startswith("yi")
    gemma = [n for n in shown(page) if n.startswith("Gemma 3")]
    assert gemma == [f"Gemma 3 {n}B" for n in (1, 4, 12, 27)]


def id_of(name):
    (found,) = (m.id for m in models().values() if m.name == name)
    return found


def test_the_data_of_the_calculator_is_that_of_the_package():
    known = calculator.data()["models"]
    assert [*known] == [*models()]
    for model in models().values():
        stores = [[*s] for s in known[model.id]["stores"]]
        wanted = [[g.layers, *s] for g in model.groups for s in g.stores]
        assert stores == wanted
        if model.shipped:
            kept = asdict(model.shipped)
            kept.pop("sources")
            assert known[model.id]["shipped"] == kept
