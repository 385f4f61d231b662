"""A program of several ranks, on this machine or elsewhere, and the file in which its rank 0 answers.

What trains is a cell of a study (`runner.py`). This is for everything else that needs ranks: a proof, a benchmark.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from horovod_study.documents import read_json
from horovod_study.errors import StudyError
from horovod_study.files import write_file, writing
from horovod_study.programs.answer import ANSWER
from horovod_study.studies.attempt import TIMED_OUT, ProgramRun
from horovod_study.studies.engine import attempt
from horovod_study.studies.interruption import Interruption
from horovod_study.text.words import plural


def run_ranks(
    module: str,
    runtime: str,
    workers: int,
    folder: Path,
    content: Mapping[str, Any],
    *,
    timeout_s: float,
    variables: Mapping[str, str] = MappingProxyType({}),
    on_progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Run a program on its ranks and return what rank 0 answered; `content` is written into `folder`, and they read it.

    `variables`: of their environment; each rank has one thread where nothing says otherwise. `on_progress` hears the
    last line that was printed, about four times a second. Raises StudyError with the reason in one line when it fails
    or takes too long, and KeyboardInterrupt after Ctrl-C; no process is left either way.
    """
    plan, log = folder / "plan.json", folder / "output.log"
    run = ProgramRun(
        runtime=runtime,
        workers=workers,
        module=module,
        arguments=(str(plan.absolute()),),
        out=folder,
        log=log,
        environment={"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), **variables},
        timeout_s=timeout_s,
        watch=lambda running: on_progress(running.last_line() or "starting"),
    )
    with writing(folder, "choose a writable folder", error=StudyError):
        folder.mkdir(parents=True, exist_ok=True)
        write_file(plan, json.dumps(content, indent=1))
        (folder / ANSWER).unlink(missing_ok=True)
        with Interruption() as stop:
            ended = attempt(run, stop)
    who, again = f"{runtime} with {plural(workers, 'worker')}", f"see {log}"
    if ended.state == TIMED_OUT:
        raise StudyError(f"{who} gave no answer within {timeout_s:g} s; {again}")
    if not ended.done or not (folder / ANSWER).exists():
        raise StudyError(f"{who} failed: {ended.reason or ended.said}; {again}")
    answered: dict[str, Any] = read_json(folder / ANSWER, dict[str, Any], again=again, error=StudyError)
    return answered
