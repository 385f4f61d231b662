"""Designs: what is to be run next, given what came of it so far; the one engine runs it, the one ledger remembers.

A design is a generator that yields the cells that are to be run next and receives where these stand then. What is run,
resumed, retried and put into turns is the engine's and the same for all: an interrupted design is begun again, and
what is done is only read.
"""

from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from horovod_study.errors import StudyError
from horovod_study.studies.ledger import Ledger
from horovod_study.studies.runner import RunOptions, StudyResult, run_sweep
from horovod_study.studies.sweep import StudyCells

Design = Generator[StudyCells, Ledger, None]
"""Yields cells that are to be run next, and receives where these stand then."""


def follow(design: Design, how: RunOptions, console: Console) -> StudyResult | None:
    """Run what a design yields until it is at its end or a run is interrupted; None: there was nothing to run."""
    result: StudyResult | None = None
    with suppress(StopIteration):
        sweep = next(design)
        while not (result := run_sweep(sweep, how, console=console)).interrupted:
            sweep = design.send(result.ledger)
    return result


def run_all(sweep: StudyCells, how: RunOptions) -> list[Path]:
    """Run the cells of `sweep` that are not done and return all run directories; what is said goes to standard error.

    StudyError with the reason of the first run that fails, and KeyboardInterrupt after Ctrl-C.
    """
    result = run_sweep(sweep, how, console=Console(stderr=True))
    if result.interrupted:
        raise KeyboardInterrupt
    for each in result.ledger.entries:
        if each.state != "done":
            raise StudyError(f"{each.name}: {each.reason or each.state}; type the same again to go on")
    return [sweep.directory / cell.key for cell in sweep.cells]
