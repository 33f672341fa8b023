"""What newer releases of other libraries break, by name: make canary

`make canary-site` asks the same of what builds the site, in a folder of its
own: it builds the site strictly and runs its quick tests on the newest ones.

Puts into build/canary the newest transformers and PEFT, and the newest CPU
build of torch, over all else that is installed here, and runs there what
compares with them. build/canary/report.md says which versions are new, what
fails, and which section of a page shows it. If nothing fails, the versions go
into sitekit/drawn/ran.json, from which pages say what they were last run with;
if something does, pages keep the versions with which they are right.

It ends with 0 whatever fails: the report is to be read, and the workflow
canary.yml makes an issue of it.
"""

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections import defaultdict
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from sitekit import ROOT
from sitekit.markdown import pages, source
from sitekit.markdown.ran import RECORD
from tests.kit.pins import pinned

PLACE = ROOT / "build/canary"
# In the order of a whole run: what use/ compiles is seen in later measurements.
TESTS = ("tests/reference/core", "tests/reference/oracles")
TESTS += ("tests/released/oracles", "tests/site/use")
WATCHED = ("transformers", "peft", "torch")
# The same for what builds the site, and for what tests it.
SITE_WATCHED = ("mkdocs", "mkdocs-material", "pymdown-extensions")
SITE_WATCHED += ("mkdocstrings", "mkdocstrings-python", "mkdocs-autorefs")
SITE_WATCHED += ("Markdown", "Pygments", "Jinja2", "jieba", "math-core")
SITE_WATCHED += ("pytest", "pytest-markdown-docs")
SITE_TESTS = ("tests/site/test_site.py", "tests/site/test_pages.py")
SITE_TESTS += ("tests/site/test_markup.py", "tests/site/test_fences.py")
SITE_TESTS += ("tests/site/test_notes.py", "tests/site/test_moved.py")
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
VERSIONS = "import sys; from importlib.metadata import version as v"
VERSIONS += "; print(*map(v, sys.argv[1:]))"
NOTHING = "Nothing fails, and nothing is new."  # canary.yml looks for it
# Of tests that no page shows, in a file with another name than their page.
PAGE_OF = dict(
    re.findall(
        r"(\w+)=(\S+)",
        """
        caches=numbers/memory checks=layers/gqa
        checkpoints=models/your-model convert=models/your-model
        cores=core/sdpa dequantise=models/your-model
        families=models/your-model few=use/ship flex=core/flash
        fused=use/ship half_precision=beyond/recurrent
        images=core/rope inputs=layers/gqa loads=use/transformers
        mlstm=beyond/recurrent parts=core/biases
        plain=layers/gqa programs=use/project tokenizer=use/transformers
        recurrence=beyond/recurrent recurrent=beyond/recurrent
        torch=layers/gqa transformers=layers/gqa
        """,
    )
)


class Failure(NamedTuple):
    file: str
    test: str
    message: str  # what pytest says of it


def environment(place: Path, *names: str) -> str:
    """Its Python, which finds the newest of these there, all else in ours."""
    venv.create(place, clear=True)
    folder = next(place.glob("lib/python*/site-packages"))
    ours = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
    folder.joinpath("ours.pth").write_text(f"{ours}\n", encoding="utf-8")
    python = str(place / "bin/python")
    install = [python, "-m", "pip", "install", "--upgrade", "--quiet"]
    subprocess.run([*install, *names], check=True)
    return python


def newest_torch(python: str) -> None:
    # From this index alone: others, which pip may be told of, have builds for
    # Linux with CUDA, of gigabytes. Without a newer one, torch stays as it is.
    builds = ["--isolated", "--no-deps", "--retries=0", "--index-url"]
    alone = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
    install = [python, "-m", "pip", "install", "--upgrade", "--quiet"]
    command = [*install, *builds, CPU_BUILDS, "torch"]
    subprocess.run(command, env=alone, check=False)


def outcomes(python: str, *tests: str) -> tuple[int, list[Failure]]:
    """How many pass, and those that do not."""
    results, failures, passed = PLACE / "results.xml", list[Failure](), 0
    results.unlink(missing_ok=True)
    written = ["-o", "junit_family=xunit1", f"--junitxml={results}"]
    written += ["-o", "addopts=", "--continue-on-collection-errors"]
    subprocess.run([python, "-m", "pytest", "-q", *written, *tests], cwd=ROOT)
    for case in ElementTree.parse(results).iter("testcase"):
        broken = [part for part in case if part.tag in ("failure", "error")]
        passed += not len(case)  # neither failed nor skipped
        for part in broken[:1]:
            errors = re.findall(r"^E +(.*)", part.text or "", re.MULTILINE)
            name = case.attrib["name"]  # of a file, if it is not imported
            file = case.get("file", f"{name.replace('.', '/')}.py")
            message = " ".join(errors) or part.attrib["message"]
            failures.append(Failure(file, name, message[:300]))
    return passed, failures


@cache
def shown() -> dict[source.Include, list[str]]:
    """Where pages include a section: at `use/ship#pads`, for example."""
    result = defaultdict(list)
    for path in pages.markdown_files("en"):
        body = pages.body_of(path)
        for fence in source.fences(body):
            before = "\n".join(body.split("\n")[: fence.line])
            heading = before.rpartition(" { #")[2].partition(" }")[0]
            for include in fence.includes:
                result[include].append(f"{pages.stem_of(path)}#{heading}")
    return result


def places(file: str, test: str) -> list[str]:
    """Where pages show what a test consists of, or the page that it is of."""
    if not file.endswith(".py") or Path(file).parent == Path("tests/site"):
        return ["the site"]
    text = source.text_of(ROOT / file)
    defined = {getattr(node, "name", ""): node for node in ast.parse(text).body}
    todo, lines, section = [test.partition("[")[0]], set[int](), ""
    while todo:
        if node := defined.pop(todo.pop(), None):
            lines |= {*range(node.lineno, (node.end_lineno or 0) + 1)}
            todo += [x.id for x in ast.walk(node) if isinstance(x, ast.Name)]
    out: dict[str, None] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if mark := source.MARK.fullmatch(line):
            section = mark["name"] if mark["kind"] == "start" else ""
        elif section and number in lines:
            included = shown().get(source.Include(file, section), [])
            out |= dict.fromkeys(included)
    stem = Path(file).stem.removeprefix("test_")
    named = map(pages.stem_of, pages.markdown_files("en"))
    of_name = {x.rpartition("/")[2].replace("-", "_"): x for x in named}
    return [*out][::-1] or [PAGE_OF.get(stem) or of_name.get(stem, "no page")]


def report(
    old: dict[str, str], new: dict[str, str], passed: int, bad: list[Failure]
) -> str:
    """In Markdown, by place: what each test says by its name, and found."""
    by_place = defaultdict(list)
    for file, test, message in bad:
        name = test.partition("[")[0].removeprefix("test_").replace("_", " ")
        line = f"- {name}: not so\n  `{file}::{test}`\n  {message}"
        by_place[", ".join(places(file, test))].append(line)
    changed = [
        f"{x} {old.get(x)} -> {new[x]}" for x in new if old.get(x) != new[x]
    ]
    advice = "Pages keep the old versions until these are mended."
    if not bad:
        advice = "Commit sitekit/drawn/ran.json." if changed else NOTHING
    parts = [f"## {where}\n\n" + "\n".join(x) for where, x in by_place.items()]
    head = f"{len(bad)} of {len(bad) + passed} tests fail. {advice}"
    now = ", ".join(changed) or f"As last time: {new}"
    return "\n\n".join([f"# Canary, {date.today()}", head, now, *parts]) + "\n"


def versions(python: str, names: tuple[str, ...]) -> dict[str, str]:
    command = [python, "-c", VERSIONS, *names]
    got = subprocess.check_output(command, text=True).split()
    return {x: v.partition("+")[0] for x, v in zip(names, got, strict=True)}


def site() -> None:
    """Against what is pinned; nothing is recorded."""
    place = PLACE / "site"
    python = environment(place, *SITE_WATCHED)
    now = versions(python, SITE_WATCHED)
    passed, failures = outcomes(python, *SITE_TESTS)
    built = subprocess.run(
        [python, "-m", "mkdocs", "build", "--strict", "-d", place / "built"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if built.returncode:
        (*_, last) = built.stderr.strip().splitlines() or ["it ended"]
        failures.append(Failure("mkdocs.yml", "the_site_is_built", last[:300]))
    text = report(pinned(), now, passed + (not built.returncode), failures)
    text = text.replace("Commit sitekit/drawn/ran.json.", "Raise the pins.")
    (place / "report.md").write_text(text, encoding="utf-8")
    print(text)


def main() -> None:
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    python = environment(PLACE, "transformers", "peft")
    newest_torch(python)
    at = versions(python, WATCHED)
    passed, failures = outcomes(python, *TESTS)
    text = report(record["versions"], at, passed, failures)
    (PLACE / "report.md").write_text(text, encoding="utf-8")
    print(text)
    if not failures:
        record = {"date": str(date.today()), "versions": at, "passed": passed}
        RECORD.write_text(f"{json.dumps(record)}\n", encoding="utf-8")


if __name__ == "__main__":
    site() if "site" in sys.argv[1:] else main()
