"""copy --lang zh: the same code, with its comments in Chinese."""

import ast
import json
import re

import pytest

from attnref.__main__ import main
from attnref.commands import comments, copy
from attnref.commands.comments import in_chinese
from attnref.judge.shapes import SHAPE
from attnref.judge.words import wide
from attnref.released.generate import file_of
from sitekit import ROOT
from tests.kit import sampled
from tests.kit.families import FAMILIES, config_of

CONFIGS = json.loads((ROOT / "attnref/released/specs.json").read_text("utf-8"))
CONFIGS = [row["config"] for row in CONFIGS["models"] if "config" in row]


def code_of(text):
    """The syntax tree without docstrings, and what stands before comments."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
            ast.get_docstring(node) is not None
        ):
            node.body[0].value.value = ""
    return ast.dump(tree)


def shapes_of(text):
    lines = (re.search("#.*", line) for line in text.splitlines())
    matches = (SHAPE.match(line[0]) for line in lines if line)
    return [match[1] for match in matches if match]


def check(text):
    """Only its comments differ, and no English one is left."""
    chinese = in_chinese(text)
    for line in chinese.splitlines():
        if words := re.search("# [a-z ]{9,}$", line):  # words, and no shape
            assert words[0] in ("# pip install safetensors",), words[0]
    assert code_of(chinese) == code_of(text)
    assert shapes_of(chinese) == shapes_of(text)
    return chinese


@pytest.mark.parametrize("stem", copy.plain())
def test_a_plain_form_differs_in_its_comments_alone(stem):
    """And its lines fit: a Chinese character takes two columns."""
    chinese = check(copy.plain()[stem].read_text(encoding="utf-8"))
    assert all(wide(line) <= 80 for line in chinese.splitlines())


@pytest.mark.parametrize("family", sampled(FAMILIES, FAMILIES[::7]))
def test_each_comment_of_a_family_has_its_chinese(family):
    config = config_of(family).to_dict()
    check(file_of(config))
    quantised = {"quantization_config": {"quant_method": "fp8"}}
    check(file_of(config | quantised))


@pytest.mark.whole
def test_nothing_in_the_table_is_without_a_comment(monkeypatch):
    """Each row is used, and each Chinese text is Chinese."""
    exact, patterns = comments._table()
    used, asked = set(), comments.chinese_of

    def chinese_of(words):
        used.update([words, *(p for p, _ in patterns if p.fullmatch(words))])
        return asked(words)

    monkeypatch.setattr(comments, "chinese_of", chinese_of)
    for path in copy.plain().values():
        in_chinese(path.read_text(encoding="utf-8"))
    tiny = [config_of(family).to_dict() for family in FAMILIES]
    quantised = {"quantization_config": {"quant_method": "fp8"}}
    for config in (*CONFIGS, *tiny, tiny[0] | quantised):
        for does in (False, True):
            if not does or config not in tiny:
                in_chinese(file_of(config, dequantise=does))
    in_chinese('"""Source: https://example.org"""')  # if it is installed so
    rows = dict(patterns)
    by_pattern = {chinese for p, chinese in rows.items() if p in used}
    for english, chinese in exact.items():
        assert english in used or chinese in by_pattern, english
        assert wide(chinese) > len(chinese) or english == chinese


def test_a_comment_without_its_chinese_is_an_error():
    for code in ("x = 1  # nobody wrote this", '"""Nor this."""'):
        with pytest.raises(ValueError, match="no Chinese of the comment"):
            in_chinese(code)


def test_the_command_writes_it_and_the_checker_accepts_it(tmp_path):
    path = tmp_path / "mine.py"
    said = main(["copy", "--lang", "zh", "softmax", "-o", str(path)])
    assert "行" in said
    text = path.read_text(encoding="utf-8")
    assert text.startswith('"""softmax：整行算')
    assert text == in_chinese(copy.plain()["softmax"].read_text("utf-8"))
    assert "不成立" not in main(["check", "--lang", "zh", "softmax", str(path)])
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIGS[0]), "utf-8")
    written = main(["copy", "--lang", "zh", "--config", str(config)])
    assert "一层的自注意力。" in written
    exec(compile(written, "written", "exec"), {})
