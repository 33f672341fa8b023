"""MkDocs hook: the English build also makes the Chinese one, into zh/."""

import sys
from typing import Any

from mkdocs.commands.build import build
from mkdocs.config import load_config

from sitekit import CONFIGS


def on_config(config: Any) -> Any:
    # The address of the English home: where both languages hang.
    language = config.theme["language"]
    root = config.extra["roots"][language]
    site_url = config.site_url or ""
    config.extra["home_url"] = site_url[: len(site_url) - len(root)]
    if config.plugins["material/offline"].config.enabled:
        config.extra["polyfills"] = ["assets/iframe-worker.js"]
    return config


def on_post_page(output: str, page: Any, config: Any) -> str:
    # The theme's search dialog has no name for a screen reader.
    dialog = 'data-md-component="search" role="dialog"'
    name = config.theme["search_name"]
    return output.replace(dialog, f'{dialog} aria-label="{name}"', 1)


def on_post_build(config: Any) -> None:
    if config.theme["language"] != "en":
        return
    root = config.extra["roots"]["zh"]
    chinese = load_config(
        str(CONFIGS["zh"]),
        site_dir=f"{config.site_dir}/{root}",
        site_url=f"{config.site_url}{root}" if config.site_url else "",
        strict=config.strict,
    )
    chinese.plugins.on_startup(command="build", dirty=False)
    build(chinese)
    chinese.plugins.on_shutdown()
    # The next build under `mkdocs serve` sees the code as it is by then.
    for name in list(sys.modules):
        if name.split(".")[0] in {"attnref", "sitekit"}:
            del sys.modules[name]
