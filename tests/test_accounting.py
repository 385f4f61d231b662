"""The closed account: every step adds up, what does not is named, and what was not recorded is no error."""

import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make.records
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make.properties import examples
from make.wording import Golden

from horovod_study import records, train
from horovod_study.analysis.steps import accounting
from horovod_study.analysis.steps.accounting import account, account_run, allowed_share, gate
from horovod_study.analysis.steps.breakdown import PARTS
from horovod_study.cli import main
from horovod_study.errors import ConfigError
from horovod_study.measure.clock import LapClock, now
from horovod_study.records import finite
from horovod_study.strain import trainer
from horovod_study.strain.options import lr_factor

LAPS_MS = {"data": 0.1, "forward": 1.0, "backward": 1.5, "sync": 0.3, "update": 0.2, "residual": 0.02}
WARMUP = 10
Change = Callable[[dict[str, Any], int], None]


def steps(count: int, rank: int, *, first: int = 0, seed: int = 0, **laps_ms: float | None) -> dict[str, Any]:
    """Return step rows whose laps scatter by a tenth and add up; a lap of None is not there."""
    rng = np.random.default_rng([seed, rank])
    every = {**LAPS_MS, **laps_ms}
    laps = {f"{lap}_s": ms / 1e3 * rng.uniform(0.9, 1.1, count) for lap, ms in every.items() if ms is not None}
    step_s = sum(laps.values())
    return {
        "step": np.arange(first, first + count),
        "epoch": np.zeros(count, int),
        "begin_s": np.cumsum(step_s),
        **laps,
        "step_s": step_s,
        "samples": np.full(count, 75),
        "loss": np.full(count, 0.1),
    }


def run(
    directory: Path,
    *,
    backend: str = "horovod",
    transport: str = "mpi",
    workers: int = 1,
    count: int = 200,
    repeat: int = 0,
    status: str = "done",
    reason: str = "",
    change: Change | None = None,
    totals: dict[str, Any] | None = None,
    requested: dict[str, Any] | None = None,
    counts: dict[int, int] | None = None,
    **laps_ms: float | None,
) -> Path:
    """Record a run without running anything; `counts` says how many rows single ranks have."""
    effective = {
        "backend": backend,
        "transport": transport,
        "reduction": "none" if workers == 1 else "flat",
        "workers": workers,
        "nodes": 1,
        "batch": 75,
        "global_batch": 75 * workers,
        "train_samples": 75_000,
        "precision": "fp32",
        "warmup_steps": WARMUP,
        "settings": {},
        "ranks": [{"host": f"node{rank}"} for rank in range(workers)],
    }
    asked = {"horovod_defaults": False, "batch": 75, **(requested or {})}
    record = make.records.record(key=directory.name, repeat=repeat, requested=asked, effective=effective)
    records.create_run(directory, record)
    means = []
    for rank in range(workers):
        rows = steps((counts or {}).get(rank, count), rank, seed=repeat, **laps_ms)
        if change is not None:
            change(rows, rank)
        make.records.write_rows(directory, {rank: rows})
        means.append(float(rows["step_s"].mean()))
    if status != "running":
        measured = {"samples_per_s": 75 * workers / max(means), "window_s": 1.0, "steps": count - WARMUP}
        done = {**(measured if status == "done" else {}), **(totals or {})}
        records.finish_run(
            directory, record, status=status, finished="2026-01-01T00:01:00+00:00", totals=done, reason=reason
        )
    return directory


def study(root: Path, *, repeats: int = 3) -> Path:
    """Record a small study: one plain worker, one and two inside Horovod, in so many repeats."""
    for repeat in range(repeats):
        run(root / f"plain-{repeat}", backend="serial", transport="none", repeat=repeat, sync=0.0)
        run(root / f"one-{repeat}", repeat=repeat, sync=0.01)
        run(root / f"two-{repeat}", repeat=repeat, workers=2, sync=0.8, backward=1.6)
    return root


def accounted(*roots: Path) -> accounting.Accounting:
    table, runs = records.recorded_runs(roots)
    return account(table, [account_run(each) for each in runs])


def cell(found: accounting.Accounting, series: str, workers: int) -> pd.DataFrame:
    cells = found.cells
    return cells[(cells["series"] == series) & (cells["workers"] == workers)].set_index("lap")


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


MPI = "local horovod/mpi batch 75"
ORDINARY = tuple(part for part in PARTS if part != "compute")
"""Parts of steps that no CUDA graph holds: what is said of them where no run was captured."""


# ------------------------------------------------------------------------------------------------------- one run


def test_the_parts_of_every_rank_run_and_worker_count_add_up(tmp_path: Path) -> None:
    found = accounted(study(tmp_path))

    for each in found.runs:
        for parts in (each.parts_s, *(rank.parts_s for rank in each.ranks)):
            known = [parts[part] for part in ORDINARY[:-1]]
            assert math.fsum(known) == pytest.approx(parts["step"], rel=1e-12) and math.isnan(parts["compute"])
        assert each.open_rank is None
        assert all(rank.gap_s < 1e-15 for rank in each.ranks)
    for _, rows in found.cells.groupby(["series", "workers"]):
        by_lap = rows.set_index("lap")
        assert by_lap.loc[list(ORDINARY[:-1]), "mean_s"].sum() == pytest.approx(by_lap.at["step", "mean_s"], rel=1e-12)


def test_the_residual_is_told_by_mean_median_tail_and_worst_step(tmp_path: Path) -> None:
    def late(rows: dict[str, Any], rank: int) -> None:
        rows["residual_s"][:], rows["step_s"][:] = 0.1e-3, 10e-3
        rows["backward_s"][:] = 10e-3 - sum(rows[f"{lap}_s"] for lap in LAPS_MS if lap != "backward")
        if rank == 1:  # step 57: 5 of 15 ms
            rows["residual_s"][57] += 4.9e-3
            rows["step_s"][57] += 4.9e-3

    (one,) = accounted(run(tmp_path, workers=2, count=110, change=late)).runs

    assert one.residual is not None and one.steps == 100
    assert one.residual.median == pytest.approx(0.01)
    assert one.residual.worst == pytest.approx(5 / 14.9)
    assert (one.residual.worst_step, one.residual.worst_rank) == (57, 1)
    assert one.residual.mean == pytest.approx((0.1 + 4.9 / 200) / (10 + 4.9 / 200))
    assert 0.01 <= one.residual.p99 < 0.34
    assert one.ranks[1].host == "node1"


def test_a_step_that_does_not_close_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def incomplete(rows: dict[str, Any], rank: int) -> None:
        if rank == 1:
            rows["step_s"][[33, 34]] += [0.4e-3, 0.2e-3]

    root = run(tmp_path / "r", workers=2, change=incomplete)
    (one,) = accounted(root).runs
    message = "2 steps of 380 do not add up; the largest gap is 0.400 ms, in step 33 of rank 1"

    assert one.open_rank is not None
    assert (one.open_rank.gap_step, one.open_rank.open_steps) == (33, 2)
    assert one.open_rank.gap_s == pytest.approx(0.4e-3)
    code, out, _ = call(capsys, "explain", "--part", "account", root, "--max-residual", "50%")
    assert code == 1
    assert f"over: r (2 workers): {message}" in out


def test_a_gap_below_a_microsecond_closes(tmp_path: Path) -> None:
    def rounded(rows: dict[str, Any], rank: int) -> None:
        rows["step_s"][33] += 0.9e-6

    assert accounted(run(tmp_path, change=rounded)).runs[0].open_rank is None


def test_warm_up_is_excluded_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    def slow_start(rows: dict[str, Any], rank: int) -> None:
        rows["residual_s"][:WARMUP] += 1.0
        rows["step_s"][:WARMUP] += 1.0

    root = run(tmp_path / "r", change=slow_start)
    _, out, _ = call(capsys, "explain", "--part", "account", root, "--max-residual", "5%")

    assert accounted(root).runs[0].excluded == WARMUP
    golden(out, "10 steps")


def test_the_window_begins_where_the_steady_state_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    steady = {"step": 50, "declared": WARMUP, "found_by": "change-point", "doubt": "it drifts"}
    root = run(tmp_path / "r", totals={"steady": steady})
    _, out, _ = call(capsys, "explain", "--part", "account", root)

    assert accounted(root).runs[0].steps == 150
    golden(out, "50 steps")
    assert "r: it drifts" in out


# --------------------------------------------------------------------------------------------- what is incomplete


def test_a_killed_rank_ends_earlier_and_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    reason = "rank 1 on node1 is gone"
    root = run(tmp_path / "r", workers=3, status="failed", reason=reason, counts={1: 137, 2: 150}, count=150)
    code, out, _ = call(capsys, "explain", "--part", "account", root, "--max-residual", "5%")

    assert code == 0
    note = f"the run failed ({reason}); its rows end: ranks 0 and 2 at step 149, rank 1 at step 136"
    assert f"r: {note}" in re.sub(r"\s+", " ", out)
    golden(re.sub(r"\s+", " ", out), "3 workers")
    assert {rank.rank: rank.steps for rank in accounted(root).runs[0].ranks} == {0: 140, 1: 127, 2: 140}


def test_a_finished_run_of_which_rows_are_missing_is_doubted(tmp_path: Path, golden: Golden) -> None:
    short = run(tmp_path / "short", workers=2, counts={1: 150})
    gone = run(tmp_path / "gone", workers=2)
    (gone / "steps-00001.arrows").unlink()
    found = accounted(short, gone)
    notes = {each.run.rpartition("/")[2]: each.notes for each in found.runs}

    golden(notes, "short", "rank 0", "step 199", "rank 1", "step 149", "gone")
    assert len(accounting.row_doubts(found)) == 2, "the report passes it on"


def test_an_unfinished_run_does_not_count_beside_finished_ones(tmp_path: Path) -> None:
    study(tmp_path)
    run(tmp_path / "broken", workers=2, repeat=7, status="failed", reason="out of memory", sync=80.0)
    found = accounted(tmp_path)

    assert cell(found, MPI, 2).at["step", "repeats"] == 3
    assert cell(found, MPI, 2).at["sync", "mean_s"] == pytest.approx(0.8e-3, rel=0.02)
    assert any(each.startswith("broken: the run failed (out of memory)") for each in found.doubts)


def test_a_rank_without_a_file_and_a_torn_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    root = run(tmp_path / "r", workers=3, status="failed", reason="gone")
    (root / "steps-00000.arrows").unlink()
    (root / "steps-00002.arrows").write_bytes(b"no arrows")
    code, out, _ = call(capsys, "explain", "--part", "account", root)
    words = re.sub(r"\s+", " ", out)

    assert code == 0
    golden(words, "rank 1", "step 199", "rank 0", "rank 2")


@pytest.mark.parametrize("cut", [1, 50, 5000])
def test_a_torn_file_is_read_to_its_last_whole_rows(tmp_path: Path, cut: int) -> None:
    root = run(tmp_path / "r", workers=2, status="running")
    path = root / "steps-00001.arrows"
    os.truncate(path, max(0, path.stat().st_size - cut))

    assert accounted(root).runs[0].ranks[0].steps == 190


def test_a_run_that_ended_in_its_warm_up_has_no_account(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    root = run(tmp_path / "r", count=5, status="failed", reason="killed")
    code, out, _ = call(capsys, "explain", "--part", "account", root, "--max-residual", "5%")

    assert code == 0
    golden(re.sub(r"\s+", " ", out), "step 4", "step 10")
    golden(out, "step 4")


def test_lost_rows_are_said(tmp_path: Path, golden: Golden) -> None:
    def hole(rows: dict[str, Any], rank: int) -> None:
        for name in list(rows):
            rows[name] = np.delete(rows[name], slice(100, 112))

    (with_total,) = accounted(run(tmp_path / "a", change=hole, totals={"rows_lost": [12]})).runs
    (without,) = accounted(run(tmp_path / "b", change=hole)).runs

    golden(with_total.notes, "12 rows")
    golden(without.notes, "rank 0", "12 steps")


# ------------------------------------------------------------------------------------------------- without laps


def nothing(rows: dict[str, Any], rank: int) -> None:
    for lap in LAPS_MS:
        rows.pop(f"{lap}_s", None)


def test_a_run_without_timers_says_so_and_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    root = run(tmp_path / "r", change=nothing, requested={"timer_mode": "off"})
    code, out, _ = call(capsys, "explain", "--part", "account", root, "--max-residual", "5%", "--out", tmp_path / "out")
    (one,) = accounted(root).runs

    golden(one.why_not, "--timer-mode")
    assert one.residual is None and math.isnan(one.parts_s["forward"]) and one.parts_s["step"] > 0
    assert code == 1
    golden(out, "1 worker", "--timer-mode")


def test_a_run_without_any_times_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    def off(rows: dict[str, Any], rank: int) -> None:
        nothing(rows, rank)
        rows.pop("begin_s")
        rows["step_s"] = np.full(len(rows["step"]), math.nan)

    root = run(tmp_path / "r", workers=2, change=off, requested={"timer_mode": "off"})
    code, out, _ = call(capsys, "explain", "--part", "account", root, "--max-residual", "5%", "--out", tmp_path / "out")

    assert code == 1
    golden(out, "--timer-mode")
    assert len(pd.read_csv(tmp_path / "out" / "accounting-runs.csv")) == 3


def test_a_script_that_marks_no_lap_says_so(tmp_path: Path, golden: Golden) -> None:
    golden(accounted(run(tmp_path, change=nothing)).runs[0].why_not)


def test_a_script_that_marks_some_laps_closes_with_the_rest_unexplained(tmp_path: Path) -> None:
    (one,) = accounted(run(tmp_path, data=None, update=None, sync=None, residual=0.5)).runs

    assert one.why_not == "" and one.open_rank is None
    assert math.isnan(one.parts_s["data"])
    assert one.residual is not None and one.residual.mean == pytest.approx(0.5 / 3.0, rel=0.02)


def test_a_lap_that_only_some_steps_have_counts_as_none_in_the_others(tmp_path: Path, golden: Golden) -> None:
    def accumulate(rows: dict[str, Any], rank: int) -> None:
        gone = rows["step"] % 2 == 0
        rows["step_s"][gone] -= rows["sync_s"][gone]
        rows["sync_s"][gone] = math.nan

    (one,) = accounted(run(tmp_path, change=accumulate)).runs

    assert one.open_rank is None
    golden(one.notes, "95", "190 steps")
    assert one.parts_s["sync"] == pytest.approx(0.15e-3, rel=0.03)


# --------------------------------------------------------------------------------------------------- more workers


def test_what_two_workers_add_is_known_and_adds_up(tmp_path: Path, golden: Golden) -> None:
    found = accounted(study(tmp_path))
    two = cell(found, MPI, 2)

    for kind, sync_ms in (("plain", 0.8), ("wrapped", 0.79)):
        assert two.at["sync", f"minus_{kind}_s"] == pytest.approx(sync_ms / 1e3, abs=5e-6)
        assert two.at["backward", f"minus_{kind}_s"] == pytest.approx(0.1e-3, abs=2e-5)
        assert two.at["step", f"minus_{kind}_s"] == pytest.approx((sync_ms + 0.1) / 1e3, abs=5e-5)
        parts = two.loc[list(ORDINARY[:-1]), f"minus_{kind}_s"]
        assert math.fsum(parts) == pytest.approx(two.at["step", f"minus_{kind}_s"], rel=1e-12)
        low, high = two.at["sync", f"minus_{kind}_low_s"], two.at["sync", f"minus_{kind}_high_s"]
        assert low < sync_ms / 1e3 < high
        golden(two.at["step", f"interval_{kind}"], "95 %", "3 pairs")
    assert two.at["step", "base_plain"] == "local serial batch 75"


def test_few_repeats_have_no_interval(tmp_path: Path, golden: Golden) -> None:
    one = cell(accounted(study(tmp_path / "one", repeats=1)), MPI, 2)
    two = cell(accounted(study(tmp_path / "two", repeats=2)), MPI, 2)

    golden(one.at["step", "interval_plain"])
    golden(two.at["step", "interval_plain"], "2 repeats")
    assert one["minus_plain_low_s"].isna().all() and two["minus_plain_high_s"].isna().all()


def test_a_hidden_sync_is_compared_inside_backward_so_that_the_growth_adds_up(tmp_path: Path) -> None:
    study(tmp_path, repeats=1)
    run(tmp_path / "ddp", backend="ddp", transport="gloo", workers=2, sync=None, backward=2.4)
    two = cell(accounted(tmp_path), "local ddp/gloo batch 75", 2)

    assert math.isnan(two.at["sync", "minus_plain_s"]) and two.at["sync", "note"] == "inside backward"
    parts = two.loc[list(ORDINARY[:-1]), "minus_plain_s"].dropna()
    assert math.fsum(parts) == pytest.approx(two.at["step", "minus_plain_s"], rel=1e-12)


@settings(max_examples=examples(50))
@given(st.lists(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=7, max_size=7), min_size=1, max_size=4))
def test_folding_never_loses_time(laps: list[list[float | None]]) -> None:
    values = np.array([[math.nan if lap is None else lap for lap in row] for row in laps])
    values[:, -1] = np.nan_to_num(values[:, -1])  # the residual is known wherever steps are timed
    table = np.column_stack([values, np.nansum(values, axis=1)])
    before = table.copy()
    kept = accounting.folded(table)

    np.testing.assert_array_equal(table, before)
    np.testing.assert_allclose(np.nansum(kept[:, :-1], axis=1), kept[:, -1])
    assert (np.isnan(kept).all(axis=0) == np.isnan(kept).any(axis=0)).all()


# ------------------------------------------------------------------------------------------------------- the gate


@pytest.mark.parametrize(
    ("text", "share"), [("5%", 0.05), ("5", 0.05), (" 2.5 % ", 0.025), ("0.05%", 0.0005), ("0", 0)]
)
def test_the_gate_is_given_in_per_cent(text: str, share: float) -> None:
    assert allowed_share(text) == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("much", "--max-residual"),
        ("nan", "--max-residual"),
        ("-1%", "--max-residual"),
        ("101", "--max-residual is 101"),
        ("0.05", "--max-residual 0.05"),
    ],
)
def test_a_gate_that_means_nothing_is_one_line(text: str, message: str, golden: Golden) -> None:
    with golden.raises(ConfigError, match=re.escape(message)):
        allowed_share(text)


def test_wrong_use_of_account_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "explain", "--part", "account", tmp_path / "none")[::2] == (
        2,
        f"error: {tmp_path / 'none'}: no such directory; name the directory that holds the runs\n",
    )
    assert call(capsys, "explain", "--part", "account", tmp_path)[0] == 2
    assert call(capsys, "explain", "--part", "account", tmp_path, "--max-residual", "0.05")[0] == 2


@pytest.mark.slow
def test_two_milliseconds_outside_all_laps_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = run(tmp_path / "with", residual=2.02)
    code, out, _ = call(capsys, "explain", "--part", "account", root, "--max-residual", "5%")

    assert accounted(root).runs[0].parts_s["residual"] == pytest.approx(2e-3, abs=0.5e-3)
    assert code == 1
    assert re.search(
        r"over: with \(1 worker\): rank 0: 39\.\d+ % of the step is unexplained \(2\.\d+ of 5\.\d+ ms\)", out
    )
    assert "allowed 5 %" in out
    assert call(capsys, "explain", "--part", "account", run(tmp_path / "without"), "--max-residual", "5%")[0] == 0


def test_growth_that_is_unexplained_is_over_though_every_step_is_within(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for repeat in range(3):
        run(tmp_path / f"plain-{repeat}", backend="serial", transport="none", repeat=repeat, sync=0.0)
        run(tmp_path / f"two-{repeat}", repeat=repeat, workers=2, sync=0.3, residual=0.12)
    code, out, _ = call(capsys, "explain", "--part", "account", tmp_path, "--max-residual", "5%")

    assert code == 1
    assert out.count("over: ") == 1
    assert re.search(
        rf"over: {MPI}, 2 workers over one plain worker: \d+(\.\d+)? % of T\(N\) - T\(1\) is unexplained "
        r"\(0\.\d+ of 0\.\d+ ms\), allowed 5 %",
        out,
    )


def test_a_growth_of_next_to_nothing_is_not_judged(tmp_path: Path, golden: Golden) -> None:
    for repeat in range(3):
        run(tmp_path / f"plain-{repeat}", backend="serial", transport="none", repeat=repeat, sync=0.0)
        run(tmp_path / f"two-{repeat}", repeat=repeat, workers=2, sync=0.01)
    found = gate(accounted(tmp_path), 0.05)

    assert not found.over and found.growths == 0
    golden(found.not_judged, MPI, "2 workers", "T(1)", "2 %")


def test_a_growth_within_chance_is_not_judged(tmp_path: Path, golden: Golden) -> None:
    for repeat, forward in enumerate((1.0, 2.0, 3.0)):
        run(tmp_path / f"plain-{repeat}", backend="serial", transport="none", repeat=repeat, sync=0.0)
        run(tmp_path / f"two-{repeat}", repeat=repeat, workers=2, sync=0.01, forward=forward, residual=0.2)
    found = gate(accounted(tmp_path), 0.2)

    assert found.growths == 0
    golden(found.not_judged[0], "T(1)")


def train_once(out: Path) -> Path:
    words = ["--dataset", "400", "--batch", "75", "--steps", "60", "--warmup-steps", "10", "--schedule", "cosine"]
    more = ["--evaluate-every", "1000", "--threads", "1", "--system-interval-s", "0", "--out", str(out)]
    assert train.main([*words, *more, "--device", "cpu", "--no-checkpoint-at-end"]) == 0
    return out


def residual_ms(root: Path) -> float:
    """Return the 10 % quantile of the residuals of timed steps: that of steps which no other program held up.

    Being held up lengthens a residual and never shortens it.
    """
    rows = records.read_steps(root, 0).to_pandas()
    return float(rows.loc[rows["step"] >= WARMUP, "residual_s"].quantile(0.1) * 1e3)


@pytest.mark.slow
def test_two_milliseconds_outside_the_laps_of_a_real_run_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Time is spent waiting on the clock, not asleep: who sleeps on a busy machine is woken late."""

    def slow(*given: Any) -> float:
        until = now() + 2e-3
        while now() < until:
            pass
        return lr_factor(*given)

    for attempt in range(6):  # a busy machine may stop a run between two laps, and then shows more
        plain = train_once(tmp_path / f"plain-{attempt}")
        with monkeypatch.context() as patch:
            patch.setattr(trainer, "lr_factor", slow)
            slowed = train_once(tmp_path / f"slowed-{attempt}")
        codes = [
            call(capsys, "explain", "--part", "account", each, "--max-residual", "5%")[0] for each in (plain, slowed)
        ]
        found_ms = (residual_ms(plain), residual_ms(slowed))
        if codes == [0, 1] and 1.5 <= found_ms[1] - found_ms[0] <= 2.5:
            return
    pytest.fail(f"residuals {found_ms} ms; exit codes {codes}")


def test_a_clock_with_a_fake_time_and_an_account_agree(tmp_path: Path) -> None:
    """Laps go through the real clock: 2 ms between steps, of a time that is counted manually."""
    time_s = [0.0]
    clock = LapClock(lambda: time_s[0])
    clock.start()
    for _ in range(100):
        time_s[0] += 2e-3
        clock.begin()
        for lap, ms in LAPS_MS.items():
            if lap != "residual":
                time_s[0] += ms / 1e3
                clock.lap(lap)
    columns = clock.drain()

    def replaced(rows: dict[str, Any], rank: int) -> None:
        rows |= columns

    (one,) = accounted(run(tmp_path, count=100, change=replaced)).runs

    assert one.parts_s["residual"] == pytest.approx(2e-3)
    assert one.open_rank is None


# --------------------------------------------------------------------------------------------------- what is shown


@pytest.mark.slow
def test_account_writes_numbers_and_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    code, text, _ = call(
        capsys, "explain", "--part", "account", study(tmp_path / "runs"), "--out", out, "--max-residual", "5%"
    )
    document = json.loads((out / "accounting.json").read_text())
    cells = pd.read_csv(out / "accounting.csv", keep_default_na=False, na_values=[""])

    assert code == 0
    assert {path.name for path in out.iterdir()} == {
        *(f"accounting.{ending}" for ending in ("json", "txt", "csv")),
        "accounting-runs.csv",
    }
    assert document["gate"]["over"] == [] and len(document["runs"]) == 9
    assert cells["mean_s"].notna().all() and cells["minus_plain_s"].notna().any()
    assert len(pd.read_csv(out / "accounting-runs.csv")) == 9 + 3 * 1 + 3 * 1 + 3 * 2, "runs, and their ranks"
    assert "mean of 3 repeats" in text and "median of 3 (no sum)" in text


def test_account_prints_one_line_of_json_and_writes_nothing_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = study(tmp_path / "runs", repeats=1)
    before = sorted(tmp_path.rglob("*"))
    code, out, _ = call(capsys, "explain", "--part", "account", root, "--json")
    document = json.loads(out)

    assert code == 0 and out.count("\n") == 1
    assert document["gate"] is None and document["files"] == []
    assert [each["workers"] for each in document["runs"]] == [1, 1, 2]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_below_two_roots_counts_once(tmp_path: Path) -> None:
    study(tmp_path, repeats=1)

    assert len(accounted(tmp_path, tmp_path / "two-0").runs) == 3


def test_accounting_twice_gives_equal_results(tmp_path: Path) -> None:
    study(tmp_path)

    assert json.dumps(finite(accounted(tmp_path))) == json.dumps(finite(accounted(tmp_path)))


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_the_report_shows_the_account_and_its_doubts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def incomplete(rows: dict[str, Any], rank: int) -> None:
        rows["step_s"][33] += 0.4e-3 * rank

    study(tmp_path / "runs")
    run(tmp_path / "runs" / "bad", repeat=3, workers=2, sync=0.8, change=incomplete, totals={"rows_lost": [0, 7]})
    assert call(capsys, "report", "--tables", tmp_path / "runs", "--out", tmp_path / "an")[0] == 0
    assert call(capsys, "report", tmp_path / "an")[0] == 0
    page = re.sub(r"\s+", " ", (tmp_path / "an" / "report.html").read_text())
    table = pd.read_csv(tmp_path / "an" / "accounting.csv")

    assert list(table.columns) == list(accounting.RUN_COLUMNS)
    assert "Of 2 660 recorded steps, added up rank by rank, 1 do not add up" in page
    assert "bad: 1 step of 380 does not add up; the largest gap is 0.400 ms, in step 33 of rank 1." in page
    assert "7 step rows of 1 run at 2 workers are lost (the disk was full)" in page


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
@pytest.mark.usefixtures("no_figures")
def test_the_report_of_runs_without_laps_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "runs" / "off", change=nothing, requested={"timer_mode": "off"})
    assert call(capsys, "report", "--tables", tmp_path / "runs", "--out", tmp_path / "an")[0] == 0
    assert call(capsys, "report", tmp_path / "an")[0] == 0

    assert (
        "off: the parts of its steps are not known: recorded with --timer-mode off."
        in (tmp_path / "an" / "report.html").read_text()
    )
