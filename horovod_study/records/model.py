"""What a run directory holds: names of files, the record in run.json, the columns of rows, digests.

    runs/<study>/<key>/
      run.json               what was asked for, what ran, where, and how it ended; written before the first step
      steps-00000.arrows     one row per step and rank: an Arrow stream, readable to its last batch after a crash
      epochs.csv             one row per evaluation: losses and errors against epochs, samples and seconds
      bench.json             what the job measured after its timed window, with --measure-sync, --measure-ablation
      system-<host>.arrows   what the sensors of a host read, one row per sample and part, see measure/system.py
      profile/               what a profiler wrote, per rank, with --profile (workload/probes/profiling.py)
      timeline.json          Horovod's own timeline of some steps, with --timeline-steps (workload/probes/profiling.py)
      checkpoints/           the newest two states of the run, see workload/checkpoint.py
      .reserve               while it runs: room for its end on a disk that is full by then

History of the schema number in run.json. A program refuses a number that it does not know:
    1   first form
    2   `attempts` lists every start of the run, because a run can be stopped and resumed; new status `stopped`
    3   step rows have `begin_s` and `sync_host_s`; every lap may be null, as scripts do not mark all of them
    4   step rows have `compute_s`: of steps captured in a CUDA graph, for `forward_s` and `backward_s`, null there
    5   `process`, of the run and of each attempt: who rank 0 is beyond its number (cluster/alive.py); null: unknown
    6   `files` and `digest`, of a run that is done: digests of its other files and of the record, to find later changes
"""

import hashlib
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from horovod_study.cluster import alive
from horovod_study.config.documents import shown
from horovod_study.config.run import LAPS
from horovod_study.errors import RecordError

if TYPE_CHECKING:  # the run wing records without pandas
    import pyarrow as pa

SCHEMA = 6
MANIFEST, BENCH, EPOCHS, TIMELINE, RESERVE = "run.json", "bench.json", "epochs.csv", "timeline.json", ".reserve"
CHECKPOINTS, PROFILE = "checkpoints", "profile"
BENCH_SCHEMA = SYSTEM_SCHEMA = 1
SYSTEM_META = b"horovod_study"
STEP_FILE = re.compile(r"steps-(\d{5,6})\.arrows", re.ASCII)
RUN_FILES = (MANIFEST, BENCH, EPOCHS, "steps-*.arrows", "system-*.arrows")
LAP_COLUMNS = tuple(f"{lap}_s" for lap in (*LAPS, "residual", "step"))
EPOCH_COLUMNS = (
    *("epoch", "steps", "samples", "train_s", "wall_s"),
    *("train_mse", "test_mse", "g0_rmse_mpa", "a_rmse", "lr"),
)
ALL_STEPS = (0, sys.maxsize)
COMMAND = "command"
"""The library, in tables, of a run of a command in which no step was seen, of which none is known."""
MAX_TRAININGS = 8
"""Trainings of one process that are recorded, one after the other."""
_FOUND_BY = {
    "change-point": "before the change-point at which the steady state begins",
    "no change-point": "declared as warm-up; no change-point after it",
    "declared": "declared as warm-up",
}
_STATUSES = ("running", "done", "failed", "stopped")


class NoRoom(RecordError):
    """The disk is full, or the user's share of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """The content of run.json: one training run, described so that it can be repeated and doubted."""

    study: str
    key: str
    repeat: int
    partition: str
    status: str  # running | done | failed | stopped (by a signal, with a checkpoint, to be resumed)
    started: str  # ISO 8601, UTC; of the first attempt
    host: str  # of rank 0, as is pid; of the latest attempt
    pid: int
    requested: Mapping[str, Any]
    effective: Mapping[str, Any]  # read back from the live objects, see recording/
    environment: Mapping[str, Any]
    reason: str = ""
    finished: str | None = None
    totals: Mapping[str, Any] = field(default_factory=dict)  # of the timed window; empty until done
    attempts: Sequence[Mapping[str, Any]] = ()  # every start of the run, in order; see `attempt`
    process: Mapping[str, Any] | None = None  # alive.identity() of rank 0, of the latest attempt
    files: Mapping[str, str] = field(default_factory=dict)  # digests of what else a run wrote that is done
    digest: str = ""  # of the rest of run.json of a run that is done; empty of one of an older program, too
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.status not in _STATUSES:
            raise RecordError(f"run record: status is {self.status!r}; allowed: {', '.join(_STATUSES)}")
        object.__setattr__(self, "attempts", tuple(self.attempts) or (self.attempt(self.started, from_step=0),))

    def attempt(self, began: str, *, from_step: int) -> dict[str, Any]:
        """Return what `attempts` says of the start of the run that this record describes."""
        how, who = facts(self, "finished", "status", "reason"), facts(self, "host", "pid", "process")
        return {"started": began, **how, "from_step": from_step, **who}

    def state(self) -> str:
        """Return the status as it is now: a run that says running but whose process is gone is incomplete.

        Processes of another host cannot be seen from here: a run there is believed, see `silent_s` too.
        """
        if self.status != "running":
            return self.status
        began = str(self.attempts[-1].get("started", ""))
        # One that is finished was ended by the study runner, neither done nor failed.
        there = self.finished is None and alive.is_running(self.process, pid=self.pid, host=self.host, started=began)
        return "running" if there else "incomplete"


def training_directory(out: Path, training: int) -> Path:
    """Return the run directory of the training of this number, from 1, of processes that are recorded in `out`."""
    return out if training == 1 else out.with_name(f"{out.name}-training{training}")


def record_text(record: RunRecord) -> str:
    # A run that diverged has totals that are no numbers; JSON has none of those, and unknown is null.
    return json.dumps(finite(asdict(record)), indent=1, allow_nan=False) + "\n"


def digest_of_record(record: RunRecord) -> str:
    return own_digest(json.loads(record_text(record)))


def unlike_written(record: RunRecord, there: Mapping[str, str]) -> dict[str, str]:
    """Return {file: what is wrong} of what is not as the run itself wrote it down when it was done.

    `there`: `run_files` of its directory as it is now. A run without `digest` says nothing, nor does a run of a file
    that another host wrote and rank 0 did not see yet.
    """
    if not record.digest:
        return {}
    found = {MANIFEST: "its digest is that of another text"} if record.digest != digest_of_record(record) else {}
    for name, digest in record.files.items():
        if there.get(name) != digest:
            found[name] = "is not the file that the run wrote" if name in there else "the run wrote it, and it is gone"
    return found


def mean_over_ranks(values: Sequence[float | None]) -> float | None:
    """Return the mean of one number of each rank; None unless all know theirs: that of some looks alike."""
    known = _of_all(values)
    return sum(known) / len(known) if known else None


def max_over_ranks(values: Sequence[float | None]) -> float | None:
    """Return the largest of one number of each rank; None unless all ranks know theirs."""
    return max(_of_all(values), default=None)


def _of_all(values: Sequence[float | None]) -> list[float]:
    known = [value for value in values if value is not None and not math.isnan(value)]
    return known if len(known) == len(values) else []


def step_totals(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the totals that step rows give, in seconds, of the ranks' `Recorder.summary`; unknown is None."""
    means = {name: mean_over_ranks([each["mean"][name] for each in summaries]) for name in LAP_COLUMNS}
    medians = {name: mean_over_ranks([each["median"][name] for each in summaries]) for name in LAP_COLUMNS[:-1]}
    return {
        "step_s_median": max_over_ranks([each["median"]["step_s"] for each in summaries]),
        "step_s_p90": max_over_ranks([each["step_s_p90"] for each in summaries]),
        **means,
        "lap_medians_s": {name.removesuffix("_s"): value for name, value in medians.items()},
    }


def finite(value: Any) -> Any:
    """Return a value as JSON takes it: dataclasses by their DOCUMENT or fields, tables by rows, numbers of numpy as
    Python's, None for what is no finite number.

    DOCUMENT: `name` or `name=attribute` each, where `name?` is None if it is empty, and `*attribute` a mapping to join.
    """
    if hasattr(value, "columns"):
        value = value.to_dict("records")
    elif hasattr(value, "to_dict"):
        value = value.to_dict()
    elif isinstance(value, SimpleNamespace):
        value = vars(value)
    elif hasattr(value, "DOCUMENT"):
        value = _declared(value)
    elif is_dataclass(value):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    if hasattr(value, "tolist"):
        return finite(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _declared(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for told in value.DOCUMENT.split():
        name, _, path = told.partition("=")
        each = attrgetter(path or name.strip("*?"))(value)
        found |= each if name[0] == "*" else {name.rstrip("?"): each or None if name[-1] == "?" else each}
    return found


def facts(value: Any, *names: str) -> dict[str, Any]:
    """Return attributes of a value by their names, each as `finite` gives it."""
    return {name: finite(getattr(value, name)) for name in names}


def step_schema() -> "pa.Schema":
    """Return the columns of a step row, 96 bytes; docs/metrics.md defines them.

    `begin_s` counts from the first step of the run, at a barrier, on the clock of the rank's host; it is the axis of
    `wall_s` in epochs.csv and of the system samples too. `sync_host_s` is null where there is one clock only (a CPU).
    """
    import pyarrow as pa

    return pa.schema(
        [("step", pa.int32()), ("epoch", pa.int32()), ("begin_s", pa.float64())]
        + [(name, pa.float64()) for name in (*LAP_COLUMNS, "sync_host_s")]
        + [("samples", pa.int32()), ("loss", pa.float32())]
    )


def system_schema() -> "pa.Schema":
    """Return the columns of a system sample; docs/system.md defines them.

    One row per sample and `part`: "rank 0" (its process tree), "host", "gpu 0", "package 0" (of the processors). What
    a part has not is null. Bytes and context switches are counts since the reading before: over `interval_s` seconds,
    switches over `switches_over_s`. `energy_j` counts up from the first sample of the `attempt` (0 is the start of the
    run, 1 the first time it was resumed). `at_s` is on the axis of `begin_s` in the step rows, and negative before the
    run's zero.
    """
    import pyarrow as pa

    numbers = "cpu_percent rss_mb own_mb pss_mb available_mb load1 sampler_cpu_percent switches_over_s"
    counts = (
        "processes threads voluntary_switches involuntary_switches read_bytes written_bytes received_bytes sent_bytes "
        "loopback_bytes rdma_received_bytes rdma_sent_bytes"
    )
    sensors = "gpu_percent gpu_memory_mb sm_mhz memory_mhz temperature_c power_w energy_j"
    return pa.schema(
        [("at_s", pa.float64()), ("attempt", pa.int16()), ("part", pa.string()), ("interval_s", pa.float64())]
        + [(name, pa.float64()) for name in numbers.split()]
        + [(name, pa.int64()) for name in counts.split()]
        + [(name, pa.float64()) for name in sensors.split()]
    )


def step_path(directory: Path, rank: int) -> Path:
    return directory / f"steps-{rank:05d}.arrows"


def system_path(directory: Path, host: str) -> Path:
    return directory / f"system-{host.replace('/', '_')}.arrows"


def sampled_hosts(directory: Path) -> list[str]:
    return [path.name.removeprefix("system-").removesuffix(".arrows") for path in sorted(directory.glob(RUN_FILES[-1]))]


def benches_beside(root: Path) -> list[Path]:
    """Return the bench.json that `horovod-study bench --out ROOT/bench` wrote beside the runs, if it is there."""
    return [path for path in (root / "bench" / BENCH,) if path.is_file()]


def profile_paths(directory: Path, profiler: str, rank: int) -> list[Path]:
    """Return the files that a profiler wrote of one rank."""
    return sorted((directory / PROFILE).glob(f"{profiler}-{rank:05d}.*"))


def timed_from(record: RunRecord) -> tuple[int, str]:
    """Return the first step of the timed window of a run, and in words what says so."""
    steady, warmup = record.totals.get("steady"), declared_warmup(record)
    if isinstance(steady, Mapping) and isinstance(steady.get("step"), int):
        return steady["step"], _FOUND_BY.get(steady.get("found_by", ""), "before the steady state")
    return (0, "no warm-up is recorded") if warmup is None else (warmup, "declared as warm-up")


def declared_warmup(record: RunRecord) -> int | None:
    """Return how many steps were declared as warm-up; `train_s` of epochs.csv counts from there."""
    declared = record.effective.get("warmup_steps", record.requested.get("warmup_steps"))
    return declared if isinstance(declared, int) else None


def is_command(record: RunRecord) -> bool:
    """Return whether a run is a whole command in which no step was seen: it has no rows."""
    return record.effective.get("measured") == COMMAND


def rows_lost(record: RunRecord) -> int:
    """Return how many steps of all ranks have no row because the disk was full; those of an older program had none."""
    lost = record.totals.get("rows_lost")
    return sum(lost) if isinstance(lost, Sequence) else int(lost or 0)


def hosts_of(record: RunRecord, ranks: Iterable[int]) -> dict[int, str]:
    """Return the host of each of `ranks`; that of rank 0 where the record does not say."""
    told = record.effective.get("ranks") or []
    return {rank: str(told[rank]["host"]) if rank < len(told) else record.host for rank in ranks}


def step_ranks(directory: Path) -> list[int]:
    """Return the ranks that recorded steps."""
    found = [int(known[1]) for path in directory.glob("steps-*.arrows") if (known := STEP_FILE.fullmatch(path.name))]
    return sorted(rank for rank in found if step_path(directory, rank).exists())


def checkpoint_paths(directory: Path) -> list[Path]:
    """Return the checkpoint files of a run, newest first; whether they are intact is not looked at."""
    found = [path for path in (directory / CHECKPOINTS).glob("step-*.pt") if path.stem[5:].isdecimal()]
    return sorted(found, key=checkpoint_step, reverse=True)


def checkpoint_step(path: Path) -> int:
    """Return the number of steps that a checkpoint file says, by its name, to have been made."""
    return int(path.stem[5:])


def per_node(ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return how many of some recorded ranks sat on how many nodes, the fullest first: `2x8 1x3`; empty if unknown."""
    if not ranks or any("host" not in rank for rank in ranks):
        return ""
    nodes = Counter(Counter(rank["host"] for rank in ranks).values())
    return " ".join(f"{nodes[workers]}x{workers}" for workers in sorted(nodes, reverse=True))


def run_name(directory: Path, root: Path) -> str:
    """Return the name of a run in the tables: its path below `root`, or its own name when it is `root`."""
    name = directory.relative_to(root).as_posix()
    return shown(directory.resolve().name if name == "." else name)


def digest_of(content: bytes) -> str:
    """Return the digest by which a file of an analysis is known again."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def run_files(directory: Path) -> dict[str, str]:
    """Return {file: digest} of what a run directory holds of its measurement; what cannot be read is left out."""
    found = {}
    for path in sorted(each for pattern in RUN_FILES for each in directory.glob(pattern) if each.is_file()):
        with suppress(OSError), path.open("rb") as stream:
            found[path.name] = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    return found


def own_digest(source: Mapping[str, Any]) -> str:
    rest = {name: each for name, each in source.items() if name != "digest"}
    return digest_of(json.dumps(rest, sort_keys=True, allow_nan=False).encode())
