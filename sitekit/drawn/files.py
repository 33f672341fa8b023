"""All files that can be downloaded."""

import textwrap
from collections.abc import Iterator

from sitekit.files import Where, everything
from sitekit.render import Row


def downloads() -> Iterator[Row]:
    """Each with its lines, what one imports from it, and its page."""
    where = Where()
    for whole in everything().values():
        names = textwrap.wrap(", ".join(whole.imported), 48)
        yield [
            f"[{whole.name}](files:{whole.name})",
            str(whole.lines),
            [line.replace("_", "\\_") for line in names],
            f"[](page:{where.home(whole.source)}#{whole.name})",
        ]
