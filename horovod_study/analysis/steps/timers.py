"""What measuring costs, from blocks of steps that alternated: overheads with intervals, and what they resolve.

Only blocks of one round are compared: for each round r the logarithm of the ratio of a way's seconds to those of mode
off. What the machine does for longer than a round cancels in it, and a disturbance makes one ratio wrong, in either
direction. The typical ratio is the mean of the logarithms without the smallest and the largest fifth. A plain mean
would follow the disturbances, a median wastes a third of the rounds when there are none, and whole blocks are compared,
not medians of steps: what costs little now and then, as collecting garbage does, belongs to the cost.

`analysis/paired.py`, for slices of tenths of a second, moves stalls alone. A block is as short as a disturbance, which
then makes that interval much the wider one (tests/test_timers.py); nor is there a second launch here.

The 95 % interval is Tukey and McLaughlin's for a trimmed mean (`stats.trimmed_mean`). A test simulates that it holds
the truth as often as it says, with noise that has outliers.

Writing rows is rare and timed by itself; what it takes per step is added, for mode off as well as for the others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from horovod_study.analysis.stats import Interval, finite_or_none, half_width, trimmed_mean
from horovod_study.records import finite

_LIMIT_PERCENT = 0.5
"""What measuring may cost."""

OFF, _CONTROL = "off", "control"


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    """What one way of measuring adds to a step with the timers off."""

    variant: str
    step_s: float  # median over the rounds, writing included
    percent: Interval  # of the step with mode off; no ends with fewer rounds than an interval takes
    writing_percent: float  # of it, rows that are written more or less than with mode off
    calls_us: float | None  # microseconds a step that the calls take alone, writing included; None beside
    edges_percent: float | None = None  # with its start and stop every `edges_steps` steps; None without
    edges_steps: int | None = None

    def verdict(self, limit_percent: float) -> str:
        """Return `yes` if it costs less than the limit, `no` if more, or `not resolved`."""
        if self.percent.high < limit_percent:
            return "yes"
        return "no" if self.percent.low > limit_percent else "not resolved"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, the ends of the interval beside its number."""
        ends = self.percent.to_dict()
        found = {"way": self.variant, "step_s": self.step_s, "percent": ends["value"]}
        rest = ("writing_percent", "calls_us", "edges_percent", "edges_steps")
        return {**found, "low": ends["low"], "high": ends["high"], **{name: getattr(self, name) for name in rest}}


@dataclass(frozen=True, kw_only=True, slots=True)
class TimerCost:
    """All ways at one batch size with one number of workers."""

    runtime: str
    workers: int
    batch: int
    device: str
    rounds: int
    steps_per_block: int
    seconds: float
    off_step_s: float
    limit_percent: float
    control: Overhead
    variants: tuple[Overhead, ...]
    doubts: tuple[str, ...]

    def variant(self, name: str) -> Overhead:
        """Return the way of this name."""
        return next(each for each in self.variants if each.variant == name)

    @property
    def verdict(self) -> str:
        """Say what mode light costs, and whether that is below the limit."""
        light = self.variant("light")
        answer = light.verdict(self.limit_percent)
        text = f"light costs {interval(light)} of a step; below {self.limit_percent:g} %: {answer}"
        if answer == "not resolved" and light.percent.known:
            share = light.percent.width / self.limit_percent  # half the limit is wanted as half the interval
            text += f" (with this noise it takes about {self.seconds * max(1.5, share**2):,.0f} s)"
        if light.calls_us is not None:
            text += f"; the calls alone take {light.calls_us:.1f} us, {light.calls_us / self.off_step_s / 1e4:.2f} %"
        return text

    @property
    def resolution(self) -> float | None:
        """Half of the control's interval in per cent: smaller differences are not seen."""
        return finite_or_none(self.control.percent.width / 2)

    def exceeds(self, percent: float) -> bool:
        """Return whether mode light certainly costs more than `percent`: its whole interval is above."""
        light = self.variant("light").percent
        return (light.low if light.known else light.value) > percent

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, with the verdict in words."""
        plain = {each.name: finite(getattr(self, each.name)) for each in fields(self)}
        return {**plain, "resolution_percent": self.resolution, "verdict": self.verdict}


def interval(each: Overhead) -> str:
    """Return `0.05 % [-0.10, 0.20]`."""
    percent = each.percent
    return f"{percent.value:.2f} %" + (f" [{percent.low:.2f}, {percent.high:.2f}]" if percent.known else "")


def timer_cost(case: Mapping[str, Any], *, limit_percent: float = _LIMIT_PERCENT) -> TimerCost:
    """Return what `measure.timers.measure` found in one launch as overheads of mode off's step."""
    steps = {name: int(count) for name, count in case["steps"].items()}
    every = {name: int(count) for name, count in case["every"].items()}
    blocks = {name: np.asarray(values, dtype=np.float64) / steps[name] for name, values in case["block_s"].items()}
    off = blocks[OFF]
    base_s = math.exp(trimmed_mean(np.log(off))[0])
    writing = {name: trimmed_mean(np.array([s / rows for rows, s in found])) for name, found in case["drains"].items()}
    nothing = (0.0, 0.0, 0.0)
    around = {name: np.asarray(values, dtype=np.float64) / steps[name] for name, values in case["around_s"].items()}

    def overhead(name: str) -> Overhead:
        beside = off[:: every[name]]  # of the same rounds
        logs = np.log(blocks[name] / beside)
        mean, error, freedom = trimmed_mean(logs)
        written = [writing.get(each, nothing) for each in (name, OFF)]
        more = (written[0][0] - written[1][0]) / base_s
        center = math.expm1(mean) + more
        # The writing's own scatter is added in square: it is timed apart from the blocks.
        spread = math.hypot(math.exp(mean) * error, *(one[1] / base_s for one in written))
        half = half_width(spread, freedom) if len(logs) >= 5 else math.nan
        edges = None
        if name in around:
            edges = 100 * math.expm1(trimmed_mean(np.log((blocks[name] + around[name]) / beside))[0])
        return Overhead(
            variant=name,
            step_s=float(np.median(blocks[name])) + written[0][0],
            percent=Interval(value=100 * center, low=100 * (center - half), high=100 * (center + half)),
            writing_percent=100 * more,
            calls_us=1e6 * case["calls_s"][name] if name in case["calls_s"] else None,
            edges_percent=edges,
            edges_steps=steps[name] if name in around else None,
        )

    control = overhead(_CONTROL)
    return TimerCost(
        runtime=case["runtime"],
        workers=int(case["workers"]),
        batch=int(case["batch"]),
        device=case["device"],
        rounds=len(off),
        steps_per_block=steps[OFF],
        seconds=float(case["seconds"]),
        off_step_s=float(np.median(off)) + writing.get(OFF, nothing)[0],
        limit_percent=limit_percent,
        control=control,
        variants=tuple(overhead(name) for name in case["ways"] if name not in (OFF, _CONTROL)),
        doubts=_doubts(case, control, limit_percent),
    )


def _doubts(case: Mapping[str, Any], control: Overhead, limit_percent: float) -> tuple[str, ...]:
    found = []
    rounds = len(case["block_s"][OFF])
    if rounds < 20:
        found.append(f"only {rounds} rounds: the intervals are poorly supported; give it more --seconds")
    if control.percent.excludes(0):
        found.append(
            f"the control, mode off against itself, differs by {interval(control)}: by chance once in twenty "
            "times, else the machine was disturbed; measure again when it is quiet"
        )
    if (half := control.percent.width / 2) > limit_percent:
        found.append(f"differences below {half:.2g} % are not seen here; give it more --seconds, or a quieter machine")
    others = case["other_cores"]  # None: the system does not report
    if others is not None and others > 0.1:
        found.append(f"other programs used {others:.2g} cores meanwhile: measure again when the machine is quiet")
    fewest = min((len(drains) for name, drains in case["drains"].items() if name in ("off", "light")), default=0)
    if fewest < 3:
        found.append(f"writing was timed {fewest} time{'s' * (fewest != 1)} per mode: its share is rough")
    return tuple(found)


def summary(costs: Sequence[TimerCost]) -> list[str]:
    """Return one sentence per case."""
    return [f"batch {each.batch}, {each.workers} worker{'s' * (each.workers > 1)}: {each.verdict}" for each in costs]
