"""The figures of a study, in the order in which a report shows them.

Everything drawn is a column of the analysis; the rows used are written next to the figure as CSV, and what the reader
must know to read it (baseline, formula, what the bars mean) as a caption in a text file.
"""

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


def drawings(analysis: Analysis) -> list[Drawing]:
    """Return the figures that this analysis has data for, in the order in which a report shows them."""
    made = [
        workers.speedup(analysis),
        workers.efficiency(analysis),
        breakdown.breakdown(analysis),
        workers.throughput(analysis),
    ]
    known = [each for each in made if each is not None]
    waits = synchronisation.drawings(analysis)
    learned = [*forecast.drawings(analysis), *convergence.drawings(analysis), *resources.drawings(analysis)]
    further = [
        each for module in (epochs, regression, pairs, batches, causes, usage) for each in module.drawings(analysis)
    ]
    return [*known, *boundary.drawings(analysis), *waits, *learned, *further]


def write_figures(analysis: Analysis, directory: Path, *, look: FigureFormat = TEXT, pgf: bool = False) -> list[Path]:
    """Write NAME.pdf, .svg, .png, .txt (caption) and .csv (data) of every figure; return the paths.

    With `pgf` also NAME.pgf, which LaTeX sets in the letters of the document. Raises ConfigError for `pgf` without
    LaTeX, and RecordError where `directory` cannot be written.
    """
    return write_drawings(drawings(analysis), directory, look=look, pgf=pgf)
