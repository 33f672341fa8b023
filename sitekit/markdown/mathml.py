"""Markdown extension: every formula becomes MathML when the page is built.

Runs after arithmatex (generic), whose wrappers it fills. An unknown command
aborts the build and names the formula.
"""

import html
import re

from markdown import Extension, Markdown
from markdown.postprocessors import Postprocessor
from math_core import LatexError, LatexToMathML

# A formula, with the marks that may not be torn from one in a line.
WRAPPED = re.compile(
    r'(?P<before>[(（“]*)<(?P<tag>span|div) class="arithmatex">(?:\\\(|\\\[)'
    r"(?P<latex>.*?)(?:\\\)|\\\])</(?P=tag)>(?P<after>[-,.:;!?)，。、：；！？）”]*)",
    re.DOTALL,
)
_convert = LatexToMathML(fancy_error=False).convert_with_local_state


def mathml(latex: str, *, display: bool) -> str:
    """One formula; kept out of the search index."""
    try:
        out = str(_convert(latex.strip(), displaystyle=display))
    except LatexError as error:
        raise ValueError(f"formula {latex.strip()!r}: {error}") from None
    return out.replace("<math", "<math data-search-exclude", 1)


def _replace(match: re.Match[str]) -> str:
    tag = match["tag"]
    math = mathml(html.unescape(match["latex"]), display=tag == "div")
    before, after = match["before"], match["after"]
    if tag == "div":
        return f'{before}<div class="scroll formula">{math}</div>{after}'
    if before or after:
        return f'<span class="held">{before}{math}{after}</span>'
    return math


class _ToMathML(Postprocessor):
    def run(self, text: str) -> str:
        return WRAPPED.sub(_replace, text)


class MathML(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.postprocessors.register(_ToMathML(md), "mathml", 0)


def makeExtension(**kwargs: object) -> MathML:  # noqa: N802
    return MathML(**kwargs)
