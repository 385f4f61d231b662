"""The declared forms of run.json, bench.json and source.json, with the ranges in which a value can be true.

One form for all schema numbers: what a number added is not required. Names inside `requested`, `effective`,
`environment`, `totals` and below that are not declared here are of other programs or versions and are not looked at;
at the top nothing else may stand. A value may be null wherever it may be unknown.
"""

from collections.abc import Mapping, Sequence
from types import GenericAlias
from typing import Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler, GetPydanticSchema
from pydantic_core.core_schema import CoreSchema, typed_dict_field, typed_dict_schema

from horovod_study.config.workload import packaged

_MAX_WORKERS = 100_000
_MAX_COUNT = 10**15
_MAX_NUMBER = 1e40
"""A diverged loss in single precision is smaller; a power of four of it is still a number in double precision."""
_MAX_TIME_S = 1e10

_Number = Annotated[float, Field(ge=-_MAX_NUMBER, le=_MAX_NUMBER)]
_Seconds = Annotated[float, Field(ge=-_MAX_TIME_S, le=_MAX_TIME_S)]
_Count = Annotated[int, Field(ge=0, le=_MAX_COUNT)]
_Positive = Annotated[int, Field(ge=1, le=_MAX_COUNT)]
_Workers = Annotated[int, Field(ge=1, le=_MAX_WORKERS)]
_Text = Annotated[str, Field(max_length=1_000_000)]
_Counts = Annotated[list[_Count], Field(max_length=_MAX_WORKERS)]
_Texts = Annotated[list[_Text], Field(max_length=_MAX_WORKERS)]
_Times = Annotated[list[_Seconds], Field(min_length=2, max_length=10_000_000)]
_Numbers = dict[str, _Number | None]
_KINDS: dict[type, Any] = {bool: bool, int: int, float: _Number, str: _Text}
_Object = dict[str, Any]


def _form(*parts: Mapping[str, Any], required: Sequence[Mapping[str, Any]] = (), closed: bool = False) -> Any:
    """Return the form of an object with `parts` {name: type}, which may be missing unless they are `required`.

    `closed`: nothing else may be in it.
    """

    def schema(_: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        fields = {
            name: typed_dict_field(handler.generate_schema(form), required=needed)
            for needed, forms in ((True, required), (False, parts))
            for part in forms
            for name, form in part.items()
        }
        return typed_dict_schema(fields, extra_behavior="forbid" if closed else "allow")

    return Annotated[_Object, GetPydanticSchema(schema)]


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
    **_unknown(_Number, "lr"),
}
# What was asked for: every option of training has a value of its kind, or none.
_Requested = _form({name: _KINDS[each.kind] | None for name, each in packaged().options.items()}, _SETTINGS)
_Rank = _form(  # one process of the run
    {"host": _Text, "gpu": Any, "cores": _Counts | None},
    _unknown(_Count, "local_rank pid threads"),
    _unknown(_Text, "device"),
    _unknown(_Texts, "path"),
)
# Collective calls of the script's own in a step.
_Calls = _form(_unknown(_Number, "per_step bytes_median bytes_max"), _unknown(_Numbers, "names"))
_Effective = _form(  # what was read back from the live objects
    _SETTINGS,
    _unknown(_Text, "model device launcher dataset dataset_digest initial_parameter_sha256 averaging ended measured"),
    _unknown(_Count, "parameters test_samples epoch_steps processes"),
    _unknown(bool, "parted"),
    _unknown(_Calls, "calls"),
    _unknown(_Number, "floor_mse steps_per_epoch"),
    _unknown(_Texts, "path"),
    _unknown(_Counts, "ranks_per_host"),
    _unknown(_list(_Rank), "ranks"),
    _unknown(dict[str, _Object], "settings"),
)
# Where the timed window begins, and what says so.
_Steady = _form({"step": _Count, "found_by": _Text}, _unknown(_Count, "declared"), _unknown(_Text, "doubt"))
_Part = Annotated[str, Field(pattern=r"^\S+( .*)?$", max_length=1000)]
_Device = _form({"host": _Text, "part": _Part}, _unknown(_Number, "counter_j integral_j"))
_Energy = _form(  # the joules of the timed window, and those of each device
    _unknown(_Number, "total_j per_sample_j counter_j integral_j"),
    _unknown(_Text, "reason doubt"),
    _unknown(_list(_Device), "per_device"),
)
# What the sensors of a host read, by process or device.
_Readings = _form(_unknown(_Numbers, "ranks_cpu_percent rss_mb_max gpu_percent gpu_memory_mb_max power_w"))
_System = _form(_unknown(GenericAlias(dict, (str, _Readings)), "hosts"), _unknown(_Text, "reason"))
# Where a run that trained in turns has waited, by rank 0: before these steps.
_Waits = _form({"before": Annotated[list[_Count], Field(max_length=_MAX_COUNT)], "waited_s": _Seconds})
_Stack = _form({"where": _Text, "name": _Text, "share": _Number})
_Totals = _form(  # what the timed window gave
    _unknown(Annotated[float, Field(ge=0, le=_MAX_COUNT)], "samples_per_s"),
    _unknown(_Seconds, "window_s step_s_median step_s_p90 train_s wall_s"),
    _unknown(_Seconds, "data_s compute_s forward_s backward_s sync_s update_s residual_s step_s"),
    _unknown(_Count, "steps excluded_steps"),
    _unknown(_Number, "epochs train_mse test_mse g0_rmse_mpa a_rmse rss_mb_max pss_mb_max"),
    _unknown(dict[str, _Seconds | None], "lap_medians_s"),
    _unknown(_Count | _Counts, "rows_lost"),
    _unknown(_list(_Stack, 100), "stacks"),
    {"steady": _Steady | None, "turns": _Waits | None, "system": _System | None, "energy": _Energy | None},
)
_Environment = _form(  # where it ran
    _unknown(_Text, "cpu_model os python package torch horovod mpi"),
    _unknown(_Count, "cores"),
    _unknown(_Number, "memory_gb"),
    _unknown(_Texts | _Text, "command"),
)
# Who a process is beyond its number, see cluster/alive.py.
_Process = _form(required=({"pid": _Count, "began": _Count | None}, _each(_Text, "boot space host")))
_Attempt = _form(  # one start of the run
    {"process": _Process | None},
    required=(_each(_Text, "started status reason host"), {"finished": _Text | None}, _each(_Count, "from_step pid")),
)
RUN = _form(  # run.json, of any schema number up to the newest
    {"reason": _Text, "finished": _Text | None, "totals": _Totals, "files": dict[_Text, _Text], "digest": _Text},
    {"attempts": _list(_Attempt), "process": _Process | None},
    required=(
        _each(_Text, "study key partition started host"),
        {"schema": _Positive, "status": Literal["running", "done", "failed", "stopped"], **_each(_Count, "repeat pid")},
        {"requested": _Requested, "effective": _Effective, "environment": _Environment},
    ),
    closed=True,
)
SECTIONS = {  # of bench.json
    "synchronisation": _form(  # what it is made of
        _unknown(_Times, "pack_s through_s"),
        required=(
            {"workers": _Workers, "block": _Positive, "gradient_bytes": _Count, "clock": Any, "floor_s": _Times},
            {**_each(_Text, "transport reduction"), "why_not_through": _Text | None},
        ),
    ),
    "ablation": _form(  # what communication costs by leaving it out
        required=(
            {"workers": _Workers, "reduction": _Text, **_each(_Positive, "pairs steps"), "seed": int},
            {"why_no_timer": _Text | None, "sha256": Any},
            {"blocks": dict[str, list[bool] | list[int] | list[_Number] | None]},  # whole numbers stay what they are
        ),
    ),
}
# source.json in the folder of an analysis; keys that it does not name are of other versions.
_Digests = dict[str, str]
_Report = _form(  # what `report` kept of what it drew: a version, a look, digests of pictures, the study compared with
    {"matplotlib": str, "pictures": _Digests, "look": list[str], "files": list[str]},
    {"against": _form({"match": str | None}, required=({"directory": str},))},
)
SOURCE = _form(
    _unknown(list[str], "only planned commands"),
    {"targets": list[float] | None, "benches": list[_Digests] | None, "versions": _Digests | None},
    {"files": dict[str, dict[str, int | str]], "run_files": dict[str, _Digests], "turns_files": _Digests},
    {"precision": float | None, "columns": _Digests | None},  # of somebody's table, by what they are
    {"report": _Report | None, "left": list[str]},  # what a report of an earlier analysis wrote here, until the next
    {"digest": str},
    required=({"schema": int, "runs": str},),
)
