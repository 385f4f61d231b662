"""The settings file: written by tune, read by train, refused where it belongs to something else."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make.wording import Golden

from horovod_study import train
from horovod_study.comm.settings_file import SettingsFile, allowed_settings, nodes_of, read_settings, write_settings
from horovod_study.errors import ConfigError
from horovod_study.records import read_run
from horovod_study.workload.options import STRAIN, StrainConfig

FOR: dict[str, Any] = {
    "parameters": 153_441,
    "widths": "15-38-197",
    "batch": 75,
    "workers": 2,
    "nodes": 1,
    "runtime": "horovod/mpi",
    "cpu_model": "Some CPU",
    "torch": "2.13.0",
}
GOOD = "for: {parameters: 153441, widths: 15-38-197, runtime: horovod/mpi}\n"
VALUES: dict[str, Any] = {"backend": "horovod", "transport": "mpi", "threads": 1, "cycle_time_ms": 0.2}


def write(path: Path, made_for: dict[str, Any] | None = None, values: dict[str, Any] | None = None) -> Path:
    write_settings(path, made_for=made_for or FOR, values=values or VALUES, comments=["Found by a test."])
    return path


def require(settings: SettingsFile, **changes: Any) -> None:
    facts: dict[str, Any] = {"parameters": 153_441, "launcher": "mpirun", "launched": "horovod", "asked_backend": None}
    config = changes.pop("config", StrainConfig(**settings.values))
    settings.require_fit(config, **{**facts, **changes})


# ------------------------------------------------------------------------------------------------------- the file


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "settings.yaml")
    settings = read_settings(path, STRAIN)

    assert path.read_text().startswith("# Found by a test.\n\nfor:\n  parameters: 153441\n  widths: 15-38-197\n")
    assert dict(settings.made_for) == FOR and dict(settings.values) == VALUES
    assert settings.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@given(
    values=st.fixed_dictionaries(
        {},
        optional={
            "cycle_time_ms": st.floats(0, 100),
            "fusion_mb": st.floats(0, 1000),
            "cache_capacity": st.integers(0, 10_000),
            "groups": st.integers(1, 8),
            "yield_when_idle": st.booleans(),
            "single_copy": st.booleans(),
            "reduction": st.sampled_from(["flat", "hooks"]),
            "threads": st.integers(1, 64),
        },
    ),
    cpu=st.text(min_size=1, max_size=30).filter(str.strip),
)
def test_any_settings_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any], cpu: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    settings = read_settings(write(path, {**FOR, "cpu_model": cpu}, {**VALUES, **values}), STRAIN)

    assert dict(settings.values) == {**VALUES, **values}
    assert settings.made_for["cpu_model"] == cpu


def test_backend_and_transport_follow_from_the_runtime(tmp_path: Path) -> None:
    settings = read_settings(write(tmp_path / "settings.yaml", None, {"cycle_time_ms": 1}), STRAIN)

    assert dict(settings.values) == {"cycle_time_ms": 1.0, "backend": "horovod", "transport": "mpi"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("for: {}", "settings must hold `key: value` lines, not None"),
        ("for: {}\nsettings: {}", "for: parameters is missing; it says what the settings are for"),
        ("for: 3\nsettings: {}", "for must hold `key: value` lines, not 3"),
        ("fro: {}\nsettings: {}", "unknown key 'fro' (did you mean 'for'?)"),
        (GOOD + "settings: {cycle_time: 1}", "settings: 'cycle_time' is not known (did you mean 'cycle_time_ms'?)"),
        (
            GOOD + "settings: {lr: 1}",
            "settings: 'lr' is not a communication setting; allowed: backend, transport",
        ),
        (GOOD + "settings: {cycle_time_ms: -1}", "settings: cycle_time_ms is -1.0; it must be at least 0"),
        (GOOD + "settings: {bucket_mb: 2}", "settings: bucket_mb has no effect on horovod/mpi; leave it out"),
        (
            GOOD + "settings: {backend: ddp}",
            "backend is 'ddp', but the file is for runtime horovod/mpi; write horovod",
        ),
        (GOOD + "settings: {groups: 1, groups: 2}", "is not valid YAML (key 'groups' is given twice)"),
        (
            GOOD.replace("/mpi", "/mpy") + "settings: {}",
            "for: runtime 'horovod/mpy' is not known (did you mean 'horovod/mpi'?)",
        ),
    ],
)
def test_bad_files(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_settings(path, STRAIN)

    assert complaint in str(error.value) and str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("settings.yaml: no such file")):
        read_settings(tmp_path / "settings.yaml", STRAIN)


# --------------------------------------------------------------------------------------------------------- the fit


def test_the_run_it_was_made_for_fits(tmp_path: Path) -> None:
    settings = read_settings(write(tmp_path / "settings.yaml"), STRAIN)

    require(settings)
    require(settings, launcher="srun")
    require(settings, launcher="none", launched="serial", asked_backend="horovod")
    require(settings, config=StrainConfig(**{**VALUES, "widths": "015-38-197", "batch": 9}))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"config": StrainConfig(**{**VALUES, "widths": "30-38-197"}), "parameters": 160_000},
            "--settings",
        ),
        ({"parameters": 153_442}, "15-38-197"),
        (
            {"config": StrainConfig(backend="ddp", transport="gloo")},
            "--runtime ddp/gloo",
        ),
        ({"config": StrainConfig(backend="horovod", transport="nccl")}, "horovod/nccl"),
        (
            {"launcher": "torchrun", "launched": "ddp"},
            "",
        ),
        (
            {"launcher": "none", "launched": "serial"},
            "",
        ),
        (
            {"launcher": "horovodrun --gloo"},
            "--gloo",
        ),
    ],
)
def test_another_model_or_runtime_is_refused(
    tmp_path: Path, changes: dict[str, Any], complaint: str, golden: Golden
) -> None:
    settings = read_settings(write(tmp_path / "settings.yaml"), STRAIN)
    with pytest.raises(ConfigError) as error:
        require(settings, **changes)

    assert "\n" not in str(error.value)
    golden(str(error.value), complaint)


def test_what_else_differs_is_one_warning(tmp_path: Path, golden: Golden) -> None:
    settings = read_settings(write(tmp_path / "settings.yaml"), STRAIN)
    same = {**FOR, "horovod": "0.28.1"}
    other = {**same, "batch": 32, "cpu_model": "Another CPU", "torch": None}

    assert settings.warning(same) == ""
    golden(settings.warning(other), settings.path, "batch 75", "32", "CPU")
    record = settings.record(other)
    assert record["sha256"] == settings.sha256 and record["path"] == str(settings.path)
    assert record["matches"] == {
        "parameters": True,
        "widths": True,
        "batch": False,
        "workers": True,
        "nodes": True,
        "runtime": True,
        "cpu_model": False,
    }


def test_hosts_are_counted_from_what_the_launcher_says() -> None:
    assert nodes_of({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2) == 1
    assert nodes_of({"LOCAL_WORLD_SIZE": "4"}, 8) == 2
    assert nodes_of({}, 8) is None
    assert nodes_of({}, 1) == 1


def test_settings_are_those_of_how_workers_communicate_and_compute() -> None:
    assert set(allowed_settings(STRAIN)) == {"backend", "transport", "threads", *STRAIN.communication}
    assert set(STRAIN.tuned) <= set(allowed_settings(STRAIN))


# --------------------------------------------------------------------------------------------------------- train


def test_train_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "settings.yaml")
    for options, complaint in (
        (
            ["--widths", "4-8-16"],
            "for a model of widths 15-38-197 with 153,441 parameters, this run trains widths 4-8-16",
        ),
        ([], "this run was started by no launcher, as one worker; start it with `horovodrun --mpi -np 2 ...`"),
        (["--backend", "serial", "--transport", "none"], "are for runtime horovod/mpi, this run asks for serial/none"),
        (["--resume", str(tmp_path)], "train: --resume continues with the settings of its run; leave --settings out"),
    ):
        assert train.main(["--settings", str(path), *options]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and complaint in error and error.count("\n") == 1


@pytest.mark.horovod
def test_train_takes_the_settings_and_records_where_they_came_from(tmp_path: Path, launch: Any) -> None:
    """Two ranks of direct MPI: from the file, but for what the command line says; other batch: a warning."""
    values = {"backend": "mpi", "transport": "mpi", "threads": 1, "reduction": "hooks", "yield_when_idle": False}
    path = write(tmp_path / "settings.yaml", {**FOR, "runtime": "mpi/mpi"}, {**values, "single_copy": True})
    short = ["--dataset", "400", "--batch", "10", "--steps", "3", "--warmup-steps", "0", "--no-checkpoint-at-end"]
    done = launch(
        "mpirun", 2, "--settings", str(path), "--no-single-copy", *short, "--out", str(tmp_path / "run"), "--json"
    )
    assert done.returncode == 0, done.stderr
    record = read_run(tmp_path / "run")

    assert json.loads(done.stdout.splitlines()[-1])["backend"] == "mpi"
    assert record.effective["reduction"] == "hooks" and record.effective["transport"] == "mpi"
    assert record.requested["yield_when_idle"] is False and record.requested["single_copy"] is False
    assert record.effective["settings"]["OMPI_MCA_mpi_yield_when_idle"] == {"value": "0", "source": "asked"}
    applied = record.effective["settings_file"]
    assert applied["path"] == str(path) and applied["sha256"] == read_settings(path, STRAIN).sha256
    assert applied["matches"]["batch"] is False and applied["matches"]["workers"] is True
    warnings = [line for line in done.stderr.splitlines() if "settings were found for" in line]
    assert len(warnings) == 1 and "batch 75 (here 10)" in warnings[0]


@pytest.mark.horovod
def test_another_model_is_refused_under_two_ranks(tmp_path: Path, launch: Any) -> None:
    path = write(tmp_path / "settings.yaml", {**FOR, "runtime": "mpi/mpi"}, {"yield_when_idle": False})
    done = launch("mpirun", 2, "--settings", str(path), "--widths", "4-8-16", "--out", str(tmp_path / "run"))

    assert done.returncode == 2
    told = [line for line in done.stderr.splitlines() if "error: " in line]
    assert len(told) == 1 and "this run trains widths 4-8-16" in told[0]
