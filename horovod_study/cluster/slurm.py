"""Slurm: cells put into jobs, the script of a job as pure text, and where submitted jobs stand.

There is a job for each way of placing workers, so that its runtimes and repeats alternate on the same nodes in the same
hour. Where the longest job that a partition allows is too short for its cells, the job becomes an array of tasks.

A script asks for nodes, sets up what the partition says, and becomes `python -m horovod_study.studies.job FOLDER`,
which runs the cells of the job. Nothing in it depends on the shell of whoever submits it. Text from users is quoted for
the shell; what is in #SBATCH lines, which no shell reads, is refused where it could mean something else there.

A submitted job is a folder RUNS/<study>/.jobs/<name>/, written completely before Slurm hears of it:

    job.json            the cells of each task, and all that the program inside the job needs (`Job`)
    script.sh           what is given to sbatch
    study.yaml, partition.yaml      the study's file as it was, and what was known of the partition
    note-<task>.json    the job's own word on how it fares (`Note`), written by job.py
    output-<id>.log     what the job printed

The folder's name is the job's name in Slurm, by which it is found also where nobody has noted the number. Where a
job stands is asked in this order: squeue, which knows waiting and running jobs and for some minutes ended ones; sacct
for older ones, where the site keeps such records; else the job's own notes.
"""

import json
import math
import os
import random
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from horovod_study.cluster.launch import describes_enclosing_job
from horovod_study.cluster.remote import run_on
from horovod_study.config.documents import read_json, shown
from horovod_study.config.partitions import Partition
from horovod_study.config.run import Cell, Placement
from horovod_study.config.scripted import workload_at
from horovod_study.config.variables import SHELL
from horovod_study.config.workload import packaged
from horovod_study.errors import RecordError, refuse
from horovod_study.files import write_file
from horovod_study.measure.clock import utc_now
from horovod_study.measure.environment import numbers_of
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


JOBS = ".jobs"
JOB_FILE = "job.json"
_ASK_TIMEOUT_S = 30.0
_NEVER_STARTS = {  # reasons why a job waits that do not go away by themselves, in words
    "PartitionConfig": "the partition has too few such nodes",
    "PartitionNodeLimit": "the partition gives a job fewer nodes",
    "PartitionTimeLimit": "the partition ends jobs sooner",
}
_STATES = {  # what Slurm's states (manual pages of squeue, sacct) and their short forms are called here
    "pending": "PENDING PD CONFIGURING CF REQUEUED RQ REQUEUE_FED RF REQUEUE_HOLD RH SPECIAL_EXIT SE RESV_DEL_HOLD RD",
    "running": "RUNNING R COMPLETING CG SUSPENDED S STOPPED ST SIGNALING SI STAGE_OUT SO RESIZING RS",
    "completed": "COMPLETED CD",
    "failed": "FAILED F",
    "timed out": "TIMEOUT TO DEADLINE DL",
    "pre-empted": "PREEMPTED PR",
    "cancelled": "CANCELLED CA REVOKED RV",
    "out of memory": "OUT_OF_MEMORY OOM",
    "node failed": "NODE_FAIL NF BOOT_FAIL BF",
}
_MEANING = {word: meant for meant, words in _STATES.items() for word in words.split()}
_NO_REASON = frozenset(("", "None", "(null)", "NonZeroExitCode"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One submitted job, or one element list of a job array; `job_id` is "" until Slurm has given a number."""

    name: str
    study: str
    partition: str
    tasks: tuple[tuple[str, ...], ...]  # keys of the cells of each task, in the order in which they are run
    nodes: int
    time_limit_s: float
    written: str  # UTC
    user: str = ""
    job_id: str = ""
    submitted: str = ""  # UTC; "" until submitted
    refused: str = ""  # why it was never submitted
    requeue: bool = True
    inside: Mapping[str, Any] = field(default_factory=dict)  # what job.py needs; opaque here


def job_folder(directory: Path, name: str) -> Path:
    """Return the folder of the job `name` of the study in `directory`."""
    return directory / JOBS / name


def write_job(directory: Path, job: Job) -> None:
    """Write job.json, completely or not at all."""
    folder = job_folder(directory, job.name)
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / JOB_FILE, json.dumps(asdict(job), indent=1) + "\n")


def read_job(folder: Path) -> Job:
    """Read the job in `folder`; RecordError: its job.json is missing or damaged."""
    path = folder / JOB_FILE
    again = f"move {shown(folder)} away, then cancel job {shown(folder.name)} with scancel --name"
    job: Job = read_json(path, Job, again=again, missing="no such file; name the folder of a submitted job")
    return job


def read_jobs(directory: Path) -> list[Job]:
    """Return the jobs of the study in `directory`, oldest first; a folder without job.json was never submitted."""
    found = [read_job(path.parent) for path in sorted((directory / JOBS).glob(f"*/{JOB_FILE}"))]
    return sorted(found, key=lambda job: (job.written, job.job_id.zfill(12), job.name))


def cell_values(cell: Cell) -> dict[str, Any]:
    """Return a cell as plain values, from which `cell_of` makes it again."""
    values = {"key": cell.key, "label": cell.label, "config": vars(cell.config), "runtime": cell.runtime}
    values |= {"placement": cell.placement.meaning(), "identity": cell.identity}
    file = cell.config.workload.file
    return values if file is None else values | {"workload": str(file)}


def cell_of(values: Mapping[str, Any]) -> Cell:
    """Return the cell that `cell_values` described; RecordError: it would be another one here."""
    placement, runtime = dict(values["placement"]), values["runtime"]
    placement["hosts"] = tuple(placement.get("hosts", ()))
    workload = workload_at(Path(values["workload"])) if "workload" in values else packaged()
    label = values.get("label") or f"{runtime}, {plural(placement['workers'], 'worker')}"  # older jobs tell none
    how: dict[str, Any] = {"runtime": runtime, "placement": Placement(**placement), "identity": values["identity"]}
    cell = Cell(config=workload.configure(values["config"]), label=label, **how)
    if cell.key != values["key"]:
        raise RecordError(f"cell {values['key']} of the job is {cell.key} to this program; submit the study again")
    return cell


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """What a job said last about one of its tasks."""

    job_id: str
    host: str
    state: str  # running, or how it ended: as `meaning` calls it
    reason: str = ""
    cell: str = ""  # key of the one that runs
    restarts: int = 0  # how often Slurm started the job again
    started: str = ""
    said: str = ""  # UTC
    left_out: tuple[str, ...] = ()  # keys of cells that did not fit into the time left


def note_path(directory: Path, name: str, task: int) -> Path:
    """Return where task `task` of the job `name` writes its note."""
    return job_folder(directory, name) / f"note-{task}.json"


def write_note(directory: Path, name: str, task: int, note: Note) -> None:
    """Write a note, completely or not at all."""
    write_file(note_path(directory, name, task), json.dumps(asdict(replace(note, said=utc_now()))) + "\n")


def read_note(directory: Path, name: str, task: int) -> Note | None:
    """Return the latest note, or None when there is none that can be read."""
    with suppress(RecordError):
        note: Note = read_json(note_path(directory, name, task), Note, again="")
        return note
    return None


Ask = Callable[[Sequence[str]], str | None]
"""Runs a command and returns what it printed, or None when it is not there, fails, or does not answer in time."""


def ask(command: Sequence[str]) -> str | None:
    """Run a command of Slurm's in the user's environment, less what would change what it prints."""
    changing = ("SQUEUE_", "SACCT_", "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(changing)}
    answer = run_on("", command, timeout_s=_ASK_TIMEOUT_S, environ={**environ, "LC_ALL": "C"})
    return answer.output if answer.exit_code == 0 else None


class Row(NamedTuple):
    """What Slurm says about a task."""

    job_id: str  # of the whole job
    task: int | None  # None: not an array
    name: str
    state: str  # as `meaning` calls it
    reason: str


def meaning(state: str) -> str:
    """Return what a state of Slurm's is called here, "unknown" for others: "CANCELLED by 1000" -> "cancelled"."""
    word = state.split()[0].rstrip("+").upper() if state.split() else ""
    return _MEANING.get(word, "unknown")


def parse_squeue(text: str) -> list[Row]:
    """Read what `squeue --noheader --array --format` printed; lines of another form are passed over.

    The fields: number, number of the whole job, number in the array, state, reason, name, nodes.
    """
    rows = []
    for line in text.splitlines():
        parts = line.strip().split("|")
        if len(parts) != 7 or not parts[1].isdigit():
            continue
        _, job_id, index, state, reason, name, nodes = parts
        state, reason = meaning(state), "" if reason in _NO_REASON else reason
        if state == "pending" and reason in _NEVER_STARTS:
            reason += f": it will never start, {_NEVER_STARTS[reason]}"
        if state == "running" and nodes:
            reason = f"on {nodes}" + (f", {reason}" if reason else "")
        rows += [Row(job_id, task, name, state, reason) for task in _tasks(index)]
    return rows


def parse_sacct(text: str) -> list[Row]:
    """Read what `sacct --allocations --noheader --parsable2` printed; lines of another form are passed over."""
    rows = []
    for line in text.splitlines():
        parts = line.strip().split("|")
        number = re.fullmatch(r"(\d+)(?:_(\[?[\d,%-]+\]?))?", parts[0]) if len(parts) == 4 else None
        if number is None:
            continue
        state, (code, _, by) = parts[2], parts[3].partition(":")
        reason = f"by user {state[13:]}" if state.startswith("CANCELLED by ") else ""
        if meaning(state) == "failed":
            reason = f"ended by signal {by}" if by not in ("", "0") else f"exit code {code}"
        rows += [Row(number[1], task, parts[1], meaning(state), reason) for task in _tasks(number[2] or "N/A")]
    return rows


def _tasks(index: str) -> list[int | None]:
    """Return the numbers meant by an index such as `3`, `[4-6,9]`, `[0-99%10]`; [None]: no array."""
    with suppress(ValueError):
        return list(numbers_of(index.strip("[]").partition("%")[0]))
    return [None]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobState:
    """Where the job of a cell stands, and who said so."""

    state: str  # as `meaning` calls it
    reason: str
    job_id: str
    asked: str = "run directories"  # squeue | sacct | run directories
    restarts: int = 0
    left_out: bool = False  # the job did not start this cell: too little time was left

    @property
    def live(self) -> bool:
        """The job waits or runs: what it holds must not be submitted again."""
        return self.state in ("pending", "running")


_Place = tuple[str, int]  # The name of a job and the number of one of its tasks


class JobBook:
    """Where the jobs of a study stand: one reading of the folders, at most one question to squeue and one to sacct."""

    def __init__(self, directory: Path, *, ask: Ask = ask) -> None:
        """Read the jobs below the study's folder `directory`; Slurm is asked when the first state is wanted."""
        self._directory, self._ask = directory, ask
        self.jobs = read_jobs(directory)
        self._places = {
            (job.name, number): job for job in self.jobs if not job.refused for number in range(len(job.tasks))
        }
        # Oldest first: a later job takes the cell over.
        self._latest = {key: place for place, job in self._places.items() for key in job.tasks[place[1]]}
        self._heard = True

    def of(self, key: str) -> JobState | None:
        """Return where the latest job with the cell `key` stands; None: no job was ever submitted with it."""
        place = self._latest.get(key, ("", 0))
        state, note = self.states.get(place), self._notes.get(place)
        return None if state is None else replace(state, left_out=note is not None and key in note.left_out)

    def has_ended(self, number: str) -> bool:
        """Return whether a job of this study, 12 or 12_3 as Slurm calls it, neither waits nor runs any more."""
        base, _, task = number.partition("_")
        states = (self.states.get((job.name, int(task or 0))) for job in self.jobs if job.job_id == base)
        return any(state is not None and not state.live for state in states)

    def live(self) -> list[tuple[Job, int, JobState]]:
        """Return the tasks that wait or run."""
        return [(self._places[place], place[1], state) for place, state in self.states.items() if state.live]

    def unheard(self) -> list[tuple[Job, int]]:
        """Return the tasks that may wait or run although nobody can say so, because squeue does not answer."""
        told = {place: each for place, each in self.states.items() if each.asked == "run directories"}
        may = {place: each.live or each.state == "unknown" for place, each in told.items()}
        may |= {place: self._places[place].requeue for place, each in told.items() if each.state == "pre-empted"}
        return [(self._places[place], place[1]) for place, can in may.items() if can and not self._heard]

    def job_id(self, name: str) -> str:
        """Return the number that Slurm gave to the job `name`, also where its folder does not know it; "": none."""
        return next((each.job_id for place, each in self.states.items() if place[0] == name and each.job_id), "")

    @cached_property
    def _notes(self) -> dict[_Place, Note | None]:
        return {place: read_note(self._directory, *place) for place in self._places}

    @cached_property
    def states(self) -> dict[_Place, JobState]:
        """Where every task stands that Slurm has heard of, in the order of the jobs."""
        # One that is completed is final: nothing is asked about it.
        final = {place: note for place, note in self._notes.items() if note is not None and note.state == "completed"}
        found = {place: _from_note(note) for place, note in final.items()}

        def left() -> dict[_Place, Job]:
            return {place: job for place, job in self._places.items() if place not in found}

        if rest := left():
            names = sorted({name for name, _ in rest})
            # By name and not by number: squeue refuses the whole question when one number is no longer known. A command
            # line has room for more names, but then a question for all jobs of the user is shorter.
            filters = [f"--name={','.join(names)}"] if len(names) <= 500 else ["--me"]
            columns = "--format=%i|%F|%K|%T|%r|%j|%N"
            text = self._ask(("squeue", "--noheader", "--array", "--states=all", *filters, columns))
            self._heard = text is not None
            self._take(parse_squeue(text or ""), rest, found, "squeue")
        if rest := left():
            command = ["sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,JobName,State,ExitCode"]
            if numbers := sorted({job.job_id for job in rest.values() if job.job_id}):
                text = self._ask((*command, f"--jobs={','.join(numbers)}"))
                self._take(parse_sacct(text or ""), rest, found, "sacct")
            if nameless := {job.name: job for place, job in rest.items() if not job.job_id and place not in found}:
                since = min(job.written for job in nameless.values())[:10]
                text = self._ask((*command, f"--name={','.join(sorted(nameless))}", f"--starttime={since}"))
                self._take(parse_sacct(text or ""), rest, found, "sacct")
        found |= {place: state for place, job in left().items() if (state := self._from_folder(job, place)) is not None}
        return {place: found[place] for place in self._places if place in found}

    def _take(
        self, rows: Iterable[Row], wanted: Mapping[_Place, Job], states: dict[_Place, JobState], asked: str
    ) -> None:
        """Keep what is said about `wanted`; the later of two lines about one task is the newer."""
        for row in rows:
            place = (row.name, row.task or 0)
            job = wanted.get(place)
            if job is None or (job.job_id and job.job_id != row.job_id):
                continue
            note, reason, restarts = self._notes[place], row.reason, 0
            if note is not None and note.job_id.partition("_")[0] == row.job_id:
                restarts = note.restarts
                if row.state == "pending":
                    reason = f"started before, queued again{f' ({reason})' if reason else ''}"
                elif row.state != "running":
                    reason = "; ".join(filter(None, (reason, note.reason)))
            states[place] = JobState(state=row.state, reason=reason, job_id=row.job_id, asked=asked, restarts=restarts)

    def _from_folder(self, job: Job, place: _Place) -> JobState | None:
        """Say where a task stands that Slurm says nothing about, whether squeue answered or not."""
        note, state, why = self._notes[place], "unknown", "Slurm no longer knows the job, and it never wrote a word"
        if note is not None:
            # One that refreshes its note every 30 s and has not done so for this long is taken for ended.
            silent = self._heard or silent_s(note_path(self._directory, *place), note.said) >= 300.0
            if note.state != "running" or not silent:
                return _from_note(note)
            why = f"the job ended without saying how; its last word was at {note.said} on {note.host}"
        elif not self._heard:  # taken for waiting: to submit it a second time would be worse than to wait
            state, why = "pending", "squeue does not answer here"
            why += "" if job.job_id else "; it is not known whether it was submitted"
        elif not job.job_id:
            return None
        return JobState(state=state, reason=why, job_id=job.job_id)


def _from_note(note: Note) -> JobState:
    reason = note.reason or (f"on {note.host}" if note.state == "running" else "")
    return JobState(state=note.state, reason=reason, job_id=note.job_id.partition("_")[0], restarts=note.restarts)


def silent_s(path: Path, said: str) -> float:
    """Return the seconds since a file was written, by its own date or by what it says, whichever is later."""
    dates = [0.0]
    with suppress(OSError):
        dates.append(path.stat().st_mtime)
    with suppress(ValueError):
        dates.append(datetime.fromisoformat(said).timestamp())
    return max(0.0, datetime.now(UTC).timestamp() - max(dates))
