"""The learning-rate range test: where the loss falls fastest while the rate rises, and where it diverges.

L. Smith, "Cyclical learning rates for training neural networks" (WACV 2017) trains once while the rate rises from one
step to the next and reads good rates off the loss. Two rules for reading are in use, and both are given here: the rate
of steepest descent (Howard and Gugger's fastai), and a tenth of the rate at which the loss diverges. Letter: S steps.
"""

import math
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import numpy as np

from horovod_study.analysis.stats import Floats
from horovod_study.errors import AnalysisError

MIN_STEPS = 50
UNSTEADY = 2.0  # unsteady: more than this many times; and a loss that comes back below that has not diverged yet
_DESCENDED = 0.9  # descended: the smoothed loss has come below this part of the first
MARGIN = 10.0


class RangeTest(SimpleNamespace):
    """What a range test says; rates are values of the option `lr`, None where there is none.

    course: low, high and the number of steps between. rates, losses, smooth (S,): smooth is a running median over
    `window` steps, inf where the loss was no number. lowest_rate, lowest_loss: at the smallest smoothed loss.
    steepest_rate, and slope, d ln(loss) / d ln(rate) there. diverged_rate, careful_rate: a tenth of it. suggested, with
    its reason; doubts.
    """

    DOCUMENT = (
        "suggested reason steepest_rate slope diverged_rate tenth_of_diverged_rate=careful_rate lowest_rate "
        "lowest_loss *course window doubts"
    )

    def lines(self) -> list[str]:
        """Return the result in words."""
        lines = [f"smallest loss {self.lowest_loss:.3g} at lr {self.lowest_rate:.2g}"]
        if self.slope is not None:
            fall = f"{100 * (1 - 10.0 ** (self.slope * 0.1)):.0f} % for every 26 % that the rate rises"
            lines.insert(0, f"steepest descent at lr {self.steepest_rate:.2g}: there the loss falls by {fall}")
        if self.diverged_rate is not None:
            words = "beyond which the loss stays above twice its smallest value; a tenth of it is"
            lines.append(f"divergence at lr {self.diverged_rate:.2g}, {words} {self.careful_rate:.2g}")
        return [*lines, f"suggested: {self.reason}", *(f"doubt: {doubt}" for doubt in self.doubts)]


def smoothed(losses: Floats, window: int) -> Floats:
    """Return the running median of the losses (S,) over `window` steps, an odd number.

        smooth[k] = median(losses[k-h : k+h+1]),  h = min(window // 2, k, S-1-k)

    Centred, so that it lags nowhere, and deaf to single outliers; a loss that is no number is infinitely large.
    """
    known = np.where(np.isfinite(losses), losses, np.inf)
    halves = [min(window // 2, k, len(known) - 1 - k) for k in range(len(known))]
    return np.array([float(np.median(known[k - h : k + h + 1])) for k, h in enumerate(halves)])


def find_rate(rates: Floats, losses: Floats) -> RangeTest:
    """Read learning rates off a range test: rates (S,), rising, and the training loss (S,) of each step.

    With s = smoothed(losses), over an odd window of about S/50 steps:

        smallest loss     m = min(s)
        divergence        if s is more than 4 m, or no number, at some rate beyond that of m: the first step after
                          which s never comes back below 2 m, because a single upset that is overcome says little
        steepest descent  before the smallest loss, the rate in the middle of the half decade in which the
                          least-squares line through (ln rate, ln s) falls most

    A tenth of the divergence is suggested, or the rate of the smallest loss where that is lower; without a divergence
    the steepest descent. AnalysisError: fewer than 50 steps, or rates that do not rise.
    """
    rates, losses = np.asarray(rates, dtype=np.float64), np.asarray(losses, dtype=np.float64)
    window, why = max(5, len(rates) // 50 | 1), ""
    if rates.shape != losses.shape or rates.ndim != 1 or len(rates) < MIN_STEPS:
        why = f"{len(losses)} losses at {len(rates)} rates; at least {MIN_STEPS} steps are needed, give more --steps"
    elif not (rates[0] > 0 and np.all(np.diff(rates) > 0)):
        why = "the rates do not rise from step to step; record it with schedule range"
    elif not np.isfinite((smooth := smoothed(losses, window))[0]):
        why = f"the loss is not a number from the start, at rate {rates[0]:.2g}; lower --low, or check the data"
    if why:
        raise AnalysisError(f"range test: {why}")
    lowest, diverged_rate = int(np.argmin(smooth)), None
    if smooth[lowest:].max() > 4.0 * smooth[lowest]:  # the limit of fastai's range test
        after = int(np.flatnonzero(smooth <= UNSTEADY * smooth[lowest])[-1]) + 1
        diverged_rate = float(rates[after]) if after < len(smooth) else None
    descended = bool(smooth[lowest] < _DESCENDED * smooth[window // 2])
    steepest, slope = _steepest(rates[: lowest + 1], smooth[: lowest + 1]) if descended else (None, None)
    careful = None if diverged_rate is None else diverged_rate / MARGIN
    lowest_rate = float(rates[lowest])
    suggested, reason = None, "none; the loss never fell, so there is nothing to read"
    if descended and careful is not None:
        suggested, reason = careful, "a tenth of the rate at which the loss diverges"
        if careful > lowest_rate:
            suggested, reason = lowest_rate, "the rate of the smallest loss, as a tenth of the divergence is beyond it"
    elif descended:
        suggested, reason = steepest, "the steepest descent, as the loss never diverged"
        if steepest is None:
            reason = "none; the loss fell too briefly to say where"
    found = RangeTest(rates=rates, losses=losses, smooth=smooth, window=window, slope=slope, careful_rate=careful)
    found.course = {"low": float(rates[0]), "high": float(rates[-1]), "steps": len(rates)}
    found.lowest_rate, found.lowest_loss = lowest_rate, float(smooth[lowest])
    found.steepest_rate, found.diverged_rate, found.suggested = steepest, diverged_rate, suggested
    found.reason = reason if suggested is None else f"lr {suggested:.2g}, {reason}"
    found.doubts = tuple(_doubts(rates, smooth, (steepest, diverged_rate, suggested), descended))
    return found


def _steepest(rates: Floats, smooth: Floats) -> tuple[float | None, float | None]:
    """Return the rate of steepest descent and the slope d ln(loss) / d ln(rate) there; None where there is none."""
    x, y = np.log(rates), np.log(smooth)
    per_step = (x[-1] - x[0]) / max(1, len(x) - 1)
    half = min(int(0.5 / 2 * np.log(10) / per_step) if per_step else 0, (len(x) - 1) // 2)
    if half < 1:
        return None, None
    stretches = (np.lib.stride_tricks.sliding_window_view(values, 2 * half + 1) for values in (x, y))  # (centres, W)
    dx, dy = (each - each.mean(axis=1, keepdims=True) for each in stretches)
    slopes = (dx * dy).sum(axis=1) / (dx * dx).sum(axis=1)
    best = int(np.argmin(slopes))
    return (float(rates[half + best]), float(slopes[best])) if slopes[best] < 0 else (None, None)


def _doubts(rates: Floats, smooth: Floats, read: Sequence[float | None], descended: bool) -> Iterator[str]:
    """Yield the doubts about the steepest rate, that of the divergence and the suggested one, which are `read`."""
    steepest, diverged, suggested = read
    early = diverged is not None and diverged < rates[math.ceil(len(rates) / 4)]
    if diverged is None:
        yield f"the loss never diverged up to rate {rates[-1]:.2g}: rates beyond may be better; raise --high to see"
    if not descended:
        few = "the steps are too few or the rates too small; give more --steps or raise --high"
        why = "the first rate is too large already; lower --low" if early else few
        yield f"the loss never fell below {100 * _DESCENDED:.0f} % of its start: {why}"
    elif early:
        yield "the loss diverged in the first quarter of the test, before it could fall far; lower --low"
    if steepest is not None and steepest < rates[len(rates) // 5]:
        yield "the steepest descent is in the first fifth of the test, where only the mean is learned; do not trust it"
    elif steepest is not None and diverged is not None:
        fold = max(MARGIN * steepest / diverged, diverged / MARGIN / steepest)
        if fold > MARGIN:
            yield f"the two rules differ {fold:.0f}-fold; try rates between them, as horovod-study strain search does"
    # The steps after the first whose smoothed loss is more than twice the smallest before them.
    unsteady = rates[1:][smooth[1:] > UNSTEADY * np.minimum.accumulate(smooth)[:-1]]
    if suggested is not None and len(unsteady) and unsteady[0] < suggested:
        rose = f"the loss rose to more than {UNSTEADY:g} times its smallest value already at rate {unsteady[0]:.2g}"
        yield f"{rose}, below the suggested one; smaller rates are safer"
    decades = float(np.log10(rates[-1] / rates[0]))
    if len(rates) < 50 * decades:
        few = f"{len(rates)} steps for {decades:.1f} decades are few: the loss has no time to fall at any rate"
        yield f"{few}; give at least {math.ceil(decades) * 100} --steps"
