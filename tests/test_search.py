"""A hyper-parameter search: its file, its trials, pruning, failures, interruptions, several commands on one study."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
import yaml
from make.waiting import until
from make.wording import Golden
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import HyperbandPruner, MedianPruner
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import TrialState

from horovod_study.cli import main
from horovod_study.cluster.launch import LaunchLine, cell_environment
from horovod_study.cluster.process import marked_processes
from horovod_study.errors import ConfigError, RecordError, StudyError
from horovod_study.records import epoch_rows, read_run
from horovod_study.report.figures.convergence import write_search
from horovod_study.strain.options import StrainConfig, strain_config
from horovod_study.studies import attempt
from horovod_study.studies import search as searching
from horovod_study.studies.attempt import Interruption
from horovod_study.studies.lease import CLAIMS, STALE_S, acquire
from horovod_study.studies.search import (
    PARTS,
    SearchConfig,
    SearchResult,
    budget_done,
    importance_of,
    load_search,
    repeat_command,
    result_lines,
    run_search,
)

ROOT = Path(__file__).resolve().parent.parent
GOOD = """
search: tiny
trials: 3
run: {dataset: 400, epochs: 4, warmup_steps: 0}
space:
  lr: {low: 1.0e-4, high: 1.0e-2, log: true}
  batch: [10, 20]
pruner: none
"""

# A trainer that trains nothing. FAKE: {trial number or "*": how it goes}: numbers are the test MSEs of its epochs, and
# then it "fails WHY" or "hangs" if told so.
TRAINER = """
import json, math, os, sys, time
from pathlib import Path
import yaml
from horovod_study import records
from horovod_study.studies import lease

config = yaml.safe_load(Path(sys.argv[1]).read_text())
out = Path(sys.argv[2])
told = json.loads(os.environ["FAKE"])
words = told.get(str(int(out.name.split("-")[1])), told["*"]).split()
record = records.RunRecord(
    study=config["study"], key=out.name, repeat=0, partition="local", status="running",
    started="2026-01-01T00:00:00+00:00", host=os.uname().nodename, pid=os.getpid(), requested=config,
    effective={"backend": "serial", "workers": 1, "floor_mse": 1e-4}, environment={},
)
held = lease.hold_run(out)
records.create_run(out, record)
values = []
for word in words:
    if word == "fails":
        print("error: " + " ".join(words[words.index("fails") + 1 :]), file=sys.stderr, flush=True)
        sys.exit(2)
    if word == "hangs":
        time.sleep(60)
    values.append(float(word))
    row = {name: 1.0 for name in records.EPOCH_COLUMNS} | {"epoch": len(values), "test_mse": values[-1]}
    records.append_epoch(out, row)
    time.sleep(0.02)
totals = {"test_mse": values[-1], "g0_rmse_mpa": 100.0, "a_rmse": 2.0, "train_mse": 0.1, "epochs": len(values)}
records.finish_run(out, record, status="done", finished="now", totals=totals)
"""


def write(folder: Path, text: str = GOOD) -> Path:
    path = folder / "search.yaml"
    path.write_text(text)
    return path


def fake(told: dict[str, str]):
    """Return a launch function whose trials go as told."""

    def launch(cell, config: Path, out: Path, **options) -> LaunchLine:
        environ = {**os.environ, "FAKE": json.dumps({"*": "0.5 0.4 0.3 0.2", **told})}
        argv = (sys.executable, "-c", TRAINER, str(config.absolute()), str(out.absolute()))
        return LaunchLine(argv=argv, environment=cell_environment(environ, path=os.environ["PATH"], out=out))

    return launch


def search(folder: Path, told: dict[str, str] | None = None, *, trials: int = 3, jobs: int = 1, **changes):
    wanted = replace(load_search(write(folder)), trials=trials, **changes)
    return faked(wanted, folder / "runs", told or {}, command="the same", jobs=jobs)


def faked(wanted: SearchConfig, runs: Path, told: dict[str, str], *, cores: int = 4, **options) -> SearchResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempt, "local_launch", fake(told))
        patch.setattr(searching, "available_cores", lambda: cores)
        return run_search(wanted, runs, **{"command": "c", **options})


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def rows(result: SearchResult) -> list[dict]:
    return result.document["rows"]


def column(result: SearchResult, name: str) -> list:
    return [row[name] for row in rows(result)]


def states(result: SearchResult) -> list[str]:
    return column(result, "state")


def journal(folder: Path) -> optuna.Study:
    """Return the study that a search left."""
    storage = JournalStorage(JournalFileBackend(str(folder / "runs/tiny/search.journal")))
    return optuna.load_study(study_name="tiny", storage=storage)


# --------------------------------------------------------------------------------------------------------- the file


def test_a_search_file_becomes_a_search(tmp_path: Path) -> None:
    search = load_search(
        write(
            tmp_path,
            """
            search: s
            run: {dataset: 400, steps: 10}
            runtime: horovod/mpi
            workers: 2
            space:
              lr: {low: 1e-4, high: 1e-2, log: true}
              weight_decay: {low: 0, high: 0.5, step: 0.25}
              batch: {low: 16, high: 64}
              fused_optimizer: [true, false]
            pruner: {kind: hyperband, warmup: 0.2, reduction_factor: 4}
            """,
        )
    )

    assert dict(search.space) == {
        "lr": FloatDistribution(1e-4, 1e-2, log=True),
        "weight_decay": FloatDistribution(0.0, 0.5, step=0.25),
        "batch": IntDistribution(16, 64),
        "fused_optimizer": CategoricalDistribution((True, False)),
    }
    assert isinstance(search.pruner, HyperbandPruner)
    assert (search.pruner._min_resource, search.pruner._reduction_factor) == (4, 4)
    cell = search.cell({"lr": 0.001, "batch": 32, "weight_decay": 0.25, "fused_optimizer": False})
    assert (cell.runtime, cell.placement.workers, cell.config.study) == ("horovod/mpi", 2, "s")
    assert (cell.config.backend, cell.config.transport, cell.config.lr) == ("horovod", "mpi", 0.001)
    assert max(searching.ends(search.space["batch"])) == 64 and search.run.threads == 1


@pytest.mark.parametrize("pruner", ["median", "{warmup: 0.2}", "{kind: median, startup_trials: 3}"])
def test_the_usual_pruner_may_be_named_or_not(tmp_path: Path, pruner: str) -> None:
    found = load_search(write(tmp_path, GOOD.replace("pruner: none", f"pruner: {pruner}"))).pruner

    assert isinstance(found, MedianPruner)
    assert found._n_warmup_steps == (4 if "warmup" in pruner else 3)


def test_the_shipped_search_can_be_read() -> None:
    search = load_search(ROOT / "experiments" / "search.yaml")

    assert {"lr", "batch", "schedule", "widths", "optimizer"} <= set(search.space)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("lr:", "lrr:"), r"space: unknown key 'lrr' \(did you mean 'lr'\?\); allowed: batch"),
        (("search: tiny", "serch: tiny"), r"unknown key 'serch' \(did you mean 'search'\?\)"),
        (("search: tiny", ""), r"search\.yaml: search is missing"),
        (("search: tiny", "search: a/b"), "study is 'a/b'; it names a folder"),
        (("trials: 3", "trials: 0"), "trials is 0; it must be at least 1"),
        (("trials: 3", "trials: many"), "trials is 'many'; it must be a whole number"),
        (("dataset: 400", "batch: 10"), "batch is both fixed under run and varied under space; give it once"),
        (("dataset: 400", "backend: horovod"), "run: backend cannot be fixed here; it comes from runtime at the top"),
        (("dataset: 400", "bach: 3"), r"run: unknown key 'bach' \(did you mean 'batch'\?\)"),
        (("low: 1.0e-4", "low: high"), r"space: lr\.low is 'high'; it must be a number"),
        (("low: 1.0e-4", "low: 1"), "space: lr: low is 1.0 and high is 0.01; low must be below high"),
        (("low: 1.0e-4", "low: 0.01"), "space: lr: low is 0.01 and high is 0.01; low must be below high"),
        (("low: 1.0e-4, high: 1.0e-2, log: true", "low: 1, high: 2, step: 1.0e-300"), "step is 1e-300; .* larger"),
        (("batch: [10, 20]", "fusion_mb: {low: null, high: 3}"), r"space: fusion_mb\.low is None; it must be a number"),
        (("batch: [10, 20]", "batch: 10"), r"a range such as \{low: 1e-4, high: 1e-2, log: true\}; a single"),
        (("low: 1.0e-4", "low: -1"), r"space: lr\.low is -1; it must be greater than 0"),
        (("low: 1.0e-4,", ""), r"space: lr\.low is missing"),
        (("low: 1.0e-4", "lo: 1.0e-4"), r"space: lr.*: unknown key 'lo' \(did you mean 'low'\?\)"),
        (("log: true", "log: yes please"), r"lr\.log is 'yes please'; it must be true or false"),
        (("log: true", "log: true, step: 0.1"), "space: lr: .*step.*log"),
        (("[10, 20]", "[10, 0]"), r"space: batch\.1 is 0; it must be at least 1"),
        (("[10, 20]", "[10]"), r"batch: give two or more different values, or put it under run"),
        (("[10, 20]", "[10, 10]"), r"batch: give two or more different values"),
        (("[10, 20]", "10"), "batch is 10; it must be a list of values such as .* a single value belongs under run"),
        (("batch: [10, 20]", "schedule: [constant, cosin]"), r"schedule\.1 is 'cosin' \(did you mean 'cosine'\?\)"),
        (("batch: [10, 20]", "schedule: [constant, range]"), "schedule: range is never valid: .* range needs lr_end"),
        (
            ("batch: [10, 20]", "widths: {low: 1, high: 2}"),
            "widths is .*; it must be a list of values .*, or of a number a range",
        ),
        (("batch: [10, 20]", "widths: [1-2-3, 1-2]"), r"space: widths\.1 is '1-2'; it must be three"),
        (
            ("batch: [10, 20]", "epochs: [1, 2]"),
            "epochs cannot be searched over: it must be the same in all trials, .*; put it under run",
        ),
        (("batch: [10, 20]", "transport: [mpi]"), "transport cannot be searched over: it comes from runtime"),
        (
            ("pruner: none", "pruner: mediun"),
            r"pruner is 'mediun' \(did you mean 'median'\?\); allowed: median",
        ),
        (("pruner: none", "pruner: {kind: median, warmup: 2}"), r"pruner\.warmup is 2; it must be less than 1"),
        (("pruner: none", "pruner: {kind: none, warmup: 0}"), r"pruner\.none: unknown key 'warmup'"),
        (("pruner: none", "runtime: horovod"), r"runtime is 'horovod' .*; allowed: serial, horovod/mpi"),
        (("pruner: none", "workers: 2"), "runtime serial has one worker, but workers is 2; name a runtime"),
        (("trials: 3", "trials: 3\ntrials: 4"), "line 4 is not valid YAML .*given twice"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert change[0] in GOOD
    path = write(tmp_path, GOOD.replace(*change))

    with pytest.raises(ConfigError, match=message) as error:
        load_search(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_an_empty_space_is_named(tmp_path: Path, golden: Golden) -> None:
    with golden.raises(ConfigError):
        load_search(write(tmp_path, "search: s\nrun:\nspace:\n"))


def test_values_that_fit_together_only_in_some_combinations_are_accepted(tmp_path: Path) -> None:
    text = "search: s\nrun:\nspace:\n  loader: [memory, dataloader]\n  loader_processes: [2, 0]\n"

    assert load_search(write(tmp_path, text)).example().config.loader_processes == 0


@pytest.mark.parametrize(
    ("budget", "row", "share"),
    [
        ({"epochs": 4}, {"epoch": 1.0, "steps": 10, "train_s": 9.0}, 0.25),
        ({"steps": 90, "warmup_steps": 10}, {"epoch": 1.0, "steps": 50, "train_s": 9.0}, 0.5),
        ({"seconds": 10.0}, {"epoch": 1.0, "steps": 50, "train_s": 7.5}, 0.75),
        ({"seconds": 10.0}, {"epoch": 1.0, "steps": 50, "train_s": 10.4}, 1.0),
    ],
)
def test_share_of_the_budget(budget: dict, row: dict, share: float) -> None:
    assert budget_done(StrainConfig(**budget), row) == share


# ------------------------------------------------------------------------------------------------------- real trials


@pytest.mark.slow
def test_a_real_search_and_its_continuation(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, GOOD.replace("epochs: 4", "steps: 5").replace("[10, 20]", "[10, 20]\n  widths: [2-3-4, 3-4-5]"))

    assert main(["strain", "search", "search.yaml", "--trials", "1"]) == 0
    first = capsys.readouterr()
    golden.line(first.err, "1 trials", "runs/tiny")
    assert re.search(r"\[1/1\] done trial 0: test MSE \d\.\d{3}e-\d\d; lr=\S+ batch=\d+ widths=\d-\d-\d", first.err)
    golden.line(first.err, "--config runs/tiny/best.yaml")
    golden.line(first.out, "1 finished", "10")
    assert "figure: runs/tiny/search.png" in first.out and Path("runs/tiny/search.png").exists()

    assert main(["strain", "search", "search.yaml", "--trials", "2", "--json"]) == 0
    again = capsys.readouterr()
    facts = json.loads(again.out)
    assert (facts["ended"], facts["counts"]["done"], len(facts["rows"])) == (2, 2, 2)
    assert "1 of 2 trials have ended" in again.err

    rows = table(Path("runs/tiny/trials.csv"))
    assert [row["state"] for row in rows] == ["done", "done"]
    for row in rows:
        record = read_run(Path("runs/tiny") / row["run"])
        assert float(row["test_mse"]) == record.totals["test_mse"]
        assert float(row["lr"]) == record.requested["lr"]
    best = yaml.safe_load(Path("runs/tiny/best.yaml").read_text())
    assert best["study"] == "tiny-best"
    assert min(rows, key=lambda row: float(row["test_mse"]))["lr"] == repr(best["lr"])
    assert strain_config(best).widths in ("2-3-4", "3-4-5")
    assert main(["strain", "train", "--config", "runs/tiny/best.yaml", "--out", "again"]) == 0
    assert read_run(Path("again")).totals["test_mse"] == pytest.approx(facts["best"]["test_mse"], rel=1e-6)


@pytest.mark.slow
@pytest.mark.horovod
def test_a_real_trial_with_two_workers(tmp_path: Path, capsys) -> None:
    text = GOOD.replace("epochs: 4", "steps: 5").replace("pruner: none", "runtime: mpi/mpi\nworkers: 2")
    result = run_search(load_search(write(tmp_path, text), trials=1), tmp_path / "runs", command="c")

    assert (states(result), result.exit_code) == (["done"], 0)
    effective = read_run(tmp_path / "runs/tiny/trial-0000").effective
    assert (effective["workers"], effective["backend"], effective["transport"]) == (2, "mpi", "mpi")
    assert "best so far; repeat it with: mpirun " in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------- how trials end


@pytest.mark.slow
def test_the_best_of_several_trials_at_a_time(tmp_path: Path, capsys) -> None:
    result = search(tmp_path, {"1": "0.3 0.05"}, trials=4, jobs=2)

    assert states(result) == ["done"] * 4
    best = result.document["best"]
    assert (best["trial"], best["test_mse"], best["floor_mse"], result.exit_code) == (1, 0.05, 1e-4, 0)
    text = "\n".join(result_lines(result.document))
    assert "search tiny: 4 of 4 trials ended (4 done)" in text
    assert re.search(r"trial +test_mse +g0_rmse_mpa +a_rmse +seconds +lr +batch\n +1 +0.05 +100 +2 ", text)
    assert "trial 1, test MSE 5.0000e-02" in (tmp_path / "runs/tiny/best.yaml").read_text()


@pytest.mark.slow
def test_values_do_not_depend_on_who_asks(tmp_path: Path) -> None:
    """One command with one trial at a time, or several: the first trials, which are random, are the same."""
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    one = search(tmp_path / "a", trials=3)
    other = search(tmp_path / "b", trials=3, jobs=3)

    assert [column(one, name) for name in ("lr", "batch")] == [column(other, name) for name in ("lr", "batch")]
    assert len(set(column(one, "lr"))) == 3


def test_the_trials_of_a_seed_stay_the_same(tmp_path: Path) -> None:
    """They are those of the versions before: whoever repeats a search of theirs gets its trials."""
    result = search(tmp_path, trials=3)

    assert column(result, "lr") == pytest.approx([0.009156080408676194, 0.002500497963210511, 0.00046288987591506196])
    assert column(result, "batch") == [10, 20, 20]


@pytest.mark.slow
def test_a_hopeless_trial_is_pruned(tmp_path: Path, capsys) -> None:
    """The good trials end; the bad one would hang for a minute after its second epoch, and is ended there."""
    pruner = MedianPruner(n_startup_trials=2, n_warmup_steps=6)
    result = search(tmp_path, {"2": "0.9 0.9 hangs"}, trials=3, pruner=pruner)

    assert states(result) == ["done", "done", "pruned"]
    row = rows(result)[2]
    assert (row["reason"], row["test_mse"]) == ("pruned: test MSE 9.000e-01 after 50 % of the budget", 0.9)
    record = read_run(tmp_path / "runs/tiny/trial-0002")
    assert (record.state(), record.reason) == ("incomplete", row["reason"])
    assert "[3/3] pruned trial 2: pruned: test MSE 9.000e-01 after 50 % of the budget" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "fewest"), [("median", 10), ("hyperband", 10), ("none", 0)])
def test_pruners_spare_the_good_and_end_the_bad(tmp_path: Path, kind: str, fewest: int) -> None:
    """Forty trials, every second one bad from its first evaluation on."""
    wanted = load_search(write(tmp_path, GOOD.replace("pruner: none", f"pruner: {kind}")))
    study = optuna.create_study(study_name="s", pruner=wanted.pruner)
    pruned = []
    for number in range(40):
        trial = study.ask()
        for part in range(1, PARTS + 1):
            trial.report((1.0 if number % 2 else 0.01) * (1 + 0.001 * number) / part, part)
            if part < PARTS and trial.should_prune():
                pruned.append((number, part))
                break
        study.tell(
            trial,
            state=TrialState.PRUNED if number in dict(pruned) else None,
            values=None if number in dict(pruned) else 1.0,
        )

    bad = [number for number, _ in pruned if number % 2]
    assert len(bad) >= fewest and (fewest or not pruned)
    assert all(part >= 0.15 * PARTS for _, part in pruned)
    assert 0 not in dict(pruned), "the best of all"


def test_a_trial_that_diverges_is_ended_and_the_sampler_knows(tmp_path: Path, golden: Golden) -> None:
    result = search(tmp_path, {"0": "0.5 nan hangs"}, trials=2)

    assert states(result) == ["pruned", "done"]
    golden(rows(result)[0]["reason"], "MSE", "50 %")
    assert rows(result)[0]["test_mse"] is None
    assert json.dumps(result.document, allow_nan=False)


def test_evaluations_of_a_trial_that_ended_between_two_looks_are_reported(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(attempt, "_WAKE_S", 60.0)
    search(tmp_path, trials=1)

    [trial] = journal(tmp_path).trials
    assert list(trial.intermediate_values.values()) == [0.5, 0.4, 0.3, 0.2]


@pytest.mark.slow
def test_a_failed_trial_has_a_reason_and_the_search_goes_on(tmp_path: Path, capsys, golden: Golden) -> None:
    result = search(tmp_path, {"0": "fails the shard is too small", "1": "0.5 hangs"}, trials=3, timeout_s=4.0)

    assert states(result) == ["failed", "failed", "done"]
    log = tmp_path / "runs/tiny/logs/trial-0000.log"
    golden(rows(result)[0]["reason"], log)
    golden(rows(result)[1]["reason"], "4 s")
    assert [read_run(tmp_path / f"runs/tiny/trial-000{n}").state() for n in range(3)] == ["failed", "failed", "done"]
    assert "[1/3] failed trial 0: the shard is too small; see" in capsys.readouterr().err
    golden.line("\n".join(result_lines(result.document)), "failed: trial 0", log)


# ---------------------------------------------------------------------------------- several commands, killed commands

DRIVER = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from horovod_study.studies import search as searching
from horovod_study.studies.attempt import Interruption
from test_search import search
if {dies!r}:
    setattr(searching._Search, {dies!r}, lambda *told: os.kill(os.getpid(), signal.SIGKILL))
result = search(Path({folder!r}), {told!r}, trials={trials})
sys.exit(result.exit_code)
"""


def command(folder: Path, told: dict[str, str], trials: int, *, dies: str = "") -> subprocess.Popen:
    """Start a command on a search; it kills itself where it would call the method that it `dies` in."""
    program = DRIVER.format(tests=str(Path(__file__).parent), folder=str(folder), told=told, trials=trials, dies=dies)
    return subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)


def trainers(folder: Path) -> list[int]:
    return marked_processes(str((folder / "runs/tiny").resolve()))


@pytest.mark.slow
def test_two_commands_share_a_search(tmp_path: Path) -> None:
    write(tmp_path)
    both = [command(tmp_path, {}, 6) for _ in range(2)]
    codes = [(each.communicate(timeout=120), each.returncode)[1] for each in both]

    found = table(tmp_path / "runs/tiny/trials.csv")
    assert [(row["trial"], row["state"]) for row in found] == [(str(n), "done") for n in range(6)]
    assert len({row["lr"] for row in found}) == 6, "each trial was drawn again"
    assert 0 in codes and set(codes) <= {0, 1}, "1: the other command still ran the last trial"
    assert not (tmp_path / "runs/tiny/.attempts").exists(), "none was run twice"


@pytest.mark.slow
def test_ctrl_c_ends_the_trial_and_the_next_command_takes_it_up(tmp_path: Path, golden: Golden) -> None:
    one = command(tmp_path, {"0": "0.5 hangs"}, 1)
    until(lambda: (tmp_path / "runs/tiny/trial-0000/epochs.csv").exists(), "the trial started")
    one.send_signal(signal.SIGINT)
    _, said = one.communicate(timeout=120)

    assert one.returncode == 130
    golden(said, "1 trials")
    assert trainers(tmp_path) == []
    record = read_run(tmp_path / "runs/tiny/trial-0000")
    assert (record.state(), record.reason) == ("incomplete", "interrupted")
    [before] = table(tmp_path / "runs/tiny/trials.csv")
    golden(f"{before['state']}: {before['reason']}")

    result = search(tmp_path, trials=1)
    assert (states(result), result.document["ended"], result.exit_code) == (["done"], 1, 0)
    assert column(result, "lr") == [float(before["lr"])]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["opened", "running", "ended"])
def test_the_trial_of_a_killed_command_is_taken_up_again(tmp_path: Path, moment: str) -> None:
    """Killed before it had values, while it trained, and before Optuna was told: the same trials come out."""
    dies = {"opened": "_claim", "running": "", "ended": "_ended"}[moment]
    one = command(tmp_path, {"0": "0.5 hangs"} if moment == "running" else {}, 2, dies=dies)
    if moment == "running":
        until(lambda: (tmp_path / "runs/tiny/trial-0000/epochs.csv").exists(), "the trial started")
        one.kill()
        assert trainers(tmp_path), "the trainer outlives a command that is killed"
    one.communicate(timeout=120)
    assert one.returncode == -signal.SIGKILL
    assert [trial.state for trial in journal(tmp_path).trials] == [TrialState.RUNNING]

    result = search(tmp_path, trials=2)
    assert (states(result), result.exit_code, trainers(tmp_path)) == (["done", "done"], 0, [])
    set_aside = {"opened": [], "running": ["trial-0000-1"], "ended": []}[moment]
    assert [path.name for path in (tmp_path / "runs/tiny/.attempts").glob("*")] == set_aside

    (tmp_path / "whole").mkdir()
    whole = search(tmp_path / "whole", trials=2)
    for name in ("lr", "batch", "test_mse"):
        assert column(result, name) == column(whole, name)


@pytest.mark.slow
def test_a_silent_trial_of_another_host_is_taken_up_again(tmp_path: Path) -> None:
    """Its process cannot be seen, but it has not touched its claim for longer than STALE_S."""
    search(tmp_path, trials=1)
    left = shutil.copytree(tmp_path / "runs/tiny/trial-0000", tmp_path / "runs/tiny/trial-0001") / "run.json"
    left.write_text(json.dumps(json.loads(left.read_text()) | {"status": "running", "host": "elsewhere", "pid": 1}))
    claims = tmp_path / "runs/tiny" / CLAIMS
    lost = journal(tmp_path).ask({"lr": FloatDistribution(1e-4, 1e-2, log=True)})
    held = acquire(claims, "trial-0001", what="trial-0001")
    there = json.loads(held.claim.path.read_text())
    there["holder"] |= {"host": "elsewhere", "boot": "another", "pid": 1}
    held.claim.path.write_text(json.dumps(there))

    fresh = search(tmp_path, trials=2)
    assert (states(fresh), fresh.exit_code) == (["done", "running"], 1)
    assert rows(fresh)[1]["reason"] == "process 1 on elsewhere"

    os.utime(held.claim.path, (time.time() - 2 * STALE_S,) * 2)
    result = search(tmp_path, trials=2)
    assert states(result) == ["done", "done"]
    assert column(result, "lr")[1] == lost.params["lr"]
    assert [path.name for path in (tmp_path / "runs/tiny/.attempts").iterdir()] == ["trial-0001-1"]


@pytest.mark.slow
def test_a_trial_that_kills_its_command_is_given_up(tmp_path: Path, monkeypatch, golden: Golden) -> None:
    monkeypatch.setattr(searching, "MAX_RESTARTS", 1)
    for _ in range(2):
        one = command(tmp_path, {}, 1, dies="_ended")
        one.communicate(timeout=120)
        shutil.rmtree(tmp_path / "runs/tiny/trial-0000")

    result = search(tmp_path, trials=2)
    assert states(result) == ["failed", "done"]
    golden(rows(result)[0]["reason"], "2 times")


def test_a_line_that_was_cut_short_does_not_damage_the_journal(tmp_path: Path, golden: Golden) -> None:
    """As a full disk or a machine that is lost leaves it."""
    search(tmp_path, trials=1)
    path = tmp_path / "runs/tiny/search.journal"
    with path.open("a") as stream:
        stream.write('{"op_code": 4, "worker')
    assert states(search(tmp_path, trials=2)) == ["done", "done"]
    assert len(journal(tmp_path).trials) == 2

    path.write_text("nonsense\n" + path.read_text())
    with golden.raises(StudyError):
        search(tmp_path, trials=2)


def test_a_trial_that_another_command_has_ended_meanwhile_is_left_alone(tmp_path: Path) -> None:
    search(tmp_path, trials=1)
    one = searching._Search(load_search(write(tmp_path)), tmp_path / "runs/tiny", Interruption())

    assert one._claim(0) is None
    acquire(tmp_path / "runs/tiny" / CLAIMS, "trial-0000", what="it was given back").release()


def test_a_trial_too_many_waits_until_it_is_wanted(tmp_path: Path) -> None:
    """Two commands may open the last trial at once."""
    search(tmp_path, trials=1)
    journal(tmp_path).ask()

    assert states(search(tmp_path, trials=1)) == ["done"]
    assert states(search(tmp_path, trials=2)) == ["done", "done"]


# --------------------------------------------------------------------------------------------------------- refusals


def test_a_changed_file_is_another_search(tmp_path: Path, golden: Golden) -> None:
    search(tmp_path, trials=1)
    wanted = load_search(write(tmp_path, GOOD.replace("[10, 20]", "[10, 30]")))

    with golden.raises(StudyError, match="10.*20.*30"):
        faked(wanted, tmp_path / "runs", {})
    wanted = load_search(write(tmp_path, GOOD.replace("epochs: 4", "epochs: 5")))
    with golden.raises(StudyError):
        faked(wanted, tmp_path / "runs", {})


@pytest.mark.parametrize("left", ["search.db", "trial-0000/run.json"])
def test_a_folder_of_an_earlier_version_is_left_alone(tmp_path: Path, left: str, golden: Golden) -> None:
    path = tmp_path / "runs/tiny" / left
    path.parent.mkdir(parents=True)
    path.write_text("")

    with golden.raises(StudyError, match="another name"):
        search(tmp_path, trials=1)
    assert [each for each in (tmp_path / "runs").rglob("*") if each.is_file()] == [path]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"jobs": 3, "cores": 2}, "3 jobs.*1 worker.*3 threads.*2 cores"), ({"jobs": 0}, "--jobs")],
)
def test_what_cannot_work_is_refused(tmp_path: Path, options: dict, message: str, golden: Golden) -> None:
    with golden.raises(StudyError, match=message):
        faked(load_search(write(tmp_path)), tmp_path / "runs", {}, **options)


def test_a_wrong_number_of_trials_is_refused(tmp_path: Path, golden: Golden) -> None:
    with golden.raises(ConfigError, match="--trials"):
        load_search(write(tmp_path), trials=0)


# ------------------------------------------------------------------------------------------------------------ results


def test_the_option_that_matters_is_found(golden: Golden) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for _ in range(60):
        trial = study.ask()
        lr, _ = trial.suggest_float("lr", 1e-4, 1e-2, log=True), trial.suggest_categorical("batch", [10, 20])
        study.tell(trial, abs(lr - 1e-3))
    shares, note = importance_of(study)

    assert list(shares) == ["lr", "batch"] and shares["lr"] > 0.8
    assert sum(shares.values()) == pytest.approx(1)
    golden(note, "60 finished")


@pytest.mark.slow
def test_the_figures(tmp_path: Path, golden: Golden) -> None:
    folder = tmp_path / "runs/tiny"
    assert write_search(search(tmp_path, {"*": "0.9 nan"}, trials=1).study, folder) == []
    study = search(tmp_path, {"2": "0.3 0.05"}, trials=4).study
    paths = write_search(study, folder)
    before = [path.read_bytes() for path in paths]

    drawn = [f"{name}.{form}" for name in ("search", "search_values") for form in ("pdf", "svg", "png")]
    assert [path.name for path in paths] == [*drawn, "search.txt"]
    assert before == [path.read_bytes() for path in write_search(study, folder)]
    assert b"Test MSE" in before[1] and b"batch" in before[4]
    golden(before[-1].decode(), "3 finished")
    with golden.raises(RecordError, match=r"search\.txt"):
        write_search(study, paths[-1] / "none")


def test_the_command_that_repeats_a_parallel_trial_names_its_launcher(tmp_path: Path) -> None:
    text = GOOD.replace("pruner: none", "runtime: mpi/mpi\nworkers: 2")
    parallel = load_search(write(tmp_path, text))
    words = repeat_command(parallel, {"lr": 1e-3, "batch": 10}, Path("runs/x.yaml"))

    assert re.fullmatch(r"mpirun .*-np 2 \S*python\S* -m horovod_study.train --config runs/x.yaml", words)


def test_an_evaluation_that_is_not_whole_yet_is_left_out(tmp_path: Path) -> None:
    assert epoch_rows(tmp_path) == []
    (tmp_path / "epochs.csv").write_text("epoch,test_mse,a_rmse\n1,0.5,\n2,0.2")
    (row,) = epoch_rows(tmp_path)

    assert (row["epoch"], row["test_mse"]) == (1.0, 0.5) and row["a_rmse"] != row["a_rmse"]
