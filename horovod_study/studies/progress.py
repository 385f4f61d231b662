"""What a person sees while a study runs: a live display on a terminal, plain lines in a log, and the time left."""

from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from horovod_study.progress import duration
from horovod_study.studies.estimate import TimeLeft
from horovod_study.studies.ledger import Entry


class Display:
    """Shows a running study on `console`: a bar below a line per ended cell on a terminal, else plain lines only.

    It is redrawn when told to and not by a thread of its own: what it costs is taken from the cores being measured.
    """

    def __init__(self, console: Console, *, total: int, ended: int) -> None:
        self._console, self._total, self._ended = console, total, ended
        unicode = "utf" in console.encoding.lower()
        self._done, self._failed = ("✓", "✗") if unicode else ("+", "x")
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._bar = Progress(
                BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.description}"), auto_refresh=False
            )
            self._task = self._bar.add_task("", total=total, completed=ended)
            self._live = Live(self._bar, console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def running(self, name: str, *, elapsed_s: float, left: TimeLeft) -> None:
        """Show what runs now, for how long the study has been running, and how much is left."""
        if self._live:
            self._bar.update(self._task, completed=self._ended, description=f"{duration(elapsed_s)}, {left}")
            line = Text(f"running {name}", no_wrap=True, overflow="ellipsis")
            self._live.update(Group(line, self._bar), refresh=True)

    def note(self, text: str) -> None:
        """Say something that is no end of a cell."""
        say(self._live.console if self._live else self._console, text)

    def ended(self, entry: Entry, *, seconds: float, left: TimeLeft | None, log: str) -> None:
        """Say how a cell ended; `left` is None after the last one."""
        self._ended += 1
        done, took = entry.state == "done", duration(seconds)
        rate = "" if entry.samples_per_s is None else f"{entry.samples_per_s:,.0f} samples/s"
        if self._live:
            line = Text(f"{self._done} " if done else f"{self._failed} ", style="green" if done else "red")
            line.append(f"{entry.name}  ", style="default")
            line.append(rate if done else entry.state, style="bold default" if done else "red")
            line.append(f"  {took}", style="dim default")
            self._live.console.print(line)
            if not done:
                self._live.console.print(Padding(Text(f"{entry.reason}\nsee {log}"), (0, 0, 0, 4)))
            return
        what = ", ".join(filter(None, (rate, took))) if done else f"{entry.reason} (after {took}; see {log})"
        count = f"[{self._ended:>{len(str(self._total))}}/{self._total}]"
        say(self._console, f"{count} {entry.state:<6}  {entry.name}: {what}" + (f"; {left}" if left else ""))


def say(console: Console, text: str) -> None:
    """Print one line as it is: not interpreted, and not wrapped except between words on a terminal."""
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=not console.is_terminal)
