"""A program of several ranks, on this machine or elsewhere, and the file in which its rank 0 answers.

What trains is a cell of a study (`runner.py`). This is for everything else that needs ranks: a proof, a benchmark.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from horovod_study.cluster.launch import MARKER, LaunchLine, program_line
from horovod_study.cluster.process import GRACE_S, CellProcess
from horovod_study.cluster.reason import failure_reason
from horovod_study.cluster.remote import stop_marked_on
from horovod_study.cluster.runner import StopRequest
from horovod_study.cluster.site import HERE, Site
from horovod_study.documents import conform, parse_json
from horovod_study.errors import StudyError
from horovod_study.files import not_written, write_file
from horovod_study.measure.clock import now

ANSWER = "answer.json"
"""In the job's folder. Not on standard output: launchers put marks of their own into long lines."""

_WAKE_S = 0.1


def answer(value: Mapping[str, Any]) -> None:
    """Give the answer of a program that `run_ranks` has started; called by its rank 0 alone."""
    write_file(Path(os.environ[MARKER]) / ANSWER, json.dumps(value, allow_nan=False))


def run_ranks(
    runtime: str,
    workers: int,
    module: str,
    arguments: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
    tell: Callable[[str], None] | None = None,
    grace_s: float = GRACE_S,
    site: Site = HERE,
) -> dict[str, Any]:
    """Run `python -m module *arguments` on `workers` ranks over `runtime` at `site` and return what rank 0 answered.

    Everything printed goes to `folder`/output.log, whose last line is told about four times a second. `environment`
    is added to this process's. Raises StudyError with the reason in one line when it fails, or takes longer than
    `timeout_s`, and KeyboardInterrupt after Ctrl-C; no process is left either way.
    """
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    log = folder / "output.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ANSWER).unlink(missing_ok=True)
        line = program_line(
            runtime,
            workers,
            ("-m", module, *arguments),
            python=Path(sys.executable),
            out=folder,
            environ={**os.environ, **(environment or {})},
            root=root,
            site=site,
        )
        began = now()
        who = f"{runtime} with {workers} worker{'s' * (workers > 1)}"
        with StopRequest() as stop, _ended_elsewhere(line, grace_s), CellProcess(line, log, grace_s) as process:
            while (exit_code := process.wait(_WAKE_S)) is None:
                if stop.requested:
                    raise KeyboardInterrupt
                if now() - began > timeout_s:
                    raise StudyError(f"{who} gave no answer within {timeout_s:g} s; see {log}")
                if tell is not None:
                    tell(_last_line(log))
        text = log.read_text(encoding="utf-8", errors="replace")
        found = (folder / ANSWER).read_text(encoding="utf-8") if (folder / ANSWER).exists() else ""
    except OSError as error:
        raise StudyError(not_written(folder, error, "choose a writable folder")) from None
    if exit_code or not found:
        reason = failure_reason(text, exit_code)
        raise StudyError(f"{who} failed: {reason}; see {log}")
    answered: dict[str, Any] = conform(
        parse_json(found, source=str(folder / ANSWER), error=StudyError, again=f"see {log}"),
        dict[str, Any],
        str(folder / ANSWER),
        StudyError,
        f"see {log}",
    )
    return answered


@contextmanager
def _ended_elsewhere(line: LaunchLine, grace_s: float) -> Iterator[None]:
    """End what a failure has left on other hosts."""
    try:
        yield
    except BaseException:
        stop_marked_on(line.remote, line.environment[MARKER], grace_s=grace_s, allocation=line.allocation)
        raise


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if len(lines) > 1 else "starting"
