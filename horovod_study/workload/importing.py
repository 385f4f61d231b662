"""A data set for training from somebody's own curves, with everything that was done to them written down.

Curves go through in blocks, to be checked and then to be written. Every import fits the law to its curves by least
squares, which shows wrong units, wrong columns and curves the law tau = G0/a (1 - exp(-a gamma)) does not describe.

The fit is by variable projection: for a given a the best G0 is known, G0 = <phi, tau> / <phi, phi> with
phi = (1 - exp(-a gamma))/a, so that one parameter is left per curve. It starts from the best of a few values and goes
on by Gauss-Newton (with Kaufman's derivative of the projected residual), halving a step that does not help.
Letters: N curves, L points, P = 2 targets.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import horovod_study
from horovod_study.config.documents import open_file
from horovod_study.text.words import plural
from horovod_study.workload import dataset, floor, material, room
from horovod_study.workload.curves import CurveSet, hold, to_channels

_FITTED = 20_000  # curves at most; of more curves an even sample
_OnProgress = Callable[[str, int, int], None] | None  # called with what is done, done, in all


class _Fits(NamedTuple):
    """The law fitted to n curves."""

    rows: NDArray[np.int64]  # (n,) numbers of the curves
    found: NDArray[np.float64]  # (n, P): G0 in MPa and a
    rms_mpa: NDArray[np.float64]  # (n,)
    peak_mpa: NDArray[np.float64]  # (n,)
    variance: NDArray[np.float64]  # (n, P) of the estimates of G0 in MPa and a, by the residual


def import_curves(
    curves: CurveSet,
    out: Path,
    *,
    label: str | None = None,
    target_bounds: NDArray[np.float64] | None = None,
    any_modulus: bool = False,
    on_progress: _OnProgress = None,
) -> dict[str, Any]:
    """Import `curves` as the data set directory `out`; return its provenance, which its side-car keeps.

    `label` "lsq" takes G0 and a from the least-squares fit where the files give none. `target_bounds` (P, 2) are the
    physical values of the targets' 0 and 1, else the training set's minimum and maximum. `any_modulus` accepts any
    initial slope. Raises DataError for whatever is wrong with the files; nothing is written then.
    """
    dataset.require_new(out)
    hold("--label", (label not in (None, "lsq"), f"{label!r} is not known; allowed: lsq"))
    few = f"holds {plural(curves.size, 'curve')} ({', '.join(curves.names or ())})" if curves.size < 4 else ""
    unclear, found = (curves.targets is None) == (label is None), "no" if label is None else "other"
    few = few and f"{few}; every fourth is a test curve, 4 are needed at least; add some"
    once = f"has {found} targets G0 and a; give them once, as columns G0 and a, by --targets, or by --label lsq"
    hold(f"{curves.path}:", (few, few), (unclear, once))
    room.need_disk(out, curves.size * dataset.BYTES_PER_CURVE, f"a data set of {curves.size:,} curves")
    given = None if curves.targets is None else _labels(curves, curves.targets, target_bounds)
    fits, counts = _checked(curves, label, any_modulus, on_progress)
    targets, bounds, bounds_from = given or _labels(curves, fits.found, target_bounds)
    unused = [f"columns not used: {', '.join(curves.unused)}"] if curves.unused else []
    origin = "given" if given else "least squares"
    g0_mpa, a = np.median(fits.found, axis=0).tolist()
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
        "self_check": {"curves": len(fits.rows), "of": curves.size, "median_g0_mpa": g0_mpa, "median_a": a}
        | {"median_rms_mpa": float(np.median(fits.rms_mpa))},
        "ids": list(curves.names) if curves.names and curves.size <= 10_000 else None,
    }
    dataset.write_imported(
        out,
        (to_channels(points) for _, points in curves.blocks(checked=True)),
        ((targets - bounds[:, 0]) / (bounds[:, 1] - bounds[:, 0])).astype(np.float32),
        target_bounds=bounds,
        provenance=provenance,
        floor=_floor(fits, bounds) if label is None else None,
        on_progress=on_progress and (lambda done, total: on_progress("writing", done, total)),
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
) -> tuple[_Fits, dict[str, int]]:
    """Check all curves; fit the law to a sample of them, or to all where it labels them; count what was read."""
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
            parts.append(_fitted(rows, to_channels(points)[rows - low]))
        if on_progress:
            on_progress("checking curves", high, curves.size)
    return _Fits(*map(np.concatenate, zip(*parts, strict=True))), counts


def _fitted(rows: NDArray[np.int64], channels: NDArray[np.float32]) -> _Fits:
    strain, stress, flag = channels[:, 0], channels[:, 1], channels[:, 2]
    fit = fit_law(strain, stress, flag)
    points = flag.sum(axis=1, dtype=np.float64)
    found = np.stack([fit.g0_mpa, fit.a], axis=1)
    sigma_mpa = fit.rms_mpa * np.sqrt(points / np.maximum(points - 2, 1))
    plain = np.array([[0.0, 1.0], [0.0, 1.0]])  # bounds that leave G0 and a as they are
    variance = floor.bounds(strain, found, sigma_mpa, target_bounds=plain)
    return _Fits(rows, found, fit.rms_mpa, np.abs(stress).max(axis=1).astype(np.float64), variance)


def _hashed(path: Path) -> dict[str, Any]:
    with open_file(path) as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": digest}


def _labels(
    curves: CurveSet, targets: NDArray[np.float64], bounds: Any
) -> tuple[NDArray[np.float64], NDArray[np.float64], str]:
    """Return physical targets (N, P), their bounds (P, 2) and where these are from."""
    slack, said = 1e-9, "--target-bounds"
    if np.abs(targets[:, 0]).max() < 2.0:  # no material has such a G0
        found = f"targets are normalised already (G0 to {targets[:, 0].max():g})"
        remedy = "give the physical values of 0 and 1, for instance --target-bounds 1000 3000 25 45"
        hold(f"{curves.path}:", (bounds is None, f"{found}; {remedy}"))
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
    hold(f"{curves.path}:", (wrong.any(), first), (not (bounds[:, 0] < bounds[:, 1]).all(), given))
    return targets, bounds, said


def _doubts(curves: CurveSet, fits: _Fits, given: NDArray[np.float64] | None) -> list[str]:
    """Return warnings from the fits: outside the generated box, not described by the law, far from the targets."""
    low, high = material.TARGET_BOUNDS.T
    # An estimate scatters: what is outside by less than three standard errors may be inside.
    margin = 0.01 * material.TARGET_SPAN + 3.0 * np.sqrt(fits.variance)
    outside = ((fits.found < low - margin) | (fits.found > high + margin)).any(axis=1)
    relative = fits.rms_mpa / np.maximum(fits.peak_mpa, 1e-12)
    doubts = []
    for wrong, text in (
        (outside, "G0 or a outside 1000 to 3000 MPa and 25 to 45: networks trained on generated curves extrapolate"),
        (relative > MISFIT_OF_PEAK, "rms above 5 % of the peak: the saturating law does not describe them"),
    ):
        shown = [
            f"{curves.name(fits.rows[k])} (G0 {g0_mpa:.4g} MPa, a {a:.3g}, rms {100 * relative[k]:.1f} % of the peak)"
            for k, (g0_mpa, a) in ((k, fits.found[k]) for k in np.flatnonzero(wrong)[:3])
        ]
        if shown:
            doubts.append(f"{wrong.sum():,} of {len(wrong):,} fits have {text}; the first are {'; '.join(shown)}")
    ratio = 1.0 if given is None else float(np.median(fits.found[:, 0] / given[fits.rows, 0]))
    if not 2 / 3 <= ratio <= 1.5:
        cause = "other targets, order or unit, or shear strain given as eps12 instead of gamma = 2 eps12"
        doubts.append(f"the fitted G0 is {ratio:.3g} times the given one (median): {cause}")
    return doubts


def _floor(fits: _Fits, bounds: NDArray[np.float64]) -> dict[str, Any] | None:
    """Return the statistical floor with noise levels from the residuals, None where the law does not describe them."""
    test = fits.rows % 4 == 3
    each = fits.variance[test] / (bounds[:, 1] - bounds[:, 0]) ** 2
    if (fits.rms_mpa > MISFIT_OF_PEAK * fits.peak_mpa).any() or not np.isfinite(each).all():
        return None
    return floor.summary(each.sum(axis=0), len(each), target_bounds=bounds, estimated=True)


# ------------------------------------------------------------------------------------------------------ least squares

MISFIT_OF_PEAK = 0.05
"""A fit whose rms exceeds this part of the largest stress does not describe the curve."""

_CHUNK = 256  # curves at a time: the intermediate arrays stay in the processor's cache
_START = (-1.0, 0.3, 2.0, 5.0, 12.0, 40.0)  # a times the largest strain, from a curve bent upwards to a plateau
_LARGEST = 500.0  # of |a| times the largest strain; beyond it only the plateau is left to see
_Array = NDArray[np.float64]


class LawFit(NamedTuple):
    """Parameters of the law for each curve, and the root mean square of its residual."""

    g0_mpa: _Array  # (N,)
    a: _Array  # (N,)
    rms_mpa: _Array  # (N,)


def fit_law(strain: NDArray[Any], stress: NDArray[Any], weight: NDArray[Any]) -> LawFit:
    """Fit every curve: `strain` and `stress` in MPa (N, L), `weight` (N, L) 1 on data and 0 on padding.

    All values must be finite. A curve without strain gets nan.
    """
    found = np.full((3, len(strain)), np.nan)
    for low in range(0, len(strain), _CHUNK):
        x, y, w = (np.asarray(each[low : low + _CHUNK], np.float64) for each in (strain, stress, weight))
        reach = np.abs(x * w).max(axis=1)
        able = np.flatnonzero(reach)
        # in units of the largest strain, so that z = a * reach is of order one
        z, g0, squares = _fit((x * w)[able] / reach[able, None], (y * w)[able])
        rms = np.sqrt(squares / w[able].sum(axis=1))
        found[:, low + able] = g0 / reach[able], z / reach[able], rms
    return LawFit(*found)


def _fit(x: _Array, y: _Array) -> tuple[_Array, _Array, _Array]:
    """Return z, G0 and the sum of squares that is left of each curve; those that have arrived are left alone."""
    tried = np.stack([_project(np.full(len(x), z), x, y)[2] for z in _START])
    z = np.array(_START)[tried.argmin(axis=0)]
    _, g0, squares = _project(z, x, y)
    going = np.arange(len(x))
    for _ in range(60):
        step, moved = _step(z[going], x[going], y[going]), np.zeros(len(going), bool)
        for halving in range(6):
            rest = going[~moved]
            if not len(rest):
                break
            new = np.clip(z[rest] + step[~moved] * 0.5**halving, -_LARGEST, _LARGEST)
            _, new_g0, new_squares = _project(new, x[rest], y[rest])
            better = new_squares <= squares[rest]
            at = rest[better]
            z[at], g0[at], squares[at] = new[better], new_g0[better], new_squares[better]
            moved[~moved] = better
        going = going[moved & (np.abs(step) > 1e-11 * (1.0 + np.abs(z[going])))]
    return z, g0, squares


def _project(z: _Array, x: _Array, y: _Array) -> tuple[_Array, _Array, _Array]:
    """Return phi = (1 - exp(-z x)) / z, which is x where z is 0, the best G0, and the sum of squares that is left."""
    straight = np.abs(z) < 1e-9
    safe = np.where(straight, 1.0, z)[:, None]
    phi = -np.expm1(-safe * x) / safe
    phi[straight] = x[straight]
    norm = np.einsum("nl,nl->n", phi, phi)
    g0 = np.einsum("nl,nl->n", phi, y) / np.where(norm > 0, norm, 1.0)
    left = g0[:, None] * phi - y
    return phi, g0, np.einsum("nl,nl->n", left, left)


def _step(z: _Array, x: _Array, y: _Array) -> _Array:
    """Return the Gauss-Newton step of z."""
    phi, g0, _ = _project(z, x, y)
    straight = np.abs(z) < 1e-4
    safe = np.where(straight, 1.0, z)[:, None]
    slope = (x * np.exp(-safe * x) - phi) / safe  # d phi / d z
    slope[straight] = -0.5 * x[straight] ** 2 + z[straight, None] * x[straight] ** 3 / 3
    norm = np.einsum("nl,nl->n", phi, phi)
    slope -= (np.einsum("nl,nl->n", phi, slope) / np.where(norm > 0, norm, 1.0))[:, None] * phi  # what G0 cannot follow
    slope *= g0[:, None]
    size = np.einsum("nl,nl->n", slope, slope)
    return np.asarray(np.einsum("nl,nl->n", slope, y - g0[:, None] * phi) / np.where(size > 0, size, np.inf))
