"""Step rows of several ranks laid side by side, cut at the ends of synchronisations.

A collective lets all ranks go together, so their steps are equally long whoever is late. What differs is the time that
a rank needs from the end of one synchronisation to the moment its gradients are ready for the next:

    own[k] = update[k-1] + residual[k] + data[k] + forward[k] + backward[k]

with compute[k] in place of forward and backward where steps are captured in CUDA graphs. It is a difference of two
stamps of one clock: clocks of different hosts need not agree. A stretch is a series of steps without interruption; its
first step has no synchronisation before it (a barrier, an evaluation, a checkpoint were there), and so no `own`.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod_study.analysis.stats import Floats
from horovod_study.config.run import LAPS
from horovod_study.errors import AnalysisError
from horovod_study.text.words import listed

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


@dataclass(frozen=True, kw_only=True, eq=False)
class RankSteps:
    """S steps that all of R ranks recorded, times in s. Columns are read when they are asked for: the rows of a long
    run do not fit into memory together.
    """

    workers: int  # of the run; R of them are here
    hosts: tuple[str, ...]  # of `ranks`
    rows: Mapping[int, Mapping[str, Any]]  # rank -> columns of records.step_schema, null is NaN
    places: Mapping[int, slice | NDArray[np.int64]]  # rank -> where its rows of the steps are
    step: NDArray[np.int64]  # (S,)
    epoch: NDArray[np.int64]  # (S,)
    known: frozenset[str]  # columns that every rank has for every step
    follows: NDArray[np.bool_]  # (S,): whether the step before it, of the same stretch, is here too
    notes: tuple[str, ...] = ()  # what is not here, in words

    def columns(self, rank: int) -> Callable[[str], Floats]:
        """Return what reads a column of one rank at these steps, (S,); its file is let go with it."""
        columns, places = self.rows[rank], self.places[rank]
        return lambda name: np.asarray(columns[name], dtype=np.float64)[places]

    def _table(self, name: str) -> Floats:
        return np.stack([self.columns(rank)(name) for rank in self.ranks], axis=1)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the R ranks that are here."""
        return tuple(self.places)

    @cached_property
    def step_s(self) -> Floats:
        """Return the steps, (S, R)."""
        return self._table("step_s")

    @cached_property
    def laps(self) -> Mapping[str, Floats]:
        """Return the laps that are known, lap -> (S, R)."""
        return {lap: self._table(f"{lap}_s") for lap in PARTS if f"{lap}_s" in self.known}

    @property
    def sync_s(self) -> Floats | None:
        """Return the synchronisations, (S, R), or None where the backend cannot see them."""
        return self.laps.get("sync")

    def told_laps(self) -> list[str]:
        """Return the known laps of `own`.

        Where synchronisation is hidden, backward or compute (or whatever comes nearest) holds the wait for the others
        and says nothing of a rank: it is left out.
        """
        known = [lap for lap in BEFORE_SYNC if f"{lap}_s" in self.known]
        if self.workers == 1 or "sync_s" in self.known:
            return known
        if not {*known} & {*_HOLDS_GRADIENTS}:
            return [lap for lap in known if lap == "data"]  # nobody knows where the wait is; loading is before it
        return [lap for lap in known if lap not in _HOLDS_GRADIENTS]

    def own_laps(self) -> dict[str, Floats]:
        """Return the known laps of `own` for the F steps that follow another, lap -> (F, R)."""
        here = np.flatnonzero(self.follows)
        return {lap: self.laps[lap][here - 1 if lap == "update" else here] for lap in self.told_laps()}


def ready_steps(
    rows: Sequence[Mapping[str, Any]], *, source: str, after_waits: Collection[int] = ()
) -> SimpleNamespace:
    """Return S steps of R ranks that follow another of their epoch; before others there was a barrier, or a wait for a
    turn, after which ranks do not begin together. AnalysisError for fewer than 20.

    step (S,); own_s, until the gradients are ready, sync_s, NaN where the backend cannot see it, and backward_s, (S, R)
    in s; captured: whether a CUDA graph computes. `rows`: columns of the same steps, one mapping per rank;
    `after_waits`: steps before which the run waited for its turn.
    """
    names = ("sync_s", *(f"{lap}_s" for lap in BEFORE_SYNC))
    laps = {name: np.stack([np.asarray(rank[name], dtype=np.float64) for rank in rows], axis=1) for name in names}
    captured = not np.isnan(laps["compute_s"]).all()
    # A CUDA graph that computes holds forward and backward, and may hold data and update; in ordinary steps there is no
    # compute, and data that are not marked are in what comes next. Of laps that are there but unknown nothing is made.
    whole = np.isfinite(laps["compute_s"]).all()
    for name in ("data_s", "forward_s", "backward_s", "update_s") if whole else ("data_s", "compute_s"):
        if np.isnan(laps[name]).all():
            laps[name] = np.zeros_like(laps[name])
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
    return SimpleNamespace(
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
    places: dict[int, NDArray[np.int64] | slice] = {}
    steps: dict[int, NDArray[np.int64]] = {}
    common = epoch = np.empty(0, dtype=np.int64)
    for rank in sorted(rows):
        columns = rows[rank]
        step = np.asarray(columns["step"])
        timed = (step >= from_step) & np.isfinite(np.asarray(columns["step_s"], dtype=np.float64))
        if int(timed.sum()) < max(1, fewest):
            continue
        places[rank] = where(timed)
        own = step[places[rank]]
        if not steps:
            common, epoch = own, np.asarray(columns["epoch"])[places[rank]]
        steps[rank] = common if np.array_equal(own, common) else own  # once in memory, not once for each rank
    first = common
    for own in steps.values():
        common = common if own is common else np.intersect1d(common, own, assume_unique=True)
    if not len(common):
        none = f"no rank has {max(1, fewest):,} recorded steps from step {from_step:,} on; run it for more steps"
        apart = "its ranks have no step in common; the rows belong to different runs"
        raise AnalysisError(f"{name}: {apart if steps else none}")
    if common is not first:
        epoch = epoch[np.searchsorted(first, common)]
    for rank, own in steps.items():
        if own is not common:
            places[rank] = np.arange(len(rows[rank]["step"]))[places[rank]][np.searchsorted(own, common)]
    few = f"has fewer than {max(1, fewest):,} recorded steps from step {from_step:,} on"
    found = RankSteps(
        workers=workers,
        hosts=tuple(hosts[rank] if rank < len(hosts) >= workers else "" for rank in places),
        rows=rows,
        places=places,
        step=np.asarray(common, dtype=np.int64),
        epoch=np.asarray(epoch, dtype=np.int64),
        known=frozenset(),
        follows=np.concatenate([[False], (np.diff(common) == 1) & (np.diff(epoch) == 0)]),
        notes=tuple(_left_out(steps, common, range(workers), missing or {}, few)),
    )
    # Columns that all ranks know, and the largest gap before each step but the first, of one rank after the other.
    known, two_clocks = {"begin_s", *(f"{lap}_s" for lap in PARTS)}, False
    apart_s = np.full(len(common) - 1, -math.inf)
    for rank in found.ranks:
        column, there = found.columns(rank), rows[rank].keys()
        known = {each for each in known if each in there and not np.isnan(column(each)).any()}
        if known >= {"begin_s", "residual_s"}:
            np.maximum(apart_s, gaps_s(*map(column, ("begin_s", "residual_s", "step_s"))), out=apart_s)
        two_clocks |= "sync_host_s" in there and bool(np.isfinite(column("sync_host_s")).any())
    if known >= {"begin_s", "residual_s"}:
        allowed = GAP_STEPS * float(np.median(found.step_s)) if two_clocks else GAP_S
        found.follows[1:] &= apart_s <= allowed
    return replace(found, known=frozenset(known))


def _left_out(
    steps: Mapping[int, NDArray[np.int64]],
    common: NDArray[np.int64],
    ranks: Sequence[int],
    missing: Mapping[int, str],
    few: str,
) -> Iterator[str]:
    """Yield which of all `ranks` and steps are not among `common`; `steps`: those of each rank that is."""
    whys = {rank: missing.get(rank, few) for rank in ranks if rank not in steps}
    for why in dict.fromkeys(whys.values()):
        yield f"left out: {rank_words([rank for rank in whys if whys[rank] == why])}: {why}"
    most = max(len(own) for own in steps.values())
    if most > len(common):
        short = rank_words([rank for rank, own in steps.items() if len(own) < most])
        lack = f"up to {most - len(common):,} steps fewer than the others"
        yield f"{short}: {lack}; only the {len(common):,} steps that all have are compared"


def where(there: NDArray[np.bool_]) -> slice | NDArray[np.int64]:
    """Return the places that are true: as a slice, which copies nothing, where they follow each other."""
    first, count = int(np.argmax(there)), int(np.count_nonzero(there))
    if there[first : first + count].all():
        return slice(first, first + count)
    return np.flatnonzero(there)


def gaps_s(begin: Floats, residual: Floats, step_s: Floats) -> Floats:
    """Return from (S,) the time between the end of each step and the beginning of the next, (S - 1,), at least.

    A row's residual is before its begin. What is residual behind it, as clipping in a script, looks like a gap before a
    step with less of it, and like a negative one before a step with more. A rank that has those has as much gap for
    certain as exceeds the residual of the step before.
    """
    gaps: Floats = np.diff(begin - residual) - step_s[:-1]
    return gaps - residual[:-1] if (gaps < -GAP_S).any() else gaps


def rank_words(ranks: Sequence[int]) -> str:
    """Return `rank 1` or `ranks 0, 2 and 3`; of many, the first and how many more."""
    names = [str(rank) for rank in ranks[:8]] + ([f"{len(ranks) - 8:,} more"] if len(ranks) > 8 else [])
    return f"rank{'s' * (len(names) > 1)} {listed(names)}"
