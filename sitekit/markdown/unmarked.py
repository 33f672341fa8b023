"""HTML as Markdown: its words, lists, tables, code and links. Of a picture the
label stays, controls go, and `data-text` is for this text alone."""

import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

from sitekit.search import in_line

UNREAD = "svg", "script", "form", "label", "select", "noscript", "figcaption"
AROUND = {
    "li": ("\n- ", ""),
    "p": ("", "\n"),
    "div": ("", "\n"),
    "i": (" ", ""),
    "strong": ("**", "**"),
    "dd": ("\n- **", "**"),
    "dt": (" ", ""),
    "summary": ("\n", "\n"),
    "table": ("\n\n", "\n"),
    "tr": ("\n|", ""),
    "td": (" ", " |"),
    "th": (" ", " |"),
    "br": ("<br>", ""),
    "span": (" ", ""),
    "code": ("`", "`"),
    "a": ("[", "]({href})"),
    "pre": ("\n```diff\n", "```\n"),
}


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.parts: list[str] = []
        self.unread, self.depth = "", 0  # the tag in which nothing is read
        self.columns, self.row, self.is_code, self.href = 0, 0, False, ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        options = dict(attrs)
        if not self.unread and (tag in UNREAD or "hidden" in options):
            id = f'<a id="{options["id"]}"></a>' if "id" in options else ""
            self.parts.append(options.get("aria-label") or id or " ")
            self.unread = tag
        self.depth += tag == self.unread
        self.href = options.get("href", self.href)
        self.columns = 0 if tag == "thead" else self.columns + (tag in ("td", "th"))
        self.mark(tag, 0)
        if title := options.get("data-text"):
            self.parts.append(f"**{title}**\n")
        self.row = len(self.parts) if tag == "tr" else self.row
        self.is_code |= tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        self.is_code &= tag != "pre"
        self.mark(tag, 1)
        if tag == "tr":  # of Markdown, in one line
            cells = "".join(self.parts[self.row :])
            self.parts[self.row :] = [re.sub(r"\s+", " ", cells)]
        elif tag == "thead":
            self.parts.append(f"\n|{' --- |' * self.columns}")
        self.depth -= tag == self.unread
        self.unread = self.unread if self.depth else ""

    def mark(self, tag: str, end: int) -> None:
        text = AROUND.get(tag, ("", ""))[end].format(href=self.href)
        is_blank = text == " " and (not self.parts or self.parts[-1][-1] in " \n")
        if text and not (self.unread or self.is_code or is_blank):
            self.parts.append(text)

    def handle_data(self, data: str) -> None:
        if not self.unread:
            self.parts.append(data if self.is_code else re.sub(r"\s+", " ", data))

    def handle_entityref(self, name: str) -> None:
        entity = f"&{name};"
        is_markup = name in ("lt", "gt", "amp") and not self.is_code
        self.handle_data(entity if is_markup else unescape(entity))

    def handle_charref(self, name: str) -> None:
        self.handle_data(unescape(f"&#{name};"))


def unmarked(html: str) -> str:
    reader = Reader()
    reader.feed(re.sub(r"(?s)<math\b[^>]*>(.*?)</math>", lambda x: in_line(x[1]), html))
    reader.close()
    text = "".join(reader.parts)
    return re.sub(r"\n\s*\n+(?!```)", "\n\n", re.sub(r"(?m) +$", "", text)).strip()
