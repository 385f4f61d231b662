"""What the sensors of a run's hosts say: the phases of the run, means and maxima, missed samples, doubts.

Tables in, tables out. Samples are those of `records.read_system`, times are seconds since the run's zero.
docs/metrics.md defines every quantity.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.records import SystemSamples
from horovod_study.text.words import plural

PHASES = ("start-up", "warm-up", "timed steps", "evaluation", "break", "end")
"""A break is a checkpoint, or whatever else kept the steps waiting; the end has the last evaluation in it."""

QUANTITIES = (
    *("cpu_percent", "rss_mb", "own_mb", "pss_mb", "voluntary_per_s", "involuntary_per_s", "read_mb_per_s"),
    *("written_mb_per_s", "available_mb", "load1", "received_mb_per_s", "sent_mb_per_s", "loopback_mb_per_s"),
    *("rdma_received_mb_per_s", "rdma_sent_mb_per_s", "gpu_percent", "gpu_memory_mb", "sm_mhz", "memory_mhz"),
    *("temperature_c", "power_w", "sampler_cpu_percent"),
)
"""The quantities of `quantities`, in the order of tables; docs/metrics.md says what they are."""

_RATES = {
    "voluntary_per_s": ("voluntary_switches", 1.0),
    "involuntary_per_s": ("involuntary_switches", 1.0),
    "read_mb_per_s": ("read_bytes", 1e6),
    "written_mb_per_s": ("written_bytes", 1e6),
    "received_mb_per_s": ("received_bytes", 1e6),
    "sent_mb_per_s": ("sent_bytes", 1e6),
    "loopback_mb_per_s": ("loopback_bytes", 1e6),
    "rdma_received_mb_per_s": ("rdma_received_bytes", 1e6),
    "rdma_sent_mb_per_s": ("rdma_sent_bytes", 1e6),
}

BREAK_S = 0.05  # a shorter pause between two steps is not drawn as a phase
_GAP_INTERVALS = 2.0
OTHERS_PERCENT = 25.0
_ENOUGH = 8  # with fewer samples in the timed steps, means are too uncertain for a doubt


def quantities(rows: pd.DataFrame, interval_s: float) -> pd.DataFrame:
    """Return at_s, attempt, part, interval_s and the columns of QUANTITIES: counts became rates, per second.

    interval_s: the usual one. What was counted over less than a quarter of it (the extra samples at the run's zero and
    at its end) is too coarse for a rate or a share of a core, and NaN.
    """
    found = rows[["at_s", "attempt", "part", "interval_s"]].copy()
    for name in QUANTITIES:
        column, unit = _RATES.get(name, (name, 0.0))
        over_s = rows["switches_over_s" if column.endswith("switches") else "interval_s"].astype("float64")
        values = rows[column].astype("float64")
        values = values / unit / over_s if unit else values
        instant = not unit and not name.endswith("cpu_percent")
        found[name] = values.where((over_s >= interval_s / 4) | instant)
    return found


def phases(
    steps: pd.DataFrame, evaluations: Sequence[Mapping[str, float]], *, first_timed: int, first_s: float, last_s: float
) -> pd.DataFrame:
    """Return the phases of a run: `phase` (one of PHASES), `begin_s`, `end_s`, in order, without overlap.

    `steps` are the step rows of one rank, `evaluations` the rows of epochs.csv, `first_timed` is the first step of the
    timed window, first_s and last_s are the times of the first and last sample. A pause between two steps is known
    where one clock times the steps (a CPU); on an accelerator only evaluations are. Empty where steps were not timed.
    """
    found: list[tuple[str, float, float]] = []
    rows = steps[steps["begin_s"].notna()]
    if rows.empty:  # with steps, but none with a time, nothing is known of the phases
        return _table([] if len(steps) else [("start-up", first_s, last_s)])
    residual = rows["residual_s"].fillna(0.0).to_numpy(dtype=float)
    begins = rows["begin_s"].to_numpy(dtype=float) - residual
    following = np.append(begins[1:], np.nan)
    lengths = rows["step_s"].to_numpy(dtype=float)
    one_clock = bool(rows["sync_host_s"].isna().all() and np.isfinite(lengths).all())
    ends = begins + lengths if one_clock else np.where(np.isfinite(following), following, begins)
    number = rows["step"].to_numpy()
    evaluated = {int(each["steps"]): float(each["wall_s"]) for each in evaluations}
    cuts = {0, len(rows), *np.flatnonzero(number == first_timed).tolist()}
    cuts |= set(np.flatnonzero(np.isin(number, list(evaluated))).tolist())
    if one_clock:
        cuts |= set((np.flatnonzero(following - ends > BREAK_S) + 1).tolist())
    places = sorted(cuts)
    found.append(("start-up", first_s, float(begins[0])))
    for first, after in pairwise(places):
        until, next_step = float(ends[after - 1]), int(number[after - 1]) + 1
        what, next_s = "end", last_s
        if after < len(rows):
            what, next_s = "evaluation" if next_step in evaluated else "break", float(begins[after])
        if next_step in evaluated:
            until = max(evaluated[next_step], float(begins[first]))
            until = until if what == "end" else min(until, next_s)
        found.append(("timed steps" if number[first] >= first_timed else "warm-up", float(begins[first]), until))
        found.append((what, until, next_s))
    return _table(found)


def _table(found: list[tuple[str, float, float]]) -> pd.DataFrame:
    kept: list[list[Any]] = []
    for phase, begin_s, end_s in found:
        if end_s <= begin_s or (phase == "break" and end_s - begin_s <= BREAK_S):
            continue
        if kept and kept[-1][0] == phase and begin_s - kept[-1][2] <= BREAK_S:
            kept[-1][2] = end_s  # the same phase, cut in two for no reason
        else:
            kept.append([phase, begin_s, end_s])
    table = pd.DataFrame(kept, columns=["phase", "begin_s", "end_s"])
    return table.astype({"begin_s": "float64", "end_s": "float64"})


def summary(samples: Mapping[str, SystemSamples], table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per host, part and quantity: `mean`, `median`, `max` over the timed steps, `samples` behind them.

    A sample stands for the time since the one before it and counts where the middle of that is in the timed steps;
    the mean weighs by that time. Without timed steps in `table` (see `phases`) all samples count. What a part does not
    have is left out.
    """
    found = []
    for host, each in samples.items():
        for part, kept in _timed_parts(each, table).items():
            device = each.meta["devices"].get(part, "")
            for name in QUANTITIES:
                values = kept[name].dropna()
                if values.empty:
                    continue
                weights = kept.loc[values.index, "interval_s"].fillna(0.0)
                mean = float((values * weights).sum() / weights.sum()) if weights.sum() > 0 else float(values.mean())
                typical = (mean, float(values.median()), float(values.max()), len(values))
                found.append((host, part, device, name, *typical))
    columns = ["host", "part", "device", "quantity", "mean", "median", "max", "samples"]
    return pd.DataFrame(found, columns=columns)


def other_cores(
    samples: Mapping[str, SystemSamples], table: pd.DataFrame, totals: Mapping[str, Any]
) -> dict[str, float]:
    """Return host -> cores that programs which are not of the run used during the timed steps, where that is known."""
    found = {host: _others_percent(each, _timed_parts(each, table), totals) for host, each in samples.items()}
    return {host: others / 100 for host, others in found.items() if others is not None}


def _timed_parts(samples: SystemSamples, table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the samples of each part during the timed steps; those of the host may be none."""
    rows, parts = quantities(samples.rows, float(samples.meta["interval_s"])), {}
    stretches = table[table["phase"] == "timed steps"]
    for part, frame in rows.groupby("part", sort=False):
        middle = frame["at_s"] - frame["interval_s"].fillna(frame["at_s"].diff()).fillna(0.0) / 2
        inside = pd.Series(stretches.empty, index=middle.index)
        for each in stretches.to_dict("records"):
            inside |= (middle >= each["begin_s"]) & (middle <= each["end_s"])
        parts[str(part)] = frame[inside]
    parts.setdefault("host", rows.iloc[:0])
    return parts


def _others_percent(
    samples: SystemSamples, parts: Mapping[str, pd.DataFrame], totals: Mapping[str, Any]
) -> float | None:
    """Return the use of processors by other programs, % of a core; None where too few samples or sensors tell.

    Of a run that trained in turns neither does: a sample spans the turns of other cells. Its slices tell.
    """
    ranks = [frame for part, frame in parts.items() if part.startswith("rank ")]
    if totals.get("turns"):
        return None
    if len(parts["host"]) < _ENOUGH or not ranks or any("rank" in name for name in samples.meta["missing"]):
        return None
    own = sum(float(frame["cpu_percent"].mean()) for frame in ranks)
    others = float(parts["host"]["cpu_percent"].mean()) - own - float(parts["host"]["sampler_cpu_percent"].mean())
    return others if math.isfinite(others) else None


def doubts(samples: Mapping[str, SystemSamples], table: pd.DataFrame, totals: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know of samples: other load, growing memory, a costly sampler, missed samples.

    `totals` are those of run.json; a run that has not ended has none.
    """
    found = []
    for host, each in samples.items():
        parts, interval_s = _timed_parts(each, table), float(each.meta["interval_s"])
        others, told = _others_percent(each, parts, totals), []
        if others is not None and others > OTHERS_PERCENT:
            used = f"programs that are not of this run used {others / 100:.1f} cores during the timed steps"
            told.append(f"{used}; do not compare its times with those of a quiet machine")
        for part, frame in parts.items():
            if not part.startswith("rank ") or len(frame) < _ENOUGH:
                continue
            quarters = [float(np.median(part)) for part in np.array_split(frame["own_mb"].to_numpy(float), 4)]
            before, after = quarters[0], quarters[-1]
            # Growth that goes on, and not one step of it: the first evaluation takes memory and keeps it.
            goes_on = min(np.diff(quarters)) > 0.1 * (after - before)  # in each quarter of the run
            if goes_on and after - before > max(20.0, 0.05 * before):
                grew = f"grew from {before:,.0f} to {after:,.0f} MB during the timed steps; a longer run may not fit"
                told.append(f"the own memory of {part} {grew}")
        host_rows = parts["host"]
        cost = float(host_rows["sampler_cpu_percent"].mean()) if len(host_rows) >= _ENOUGH else math.nan
        if cost > 1.0:
            told.append(f"the sampler itself used {cost:.1f} % of a core; use a longer --system-interval-s")
        gaps = each.rows.loc[each.rows["part"] == "host", ["at_s", "attempt"]].diff()
        gaps = gaps[(gaps["attempt"] == 0) & (gaps["at_s"] > _GAP_INTERVALS * interval_s)]
        if len(gaps):
            seconds = f"{gaps['at_s'].sum():.1f} s in all"
            told.append(f"{plural(len(gaps), 'gap')} of more than two intervals between samples, {seconds}")
        found += [f"{host}: {text}." for text in told]
    return found


def told_doubts(totals: Mapping[str, Any]) -> list[str]:
    """Return what a reader must know by the totals of run.json: samplers that have ended early, unsure energy."""
    hosts, energy = (totals.get("system") or {}).get("hosts") or {}, totals.get("energy") or {}
    ends = {host: told.get("ended") or told.get("reason") for host, told in hosts.items()}
    found = [f"{host}: system samples are not complete: {reason}." for host, reason in ends.items() if reason]
    return [*found, f"energy: {energy['doubt']}."] if energy.get("doubt") else found


DRAWN: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "CPU / % of a core": ("rank|other", ("cpu_percent",)),
    "Memory / MB": ("rank", ("rss_mb",)),
    "GPU use / %": ("gpu", ("gpu_percent",)),
    "GPU memory / MB": ("gpu", ("gpu_memory_mb",)),
    "Power / W": ("gpu|package", ("power_w",)),
    "Network / (MB/s)": ("host", tuple(name for name in _RATES if "received" in name or "sent" in name)),
    "Disk / (MB/s)": ("rank", ("read_mb_per_s", "written_mb_per_s")),
    "Context switches / (1/s)": ("rank", ("voluntary_per_s", "involuntary_per_s")),
    "GPU clock / MHz": ("gpu", ("sm_mhz",)),
}
"""Panels of the figure over time: parts, and quantities. Of one quantity each part has a line, of several their sum."""


def over_time(samples: SystemSamples) -> pd.DataFrame:
    """Return panel, line, at_s and value of what there is to draw of one host; what is zero all the time is left out.

    Readings of a moment have a NaN where samples were missed: nothing is known there. Counts are means over the gap.
    """
    interval_s = float(samples.meta["interval_s"])
    rows = quantities(samples.rows, interval_s)
    ranks, host = rows[rows["part"].str.startswith("rank")], rows[rows["part"] == "host"]
    own = host["at_s"].map(ranks.groupby("at_s")["cpu_percent"].sum(min_count=1))
    others = (host["cpu_percent"] - own - host["sampler_cpu_percent"]).clip(lower=0.0)
    rows = pd.concat([rows, host[["at_s"]].assign(part="other programs", cpu_percent=others)])
    found = []
    for panel, (parts, names) in DRAWN.items():
        here = rows[rows["part"].str.match(parts)]
        lines = {name.removesuffix("_mb_per_s").removesuffix("_per_s").replace("_", " "): name for name in names}
        each = here.groupby("part", sort=False) if len(names) == 1 else ((line, here) for line in lines)
        for line, frame in each:
            name = lines.get(f"{line}", names[0])
            values = frame.groupby("at_s")[name].sum(min_count=1).dropna().rename("value").reset_index()
            if name not in _RATES and not name.endswith("percent"):
                wide = values[values["at_s"].diff() > _GAP_INTERVALS * interval_s]
                missed_s = wide.assign(at_s=wide["at_s"] - interval_s, value=math.nan)
                values = pd.concat([values, missed_s]).sort_values("at_s", kind="stable")
            if values["value"].max() > 0:
                found.append(values.assign(panel=panel, line=line))
    columns = ["panel", "line", "at_s", "value"]
    return pd.concat(found, ignore_index=True)[columns] if found else pd.DataFrame(columns=columns)
