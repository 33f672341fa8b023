"""The words of a page and of Markdown, to be compared."""

import html
import re

from markdown_it import MarkdownIt

COMMONMARK = MarkdownIt("commonmark").enable("table")
MATH = re.compile(r"\$\$.+?\$\$|\$[^$]+\$", re.DOTALL)


def read(markdown):
    """Markdown as HTML, by a parser that is not the site's, without what stands
    for a figure."""
    text = COMMONMARK.render(MATH.sub("$$", markdown)).replace("$", "")
    return re.sub(r"<em>(Figure,[^<]*:</em>|图（见网页）</em>：)", "", text)


def of_page(path):
    """The words of the article of a built page."""
    page = path.read_text(encoding="utf-8")
    article = page.partition("<article")[2].partition("</article>")[0]
    return of_html(f"<{article}")


def of_html(text):
    """The words of HTML, without code blocks, drawings and formulas, and what
    a page has beside its text: buttons, links to files, its card."""
    for away in (
        r"<(pre|svg|math|script)\b.*?</\1>",
        r'<p class="(panel-title|below|stepping|blanks)">.*?</p>',
        r'<span class="count">.*?</span>',
        r'<a class="headerlink".*?</a>',
        r'<div class="controls">.*?</table>',
        r'<noscript>.{,400}</noscript>\s*<div class="calculator">.*?</table>',
        r'<ul class="kinds">.*?</ol>',  # strips
        r'<div class="changes highlight">.*?</div>',
        r'<div class="tabbed-labels">.*?</div>',
        r'<div class="whole elsewhere".*?</div>',
        r'<div class="(ways|statement|imported)">.*?</div>',
        r"<details><summary>(What it contains|文件里有什么).*?</details>",
        r'<dl class="legend">.*?</dl>',
        r'<form class="holds">.*?<p class="ways">.*?</p>',  # a live figure
        r'<form class="(course|play)".*?</form>',
        r'<div class="door".*?<button class="rest"[^>]*>',
        r'<details class="by-symptom">.*?</details>',
        r'<p class="source-of-page">.*?</p>',
        r"<[^>]+>",
        r"\s",
    ):
        text = re.sub(away, "", text, flags=re.DOTALL)
    return html.unescape(text).replace("\xa0", "")
