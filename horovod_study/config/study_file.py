"""The files of studies and searches: what they may say.

`experiments/` holds examples, and its README.md explains every key. What may stand under `run` and `sweep` are options
of the workload that the file names, so these two are held against `Workload.form` and `sweep_form`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Generic, Literal, TypeVar

from annotated_types import Lt
from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from horovod_study.config import doors
from horovod_study.config.doors import Flag, Form, Number, Text, Whole, above, at_least, keyed, matching, one_of, wrong
from horovod_study.config.partitions import HostName, Line
from horovod_study.config.roles import Option
from horovod_study.config.workload import Workload
from horovod_study.runtimes import BACKENDS, PLACEMENTS, RUNTIMES, TRANSPORTS

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


Share = Annotated[float, BeforeValidator(_share, json_schema_input_type=float | str)]
"""A precision: "2 %" or 0.02."""
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


class HoursBudget(Form):
    """What a study may take; more is asked about."""

    gpu_hours: _Positive | None = None
    core_hours: _Positive | None = None
    hours: _Positive | None = None


class StudyFile(Form):
    """A study: what is fixed, what is varied, on which partitions, how often."""

    study: Text
    partition: one_or_more(Text) = ("local",)  # type: ignore[valid-type]
    hosts: one_or_more(HostName) = ()  # type: ignore[valid-type]
    run: dict[str, Any] | None = None
    sweep: dict[str, Any] | None
    baselines: Annotated[tuple[Literal["plain", "wrapped"], ...], BeforeValidator(doors.several)] | None = None
    precision: Share | None = None
    question: _Question | None = None
    targets: one_or_more(_Positive) = ()  # type: ignore[valid-type]
    budget: HoursBudget = HoursBudget()
    script: Text | None = None
    command: Text | None = None
    rate: Text | None = None
    account: Line | None = None
    repeats: _Count | None = None
    seed: Annotated[Whole, at_least(0)] = 1
    timeout_s: Annotated[Number, at_least(1)] = 900.0
    turns: Flag | None = None
    workload: Text | None = None
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
    zipped = _with(keyed("zip", {name: _list(form) for name, form in forms.items()}), _uneven)
    forms |= {"backend": Annotated[Text, one_of(BACKENDS)], "transport": Annotated[Text, one_of(TRANSPORTS[1:])]}
    own = {"workers": Annotated[tuple[_Count, ...] | None, cores], "zip": one_or_more(zipped) | None}
    return _with(keyed("sweep", {name: one_or_more(form) for name, form in forms.items()} | own), _contradictions)


def _list(form: Any) -> Any:
    return tuple[form, ...]


def _with(form: Any, faults: Callable[[Any], Iterator[str]]) -> Any:
    """Return the form of values in which there are none of these faults, in words."""

    def check(value: Any) -> Any:
        for text in faults(value):
            raise wrong(text)
        return value

    return Annotated[form, AfterValidator(check)]


def _uneven(axis: Mapping[str, tuple[Any, ...]]) -> Iterator[str]:
    lengths = {len(values) for values in axis.values()}
    if len(lengths) != 1 or 0 in lengths:
        told = ", ".join(f"{name} has {len(values)}" for name, values in axis.items()) or "there are none"
        yield f"{told}; give lists that go together, equally long: {{workers: [1, 2], batch: [150, 75]}}"


def _contradictions(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield in words which keys of a sweep contradict each other."""
    zipped = [name for axis in told.get("zip") or () for name in axis]
    names = [*told, *zipped]
    yield from (f"{name} is varied twice, once under zip; give it once" for name in names if names.count(name) > 1)
    apart = [name for name in ("backend", "transport") if name in told]
    if apart and "runtime" in names:
        yield f"runtime and {apart[0]} are both given; a runtime is a backend with its transport"
    if apart == ["transport"]:
        yield "transport is given without backend; give both, or runtime"
    backends, transports = told.get("backend", ()), told.get("transport", ())
    for backend in backends:
        own = [runtime for runtime in RUNTIMES if runtime.partition("/")[0] == backend]
        if not runtimes_of((backend,), transports):
            what = f"does not work over {' or '.join(transports)}" if transports else "has several transports"
            yield f"backend {backend} {what}; give transport too: {', '.join(own)}"
    for transport in transports:
        if not any(runtime.endswith(f"/{transport}") for runtime in runtimes_of(backends, transports)):
            others = ", ".join(runtime for runtime in RUNTIMES if runtime.endswith(f"/{transport}"))
            add = f", or add a backend that has it: {others}" if others else ""
            yield f"transport {transport} goes with none of the backends {', '.join(backends)}; leave it out{add}"


def runtimes_of(backends: tuple[str, ...], transports: tuple[str, ...]) -> tuple[str, ...]:
    """Return the runtimes of backends over transports; one that works over a single transport needs none named."""
    found: dict[str, None] = {}
    for backend in backends:
        own = [runtime for runtime in RUNTIMES if runtime.partition("/")[0] == backend]
        alone = len(own) == 1 and (backend == "serial" or not transports)
        found |= dict.fromkeys(each for each in own if alone or each.partition("/")[2] in transports)
    return tuple(found)


_Low = TypeVar("_Low")
_Step = TypeVar("_Step")


class Span(Form, Generic[_Low, _Step]):
    """All numbers from `low` to `high`, or every `step`; `log`: each decade is as likely as any other."""

    low: _Low
    high: _Low
    log: Flag = False
    step: _Step | None = None


class Median(Form):
    """Ends a trial that is worse than the median of the others; `warmup`: the share of its budget that it has first."""

    kind: Literal["median"]
    startup_trials: _Count = 5
    warmup: Annotated[Number, at_least(0), Lt(1)] = 0.15


class Hyperband(Form):
    """Ends trials in brackets of different patience, one of `reduction_factor` goes on."""

    kind: Literal["hyperband"]
    warmup: Annotated[Number, at_least(0), Lt(1)] = 0.15
    reduction_factor: Annotated[Whole, at_least(2)] = 3


class Never(Form):
    """Ends no trial early."""

    kind: Literal["none"]


def _kind(value: Any) -> Any:
    return (
        {"kind": value} if isinstance(value, str) else {"kind": "median", **value} if isinstance(value, dict) else value
    )


_Pruner = Annotated[Median | Hyperband | Never, Field(discriminator="kind")]
_PRUNERS = Literal["median", "hyperband", "none"]


class SearchFile(Form):
    """A search: which options are varied between which values, and how long; docs/search.md explains every key."""

    search: Text
    partition: Text = "local"
    runtime: Annotated[Text, one_of(RUNTIMES)] = "serial"
    workers: _Count = 1
    trials: _Count = 20
    seed: Annotated[Whole, at_least(0)] = 1
    timeout_s: Annotated[Number, at_least(1)] = 3600.0
    run: dict[str, Any] | None
    space: dict[str, Any] | None
    pruner: Annotated[_Pruner, BeforeValidator(_kind, json_schema_input_type=_PRUNERS | _Pruner)] = Median(
        kind="median"
    )


def space_form(options: Mapping[str, Option]) -> Any:
    """Return the form of what a search of these options varies: {name: values or a Span}."""
    return keyed("space", {name: _dimension(each) for name, each in options.items()})


def _dimension(option: Option) -> Any:
    number = option.kind in (int, float)
    span: Any = Span.__class_getitem__((option.form, doors.checked(option.kind, above=0))) if number else None
    kind = Discriminator(
        lambda told: "values" if isinstance(told, list) else "range" if number and isinstance(told, dict) else None,
        custom_error_type="dimension",
        custom_error_message="it must be a list of values such as [64, 128], or of a number a range such as "
        "{{low: 1e-4, high: 1e-2, log: true}}; a single value belongs under run",
    )
    return Annotated[Annotated[_with(_list(option.form), _same), Tag("values")] | Annotated[span, Tag("range")], kind]


def _same(values: tuple[Any, ...]) -> Iterator[str]:
    if len(values) < 2 or len(set(values)) < len(values):
        yield "give two or more different values, or put it under run"
