"""Scaling laws as scikit-learn estimators: `from horovod_study.laws import USL`; `USL().fit(X, y)`, X (points, 1 or 2).

Amdahl, USL, Ring, Tree, Overlap              computing plus what more workers cost
Linear, Gustafson, Power, Log2, Constant      sums and powers
Law                                           what a law of one's own is a subclass of
"""

from horovod_study.analysis.laws import LAWS, QUANTITY_LAWS, Law
from horovod_study.analysis.laws.costs import USL, Amdahl, Overlap, Ring, Tree
from horovod_study.analysis.laws.lines import Constant, Gustafson, Linear, Log2, Power

__all__ = [
    "LAWS",
    "QUANTITY_LAWS",
    "USL",
    "Amdahl",
    "Constant",
    "Gustafson",
    "Law",
    "Linear",
    "Log2",
    "Overlap",
    "Power",
    "Ring",
    "Tree",
]
