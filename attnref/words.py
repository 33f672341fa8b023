"""Words that all commands and messages share: what may have been meant, texts
in both languages, and where a written file is from."""

import locale
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple


class Text(NamedTuple):
    """A few words or sentences in both languages of the site."""

    en: str
    zh: str


LICENCE = "MIT-0: no notice needed."


def version() -> str:
    """That of the package, without an import of it."""
    path = Path(__file__).with_name("__init__.py")
    match = re.search(r'(?m)^__version__ = "(.+)"$', path.read_text("utf-8"))
    return match[1] if match else "?"


def address() -> str:
    """Where the installed package says that its source is, if it does."""
    import importlib.metadata  # takes 20 ms

    try:
        lines = importlib.metadata.metadata("attnref").get_all("Project-URL")
    except importlib.metadata.PackageNotFoundError:
        return ""
    urls = dict(url.split(", ", 1) for url in lines or ())
    return urls.get("Source") or urls.get("Homepage") or ""


def origin() -> str:
    """The lines of a written file that say where it is from."""
    source = f"Source: {url}\n" if (url := address()) else ""
    return f"Written by attnref {version()}. {LICENCE}\n{source}"


def add_language(parser: Any) -> None:
    """The option --lang of a command."""
    parser.add_argument(
        "--lang",
        choices=("en", "zh"),
        help="default: the language of the locale",
    )


def language_of_locale() -> str:
    """ "zh" where the locale is Chinese, else "en"."""
    names = ("LC_ALL", "LC_MESSAGES", "LANG")
    name = next(filter(None, map(os.environ.get, names)), None)
    name = name or locale.getlocale()[0] or ""
    return "zh" if name.lower().startswith(("zh", "chinese")) else "en"


# Of messages, while they are in Chinese: each thread and task has its own.
_spoken: ContextVar[Mapping[str, str] | None] = ContextVar(
    "spoken", default=None
)


def chinese() -> Mapping[str, str]:
    """The Chinese of messages by their English; empty outside `speaking`."""
    return _spoken.get() or {}


def message(text: str, *values: object) -> str:
    """A message with its values, in the language of `speaking`.

    However many lines the values have, it is one.

    Examples:
        >>> message("there is no model {!r}", "gpt")
        "there is no model 'gpt'"
    """
    translated = chinese().get(text, text)
    if not values:  # argparse ends its own with a new line
        return translated.format()
    return translated.format(*values).replace("\r", " ").replace("\n", "\\n")


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """Messages are in English, but in Chinese within `speaking("zh")`, as far
    as words.txt has them."""
    known: dict[str, str] = {}
    if language == "zh":
        text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
        rows = (line.split(" | ") for line in text.splitlines()[1:])
        known = {en: zh for en, zh in rows}
    before = _spoken.set(known)
    try:
        yield
    finally:
        _spoken.reset(before)


def plain(text: str) -> str:
    """Without what people write differently: case and separators."""
    return re.sub(r"[^a-z0-9.]", "", text.lower())


def near(name: str, known: Mapping[str, str]) -> list[str]:
    """What `name` may have meant, best first: values of `known`, by texts.

    A text that is the same but for case and separators is what was meant. Else
    it is those that contain all words of `name`, or that it contains, such as
    `"org/Model-7B-Instruct"`; else those that are spelled most like it.

    Examples:
        >>> known = {name: name for name in ("llama-2-7b", "llama-3.1-8b")}
        >>> near("Llama 3.1 8B", known), near("lama", known), near("8b", known)
        (['llama-3.1-8b'], ['llama-2-7b', 'llama-3.1-8b'], ['llama-3.1-8b'])
        >>> near("lamma3", known), near("zebra", known)
        (['llama-3.1-8b', 'llama-2-7b'], [])
    """

    short = plain(name)
    words = list(filter(None, map(plain, re.split(r"[\s/_-]", name))))
    same: dict[str, float] = {}
    within: dict[str, float] = {}
    spelled: dict[str, float] = {}
    for text, key in known.items():
        full = plain(text)
        ratios = [
            SequenceMatcher(None, short, part).ratio()
            for part in (full, full[: len(short)])
        ]
        if full == short:
            same[key] = 1
        elif all(word in full for word in words) or full in short:
            within[key] = max(ratios[0], within.get(key, 0))
        elif max(ratios) >= 0.6:
            spelled[key] = max(sum(ratios), spelled.get(key, 0))
    best = same or within or spelled
    many = 3 if best is spelled else 10
    return sorted(best, key=lambda key: -best[key])[:many] if short else []


def hint(name: str, known: Mapping[str, str]) -> str:
    """The end of an error message: what may have been meant, if anything."""
    meant = message(", ").join(near(name, known))
    return message("; did you mean {}?", meant) if meant else ""
