"""Points in, fitted laws with honest intervals out.

Letters: R rows (observations), K distinct places (a worker count on a number of nodes), k parameters of a law,
B sets of medians fitted at once (series, bootstrap replicates, or series with a worker count left out).

The estimate is least squares of the law on the median speedup of the runs at each place, weighted with its rows, inside
the law's bounds. The 95 % interval is by bootstrap over runs where there are three at every worker count, stretched by
t/z with the degrees of freedom that they leave; else Student t with the residuals of the fit. Where the speedup was
divided by runs of the same series, both know that their noise moves all points together. docs/metrics.md, "Laws", has
all of it and its sources.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.base import clone

from horovod_study.analysis.fit.intervals import NOT_IDENTIFIABLE, baseline_noise, profiles, slack_of, spread_of_medians
from horovod_study.analysis.fit.least_squares import Solved, solve
from horovod_study.analysis.fit.rows import (
    Sample,
    by_series,
    check_points,
    one_count,
    point_doubts,
    sample_of,
    shortened,
)
from horovod_study.analysis.laws import LAWS, QUANTITY_LAWS, Law
from horovod_study.analysis.series.culprits import Base, base_of, impossibilities
from horovod_study.errors import AnalysisError
from horovod_study.records import COMMANDS, finite
from horovod_study.text.words import cut, plural

_CLEARLY = 2.0  # times the least error at counts left out: from there on a law is clearly worse
_SAME = 0.01  # errors that differ by less are alike, whatever their ratio
_BAD = 0.10  # error of a selected law from which on none describes the points
_HOPELESS = 0.25  # error of a law at counts left out from which on it is not selected


@dataclass(slots=True, kw_only=True)
class SeriesFit:
    """All laws fitted to one series, the one selected, and every reason to doubt them."""

    DOCUMENT = "baseline base_samples_per_s mode assumed laws selected doubts"

    name: str
    baseline: str  # what the speedup is relative to, in words
    base_samples_per_s: float  # throughput of one worker of that baseline
    mode: str  # "strong", "weak", "mixed" or "unknown", from the recorded batch sizes
    assumed: str | None  # what the laws took for granted because nothing was recorded about it
    fits: dict[str, Law] = field(default_factory=dict)
    selected: str | None = None
    doubts: tuple[str, ...]
    refused: Mapping[str, str] = field(repr=False)  # laws that do not apply -> why
    possible: bool = field(repr=False)  # whether all numbers can be; else no law is selected
    contradicted: Sequence[str] = field(default=(), repr=False)  # those of the doubts that are about what laws deny

    @property
    def laws(self) -> dict[str, Any]:
        """The documents of all fits, with where they turn; its interval of the selected one."""

        def ends(interval: tuple[float, float] | None) -> Any:
            return None if interval is None or math.isinf(interval[0]) else finite(interval)

        laws = {}
        for name, fitted in self.fits.items():
            peak, knee = (fitted.peak_ci95(), fitted.knee_ci95()) if name == self.selected else (None, None)
            places = {"peak": fitted.peak(), "peak_ci95": ends(peak), "knee": fitted.knee(), "knee_ci95": ends(knee)}
            limits = {"limit": fitted.limit(), "bottleneck": fitted.bottleneck()}
            laws[name] = {**finite(fitted), **places, **limits}
        return laws


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityFit:
    """Laws fitted to any positive quantity y(N): the one selected, and every reason to doubt them."""

    DOCUMENT = "laws=fits selected doubts"

    fits: Mapping[str, Law]
    selected: str | None
    doubts: tuple[str, ...]


def fit(
    law: Law,
    workers: ArrayLike,
    speedup: ArrayLike,
    *,
    nodes: ArrayLike | None = None,
    per_node: ArrayLike | None = None,
    scaled_by: int | None = None,
) -> Law:
    """Return a copy of `law` fitted to rows of (workers (R,), speedup (R,)); every row is one run.

    `nodes` and `per_node` (workers that fill a node) say where the rows were measured, for laws with constants of their
    own across nodes. `scaled_by` is the worker count whose median throughput the speedups were divided by, when that
    baseline comes from these rows: its noise then belongs to the intervals.
    A law with more parameters than distinct worker counts is fitted in its `reduced` form where it has one.

    Raises AnalysisError when the rows are not numbers above zero, or too few to determine the parameters.
    """
    copy: Law = clone(law)
    return copy.learn(solve(law, [sample_of(workers, speedup, nodes, per_node, scaled_by)])[0])


def fit_quantity(
    workers: ArrayLike,
    values: ArrayLike,
    *,
    nodes: ArrayLike | None = None,
    laws: Sequence[str] | None = None,
    seed: int = 0,
) -> QuantityFit:
    """Fit the laws of `QUANTITY_LAWS` to rows of a positive quantity: workers (R,), values (R,) in any unit.

    `nodes` are as for `fit`; `laws` are the names of those to fit.
    With one distinct worker count there are no fits, and a doubt that says so.
    Raises AnalysisError when the rows are not numbers above zero.
    """
    sample = sample_of(workers, values, nodes, seed=seed, kind="no value to fit a law to", ordered=True)
    if np.ptp(sample.where[0]) == 0:
        return QuantityFit(fits={}, selected=None, doubts=(one_count(sample.where[0, 0]),))
    doubts, fits = [], {}
    for law in (QUANTITY_LAWS[name] for name in laws or QUANTITY_LAWS):
        solved = solve(law, [sample])[0]
        if isinstance(solved, str):
            doubts.append(f"{law.name} is not fitted: {solved}")
        else:
            fits[law.name] = clone(law).learn(solved)
    selected, why = _select(fits, spread_of_medians(sample))
    return QuantityFit(fits=fits, selected=selected, doubts=(*doubts, *_law_doubts(fits, selected), *why))


def fit_series(
    points: pd.DataFrame,
    *,
    baseline_samples_per_s: float | Mapping[str, float] | None = None,
    laws: Sequence[str] | None = None,
    seed: int = 0,
) -> dict[str, SeriesFit]:
    """Fit all `laws` to every series of `points`, in the order of their names ("" without a `series` column).

    Columns: workers, samples_per_s (samples/s of all workers); optional series, batch_size (per worker), nodes,
    workers_per_node, and train_samples (size of the data set; a fixed one gives Amdahl's law its meaning for epochs).
    Rows of one worker count are its repeats, in their order unless `repeat` numbers them: runs of one repeat may share
    noise. `points.attrs["doubts"]` (see importers) joins the doubts.
    Speedup is throughput over `baseline_samples_per_s` (one number, or one per series name), else over what
    `baselines.base_of` says.

    Raises AnalysisError for rows that are not positive numbers, for a series without its baseline, and for a single
    series with one distinct worker count. Among several series, such a one is returned without fits and says why.
    """
    check_points(points)
    of_file = tuple(points.attrs.get("doubts", ()))
    if "repeat" not in points or points["repeat"].isna().any():
        series = points["series"].astype(str) if "series" in points else pd.Series("", index=points.index)
        points = points.assign(repeat=points.groupby([series, points["workers"]]).cumcount())
    # Sorted, so that neither sums nor drawn runs depend on the order of the rows.
    keys = [key for key in ("nodes", "samples_per_s", "batch_size") if key in points]
    frames = dict(by_series(points.sort_values(["workers", *keys], kind="stable", ignore_index=True)))
    asked = {
        name: _ask(name, rows, base_of(rows, name, baseline_samples_per_s), seed, of_file, alone=len(frames) == 1)
        for name, rows in frames.items()
    }
    samples = {name: sample for name, (_, sample) in asked.items() if sample is not None}
    solved: dict[str, dict[str, Solved | str]] = {name: {} for name in asked}
    for law in LAWS if laws is None else laws:
        for mode in ("strong", "weak"):
            names_of = [name for name in samples if (asked[name][0].mode == "strong") == (mode == "strong")]
            found = solve(LAWS[law].for_mode(mode), [samples[name] for name in names_of])
            for name, one_solved in zip(names_of, found, strict=True):
                solved[name][law] = one_solved
    good = {name: [each for each in found.values() if not isinstance(each, str)] for name, found in solved.items()}
    for laws_of in good.values():
        noise = baseline_noise(laws_of)
        for each in laws_of:
            each.base_noise = noise
    bent = [each for laws_of in good.values() for each in laws_of if each.law.needs_profile]
    ends = {id(each): end for each, end in zip(bent, profiles(bent), strict=True)}
    for name, (one, sample) in asked.items():
        for each in good[name]:
            law, why_not = each.law.name, one.refused.get(each.law.name, "")
            one.fits[law] = clone(LAWS[law].for_mode(one.mode)).learn(each, why_not=why_not, ends=ends.get(id(each)))
        refused = [f"{law} is not fitted: {why}" for law, why in solved[name].items() if isinstance(why, str)]
        why: list[str] = []
        if sample is not None and one.possible:
            one.selected, why, one.contradicted = _select_possible(one.fits, sample)
        odd = [f"{law} does not apply to {one.mode} scaling: {f.why_not_}" for law, f in one.fits.items() if f.why_not_]
        of_laws = _law_doubts(one.fits, one.selected)
        one.doubts = (*one.doubts, *refused, *of_laws, *odd, *why, *one.contradicted)
    return {name: one for name, (one, _) in asked.items()}


def _ask(
    name: str, rows: pd.DataFrame, base: Base, seed: int, of_file: Sequence[str], *, alone: bool
) -> tuple[SeriesFit, Sample | None]:
    """One series before its laws are fitted, and its rows; None with one distinct worker count."""
    n, x = (rows[each].to_numpy(dtype=np.float64) for each in ("workers", "samples_per_s"))
    mode, refused, assumed, mode_doubts = _mode(rows)
    odd = [f"no law is selected: {why}" for why in impossibilities(rows, base.samples_per_s)]
    doubts = [*of_file, *odd, *point_doubts(n, x, base.samples_per_s), *mode_doubts, *filter(None, [base.doubt])]
    sample = None
    if n[0] == n[-1]:
        message = one_count(n[0])
        if alone:
            raise AnalysisError(message if not name else f"series {cut(name, 60)!r}: {message}")
        doubts.append(message)
    else:
        # Nodes and workers per full node of every row; None where that is not known for all of them.
        unknown = np.full(len(n), np.nan)
        nodes, per_node = (
            rows[each].to_numpy(dtype=np.float64) if each in rows else unknown for each in ("nodes", "workers_per_node")
        )
        nodes = np.where(np.isnan(nodes), np.ceil(n / per_node), nodes)
        several = not np.isnan(nodes).any() and nodes.max() > 1
        full = per_node if several and not np.isnan(per_node).any() else None
        of: dict[str, Any] = {"scaled_by": base.workers, "seed": seed, "repeat": rows["repeat"]}
        sample = sample_of(n, x / base.samples_per_s, nodes if several else None, full, **of)
    return SeriesFit(
        name=name,
        baseline=base.words,
        base_samples_per_s=base.samples_per_s,
        mode=mode,
        assumed=assumed,
        doubts=tuple(doubts),
        refused=refused,
        possible=not odd,
    ), sample


def _law_doubts(fits: Mapping[str, Law], selected: str | None) -> Iterator[str]:
    """All doubts of the law selected; of the others, that and why they are not identifiable, one line each."""
    for law, fitted in fits.items():
        if law == selected:
            yield from [f"{law}: {doubt}" for doubt in fitted.doubts_]
        elif fitted.applies:
            yield from [f"{law}: {doubt}" for doubt in fitted.doubts_ if doubt.startswith(NOT_IDENTIFIABLE)][:1]


def _select(fits: Mapping[str, Law], noise: float) -> tuple[str | None, list[str]]:
    """The law that no other clearly beats on worker counts left out, the simplest one; and doubts about it.

    Of the laws that are not beaten, those that apply to the scaling mode and show what they are about come first, and
    among them the one with the fewest parameters within 2 AICc units of the best: the difference below which a model
    has as much support as the best (Burnham and Anderson 2002). `noise` is the relative spread of the medians.
    """
    if not fits:
        return None, []
    counts = max(len(np.unique(fitted.workers_)) for fitted in fits.values())
    if counts < 3:
        return None, [f"no law is selected: {counts} worker counts are on a curve of every law; measure at least 3"]
    if "constant" in fits and "linear" in fits:
        low, high = fits["linear"].intervals_["slope"]
        if low > 0 or high < 0:
            # With few points AICc knows the laws of one parameter only, however badly they fit.
            fits = {name: fitted for name, fitted in fits.items() if name != "constant"}
    off = {name: min(f.loo_rms_, 1.0) for name, f in fits.items() if f.loo_rms_ is not None}
    least = min(off.values(), default=None)
    limit = math.inf if least is None else max(_CLEARLY * least, least + max(_SAME, noise))
    left = {name: fits[name] for name, error in off.items() if error <= limit} or fits
    # Those that apply and show it, those that apply, those that show it, any: the first kind that is there. Points show
    # what a law of costs is about by all parameters and one cost above zero; USL bends to any noise of a straight line.
    kinds = {}
    for name, f in left.items():
        costs = f.form_.costs
        kinds[name] = f.applies, not costs or (f.identifiable and any(f.intervals_[cost][0] > 0 for cost in costs))
    left = {name: f for name, f in left.items() if kinds[name] == max(kinds.values())}
    scored = {name: f.aicc_ for name, f in left.items() if f.aicc_ is not None}
    if scored:
        best = min(scored.values())
        close = [(len(left[name].params_), round(aicc, 6), i, name) for i, (name, aicc) in enumerate(scored.items())]
        selected, doubts = min(entry for entry in close if entry[1] <= best + 2)[3], []
    else:
        fewest = min(len(f.params_) for f in left.values())
        selected = min((f.rmse_, i, law) for i, (law, f) in enumerate(left.items()) if len(f.params_) == fewest)[2]
        doubts = [f"too few points to compare laws: {selected} is the closest of those with the fewest parameters"]
    one = fits[selected]
    if not one.applies:
        doubts.append(
            f"{selected} is selected as a description, for its parameters mean something else here: no law of this "
            "kind of scaling is nearly as close"
        )
    if off.get(selected, 0.0) > _BAD:
        doubts.append(
            f"{selected} is the best of these laws, and off by {100 * off[selected]:.0f} % at worker counts left out "
            "of the fit: none of them describes these points well"
        )
    return selected, doubts


def _select_possible(fits: Mapping[str, Law], sample: Sample) -> tuple[str | None, list[str], list[str]]:
    """The law of `_select` among those that no median refutes, doubts about it, and what the points have against laws.

    A law is refuted where its peak or limit contradicts a median, by more than the spread of the repeats; where it is
    clearly below the highest median, does not fall where the medians beyond that one do, or does not rise where those
    before it do: by more than noise, which is that spread, else the scatter about the best of the other laws.
    """
    n, medians, spread = sample.where[0], sample.medians, spread_of_medians(sample)
    if len(np.unique(n)) < 3:
        return *_select(fits, spread), []
    curves = {name: one.form_.at(sample.where, one.values_) for name, one in fits.items()}
    free = {name: len(n) - len(one.params_) for name, one in fits.items()}
    scatter = {name: math.sqrt(np.sum((curves[name] - medians) ** 2) / free[name]) for name in fits if free[name] > 0}
    top, against = int(np.argmax(medians)), []
    left: dict[str, Law] = {}
    for name, one in fits.items():
        noise = spread or min((each for other, each in scatter.items() if other != name), default=0.0) / medians[top]
        slack = slack_of(noise)
        less, curve = medians < medians[top] * (1 - slack), curves[name]
        before, after = np.flatnonzero(less & (n < n[top])), np.flatnonzero(less & (n > n[top]))
        refuted = one.form_.limit_of(**one.params_) * (1 + slack_of(spread)) < medians[top]
        refuted |= curve[top] < medians[top] * (1 - max(slack, _BAD))
        if len(before):
            refuted |= curve[top] <= curve[before[-1]]
        if len(after):
            low = after[np.argmin(medians[after])]
            refuted |= curve[low] > curve[top] * (1 - slack / 2)
            fall = f"{100 * (1 - medians[low] / medians[top]):.0f} % lower at {n[low]:g}"
            fall = f"{plural(n[top], 'worker', 'g')} and {fall}"
            against = [f"throughput is largest at {fall}: laws that do not fall there are not selected"]
        left |= {} if refuted else {name: one}
    if fits and not left:
        highest = f"{medians[top]:.4g} times the baseline at {n[top]:g} workers"
        return None, [], [*against, f"no law is selected: none has the rise to {highest} and what follows"]
    selected, doubts = _select(left, spread)
    if selected is not None and (off := min(fits[selected].loo_rms_ or 0.0, 1.0)) > _HOPELESS:
        told = f"no law is selected: {selected} is the closest, and off by {100 * off:.0f} % at worker counts left out"
        return None, [told], against
    return selected, doubts, against


def _mode(rows: pd.DataFrame) -> tuple[str, dict[str, str], str | None, list[str]]:
    """Scaling mode, the laws that do not apply with the reason, what was assumed, and doubts.

    The batch per worker says it: constant is weak, a constant total is strong.
    """
    assumed, doubts = None, []
    if rows.attrs.get("unit") == COMMANDS:
        assumed = "the same work with every worker count (strong scaling): what is known is the time of whole commands"
        mode, why = "strong", "a whole command is fixed work"
    elif "batch_size" not in rows or rows["batch_size"].isna().any():
        return "unknown", {}, "fixed work per worker (weak scaling): batch sizes are not recorded", []
    else:
        batch = rows["batch_size"].to_numpy(dtype=np.float64)
        total = batch * rows["workers"].to_numpy(dtype=np.float64)
        if np.ptp(batch) == 0:
            mode, why = "weak", f"{batch[0]:g} samples per worker make the work of a step grow with the workers"
            if "train_samples" in rows and rows["train_samples"].notna().all() and rows["train_samples"].nunique() == 1:
                # Over a fixed data set epochs scale strongly while steps scale weakly, with the same points.
                return mode, {}, None, []
        elif np.ptp(total) <= 0.01 * total.max():
            mode, why = "strong", f"{np.median(total):g} samples in all workers are fixed work"
        else:
            mode, why = "mixed", "neither the batch per worker nor its total is fixed"
            doubts = [f"batch sizes differ ({shortened(np.unique(batch))}): neither strong nor weak scaling"]
    misread = {law.name: why + law.misread * (mode != "mixed") for law in LAWS.values() if mode not in law.modes}
    return mode, misread, assumed, doubts
