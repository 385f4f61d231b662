"""What the synchronisation of a step is made of: transfer floor, skew, runtime, and what none of them explains.

For step i and rank r, ready[i, r] is the time from the end of r's synchronisation of step i - 1 to the end of its
backward of step i (of its compute in a CUDA graph), and wait[i, r] = max over ranks of ready[i] - ready[i, r], because
ranks leave a synchronisation together. Of the mean synchronisation (over steps and ranks)

    floor         is the 10 % quantile of raw all-reduces of the gradients, measured in the same job
    skew          the mean of wait
    runtime       a synchronisation through the runtime with aligned ranks, less the floor; as a mean less a quantile it
                  holds the scatter of all-reduces, and `least`, the 10 % quantiles of both, is free of it
    unexplained   the rest; it may be negative and stays so

Runs whose arms trained in turns say how the arms differ within rounds (analysis/paired.py); all else is compared by
launches. docs/explain.md explains all of it; strain/synchronisation.py measures it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from horovod_study.analysis import paired, stats
from horovod_study.analysis.stats import Floats, Interval
from horovod_study.analysis.steps import rank_steps
from horovod_study.analysis.steps.rank_steps import NO_EXCHANGE, cycle_s, ready_steps, settings_of
from horovod_study.config.run import COMMUNICATION
from horovod_study.config.workload import packaged
from horovod_study.errors import AnalysisError, RecordError, refuse
from horovod_study.records import RecordedRun, RunTurns, TurnSlice, read_ablation, run_turns

OPTIONS = packaged().options
_FLOOR_QUANTILE = 0.1
"""Raw all-reduces faster than all but so many of them were not disturbed. Horovod's thread, which asks the other ranks
every cycle, holds up whatever else uses MPI at that moment: a mean of raw all-reduces beside it is no floor."""
RESAMPLES = 2000
_SAID = ("backend", "transport", "reduction", "workers", "batch")  # by a record
_SAME = (*_SAID, "arm")  # of repeats
NO_LAPS = "its steps have no laps"
SHIPPED = "shipped settings"
FEWEST_LAUNCHES = 2
BUSY_CORES = 0.25  # other programs that use more disturb workers on all cores
INSIDE_BACKWARD = "the wait is inside backward, where PyTorch's hooks reduce, and cannot be seen"
INSIDE_COMPUTE = "the wait is inside the CUDA graph that computes, and cannot be seen"


class Observation(SimpleNamespace):
    """One finished run, in seconds: what its ranks recorded in S steps, and what was measured after them.

    run, repeat, backend, transport, reduction, workers, batch; arm, in words what was set: runs that share all of these
    but run and repeat are repeats. settings: of communication in effect, variable or option -> value; hosts of the
    ranks. ready_s (S, R); sync_s (S, R), None where the backend cannot see it, with why_no_sync. floor_s, pack_s and
    through_s (M,), `block` in a row, None where not measured, with why_not_through; one_clock: whether the ranks read
    one clock then. other_cores: of a host in use by other programs, the most of any host. turns; round (S,): that of
    its slice, or -1.
    """

    block, why_not_through, one_clock = 1, "", True

    @property
    def together(self) -> bool:
        """Return whether ranks wait for each other where it is seen, and not inside backward already."""
        return self.workers > 1 and self.sync_s is not None


def observe(
    run: str,
    requested: Mapping[str, Any],
    effective: Mapping[str, Any],
    repeat: int,
    rows: Sequence[Mapping[str, Any]],
    bench: Mapping[str, Any] | None,
    *,
    turns: RunTurns = RunTurns(),  # noqa: B008 - a value that nobody can change
) -> Observation:
    """Make an Observation of a run's record, the columns of each rank's timed steps, and bench.json.

    The first step of each epoch is left out: what came before it was an evaluation, a checkpoint, or the end of the
    warm-up, with a barrier after it; so is the first after a wait for a turn. AnalysisError for fewer than 20 steps.
    """
    steps = ready_steps(rows, source=run, after_waits=turns.before)
    unseen = np.isnan(steps.sync_s).any()
    alone = not (unseen or steps.sync_s.any()) and len(rows) > 1
    of_round = np.full(len(steps.step), -1)
    for number, (first, end) in turns.rounds.items():
        of_round[(steps.step >= first) & (steps.step < end)] = number
    others = [each or 0.0 for each in (effective.get("other_programs_cores") or {}).values()]
    if loads := [each for each in turns.other_load.values() if not math.isnan(each)]:
        others = [float(np.median(loads))]
    told: dict[str, Any] = {name: (bench or {}).get(name) for name in ("floor_s", "pack_s", "through_s")}
    told = {name: None if each is None else np.asarray(each, dtype=np.float64) for name, each in told.items()}
    if bench is not None:
        told |= {"block": int(bench["block"]), "why_not_through": str(bench["why_not_through"])}
        told["one_clock"] = bench["clock"] == "common"
    told |= {name: str(effective[name]) for name in ("backend", "transport", "reduction")}
    told |= {name: int(effective[name]) for name in ("workers", "batch")}
    told |= {"arm": _arm_of(requested, effective), "settings": settings_of(effective)}
    told |= {"turns": turns, "round": of_round}
    told["hosts"] = tuple(str(each["host"]) for each in effective.get("ranks") or ()) or ("",) * len(rows)
    told["why_no_sync"] = NO_EXCHANGE if alone else INSIDE_COMPUTE if steps.captured else INSIDE_BACKWARD
    told |= {"ready_s": steps.own_s, "sync_s": None if unseen or alone else steps.sync_s}
    return Observation(run=run, repeat=repeat, other_cores=max(others, default=0.0), **told)


def observe_run(run: RecordedRun, slices: Iterable[TurnSlice] = ()) -> Observation:
    """Make an Observation of a run that is done; `slices`: the turns of its study.

    What a script does not mark is in the residual, or in compute, and there is nothing of it elsewhere. Raises
    RecordError, which begins with the name of the run, where its record or rows do not allow it, and AnalysisError for
    fewer than 20 steps.
    """
    asked, ran = run.record.requested, run.record.effective
    unsaid = [name for name in _SAID if ran.get(name) is None]
    refuse(
        run.name,
        (run.state != "done", f"the run is {run.state}, and only finished runs are decomposed"),
        (asked.get("timer_mode") == "off", "its steps were not timed (--timer-mode off)"),
        (run.missing, "a rank has no rows"),
        (unsaid, f"its record does not say its {''.join(unsaid[:1])}"),
        error=RecordError,
    )
    rows = []
    for columns in run.rows.values():
        timed = np.asarray(columns["step"]) >= run.first_step
        rows.append({name: np.asarray(values)[timed] for name, values in columns.items()})
    unknown = {
        name for each in rows for name in ("compute_s", "backward_s", "residual_s") if np.isnan(each[name]).any()
    }
    refuse(
        run.name,
        (len({len(each["step"]) for each in rows}) > 1, "its ranks recorded different numbers of steps"),
        ("residual_s" in unknown or {"compute_s", "backward_s"} <= unknown, NO_LAPS),
        error=RecordError,
    )
    for each in rows:
        each |= {name: np.nan_to_num(each[name]) for name in ("data_s", "forward_s", "backward_s", "update_s")}
    turns = run_turns(run.record, run.directory.resolve().name, slices)
    bench = run.synchronisation if run.workers > 1 else None
    return observe(run.name, asked, ran, run.record.repeat, rows, bench, turns=turns)


def _arm_of(requested: Mapping[str, Any], effective: Mapping[str, Any]) -> str:
    """Return in words how the workers of a run were configured to communicate: `library defaults, cycle 10 ms`."""
    if effective["workers"] == 1:
        return "one worker"
    words = ["library defaults" if requested.get("horovod_defaults") else SHIPPED]
    for name in COMMUNICATION:
        value = requested.get(name)
        if name not in ("horovod_defaults", "reduction") and value not in (None, OPTIONS[name].default):
            words.append(OPTIONS[name].say(f"{value:g}" if isinstance(value, float) else value))
    given = {name: each for name, each in (effective.get("settings") or {}).items() if isinstance(each, Mapping)}
    words += [f"{name}={each['value']}" for name, each in given.items() if each.get("source") == "user"]
    return ", ".join(words)


Part: TypeAlias = Floats  # what one run says of one quantity, (1 + RESAMPLES,): its mean, then draws of that mean


def parts_of(seen: Observation, *, seed: int = 1) -> dict[str, Part]:
    """Return the mean of every quantity (of the floor the 10 % quantile) of one run in s, with block-bootstrap draws.

    Steps are not independent (a slow moment lasts for several), so whole blocks of consecutive steps are drawn. Keys:
    step, ready, and what is known of sync, skew, floor, pack, runtime, least (the runtime where nothing disturbs: the
    10 % quantile of synchronisations through it less the floor), rest, unexplained, exposed (sync less skew),
    wait 0, wait 1, ... (of a rank for the last one).
    """
    rng = np.random.default_rng(seed)
    columns = _by_step(seen)
    table = np.stack(list(columns.values()), axis=1)
    draws = _block_means(table, max(10, round(math.sqrt(len(table)))), rng)
    means = np.concatenate([table.mean(axis=0)[np.newaxis], draws])
    found = dict(zip(columns, means.T, strict=True))
    if seen.floor_s is not None:
        found["floor"] = _undisturbed(seen.floor_s, seen.block, rng)
    for name, samples in (("pack", seen.pack_s), ("through", seen.through_s)):
        if samples is not None:
            found[name] = np.append(samples.mean(), _block_means(samples[:, np.newaxis], seen.block, rng)[:, 0])
    if seen.together and (through_s := seen.through_s) is not None and "floor" in found:
        found["least"] = _undisturbed(through_s, seen.block, rng) - found["floor"]
    return found | _derived(seen, found)


def _derived(seen: Observation, of: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return what follows from other quantities, by the names of `parts_of`."""
    if not seen.together:
        return {}
    found = {"skew": np.mean([each for name, each in of.items() if name.startswith("wait ")], axis=0)}
    found["exposed"] = of["sync"] - found["skew"]
    if "through" in of and "floor" in of:
        found["runtime"] = of["through"] - of["floor"]
        found |= {"rest": found["runtime"] - of["pack"], "unexplained": found["exposed"] - of["through"]}
    return found


def _by_step(seen: Observation) -> dict[str, Floats]:
    """Return what every step says, (S,), by the names of `parts_of`."""
    ready = seen.ready_s
    waits = ready.max(axis=1, keepdims=True) - ready  # (S, R)
    step = (
        ready if seen.sync_s is None else ready + seen.sync_s
    )  # from the end of a synchronisation to that of the next
    columns = {"step": step.mean(axis=1), "ready": ready.mean(axis=1)}
    if seen.together:
        columns |= {f"wait {rank}": waits[:, rank] for rank in range(ready.shape[1])}
    if seen.sync_s is not None:
        columns["sync"] = seen.sync_s.mean(axis=1)
    return columns


def _undisturbed(samples: Floats, block: int, rng: np.random.Generator) -> Part:
    """Return the 10 % quantile of `samples`, (S,), with those of series drawn from its blocks of consecutive ones."""
    block = max(1, min(block, len(samples) // 4))
    starts = rng.integers(0, len(samples), size=(RESAMPLES, math.ceil(len(samples) / block)))
    rows = (starts[:, :, np.newaxis] + np.arange(block)) % len(samples)  # a ring, as in _block_means
    drawn = np.quantile(samples[rows.reshape(RESAMPLES, -1)], _FLOOR_QUANTILE, axis=1)
    return np.append(np.quantile(samples, _FLOOR_QUANTILE), drawn)


def _block_means(table: Floats, block: int, rng: np.random.Generator) -> Floats:
    """Return means of `table`, (S, C), over series drawn from its blocks of consecutive rows, (RESAMPLES, C).

    The series is closed to a ring, so that each row is in as many blocks as any other.
    """
    rows = len(table)
    block = max(1, min(block, rows // 4))
    ring = np.concatenate([table, table[: block - 1]])
    sums = np.cumsum(np.concatenate([np.zeros((1, table.shape[1])), ring]), axis=0)
    means = (sums[block:] - sums[:-block]) / block  # (S, C): of the block that begins at each row
    starts = rng.integers(0, rows, size=(RESAMPLES, math.ceil(rows / block)))
    # A part of the series at a time: those of a long run of many ranks would not fit into memory together.
    return np.concatenate([means[some].mean(axis=1) for some in np.array_split(starts, 50)])


class Arm(SimpleNamespace):
    """What the repeats of one runtime come to, in s; a quantity that cannot be determined is missing.

    backend, transport, reduction, workers, batch, arm, hosts, settings: see Observation; runs: their names. seconds:
    see `parts_of`, as intervals; efficiency: now, without runtime, without skew, without unexplained, at the floor;
    baseline: what an efficiency of 1 is. why_not: why parts are missing. leave_spread_s: see `leave_spread`. cycle_ms:
    None where there is none, or where the thread is woken. over_shipped: step over that with shipped settings, within
    rounds. rounds: of turns that its ratios come from, 0 where they come from whole runs.
    """


class Attribution(SimpleNamespace):
    """Where the synchronisation time of a set of runs goes: arms, and doubts, the limitations of it."""


Group: TypeAlias = Sequence[tuple[Observation, dict[str, Part]]]  # the runs of an arm, and what each says


def attribute(observations: Iterable[Observation]) -> Attribution:
    """Take the synchronisation of every run apart and sum repeats up, in the order of their first appearance.

    Intervals are 95 %: of one run from its steps (block bootstrap); of several runs from the scatter between them
    (Student's t), which holds what one run cannot know; of ratios and differences of arms that trained in turns, in
    two launches or more, from rounds (analysis/paired.py). Raises AnalysisError when no run has several workers.
    """
    groups: dict[tuple[Any, ...], list[tuple[Observation, dict[str, Part]]]] = {}
    for place, seen in enumerate(observations):
        name = tuple(getattr(seen, each) for each in _SAME)
        groups.setdefault(name, []).append((seen, parts_of(seen, seed=1 + place)))
    several = {name: group for name, group in groups.items() if group[0][0].workers > 1}
    if not several:
        raise AnalysisError("none of the runs has several workers: there is no synchronisation to take apart")
    bases: dict[int, list[tuple[Observation, dict[str, Part]]]] = {}
    for group in groups.values():
        if group[0][0].workers == 1 and group[0][0].backend == "serial":
            bases.setdefault(group[0][0].batch, []).extend(group)
    shipped = {name[:-1]: group for name, group in several.items() if name[-1] == SHIPPED}
    arms = tuple(
        _arm(group, bases.get(group[0][0].batch, []), () if name[-1] == SHIPPED else shipped.get(name[:-1], ()))
        for name, group in several.items()
    )
    return Attribution(
        arms=arms,
        doubts=tuple(_doubts([seen for group in groups.values() for seen, _ in group], arms)),
    )


def _doubts(runs: Sequence[Observation], arms: Sequence[Arm]) -> Iterable[str]:
    if busy := [seen.other_cores for seen in runs if seen.other_cores >= BUSY_CORES]:
        during = f"during {len(busy)} of {len(runs)} runs; parts measured at different moments do not belong together"
        yield f"other programs used up to {max(busy):.1f} cores {during}"
    if apart := [seen for seen in runs if not seen.one_clock]:
        yield (
            f"the ranks of {len(apart)} of {len(runs)} runs share no clock: floor and runtime hold the unevenness of "
            "the barrier before them"
        )
    for arm in arms:
        name, least = f"{arm.backend}/{arm.transport}, {arm.arm}", arm.seconds.get("least")
        if least is not None and not least.low > 0:
            yield (
                f"{name}: the runtime is not distinguishable from zero: where nothing disturbs, it takes "
                f"{least.value * 1e6:.3g} [{least.low * 1e6:.3g}, {least.high * 1e6:.3g}] us more than a raw all-reduce"
            )
        if "skew" in arm.seconds and arm.leave_spread_s > arm.seconds["skew"].value:
            yield (
                f"{name}: the ranks leave a synchronisation about {arm.leave_spread_s * 1e3:.2f} ms apart, more than "
                f"the skew of {arm.seconds['skew'].value * 1e3:.2f} ms, which is not certain then"
            )


def _arm(group: Group, base: Group, shipped: Group) -> Arm:
    """Return what the runs of an arm come to, relative to one worker alone and to the arm with shipped settings."""
    first = group[0][0]
    names = [name for name in group[0][1] if all(name in parts for _, parts in group)]
    parts = {name: over_runs([each[name] for _, each in group]) for name in names}
    ratios = []
    for seen, own in group:
        # One worker alone, of the same repeat where there is one; or the run's own step without synchronisation.
        same = [each["step"] for other, each in base if other.repeat == seen.repeat] or [e["step"] for _, e in base]
        one = np.mean(same, axis=0) if same else own["ready"]
        cases = {name: step for name, (needed, step) in _CASES.items() if own.keys() >= set(needed)}
        ratios.append({name: one / step(own) for name, step in cases.items()} if same or "sync" in own else {})
    efficiency = {name: over_runs([each[name] for each in ratios]) for name in ratios[0]}
    _, now = _CASES["now"]
    over_shipped = _ratio(group, shipped, now, now) if shipped else None
    rounds = 0 if over_shipped is None else over_shipped.n
    for name in efficiency if base else ():
        if (within := _ratio(base, group, now, _CASES[name][1])) is not None:
            efficiency[name], rounds = within, within.n
    why_not = first.why_no_sync if first.sync_s is None else first.why_not_through
    told: dict[str, Any] = {name: getattr(first, name) for name in (*_SAME, "hosts", "settings")}
    told |= {"seconds": parts, "efficiency": efficiency, "over_shipped": over_shipped, "rounds": rounds}
    told |= {"why_not": why_not, "cycle_ms": cycle_s(first.settings) * 1e3}
    told |= {"baseline": "one worker alone" if base else "its own step without synchronisation"}
    told["leave_spread_s"] = float(np.mean([leave_spread(seen) for seen, _ in group]))
    return Arm(**told | {"cycle_ms": told["cycle_ms"] or None}, runs=tuple(seen.run for seen, _ in group))


_CASES: Mapping[str, tuple[tuple[str, ...], Callable[[Any], Any]]] = {
    "now": (("step",), lambda of: of["step"]),
    "without runtime": (("step", "runtime"), lambda of: of["step"] - of["runtime"]),
    "without skew": (("step", "skew"), lambda of: of["step"] - of["skew"]),
    "without unexplained": (("step", "unexplained"), lambda of: of["step"] - of["unexplained"]),
    "at the floor": (("step", "sync", "floor"), lambda of: of["step"] - of["sync"] + of["floor"]),
    "without synchronisation": (("ready", "sync"), lambda of: of["ready"]),
}
"""What a step would take in each case, from the parts that it takes."""


def over_runs(parts: Sequence[Part]) -> Interval:
    """Return the mean over repeats: the bootstrap of one run's steps, or Student's t between several runs."""
    if len(parts) == 1:
        return stats.percentiles(float(parts[0][0]), parts[0][1:])
    return stats.student([float(part[0]) for part in parts])


def _ratio(cell: Group, base: Group, of_cell: Callable[[Any], Any], of_base: Callable[[Any], Any]) -> Interval | None:
    """Return a ratio within rounds; None where some run did not alternate, or no two launches have rounds of both."""
    if not all(seen.turns.launch for seen, _ in (*cell, *base)):
        return None
    slices = []
    for name, group, value_of in (("cell", cell, of_cell), ("base", base, of_base)):
        for seen, parts in group:
            here = seen.round >= 0
            numbers, place = np.unique(seen.round[here], return_inverse=True)
            steps = {each: values[here] for each, values in _by_step(seen).items()}
            columns = {each: np.bincount(place, weights=own) / np.bincount(place) for each, own in steps.items()}
            # What is measured once in a launch, when it has trained.
            once = ("floor", "pack", "through")
            columns |= {each: np.full(len(numbers), parts[each][0]) for each in once if each in parts}
            columns |= _derived(seen, columns)
            for number, value in zip(numbers.tolist(), value_of(columns).tolist(), strict=True):
                about: dict[str, Any] = {"launch": seen.turns.launch, "other_load": seen.turns.other_load[number]}
                slices.append(paired.Slice(round=number, cell=name, rate=value, **about))
    if not all(each.rate > 0 for each in slices):
        return None
    known = paired.estimate(paired.pairs(slices, "cell", "base", ratio=True))
    return None if known is None or known.launches < FEWEST_LAUNCHES else known.ratio


def leave_spread(seen: Observation) -> float:
    """Return how far apart, in s, the ranks of a run leave a synchronisation; NaN where sync is not visible.

    Periods of two ranks, ready + sync, differ by the change of how far apart they leave; if that changes by chance, its
    standard deviation is 1 / sqrt(2) of that of the differences. A rank that always leaves later by the same time is
    not seen, and shifts that time from skew to unexplained.
    """
    if seen.sync_s is None:
        return math.nan
    period = seen.ready_s + seen.sync_s
    return float(np.std(period - period.mean(axis=1, keepdims=True)) / math.sqrt(2))


ARM_COLUMNS = (
    *("series", "setting", "partition", "backend", "transport", "reduction", "horovod_defaults"),
    *("workers", "nodes", "batch", "arm", "runs", "part", "seconds", "low_s", "high_s", "of_sync", "of_step"),
    "why_not",
)
"""One row per cell, arm and part: step, sync and what it is made of, in s per step; `runs` is how many say so."""

ROWS = ("step", "sync", "floor", "skew", "pack", "rest", "runtime", "unexplained")


def decompose_observation(seen: Observation) -> SimpleNamespace:
    """Return what one run says without its arrays: arm, other_cores, parts (those of ROWS, and exposed, that are known,
    with the intervals that its own steps give them), hidden, why the synchronisation is not seen, and why_not, why some
    parts are missing."""
    parts, hidden = parts_of(seen), seen.why_no_sync if seen.sync_s is None else ""
    known = {name: over_runs([parts[name]]) for name in (*ROWS, "exposed") if name in parts}
    about = {"arm": seen.arm, "other_cores": seen.other_cores, "hidden": hidden}
    return SimpleNamespace(**about, parts=known, why_not=hidden or seen.why_not_through)


def arm_rows(runs: pd.DataFrame, taken: Mapping[str, SimpleNamespace]) -> pd.DataFrame:
    """Return ARM_COLUMNS of the runs of a named run table (points.with_series) that were decomposed, by run.

    Means over repeats with Student's interval; of one run its own, and NaN where some repeat does not know a part.
    """
    rows: list[dict[str, Any]] = []
    own = runs[runs["run"].isin(list(taken))]
    arms = [taken[name].arm for name in own["run"]]
    keys = ["series", "workers", "nodes", "batch", "_arm"]
    for key, cell in own.assign(_arm=arms).groupby(keys, sort=False, dropna=False):
        found = [taken[name] for name in cell["run"]]
        first = cell.iloc[0]
        head = {name: first[name] for name in ARM_COLUMNS[:10]} | {"arm": key[-1]}
        known = {name: [each.parts[name] for each in found if name in each.parts] for name in ROWS}
        whole = {name: stats.together(each) for name, each in known.items() if len(each) == len(found)}
        for name, each in whole.items():
            shares = {f"of_{of}": each.value / whole[of].value if of in whole else math.nan for of in ("sync", "step")}
            ends = {"seconds": each.value, "low_s": each.low, "high_s": each.high}
            rows.append({**head, "runs": len(found), "part": name, **ends, **shares, "why_not": found[0].why_not})
    return pd.DataFrame(rows, columns=list(ARM_COLUMNS))


# ----------------------------------------------------------------------------------------- by leaving communication out

MIN_PAIRS = 4  # fewer pairs have no interval to speak of
AGREE, DIFFER, UNRESOLVED, _NO_TIMER = "agree", "differ", "not resolved", "no timer"
_WORDS = {
    AGREE: "they agree, the difference {difference} contains 0",
    UNRESOLVED: "not resolved, the interval of the difference {difference} is wider than the cost itself; measure on a "
    "quieter machine, or a longer run",
    DIFFER: "they differ by {difference}: {where}",
}


class CommunicationCost(SimpleNamespace):
    """What communication costs a step, in s, means over ranks, by leaving it out and by the timer; its attributes are
    the keys of its document.

    workers, reduction, pairs, and steps, the counted ones of a block. verdict: agree, differ, not resolved, no timer;
    sentence: it with its numbers. Intervals: step_s with communication and silent_step_s without it, ablation_s their
    difference; timer_s: the sync lap with communication, None where it is not seen, see why_no_timer; difference_s:
    ablation_s - timer_s; silent_sync_s: what is left of the sync lap without communication, calls that do nothing;
    laps_s: how much longer each lap is with communication, None where not known; ranks_s: the cost by ablation of each
    rank. outside: laps but sync that moved, beyond doubt, the way the difference goes, the largest first. doubts.
    """


def answer_of(run: RecordedRun) -> tuple[CommunicationCost | None, str]:
    """Return what the blocks without communication of a run say, or None with the reason."""
    try:
        return answer(read_ablation(run.directory)), ""
    except RecordError as error:
        return None, str(error).removeprefix(f"{run.directory}/").removeprefix(f"{run.directory}: ")
    except AnalysisError as error:
        return None, str(error).partition(": ")[2]


def answer(found: Mapping[str, Any]) -> CommunicationCost:
    """Return what the blocks of one run say; `found` is what `records.read_ablation` returns.

    In pair p of blocks, one with communication and one without, with means over counted steps and ranks: the cost by
    ablation is the step of the normal block less that of the silent one, that by the timer the sync lap of the normal
    block. Estimates are means over pairs, with 95 % expanded percentile intervals (Hesterberg, The American
    Statistician 69, 2015) over resamples of whole pairs.
    Raises AnalysisError for fewer than 4 pairs of blocks.
    """
    workers, pairs, steps, blocks = int(found["workers"]), int(found["pairs"]), int(found["steps"]), found["blocks"]
    if pairs < MIN_PAIRS or blocks.get("step_s") is None:
        raise AnalysisError(
            f"ablation: {pairs} pair{'s' * (pairs != 1)} of timed blocks say nothing of their spread, at least "
            f"{MIN_PAIRS} are needed; record a run with more steps"
        )
    places = np.asarray(blocks["pair"]), np.asarray(blocks["silent"], dtype=int), np.asarray(blocks["rank"])
    laps: dict[str, Floats] = {}  # (pairs, 2, workers): normal, silent
    for name in (*rank_steps.PARTS, "step"):
        if (column := blocks.get(f"{name}_s")) is not None:
            laps[name] = np.full((pairs, 2, workers), np.nan)
            laps[name][places] = column
    step = laps["step"]
    sync = None if found["why_no_timer"] else laps.get("sync")

    # One column per quantity, one row per pair: what is resampled together stays together.
    columns: dict[str, Floats] = {
        "step": step[:, 0].mean(axis=1),
        "silent step": step[:, 1].mean(axis=1),
        "ablation": (step[:, 0] - step[:, 1]).mean(axis=1),
        **{f"rank {rank}": step[:, 0, rank] - step[:, 1, rank] for rank in range(workers)},
        **{f"lap {name}": (lap[:, 0] - lap[:, 1]).mean(axis=1) for name, lap in laps.items()},
    }
    if sync is not None:
        columns |= {"timer": sync[:, 0].mean(axis=1), "silent sync": sync[:, 1].mean(axis=1)}
        columns["difference"] = columns["ablation"] - columns["timer"]
    found_of = stats.bootstrap_means(np.stack(list(columns.values()), axis=1), np.random.default_rng(1), 4000)
    estimates = dict(zip(columns, found_of, strict=True))

    difference, cost = estimates.get("difference"), estimates["ablation"]
    grown = {name: estimates.get(f"lap {name}") for name in rank_steps.PARTS}
    # Outside of sync: the laps whose interval is on the side of zero to which the difference goes.
    sign = 1.0 if difference is None or difference.value > 0 else -1.0
    beside = {name: each for name, each in grown.items() if name != "sync" and each is not None}
    moved = [name for name, each in beside.items() if min(sign * each.low, sign * each.high) > 0]
    outside = tuple(sorted(moved, key=lambda name: -sign * beside[name].value))
    why = str(found["why_no_timer"]) or ("" if sync is not None else "the sync lap was not recorded")
    change = f"{_ms(cost.negated())} longer" if cost.value < 0 else f"{_ms(cost)} shorter"
    if difference is None:
        verdict, said = _NO_TIMER, f"; the timer has no answer: {why}"
    else:
        verdict = DIFFER if difference.excludes(0) else AGREE if difference.width <= cost.value else UNRESOLVED
        laps_told = ", ".join(f"{name} {_ms(beside[name])}" for name in outside)
        where = f"communication also costs time outside the sync lap ({laps_told or 'no single lap stands out'})"
        if sign < 0:
            shorter = f", or it makes other laps shorter ({laps_told})" if laps_told else ""
            where = f"the sync lap holds more than communication adds to the step{shorter}"
        said = f", the timer says {_ms(estimates['timer'])}: "
        said += _WORDS[verdict].format(difference=_ms(difference), where=where)
    told = {"workers": workers, "pairs": pairs, "steps": steps, "reduction": str(found["reduction"])}
    told |= {"sentence": f"without communication a step is {change}{said}", "laps_s": grown, "outside": outside}
    told |= {"verdict": verdict, "why_no_timer": why}
    for name in ("step", "silent step", "ablation", "timer", "difference", "silent sync"):
        told[f"{name.replace(' ', '_')}_s"] = estimates.get(name)
    others = found.get("other_cores") or 0.0
    used = f"other programs used {others:.1f} cores of a host while this was measured: a rank that waits leaves its "
    used += "core to them, one that only computes does not, and so the two kinds of steps were not disturbed alike"
    doubts = {
        f"leaving communication out changed the step by {_ms(cost)}: no cost was resolved": cost.low <= 0,
        f"blocks of {steps} counted steps are short; a run with more steps has longer ones": steps < 5,
        used: others >= BUSY_CORES,
    }
    told["ranks_s"] = tuple(estimates[f"rank {rank}"] for rank in range(workers))
    return CommunicationCost(**told, doubts=tuple(text for text, holds in doubts.items() if holds))


def _ms(each: Interval) -> str:
    return f"{each.value * 1e3:.3f} ms [{each.low * 1e3:.3f} to {each.high * 1e3:.3f}]"
