"""The example scripts run as their docstrings say, and what they record is analysed like any other run."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from drawn_figures import figures_only
from make.wording import Golden

from horovod_study import cli, records

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent
LAPS = ("data", "forward", "backward", "sync", "update", "residual")
ABORT = "terminate called without an active exception"
"""PyTorch's Gloo says so now and then when the interpreter takes it down, without the recorder too; what was recorded
is complete by then, and is looked at."""
SMALL = ("--steps", "12", "--warmup-steps", "4", "--batch", "4", "--width", "4")


def run(*line: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 or ABORT in done.stderr, done.stdout + done.stderr
    return done


def recorded(directory: Path, *, workers: int) -> dict[str, Any]:
    """Return the effective part of the record, after looking at the rows of all ranks."""
    found = records.read_run(directory)
    assert found.status == "done" and found.effective["workers"] == workers
    assert records.step_ranks(directory) == list(range(workers))
    for rank in range(workers):
        rows = records.read_steps(directory, rank).to_pydict()
        assert rows["step"] == list(range(12))
        for number, step_s in enumerate(rows["step_s"]):
            parts = {lap: rows[f"{lap}_s"][number] for lap in LAPS}
            assert sum(parts.values()) == pytest.approx(step_s) and min(parts.values()) >= 0
            assert all(parts[lap] > 0 for lap in ("data", "forward", "backward", "update", "residual"))
            assert (parts["sync"] > 0) == (workers > 1)
    return dict(found.effective)


def analysed(root: Path, out: Path) -> list[dict[str, Any]]:
    """Analyse and report the runs below `root`; return the points."""
    assert cli.main(["report", "--tables", str(root), "--out", str(out)]) == 0
    with figures_only("speedup"):
        assert cli.main(["report", str(out)]) == 0
    assert (out / "report.html").exists()
    (tables, _) = records.load_tables(out, ["points"], [])
    return [{str(name): value for name, value in row.items()} for row in tables["points"].to_dict("records")]


@pytest.mark.slow
@pytest.mark.horovod
def test_resnet_alone_and_with_horovod_beside_a_run_of_the_own_trainer(tmp_path: Path) -> None:
    script = str(EXAMPLES / "resnet18_cifar.py")
    small = (*SMALL, "--images", "64")
    run(sys.executable, script, *small, "--out", str(tmp_path / "runs" / "1w"))
    run("horovodrun", "-np", "2", sys.executable, script, *small, "--out", str(tmp_path / "runs" / "2w"))
    own = ("--dataset", "400", "--batch", "4", "--steps", "8", "--warmup-steps", "4", "--system-interval-s", "0")
    run(sys.executable, "-m", "horovod_study.train", *own, "--out", str(tmp_path / "runs" / "own"))
    alone, both = recorded(tmp_path / "runs" / "1w", workers=1), recorded(tmp_path / "runs" / "2w", workers=2)

    assert (alone["backend"], both["backend"], both["transport"]) == ("serial", "horovod", "mpi")
    assert alone["model"] == both["model"] == "ResNet18" and alone["parameters"] == both["parameters"] == 44_622
    assert (both["batch"], both["global_batch"], both["train_samples"]) == (4, 8, 64)
    points = {point["series"]: point for point in analysed(tmp_path / "runs", tmp_path / "analysis")}
    assert len(points) == 3  # another model is another series
    wide = next(point for name, point in points.items() if "horovod/mpi ResNet18-44622" in name)
    assert wide["speedup_plain"] > 0  # its baseline is the ResNet that ran alone
    told = run("horovod-study", "explain", "--part", "account", str(tmp_path / "runs")).stdout
    assert "horovod/mpi ResNet18-44622 batch 4, 2 workers" in told
    with open(tmp_path / "analysis" / "breakdown.csv", encoding="utf-8") as file:
        parts = [row for row in csv.DictReader(file) if "ResNet18" in row["series"] and row["workers"] == "2"]
    assert sum(bool(row["minus_plain_s"]) for row in parts) >= 6
    assert "Stragglers" in run("horovod-study", "explain", "--part", "steps", str(tmp_path / "runs" / "2w")).stdout


@pytest.mark.slow
def test_the_plain_ddp_script(tmp_path: Path) -> None:
    torchrun = ("torchrun", "--standalone", "--nproc-per-node", "2")
    run(*torchrun, str(EXAMPLES / "ddp_plain.py"), *SMALL, "--out", str(tmp_path / "run"))
    effective = recorded(tmp_path / "run", workers=2)

    assert (effective["backend"], effective["transport"], effective["reduction"]) == ("ddp", "gloo", "hooks")
    (point,) = analysed(tmp_path / "run", tmp_path / "analysis")
    assert point["sync_s_median"] > 0 and point["workers"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_the_lightning_module(workers: int, tmp_path: Path) -> None:
    script = str(EXAMPLES / "lightning_module.py")
    run(sys.executable, script, *SMALL, "--workers", str(workers), "--out", str(tmp_path / "run"))
    effective = recorded(tmp_path / "run", workers=workers)

    assert (effective["model"], effective["backend"]) == ("Regression", "ddp" if workers > 1 else "serial")
    assert all(loss > 0 for loss in records.read_steps(tmp_path / "run", 0)["loss"].to_pylist())
    if workers > 1:
        analysed(tmp_path / "run", tmp_path / "analysis")


@pytest.mark.parametrize("name", ["resnet18_cifar.py", "ddp_plain.py", "lightning_module.py"])
def test_every_example_says_how_it_is_run(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    docstring = text.split('"""')[1]

    assert f"examples/{name} --" in docstring and "horovod-study report" in docstring
    assert name in (EXAMPLES / "README.md").read_text()
    assert {f"--{option}" for option in ("steps", "batch", "width", "out")} <= set(re.findall(r"--[a-z-]+", text))


@pytest.mark.parametrize("name", ["resnet18_cifar.py", "ddp_plain.py"])
def test_the_three_lines_are_marked(name: str) -> None:
    marked = re.findall(r"^ *(.*?)  # ([123])$", (EXAMPLES / name).read_text(), re.MULTILINE)

    assert [number for _, number in marked] == ["1", "2", "3"]
    assert [line.split("(")[0] for line, _ in marked] == [
        "with horovod_study.recorder",
        marked[1][0].split("(")[0],
        "record.lap",
    ]
    assert "in record.steps(" in marked[1][0]


LIGHTNING = """
import json, sys, time
import torch
import pytorch_lightning as lightning
from pytorch_lightning.plugins.environments import LightningEnvironment
from torch import nn
from horovod_study.recording.lightning import StepRecorder

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
    def training_step(self, batch, number):
        time.sleep(0.010)
        if sys.argv[2] == "fail" and self.trainer.global_step == 7:
            raise ValueError("step 7 is wrong")
        return self.layer(batch).square().mean()
    def validation_step(self, batch, number):
        time.sleep(0.2)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

torch.set_num_threads(1)
loader = torch.utils.data.DataLoader(torch.ones(40, 2), batch_size=4)
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, plugins=[LightningEnvironment()], limit_val_batches=1, val_check_interval=4,
    num_sanity_val_steps=0, accumulate_grad_batches=int(sys.argv[3]),
    callbacks=[StepRecorder(sys.argv[1], warmup_steps=1, system_interval_s=0.0)],
)
trainer.fit(Module(), loader, loader)
"""


def _lightning(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-W", "ignore", "-c", LIGHTNING, str(tmp_path / "run"), *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize(("accumulate", "steps", "batches"), [(1, 20, 1), (2, 10, 2)])
def test_the_callback_makes_one_row_of_each_update(accumulate: int, steps: int, batches: int, tmp_path: Path) -> None:
    done = _lightning(tmp_path, "well", str(accumulate))
    assert done.returncode == 0, done.stderr
    rows = records.read_steps(tmp_path / "run", 0).to_pydict()

    assert len(rows["step"]) == steps and set(rows["samples"]) == {4 * batches}
    assert rows["epoch"] == [0] * (steps // 2) + [1] * (steps // 2)
    assert min(rows["forward_s"]) >= 0.010 * batches
    assert min(rows["backward_s"]) > 0 and min(rows["update_s"]) > 0
    assert max(rows["residual_s"]) < 0.2  # validation is in no step


@pytest.mark.slow
def test_a_lightning_run_that_fails_is_recorded_as_failed(tmp_path: Path) -> None:
    done = _lightning(tmp_path, "fail", "1")
    found = json.loads((tmp_path / "run" / "run.json").read_text())

    assert done.returncode != 0 and "ValueError: step 7 is wrong" in done.stderr
    assert (found["status"], found["reason"]) == ("failed", "ValueError: step 7 is wrong")
    assert len(records.read_steps(tmp_path / "run", 0)) == 7


@pytest.mark.slow
def test_without_lightning_the_remedy_is_told(golden: Golden) -> None:
    program = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("lightning", "pytorch_lightning"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from horovod_study.errors import ConfigError
try:
    import horovod_study.recording.lightning
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)

    golden(done.stdout, "horovod_study.recording.lightning", "horovod_study.recorder")
