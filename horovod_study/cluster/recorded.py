"""A command whose training is recorded without a line in its script: `horovod-study record -- COMMAND`.

The command is started as it is, with two environment variables more: one puts the recorder's folder in front of
PYTHONPATH, so that every Python below it loads its sitecustomize, the other says what is asked. What the recorder does
in these processes is in recording/automatic.py.
"""

import glob
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import horovod_study
from horovod_study import records
from horovod_study.errors import RecordError, StudyError
from horovod_study.files import PART, unfinished
from horovod_study.measure.clock import utc_now
from horovod_study.progress import say

VARIABLE = "HOROVOD_STUDY_RECORD"
NO_STEPS = (
    "neither optimizer steps nor backwards were seen, or fewer than two; a script in which nothing of them is "
    "PyTorch's is recorded by three lines of its own, see docs/your_script.md"
)
PASSED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that go on to the command."""


def environment(asked: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of a command whose training is recorded as `asked`."""
    inject = Path(horovod_study.__file__).parent / "recording" / "inject"
    paths = [str(inject), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), VARIABLE: json.dumps(asked)}


def record(
    command: Sequence[str],
    out: Path,
    options: Mapping[str, Any],
    *,
    batch: int | None = None,
    model_name: str | None = None,
    own: Mapping[str, Any],
    requested: Mapping[str, Any] = MappingProxyType({}),
    steps: int | None = None,
) -> int:
    """Run `command`, have its training recorded in the run directory `out`, and return the exit code to end with.

    The code is the command's; 1 where that is 0 and nothing was recorded. `own`: options of the script in which runs
    differ; `requested`: what else a study asked for; `steps`: the training is ended after so many.
    A command that cannot be started is a StudyError.
    """
    out = out.absolute()
    one_training = "declared" in requested  # a cell of a study
    for training in range(1, 2 if one_training else records.MAX_TRAININGS + 1):  # those of an earlier command, too
        records.require_no_run(records.training_directory(out, training))
    out.parent.mkdir(parents=True, exist_ok=True)
    with unfinished(out, folder=True) as meeting:
        asked = {
            "out": str(out),
            "meeting": str(meeting),
            "package": str(Path(horovod_study.__file__).parents[1]),
            "options": dict(options),
            "batch": batch,
            "model_name": model_name,
            "own": dict(own),
            "requested": dict(requested),
            "steps": steps,
            "one_training": one_training,
        }
        code = _run(command, environment(asked))
        seen = _seen(meeting)
    return _judge(out, code, seen)


def _run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    try:
        process = subprocess.Popen(list(command), env=dict(environ))
    except OSError as error:
        raise StudyError(f"{command[0]}: cannot be started ({error.strerror}); is it on PATH?") from None

    def pass_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    # Ctrl-C reaches the command from the terminal: it ends, then this program.
    before = {number: signal.signal(number, pass_on) for number in PASSED}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _seen(meeting: Path) -> list[tuple[str, str]]:
    """Return how far the processes of the command have come, and why some went no further."""
    try:
        return [tuple(json.loads(line)) for line in (meeting / "seen").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return []


def before_the_first_step(out: Path) -> str:
    """Return how far a command has come whose run `out` has no record yet; "" where none is being recorded there."""
    meetings = sorted(out.absolute().parent.glob(f".{glob.escape(out.name)}.*{PART}"))
    if not meetings or (out / records.MANIFEST).exists():
        return ""
    seen = [what for what, _ in _seen(meetings[-1])]
    loaded = seen.count("torch")
    if not loaded:
        return "no steps seen yet: no process of the command has imported torch"
    processes = f"{loaded} process{'' if loaded == 1 else 'es'}"
    return (
        f"no steps seen yet: {processes} of the command imported torch, and the record begins with the second "
        f"step. If this stays so: {NO_STEPS}"
    )


def _judge(out: Path, code: int, seen: Sequence[tuple[str, str]]) -> int:
    found = [_judge_run(records.training_directory(out, each), code) for each in range(1, records.MAX_TRAININGS + 1)]
    if found[0] is None:
        if code == 0:
            say(f"horovod-study record: no run was recorded: {_why_nothing(seen)}")
        return code or 1
    return code or max(each or 0 for each in found)


def _judge_run(out: Path, code: int) -> int | None:
    """Close the record of a run as the exit code of its command says; return 1 where it failed, None without a run."""
    try:
        found = records.read_run(out)
    except RecordError:
        return None
    if found.status == "running":
        reason = f"the command ended with exit code {code} before its training was closed"
        records.finish_run(out, found, status="failed", finished=utc_now(), totals=found.totals, reason=reason)
        say(f"horovod-study record: {out} is incomplete: the command ended with exit code {code}")
    elif found.status == "done" and code:
        reason = f"the command ended with exit code {code} after its training"
        records.finish_run(out, found, status="failed", finished=utc_now(), totals=found.totals, reason=reason)
        say(f"horovod-study record: {out} is complete, but {reason}")
    return int(found.status == "failed")  # then the recorder has said why


def _why_nothing(seen: Sequence[tuple[str, str]]) -> str:
    reached = {what for what, _ in seen}
    if "stopped" in reached:
        return next(why for what, why in seen if what == "stopped")
    if "own recorder" in reached:
        return "the script records itself; start it without `horovod-study record --`"
    if "torch" in reached:
        return NO_STEPS
    return (
        "no Python of the command has imported torch with this environment; python -I, -E and -S hide the recorder, "
        "and so does a command that sets PYTHONPATH itself (keep what is in it: PYTHONPATH=lib:$PYTHONPATH) or a "
        f"launcher that passes PYTHONPATH and {VARIABLE} not on (mpirun -x PYTHONPATH -x {VARIABLE})"
    )
