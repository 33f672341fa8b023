"""What is wrong with a figure or a table stops the build and is named.

The faults are planted in pages: Markdown swallows what a fence raises, so
that a function which raises proves nothing.
"""

import re
from textwrap import dedent

import pytest
from markdown import Markdown

from sitekit import CONFIGS, ROOT, adapter, place

# Of each kind, the page that has it, and how the fence begins.
WHERE = {
    "figure": ("core/masks", "figure\n"),
    "table": ("core/masks", "table\n"),
    "flow": ("layers/gqa", "flow\n"),
    "list": ("layers/mha", "table\nmodels"),
    "cards": ("index", "figure\n"),
    "plot": ("numbers/operations", "plot\n"),
    "models": ("models/released", "released\n"),
    "calculator": ("numbers/calculator", "calculator\n"),
}


def fence(kind):
    """The first fence of a kind, as a page of the site has it."""
    stem, begins = WHERE[kind]
    (path,) = (ROOT / "docs" / "zh").rglob(f"{stem}.md")
    text = path.read_text(encoding="utf-8")
    body = re.search(rf"^( *)```{begins}.*?^\1```\n", text, re.M | re.S)[0]
    return dedent(body)


@pytest.fixture(scope="module")
def config():
    """The site's extensions, as a build has them."""
    return adapter.config_of(CONFIGS["zh"])


def html_of(folder, config, kind, body):
    """The page of that kind of fence, with this one alone."""
    path = folder / f"{WHERE[kind][0]}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"# T\n\nText.\n\n{body}", encoding="utf-8")
    return adapter.html_of(path, config)


FAULTS = {
    "a call that does not exist": (
        ("figure", "draw: causal_mask", "draw: causl_mask"),
        "there is no 'causl_mask' in sitekit/drawn/masks.py or attnref; "
        "did you mean 'causal_mask'",
    ),
    "an argument that is no literal": (
        ("figure", r"causal_mask\(4\)", "causal_mask(B)"),
        "'B' is no literal",
    ),
    "an argument that the function refuses": (
        ("figure", r"causal_mask\(4\)", "causal_mask(-4)"),
        "T=-4 and S=-4 must not be negative",
    ),
    "what is no tensor": (
        ("figure", r"draw: causal_mask\(4\)", "draw: KVCache(4)"),
        "KVCache(4) gives no tensor",
    ),
    "a label too many": (
        ("figure", r"rows: \[(我.*?们)\]", r"rows: [\1, x]"),
        "5 x 5 labels for a 4 x 4 figure: rows names the queries",
    ),
    "a panel without its labels": (
        ("figure", r"\n    rows: .*", ""),
        "the key 'rows' is missing; the panel of causal_mask(",
    ),
    "two drawings in one panel": (
        ("figure", "- draw: ", "- drawn: "),
        "a panel has one of the keys draw",
    ),
    "a figure without its axes": (
        ("figure", r"axes: .*\n", ""),
        "the key 'axes' is missing; a figure has caption, axes, panels",
    ),
    "a figure with one axis": (
        ("figure", r"axes: \[(.*?),.*", r"axes: [\1]"),
        "a figure has two axes, down and across, and panels",
    ),
    "a key that a figure has not": (
        ("figure", r"caption: ", "captoin: "),
        "a figure has no key 'captoin'; did you mean 'caption'?",
    ),
    "a fence without keys": (
        ("figure", r"(?s)(```figure\n).*(```)", r"\1words\n\2"),
        "a figure is no mapping of caption, axes, panels",
    ),
    "a table that does not exist": (
        ("table", "table: fully_masked", "table: fuly_masked"),
        "there is no 'fuly_masked' in sitekit/drawn/masks.py or attnref; "
        "did you mean 'fully_masked'",
    ),
    "a table of a page that does not exist": (
        ("table", "table: fully_masked", "table: mask.fully_masked"),
        "there is no sitekit/drawn/mask.py; did you mean 'masks'",
    ),
    "a table of nothing": (
        ("table", r"table: fully_masked\n", ""),
        "a table has one of the keys table, models",
    ),
    "a head too few": (
        ("table", r"head: \[[^,]*, ", "head: ["),
        "5 heads for 6 columns",
    ),
    "a word that is missing": (
        ("table", r"\n  nan: .*", ""),
        "words are missing: ['nan']",
    ),
    "a word that is never used": (
        ("table", r"\n  nan: ", "\n  none: x\n  nan: "),
        "words never used: ['none']",
    ),
    "a caption that asks for what is not there": (
        ("flow", r"\{sizes\}", "{size}"),
        "nothing here tells {size}; did you mean 'sizes'?",
    ),
    "a caption that asks for what differs": (
        ("cards", "MHA(.*)heads=8", r"MHA\1heads=4"),
        "nothing here tells {heads}",
    ),
    "a flow of what has no plain form": (
        ("flow", r"gqa\.GQA", "gpa.GQA"),
        "there is no plain form 'gpa'; did you mean 'gqa'",
    ),
    "a flow of a layer that cannot be": (
        ("flow", "n_kv_heads=2", "n_kv_heads=6"),
        "n_kv_heads=6 does not divide n_heads=8",
    ),
    "a flow in which two letters have one size": (
        ("flow", "B: 3", "B: 5"),
        "'B': 5, 'T': 5, 'D': 16}: a flow needs another size",
    ),
    "a flow that is given what it does not take": (
        ("flow", "given: ", "taken: "),
        "a panel of a flow has no key 'taken'",
    ),
    "a model that does not exist": (
        ("list", "llama-2-7b", "llama-2-9b"),
        "llama-2-9b",
    ),
    "a column that does not exist": (
        ("list", r"q_heads", "heads"),
        "there is no column 'heads', nor is it a number; did you mean",
    ),
    "a plot that does not exist": (
        ("plot", "plot: roofline", "plot: rooflin"),
        "there is no 'rooflin'",
    ),
    "a word of a plot that is missing": (
        ("plot", r"\n  flops: .*", ""),
        "words are missing: ['flops']",
    ),
    "a kind of model that is missing": (
        ("models", r"\n  MQA: MQA", ""),
        "kinds are missing: ['MQA']",
    ),
    "a head of the models too few": (
        ("models", r"head: \[[^,]*, ", "head: ["),
        "20 heads for 21 columns",
    ),
    "a word of the calculator that is missing": (
        ("calculator", r"\n  budget: .*", ""),
        "words are missing: ['budget']",
    ),
    "a word that the calculator's script asks for": (
        ("calculator", r"\n  bad_choice: .*", ""),
        "words are missing: ['bad_choice']",
    ),
    "no YAML": (
        ("figure", "axes: ", "axes: ["),
        "while parsing a flow sequence",
    ),
}


def test_the_fences_as_they_are_become_html(tmp_path, config):
    html = "".join(html_of(tmp_path, config, k, fence(k)) for k in WHERE)
    assert html.count("<figure") == 7 and 'class="calculator"' in html


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_fence_stops_the_page(tmp_path, config, name):
    (kind, old, new), reason = FAULTS[name]
    broken = re.sub(old, new, fence(kind), count=1)
    assert broken != fence(kind)
    with pytest.raises(adapter.BuildError) as failure:
        html_of(tmp_path, config, kind, broken)
    stem, begins = WHERE[kind]
    place = f"{stem}.md:5: the fence '{begins.split()[0]}': "
    assert place in str(failure.value)
    assert reason in str(failure.value)


def test_a_fence_asks_nothing_of_the_program_that_renders(config):
    """Zensical renders the same Markdown, and has no processor of MkDocs."""
    path = ROOT / "docs/zh/models/released.md"
    links = []
    address = lambda link: links.append(link) or f"/{link}"  # noqa: E731
    place.enter(place.Place(path, "zh", address))
    page = Markdown(
        extensions=config.markdown_extensions,
        extension_configs=config.mdx_configs,
    )
    html = page.convert(fence("models"))
    assert "<table" in html and "```" not in html
    assert len(links) > 50
    assert all(f'href="/{link}"' in html for link in links)


def test_templates_call_nothing_that_only_jinja_has():
    """MiniJinja, which Zensical renders with, has filters, and no methods of
    Python's strings and dictionaries."""
    overrides = ROOT / "overrides"
    templates = [*overrides.rglob("*.html"), *overrides.rglob("*.xml")]
    assert len(templates) > 5
    called = {
        (path.name, call)
        for path in templates
        for tag in re.findall(r"{[{%].*?[}%]}", path.read_text("utf-8"), re.S)
        for call in re.findall(r"\.\w+\(", tag)
    }
    assert called == set()
