"""pytest --attnref my_engine.py: each behaviour of an engine is a test.

A known mistake fails, as does an output that no convention explains, and a
cache that does not hold what lists hold: the shortest history is printed.
Choices that the adapter declares, `EXPECTED = {"alignment": "top-left"}`, must
be what the engine does. `attnref conform` ends with 1 for the same. The tests
that pytest would run anyway are run, too.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from attnref.words import language_of_locale, message, speaking

if TYPE_CHECKING:
    from attnref.judge.conform import Answer

OPTION = "--attnref"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attnref")
    words = "ask this attention engine what it does, besides the other tests; "
    words += "may be given more than once: attnref conform --stub"
    name = "ADAPTER.py"
    group.addoption(
        OPTION, metavar=name, action="append", default=[], help=words
    )


def adapters(config: pytest.Config) -> dict[Path, str]:
    """As they were passed, by the file that each is."""
    return {Path(x).resolve(): x for x in config.getoption(OPTION)}


def pytest_configure(config: pytest.Config) -> None:
    folders = [Path(x.partition("::")[0]).resolve() for x in config.args]
    for path, passed in adapters(config).items():
        # In a folder that is collected, it is found there.
        if not any(path.is_relative_to(x) for x in folders):
            config.args = [*config.args, passed]


def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> pytest.Collector | None:
    if file_path.resolve() not in adapters(parent.config):
        return None
    return Adapter.from_parent(parent, path=file_path)


class Adapter(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        from attnref.judge.conform import ABSENT, conform, load

        with speaking(language_of_locale()):
            try:
                engine = load(str(self.path))
                answers = conform(engine)
            except ValueError as error:
                raise self.CollectError(str(error)) from error
        for answer in answers:
            if answer.behaviour in engine.expected or answer.answer != ABSENT:
                values: Any = {"answer": answer, "expected": engine.expected}
                name = answer.behaviour
                yield BehaviourItem.from_parent(self, name=name, **values)


class BehaviourItem(pytest.Item):
    def __init__(
        self, *, answer: "Answer", expected: dict[str, str], **rest: Any
    ) -> None:
        super().__init__(**rest)
        self.answer, self.expected = answer, expected

    def runtest(self) -> None:
        from attnref.judge.conform import REFUSED, failure

        with speaking(language_of_locale()):
            text = failure(self.answer, self.expected)
            refusal = message("refused: {}", self.answer.detail)
        if text:
            pytest.fail(text, pytrace=False)
        refused = self.answer.answer == REFUSED
        if refused and self.answer.behaviour not in self.expected:
            pytest.skip(refusal)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name
