"""A data set for training from somebody's own curves, with everything that was done to them written down.

Files are read and checked as `read_curves` does; large numpy files go through in blocks, once to be checked and once
to be written. Every import fits the law to its curves by least squares, which shows wrong units, wrong columns and
curves the law does not describe. Letters: N curves, B curves of a block, L = 201 points, P = 2 targets.
"""

import hashlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import horovod_study
from horovod_study.documents import open_file
from horovod_study.errors import DataError
from horovod_study.workload import dataset, floor, material, room
from horovod_study.workload.curves import blocks, checks, reading
from horovod_study.workload.curves.channels import to_channels
from horovod_study.workload.curves.values import CurveSet, OnProgress, ReadOptions
from horovod_study.workload.least_squares import MISFIT_OF_PEAK, fit_law

_LABELS = ("lsq",)
SELF_CHECKED = 20_000
"""Curves that are fitted at most; of more curves an even sample."""

_NAMES = ("G0", "a")


class Fits(NamedTuple):
    """The law fitted to some or all curves of an import."""

    rows: NDArray[np.int64]  # (n,) numbers of the curves
    g0_mpa: NDArray[np.float64]  # (n,)
    a: NDArray[np.float64]  # (n,)
    rms_mpa: NDArray[np.float64]  # (n,)
    peak_mpa: NDArray[np.float64]  # (n,)
    variance: NDArray[np.float64]  # (n, P) of the estimates of G0 in MPa and a, by the residual


@dataclass(frozen=True, kw_only=True, slots=True)
class _Labels:
    """The targets of an import."""

    targets: NDArray[np.float64]  # (N, P): G0 in MPa and a
    bounds: NDArray[np.float64]  # (P, 2)
    origin: str
    bounds_from: str

    def normalised(self) -> NDArray[np.float32]:
        """Return the targets with 0 at the lower and 1 at the upper bounds, (N, P)."""
        span = self.bounds[:, 1] - self.bounds[:, 0]
        return ((self.targets - self.bounds[:, 0]) / span).astype(np.float32)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What is imported: all of it, checked, or what is read in blocks."""

    path: Path
    curves: CurveSet | blocks.CurveBlocks
    whole: NDArray[np.float32] | None  # (N, 3, L); None in blocks

    def name(self, row: int) -> str:
        """Return how a curve is called in messages."""
        return f"curve {row}" if self.curves.ids is None else f"specimen {self.curves.ids[row]!r}"


def import_curves(
    path: Path,
    out: Path,
    options: ReadOptions,
    *,
    label: str | None = None,
    target_bounds: NDArray[np.float64] | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Import the curves of `path` as the data set directory `out`; return its provenance, which its side-car keeps.

    `label` "lsq" takes G0 and a from the least-squares fit where the files give none. `target_bounds` (P, 2) are the
    physical values of the targets' 0 and 1, else the bounds in the file, else the training set's minimum and maximum.
    Raises DataError for whatever is wrong with the files; nothing is written then.
    """
    # Long because the order is the point: nothing is written before everything is checked.
    if label is not None and label not in _LABELS:
        raise DataError(f"--label {label!r} is not known; allowed: {' '.join(_LABELS)}")
    if out.exists():
        raise DataError(f"{out}: exists already; choose another --out, or remove it first")
    bounds = None if target_bounds is None else _proper_bounds(target_bounds)
    source = _open(path, options, on_progress)
    curves = source.curves
    _require_labels(path, curves, label)
    room.need_disk(out, curves.size * dataset.BYTES_PER_CURVE, f"a data set of {curves.size:,} curves")
    labels = None if curves.targets is None else _labels(source, curves.targets, "given", bounds)
    tally, ended = checks.Tally(), Event()
    with ThreadPoolExecutor(1) as thread:  # hashing large files runs beside the checks and shares their reading
        try:
            hashes = [thread.submit(_hashed, file, ended) for file in curves.files]
            fits = _check(source, options, label, tally, on_progress)
            if labels is None:
                labels = _labels(source, np.stack([fits.g0_mpa, fits.a], axis=1), "least squares", bounds)
            warnings = [*curves.warnings, *tally.warnings(), *_doubts(source, fits, labels)]
            doubts = [warning for warning in warnings if warning not in curves.notes]
            if options.strict and doubts:
                raise DataError(f"{path}: {doubts[0]} (an error with --strict, the first of {len(doubts)})")
            files = [hashed.result() for hashed in hashes]
        finally:
            ended.set()
    provenance = {
        "made_by": f"horovod_study {horovod_study.__version__}",
        "source": str(path),
        "layout": curves.layout,
        "files": files,
        "units": curves.units,
        "options": {**options.to_dict(), **({"label": label} if label else {})},
        "targets": {"from": labels.origin, "bounds": labels.bounds.tolist(), "bounds_from": labels.bounds_from},
        "counts": {"curves": curves.size, **curves.counts, **tally.counts},
        "warnings": warnings,
        "self_check": {
            "curves": len(fits.rows),
            "of": curves.size,
            "median_g0_mpa": float(np.median(fits.g0_mpa)),
            "median_a": float(np.median(fits.a)),
            "median_rms_mpa": float(np.median(fits.rms_mpa)),
        },
        "ids": list(curves.ids) if curves.ids and curves.size <= 10_000 else None,
    }
    dataset.write_imported(
        out,
        _for_writing(source, options, tally),
        labels.normalised(),
        size=curves.size,
        target_bounds=labels.bounds,
        provenance=provenance,
        floor=_floor(fits, labels.bounds) if label is None else None,
        on_progress=None if on_progress is None else lambda done, total: on_progress("writing", done, total),
    )
    return provenance


def lines(provenance: dict[str, Any]) -> list[str]:
    """Return what an import did, for people."""
    counts, check, targets = provenance["counts"], provenance["self_check"], provenance["targets"]
    (g0_low, g0_high), (a_low, a_high) = targets["bounds"]
    test = counts["curves"] // 4
    words = {what: what if count != 1 else re.sub(r"s\b", "", what, count=1) for what, count in counts.items()}
    read = [f"{count:,} {words[what]}" for what, count in counts.items() if what != "curves" and count]
    sample = "" if check["curves"] == check["of"] else f" of {check['of']:,}"
    return [
        f"read     {provenance['source']} ({provenance['layout']}): {counts['curves']:,} curves, strain in "
        f"{provenance['units']['strain']}, stress in {provenance['units']['stress']}",
        *([f"counted  {', '.join(read)}"] if read else []),
        f"targets  {targets['from']}; 0 to 1 is G0 {g0_low:.6g} to {g0_high:.6g} MPa, a {a_low:.6g} to {a_high:.6g} "
        f"({targets['bounds_from']})",
        f"fit      median G0 {check['median_g0_mpa']:.4g} MPa, a {check['median_a']:.3g}, rms "
        f"{check['median_rms_mpa']:.3g} MPa (least squares on {check['curves']:,}{sample} curves)",
        f"split    {counts['curves'] - test:,} curves for training, {test:,} for testing (every fourth)",
    ]


# ----------------------------------------------------------------------------------------------------------- reading


def _require_labels(path: Path, curves: CurveSet | blocks.CurveBlocks, label: str | None) -> None:
    """Refuse too few curves for a test set (case 23), and curves without targets or with two kinds of them."""
    if curves.size < 4:
        raise DataError(
            f"{path}: holds {curves.size} curve{'s' * (curves.size > 1)}; every fourth specimen (number i with "
            "i % 4 = 3) is a test curve, so 4 are needed at least for training; add specimens"
        )
    if curves.targets is None and label is None:
        raise DataError(
            f"{path}: has no targets G0 and a, which training needs; add columns G0 and a, name a table with "
            "specimen, G0, a by --targets, or take them from least squares with --label lsq"
        )
    if curves.targets is not None and label is not None:
        raise DataError(f"{path}: has targets, and --label {label} asks for others; leave the option out")


def _check(
    source: Source, options: ReadOptions, label: str | None, tally: checks.Tally, on_progress: OnProgress | None
) -> Fits:
    """Check what is not checked yet, and fit the law to a sample of the curves, or to all where it labels them."""
    size = source.curves.size
    # every k-th with k odd, so that test curves are among them
    every = -(-size // SELF_CHECKED) if label is None else 1
    wanted = np.arange(0, size, every + (every % 2 == 0))
    if source.whole is not None:
        if on_progress:
            on_progress("fitting the law", 0, len(wanted))
        return _fit(wanted, source.whole[wanted])
    assert isinstance(source.curves, blocks.CurveBlocks)
    said = "checking curves" if len(wanted) < size else "checking curves and fitting the law"
    parts: list[Fits] = []
    for low, block in source.curves.checked(options, tally, on_progress, said):
        rows = wanted[np.searchsorted(wanted, low) : np.searchsorted(wanted, low + len(block))]
        if len(rows):
            parts.append(_fit(rows, block[rows - low]))
    return Fits(*map(np.concatenate, zip(*parts, strict=True)))


def _open(path: Path, options: ReadOptions, on_progress: OnProgress | None) -> Source:
    curves = reading.open_curves(path, options, on_progress)
    if isinstance(curves, blocks.CurveBlocks):
        return Source(path=path, curves=curves, whole=None)
    room.need_memory(
        path, curves.size * dataset.BYTES_PER_CURVE, "keeping it as 201 points per curve", "import a part of it"
    )
    return Source(path=path, curves=curves, whole=to_channels(curves, reduce=options.reduce))


def _hashed(path: Path, ended: Event) -> dict[str, Any]:
    """Return name, size and SHA-256 of a file; gives up once the import has `ended`."""
    digest = hashlib.sha256()
    with open_file(path) as stream:
        while not ended.is_set() and (piece := stream.read(1 << 22)):
            digest.update(piece)
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _fit(rows: NDArray[np.int64], channels: NDArray[np.float32]) -> Fits:
    strain, stress, flag = channels[:, 0], channels[:, 1], channels[:, 2]
    fit = fit_law(strain, stress, flag)
    points = flag.sum(axis=1, dtype=np.float64)
    sigma_mpa = fit.rms_mpa * np.sqrt(points / np.maximum(points - 2, 1))
    physical = np.array([[0.0, 1.0], [0.0, 1.0]])  # bounds that leave G0 and a as they are
    return Fits(
        rows=rows,
        g0_mpa=fit.g0_mpa,
        a=fit.a,
        rms_mpa=fit.rms_mpa,
        peak_mpa=np.abs(stress).max(axis=1).astype(np.float64),
        variance=floor.bounds(strain, np.stack([fit.g0_mpa, fit.a], axis=1), sigma_mpa, target_bounds=physical),
    )


def _for_writing(
    source: Source, options: ReadOptions, tally: checks.Tally
) -> NDArray[np.float32] | Iterator[NDArray[np.float32]]:
    """Return the curves, or their blocks; what was repaired while checking is repaired again."""
    if source.whole is not None:
        return source.whole
    assert isinstance(source.curves, blocks.CurveBlocks)
    if tally.counts:
        return (block for _, block in source.curves.checked(options, checks.Tally(), None, ""))
    return source.curves.converted()


# ----------------------------------------------------------------------------------------------------------- targets


def _proper_bounds(bounds: NDArray[np.float64]) -> NDArray[np.float64]:
    found = np.asarray(bounds, np.float64)
    if not (found[:, 0] < found[:, 1]).all() or not np.isfinite(found).all():
        given = " ".join(f"{value:g}" for value in found.ravel())
        raise DataError(f"--target-bounds {given}: must be low and high of G0 in MPa, low and high of a, low < high")
    return found


def _labels(source: Source, targets: NDArray[np.float64], origin: str, bounds: NDArray[np.float64] | None) -> _Labels:
    """Return physical targets with their bounds (case 22)."""
    wrong = ~np.isfinite(targets)
    if wrong.any():
        row, column = (int(each[0]) for each in np.nonzero(wrong))
        raise DataError(
            f"{source.path}: target {_NAMES[column]} of {source.name(row)} is {targets[row, column]} "
            f"({wrong.sum()} such values); complete the targets, or remove the curve"
        )
    bounds_from = "--target-bounds"
    if bounds is None and source.curves.target_bounds is not None:
        bounds, bounds_from = _proper_bounds(source.curves.target_bounds), "the file"
    slack = 0.0
    # no material has such a G0: the targets are normalised already
    if origin == "given" and np.abs(targets[:, 0]).max() < 2.0:
        if bounds is None:
            raise DataError(
                f"{source.path}: targets are normalised already (G0 from {targets[:, 0].min():g} to "
                f"{targets[:, 0].max():g}); give the physical values of 0 and 1 with --target-bounds, for instance "
                "--target-bounds 1000 3000 25 45"
            )
        targets = bounds[:, 0] + (bounds[:, 1] - bounds[:, 0]) * targets
        # test targets normalised with the training set's bounds stick out by so much at most
        origin, slack = "given, normalised", 0.01
    if bounds is not None:
        _inside(source, targets, bounds, bounds_from, slack)
        return _Labels(targets=targets, bounds=bounds, origin=origin, bounds_from=bounds_from)
    training = targets[np.arange(len(targets)) % 4 != 3]
    bounds = np.stack([training.min(axis=0), training.max(axis=0)], axis=1)
    for column, (low, high) in enumerate(bounds):
        if low == high:
            raise DataError(
                f"{source.path}: target {_NAMES[column]} is {low:g} for every training curve, so nothing can be "
                "learned from it and it cannot be normalised; give its range with --target-bounds"
            )
    return _Labels(targets=targets, bounds=bounds, origin=origin, bounds_from="training minimum and maximum")


def _inside(
    source: Source, targets: NDArray[np.float64], bounds: NDArray[np.float64], from_where: str, slack: float
) -> None:
    margin = (slack + 1e-9) * (bounds[:, 1] - bounds[:, 0])
    outside = (targets < bounds[:, 0] - margin) | (targets > bounds[:, 1] + margin)
    if outside.any():
        row, column = (int(each[0]) for each in np.nonzero(outside))
        low, high = bounds[column]
        raise DataError(
            f"{source.path}: target {_NAMES[column]} of {source.name(row)} is {targets[row, column]:g}, outside the "
            f"bounds {low:g} to {high:g} of {from_where} ({int(outside.sum())} such values, from "
            f"{targets[:, column].min():g} to {targets[:, column].max():g}); give wider --target-bounds, or remove "
            "the curves"
        )


# -------------------------------------------------------------------------------------------------------- self-check


def _doubts(source: Source, fits: Fits, labels: _Labels) -> list[str]:
    """Return warnings from the fits: outside the generated box, not described by the law, far from the targets."""
    (g0_low, g0_high), (a_low, a_high) = material.G0_MPA, material.A
    g0, a = fits.g0_mpa, fits.a
    # An estimate scatters: what is outside by less than three standard errors may be inside.
    margin = 0.01 * material.TARGET_SPAN + 3.0 * np.sqrt(fits.variance)
    outside = (g0 < g0_low - margin[:, 0]) | (g0 > g0_high + margin[:, 0])
    outside |= (a < a_low - margin[:, 1]) | (a > a_high + margin[:, 1])
    relative = fits.rms_mpa / np.maximum(fits.peak_mpa, 1e-12)
    found = []
    for wrong, text in (
        (
            outside,
            f"have a fitted G0 or a outside {g0_low:g} to {g0_high:g} MPa and {a_low:g} to {a_high:g}, where the "
            "prediction of a network trained on generated curves extrapolates",
        ),
        (
            relative > MISFIT_OF_PEAK,
            f"have a fit with rms above {100 * MISFIT_OF_PEAK:.0f} % of the peak, "
            "the saturating law does not describe them",
        ),
    ):
        places = np.flatnonzero(wrong)
        if len(places):
            shown = "; ".join(
                f"{source.name(int(fits.rows[k]))} (G0 {g0[k]:.4g} MPa, a {a[k]:.3g}, "
                f"rms {fits.rms_mpa[k]:.3g} MPa, {100 * relative[k]:.1f} % of the peak)"
                for k in places[:3]
            )
            more = f", and {len(places) - 3} more" if len(places) > 3 else ""
            found.append(f"{len(places)} of {len(fits.rows)} fitted curves {text}: {shown}{more}")
    if labels.origin != "least squares":
        given = labels.targets[fits.rows, 0]
        ratio = float(np.median(g0 / np.where(given == 0, np.nan, given)))
        if not 2 / 3 <= ratio <= 1.5:
            found.append(
                f"the fitted G0 is {ratio:.3g} times the given one (median): targets of other curves, another order, "
                "or shear strain given as eps12 instead of gamma = 2 eps12"
            )
    return found


def _floor(fits: Fits, bounds: NDArray[np.float64]) -> dict[str, Any] | None:
    """Return the statistical floor with noise levels from the residuals, None where the law does not describe them."""
    test = fits.rows % 4 == 3
    if not test.any() or (fits.rms_mpa > MISFIT_OF_PEAK * fits.peak_mpa).any():
        return None
    each = fits.variance[test] / (bounds[:, 1] - bounds[:, 0]) ** 2
    if not np.isfinite(each).all():
        return None
    return floor.summary(each.sum(axis=0), len(each), target_bounds=bounds, estimated=True)
