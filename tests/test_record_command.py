"""`horovod-study record -- COMMAND`: trainings without a line of this package, and what must never happen to them."""

import ast
import copy
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import BIN, LAUNCHERS
from torch import nn

from horovod_study import cli, records
from horovod_study.recording import command, recorder
from horovod_study.recording.command import MAX_TRAININGS, processes_in
from horovod_study.recording.rank import facts, watch

HEAD = """
import importlib.util, os, sys, time
assert importlib.util.find_spec("torch")  # as libraries ask that go on to import it, or do not
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
data = TensorDataset(torch.randn(240, 8), torch.randn(240, 1))
def loss_of(x, y): return (model(x) - y).square().mean()
"""
LOADER = """
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    model.train()
    for x, y in DataLoader(data, batch_size=4):
        loss = loss_of(x, y); optimizer.zero_grad(); loss.backward(); optimizer.step()
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(TensorDataset(*data.tensors), batch_size=60):
            model(x); time.sleep(0.05)
"""
RAISES = """
def raises(*_):
    if turns == 7: raise MemoryError("caught")
optimizer, turns = torch.optim.Adam(model.parameters()), 0
optimizer.register_step_pre_hook(raises)
for epoch in range(3):
    for x, y in DataLoader(data, batch_size=4):
        loss = loss_of(x, y); optimizer.zero_grad(); loss.backward()
        try: optimizer.step()
        except MemoryError: pass
        turns += 1
"""
NO_LOADER = """
optimizer = torch.optim.Adam(model.parameters())
for turn in range(100):
    if turn % 20 == 0:
        model.eval()
        with torch.no_grad(): model(data.tensors[0]); time.sleep(0.05)
        model.train()
    loss = loss_of(*data[4 * (turn % 60) : 4 * (turn % 60) + 4])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
ONE_BATCH = """
optimizer = torch.optim.Adam(model.parameters())
batches = iter(DataLoader(data, batch_size=6))
for turn in range(100):
    if turn < 2: x, y = next(batches)  # and no more: it is no loop over the loader, as is found out then
    loss = loss_of(x, y); optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
ACCUMULATED = """
holder = nn.ModuleList([model])  # never called itself, as a LightningModule
optimizer = torch.optim.Adam(holder.parameters())
for epoch in range(4):
    for turn, (x, y) in enumerate(DataLoader(data, batch_size=4)):
        loss = loss_of(x, y); loss.backward()
        if turn % 6 == 5: optimizer.step(); optimizer.zero_grad()
"""
STEPPED_BEFORE = """
import multiprocessing
def train():
    torch.optim.SGD(model.parameters(), 0.0).step()  # as Horovod does to broadcast the state of one that it replaces
    optimizer = torch.optim.Adam(model.parameters())
    for turn in range(100):
        loss = loss_of(*data[:4]); optimizer.zero_grad(); loss.backward(); optimizer.step()
process = multiprocessing.get_context("fork").Process(target=train)
process.start(); process.join()
"""
BY_HAND = """
weights = torch.randn(8, 1, requires_grad=True)
x, y = data.tensors
for turn in range(60):
    (x @ weights - y).square().mean().backward()
    with torch.no_grad(): weights -= 0.01 * weights.grad; weights.grad = None
"""
GAN = """
critic = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
first, second = torch.optim.SGD(critic.parameters(), 0.01), torch.optim.Adam(model.parameters())
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=4):
        made = model(x)
        first.zero_grad(); (critic(y) - critic(made.detach())).mean().backward(); first.step()
        second.zero_grad(); critic(made).mean().backward(); second.step()
"""


SAME_DATA = """
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(data, batch_size=4)
for epoch in range(3):
    model.train()
    for x, y in loader:
        loss = loss_of(x, y); optimizer.zero_grad(); loss.backward(); optimizer.step()
    model.eval()
    with torch.no_grad():
        for turn, (x, y) in enumerate(loader):
            loss_of(x, y); time.sleep(0.002)
            if turn == 59 - epoch: break
"""
MIDWAY = """
optimizer = torch.optim.Adam(model.parameters())
for turn, (x, y) in enumerate(DataLoader(data, batch_size=4)):
    loss = loss_of(x, y); optimizer.zero_grad(); loss.backward(); optimizer.step()
    if turn % 20 == 15:
        for x, y in DataLoader(TensorDataset(*data.tensors), batch_size=60): loss_of(x, y); time.sleep(0.05)
"""
MADE_AGAIN = """
optimizer = torch.optim.Adam(model.parameters())
held = TensorDataset(*data[:100])
for epoch in range(3):
    for x, y in DataLoader(TensorDataset(*data.tensors), batch_size=4):  # as of the next file of a large set
        loss = loss_of(x, y); optimizer.zero_grad(); loss.backward(); optimizer.step()
    for batch in (50, 100):  # in train mode, with gradients
        for x, y in DataLoader(held, batch_size=batch): loss_of(x, y); time.sleep(0.05)
"""
FETCHED_BEFORE = """
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    batches = iter(DataLoader(data, batch_size=4))
    for update in range(30):
        for x, y in [next(batches), next(batches)]: loss_of(x, y).backward()
        optimizer.step(); optimizer.zero_grad()
"""
PENALTY = """
class Slow(TensorDataset):
    def __getitem__(self, place): time.sleep(0.002); return super().__getitem__(place)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    for (x, y), _ in zip(DataLoader(data, batch_size=4), DataLoader(Slow(*data.tensors), batch_size=2)):
        x.requires_grad_(True).register_hook(lambda gradient: time.sleep(0.002))  # in the slope, and in backward
        slope, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        loss = loss_of(x, y) + slope.square().mean()
        loss.backward(); optimizer.step(); optimizer.zero_grad()
"""


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "training.py"
    path.write_text(HEAD + textwrap.dedent(text))
    return path


def record(tmp_path: Path, command: list[Any], *options: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Record a command as a user does; return how it ended, and the run directory."""
    out = tmp_path / "run"
    done = subprocess.run(
        [BIN / "horovod-study", "record", "--out", out, "--system-interval-s", "0", *options, "--", *command],
        capture_output=True,
        text=True,
        timeout=180,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
    )
    return done, out


def rows_of(out: Path, rank: int = 0) -> dict[str, np.ndarray]:
    table = records.read_steps(out, rank)
    return {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}


# name -> script, steps that it makes beyond the watched ones, samples of a step, laps that are seen
TRAININGS = {
    "a loader": (LOADER, 180 - 2, 4, {"data", "forward", "backward", "sync", "update"}),
    "no loader": (NO_LOADER, 100 - 2 - 5, 4, {"forward", "backward", "sync", "update"}),
    "one batch": (ONE_BATCH, 100 - 2, 6, {"forward", "backward", "sync", "update"}),
    "accumulated": (ACCUMULATED, 40 - 2, 24, {"data", "forward", "backward", "sync", "update"}),
    "another optimizer before, in a fork": (STEPPED_BEFORE, 100 - 2, 4, {"forward", "backward", "sync", "update"}),
    "updates by hand": (BY_HAND, 60 - 4, 1, {"backward", "sync"}),
    "evaluated on its own data": (SAME_DATA, 180 - 2, 4, {"data", "forward", "backward", "sync", "update"}),
    "evaluated midway": (MIDWAY, 60 - 2, 4, {"data", "forward", "backward", "sync", "update"}),
    "batches fetched before their update": (
        FETCHED_BEFORE,
        60 - 2,
        8,
        {"data", "forward", "backward", "sync", "update"},
    ),
    "a penalty on a gradient, and two loaders": (
        PENALTY,
        120 - 2,
        4,
        {"data", "forward", "backward", "sync", "update"},
    ),
    "data made again for each epoch": (MADE_AGAIN, 180 - 2, 4, {"data", "forward", "backward", "sync", "update"}),
    "two models": (GAN, 120 - 2, 4, {"data", "forward", "backward", "sync", "update"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_is_recorded_as_it_is(name: str, tmp_path: Path) -> None:
    text, steps, samples, laps = TRAININGS[name]
    done, out = record(tmp_path, [sys.executable, script(tmp_path, text)])

    assert done.returncode == 0, done.stderr
    run, rows = records.read_run(out), rows_of(out)
    assert run.status == "done"
    assert abs(len(rows["step"]) - steps) <= 6, "an update that is in no step is next to an evaluation or an end"
    assert len(rows["step"]) <= steps + 5
    assert set(rows["samples"][3:]) == {samples}
    assert {
        lap for lap in ("data", "forward", "backward", "sync", "update") if np.isfinite(rows[f"{lap}_s"][5:]).all()
    } == laps
    sums = sum(np.nan_to_num(rows[f"{lap}_s"]) for lap in (*laps, "residual"))
    assert sums == pytest.approx(rows["step_s"])
    assert not list(tmp_path.glob(".run*")), "what the ranks exchanged is removed"
    gaps = rows["begin_s"][1:] - (rows["begin_s"][:-1] + rows["step_s"][:-1])
    if text in (SAME_DATA, MADE_AGAIN):  # their evaluations sleep more than 100 ms: they are between the steps
        assert len(rows["step"]) == steps and (gaps > 0.1).sum() >= 2
    if text is MADE_AGAIN:
        assert (run.totals["epochs"], rows["epoch"][-1]) == (3, 2)
    if text in (MIDWAY, NO_LOADER):  # theirs sleep 50 ms: a step that held one could not be shorter
        assert (gaps > 0.05).sum() >= 2, "the stretches have evaluations between them"
        assert rows["residual_s"].sum() < 0.05 * (gaps > 0.05).sum() + rows["step_s"].sum() / 2
    if text is PENALTY:  # two samples of its second loader take 4 ms, as its hook does on the two ways to the inputs
        assert min(np.median(rows["data_s"]), np.median(rows["backward_s"])) > 0.004


@pytest.mark.slow
def test_an_update_that_raises_and_is_caught_ends_no_recording(tmp_path: Path) -> None:
    done, out = record(tmp_path, [sys.executable, script(tmp_path, RAISES)])

    assert done.returncode == 0, done.stderr
    rows = rows_of(out)
    assert records.read_run(out).status == "done" and abs(len(rows["step"]) - (180 - 3)) <= 6
    assert (rows["samples"] == 8).sum() == 1, "the batch without an update is in the step of the next one"


CALLS = """
import statistics
calls = [0]
def count(frame, event, argument):
    if event == "call": calls[-1] += "horovod_study" in frame.f_code.co_filename
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for turn, (x, y) in enumerate(DataLoader(data, batch_size=2)):
    if turn == 20: sys.setprofile(count)
    calls.append(0)
    loss = loss_of(x, y); optimizer.zero_grad(); loss.backward(); optimizer.step()
sys.setprofile(None)
print(statistics.median(calls[25:115]))  # not the mean: rows are written when it is time to
"""
MOST_CALLS = 32
"""Of Python's functions in a step: each costs up to a microsecond where the training has emptied the caches."""


@pytest.mark.slow
def test_a_step_costs_few_calls_however_many_parameters_it_has(tmp_path: Path) -> None:
    found = []
    for layers in (1, 20):
        deep = f"model = nn.Sequential(*(nn.Linear(8, 8) for _ in range({layers})), nn.Linear(8, 1))"
        done, _ = record(tmp_path / str(layers), [sys.executable, script(tmp_path, deep + CALLS)])
        found.append(float(done.stdout))
    assert 5 < found[0] <= MOST_CALLS
    assert found[1] == pytest.approx(found[0], abs=2)


COMPILED = """
kind = sys.argv[1]
optimizer = torch.optim.Adam(model.parameters())
def update(): optimizer.step()
def whole(x, y): optimizer.zero_grad(); loss_of(x, y).backward(); optimizer.step()
if kind in ("forward", "forward in place"):
    model.compile(backend="aot_eager") if kind == "forward in place" else None
    called = model if kind == "forward in place" else torch.compile(model, backend="aot_eager", fullgraph=True)
    def loss_of(x, y): return (called(x) - y).square().mean()
if kind == "update": update = torch.compile(update, backend="aot_eager")
if kind == "whole": whole = torch.compile(whole, backend="aot_eager")
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=4):
        if kind == "whole": whole(x, y); continue
        optimizer.zero_grad(); loss_of(x, y).backward(); update()
print([parameter.detach().double().sum().item().hex() for parameter in model.parameters()])
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["forward", "forward in place", "update", "whole"])
def test_compiled_code_is_never_entered_and_each_turn_is_a_step(kind: str, tmp_path: Path) -> None:
    path = script(tmp_path, COMPILED)
    plain = subprocess.run([sys.executable, path, kind], capture_output=True, text=True, timeout=120)
    done, out = record(tmp_path, [sys.executable, path, kind])

    assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr
    assert len(rows_of(out)["step"]) == 120 - 2
    assert "horovod" not in done.stderr.partition("recorded ")[0].lower()


def test_what_is_in_the_ranks_needs_the_standard_library_and_torch_alone() -> None:
    """Nothing else is imported by it, and no word of it is newer than Python 3.9."""
    folder = Path(watch.__file__).parent
    for path in [*folder.glob("*.py"), *folder.parent.glob("inject/*.py"), folder.parents[1] / "errors.py"]:
        tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
        names = {each.module or "" for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
        names |= {alias.name for each in ast.walk(tree) if isinstance(each, ast.Import) for alias in each.names}
        for name in names:
            own = name.startswith("horovod_study.recording.rank") or name == "horovod_study.errors"
            assert own or name.partition(".")[0] in {*sys.stdlib_module_names, "torch"}, f"{path.name}: {name}"


LOOSE = """
first, second = torch.randn(8, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([first, second], 0.01)
for turn in range(60):
    loss = (data.tensors[0] @ first + second - data.tensors[1]).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("text", "count"), [(LOOSE, 9), (BY_HAND, 8)])
def test_tensors_in_no_module_are_parameters(text: str, count: int, tmp_path: Path) -> None:
    _, out = record(tmp_path, [sys.executable, script(tmp_path, text)])
    run = records.read_run(out)
    assert (run.status, run.effective["parameters"], run.effective["model"]) == ("done", count, "training.py")
    assert run.totals["parameter_sha256"] != run.effective["initial_parameter_sha256"]


LATE = """
critic = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
last = nn.Linear(1, 1)
first, second = torch.optim.RMSprop(critic.parameters()), torch.optim.Adam([*model.parameters(), *last.parameters()])
for epoch in range(2):
    for turn, (x, y) in enumerate(DataLoader(data, batch_size=4)):
        first.zero_grad(); (critic(y) - critic(last(model(x)).detach())).mean().backward(); first.step()
        if turn % 5 == 4: second.zero_grad(); critic(last(model(x))).mean().backward(); second.step()
"""


@pytest.mark.slow
def test_an_optimizer_that_steps_rarely_is_named_with_its_model(tmp_path: Path) -> None:
    """Its first update comes when the recording has begun, as that of a WGAN's generator does; it trains two models."""
    _, out = record(tmp_path, [sys.executable, script(tmp_path, LATE)])
    run, rows = records.read_run(out), rows_of(out)

    assert (run.status, run.effective["optimizer"]) == ("done", "RMSprop + Adam")
    assert run.effective["model"] == "Sequential + Sequential + Linear"
    assert run.effective["parameters"] == 2 + 8 * 16 + 16 + 16 + 1 + 8 + 8 + 8 + 1
    assert abs(len(rows["step"]) - 118) <= 1
    rare = (rows["step"] + 2) % 60 % 5 == 4
    assert np.median(rows["backward_s"][rare][2:]) > np.median(rows["backward_s"][~rare])


TWO = """
class Student(nn.Sequential): pass
for kind, rate in ((nn.Sequential, 0.1), (Student, 0.2)):
    trained = kind(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(trained.parameters(), rate)
    for epoch in range(2):
        for x, y in DataLoader(data, batch_size=4):
            optimizer.zero_grad(); (trained(x) - y).square().mean().backward(); optimizer.step()
"""


TRIALS = """
def train(steps):
    net = nn.Linear(8, 1)
    inner = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps): net(torch.randn(4, 8)).sum().backward(); inner.step()
for trial in range(10): train(20 + trial)
train(200)
"""


@pytest.mark.slow
def test_of_many_trainings_of_a_process_the_longest_are_kept(tmp_path: Path) -> None:
    done, out = record(tmp_path, [sys.executable, script(tmp_path, TRIALS)])
    found = sorted(each.name for each in tmp_path.glob("run*"))

    assert done.returncode == 0 and "the longest are recorded" in done.stderr
    assert found == ["run", *(f"run-training{number}" for number in range(2, MAX_TRAININGS + 1))]
    assert len(rows_of(out)["step"]) > 190
    assert all(len(rows_of(tmp_path / name)["step"]) > 17 for name in found)


REMOVED = """
import shutil, pathlib
for number in range(4000):
    loss_of(x, y).backward(); optimizer.step(); optimizer.zero_grad()
    for _ in range(PHASE if number == 100 else 0): model(x)
    while number == 100 and (met := list(pathlib.Path(__file__).parent.glob(".run*"))):
        shutil.rmtree(met[0], ignore_errors=True)  # again where the recorder wrote into it meanwhile
print("trained")
"""


@pytest.mark.slow
@pytest.mark.parametrize("phase", [0, 1, 2, 3])
def test_a_training_whose_events_were_removed_goes_on(phase: int, tmp_path: Path) -> None:
    text = "model, (x, y) = nn.Linear(8, 1), data[:4]\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    text += "loss_of = lambda x, y: (model(x) - y).square().mean()\n" + REMOVED.replace("PHASE", str(phase))
    done, _ = record(tmp_path, [sys.executable, script(tmp_path, text)])

    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "removed while the command ran" in done.stderr


@pytest.mark.slow
def test_a_second_training_of_a_process_is_recorded_beside_the_first(tmp_path: Path) -> None:
    done, out = record(tmp_path, [sys.executable, script(tmp_path, TWO)])
    found = [records.read_run(each) for each in (out, out.with_name("run-training2"))]

    assert done.returncode == 0
    assert [each.status for each in found] == ["done", "done"]
    assert [each.effective["model"] for each in found] == ["Sequential", "Student"]
    assert [len(rows_of(each)["step"]) for each in (out, out.with_name("run-training2"))] == [118, 117]
    assert done.stderr.count("training 2 of this command") == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run", "run-training2", "training.py"]

    shutil.rmtree(out)  # what is left of an earlier command is seen before the training, not in the middle of it
    again, _ = record(tmp_path, [sys.executable, "-c", "print('began')"])
    assert (again.returncode, again.stdout) == (2, "")
    assert "run-training2: already holds a run" in again.stderr


TRIED = """
tried = nn.Sequential(nn.Linear(8, 1))
for trained, updates in ((tried, 40), (model, 100)):  # a learning rate is looked for, and then it is trained
    optimizer = torch.optim.SGD(trained.parameters(), 0.01)
    for turn in range(updates):
        optimizer.zero_grad(); (trained(data.tensors[0][:4])).square().mean().backward(); optimizer.step()
"""


@pytest.mark.slow
def test_the_longest_training_gets_the_name_and_no_folder_without_room_is_found_out_late(tmp_path: Path) -> None:
    done, out = record(tmp_path, [sys.executable, script(tmp_path, TRIED)])
    found = [records.read_run(each) for each in (out, out.with_name("run-training2"))]
    assert done.returncode == 0
    assert [each.totals["steps"] + each.totals["excluded_steps"] for each in found] == [97, 38]
    assert [each.effective["parameters"] for each in found] == [8 * 16 + 16 + 16 + 1, 9]

    (tmp_path / "file").write_text("")
    options = [
        BIN / "horovod-study",
        "record",
        "--out",
        tmp_path / "file" / "run",
        "--",
        sys.executable,
        "-c",
        "print(1)",
    ]
    again = subprocess.run(options, capture_output=True, text=True, timeout=120)
    assert (again.returncode, again.stdout) == (2, "") and "cannot be written" in again.stderr


PROCESSES = """
import multiprocessing
def train(rate, ready):
    ready.wait()
    optimizer = torch.optim.SGD(model.parameters(), rate)
    for x, y in DataLoader(data, batch_size=4):
        loss_of(x, y).backward(); optimizer.step(); optimizer.zero_grad(); time.sleep(0.03)
for together in ((0.1, 0.2), (0.3,)):  # two at once, as workers that share a model without locks; then one more
    ready = multiprocessing.get_context("fork").Barrier(len(together))
    found = [multiprocessing.get_context("fork").Process(target=train, args=(rate, ready)) for rate in together]
    for each in found: each.start()
    for each in found: each.join()
"""


@pytest.mark.slow
def test_trainings_of_other_processes_of_a_command_are_recorded_beside_the_first(tmp_path: Path) -> None:
    done, out = record(tmp_path, [sys.executable, script(tmp_path, PROCESSES)])
    runs = [out, out.with_name("run-training2")]
    found = [records.read_run(each) for each in runs]

    assert done.returncode == 0, done.stderr
    assert [(each.status, each.totals["steps"]) for each in found] == [("done", 48)] * 2
    assert [each.effective["workers"] for each in found] == [2, 1], "two at once are one measurement of two processes"
    assert (found[0].effective["processes"], found[0].effective["averaging"]) == (2, "none")
    assert found[1].effective["lr"] == 0.3
    assert done.stderr.count("training 2 of this command") == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == [*(each.name for each in runs), "training.py"]


AHEAD = """
def ahead(loader):  # as Accelerate goes through one
    batches = iter(loader); batch = next(batches)
    for following in batches: yield batch; batch = following
    yield batch
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(*data[:60 * 4 - 1]), batch_size=4)
next(iter(loader))  # a look at one batch is no turn of the loop
every = int(os.environ.get("EVERY", 1))
for epoch in range(2):
    for turn, (x, y) in enumerate(ahead(loader)):
        loss_of(x, y).backward()
        if turn % every == every - 1: optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("told", [False, True])
def test_a_loop_that_fetches_ahead_keeps_its_last_step_from_the_first_epoch_on(
    every: int, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERY", str(every))
    batch = 4 * every
    done, out = record(tmp_path, [sys.executable, script(tmp_path, AHEAD)], *(["--batch", str(batch)] if told else []))
    run, samples = records.read_run(out), list(rows_of(out)["samples"])
    steps = 60 // every

    assert done.returncode == 0, done.stderr
    assert samples[: steps - 3] == [batch] * (steps - 3)
    assert samples[steps - 3 :] == [batch - (not told), *[batch] * (steps - 1), batch - (not told)]
    assert (run.effective["turns_per_update"], run.effective["batch"]) == (every, batch)
    assert "updates" not in run.totals["steady"]["doubt"]


STOPWATCH = """
class Slow(DataLoader):  # as one whose processes start
    def _get_iterator(self): time.sleep(0.2); return super()._get_iterator()
def ahead(loader):  # as Accelerate goes through one
    batches = iter(loader); batch = next(batches)
    for following in batches: yield batch; batch = following
    yield batch
optimizer = torch.optim.SGD(model.parameters(), 0.1)
marks, walls = [], []
for epoch in range(11):
    began, kind = time.perf_counter(), epoch % 5
    loader = Slow(data, batch_size=12)
    for turn, (x, y) in enumerate(ahead(loader) if kind in (1, 4) else loader):
        if kind == 3 and turn == 14: break
        last = turn == (19 if kind < 2 else 13)
        time.sleep(0.2 if last else 0.002)
        loss = loss_of(x, y); optimizer.zero_grad(); loss.backward(); optimizer.step()
        time.sleep(0.2 if last else 0.004)  # a metric, a line, a picture behind the last
        marks.append(time.perf_counter())
        if kind in (2, 4) and turn == 13: break
    walls.append(time.perf_counter() - began)
    time.sleep(0.2)  # a file is saved
print(*marks[2:], *walls[1:])
"""


@pytest.mark.slow
def test_step_times_are_those_of_a_stopwatch_in_the_script(tmp_path: Path) -> None:
    """Steps tile the loop of an epoch: together they are as long as it, with its start and the end of its last turn.

    So they do where it fetches ahead, and where `break` leaves it, at the end of a turn or the beginning of one.
    """
    done, out = record(tmp_path, [sys.executable, script(tmp_path, STOPWATCH)])
    told, rows = np.array(done.stdout.split(), float), rows_of(out)
    marks, walls = told[:-10], told[-10:]

    assert len(rows["step"]) == len(marks) == 2 * (2 * 20 + 3 * 14) + 20 - 2
    inside = np.diff(rows["epoch"]) == 0
    assert np.median(np.abs(rows["step_s"][1:] / np.diff(marks) - 1)[inside]) < 0.01
    sums = np.array([rows["step_s"][rows["epoch"] == epoch].sum() for epoch in range(1, 11)])
    for kind in range(5):  # a part that is lost is 200 ms
        assert np.abs(sums - walls)[(kind - 1) % 5 :: 5].min() < 0.1, kind
    laps = sum(np.nan_to_num(rows[f"{lap}_s"]) for lap in ("data", "forward", "backward", "sync", "update", "residual"))
    assert laps == pytest.approx(rows["step_s"])


ENDINGS = {
    "an error": ("raise ValueError('bad luck')", 1, "failed", "ValueError: bad luck"),
    "an end at once": ("os._exit(4)", 4, "failed", "exit code 4"),
    "a signal": ("os.kill(os.getpid(), 9)", 137, "done", ""),
    "an end without Python's own": ("os._exit(0)", 0, "done", ""),
    "an exit code": ("sys.exit(3)", 3, "failed", "exit code 3 after"),
}


ENDS_AT_ONCE = ("an error", "a signal", "an end at once", "an end without Python's own")


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDINGS)
def test_the_end_of_the_command_is_its_own(name: str, tmp_path: Path) -> None:
    how, code, status, reason = ENDINGS[name]
    done, out = record(tmp_path, [sys.executable, script(tmp_path, ONE_BATCH + how)])
    run = records.read_run(out)

    assert (done.returncode, run.status) == (code, status)
    assert reason in (run.reason or "")
    assert len(rows_of(out)["step"]) == 98, "whatever ends a process, what it has noted is there"
    assert run.effective.get("ended", "") == {
        "a signal": "by SIGKILL",
        "an end without Python's own": "before Python's own end",
    }.get(name, run.effective.get("ended", ""))
    assert (run.totals.get("parameter_sha256") is None) == (name in ENDS_AT_ONCE)


NOTHING = {
    "no torch": ("import json", 0, "no Python of it imports torch"),
    "no training": ("import torch", 0, "optimizer"),
    "it fails": ("import torch; raise ValueError", 1, "optimizer"),
    "its own lines": ("import horovod_study.recording.session, torch\n" + HEAD + ONE_BATCH, 0, "records itself"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTHING)
def test_a_command_without_a_training_is_told_why(name: str, tmp_path: Path) -> None:
    text, code, word = NOTHING[name]
    (tmp_path / "x.py").write_text(text)
    done, out = record(tmp_path, [sys.executable, tmp_path / "x.py"])

    assert done.returncode == code
    assert out.exists() == (name != "its own lines")
    assert word in done.stderr
    assert ("Traceback" in done.stderr) == (name == "it fails")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        ([sys.executable, "training.py"], 0, "belong to the warm-up"),
        (["sh", "-c", "mv ../taken ../moved; touch ../taken; exit 5"], 5, "error: not recorded: "),
    ],
)
def test_the_exit_code_is_the_commands_where_nothing_could_be_recorded(
    words: list[str], code: int, why: str, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    script(folder, ONE_BATCH.replace("100", "8"))
    done = subprocess.run(
        [BIN / "horovod-study", "record", "--out", tmp_path / "taken" / "run", "--", *words],
        cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    assert done.returncode == code, done.stderr
    assert why in done.stderr and "Traceback" not in done.stderr


OF_PYTHON_3 = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Nonlocal, ast.Starred, ast.AsyncFunctionDef)


def test_every_python_reads_the_file_that_is_put_before_its_scripts(tmp_path: Path) -> None:
    source = (Path(command.__file__).parent / "inject" / "sitecustomize.py").read_text(encoding="ascii")
    for node in ast.walk(ast.parse(source, feature_version=(3, 4))):
        assert not isinstance(node, OF_PYTHON_3)
        assert not (isinstance(node, ast.arguments) and node.kwonlyargs)
        assert not getattr(node, "annotation", None) and not getattr(node, "returns", None)
        assert not (isinstance(node, ast.Raise) and node.cause)
        assert not (isinstance(node, ast.Call) and ast.unparse(node.func) == "print")
    heavy = [each for each in ast.parse(source).body if isinstance(each, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(each) for each in heavy] == ["import json", "import os", "import sys"]


def test_a_python_that_is_too_old_is_left_alone_and_the_users_own_file_is_loaded(tmp_path: Path) -> None:
    source = (Path(command.__file__).parent / "inject" / "sitecustomize.py").read_text()
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "sitecustomize.py").write_text("import sys\nsys.path.append('/added')\nWHO = 'the user'")
    program = "import sitecustomize, sys; print(sitecustomize.WHO, sys.path[1:], len(sys.meta_path))"
    told: dict[str, str] = {}
    for name, text in {"as it is": source, "old": source.replace("OLDEST = (3, 9)", "OLDEST = (9, 9)")}.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(text)
        environ = {**os.environ, "HOROVOD_STUDY_RECORD": json.dumps({"meeting": str(folder)})}
        for before in ("", f"{folder}{os.pathsep}"):
            environ["PYTHONPATH"] = f"{before}{tmp_path / 'user'}"
            told[name + before] = subprocess.check_output([sys.executable, "-c", program], env=environ, text=True)
        assert (folder / "pythons").exists() == (name == "as it is")
        head, _, finders = told[name + before].rstrip().rpartition(" ")
        plain, _, usual = told[name].rstrip().rpartition(" ")
        assert head == plain and int(finders) - int(usual) == (name == "as it is")


def test_a_command_that_cannot_be_started_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["record", "--out", str(tmp_path / "run"), "--", "no-such-program"]) == 2
    assert "no-such-program" in capsys.readouterr().err
    assert cli.main(["record", "--out", str(tmp_path / "run")]) == 2
    assert "command" in capsys.readouterr().err
    assert cli.main(["record", "--steps", "10", "--", sys.executable]) == 2
    assert "--warmup-steps 10" in capsys.readouterr().err


@pytest.mark.slow
def test_what_fails_in_the_recorder_does_not_reach_the_training(tmp_path: Path) -> None:
    """The folder of the run cannot be made: the training goes on to its end."""
    text = LOADER + "\nprint('trained', epoch)"
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, script(tmp_path, text)],
        capture_output=True,
        text=True,
        timeout=120,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(command.__file__).parent / "inject"),
            "HOROVOD_STUDY_RECORD": json.dumps(
                {
                    "meeting": str(tmp_path / "file"),
                    "package": str(Path(command.__file__).parents[1]),
                    "options": {"warmup_steps": 10},
                }
            ),
        },
    )

    assert done.returncode == 0
    assert done.stdout.strip() == "trained 2"
    assert done.stderr.count("recording has stopped") == 1
    assert "Traceback" not in done.stderr


PLACES = (
    "watch.Watcher._before_update",
    "watch.Watcher._after_update",
    "watch.Watcher._note_update",
    "events.Log._note:backward",
    "events.Log._note:backwarded",
    "watch.Watcher._before_forward",
    "watch.Watcher._after_forward",
    "watch.Watcher._before_fetch",
    "watch.Watcher._after_fetch",
    "watch.Watcher._number_of",
    "watch.Watcher._step",
    "watch.Watcher._end",
    "events.Log.write",
    "facts.PrecisionObserver._note",
    "events.Stacks.stop",
)
"""One of each way into the recorder: forward, autograd, optimizer, loader, file, a layer, the end."""
BREAKING = """
from horovod_study.recording.rank import events, facts, watch

def train(place):
    turns = 0
    if place:
        module, kind, name = place.partition(":")[0].split(".")
        event = events.NUMBER.get(place.partition(":")[2])
        holder = getattr(globals()[module], kind)
        original = getattr(holder, name)
        def breaks(*given, **named):
            if turns >= 2 and (event is None or given[1] == event): raise RuntimeError("made to fail")
            return original(*given, **named)
        setattr(holder, name, breaks)
    folder = os.path.join(sys.argv[1], place or "whole")
    os.makedirs(folder)
    watch.Watcher({"meeting": folder, "options": {"warmup_steps": 5}}).install()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(2):
        model.train()
        for x, y in DataLoader(data, batch_size=24):
            loss = loss_of(x, y); optimizer.zero_grad(); loss.backward(); optimizer.step()
            turns += 1
        model.eval()
        with torch.no_grad(): model(x)
    with open(os.path.join(folder, "trained"), "w") as stream:
        stream.write(str(sum(p.sum().item() for p in model.parameters())))

for place in [None, *sys.argv[2:]]:
    if not os.fork():
        train(place)
        break
    assert os.wait()[1] == 0, place
"""


@pytest.mark.slow
def test_an_error_anywhere_in_the_recorder_ends_the_recording_and_not_the_training(tmp_path: Path) -> None:
    """A hook inside is made to raise after the first steps, each in a process of its own."""
    done = subprocess.run(
        [sys.executable, script(tmp_path, BREAKING), tmp_path, *PLACES], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    whole = (tmp_path / "whole" / "trained").read_text()
    for place in PLACES:
        _, (process,) = processes_in(tmp_path / place)
        assert "made to fail" in process.stopped, place
        assert (tmp_path / place / "trained").read_text() == whole, place
    assert not processes_in(tmp_path / "whole")[1][0].stopped


@pytest.mark.slow
def test_the_result_of_the_training_is_the_same(tmp_path: Path) -> None:
    end = "\nprint([parameter.detach().double().sum().item().hex() for parameter in model.parameters()])"
    path = script(tmp_path, LOADER.replace("batch_size=4", "batch_size=4, shuffle=True") + end)
    plain = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120, check=True)
    done, _ = record(tmp_path, [sys.executable, path])

    assert done.stdout == plain.stdout


# ---------------------------------------------------------------------------------------------------- several ranks

APART = """
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())  # and nothing averages: on a CPU the script wraps no model
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True: loss_of(torch.randn(4, 8), 0.0).backward(); optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.slow
@pytest.mark.horovod
def test_an_endless_training_is_ended_after_its_steps_and_ranks_that_go_apart_are_doubted(tmp_path: Path) -> None:
    line = [str(part).format(workers=2) for part in LAUNCHERS["torchrun"]]
    done, out = record(tmp_path, [*line, script(tmp_path, APART)], "--steps", "40")
    run = records.read_run(out)

    assert (done.returncode, run.status) == (0, "done"), done.stderr
    assert [len(rows_of(out, rank)["step"]) for rank in (0, 1)] == [40, 40]
    assert not rows_of(out)["sync_s"].any(), "waits would be seen, and there is none"
    assert "different parameters" in run.totals["steady"]["doubt"]
    assert done.stderr.count("end with different parameters") == 1


SLEEP_S = 0.03
DDP = f"""
import torch.distributed as dist
dist.init_process_group("gloo")
wrapped = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters())
for turn in range(60):
    loss = wrapped(data.tensors[0][:8]).square().mean(); optimizer.zero_grad()
    if dist.get_rank() == 1: time.sleep({SLEEP_S})
    loss.backward(); optimizer.step()
if dist.get_rank() == 0: time.sleep(1)  # it alone has more to do: the others have left the training
dist.destroy_process_group()
"""
MPI_ALONE = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"


@pytest.mark.slow
def test_the_slow_rank_of_a_script_is_seen(tmp_path: Path) -> None:
    """One rank sleeps before its backward: its backward is longer by that, and the other one waits for it in sync."""
    line = [str(part).format(workers=2) for part in LAUNCHERS["torchrun"]]
    done, out = record(tmp_path, [*line, script(tmp_path, DDP)])

    assert done.returncode == 0, done.stderr
    quick, slow = rows_of(out, 0), rows_of(out, 1)
    assert len(quick["step"]) == len(slow["step"]) >= 50
    assert np.median(slow["backward_s"]) - np.median(quick["backward_s"]) > 0.8 * SLEEP_S
    assert np.median(quick["sync_s"]) - np.median(slow["sync_s"]) > 0.8 * SLEEP_S
    assert np.isfinite(slow["forward_s"][5:]).all()


NAP = f"""
naps = []
def nap(rank):
    if rank == 1:
        at = time.perf_counter(); time.sleep({SLEEP_S}); naps.append(time.perf_counter() - at)
"""
PLANTED = {
    "ddp": """
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters())
for turn in range(60):
    optimizer.zero_grad(); loss = loss_of(*data[:8]); loss.backward(); optimizer.step(); nap(dist.get_rank())
    dist.all_reduce(loss.detach())  # a metric: here the others wait
""",
    "fully_shard": """
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
for layer in (model[0], model[2]): fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters())
for turn in range(60):
    optimizer.zero_grad(); loss_of(*data[:8]).backward(); nap(dist.get_rank())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # waits through functional collectives
    optimizer.step()
""",
    "horovod": """
import horovod.torch as hvd
hvd.init()
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for turn in range(60):
    optimizer.zero_grad(); loss = loss_of(*data[:8]); loss.backward(); optimizer.step(); nap(hvd.rank())
    hvd.allreduce(loss.detach(), name="metric")
""",
    "lightning": """
import pytorch_lightning as pl
from pytorch_lightning.plugins.environments import TorchElasticEnvironment
class Module(pl.LightningModule):
    def __init__(self): super().__init__(); self.net = model
    def training_step(self, batch, index): nap(self.global_rank); return (self.net(batch[0]) - batch[1]).square().mean()
    def configure_optimizers(self): return torch.optim.Adam(self.parameters())
pl.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, plugins=[TorchElasticEnvironment()],
).fit(Module(), DataLoader(data, batch_size=2))
""",
}


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize("name", PLANTED)
def test_a_rank_that_sleeps_is_late_by_what_it_slept(name: str, tmp_path: Path) -> None:
    """Its own time without the waits for others, and the lap of it, is longer by the naps that the script has timed."""
    text = (
        "import torch.distributed as dist"
        + NAP
        + PLANTED[name]
        + "\nif naps: print(' '.join(['NAPS', *map(str, naps[10:])]) + '\\n', end='', flush=True)"
    )
    line = LAUNCHERS["horovodrun --gloo" if name == "horovod" else "torchrun"]
    done, out = record(tmp_path, [*(str(part).format(workers=2) for part in line), script(tmp_path, text)])
    assert done.returncode == 0, done.stderr
    told = next(each for each in done.stdout.splitlines() if "NAPS " in each and each.split("NAPS ")[1])
    slept_s = np.median([float(each) for each in told.split("NAPS ")[1].split()])
    run, (quick, slow) = records.read_run(out), (rows_of(out, 0), rows_of(out, 1))
    lap = "forward_s" if name == "lightning" else "residual_s"

    backend = {"horovod": "horovod", "fully_shard": "distributed"}.get(name, "ddp")
    assert (run.status, run.effective["backend"], run.effective["workers"]) == ("done", backend, 2)
    for times in ([rows["step_s"] - rows["sync_s"] for rows in (quick, slow)], [quick[lap], slow[lap]]):
        assert np.median(times[1][10:]) - np.median(times[0][10:]) == pytest.approx(slept_s, rel=0.3)


@pytest.mark.slow
@pytest.mark.horovod
@pytest.mark.parametrize("text", ["import horovod.torch as hvd; hvd.init(); print(hvd.size())", MPI_ALONE])
def test_a_script_of_horovod_alone_needs_no_launcher(text: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OPAL_PREFIX"}
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        env=environment,
    )

    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


# ---------------------------------------------------------------------------------------------------- the models


def torch_hook(*_: Any) -> None:
    """Do nothing."""


def only_allowed(stream: io.BytesIO) -> nn.Module:
    """Return a model from a file that may hold weights and the classes that the script allows."""
    with torch.serialization.safe_globals([nn.Sequential, nn.Linear, set]):
        loaded: nn.Module = torch.load(io.BytesIO(stream.getvalue()), weights_only=True)
    return loaded


def test_copies_and_pickles_of_a_recorded_model_have_no_part_of_the_recorder(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recorder.recorder(model, optimizer, out=tmp_path / "run", warmup_steps=1, system_interval_s=0) as record:
        for x in record.steps([torch.ones(3, 4)] * 6):
            model(x).sum().backward()
            optimizer.step()
            stream = io.BytesIO()
            torch.save(model, stream)
            for other in (
                copy.deepcopy(model),
                pickle.loads(pickle.dumps(model)),
                torch.optim.swa_utils.AveragedModel(model).module,
                torch.load(io.BytesIO(stream.getvalue()), weights_only=False),
                only_allowed(stream),
            ):
                assert torch.equal(other(x), model(x))
                assert not (other._forward_hooks or other._forward_pre_hooks)
            handle = model.register_forward_hook(torch_hook)
            assert list(copy.deepcopy(model)._forward_hooks.values()) == [torch_hook], "those of the script stay"
            handle.remove()
    rows = rows_of(tmp_path / "run")
    assert len(rows["step"]) == 6


@pytest.mark.slow
def test_who_fetches_in_another_thread_waits_beside_the_training(tmp_path: Path) -> None:
    text = """
    import queue, threading
    ready, optimizer = queue.Queue(2), torch.optim.SGD(model.parameters(), 0.1)
    def fill():
        for batch in DataLoader(data, batch_size=4): time.sleep(0.02); ready.put(batch)
        ready.put(None)
    threading.Thread(target=fill).start()
    while batch := ready.get(): loss_of(*batch).backward(); optimizer.step(); optimizer.zero_grad()
    """
    _, out = record(tmp_path, [sys.executable, script(tmp_path, text)])
    run, rows = records.read_run(out), rows_of(out)
    assert (run.status, run.effective["loader_thread"], len(rows["step"])) == ("done", True, 58)
    assert set(rows["samples"]) == {4}
    assert np.median(rows["residual_s"]) > 0.01
    waited = [each["share"] for each in run.totals["stacks"] if each["name"].startswith("queue/")]
    assert sum(waited) > 0.3, "what it waits for has a name"


def test_a_vector_that_a_layer_takes_is_one_sample() -> None:
    model, tokens = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.arange(4)
    watcher = watch.Watcher({})

    assert watcher._samples_given(model, [torch.ones(4)]) == 1
    for batch, samples in (
        ([torch.ones(4, 4)], 4),
        ([torch.ones(5)], 5),
        ([tokens], 4),
        ([None, {"x": torch.ones(6, 4)}], 6),
    ):
        assert watcher._samples_given(model, batch) == samples


def test_the_batch_of_a_model_that_takes_time_first_is_the_second_dimension() -> None:
    class Words(nn.Module):
        def __init__(self, **options: bool) -> None:
            super().__init__()
            self.rnn = nn.LSTM(4, 8, **options)

    assert [facts.time_first(each) is not None for each in (Words(), Words(batch_first=True), nn.Linear(2, 2))] == [
        True,
        False,
        False,
    ]
    assert facts.samples_of([torch.ones(35, 20)], second=True) == 20
    assert facts.samples_of([torch.ones(35, 20)], size=35, second=True) == 35, "a loader that says what its batch is"
    assert facts.samples_of([torch.ones(35, 20)], size=20) == 20
    assert facts.samples_of(([], "text", {"a": torch.ones(3, 2)})) == 3
    assert [facts.samples_of(each) for each in ("text", None, range(7), torch.ones(()))] == [0, 0, 7, 0]


def test_sequences_in_one_row_are_as_many_samples_as_there_are_sequences() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.ones(5, 3), torch.ones(4, 3)])
    tokens, offsets, labels = torch.arange(60), torch.arange(0, 60, 10), torch.arange(6)
    assert facts.samples_of((packed, labels[:2])) == facts.samples_of([packed, labels[:2]], size=2) == 2
    assert facts.samples_of([tokens, offsets, labels], size=6) == 6
    assert facts.samples_of([tokens, offsets, labels], size=16) == 6, "the last batch of an epoch"
    assert facts.samples_of([tokens, offsets]) == 6
    assert facts.samples_of([labels, torch.ones(6, 2)]) == 6


def test_a_model_is_named_by_the_class_of_the_script() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(2, 2))

    class Wrapper(nn.Module):  # as Fabric's, which holds the model twice where nothing is between
        __module__ = "lightning_fabric.wrappers"

        def __init__(self, inside: nn.Module, model: nn.Module) -> None:
            super().__init__()
            self.inside, self.model = inside, model

    class OptimizedModule(nn.Module):  # as torch.compile makes one
        __module__ = "torch._dynamo.eval_frame"

        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self._orig_mod = model

    net = Net()
    for wrapped, name in (
        (net, "Net"),
        (nn.DataParallel(net), "Net"),
        (Wrapper(net, net), "Net"),
        (Wrapper(nn.DataParallel(net), net), "Net"),
        (OptimizedModule(net), "Net (compiled)"),
        (nn.DataParallel(OptimizedModule(net)), "Net (compiled)"),
    ):
        assert facts.model_name(wrapped) == name
    assert facts.model_name(net.layers) == "Sequential", "which somebody has chosen"


def test_the_model_of_an_optimizer_is_the_outermost_one() -> None:
    inner = nn.Linear(3, 3)
    outer = nn.Sequential(inner, nn.Linear(3, 1))
    copied = copy.deepcopy(outer)

    decoder = nn.Linear(1, 5)

    assert facts.models_of({id(each) for each in inner.parameters()}) == [outer]
    assert facts.models_of({id(each) for each in copied[0].parameters()}) == [copied]
    assert facts.models_of({id(each) for model in (decoder, outer) for each in model.parameters()}) == [
        outer,
        decoder,
    ]
    assert facts.models_of(set()) == []
    both, alone = nn.ModuleList([outer, decoder]), nn.ModuleList([outer])
    assert both in facts.objects(nn.Module)
    assert facts.models_of({id(each) for each in outer.parameters()}) == [alone], "which holds nothing else"
