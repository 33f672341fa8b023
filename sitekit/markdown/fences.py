"""The fences that draw: `figure`, `flow`, `table`, `plot`, `steps`, `live`, and some
that only one page has, such as `calculator`.

The body of a fence is YAML: a call that says what to draw, as calls.py reads
it, and words in the language of the page. An error in one stops the build with
its file and line and what to do.
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

from attnref.words import Text
from sitekit import ROOT
from sitekit.adapter import BuildError
from sitekit.drawing import flow as flows
from sitekit.drawing import svg
from sitekit.drawing.heatmap import heatmap
from sitekit.drawing.traced import PLAIN, Traced, trace
from sitekit.markdown import numbers, source
from sitekit.markdown.calls import arguments, check_keys, find, near, single_key, value
from sitekit.markdown.render import Words, as_markdown, inline, plain, render
from sitekit.markdown.tables import TABLES
from sitekit.markdown.unmarked import unmarked
from sitekit.place import current

COMMA = {"en": ", ", "zh": "，"}
LINK = re.compile(r'(?<= href=)"([^":]+\.md(?:\?[\w=.-]+)?(?:#[\w-]+)?)"')
PLACEHOLDER = re.compile(r"\$[^$]*\$|\{(\w*)\}")


class Output(NamedTuple):
    """A fence as HTML, and the Markdown that a notebook shows of it."""

    html: str
    caption: str = ""
    table: str = ""


class Fence(NamedTuple):
    """Where a fence stands: the name of its page, and the language."""

    page: str
    language: str

    def fill(self, text: str, facts: dict[str, Any]) -> str:
        """Put facts of the drawing in place of each `{name}` of a text, but not
        within formulas."""

        def tell(match: re.Match[str]) -> str:
            name = match[1]
            if name is None:
                return match[0]
            if name not in facts:
                reason = f"nothing here tells {match[0]}"
                raise ValueError(reason + near(name, facts))
            if isinstance(facts[name], dict):
                sizes = (f"`{k}` = {v}" for k, v in facts[name].items())
                return COMMA[self.language].join(sizes)
            fact = str(facts[name])
            is_list = isinstance(facts[name], str) and not set("()[]") & {*fact}
            if self.language == "zh" and is_list:
                return fact.replace(", ", "、")
            return fact

        return PLACEHOLDER.sub(tell, text)


def _panel(fence: Fence, axes: tuple[str, str], spec: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw a panel with its title; the facts are for the caption."""
    call = spec[single_key("a panel", ("draw",), spec)]
    picture = value(call, fence.page)
    kind: Callable[..., svg.Drawing] = heatmap
    if hasattr(picture, "drawing"):  # of one page alone: it draws itself
        kind = type(picture).drawing
    elif not isinstance(picture, Tensor):
        raise ValueError(f"{call} gives no tensor")
    facts = arguments(call)
    labels = {key: spec[key] for key in spec if key != "draw"}
    labels["title"] = fence.fill(str(spec.get("title", call)), facts)
    check_keys(f"the panel of {call}", labels, kind)
    return kind(picture, axes, **labels)._asdict(), facts


def figure(fence: Fence, *, caption: str, axes: list[object], panels: list[Any]) -> Output:
    """Draw panels; the caption may name the facts that all of them share."""
    if len(axes) != 2 or not panels:
        raise ValueError("a figure has two axes, down and across, and panels")
    down, across = map(str, axes)
    drawings = [_panel(fence, (down, across), panel) for panel in panels]
    first, *rest = (facts.items() for _, facts in drawings)
    common = [fact for fact in first if all(fact in facts for facts in rest)]
    caption = fence.fill(caption, dict(common))
    panels = [panel for panel, _ in drawings]
    html = render("figure", panels=panels, caption=caption)
    return Output(html, plain(caption))


def _trace(
    *, flow: str, given: dict[str, Any], title: str, within: str = ""
) -> tuple[Traced, dict[str, Any]]:
    """Run a plain form and record it; the facts are for captions."""
    file, _, name = flow.partition("(")[0].partition(".")
    files = [path.stem for path in PLAIN.glob("[!_]*.py")]
    if file not in files:
        raise ValueError(f"there is no plain form {file!r}{near(file, files)}")
    traced = trace(file, name, arguments(flow), given, within)
    return traced, arguments(flow) | given | {"sizes": traced.sizes}


def flow(
    fence: Fence, *, caption: str, numbers: str, head: list[object], panels: list[dict[str, Any]]
) -> Output:
    """Draw the variables of plain forms, and the same in a table in a fold."""
    drawings, tables = [], []
    for panel in panels:
        check_keys("a panel of a flow", panel, _trace)
        record, facts = _trace(**panel)
        title = fence.fill(str(panel["title"]), facts)
        drawings.append(flows.draw(record, title)._asdict())
        comma = {"en": ", ", "zh": "、"}[fence.language]
        tables.append((title, flows.rows(record, comma)))
    caption = fence.fill(caption, facts)
    html = render(
        "flow",
        panels=drawings,
        caption=caption,
        numbers=numbers,
        head=head,
        tables=tables,
        rows=[row for _, rows in tables for row in rows],
    )
    texts = [numbers]
    for title, cells in tables:
        texts += [title] if len(tables) > 1 else []
        texts.append(as_markdown(head, cells, Words(None)))
    return Output(html, plain(caption), "\n\n".join(texts))


def table(
    fence: Fence,
    *,
    caption: str,
    head: list[object],
    words: dict[str, Any] | None = None,
    **rows: Any,
) -> Output:
    """Write the rows that a function of the page returns, or rows of models."""
    (key,) = TABLES.keys() & rows.keys()
    cells, facts = TABLES[key](fence.page, **rows)
    cells = [
        [getattr(x, fence.language) if isinstance(x, Text) else x for x in row] for row in cells
    ]
    if fence.language == "zh":  # a list of names
        cells = [
            [x.replace("`, `", "`、`") if isinstance(x, str) else x for x in row] for row in cells
        ]
    caption, texts = fence.fill(caption, facts), Words(words)
    html = render("table", caption=caption, head=head, rows=cells, words=texts)
    return Output(html, plain(caption), as_markdown(head, cells, texts))


def plot(
    fence: Fence,
    *,
    plot: str,
    title: str,
    caption: str,
    numbers: str,
    head: list[object],
    words: dict[str, Any],
) -> Output:
    """Draw a plot, in which `{key}` is a word, and its numbers in a fold."""
    picture, texts = value(plot, fence.page), Words({**words, "title": title})
    wide, narrow = (
        re.sub(r"\{(\w+)\}", lambda match: escape(texts[match[1]]), drawing)
        for drawing in (picture.wide, picture.narrow)
    )
    caption = fence.fill(caption, arguments(plot))
    html = render(
        "plot",
        svg=Markup(wide + narrow),
        caption=caption,
        numbers=numbers,
        head=head,
        rows=picture.rows,
        words=texts,
    )
    text = f"{numbers}\n\n{as_markdown(head, picture.rows, texts)}"
    return Output(html, plain(caption), text)


BUTTONS = {"en": ("Back", "Next"), "zh": ("上一步", "下一步")}


def steps(
    fence: Fence,
    *,
    steps: str,
    title: str,
    frames: list[str],
    caption: str = "",
    words: dict[str, Any] | None = None,
) -> Output:
    """Draw frames beside each other; `{key}` in a drawing is a word."""
    strip, texts = value(steps, fence.page), Words(words)
    if len(strip.frames) != len(frames):
        raise ValueError(f"{len(frames)} texts, {len(strip.frames)} frames")
    facts, shown_frames = arguments(steps), []
    title = fence.fill(title, facts)
    for n, (frame, text) in enumerate(zip(strip.frames, frames, strict=True)):
        name = f"{title}: {n + 1} / {len(frames)}"
        size = strip.width, strip.height
        drawing = svg.picture(*size, name, frame.marks)
        markup = re.sub(r"\{(\w+)\}", lambda match: escape(texts[match[1]]), drawing)
        sentence = fence.fill(text, facts | frame.facts)
        shown_frames.append((Markup(markup), sentence))
    back, forth = BUTTONS[fence.language]
    html = render(
        "steps",
        width=strip.width,
        title=title,
        frames=shown_frames,
        back=back,
        next=forth,
        caption=caption,
        words=texts,
    )
    listing = "\n".join(f"{n}. {plain(s)}" for n, (_, s) in enumerate(shown_frames, 1))
    return Output(html, plain(caption), listing)


STILLS = ROOT / "sitekit/stills"
BELOW_LIVE = {
    "en": {
        "again": "Start again",
        "link": "Copy link",
        "copied": "Copied",
        "skip": "Skip to the figure",
    },
    "zh": {"again": "重新开始", "link": "复制链接", "copied": "已复制", "skip": "跳到互动图"},
}


def still(name: str, language: str) -> str:
    """What a live figure draws first. Both languages share a file: a line that
    only one of them has begins with its name."""
    path = STILLS / f"{name}.html"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    shown = (line.removeprefix(language) for line in lines)
    return "".join(f"{line}\n" for line in shown if line.startswith("<"))


class Control(NamedTuple):
    """A field that changes the state of a live figure."""

    kind: str  # check, slide, number, choose, pick or press
    name: str  # of the part of the state
    label: str
    min: float = 0
    max: float = 0
    step: float = 1
    options: dict[str, str] | None = None
    adds: str = ""  # to a text, when pressed


CONTROLS = ("check", "slide", "number", "choose", "pick", "press")


def _control(spec: dict[str, Any]) -> Control:
    """`{slide: T, label: "new tokens", min: 1, max: 8}` as a field."""
    kind = single_key("a control", CONTROLS, spec)
    rest = {key: value for key, value in spec.items() if key != kind}
    if unknown := rest.keys() - {*Control._fields[2:]}:
        raise ValueError(f"a control has no {', '.join(sorted(unknown))}")
    return Control(kind, spec[kind], **rest)


def live(
    fence: Fence,
    *,
    live: str,
    title: str,
    words: dict[str, str],
    controls: list[dict[str, Any]] | None = None,
    data: str = "",
    caption: str = "",
) -> Output:
    """A figure that one takes hold of: assets/live/NAME.js draws it, and what it
    draws first is recorded, so that it stands there without scripts, too."""
    html = render(
        "live",
        figure=live,
        title=title,
        controls=[_control(control) for control in controls or []],
        still=Markup(still(live, fence.language)),
        caption=caption,
        say=BELOW_LIVE[fence.language],
        texts={key: inline(text) for key, text in words.items()},
        data=value(data, fence.page) if data else None,
    )
    return Output(html, plain(caption))


KINDS: dict[str, Callable[..., Output]] = {
    "figure": figure,
    "flow": flow,
    "table": table,
    "plot": plot,
    "steps": steps,
    "live": live,
}


@cache
def draw_fence(body: str, kind: str, fence: Fence) -> Output:
    """Draw a fence. A kind that only one page has is drawn by its file."""
    spec = yaml.load(body, yaml.CSafeLoader)
    if kind not in KINDS:
        function = find(kind, fence.page)
        check_keys(f"a {kind}", spec, function)
        html = str(function(**spec))
        caption = plain(spec.get("caption", ""))
        if "{" in caption:  # the function has filled it in
            (drawn,) = re.findall(r"(?s)<figcaption>(.*?)</figcaption>", html)
            caption = unmarked(drawn)
        return Output(html, caption)
    functions: list[Callable[..., Any]] = [KINDS[kind]]
    if kind == "table":
        functions.append(TABLES[single_key("a table", TABLES, spec)])
    check_keys(f"a {kind}", spec, *functions)
    return KINDS[kind](fence, **spec)


def drawing(body: str, kind: str, fence: Fence) -> str:
    return draw_fence(body, kind, fence).html


class FenceError(SuperFencesException, BuildError):
    """Superfences lets its own exception alone through: any other would
    leave the YAML on the page, as if it were code. MkDocs prints a BuildError
    in a line, below the name of the page."""


def draw(
    body: str, kind: str, _class: str, _options: dict[str, Any], _md: Markdown, **_: Any
) -> str:
    """Draw a fence for superfences: mkdocs.yml names this for each kind."""
    path, language, address = current()
    try:
        html = drawing(body, kind, Fence(path.stem, language))
    except Exception as error:
        reason = f"{_place(body, path)}: the fence {kind!r}: {error}"
        raise FenceError(reason) from error
    # Links to pages are those of Markdown.
    return LINK.sub(lambda link: f'"{address(link[1])}"', html)


def _place(body: str, path: Path) -> str:
    """The file and line of a fence, which may stand indented in a box."""
    text = numbers.fill(source.text_of(path), path)
    page, lines = ([line.strip() for line in part.splitlines()] for part in (text, body))
    starts = (i for i in range(len(page)) if page[i : i + len(lines)] == lines)
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return f"{name}:{next(starts, 0)}"
