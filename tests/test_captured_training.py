"""Training with captured steps, replayed on the host: the same run as without, in other laps.

A replay on a CPU calls what was captured again. So all but the capturing itself is the path of a GPU: the order of the
epoch on the device, rings of losses, lagged reading, the exchange between two graphs, resuming.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import LAUNCHERS, Launch
from make.wording import Golden

from horovod_study import records, train
from horovod_study.config.run import LAPS
from horovod_study.errors import ConfigError
from horovod_study.records import read_run, read_steps
from horovod_study.strain import trainer
from horovod_study.strain.checkpoint import decode, read_newest
from horovod_study.strain.optimizer import REPLAY_ON_HOST
from horovod_study.strain.options import StrainConfig
from horovod_study.strain.profiling import profile_path

# 450 training curves: 18 steps of 25 per epoch.
SMALL = (
    *("--dataset", "600", "--batch", "25", "--widths", "3-4-6", "--lr", "2e-3"),
    *("--warmup-steps", "5", "--steady", "declared", "--system-interval-s", "0"),
)
MOVING = ("--schedule", "cosine", "--lr-warmup-steps", "8", "--evaluate-every", "0.7")
RESIDENT = ("--cuda-graphs", "--loader", "device")
STREAMED = ("--cuda-graphs",)


@pytest.fixture(autouse=True)
def _replayed_on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REPLAY_ON_HOST, "1")


def trained(out: Path, *options: str) -> dict[str, Any]:
    """Train in `out` and return what happened: the record, the rows, and what was learned."""
    assert train.main([*SMALL, *options, "--out", str(out)]) == 0
    return happened(out)


def happened(directory: Path) -> dict[str, Any]:
    record = read_run(directory)
    rows = read_steps(directory, 0).to_pandas()
    epochs = [row.split(",") for row in (directory / "epochs.csv").read_text().splitlines()]
    place = {name: epochs[0].index(name) for name in ("steps", "lr", "test_mse")}
    return {
        "record": record,
        "rows": rows,
        "losses": rows["loss"].to_numpy(),
        "known": [lap for lap in LAPS if rows[f"{lap}_s"].notna().all()],
        "evaluations": [[float(row[at]) for at in place.values()] for row in epochs[1:]],
        "sha256": record.totals["parameter_sha256"],
    }


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The run without graphs: five epochs and a half, a moving rate."""
    return trained(tmp_path_factory.mktemp("plain") / "run", *MOVING, "--steps", "95")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "laps"),
    [
        (STREAMED, ["data", "compute"]),
        (RESIDENT, ["compute"]),
        ((*STREAMED, "--loader", "prefetch"), ["data", "compute"]),
        ((*RESIDENT, "--timer-mode", "strict"), ["forward", "backward", "sync", "update"]),
        ((*STREAMED, "--timer-mode", "strict"), ["data", "forward", "backward", "sync", "update"]),
    ],
    ids=["streamed", "resident", "prefetch", "resident in phases", "streamed in phases"],
)
def test_captured_it_is_the_same_run_in_other_laps(
    options: tuple[str, ...], laps: list[str], plain: dict[str, Any], tmp_path: Path, capsys: Any, golden: Golden
) -> None:
    found = trained(tmp_path / "run", *MOVING, "--steps", "95", *options)
    rows, effective = found["rows"], found["record"].effective
    graphs = len([lap for lap in laps if lap not in ("data", "sync")])

    assert found["losses"] == pytest.approx(plain["losses"], rel=1e-4)
    assert np.array(found["evaluations"]) == pytest.approx(np.array(plain["evaluations"]), rel=1e-4)
    assert len(plain["evaluations"]) > 5 and len({rate for _, rate, _ in plain["evaluations"]}) > 5
    assert list(rows["step"]) == list(range(100)) and list(rows["epoch"]) == [step // 18 for step in range(100)]
    assert found["known"] == laps
    assert all(rows[f"{lap}_s"].isna().all() for lap in LAPS if lap not in laps), "not known, and not 0"
    assert rows[[*(f"{lap}_s" for lap in laps), "residual_s"]].sum(axis=1).to_numpy() == pytest.approx(rows["step_s"])
    golden((effective["graphs"], effective["kernels"]), "torch")
    assert ("one CUDA graph holds" in effective["timer_mode"]["note"]) == ("compute" in laps)
    said = capsys.readouterr()
    assert f"the step is captured in {graphs} graph{'s' * (graphs > 1)}, replayed on the host: torch ke" in said.err
    assert said.out.split("share of the step")[1].splitlines()[0].split() == [*laps, "unexplained"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("--optimizer", "sgd"),
        ("--optimizer", "adamw", "--weight-decay", "0.01", "--no-fused-optimizer"),
        ("--precision", "bf16", "--input-scaling", "fixed", "--memory-format", "contiguous"),
    ],
)
def test_so_it_is_with_other_updates_and_arithmetic(options: tuple[str, ...], tmp_path: Path) -> None:
    there, here = (
        trained(tmp_path / name, *options, *graphs, "--steps", "30")["losses"]
        for name, graphs in (("plain", ()), ("captured", RESIDENT))
    )

    assert here == pytest.approx(there, rel=1e-4)


@pytest.mark.slow
def test_kernels_made_for_this_network_train_the_same(tmp_path: Path) -> None:
    """Triton's interpreter runs them on a CPU; it must know so before it is imported, so in a process of its own."""
    options = ("--batch", "5", "--warmup-steps", "0", "--steps", "4")
    subprocess.run(
        [
            *(sys.executable, "-m", "horovod_study.train", *SMALL, *options, *RESIDENT, "--kernels", "fused"),
            *("--out", str(tmp_path / "fused")),
        ],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=True,
        timeout=240,
    )
    fused, plain = happened(tmp_path / "fused"), trained(tmp_path / "plain", *options)

    assert fused["losses"] == pytest.approx(plain["losses"], rel=1e-4)
    assert fused["record"].effective["kernels"] == "fused"


def test_without_graphs_the_record_says_so(plain: dict[str, Any]) -> None:
    assert plain["record"].effective["graphs"] == "no"
    assert plain["known"] == ["data", "forward", "backward", "sync", "update"]


def test_steps_that_are_not_timed_are_recorded_all_the_same(plain: dict[str, Any], tmp_path: Path) -> None:
    found = trained(tmp_path / "run", *MOVING, "--steps", "95", *RESIDENT, "--timer-mode", "off")

    assert found["known"] == [] and found["losses"] == pytest.approx(plain["losses"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [STREAMED, RESIDENT], ids=["streamed", "resident"])
def test_resumed_in_the_middle_of_an_epoch_it_is_bit_for_bit_the_run_that_was_not_stopped(
    graphs: tuple[str, ...], tmp_path: Path
) -> None:
    whole = trained(tmp_path / "whole", *graphs, "--steps", "60", "--checkpoint-every", "25")
    trained(tmp_path / "parts", *graphs, "--steps", "20", "--checkpoint-every", "25")  # 18 + 7 steps
    assert train.main(["--resume", str(tmp_path / "parts"), "--steps", "60"]) == 0
    parts = happened(tmp_path / "parts")

    assert list(parts["losses"]) == list(whole["losses"])
    assert parts["sha256"] == whole["sha256"]
    assert parts["known"] == whole["known"]


def test_a_checkpoint_knows_nothing_of_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, golden: Golden
) -> None:
    for name, graphs in (("plain", ()), ("captured", RESIDENT)):
        trained(tmp_path / name, *MOVING, *graphs, "--steps", "20")
    there, here = (decode(read_newest(tmp_path / name), name) for name in ("plain", "captured"))

    assert type(here.optimizer["param_groups"][0]["lr"]) is float
    assert here.optimizer["param_groups"] == there.optimizer["param_groups"]
    assert {name: part.keys() for name, part in here.optimizer["state"].items()} == {
        name: part.keys() for name, part in there.optimizer["state"].items()
    }
    capsys.readouterr()
    assert train.main(["--resume", str(tmp_path / "captured"), "--steps", "30", "--no-cuda-graphs"]) == 2
    golden(capsys.readouterr().err, "cuda_graphs")
    monkeypatch.delenv(REPLAY_ON_HOST)
    assert train.main(["--resume", str(tmp_path / "captured"), "--steps", "30"]) == 2
    golden(capsys.readouterr().err, "cuda_graphs", "GPU", "CPU")


def test_with_a_budget_of_seconds_the_steps_of_the_window_are_those_that_were_made(tmp_path: Path) -> None:
    found = trained(tmp_path / "run", *RESIDENT, "--seconds", "0.3", "--schedule", "one-cycle")
    totals, rows = found["record"].totals, found["rows"]

    assert list(rows["step"]) == list(range(totals["steps"] + 5))
    assert totals["window_s"] >= 0.3
    assert totals["samples_per_s"] == pytest.approx(totals["steps"] * 25 / totals["window_s"])
    assert rows["step_s"][5:].sum() <= totals["window_s"] * 1.001


def test_a_training_that_diverges_is_told_with_its_first_step(tmp_path: Path, capsys: Any) -> None:
    found = trained(tmp_path / "run", *RESIDENT, "--steps", "60", "--lr", "1e20", "--optimizer", "sgd")
    first = int(np.flatnonzero(~np.isfinite(found["losses"]))[0])

    assert f"warning: from step {first:,} on the loss is not a number" in capsys.readouterr().err
    assert math.isnan(found["losses"][-1]) or math.isinf(found["losses"][-1])


@pytest.mark.slow
def test_steps_beside_the_training_are_captured_ones_and_leave_no_trace(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "train_step", None)  # of no use here
    alone = trained(tmp_path / "alone", *RESIDENT, "--steps", "30")
    capsys.readouterr()
    beside = trained(tmp_path / "beside", *RESIDENT, "--steps", "30", "--profile", "torch", "--profile-steps", "20")
    told = capsys.readouterr().err
    operators = profile_path(tmp_path / "beside", "torch", 0, "csv").read_text()

    assert beside["sha256"] == alone["sha256"]
    assert "profile torch: 20 scratch steps" in told and "warning: profile" not in told
    assert "\ncompute,20," in operators and "\nforward," not in operators, "laps as they are captured"


# ------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kernels": "fused"}, "cuda_graphs"),
        ({"capture_sync": True}, "capture_sync.*cuda_graphs"),
        ({"cuda_graphs": True, "reduction": "hooks"}, "CUDA"),
        (
            {"cuda_graphs": True, "kernels": "fused", "precision": "fp16"},
            "fp32.*tf32.*bf16.*fp16",
        ),
        ({"cuda_graphs": True, "kernels": "fused", "compile": True}, r"torch\.compile"),
        ({"cuda_graphs": True, "kernels": "mine"}, "mine"),
        (
            {"cuda_graphs": True, "capture_sync": True, "backend": "horovod"},
            "capture_sync.*horovod.*auto",
        ),
        ({"cuda_graphs": True, "capture_sync": True, "transport": "gloo"}, "gloo"),
        (
            {"cuda_graphs": True, "capture_sync": True, "timer_mode": "strict"},
            "capture_sync.*timer_mode",
        ),
        (
            {"cuda_graphs": True, "capture_sync": True, "measure_ablation": True},
            "measure_ablation",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(values: dict[str, Any], message: str, golden: Golden) -> None:
    with golden.raises(ConfigError, match=message):
        StrainConfig(**values)


def test_kernels_made_for_this_network_need_a_gpu(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    code = train.main([*SMALL, "--cuda-graphs", "--kernels", "fused", "--steps", "5", "--out", str(tmp_path / "run")])

    assert code == 2
    assert "kernels fused" in capsys.readouterr().err


def test_an_average_that_no_graph_can_hold_is_refused_at_the_start(tmp_path: Path, capsys: Any, golden: Golden) -> None:
    code = train.main([*SMALL, "--cuda-graphs", "--capture-sync", "--steps", "5", "--out", str(tmp_path / "run")])

    assert code == 2
    golden.line(capsys.readouterr().err, "error", "capture_sync", "NCCL")


# ------------------------------------------------------------------------------------------------ several workers


def launched(launch: Launch, launcher: str, out: Path, *options: str) -> dict[str, Any]:
    done = launch(launcher, 2, *SMALL, "--steps", "95", *options, "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    return {**happened(out), "json": json_line(done), "err": done.stderr}


def json_line(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    line = next(line for line in done.stdout.splitlines() if "run_dir" in line)
    found: dict[str, Any] = json.loads(line[line.index("{") :])
    return found


@pytest.fixture(scope="module")
def two_plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The losses of rank 0 of two workers without graphs, which no way of averaging changes but by rounding."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(REPLAY_ON_HOST, raising=False)
        out = tmp_path_factory.mktemp("two") / "run"
        from conftest import launch as fixture

        yield launched(fixture.__wrapped__(), "mpirun", out, *MOVING, "--backend", "mpi")  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize(
    ("launcher", "options", "backend"),
    [
        ("mpirun", (*RESIDENT, "--backend", "mpi", "--measure-sync", "--measure-ablation"), "mpi/mpi"),
        ("mpirun", STREAMED, "horovod/mpi"),
        ("torchrun", RESIDENT, "ddp/gloo"),
    ],
    ids=["mpi", "horovod", "ddp"],
)
def test_two_workers_average_between_two_graphs(
    launcher: str,
    options: tuple[str, ...],
    backend: str,
    two_plain: dict[str, Any],
    tmp_path: Path,
    launch: Launch,
) -> None:
    assert launcher in LAUNCHERS
    found = launched(launch, launcher, tmp_path / "run", *MOVING, *options)
    effective = found["record"].effective

    assert f"{effective['backend']}/{effective['transport']}" == backend
    assert found["losses"] == pytest.approx(two_plain["losses"], rel=1e-4)
    assert found["known"] == [*(["data"] if "--loader" not in options else []), "compute", "sync", "update"]
    assert found["json"]["laps_ms"]["sync"] > 0 and found["json"]["laps_ms"]["forward"] is None
    assert effective["reduction"] == "flat"
    assert "CUDA graph captures no hooks" in effective["settings"]["reduction"]["source"]
    assert "the step is captured in 2 graphs" in found["err"]
    if "--measure-ablation" in options:
        assert "ablation: a step takes" in found["err"]
        assert records.read_synchronisation(tmp_path / "run") is not None
