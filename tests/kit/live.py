"""A live figure alone, on a page of a moment: without the site around it, so
that its tests need no build.

    python -m tests.kit.live sdpa          records what it draws first
    python -m tests.kit.live sdpa FOLDER   and takes pictures of it
"""

import re
import sys
from contextlib import contextmanager
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from sitekit import ROOT
from sitekit.adapter import get_theme_dir
from sitekit.markdown import numbers, pages, source
from sitekit.markdown.fences import (
    CONTROLS,
    STILLS,
    Fence,
    draw_fence,
    still,
)
from sitekit.markdown.pages import front_matter
from tests.kit.site import CHROMIUM, launched, opened

ASSETS = ROOT / "overrides/assets"
LANGUAGES = ("en", "zh")
__all__ = ["CONTROLS", "still"]


class Live(NamedTuple):
    """A live figure as it stands on a page."""

    name: str
    path: Path
    body: str

    @property
    def spec(self) -> dict[str, Any]:
        return yaml.safe_load(self.body)

    @property
    def language(self) -> str:
        return self.path.relative_to(ROOT / "docs").parts[0]

    @property
    def html(self) -> str:
        fence = Fence(self.path.stem, self.language)
        return draw_fence(self.body, "live", fence).html

    @property
    def scripts(self) -> list[str]:
        return front_matter(self.path)["scripts"]


def figures(language: str = "en") -> dict[str, Live]:
    """The live figures of all pages, by name."""
    found = {}
    for path in pages.markdown_files(language):
        if "```live" not in path.read_text(encoding="utf-8"):
            continue
        text = numbers.fill(source.text_of(path), path)
        for fence in source.fences(text):
            if fence.language == "live":
                name = yaml.safe_load(fence.text)["live"]
                found[name] = Live(name, path, fence.text)
    return found


def write_page(figure: Live, folder: Path) -> Path:
    """The figure alone, in the site's style, with the scripts of its page."""
    from sitekit import outputs

    made = outputs.scripts(figure.language)
    scripts = []
    for name in figure.scripts:
        place = f"assets/{name}.js"
        own = ASSETS / f"{name}.js"
        text = own.read_text("utf-8") if own.exists() else made[place]()
        text = text.decode() if isinstance(text, bytes) else text
        escaped = text.replace("</script", r"<\/script")
        scripts.append(f"<script>{escaped}</script>")
    style = (ASSETS / "attnref.css").as_uri()
    style_of_theme = "assets/stylesheets/main.*.min.css"
    (theme,) = Path(get_theme_dir("material")).glob(style_of_theme)
    page = folder / f"{figure.name}.{figure.language}.html"
    page.write_text(
        f'<!doctype html><html class="js" lang="{figure.language}">'
        '<meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="stylesheet" href="{theme.as_uri()}">'
        f'<link rel="stylesheet" href="{style}">'
        '<body data-md-color-scheme="default"><script>'
        'if (matchMedia("(prefers-color-scheme: dark)").matches)'
        ' document.body.dataset.mdColorScheme = "slate"</script>'
        '<article class="md-content__inner md-typeset" '
        'style="max-width: 36rem; margin: auto; padding: 0 .8rem">'
        f"{figure.html}</article>{''.join(scripts)}",
        encoding="utf-8",
    )
    return page


# What there is to hold, and what only matters to a script: no still has it.
HELD = re.compile(
    r'<circle [^>]*class="hit"[^>]*></circle>| aria-live="\w+"'
    r'| style="min-height: [\d.]+px;"'
)


PARTS = re.compile(
    r"(?=<(?:circle|div|line|p|path|pre|rect|svg|table|text|tr)\b)"
)


def drawn(page: Any) -> str:
    """What the script of a page has drawn, a part a line."""
    html = page.locator(".live .stage").first.evaluate(
        "stage => stage.innerHTML"
    )
    return PARTS.sub("\n", HELD.sub("", html).replace("\n", "")).strip() + "\n"


@contextmanager
def shown(
    chromium: Any,
    figure: Live,
    folder: Path,
    *,
    query: str = "",
    **options: Any,
):
    """The figure in a browser."""
    url = write_page(figure, folder).as_uri() + query
    with opened(chromium, url, **options) as page:
        yield page


def computed(page: Any, name: str, states: list[dict[str, Any]]) -> list[Any]:
    """What the figure computes of states, each a change of the usual one."""
    return page.evaluate(
        """([name, states]) => {
          const { usual, mend, compute } = live.figures[name];
          const box = document.querySelector(`[data-live="${name}"]`);
          return states.map((part) => {
            const state = { ...structuredClone(usual), ...part };
            mend?.(state, box.figure.data);
            return compute(state, box.figure.data);
          });
        }""",
        [name, states],
    )


def equal(got: Any, want: Any, tolerance: float = 1e-6) -> None:
    """Lists of numbers of a figure are those of a tensor."""
    torch.testing.assert_close(
        torch.tensor(got, dtype=torch.float64),
        torch.as_tensor(want, dtype=torch.float64),
        rtol=tolerance,
        atol=tolerance,
    )


def joined(english: list[str], chinese: list[str]) -> str:
    """One file of both stills, as `still` reads it."""
    lines = []
    matcher = SequenceMatcher(None, english, chinese, autojunk=False)
    for kind, i, end, j, last in matcher.get_opcodes():
        if kind == "equal":
            lines += english[i:end]
            continue
        lines += [f"en{line}" for line in english[i:end]]
        lines += [f"zh{line}" for line in chinese[j:last]]
    return "".join(f"{line}\n" for line in lines)


def main(name: str, pictures: str = "") -> None:
    import tempfile

    from playwright.sync_api import sync_playwright

    assert CHROMIUM, "this needs Chromium"
    with sync_playwright() as p, tempfile.TemporaryDirectory() as scratch:
        browser = launched(p)
        # An older still would decide in which order the parts stand.
        path = STILLS / f"{name}.html"
        path.unlink(missing_ok=True)
        draw_fence.cache_clear()
        stills = []
        for language in LANGUAGES:
            with shown(browser, figures(language)[name], Path(scratch)) as page:
                stills.append(drawn(page).splitlines())
                print(language, *page.faults)
        path.write_text(joined(*stills), encoding="utf-8")
        draw_fence.cache_clear()
        for language in LANGUAGES:
            figure = figures(language)[name]
            for width, scheme in (
                (1440, "light"),
                (1440, "dark"),
                (390, "light"),
                (320, "dark"),
            ):
                if pictures:
                    with shown(
                        browser,
                        figure,
                        Path(scratch),
                        width=width,
                        scheme=scheme,
                    ) as page:
                        target = Path(
                            pictures, f"{name}-{language}-{width}-{scheme}.png"
                        )
                        page.locator(".live").screenshot(path=target)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
