"""What commands say, in both languages: words.toml."""

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from attnref.words import Text

_FILE = Path(__file__).with_suffix(".toml")
_TABLES = tomllib.loads(_FILE.read_text(encoding="utf-8"))


def table(name: str) -> dict[str, Text]:
    """The words of one table of words.toml, by their names in it."""
    return {word: Text(*texts) for word, texts in _TABLES[name].items()}


WORDS: dict[str, Text] = {}
for _name, _value in _TABLES.items():
    if isinstance(_value, dict):
        WORDS |= {f"{_name} {x}": text for x, text in table(_name).items()}
    else:
        WORDS[_name] = Text(*_value)


def phrase(name: str, /, **values: object) -> Text:
    """The words of a name, filled in with values. Of a value that is a text
    itself, each language gets its own words."""
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
    """`phrase` in one language."""
    return lambda name, /, **values: getattr(phrase(name, **values), language)


def wide(text: str) -> int:
    """The columns of a text: in a terminal a Chinese character takes two."""
    return sum(2 if ord(c) > 0x2E7F else 1 for c in text)


# A word, a tuple with the letters around it, or one Chinese character. Commas
# and other marks that close a clause stay with it.
WIDE = "\u2e80-\uffff"
CLOSING = "[，。；：、）]*"
WORD = (
    rf"(?:[^\s(){WIDE}]*\([^()]*\)[^\s{WIDE}]*|[{WIDE}]|[^\s{WIDE}]+)"
    rf"{CLOSING}|\s+"
)


def wrapped(text: str, margin: str, columns: int = 80) -> Iterator[str]:
    """Lines of at most so many columns. Chinese may break anywhere."""
    line = ""
    for word in re.findall(WORD, text):
        if line and wide(margin + line + word.rstrip()) > columns:
            yield margin + line.rstrip()
            line = ""
        line += word if line else word.lstrip()
    yield margin + line.rstrip()
