"""The strips of layers: what is drawn is what the file of models says."""

import re
from collections import Counter

from attnref.released.specs import find_model, models
from sitekit.drawing.strips import KINDS, paths
from sitekit.drawn import hybrids
from sitekit.drawn import released as layer_patterns
from sitekit.drawn.released import cells

NAMED = {name: kind for kind, (name, _) in KINDS.items()}
WORDS = [*NAMED, *(f"{name}_means" for name in NAMED)]
WORDS += ["index_means", "join", "unordered"]


def test_a_strip_has_a_cell_for_each_layer_of_the_model():
    """Counted again in the paths of the page."""
    words = {name: name for name in WORDS} | {"selected": "{}", "join": "+"}
    html = layer_patterns.strips(caption="", words=words, ids=models())
    rows = re.findall(r"<li([^>]*)><a href=\"(.*?)\">(.*?)</a>", html)
    assert len(rows) == len(models())
    for (kind, link, row), model in zip(rows, models().values(), strict=True):
        assert link == f"../numbers/calculator.md?model={model.id}"
        strip, is_ordered = cells(model)
        assert ("unordered" in kind) is not is_ordered
        counts: Counter[str] = Counter()
        for name, path in re.findall(r'path class="(\w+)".*? d="(.*?)"', row):
            runs = re.findall(r"M(\d+) [\d.]+h(\d+)", path)
            counts[name] += sum(int(length) for _, length in runs)
            if name in NAMED:
                for start, length in runs:
                    kinds = strip[int(start) : int(start) + int(length)]
                    assert {k for k, _ in kinds} == {NAMED[name]}
        wanted = Counter(kind for kind, _ in strip)
        for kind, n in wanted.items():
            name, strokes = KINDS[kind]
            assert counts[name] == n * len(strokes), model.id
        reused = layer_patterns.REUSE.get(model.id, 0)
        assert sum(wanted.values()) == model.layers + reused


def test_strips_of_some_models_have_the_legend_of_their_kinds():
    kinds = "full", "latent", "recurrent"
    words = {f"{name}_means": name for name in kinds}
    words |= {name: name for name in (*kinds, "join", "unordered")}
    html = hybrids.strips(caption="", words=words)
    shown = re.findall(r'href="../numbers/calculator.md\?model=(.*?)"', html)
    assert [*shown] == hybrids.IDS.split()
    legend = html.partition("</ul>")[0]
    assert legend.count("<li>") == 3 and "recurrent" in legend
    for model in map(find_model, shown):
        assert 0 < hybrids._recurrent(model) < model.layers


def test_no_order_is_invented():
    unordered = [id for id, m in models().items() if not cells(m)[1]]
    assert {"kimi-k3", "deepseek-v4-pro", "minimax-m3"} < {*unordered}
    for id in layer_patterns.RULES:
        model, (strip, _) = find_model(id), cells(find_model(id))
        parts: Counter[str] = Counter()
        for group in model.groups:
            if not getattr(group, "beside", False):
                parts[layer_patterns.letter(group)] += group.layers
        assert parts == Counter(kind for kind, _ in strip), id
    sparse = [chosen for _, chosen in cells(find_model("glm-5.2"))[0]]
    assert sum(sparse) == 21 and not cells(find_model("glm-5.2"))[1]
    note = find_model("gemma-4-e2b").note
    assert note.startswith(f"{layer_patterns.REUSE['gemma-4-e2b']} of its")


def test_kinds_differ_without_colour():
    shapes = [tuple(strokes) for _, strokes in KINDS.values()]
    assert len({*shapes}) == len(shapes)
    assert paths([("F", False)] * 2 + [("W", False), ("F", False)]) == (
        '<path class="full" stroke-width="10" d="M0 5h2M3 5h1"/>'
        '<path class="window" stroke-width="5" d="M2 7.5h1"/>'
    )


def test_units_and_their_models():
    rows = dict(layer_patterns.patterns())
    units = ["1 W + 1 F", "3 W + 1 F", "5 W + 1 F", "3 C + 1 F", "3 R + 1 F"]
    assert [*rows] == units
    assert rows["5 W + 1 F"].endswith("Inkling, MiMo-V2.5")


def test_a_row_leads_to_the_calculator_with_its_model(visit, address):
    page = visit(address + "models/released/")
    page.locator("[href$='model=gemma-3-27b']").click()
    page.wait_for_url("**/numbers/calculator/?model=gemma-3-27b")
    assert "Gemma 3 27B" in page.locator(".calculator .said").inner_text()
