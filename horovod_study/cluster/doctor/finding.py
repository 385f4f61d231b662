"""What a check says, what it looks at, and the bounded calls by which it looks."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from horovod_study.measure.clock import now
from horovod_study.text.words import cut
from horovod_study.variables import without_working_directory

_PREFIX = re.compile(r"^[a-z][\w-]*: (?:error: |fatal: )?(?=\S)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the diagnosis; a warning or a fail says what to do about it."""

    area: str
    name: str
    verdict: str  # ok | warning | fail
    what: str
    remedy: str = ""  # "" of an ok


class Area:
    """The findings of one area, as they are made."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.findings: list[Finding] = []

    def ok(self, name: str, what: str) -> None:
        """Note that nothing is wrong."""
        self._add(name, "ok", what, "")

    def warning(self, name: str, what: str, remedy: str) -> None:
        """Note what may spoil runs or measurements."""
        self._add(name, "warning", what, remedy)

    def fail(self, name: str, what: str, remedy: str) -> None:
        """Note what makes runs impossible or wrong."""
        self._add(name, "fail", what, remedy)

    def unchecked(self, name: str, reason: str) -> None:
        """Note that nothing is known, and why."""
        self.warning(name, f"could not be checked: {reason}", "check it yourself; the other checks do not need it")

    def _add(self, name: str, verdict: str, what: str, remedy: str) -> None:
        one_line = " ".join(what.split()) or "nothing is known"
        self.findings.append(Finding(area=self.name, name=name, verdict=verdict, what=one_line, remedy=remedy))


Check = Callable[[Area], None]


def guarded(checks: Iterable[tuple[str, str, Check]], limit_s: float) -> Callable[[], list[Finding]]:
    """Start checks, (area, name, check), one after the other in a thread; return what waits and gives their findings.

    A check that raises is a finding, and so is what has no answer `limit_s` after the start: a thread in a file system
    that hangs cannot be ended, but it is left behind.
    """
    found: list[Finding] = []
    left = list(checks)
    until = now() + limit_s

    def work() -> None:
        while left:
            area, name, check = left[0]
            notes = Area(area)
            try:
                check(notes)
            except Exception as error:  # whatever it is, the other checks go on
                notes.unchecked(name, shortened(f"{type(error).__name__}: {error}"))
            found.extend(notes.findings)
            del left[0]

    thread = threading.Thread(target=work, daemon=True, name="doctor")
    thread.start()

    def result() -> list[Finding]:
        thread.join(max(0.0, until - now()))
        if not thread.is_alive():
            return found
        late = [Area(area) for area, _, _ in left]
        for notes, (_, name, _) in zip(late, list(left), strict=False):
            notes.unchecked(name, f"no answer within {limit_s:g} s")
        return [*found, *(finding for notes in late for finding in notes.findings)]

    return result


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramResult:
    """What came of a program: `code` is None when it did not end in time, and `problem` says what stood in the way."""

    code: int | None
    output: str
    errors: str
    problem: str = ""

    @property
    def worked(self) -> bool:
        """Whether it ran and ended with 0."""
        return self.code == 0 and not self.problem

    def reason(self) -> str:
        """Return in one line why it did not work."""
        if self.problem:
            return self.problem
        lines = [line.strip() for line in (self.errors or self.output).splitlines() if line.strip()]
        said = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()] or lines
        # "sinfo: error: ..." is said by programs whose name the reader knows already.
        return shortened(_PREFIX.sub("", said[-1])) if said else f"it ended with exit code {self.code} and said nothing"


def shortened(text: str, length: int = 240) -> str:
    """Return `text` in one line of at most `length` characters."""
    return cut(" ".join(text.split()), length)


@dataclass(frozen=True, kw_only=True, slots=True)
class Here:
    """The machine that is looked at; tests put others in its place."""

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    python: Path = field(default_factory=lambda: Path(sys.executable))
    proc: Path = Path("/proc")
    system: Path = Path("/sys")
    shared_memory: Path = Path("/dev/shm")
    patience: float = 1.0  # all time limits are multiplied by it

    @property
    def search_path(self) -> str:
        """Where launch lines look for launchers: beside Python, then PATH."""
        return os.pathsep.join(part for part in (str(self.python.parent), self.environ.get("PATH", "")) if part)

    def which(self, name: str, path: str | None = None) -> str | None:
        """Return a program on `path`, else on PATH."""
        return shutil.which(name, path=self.environ.get("PATH", os.defpath) if path is None else path)

    def call(
        self, argv: Sequence[str | Path], *, timeout_s: float, given: str = "", environ: Mapping[str, str] | None = None
    ) -> ProgramResult:
        """Run a program in this environment, or in `environ`; after `timeout_s` it and what it started are killed."""
        words, limit_s = [str(word) for word in argv], timeout_s * self.patience
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=without_working_directory(self.environ if environ is None else environ),
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            problem = f"{words[0]} cannot be started ({error.strerror})"
            return ProgramResult(code=None, output="", errors="", problem=problem)
        try:
            output, errors = process.communicate(given, timeout=limit_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            output = errors = ""
            with suppress(subprocess.TimeoutExpired):  # a descendant in a session of its own may hold the pipes
                output, errors = process.communicate(timeout=1.0)
            said = shortened(errors.splitlines()[-1], 120) if errors.strip() else ""
            problem = f"{Path(words[0]).name} did not answer within {limit_s:g} s{said and f' ({said})'}"
            return ProgramResult(code=None, output=output, errors=errors, problem=problem)
        return ProgramResult(code=process.returncode, output=output, errors=errors)

    def ask_python(
        self, program: str, *arguments: str, timeout_s: float, environ: Mapping[str, str] | None = None
    ) -> tuple[dict[str, Any] | None, ProgramResult]:
        """Run `program` in this Python; return the JSON object it printed last, None when there is none, and the rest.

        What may crash or hang (PyTorch, Horovod, MPI) is looked at this way.
        """
        answer = self.call([self.python, "-c", program, *arguments], timeout_s=timeout_s, environ=environ)
        lines = answer.output.strip().splitlines()
        if not answer.worked or not lines:
            return None, answer
        try:
            found = json.loads(lines[-1])
        except ValueError:
            return None, answer
        return (found if isinstance(found, dict) else None), answer

    def text(self, path: Path) -> str | None:
        """Return what a small file says, None where it cannot be read."""
        try:
            return path.read_text(errors="replace").strip()
        except OSError:
            return None
