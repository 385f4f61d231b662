"""The figures of a study, in the order in which a report shows them.

Everything drawn is a column of the analysis; the rows used are written next to the figure as CSV, and what the reader
must know to read it (baseline, formula, what the bars mean) as a caption in a text file.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from horovod_study.analysis.study import Analysis
from horovod_study.report.figures import causes, convergence, scaling, waiting
from horovod_study.report.grammar import Figure, write_files

FIGURES: tuple[Callable[[Analysis], Figure | Sequence[Figure] | None], ...] = (
    *(scaling.speedup, scaling.efficiency, causes.breakdown, scaling.throughput),
    *(waiting.boundary, waiting.synchronisation, scaling.forecast),
    *(convergence.learning, convergence.targets, causes.resources),
    *(scaling.epoch_time, scaling.weak_scaling, scaling.regression, waiting.transport_ratio),
    *(waiting.batch_size, causes.losses, causes.machines),
    *(causes.usage, causes.load),
)  # each returns its figure, or None where the analysis has no data for it, in the order in which a report shows them


def drawings(analysis: Analysis) -> list[Figure]:
    """Return the figures that this analysis has data for, in the order in which a report shows them."""
    made = [make(analysis) or () for make in FIGURES]
    return [each for found in made for each in ([found] if isinstance(found, Figure) else found)]


def write_figures(analysis: Analysis, directory: Path, *, share: tuple[int, int] = (0, 3), **how: Any) -> list[Path]:
    """Write the files of every figure, as `grammar.write_files` says; return the paths.

    `share`: of which thirds of the figures, where several processes write them.
    """
    made = drawings(analysis)
    first, after = (len(made) * each // 3 for each in share)
    return write_files(made[first:after], directory, **how)
