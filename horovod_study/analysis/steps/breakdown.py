"""Where the time of a step goes, and what more workers add to it.

Laps tile the step: data, compute or forward and backward, sync, update and the residual ("unexplained") add up to the
step, so differences of laps add up to the difference of steps. docs/metrics.md defines each lap and its limits;
accounting.py makes the same of the rows of every step.

From the ideal step to the measured one, `losses` says what each part costs, one after the other. The ideal step is that
of the one-worker baseline (for a strong series divided by the workers), the measured one the mean over repeats. Between
them T(N) - T(1) of each part: they add up to the measured step, and any of them may be negative.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.series import points
from horovod_study.analysis.series.culprits import UNSTEADY, incredible, of_kind
from horovod_study.analysis.series.points import rows_by
from horovod_study.analysis.stats import Floats
from horovod_study.text.words import plural

NOTES = {
    "hidden": "inside backward",
    "captured": "inside compute",
    "gathered": "inside forward",
    "together": "its growth holds that of update, which one worker has in compute",
    "alone": "one worker has nobody to wait for",
    "unmarked": "not marked; its time is in what is unexplained",
    "off": "not timed",
}
"""Why a lap is empty or trivial."""

HOLDS_SYNC = {NOTES["hidden"]: "backward", NOTES["captured"]: "compute"}
"""What is noted of a synchronisation that cannot be seen, and the lap that it is in."""

PARTS = ("data", "compute", "forward", "backward", "sync", "update", "residual", "step")
"""The rows of one cell, in the order of a step; `step` is the whole. `compute` is there where some run knows it."""

BASES = ("plain", "wrapped")
TILING = 0.01
UNEXPLAINED = 0.05
GROWTH_WORTH_SPLITTING = 0.02
_PLACES = {part: place for place, part in enumerate(PARTS)}


def breakdown(runs: pd.DataFrame) -> pd.DataFrame:
    """Return `split` of the finished runs of a run table."""
    table = points.with_series(runs)
    return split(table[points.measured(table)])


def split(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per (series, workers, nodes, lap) of runs with a series: what a step is made of, how it grows.

    mean_s is the mean over repeats of the means per step: unlike medians, means of laps that tile still tile. median_s,
    min_s and max_s are those of the repeats, and do not add up. minus_plain_s and minus_wrapped_s are mean_s less the
    same lap of the one-worker baseline (for a strong series less that lap / workers, the step of an ideal machine),
    with 95 % intervals (_low_s, _high_s) from three repeats on, how these were made (interval_plain, ...), and the
    series of the baseline (base_plain, ...); growth_plain and growth_wrapped are their shares of the growth of the
    whole step, left out where that is below 2 % of the step. A lap that one side cannot see is compared together with
    the lap that holds it, so that every growth adds up: the graph of one worker holds the update too, so that its
    growth is in that of compute. NaN where unknown; `note` says why a lap is empty or trivial.

    compute has rows only where one of the runs knows it.
    """
    cells: list[dict[str, Any]] = []
    for cell in points.cells_of(table):
        timed = cell[cell["step_s"].astype(float) > 0]
        if not timed.empty:
            first = {f"{name}": value for name, value in cell.iloc[0].items()}
            values = folded(timed[[*points.LAP_COLUMNS, "step_s"]].to_numpy(dtype=np.float64))
            names, moved = tuple(timed["repeat"]), 2 * points.disturbed_runs(timed).sum() >= len(timed)
            cells.append({**first, "repeats": len(timed), "values": values, "names": names, "disturbed": moved})
    rows = [row for cell in cells for row in _rows(cell, cells)]
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    if frame.loc[frame["lap"] == "compute", "mean_s"].isna().all():
        frame = frame[frame["lap"] != "compute"].reset_index(drop=True)
    return points.whole_numbers(frame, ("batch", "workers", "nodes"))


_OF_CELL = ("series", "partition", "backend", "transport", "batch", "workers", "nodes", "mode", "repeats")
_COLUMNS = [
    *(*_OF_CELL, "lap"),
    *("mean_s", "share", "minus_plain_s", "growth_plain", "minus_wrapped_s", "growth_wrapped", "note"),
    *("median_s", "min_s", "max_s"),
    *(f"{name}_{kind}{end}" for kind in BASES
      for name, end in (("minus", "_low_s"), ("minus", "_high_s"), ("interval", ""), ("base", ""))),
]  # fmt: skip


def shown(cells: pd.DataFrame, laps: Sequence[str]) -> list[str]:
    """Return those of `laps` that have a place in a table or figure of the rows of `split`: compute has one only where
    some run knows it, and then any other only where some run knows that one."""
    known = {str(lap) for lap in cells.loc[cells["mean_s"].notna(), "lap"]}
    return [lap for lap in laps if (lap in known if "compute" in known else lap != "compute")]


def hiding(cells: pd.DataFrame) -> list[str]:
    """Return the laps that hold a synchronisation of several workers in some of the rows of `split`."""
    noted = set(cells.loc[(cells["lap"] == "sync") & (cells["workers"] > 1), "note"])
    return [lap for note, lap in HOLDS_SYNC.items() if note in noted]


def folded(values: Floats) -> Floats:
    """Return rows of parts, shape (R, 8) in the order of PARTS, with one answer to which parts are known.

    A part that some row does not know (NaN) is NaN in all rows, and what the others have in it is added to the part
    that holds it where it cannot be separated: a sync to backward, else whatever it is to compute, else to the
    residual. Where some rows have compute and the others forward and backward, all have compute.
    """
    result = values.copy()
    captured = ~np.isnan(values[:, _PLACES["compute"]])
    apart = [_PLACES["forward"], _PLACES["backward"]]
    if captured.any() and not captured.all() and not np.isnan(values[~captured][:, apart]).any():
        result[~captured, _PLACES["compute"]] = 0.0  # and forward and backward are added below
    hidden = np.asarray(np.isnan(result).any(axis=0))
    for part in PARTS[:-2]:
        place = _PLACES[part]
        if not hidden[place]:
            continue
        homes = ("backward", "compute", "residual") if part == "sync" else ("compute", "residual")
        home = next((_PLACES[each] for each in homes if not hidden[_PLACES[each]]), None)
        if home is not None:
            result[:, home] += np.nan_to_num(result[:, place])
        result[:, place] = np.nan
    result[:, hidden] = np.nan
    return result


def _rows(cell: dict[str, Any], cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of one cell."""
    values: Floats = cell["values"]  # (R, 8)
    means = values.mean(axis=0)
    notes = [_note(cell, means, part) for part in PARTS]
    found: dict[str, Any] = {"lap": PARTS, "note": notes, "mean_s": means, "share": means / means[-1]}
    found |= {"median_s": np.median(values, axis=0), "min_s": values.min(axis=0), "max_s": values.max(axis=0)}
    same = {name: cell[name] for name in _OF_CELL}
    together = False
    for kind in BASES:
        minus, low, high, how, base = _growth(cell, cells, kind)
        worth = abs(minus[-1]) >= GROWTH_WORTH_SPLITTING * means[-1]
        found[f"minus_{kind}_s"], found[f"growth_{kind}"] = minus, minus / minus[-1] if worth else minus * math.nan
        found[f"minus_{kind}_low_s"], found[f"minus_{kind}_high_s"] = low, high
        same |= {f"interval_{kind}": how, f"base_{kind}": base}
        together |= not math.isnan(minus[_PLACES["compute"]]) and math.isnan(minus[_PLACES["update"]])
    if together:
        notes[_PLACES["compute"]] = "" if math.isnan(means[_PLACES["update"]]) else NOTES["together"]
    return [same | dict(zip(found, each, strict=True)) for each in zip(*found.values(), strict=True)]


def _note(cell: dict[str, Any], means: Floats, part: str) -> str:
    known = {name: not math.isnan(means[place]) for name, place in _PLACES.items()}
    alone = part == "sync" and cell["workers"] == 1
    if part in ("step", "residual"):
        return "" if known["residual"] or part == "step" else NOTES["off"]
    if known[part]:
        return NOTES["alone"] if alone else ""
    if np.isnan(means[:-2]).all():
        return NOTES["off"]
    if part == "compute":
        return ""
    if known["compute"]:
        return NOTES["alone" if alone else "captured"]
    if part == "data" and cell["cuda_graphs"] is True and known["forward"]:
        return NOTES["gathered"]
    return NOTES["hidden" if part == "sync" and known["backward"] else "unmarked"]


def _growth(cell: dict[str, Any], cells: list[dict[str, Any]], kind: str) -> tuple[Floats, Floats, Floats, str, str]:
    """Return T(N) - T(1) of every part, shape (8,), its interval, in words what that is of, and the base's series.

    The one-worker cell is the one that speedups use too.
    """
    unknown = np.full(len(PARTS), np.nan)
    place = points.baseline_place(cells, cell, kind)
    if place is None:
        return unknown, unknown, unknown, "no baseline", ""
    base, scale = cells[place], cell["batch"] / cell["ref_batch"]
    faster = cell["workers"] * scale * base["values"][:, -1].mean() / cell["values"][:, -1].mean()
    if cell.get("apart") or incredible(faster, cell["workers"], disturbed=base["disturbed"]):
        return unknown, unknown, unknown, "the speedup is withheld", ""
    alone = base["values"].copy()
    if not np.isnan(alone[:, _PLACES["compute"]]).any():
        # The graph of one worker holds no synchronisation: there is nobody to wait for.
        alone[:, _PLACES["sync"]] = np.nan_to_num(alone[:, _PLACES["sync"]])
    both = folded(np.concatenate([cell["values"], scale * alone]))
    ours, theirs = both[: len(cell["values"])], both[len(cell["values"]) :]
    low, high, how = difference_interval(ours, theirs, cell["names"], base["names"])
    return ours.mean(axis=0) - theirs.mean(axis=0), low, high, how, str(base["series"])


def difference_interval(
    ours: Floats, theirs: Floats, our_names: tuple[Any, ...], their_names: tuple[Any, ...]
) -> tuple[Floats, Floats, str]:
    """Return the 95 % interval of the difference of means over repeats, (R, P) and (Q, P), and how it was made.

    Repeats of a study run side by side, so that what disturbs one disturbs its twin: where both sides have the same
    ones, Student's t of their differences; else Welch's.
    """
    fewest = min(len(ours), len(theirs))
    if fewest < stats.MIN_REPEATS:
        unknown = np.full(ours.shape[1], np.nan)
        one = len(ours) == len(theirs) == 1
        few = f"{fewest} repeat{'s' if fewest > 1 else ''}, and an interval needs {stats.MIN_REPEATS}"
        return unknown, unknown, f"{'one run each' if one else few}: no interval"
    order = [{name: place for place, name in enumerate(names)} for names in (our_names, their_names)]
    if set(order[0]) == set(order[1]) and len(order[0]) == len(ours) == len(theirs):
        pairs = ours - theirs[[order[1][name] for name in our_names]]
        mean, half = pairs.mean(axis=0), stats.half_width(stats.standard_error(pairs, axis=0), len(pairs) - 1.0)
        return mean - half, mean + half, f"95 %, Student's t of {len(pairs)} pairs of repeats"
    squares = np.stack([each.var(axis=0, ddof=1) / len(each) for each in (ours, theirs)])
    variance, freedom = stats.welch(squares, [len(ours), len(theirs)])
    half = stats.half_width(np.sqrt(variance), freedom)
    mean = ours.mean(axis=0) - theirs.mean(axis=0)
    return mean - half, mean + half, f"95 %, Welch's t of {len(ours)} and {len(theirs)} repeats"


def doubts(runs: pd.DataFrame) -> list[str]:
    """Return the limitations of the laps: steps that do not add up, and unexplained time."""
    table = points.with_series(runs)
    good = table[points.measured(table) & (table["step_s"].astype(float) > 0)]
    laps = good[list(points.LAP_COLUMNS)].astype(float)
    step = good["step_s"].astype(float)
    known = laps.notna().any(axis=1)
    gap = (laps.sum(axis=1) - step).abs() / step
    residual = laps["residual_s"].abs() / step
    # What the recording of finished runs doubted itself: lost rows, a steady state not found.
    finished, found = table[points.measured(table)], list[str]()
    lost, texts = points.numbers(finished, "rows_lost").fillna(0), points.texts(finished, "steady_doubt")
    for series, rows in finished[lost > 0].groupby("series", sort=False):
        which = f"{lost[rows.index].sum():.0f} step rows of {plural(len(rows), 'run')}"
        where = f"{points.worker_counts(rows['workers'])} are lost (the disk was full)"
        found += of_kind("missing", [f"{series}: {which} at {where}; the parts are those of the others."])
    apart = points.texts(finished, "apart") != ""  # of which culprits.told says what the recorder says beside
    texts = texts.mask(apart, texts.str.extract(f"({UNSTEADY}.*)", expand=False).fillna(""))
    for series, rows in finished[texts != ""].groupby("series", sort=False):
        told, which = texts[rows.index].iloc[0].rstrip("."), "1 run"
        if len(rows) > 1:
            which = f"{len(rows)} of {(finished['series'] == series).sum()} runs"
            told = f"step time drifts; the first: {told.removeprefix('the run is not steady: ')}"
        found += of_kind("unsteady", [f"{series}: {which} at {points.worker_counts(rows['workers'])}: {told}."])
    captured = good[points.CAPTURED].notna()
    ordinary = good[~captured & good[["forward_s", "backward_s"]].notna().any(axis=1)]
    if captured.any() and not ordinary.empty:
        found.insert(
            0,
            f"{plural(int(captured.sum()), 'run')} captured whole steps in CUDA graphs and {len(ordinary)} did not: "
            "their laps are not comparable one by one; compare compute with forward + backward, and with forward + "
            "backward + update where compute holds the update (one worker, and synchronisation inside the graph).",
        )
    for series, rows in good[known & (gap > TILING)].groupby("series", sort=False):
        off = f"do not add up to the step (off by up to {100 * gap[rows.index].max():.1f} %); do not quote their shares"
        which = f"the laps of {plural(len(rows), 'run')} at {points.worker_counts(rows['workers'])}"
        found.append(f"{series}: {which} {off}.")
    for series, rows in good[residual > UNEXPLAINED].groupby("series", sort=False):
        share = f"up to {100 * residual[rows.index].max():.1f} % of the step"
        where = points.worker_counts(rows["workers"])
        found.append(f"{series}: {share} at {where} is unexplained (outside every lap).")
    return of_kind("parts", found)


# ------------------------------------------------------------------------ from the ideal step to the measured one

IDEAL, MEASURED = "ideal", "measured"

LOSS_COLUMNS = (
    *("series", "setting", "partition", "backend", "transport", "reduction", "horovod_defaults"),
    *("workers", "nodes", "batch", "mode", "repeats", "baseline", "base", "part", "seconds", "low_s", "high_s"),
    *("from_s", "to_s", "of_loss", "of_step", "note"),
)
"""One row per cell and part, with the ideal and the measured step as its ends.

seconds: what the part adds, per step; of the ends the whole step. low_s, high_s: 95 %, where there is an interval.
from_s, to_s: where the part begins and ends on the way. of_loss: of measured less ideal, of_step: of measured.
"""

_COMPUTING = ("data", "compute", "forward", "backward", "update")
_APART = {"skew": "skew", "transfer": "floor", "packing": "pack", "runtime": "rest"}
"""Parts of the synchronisation, with their names in attribution.py."""
_Laps: TypeAlias = Mapping[str, Mapping[Any, Any]]
_NOTHING = (math.nan, math.nan)


def losses(
    parts: pd.DataFrame, points: pd.DataFrame, attribution: pd.DataFrame, *, baseline: str, skew_s: pd.Series
) -> pd.DataFrame:
    """Return LOSS_COLUMNS of every cell of several workers whose step has a baseline.

    `parts`: table of breakdown.py; `attribution`: that of attribution.arm_rows. `skew_s`: mean over repeats of each
    cell, indexed by series, workers, nodes, batch.
    """
    about = points.drop_duplicates("series").set_index("series")
    rows: list[dict[str, Any]] = []
    keys = ["series", "workers", "nodes", "batch"]
    same = (*keys, "partition", "backend", "transport", "mode", "repeats")
    measured_parts = {tuple(of[0][name] for name in keys): of for of in rows_by(attribution, keys)}
    for cell in rows_by(parts[parts["workers"] > 1], keys):
        laps = {str(row["lap"]): row for row in cell}
        step = laps["step"]
        key = tuple(step[name] for name in keys)
        measured, lost = float(step["mean_s"]), float(step[f"minus_{baseline}_s"])
        if not math.isfinite(lost):
            continue
        own = measured_parts.get(key, [])
        known = {str(row["part"]): row for row in own} if len({row["arm"] for row in own}) == 1 else {}
        common = {column: about.loc[str(key[0]), column] for column in ("setting", "reduction", "horovod_defaults")}
        common |= {column: step[column] for column in same} | {"baseline": baseline, "note": ""}
        common["base"], place = step.get(f"base_{baseline}", ""), measured - lost
        rows.append({**common, "part": IDEAL, "seconds": place, "from_s": 0.0, "to_s": place})
        worth = abs(lost) >= GROWTH_WORTH_SPLITTING * measured
        for part, seconds, (low_s, high_s), note in _grown(laps, known, float(skew_s.get(key, math.nan)), baseline):
            way = {"seconds": seconds, "from_s": place, "to_s": place + seconds, "low_s": low_s, "high_s": high_s}
            shares = {"of_loss": seconds / lost if worth else math.nan, "of_step": seconds / measured}
            rows.append({**common, "part": part, **way, **shares, "note": note})
            place += seconds
        # The interval of the last row is that of the whole loss, set upon the ideal step.
        ends = {f"{end}_s": measured - lost + float(step[f"minus_{baseline}_{end}_s"]) for end in ("low", "high")}
        rows.append({**common, "part": MEASURED, "seconds": measured, "from_s": 0.0, "to_s": measured, **ends})
    return pd.DataFrame(rows, columns=list(LOSS_COLUMNS))


def _grown(
    laps: _Laps, known: _Laps, skew_s: float, baseline: str
) -> Iterator[tuple[str, float, tuple[float, float], str]]:
    """Yield part, seconds, interval and note of what the step grew by; together they are all of it."""
    grown = {lap: each for lap, row in laps.items() if math.isfinite(each := float(row[f"minus_{baseline}_s"]))}
    low, high = (f"minus_{baseline}_{end}_s" for end in ("low", "high"))
    hidden = HOLDS_SYNC.get(laps["sync"]["note"])
    computing = [grown[lap] for lap in _COMPUTING if lap in grown and lap != hidden]
    if computing:
        yield "computing", math.fsum(computing), _NOTHING, ""
    if hidden in grown:
        note = laps["sync"]["note"] if hidden == "compute" else ""
        yield "hidden", grown[hidden], (laps[hidden][low], laps[hidden][high]), note
    unmeasured, sync_s = "not measured separately: record with --measure-sync", grown.get("sync")
    if sync_s is not None and all(name in known for name in _APART.values()):
        found = {part: known[name] for part, name in _APART.items()}
        for part, row in found.items():
            yield part, float(row["seconds"]), (float(row["low_s"]), float(row["high_s"])), ""
        yield "other", sync_s - math.fsum(float(row["seconds"]) for row in found.values()), _NOTHING, ""
    elif sync_s is not None and math.isfinite(skew_s):
        yield "skew", skew_s, _NOTHING, ""
        yield "exchange", sync_s - skew_s, _NOTHING, unmeasured
    elif sync_s is not None:
        yield "waiting", sync_s, (laps["sync"][low], laps["sync"][high]), unmeasured
    told = math.fsum(grown[lap] for lap in (*_COMPUTING, "sync") if lap in grown)
    yield "unexplained", grown["step"] - told, _NOTHING, ""
