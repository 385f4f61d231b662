"""The declared form of run.json: what the package reads of it, with the ranges in which a value can be true.

One form for all schema numbers: what a number added is not required. Names inside `requested`, `effective`,
`environment`, `totals` and below that are not declared here are of other programs or versions and are not looked at;
at the top nothing else may stand. A value may be null wherever it may be unknown.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, GetPydanticSchema, with_config
from pydantic_core.core_schema import CoreSchema, typed_dict_field, typed_dict_schema
from typing_extensions import TypedDict

from horovod_study.workloads import packaged

OPTIONS = packaged().options

MAX_WORKERS = 100_000
_MAX_COUNT = 10**15
_MAX_NUMBER = 1e40
"""A diverged loss in single precision is smaller; a power of four of it is still a number in double precision."""
_MAX_TIME_S = 1e10

Number = Annotated[float, Field(ge=-_MAX_NUMBER, le=_MAX_NUMBER)]
Seconds = Annotated[float, Field(ge=-_MAX_TIME_S, le=_MAX_TIME_S)]
Count = Annotated[int, Field(ge=0, le=_MAX_COUNT)]
Workers = Annotated[int, Field(ge=1, le=MAX_WORKERS)]
Text = Annotated[str, Field(max_length=1_000_000)]
Counts = Annotated[list[Count], Field(max_length=MAX_WORKERS)]
Texts = Annotated[list[Text], Field(max_length=MAX_WORKERS)]
Times = Annotated[list[Seconds], Field(min_length=2, max_length=10_000_000)]
Numbers = dict[str, Number | None]
_KINDS: dict[type, Any] = {bool: bool, int: int, float: Number, str: Text}


def _open(*parts: Mapping[str, Any]) -> GetPydanticSchema:
    """Return the form of an object whose values may be missing, with `parts` {name: type}; others may be in it."""
    forms = {name: form for part in parts for name, form in part.items()}

    def schema(_: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        fields = {name: typed_dict_field(handler.generate_schema(form), required=False) for name, form in forms.items()}
        return typed_dict_schema(fields, extra_behavior="allow")

    return GetPydanticSchema(schema)


def _unknown(form: Any, names: str) -> dict[str, Any]:
    """Return {name: form}, of values that are null where they are not known."""
    return dict.fromkeys(names.split(), form | None)


_SETTINGS = {  # what the tables and the analysis take from what was asked for or from what was in effect
    **_unknown(Text, "backend transport reduction precision optimizer widths"),
    **_unknown(Workers, "workers nodes"),
    **_unknown(Count, "batch global_batch train_samples warmup_steps"),
    **_unknown(Number, "lr"),
}
_Object = dict[str, Any]
# What was asked for: every option of training has a value of its kind, or none.
Requested = Annotated[_Object, _open({name: _KINDS[each.kind] | None for name, each in OPTIONS.items()}, _SETTINGS)]
Rank = Annotated[  # one process of the run
    _Object,
    _open(
        {"host": Text, "gpu": Any, "cores": Counts | None},
        _unknown(Count, "local_rank pid threads"),
        _unknown(Text, "device"),
        _unknown(Texts, "path"),
    ),
]
_Calls = Annotated[  # collective calls of the script's own in a step
    _Object, _open(_unknown(Number, "per_step bytes_median bytes_max"), _unknown(Numbers, "names"))
]
_Stack = Annotated[_Object, _open({"where": Text, "name": Text, "share": Number})]
_Effective = Annotated[  # what was read back from the live objects
    _Object,
    _open(
        _SETTINGS,
        _unknown(
            Text, "model device launcher dataset dataset_digest initial_parameter_sha256 averaging ended measured"
        ),
        _unknown(Count, "parameters test_samples epoch_steps processes"),
        _unknown(bool, "parted"),
        {"calls": _Calls | None},
        _unknown(Number, "floor_mse steps_per_epoch"),
        _unknown(Texts, "path"),
        _unknown(Counts, "ranks_per_host"),
        _unknown(Annotated[list[Rank], Field(max_length=MAX_WORKERS)], "ranks"),
        _unknown(dict[str, _Object], "settings"),
    ),
]
_RecordedSteady = Annotated[  # where the timed window begins, and what says so
    _Object, _open({"step": Count, "found_by": Text}, _unknown(Count, "declared"), _unknown(Text, "doubt"))
]
Part = Annotated[str, Field(pattern=r"^\S+( .*)?$", max_length=1000)]
Device = Annotated[_Object, _open({"host": Text, "part": Part}, _unknown(Number, "counter_j integral_j"))]
Energy = Annotated[  # the joules of the timed window, and those of each device
    _Object,
    _open(
        _unknown(Number, "total_j per_sample_j counter_j integral_j"),
        _unknown(Text, "reason doubt"),
        _unknown(Annotated[list[Device], Field(max_length=MAX_WORKERS)], "per_device"),
    ),
]
_HostReadings = Annotated[  # what its sensors read, by process or device
    _Object, _open(_unknown(Numbers, "ranks_cpu_percent rss_mb_max gpu_percent gpu_memory_mb_max power_w"))
]
System = Annotated[_Object, _open(_unknown(dict[str, _HostReadings], "hosts"), _unknown(Text, "reason"))]
Before = Annotated[list[Count], Field(max_length=_MAX_COUNT)]
# Where a run that trained in turns has waited, by rank 0: before these steps.
Waits = Annotated[_Object, _open({"before": Before, "waited_s": Seconds})]
Totals = Annotated[  # what the timed window gave
    _Object,
    _open(
        _unknown(Annotated[float, Field(ge=0, le=_MAX_COUNT)], "samples_per_s"),
        _unknown(Seconds, "window_s step_s_median step_s_p90 train_s wall_s"),
        _unknown(Seconds, "data_s compute_s forward_s backward_s sync_s update_s residual_s step_s"),
        _unknown(Count, "steps excluded_steps"),
        _unknown(Number, "epochs train_mse test_mse g0_rmse_mpa a_rmse rss_mb_max pss_mb_max"),
        _unknown(dict[str, Seconds | None], "lap_medians_s"),
        _unknown(Count | Counts, "rows_lost"),
        _unknown(Annotated[list[_Stack], Field(max_length=100)], "stacks"),
        {"steady": _RecordedSteady | None, "turns": Waits | None, "system": System | None, "energy": Energy | None},
    ),
]
Environment = Annotated[  # where it ran
    _Object,
    _open(
        _unknown(Text, "cpu_model os python package torch horovod mpi"),
        _unknown(Count, "cores"),
        _unknown(Number, "memory_gb"),
        _unknown(Texts | Text, "command"),
    ),
]


class _RecordedProcess(TypedDict):
    """Who a process is beyond its number, see alive.py."""

    pid: Count
    began: Count | None
    boot: Text
    space: Text
    host: Text


@with_config(ConfigDict(extra="allow"))
class _RecordedAttempt(TypedDict):
    """One start of the run."""

    started: Text
    finished: Text | None
    status: Text
    reason: Text
    from_step: Count
    host: Text
    pid: Count
    process: NotRequired[_RecordedProcess | None]


@with_config(ConfigDict(extra="forbid"))
class Run(TypedDict):
    """run.json, of any schema number up to the newest."""

    schema: Annotated[int, Field(ge=1)]
    study: Text
    key: Text
    repeat: Count
    partition: Text
    status: Literal["running", "done", "failed", "stopped"]
    started: Text
    host: Text
    pid: Count
    requested: Requested
    effective: _Effective
    environment: Environment
    reason: NotRequired[Text]
    finished: NotRequired[Text | None]
    totals: NotRequired[Totals]
    files: NotRequired[dict[Text, Text]]
    digest: NotRequired[Text]
    attempts: NotRequired[Annotated[list[_RecordedAttempt], Field(max_length=100_000)]]
    process: NotRequired[_RecordedProcess | None]


class Synchronisation(TypedDict):
    """What the synchronisation is made of, in bench.json."""

    transport: Text
    reduction: Text
    workers: Workers
    gradient_bytes: Count
    block: Annotated[int, Field(ge=1, le=_MAX_COUNT)]
    clock: Any
    why_not_through: Text | None
    floor_s: Times
    pack_s: NotRequired[Times | None]
    through_s: NotRequired[Times | None]


class Ablation(TypedDict):
    """What communication costs by leaving it out, in bench.json."""

    workers: Workers
    reduction: Text
    pairs: Annotated[int, Field(ge=1, le=_MAX_COUNT)]
    steps: Annotated[int, Field(ge=1, le=_MAX_COUNT)]
    seed: int
    why_no_timer: Text | None
    sha256: Any
    blocks: dict[str, list[bool] | list[Number] | None]
