"""What-if: words such as `bandwidth=2x`, `cycle=0` or `algorithm=ps`, several joined by commas, change a scenario."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from horovod_study.analysis.simulate.network import CHOICES, Network
from horovod_study.analysis.simulate.scaling import Scenario
from horovod_study.analysis.simulate.step import Compute
from horovod_study.errors import ConfigError, require_known

ELEMENT_BYTES: Mapping[str, float] = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}
"""Bytes of a gradient on the network; scenarios are of float32."""

BASELINE = "baseline"

LARGEST_FACTOR = 1e9


def what_if(baseline: Scenario, texts: Sequence[str]) -> dict[str, Scenario]:
    """Return the baseline and what each text makes of it, by their texts.

    Raises ConfigError, naming the text, what is allowed and the nearest known word.
    """
    found = {BASELINE: baseline}
    for text in texts:
        scenario = baseline
        words = [word.strip() for word in text.split(",")]
        for word in words:
            scenario = _changed(scenario, word, text)
        found[",".join(words)] = scenario
    return found


def _changed(scenario: Scenario, word: str, text: str) -> Scenario:
    key, equals, value = word.partition("=")
    if not equals or not value:
        raise ConfigError(f"--what-if {text}: {word!r} must be KEY=VALUE, for instance bandwidth=2x or cycle=0")
    require_known(f"--what-if {text}:", key, CHANGES)
    return CHANGES[key](scenario, value, f"--what-if {word}")


def _factor(value: str, where: str) -> float:
    """Return 2.0 of `2x`."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)x", value.lower())
    number = float(match[1]) if match else 0.0
    if not 1 / LARGEST_FACTOR <= number <= LARGEST_FACTOR:
        raise ConfigError(
            f"{where}: must be a factor greater than 0 with an x, for instance 2x or 0.5x; allowed: "
            f"{1 / LARGEST_FACTOR:g}x to {LARGEST_FACTOR:g}x"
        )
    return number


def _count(value: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < 1:
        raise ConfigError(f"{where}: must be a whole number, at least 1")
    return int(value)


def _links(network: Network, which: Sequence[str], *, alpha: float = 1.0, bandwidth: float = 1.0) -> Network:
    intra, inter = (
        link.times(alpha=alpha, bandwidth=bandwidth) if name in which else link
        for name, link in (("intra", network.intra), ("inter", network.inter))
    )
    return replace(network, intra=intra, inter=inter)


_BOTH = ("intra", "inter")


def _bandwidth(which: Sequence[str]) -> Callable[[Scenario, str, str], Scenario]:
    def change(scenario: Scenario, value: str, where: str) -> Scenario:
        return replace(scenario, network=_links(scenario.network, which, bandwidth=_factor(value, where)))

    return change


def _latency(scenario: Scenario, value: str, where: str) -> Scenario:
    factor = 0.0 if value == "0" else _factor(value, where)
    network = _links(scenario.network, _BOTH, alpha=factor)
    levels = tuple(replace(level, latency_s=level.latency_s * factor) for level in network.levels)
    return replace(scenario, network=replace(network, levels=levels))


def _cycle(scenario: Scenario, value: str, where: str) -> Scenario:
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)(ms)?", value.lower())
    if match is None:
        raise ConfigError(f"{where}: must be milliseconds, for instance 0 (new gradients wake it), 1 or 5ms")
    return replace(scenario, runtime=replace(scenario.runtime, cycle_s=float(match[1]) / 1e3))


def _overhead(scenario: Scenario, value: str, where: str) -> Scenario:
    if value == "0":
        return replace(scenario, runtime=replace(scenario.runtime, overhead_s=0.0, negotiation="none"))
    overhead = scenario.runtime.overhead_s * _factor(value, where)
    return replace(scenario, runtime=replace(scenario.runtime, overhead_s=overhead))


def _cache(scenario: Scenario, value: str, where: str) -> Scenario:
    kinds = {"on": "cached", "off": "full", "none": "none"}
    if value not in kinds:
        raise ConfigError(f"{where}: must be on (negotiation from the response cache), off, or none (no negotiation)")
    return replace(scenario, runtime=replace(scenario.runtime, negotiation=kinds[value]))


def _batch(scenario: Scenario, value: str, where: str) -> Scenario:
    if value.lower().endswith("x"):
        batch = round(scenario.batch * _factor(value, where))
        if batch < 1:
            raise ConfigError(f"{where}: leaves less than one sample per worker of a batch of {scenario.batch}")
    else:
        batch = _count(value, where)
    times = scenario.batch_factor(batch)
    return replace(
        scenario,
        batch=batch,
        compute=_scaled(scenario.compute, times),
        fixed_share=scenario.fixed_share / times,
        doubts=(
            *scenario.doubts,
            *(
                ()
                if scenario.batch_measured or batch == scenario.batch
                else (
                    f"batch {batch}: computing is taken as proportional to the batch (known for {scenario.batch}); "
                    "large batches are quicker per sample: give runs with two batch sizes",
                )
            ),
        ),
    )


def _scaled(compute: Compute, times: float) -> Compute:
    known = None if compute.times_s is None else compute.times_s * times
    return replace(compute, mean_s=compute.mean_s * times, times_s=known)


def _compute(scenario: Scenario, value: str, where: str) -> Scenario:
    return replace(scenario, compute=_scaled(scenario.compute, _factor(value, where)))


def _stragglers(scenario: Scenario, value: str, where: str) -> Scenario:
    if value != "none":
        raise ConfigError(f"{where}: must be none (all workers always take the mean time)")
    return replace(scenario, compute=Compute(mean_s=scenario.compute.mean_s))


def _slow_node(scenario: Scenario, value: str, where: str) -> Scenario:
    factor = _factor(value, where)
    if factor < 1:
        raise ConfigError(f"{where}: a slow node takes at least 1x as long")
    return replace(scenario, slow_node=factor)


def _gradients(scenario: Scenario, value: str, where: str) -> Scenario:
    if value.lower().endswith("x"):
        factor = _factor(value, where)
    else:
        require_known(f"{where}:", value, ELEMENT_BYTES, also=", or a factor such as 0.1x")
        factor = ELEMENT_BYTES[value] / ELEMENT_BYTES["fp32"]
    note = (
        "fewer bytes of gradients: the time to convert or compress them is not in it",
        *scenario.doubts,
    )
    return replace(scenario, gradient_bytes=scenario.gradient_bytes * factor, doubts=note)


def _algorithm(scenario: Scenario, value: str, where: str) -> Scenario:
    require_known(f"{where}:", value, CHOICES)
    return replace(scenario, algorithm=value)


def _buckets(scenario: Scenario, value: str, where: str) -> Scenario:
    return replace(scenario, buckets=_count(value, where))


def _fusion(scenario: Scenario, value: str, where: str) -> Scenario:
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)(mb)?", value.lower())
    if match is None:
        raise ConfigError(f"{where}: must be MiB of a fused message, for instance 0 (nothing is fused) or 64")
    return replace(scenario, runtime=replace(scenario.runtime, fusion_bytes=float(match[1]) * 2**20))


def _per_node(scenario: Scenario, value: str, where: str) -> Scenario:
    return replace(scenario, network=replace(scenario.network, workers_per_node=_count(value, where)))


def _servers(scenario: Scenario, value: str, where: str) -> Scenario:
    return replace(scenario, algorithm="ps", network=replace(scenario.network, servers=_count(value, where)))


CHANGES: Mapping[str, Callable[[Scenario, str, str], Scenario]] = {
    "bandwidth": _bandwidth(_BOTH),
    "intra-bandwidth": _bandwidth(("intra",)),
    "inter-bandwidth": _bandwidth(("inter",)),
    "latency": _latency,
    "algorithm": _algorithm,
    "servers": _servers,
    "workers-per-node": _per_node,
    "gradients": _gradients,
    "batch": _batch,
    "compute": _compute,
    "stragglers": _stragglers,
    "slow-node": _slow_node,
    "buckets": _buckets,
    "fusion": _fusion,
    "cycle": _cycle,
    "cache": _cache,
    "overhead": _overhead,
}
"""What can be asked, and what it does to a scenario."""
