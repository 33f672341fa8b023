"""The calculator and the table of models, as a reader uses them."""

import random
import re
from functools import partial

import pytest

from attnref.commands.kv import count_of
from attnref.numbers.kv_memory import (
    DTYPES,
    Storage,
    growth,
    kv_bytes,
    largest_batch,
    longest_context,
    size,
    weight_bytes,
)
from attnref.numbers.shapes import Mla
from attnref.numbers.weights import device_bytes
from attnref.released.record import read_config
from attnref.released.specs import configs, find_model, models
from attnref.released.stored import stored_shares
from sitekit.drawn import calculator
from sitekit.drawn.calculator import SCALES, bytes_of, shape_of
from sitekit.markdown.tables import exact
from tests.kit import sampled
from tests.kit.site import opened

GIB = 2**30
KNOWN = calculator.data()
# Of the texts, what is told apart.
WORDS = {n: n for n in ("own", "endless", "mha", "gqa", "mla", "mqa")}
WORDS |= {"said": "{}: {} {} {}{} {}", "said_over": "{}: {} {} {}{} {} over"}
WORDS |= {"beside": " {}", "above": " above {}"}
WORDS |= {"said_unknown": "{}: {} {} {}{} {} unknown"}


def entered(**changed):
    usual = {**calculator.USE, "dtype": "bf16", "scale": "none"}
    usual |= {"weights": "none", "params": 0, "budget": 80 * GIB}
    return calculator.Entered(**usual | changed)


def calculated(id, second=None, **changed):
    """What the page shows of a model, by the Python that its script is of."""
    shape = shape_of(find_model(id))
    answers = KNOWN[id], KNOWN.get(second)
    return calculator.calculated(entered(**changed), shape, *answers, WORDS)


# What the script computes of cases, without the form.
COMPUTED = """([cases, known, words]) => {
  const { $, calculated, Entered } = python;
  return cases.map(([values, shape, ...ids]) => $.plain(calculated(
    $.call(Entered, $.from(values)), $.from(shape),
    ...ids.map((id) => id && $.from(known[id])), $.from(words))));
}"""


def test_the_script_computes_what_its_python_does(page):
    """Of every model: all kinds of layers, formats, scales and what fits."""
    chance, cases, results = random.Random(7), [], []
    for id in [*KNOWN] * 2:
        formats = [*DTYPES, *(["shipped"] if "shipped" in KNOWN[id] else [])]
        dtype, second = chance.choice(formats), chance.choice([None, *KNOWN])
        if dtype == "shipped":
            second = None
        options = {
            "tokens": chance.choice((1, 127, 4096, 1_048_577, 999_999_937)),
            "batch": chance.choice((1, 7, 10**6)),
            "ranks": chance.choice((1, 2, 3, 8, 10**4)),
            "dtype": dtype,
            "scale": chance.choice(("none", *SCALES)),
            "weights": chance.choice(("none", *DTYPES, *calculator.SERVED)),
            "params": chance.choice((0, KNOWN[id].get("params", 10**14))),
            "budget": chance.choice((1, GIB // 40, 45 * GIB // 2, 10**16)),
        }
        if dtype == "shipped":
            options["scale"] = "none"
        shape = shape_of(find_model(id))
        cases.append([[*entered(**options)], shape, id, second])
        results.append(calculated(id, second, **options))
    assert page.evaluate(COMPUTED, [cases, KNOWN, WORDS]) == results
    cells = {cell for case in results for row in case["rows"] for cell in row}
    assert {"0", "endless"} < cells, "both ends are there"


# As people write numbers, and as none is written.
WRITTEN = "0 1 080 131,072 131_072 128k 3M 1e6 1.5E+05 1.55e1 22.5 0.001 .5 1."
WRITTEN += " 12,34 1,234,567 1,,2 -5 1e3K 0e9 0.0 1e-2 <b> NaN Infinity 7.1234"
TEXTS = [*WRITTEN.split(), "", " 4K ", "1 000", "1\u202f000\u00a0000", "9" * 30]


def test_the_script_reads_what_its_python_does(page):
    read = "t => t.map(x => [count_of(x), bytes_of(x)].map(String))"
    both = (
        f"t => {{ const {{ count_of, bytes_of }} = python; return ({read})(t)}}"
    )
    assert page.evaluate(both, TEXTS) == [
        [f"{count_of(text)}", f"{bytes_of(text)}"] for text in TEXTS
    ]
    sizes = ("80", 80 * GIB), ("22.5", 45 * GIB // 2), (" 0.001 ", GIB // 1000)
    assert [bytes_of(text) for text, _ in sizes] == [n for _, n in sizes]
    counts = {text: count_of(text) for text in TEXTS}
    assert counts["128k"] == 131_072 and counts["1.5E+05"] == 150_000
    assert [*counts.values()].count(0) == 19


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


def test_a_row_is_what_the_package_says():
    """Of each model, as the script knows it, in a format of each kind."""
    for id, model in models().items():
        scaled = Storage(4, scale_bits=16, block=32)
        formats = {"fp8": "fp8", "int4": scaled}
        if model.shipped:
            formats["shipped"] = "shipped"
        for dtype, storage in formats.items():
            scale = "16/32" if dtype == "int4" else "none"
            weights = weight_bytes(model, "fp8") if model.params else 0
            result = calculated(
                id,
                batch=3,
                tokens=5000,
                dtype=dtype,
                scale=scale,
                weights="fp8",
                params=model.params or 0,
            )
            budget_left, options = 80 * GIB - weights, {"dtype": storage}
            total = kv_bytes(model, 5000, batch=3, **options)
            longest = longest_context(model, budget_left, batch=3, **options)
            largest = largest_batch(model, 5000, budget_left, **options)
            fits = "endless" if longest is None else f"{longest:,}"
            if not weights:
                fits = "–"
            assert result["rows"][0] == [
                model.name,
                exact(growth(model, **options).later),
                f"{total:,}",
                size(total),
                fits,
                f"{largest:,}" if weights else "–",
            ]
            excess = weights + total > 80 * GIB
            end = " over" if excess else "" if weights else " unknown"
            if weights and (longest is None or longest > model.max_context):
                end += f" above {model.max_context:,}"
            assert result["said"][0].endswith(f"80 GiB{end}")


def test_weights_in_a_format_of_files_are_those_of_all_matrices():
    """Llama 3.1 8B with four bits in groups, on one device and on 16."""
    config = {**configs()["llama-3.1-8b"], "torch_dtype": "bfloat16"}
    config["quantization_config"] = calculator.QUANTISED["int4 g128"]
    shares = stored_shares(read_config(config))
    params = find_model("llama-3.1-8b").params
    for ranks in (1, 16):
        options = {"weights": "int4 g128", "ranks": ranks}
        exact = calculated("llama-3.1-8b", **options, params=params)
        assert size(device_bytes(shares, ranks)) in exact["said"][0]
        changed = calculated("llama-3.1-8b", **options, params=params - 1)
        even = params - 1, Storage(4, 20, 128)
        total = even[1].bits_for(even[0])
        assert size(-(-total // (8 * ranks))) in changed["said"][0]


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


def test_windows_take_less_than_their_row_and_states_more():
    """What the page says of a model and the row of its own variant."""
    tokens = 2**20
    for id, model in models().items():
        shape = shape_of(model)
        widths = [shape["head_dim"], shape["v_head_dim"]] * shape["kv_heads"]
        if any(isinstance(group, Mla) for group in model.groups):
            widths = [shape["kv_lora_rank"], shape["qk_rope_head_dim"]]
        row = 2 * tokens * shape["layers"] * sum(widths)
        taken = kv_bytes(model, tokens)
        stores = [store for group in model.groups for store in group.stores]
        if any(s.window is not None or s.ratio > 1 for s in stores):
            assert taken < row, id
        elif any(s.fixed or s.role == "index" for s in stores):
            assert taken > row, id
        else:
            assert taken == row, id


def fill(page, **values):
    for name, value in values.items():
        field = page.locator(f".calculator [name={name}]")
        if field.evaluate("e => e.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)


def read(page):
    return page.locator(".calculator .said").inner_text()


def problems(page):
    return page.locator(".calculator .problems").inner_text()


def test_it_starts_with_a_result(page):
    assert read(page) == (
        "Llama-3.1-8B: 16 GiB of cache for 1 × 131,072 tokens, and 14.96 GiB "
        "of weights. It fits into 80 GiB. The model itself reads at most "
        "131,072 tokens."
    )
    assert page.locator(".calculator .bar").count() == 5
    widths = page.eval_on_selector_all(
        ".bar .fill", "all => all.map(e => parseFloat(e.style.width))"
    )
    assert widths[0] == widths[2] == 20.0, "16 of 80 GiB"
    assert widths[1] == 80.0, "64 of 80 GiB"


def test_what_is_over_the_budget_is_written_and_seen(page):
    fill(page, batch="8", budget="100", weights="none")
    message = "128 GiB of cache for 8 × 131,072 tokens. It does not fit"
    assert message in read(page)
    over = page.eval_on_selector_all(
        ".bar .fill", "all => all.map(e => e.classList.contains('over'))"
    )
    assert over == [True, True, True, False, False]


def test_weights_are_of_parameters_that_are_known_or_entered(page):
    fill(page, model="command-a", ranks="1")
    assert page.locator("[name=params]").input_value() == ""
    assert read(page).endswith(
        "no source gives its parameters: enter their number."
    )
    facts = page.locator(".calculator .facts dd").all_inner_texts()
    assert facts[2:] == ["–", "–"], "nobody knows what is left"
    fill(page, params="700e9", weights="fp8")
    assert f"and {size(700 * 10**9)} of weights" in read(page)


def test_a_second_model_stands_below_the_first(page):
    fill(page, second="gemma-3-27b", tokens="4K")
    first, second = read(page).split("\n")
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
        assert "131,072 tokens" in read(page), text
    fill(page, tokens="1M")
    assert "1,048,576 tokens" in read(page)
    for text in ("1e6", "1 000 000", "1\u202f000\u00a0000", "1.0E+06"):
        fill(page, tokens=text)
        assert "1,000,000 tokens" in read(page), text


def test_a_changed_shape_is_a_shape_of_ones_own(page):
    fill(page, kv_heads="4")
    assert page.locator("[name=model]").input_value() == "own"
    own, before = read(page).split("\n")
    assert own.startswith("your own shape: 8 GiB of cache")
    assert before.startswith("Llama-3.1-8B: 16 GiB of cache")
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
    old = read(page).removeprefix("The last result, until this is corrected. ")
    assert old.startswith("Llama-3.1-8B: 16 GiB of") and old != read(page)


def test_what_was_refused_is_computed_once_it_is_corrected(page):
    fill(page, tokens="0", batch="1.5", kv_heads="5")
    assert page.locator(".calculator [aria-invalid]").count() == 3
    fill(page, model="gpt2", tokens="4K", batch="1")
    assert page.locator(".calculator [aria-invalid]").count() == 0
    assert not page.locator(".calculator .problems").is_visible()
    assert "144 MiB" in read(page)


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
    assert read(again) == read(page)
    chinese = page.url.replace(address, f"{address}zh/")
    numbers = re.findall(r"[\d,.]+ [KMG]iB", result)
    there = visit(chinese).locator(".calculator .body").inner_text()
    assert re.findall(r"[\d,.]+ [KMG]iB", there) == numbers
    fill(page, layers="7", head_dim="96")
    page.wait_for_url("**layers=7**head_dim=96**")
    own = visit(page.url)
    assert own.locator("[name=model]").input_value() == "own"
    assert own.locator("[name=layers]").input_value() == "7"
    assert read(own) == read(page)


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


def test_a_hostile_address_is_refused_and_never_run(visit, address):
    page = visit("about:blank")
    for query, messages in HOSTILE.items():
        page.goto(f"{address}numbers/calculator/?{query}", wait_until="load")
        fault = problems(page)
        assert [m for m in messages if m not in fault] == []
        assert page.locator(".calculator .problems li").count() == len(messages)
        assert page.faults == []
        # Nothing could be computed yet.
        if "must divide" in fault or "No source" in fault:
            assert read(page) == "The results appear once this is corrected."
            assert page.locator(".calculator .body tr").count() == 0
        assert page.locator("article img").count() == 0
        text = page.locator("article").inner_text().replace(fault, "")
        for wrong in ("NaN", "undefined", "Infinity", "[object"):
            assert wrong not in text, wrong


def test_what_others_add_to_an_address_is_left_alone(visit, address):
    query = "utm_source=x&toString=1&__proto__=2&javascript:alert(1)=3"
    page = visit(f"{address}numbers/calculator/?{query}&tokens=4k")
    assert not page.locator(".calculator .problems").is_visible()
    assert "512 MiB of cache for 1 × 4,096 tokens" in read(page)
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
    assert read(page).startswith("GPT-2 small: 9 GiB of cache for 2 × 131,072")


def test_it_is_used_with_the_keyboard_and_announced(page):
    page.locator("[name=model]").focus()
    names = []
    for _ in range(19):  # with the slider and the link, which have no name
        names.append(page.evaluate("document.activeElement.name"))
        page.keyboard.press("Tab")
    assert [name for name in names if name] == [
        *("model", "tokens", "batch", "dtype", "scale"),
        *("weights", "params", "budget", "ranks", "second"),
        *calculator.SHAPE,
    ]
    page.locator("[name=tokens]").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("4K")
    assert "4,096 tokens" in read(page)
    page.keyboard.press("Enter")
    assert "4,096 tokens" in read(page), "the form is never sent"
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
    fields = page.locator(".calculator :is(input, select, button):visible")
    assert fields.count() == 0


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
