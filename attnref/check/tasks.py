"""The exercises of `attnref check`: what each asks for. Needs no torch.

They are in tasks.txt: name and shared paragraphs, code, then in each language
the title and what is asked. What has no code is such a paragraph.
"""

import ast
import re
from pathlib import Path
from typing import NamedTuple

from attnref.words import Text, hint, message


class Task(NamedTuple):
    """What one exercise asks for: `stub` is the code to fill in. `functions`,
    or a class, have parameters, each with its default, or "" if it has none."""

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
        """Each as it is called: `KVCache(max_len)`."""
        given = (
            ", ".join(f"{w}={d}" if d else w for w, d in of.items())
            for of in self.functions.values()
        )
        return [*map("{}({})".format, self.functions, given)]


def _functions(stub: str) -> dict[str, dict[str, str]]:
    result = {}
    for node in ast.parse(stub).body:
        walked = (f for f in ast.walk(node) if isinstance(f, ast.FunctionDef))
        given = next(walked).args  # of a class, `__init__` comes first
        words = [a.arg for a in given.args if a.arg != "self"]
        defaults = [*map(ast.unparse, given.defaults)]
        defaults = [""] * (len(words) - len(defaults)) + defaults
        assert isinstance(node, ast.FunctionDef | ast.ClassDef)
        result[node.name] = dict(zip(words, defaults, strict=True))
    return result


def _read(text: str) -> dict[str, Task]:
    tasks = {}
    shared: dict[str, list[str]] = {}
    for entry in text.split("\n= "):
        head, *both = re.split(r"\n-(?: |(?=\n))", entry.lstrip("= ").rstrip())
        head, _, code = head.partition("\n")
        name, *words = head.replace(":", "").split()
        titles, texts = zip(*(x.split("\n", 1) for x in both), strict=True)
        parts = [texts, *(shared[word] for word in words)]
        about = map("\n\n".join, zip(*parts, strict=True))
        if code:
            body = r"\1:\n    raise NotImplementedError\n\n"
            stub = re.sub(r"^(def .*\)|\))$", body, code, flags=re.MULTILINE)
            stub = f"{stub.rstrip()}\n"
            of = _functions(stub)
            tasks[name] = Task(Text(*titles), Text(*about), stub, of)
        else:
            shared[name] = list(texts)
    return tasks


TASKS = _read(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))


def task(word: str) -> str:
    """The name of an exercise, from how people write it: `Online-Softmax`."""
    name = word.strip().lower().replace("-", "_").removesuffix(".py")
    if name not in TASKS:
        meant = hint(name, {name: name for name in TASKS})
        meant = meant or message("; --list prints all")
        raise ValueError(message("there is no exercise {!r}", word) + meant)
    return name


def stub(name: str, language: str) -> str:
    """The file to fill in."""
    task = TASKS[name]
    title, about = (getattr(x, language) for x in (task.title, task.about))
    return (
        f'"""{title}\n\n{about}\n\n    attnref check {name} FILE\n"""\n\n'
        f"import torch\n\n\n{task.stub}"
    )
