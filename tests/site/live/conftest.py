"""What the tests of live figures share."""

from contextlib import ExitStack

import pytest

from tests.kit import live


@pytest.fixture
def show(chromium, tmp_path):
    """Open figures, which stay open until the test ends."""
    with ExitStack() as stack:

        def open_figure(name, language="en", **options):
            figure = live.figures(language)[name]
            page = live.shown(chromium, figure, tmp_path, **options)
            return stack.enter_context(page)

        yield open_figure
