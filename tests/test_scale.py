"""Many step rows: memory does not grow with a run, nothing depends on threads or the order of a directory, and what a
killed run left behind is told as ever."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from make.benchmarks import load_benchmark
from make.wording import Golden

from horovod_study import records
from horovod_study.analysis.steps.accounting import account, account_run, account_runs
from horovod_study.analysis.steps.explanation import inspect
from horovod_study.analysis.steps.rank_steps import align, find_stragglers
from horovod_study.cli import main
from horovod_study.cluster import alive


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_benchmark("analysis")


@pytest.fixture(scope="module")
def study(bench: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """18 runs of 1 to 8 workers that hold 60,000 step rows together."""
    root = tmp_path_factory.mktemp("many") / "runs"
    bench.write_runs(root, runs=18, rows=60_000)
    return root


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def analyze(runs: Path, out: Path, *words: str) -> dict[str, bytes]:
    assert main(["report", "--tables", str(runs), "--out", str(out), *words]) == 0
    return contents(out)


def test_the_benchmark_writes_what_training_writes(bench: ModuleType, tmp_path: Path) -> None:
    bench.write_run(tmp_path / "run", workers=2, steps=1_300, repeat=0, way=bench.WAYS[0])
    columns = {name: values.to_numpy() for name, values in zip(*_table(tmp_path / "run", 1), strict=True)}
    again = records.StepWriter(tmp_path, 1)
    for first in range(0, 1_300, 512):
        again.append(
            {
                name: values[first : first + 512]
                for name, values in columns.items()
                if name not in ("sync_host_s", "compute_s")  # null: one clock, and no CUDA graph
            }
        )
    again.close()

    assert (tmp_path / "run" / "steps-00001.arrows").read_bytes() == (tmp_path / "steps-00001.arrows").read_bytes()


def _table(directory: Path, rank: int) -> tuple[list[str], list[pa.ChunkedArray]]:
    table = records.read_steps(directory, rank)
    return table.column_names, table.columns


MEMORY = """
import sys, tracemalloc
from pathlib import Path
import pyarrow as pa
from horovod_study import records
from horovod_study.cluster import alive
from horovod_study.analysis.steps.accounting import account_run
run = records.recorded_run(Path(sys.argv[1]))
tracemalloc.start()
found = account_run(run)
# Columns are in Arrow's memory, what is computed of them in NumPy's; the peaks of both need not fall together.
peak = tracemalloc.get_traced_memory()[1] + pa.default_memory_pool().max_memory()
print(sum(each.steps for each in found.ranks), peak)
"""


@pytest.mark.slow
def test_memory_is_a_few_columns_of_one_rank(bench: ModuleType, tmp_path: Path) -> None:
    """Of 92 bytes per row, 24 are held: twice the residual's share of all ranks, and eight columns of one of eight."""
    bench.write_runs(tmp_path, runs=1, rows=3_000_000, workers=(8,))
    (directory,) = tmp_path.iterdir()
    words = [sys.executable, "-c", MEMORY, str(directory)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    steps, peak = map(int, done.stdout.split())

    assert steps == 3_000_000 - 8 * bench.WARMUP
    assert 8 * steps < peak < 30 * steps


def test_a_run_that_has_ended_is_not_read_before_it_is_looked_at(study: Path) -> None:
    table, runs = records.recorded_runs([study])
    before = pa.total_allocated_bytes()
    kept = list(runs)

    assert pa.total_allocated_bytes() == before
    assert sum(run.row_count() for run in kept) == pytest.approx(60_000, rel=0.05)
    assert len(table) == len(kept) == 18


@pytest.mark.slow
def test_threads_and_the_order_of_the_directory_change_nothing(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = analyze(study, tmp_path / "one", "--threads", "1")
    assert analyze(study, tmp_path / "two", "--threads", "2") == alone
    find = Path.rglob

    def backwards(self: Path, pattern: str) -> Iterator[Path]:
        return iter(sorted(find(self, pattern), reverse=True))

    monkeypatch.setattr(Path, "rglob", backwards)
    assert analyze(study, tmp_path / "backwards", "--threads", "3") == alone


def test_long_runs_are_taken_one_after_the_other(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from horovod_study.analysis.steps import accounting

    _, runs = records.recorded_runs([study])
    every = list(runs)
    at_a_time: list[int] = []
    busy: set[str] = set()

    def watched(run: Any, **how: Any) -> Any:
        busy.add(run.name)
        at_a_time.append(len(busy))
        found = account_run(run, **how)
        busy.discard(run.name)
        return found

    monkeypatch.setattr(accounting, "account_run", watched)
    monkeypatch.setattr(accounting, "AT_ONCE_ROWS", 1)
    told: list[int] = []
    found = account_runs(every, threads=3, on_progress=told.append)

    assert [each.run for each in found] == [run.name for run in every]
    assert max(at_a_time) == 1
    assert told == list(range(1, 19))


def test_efficiencies_are_those_of_inspect(study: Path) -> None:
    table, runs = records.recorded_runs([study])
    kept = list(runs)
    rows = account(table, account_runs(kept)).run_rows()
    whole = rows[rows["rank"].isna()].set_index("run")
    for run in kept:
        row = whole.loc[run.name]
        if run.workers == 1:
            names = ["load_balance", "communication_efficiency", "parallel_efficiency", "skew_s"]
            assert row[names].isna().all(), "one worker waits for nobody"
            continue
        aligned = align(run.rows, workers=run.workers, from_step=run.first_step)
        skew, pop = find_stragglers(aligned).skew_s, inspect(run).pop
        assert pop is not None and skew is not None
        assert row["load_balance"] == pytest.approx(pop.load_balance, rel=1e-12)
        assert row["communication_efficiency"] == pytest.approx(pop.communication, rel=1e-12)
        assert row["parallel_efficiency"] == pytest.approx(pop.parallel, rel=1e-12)
        assert row["skew_s"] == pytest.approx(skew["mean"], rel=1e-9)
    assert rows.loc[rows["rank"].notna(), "load_balance"].isna().all(), "of all ranks together"


def test_ranks_of_different_lengths_and_torn_files(bench: ModuleType, tmp_path: Path, golden: Golden) -> None:
    for name in ("short", "torn", "empty", "damaged", "gone"):
        bench.write_run(tmp_path / name, workers=2, steps=2_000, repeat=0, way=bench.WAYS[0])
    file = {name: tmp_path / name / "steps-00001.arrows" for name in ("short", "torn", "empty", "damaged", "gone")}
    table = records.read_steps(tmp_path / "short", 1).slice(0, 1_500)
    with pa.ipc.new_stream(str(file["short"]), table.schema) as writer:
        writer.write_table(table, max_chunksize=512)
    os.truncate(file["torn"], file["torn"].stat().st_size // 2)
    os.truncate(file["empty"], 0)
    file["damaged"].write_bytes(b"\xff" * 400)
    file["gone"].unlink()
    runs = {name: records.recorded_run(tmp_path / name) for name in file}
    found = {name: account_run(run) for name, run in runs.items()}

    assert dict(runs["short"].missing) == dict(runs["torn"].missing) == {}
    assert [rank.last for rank in found["short"].ranks] == [1_999, 1_499]
    golden(found["short"].notes, "rank 0", "step 1,999", "rank 1", "step 1,499")
    kept = len(runs["torn"].rows[1]["step"])
    assert 0 < kept < 1_100 and kept % 512 == 0, "to the last complete batch"
    assert f"rank 1 at step {kept - 1:,}" in found["torn"].notes[0]
    assert runs["empty"].missing == {1: "recorded no step"}
    golden(runs["damaged"].missing[1])
    assert runs["gone"].missing == {1: "has no file of steps"}
    for name, each in found.items():
        assert each.incomplete, name
        assert each.pop is None and np.isnan(each.skew_s), (
            "what waiting costs is not known of ranks that are incomplete"
        )
        assert each.residual is not None and each.ranks, "but what is there is accounted for"


def test_a_run_that_goes_on_is_read_at_once(bench: ModuleType, tmp_path: Path) -> None:
    """Its writer shortens its files now and then: what is mapped of them may not be there any more."""
    bench.write_run(tmp_path / "run", workers=2, steps=600, repeat=0, way=bench.WAYS[0])
    manifest = tmp_path / "run" / records.MANIFEST
    record = json.loads(manifest.read_text())
    record |= {"status": "running", "finished": None, "host": os.uname().nodename, "pid": os.getpid(), "attempts": []}
    record["process"] = alive.identity()
    manifest.write_text(json.dumps(record))
    run = records.recorded_run(tmp_path / "run")
    for path in (tmp_path / "run").glob("steps-*"):
        os.truncate(path, 0)

    assert run.state == "running"
    assert [len(run.rows[rank]["step"]) for rank in run.rows] == [600, 600]
    assert run.row_count() == 1_200
    assert account_run(run).pop is not None


def test_evaluations_are_read_as_they_were_written(study: Path, tmp_path: Path) -> None:
    runs = sorted(path for path in study.iterdir() if (path / "epochs.csv").exists())[:3]
    for path in runs:
        shutil.copytree(path, tmp_path / path.name)
    first, second, third = (tmp_path / path.name / "epochs.csv" for path in runs)
    head = ",".join(records.EPOCH_COLUMNS)
    first.write_text(
        f"{head}\n1,10,750,0.1,0.30000000000000004,nan,1e-3,1,2,4.7e-4\n\n2,20,1500,0.2,0.3,0.1,oops,1,2,1e-3\n"
    )
    second.write_text(f"{head}\n1,10,750,0.1,0.2,0.3,0.4,0.5,0.6,1e-3\n2,20,15")
    third.write_text("")
    table = records.epoch_table(tmp_path)

    assert list(table.columns) == ["run", *records.EPOCH_COLUMNS]
    assert table["run"].tolist() == [runs[0].name, runs[0].name, runs[1].name], "a torn last row is left out"
    assert table["wall_s"].tolist() == [0.30000000000000004, 0.3, 0.2]
    assert table["test_mse"].isna().tolist() == [False, True, False], "what is not a number is not known"
    left_out: dict[str, str] = {}
    for text, why in (
        (f"{head}\n" + "1," * 12 + "1\n", "epochs.csv line 2: 13 fields under 10 names"),
        ("epoch,steps\n1,2\n", "epochs.csv: column samples is missing"),
    ):
        second.write_text(text)
        records.run_table(tmp_path)
        assert set(records.epoch_table(tmp_path)["run"]) == {runs[0].name}
        records.found_runs(tmp_path, left_out=left_out)
        assert left_out.pop(runs[1].name).startswith(why)
        assert not left_out


@pytest.mark.slow
def test_the_benchmark_measures_writes_a_page_and_leaves_nothing(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(bench, "PARTS", (1.0,))
    words = ["analysis.py", "--rows", "20000", "--runs", "4", "--only", "study", "--folder", str(tmp_path / "runs")]
    monkeypatch.setattr("sys.argv", [*words, "--out", str(tmp_path / "out")])
    code = bench.main()
    result = json.loads((tmp_path / "out" / "analysis.json").read_text())

    assert code in (0, 1), "1 is a machine too busy to keep the promise"
    assert [each["cache"] for each in result["measurements"]] == ["warm", "cold"]
    assert all(each["rows"] == 20_000 and each["own_gb"] > 0.05 for each in result["measurements"])
    assert "| study | 20,000 | 4 | warm |" in (tmp_path / "out" / "analysis.md").read_text()
    assert list((tmp_path / "runs").iterdir()) == []


def test_the_benchmark_refuses_a_disk_that_is_too_small(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["analysis.py", "--rows", "1e14", "--folder", str(tmp_path)])

    assert bench.main() == 2
    assert "GB free, 11,040,000.0 GB are needed; --folder" in capsys.readouterr().err.replace(
        "11040000.0", "11,040,000.0"
    )
    assert list(tmp_path.iterdir()) == []


def test_threads_must_be_a_count(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    assert main(["report", "--tables", "runs", "--out", "x", "--threads", "0"]) == 2
    golden(capsys.readouterr().err)
