"""A user's own curves: tables and numpy files in, checked curves in one form out.

long    CSV or Parquet, a row a point: specimen, strain, stress, and for training G0 and a
wide    CSV or Parquet, a pair of columns a specimen: S1_strain, S1_stress, S2_strain, ...; shorter tests end in blanks
.npy    X (N, 3, L): strain, stress, flag 1 on data and 0 on padding at the left; Y (N, 2) beside it; memory-mapped

Nothing is repaired and no unit is guessed: what is wrong is a DataError of one line that names file, specimen, row,
value and remedy. Nothing is unpickled. Letters: N curves, B of them in a block, n points, P = 2 targets.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field, create_model

from horovod_study.config.documents import open_file
from horovod_study.config.doors import Form, accept
from horovod_study.errors import DataError, first_line, nearest
from horovod_study.workload import material, room
from horovod_study.workload.dataset import open_npy

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

_ALSO = {"-": "1", "mm/mm": "1", "in/in": "1", "percent": "%", "n/mm2": "MPa", "n/mm\u00b2": "MPa"}
_WORDS = {unit.lower(): unit for known in UNITS.values() for unit in known} | _ALSO
_PAIRS = {"prepared_data.train": "parameter.train", "X.npy": "Y.npy", "curves.npy": "targets.npy"}
_BLOCK = 2000  # curves that are read, checked and written at a time
_Words = Mapping[str, str]
_MOST_COLUMNS = 20_000  # of a table: pandas takes half a minute for ten times as many
_AS_READ = "FILE, sep=';', decimal=',', skiprows=0, encoding='cp1252'"
_REWRITE = f"in pandas read_csv({_AS_READ}).to_csv('new.csv', index=False) writes it again"


class CurveBlock(NamedTuple):
    """B curves, one after the other."""

    strain: NDArray[np.float64]  # (n,) ratio
    stress: NDArray[np.float64]  # (n,) MPa
    rows: NDArray[np.int64]  # (n,) lines or rows of a file, positions in an array
    starts: NDArray[np.int64]  # (B + 1,) where curves begin, and n

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of points of each curve, (B,)."""
        return np.diff(self.starts)

    def most(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the largest value of each curve, (B,)."""
        return np.asarray(np.maximum.reduceat(values, self.starts[:-1]))

    def span(self) -> NDArray[np.float64]:
        """Return the difference of the largest and the smallest strain of each curve, (B,)."""
        return self.most(self.strain) + self.most(-self.strain)

    def negative(self, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which curves (B,) are negative but for the noise around zero."""
        return self.most(values) < 0.05 * self.most(-values)

    def steps(self) -> NDArray[np.float32]:
        """Return the rise of strain from the point before in float32, as data sets hold it, (n,); 1 at a beginning."""
        steps = np.diff(self.strain.astype(np.float32), prepend=np.float32(0))
        steps[self.starts[:-1]] = 1
        return steps

    def slopes(self) -> NDArray[np.float64]:
        """Return the slope in MPa of the line through the first tenth of each curve's strain, (B,)."""
        first, counts = self.starts[:-1], self.counts
        x = self.strain - np.repeat(self.strain[first], counts)
        early = (x <= np.repeat(0.1 * self.span(), counts)) | (np.arange(len(x)) < np.repeat(first + 5, counts))
        x, y = x * early, self.stress * early
        n, sx, sy, xx, xy = (np.add.reduceat(each, first) for each in (early.astype(np.float64), x, y, x * x, x * y))
        return np.asarray((n * xy - sx * sy) / (n * xx - sx * sx))


@dataclass(frozen=True, kw_only=True, slots=True)
class CurveSet:
    """The curves of a source, in memory or mapped, in blocks that are checked."""

    path: Path
    layout: str  # long, wide or npy
    size: int  # N
    names: tuple[str, ...] | None  # (N,), None where curves have numbers
    units: dict[str, str]  # as declared: strain, stress
    targets: NDArray[np.float64] | None  # (N, P): G0 in MPa and a, or normalised
    targets_file: Path | None
    columns: dict[str, str]  # what was found by which name
    unused: tuple[str, ...]  # columns
    word: str  # what a row is called
    read: Callable[[int, int], CurveBlock]  # the curves low..high-1

    def name(self, number: int) -> str:
        """Return how a curve is called in messages."""
        return f"curve {number}" if self.names is None else f"specimen {self.names[number]!r}"

    def blocks(self, *, any_modulus: bool = False, checked: bool = False) -> Iterator[tuple[int, CurveBlock]]:
        """Yield (number of the first curve, its block); raise DataError for the first thing that is wrong.

        `any_modulus` accepts any initial slope. What was `checked` before is not checked again.
        """
        for low in range(0, self.size, _BLOCK):
            points = self.read(low, min(low + _BLOCK, self.size))
            if not checked:
                _check(self, low, points, _CHECKS[:-1] if any_modulus else _CHECKS)
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
        hold(f"{path}:", (not found, what))
        path = found[0]
    if not _is_npy(path):
        return _of_frame(path, columns or {}, units or {}, targets)
    beside = path.with_name(_PAIRS[path.name]) if path.name in _PAIRS else None
    return _of_pair(path, units or {}, targets or (beside if beside and beside.exists() else None))


def assignments(option: str, text: str | None, allowed: Iterable[str]) -> dict[str, str]:
    """Return what an option's text says: 'strain=%,stress=MPa' gives {"strain": "%", "stress": "MPa"}."""
    said = dict(each.strip().partition("=")[::2] for each in (text or "").split(",") if each)
    fields: dict[str, Any] = dict.fromkeys(allowed, (Annotated[str, Field(min_length=1)], ""))
    form, again = create_model("Words", __base__=Form, **fields), f"write {next(iter(fields))}=..."
    found: dict[str, str] = accept(form, said, option, error=DataError, again=again).model_dump(exclude_unset=True)
    return found


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


def hold(source: object, *rules: tuple[Any, str]) -> None:
    """Raise DataError for the first of some rules, (is it broken, what is wrong and what to do), that is broken."""
    if said := next((text for broken, text in rules if broken), None):
        raise DataError(f"{source} {said}")


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


def _hold_each(rules: Iterable[tuple[Any, str, str]], told: Callable[[Any, int], tuple[str, Any]]) -> None:
    """Raise DataError for the first rule, (broken where, what is wrong, what to do), that is broken anywhere.

    `told` gives for the mask and the first place in it how that place is called, and values that the texts name.
    """
    for broken, what, remedy in rules:
        if broken.any():
            where, said = told(broken, int(np.argmax(broken)))
            more = f" ({broken.sum():,} such)" if broken.sum() > 1 else ""
            raise DataError(f"{where}: {what.format_map(said)}{more}; {remedy.format_map(said)}")


def _row_of(frame: pd.DataFrame, source: str) -> Callable[[Any, int], tuple[str, Any]]:
    return lambda broken, at: (f"{source} {frame.index[at]}", frame.iloc[[at]].to_dict("records")[0])


def _outside(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.bool_]:
    return ~((values >= low) & (values <= high))


_CHECKS: tuple[tuple[Callable[[CurveBlock], Any], str, str], ...] = (
    (lambda p: ~np.isfinite(p.strain), "strain is {strain:g}", "complete or remove the row"),
    (lambda p: ~np.isfinite(p.stress), "stress is {stress:g}", "complete or remove the row"),
    (lambda p: p.counts < 20, "has {count} points, at least 20 are needed", "remove it, or export more points"),
    (lambda p: p.span() == 0, "strain is {strain:g} in all points", "name another column by --columns strain=NAME"),
    (lambda p: p.negative(p.strain), "strain is negative throughout, to {least:g}", "multiply the column by -1"),
    (lambda p: p.negative(p.stress), "stress is negative throughout, to {low:g} MPa", "multiply the column by -1"),
    (lambda p: _outside(p.span(), 1e-5, 1), "strain covers {span:g}, plausible is 0.00001 to 1", "correct its unit"),
    (lambda p: p.steps() < 0, "strain falls from {before:.7g} to {strain:.7g}", "keep one loading, sort jitter"),
    (lambda p: p.steps() == 0, "strain is {strain:.7g} again (7 digits)", "keep one, in pandas by drop_duplicates"),
    (lambda p: p.most(p.stress) == -p.most(-p.stress), "stress is {stress:g} MPa in all points", "remove the curve"),
    (
        lambda p: _outside(p.slopes(), 200, 15000),
        "rises by {slope:.4g} MPa in the first tenth of its strain, plausible is 200 to 15000",
        "{cause}, or accept any slope with --any-modulus",
    ),
)
"""What is wrong with points (a mask (n,)) or curves (a mask (B,)), in words, and what to do; the first is told."""


def _check(curves: CurveSet, low: int, points: CurveBlock, checks: Sequence[tuple[Any, str, str]]) -> None:
    def told(broken: Any, at: int) -> tuple[str, Any]:
        by_point = len(broken) == len(points.strain)
        block = int(np.searchsorted(points.starts, at, "right")) - 1 if by_point else at
        place = f", {curves.word} {points.rows[at]}" if by_point else ""
        said = _values(points, at if by_point else int(points.starts[block]), block, curves.units)
        return f"{curves.path}, {curves.name(low + block)}{place}", said

    with np.errstate(all="ignore"):
        _hold_each(((wrong(points), what, remedy) for wrong, what, remedy in checks), told)


def _values(points: CurveBlock, at: int, block: int, units: _Words) -> dict[str, Any]:
    """Return what a message may tell of a point and its curve."""
    own, count = slice(*points.starts[block : block + 2]), int(points.counts[block])
    if not count:
        return {"count": 0}
    one = CurveBlock(points.strain[own], points.stress[own], points.rows[own], np.array([0, count]))
    values = {"strain": points.strain[at], "before": points.strain[at - 1], "stress": points.stress[at], "count": count}
    with np.errstate(all="ignore"):
        slope = one.slopes()[0]
        values |= {"least": one.strain.min(), "low": one.stress.min(), "span": one.span()[0], "slope": slope}
    likely = [
        f"{kind} in {unit}"
        for kind, known in UNITS.items()
        for unit, factor in known.items()
        if 200 <= slope * (factor / known[units[kind]]) ** (1 if kind == "stress" else -1) <= 15000
    ]
    correct = "correct --units, or the column's name"
    cause = f"likely {' or '.join(likely)}: {correct}" if likely else "are columns exchanged, or a sign wrong?"
    return {**values, "cause": cause}


# ------------------------------------------------------------------------------------------------------------- tables


def _table(path: Path) -> tuple[pd.DataFrame, str]:
    """Return a table with its lines or rows as index, and what these are called; blank rows are left out."""
    again = "import a part of it, or X.npy and Y.npy, which are read in blocks"
    what, errors = "is no table in UTF-8 below its names", (ValueError, OSError, MemoryError, pa.ArrowException)
    with _reading(path, what, _REWRITE, *errors):
        if path.suffix.lower() in (".parquet", ".pq"):
            with open_file(path) as stream:
                facts, word, first = pq.read_metadata(stream), "row", 1
                room.need_memory(path, 24 * facts.num_rows * facts.num_columns, "reading it", again)
                table = pq.read_table(stream)
                table.validate(full=True)  # also that texts are UTF-8
                frame = table.to_pandas(ignore_metadata=True)
        else:
            word, first, separator = "line", 2, _separator(path)
            room.need_memory(path, 4 * path.stat().st_size, "reading it", again)
            frame = pd.read_csv(path, sep=separator, encoding="utf-8-sig", skip_blank_lines=False, low_memory=False)
    longer = not isinstance(frame.index, pd.RangeIndex)
    frame.index = pd.RangeIndex(first, first + len(frame))
    frame = frame.rename(columns=lambda name: str(name).strip()).dropna(how="all")
    found = Counter(frame.columns)
    bases = {name: re.sub(r"\.\d+$", "", name) for name in found}  # "F.1" is the second "F" of a file
    twice = [name for name, base in bases.items() if found[name] > 1 or (base != name and base in found)]
    more = f"rows have more cells than the first line has names; decimal commas? {_REWRITE}"
    names = f"two columns are {', '.join(map(repr, twice[:1]))}; export it again"
    hold(f"{path}:", (longer, more), (twice, names), (frame.empty, "has no rows; export it again"))
    return frame, word


def _separator(path: Path) -> str:
    """Return what is between the columns: the mark of which the first two lines hold equally many."""
    with open_file(path) as stream:
        head = stream.read(1 << 20)
    first, second, *_ = (*head.decode("utf-8-sig", "replace").splitlines(), "", "")
    marks = [mark for mark in ";\t|," if mark in first]
    wide = f"has more than {_MOST_COLUMNS:,} columns; import a row a point, or X.npy and Y.npy"
    hold(
        f"{path}:",
        (not head.strip(), "is empty; save the table as CSV"),
        (b"\0" in head, "is no text in UTF-8; save the table as CSV"),
        (any(first.count(mark) > _MOST_COLUMNS for mark in marks), wide),
    )
    alike = [mark for mark in marks if first.count(mark) == second.count(mark)]
    return next(iter(alike), max(marks, key=first.count, default=r"\s+"))


def _of_frame(path: Path, given: _Words, units: _Words, targets: Path | None) -> CurveSet:
    frame, word = _table(path)
    layout, every = "long", list(map(str, frame))
    found = _columns(path, every, given)
    used = set(found.values())
    if not given and not {"strain", "stress"} & found.keys():
        layout, (frame, used) = "wide", _melted(path, frame)
    found = _columns(path, list(map(str, frame)), given, needed=UNITS)
    declared = {kind: _unit(path, kind, found[kind], units.get(kind)) for kind in UNITS}
    frame = _numbered(path, frame, found, word, declared)
    names, starts, labels = _specimens(path, frame, word)
    both = labels is not None and targets is not None
    hold(f"{path}:", (both, f"has targets, and so has --targets {targets}; give them in one place"))
    strain, stress, rows = frame["strain"].to_numpy(), frame["stress"].to_numpy(), frame.index.to_numpy()

    def read(low: int, high: int) -> CurveBlock:
        part = slice(starts[low], starts[high])
        return CurveBlock(strain[part], stress[part], rows[part], starts[low : high + 1] - starts[low])

    return CurveSet(
        path=path, layout=layout, size=len(names), names=names, units=declared, columns=found, word=word, read=read,
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
        hold(f"{path}:", (what, f"{what}; columns found: {_listed(names)}; say which by --columns {kind}=NAME"))
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
    hold(f"{path}:", (broken, f"specimen {name!r} needs a column of strain and one of stress; complete it"))
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
    hold(
        f"{path}: the unit of {kind} is",
        (len(said) > 1, f"{column!r} and {given}; leave --units out, or rename the column"),
        (unit not in allowed, f"{unit}; declare one by --units {kind}=UNIT: {', '.join(allowed)}"),
    )
    return said.pop()


def _numbered(path: Path, frame: pd.DataFrame, found: _Words, word: str, units: _Words) -> pd.DataFrame:
    """Return the columns that were found under the names of what they hold, as numbers: ratio, MPa."""
    numbers = pd.DataFrame({"specimen": path.stem}, index=frame.index)
    for kind, column in found.items():
        values = frame[column]
        if kind != "specimen" and values.dtype.kind not in "fiu":
            values = pd.to_numeric(values.astype(str).where(values.notna()), errors="coerce")
            cells = pd.DataFrame({"column": column, "cell": frame[column].astype(str).str[:40]})
            remedy = f"correct or remove the row, or if commas are decimal: {_REWRITE}"
            broken = values.isna() & frame[column].notna()
            rows = [(broken, "{column} is {cell!r}", remedy)]
            _hold_each(rows, _row_of(cells, f"{path}, {word}"))
        if kind in UNITS or kind == "G0":
            unit = units[kind] if kind in units else _unit(path, "stress", column, None if _split(column)[1] else "MPa")
            values = values.astype(np.float64) * UNITS["stress" if kind == "G0" else kind][unit]
        numbers[kind] = values
    return numbers


def _specimens(path: Path, frame: pd.DataFrame, word: str) -> tuple[tuple[str, ...], NDArray[np.int64], Any]:
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
    _hold_each(rules, _row_of(frame, f"{path}, {word}"))
    targets = None if labels is None else labels.to_numpy()[starts[:-1]]
    return tuple(name[new].astype(str)), starts, targets


# ------------------------------------------------------------------------------------------------------- .npy, targets


def _is_npy(path: Path) -> bool:
    with _reading(path, "cannot be read", "name a CSV, Parquet or .npy file", OSError), open_file(path) as stream:
        return stream.read(6) == b"\x93NUMPY"


def _of_pair(path: Path, units: _Words, targets: Path | None) -> CurveSet:
    array = open_npy(path)
    needed = "needed is (N, 3, L): strain, stress, flag; arrange it so, maybe by transpose(0, 2, 1)"
    arranged = array.ndim == 3 and array.shape[1] == material.CHANNELS
    hold(f"{path}:", (not arranged, f"has shape {array.shape}, {needed}"))
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
        hold(f"{path}, curve {low + row}, position {at}:", (wrong.any(), f"{found}; {layout}"))
        starts = np.concatenate([[0], np.cumsum(data.sum(axis=1))])
        return CurveBlock(strain[data] * factors[0], stress[data] * factors[1], np.nonzero(data)[1], starts)

    return CurveSet(
        path=path, layout="npy", size=len(array), names=None, units=declared, columns={}, word="position", read=read,
        targets=_targets(targets, None, len(array)) if targets else None, targets_file=targets, unused=(),
    )  # fmt: skip


def _targets(path: Path, names: Sequence[str] | None, size: int) -> NDArray[np.float64]:
    """Return the targets (N, P) of curves in their order, by a .npy file or a table with the `names` of specimens."""
    if names is None or _is_npy(path):
        array = open_npy(path)
        needed = f"needed is ({size}, 2): G0 in MPa and a of every curve; save one row a curve"
        hold(f"{path}:", (array.shape != (size, material.TARGETS), f"has shape {array.shape}, {needed}"))
        return array.astype(np.float64)
    frame, word = _table(path)
    found = _columns(path, list(map(str, frame)), {}, needed=("specimen", "G0", "a"))
    table = _numbered(path, frame, {kind: found[kind] for kind in ("specimen", "G0", "a")}, word, {})
    table.index = pd.Index([str(each) for each in table["specimen"]])
    apart = sorted(set(table.index) ^ set(names)) or sorted(set(table.index[table.index.duplicated()]))
    hold(f"{path}:", (apart, f"needs one row for each specimen of the curves; unlike are {_listed(apart)}; add it"))
    return table.loc[list(names), ["G0", "a"]].to_numpy(np.float64)
