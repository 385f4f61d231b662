"""A user's own curves: tables and numpy files in, checked, and written as a data set for training.

long    CSV or Parquet, a row a point: specimen, strain, stress, and for training G0 and a
wide    CSV or Parquet, a pair of columns a specimen: S1_strain, S1_stress, S2_strain, ...; shorter tests end in blanks
.npy    X (N, 3, L): strain, stress, flag 1 on data and 0 on padding at the left; Y (N, 2) beside it; memory-mapped

Nothing is repaired and no unit is guessed: what is wrong is a DataError of one line that names file, specimen, row,
value and remedy. Nothing is unpickled. The law is fitted to the curves, which shows wrong units, wrong columns and
curves that it does not describe. Letters: N curves, B of them in a block, n or L points, P = 2 targets.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import horovod_study
from horovod_study.config.documents import open_file
from horovod_study.errors import DataError, first_line, nearest, refuse
from horovod_study.strain import dataset, material, room
from horovod_study.text.words import plural

NAMES = {
    "strain": "strain, shear strain, eps, epsilon, gamma, e true, e, \u03b5, \u03b3, dehnung, scherung, gleitung",
    "stress": "stress, shear stress, sigma, sig, tau, sigma true, \u03c3, \u03c4, spannung, schubspannung",
    "specimen": "specimen, specimen id, specimen name, test, test id, sample, sample id, id, probe",
    "G0": "g0, g 0",
    "a": "a",
}
"""What a table may hold and the names by which it is found, in lower case, an underscore as a space."""

UNITS = {
    "strain": {"1": 1.0, "%": 1e-2, "mm/m": 1e-3, "microstrain": 1e-6},
    "stress": {"MPa": 1.0, "Pa": 1e-6, "kPa": 1e-3, "GPa": 1e3, "psi": 0.006894757293168361, "ksi": 6.894757293168361},
}
"""Units of each channel and what one of them is as a ratio of strain or in MPa."""

_WORDS = {unit.lower(): unit for known in UNITS.values() for unit in known}
_WORDS |= {"-": "1", "mm/mm": "1", "in/in": "1", "percent": "%", "n/mm2": "MPa", "n/mm\u00b2": "MPa"}
_PAIRS = {"prepared_data.train": "parameter.train", "X.npy": "Y.npy", "curves.npy": "targets.npy"}
_BLOCK = 2000  # curves that are read, checked and written at a time
_MISFIT = 0.05  # a fit whose rms exceeds this part of the largest stress does not describe the curve
_LAW, _VARIANCES = ["g0_mpa", "a"], ["g0_variance", "a_variance"]  # columns of fits
_OnProgress = Callable[[str, int, int], None] | None  # called with what is done, done, in all
_FITTED = 20_000  # curves at most; of more curves an even sample
_Array = NDArray[np.float64]
_Words = Mapping[str, str]
_refuse = partial(refuse, error=DataError)
_NEGATE = "multiply the column by -1"
_REWRITE = (
    "in pandas read_csv(FILE, sep=';', decimal=',', skiprows=0, encoding='cp1252').to_csv('new.csv', index=False) "
    "writes it again"
)


class CurveBlock(NamedTuple):
    """B curves, one after the other."""

    strain: _Array  # (n,) ratio
    stress: _Array  # (n,) MPa
    rows: pd.Index  # (n,) lines or rows of a file, positions in an array, and what they are called
    starts: NDArray[np.int64]  # (B + 1,) where curves begin, and n

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of points of each curve, (B,)."""
        return np.diff(self.starts)


@dataclass(frozen=True, kw_only=True, slots=True)
class CurveSet:
    """The curves of a source, in memory or mapped, in blocks that are checked."""

    path: Path
    layout: str  # long, wide or npy
    size: int  # N
    names: tuple[str, ...] | None  # (N,), None where curves have numbers
    units: dict[str, str]  # as declared: strain, stress
    targets: _Array | None  # (N, P): G0 in MPa and a, or normalised
    targets_file: Path | None
    columns: dict[str, str]  # what was found by which name
    unused: tuple[str, ...]  # columns
    read: Callable[[int, int], CurveBlock]  # the curves low..high-1

    def name(self, number: int) -> str:
        """Return how a curve is called in messages."""
        return f"curve {number}" if self.names is None else f"specimen {self.names[number]!r}"

    def blocks(self, *, any_modulus: bool = False) -> Iterator[tuple[int, CurveBlock]]:
        """Yield (number of the first curve, its block); raise DataError for the first thing that is wrong.

        `any_modulus` accepts any initial slope.
        """
        for low in range(0, self.size, _BLOCK):
            points = self.read(low, min(low + _BLOCK, self.size))
            _check(self, low, points, any_modulus=any_modulus)
            yield low, points


def open_curves(
    path: Path, *, columns: _Words | None = None, units: _Words | None = None, targets: Path | None = None
) -> CurveSet:
    """Open the curves of a file, or of a folder with a pair of .npy files.

    `columns` names columns by what they hold (NAMES), `units` the units of strain and stress (UNITS) where the file
    does not; `targets` is a table with specimen, G0 and a, or a .npy file (N, 2). Raises DataError.
    """
    if path.is_dir():
        found = [path / name for name in _PAIRS if (path / name).exists()]
        table = "concat({each.stem: read_csv(each) for each in files}, names=['specimen']).to_csv('points.csv')"
        what = f"is a folder without {' or '.join(_PAIRS)}; make one table, in pandas by {table}"
        _refuse(str(path), (not found, what))
        path = found[0]
    if not _is_npy(path):
        return _of_frame(path, columns or {}, units or {}, targets)
    beside = path.with_name(_PAIRS[path.name]) if path.name in _PAIRS else None
    return _of_pair(path, units or {}, targets or (beside if beside and beside.exists() else None))


def assignments(option: str, text: str | None, allowed: Iterable[str]) -> dict[str, str]:
    """Return what an option's text says: 'strain=%,stress=MPa' gives {"strain": "%", "stress": "MPa"}."""
    said = dict(each.strip().partition("=")[::2] for each in (text or "").split(",") if each)
    for name, value in said.items():
        unknown = f"unknown key {name!r}{nearest(name, allowed)}; allowed: {', '.join(allowed)}"
        _refuse(option, (name not in allowed, unknown), (not value, f"{name} is given no value; write {name}=..."))
    return said


def to_channels(points: CurveBlock) -> NDArray[np.float32]:
    """Return strain, stress in MPa and flag, float32 (B, 3, 201): padded at the left with zeros and flag 0.

    Of a longer curve 201 evenly spaced points are taken, the first and the last among them.
    """
    counts, most = points.counts, material.POINTS
    kept = np.minimum(counts, most)
    curve = np.repeat(np.arange(len(kept)), kept)
    place = np.arange(len(curve)) - np.repeat(np.cumsum(kept) - kept, kept)
    at = points.starts[curve] + (place * ((counts - 1) / np.maximum(kept - 1, 1))[curve]).round().astype(np.int64)
    channels = np.zeros((len(kept), material.CHANNELS, most), np.float32)
    values = np.stack([points.strain[at], points.stress[at], np.ones(len(at))], axis=1)
    channels[curve, :, most - kept[curve] + place] = values
    return channels


# ------------------------------------------------------------------------------------------------------------- checks


@contextmanager
def _reading(path: Path, what: str, remedy: str, *errors: type[Exception]) -> Iterator[None]:
    """Say of what libraries raise while they read a file that it is not what it should be."""
    try:
        yield
    except DataError:
        raise
    except errors as error:
        why = getattr(error, "strerror", None) or first_line(error)[:120]
        raise DataError(f"{path}: {what} ({why}); {remedy}") from None


_Whose = Callable[[int], str]  # position of a row -> what it is of


def _hold(frame: pd.DataFrame, rules: Iterable[tuple[Any, str, str]], whose: _Whose) -> None:
    """Raise DataError for the first rule, rows where it is broken, what is wrong, what to do; texts name columns."""
    for broken, what, remedy in rules:
        if broken.any():
            at = int(np.argmax(broken))
            said, place = frame.iloc[[at]].to_dict("records")[0], f"{frame.index.name} {frame.index[at]}"
            more = f" ({broken.sum():,} such)" if broken.sum() > 1 else ""
            raise DataError(f"{whose(at)}, {place}: {what.format_map(said)}{more}; {remedy.format_map(said)}")


_CHECKS: tuple[tuple[Callable[[pd.DataFrame], Any], str, str], ...] = (
    (lambda p: ~np.isfinite(p.strain), "strain is {strain:g}", "complete or remove the row"),
    (lambda p: ~np.isfinite(p.stress), "stress is {stress:g}", "complete or remove the row"),
    (lambda p: p.begins & (p.span == 0), "strain is {strain:g} in all points", "name another by --columns strain=NAME"),
    (lambda p: p.begins & (p.most < -0.05 * p.least), "strain is negative throughout, to {least:g}", _NEGATE),
    (lambda p: p.begins & (p.high < -0.05 * p.low), "stress is negative throughout, to {low:g} MPa", _NEGATE),
    (
        lambda p: p.begins & ~p.span.between(1e-5, 1),
        "strain covers {span:g}, plausible is 0.00001 to 1",
        "correct its unit",
    ),
    (lambda p: p.step < 0, "strain falls from {before:.7g} to {strain:.7g}", "keep one loading, sort jitter"),
    (lambda p: p.step == 0, "strain is {strain:.7g} again (7 digits)", "keep one, in pandas by drop_duplicates"),
    (lambda p: p.begins & (p.high == p.low), "stress is {stress:g} MPa in all points", "remove the curve"),
    (
        lambda p: p.begins & ~p.slope.between(200, 15000),
        "rises by {slope:.4g} MPa in the first tenth of its strain, plausible is 200 to 15000",
        "correct --units or the column's name (a factor of 100 or 1,000 is a wrong unit), exchanged columns or a wrong "
        "sign, or accept any slope with --any-modulus",
    ),
)
"""What is wrong with points, or with the curve that begins there, by `_facts`; the first is told."""


def _check(curves: CurveSet, low: int, points: CurveBlock, *, any_modulus: bool) -> None:
    def whose(at: int) -> str:
        return f"{curves.path}, {curves.name(low + int(np.searchsorted(points.starts, at, 'right')) - 1)}"

    few = int((points.counts < 20).argmax())
    what = f"has {points.counts[few]} points, at least 20 are needed; remove it, or export more points"
    _refuse(f"{curves.path}, {curves.name(low + few)}", (points.counts[few] < 20, what))
    with np.errstate(all="ignore"):
        p = _facts(points)
        _hold(p, ((wrong(p), what, remedy) for wrong, what, remedy in _CHECKS[: -1 if any_modulus else None]), whose)


def _facts(points: CurveBlock) -> pd.DataFrame:
    """Return of each point strain, stress and step, and of its curve ranges and the slope of its first tenth."""
    x, y, first = points.strain, points.stress, points.starts[:-1]
    begin = np.repeat(first, points.counts)
    least, most, low, high = (each.reduceat(of, first) for of in (x, y) for each in (np.minimum, np.maximum))
    step = np.diff(x.astype(np.float32), prepend=np.float32(0))  # in float32, as data sets hold it
    step[first] = 1
    u, v = x - x[begin], y
    early = (u <= np.repeat(0.1 * (most - least), points.counts)) | (np.arange(len(u)) < begin + 5)
    u, v = u * early, v * early
    n, su, sv, uu, uv = (np.add.reduceat(each, first) for each in (early.astype(np.float64), u, v, u * u, u * v))
    slope = (n * uv - su * sv) / (n * uu - su * su)
    of_curves = {"least": least, "most": most, "low": low, "high": high, "span": most - least, "slope": slope}
    of_points = {"strain": x, "stress": y, "before": np.roll(x, 1), "step": step, "begins": begin == np.arange(len(x))}
    of_points |= {name: np.repeat(each, points.counts) for name, each in of_curves.items()}
    return pd.DataFrame(of_points, index=points.rows)


# ------------------------------------------------------------------------------------------------------------- tables


def _table(path: Path) -> pd.DataFrame:
    """Return a table with its lines or rows as index, which is named so; blank rows are left out."""
    again = "import a part of it, or X.npy and Y.npy, which are read in blocks"
    parquet = path.suffix.lower() in (".parquet", ".pq")
    errors = (ValueError, OSError, MemoryError, pa.ArrowException)
    with _reading(path, "is no table in UTF-8 below its names", _REWRITE, *errors):
        if parquet:
            with open_file(path) as stream:
                facts = pq.read_metadata(stream)
                room.need_memory(path, 24 * facts.num_rows * facts.num_columns, "reading it", again)
                table = pq.read_table(stream)
                table.validate(full=True)  # also that texts are UTF-8
                frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
        else:
            mark = _mark(path)
            room.need_memory(path, 4 * path.stat().st_size, "reading it", again)
            frame = pd.read_csv(path, sep=mark, encoding="utf-8-sig", skip_blank_lines=False, low_memory=False)
    more = f"rows have more cells than the first line has names; decimal commas? {_REWRITE}"
    _refuse(str(path), (not isinstance(frame.index, pd.RangeIndex), more))
    frame.index = pd.RangeIndex(2 - parquet, 2 - parquet + len(frame), name="row" if parquet else "line")
    frame = frame.rename(columns=lambda name: str(name).strip()).dropna(how="all")
    bases = [re.sub(r"\.\d+$", "", str(name)).strip() for name in frame]  # "F.1" is the second "F" of a file
    twice = [base for place, base in enumerate(bases) if base in bases[:place] and base in frame]
    _refuse(
        str(path),
        (twice, f"two columns are {_listed(twice)}; export it again"),
        (frame.empty, "has no rows; export it again"),
    )
    return frame


def _mark(path: Path) -> str:
    """Return what is between the columns: the mark of which the first two lines hold equally many."""
    with open_file(path) as stream:
        begin = stream.read(1 << 20).decode("utf-8-sig", "replace")
    binary = "is no text in UTF-8; save the table as CSV"
    _refuse(str(path), (not begin.strip(), "is empty; save the table as CSV"), ("\0" in begin, binary))
    first, second, *_ = (*begin.splitlines(), "", "")
    marks = [mark for mark in ";\t|," if mark in first]
    alike = [mark for mark in marks if first.count(mark) == second.count(mark)]
    return next(iter(alike), max(marks, key=first.count, default=r"\s+"))


def _of_frame(path: Path, given: _Words, units: _Words, targets: Path | None) -> CurveSet:
    frame = _table(path)
    layout, every = "long", list(map(str, frame))
    found = _columns(path, every, given)
    used = set(found.values())
    if not given and not {"strain", "stress"} & found.keys():
        layout, (frame, used) = "wide", _melted(path, frame)
    found = _columns(path, list(map(str, frame)), given, needed=UNITS)
    declared = {kind: _unit(path, kind, found[kind], units.get(kind)) for kind in UNITS}
    frame = _numbered(path, frame, found, declared)
    names, starts, labels = _specimens(path, frame)
    both = labels is not None and targets is not None
    _refuse(str(path), (both, f"has targets, and so has --targets {targets}; give them in one place"))
    strain, stress, rows = frame["strain"].to_numpy(), frame["stress"].to_numpy(), frame.index

    def read(low: int, high: int) -> CurveBlock:
        part = slice(starts[low], starts[high])
        return CurveBlock(strain[part], stress[part], rows[part], starts[low : high + 1] - starts[low])

    return CurveSet(
        path=path, layout=layout, size=len(names), names=names, units=declared, columns=found, read=read,
        targets=_targets(targets, names, len(names)) if targets else labels, targets_file=targets,
        unused=tuple(column for column in every if column not in used),
    )  # fmt: skip


def _columns(path: Path, names: Sequence[str], given: _Words, needed: Iterable[str] = ()) -> dict[str, str]:
    """Return what is found in a table, by the names that columns have or were given: {"strain": "Eps (%)", ...}."""
    found: dict[str, str] = {}
    for kind, words in NAMES.items():
        wanted, accepted = given.get(kind), words.split(", ")
        alike = [each for each in names if each == wanted or (not wanted and _split(each)[0].lower() in accepted)]
        what = f"{len(alike)} columns could be {kind}" if len(alike) > 1 else ""
        if not alike and (wanted or kind in needed):
            what = f"no column {wanted or kind!r}{nearest(wanted or kind, names)}; names accepted: {words}"
        _refuse(str(path), (what, f"{what}; columns found: {_listed(names)}; say which by --columns {kind}=NAME"))
        found |= dict.fromkeys([kind] * len(alike), *alike)
    return found


def _melted(path: Path, frame: pd.DataFrame) -> tuple[pd.DataFrame, set[str]]:
    """Return a wide table as a long one, and the columns that were used."""
    tests: dict[str, dict[str, Any]] = {}
    used = set()
    for column, kind in ((column, kind) for column in map(str, frame) for kind in UNITS):
        words = "|".join(sorted((word for word in NAMES[kind].split(", ") if len(word) > 2), key=len, reverse=True))
        name, unit = _split(column)
        match = re.fullmatch(rf"(?:(.+) )?(?:{words})(?: (.+))?", name, re.IGNORECASE)
        if match and (match[1] or match[2]):
            tests.setdefault(match[1] or match[2], {})[f"{kind} ({unit or ''})"] = frame[column]
            used.add(column)
    wrong = [name for name, test in tests.items() if len({key.split()[0] for key in test}) != 2]
    wrong += [name for name, test in tests.items() if pd.DataFrame(test).isna().all(axis=None)]
    broken, name = wrong or len(used) != 2 * len(tests), [*wrong, *tests, ""][0]
    _refuse(str(path), (broken, f"specimen {name!r} needs a column of strain and one of stress; complete it"))
    parts = [pd.DataFrame(test).dropna(how="all").assign(specimen=name) for name, test in tests.items()]
    return pd.concat(parts) if parts else frame, used


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _split(column: str) -> tuple[str, str | None]:
    """Return name and unit of a column: 'Shear_Strain (%)' gives ('Shear Strain', '%'), 'stress_MPa' as well."""
    found = re.fullmatch(r"(.+?)[\s_]*[(\[]\s*(.*?)\s*[)\]]\s*", column)
    if not found:
        tail = re.fullmatch(r"(.+?)(?:[\s_/,]+in)?[\s_/,]+(\S+?)", column.replace("mm_mm", "mm/mm"))
        found = tail if tail and tail[2].lower() in _WORDS.keys() - {"1", "-"} else None  # strain_1 is of specimen 1
    name, unit = found.groups() if found else (column, None)
    return re.sub(r"[\s_]+", " ", name).strip(), unit or None


def _unit(path: Path, kind: str, column: str, given: str | None) -> str:
    """Return the unit of a channel, which the name of the column or --units must say, and not two of them."""
    said = {text if text == "mPa" else _WORDS.get(text.lower(), text) for text in (_split(column)[1], given) if text}
    unit, allowed = "".join(said) or "not declared", UNITS[kind]
    several = f"{column!r} and {given}; leave --units out, or rename the column" if len(said) > 1 else ""
    unknown = f"{unit}; declare one by --units {kind}=UNIT: {', '.join(allowed)}"
    _refuse(str(path), (several or unit not in allowed, f"the unit of {kind} is {several or unknown}"))
    return said.pop()


def _numbered(path: Path, frame: pd.DataFrame, found: _Words, units: _Words) -> pd.DataFrame:
    """Return the columns that were found under the names of what they hold, as numbers: ratio, MPa."""
    numbers = pd.DataFrame({"specimen": path.stem}, index=frame.index)
    for kind, column in found.items():
        values = frame[column]
        if kind != "specimen" and values.dtype.kind not in "fiu":
            values = pd.to_numeric(values.astype(str).where(values.notna()), errors="coerce")
            cells = pd.DataFrame({"column": column, "cell": frame[column].astype(str).str[:40]})
            remedy = f"correct or remove the row, or if commas are decimal: {_REWRITE}"
            broken = values.isna() & frame[column].notna()
            _hold(cells, [(broken, "{column} is {cell!r}", remedy)], lambda _: str(path))
        if kind in UNITS or kind == "G0":
            unit = units[kind] if kind in units else _unit(path, "stress", column, None if _split(column)[1] else "MPa")
            values = values.astype(np.float64) * UNITS["stress" if kind == "G0" else kind][unit]
        numbers[kind] = values
    return numbers


def _specimens(path: Path, frame: pd.DataFrame) -> tuple[tuple[str, ...], NDArray[np.int64], Any]:
    """Return the names of specimens (N,), where their rows begin and end (N + 1,), and their targets (N, P) if any."""
    name, new = frame["specimen"], frame["specimen"] != frame["specimen"].shift()
    starts = np.flatnonzero(np.append(new, True))
    unnamed = name.isna() | (new & name.where(new).duplicated())
    remedy = "name it in all its rows, in pandas sort_values('specimen', kind='stable')"
    rules = [(unnamed, "specimen {specimen!r} is blank or there before", remedy)]
    labels = frame[["G0", "a"]].astype(np.float64) if {"G0", "a"} <= set(frame) else None
    if labels is not None:
        unlike = labels != np.repeat(labels.to_numpy()[starts[:-1]], np.diff(starts), axis=0)  # also where it is NaN
        remedy = "write the same in all its rows"
        rules += [(unlike[kind], f"specimen {{specimen!r}} has {kind} {{{kind}:g}}", remedy) for kind in labels]
    _hold(frame, rules, lambda _: str(path))
    targets = None if labels is None else labels.to_numpy()[starts[:-1]]
    return tuple(name[new].astype(str)), starts, targets


# ------------------------------------------------------------------------------------------------------- .npy, targets


def _is_npy(path: Path) -> bool:
    with _reading(path, "cannot be read", "name a CSV, Parquet or .npy file", OSError), open_file(path) as stream:
        return stream.read(6) == b"\x93NUMPY"


def _of_pair(path: Path, units: _Words, targets: Path | None) -> CurveSet:
    array = dataset.open_npy(path)
    needed = "needed is (N, 3, L): strain, stress, flag; arrange it so, maybe by transpose(0, 2, 1)"
    arranged = array.ndim == 3 and array.shape[1] == material.CHANNELS
    _refuse(str(path), (not arranged, f"has shape {array.shape}, {needed}"))
    declared = {kind: _unit(path, kind, kind, units.get(kind)) for kind in UNITS}
    factors = [UNITS[kind][unit] for kind, unit in declared.items()]

    def read(low: int, high: int) -> CurveBlock:
        strain, stress, flag = (array[low:high, channel].astype(np.float64) for channel in range(material.CHANNELS))
        data = flag == 1
        wrong = ~data & ((flag != 0) | (strain != 0) | (stress != 0))
        wrong[:, 1:] |= data[:, :-1] & ~data[:, 1:]
        row, at = np.unravel_index(int(wrong.argmax()), wrong.shape)
        found = f"flag {flag[row, at]:g} at strain {strain[row, at]:g}"
        layout = "the flag is 1 on data, 0 on padding, which is zero and at the left; correct it"
        _refuse(f"{path}, curve {low + row}, position {at}", (wrong.any(), f"{found}; {layout}"))
        starts = np.concatenate([[0], np.cumsum(data.sum(axis=1))])
        rows = pd.Index(np.nonzero(data)[1], name="position")
        return CurveBlock(strain[data] * factors[0], stress[data] * factors[1], rows, starts)

    return CurveSet(
        path=path, layout="npy", size=len(array), names=None, units=declared, columns={}, read=read,
        targets=_targets(targets, None, len(array)) if targets else None, targets_file=targets, unused=(),
    )  # fmt: skip


def _targets(path: Path, names: Sequence[str] | None, size: int) -> _Array:
    """Return the targets (N, P) of curves in their order, by a .npy file or a table with the `names` of specimens."""
    if names is None or _is_npy(path):
        array = dataset.open_npy(path)
        needed = f"needed is ({size}, 2): G0 in MPa and a of every curve; save one row a curve"
        _refuse(str(path), (array.shape != (size, material.TARGETS), f"has shape {array.shape}, {needed}"))
        return array.astype(np.float64)
    frame = _table(path)
    found = _columns(path, list(map(str, frame)), {}, needed=("specimen", "G0", "a"))
    table = _numbered(path, frame, {kind: found[kind] for kind in ("specimen", "G0", "a")}, {})
    table.index = pd.Index([str(each) for each in table["specimen"]])
    apart = sorted(set(table.index) ^ set(names)) or sorted(set(table.index[table.index.duplicated()]))
    _refuse(str(path), (apart, f"needs one row for each specimen of the curves; unlike are {_listed(apart)}; add it"))
    return table.loc[list(names), ["G0", "a"]].to_numpy(np.float64)


# ------------------------------------------------------------------------------------------------------------- data set


def import_curves(
    curves: CurveSet,
    out: Path,
    *,
    label: str | None = None,
    target_bounds: _Array | None = None,
    any_modulus: bool = False,
    on_progress: _OnProgress = None,
) -> dict[str, Any]:
    """Import `curves` as the data set directory `out`; return its provenance, which its side-car keeps.

    `label` "lsq" takes G0 and a from the least-squares fit where the files give none. `target_bounds` (P, 2) are the
    physical values of the targets' 0 and 1, else the training set's minimum and maximum. `any_modulus` accepts any
    initial slope. Raises DataError for whatever is wrong with the files; nothing is written then.
    """
    dataset.require_new(out)
    _refuse("", (label not in (None, "lsq"), f"--label {label!r} is not known; allowed: lsq"))
    few = f"holds {plural(curves.size, 'curve')} ({', '.join(curves.names or ())})" if curves.size < 4 else ""
    unclear, found = (curves.targets is None) == (label is None), "no" if label is None else "other"
    few = few and f"{few}; every fourth is a test curve, 4 are needed at least; add some"
    once = f"has {found} targets G0 and a; give them once, as columns G0 and a, by --targets, or by --label lsq"
    _refuse(str(curves.path), (few, few), (unclear, once))
    room.need_disk(out, curves.size * dataset.BYTES_PER_CURVE, f"a data set of {curves.size:,} curves")
    given = None if curves.targets is None else _labels(curves, curves.targets, target_bounds)
    fits, counts = _checked(curves, label, any_modulus, on_progress)
    targets, bounds, bounds_from = given or _labels(curves, fits[_LAW].to_numpy(), target_bounds)
    unused = [f"columns not used: {', '.join(curves.unused)}"] if curves.unused else []
    origin = "given" if given else "least squares"
    provenance = {
        "made_by": f"horovod_study {horovod_study.__version__}",
        "source": str(curves.path),
        "layout": curves.layout,
        "files": [_hashed(file) for file in (curves.path, curves.targets_file) if file],
        "columns": curves.columns,
        "units": curves.units,
        "options": {"label": label, "any_modulus": any_modulus},
        "targets": {"from": origin, "bounds": bounds.tolist(), "bounds_from": bounds_from},
        "counts": counts,
        "warnings": [*unused, *_doubts(curves, fits, targets if given else None)],
        "self_check": {"curves": len(fits), "of": curves.size}
        | {f"median_{name}": float(np.median(fits[name])) for name in (*_LAW, "rms_mpa")},
        "ids": list(curves.names) if curves.names and curves.size <= 10_000 else None,
    }
    dataset.write_imported(
        out,
        lambda low, high: to_channels(curves.read(low, high)),
        ((targets - bounds[:, 0]) / (bounds[:, 1] - bounds[:, 0])).astype(np.float32),
        target_bounds=bounds,
        provenance=provenance,
        floor=_floor(fits, bounds) if label is None else None,
        on_progress=on_progress and partial(on_progress, "writing"),
    )
    return provenance


def lines(provenance: dict[str, Any]) -> list[str]:
    """Return what an import did, for people."""
    counts, units, targets = provenance["counts"], provenance["units"], provenance["targets"]
    (g0_low, g0_high), (a_low, a_high) = targets["bounds"]
    test = counts["curves"] // 4
    return [
        f"read     {provenance['source']} ({provenance['layout']}): {counts['curves']:,} curves, {counts['points']:,} "
        f"points, strain in {units['strain']}, stress in {units['stress']}",
        *([f"thinned  {counts['thinned']:,} curves to {material.POINTS} of their points"] if counts["thinned"] else []),
        f"targets  {targets['from']}; 0 to 1 is G0 {g0_low:.6g} to {g0_high:.6g} MPa, a {a_low:.6g} to {a_high:.6g} "
        f"({targets['bounds_from']})",
        "fit      median G0 {median_g0_mpa:.4g} MPa, a {median_a:.3g}, rms {median_rms_mpa:.3g} MPa (least squares on "
        "{curves:,} of {of:,} curves)".format_map(provenance["self_check"]),
        f"split    {counts['curves'] - test:,} curves for training, {test:,} for testing (every fourth)",
    ]


def _checked(
    curves: CurveSet, label: str | None, any_modulus: bool, on_progress: _OnProgress
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Check all curves; fit the law to a sample of them, or to all where it labels them; count what was read.

    A fit is a row: G0 and a, the rms of its residual, the largest stress, the variances of G0 and a by the residual.
    """
    # every k-th with k odd, so that test curves are among them
    every = -(-curves.size // _FITTED) if label is None else 1
    wanted = np.arange(0, curves.size, every + (every % 2 == 0))
    parts, counts = [], {"curves": curves.size, "points": 0, "thinned": 0}
    for low, points in curves.blocks(any_modulus=any_modulus):
        high = low + len(points.counts)
        counts["points"] += len(points.strain)
        counts["thinned"] += int((points.counts > material.POINTS).sum())
        rows = wanted[np.searchsorted(wanted, low) : np.searchsorted(wanted, high)]
        if len(rows):
            strain, stress, flag = np.moveaxis(to_channels(points)[rows - low], 1, 0)
            fit, count = fit_law(strain, stress, flag), flag.sum(axis=1, dtype=np.float64)
            found = pd.DataFrame(fit._asdict(), index=rows).assign(peak_mpa=np.abs(stress).max(axis=1).astype(float))
            sigma_mpa, plain = fit.rms_mpa * np.sqrt(count / np.maximum(count - 2, 1)), np.array([[0.0, 1.0]] * 2)
            found[_VARIANCES] = material.bounds(strain, found[_LAW].to_numpy(), sigma_mpa, target_bounds=plain)
            parts.append(found)
        if on_progress:
            on_progress("checking curves", high, curves.size)
    return pd.concat(parts), counts


def _hashed(path: Path) -> dict[str, Any]:
    with open_file(path) as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": digest}


def _labels(curves: CurveSet, targets: _Array, bounds: Any) -> tuple[_Array, _Array, str]:
    """Return physical targets (N, P), their bounds (P, 2) and where these are from."""
    slack, said = 1e-9, "--target-bounds"
    if np.abs(targets[:, 0]).max() < 2.0:  # no material has such a G0
        found = f"targets are normalised already (G0 to {targets[:, 0].max():g})"
        remedy = "give the physical values of 0 and 1, for instance --target-bounds 1000 3000 25 45"
        _refuse(str(curves.path), (bounds is None, f"{found}; {remedy}"))
        targets = bounds[:, 0] + (bounds[:, 1] - bounds[:, 0]) * targets
        slack = 0.01  # test targets normalised with the training set's bounds stick out by so much at most
    if bounds is None:
        training = targets[np.arange(len(targets)) % 4 != 3]
        bounds, said = np.stack([training.min(axis=0), training.max(axis=0)], axis=1), "training minimum and maximum"
        wrong = ~np.isfinite(targets) | ((targets <= 0) & [True, False])
        allowed = ["a positive number"] * 2
    else:
        margin = slack * (bounds[:, 1] - bounds[:, 0])
        wrong = ~((targets >= bounds[:, 0] - margin) & (targets <= bounds[:, 1] + margin))
        allowed = ["{:g} to {:g}".format(*each) for each in bounds]
    row, column = np.unravel_index(int(wrong.argmax()), wrong.shape)
    first = f"target {('G0', 'a')[column]} of {curves.name(int(row))} is {targets[row, column]:g}, allowed is"
    first += f" {allowed[column]} ({wrong.sum():,} such); correct it, or widen --target-bounds"
    given = "; ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in zip(("G0", "a"), bounds, strict=True))
    given = f"bounds of targets are {given}; give low and high of both with --target-bounds"
    _refuse(str(curves.path), (wrong.any(), first), (not (bounds[:, 0] < bounds[:, 1]).all(), given))
    return targets, bounds, said


def _doubts(curves: CurveSet, fits: pd.DataFrame, given: _Array | None) -> list[str]:
    """Return warnings from the fits: outside the generated box, not described by the law, far from the targets."""
    low, high = material.TARGET_BOUNDS.T
    # An estimate scatters: what is outside by less than three standard errors may be inside.
    margin, found = 0.01 * material.TARGET_SPAN + 3.0 * np.sqrt(fits[_VARIANCES].to_numpy()), fits[_LAW].to_numpy()
    outside = ((found < low - margin) | (found > high + margin)).any(axis=1)
    relative: _Array = (fits.rms_mpa / np.maximum(fits.peak_mpa, 1e-12)).to_numpy()
    doubts = []
    for wrong, text in (
        (outside, "G0 or a outside 1000 to 3000 MPa and 25 to 45: networks trained on generated curves extrapolate"),
        (relative > _MISFIT, "rms above 5 % of the peak: the saturating law does not describe them"),
    ):
        shown = [
            f"{curves.name(fits.index[k])} (G0 {found[k, 0]:.4g} MPa, a {found[k, 1]:.3g}, "
            f"rms {100 * relative[k]:.1f} % of the peak)"
            for k in np.flatnonzero(wrong)[:3]
        ]
        if shown:
            doubts.append(f"{wrong.sum():,} of {len(wrong):,} fits have {text}; the first are {'; '.join(shown)}")
    ratio = 1.0 if given is None else float(np.median(found[:, 0] / given[fits.index, 0]))
    if not 2 / 3 <= ratio <= 1.5:
        cause = "other targets, order or unit, or shear strain given as eps12 instead of gamma = 2 eps12"
        doubts.append(f"the fitted G0 is {ratio:.3g} times the given one (median): {cause}")
    return doubts


def _floor(fits: pd.DataFrame, bounds: _Array) -> dict[str, Any] | None:
    """Return the statistical floor with noise levels from the residuals, None where the law does not describe them."""
    each = fits[_VARIANCES].to_numpy()[fits.index % 4 == 3] / (bounds[:, 1] - bounds[:, 0]) ** 2
    if (fits.rms_mpa > _MISFIT * fits.peak_mpa).any() or not np.isfinite(each).all():
        return None
    return material.floor(each.sum(axis=0), len(each), target_bounds=bounds, estimated=True)


# -------------------------------------------------------------------------------------------------------- least squares

_CHUNK = 256  # curves at a time: the intermediate arrays stay in the processor's cache
_START = (-1.0, 0.3, 2.0, 5.0, 12.0, 40.0)  # a times the largest strain, from a curve bent upwards to a plateau
_LARGEST = 500.0  # of |a| times the largest strain; beyond it only the plateau is left to see


class LawFit(NamedTuple):
    """Parameters of the law for each curve, and the root mean square of its residual."""

    g0_mpa: _Array  # (N,)
    a: _Array  # (N,)
    rms_mpa: _Array  # (N,)


def fit_law(strain: NDArray[Any], stress: NDArray[Any], weight: NDArray[Any]) -> LawFit:
    """Fit every curve: `strain` and `stress` in MPa (N, L), `weight` (N, L) 1 on data and 0 on padding.

    By variable projection: the best G0 for a given a is known, so that one parameter is left per curve. It starts from
    the best of a few values and goes on by Gauss-Newton (with Kaufman's derivative of the projected residual), halving
    a step that does not help. All values must be finite. A curve without strain gets nan.
    """
    found = np.full((3, len(strain)), np.nan)
    for low in range(0, len(strain), _CHUNK):
        x, y, w = (np.asarray(each[low : low + _CHUNK], np.float64) for each in (strain, stress, weight))
        reach = np.abs(x * w).max(axis=1)
        able = np.flatnonzero(reach)
        # in units of the largest strain, so that z = a * reach is of order one
        z, g0, squares = _fit((x * w)[able] / reach[able, None], (y * w)[able])
        found[:, low + able] = g0 / reach[able], z / reach[able], np.sqrt(squares / w[able].sum(axis=1))
    return LawFit(*found)


def _fit(x: _Array, y: _Array) -> tuple[_Array, _Array, _Array]:
    """Return z, G0 and the sum of squares that is left of each curve; those that have arrived are left alone."""
    z = np.array(_START)[np.argmin([_at(np.full(len(x), start), x, y)[1] for start in _START], axis=0)]
    g0, squares, step = _at(z, x, y)
    going = np.arange(len(x))
    for _ in range(100):
        before = z[going]
        new = np.clip(before + step[going], -_LARGEST, _LARGEST)
        found = _at(new, x[going], y[going])
        better = found[1] <= squares[going]
        step[going] /= 2
        at = going[better]
        z[at], g0[at], squares[at], step[at] = (each[better] for each in (new, *found))
        going = going[np.abs(new - before) > 1e-11 * (1.0 + np.abs(before))]
    return z, g0, squares


def _at(z: _Array, x: _Array, y: _Array) -> tuple[_Array, _Array, _Array]:
    """Return the best G0 for z of each curve, the sum of squares that is left, and the Gauss-Newton step of z."""
    straight, bent = np.abs(z) < 1e-9, np.abs(z) >= 1e-4
    safe = np.where(straight, 1.0, z)[:, None]
    phi = np.where(straight[:, None], x, -np.expm1(-safe * x) / safe)
    norm = np.einsum("nl,nl->n", phi, phi)
    norm[norm <= 0] = 1.0
    g0 = np.einsum("nl,nl->n", phi, y) / norm
    left = y - g0[:, None] * phi
    slope = (x * np.exp(-safe * x) - phi) / safe  # d phi / d z
    slope[~bent] = -0.5 * x[~bent] ** 2 + z[~bent, None] * x[~bent] ** 3 / 3
    slope -= (np.einsum("nl,nl->n", phi, slope) / norm)[:, None] * phi  # what G0 cannot follow
    slope *= g0[:, None]
    size = np.einsum("nl,nl->n", slope, slope)
    step = np.einsum("nl,nl->n", slope, left) / np.where(size > 0, size, np.inf)
    return g0, np.einsum("nl,nl->n", left, left), step
