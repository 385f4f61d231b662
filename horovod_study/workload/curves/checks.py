"""What is wrong with a curve, what is only odd, and the repairs that were asked for.

`checked` takes one curve in ratio and MPa through the order of work: finite, sign, monotonic, post-peak cut, length,
plausibility. A repair happens only on request and is counted; what is odd is noted and becomes a warning.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from horovod_study.errors import DataError
from horovod_study.workload import material
from horovod_study.workload.curves import units
from horovod_study.workload.curves.values import Curve, ReadOptions

MIN_POINTS = 20
_CYCLE_OF_RANGE = 0.05
"""Travel back beyond this part of the strain range is unloading, not jitter."""

STRAIN_RANGE = (1e-5, 1.0)
MODULUS_MPA = (200.0, 15000.0)
"""Slopes of the first tenth of the strain that a plausible curve has."""

TAIL_OF_PEAK = 0.2
START_OF_PEAK = 0.05
_MAX_REDUCED = 10
"""Down-sampling by more than this is worth a warning."""

_LISTED = 3


@dataclass(kw_only=True, slots=True)
class Tally:
    """What was counted and noted while curves were read."""

    counts: Counter[str] = field(default_factory=Counter)
    odd: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    checked: int = 0

    def warnings(self) -> tuple[str, ...]:
        """Return one line per kind of oddity: how many curves, and the first of them."""
        lines = []
        for kind, places in self.odd.items():
            more = f", and {len(places) - _LISTED} more" if len(places) > _LISTED else ""
            lines.append(f"{len(places)} of {self.checked} curves {kind}: {'; '.join(places[:_LISTED])}{more}")
        return tuple(lines)


def in_units(curve: Curve, declared: dict[str, str]) -> Curve:
    """Return the curve with strain as a ratio and stress in MPa."""
    return replace(
        curve,
        strain=curve.strain * units.factor("strain", declared["strain"]),
        stress=curve.stress * units.factor("stress", declared["stress"]),
    )


def checked(curve: Curve, options: ReadOptions, declared: dict[str, str], tally: Tally) -> Curve:
    """Return a curve in ratio and MPa that a network can take, or raise DataError saying what is wrong with it."""
    tally.checked += 1
    curve = _finite(curve, options, tally)
    _enough(curve)
    _time(curve)
    curve = _signed(curve, options, tally)
    _strain_range(curve, declared)
    curve = _monotonic(curve, options, tally)
    _alive(curve)
    curve = _tail(curve, options, tally)
    _enough(curve)
    _modulus(curve, options, declared)
    _odd(curve, tally)
    return curve


def _points(curve: Curve, keep: NDArray[np.bool_] | NDArray[np.int64] | slice) -> Curve:
    return replace(
        curve,
        strain=curve.strain[keep],
        stress=curve.stress[keep],
        rows=curve.rows[keep],
        time=None if curve.time is None else curve.time[keep],
    )


def _finite(curve: Curve, options: ReadOptions, tally: Tally) -> Curve:
    """Case 4: NaN, infinite or blank."""
    good = np.isfinite(curve.strain) & np.isfinite(curve.stress)
    if good.all():
        return curve
    count, k = int((~good).sum()), int((~good).argmax())
    if options.drop_nonfinite:
        tally.counts["points dropped, not finite"] += count
        return _points(curve, good)
    channel = "strain" if not np.isfinite(curve.strain[k]) else "stress"
    value = getattr(curve, channel)[k]
    raise DataError(
        f"{curve.at(k)}: {channel} is {'blank or NaN' if np.isnan(value) else value} ({count} such points of "
        f"{len(good)}); complete them, or leave them out with --drop-nonfinite"
    )


def _enough(curve: Curve) -> None:
    """Case 6: too few points, and an empty curve (7)."""
    count = len(curve.strain)
    if count < MIN_POINTS:
        raise DataError(
            f"{curve.where}: has {count} points, at least {MIN_POINTS} are needed; remove this {curve.kind}, or "
            "export it with more points"
        )


def _time(curve: Curve) -> None:
    """Case 11: time that runs back."""
    if curve.time is None:
        return
    back = np.flatnonzero(np.diff(curve.time) < 0)
    if len(back):
        k = int(back[0]) + 1
        raise DataError(
            f"{curve.at(k)}: time goes back from {curve.time[k - 1]:g} to {curve.time[k]:g}; two files pasted "
            "together? give every test a name or a file of its own"
        )


def _signed(curve: Curve, options: ReadOptions, tally: Tally) -> Curve:
    """Case 12: negative throughout, but for the noise around zero."""
    for channel in ("strain", "stress"):
        values: NDArray[np.float64] = getattr(curve, channel)
        if values.max() <= -0.05 * values.min() and (values < 0).sum() > len(values) // 2:
            if not options.flip_sign:
                raise DataError(
                    f"{curve.where}: {channel} is negative throughout ({values.min():g} at most); compression counted "
                    "negative? turn it over with --flip-sign"
                )
            tally.counts[f"curves whose {channel} was turned over"] += 1
            curve = replace(curve, strain=-values) if channel == "strain" else replace(curve, stress=-values)
    return curve


def _strain_range(curve: Curve, declared: dict[str, str]) -> None:
    """Cases 7 (no strain at all) and 15 (implausible range)."""
    span = float(np.ptp(curve.strain))
    if span == 0:
        raise DataError(
            f"{curve.where}: strain is {curve.strain[0]:g} in all {len(curve.strain)} points; the strain channel is "
            "dead or the wrong column, see --strain-column"
        )
    low, high = STRAIN_RANGE
    if low <= span <= high:
        return
    unit = declared["strain"]
    guess = "percent? microstrain?" if span > high else "is it a ratio already? percent?"
    raise DataError(
        f"{curve.where}: strain covers {span:g} in total with the unit {unit!r}, plausible is {low:g} to {high:g}: "
        f"{guess} declare another --strain-unit (or correct the one in the file)"
    )


def _monotonic(curve: Curve, options: ReadOptions, tally: Tally) -> Curve:
    """Cases 9 (strain does not increase) and 10 (unloading); compared as float32, in which the network sees it."""
    strain = curve.strain.astype(np.float32)
    steps = np.diff(strain)
    if (steps > 0).all():
        return curve
    highest = np.maximum.accumulate(curve.strain)
    travel = (highest - curve.strain) / np.ptp(curve.strain)
    if travel.max() > _CYCLE_OF_RANGE:
        k = int((travel > _CYCLE_OF_RANGE).argmax())
        raise DataError(
            f"{curve.at(k)}: strain goes back to {curve.strain[k]:.6g} after {highest[k]:.6g}, "
            f"{100 * travel.max():.0f} % of its range at most: cyclic or unloading; monotonic tests only, cut the "
            "curve at the first reversal"
        )
    back, same = int((steps < 0).sum()), int((steps == 0).sum())
    if options.on_nonmonotonic == "drop":
        kept = np.concatenate([[True], strain[1:] > np.maximum.accumulate(strain)[:-1]])
        tally.counts["points dropped, strain not increasing"] += int((~kept).sum())
        return _points(curve, kept)
    if options.on_nonmonotonic == "sort":
        order = np.argsort(strain, kind="stable")
        kept = np.concatenate([[True], np.diff(strain[order]) > 0])
        tally.counts["points moved by sorting"] += int((order != np.arange(len(order))).sum())
        tally.counts["points dropped, strain repeated"] += int((~kept).sum())
        return _points(curve, order[kept])
    k = int((steps <= 0).argmax()) + 1
    what = []
    if same:
        what.append(f"{same} repeat the strain before (duplicates, to 7 digits)")
    if back:
        far = -float(steps.min()) / float(np.ptp(strain))
        what.append(f"{back} go back, by {far:.2g} of the range at most (jitter)")
    raise DataError(
        f"{curve.at(k)}: strain is {curve.strain[k]:.7g} after {curve.strain[k - 1]:.7g}; {back + same} of "
        f"{len(steps)} steps do not increase: {' and '.join(what)}; --on-nonmonotonic drop leaves these points out, "
        "--on-nonmonotonic sort orders them"
    )


def _alive(curve: Curve) -> None:
    """Case 16: a dead load channel."""
    if len(np.unique(curve.stress)) < 3:
        raise DataError(
            f"{curve.where}: stress is {curve.stress[0]:g} MPa throughout; the load channel was dead or it is the "
            f"wrong column, see --stress-column, or remove this {curve.kind}"
        )


def _tail(curve: Curve, options: ReadOptions, tally: Tally) -> Curve:
    """Case 17: the specimen has failed, the test went on; a single low point is noise.

    Three points in a row below 80 % of the peak, or the last two, or a last one below 50 %.
    """
    peak = int(curve.stress.argmax())
    after = curve.stress[peak:]
    low = after < (1 - TAIL_OF_PEAK) * after[0]
    if not ((low[2:] & low[1:-1] & low[:-2]).any() or low[-2:].all() or after[-1] < 0.5 * after[0]):
        return curve
    fall = f"stress falls by {100 * (1 - after.min() / after[0]):.0f} % after its peak of {after[0]:.4g} MPa"
    if options.cut_at_peak:
        tally.counts["curves cut at the peak"] += 1
        tally.counts["points cut after the peak"] += len(after) - 1
        return _points(curve, slice(0, peak + 1))
    if options.strict:
        raise DataError(f"{curve.at(peak)}: {fall} there, a tail after failure; cut it with --cut-at-peak")
    tally.odd["have a tail after failure (--cut-at-peak removes it)"].append(
        f"{curve.who}, {curve.row_word} {curve.rows[peak]}: {fall}"
    )
    return curve


def _modulus(curve: Curve, options: ReadOptions, declared: dict[str, str]) -> None:
    """Case 14: a slope that only a wrong unit explains."""
    if options.any_modulus:
        return
    # of the straight line through the first tenth of the strain
    count = int((curve.strain <= curve.strain[0] + 0.1 * (curve.strain[-1] - curve.strain[0])).sum())
    count = min(max(count, 5), len(curve.strain))
    x = curve.strain[:count] - curve.strain[:count].mean()
    slope = float(x @ curve.stress[:count] / (x @ x))
    low, high = MODULUS_MPA
    if low <= slope <= high:
        return
    raise DataError(
        f"{curve.where}: the slope of the first tenth of the strain is {slope:.4g} MPa with strain in "
        f"{declared['strain']!r} and stress in {declared['stress']!r}, plausible is {low:g} to {high:g}; "
        f"{_cause(slope, declared)}; correct the units, or accept any slope with --any-modulus"
    )


def _cause(slope: float, declared: dict[str, str]) -> str:
    """Name the other units that would make the slope plausible."""
    if slope <= 0:
        return "stress does not rise with strain: the columns may be exchanged, or a sign is wrong (--flip-sign)"
    strain, stress = units.factor("strain", declared["strain"]), units.factor("stress", declared["stress"])
    likely = []
    for kind, known, now in (("strain", units.STRAIN, strain), ("stress", units.STRESS, stress)):
        for unit, factor in known.items():
            changed = slope * (now / factor if kind == "strain" else factor / now)
            if factor != now and MODULUS_MPA[0] <= changed <= MODULUS_MPA[1]:
                ratio = changed / slope
                times = f"x{1 / ratio:.3g}" if ratio < 1 else f"/{ratio:.3g}"
                likely.append((abs(np.log(changed / 2000.0)), f"{kind} in {unit} ({times}: {changed:.4g} MPa)"))
    if not likely:
        return "no other single unit explains it"
    return "likely " + ", or ".join(text for _, text in sorted(likely))


def _odd(curve: Curve, tally: Tally) -> None:
    """Note a start away from the origin, and much thinning."""
    peak = float(np.abs(curve.stress).max())
    if abs(curve.stress[0]) > START_OF_PEAK * peak:
        tally.odd["do not start at stress 0 (toe, offset or preload)"].append(
            f"{curve.who} starts at {curve.stress[0]:.4g} MPa, {100 * (abs(curve.stress[0]) / peak):.0f} % of its peak"
        )
    if abs(curve.strain[0]) > START_OF_PEAK * np.ptp(curve.strain):
        tally.odd["do not start at strain 0"].append(f"{curve.who} starts at strain {curve.strain[0]:.4g}")
    if len(curve.strain) > _MAX_REDUCED * material.POINTS:
        tally.odd[f"are thinned more than {_MAX_REDUCED} times to {material.POINTS} points"].append(
            f"{curve.who} has {len(curve.strain)} points"
        )
