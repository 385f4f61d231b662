"""What is said while something long goes on: one updating line on a terminal, plain lines in a log."""

import shutil
import sys
from typing import TYPE_CHECKING

from horovod_study.measure.clock import now

if TYPE_CHECKING:
    from rich.console import Console


def say(text: str) -> None:
    """Print one line on standard error at once."""
    print(text, file=sys.stderr, flush=True)


def show(console: "Console", text: str) -> None:
    """Print one line as it is: not interpreted, and not wrapped except between words on a terminal."""
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=not console.is_terminal)


def duration(seconds: float) -> str:
    """Return e.g. '45 s', '3 min 20 s', '2 h 5 min'."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {rest} s" if rest else "")
    hours, minutes = divmod(round(whole / 60), 60)
    return f"{hours} h" + (f" {minutes} min" if minutes else "")


class Line:
    """One line that is rewritten on a terminal and appended now and then in a log."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._terminal = sys.stderr.isatty()
        self._every_s = 0.2 if self._terminal else 10.0
        self._last = now()
        self._open = False

    def due(self) -> bool:
        """Return whether it is time for a new text."""
        return self._enabled and now() - self._last >= self._every_s

    def now_and_then(self, text: str) -> None:
        """Show `text` if it is time for a new one."""
        if self.due():
            self.show(text)

    def show(self, text: str) -> None:
        """Show `text`, in place of the text before it on a terminal."""
        self._last = now()
        if self._terminal:
            print(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
            self._open = bool(text)
        else:
            say(text)

    def keep(self, text: str) -> None:
        """Show `text` for good, and go on below it."""
        if self._enabled:
            self.close()
            say(text)

    def close(self) -> None:
        """Remove the updating line."""
        if self._open:
            self.show("")
