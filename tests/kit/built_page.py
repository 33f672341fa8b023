"""`make check` alone collects this: one page, rendered as the site does it.

The whole site takes half a minute. In both languages, the figures and tables
of this page are drawn, what it includes is read, and its links are followed to
pages and files, if not to their headings. No browser opens it.
"""

import logging

import pytest
from mkdocs.commands.build import _populate_page
from mkdocs.config import load_config
from mkdocs.structure.files import get_files
from mkdocs.structure.nav import get_navigation

from sitekit import CONFIGS, ROOT, parity


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_is_rendered(request, caplog, language):
    stem = parity.whole_stem(request.config.getoption("page"))
    path = parity.twin(stem, language)
    config = load_config(str(CONFIGS[language]))
    plugins = config.plugins
    plugins.on_startup(command="build", dirty=False)
    try:
        config = plugins.on_config(config)
        files = get_files(config)
        files.add_files_from_theme(config.theme.get_env(), config)
        files = plugins.on_files(files, config=config)
        nav = get_navigation(files, config)
        plugins.on_nav(nav, config=config, files=files)
        for file in files.documentation_pages():
            file.page.read_source(config)  # lists of pages show their heads
            if file.abs_src_path == str(path):
                page = file.page
        with caplog.at_level(logging.WARNING):
            _populate_page(page, config, files)
    except BaseException as error:
        where = path.relative_to(ROOT)
        pytest.fail(f"{where}: {error}\n{caplog.text}", pytrace=False)
    finally:
        plugins.on_shutdown()
    warned = [
        r.getMessage() for r in caplog.records if r.levelno > logging.INFO
    ]
    assert not warned, "\n".join(warned)
