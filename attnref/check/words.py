"""What commands say, in both languages: words.txt, a line for each."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from attnref.words import Text

_LINES = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
_ROWS = (line.split(" | ") for line in _LINES.splitlines()[1:])
WORDS = {name: Text(en, zh) for name, en, zh in _ROWS}


def phrase(name: str, /, **values: object) -> Text:
    """With these values, of which a text is in the same language."""
    return Text(
        *(
            words.format(
                **{
                    key: x[n] if isinstance(x, Text) else x
                    for key, x in values.items()
                }
            )
            for n, words in enumerate(WORDS[name])
        )
    )


def speaker(language: str) -> Callable[..., str]:
    """`told` in one language."""
    return lambda name, /, **values: getattr(phrase(name, **values), language)


def wide(text: str) -> int:
    """In a terminal a Chinese character is as wide as two letters."""
    return sum(2 if ord(c) > 0x2E7F else 1 for c in text)


# A word, a tuple with what is around it, or one Chinese character; what closes
# a clause stays with it.
WIDE = "\u2e80-\uffff"
CLOSING = "[，。；：、）]*"
WORD = (
    rf"(?:[^\s(){WIDE}]*\([^()]*\)[^\s{WIDE}]*|[{WIDE}]|[^\s{WIDE}]+)"
    rf"{CLOSING}|\s+"
)


def wrapped(text: str, margin: str, columns: int = 80) -> Iterator[str]:
    """Lines of at most so many; Chinese breaks between any characters."""
    line = ""
    for word in re.findall(WORD, text):
        if line and wide(margin + line + word.rstrip()) > columns:
            yield margin + line.rstrip()
            line = ""
        line += word if line else word.lstrip()
    yield margin + line.rstrip()
