"""A scaling law as an estimator of scikit-learn, and how forecasts continue it."""

import functools
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from horovod_study.analysis.fit.intervals import (
    NOT_IDENTIFIABLE,
    as_likely,
    intervals_of,
    parameter_doubts,
    peak_and_limit,
    stretched,
)
from horovod_study.analysis.fit.least_squares import REACH, LawForm, Solved, best_counts, estimate, form_for, solve
from horovod_study.analysis.fit.rows import places, sample_of
from horovod_study.analysis.stats import Floats
from horovod_study.errors import AnalysisError, refuse

STEPS = frozenset({"strong", "weak"})  # scaling modes in which a step is the work of one worker, or its Nth part

UNLIKELY = 0.5
"""Prior of trends that level off too late, or too early, for nearly all published curves of the scaling mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How forecasts continue a law: per-worker throughput r = X/N with a free scale, costs not below zero.

    `of` says in what it is a sum of costs f_i(N), with factors c_i that are fitted (`analysis.fit.trends`):

        time    1/r = a + sum of c_i f_i(N), the step time of weak scaling, or N times that of strong scaling
        rate    r = a + c f(N)
        log     log r = a - c log N, the power law
        last    r as at the largest known count
        sync    1/r = a + c f(N), c fitted to `sync_s` and a the rest of the step at the largest known count
        bench   1/r = a + the all-reduce as the micro-benchmark has it, nothing of it fitted
    """

    name: str
    of: str
    place: int = 0  # among the trends
    prior: float = 1.0  # with a fixed batch per worker
    strong_prior: float = 1.0  # with a fixed global batch; zero leaves it out, as above
    costs: tuple[Callable[[Floats], Floats], ...] = ()
    share: Mapping[float, float] | None = None  # workers -> share of the step that is synchronisation
    batch: float = math.nan  # samples per worker and step


LAWS: dict[str, Any] = {}
"""Laws of the speedup by their names, in their order: every subclass of Law with a name, whoever wrote it."""
QUANTITY_LAWS: dict[str, Any] = {}
"""Laws of any positive quantity y(N): seconds, joules, GPU hours. base, alpha, beta and hop are in the unit of y."""


class Law(RegressorMixin, BaseEstimator, LawForm):
    """A scaling law: bounded least squares of its curve on the medians at each place, weighted with their rows.

    `fit(X, y)`: X of shape (points, 1 or 2), workers and, where laws with constants across nodes are to use them,
    nodes; y the speedup over one worker, or any positive quantity. Rows of one place are its repeats. Afterwards
    parameters are attributes that end in `_` (and `params_`), `intervals_` their 95 % intervals, `form_` is the form
    that was fitted (fewer parameters where there are few places), `doubts_` says why not to trust it, and `rmse_`,
    `aicc_` and the errors at counts left out, `loo_median_` and `loo_rms_`, how close it is.
    A fitted law can be called with worker counts, (N,) -> (N,), and nodes where these are known.

    A law of one's own is a subclass with `name`, `bounds` and `curve`; from then on it is among `LAWS`.
    """

    DOCUMENT = (
        "formula=form_.formula params=params_ ci95=intervals_ rmse=rmse_ aicc=aicc_ loo_error=loo_median_ "
        "loo_error_rms=loo_rms_ applies why_not?=why_not_ identifiable doubts=doubts_ "
        "interval_method=interval_method_"
    )

    place_of_quantity: ClassVar[int] = -1  # among the laws of quantities; below 0: it is none
    text: ClassVar[str] = ""  # its formula
    of_steps: ClassVar[bool] = False  # whether strong scaling has a form of its own
    of_nodes: ClassVar[bool] = False  # whether there are constants across nodes
    fitted_names: ClassVar[Mapping[str, str]] = {}  # of parameters whose attribute is not the name and `_`
    trends: ClassVar[tuple[Trend, ...]] = ()

    intervals_: dict[str, tuple[float, float]]
    doubts_: tuple[str, ...]

    def __init__(
        self, *, mode: str = "weak", quantity: bool = False, multi_node: bool = False, scaled: bool = True
    ) -> None:
        """`mode`: what stays the same, the work of a worker ("weak") or of all ("strong"). `quantity`: y is no speedup.

        `multi_node`: constants across nodes, too. `scaled`: the speedup of one worker is free, where the law has that.
        """
        self.mode, self.quantity, self.multi_node, self.scaled = mode, quantity, multi_node, scaled

    def __init_subclass__(cls, **how: Any) -> None:
        super().__init_subclass__(**how)
        if own := cls.__dict__.get("name"):
            known, bounds = type(LAWS.get(own)), getattr(cls, "bounds", {})
            taken = _OWN & set(bounds if isinstance(bounds, Mapping) else ())
            for wrong, why in (
                (not bounds, "declares no bounds"),
                (cls.curve is LawForm.curve, "has no curve"),
                (taken, f"has parameters that are names of an estimator's own: {', '.join(sorted(taken))}"),
                (own in LAWS and known.__qualname__ != cls.__qualname__, f"has the name of {known.__qualname__}"),
            ):
                if wrong:
                    raise TypeError(f"{cls.__qualname__} {why}")
        for laws, quantity in ((LAWS, False), (QUANTITY_LAWS, True)):
            if cls.__dict__.get("name") and not (quantity and cls.place_of_quantity < 0):
                laws[cls.name] = cls(quantity=quantity)
                order = {name: law.place_of_quantity if quantity else law.place for name, law in laws.items()}
                for name in sorted(order, key=lambda name: order[name]):
                    laws[name] = laws.pop(name)

    def __getattr__(self, name: str) -> Any:
        """Raise NotFittedError, an AttributeError, for what only a fit or an interval gives."""
        if name.startswith("__") or not (name.endswith("_") or hasattr(type(self), name)):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        why = "fitted with weights, which give no intervals" if "form_" in vars(self) else "not fitted yet"
        raise NotFittedError(f"{type(self).__name__} has no {name}: it is {why}")

    @property
    def formula(self) -> str:  # type: ignore[override]
        """The law in one line, in the form that it has."""
        return self.text

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to X (points, 1 or 2) and y (points,); AnalysisError where they do not determine the parameters.

        With weights, or values that are none of a scaling (fewer than one worker, nothing above zero), parameters are
        least squares of the rows, and there are no intervals.
        """
        for name in [each for each in vars(self) if each.endswith("_")]:  # of an earlier fit
            delattr(self, name)
        how: dict[str, Any] = {"y_numeric": True, "dtype": np.float64, "ensure_min_samples": 2}
        points, y = validate_data(self, X, y, **how)
        y, n, nodes = np.asarray(y), points[:, 0], points[:, 1] if points.shape[1] == 2 else None
        refuse(
            type(self).__name__,
            (self.mode not in ("weak", "strong"), f"mode is {self.mode!r}; allowed: weak, strong"),
            (self.quantity and self.place_of_quantity < 0, "quantity: is a law of speedups only"),
            (self.multi_node and not self.of_nodes, "multi_node: has no constants across nodes"),
            (self.multi_node and nodes is None, "multi_node: X needs a second column, the nodes"),
            error=AnalysisError,
        )
        if sample_weight is None and (n >= 1).all() and (y > 0).all():
            return self.learn(solve(self, [sample_of(n, y, nodes)])[0])
        weight = _check_sample_weight(sample_weight, points, dtype=np.float64)
        nothing = "weights must be 0 or more, and some above 0"
        refuse("", (weight.min() < 0 or not weight.max() > 0, nothing), error=AnalysisError)
        possible = nodes is not None and bool(((nodes >= 1) & (nodes <= n)).all())
        if (n < 1).any() or (y <= 0).any() or (nodes is not None and not possible):
            told = "fewer than one worker (which counts as one), nothing above zero, or nodes without workers"
            warnings.warn(f"{told}: nodes and intervals are left out", stacklevel=2)
        kept = weight > 0
        where = places(np.maximum(n, 1.0), nodes if possible and self.of_nodes else None)[:, kept]
        form = form_for(self, where) or self
        self._take(form, where, estimate(form, where, weight[kept][np.newaxis], y[kept][np.newaxis])[0])
        return self

    def learn(self, solved: Solved | str, *, why_not: str = "", ends: tuple[Floats, Floats] | None = None) -> Self:
        """Take what least squares found, with intervals and doubts; AnalysisError where it says why there is nothing.

        `why_not` is why the law does not apply to the scaling mode of the points; `ends` are as in `intervals_of`.
        """
        if isinstance(solved, str):
            raise AnalysisError(solved)
        self._take(solved.law, solved.sample.where, solved.values)
        self.solved_, self.why_not_ = solved, why_not
        self.noise_, self.interval_method_, self.intervals_, self.ends_ = intervals_of(solved, ends)
        self.peak_, self.limit_, refuted = peak_and_limit(solved.law, self.params_, solved.sample)
        self.doubts_ = (*parameter_doubts(solved, self.intervals_), *refuted)
        self.aicc_, self.rmse_ = solved.aicc, math.sqrt(solved.error / len(solved.sample.speedup))
        errors = solved.left_out
        self.loo_median_ = None if errors is None else float(np.median(np.abs(errors)))
        self.loo_rms_ = None if errors is None else float(np.sqrt(np.mean(errors**2)))
        return self

    def _take(self, form: LawForm, where: Floats, values: Floats) -> None:
        self.form_, self.values_, self.why_not_ = form, values, ""
        self.params_ = dict(zip(form.parameters, values.tolist(), strict=True))
        for name, value in self.params_.items():
            setattr(self, self.fitted_names.get(name, f"{name}_"), value)
        self.intervals_, self.doubts_ = {}, ()
        self.workers_, nodes, fullest = where
        self.per_node_ = float(fullest.max()) if nodes.max() > 1 else None
        self.peak_, self.limit_ = float(form.peak_of(**self.params_)), float(form.limit_of(**self.params_))

    def predict(self, X: ArrayLike) -> Floats:
        """Return the speedup at X (points, 1 or 2), shape (points,)."""
        check_is_fitted(self)
        points = validate_data(self, X, reset=False, dtype=np.float64)
        nodes = points[:, 1] if points.shape[1] == 2 else None
        return self(np.maximum(points[:, 0], 1.0), nodes)  # fewer than one worker is one

    def __call__(self, n: ArrayLike, nodes: ArrayLike | None = None) -> Floats:
        """Return the speedup at worker counts `n`; without `nodes`, nodes are filled as the fullest one fitted was."""
        counts = np.asarray(n, dtype=np.float64)
        return np.array(self.form_.at(self._places(counts, nodes), self.values_)).reshape(counts.shape)

    def interval(self, n: ArrayLike, nodes: ArrayLike | None = None) -> tuple[Floats, Floats]:
        """Return the 95 % band of the curve at worker counts `n`: (low, high), shapes as `n`; never below zero."""
        counts = np.asarray(n, dtype=np.float64)
        where, form = self._places(counts, nodes), self.form_
        values = np.array(form.at(where, self.values_))
        reach, stretch = self.noise_.reach(form.gradient(where, self.values_))
        if self.solved_.draws is not None:
            low, high = stretched(values, form.at(where, self.solved_.draws), stretch)
        else:
            low, high = values - reach, values + reach
            if self.edge_ is not None:
                curves = form.at(where, self.edge_)
                low, high = np.maximum(low, curves.min(axis=0)), np.minimum(high, curves.max(axis=0))
        return np.maximum(low, 0.0).reshape(counts.shape), np.maximum(high, 0.0).reshape(counts.shape)

    def grid(self, most: int, *, whole: bool = False) -> Floats:
        """Return worker counts from 1 to REACH x `most`, (N,): the fitted ends, and enough between for a smooth line.

        `whole`: for a law with steps, whole counts, between which no run could show them.
        """
        last = max(most + 1, math.ceil(REACH * most))
        return np.unique([*np.linspace(1, last, 49).round(0 if whole else 4), self.workers_[0], self.workers_[-1]])

    def extrapolates(self, n: float) -> bool:
        """Return whether `n` is outside the worker counts that were fitted."""
        return not self.workers_[0] <= n <= self.workers_[-1]

    def peak(self) -> float:
        """Return the worker count with the highest speedup; inf where it keeps rising, NaN where nodes decide or a
        measured point refutes it."""
        return self.peak_

    def limit(self) -> float:
        """Return the speedup that no worker count exceeds; inf where there is no such bound, NaN where nodes decide or
        more was measured."""
        return self.limit_

    def knee(self) -> float:
        """Return the worker count with the best speedup times efficiency; inf where more always improve it."""
        return float(self.form_.knee_of(self.per_node_, **self.params_))

    def peak_ci95(self) -> tuple[float, float] | None:
        """Return the 95 % interval of `peak()`, inf where it is open; None where it is not known."""
        return None if math.isnan(self.peak()) else self._spread_of(1, self.peak())

    def knee_ci95(self) -> tuple[float, float] | None:
        """Return the 95 % interval of `knee()`, inf where it is open; None where it is not known."""
        return self._spread_of(2, self.knee())

    def bottleneck(self) -> str | None:
        """Return what costs most at the largest fitted count: "contention", "communication" or "none"; else None.

        usl says "contention" or "coherency", its word for communication of all with all. amdahl and gustafson know
        serial work only ("contention"), ring, tree and overlap communication; the others claim nothing about causes.
        """
        return self.form_.bottleneck_of(self.workers_[-1], **self.params_)

    @property
    def applies(self) -> bool:
        """Whether the law is about the scaling mode of the points; `why_not_` says what stands against it."""
        return not self.why_not_

    @property
    def identifiable(self) -> bool:
        """Whether the points determine all parameters; `doubts_` says what stands against it."""
        return not any(doubt.startswith(NOT_IDENTIFIABLE) for doubt in self.doubts_)

    @functools.cached_property
    def edge_(self) -> Floats | None:
        """Parameters (B, k) as likely as the ends of a profile, of a law that has one and no replicates."""
        if self.solved_.draws is not None or not self.form_.needs_profile:
            return None
        return as_likely(self.solved_, self.ends_)

    def _spread_of(self, power: int, own: float) -> tuple[float, float] | None:
        """Where the peak (1) or knee (2) of 250 parameter vectors is that are as likely as the interval says."""
        values, moves, draws, per_node = self.values_, self.noise_.moves, self.solved_.draws, self.per_node_
        if not self.identifiable or (draws is None and not np.isfinite(moves).all()):
            return None
        _, stretch = self.noise_.reach(np.eye(len(values)))
        if draws is None:
            generator = np.random.default_rng(0)
            drawn = generator.multivariate_normal(values, moves @ moves.T, 250, method="svd")
        else:
            drawn = draws[:: len(draws) // 250]
        drawn = np.clip(values + (drawn - values) * stretch, *np.array(self.form_.ranges).T)
        where = best_counts(self.form_, drawn, power=power, per_node=per_node)
        low, high = np.quantile(where, [0.025, 0.975], method="closest_observation")
        if self.edge_ is not None:
            where = best_counts(self.form_, self.edge_[:: 1 + len(self.edge_) // 1000], power=power, per_node=per_node)
            low, high = max(low, where.min()), min(high, where.max())
        return min(float(low), own), max(float(high), own)

    def _places(self, n: Floats, nodes: ArrayLike | None) -> Floats:
        n = n.ravel()
        if not self.form_.by_nodes:
            return np.stack([n, np.ones_like(n), n])
        return places(n, per_node=self.per_node_) if nodes is None else places(n, np.ravel(nodes))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # of data that are no scaling
        return tags


_OWN = frozenset(  # attributes of a fitted law that are none of its parameters
    "form values params solved why_not noise interval_method intervals ends peak limit doubts aicc rmse loo_median "
    "loo_rms workers per_node edge n_features_in".split()
)
