"""What the set-up shows and how it runs programs: one line per step, output kept in logs, nothing left running."""

import contextlib
import fcntl
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any

ALIVE_EVERY_S = 30.0  # a line in a log file; on a terminal the line is renewed each second
KILL_AFTER_S = 5.0

# What a log says -> what to do. The first one found counts, so the causes stand before their consequences.
REMEDIES = (
    (r"No space left on device|Disk quota exceeded", "the disk is full: free some space"),
    (
        r"Temporary failure in name resolution|Name or service not known|Failed to establish a new connection|"
        r"Network is unreachable|Connection (?:refused|reset|aborted|timed out)|Connection to \S+ timed out|"
        r"Read timed out|ReadTimeoutError|ProxyError|CERTIFICATE_VERIFY_FAILED|IncompleteRead|Max retries exceeded",
        "the download failed, there is no network or no way through it: check the connection, proxy and certificates,"
        " or put the files into a folder and name it in PIP_FIND_LINKS (with PIP_NO_INDEX=1 nothing else is asked)",
    ),
    (
        r"No matching distribution found for (?P<what>\S+)",
        "no file of {what} for this Python and machine where pip looks: take another Python (make setup PYTHON=...),"
        " or put the file into a folder and name it in PIP_FIND_LINKS",
    ),
    (
        r"Killed signal terminated program|internal compiler error: Killed|virtual memory exhausted|std::bad_alloc",
        "the compiler ran out of memory: close other programs, or compile one file at a time with JOBS=1",
    ),
    (r"Permission denied|Read-only file system", "a folder cannot be written to: see its name in the log"),
)


class Failure(Exception):
    """An expected way to fail, in one line: what, where, what to do next."""


class Interrupted(BaseException):
    """Ctrl-C, `kill` or a closed terminal; `signum` says which of them."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


def raise_on_signals() -> None:
    """Turn the signals that end a program into `Interrupted`, once; a signal that was ignored (nohup) stays ignored."""
    stopping = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    ]

    def stop(signum: int, frame: FrameType | None) -> None:
        for number in stopping:  # cleaning up takes moments and must not be cut short by a second Ctrl-C
            signal.signal(number, signal.SIG_IGN)
        raise Interrupted(signum)

    for number in stopping:
        signal.signal(number, stop)


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program to run: its command, its environment, and the file to which what it says is appended."""

    command: Sequence[str | Path]
    env: Mapping[str, str]
    log: Path
    cwd: Path | None = None
    news: Callable[[str], str] = str  # what to show of the last line that it said

    def with_jobs(self, jobs: int) -> "Program":
        """Return the same program, whose make or CMake starts this many compilers at once."""
        more = {"MAKEFLAGS": f"-j{jobs}", "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs)}
        return replace(self, env={**self.env, **more})


class Step:
    """One step: its line (what it does, signs of life, how long it took) and the programs it runs, logged in `log`."""

    def __init__(
        self, title: str, text: str, *, log: Path, env: Mapping[str, str], stream: IO[str] | None = None
    ) -> None:
        self.log = log
        self.env = env
        self._stream = sys.stdout if stream is None else stream
        self._live = self._stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._title = title
        self._head = f"{title}{text} ..."
        self._note = ""
        self._started_s = self._said_s = time.monotonic()
        self._spoke = False
        self._write(self._head)

    def note(self, text: str) -> None:
        """Add a result that is shown behind the time."""
        self._note = f"{self._note}; {text}" if self._note else text

    def alive(self, last_line: str) -> None:
        """Show that a long step is at work: the seconds so far and what its program said last."""
        now_s = time.monotonic()
        news = f"{now_s - self._started_s:.0f} s  {last_line}".rstrip()
        if self._live:
            columns = shutil.get_terminal_size().columns
            self._write(f"\r{f'{self._head} {news}'[: columns - 1]}\x1b[K")
        elif now_s - self._said_s >= ALIVE_EVERY_S:
            self._said_s, self._spoke = now_s, True
            self._write(f"\n      {news[:140]}")

    def run(self, *command: str | Path, env: Mapping[str, str] | None = None, **more: Any) -> None:
        """Run a program; raises Failure, with the remedy and the path of the log, when it fails; `more`: of Program."""
        self.run_together([Program(command=command, env=self.env if env is None else env, log=self.log, **more)])

    def run_together(self, programs: Sequence[Program]) -> None:
        """Run programs at once, each with a log of its own, as `run` does; the first one that fails ends the others.

        Each gets a process group of its own, which is ended as a whole when we are interrupted: a compiler started by
        make started by pip goes with it.
        """
        running: list[tuple[Program, int, subprocess.Popen[bytes]]] = []
        try:
            for program in programs:
                running.append((program, *_start(program)))
            waiting = running.copy()
            while waiting:
                program, start, process = waiting[0]
                if (code := _wait(process)) is None:
                    self.alive(program.news(last_line(program.log)))
                    waiting.append(waiting.pop(0))
                    continue
                waiting.pop(0)
                if code:
                    raise _failure(program, start, code)
        finally:
            for _, _, process in running:
                if process.poll() is None:
                    _end_group(process)

    def __enter__(self) -> "Step":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._write(f"\r\x1b[K{self._head}")
        elif self._spoke:
            self._write(f"\n{self._title}...")
        took = f" {time.monotonic() - self._started_s:.1f} s"
        if error is not None:
            self._write(f" {'interrupted' if isinstance(error, Interrupted) else 'failed'} after{took}\n")
        else:
            self._write(f"{took}{f' ({self._note})' if self._note else ''}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def output(command: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> str | None:
    """Return what a short program prints, without outer blanks; None when it is missing or fails."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout.strip() or done.stderr.strip()).strip()


def remedy(said: str) -> str | None:
    """Return what to do about a failure whose output is `said`, None when nothing is known about it."""
    for pattern, text in REMEDIES:
        if found := re.search(pattern, said):
            return text.format(**found.groupdict())
    return None


def telling_lines(said: str) -> list[str]:
    """Return a few lines of a failed program's output: the first ones that speak of an error, and the last ones."""
    lines = [line.rstrip()[:200] for line in said.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if re.search(r"\b(error|fatal)\b", line, re.IGNORECASE)]
    return [lines[number] for number in sorted({*errors[:3], *range(max(0, len(lines) - 3), len(lines))})]


def last_line(log: Path) -> str:
    """Return the last line of a log that says anything; better, the last that says how far it is: "[ 52%] ..."."""
    with log.open("rb") as source:
        source.seek(max(0, source.seek(0, os.SEEK_END) - 65536))
        said = source.read().decode(errors="replace")
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x1f]", "", line).strip() for line in re.split(r"[\r\n]", said)]
    spoken = [line for line in lines if line]
    return next((line for line in reversed(spoken) if re.match(r"\[ *\d+%\]", line)), spoken[-1] if spoken else "")


_held: list[int] = []


@contextlib.contextmanager
def locked(path: Path, waiting_for: str) -> Iterator[None]:
    """Hold the lock file `path`; while another process has it, say so once and wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            print(f"setup: waiting for {waiting_for} (process {lock.read().strip() or 'unknown'})", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            pass  # some cluster file systems have no locks; there the user has to take care
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        _held.append(lock.fileno())
        try:
            yield
        finally:
            _held.remove(lock.fileno())


def _start(program: Program) -> tuple[int, subprocess.Popen[bytes]]:
    """Start a program; return where in its log its own words begin, and the process."""
    program.log.parent.mkdir(parents=True, exist_ok=True)
    with program.log.open("ab") as sink:
        start = sink.tell()
        sink.write(f"$ {shlex.join(map(str, program.command))}\n".encode())
        sink.flush()
        return start, subprocess.Popen(
            program.command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=program.env,
            cwd=program.cwd,
            start_new_session=True,
            pass_fds=tuple(_held),  # should we be killed outright, the lock lasts as long as this program
        )


def _failure(program: Program, start: int, code: int) -> Failure:
    said = program.log.read_bytes()[start:].decode(errors="replace")
    shown = "".join(f"      {line}\n" for line in telling_lines(said))
    cause = remedy(said) or f"{Path(program.command[0]).name} failed with exit code {code}"
    return Failure(f"{cause}; log: {program.log}", shown)


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        return None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=KILL_AFTER_S)
        os.killpg(process.pid, signal.SIGKILL)  # whoever of the group is left
    process.wait()
