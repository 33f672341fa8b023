"""What pages draw with: `figure`, `table`, `plot`, `models`, `calculator`.

The body of such a fence is YAML: what to draw, and the words of the page's
language. Whatever is wrong with one stops the build.
"""

import re
from html import escape
from pathlib import Path
from typing import Any

import yaml
from markdown import Markdown
from mkdocs.exceptions import BuildError
from pymdownx.superfences import SuperFencesException

from sitekit import ROOT
from sitekit.figures import (
    BOLD,
    SCENES,
    bars,
    heatmap,
    lines,
    room,
    stream,
    wirings,
)
from sitekit.interactive import calculator, table_of_models
from sitekit.latent import BARS, FLOWS
from sitekit.latent import TABLES as LATENT_TABLES
from sitekit.mathml import mathml
from sitekit.numbers import TABLES as NUMBER_TABLES
from sitekit.plots import plot
from sitekit.tables import TABLES, Word

MARKS = re.compile(r"(`[^`]+`|\$[^$]+\$|\[[^\]]+\]\([^)]+\))")


def _inline(text: str) -> str:
    """Escaped, with `code`, $formulas$ and [links](to) as in Markdown."""
    out = []
    for part in MARKS.split(text):
        if part.startswith("`"):
            out.append(f"<code>{escape(part[1:-1], quote=False)}</code>")
        elif part.startswith("$"):
            out.append(mathml(part[1:-1], display=False))
        elif part.startswith("["):
            words, target = part[1:-1].split("](")
            out.append(f'<a href="{escape(target)}">{escape(words)}</a>')
        else:
            out.append(escape(part, quote=False))
    return "".join(out)


def _panel(panel: dict[str, Any], axes: tuple[str, str]) -> str:
    scene, title = panel["scene"], panel["title"]
    if "words" in panel:
        svg = stream(FLOWS[scene](), panel["words"], title)
        svg = f'<div class="scroll">{svg}</div>'
    elif "labels" in panel:
        labels = [str(x).replace("`", "") for x in panel["labels"]]
        svg = bars(BARS[scene](), labels, title)
    elif "rows" not in panel:
        svg = lines(wirings()[scene], axes, title)
    else:
        rows = [str(r) for r in panel["rows"]]
        columns = [str(c) for c in panel.get("columns", rows)]
        svg = heatmap(SCENES[scene](), rows, columns, axes, title)
    # How wide drawing and title would be, for the row to share its room.
    width = re.findall(r' width="([\d.]+)"', svg)[0]
    sizes = f"--svg: {width}; --title: {room([title], 1, BOLD):.2f}"
    return (
        f'<div class="panel" style="{sizes}">'
        f'<p class="panel-title">{_inline(title)}</p>'
        f"{svg}</div>"
    )


def figure(spec: dict[str, Any]) -> str:
    """caption, axes [query, key], panels: scene, title, rows, columns."""
    axes = tuple(spec["axes"])
    panels = "".join(_panel(panel, axes) for panel in spec["panels"])
    return (
        f'<figure class="drawn"><div class="panels">{panels}</div>'
        f"<figcaption>{_inline(spec['caption'])}</figcaption></figure>"
    )


def table(spec: dict[str, Any]) -> str:
    """table, caption, head (one cell a column), words for the cells."""
    words = spec.get("words", {})
    rows = {**TABLES, **LATENT_TABLES, **NUMBER_TABLES}[spec["table"]]()
    head = spec["head"]
    used: set[str] = set()
    lines = []
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"{len(head)} heads for {len(row)} columns")
        cells = []
        for cell in row:
            if isinstance(cell, Word):
                used.add(cell.key)
                cells.append(
                    f'<td class="word-{cell.key}">'
                    f"{_inline(words[cell.key])}</td>"
                )
            else:
                cells.append(f"<td>{_inline(cell)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    if used != set(words):
        raise ValueError(f"words never used: {set(words) - used}")
    heads = "".join(f'<th scope="col">{_inline(h)}</th>' for h in head)
    return (
        '<figure class="computed"><div class="scroll"><table class="tabular">'
        f"<thead><tr>{heads}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
        f"<figcaption>{_inline(spec['caption'])}</figcaption></figure>"
    )


KINDS = {
    "figure": figure,
    "table": table,
    "plot": plot,
    "models": table_of_models,
    "calculator": calculator,
}


class FenceError(SuperFencesException, BuildError):
    """Superfences lets its own exception alone through: any other would
    leave the YAML on the page, as if it were code. MkDocs prints a BuildError
    in a line, below the name of the page."""


def draw(
    source: str,
    kind: str,
    _class: str,
    _options: dict[str, Any],
    md: Markdown,
    **_: Any,
) -> str:
    """What superfences calls for each of the five fences."""
    try:
        return KINDS[kind](yaml.safe_load(source))
    except Exception as error:
        why = f"there is no {error}" if isinstance(error, KeyError) else error
        message = f"{_place(source, md)}: the fence {kind!r}: {why}"
        raise FenceError(message) from error


def _place(source: str, md: Markdown) -> str:
    """File and line of a fence, which may stand indented in a box."""
    relpath: Any = md.treeprocessors["relpath"]  # MkDocs': it has the file
    path = Path(relpath.file.abs_src_path)
    page = path.read_text(encoding="utf-8").splitlines()
    written = [line.strip() for line in page]
    body = [line.strip() for line in source.splitlines()]
    starts = range(len(written))
    same = (i for i in starts if written[i : i + len(body)] == body)
    first = next(same, 0)
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return f"{name}:{first}"
