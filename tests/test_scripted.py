"""A script or a command of somebody else as a study: its line is filled with data, and it goes the whole way."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import venv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from conftest import BIN
from doc_commands import ROOT, blocks
from make.launch_lines import launch_line
from make.waiting import PATIENCE_S, until
from slurm_cluster import SlurmCluster, free_ports
from two_hosts import INTERFACE, TwoHosts

from horovod_study import cli
from horovod_study.cluster import slurm
from horovod_study.cluster.launch import Site
from horovod_study.cluster.slurm import allocate, cell_of, cell_values
from horovod_study.config import scripted
from horovod_study.config.partitions import Host
from horovod_study.config.run import Placement
from horovod_study.errors import ConfigError, StudyError
from horovod_study.records import read_run, run_directories
from horovod_study.studies.runner import STEPS, _small_config
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
SHELL = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
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


def words_of(cell: Any, folder: Path, **start: Any) -> list[str]:
    start = {"python": Path(sys.executable), "environ": SHELL, **start}
    return list(launch_line(cell, config=folder / "c", out=folder / "o", **start).argv)


def typed(words: list[str]) -> list[str]:
    """Return the words that are a person's, behind those of this package and of its launchers."""
    return words[len(words) - words[::-1].index("--") :]


def test_the_cells_of_a_script_are_crossed_from_its_places(folder: Path) -> None:
    study = load_study(written(folder, run={"batch": 8}, sweep={**STUDY["sweep"], "NCCL_ALGO": ["Ring", "Tree"]}))
    cells = study.cells()

    assert len(cells) == 2 * 2 * 2 * 2
    assert {cell.runtime for cell in cells} == {"ddp/gloo"}, "no plain baseline: the script connects its workers"
    assert set(study.told()) == {"hidden", "NCCL_ALGO"}
    for cell in cells:
        words, config = words_of(cell, folder), vars(cell.config)
        assert typed(words) == [
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
        assert typed(words)[:4] == [
            "torchrun",
            "--standalone",
            "--nproc-per-node",
            str(cell.placement.workers),
        ]
        assert "--command" in words
        assert re.fullmatch(f"command-{cell.placement.workers}w-b8-r[01]-[0-9a-f]{{12}}", cell.key)


@pytest.mark.parametrize(
    ("line", "imports", "usual"),
    [
        ("torchrun --nproc-per-node {workers} -m mine", "", "ddp/gloo"),
        ("/opt/bin/accelerate launch train.py", "", "ddp/gloo"),
        ("srun python train.py", "import torch\ntorch.distributed.init_process_group()", "ddp/gloo"),
        ("srun python train.py", "    from lightning import Trainer", "ddp/gloo"),
        ("srun python train.py", "import torch.distributed\nimport horovod.torch as hvd", "horovod/mpi"),
        ("horovodrun -np {workers} --gloo python train.py", "import torch.distributed", "horovod/gloo"),
        ("mpirun -np {workers} python train.py", "# lightning", "horovod/mpi"),
    ],
)
def test_without_a_runtime_it_is_what_launcher_and_imports_tell(
    line: str, imports: str, usual: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(imports)
    changes = {"script": None, "command": line, "run": {}, "sweep": {"workers": [1, 2]}}
    assert {cell.runtime for cell in load_study(written(folder, **changes)).cells()} == {usual}

    gpus = {"name": "big", "gpus_per_node": 2, "cores_per_node": 8}
    (folder / "big.yaml").write_text(yaml.safe_dump(gpus))
    study = load_study(written(folder, **changes, partition="big.yaml"))
    assert set(study.runtimes) == {usual.replace("ddp/gloo", "ddp/nccl")}


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


@pytest.mark.parametrize("kind", ["script", "command"])
def test_threads_that_are_told_make_other_cells_than_the_default_of_as_many(kind: str, folder: Path) -> None:
    line = {"script": None, kind: "train.py --batch {batch} --hidden {hidden}"}
    untold, told = (load_study(written(folder, **line, run={"batch": 8, **more})) for more in ({}, {"threads": 1}))
    swept = load_study(written(folder, **line, sweep={**STUDY["sweep"], "threads": [1, 2]}))

    def keys(study: Any) -> set[str]:
        return {cell.key for cell in study.cells() if cell.config.threads == 1}

    assert keys(untold) and not keys(untold) & (keys(told) | keys(swept))


def test_a_command_is_told_where_its_ranks_go(folder: Path) -> None:
    command = (
        "srun --nodes {nodes} --ntasks {workers} -H {hosts} --at {host} --each {workers_per_node} train.py "
        "{global_batch} {batch}"
    )
    sweep = {"workers": [4], "runtime": "ddp/gloo"}
    study = load_study(written(folder, script=None, command=command, run={"batch": 8}, sweep=sweep, baselines=[]))
    (cell, *_) = study.cells()
    placement = Placement(workers=4, workers_per_node=2)
    cell = replace(cell, placement=placement)
    hosts = tuple(Host(name=name, slots=2) for name in ("n1", "n2"))
    line = launch_line(
        cell, python=Path(sys.executable), config=folder / "c", out=folder / "o", environ={"PATH": "/usr/bin"},
        site=Site(hosts=hosts, allocation=True),
    )  # fmt: skip

    words = list(line.argv)
    assert shlex.join(typed(words)) == ("srun --nodes 2 --ntasks 4 -H n1:2,n2:2 --at n1 --each 2 train.py 32 8")
    assert line.environment["MASTER_ADDR"] == "n1" and line.environment["MASTER_PORT"].isdigit()
    assert line.remote == ("n1", "n2")


def test_a_dry_run_shows_each_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", str(written(folder)), "--dry-run", "--runs", str(folder / "runs")]) == 0

    lines = [line for line in capsys.readouterr().out.splitlines() if "horovod_study.programs.script" in line]
    assert sorted(line.partition(" --batch ")[2] for line in lines) == sorted(["8 --hidden 4", "8 --hidden 8"] * 2)
    assert not (folder / "runs").exists()


def test_a_length_is_applied_or_told(folder: Path) -> None:
    run = {"batch": 8, "steps": 20, "warmup_steps": 5}
    sweep = {"workers": [1], "runtime": "ddp/gloo"}
    cut = load_study(written(folder, script="train.py {batch}", run=run, sweep=sweep)).cells()[0]
    told = load_study(
        written(folder, script="train.py {batch} {steps} {epochs}", run={**run, "epochs": 3}, sweep=sweep)
    )

    assert "--steps=25" in words_of(cut, folder), "with the warm-up, as everywhere"
    assert words_of(told.cells()[0], folder)[-2:] == ["20", "3"]
    assert not any(word.startswith("--steps") for word in words_of(told.cells()[0], folder))
    small = _small_config(told.cells()[0].config)
    assert (small.steps, small.epochs, small.warmup_steps) == (STEPS, 3, 0), "the smoke test leaves the others alone"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"script": "missing.py"}, "missing.py"),
        ({"script": "  "}, "empty"),
        ({"script": "train.py 'open"}, "quote"),
        ({"script": "train.py --batch {batch} --hidden {hidden} --lr {lr}"}, "place for lr"),
        ({"script": "train.py --batch {batch}"}, "hidden has a value"),
        ({"run": {"batch": 8, "epochs": 5}}, "epochs has a value"),
        ({"command": "python train.py"}, "one of script"),
        ({"workload": "toy.py"}, "one of script"),
    ],
)
def test_what_does_not_fit_together_is_named(changes: dict[str, Any], what: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=what):
        load_study(written(folder, **changes))


# ------------------------------------------------------------------------------------------------ as it is typed

SEEN = """
import json, os, sys
import beside, yaml
assert yaml.MINE
with open("seen.json", "w") as stream:
    told = {"path": sys.path, "python": sys.executable, "folder": os.getcwd(), "words": sys.argv[1:]}
    json.dump({**told, "text": beside.TEXT, "environ": dict(os.environ)}, stream)
"""
PROJECT = {
    "beside.py": "TEXT = open('data.txt').read()",
    "yaml.py": "MINE = True",
    "data.txt": "read by a relative path",
    "seen.py": SEEN,
    "project/__init__.py": "",
    "project/train.py": "from project import inner\n" + SEEN,
    "project/inner.py": "",
    "train.sh": 'exec python seen.py "$@"',
    "run me": '#!/bin/sh\nexec python seen.py "$@"',
    "Makefile": "train:\n\tpython seen.py $(WORDS)",
    "lib/usercustomize.py": "",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of several files, in a folder whose name has a blank; and beside it a Python environment."""
    for name, text in PROJECT.items():
        path = tmp_path / "my project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    venv.create(tmp_path / "own", with_pip=False, symlinks=True)
    return tmp_path / "my project"


def shell_of(project: Path, **more: str) -> dict[str, str]:
    """Return the environment of a person's shell: with a Python of its own, paths, and a variable of `.env`."""
    own = project.parent / "own"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OMP_", "PYTEST"))}
    paths = {"PATH": f"{own / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": "lib", "VIRTUAL_ENV": str(own)}
    return {**kept, **paths, "CONDA_PREFIX": str(own), "DATA_KEY": "of .env", "OMP_WAIT_POLICY": "passive", **more}


def seen(project: Path) -> dict[str, Any]:
    """Return what the program saw, without the recorder's own."""
    found = json.loads((project / "seen.json").read_text())
    (project / "seen.json").unlink()
    environ = found["environ"]
    environ["PYTHONPATH"] = environ["PYTHONPATH"].rpartition(f"recording/inject{os.pathsep}")[2]
    for name in [name for name in environ if name.startswith("HOROVOD_STUDY_") or name in ("_", "SHLVL", "OLDPWD")]:
        del environ[name]
    found["path"] = [each for each in found["path"] if not each.endswith("recording/inject")]
    return found


def started(project: Path, content: dict[str, Any], shell: dict[str, str]) -> str:
    """Start the first cell of a study beside the project from another folder; return what it printed."""
    (project / "study.yaml").write_text(yaml.safe_dump({"study": "s", "run": {}, "sweep": {"workers": [1]}, **content}))
    elsewhere = Path(tempfile.mkdtemp(dir=project.parent))
    cell = load_study(project / "study.yaml").cells()[0]
    (elsewhere / "cell.yaml").write_text(yaml.safe_dump(vars(cell.config)))
    line = launch_line(
        cell, python=Path(sys.executable), config=elsewhere / "cell.yaml", out=project.parent / "run", environ=shell
    )
    shutil.rmtree(project.parent / "run", ignore_errors=True)
    ended = subprocess.run(
        line.argv, env=line.environment, cwd=elsewhere, capture_output=True, text=True, timeout=PATIENCE_S
    )
    return ended.stdout + ended.stderr


@pytest.mark.parametrize(
    "line",
    [
        "python seen.py --name 'a b' x",
        "python -m project.train --more",
        "'./run me' one",
        "bash train.sh two",
        "sh -c 'python seen.py $DATA_KEY'",
        "env ONE=1 python seen.py",
        "make train WORDS=three",
        "../own/bin/python seen.py",
    ],
)
def test_a_command_sees_what_it_sees_when_it_is_typed(line: str, project: Path) -> None:
    shell = shell_of(project)
    subprocess.run(shlex.split(line), cwd=project, env={**shell, "PWD": str(project)}, check=True)
    typed = seen(project)
    assert os.path.normpath(typed["python"]) == str(project.parent / "own/bin/python")

    started(project, {"command": line}, shell)
    assert seen(project) == typed


@pytest.mark.slow
def test_a_study_adds_nothing_to_what_its_command_sees(project: Path) -> None:
    shell = shell_of(project)
    subprocess.run(["python", "seen.py"], cwd=project, env={**shell, "PWD": str(project)}, check=True)
    typed = seen(project)

    study = {"study": "s", "command": "python seen.py", "repeats": 1, "run": {}, "sweep": {"workers": [1]}}
    (project / "study.yaml").write_text(yaml.safe_dump(study))
    subprocess.run(
        [BIN / "horovod-study", "run", "--no-smoke", "my project/study.yaml"],
        cwd=project.parent, env=shell, capture_output=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert seen(project) == typed


def test_a_job_of_slurm_has_the_environment_of_the_shell_that_submits_it(project: Path) -> None:
    shell = shell_of(project, NCCL_ALGO="Ring", HOROVOD_CYCLE_TIME="2", PYTHONUNBUFFERED="x")
    subprocess.run(["python", "seen.py"], cwd=project, env={**shell, "PWD": str(project)}, check=True)
    typed = seen(project)

    (project / "node.yaml").write_text("{scheduler: slurm, cores_per_node: 2}")
    study = {"study": "s", "command": "python seen.py", "repeats": 1, "run": {}, "sweep": {"workers": [1]}}
    (project / "study.yaml").write_text(yaml.safe_dump({**study, "partition": "node.yaml"}))
    found = load_study(project / "study.yaml")
    (partition,), (cell,) = found.partitions.values(), found.cells()
    (allocation,) = allocate([cell], found.partitions, lambda cell: 90.0, seed=1)
    python = project.parent / "python"
    python.write_text(f"#!/bin/sh\nexec env -0 > '{project.parent / 'inside'}'")
    python.chmod(0o755)
    text = slurm.script(
        allocation, partition, folder=project, name="job", python=python,
        code=project.parent / "code",
    )  # fmt: skip
    caller = {**shell, "SLURM_PROCID": "7", "SBATCH_EXPORT": "NONE", "OMPI_COMM_WORLD_RANK": "0"}
    subprocess.run(["bash", "-c", text], env=slurm.submit_environment(caller, as_typed=True), check=True)
    inside = dict(each.split("=", 1) for each in (project.parent / "inside").read_text().split("\0")[:-1])
    assert inside["PYTHONPATH"] == str(project.parent / "code")

    started(project, study, inside)
    assert seen(project) == typed


def test_what_the_study_varies_comes_beside_it(project: Path) -> None:
    started(project, {"command": "python seen.py", "run": {"MODE": "x", "threads": 2}}, shell_of(project, MODE="y"))
    environ = seen(project)["environ"]
    assert (environ["MODE"], environ["OMP_NUM_THREADS"]) == ("x", "2")

    varied = {"PATH": "/usr/bin", "PYTHONUNBUFFERED": "1"}
    started(project, {"command": "../own/bin/python seen.py", "run": varied}, shell_of(project))
    assert varied.items() <= seen(project)["environ"].items()


def test_a_script_sees_what_it_sees_when_it_is_typed(project: Path) -> None:
    """But for the Python, which is the one that runs this program, its one thread, and what its launcher tells it."""
    shell = shell_of(project)
    subprocess.run([sys.executable, "seen.py", "x"], cwd=project, env={**shell, "PWD": str(project)}, check=True)
    typed = seen(project)

    for threads, given in (("1", {}), ("3", {"run": {"threads": 3}})):
        started(project, {"script": "seen.py x", **given}, shell)
        found = seen(project)
        assert found["environ"]["OMP_NUM_THREADS"] == threads
        assert typed["environ"].items() <= found["environ"].items()
        assert {**found, "environ": typed["environ"]} == typed


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("python train.py --data ~/data", "~/data"),
        ("python train.py --data $HOME/data", "$HOME/data"),
        ('python train.py --data "${HOME}"', "${HOME}"),
        ("cd lib && python train.py", "&&"),
        ("python train.py > log", ">"),
        ("python train.py data/*.csv", "data/*.csv"),
        ("python train.py --data '$HOME/data'", ""),
        ("bash -c 'python train.py --data ~/data'", ""),
        ('bash -c "python train.py --data $HOME/data"', ""),
        ("python train.py --lr 3~4 a&b 'x > y'", ""),
    ],
)
def test_what_a_shell_would_read_is_data_and_told(line: str, told: str, folder: Path) -> None:
    study = load_study(written(folder, script=None, command=line, run={}, sweep={"workers": [1]}))
    words = words_of(study.cells()[0], folder, which=lambda name, path: name)

    assert typed(words) == shlex.split(line)
    assert study.workload.note == (told and f"note: command: {told} is handed on as it is, since no shell reads the "
                                   "line; bash -c 'the line in quotes' starts one")  # fmt: skip


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("trian", "is not on PATH; .*, or write .*bash -c"),
        ("LR=3", "is not on PATH; .*, or write .*bash -c"),
        ("cd", "is not on PATH; .*, or write .*bash -c"),
        ("./train", "is not in .*, the folder of the study file .*bash -c"),
        ("~/own/bin/python", "is not in .*, the folder of the study file .*bash -c"),
        ("./data.sh", "may not be executed; chmod \\+x ./data.sh, or write what runs it, as in `bash ./data.sh`"),
    ],
)
def test_a_program_that_is_missing_is_told_before_anything_starts(word: str, what: str, folder: Path) -> None:
    (folder / "data.sh").write_text("")
    study = load_study(written(folder, script=None, command=f"{word} train.py", run={}, sweep={"workers": [1]}))
    with pytest.raises(StudyError, match=f"command: {re.escape(word)} {what}"):
        words_of(study.cells()[0], folder, environ={"PATH": "bin"})

    (folder / "bin").mkdir()
    for path in (folder / "bin" / "trian", folder / "data.sh"):
        path.write_text("")
        path.chmod(0o755)
    if word in ("trian", "./data.sh"):
        words_of(study.cells()[0], folder, environ={"PATH": "bin"})


def test_a_script_needs_torch_in_the_python_of_this_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripted, "find_spec", lambda name: None)
    with pytest.raises(StudyError, match=r"has no torch; install it there, or write `command: torchrun"):
        words_of(load_study(written(folder)).cells()[0], folder)


def test_a_changed_module_or_shell_script_makes_other_cells(project: Path) -> None:
    for line, name in (
        ("python -m project.train", "project/train.py"),
        ("bash train.sh", "train.sh"),
        ("make a", "Makefile"),
    ):
        (project / "study.yaml").write_text(yaml.safe_dump({"study": "s", "command": line, "run": {}, "sweep": {}}))
        before = load_study(project / "study.yaml").cells()[0].key
        (project / name).write_text((project / name).read_text() + "\n")
        assert load_study(project / "study.yaml").cells()[0].key != before


# ------------------------------------------------------------------------------------------------ the whole way


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize("kind", ["script", "command"])
def test_a_study_of_somebody_elses_training_goes_the_whole_way(kind: str, folder: Path) -> None:
    lines = {"script": STUDY["script"], "command": BY_COMMAND}
    sweep = {**STUDY["sweep"], "hidden": [4]}
    path = written(folder, **{**dict.fromkeys(lines), kind: lines[kind]}, sweep=sweep)

    def say(*words: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-m", "horovod_study.cli", *words],
            cwd=folder, env=SHELL, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    say("run", str(path))
    points = pd.read_csv(folder / "runs" / "foreign" / "analysis" / "points.csv")
    assert list(points["workers"]) == [1, 2]
    assert (points["repeats"] == 2).all()
    assert points["speedup_wrapped"].notna().all()
    assert set(points["batch"]) == {8}
    runs = sorted((folder / "runs" / "foreign").glob("*w-b8-r*/run.json"))
    assert len(runs) == 4
    assert {json.loads(each.read_text())["requested"]["options"]["hidden"] for each in runs} == {4}
    assert not list((folder / "runs" / "foreign").glob(".*.part")), "the places where ranks met are removed"
    assert not Path("/tmp/never").exists()
    planned = json.loads(say("run", str(path), "--plan", "--json"))["cells"]
    assert [cell["state"] for cell in planned] == ["done"] * 4, "nothing is left to run"


HANGS = """
import time
import torch
time.sleep(600)
"""


@pytest.mark.slow
def test_a_script_that_never_steps_is_told_so(folder: Path) -> None:
    (folder / "train.py").write_text(HANGS)
    path = written(folder, script="train.py", run={"steps": 5}, repeats=1, timeout_s=8, baselines=[],
                   sweep={"workers": [1], "runtime": "ddp/gloo"})  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-m", "horovod_study.cli", "run", str(path), "--no-retry"],
        cwd=folder, capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    told = subprocess.run(
        [sys.executable, "-m", "horovod_study.cli", "status", str(path), "--json"],
        cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip

    assert ended.returncode != 0
    (cell,) = json.loads(told.stdout)["rows"]
    assert cell["state"] == "timed out" and "no steps seen" in cell["reason"]


# A step costs 20 ms for each of its samples, on every worker at the same time: two workers make twice the samples/s.
SLEEPS = """
import sys, time
import torch
from torch import nn
torch.distributed.init_process_group("gloo")
batch = int(sys.argv[1])
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
while True:
    time.sleep(0.02 * batch)
    optimizer.zero_grad(); model(torch.randn(batch, 4)).square().mean().backward(); optimizer.step()
"""
TWELVE_LINES = """study: mine
script: train.py {batch}
repeats: 3
run: {batch: 4, steps: 25, warmup_steps: 3}
sweep: {workers: [1, 2], runtime: ddp/gloo}
"""


def check_doubled(folder: Path, text: str) -> None:
    """The report has the speedup of two workers over one, with an interval that excludes none and holds about 2."""
    analysis = folder / "runs" / "mine" / "analysis"
    points = pd.read_csv(analysis / "points.csv").set_index("workers")
    assert len(text.splitlines()) <= 12
    assert list(points["repeats"]) == [3, 3]
    two = points.loc[2]
    assert 1 < two["speedup_wrapped_low"] < two["speedup_wrapped"] < two["speedup_wrapped_high"]
    assert 1.5 < two["speedup_wrapped"] < 2.2
    page = (analysis / "report.html").read_text()
    assert "one worker inside PyTorch DDP (ddp/gloo)" in page


@pytest.mark.slow
@pytest.mark.horovod
def test_a_few_lines_end_in_a_report_with_a_resolved_speedup(folder: Path) -> None:
    (folder / "train.py").write_text(SLEEPS)
    (folder / "study.yaml").write_text(TWELVE_LINES)
    ended = subprocess.run(
        [sys.executable, "-m", "horovod_study.cli", "run", "study.yaml"],
        cwd=folder, capture_output=True, text=True, timeout=500, stdin=subprocess.DEVNULL,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stdout + ended.stderr
    check_doubled(folder, TWELVE_LINES)


# ------------------------------------------------------------------------------------------------ each launcher

TRAIN = """
import argparse, os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def train(options):
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for (x,) in DataLoader(TensorDataset(torch.randn(options.batch * 40, 64)), batch_size=options.batch):
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()

def ranked(rank, options):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(options.workers))
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=options.port)
    train(options)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int); parser.add_argument("--workers", type=int); parser.add_argument("--port")
    options = parser.parse_args()
    if options.workers:
        torch.multiprocessing.spawn(ranked, (options,), options.workers)
    else:
        train(options)
"""
WITH_HOROVOD = """
import argparse
import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
options = parser.parse_args()
hvd.init()
model = nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for (x,) in DataLoader(TensorDataset(torch.randn(options.batch * 40, 64)), batch_size=options.batch):
    optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
"""
CELL = """
import os, torch
batch = int(os.environ["BATCH"])
model = torch.nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for x in torch.utils.data.DataLoader(torch.randn(batch * 40, 64), batch_size=batch):
    optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
"""
LAUNCHED = {
    "train.py": TRAIN,
    "train_horovod.py": WITH_HOROVOD,
    "train.ipynb": json.dumps({"cells": [{"source": CELL}]}),
    "train.sh": 'exec torchrun --standalone --nproc-per-node "$1" train.py --batch "$2"',
    "Makefile": "train:\n\ttorchrun --standalone --nproc-per-node $(WORKERS) train.py --batch $(BATCH)",
    # Where a package is not installed, or starts one rank without GPUs: a program that starts ranks as it does.
    "bin/accelerate": '#!/bin/sh\nshift 2; n=$1; shift; exec torchrun --standalone --nproc-per-node "$n" "$@"',
    "bin/deepspeed": '#!/bin/sh\nshift; n=$1; shift; exec torchrun --standalone --nproc-per-node "$n" "$@"',
    "bin/jupyter": "#!/bin/sh\nfor file; do :; done; exec python -c "
    "\"import json; exec(json.load(open('$file'))['cells'][0]['source'])\"",
}
PAGE = (ROOT / "docs" / "studies.md").read_text()
NINE = {block.split()[1]: block for block in blocks(PAGE, "yaml") if block.startswith("study:")}


@pytest.fixture
def launched(tmp_path: Path) -> Path:
    """What the study files of the page start, in a folder whose name has a blank."""
    folder = tmp_path / "my project"
    for name, text in LAUNCHED.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "partitions").mkdir()
    (folder / "partitions" / "mycluster.yaml").write_text(
        next(block for block in blocks(PAGE, "yaml") if block.startswith("scheduler:"))
    )
    return folder


AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def shell_with_launchers(folder: Path) -> dict[str, str]:
    return {**SHELL, **AS_ROOT, "PATH": os.pathsep.join((str(folder / "bin"), str(BIN), os.environ["PATH"]))}


def a_moment(name: str, **changes: Any) -> dict[str, Any]:
    """Return a study file of the page with few steps and without repeats, and with two workers where it has several."""
    content = {**yaml.safe_load(NINE[name]), "repeats": 1, "baselines": [], **changes}
    content["run"] = {**content["run"], "warmup_steps": 3} | ({"steps": 10} if "steps" in content["run"] else {})
    content["sweep"] |= {"BATCH": [32]} if name == "notebook" else {"workers": [2]}
    if name == "spawn":
        content["command"] += f" --port {free_ports(1)[0]}"
    return content


def check_done(name: str, run: Path, output: str) -> None:
    found = read_run(run)
    assert found.status == "done", output
    backend = {"horovodrun": "horovod", "mpirun": "horovod", "notebook": "serial"}.get(name, "ddp")
    workers = 1 if name == "notebook" else 2
    assert (found.effective["workers"], found.effective["backend"]) == (workers, backend)
    assert found.totals["steps"] >= 10


def test_the_page_has_a_study_file_of_each_kind() -> None:
    assert list(NINE) == "torchrun horovodrun mpirun accelerate deepspeed spawn shell make notebook".split()
    assert all(len(block.splitlines()) <= 12 for block in NINE.values())


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize("name", NINE)
def test_a_study_file_of_each_launcher(name: str, launched: Path) -> None:
    output = started(launched, a_moment(name), shell_with_launchers(launched))
    check_done(name, launched.parent / "run", output)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize("name", NINE)
def test_the_same_study_file_on_slurm(name: str, slurm: SlurmCluster, launched: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (launched / "study.yaml").write_text(yaml.safe_dump(a_moment(name, partition="mycluster")))
    shell = [f"{each}={value}" for each, value in shell_with_launchers(launched).items() if each in ("PATH", *AS_ROOT)]
    submit = [*shell, str(BIN / "horovod-study"), "run", "--yes", str(launched / "study.yaml")]
    output = slurm.run("sh", "-c", 'cd "$0" && exec env "$@"', str(elsewhere), *submit)
    until(lambda: not slurm.run("squeue", "-h").strip(), "the job to end", told=slurm.logs)

    logs = "\n".join(each.read_text()[-2000:] for each in elsewhere.glob("runs/*/logs/*.log"))
    (run,) = run_directories(elsewhere / "runs" / name)
    check_done(name, run, output + logs)


# ------------------------------------------------------------------------------------------------ on two nodes

ANY = """
import argparse, os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int); parser.add_argument("--with", dest="library")
options = parser.parse_args()
print("MODE is", os.environ["MODE"])
model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
if options.library == "horovod":
    import horovod.torch as hvd
    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
else:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
while True:
    for (x,) in DataLoader(TensorDataset(torch.randn(options.batch * 50, 64)), batch_size=options.batch):
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
"""
MODE = 'it\'s $(touch owned) {braces} "quoted"'


def two_nodes(folder: Path, **partition: Any) -> Path:
    """Write a study of two nodes of a script that never ends by itself: DDP, then Horovod over Gloo."""
    (folder / "train.py").write_text(ANY)
    (folder / "partitions").mkdir()
    (folder / "partitions" / "pair.yaml").write_text(
        yaml.safe_dump({"cores_per_node": 2, "cores_per_worker": 1, "interface": "eth0", **partition})
    )
    path = folder / "study.yaml"
    path.write_text(
        "study: foreign\n"
        "script: train.py --batch {batch} --with {library}\n"
        "partition: pair\n"
        "repeats: 1\n"
        f"run: {{batch: 8, steps: 40, warmup_steps: 5, MODE: {json.dumps(MODE)}}}\n"
        "sweep:\n"
        "  nodes: [1, 2]\n"
        "  workers_per_node: 1\n"
        "  zip: {runtime: [ddp/gloo, horovod/gloo], library: [ddp, horovod]}\n"
    )
    return path


def check_two_nodes(folder: Path, output: str) -> None:
    runs = folder / "runs" / "foreign"
    found = [read_run(each) for each in run_directories(runs)]
    logs = "\n".join(each.read_text()[-2000:] for each in runs.glob("logs/*.log"))
    assert sorted((each.effective["backend"], each.effective["nodes"]) for each in found) == [
        ("ddp", 1), ("ddp", 2), ("horovod", 1), ("horovod", 2),
    ], output + logs  # fmt: skip
    assert {each.status for each in found} == {"done"}
    assert all(each.totals["steps"] == 40 for each in found), "ended by the program"
    assert f"MODE is {MODE}" in logs and not list(folder.rglob("owned"))
    points = pd.read_csv(runs / "analysis" / "points.csv")
    assert points["speedup_wrapped"].notna().all()


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.horovod
def test_a_script_runs_on_the_nodes_of_slurm(slurm: SlurmCluster, folder: Path) -> None:
    path = two_nodes(
        folder, scheduler="slurm", nodes=2, gpus_per_node=1, gres="gpu:{gpus}", slurm_partition="main", time_limit_s=900
    )
    output = slurm.run(
        "sh", "-c", 'cd "$0" && exec "$@" 2>&1',
        str(folder), str(BIN / "horovod-study"), "run", path.name, "--wait", "--yes", timeout_s=400, check=False,
    )  # fmt: skip

    check_two_nodes(folder, output)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.horovod
def test_the_same_few_lines_with_a_partition_end_in_the_same_report(slurm: SlurmCluster, folder: Path) -> None:
    """One worker on each node, so that no two share a core of a node."""
    two_nodes(
        folder, scheduler="slurm", nodes=2, gpus_per_node=1, gres="gpu:{gpus}", slurm_partition="main", time_limit_s=900
    )
    (folder / "train.py").write_text(SLEEPS)
    text = TWELVE_LINES.replace("repeats", "partition: pair\nrepeats", 1)
    (folder / "study.yaml").write_text(text)
    output = slurm.run(
        "sh", "-c", 'cd "$0" && exec "$@" 2>&1',
        str(folder), str(BIN / "horovod-study"), "run", "study.yaml", "--wait", "--yes", timeout_s=500, check=False,
    )  # fmt: skip

    assert (folder / "runs" / "mine" / "analysis").is_dir(), output
    check_doubled(folder, text)
    (nodes,) = {each.effective["nodes"] for each in map(read_run, run_directories(folder / "runs" / "mine"))
                if each.effective["workers"] == 2}  # fmt: skip
    assert nodes == 2


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.horovod
def test_a_script_runs_on_two_hosts_over_ssh(two_hosts: TwoHosts, folder: Path) -> None:
    path = two_nodes(folder, scheduler="ssh", hosts=[f"{name}:2" for name in two_hosts.names], interface=INTERFACE)
    with two_hosts.popen(
        "node1", [BIN / "horovod-study", "run", path.name, "--yes"], cwd=folder, environment={**os.environ},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        output, _ = process.communicate(timeout=400)

    check_two_nodes(folder, output)
    assert [each for name in two_hosts.names for each in two_hosts.processes(name)] == []
