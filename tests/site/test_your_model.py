"""Your model: the page's script against the Python that it is made of."""

import gzip
import json
import random
import re
from contextlib import suppress
from functools import partial

import pytest
from playwright.sync_api import expect
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attnref.numbers.kv_memory import kv_bytes, size
from attnref.released.devices import devices
from attnref.released.generate import file_of
from attnref.released.specs import configs
from attnref.words import speaking
from sitekit import CONFIGS
from sitekit.drawn import your_model
from sitekit.released import released as models
from sitekit.released import told
from sitekit.released.told import answer, counted, memory
from tests.kit import budget, sampled
from tests.kit.families import FAMILIES, SIZED, config_of, spoiled
from tests.kit.site import FAILS, a_reader, opened, page_of

WORDS = {
    "weighs": "{} {}",
    "uncounted": "unknown",
    "fits": "{} {} {}",
    "none": "{1} {2}",
    "step": "{}",
    "state": "{}",
}
USES = (
    your_model.use(),
    your_model.use(device="h20", ranks=8, weights="fp8", tokens=131_072),
    your_model.use(device="l4", cache="int4", tokens=1),
    your_model.use(ranks=8, weights="config"),
)

SIZES = {name: device.mib for name, device in devices().items()}
FAULTS = [
    *('"a\\q"', '"\\u12"', "NaN", "01", "1.", "-", '"\\ud800"', "1e400"),
    *("9" * 30, "tru", '"x', "\x01", "\n", "{", "]", ",", ":", "\t", ""),
]

# What the script makes of texts: an answer each, the lines of code of what
# differs, and the memory of each use.
TRIED = """([texts, uses, words, sizes]) => {
  const { $, $b, answer, weighed } = python;
  const { card, lines_of, memory, read, Use } = python;
  const tried = (make) => {
    try {
      return $.plain(make());
    } catch (error) {
      if (error instanceof $b.ValueError) return error.text;
      throw error;
    }
  };
  const used = uses.map(([mib, speed, ranks, weights, cache, tokens]) => $.call(
    Use, [BigInt(mib), speed, BigInt(ranks), weights, cache, BigInt(tokens)]));
  const told = (text, language) =>
    answer(text, $.from(words[language]), language);
  return texts.map(([text, language]) => [
    tried(() => told(text, language)),
    tried(() => {
      const { differs } = $.plain(told(text, language));
      return differs.map(([part]) => lines_of(part, read(text)[1]));
    }),
    ...used.map((use) => tried(
      () => memory(...weighed(text), use, $.from(words.page)))),
    tried(() => {
      const [model, stored] = weighed(text);
      const ranks = [1n, 8n, 32n];
      return card(model, [4096n, 512n], $.from(sizes), ranks, stored);
    }),
  ]);
}"""


def tried(make):
    """As JSON has it, or why it was refused."""
    try:
        return json.loads(json.dumps(make()))
    except ValueError as error:
        return str(error)


def expected(text, language):
    return [
        tried(partial(answer, text, models.words(), language)),
        tried(partial(lines, text)),
        *(tried(partial(memory_of, text, use)) for use in USES),
        tried(lambda: card_of(text)),
    ]


def lines(text):
    found = answer(text, models.words(), "en")
    records = told.read(text)[1]
    return [told.lines_of(part, records) for part, _ in found["differs"]]


def memory_of(text, use):
    return memory(*told.weighed(text), use, WORDS)


def card_of(text):
    model, stored = told.weighed(text)
    return told.card(model, [4096, 512], SIZES, (1, 8, 32), stored)


def test_memory_by_hand():
    """Of Qwen3-8B on two H20: 36 layers of 8 key/value heads of 128."""
    use = your_model.use(device="h20", ranks=2, weights="fp8", tokens=32_768)
    params = 8_190_735_360
    each, own = 2 * 36 * 8 * 128 * 2 * 32_768 // 2, params // 2
    most = (97_871 * 2**20 * 9 // 10 - own) // each
    assert memory_of(your_model.text(), use)["said"] == [
        f"{params:,} {own / 2**30:.4g} GiB",
        f"{most} 32,768 {each / 2**30} GiB",
        f"{1e3 * (own + most * each) / 4e12:.3g}",
    ]


def broken(text, chance):
    """A text with a fault in its JSON, or none that matters."""
    at, change = chance.randrange(len(text)), chance.choice(FAULTS)
    return text[:at] + change + text[at + chance.randrange(3) :]


@pytest.fixture(scope="module")
def page(chromium, address):
    url = address + "models/your-model/"
    with opened(chromium, url, until="load") as page:
        touched(page)
        yield page
    assert page.faults == []


@pytest.fixture(scope="module")
def chinese_page(chromium, address):
    url = address + "zh/models/your-model/"
    with opened(chromium, url, until="load") as page:
        touched(page)
        yield page
    assert page.faults == []


def touched(page):
    """The scripts come once a reader touches the form."""
    ours = {"predicate": lambda w: "reader.js" in w.url, "timeout": FAILS}
    with page.expect_worker(**ours):
        page.focus("textarea")
    page.wait_for_function("typeof configs !== 'undefined'")


def reader(page):
    return next(w for w in page.workers if "reader.js" in w.url)


def agree(page, texts):
    """The script says of each text what Python says; how many are refused."""
    words = {language: models.words() for language in CONFIGS}
    words |= {"page": WORDS}
    given = [texts, [list(use) for use in USES], words, SIZES]
    answers, refused = reader(page).evaluate(TRIED, given), 0
    for (text, language), got in zip(texts, answers, strict=True):
        wanted = expected(text, language)
        assert got == wanted, text
        refused += isinstance(wanted[0], str)
    unspoiled = "({}).a === undefined"  # of {"__proto__": ...}
    assert reader(page).evaluate(unspoiled)
    return refused


def test_script_and_python_agree_on_released_models(page):
    texts = [your_model.written(m.config) for m in models.released().values()]
    both = [(text, [*CONFIGS][n % 2]) for n, text in enumerate(texts)]
    assert agree(page, both) == 0


@pytest.mark.parametrize("family", sampled(FAMILIES, ["gemma3n_text", "bloom"]))
def test_they_agree_on_every_family(page, family):
    text = json.dumps(config_of(family).to_dict())
    assert agree(page, [(text, "en")]) == 0


def test_they_agree_on_families_of_which_sizes_are_known(page):
    texts = [json.dumps(config_of(family).to_dict()) for family in SIZED]
    assert agree(page, [(text, "en") for text in texts]) == len(SIZED)


@pytest.mark.parametrize(
    "seed",
    [0, *(pytest.param(n, marks=pytest.mark.audit) for n in (1, 2))],
)
def test_they_agree_on_hostile_configs_and_on_broken_files(page, seed):
    chance = random.Random(seed)
    some = FAMILIES if seed else FAMILIES[::8]
    texts = [json.dumps(spoiled(family, chance)) for family in some]
    whole = [your_model.written(m.config) for m in models.released().values()]
    texts += [
        broken(chance.choice(whole), chance) for _ in range(5 * len(some))
    ]
    refused = agree(page, [(text, "en") for text in texts])
    assert len(texts) / 4 < refused < len(texts)


def test_a_reader_chooses_pastes_and_shares(page, chromium, tmp_path):
    family = page.locator(".yours.strip code")
    page.select_option("[name=model]", "gemma-2-27b")
    expect(family).to_have_text("gemma2")
    config = models.released()["gemma-2-27b"].config
    link = page.locator(".whole a.download").get_attribute("href")
    code = page.evaluate("async (l) => (await fetch(l)).text()", link)
    assert code == file_of(config)
    size = f"{code.count(chr(10))} lines, needs only PyTorch"
    assert page.locator(".whole .size").inner_text() == size

    # A field is changed by hand: the heads follow, and so does the address.
    text = json.dumps(config | {"num_key_value_heads": 4})
    page.fill("textarea", text)
    row = page.locator(".yours.layers tbody tr").first
    expect(row.locator("td").nth(1)).to_have_text("32 / 4 / 128")
    page.fill("[name=tokens]", "0")
    page.select_option("[name=device]", "h20")
    facts = page.locator(".card .facts").inner_text()
    assert "4,096 tokens" in facts
    sentences = page.locator(".yours.memory ul").inner_text()
    with opened(chromium, page.url, until="load") as again:
        lines = again.locator(".yours.memory ul")
        expect(lines).to_have_text(sentences, use_inner_text=True)
        shown = again.locator(".card .facts")
        expect(shown).to_have_text(facts, use_inner_text=True)
        again_row = again.locator(".yours.layers tbody tr").first
        assert again_row.inner_text() == row.inner_text()

    # What is not known is refused; a file brings the result back.
    page.fill("textarea", text.replace("gemma2", "gemma9"))
    problem = page.locator(".yours.entry .problems")
    expect(problem).to_contain_text("model_type='gemma9' is none of")
    file = tmp_path / "config.json"
    file.write_text(text)
    page.set_input_files("[name=file]", file)
    expect(problem).to_be_hidden()
    lines = page.locator(".yours.memory ul")
    expect(lines).to_have_text(sentences, use_inner_text=True)
    assert page.locator(".card .facts").inner_text() == facts


FIRST = your_model.text()


def changed(**fields):
    config = models.released()[your_model.FIRST].config
    return your_model.written(config | fields)


def without(name):
    config = models.released()[your_model.FIRST].config
    return your_model.written({n: x for n, x in config.items() if n != name})


def typed(model_type, **fields):
    """The config that transformers writes by itself, with other fields."""
    config = CONFIG_MAPPING[model_type]().to_dict() | fields
    return json.dumps(config | {"model_type": model_type})


# As typed or pasted, and what the page says in English.
REFUSED = {
    "[1,2]": "is one object",
    "null": "is one object",
    "123": "is one object",
    '"x"': "is one object",
    "true": "is one object",
    "": "Nothing is entered",
    "https://huggingface.co/Qwen/Qwen3-8B": "This is an address",
    "Qwen/Qwen3-8B": "This is an address",
    "<!doctype html><title>Qwen3</title>": "a web page",
    "{'model_type': 'qwen3'}": "double quotes: see line 1, column 2",
    '{"model_type": "qwen3",\n}': "comma after the last field",
    '{"model_type": ': "not JSON: see line 1, column 16",
    "[" * 2000 + "]" * 2000: "too long",
    "{}": "no model_type",
    '{"text_config": {"text_config": {"model_type": "qwen3"}}}': (
        "the config has no model_type"  # nested once, as in files of models
    ),
    '{"model_type": "rwkv"}': "'rwkv' is none of",
    changed(head_dim=1e300): "head_dim=1e+300 is not a positive",
    changed(head_dim=-1): "head_dim=-1 is not a positive",
    changed(partial_rotary_factor=-1): "rotates -128",
    changed(hidden_size="4096"): "hidden_size='4096' is not a positive",
    changed(num_attention_heads=0): "num_attention_heads=0 is not a positive",
    changed(num_attention_heads=7): "does not divide n_heads=7",
    changed(num_hidden_layers=10**6): "layers are more than",
    changed(layer_types="full"): "qwen3: ",
    changed(rope_scaling={"type": "foo"}): "RoPE of kind 'foo' is not known",
    changed(rope_scaling={"rope_type": "linear", "new": 2}): "unknown field",
    changed(attn_logit_softcapping=50.0): "does not read attn_logit_softcap",
    changed(is_causal=False): "each token sees all others",
    changed(use_rope=False): "does not read use_rope=False",
    changed(foo_attention=True): "may change attention",
    changed(architectures=["EagleQwen3"]): "a draft model",
    without("num_hidden_layers"): "is not a positive number",
    typed("mamba", foo_attention=True): "may change attention",
    typed("dory"): "'dory' is none of",
    typed("rwkv"): "'rwkv' is none of",
}
# Of these, all that the page shows of a model.
BOXES = {
    "code": [
        ".yours.strip svg",
        ".yours.layers table",
        ".yours.differs ul",
        ".whole .ways",
        ".whole + .highlight",
    ],
    "memory": [".card .facts", ".yours.memory ul"],
}
ENGLISH = re.compile(r"\b[A-Za-z]{2,}(?:,? [A-Za-z]{2,}){2,}")


def sizes_of(text):
    """Where they are known, the memory of a model."""
    with suppress(ValueError, TypeError, OSError):
        return memory_of(text, your_model.use())


@pytest.mark.parametrize("language", CONFIGS)
@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_of_what_is_refused_the_page_shows_what_is_known(
    request, language, text
):
    """In its language; and nothing of the model that was there before."""
    fixture = {"en": "page", "zh": "chinese_page"}[language]
    page = request.getfixturevalue(fixture)
    field = page.locator("textarea")
    problem = page.locator(".yours.entry .problems")
    field.fill(FIRST)
    expect(page.locator(".yours.strip code")).to_have_text("qwen3")
    expect(problem).to_be_hidden()
    field.fill("")
    page.keyboard.insert_text(text)
    if language == "en":
        expect(problem).to_contain_text(REFUSED[text])
    else:
        expect(problem).to_contain_text(re.compile("[\u4e00-\u9fff]{2}"))
        article = page.locator("article > .yours:visible, .partly:visible")
        for said in article.all_inner_texts():
            assert not ENGLISH.search(said), said
    sizes = sizes_of(text)
    known = sizes is not None
    for part, boxes in BOXES.items():
        for box in boxes:
            assert page.locator(box).is_visible() == (
                known and part == "memory"
            ), box
    assert page.locator(".partly").is_visible() == known
    if known:
        rows = page.locator(".yours.memory tbody tr")
        cells = rows.locator("td").all_inner_texts()
        assert cells == [c for row in sizes["rows"] for c in row[1:]]
    assert field.get_attribute("aria-invalid") == "true"
    assert field.get_attribute("aria-describedby") == problem.get_attribute(
        "id"
    )
    field.fill(FIRST)
    expect(problem).to_be_hidden()
    assert field.get_attribute("aria-invalid") is None
    for box in BOXES["code"] + BOXES["memory"]:
        expect(page.locator(box)).to_be_visible()


def test_script_and_python_agree_on_what_is_refused(chinese_page):
    """In Chinese. What is no object has the words of the page."""
    texts = [t for t, message in REFUSED.items() if "one object" not in message]
    with speaking("zh"):
        assert agree(chinese_page, [(t, "zh") for t in texts]) == len(texts)


def test_a_state_is_no_cache(page):
    """A model without keys and values has one size at any length."""
    page.fill("textarea", typed("mamba"))
    facts = page.locator(".card .facts")
    model = counted(typed("mamba"))
    bytes_of_state = kv_bytes(model, 1)
    state = size(bytes_of_state)
    for name, value in ("ranks", "1"), ("device", "h20"), ("weights", "bf16"):
        page.select_option(f".card [name={name}]", value)
    room = SIZES["h20"] * 2**20 * 9 // 10 - 2 * model.params
    wanted = (
        f"{state}\nstate of a sequence, at any length\n"
        f"{room // bytes_of_state:,}\nsequences of 4,096 tokens fit at once"
    )
    expect(facts).to_have_text(wanted, use_inner_text=True)
    assert page.locator(".card [name=tokens]").is_hidden()
    said = page.locator(".yours.memory").inner_text()
    assert state in said and "KV cache" not in said


def test_an_error_without_words_has_those_of_the_page(chromium, address):
    """The script of a page must not end in silence, whatever it has met."""
    broken = "python.answer = () => null.a;"
    with opened(chromium, "about:blank", until="load") as page:

        def spoil(route):
            script = route.fetch()
            route.fulfill(response=script, body=script.text() + broken)

        page.route("**/record.js", spoil)
        page.goto(address + "zh/models/your-model/")
        page.fill("textarea", changed(hidden_size=2048))
        problem = page.locator(".yours.entry .problems")
        expect(problem).to_contain_text("算不出注意力")
        assert page.locator(".yours.strip").is_hidden()
        assert page.faults == []


def test_what_is_lost_is_told_of_no_family_that_was_not_tried(page):
    """Nor of parts that the model tried does not have."""
    damages = page.locator(".yours.differs .damage")
    source = page.locator(".yours.differs output")
    page.fill("textarea", changed(attention_bias=True))
    expect(damages).to_have_count(1)  # of the norms, as Qwen3 has them
    every = models.released().values()
    first = next(model.name for model in every if model.family == "qwen3")
    expect(source).to_have_text(first)
    page.fill("textarea", json.dumps(config_of("bloom").to_dict()))
    expect(damages).to_have_count(0)
    expect(source).not_to_be_visible()
    expect(page.locator(".yours.differs .gi").first).to_be_visible()


def test_its_scripts_come_once_they_are_needed(chromium, site, address):
    """To read the page, none is; without a network, the page says so."""
    names = "record.js", "configs.js", "reader.js"
    files = [site.folder / "assets" / name for name in names[:2]]
    assert sum(len(gzip.compress(f.read_bytes(), 6)) for f in files) <= 86_000
    with opened(chromium, "about:blank", until="load") as page:
        page.route("**/configs.js", lambda route: route.abort())
        page.goto(address + "models/your-model/", wait_until="networkidle")
        assert not [url for url in page.urls if url.endswith(names)]
        page.fill("textarea", changed(head_dim=64))
        problem = page.locator(".yours.entry .problems")
        expect(problem).to_contain_text("Check your connection")
        page.unroute("**/configs.js")
        page.select_option("[name=model]", "gemma-2-27b")
        expect(page.locator(".yours.strip code")).to_have_text("gemma2")
        assert not problem.is_visible()
        assert not [f for f in page.faults if "Identifier" in str(f)], (
            page.faults
        )


def test_other_layers_are_fetched_by_the_configs_that_have_them(
    chromium, address
):
    config = json.dumps(configs()["qwen3-next-80b"])
    code = ".whole + * code"
    with opened(chromium, "about:blank", until="load") as page:
        page.route("**/mixers.js", lambda route: route.abort())
        page.goto(address + "models/your-model/")
        page.fill("textarea", changed(rope_theta=12345.0))
        expect(page.locator(code)).to_contain_text("12345.0")
        assert not [url for url in page.urls if url.endswith("mixers.js")]
        page.fill("textarea", config)
        problem = page.locator(".yours.entry .problems")
        expect(problem).to_contain_text("Check your connection")
        page.unroute("**/mixers.js")
        page.fill("textarea", config + " ")
        expect(page.locator(code)).to_contain_text("class GatedDeltaNet")


def test_a_result_is_computed_once_a_reader_pauses(chromium, address):
    """Not on loading, at no key, and not for JSON that says the same."""
    count = """() => {
      globalThis.results = 0;
      const code = document.querySelector(".whole + * code");
      new MutationObserver((all) => (results += all.length))
        .observe(code, {childList: true});
    }"""
    with opened(chromium, "about:blank", until="load") as page:
        page.clock.install()
        page.goto(address + "models/your-model/")
        page.evaluate(count)
        touched(page)
        page.clock.pause_at(page.evaluate("Date.now() + 1000"))
        field = page.locator("textarea")

        def results(typed, after):
            field.press_sequentially(typed)
            page.clock.run_for(after)
            return page.evaluate("results")

        assert results("", 1000) == 0
        field.press("ControlOrMeta+End")
        assert results("\n\n", 1000) == 0, "the same JSON"
        field.fill(FIRST.replace("}", ""))
        assert results(', "head_dim": 64', 200) == 0
        assert results("}", 200) == 0
        page.clock.run_for(100)
        row = page.locator(".yours.layers tbody tr").first
        expect(row).to_contain_text("32 / 8 / 64")
        assert results("  ", 1000) == 1
        assert "64" in page.url


def test_no_key_waits_for_a_result(page):
    """What computes is not on the page, but beside it."""
    page.fill("textarea", changed(head_dim=96))
    row = page.locator(".yours.layers tbody tr").first
    expect(row).to_contain_text("32 / 8 / 96")
    page.select_option(".card [name=device]", "h200")
    expect(page.locator(".yours.memory ul")).to_contain_text("fit")
    assert page.evaluate("typeof python + typeof reader") == "undefined" * 2
    assert reader(page).evaluate("typeof python.answer") == "function"


# Answers of the reader wait here, to be given in another order.
HELD = """globalThis.held = [];
  globalThis.Worker = class extends Worker {
    set onmessage(take) {
      super.onmessage = (event) => globalThis.holds && event.data.answer
        ? held.push(() => take(event)) : take(event);
    }
  };"""


def test_an_answer_that_comes_late_is_dropped(chromium, address):
    with a_reader(chromium) as context:
        context.add_init_script(HELD)
        page = page_of(context, address + "models/your-model/")
        touched(page)
        page.evaluate("holds = true")
        for n, heads in enumerate((4, 2)):
            page.fill("textarea", changed(num_key_value_heads=heads))
            page.wait_for_function("n => held.length === n", arg=n + 1)
        row = page.locator(".yours.layers tbody tr").first
        assert "32 / 8 / 128" in row.inner_text()
        page.evaluate("holds = false, held.reverse().map((give) => give())")
        assert "32 / 2 / 128" in row.inner_text()
        # So is one for a text that the reader has taken back.
        page.evaluate("held = [], holds = true")
        page.fill("textarea", FIRST)
        page.wait_for_function("held.length === 1")
        page.fill("textarea", changed(num_key_value_heads=2))
        after = "new Promise((go) => setTimeout(go, 300))"  # that pause
        page.evaluate(f"{after}.then(held[0])")
        assert "32 / 2 / 128" in row.inner_text()


def test_from_the_disk_the_page_computes_by_itself(chromium, site):
    """No worker starts there."""
    url = (site.folder / "models/your-model/index.html").as_uri()
    with opened(chromium, url, until="load") as page:
        page.fill("textarea", changed(num_key_value_heads=4))
        row = page.locator(".yours.layers tbody tr").first
        expect(row).to_contain_text("32 / 4 / 128")
        assert page.evaluate("typeof python.answer") == "function"
        lines = page.locator(".yours.differs .gi")
        expect(lines.first).to_be_visible()
        page.select_option(".card [name=device]", "h200")
        expect(page.locator(".yours.memory ul")).to_contain_text("fit")


@pytest.mark.parametrize("root", ["", "zh/"])
def test_without_javascript_there_is_no_form(visit, address, root):
    url = f"{address}{root}models/your-model/"
    page = visit(url, java_script_enabled=False)
    assert page.locator(".without").is_visible()
    for form in page.locator("article form").all():
        assert form.is_hidden()
    for box in BOXES["code"] + BOXES["memory"]:
        assert page.locator(box).is_visible()


def test_a_slider_says_its_value_and_is_there_to_be_moved(visit, address):
    page = visit(address + "models/released/qwen3-8b/")
    slider = page.locator(".card [name=tokens]")
    value = slider.locator("xpath=following-sibling::output")
    assert value.inner_text() == "32,768"
    slider.fill("0")
    assert value.inner_text() == "4,096"
    page = visit(address + "models/released/gpt2/")  # 1,024 tokens at most
    assert page.locator(".card [name=tokens]").is_hidden()


def test_a_file_is_dropped_anywhere(page):
    page.fill("textarea", FIRST)
    prevented = page.evaluate(
        """(text) => ["text", "Files"].map((kind) => {
          const dataTransfer = new DataTransfer();
          if (kind === "text") dataTransfer.setData("text/plain", text);
          else dataTransfer.items.add(new File([text], "config.json"));
          return ["dragover", "drop"].map((type) => !document.querySelector(
            "#file").dispatchEvent(new DragEvent(type, {dataTransfer,
            bubbles: true, cancelable: true})));
        })""",
        json.dumps(models.released()["gemma-2-9b"].config),
    )
    assert prevented == [[False, False], [True, True]]
    family = page.locator(".yours.strip code")
    expect(family).to_have_text("gemma2")


def test_what_the_page_shows_first_is_what_its_script_shows(site):
    """Without JavaScript, one reads the first model."""
    text = (site.folder / "models/your-model/index.html").read_text("utf-8")
    shown = answer(your_model.text(), models.words(), "en")
    for row in shown["kinds"]:
        assert "".join(f"<td>{cell}</td>" for cell in row) in text


# A model, what one chooses, and what the card then says.
CHOSEN = {
    "deepseek-v3": ("", "71.1"),
    "gemma-2-27b": ("?device=910b&ranks=2&dtype=fp8", "8,192"),
    "inkling": ("?tokens=1048576&ranks=2", "1,048,576"),
}


@pytest.mark.parametrize("id", CHOSEN)
def test_the_card_of_a_model_and_of_its_config_are_the_same(
    chromium, address, id
):
    """With what the address says, in the address, and on the first screen."""
    query, part = CHOSEN[id]
    facts, lists = [], []
    for place in (f"released/{id}/{query}", f"your-model/{query}"):
        with opened(chromium, f"{address}models/{place}", until="load") as page:
            if "your" in place:
                page.select_option("[name=model]", id)
                expect(page.locator(".yours.strip code")).not_to_have_text(
                    "qwen3"
                )
            shown = page.locator(".card .facts")
            expect(shown).to_contain_text(part)
            facts.append(shown.inner_text())
            items = page.locator(
                ".yours.differs li"
                if "your" in place
                else "#differs ~ ul:has(~ #file) li"
            )
            for theirs in lists:  # what differs, the damage and the code
                expect(items).to_have_text(theirs, use_inner_text=True)
            lists.append(items.all_inner_texts())
            page.fill(".card [name=tokens]", "0")
            expect(shown).to_contain_text("4,096 tokens")
            facts[-1] += shown.inner_text()
            assert "tokens=4096" in page.url
            page.fill(".card [name=tokens]", "5")
            assert "tokens=" not in page.url  # what a card begins with
            assert page.faults == []
    assert facts[0] == facts[1]


@pytest.mark.parametrize("root", ["", "zh/"])
@pytest.mark.parametrize("width, height", [(1440, 900), (390, 844)])
def test_its_numbers_are_on_the_first_screen(
    chromium, address, root, width, height
):
    """In the widest of the fonts that readers have."""
    url = f"{address}{root}models/your-model/"
    with opened(chromium, url, until="load", width=width) as page:
        page.evaluate(budget.FORCE, "DejaVu Sans")
        box = page.locator(".card .facts").bounding_box()
        assert box["y"] + box["height"] < height


def test_its_card_is_in_the_address(chromium, address):
    url = address + "models/your-model/"
    with opened(chromium, url, until="load") as page:
        # The page has one row of what fits; the others are computed.
        fits = page.locator("[data-part=fits] dd")
        assert fits.inner_text() == "12"
        page.select_option("[name=dtype]", "fp8")
        expect(fits).to_have_text("25")
        with opened(chromium, page.url, until="load") as again:
            expect(again.locator("[data-part=fits] dd")).to_have_text("25")
