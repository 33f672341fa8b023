"""pytest --attnref my_engine.py: each behaviour of an engine is a test.

A known mistake fails, as does an output that no convention explains, and a
cache that does not hold what lists hold: the shortest history is printed.
Choices that the adapter declares, `EXPECTED = {"alignment": "top-left"}`, must
be what the engine does.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attnref.judge.conform import Answer

OPTION = "--attnref"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attnref")
    words = "ask this attention engine what it does: attnref conform --stub"
    group.addoption(OPTION, metavar="ADAPTER.py", help=words)


def pytest_configure(config: pytest.Config) -> None:
    if adapter := config.getoption(OPTION):
        paths = config.args_source == pytest.Config.ArgsSource.ARGS
        config.args = [*(config.args if paths else ()), adapter]


def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> pytest.Collector | None:
    adapter = parent.config.getoption(OPTION)
    if not adapter or Path(adapter).resolve() != file_path.resolve():
        return None
    return Adapter.from_parent(parent, path=file_path)


class Adapter(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        from attnref.judge.conform import ABSENT, behaviours, conform, load

        try:
            engine = load(str(self.path))
        except ValueError as error:
            raise self.CollectError(str(error)) from error
        if unknown := engine.expected.keys() - behaviours().keys():
            text = f"EXPECTED has unknown behaviours: {sorted(unknown)}"
            raise self.CollectError(text)
        for answer in conform(engine):
            expected = engine.expected.get(answer.behaviour)
            if expected or answer.answer != ABSENT:
                values: Any = {"answer": answer, "expected": expected}
                name = answer.behaviour
                yield BehaviourItem.from_parent(self, name=name, **values)


class BehaviourItem(pytest.Item):
    def __init__(
        self, *, answer: "Answer", expected: str | None, **rest: Any
    ) -> None:
        super().__init__(**rest)
        self.answer, self.expected = answer, expected

    def runtest(self) -> None:
        from attnref.judge.conform import DIFFERS, OTHER, REFUSED

        name, detail = self.answer.answer, self.answer.detail
        if self.answer.mistake:
            pytest.fail(f"the mistake {self.answer.mistake}", pytrace=False)
        if self.expected and name != self.expected:
            text = f"{name}, where {self.expected} is expected. {detail}"
            pytest.fail(text, pytrace=False)
        if name == DIFFERS:
            pytest.fail(f"not as lists are: {detail}", pytrace=False)
        if name == OTHER:
            text = f"no convention has this output: {detail}"
            pytest.fail(text, pytrace=False)
        if name == REFUSED and not self.expected:
            pytest.skip(f"refused: {detail}")

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name
