"""A file with its comments in Chinese: a plain form, or a file of a model.

comments.txt has each comment and each paragraph of a docstring, by its English.
Code and shapes stay as they are: of `# (B, T, E); of all heads` only the words
after the semicolon are Chinese. A comment that comments.txt lacks is an error.
"""

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from attnref.judge.words import wide, wrapped
from attnref.words import message

SHAPE = re.compile(r"# (?:fmt: skip$|\((?:[^()]|\([^()]*\))*\)(?:; |$))?")
WIDTH = 80


@cache
def _table() -> tuple[dict[str, str], list[tuple[re.Pattern[str], str]]]:
    """The Chinese by the English; and those in which `{}` stands for a name."""
    path = Path(__file__).with_suffix(".txt")
    rows = path.read_text(encoding="utf-8").splitlines()
    pairs = [row.split(" => ") for row in rows]
    exact = {english: chinese for english, chinese in pairs}
    patterns = [
        (re.compile(re.escape(english).replace(r"\{\}", "(.+)")), chinese)
        for english, chinese in exact.items()
        if "{}" in english
    ]
    return exact, patterns


def chinese_of(words: str) -> str | None:
    """What stands for a comment, None if nothing does."""
    exact, patterns = _table()
    if words in exact:
        return exact[words]
    for pattern, chinese in patterns:
        if match := pattern.fullmatch(words):
            return chinese.format(*match.groups())
    return None


def in_chinese(code: str) -> str:
    """The same code with Chinese comments and docstrings."""
    lines = code.split("\n")
    for first, last, column, text in sorted(_changes(code), reverse=True):
        # Behind the last line stands only what a statement may end with.
        lines[first : last + 1] = (lines[first][:column] + text).split("\n")
    return "\n".join(lines)


def _changes(code: str) -> Iterator[tuple[int, int, int, str]]:
    """First and last line of each comment, from 0, its column and its text."""
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        if (text := ast.get_docstring(node)) is not None:
            doc = node.body[0]
            start, end = doc.lineno - 1, (doc.end_lineno or 1) - 1
            chinese = _docstring(text, doc.col_offset)
            yield start, end, doc.col_offset, chinese
    block: list[tuple[int, int, str]] = []  # lines of comments, and no code
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type != tokenize.COMMENT:
            continue
        (row, column), before = token.start, token.line[: token.start[1]]
        row -= 1
        if before.strip():
            yield row, row, column, _comment(token.string)
            continue
        if block and block[-1][:2] != (row - 1, column):
            yield _block(block)
            block = []
        block.append((row, column, token.string))
    if block:
        yield _block(block)


def _block(block: list[tuple[int, int, str]]) -> tuple[int, int, int, str]:
    first, column, _ = block[0]
    words = " ".join(text.removeprefix("# ") for _, _, text in block)
    indent = " " * column + "# "
    lines = wrapped(_must(words), indent, WIDTH)
    return first, block[-1][0], column, "\n".join(lines).lstrip()


def _comment(text: str) -> str:
    end = match.end() if (match := SHAPE.match(text)) else 0
    return text[:end] + (_must(text[end:]) if text[end:] else "")


def _docstring(text: str, column: int) -> str:
    """The text in quotes, as it stands from a column on."""
    indent, quotes = " " * column, '"""'
    parts = list[str]()
    for n, part in enumerate(text.split("\n\n")):
        rows = part.split("\n")
        words = " ".join(rows)
        if chinese_of(words):
            start = "" if n else quotes
            rows = [*wrapped(start + _must(words), indent, WIDTH)]
        elif rows[0] == "Examples:":
            rows = [indent + x for x in ("示例：", *rows[1:])]
        elif _is_code(part):
            rows = textwrap.indent(in_chinese(part), indent).split("\n")
        else:  # a line each, as in the heads of written files
            rows = [x for row in rows for x in wrapped(_must(row), indent)]
        parts.append("\n".join(rows))
    whole = "\n\n".join(parts)
    fits = "\n" not in whole and wide(whole + quotes) <= WIDTH
    return whole.lstrip() + ("" if fits else f"\n{indent}") + quotes


def _is_code(text: str) -> bool:
    try:
        return not isinstance(ast.parse(text).body[0], ast.Expr)
    except (SyntaxError, IndexError):
        return False


def _must(words: str) -> str:
    chinese = chinese_of(words)
    if chinese is None:
        text = "no Chinese of the comment {!r}; --lang en writes the file"
        raise ValueError(message(text, words))
    return chinese
