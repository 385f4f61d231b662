"""Scaling laws, a file each: what it declares is all that fits, forecasts, figures and pages know of it.

    law.py        Law: name, formula, parameters with bounds, curve with derivatives, first guesses, peak and limit, its
                  other forms, and how forecasts continue it (Trend); places of points; knees
    cost_law.py   the forms of laws whose step is computing plus what an all-reduce costs

A law is any other file with a LAW in it; nobody has a list of them.
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from horovod_study.analysis.laws.law import Law, Trend

_MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
_FOUND: list[Law] = sorted((each.LAW for each in _MODULES if hasattr(each, "LAW")), key=lambda law: law.place)

LAWS: Mapping[str, Law] = MappingProxyType({law.name: law for law in _FOUND})  # laws of the speedup

_OF_QUANTITIES = [law.quantity for law in _FOUND if law.quantity is not None]
QUANTITY_LAWS: Mapping[str, Law] = MappingProxyType(
    {law.name: law for law in sorted(_OF_QUANTITIES, key=lambda law: law.place)}
)
"""Laws of any positive quantity y(N): seconds, joules, GPU hours. base, alpha, beta and hop are in the unit of y."""

TRENDS: tuple[Trend, ...] = tuple(
    sorted((trend for law in _FOUND for trend in law.trends), key=lambda trend: trend.place)
)
"""What forecasts combine."""


def law_label(name: str) -> str:
    """Return the name of a law for readers; of one that is not there any more, its own."""
    return LAWS[name].label if name in LAWS else name
