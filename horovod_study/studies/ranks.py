"""A program of several ranks, on this machine or elsewhere, and the file in which its rank 0 answers.

What trains is a cell of a study (`runner.py`). This is for everything else that needs ranks: a proof, a benchmark.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from horovod_study.documents import conform, parse_json
from horovod_study.errors import StudyError
from horovod_study.files import writing
from horovod_study.programs.answer import ANSWER
from horovod_study.studies.attempt import TIMED_OUT, ProgramRun, Running
from horovod_study.studies.engine import attempt
from horovod_study.studies.interruption import Interruption


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
    who = f"{run.runtime} with {run.workers} worker{'s' * (run.workers > 1)}"
    if ended.state == TIMED_OUT:
        raise StudyError(f"{who} gave no answer within {run.timeout_s:g} s; see {run.log}")
    if not ended.done or not found:
        raise StudyError(f"{who} failed: {ended.reason or ended.said}; see {run.log}")
    again = f"see {run.log}"
    content = parse_json(found, source=str(path), error=StudyError, again=again)
    answered: dict[str, Any] = conform(content, dict[str, Any], str(path), StudyError, again)
    return answered
