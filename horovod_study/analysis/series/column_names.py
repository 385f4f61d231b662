"""What the columns of somebody's table are: a quantity, a unit, and whether it is of one worker or of all.

    GPUs; img/s                     workers; samples_per_s
    nodes, GPUs/node, tokens/s/GPU  workers_per_node, and a rate per worker, which is multiplied by the workers
    world size, iter time (ms)      workers, and the time of a step

A name that may mean something else is not guessed: `batch` (of one worker, or of all?), `time` (of what?), a rate per
node, the spread of a rate. `points_file` names what it did not use, and --columns says what a column is.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

ROLES = (
    *("workers", "samples_per_s", "nodes", "sync_s", "batch_size", "series", "repeat", "workers_per_node"),
    *("samples_per_s_per_worker", "step_s", "epoch_s", "speedup", "efficiency", "global_batch", "accumulation"),
)
"""What a column can be: the columns of a points file, and what these can be worked out from."""

RATES = ("samples_per_s", "samples_per_s_per_worker", "step_s", "epoch_s", "speedup", "efficiency")
"""Of these one is enough, the first that is there."""

TIMES = ("step_s", "epoch_s", "sync_s")
SECONDS: Mapping[str, float] = MappingProxyType(
    {
        **dict.fromkeys(("us", "µs", "usec", "microseconds"), 1e-6),
        **dict.fromkeys(("ms", "msec", "millis", "milliseconds"), 1e-3),
        **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
        **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
        **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    }
)

SAMPLES, _TOKENS = "samples/s", "tokens/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a column is, and what its values are multiplied by to be in seconds or, for a rate, in its unit."""

    role: str
    factor: float = 1.0
    unit: str = SAMPLES


_WORKER = r"(?:gpu|device|accelerator|tpu|npu|chip|core|worker|rank|proc|process|gcd|card|hpu)(?:e?s)?"
_NODE = r"(?:node|host|machine|server)s?"
_ITEM = r"(?:sample|image|img|sequence|seq|sentence|token|tok|item|example|record|frame|curve|row|word)s?"
_COUNT = (
    r"(?:num(?:ber)? |n |no |# ?|total |count of )?(?:of )?(?:(?:mpi|tpu|gpu|cuda|nvidia|amd|[abhlpv]\d+|mi\d+\w?) )?"
)
_SECOND = r"(?:s|sec|second)"
_STEP = r"(?:step|iter|iteration|batch|update|it)"

_FORMS: tuple[tuple[str, str], ...] = (
    ("workers_per_node", rf"{_COUNT}{_WORKER} ?(?:/|per) ?{_NODE}|ppn|(?:tasks|ranks|slots) (?:/|per) node|local size"),
    ("workers", rf"{_COUNT}{_WORKER}(?: count)?|np|nproc|world size|ranks|parallelism|dp size"),
    ("nodes", rf"{_COUNT}{_NODE}(?: count)?|nnodes"),
    ("global_batch", r"(?:global|total|effective) (?:mini ?)?batch(?: ?size)?|gbs"),
    (
        "batch_size",
        rf"(?:local|micro|per {_WORKER})(?: train)? batch(?: ?size)?|batch(?: ?size)? ?(?:/|per) ?{_WORKER}|mbs",
    ),
    ("accumulation", r"(?:gradient|grad) acc(?:um(?:ulation)?)?(?: steps?)?|accumulation steps|gas"),
    ("speedup", r"(?:relative )?speed ?up|relative throughput"),
    ("efficiency", r"(?:(?:weak |strong )?scaling|parallel) efficiency(?: %)?"),
    ("sync_s", r"exposed (?:sync|synchroni[sz]ation|communication|comm|all ?reduce)(?: time)?|sync(?: time)?"),
    ("epoch_s", r"epoch (?:time|duration)|(?:time|duration) ?(?:/|per) ?epoch"),
    ("step_s", rf"{_STEP} ?(?:time|duration|latency)|(?:time|duration) ?(?:/|per) ?{_STEP}"),
    ("repeat", r"repeat|run|trial|rep|repetition|seed|attempt"),
    ("series", r"series|curve|model|network|framework|system|config|configuration|experiment|setting|label"),
)
_RATE = re.compile(rf"\bk?{_ITEM} ?(?:/|per) ?{_SECOND}\b|\b{_ITEM} ?ps\b|\b(?:throughput|fps|ips|training speed)\b")
_UNIT = re.compile(r"[(\[]([^)\]]*)[)\]]")
SPREAD = re.compile(r"[(\[]?\s*(?:±|\+/-|\+-)")
"""Begins the spread of a value: `12.5 ± 0.3` in a cell, `img/s (± std)` in the name of its column."""
_DURATION = re.compile(
    r"(?:(?:total|wall|elapsed|training|train|execution|run) ?)*(?:clock ?)?(?:time|duration|runtime)"
)


def meaning(name: str) -> Meaning | None:
    """What a column of this name is, None where the name does not say it."""
    text = _plain(name)
    rate = _RATE.search(text)
    if rate and text != "relative throughput":
        return _rate(text)
    unit = _unit(text)
    without = " ".join(_words(text, unit))
    if unit and re.fullmatch(rf"epoch|{_STEP}", without):
        without += " time"  # `epoch (s)`; without a unit it is the number of an epoch
    for role, form in _FORMS:
        if re.fullmatch(form, without):
            if role in TIMES:
                return Meaning(role=role, factor=SECONDS[unit or "s"])
            return Meaning(role=role) if unit is None else None
    return None


def seconds(name: str) -> float:
    """What a time in the unit that its name has is multiplied by to be in seconds; 1 where it has none."""
    return SECONDS[_unit(_plain(name)) or "s"]


def is_duration(name: str) -> bool:
    """Whether a column is a time of which the name does not say what took it."""
    text = _plain(name)
    return bool(_DURATION.fullmatch(" ".join(_words(text, _unit(text)))))


def _plain(name: str) -> str:
    """The name in small letters, its words and units separated by single spaces or `/`."""
    text = SPREAD.split(name.strip().lower().replace("#", "# "))[0]
    text = re.sub(r"[_\-.\s]+", " ", _UNIT.sub(r" \1 ", text)).strip()
    return re.sub(r" ?/ ?", "/", text)


def _unit(text: str) -> str | None:
    return next((word for word in re.split(r"[ /]", text) if word in SECONDS), None)


def _words(text: str, unit: str | None) -> list[str]:
    """The words without the unit of time; `ms/step` is `time/step`."""
    if unit is None:
        return text.split()
    text = re.sub(rf"^{re.escape(unit)} ?(/| per )", r"time\1", text)
    return [word for word in re.sub(rf"(?<![a-z]){re.escape(unit)}(?![a-z])", " ", text).split() if word != "in"]


def _rate(text: str) -> Meaning | None:
    """A rate of one worker or of all of them; None of a node, or relative to something else."""
    if re.search(r"speed ?up|efficiency|scaling|ideal|expected|std|stdev|error|min\b|max\b|ratio|relative", text):
        return None
    thousands = 1000.0 if re.search(r"\bk(?:ilo)? ?(?:samples|images|tokens|tok)|thousand", text) else 1.0
    if re.search(rf"(?:/|per ){_NODE}\b", text):
        return None
    each = re.search(rf"(?:/|per |each ){_WORKER}\b", text)
    unit = _TOKENS if re.search(r"\bk?tok(?:en)?s?\b", text) else SAMPLES
    return Meaning(role="samples_per_s_per_worker" if each else "samples_per_s", factor=thousands, unit=unit)
