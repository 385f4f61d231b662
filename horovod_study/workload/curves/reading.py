"""Finds the layout of curve files and reads them."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from horovod_study.documents import open_file
from horovod_study.errors import DataError
from horovod_study.workload.curves import arrays, blocks, checks, numpy_files, parquet, tables
from horovod_study.workload.curves.values import CurveSet, OnProgress, ReadOptions


def open_curves(path: Path, options: ReadOptions, on_progress: OnProgress | None) -> CurveSet | blocks.CurveBlocks:
    """Return the curves of `path` in any layout: pairs of .npy files and split .npz files in blocks, others checked."""
    layout = _find_layout(path, options)
    if layout == "npy":
        return blocks.open_pair(path, options)
    if layout == "npz" and blocks.is_split(path):
        return blocks.open_split(path, options)
    return read_curves(path, options, on_progress=on_progress)


def read_curves(path: Path, options: ReadOptions, *, on_progress: OnProgress | None = None) -> CurveSet:
    """Read all curves of `path`, check them, and return them as ratio and MPa.

    In any layout but those that are read in blocks (blocks.py). Raises DataError for the first thing that is wrong and
    was not asked to be repaired.
    """
    layout = _find_layout(path, options)
    if layout == "npz":
        raw = arrays.read_npz(path, options)
    elif layout == "parquet":
        raw = parquet.read_parquet(path, options)
    elif layout == "folder":
        raw = tables.read_folder(path, options, on_progress)
    else:
        raw = tables.read_text(path, options, on_progress)
    return _checked(path, raw, options, on_progress)


def _find_layout(path: Path, options: ReadOptions) -> str:
    """Return the layout to read `path` in: folder, npz, npy, parquet, or text (long, wide, machine)."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; name a curve file, or a folder of them")
    wanted = options.layout
    if path.is_dir():
        if wanted == "npy" or (wanted == "auto" and any((path / curves).exists() for curves, _ in blocks.PAIRS)):
            return "npy"
        if wanted in ("auto", "folder"):
            return "folder"
        raise DataError(f"{path}: is a folder, --layout {wanted} reads a file; name the file, or use --layout folder")
    if wanted == "folder":
        raise DataError(f"{path}: is a file, --layout folder reads a folder with one file per test")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: is empty (0 bytes); a file with curves was expected, export it again")
    if wanted != "auto":
        return wanted
    with open_file(path) as stream:
        start = stream.read(6)
    if start == b"\x93NUMPY" or path.suffix.lower() == ".npy":
        return "npy"
    if path.suffix.lower() in (".parquet", ".pq") or start[:4] == b"PAR1":
        return "parquet"
    if path.suffix.lower() == ".npz":
        return "npz"
    if start[:2] == b"PK":
        if path.suffix.lower() in (".xlsx", ".xlsm", ".ods"):
            raise DataError(f"{path}: is a spreadsheet; save its table as CSV")
        return "npz"
    return "text"


def _checked(path: Path, raw: tables.RawCurves, options: ReadOptions, on_progress: OnProgress | None) -> CurveSet:
    tally = checks.Tally()
    tally.counts.update({name: count for name, count in (raw.counts or {}).items() if count})
    declared = dict(raw.units)
    curves = []
    for k, curve in enumerate(raw.curves):
        curves.append(checks.checked(checks.in_units(curve, declared), options, declared, tally))
        if on_progress:
            on_progress("checking curves", k + 1, len(raw.curves))
    targets, files = raw.targets, raw.files
    if options.targets is not None:
        targets = _targets(path, [curve.name for curve in curves], raw, options)
        files = (*files, options.targets)
    return CurveSet(
        ids=tuple(curve.name for curve in curves),
        strain=tuple(curve.strain for curve in curves),
        stress=tuple(curve.stress for curve in curves),
        targets=targets,
        source=str(path),
        warnings=(*raw.notes, *tally.warnings()),
        notes=raw.notes,
        layout=raw.layout,
        units=declared,
        counts={"curves": len(curves), "points": sum(len(curve.strain) for curve in curves), **tally.counts},
        files=files,
        target_bounds=raw.target_bounds,
    )


def _targets(path: Path, names: list[str], raw: tables.RawCurves, options: ReadOptions) -> NDArray[np.float64]:
    """Return the targets of the second file in the order of the curves."""
    file = options.targets
    assert file is not None
    if raw.targets is not None:
        raise DataError(f"{path}: has targets, and so has --targets {file}; give them in one place")
    if not file.exists():
        raise DataError(f"--targets {file}: no such file; name a table with specimen, G0, a")
    if numpy_files.is_npy(file):
        return numpy_files.read_targets(file, len(names))
    ids, values = tables.read_targets(file, options)
    tables.check_ids(file, ids, names, targets_needed=True)
    assert values is not None
    row = {name: k for k, name in enumerate(ids)}
    return values[[row[name] for name in names]]
