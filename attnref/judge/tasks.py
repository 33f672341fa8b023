"""The exercises of `attnref check`: what each asks for. Needs no torch.

They are in tasks.toml. Paragraphs that several exercises end with are in its
table `shared`.
"""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from attnref.words import Text, hint, message


class Task(NamedTuple):
    """What one exercise asks for: `stub` is the code to fill in.

    `functions` says of each function, or of the class, which parameters it has:
    their names, each with its default, which is "" for a required one.
    """

    title: Text
    about: Text
    stub: str
    functions: dict[str, dict[str, str]]

    @property
    def names(self) -> list[str]:
        """The functions or the class that a solution defines."""
        return [*self.functions]

    @property
    def signatures(self) -> list[str]:
        """How each function is called: `KVCache(max_len)`."""
        signatures = []
        for function, defaults in self.functions.items():
            parts = (f"{x}={d}" if d else x for x, d in defaults.items())
            signatures.append(f"{function}({', '.join(parts)})")
        return signatures


def _functions(stub: str) -> dict[str, dict[str, str]]:
    functions = {}
    for node in ast.parse(stub).body:
        assert isinstance(node, ast.FunctionDef | ast.ClassDef)
        nodes = (x for x in ast.walk(node) if isinstance(x, ast.FunctionDef))
        arguments = next(nodes).args  # of a class, `__init__` comes first
        names = [a.arg for a in arguments.args if a.arg != "self"]
        defaults = [*map(ast.unparse, arguments.defaults)]
        defaults = [""] * (len(names) - len(defaults)) + defaults
        functions[node.name] = dict(zip(names, defaults, strict=True))
    return functions


def _task(row: dict[str, Any], shared: dict[str, dict[str, str]]) -> Task:
    parts = [row, *(shared[name] for name in row.get("shared", []))]
    texts = ("\n\n".join(part[x] for part in parts) for x in Text._fields)
    body = r"\1:\n    raise NotImplementedError\n\n"
    code = re.sub(r"^(def .*\)|\))$", body, row["code"], flags=re.MULTILINE)
    stub = f"{code.rstrip()}\n"
    return Task(Text(*row["title"]), Text(*texts), stub, _functions(stub))


_FILE = Path(__file__).with_suffix(".toml")
_ROWS = tomllib.loads(_FILE.read_text(encoding="utf-8"))
_SHARED = _ROWS.pop("shared")
TASKS = {name: _task(row, _SHARED) for name, row in _ROWS.items()}
# Those of the page learn/course, in its order.
COURSE = (
    *("softmax", "sdpa", "mha", "masks", "rope", "mha_cached", "gqa"),
    *("flash", "mla_latent", "gated_delta"),
)


def exercise_name(word: str) -> str:
    """The name of an exercise, from how people write it: `Online-Softmax`."""
    name = word.strip().lower().replace("-", "_").removesuffix(".py")
    if name not in TASKS:
        advice = hint(name, {name: name for name in TASKS})
        advice = advice or message("; --list prints all")
        raise ValueError(message("there is no exercise {!r}", word) + advice)
    return name


def file_to_fill(name: str, language: str) -> str:
    """The file of an exercise, with what is to be written left out."""
    task = TASKS[name]
    title, about = (getattr(x, language) for x in (task.title, task.about))
    return (
        f'"""{title}\n\n{about}\n\n    attnref check {name} FILE\n"""\n\n'
        f"import torch\n\n\n{task.stub}"
    )
