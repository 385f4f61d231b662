"""What a study forecasts: throughput beyond its largest worker count, how such forecasts did, how many workers to take.

The forecasts are those of `prediction.predict` from the finished parallel runs of each series, at twice, four and eight
times the largest measured count, and at full nodes in between where runs on several nodes tell how many workers fill
one. Beside them stand the same method's errors with the largest counts hidden (holdout.py) and the recommended worker
counts (recommendation.py). A series that cannot be forecast has no rows and says why.
"""

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from horovod_study.analysis.fit.fitting import SeriesFit
from horovod_study.analysis.forecast import holdout
from horovod_study.analysis.forecast.prediction import predict
from horovod_study.analysis.forecast.recommendation import knots, recommend
from horovod_study.analysis.laws import LAWS
from horovod_study.analysis.series.baselines import base_of, impossibilities
from horovod_study.records import finite

_MULTIPLES = (2, 4, 8)  # times the largest measured worker count
MEASURED, FORECAST, CURVE = "measured", "forecast", "curve"  # kinds of rows; the last one only draws the line
FEWEST_COUNTS = 3  # of a forecast or a law of a study: through two points every law passes, and none is tested
DRAWS = 400  # fewer than for one series at a terminal: a study may have a hundred of them

FORECAST_COLUMNS = (
    *("series", "setting", "kind", "workers", "nodes", "samples_per_s", "low", "high"),
    *("samples_per_s_min", "samples_per_s_max", "ideal_samples_per_s", "efficiency", "law", "doubts"),
)
"""`low`, `high`: 95 % interval of a forecast; `_min`, `_max`: repeats of a measured count; `efficiency`: of ideal."""


Outlook: TypeAlias = SimpleNamespace
"""table (FORECAST_COLUMNS), and document: scores and recommendations, {"series": ..., "summary": ...}."""


def nothing() -> Outlook:
    """An outlook without series."""
    return Outlook(table=pd.DataFrame(columns=list(FORECAST_COLUMNS)), document={"series": {}, "summary": {}})


def outlook(
    rows: pd.DataFrame,
    *,
    settings: Mapping[str, str],
    bases: Mapping[str, float],
    fits: Mapping[str, SeriesFit],
    room: Mapping[str, int] | None = None,
    seed: int = 0,
) -> Outlook:
    """Return the outlook of runs: columns series, workers, nodes, samples_per_s; optional sync_s, batch_size.

    In the order of `settings`, which names the setting of each series; `bases` gives throughputs of one worker that
    ideal scaling multiplies (default: per worker at the smallest measured count), `fits` the laws that were fitted,
    `room` the most workers that the one machine of a series has cores for: beyond it nothing is forecast. A document
    says as `no_forecast` why a series has none.
    """
    lines: list[dict[str, Any]] = []
    scores: dict[str, holdout.Scores] = {}
    documents: dict[str, Any] = {}
    for name, setting in settings.items():
        own = rows[rows["series"] == name].sort_values(["workers", "samples_per_s"], kind="stable")
        if own.empty:
            continue
        law = (name in fits and fits[name].selected) or ""
        scores[name] = holdout.score(own, laws=(law,) if law in LAWS else ())[name]
        document = {**finite(scores[name]), "rolling": None, "recommendation": None, "no_forecast": ""}
        if not scores[name].why_not:
            fewer = len(scores[name].hidden) - 1
            nearer = holdout.score(own, hide=fewer, rolling=True, laws=()) if fewer else {}
            document["rolling"] = holdout.over_all([scores[name], *nearer.values()], holdout.COMBINED)
        counts, most = own["workers"].nunique(), (room or {}).get(name)
        if counts < FEWEST_COUNTS:
            document["no_forecast"] = f"{counts} worker count{'s' * (counts > 1)}, and a law is tested by three or more"
        elif odd := [why for why in impossibilities(own, base_of(own).samples_per_s) if "is a part of" not in why]:
            document["no_forecast"] = odd[0]
        else:
            per_node = holdout.planned_per_node(own)
            found = recommend(own, workers_per_node=per_node, fits=fits, draws=DRAWS, seed=seed)
            document["recommendation"] = finite(found[name])
            if most is None or most >= _MULTIPLES[0] * own["workers"].max():
                own_lines = _lines(own, name, bases.get(name), per_node, most)
                lines += [{"series": name, "setting": setting, **line} for line in own_lines]
            else:
                document["no_forecast"] = (
                    f"its machine has {most} cores, which further workers would share: a forecast takes more nodes"
                )
        documents[name] = document
    if not documents:
        return nothing()
    table = pd.DataFrame(lines, columns=list(FORECAST_COLUMNS))
    texts = ("series", "setting", "kind", "law", "doubts")
    numbers = {column: "float64" for column in FORECAST_COLUMNS if column not in texts}
    table = table.assign(doubts=table["doubts"].astype(object).fillna("")).astype({**numbers, "workers": "int64"})
    return Outlook(table=table, document={"series": documents, "summary": holdout.summarise(scores)})


def _lines(
    own: pd.DataFrame, name: str, base: float | None, per_node: int | None, most: int | None
) -> list[dict[str, Any]]:
    largest = int(own["workers"].max())
    base = base_of(own).samples_per_s if base is None else base
    told = {largest * multiple for multiple in _MULTIPLES}
    if per_node is not None:
        told |= {per_node * 2**i for i in range(40) if largest < per_node * 2**i < largest * _MULTIPLES[-1]}
    told = {count for count in told if most is None or count <= most}
    between = set(knots(largest, max(told), (), per_node)) - told
    lines: list[dict[str, Any]] = []
    for count, runs in own.groupby("workers", sort=True):
        x, nodes = runs["samples_per_s"].to_numpy(dtype=np.float64), runs["nodes"].to_numpy(dtype=np.float64)
        ends = {"samples_per_s_min": float(x.min()), "samples_per_s_max": float(x.max())}
        head = {"kind": MEASURED, "workers": count, "nodes": nodes[0], "law": MEASURED}
        lines.append({**head, "samples_per_s": float(np.median(x)), **ends})
    for one in predict(own, workers=sorted(told | between), workers_per_node=per_node)[name]:
        line = {each: getattr(one, each) for each in ("workers", "samples_per_s", "low", "high", "law")}
        line |= {"kind": FORECAST if one.workers in told else CURVE, "doubts": "; ".join(one.doubts)}
        lines.append({**line, "nodes": math.nan if one.nodes is None else one.nodes})
    for line in lines:
        line["ideal_samples_per_s"] = base * line["workers"]
        line["efficiency"] = line["samples_per_s"] / line["ideal_samples_per_s"]
    return lines
