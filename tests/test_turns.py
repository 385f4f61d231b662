"""Runs that train in turns: where they wait, what the wait leaves out, and that nothing that is learned changes."""

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make.waiting import PATIENCE_S
from turn_giver import TurnGiver

from horovod_study import records
from horovod_study.errors import BackendError
from horovod_study.recording.rank import turns

LENGTH = 60
TRAIN = (
    "--dataset",
    "2000",
    "--batch",
    "25",
    "--warmup-steps",
    "5",
    "--steady",
    "declared",
    "--system-interval-s",
    "0",
)
Answer = Callable[[Sequence[dict[str, Any]]], dict[str, Any] | None]


def slices(*, seed: int, until: int, end: dict[str, Any] | None, pause_s: float = 0.0) -> Answer:
    """Grant a random number of steps each time, after a pause, and say `end` from `until` steps on."""
    generator = random.Random(seed)

    def answer(reports: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        time.sleep(pause_s)
        made = reports[0]["steps"]
        return end if made >= until else {"until": min(until, made + generator.randint(1, 12))}

    return answer


def train(
    out: Path, *more: str, giver: TurnGiver | None = None, workers: int = 1
) -> "subprocess.CompletedProcess[str]":
    python = [sys.executable, "-m", "horovod_study.train"]
    if workers > 1:
        mpirun = Path(sys.executable).with_name("mpirun")
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        python = [
            str(mpirun),
            *root,
            "--host",
            f"localhost:{workers}",
            "--bind-to",
            "none",
            "-np",
            str(workers),
            *python,
        ]
    return run([*python, *TRAIN, *more, "--out", str(out)], giver)


def resume(run_directory: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    return run([sys.executable, "-m", "horovod_study.train", "--resume", str(run_directory), *more], None)


def run(command: Sequence[str], giver: TurnGiver | None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        env={**os.environ, **({} if giver is None else giver.environment)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def losses(out: Path, rank: int = 0) -> np.ndarray:
    return records.read_steps(out, rank).column("loss").to_numpy()


@pytest.mark.slow
def test_what_is_learned_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    giver = TurnGiver(slices(seed=1, until=LENGTH, end={"end": True}))
    more = ("--steps", str(LENGTH - 5), "--schedule", "cosine", "--evaluate-every", "0.5")
    alone, divided = train(tmp_path / "alone", *more), train(tmp_path / "divided", *more, giver=giver)
    one, other = (records.read_run(tmp_path / name) for name in ("alone", "divided"))

    assert (alone.returncode, divided.returncode) == (0, 0), divided.stderr
    assert len(giver.rounds) > 8
    assert losses(tmp_path / "alone").tolist() == losses(tmp_path / "divided").tolist()
    for name in ("parameter_sha256", "test_mse", "steps", "epochs"):
        assert one.totals[name] == other.totals[name], name
    assert (
        records.epoch_rows(tmp_path / "alone")[-1]["test_mse"]
        == records.epoch_rows(tmp_path / "divided")[-1]["test_mse"]
    )


@pytest.mark.slow
def test_the_wait_is_in_no_step_and_in_no_total(tmp_path: Path) -> None:
    giver = TurnGiver(slices(seed=2, until=LENGTH, end={"end": True}, pause_s=0.2))
    done = train(tmp_path / "run", "--steps", "10", giver=giver)
    run = records.read_run(tmp_path / "run")
    reports = [each[0] for each in giver.rounds]
    step_s = records.read_step_column(tmp_path / "run" / "steps-00000.arrows", "step_s")
    not_waited_s = giver.granting_s - 0.2 * (len(reports) - 1)

    assert done.returncode == 0, done.stderr
    assert run.status == "done"
    assert (len(step_s), run.totals["steps"]) == (LENGTH, LENGTH - 5)  # beyond the 10 that were asked for
    assert max(run.totals["window_s"], step_s.sum(), reports[-1]["trained_s"]) <= not_waited_s
    assert reports[-1]["steps"] == LENGTH and reports[-1]["samples"] == LENGTH * 25
    assert [each["steps"] for each in reports] == sorted({each["steps"] for each in reports})
    assert reports[-1]["trained_s"] >= step_s.sum()
    assert [(each["warm"], each["enough"]) for each in reports] == [
        (each["steps"] >= 5, each["steps"] >= 15) for each in reports
    ]


@pytest.mark.slow
def test_ranks_wait_at_the_same_step(tmp_path: Path) -> None:
    giver = TurnGiver(slices(seed=3, until=LENGTH, end={"end": True}), workers=2)
    alone = train(tmp_path / "alone", "--steps", str(LENGTH - 5), workers=2)
    divided = train(tmp_path / "divided", "--steps", str(LENGTH - 5), workers=2, giver=giver)

    assert (alone.returncode, divided.returncode) == (0, 0), divided.stderr
    assert sorted(each["rank"] for each in giver.hellos) == [0, 1]
    assert all(one["steps"] == other["steps"] for one, other in giver.rounds)
    for rank in (0, 1):
        assert losses(tmp_path / "alone", rank).tolist() == losses(tmp_path / "divided", rank).tolist()


@pytest.mark.slow
def test_a_run_whose_runner_is_gone_stops_and_says_so(tmp_path: Path) -> None:
    giver = TurnGiver(slices(seed=4, until=20, end=None))
    done = train(tmp_path / "run", "--steps", "30", giver=giver)
    run = records.read_run(tmp_path / "run")

    assert done.returncode == 75, done.stderr
    assert run.status == "stopped" and "after step 20" in run.reason and "turns" in run.reason

    before = [each[0]["steps"] for each in giver.rounds]
    gone_on = resume(tmp_path / "run")
    totals = records.read_run(tmp_path / "run").totals

    assert gone_on.returncode == 0, gone_on.stderr
    assert totals["turns"]["before"] == before, "where the attempt before has waited"
    assert totals["turns"]["waited_s"] > 0


@pytest.mark.slow
def test_a_run_that_is_left_alone_trains_to_its_own_end(tmp_path: Path) -> None:
    giver = TurnGiver(slices(seed=5, until=20, end={"until": None}))
    done = train(tmp_path / "run", "--steps", "40", giver=giver)

    assert done.returncode == 0, done.stderr
    assert giver.left.wait(PATIENCE_S)
    assert records.read_run(tmp_path / "run").totals["steps"] == 40


LOOP = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(400, 4), torch.randn(400, 1))
for epoch in range(10_000):
    for x, y in torch.utils.data.DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""
THREE_LINES = """
import sys, torch, horovod_study
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(400, 4), torch.randn(400, 1))
with horovod_study.recorder(model, optimizer, out=sys.argv[1], warmup_steps=5, system_interval_s=0) as record:
    for epoch in range(3000):
        for x, y in record.steps(torch.utils.data.DataLoader(data, batch_size=8)):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
print("after the loop")
"""


@pytest.mark.slow
def test_a_script_without_a_line_of_ours_waits_and_ends_in_good_order(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    giver = TurnGiver(slices(seed=6, until=130, end={"end": True}, pause_s=0.05))
    record = [
        sys.executable,
        "-m",
        "horovod_study.cli",
        "record",
        "--out",
        str(tmp_path / "run"),
        "--warmup-steps",
        "10",
    ]
    done = subprocess.run(
        [*record, "--system-interval-s", "0", "--", sys.executable, str(tmp_path / "loop.py")],
        env={**os.environ, **giver.environment}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    run = records.read_run(tmp_path / "run")

    assert done.returncode == 0, done.stderr
    assert (run.status, run.totals["steps"] + run.totals["excluded_steps"]) == ("done", 130)
    assert giver.rounds[-1][0]["samples"] == 130 * 8
    assert run.totals["window_s"] <= giver.granting_s - 0.05 * (len(giver.rounds) - 1)


@pytest.mark.slow
def test_three_lines_in_a_script_wait_and_the_script_goes_on_after_its_loop(tmp_path: Path) -> None:
    giver = TurnGiver(slices(seed=7, until=70, end={"end": True}))
    done = subprocess.run(
        [sys.executable, "-c", THREE_LINES, str(tmp_path / "run")],
        env={**os.environ, **giver.environment}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "after the loop" in done.stdout
    totals = records.read_run(tmp_path / "run").totals
    assert totals["steps"] + totals["excluded_steps"] == 70


@pytest.mark.parametrize("text", ["x", "host:1", "host:0:t", "host:99999:t", ":1:t", "host:port:t"])
def test_a_damaged_variable_is_named(text: str) -> None:
    with pytest.raises(BackendError, match=turns.TURNS):
        turns.connect({turns.TURNS: text}, rank=0, workers=1)


def test_without_the_variable_or_without_anybody_there_a_run_is_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    assert turns.connect({}, rank=0, workers=1) is None
    assert turns.connect({turns.TURNS: f"127.0.0.1:{port}:t"}, rank=0, workers=1) is None


@pytest.mark.parametrize(
    "data", [b"no json\n", b"[1]\n", b"[" * (turns.MAX_LINE + 1), b'{"until": "x"}\n', b'{"until": [1]}\n']
)
def test_what_is_no_message_ends_the_wait(data: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = turns.connect({turns.TURNS: f"127.0.0.1:{listener.getsockname()[1]}:t"}, rank=0, workers=1)
        stream, _ = listener.accept()
        assert found is not None
        stream.sendall(data)
        said = found.wait(steps=3, samples=3, trained_s=0.1, warm=True, enough=False)
        stream.close()

    assert said == "lost"
