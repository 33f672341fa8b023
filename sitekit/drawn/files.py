"""All files that can be downloaded."""

import textwrap
from collections.abc import Iterator

from sitekit.files import CodeIndex, Download, other_form
from sitekit.files import downloads as all_downloads
from sitekit.markdown.render import Row


def downloads() -> Iterator[Row]:
    """Each plain form with the full one and its page; then
    what has no plain form of its own."""
    where = CodeIndex()
    plain = [w for w in all_downloads().values() if "plain/" in w.name]
    pairs = [(each, other_form(each)) for each in plain]
    paired = [full for _, full in pairs]
    alone = [w for w in all_downloads().values() if w not in [*plain, *paired]]
    for plain_form, full in [*pairs, *((None, w) for w in alone)]:
        shown = full or plain_form
        assert shown is not None
        page = where.home(shown.source)
        yield [
            _cell(plain_form),
            _cell(full),
            f"[](page:{page}#{shown.name})" if page != "files" else "",
        ]


def _cell(whole: Download | None) -> list[str]:
    """A link and the lines, and below them the names to import."""
    if whole is None:
        return []
    names = textwrap.wrap(", ".join(whole.imported), 27)
    return [
        f"[{whole.file}](files:{whole.name}) {whole.lines}",
        *(line.replace("_", "\\_") for line in names),
    ]
