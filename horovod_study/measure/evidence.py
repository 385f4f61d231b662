"""What each rank really has: its place, cores, threads, device, learning rate and settings, read from what is live.

Beside it what makes a measurement worth less: cores that workers share, and other programs on them.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod_study.cluster import alive
from horovod_study.config.run import COMMUNICATION, OPTIONS
from horovod_study.measure.clock import now, sleep
from horovod_study.measure.environment import BUSY_CORES, busy_s, own_cpu_s
from horovod_study.measure.sensors import Gpus
from horovod_study.text.words import plural

if TYPE_CHECKING:
    import torch


def describe_rank(place: Mapping[str, Any], lr: float | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return this rank's entry of the record.

    `place`: its host, local_rank, cores and torch.device; `lr`: that of its optimiser; `settings`: of its backend.
    """
    import torch

    # With the numbers of the processes that hold it, None where that is not known.
    gpu: dict[str, Any] | None = dict(gpu_identity(place["device"])) if place["device"].type == "cuda" else None
    if gpu is not None:
        gpu["processes"] = Gpus([gpu["uuid"]]).processes().get("gpu 0")
    found = {"host": place["host"], "local_rank": place["local_rank"], "pid": os.getpid(), "cores": place["cores"]}
    found |= {"threads": torch.get_num_threads(), "device": str(place["device"]), "gpu": gpu, "lr": lr}
    return {**found, "communication": communication(settings)}


def gpu_identity(device: "torch.device") -> dict[str, str]:
    """Return {"name", "uuid"} of a GPU, the UUID without the prefix "GPU-" that others write."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    return {"name": properties.name, "uuid": str(properties.uuid)}


def communication(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a backend in the names and units of the options; what it does not have is left out.

    A backend records a setting under the option's own name or, as the libraries know it, under that of a variable.
    """
    found: dict[str, Any] = {}
    for name in COMMUNICATION:
        setting, kind = settings.get(name, settings.get(OPTIONS[name].variable)), OPTIONS[name].kind
        value = setting.get("value") if isinstance(setting, Mapping) else None
        if isinstance(value, str):  # what a library reads
            off = ("0", "false", "no", "off", "none", "")
            value = value.lower() not in off if kind is bool else kind(value)
            value = value / 1e6 if name == "fusion_mb" else value
        found |= {} if value is None else {name: value}
    variables = [settings[each.variable] for each in OPTIONS.values() if each.variable in settings]
    if variables:
        found["horovod_defaults"] = all(each["source"] != "shipped" for each in variables)
    return found


def oversubscribed(ranks: Sequence[Mapping[str, Any]]) -> str | None:
    """Return in one line which ranks have more threads than cores to run on, None if there are none.

    A set of cores is crowded when the ranks that may run nowhere else have more threads than it has cores.
    """
    for host in dict.fromkeys(rank["host"] for rank in ranks):
        here = [(set(rank["cores"]), rank["threads"]) for rank in ranks if rank["host"] == host]
        groups = sorted((own for own, _ in here), key=len)
        for cores in [*groups, set().union(*groups)]:
            threads = [count for own, count in here if own <= cores]
            if len(threads) > 1 and sum(threads) > len(cores):
                return (
                    f"{len(threads)} workers x {plural(max(threads), 'thread')} on {plural(len(cores), 'core')} of "
                    f"{host}: they take the cores from each other; use "
                    f"{'--threads 1, ' if max(threads) > 1 else ''}fewer workers or more cores"
                )
    return None


def gpu_holders(ranks: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    """Return host -> processes that are not of the run on the GPUs of its workers, None where that is not known.

    Where none of the run's own numbers is among those of a GPU they are those of the machine around a container: then
    what is more than the workers on that GPU is others.
    """
    found: dict[str, int | None] = {}
    for (host, _), here in _by_gpu(ranks).items():
        told, own = [rank["gpu"]["processes"] for rank in here], {rank["pid"] for rank in here}
        listed = {pid for each in told for pid in each or ()}
        others = len(listed - own) if listed & own else max(0, len(listed) - len(own))
        known = any(each is not None for each in told)
        found[host] = (found.get(host) or 0) + others if known else found.get(host)
    return found


def _by_gpu(ranks: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Return (host, UUID) -> the ranks on that GPU."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for rank in ranks:
        if rank["gpu"] is not None:
            found.setdefault((rank["host"], rank["gpu"]["uuid"]), []).append(rank)
    return found


def shared_gpu(ranks: Sequence[Mapping[str, Any]]) -> str | None:
    """Return in one line how many workers share the GPU that most share, None if each has its own."""
    (host, _), here = max(_by_gpu(ranks).items(), key=lambda each: len(each[1]), default=(("", ""), []))
    shared = f"{len(here)} workers share one GPU of {host}: their times measure how it is shared, not what"
    return f"{shared} {len(here)} give" if len(here) > 1 else None


def held(holders: Mapping[str, int | None]) -> str | None:
    """Return in one line on which host others hold GPUs of the workers, None if nobody does."""
    host, number = next(((host, number) for host, number in holders.items() if number), ("", 0))
    text = (
        f"{number} process{'es' * (number > 1)} of others {'hold' if number > 1 else 'holds'} GPUs of the workers on "
        f"{host}, and time and memory with them; look with nvidia-smi whose, wait, or choose others with "
        "CUDA_VISIBLE_DEVICES"
    )
    return text if number else None


class OtherLoad:
    """How many cores of this host other programs used, from when it is made until it is asked."""

    def __init__(self, cores: Sequence[int], *, beside: int | None = None, proc: Path = Path("/proc")) -> None:
        """`beside` is the number of a process that belongs to the run, such as its sampler."""
        self.cores, self.beside, self._proc = cores, beside, proc
        self._began, self._own_s, self._busy_s = now(), self._own(), busy_s(cores, proc=proc)

    def sample(self, *, at_least_s: float) -> dict[str, float] | None:
        """Return {"seconds", "busy_s", "own_s"} since it was made, after waiting until `at_least_s` have passed.

        busy_s: processor seconds of everybody on the cores, own_s: of this process and the children it waited for.
        None where the system does not report, or too little time has passed to tell.
        """
        sleep(max(0.0, at_least_s - (now() - self._began)))
        busy, seconds = busy_s(self.cores, proc=self._proc), now() - self._began
        # the system counts in hundredths of a second
        if busy is None or self._busy_s is None or seconds < 0.1:
            return None
        return {"seconds": seconds, "busy_s": busy - self._busy_s, "own_s": self._own() - self._own_s}

    def _own(self) -> float:
        """Return the processor seconds of this process, the children it waited for, and the process beside it."""
        used_s = own_cpu_s()
        if self.beside is not None and (fields := alive.stat_fields(self.beside)):  # it has not ended
            used_s += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return used_s


def other_cores(
    samples: Sequence[Mapping[str, float] | None], ranks: Sequence[Mapping[str, Any]]
) -> dict[str, float | None]:
    """Return host -> cores in use by other programs, from the samples of all ranks; None where that is not known.

    The first rank of a host has read how busy all its cores were; what its ranks used themselves is subtracted.
    """
    by_host: dict[str, list[Mapping[str, float] | None]] = {}
    for sample, rank in zip(samples, ranks, strict=True):
        by_host.setdefault(rank["host"], []).append(sample)
    found: dict[str, float | None] = dict.fromkeys(by_host)
    for host, here in by_host.items():
        if len(known := [sample for sample in here if sample is not None]) == len(here):
            others_s = known[0]["busy_s"] - sum(each["own_s"] for each in known)
            found[host] = round(max(0.0, others_s / known[0]["seconds"]), 2)
    return found


def disturbed(others: Mapping[str, float | None], ranks: Sequence[Mapping[str, Any]]) -> str | None:
    """Return in one line on which host other programs need the cores of the workers, None if none does."""
    for host, cores_used in others.items():
        here = [rank for rank in ranks if rank["host"] == host]
        cores, threads = set().union(*(rank["cores"] for rank in here)), sum(rank["threads"] for rank in here)
        if cores_used is not None and cores_used >= BUSY_CORES and cores_used + min(threads, len(cores)) > len(cores):
            return (
                f"other programs use {cores_used:.1f} of the {plural(len(cores), 'core')} of {host}, and "
                "workers that wait for one core all become slow; do not compare this run's times with those of a quiet "
                "machine"
            )
    return None
