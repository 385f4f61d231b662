"""Words around numbers, and names from files: counted, listed, cut, and without what steers a terminal."""

import textwrap
import unicodedata
from collections.abc import Sequence

from horovod_study.text.numbers import THIN


def plural(count: float, noun: str, form: str = ".0f") -> str:
    """Return `1 worker` or `2 workers`; with the form `,` the thousands stand apart."""
    return f"{count:{form}} {noun}{'' if count == 1 else 's'}"


def listed(words: Sequence[str]) -> str:
    """Return `a`, `a and b` or `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def span(low: float, high: float) -> str:
    """Return `3`, or `3 to 5` where the ends differ."""
    return f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"


def cut(text: str, most: int, *, first: int | None = None, dots: str = "...") -> str:
    """Return the text; of one with more than `most` letters dots stand for those after `first`, else for the last."""
    room = most - len(dots)
    begin = room if first is None else first
    return text if len(text) <= most else f"{text[:begin]}{dots}{text[len(text) - room + begin :]}"


def wrapped(text: str, width: int, indent: str = "", deeper: str | None = None) -> list[str]:
    """Return the text as lines of at most `width` letters; the first begins with `indent`, the others with `deeper`."""
    after = indent if deeper is None else deeper
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=after, break_on_hyphens=False)


def printable(text: str) -> str:
    """Return a text of a file without what steers a terminal; every letter keeps its place."""
    return "".join(letter if letter.isprintable() or letter == THIN else "?" for letter in text)


_VISIBLE = {**dict.fromkeys(("Cc", "Zl", "Zp"), " "), "Cf": "", "Cs": "\ufffd"}
"""What stands for control characters, marks of direction and halves of a letter, by Unicode category."""


def one_line(text: str) -> str:
    """Return the text without what cannot be seen, and with single spaces; narrow spaces stay."""
    visible = "".join(_VISIBLE.get(unicodedata.category(letter), letter) for letter in text)
    return " ".join(part for part in visible.split(" ") if part)
