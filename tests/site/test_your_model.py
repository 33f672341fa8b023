"""Your model: the page's script against the Python that it is made of."""

import gzip
import json
import random
from functools import partial

import pytest
from playwright.sync_api import expect

from attnref.released.devices import devices
from attnref.released.generate import file_of
from sitekit import CONFIGS
from sitekit.drawn import your_model
from sitekit.released import released as models
from sitekit.released import told
from sitekit.released.told import answer, counted, memory
from tests.kit import sampled
from tests.kit.families import FAMILIES, SIZED, config_of, spoiled
from tests.kit.site import opened

WORDS = {
    "weighs": "{} {}",
    "uncounted": "unknown",
    "fits": "{} {} {}",
    "none": "{1} {2}",
    "step": "{}",
}
USES = (
    your_model.use(),
    your_model.use(device="h20", ranks=8, weights="fp8", tokens=131_072),
    your_model.use(device="l4", cache="int4", tokens=1),
)

SIZES = {name: device.mib for name, device in devices().items()}
FAULTS = [
    *('"a\\q"', '"\\u12"', "NaN", "01", "1.", "-", '"\\ud800"', "1e400"),
    *("9" * 30, "tru", '"x', "\x01", "\n", "{", "]", ",", ":", "\t", ""),
]

# What the script makes of texts: an answer each, the lines of code of what
# differs, and the memory of each use.
TRIED = """([texts, uses, words, sizes]) => {
  const { $, $b, answer, counted, card, lines_of, memory, read, Use } = python;
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
      return differs.map(([part]) => lines_of(part, read(text)[2]));
    }),
    ...used.map((use) => tried(
      () => memory(counted(text), use, $.from(words.page)))),
    tried(() => card(counted(text), 4096n, $.from(sizes), [1n, 8n, 32n])),
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
        tried(lambda: told.card(counted(text), 4096, SIZES, (1, 8, 32))),
    ]


def lines(text):
    found = answer(text, models.words(), "en")
    records = told.read(text)[2]
    return [told.lines_of(part, records) for part, _ in found["differs"]]


def memory_of(text, use):
    return memory(counted(text), use, WORDS)


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


def touched(page):
    """The scripts come once a reader touches the form."""
    page.focus("textarea")
    page.wait_for_function("typeof configs !== 'undefined'")


def agree(page, texts):
    """The script says of each text what Python says; how many are refused."""
    words = {language: models.words() for language in CONFIGS}
    words |= {"page": WORDS}
    given = [texts, [list(use) for use in USES], words, SIZES]
    answers, refused = page.evaluate(TRIED, given), 0
    for (text, language), got in zip(texts, answers, strict=True):
        wanted = expected(text, language)
        assert got == wanted, text
        refused += isinstance(wanted[0], str)
    assert page.evaluate("({}).a === undefined")  # of {"__proto__": ...}
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
    page.fill("textarea", texts[0])
    problem = page.locator(".yours.entry .problems")
    expect(problem).to_contain_text("is none of")
    assert page.locator(".stale").count() == 6, "all but the memory"
    rows = page.locator(".yours.memory tbody tr")
    wanted = memory(counted(texts[0]), your_model.use(), WORDS)["rows"]
    assert rows.first.locator("td").all_inner_texts() == wanted[0][1:]
    page.fill("textarea", FIRST)
    expect(page.locator(".stale")).to_have_count(0)


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

    # What is not known is refused; the last result stays, in grey.
    page.fill("textarea", text.replace("gemma2", "gemma9"))
    problem = page.locator(".yours.entry .problems")
    expect(problem).to_contain_text("model_type='gemma9' is none of")
    assert page.locator(".stale").count() == 8
    assert page.locator(".yours.memory ul").inner_text() == sentences
    assert page.locator(".card .facts").inner_text() == facts
    file = tmp_path / "config.json"
    file.write_text(text)
    page.set_input_files("[name=file]", file)
    expect(page.locator(".stale")).to_have_count(0)
    assert not problem.is_visible()


FIRST = your_model.text()


def changed(**fields):
    config = models.released()[your_model.FIRST].config
    return your_model.written(config | fields)


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
    changed(head_dim=1e300): "head_dim=1e+300 is not a positive",
    changed(partial_rotary_factor=-1): "rotates -128",
    changed(hidden_size="4096"): "hidden_size='4096' is not a positive",
    changed(num_attention_heads=0): "num_attention_heads=0 is not a positive",
}


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused_greys_the_last_result_and_says_so(page, text):
    field = page.locator("textarea")
    problem = page.locator(".yours.entry .problems")
    field.fill(FIRST)
    expect(page.locator(".stale")).to_have_count(0)
    field.fill("")
    page.keyboard.insert_text(text)
    expect(problem).to_contain_text(REFUSED[text])
    assert page.locator(".stale").count() == 8
    assert field.get_attribute("aria-invalid") == "true"
    assert field.get_attribute("aria-describedby") == problem.get_attribute(
        "id"
    )
    field.fill(FIRST)
    expect(page.locator(".stale")).to_have_count(0)
    assert field.get_attribute("aria-invalid") is None
    assert not problem.is_visible()


def test_an_error_without_words_has_those_of_the_page(chromium, address):
    """The script of a page must not end in silence, whatever it has met."""
    broken = "python.answer = () => null.a;"
    data = "const configs = {}, familiesTable = '{}';"
    with opened(chromium, "about:blank", until="load") as page:
        page.route(
            "**/configs.js",
            lambda route: route.fulfill(body=data + broken),
        )
        page.goto(address + "zh/models/your-model/")
        page.fill("textarea", changed(hidden_size=2048))
        problem = page.locator(".yours.entry .problems")
        expect(problem).to_contain_text("算不出注意力")
        assert page.locator(".stale").count() == 8
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
    names = "record.js", "configs.js"
    files = [site.folder / "assets" / name for name in names]
    assert sum(len(gzip.compress(f.read_bytes(), 6)) for f in files) <= 80_000
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
        assert results("", 100) == 1
        row = page.locator(".yours.layers tbody tr").first
        assert "32 / 8 / 64" in row.inner_text()
        assert results("  ", 1000) == 1
        assert "64" in page.url


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


@pytest.mark.parametrize("width, height", [(1440, 900), (390, 844)])
def test_its_numbers_are_on_the_first_screen(chromium, address, width, height):
    url = address + "models/your-model/"
    with opened(chromium, url, until="load", width=width) as page:
        box = page.locator(".card .facts").bounding_box()
        assert box["y"] + box["height"] < height
        # The page has one row of what fits; the others are computed.
        fits = page.locator("[data-part=fits] dd")
        assert fits.inner_text() == "12"
        page.select_option("[name=dtype]", "fp8")
        expect(fits).to_have_text("25")
        with opened(chromium, page.url, until="load") as again:
            expect(again.locator("[data-part=fits] dd")).to_have_text("25")
