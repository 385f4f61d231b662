"""What the system refuses - memory, files, output - is one line with exit code 2, wherever a program was."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from make.launch_lines import program_line

from horovod_study.cluster import process
from horovod_study.cluster.launch import MARKER, LaunchLine
from horovod_study.comm import Launch
from horovod_study.comm.launch import require_limits
from horovod_study.config import limits
from horovod_study.config.limits import MIN_FILE_BYTES, is_lack, mpi_hindrance, refused
from horovod_study.errors import BackendError, StudyError
from horovod_study.runtimes import CARRIED

RUNS = Path(__file__).parent / "runs"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
    ids=repr,
)
def test_lack_of_memory_is_recognised_also_behind_another_error(error: BaseException) -> None:
    behind = ValueError("something else")
    behind.__context__ = error

    assert is_lack(error)
    assert is_lack(behind)


@pytest.mark.parametrize(
    "error", [ValueError("cannot allocate memory.csv"), RuntimeError("no"), OSError(errno.ENOSPC, "full")], ids=repr
)
def test_other_errors_stay_what_they_are(error: BaseException) -> None:
    assert not is_lack(error)


@pytest.mark.parametrize(
    ("behind", "lack"),
    [
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), False),  # a lock that another one holds
        (MemoryError(), False),  # a damaged file's length that is none
        (None, False),
    ],
    ids=repr,
)
def test_a_file_for_which_there_is_no_memory_is_told_as_a_lack(behind: BaseException | None, lack: bool) -> None:
    with pytest.raises(StudyError) as told:
        try:
            raise behind or ValueError()
        except Exception as problem:
            raise StudyError(f"run.json: cannot be written ({problem}); free space there") from None

    assert is_lack(told.value) == lack


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.36, 0.57, 1.0])
@pytest.mark.parametrize(
    ("words", "most_mib"),
    [
        (("horovod_study.train", "--dataset", "20000", "--steps", "2", "--out", "run"), 700),
        (("horovod_study.cli", "report", "--tables", str(RUNS), "--out", "out"), 560),
        (("horovod_study.cli", "strain", "train", "--dataset", "20000", "--steps", "2", "--out", "run"), 700),
    ],
    ids=["train", "report", "strain train"],
)
def test_a_limit_on_memory_ends_in_one_line(
    words: tuple[str, ...], most_mib: int, share: float, tmp_path: Path
) -> None:
    mib = round(share * most_mib)
    ended = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20)),
        timeout=300,
    )

    assert "Traceback" not in ended.stderr
    assert ended.returncode == 2, ended.stderr
    assert f"{mib} MiB" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("launcher, refused", [("mpirun", True), ("srun", True), ("torchrun", False), ("none", False)])
@pytest.mark.parametrize("limit", [30 * 1024, MIN_FILE_BYTES, resource.RLIM_INFINITY])
def test_mpi_is_not_started_where_it_would_wait_for_a_file_for_ever(
    launcher: str, refused: bool, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    launch = Launch(launcher=launcher, rank=0, workers=2, backend="mpi")

    if refused and limit == 30 * 1024:
        with pytest.raises(BackendError, match=r"ulimit -f.* 30 KiB.* 8 MiB"):
            require_limits(launch)
    else:
        require_limits(launch)


@pytest.mark.parametrize("ranks, files", [(1, 28), (2, 32), (4, 40)])
def test_mpirun_is_not_started_where_it_was_seen_to_hang_for_want_of_open_files(
    ranks: int, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {resource.RLIMIT_FSIZE: resource.RLIM_INFINITY, resource.RLIMIT_NOFILE: files}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (asked[kind], asked[kind]))

    assert f"ulimit -n allows {files} " in mpi_hindrance(ranks)
    for runtime, (library, _) in CARRIED.items():
        if library.name == "serial":
            continue
        arguments = {"python": Path(sys.executable), "out": Path("out"), "environ": {}}
        if any(runtime.endswith(each) for each in ("/mpi", "horovod/nccl")):
            with pytest.raises(StudyError, match="ulimit -n"):
                program_line(runtime, ranks, ("-m", "x"), which=lambda name, path: name, **arguments)  # type: ignore[arg-type]
        else:
            program_line(runtime, ranks, ("-m", "x"), which=lambda name, path: name, **arguments)  # type: ignore[arg-type]
    asked[resource.RLIMIT_NOFILE] = 1024
    assert mpi_hindrance(100) == ""


def test_a_lack_of_threads_is_told_apart_from_one_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (4 << 20, 4 << 20))

    assert "ulimit -u" in limits.line(RuntimeError("can't start new thread"))
    assert "ulimit -u" in limits.line(BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"))
    assert "ulimit -v is 4 MiB" in limits.line(MemoryError())


def test_where_few_processes_are_allowed_it_is_tried_before_a_library_sends_ctrl_c(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def ended(error: BaseException) -> None:
        raise SystemExit(str(error))

    limits._try_threads(2)
    monkeypatch.setattr(threading.Thread, "start", full)
    monkeypatch.setattr(limits, "end", ended)
    with pytest.raises(SystemExit, match="thread"):
        limits._try_threads(1)


def test_a_cell_without_room_for_the_thread_that_waits_for_it_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*words: Any, **options: Any) -> "subprocess.Popen[bytes]":
        started.append(popen(*words, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(threading.Thread, "start", full)
    line = LaunchLine(argv=("sleep", "60"), environment={**os.environ, MARKER: str(tmp_path)})
    with pytest.raises(RuntimeError, match="thread"):
        process.CellProcess(line, tmp_path / "log")

    assert [each.returncode for each in started] != [None]
    assert process.marked_processes(str(tmp_path)) == []


@pytest.mark.horovod
@pytest.mark.parametrize("launcher", ["", "mpirun --allow-run-as-root -np 2", "horovodrun --gloo -np 2"])
def test_a_run_under_a_limit_on_file_sizes_ends(launcher: str, tmp_path: Path) -> None:
    program, *words = [*launcher.split(), sys.executable]
    command = [str(Path(sys.executable).parent / program) if launcher else program, *words]
    train = ["-m", "horovod_study.train", "--dataset", "20000", "--steps", "400", "--out", "run"]
    ended = subprocess.run(
        [*command, *train],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (30 * 1024, 30 * 1024)),
        timeout=300,
    )

    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
    told = [line for line in (ended.stdout + ended.stderr).splitlines() if "error: " in line]
    # A rank that starts later than the other refuses is ended by the launcher, and says so.
    assert len([line for line in told if "SIGTERM" not in line]) == 1, told


# ---------------------------------------------------------------------------------------------------- standard streams


TRAIN = ("horovod_study.train", "--dataset", "20000", "--steps", "5", "--warmup-steps", "1", "--out", "run")
SIMULATE = (
    "horovod_study.cli",
    "predict",
    "--simulate",
    "--workers",
    "4",
    "--compute-ms",
    "1",
    "--batch",
    "75",
    "--gradient-mb",
    "1",
)
COMMANDS = {
    "help": ("horovod_study.cli", "--help"),
    "help of train": ("horovod_study.train", "--help"),
    "simulate": (*SIMULATE, "--alpha-us", "5", "--gb-per-s", "1"),
    "train": TRAIN,
}


def told(command: str, redirection: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command of COMMANDS with a redirection of the shell."""
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -m "$@" {redirection}', sys.executable, *COMMANDS[command]],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def state_of_run(cwd: Path) -> str:
    return str(json.loads((cwd / "run" / "run.json").read_text())["status"])


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_result_that_cannot_be_printed_is_one_line(command: str, tmp_path: Path) -> None:
    ended = told(command, "> /dev/full", tmp_path)

    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert len([line for line in ended.stderr.splitlines() if line.startswith("error: ")]) == 1
    assert command != "train" or state_of_run(tmp_path) == "done"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["simulate", "train"])
@pytest.mark.parametrize("redirection", ["2>&-", "2> /dev/full", "<&- >&- 2>&-", ">&-", "> /dev/null 2> /dev/full"])
def test_words_that_nobody_can_hear_end_nothing(command: str, redirection: str, tmp_path: Path) -> None:
    ended = told(command, redirection, tmp_path)

    assert ended.returncode == 0
    assert "Traceback" not in ended.stdout + ended.stderr
    assert command != "train" or state_of_run(tmp_path) == "done"


@pytest.mark.slow
def test_a_reader_of_the_progress_who_leaves_does_not_end_the_training(tmp_path: Path) -> None:
    ended = told("train", "2>&1 > /dev/null | true", tmp_path)

    assert ended.returncode == 0
    assert state_of_run(tmp_path) == "done"


def test_no_file_gets_the_number_of_a_stream_that_was_closed(tmp_path: Path) -> None:
    """What a library writes on standard error by its number would go into that file."""
    program = (
        "from horovod_study.config import limits; limits.install(); "
        "print(open('new', 'w').fileno(), file=open('n', 'w'))"
    )
    subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, program], cwd=tmp_path, check=True
    )

    assert int((tmp_path / "n").read_text()) > 2


@pytest.mark.parametrize("number, said", [(errno.EPIPE, 0), (errno.ENOSPC, 1), (errno.EACCES, 1)])
def test_what_the_system_refuses_is_one_line(number: int, said: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(OSError(number, "no", "a.txt")) == 1 + said
    assert capsys.readouterr().err.count("a.txt") == said


def test_an_error_that_is_a_bug_is_none_of_the_system() -> None:
    with pytest.raises(FileNotFoundError):
        refused(FileNotFoundError(errno.ENOENT, "no", "a.txt"))


def test_ctrl_c_in_a_verb_needs_no_library_of_training() -> None:
    program = (
        "import sys; sys.modules['psutil'] = None; from horovod_study import cli\n"
        "def interrupted(): raise KeyboardInterrupt\n"
        "cli.command_line = interrupted; sys.exit(cli.main(['report', 'runs']))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")


def test_ctrl_c_while_libraries_are_imported_is_one_line(tmp_path: Path) -> None:
    program = "from horovod_study.config import limits; limits.install(); raise KeyboardInterrupt"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert ended.returncode == -signal.SIGINT
    assert ended.stderr == "interrupted\n"
