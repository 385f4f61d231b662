"""What a run did over time, as curves for an experiment tracker: tag, step, seconds, value."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from horovod_study.config.run import LAPS

POINTS = 1000
"""At most so many points of a curve are made from steps: each is the median, or the rate, of equally many of them."""

COLUMNS = ("tag", "step", "at_s", "value")
_TIMED = [*(f"{lap}_s" for lap in (*LAPS, "residual", "step")), "sync_host_s"]
_EVALUATED = ("train_mse", "test_mse", "g0_rmse_mpa", "a_rmse", "lr")


def history(rows: Mapping[int, pd.DataFrame], evaluations: Sequence[Mapping[str, float]]) -> pd.DataFrame:
    """Return the curves of a run in long form: columns COLUMNS, sorted by tag and step; `at_s` counts from its begin.

    `rows`: {rank: step rows}. Laps in ms are medians over the steps of a point, then means over ranks; the loss is the
    mean over steps and ranks; samples/s are those of all ranks divided by the time of the slowest. Where a rank has
    fewer rows than another (it was killed), the curves end with the shortest. Unknown laps have no curve.
    """
    found = [
        (f"evaluation/{name}", int(each["steps"]), float(each["wall_s"]), float(each[name]))
        for each in evaluations
        for name in _EVALUATED
    ]
    if length := min((len(frame) for frame in rows.values()), default=0):
        part = np.arange(length) // -(-length // POINTS)
        ranks = [frame[:length].assign(rank=rank, part=part) for rank, frame in sorted(rows.items())]
        ends = ranks[0].groupby("part").last()
        if ranks[0]["begin_s"].isna().any():  # rows of an older program: pauses between the steps are not known
            ends["begin_s"] = ranks[0]["step_s"].cumsum().groupby(part).last()
        of_ranks = pd.concat(ranks).astype(dict.fromkeys((*_TIMED, "loss"), float)).groupby(["part", "rank"])
        medians, sums = 1e3 * of_ranks[_TIMED].median(), of_ranks[["samples", "step_s"]].sum()
        curves = {f"steps/{name.removesuffix('_s')}_ms": medians[name].unstack() for name in _TIMED}
        curves["steps/loss"] = of_ranks["loss"].mean().unstack()
        values = {tag: each.mean(axis=1, skipna=False) for tag, each in curves.items()}
        values["steps/samples_per_s"] = sums["samples"].groupby("part").sum() / sums["step_s"].groupby("part").max()
        for tag, curve in values.items():
            found += [
                (tag, int(a), float(b), float(c)) for a, b, c in zip(ends["step"], ends["begin_s"], curve, strict=True)
            ]
    table = pd.DataFrame(found, columns=list(COLUMNS)).sort_values(["tag", "step"], kind="stable")
    return pd.DataFrame(table[np.isfinite(table["value"])].reset_index(drop=True))
