"""`horovod-study doctor`: what is installed, built and reachable, and what to do about what is not.

    finding     what a check says, and the bounded calls by which it looks
    software    Python and PyTorch
    gpus        CUDA and NCCL
    mpi         MPI and Horovod
    network     interfaces, names, variables that name an interface
    hosts       ssh to each host, and the hosts among themselves; `probe` is what runs there
    slurm       Slurm, and a partition against its file
    files       the file system of the runs
    machine     cores, memory, load, limits, clock, shared memory, what earlier runs left

Nothing is changed: what a check writes, it removes. Every check is bounded in time and none raises.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from horovod_study.cluster.doctor import files, machine
from horovod_study.cluster.doctor.finding import Check, Finding, Here, guarded
from horovod_study.cluster.doctor.gpus import GpuChecks
from horovod_study.cluster.doctor.hosts import Hosts
from horovod_study.cluster.doctor.mpi import Mpi
from horovod_study.cluster.doctor.network import NetworkChecks
from horovod_study.cluster.doctor.slurm import Slurm
from horovod_study.cluster.doctor.software import Software
from horovod_study.cluster.partitions import Host, Partition

__all__ = ["Finding", "examine", "exit_code", "to_dict"]


def examine(
    *,
    hosts: Sequence[Host] = (),
    partition: Partition | None = None,
    runs: Path = Path("runs"),
    quick: bool = False,
    here: Here | None = None,
) -> list[Finding]:
    """Return what was found, area after area.

    `hosts` are looked at over ssh (those of `partition` where none are given). `quick`: what takes less than three
    seconds; nothing heavy is loaded, nothing is started on other hosts. `here` stands in for this machine in tests.
    """
    here = here or Here()
    if partition is not None and partition.scheduler != "slurm":  # what its workers would be started with
        here = replace(here, environ={**here.environ, **partition.environment})
    hosts = tuple(hosts) or (partition.hosts if partition is not None else ())
    interface = partition.interface if partition is not None else None
    remote = partition is not None and partition.scheduler == "slurm"
    several = len(hosts) > 1 or remote
    software = Software(here, quick=quick)
    gpus, mpi = GpuChecks(here, software, quick=quick, partition=partition), Mpi(here, software, quick=quick)
    # The nodes of a Slurm partition have networks that the login node does not see.
    network = NetworkChecks(here, several_hosts=len(hosts) > 1, interface=None if remote else interface)
    local = partition if partition is not None and partition.scheduler == "local" else None
    limit_s = (2.5 if quick else 150.0) * here.patience  # of each area
    # Nothing else computes yet while these two look how busy this machine and the hosts are.
    load = machine.Load()
    over_ssh = Hosts(here, hosts, runs, interface=interface, quick=quick)
    ssh = guarded([("ssh", "hosts", over_ssh.check)] if hosts else [], limit_s)()
    chains: list[list[tuple[str, str, Check]]] = [
        [
            ("Python", "version", software.python),
            ("Python", "environment", software.environment),
            ("Python", "packages", software.packages),
            # In this order: later ones compare with what the earlier ones found.
            ("PyTorch", "version", software.torch),
            ("CUDA", "driver", gpus.cuda),
            ("NCCL", "version", gpus.nccl),
            ("MPI", "mpirun", mpi.mpi),
            ("Horovod", "version", mpi.horovod),
        ],
        [
            ("network", "interfaces", network.check_interfaces),
            ("network", "own name", network.own_name),
            ("network", "variables", network.variables),
            ("network", "InfiniBand", network.fast),
        ],
        [("Slurm", "Slurm", Slurm(here, partition, quick=quick).check)],
        [
            ("runs folder", "kind", lambda area: files.kind(area, here, runs, several_hosts=several, slurm=remote)),
            ("runs folder", "space", lambda area: files.space(area, runs)),
            ("runs folder", "writable", lambda area: files.works(area, runs)),
        ],
        machine.checks(
            here,
            load,
            several=len(hosts) > 1,
            workers=local.cores_per_node if local is not None else 0,
            elsewhere=remote and "SLURM_JOB_ID" not in here.environ,
        ),
    ]
    started = [guarded(chain, limit_s) for chain in chains]
    software_found, network_found, *rest = [result() for result in started]
    return [*software_found, *network_found, *ssh, *(finding for found in rest for finding in found)]


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 if anything fails, else 0."""
    return int(any(finding.verdict == "fail" for finding in findings))


def to_dict(findings: Sequence[Finding]) -> dict[str, object]:
    """Return the findings and their counts as plain values, for --json."""
    counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in ("ok", "warning", "fail")}
    return {"counts": counts, "findings": [asdict(finding) for finding in findings]}
