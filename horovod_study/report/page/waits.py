"""Waiting for gradients in words: what it takes, between transports, at the knee, by Horovod's cycle, at a new node."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from horovod_study.analysis.study import Analysis
from horovod_study.analysis.sync.boundary import DIRECT, INDIRECT
from horovod_study.analysis.sync.transports import NOT_RESOLVED, RESOLVED
from horovod_study.report.kit import style
from horovod_study.text.numbers import THIN, milliseconds, percent, rounded, with_interval, with_unit
from horovod_study.text.words import listed, plural

MAX_LINES = 3
"""Sentences of each kind; the tables have all of it."""
_ENDS = ("median", "low", "high")
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
_CYCLE_WORDS = {
    "as the cycle explains": "as polling explains",
    "no effect": "no effect",
    "otherwise": "not what polling would give",
    "not resolved": "not resolved",
}


def waiting(analysis: Analysis) -> list[str]:
    """Return at most MAX_LINES sentences of each kind: waiting, transports, knees, cycles."""
    return [
        *_sync_sentences(analysis),
        *_transport_sentences(analysis),
        *_knee_sentences(analysis),
        *_cycle_sentences(analysis),
    ]


def _sync_sentences(analysis: Analysis) -> list[str]:
    """Return one sentence for the largest worker count of each series, the largest share of the step first."""
    cells = analysis.synchronisation
    known = cells[cells["sync_s_median"].notna() & (cells["workers"] > 1)]
    labels, several = style.series_labels(analysis.synchronisation), bool(cells["setting"].nunique() > 1)
    largest = known.sort_values("workers", kind="stable").drop_duplicates("series", keep="last").sort_index()
    found = []
    for row in largest.sort_values("share_median", ascending=False, kind="stable").to_dict("records"):
        name = labels[row["series"]] + (f" ({row['setting']})" if several else "")
        text = (
            f"{name}, {plural(row['workers'], 'worker')}: in the median repeat waiting for gradients takes "
            f"{with_unit(*(1000 * row[f'sync_s_{end}'] for end in _ENDS), unit='ms')} of a step, "
            f"{percent(row['share_median'])}"
        )
        if math.isfinite(row["sync_per_epoch_s_median"]):
            epoch = with_unit(*(row[f"sync_per_epoch_s_{end}"] for end in _ENDS), unit="s")
            batches = f"{row['batches_per_epoch']:.0f} batch{'' if row['batches_per_epoch'] == 1 else 'es'}"
            text += f", and {epoch} of an epoch of {batches}"
        found.append(f"{text}.")
    return found[:MAX_LINES]


def _transport_sentences(analysis: Analysis) -> list[str]:
    """Return one sentence for each two runtimes: where they differ in throughput, and where not."""
    table = analysis.transports
    table = table[(table["quantity"] == "samples_per_s") & (table["workers"] > 1)]
    labels, several = style.series_labels(analysis.synchronisation), bool(table["setting"].nunique() > 1)
    found = []
    for (a, b), own in table.groupby(["a", "b"], sort=False):
        told = own[own["verdict"] == RESOLVED].to_dict("records")
        words = [f"{_change(row)} with {plural(row['workers'], 'worker')}" for row in told]
        open_ = own[own["verdict"] == NOT_RESOLVED]
        if len(open_):
            counts = listed([f"{each:.0f}" for each in sorted(set(open_["workers"]))])
            words.append(f"not resolved with {counts} worker{'' if counts == '1' else 's'}")
        if words:
            setting = f" ({own['setting'].iloc[0]})" if several else ""
            found.append(f"{labels[str(b)]} against {labels[str(a)]}{setting}: {'; '.join(words)}.")
    return found[:MAX_LINES]


def _change(row: Mapping[Any, Any]) -> str:
    """Return `3.0 % more samples/s [2.6, 3.4]`."""
    sign = 1 if row["ratio"] >= 1 else -1
    value, *ends = (100.0 * sign * (float(row[name]) - 1) for name in ("ratio", "ratio_low", "ratio_high"))
    text, _, interval = with_interval(value, min(ends), max(ends)).partition(" ")
    return f"{text}{THIN}% {'more' if sign > 0 else 'fewer'} samples/s {interval}"


def _knee_sentences(analysis: Analysis) -> list[str]:
    table = analysis.knees
    several = bool(table["setting"].nunique() > 1)
    labels = style.series_labels(table)
    found = []
    for row in table[table["identified"].astype(bool)].to_dict("records"):
        name = labels[row["series"]] + (f" ({row['setting']})" if several else "")
        most = with_interval(row["most_samples_per_s"] / 1e3, row["most_low"] / 1e3, row["most_high"] / 1e3)
        found.append(
            f"{name}, {plural(row['workers'], 'worker')}: the knee is at a batch of "
            f"{with_interval(row['knee'], row['knee_low'], row['knee_high'])} per worker; 90{THIN}% of the most that "
            f"ever larger batches give ({most} thousand {analysis.rate_unit}) need "
            f"{rounded(row['batch_for_90_percent'], 3)}."
        )
    return found[:MAX_LINES]


def _cycle_sentences(analysis: Analysis) -> list[str]:
    labels = style.series_labels(analysis.cycle)
    found = []
    for row in analysis.cycle.to_dict("records"):
        text = (
            f"{labels[row['series']]}, {plural(row['workers'], 'worker')}, cycles from "
            f"{milliseconds(row['shortest_cycle_s'])} to {milliseconds(row['longest_cycle_s'])}{THIN}ms: each ms of "
            f"Horovod's cycle adds {with_interval(row['slope'], row['slope_low'], row['slope_high'])}{THIN}ms of "
            f"waiting ({_CYCLE_WORDS[row['verdict']]})"
        )
        if math.isfinite(row["share_at_default"]):
            share = with_interval(*(100 * row[name] for name in ("share_at_default", "share_low", "share_high")))
            text += f"; at Horovod's default of {milliseconds(row['default_cycle_s'])}{THIN}ms that is {share}{THIN}%"
        found.append(f"{text}.")
    return found[:MAX_LINES]


def jumped(analysis: Analysis) -> list[str]:
    """Return what the first node boundary of each series adds to a step, one sentence per series."""
    labels = style.series_labels(analysis.nodes)
    several = analysis.boundary["setting"].nunique() > 1
    found = []
    for series, rows in analysis.boundary.groupby("series", sort=False):
        first = rows[rows["fewer_nodes"] == rows["fewer_nodes"].min()]
        direct = first[first["kind"] == DIRECT]
        chosen = (direct if len(direct) else first).to_dict("records")[-1]
        name = labels[str(series)] + (f", {chosen['setting']}" if several else "")
        found.append(_sentence(chosen, name))
    return found


def place(workers: float, nodes: float, per_node: str) -> str:
    """Return where workers sat, in words: `2 workers on 1 node`, `5 workers on 2 nodes (4 + 1)`."""
    text = f"{plural(workers, 'worker')} on {plural(nodes, 'node')}"
    parts = [part.partition("x") for part in per_node.split()]
    if nodes == 1 or not parts:
        return text
    if sum(int(times) for times, _, _ in parts) <= 4:
        shares = " + ".join(share for times, _, share in parts for _ in range(int(times)))
    else:
        shares = ", ".join(f"{share} on {times}" for times, _, share in parts)
    return f"{text} ({shares})"


def _sentence(row: Mapping[Any, Any], name: str) -> str:
    hidden = not math.isfinite(row["jump_s"])
    start = "step_" if hidden else ""
    what = "the whole step, in which synchronisation is hidden," if hidden else "waiting for gradients"
    jump, low, high = (1000 * row[f"{start}{each}_s"] for each in ("jump", "low", "high"))
    size = with_unit(abs(jump), *((-high, -low) if jump < 0 else (low, high)), unit="ms")
    counts = (row[f"{side}_nodes"] for side in ("fewer", "more"))
    fewer, more = (_WORDS[int(count)] if count < len(_WORDS) else f"{count:.0f}" for count in counts)
    resolved = row[f"{start}resolved"]
    open_end = "" if not pd.isna(resolved) else "; with fewer than three repeats on either side this may be chance"
    before, after = (milliseconds(row[f"{side}_{'step' if hidden else 'sync'}_s"]) for side in ("fewer", "more"))
    paths = [f" ({row[f'{side}_path']})" if row[f"{side}_path"] else "" for side in ("fewer", "more")]
    levels = f"from {before}{THIN}ms{paths[0]} to {after}{THIN}ms{paths[1]}"
    here, there = (
        place(row[f"{side}_workers"], row[f"{side}_nodes"], row[f"{side}_per_node"]) for side in ("fewer", "more")
    )
    if row["kind"] == INDIRECT and row["fewer_workers"] == 1:
        return (
            f"{name}: {there}{paths[1]} need {size} per step for {what} compared with one worker, which does not "
            f"wait; what the other node alone adds was not measured{open_end}."
        )
    if not pd.isna(resolved) and not resolved:
        value = with_unit(jump, low, high, unit="ms")
        both = f"with {plural(row['more_workers'], 'worker')}" if row["kind"] == DIRECT else f"{here} against {there}"
        return (
            f"{name}: {fewer} and {more} nodes are not measurably different ({both}): {value} per step, {levels}."
        ).replace("one and", "one node and")
    adds = "adds" if jump >= 0 else "takes"
    off = "" if jump >= 0 else "off "
    if row["kind"] == DIRECT:
        of = "" if hidden else " of waiting for gradients"
        return (
            f"Going from {fewer} node{'s' * (row['fewer_nodes'] > 1)} to {more} {adds} {size}{of} {off}"
            f"{'to ' if jump >= 0 else ''}each step over {name}: {levels}, with "
            f"{plural(row['more_workers'], 'worker')} both times{open_end}."
        )
    return (
        f"{name}: going from {here} to {there} {adds} {size} {'to' if jump >= 0 else 'off'} {what} of each step, "
        f"{levels}; part of it is due to the further workers{open_end}."
    )
