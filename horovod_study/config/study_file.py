"""The files of studies and searches: what they may say.

`experiments/` holds examples, and its README.md explains every key. What may stand under `run` and `sweep` are options
of the workload that the file names: they have the forms `Workload.form` and `sweep_form`.
"""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

from annotated_types import Lt
from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from horovod_study.config import doors
from horovod_study.config.doors import Flag, Form, Number, Text, Whole, above, at_least, keyed, matching, one_of
from horovod_study.config.partitions import HostName, Line
from horovod_study.config.roles import Option
from horovod_study.config.workload import Workload
from horovod_study.runtimes import PLACEMENTS, RUNTIMES

MAX_WORKERS = 100_000


def _some(value: Any) -> Any:
    if value == []:
        raise ValueError("give at least one value or leave the key out")
    return doors.several(value)


def one_or_more(form: Any) -> Any:
    """Return the form of one value, or of a list of them that is not empty; it gives a tuple."""
    return Annotated[tuple[form, ...], BeforeValidator(_some, json_schema_input_type=form | list[form])]


def _share(value: Any) -> float:
    words = str(value).strip()
    try:
        number = float(words.removesuffix("%")) / (100 if words.endswith("%") else 1)
    except ValueError:
        number = 0
    if not 0 < number < 1:
        raise ValueError("give the half width of the intervals, such as 2 % or 0.02")
    return number


Share = Annotated[float, BeforeValidator(_share, json_schema_input_type=float | str)]  # a precision: "2 %" or 0.02
_PATH = r"([^/\x00-\x1f]{0,250}/)*[^/\x00-\x1f]{1,250}"
_Place = Annotated[Text, matching(_PATH, "it must be the name of a file, of at most 250 characters, or a path")]
_Positive = Annotated[Number, above(0)]
_Count = Annotated[Whole, at_least(1)]
_Question = Annotated[
    Text,
    AfterValidator(lambda text: " ".join(text.split())),
    matching(
        "(speedup|throughput|efficiency) at ([1-9][0-9]{0,4}|100000)",
        f"write speedup at N, throughput at N or efficiency at N, N from 1 to {MAX_WORKERS:,}",
    ),
]


class StudyFile(Form):
    """A study: what is fixed, what is varied, on which partitions, how often."""

    study: Text
    partition: one_or_more(_Place) = ("local",)  # type: ignore[valid-type]
    hosts: one_or_more(HostName) = ()  # type: ignore[valid-type]
    run: dict[str, Any] | None = None
    sweep: dict[str, Any] | None
    baselines: Annotated[tuple[Literal["plain", "wrapped"], ...], BeforeValidator(doors.several)] | None = None
    precision: Share | None = None
    question: _Question | None = None
    targets: one_or_more(_Positive) = ()  # type: ignore[valid-type]
    budget: dict[Literal["gpu_hours", "core_hours", "hours"], _Positive] | None = None
    script: Text | None = None
    command: Text | None = None
    rate: Text | None = None
    account: Line | None = None
    repeats: _Count | None = None
    seed: Annotated[Whole, at_least(0)] = 1
    timeout_s: Annotated[Number, at_least(1)] = 900.0
    turns: Flag | None = None
    workload: _Place | None = None
    scaling: Literal["strong", "weak"] | None = None


_Cores = Literal["cores"] | _Count | list[_Count]


@cache
def sweep_form(workload: Workload) -> Any:
    """Return the form of what a study of a workload varies: {key: values}, of `zip` {key: values} for each axis."""
    cores = BeforeValidator(lambda value: None if value == "cores" else _some(value), json_schema_input_type=_Cores)
    forms: dict[str, Any] = {
        "workers": _Count,
        "nodes": _Count,
        "workers_per_node": _Count,
        "placement": Annotated[Text, one_of(PLACEMENTS)],
        "runtime": Annotated[Text, one_of(RUNTIMES)],
        "global_batch": _Count,
        **{name: workload.options[name].form for name in workload.sweepable},
    }
    zipped = keyed("zip", {name: _list(form) for name, form in forms.items()})
    own = {"workers": Annotated[tuple[_Count, ...] | None, cores], "zip": one_or_more(zipped) | None}
    return keyed("sweep", {name: one_or_more(form) for name, form in forms.items()} | own)


def _list(form: Any) -> Any:
    return tuple[form, ...]


class _Median(Form):
    kind: Literal["median"]
    startup_trials: _Count = 5
    warmup: Annotated[Number, at_least(0), Lt(1)] = 0.15  # share of its budget that every trial gets


class _Hyperband(Form):
    kind: Literal["hyperband"]
    warmup: Annotated[Number, at_least(0), Lt(1)] = 0.15
    reduction_factor: Annotated[Whole, at_least(2)] = 3


class _Never(Form):
    kind: Literal["none"]


def _kind(value: Any) -> Any:
    if isinstance(value, dict):
        return {"kind": "median", **value}
    return {"kind": value} if isinstance(value, str) else {"kind": "median"} if value is None else value


_Pruner = Annotated[_Median | _Hyperband | _Never, Field(discriminator="kind")]
_Named = BeforeValidator(_kind, json_schema_input_type=Literal["median", "hyperband", "none"] | _Pruner)


class SearchFile(Form):
    """A search: which options are varied between which values, and how long; docs/strain.md explains every key."""

    search: Text
    partition: Text = "local"
    runtime: Annotated[Text, one_of(RUNTIMES)] = "serial"
    workers: _Count = 1
    trials: _Count = 20
    seed: Annotated[Whole, at_least(0)] = 1
    timeout_s: Annotated[Number, at_least(1)] = 3600.0
    run: dict[str, Any] | None
    space: dict[str, Any] | None
    pruner: Annotated[_Pruner, _Named] = _Median(kind="median")


def space_form(options: Mapping[str, Option]) -> Any:
    """Return the form of what a search of these options varies: {name: a tuple of values, or low, high, log, step}."""
    return keyed("space", {name: _dimension(each) for name, each in options.items()})


def _dimension(option: Option) -> Any:
    number, step = option.kind in (int, float), doors.checked(option.kind, above=0)
    end = doors.checked(option.kind, low=option.low, above=option.above)  # never null, which the option itself may be
    ends: dict[str, Any] = {"low": end, "high": end, "log": Flag, "step": step | None}
    span: Any = keyed("range", ends, needed=("low", "high")) if number else None
    kind = Discriminator(
        lambda told: "values" if isinstance(told, list) else "range" if number and isinstance(told, dict) else None,
        custom_error_type="dimension",
        custom_error_message="it must be a list of values such as [64, 128], or of a number a range such as "
        "{low: 1e-4, high: 1e-2, log: true}; a single value belongs under run",
    )
    return Annotated[Annotated[_list(option.form), Tag("values")] | Annotated[span, Tag("range")], kind]
