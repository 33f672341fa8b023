"""What loads from transformers, as test_loads.py of the tests recorded it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sitekit.markdown.render import Row, Word
from sitekit.markdown.tables import code

# What transformers does, which no build imports.
ORACLES = Path(__file__).with_name("oracles.json")


def oracles() -> dict[str, Any]:
    return dict(json.loads(ORACLES.read_text(encoding="utf-8")))


def checkpoints() -> Iterator[Row]:
    """Attention modules of transformers: right here, wrong, or refused."""
    for row in oracles()["checkpoints"]:
        model = [row["model_type"], *filter(None, [row["config"]])]
        wrong = row["verdict"] == "wrong"
        reason = Word(row["reason"]) if wrong else code(*row["found"] or ())
        yield [
            code(*model),
            Word(row["verdict"]),
            f"{row['found']:g}" if wrong else "",
            reason,
            code(*row["cure"]),
            Word(row["from_config"]),
        ]
