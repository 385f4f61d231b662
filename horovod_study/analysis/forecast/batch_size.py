"""Steps of other batch sizes: what a batch per worker that changes with the scale does to a forecast.

    step(N, b) = c (max(b, 1) / B + a + g log2(N / N_0))

c is the time that computing takes with the largest known batch B; `a` is what a step costs whatever its batch
(launching, the optimiser, synchronisation), and `g` what each doubling of the workers adds (longer synchronisation,
waiting for the slowest), both as shares of c. Workers that share a sample compute no faster. Two points hardly
distinguish the three, so none is fitted: a grid of (a, g) is weighted by its prior, which is what MLPerf's training
results have in common, times the heavy-tailed likelihood of the known points, each compared with the one before it.
docs/metrics.md, "Another batch", has all of it. Letters: P known points, G cells of the grid, M forecasts.
"""

import numpy as np

from horovod_study.analysis.stats import Floats

FIXED = (-2.8, 1.1)  # mean and standard deviation of log a
GROWTH = (-5.1, 1.1)  # the same of log g, where g is not 0
_NO_GROWTH = 0.3  # prior probability that g is 0
FLOOR = 1e-4  # density of the priors far out: nothing is impossible
_POINT = 0.02  # log error of the median of a point
_PER_DOUBLING = 0.02  # log error that a doubling of the workers adds: other software, other hosts
_PER_HALVING = 0.06  # log error that a halving or doubling of the batch adds
_SHARING = 0.5  # between 0.3 and 1 in the three such results of two submitters
_SHARING_ERROR = 0.5  # standard deviation of _SHARING
_FREEDOM = 4.0  # degrees of freedom of the Student likelihood

_A = np.exp(np.linspace(np.log(0.002), np.log(8.0), 36))
_G = np.exp(np.linspace(np.log(0.001), np.log(0.6), 18))
_FIXED, _GROWN = (each.ravel() for each in np.meshgrid(_A, np.append(0.0, _G), indexing="ij"))


def _density(values: Floats, mean: float, deviation: float) -> Floats:
    density = np.exp(-0.5 * ((values - mean) / deviation) ** 2) + FLOOR
    return np.asarray(density / density.sum(), dtype=np.float64)


_PRIOR = np.outer(
    _density(np.log(_A), *FIXED), np.append(_NO_GROWTH, (1 - _NO_GROWTH) * _density(np.log(_G), *GROWTH))
).ravel()


class StepModel:
    """The grid, weighted by known points, each (P,): workers, samples per worker and step, seconds per step.

    Several batches of one worker count are points of their own; repeats of a point are to be their median.
    `batches` are the smallest and largest known batch per worker, `last` is the last known point, from which forecasts
    start: workers, batch, log step.
    """

    def __init__(self, workers: Floats, batch: Floats, step_s: Floats) -> None:
        order = np.lexsort((batch, workers))
        n, b, log_step = workers[order], batch[order], np.log(step_s[order])
        self._first, self.batches = float(n[0]), (float(b.min()), float(b.max()))
        self.last = float(n[-1]), float(b[-1]), float(log_step[-1])
        score = np.log(_PRIOR)
        for i in range(1, len(n)):
            apart = self._log_step(n[i], b[i]) - self._log_step(n[i - 1], b[i - 1])
            variance = 2 * _POINT**2 + _PER_DOUBLING**2 * np.log2(n[i] / n[i - 1])
            variance += _PER_HALVING**2 * abs(np.log2(b[i] / b[i - 1]))
            squares = (log_step[i] - log_step[i - 1] - apart) ** 2 / variance
            score -= (_FREEDOM + 1) / 2 * np.log1p(squares / _FREEDOM)
        weight = np.exp(score - score.max())
        self._weight = weight / weight.sum()  # (G,)

    def _log_step(self, workers: float, batch: float) -> Floats:
        """(G,) log step in units of c; workers relative to the fewest known, batch and one sample to the largest."""
        largest = self.batches[1]
        shared = _SHARING * max(0.0, -float(np.log(batch)))
        more = np.maximum(_FIXED + _GROWN * np.log2(workers / self._first), 0.0)  # fewer save no more than it all
        return np.asarray(np.log(max(batch, 1.0) / largest + more) + shared, dtype=np.float64)

    def _moments(self, values: Floats, batch: float) -> tuple[float, float]:
        """Mean and variance over the grid, with that of a batch outside the known ones, and of a shared sample."""
        mean, (low, high) = float(self._weight @ values), self.batches
        away = max(0.0, float(np.log2(low / batch)), float(np.log2(batch / high)))
        beyond = _PER_HALVING**2 * away + (_SHARING_ERROR * max(0.0, -float(np.log(batch)))) ** 2
        return mean, float(self._weight @ (values - mean) ** 2) + beyond

    def log_step(self, workers: float, batch: float) -> tuple[float, float]:
        """Log of the step in seconds with `batch` samples on each of `workers`, and its standard deviation."""
        n, b, log_step = self.last
        mean, variance = self._moments(self._log_step(workers, batch) - self._log_step(n, b), batch)
        variance += 2 * _POINT**2 + _PER_DOUBLING**2 * abs(np.log2(workers / n))
        return log_step + mean, float(np.sqrt(variance))

    def change(self, workers: float, before: float, after: float) -> tuple[float, float]:
        """What batch `after` instead of `before` adds to the log of the step, and its standard deviation."""
        mean, variance = self._moments(self._log_step(workers, after) - self._log_step(workers, before), after)
        return mean, float(np.sqrt(variance))
