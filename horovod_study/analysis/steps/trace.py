"""Recorded steps as events of the Chrome trace format, which Perfetto and chrome://tracing draw: one row per rank.

The format is described in "Trace Event Format" (Google): complete events "X", metadata "M", instants "i"; times are in
microseconds.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from horovod_study.config.run import LAPS


def events(
    rows: Mapping[int, pd.DataFrame],
    hosts: Mapping[int, str],
    *,
    evaluations: Sequence[Mapping[str, float]] = (),
    warmup_steps: int = 0,
) -> list[dict[str, Any]]:
    """Return the events of `rows`, {rank: step rows}, in the order of ranks and steps.

    A step is one event with its laps inside, placed one after the other from its begin: they tile it. Its residual is
    between the step before and its begin, where the row shows a gap. Laps that are not known are left out. A row per
    rank (thread) below a group per host (process). Evaluations, rows of epochs.csv, are instants on the row of rank 0.
    """
    places = list(dict.fromkeys(hosts[rank] for rank in sorted(rows)))
    found: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": place, "tid": 0, "args": {"name": host}}
        for place, host in enumerate(places)
    ]
    threads = {rank: {"pid": places.index(hosts[rank]), "tid": rank} for rank in sorted(rows)}
    for rank, row in threads.items():
        found.append({"ph": "M", "name": "thread_name", **row, "args": {"name": f"rank {rank}"}})
    for rank, row in threads.items():
        known = [lap for lap in LAPS if rows[rank][f"{lap}_s"].notna().any()]
        for step in rows[rank].to_dict("records"):
            whole: dict[str, Any] = {name: int(step[name]) for name in ("step", "epoch", "samples")}
            if math.isfinite(step["loss"]):
                whole["loss"] = float(step["loss"])
            if step["step"] < warmup_steps:
                whole["excluded"] = True
            at, number = float(step["begin_s"]), {"step": int(step["step"])}
            laps = {lap: float(step[f"{lap}_s"]) for lap in known}
            spans = [("step", "step", at, sum(laps.values()), whole)]
            for lap, seconds in laps.items():
                spans.append((lap, "lap", at, seconds, number))
                at += seconds
            for name, kind, begin_s, seconds, shown in spans:
                when = {"ts": round(begin_s * 1e6, 3), "dur": round(seconds * 1e6, 3)}
                found.append({"ph": "X", "name": name, "cat": kind, **when, **row, "args": shown})
    if 0 in rows and len(rows[0]):
        first, last = rows[0]["begin_s"].iloc[0], rows[0]["begin_s"].iloc[-1]
        for each in evaluations:
            if first <= each["wall_s"] <= last:
                shown = {name: each[name] for name in ("epoch", "train_mse", "test_mse")}
                instant = {"ph": "i", "name": "evaluation", "s": "t", "ts": round(each["wall_s"] * 1e6, 3)}
                found.append({**instant, **threads[0], "args": shown})
    return found
