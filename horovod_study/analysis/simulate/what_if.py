"""What-if: words such as `bandwidth=2x`, `cycle=0` or `algorithm=ps`, several joined by commas, change a scenario."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from horovod_study.analysis.simulate.network import CHOICES, MAX_WORKERS
from horovod_study.analysis.simulate.scaling import Scenario
from horovod_study.analysis.simulate.step import Compute
from horovod_study.errors import ConfigError, nearest


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
    "buckets": (
        _Values("a whole number from 1 to 10,000", most=10_000),
        lambda it, count: replace(it, buckets=count),
    ),
    "fusion": (_FUSED, lambda it, mib: _with(it, "runtime", fusion_bytes=mib * 2**20)),
    "cycle": (_CYCLE, lambda it, ms: _with(it, "runtime", cycle_s=ms / 1e3)),
    "cache": (_CACHE, lambda it, kind: _with(it, "runtime", negotiation=kind)),
    "overhead": (_OR_ZERO, _overhead),
}
"""What can be asked: what its values may be, and what it does to a scenario."""
