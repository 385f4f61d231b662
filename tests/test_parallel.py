"""Two real workers under every launcher: equal to one worker, recorded as they ran, ending together."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from conftest import BIN, Launch
from make.waiting import PATIENCE_S, until

from horovod_study import records
from horovod_study.comm import builds

pytestmark = pytest.mark.horovod

# Adam's step hardly depends on the size of the gradient: a sum in place of a mean would pass unnoticed.
DATA = ("--dataset", "4000", "--warmup-steps", "0", "--optimizer", "sgd")
DDP_OPTIONS = ("--bucket-mb", "0.1", "--broadcast-buffers", "--no-bucket-view", "--static-graph")
# horovodrun asks Horovod in a process of its own, which takes as long as a rank's start: mpirun where either will do.
WAYS = [  # launcher, options, backend, transport, reduction
    ("horovodrun --mpi", (), "horovod", "mpi", "flat"),
    ("mpirun", ("--reduction", "hooks"), "horovod", "mpi", "hooks"),
    ("mpirun", ("--horovod-defaults",), "horovod", "mpi", "flat"),
    ("horovodrun --gloo", (), "horovod", "gloo", "flat"),
    ("horovodrun --gloo", ("--reduction", "hooks"), "horovod", "gloo", "hooks"),
    ("mpirun", (), "horovod", "mpi", "flat"),
    ("mpirun", ("--groups", "2"), "horovod", "mpi", "hooks"),
    ("mpirun", ("--backend", "mpi"), "mpi", "mpi", "flat"),
    ("mpirun", ("--backend", "mpi", "--reduction", "hooks"), "mpi", "mpi", "hooks"),
    ("mpirun", ("--backend", "mpi", "--bucket-mb", "0.1"), "mpi", "mpi", "hooks"),
    ("mpirun", ("--backend", "ps"), "ps", "mpi", "flat"),
    ("mpirun", ("--backend", "ps", "--ps-servers", "2"), "ps", "mpi", "flat"),
    ("mpirun", ("--backend", "ps", "--ps-servers", "2", "--bucket-mb", "0.1"), "ps", "mpi", "hooks"),
    ("torchrun", (), "ddp", "gloo", "hooks"),
    ("torchrun", ("--reduction", "flat"), "ddp", "gloo", "flat"),
    ("torchrun", DDP_OPTIONS, "ddp", "gloo", "hooks"),
]


def losses(directory: Path) -> np.ndarray:
    """Loss of each global batch: the mean over ranks, which have equal shares; shape (steps,)."""
    ranks = [records.read_steps(directory, rank).column("loss").to_numpy() for rank in records.step_ranks(directory)]
    return np.mean(ranks, axis=0)


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """Ten losses of one plain worker with the global batch of two workers."""
    from horovod_study.train import main

    out = tmp_path_factory.mktemp("one") / "run"
    assert main([*DATA, "--batch", "150", "--steps", "10", "--out", str(out)]) == 0
    return losses(out)


@pytest.mark.parametrize(("launcher", "options", "backend", "transport", "reduction"), WAYS)
def test_two_workers_equal_one(
    launch: Launch,
    one_worker: np.ndarray,
    tmp_path: Path,
    launcher: str,
    options: tuple[str, ...],
    backend: str,
    transport: str,
    reduction: str,
) -> None:
    """The same global batches give the same losses: this is what catches a wrong rate, operation or shard."""
    out = tmp_path / "run"
    done = launch(launcher, 2, *DATA, "--batch", "75", "--steps", "10", "--out", str(out), "--json", *options)
    assert done.returncode == 0, done.stderr
    record = records.read_run(out)
    printed = json.loads(re.search(r"\{.*\}", done.stdout)[0])  # type: ignore[index]

    assert losses(out) == pytest.approx(one_worker, rel=1e-5)
    assert len(one_worker) == 10
    effective = record.effective
    assert (effective["backend"], effective["transport"], effective["reduction"]) == (backend, transport, reduction)
    assert (record.status, effective["workers"], effective["global_batch"]) == ("done", 2, 150)
    assert [rank["threads"] for rank in effective["ranks"]] == [1, 1]
    assert (printed["backend"], printed["transport"], printed["workers"]) == (backend, transport, 2)
    assert printed["sync_ms_median"] > 0, "also where the library waits inside backward"
    settings = effective["settings"]
    asked = "--reduction" in options
    assert settings["reduction"]["value"] == reduction
    assert settings["reduction"]["source"].startswith("asked" if asked else "chosen: ")
    for name in ("groups", "bucket_mb", "ps_servers"):
        option = f"--{name.replace('_', '-')}"
        if option in options:
            assert settings[name] == {"value": float(options[options.index(option) + 1]), "source": "asked"}
    if options == DDP_OPTIONS:
        for name, value in (("broadcast_buffers", True), ("bucket_view", False), ("static_graph", True)):
            assert settings[name] == {"value": value, "source": "asked"}
    if options == ("--horovod-defaults",):
        assert settings["HOROVOD_CYCLE_TIME"] == {"value": "1", "source": "library default"}
    elif (backend, transport) == ("horovod", "mpi"):
        assert settings["HOROVOD_CYCLE_TIME"]["source"] == "shipped"
        assert settings["HOROVOD_IDLE_CYCLE_TIME"] == {"value": "10", "source": "shipped"}


@pytest.mark.parametrize("launcher", ["horovodrun --mpi", "horovodrun --gloo"])
def test_one_worker_inside_horovod_is_the_wrapped_baseline(
    launch: Launch, one_worker: np.ndarray, tmp_path: Path, launcher: str
) -> None:
    done = launch(launcher, 1, *DATA, "--batch", "150", "--steps", "10", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    effective = records.read_run(tmp_path / "run").effective

    assert (effective["backend"], effective["workers"], effective["reduction"]) == ("horovod", 1, "none")
    assert losses(tmp_path / "run") == pytest.approx(one_worker, rel=1e-6)


def test_the_learning_rate_after_scaling_is_recorded_and_applied(
    launch: Launch, one_worker: np.ndarray, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    done = launch("mpirun", 2, *DATA, "--batch", "75", "--steps", "10", "--lr-scaling", "linear", "--out", str(out))
    assert done.returncode == 0, done.stderr

    assert records.read_run(out).effective["lr"] == pytest.approx(2 * 4.7331e-4)
    assert np.abs(losses(out)[1:] / one_worker[1:] - 1).max() > 1e-3, "another rate takes another path"


def error_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Lines of a user error in what a launcher printed, without the launcher's prefix."""
    return [line.split("error: ", 1)[1] for line in done.stderr.splitlines() if "error: " in line]


@pytest.mark.parametrize(
    ("launcher", "options", "code", "message"),
    [
        ("horovodrun --mpi", ("--bach", "75"), 2, r"unknown argument '--bach' \(did you mean '--batch'\?\)"),
        ("horovodrun --gloo", ("--batch", "1501"), 2, "batch 1501 x 2 workers = 3002 curves per step, but the"),
        (
            "horovodrun --gloo",
            ("--transport", "mpi"),
            2,
            "transport mpi was asked for, but this run was launched over gloo",
        ),
        ("mpirun", ("--transport", "nccl"), 2, r"Horovod was built without nccl \(it has mpi, gloo\)"),
        (
            "mpirun",
            ("--transport", "gloo", "--backend", "horovod"),
            2,
            "launch with horovodrun --gloo, or use --transport",
        ),
        ("mpirun", ("--backend", "ps", "--ps-servers", "3"), 2, "ps_servers is 3, but there are only 2 workers"),
        (
            "mpirun",
            ("--backend", "mpi", "--reduction", "flat", "--bucket-mb", "1"),
            2,
            "bucket_mb has no effect on red",
        ),
        (
            "mpirun",
            ("--reduction", "flat", "--groups", "2"),
            2,
            "groups has no effect on red",
        ),
        ("mpirun", ("--horovod-build", "none-such"), 2, "horovod_build is 'none-such', and no such build is in"),
        # torchrun's environment means nothing to MPI: each process would train alone
        (
            "torchrun",
            ("--backend", "horovod"),
            1,
            r"torchrun \(RANK, WORLD_SIZE\) started 2 workers, but Horovod sees 1",
        ),
        ("mpirun", ("--backend", "serial"), 2, r"backend serial is one worker, but mpirun \(\w+, \w+\) started 2"),
        ("mpirun", ("--out", "/proc/none/run"), 2, "/proc/none/run: cannot be written"),
        # torchrun answers 1 whatever its workers answered
        ("torchrun", ("--transport", "mpi"), 1, "torch.distributed cannot use mpi here"),
    ],
)
def test_bad_input_ends_all_ranks_with_one_line(
    launch: Launch, tmp_path: Path, launcher: str, options: tuple[str, ...], code: int, message: str
) -> None:
    done = launch(launcher, 2, *DATA, "--steps", "5", "--out", str(tmp_path / "run"), *options)

    assert done.returncode == code, done.stderr
    assert len(set(error_lines(done))) == 1, done.stderr  # a busy launcher may let a second rank say it, too
    assert re.search(message, error_lines(done)[0])
    assert "Traceback" not in done.stderr or launcher == "torchrun"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("backend", "library"), [("horovod", "Horovod"), ("mpi", "mpi4py"), ("ps", "mpi4py")])
def test_a_launcher_of_another_mpi_is_refused(tmp_path: Path, backend: str, library: str) -> None:
    """MPICH's mpiexec tells its workers so; Open MPI does not understand that and takes each for the only one."""
    line = [sys.executable, "-m", "horovod_study.train", *DATA, "--backend", backend, "--out", str(tmp_path / "run")]
    environment = {**os.environ, "PMI_RANK": "0", "PMI_SIZE": "2"}
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, env=environment)

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert re.fullmatch(
        rf"mpirun \(PMI_RANK, PMI_SIZE\) started 2 workers, but {library} sees 1: the launcher belongs to another MPI "
        rf"than {library}, which "
        r"loaded \S+/libmpi\.so\S*; start with that MPI's own mpirun, or install for the launcher's MPI with "
        r"`make setup MPI=site`",
        error_lines(done)[0],
    )


@pytest.fixture
def second_build() -> Iterator[Path]:
    """A build of Horovod beside the installed one: the same, found on another way."""
    import horovod

    folder = builds.builds_folder() / f"test-{os.getpid()}"
    folder.mkdir(parents=True)
    (folder / "horovod").symlink_to(Path(horovod.__file__).parent)
    yield folder
    shutil.rmtree(folder)
    with suppress(OSError):
        folder.parent.rmdir()


@pytest.mark.parametrize("launcher", ["horovodrun --mpi", "horovodrun --gloo"])
def test_a_run_loads_the_build_it_names(launch: Launch, tmp_path: Path, second_build: Path, launcher: str) -> None:
    out = tmp_path / "run"
    done = launch(launcher, 2, *DATA, "--steps", "5", "--out", str(out), "--horovod-build", second_build.name)
    assert done.returncode == 0, done.stderr
    used = records.read_run(out).effective["settings"]

    assert used["horovod_build"] == {"value": second_build.name, "source": "asked"}
    assert used["horovod_path"] == {"value": str(second_build / "horovod"), "source": "loaded"}
    assert used["horovod_built"] == {"value": ["mpi", "gloo"], "source": "loaded"}


def mixed(*ranks: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Start one rank per option list under one mpirun."""
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    line = [str(BIN / "mpirun"), *root, "--bind-to", "none"]
    for number, options in enumerate(ranks):
        line += [":"] * (number > 0) + ["-np", "1", str(BIN / "python"), "-m", "horovod_study.train", *options]
    return subprocess.run(line, capture_output=True, text=True, timeout=120)


def test_ranks_with_other_options_are_refused(tmp_path: Path) -> None:
    common = (*DATA, "--steps", "5", "--out", str(tmp_path / "run"))
    done = mixed((*common, "--batch", "75"), (*common, "--batch", "50"))

    assert done.returncode == 2
    assert re.search(
        r"rank 1 on \S+ has batch 50, rank 0 on \S+ has 75; start all ranks with the", error_lines(done)[0]
    )


def test_ranks_with_other_data_sets_are_refused(tmp_path: Path) -> None:
    """Another data set of another size would mean another number of steps and a hang."""
    from horovod_study.strain import dataset

    data = [tmp_path / "a", tmp_path / "b"]
    for path, size in zip(data, (400, 800), strict=True):
        dataset.generate(path, size, seed=1)
    done = mixed(*((*DATA, "--dataset", str(path), "--out", str(tmp_path / "run")) for path in data))

    assert done.returncode == 2
    assert re.search(r"rank 1 on \S+ has dataset '.*b', rank 0 on \S+ has '.*a'", error_lines(done)[0])


def test_ranks_with_other_backends_do_not_hang(tmp_path: Path) -> None:
    common = (*DATA, "--start-timeout-s", "10", "--out", str(tmp_path / "run"))
    done = mixed((*common, "--backend", "horovod"), (*common, "--backend", "mpi"))

    assert done.returncode == 2
    assert re.search(r"rank \d of 2 waited 10 s for the other ranks to start", error_lines(done)[0])


def children(process: subprocess.Popen[Any]) -> list[psutil.Process]:
    found = psutil.Process(process.pid).children(recursive=True)
    return [child for child in found if "horovod_study.train" in " ".join(child.cmdline())]


@pytest.mark.parametrize("transport", ["--mpi", "--gloo"])
def test_a_killed_worker_ends_the_run_and_leaves_the_rows(tmp_path: Path, transport: str) -> None:
    out = tmp_path / "run"
    line = [str(BIN / "horovodrun"), transport, "-np", "2", str(BIN / "python"), "-m", "horovod_study.train"]
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.Popen(
        [*line, *DATA, "--seconds", "300", "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        until(
            lambda: (out / "steps-00001.arrows").exists() and records.read_steps(out, 1).num_rows >= 20,
            "20 steps",
            alive=lambda: process.poll() is None,
        )
        ranks = {rank["pid"]: psutil.Process(rank["pid"]) for rank in records.read_run(out).effective["ranks"]}
        os.kill(list(ranks)[1], signal.SIGKILL)
        assert process.wait(timeout=PATIENCE_S) != 0
        _, alive = psutil.wait_procs(ranks.values(), timeout=120)
    finally:
        for child in children(process) if process.poll() is None else []:
            child.kill()
        process.kill()
        process.wait()

    assert alive == [], "no orphan"
    assert records.read_run(out).state() in ("failed", "incomplete")
    assert all(records.read_steps(out, rank).num_rows >= 20 for rank in (0, 1))
