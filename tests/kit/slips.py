"""The right solutions by einsum, and the same with other lines."""

import inspect
from importlib import import_module
from types import SimpleNamespace

SCALE = "    scores = scores / q.shape[-1] ** 0.5\n"
WEIGHTS = "    weights = softmax(scores)\n"


def replace_lines(*lines):
    """The solutions by einsum, in which these lines are replaced."""
    text = inspect.getsource(import_module("tests.check.solutions.einsum"))
    for right, wrong in lines:
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    namespace = {}
    exec(compile(text, "einsum.py", "exec"), namespace)
    return SimpleNamespace(**namespace)
