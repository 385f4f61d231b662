"""Points of known curves: what holding out, forecasting and recommending are tested against."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd


def points(workers: Any, samples_per_s: Any, **columns: Any) -> pd.DataFrame:
    """Return a points table."""
    return pd.DataFrame({"workers": workers, "samples_per_s": np.asarray(samples_per_s, dtype=float), **columns})


def usl(n: Any, alpha: float, beta: float, x1: float = 100.0) -> Any:
    """Return the throughput of the universal scalability law."""
    n = np.asarray(n, dtype=float)
    return x1 * n / (1 + alpha * (n - 1) + beta * n * (n - 1))


def noisy(counts: Sequence[int], truth: Any, *, repeats: int, sigma: float = 0.01, seed: int = 0) -> pd.DataFrame:
    """Return repeats of each point, spread by a relative sigma."""
    rng = np.random.default_rng(seed)
    n = np.repeat(counts, repeats)
    return points(n, np.repeat(truth, repeats) * np.exp(sigma * rng.standard_normal(len(n))))
