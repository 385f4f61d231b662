"""Step rows of several ranks laid side by side, cut at the ends of synchronisations.

A collective lets all ranks go together, so their steps are equally long whoever is late. What differs is the time that
a rank needs from the end of one synchronisation to the moment its gradients are ready for the next:

    own[k] = update[k-1] + residual[k] + data[k] + forward[k] + backward[k]

with compute[k] in place of forward and backward where steps are captured in CUDA graphs. It is a difference of two
stamps of one clock: clocks of different hosts need not agree. A stretch is a series of steps without interruption; its
first step has no synchronisation before it (a barrier, an evaluation, a checkpoint were there), and so no `own`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod_study.analysis.stats import Floats
from horovod_study.config.run import LAPS
from horovod_study.errors import AnalysisError

PARTS = (*LAPS, "residual")
BEFORE_SYNC = ("update", "residual", "data", "compute", "forward", "backward")
"""The laps of `own`, in the order of time; update is that of the step before."""

CYCLE, _IDLE_CYCLE = "HOROVOD_CYCLE_TIME", "HOROVOD_IDLE_CYCLE_TIME"

NO_EXCHANGE = "no exchange between the ranks was seen in any step, so that none waits for another"
"""Of several ranks whose synchronisations are visible, and of which there is none."""

_HOLDS_GRADIENTS = ("compute", "backward")
"""The lap at whose end gradients are there, one of these; a synchronisation that is not seen is in it."""

MIN_STEPS = 20  # of `ready_steps`; fewer say nothing of a mean step

GAP_S = 1e-4
"""A step that begins later than this after the end of the one before begins a new stretch. Within a stretch the laps
tile, and the gap is a rounding error; between stretches there is at least a barrier of all ranks."""

GAP_STEPS = 10
"""The same in steps, for laps on a device's clock: the host, whose clock says when a step begins, runs ahead of it."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RankSteps:
    """S steps that all of R ranks recorded, times in s."""

    workers: int  # of the run; R of them are here
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]  # of `ranks`
    step: NDArray[np.int64]  # (S,)
    epoch: NDArray[np.int64]  # (S,)
    begin_s: Floats | None  # (S,), of the first rank here; None in rows of older programs
    step_s: Floats  # (S, R)
    laps: Mapping[str, Floats]  # lap -> (S, R), without laps that are not known
    follows: NDArray[np.bool_]  # (S,): whether the step before it, of the same stretch, is here too
    notes: tuple[str, ...] = ()  # what is not here, in words

    @property
    def sync_s(self) -> Floats | None:
        """Return the synchronisations, (S, R), or None where the backend cannot see them."""
        return self.laps.get("sync")

    def own_laps(self) -> dict[str, Floats]:
        """Return the known laps of `own` for the F steps that follow another, lap -> (F, R).

        Where synchronisation is hidden, backward or compute (or whatever comes nearest) holds the wait for the others
        and says nothing of a rank: it is left out.
        """
        here = np.flatnonzero(self.follows)
        hidden = self.workers > 1 and "sync" not in self.laps
        told = [lap for lap in BEFORE_SYNC if lap in self.laps and not (hidden and lap in _HOLDS_GRADIENTS)]
        if hidden and not self.laps.keys() & {*_HOLDS_GRADIENTS}:
            # Then nobody knows where the wait is; loading is before it.
            told = [lap for lap in told if lap == "data"]
        return {lap: self.laps[lap][here - 1 if lap == "update" else here] for lap in told}


def _nothing_unmarked(laps: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return columns of step rows, name -> values, with 0 for laps whose work is in another lap of every step.

    A CUDA graph that computes holds forward and backward, and it may hold data and update; in ordinary steps there is
    no compute, and data that are not marked are in what comes next. Of laps that are there but unknown nothing is made.
    """
    captured = np.isfinite(laps["compute_s"]).all()
    inside = ("data_s", "forward_s", "backward_s", "update_s") if captured else ("data_s", "compute_s")
    return {
        name: np.zeros_like(each) if name in inside and np.isnan(each).all() else each for name, each in laps.items()
    }


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _ReadySteps:
    """S steps of R ranks that follow another of their epoch, times in s; before others there was a barrier, or a wait
    for a turn, after which ranks do not begin together.
    """

    step: NDArray[np.int64]  # (S,)
    own_s: Floats  # (S, R), until the gradients are ready
    sync_s: Floats  # (S, R), NaN where the backend cannot see it
    backward_s: Floats  # (S, R)
    captured: bool  # a CUDA graph computes


def ready_steps(rows: Sequence[Mapping[str, Any]], *, source: str, after_waits: Collection[int] = ()) -> _ReadySteps:
    """Return what the columns of the same steps say, one mapping per rank; AnalysisError for fewer than 20 steps.

    `after_waits`: steps before which the run waited for its turn.
    """
    names = ("sync_s", *(f"{lap}_s" for lap in BEFORE_SYNC))
    laps = {name: np.stack([np.asarray(rank[name], dtype=np.float64) for rank in rows], axis=1) for name in names}
    captured = not np.isnan(laps["compute_s"]).all()
    laps = _nothing_unmarked(laps)
    step, epoch = np.asarray(rows[0]["step"]), np.asarray(rows[0]["epoch"])
    follows = np.flatnonzero((np.diff(step) == 1) & (np.diff(epoch) == 0)) + 1
    follows = follows[~np.isin(step[follows], [*after_waits])]
    if len(follows) < MIN_STEPS:
        waits = " without a wait for a turn" if after_waits else ""
        raise AnalysisError(
            f"{source}: has {len(follows)} timed steps that follow another of their epoch{waits}; at least {MIN_STEPS} "
            "are needed, run it for more steps"
        )
    own = laps["update_s"][follows - 1] + sum(laps[f"{lap}_s"][follows] for lap in BEFORE_SYNC[1:])
    return _ReadySteps(
        step=step[follows],
        own_s=own,
        sync_s=laps["sync_s"][follows],
        backward_s=laps["backward_s"][follows],
        captured=captured,
    )


def settings_of(effective: Mapping[str, Any]) -> dict[str, Any]:
    """Return the communication settings that a record says were in effect: variable or option -> value."""
    settings = (effective.get("settings") or {}).items()
    return {name: each.get("value") if isinstance(each, Mapping) else each for name, each in settings}


def cycle_s(settings: Mapping[str, Any]) -> float:
    """Return Horovod's cycle in s, of `settings_of`; 0 where there is none or where new gradients end it."""
    if CYCLE not in settings or float(settings.get(_IDLE_CYCLE) or 0) > 0:
        return 0.0
    return max(0.0, float(settings[CYCLE] or 0)) / 1e3


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CommonSteps:
    """The S steps that all of some ranks have, and where among its rows each rank has them."""

    step: NDArray[np.int64]  # (S,)
    epoch: NDArray[np.int64]  # (S,)
    places: Mapping[int, slice | NDArray[np.int64]]  # rank -> rows; a slice where they follow each other
    notes: tuple[str, ...] = ()  # what is not here, in words

    def column(self, columns: Mapping[str, Any], rank: int, name: str) -> Floats:
        """Return a column of the rows of `rank` at these steps, (S,)."""
        found: Floats = np.asarray(columns[name], dtype=np.float64)[self.places[rank]]
        return found


def common_steps(
    rows: Mapping[int, Mapping[str, Any]],
    *,
    workers: int,
    from_step: int = 0,
    fewest: int = 1,
    missing: Mapping[int, str] | None = None,
    name: str = "the run",
) -> CommonSteps:
    """Return the steps from `from_step` on that all ranks have rows of; what is left out, `align` says."""
    notes = []
    kept: dict[int, NDArray[np.int64] | slice] = {}
    steps: dict[int, NDArray[np.int64]] = {}
    common = epoch = None
    for rank in sorted(rows):
        columns = rows[rank]
        step = np.asarray(columns["step"])
        there = (step >= from_step) & np.isfinite(np.asarray(columns["step_s"], dtype=np.float64))
        if int(there.sum()) < max(1, fewest):
            continue
        kept[rank] = where(there)
        own = step[kept[rank]]
        if common is None:
            common, epoch = own, np.asarray(columns["epoch"])[kept[rank]]
        if np.array_equal(own, common):
            own = common  # once in memory, not once for each rank
        steps[rank] = own
    absent = [rank for rank in range(workers) if rank not in kept]
    explained = {rank: why for rank, why in (missing or {}).items() if rank in absent}
    few = [rank for rank in absent if rank not in explained]
    if few:
        what = f"fewer than {fewest:,} recorded steps" if fewest > 1 else "no recorded steps"
        notes.append(f"{_ranks(few)} {what} from step {from_step:,} on and {_are(few)} left out")
    for why in dict.fromkeys(explained.values()):
        whom = [rank for rank, each in explained.items() if each == why]
        verb, _, rest = why.partition(" ")
        notes.append(f"{_ranks(whom) if verb == 'has' else f'{_name(whom)} {verb}'} {rest} and {_are(whom)} left out")
    first = common
    for own in steps.values():
        common = own if common is None or own is common else np.intersect1d(common, own, assume_unique=True)
    if common is None or first is None or epoch is None or not len(common):
        none = f"no rank has {max(1, fewest):,} recorded steps from step {from_step:,} on; run it for more steps"
        apart = "its ranks have no step in common; the rows belong to different runs"
        raise AnalysisError(f"{name}: {apart if kept else none}")
    most = max(len(own) for own in steps.values())
    if most > len(common):
        short = [rank for rank, own in steps.items() if len(own) < most]
        notes.append(
            f"{_ranks(short)} up to {most - len(common):,} steps fewer than the others: only the {len(common):,} steps "
            "that all have are compared"
        )
    if common is not first:
        epoch = epoch[np.searchsorted(first, common)]
    for rank, own in steps.items():
        if own is not common:
            kept[rank] = np.arange(len(rows[rank]["step"]))[kept[rank]][np.searchsorted(own, common)]
    return CommonSteps(
        step=np.asarray(common, dtype=np.int64),
        epoch=np.asarray(epoch, dtype=np.int64),
        places=kept,
        notes=tuple(notes),
    )


def where(there: NDArray[np.bool_]) -> slice | NDArray[np.int64]:
    """Return the places that are true: as a slice, which copies nothing, where they follow each other."""
    first, count = int(np.argmax(there)), int(np.count_nonzero(there))
    if there[first : first + count].all():
        return slice(first, first + count)
    return np.flatnonzero(there)


def align(
    rows: Mapping[int, Mapping[str, Any]],
    *,
    workers: int,
    hosts: Sequence[str] = (),
    from_step: int = 0,
    fewest: int = 1,
    missing: Mapping[int, str] | None = None,
    name: str = "the run",
) -> RankSteps:
    """Lay rows of ranks (rank -> columns of records.step_schema, null is NaN) side by side, from step `from_step` on.

    Steps that were not timed are left out, so are ranks with fewer than `fewest` such rows, and steps that a remaining
    rank has no row of; `notes` say so. `missing` says why a rank is not in `rows` (rank -> "has ..."). Raises
    AnalysisError, which begins with `name`, when nothing is left.
    """
    shared = common_steps(rows, workers=workers, from_step=from_step, fewest=fewest, missing=missing, name=name)
    kept = shared.places
    tables = [
        {each: np.asarray(values)[places] for each, values in rows[rank].items()} for rank, places in kept.items()
    ]
    laps = {lap: values for lap in PARTS if (values := _known(tables, f"{lap}_s")) is not None}
    begins = _known(tables, "begin_s")
    step_s = np.stack([np.asarray(table["step_s"], dtype=np.float64) for table in tables], axis=1)
    two_clocks = any("sync_host_s" in table and np.isfinite(table["sync_host_s"]).any() for table in tables)
    named = tuple(hosts) if len(hosts) >= workers else ("",) * workers
    follows = same_epoch(shared)
    if begins is not None and "residual" in laps:
        allowed = GAP_STEPS * float(np.median(step_s)) if two_clocks else GAP_S
        follows[1:] &= (gaps_s(begins, laps["residual"], step_s) <= allowed).all(axis=1)
    return RankSteps(
        workers=workers,
        ranks=tuple(kept),
        hosts=tuple(named[rank] if rank < len(named) else "" for rank in kept),
        step=shared.step,
        epoch=shared.epoch,
        begin_s=None if begins is None else begins[:, 0],
        step_s=step_s,
        laps=laps,
        follows=follows,
        notes=shared.notes,
    )


def _known(tables: Sequence[Mapping[str, Any]], name: str) -> Floats | None:
    """Return a column of all ranks, (S, R); None where a rank does not have it, or not for every step."""
    if not all(name in table for table in tables):
        return None
    values = np.stack([np.asarray(table[name], dtype=np.float64) for table in tables], axis=1)
    return None if np.isnan(values).any() else values


def same_epoch(shared: CommonSteps) -> NDArray[np.bool_]:
    """Return for each step, (S,), whether the step before it is there, in the same epoch."""
    return np.concatenate([[False], (np.diff(shared.step) == 1) & (np.diff(shared.epoch) == 0)])


def gaps_s(begin: Floats, residual: Floats, step_s: Floats) -> Floats:
    """Return from (S, ...) the time between the end of each step and the beginning of the next, (S - 1, ...), at least.

    A row's residual is before its begin. What is residual behind it, as clipping in a script, looks like a gap before a
    step with less of it, and like a negative one before a step with more. A rank that has those has as much gap for
    certain as exceeds the residual of the step before.
    """
    gaps: Floats = np.diff(begin - residual, axis=0) - step_s[:-1]
    behind = (gaps < -GAP_S).any(axis=0)
    return np.where(behind, gaps - residual[:-1], gaps)


def _name(ranks: Sequence[int]) -> str:
    """Return `rank 1` or `ranks 1, 2`."""
    listed = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8:,} more" if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) > 1)} {listed}"


def _ranks(ranks: Sequence[int]) -> str:
    """Return `rank 1 has` or `ranks 1, 2 have`."""
    return f"{_name(ranks)} {'has' if len(ranks) == 1 else 'have'}"


def _are(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"
