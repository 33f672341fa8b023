"""The two fences that pages draw with: `figure` and `table`.

Their body is YAML: what to draw, and the words of the page's language.
"""

import re
from html import escape
from typing import Any

import yaml

from sitekit.figures import SCENES, heatmap
from sitekit.mathml import mathml
from sitekit.tables import TABLES, Word


def _inline(text: str) -> str:
    """Escaped, with `code` and $formulas$ as in Markdown."""
    parts = re.split(r"`([^`]+)`|\$([^$]+)\$", text)
    out = []
    for plain, code, latex in zip(
        parts[::3], [*parts[1::3], None], [*parts[2::3], None], strict=True
    ):
        out.append(escape(plain, quote=False))
        if code:
            out.append(f"<code>{escape(code, quote=False)}</code>")
        elif latex:
            out.append(mathml(latex, display=False))
    return "".join(out)


def figure(
    source: str,
    language: str,
    css_class: str,
    options: dict[str, str],
    md: Any,
    **_: Any,
) -> str:
    """caption, axes [query, key], panels: scene, title, rows, columns."""
    spec = yaml.safe_load(source)
    panels = []
    for panel in spec["panels"]:
        rows = [str(r) for r in panel["rows"]]
        columns = [str(c) for c in panel.get("columns", rows)]
        svg = heatmap(
            SCENES[panel["scene"]](),
            rows,
            columns,
            tuple(spec["axes"]),
            panel["title"],
        )
        panels.append(
            f'<div class="panel"><p class="panel-title">'
            f"{_inline(panel['title'])}</p>{svg}</div>"
        )
    return (
        f'<figure class="drawn"><div class="panels">'
        f"{''.join(panels)}</div>"
        f"<figcaption>{_inline(spec['caption'])}</figcaption></figure>"
    )


def table(
    source: str,
    language: str,
    css_class: str,
    options: dict[str, str],
    md: Any,
    **_: Any,
) -> str:
    """table, caption, head (one cell a column), words for the cells."""
    spec = yaml.safe_load(source)
    words = spec.get("words", {})
    rows = TABLES[spec["table"]]()
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
