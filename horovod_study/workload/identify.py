"""Parameter identification: G0 and a of measured curves by a trained network, beside the law's least-squares fit.

The network sees what it was trained on, 201 points per curve, and answers at once for any number of curves. The fit
sees every measured point and comes with a standard error. Where both agree and the residual is noise, the parameters
can be used; a specimen for which that does not hold carries a doubt that says why.

Letters: N curves, n points of one curve, B curves in a batch, C = 3 channels, L = 201 points, P = 2 targets.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from horovod_study.errors import DataError, RecordError
from horovod_study.records import finite
from horovod_study.workload import floor, material
from horovod_study.workload.checkpoint import load_model
from horovod_study.workload.curves import CurveSet, to_channels
from horovod_study.workload.least_squares import MISFIT_OF_PEAK, fit_law

BATCH = 4096
"""Curves that go through the network, and through the fit, at a time."""

PATTERN = 0.5
"""Residuals whose lag-1 correlation exceeds this are no independent noise."""

FINE_OF_PEAK = 0.002
"""Residuals below this part of the largest stress are not looked at for a pattern: rounding has one too."""

MIN_OF_SPAN = 0.01
"""Distances below this part of the trained range are not worth mentioning, however small the standard error is."""

MIN_BEND, MAX_BEND = 1e-4, 200.0
"""Limits of |a| times the largest strain: below, rounding decides the standard errors; above, all is plateau."""

ERROR_OF_SPAN = 0.05
"""What a network may be outside the trained range, as part of it, inside which the curve still is."""

DISAGREE_SE = 3.0
"""Standard errors from which on network and fit are said to disagree."""

HEADLINES = {
    "extrapolates": "outside the parameters the network was trained on, the prediction extrapolates",
    "range": "the network has not seen curves that end there, or so few points",
    "misfit": "the saturating law does not describe the curve",
    "pattern": "residuals of the fit follow a pattern, so its standard errors are too small",
    "disagree": "network and fit disagree; where most do, train the network longer",
}
"""Kinds of doubt, and what each means when it is said of many specimens at once."""

Predict = Callable[[torch.Tensor], torch.Tensor]
"""A network in evaluation mode: (B, C, L) physical units -> (B, P) normalised."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What a network was trained on."""

    g0_mpa: tuple[float, float]
    a: tuple[float, float]
    last_strain: tuple[float, float] | None  # None where it was not recorded
    points: tuple[int, int] | None


GENERATED = Trained(
    g0_mpa=material.G0_MPA,
    a=material.A,
    last_strain=material.LAST_STRAIN,
    points=(material.POINTS - material.MAX_MISSING, material.POINTS),
)
"""What generated data sets hold."""


def trained_on(target_bounds: NDArray[np.float64]) -> Trained:
    """Return what is known of the training curves from the bounds (P, 2) of their targets.

    The bounds of generated data sets are known constants, and with them the strains; other sets record bounds only.
    """
    (g0_low, g0_high), (a_low, a_high) = ((float(low), float(high)) for low, high in target_bounds)
    if (g0_low, g0_high) == GENERATED.g0_mpa and (a_low, a_high) == GENERATED.a:
        return GENERATED
    return Trained(g0_mpa=(g0_low, g0_high), a=(a_low, a_high), last_strain=None, points=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    """G0 and a of one curve, and how well the law with them meets the measured stress."""

    g0_mpa: float
    a: float
    rms_mpa: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Doubt:
    """A reason not to use a result as it stands; `kind` is a key of HEADLINES."""

    kind: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Identified:
    """One specimen with what was found for it."""

    name: str
    strain: NDArray[np.float64]  # (n,)
    stress_mpa: NDArray[np.float64]  # (n,)
    network: Parameters
    fit: Parameters
    g0_se_mpa: float | None  # standard errors of the fit; None where the curve does not determine it
    a_se: float | None
    given: tuple[float, float] | None  # G0 in MPa and a as they are in the curve file
    doubts: tuple[Doubt, ...]

    def line(self, way: str, count: int = 200) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return strain (count,) and stress in MPa of the law with the parameters of `network` or `fit`."""
        strain = np.linspace(0.0, float(self.strain[-1]), count)
        return strain, _law(getattr(self, way), strain)

    def residual_mpa(self, way: str) -> NDArray[np.float64]:
        """Return measured stress minus the law with the parameters of `network` or `fit`, (n,)."""
        return self.stress_mpa - _law(getattr(self, way), self.strain)

    def row(self) -> dict[str, Any]:
        """Return the numbers as one row of a table; None is unknown."""
        g0_given, a_given = self.given or (None, None)
        return {
            "specimen": self.name,
            "points": len(self.strain),
            "last_strain": float(self.strain[-1]),
            "peak_mpa": float(self.stress_mpa.max()),
            "network_g0_mpa": self.network.g0_mpa,
            "network_a": self.network.a,
            "network_rms_mpa": self.network.rms_mpa,
            "fit_g0_mpa": self.fit.g0_mpa,
            "fit_g0_se_mpa": self.g0_se_mpa,
            "fit_a": self.fit.a,
            "fit_a_se": self.a_se,
            "fit_rms_mpa": self.fit.rms_mpa,
            "given_g0_mpa": g0_given,
            "given_a": a_given,
            "doubts": " ".join(doubt.kind for doubt in self.doubts),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON takes it, with the doubts in full."""
        found: dict[str, Any] = finite({**self.row(), "doubts": self.doubts})
        return found


def open_model(source: Path) -> tuple[Predict, NDArray[np.float64]]:
    """Return the network of a run directory or checkpoint file and the bounds (P, 2) of its targets."""
    try:
        return load_model(source)
    except RecordError as error:
        if not source.is_file():
            raise
        raise RecordError(f"{error}; --model takes the directory of a run, or another of its checkpoints") from None


def identify(
    curves: CurveSet,
    predict: Predict,
    target_bounds: NDArray[np.float64],
    *,
    disagree_se: float = DISAGREE_SE,
    reduce: str = "pick",
) -> list[Identified]:
    """Return what network and least squares say of every curve, in the order of the file.

    `target_bounds` (P, 2) are physical: [[low, high] of G0 in MPa, [low, high] of a]. Network and fit disagree where
    one of the parameters differs by more than `disagree_se` standard errors of the fit. `reduce` says how longer curves
    are brought to the L points of the network, see `to_channels`.
    """
    if not disagree_se > 0:
        raise DataError(f"--disagree {disagree_se:g}: must be a number of standard errors greater than 0; 3 is usual")
    trained = trained_on(target_bounds)
    predicted = _predict(curves, predict, target_bounds, reduce)
    fitted = _fit(curves)
    found = []
    for k, (name, strain, stress) in enumerate(zip(curves.ids, curves.strain, curves.stress, strict=True)):
        g0_fit, a_fit, g0_se, a_se = fitted[k]
        one = Identified(
            name=name,
            strain=strain,
            stress_mpa=stress,
            network=_parameters(strain, stress, *predicted[k]),
            fit=_parameters(strain, stress, g0_fit, a_fit),
            g0_se_mpa=g0_se,
            a_se=a_se,
            given=None if curves.targets is None else (float(curves.targets[k, 0]), float(curves.targets[k, 1])),
            doubts=(),
        )
        doubts = (*_extrapolates(one, trained), *_range(one, trained), *_misfit(one), *_pattern(one))
        found.append(replace(one, doubts=(*doubts, *_disagree(one, trained, disagree_se))))
    return found


def errors(found: Sequence[Identified]) -> dict[str, dict[str, float]] | None:
    """Return the root mean square error of `network` and `fit` against the parameters given with the curves.

    None where the file gave none.
    """
    pairs = [one.given for one in found if one.given is not None]
    if not pairs:
        return None
    given = np.array(pairs)
    result = {}
    for way in ("network", "fit"):
        values = np.array([(getattr(one, way).g0_mpa, getattr(one, way).a) for one in found if one.given is not None])
        g0_rmse_mpa, a_rmse = np.sqrt(np.mean((values - given) ** 2, axis=0))
        result[way] = {"g0_rmse_mpa": float(g0_rmse_mpa), "a_rmse": float(a_rmse)}
    return result


def _batches(count: int) -> Iterator[slice]:
    for low in range(0, count, BATCH):
        yield slice(low, min(low + BATCH, count))


def _part(curves: CurveSet, rows: slice) -> CurveSet:
    return replace(
        curves,
        ids=curves.ids[rows],
        strain=curves.strain[rows],
        stress=curves.stress[rows],
        targets=None if curves.targets is None else curves.targets[rows],
    )


def _predict(
    curves: CurveSet, predict: Predict, target_bounds: NDArray[np.float64], reduce: str
) -> list[tuple[float, float]]:
    """Return G0 in MPa and a by the network for every curve."""
    low, span = target_bounds[:, 0], target_bounds[:, 1] - target_bounds[:, 0]
    found: list[tuple[float, float]] = []
    with torch.inference_mode():
        for rows in _batches(len(curves.ids)):
            channels = torch.from_numpy(to_channels(_part(curves, rows), reduce=reduce))
            physical = low + span * predict(channels).double().cpu().numpy()
            found += [(float(g0), float(a)) for g0, a in physical]
    wrong = [name for name, pair in zip(curves.ids, found, strict=True) if not np.isfinite(pair).all()]
    if wrong:
        raise DataError(
            f"{curves.source}: the network answers with a number that is not finite for {wrong[0]!r} "
            f"({len(wrong)} of {len(found)} curves); train it again with a smaller --lr, or name an older checkpoint"
        )
    return found


def _fit(curves: CurveSet) -> list[tuple[float, float, float | None, float | None]]:
    """Return G0 in MPa and a by least squares on all measured points of every curve, and their standard errors."""
    found: list[tuple[float, float, float | None, float | None]] = []
    for rows in _batches(len(curves.ids)):
        curve_strain, curve_stress = curves.strain[rows], curves.stress[rows]
        strain, stress, weight = np.zeros((3, len(curve_strain), max(len(each) for each in curve_strain)))
        for k, (x, y) in enumerate(zip(curve_strain, curve_stress, strict=True)):
            strain[k, : len(x)], stress[k, : len(x)], weight[k, : len(x)] = x, y, 1.0
        fitted = fit_law(strain, stress, weight)
        rate = np.where(fitted.a == 0, 1e-12, fitted.a)  # a straight line, the limit of the law
        deviations = standard_errors(strain, stress, g0_mpa=fitted.g0_mpa, a=rate)
        for g0, a, g0_se, a_se in zip(fitted.g0_mpa, rate, *deviations.T, strict=True):
            found.append((float(g0), float(a), _known(g0_se), _known(a_se)))
    return found


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def standard_errors(
    strain: NDArray[np.float64], stress_mpa: NDArray[np.float64], *, g0_mpa: NDArray[np.float64], a: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the standard errors of fitted G0 in MPa and a, shape (N, P): the Cramer-Rao bound (floor.py).

    Its noise level is that of the curve's own residual: the sum of squares over the number of points that tell
    something (strain not 0) less the two parameters. The bound holds where the residual is independent noise. Infinite
    where the curve does not determine the parameters, nearly straight or a plateau only. `strain` and `stress_mpa` are
    (N, n), 0 on padding.
    """
    telling = strain != 0
    residual = np.where(telling, stress_mpa - material.stress_mpa(g0_mpa[:, None], a[:, None], strain), 0.0)
    free = telling.sum(axis=1) - 2
    level_mpa = np.sqrt(np.where(free > 0, (residual**2).sum(axis=1) / np.maximum(free, 1), np.inf))
    physical = np.array([[0.0, 1.0], [0.0, 1.0]])  # bounds that leave G0 and a as they are
    bend = np.abs(a) * np.abs(strain).max(axis=1)
    able = (MIN_BEND < bend) & (bend < MAX_BEND)
    usable = np.stack([g0_mpa, np.where(able, a, 1.0)], axis=1)
    variances = floor.bounds(strain, usable, level_mpa, target_bounds=physical)
    deviations: NDArray[np.float64] = np.sqrt(np.where(able[:, None], variances, np.inf))
    return deviations


def _law(parameters: Parameters, strain: NDArray[np.float64]) -> NDArray[np.float64]:
    return material.stress_mpa(np.array([parameters.g0_mpa]), np.array([parameters.a]), strain)


def _parameters(strain: NDArray[np.float64], stress: NDArray[np.float64], g0_mpa: float, a: float) -> Parameters:
    residual = stress - material.stress_mpa(np.array([g0_mpa]), np.array([a]), strain)
    return Parameters(g0_mpa=g0_mpa, a=a, rms_mpa=float(np.sqrt(np.mean(residual**2))))


# ------------------------------------------------------------------------------------------------------------ doubts


def _extrapolates(one: Identified, trained: Trained) -> Iterator[Doubt]:
    """Compare both estimates with the trained box.

    The fit may be outside by as much as it is uncertain, the network by as much as a network is usually wrong.
    """
    outside = []
    for words, digits, unit, (low, high), network, fit, se in (
        ("G0", 0, " MPa", trained.g0_mpa, one.network.g0_mpa, one.fit.g0_mpa, one.g0_se_mpa),
        ("a", 2, "", trained.a, one.network.a, one.fit.a, one.a_se),
    ):
        span = high - low
        margins = (ERROR_OF_SPAN * span, max(MIN_OF_SPAN * span, 2 * (se or 0.0)))
        ways = [
            f"{value:.{digits}f}{unit} by the {way}"
            for way, value, margin in zip(("network", "fit"), (network, fit), margins, strict=True)
            if not low - margin <= value <= high + margin
        ]
        if ways:
            outside.append(f"{words} is {' and '.join(ways)}, trained on {low:g}..{high:g}{unit}")
    if outside:
        yield Doubt(kind="extrapolates", text=f"{'; '.join(outside)}: the prediction extrapolates")


def _range(one: Identified, trained: Trained) -> Iterator[Doubt]:
    last, points = float(one.strain[-1]), min(len(one.strain), material.POINTS)
    unseen = []
    if trained.last_strain and not trained.last_strain[0] * 0.99 <= last <= trained.last_strain[1] * 1.01:
        low, high = trained.last_strain
        unseen.append(f"ends at strain {last:.3g}, trained on curves that end at {low:g}..{high:g}")
    if trained.points and points < trained.points[0]:
        unseen.append(f"has {points} points, trained on {trained.points[0]}..{trained.points[1]}")
    if unseen:
        yield Doubt(kind="range", text=f"{'; '.join(unseen)}: the network may be off")


def _misfit(one: Identified) -> Iterator[Doubt]:
    peak = float(np.abs(one.stress_mpa).max())
    if not one.fit.rms_mpa <= MISFIT_OF_PEAK * peak:
        yield Doubt(
            kind="misfit",
            text=f"rms of the fit is {100 * (one.fit.rms_mpa / peak):.1f} % of the peak ({peak:.3g} MPa): the "
            "saturating law does not describe this curve",
        )


def _pattern(one: Identified) -> Iterator[Doubt]:
    residual = one.residual_mpa("fit")[one.strain > 0]
    size = float(residual @ residual)
    if len(residual) < 3 or size <= len(residual) * (FINE_OF_PEAK * float(np.abs(one.stress_mpa).max())) ** 2:
        return
    correlation = float(residual[1:] @ residual[:-1]) / size
    if correlation > PATTERN:
        yield Doubt(
            kind="pattern",
            text=f"residuals of the fit follow a pattern (neighbours correlate by {correlation:.2f}), so its standard "
            "errors are too small",
        )


def _disagree(one: Identified, trained: Trained, most_se: float) -> Iterator[Doubt]:
    apart = []
    for words, digits, unit, (low, high), network, fit, se in (
        ("G0", 0, " MPa", trained.g0_mpa, one.network.g0_mpa, one.fit.g0_mpa, one.g0_se_mpa),
        ("a", 2, "", trained.a, one.network.a, one.fit.a, one.a_se),
    ):
        distance = abs(network - fit)
        if se is not None and distance > max(most_se * se, MIN_OF_SPAN * (high - low)):
            times = f"{distance / se:.{0 if distance > 10 * se else 1}f}" if distance < 1000 * se else "over 1000"
            apart.append(f"{words} by {distance:,.{digits}f}{unit}, {times} standard errors")
    if apart:
        yield Doubt(kind="disagree", text=f"network and fit disagree ({'; '.join(apart)})")
