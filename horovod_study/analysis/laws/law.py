"""A scaling law as an estimator of scikit-learn, and how forecasts continue it."""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from horovod_study.analysis.fit.fitted import ScalingFit, fit
from horovod_study.analysis.fit.form import LawForm, Places, places
from horovod_study.analysis.fit.least_squares import estimate, form_for
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
    parameters are attributes that end in `_`, `intervals_` their 95 % intervals, `form_` the form that was fitted
    (fewer parameters where there are few places), and `fitted_` has doubts, AICc and errors at counts left out.

    A law of one's own is a subclass with `name`, `bounds` and `curve`; from then on it is among `LAWS`.
    """

    place_of_quantity: ClassVar[int] = -1  # among the laws of quantities; below 0: it is none
    text: ClassVar[str] = ""  # its formula
    of_steps: ClassVar[bool] = False  # whether strong scaling has a form of its own
    of_nodes: ClassVar[bool] = False  # whether there are constants across nodes
    fitted_names: ClassVar[Mapping[str, str]] = {}  # of parameters whose attribute is not the name and `_`
    trends: ClassVar[tuple[Trend, ...]] = ()

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
            taken = {"form", "fitted", "params", "intervals"} & set(bounds if isinstance(bounds, Mapping) else ())
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

    @property
    def formula(self) -> str:  # type: ignore[override]
        """The law in one line, in the form that it has."""
        return self.text

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to X (points, 1 or 2) and y (points,); AnalysisError where they do not determine the parameters.

        With weights, or values that are none of a scaling (fewer than one worker, nothing above zero), parameters are
        least squares of the rows, and there are no intervals.
        """
        how: dict[str, Any] = {"y_numeric": True, "dtype": np.float64, "ensure_min_samples": 2}
        points, y = validate_data(self, X, y, **how)
        self._fit_rows(points, np.asarray(y), sample_weight)
        return self

    def _fit_rows(self, X: Floats, y: Floats, sample_weight: ArrayLike | None) -> None:
        n, nodes = X[:, 0], X[:, 1] if X.shape[1] == 2 else None
        for name in self.fitted_names_of(getattr(self, "params_", {})):
            self.__dict__.pop(name, None)
        refuse(
            type(self).__name__,
            (self.mode not in ("weak", "strong"), f"mode is {self.mode!r}; allowed: weak, strong"),
            (self.quantity and self.place_of_quantity < 0, "quantity: is a law of speedups only"),
            (self.multi_node and not self.of_nodes, "multi_node: has no constants across nodes"),
            (self.multi_node and nodes is None, "multi_node: X needs a second column, the nodes"),
            error=AnalysisError,
        )
        if sample_weight is None and (n >= 1).all() and (y > 0).all():
            self.fitted_: ScalingFit | None = fit(self, n, y, nodes=nodes)
            self.form_, self.intervals_ = self.fitted_.law, dict(self.fitted_.ci95)
            found = self.fitted_.params
        else:
            weight = _check_sample_weight(sample_weight, X, dtype=np.float64)
            nothing = "weights must be 0 or more, and some above 0"
            refuse("", (weight.min() < 0 or not weight.max() > 0, nothing), error=AnalysisError)
            possible = nodes is not None and bool(((nodes >= 1) & (nodes <= n)).all())
            if (n < 1).any() or (y <= 0).any() or (nodes is not None and not possible):
                told = "fewer than one worker, nothing above zero, or nodes without workers: nodes are left out"
                warnings.warn(told, stacklevel=3)
            kept = weight > 0
            where = self._where(X[kept], by_nodes=possible and self.of_nodes)
            self.fitted_, self.intervals_, self.form_ = None, {}, form_for(self, where) or self
            values = estimate(self.form_, where, weight[kept][np.newaxis], y[kept][np.newaxis])[0]
            found = dict(zip(self.form_.parameters, values.tolist(), strict=True))
        for name, value in zip(self.fitted_names_of(found), found.values(), strict=True):
            setattr(self, name, value)
        self.params_ = dict(found)

    def predict(self, X: ArrayLike) -> Floats:
        """Return the speedup at X (points, 1 or 2), shape (points,)."""
        check_is_fitted(self)
        points = validate_data(self, X, reset=False, dtype=np.float64)
        where = self._where(points, by_nodes=self.form_.by_nodes)
        return np.array(self.form_.at(where, np.array([*self.params_.values()])))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # of data that are no scaling
        return tags

    def peak(self) -> float:
        """Return the worker count with the highest speedup; inf where it keeps rising."""
        check_is_fitted(self)
        return float(self.form_.peak_of(**self.params_))

    def limit(self) -> float:
        """Return the speedup that no worker count exceeds; inf where there is no such bound."""
        check_is_fitted(self)
        return float(self.form_.limit_of(**self.params_))

    def knee(self) -> float:
        """Return the worker count with the best speedup times efficiency; inf where more always improve it."""
        check_is_fitted(self)
        return float(self.form_.knee_of(**self.params_))

    def fitted_names_of(self, params: Mapping[str, float]) -> list[str]:
        """Return the attributes of fitted parameters."""
        return [self.fitted_names.get(name, f"{name}_") for name in params]

    def _where(self, X: Floats, *, by_nodes: bool) -> Places:
        n = np.maximum(X[:, 0], 1.0)  # fewer than one worker is one
        return places(n, X[:, 1]) if by_nodes else Places(n, np.ones_like(n), n)
