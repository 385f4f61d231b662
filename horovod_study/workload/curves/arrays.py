"""Curves in a .npz file, padded or ragged.

strain, stress   (N, L) with length (N,), data at the left, or flag (N, L), data at the right; or whole rows
strain, stress   flat, with offsets (N + 1)
optional         targets (N, 2): G0 in MPa and a; ids (N,); target_bounds (2, 2)
"""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod_study.errors import DataError
from horovod_study.workload import material, room
from horovod_study.workload.curves.numpy_files import Archive, as_targets
from horovod_study.workload.curves.tables import RawCurves, listed_ids
from horovod_study.workload.curves.values import ReadOptions, curve_of_arrays


def read_npz(path: Path, options: ReadOptions) -> RawCurves:
    """Read a .npz of curves."""
    archive = Archive(path)
    for name in ("strain", "stress"):
        if name not in archive:
            raise DataError(
                f"{path}: no array {name!r}; arrays found: {', '.join(archive.names)}; needed are strain and stress "
                "(N, L) with length or flag, or flat with offsets"
            )
    declared = options.units(str(path))
    _require_room(archive)
    strain, stress = archive.open("strain"), archive.open("stress")
    if "offsets" in archive:
        parts = _ragged(archive, len(strain))
    else:
        parts = _padded(archive, np.asarray(strain), np.asarray(stress))
    count = len(parts)
    names = _ids(archive, count)
    flat_strain, flat_stress = np.asarray(strain, np.float64).ravel(), np.asarray(stress, np.float64).ravel()
    curves = tuple(
        curve_of_arrays(path, k, names, flat_strain[low:high], flat_stress[low:high])
        for k, (low, high) in enumerate(parts)
    )
    targets = as_targets(archive.open("targets"), archive.where("targets"), count) if "targets" in archive else None
    bounds = None
    if "target_bounds" in archive:
        bounds = np.asarray(archive.open("target_bounds"), np.float64)
        if bounds.shape != (material.TARGETS, 2):
            raise DataError(
                f"{archive.where('target_bounds')}: has shape {bounds.shape}, needed is (2, 2): low, high of G0 and a"
            )
    used = {"strain", "stress", "offsets", "length", "flag", "targets", "ids", "target_bounds"}
    unused = [name for name in archive.names if name not in used]
    return RawCurves(
        curves=curves,
        layout="npz",
        units=declared,
        files=(path,),
        targets=targets,
        target_bounds=bounds,
        counts={"files": 1},
        notes=(f"arrays not used: {', '.join(unused)}",) if unused else (),
    )


def _require_room(archive: Archive) -> None:
    """Refuse, by the heads of its arrays alone, a file whose shapes do not fit or that finds no room in memory."""
    path, where = archive.path, archive.where("strain")
    strain, stress = (archive.header(name, numbers=True) for name in ("strain", "stress"))
    if strain.shape != stress.shape:
        raise DataError(
            f"{path}: strain has shape {strain.shape}, stress {stress.shape}; every point needs both, export them again"
        )
    if "offsets" in archive and len(strain.shape) != 1:
        raise DataError(f"{where}: has shape {strain.shape}; with offsets the arrays are flat, of one dimension")
    if "offsets" not in archive and len(strain.shape) != 2:
        raise DataError(f"{where}: has shape {strain.shape}, needed is (N, L); flat arrays need offsets (N + 1)")
    if 0 in strain.shape:
        raise DataError(f"{where}: is an empty array {strain.shape}; curves were expected, export them again")
    needed = strain.nbytes + stress.nbytes + 2 * 8 * math.prod(strain.shape)
    room.need_memory(path, needed, "reading it", "import a .npy pair instead, which goes in blocks")


def _ragged(archive: Archive, total: int) -> list[tuple[int, int]]:
    where, offsets = archive.where("offsets"), np.asarray(archive.open("offsets"))
    if offsets.ndim != 1 or len(offsets) < 2 or offsets.dtype.kind not in "iu":
        raise DataError(f"{where}: has {offsets.dtype} {offsets.shape}; needed are N + 1 whole numbers, 0 first")
    if offsets[0] != 0 or offsets[-1] != total or (np.diff(offsets.astype(np.int64)) < 0).any():
        raise DataError(
            f"{where}: runs from {offsets[0]} to {offsets[-1]} for {total} points; it must rise from 0 to their number"
        )
    return [(int(low), int(high)) for low, high in itertools.pairwise(offsets)]


def _padded(archive: Archive, strain: NDArray[Any], stress: NDArray[Any]) -> list[tuple[int, int]]:
    """Return where the data of each row of (N, L) arrays begin and end in the flat arrays."""
    count, points = strain.shape
    if "length" in archive and "flag" in archive:
        raise DataError(f"{archive.path}: has length and flag; keep one of them")
    if "length" in archive:
        where, lengths = archive.where("length"), np.asarray(archive.open("length"))
        if lengths.shape != (count,) or lengths.dtype.kind not in "iu":
            raise DataError(f"{where}: has {lengths.dtype} {lengths.shape}; needed are {count} whole numbers")
        wrong = (lengths < 0) | (lengths > points)
        if wrong.any():
            k = int(wrong.argmax())
            raise DataError(f"{where}: curve {k} has length {lengths[k]}, its row has {points} points; correct it")
        empty = lengths == 0
        if empty.any():
            raise DataError(f"{where}: curve {int(empty.argmax())} has length 0, it is all padding; remove it")
        return [(k * points, k * points + int(length)) for k, length in enumerate(lengths)]
    if "flag" in archive:
        where, flag = archive.where("flag"), np.asarray(archive.open("flag"))
        if flag.shape != strain.shape:
            raise DataError(f"{where}: has shape {flag.shape}, strain has {strain.shape}; they must agree")
        numbers = check_flags(f"{archive.path}", 0, strain, stress, flag)
        return [((k + 1) * points - int(n), (k + 1) * points) for k, n in enumerate(numbers)]
    return [(k * points, (k + 1) * points) for k in range(count)]


def _ids(archive: Archive, count: int) -> list[str] | None:
    if "ids" not in archive:
        return None
    array = archive.open("ids", numbers=False)
    try:
        names = [each.decode() if isinstance(each, bytes) else str(each) for each in array.ravel().tolist()]
    except UnicodeDecodeError:
        raise DataError(f"{archive.where('ids')}: holds bytes that are no UTF-8; save the ids as texts") from None
    if len(names) != count:
        raise DataError(f"{archive.where('ids')}: has {len(names)} ids for {count} curves; give every curve one")
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < count else []
    if twice:
        raise DataError(
            f"{archive.where('ids')}: {len(twice)} ids appear more than once ({listed_ids(twice)}); "
            "give every curve an id of its own"
        )
    return names


def check_flags(
    where: str, first: int, strain: NDArray[Any], stress: NDArray[Any], flag: NDArray[Any]
) -> NDArray[np.int64]:
    """Return the number of real points of each row, (N,); refuse flags that are no padding at the left (cases 7, 8)."""
    points = flag.shape[1]
    with np.errstate(invalid="ignore"):
        data = flag == 1
        numbers: NDArray[np.int64] = data.sum(axis=1)
        proper = np.arange(points) >= points - numbers[:, None]
        wrong = (flag != proper).any(axis=1)
    padded = np.flatnonzero((numbers < points) & ~wrong)
    if len(padded):
        under = ~proper[padded] & ((strain[padded] != 0) | (stress[padded] != 0))
        if under.any():
            k = int(under.any(axis=1).argmax())
            j, row = int(under[k].argmax()), int(padded[k])
            raise DataError(
                f"{where}, curve {first + row}, position {j}: strain {strain[row, j]:g} and stress {stress[row, j]:g} "
                "under flag 0; padding is zero, correct the flag or the values"
            )
    if wrong.any():
        row = int(wrong.argmax())
        odd = (flag[row] != 0) & (flag[row] != 1)
        if odd.any():
            j = int(odd.argmax())
            raise DataError(
                f"{where}, curve {first + row}, position {j}: flag is {flag[row, j]:g}, allowed are 1 on data and 0 on "
                "padding; correct it"
            )
        j = int((np.diff(flag[row]) < 0).argmax()) + 1
        raise DataError(
            f"{where}, curve {first + row}, position {j}: flag 0 behind flag 1; padding is at the left only, move "
            "it (in a .npz, length (N,) describes data at the left)"
        )
    if (numbers == 0).any():
        raise DataError(
            f"{where}, curve {first + int((numbers == 0).argmax())}: is all padding (flag 0 throughout); remove it "
            "from curves and targets"
        )
    return numbers
