"""Precision as the aim of a study: which cells need more turns, which need no further launch, and what is open.

The statistics are `analysis.paired.Precision`; here cells of a study are paired with their baselines, slices of earlier
launches are joined with those of the present one, and what was not resolved is put into words.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from horovod_study.analysis.paired import Precision, RatioEstimate, RatioVerdict
from horovod_study.analysis.stats import MIN_REPEATS, median_ratio
from horovod_study.config.run import Cell
from horovod_study.measure.clock import now
from horovod_study.records import TurnSlice, read_turns
from horovod_study.studies.attempt import record_in
from horovod_study.studies.sweep import StudyCells
from horovod_study.studies.turns import rates
from horovod_study.text.progress import duration


class Aim:
    """Ratios that are wanted in a sweep and how far they are; is asked as the policy of turns."""

    def __init__(self, sweep: StudyCells, slices: Iterable[TurnSlice] = ()) -> None:
        """`slices`: of launches before. Nothing more is needed after the hours of the sweep's budget, from now on."""
        self.precision = Precision(half_width=sweep.precision or 0.02)
        self.wanted = sweep.wanted
        self._labels = {cell.key: cell.label for cell in sweep.cells}  # run -> cell
        # Where seconds were asked for, the aim says how long a launch is.
        self._timed = {cell.label for cell in sweep.cells if cell.config.seconds is not None}
        self._until = now() + 3600 * sweep.budget.get("hours", math.inf)
        self._round_s = math.nan
        self.take(slices)

    def look(self, sweep: StudyCells) -> Self:
        """Take what all runs of a sweep have come to."""
        slices = read_turns(sweep.directory)
        self.take(slices, runs_alone(sweep, slices))
        return self

    def take(self, slices: Iterable[TurnSlice], alone: Mapping[str, Sequence[float]] | None = None) -> None:
        """Take the slices of all launches that have ended, and `alone`, what `runs_alone` says of the other runs."""
        self.before, self._alone = list(slices), alone or {}
        self._verdicts = self._judged(self.before)

    @property
    def over(self) -> bool:
        """Whether the hours of the budget are used up."""
        return now() >= self._until

    def __call__(self, slices: Sequence[TurnSlice], left: Mapping[str, bool]) -> Collection[str]:
        """Return the runs of the present launch that need more turns: the policy of a conductor.

        A run needs more until the launch is long enough for each ratio that it is in, and until it has made what it was
        asked for, if that were not seconds; when the budget is used up nobody does.
        """
        if self.over:
            return ()
        self._verdicts = self._judged([*self.before, *slices])
        present = {self._labels[run] for run in left if run in self._labels}
        judged = {pair: verdict.launch_done for pair, verdict in self._verdicts.items() if present.issuperset(pair)}
        needed = {name for pair, enough in judged.items() if not enough for name in pair}
        done = {name for pair in judged for name in pair} & self._timed - needed
        return [
            run
            for run, enough in left.items()
            if (label := self._labels.get(run)) in needed or not (enough or label in done)
        ]

    def needed(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return those of `cells`, of one launch, whose ratios are not resolved; none after the budget is used up."""
        if self.over and self.before:
            return []
        open_ones, paired_ones = ({name for pair in pairs for name in pair} for pairs in (self.open(), self.wanted))
        # A cell that is in no ratio is run as often as the aim takes launches at least.
        least = self.precision.launches
        return [
            cell
            for cell in cells
            if (label := self._labels[cell.key]) in open_ones
            or (label not in paired_ones and cell.config.repeat < least)
        ]

    def open(self) -> list[tuple[str, str]]:
        """Return the wanted ratios that are not resolved."""
        return [pair for pair in self.wanted if pair not in self._verdicts or not self._verdicts[pair].resolved]

    def progress(self) -> str:
        """Return the widest interval against the aim, in a few words."""
        widths = [each.estimate.half_width for each in self._verdicts.values() if each.estimate is not None]
        aim = f"aim {100 * self.precision.half_width:.3g} %"
        return f"+- {100 * max(widths):.2g} % at most, {aim}" if widths and all(map(math.isfinite, widths)) else aim

    def lines(self) -> list[str]:
        """Return a line for each wanted ratio: its interval, and what is left to do where it is not resolved."""
        aim, found = f"+- {100 * self.precision.half_width:.3g} %", []
        for cell, base in self.wanted:
            verdict = self._verdicts.get((cell, base))
            if verdict is None or (known := verdict.estimate) is None:
                found.append(f"{cell} / {base}: not measured in turns")
                continue
            ratio = f"{known.ratio.value:.3f} [{known.ratio.low:.3f}, {known.ratio.high:.3f}]"
            said = f"{cell} / {base}: {ratio}, +- {100 * known.half_width:.2g} %"
            said += ", on a shared machine" if known.shared else ""
            if verdict.rounds is None:
                said += f"; {aim} is out of reach"
            elif not verdict.resolved:
                more = duration(verdict.rounds * self._round_s) if math.isfinite(self._round_s) else "an unknown time"
                launches = f"{verdict.launches or 1} more launch{'' if verdict.launches == 1 else 'es'}"
                rounds = f"{verdict.rounds} more rounds, {more}, in {launches}"
                said += f"; {aim} takes about {rounds if verdict.rounds else launches}"
            found.append(said)
        return found

    def _judged(self, slices: Sequence[TurnSlice]) -> dict[tuple[str, str], RatioVerdict]:
        made = rates(slices, self._labels)
        if slices:
            last = [each for each in slices if each.launch == slices[-1].launch and each.block == slices[-1].block]
            span = max(each.end_s for each in last) - min(each.begin_s for each in last)
            self._round_s = span / (1 + max(each.round for each in last))
        verdicts = self.precision.judge(made, self.wanted)
        return {
            (each.cell, each.base): each if each.estimate is not None else self._judged_alone(each) for each in verdicts
        }

    def _judged_alone(self, verdict: RatioVerdict) -> RatioVerdict:
        """Return the verdict on two cells that did not alternate: the ratio of medians over repeats, as in a report."""
        both = [self._alone.get(name, ()) for name in (verdict.cell, verdict.base)]
        repeats, aim = min(map(len, both)), self.precision
        if repeats < MIN_REPEATS:
            return verdict
        ratio = median_ratio(*both)
        unknown: dict[str, Any] = dict.fromkeys(
            ("round_sd", "memory", "round_error", "launch_sd", "cancelled"), math.nan
        )
        estimate = RatioEstimate(ratio=ratio, launches=repeats, rounds=repeats, **unknown)
        resolved = repeats >= aim.launches and estimate.half_width <= aim.half_width
        more = 0 if resolved else math.ceil(repeats * ((estimate.half_width / aim.half_width) ** 2 - 1)) or 1
        return replace(verdict, estimate=estimate, resolved=resolved, launch_done=True, rounds=0, launches=more)


def runs_alone(sweep: StudyCells, slices: Iterable[TurnSlice]) -> dict[str, list[float]]:
    """Return {label: rate of each of its runs} of the finished runs that made no slice."""
    alternated = {each.run for each in slices}
    found: dict[str, list[float]] = {}
    for cell in sweep.cells:
        record = None if cell.key in alternated else record_in(sweep.directory / cell.key)
        if record is not None and record.status == "done" and (rate := record.totals.get("samples_per_s")):
            found.setdefault(cell.label, []).append(float(rate))
    return found
