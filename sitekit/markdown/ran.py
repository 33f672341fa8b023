"""The versions with which the code of a page last ran: `{ran}` in its text is
all of them and the date, `{torch}` and `{transformers}` are the first two
numbers of one.

`make canary` writes the record after a run in which nothing failed.
"""

import json
import re

from sitekit import ROOT
from sitekit.markdown import source

RECORD = ROOT / "sitekit/drawn/ran.json"
SENTENCE = {
    "en": "transformers {transformers} and torch {torch} on {date}",
    "zh": "transformers {transformers} 和 torch {torch}（{date}）",
}
PLACEHOLDER = re.compile(r"\{(ran|torch|transformers)\}")


def fill(markdown: str, language: str) -> str:
    """Put the recorded date and versions into the Markdown of a page."""
    record = json.loads(source.text_of(RECORD))
    words = {name: ".".join(version.split(".")[:2]) for name, version in record["versions"].items()}
    words["ran"] = SENTENCE[language].format(date=record["date"], **record["versions"])
    return PLACEHOLDER.sub(lambda match: words[match[1]], markdown)
