"""A run that goes on, as `status RUN` shows it: known rows in, numbers, a page and OpenMetrics out."""

import json
import re
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
from horovod_study.studies import progress
from horovod_study.studies.live import RECENT_STEPS, look, open_metrics, watch_run

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
    view = look(running(tmp_path))

    assert view.steps == STEPS and view.getting.text == f"{STEPS:,} steps"
    assert view.slowest is not None
    assert (view.slowest.rank, view.slowest.host) == (1, "node1")
    assert view.slowest.late_s == pytest.approx(LATE_S, rel=1e-6)
    step_s = 10e-3 + LATE_S + 2e-4  # own work, the late rank's, the transfer
    assert view.steps_per_s == pytest.approx(1 / step_s, rel=0.01)
    assert view.samples_per_s == pytest.approx(3 * 75 / step_s, rel=0.01)
    assert view.wait_share == pytest.approx((2 * LATE_S / 3 + 2e-4) / step_s, rel=0.01)


def test_what_nobody_saw_is_unknown(tmp_path: Path) -> None:
    hidden, alone = look(running(tmp_path, visible=False)), look(running(tmp_path, ranks=1, name="1w"))

    assert hidden.wait_share is None and hidden.slowest is None and hidden.steps_per_s is not None
    assert alone.slowest is None
    empty = tmp_path / "empty"
    create_run(empty, record(effective={"workers": 2}))
    assert look(empty).steps == 0 and look(empty).steps_per_s is None


def test_rows_that_are_being_written_are_read_up_to_the_last_batch(tmp_path: Path) -> None:
    directory = running(tmp_path)
    path = directory / "steps-00001.arrows"
    path.write_bytes(path.read_bytes() + b"\xff\xff\xff\xff\x10\x00")

    assert look(directory).steps == STEPS


def test_it_is_watched_until_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, out, rests = running(tmp_path), StringIO(), []

    def rest(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 2:
            finish_run(directory, read_run(directory), status="done", finished=FINISHED, totals={}, reason="")

    monkeypatch.setattr(progress, "sleep", rest)
    assert watch_run(directory, Console(file=out, width=200)) == 0
    assert len(rests) == 2, "it looks once more after the end"
    shown = out.getvalue().splitlines()
    assert [line.partition(":")[0] for line in shown] == ["running", "done"], "a log has a line for what has changed"
    assert "1 on node1" in shown[0] and "5.00 ms" in shown[0]


_SAMPLE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (\S+)')


def parsed(text: str) -> dict[str, list[tuple[str, float]]]:
    """Return family -> samples of an OpenMetrics text, by the rules of its specification."""
    assert text.endswith("# EOF\n") and text.count("# EOF") == 1
    families: dict[str, list[tuple[str, float]]] = {}
    family = kind = ""
    for line in text.splitlines()[:-1]:
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert family not in families and kind in ("counter", "gauge"), "one block for each family"
            families[family] = []
        elif line.startswith("# UNIT "):
            assert line.split(" ")[2] == family and family.endswith("_" + line.split(" ")[3]), "a name ends in its unit"
        elif line.startswith("# HELP "):
            assert line.split(" ")[2] == family
        else:
            found = _SAMPLE.fullmatch(line)
            assert found, line
            assert found[1] == family + ("_total" if kind == "counter" else "")
            families[family].append((found[2], float(found[3])))
    return families


def test_open_metrics_are_as_their_specification_says(tmp_path: Path, golden: Golden) -> None:
    directory = running(tmp_path, name='odd "name" \\ of\na run')
    families = parsed(open_metrics(look(directory), directory))

    assert families["horovod_study_steps"][0][1] == STEPS
    assert [value for _, value in families["horovod_study_late_seconds"]] == pytest.approx(
        [-LATE_S / 2, LATE_S, -LATE_S / 2]
    )
    golden(families["horovod_study_steps"][0][0], 'run="odd')
    unseen = running(tmp_path, visible=False)
    assert parsed(open_metrics(look(unseen), unseen))["horovod_study_wait_ratio"] == [], "what is unknown has no sample"


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory, metrics = running(tmp_path), tmp_path / "job.prom"

    assert cli.main(["status", str(directory), "--openmetrics", str(metrics)]) == 0
    assert "node1" in capsys.readouterr().out
    assert parsed(metrics.read_text())["horovod_study_steps"]
    assert not list(tmp_path.glob("*.prom?*")), "nothing is left beside the file"
    assert cli.main(["status", str(directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["slowest_rank"] == 1
    assert cli.main(["status", str(tmp_path / "no.yaml"), "--openmetrics", str(metrics)]) == 2


def test_a_run_without_a_step_yet_says_how_far_its_command_has_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    meeting = tmp_path / ".2w.abc.record"
    meeting.mkdir()
    assert cli.main(["status", str(tmp_path / "2w")]) == 2
    golden(capsys.readouterr().err)
    (meeting / "seen").write_text('["torch", ""]\n["torch", ""]\n')
    assert cli.main(["status", str(tmp_path / "2w"), "--watch"]) == 2
    golden(capsys.readouterr().err, "2 processes")
