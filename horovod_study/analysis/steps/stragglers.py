"""Which rank is slow, by how much, and in which lap: from each rank's own clock, without comparing clocks.

For step k and rank r, with `own` as rank_steps.py defines it:

    wait[r, k]    max over ranks of own[k] - own[r, k]: how long r waits for the last rank
    skew[k]       mean over ranks of wait[k]: this part of a synchronisation is waiting, not communicating
    lateness[r]   mean over steps of own[r] less the same of the middle one of the other ranks

The middle one, because two slow ranks of eight are two slow ones, and not each other's measure. Steps are correlated (a
slow moment lasts for several), so the interval of a lateness comes from the means of blocks of steps: Student's t over
the blocks. A rank is named when its lateness is above zero even after allowing for having looked at all ranks
(Bonferroni), and at least 1 % of the step.

Where ranks share cores, forward and backward scatter by more than a rank is late, and hide in the sum what one lap
shows plainly. So each lap is looked at by itself, too, by two numbers that disturbed steps do not move: the median over
steps, and the floor, the difference of the 10 % quantiles, which holds where more than half of the steps are disturbed.
A rank is also named when the laps that are longer beyond doubt, after allowing for all laps of all ranks, make it late
by 1 % of the step, unless the others make up for half of that beyond doubt. Then it is *balanced*: longer, not late.
So is one of two or three ranks that is late with its data only, where another computes longer by half as much or more:
who comes to the processes of its loader earlier waits for them longer.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod_study.analysis import stats
from horovod_study.analysis.stats import Floats
from horovod_study.analysis.steps import rank_steps
from horovod_study.analysis.steps.rank_steps import CommonSteps, RankSteps

MIN_STEPS = 20
WORTH = 0.01  # a lateness below this share of the step is not worth mentioning

_BLOCKS = (8, 20)
_STEPS_PER_BLOCK = 25
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Lateness:
    """How one rank compares with the others, in s per step."""

    rank: int
    host: str
    own_s: float  # mean
    wait_s: float  # mean, for the last rank
    value_s: float  # lateness; negative: earlier than the others
    low_s: float  # 95 % interval
    high_s: float
    certain_s: float  # what it is at least, allowing for all ranks that were looked at
    last_share: float  # of the steps in which it was the last; ties are shared
    last_p: float  # chance of being last so often among equal ranks, if steps were independent
    laps_s: Mapping[str, float]  # what each lap adds to the lateness; they add up to it
    cause: str = ""  # a key of CAUSES, for a named or balanced rank
    cause_s: float = math.nan  # by how much it is late in the laps of `cause`: floor or median over steps, mean where
    cause_low_s: float = math.nan  # it is the mean only that is beyond doubt; 95 % interval
    cause_high_s: float = math.nan
    quickest_s: float = math.nan  # lateness of its quickest tenth of steps: of all laps together, the floor
    balanced: bool = False  # longer in the laps of `cause`, and shorter in others, so that it is not late


@dataclass(frozen=True, kw_only=True, slots=True)
class Stragglers:
    """What was found in F steps of R ranks, in s."""

    DOCUMENT = (
        "verdict why_not steps block_steps notes laps period_s skew_s skew_share spread_s resolution_s slow ranks"
    )

    verdict: str  # named | none | unknown
    why_not: str = ""  # of unknown, in words
    notes: tuple[str, ...] = ()  # what a reader must know
    steps: int = 0  # F
    block_steps: int = 0
    laps: tuple[str, ...] = ()  # that `own` consists of
    period_s: float = math.nan  # mean, from the end of a synchronisation to the end of the next
    skew_s: Mapping[str, float] | None = None  # mean, median, p90
    spread_s: float = math.nan  # mean wait of each step's first rank
    ranks: tuple[Lateness, ...] = ()
    slow: tuple[int, ...] = ()  # the named ranks, the slowest first
    resolution_s: float = math.nan  # a lateness that would certainly have been named
    delay_s: float = 0.0  # by how much a step would be shorter if the named ranks were as quick as the middle one
    delay_low_s: float = math.nan  # 95 % interval of it, from the means of blocks
    delay_high_s: float = math.nan

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

    The verdict is `unknown`, with the reason, where there are fewer than two ranks or 20 such steps, or where no lap
    distinguishes the ranks.
    """
    steps, together = int(rows.follows.sum()), _exchanging(rows)
    laps = rows.own_laps()
    if why := _why_unknown(rows, laps):
        return Stragglers(verdict="unknown", why_not=why, notes=rows.notes, steps=steps)
    notes = list(rows.notes)
    if together < 0.5 * steps:
        notes.append(f"the ranks exchange something in {together:,} of {steps:,} steps; in the others no rank waits")
    if rows.sync_s is None:
        notes.append(
            "the synchronisation is not visible here and the wait for the others is inside another lap, so that "
            f"only {', '.join(laps)} can be compared: a rank that is slow elsewhere is not seen"
        )
    table = np.stack(list(laps.values()))  # (laps, F, R)
    own: Floats = table.sum(axis=0)  # (F, R)
    waits = own.max(axis=1, keepdims=True) - own
    skew = waits.mean(axis=1)
    # Without the synchronisation `own` is a part of the step only.
    whole = rows.step_s[rows.follows] if rows.sync_s is None else own + rows.sync_s[rows.follows]
    period = float(whole.mean())
    count = min(max(steps // _STEPS_PER_BLOCK, _BLOCKS[0]), _BLOCKS[1])
    blocks = np.array_split(np.arange(steps), count)
    places = range(len(rows.ranks))
    found = [_lateness(place, rows, list(laps), table, waits, blocks, worth_s=WORTH * period) for place in places]
    found = [replace(each, balanced=each.balanced or _waits_for_its_loader(each, found)) for each in found]
    slow = sorted((each for each in found if each.cause and not each.balanced), key=lambda each: -_late_s(each))
    even = own - np.array([_late_s(each) if each in slow else 0.0 for each in found])
    delays = own.max(axis=1) - even.max(axis=1)
    delay = stats.student([delays[block].mean() for block in blocks]) if slow else stats.Interval(value=0.0)
    return Stragglers(
        verdict="named" if slow else "none",
        notes=tuple(notes),
        steps=steps,
        block_steps=steps // len(blocks),
        laps=tuple(laps),
        period_s=period,
        skew_s={"mean": float(skew.mean()), "median": float(np.median(skew)), "p90": float(np.quantile(skew, 0.9))},
        spread_s=float(waits.max(axis=1).mean()),
        ranks=tuple(found),
        slow=tuple(each.rank for each in slow),
        resolution_s=max(WORTH * period, *(each.value_s - each.certain_s for each in found)),
        delay_s=float(delays.mean()),
        delay_low_s=delay.low,
        delay_high_s=delay.high,
    )


def _why_unknown(rows: RankSteps, laps: Mapping[str, Floats]) -> str:
    """Return why the ranks cannot be compared in these laps of `own`; empty where they can."""
    steps = int(rows.follows.sum())
    if rows.workers == 1:
        return "one worker has nobody to wait for"
    if len(rows.ranks) < 2:
        return "the rows of one rank only are there"
    if steps < MIN_STEPS:
        return f"{steps} steps follow another of their stretch; at least {MIN_STEPS} are needed"
    if not _exchanging(rows):
        return rank_steps.NO_EXCHANGE
    return "" if laps else "the wait for the others is not visible, and no lap is certainly before it"


def _exchanging(rows: RankSteps) -> int:
    """Return in how many steps that follow another a rank waited for others; all where the wait is not visible."""
    if rows.sync_s is None:
        return int(rows.follows.sum())
    return int((rows.sync_s[rows.follows] > 0).any(axis=1).sum())


def _lateness(
    place: int,
    rows: RankSteps,
    laps: Sequence[str],
    table: Floats,
    waits: Floats,
    blocks: list[NDArray[np.int64]],
    *,
    worth_s: float,
) -> Lateness:  # 7 arguments: a rank, what is looked at, and from which lateness on it counts
    own = table.sum(axis=0)
    # The middle one of the others: the mean of two where their number is even.
    others = [each for each in np.argsort(own.mean(axis=0), kind="stable") if each != place]
    middle = others[(len(others) - 1) // 2 : len(others) // 2 + 1]
    later = _Later(laps, table[:, :, place], table[:, :, middle], blocks, ranks=len(rows.ranks))
    total, certain_s = later.mean(laps), later.certain_mean_s()
    cause, there, balanced = later.cause(worth_s, named=certain_s > 0 and total.value >= worth_s)
    last = waits <= 0  # (F, R)
    share = float((last[:, place] / last.sum(axis=1)).mean())
    count = round(share * len(last))
    return Lateness(
        rank=rows.ranks[place],
        host=rows.hosts[place],
        own_s=float(own[:, place].mean()),
        wait_s=float(waits[:, place].mean()),
        value_s=total.value,
        low_s=total.low,
        high_s=total.high,
        certain_s=certain_s,
        last_share=share,
        last_p=stats.binomial_tail(count, len(last), 1 / len(rows.ranks)),
        laps_s={lap: later.mean([lap]).value for lap in laps},
        cause=cause,
        cause_s=there.value,
        cause_low_s=there.low,
        cause_high_s=there.high,
        quickest_s=later.quickest_s(),
        balanced=balanced,
    )


def _waits_for_its_loader(late: Lateness, ranks: Sequence[Lateness]) -> bool:
    """Return whether a rank may be late with its data because another is longer elsewhere, and it comes earlier.

    Of more than three ranks it is compared with one that comes as early as itself.
    """
    return (
        late.cause == "data"
        and len(ranks) <= 3  # of these a slow one is among the middle ones of the others
        and any(each.cause not in ("", "data") and each.cause_s >= _MOST_OF_IT * late.cause_s for each in ranks)
    )


class _Later:
    """By how much one of R ranks is later than the others in each of L laps of F steps, in s."""

    def __init__(
        self, laps: Sequence[str], own: Floats, middle: Floats, blocks: list[NDArray[np.int64]], *, ranks: int
    ) -> None:
        """`own` has shape (L, F), `middle` (L, F, 1 or 2): of the middle ones of the others."""
        self._laps, self._own, self._middle, self._blocks, self._ranks = tuple(laps), own, middle, blocks, ranks

    def _over(self, rule: Callable[[Floats, Floats], Any], laps: Sequence[str]) -> tuple[float, float]:
        """Return what `rule` makes of these laps together, of (F,) and (F, 1 or 2), with its standard error."""
        places = [self._laps.index(lap) for lap in laps]
        own, middle = self._own[places].sum(axis=0), self._middle[places].sum(axis=0)
        of_blocks = np.array([rule(own[each], middle[each]) for each in self._blocks])
        return float(rule(own, middle)), float(stats.standard_error(of_blocks))

    def _usual(self, laps: Sequence[str]) -> tuple[float, float]:
        """Return by how much the rank is usually later in these laps together, with its standard error.

        It is the floor, where that is the more certain one and the median agrees: the same in every step. Else, as of
        a rank that is late in most steps only, it is the median.
        """
        median, error = self._over(lambda own, middle: float(np.median(own - middle.mean(axis=1))), laps)
        floor, floor_error = self._over(_floor, laps)
        agrees = abs(floor - median) <= stats.t_quantile(0.975, self._freedom) * error
        return (floor, floor_error) if agrees and floor_error < error else (median, error)

    @property
    def _freedom(self) -> float:
        return len(self._blocks) - 1.0

    def mean(self, laps: Sequence[str]) -> stats.Interval:
        """Return by how much the rank is later in these laps together, as a mean over steps."""
        return stats.around(*self._over(_mean, laps), self._freedom)

    def certain_mean_s(self) -> float:
        """Return what the mean of all laps is at least, allowing for all ranks."""
        value, error = self._over(_mean, self._laps)
        return value - stats.t_quantile(1 - 0.025 / self._ranks, self._freedom) * error

    def quickest_s(self) -> float:
        """Return the floor of all laps together: 0 for a rank that is as quick as the others when nothing disturbs."""
        return self._over(_floor, self._laps)[0]

    def cause(self, worth_s: float, *, named: bool) -> tuple[str, stats.Interval, bool]:
        """Return where the rank is longer, by how much there, and whether other laps make up for it; "": nowhere.

        `named`: that it is late is known from the mean of all laps.
        """
        usual = {lap: self._usual([lap]) for lap in self._laps}
        # Each lap is looked at by its median and by its floor.
        margin = stats.t_quantile(1 - 0.025 / (2 * self._ranks * len(self._laps)), self._freedom)
        sure = {lap: value for lap, (value, error) in usual.items() if value > margin * error}
        there_s, rest = sum(sure.values()), [lap for lap in self._laps if lap not in sure]
        made_up_for = bool(rest) and self.mean(rest).high < -_MOST_OF_IT * there_s
        whole = self.mean(self._laps).value
        if there_s >= worth_s and not (named and (made_up_for or there_s < _MOST_OF_IT * whole)):
            cause = _where(sure, there_s)
            return cause, stats.around(*self._usual(self._of(cause)), self._freedom), made_up_for
        if named:
            cause = _where({lap: self.mean([lap]).value for lap in self._laps}, whole)
            return cause, self.mean(self._of(cause)), False
        return "", stats.Interval(value=math.nan), False

    def _of(self, cause: str) -> Sequence[str]:
        if cause == "computing":
            return [lap for lap in self._laps if lap in _COMPUTING]
        return [cause] if cause in self._laps else self._laps


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


def _late_s(named: Lateness) -> float:
    """Return by how much a named rank is late: in all, where that is beyond doubt, else in the laps of its cause."""
    return named.value_s if named.certain_s > 0 else named.cause_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Pop:
    """The efficiencies of the POP project, dimensionless; parallel = load_balance x communication."""

    load_balance: float  # mean useful / max useful
    communication: float  # max useful / runtime
    parallel: float  # mean useful / runtime


def pop(useful_s: Sequence[float] | Floats, runtime_s: float) -> Pop:
    """Return the POP efficiencies of ranks that did useful work for `useful_s` each in `runtime_s`.

    Known answer: 1, 1, 1, 0.6 s in 1.25 s make 0.90, 0.80, 0.72. The split of `communication` into serialisation and
    transfer needs a run on an ideal network, and is not made. https://co-design.pop-coe.eu/metrics
    """
    useful = np.asarray(useful_s, dtype=np.float64)
    load_balance = float(useful.mean() / useful.max())
    communication = float(useful.max() / runtime_s)
    return Pop(load_balance=load_balance, communication=communication, parallel=load_balance * communication)


def pop_of(rows: RankSteps) -> Pop | None:
    """Return the POP efficiencies of the steps that follow another; None where the wait is not visible.

    Useful is `own`, all of it: loading and the unexplained part too. The runtime is that of the slowest rank.
    """
    if rows.sync_s is None or not rows.follows.any() or not _exchanging(rows):
        return None
    own = np.sum(list(rows.own_laps().values()), axis=0).sum(axis=0)  # (R,)
    if not own.max() > 0:
        return None
    return pop(own, float((own + rows.sync_s[rows.follows].sum(axis=0)).max()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """What waiting for each other costs the ranks of a run: two means of `find_stragglers` and `pop_of`."""

    pop: Pop | None  # None where not known
    skew_s: float  # mean; NaN where not known


def waiting(rows: Mapping[int, Mapping[str, Any]], shared: CommonSteps) -> Waiting:
    """Return the mean skew and the POP efficiencies of ranks over the steps that they share.

    The same numbers as of `find_stragglers(align(rows))` and `pop_of(align(rows))`, for runs whose rows do not fit into
    memory together: at any time a few columns of one rank are there. Nothing is known where a rank cannot see its
    synchronisation.
    """
    nothing = Waiting(pop=None, skew_s=math.nan)
    names = ("sync_s", "begin_s", *(f"{lap}_s" for lap in rank_steps.BEFORE_SYNC))
    unknown: set[str] = set()
    two_clocks = False
    largest = np.full(max(len(shared.step) - 1, 0), -math.inf)  # gap before a step, of all ranks
    for rank in shared.places:
        columns = rows[rank]
        found = {name: shared.column(columns, rank, name) for name in ("begin_s", "residual_s", "step_s")}
        np.maximum(largest, rank_steps.gaps_s(found["begin_s"], found["residual_s"], found["step_s"]), out=largest)
        for name in names:
            if np.isnan(found[name] if name in found else shared.column(columns, rank, name)).any():
                unknown.add(name)
        two_clocks |= bool(np.isfinite(shared.column(columns, rank, "sync_host_s")).any())
    if "sync_s" in unknown:
        return nothing
    laps = [lap for lap in rank_steps.BEFORE_SYNC if f"{lap}_s" not in unknown]
    follows = rank_steps.same_epoch(shared)
    if not unknown & {"begin_s", "residual_s"}:
        allowed = rank_steps.GAP_S
        if two_clocks:
            every = [shared.column(rows[rank], rank, "step_s") for rank in shared.places]
            allowed = rank_steps.GAP_STEPS * float(np.median(np.concatenate(every)))
        follows[1:] &= largest <= allowed
    steps = int(np.count_nonzero(follows))
    if not (laps and steps):
        return nothing
    useful_s, runtime_s, exchanging = [], [], False
    last = np.full(steps, -math.inf)
    for rank in shared.places:
        columns = rows[rank]
        own = np.zeros(steps)
        for lap in laps:
            values = shared.column(columns, rank, f"{lap}_s")
            own += values[:-1][follows[1:]] if lap == "update" else values[follows]
        useful_s.append(float(own.sum()))
        sync_s = float(shared.column(columns, rank, "sync_s")[follows].sum())
        exchanging |= sync_s > 0
        runtime_s.append(useful_s[-1] + sync_s)
        np.maximum(last, own, out=last)
    if not exchanging:
        return nothing
    return Waiting(
        pop=pop(useful_s, max(runtime_s)) if max(useful_s) > 0 else None,
        skew_s=(float(last.sum()) - math.fsum(useful_s) / len(useful_s)) / steps if steps >= MIN_STEPS else math.nan,
    )
