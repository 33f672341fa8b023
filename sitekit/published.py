"""What a site with an address tells programs: what each page is and where it
stands (JSON-LD), and what has changed, as a feed."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape
from typing import Any

import markdown

from sitekit import ROOT

SCHEMA = "https://schema.org"
TAGS = {"en": "en", "zh": "zh-CN"}  # of languages, in every place the same
VERSION = re.compile(r"^## (\S+) - (\S+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
FEED = "changes.xml"


def described(page: Any, config: Any) -> str:
    """JSON-LD: the page as an article, and the way to it from the home page."""
    home = {"@type": "WebSite", "name": config.site_name, "url": config.extra["home_url"]}
    article = {
        "@type": "TechArticle",
        "headline": page.title,
        "description": page.meta.get("description") or config.site_description,
        "inLanguage": TAGS[config.theme["language"]],
        "url": page.canonical_url,
        "isPartOf": home,
        "isAccessibleForFree": True,
    }
    way = [
        {"@type": "ListItem", "position": n, "name": name, "item": address}
        for n, (name, address) in enumerate(_way(page, config), 1)
    ]
    breadcrumbs = {"@type": "BreadcrumbList", "itemListElement": way}
    graph = {"@context": SCHEMA, "@graph": [article, breadcrumbs]}
    return json.dumps(graph, ensure_ascii=False).replace("<", "\\u003c")


def _way(page: Any, config: Any) -> Iterator[tuple[str, str]]:
    """Names and addresses: a section has that of its first page."""
    yield config.site_name, config.site_url
    for section in reversed(page.ancestors):
        first = section
        while first.children:
            first = first.children[0]
        if first.canonical_url not in (page.canonical_url, config.site_url):
            yield section.title, first.canonical_url
    if not page.is_homepage:
        yield page.title, page.canonical_url


def robots(config: Any) -> str:
    """robots.txt. Crawlers ask for it at the root of a host alone."""
    home, roots = config.extra["home_url"], config.extra["roots"].values()
    lines = [f"Sitemap: {home}{root}sitemap.xml" for root in roots]
    return "\n".join(["User-agent: *", "Allow: /", "", *lines, ""])


def feed(home: str) -> str:
    """Atom: the versions of CHANGELOG.md. One that is not released yet has the
    date on which the file was last changed."""
    path = ROOT / "CHANGELOG.md"
    versions = VERSION.findall(path.read_text(encoding="utf-8"))
    changed = f"{datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y-%m-%d}"
    entries = "".join(
        f"<entry><title>attnref {version}{'' if date[0].isdigit() else f' ({date})'}</title>"
        f"<id>{escape(home)}{FEED}#{version}</id>"
        f'<link href="{escape(home)}use/project/"/>'
        f"<updated>{_time(date if date[0].isdigit() else changed)}</updated>"
        f'<content type="html">{escape(markdown.markdown(text))}</content></entry>\n'
        for version, date, text in versions
    )
    newest = versions[0][1] if versions[0][1][0].isdigit() else changed
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        '<feed xmlns="http://www.w3.org/2005/Atom"><title>attnref: changes</title>'
        f"<id>{escape(home)}{FEED}</id><updated>{_time(newest)}</updated>"
        f'<link rel="self" href="{escape(home)}{FEED}"/><link href="{escape(home)}"/>'
        f"<author><name>attnref</name></author>\n{entries}</feed>\n"
    )


def _time(date: str) -> str:
    return f"{date}T00:00:00Z"
