"""The section of all runs, and of each a page of its own that the page's script makes when it is asked for.

What a page needs is carried as JSON: columns of numbers, four digits each, so that a thousand runs take little. The
script (static/runs.js) knows no quantity by name: titles, units and meanings are here.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis.study import Analysis
from horovod_study.report.kit.interactive import css_name, script_json
from horovod_study.report.kit.style import LAPS, LapStyle, series_labels
from horovod_study.text.numbers import rounded

DIGITS = 4
"""Significant digits of a number on these pages; the tables (runs.csv, run_profiles.csv) have all of them."""

MAX_PARTS = 15_000
"""Parts of all runs together that the page carries; of more, every second, third, ... is left out, and it says so."""

NAME = "\x01"

MAX_RANKS = 16
"""Ranks of a run that its page lists; accounting.csv has all of them."""


@dataclass(frozen=True, slots=True)
class Field:
    """A number of a run: its column in the analysis, what multiplies it, and what readers are told."""

    column: str
    title: str
    unit: str
    meaning: str
    scale: float = 1.0


GROUPS: Mapping[str, tuple[Field, ...]] = {
    "Speed": (
        Field(
            "samples_per_s",
            "Throughput",
            "samples/s",
            "samples of all workers in the timed window over the seconds of the slowest one",
        ),
        Field(
            "speedup_plain",
            "Speedup over plain",
            "\u00d7",
            "over the median of one worker without a communication library",
        ),
        Field("efficiency_plain", "Efficiency", "%", "that speedup over the number of workers", 100),
        Field(
            "speedup_wrapped", "Speedup over wrapped", "\u00d7", "over the median of one worker inside the same library"
        ),
    ),
    "Step": (
        Field(
            "step_s",
            "Mean step",
            "ms",
            "over the steps of the window and the ranks; the parts of the step add up to it",
            1e3,
        ),
        Field("step_s_median", "Median step", "ms", "over steps, of the rank with the largest", 1e3),
        Field(
            "step_s_p90", "90 % of steps within", "ms", "90 % quantile over steps, of the rank with the largest", 1e3
        ),
        Field("sync_s_median", "Median wait for gradients", "ms", "over steps, mean of the ranks", 1e3),
        Field("residual_share_mean", "Unexplained", "%", "of the step, that no part of it covers", 100),
    ),
    "Waiting of the ranks for each other": (
        Field("skew_s", "Skew", "ms", "how long a rank waits for the last one, mean over steps and ranks", 1e3),
        Field("load_balance", "Load balance", "%", "mean over largest useful time of the ranks", 100),
        Field(
            "communication_efficiency",
            "Communication efficiency",
            "%",
            "largest useful time of a rank over the time of the window",
            100,
        ),
        Field(
            "parallel_efficiency", "Parallel efficiency (POP)", "%", "load balance times communication efficiency", 100
        ),
    ),
    "Timed window": (
        Field("window_s", "Length", "s", "of the slowest rank"),
        Field("steps", "Steps", "", "in the window, each rank"),
        Field("excluded_steps", "Left out before it", "steps", "warm-up"),
        Field("rows_lost", "Rows lost", "", "steps of all ranks that found no room on the disk"),
        Field("test_mse", "Test MSE", "", "at the end of the run"),
    ),
    "Memory and energy": (
        Field("rss_mb_max", "Resident memory", "MB", "the most of any rank"),
        Field("pss_mb_max", "Proportional memory", "MB", "the most of any rank, shared pages counted in parts"),
        Field("energy_j", "Energy", "J", "of the timed window"),
        Field("energy_per_sample_j", "Energy per sample", "mJ", "of the timed window", 1e3),
    ),
    "Load of the machine": (
        Field("cpu_percent_per_rank", "Processor", "% of a core", "of a rank, mean over window and ranks"),
        Field("rss_mb_per_rank", "Memory of a rank", "MB", "the most, mean over ranks"),
        Field("gpu_percent", "GPU use", "%", "time with any kernel, mean over window and GPUs"),
        Field("gpu_memory_mb", "GPU memory", "MB", "the most, mean over GPUs"),
        Field("gpu_power_w", "GPU power", "W", "all GPUs together, mean over the window"),
        Field("package_power_w", "Processor power", "W", "all processors together, mean over the window"),
    ),
}
"""What the page of a run says, group by group."""


@dataclass(frozen=True, slots=True)
class CoursePlot:
    """A small plot over the time of the window: columns of run_profiles, the second one the upper edge of a band."""

    columns: tuple[str, ...]
    title: str
    unit: str
    scale: float = 1.0
    color: str = "--ink"


LINES = (
    CoursePlot(("step_s_median", "step_s_p90"), "Step: median, and to 90 % of the steps", "ms", 1e3),
    CoursePlot(("sync_s_median",), "Waiting for gradients: median", "ms", scale=1e3, color="--accent"),
    CoursePlot(("cpu_percent_per_rank",), "Processor, per rank", "% of a core"),
    CoursePlot(("rss_mb_per_rank",), "Memory, per rank", "MB"),
    CoursePlot(("gpu_percent",), "GPU use", "%"),
    CoursePlot(("gpu_memory_mb",), "GPU memory", "MB"),
    CoursePlot(("gpu_power_w",), "Power of all GPUs", "W"),
    CoursePlot(("package_power_w",), "Power of the processors", "W"),
)


def section(analysis: Analysis) -> dict[str, Any] | None:
    """Return what run_pages.html.j2 shows: `count`, plain `rows`, and the `data` of the script; None without runs."""
    runs = analysis.runs
    if runs.empty:
        return None
    labels = series_labels(analysis.points)
    label = pd.Series([labels.get(series, f"{series}") for series in runs["series"]], index=runs.index, name="label")
    runs = pd.concat([runs, label], axis=1)  # not assigned: a table read from a file has too many columns for that
    names = [f"{name}" for name in runs["run"]]
    laps = _laps(runs)
    return {
        "count": len(runs),
        "unit": analysis.rate_unit,
        "rows": _plain_rows(runs),
        "data": script_json(
            {
                **_texts(runs, names),
                "groups": [
                    [title, [[each.column, each.title, each.unit, each.meaning] for each in fields]]
                    for title, fields in GROUPS.items()
                ],
                "values": {
                    each.column: numbers(runs[each.column], each.scale)
                    for fields in GROUPS.values()
                    for each in fields
                    if runs[each.column].notna().any()
                },
                "laps": [
                    [look.label, f"var({css_name(look.color)}, {look.color})", numbers(runs[f"{lap}_s"], 1e3)]
                    for lap, look in laps.items()
                ],
                "doubts": _doubts(runs, names, analysis.provenance["doubts"]),
                "ranks": _ranks(analysis.accounting, names, tuple(laps)),
                "lines": [[list(each.columns), each.title, each.unit, each.color] for each in LINES],
                "profiles": _profiles(analysis.run_profiles, names),
            }
        ),
    }


def _laps(runs: pd.DataFrame) -> dict[str, LapStyle]:
    """Return the laps to show: compute only where some run knows it, and then the others that some run knows."""
    known = {lap for lap in LAPS if f"{lap}_s" in runs.columns and runs[f"{lap}_s"].notna().any()}
    return {lap: look for lap, look in LAPS.items() if (lap in known if "compute" in known else lap != "compute")}


def numbers(values: Iterable[Any], scale: float = 1.0) -> list[float | int | None]:
    """Return numbers times `scale` with DIGITS digits, whole ones as integers; what is not known is None."""
    return [short(value * scale) for value in pd.to_numeric(pd.Series(list(values)), errors="coerce").tolist()]


def short(value: float) -> float | int | None:
    """Return a number with DIGITS digits, a whole one as an integer with all of them; None for what is not a number."""
    if not math.isfinite(value):
        return None
    if value == int(value) and abs(value) < 1e15:
        return int(value)
    kept = float(f"{value:.{DIGITS}g}")
    return int(kept) if kept == int(kept) and abs(kept) < 1e15 else kept


def _coded(values: Iterable[Any]) -> dict[str, Any]:
    """Return texts as the different ones among them, in the order they come, and the place of each."""
    texts = ["" if pd.isna(value) else f"{value}" for value in values]
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return {"of": list(places), "at": [places[text] for text in texts]}


def _without_name(command: Any, name: str) -> str:
    """Return a command with NAME for each mention of its run, which is said once; runs.js puts the name back."""
    text = "" if pd.isna(command) else f"{command}".replace(NAME, "")
    return text.replace(name, NAME) if name else text


def _texts(runs: pd.DataFrame, names: Sequence[str]) -> dict[str, Any]:
    coded = {
        "series": runs["label"],
        **{
            name: runs[name]
            for name in ("setting", "partition", "status", "reason", "hosts", "launcher", "started", "finished")
        },
        **{name: runs[name] for name in ("excluded_by", "why_not", "study", "energy_of")},
    }
    return {
        "names": list(names),
        "texts": {name: _coded(values) for name, values in coded.items()},
        "commands": [_without_name(value, name) for value, name in zip(runs["command"], names, strict=True)],
        **{name: numbers(runs[name]) for name in ("workers", "nodes", "repeat", "batch")},
    }


def _plain_rows(runs: pd.DataFrame) -> list[dict[str, str]]:
    """Return the compact table for pages without a script."""
    return [
        {
            "run": f"{row['run']}",
            "series": f"{row['label']}",
            "workers": "?" if pd.isna(row["workers"]) else f"{row['workers']:.0f}",
            "status": f"{row['status']}",
            "samples_per_s": rounded(row["samples_per_s"]) if pd.notna(row["samples_per_s"]) else "\u2013",
            "reason": "" if pd.isna(row["reason"]) else f"{row['reason']}",
        }
        for row in runs[["run", "label", "workers", "status", "samples_per_s", "reason"]].to_dict("records")
    ]


_WORDS = re.compile(r"[\s,;()]+")


def _doubts(runs: pd.DataFrame, names: Sequence[str], doubts: Sequence[str]) -> dict[str, Any]:
    """Return the doubts that name a run, with its places; its own columns of doubts count, too."""
    places = defaultdict(list)
    for place, name in enumerate(names):
        places[name].append(place)
    found: dict[str, dict[int, None]] = {}
    for doubt in doubts:
        # "RUN: text", where a name may hold blanks, or the name as a word of the text.
        head = doubt.partition(": ")[0]
        named = {head} | {word.strip(".:") for word in _WORDS.split(doubt)}
        for name in named & places.keys():
            found.setdefault(doubt, {}).update(dict.fromkeys(places[name]))
    for column, words in (("steady_doubt", "steady state: "), ("energy_doubt", "energy: ")):
        for place, text in enumerate(runs[column]):
            if pd.notna(text) and f"{text}":
                found.setdefault(f"{words}{text}", {})[place] = None
    return {"of": list(found), "at": [list(each) for each in found.values()]}


def _ranks(accounting: pd.DataFrame, names: Sequence[str], laps: Sequence[str]) -> dict[str, Any]:
    """Return rank, steps, step and `laps` in ms of the ranks of each run: {place of the run: [ranks, rows]}."""
    rows = accounting[accounting["rank"].notna()]
    first = {name: place for place, name in reversed(list(enumerate(names)))}
    found: dict[str, Any] = {}
    parts = ("rank", "steps", "step_s", *(f"{lap}_s" for lap in laps))
    columns = [numbers(rows[name], 1e3 if name.endswith("_s") else 1.0) for name in parts]
    for run, *values in zip(rows["run"], *columns, strict=True):
        if f"{run}" in first:
            told = found.setdefault(f"{first[f'{run}']}", [0, []])
            told[0] += 1
            if told[0] <= MAX_RANKS:
                told[1].append(values)
    return found


def _profiles(profiles: pd.DataFrame, names: Sequence[str]) -> dict[str, Any]:
    """Return the course of each run: {"every": n, "runs": {place: {column: [one per part], or the one value}}}."""
    every = max(1, math.ceil(len(profiles) / MAX_PARTS))
    first = {name: place for place, name in reversed(list(enumerate(names)))}
    scales = {column: line.scale for line in LINES for column in line.columns}
    columns = {name: numbers(profiles[name], scales.get(name, 1.0)) for name in ("begin_s", "first_step", *scales)}
    ends = numbers(profiles["end_s"])
    cuts = np.flatnonzero(np.append(True, profiles["run"].to_numpy()[1:] != profiles["run"].to_numpy()[:-1]))
    found = {}
    for begin, end in zip(cuts, (*cuts[1:], len(profiles)), strict=True) if len(profiles) else ():
        place = first.get(f"{profiles['run'].iloc[begin]}")
        if place is None:
            continue
        own: dict[str, Any] = {"end_s": ends[end - 1]}
        for name, values in columns.items():
            part = values[begin:end:every]
            # What does not change is said once.
            own[name] = part[0] if len(set(part)) == 1 else part
        found[f"{place}"] = {name: value for name, value in own.items() if value is not None}
    return {"every": every, "runs": found}
