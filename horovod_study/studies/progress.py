"""What a person sees while a study runs: a line per cell that has ended, on a terminal a live one below them."""

from rich.console import Console
from rich.live import Live
from rich.text import Text

from horovod_study.studies.estimate import TimeLeft
from horovod_study.studies.ledger import Entry
from horovod_study.text.progress import duration


class Display:
    """Shows a running study on `console`.

    It is redrawn when told to and not by a thread of its own: what it costs is taken from the cores being measured.
    """

    def __init__(self, console: Console, *, total: int, ended: int) -> None:
        self._console, self._total, self._ended = console, total, ended
        shown = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False, transient=True) if shown else None

    def close(self) -> None:
        """Take away what runs."""
        if self._live:
            self._live.stop()

    def running(self, name: str, *, elapsed_s: float, left: TimeLeft) -> None:
        """Show what runs now, for how long the study has been running, and how much is left."""
        if self._live:
            self._live.start()
            text = f"{self._ended} of {self._total} ended, {duration(elapsed_s)}, {left}; running {name}"
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def ended(self, entry: Entry, *, seconds: float, left: TimeLeft | None, log: str) -> None:
        """Say how a cell ended; `left` is None after the last one."""
        self._ended += 1
        rate, took = "" if entry.samples_per_s is None else f"{entry.samples_per_s:,.0f} samples/s, ", duration(seconds)
        what = f"{rate}{took}" if entry.state == "done" else f"{entry.reason} (after {took}; see {log})"
        count = f"[{self._ended}/{self._total}]"
        say(self._console, f"{count} {entry.state} {entry.name}: {what}" + (f"; {left}" if left else ""))


def say(console: Console, text: str) -> None:
    """Print one line as it is: not interpreted, and not wrapped except between words on a terminal."""
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=not console.is_terminal)
