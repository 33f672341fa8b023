"""The files of the site that stand in no folder: who makes each of them.

A table maps the address of a file to a function without arguments that returns
its content. MkDocs calls it when it writes the file, a server when a browser
asks for it. `outputs` says which tables a build has.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from attnref.judge.catalogue import catalogue
from sitekit import answers, preview, published
from sitekit import files as downloads
from sitekit.adapter import url_of
from sitekit.check import entries, known
from sitekit.check import table as catalogue_json
from sitekit.drawn import calculator, compare, operations, trained, your_model
from sitekit.released import released

Table = dict[str, Callable[[], str | bytes]]


def outputs(config: Any, stems: list[str]) -> Table:
    """All that a build adds to its pages, which have these stems."""
    language = str(config.theme["language"])
    table = scripts(language) | texts(downloads.stubs(language))
    if language == "en":  # the Chinese pages link to these
        table |= texts(downloads.texts()) | packed() | bibliography(config)
        table |= released_models() | known_answers()
        table[downloads.MISTAKES] = partial(catalogue_json.text, config)
        table[catalogue_json.SCHEMA] = catalogue_json.schema
    table |= own_pages(config, language)
    if config.site_url:
        table |= previews(stems, language)
        if language == "en":
            table[published.FEED] = partial(published.feed, config.extra["home_url"])
            table["robots.txt"] = partial(published.robots, config)
    return table


def scripts(language: str) -> Table:
    """JavaScript that is made of our Python."""
    return {
        "assets/known-mistakes.js": partial(known.script, language),
        "assets/record.js": partial(your_model.script, language),
        "assets/mixers.js": your_model.mixers,
        "assets/configs.js": your_model.configs,
        "assets/calculated.js": calculator.script,
        "assets/compared.js": compare.script,
        "assets/passes.js": operations.script,
        "assets/weights.js": trained.script,
    }


def texts(contents: dict[str, str]) -> Table:
    return {f"files/{name}": partial(str, text) for name, text in contents.items()}


def packed() -> Table:
    """The package for pip, and all known answers at once."""
    return {
        f"files/{downloads.wheel_name()}": downloads.wheel,
        f"files/{answers.ZIP}": answers.archive,
    }


def bibliography(config: Any) -> Table:
    path = Path(config.docs_dir).with_name(downloads.BIB)
    return {f"files/{path.name}": path.read_bytes}


def released_models() -> Table:
    return {
        f"files/released/{name}": partial(released.text_of, id)
        for name, id in released.files().items()
    }


def known_answers() -> Table:
    return {f"files/answers/{name}": partial(answers.file, name) for name in answers.names()}


def own_pages(config: Any, language: str) -> Table:
    """A page for each mistake, in the theme. The sitemap names them too."""
    urls = {id: url_of(f"{entries.FOLDER}/{id}", config) for id in catalogue()}
    config.extra["own_pages"] = [*urls.values()]
    return {
        f"{url}index.html" if url[-1] == "/" else url: partial(entries.page, id, language)
        for id, url in urls.items()
    }


def previews(stems: list[str], language: str) -> Table:
    """Pictures that other sites show beside a link."""
    table: Table = {preview.place(stem): partial(preview.of_page, stem, language) for stem in stems}
    return table | {
        preview.place(f"mistakes/{id}"): partial(preview.of_mistake, id, language)
        for id in catalogue()
    }
