"""The run directory: a crash loses little, nothing is overwritten, nothing is guessed."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from horovod_study import records
from horovod_study.config import LAPS
from horovod_study.errors import RecordError


def record(**changes: Any) -> records.RunRecord:
    values = {
        "study": "s", "key": "k", "repeat": 0, "partition": "local", "status": "running",
        "started": "2026-01-01T00:00:00+00:00", "host": os.uname().nodename, "pid": os.getpid(),
        "requested": {"batch": 75, "horovod_defaults": False},
        "effective": {"backend": "serial", "transport": "none", "workers": 1, "nodes": 1, "batch": 75},
        "environment": {"cpu_model": "x"},
    }  # fmt: skip
    return records.RunRecord(**{**values, **changes})


def columns(rows: int, first: int = 0) -> dict[str, Any]:
    laps = {f"{lap}_s": np.full(rows, 1e-3) for lap in (*LAPS, "residual", "step")}
    return {
        "step": np.arange(first, first + rows), "epoch": np.zeros(rows, int), **laps,
        "samples": np.full(rows, 75), "loss": np.full(rows, 0.5),
    }  # fmt: skip


def test_a_record_comes_back_equal(tmp_path: Path) -> None:
    written = record(reason='line "quoted" <b>\n')
    records.create_run(tmp_path / "run", written)

    assert records.read_run(tmp_path / "run") == written


def test_finishing_replaces_the_record(tmp_path: Path) -> None:
    records.create_run(tmp_path / "run", record())
    records.finish_run(
        tmp_path / "run", record(), status="done", finished="2026-01-01T00:01:00+00:00", totals={"samples_per_s": 5.0}
    )
    final = records.read_run(tmp_path / "run")

    assert (final.status, final.totals["samples_per_s"]) == ("done", 5.0)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"], "no temporary file stays"


@pytest.mark.parametrize("status", ["done", "failed", "running"])
def test_an_existing_run_is_never_overwritten(tmp_path: Path, status: str) -> None:
    records.create_run(tmp_path / "run", record(status=status))
    before = (tmp_path / "run" / "run.json").read_bytes()

    with pytest.raises(RecordError, match=rf"already holds a run \({status}\); nothing was overwritten"):
        records.create_run(tmp_path / "run", record())
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_a_dead_run_is_incomplete_and_never_done(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    child.wait()

    assert record().state() == "running"
    assert record(pid=child.pid).state() == "incomplete"
    assert record(status="done", pid=child.pid).state() == "done"
    assert record(status="failed", pid=child.pid).state() == "failed"


def test_step_rows_come_back(tmp_path: Path) -> None:
    writer = records.StepWriter(tmp_path, 3)
    writer.append(columns(5))
    writer.append({**columns(4, first=5), "sync_s": None})
    writer.close()
    table = records.read_steps(tmp_path, 3)

    assert records.step_ranks(tmp_path) == [3]
    assert table.column("step").to_pylist() == list(range(9))
    assert table.column("sync_s").to_pylist() == [1e-3] * 5 + [None] * 4, "unknown is null, not zero"


@pytest.mark.parametrize("cut", [1, 100, 300])
def test_a_torn_stream_is_readable_to_its_last_whole_batch(tmp_path: Path, cut: int) -> None:
    writer = records.StepWriter(tmp_path, 0)
    for first in (0, 10, 20):
        writer.append(columns(10, first))
    path = tmp_path / "steps-00000.arrows"
    os.truncate(path, path.stat().st_size - cut)  # the process died while it wrote, before close()

    assert records.read_steps(tmp_path, 0).column("step").to_pylist() == list(range(20))
    writer.close()


def test_a_stream_without_a_batch_has_no_rows(tmp_path: Path) -> None:
    writer = records.StepWriter(tmp_path, 0)

    assert records.read_steps(tmp_path, 0).num_rows == 0
    writer.close()


def fill_disk(writer: records.StepWriter) -> None:
    """Let every further write of `writer` find no room."""
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer._file.fileno())
    os.close(full)


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    writer = records.StepWriter(tmp_path, 0)
    fill_disk(writer)

    with pytest.raises(RecordError, match=r"steps-00000\.arrows: step rows cannot be written \(No space left.*; free"):
        writer.append(columns(10))
    with pytest.raises(RecordError, match=r"steps-00000\.arrows: the last step rows cannot be written"):
        writer.close()
    assert writer._file.closed


def test_a_row_is_small(tmp_path: Path) -> None:
    writer = records.StepWriter(tmp_path, 0)
    for first in range(0, 5120, 512):
        writer.append(columns(512, first))
    writer.close()

    assert (tmp_path / "steps-00000.arrows").stat().st_size / 5120 < 100


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not valid JSON"),
        ("{", "is not valid JSON"),
        ("[]", "has no schema number; it was not written by horovod_study"),
        ('{"schema": 99}', "has schema 99, newer than this program's 1; update horovod_study"),
        ('{"schema": 1}', "a field is missing or unknown"),
    ],
)
def test_a_damaged_record_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "run.json").write_text(content)

    with pytest.raises(RecordError, match=message):
        records.read_run(tmp_path)


def test_a_read_only_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"/proc/none/run: cannot be written \(.*\); choose a writable --out"):
        records.create_run(Path("/proc/none/run"), record())


def test_the_run_table_has_every_run_and_no_invented_number(tmp_path: Path) -> None:
    totals = {"samples_per_s": 100.0, "sync_s": None, "steps": 7}
    records.create_run(tmp_path / "b", record(status="done", totals=totals, repeat=1))
    records.create_run(tmp_path / "a" / "deep", record(status="failed", reason="no space"))
    table = records.run_table(tmp_path)

    assert list(table["run"]) == ["a/deep", "b"]
    assert list(table["status"]) == ["failed", "done"]
    assert list(table["reason"]) == ["no space", ""]
    assert table["samples_per_s"].isna().tolist() == [True, False]
    assert table["sync_s"].isna().all()


def test_no_runs_is_an_error_with_a_way_on(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds no runs; run a study first"):
        records.run_table(tmp_path)
    with pytest.raises(RecordError, match="no such directory"):
        records.run_table(tmp_path / "none")


def test_tables_are_byte_identical_and_come_back(tmp_path: Path) -> None:
    import pandas as pd

    table = pd.DataFrame({"name": ["NA", "b"], "value": [0.1 + 0.2, float("nan")]})
    for name in ("one", "two"):
        records.save_tables(tmp_path / name, {"t": table}, {"d": {"x": [1, None]}})

    assert (tmp_path / "one" / "t.csv").read_bytes() == (tmp_path / "two" / "t.csv").read_bytes()
    frames, documents = records.load_tables(tmp_path / "one", ["t"], ["d"])
    pd.testing.assert_frame_equal(frames["t"], table)
    assert documents == {"d": {"x": [1, None]}}
    with pytest.raises(RecordError, match=r"x\.csv: no such file; run `horovod-study analyze RUNS --out"):
        records.load_tables(tmp_path / "one", ["x"], [])


def test_not_a_number_is_never_written_as_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.save_tables(tmp_path, {}, {"d": {"x": float("nan")}})
    assert not list(tmp_path.glob("*")), json.dumps([str(p) for p in tmp_path.glob("*")])
