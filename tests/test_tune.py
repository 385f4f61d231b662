"""`run STUDY --tune`: the arms that are tried, the race over runs in a study's folder, and one real tune."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from fake_trainer import fake_launch
from make.wording import Golden
from rich.console import Console

from horovod_study.cli import main
from horovod_study.config.run import Cell
from horovod_study.errors import ConfigError, StudyError
from horovod_study.records import create_run, read_run, run_directories
from horovod_study.strain.options import STRAIN, StrainConfig
from horovod_study.studies import designs as module
from horovod_study.studies import runner, turns
from horovod_study.studies.attempt import record_in, record_of
from horovod_study.studies.designs import arms_of, base_of, knobs_of, library_values, tune
from horovod_study.studies.runner import RunOptions
from horovod_study.studies.study_file import StudyCells, StudyConfig, load_study

RUNTIME = "horovod/mpi"


def study_of(tmp_path: Path, *, runtime: str = RUNTIME, workers: int = 2, **run: Any) -> StudyConfig:
    path = tmp_path / "s.yaml"
    sweep = {"runtime": runtime, "workers": [1, workers]}
    path.write_text(yaml.safe_dump({"study": "s", "sweep": sweep, "run": {"seconds": 60, **run}}))
    return load_study(path)


def tried(
    tmp_path: Path,
    knobs: Sequence[str] = (),
    *,
    cores: int = 2,
    runtime: str = RUNTIME,
    **run: Any,
) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
    """Return the values of the arms by name, and why which knobs are left out."""
    arms, left_out = arms_of(
        base_of(study_of(tmp_path, runtime=runtime, **run)), knobs_of(knobs, STRAIN, runtime), cores
    )
    return {each.name: each.values for each in arms}, left_out


def test_arms_are_the_usual_values_beside_both_baselines(tmp_path: Path, golden: Golden) -> None:
    names, left_out = tried(tmp_path)

    assert list(names)[:4] == ["shipped settings", "library defaults", "reduction=flat", "reduction=hooks"]
    assert names.keys() >= {"cycle_time_ms=0.2", "idle_cycle_time_ms=0", "yield_when_idle=false", "single_copy=true"}
    assert "bucket_mb=0.1" not in names
    golden(left_out["hierarchical"])
    golden(left_out["threads"])
    assert "bucket_mb" not in left_out


def test_captured_steps_are_tried_without_hooks_only(tmp_path: Path, golden: Golden) -> None:
    names, left_out = tried(tmp_path, cuda_graphs=True)

    assert all(each.get("reduction") != "hooks" for each in names.values())
    assert list(names)[:2] == ["shipped settings", "library defaults"]
    golden(left_out["groups"], "CUDA")
    assert left_out["reduction"].startswith("would be refused: ") and "; " not in left_out["reduction"]
    assert library_values("ddp/gloo", StrainConfig(cuda_graphs=True)) == {"thread_priority": "off"}


def test_knobs_of_hooks_bring_the_hooks_with_them(tmp_path: Path) -> None:
    names, _ = tried(tmp_path, ["groups"])

    assert names["groups=1 with hooks"] == {"reduction": "hooks", "groups": 1}


def test_threads_are_varied_where_there_are_cores(tmp_path: Path) -> None:
    assert list(tried(tmp_path, ["threads"], cores=8)[0])[2:] == ["threads=2", "threads=4"]


@pytest.mark.parametrize("runtime", ["horovod/mpi", "horovod/gloo", "ddp/gloo", "mpi/mpi", "ps/mpi"])
def test_every_arm_is_a_run_that_can_be_asked_for(tmp_path: Path, runtime: str) -> None:
    base = base_of(study_of(tmp_path, runtime=runtime, workers=4))
    arms, _ = arms_of(base, knobs_of([], STRAIN, runtime), 8)
    configs = [base.config.changed(**each.values) for each in arms]

    assert len(configs) > 3 and {f"{each.backend}/{each.transport}" for each in configs} == {runtime}
    assert {(each.seconds, each.checkpoint_at_end, each.study) for each in configs} == {(2.0, False, "s-tune")}


def test_library_defaults_are_what_the_libraries_do_by_themselves() -> None:
    of_ddp = {"reduction": "hooks", "broadcast_buffers": True, "bucket_view": False, "thread_priority": "off"}

    assert library_values("horovod/mpi", StrainConfig()) == {"reduction": "hooks", "horovod_defaults": True}
    assert library_values("ddp/gloo", StrainConfig()) == of_ddp
    assert library_values("mpi/mpi", StrainConfig()) == {"horovod_defaults": True}


def test_a_study_for_long_runs_is_shortened_and_communicates_as_shipped(tmp_path: Path) -> None:
    study = study_of(tmp_path, seconds=None, epochs=100, batch=32, lr=1e-3, reduction="hooks", checkpoint_every=10)
    base = base_of(study)

    assert (base.config.batch, base.config.lr, base.placement.workers) == (32, 1e-3, 2)
    assert (base.config.seconds, base.config.epochs, base.config.reduction) == (2.0, None, "auto")


def test_a_study_of_one_worker_has_nothing_to_tune(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("study: s\nsweep: {workers: 1}\nrun: {seconds: 1}\n")
    with pytest.raises(ConfigError, match=r"s\.yaml: --tune needs a run with several workers; add some to sweep"):
        base_of(load_study(path))


@pytest.mark.parametrize(
    ("knob", "complaint"),
    [
        ("cycle_time", "'cycle_time' is not known (did you mean 'cycle_time_ms'?); allowed: "),
        ("bucket_mb", "--tune bucket_mb has no effect over horovod/mpi; knobs that do something over "),
        ("hierarchical", "--tune hierarchical means something on several hosts only"),
        ("groups=", "--tune 'groups='; write NAME=VALUE,VALUE,... such as cycle_time_ms=0.1,1"),
        ("groups=two", "--tune: groups is 'two'; it must be a whole number"),
        ("cycle_time_ms=-1", "--tune: cycle_time_ms is -1; it must be at least 0"),
        ("yield_when_idle=maybe", "--tune: yield_when_idle is 'maybe'; it must be true or false"),
    ],
)
def test_bad_knobs(knob: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as error:
        knobs_of([knob], STRAIN, RUNTIME)

    assert complaint in str(error.value) and "\n" not in str(error.value)


# ---------------------------------------------------------------------------------------------------------- the tune


class FakeEngine:
    """In the place of `run_sweep`: finished records with 1 % of noise; `speeds` of option=value tell what is fast."""

    def __init__(self, speeds: dict[str, float], *, stop_after: float = math.inf, fails: str = "") -> None:
        self.speeds, self.stop_after, self.fails = speeds, stop_after, fails
        self.launched: list[str] = []

    def __call__(self, sweep: StudyCells, options: RunOptions, *, console: Console) -> Any:
        entries = []
        for cell in sweep.cells:
            if record_in(sweep.directory / cell.key) is None:
                if len(self.launched) >= self.stop_after:
                    return SimpleNamespace(interrupted=True, ledger=SimpleNamespace(entries=[]))
                self._launch(cell, sweep.directory / cell.key)
            record = read_run(sweep.directory / cell.key)
            state = SimpleNamespace(key=cell.key, state=record.status, reason=record.reason)
            entries.append(state)
        return SimpleNamespace(interrupted=False, ledger=SimpleNamespace(entries=entries))

    def _launch(self, cell: Cell, out: Path) -> None:
        self.launched.append(cell.label)
        speed = 0.4 if cell.config.horovod_defaults else 1.0
        for text, factor in self.speeds.items():
            option, _, value = text.partition("=")
            speed *= factor if str(getattr(cell.config, option)).lower() == value else 1.0
        option, _, value = self.fails.partition("=")
        record = record_of(cell, "2026-01-01T00:00:00+00:00", "rank 1 ended by signal 11", key=out.name)
        if not option or str(getattr(cell.config, option)) != value:
            noise = 0.01 * np.random.default_rng(len(self.launched)).standard_normal()
            totals = {"samples_per_s": speed * 40_000 * math.exp(noise)}
            record = replace(record, status="done", reason="", totals=totals)
        create_run(out, record)


KNOBS = ["cycle_time_ms", "yield_when_idle", "cache_capacity", "groups"]
SPEEDS = {"cycle_time_ms=0.2": 1.1, "cycle_time_ms=5.0": 0.4, "yield_when_idle=false": 0.9, "cache_capacity=0": 1.05}


@pytest.fixture
def raced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return what tunes with a fake engine, one launch after the other, and returns what was printed."""

    def run(engine: FakeEngine, knobs: Sequence[str] = KNOBS, *, finished: bool = True) -> list[str]:
        monkeypatch.setattr(runner, "run_sweep", engine)
        monkeypatch.setattr(module, "apart_because", lambda cells: "of a test")
        options = RunOptions(command="horovod-study run s.yaml --tune")
        assert tune(study_of(tmp_path), tmp_path / "runs", knobs, options, Console(width=200)) is finished
        return capsys.readouterr().out.splitlines()

    return run


def test_a_tune_ends_with_lines_that_a_study_file_takes(raced: Any, tmp_path: Path, golden: Golden) -> None:
    told = raced(FakeEngine(SPEEDS, fails="groups=4"))
    lines = told[told.index("# for a study file with runtime: horovod/mpi in its sweep") :]
    (tmp_path / "study.yaml").write_text("\n".join(["study: s", "sweep: {runtime: horovod/mpi, workers: 2}", *lines]))
    study = load_study(tmp_path / "study.yaml")

    assert (study.runtimes, study.run.cycle_time_ms, study.run.cache_capacity) == (("horovod/mpi",), 0.2, 0)
    assert sum(line.startswith("  * ") for line in told) == 1
    golden("\n".join(line for line in told if "left" not in line))
    assert {path.parent for path in run_directories(tmp_path / "runs")} == {tmp_path / "runs" / "s-tune"}


@pytest.mark.parametrize("launches", [1, 6, 30])
def test_an_interrupted_tune_goes_on(raced: Any, launches: int) -> None:
    told = raced(stopped := FakeEngine(SPEEDS, stop_after=launches), finished=False)
    again = FakeEngine(SPEEDS)
    ended = raced(again)

    assert told[-1] == "interrupted; continue with: horovod-study run s.yaml --tune"
    assert any("which gains over the shipped" in line for line in ended)
    assert stopped.launched[-1] in again.launched[:12], "of a heat that was not whole all are launched again"
    raced(third := FakeEngine(SPEEDS))
    assert third.launched == [], "all is there"


def test_shipped_settings_that_do_not_run_are_an_error_at_once(raced: Any, golden: Golden) -> None:
    with golden.raises(StudyError, match=r"rank 1.*signal 11"):
        raced(FakeEngine({}, fails="cycle_time_ms=None"))


def test_nothing_to_vary_is_an_error(raced: Any, golden: Golden) -> None:
    with golden.raises(StudyError):
        raced(FakeEngine({}), ["threads"])


def test_a_setting_in_the_environment_is_told(raced: Any, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "3")
    golden(next(line for line in raced(FakeEngine({})) if line.startswith("warning")), "HOROVOD_CYCLE_TIME")


@pytest.mark.slow
def test_a_tune_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(turns, "WARM_S", 0.02)
    monkeypatch.setattr(turns, "SLICE_S", (0.02, 0.02))
    options = RunOptions(command="x", launch=fake_launch({"*": "turns"}), smoke=False, yes=True)
    study = study_of(tmp_path, device="cpu")

    assert tune(study, tmp_path / "runs", ["yield_when_idle", "single_copy"], options, Console(width=200))
    told = capsys.readouterr().out
    starts = len((tmp_path / "runs" / "s-tune" / "starts.txt").read_text().splitlines())
    assert "in turns" in told and starts >= 5
    assert all(f"{knob}={value} " in told for knob in ("yield_when_idle", "single_copy") for value in ("false", "true"))
    assert tune(study, tmp_path / "runs", ["yield_when_idle", "single_copy"], options, Console(width=200))
    assert starts == len((tmp_path / "runs" / "s-tune" / "starts.txt").read_text().splitlines()), "all is there"


@pytest.mark.slow
@pytest.mark.horovod
def test_a_tune_of_real_launches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two knobs over direct MPI: every launch is an ordinary run, and the study takes the lines."""
    study = {"study": "s", "repeats": 1, "budget": {"hours": 0.02}, "sweep": {"runtime": "mpi/mpi", "workers": [2]}}
    study["run"] = {"dataset": "4000", "warmup_steps": 5, "seconds": 1}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(study))
    code = main(["run", str(tmp_path / "s.yaml"), "--runs", str(tmp_path), "--tune", "yield_when_idle", "reduction"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    records = [read_run(path) for path in run_directories(tmp_path / "s-tune")]

    assert {(each.status, each.effective["backend"], each.effective["workers"]) for each in records} == {
        ("done", "mpi", 2)
    }
    lines = printed.out.splitlines()
    chosen = yaml.safe_load("\n".join(lines[lines.index("# for a study file with runtime: mpi/mpi in its sweep") :]))
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({**study, "run": {**study["run"], **chosen["run"]}}))
    assert load_study(tmp_path / "s.yaml").run.threads == 1
