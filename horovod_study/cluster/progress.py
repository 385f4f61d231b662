"""What a person sees while a study runs: a live display on a terminal, plain lines in a log, and the time left."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from horovod_study.cluster.ledger import Entry
from horovod_study.config import Cell

START_UP_GUESS_S = {"serial": 3.0, "horovod": 6.0, "ddp": 6.0, "mpi": 4.0, "ps": 4.0}
"""Guessed seconds a cell spends outside its timed window (imports, data, warm-up, test), until one has been seen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeLeft:
    """An estimate of seconds, None when nothing is known; a guess where no cell of some runtime has ended yet."""

    seconds: float | None
    guess: bool

    def __str__(self) -> str:
        if self.seconds is None:
            return "time left unknown until a cell is done"
        return f"about {duration(self.seconds)} left" + (" (a guess)" if self.guess else "")


class Estimate:
    """Estimates durations of cells from those that are done: same runtime and workers, else runtime, else a guess."""

    def __init__(self, past: Iterable[tuple[str, int, float]] = ()) -> None:
        """`past`: (runtime, workers, seconds) of finished cells."""
        self._seen: dict[tuple[str | None, int | None], list[float]] = {}
        for runtime, workers, seconds in past:
            self._add(runtime, workers, seconds)

    def add(self, cell: Cell, seconds: float) -> None:
        """Learn from a finished cell."""
        self._add(cell.runtime, cell.placement.workers, seconds)

    def _add(self, runtime: str, workers: int, seconds: float) -> None:
        for case in ((runtime, workers), (runtime, None), (None, None)):
            self._seen.setdefault(case, []).append(seconds)

    def of(self, cell: Cell) -> TimeLeft:
        """Return how long `cell` will take."""
        for case in ((cell.runtime, cell.placement.workers), (cell.runtime, None)):
            if case in self._seen:
                return TimeLeft(seconds=median(self._seen[case]), guess=False)
        if cell.config.seconds is not None:
            start_up = START_UP_GUESS_S[cell.runtime.partition("/")[0]]
            return TimeLeft(seconds=cell.config.seconds + start_up, guess=True)
        anything = self._seen.get((None, None))
        return TimeLeft(seconds=median(anything) if anything else None, guess=True)

    def left(self, cells: Sequence[Cell], *, running_s: float = 0.0) -> TimeLeft:
        """Return the time left for `cells`, the first of which has been running for `running_s`."""
        total, guess = 0.0, False
        known: dict[tuple[str, int, float | None], TimeLeft] = {}  # a study has many cells of few kinds
        for position, cell in enumerate(cells):
            kind = (cell.runtime, cell.placement.workers, cell.config.seconds)
            one = known.get(kind) or known.setdefault(kind, self.of(cell))
            if one.seconds is None:
                return one
            total += max(0.0, one.seconds - running_s) if position == 0 else one.seconds
            guess = guess or one.guess
        return TimeLeft(seconds=total, guess=guess)


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def running(self, name: str, *, elapsed_s: float, left: TimeLeft) -> None:
        """Show what runs now, for how long the study has been running, and how much is left."""
        if self._live:
            self._bar.update(self._task, completed=self._ended, description=f"{duration(elapsed_s)}, {left}")
            line = Text(f"running {name}", no_wrap=True, overflow="ellipsis")
            self._live.update(Group(line, self._bar), refresh=True)

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
        what = f"{rate}, {took}" if done else f"{entry.reason} (after {took}; see {log})"
        count = f"[{self._ended:>{len(str(self._total))}}/{self._total}]"
        say(self._console, f"{count} {entry.state:<6}  {entry.name}: {what}" + (f"; {left}" if left else ""))


def say(console: Console, text: str) -> None:
    """Print one line as it is: not interpreted, and not wrapped except between words on a terminal."""
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=not console.is_terminal)
