"""make new NAME=sliding: the skeleton of a layer in all its places.

What it writes runs and builds as it stands: GQA under another name. What makes
the variant one of its own is left to do, and is printed.
"""

import re
from pathlib import Path

from sitekit import ROOT, parity

PAGE = {
    "en": """---
title: {title}
description: "{title}: what this page has that others have not."
aliases: []
---
# {title} {{ #{name} }}

<p class="lead" markdown>Which question does this page answer?</p>

## The idea {{ #idea }}

## The formula {{ #formula }}

## The code {{ #code }}

```python title="attnref/layers/{name}.py"
--8<-- "attnref/layers/{name}.py:imports"
```

```python title="attnref/layers/{name}.py"
--8<-- "attnref/layers/{name}.py:module"
```

## Shapes {{ #shapes }}

## What it costs {{ #cost }}

## What goes wrong {{ #pitfalls }}

## Where it comes from {{ #history }}

## Sources {{ #sources }}
""",
    "zh": """---
title: {title}
description: "{title}：用一句话说明这一页讲什么。"
aliases: []
---
# {title} {{ #{name} }}

<p class="lead" markdown>这一页要回答的是什么问题？</p>

## 思路 {{ #idea }}

## 公式 {{ #formula }}

## 代码 {{ #code }}

```python title="attnref/layers/{name}.py"
--8<-- "attnref/layers/{name}.py:imports"
```

```python title="attnref/layers/{name}.py"
--8<-- "attnref/layers/{name}.py:module"
```

## 形状 {{ #shapes }}

## 开销 {{ #cost }}

## 常见错误 {{ #pitfalls }}

## 来龙去脉 {{ #history }}

## 出处 {{ #sources }}
""",
}
TEST = '''"""{title}, against something that nobody here wrote."""

import pytest


def test_it_is_what_somebody_else_computes():
    pytest.fail("compare {kind} with a module of torch or transformers")
'''
LEFT = """
left to do:
  attnref/layers/{name}.py        what makes it a variant; its docstrings
  tests/layers/test_{name}.py     an oracle; the test fails until there is one
  tests/variants.py               its entry: the laws of all layers
  docs/*/layers/{name}.md         the pages; their names in the navigation
  make synced PAGE={name}         once both pages agree
  make check PAGE={name}          then make test"""


def _after_last(path: Path, pattern: str, line: str) -> None:
    """Put a line below the last one that matches."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    last = max(i for i, old in enumerate(lines) if re.match(pattern, old))
    lines.insert(last + 1, line)
    path.write_text("".join(lines), encoding="utf-8")


def _layer(name: str, kind: str) -> str:
    """The file of GQA without its loop form, under another name."""
    gqa = (ROOT / "attnref/layers/gqa.py").read_text(encoding="utf-8")
    loop = r"# --8<-- \[start:loop\]\n.*?# --8<-- \[end:loop\]\n\n\n"
    text = re.sub(loop, "", gqa, flags=re.DOTALL)
    text = re.sub(r"^import torch\nfrom torch", "from torch", text, flags=re.M)
    text = re.sub(r"^from attnref\.core\.softmax .*\n", "", text, flags=re.M)
    text = text.replace("GroupedQueryAttention", kind)
    text = text.replace(
        "        >>> layer = ",
        "        >>> import torch\n        >>> layer = ",
        1,
    )
    return re.sub(r'^""".*"""', f'"""{kind}: what it is, in one line."""', text)


def new(name: str) -> str:
    """Write the skeleton of a layer; what is left to do."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(f"{name!r} is no name of a file: sliding, say")
    title = name.replace("_", " ").capitalize()
    kind = "".join(part.capitalize() for part in name.split("_")) + "Attention"
    stem = f"layers/{name}"
    files = {
        f"attnref/{stem}.py": _layer(name, kind),
        f"tests/layers/test_{name}.py": TEST,
        **{f"docs/{lang}/{stem}.md": text for lang, text in PAGE.items()},
    }
    there = [file for file in files if (ROOT / file).exists()]
    if there:
        raise ValueError(f"{there[0]} is there already")
    for file, text in files.items():
        if not file.startswith("attnref"):
            text = text.format(name=name, title=title, kind=kind)
        (ROOT / file).write_text(text, encoding="utf-8")
    face = ROOT / "attnref" / "__init__.py"
    line = f"from attnref.{stem.replace('/', '.')} import {kind}\n"
    _after_last(face, r"from attnref\.layers\.cross ", line)
    _after_last(face, r'    "CrossAttention"', f'    "{kind}",\n')
    for config in ("mkdocs.yml", "mkdocs.zh.yml"):
        entry = f"      - {title}: {stem}.md\n"
        _after_last(ROOT / config, r"      - .*: layers/", entry)
    for lang in PAGE:
        api = ROOT / "docs" / lang / "api.md"
        entry = f"\n::: attnref.layers.{name}.{kind}\n"
        _after_last(api, r"::: attnref\.layers\.cross\.", entry)
    for page in (stem, "api"):
        parity.mark_synced(page)
    return "\n".join(["written:", *(f"  {f}" for f in files)]) + LEFT.format(
        name=name
    )
