"""Measure, explain, predict and write up how data-parallel training scales.

The public API is small. `recorder`: three lines around any PyTorch training loop give it the run directory, the
analysis and the report of this package (docs/your_script.md). `analyze`, `read_analysis`, `figures`, `read_points`,
`points_of`, `fit`, `predict`, `simulate` (api.py): what notebooks read records with. What a user can do wrong is a
`StudyError`.

    with horovod_study.recorder(model, optimizer, out="runs/mine/2w") as record:
        for images, labels in record.steps(loader):
            ...

    horovod_study.figures(horovod_study.analyze("runs/mine"))["speedup"]

A map of the package:

    train       `python -m horovod_study.train`: the training job that is measured; strain/trainer.py is its loop
    recording   one recorded run, which surrounds that loop and, as `horovod_study.recorder`, anybody's;
                lightning: that of a Lightning Trainer
    cli         `horovod-study VERB`: every other command, a file for each family of verbs
    api         the analysis wing from Python
    config      what is asked for, and the doors it comes in by: options and their roles, study files, partitions,
                anybody's script or command as a workload; the one reader of JSON, YAML and CSV
    records     the run directory, the only place where the two wings meet
    files       the one door for writing result files: completely or not at all, never through a link
    text        numbers, words and progress as readers see them
    errors      what a user can do wrong
    runtimes    what each library declares

    run wing:       studies (what is run, in which order), cluster (where it runs), programs (what ranks run beside
                    training), workload (what is trained), comm (how workers communicate), measure (clocks and probes)
    analysis wing:  analysis (tables in, tables and fitted laws out), report (figures and pages)

The run wing writes run directories, the analysis wing reads them, and neither imports the other.
Importing the package or its analysis wing needs neither PyTorch nor Horovod nor MPI.
"""

import os
import site
import sys


def _look_there_last() -> None:
    """Let the package's own programs look last into what PYTHONPATH names, and into the working directory.

    It is for the user's trainings, and may hold a NumPy of another Python or a typing.py of an old one. Nothing that
    could lie there is imported before this; the environment, and so what trainings see, stays as it is.
    """
    words = getattr(sys, "orig_argv", [])[-len(getattr(sys, "argv", [])) :]
    program = os.path.basename(words[0] if words else "").removeprefix("-m").replace("-", "_")
    if program.partition(".")[0] != "horovod_study":
        return
    own = {os.path.dirname(os.path.dirname(__file__)), os.path.dirname(os.__file__), *site.getsitepackages()}
    named = {os.path.abspath(each) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    sys.path.sort(key=lambda folder: folder in named - own)


_look_there_last()

from typing import TYPE_CHECKING, Any  # noqa: E402

from horovod_study.errors import StudyError  # noqa: E402

if TYPE_CHECKING:
    from horovod_study.api import analyze, figures, fit, points_of, predict, read_analysis, read_points, simulate
    from horovod_study.recording.recorder import recorder

__all__ = [
    "StudyError",
    "analyze",
    "figures",
    "fit",
    "points_of",
    "predict",
    "read_analysis",
    "read_points",
    "recorder",
    "simulate",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # `import horovod_study` takes no time and needs neither PyTorch nor pandas.
    if name == "recorder":
        from horovod_study.recording.recorder import recorder

        return recorder
    if name in __all__:
        from horovod_study import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
