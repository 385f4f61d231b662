"""What-if: words such as `bandwidth=2x`, `cycle=0` or `algorithm=ps`, several joined by commas, change a scenario."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from horovod_study.analysis.simulate.network import CHOICES, MAX_WORKERS
from horovod_study.analysis.simulate.scaling import Scenario
from horovod_study.analysis.simulate.step import Compute
from horovod_study.errors import ConfigError, nearest

Change: TypeAlias = Callable[[Scenario, Any], Scenario]  # from a scenario and a value to the changed scenario


@dataclass(frozen=True, kw_only=True, slots=True)
class _Value:
    """What a value may be: a factor (`2x`), a whole number, a number with a unit, or one of some words."""

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
        scenario = baseline
        words = [word.strip() for word in text.split(",")]
        for word in words:
            key, _, given = word.partition("=")
            known, change = CHANGES.get(key if given else "", _UNKNOWN)
            if (value := known.read(given)) is None:
                close = nearest(given, known.words) if known is not _UNKNOWN[0] else nearest(key, CHANGES)
                raise ConfigError(f"--what-if {word}: must be {known.wanted}{close}")
            scenario = change(scenario, value)
        found[",".join(words)] = scenario
    return found


def _links(*which: str) -> Change:
    def change(scenario: Scenario, factor: float) -> Scenario:
        faster = {name: getattr(scenario.network, name).times(bandwidth=factor) for name in which}
        return replace(scenario, network=replace(scenario.network, **faster))

    return change


def _field(name: str, of: Callable[[Any], Any] = lambda value: value) -> Change:
    """Return what gives a field of the scenario, or behind a dot one of its network or runtime, another value."""
    part, _, field = name.rpartition(".")

    def change(scenario: Scenario, value: Any) -> Scenario:
        changed = {field: of(value)}
        return replace(scenario, **({part: replace(getattr(scenario, part), **changed)} if part else changed))

    return change


def _latency(scenario: Scenario, factor: float) -> Scenario:
    network = scenario.network
    links = {name: getattr(network, name).times(alpha=factor) for name in ("intra", "inter")}
    levels = tuple(replace(level, latency_s=level.latency_s * factor) for level in network.levels)
    return replace(scenario, network=replace(network, **links, levels=levels))


def _overhead(scenario: Scenario, factor: float) -> Scenario:
    changed: dict[str, Any] = {"negotiation": "none"} if factor == 0 else {}
    overhead_s = scenario.runtime.overhead_s * factor
    return replace(scenario, runtime=replace(scenario.runtime, overhead_s=overhead_s, **changed))


def _batch(scenario: Scenario, value: float) -> Scenario:
    batch = round(scenario.batch * value) if isinstance(value, float) else value
    changed = replace(scenario, batch=batch)
    times, doubts = scenario.batch_factor(batch), scenario.doubts
    if not scenario.batch_measured and batch != scenario.batch:
        doubt = f"batch {batch}: computing is taken as proportional to the batch (known for {scenario.batch}); "
        doubts += (f"{doubt}large batches are quicker per sample: give runs with two batch sizes",)
    compute, fixed_share = _scaled(scenario.compute, times), scenario.fixed_share / times
    return replace(changed, compute=compute, fixed_share=fixed_share, doubts=doubts)


def _scaled(compute: Compute, times: float) -> Compute:
    known = None if compute.times_s is None else compute.times_s * times
    return replace(compute, mean_s=compute.mean_s * times, times_s=known)


def _gradients(scenario: Scenario, factor: float) -> Scenario:
    note = "fewer bytes of gradients: the time to convert or compress them is not in it"
    return replace(scenario, gradient_bytes=scenario.gradient_bytes * factor, doubts=(note, *scenario.doubts))


_SMALLEST = 1e-9
_TIMES = "a factor greater than 0 with an x, for instance 2x or 0.5x; allowed: 1e-09x to 1e+09x"
_FACTOR = _Value(wanted=_TIMES, least=_SMALLEST)
_FACTOR_OR_ZERO = _Value(wanted=f"0, or {_TIMES}", least=_SMALLEST, words={"0": 0.0})
_COUNT = _Value(wanted=f"a whole number from 1 to {MAX_WORKERS:,}", most=MAX_WORKERS)
_SHARES = {"fp32": 1.0, "tf32": 1.0, "fp16": 0.5, "bf16": 0.5, "fp8": 0.25}  # of a gradient; scenarios are of float32
_CACHE = {"on": "cached", "off": "full", "none": "none"}

CHANGES: Mapping[str, tuple[_Value, Change]] = {
    "bandwidth": (_FACTOR, _links("intra", "inter")),
    "intra-bandwidth": (_FACTOR, _links("intra")),
    "inter-bandwidth": (_FACTOR, _links("inter")),
    "latency": (_FACTOR_OR_ZERO, _latency),
    "algorithm": (
        _Value(wanted=f"one of {', '.join(CHOICES)}", words={name: name for name in CHOICES}),
        _field("algorithm"),
    ),
    "servers": (_COUNT, lambda scenario, k: replace(_field("network.servers")(scenario, k), algorithm="ps")),
    "workers-per-node": (_COUNT, _field("network.workers_per_node")),
    "gradients": (
        _Value(wanted=f"one of {', '.join(_SHARES)}, or a factor such as 0.1x", least=_SMALLEST, words=_SHARES),
        _gradients,
    ),
    "batch": (
        _Value(wanted="a whole number of at least 1, or a factor such as 8x", least=_SMALLEST, most=10**12),
        _batch,
    ),
    "compute": (_FACTOR, lambda scenario, factor: replace(scenario, compute=_scaled(scenario.compute, factor))),
    "stragglers": (
        _Value(wanted="none (all workers always take the mean time)", words={"none": "none"}),
        lambda scenario, _: replace(scenario, compute=Compute(mean_s=scenario.compute.mean_s)),
    ),
    "slow-node": (
        _Value(wanted="a factor from 1x on, for instance 1.5x: a slow node takes at least 1x as long", least=1.0),
        _field("slow_node"),
    ),
    "buckets": (_Value(wanted="a whole number from 1 to 10,000", most=10_000), _field("buckets")),
    "fusion": (
        _Value(wanted="MiB of a fused message, for instance 0 (nothing is fused) or 64", unit="mb"),
        _field("runtime.fusion_bytes", lambda value: value * 2**20),
    ),
    "cycle": (
        _Value(wanted="milliseconds, for instance 0 (new gradients wake it), 1 or 5ms", unit="ms"),
        _field("runtime.cycle_s", lambda value: value / 1e3),
    ),
    "cache": (
        _Value(wanted="on (negotiation from the response cache), off, or none (no negotiation)", words=_CACHE),
        _field("runtime.negotiation"),
    ),
    "overhead": (_FACTOR_OR_ZERO, _overhead),
}
"""What can be asked: what its values may be, and what it does to a scenario."""
_ASKED = f"KEY=VALUE, for instance bandwidth=2x or cycle=0; KEY is one of {', '.join(CHANGES)}"
_UNKNOWN: tuple[_Value, Change] = _Value(wanted=_ASKED), lambda scenario, _: scenario
