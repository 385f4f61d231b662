"""One run in detail: what it was, whether its laps add up, who was late, and what paused."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from horovod_study.analysis.steps.ablation import CommunicationCost, answer_of
from horovod_study.analysis.steps.pauses import Pauses, find_pauses
from horovod_study.analysis.steps.rank_steps import PARTS, RankSteps, align
from horovod_study.analysis.steps.stragglers import MIN_STEPS, Pop, Stragglers, find_stragglers, pop_of
from horovod_study.errors import AnalysisError
from horovod_study.records import RecordedRun, RunSideFiles, facts, hosts_of, timed_from


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLaps:
    """The mean step of one rank, in s; a lap that is not known is None."""

    rank: int
    host: str
    steps: int
    laps_s: Mapping[str, float | None]
    step_s: float
    gap: float | None  # greatest distance of the sum of laps from the step, as a share of it; None if laps are unknown
    own_s: float | None = None  # see rank_steps.py
    wait_s: float | None = None  # for the last rank


@dataclass(frozen=True, kw_only=True, slots=True)
class _SystemUse:
    """What the sensors of the hosts said over the timed steps; see analysis/machine/system.py."""

    rows: tuple[Mapping[str, Any], ...] = ()  # of `analysis.system.summary`
    why_not: str = ""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Inspection:
    """What one run says of itself."""

    DOCUMENT = (
        "name directory state reason facts window rows_lost ablation why_no_ablation system "
        "recorded_beside=files doubts ranks stragglers pop pauses"
    )

    name: str
    state: str  # see records.RunRecord.state
    reason: str
    facts: Mapping[str, Any]  # what ran: backend, transport, reduction, workers, hosts, batch, ...
    first_step: int  # of the timed window
    first_step_by: str
    excluded: int  # steps recorded before it
    steps: int  # compared, of the window
    ranks: tuple[RankLaps, ...]
    stragglers: Stragglers
    pop: Pop | None
    pauses: Pauses
    rows_lost: tuple[int, ...] | None  # of each rank, to a full disk
    ablation: CommunicationCost | None  # what communication costs by leaving it out
    why_no_ablation: str
    system: _SystemUse
    files: Mapping[str, tuple[str, ...]]  # kind -> paths of what else was recorded
    directory: str
    doubts: tuple[str, ...] = ()

    @property
    def window(self) -> dict[str, Any]:
        """The timed window."""
        return {"first_step": self.first_step, "by": self.first_step_by, **facts(self, "excluded", "steps")}


def inspect(run: RecordedRun, beside: RunSideFiles | None = None) -> Inspection:
    """Look at everything that one run recorded, finished or not.

    Raises AnalysisError for a run without rows.
    """
    # Long because it collects: one line for each thing that a run recorded, and what is doubtful about it.
    if all(np.isnan(np.asarray(rows["step_s"], dtype=np.float64)).all() for rows in run.rows.values()):
        why = "; ".join(f"rank {rank} {text}" for rank, text in list(run.missing.items())[:3])
        none = f"holds no step rows{f' ({why})' if why else ''}; name a run that made steps"
        untimed = "its steps were not timed (--timer-mode off); record it again with --timer-mode light"
        raise AnalysisError(f"{run.directory}: {untimed if run.rows else none}")
    record, doubts = run.record, []
    hosts = list(hosts_of(record, range(run.workers)).values())
    lay = partial(align, run.rows, workers=run.workers, hosts=hosts, missing=run.missing, name=str(run.directory))
    everything = lay()
    first, by = timed_from(run.record)
    longest = _longest(run, first)
    if longest < (MIN_STEPS if len(run.rows) > 1 else 1):
        few = f"only {longest:,} steps" if longest else "no step"
        were = "was" if longest <= 1 else "were"
        doubts.append(f"{few} from step {first:,} on {were} recorded, so that the warm-up is looked at too")
        first, by = int(everything.step[0]), "the first that was recorded"
        longest = _longest(run, first)
    rows = lay(from_step=first, fewest=min(MIN_STEPS, longest))
    if run.state != "done":
        so_far = "these are its rows so far" if run.state == "running" else "its rows end early"
        doubts.insert(0, f"the run is {run.state}{f' ({record.reason})' if record.reason else ''}: {so_far}")
    doubts += rows.notes
    late = find_stragglers(rows)
    lost = record.totals.get("rows_lost")
    if any(_counts(lost)):
        doubts.append(f"{sum(_counts(lost)):,} rows were lost to a full disk")
    if doubt := (record.totals.get("steady") or {}).get("doubt"):
        doubts.append(str(doubt))
    beside = beside or RunSideFiles(why_no_system="not looked at")
    system, system_doubts = _system(run, beside)
    doubts += system_doubts
    ablation, why_no_ablation = answer_of(run)
    files: dict[str, tuple[str, ...]] = {} if beside.timeline is None else {"timeline": (str(beside.timeline),)}
    files |= {"profile": tuple(map(str, beside.profiles))} if beside.profiles else {}
    return Inspection(
        name=run.name,
        state=run.state,
        reason=record.reason,
        facts=_facts(run, hosts),
        first_step=first,
        first_step_by=by,
        excluded=int((everything.step < first).sum()),
        steps=len(rows.step),
        ranks=tuple(_rank_laps(rows, late)),
        stragglers=late,
        pop=pop_of(rows) if rows.workers > 1 else None,
        pauses=find_pauses(rows),
        rows_lost=None if lost is None else tuple(_counts(lost)),
        ablation=ablation,
        why_no_ablation=why_no_ablation,
        system=system,
        files=files,
        directory=str(run.directory),
        doubts=tuple(doubts),
    )


def _system(run: RecordedRun, beside: RunSideFiles) -> tuple[_SystemUse, list[str]]:
    if not beside.system:
        doubts = [beside.why_no_system] if beside.damaged_system else []
        return _SystemUse(why_not=beside.why_no_system), doubts
    import pandas as pd

    from horovod_study.analysis.machine import system

    rows: list[Any] = []
    told: list[str] = []
    phases = partial(system.phases, pd.DataFrame(dict(run.rows[min(run.rows)])), beside.evaluations)
    for host, samples in beside.system.items():
        at_s = samples.rows["at_s"]
        table = phases(first_timed=run.first_step, first_s=float(at_s.min()), last_s=float(at_s.max()))
        rows += system.summary({host: samples}, table).to_dict("records")
        told += system.doubts({host: samples}, table, run.record.totals)
    told += system.told_doubts(run.record.totals)
    return _SystemUse(rows=tuple(rows)), [text.rstrip(".") for text in told]


def _longest(run: RecordedRun, first: int) -> int:
    return max(int((np.asarray(rows["step"]) >= first).sum()) for rows in run.rows.values())


def _counts(lost: Any) -> list[int]:
    """Return how many rows each rank lost; nothing where the record does not say."""
    return [int(each or 0) for each in (lost if isinstance(lost, list) else [lost])]


def _facts(run: RecordedRun, hosts: list[str]) -> dict[str, Any]:
    effective, requested = run.record.effective, run.record.requested
    timer = effective.get("timer_mode")
    names = ("backend", "transport", "reduction", "batch", "device", "precision", "launcher")
    return {
        "study": run.record.study,
        "started": run.record.started,
        "finished": run.record.finished,
        "workers": run.workers,
        "hosts": list(dict.fromkeys(hosts)),
        **{name: effective.get(name, requested.get(name)) for name in names},
        "timer_mode": timer.get("value") if isinstance(timer, Mapping) else requested.get("timer_mode"),
        "samples_per_s": run.record.totals.get("samples_per_s"),
        "window_s": run.record.totals.get("window_s"),
    }


def _rank_laps(rows: RankSteps, late: Stragglers) -> list[RankLaps]:
    # Without the synchronisation `own` is a part only, and no column of a table.
    own = {} if rows.sync_s is None else {each.rank: each for each in late.ranks}
    whole = np.sum(list(rows.laps.values()), axis=0) if rows.laps else None
    found = []
    for place, rank in enumerate(rows.ranks):
        step = rows.step_s[:, place]
        gap = None
        if whole is not None and "residual" in rows.laps and (step > 0).all():
            gap = float(np.abs(whole[:, place] / step - 1).max())
        found.append(
            RankLaps(
                rank=rank,
                host=rows.hosts[place],
                steps=len(step),
                laps_s={lap: float(rows.laps[lap][:, place].mean()) if lap in rows.laps else None for lap in PARTS},
                step_s=float(step.mean()),
                gap=gap,
                own_s=own[rank].own_s if rank in own else None,
                wait_s=own[rank].wait_s if rank in own else None,
            )
        )
    return found
