"""Where memory or room for files ends, a program ends in one line with exit code 2, wherever it was."""

import errno
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from horovod_study.comm import Launch
from horovod_study.comm.launch import MIN_FILE_BYTES, require_file_size
from horovod_study.errors import BackendError
from horovod_study.low_memory import is_lack

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


@pytest.mark.slow
@pytest.mark.parametrize("mib", [250, 400])
@pytest.mark.parametrize(
    "words",
    [
        ("horovod_study.train", "--dataset", "20000", "--steps", "2", "--out", "run"),
        ("horovod_study.cli", "analyze", str(RUNS), "--out", "out"),
        ("horovod_study.cli", "train", "--dataset", "20000", "--steps", "2", "--out", "run"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_limit_on_memory_ends_in_one_line(words: tuple[str, ...], mib: int, tmp_path: Path) -> None:
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
            require_file_size(launch)
    else:
        require_file_size(launch)


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
    assert len([line for line in (ended.stdout + ended.stderr).splitlines() if "error: " in line]) == 1
