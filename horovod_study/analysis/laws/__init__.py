"""Scaling laws: scikit-learn estimators, by families.

law.py      Law: the estimator; Trend: how forecasts continue a law; LAWS
lines.py    sums and powers: Linear, Gustafson, Power, Log2, Constant
costs.py    computing plus what more workers cost: Amdahl, USL, Ring, Tree, Overlap
"""

from importlib import import_module
from pkgutil import iter_modules

from horovod_study.analysis.laws.law import LAWS, QUANTITY_LAWS, Law, Trend

for _module in iter_modules(__path__):  # each class with a name in them is a law
    import_module(f"{__name__}.{_module.name}")


def all_trends() -> tuple[Trend, ...]:
    """Return what forecasts combine."""
    return tuple(sorted((trend for law in LAWS.values() for trend in law.trends), key=lambda trend: trend.place))


def law_label(name: str) -> str:
    """Return the name of a law for readers; of one that is not there any more, its own."""
    return str(LAWS[name].label) if name in LAWS else name


__all__ = ["LAWS", "QUANTITY_LAWS", "Law", "Trend", "all_trends", "law_label"]
