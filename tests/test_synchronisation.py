"""What a job measures of its own synchronisation, and the file in which it leaves that."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Launch
from make.wording import Golden

from horovod_study import cli, records
from horovod_study.errors import RecordError
from horovod_study.strain.synchronisation import after_the_last

FOUND: dict[str, Any] = {
    "transport": "mpi",
    "reduction": "flat",
    "workers": 2,
    "gradient_bytes": 613764,
    "block": 2,
    "clock": "common",
    "floor_s": [1e-4, 1.1e-4],
    "pack_s": [3e-5, 3e-5],
    "through_s": [2e-4, 2.2e-4],
    "why_not_through": "",
}


# -------------------------------------------------------------------------------------------------------- the clock


def test_on_one_clock_a_collective_is_counted_from_the_last_begin() -> None:
    spans = [[(0.0, 1.0), (10.0, 11.0)], [(0.2, 1.2), (10.0, 11.0)]]
    seconds, common = after_the_last(spans, one_host=True)
    assert common
    assert np.allclose(seconds, [1.1 - 0.2, 1.0])


def test_ranks_of_several_hosts_count_their_own_time() -> None:
    seconds, common = after_the_last([[(0.0, 1.0)], [(500.2, 500.9)]], one_host=False)
    assert not common
    assert np.allclose(seconds, [0.85])


def test_clocks_on_which_an_end_comes_before_a_begin_are_not_one() -> None:
    seconds, common = after_the_last([[(0.0, 1.0)], [(500.2, 500.9)]], one_host=True)
    assert not common
    assert np.allclose(seconds, [0.85])


# --------------------------------------------------------------------------------------------------------- the file


def test_bench_json_comes_back_as_it_was_written(tmp_path: Path) -> None:
    records.write_bench(tmp_path, "synchronisation", FOUND)
    assert records.read_synchronisation(tmp_path) == FOUND
    assert json.loads((tmp_path / "bench.json").read_text())["schema"] == records.BENCH_SCHEMA
    hooks = {**FOUND, "pack_s": None, "through_s": None, "why_not_through": "with hooks ..."}
    records.write_bench(tmp_path, "synchronisation", hooks)
    assert records.read_synchronisation(tmp_path) == hooks


def test_a_run_without_bench_json_says_how_to_record_it(tmp_path: Path, golden: Golden) -> None:
    with pytest.raises(RecordError) as error:
        records.read_synchronisation(tmp_path)
    golden(str(error.value), tmp_path, "bench.json", "--measure-sync")


def content(**changes: Any) -> str:
    found = {name: value for name, value in {**FOUND, **changes}.items() if value != "left out"}
    return json.dumps({"schema": 1, "synchronisation": found})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": 1, "synchro', "JSON"),
        ("[]", "horovod_study"),
        ('{"schema": 99}', "horovod_study"),
        ('{"schema": 1}', "--measure-sync"),
        (content(clock="left out"), ""),
        (content(block=0), ""),
        (content(floor_s="left out"), "floor_s"),
        (content(floor_s=[1e-4]), "floor_s"),
        (content(through_s=None), "through_s"),
        (content(pack_s=[1e-4, "x"]), "pack_s.1"),
        (content(pack_s=[1e-4, float("nan")]), "JSON"),
    ],
)
def test_a_bad_bench_json_is_one_line_that_names_the_file_and_the_field(
    tmp_path: Path, text: str, message: str, golden: Golden
) -> None:
    (tmp_path / "bench.json").write_text(text)
    with pytest.raises(RecordError) as error:
        records.read_synchronisation(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'bench.json'}: ")
    golden(str(error.value), message)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------------------------------------------- with real ranks


def small(out: Path, *more: str) -> tuple[str, ...]:
    budget = ("--steps", "35", "--warmup-steps", "5", "--evaluate-every", "1000")
    return ("--dataset", "4000", *budget, "--no-checkpoint-at-end", "--out", str(out), *more)


def measured(run: Path) -> dict[str, Any]:
    found = records.read_synchronisation(run)
    assert found["workers"] == 2
    assert found["gradient_bytes"] == 613_764
    assert len(found["floor_s"]) == 40  # as many as the run has steps, in blocks of 10
    assert min(found["floor_s"]) > 0
    return found


@pytest.mark.horovod
def test_a_run_over_mpi_measures_itself_without_changing_its_result(
    launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, more in (("with", ("--measure-sync",)), ("without", ())):
        done = launch("mpirun", 2, "--backend", "mpi", *small(tmp_path / name, *more))
        assert done.returncode == 0, done.stdout + done.stderr
    hashes = {records.read_run(tmp_path / name).totals["parameter_sha256"] for name in ("with", "without")}
    assert len(hashes) == 1
    assert not (tmp_path / "without" / "bench.json").exists()
    found = measured(tmp_path / "with")
    assert (found["transport"], found["reduction"], found["clock"]) == ("mpi", "flat", "common")
    assert len(found["pack_s"]) == len(found["through_s"]) == 40

    assert (
        cli.main(["explain", "--part", "sync", str(tmp_path / "with"), "--out", str(tmp_path / "why"), "--json"]) == 0
    )
    result = json.loads(capsys.readouterr().out)
    (arm,) = result["arms"]
    assert (arm["backend"], arm["transport"], arm["arm"]) == ("mpi", "mpi", "shipped settings")
    seconds = {name: each["value"] for name, each in arm["seconds"].items()}
    parts = sum(seconds[name] for name in ("floor", "skew", "runtime", "unexplained"))
    assert parts == pytest.approx(seconds["sync"], abs=1e-9)
    assert all(Path(path).stat().st_size > 500 for path in result["files"])
    assert (tmp_path / "why" / "attribution.txt").exists()

    assert cli.main(["explain", "--part", "sync", str(tmp_path), "--out", str(tmp_path / "why")]) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path / 'without'}: has no bench.json, so what its synchronisation is made of was not measured; "
        "record the run again with --measure-sync\n"
    )


@pytest.mark.horovod
def test_a_run_over_horovod_measures_itself(launch: Launch, tmp_path: Path) -> None:
    done = launch("mpirun", 2, *small(tmp_path / "run", "--measure-sync"))
    assert done.returncode == 0, done.stdout + done.stderr
    found = measured(tmp_path / "run")
    assert (found["transport"], found["reduction"]) == ("mpi", "flat")
    assert len(found["through_s"]) == 40


@pytest.mark.horovod
def test_with_hooks_only_the_floor_is_measured_and_the_reason_told(
    launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = launch("horovodrun --gloo", 2, *small(tmp_path / "run", "--measure-sync", "--reduction", "hooks"))
    assert done.returncode == 0, done.stdout + done.stderr
    found = measured(tmp_path / "run")
    assert (found["transport"], found["through_s"], found["pack_s"]) == ("gloo", None, None)
    assert found["why_not_through"].startswith("with hooks the transfers begin in backward")
    assert cli.main(["explain", "--part", "sync", str(tmp_path / "run"), "--out", str(tmp_path / "why")]) == 0
    out = capsys.readouterr().out
    assert "Horovod/Gloo, hooks, shipped settings" in out
    assert "transfer and runtime that backward did not hide" in " ".join(out.split())


@pytest.mark.horovod
def test_the_experiment_runs_its_arms_once_and_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--runtime", "mpi/mpi", "--rounds", "1", "--workers", "2", "--steps", "40", "--dataset", "4000"]
    words = ["explain", "--measure", *options, "--out", str(tmp_path), "--json"]
    assert cli.main(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert [arm["arm"] for arm in result["arms"]] == ["shipped settings", "library defaults"]
    assert {arm["baseline"] for arm in result["arms"]} == {"one worker alone"}
    logs = {path: path.stat().st_mtime_ns for path in (tmp_path / "logs").iterdir()}
    assert len(logs) == 3
    assert cli.main(words) == 0
    assert json.loads(capsys.readouterr().out) == result
    assert logs == {path: path.stat().st_mtime_ns for path in (tmp_path / "logs").iterdir()}

    (alone,) = tmp_path.glob("serial-1w-*")
    records.finish_run(alone, records.read_run(alone), status="failed", finished="2026-01-01T00:00:00+00:00", totals={})
    assert cli.main(words) == 0
    assert records.read_run(alone).status == "done"
    attempts = [records.read_run(path).status for path in (tmp_path / ".attempts").iterdir()]
    assert sorted(attempts) == ["done", "done", "failed"], "its partners ran at another time"
