"""What-if: words such as `bandwidth=2x`, `cycle=0` or `algorithm=ps`, several joined by commas, change a scenario."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from horovod_study.analysis.simulate.network import CHOICES, Network
from horovod_study.analysis.simulate.scaling import Scenario
from horovod_study.analysis.simulate.step import Compute
from horovod_study.errors import ConfigError, require_known

ELEMENT_BYTES: Mapping[str, float] = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}
"""Bytes of a gradient on the network; scenarios are of float32."""

_LARGEST_FACTOR = 1e9

Change: TypeAlias = Callable[[Scenario, str, str], Scenario]
"""From a scenario, a value and where it stands, for messages, to the changed scenario."""


def what_if(baseline: Scenario, texts: Sequence[str]) -> dict[str, Scenario]:
    """Return the baseline and what each text makes of it, by their texts.

    Raises ConfigError, naming the text, what is allowed and the nearest known word.
    """
    found = {"baseline": baseline}
    for text in texts:
        scenario = baseline
        words = [word.strip() for word in text.split(",")]
        for word in words:
            key, equals, value = word.partition("=")
            if not equals or not value:
                raise ConfigError(f"--what-if {text}: {word!r} must be KEY=VALUE, for instance bandwidth=2x or cycle=0")
            require_known(f"--what-if {text}:", key, CHANGES)
            scenario = CHANGES[key](scenario, value, f"--what-if {word}")
        found[",".join(words)] = scenario
    return found


def _factor(value: str, where: str) -> float:
    """Return 2.0 of `2x`."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)x", value.lower())
    number = float(match[1]) if match else 0.0
    if not 1 / _LARGEST_FACTOR <= number <= _LARGEST_FACTOR:
        raise ConfigError(
            f"{where}: must be a factor greater than 0 with an x, for instance 2x or 0.5x; allowed: "
            f"{1 / _LARGEST_FACTOR:g}x to {_LARGEST_FACTOR:g}x"
        )
    return number


def _count(value: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < 1:
        raise ConfigError(f"{where}: must be a whole number, at least 1")
    return int(value)


def _number(value: str, where: str, unit: str, wanted: str) -> float:
    """Return 5.0 of `5ms`, for the unit `ms`, which may be left out; `wanted` says what is."""
    match = re.fullmatch(rf"([0-9]*\.?[0-9]+)({unit})?", value.lower())
    if match is None:
        raise ConfigError(f"{where}: must be {wanted}")
    return float(match[1])


def _one_of(value: str, where: str) -> str:
    require_known(f"{where}:", value, CHOICES)
    return value


def _links(network: Network, which: Sequence[str], *, alpha: float = 1.0, bandwidth: float = 1.0) -> Network:
    intra, inter = (
        link.times(alpha=alpha, bandwidth=bandwidth) if name in which else link
        for name, link in (("intra", network.intra), ("inter", network.inter))
    )
    return replace(network, intra=intra, inter=inter)


def _bandwidth(*which: str) -> Change:
    return lambda scenario, value, where: replace(
        scenario, network=_links(scenario.network, which, bandwidth=_factor(value, where))
    )


def _field(name: str, read: Callable[[str, str], Any]) -> Change:
    """Return what gives a field of the scenario, or behind a dot one of its network or runtime, another value."""
    part, _, field = name.rpartition(".")

    def change(scenario: Scenario, value: str, where: str) -> Scenario:
        changed = {field: read(value, where)}
        return replace(scenario, **({part: replace(getattr(scenario, part), **changed)} if part else changed))

    return change


def _latency(scenario: Scenario, value: str, where: str) -> Scenario:
    factor = 0.0 if value == "0" else _factor(value, where)
    network = _links(scenario.network, ("intra", "inter"), alpha=factor)
    levels = tuple(replace(level, latency_s=level.latency_s * factor) for level in network.levels)
    return replace(scenario, network=replace(network, levels=levels))


def _overhead(scenario: Scenario, value: str, where: str) -> Scenario:
    if value == "0":
        return replace(scenario, runtime=replace(scenario.runtime, overhead_s=0.0, negotiation="none"))
    overhead = scenario.runtime.overhead_s * _factor(value, where)
    return replace(scenario, runtime=replace(scenario.runtime, overhead_s=overhead))


def _negotiation(value: str, where: str) -> str:
    kinds = {"on": "cached", "off": "full", "none": "none"}
    if value not in kinds:
        raise ConfigError(f"{where}: must be on (negotiation from the response cache), off, or none (no negotiation)")
    return kinds[value]


def _batch(scenario: Scenario, value: str, where: str) -> Scenario:
    if value.lower().endswith("x"):
        batch = round(scenario.batch * _factor(value, where))
        if batch < 1:
            raise ConfigError(f"{where}: leaves less than one sample per worker of a batch of {scenario.batch}")
    else:
        batch = _count(value, where)
    times = scenario.batch_factor(batch)
    doubts = scenario.doubts
    if not scenario.batch_measured and batch != scenario.batch:
        doubt = f"batch {batch}: computing is taken as proportional to the batch (known for {scenario.batch}); "
        doubts += (f"{doubt}large batches are quicker per sample: give runs with two batch sizes",)
    compute, fixed_share = _scaled(scenario.compute, times), scenario.fixed_share / times
    return replace(scenario, batch=batch, compute=compute, fixed_share=fixed_share, doubts=doubts)


def _scaled(compute: Compute, times: float) -> Compute:
    known = None if compute.times_s is None else compute.times_s * times
    return replace(compute, mean_s=compute.mean_s * times, times_s=known)


def _stragglers(scenario: Scenario, value: str, where: str) -> Scenario:
    if value != "none":
        raise ConfigError(f"{where}: must be none (all workers always take the mean time)")
    return replace(scenario, compute=Compute(mean_s=scenario.compute.mean_s))


def _slower(value: str, where: str) -> float:
    factor = _factor(value, where)
    if factor < 1:
        raise ConfigError(f"{where}: a slow node takes at least 1x as long")
    return factor


def _gradients(scenario: Scenario, value: str, where: str) -> Scenario:
    if value.lower().endswith("x"):
        factor = _factor(value, where)
    else:
        require_known(f"{where}:", value, ELEMENT_BYTES, also=", or a factor such as 0.1x")
        factor = ELEMENT_BYTES[value] / ELEMENT_BYTES["fp32"]
    note = "fewer bytes of gradients: the time to convert or compress them is not in it"
    return replace(scenario, gradient_bytes=scenario.gradient_bytes * factor, doubts=(note, *scenario.doubts))


_MS = "milliseconds, for instance 0 (new gradients wake it), 1 or 5ms"
_MIB = "MiB of a fused message, for instance 0 (nothing is fused) or 64"

CHANGES: Mapping[str, Change] = {
    "bandwidth": _bandwidth("intra", "inter"),
    "intra-bandwidth": _bandwidth("intra"),
    "inter-bandwidth": _bandwidth("inter"),
    "latency": _latency,
    "algorithm": _field("algorithm", _one_of),
    "servers": lambda scenario, value, where: replace(
        scenario, algorithm="ps", network=replace(scenario.network, servers=_count(value, where))
    ),
    "workers-per-node": _field("network.workers_per_node", _count),
    "gradients": _gradients,
    "batch": _batch,
    "compute": lambda scenario, value, where: replace(
        scenario, compute=_scaled(scenario.compute, _factor(value, where))
    ),
    "stragglers": _stragglers,
    "slow-node": _field("slow_node", _slower),
    "buckets": _field("buckets", _count),
    "fusion": _field("runtime.fusion_bytes", lambda value, where: _number(value, where, "mb", _MIB) * 2**20),
    "cycle": _field("runtime.cycle_s", lambda value, where: _number(value, where, "ms", _MS) / 1e3),
    "cache": _field("runtime.negotiation", _negotiation),
    "overhead": _overhead,
}
"""What can be asked, and what it does to a scenario."""
