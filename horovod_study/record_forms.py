"""The declared form of run.json: what the package reads of it, with the ranges in which a value can be true.

One form for all schema numbers: what a number added is not required. Names inside `requested`, `effective`,
`environment`, `totals` and below that are not declared here are of other programs or versions and are not looked at;
at the top nothing else may stand. A value may be null wherever it may be unknown.
"""

from typing import Annotated, Any, Literal, NotRequired, get_type_hints

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, GetPydanticSchema, with_config
from pydantic_core.core_schema import CoreSchema, typed_dict_field, typed_dict_schema
from typing_extensions import TypedDict

from horovod_study.workloads import packaged

OPTIONS = packaged().options

MAX_WORKERS = 100_000
MAX_COUNT = 10**15
MAX_NUMBER = 1e40
"""A diverged loss in single precision is smaller; a power of four of it is still a number in double precision."""
MAX_TIME_S = 1e10
MAX_TEXT = 1_000_000

Number = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Seconds = Annotated[float, Field(ge=-MAX_TIME_S, le=MAX_TIME_S)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Workers = Annotated[int, Field(ge=1, le=MAX_WORKERS)]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Texts = Annotated[list[Text], Field(max_length=MAX_WORKERS)]
Times = Annotated[list[Seconds], Field(min_length=2, max_length=10_000_000)]
Numbers = dict[str, Number | None]
_Open = with_config(ConfigDict(extra="allow"))


@_Open
class Settings(TypedDict, total=False):
    """What `requested` and `effective` have in common: what the tables and the analysis take from either."""

    backend: Text | None
    transport: Text | None
    reduction: Text | None
    precision: Text | None
    workers: Workers | None
    nodes: Workers | None
    batch: Count | None
    global_batch: Count | None
    train_samples: Count | None
    warmup_steps: Count | None
    optimizer: Text | None
    widths: Text | None
    lr: Number | None


_KINDS: dict[type, Any] = {bool: bool, int: int, float: Number, str: Text}


def _requested(_: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    """Return the form of what was asked for: every option of training has a value of its kind, or none."""
    options = {name: _KINDS[each.kind] | None for name, each in OPTIONS.items()}
    forms = {**options, **get_type_hints(Settings, include_extras=True)}
    return typed_dict_schema(
        {name: typed_dict_field(handler.generate_schema(form), required=False) for name, form in forms.items()},
        extra_behavior="allow",
    )


Requested = Annotated[dict[str, Any], GetPydanticSchema(_requested)]


@_Open
class Rank(TypedDict, total=False):
    """One process of the run."""

    host: Text
    local_rank: Count | None
    pid: Count | None
    cores: Annotated[list[Count], Field(max_length=MAX_WORKERS)] | None
    threads: Count | None
    device: Text | None
    gpu: Any
    path: Texts | None


@_Open
class Effective(Settings, total=False):
    """What was read back from the live objects."""

    model: Text | None
    parameters: Count | None
    floor_mse: Number | None
    steps_per_epoch: Number | None
    test_samples: Count | None
    device: Text | None
    launcher: Text | None
    dataset: Text | None
    dataset_digest: Text | None
    initial_parameter_sha256: Text | None
    path: Texts | None
    ranks_per_host: Annotated[list[Count], Field(max_length=MAX_WORKERS)] | None
    ranks: Annotated[list[Rank], Field(max_length=MAX_WORKERS)] | None
    settings: dict[str, dict[str, Any]] | None


@_Open
class RecordedSteady(TypedDict, total=False):
    """Where the timed window begins, and what says so."""

    step: Count
    declared: Count | None
    found_by: Text
    doubt: Text | None


@_Open
class Device(TypedDict, total=False):
    """The joules of one device."""

    host: Text
    part: Annotated[str, Field(pattern=r"^\S+( .*)?$", max_length=1000)]
    counter_j: Number | None
    integral_j: Number | None


@_Open
class Energy(TypedDict, total=False):
    """The joules of the timed window."""

    total_j: Number | None
    per_sample_j: Number | None
    counter_j: Number | None
    integral_j: Number | None
    per_device: Annotated[list[Device], Field(max_length=MAX_WORKERS)] | None
    reason: Text | None
    doubt: Text | None


@_Open
class HostReadings(TypedDict, total=False):
    """What the sensors of a host read, by process or device."""

    ranks_cpu_percent: Numbers | None
    rss_mb_max: Numbers | None
    gpu_percent: Numbers | None
    gpu_memory_mb_max: Numbers | None
    power_w: Numbers | None


@_Open
class System(TypedDict, total=False):
    """What the sensors read."""

    hosts: dict[str, HostReadings] | None
    reason: Text | None


@_Open
class Waits(TypedDict, total=False):
    """Where a run that trained in turns has waited, by rank 0."""

    before: Annotated[list[Count], Field(max_length=MAX_COUNT)]  # these steps
    waited_s: Seconds


@_Open
class Totals(TypedDict, total=False):
    """What the timed window gave."""

    samples_per_s: Annotated[float, Field(ge=0, le=MAX_COUNT)] | None
    window_s: Seconds | None
    steps: Count | None
    excluded_steps: Count | None
    steady: RecordedSteady | None
    step_s_median: Seconds | None
    step_s_p90: Seconds | None
    data_s: Seconds | None
    compute_s: Seconds | None
    forward_s: Seconds | None
    backward_s: Seconds | None
    sync_s: Seconds | None
    update_s: Seconds | None
    residual_s: Seconds | None
    step_s: Seconds | None
    lap_medians_s: dict[str, Seconds | None] | None
    rows_lost: Count | Annotated[list[Count], Field(max_length=MAX_WORKERS)] | None
    turns: Waits | None
    epochs: Number | None
    train_mse: Number | None
    test_mse: Number | None
    g0_rmse_mpa: Number | None
    a_rmse: Number | None
    train_s: Seconds | None
    wall_s: Seconds | None
    rss_mb_max: Number | None
    pss_mb_max: Number | None
    system: System | None
    energy: Energy | None


@_Open
class Environment(TypedDict, total=False):
    """Where it ran."""

    cpu_model: Text | None
    cores: Count | None
    memory_gb: Number | None
    os: Text | None
    python: Text | None
    package: Text | None
    torch: Text | None
    horovod: Text | None
    mpi: Text | None
    command: Texts | Text | None


class RecordedProcess(TypedDict):
    """Who a process is beyond its number, see alive.py."""

    pid: Count
    began: Count | None
    boot: Text
    space: Text
    host: Text


@_Open
class RecordedAttempt(TypedDict):
    """One start of the run."""

    started: Text
    finished: Text | None
    status: Text
    reason: Text
    from_step: Count
    host: Text
    pid: Count
    process: NotRequired[RecordedProcess | None]


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
    effective: Effective
    environment: Environment
    reason: NotRequired[Text]
    finished: NotRequired[Text | None]
    totals: NotRequired[Totals]
    files: NotRequired[dict[Text, Text]]
    digest: NotRequired[Text]
    attempts: NotRequired[Annotated[list[RecordedAttempt], Field(max_length=100_000)]]
    process: NotRequired[RecordedProcess | None]


class Synchronisation(TypedDict):
    """What the synchronisation is made of, in bench.json."""

    transport: Text
    reduction: Text
    workers: Workers
    gradient_bytes: Count
    block: Annotated[int, Field(ge=1, le=MAX_COUNT)]
    clock: Any
    why_not_through: Text | None
    floor_s: Times
    pack_s: NotRequired[Times | None]
    through_s: NotRequired[Times | None]


class Ablation(TypedDict):
    """What communication costs by leaving it out, in bench.json."""

    workers: Workers
    reduction: Text
    pairs: Annotated[int, Field(ge=1, le=MAX_COUNT)]
    steps: Annotated[int, Field(ge=1, le=MAX_COUNT)]
    seed: int
    why_no_timer: Text | None
    sha256: Any
    blocks: dict[str, list[bool] | list[Number] | None]
