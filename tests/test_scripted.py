"""A script or a command of somebody else as a study: its line is filled with data, and it goes the whole way."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from horovod_study.cluster.jobs import cell_of, cell_values
from horovod_study.cluster.launch import launch_line
from horovod_study.errors import ConfigError
from horovod_study.studies.study_file import load_study

SCRIPT = """
import argparse
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int); parser.add_argument("--hidden", type=int)
options = parser.parse_args()
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, options.hidden), nn.Linear(options.hidden, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
data = TensorDataset(torch.randn(options.batch * 80, 4))
for (x,) in DataLoader(data, batch_size=options.batch):
    optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
dist.destroy_process_group()
"""
STUDY = {
    "study": "foreign",
    "script": "train.py --batch {batch} --hidden {hidden}",
    "repeats": 2,
    "run": {"batch": 8, "MODE": "a; touch /tmp/never"},
    "sweep": {"workers": [1, 2], "runtime": "ddp/gloo", "hidden": [4, 8]},
}
BY_COMMAND = "torchrun --standalone --nproc-per-node {workers} train.py --batch {batch} --hidden {hidden}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def written(folder: Path, **changes: Any) -> Path:
    content = {name: value for name, value in {**STUDY, **changes}.items() if value is not None}
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def words_of(cell: Any, folder: Path) -> list[str]:
    line = launch_line(cell, python=Path(sys.executable), config=folder / "c", out=folder / "o", environ=os.environ)
    return list(line.argv)


def test_the_cells_of_a_script_are_crossed_from_its_places(folder: Path) -> None:
    study = load_study(written(folder, run={"batch": 8}, sweep={**STUDY["sweep"], "NCCL_ALGO": ["Ring", "Tree"]}))
    cells = study.cells()

    assert len(cells) == 2 * 2 * 2 * 2
    assert {cell.runtime for cell in cells} == {"ddp/gloo"}, "no plain baseline: the script connects its workers"
    assert set(study.told()) == {"hidden", "NCCL_ALGO"}
    for cell in cells:
        words, config = words_of(cell, folder), cell.config.to_dict()
        assert words[words.index("--") + 1 :] == [
            str(folder / "train.py"), "--batch", "8", "--hidden", str(config["hidden"]),
        ]  # fmt: skip
        assert f"--set=NCCL_ALGO={config['NCCL_ALGO']}" in words


def test_values_are_data_and_never_shell(folder: Path) -> None:
    hostile = "$(touch x); rm -rf / 'and \"quotes"
    study = load_study(
        written(
            folder, script="train.py --tag {tag}", run={"tag": hostile}, sweep={"workers": [1], "runtime": "ddp/gloo"}
        )
    )
    words = words_of(study.cells()[0], folder)

    assert words[-2:] == ["--tag", hostile]


def test_a_command_starts_its_ranks_by_itself(folder: Path) -> None:
    study = load_study(written(folder, script=None, command=BY_COMMAND))
    for cell in study.cells():
        words = words_of(cell, folder)
        assert words[0] == sys.executable
        assert words[words.index("--") + 1 :][:4] == [
            "torchrun",
            "--standalone",
            "--nproc-per-node",
            str(cell.placement.workers),
        ]
        assert "--command" in words


def test_a_job_finds_the_cells_again(folder: Path) -> None:
    for cell in load_study(written(folder)).cells():
        values = json.loads(json.dumps(cell_values(cell)))
        assert cell_of(values).key == cell.key


def test_a_changed_script_or_line_makes_other_cells(folder: Path) -> None:
    def keys(**changes: Any) -> set[str]:
        return {cell.key for cell in load_study(written(folder, **changes)).cells()}

    before = keys()
    assert keys(repeats=3) > before, "what was measured stays measured"
    assert not keys(script="train.py --batch {batch} --hidden {hidden} --more") & before
    (folder / "train.py").write_text(SCRIPT + "\n# changed\n")
    assert not keys() & before


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"script": "missing.py"}, "missing.py"),
        ({"script": "  "}, "empty"),
        ({"script": "train.py 'open"}, "quote"),
        ({"script": "train.py --batch {batch} --hidden {hidden} --lr {lr}"}, "place for lr"),
        ({"script": "train.py --batch {batch}"}, "hidden has a value"),
        ({"run": {"batch": 8, "steps": 5}}, "steps has a value"),
        ({"command": "python train.py"}, "one of script"),
        ({"workload": "toy.py"}, "one of script"),
    ],
)
def test_what_does_not_fit_together_is_named(changes: dict[str, Any], what: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=what):
        load_study(written(folder, **changes))


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize("kind", ["script", "command"])
def test_a_study_of_somebody_elses_training_goes_the_whole_way(kind: str, folder: Path) -> None:
    lines = {"script": STUDY["script"], "command": BY_COMMAND}
    sweep = {**STUDY["sweep"], "hidden": [4]}
    path = written(folder, **{**dict.fromkeys(lines), kind: lines[kind]}, sweep=sweep)

    def say(*words: str) -> str:
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        ended = subprocess.run(
            [sys.executable, "-m", "horovod_study.cli", *words],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    say("run", str(path))
    points = pd.read_csv(folder / "runs" / "foreign" / "analysis" / "points.csv")
    assert list(points["workers"]) == [1, 2]
    assert (points["repeats"] == 2).all()
    assert points["speedup_wrapped"].notna().all()
    assert set(points["batch"]) == {8}
    runs = sorted((folder / "runs" / "foreign").glob("ddp-*/run.json"))
    assert len(runs) == 4
    assert {json.loads(each.read_text())["requested"]["options"]["hidden"] for each in runs} == {4}
    assert not list((folder / "runs" / "foreign").glob(".*.record")), "the places where ranks met are removed"
    assert not Path("/tmp/never").exists()
    planned = json.loads(say("plan", str(path), "--json"))["cells"]
    assert [cell["state"] for cell in planned] == ["done"] * 4, "nothing is left to run"
