"""Amdahl's law, S = 1 / (s + (1 - s) / N) (G. Amdahl 1967); s is the serial fraction of fixed work."""

import math

import numpy as np
from numpy.typing import ArrayLike

from horovod_study.analysis.costs import ring_messages
from horovod_study.analysis.laws.law import UNLIKELY, Law, Places, Trend
from horovod_study.analysis.stats import Floats


def karp_flatt(speedup: ArrayLike, workers: ArrayLike) -> Floats:
    """Experimentally determined serial fraction e = (1/S - 1/N) / (1 - 1/N) (Karp and Flatt 1990); NaN at N = 1.

    It needs no fit: e that stays level speaks for serial work, e that rises with N for overhead that grows with N.
    """
    s, n = np.broadcast_arrays(np.asarray(speedup, dtype=np.float64), np.asarray(workers, dtype=np.float64))
    fraction = np.full(s.shape, np.nan)
    several = n > 1
    fraction[several] = (1 / s[several] - 1 / n[several]) / (1 - 1 / n[several])
    return fraction


def amdahl_limit(s: float) -> float:
    """Speedup that Amdahl's law never exceeds, 1 / s."""
    return 1 / s if s > 0 else math.inf


def first_guesses(where: Places, s: Floats) -> list[tuple[float, ...]]:
    """Guesses of s from K places and their speedups (K,); USL begins from them, too."""
    # N/S - 1 = s (N - 1) is linear in s.
    n = where.workers
    weight = np.sum((n - 1) ** 2)
    guess = np.sum((n - 1) * (n / s - 1)) / weight if weight > 0 else 0.0
    return [(float(np.clip(guess, 1e-6, 1.0)),), (0.0,), (1.0,)]


LAW = Law(
    name="amdahl",
    label="Amdahl",
    place=2,
    formula="S = 1 / (s + (1 - s) / N)",
    parameters=("s",),
    bounds=((0.0, 1.0),),
    modes=frozenset({"strong"}),
    misread="; read its s as a share of an epoch over a fixed data set only",
    curve=lambda n, s: n / (1 + s * (n - 1)),
    slopes=lambda n, s: (-n * (n - 1) / (1 + s * (n - 1)) ** 2,),
    starts=first_guesses,
    peak=lambda s: math.inf if s < 1 else 1.0,
    limit=amdahl_limit,
    bottleneck=lambda n, s: "contention" if s > 0 else "none",
    trends=(
        # Of a fixed batch per worker this takes everything that is lost for a cost that grows with N.
        Trend(name="amdahl", place=7, of="time", prior=UNLIKELY, costs=(ring_messages,)),
        Trend(name="sync linear", place=12, of="sync", strong_prior=0.0, costs=(ring_messages,)),
    ),
)
