"""Numbers that others measured: files of other programs in, frames and documents of this one out.

    parse_points   a table of points, in any of many forms
    points_from    logs of trainings, one point each: MLPerf Training, Horovod's benchmark, Megatron-LM ... (FORMATS)
    benches_of     bench.json, and what nccl-tests, rccl-tests and OSU's osu_allreduce print of a network

Points have the columns COLUMNS (docs/predict.md). Other names are read where HEADERS has them, other units by UNITS and
PREFIXES, in names or cells. Where two readings are possible, the reader asks (an error of one line that names the
choice) or tells: `frame.attrs["read"]` says what was guessed (`columns` says it instead), `frame.attrs["doubts"]` what
is odd.
"""

import codecs
import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from horovod_study.analysis.costs import moved_share
from horovod_study.analysis.machine.network import analyze
from horovod_study.analysis.series.culprits import MOST_EPOCHS, SPEEDUP, impossibilities, impossible
from horovod_study.config.documents import parse_json
from horovod_study.errors import AnalysisError, DataError, nearest
from horovod_study.files import unguarded
from horovod_study.records import finite
from horovod_study.text.words import cut, listed, plural

# --- words ------------------------------------------------------------------------------------------------------------

REQUIRED = ("workers", "samples_per_s")
COLUMNS = (*REQUIRED, "nodes", "sync_s", "batch_size", "series", "repeat", "workers_per_node")
RATES = ("samples_per_s", "samples_per_s_per_worker", "step_s", "epoch_s", "speedup", "efficiency")  # one is enough
TIMES = ("step_s", "epoch_s", "sync_s")
ROLES = (*COLUMNS, *RATES[1:], "global_batch", "accumulation")  # what a column can be
MAX_WORKERS, MAX_POINTS, _MAX_CELLS = 10_000_000, 1_000_000, 9_000_000
_LONG = 200  # letters; a longer cell or name says nothing that is known
SAMPLES, _TOKENS = "samples/s", "tokens/s"

_NAMES_OF_UNITS = {
    1e-9: "ns nsec nanoseconds",
    1e-6: "us µs μs usec microseconds",
    1e-3: "ms msec msecs millis milliseconds",
    1.0: "s sec secs second seconds",
    60.0: "m min mins minute minutes",
    3600.0: "h hr hrs hour hours",
    86400.0: "d day days",
}
UNITS = {name: seconds for seconds, names in _NAMES_OF_UNITS.items() for name in names.split()}
PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "thousand": 1e3, "million": 1e6, "billion": 1e9}
FAILED = frozenset(
    "oom|o.o.m.|out of memory|cuda oom|fail|failed|failure|error|err|crash|crashed|killed|timeout|time out|timed out|"
    "out_of_memory|node_fail|cancelled|canceled|aborted|preempted|diverged|hang|did not run|dnf".split("|")
)
_WITHOUT = "- -- --- \u2013 \u2014 ? / . \u2026 ... n/a n.a. na nan #n/a none null nil tbd unknown missing skipped"
NO_VALUE = {"", *FAILED, *_WITHOUT.split()}  # what stands in a cell that has no value, in small letters

_WORKER = r"(?:gpu|device|accelerator|tpu|npu|chip|core|worker|rank|proc|process|gcd|card|hpu)(?:e?s)?"
_NODE = r"(?:node|host|machine|server)s?"
_ITEM = r"(?:sample|image|img|sequence|seq|sentence|token|tok|item|example|record|frame|curve|row|word)s?"
_KIND = r"(?:(?:mpi|tpu|gpu|cuda|nvidia|amd|[abhlpv]\d+|mi\d+\w?) )?"
_COUNT = rf"(?:num(?:ber)? |n |no |# ?|total |count of )?(?:of )?{_KIND}"
_TIME = "(?:" + "|".join(sorted(UNITS, key=len, reverse=True)) + ")"
_STEP = r"(?:step|iter|iteration|batch|batche|update|it)s?"

HEADERS = {  # what the whole name of a column, without units, says that it is; rates are found by _RATE
    "workers_per_node": rf"{_COUNT}{_WORKER} ?(?:/|per) ?{_NODE}|ppn|n?tasks ?(?:/|per) ?node|"
    rf"(?:ranks|slots) (?:/|per) node|local size",
    "workers": rf"{_COUNT}{_WORKER}(?: count)?|np|n ?procs?|n ?tasks|world size|ranks|parallelism|dp(?: size)?",
    "nodes": rf"{_COUNT}{_NODE}(?: count)?|n ?nodes",
    "global_batch": r"(?:global|total|effective) (?:(?:mini ?)?batch(?: ?size)?|bs)|gbs",
    "batch_size": rf"(?:local|micro|per {_WORKER})(?: train)? batch(?: ?size)?|mbs|"
    rf"batch(?: ?size)? ?(?:/|per) ?{_WORKER}",
    "accumulation": r"(?:gradient|grad) acc(?:um(?:ulation)?)?(?: steps?)?|accumulation steps|gas",
    "speedup": r"(?:(?:relative )?speed ?up|relative throughput)(?: %)?",
    "efficiency": r"(?:(?:weak |strong )?scaling|parallel) efficiency(?: %)?",
    "sync_s": r"exposed (?:sync|synchroni[sz]ation|communication|comm|all ?reduce)(?: time)?|sync(?: time)?",
    "epoch_s": r"epoch (?:time|duration)|(?:time|duration) ?(?:/|per) ?epoch",
    "step_s": rf"{_STEP} ?(?:time|duration|latency)|(?:time|duration) ?(?:/|per) ?{_STEP}",
    "repeat": r"repeat|run|trial|rep|repetition|seed|random seed|attempt|replica(?:te)?",
    "series": r"series|curve|model|network|framework|system|config|configuration|experiment|setting|label",
    "status": r"(?:job )?(?:state|status|outcome)",
    "other": r".*\b(?:loss|acc|accuracy|perplexity|ppl|bleu|top ?[15]|mse|memory|mem|vram|power|temp|temperature|date|"
    r"time ?stamp|started|submitted|job ?id|std|stdev|stddev|sd|sem|ci|error|flops?|mfu|index|comment|notes?|util)\b.*",
}
_RATE = re.compile(
    rf"(?:\b(thousand|million|billion|[kmg]) ?)?\b({_ITEM})(?:(?:/| per ){_WORKER})?(?: ?/ ?| per ){_TIME}\b"
    rf"|\b([kmg])({_ITEM})(?:(?:/| per ){_WORKER})?(?: ?/ ?| per ){_TIME}\b"
    rf"|\b{_ITEM} ?ps\b|\b(?:throughput|fps|ips|tps|wps|tgs|training speed)\b"
)
_SCALE = re.compile(r"[x\u00d7] ?1,?0|\b10+s\b|10 ?\^|\b1e\d|[³⁶⁹]|\b(?:thousand|million|billion)s?\b")
_INVERSE = re.compile(rf"({_STEP}|epochs?)(?: ?/ ?| per )({_TIME})")
_STATISTIC = r"average|avg|mean|median|measured|observed|achieved"
_NO_RATE = (
    r"speed ?up|efficiency|scaling|ideal|expected|linear|theoretical|predicted|std|stdev|error|(?<!/)(?<!per )min\b|"
    r"max\b|ratio|relative"
)
_DURATION = re.compile(
    r"(?:(?:total|wall|elapsed|training|train|execution|run) ?)*(?:clock ?)?(?:time|duration|runtime|elapsed)|"
    r"time to (?:train|accuracy|solution|target|convergence|quality)|latency"
)
_BATCH = re.compile(r"(?:mini[ _-]?)?batch(?:[ _-]?size)?|bs")  # of one worker, or of all: nobody can tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a column is, and what its values are multiplied by to be in seconds or, for a rate, in its unit."""

    role: str
    factor: float = 1.0
    unit: str = SAMPLES
    inverse: bool = False  # it/s of a time of a step
    label: str = ""  # of a rate or speedup, the words that say of what
    bare: bool = False  # a time or a rate without a unit
    at: int = -1  # position and name in the file
    name: str = ""
    given: bool = False  # named as in COLUMNS, or by the caller: what it holds must be right
    own: bool = False  # named as in COLUMNS


def meaning(name: str) -> Meaning | None:
    """Return what a column of this name is, None where the name does not say it."""
    if len(name) > _LONG:
        return None
    text = _plain(name)
    if _RATE.search(text) and text.rstrip(" %") != "relative throughput":
        return _rate(text)
    if each := _INVERSE.fullmatch(re.sub(rf"\b(?:throughput|speed|{_STATISTIC})\b", "", text).strip()):
        return Meaning(role="epoch_s" if each[1].startswith("epoch") else "step_s", factor=UNITS[each[2]], inverse=True)
    unit = _unit(text)
    without = re.sub(rf"\b(?:{_STATISTIC})\b", "", " ".join(_words(text, unit))).strip()
    if unit and re.fullmatch(rf"epoch|{_STEP}", without):
        without += " time"  # `epoch (s)`; without a unit it is the number of an epoch
    without = re.sub("^(efficiency(?: %)?)$", r"scaling \1", without)
    for role, form in HEADERS.items():
        if re.fullmatch(form, without):
            if role in TIMES:
                return Meaning(role=role, factor=UNITS[unit or "s"], bare=unit is None)
            return Meaning(role=role) if unit is None or role == "other" else None
        if role in ("speedup", "efficiency") and unit is None and not re.search(_NO_RATE, re.sub(form, "", without)):
            if each := re.fullmatch(rf"(.+) (?:{form})|(?:{form}) (.+)", without):
                return Meaning(role=role, label=each[1] or each[2])
    return None


def is_duration(name: str) -> bool:
    """Return whether a column is a time of which the name does not say what took it."""
    return bool(_DURATION.fullmatch(" ".join(_words(_plain(name[:_LONG]), _unit(_plain(name[:_LONG]))))))


def _plain(name: str) -> str:
    """The name in small letters, its words and units separated by single spaces or `/`."""
    text = re.split(r"[(\[]?\s*(?:±|\+/-|\+-)", name.strip().strip("*`").lower().replace("#", "# "))[0]
    text = re.sub(r"[_\-.\s]+", " ", re.sub(r"[(\[]([^)\]]*)[)\]]", r" \1 ", text)).strip()
    text = re.sub(r"\bb (?=tok\w*(?: ?/ ?| per )(?:d|days?|h|hrs?|hours?)\b)", "billion ", text)
    for clock, unit in (("hh?:mm:ss", "s"), ("hh?:mm", "h"), ("mm?:ss", "min")):
        text = re.sub(rf"\b{clock}\b", unit, text)
    return re.sub(r" ?/ ?", "/", text)


def _seconds(name: str) -> float:
    return UNITS[_unit(_plain(name[:_LONG])) or "s"]


def _unit(text: str) -> str | None:
    return next((word for word in re.split(r"[ /]", text) if word in UNITS), None)


def _words(text: str, unit: str | None) -> list[str]:
    """The words without the unit of time; `ms/step` is `time/step`."""
    if unit is None:
        return text.split()
    text = re.sub(rf"^{re.escape(unit)} ?(/| per )", r"time\1", text)
    return [word for word in re.sub(rf"(?<![a-z]){re.escape(unit)}(?![a-z])", " ", text).split() if word != "in"]


def _rate(text: str) -> Meaning | None:
    """A rate of one worker or of all of them; None of a node, or relative to something else."""
    if not (found := _RATE.search(text)) or re.search(_NO_RATE, text) or re.search(rf"(?:/|per ){_NODE}\b", text):
        return None
    full = next((each for each in _RATE.finditer(text) if each[2] or each[4]), found)  # `throughput (img/s)`
    prefix = PREFIXES[full[1] or full[3] or ""] if full[2] or full[4] else 1.0
    if _SCALE.search(_RATE.sub(" ", text)):
        return None  # x1000, 10^3, (billions): of what is written, or of what is meant
    time = re.search(rf"(?:/|per ?){_TIME}\b", full[0])
    factor = prefix / (UNITS[re.sub(r"^(?:/|per) ?", "", time[0]).strip()] if time else 1.0)
    each = re.search(rf"(?:/|per |each ){_WORKER}\b|\btgs\b", text)
    tokens = re.search(r"(?:\b|\b[kmg])tok(?:en)?s?\b|\btokens?ps\b|\b(?:tps|tgs)\b", text)
    rest = _RATE.sub(" ", text).replace("(", " ")
    idle = rf"(?:/|\bper |\beach ){_WORKER}\b|\b(?:{_STATISTIC}|total|global|overall|training|in|of|all)\b"
    label, unit = " ".join(re.sub(idle, " ", rest).split()), _TOKENS if tokens else SAMPLES
    return Meaning(role=RATES[bool(each)], factor=factor, unit=unit, label=label, bare=time is None)


# --- cells ------------------------------------------------------------------------------------------------------------

_NUMBER = r"[-+]?(?:[0-9]+(?:[.,' \u00a0\u202f\u2009\u2019][0-9]+)*\.?|[.,][0-9]+)(?:[eE][-+]?[0-9]+)?"
_QUICK = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_SPREAD = re.compile(rf"\s*(?:±|\+/-|\+-)\s*{_NUMBER}(\s*[kKMG](?![a-zA-Z]))?")
_CLOCK = re.compile(r"(?:(?:([0-9]+)-)?([0-9]+):)?([0-9]+):([0-9]{2}(?:[.,][0-9]+)?)")
_SPAN = re.compile(rf"({_NUMBER})\s*({_TIME})(?![a-z])\s*")
_CELL = re.compile(rf"(?:[x\u00d7]\s*)?({_NUMBER})\s*(?:([kKMG])(?=$|[^a-zA-Z]|{_ITEM}\b))?\s*(.*)")
_TIMES_OF = re.compile(r"[a-z][\w -]* ?[x\u00d7*] ?([0-9]+)", re.IGNORECASE)  # A100 x 8
_GROUPS = re.compile(r"([-+]?\d{1,3})((?:[ '\u00a0\u202f\u2009\u2019]\d{3})+)([.,]\d+)?")
_THREE = re.compile(r"[1-9]\d\d")
_COMMAS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")
_POINTS = re.compile(r"[-+]?[1-9]\d{0,2}(?:\.\d{3})+(?:,\d*)?")


@dataclass(frozen=True, slots=True)
class Amount:
    """What a cell says: numbers as they are written with their factors, which add up, and the unit in small letters."""

    parts: tuple[tuple[str, float], ...]
    unit: str = ""
    remark: bool = False  # a spread or brackets were left out


def quantity(cell: str) -> Amount | None:
    """Return what a cell says: `450`, `1.7k tok/s`, `4 min 40 s`, `1:04:00`, `95 %`, `2x A100`; None without a number.

    Times are in "s", whatever their unit was.
    """
    text = cell.strip()
    if _QUICK.fullmatch(text):
        return Amount(((text, 1.0),))
    if len(text) > _LONG:
        return None
    whole = re.sub(r"\*\*|[`~≈†‡§]|\*$", "", text).strip()
    text = re.sub(r"^[(\[](.*)[)\]]$", r"\1", whole)
    if spread := _SPREAD.search(text):
        before, after = text[: spread.start()].strip(), text[spread.end() :]
        if spread[1] and not re.search(r"[kKMG]$", before):
            return None  # 1.7 ± 0.1k: of both, or of the spread?
        text = before if re.search(r"[a-zA-Z%]$", before) else before + after
    for brackets, inside in re.findall(r"(\s*[(\[]([^()\[\]]*)[)\]])", text):  # a unit, or a remark
        plain = _plain(inside)
        kept = inside.strip().lower() in UNITS or bool(_INVERSE.fullmatch(plain) or _rate(plain))
        text = text.replace(brackets, f" {inside}" if kept else "")
    text = text.strip(" *)")
    remark = text != whole
    if clock := _CLOCK.fullmatch(text):
        parts = zip(clock.groups(), (86400.0, 3600.0, 60.0, 1.0), strict=True)
        unit = "s" if clock[2] else ":"  # 16:30 may be of hours, or of minutes
        return Amount(tuple((each, factor) for each, factor in parts if each), unit, remark)
    lower = text if text.endswith("M") else text.lower()
    spans = _SPAN.findall(lower)
    if spans and not _SPAN.sub("", lower):
        return Amount(tuple((each, UNITS[unit]) for each, unit in spans), "s", remark)
    if each := _TIMES_OF.fullmatch(text):
        return Amount(((each[1], 1.0),), f"x {text}".lower(), remark)
    if not (each := _CELL.fullmatch(text)):
        return None
    unit = "x" if text[0] in "x\u00d7" else each[3].strip().lower().replace("\u00d7", "x")
    return Amount(((each[1], PREFIXES[(each[2] or "").lower()]),), unit, remark)


def number(text: str, *, comma: bool = False) -> float:
    """Return the number that a text without a unit is, NaN where it is none; `comma`: it marks decimals."""
    if grouped := _GROUPS.fullmatch(text):
        text = grouped[1] + re.sub(r"\D", "", grouped[2]) + (grouped[3] or "")
    if comma and "." in text and not _POINTS.fullmatch(text):
        return math.nan
    if comma:
        text = text.replace(".", "").replace(",", ".")
    elif _COMMAS.fullmatch(text):
        text = text.replace(",", "")
    return float(text) if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|nan|[-+]?inf", text, re.A) else math.nan


def _sum(found: Amount | None, *, comma: bool = False) -> float:
    """Return the number of a quantity, in seconds where it is a time; infinite where there is none."""
    return math.inf if found is None else sum(number(text, comma=comma) * factor for text, factor in found.parts)


def _decimal_comma(columns: Sequence[tuple[str, Sequence[str]]], separator: str, where: str) -> bool:
    """Whether a comma marks decimals in the numbers of columns, which stand behind their roles.

    `1,234` is a decimal of a speedup, thousands of a rate; of times, or of rates beside semicolons, it is asked.
    """
    for role, texts in columns:
        for text in texts:
            comma, point = text.rfind(","), text.rfind(".")
            if comma < 0 and text.count(".") < 2:
                continue
            if (point > comma and text.count(".") == 1) or (role in _WHOLE and _COMMAS.fullmatch(text)):
                return False
            if text.count(".") > 1 or (text.count(",") == 1 and not _COMMAS.fullmatch(text)):
                return True
    both = "thousands or decimals; write its column"
    for role, texts in columns:
        pointed = [text for text in texts if "." in text] if role in (*RATES[:2], *TIMES) else []
        if pointed and all(map(_POINTS.fullmatch, pointed)) and any(map(_THREE.fullmatch, texts)):  # 880 and 1.700
            raise DataError(f"{where}: {pointed[0]!r} may have {both} without points")
    if any(re.search(r"\.(?!\d{3}$)", text) for _, texts in columns for text in texts):
        return False
    commas = [(role, texts) for role, texts in columns if any("," in text for text in texts)]
    long = (re.match(r"\d{4}|\d+[^\d.,]\d", text) for _, texts in commas for text in texts)
    if any(role in RATES[4:] for role, _ in commas) or any(long):
        return True  # beside 1906 the comma of 1,332 parts no thousands
    for role, texts in commas:  # not so beside 880
        if (separator == ";" or role in (*TIMES, VALUES)) and not any(map(_THREE.fullmatch, texts)):
            first = next(text for text in texts if "," in text)
            raise DataError(f"{where}: {first!r} may have {both} without commas")
    return False


_OF_WORKERS = rf"|x(?: ?[a-z].*)?|{_KIND}{_WORKER}(?: .*)?"
_CELLS = {  # least, largest, what is allowed ("": whole), units beside rates for rates
    "workers": (1, MAX_WORKERS, "", _OF_WORKERS),
    "samples_per_s": (1e-9, 1e15, "a finite number above 0, in samples/s of all workers", ""),
    "nodes": (1, MAX_WORKERS, "", rf"|{_NODE}|x ?[a-z].*"),
    "sync_s": (0.0, 1e6, "seconds per step, 0 or more", "|s"),
    "batch_size": (1e-9, 1e12, "samples, above 0", rf"|{_ITEM}"),
    "repeat": (0, 10**9, "", ""),
    "workers_per_node": (1, MAX_WORKERS, "", _OF_WORKERS),
    "samples_per_s_per_worker": (1e-9, 1e15, "a finite number above 0, in samples/s of one worker", ""),
    "step_s": (1e-12, 1e12, "a time above 0", "|s"),
    "epoch_s": (1e-12, 1e12, "a time above 0", "|s"),
    "speedup": (1e-9, 1e9, "a number above 0", "|x|%"),
    "efficiency": (1e-6, 1e3, "a share or a percentage above 0", "|%"),
    "accumulation": (1, 10**6, "", ""),
    "global_batch": (1e-9, 1e15, "samples, above 0", rf"|{_ITEM}"),
}
_WHOLE = tuple(role for role, (_, _, allowed, _) in _CELLS.items() if not allowed)


def _factor(found: Amount, column: Meaning, units: Collection[str]) -> float:
    """Return what a cell is multiplied by to be in the unit of its role; NaN where its unit, one of `units` that the
    column has, is none of that."""
    role, unit, of_rate = column.role, found.unit, column.role in RATES[:2] or column.inverse
    if found.parts[0][1] != 1.0 and unit not in ("s", ":") and (not of_rate or (not unit and column.factor != 1.0)):
        return math.nan  # a batch of 4k is one of 4096; 1.7k in a column of ktok/s
    if not unit:
        unclear = len(units) > 1 and ((column.bare and role in TIMES) or role == "efficiency")
        return math.nan if unclear else column.factor
    if of_rate:
        other, same = meaning(unit), (column.inverse, column.unit)
        fits = other and (other.inverse, other.unit) == same and other.role in (role, RATES[0])
        return other.factor if other and fits else math.nan
    if unit == ":" and role in TIMES:  # 16:30 is of minutes, or of hours
        return {60.0: 1.0, 3600.0: 60.0}.get(_seconds(column.name), 1.0 if "s" in units else math.nan)
    node = role != "nodes" and re.search(rf"\b(?:{_NODE}|dgx|hgx)\b", unit)  # 2x DGX are no two workers
    return (0.01 if unit == "%" else 1.0) if re.fullmatch(_CELLS[role][3], unit) and not node else math.nan


def _value(cell: str, column: Meaning, units: Collection[str], *, comma: bool) -> float | None:
    """Return the value of a cell in the unit of its role, NaN where it may be empty and is, None where it is wrong."""
    low, high, allowed, _ = _CELLS[column.role]
    optional = column.role not in (*REQUIRED, *RATES, "accumulation")
    if optional and (not cell.strip() or (not column.own and cell.strip().lower() in NO_VALUE)):
        return math.nan
    found, value, factor = quantity(cell), math.nan, 1.0
    if found is not None:
        value, factor = _sum(found, comma=comma), _factor(found, column, units)
    if not (low <= value <= high and (allowed or value == math.floor(value))) or math.isnan(factor):
        return None
    return factor / value if column.inverse else value * factor


def _shown(value: str | list[str]) -> str:
    """What the file says, short enough for one line."""
    return repr(cut(value if isinstance(value, str) else ",".join(value), 60))


def _few(texts: Sequence[str], most: int = 5) -> list[str]:
    """The first of many texts, and how many more there are."""
    return [*texts[:most], *([f"{len(texts) - most} more"] if len(texts) > most else [])]


# --- forms ------------------------------------------------------------------------------------------------------------

_BOX = str.maketrans(
    {chr(code): "-" if chr(code) in "─━┄┅┈┉╌╍═╴╶╸╺╼╾" else "+" for code in range(0x2500, 0x2580)}
    | dict.fromkeys("│┃║┆┇┊┋╎╏", "|")
)
_RULE = re.compile(r"[ \t|+:=-]*[=-][ \t|+:=-]*")
_SPLIT = re.compile(r"[,;|\t]|\s{2,}")
_Rows = list[tuple[int, list[str]]]  # of a table: their lines and cells


@dataclass(slots=True)
class _Reading:
    """A table while it is read: its cells with the line of each row, the header first, and what comes out of them."""

    source: str
    separator: str
    rows: _Rows
    told: list[str]  # how it is read
    holds: str = ""  # of a wide one, what its values are
    found: list[Meaning] = field(default_factory=list)  # columns that are used
    unused: dict[int, str] = field(default_factory=dict)  # columns that are not, and why where a cell is wrong
    doubts: list[str] = field(default_factory=list)
    frame: pd.DataFrame = field(default_factory=pd.DataFrame)  # numbers by role, with the line of each row

    @property
    def header(self) -> list[str]:
        return self.rows[0][1]

    @property
    def where(self) -> str:
        return f"{self.source} line {self.rows[0][0]}"

    @property
    def rate(self) -> Meaning:
        return next(each for each in self.found if each.role in RATES)

    def column(self, at: int) -> list[str]:
        return [cells[at] for _, cells in self.rows[1:]]

    def name(self, names: Sequence[str], told: str) -> None:
        """Add to the names of the curves, and tell of which column."""
        own = self.frame["series"] if "series" in self.frame else [""] * len(self.frame)
        self.frame["series"] = [f"{one} {other}".strip() for one, other in zip(own, names, strict=True)]
        self.told += [f"series = {told}"] if told else []


def _table(data: str | bytes, source: str) -> _Reading:
    """The cells of a file, whatever its form; as many in every row."""
    data = data.encode("utf-8", "replace") if isinstance(data, str) else data
    utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    ways = {"utf-16": "text in UTF-16"} if utf16 else {"utf-8-sig": "", "cp1252": "text in Windows-1252"}
    for encoding, how in ways.items() if utf16 or b"\0" not in data else ():
        with suppress(UnicodeDecodeError):
            text, told = data.decode(encoding), how
            break
    else:
        raise DataError(f"{source}: is not a text file; save the table as CSV in UTF-8")
    if text.lstrip()[:1] in ("{", "["):
        rows = list(enumerate(_of_json(text, source), 1))
        separator, form = ",", f"JSON of {plural(len(rows) - 1, 'row', ',')}"
        source = f"{source}, as CSV,"
    else:
        separator, rows = _cells(text.removeprefix("\ufeff"), source)
        form = "" if separator == "," else f"{separator!r} separates columns"
    if not rows:
        raise DataError(f"{source}: is empty; give a first line 'workers,samples_per_s' and one line per point")
    if len(rows) > MAX_POINTS + 1 or len(rows) * len(rows[0][1]) > _MAX_CELLS:
        raise DataError(f"{source}: has more than {MAX_POINTS:,} points; give one line per run, not one per step")
    for line, cells in rows:
        if len(cells) != len(rows[0][1]):
            several = f"{len(cells)} cells where the first line names {len(rows[0][1])} columns ({_shown(cells)})"
            raise DataError(f"{source} line {line}: {several}; quote cells with a separator in them")
    rows[0] = (rows[0][0], [name.strip().strip("*`").strip() for name in rows[0][1]])
    return _Reading(source, separator, rows, [*filter(None, (told, form))])


def _cells(text: str, source: str) -> tuple[str, _Rows]:
    """What separates the cells of a text, and the cells with their lines."""
    plain = text if text.isascii() else text.translate(_BOX)
    lines = [(at, line) for at, line in enumerate(plain.splitlines(), 1) if not line.isspace() and line]
    if len(lines) < 10**5:  # (4 rows), [4 rows x 2 columns], 4 rows in set (0.00 sec)
        lines = [each for each in lines if not re.match(r"[\[(]?\d+ rows?\b", each[1].strip())]
    named = (line for _, line in lines if not _RULE.fullmatch(line) and not _remark(_SPLIT.split(line.strip())))
    head = next(named, "")
    separator = next((mark for mark in "\t|;," if mark in head), " ")
    if separator == "," and len(lines) > 1 and not any("," in line for _, line in lines if line != head):
        separator = " "
    if separator == " " and any("|" in line for line in named) and any(_RULE.fullmatch(line) for _, line in lines):
        separator = "|"  # below a title
    if separator in "| " and len(lines) > MAX_POINTS + 100:
        return separator, [(at, []) for at, _ in lines]  # too many
    if separator == "|":
        return separator, _barred(lines, source)
    if separator == " " and len(lines) > 1:
        return separator, _spaced(lines, source)
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=separator != "\t", delimiter=separator)
    rows: _Rows = []
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells) and not _remark(cells, after=bool(rows)):
                rows.append((reader.line_num, cells))
            if len(rows) > MAX_POINTS + 1:
                break
    except csv.Error as error:
        raise DataError(f"{source} line {reader.line_num}: is not CSV text ({error}); save the table as CSV") from None
    return "," if separator == " " else separator, rows


def _remark(cells: list[str], *, after: bool = False) -> bool:
    """Whether a line is a remark; `#GPUs` as the first name of the first line is none."""
    return cells[0].lstrip().startswith("#") and (after or len(cells) == 1 or meaning(cells[0]) is None)


def _barred(lines: list[tuple[int, str]], source: str) -> _Rows:
    """Cells between bars: of Markdown, grids, psql, rich; names may stand in several lines above the first rule."""
    rows: _Rows = []
    outer, first, last, ruled, ended = None, 0, 0, False, False
    for at, line in lines:
        rule, line = bool(_RULE.fullmatch(line)), line.strip()
        if not rule and ("|" not in line or _remark(_SPLIT.split(line))):
            ended = ended or (bool(rows or first) and not line.startswith("#"))
            continue
        if ended or (rule and first and (line[0] != "+" or (ruled and at > last + 1))):
            raise DataError(f"{source} line {at}: a second table begins; give one, or name its series in a column")
        ruled, last = rule, at
        first = first or (len(rows) if rule else 0)
        if not rule:
            outer = line.startswith("|") if outer is None else outer
            inside = re.sub(r"^\|(.*?)\|?$", r"\1", line) if outer else line
            rows.append((at, [cell.strip() for cell in re.split(r"(?<!\\)\|", inside)]))
    if first and len({len(cells) for _, cells in rows[:first]}) == 1:
        names = zip(*(cells for _, cells in rows[:first]), strict=True)
        rows[:first] = [(rows[0][0], [" ".join(parts).strip() for parts in names])]
    return rows


def _spaced(lines: list[tuple[int, str]], source: str) -> _Rows:
    """Cells between spaces: below the rules over or under the names, or between two spaces or more, or single ones."""
    rules = [line for _, line in lines if _RULE.fullmatch(line)]
    kept = [(at, line.expandtabs()) for at, line in lines if not _RULE.fullmatch(line)]
    kept = [each for each in kept if each is kept[0] or not each[1].lstrip().startswith("#")]
    begins = [found.start() for found in re.finditer(r"[=-]+", rules[0])][1:] if rules else []
    if begins and all(not line[begin - 1 : begin].strip() for _, line in kept for begin in begins):
        ends = [*pairwise([0, *begins, None])]
        return [(at, [line[begin:end].strip() for begin, end in ends]) for at, line in kept]
    for gap in (r"\s{2,}", r"\s+") if kept else ():
        (top, names), *rows = [(at, re.split(gap, line.strip())) for at, line in kept]
        first, sizes = len(names), [len(cells) for _, cells in rows]
        if len(sizes) > 1 and first + sizes[0] == sizes[1] and not re.search(r"\d", kept[1][1]):  # a named index
            return [(top, rows[0][1] + names), *rows[1:]]
        if set(sizes) in ({first}, {first + 1}) and sizes[0] > 1:  # an index without a name, as pandas prints it
            return [(top, [""] * (sizes[0] - first) + names), *rows]
    told = f"{_shown(lines[0][1].strip())} begins no table: columns between commas, semicolons, tabs, bars"
    raise DataError(f"{source} line {lines[0][0]}: {told} (Markdown, grids) or two spaces, or JSON")


def _of_json(text: str, source: str) -> list[list[str]]:
    """Names and rows of a table in JSON: objects in a list or one a line, or columns, maybe below a name."""
    again = 'give a list of rows such as [{"workers": 1, "samples_per_s": 520}], or a CSV file'
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and all(line[0] == "{" and line[-1] == "}" for line in lines):
        content: Any = [parse_json(line, source=source, error=DataError, again=again) for line in lines]
    else:
        content = parse_json(text, source=source, error=DataError, again=again)
    while isinstance(content, dict):
        inner = [*content.values()]
        lists: list[Any] = [each for each in inner if isinstance(each, list) and {dict} & {*map(type, each)}]
        if len(found := lists or [each for each in inner if isinstance(each, dict)]) != 1:
            break
        content = found[0]
    plain = isinstance(content, dict) and not any(isinstance(each, dict | list) for each in content.values())
    frame = pd.DataFrame()
    with suppress(TypeError, ValueError):
        frame = pd.DataFrame([content] if plain else content, dtype=object)
    if frame.empty or not all(isinstance(name, str) for name in frame):
        raise DataError(f"{source}: holds no table; {again}")
    for name in frame.columns[frame.map(lambda cell: isinstance(cell, dict | list)).any()]:
        raise DataError(f"{source}: {name!r} is a table itself; {again}")
    return [[*frame], *frame.where(frame.notna(), "").astype(str).to_numpy().tolist()]


# --- wide tables ------------------------------------------------------------------------------------------------------

_AS_COUNT = re.compile(rf"(?i)(?:{_COUNT}{_WORKER}|n|np)? ?=? ?([0-9]+) ?(?:x(?: ?[a-z].*)?|{_KIND}{_WORKER}|{_NODE})?")
_RUN = re.compile(r"(?:run|rep|repeat|repetition|trial|seed|attempt) ?#? ?[0-9]+")
_SETTING = re.compile(
    r"\b(?:lr|learning rate|bs|batch(?: size)?|steps|epochs?|warm ?up|length|seq len|layers|params)\b"
)
_NAMES = {"samples_per_s": "throughput", "samples_per_s_per_worker": "throughput per worker", "speedup": "speedup"}
VALUES = "values"
"""The column of a long table made of a wide one, whose names do not say what they hold."""


def _turned(table: _Reading) -> _Reading:
    """A table whose names are worker or node counts (`1 GPU`, `8`) with a row for each of these counts."""
    header, body = table.header, table.rows[1:]
    ends = [re.fullmatch(rf"([0-9]+ ?(?:{_WORKER}|{_NODE}))\b ?(.*)", _plain(name[:_LONG])) for name in header]
    holds = {each[2] for each in ends if each}
    more = holds.pop() if len(holds) == 1 else ""
    known = bool(_rate(more)) or more in UNITS
    shown = [each[1] if each and known else name for name, each in zip(header, ends, strict=True)]
    counts = {at: found[1] for at, name in enumerate(shown) if (found := _AS_COUNT.fullmatch(name[:_LONG]))}
    if len(set(counts.values())) < len(counts) or len(counts) < 2 or not body:
        return table
    nodes = all(re.search(rf"{_NODE}$", shown[at], re.IGNORECASE) for at in counts)
    labels = [at for at in range(len(header)) if at not in counts]
    plain = all(header[at] == count for at, count in counts.items())
    corner = header[labels[0]] if labels else ""
    of = getattr(meaning(corner), "role", "")
    numbers = plain and labels and all(re.fullmatch("[1-9][0-9]*", cells[labels[0]].strip()) for _, cells in body)
    named = labels and (not corner or of in ("workers", "series", *RATES)) and not (numbers and of == "workers")
    if plain and (not named or len(counts) < 3):  # numbers without names, or rows are the counts
        return table
    if numbers and not corner:
        raise DataError(f"{table.where}: names and first column are numbers; name the column of workers 'workers'")
    names = []
    for _, cells in body:
        words = [f"{header[at]} {cells[at]}" if _QUICK.fullmatch(cells[at]) else cells[at].strip() for at in labels]
        names.append(" ".join(filter(None, words)) or VALUES)
    first = (table.rows[0][0], [corner if of == "workers" else "nodes" if nodes else "workers", *names])
    rows = [(first[0], [count, *(cells[at] for _, cells in body)]) for at, count in counts.items()]
    told = [*table.told, f"{listed([header[at] for at in counts])} are {'node' if nodes else 'worker'} counts"]
    held = corner if of in RATES else f"time ({more})" if more in UNITS else more
    return _Reading(table.source, table.separator, [first, *rows], told, held)


def _long(table: _Reading, columns: Mapping[str, str]) -> _Reading:
    """A table with a column for each series with a row for each of their values.

    These are rates or speedups whose names say of what, or numbers that no name explains: throughputs where all rise
    with the workers, else `VALUES`, of which --columns has to say what they are.
    """
    header, given = table.header, set(columns.values())
    open_ = [at for at, name in enumerate(header) if name not in given]
    known = {at: each for at in open_ if (each := _meaning(header[at], table.column(at)))}
    best = next((role for role in RATES if role in columns or any(each.role == role for each in known.values())), "")
    counted = [at for at, name in enumerate(header) if name == columns.get("workers", "workers")]
    counted = sorted({*counted, *(at for at, each in known.items() if each.role in ("workers", "nodes"))})
    wide, name = [at for at, each in known.items() if each.role == best], ""
    if wide and best not in columns and not table.holds:
        left = {re.sub(rf"\b{re.escape(known[at].label)}\b", "", _plain(header[at])).strip() for at in wide}
        if len(left) == len({known[at].label for at in wide} - {""}) == len(wide) > 1:
            raise DataError(f"{table.where}: {listed([header[at] for at in wide])} have different units; keep one unit")
        names = {at: header[at] if known[at].label == _plain(header[at]) else known[at].label for at in wide}
        if len(left) == 1 < len(wide) == len({*names.values()} - {""}):
            name = left.pop() or _NAMES.get(best, "")
    elif counted and (not best or VALUES in given or table.holds) and len(header) * len(table.rows) < 10**5:
        rest = [at for at in open_ if at not in known and header[at] and not _unclear(header[at])]
        rest = [at for at in rest if not any(form.search(_plain(header[at][:_LONG])) for form in (_RATE, _SETTING))]
        rest = [at for at in (range(1, len(header)) if table.holds else rest) if at not in counted]
        names = {at: header[at] for at in rest if any(map(quantity, table.column(at)))}
        if len(names) > 1 or (names and (table.holds or VALUES in header)):
            name = VALUES if VALUES in given else table.holds or _values(table, counted[0], [*names])
    if not name:
        return table
    kept = [at for at in range(len(header)) if at not in names]
    runs = "repeat" not in header and all(_RUN.fullmatch(_plain(label)) for label in names.values())
    labels = {at: re.sub(r"\D", "", label) if runs else label for at, label in names.items()}
    rows = [
        (line, [*(cells[at] for at in kept), label, cells[one]])
        for one, label in labels.items()
        for line, cells in table.rows[1:]
    ]
    told = [*table.told, f"columns {listed([header[at] for at in names])} are {'repeats' if runs else 'series'}"]
    if not best and not table.holds and name != VALUES:
        told.append(f"their values, which rise with the workers, are {name}s")
    first = (table.rows[0][0], [*(header[at] for at in kept), "repeat" if runs else "series", name])
    return _Reading(table.source, table.separator, [first, *rows], told)


def _values(table: _Reading, workers: int, wide: list[int]) -> str:
    """What values are that rise with the workers as rates do: steeply, and not ever more so; `VALUES` where none do."""
    cells = [[*zip(map(quantity, table.column(workers)), map(quantity, table.column(at)), strict=True)] for at in wide]
    texts = [text for each in cells for _, one in each if one for text, _ in one.parts]
    comma = _decimal_comma([(VALUES, texts)], table.separator, table.where)
    ones = True
    for each in cells:
        both = sorted((_sum(n, comma=False), _sum(x, comma=comma)) for n, x in each if n and x)
        logs = [(math.log(n), math.log(x)) for n, x in dict(both).items() if n > 0 < x]
        slopes = [(other[1] - one[1]) / (other[0] - one[0]) for one, other in pairwise(logs)]
        whole = (logs[-1][1] - logs[0][1]) / (logs[-1][0] - logs[0][0]) if slopes else 0.0
        exact = len(slopes) > 1 and max(abs(each - 1) for each in slopes) < 1e-6  # a learning rate, a batch
        if not 0.5 < whole < 1.3 or slopes[-1] > slopes[0] + 0.1 or exact:
            return VALUES
        ones = ones and both[0] == (1.0, 1.0)
    return "speedup" if ones else "throughput"


def _unclear(name: str) -> bool:
    return is_duration(name) or bool(_BATCH.fullmatch(_plain(name[:_LONG])))


# --- columns ----------------------------------------------------------------------------------------------------------


def _meaning(name: str, cells: Sequence[str]) -> Meaning | None:
    """Return what a column is by its name and the units of its cells: `result` of `450 tok/s` is a rate."""
    means, found = meaning(name), [each for cell in cells[:50] if (each := quantity(cell))]
    if means and means.role in ("workers", "nodes") and not found and any(map(str.strip, cells)):
        return None  # `GPU`: A100
    if means is None and found and {each.unit for each in found} == {"x"}:
        return Meaning(role="speedup", label=_plain(name))
    units = {(of.role, of.unit, of.inverse) for one in found if one.unit and (of := meaning(one.unit))}
    role, unit, inverse = units.pop() if len(units) == 1 else ("", "", False)
    if means is None and (role in RATES[:2] or inverse):
        return Meaning(role=role, unit=unit, inverse=inverse, label="" if _unclear(name) else _plain(name), bare=True)
    if means and means.role in RATES[:2] and role in RATES[:2]:
        role = RATES[1] if RATES[1] in (role, means.role) else role
        return replace(means, role=role, unit=_TOKENS if _TOKENS in (unit, means.unit) else unit)
    return means


def _columns(t: _Reading, columns: Mapping[str, str]) -> list[Meaning]:
    """The columns that are used: those that are said, those with names of a points file, those that are guessed."""
    names, plain = t.header, [name.lower() for name in t.header]
    used: dict[int, Meaning] = {}
    for role, name in columns.items():
        if role not in ROLES:
            raise DataError(
                f"{t.where}: --columns {role!r} is not known{nearest(role, ROLES)}; allowed: {', '.join(ROLES)}"
            )
        if name not in names and name.strip().lower() not in plain:
            raise DataError(f"{t.where}: --columns names {name!r}, which is none of the columns {_shown(names)}")
        at = names.index(name) if name in names else plain.index(name.strip().lower())
        guess, factor = _meaning(names[at], t.column(at)), _seconds(name) if role in TIMES else 1.0
        # Of whom a rate is, is told; in which unit, its name says.
        known = guess and (guess.role == role or {guess.role, role} == set(RATES[:2]))
        means = guess if guess and known else Meaning(role=role, factor=factor, bare=True)
        used[at] = replace(means, role=role, at=at, name=names[at], given=True)
    for at, name in enumerate(plain):
        if at not in used and name in COLUMNS and name not in columns:
            used[at] = Meaning(role=name, at=at, name=names[at], given=True, own=True)
    for role, count in Counter(each.role for each in used.values()).items():
        if count > 1:
            raise DataError(f"{t.where}: column {role!r} appears {count} times; keep one of them")
    used |= _guessed(t, used)
    _lacking(t, {each.role for each in used.values()})
    return [*used.values()]


def _guessed(t: _Reading, used: Mapping[int, Meaning]) -> dict[int, Meaning]:
    """Columns whose name says what they are, where nothing else is that."""
    names, taken = t.header, {each.role for each in used.values()}
    means = {at: each for at, name in enumerate(names) if at not in used and (each := _meaning(name, t.column(at)))}
    roles = taken | {each.role for each in means.values()}
    left = {*RATES, "other", *taken}
    if not taken & set(RATES):
        left -= {next((role for role in RATES if role in roles), "")}
    if {"global_batch", "batch_size"} <= roles:
        left.add("global_batch" if "batch_size" in taken else "batch_size")
    found: dict[int, Meaning] = {}
    for at, each in means.items():
        same = [names[other] for other, one in means.items() if one.role == each.role]
        if each.role == "workers":  # GPUs beside processes; all of them beside those of a node
            same = [name for name in same if not re.search("core|proc|rank|np", name.lower())] or same
            same = [name for name in same if re.search("total|world", name.lower())] or same
        if each.role in left or names[at] not in same:
            continue
        if len(same) > 1 and each.role not in ("series", "status"):
            both, say = " and ".join(map(repr, same)), f"--columns {each.role}={same[0]!r}"
            raise DataError(f"{t.where}: {both} may both be {each.role}; say which: {say}")
        found[at] = replace(each, at=at, name=names[at])
    return found


def _lacking(t: _Reading, roles: set[str]) -> None:
    """Refuse columns that do not say how many workers there were, or how fast they were."""
    names, rated, counted = t.header, bool(roles & set(RATES)), bool(roles & {"workers", "nodes"})
    for name in () if rated else names:
        if re.fullmatch(r"(?:strong |weak )?scaling(?: %)?", _plain(name[:_LONG])):
            raise _ask(t, name, "a speedup or an efficiency", "speedup", "efficiency")
        if counted and is_duration(name):
            raise _ask(t, name, "the time of a step, or of the same work (an epoch, a training)", "step_s", "epoch_s")
        if counted and name == VALUES:
            raise _ask(t, VALUES, f"anything: {t.told[-1]}", "samples_per_s", "step_s", "epoch_s", "speedup")
    for name in [role for role, known in zip(REQUIRED, (counted, rated), strict=True) if not known]:
        near = "".join([nearest(other.lower(), [name]) for other in names if nearest(other.lower(), [name])][:1])
        raise DataError(
            f"{t.where}: column {name!r} is missing in {_shown(names)}{near}; the first line names the columns, of "
            f"which {' and '.join(REQUIRED)} are needed and {', '.join(COLUMNS[2:])} may follow, or say what a column "
            f"is: --columns {name}=NAME"
        )
    for name in names if "step_s" in roles and not roles & {"batch_size", "global_batch"} else ():
        if _BATCH.fullmatch(name.lower()):
            raise _ask(t, name, "samples of one worker or of all", "batch_size", "global_batch")


def _ask(t: _Reading, name: str, what: str, *roles: str) -> DataError:
    """The error of what may be read in several ways, with what to type for each."""
    say = " or ".join(f"--columns '{role}={name}'" for role in roles)
    return DataError(f"{t.where}: {name!r} may be {what}; say which: {say}")


def parse_columns(words: Sequence[str]) -> dict[str, str]:
    """{"workers": "GPUs"} of the words `workers=GPUs`, also joined by commas; DataError for anything else."""
    found: dict[str, str] = {}
    for part in (part for word in words for part in re.split(rf",(?=(?:{'|'.join(ROLES)})=)", word)):
        role, equals, name = part.partition("=")
        if role in found or not (equals and name):
            what = f"{part!r}: give WHAT=NAME, and each but once, such as workers=GPUs; WHAT is {', '.join(ROLES)}"
            raise DataError(f"--columns {what}")
        found[role] = name
    return found


# --- points -----------------------------------------------------------------------------------------------------------


def parse_points(data: str | bytes, source: str, columns: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Read a table of points, its bytes or text; `source` is its name in messages.

    `columns` maps what is meant (`ROLES`) to the names that the file has, {"workers": "GPUs"}.
    Returns the columns that are known, in the order of `COLUMNS`: workers (int), series (str), the others as floats
    with NaN for empty cells; rows in the order of the file. `attrs["read"]` says what was guessed.
    """
    columns = columns or {}
    t = _long(_turned(_table(data, source)), columns)
    t.found = _columns(t, columns)
    if len(t.rows) < 2:
        raise DataError(f"{t.where}: no points follow the names of the columns; add one line per point")
    t.unused = dict.fromkeys(sorted({*range(len(t.header))} - {each.at for each in t.found}), "")
    _leave_out(t)
    _numbers(t)
    unit = _work_out(t)
    _series(t)
    names = [t.header[at] for at in t.unused if not t.unused[at] and t.header[at]]
    missing = {*COLUMNS} - {each.role for each in t.found}
    some = [_shown(name) + (nearest(name.lower(), missing) if meaning(name) is None else "") for name in names[:6]]
    some = _few([*some, *names[6:]])
    told = [f"column{'s' * (len(names) > 1)} {', '.join(some)} not used"] if names else []
    told += [f"column {_shown(t.header[at])} not used{why}" for at, why in t.unused.items() if why]
    _wrong(t, unit)
    told += [*t.doubts, *_doubtful(t, unit)]
    frame = t.frame[[name for name in COLUMNS if name in t.frame]]
    frame.attrs |= {"doubts": tuple(dict.fromkeys(told)), "read": "; ".join(t.told), "unit": unit}
    return frame


def _leave_out(t: _Reading) -> None:
    """Drop rows without a rate, or of what failed, and say which. A dash in the row of a base is 1."""
    rate, near = t.rate, [each for each in t.found if each.role in ("workers", "nodes")]
    states = [each.at for each in t.found if each.role == "status"]
    if rate.role in RATES[4:] and not any(_sum(quantity(cell)) == 1 for cell in t.column(rate.at)):
        places = [[_sum(quantity(cells[each.at])) for each in near] for _, cells in t.rows[1:]]
        base = [cells for place, (_, cells) in zip(places, t.rows[1:], strict=True) if place == min(places)]
        for cells in (
            base if all(re.fullmatch("-{1,3}|[\u2013\u2014]", cells[rate.at].strip()) for cells in base) else ()
        ):
            cells[rate.at] = "1" if rate.role == "speedup" else "100 %"
    kept, out = t.rows[:1], []
    for line, cells in t.rows[1:]:
        cell = re.sub(r"\s*[(\[].*", "", cells[rate.at].strip().strip("*`").lower())
        state = next((cells[at] for at in states if re.split(r"[\s+:(]", cells[at].strip().lower())[0] in FAILED), None)
        if state is None and (cell not in NO_VALUE or (rate.own and cell not in FAILED)):
            kept.append((line, cells))
        else:
            count = f"{cells[near[0].at].strip()} {near[0].name}, " if near else ""
            out.append(f"line {line} ({count}{_shown((state or cells[rate.at]).strip())})")
    if len(kept) < 2:
        raise DataError(f"{t.where}: no row has a value of {rate.name!r}; give at least one")
    t.rows = kept
    t.doubts += [f"rows without a value are left out: {', '.join(_few(out))}"] if out else []


def _numbers(t: _Reading) -> None:
    """Make the frame of the numbers of the columns that are used, by role, with their lines."""
    numeric, roles = [each for each in t.found if each.role in _CELLS], {each.role for each in t.found}
    columns = {each.at: t.column(each.at) for each in numeric}
    quick = {at: all(map(_QUICK.fullmatch, cells)) for at, cells in columns.items()}
    said = {at: [one for cell in cells if not quick[at] and (one := quantity(cell))] for at, cells in columns.items()}
    texts = [
        (each.role, columns[each.at] if quick[each.at] else [text for one in said[each.at] for text, _ in one.parts])
        for each in numeric
    ]
    for at in t.unused:  # a decimal comma of any column is one of all
        cells = [cell.strip() for cell in t.column(at)]
        if all(re.fullmatch(r"[-+]?\d+(?:[.,]\d+)?", cell) for cell in cells):
            texts.append(("", [cell for cell in cells if "," in cell]))
    comma = _decimal_comma(texts, t.separator, t.where)
    frame = t.frame = pd.DataFrame({"line": [line for line, _ in t.rows[1:]]})
    for each in numeric:
        low, high, allowed, _ = _CELLS[each.role]
        if quick[each.at] and not (comma and any("." in cell for cell in columns[each.at])):
            values = pd.Series(columns[each.at]).astype(float)
            if (values.between(low, high) & ((values % 1 == 0) | bool(allowed))).all():
                frame[each.role] = each.factor / values if each.inverse else values * each.factor
                continue
        units = {one.unit for one in said[each.at]}
        frame[each.role] = found = [_value(cell, each, units, comma=comma) for cell in columns[each.at]]
        if None in found:
            at, told = found.index(None), allowed or f"a whole number from {low} to {high}"
            cell = f"{each.name} is {_shown(columns[each.at][at])}; allowed is {told}; correct it or drop the line"
            why = f"{t.source} line {frame['line'][at]}: {cell}"
            if each.given or each.role in REQUIRED + RATES or ("step_s" in roles and "batch" in each.role):
                raise DataError(why)
            t.unused[each.at] = f" ({why})"
            del frame[each.role]
    if any("," in text for _, column in texts for text in column):
        t.told.append("a comma marks decimals" if comma else "a comma separates thousands")
    if any(one.remark for column in said.values() for one in column):
        t.told.append("what follows ± or is in brackets is left out")
    plain = {*COLUMNS} & {*frame} - ({"batch_size"} if "accumulation" in frame else set())
    t.told += [f"{each.role} = {each.name}" for each in t.found if each.role in plain and not each.given]
    if "workers" in frame:
        frame["workers"] = frame["workers"].astype("int64")


_WORKED_OUT: Mapping[str, tuple[Callable[..., Any], str, str]] = {
    "speedup": (lambda x, n, b: x, SPEEDUP, "{}: throughput relative to what has 1"),
    "efficiency": (lambda x, n, b: x * n, SPEEDUP, "{} x workers: throughput relative to what has efficiency 1"),
    "samples_per_s_per_worker": (lambda x, n, b: x * n, "", "{} x workers"),
    "epoch_s": (lambda x, n, b: 1 / x, "epochs/s", "1 / {}: epochs/s, of the same data at every count"),
    "step_s": (lambda x, n, b: n * b / x, SAMPLES, "workers x batch_size / {}"),
    "batches": (lambda x, n, b: n / x, "batches/s", "workers / {}: one batch per worker at every count is assumed"),
}
"""Samples/s of a value, workers and the batch of each; their unit, if not that of the value; and how it is said."""


def _work_out(t: _Reading) -> str:
    """Add to the frame what it can be worked out from; return in what unit throughputs are."""
    frame, by = t.frame, {each.role: each for each in t.found}
    known = "workers_per_node" in frame and frame["workers_per_node"].notna().all()
    if "workers" in frame:
        _of_a_node(t, by["workers"])
    else:
        how = f" x {by['workers_per_node'].name}" if known else ": nodes are what is counted"
        _times_nodes(t, frame["workers_per_node"] if known else 1, by["nodes"].name + how)
    workers = frame["workers"]
    if "global_batch" in frame:
        frame["batch_size"] = frame["global_batch"] / workers
        t.told.append(f"batch_size = {by['global_batch'].name} / workers")
    elif "batch_size" in frame and "accumulation" in frame:
        frame["batch_size"] *= frame["accumulation"]
        t.told.append(f"batch_size = {by['batch_size'].name} x {by['accumulation'].name}")
    role, name, value = t.rate.role, t.rate.name, frame[t.rate.role]
    if role == "samples_per_s":
        return t.rate.unit
    if role in RATES[4:]:
        value = _share(t, value)
    work = rf"(?:\w+ )?{_ITEM}(?:(?:/| per )epoch)?|(?:dataset|data) size"
    for at, other in enumerate(t.header) if role == "epoch_s" and "series" not in by else ():
        if re.fullmatch(work, _plain(other[:_LONG])) and len({*map(quantity, t.column(at))} - {None}) > 1:
            raise DataError(f"{t.where}: epochs differ; give samples_per_s: {other!r} over {name!r}")
    batches = "batch_size" in frame and frame["batch_size"].notna().all()
    rate, unit, how = _WORKED_OUT["batches" if role == "step_s" and not batches else role]
    frame["samples_per_s"] = rate(value, workers, frame.get("batch_size"))
    t.told.append(f"samples_per_s = {how.format(name)}")
    per_worker = (frame["samples_per_s"] / workers).groupby(workers).median()
    if role == "step_s" and "global_batch" not in frame and per_worker.max() > 1.1 * per_worker.iloc[0]:
        what = "of steps that are divided, which need global_batch=NAME; or of the same work"
        raise _ask(t, name, what, "epoch_s")
    return unit or t.rate.unit


def _share(t: _Reading, value: "pd.Series[float]") -> "pd.Series[float]":
    """Speedups or efficiencies as such where they are in per cent; it is asked where they may be."""
    name, in_cells = t.rate.name, any("%" in cell for cell in t.column(t.rate.at))
    unsaid = "%" in name and not in_cells
    if t.rate.role == "efficiency":
        if (value.max() > 2 and value.min() < 1.5) or (unsaid and value.max() <= 2):
            raise DataError(f"{t.where}: {name!r} may have shares or percentages; write all of it in per cent")
        return value / (100 if value.max() > 2 else 1)
    rate = value / (100 if unsaid else 1)
    if (unsaid or in_cells) and not ((rate - 1).abs() < 1e-6).any():
        raise DataError(f"{t.where}: {name!r} has no 100 %: of what is it? write it as times, such as 1.9")
    return rate


def _times_nodes(t: _Reading, each: Any, how: str) -> None:
    """Make the workers of nodes times workers of a node; a row without nodes has none."""
    for line in t.frame["line"][t.frame["nodes"].isna()]:
        raise DataError(f"{t.source} line {line}: nodes are empty; every row needs them, or its workers")
    t.frame["workers"] = (t.frame["nodes"] * each).astype("int64")
    t.told.append(f"workers = {how}")


def _of_a_node(t: _Reading, column: Meaning) -> None:
    """Multiply workers beside nodes where they are those of a node: where there are more nodes than workers, or more
    nodes with as many workers are faster; ask where nothing says."""
    frame = t.frame
    of_all = re.search("total|world|rank|size|np|proc|parallel|task|core", column.name.lower())
    known = column.given or of_all or "nodes" not in frame or "workers_per_node" in frame
    if known or not frame["nodes"].max() > 1:
        return
    workers, nodes = frame["workers"], frame["nodes"]
    powers = {"samples_per_s": 1, "speedup": 1, "epoch_s": -1, **({"step_s": -1} if "global_batch" in frame else {})}
    speed = next((frame[role] ** power for role, power in powers.items() if role in frame), None)
    medians = (speed if speed is not None else workers * 0.0 + 1.0).groupby([workers, nodes]).median()
    growth = [float(each.iloc[-1] / each.iloc[0]) for _, each in medians.groupby(level=0) if len(each) > 1]
    few, at = bool((nodes > workers).any()), medians.index.get_level_values(0)
    above = 0.0 if growth or speed is None else float((medians / medians.iloc[0] / (at / at[0])).max())
    if (growth and speed is not None and min(growth) > 1.2) or (few and (speed is None or not growth)):
        frame["workers_per_node"] = workers.astype(float)
        t.told = [each for each in t.told if each != f"workers = {column.name}"]
        _times_nodes(t, workers, f"nodes x {column.name}, which are those of a node")
    elif few or (growth and (speed is None or max(growth) > 1.05)) or above > 1.3:
        raise _ask(t, column.name, "the workers of a node or of all", "workers_per_node", "workers")
    else:
        t.told.append(f"{column.name} are those of all nodes")


# --- series -----------------------------------------------------------------------------------------------------------


def _series(t: _Reading) -> None:
    """Name the curve of each row, joined where several columns do; tell which were guessed.

    Guessed are columns called so, unless every value has one worker count; columns of words whose values have several
    counts each; then batches, and columns of numbers that tell configurations apart.
    """
    columns = {each.at: each.given for each in t.found if each.role == "series"}
    roles = {at: getattr(meaning(t.header[at]), "role", "") for at in t.unused if not any(columns.values())}
    others = [at for at, role in roles.items() if role not in ("other", "status")]
    run = re.compile(r"(?i)(?:[a-z]*(?:run|rep|repeat|trial|seed)|[a-z])?[\W_]*\d*")
    others = [at for at in others if roles[at] != "repeat" or not all(map(run.fullmatch, t.column(at)))]
    several = t.frame["workers"].nunique() > 1
    for at in [*columns, *others]:
        cells, told = [unguarded(cell.strip()) for cell in t.column(at)], t.header[at]
        if not columns.get(at) and cells[0] and "" in cells:  # named in the first row of each
            cells, told = pd.Series(cells).replace("", None).ffill().tolist(), f"{told}, also of empty cells below"
        counts = t.frame["workers"].groupby(cells).nunique()
        if at in columns and not columns[at] and counts.max() == 1 and several:
            t.unused[at] = ""
        elif at in columns:
            t.name(cells, "" if columns[at] else told)
        elif not any(re.search(r"^$|^[-+.\d]", cell) for cell in cells) and len(counts) > 1 and counts.min() > 1:
            del t.unused[at]
            t.name(cells, told)
    _batches(t)
    for at in [each for each in others if each in t.unused]:
        _configurations(t, at)
    t.frame = t.frame.reset_index(drop=True)


def _configurations(t: _Reading, at: int) -> None:
    """Name the curve of each row by a column whose numbers tell configurations apart at all counts, and ask at some."""
    name, every = t.header[at], [cell.strip() for cell in t.column(at)]
    rows = pd.DataFrame({"series": t.frame.get("series", ""), "workers": t.frame["workers"], "name": ""})
    rows["name"] = cells = [every[row] for row in t.frame.index]
    rates = t.frame["samples_per_s"].groupby([rows[each] for each in rows]).median().groupby(level=[0, 1])
    counts = rows.groupby(["series", "name"])["workers"].agg(frozenset)
    counts = counts[counts.groupby("series").transform("size") > 1]
    if counts.empty or counts.map(len).max() == 1:
        return
    numbered = sorted({*cells}) in [[str(start + each) for each in range(len({*cells}))] for start in (0, 1)]
    apart, words = float((rates.max() / rates.min()).max()) - 1, not all(map(quantity, cells))
    if rates.size().max() == 1 or (counts.map(len).min() == 1 and not (words and apart > 0.1)):
        if meaning(name) is None:
            t.doubts.append(f"{name!r} changes along a curve: if it makes series, say --columns 'series={name}'")
    elif not words and (counts.groupby("series").nunique() == 1).all() and not (numbered and apart < 0.1):
        del t.unused[at]
        t.name([f"{name} {cell}" for cell in cells], f"{name}, which tells configurations apart")
    elif apart > 0.1:
        differ = f"configurations or runs: equal workers differ by {100 * apart:.0f} % in their rates"
        raise _ask(t, name, differ, "series", "repeat")
    else:
        t.doubts.append(f"rows that differ in {name!r} are taken for repeats; else name them in a column 'series'")


def _batches(t: _Reading) -> None:
    """Make a series of each batch of a worker, or of all where these are fewer, where equal workers had several.

    Strong and weak scaling that share the rows of fewest workers are two series with these rows.
    """
    frame, parts = t.frame, []
    name = next((each.name for each in t.found if each.role == "batch_size"), "batch_size")
    key = frame["series"] if "series" in frame else pd.Series("", index=frame.index)
    if "batch_size" not in frame or frame.groupby([key, "workers"])["batch_size"].nunique().max() < 2:
        return
    for series, rows in frame.groupby(key, sort=False):
        workers, batch = rows["workers"], rows["batch_size"]
        first = workers == workers.min()
        weak = batch == batch[first].iloc[0]
        strong = (batch - batch[first].iloc[0] * workers.min() / workers).abs() < 0.51
        shared = ((weak & strong) == first).all() and (weak | strong).all()
        ways = {name: batch.map("{:g}".format), "global batch": (batch * workers).map("{:.6g}".format)}
        if batch.groupby(workers).nunique().max() < 2:
            parts.append(rows)
        elif shared and (weak & ~first).any() and (strong & ~first).any():
            kinds = {f"{series} strong".strip(): strong, f"{series} weak".strip(): weak}
            parts += [rows[of].assign(series=kind) for kind, of in kinds.items()]
            fewest = plural(workers.min(), "worker")
            t.told.append(f"{' and '.join(kinds)} scaling, by their batches, share the rows of {fewest}")
        else:
            told = min(ways, key=lambda way: ways[way].nunique())
            parts.append(rows.assign(series=[f"{series} {told} {each}".strip() for each in ways[told]]))
            t.told.append(f"series = {told}, which tells configurations apart")
    t.frame = pd.concat(parts).sort_index(kind="stable")


# --- doubts -----------------------------------------------------------------------------------------------------------


def _wrong(t: _Reading, unit: str) -> None:
    """Refuse a row that cannot be: its nodes, its rate, what its speedup is of, its number of a repeat."""
    frame, at_line = t.frame, f"{t.source} line "
    lines, workers, rates = frame["line"], frame["workers"], frame["samples_per_s"]
    for at in frame.index[frame["nodes"] > workers] if "nodes" in frame else ():
        few = f"{frame['nodes'][at]:g} nodes for {workers[at]} workers"
        raise DataError(f"{at_line}{lines[at]}: {few}; every node has one at least: correct either")
    fewest = workers.groupby(frame["series"] if "series" in frame else workers * 0).transform("min")
    based = ((workers != fewest) | ((rates - 1).abs() < 0.02)).all() and fewest.nunique() == 1
    if t.rate.role == "speedup" and {*fewest} != {1} and not based:
        for at in frame.index[(rates == 1) & (workers > 1)]:
            say = f"to the fewest of each series: --columns 'samples_per_s={t.rate.name}'; else give rates"
            one = f"{t.rate.name!r} is 1 at {workers[at]} workers: relative to which? {say}"
            raise DataError(f"{at_line}{lines[at]}: {one}")
    for at, n, x in zip(lines, workers, rates, strict=True) if unit != SPEEDUP and not t.rate.own else ():
        if why := impossible("rate", rate=x, workers=n, unit=unit):
            raise DataError(f"{at_line}{at}: {why}; correct it, or say what it is with --columns")
    if "repeat" in frame:
        key = [name for name in ("series", "workers", "nodes", "batch_size", "repeat") if name in frame]
        numbered = frame.loc[frame["repeat"].notna(), key].fillna({name: -1 for name in key if name != "series"})
        for at in numbered.index[numbered.duplicated()]:
            first = numbered.index[(numbered == numbered.loc[at]).all(axis=1)][0]
            told = f"repeat {frame['repeat'][at]:g} of {workers[at]} workers is on line {lines[first]}, too"
            raise DataError(f"{at_line}{lines[at]}: {told}; number the repeats of a point 0, 1, 2, ...")


def _doubtful(t: _Reading, unit: str) -> Iterator[str]:
    """Yield what is odd: speedups, parts of steps (which are left out), rates that hardly grow, nodes, equal rows."""
    frame, rate, lines = t.frame, t.rate, t.frame["line"]
    workers, rates = frame["workers"], frame["samples_per_s"]
    frame.attrs["unit"] = unit
    yield from impossibilities(frame, 1.0 if unit == SPEEDUP else math.inf)  # fits and pages judge speedups of rates
    for at in frame.index[(workers == 1) & ((rates - 1).abs() > 0.02) & (unit == SPEEDUP)][:1]:
        yield f"line {lines[at]}: one worker has a speedup of {rates[at]:g}: of what is 1?"
    if "sync_s" in frame and "batch_size" in frame:
        frame.loc[frame["sync_s"] > 1.05 * frame["batch_size"] * workers / rates, "sync_s"] = math.nan
    medians = rates.groupby(workers).median()
    count, ratio = medians.index[-1] / medians.index[0], medians.iloc[-1] / medians.iloc[0]
    if rate.role == "samples_per_s" and not rate.given and count >= 2 and ratio <= 1.2:
        say = f"if it is of one worker, say so with --columns samples_per_s_per_worker={rate.name}"
        yield f"{_shown(rate.name)} is {ratio:.2g} times as large with {count:g} times the workers: {say}"
    if "nodes" in frame and "workers_per_node" in frame:
        over = frame[workers > frame["nodes"] * frame["workers_per_node"]]
        for row in over[:1].to_dict("records"):
            more = f" (and {len(over) - 1} more lines)" if len(over) > 1 else ""
            room = f"{plural(row['nodes'], 'node', 'g')} with {row['workers_per_node']:g} workers per node{more}"
            yield f"line {row['line']} of {t.source}: {row['workers']:g} workers do not fit on {room}"
    known = frame[[name for name in COLUMNS if name in frame]]
    if "repeat" not in frame and (copies := lines[known.duplicated()].astype(str).tolist()):
        what = f"line{'s' * (len(copies) > 1)} {', '.join(_few(copies))} of {t.source}"
        yield f"{what}: exactly as earlier ones; copied, or truly repeats?"


# --- logs of trainings ------------------------------------------------------------------------------------------------

# MLPerf Training: samples of a block (or epoch), as counted or `train_samples` times the epochs, over its time; the
# median without the first, which holds the start-up. `tracked_stats.throughput` differs between submitters.
# Other logs: FORMATS says for each program which lines hold a rate, or the time of a step; the median without the first
# counts. The number of workers is that of the log, else of its name.

# Of a log: its name, content, description of its system, names that may say how many workers there were.
Given = tuple[str, bytes, Mapping[str, Any], Sequence[str]]
_LOG_PLACE = ("nodes", "workers_per_node")
# What differs in the names of the logs of one run, of each rank or stream:
_RANK_OF_RUN = re.compile(r"(?i)(?<![a-z])((rank|worker|proc(ess)?)[_-]?\d+(?![a-z0-9])|(std)?(out|err)(?=\.\w+$))")
_SAME_RUN = 1.1  # rates of a run that was resumed differ by less


def points_from(
    given: Iterable[Given],
    *,
    placed: tuple[int, int] | None = None,
    columns: Mapping[str, str] | None = None,
    alone: bool = False,
) -> pd.DataFrame:
    """Return one row per log, with the columns of a points file and its attrs `doubts`, `read` and `unit`.

    `placed`: nodes and workers of each, where somebody said them. What is `alone` may be a table, of which `columns`
    says what its columns are. Raises DataError where nothing can be read.
    """
    logs, wrong = [], list[str]()
    for source, data, system, names in given:
        text = text_of(data)
        if alone and not (placed or recognised(text)):
            try:
                return parse_points(data, source, columns)
            except DataError as error:
                programs = ", ".join(dict.fromkeys([f"{_MLPERF} Training", *(each[0] for each in FORMATS)]))
                named = source.endswith((".log", ".txt", ".out"))
                raise DataError(f"{error}; nor is it a log of {programs}" if named else str(error)) from None
        try:
            if columns:
                raise DataError("is a log, which has no columns to name; leave columns out")
            read = _mlperf(source, text, system, placed) if ":::MLL" in text else _training(source, text, names, placed)
            log = {"system": "", "unit": SAMPLES, **dict.fromkeys(_LOG_PLACE, math.nan), "source": source, **read}
            if why := impossible("rate", rate=log["samples_per_s"], workers=log["workers"], unit=log["unit"]):
                raise DataError(why)
            logs.append(log)
        except DataError as error:
            wrong.append(f"{source}: {error}")
    if not logs:
        more = f"; nor {'is' if len(wrong) == 2 else 'are'} {plural(len(wrong) - 1, 'more log')} read"
        raise DataError(wrong[0] + (more if len(wrong) > 1 else ""))
    return _joined(logs, wrong)


def _joined(logs: Sequence[Mapping[str, Any]], wrong: Sequence[str]) -> pd.DataFrame:
    """The points of logs; `wrong` says of others why they are left out."""
    frame = pd.DataFrame(logs)
    frame["one"] = frame["source"].map(lambda name: _RANK_OF_RUN.sub("#", name))
    again = frame.duplicated(["one", "series", "workers"]) & frame["one"].str.contains("#", regex=False)
    frame = frame[~again].sort_values(["series", "workers", "system", "source"]).reset_index(drop=True)
    units = frame.drop_duplicates("unit")
    if len(units) > 1:
        told = " and ".join(units["unit"] + " (" + units["source"] + ")")
        raise DataError(f"the logs have rates in {told}; keep those of one unit in a folder of their own")
    for series, own in frame[frame["program"] != _MLPERF].groupby("series"):
        ways = {"batch": own["batch_size"], "global batch": own["batch_size"] * own["workers"]}
        if own.groupby("workers")["batch_size"].nunique().max() > 1:  # of the two, what has fewer values makes series
            word, batch = min(ways.items(), key=lambda way: way[1].round(6).nunique())
            frame.loc[own.index, "series"] = [f"{series}, {word} {each:g}" for each in batch]
    frame["repeat"] = frame.groupby(["series", "workers", "nodes"], dropna=False).cumcount().astype(float)
    rows: list[Any] = [*frame.itertuples()]
    doubts = [f"{row.series}, {plural(row.workers, 'worker')}: {each}" for row in rows for each in row.doubts]
    further = f"{plural(again.sum(), 'log')} not used: of further ranks or streams of a run, of which one log counts"
    doubts += [further] * bool(again.any())
    doubts += [f"left out: {each}" for each in _few(wrong)]
    for series, own in frame.groupby("series"):
        for row in own.itertuples():
            speedup, more = row.samples_per_s / own["samples_per_s"].iloc[0], row.workers / own["workers"].iloc[0]
            if why := impossible("speedup", speedup=speedup, workers=more):
                doubts.append(f"{row.source} over {own['source'].iloc[0]}: {why}")
        for workers, same in own.groupby("workers")["system"]:
            if same.nunique() > 1:
                doubts.append(f"{series}, workers {workers}: are of several systems, {', '.join(same.unique())}")
    row, points = rows[0], frame[[name for name in COLUMNS if name in frame]].dropna(axis=1, how="all")
    one = f" of {plural(row.workers, 'worker')}: {row.samples_per_s:,.6g} {row.unit}" if len(frame) == 1 else ""
    programs, how = (" and ".join(dict.fromkeys(frame[name])) for name in ("program", "how"))
    said = f"{plural(len(frame), f'{programs} log')}{one}, {frame['series'].nunique()} series; {how}"
    points.attrs |= {"doubts": tuple(dict.fromkeys(doubts)), "unit": row.unit, "read": said}
    return points


# --- logs of MLPerf Training ------------------------------------------------------------------------------------------

_MLPERF = "MLPerf"
_EPOCHS: Mapping[str, tuple[int, ...]] = {
    "resnet": (1_281_167,),  # ImageNet
    "maskrcnn": (117_266, 118_287),  # COCO, with boxes and all
    "ssd": (117_266, 118_287, 1_170_301),  # COCO, or from v2.0 on OpenImages
    "retinanet": (1_170_301,),
}  # samples of an epoch, of benchmarks whose logs were seen to say something else
_Event = tuple[str, float, dict[str, float], Any]
_PLACE = ("first_epoch_num", "epoch_num", "samples_count", "step")  # tells one block or epoch from the next


def _mlperf(source: str, text: str, told: Mapping[str, Any], placed: tuple[int, int] | None) -> dict[str, Any]:
    """What a log of MLPerf says; the folders .../ORG/results/SYSTEM/BENCHMARK of its path name the run."""
    events = [*_events(text)]
    values = {key: value for key, _, _, value in reversed(events)}
    folders = source.split("/")[:-1]
    at = max((place for place, name in enumerate(folders) if name == "results"), default=None)
    system, benchmark, *_ = [*(folders[at + 1 :] if at is not None else []), "", ""]
    benchmark, doubts = str(values.get("submission_benchmark") or benchmark or "unknown"), list[str]()
    places = [[_number(of.get(name)) for name in ("number_of_nodes", "accelerators_per_node")] for of in (told, values)]
    counts: Any = next((each for each in (placed, *places) if each and all(each)), None)
    if counts is None:
        why = "is a log of MLPerf Training, and how many accelerators there were is in systems/SYSTEM.json: not there"
        raise DataError(f"{why}; give a folder as MLCommons publishes it, or type {source}@NODESxN")
    (nodes, each_has), keys = counts, [key for key, *_ in events]
    end, rates = keys.index("run_stop") + 1 if "run_stop" in keys else 0, []
    for run in (events[:end], events[end:]) if "run_start" in keys[end:] and end else (events,):
        rates.append(float(np.median(_rates(run, benchmark, values, doubts))))
    if max(rates) > _SAME_RUN * min(rates):
        both = " and with ".join(f"{each:,.6g}" for each in rates)
        raise DataError(f"is of several runs, with {both} a second; give each run a log of its own")
    if any(key == "run_stop" and status == "aborted" for key, _, _, status in events):
        doubts.append("a run was aborted: what it did until then counts")
    if (steps := _number(values.get("gradient_accumulation_steps")) or 0) > 1:
        doubts.append(f"gradients of {steps:g} batches are accumulated: batch_size is of an update")
    known = "tensorflow|pytorch|mxnet|jax|mindspore|paddle|hugectr|popart"
    frameworks = {*re.findall(known, str(told.get("framework") or "").lower())}
    names = [*(folders[:at] if at is not None else [str(values.get("submission_org") or "")]), benchmark]
    names += [str(told.get(name) or "").strip() for name in ("accelerator_model_name", "division")]
    names += frameworks if len(frameworks) == 1 else []
    workers, batch = int(nodes) * int(each_has), _number(values.get("global_batch_size")) or math.nan
    series = " ".join(name for name in names if name not in ("", ".", "..", "/"))
    how = "samples of blocks (or epochs) over their time, the first left out; batch_size = global / accelerators"
    log: dict[str, Any] = {"program": _MLPERF, "series": series, "system": system, "how": how, "doubts": doubts}
    log |= {"samples_per_s": float(np.median(rates)), "workers": workers, "batch_size": batch / workers}
    return log | dict(zip(_LOG_PLACE, map(float, counts), strict=True))


def _events(text: str) -> Iterator[_Event]:
    """Yield key, time in seconds, numbers of the metadata, and value (of the end of a run its status) of each event."""
    for line in text.splitlines():
        with suppress(ValueError, RecursionError):
            event, _ = json.JSONDecoder().raw_decode(line, line.index("{", line.index(":::MLL")))
            told = event["metadata"] if isinstance(event.get("metadata"), dict) else {}
            numbers = {name: known for name, value in told.items() if 0 <= (known := number(str(value))) < math.inf}
            value = told.get("status") if event.get("key") == "run_stop" else event.get("value")
            yield str(event.get("key")), number(str(event.get("time_ms"))) / 1e3, numbers, value


def _spans(unit: str, events: Sequence[_Event]) -> list[dict[str, Any]]:
    """Return the blocks or epochs: seconds, what `first` and `last` event say, samples counted `before` and `after`."""
    found: list[dict[str, Any]] = []
    begun: dict[str, Any] | None = None
    done = 0.0
    for key, at_s, told, _ in events:
        count = told.get("samples_count")
        if count is not None and key.startswith(("block", "epoch", "eval", "run")):
            done = count
            if found and key != f"{unit}_stop":
                found[-1].setdefault("after", count)
        first = begun["first"] if begun else {}
        if key == f"{unit}_start":
            # Every rank may print it: the first counts, unless its end was never printed.
            if begun is None or any(first.get(name) != told.get(name) for name in _PLACE):
                known = not found or "after" in found[-1]
                begun = {"begin": at_s, "first": told, "before": done if known else math.nan}
        elif key in ("eval_start", "eval_stop") and "epoch_num" in told and (begun or found):
            span, reached = begun or found[-1], told["epoch_num"]
            before, _, inside = span.get("eval", (math.nan, 0.0, False))
            if reached != before:
                span["eval"] = reached, at_s - span["begin"] if begun else span["s"], bool(begun) or inside
        elif begun and key == "block_stop" and told.get("first_epoch_num", 0) < first.get("first_epoch_num", 0):
            continue  # of a rank that is late
        elif begun and (key == f"{unit}_stop" or (key == "run_stop" and unit == "epoch" and "epoch_num" in told)):
            after = {} if count is None else {"after": count}
            same = count if first.get("samples_count") == count else None
            found.append({**begun, **after, "same": same, "last": told, "s": at_s - begun["begin"]})
            begun = None
        elif key == "run_stop" and found and told.get("epoch_num", 0) % 1:  # how far the last one came
            found[-1]["last"] = {**found[-1]["last"], "epoch_num": told["epoch_num"]}
    return [each for each in found if each["s"] > 0]


def _rates(events: Sequence[_Event], benchmark: str, values: Mapping[str, Any], doubts: list[str]) -> list[float]:
    """Samples/s of the blocks after the first, or of the epochs where blocks do not say what was trained."""
    why = "has no block or epoch with begin and end; nothing says how long it trained"
    names = ("train_samples", "global_batch_size", "max_sequence_length")
    epoch, batch, length = (_number(values.get(name)) or 0.0 for name in names)
    for unit in ("block", "epoch"):
        rates = []
        for counted, epochs, seconds in _trained(unit, _spans(unit, events), doubts):
            samples, count = counted, counted or epochs
            steps = count / (length * batch or math.inf)
            if not count:
                why = f"no {unit} says how many samples or epochs it has; nothing says how much it trained"
            elif not counted and not impossible("epochs", epochs=epochs):
                if not epoch:
                    raise DataError("has no train_samples; nothing says how much it trained")
                samples = epochs * _epoch_samples(epoch, batch, benchmark, doubts)
            elif benchmark == "bert":
                doubts += [] if counted else ["its epochs are samples"]
                samples = count
            elif steps > 1 and steps % 1 == 0 and not impossible("step", step=seconds / steps):
                # Whole batches of tokens, which hardly any number of samples is.
                samples = count / length
                if counted and seconds * batch / count > 0.01:  # s of a step on sequences: what is faster counts tokens
                    samples = 0.0
                    why = f"{count:,.0f} may be samples or tokens: both are whole steps, none of them too fast"
                else:
                    what = "samples" if counted else "epochs"
                    doubts.append(f"its {what} are tokens: samples of max_sequence_length {length:,.0f} count")
            elif not counted:
                why = impossible("epochs", epochs=count)
            rates.append(samples / seconds)
        if kept := [rate for rate in rates[1:] if rate]:
            return kept
        if rates and rates[0]:
            doubts.append(f"one {unit} is all that is timed: the start-up is in it")
            return [rates[0]]
    raise DataError(why)


def _trained(unit: str, found: Sequence[Mapping[str, Any]], doubts: list[str]) -> Iterator[tuple[float, float, float]]:
    """Yield the samples that a span counts, its epochs (0 where it does not say them), and seconds.

    Samples run on, or are of one block beside a step that runs on. Epochs are declared by a block, else the number at
    its stop less what was done before; an epoch that has one number at begin and end is whole, whether they are called
    0, 1, 2 or 1, 2, 3. Where evaluations show that a run ended early, it is what it had done when the last one began.
    """
    ends = [each["same"] or 0.0 for each in found]
    runs_on = len(ends) > 1 and all(a < b for a, b in pairwise(ends))
    done = 0.0
    for place, each in enumerate(found):
        first, last, seconds = each["first"], each["last"], each["s"]
        samples = max(each.get("after", math.nan) - each["before"], 0.0) or 0.0
        if each["same"] and runs_on:  # at both ends what was done before
            samples = ends[place + 1] - ends[place] if place + 1 < len(ends) else 0.0
        elif not samples > 0 and "step" in {**first, **last}:
            samples = last.get("samples_count", 0.0)
        begin, end = (told.get("epoch_num", 0.0) for told in (first, last))
        if unit == "block":
            epochs = first.get("epoch_count") or last.get("epoch_count") or 0.0
            epochs = end - done if end % 1 and 0 < end - done < epochs else epochs
        else:
            if place == 0 and begin > 1:  # of a run that was resumed
                done = begin - (begin >= end)
            epochs = 1.0 if "epoch_num" not in last or (end == begin and end % 1 == 0) else end - done
        reached, until, inside = each.get("eval", (math.nan, seconds, False))
        if not samples > 0 and epochs % 1 == 0 and 0 < epochs <= MOST_EPOCHS and until > 0:
            early = 0 < reached - done < epochs - (reached % 1 == 0) and (inside or reached % 1)
            if early or reached - done > MOST_EPOCHS:
                doubts.append(f"the last evaluation is at epoch {reached:,.7g}: it counts, not what the {unit} says")
                epochs, seconds = reached - done, until
        yield (samples if samples > 0 else 0.0), max(epochs, 0.0), seconds
        done += max(epochs, 0.0)


def _epoch_samples(samples: float, batch: float, benchmark: str, doubts: list[str]) -> float:
    """Return the samples of an epoch, and doubt them where they are none of a known data set."""
    known = _EPOCHS.get(benchmark, ())
    if not known or any(abs(samples / each - 1) < 0.02 for each in known):  # padded to whole batches
        return samples
    why, counted = f"is none of the known data sets, {', '.join(map(str, known))}", samples
    if batch and any(samples == math.ceil(each / batch) for each in known):
        why, counted = f"counts batches, of {batch:,.0f} samples", samples * batch
    elif benchmark == "maskrcnn":
        why, counted = f"is no epoch of COCO: {known[0]:,} images are taken", float(known[0])
    doubts.append(f"train_samples {samples:,.0f} {why}")
    return counted


def _number(value: Any) -> float | None:
    """Return a positive finite number, also of a text that is one; None for anything else."""
    known = number(str(value).strip(" ,"))
    return known if 0 < known < math.inf else None


# --- logs of other programs -------------------------------------------------------------------------------------------

_HOROVOD, _TF, _DEEPSPEED = "Horovod's synthetic benchmark", "tf_cnn_benchmarks", "DeepSpeed"
FORMATS = (
    (_HOROVOD, "steady", r"Total img/sec on {workers} [A-Z]+\(s\): {rate}"),
    (_HOROVOD, "steady", r"Iter #{step}: {each} img/sec per [A-Z]"),
    (_TF, "steady", r"\btotal images/sec: {rate}"),
    (_TF, "mean", r"\b{step}\s+images/sec: {each} \+/-", r"Devices:\s+\['horovod/"),
    (_TF, "mean", r"\b{step}\s+images/sec: {rate} \+/-", r"Devices:\s+\['/[^j]"),
    ("GPT-NeoX", "each", r"samples/sec: {rate} \| iteration +{step}/ *\d+ \| elapsed time per iteration"),
    ("Megatron-LM", "each", r"\biteration +{step}/ *\d+ \|...elapsed time per iteration \({milli}s\): *{step_s}{gbs}"),
    ("NeMo", "each", r"\bepoch {epoch}, iteration {step}/...global_batch_size: {global_batch} ...in s: {step_s}"),
    (_DEEPSPEED, "each", r"(?:\b{epoch})?/(?:global_step=)?{step}, Running\S+ CurrSamplesPerSec={rate}"),
    (_DEEPSPEED, "mean", r"(?:\b{epoch})?/(?:global_step=)?{step}, (?:RunningAvg)?SamplesPerSec={rate}"),
    ("MaxText", "each", r"completed step: {step}, ...Samples/s/device: {each}"),
    ("MaxText", "each", r"completed step: {step}, ...Tokens/s/device: {tokens_each}"),
    ("MaxText", "each", r"completed step: {step}, seconds: {step_s}"),
    ("torchtitan", "each", r"\bstep: *{step} +loss: ...\b[tw]ps: {tokens_each}"),
    ("timm", "each", r"\bTrain: {epoch} \[ *{step}/...Time: [\d.]+s, +{rate}/s"),
    ("torchvision", "each", r"\bEpoch: \[{epoch}\] +\[ *{step}/...img/s: {each}"),
    ("transformers", "whole", r"\btrain_samples_per_second(?:': '?| += +){rate}"),
    ("Lightning (tqdm)", "each", r"\bEpoch {step}[:/]...\b\d+/\d+ ...(?:{steps_per_s} ?it/s|{step_s} ?s/it)"),
)
"""Program, what its reports are, and their lines, in which {NAME} is a number and ... what is between: `rate` of all
workers, `each` of one, the time of a step. The first that a text has counts, if it has the fourth, too. Of reports
`each` but the first counts, or they are `steady`, a `mean` of all before, or of the `whole` training with its start."""
_FACTS = (
    (_HOROVOD, r"\bModel: {model}|\bBatch size: {batch}|\bNumber of [A-Z]+s: {workers}"),
    (_TF, r"\bModel:\s+{model}|\b{batch} per device|\bDevices:\s+\[(?P<devices>'(?!/job:)[^\]]*)\]"),
    ("Megatron-LM", r"\bglobal_batch_size \.+ {global_batch}"),
    ("MaxText", r"\bNum_devices: {workers}, shape"),
    ("torchtitan", r"device mesh with \[[^\]]*\], \[(?P<product>[\d, ]+)\]"),
    ("torchtitan", r"device mesh with parallelism: (?P<product>pp=\d+(?:, (?:dp_replicate|dp_shard|cp|tp)=\d+)*)"),
    ("torchtitan", r"global batch size {global_batch}, ...sequence length {sequence}"),
    ("timm", r"\bProcess \d+, total {workers}, device"),
    ("Lightning (tqdm)", r"\bStarting with {workers} processes"),
    ("", r"(?i)(?:(?<=using )|(?<![a-z_])(?<![a-z_] ))(?:dist_)?world[ _]size['\"]?[ .:=]+{workers}"),
)  # program, or "" for any, and what its lines say of workers, batch of a worker or of all, and model
_BY_NAME = re.compile(
    r"(?<![a-z0-9.])(?:(?:n|np|x|nproc|ngpus?|gpus|ranks|workers|procs|devices|tpus|world|ws)[_=-]?(\d{1,7})"
    r"|(\d{1,7})[_-]?(?:x|np|gpus?|ranks?|workers?|procs?|devices?|tpus?|gcds?|accelerators?))(?![a-z0-9]|\.\d)"
)
_OF_A_NODE = re.compile(r"node|(?<![a-z0-9])n[_=-]?\d+(?![a-z0-9]).*(?<![a-z0-9])(?:g|gpu|ppn)[_=-]?\d")
_BARE = re.compile(r"(?!0|19\d\d|20[0-3]\d)\d{1,4}")  # folders 8 and 1024; 2024 is a year, 007 a run, 12345 a job


def _finder(pattern: str) -> re.Pattern[str]:
    pattern = pattern.replace("{gbs}", "(?:...global batch size: *{global_batch})?").replace("{milli}", "(?P<milli>m?)")
    pattern = pattern.replace("{model}", r"(?P<model>\S+)").replace("...", r"[^\n]{0,300}?")  # bounded, as is time
    number = r"\\d[\\d,]{0,20}(?:\\.\\d{1,20})?(?:[eE][+-]?\\d\\d?)?"
    return re.compile(re.sub(r"\{([a-z_]+)\}", rf"(?P<\1>{number})", pattern))


def recognised(text: str) -> tuple[str, str, list[dict[str, str]]] | None:
    """Return program and reports of the first of FORMATS that a text has, and what its lines say; None where none."""
    if ":::MLL" in text:
        return _MLPERF, "", []
    for program, reports, pattern, *needed in FORMATS:
        literal = max(map(str.strip, re.split(r"\\.|\{\w+\}|\[[^\]]*\]|[.*+?()|]+", pattern)), key=len)
        found = [each.groupdict() for each in _finder(pattern).finditer(text)] if literal in text else []
        if found and (not needed or re.search(needed[0], text)):
            return program, reports, found
    return None


def text_of(data: bytes) -> str:
    """Return the text of a log without colours and without lines that no program logs; JSON stays as it is."""
    text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", errors="replace")
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text).replace("\r\n", "\n").replace("\r", "\n")
    whole = ":::MLL" in text or text.lstrip().startswith("{")
    return text if whole else re.sub(r"[^\n]{4000,}", "", text)


def _training(source: str, text: str, names: Sequence[str], placed: tuple[int, int] | None) -> dict[str, Any]:
    """What the log of a training program says."""
    if (known := recognised(text)) is None:
        raise DataError("is no log that is read")
    program, reports, found = known
    facts: dict[str, list[Any]] = {"workers": []}
    told = (_finder(pattern).finditer(text) for name, pattern in _FACTS if name in ("", program))
    groups = [*(each.groupdict() for matches in told for each in matches), *found]
    for name, value in ((name, value) for each in groups for name, value in each.items() if value):
        if name == "product":
            facts["workers"].append(math.prod(map(int, re.findall(r"\d+", value))))
        elif name == "devices":
            facts["workers"].append(value.count("'") // 2)
        elif fact := value if name == "model" else _number(value):
            facts.setdefault(name, []).append(fact)
    doubts: list[str] = []
    workers = _workers(source, names, {int(each) for each in facts["workers"]}, placed, doubts)
    found = [got for got in found if "workers" not in got or _number(got["workers"]) == workers]
    rate, whose, how = _rate_of_log(reports, found, facts, doubts)
    how += "" if placed or facts["workers"] else "; workers as in its name"
    unit = {"batches": "batches/s", "tokens_each": "tokens/s"}.get(whose, SAMPLES)
    if workers is None:
        of = "all workers together" if whose == "rate" else "each worker"
        said = f"is a training log of {program} with {rate:,.6g} {unit} of {of}, and does not say of how many workers"
        raise DataError(f"{said}; for 8 name it 8gpus.log or type {source}@8, or give workers,samples_per_s")
    batch, length = facts.get("batch", [math.nan])[-1], facts.get("sequence", [math.nan])[-1]
    batch = facts["global_batch"][-1] / workers if "global_batch" in facts else batch
    if batch < 1:
        doubts.append(f"a batch of {batch:.2g} for each worker: several share a sample, or there were fewer workers")
    series = " ".join([program, *dict.fromkeys(facts.get("model", ()))])
    log: dict[str, Any] = {"program": program, "series": series, "how": how, "unit": unit, "doubts": doubts}
    log |= {"workers": workers, "samples_per_s": rate if whose == "rate" else rate * workers}
    log |= {"batch_size": batch * length if unit == "tokens/s" else batch}
    return log | (dict(zip(_LOG_PLACE, map(float, placed), strict=True)) if placed and placed[0] > 1 else {})


def _rate_of_log(
    reports: str, found: Sequence[Mapping[str, str]], facts: Mapping[str, Sequence[Any]], doubts: list[str]
) -> tuple[float, str, str]:
    """The rate of a log, whose it is (`rate` of all, of `each` worker, `batches` of each), and how it is known.

    Where the batch grows, the steps with the last one count; steps of a run that was resumed count once.
    """
    runs: list[dict[Any, tuple[float, str, float]]] = [{}]
    last: tuple[float, ...] = ()
    for place, got in enumerate(found):
        number = {name: known for name, value in got.items() if (known := _number(value))}
        whose = next((name for name in ("rate", "each", "tokens_each") if name in number), "")
        steps_per_s = number.get("steps_per_s", (1e3 if got.get("milli") else 1) / number.get("step_s", math.inf))
        batch = number.get("global_batch") or facts.get("global_batch", [0.0])[-1]
        of_steps = (steps_per_s * (batch or 1), "rate" if batch else "batches", batch)
        report = (number[whose], whose, 0.0) if whose else of_steps
        if report[0]:
            at = tuple(float((got.get(name) or "0").replace(",", "")) for name in ("epoch", "step"))
            if runs[-1] and (at < last or "step" not in got):
                runs.append({})
            runs[-1][got.get("step") or place], last = report, at
    steps = {step: report for run in runs for step, report in run.items()}
    if not steps:
        raise DataError("has no rate above 0")
    first = 1 if reports == "each" else -1 if reports in ("mean", "whole") else 0  # the start-up; the last of means
    kept = [*steps.values()][first:] or [*steps.values()]
    _, whose, batch = kept[-1]
    long = [[*run.values()][first:] for run in runs if reports != "each" or len(run) > 2]
    rates = [float(np.median(own)) for run in long if (own := [value for value, _, of in run if of == batch])]
    if rates and max(rates) > _SAME_RUN * min(rates):
        what = "steps begin again" if "step" in found[0] else "there are totals"
        told = f"{what} with {min(rates):,.6g} and with {max(rates):,.6g} a second"
        raise DataError(f"is of several runs, for {told}; give each run a log of its own")
    if reports == "whole" or (reports == "each" and len(steps) == 1):
        doubts.append("the start-up is in its rate")
    if whose == "batches":
        doubts.append("its batch is unknown: one batch of each worker in a step is counted, the same at every count")
    left_out = ", the first left out" if reports == "each" and len(steps) > 1 else ""
    how = "the last mean" if reports in ("mean", "whole") else f"median of the reports{left_out}"
    return float(np.median([value for value, _, own in kept if own == batch])), whose, how


def _workers(
    source: str, names: Sequence[str], said: set[int], placed: tuple[int, int] | None, doubts: list[str]
) -> int | None:
    """How many workers a log is of: as the caller says, as the log says, or its name, or a folder 8 of it."""
    told = " and ".join(map(str, sorted(said)))
    if placed:
        if said and math.prod(placed) not in said:
            there = f"{told} worker{'s' * (said != {1})}, and {math.prod(placed)} were given"
            raise DataError(f"says that there were {there}; leave the number out")
        return math.prod(placed)
    if len(said) > 1:
        raise DataError(f"says that there were {told} workers; keep one run in a log, or type {source}@N")
    named = None
    for name in map(str.lower, reversed(names)):
        counts = {int(one or other) for one, other in _BY_NAME.findall(name)}
        counts |= {int(name)} if _BARE.fullmatch(name) else set()
        if counts or _OF_A_NODE.search(name):
            named = max(counts) if len(counts) == 1 and not _OF_A_NODE.search(name) else None
            break
    if named and said and named not in said:
        doubts.append(f"its name {names[-1]} says {named} workers, and the log {told}, which count")
    return next(iter(said), named) or None


# --- benchmarks of networks -------------------------------------------------------------------------------------------

# Documents have the form of `horovod-study bench`. Rows are read wherever they are in a job's log. The line of heads
# says what a column is, the line below it in which unit; else size / algbw tells the unit, and columns are those of
# nccl-tests since 2019; before (NCCL 1 to 2.4) they were bytes, N, type, op, and times in ms. Where devices are not
# listed, busbw / algbw of an all-reduce, 2 (n - 1) / n, says how many there were (doc/PERFORMANCE.md of nccl-tests).

BENCH_FILE = "a bench.json, or what nccl-tests, rccl-tests or osu_allreduce printed"
_FITS = 3  # sizes that a line needs
_LARGE, _APART, _ALL_APART = 2**20, 1.5, 2.0  # times of large sizes, of most sizes: so far apart they are no repeats

# What other versions and OSU call a column:
_HEADS_OF = {"bytes": "size", "N": "count", "op": "redop", "cputime": "time", "Size": "size", "Avg": "time"}
_GROUP = ("time", "algbw", "busbw", "#wrong")
_OF_TIMES = ("ns", "us", "ms", "s")
_RATES = {"MB/s": 1e6, "GB/s": 1e9, "MiB/s": 2.0**20, "GiB/s": 2.0**30}
_WIDTHS = {1: "int8 uint8 char f8e4m3 f8e5m2 fp8_e4m3 fp8_e5m2", 2: "half bfloat16", 4: "float int32 uint32 int"}
_BYTES = {name: width for width, names in {**_WIDTHS, 8: "double int64 uint64"}.items() for name in names.split()}

_LAUNCHER = re.compile(r"^(?:\[[^\]\s]+\]<std\w+>:|\[\d+\](?=\s)|\d+:)\s?")
_TESTS = "all_reduce|all_?gather|reduce_scatter|all_?to_?allv?|sendrecv|broadcast|reduce|gather|scatter|hypercube"
_TEST = re.compile(rf"(?<![a-z_])({_TESTS})_(?:perf|test)")
_OSU = re.compile(r"# OSU (\S+) (.+?) Test\b")
_HEADS = re.compile(r"(?:^|\s)((?:size|bytes)\s+(?:count|N)\s+type\s[^:]*\balgbw\s[^:]*|Size\s+(?:Avg )?Lat.*)$")
_OSU_TIME = re.compile(r"(?:(\w+)\s)?(?:Tail\s)?Lat(?:ency)?\s?\(us\)")
_ROW = re.compile(r"(?:^|[\s:>\]|#])(\d+[KMG]?\s+\d+\s+[a-z]\w*\s+\S.*)$")
_COMMA = re.compile(r"\s*\d+\s+(?:\d+\s+[a-z]\w*\s+[a-z]+\s+(?:-?\d+\s+)?)?(\d+,\d+)(?:\s|$)")
_OSU_ROW = re.compile(r"^\s*(\d+\s+\d+\.\d+(?:\s+[\w.]+)*)\s*$")
_RANK = re.compile(
    r"\bRank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+\d+\s+)?(?:on\s+(\S+)|uses)\s+device\s+(\d+(?:\s+\[\S+\])?)"
    r"|\bDevice\s+(\d+)\s+->\s+\d+\s+\[0x"  # of NCCL 1
)
_SEEN = {"wrong": r"\bOut of bounds values : (\d+)", "type": r"# Datatype: (\w+)", "aggregated": r"\bagg iters: (\d+)"}


def placed_name(name: str) -> tuple[str, tuple[int, int] | None]:
    """Split `FILE@NODESxPER_NODE` or `FILE@WORKERS` (on one node) into the file, and nodes and workers on each."""
    found = re.match(r"(.+)@(?:(\d{1,7})x)?(\d{1,7})$", name)
    return (name, None) if found is None else (found[1], (int(found[2] or 1), int(found[3])))


@dataclass(slots=True)
class _Table:
    """One table of an output: what was printed above its rows, and the rows."""

    program: str
    way: str = "nccl"
    test: str = ""  # of another collective, with its line, as a title or a command says
    heads: list[str] = field(default_factory=list)
    units: list[str] = field(default_factory=list)
    ranks: list[tuple[str, str, str, str]] = field(default_factory=list)  # group, rank, host, device
    rows: list[dict[str, Any]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # rows that are not taken
    facts: dict[str, str] = field(default_factory=dict)


def benches_of(text: str, *, source: str, gradient_bytes: float | None = None) -> list[dict[str, Any]]:
    """Return the document of a bench.json, or those of another benchmark's output, the fewest workers first.

    `source` is the name of the file, with `@NODESxPER_NODE` behind it where an output does not say where its ranks
    were; `gradient_bytes` the size that counts, of an output. Key "read" says what was read and left out. Raises
    AnalysisError where nothing is left, and for what may be read in two ways.
    """
    name, placed = placed_name(source)
    if text.lstrip().startswith("{"):
        content = parse_json(text, source=source, error=AnalysisError, again=f"give {BENCH_FILE}")
        for key in (name for name in ("fits", "model") if name not in content):
            raise AnalysisError(f"{source}: has no {key!r}; give {BENCH_FILE}")
        return [content]
    for comma in filter(None, (_COMMA.match(_LAUNCHER.sub("", line)) for line in text.splitlines())):
        raise AnalysisError(f"{name}: has {comma[1]} for a number; print it with decimal points (LC_ALL=C)")
    if not (tables := list(_tables(text))):
        what = "holds no row of an all-reduce that is known" if text.strip() else "is empty"
        raise AnalysisError(f"{name}: {what}; give {BENCH_FILE}")
    if gradient_bytes is None:
        raise AnalysisError(f"{name}: knows no model; say how many bytes the gradients have: --gradient-mb")
    found: dict[Any, list[tuple[_Table, pd.DataFrame]]] = {}
    made, left = [], list[str]()
    for table in tables:
        try:
            rows, hosts, how = _hosts(table, name, placed)
        except AnalysisError as error:
            left.append(str(error))
        else:
            left += [f"{name} {each}" for each in table.left]
            found.setdefault((table.way, hosts, how), []).append((table, rows))
    for (_, hosts, how), own in sorted(found.items(), key=lambda each: (len(each[0][1]), len(set(each[0][1])))):
        if (sizes := pd.concat([rows for _, rows in own])["size"].nunique()) >= _FITS:
            made.append(_document(own, hosts, how, name, gradient_bytes))
        else:
            told = f"{len(hosts)} workers were measured with {sizes} size{'s' * (sizes > 1)}; a line needs {_FITS}"
            left.append(f"{name}: {own[0][0].program}: {told}: all_reduce_perf -b 8 -e 256M -f 2")
    told = "; ".join(_few(left, 3))
    if not made:
        raise AnalysisError(told)
    made[0]["read"] += f"; left out: {told}" if told else ""
    return made


def _tables(text: str) -> Iterator[_Table]:
    """Yield the tables that have rows, of whatever collective, in the order of the text."""
    rccl = "rccl" in text.lower() or re.search(r"device\s+\d+ \[[^\]]+\] AMD ", text) is not None
    program = "rccl-tests" if rccl else "nccl-tests"
    table = _Table(program)
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _LAUNCHER.sub("", raw)
        title, heads, tests = _OSU.search(line), _HEADS.search(line), set(_TEST.findall(line))
        if (table.rows or table.left) and (title or heads or tests or "nThread " in line or "Using devices" in line):
            yield table
            table = _Table(program, test=table.test, ranks=table.ranks if heads else [])
        if title:
            whole = title[2].startswith("Allreduce") and title[2].endswith("Latency")
            test = "" if whole else f"OSU's {title[2]} Test (line {number})"
            table = _Table("osu_allreduce", title[1].split("-")[0].lower(), test, ["Size", "Avg"], ["us"])
        elif tests:  # where a line names several, the rows have to tell
            table.test = "" if len(tests) > 1 or "all_reduce" in tests else f"{tests.pop()}_perf (line {number})"
        elif heads:
            table.program = "NCCL 1's tests or nccl-tests before 2019" if "bytes" in heads[1] else table.program
            table.heads = _OSU_TIME.sub(lambda found: found[1] or "Avg", heads[1]).split()
        elif units := re.findall(r"\((\w+(?:/s)?)\)", line) if table.heads and not table.rows else []:
            table.units = units
        else:
            _take(table, line, number)
    if table.rows or table.left:
        yield table


def _take(table: _Table, line: str, number: int) -> None:
    """Take what one line says of the devices, of the results, or of a row: time and rates once, or also in place.

    In-place times count where there are some, as training reduces in place.
    """
    table.facts |= {name: found[1] for name, pattern in _SEEN.items() if (found := re.search(pattern, line))}
    osu = table.program == "osu_allreduce"
    if rank := _RANK.search(line):
        table.ranks.append((rank[2] or "0", rank[1] or rank[5], rank[3] or "node0", rank[4] or ""))
    words = row[1].split() if (row := (_OSU_ROW if osu else _ROW).search(line)) else []
    if words and words[0][-1] in "KMG":  # whether in units of 1024 says the count
        words[0] = str(int(words[0][:-1]) << 10 * (1 + "KMG".index(words[0][-1])))
    heads = [_HEADS_OF.get(word, word) for word in table.heads]
    if not heads and len(words) in (8, 9, 12, 13) and re.fullmatch("sum|prod|min|max|avg|mulsum|none", words[3]):
        heads = ["size", "count", "type", "redop", "root"][: 4 + len(words) % 4] + [*_GROUP] * (len(words) // 4 - 1)
    if not words or not heads:
        return
    starts = [place for place, name in enumerate(heads) if name == "time"]
    whole = len(heads) + (heads[-1] == "timestamp")  # of two words
    if len(words) not in (whole, *starts[1:]) or not starts:  # where one group is blank, the other is there alone
        table.left.append(f"line {number}: has {len(words)} words under {len(heads)} heads")
        return
    parts = [dict(zip(heads[at:to], words[at:to], strict=False)) for at, to in pairwise([*starts, whole]) if words[at:]]
    part = next((part for part in reversed(parts) if _printed(part["time"])[0] > 0), None)
    if part is None or int(words[0]) == 0:
        return
    cells: dict[str, Any] = {"redop": "sum" if osu else "none", "root": "-1", "count": words[0], "line": number}
    cells |= {"type": table.facts.get("type", "type unknown"), **dict(zip(heads[: starts[0]], words, strict=False))}
    cells |= {"cpu": "cputime" in table.heads, "in_place": len(starts) > 1 and part is parts[-1]}
    wrong = [_printed(part.get("#wrong", ""))[0] for part in parts]
    cells["wrong"] = words.count("Fail") + sum(int(each) for each in wrong if each > 0)
    for name in _GROUP[:3]:
        cells[name], cells[f"{name}_half"] = _printed(part.get(name, ""))
    table.rows.append(cells)


def _printed(word: str) -> tuple[float, float]:
    """Return a number, and half of the last digit that was printed; NaN for what is none."""
    if not re.fullmatch(r"\d+\.?\d*(?:e[+-]?\d+)?", word):
        return math.nan, math.nan
    digits, _, power = word.partition("e")
    return float(word), 0.5 * 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))


def _checked(table: _Table, source: str) -> pd.DataFrame:
    """Return the rows of a table with their `seconds`, all of an all-reduce."""
    again = "give the output of all_reduce_perf or osu_allreduce as it was printed"
    if not table.rows:
        raise AnalysisError(f"{source}: {f'{table.test} is no all-reduce' if table.test else table.left[0]}; {again}")
    rows = pd.DataFrame(table.rows).astype({"size": "int64", "count": "int64"})
    kinds = rows.groupby(["type", "redop"], sort=False)["size"].nunique()
    kind = max(kinds.index, key=lambda each: (kinds[each], each[1] == "sum", each[0] == "float"))
    other = (rows["type"] != kind[0]) | (rows["redop"] != kind[1])
    if other.any():
        table.left.append(f"line {rows['line'][other.idxmax()]}: {other.sum()} rows are not of {kind[0]} {kind[1]}")
    rows, per_s = pd.DataFrame(rows[~other]), next((unit for unit in table.units if unit in _RATES), "GB/s")
    known = rows[rows["algbw"] > 10 * rows["algbw_half"]]
    unit = "ms" if "bytes" in table.heads else "us"
    if len(known):
        power = float(np.median(np.log10(known["size"] / _RATES[per_s] / known["algbw"] / known["time"])))
        unit = min(_OF_TIMES, key=lambda each: abs(math.log10(UNITS[each]) - power))
    unit = next((each for each in table.units if each in _OF_TIMES), unit)
    width = rows["type"].map(_BYTES).fillna(rows["size"] / rows["count"])
    rough, rate_rough = rows["time_half"] / rows["time"], rows["algbw_half"] / rows["algbw"]
    rows = rows.assign(rate=rows["size"] / rows["time"] / UNITS[unit] / _RATES[per_s], unit=unit, per_s=per_s)
    changed = (rows["algbw"] - rows["rate"]).abs() > 1.02 * rows["algbw_half"] + (0.01 + rough) * rows["rate"]
    for says, wrong in {
        "column root is {root}, and an all-reduce has none (-1): a reduce?": rows["root"] != "-1",
        f"{table.test} is no all-reduce": rows["line"] * bool(table.test) > 0,
        "nothing is added up (no redop): an all-gather, a broadcast?": rows["redop"] == "none",
        "has times of the host's calls (-C 1), not of the collective": rows["cpu"],
        "{count:,} elements of {type} are not {size:,} bytes; no all-reduce?": rows["count"] * width != rows["size"],
        "{size:,} bytes in {time:g} {unit} are {rate:.4g} {per_s}, and the line says {algbw:g}": changed,
    }.items():
        if wrong.any():
            told = says.format_map(rows[wrong].iloc[0])
            raise AnalysisError(f"{source} line {rows['line'][wrong].iloc[0]}: {told}; {again}")
    by_rate = rows["size"] / rows["algbw"] / _RATES[per_s]  # where that has more digits
    rows["seconds"] = by_rate.where(rate_rough < rough, rows["time"] * UNITS[unit])
    return rows


def _hosts(table: _Table, source: str, placed: tuple[int, int] | None) -> tuple[pd.DataFrame, tuple[str, ...], str]:
    """Return the rows of a table, the host of each rank, and how that is known."""
    rows = _checked(table, source)
    rate, bus, rate_half, bus_half = (rows[name].to_numpy() for name in ("algbw", "busbw", "algbw_half", "busbw_half"))

    def off(workers: Any, slack: float) -> Any:
        """Whether busbw / algbw of rows (k,) is not that of an all-reduce of each of `workers` (n,), as (n, k)."""
        share = moved_share(np.atleast_1d(workers))[:, None]
        return (rate > 0) & (np.abs(bus - share * rate) > 1.02 * (bus_half + share * rate_half) + slack * bus)

    if len({each[:2] for each in table.ranks}) < len(table.ranks):
        told = f"rank {table.ranks[0][1]} is there {sum(each[1] == '0' for each in table.ranks)} times"
        raise AnalysisError(f"{source}: {told}: each process measured alone; build the tests with MPI=1")
    first, how = min((each[0] for each in table.ranks), key=int, default="0"), "of the devices listed"
    own = pd.DataFrame([each[2:] for each in table.ranks if each[0] == first], columns=["host", "device"], dtype=object)
    again = own.groupby(["host", "device"]).cumcount().where(own.groupby("host")["device"].transform("nunique") > 1, 0)
    hosts = tuple(own["host"] + again.map(lambda node: f" ({node + 1})" if node else ""))
    how += "; a device that a host has twice is of another node" if again.any() else ""
    if placed is not None:
        if hosts and len(hosts) != (said := math.prod(placed)):
            raise AnalysisError(
                f"{source}: lists {len(hosts)} devices, and {said} workers were said; leave the number out"
            )
        hosts, how = tuple(f"node{node}" for node in range(placed[0]) for _ in range(placed[1])), "as said"
    elif not hosts:
        counts = np.arange(2, 4097)
        fitting = counts[~off(counts, 0.0).any(axis=1)]
        if len(fitting) != 1 or fitting[0] < 3:  # a ratio of 1 is also that of a broadcast
            several = 1 < len(fitting) < len(counts)
            what = f"{fitting[0]} to {fitting[-1]} workers fit its bandwidths" if several else "nothing in it tells"
            say = f"{source}@8 for 8 on one node, {source}@4x8 for 4 nodes with 8 each"
            raise AnalysisError(f"{source}: how many workers there were is unknown ({what}); type {say}")
        how = f"from busbw/algbw; all on one node is assumed, else say {source}@NODESxN"
        hosts = ("node0",) * int(fitting[0])
    if (n := len(hosts)) < 2:
        raise AnalysisError(f"{source}: is of one worker, who sends nothing; measure two or more")
    if why := impossible("bandwidth", bandwidth=float((rows["size"] / rows["seconds"]).max())):
        raise AnalysisError(f"{source}: has {why}; give sizes and times as they were printed")
    if (wrong := off(n, 0.002)[0]).any():
        line, ratio = rows["line"][wrong].iloc[0], (bus[wrong] / rate[wrong])[0]
        told = f"busbw / algbw is {ratio:.4g}, and an all-reduce of {n} workers has {moved_share(n):.4g}"
        raise AnalysisError(f"{source} line {line}: {told}: another collective, or another number of workers")
    return rows, hosts, how


def _document(
    tables: Sequence[tuple[_Table, pd.DataFrame]], hosts: Sequence[str], how: str, source: str, gradient_bytes: float
) -> dict[str, Any]:
    (first, _), rows, n = tables[0], pd.concat([rows for _, rows in tables]), len(hosts)
    times: dict[int, list[tuple[float, int]]] = {}
    for size, second, line in sorted(zip(rows["size"], rows["seconds"], rows["line"], strict=True)):
        times.setdefault(size, []).append((second, line))
    apart = {size: own[-1][0] / own[0][0] for size, own in times.items() if len(own) > 1}
    worst = max(apart, key=lambda size: (size >= _LARGE, apart[size]), default=0)
    if apart and (np.median([*apart.values()]) > _ALL_APART or (worst >= _LARGE and apart[worst] > _APART)):
        (least, first_line), *_, (most, other) = times[worst]
        told = f"{1e6 * least:,.1f} us for {worst:,} bytes in line {first_line}, {1e6 * most:,.1f} us in line {other}"
        raise AnalysisError(f"{source}: {n} workers took {told}: two configurations; give the rows of one in a file")
    wrong = int(sum(max(own["wrong"].sum(), int(table.facts.get("wrong", 0))) for table, own in tables))
    place = {"way": first.way, "operation": "allreduce", "place": "in", "iterations": 1, "seconds_median_op": None}
    points = [
        {**place, "bytes": size, "seconds": [each for each, _ in own], "wrong": wrong * (size == max(times))}
        for size, own in times.items()
    ]
    conditions = {"ranks": [{"host": host} for host in hosts], "settings": {}, "load_before": 0.0}
    job = {"ways": [{"name": first.way, "raw": True}], "points": points, "barriers": [], "conditions": conditions}
    model = {"gradients": {}, "flat_bytes": gradient_bytes, "batch": 1}
    found = finite(analyze({"workers": n, "model": {**model, "flat_bytes": 0}, "jobs": [job]}))
    nodes, aggregated = len(set(hosts)), max(int(table.facts.get("aggregated", 1)) for table, _ in tables)
    where = "in place" if rows["in_place"].any() else "out of place"
    read = (
        f"{first.program}, all-reduce of {n} workers on {nodes} node{'s' * (nodes > 1)} ({how}); {len(times)} sizes "
        f"from {min(times):,} to {max(times):,} bytes"
        + f", {len(tables)} repeats" * (len(tables) > 1)
        + f", {', '.join(sorted(set(rows['type'])))}, {where}"
        + "; with wrong results" * (wrong > 0)
        + f"; {aggregated} aggregated in a group: their latency is not that of one alone" * (aggregated > 1)
    )
    return {**found, "model": model, "unavailable": {}, "measured": [job], "read": read}
