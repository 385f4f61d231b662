"""A run that goes on, as `status RUN` shows it: known rows in, numbers and a page out."""

import json
import os
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make.rank_rows import rows_of
from make.records import FINISHED, record, write_rows
from make.wording import Golden
from rich.console import Console

from horovod_study import cli
from horovod_study.records import create_run, finish_run, read_run
from horovod_study.studies import plan as watch
from horovod_study.studies.plan import RECENT_STEPS, run_now, run_view

LATE_S = 5e-3
STEPS = 3 * RECENT_STEPS


def running(folder: Path, *, ranks: int = 3, visible: bool = True, name: str = "2w", own: Any = None) -> Path:
    """Write a run whose rank 1 takes 5 ms longer in backward, but only in the recent steps."""
    directory = folder / name
    places = [{"rank": rank, "host": f"node{rank}"} for rank in range(ranks)]
    create_run(directory, record(effective={"workers": ranks, "ranks": places}))
    late = np.zeros((STEPS, ranks))
    late[-RECENT_STEPS:, min(1, ranks - 1)] = LATE_S
    own = np.full((STEPS, ranks), 10e-3) if own is None else own
    write_rows(directory, rows_of(own, extra_s={"backward": late}, visible=visible))
    return directory


def test_the_recent_steps_name_rank_lateness_and_wait(tmp_path: Path) -> None:
    now = run_now(running(tmp_path))
    slowest = now["ranks"][1]

    assert now["status"] == "running" and now["steps"] == STEPS and now["slowest_rank"] == 1
    assert (slowest["rank"], slowest["host"]) == (1, "node1")
    assert slowest["late_s"] == pytest.approx(LATE_S, rel=1e-6)
    step_s = 10e-3 + LATE_S + 2e-4  # own work, the late rank's, the transfer
    assert now["steps_per_s"] == pytest.approx(1 / step_s, rel=0.01)
    assert now["samples_per_s"] == pytest.approx(3 * 75 / step_s, rel=0.01)
    assert now["wait_share"] == pytest.approx((2 * LATE_S / 3 + 2e-4) / step_s, rel=0.01)


def test_what_nobody_saw_is_unknown(tmp_path: Path) -> None:
    hidden, alone = run_now(running(tmp_path, visible=False)), run_now(running(tmp_path, ranks=1, name="1w"))

    assert hidden["wait_share"] is None and hidden["slowest_rank"] is None and hidden["steps_per_s"] is not None
    assert alone["slowest_rank"] is None
    empty = tmp_path / "empty"
    create_run(empty, record(effective={"workers": 2}))
    assert run_now(empty)["steps"] == 0 and run_now(empty)["steps_per_s"] is None


def test_rows_that_are_being_written_are_read_up_to_the_last_batch(tmp_path: Path) -> None:
    directory = running(tmp_path)
    path = directory / "steps-00001.arrows"
    path.write_bytes(path.read_bytes() + b"\xff\xff\xff\xff\x10\x00")

    assert run_now(directory)["steps"] == STEPS


def test_it_is_watched_until_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, out, rests = running(tmp_path), StringIO(), []

    def rest(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 2:
            finish_run(directory, read_run(directory), status="done", finished=FINISHED, totals={}, reason="")

    monkeypatch.setattr(watch, "sleep", rest)
    assert watch.watch(partial(run_view, directory), Console(file=out, width=200)) == 0
    assert len(rests) == 2, "it looks once more after the end"
    shown = out.getvalue().splitlines()
    assert [line.partition(":")[0] for line in shown] == ["2w", "2w"], "a log has a line for what has changed"
    assert shown[0].startswith("2w: running") and shown[1].startswith("2w: done")
    assert "1 on node1" in shown[0] and "5.00 ms" in shown[0]


def test_a_silent_run_is_shown_with_that_and_the_slowest_rank_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch.records, "silent_s", lambda directory: 90.0)
    directory = running(tmp_path, ranks=40)
    lines = run_view(directory).lines

    assert lines[0].rstrip() == "2w: running, nothing was written for 90 s"
    first = next(place for place, line in enumerate(lines) if line.startswith("rank")) + 1
    assert lines[first].split() == ["1", "15.20", "0.20", "5.00", "node1"]
    finish_run(directory, read_run(directory), status="done", finished=FINISHED, totals={}, reason="")
    assert run_view(directory).lines[0] == "2w: done"


def test_a_command_is_known_by_what_its_ranks_have_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are written when it has ended; before that, notes of its ranks say how far it is."""
    directory = tmp_path / "2w"
    create_run(directory, record(effective={"workers": 2}, requested={"steps": 400, "warmup_steps": 0}))
    for path in directory.iterdir():
        os.utime(path, (0, 0))
    assert run_now(directory)["silent_s"] > 1000
    notes = tmp_path / ".2w.abc.part"
    notes.mkdir()
    (notes / "events").touch()
    begin = 0.1 * np.arange(100)
    columns = {"step_s": np.full(100, 0.1), "sync_s": np.zeros(100), "begin_s": begin, "samples": np.full(100, 8)}
    monkeypatch.setattr(watch, "noted_steps", lambda out: dict.fromkeys((0, 1), columns | {"epoch": np.zeros(100)}))

    now = run_now(directory)
    assert now["silent_s"] < 100 and now["steps"] == 100
    assert now["steps_per_s"] == pytest.approx(10) and now["samples_per_s"] == pytest.approx(160)
    assert run_view(directory).lines[1] == "100 of 400 steps, 25 %"


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = running(tmp_path)

    assert cli.main(["status", str(directory)]) == 0
    assert "node1" in capsys.readouterr().out
    assert cli.main(["status", str(directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["slowest_rank"] == 1


def test_a_run_without_a_step_yet_says_how_far_its_command_has_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    meeting = tmp_path / ".2w.abc.part"
    meeting.mkdir()
    assert cli.main(["status", str(tmp_path / "2w")]) == 2
    golden(capsys.readouterr().err)
    for process in ("1", "2"):
        (meeting / f"{process}.facts").write_text('["seen", "torch"]\n')
    assert cli.main(["status", str(tmp_path / "2w"), "--watch"]) == 2
    golden(capsys.readouterr().err, "2 processes")
