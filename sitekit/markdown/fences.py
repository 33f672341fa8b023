"""What pages draw with: `figure`, `flow`, `table`, `plot`, `steps`, `models`,
`calculator`.

The body of such a fence is YAML: what to draw, as calls.py reads it, and
the words of the page's language. Whatever is wrong with one stops the build,
and is told with its place and what to do.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from markdown import Markdown
from markupsafe import Markup, escape
from pymdownx.superfences import SuperFencesException
from torch import Tensor

from sitekit import ROOT
from sitekit.adapter import BuildError
from sitekit.drawing import flow as flows
from sitekit.drawing import svg
from sitekit.drawing.traced import PLAIN, Traced, trace
from sitekit.markdown import source
from sitekit.markdown.calls import arguments, checked, find, near, only, value
from sitekit.markdown.numbers import computed
from sitekit.markdown.render import Words, as_markdown, plain, render
from sitekit.markdown.tables import TABLES

COMMA = {"en": ", ", "zh": "，"}
LINK = re.compile(r'(?<= href=)"([^":]+\.md(?:\?[\w=.-]+)?(?:#[\w-]+)?)"')
PLACEHOLDER = re.compile(r"\$[^$]*\$|\{(\w*)\}")


class Drawn(NamedTuple):
    """As HTML; and what a notebook shows of it, as Markdown."""

    html: str
    caption: str = ""
    table: str = ""


class Fence(NamedTuple):
    """The name of its page, and the language."""

    page: str
    language: str

    def filled(self, text: str, facts: dict[str, Any]) -> str:
        """With each `{name}`, outside of formulas, of what was drawn."""

        def tell(match: re.Match[str]) -> str:
            name = match[1]
            if name is None:
                return match[0]
            if name not in facts:
                why = f"nothing here tells {match[0]}"
                raise ValueError(why + near(name, facts))
            if isinstance(facts[name], dict):
                sizes = (f"`{k}` = {v}" for k, v in facts[name].items())
                return COMMA[self.language].join(sizes)
            known = str(facts[name])
            listed = isinstance(facts[name], str) and not set("()[]") & {*known}
            if self.language == "zh" and listed:
                return known.replace(", ", "、")
            return known

        return PLACEHOLDER.sub(tell, text)


def _panel(
    fence: Fence, axes: tuple[str, str], spec: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A drawing with its title, and what a caption may tell of it."""
    call = spec[only("a panel", ("draw",), spec)]
    drawn = value(call, fence.page)
    kind: Callable[..., svg.Drawing] = svg.heatmap
    if hasattr(drawn, "drawing"):  # of one page alone: it draws itself
        kind = type(drawn).drawing
    elif not isinstance(drawn, Tensor):
        raise ValueError(f"{call} gives no tensor")
    elif drawn.dim() == 1:
        kind = svg.bars
    facts = arguments(call)
    labels = {key: spec[key] for key in spec if key != "draw"}
    labels["title"] = fence.filled(str(spec.get("title", call)), facts)
    checked(f"the panel of {call}", labels, kind)
    return kind(drawn, axes, **labels)._asdict(), facts


def figure(
    fence: Fence, *, caption: str, axes: list[object], panels: list[Any]
) -> Drawn:
    """The caption may tell what all panels have in common."""
    if len(axes) != 2 or not panels:
        raise ValueError("a figure has two axes, down and across, and panels")
    down, across = map(str, axes)
    drawn = [_panel(fence, (down, across), panel) for panel in panels]
    each = [facts.items() for _, facts in drawn]
    common = [fact for fact in each[0] if all(fact in facts for facts in each)]
    caption = fence.filled(caption, dict(common))
    panels = [panel for panel, _ in drawn]
    html = render("figure", panels=panels, caption=caption)
    return Drawn(html, plain(caption))


def _traced(
    *, flow: str, given: dict[str, Any], title: str, within: str = ""
) -> tuple[Traced, dict[str, Any]]:
    """A plain form while it runs, and what a caption may tell of it."""
    file, _, name = flow.partition("(")[0].partition(".")
    files = [path.stem for path in PLAIN.glob("[!_]*.py")]
    if file not in files:
        raise ValueError(f"there is no plain form {file!r}{near(file, files)}")
    traced = trace(file, name, arguments(flow), given, within)
    return traced, arguments(flow) | given | {"sizes": traced.sizes}


def flow(
    fence: Fence,
    *,
    caption: str,
    numbers: str,
    head: list[object],
    panels: list[dict[str, Any]],
) -> Drawn:
    """The variables of plain forms; folded below them, as a table."""
    drawn, tables = [], []
    for panel in panels:
        checked("a panel of a flow", panel, _traced)
        traced, facts = _traced(**panel)
        title = fence.filled(str(panel["title"]), facts)
        drawn.append(flows.draw(traced, title)._asdict())
        comma = {"en": ", ", "zh": "、"}[fence.language]
        tables.append((title, flows.rows(traced, comma)))
    caption = fence.filled(caption, facts)
    html = render(
        "flow",
        panels=drawn,
        caption=caption,
        numbers=numbers,
        head=head,
        tables=tables,
        rows=[row for _, rows in tables for row in rows],
    )
    shown = [numbers]
    for title, cells in tables:
        shown += [title] if len(tables) > 1 else []
        shown.append(as_markdown(head, cells, Words(None)))
    return Drawn(html, plain(caption), "\n\n".join(shown))


def table(
    fence: Fence,
    *,
    caption: str,
    head: list[object],
    words: dict[str, Any] | None = None,
    **rows: Any,
) -> Drawn:
    """The rows are a computed `table` or `models`."""
    (how,) = TABLES.keys() & rows.keys()
    cells, facts = TABLES[how](fence.page, **rows)
    if fence.language == "zh":  # a list of names
        cells = [
            [
                x.replace("`, `", "`、`") if isinstance(x, str) else x
                for x in row
            ]
            for row in cells
        ]
    caption, worded = fence.filled(caption, facts), Words(words)
    html = render("table", caption=caption, head=head, rows=cells, words=worded)
    return Drawn(html, plain(caption), as_markdown(head, cells, worded))


def plot(
    fence: Fence,
    *,
    plot: str,
    title: str,
    caption: str,
    numbers: str,
    head: list[object],
    words: dict[str, Any],
) -> Drawn:
    """Its words stand in the drawing as `{key}`; below it, its numbers."""
    drawn, worded = value(plot, fence.page), Words({**words, "title": title})
    wide, narrow = (
        re.sub(r"\{(\w+)\}", lambda match: escape(worded[match[1]]), drawing)
        for drawing in (drawn.wide, drawn.narrow)
    )
    caption = fence.filled(caption, arguments(plot))
    html = render(
        "plot",
        svg=Markup(wide + narrow),
        caption=caption,
        numbers=numbers,
        head=head,
        rows=drawn.rows,
        words=worded,
    )
    shown = f"{numbers}\n\n{as_markdown(head, drawn.rows, worded)}"
    return Drawn(html, plain(caption), shown)


BUTTONS = {"en": ("Back", "Next"), "zh": ("上一步", "下一步")}


def steps(
    fence: Fence,
    *,
    steps: str,
    title: str,
    frames: list[str],
    caption: str = "",
    words: dict[str, Any] | None = None,
) -> Drawn:
    """A strip of frames; in its drawings `{key}` is a word."""
    drawn, texts = value(steps, fence.page), Words(words)
    if len(drawn.frames) != len(frames):
        raise ValueError(f"{len(frames)} texts, {len(drawn.frames)} frames")
    facts, shown = arguments(steps), []
    title = fence.filled(title, facts)
    for n, (frame, text) in enumerate(zip(drawn.frames, frames, strict=True)):
        marks = Markup("").join(frame.marks)
        name = f"{title}: {n + 1} / {len(frames)}"
        drawing = svg.SVG.format(drawn.width, drawn.height, name, marks)
        worded = re.sub(
            r"\{(\w+)\}", lambda match: escape(texts[match[1]]), drawing
        )
        sentence = fence.filled(text, facts | frame.facts)
        shown.append((Markup(worded), sentence))
    back, forth = BUTTONS[fence.language]
    html = render(
        "steps",
        width=drawn.width,
        title=title,
        frames=shown,
        back=back,
        next=forth,
        caption=caption,
        words=texts,
    )
    listed = "\n".join(f"{n}. {plain(s)}" for n, (_, s) in enumerate(shown, 1))
    return Drawn(html, plain(caption), listed)


KINDS: dict[str, Callable[..., Drawn]] = {
    "figure": figure,
    "flow": flow,
    "table": table,
    "plot": plot,
    "steps": steps,
}


@cache
def drawn(body: str, kind: str, fence: Fence) -> Drawn:
    """What a fence draws. A kind of one page alone is drawn by its file."""
    spec = yaml.load(body, yaml.CSafeLoader)
    if kind not in KINDS:
        own = find(kind, fence.page)
        checked(f"a {kind}", spec, own)
        return Drawn(str(own(**spec)), plain(spec.get("caption", "")))
    takes: list[Callable[..., Any]] = [KINDS[kind]]
    if kind == "table":
        takes.append(TABLES[only("a table", TABLES, spec)])
    checked(f"a {kind}", spec, *takes)
    return KINDS[kind](fence, **spec)


def drawing(body: str, kind: str, fence: Fence) -> str:
    return drawn(body, kind, fence).html


class FenceError(SuperFencesException, BuildError):
    """Superfences lets its own exception alone through: any other would
    leave the YAML on the page, as if it were code. MkDocs prints a BuildError
    in a line, below the name of the page."""


def draw(
    body: str,
    kind: str,
    _class: str,
    _options: dict[str, Any],
    md: Markdown,
    **_: Any,
) -> str:
    """What superfences calls for each of these fences."""
    of_mkdocs: Any = md.treeprocessors["relpath"]  # it knows the page
    path = Path(of_mkdocs.file.abs_src_path)
    language = str(of_mkdocs.config.theme["language"])
    try:
        html = drawing(body, kind, Fence(path.stem, language))
    except Exception as error:
        why = f"{_place(body, path)}: the fence {kind!r}: {error}"
        raise FenceError(why) from error
    # Links to pages are those of Markdown: MkDocs knows their addresses.
    return LINK.sub(lambda link: f'"{of_mkdocs.path_to_url(link[1])}"', html)


def _place(body: str, path: Path) -> str:
    """File and line of a fence, which may stand indented in a box."""
    text = computed(source.text_of(path), path)
    page, lines = (
        [line.strip() for line in part.splitlines()] for part in (text, body)
    )
    at = (i for i in range(len(page)) if page[i : i + len(lines)] == lines)
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return f"{name}:{next(at, 0)}"
