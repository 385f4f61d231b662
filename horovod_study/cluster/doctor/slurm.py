"""Slurm: does it answer, and is a partition what its file says."""

import re
import shlex

from horovod_study.cluster.allocations import Allocation
from horovod_study.cluster.doctor.finding import Area, Here, ProgramResult, shortened
from horovod_study.cluster.partitions import Partition
from horovod_study.cluster.slurm import directives
from horovod_study.config import Cell, Placement
from horovod_study.text.words import plural
from horovod_study.workloads import packaged

_PROGRAMS = ("sinfo", "squeue", "sbatch", "srun", "scancel")
_GOOD = ("idle", "mixed", "allocated", "completing", "reserved", "planned", "powered_down", "powering_up")


class Slurm:
    """The checks; each later one is only made when Slurm answers."""

    def __init__(self, here: Here, partition: Partition | None, *, quick: bool) -> None:
        self._here, self._quick = here, quick
        self._partition = partition if partition is not None and partition.scheduler == "slurm" else None
        self._limit_s = 2.0 if quick else 15.0
        # What the caller's job or statistics say must not change the answers.
        self._environ = {
            name: value
            for name, value in here.environ.items()
            if not name.startswith(("SBATCH_", "SALLOC_", "SRUN_", "SINFO_", "SQUEUE_", "SACCT_"))
            and (not name.startswith("SLURM_") or name in ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT"))
        }

    def check(self, area: Area) -> None:
        """Look at all of it."""
        here, wanted = self._here, self._partition
        missing = [name for name in _PROGRAMS if here.which(name) is None]
        if missing:
            self._without(area, missing)
            return
        self._inside(area)
        where = ["-p", wanted.slurm_partition] if wanted is not None and wanted.slurm_partition else []
        answer = self._call("sinfo", "-h", "-N", "-o", "%n|%c|%m|%G|%T|%l|%a|%P", *where)
        if not answer.worked:
            text = f"sinfo does not answer: {answer.reason()}"
            remedy = "is slurmctld up (scontrol ping), is munge running, is this a login node of the cluster"
            if wanted is None:
                area.warning("answers", text, f"{remedy}; partitions with scheduler local and ssh need no Slurm")
            else:
                area.fail("answers", text, remedy)
            return
        rows = [line.split("|") for line in answer.output.splitlines() if line.count("|") >= 7]
        names = sorted({row[7].rstrip("*") for row in rows})
        area.ok(
            "answers",
            f"sinfo lists {plural(len({row[0] for row in rows}), 'node')} in {', '.join(names)}"
            if rows
            else "sinfo answers",
        )
        if wanted is not None:
            self._nodes(area, wanted, rows)
            self._srun(area, wanted)
            if not self._quick:
                self._submit(area, wanted)
                self._modules(area, wanted)
        queue = self._call("squeue", "-h", "--me", "-o", "%T")
        if queue.worked:
            states = queue.output.split()
            area.ok("squeue", f"answers; {plural(len(states), 'job')} of yours there")
        else:
            area.warning(
                "squeue",
                f"does not answer: {queue.reason()}",
                "job states are then read from sacct, or from the run directories alone",
            )
        self._accounting(area)

    def _without(self, area: Area, missing: list[str]) -> None:
        wanted = self._partition
        if wanted is not None:
            area.fail(
                "programs",
                f"not on PATH: {', '.join(missing)}, but partition {wanted.name} is one of Slurm",
                "log in to the cluster's login node, or load its module (module load slurm)",
            )
        elif len(missing) == len(_PROGRAMS):
            area.ok("programs", "not installed here, and not needed for partitions with scheduler local and ssh")
        else:
            area.warning("programs", f"not on PATH: {', '.join(missing)}", "load the site's module (module load slurm)")

    def _inside(self, area: Area) -> None:
        environ = self._here.environ
        job = environ.get("SLURM_JOB_ID")
        if job is None:
            area.ok("allocation", "this shell is in no job")
            return
        nodes = environ.get("SLURM_JOB_NODELIST", "unknown nodes")
        area.ok("allocation", f"this shell is in job {job} on {nodes}: a study whose partition is local runs inside it")

    def _nodes(self, area: Area, wanted: Partition, rows: list[list[str]]) -> None:
        if wanted.slurm_partition is None:
            rows = [row for row in rows if row[7].endswith("*")]
        name = wanted.slurm_partition or "the default partition"
        if not rows:
            known = self._call("sinfo", "-h", "-o", "%R").output.split()
            area.fail(
                "partition",
                f"{name}: there is no such partition, or it has no nodes",
                f"set slurm_partition of {wanted.name} to one of: {', '.join(known) or 'none is known'}",
            )
            return
        if any(row[6] != "up" for row in rows):
            area.fail("partition", f"{name} is {rows[0][6]}: it starts no jobs", "wait, or use another partition")
        else:
            bad = [row for row in rows if row[4].rstrip("*~#!%$@^-+").lower() not in _GOOD]
            text = f"{name} is up, {len(rows) - len(bad)} of {plural(len(rows), 'node')} usable"
            if len(bad) == len(rows):
                area.fail("partition", f"{text} ({bad[0][4]})", f"sinfo -R -p {wanted.slurm_partition or ''}".strip())
            elif bad:
                remedy = "sinfo -R says why; studies that need more nodes than are usable wait in the queue"
                area.warning("partition", f"{text}; {bad[0][0]} is {bad[0][4]}", remedy)
            else:
                area.ok("partition", text)
        self._shape(area, wanted, rows)
        limit_s = seconds_of(rows[0][5])
        if limit_s is not None and wanted.time_limit_s is not None and wanted.time_limit_s > limit_s:
            area.fail(
                "time limit",
                f"the file of {wanted.name} says {wanted.time_limit_s:g} s, the longest job there is {limit_s:g} s",
                f"set time_limit_s in the file to at most {limit_s:g}",
            )
        if wanted.nodes is None:
            area.warning(
                "nodes",
                f"the file of {wanted.name} does not say how many, {name} has {len(rows)}: a study that needs more "
                "would be submitted, and wait forever",
                f"set nodes to {len(rows)} in the file, or to what your account may use",
            )
        elif wanted.nodes > len(rows):
            area.warning(
                "nodes",
                f"the file of {wanted.name} says {wanted.nodes}, {name} has {len(rows)}",
                f"set nodes to {len(rows)} in the file",
            )

    def _shape(self, area: Area, wanted: Partition, rows: list[list[str]]) -> None:
        """Compare cores, memory and GPUs per node with what the file says."""
        cores = min(int(re.match(r"\d+", row[1])[0]) for row in rows if row[1][:1].isdigit())  # type: ignore[index]
        said = f"the file of {wanted.name} says {wanted.cores_per_node}, Slurm knows {cores}"
        if wanted.cores_per_node > cores:
            remedy = f"set cores_per_node to {cores} in the file: jobs that ask for more are refused"
            area.fail("cores per node", said, remedy)
        elif wanted.cores_per_node < cores:
            remedy = f"set cores_per_node to {cores}, unless they are hardware threads that you leave alone"
            area.warning("cores per node", said, remedy)
        else:
            area.ok("cores per node", f"{cores}, as in the file of {wanted.name}")
        memory = min(int(re.match(r"\d+", row[2])[0]) for row in rows if row[2][:1].isdigit())  # type: ignore[index]
        if wanted.memory_per_core_mb is not None:
            asked = wanted.memory_per_core_mb * wanted.cores_per_node
            if asked > memory:
                area.fail(
                    "memory per node",
                    f"{wanted.memory_per_core_mb} MB for each of {wanted.cores_per_node} cores are {asked} MB, a node "
                    f"has {memory} MB",
                    f"set memory_per_core_mb in the file to at most {memory // wanted.cores_per_node}",
                )
            else:
                area.ok("memory per node", f"{memory} MB, of which the file of {wanted.name} asks for up to {asked} MB")
        gpus = min(gpus_in(row[3]) for row in rows)
        said = f"the file of {wanted.name} says {wanted.gpus_per_node}, Slurm knows {gpus} (gres {rows[0][3]})"
        if wanted.gpus_per_node > gpus:
            remedy = f"set gpus_per_node to {gpus} in the file, or name the type of GPU in `gres` or `constraint`"
            area.fail("GPUs per node", said, remedy)
        elif wanted.gpus_per_node < gpus:
            remedy = f"set gpus_per_node to {gpus} in the file, unless some are to be left alone"
            area.warning("GPUs per node", said, remedy)
        elif gpus and wanted.gres is None:
            area.warning(
                "GPUs per node",
                f"{gpus}, but the file of {wanted.name} has no `gres`: jobs would not be given any",
                "set gres: gpu:{gpus} in the file",
            )
        else:
            area.ok("GPUs per node", f"{gpus}, as in the file of {wanted.name}")

    def _srun(self, area: Area, wanted: Partition) -> None:
        if wanted.srun_mpi is None:
            return
        answer = self._call("srun", "--mpi=list")
        said = answer.output + answer.errors  # which of the two differs between versions
        known = re.findall(r"^\s+([\w]+)\s*$", said, re.MULTILINE)
        known += [name for line in re.findall(r"versions available: (.*)", said) for name in re.split(r"[,\s]+", line)]
        if known and wanted.srun_mpi not in known:
            area.fail(
                "srun --mpi",
                f"{wanted.srun_mpi} is none of what this srun has: {', '.join(known)}",
                f"set srun_mpi in the file of {wanted.name} to one of them, or remove it: mpirun starts MPI then",
            )
        elif known:
            area.ok("srun --mpi", f"{wanted.srun_mpi} is there")

    def _submit(self, area: Area, wanted: Partition) -> None:
        """Ask Slurm whether it would take a job, without giving it one."""
        workers = wanted.slots_per_node
        placement = Placement(partition=wanted.name, workers=workers, workers_per_node=workers)
        cell = Cell(config=packaged().configuration(), runtime="serial", placement=placement)
        limit_s = wanted.time_limit_s or 600.0
        node = Allocation(partition=wanted.name, nodes=1, tasks=((cell,),), seconds=limit_s, time_limit_s=limit_s)
        options = directives(node, wanted, name="horovod-study-doctor")  # what the jobs of a study ask for
        asked = [f"--{option}" + ("" if value is None else f"={value}") for option, value in options]
        answer = self._call("sbatch", "--test-only", *asked, given="#!/bin/sh\ntrue\n")
        said = shortened(answer.errors or answer.output)
        if answer.worked:
            area.ok("sbatch --test-only", said.removeprefix("sbatch: ") or "a job of one node would be taken")
            return
        reason = answer.reason()
        remedies = (
            ("account", "set account in the file to one of: sacctmgr show associations user=$USER format=account,qos"),
            ("QOS", "set qos in the file to one of: sacctmgr show associations user=$USER format=account,qos"),
            ("partition", f"set slurm_partition of {wanted.name} to one that sinfo lists"),
            ("node configuration", "lower what the file asks for per node: see the lines above"),
        )
        remedy = next((text for word, text in remedies if word.lower() in reason.lower()), None)
        area.fail(
            "sbatch --test-only",
            f"a job of one full node would be refused: {reason}",
            remedy or f"sbatch --test-only {shlex.join(asked)} --wrap true shows it; change the file of {wanted.name}",
        )

    def _modules(self, area: Area, wanted: Partition) -> None:
        """Can the modules of the partition's file be loaded, in their order."""
        if not wanted.modules:
            return
        # Whatever module does, it says what is wrong on standard error, and not always by its exit code.
        line = ["bash", "-l", "-c", 'module load "$@"', "doctor", *wanted.modules]
        answer = self._call(*line)
        complaint = [
            text for text in answer.errors.splitlines() if "error" in text.lower() or "not found" in text.lower()
        ]
        if answer.worked and not complaint:
            area.ok("modules", f"{', '.join(wanted.modules)} can be loaded")
        else:
            area.fail(
                "modules",
                f"module load {' '.join(wanted.modules)}: {shortened(complaint[0]) if complaint else answer.reason()}",
                f"module avail shows what there is; correct `modules` in the file of {wanted.name}",
            )

    def _accounting(self, area: Area) -> None:
        if self._here.which("sacct") is None:
            reason = "sacct is not on PATH"
        else:
            answer = self._call("sacct", "-X", "-n", "-P", "-o", "JobID,State")
            if answer.worked:
                area.ok("sacct", "answers: the states of ended jobs come from it")
                return
            reason = answer.reason()
        area.warning(
            "sacct",
            f"does not work: {reason}",
            "nothing to do: how jobs ended is then read from squeue and the run directories, so a job that was killed "
            "before its first cell shows as missing",
        )

    def _call(self, *words: str, given: str = "") -> ProgramResult:
        return self._here.call(words, timeout_s=self._limit_s, given=given, environ=self._environ)


def gpus_in(gres: str) -> int:
    """Return how many GPUs a node has from what sinfo says, such as gpu:a100:4(S:0-1),shard:8."""
    total = 0
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        fields = part.split(":")
        if fields[0] == "gpu":
            total += int(fields[-1]) if fields[-1].isdigit() else 1
    return total


def seconds_of(limit: str) -> float | None:
    """Return a time limit of Slurm, days-hours:minutes:seconds, in seconds; None where there is no limit."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit.strip())
    if found is None or limit in ("infinite", "UNLIMITED"):
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
