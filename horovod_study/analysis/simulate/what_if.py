"""What-if: words such as `bandwidth=2x`, `cycle=0` or `algorithm=ps`, several joined by commas, change a scenario."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from horovod_study.analysis.simulate.network import CHOICES, MAX_WORKERS
from horovod_study.analysis.simulate.scaling import Scenario
from horovod_study.analysis.simulate.step import Compute
from horovod_study.errors import ConfigError, nearest

_SMALLEST = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What a value may be (a factor, a whole number, a number with a unit, one of some words), and what it changes."""

    to: Callable[[Scenario, Any], Scenario]
    wanted: str
    least: float = math.inf  # of factors; none are allowed
    most: int = 0  # of whole numbers from 1 on
    unit: str = ""  # of a number, which may be left out
    words: Mapping[str, Any] = field(default_factory=dict)

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
            known = CHANGES.get(key) if given else None
            if known is None:
                asked = f"KEY=VALUE, for instance bandwidth=2x or cycle=0; KEY is one of {', '.join(CHANGES)}"
                raise ConfigError(f"--what-if {word}: must be {asked}{nearest(key, CHANGES)}")
            if (value := known.read(given)) is None:
                raise ConfigError(f"--what-if {word}: must be {known.wanted}{nearest(given, known.words)}")
            scenario = known.to(scenario, value)
        found[",".join(words)] = scenario
    return found


def _network(scenario: Scenario, **changes: Any) -> Scenario:
    return replace(scenario, network=replace(scenario.network, **changes))


def _runtime(scenario: Scenario, **changes: Any) -> Scenario:
    return replace(scenario, runtime=replace(scenario.runtime, **changes))


def _links(scenario: Scenario, *which: str, **factors: float) -> Scenario:
    return _network(scenario, **{name: getattr(scenario.network, name).times(**factors) for name in which})


def _latency(scenario: Scenario, factor: float) -> Scenario:
    levels = tuple(replace(level, latency_s=level.latency_s * factor) for level in scenario.network.levels)
    return _links(_network(scenario, levels=levels), "intra", "inter", alpha=factor)


def _overhead(scenario: Scenario, factor: float) -> Scenario:
    changed: dict[str, Any] = {"negotiation": "none"} if factor == 0 else {}
    return _runtime(scenario, overhead_s=scenario.runtime.overhead_s * factor, **changed)


def _batch(scenario: Scenario, value: float) -> Scenario:
    batch = round(scenario.batch * value) if isinstance(value, float) else value
    changed = replace(scenario, batch=batch)
    times, doubts = scenario.batch_factor(batch), scenario.doubts
    if not scenario.batch_measured and batch != scenario.batch:
        doubt = f"batch {batch}: computing is taken as proportional to the batch (known for {scenario.batch}); "
        doubts += (f"{doubt}large batches are quicker per sample: give runs with two batch sizes",)
    return replace(_computing(changed, times), fixed_share=scenario.fixed_share / times, doubts=doubts)


def _computing(scenario: Scenario, factor: float) -> Scenario:
    known = scenario.compute
    times_s = None if known.times_s is None else known.times_s * factor
    return replace(scenario, compute=replace(known, mean_s=known.mean_s * factor, times_s=times_s))


def _gradients(scenario: Scenario, factor: float) -> Scenario:
    note = "fewer bytes of gradients: the time to convert or compress them is not in it"
    return replace(scenario, gradient_bytes=scenario.gradient_bytes * factor, doubts=(note, *scenario.doubts))


_TIMES = "a factor greater than 0 with an x, for instance 2x or 0.5x; allowed: 1e-09x to 1e+09x"
_FACTOR: dict[str, Any] = {"wanted": _TIMES, "least": _SMALLEST}
_FACTOR_OR_ZERO: dict[str, Any] = {"wanted": f"0, or {_TIMES}", "least": _SMALLEST, "words": {"0": 0.0}}
_COUNT: dict[str, Any] = {"wanted": f"a whole number from 1 to {MAX_WORKERS:,}", "most": MAX_WORKERS}
_SHARES = {"fp32": 1.0, "tf32": 1.0, "fp16": 0.5, "bf16": 0.5, "fp8": 0.25}  # of a gradient; scenarios are of float32

CHANGES: Mapping[str, _Change] = {
    "bandwidth": _Change(**_FACTOR, to=lambda it, factor: _links(it, "intra", "inter", bandwidth=factor)),
    "intra-bandwidth": _Change(**_FACTOR, to=lambda it, factor: _links(it, "intra", bandwidth=factor)),
    "inter-bandwidth": _Change(**_FACTOR, to=lambda it, factor: _links(it, "inter", bandwidth=factor)),
    "latency": _Change(**_FACTOR_OR_ZERO, to=_latency),
    "algorithm": _Change(
        wanted=f"one of {', '.join(CHOICES)}",
        words={name: name for name in CHOICES},
        to=lambda it, name: replace(it, algorithm=name),
    ),
    "servers": _Change(**_COUNT, to=lambda it, count: replace(_network(it, servers=count), algorithm="ps")),
    "workers-per-node": _Change(**_COUNT, to=lambda it, count: _network(it, workers_per_node=count)),
    "gradients": _Change(
        wanted=f"one of {', '.join(_SHARES)}, or a factor such as 0.1x", least=_SMALLEST, words=_SHARES, to=_gradients
    ),
    "batch": _Change(
        wanted="a whole number of at least 1, or a factor such as 8x", least=_SMALLEST, most=10**12, to=_batch
    ),
    "compute": _Change(**_FACTOR, to=_computing),
    "stragglers": _Change(
        wanted="none (all workers always take the mean time)",
        words={"none": "none"},
        to=lambda it, _: replace(it, compute=Compute(mean_s=it.compute.mean_s)),
    ),
    "slow-node": _Change(
        wanted="a factor from 1x on, for instance 1.5x: a slow node takes at least 1x as long",
        least=1.0,
        to=lambda it, factor: replace(it, slow_node=factor),
    ),
    "buckets": _Change(
        wanted="a whole number from 1 to 10,000", most=10_000, to=lambda it, count: replace(it, buckets=count)
    ),
    "fusion": _Change(
        wanted="MiB of a fused message, for instance 0 (nothing is fused) or 64",
        unit="mb",
        to=lambda it, mib: _runtime(it, fusion_bytes=mib * 2**20),
    ),
    "cycle": _Change(
        wanted="milliseconds, for instance 0 (new gradients wake it), 1 or 5ms",
        unit="ms",
        to=lambda it, ms: _runtime(it, cycle_s=ms / 1e3),
    ),
    "cache": _Change(
        wanted="on (negotiation from the response cache), off, or none (no negotiation)",
        words={"on": "cached", "off": "full", "none": "none"},
        to=lambda it, kind: _runtime(it, negotiation=kind),
    ),
    "overhead": _Change(**_FACTOR_OR_ZERO, to=_overhead),
}
"""What can be asked: what its values may be, and what it does to a scenario."""
