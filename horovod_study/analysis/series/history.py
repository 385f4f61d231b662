"""What a run did over time, as curves for an experiment tracker: tag, step, seconds, value."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from horovod_study.config.run import LAPS

POINTS = 1000
"""At most so many points of a curve are made from steps: each is the median, or the rate, of equally many of them."""

COLUMNS = ("tag", "step", "at_s", "value")


def history(rows: Mapping[int, pd.DataFrame], evaluations: Sequence[Mapping[str, float]]) -> pd.DataFrame:
    """Return the curves of a run in long form: columns COLUMNS, sorted by tag and step; `at_s` counts from its begin.

    `rows`: {rank: step rows}. Laps in ms are medians over the steps of a point, then means over ranks; the loss is the
    mean over steps and ranks; samples/s are those of all ranks divided by the time of the slowest. Where a rank has
    fewer rows than another (it was killed), the curves end with the shortest. Unknown laps have no curve.
    """
    frames = [frame for _, frame in sorted(rows.items())]
    length = min((len(frame) for frame in frames), default=0)
    found: list[tuple[str, int, float, float]] = []
    if length:
        size = -(-length // POINTS)
        edges = [*range(0, length, size), length]
        parts = list(pairwise(edges))
        step = frames[0]["step"].to_numpy()
        begin_s = frames[0]["begin_s"].to_numpy(dtype=float)
        if np.isnan(begin_s).any():  # rows of an older program: pauses between the steps are not known
            begin_s = np.cumsum(frames[0]["step_s"].to_numpy(dtype=float))

        def curve(tag: str, values: Sequence[float]) -> None:
            for (_, last), value in zip(parts, values, strict=True):
                if np.isfinite(value):
                    found.append((tag, int(step[last - 1]), float(begin_s[last - 1]), float(value)))

        timed = [*(f"{lap}_s" for lap in (*LAPS, "residual", "step")), "sync_host_s"]
        columns = {
            name: [frame[name].to_numpy(dtype=float)[:length] for frame in frames]
            for name in (*timed, "loss", "samples")
        }
        for name in timed:
            if not any(np.isnan(values).all() for values in columns[name]):
                tag = f"steps/{name.removesuffix('_s')}_ms"
                medians = [1e3 * np.mean([np.nanmedian(v[a:b]) for v in columns[name]]) for a, b in parts]
                curve(tag, [float(value) for value in medians])
        if not any(np.isnan(values).all() for values in columns["loss"]):
            curve("steps/loss", [float(np.mean([v[a:b].mean() for v in columns["loss"]])) for a, b in parts])
        if not any(np.isnan(values).any() for values in columns["step_s"]):
            rates = [
                sum(v[a:b].sum() for v in columns["samples"]) / max(v[a:b].sum() for v in columns["step_s"])
                for a, b in parts
            ]
            curve("steps/samples_per_s", [float(rate) for rate in rates])
    for each in evaluations:
        for name in ("train_mse", "test_mse", "g0_rmse_mpa", "a_rmse", "lr"):
            if np.isfinite(each[name]):
                found.append((f"evaluation/{name}", int(each["steps"]), float(each["wall_s"]), float(each[name])))
    return pd.DataFrame(found, columns=list(COLUMNS)).sort_values(["tag", "step"], kind="stable", ignore_index=True)
