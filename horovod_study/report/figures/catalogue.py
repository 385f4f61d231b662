"""The figures of a study, in the order in which a report shows them.

Everything drawn is a column of the analysis; the rows used are written next to the figure as CSV, and what the reader
must know to read it (baseline, formula, what the bars mean) as a caption in a text file.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from horovod_study.analysis.study import Analysis
from horovod_study.report.figures import (
    batches,
    boundary,
    breakdown,
    causes,
    convergence,
    epochs,
    forecast,
    pairs,
    regression,
    resources,
    synchronisation,
    usage,
    workers,
)
from horovod_study.report.kit.drawing import Drawing, write_drawings
from horovod_study.report.kit.style import TEXT, FigureFormat

FIGURES: tuple[Callable[[Analysis], Drawing | Sequence[Drawing] | None], ...] = (
    *(workers.speedup, workers.efficiency, breakdown.breakdown, workers.throughput),
    *(boundary.boundary, synchronisation.synchronisation, forecast.forecast),
    *(convergence.learning, convergence.targets, convergence.sensitivity, resources.resources),
    *(epochs.epoch_time, epochs.weak_scaling, regression.regression, regression.karp_flatt, pairs.transport_ratio),
    *(batches.batch_size, batches.overhead, causes.losses, causes.stragglers, causes.parts, causes.machines),
    *(usage.usage, usage.load),
)
"""Each returns its figure, or None where the analysis has no data for it, in the order in which a report shows them."""


def drawings(analysis: Analysis) -> list[Drawing]:
    """Return the figures that this analysis has data for, in the order in which a report shows them."""
    made = [make(analysis) or () for make in FIGURES]
    return [each for found in made for each in ([found] if isinstance(found, Drawing) else found)]


def write_figures(analysis: Analysis, directory: Path, *, look: FigureFormat = TEXT, pgf: bool = False) -> list[Path]:
    """Write NAME.pdf, .svg, .png, .txt (caption) and .csv (data) of every figure; return the paths.

    With `pgf` also NAME.pgf, which LaTeX sets in the letters of the document. Raises ConfigError for `pgf` without
    LaTeX, and RecordError where `directory` cannot be written.
    """
    return write_drawings(drawings(analysis), directory, look=look, pgf=pgf)
