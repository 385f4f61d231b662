"""A program of several ranks, on this machine or elsewhere, and the file in which its rank 0 answers.

What trains is a cell of a study (`runner.py`). This is for everything else that needs ranks: a proof, a benchmark.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from horovod_study.documents import conform, parse_json
from horovod_study.errors import StudyError
from horovod_study.files import write_file, writing
from horovod_study.programs.answer import ANSWER
from horovod_study.studies.attempt import TIMED_OUT, ProgramRun, Running
from horovod_study.studies.engine import attempt
from horovod_study.studies.interruption import Interruption
from horovod_study.text.words import plural


def run_planned(
    module: str,
    runtime: str,
    workers: int,
    folder: Path,
    content: Mapping[str, Any],
    *,
    threads: int,
    variables: Mapping[str, str] = MappingProxyType({}),
    on_progress: Callable[[str], None],
) -> dict[str, Any]:
    """Run a benchmark on its ranks as `run_ranks` does, having written into `folder` the `content` that it reads.

    That is its "plan", with the seconds that it measures, and the "config" of its runs. `threads`: of each rank, where
    the environment says nothing; `variables`: more of its environment.
    """
    path = folder / "plan.json"
    with writing(folder, "choose a writable --out"):
        folder.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(content, indent=1))
    run = ProgramRun(
        runtime=runtime,
        workers=workers,
        module=module,
        arguments=(str(path.absolute()),),
        out=folder,
        log=folder / "output.log",
        environment={"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)), **variables},
        timeout_s=600.0 + 10 * content["plan"]["seconds"],
    )
    return run_ranks(run, on_progress=on_progress)


def run_ranks(run: ProgramRun, *, on_progress: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Run a program on its ranks and return what rank 0 answered.

    `on_progress` hears the last line that was printed, about four times a second. Raises StudyError with the reason in
    one line when it fails or takes too long, and KeyboardInterrupt after Ctrl-C; no process is left either way.
    """

    def watch(running: Running) -> None:
        if on_progress is not None:
            on_progress(running.last_line() or "starting")

    path = run.out / ANSWER
    with writing(run.out, "choose a writable folder", error=StudyError):
        run.out.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with Interruption() as stop:
            ended = attempt(replace(run, watch=watch), stop)
        found = path.read_text(encoding="utf-8") if path.exists() else ""
    who = f"{run.runtime} with {plural(run.workers, 'worker')}"
    if ended.state == TIMED_OUT:
        raise StudyError(f"{who} gave no answer within {run.timeout_s:g} s; see {run.log}")
    if not ended.done or not found:
        raise StudyError(f"{who} failed: {ended.reason or ended.said}; see {run.log}")
    again = f"see {run.log}"
    content = parse_json(found, source=str(path), error=StudyError, again=again)
    answered: dict[str, Any] = conform(content, dict[str, Any], str(path), StudyError, again)
    return answered
