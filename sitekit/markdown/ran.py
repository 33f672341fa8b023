"""What a page was last run with: `{ran}` in its text, and `{torch}` and
`{transformers}` for the first two numbers of a version.

`make canary` writes the record after a run in which nothing failed.
"""

import json
import re

from sitekit import ROOT
from sitekit.markdown import source

RECORD = ROOT / "sitekit/drawn/ran.json"
RAN = {
    "en": "transformers {transformers} and torch {torch} on {date}",
    "zh": "transformers {transformers} 和 torch {torch}（{date}）",
}
WORDS = re.compile(r"\{(ran|torch|transformers)\}")


def expanded(markdown: str, language: str) -> str:
    """The Markdown of a page, with what is recorded."""
    record = json.loads(source.text_of(RECORD))
    words = {
        name: ".".join(version.split(".")[:2])
        for name, version in record["versions"].items()
    }
    words["ran"] = RAN[language].format(
        date=record["date"], **record["versions"]
    )
    return WORDS.sub(lambda match: words[match[1]], markdown)
