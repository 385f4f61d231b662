"""One run in detail: what the verb prints and writes, finished or killed, and what it refuses in one line."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import make.records
import numpy as np
import pytest
from make.rank_rows import noise, rows_of
from make.wording import Golden

from horovod_study import cli, records
from horovod_study.analysis.steps.explanation import Inspection, inspect
from horovod_study.analysis.steps.rank_steps import align
from horovod_study.errors import AnalysisError, RecordError
from horovod_study.records import finite
from horovod_study.report.terminal import headline, result_lines

EFFECTIVE = {
    "backend": "horovod",
    "transport": "mpi",
    "reduction": "flat",
    "batch": 75,
    "device": "cpu",
    "warmup_steps": 50,
    "steps_per_epoch": 100,
    "timer_mode": {"value": "light", "note": ""},
}


def recorded(
    directory: Path,
    rows: Mapping[int, Mapping[str, Any]],
    *,
    workers: int | None = None,
    status: str = "done",
    totals: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Write a run with these rows and return its directory."""
    ranks = len(rows) if workers is None else workers
    record = make.records.record(
        study="test",
        key=directory.name,
        started="2026-03-14T09:26:53+00:00",
        host="node0",
        requested={"workers": ranks, "evaluate_every": 1.0, "system_interval_s": 1.0},
        effective={
            **EFFECTIVE,
            "workers": ranks,
            "ranks": [{"host": f"node{rank}"} for rank in range(ranks)],
            **changes,
        },
    )
    records.create_run(directory, record)
    known = {
        rank: {name: np.ma.masked_invalid(values) for name, values in columns.items()} for rank, columns in rows.items()
    }
    make.records.write_rows(directory, known)
    if status != "running":
        records.finish_run(
            directory, record, status=status, finished="2026-03-14T09:36:53+00:00", totals=totals or {}, reason=""
        )
    return directory


def slow_rows(steps: int = 400, ranks: int = 2, **how: Any) -> dict[int, dict[str, Any]]:
    """Return rows in which rank 1 sleeps 5 ms."""
    extra = np.where(np.arange(ranks) == 1, 5e-3, 0.0) * np.ones((steps, 1))
    return rows_of(noise(1, steps, ranks), extra_s={"data": extra}, per_epoch=100, **how)


def seen(directory: Path) -> Inspection:
    return inspect(records.recorded_run(directory), records.run_side_files(directory))


# ----------------------------------------------------------------------------------------------------- what is said


def test_a_run_is_told_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    run = recorded(tmp_path / "run", slow_rows(), totals={"samples_per_s": 18_000.0})
    assert cli.main(["explain", "--part", "steps", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    text = " ".join(" ".join(lines).split())
    golden(lines[0], "2 workers", "Horovod/MPI", "2 hosts", "batch 75", "18,000")
    golden(text, "350 steps", "step 50", "node1", "100 %", "50 %", "5.0")
    assert "Parallel efficiency" in text
    head = next(line for line in lines if line.startswith("  rank"))
    assert head.split("  ")[1:][0] == "rank"
    assert head.split() == [
        *("rank", "host", "data", "forward", "backward", "sync", "update", "unexplained", "step", "own", "wait")
    ]
    values = {line.split()[0]: line.split() for line in lines if line.startswith(("  0 ", "  1 "))}
    assert values["1"][1] == "node1"
    assert float(values["1"][2]) - float(values["0"][2]) == pytest.approx(5, abs=0.02)
    assert values["0"][8] == values["1"][8]  # the steps are equally long


def test_equal_ranks_are_said_to_be_equal(tmp_path: Path, golden: Golden) -> None:
    found = seen(recorded(tmp_path / "run", rows_of(noise(1, 400, 2))))
    text = " ".join(result_lines(found))
    golden(text, f"{found.stragglers.resolution_s * 1e3:.3f}")


def test_ranks_whose_laps_make_up_for_each_other_are_told(tmp_path: Path) -> None:
    more = np.ones((400, 1)) * 5e-3
    rows = rows_of(noise(1, 400, 2), extra_s={"forward": more * [0, 1], "data": more * [1.1, 0]}, per_epoch=100)
    found = seen(recorded(tmp_path / "run", rows))
    text = " ".join(" ".join(result_lines(found)).split())
    assert found.stragglers.slow == ()
    assert re.search(r"Rank 1 on node1 takes [45]\.\d+ .* ms longer .* forward, and 5\.\d+ ms less", text)


def test_all_ranks_of_a_host_are_a_host(tmp_path: Path, golden: Golden) -> None:
    extra = np.where(np.arange(4) >= 2, 5e-3, 0.0) * np.ones((300, 1))
    hosts = [{"host": f"node{rank // 2}"} for rank in range(4)]
    run = recorded(tmp_path / "run", rows_of(noise(1, 300, 4), extra_s={"forward": extra}), ranks=hosts)
    text = " ".join(result_lines(seen(run)))
    golden(text, "node1")


@pytest.mark.slow
def test_json_has_every_number(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    run, out = recorded(tmp_path / "run", slow_rows()), tmp_path / "out"
    assert cli.main(["explain", "--part", "steps", str(run), "--json", "--out", str(out)]) == 0
    printed = json.loads(capsys.readouterr().out)
    files = printed.pop("files")
    assert printed == json.loads((out / "inspect.json").read_text())
    assert printed["stragglers"]["slow"] == [1]
    assert printed["stragglers"]["ranks"][1]["cause"] == "data"
    assert printed["window"] == {"first_step": 50, "by": "declared as warm-up", "excluded": 50, "steps": 350}
    assert set(printed["ranks"][0]["laps_s"]) == {
        *("data", "compute", "forward", "backward", "sync", "update", "residual")
    }
    assert printed["pop"]["parallel"] < 1
    names = [Path(path).name for path in files]
    assert names == ["inspect.json", "inspect.txt"]
    assert all(Path(path).stat().st_size for path in files)
    golden((out / "inspect.txt").read_text())


def test_one_worker_has_no_stragglers_but_all_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    rows = rows_of(noise(1, 300, 1), transfer_s=0.0)
    run, out = recorded(tmp_path / "run", rows, backend="serial", transport="none"), tmp_path / "out"
    assert cli.main(["explain", "--part", "steps", str(run), "--out", str(out)]) == 0
    text = capsys.readouterr().out
    golden(text)
    assert sorted(path.name for path in out.iterdir()) == ["inspect.json", "inspect.txt"]


def test_stalls_are_told(tmp_path: Path, golden: Golden) -> None:
    extra = np.zeros((3000, 2))
    extra[512::512] = 60e-3
    found = seen(recorded(tmp_path / "run", rows_of(noise(1, 3000, 2), extra_s={"residual": extra})))
    golden.line(result_lines(found), "Stalls")
    assert finite(found)["stalls"]["count"] == 5


# -------------------------------------------------------------------------------------------- runs that are incomplete


def test_a_killed_rank_is_said_and_the_others_are_compared(tmp_path: Path, golden: Golden) -> None:
    rows = slow_rows(ranks=3)
    rows[2] = {name: values[:150] for name, values in rows[2].items()}
    run = recorded(tmp_path / "run", rows, status="failed")
    found = seen(run)
    assert found.stragglers.slow == (1,)
    golden(found.doubts, "rank 2", "250 steps", "100 steps")
    golden(result_lines(found))


def test_a_torn_file_and_a_missing_rank(tmp_path: Path, golden: Golden) -> None:
    run = recorded(tmp_path / "run", slow_rows(ranks=3), workers=4, status="stopped")
    (run / "steps-00002.arrows").write_bytes(b"")
    found = seen(run)
    assert found.stragglers.slow == (1,)
    assert [each.rank for each in found.ranks] == [0, 1]
    golden(found.doubts[1:], "rank 2", "rank 3")


def test_a_run_that_ended_in_its_warm_up_is_looked_at_all_the_same(tmp_path: Path, golden: Golden) -> None:
    rows = {rank: {name: values[:40] for name, values in columns.items()} for rank, columns in slow_rows().items()}
    found = seen(recorded(tmp_path / "run", rows, status="failed"))
    assert found.stragglers.slow == (1,)
    assert [found.window[name] for name in ("first_step", "excluded", "steps")] == [0, 0, 40]
    golden(found.doubts[1], "step 50")


def test_lost_rows_and_doubts_about_the_steady_state_are_passed_on(tmp_path: Path, golden: Golden) -> None:
    totals = {"rows_lost": [0, 20], "steady": {"step": 120, "found_by": "change-point", "doubt": "it drifts"}}
    found = seen(recorded(tmp_path / "run", slow_rows(), totals=totals))
    assert (found.window["first_step"], found.window["excluded"]) == (120, 120)
    golden(found.doubts, "20 rows", "it drifts")
    assert finite(found)["rows_lost"] == [0, 20]


def test_what_cannot_be_looked_at_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    empty = recorded(tmp_path / "empty", {}, workers=2, status="failed")
    untimed = slow_rows()
    for columns in untimed.values():
        for name in columns:
            if name.endswith("_s"):
                columns[name] = np.full(400, np.nan)
    off = recorded(tmp_path / "off", untimed)
    for directory, text in (
        (
            empty,
            "holds no step rows (rank 0 has no file of steps; rank 1 has no file of steps); name a run that made steps",
        ),
        (off, "its steps were not timed (--timer-mode off); record it again with --timer-mode light"),
        (tmp_path / "none", None),
    ):
        assert cli.main(["explain", "--part", "steps", str(directory)]) == 2
        said = capsys.readouterr().err
        expected = f"{directory}: {text}" if text else (f"{directory / 'run.json'}: no such file; name a run directory")
        assert said == f"error: {expected}\n"
    with golden.raises(RecordError, match=f"{empty.name}"):
        records.read_run(tmp_path)


def test_laps_that_do_not_add_up_are_said(tmp_path: Path, golden: Golden) -> None:
    rows = slow_rows()
    rows[1]["step_s"] = rows[1]["step_s"].copy()
    rows[1]["step_s"][200] *= 1.05
    text = " ".join(result_lines(seen(recorded(tmp_path / "run", rows))))
    golden(text, "4.8 %", "rank 1")


def test_a_script_without_laps_has_steps(tmp_path: Path, golden: Golden) -> None:
    rows = slow_rows()
    for columns in rows.values():
        for lap in ("data", "forward", "backward", "update", "sync", "residual"):
            columns[f"{lap}_s"] = np.full(400, np.nan)
    found = seen(recorded(tmp_path / "run", rows))
    text = " ".join(result_lines(found))
    golden(text)


def test_other_recordings_are_named(tmp_path: Path, golden: Golden) -> None:
    run = recorded(tmp_path / "run", slow_rows())
    (run / "timeline.json").write_text("[]")
    (run / "profile").mkdir()
    (run / "profile" / "torch-00000.txt").write_text("table")
    found = seen(run)
    text = "\n".join(result_lines(found))
    golden(" ".join(text.split()), "--part", run)  # lines break by the length of the path
    assert "torch-00000.txt" in text
    assert finite(found)["recorded_beside"] == {
        "timeline": [str(run / "timeline.json")],
        "profile": [str(run / "profile" / "torch-00000.txt")],
    }
    golden(found.system["why_not"])


def test_damaged_system_samples_are_left_out_with_the_reason(tmp_path: Path, golden: Golden) -> None:
    run = recorded(tmp_path / "run", slow_rows())
    (run / "system-node0.arrows").write_bytes(b"nothing")
    found = seen(run)
    assert found.system["rows"] == []
    golden(found.system["why_not"])
    golden(found.doubts)


def test_many_ranks_are_printed_in_part(tmp_path: Path, golden: Golden) -> None:
    found = seen(recorded(tmp_path / "run", slow_rows(150, 40)))
    lines = result_lines(found)
    golden.line(lines, "16", "40 ranks")
    assert any(line.split()[:2] == ["1", "node1"] for line in lines)


def test_nothing_is_read_from_a_run_that_is_not_there(golden: Golden) -> None:
    with golden.raises(AnalysisError, match="1 recorded"):
        align({}, workers=2)


def test_the_headline_of_one_host(tmp_path: Path, golden: Golden) -> None:
    run = recorded(tmp_path / "run", slow_rows(), ranks=[{"host": "vm"}, {"host": "vm"}])
    golden(headline(seen(run)), "2 workers", "Horovod/MPI", "batch 75", "2026-03-14T09:26:53+00:00")
