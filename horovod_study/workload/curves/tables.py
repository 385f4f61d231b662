"""The layouts made of text files: long (specimen, strain, stress), folder, wide (pairs of columns), machine export."""

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from horovod_study.documents import read_bytes
from horovod_study.errors import DataError
from horovod_study.workload.curves import units
from horovod_study.workload.curves.text_table import Cells, TextLayout, ends, open_table, read_cells, same_column
from horovod_study.workload.curves.values import Curve, OnProgress, ReadOptions

_SUFFIXES = (".csv", ".tsv", ".txt", ".dat", ".asc")
INFO = "info.csv"
"""The table of a folder: test_id and, for training, G0 and a."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RawCurves:
    """Curves as they are in their files, not yet checked, in one unit per channel."""

    curves: tuple[Curve, ...]
    layout: str
    units: Mapping[str, str]  # strain and stress
    files: tuple[Path, ...]
    targets: NDArray[np.float64] | None = None  # (N, P)
    target_bounds: NDArray[np.float64] | None = None  # (P, 2)
    counts: Mapping[str, int] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Which column of a table holds what."""

    strain: int
    stress: int
    specimen: int | None
    time: int | None
    targets: tuple[int, int] | None
    ignored: tuple[str, ...]

    @property
    def numbers(self) -> list[int]:
        """Those that hold numbers."""
        return [self.strain, self.stress, *(self.targets or ()), *([] if self.time is None else [self.time])]


# ------------------------------------------------------------------------------------------------------ the columns


def find_columns(file: object, names: Sequence[str], options: ReadOptions, *, place: str = "") -> Columns:
    """Return the columns of a long table; raise DataError where one is missing or matched twice (case 2)."""
    plain = [units.split(name)[0] for name in names]
    strain = _channel(file, place, names, plain, "strain", options.strain_column)
    stress = _channel(file, place, names, plain, "stress", options.stress_column)
    if strain == stress:
        raise DataError(f"{file}{place}: {names[strain]!r} is named for strain and for stress; name two columns")
    taken = {strain, stress}
    specimen = _optional(file, place, names, plain, "specimen", taken)
    time = _optional(file, place, names, plain, "time", taken)
    g0, a = (_optional(file, place, names, plain, kind, taken) for kind in ("g0", "a"))
    targets = None if g0 is None or a is None else (g0, a)
    used = {strain, stress, specimen, time, *(targets or ())}
    ignored = tuple(name for k, name in enumerate(names) if k not in used and name)
    return Columns(strain=strain, stress=stress, specimen=specimen, time=time, targets=targets, ignored=ignored)


def _channel(
    file: object, place: str, names: Sequence[str], plain: Sequence[str], kind: str, wanted: str | None
) -> int:
    if wanted is not None:
        found = [k for k, name in enumerate(names) if name.strip().lower() == wanted.strip().lower()]
        found = found or [k for k, name in enumerate(names) if name and same_column(wanted, name)]
    else:
        found = [k for k, name in enumerate(plain) if name in units.NAMES[kind]]
    if len(found) == 1:
        return found[0]
    if not found and wanted is None and list(names) == [str(k + 1) for k in range(len(names))]:
        raise DataError(
            f"{file}: no line names the columns, of which there are {len(names)}; name them in a line above the "
            f"numbers, or give their places, as in --strain-column 1 --stress-column 2"
        )
    listed = _listed([name for name in names if name])
    if not found and wanted is not None:
        raise DataError(f"{file}{place}: no column {wanted!r}; columns found: {listed}; correct --{kind}-column")
    if not found:
        raise DataError(
            f"{file}{place}: no column of {kind}; columns found: {listed}; names accepted: {units.accepted(kind)}; "
            f"say which one it is with --{kind}-column"
        )
    raise DataError(
        f"{file}{place}: {len(found)} columns could be {kind}: {', '.join(repr(names[k]) for k in found)}; "
        f"say which one it is with --{kind}-column, or rename the others"
    )


def _optional(
    file: object, place: str, names: Sequence[str], plain: Sequence[str], kind: str, taken: set[int]
) -> int | None:
    found = [k for k, name in enumerate(plain) if name in units.NAMES[kind] and k not in taken]
    if len(found) > 1:
        raise DataError(
            f"{file}{place}: {len(found)} columns could be {kind}: {', '.join(repr(names[k]) for k in found)}; "
            "rename all but one of them"
        )
    return found[0] if found else None


def _listed(names: Sequence[str]) -> str:
    shown = [repr(name) for name in names[:8]]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")


def listed_ids(ids: Sequence[str]) -> str:
    """Return the first ids as text."""
    return ", ".join(repr(each) for each in ids[:3]) + (", ..." if len(ids) > 3 else "")


# ------------------------------------------------------------------------------------------------- long and machine


def read_text(path: Path, options: ReadOptions, on_progress: OnProgress | None) -> RawCurves:
    """Read one text file that is long, wide or a machine export."""
    table = open_table(path, options)
    wide = _pairs(table) if options.layout in ("auto", "wide") and not _is_long(table, options) else {}
    if options.layout == "auto" and wide.keys() & units.KINDS_OF_CURVE:
        wide = {}  # true_strain, engineering_strain: which of them is meant must be said
    if wide or options.layout == "wide":
        return _read_wide(table, wide, options, on_progress)
    return _read_long(table, options, on_progress)


def _is_long(table: TextLayout, options: ReadOptions) -> bool:
    if options.layout == "wide":
        return False
    if options.strain_column or options.stress_column:
        return True
    plain = {units.split(name)[0] for name in table.names}
    return bool(plain & units.NAMES["strain"]) and bool(plain & units.NAMES["stress"])


def _read_long(table: TextLayout, options: ReadOptions, on_progress: OnProgress | None) -> RawCurves:
    """Read a table with one row per point; without a column of specimens the file is one test."""
    path = table.path
    place = f" line {table.names_line}" if table.names_line else ""
    columns = find_columns(path, table.names, options, place=place)
    declared = _units(table, columns.strain, columns.stress, options)
    texts = [] if columns.specimen is None else [columns.specimen]
    cells = read_cells(table, columns.numbers, texts, on_progress=on_progress)
    curves, targets = cut_long(path, cells, columns)
    machine = options.layout == "machine" or (
        options.layout == "auto"
        and columns.specimen is None
        and (table.preamble_lines > 0 or table.unit_row is not None)
    )
    return RawCurves(
        curves=curves,
        layout="machine" if machine else "long",
        units=declared,
        files=(path,),
        targets=targets,
        counts=_counts(table, cells),
        notes=_notes(table, columns.ignored),
    )


def cut_long(
    path: Path, cells: Cells, columns: Columns, *, row_word: str = "line"
) -> tuple[tuple[Curve, ...], NDArray[np.float64] | None]:
    """Cut a table with one row per point into the curves of its specimens, with their targets (N, P)."""
    names, starts = _specimens(path, cells, columns.specimen, row_word)
    rows = [slice(low, high) for low, high in itertools.pairwise(starts)]
    curves = tuple(
        Curve(
            name=name,
            file=str(path),
            strain=cells.numbers[columns.strain][part],
            stress=cells.numbers[columns.stress][part],
            rows=cells.lines[part],
            row_word=row_word,
            time=None if columns.time is None else cells.numbers[columns.time][part],
        )
        for name, part in zip(names, rows, strict=True)
    )
    if columns.targets is None:
        return curves, None
    pair = [cells.numbers[k] for k in columns.targets]
    return curves, np.array([_constant(curve, pair, part) for curve, part in zip(curves, rows, strict=True)])


def _units(table: TextLayout, strain: int, stress: int, options: ReadOptions) -> dict[str, str]:
    where = f"{table.path}, columns {table.names[strain]!r} and {table.names[stress]!r}"
    return options.units(where, table.unit_of(strain), table.unit_of(stress))


def _counts(table: TextLayout, cells: Cells) -> dict[str, int]:
    return {
        "files": 1,
        "rows": len(cells.lines),
        "lines above the table": table.preamble_lines,
        "cells with thousands separators": cells.grouped,
    }


def _notes(table: TextLayout, ignored: Sequence[str]) -> tuple[str, ...]:
    notes = []
    if ignored:
        notes.append(f"columns not used: {', '.join(ignored)}")
    if table.encoding == "cp1252":
        notes.append("text read as Windows-1252, for it is not UTF-8")
    return tuple(notes)


def _specimens(path: Path, cells: Cells, column: int | None, row_word: str) -> tuple[list[str], list[int]]:
    """Return the names of the specimens and where their rows start and end."""
    if column is None:
        return [path.stem], [0, len(cells.lines)]
    words = cells.texts[column]
    changes = [0, *(k for k in range(1, len(words)) if words[k] != words[k - 1]), len(words)]
    names = [words[k] for k in changes[:-1]]
    seen: dict[str, int] = {}
    for k, name in enumerate(names):
        line = int(cells.lines[changes[k]])
        if not name:
            raise DataError(f"{path} {row_word} {line}: the specimen's name is blank; write it in every row")
        if name in seen:
            raise DataError(
                f"{path} {row_word} {line}: specimen {name!r} begins again, its rows from {row_word} {seen[name]} on "
                "were followed by others; give every test a name of its own and keep its rows together"
            )
        seen[name] = line
    return names, changes


def _constant(curve: Curve, pair: list[NDArray[np.float64]], rows: slice) -> tuple[float, float]:
    """Return G0 and a of one specimen, which must be the same in all its rows."""
    values = []
    for name, column in zip(("G0", "a"), pair, strict=True):
        given = column[rows]
        if not np.isfinite(given).all():
            k = int((~np.isfinite(given)).argmax())
            raise DataError(f"{curve.at(k)}: {name} is blank or not finite; write the target in every row")
        if (given != given[0]).any():
            k = int((given != given[0]).argmax())
            raise DataError(
                f"{curve.at(k)}: {name} is {given[k]:g}, {given[0]:g} in the rows before; a specimen has one {name}"
            )
        values.append(float(given[0]))
    return values[0], values[1]


# -------------------------------------------------------------------------------------------------------------- wide


def _pairs(table: TextLayout) -> dict[str, dict[str, list[int]]]:
    """Return {specimen: {strain: columns, stress: columns}} of a wide table."""
    found: dict[str, dict[str, list[int]]] = {}
    for k, name in enumerate(table.names):
        plain, _ = units.split(name)
        for kind in ("strain", "stress"):
            specimen = ends(plain, kind)
            if specimen:
                found.setdefault(specimen, {"strain": [], "stress": []})[kind].append(k)
                break
    return found if any(all(pair.values()) for pair in found.values()) else {}


def _read_wide(
    table: TextLayout, pairs: dict[str, dict[str, list[int]]], options: ReadOptions, on_progress: OnProgress | None
) -> RawCurves:
    path, place = table.path, f" line {table.names_line}"
    if not pairs:
        raise DataError(
            f"{path}{place}: no pairs of columns; columns found: {_listed(table.names)}; a wide table has s1_strain, "
            "s1_stress, s2_strain, ...; other tables are read with --layout long"
        )
    spelled: dict[str, str] = {}
    for specimen, pair in pairs.items():
        for kind, found in pair.items():
            if len(found) != 1:
                names = ", ".join(repr(table.names[k]) for k in found) or "none"
                raise DataError(
                    f"{path}{place}: specimen {specimen!r} has {len(found)} columns of {kind} ({names}); "
                    "every specimen has one of strain and one of stress, under names that differ"
                )
        spelling = re.escape(specimen).replace(r"\ ", r"[\s_]+")  # the specimen's name as the file spells it
        there = re.search(spelling, table.names[pair["strain"][0]], re.IGNORECASE)
        spelled[specimen] = there[0] if there else specimen
    declared: dict[str, str] = {}
    for pair in pairs.values():
        one = _units(table, pair["strain"][0], pair["stress"][0], options)
        if declared and one != declared:
            raise DataError(
                f"{path}{place}: {table.names[pair['strain'][0]]!r} is in {one['strain']}, {one['stress']}, other "
                f"specimens are in {declared['strain']}, {declared['stress']}; bring them to the same units"
            )
        declared = one
    used = [k for pair in pairs.values() for found in pair.values() for k in found]
    cells = read_cells(table, used, on_progress=on_progress)
    curves = []
    for specimen, pair in pairs.items():
        k, m = pair["strain"][0], pair["stress"][0]
        lengths = [int(np.flatnonzero(~cells.blank[column]).max(initial=-1)) + 1 for column in (k, m)]
        if lengths[0] != lengths[1]:
            raise DataError(
                f"{path}, specimen {spelled[specimen]!r}: {table.names[k]!r} has {lengths[0]} values, "
                f"{table.names[m]!r} has {lengths[1]}; every point needs both, remove or complete the last ones"
            )
        curves.append(
            Curve(
                name=spelled[specimen],
                file=str(path),
                strain=cells.numbers[k][: lengths[0]],
                stress=cells.numbers[m][: lengths[0]],
                rows=cells.lines[: lengths[0]],
            )
        )
    ignored = [name for k, name in enumerate(table.names) if k not in used and name]
    return RawCurves(
        curves=tuple(curves),
        layout="wide",
        units=declared,
        files=(path,),
        counts=_counts(table, cells),
        notes=_notes(table, ignored),
    )


# ------------------------------------------------------------------------------------------------------------ folder


def read_folder(folder: Path, options: ReadOptions, on_progress: OnProgress | None) -> RawCurves:
    """Read one text file per test; info.csv, if there is one, names the tests in order and may give G0 and a."""
    files = sorted(
        (path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES and path.name.lower() != INFO),
        key=lambda path: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name.lower())],
    )
    files = [path for path in files if options.targets is None or path.resolve() != options.targets.resolve()]
    if not files:
        raise DataError(
            f"{folder}: holds no curve file; one file per test was expected, ending in {', '.join(_SUFFIXES)}"
        )
    by_id: dict[str, Path] = {}
    for path in files:
        if path.stem in by_id:
            raise DataError(f"{path}: and {by_id[path.stem].name} are both test {path.stem!r}; rename one of them")
        by_id[path.stem] = path
    info = next((path for path in folder.iterdir() if path.name.lower() == INFO), None)
    ids, targets = list(by_id), None
    if info is not None:
        ids, targets = read_targets(info, options, required=False)
        check_ids(info, ids, list(by_id), targets_needed=True)
    raws: list[RawCurves] = []
    for k, name in enumerate(ids):
        path = by_id[name]
        raw = _read_long(open_table(path, options), options, None)
        if len(raw.curves) != 1:
            raise DataError(
                f"{path}: holds {len(raw.curves)} specimens ({listed_ids([c.name for c in raw.curves])}); a folder has "
                "one file per test, import this file alone"
            )
        if raws and raw.units != raws[0].units:
            raise DataError(
                f"{path}: is in {raw.units['strain']} and {raw.units['stress']}, {raws[0].files[0].name} in "
                f"{raws[0].units['strain']} and {raws[0].units['stress']}; bring all files to the same units"
            )
        raws.append(raw)
        if on_progress:
            on_progress(f"reading {folder.name}", k + 1, len(ids))
    in_files = [raw.targets is not None for raw in raws]
    if targets is None and any(in_files):
        if not all(in_files):
            raise DataError(f"{files[in_files.index(False)]}: has no columns G0 and a, other files have; add them")
        targets = np.concatenate([raw.targets for raw in raws if raw.targets is not None])
    counts: Counter[str] = Counter()
    for raw in raws:
        counts.update(raw.counts or {})
    notes = dict.fromkeys(note for raw in raws for note in raw.notes)
    return RawCurves(
        curves=tuple(replace(raw.curves[0], name=name) for name, raw in zip(ids, raws, strict=True)),
        layout="folder",
        units=raws[0].units,
        files=(*(by_id[name] for name in ids), *([info] if info else [])),
        targets=targets,
        counts=counts,
        notes=tuple(notes),
    )


# ----------------------------------------------------------------------------------------------------------- targets


def read_targets(
    path: Path, options: ReadOptions, *, required: bool = True
) -> tuple[list[str], NDArray[np.float64] | None]:
    """Read a table with a column of specimens and the targets G0 in MPa and a; (ids, targets (N, P)).

    Where the targets are not `required`, a table of ids alone gives None.
    """
    plain_options = ReadOptions(decimal=options.decimal, delimiter=options.delimiter)
    if required or _names_targets(path):
        table = open_table(path, plain_options, required=("specimen", "g0", "a"))
    else:
        return _read_ids(path), None
    plain = [units.split(name)[0] for name in table.names]
    place = f" line {table.names_line}" if table.names_line else ""
    found = [_optional(path, place, table.names, plain, kind, set()) for kind in ("specimen", "g0", "a")]
    for what, column in zip(("specimen (or test_id)", "G0", "a"), found, strict=True):
        if column is None:
            raise DataError(
                f"{path}{place}: no column {what}; columns found: {_listed(table.names)}; a table of targets has "
                "specimen, G0, a"
            )
    specimen, g0, a = (int(column) for column in found if column is not None)
    unit = table.unit_of(g0)
    factor = 1.0 if unit is None else units.factor("stress", units.required(f"{path}: the unit of G0", unit, "stress"))
    cells = read_cells(table, [g0, a], [specimen])
    values = np.stack([cells.numbers[g0] * factor, cells.numbers[a]], axis=1)
    if not np.isfinite(values).all():
        k, column = (int(each[0]) for each in np.nonzero(~np.isfinite(values)))
        raise DataError(
            f"{path} line {cells.lines[k]}: {('G0', 'a')[column]} of {cells.texts[specimen][k]!r} is blank or not "
            "finite; complete it, or remove the specimen from both tables"
        )
    return cells.texts[specimen], values


def _names_targets(path: Path) -> bool:
    first = next(iter(_lines(path)), "")
    names = {units.split(cell.strip(' "'))[0] for cell in re.split(r"[,;\t|]", first)}
    return bool(names & (units.NAMES["g0"] | units.NAMES["a"]))


def _lines(path: Path) -> list[str]:
    """Return the lines of a text file that are not blank; DataError where it cannot be read."""
    text = read_bytes(path, error=DataError, again="name an existing file").decode("utf-8-sig", errors="replace")
    return [line for line in text.splitlines() if line.strip()]


def _read_ids(path: Path) -> list[str]:
    """Return the first column with a specimen's name of a table without numbers."""
    rows = [[cell.strip(' "') for cell in re.split(r"[,;\t|]", line)] for line in _lines(path)]
    column = next(
        (k for k, name in enumerate(rows[0] if rows else []) if units.plain(name) in units.NAMES["specimen"]), None
    )
    if column is None:
        raise DataError(f"{path}: no column test_id; the table of a folder has test_id and, for training, G0 and a")
    return [row[column] for row in rows[1:] if len(row) > column]


def check_ids(path: Path, ids: Sequence[str], known: Sequence[str], *, targets_needed: bool) -> None:
    """Refuse ids that repeat, ids without a curve, and curves without an id (case 19)."""
    twice = [name for name, count in Counter(ids).items() if count > 1]
    if twice:
        raise DataError(f"{path}: {len(twice)} ids appear more than once ({listed_ids(twice)}); keep one row of each")
    with_curve, with_row = set(known), set(ids)
    unknown = [name for name in ids if name not in with_curve]
    if unknown:
        raise DataError(
            f"{path}: {len(unknown)} of {len(ids)} ids have no curve ({listed_ids(unknown)}); the {len(known)} curves "
            f"are {listed_ids(list(known))}; correct the ids, or remove their rows"
        )
    missing = [name for name in known if name not in with_row]
    if missing and targets_needed:
        raise DataError(
            f"{path}: {len(missing)} of {len(known)} curves are not in the table ({listed_ids(missing)}); add them, or "
            "remove the curves"
        )
