"""Scaling laws as scikit-learn estimators: `from horovod_study.laws import USL`; `USL().fit(X, y)`, X (points, 1 or 2).

Amdahl, USL, Ring, Tree, Overlap              computing plus what more workers cost
Linear, Gustafson, Power, Log2, Constant      sums and powers
Law                                           what a law of one's own is a subclass of
"""

from horovod_study.analysis.laws import LAWS as LAWS
from horovod_study.analysis.laws import QUANTITY_LAWS as QUANTITY_LAWS
from horovod_study.analysis.laws import Law as Law
from horovod_study.analysis.laws.costs import USL as USL
from horovod_study.analysis.laws.costs import Amdahl as Amdahl
from horovod_study.analysis.laws.costs import Overlap as Overlap
from horovod_study.analysis.laws.costs import Ring as Ring
from horovod_study.analysis.laws.costs import Tree as Tree
from horovod_study.analysis.laws.lines import Constant as Constant
from horovod_study.analysis.laws.lines import Gustafson as Gustafson
from horovod_study.analysis.laws.lines import Linear as Linear
from horovod_study.analysis.laws.lines import Log2 as Log2
from horovod_study.analysis.laws.lines import Power as Power
