"""Runs whose steps were captured in CUDA graphs: compute in place of forward and backward, alone and beside others."""

import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drawn_figures import figures_only
from hypothesis import given, settings
from hypothesis import strategies as st
from make.properties import examples
from make.rank_rows import noise, rows_of
from make.synthetic_runs import run_table
from make.synthetic_study import write_study
from make.wording import Golden

from horovod_study import cli, records
from horovod_study.analysis.series import exchange
from horovod_study.analysis.series.points import CHOICES, scaling_points, with_series
from horovod_study.analysis.steps import breakdown, timeline
from horovod_study.analysis.steps.attribution import INSIDE_COMPUTE, attribute, observe
from horovod_study.analysis.steps.breakdown import NOTES, PARTS, folded, losses, shown
from horovod_study.analysis.steps.rank_steps import align, find_stragglers, waiting
from horovod_study.report.kit.style import LAPS

CAPTURED = ("compute", "sync", "update", "residual")


def captured(table: pd.DataFrame, *, inside: bool = False) -> pd.DataFrame:
    """Return a run table as if its steps had been captured; with `inside` the average too."""
    whole = (table["workers"] == 1) | inside
    held = table[["data_s", "forward_s", "backward_s"]].sum(axis=1) + table["update_s"].where(whole, 0.0)
    if inside:
        held += table["sync_s"].fillna(0.0)
    held += table["sync_s"].where((table["workers"] == 1) & ~np.array(inside), 0.0).fillna(0.0)
    return table.assign(
        run=table["run"] + "-graphs",
        cuda_graphs=True,
        capture_sync=inside & (table["backend"] == "ddp"),
        compute_s=held,
        update_s=table["update_s"].where(~whole),
        sync_s=table["sync_s"].where(~whole),
        **dict.fromkeys(("data_s", "forward_s", "backward_s"), math.nan),
    )


def both() -> pd.DataFrame:
    ways = (("serial", "none"), ("horovod", "mpi"))
    ordinary = run_table(ways=ways, workers=(1, 2, 4), failed=()).assign(cuda_graphs=False)
    return pd.concat([ordinary, captured(run_table(ways=ways, workers=(1, 2, 4), failed=(), seed=8))])


def laps(parts: pd.DataFrame, series: str, workers: int) -> pd.DataFrame:
    return parts[(parts["series"] == series) & (parts["workers"] == workers)].set_index("lap")


# ------------------------------------------------------------------------------------------------------- T(N) - T(1)


def test_what_more_workers_add_closes_although_one_worker_has_the_update_in_its_graph() -> None:
    parts = breakdown.breakdown(captured(run_table(ways=(("serial", "none"), ("horovod", "mpi")), failed=())))
    plain = laps(parts, "local serial batch 75", 1)
    eight = laps(parts, "local horovod/mpi batch 75", 8)
    grown = eight["minus_plain_s"].drop("step")

    assert math.fsum(grown.dropna()) == pytest.approx(eight.at["step", "minus_plain_s"], rel=1e-12)
    assert math.fsum(eight["growth_plain"].drop("step").dropna()) == pytest.approx(1.0)
    together = eight.at["compute", "mean_s"] + eight.at["update", "mean_s"]
    assert grown["compute"] == pytest.approx(together - plain.at["compute", "mean_s"])
    assert grown["sync"] == eight.at["sync", "mean_s"], "a worker alone waits for nobody"
    assert math.isnan(grown["update"]) and eight.at["compute", "note"] == NOTES["together"]
    assert plain.at["sync", "note"] == NOTES["alone"] and plain.at["update", "note"] == NOTES["captured"]
    assert {eight.at[lap, "note"] for lap in ("data", "forward", "backward")} == {"inside compute"}
    assert np.isfinite(eight.loc[["compute", "sync", "residual", "step"], "minus_plain_low_s"]).all()


def test_an_average_inside_the_graph_is_compared_inside_compute() -> None:
    table = run_table(ways=(("serial", "none"), ("ddp", "gloo")), failed=())
    table = captured(table.assign(transport=table["transport"].replace("gloo", "nccl"), reduction="flat"), inside=True)
    parts = breakdown.breakdown(table)
    (series,) = parts.loc[parts["workers"] == 8, "series"].unique()
    eight = laps(parts, series, 8)

    assert eight.at["sync", "note"] == "inside compute" and math.isnan(eight.at["sync", "mean_s"])
    assert eight.at["compute", "minus_plain_s"] + eight.at["residual", "minus_plain_s"] == pytest.approx(
        eight.at["step", "minus_plain_s"], rel=1e-12
    )
    assert breakdown.hiding(parts) == ["compute"]


_VALUE = st.floats(0, 1)
_ROW = st.one_of(
    st.tuples(_VALUE, st.none(), _VALUE, _VALUE, _VALUE, _VALUE, _VALUE),  # ordinary
    st.tuples(st.none(), _VALUE, st.none(), st.none(), _VALUE, _VALUE, _VALUE),  # several workers
    st.tuples(st.none(), _VALUE, st.none(), st.none(), st.none(), st.none(), _VALUE),  # one worker, or all inside
    st.tuples(_VALUE, _VALUE, st.none(), st.none(), st.none(), st.none(), _VALUE),  # streamed
    st.tuples(st.none(), st.none(), _VALUE, _VALUE, _VALUE, _VALUE, _VALUE),  # mode strict
)


@settings(max_examples=examples(100))
@given(st.lists(_ROW, min_size=1, max_size=5))
def test_folding_captured_and_ordinary_steps_loses_no_time(rows: list[tuple[float | None, ...]]) -> None:
    values = np.array([[math.nan if lap is None else lap for lap in row] for row in rows])
    table = np.column_stack([values, np.nansum(values, axis=1)])
    kept = folded(table)

    np.testing.assert_allclose(np.nansum(kept[:, :-1], axis=1), kept[:, -1])
    assert (np.isnan(kept).all(axis=0) == np.isnan(kept).any(axis=0)).all(), "one answer to which parts are known"


def test_compute_stands_against_forward_and_backward_and_takes_the_update_where_one_side_has_it_inside() -> None:
    #            data  compute   fwd     bwd     sync    update  rest  step
    ordinary = [0.1, math.nan, 0.4, 0.6, 0.2, 0.1, 0.01, 1.41]
    graphs = [math.nan, 0.8, math.nan, math.nan, 0.2, 0.1, 0.01, 1.11]
    alone = [math.nan, 0.9, math.nan, math.nan, 0.0, math.nan, 0.01, 0.91]
    nan = math.nan

    np.testing.assert_allclose(
        folded(np.array([ordinary, graphs])),
        [[nan, 1.1, nan, nan, 0.2, 0.1, 0.01, 1.41], [nan, 0.8, nan, nan, 0.2, 0.1, 0.01, 1.11]],
    )
    np.testing.assert_allclose(
        folded(np.array([graphs, alone])),
        [[nan, 0.9, nan, nan, 0.2, nan, 0.01, 1.11], [nan, 0.9, nan, nan, 0.0, nan, 0.01, 0.91]],
    )


# ------------------------------------------------------------------------------------------------------- side by side


def test_a_study_of_both_kinds_says_that_their_laps_are_not_comparable_one_by_one(golden: Golden) -> None:
    (told,) = [text for text in breakdown.doubts(both()) if "captured" in text]

    golden(told, "12 runs", "CUDA", "12 did")
    for alone in (run_table(), captured(run_table(failed=()))):
        assert not [text for text in breakdown.doubts(alone) if "captured" in text], "each kind alone is as it was"


def test_captured_runs_are_never_measured_against_an_ordinary_base() -> None:
    points = scaling_points(both())
    by_graphs = {bool(on): own.set_index("workers") for on, own in points[points["workers"] > 1].groupby("cuda_graphs")}

    assert points["series"].nunique() == 4
    assert by_graphs[True].at[4, "base_plain_samples_per_s"] != by_graphs[False].at[4, "base_plain_samples_per_s"]
    assert with_series(both())["series"].str.contains("CUDA graphs").all()


def test_a_plain_worker_is_the_base_of_those_that_average_inside_their_graph() -> None:
    assert "capture_sync" in CHOICES
    plain = run_table(ways=(("serial", "none"),), failed=()).assign(cuda_graphs=True)
    ddp = run_table(ways=(("ddp", "gloo"),), failed=()).assign(cuda_graphs=True, capture_sync=True)
    points = scaling_points(pd.concat([plain, ddp]))

    assert points.loc[points["workers"] == 8, "speedup_plain"].notna().all()


def test_compute_is_shown_only_where_some_run_knows_it() -> None:
    ordinary, mixed = breakdown.breakdown(run_table()), breakdown.breakdown(both())
    alone = breakdown.breakdown(captured(run_table(ways=(("serial", "none"), ("horovod", "mpi")), failed=())))

    assert set(ordinary["lap"]) == {*PARTS} - {"compute"}
    assert shown(ordinary, PARTS) == [part for part in PARTS if part != "compute"]
    assert shown(mixed, PARTS) == list(PARTS)
    assert shown(alone, PARTS) == [*CAPTURED, "step"]


def test_a_way_from_the_ideal_step_to_the_measured_one_adds_up_for_captured_steps() -> None:
    runs = captured(run_table(ways=(("serial", "none"), ("horovod", "mpi")), failed=()))
    parts, points = breakdown.breakdown(runs), scaling_points(runs)
    nothing = pd.DataFrame(columns=["series", "workers", "nodes", "batch", "arm", "part", "seconds"])
    way = losses(parts, points, nothing, baseline="plain", skew_s=pd.Series(dtype=float))
    own = way[way["workers"] == 8]

    assert list(own["part"]) == ["ideal", "computing", "waiting", "unexplained", "measured"]
    for (_, before), (_, after) in pairwise(own.iloc[:-1].iterrows()):
        assert before["to_s"] == pytest.approx(after["from_s"])
    assert own["to_s"].iloc[-2] == pytest.approx(own["seconds"].iloc[-1])


# ------------------------------------------------------------------------------------------------------- step rows


def rows(ranks: int, *, visible: bool = True, captured: bool = True, late: int | None = None) -> dict[int, Any]:
    own = noise(3, 400, ranks)
    extra = np.zeros_like(own)
    if late is not None:
        extra[:, late] = 0.4e-3
    return rows_of(own, extra_s={"backward": extra}, visible=visible, captured=captured)


def test_the_own_time_of_a_rank_is_the_same_with_and_without_graphs() -> None:
    ordinary = align(rows(3, captured=False), workers=3).own_laps()
    graphs = align(rows(3), workers=3).own_laps()

    assert list(graphs) == ["update", "residual", "compute"]
    np.testing.assert_allclose(sum(graphs.values()), sum(ordinary.values()))
    graphs_seen, ordinary_seen = (waiting(align(rows(3, captured=each), workers=3)) for each in (True, False))
    assert graphs_seen == pytest.approx(ordinary_seen)


def test_a_slow_rank_of_captured_steps_is_named_with_its_graph_as_the_place() -> None:
    found = find_stragglers(align(rows(3, late=1), workers=3))

    assert [each.rank for each in found.named] == [1] and found.named[0].cause == "compute"
    hidden = find_stragglers(align(rows(3, visible=False, late=1), workers=3))
    assert hidden.laps == ("residual",), "of the whole step in one graph nothing else is before the wait"


@pytest.mark.parametrize("visible", [True, False])
def test_attribution_takes_the_synchronisation_of_captured_steps_apart(visible: bool) -> None:
    effective = {"backend": "ddp", "transport": "nccl", "reduction": "flat", "workers": 2, "batch": 75}
    seen = [
        observe("r", {}, effective, 0, list(rows(2, visible=visible, captured=on).values()), None)
        for on in (True, False)
    ]
    if visible:
        np.testing.assert_allclose(seen[0].ready_s, seen[1].ready_s)
        np.testing.assert_allclose(seen[0].sync_s, seen[1].sync_s)
    else:
        (arm,) = attribute(seen[:1]).arms
        assert seen[0].sync_s is None and arm.why_not == INSIDE_COMPUTE


def test_a_trace_and_curves_have_the_laps_that_are_known() -> None:
    frames = {rank: pd.DataFrame(columns) for rank, columns in rows(2).items()}
    found = timeline.events(frames, {0: "a", 1: "a"})
    tags = set(exchange.history(frames, [])["tag"])

    assert {each["name"] for each in found if each.get("cat") == "lap"} == {"compute", "sync", "update"}
    assert "steps/compute_ms" in tags and not tags & {"steps/forward_ms", "steps/backward_ms", "steps/data_ms"}


# ------------------------------------------------------------------------------------------------------- appearance


def test_compute_can_be_told_from_every_other_part_also_in_grey() -> None:
    def lightness(color: str) -> float:
        red, green, blue = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
        return 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2

    own = LAPS["compute"]
    for name, other in LAPS.items():
        if name != "compute":
            assert other.hatch != own.hatch, "a pattern of its own"
    for name in ("data", "sync"):  # its neighbours in a bar, where nothing but the lightness is seen at once
        assert abs(lightness(own.color) - lightness(LAPS[name].color)) > 0.2
    assert list(LAPS) == [*PARTS[:-1]], "from the bottom of a bar to its top"


# ------------------------------------------------------------------------------------------------------- commands


@pytest.mark.slow
def test_every_command_takes_a_study_of_both_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ways = (("serial", "none"), ("horovod", "nccl"))
    for on in (False, True):
        write_study(tmp_path / "runs", ways=ways, workers=(1, 2), repeats=1, steps=120, captured=on)

    def call(*arguments: Any) -> tuple[int, str]:
        code = cli.main([str(each) for each in arguments])
        return code, capsys.readouterr().out

    assert call("report", "--tables", tmp_path / "runs", "--out", tmp_path / "an")[0] == 0
    with figures_only("breakdown"):
        assert call("report", tmp_path / "an")[0] == 0
        code, told = call("report", tmp_path / "an", "--check", "--allow", "few-repeats", "--json")
    names = {each["name"] for each in json.loads(told)["findings"]} - {"few-repeats"}
    page = (tmp_path / "an" / "report.html").read_text(encoding="utf-8")
    table = (tmp_path / "an" / "tables" / "breakdown.tex").read_text(encoding="utf-8")
    assert code == 0 and not names, names
    assert "their laps are not comparable one by one" in page and "inside compute" in page
    assert "Compute" in table and "Forward" in table

    one = tmp_path / "runs" / "alpha-horovod-nccl-02w-b75-graphs-r0"
    text = call("explain", "--part", "steps", one)[1]
    assert re.search(r"compute +sync +update +unexplained", text) and "forward" not in text
    code, text = call("explain", "--part", "account", tmp_path / "runs")
    assert code == 0 and re.search(r"data +compute +forward", text)
    assert records.read_run(one).totals["forward_s"] is None
