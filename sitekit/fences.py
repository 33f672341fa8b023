"""The two fences that pages draw with: `figure` and `table`.

Their body is YAML: what to draw, and the words of the page's language.
"""

import re
from html import escape
from typing import Any

import yaml

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
from sitekit.latent import BARS, FLOWS
from sitekit.latent import TABLES as LATENT_TABLES
from sitekit.mathml import mathml
from sitekit.numbers import TABLES as NUMBER_TABLES
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


def figure(source: str, *_: Any, **__: Any) -> str:
    """caption, axes [query, key], panels: scene, title, rows, columns."""
    spec = yaml.safe_load(source)
    axes = tuple(spec["axes"])
    panels = "".join(_panel(panel, axes) for panel in spec["panels"])
    return (
        f'<figure class="drawn"><div class="panels">{panels}</div>'
        f"<figcaption>{_inline(spec['caption'])}</figcaption></figure>"
    )


def table(source: str, *_: Any, **__: Any) -> str:
    """table, caption, head (one cell a column), words for the cells."""
    spec = yaml.safe_load(source)
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
