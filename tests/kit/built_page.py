"""`make check` alone collects this: one page, rendered as the site does it.

The whole site takes half a minute. In both languages, the figures and tables
of this page are drawn, what it includes is read, and its links are followed to
pages and files, if not to their headings. No browser opens it.
"""

import logging

import pytest

from sitekit import CONFIGS, ROOT, serve
from sitekit.markdown import parity


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_is_rendered(request, caplog, language):
    stem = parity.whole_stem(request.config.getoption("page"))
    path = parity.twin(stem, language)
    try:
        with caplog.at_level(logging.WARNING):
            serve.render_alone(path, CONFIGS[language])
    except BaseException as error:
        file = path.relative_to(ROOT)
        pytest.fail(f"{file}: {error}\n{caplog.text}", pytrace=False)
    warnings = [
        r.getMessage() for r in caplog.records if r.levelno > logging.INFO
    ]
    assert not warnings, "\n".join(warnings)
