"""Slurm: cells put into jobs, the script of a job as pure text, and the environment that sbatch gets.

There is a job for each way of placing workers, so that its runtimes and repeats alternate on the same nodes in the same
hour. Where the longest job that a partition allows is too short for its cells, the job becomes an array of tasks.

A script asks for nodes, sets up what the partition says, and becomes `python -m horovod_study.studies.job FOLDER`,
which runs the cells of the job. Nothing in it depends on the shell of whoever submits it. Text from users is quoted for
the shell; what is in #SBATCH lines, which no shell reads, is refused where it could mean something else there.
"""

import math
import random
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from horovod_study.cluster.launch import describes_enclosing_job
from horovod_study.config.partitions import Partition
from horovod_study.config.run import Cell, Placement
from horovod_study.config.variables import SHELL
from horovod_study.errors import refuse
from horovod_study.text.progress import duration
from horovod_study.text.words import plural

MARGIN = 1.5  # A job is allowed so many times what its cells are expected to take: expectations are medians or guesses
START_S = 300.0  # And so many seconds more, for its start, loading modules, and the first reading of the data
STEP_S = 300.0


def blocks(cells: Sequence[Cell], seed: int) -> list[list[Cell]]:
    """Return the cells in the order to run them: one block per repeat, each shuffled with the study's seed.

    A slow drift of the machine then falls on all cells alike, and the first block alone already gives a whole picture.
    """
    found = {n: [cell for cell in cells if cell.config.repeat == n] for n in sorted({c.config.repeat for c in cells})}
    for repeat, block in found.items():
        random.Random(f"{seed}/{repeat}").shuffle(block)
    return list(found.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """Nodes asked for once, and the cells that are run on them; several tasks are a job array."""

    partition: str
    nodes: int
    tasks: tuple[tuple[Cell, ...], ...]  # in the order in which they are run
    seconds: float  # expected, of all tasks one after the other
    time_limit_s: float  # of each task

    @property
    def placement(self) -> Placement:
        """How the workers sit on the nodes, the same for all cells."""
        return self.tasks[0][0].placement

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, in the order in which they are run."""
        return tuple(cell for task in self.tasks for cell in task)


def allocate(
    cells: Sequence[Cell], partitions: Mapping[str, Partition], seconds_of: Callable[[Cell], float], *, seed: int
) -> tuple[Allocation, ...]:
    """Return the jobs that run `cells`, each cell in exactly one; few workers first, partitions in their order.

    `seconds_of` says how long a cell is expected to take; `seed` is that of the order within each repeat.
    """
    groups: dict[tuple[str, tuple[int, ...], tuple[str, ...]], list[Cell]] = {}
    for cell in cells:
        where = cell.placement
        groups.setdefault((where.partition, where.per_node, where.hosts), []).append(cell)
    order = {name: place for place, name in enumerate(partitions)}
    allocations = []
    for key in sorted(groups, key=lambda key: (order[key[0]], sum(key[1]), len(key[1]), key[1], key[2])):
        longest_s = partitions[key[0]].time_limit_s
        room_s = math.inf if longest_s is None else max(0.0, (longest_s - START_S) / MARGIN)
        tasks, expected_s = list[list[Cell]](), list[float]()
        for cell in (cell for block in blocks(groups[key], seed) for cell in block):
            if not tasks or expected_s[-1] + seconds_of(cell) > room_s:  # a cell that never fits is a task of its own
                tasks.append([])
                expected_s.append(0.0)
            tasks[-1].append(cell)
            expected_s[-1] += seconds_of(cell)
        asked = {"seconds": sum(expected_s), "time_limit_s": time_limit_s(max(expected_s), longest_s)}
        allocations.append(Allocation(partition=key[0], nodes=len(key[1]), tasks=tuple(map(tuple, tasks)), **asked))
    return tuple(allocations)


def time_limit_s(expected_s: float, longest_s: float | None) -> float:
    """Return the seconds to ask for: the expected ones with a margin in whole five minutes, at most `longest_s`."""
    wanted_s = max(900.0, STEP_S * math.ceil((MARGIN * expected_s + START_S) / STEP_S))
    return wanted_s if longest_s is None else min(wanted_s, longest_s)


PROGRAM = "horovod_study.studies.job"

_PATIENCE = "OMPI_MCA_odls_base_sigkill_timeout"
_LISTED = 200  # a script of more cells names the first ones only
# What sbatch and a job need of the caller's environment: who and where, the language of messages, where Slurm is, and
# how modules are found. Everything else would make jobs depend on the shell they were submitted from.
_KEPT = frozenset(
    """
    HOME USER LOGNAME SHELL PATH LANG LANGUAGE LC_ALL LC_CTYPE TZ TMPDIR XDG_CACHE_HOME SLURM_CONF
    BASH_ENV MODULEPATH MODULESHOME MODULES_CMD LMOD_CMD LMOD_DIR LMOD_PKG LMOD_ROOT
    """.split()
)
_KEPT_PREFIXES = ("HOROVOD_STUDY_", "BASH_FUNC_module", "BASH_FUNC_ml")
_OWN_SETTINGS = [
    "# Settings of the shell that submitted this are no part of the study.",
    'for name in "${!HOROVOD_@}" "${!OMPI_@}" "${!PMIX_@}" "${!NCCL_@}" "${!SBATCH_@}" "${!PYTHON@}"; do',
    '    case "$name" in HOROVOD_STUDY_*) ;; *) unset "$name" ;; esac',
    "done",
    "unset SLURM_EXPORT_ENV LD_PRELOAD",
]
_MODULES = """\
# A job's shell does not always know `module`.
if ! type module >/dev/null 2>&1; then
    for file in /etc/profile.d/lmod.sh /etc/profile.d/modules.sh /usr/share/lmod/lmod/init/bash \\
        /usr/share/Modules/init/bash /usr/share/modules/init/bash; do
        if [ -r "$file" ]; then
            # shellcheck source=/dev/null
            . "$file"
            break
        fi
    done
fi"""


def script(
    allocation: Allocation,
    partition: Partition,
    *,
    folder: Path,
    name: str,
    python: Path,
    code: Path | None,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Return the job script of `allocation`, which runs the job in `folder` with `python`.

    `name` is the job's name, `code` goes on PYTHONPATH, `variables` are exported beside those of the partition. Give it
    to sbatch with `folder` as working directory: its output goes there. ConfigError: a value cannot be in a script.
    """
    cells = [cell for task in allocation.tasks for cell in task]
    array = len(allocation.tasks) > 1
    lines = ["#!/bin/bash"]
    for option, value in directives(allocation, partition, name=name):
        lines.append(f"#SBATCH --{option}" + ("" if value is None else f"={value}"))
    workers = cells[0].placement.workers
    what = f"Study {cells[0].config.study}, partition {partition.name}: {plural(len(cells), 'cell')} of"
    where = f"{plural(workers, 'worker')} on {plural(allocation.nodes, 'node')}, about {duration(allocation.seconds)}"
    lines += ["", _comment(f"{what} {where} in all.")]
    lines += ["# Made by `horovod-study run`, which submits it; without it: cd to its folder, then sbatch script.sh"]
    lines += ["# The cells, in the order in which they are run:"]
    for number, task in enumerate(allocation.tasks):
        lines += [f"# task {number}:"] if array else []
        lines += [_comment(f"  {cell.name}  {cell.key}") for cell in task]
    if len(lines) > _LISTED:
        lines = [*lines[:_LISTED], _comment(f"  and {len(cells)} in all; job.json lists them")]
    lines += ["", "set -euo pipefail"]
    as_typed = cells[0].config.workload.folder is not None
    lines += [] if as_typed else ["", *_OWN_SETTINGS]
    if partition.modules:
        lines += ["", *_MODULES.splitlines()]
        lines += ["set +u  # module functions use variables that are not set", "module purge"]
        lines += [f"module load {_quoted('modules', module)}" for module in partition.modules]
        lines += ["set -u"]
    lines.append("")
    if _PATIENCE not in partition.environment and not as_typed:
        lines.append("# When the job is taken off its nodes, mpirun lets its ranks write a checkpoint (default: 1 s).")
        lines.append(f"export {_PATIENCE}=3")
    exported = {**(variables or {}), **partition.environment}
    for variable, value in exported.items():
        if variable in partition.because and variable in partition.environment:
            lines += [_comment(f"{variable}: {line}") for line in partition.because[variable].splitlines()]
        lines.append(f"export {variable}={_quoted(f'environment: {variable}', value)}")
    if as_typed:
        lines.append(f'export {SHELL}PYTHONPATH="${{PYTHONPATH-}}"  # what follows is for this program alone')
    if code is not None:
        lines.append(f"export PYTHONPATH={_quoted('the folder of the study', str(code))}")
    command = (_quoted("the path of Python", str(python)), "-P", "-m", PROGRAM, _quoted("the folder", str(folder)))
    lines += ["", f"exec {' '.join(command)}"]
    return "\n".join(lines) + "\n"


def directives(allocation: Allocation, partition: Partition, *, name: str) -> list[tuple[str, str | None]]:
    """Return sbatch's options as (name, value); None: it has no value. ConfigError names the key of a bad value."""
    placement = next(cell.placement for task in allocation.tasks for cell in task)
    per_node = max(placement.per_node)
    gres = None if partition.gres is None else partition.gres.replace("{gpus}", str(per_node))
    asked = (  # by sbatch's option: the key of the partition, its value
        ("partition", "slurm_partition", partition.slurm_partition),
        *((key, key, getattr(partition, key)) for key in ("account", "qos", "constraint")),
        ("nodes", "", str(allocation.nodes)),
        ("nodelist", "hosts", ",".join(placement.hosts) or None),
        ("ntasks-per-node", "", str(per_node)),
        ("cpus-per-task", "", str(partition.cores_per_worker)),
        ("gres", "gres", gres),
    )
    found: list[tuple[str, str | None]] = [("job-name", _directive("job name", name))]
    of = f"partition {partition.name}"
    found += [(option, _directive(f"{of}: {key}", value)) for option, key, value in asked if value is not None]
    memory_mb = partition.memory_per_core_mb
    found += [] if memory_mb is None else [("mem-per-cpu", f"{memory_mb}M")]
    found += [("exclusive", None)] if partition.exclusive else []
    # So long before the time limit the running cell is told to write a checkpoint (Slurm may be a minute early).
    lead_s, tasks = min(120, int(allocation.time_limit_s / 4)), len(allocation.tasks)
    found += [("time", slurm_time(allocation.time_limit_s)), ("signal", f"B:USR1@{lead_s}")]
    found += [("requeue" if partition.requeue else "no-requeue", None)]
    found += [("array", f"0-{tasks - 1}")] if tasks > 1 else []
    # Relative to the folder it is submitted from: a path could hold what sbatch takes for a pattern.
    return [*found, ("output", "output-%A_%a.log" if tasks > 1 else "output-%j.log"), ("open-mode", "append")]


def slurm_time(seconds: float) -> str:
    """Return a time limit as Slurm reads it, full minutes upwards: 5400 -> 1:30:00, 172800 -> 2-00:00:00."""
    minutes = max(1, math.ceil(seconds / 60))
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:00" if days else f"{hours}:{minutes:02}:00"


def _directive(key: str, value: str) -> str:
    # sbatch splits its options at blanks and takes quotes, backslashes and # out of them; commas and the rest have
    # meanings that a user of Slurm may want, such as `--constraint=[rack1|rack2]`.
    odd = not re.fullmatch(r"[A-Za-z0-9_.,:;@%+=/&|!*()\[\]{}<>?~^-]+", value)
    allowed = "letters, digits and _ . , : ; @ % + = / & | ! * ( ) [ ] - without blanks or quotes"
    refuse("", (odd, f"{key} is {value!r}, which cannot be in a job script; allowed: {allowed}"))
    return value


def _quoted(key: str, value: str) -> str:
    broken = f"{key} is {value!r}; a job script takes no line break there; rename it"
    refuse("", ("\0" in value or "\n" in value, broken))
    return shlex.quote(value)


def _comment(text: str) -> str:
    """Return one line of comment; what could end it or move the cursor is shown as its code."""
    return "# " + "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def submit_environment(environ: Mapping[str, str], *, as_typed: bool = False) -> dict[str, str]:
    """Return what sbatch, and with it the job, gets of the caller's environment; `as_typed`: all that is no job's."""
    ours = {name for name in environ if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
    theirs = {name for name in environ if as_typed and not describes_enclosing_job(name)}
    return {name: value for name, value in environ.items() if name in ours | theirs}
