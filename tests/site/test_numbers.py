"""Numbers in the text of a page; tables and plots of the pages on numbers."""

import re
from fractions import Fraction
from math import log2

import pytest
import torch
import yaml

import attnref
from attnref.numbers.kv_memory import growth, kv_bytes, size
from attnref.numbers.shapes import Compressed
from attnref.released.specs import find_model, models
from sitekit import ROOT
from sitekit.adapter import BuildError
from sitekit.drawing import plots
from sitekit.drawn import gqa, memory, operations
from sitekit.drawn.released import kinds_of
from sitekit.markdown import calls, numbers, source
from sitekit.markdown.fences import Fence, drawing
from sitekit.markdown.pages import body_of, markdown_files
from sitekit.markdown.render import Word
from sitekit.markdown.tables import familiar
from tests.kit.pages import fences


def test_a_number_in_the_text_is_computed_and_formatted(monkeypatch):
    page = ROOT / "docs/en/layers/gqa.md"
    given = {"whole": 131_072, "share": Fraction(1, 3), "bytes": "16 GiB"}
    monkeypatch.setattr(numbers, "value", lambda *_: given)
    written = "{{whole:,}}, $x_{{{share:.2f}}}$, **{{bytes}}**; {ran}, {a}"
    shown = "131,072, $x_{0.33}$, **16 GiB**; {ran}, {a}"
    assert numbers.fill(written, page) == shown


def test_a_number_that_nothing_gives_stops_the_build_at_its_line(tmp_path):
    path = tmp_path / "gqa.md"
    path.write_text("---\ntitle: T\n---\n# T\n\n{{token:,}} {{tokens:,}}\n")
    why = r"gqa.md:6: {{tokens:,}}: no number 'tokens'; did you mean 'token'?"
    with pytest.raises(BuildError, match=re.escape(why)):
        body_of(path)
    for wrong in ("{{token:%Y}}", "{{token}", "{{ token }}"):
        path.write_text(f"# T\n\n{wrong}\n")
        with pytest.raises(BuildError, match=r"gqa.md:3: "):
            body_of(path)
    other = tmp_path / "no-such-page.md"
    other.write_text("{{token}}\n")
    with pytest.raises(BuildError, match="there is no 'numbers' in "):
        body_of(other)


@pytest.mark.parametrize("stem", calls.pages())
def test_each_number_is_on_its_page(stem):
    """Both languages name the same ones, but for those with a unit of their
    own: 8.03 billion are 80.3 yi."""
    if "numbers" in calls.functions_of(stem):
        named = [
            {name for name, _ in numbers.NUMBER.findall(source.text_of(path))}
            for language in ("en", "zh")
            for path in markdown_files(language)
            if path.stem == stem
        ]
        assert named[0] | named[1] == {*calls.value("numbers", stem)}
        english, chinese = named[0] - named[1], named[1] - named[0]
        assert {f"{name}_zh" for name in english} == chinese


def by_name(rows):
    return {
        row[0].key if isinstance(row[0], Word) else row[0]: [
            c.key if isinstance(c, Word) else c for c in row[1:]
        ]
        for row in rows
    }


def known(stem):
    """Its tables of released models."""
    specs = [s["models"] for _, s in fences(stem) if "models" in s]
    return {
        x: y for spec in specs for x, y in by_name(familiar(**spec)).items()
    }


def number(text):
    return float(re.sub("[,%x]", "", text))


def test_the_cache_of_a_layer_is_what_the_table_says():
    rows = known("mha") | known("gqa")
    assert len(rows) > 9
    for name, row in rows.items():
        layers, _, K, D = map(int, row[:4])
        cache = attnref.KVCache(4096)
        token = torch.empty(1, K, 1, D, device="meta").bfloat16()
        cache.append(token, token)
        assert cache.nbytes * layers == number(row[4]) * 4096, name
        assert size(cache.nbytes * layers) == row[5]


def test_a_model_of_another_kind_is_not_listed_as_familiar():
    with pytest.raises(ValueError, match=r"llama-3\.1-8b is not MHA"):
        familiar(variant="MHA", ids=["llama-3.1-8b"], columns=["name"])
    with pytest.raises(ValueError, match=r"no column 'layer'.*'layers'"):
        familiar(variant="GQA", ids=["llama-3.1-8b"], columns=["layer"])


def test_claims_come_out_as_printed():
    for how, printed in by_name(memory.claims()).values():
        sum_ = how.replace(",", "").replace("−", "-").replace("·", "*")
        value = eval(sum_, {"__builtins__": {}})
        if printed.endswith("%"):
            assert f"{value:.1%}" == printed
        else:
            assert value == pytest.approx(number(printed), rel=2e-3)


def test_a_decode_step_by_hand():
    H, D, S, E = 32, 128, 8192, 4096
    for row, K in zip(gqa.compare(), (32, 8, 4, 1), strict=True):
        weights = 2 * E * H * D + 2 * E * K * D
        assert row[0].endswith(f"`K` = {K}")
        assert row[1:] == [
            f"{weights / 1e6:.1f}",
            f"{2 * weights / 1e6:.1f}",
            f"{4 * H * S * D / 1e6:.1f}",
            size(2 * S * K * D * 2),
            str(H // K),
        ]


def test_operations_of_a_query_and_a_key():
    rows = by_name(operations.pairs())
    assert {row[0] for k, row in rows.items() if len(k) == 3} == {"65,536"}
    assert rows["expanded"] == ["81,920", "1.25", "40,960"]
    assert rows["absorbed"] == ["278,528", "4.25", "576"]


def test_what_the_page_says_of_whole_steps_is_so():
    """Llama-3.1-8B: its parameters one by one, and the step to compute."""
    E, F, V, D = 4096, 14_336, 128_256, 128
    layer = 2 * E * E + 2 * E * 8 * D + 3 * E * F + 2 * E
    assert 32 * layer + E + 2 * V * E == find_model("llama-3.1-8b").params
    h20, h100 = operations.turn()
    assert number(h20[5]) < number(h100[5]), "slower, says the page"
    last, now = operations.steps(1024, (295, 296))
    assert number(last[1]) >= number(last[2])
    assert number(now[2]) > number(now[1]), "multiplying takes longer"


def test_what_the_pages_say_of_models_is_so():
    assert operations.H100.ridge < 2 * operations.intensities()["absorbed"]
    gemma, llama = (
        growth(find_model(m)).first for m in ("gemma-3-27b", "llama-3.1-70b")
    )
    assert gemma > llama, "in short sequences"
    ratios = {
        group.ratio
        for model in models().values()
        for group in model.groups
        if model.id.startswith("deepseek-v4-") and isinstance(group, Compressed)
    }
    assert ratios == {4, 128, None}


def lines(svg):
    """The path of each thick line, as points."""
    paths = re.findall(
        r'<path d="([^"]*)"(?: clip-path="[^"]*")? style="fill: none; '
        r"(?:stroke-dasharray: [^;]*; stroke-dashoffset: 0; )?"
        r"stroke: var\(--[\w-]+\); stroke-width: 1.8",
        svg,
    )
    return [
        [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", p)]
        for p in paths
    ]


PLOTS = {"contexts": memory.contexts, "roofline": operations.roofline}
BOTH = pytest.mark.parametrize("kind", [0, 1], ids=["wide", "narrow"])


@BOTH
def test_the_lines_of_the_plot_are_the_bytes_of_the_models(kind):
    svg = memory.contexts()[kind]
    drawn = [points for points in lines(svg) if len(points) > 2]
    assert len(drawn) == len(memory.DOZEN) == 12
    assert len(lines(svg)) - len(drawn) == len(memory.LOOKS)
    box = r'<clipPath [^>]*>\s*<rect x="(.+?)" y="(.+?)" '
    box += r'width="(.+?)" height="(.+?)"'
    left, top, wide, high = map(float, re.search(box, svg).groups())
    for name, points in zip(memory.DOZEN, drawn, strict=True):
        for (x, y), power in ((points[0], 10), (points[-1], 20)):
            taken = log2(kv_bytes(find_model(name), 2**power))
            share = (top + high - y) / high
            assert share == pytest.approx((taken - 22) / (40 - 22), abs=1e-4)
            assert (x - left) / wide == pytest.approx((power - 10) / 10)


@BOTH
@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_is_text_and_the_colours_of_the_page(name, kind):
    svg = PLOTS[name]()[kind]
    assert "#" not in re.sub(r"url\(#\w+\)|href=\"#\w+\"", "", svg)
    assert "font-family" not in svg and "<style" not in svg
    named = set(re.findall(r' id="(\w+)"', svg))
    uses = re.findall(r'(?:href="#|url\(#)(\w+)', svg)
    assert uses and set(uses) == named, "what is drawn is there"
    other = set(re.findall(r' id="(\w+)"', PLOTS[name]()[1 - kind]))
    assert not named & other, "both stand in one page"
    dots = {"contexts": 12, "roofline": len(operations.intensities())}
    assert svg.count("<use") == dots[name]
    assert "var(--ink)" in svg and "<text" in svg
    for model in memory.DOZEN if name == "contexts" else ():
        assert f">{find_model(model).name}<" in svg


WORDS = ("intensity", "flops", "mha", "gqa", "mqa", "expanded")
WORDS += ("absorbed", "prefill")


def fence(**changed):
    spec = {
        "plot": "roofline",
        "title": "A & B",
        "caption": "<c> `d`",
        "numbers": "n",
        "head": ["a", "b", "c", "d", "e", "f"],
        "words": {name: f"<{name}>" for name in WORDS},
    }
    spec = yaml.safe_dump(spec | changed)
    return drawing(spec, "plot", Fence("operations", "en"))


def test_a_plot_carries_the_words_of_the_page_and_a_table():
    out = fence()
    assert 'aria-label="A &amp; B"' in out
    assert "&lt;mqa&gt;" in out and "<mqa>" not in out
    assert "&lt;c&gt; <code>d</code></figcaption>" in out
    assert "{" not in out
    assert out.count("<tr>") == 1 + len(operations.intensities())
    with pytest.raises(ValueError, match=r"words are missing: \['mqa'\]"):
        fence(words={name: "" for name in WORDS if name != "mqa"})
    with pytest.raises(ValueError, match="1 heads for 6 columns"):
        fence(head=["a"])


def test_names_beside_a_plot_stand_apart():
    places = plots.apart([0.5, 0.51, 0.9, 0.505], 0.1)
    assert places == pytest.approx([0.405, 0.605, 0.9, 0.505])
    assert plots.apart([0.2, 0.8], 0.1) == [0.2, 0.8]


def test_each_model_has_a_kind_of_line():
    known = {name: memory.kind(find_model(name)) for name in memory.DOZEN}
    assert known["llama-2-7b"] == known["falcon-7b"] == "whole"
    assert known["gpt-oss-120b"] == known["mistral-7b"] == "window"
    assert known["deepseek-v3"] == known["deepseek-v4-flash"] == "latent"
    assert known["kimi-k3"] == known["qwen3-next-80b"] == "state"


@BOTH
def test_each_kind_of_line_has_its_colour_and_dashes(kind):
    colours = [style["color"] for style in memory.LOOKS.values()]
    assert len(set(colours)) == len(memory.LOOKS)
    assert len({str(look) for look in memory.LOOKS.values()}) == 4
    svg = memory.contexts()[kind]
    for name, style in memory.LOOKS.items():
        ink = plots.INKS[style["color"]]
        looks = [memory.kind(find_model(model)) for model in memory.DOZEN]
        # A line for each model, one in the legend.
        thick = rf"stroke: {re.escape(ink)}; stroke-width: 1.8"
        assert len(re.findall(thick, svg)) == looks.count(name) + 1


def test_the_kinds_of_a_model_are_those_of_its_layers():
    known = {m.id: kinds_of(m) for m in models().values()}
    assert known["gpt2"] == ["MHA"]
    assert known["gpt-oss-20b"] == ["GQA", "window"]
    assert known["llama-4-scout"] == ["GQA", "window"]
    assert known["deepseek-v3.2"] == ["MLA", "index"]
    assert known["kimi-k3"] == ["MLA", "state"]
    assert known["deepseek-v4-pro"] == ["index", "shared"]
    assert known["minimax-m3"] == ["GQA", "index"]


def test_sums_to_do_by_hand_come_out_as_they_are_written():
    for number, calculation, result in memory.turn():
        written = calculation.replace("×", "*").replace(",", "")
        value, _, unit = result.replace(",", "").partition(" ")
        want = float(value) * {"GiB": 2**30}.get(unit, 1)
        assert eval(written) == want, number
