"""A command whose training is recorded without a line in its script: `horovod-study record -- COMMAND`.

The command is started as it is, with two environment variables more: one puts the recorder's folder in front of
PYTHONPATH, so that every Python below it loads its sitecustomize, the other says what is asked. Its processes leave
events and facts in a folder (recording/rank); how they end does not matter. Here they become run directories: of each
training that was seen, and of the whole command where no step was.
"""

import fcntl
import glob
import json
import os
import pty
import select
import shutil
import signal
import stat
import subprocess
import sys
import termios
import tty
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import numpy as np

import horovod_study
from horovod_study import records
from horovod_study.cluster import alive
from horovod_study.comm.launch import LAUNCH_VARIABLES
from horovod_study.errors import StudyError
from horovod_study.files import PART, unfinished, write_file, writing
from horovod_study.recording.steps import steps_of
from horovod_study.recording.trainings import (
    ASKED,
    MAX_TRAININGS,
    OWN_RECORDER,
    CommandRun,
    asked_of,
    processes_in,
    training_directory,
    trainings_of,
    worth_keeping,
)
from horovod_study.text.progress import say

VARIABLE = "HOROVOD_STUDY_RECORD"
NO_STEPS = (
    "neither optimizer steps nor backwards were seen, or fewer than two; a script in which nothing of them is "
    "PyTorch's is recorded by three lines of its own, see docs/your_script.md"
)
ENDED_WITH = "the command ended with exit code"
"""Begins the reason of a run whose command has failed; why, its output says."""
PASSED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that go on to the command."""
_LOOK_S = 0.5
_EVENTS = f"-events{PART}"
"""Ending of the hidden folder of a command's events, which `close_left` alone takes away when its maker was killed."""
_BY_SIGNAL = {124: "timeout", 130: "SIGINT", 137: "SIGKILL", 143: "SIGTERM"}
"""Exit codes of commands that were ended from outside: what they have trained until then is a measurement."""


def asked_file(out: Path) -> Path:
    """Return the file that tells ranks which this package has started itself what is asked of them."""
    return out.with_name(f".{out.name}.asked")


def environment(asked: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of a command whose training is recorded as `asked`."""
    inject = str(Path(__file__).parent / "inject")
    kept = os.environ.get("PYTHONPATH")
    path = inject if not kept else os.pathsep.join([inject, kept])  # an empty part of it is the working directory
    return {**os.environ, "PYTHONPATH": path, VARIABLE: json.dumps(asked)}


def record(
    command: Sequence[str],
    out: Path,
    options: Mapping[str, Any],
    about: Mapping[str, Any] = MappingProxyType({}),
    *,
    steps: int | None = None,
    workers: int | None = None,
    rate: str | None = None,
    told: bool = False,
) -> int:
    """Run `command`, have its training recorded in the run directory `out`, and return the exit code to end with.

    The code is the command's, also where nothing could be recorded. `about`: what else is known of it: batch,
    model_name, own (options of the script in which runs differ), requested (what else a study asked for); `steps`: the
    training is ended after so many; `workers`: how many a study has started; `rate`: a regular expression, whose first
    group is the rate in the output of a command without steps; `told`: its ranks read what is asked from `asked_file`.
    A command that cannot be started is a StudyError.
    """
    out = out.absolute()
    about = {"batch": None, "model_name": None, "own": {}, "requested": {}, **about}
    one_training = (
        "declared" in about["requested"]
    )  # a cell of a study: what a killed runner leaves of it is made again
    if not one_training:
        close_left(out.parent)
    for training in range(1, 2 if one_training else MAX_TRAININGS + 1):  # those of an earlier command, too
        records.require_no_run(training_directory(out, training))
    with ExitStack() as held:
        with writing(out, "choose a writable --out, with some room"):
            out.parent.mkdir(parents=True, exist_ok=True)
            made = held.enter_context(unfinished(out, folder=True))
            meeting = made if one_training else made.with_name(f"{made.name.removesuffix(PART)}{_EVENTS}")
            asked = {
                "out": str(out),
                "meeting": str(meeting),
                "package": str(Path(horovod_study.__file__).parent),
                "options": dict(options),
                "steps": steps,
                "trainings": MAX_TRAININGS,
                "variables": LAUNCH_VARIABLES,
            }
            me = {"about": about, "host": os.uname().nodename, "pid": os.getpid()}
            write_file(made / ASKED, json.dumps({**asked, **me}))
            held.callback(shutil.rmtree, made.rename(meeting), ignore_errors=True)
            if told:
                write_file(asked_file(out), json.dumps(asked))
                held.callback(asked_file(out).unlink, missing_ok=True)
        run = CommandRun(out, meeting, options, about)
        held.callback(run.close)
        code = _run(command, os.environ if told else environment(asked), run)
        try:
            _close(run, command, code, workers=workers, rate=rate, cell=one_training)
        except (StudyError, OSError) as error:  # the command has run, and how it ended is what counts
            say(f"error: not recorded: {error}")
        return code


def close_left(folder: Path) -> None:
    """Make run directories of what commands in `folder` have left whose recorder was killed, once they have ended."""
    for meeting in folder.glob(f".*{_EVENTS}"):
        asked = asked_of(meeting)
        _, processes = processes_in(meeting)
        mine = all(each.opened.get("host", os.uname().nodename) == os.uname().nodename for each in processes)
        pids = [each.opened["pid"] for each in processes if each.opened]
        if not mine or asked.get("host") != os.uname().nodename or any(map(alive.runs, [asked["pid"], *pids])):
            continue
        out = Path(asked["out"])
        trainings = worth_keeping(trainings_of(processes), asked["options"]["warmup_steps"])
        with suppress(StudyError, OSError):
            if (out / records.MANIFEST).exists() and records.read_run(out).state() != "incomplete":
                trainings = []
            for number, training in enumerate(trainings[:MAX_TRAININGS], 1):
                if number == 1:
                    say(f"horovod-study record: {out} was left by a recorder that was killed, and is closed")
                    run = CommandRun(out, meeting, asked["options"], asked["about"], over=True)
                training.ended = "without its recorder, which was killed"
                run.write(training, number, failed="")
        shutil.rmtree(meeting, ignore_errors=True)


class Output:
    """The standard output and error of a command, as `subprocess.Popen` takes them: passed on as they come, and kept.

    A file that it writes to directly stays its own; a pipe and a terminal get another one of their kind between them,
    so that the command finds what it would find without a recorder. What comes out there `tee` passes on, and does so
    for processes, too, that the command has left.
    """

    def __init__(self, folder: Path) -> None:
        self._kept: dict[Path, int] = {}  # file with what it prints -> where that begins
        self._theirs: list[int] = []
        self._passing: list[int] = []  # processes that pass it on
        sys.stdout.flush()
        self.stdout = self._between(1, folder / "stdout")
        same = os.path.sameopenfile(1, 2) and self.stdout is not None
        self.stderr = self.stdout if same else self._between(2, folder / "stderr")

    def _between(self, own: int, copy: Path) -> int | None:
        """Return the descriptor that the command is given for one of ours, None for ours."""
        about = os.fstat(own)
        if os.isatty(own):
            read, write = pty.openpty()
            with suppress(OSError, termios.error):
                fcntl.ioctl(write, termios.TIOCSWINSZ, fcntl.ioctl(own, termios.TIOCGWINSZ, b"\0" * 8))
                tty.setraw(write)  # the terminal itself does what is to be done with line ends
        elif stat.S_ISFIFO(about.st_mode) or stat.S_ISSOCK(about.st_mode):
            read, write = os.pipe()
        else:
            if stat.S_ISREG(about.st_mode):
                self._kept[Path(f"/proc/{os.getpid()}/fd/{own}").resolve()] = about.st_size
            return None
        places = [(os.POSIX_SPAWN_DUP2, read, 0), (os.POSIX_SPAWN_DUP2, own, 1)]
        quiet = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
        words = ["tee", "-i", str(copy)]
        self._passing.append(os.posix_spawnp("tee", words, os.environ, file_actions=[*places, quiet], setsid=True))
        os.close(read)
        self._kept[copy] = 0
        self._theirs.append(write)
        return write

    def started(self) -> None:
        """The command has what it is given."""
        for each in self._theirs:
            os.close(each)

    def text(self) -> str:
        """Return the last million bytes of what the command has printed."""
        parts = []
        for path, begin in self._kept.items():
            with suppress(OSError), path.open("rb") as stream:
                stream.seek(max(begin, path.stat().st_size - 1_000_000))
                parts.append(stream.read())
        return b"\n".join(parts).decode(errors="replace")

    def close(self) -> None:
        """Wait until it is passed on, but not for what processes print that the command has left."""
        for each in self._passing:
            passing = os.pidfd_open(each)
            if select.select([passing], [], [], 1.0)[0]:
                os.waitpid(each, 0)
            os.close(passing)


def _run(command: Sequence[str], environ: Mapping[str, str], run: CommandRun) -> int:
    output = Output(run.meeting)
    run.printed = output.text
    try:
        process = subprocess.Popen(list(command), env=dict(environ), stdout=output.stdout, stderr=output.stderr)
    except OSError as error:
        words = "" if "/" in command[0] else "; is it on PATH?"
        if " " in command[0]:
            words = "; give the words of the command without quotes around them"
        raise StudyError(f"{command[0]}: cannot be started ({error.strerror}){words}") from None
    finally:
        output.started()
    run.started(process.pid)

    def pass_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    def interrupt(number: int, frame: FrameType | None) -> None:
        # Ctrl-C reaches the command from the terminal: it ends, then this program.
        if not any(os.isatty(each) and os.tcgetpgrp(each) == os.getpgrp() for each in (0, 1, 2)):
            pass_on(number, frame)

    before = {number: signal.signal(number, pass_on) for number in PASSED}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    ended, looking = os.pidfd_open(process.pid), True
    try:
        while not select.select([ended], [], [], _LOOK_S if looking else None)[0]:
            looking = looking and run.look()
        code = process.wait()
        run.ended()
    finally:
        os.close(ended)
        output.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _close(
    run: CommandRun, command: Sequence[str], code: int, *, workers: int | None, rate: str | None, cell: bool
) -> None:
    """Write what was seen, and say what is to be known of it."""
    seen, processes = processes_in(run.meeting)
    if not run.meeting.is_dir():
        raise StudyError(f"{run.meeting.parent}: what was noted there was removed while the command ran")
    trainings = worth_keeping(trainings_of(processes), run.options["warmup_steps"])
    if OWN_RECORDER in seen:
        say("horovod-study record: the script records itself; start it without `horovod-study record --`")
        return
    stopped = next((each.stopped for each in processes if each.stopped and not each.seen), "")
    if stopped:
        say(f"horovod-study record: no run was recorded: {stopped}")
        return
    if not trainings:
        why = NO_STEPS if "torch" in seen else "no Python of it imports torch" if "python" in seen else _UNSEEN
        ended = "" if cell else _BY_SIGNAL.get(code, "")
        run.write_command(command, 0 if ended else code, workers=workers, rate=rate, why=why, ended=ended)
        return
    kept = trainings[: 1 if cell else MAX_TRAININGS]
    if cell and len(trainings) > 1:
        say(f"note: the longest of {len(trainings)} trainings of this command is measured, and the others are not")
    elif len(trainings) > len(kept) or any(each.more for each in processes):
        say(f"horovod-study record: this command has trained more than {len(kept)} times; the longest are recorded")
    for number, training in enumerate(kept, 1):
        ended = "" if not code else f"{ENDED_WITH} {code} after its training"
        if code in _BY_SIGNAL and not cell:
            training.ended = "" if all(each.ended for each in training.ranks) else f"by {_BY_SIGNAL[code]}"
            ended = ""
        run.write(training, number, failed=ended)


_UNSEEN = (
    "no Python of it has loaded the recorder; one before 3.9 is not recorded, python -I, -E and -S hide it, and so "
    "does what empties the environment or sets another PYTHONPATH (env -i, sudo), or a launcher that keeps it back "
    f"(mpirun -x PYTHONPATH -x {VARIABLE})"
)


def before_the_first_step(out: Path) -> str:
    """Return how far a command has come whose run `out` has no record yet; "" where none is being recorded there."""
    meetings = _meetings(out)
    if not meetings or (out / records.MANIFEST).exists():
        return ""
    seen, _ = processes_in(meetings[-1])
    loaded = seen.count("torch")
    if not loaded:
        return "no steps seen yet: no process of the command has imported torch"
    return (
        f"no steps seen yet: {loaded} process{'es' * (loaded > 1)} of the command imported torch, and the record "
        f"begins with the second step. If this stays so: {NO_STEPS}"
    )


def noted_steps(out: Path) -> dict[int, Mapping[str, Any]]:
    """Return the steps that the ranks of a run that goes on have noted so far: rank -> columns as those of its rows."""
    trainings = trainings_of(processes_in(_meetings(out)[-1])[1]) if _meetings(out) else []
    if not trainings or not trainings[0].complete:
        return {}
    found: dict[int, Mapping[str, Any]] = {}
    for rank, process in enumerate(trainings[0].ranks):
        columns = steps_of(process.read(), waits_seen=process.waits_seen).columns
        found[rank] = {"sync_s": np.full(len(columns["step_s"]), np.nan), **columns}
    return found


def _meetings(out: Path) -> list[Path]:
    return sorted(out.absolute().parent.glob(f".{glob.escape(out.name)}.*{PART}"))
