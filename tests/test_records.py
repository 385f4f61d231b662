"""The run directory: a crash loses little, nothing is overwritten, nothing is guessed."""

import json
import math
import os
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import make.records
import numpy as np
import pytest
from make.wording import Golden

from horovod_study import records
from horovod_study.cli import main
from horovod_study.cluster import alive
from horovod_study.config.run import LAPS
from horovod_study.errors import RecordError
from horovod_study.records import over_ranks, step_totals


def record(**changes: Any) -> records.RunRecord:
    values = {
        "requested": {"batch": 75, "horovod_defaults": False},
        "effective": {"backend": "serial", "transport": "none", "workers": 1, "nodes": 1, "batch": 75},
        "environment": {"cpu_model": "x"},
    }
    return make.records.record(**{**values, **changes})


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
def test_an_existing_run_is_never_overwritten(tmp_path: Path, status: str, golden: Golden) -> None:
    records.create_run(tmp_path / "run", record(status=status))
    before = (tmp_path / "run" / "run.json").read_bytes()

    with golden.raises(RecordError, match=f"{status}"):
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
    writer.append({name: values for name, values in columns(4, first=5).items() if name != "sync_s"})
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


def test_a_full_disk_is_one_line(tmp_path: Path, golden: Golden) -> None:
    writer = records.StepWriter(tmp_path, 0)
    fill_disk(writer)

    with golden.raises(RecordError, match=r"steps-00000\.arrows"):
        writer.append(columns(10))
    writer.close()  # what was appended before is there, with or without an end of the stream
    assert writer._file.closed


def test_a_row_is_small(tmp_path: Path) -> None:
    writer = records.StepWriter(tmp_path, 0)
    for first in range(0, 5120, 512):
        writer.append(columns(512, first))
    writer.close()

    assert (tmp_path / "steps-00000.arrows").stat().st_size / 5120 < 100


# ---------------------------------------------------------------------------------------------------- resuming


def attempt(**changes: Any) -> dict[str, Any]:
    first = {
        "started": "2026-01-01T00:00:00+00:00", "finished": None, "status": "running", "reason": "", "from_step": 0,
        "host": os.uname().nodename, "pid": os.getpid(), "process": alive.identity(),
    }  # fmt: skip
    return {**first, **changes}


def test_a_record_of_schema_1_is_read_as_one_attempt(tmp_path: Path) -> None:
    written = json.loads(
        json.dumps(asdict(record(status="failed", finished="2026-01-01T00:05:00+00:00", reason="why")))
    )
    del written["attempts"]
    (tmp_path / "run.json").write_text(json.dumps({**written, "schema": 1}))
    read = records.read_run(tmp_path)

    assert read.schema == records.SCHEMA
    assert read.attempts == (attempt(status="failed", finished="2026-01-01T00:05:00+00:00", reason="why"),)


def test_every_attempt_is_kept(tmp_path: Path) -> None:
    run, first = tmp_path / "run", record()
    records.create_run(run, first)
    records.finish_run(
        run, first, status="stopped", finished="f1", totals={"checkpoints": 1}, reason="stopped by SIGUSR1"
    )
    second = records.resume_run(run, replace(records.read_run(run), pid=77), from_step=40, began="s2")
    assert (second.status, second.finished, second.totals, second.started) == ("running", None, {}, first.started)
    third = records.resume_run(run, replace(records.read_run(run), pid=78), from_step=60, began="s3")
    records.finish_run(run, third, status="done", finished="f3", totals={"samples_per_s": 5.0})
    final = records.read_run(run)

    assert list(final.attempts) == [
        attempt(finished="f1", status="stopped", reason="stopped by SIGUSR1"),
        attempt(started="s2", status="incomplete", reason="its process was gone", from_step=40, pid=77),
        attempt(started="s3", finished="f3", status="done", from_step=60, pid=78),
    ]
    assert (final.status, final.state(), final.pid) == ("done", "done", 78)


@pytest.mark.parametrize("torn", [0, 3])
@pytest.mark.parametrize("step", [0, 1, 10, 14, 25])
def test_step_rows_after_a_checkpoint_are_cut_off_and_the_stream_goes_on(
    tmp_path: Path, step: int, torn: int, golden: Golden
) -> None:
    writer = records.StepWriter(tmp_path, 2)
    for first in (0, 10, 20):
        writer.append({name: values for name, values in columns(10, first).items() if name != "sync_s"})
    path = tmp_path / "steps-00002.arrows"
    os.truncate(path, path.stat().st_size - torn)  # killed: no end of the stream, and perhaps a torn batch
    writer._file.close()
    if torn and step == 25:
        with golden.raises(RecordError, match="step 20.*step 25"):
            records.StepWriter(tmp_path, 2, resume_at=step)
        return
    resumed = records.StepWriter(tmp_path, 2, resume_at=step)
    assert resumed.kept is not None
    assert resumed.kept.column("step").to_pylist() == list(range(step))
    assert records.read_steps(tmp_path, 2).num_rows == step, "on the disk before the first new row"
    resumed.append(columns(7, step))
    resumed.close()
    rows = records.read_steps(tmp_path, 2)

    assert rows.column("step").to_pylist() == list(range(step + 7))
    assert rows.column("sync_s").to_pylist() == [None] * step + [1e-3] * 7
    assert [each.name for each in tmp_path.iterdir()] == ["steps-00002.arrows"], "no temporary file stays"


def test_evaluations_after_a_checkpoint_are_cut_off(tmp_path: Path, golden: Golden) -> None:
    records.truncate_epochs(tmp_path, 5)
    assert not (tmp_path / "epochs.csv").exists()
    rows = [dict.fromkeys(records.EPOCH_COLUMNS, 0) | {"steps": steps} for steps in (10, 20, 30)]
    for row in rows:
        records.append_epoch(tmp_path, row)
    whole = (tmp_path / "epochs.csv").read_text()
    with (tmp_path / "epochs.csv").open("a") as stream:
        stream.write("0,4")  # killed while it wrote

    records.truncate_epochs(tmp_path, 30)
    assert (tmp_path / "epochs.csv").read_text() == whole
    records.truncate_epochs(tmp_path, 20)
    assert (tmp_path / "epochs.csv").read_text().splitlines() == whole.splitlines()[:3]
    (tmp_path / "epochs.csv").write_text("epoch,steps\n1,many\n")
    with golden.raises(RecordError, match=r"epochs\.csv.*step 20"):
        records.truncate_epochs(tmp_path, 20)


def test_how_long_nothing_was_written(tmp_path: Path) -> None:
    (tmp_path / "run.json").touch()
    present = (tmp_path / "run.json").stat().st_mtime
    (tmp_path / "old").touch()
    os.utime(tmp_path / "old", (present - 900, present - 900))
    assert 0 <= records.silent_s(tmp_path) < 60
    os.utime(tmp_path / "run.json", (present - 100, present - 100))

    assert 100 <= records.silent_s(tmp_path) < 160
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old", "run.json"]


# ---------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "JSON"),
        ("{", "JSON"),
        ("[]", "horovod_study"),
        ('{"schema": 99}', "schema 99.*horovod_study"),
        ('{"schema": 1}', ""),
    ],
)
def test_a_damaged_record_is_named(tmp_path: Path, content: str, message: str, golden: Golden) -> None:
    (tmp_path / "run.json").write_text(content)

    with golden.raises(RecordError, match=message or None):
        records.read_run(tmp_path)


def test_a_read_only_folder_is_one_line(tmp_path: Path, golden: Golden) -> None:
    with golden.raises(RecordError, match="/proc/none/run.*--out"):
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


def test_no_runs_is_an_error_with_a_way_on(tmp_path: Path, golden: Golden) -> None:
    with golden.raises(RecordError):
        records.run_table(tmp_path)
    with pytest.raises(RecordError, match="no such directory"):
        records.run_table(tmp_path / "none")


def test_tables_are_byte_identical_and_come_back(tmp_path: Path, golden: Golden) -> None:
    import pandas as pd

    table = pd.DataFrame({"name": ["NA", "b"], "value": [0.1 + 0.2, float("nan")]})
    for name in ("one", "two"):
        records.save_tables(tmp_path / name, {"t": table}, {"d": {"x": [1, None]}})

    assert (tmp_path / "one" / "t.csv").read_bytes() == (tmp_path / "two" / "t.csv").read_bytes()
    frames, documents = records.load_tables(tmp_path / "one", ["t"], ["d"])
    pd.testing.assert_frame_equal(frames["t"], table)
    assert documents == {"d": {"x": [1, None]}}
    with golden.raises(RecordError, match=r"x\.csv.*RUNS --out"):
        records.load_tables(tmp_path / "one", ["x"], [])


def test_not_a_number_is_never_written_as_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.save_tables(tmp_path, {}, {"d": {"x": float("nan")}})
    assert not list(tmp_path.glob("*")), json.dumps([str(p) for p in tmp_path.glob("*")])


# ------------------------------------------------------------------------------------------ runs of older programs

FROZEN = Path(__file__).parent / "runs"
"""Two ranks and 30 steps, recorded by the program of each schema's time; only paths were made neutral.

That of schema 4 was captured (train --cuda-graphs, replayed on the host), the others were not.
"""


@pytest.mark.parametrize("schema", range(1, records.SCHEMA + 1))
def test_a_run_of_an_older_program_is_read(schema: int) -> None:
    run = FROZEN / f"schema-{schema}"
    written = json.loads((run / "run.json").read_text())
    assert written["schema"] == schema, "as it was written then"
    read = records.read_run(run)
    assert set(records.upgraded(written)) == set(asdict(read)), "each number adds what it has brought"
    tables = [records.read_steps(run, rank) for rank in records.step_ranks(run)]

    assert (read.schema, read.state(), len(read.attempts)) == (records.SCHEMA, "done", 1)
    assert len(tables) == 2
    for table in tables:
        assert table.schema == records.step_schema(), "what was not recorded then is null now"
        assert table.column("step").to_pylist() == list(range(30))
        assert table.column("begin_s").null_count == (30 if schema < 3 else 0)
        assert table.column("compute_s").null_count == (0 if schema == 4 else 30)
        assert table.column("forward_s").null_count == (30 if schema == 4 else 0), "compute is in its place"
        rows = table.to_pandas()
        parts = rows[[f"{lap}_s" for lap in (*LAPS, "residual")]].sum(axis=1)
        assert parts.to_numpy() == pytest.approx(rows["step_s"].to_numpy(), abs=1e-9)
        assert records.read_step_column(run / f"steps-{tables.index(table):05d}.arrows", "step_s") == pytest.approx(
            rows["step_s"].to_numpy()
        )
    timed = tables[0].to_pandas()[5:]
    assert timed["sync_s"].mean() > 0
    assert read.totals["step_s"] == pytest.approx(np.mean([table.to_pandas()["step_s"][5:].mean() for table in tables]))


@pytest.mark.slow
def test_runs_of_all_schemas_stand_in_one_analysis() -> None:
    from horovod_study.analysis.study import analyze

    runs, evaluations = records.run_table(FROZEN), records.epoch_table(FROZEN)
    found = analyze(runs, evaluations)

    assert runs["run"].tolist() == [f"schema-{number}" for number in range(1, records.SCHEMA + 1)]
    assert (runs["samples_per_s"] > 0).all()
    assert runs["timer_mode"].tolist() == ["light"] * len(runs), "the only way there was"
    assert runs["train_mse"].tolist() == pytest.approx([runs["train_mse"][0]] * len(runs), rel=1e-6), (
        "the same training"
    )
    assert evaluations["run"].nunique() == len(runs)
    assert found.points["repeats"].tolist() == [5, 1], "steps in CUDA graphs are a series of their own"
    for captured, cell in found.breakdown.groupby(found.breakdown["repeats"] == 1):
        same = runs[runs["cuda_graphs"] == captured]
        assert cell.set_index("lap")["mean_s"].drop("step").sum() == pytest.approx(same["step_s"].mean())
        assert np.isnan(cell.set_index("lap").at["compute", "mean_s"]) != captured


def test_a_run_that_is_below_two_folders_is_there_once(tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(FROZEN / "schema-1")
    once = records.found_runs(FROZEN, FROZEN / "schema-1", tmp_path)

    assert [name for _, name, _ in once] == [f"{FROZEN}/{name}" for _, name, _ in records.found_runs(FROZEN)]


def test_no_frozen_run_tells_of_the_machine_that_made_it() -> None:
    for path in FROZEN.rglob("*"):
        if path.is_file():
            assert path.stat().st_size < 10_000
            assert not {b"/work", b"/tmp"} & {word for word in (b"/work", b"/tmp") if word in path.read_bytes()}


def test_what_was_not_timed_cannot_be_taken_apart(
    tmp_path: Path, golden: Golden, capsys: pytest.CaptureFixture[str]
) -> None:
    records.create_run(tmp_path / "r", record(status="done", requested={"timer_mode": "off"}))
    assert main(["explain", "--part", "sync", str(tmp_path / "r"), "--out", str(tmp_path / "out")]) == 2
    golden(capsys.readouterr().err, "--timer-mode")


@pytest.mark.parametrize(
    "values, mean, largest",
    [
        ([1.0, 3.0], 2.0, 3.0),
        ([2.0], 2.0, 2.0),
        ([1.0, None], None, None),
        ([1.0, math.nan], None, None),
        ([], None, None),
    ],
)
def test_a_total_over_ranks_is_known_only_where_all_ranks_know_it(
    values: list[float | None], mean: float | None, largest: float | None
) -> None:
    assert over_ranks(values) == mean
    assert over_ranks(values, largest=True) == largest


def test_step_totals_take_means_of_laps_and_the_slowest_step() -> None:
    def rank(step_s: float, sync_s: float | None) -> dict[str, Any]:
        laps = {f"{lap}_s": 0.25 for lap in (*LAPS, "residual")} | {"sync_s": sync_s, "step_s": step_s}
        return {"mean": laps, "median": laps, "step_s_p90": 2 * step_s}

    totals = step_totals([rank(1.0, 0.5), rank(3.0, None)])

    assert (totals["step_s"], totals["step_s_median"], totals["step_s_p90"]) == (2.0, 3.0, 6.0)
    assert totals["sync_s"] is None and totals["lap_medians_s"]["sync"] is None
    assert totals["forward_s"] == totals["lap_medians_s"]["forward"] == 0.25


@pytest.mark.parametrize(("told", "lost"), [([0, 7, 3], 10), (4, 4), (None, 0)])
def test_lost_rows_are_those_of_all_ranks(told: Any, lost: int) -> None:
    assert records.rows_lost(make.records.record(totals={"rows_lost": told})) == lost


@pytest.mark.parametrize(("status", "known"), [("done", {"steps-00000.arrows"}), ("failed", set())])
def test_only_a_run_that_is_done_has_digests(tmp_path: Path, status: str, known: set[str]) -> None:
    """What a failed run leaves may still be changed: it can be resumed."""
    begun = make.records.record()
    records.create_run(tmp_path / "run", begun)
    make.records.write_rows(tmp_path / "run", {0: {"step": [0]}})
    ended = records.finish_run(tmp_path / "run", begun, status=status, finished=make.records.FINISHED, totals={})

    assert set(ended.files) == known
    assert (ended.digest != "") == bool(known)
