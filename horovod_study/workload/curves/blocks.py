"""Large data sets in numpy files, mapped and read block by block: a million curves are never in memory at once.

.npy pair     X (N, 3, 201): strain, stress, flag; Y (N, 2): G0 in MPa and a
split .npz    X_train, X_test, Y_train, Y_test as the pair has them; whatever else it holds is not opened
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod_study.errors import DataError
from horovod_study.workload import material
from horovod_study.workload.curves import checks, units
from horovod_study.workload.curves.arrays import check_flags
from horovod_study.workload.curves.channels import fill_row
from horovod_study.workload.curves.numpy_files import Archive, as_targets, is_npy, open_npy, read_targets
from horovod_study.workload.curves.values import Curve, OnProgress, ReadOptions

PAIRS = (
    ("prepared_data.train", "parameter.train"),
    ("X.npy", "Y.npy"),
    ("x.npy", "y.npy"),
    ("curves.npy", "targets.npy"),
)
"""Names of curves and targets in a folder."""

SPLIT = ("X_train", "X_test", "Y_train", "Y_test")
BLOCK_CURVES = 2000
"""Curves per block, 5 MB: large enough for the disk, small enough for the processor's cache."""

_SLOPE_POINTS = 40  # a block's slopes are judged from so many points; curves that need more are looked at singly


def is_split(path: Path) -> bool:
    """Return whether a .npz file holds a data set that is split already."""
    return set(SPLIT[:2]) <= set(Archive(path).names)


@dataclass(frozen=True, kw_only=True, slots=True)
class CurveBlocks:
    """Curves (N, 3, 201) that are read block by block, and their targets."""

    path: Path
    layout: str
    parts: tuple[NDArray[Any], ...]  # one array; or training and test curves
    interleaved: bool  # every fourth curve is the next test curve
    targets: NDArray[np.float64] | None  # (N, P) as they are in the file
    files: tuple[Path, ...]
    units: dict[str, str]
    notes: tuple[str, ...] = ()
    ids: None = None
    target_bounds: None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was left out; curves are not checked yet."""
        return self.notes

    @property
    def counts(self) -> dict[str, int]:
        """What was opened."""
        return {"files": len(self.files)}

    @property
    def size(self) -> int:
        """Number of curves N."""
        return sum(len(part) for part in self.parts)

    def read(self, low: int, high: int) -> NDArray[np.float32]:
        """Return the curves low..high-1 as they are in the file, float32 (high - low, 3, 201)."""
        return _take(self.parts, low, high, self.interleaved).astype(np.float32)

    def checked(
        self,
        options: ReadOptions,
        tally: checks.Tally,
        on_progress: OnProgress | None,
        said: str,
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield (number of the first curve, float32 (B, 3, 201) as ratio and MPa), checked and repaired as asked."""
        for low in range(0, self.size, BLOCK_CURVES):
            high = min(low + BLOCK_CURVES, self.size)
            block = self.read(low, high)
            check_block(str(self.path), low, block, options, self.units, tally)
            yield low, block
            if on_progress:
                on_progress(said, high, self.size)

    def converted(self) -> Iterator[NDArray[np.float32]]:
        """Yield the blocks as ratio and MPa without a check, for curves that were checked and needed no repair."""
        for low in range(0, self.size, BLOCK_CURVES):
            block = self.read(low, min(low + BLOCK_CURVES, self.size))
            _to_units(block, self.units)
            yield block


def _take(parts: tuple[NDArray[Any], ...], low: int, high: int, interleaved: bool) -> NDArray[Any]:
    if len(parts) == 1:
        return np.asarray(parts[0][low:high])
    first, second = parts
    if not interleaved:
        split = len(first)
        return np.concatenate([first[low : min(high, split)], second[max(low - split, 0) : max(high - split, 0)]])
    number = np.arange(low, high)
    is_test = number % 4 == 3
    out = np.empty((high - low, *first.shape[1:]), first.dtype)
    out[is_test] = second[low // 4 : high // 4]
    out[~is_test] = first[low - low // 4 : high - high // 4]
    return out


def open_pair(path: Path, options: ReadOptions) -> CurveBlocks:
    """Open a .npy pair: a folder that holds both, or the file of the curves (targets beside it, or by --targets)."""
    targets = options.targets
    if path.is_dir():
        found = next((pair for pair in PAIRS if (path / pair[0]).exists()), None)
        if found is None:
            names = " or ".join(f"{curves} with {labels}" for curves, labels in PAIRS[:2])
            raise DataError(f"{path}: holds no pair of .npy files; {names} was expected, or name the file")
        curves_file = path / found[0]
        targets = targets or (path / found[1] if (path / found[1]).exists() else None)
    else:
        curves_file = path
        beside = dict(PAIRS).get(path.name)
        if targets is None and beside and path.with_name(beside).exists():
            targets = path.with_name(beside)
    curves = open_npy(curves_file)
    _shape(str(curves_file), curves.shape)
    if targets is not None and not targets.exists():
        raise DataError(f"--targets {targets}: no such file; name a .npy file (N, 2) with G0 in MPa and a")
    if targets is not None and not is_npy(targets):
        raise DataError(f"--targets {targets}: is not a .npy file; curves without names need targets (N, 2) in order")
    declared = options.units(str(curves_file))
    return CurveBlocks(
        path=curves_file,
        layout="npy",
        parts=(curves,),
        interleaved=False,
        targets=None if targets is None else read_targets(targets, len(curves)),
        files=(curves_file, *([targets] if targets else [])),
        units=declared,
    )


def open_split(path: Path, options: ReadOptions) -> CurveBlocks:
    """Open a .npz with X_train, X_test, Y_train, Y_test; where the sizes fit, its test curves stay test curves."""
    archive = Archive(path)
    missing = [name for name in SPLIT[2:] if name not in archive]
    if len(missing) == 1:
        raise DataError(f"{path}: no array {missing[0]!r}; arrays found: {', '.join(archive.names)}; export it again")
    train, test = (archive.open(name) for name in SPLIT[:2])
    for name, array in zip(SPLIT, (train, test), strict=False):
        _shape(archive.where(name), array.shape)
    total = len(train) + len(test)
    interleaved = len(test) == total // 4
    targets = None
    if not missing:
        pair = [
            as_targets(archive.open(name), archive.where(name), len(curves))
            for name, curves in zip(SPLIT[2:], (train, test), strict=True)
        ]
        targets = _take(tuple(pair), 0, total, interleaved)
    notes = [] if interleaved else [f"{len(test):,} of {total:,} are test curves, not a quarter: split again"]
    others = [name for name in archive.names if name not in SPLIT]
    if others:
        notes.append(f"arrays not opened: {', '.join(others)}")
    return CurveBlocks(
        path=path,
        layout="npz",
        parts=(train, test),
        interleaved=interleaved,
        targets=targets,
        files=(path,),
        units=options.units(str(path)),
        notes=tuple(notes),
    )


def _shape(where: str, shape: tuple[int, ...]) -> None:
    """Case 18."""
    channels, points = material.CHANNELS, material.POINTS
    wanted = f"(N, {channels}, {points}): strain, stress, flag"
    if len(shape) == 3 and shape[1:] == (channels, points):
        return
    if len(shape) == 3 and shape[1:] == (points, channels):
        raise DataError(f"{where}: has shape {shape}, needed is {wanted}; transpose (0, 2, 1) and save it again")
    if len(shape) == 3 and shape[1] == channels:
        raise DataError(
            f"{where}: has {shape[2]} points per curve (shape {shape}), needed is {wanted}; save strain, stress and "
            "flag as a .npz, which may have any number of points"
        )
    raise DataError(f"{where}: has shape {shape}, needed is {wanted}; arrange it so and save it again")


def _to_units(block: NDArray[np.float32], declared: dict[str, str]) -> None:
    """Turn strain and stress of (B, 3, 201) into ratio and MPa in place."""
    for channel, kind in enumerate(("strain", "stress")):
        factor = units.factor(kind, declared[kind])
        if factor != 1.0:
            block[:, channel] *= np.float32(factor)


def check_block(
    where: str,
    first: int,
    block: NDArray[np.float32],
    options: ReadOptions,
    declared: dict[str, str],
    tally: checks.Tally,
) -> None:
    """Check (B, 3, 201) in place: to ratio and MPa, flags, then `checks.checked` for every curve that may need it."""
    strain, stress, flag = block[:, 0], block[:, 1], block[:, 2]
    numbers = check_flags(where, first, strain, stress, flag)
    _to_units(block, declared)
    looked = np.flatnonzero(_suspects(block, numbers))
    tally.checked += len(block) - len(looked)
    for row in looked:
        begin = material.POINTS - int(numbers[row])
        curve = Curve(
            name=str(first + row),
            file=where,
            strain=strain[row, begin:].astype(np.float64),
            stress=stress[row, begin:].astype(np.float64),
            rows=np.arange(begin, material.POINTS),
            row_word="position",
            kind="curve",
        )
        good = checks.checked(curve, options, declared, tally)
        block[row] = 0.0
        fill_row(block[row], good.strain, good.stress)


def _suspects(block: NDArray[np.float32], numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which curves (B,) `checks.checked` might refuse, repair or note; the others it would return unchanged."""
    strain, stress = block[:, 0], block[:, 1]
    points = block.shape[2]
    begin = points - numbers
    rows = np.arange(len(block))
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.isfinite(block[:, :2].sum(axis=2)).all(axis=1)
        inside = np.arange(1, points) > begin[:, None]
        rising = ((np.diff(strain, axis=1) > 0) | ~inside).all(axis=1)
        last, start, start_stress = strain[:, -1], strain[rows, begin], stress[rows, begin]
        span = last - start
        peak_at = stress.argmax(axis=1)
        peak = stress[rows, peak_at]
        low = stress < (1.0 - checks.TAIL_OF_PEAK + 0.001) * peak[:, None]
        last_low = points - 1 - low[:, ::-1].argmax(axis=1)
        tail = low.any(axis=1) & (last_low > peak_at)
        calm = (
            finite
            & rising
            & (numbers >= checks.MIN_POINTS)
            & (span > 1.001 * checks.STRAIN_RANGE[0])
            & (span < 0.999 * checks.STRAIN_RANGE[1])
            & (peak > 0)
            & (peak - start_stress > 1e-3 * peak)
            & (stress.min(axis=1) > -peak)
            & (np.abs(start_stress) < 0.999 * checks.START_OF_PEAK * peak)
            & (np.abs(start) < 0.999 * checks.START_OF_PEAK * span)
            & ~tail
        )
        # The slope of the first tenth of strain is certainly plausible, judged from few points.
        at = np.minimum(begin[:, None] + np.arange(_SLOPE_POINTS), points - 1)
        x = np.take_along_axis(strain, at, axis=1) - start[:, None]
        y = np.take_along_axis(stress, at, axis=1)
        early = x <= 0.1 * span[:, None]
        early[:, :5] = True  # as checks.py, which takes five at least
        n = early.sum(axis=1)
        x -= ((x * early).sum(axis=1) / n)[:, None]
        y -= ((y * early).sum(axis=1) / n)[:, None]
        x *= early
        slope = (x * y).sum(axis=1) / (x * x).sum(axis=1)
        calm &= (n < _SLOPE_POINTS) & (slope > 1.01 * checks.MODULUS_MPA[0]) & (slope < 0.99 * checks.MODULUS_MPA[1])
    return np.asarray(~calm)
