"""Which GPU is a rank's, and the cores near it: nobody else asks how many there are, or makes one the current one.

    all GPUs of the host visible         local rank r takes GPU r
    one visible to each rank             that one, which each of them calls number 0
    fewer GPUs than ranks on the host    they are shared, evenly; NCCL refuses that

All are one rule: the ranks of a host choose in their order, each the first of the GPUs it sees that the fewest before
it have chosen. GPUs are known by their UUIDs, because numbers mean something else in each rank where
CUDA_VISIBLE_DEVICES differs (Slurm's --gpus-per-task=1, launchers that set it for each rank).
"""

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import torch

from horovod_study.comm.base import Backend, fail_together
from horovod_study.comm.priority import threads
from horovod_study.errors import BackendError, first_line
from horovod_study.measure.environment import CORES_OF_GPU, affinity, cores_near
from horovod_study.measure.evidence import gpu_identity
from horovod_study.measure.sensors import Gpus

Seen = tuple[str, Sequence[str]]
"""The host of a rank, and the UUIDs of the GPUs that it sees, in the order in which CUDA counts them."""


def visible() -> int:
    """Return how many GPUs this process sees."""
    return torch.cuda.device_count()


def take(wanted: str, backend: Backend) -> torch.device:
    """Return this rank's device; a GPU is the current one from then on. Collective, the same `wanted` on all ranks.

    `wanted` is cpu, cuda, or auto: the CPU where no rank sees a GPU. Raises StudyError, on all ranks, where cuda is
    wanted and there is none, where some ranks see one and others do not, and where one cannot be used.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    everybody = _gathered(backend)
    if not any(uuids for _, uuids in everybody):
        if wanted == "cuda":
            raise BackendError("device cuda was asked for, but PyTorch sees no GPU; use --device cpu or auto")
        return torch.device("cpu")
    device = torch.device("cuda", assign(everybody)[backend.rank])
    host, uuids = everybody[backend.rank]
    with fail_together(backend):
        try:
            torch.cuda.set_device(device)
            torch.cuda.synchronize(device)  # CUDA comes to life there, and says what it has against it
        except RuntimeError as error:
            raise BackendError(
                f"GPU {uuids[device.index]} of {host} cannot be used ({first_line(error)}); look with nvidia-smi: is "
                "it in exclusive use, full, or broken; take another one, or --device cpu"
            ) from None
    # All threads, and those that they start, run near the GPU only, where enough of the cores that they may use are.
    near = set(cores_near(Gpus([uuids[device.index]]).bus_ids().get("gpu 0", "")))
    enough = len(near.intersection(affinity())) >= CORES_OF_GPU and not near.issuperset(affinity())
    for thread in threads() if enough and hasattr(os, "sched_setaffinity") else ():
        with suppress(OSError):  # it has ended meanwhile
            if kept := os.sched_getaffinity(thread) & near:
                os.sched_setaffinity(thread, kept)
    return device


def require_own(backend: Backend, *, instead: str) -> None:
    """Raise BackendError, on all ranks, where ranks share a GPU, which NCCL refuses. Collective.

    `instead` says over what they may.
    """
    if why := why_shared(backend):
        raise BackendError(f"{why}; start fewer workers, or let them share over {instead}")


def why_shared(backend: Backend) -> str | None:
    """Return what NCCL refuses in the places of these ranks, None where each has a GPU of its own. Collective."""
    everybody = _gathered(backend)
    chosen: dict[tuple[str, str], int] = {}
    for rank, ((host, uuids), number) in enumerate(zip(everybody, assign(everybody), strict=True)):
        first = chosen.setdefault((host, uuids[number]), rank)
        if first == rank:
            continue
        here = [theirs for other, theirs in everybody if other == host]
        gpus = len(set().union(*here))
        if gpus < len(here):
            return f"NCCL needs a GPU for each worker, and {host} has {gpus} for {len(here)} workers"
        return f"NCCL needs a GPU for each worker, and ranks {first} and {rank} on {host} see the same one only"
    return None


def assign(everybody: Sequence[Seen]) -> list[int]:
    """Return for each rank the number of its GPU among those that it sees; each must see one."""
    users: Counter[tuple[str, str]] = Counter()
    numbers = []
    for host, uuids in everybody:
        number = min(range(len(uuids)), key=lambda each: users[host, uuids[each]])  # the first of equals
        users[host, uuids[number]] += 1
        numbers.append(number)
    return numbers


def _gathered(backend: Backend) -> list[Seen]:
    """Return what every rank sees; BackendError, on all ranks, where some see a GPU and others none. Collective."""
    own, problem = [], ""
    try:
        own = [gpu_identity(torch.device("cuda", number))["uuid"] for number in range(visible())]
    except RuntimeError as error:  # the driver is there, and does not work
        problem = first_line(error)
    told: list[tuple[str, list[str], str]] = backend.gather((os.uname().nodename, own, problem))
    named = [f"rank {rank} on {host}" for rank, (host, *_) in enumerate(told)]
    broken = next((rank for rank, (*_, why) in enumerate(told) if why), None)
    blind = [name for name, (_, uuids, _) in zip(named, told, strict=True) if not uuids]
    if broken is not None:
        problem = f"{named[broken]}: PyTorch cannot ask its GPUs ({told[broken][2]}); look with nvidia-smi"
    elif 0 < len(blind) < len(told):
        sees = next(name for name in named if name not in blind)
        problem = f"{blind[0]} sees no GPU, and {sees} does; give every rank one (CUDA_VISIBLE_DEVICES, "
        problem += "--gpus-per-task=1)"
    if problem:
        raise BackendError(f"{problem}, or use --device cpu")
    return [(host, uuids) for host, uuids, _ in told]
