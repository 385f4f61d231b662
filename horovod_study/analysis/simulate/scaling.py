"""A scenario over worker counts, strong or weak: step, throughput, efficiency and the parts of a step, with intervals.

Letters: N workers, b samples per worker, G = N b samples per step, t step. Speedup is over one worker that computes
alone. With strong scaling G is fixed and b is ceil(G / N). Intervals are 95 %: constants that carry one are drawn
together from lognormal distributions, the same numbers for every worker count and scenario, so that ratios have
narrower intervals. One of them is the model's error of an all-reduce on more workers than were measured
(network.error_of); the model of computing and waiting has none. What-ifs, such as `bandwidth=2x`, change a scenario.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field
from scipy import special

from horovod_study.analysis.costs import Floats, Value
from horovod_study.analysis.simulate.network import (
    CHOICES,
    MAX_WORKERS,
    Choice,
    Network,
    allreduce_s,
    costs,
    error_of,
    small_allreduce_s,
    split,
)
from horovod_study.config.doors import Options, Whole, asked
from horovod_study.errors import AnalysisError, ConfigError, nearest

PARTS = ("compute", "slowest", "cycle", "runtime", "latency", "transfer")
"""They add up to the step: mean computing of a worker, waiting for the slowest, for the runtime's look, its overhead
and negotiation, then what is exposed of the all-reduce's latency and of its bytes."""

NEGOTIATIONS: Mapping[str, int] = MappingProxyType({"none": 0, "cached": 1, "full": 5})
"""How many collectives of a few bytes a message takes beforehand."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Compute:
    """The distribution over steps of one worker's computing: measured times, or a mean with a scatter."""

    mean_s: float
    times_s: Floats | None = None  # (m,), ascending; their mean is mean_s
    cv: float = 0.0  # standard deviation / mean of a lognormal distribution, where there are no times

    @property
    def steps(self) -> int | None:
        """How many steps were measured; None without any."""
        return None if self.times_s is None else len(self.times_s)

    def slowest_s(self, n: int, u: Floats) -> Floats:
        """Return the slowest of `n` independent workers for uniform numbers `u`, each in (0, 1), in their shape."""
        if self.times_s is not None:
            m = len(self.times_s)
            place = np.ceil(m * np.exp(np.log(u) / n)).astype(np.int64) - 1
            return np.asarray(self.times_s[np.clip(place, 0, m - 1)])
        # Through the upper tail: U^(1/N) is too near to 1 for large N to say how near.
        spread = math.sqrt(math.log1p(self.cv**2))
        deviate = -special.ndtri(-np.expm1(np.log(u) / n))
        return np.asarray(self.mean_s * np.exp(spread * deviate - spread**2 / 2))

    def drawn_slowest_s(self, n: int, u: Floats) -> Floats:
        """Return `slowest_s` moved by the little that its mean over `u`, (D,), misses the exact mean by."""
        drawn = self.slowest_s(n, u)
        if self.times_s is None and self.cv == 0:
            return drawn
        return drawn + (self.expected_slowest_s(n) - float(drawn.mean()))

    def expected_slowest_s(self, n: int) -> float:
        """Return the exact mean of the slowest of `n` workers.

        For measured times x_1 <= ... <= x_m it is the sum of x_i ((i/m)^n - ((i-1)/m)^n).
        """
        if n == 1 or (self.times_s is None and self.cv == 0):
            return self.mean_s
        if self.times_s is None:
            # of the integral over a distribution that was not measured
            return float(self.slowest_s(n, (np.arange(20_000) + 0.5) / 20_000).mean())
        m = len(self.times_s)
        below = np.exp(n * np.log(np.arange(1, m + 1) / m))
        return float(self.times_s @ np.diff(below, prepend=0.0))


def measured(times_s: Floats) -> Compute:
    """Return the distribution of measured times, (m,), in s; AnalysisError for none, or one that is not positive."""
    times = np.sort(np.asarray(times_s, dtype=np.float64).ravel())
    if not len(times) or not (np.isfinite(times).all() and times[0] > 0):
        raise AnalysisError("simulate: times of computing must be positive numbers of seconds; record the run again")
    return Compute(mean_s=float(times.mean()), times_s=times)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Runtime:
    """What is between backward and the all-reduce: Horovod's cycle, negotiation and fusion, or nothing."""

    overhead_s: float = 0.0  # of each message: packing, calls, threads
    cycle_s: float = 0.0
    negotiation: str = "none"  # one of NEGOTIATIONS
    fusion_bytes: float = math.inf


def communicate(
    slowest_s: Floats,
    *,
    backward_s: Floats,
    gradient_bytes: float,
    buckets: int,
    choices: tuple[Choice, ...],
    runtime: Runtime,
    negotiation_s: Value,
    apart: Floats,
) -> dict[str, Floats]:
    """Return what averaging gradients adds to steps whose slowest worker computes for `slowest_s`, (K, D).

    Those of PARTS that are exposed, what backward has `hidden`, in s, and the `messages` of a step, each (K, D).
    `backward_s`, (K, D): the last part of that, during which buckets become ready. `negotiation_s`: of one message.
    `apart`, (D,): how much earlier the earliest thread looks, as a share of the cycle.
    """
    shape, cycle = np.broadcast_shapes(np.shape(slowest_s), np.shape(backward_s)), runtime.cycle_s
    before_s, slowest_s = np.asarray(runtime.overhead_s + negotiation_s), np.broadcast_to(slowest_s, shape)
    fused = max(1, math.floor(min(float(buckets), runtime.fusion_bytes * buckets / gradient_bytes) + 1e-9))
    # The look that ended the step before was its last message ago; how long that took is known after a first round.
    last_op = np.broadcast_to(before_s + sum(split(choices, gradient_bytes)), shape)
    for _ in range(2 if buckets > 1 and cycle > 0 else 1):
        sent, messages, free, anchor = np.zeros(shape, dtype=np.int64), np.zeros(shape), np.zeros(shape), -last_op
        sums = {name: np.zeros(shape) for name in PARTS[2:]}
        while (active := sent < buckets).any():
            # Bucket j is ready at j / buckets of backward.
            ready = slowest_s - backward_s * (1 - np.minimum(sent + 1, buckets) / buckets)
            look = start = np.maximum(ready, free)
            if cycle > 0:
                soonest = anchor + np.maximum(cycle, last_op)
                # A grain of rounding below a whole number of cycles is that number.
                steps = np.ceil((start + apart * cycle - soonest) / cycle - 1e-9)
                look = np.maximum(soonest + np.maximum(steps, 0) * cycle, start)
            with np.errstate(divide="ignore", invalid="ignore"):
                there = np.floor(buckets * (1 - (slowest_s - (look - apart * cycle)) / backward_s) + 1e-9)
            there = np.where(np.isfinite(there), there, buckets).astype(np.int64)
            until = np.clip(there, sent + 1, np.minimum(sent + fused, buckets))
            latency, transfer = split(choices, gradient_bytes * (until - sent) / buckets)
            for name, each in zip(PARTS[2:], (look - start, before_s, latency, transfer), strict=True):
                sums[name] += np.where(active, each, 0.0)
            op = np.broadcast_to(before_s + latency + transfer, shape)
            free, last_op = np.where(active, look + op, free), np.where(active, op, last_op)
            anchor, sent = np.where(active, look, anchor), np.where(active, until, sent)
            messages += active
    if buckets == 1:
        return {**sums, "hidden": np.zeros(shape), "messages": messages}
    # Which part of a chain of messages is hidden is not defined: all parts alike.
    total, exposed = sum(sums.values()), free - slowest_s
    scale = np.divide(exposed, total, out=np.zeros(shape), where=total > 0)
    shown = {name: each * scale for name, each in sums.items()}
    return {**shown, "hidden": np.maximum(total - exposed, 0.0), "messages": messages}


class Chance:
    """The stratified uniform numbers of D steps, each (D,): for the slowest worker, a slow node, and the phases of
    threads; their strata are shuffled against each other."""

    def __init__(self, steps: int, *, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.slowest, self.slow_node, self.phases = (
            rng.permutation((np.arange(steps) + rng.uniform(0.0, 1.0, steps)) / steps) for _ in range(3)
        )

    def apart(self, n: int) -> Floats:
        """Return how far apart the earliest and the latest of `n` threads look, as a share of a cycle: Beta(n-1, 2)."""
        return np.zeros_like(self.phases) if n == 1 else np.asarray(special.betaincinv(n - 1, 2, self.phases))


# ---------------------------------------------------------------------------------------- a scenario over worker counts

STEPS = 2000  # simulated steps per worker count
DRAWS = 200  # draws of the constants for an interval

COLUMNS = (
    *("scenario", "workers", "nodes", "batch", "step_s", "step_low_s", "step_high_s", "step_p90_s"),
    *("samples_per_s", "samples_per_s_low", "samples_per_s_high", "speedup", "efficiency"),
    *("efficiency_low", "efficiency_high"),
    *(f"{name}_s" for name in PARTS),
    *("allreduce_s", "allreduce_low_s", "allreduce_high_s"),
    *("hidden_s", "messages", "of_baseline", "of_baseline_low", "of_baseline_high"),
)


class _SimulateOptions(Options):
    workers: list[Annotated[Whole, Field(ge=1, le=MAX_WORKERS)]]
    global_batch: Annotated[Whole, Field(ge=1, le=10**12)] | None = None
    seed: Annotated[Whole, Field(ge=0)] = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """How well the constants are known: standard deviations of their logarithms; None is not known."""

    compute: float | None = None
    alpha: float | None = None
    bandwidth: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scenario:
    """Everything a simulated step follows from."""

    compute: Compute  # of a worker with `batch` samples, beside `beside` workers of its node, itself included
    batch: int
    gradient_bytes: float
    network: Network
    algorithm: str = "auto"
    runtime: Runtime = field(default_factory=Runtime)
    scaling: str = "weak"
    buckets: int = 1  # more than one: sent during backward
    backward_share: float = 0.5  # of computing; half of it where no run says
    beside: int = 1
    crowding: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({1: 1.0}))
    """Workers that compute on one node -> how much longer each takes than alone."""
    fixed_share: float = 0.0  # of computing at `batch` that does not depend on the batch
    batch_measured: bool = False  # whether that share comes from two batch sizes
    slow_node: float = 1.0  # how much longer the workers of one node compute
    spread: Spread = field(default_factory=Spread)
    doubts: tuple[str, ...] = ()  # about the constants, where they were found
    sources: Mapping[str, str] = field(default_factory=dict)  # where they come from: constant -> in words

    def __post_init__(self) -> None:
        compute, runtime, switches = self.compute, self.runtime, sum(level.latency_s for level in self.network.levels)
        for what, value, low, high in (  # products of what files and options say; beyond, theirs are no numbers
            ("samples per worker", self.batch, 1, 1e12),
            ("bytes of gradients", self.gradient_bytes, 1e-12, 1e24),
            ("number of buckets", self.buckets, 1, 1e4),
            ("seconds of computing", compute.mean_s, 1e-18, 1e18),
            ("scatter of computing over its mean", compute.cv, 0, 1e18),
            ("time of a slow node over that of others", self.slow_node, 1, 1e18),
            ("overhead of the runtime, s,", runtime.overhead_s, 0, 1e18),
            ("cycle, s,", runtime.cycle_s, 0, 3600),
            ("latency of switches, s,", switches, 0, 1e18),
            ("workers per node", self.network.workers_per_node, 1, MAX_WORKERS),
            ("servers", self.network.servers, 1, MAX_WORKERS),
        ):
            if not low <= value <= high:
                raise ConfigError(f"simulate: {what} is {value:,}; allowed: {low:,} to {high:,.0f}")

    def longer(self, workers_on_node: int) -> float:
        """Return computing beside so many workers of a node / computing as `compute` was measured.

        Between measured numbers of workers it is interpolated, beyond the most it grows by the slope of the last two.
        """
        known = sorted(self.crowding)
        factors = [self.crowding[each] for each in known]
        here, there = np.interp([workers_on_node, self.beside], known, factors)
        if workers_on_node > known[-1] and len(known) > 1:
            slope = max(0.0, (factors[-1] - factors[-2]) / (known[-1] - known[-2]))
            here += slope * (workers_on_node - known[-1])
        return float(here / there)

    def crowding_error(self, workers_on_node: int) -> float:
        """Return the standard deviation of the logarithm of `longer` there: half of what is extrapolated of it."""
        most = max(self.crowding)
        return math.log(self.longer(max(workers_on_node, most)) / self.longer(most)) / 2

    def local_batch(self, n: int, global_batch: int) -> int:
        """Return the samples of the worker with the largest share of `n`."""
        return self.batch if self.scaling == "weak" else math.ceil(global_batch / n)

    def batch_factor(self, batch: int) -> float:
        """Return computing with `batch` samples / computing with `self.batch`: a + b batch, by `fixed_share`."""
        return self.fixed_share + (1 - self.fixed_share) * batch / self.batch


def simulate(
    scenarios: Mapping[str, Scenario], workers: Sequence[int], *, global_batch: int | None = None, seed: int = 1
) -> pd.DataFrame:
    """Return COLUMNS for each scenario and worker count, in this order; the first scenario is the baseline of ratios.

    `global_batch`: of strong scaling; by default the batch of one worker times the smallest worker count. Raises
    ConfigError for worker counts that are not from 1 to 10,000,000, for a global batch below 1 or with weak scaling,
    and for a negative seed.
    """
    counts = list(dict.fromkeys(workers))
    asked(_SimulateOptions, {"workers": counts, "global_batch": global_batch, "seed": seed}, "simulate")
    if not counts or (global_batch is not None and all(each.scaling == "weak" for each in scenarios.values())):
        fixed = "--global-batch is for a fixed batch per step; add --scaling strong, or leave it out"
        raise ConfigError(f"simulate: {fixed if counts else 'no worker count was given; name some with --workers'}")
    fine, coarse = Chance(STEPS, seed=seed), Chance(100, seed=seed + 1)
    normal = np.random.default_rng(seed + 2).standard_normal((5, DRAWS, 1))
    rows: list[dict[str, Any]] = []
    baseline: dict[int, tuple[float, tuple[Floats, Floats, Floats] | None]] = {}
    for name, scenario in scenarios.items():
        total = global_batch or scenario.batch * min(counts)
        for n in counts:
            row = _central(scenario, n, total, fine)
            relative = _relative(scenario, n, total, coarse, normal)
            base_rate, base_relative = baseline.setdefault(n, (row["samples_per_s"], relative))
            row |= {"scenario": name, "of_baseline": row["samples_per_s"] / base_rate}
            if relative is not None:
                step, efficiency, reduced = relative
                drawn = {"step{}_s": step, "samples_per_s{}": 1 / step, "efficiency{}": efficiency}
                drawn["allreduce{}_s"] = reduced
                if base_relative is not None:
                    drawn["of_baseline{}"] = base_relative[0] / step
                for column, each in drawn.items():
                    value = row[column.format("")]
                    low, high = np.quantile(value * each, [0.025, 0.975])
                    row[column.format("_low")] = float(min(low, value))
                    row[column.format("_high")] = float(max(high, value))
            rows.append(row)
    ends = {name: "float64" for name in COLUMNS if "_low" in name or "_high" in name}
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(ends)


def _central(scenario: Scenario, n: int, global_batch: int, luck: Chance) -> dict[str, Any]:
    """Return the numbers of one worker count from the constants as they are."""
    parts, steps = _steps(scenario, n, global_batch, luck, scenario.network, scenario.runtime)
    step_s = float(steps.mean())
    weak = scenario.scaling == "weak"
    # One worker that is given the whole work of a step: N times the batch when it is fixed, and with it N steps.
    one = scenario.batch if weak else global_batch
    alone_s = scenario.compute.mean_s * scenario.longer(1)
    alone_rate = one / (alone_s * scenario.batch_factor(one))
    rate = (n * scenario.batch if weak else global_batch) / step_s
    row: dict[str, Any] = {"workers": n, "nodes": scenario.network.nodes(n)}
    row |= {"batch": scenario.local_batch(n, global_batch), "speedup": rate / alone_rate}
    row |= {"step_s": step_s, "step_p90_s": float(np.quantile(steps, 0.9)), "samples_per_s": rate}
    row |= {f"{name}_s": float(np.mean(parts[name])) for name in (*PARTS, "hidden")}
    row |= {"efficiency": rate / alone_rate / n, "messages": float(np.mean(parts["messages"]))}
    reduced = allreduce_s(scenario.network, scenario.algorithm, n, scenario.gradient_bytes)
    return row | {"allreduce_s": float(reduced)}


def _steps(
    scenario: Scenario, n: int, global_batch: int, luck: Chance, network: Network, runtime: Runtime, slower: Value = 1.0
) -> tuple[dict[str, Floats], Floats]:
    """Return the parts of simulated steps, each broadcastable to (K, D), and the steps, (K, D)."""
    on_node = min(n, scenario.network.workers_per_node)
    factor = scenario.longer(on_node) * scenario.batch_factor(scenario.local_batch(n, global_batch)) * slower
    slow = min(n, on_node) if scenario.slow_node > 1 else 0
    mean_s = scenario.compute.mean_s * (n - slow + slow * scenario.slow_node) / n
    slowest_s = scenario.slow_node * scenario.compute.drawn_slowest_s(slow, luck.slow_node) if slow else np.zeros(1)
    if n > slow:
        slowest_s = np.maximum(slowest_s, scenario.compute.drawn_slowest_s(n - slow, luck.slowest))
    compute_s, last_s = np.atleast_2d(mean_s * factor), np.atleast_2d(slowest_s * factor)
    zero = np.zeros((1, 1))
    parts: dict[str, Floats] = {"compute": compute_s, "slowest": last_s - compute_s}
    if n == 1:
        parts |= dict.fromkeys(("cycle", "runtime", "latency", "transfer", "hidden", "messages"), zero)
        return parts, np.asarray(last_s)
    exposed = communicate(
        last_s + np.zeros_like(np.atleast_2d(np.asarray(network.inter.alpha_s))),
        backward_s=last_s * scenario.backward_share,
        gradient_bytes=scenario.gradient_bytes,
        buckets=scenario.buckets,
        choices=costs(network, scenario.algorithm, n),
        runtime=runtime,
        negotiation_s=NEGOTIATIONS[runtime.negotiation] * small_allreduce_s(network, n),
        apart=luck.apart(n),
    )
    added_s = exposed["cycle"] + exposed["runtime"] + exposed["latency"] + exposed["transfer"]
    return parts | exposed, np.asarray(last_s + added_s)


def _relative(
    scenario: Scenario, n: int, global_batch: int, luck: Chance, normal: Floats
) -> tuple[Floats, Floats, Floats] | None:
    """Return draws of the step, the efficiency and the all-reduce over these, each (DRAWS,), from the constants.

    None where nothing has an interval. Slower computing slows the worker alone as well, so efficiency has less of it.
    """
    spread, error = scenario.spread, error_of(scenario.network, scenario.algorithm, n)
    known = [spread.compute, spread.alpha, spread.bandwidth]
    if known == [None] * 3 and error == 0:
        return None
    widths = [each or 0.0 for each in known] + [error]
    widths.append(scenario.crowding_error(min(n, scenario.network.workers_per_node)))
    # The constants as they are come first: only ratios to them are used, so that few steps per draw are enough.
    compute, alpha, bandwidth, model, crowd = (
        np.concatenate([np.ones((1, 1)), np.exp(width * each)]) for width, each in zip(widths, normal, strict=True)
    )
    there, changes = scenario.network, {"alpha": alpha * model, "bandwidth": bandwidth / model}
    network = replace(there, intra=there.intra.times(**changes), inter=there.inter.times(**changes))
    _, steps = _steps(scenario, n, global_batch, luck, network, scenario.runtime, compute * crowd)
    mean = np.broadcast_to(steps, (DRAWS + 1, steps.shape[1])).mean(axis=1)
    step = mean[1:] / mean[0]
    reduced = allreduce_s(network, scenario.algorithm, n, scenario.gradient_bytes)
    reduced = np.broadcast_to(reduced, (DRAWS + 1, 1))[:, 0]
    return step, compute[1:, 0] / step, reduced[1:] / reduced[0] if n > 1 else np.ones(DRAWS)


def doubts(scenario: Scenario, workers: Sequence[int], *, global_batch: int | None = None) -> tuple[str, ...]:
    """Return what to doubt about a scenario at these worker counts, in words."""
    most, total, compute = max(workers), global_batch or scenario.batch * min(workers), scenario.compute
    steps, batches = compute.steps or math.inf, {scenario.local_batch(n, total) for n in workers}
    strong, beside = scenario.scaling == "strong", scenario.crowding
    on_node, cycle_ms = min(most, scenario.network.workers_per_node), scenario.runtime.cycle_s * 1e3
    found = {
        "computing has no scatter: nobody waits for a slow worker, a lower bound of the step": most > 1
        and compute.steps is None
        and compute.cv == 0,
        f"the slowest of {most:,} workers comes from {steps:,} measured steps: what is rarer than that is not in it, a "
        "lower bound of waiting": most > steps,
        f"computing is taken as proportional to the batch (known for {scenario.batch}, used for {min(batches)} to "
        f"{max(batches)}): give runs with two batch sizes": batches != {scenario.batch} and not scenario.batch_measured,
        f"beyond {total:,} workers there are fewer samples per step than workers": strong and most > total,
        f"computing is known with {scenario.beside} at a time on a node and is used for {on_node}: give --beside runs "
        "made at the same time": len(beside) == 1 and on_node != scenario.beside,
        f"{on_node} workers on a node, and {max(beside)} at most were measured together: how they slow each other down "
        "is extrapolated": len(beside) > 1 and on_node > max(beside),
        f"no worker was measured alone on a node: speedup and efficiency are over one beside {min(beside) - 1}, and "
        "too high": min(beside) > 1,
        f"waiting for a cycle of {cycle_ms:g} ms supposes that the workers' threads look at independent moments; those "
        "that look together wait up to a cycle less": cycle_ms > 0 and most > 1,
        "work is split evenly, also for the slow node": strong and scenario.slow_node > 1,
    }
    return tuple(dict.fromkeys([*scenario.doubts, *(text for text, holds in found.items() if holds)]))


def all_doubts(
    scenarios: Mapping[str, Scenario], workers: Sequence[int], *, global_batch: int | None = None
) -> tuple[str, ...]:
    """Return the doubts of all scenarios, each once; those that the baseline has not are said with their scenario."""
    told = {name: doubts(scenario, workers, global_batch=global_batch) for name, scenario in scenarios.items()}
    common = next(iter(told.values()))
    further = [f"{name}: {each}" for name, texts in told.items() for each in texts if each not in common]
    return tuple(dict.fromkeys([*common, *further]))


# ------------------------------------------------------------------------------------------------------- what-ifs


class _Values(NamedTuple):
    """What a value may be: a factor, a whole number, a number with a unit, one of some words."""

    wanted: str
    least: float = math.inf  # of factors; none are allowed
    most: int = 0  # of whole numbers from 1 on
    unit: str = ""  # of a number, which may be left out
    words: Mapping[str, Any] = {}

    def read(self, value: str) -> Any:
        """Return the value of a word, None where it is not allowed; a factor is a float."""
        if value in self.words:
            return self.words[value]
        if self.unit and (match := re.fullmatch(rf"([0-9]*\.?[0-9]+)({self.unit})?", value.lower())):
            return float(match[1])
        if re.fullmatch(r"[0-9]{1,12}", value) and 1 <= int(value) <= self.most:
            return int(value)
        match = re.fullmatch(r"([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)x", value.lower())
        return float(match[1]) if match and self.least <= float(match[1]) <= 1e9 else None


def what_if(baseline: Scenario, texts: Sequence[str]) -> dict[str, Scenario]:
    """Return the baseline and what each text makes of it, by their texts.

    Raises ConfigError, naming the text, what is allowed and the nearest known word.
    """
    found = {"baseline": baseline}
    for text in texts:
        scenario, words = baseline, [word.strip() for word in text.split(",")]
        for word in words:
            key, _, given = word.partition("=")
            if not given or key not in CHANGES:
                asked = f"KEY=VALUE, for instance bandwidth=2x or cycle=0; KEY is one of {', '.join(CHANGES)}"
                raise ConfigError(f"--what-if {word}: must be {asked}{nearest(key, CHANGES)}")
            values, change = CHANGES[key]
            if (value := values.read(given)) is None:
                raise ConfigError(f"--what-if {word}: must be {values.wanted}{nearest(given, values.words)}")
            scenario = change(scenario, value)
        found[",".join(words)] = scenario
    return found


def _with(scenario: Scenario, part: str, **changes: Any) -> Scenario:
    return replace(scenario, **{part: replace(getattr(scenario, part), **changes)})


def _links(scenario: Scenario, *which: str, **factors: float) -> Scenario:
    return _with(scenario, "network", **{name: getattr(scenario.network, name).times(**factors) for name in which})


def _latency(scenario: Scenario, factor: float) -> Scenario:
    levels = tuple(replace(level, latency_s=level.latency_s * factor) for level in scenario.network.levels)
    return _links(_with(scenario, "network", levels=levels), "intra", "inter", alpha=factor)


def _overhead(scenario: Scenario, factor: float) -> Scenario:
    changed = {"negotiation": "none"} if factor == 0 else {}
    return _with(scenario, "runtime", overhead_s=scenario.runtime.overhead_s * factor, **changed)


def _batch(scenario: Scenario, value: float) -> Scenario:
    batch = round(scenario.batch * value) if isinstance(value, float) else value
    changed, times, doubts = replace(scenario, batch=batch), scenario.batch_factor(batch), scenario.doubts
    if not scenario.batch_measured and batch != scenario.batch:
        doubt = f"batch {batch}: computing is taken as proportional to the batch (known for {scenario.batch}); "
        doubts += (f"{doubt}large batches are quicker per sample: give runs with two batch sizes",)
    return replace(_computing(changed, times), fixed_share=scenario.fixed_share / times, doubts=doubts)


def _computing(scenario: Scenario, factor: float) -> Scenario:
    known = scenario.compute
    times_s = None if known.times_s is None else known.times_s * factor
    return _with(scenario, "compute", mean_s=known.mean_s * factor, times_s=times_s)


def _gradients(scenario: Scenario, factor: float) -> Scenario:
    note = "fewer bytes of gradients: the time to convert or compress them is not in it"
    return replace(scenario, gradient_bytes=scenario.gradient_bytes * factor, doubts=(note, *scenario.doubts))


_TIMES = "a factor greater than 0 with an x, for instance 2x or 0.5x; allowed: 1e-09x to 1e+09x"
_FACTOR, _OR_ZERO = _Values(_TIMES, least=1e-9), _Values(f"0, or {_TIMES}", least=1e-9, words={"0": 0.0})
_COUNT = _Values(f"a whole number from 1 to {MAX_WORKERS:,}", most=MAX_WORKERS)
_SHARES = {"fp32": 1.0, "tf32": 1.0, "fp16": 0.5, "bf16": 0.5, "fp8": 0.25}  # of a gradient; scenarios are of float32
_BYTES = _Values(f"one of {', '.join(_SHARES)}, or a factor such as 0.1x", least=1e-9, words=_SHARES)
_SAMPLES = _Values("a whole number of at least 1, or a factor such as 8x", least=1e-9, most=10**12)
_EVEN = _Values("none (all workers always take the mean time)", words={"none": "none"})
_SLOWER = _Values("a factor from 1x on, for instance 1.5x: a slow node takes at least 1x as long", least=1.0)
_FUSED = _Values("MiB of a fused message, for instance 0 (nothing is fused) or 64", unit="mb")
_CYCLE = _Values("milliseconds, for instance 0 (new gradients wake it), 1 or 5ms", unit="ms")
_CACHE = _Values(
    "on (negotiation from the response cache), off, or none (no negotiation)",
    words={"on": "cached", "off": "full", "none": "none"},
)

CHANGES: Mapping[str, tuple[_Values, Callable[[Scenario, Any], Scenario]]] = {
    "bandwidth": (_FACTOR, lambda it, factor: _links(it, "intra", "inter", bandwidth=factor)),
    "intra-bandwidth": (_FACTOR, lambda it, factor: _links(it, "intra", bandwidth=factor)),
    "inter-bandwidth": (_FACTOR, lambda it, factor: _links(it, "inter", bandwidth=factor)),
    "latency": (_OR_ZERO, _latency),
    "algorithm": (
        _Values(f"one of {', '.join(CHOICES)}", words={name: name for name in CHOICES}),
        lambda it, name: replace(it, algorithm=name),
    ),
    "servers": (_COUNT, lambda it, count: replace(_with(it, "network", servers=count), algorithm="ps")),
    "workers-per-node": (_COUNT, lambda it, count: _with(it, "network", workers_per_node=count)),
    "gradients": (_BYTES, _gradients),
    "batch": (_SAMPLES, _batch),
    "compute": (_FACTOR, _computing),
    "stragglers": (_EVEN, lambda it, _: replace(it, compute=Compute(mean_s=it.compute.mean_s))),
    "slow-node": (_SLOWER, lambda it, factor: replace(it, slow_node=factor)),
    "buckets": (_Values("a whole number from 1 to 10,000", most=10_000), lambda it, count: replace(it, buckets=count)),
    "fusion": (_FUSED, lambda it, mib: _with(it, "runtime", fusion_bytes=mib * 2**20)),
    "cycle": (_CYCLE, lambda it, ms: _with(it, "runtime", cycle_s=ms / 1e3)),
    "cache": (_CACHE, lambda it, kind: _with(it, "runtime", negotiation=kind)),
    "overhead": (_OR_ZERO, _overhead),
}
"""What can be asked: what its values may be, and what it does to a scenario."""
