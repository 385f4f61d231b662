"""How long cells take: learned from those that are done, guessed where none is, and said so."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from horovod_study.config.run import Cell
from horovod_study.runtimes import CARRIED
from horovod_study.text.progress import duration

SAMPLES_GUESS_PER_S = 10_000.0
"""Guessed samples per second and worker, a cautious figure for one core, where a budget counts steps or epochs."""


class TimeLeft(NamedTuple):
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
        self._past = [*past]
        self._known: dict[tuple[str, int, float | None], TimeLeft] = {}  # a study has many cells of few kinds

    def add(self, runtime: str, workers: int, seconds: float) -> None:
        """Learn from a finished cell."""
        self._past.append((runtime, workers, seconds))
        self._known.clear()

    def of(self, cell: Cell) -> TimeLeft:
        """Return how long `cell` will take."""
        workers, asked_s = cell.placement.workers, cell.config.seconds
        if (kind := (cell.runtime, workers, asked_s)) not in self._known:
            alike = [each for each in self._past if each[0] == cell.runtime]
            if seen := [each for each in alike if each[1] == workers] or alike:
                found = TimeLeft(median(seconds for *_, seconds in seen), guess=False)
            elif asked_s is not None:
                found = TimeLeft(asked_s + CARRIED[cell.runtime][0].start_up_s, guess=True)
            else:
                found = TimeLeft(median(seconds for *_, seconds in self._past) if self._past else None, guess=True)
            self._known[kind] = found
        return self._known[kind]

    def expected(self, cell: Cell, *, at_most_s: float) -> tuple[float, str]:
        """Return the seconds to count `cell` with, and whether they are "" (learned), "guess" or "unknown".

        `at_most_s` is the time limit of a cell: no guess exceeds it, and it stands for what cannot even be guessed.
        """
        one = self.of(cell)
        if one.seconds is not None:
            return one.seconds, "guess" if one.guess else ""
        rough = rough_s(cell)
        return (at_most_s, "unknown") if rough is None else (min(rough, at_most_s), "guess")

    def left(self, cells: Sequence[Cell], *, running_s: float = 0.0) -> TimeLeft:
        """Return the time left for `cells`, the first of which has been running for `running_s`."""
        first, *rest = [*map(self.of, cells)] or [TimeLeft(0.0, guess=False)]
        known = None if first.seconds is None else max(0.0, first.seconds - running_s)
        return together([TimeLeft(known, first.guess), *rest])


def together(parts: Sequence[TimeLeft], *, lanes: int = 1) -> TimeLeft:
    """Return the time left for all of `parts`, of which `lanes` go on at a time; unknown where one is."""
    known = [each.seconds for each in parts if each.seconds is not None]
    if len(known) < len(parts):
        return TimeLeft(None, guess=True)
    return TimeLeft(max([*known, sum(known) / lanes], default=0.0), guess=any(each.guess for each in parts))


def rough_s(cell: Cell) -> float | None:
    """Guess the seconds of a cell whose budget counts steps or epochs; None where the size of its data is not known."""
    config = cell.config
    samples: float | None
    if config.seconds is not None:
        samples = config.seconds * SAMPLES_GUESS_PER_S
    elif config.steps is not None:
        samples = float(config.steps + config.warmup_steps) * config.batch
    elif (samples := config.workload.samples_of_epoch(config)) is not None:
        samples *= (config.epochs or 1) / cell.placement.workers
    return None if samples is None else CARRIED[cell.runtime][0].start_up_s + samples / SAMPLES_GUESS_PER_S
