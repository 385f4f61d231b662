"""One run in detail: what it was, whether its laps add up, who was late, and what paused."""

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from horovod_study.analysis.steps.attribution import answer_of
from horovod_study.analysis.steps.pauses import find_pauses
from horovod_study.analysis.steps.rank_steps import PARTS, RankSteps, align
from horovod_study.analysis.steps.stragglers import MIN_STEPS, Stragglers, find_stragglers, waiting
from horovod_study.errors import AnalysisError
from horovod_study.records import RecordedRun, RunSideFiles, facts, hosts_of, timed_from

_FACTS = ("backend", "transport", "reduction", "batch", "device", "precision", "launcher")


class Inspection(SimpleNamespace):
    """What one run says of itself; its attributes are the keys of inspect.json. Times in s, None: not known.

    window: first_step, by, excluded (steps recorded before it) and steps (compared). ranks: of each its rank, host,
    steps, means laps_s, step_s, own_s and wait_s (for the last rank), and gap, the greatest distance of the sum of laps
    from the step as a share of it. system: rows of `analysis.system.summary`, or why_not. recorded_beside: kind ->
    paths. stragglers, pop, pauses and ablation are values of their modules.
    """


def inspect(run: RecordedRun, beside: RunSideFiles | None = None) -> Inspection:
    """Look at everything that one run recorded, finished or not.

    Raises AnalysisError for a run without rows.
    """
    if all(np.isnan(np.asarray(rows["step_s"], dtype=np.float64)).all() for rows in run.rows.values()):
        why = "; ".join(f"rank {rank} {text}" for rank, text in list(run.missing.items())[:3])
        none = f"holds no step rows{f' ({why})' if why else ''}; name a run that made steps"
        untimed = "its steps were not timed (--timer-mode off); record it again with --timer-mode light"
        raise AnalysisError(f"{run.directory}: {untimed if run.rows else none}")
    record, doubts = run.record, []
    hosts = list(hosts_of(record, range(run.workers)).values())
    lay = partial(align, run.rows, workers=run.workers, hosts=hosts, missing=run.missing, name=str(run.directory))
    everything = lay()
    first, by = timed_from(record)

    def longest() -> int:
        return max(int((np.asarray(rows["step"]) >= first).sum()) for rows in run.rows.values())

    if longest() < (MIN_STEPS if len(run.rows) > 1 else 1):
        doubts.append(f"{longest():,} steps were recorded from step {first:,} on, so that the warm-up is looked at too")
        first, by = int(everything.step[0]), "the first that was recorded"
    rows = lay(from_step=first, fewest=min(MIN_STEPS, longest()))
    if run.state != "done":
        so_far = "these are its rows so far" if run.state == "running" else "its rows end early"
        doubts.insert(0, f"the run is {run.state}{f' ({record.reason})' if record.reason else ''}: {so_far}")
    doubts += rows.notes
    late, lost = find_stragglers(rows), record.totals.get("rows_lost")
    counts = [int(each or 0) for each in (lost if isinstance(lost, list) else [lost])]
    if any(counts):
        doubts.append(f"{sum(counts):,} rows were lost to a full disk")
    if doubt := (record.totals.get("steady") or {}).get("doubt"):
        doubts.append(str(doubt))
    beside = beside or RunSideFiles(why_no_system="not looked at")
    system, system_doubts = _system(run, beside)
    doubts += system_doubts
    ablation, why_no_ablation = answer_of(run)
    timer = record.effective.get("timer_mode")
    files = {"timeline": [beside.timeline] if beside.timeline else [], "profile": beside.profiles}
    return Inspection(
        name=run.name,
        directory=str(run.directory),
        state=run.state,
        reason=record.reason,
        facts={
            **facts(record, "study", "started", "finished"),
            "workers": run.workers,
            "hosts": list(dict.fromkeys(hosts)),
            **{name: record.effective.get(name, record.requested.get(name)) for name in _FACTS},
            "timer_mode": timer.get("value") if isinstance(timer, Mapping) else record.requested.get("timer_mode"),
            **{name: record.totals.get(name) for name in ("samples_per_s", "window_s")},
        },
        window={
            "first_step": first, "by": by, "excluded": int((everything.step < first).sum()), "steps": len(rows.step)
        },
        rows_lost=None if lost is None else counts,
        ablation=ablation,
        why_no_ablation=why_no_ablation,
        system=system,
        recorded_beside={kind: [str(path) for path in paths] for kind, paths in files.items() if paths},
        doubts=doubts,
        ranks=_ranks(rows, late),
        stragglers=late,
        pop=waiting(rows)[0] if rows.workers > 1 else None,
        pauses=find_pauses(rows),
    )  # fmt: skip


def _system(run: RecordedRun, beside: RunSideFiles) -> tuple[dict[str, Any], list[str]]:
    if not beside.system:
        return {"rows": [], "why_not": beside.why_no_system}, [beside.why_no_system] if beside.damaged_system else []
    import pandas as pd

    from horovod_study.analysis.machine import system

    found: list[Any] = []
    told: list[str] = []
    steps = pd.DataFrame(dict(run.rows[min(run.rows)]))
    for host, samples in beside.system.items():
        first_s, last_s = (float(each) for each in samples.rows["at_s"].agg(["min", "max"]))
        table = system.phases(steps, beside.evaluations, first_timed=run.first_step, first_s=first_s, last_s=last_s)
        found += system.summary({host: samples}, table).to_dict("records")
        told += system.doubts({host: samples}, table, run.record.totals)
    told += system.told_doubts(run.record.totals)
    return {"rows": found, "why_not": ""}, [text.rstrip(".") for text in told]


def _ranks(rows: RankSteps, late: Stragglers) -> list[SimpleNamespace]:
    # Without the synchronisation `own` is a part only, and no column of a table.
    own = {} if rows.sync_s is None else {each.rank: each for each in late.ranks}
    means = {
        lap: rows.laps[lap].mean(axis=0).tolist() if lap in rows.laps else [None] * len(rows.ranks) for lap in PARTS
    }
    gaps = [None] * len(rows.ranks)
    if "residual" in rows.laps and (rows.step_s > 0).all():
        gaps = np.abs(np.sum(list(rows.laps.values()), axis=0) / rows.step_s - 1).max(axis=0).tolist()
    found = []
    for place, rank in enumerate(rows.ranks):
        told = {"rank": rank, "host": rows.hosts[place], "steps": len(rows.step), "gap": gaps[place]}
        told["laps_s"] = {lap: values[place] for lap, values in means.items()}
        told["step_s"] = float(rows.step_s[:, place].mean())
        told |= {name: getattr(own.get(rank), name, None) for name in ("own_s", "wait_s")}
        found.append(SimpleNamespace(**told))
    return found
