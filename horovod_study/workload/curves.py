"""A user's own curves: tables and numpy files in, checked curves in one form out.

long    CSV or Parquet, a row a point: specimen, strain, stress, and for training G0 and a
wide    CSV or Parquet, a pair of columns a specimen: S1_strain, S1_stress, S2_strain, ...; shorter tests end in blanks
.npz    strain and stress (N, L), shorter tests end in NaN; for training targets (N, 2); ids (N,)
.npy    X (N, 3, L): strain, stress, flag 1 on data and 0 on padding at the left; Y (N, 2) beside it; memory-mapped

Nothing is repaired and no unit is guessed: what is wrong is a DataError of one line that names file, specimen, row,
value and remedy. Nothing is unpickled. Letters: N curves, B of them in a block, n points, P = 2 targets.
"""

import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from horovod_study.documents import open_file
from horovod_study.errors import DataError, first_line, nearest, require_known
from horovod_study.workload import material, room
from horovod_study.workload.dataset import open_npy

NAMES = {
    "strain": "strain, shear strain, eps, epsilon, gamma, e true, e, ε, γ, dehnung, scherung, gleitung".split(", "),
    "stress": "stress, shear stress, sigma, sig, tau, sigma true, σ, τ, spannung, schubspannung".split(", "),
    "specimen": "specimen, specimen id, specimen name, test, test id, sample, sample id, id, probe".split(", "),
    "G0": ["g0", "g 0"],
    "a": ["a"],
}
"""What a table may hold and the names by which it is found, in lower case, an underscore as a space."""

UNITS = {
    "strain": {"1": 1.0, "%": 1e-2, "mm/m": 1e-3, "microstrain": 1e-6},
    "stress": {"MPa": 1.0, "Pa": 1e-6, "kPa": 1e-3, "GPa": 1e3, "psi": 0.006894757293168361, "ksi": 6.894757293168361},
}
"""Units of each channel and what one of them is as a ratio of strain or in MPa."""

_ALSO = {"-": "1", "mm/mm": "1", "mm_mm": "1", "in/in": "1", "percent": "%", "n/mm2": "MPa", "n/mm²": "MPa"}
PAIRS = MappingProxyType({"prepared_data.train": "parameter.train", "X.npy": "Y.npy", "curves.npy": "targets.npy"})
"""Names of curves and of the targets beside them."""

BLOCK_CURVES = 2000
"""Curves that are read, checked and written at a time."""

_MAX_RATIO = 200  # so many times smaller no compression makes measured numbers; zeros become a thousand times smaller
_REWRITE = "in pandas by read_csv(FILE, sep=';', decimal=',', skiprows=0).to_csv('points.csv', index=False)"


class Points(NamedTuple):
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
        found: NDArray[np.float64] = np.maximum.reduceat(values, self.starts[:-1])
        return found

    def span(self) -> NDArray[np.float64]:
        """Return the difference of the largest and the smallest strain of each curve, (B,)."""
        return self.most(self.strain) + self.most(-self.strain)

    def negative(self, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which curves (B,) are negative but for the noise around zero."""
        return self.most(values) < 0.05 * self.most(-values)

    def steps(self) -> NDArray[np.float32]:
        """Return the rise of strain from the point before, (n,), in the precision of a data set; 1 where a curve begins."""
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
        slopes: NDArray[np.float64] = (n * xy - sx * sy) / (n * xx - sx * sx)
        return slopes


@dataclass(frozen=True, kw_only=True, slots=True)
class Curves:
    """The curves of a source, in memory or mapped, in blocks that are checked."""

    path: Path
    layout: str  # long, wide, npz or npy
    size: int  # N
    names: tuple[str, ...] | None  # (N,), None where curves have numbers
    units: dict[str, str]  # as declared: strain, stress
    files: tuple[Path, ...]
    targets: NDArray[np.float64] | None  # (N, P): G0 in MPa and a, or normalised
    unused: tuple[str, ...]  # columns and arrays
    word: str  # what a row is called
    read: Callable[[int, int], Points]  # the curves low..high-1

    def name(self, number: int) -> str:
        """Return how a curve is called in messages."""
        return f"curve {number}" if self.names is None else f"specimen {self.names[number]!r}"

    def blocks(self, *, any_modulus: bool = False, checked: bool = False) -> Iterator[tuple[int, Points]]:
        """Yield (number of the first curve, its block); raise DataError for the first thing that is wrong.

        `any_modulus` accepts any initial slope. What was `checked` before is not checked again.
        """
        for low in range(0, self.size, BLOCK_CURVES):
            points = self.read(low, min(low + BLOCK_CURVES, self.size))
            if not checked:
                _check(self, low, points, _CHECKS[:-1] if any_modulus else _CHECKS)
            yield low, points

    def channels(self, *, any_modulus: bool = False) -> NDArray[np.float32]:
        """Return all curves, checked, as the network takes them: (N, 3, 201)."""
        return np.concatenate([to_channels(points) for _, points in self.blocks(any_modulus=any_modulus)])


def open_curves(
    path: Path,
    *,
    columns: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    targets: Path | None = None,
) -> Curves:
    """Open the curves of a file, or of a folder with a pair of .npy files.

    `columns` names columns by what they hold (NAMES), `units` the units of strain and stress (UNITS) where the file
    does not; `targets` is a table with specimen, G0 and a, or a .npy file (N, 2). Raises DataError.
    """
    given = {kind: _unit("--units", kind, text) for kind, text in (units or {}).items()}
    if path.is_dir():
        found = next((path / name for name in PAIRS if (path / name).exists()), None)
        if found is None:
            raise DataError(
                f"{path}: is a folder without {' or '.join(PAIRS)}; put files of one test each into one table, in pandas "
                "by concat({file.stem: read_csv(file) for file in files}, names=['specimen']).to_csv('points.csv')"
            )
        path = found
    if _begins(path, b"\x93NUMPY"):
        beside = path.with_name(PAIRS.get(path.name, "")) if path.name in PAIRS else path
        targets = targets or (beside if beside != path and beside.exists() else None)
        return _of_pair(path, given, targets)
    frame, word = _archive(path) if path.suffix.lower() == ".npz" else _table(path)
    return _of_frame(path, frame, word, columns or {}, given, targets)


def assignments(option: str, text: str | None, allowed: Iterable[str]) -> dict[str, str]:
    """Return what an option's text says: 'strain=%,stress=MPa' gives {"strain": "%", "stress": "MPa"}."""
    found = dict(part.strip().partition("=")[::2] for part in (text or "").split(",") if text)
    for name, value in found.items():
        require_known(option, name, allowed, error=DataError)
        if not value:
            raise DataError(f"{option} {text}: says nothing of {name}; write {option} {name}=...")
    return found


def to_channels(points: Points) -> NDArray[np.float32]:
    """Return strain, stress in MPa and flag, float32 (B, 3, 201): padded at the left with zeros and flag 0.

    Of a longer curve 201 evenly spaced points are taken, the first and the last among them.
    """
    counts, most = points.counts, material.POINTS
    kept = np.minimum(counts, most)
    curve = np.repeat(np.arange(len(kept)), kept)
    place = np.arange(len(curve)) - np.repeat(np.cumsum(kept) - kept, kept)
    from_row = points.starts[curve] + (place * ((counts - 1) / np.maximum(kept - 1, 1))[curve]).round().astype(int)
    channels = np.zeros((len(kept), material.CHANNELS, most), np.float32)
    channels[curve, :, most - kept[curve] + place] = np.stack(
        [points.strain[from_row], points.stress[from_row], np.ones(len(curve))], axis=1
    )
    return channels


# ------------------------------------------------------------------------------------------------------------- checks


def _outside(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.bool_]:
    return ~((values >= low) & (values <= high))


_CHECKS: tuple[tuple[Callable[[Points], NDArray[np.bool_]], str], ...] = (
    (lambda p: ~np.isfinite(p.strain), "strain is {strain:g}; complete or remove the row"),
    (lambda p: ~np.isfinite(p.stress), "stress is {stress:g}; complete or remove the row"),
    (lambda p: p.counts < 20, "has {count} points, at least 20 are needed; remove the specimen, or export more points"),
    (
        lambda p: p.span() == 0,
        "strain is {strain:g} in all points, a dead channel; name another with --columns strain=",
    ),
    (lambda p: p.negative(p.strain), "strain is negative throughout, down to {least:g}; multiply the column by -1"),
    (lambda p: p.negative(p.stress), "stress is negative throughout, to {low:g} MPa; multiply the column by -1"),
    (
        lambda p: _outside(p.span(), 1e-5, 1.0),
        "strain covers {span:g} as a ratio, plausible is 0.00001 to 1; correct its unit in the file or by --units strain=",
    ),
    (
        lambda p: p.steps() < 0,
        "strain falls from {before:.7g} to {strain:.7g}; keep one loading a specimen, and sort or remove what jitters",
    ),
    (
        lambda p: p.steps() == 0,
        "strain is {strain:.7g} twice (to 7 digits); keep one, in pandas by drop_duplicates(['specimen', 'strain'])",
    ),
    (
        lambda p: p.most(p.stress) == -p.most(-p.stress),
        "stress is {stress:g} MPa in all points, a dead channel; name another with --columns stress=",
    ),
    (
        lambda p: _outside(p.slopes(), 200.0, 15000.0),
        "rises by {slope:.4g} MPa in the first tenth of the strain, plausible is 200 to 15000; {cause}, or accept any slope "
        "with --any-modulus",
    ),
)
"""What is wrong with points (a mask (n,)) or curves (a mask (B,)), and what is said; the first one found is told."""


def _check(curves: Curves, low: int, points: Points, checks: Sequence[tuple[Callable[..., Any], str]]) -> None:
    for wrong_of, text in checks:
        with np.errstate(all="ignore"):
            wrong = wrong_of(points)
        if not wrong.any():
            continue
        first, by_point = int(wrong.argmax()), len(wrong) == len(points.strain)
        block = int(np.searchsorted(points.starts, first, "right")) - 1 if by_point else first
        at, own = first if by_point else int(points.starts[block]), slice(*points.starts[block : block + 2])
        alone = Points(points.strain[own], points.stress[own], points.rows[own], np.array([0, points.counts[block]]))
        values: dict[str, Any] = {"count": points.counts[block]}
        if values["count"]:
            with np.errstate(all="ignore"):
                values |= {"strain": points.strain[at], "before": points.strain[at - 1], "stress": points.stress[at]}
                values |= {"least": alone.strain.min(), "low": alone.stress.min(), "span": alone.span()[0]}
                values |= {"slope": alone.slopes()[0], "cause": _cause(alone.slopes()[0], curves.units)}
        what, remedy = text.format_map(values).split("; ", 1)
        place = f", {curves.word} {points.rows[at]}" if by_point else ""
        more = f" ({wrong.sum():,} such {'points' if by_point else 'curves'})" if wrong.sum() > 1 else ""
        raise DataError(f"{curves.path}, {curves.name(low + block)}{place}: {what}{more}; {remedy}")


def _cause(slope: float, declared: Mapping[str, str]) -> str:
    """Name the other units that would make a slope plausible."""
    likely = [
        f"{kind} in {unit}"
        for kind, known in UNITS.items()
        for unit, factor in known.items()
        if 200 <= slope * (factor / known[declared[kind]]) ** (1 if kind == "stress" else -1) <= 15000
    ]
    return f"likely {' or '.join(likely)}: correct --units" if likely else "are columns exchanged, or a sign wrong?"


# ------------------------------------------------------------------------------------------------------------- tables


def _table(path: Path) -> tuple[pd.DataFrame, str]:
    """Return a table with its lines or rows as index, and what these are called; blank rows are left out."""
    again = "import a part of it, or X.npy and Y.npy, which are read in blocks"
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            with open_file(path) as stream:
                facts = pq.read_metadata(stream)
                room.need_memory(path, 24 * facts.num_rows * facts.num_columns, "reading it", again)
                frame, word, first = pq.read_table(stream).to_pandas(ignore_metadata=True), "row", 1
        else:
            room.need_memory(path, 4 * path.stat().st_size, "reading it", again)
            frame = pd.read_csv(
                path, sep=_separator(path), encoding="utf-8-sig", skip_blank_lines=False, low_memory=False
            )
            word, first = "line", 2
    except (ValueError, OSError, MemoryError, pa.ArrowException) as error:
        raise DataError(
            f"{path}: is no table that can be read ({first_line(error)[:120]}); write one in UTF-8 with a line of names, "
            f"{_REWRITE}"
        ) from None
    if not isinstance(frame.index, pd.RangeIndex):
        raise DataError(
            f"{path}: rows have more cells than the first line has names; decimal commas? write it {_REWRITE}"
        )
    frame.index = pd.RangeIndex(first, first + len(frame))
    frame = frame.rename(columns=lambda name: str(name).strip()).dropna(how="all")
    twice = [name for name in frame if re.sub(r"\.\d+$", "", name) in frame.columns.drop(name)]
    if twice or frame.empty:
        raise DataError(
            f"{path}: {f'two columns are named like {twice[0]!r}' if twice else 'has no rows'}; export it again"
        )
    return frame, word


def _separator(path: Path) -> str:
    """Return what is between the columns: the mark of which the first two lines hold equally many."""
    with open_file(path) as stream:
        head = stream.read(1 << 16)
    if not head.strip() or b"\0" in head:
        raise DataError(f"{path}: {'is no text file in UTF-8' if head else 'is empty'}; save the table as CSV")
    first, second, *_ = (*head.decode("utf-8-sig", "replace").splitlines(), "", "")
    marks = [mark for mark in ";\t|," if mark in first]
    alike = [mark for mark in marks if first.count(mark) == second.count(mark)]
    return next(iter(alike), max(marks, key=first.count, default=r"\s+"))


def _archive(path: Path) -> tuple[pd.DataFrame, str]:
    """Return the curves of a .npz file as a long table."""
    try:
        with open_file(path) as stream, zipfile.ZipFile(stream) as archive:
            sizes = [(each.file_size, each.compress_size) for each in archive.infolist()]
        if any(size > max(10_000_000, _MAX_RATIO * packed) for size, packed in sizes):
            raise DataError(
                f"{path}: is packed more than {_MAX_RATIO} times; as only repetitions can be; save it again"
            )
        room.need_memory(path, 6 * sum(size for size, _ in sizes), "reading it", "import X.npy and Y.npy, in blocks")
        with open_file(path) as stream, np.load(stream, allow_pickle=False) as arrays:
            strain, stress = arrays["strain"], arrays["stress"]
            size, length = strain.shape
            names = arrays["ids"] if "ids" in arrays else np.arange(size).astype(str)
            columns = {"specimen": np.repeat(names, length), "strain": strain.ravel(), "stress": stress.ravel()}
            if "targets" in arrays:
                columns |= zip(("G0", "a"), np.repeat(arrays["targets"].T, length, axis=1), strict=True)
        frame = pd.DataFrame(columns, index=np.tile(np.arange(length), size))
    except (
        ValueError,
        OSError,
        EOFError,
        KeyError,
        RuntimeError,
        MemoryError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise DataError(
            f"{path}: cannot be read ({first_line(error)[:120]}); save strain and stress (N, L), shorter curves ended by "
            "NaN, with numpy.savez and without pickled objects"
        ) from None
    return frame.dropna(subset=["strain", "stress"], how="all"), "position"


def _of_frame(
    path: Path,
    frame: pd.DataFrame,
    word: str,
    columns: Mapping[str, str],
    given: Mapping[str, str],
    targets: Path | None,
) -> Curves:
    found = _columns(path, list(frame), columns)
    layout = "npz" if word == "position" else "long" if {"strain", "stress"} <= found.keys() else "wide"
    pairs = {path.stem: found} if layout != "wide" else _pairs(path, list(frame), columns)
    units = {kind: _settled(path, kind, (pair[kind] for pair in pairs.values()), given) for kind in UNITS}
    used = {column for pair in pairs.values() for column in pair.values()}
    parts = [
        pd.DataFrame({"specimen": name, **{kind: frame[column] for kind, column in pair.items()}})
        for name, pair in pairs.items()
    ]
    long = (
        pd.concat(part.dropna(subset=["strain", "stress"], how="all") for part in parts)
        if layout == "wide"
        else parts[0]
    )
    names, starts = _specimens(path, long, word)
    if "G0" in found and (unit := _split(found["G0"])[1]):
        long["G0"] = _numbers(path, long, "G0", word) * UNITS["stress"][_unit(f"{path}", "stress", unit)]
    files, labels = (path,), None
    if targets is not None:
        if "G0" in long:
            raise DataError(f"{path}: has targets, and so has --targets {targets}; give them in one place")
        files, table = (path, targets), _labels(targets, names)
        long = long.assign(**{name: np.repeat(table[name].to_numpy(), np.diff(starts)) for name in ("G0", "a")})
    if {"G0", "a"} <= set(long):
        labels = np.stack([_constant(path, long, kind, names, starts, word) for kind in ("G0", "a")], axis=1)
    strain, stress = (_numbers(path, long, kind, word) * UNITS[kind][unit] for kind, unit in units.items())
    rows = long.index.to_numpy()

    def read(low: int, high: int) -> Points:
        part = slice(starts[low], starts[high])
        return Points(strain[part], stress[part], rows[part], starts[low : high + 1] - starts[low])

    unused = tuple(column for column in frame if column not in used)
    return Curves(
        path=path, layout=layout, size=len(names), names=names, units=units, files=files, targets=labels, unused=unused,
        word=word, read=read,
    )  # fmt: skip


def _columns(path: Path, names: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return what is found in a table, by the names that columns have or were given: {"strain": "Eps (%)", ...}."""
    found = {}
    for kind, words in NAMES.items():
        wanted = given.get(kind)
        alike = [name for name in names if name == wanted or (wanted is None and _split(name)[0].lower() in words)]
        if len(alike) > 1 or (wanted and not alike):
            what = (
                f"{len(alike)} columns could be {kind}"
                if alike
                else f"no column {wanted!r}{nearest(f'{wanted}', names)}"
            )
            raise DataError(f"{path}: {what}; columns found: {_listed(names)}; say which with --columns {kind}=NAME")
        if alike:
            found[kind] = alike[0]
    return found


def _pairs(path: Path, names: Sequence[str], given: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the columns of each specimen of a wide table: {"S1": {"strain": ..., "stress": ...}, ...}."""
    pairs: dict[str, dict[str, str]] = {}
    for name, kind in ((name, kind) for name in names for kind in UNITS):
        words = "|".join(sorted((word for word in NAMES[kind] if len(word) > 2), key=len, reverse=True))
        match = re.fullmatch(rf"(?:(.+) )?(?:{words})(?: (.+))?", _split(name)[0], re.IGNORECASE)
        specimen = match and (match[1] or match[2])
        if specimen:
            if kind in pairs.setdefault(specimen, {}):
                raise DataError(
                    f"{path}: specimen {specimen!r} has two columns of {kind}; rename or remove one of them"
                )
            pairs[specimen][kind] = name
    alone = [specimen for specimen, pair in pairs.items() if len(pair) < 2]
    if given or not pairs or len(alone) == len(pairs):
        raise DataError(
            f"{path}: no columns of strain and stress; columns found: {_listed(names)}; names accepted: "
            f"{', '.join((*NAMES['strain'], *NAMES['stress']))}; say which they are with --columns strain=NAME,stress=NAME"
        )
    if alone:
        raise DataError(
            f"{path}: specimen {alone[0]!r} has a column of {next(iter(pairs[alone[0]]))} only; add the other"
        )
    return pairs


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _split(column: str) -> tuple[str, str | None]:
    """Return name and unit of a column: 'Shear_Strain (%)' gives ('Shear Strain', '%'), 'stress_MPa' as well."""
    found = re.fullmatch(r"(.+?)[\s_]*[(\[]\s*(.*?)\s*[)\]]\s*", column)
    if not found:
        tail = re.fullmatch(r"(.+?)(?:[\s_/,]+in)?[\s_/,]+(mm_mm|\S+?)", column.replace("mm_mm", "mm/mm"))
        words = {unit.lower() for known in UNITS.values() for unit in known} | _ALSO.keys()
        found = tail if tail and tail[2].lower() in words - {"1", "-"} else None  # strain_1 is of specimen 1
    name, unit = found.groups() if found else (column, None)
    return re.sub(r"[\s_]+", " ", name).strip(), unit or None


def _unit(where: str, kind: str, text: str) -> str:
    known = {word.lower(): unit for word, unit in (*zip(UNITS[kind], UNITS[kind], strict=True), *_ALSO.items())}
    unit = None if text == "mPa" else known.get(text.strip().lower().replace(" ", ""))
    if unit not in UNITS[kind]:
        raise DataError(f"{where}: {text!r} is no unit of {kind}; allowed: {', '.join(UNITS[kind])}")
    return unit


def _settled(path: Path, kind: str, columns: Iterable[str], given: Mapping[str, str]) -> str:
    """Return the unit of a channel, which the file or --units must say, and not two of them."""
    texts = {_split(column)[1] for column in columns} - {None}
    said = {_unit(f"{path}", kind, text) for text in texts if text} | ({given[kind]} if kind in given else set())
    if len(said) != 1:
        found = " and ".join(sorted(said)) or "not declared"
        raise DataError(
            f"{path}: the unit of {kind} is {found}; give one, {kind} (UNIT) or --units {kind}=UNIT: "
            + ", ".join(UNITS[kind])
        )
    return said.pop()


def _numbers(path: Path, frame: pd.DataFrame, name: str, word: str) -> NDArray[np.float64]:
    """Return a column (n,), NaN where it is blank."""
    column = frame[name]
    if column.dtype.kind not in "fiu":
        numbers = pd.to_numeric(column.astype(str).where(column.notna()), errors="coerce")
        wrong = (numbers.isna() & column.notna()).to_numpy()
        if wrong.any():
            cell, line = str(column.iloc[wrong.argmax()])[:40], frame.index[wrong.argmax()]
            remedy = (
                f"write decimal points, {_REWRITE}" if re.fullmatch(r"[-+\d.,]+", cell) else "correct or remove the row"
            )
            raise DataError(
                f"{path}, {word} {line}: {name} is {cell!r}, not a number ({wrong.sum():,} such cells); {remedy}"
            )
        column = numbers
    return column.to_numpy(np.float64, na_value=np.nan)


def _specimens(path: Path, frame: pd.DataFrame, word: str) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the names of specimens (N,) and where their rows begin and end (N + 1,)."""
    named = frame["specimen"]
    begins = np.flatnonzero((named != named.shift()).to_numpy())
    names = named.iloc[begins]
    wrong = (names.isna() | names.duplicated()).to_numpy()
    if wrong.any():
        k = int(wrong.argmax())
        raise DataError(
            f"{path}, {word} {names.index[k]}: specimen {names.iloc[k]!r} is blank or begins again behind others; name every "
            "test in all its rows and keep these together, in pandas by sort_values('specimen', kind='stable')"
        )
    return tuple(names.astype(str)), np.append(begins, len(frame))


def _constant(
    path: Path, frame: pd.DataFrame, kind: str, names: Sequence[str], starts: NDArray[np.int64], word: str
) -> NDArray[np.float64]:
    """Return a target of each specimen (N,), which is the same in all its rows."""
    values = _numbers(path, frame, kind, word)
    wrong = values != np.repeat(values[starts[:-1]], np.diff(starts))  # and where it is NaN
    if wrong.any():
        k = int(wrong.argmax())
        who = f"specimen {names[int(np.searchsorted(starts, k, 'right')) - 1]!r}, {word} {frame.index[k]}"
        raise DataError(f"{path}, {who}: {kind} is {values[k]:g}; write the same number in all rows of a specimen")
    return values[starts[:-1]]


# ------------------------------------------------------------------------------------------------------- arrays, labels


def _begins(path: Path, magic: bytes) -> bool:
    try:
        with open_file(path) as stream:
            return stream.read(len(magic)) == magic
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); name a CSV, Parquet, .npy or .npz file") from None


def _of_pair(path: Path, given: Mapping[str, str], targets: Path | None) -> Curves:
    array = open_npy(path)
    if array.ndim != 3 or array.shape[1] != material.CHANNELS:
        raise DataError(
            f"{path}: has shape {array.shape}, needed is (N, 3, L): strain, stress, flag; arrange it so, for instance by "
            "transpose(0, 2, 1), and save it again"
        )
    units = {kind: _settled(path, kind, (), given) for kind in UNITS}
    factors = [UNITS[kind][unit] for kind, unit in units.items()]

    def read(low: int, high: int) -> Points:
        strain, stress, flag = np.moveaxis(array[low:high].astype(np.float64), 1, 0)
        data = flag == 1
        wrong = ~data & ((flag != 0) | (strain != 0) | (stress != 0))
        wrong[:, 1:] |= data[:, :-1] & ~data[:, 1:]
        if wrong.any():
            row, at = np.argwhere(wrong)[0]
            raise DataError(
                f"{path}, curve {low + row}, position {at}: flag {flag[row, at]:g} with strain {strain[row, at]:g} and "
                f"stress {stress[row, at]:g}; the flag is 1 on data, 0 on padding, which is zero and at the left; correct it"
            )
        starts = np.concatenate([[0], np.cumsum(data.sum(axis=1))])
        return Points(strain[data] * factors[0], stress[data] * factors[1], np.nonzero(data)[1], starts)

    return Curves(
        path=path, layout="npy", size=len(array), names=None, units=units, files=(path, *([targets] if targets else [])),
        targets=None if targets is None else _pair_targets(targets, len(array)), unused=(), word="position", read=read,
    )  # fmt: skip


def _pair_targets(path: Path, size: int) -> NDArray[np.float64]:
    array = open_npy(path)
    if array.shape != (size, material.TARGETS):
        raise DataError(
            f"{path}: has shape {array.shape}, needed is ({size}, 2): G0 in MPa and a of every curve, in order"
        )
    return array.astype(np.float64)


def _labels(path: Path, names: Sequence[str]) -> pd.DataFrame:
    """Return G0 in MPa and a of specimens, in the order of `names`, by a table or a .npy file."""
    if _begins(path, b"\x93NUMPY"):
        return pd.DataFrame(_pair_targets(path, len(names)), columns=["G0", "a"])
    frame, word = _table(path)
    found = _columns(path, list(frame), {})
    if missing := sorted({"specimen", "G0", "a"} - found.keys()):
        raise DataError(f"{path}: no column {', '.join(missing)}; columns found: {_listed(list(frame))}; add it")
    table = pd.DataFrame({kind: frame[found[kind]] for kind in ("specimen", "G0", "a")})
    ids, _ = _specimens(path, table, word)
    if apart := sorted(set(ids) ^ set(names)):
        raise DataError(
            f"{path}: {len(apart)} specimens have curves or targets only: {_listed(apart)}; add what is missing"
        )
    factor = UNITS["stress"][_unit(f"{path}", "stress", _split(found["G0"])[1] or "MPa")]
    values = {"G0": factor * _numbers(path, table, "G0", word), "a": _numbers(path, table, "a", word)}
    return pd.DataFrame(values, index=pd.Index(ids)).loc[list(names)]
