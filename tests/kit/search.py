"""The index of the search, as the build leaves it."""

import json
from pathlib import Path
from typing import Any

from sitekit.search import Index


def entries(folder: Path, language: str) -> list[dict[str, Any]]:
    """Of a built site."""
    root = folder / {"en": "", "zh": "zh"}[language]
    text = (root / Index.PLACE).read_text(encoding="utf-8")
    return list(json.loads(text.removeprefix("entries=")))
