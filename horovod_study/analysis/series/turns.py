"""Speedups of a study whose cells alternated: ratios within rounds in place of ratios of medians over repeats.

A point's speedup over its baseline is `paired.estimate` of the slices of all their runs (docs/metrics.md, "Ratios from
turns"). It takes the place of the ratio of medians where two launches or more have slices of both; a single launch, and
a point or baseline that ran alone, leave the point as it is.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from horovod_study import records
from horovod_study.analysis import paired
from horovod_study.records import TurnSlice
from horovod_study.text.numbers import percent

COLUMNS = ("launches", "rounds", "set_aside", "shared", "round_sd", "memory", "round_error", "launch_sd", "cancelled")
"""What `paired.RatioEstimate` says beside the ratio, as columns `turns_...` of points (plain baseline, if any)."""


class StudyTurns:
    """The slices of a study by the run that made them, under the names of the run table."""

    def __init__(self, slices: Iterable[paired.Slice]) -> None:
        """`slices`: their `cell` is the name of the run."""
        self._of_run: dict[str, list[paired.Slice]] = {}
        for each in slices:
            self._of_run.setdefault(each.cell, []).append(each)
        self._found: dict[tuple[frozenset[str], frozenset[str]], paired.RatioEstimate | None] = {}

    def __bool__(self) -> bool:
        return bool(self._of_run)

    def estimate(self, runs: Collection[str], bases: Collection[str]) -> paired.RatioEstimate | None:
        """Return the ratio of the rates of `runs` to those of `bases`; None where too few launches have both."""
        asked = frozenset(runs), frozenset(bases)
        if asked not in self._found:  # several tables ask
            found = paired.estimate(self._pairs(runs, bases))
            self._found[asked] = found if found is not None and found.launches > 1 else None
        return self._found[asked]

    def shared(self, runs: Collection[str], bases: Collection[str]) -> float:
        """Return 1 where other programs used the machine in most rounds of both, 0 where not, NaN without any round."""
        both = self._pairs(runs, bases)
        return float(both.shared) if both.cell else math.nan

    def _pairs(self, runs: Collection[str], bases: Collection[str]) -> paired.Pairs:
        named = [
            replace(each, cell=name)
            for name, group in (("run", runs), ("base", bases))
            for run in sorted(group)
            for each in self._of_run.get(run, ())
        ]
        return paired.pairs(named, "run", "base")


def study_turns(root: Path) -> StudyTurns:
    """Return the slices of the studies at and below `root`, by the names that runs have in the run table of `root`."""
    below = records.turns_folders(root)
    return StudyTurns(made for name, folder in below.items() for made in slices_of(records.read_turns(folder), name))


def against(found: paired.RatioEstimate, kind: str, workers: float, value: float) -> dict[str, float]:
    """Return the columns of a point relative to one baseline (`plain`, `wrapped`) that its estimate decides.

    `value` is the ratio of the throughputs that are shown: that of the estimate where these were scaled to it
    (`points.levelled`), else by way of the other baseline; then the interval is as wide as that of the estimate.
    """
    ratio, by = found.ratio, value / found.ratio.value
    values = {"": value, "_low": by * ratio.low, "_high": by * ratio.high}
    return {
        **{f"speedup_{kind}{end}": value for end, value in values.items()},
        **{f"efficiency_{kind}{end}": value / workers for end, value in values.items()},
    }


def components(found: paired.RatioEstimate | None) -> dict[str, float]:
    """Return the columns `turns_...` of a point; NaN where it has no estimate."""
    return {f"turns_{name}": math.nan if found is None else float(getattr(found, name)) for name in COLUMNS}


def alternated(points: pd.DataFrame) -> bool:
    """Return whether some speedup of a table of points is a ratio within rounds."""
    return "turns_launches" in points.columns and bool(points["turns_launches"].notna().any())


def ratios_are(points: pd.DataFrame) -> str:
    """Return what the speedups of a table of points are, for captions and the page."""
    if not alternated(points):
        return "ratios of median throughputs over repeats"
    alone = points["turns_launches"].isna() & (points["workers"] > 1) & ~points["missing"].astype(bool)
    medians = ", of median throughputs where a cell did not" if alone.any() else ""
    return f"ratios within rounds of cells that alternate{medians}"


def doubts(points: Iterable[Mapping[Any, Any]], precision: float | None = None) -> list[str]:
    """Return what is doubtful about ratios from turns, by series; first what is wider than `precision`, if any.

    `precision`: half width of the intervals that the study had as its aim, a share (docs/studies.md).
    """
    points = list(points)
    found = [] if precision is None else _unresolved(points, precision)
    if (most := max(map(_set_aside, points), default=0.0)) >= 0.1:
        where = next(f"{row['series']}, {_counts([row])} workers" for row in points if _set_aside(row) == most)
        aside = f"up to {percent(most)} of the rounds ran beside other programs ({where}) and are set aside"
        found.append(f"{aside}, in throughputs, steps and their parts as in speedups.")
    for series in dict.fromkeys(row["series"] for row in points):
        own = [row for row in points if row["series"] == series]
        if loud := _counts(row for row in own if row.get("turns_shared") == 1):
            used = f"other programs used more than {paired.OTHER_LOAD:g} cores in most rounds at {loud} workers"
            found.append(f"{series}: {used}; these speedups are those of a shared machine, not of a quiet one.")
        if few := _counts(row for row in own if row.get("turns_launches", math.nan) < paired.LAUNCHES):
            why = "how much launches differ rests on one difference, so that the intervals are wide"
            found.append(f"{series}: two launches at {few} workers; {why}; three launches or more narrow them.")
    return found


def _set_aside(row: Mapping[Any, Any]) -> float:
    """Return which share of the rounds of a point was left out beside other programs.

    It is 0 where none was or that is unknown, and on a machine that is shared in most rounds, which are all counted.
    """
    aside = 0.0 if row.get("turns_shared") == 1 else float(row.get("turns_set_aside", math.nan))
    return aside / (aside + float(row["turns_rounds"])) if aside > 0 else 0.0


def _unresolved(points: Iterable[Mapping[Any, Any]], precision: float) -> list[str]:
    """Return for each series at which worker counts the speedup is not as precise as the study wanted it."""
    wide: dict[str, list[str]] = {}
    for row in points:
        ends = [(row[f"speedup_{kind}_low"], row[f"speedup_{kind}_high"]) for kind in ("plain", "wrapped")]
        # A baseline has the speedup 1 over itself, without a width.
        low, high = next((each for each in ends if each[0] < each[1] < math.inf), (math.nan, math.nan))
        how, half = "", math.log(high / low) / 2
        if row.get("turns_launches", math.nan) > 0 or low < high:
            how = "" if half <= precision else f"+- {100 * half:.2g} %"
        elif row["workers"] > 1 and not row["missing"]:
            how = "not measured in turns"
        if how:
            wide.setdefault(row["series"], []).append(f"{row['workers']:.0f} ({how})")
    asked = f"not resolved to the +- {100 * precision:.3g} % asked for"
    further = "workers; the same command goes on with further launches."
    return [f"{series}: {asked} at {', '.join(counts)} {further}" for series, counts in wide.items()]


def _counts(rows: Iterable[Mapping[Any, Any]]) -> str:
    return ", ".join(f"{row['workers']:.0f}" for row in sorted(rows, key=lambda row: float(row["workers"])))


def slices_of(rows: Iterable[TurnSlice], folder: str = ".") -> list[paired.Slice]:
    """Return the rows of a study's turns.csv as slices by run; `folder`: of the study, below that of the run table."""
    prefix = "" if folder in ("", ".") else f"{folder}/"
    return [
        paired.Slice(
            launch=f"{prefix}{each.block}/{each.launch:03d}",  # in the order of their numbers
            round=each.round,
            cell=f"{prefix}{each.run}",
            rate=each.samples / (each.end_s - each.begin_s),
            other_load=math.nan if each.other_load is None else each.other_load,
        )
        for each in rows
        if each.samples > 0
    ]
