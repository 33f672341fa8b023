"""What a reader of a page sees before opening a fold, and how much it may be.

python -m tests.kit.budget [PAGE ...] [--site DIR]: of each page in both
languages its height in screens of 1,000 px, its visible lines of code, the
longest block, the share of code, and what is too much. Without the folder of a
site that is built, it builds one.
"""

import argparse
import tempfile
from pathlib import Path
from typing import NamedTuple

from sitekit.markdown import pages, parity
from tests.kit.site import a_reader, build, launched, page_of

EXPLAIN = "core/", "layers/", "caches/"
PLAIN = "attnref/plain/"  # what a page opens with may be a whole file

# Which bounds a page exceeds, and the reason. A Chinese page that exceeds
# others than the English one has an entry of its own.
EXCEPTIONS = {
    "models/your-model": "block: the file is what the page is about",
    "models/decoder": "code: its plain form is a whole model",
    "beyond/compressed": "code: its plain form has three kinds of layer",
    "mistakes/tests": "height: tests are looked up one by one",
    "mistakes/cache-mistakes": "height: entries are looked up one by one",
}

# Pixels are those of these fonts, whatever others a machine has.
FONTS = """body {
  --md-text-font-family: "Liberation Sans", "Noto Sans CJK SC" !important;
  --md-code-font-family: "Liberation Mono", "Noto Sans Mono CJK SC" !important;
}"""
# A height says how much there is to read, so lines have one length for it.
LINES = ".md-typeset { --measure: 42rem !important; }"
# 1440 px wide, before anything is opened.
MEASURE = """() => {
  const style = document.head.appendChild(document.createElement('style'));
  style.textContent = `STYLE`;
  const high = e => e.getBoundingClientRect().height;
  const blocks = [...document.querySelectorAll('article .highlight')]
    .filter(e => e.checkVisibility());
  const found = {height: high(document.querySelector('article')),
    code: blocks.reduce((sum, e) => sum + high(e), 0),
    blocks: blocks.map(e => [e.querySelector('.filename')?.textContent ?? '',
      e.querySelector('code').textContent.trimEnd().split('\\n').length])};
  style.remove();
  return found;
}""".replace("STYLE", FONTS + LINES)


class Measure(NamedTuple):
    height: float  # px
    code: float
    blocks: list[tuple[str, int]]  # file and lines of each

    @property
    def lines(self) -> int:
        return sum(lines for _, lines in self.blocks)

    @property
    def longest(self) -> int:
        """The lines of the longest block that is no plain form."""
        return max((n for f, n in self.blocks if PLAIN not in f), default=0)

    @property
    def share(self) -> float:
        return self.code / self.height

    def excess(self, stem: str) -> list[str]:
        if stem.startswith(("api/", "models/released/")):  # names; one file
            return []
        screens = 10_000 if stem.startswith(EXPLAIN) else 12_000
        bounds = {
            "height": self.height > screens,
            "block": self.longest > 45,
            "code": self.share > 0.4,
        }
        return [bound for bound, is_exceeded in bounds.items() if is_exceeded]


def allowed(path: str) -> list[str]:
    """The bounds that the page at this address may exceed."""
    page = path.removesuffix("/")
    english = EXCEPTIONS.get(page.removeprefix("zh/"), ": none")
    bounds, _, reason = EXCEPTIONS.get(page, english).partition(": ")
    assert reason, f"{page}: an exception needs its reason"
    return bounds.split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="gqa")
    parser.add_argument("--site", metavar="DIR", type=Path)
    options = parser.parse_args()
    stems = map(parity.whole_stem, options.pages)
    all_stems = map(pages.stem_of, pages.markdown_files("en"))
    chosen_stems = list(stems) or list(all_stems)
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        site = options.site or build(Path(folder)).folder
        browser = launched(p)
        print("screens  lines  longest  code  too much")
        with a_reader(browser) as context:
            for stem in chosen_stems:
                for root in ("", "zh/"):
                    path = parity.twin(stem, "en")
                    place = f"{root}{pages.address_of(path)}index.html"
                    page = page_of(context, (site / place).resolve().as_uri())
                    m = Measure(**page.evaluate(MEASURE))
                    page.close()
                    print(
                        f"{m.height / 1000:7.1f}  {m.lines:5}  {m.longest:7}"
                        f"  {m.share:4.0%}  {root}{stem}",
                        *m.excess(stem),
                    )
        browser.close()


if __name__ == "__main__":
    main()


# In a browser: the texts of a page in one font.
FORCE = """font => {
  document.querySelector('#forced')?.remove();
  const style = document.createElement('style');
  style.id = 'forced';
  style.textContent =
    `body { --md-text-font-family: "${font}" !important }
     mtext { font-family: "${font}" }`;
  document.head.append(style);
  return document.fonts.ready.then(() => document.body.offsetHeight);
}"""
