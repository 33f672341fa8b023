"""The data flow that pages draw is that of the plain forms while they run."""

import ast
import importlib
import re

import pytest
import torch

from attnref.judge.shapes import Tracer
from sitekit.drawing import flow, traced
from sitekit.markdown import calls
from tests.kit.pages import fences

PAGES = ("sdpa", "mha", "gqa", "cross", "mla", "absorption", "flash")
PAGES += ("compressed",)


PANELS = [
    pytest.param(panel, id=f"{page}, {panel['title']}")
    for page in PAGES
    for kind, spec in fences(page)
    for panel in (spec["panels"] if kind == "flow" else ())
]


def parts(panel):
    """What a panel draws, the text of its file, and how it is called."""
    match = re.fullmatch(r"(\w+)\.(\w+)(.*)", panel["flow"])
    file, call = match[1], (match[2], calls.arguments(panel["flow"]))
    call = *call, panel["given"]
    drawing = traced.trace(file, *call, panel.get("within", ""))
    return drawing, traced.PLAIN.joinpath(f"{file}.py").read_text("utf-8"), call


def function_of(text, line):
    return re.findall(r"def (\w+)", "\n".join(text.split("\n")[:line]))[-1]


@pytest.mark.parametrize("panel", PANELS)
def test_each_shape_comment_that_is_run_is_in_the_picture(panel):
    drawing, text, call = parts(panel)
    module = importlib.import_module(f"attnref.plain.{drawing.file}")
    file = module.__file__
    tracer = Tracer({file: text}, drawing.sizes)
    traced.call(vars(module), *call, tracer.__enter__)
    tracer.__exit__()
    assert not tracer.faults
    functions = {
        function_of(text, n.lines[0]) for n in drawing.nodes if n.inputs
    }
    for (_, line), (shape, _) in tracer.seen.items():
        comment = tracer.comments[file][line]
        if function_of(text, line) in functions:
            nodes = [n for n in drawing.nodes if comment.first in n.lines]
            names = [n.name for n in nodes]
            assert not {*comment.targets} - {*names}, comment
            for node in nodes:
                if not comment.targets or node.name in comment.targets:
                    pair = node.letters, node.shape
                    assert pair == (comment.text, shape), node.name


@pytest.mark.parametrize(
    "panel", [p for p in PANELS if "flash" not in p.values[0]["flow"]]
)
def test_what_is_changed_changes_what_arrows_lead_to_and_nothing_else(panel):
    """The experiment once more, by lines that are added to the file."""
    drawing, text, call = parts(panel)
    nodes = [n for n in drawing.nodes if n.name != "return"]
    lines = text.split("\n")
    starts = [x for x in ast.walk(ast.parse(text)) if isinstance(x, ast.stmt)]
    for number, node in enumerate(nodes):
        last = node.lines[-1] - 1
        statements = [x for x in starts if x.lineno <= last + 1 <= x.end_lineno]
        indent = max(x.col_offset for x in statements)
        indent += 4 * lines[last].lstrip().startswith("def ")
        lines[last] += (
            f"\n{' ' * indent}{node.name} = _note({number}, {node.name})"
        )

    def values(changed):
        results = {}

        def note(number, value):
            if number == changed:
                value = ~value if value.dtype == torch.bool else value.flip(-1)
            results[number] = value
            return value

        space = {"_note": note, "__name__": "noted"}
        exec("\n".join(lines), space)
        traced.call(space, *call)
        return [results[number] for number in range(len(nodes))]

    originals = values(None)
    for number, node in enumerate(nodes):
        followers = [node]
        for later in nodes:
            if {*later.inputs} & {*followers}:
                followers.append(later)
        triples = zip(nodes, originals, values(number), strict=True)
        if originals[number].shape[-1] == 1:  # flipped, it is what it was
            continue
        if node.name == "window":  # the next call reads it
            continue
        changed = [n for n, a, b in triples if not torch.equal(a, b)]
        beyond = [n for n in changed if n not in followers]
        unchanged = [n for n in followers if n not in changed]
        if {"c", "k_rope", "at"} & {node.name}:
            # The entry holds both side by side: one is not the other.
            unchanged = [n for n in unchanged if not of_entry(n)]
        assert (beyond, unchanged) == ([], []), f"{node.name} {node.letters}"


def of_entry(node):
    return node.name == "entry" or any(map(of_entry, node.inputs))


def drawing_of(page, number=0):
    specs = [spec for kind, spec in fences(page) if kind == "flow"]
    return parts(specs[0]["panels"][number])[0]


def test_what_is_filled_is_in_the_memory_of_the_cache():
    def names(page, state, number=0):
        nodes = drawing_of(page, number).nodes
        return [f"{n.name} {n.letters}" for n in nodes if getattr(n, state)]

    assert names("gqa", "stored") == ["k (B, K, S, D)", "v (B, K, S, D)"]
    entry, c = "entry (B, 1, S, R + Dr)", "c (B, 1, S, R)"
    assert names("mla", "stored") == [entry, c, "k_rope (B, 1, S, Dr)"]
    absorbed = names("absorption", "stored", 1)
    assert absorbed == [entry, "k (B, 1, S, R + Dr)", "v (B, 1, S, R)"]
    assert names("absorption", "again", 1) == names("gqa", "again") == []
    for page in ("mla", "absorption"):
        again = [name.split()[0] for name in names(page, "again")]
        assert again == ["kv", "k", "v", "k"]
    assert names("mha", "stored") == names("cross", "stored") == []


def test_one_tile_updates_the_state_of_its_queries():
    nodes = drawing_of("flash").nodes
    inputs = {n.name: {i.name for i in n.inputs} for n in nodes if n.inputs}
    assert inputs == {
        "seen": {"mask"},
        "scores": {"queries", "k", "seen"},
        "larger": {"m", "scores"},
        "p": {"scores", "larger"},
        "rescale": {"m", "larger"},
        "total": {"total", "rescale", "p"},
        "acc": {"acc", "rescale", "p", "v"},
        "m": {"larger"},
    }


def test_a_picture_has_a_box_for_each_variable_and_an_arrow_for_each_use():
    drawing = drawing_of("gqa")
    picture = str(flow.draw(drawing, "A & B").svg)
    nodes = [n for n in drawing.nodes if n.drawn]
    boxes = re.findall(r'<rect class="[\w ]*box[\w ]*"[^>]*>', picture)
    areas = re.findall(
        r' area[ on]*" [^>]*width="([\d.]+)" height="\1"', picture
    )
    assert len(boxes) == len(areas) == len(nodes) == 10
    sizes = sorted(torch.Size(n.shape).numel() for n in nodes)
    sides = [max(2, 14 * (n / sizes[-1]) ** 0.5) for n in sizes]
    assert sorted(map(float, areas)) == pytest.approx(sides, abs=0.05)
    arrows = picture[picture.index('class="arrows"') : picture.index("</g>")]
    uses = sum(len(n.made_of) for n in nodes)
    assert arrows.count("<path d=") == uses
    for pill in ("q_proj", "k_proj", "v_proj", "o_proj", "SDPA"):
        assert picture.count(f">{pill}<") == 1
    assert picture.count(">rope<") == 2 and picture.count(">cache<") == 1
    assert (
        'data-lines="71"' in picture and "k, v = cache.append(k, v)" in picture
    )
    assert 'aria-label="A &amp; B"' in picture


def test_an_input_leads_to_the_step_at_which_it_takes_part():
    inputs = {"B": 3, "H": 2, "T": 5, "S": 7, "D": 4, "Dv": 6}
    drawing = traced.trace("attention", "attention", {}, inputs)
    (mask,) = (n for n in drawing.nodes if n.name == "mask")
    (scores,) = (n for n in drawing.nodes if mask in n.inputs)
    assert [word for _, word in scores.steps] == ["@", "mask"]
    assert scores.later == {mask: 1}  # q and k are multiplied before
    picture = str(flow.draw(drawing, "Attention").svg)
    pill = r'class="op pill" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"'
    x, y, width = map(float, re.findall(pill, picture)[1])
    sideways = re.findall(r'd="M\S+ \S+V\S+Q\S+ \S+ (\S+) (\S+)"', picture)
    assert [tuple(map(float, place)) for place in sideways] == [
        (x + width, y + 9)
    ]
