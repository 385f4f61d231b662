"""One call from a run table to everything a report draws: points, fitted laws, curves, breakdown and provenance."""

# ruff: noqa: RUF009  # what `_table` returns is a field()

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis import stats
from horovod_study.analysis.fit.fitting import SeriesFit, fit_series
from horovod_study.analysis.forecast import recommendation
from horovod_study.analysis.importers import SAMPLES
from horovod_study.analysis.learning import convergence
from horovod_study.analysis.machine import resources
from horovod_study.analysis.series import points as scaling
from horovod_study.analysis.series.culprits import briefly, of_kind, withheld
from horovod_study.analysis.series.points import StudyTurns
from horovod_study.analysis.steps import accounting as steps
from horovod_study.analysis.steps import attribution
from horovod_study.analysis.steps import breakdown as laps
from horovod_study.analysis.sync import synchronisation
from horovod_study.errors import AnalysisError
from horovod_study.records import finite

SCHEMA = 1  # of provenance.json; raised when a key changes its meaning

CURVE_COLUMNS = (
    *("series", "law", "selected", "workers", "speedup", "low", "high"),
    *("efficiency", "efficiency_low", "efficiency_high", "extrapolated"),
)

_TEXTS = (
    *("reasons", "note", "reduction", "precision", "transport", "base", "base_series", "rate_interval", "why_not"),
    *("flags", "apart", "calls", "device", "energy_of"),
    *("per_node", "path", "fewer_per_node", "fewer_path", "more_per_node", "more_path"),
    "doubts",
    *("setting", "lost_base", "form", "other_form", "interval", "test", "better"),
    "arm",
    *("reason", "hosts", "launcher", "command", "excluded_by", "steady_doubt", "energy_doubt", "budget"),
)

_OPTIONS = (*scaling.CHOICES, "horovod_defaults")  # empty where another script did not record them
_POINTS = ("series", "setting", "partition", "backend", "transport", "workers", "speedup_plain", "missing")


def _table(columns: Callable[[], Sequence[str]]) -> Any:
    """Return a field for a table that has at least these columns, and no rows where nothing is said.

    They come when they are asked for: in the body of the class a module may have the name of a field.
    """
    return field(default_factory=lambda: pd.DataFrame(columns=list(columns())), metadata={"columns": columns})


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """What a study says. The tables and documents are the files of an analysis directory, under the same names and in
    this order."""

    points: pd.DataFrame = field(metadata={"columns": lambda: _POINTS})
    curves: pd.DataFrame = field(metadata={"columns": lambda: CURVE_COLUMNS})
    breakdown: pd.DataFrame = field(
        metadata={"columns": lambda: ("series", "workers", "lap", "mean_s", "share", "note")}
    )
    convergence: pd.DataFrame = _table(lambda: convergence.CURVE_COLUMNS)
    learning: pd.DataFrame = _table(lambda: convergence.LEARNING_COLUMNS)
    targets: pd.DataFrame = _table(lambda: convergence.TARGET_COLUMNS)
    accounting: pd.DataFrame = _table(lambda: steps.RUN_COLUMNS)
    nodes: pd.DataFrame = _table(lambda: synchronisation.NODE_COLUMNS)
    boundary: pd.DataFrame = _table(lambda: synchronisation.BOUNDARY_COLUMNS)
    resources: pd.DataFrame = _table(lambda: resources.RESOURCE_COLUMNS)
    quantity_curves: pd.DataFrame = _table(lambda: resources.QUANTITY_CURVE_COLUMNS)
    crossings: pd.DataFrame = _table(lambda: convergence.CROSSING_COLUMNS)
    forecast: pd.DataFrame = _table(lambda: recommendation.FORECAST_COLUMNS)
    synchronisation: pd.DataFrame = _table(lambda: synchronisation.SYNC_COLUMNS)
    sync_curves: pd.DataFrame = _table(lambda: synchronisation.CURVE_COLUMNS)
    transports: pd.DataFrame = _table(lambda: synchronisation.TRANSPORT_COLUMNS)
    batches: pd.DataFrame = _table(lambda: synchronisation.BATCH_COLUMNS)
    knees: pd.DataFrame = _table(lambda: synchronisation.KNEE_COLUMNS)
    batch_curves: pd.DataFrame = _table(lambda: synchronisation.BATCH_CURVE_COLUMNS)
    cycle: pd.DataFrame = _table(lambda: synchronisation.CYCLE_COLUMNS)
    usage: pd.DataFrame = _table(lambda: resources.USAGE_COLUMNS)
    load: pd.DataFrame = _table(lambda: resources.LOAD_COLUMNS)
    losses: pd.DataFrame = _table(lambda: laps.LOSS_COLUMNS)
    attribution: pd.DataFrame = _table(lambda: attribution.ARM_COLUMNS)
    runs: pd.DataFrame = _table(lambda: steps.RUN_TABLE_COLUMNS)
    run_profiles: pd.DataFrame = _table(lambda: steps.PROFILE_COLUMNS)
    fits: Mapping[str, Any]
    provenance: Mapping[str, Any]
    quantities: Mapping[str, Any] = field(default_factory=lambda: {"fits": []})
    holdout: Mapping[str, Any] = field(default_factory=lambda: recommendation.no_outlook().document)
    sync_fits: Mapping[str, Any] = field(default_factory=lambda: synchronisation.document({}))
    network: Mapping[str, Any] = field(default_factory=lambda: {"machines": []})

    def __post_init__(self) -> None:
        lacking = []
        for each in fields(self):
            if "columns" not in each.metadata:
                continue
            name, frame = each.name, getattr(self, each.name)
            missing = [column for column in each.metadata["columns"]() if column not in frame.columns]
            if missing:
                lacking.append(f"{name}.csv: column {missing[0]} is missing")
                continue
            # An empty text is an empty cell in CSV and comes back as NaN.
            unknown = [column for column in _OPTIONS if column in frame.columns and frame[column].isna().any()]
            columns = [*(column for column in _TEXTS if column in frame.columns), *unknown]
            texts = {column: frame[column].astype(object).fillna("") for column in columns}
            # A copy is one block of memory: pandas warns of a table to which a hundred columns were added one by one.
            object.__setattr__(self, name, frame.assign(**texts).copy())
        if (schema := self.provenance.get("schema")) != SCHEMA:
            lacking.append(f"provenance.json: schema is {schema!r}, this program reads {SCHEMA}")
        if lacking:
            raise AnalysisError(f"{lacking[0]}; make the directory again with horovod-study report")

    @property
    def rate_unit(self) -> str:
        """What a throughput is in; of somebody's table it need not be samples/s."""
        return str(self.provenance.get("unit", SAMPLES))

    def with_left_out(self, left_out: Mapping[str, str]) -> "Analysis":
        """Return the analysis that says {run: why not} of what is among its runs and is in no table."""
        if not left_out:
            return self
        doubts = of_kind("missing", [f"left out: {name}: {why}" for name, why in left_out.items()])
        return self.with_doubts(doubts, left_out=dict(left_out))

    def with_doubts(self, doubts: Sequence[str], **more: Any) -> "Analysis":
        """Return the analysis with `doubts` (of culprits.of_kind) before its own, and `more` in its provenance."""
        own = {"doubts": doubts, "doubt_kinds": _kinds(doubts)}
        joined = {name: [*first, *self.provenance.get(name, ())] for name, first in own.items()}
        return replace(self, provenance={**self.provenance, **joined, **more})

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the tables by the names of their files."""
        return {name: getattr(self, name) for name in TABLES}

    def documents(self) -> dict[str, Any]:
        """Return the JSON documents by the names of their files."""
        return {name: getattr(self, name) for name in DOCUMENTS}


def _kinds(doubts: Iterable[str]) -> list[str]:
    """Return what each doubt is about (culprits.Kind)."""
    return [getattr(each, "kind", "other") for each in doubts]


TABLES = tuple(each.name for each in fields(Analysis) if "columns" in each.metadata)
DOCUMENTS = tuple(each.name for each in fields(Analysis) if each.name not in TABLES)


def analyze(
    runs: pd.DataFrame,
    evaluations: pd.DataFrame | None = None,
    *,
    targets: Sequence[float] = (),
    accounting: steps.Accounting | None = None,
    networks: Sequence[Mapping[str, Any]] = (),
    turns: StudyTurns | None = None,
    precision: float | None = None,
    commands: Sequence[str] | None = None,
    unit: str = SAMPLES,
    seed: int = 0,
) -> Analysis:
    """Return the whole analysis of a run table (records.run_table); equal runs in any order give equal results.

    `evaluations` (records.epoch_table) and `targets` (test MSEs) make the tables of convergence, `accounting` (of the
    step rows of these runs) the tables of what is unexplained and of what synchronisation is made of; `networks` are
    what `horovod-study bench` wrote of the machines, `turns` the slices of runs that alternated, `precision`
    the half width (a share) of their intervals that the study had as its aim. `commands` are quoted
    in the report as the way to repeat the study; without them the usual ones are named. `unit` is that of throughputs.
    Raises AnalysisError for a table without runs or without a needed column.
    """
    # Long because a study has thirty tables and documents: a line each, and what one needs of another is seen.
    accounts = None if accounting is None else accounting.run_rows()
    table = scaling.levelled(runs, turns)
    points = scaling.scaling_points(table, accounts, turns)
    parts = laps.breakdown(table)
    # `plain`, unless no parallel point has one.
    there = points.loc[points["backend"] != "serial", ["speedup_plain", "speedup_wrapped"]].notna().any()
    baseline = "wrapped" if there["speedup_wrapped"] and not there["speedup_plain"] else "plain"
    scaled = table[scaling.measured(table) & (table["backend"] != "serial") & (scaling.texts(table, "apart") == "")]
    scaled = scaled[synchronisation.fewest_nodes(scaled)].astype({"samples_per_s": float})
    names = ["series", "workers", "nodes", "samples_per_s", "repeat", "sync_s", "batch", "train_samples"]
    scaled = scaled[names].rename(columns={"batch": "batch_size"})
    scaled.attrs["unit"] = unit
    # Every series is fitted that has the baseline and enough measured worker counts for a law to be tested.
    known = points[(points["backend"] != "serial") & points[f"speedup_{baseline}"].notna()].groupby(
        "series", sort=False
    )
    tested = known["workers"].nunique() >= recommendation.FEWEST_COUNTS
    fitted_over: Any = known[f"base_{baseline}_samples_per_s"].first()[tested].to_dict()
    frame = scaled[scaled["series"].isin(list(fitted_over))]
    fits = {} if frame.empty else fit_series(frame, baseline_samples_per_s=fitted_over, seed=seed)
    fitted = {name: fits[name] for name in fitted_over if fits}
    # Every parallel series is forecast in which only the worker count changes.
    chosen = points[(points["backend"] != "serial") & (points["mode"] != "mixed")].drop_duplicates("series")
    settings = dict(zip(chosen["series"], chosen["setting"], strict=True))
    bases: Any = points.groupby("series")[f"base_{baseline}_samples_per_s"].first().dropna().to_dict()
    room = scaling.cores_of_one_machine(table)
    forecasts = recommendation.outlook(scaled, settings=settings, bases=bases, fits=fitted, room=room, seed=seed)
    learning = convergence.convergence(table, evaluations, targets=targets, baseline=baseline)
    rows = [] if accounting is None else steps.row_doubts(accounting)
    placed = synchronisation.over_placements(table)
    doubts = [*scaling.doubts(table, points, precision), *laps.doubts(table)]
    doubts += [f"{name}: {doubt}." for name, fit in fitted.items() for doubt in fit.contradicted]
    doubts += of_kind("nodes", (*synchronisation.jump_doubts(placed), *synchronisation.fit_doubts(table)))
    doubts += [*of_kind("parts", rows), *learning.doubts, *of_kind("energy", resources.doubts(table))]
    quantities = resources.fit_quantities(table, learning.crossings, seed=seed)
    communicating = synchronisation.parallel(table)
    waits, wait_laws = synchronisation.synchronisation(communicating), synchronisation.fits(communicating, seed=seed)
    rates = table.set_index("run")["samples_per_s"]
    alternated = runs.assign(samples_per_s=runs["run"].map(rates)) if turns else runs
    batched = synchronisation.batch_sizes(alternated, seed=seed)
    recorded = () if accounting is None else accounting.runs
    attributed = attribution.arm_rows(table, {run.run: run.taken for run in recorded if run.taken is not None})
    profiles = steps.profile_rows((run.run, run.profile) for run in recorded)
    doubts += of_kind("nodes", synchronisation.doubts(waits, wait_laws))
    studies = [study for study in _distinct(runs["study"]) if study != "train"]
    usual = [f"horovod-study run experiments/{study}.yaml" for study in studies] or ["python -m horovod_study.train"]
    usual.append("horovod-study report runs --out analysis")
    made: dict[str, Any] = {"points": points, "breakdown": parts, "curves": _curves(fitted)}
    made |= {"convergence": learning.curves, "learning": learning.learning, "targets": learning.targets}
    made |= {"nodes": synchronisation.by_nodes(placed), "boundary": synchronisation.boundaries(placed)}
    made |= {"forecast": forecasts.table, "holdout": forecasts.document, "crossings": learning.crossings}
    made |= {"resources": resources.resources(table), "quantity_curves": resources.quantity_curves(quantities)}
    made |= {"quantities": {"fits": [resources.document(each) for each in quantities]}, "synchronisation": waits}
    made |= {"sync_curves": synchronisation.curves(wait_laws, waits), "sync_fits": synchronisation.document(wait_laws)}
    made |= {"transports": synchronisation.transports(communicating, turns), "attribution": attributed}
    made |= {"batches": batched.cells, "knees": batched.knees, "batch_curves": batched.curves}
    made |= {"cycle": synchronisation.cycle_shares(runs), "usage": resources.usage(table)}
    skew_s = steps.mean_skew(table, accounts)
    made["losses"] = laps.losses(parts, points, attributed, baseline=baseline, skew_s=skew_s)
    made |= {"network": {"machines": [dict(each) for each in networks]}}
    made["runs"] = steps.runs_table(runs, points, accounts)
    if accounting is not None:
        made |= {"accounting": accounts, "run_profiles": profiles, "load": resources.load(table, profiles)}
    documents = {name: _document(name, fit, points, baseline, unit) for name, fit in fitted.items()}
    made["fits"] = {"baseline": baseline, "series": documents}
    told = {**_provenance(runs, table, baseline), "findings": _findings(table, points, parts, baseline)}
    told |= {"doubts": doubts, "doubt_kinds": _kinds(doubts), "commands": list(usual if commands is None else commands)}
    return Analysis(**made, provenance=told if unit == SAMPLES else {**told, "unit": unit})


def _provenance(runs: pd.DataFrame, table: pd.DataFrame, baseline: str) -> dict[str, Any]:
    """Return what was run, when (the first start and the last, ISO 8601), where, and how it was measured."""
    started = _distinct(runs["started"]) if "started" in runs.columns else []
    measured = table[scaling.measured(table)]
    told: dict[str, Any] = {
        "schema": SCHEMA,
        "studies": _distinct(runs["study"]),
        "partitions": _distinct(runs["partition"]),
    }
    states = {"total": len(runs), **runs["status"].value_counts().sort_index().to_dict()}
    told |= {"baseline": baseline, "runs": states, "started": started[:1] + started[-1:]}
    failed = scaling.failed_runs(table).to_dict("records")
    told["failed"] = [{f"{key}": _plain_value(value) for key, value in row.items()} for row in failed]
    told |= {"environment": _environments(runs), "measurement": []}
    for series, group in measured.groupby("series", sort=False):  # its timed window, and what was left out before it
        first, cells = group.iloc[0], group.groupby(["workers", "nodes"], dropna=False).size()
        row = {"series": series, **{name: first[name] for name in ("work", "precision", "reduction")}}
        row |= {"stock_settings": bool(first["horovod_defaults"]), "train_samples": _range(group["train_samples"])}
        lengths = [name for name in ("window_s", "steps", "excluded_steps") if name in group.columns]
        row |= {"repeats": _range(cells), **{name: _range(group[name]) for name in lengths}}
        told["measurement"].append(row)
    told["learning"] = {  # what all finished runs share; what they differ in is in the series
        choice: _plain_value(measured[choice].iloc[0])
        for choice in scaling.CHOICES
        if measured[choice].nunique(dropna=False) == 1 and f"{measured[choice].iloc[0]}" != scaling.UNKNOWN
    }
    return told


def _document(name: str, fit: SeriesFit, points: pd.DataFrame, baseline: str, unit: str) -> dict[str, Any]:
    """Return the JSON of one fitted series, with its baseline and scaling mode in words."""
    row = points[points["series"] == name].iloc[0]
    base = scaling.baseline_words(
        points[points["series"] == name], baseline, plain="one plain worker, no communication library"
    )
    rate = (
        f", {fit.base_samples_per_s:{'.0f' if fit.base_samples_per_s >= 10 else '.3g'}} {unit} (median)"
        if row[f"base_{baseline}_repeats"]
        else ""
    )
    words = {"baseline": f"{baseline}: {base}, {row['setting']}{rate}", "mode": row["mode"], "work": row["work"]}
    return {**finite(fit), **words}


def _curves(fits: Mapping[str, SeriesFit]) -> pd.DataFrame:
    """Return every law fitted to what can be, on a grid of worker counts, with its 95 % band, as figures draw it."""
    frames = []
    for name, series in fits.items():
        for law, fit in series.fits.items() if series.possible else ():
            grid = fit.grid(fit.workers_[-1], whole=fit.staircase)
            speedup, (low, high) = fit(grid), fit.interval(grid)
            values = {"workers": grid, "speedup": speedup, "low": low, "high": high}
            values |= {"efficiency": speedup / grid, "efficiency_low": low / grid, "efficiency_high": high / grid}
            names = {"series": name, "law": law, "selected": law == series.selected}
            beyond = [fit.extrapolates(n) for n in grid]
            frames.append(pd.DataFrame({**names, **values, "extrapolated": beyond}))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(CURVE_COLUMNS))


def _findings(table: pd.DataFrame, points: pd.DataFrame, parts: pd.DataFrame, baseline: str) -> list[dict[str, Any]]:
    """Return what the report says first, one entry per partition and setting: numbers, no words.

    Each entry takes the largest worker count that any series finished: the series there from fastest to slowest,
    the ratios of the fastest to the others with intervals, and what a step of the fastest is made of.
    """
    table = table[scaling.measured(table)]
    found = []
    several = (points["backend"] != "serial") | (points["workers"] > 1)
    parallel = points[several & ~points["missing"] & (points["mode"] != "mixed")]
    for (partition, setting), rows in parallel.groupby(["partition", "setting"], sort=False):
        top = rows[rows["workers"] == rows["workers"].max()]
        top = top.sort_values(["samples_per_s_median", "series"], ascending=[False, True], kind="stable")
        top = top.drop_duplicates("series")
        best = top.iloc[0]
        entry: dict[str, Any] = {"partition": partition, "setting": setting, "workers": int(best["workers"])}
        entry |= {"nodes": _number(best["nodes"]), "mode": best["mode"], "work": best["work"], "baseline": baseline}
        entry["base"] = scaling.baseline_words(rows, baseline)
        entry |= {"base_samples_per_s": _number(best[f"base_{baseline}_samples_per_s"]), "series": []}
        for _, row in top.iterrows():
            told = {"series": row["series"], **{name: int(row[name]) for name in ("workers", "repeats")}}
            told |= {"samples_per_s": _number(row["samples_per_s_median"]), **_against(row, baseline)}
            entry["series"].append({**told, "efficiency": _number(row[f"efficiency_{baseline}"])})
        # The throughput of the fastest over that of the others; resolved is None without an interval.
        rates = [_of_cell(table, row)["samples_per_s"].to_numpy(np.float64) for _, row in top.iterrows()]
        entry["comparisons"] = []
        for name, slow in zip(top["series"][1:], rates[1:], strict=True):
            ratio = stats.median_ratio(rates[0], slow)
            ends = {"ratio": np.median(rates[0]) / np.median(slow), "low": ratio.low, "high": ratio.high}
            told = {"faster": best["series"], "slower": name, **{end: _number(each) for end, each in ends.items()}}
            entry["comparisons"].append({**told, "resolved": ratio.excludes(1) if ratio.known else None})
        alone = rows[(rows["workers"] == 1) & rows["speedup_plain"].notna()]
        entry["overheads"] = [{"series": row["series"], **_against(row, "plain")} for _, row in alone.iterrows()]
        entry |= {"step": _step(parts, best, baseline), "apart": str(best["apart"]), "withheld": withheld(best)}
        of = {
            "share": "outside_share_median",
            "samples_per_s": "whole_samples_per_s_median",
            "speedup": "speedup_whole",
        }
        outside = {name: _number(best[column]) for name, column in of.items()}
        found.append({**entry, "culprits": briefly(best), "outside": outside})
    return found


def _against(row: Any, baseline: str) -> dict[str, Any]:
    ends = {"speedup": "", "low": "_low", "high": "_high"}
    return {name: _number(row[f"speedup_{baseline}{end}"]) for name, end in ends.items()}


def _of_cell(table: pd.DataFrame, row: Any) -> pd.DataFrame:
    same: pd.DataFrame = table[["series", "workers", "nodes"]] == row[["series", "workers", "nodes"]]
    return table[same.all(axis=1)]


def _step(parts: pd.DataFrame, best: Any, baseline: str) -> dict[str, Any] | None:
    """Return what the step of one point is made of and which laps its growth over one worker consists of."""
    rows = _of_cell(parts, best)
    if rows.empty:
        return None
    by_lap: Any = rows.set_index("lap")
    whole = by_lap.loc["step"]
    known = [lap for lap in laps.PARTS[:-1] if lap in by_lap.index]
    # Of a captured step, what the base has inside compute has no growth of its own.
    captured = "compute" in known and not math.isnan(by_lap.at["compute", "mean_s"])
    grown = [lap for lap in known if not (captured and math.isnan(by_lap.at[lap, f"minus_{baseline}_s"]))]
    told = {"series": best["series"], "workers": int(best["workers"]), "step_s": _number(whole["mean_s"])}
    told |= {"grown_s": _number(whole[f"minus_{baseline}_s"])}
    told |= {"share": {lap: _number(by_lap.at[lap, "share"]) for lap in known}}
    told |= {"growth": {lap: _number(by_lap.at[lap, f"growth_{baseline}"]) for lap in grown}}
    return {**told, "note": by_lap.at["sync", "note"]}


def _distinct(column: pd.Series) -> list[str]:
    return sorted({f"{value}" for value in column.dropna()})


def _environments(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the distinct environments of the runs with how many runs each had, the most frequent first."""
    columns = [name for name in ("partition", "host", *scaling.ENVIRONMENT) if name in runs.columns]
    seen: dict[tuple[Any, ...], int] = {}
    for row in runs[columns].to_dict("records"):
        key = tuple(None if pd.isna(value) else _plain_value(value) for value in row.values())
        seen[key] = seen.get(key, 0) + 1
    # A run without Horovod does not know its version: that is no other environment.
    merged: dict[tuple[Any, ...], int] = {}
    for key in sorted(seen, key=lambda key: (sum(value is None for value in key), [f"{value}" for value in key])):
        home = next((full for full in merged if all(a in (None, b) for a, b in zip(key, full, strict=True))), key)
        merged[home] = merged.get(home, 0) + seen[key]
    ordered = sorted(merged.items(), key=lambda item: (-item[1], [f"{value}" for value in item[0]]))
    return [{"runs": count, **dict(zip(columns, key, strict=True))} for key, count in ordered]


def _range(values: pd.Series) -> list[float | int | None]:
    numbers = values.astype(float).dropna()
    return [_number(numbers.min()), _number(numbers.max())] if len(numbers) else [None, None]


def _plain_value(value: Any) -> Any:
    """Return a value that JSON can hold: whole floats as integers, NaN as None."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    return _number(value) if isinstance(value, int | float | np.number) else f"{value}"


def _number(value: Any) -> float | int | None:
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(number) if number == int(number) and abs(number) < 1e15 else number
