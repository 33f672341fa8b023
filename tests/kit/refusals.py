"""Calls that are refused, as tables that read like examples of a docstring."""

import builtins
import re
from doctest import DocTestParser
from textwrap import dedent

import pytest


def refused_calls(table: str) -> list[tuple[str, type[Exception], str]]:
    """What is to be evaluated, the error, and a pattern of its message.

    `...` stands for any text, and more text may follow:

        >>> Window(0)
        ValueError: size=0 must be at least 1
    """
    rows = []
    for example in DocTestParser().get_examples(dedent(table)):
        error, _, words = " ".join(example.want.split()).partition(":")
        parts = map(re.escape, words.strip().split("..."))
        message = r"(?<!\w)" + ".*".join(parts)  # from the first of a word on
        call = " ".join(example.source.split())
        rows.append((call, getattr(builtins, error), message))
    return rows


def refusals(table: str) -> pytest.MarkDecorator:
    """Parametrizes `call`, `error` and `message`, as above."""
    rows = refused_calls(table)
    return pytest.mark.parametrize(
        ("call", "error", "message"), rows, ids=[row[0] for row in rows]
    )
