"""What engines of attention do, recorded: make engines

Puts the engines into build/engines, in the versions of the record, or the
newest with `make engines NEWEST=1`, and asks each in its own process, on a CPU.
sitekit/drawn/engines.json then has the versions, the date, and each answer
with the mistake that it is, and what the engine said where it refused. The page
*Engines compared* is drawn from it. It ends with 0 whatever the answers are; an
engine that was not run is not in the record.
"""

import json
import re
import subprocess
import sys
from datetime import date
from typing import Any

from attnref.judge.conform import REFUSED, known
from sitekit import ROOT
from tests.canary import environment, versions

PLACE = ROOT / "build/engines"
RECORD = ROOT / "sitekit/drawn/engines.json"
# torch and transformers are those installed here.
INSTALLED = ("jax", "mlx[cpu]", "onnx", "onnxruntime", "openvino", "keras")
INSTALLED += ("tinygrad",)
ASK = """
import json, sys
from attnref.judge.conform import builtin, conform
print(json.dumps([list(x) for x in conform(builtin(sys.argv[1]))]))
"""


def answers(python: str, engine: str) -> dict[str, list[str]] | None:
    """By behaviour: the answer, a mistake or "", and the words of a refusal."""
    asked = subprocess.run(
        [python, "-c", ASK, engine], cwd=ROOT, capture_output=True, text=True
    )
    if asked.returncode:
        print(f"{engine}: {asked.stderr.strip().splitlines()[-1]}")
        return None
    rows = json.loads(asked.stdout.strip().splitlines()[-1])
    return {
        behaviour: [answer, mistake or "", words if answer == REFUSED else ""]
        for behaviour, _, answer, mistake, _, words, _ in rows
    }


def library(name: str) -> str:
    """Of an engine, or of what is installed: torch_flex, mlx[cpu]."""
    return name.split("_")[0].split("[")[0]


def record(python: str) -> None:
    found = {x: y for x in known() if (y := answers(python, x))}
    names = tuple(dict.fromkeys(map(library, found)))
    result: dict[str, Any] = {"date": str(date.today())}
    result |= {"versions": versions(python, names), "answers": found}
    text = json.dumps(result, ensure_ascii=False, indent=0)
    # A line for each answer, so that a difference of records can be read.
    text = re.sub(r"\[\n(.*)\n(.*)\n(.*)\n\]", r"[\1 \2 \3]", text)
    RECORD.write_text(f"{text}\n", encoding="utf-8")


def main(newest: bool) -> None:
    old = json.loads(RECORD.read_text(encoding="utf-8"))["versions"]
    pins = [f"{x}=={old[library(x)]}" for x in INSTALLED]
    record(environment(PLACE, *(INSTALLED if newest else pins)))


if __name__ == "__main__":
    main("newest" in sys.argv[1:])
