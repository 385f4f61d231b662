"""What a run directory holds: names of files, the models of its documents, the columns of rows, digests.

    runs/<study>/<key>/
      run.json               what was asked for, what ran, where, and how it ended; written before the first step
      steps-00000.arrows     one row per step and rank: an Arrow stream, readable to its last batch after a crash
      epochs.csv             one row per evaluation: losses and errors against epochs, samples and seconds
      bench.json             what the job measured after its timed window, with --measure-sync, --measure-ablation
      system-<host>.arrows   what the sensors of a host read, one row per sample and part, see measure/system.py
      profile/               what a profiler wrote, per rank, with --profile (strain/profiling.py)
      timeline.json          Horovod's own timeline of some steps, with --timeline-steps (strain/profiling.py)
      checkpoints/           the newest two states of the run, see strain/checkpoint.py
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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from types import GenericAlias, SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field, GetCoreSchemaHandler, GetPydanticSchema
from pydantic_core.core_schema import CoreSchema, typed_dict_field, typed_dict_schema

from horovod_study.cluster import alive
from horovod_study.config.documents import shown
from horovod_study.config.doors import BELOW, BESIDE, wrong
from horovod_study.config.run import LAPS
from horovod_study.config.workload import packaged
from horovod_study.errors import RecordError

if TYPE_CHECKING:  # the run wing records without pandas
    import numpy as np
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
COMMAND = "command"
"""The library, in tables, of a run of a command in which no step was seen, of which none is known."""
_FOUND_BY = {
    "change-point": "before the change-point at which the steady state begins",
    "no change-point": "declared as warm-up; no change-point after it",
    "declared": "declared as warm-up",
}


class NoRoom(RecordError):
    """The disk is full, or the user's share of it."""


# ------------------------------------------------------------------------------------------------ forms of documents

# Names below the top that are not declared are of other programs or versions and are not looked at.
_MAX_WORKERS = 100_000
_MAX_COUNT = 10**15
_MAX_NUMBER = 1e40
"""A diverged loss in single precision is smaller; a power of four of it is still a number in double precision."""
_MAX_TIME_S = 1e10

_Number = Annotated[float, Field(strict=True, ge=-_MAX_NUMBER, le=_MAX_NUMBER)]
_Seconds = Annotated[float, Field(strict=True, ge=-_MAX_TIME_S, le=_MAX_TIME_S)]
_Count = Annotated[int, Field(strict=True, ge=0, le=_MAX_COUNT)]
_Positive = Annotated[int, Field(strict=True, ge=1, le=_MAX_COUNT)]
_Workers = Annotated[int, Field(strict=True, ge=1, le=_MAX_WORKERS)]
_Text = Annotated[str, Field(strict=True, max_length=1_000_000)]
_Counts = Annotated[list[_Count], Field(max_length=_MAX_WORKERS)]
_Texts = Annotated[list[_Text], Field(max_length=_MAX_WORKERS)]
_Times = Annotated[list[_Seconds], Field(min_length=2, max_length=10_000_000)]
_Numbers = dict[str, _Number | None]
_KINDS: dict[type, Any] = {bool: bool, int: int, float: _Number, str: _Text}


def _form(*known: Mapping[str, Any], needed: Mapping[str, Any] | None = None) -> Any:
    """Return the form of an object with the parts `known` {name: type}, which may be missing, and those `needed`.

    It stays a dict: with models a study of a thousand runs loads slower.
    """

    def schema(_: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        forms = [(*each, False) for part in known for each in part.items()]
        forms += [(*each, True) for each in (needed or {}).items()]
        fields = {name: typed_dict_field(handler.generate_schema(form), required=at) for name, form, at in forms}
        return typed_dict_schema(fields, extra_behavior="allow", config={"strict": True})

    return Annotated[Mapping[str, Any], GetPydanticSchema(schema)]


def _as(form: Any) -> GetPydanticSchema:
    """Return what follows a type in Annotated whose values have this form."""
    return GetPydanticSchema(lambda _, handler: handler.generate_schema(form))


def _list(form: Any, most: int = _MAX_WORKERS) -> Any:
    return Annotated[list[form], Field(max_length=most)]


def _each(form: Any, names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), form)


def _unknown(form: Any, names: str) -> dict[str, Any]:
    """Return {name: form}, of values that are null where they are not known."""
    return _each(form | None, names)


_SETTINGS = {  # what the tables and the analysis take from what was asked for or from what was in effect
    **_unknown(_Text, "backend transport reduction precision optimizer widths"),
    **_unknown(_Workers, "workers nodes"),
    **_unknown(_Count, "batch global_batch train_samples warmup_steps"),
    "lr": _Number | None,
}
# What was asked for: every option of training has a value of its kind, or none.
_Requested = _form({name: _KINDS[each.kind] | None for name, each in packaged().options.items()}, _SETTINGS)
_Rank = _form(  # one process of the run
    {"host": _Text, "gpu": Any, "cores": _Counts | None, "device": _Text | None, "path": _Texts | None},
    _unknown(_Count, "local_rank pid threads"),
)
# Collective calls of the script's own in a step.
_Calls = _form(_unknown(_Number, "per_step bytes_median bytes_max"), {"names": _Numbers | None})
_Effective = _form(  # what was read back from the live objects
    _SETTINGS,
    _unknown(_Text, "model device launcher dataset dataset_digest initial_parameter_sha256 averaging ended measured"),
    _unknown(_Count, "parameters test_samples epoch_steps processes"),
    _unknown(_Number, "floor_mse steps_per_epoch"),
    {"parted": bool | None, "calls": _Calls | None, "path": _Texts | None, "ranks_per_host": _Counts | None},
    {"ranks": _list(_Rank) | None, "settings": dict[str, dict[str, Any]] | None},
)
# Where the timed window begins, and what says so.
_Steady = _form({"step": _Count, "found_by": _Text, "declared": _Count | None, "doubt": _Text | None})
_Part = Annotated[str, Field(pattern=r"^\S+( .*)?$", max_length=1000)]
_Device = _form({"host": _Text, "part": _Part}, _unknown(_Number, "counter_j integral_j"))
_Energy = _form(  # the joules of the timed window, and those of each device
    _unknown(_Number, "total_j per_sample_j counter_j integral_j"),
    {"reason": _Text | None, "doubt": _Text | None, "per_device": _list(_Device) | None},
)
# What the sensors of a host read, by process or device.
_Readings = _form(_unknown(_Numbers, "ranks_cpu_percent rss_mb_max gpu_percent gpu_memory_mb_max power_w"))
_System = _form({"hosts": GenericAlias(dict, (str, _Readings)) | None, "reason": _Text | None})
# Where a run that trained in turns has waited, by rank 0: before these steps.
_Waits = _form({"before": _list(_Count, _MAX_COUNT), "waited_s": _Seconds})
_Stack = _form({"where": _Text, "name": _Text, "share": _Number})
_Totals = _form(  # what the timed window gave
    {"samples_per_s": Annotated[float, Field(ge=0, le=_MAX_COUNT)] | None},
    _unknown(_Seconds, "window_s step_s_median step_s_p90 train_s wall_s"),
    _unknown(_Seconds, "data_s compute_s forward_s backward_s sync_s update_s residual_s step_s"),
    _unknown(_Count, "steps excluded_steps"),
    _unknown(_Number, "epochs train_mse test_mse g0_rmse_mpa a_rmse rss_mb_max pss_mb_max"),
    {"lap_medians_s": dict[str, _Seconds | None] | None, "rows_lost": _Count | _Counts | None},
    {"stacks": _list(_Stack, 100) | None, "steady": _Steady | None, "turns": _Waits | None},
    {"system": _System | None, "energy": _Energy | None},
)
_Environment = _form(  # where it ran
    _unknown(_Text, "cpu_model os python package torch horovod mpi"),
    {"cores": _Count | None, "memory_gb": _Number | None, "command": _Texts | _Text | None},
)
# Who a process is beyond its number, see cluster/alive.py.
_Process = _form(needed={"pid": _Count, "began": _Count | None, **_each(_Text, "boot space host")})
_Start = {**_each(_Text, "started status reason host"), "finished": _Text | None, **_each(_Count, "from_step pid")}
_Attempt = _form({"process": _Process | None}, needed=_Start)  # one start of the run


def _check_synchronisation(found: dict[str, Any]) -> dict[str, Any]:
    for name in ("pack_s", "through_s"):
        if found.get(name) is None and not found["why_not_through"]:
            raise wrong(f"{name} is missing")
    return found


def _check_ablation(found: dict[str, Any]) -> dict[str, Any]:
    """Hold the columns of `blocks`: one row per pair, kind (`silent`) and rank; a lap that is not known is None."""
    pairs, workers, blocks = found["pairs"], found["workers"], found["blocks"]
    told = {"compute_s": None, **blocks}  # which older ones lack
    laps = [name for name in LAP_COLUMNS[:-1] if told.get(name, ()) is not None]
    for name in ("pair", "silent", "rank", *laps, "step_s"):
        if len(blocks.get(name) or ()) != (length := 2 * pairs * workers):
            raise wrong(f"blocks: {name} must be a list of {length} numbers")
    rows = {(pair, silent, rank) for pair in range(pairs) for silent in (False, True) for rank in range(workers)}
    if set(zip(blocks["pair"], blocks["silent"], blocks["rank"], strict=True)) != rows:
        raise wrong("blocks: must have one row per pair, kind and rank")
    return found


_Whose = {"workers": _Workers, "transport": _Text, "reduction": _Text}
_Times_of = {
    "block": _Positive,
    "gradient_bytes": _Count,
    "clock": Any,
    "floor_s": _Times,
    "why_not_through": _Text | None,
}
_Synchronisation = _form(_unknown(_Times, "pack_s through_s"), needed=_Whose | _Times_of)  # what it is made of
_Blocks = dict[str, list[_Number] | list[bool] | None]
_Ablation = _form(  # what communication costs by leaving it out
    needed={"workers": _Workers, "reduction": _Text, "pairs": _Positive, "steps": _Positive, "seed": int}
    | {"why_no_timer": _Text | None, "sha256": Any, "blocks": _Blocks},
)
SECTIONS = {  # of bench.json
    "synchronisation": Annotated[_Synchronisation, AfterValidator(_check_synchronisation)],
    "ablation": Annotated[_Ablation, AfterValidator(_check_ablation)],
}
# source.json in the folder of an analysis; keys that it does not name are of other versions.
_Below = Annotated[str, BELOW]
_Beside = Annotated[str, BESIDE]
_Digests = dict[str, str]
_Files = dict[_Below, str]
_Against = _form({"match": str | None}, needed={"directory": _Beside})
_Report = _form(  # what `report` kept of what it drew: a version, a look, digests of pictures, the study compared with
    {"matplotlib": str, "pictures": _Files, "look": list[str], "files": list[_Below], "against": _Against},
)
SOURCE_FORM = _form(
    _unknown(list[str], "only planned commands"),
    {"targets": list[float] | None, "benches": _list(_form({"path": _Beside, "named": _Text})) | None},
    {
        "versions": _Digests | None,
        "precision": float | None,
        "columns": _Digests | None,
    },  # of a table, by what they are
    {"files": dict[_Below, dict[str, int | str]], "run_files": dict[_Below, _Files], "turns_files": _Files},
    {"report": _Report | None, "left": list[_Below]},  # what a report of an earlier analysis wrote here, until the next
    {"digest": str},
    needed={"runs": _Beside},
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """The content of run.json: one training run, described so that it can be repeated and doubted.

    Its fields are the form of the document; who makes one in a program is not asked.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    study: _Text
    key: _Text
    repeat: _Count
    partition: _Text
    status: Literal["running", "done", "failed", "stopped"]  # stopped: by a signal, with a checkpoint, to be resumed
    started: _Text  # ISO 8601, UTC; of the first attempt
    host: _Text  # of rank 0, as is pid; of the latest attempt
    pid: _Count
    requested: Annotated[Mapping[str, Any], _as(_Requested)]
    effective: Annotated[Mapping[str, Any], _as(_Effective)]  # read back from the live objects, see recording/
    environment: Annotated[Mapping[str, Any], _as(_Environment)]
    reason: _Text = ""
    finished: _Text | None = None
    totals: Annotated[Mapping[str, Any], _as(_Totals)] = field(default_factory=dict)  # of the timed window, when done
    attempts: Annotated[Sequence[Mapping[str, Any]], _as(_list(_Attempt))] = ()  # every start, in order; see `attempt`
    process: Annotated[Mapping[str, Any] | None, _as(_Process | None)] = None  # alive.identity() of rank 0, as `pid`
    files: Mapping[_Text, _Text] = field(default_factory=dict)  # digests of what else a run wrote that is done
    digest: _Text = ""  # of the rest of run.json of a run that is done; empty of one of an older program, too
    schema: _Positive = SCHEMA

    def __post_init__(self) -> None:
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


_SINCE: Mapping[int, Mapping[str, Any]] = {
    2: {"attempts": []},  # a run of schema 1 had one, which its other fields describe
    # 3 and 4 are about rows: of a column that their file does not have, `read_steps` makes nulls.
    5: {"process": None},
    6: {"files": {}, "digest": ""},
}
"""What a run.json has from a schema number on, as one of an earlier number is read."""


def upgraded(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the content of a run.json of any schema number as the newest has it, whether it can be true or not."""
    for number in range(run["schema"] + 1, SCHEMA + 1):
        run = {**_SINCE.get(number, {}), **run}
    return run


def record_text(record: RunRecord) -> str:
    # A run that diverged has totals that are no numbers; JSON has none of those, and unknown is null.
    return json.dumps(finite(asdict(record)), indent=1, allow_nan=False) + "\n"


def digest_of_record(record: RunRecord) -> str:
    return own_digest(json.loads(record_text(record)))


def over_ranks(values: Sequence[float | None], *, largest: bool = False) -> float | None:
    """Return the mean, or the `largest`, of one number of each rank; None unless all know theirs: some look alike."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    if not known or len(known) < len(values):
        return None
    return max(known) if largest else sum(known) / len(known)


def lap_summary(column: "Callable[[str], np.ndarray]") -> dict[str, Any]:
    """Return means and medians of each lap of one rank, None where not every row knows it, and the p90 of the step.

    `column`: the rows of a lap by its name, shape (rows,), NaN is unknown, in an array of its own: it is sorted here.
    """
    import numpy as np

    found: dict[str, Any] = {"mean": {}, "median": {}, "step_s_p90": None}
    for name in (*LAP_COLUMNS, "sync_host_s"):
        values = column(name)
        known = len(values) > 0 and not np.isnan(values).any()
        found["mean"][name] = float(values.mean()) if known else None
        found["median"][name] = float(np.median(values, overwrite_input=True)) if known else None
        if known and name == "step_s":
            found["step_s_p90"] = float(np.quantile(values, 0.9, overwrite_input=True))
    return found


def step_totals(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the totals that step rows give, in seconds, of the ranks' `lap_summary`; unknown is None."""
    means, medians = (
        {name: over_ranks([each[kind][name] for each in summaries]) for name in LAP_COLUMNS}
        for kind in ("mean", "median")
    )
    return {
        "step_s_median": over_ranks([each["median"]["step_s"] for each in summaries], largest=True),
        "step_s_p90": over_ranks([each["step_s_p90"] for each in summaries], largest=True),
        **means,
        "lap_medians_s": {name.removesuffix("_s"): medians[name] for name in LAP_COLUMNS[:-1]},
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
    elif hasattr(value, "DOCUMENT"):
        found: dict[str, Any] = {}
        for told in value.DOCUMENT.split():
            name, _, path = told.partition("=")
            each = attrgetter(path or name.strip("*?"))(value)
            found |= each if name[0] == "*" else {name.rstrip("?"): each or None if name[-1] == "?" else each}
        value = found
    elif is_dataclass(value):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    elif isinstance(value, SimpleNamespace):
        value = vars(value)
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    if hasattr(value, "tolist"):
        return finite(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
    """Return the columns of a system sample.

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


def timed_from(record: RunRecord) -> tuple[int, str]:
    """Return the first step of the timed window of a run, and in words what says so."""
    steady, warmup = record.totals.get("steady") or {}, declared_warmup(record)
    if "step" in steady:
        return steady["step"], _FOUND_BY.get(steady.get("found_by", ""), "before the steady state")
    return (0, "no warm-up is recorded") if warmup is None else (warmup, "declared as warm-up")


def declared_warmup(record: RunRecord) -> int | None:
    """Return how many steps were declared as warm-up; `train_s` of epochs.csv counts from there."""
    declared: int | None = record.effective.get("warmup_steps", record.requested.get("warmup_steps"))
    return declared


def is_command(record: RunRecord) -> bool:
    """Return whether a run is a whole command in which no step was seen: it has no rows."""
    return record.effective.get("measured") == COMMAND


def rows_lost(record: RunRecord) -> int:
    """Return how many steps of all ranks have no row because the disk was full; those of an older program had none."""
    lost = record.totals.get("rows_lost") or 0
    return sum(lost) if isinstance(lost, list) else int(lost)


def hosts_of(record: RunRecord, ranks: Iterable[int]) -> dict[int, str]:
    """Return the host of each of `ranks`; that of rank 0 where the record does not say."""
    told = record.effective.get("ranks") or []
    return {rank: (told[rank].get("host") if rank < len(told) else None) or record.host for rank in ranks}


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
