"""Step rows of several ranks laid side by side, cut at the ends of synchronisations; which rank is slow.

A collective lets all ranks go together, so their steps are equally long whoever is late. What differs is the time that
a rank needs from the end of one synchronisation to the moment its gradients are ready for the next:

    own[k] = update[k-1] + residual[k] + data[k] + forward[k] + backward[k]

with compute[k] in place of forward and backward where steps are captured in CUDA graphs. It is a difference of two
stamps of one clock: clocks of different hosts need not agree. A stretch is a series of steps without interruption; its
first step has no synchronisation before it (a barrier, an evaluation, a checkpoint were there), and so no `own`.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod_study.analysis import stats
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
    told = {name: laps[name][follows] for name in ("sync_s", "backward_s")}
    return SimpleNamespace(step=step[follows], own_s=own, **told, captured=captured)


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
    whys = {rank: (missing or {}).get(rank, few) for rank in range(workers) if rank not in steps}
    notes = []
    for why in dict.fromkeys(whys.values()):
        notes.append(f"left out: {rank_words([rank for rank in whys if whys[rank] == why])}: {why}")
    most = max(len(own) for own in steps.values())
    if most > len(common):
        short = rank_words([rank for rank, own in steps.items() if len(own) < most])
        lack = f"up to {most - len(common):,} steps fewer than the others"
        notes.append(f"{short}: {lack}; only the {len(common):,} steps that all have are compared")
    found = RankSteps(
        workers=workers,
        hosts=tuple(hosts[rank] if rank < len(hosts) >= workers else "" for rank in places),
        rows=rows,
        places=places,
        step=np.asarray(common, dtype=np.int64),
        epoch=np.asarray(epoch, dtype=np.int64),
        known=frozenset(),
        follows=np.concatenate([[False], (np.diff(common) == 1) & (np.diff(epoch) == 0)]),
        notes=tuple(notes),
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


# --------------------------------------------------------------------------------------------------- which rank is slow

WORTH = 0.01  # a lateness below this share of the step is not worth mentioning
_MOST_OF_IT = 0.5
_COMPUTING = ("compute", "forward", "backward", "update")
CAUSES = {
    "data": "loading its batch",
    "compute": "computing (one CUDA graph)",
    "forward": "computing forward",
    "backward": "computing backward",
    "update": "updating the parameters",
    "residual": "outside all laps",
    "computing": "computing (forward, backward and update)",
    "several": "in several laps",
}
"""Where a rank loses its time, in words."""


class Lateness(SimpleNamespace):
    """How one rank compares with the others; its attributes are the keys of its document. Times in s per step.

    rank, host. own_s, wait_s: means of its own time and of its wait for the last rank. value_s, low_s, high_s: the
    lateness with its 95 % interval, negative where it is earlier than the others; certain_s: what it is at least,
    allowing for all ranks that were looked at. last_share: of the steps in which it was the last (ties are shared);
    laps_s: what each lap adds to the lateness. cause: a key of CAUSES for a named or balanced rank, else empty;
    cause_s, cause_low_s, cause_high_s: by how much it is late in these laps, as floor or median over steps, or as mean
    where that only is beyond doubt. quickest_s: lateness of its quickest tenth of steps, of all laps together.
    balanced: longer in the laps of `cause` and shorter in others, so that it is not late.
    """


class Stragglers(SimpleNamespace):
    """What was found in F steps of R ranks, in s.

    verdict: named, none, or unknown, with why_not in words; notes: what a reader must know. steps: F, in blocks of
    block_steps; laps: that `own` consists of. period_s: mean, from the end of a synchronisation to the end of the next;
    skew_s: its mean, median, p90; spread_s: mean wait of each step's first rank. ranks: a Lateness each; slow: the
    named ranks, the slowest first. resolution_s: a lateness that would certainly have been named. delay_s: by how much
    a step would be shorter if the named ranks were as quick as the middle one, with its 95 % interval from the means of
    blocks.
    """

    DOCUMENT = (
        "verdict why_not steps block_steps notes laps period_s skew_s skew_share spread_s resolution_s slow ranks"
    )

    why_not, notes, laps = "", (), ()
    ranks: tuple[Lateness, ...] = ()
    slow: tuple[int, ...] = ()
    skew_s: dict[str, float] | None = None
    steps = block_steps = 0
    period_s = spread_s = resolution_s = delay_low_s = delay_high_s = math.nan
    delay_s = 0.0

    @property
    def skew_share(self) -> float:
        """Return the mean skew as a share of the step; NaN where there is none."""
        return math.nan if self.skew_s is None else self.skew_s["mean"] / self.period_s

    @property
    def named(self) -> tuple[Lateness, ...]:
        """Return the ranks that are slower than the others, the slowest first."""
        return tuple(each for rank in self.slow for each in self.ranks if each.rank == rank)

    @property
    def balanced(self) -> tuple[Lateness, ...]:
        """Return the ranks that are longer in some laps and shorter in others, the longest first."""
        return tuple(sorted((each for each in self.ranks if each.balanced), key=lambda each: -each.cause_s))


def find_stragglers(rows: RankSteps) -> Stragglers:
    """Compare the ranks' own times over the steps that follow another of their stretch.

    For step k and rank r, wait[r, k] is the max over ranks of own[k] less own[r, k]; the skew of k is its mean over
    ranks: this part of a synchronisation is waiting, not communicating. The lateness of r is the mean over steps of
    own[r] less the same of the middle one of the other ranks. Intervals are Student's t over means of blocks, for steps
    are correlated. A rank is named when its lateness is above zero allowing for all ranks (Bonferroni), and at least
    1 % of the step. Where ranks share cores the sum of laps scatters more than a rank is late, so each lap is looked at
    by itself too, by its median over steps and by its floor, the difference of 10 % quantiles: a rank is also named
    when the laps that are longer beyond doubt, after allowing for all laps of all ranks, make it late by 1 % of the
    step, unless the others make up for half of that. Then it is *balanced*: longer, not late. So is one of two or three
    ranks that is late with its data only, where another computes longer by half as much or more: who comes to the
    processes of its loader earlier waits for them longer.

    The verdict is `unknown`, with the reason, where there are fewer than two ranks or 20 such steps, or where no lap
    distinguishes the ranks.
    """
    steps, laps = int(rows.follows.sum()), rows.own_laps()
    # Steps in which a rank waited for others; all where the wait is not visible.
    together = steps if rows.sync_s is None else int((rows.sync_s[rows.follows] > 0).any(axis=1).sum())
    unknown = {
        "one worker has nobody to wait for": rows.workers == 1,
        "the rows of one rank only are there": len(rows.ranks) < 2,
        f"{steps} steps follow another of their stretch; at least {MIN_STEPS} are needed": steps < MIN_STEPS,
        NO_EXCHANGE: not together,
        "the wait for the others is not visible, and no lap is certainly before it": not laps,
    }
    if why := next((why for why, holds in unknown.items() if holds), ""):
        return Stragglers(verdict="unknown", why_not=why, notes=rows.notes, steps=steps)
    notes = list(rows.notes)
    if together < 0.5 * steps:
        notes.append(f"the ranks exchange something in {together:,} of {steps:,} steps; in the others no rank waits")
    if rows.sync_s is None:
        only = f"only {', '.join(laps)} can be compared: a rank that is slow elsewhere is not seen"
        notes.append(f"the synchronisation is not visible, and the wait for the others is inside another lap: {only}")
    table = np.stack(list(laps.values()))  # (laps, F, R)
    own: Floats = table.sum(axis=0)  # (F, R)
    waits = own.max(axis=1, keepdims=True) - own
    skew = waits.mean(axis=1)
    # Without the synchronisation `own` is a part of the step only.
    whole = rows.step_s[rows.follows] if rows.sync_s is None else own + rows.sync_s[rows.follows]
    period = float(whole.mean())
    count = min(max(steps // 25, 8), 20)
    blocks = np.array_split(np.arange(steps), count)
    found = [_lateness(place, rows, table, waits, blocks, WORTH * period) for place in range(len(rows.ranks))]
    longest_s = max((each.cause_s for each in found if each.cause not in ("", "data")), default=0.0)
    for each in found:
        # Late with its data only, because another is longer elsewhere and it comes to its loader earlier; of more than
        # three ranks it is compared with one that comes as early as itself.
        if each.cause == "data" and len(found) <= 3 and longest_s >= _MOST_OF_IT * each.cause_s:
            each.balanced = True
    # In all, where that is beyond doubt, else in the laps of its cause.
    late_s = {each.rank: float(each.value_s if each.certain_s > 0 else each.cause_s) for each in found}
    slow = sorted((each for each in found if each.cause and not each.balanced), key=lambda each: -late_s[each.rank])
    even = own - np.array([late_s[each.rank] if each in slow else 0.0 for each in found])
    delays = own.max(axis=1) - even.max(axis=1)
    delay = stats.student([delays[block].mean() for block in blocks]) if slow else stats.Interval(value=0.0)
    skews = {"mean": float(skew.mean()), "median": float(np.median(skew)), "p90": float(np.quantile(skew, 0.9))}
    seen = Stragglers(verdict="named" if slow else "none", notes=tuple(notes), steps=steps, laps=tuple(laps))
    seen.ranks, seen.slow, seen.block_steps = tuple(found), tuple(each.rank for each in slow), steps // len(blocks)
    seen.period_s, seen.spread_s, seen.skew_s = period, float(waits.max(axis=1).mean()), skews
    seen.resolution_s = max(WORTH * period, *(each.value_s - each.certain_s for each in found))
    seen.delay_s, seen.delay_low_s, seen.delay_high_s = float(delays.mean()), delay.low, delay.high
    return seen


def _lateness(
    place: int, rows: RankSteps, table: Floats, waits: Floats, blocks: list[NDArray[np.int64]], worth_s: float
) -> Lateness:
    """Compare the rank at a place with the others; it is named from a lateness of `worth_s` on."""
    laps, own, ranks, freedom = rows.told_laps(), table.sum(axis=0), len(rows.ranks), len(blocks) - 1.0
    # The middle one of the others: the mean of two where their number is even.
    others = [each for each in np.argsort(own.mean(axis=0), kind="stable") if each != place]
    middle = others[(len(others) - 1) // 2 : len(others) // 2 + 1]
    compared = table[:, :, [place, *middle]]  # (laps, F, 2 or 3)

    def over(rule: Callable[[Floats, Floats], float], which: Sequence[str]) -> tuple[float, float]:
        """Return what `rule` makes of these laps together, of (F,) and (F, 1 or 2), with its standard error."""
        both = compared[[laps.index(lap) for lap in which]].sum(axis=0)
        whole, *of_blocks = (rule(each[:, 0], each[:, 1:]) for each in (both, *(both[block] for block in blocks)))
        return float(whole), float(stats.standard_error(of_blocks))

    def usual(which: Sequence[str]) -> tuple[float, float]:
        """Return by how much the rank is usually later in these laps together, with its standard error.

        It is the floor, where that is the more certain one and the median agrees: the same in every step. Else, as of
        a rank that is late in most steps only, it is the median.
        """
        median, error = over(lambda own, middle: float(np.median(own - middle.mean(axis=1))), which)
        floor, floor_error = over(_floor, which)
        agrees = abs(floor - median) <= stats.t_quantile(0.975, freedom) * error
        return (floor, floor_error) if agrees and floor_error < error else (median, error)

    total, error = over(_mean, laps)
    certain_s = total - stats.t_quantile(1 - 0.025 / ranks, freedom) * error
    named = certain_s > 0 and total >= worth_s  # known from the mean of all laps
    means, usually = {lap: over(_mean, [lap])[0] for lap in laps}, {lap: usual([lap]) for lap in laps}
    # Each lap is looked at by its median and by its floor.
    margin = stats.t_quantile(1 - 0.025 / (2 * ranks * len(laps)), freedom)
    sure = {lap: value for lap, (value, error) in usually.items() if value > margin * error}
    there_s, rest = sum(sure.values()), [lap for lap in laps if lap not in sure]
    made_up_for = bool(rest) and stats.around(*over(_mean, rest), freedom).high < -_MOST_OF_IT * there_s
    by_lap = there_s >= worth_s and not (named and (made_up_for or there_s < _MOST_OF_IT * total))
    cause, there = "", stats.Interval(value=math.nan)
    if by_lap or named:
        cause = _where(sure if by_lap else means, there_s if by_lap else total)
        late = {"computing": [lap for lap in laps if lap in _COMPUTING]}.get(cause, [cause] if cause in laps else laps)
        there = stats.around(*(usual(late) if by_lap else over(_mean, late)), freedom)
    last = waits <= 0  # (F, R)
    share = float((last[:, place] / last.sum(axis=1)).mean())
    own_s, wait_s = (float(each[:, place].mean()) for each in (own, waits))
    found = Lateness(rank=rows.ranks[place], host=rows.hosts[place], own_s=own_s, wait_s=wait_s)
    vars(found).update(last_share=share, laps_s=means, cause=cause, quickest_s=over(_floor, laps)[0])
    vars(found).update(stats.around(total, error, freedom).named("value_s", "low_s", "high_s"), certain_s=certain_s)
    vars(found).update(there.named("cause_s", "cause_low_s", "cause_high_s"), balanced=by_lap and made_up_for)
    return found


def _mean(own: Floats, middle: Floats) -> float:
    return float(own.mean() - middle.mean())


def _floor(own: Floats, middle: Floats) -> float:
    place = round(0.1 * (len(own) - 1))  # the quantile that only undisturbed steps determine
    return float(np.partition(own, place)[place] - np.partition(middle, place, axis=0)[place].mean())


def _where(laps_s: Mapping[str, float], value_s: float) -> str:
    """Return the lap, or the kind of laps, that makes more than half of a lateness."""
    lap, most = max(laps_s.items(), key=lambda each: each[1])
    computing = sum(laps_s.get(each, 0.0) for each in _COMPUTING)
    if most > _MOST_OF_IT * value_s and not (lap in _COMPUTING and most < 0.8 * computing):
        return lap
    return "computing" if computing > _MOST_OF_IT * value_s else "several"


def pop(useful_s: Sequence[float] | Floats, runtime_s: float) -> SimpleNamespace:
    """Return the POP efficiencies of ranks that did useful work for `useful_s` each in `runtime_s`, dimensionless:
    load_balance (mean useful / max useful), communication (max useful / runtime), and parallel, their product.

    Known answer: 1, 1, 1, 0.6 s in 1.25 s make 0.90, 0.80, 0.72. The split of `communication` into serialisation and
    transfer needs a run on an ideal network, and is not made. https://co-design.pop-coe.eu/metrics
    """
    useful = np.asarray(useful_s, dtype=np.float64)
    load_balance, communication = float(useful.mean() / useful.max()), float(useful.max() / runtime_s)
    return SimpleNamespace(
        load_balance=load_balance, communication=communication, parallel=load_balance * communication
    )


def waiting(rows: RankSteps) -> tuple[SimpleNamespace | None, float]:
    """Return the POP efficiencies of the steps that follow another, and the mean skew in s, None and NaN where unknown.

    Useful is `own`, all of it: loading and the unexplained part too; the runtime is that of the slowest rank. Neither
    is known where the wait is not visible, and a skew of fewer than 20 steps is a guess. At any time a few columns of
    one rank are in memory.
    """
    steps, laps = int(rows.follows.sum()), rows.told_laps()
    if "sync_s" not in rows.known or not (steps and laps):
        return None, math.nan
    useful_s, runtime_s, last = [], [], np.full(steps, -math.inf)
    for rank in rows.ranks:
        column, own = rows.columns(rank), np.zeros(steps)
        for lap in laps:
            values = column(f"{lap}_s")
            own += values[:-1][rows.follows[1:]] if lap == "update" else values[rows.follows]
        useful_s.append(float(own.sum()))
        runtime_s.append(useful_s[-1] + float(column("sync_s")[rows.follows].sum()))
        np.maximum(last, own, out=last)
    if runtime_s == useful_s:  # nothing was ever exchanged
        return None, math.nan
    skew_s = (float(last.sum()) - math.fsum(useful_s) / len(useful_s)) / steps if steps >= MIN_STEPS else math.nan
    return pop(useful_s, max(runtime_s)) if max(useful_s) > 0 else None, skew_s
