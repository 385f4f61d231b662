"""The page of `explain`: planted causes come out of it, what is unknown is said, and its commands can be typed."""

import json
import math
import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from make import synthetic_study
from make.rank_rows import noise, rows_of
from make.wording import Golden
from test_inspection import EFFECTIVE, recorded

from horovod_study import api, cli, records
from horovod_study.analysis.steps.explanation import Explanation, Help, explain
from horovod_study.records import tables
from horovod_study.report.figures import catalogue
from horovod_study.report.page import html
from horovod_study.report.terminal import page

TOTALS = {"samples_per_s": 18_000.0}


def explained(*places: Path) -> Explanation:
    return explain(*records.recorded_runs(places))


def of(found: Explanation, name: str) -> Help:
    """Return what a rule says."""
    (each,) = [each for each in found.help if each.name == name]
    return each


def late_rank(directory: Path, *, lap: str = "backward", ranks: int = 8, late: int = 3, extra_s: float = 5e-3) -> Path:
    extra = np.where(np.arange(ranks) == late, extra_s, 0.0) * np.ones((400, 1))
    rows = rows_of(noise(1, 400, ranks), extra_s={lap: extra}, per_epoch=100)
    return recorded(directory, rows, totals=TOTALS, ranks=[{"host": f"node{rank // 4}"} for rank in range(ranks)])


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_study.write_study(
        tmp_path_factory.mktemp("explained") / "runs", workers=(1, 2, 4, 8), steps=150, warmup=30, repeats=3
    )


# ------------------------------------------------------------------------------------------------------ known answers


@pytest.mark.slow
@pytest.mark.parametrize(("lap", "ranks", "late"), [("backward", 8, 3), ("data", 2, 1)])
def test_a_late_rank_is_told_with_what_it_costs(tmp_path: Path, lap: str, ranks: int, late: int) -> None:
    """A rank that needs 5 ms more makes the step 5 ms longer, but for what the others lose by chance."""
    found = explained(late_rank(tmp_path / "run", lap=lap, ranks=ranks, late=late))

    (slow,) = found.slow
    (rank,) = slow.ranks
    assert (rank.rank, rank.host, rank.cause) == (late, f"node{late // 4}", lap)
    assert rank.low_s < 5e-3 < rank.high_s and rank.last_share == 1.0
    assert slow.chance == 1 / ranks
    assert 4.7e-3 < slow.delay_s <= 5.05e-3
    first = of(found, "late rank")
    assert first.kind == "about" and first.gain is not None
    assert first.gain.value == pytest.approx(slow.delay_s / (slow.period_s - slow.delay_s))
    assert shlex.split(first.command)[1:] == ["explain", str(tmp_path / "run"), "--part", "steps"]


def test_what_the_others_wait_for_a_late_rank_has_an_interval(tmp_path: Path) -> None:
    found = explained(late_rank(tmp_path / "run", lap="data", ranks=3, late=1))

    (slow,) = found.slow
    assert slow.delay_low_s is not None and slow.delay_high_s is not None
    assert slow.delay_low_s < slow.delay_s < slow.delay_high_s < 5.1e-3
    gain = of(found, "late rank").gain
    assert gain is not None and gain.low < gain.value < gain.high
    text = " ".join("\n".join(page(found)).split())
    assert re.search(r"the other ranks wait for that: [\d.]+ \[[\d.]+, [\d.]+\] ms, \d+ % of the step", text)


def foreign(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    workers: int = 2,
    wait_s: float = 2e-4,
    model: str = "Net",
    late_s: float = 0.0,
    **more_s: np.ndarray,
) -> Path:
    """Write a run of another script, recorded by a command: its ranks average for `wait_s`, the first one is late.

    `more_s`: lap -> what all ranks have more in it, (400, 1).
    """
    monkeypatch.delitem(EFFECTIVE, "steps_per_epoch", raising=False)
    extra = {"residual": np.where(np.arange(workers) == 0, late_s, 0.0) * np.ones((400, 1))} | more_s
    rows = rows_of(noise(1, 400, workers), transfer_s=wait_s, per_epoch=100, extra_s=extra)
    return recorded(
        directory, rows, totals=TOTALS, model=model, parameters=10, backend="ddp", transport="gloo", device="cpu"
    )


def test_what_another_script_can_do_about_its_communication_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = explained(foreign(tmp_path / "run", monkeypatch, wait_s=20e-3))

    (cell,) = found.cells
    assert cell.exposed_s is not None
    first = of(found, "communication")
    assert "no_sync" in first.what and first.kind == "at most" and first.gain is not None
    assert first.gain.value == pytest.approx(cell.exposed_s.value / (cell.step_s - cell.exposed_s.value))
    assert "Nothing stands out" not in "\n".join(page(found))


def test_the_time_of_a_late_rank_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = explained(foreign(tmp_path / "run", monkeypatch, wait_s=2e-3, model="FSDPNet", late_s=5e-3))
    told = [each.what for each in found.help if each.name != "outside"]

    assert found.cells[0].parts_s["residual"] > 0.2 * found.cells[0].step_s
    assert not any("outside all laps" in each for each in told)
    assert "rank 0" in told[0]
    assert sum("reshard_after_forward" in each for each in told) == 1


def test_the_command_for_a_missing_baseline_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    table, runs = records.recorded_runs((foreign(tmp_path / "2w", monkeypatch),))
    typed = "horovod-study record --out r/2w -- torchrun --nproc-per-node 2 t.py"
    found = explain(table.assign(typed=typed, typed_in="/a"), runs)

    (told,) = [each for each in found.help if "--nproc-per-node" in each.command]
    golden(told.command, "--out r/1w", "--nproc-per-node", "t.py")
    assert "/a" in told.what


def test_even_ranks_are_not_called_slow(tmp_path: Path) -> None:
    found = explained(recorded(tmp_path / "run", rows_of(noise(1, 400, 4)), totals=TOTALS))

    (slow,) = found.slow
    assert slow.ranks == () and slow.delay_s == 0.0 and slow.why_not == ""
    assert slow.resolution_s is not None and 0 < slow.resolution_s < 1e-3
    assert "No rank is late" in "\n".join(page(found))


def test_exposed_communication_is_what_is_not_waiting(tmp_path: Path) -> None:
    """The collective takes 0.2 ms after the last rank; the rest of sync is the wait for it."""
    found = explained(late_rank(tmp_path / "run"))

    (cell,) = found.cells
    assert cell.exposed_s is not None and cell.waiting_s is not None
    assert cell.exposed_s.value == pytest.approx(2e-4, rel=1e-6)
    sync = cell.parts_s["sync"]
    assert sync is not None and cell.exposed_s.value + cell.waiting_s.value == pytest.approx(sync, rel=1e-2)
    assert sum(value for value in cell.parts_s.values() if value) == pytest.approx(cell.step_s)


@pytest.mark.slow
def test_what_more_workers_add_is_the_growth_of_the_parts(study: Path) -> None:
    found = explained(study)

    assert {each.series for each in found.growth} == {cell.series for cell in found.last if cell.workers > 1}
    for growth in found.growth:
        parts = [value for value in growth.parts_s.values() if value is not None]
        assert growth.workers == 8 and sum(parts) == pytest.approx(growth.step_s.value)
        assert growth.step_s.low < growth.step_s.value < growth.step_s.high
        assert max(growth.parts_s, key=lambda part: growth.parts_s[part] or 0.0) == "sync"
    for cell in found.last:
        assert cell.efficiency is not None and (cell.efficiency < 1 or cell.workers == 1)


@pytest.mark.slow
def test_gains_come_in_order_and_the_quicker_of_two_libraries_is_named(study: Path) -> None:
    found = explained(study)
    rates = {cell.series: cell.samples_per_s or 0.0 for cell in found.last if cell.workers > 1}

    measured = next(each for each in found.help if each.kind == "measured")
    assert measured.gain is not None
    assert measured.gain.value == pytest.approx(max(rates.values()) / min(rates.values()) - 1)
    parts = [each for each in found.help if each.name not in ("outside", "stalls", "threads")]
    sure = [each.gain.value for each in parts if each.gain is not None and each.kind == "at most"]
    assert sure == sorted(sure, reverse=True)


# ------------------------------------------------------------------------------------------------ unknown is said


def test_what_cannot_be_seen_is_unknown(tmp_path: Path) -> None:
    found = explained(recorded(tmp_path / "run", rows_of(noise(1, 400, 2), visible=False), totals=TOTALS))

    (cell,) = found.cells
    assert cell.exposed_s is None and cell.waiting_s is None and cell.parts_s["sync"] is None
    assert "backward" in cell.why_not
    text = "\n".join(page(found))
    assert "unknown" in text and "--measure-ablation" in text


@pytest.mark.parametrize("often", [0.7, 1.0])
def test_a_rank_that_is_only_held_up_at_times_is_told_so(often: float, tmp_path: Path) -> None:
    held_up = np.where(np.arange(400) % 10 < 10 * often, 5e-3, 0.0)[:, None] * [0, 1]
    found = explained(
        recorded(tmp_path / "run", rows_of(noise(1, 400, 2), extra_s={"backward": held_up}), totals=TOTALS)
    )

    ((rank,),) = (each.ranks for each in found.slow)
    assert rank.rank == 1 and (rank.quickest_s < 1e-3) == (often < 1)
    assert ("quickest steps are not late" in " ".join("\n".join(page(found)).split())) == (often < 1)


def test_a_rank_that_is_longer_in_one_lap_and_shorter_in_another_is_told_with_both(tmp_path: Path) -> None:
    more = np.ones((400, 1)) * 5e-3
    rows = rows_of(noise(1, 400, 2), extra_s={"forward": more * [0, 1], "data": more * [1.1, 0]}, per_epoch=100)
    found = explained(recorded(tmp_path / "run", rows, totals=TOTALS))

    (slow,) = found.slow
    assert slow.ranks == () and {each.rank: each.cause for each in slow.balanced} == {1: "forward", 0: "data"}
    text = " ".join("\n".join(page(found)).split())
    assert re.search(r"Rank 1 on node1 takes [45]\.\d+ .* ms longer .* forward, and 5\.\d+ ms less", text)


def test_one_worker_waits_for_nobody(study: Path) -> None:
    alone = next(path for path in sorted(study.iterdir()) if path.name.startswith("alpha-serial"))
    found = explained(alone)

    assert found.slow == () and found.growth == () and found.why_no_growth
    assert {each.kind for each in found.help} <= {"at most", ""}
    assert not any("tune" in each.command or "run" in shlex.split(each.command) for each in found.help)


def test_a_run_that_is_not_finished_is_explained_with_its_state(tmp_path: Path) -> None:
    found = explained(recorded(tmp_path / "run", rows_of(noise(1, 400, 2)), status="running"))

    assert dict(found.states) == {"running": 1}
    (cell,) = found.cells
    assert cell.samples_per_s is None and cell.exposed_s is None and cell.step_s > 0
    assert found.doubts


def test_a_run_without_steps_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = recorded(tmp_path / "run", rows_of(noise(1, 400, 2)))
    for path in directory.glob("steps-*"):
        path.unlink()

    assert cli.main(["explain", str(directory)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1


# --------------------------------------------------------------------------------------------------------- the page


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("case", ["study", "slow"])
def test_the_page_is_one_page(study: Path, tmp_path: Path, case: str, width: int) -> None:
    lines = page(explained(study if case == "study" else late_rank(tmp_path / "run")), width=width)

    titles = [line for line in lines if line and not line.startswith(" ")][1:]
    assert [title.split()[0] for title in titles] == ["Where", "Who", "What", "What", "What"]
    assert len(lines) <= (50 if width == 100 else 60)
    table = [line for line in lines if line.startswith("  ") and "  " in line.strip()]
    assert all(len(line) <= width for line in lines if line not in table and "horovod-study" not in line)
    assert all(len(line) <= 100 for line in table)
    assert all(ord(letter) < 0x2000 or letter in "\u2013\u2212" for line in lines for letter in line)


@pytest.mark.slow
def test_every_command_of_the_page_can_be_typed(study: Path, tmp_path: Path) -> None:
    hidden = recorded(tmp_path / "hidden", rows_of(noise(1, 400, 2), visible=False), totals=TOTALS)
    flat = recorded(tmp_path / "flat", rows_of(noise(1, 400, 2)), totals=TOTALS, ranks=[{"host": "a"}] * 2)
    commands = [
        each.command
        for place in (study, late_rank(tmp_path / "late"), hidden, flat)
        for each in explained(place).help
        if each.command
    ]

    assert {shlex.split(each)[1] for each in commands} >= {"explain", "run", "bench"}
    for each in commands:
        words = shlex.split(each.removeprefix("... "))
        words = ["strain", "train", *words[3:]] if words[0] == "python" else words[1:]
        cli.command_line().parse_strictly(words)


def test_the_document_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = late_rank(tmp_path / "run"), tmp_path / "out"
    assert cli.main(["explain", str(run), "--json", "--out", str(out)]) == 0
    told = json.loads(capsys.readouterr().out)

    assert told.pop("files") == [str(out / name) for name in ("explanation.txt", "explanation.json")]
    assert told == json.loads((out / "explanation.json").read_text())
    assert set(told) == {
        *("names", "states", "hosts", "steps", "steps_most", "cells", "slow", "growth", "why_no_growth", "help"),
        "doubts",
    }
    assert told["slow"][0]["ranks"][0]["rank"] == 3
    assert told["cells"][0]["exposed_s"]["value"] == pytest.approx(2e-4, rel=1e-6)
    assert set(told["help"][0]) == {"what", "name", "command", "gain", "kind", "of"}


@pytest.mark.slow
@pytest.mark.parametrize("part", ["steps", "account", "sync", "system"])
def test_each_part_is_a_view_of_its_own(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    run = next(path for path in sorted(study.iterdir()) if "-08w-" in path.name)
    assert cli.main(["explain", str(run), "--part", part, "--out", str(tmp_path)]) == 0
    text, wide = capsys.readouterr().out, widths(tmp_path)
    assert cli.main(["explain", str(run), "--part", part, "--json", "--out", str(tmp_path), "--width", "column"]) == 0
    assert text and json.loads(capsys.readouterr().out)
    assert (part != "system" or wide) and all(width < wide[name] for name, width in widths(tmp_path).items())


def widths(folder: Path) -> dict[str, float]:
    """Return the width of each figure in pt."""
    pages = {path.name: re.search(rb"/MediaBox \[ 0 0 (\S+)", path.read_bytes()) for path in folder.glob("*.pdf")}
    return {name: float(found[1]) for name, found in pages.items() if found}


# ------------------------------------------------------------------------------------------- report makes its tables


@pytest.mark.slow
def test_a_report_of_runs_analyses_them_when_its_tables_are_missing_or_older(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    monkeypatch.setattr(html, "render", lambda analysis, against=None, printed=None: "")
    monkeypatch.setattr(html, "write_tables", lambda analysis, directory: [])
    for module in (catalogue, html):
        monkeypatch.setattr(module, "drawings", lambda analysis: [])
    runs = tmp_path / "runs"
    shutil.copytree(study, runs)
    table = runs / "analysis" / "runs.csv"

    def made(*words: str) -> bool:
        before = table.stat().st_mtime_ns if table.exists() else None
        assert cli.main(["report", str(runs), *words]) == 0
        return table.stat().st_mtime_ns != before

    assert made() and not made()
    assert (runs / "analysis" / "report.html").exists()
    rows = len(table.read_text().splitlines())
    newest = next(path for path in sorted(runs.iterdir()) if "-08w-" in path.name)
    later = table.stat().st_mtime_ns + 10**9
    os.utime(newest / "run.json", ns=(later, later))
    assert records.is_older(runs / "analysis", runs) and made()
    os.utime(newest / "run.json", ns=(0, 0))
    assert not made()
    shutil.rmtree(newest)
    assert made() and len(table.read_text().splitlines()) == rows - 1
    assert not made() and made("--tables")
    with monkeypatch.context() as newer:
        newer.setattr(tables, "__version__", "9.9")
        assert records.is_older(runs / "analysis", runs)
    (runs / "analysis/source.json").unlink()
    assert made(), "what nobody draws is made again"
    capsys.readouterr()
    assert cli.main(["report", str(runs / "analysis"), "--target", "1"]) == 2
    golden(capsys.readouterr().err, "--target")


@pytest.mark.slow
def test_runs_that_an_analysis_left_out_stay_out_and_newer_ones_come_in(study: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(study, runs)
    names = sorted(path.name for path in runs.iterdir())
    api.write_analysis(runs, runs / "analysis", only=names[:-2], targets=[1e-3])
    made = (runs / "analysis" / "runs.csv").stat().st_mtime_ns
    for name, ns in ((names[-1], made + 10**9), (names[-2], 0)):
        for path in (runs / name).iterdir():
            os.utime(path, ns=(ns, ns))

    kept = records.analysis_options(runs / "analysis", runs)
    assert kept["only"] == sorted([*names[:-2], names[-1]])
    assert kept["targets"] == [1e-3]
    assert math.isclose(kept["targets"][0], 1e-3)
