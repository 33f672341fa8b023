"""What commands say, in both languages: words.txt, a line for each."""

from collections.abc import Callable
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
