"""What the package promises: one short check for each row of its mission, from outside.

A row is a letter and a number: A the data and the model, B the ways of training, C what is measured, D where it runs,
E the answers, F what is left to read, X what nobody else offers. ROWS has all of them; each has a check `test_ROW_...`.

Everything goes through the command line or the public names of `horovod_study`, and what is read is documented: the
line of `--json`, run directories, tables and the CSV of figures, exit codes. Nothing else of the package is imported:
these checks stay as they are while what is below them is made anew; a verb with another name changes VERBS alone.

Three studies serve most checks: `study`, recorded by real workers here; `same`, a few steps through other runtimes; and
`forged`, run directories with times whose every answer is known (make/forged_runs.py). No speed is asserted anywhere.
"""

import functools
import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml
from make.forged_runs import (
    BATCHES,
    COUNTS,
    EPOCH,
    FAR,
    HOPS_MS,
    LAPS,
    OSU,
    PARAMETERS,
    TARGET,
    WARM,
    forge,
    inspector,
    kineto,
    mlperf,
    nccl_tests,
    plain_ms,
    step_ms,
    waits_ms,
)
from make.waiting import PATIENCE_S, until
from scipy import stats

import horovod_study as hs

VERBS: dict[str, tuple[str, ...]] = {
    "run": ("run",),
    "plan": ("run", "--plan"),
    "scripts": ("run", "--dry-run"),
    "status": ("status",),
    "report": ("report",),
    "tables": ("report", "--tables"),
    "check": ("report", "--check"),
    "export": ("report", "--export"),
    "explain": ("explain",),
    "account": ("explain", "--part", "account"),
    "sync": ("explain", "--part", "sync"),
    "timeline": ("explain", "--part", "timeline"),
    "fit": ("fit",),
    "predict": ("predict",),
    "holdout": ("predict", "--holdout"),
    "simulate": ("predict", "--simulate"),
    "model-parallel": ("predict", "--model-parallel"),
    "compare": ("run",),
    "equality": ("bench", "equality"),
    "bench": ("bench",),
    "loading": ("bench", "loading"),
    "timers": ("bench", "timers"),
    "record": ("record",),
    "generate": ("strain", "data", "generate"),
    "import": ("strain", "data", "import"),
    "check data": ("strain", "data", "check"),
    "train": ("strain", "train"),
    "search": ("strain", "search"),
    "lr-range": ("strain", "lr-range"),
}
ROWS = [
    f"{letter}{number}"
    for letter, count in {"A": 5, "B": 9, "C": 8, "D": 4, "E": 8, "F": 1, "X": 20}.items()
    for number in range(1, count + 1)
]
REAL = pytest.mark.horovod  # starts workers
SLOW = pytest.mark.slow
BIN = Path(sys.executable).parent
LONG_S = 1.8 * PATIENCE_S
"""A study is a dozen starts of programs, each of which may take long on a busy machine."""
ROOT = Path(__file__).parents[1]
SHORT = "--dataset 2000 --batch 100 --input-scaling standard --warmup-steps 0 --system-interval-s 0".split()
RUN = {"dataset": "2000", "steady": "declared", "input_scaling": "standard"}

# ----------------------------------------------------------------------------------------------------------- helpers


def start(line: Sequence[object], *, cwd: Path, env: dict[str, str] | None = None, rc: int = 0) -> str:
    """Run a command, check its exit code and return its standard output followed by its standard error."""
    known = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1", **(env or {})}
    done = subprocess.run(
        [str(word) for word in line], cwd=cwd, env=known, capture_output=True, text=True, timeout=LONG_S
    )
    assert done.returncode == rc, f"{' '.join(map(str, line))}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return f"{done.stdout}\n{done.stderr}"


def cli(verb: str, *words: object, cwd: Path, env: dict[str, str] | None = None, rc: int = 0) -> str:
    """Run a verb of `horovod-study` and return what it said."""
    return start([BIN / "horovod-study", *VERBS[verb], *words], cwd=cwd, env=env, rc=rc)


def answer(verb: str, *words: object, cwd: Path, env: dict[str, str] | None = None, rc: int = 0) -> Any:
    """Return the line of JSON of a verb."""
    return told(cli(verb, *words, "--json", cwd=cwd, env=env, rc=rc))


def told(output: str) -> Any:
    """Return the line of JSON in an output; launchers put the number of a rank before it."""
    (line,) = [line for line in output.splitlines() if re.match(r"(\[[^]]*\](<stdout>:)?)?\{\"", line)]
    return json.loads(line[line.index("{") :])


def launched(launcher: str, *options: object, cwd: Path, rc: int = 0) -> str:
    """Run `python -m horovod_study.train` on two workers."""
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    lines: dict[str, list[object]] = {
        "mpirun": ["mpirun", *root, "--bind-to", "none", "-np", 2, sys.executable],
        "horovodrun": ["horovodrun", "--mpi", "-np", 2, sys.executable],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2],
    }
    return start([*lines[launcher], "-m", "horovod_study.train", *options], cwd=cwd, rc=rc)


def record(run: Path) -> dict[str, Any]:
    """Return the content of run.json."""
    content: dict[str, Any] = json.loads((run / "run.json").read_text())
    return content


def rows(run: Path, rank: int = 0) -> pd.DataFrame:
    """Return the step rows of one rank."""
    with pa.OSFile(str(run / f"steps-{rank:05d}.arrows")) as file, pa.ipc.open_stream(file) as stream:
        frame: pd.DataFrame = stream.read_all().to_pandas()
    return frame


def samples(run: Path) -> pd.DataFrame:
    """Return the system samples of the run's only host."""
    (path,) = run.glob("system-*.arrows")
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
        frame: pd.DataFrame = stream.read_all().to_pandas()
    return frame


def losses(run: Path) -> np.ndarray:
    """Return the loss of each step over all workers; ranks have equally many samples."""
    ranks = range(len(list(run.glob("steps-*.arrows"))))
    mean: np.ndarray = np.mean([rows(run, rank)["loss"].to_numpy(float) for rank in ranks], axis=0)
    return mean


def runs(folder: Path, **where: Any) -> list[Path]:
    """Return the finished run directories of a study whose effective settings are these, in the order of repeats."""
    found = []
    for path in folder.glob("*/run.json"):
        content = record(path.parent)
        if content["status"] == "done" and all(
            content["effective"].get(name) == value for name, value in where.items()
        ):
            found.append(path.parent)
    return sorted(found, key=lambda each: int(record(each)["repeat"]))


def at(frame: pd.DataFrame, **where: Any) -> pd.Series:
    """Return the only row of a table in which these columns have these values."""
    for name, value in where.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1, f"{len(frame)} rows with {where}"
    return frame.iloc[0]


def write(path: Path, content: object) -> Path:
    """Write a YAML file, or a text, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return path


def points(path: Path, throughput: Callable[[float], float], counts: Sequence[int], **columns: Any) -> Path:
    """Write a table of points of a known law, each column beside it a constant or a function of the workers."""
    frame = pd.DataFrame({"workers": counts, "samples_per_s": [throughput(n) for n in counts]})
    for name, value in columns.items():
        frame[name] = [value(n) if callable(value) else value for n in counts]
    frame.to_csv(path, index=False)
    return path


# ------------------------------------------------------------------------------------------------------ real studies


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study by real workers, with its report: plain, wrapped and two workers of Horovod/MPI, three repeats each.

    The folder has study.yaml; the runs are in runs/small, tables and page in runs/small/analysis.
    """
    folder = tmp_path_factory.mktemp("study")
    run = {**RUN, "global_batch": 100, "steps": 60, "warmup_steps": 10, "system_interval_s": 0.05}
    sweep = {"workers": [1, 2], "runtime": ["horovod/mpi"]}
    write(folder / "study.yaml", {"study": "small", "run": run, "sweep": sweep, "repeats": 3})
    cli("run", "study.yaml", "--no-smoke", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def small(study: Path) -> Path:
    """The folder of the runs of `study`."""
    return study / "runs/small"


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same global batches through every other runtime: run directories of 12 steps each."""
    folder = tmp_path_factory.mktemp("same")
    run = {**RUN, "steps": 12, "warmup_steps": 0, "system_interval_s": 0}
    sweep = {"workers": 2, "runtime": ["horovod/gloo", "mpi/mpi", "ps/mpi"], "global_batch": 100}
    content = {"study": "same", "run": run, "sweep": sweep, "baselines": ["plain"], "repeats": 1}
    cli("run", write(folder / "same.yaml", content), "--no-smoke", cwd=folder)
    return folder / "runs/same"


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of two workers with everything that can be measured beside it."""
    folder = tmp_path_factory.mktemp("dense")
    measure = "--measure-ablation --measure-sync --timeline-steps 12 --profile torch --profile-steps 8".split()
    options = (*SHORT[:-4], "--warmup-steps", 5, "--steps", 40, "--steady", "declared", "--lr-scaling", "sqrt")
    launched("horovodrun", *options, *measure, "--out", folder / "run", cwd=folder)
    return folder / "run"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Train on one worker with these options, once for the same ones, and return the run directory."""
    folder = tmp_path_factory.mktemp("trained")

    @functools.cache
    def train(*options: object) -> Path:
        out = folder / "_".join(["run", *(str(each).strip("-") for each in options)])
        start([sys.executable, "-m", "horovod_study.train", *SHORT, *options, "--out", out], cwd=folder)
        return out

    return train


@pytest.fixture(scope="module")
def loading(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What `bench loading` says of each loader."""
    words = "--dataset 2000 --batch 100 --rounds 2 --seconds 0.05 --loader memory device dataloader:1".split()
    (compared,) = answer("loading", *words, cwd=tmp_path_factory.mktemp("loading"))["comparisons"]
    found: list[dict[str, Any]] = compared["loaders"]
    return found


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """PyTorch's kernels against the native step, in two blocks: the answer, and the folder of the runs."""
    folder = tmp_path_factory.mktemp("compared")
    words = "serial serial,kernels=native --workers 1 --blocks 2 --no-turns --steps 30 --warmup-steps 5".split()
    found = answer("compare", *words, "--dataset", 2000, "--out", folder / "out", cwd=folder)
    return found, folder / "out"


@pytest.fixture(scope="module")
def wired(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `bench` measures between two workers over MPI, raw and through Horovod."""
    words = "--workers 2 --transport mpi --runtime horovod/mpi --sizes 4096 614000 --rounds 2 --seconds 0.5".split()
    found: dict[str, Any] = answer("bench", *words, cwd=tmp_path_factory.mktemp("bench"))
    return found


SCRIPT = """
import os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
rank, workers = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
torch.manual_seed(1)
units = int(sys.argv[1])
model = nn.Linear(8, units)
if workers > 1:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
data = TensorDataset(torch.randn(240, 8), torch.randn(240, units))
for x, y in DataLoader(data, batch_size=4):
    if rank == 1: time.sleep(0.03)
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
if workers > 1: torch.distributed.destroy_process_group()
"""
"""Somebody's training with DDP. The second rank is slow, as a rank is whose data comes late."""


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script, recorded as it is on two workers: out/run.json and its rows."""
    folder = tmp_path_factory.mktemp("scripted")
    write(folder / "train.py", SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    cli("record", "--out", "out", "--warmup-steps", 5, "--", *torchrun, "train.py", 1, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, dict[str, Any]]:
    """A study of three plain cells that Ctrl-C ended in the first: its folder, the exit code, the state then."""
    folder = tmp_path_factory.mktemp("stopped")
    run = {"dataset": "2000", "seconds": 4, "warmup_steps": 0, "system_interval_s": 0}
    sweep = {"workers": 1, "runtime": "serial"}
    write(folder / "study.yaml", {"study": "held", "run": run, "sweep": sweep, "repeats": 3})
    line = [str(BIN / "horovod-study"), *VERBS["run"], "study.yaml", "--no-smoke"]
    process = subprocess.Popen(line, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: list(folder.glob("runs/held/*/run.json")), "a run", alive=lambda: process.poll() is None)
        process.send_signal(signal.SIGINT)
        code = process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    return folder, code, answer("status", "study.yaml", cwd=folder)


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a forged study on nodes with four GPUs of 100 W: seven batches alone, NCCL and MPI to 16 workers.

    Inside the library a worker takes 10 % longer; three repeats are 1 % apart.
    """
    folder = tmp_path_factory.mktemp("forged")
    for repeat, slow in enumerate((0.99, 1.0, 1.01)):
        more: dict[str, Any] = {"repeat": repeat, "gpu_w": 100}
        for batch in BATCHES:
            forge(folder, own_ms=[slow * plain_ms(batch)], batch=batch, mse=(0.02, 0.01, 0.005, 0.002), **more)
        for transport in HOPS_MS:
            for workers, batch in (*((n, 50) for n in COUNTS), (4, 200)):
                more |= {
                    "batch": batch,
                    "mse": (0.02, 0.012, 0.006, 0.003),
                    "sync_ms": slow * waits_ms(transport, workers),
                }
                forge(folder, "horovod", transport, own_ms=[slow * 1.1 * plain_ms(batch)] * workers, **more)
    cli("report", folder, "--target", TARGET, FAR, "--out", folder / "analysis", cwd=folder)
    return folder / "analysis"


# ------------------------------------------------------------------------------------------- A: the data and the model


@SLOW
def test_A1_labelled_curves_are_generated_checked_and_imported(tmp_path: Path) -> None:
    """The bytes of a seed are known, a curve obeys its labels, a changed byte is found, own curves come in."""
    cli("generate", "--size", 1000, "--seed", 7, "--out", "seven", cwd=tmp_path)
    curves, labels = np.load(tmp_path / "seven/curves.npy"), np.load(tmp_path / "seven/targets.npy")
    assert (curves.shape, labels.shape, curves.dtype) == ((1000, 3, 201), (1000, 2), np.float32)
    assert hashlib.sha256(curves.tobytes()).hexdigest().startswith("961b47f14d04afe9")
    assert labels.min() >= 0 and labels.max() <= 1

    cli("generate", "--size", 40, "--clean", "--out", "clean", cwd=tmp_path)
    (strain, stress, flag), (g0, a) = (
        np.load(tmp_path / "clean/curves.npy")[5],
        np.load(tmp_path / "clean/targets.npy")[5],
    )
    g0, a = 1000 + 2000 * g0, 25 + 20 * a
    assert stress == pytest.approx(flag * g0 / a * (1 - np.exp(-a * strain)), rel=1e-4, abs=1e-4)
    found = answer("check data", "clean", cwd=tmp_path)
    assert (found["size"], found["train"], found["test"]) == (40, 30, 10)
    with (tmp_path / "clean/curves.npy").open("r+b") as file:
        file.seek(5000)
        file.write(b"\x01")
    cli("check data", "clean", cwd=tmp_path, rc=2)

    lines = ["specimen,strain (%),stress (MPa),G0,a"]
    for number in range(8):
        g0, a = 1200 + 200 * number, 30 + number
        lines += [f"P{number},{100 * x},{g0 / a * (1 - math.exp(-a * x))},{g0},{a}" for x in np.linspace(0, 0.2, 201)]
    write(tmp_path / "own.csv", "\n".join(lines) + "\n")
    cli("import", "own.csv", "--out", "own", cwd=tmp_path)
    mine, labels = np.load(tmp_path / "own/curves.npy"), np.load(tmp_path / "own/targets.npy")
    assert mine[0, :, -1] == pytest.approx([0.2, 1200 / 30 * (1 - math.exp(-6)), 1])
    assert np.diff(labels, axis=0) == pytest.approx(np.full((7, 2), labels[1, 0] - labels[0, 0]), abs=1e-5)
    assert answer("check data", "own", cwd=tmp_path)["test"] == 2


@REAL
def test_A2_the_network_has_153441_parameters_and_other_widths(trained: Callable[..., Path], tmp_path: Path) -> None:
    a, b, hidden = 4, 6, 10
    other = trained("--steps", 3, "--widths", f"{a}-{b}-{hidden}")
    length = ((201 - 4) // 3 - 4) // 3  # behind two convolutions of width 5, each with a pooling by 3
    expected = (3 * 5 + 1) * a + (5 * a + 1) * b + (length * b + 1) * hidden + (hidden + 1) * 2

    assert record(trained("--steps", 12))["effective"]["parameters"] == PARAMETERS
    assert record(other)["effective"]["parameters"] == expected
    assert answer("model-parallel", cwd=tmp_path)["model"]["gradient_bytes"] == 4 * PARAMETERS == 613_764


@REAL
def test_A3_adam_its_rate_and_errors_in_physical_units(trained: Callable[..., Path]) -> None:
    found = record(trained("--batch", 1024, "--epochs", 2))
    table = pd.read_csv(trained("--batch", 1024, "--epochs", 2) / "epochs.csv")

    assert found["effective"]["lr"] == 4.7331e-4 and found["effective"]["optimizer"].startswith("Adam")
    assert (found["effective"]["batch"], len(table)) == (1024, 2)
    mean = ((table["g0_rmse_mpa"] / 2000) ** 2 + (table["a_rmse"] / 20) ** 2) / 2  # over the ranges of both labels
    assert table["test_mse"].to_numpy() == pytest.approx(mean.to_numpy(), rel=1e-4)


@REAL
def test_A4_data_in_ram_on_the_device_or_through_loader_processes(
    trained: Callable[..., Path], loading: list[dict[str, Any]]
) -> None:
    """A copy of the set on the device is one in RAM where there is no GPU. The loaders bring the same batches."""
    loader = ("--loader", "dataloader", "--loader-processes", 1)
    ways = [trained("--steps", 12), trained("--steps", 12, "--loader", "device"), trained("--steps", 12, *loader)]

    assert [record(each)["effective"]["loader"] for each in ways] == ["memory", "device", "dataloader"]
    for each in ways[1:]:
        assert losses(each) == pytest.approx(losses(ways[0]), rel=1e-6)
    assert [each["loader"] for each in loading] == ["memory", "device", "dataloader:1"]


@REAL
def test_A5_a_search_and_a_learning_rate_range_test(tmp_path: Path) -> None:
    space = {"lr": {"low": 1e-4, "high": 1e-2, "log": True}, "batch": [30, 60]}
    run = {"dataset": "400", "steps": 10, "warmup_steps": 0}
    write(tmp_path / "search.yaml", {"search": "tiny", "trials": 2, "run": run, "space": space})
    found = answer("search", "search.yaml", cwd=tmp_path)
    trials = [record(path.parent) for path in (tmp_path / "runs/tiny").glob("*/run.json")]

    best = min(trials, key=lambda each: each["totals"]["test_mse"])["effective"]
    assert len(trials) == 2 and all(1e-4 <= each["effective"]["lr"] <= 1e-2 for each in trials)
    assert found["best"]["lr"] == pytest.approx(best["lr"]) and found["best"]["batch"] == best["batch"]

    found = answer(
        "lr-range", "--low", "1e-5", "--high", 1, "--steps", 60, "--dataset", 2000, "--out", "lr", cwd=tmp_path
    )
    curve = pd.read_csv(tmp_path / "lr/lr_range.csv")
    assert 1e-5 <= found["suggested"] < found["diverged_rate"] <= 1
    assert len(curve) >= 50 and curve["lr"].is_monotonic_increasing


# --------------------------------------------------------------------------------------------- B: the ways of training


@REAL
def test_B1_horovod_over_mpi_and_gloo_trains_as_one_worker_does(small: Path, same: Path, tmp_path: Path) -> None:
    """NCCL needs a GPU: here it is refused."""
    (alone, *_), (pair, *_) = runs(small, backend="serial"), runs(small, backend="horovod", workers=2)
    assert losses(pair)[:12] == pytest.approx(losses(alone)[:12], rel=1e-4)
    one = record(alone)["effective"]["initial_parameter_sha256"]
    assert one == record(pair)["effective"]["initial_parameter_sha256"]
    assert record(pair)["effective"]["transport"] == "mpi"

    (alone,), (gloo,) = runs(same, backend="serial"), runs(same, backend="horovod", transport="gloo")
    assert losses(gloo) == pytest.approx(losses(alone), rel=1e-4)
    launched("mpirun", *SHORT, "--transport", "nccl", "--steps", 3, "--out", tmp_path / "run", cwd=tmp_path, rc=2)


@REAL
def test_B2_what_the_library_costs_one_worker(small: Path) -> None:
    table = pd.read_csv(small / "analysis/points.csv")
    rates = {
        name: np.median([record(each)["totals"]["samples_per_s"] for each in runs(small, backend=name, workers=1)])
        for name in ("serial", "horovod")
    }
    row = at(table, backend="horovod", workers=1)

    assert row["efficiency_plain"] == pytest.approx(rates["horovod"] / rates["serial"])
    assert (row["speedup_wrapped"], at(table, backend="serial")["speedup_plain"]) == (1, 1)


@REAL
def test_B3_ddp_with_its_knobs(same: Path, tmp_path: Path) -> None:
    knobs = ("--bucket-mb", 0.5, "--broadcast-buffers", "--static-graph")
    launched("torchrun", *SHORT, "--batch", 50, "--steps", 12, *knobs, "--out", tmp_path / "run", cwd=tmp_path)
    found = record(tmp_path / "run")["effective"]
    settings = found["settings"]

    assert (found["backend"], found["transport"], found["reduction"]) == ("ddp", "gloo", "hooks")
    assert (settings["bucket_mb"]["value"], settings["broadcast_buffers"]["value"]) == (0.5, True)
    assert losses(tmp_path / "run") == pytest.approx(losses(runs(same, backend="serial")[0]), rel=1e-4)


@REAL
def test_B4_plain_mpi_and_a_parameter_server_train_the_same(same: Path) -> None:
    (alone,) = runs(same, backend="serial")
    for backend in ("mpi", "ps"):
        (run,) = runs(same, backend=backend, transport="mpi", workers=2)
        assert losses(run) == pytest.approx(losses(alone), rel=1e-4), backend


@REAL
def test_B5_parallel_equals_sequential_and_a_wrong_sum_does_not(tmp_path: Path) -> None:
    words = "--workers 2 --runtime mpi/mpi --reduction flat --optimizer sgd --dtype float64 --steps 4".split()
    right = answer("equality", *words, cwd=tmp_path)
    wrong = answer("equality", *words, "--break", "sum", cwd=tmp_path, rc=1)

    for case in right["cases"]:
        assert [each["relative_error"] < 1e-14 for each in case["tensors"]] == [True] * 8
    assert right["passed"] and not wrong["passed"]
    assert wrong["cases"][0]["gradient_factor"] == pytest.approx(2)


@SLOW
def test_B6_data_or_model_parallel_from_memory_and_messages(tmp_path: Path) -> None:
    def ways(*words: object) -> dict[str, dict[str, Any]]:
        found = answer("model-parallel", "--workers", 4, *words, cwd=tmp_path)
        return {each["name"]: each for each in found["ways"]}

    small, large = ways(), ways("--widths", "15-38-4000", "--memory-gb", 0.03)
    data = small["data parallel"]
    assert data["fits"] and data["sent_bytes"] == pytest.approx(2 * 3 / 4 * 613_764)
    assert data["memory_bytes"] >= PARAMETERS * 16  # weights, gradients, two moments
    assert not large["data parallel"]["fits"] and any(each["fits"] for each in large.values())


@REAL
def test_B7_precision_fused_updates_and_what_only_a_gpu_has(
    trained: Callable[..., Path], compared: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    """TF32, fp16 and CUDA graphs are refused on a CPU; the gain of a way is that of measured pairs."""
    ways = ((), ("--precision", "bf16"), ("--no-fused-optimizer",))
    full, half, loops = (trained("--steps", 12, *each) for each in ways)
    away = np.abs(losses(half) / losses(full) - 1)
    assert record(half)["effective"]["precision"] == "bf16" and 1e-6 < away.max() < 0.2
    assert "fused" in record(full)["effective"]["optimizer"] and "fused" not in record(loops)["effective"]["optimizer"]
    assert losses(loops) == pytest.approx(losses(full), rel=1e-4)
    for option in (("--precision", "tf32"), ("--precision", "fp16"), ("--cuda-graphs",)):
        cli("train", *SHORT, "--device", "cpu", "--steps", 3, *option, "--out", "none", cwd=tmp_path, rc=2)
    (found,) = compared[0]["workers"]
    assert found["low"] < found["ratio"] < found["high"]


@REAL
def test_B8_rates_that_grow_with_the_workers_schedules_and_budgets(trained: Callable[..., Path], dense: Path) -> None:
    assert record(dense)["effective"]["lr"] == pytest.approx(math.sqrt(2) * 4.7331e-4)
    schedule = ("--epochs", 4, "--schedule", "cosine", "--lr-warmup-steps", 15)
    rates = pd.read_csv(trained(*schedule) / "epochs.csv")["lr"].to_numpy()
    assert len(rates) == 4 and rates.max() <= 4.7331e-4 and rates[-1] < 0.1 * rates[0] and (np.diff(rates) < 0).all()
    steps = pd.read_csv(trained("--epochs", 4, "--schedule", "step") / "epochs.csv")["lr"].to_numpy()
    assert steps[0] == pytest.approx(4.7331e-4) and len(set(steps)) > 1
    budget = trained("--seconds", 0.5, "--steady", "declared")
    timed = record(budget)["totals"]
    assert timed["window_s"] >= 0.5 and timed["steps"] == len(rows(budget))


@REAL
def test_B9_a_resumed_run_ends_bit_for_bit_as_the_whole_one(trained: Callable[..., Path], tmp_path: Path) -> None:
    whole = trained("--steps", 12)
    part = shutil.copytree(trained("--steps", 7, "--checkpoint-every", 3), tmp_path / "part")
    assert len(list((part / "checkpoints").iterdir())) == 2
    cli("train", "--resume", part, "--steps", 12, cwd=tmp_path)
    ended = record(part)

    assert (losses(part) == losses(whole)).all()
    assert ended["totals"]["parameter_sha256"] == record(whole)["totals"]["parameter_sha256"]
    assert [each["from_step"] for each in ended["attempts"]] == [0, 7]
    assert ended["totals"]["checkpoint_s"] > 0 and ended["totals"]["checkpoint_bytes"] > 3 * 4 * PARAMETERS


# ------------------------------------------------------------------------------------------------ C: what is measured


@REAL
def test_C1_the_synchronisation_of_every_step_is_timed(small: Path) -> None:
    for run in runs(small, workers=2):
        for rank in (0, 1):
            table = rows(run, rank)
            assert list(table["step"]) == list(range(70))
            assert (table["sync_s"] > 0).all()
            assert table[list(LAPS)].sum(axis=1).to_numpy() == pytest.approx(table["step_s"].to_numpy(), abs=1e-6)


@REAL
def test_C2_the_parts_of_a_step_fill_it(small: Path) -> None:
    table = pd.read_csv(small / "analysis/breakdown.csv")
    for (_, workers), cell in table.groupby(["backend", "workers"]):
        parts = cell[cell["lap"] != "step"]
        assert parts["share"].sum() == pytest.approx(1), workers
        assert parts["mean_s"].sum() == pytest.approx(at(cell, lap="step")["mean_s"])
    mean = np.mean([rows(run, rank)["sync_s"][WARM:].mean() for run in runs(small, workers=2) for rank in (0, 1)])
    assert at(table, backend="horovod", workers=2, lap="sync")["mean_s"] == pytest.approx(mean)


@REAL
def test_C3_loading_alone_cached_training_and_both(loading: list[dict[str, Any]]) -> None:
    for each in loading:
        for name in ("loading", "cached", "together"):
            assert 0 < each[name]["min"] <= each[name]["median"] <= each[name]["max"]
        low, high = each["together"]["min"] / each["cached"]["max"], each["together"]["max"] / each["cached"]["min"]
        assert low <= each["of_cached"]["median"] <= high


@REAL
def test_C4_the_same_training_with_communication_switched_off(dense: Path) -> None:
    found = json.loads((dense / "bench.json").read_text())["ablation"]
    silent = np.array(found["blocks"]["silent"])
    sync_s = np.array(found["blocks"]["sync_s"], float)

    assert silent.sum() == (~silent).sum() == found["pairs"] * 2
    assert np.median(sync_s[silent]) < 0.1 * np.median(sync_s[~silent])


@REAL
def test_C5_processors_and_memory_of_the_ranks_over_time(small: Path) -> None:
    """There is no GPU here: its columns are empty and say why."""
    (run, *_) = runs(small, workers=2)
    table = samples(run)
    assert set(table["part"]) == {"host", "rank 0", "rank 1"} and table["at_s"].iloc[-1] > table["at_s"].iloc[0]
    ranks = table[table["part"] != "host"]
    assert ranks["cpu_percent"].max() > 0 and ranks["rss_mb"].min() > 50 and table["gpu_percent"].isna().all()
    (host,) = record(run)["totals"]["system"]["hosts"].values()
    most = ranks[ranks["part"] == "rank 1"]["rss_mb"].max()
    assert host["missing"]["gpu"] and host["rss_mb_max"]["1"] == pytest.approx(most)
    figure = pd.read_csv(small / "analysis/figures/usage.csv")
    assert at(figure[figure["series"].str.contains("horovod")], workers=2)["rss_mb_per_rank_median"] > 50


@REAL
def test_C6_profilers_synchronisation_points_and_the_timeline(
    dense: Path, trained: Callable[..., Path], tmp_path: Path
) -> None:
    """NVTX and nsys need a GPU: ranges are refused here."""
    assert sorted(path.suffix for path in (dense / "profile").iterdir()) == [".csv", ".csv", ".gz", ".gz"]
    for name, columns in (("cprofile", {"function"}), ("sync-points", {"operation", "file", "line"})):
        profiled = trained("--steps", 12, "--profile", name, "--profile-steps", 5)
        assert columns <= set(pd.read_csv(profiled / f"profile/{name}-00000.csv").columns)
    cli("train", *SHORT, "--device", "cpu", "--steps", 3, "--ranges", "nvtx", "--out", "none", cwd=tmp_path, rc=2)

    written = (dense / "timeline.json").read_text()
    found = answer("timeline", dense, cwd=tmp_path)
    assert found["steps"] == 12 and found["operations"] == {"MPI_ALLREDUCE": written.count('"MPI_ALLREDUCE"')}
    assert sum(each["share"] for each in found["together"].values()) == pytest.approx(1)


@REAL
def test_C7_all_reduce_against_message_size_copies_matrix_peak_and_roofline(wired: dict[str, Any]) -> None:
    found = [each for each in wired["points"] if each["operation"] == "allreduce"]
    assert {(way, size) for way in ("mpi", "horovod/mpi") for size in (4096, 614_000)} <= {
        (each["way"], each["bytes"]) for each in found
    }
    for each in found:
        assert each["algbw_gb_per_s"] == pytest.approx(each["bytes"] / each["seconds_median"] / 1e9)
        assert each["busbw_gb_per_s"] == pytest.approx(each["algbw_gb_per_s"])  # 2 (n - 1) / n is 1
        assert each["wrong"] == 0
    copies = {each["name"]: each for each in wired["copies"]}
    assert copies["host memory, one worker"]["gb_per_s_median"] > 0
    assert all(each["gb_per_s_median"] is None and each["reason"] for name, each in copies.items() if "device" in name)
    roof = wired["roofline"]
    ridge = roof["peak_flop_per_s"] / roof["memory_bytes_per_s"]
    bound = min(1.0, roof["memory_flop_per_byte"] / ridge)
    assert roof["memory_attainable_flop_per_s"] == pytest.approx(bound * roof["peak_flop_per_s"])


@REAL
def test_C8_repeats_have_a_median_their_range_and_an_interval(small: Path) -> None:
    row = at(pd.read_csv(small / "analysis/points.csv"), backend="horovod", workers=2)
    rates = np.array([record(run)["totals"]["samples_per_s"] for run in runs(small, backend="horovod", workers=2)])
    half = stats.t.ppf(0.975, 2) * math.sqrt(math.pi / 2 * np.log(rates).var(ddof=1) / 3)
    kept = [row[f"samples_per_s_{name}"] for name in ("median", "min", "max", "ci95_low", "ci95_high")]
    middle = np.median(rates)

    assert row["repeats"] == 3
    assert kept == pytest.approx([middle, rates.min(), rates.max(), middle / math.exp(half), middle * math.exp(half)])


# ---------------------------------------------------------------------------------------------------- D: where it runs


def sweep(folder: Path, partition: str, **keys: Any) -> Path:
    """Write the study file of a sweep on a partition."""
    sweeps = {"workers": [10], "runtime": ["horovod/nccl", "horovod/mpi"], **keys.pop("sweep", {})}
    run = {"dataset": "2000", "steps": 50}
    content = {"study": "sweep", "partition": partition, "run": run, "sweep": sweeps, "baselines": []}
    return write(folder / f"{partition}.yaml", {**content, "repeats": 2, **keys})


@SLOW
@pytest.mark.parametrize(
    ("partition", "nodes", "per_node", "cores"),
    [("alpha", [8, 2], 8, 6), ("gpu2", [4, 4, 2], 4, 6), ("hpdlf", [3, 3, 3, 1], 3, 4)],
)
def test_D1_partitions_are_data_and_nodes_are_filled_one_after_the_other(
    partition: str, nodes: list[int], per_node: int, cores: int, tmp_path: Path
) -> None:
    study = sweep(tmp_path, partition)
    placed = [each["placement"]["per_node"] for each in answer("plan", study, cwd=tmp_path)["cells"]]
    text = cli("scripts", study, cwd=tmp_path)

    assert placed == [nodes] * 4
    told = [f"--nodes={len(nodes)}", f"--ntasks-per-node={per_node}", f"--cpus-per-task={cores}", "--exclusive"]
    assert [f"#SBATCH {each}" in text.splitlines() for each in told] == [True] * 4
    names = {path.stem for path in (ROOT / "jobs/partitions").glob("*.yaml")}
    assert {"archer2", "cirrus", "perlmutter", "local"} <= names


@SLOW
def test_D2_sweeps_over_workers_backend_batch_knobs_and_repeats(tmp_path: Path) -> None:
    knobs = {"workers": [1, 2, 4], "batch": [50, 100], "cycle_time_ms": [0.1, 1.0]}
    weak = answer("plan", sweep(tmp_path, "alpha", sweep=knobs, repeats=3, baselines=["plain"]), cwd=tmp_path)
    strong = answer("plan", sweep(tmp_path, "gpu2", sweep={"workers": [1, 2, 4], "global_batch": 200}), cwd=tmp_path)

    assert (weak["scaling"], strong["scaling"]) == ("weak", "strong")
    of_a_repeat = 2 * 2 * 2 * 3 + 2  # runtimes, batches, cycles and workers, and a plain run of each batch
    assert len(weak["cells"]) == 3 * of_a_repeat
    assert len({each["cell"] for each in weak["cells"]}) == len(weak["cells"])
    assert {each["batch"] * each["placement"]["workers"] for each in strong["cells"]} == {200}
    order = sorted(weak["cells"], key=lambda each: each["place"])
    alone = [each["repeat"] for each in order if each["placement"]["workers"] == 1]
    assert alone == sorted(alone), "repeats of a placement are blocks"


@SLOW
def test_D3_jobs_are_submitted_once_and_asked_for(tmp_path: Path) -> None:
    """With programs in the place of Slurm's that write down what they are asked."""
    script, log = tmp_path / "script", tmp_path / "log"
    named = f"$(sed -n 's/#SBATCH --job-name=//p' {script})"
    programs = {
        "sbatch": f"cat script.sh > {script}; echo submitted >> {log}; echo 4711",
        "squeue": f'test -f {log} && echo "4711|4711|N/A|PENDING|Priority|{named}|"',
        "sacct": "true",
        "scontrol": "true",
    }
    for name, body in programs.items():
        write(tmp_path / "bin" / name, f"#!/bin/sh\n{body}\nexit 0\n").chmod(0o755)
    env = {"PATH": os.pathsep.join(map(str, (tmp_path / "bin", BIN, os.environ["PATH"])))}
    study = sweep(tmp_path, "alpha")
    for _ in range(2):
        cli("run", study, "--yes", cwd=tmp_path, env=env)

    assert log.read_text().split() == ["submitted"]
    start(["bash", "-n", script], cwd=tmp_path)
    lines = {"#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=8", "#SBATCH --gres=gpu:8"}
    assert lines <= set(script.read_text().splitlines())
    found = answer("status", study, cwd=tmp_path, env=env)
    assert {(each["state"], each["job"]) for each in found["rows"]} == {("queued", "4711")} and len(found["rows"]) == 4
    cli("run", study, "--here", cwd=tmp_path, rc=2)  # there is no allocation to use


@pytest.fixture(scope="module")
def finished(stopped: tuple[Path, int, dict[str, Any]]) -> Path:
    """The folder of the study that was stopped, after the same command again."""
    folder, _, _ = stopped
    cli("run", "study.yaml", "--no-smoke", cwd=folder)
    return folder


@REAL
def test_D4_a_study_is_interrupted_continued_and_says_where_it_stands(
    stopped: tuple[Path, int, dict[str, Any]], finished: Path
) -> None:
    _, code, before = stopped
    after = answer("status", "study.yaml", cwd=finished)

    assert code == 130
    assert before["cells"] == 3 and before["counts"]["done"] < 3 and sum(before["counts"].values()) == 3
    assert after["counts"]["done"] == 3 and [each["state"] for each in after["rows"]] == ["done"] * 3
    kept = {path: path.read_bytes() for path in finished.glob("runs/held/*/run.json")}
    cli("run", "study.yaml", "--no-smoke", cwd=finished)
    assert len(kept) == 3 and {path: path.read_bytes() for path in finished.glob("runs/held/*/run.json")} == kept


# --------------------------------------------------------------------------------------------------- E: the answers


def series(forged: Path, name: str, transport: str = "nccl", **where: Any) -> pd.DataFrame:
    """Return the rows of a table of the forged study that are of one transport, batch 50, by workers."""
    table = pd.read_csv(forged / f"{name}.csv")
    table = table[table["series"].str.contains(f"horovod/{transport}", regex=False)]
    if "batch" in table:
        table = table[table["batch"] == 50]
    for column, value in where.items():
        table = table[table[column] == value]
    return table.sort_values("workers", kind="stable") if "workers" in table else table


@SLOW
def test_E1_epoch_time_speedup_and_efficiency_with_their_bases(forged: Path) -> None:
    table = series(forged, "points")
    steps = np.array([step_ms("nccl", n) for n in COUNTS])
    rates = np.array(COUNTS) * 50 / steps * 1e3
    plain, wrapped = 50 / plain_ms(50) * 1e3, rates[0]

    assert list(table["workers"]) == list(COUNTS)
    for column, expected in {
        "samples_per_s_median": rates,
        "epoch_s_median": EPOCH / rates,
        "speedup_plain": rates / plain,
        "speedup_wrapped": rates / wrapped,
        "efficiency_plain": rates / plain / np.array(COUNTS),
        "ideal_epoch_plain_s": EPOCH / plain / np.array(COUNTS),
    }.items():
        assert table[column].to_numpy() == pytest.approx(expected), column
    drawn = pd.read_csv(forged / "figures/epoch_time.csv")
    drawn = drawn[drawn["series"] == table["series"].iloc[0]]
    assert sorted(drawn["epoch_s_median"].dropna()) == pytest.approx(sorted(EPOCH / rates))


@SLOW
def test_E2_the_regression_line_amdahl_and_gustafson(forged: Path, tmp_path: Path) -> None:
    counts = (1, 2, 4, 8, 16)
    laws: dict[str, tuple[Callable[[float], float], str, float]] = {
        "linear": (lambda n: 0.55 + 0.45 * n, "slope", 0.45),  # the slope that the first study found
        "amdahl": (lambda n: 1 / (0.05 + 0.95 / n), "s", 0.05),
        "gustafson": (lambda n: 0.2 + 0.8 * n, "s", 0.2),
    }
    for name, (law, parameter, value) in laws.items():
        path = points(tmp_path / f"{name}.csv", law, counts)
        fitted = answer("fit", path, cwd=tmp_path)["series"][""]["laws"][name]["params"]
        assert fitted[parameter] == pytest.approx(value, rel=1e-3), name
    line = series(forged, "figures/regression", kind="line")
    low, high = line.iloc[0], line.iloc[-1]
    slope = (high["speedup"] - low["speedup"]) / (high["workers"] - low["workers"])
    told = json.loads((forged / "fits.json").read_text())["series"][line["series"].iloc[0]]["laws"]["linear"]
    assert slope == pytest.approx(told["params"]["slope"], rel=1e-6) and 0.5 < slope < 0.8


@SLOW
def test_E3_waiting_against_workers_the_jump_at_a_node_and_batches_of_an_epoch(forged: Path) -> None:
    table = series(forged, "synchronisation")
    several = [n for n in COUNTS if n > 1]
    waits_s = np.array([waits_ms("nccl", n) / 1e3 for n in several])
    batches = np.array([EPOCH // (50 * n) for n in several])

    assert table[table["workers"] > 1]["sync_s_median"].to_numpy() == pytest.approx(waits_s)
    assert table[table["workers"] > 1]["batches_per_epoch"].to_numpy() == pytest.approx(batches)
    assert table[table["workers"] > 1]["sync_per_epoch_s_median"].to_numpy() == pytest.approx(waits_s * batches)
    jump = at(series(forged, "boundary"), fewer_nodes=1, more_nodes=2)
    assert (jump["fewer_workers"], jump["more_workers"]) == (4, 8)
    assert jump["jump_s"] == pytest.approx((waits_ms("nccl", 8) - waits_ms("nccl", 4)) / 1e3) and jump["resolved"]
    assert series(forged, "figures/boundary", kind="point")["nodes"].tolist() == [1, 1, 1, 2, 4]


@SLOW
def test_E4_nccl_against_mpi(forged: Path) -> None:
    table = pd.read_csv(forged / "transports.csv")
    table = table[(table["quantity"] == "samples_per_s") & (table["batch"] == 50)]
    for workers in (2, 4, 8, 16):
        row = at(table, workers=workers)
        ratio = step_ms("nccl", workers) / step_ms("mpi", workers)
        assert (row["a_transport"], row["b_transport"]) == ("nccl", "mpi")
        assert row["ratio"] == pytest.approx(ratio) and row["better"] == "a" and row["verdict"] == "resolved"
    drawn = pd.read_csv(forged / "figures/transport_ratio.csv")
    assert np.isclose(drawn.select_dtypes("number"), step_ms("nccl", 16) / step_ms("mpi", 16)).any()


@SLOW
def test_E5_a_larger_batch_up_to_its_knee(forged: Path) -> None:
    table = pd.read_csv(forged / "batches.csv")
    table = table[table["backend"] == "serial"].sort_values("batch")
    expected = np.array([EPOCH // batch * plain_ms(batch) / 1e3 for batch in BATCHES])
    knee = at(pd.read_csv(forged / "knees.csv"), backend="serial")

    assert table["epoch_s_median"].to_numpy() == pytest.approx(expected)
    assert table["times_faster"].iloc[-1] == pytest.approx(expected[0] / expected[-1], rel=1e-3)
    assert knee["knee"] == pytest.approx(2.0 / 0.04, rel=1e-3) and knee["identified"]
    assert (knee["fixed_s"], knee["per_sample_s"]) == pytest.approx((2e-3, 4e-5))
    assert "point" in set(pd.read_csv(forged / "figures/batch_size.csv")["kind"])


@SLOW
def test_E6_errors_against_epochs_and_time_the_best_one_and_its_rate(forged: Path) -> None:
    best = series(forged, "learning").set_index("workers")
    course = series(forged, "convergence", workers=16)
    reached = series(forged, "targets", target_mse=TARGET).set_index("workers")

    assert best["best_mse_median"].tolist() == [0.003] * 5 and (best["rate"] > 0).all()
    assert course["epoch"].tolist() == [1, 2, 3, 4] and course["test_mse_median"].tolist() == [
        0.02,
        0.012,
        0.006,
        0.003,
    ]
    rate = 16 * 50 / step_ms("nccl", 16) * 1e3
    assert course["train_s_median"].to_numpy() == pytest.approx(np.arange(1, 5) * EPOCH / rate)
    assert 2 * EPOCH < reached["samples"].iloc[0] < 3 * EPOCH and reached["reached"].tolist() == [3] * 5
    assert reached["train_s"].to_numpy() == pytest.approx(reached["samples"] / reached["samples_per_s"], rel=0.01)
    assert reached["train_s"].is_monotonic_decreasing


@SLOW
def test_E7_weak_scaling_with_its_ideal_and_overhead_against_the_batch(forged: Path) -> None:
    drawn = series(forged, "figures/weak_scaling", kind="throughput")
    alone = drawn["samples_per_s_median"].iloc[0]
    lost = pd.read_csv(forged / "figures/batch_size.csv")
    lost = lost[lost["series"].str.contains("nccl") & (lost["workers"] == 4) & (lost["kind"] == "point")].set_index(
        "batch"
    )

    assert set(series(forged, "points")["mode"]) == {"weak"}
    assert drawn["efficiency_plain"].to_numpy() == pytest.approx(
        drawn["samples_per_s_median"] / drawn["workers"] / (1.1 * alone)
    )
    wait = waits_ms("nccl", 4)
    for batch in (50, 200):
        assert lost.loc[batch, "overhead_median"] == pytest.approx(wait / (1.1 * plain_ms(batch) + wait), rel=0.02)


@SLOW
def test_E8_use_and_power_of_gpus_against_workers(forged: Path) -> None:
    """The samples are forged: 80 % and 100 W for each GPU."""
    table = series(forged, "usage")
    assert table["gpu_power_w_median"].tolist() == [100.0 * n for n in COUNTS]
    assert set(table["gpu_percent_median"]) == {80.0} and set(table["gpu_power_w_per_gpu_median"]) == {100.0}
    drawn = series(forged, "figures/usage")
    assert sorted(set(drawn["workers"])) == list(COUNTS) and (drawn["gpu_percent_median"] == 80).all()


# ---------------------------------------------------------------------------------------------------------- F: to read


@SLOW
def test_F1_a_page_figures_and_tables_for_print_tensorboard_and_notebooks(forged: Path, tmp_path: Path) -> None:
    page = (forged / "report.html").read_text()
    assert "<svg" in page and not re.search(r"(src|href)=[\"']https?://[^\"']+\.(js|css|png|svg|woff2?)", page)
    for name in ("speedup", "efficiency", "regression", "synchronisation", "batch_size", "usage"):
        assert f"{name}" in page
        pdf = (forged / f"figures/{name}.pdf").read_bytes()
        width = re.search(rb"/MediaBox ?\[ ?0 0 ([0-9.]+)", pdf)
        assert pdf.startswith(b"%PDF") and b"/FontFile" in pdf, "letters are embedded"
        assert width is not None and float(width[1]) / 72 * 25.4 == pytest.approx(150, abs=1.0)
    latex = (forged / "tables/points.tex").read_text()
    assert "tabular" in latex and len(pd.read_csv(forged / "tables/points.csv")) >= 15

    cli("export", "tensorboard", forged.parent, "--out", tmp_path / "logs", cwd=tmp_path)
    assert len(list((tmp_path / "logs").rglob("events.out.tfevents*"))) >= 51
    book = json.loads((ROOT / "notebooks/prediction.ipynb").read_text())
    cells = "\n".join("".join(each["source"]) for each in book["cells"] if each["cell_type"] == "code")
    for workers in (1, 2, 4):
        forge(tmp_path / "runs", "horovod", "mpi", own_ms=[4.0] * workers, sync_ms=waits_ms("mpi", workers))
    write(tmp_path / "cells.py", f"{cells}\nassert figures['forecast'].data is not None and len(fits) == 1\n")
    env = {"HOROVOD_STUDY_RUNS": str(tmp_path / "runs"), "MPLBACKEND": "agg"}
    start([sys.executable, "cells.py"], cwd=tmp_path, env=env)


# ------------------------------------------------------------------------------------------- X: what nobody else offers


@REAL
def test_X1_every_step_is_accounted_for_and_a_gap_is_found(small: Path, tmp_path: Path) -> None:
    def residual_ms(run: Path, rc: int) -> float:
        (found,) = answer("account", run, "--max-residual", "5%", cwd=tmp_path, rc=rc)["runs"]
        assert sum(
            found["parts_s"][name] or 0 for name in ("data", "forward", "backward", "sync", "update", "residual")
        ) == pytest.approx(found["parts_s"]["step"], abs=1e-6)
        return 1e3 * float(found["residual"]["median"] * found["parts_s"]["step"])

    assert residual_ms(forge(tmp_path, own_ms=[8.0], residual_ms=2.0), rc=1) == pytest.approx(2.0)
    assert residual_ms(forge(tmp_path, own_ms=[8.0], repeat=1), rc=0) == 0
    growth = answer("explain", small, cwd=tmp_path)["growth"]
    assert growth, "what two workers add to the step of one is told in the same parts"

    import torch  # the real thing: a loop that sleeps where no lap is

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with hs.recorder(model, optimizer, out=tmp_path / "gap", warmup_steps=5, system_interval_s=0) as recording:
        for batch in recording.steps([torch.ones(8, 4)] * 45):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.004)
    gap = rows(tmp_path / "gap")
    assert gap["residual_s"].median() > 0.0035
    answer("account", tmp_path / "gap", "--max-residual", "5%", cwd=tmp_path, rc=1)


@REAL
def test_X2_one_clock_is_called_one_and_the_cost_of_measuring_has_an_interval(small: Path, tmp_path: Path) -> None:
    """The second clock is that of a GPU; without one its column is empty, never equal to the first."""
    assert rows(runs(small, workers=2)[0])["sync_host_s"].isna().all()
    words = "--dataset 2000 --rounds 8 --steps-per-block 3".split()
    (case,) = answer("timers", *words, cwd=tmp_path)["cases"]
    assert {each["way"] for each in case["variants"]} == {"light", "strict"} and case["control"]["way"] == "control"
    for each in (case["control"], *case["variants"]):
        assert each["low"] < each["percent"] < each["high"]


@REAL
def test_X3_blocks_without_communication_in_the_same_job_leave_no_trace(dense: Path, tmp_path: Path) -> None:
    kept = json.loads((dense / "bench.json").read_text())["ablation"]
    (run,) = answer("account", dense, cwd=tmp_path)["runs"]
    found = run["ablation"]

    assert kept["sha256"]["before"] == kept["sha256"]["after"] and kept["pairs"] >= 4
    assert found["ablation_s"]["value"] == pytest.approx(found["step_s"]["value"] - found["silent_step_s"]["value"])
    assert found["ablation_s"]["low"] < found["ablation_s"]["value"] < found["ablation_s"]["high"]


@REAL
def test_X4_the_scaling_mode_is_what_the_runs_did_and_both_baselines_have_names(small: Path, tmp_path: Path) -> None:
    real = at(pd.read_csv(small / "analysis/points.csv"), workers=2)
    assert real["mode"] == "strong" and real["speedup_plain"] != real["speedup_wrapped"]
    assert real["base_plain_repeats"] == real["base_wrapped_repeats"] == 3
    for mode, batch in (("weak", 50), ("mixed", 40)):
        forge(tmp_path / mode, own_ms=[4.0])
        forge(tmp_path / mode, "horovod", "mpi", own_ms=[4.0])
        forge(tmp_path / mode, "horovod", "mpi", own_ms=[4.0, 4.0], batch=batch)
        pair = at(hs.analyze(tmp_path / mode).points, workers=2)
        assert pair["mode"] == mode and (pair["speedup_plain"] > 0) == (mode == "weak")

    def applies(**columns: Any) -> dict[str, bool]:
        path = points(tmp_path / "points.csv", lambda n: 900 * n**0.9, (1, 2, 4, 8), **columns)
        laws = answer("fit", path, cwd=tmp_path)["series"][""]["laws"]
        return {name: laws[name]["applies"] for name in ("amdahl", "gustafson")}

    assert applies(batch_size=64) == {"amdahl": False, "gustafson": True}
    assert applies(batch_size=lambda n: 64 // n) == {"amdahl": True, "gustafson": False}


@SLOW
def test_X5_scaling_laws_are_found_with_honest_intervals(tmp_path: Path) -> None:
    alpha, beta = 0.05, 0.001
    noise = np.random.default_rng(4)
    counts = [n for n in (1, 2, 4, 6, 8, 12, 16, 24, 32) for _ in range(5)]
    noisy = points(
        tmp_path / "usl.csv",
        lambda n: 1000 * n / (1 + alpha * (n - 1) + beta * n * (n - 1)) * math.exp(0.02 * noise.standard_normal()),
        counts,
        batch_size=32,
    )
    usl = answer("fit", noisy, cwd=tmp_path)["series"][""]["laws"]["usl"]
    low, high = usl["ci95"]["alpha"]
    assert low < alpha < high and high - low < 0.05 and usl["identifiable"]
    assert usl["peak"] == pytest.approx(math.sqrt((1 - alpha) / beta), rel=0.25)

    few = answer("fit", points(tmp_path / "few.csv", lambda n: 1000 * n**0.9, (1, 2, 3)), cwd=tmp_path)["series"][""]
    assert not few["laws"]["usl"]["identifiable"]
    line = hs.fit(hs.read_points(points(tmp_path / "line.csv", lambda n: 1000 * n, (1, 2, 4, 8, 16))))[""]
    assert line.selected != "usl"


@SLOW
def test_X6_forecasts_are_scored_on_hidden_counts(tmp_path: Path) -> None:
    def score(name: str, law: Callable[[float], float], hide: int) -> dict[str, Any]:
        found = answer("holdout", hide, points(tmp_path / name, law, (1, 2, 4, 8, 16, 32), batch_size=32), cwd=tmp_path)
        scored: dict[str, Any] = found["series"][""]
        return scored

    straight = score("straight.csv", lambda n: 1000 * n, 2)
    assert straight["hidden"] == [16, 32] and straight["laws"]["combined"]["median_ape"] < 0.02
    errors = [each["forecast"] / each["measured"] - 1 for each in straight["forecasts"] if each["law"] == "combined"]
    assert straight["laws"]["combined"]["median_ape"] == pytest.approx(np.median(np.abs(errors)))
    back = score("back.csv", lambda n: 1000 * n / (1 + 0.03 * n * (n - 1)), 2)["laws"]
    assert back["amdahl"]["fails"] and not back["usl"]["fails"]


@REAL
def test_X7_pairs_of_equal_work_are_compared_and_unequal_work_is_refused(
    compared: tuple[dict[str, Any], Path], tmp_path: Path
) -> None:
    found, folder = compared
    (row,) = found["workers"]
    both = [record(path.parent) for path in folder.rglob("run.json")]
    logs: dict[str, list[float]] = {"torch": [], "native": []}  # of the rates
    for each in both:
        logs[each["effective"]["kernels"]].append(math.log(each["totals"]["samples_per_s"]))

    assert row["blocks"] == 2 and [len(each) for each in logs.values()] == [2, 2]
    assert math.log(row["ratio"]) == pytest.approx(np.mean(logs["native"]) - np.mean(logs["torch"]))
    assert len({each["effective"]["initial_parameter_sha256"] for each in both}) == 1
    assert not row["resolved"], "two blocks resolve nothing"
    refused = cli("compare", "serial", "serial,batch=50", "--workers", 1, "--out", "other", cwd=tmp_path, rc=2)
    assert "batch" in refused and not list(tmp_path.rglob("run.json"))


@SLOW
def test_X8_efficiencies_multiply(tmp_path: Path) -> None:
    """Useful times of 1, 1, 1 and 0.6 in 1.25: a load balance of 0.9, times 0.8 of communication, is 0.72."""
    forge(tmp_path / "runs", own_ms=[8.0])
    run = forge(tmp_path / "runs", "horovod", "mpi", own_ms=[10.0, 10.0, 10.0, 6.0], sync_ms=2.5)
    (found,) = answer("account", run, cwd=tmp_path)["runs"]

    assert found["pop"] == pytest.approx({"load_balance": 0.9, "communication": 0.8, "parallel": 0.72})
    table = hs.analyze(tmp_path / "runs").points
    assert at(table, workers=4)["parallel_efficiency_median"] == pytest.approx(0.72)


@REAL
def test_X9_synchronisation_is_a_floor_the_runtime_and_skew(dense: Path, tmp_path: Path) -> None:
    known = {"transport": "mpi", "reduction": "flat", "workers": 2, "gradient_bytes": 613_764, "block": 10}
    known |= {"clock": "common", "why_not_through": ""}
    times = {"floor_s": [3e-4] * 40, "pack_s": [1e-5] * 40, "through_s": [5e-4] * 40}
    bench = {"synchronisation": {**known, **times}}
    run = forge(tmp_path, "horovod", "mpi", own_ms=[10.0, 10.0], sync_ms=0.5, bench=bench)

    def parts(directory: Path) -> dict[str, float]:
        (arm,) = answer("sync", directory, cwd=tmp_path)["arms"]
        return {name: each["value"] for name, each in arm["seconds"].items() if each}

    found = parts(run)
    assert [found[name] for name in ("floor", "through", "runtime", "sync")] == pytest.approx([3e-4, 5e-4, 2e-4, 5e-4])
    assert found["skew"] == pytest.approx(0, abs=1e-9)
    kept = json.loads((dense / "bench.json").read_text())["synchronisation"]
    assert kept["gradient_bytes"] == 613_764
    assert min(kept["floor_s"]) <= parts(dense)["floor"] <= max(kept["floor_s"])


@REAL
def test_X10_what_really_ran_is_recorded_and_can_be_required(small: Path, tmp_path: Path) -> None:
    require = ("--require", "path=infiniband", "--out", tmp_path / "none")
    launched("mpirun", *SHORT, "--steps", 3, *require, cwd=tmp_path, rc=2)
    assert record(tmp_path / "none")["status"] == "failed" and rows(tmp_path / "none").empty

    found = record(runs(small, workers=2)[0])
    ranks = found["effective"]["ranks"]
    assert [each["local_rank"] for each in ranks] == [0, 1] and all(
        each["cores"] and each["threads"] == 1 for each in ranks
    )
    assert {each["lr"] for each in ranks} == {found["requested"]["lr"]} and found["effective"]["path"] == [
        "shared memory"
    ]
    assert found["effective"]["settings"]["HOROVOD_CYCLE_TIME"]["value"] and found["environment"]["torch"]


@REAL
def test_X11_the_ledger_names_what_is_missing_and_forgets_nothing(finished: Path, tmp_path: Path) -> None:
    def states() -> dict[str, str]:
        return {each["cell"]: each["state"] for each in answer("status", "study.yaml", cwd=finished)["rows"]}

    before = states()
    gone = next(iter(before))
    shutil.move(finished / "runs/held" / gone, tmp_path / gone)
    try:
        assert states() == {**before, gone: "missing"}
        plan = answer("plan", "study.yaml", cwd=finished)
        assert [each["cell"] for each in plan["cells"] if each["state"] == "missing"] == [gone] and plan["to_do"] == 1
    finally:
        shutil.move(tmp_path / gone, finished / "runs/held" / gone)
    content = yaml.safe_load((finished / "study.yaml").read_text())
    content["run"]["lr"] = 1e-3
    other = answer("status", write(finished / "other.yaml", content), cwd=finished)
    assert not {each["cell"] for each in other["rows"]} & set(before) and other["counts"]["missing"] == 3
    assert set(states().values()) == {"done"}


@REAL
def test_X12_the_late_rank_is_named_without_a_profiler_or_equal_clocks(scripted: Path, tmp_path: Path) -> None:
    late = forge(tmp_path, "horovod", "mpi", own_ms=[10.0, 15.0], sync_ms=0.5)
    for run, rank, least in ((late, 1, 0.00499), (scripted / "out", 1, 0.01)):
        (slow,) = answer("explain", run, cwd=tmp_path)["slow"]
        assert [each["rank"] for each in slow["ranks"]] == [rank] and slow["ranks"][0]["host"]
        assert slow["ranks"][0]["value_s"] >= least
    own = [rows(scripted / "out", rank)[["data_s", "forward_s", "residual_s"]].sum(axis=1).median() for rank in (0, 1)]
    assert own[1] > own[0] + 0.01


@SLOW
def test_X13_energy_and_gpu_hours_of_a_sample(forged: Path, tmp_path: Path) -> None:
    """The power is forged, 100 W a GPU. Where there is no sensor, energy is unknown."""
    table = series(forged, "resources").set_index("workers")
    steps_s = pd.Series({n: step_ms("nccl", n) / 1e3 for n in COUNTS})
    joules = 100 * steps_s / 50
    plain = 100 * plain_ms(50) / 1e3 / 50

    assert table["energy_per_sample_j_median"].to_numpy() == pytest.approx(joules.to_numpy())
    assert table["energy_ratio"].to_numpy() == pytest.approx((joules / plain).to_numpy())
    speedups = series(forged, "points").set_index("workers")["speedup_plain"]
    assert table["speedup_per_joule"].to_numpy() == pytest.approx((speedups * plain / joules).to_numpy())
    hours = steps_s * EPOCH / 50 / 3600
    assert table["worker_hours_per_epoch_median"].to_numpy() == pytest.approx(hours.to_numpy())
    forge(tmp_path / "dark")
    assert hs.analyze(tmp_path / "dark").runs["energy_j"].isna().all()


@SLOW
def test_X14_time_to_a_target_is_throughput_times_statistics(forged: Path) -> None:
    table = series(forged, "targets")
    met = table[(table["target_mse"] == TARGET) & (table["workers"] > 1)]
    parts = met["throughput_ratio"] * met["statistical_efficiency"]
    assert met["speedup"].to_numpy() == pytest.approx(parts.to_numpy(), rel=1e-6)
    assert (met["statistical_efficiency"] < 1).all()
    missed = table[table["target_mse"] == FAR]
    assert len(missed) == 5 and missed["censored"].all() and missed["train_s"].isna().all()
    rates = [n * 50 / step_ms("nccl", n) * 1e3 for n in COUNTS]
    assert missed["train_s_at_least"].to_numpy() == pytest.approx([4 * EPOCH / rate for rate in rates])
    assert (missed["speedup"].isna() & (missed["speedup_at_most"] > 0)).all()


@REAL
def test_X15_the_report_audits_itself(study: Path, tmp_path: Path) -> None:
    def findings(rc: int) -> list[dict[str, Any]]:
        known = ("other-load", "warm-up-in-window", "few-repeats", "oversubscribed-cores")
        found = answer("check", "analysis", "--runs", "small", "--allow", *known, cwd=tmp_path, rc=rc)
        listed: list[dict[str, Any]] = found["findings"]
        return listed

    shutil.copytree(study / "runs/small", tmp_path / "small", ignore=shutil.ignore_patterns("analysis"))
    cli("tables", "small", "--out", "analysis", cwd=tmp_path)
    assert findings(rc=0) == []

    path = next((tmp_path / "small").glob("horovod-mpi-2w*/epochs.csv"))
    line = path.read_text().splitlines()
    values = line[1].split(",")
    values[6] = str(2 * float(values[6]))
    path.write_text("\n".join([line[0], ",".join(values), *line[2:]]) + "\n")
    wrong = [each for each in findings(rc=1) if each["severity"] == "error"]
    assert wrong and any(path.parent.name in each["runs"] or path.parent.name in each["where"] for each in wrong)


@REAL
def test_X16_any_command_is_recorded_explained_and_a_study(scripted: Path, tmp_path: Path) -> None:
    found = record(scripted / "out")
    assert (found["effective"]["model"], found["effective"]["parameters"]) == ("Linear", 9)
    assert (found["effective"]["backend"], found["effective"]["workers"], found["effective"]["batch"]) == ("ddp", 2, 4)
    assert found["totals"]["steps"] + found["totals"]["excluded_steps"] == len(rows(scripted / "out", 1)) >= 55
    assert answer("explain", scripted / "out", cwd=tmp_path)["cells"][0]["parts_s"]["backward"] > 0

    write(tmp_path / "train.py", SCRIPT)
    content = {"study": "mine", "script": "train.py {hidden}", "run": {"warmup_steps": 5}, "repeats": 1}
    write(tmp_path / "study.yaml", {**content, "sweep": {"workers": 1, "runtime": "ddp/gloo", "hidden": [1, 3]}})
    cli("run", "study.yaml", "--no-smoke", cwd=tmp_path)
    made = [record(path.parent)["effective"]["parameters"] for path in (tmp_path / "runs/mine").glob("*/run.json")]
    assert sorted(made) == [9, 27]
    assert len(pd.read_csv(tmp_path / "runs/mine/analysis/points.csv")) == 2


@REAL
def test_X17_cells_take_turns_and_a_study_ends_when_it_is_precise_enough(tmp_path: Path) -> None:
    run = {"dataset": "2000", "steps": 500, "warmup_steps": 5, "steady": "declared", "system_interval_s": 0}
    content = {"study": "turns", "run": run, "sweep": {"workers": 1, "runtime": "horovod/gloo"}, "turns": True}
    write(tmp_path / "study.yaml", {**content, "precision": "40 %", "repeats": 5})
    cli("run", "study.yaml", "--no-smoke", cwd=tmp_path)
    slices = pd.read_csv(tmp_path / "runs/turns/turns.csv")
    table = pd.read_csv(tmp_path / "runs/turns/analysis/points.csv")
    row = at(table, backend="horovod")

    both = 0  # on a busy machine a run may have made its steps before the other one came to a slice
    for _, launch in slices.sort_values("begin_s").groupby("launch"):
        assert (launch["begin_s"].to_numpy()[1:] >= launch["end_s"].to_numpy()[:-1] - 1e-3).all(), "one at a time"
        both += bool((launch.groupby("round")["run"].nunique() == 2).sum() >= 2)
    assert both >= 2
    launches = len(list((tmp_path / "runs/turns").glob("serial-*/run.json")))
    narrow = max(row["speedup_plain_high"] / row["speedup_plain"], row["speedup_plain"] / row["speedup_plain_low"]) - 1
    assert launches == 5 or narrow <= 0.41
    assert row["speedup_plain_low"] < row["speedup_plain"] < row["speedup_plain_high"]


@SLOW
def test_X18_forecasts_know_the_batch_at_the_target_and_the_simulator_its_formula(tmp_path: Path) -> None:
    def rate(workers: float, batch: float) -> float:
        return workers * batch / (0.002 + 5e-5 * batch)

    path = points(tmp_path / "points.csv", lambda n: rate(n, 800 // n), (8, 16, 32), batch_size=lambda n: 800 // n)
    for batch in (25, 5):
        (found,) = answer("predict", path, "--workers", 128, "--batch", batch, cwd=tmp_path)["series"][""]
        assert found["low"] < rate(128, batch) < found["high"] and found["batch_size"] == batch
    assert hs.predict(hs.read_points(path), workers=[128], batch=25)[""][0].samples_per_s > found["samples_per_s"]

    constants = "--compute-ms 5 --batch 32 --gradient-mb 1 --alpha-us 10 --gb-per-s 2 --algorithm ring".split()
    told = answer("simulate", *constants, "--workers", 2, 8, 1000, "--what-if", "bandwidth=2x", cwd=tmp_path)
    for name, speed in (("baseline", 2e9), ("bandwidth=2x", 4e9)):
        for row in told["scenarios"][name]:
            n = row["workers"]
            ring = 2 * (n - 1) * (10e-6 + 1e6 / n / speed)
            assert row["step_s"] == pytest.approx(0.005 + ring, rel=1e-6)


@REAL
def test_X19_the_native_step_computes_what_pytorch_does(compared: tuple[dict[str, Any], Path], small: Path) -> None:
    """The fused kernels are a GPU's; those of the CPU are compiled here. Flat parameters are reduced as others are."""
    made = [path.parent for path in compared[1].rglob("run.json")]
    kernels = {record(run)["effective"]["kernels"]: run for run in made}
    torch, native = losses(kernels["torch"]), losses(kernels["native"])

    assert len(torch) == 35 and native == pytest.approx(torch, rel=1e-3) and (native != torch).any()
    for run in kernels.values():
        assert record(run)["effective"]["parameters"] == PARAMETERS


@SLOW
def test_X20_measurements_of_others(tmp_path: Path) -> None:
    for nodes in (1, 2, 4):
        mlperf(tmp_path / "mlperf", nodes, 100 / nodes**0.9)
    read = hs.read_points(tmp_path / "mlperf")
    assert read["workers"].tolist() == [8, 8, 16, 16, 32, 32] and set(read["batch_size"]) == {408, 204, 102}
    assert read["samples_per_s"].iloc[-1] == pytest.approx(1_281_167 * 4 / 100 * 4**0.9, rel=1e-4)

    write(tmp_path / "nccl.txt", nccl_tests(8))
    write(tmp_path / "osu.txt", OSU)
    simulated = hs.simulate([8], benches=[tmp_path / "nccl.txt"], gradient_mb=100, compute_ms=100, batch=32)
    assert simulated["allreduce_s"].iloc[0] == pytest.approx(20e-6 + 100e6 / 100e9, rel=0.01)
    osu = f"{tmp_path / 'osu.txt'}@8"
    simulated = hs.simulate([8], benches=[osu], gradient_mb=1.048576, compute_ms=100, batch=32)
    assert simulated["allreduce_s"].iloc[0] == pytest.approx(1058.58e-6, rel=0.01)

    for rank in (0, 1):
        write(tmp_path / f"traces/rank{rank}.json", json.dumps(kineto(rank, late_ms=2.5 * rank)))
    found = answer("explain", "traces", cwd=tmp_path)
    seconds = [each["seconds"] for each in found["ranks"]]
    assert seconds[0]["exposed"]["value"] == pytest.approx(4e-3) and seconds[1]["late"]["value"] == pytest.approx(
        2.5e-3
    )

    for rank in range(4):
        write(tmp_path / f"inspector/node{rank // 2}-pid{100 + rank}.log", inspector(rank, late=2))
    found = answer("explain", "inspector", cwd=tmp_path)
    assert found["late"]["rank"] == 2 and found["late"]["host"] == "node1"

    write(tmp_path / "table.csv", "GPUs;tokens/s/GPU\n1;1.000,5\n2;900,5\n4;800,25\n")
    read = hs.read_points(tmp_path / "table.csv")
    assert read[["workers", "samples_per_s"]].to_numpy() == pytest.approx(np.array([[1, 1000.5], [2, 1801], [4, 3201]]))
    write(tmp_path / "bad.csv", "workers,samples_per_s\n1,100\n2,-5\n")
    with pytest.raises(hs.StudyError):
        hs.read_points(tmp_path / "bad.csv")


def test_every_row_has_a_check() -> None:
    held = {name.split("_")[1] for name in globals() if name.startswith("test_")}
    assert len(ROWS) == 55 and held - {"every"} == set(ROWS)
