"""`report --check`: a good study has no finding, and each fault is found under its name, in its cell and run."""

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from drawn_figures import figures_only
from make.synthetic_study import write_study
from make.wording import Golden

from horovod_study import records
from horovod_study.analysis import audit
from horovod_study.analysis.audit import Fault, Study, lint, recount
from horovod_study.analysis.series.points import scaling_points, with_series
from horovod_study.analysis.steps.accounting import RunAccount, account, account_run
from horovod_study.analysis.study import CURVE_COLUMNS, SCHEMA, Analysis
from horovod_study.cli import main
from horovod_study.errors import ConfigError, RecordError
from horovod_study.records.model import own_digest
from horovod_study.report.page import check

NCCL = "alpha-horovod-nccl-{:02d}w-b75-r{}"
PAIR = [NCCL.format(2, repeat) for repeat in range(3)]
SERIAL = [f"alpha-serial-none-01w-b75-r{repeat}" for repeat in range(3)]
SERIES = "alpha horovod/nccl batch 75"
LAPS = ("data_s", "forward_s", "backward_s", "sync_s", "update_s", "residual_s")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("good") / "runs", workers=(1, 2, 4))


@pytest.fixture
def runs(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "runs"))


def study_of(runs: Path) -> Study:
    """The study of a folder of runs, without what nothing is looked for in: fits, forecasts, learning."""
    table, recorded = records.recorded_runs([runs])
    both = [_looked_at(run) for run in recorded]
    recounts, accounts = [each for each, _ in both], [each for _, each in both]
    named = with_series(table)
    points = scaling_points(named)
    plain = points.loc[points["backend"] != "serial", "speedup_plain"].notna().any()
    analysis = Analysis(
        points=points,
        curves=pd.DataFrame(columns=list(CURVE_COLUMNS)),
        breakdown=pd.DataFrame(columns=["series", "workers", "lap", "mean_s", "share", "note"]),
        fits={},
        provenance={"schema": SCHEMA, "baseline": "plain" if plain else "wrapped"},
    )
    return Study(
        runs=named,
        analysis=analysis,
        accounting=account(table, accounts),
        recounts=recounts,
        records={name: record for _, name, record in records.found_runs(runs)},
        set_aside=dict(records.set_aside(runs)),
    )


_SEEN: dict[Any, tuple[audit.Recount, RunAccount]] = {}


def _looked_at(run: records.RecordedRun) -> tuple[audit.Recount, RunAccount]:
    """What is made of a run; once, where copies of its files are the same in name, size and time."""
    files = [path for path in sorted(run.directory.iterdir()) if path.is_file()]
    key = (run.name, *((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files))
    if key not in _SEEN:
        _SEEN[key] = recount(run, records.run_side_files(run.directory)), account_run(run)
    return _SEEN[key]


def findings_of(runs: Path) -> list[Fault]:
    return lint(study_of(runs))


def recount_of(directory: Path) -> audit.Recount:
    return recount(records.recorded_run(directory), records.run_side_files(directory))


def edit(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change run.json together with the digests that the run wrote of itself: what is left to find is what the content
    contradicts."""
    path = directory / "run.json"
    content = json.loads(path.read_text())
    change(content)
    content["files"] = {name: each for name, each in records.run_files(directory).items() if name != path.name}
    content["digest"] = own_digest(content)
    path.write_text(json.dumps(content))


def rewrite(directory: Path, rank: int, change: Callable[[pd.DataFrame], pd.DataFrame | None]) -> None:
    """Change the step rows of a rank, given as a frame."""
    path = directory / f"steps-{rank:05d}.arrows"
    frame = records.read_steps(directory, rank).to_pandas()
    changed = change(frame)
    frame = frame if changed is None else changed
    table = pa.Table.from_pandas(frame, schema=records.step_schema(), preserve_index=False)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    edit(directory, lambda _: None)


def retotal(directory: Path) -> None:
    """Make the totals of a run again from its rows, by other means than the check: one table of all ranks."""
    frames = {rank: records.read_steps(directory, rank).to_pandas() for rank in records.step_ranks(directory)}

    def change(content: dict[str, Any]) -> None:
        totals = content["totals"]
        timed = pd.concat(
            [each[each["step"] >= totals["steady"]["step"]].assign(rank=rank) for rank, each in frames.items()]
        )
        by_rank = timed.groupby("rank")
        totals["window_s"] = float(by_rank["step_s"].sum().max())
        totals["samples_per_s"] = float(timed["samples"].sum()) / totals["window_s"]
        for name in (*LAPS, "step_s"):
            totals[name] = float(by_rank[name].mean().mean())
        totals["step_s_median"] = float(by_rank["step_s"].median().max())
        totals["step_s_p90"] = float(by_rank["step_s"].quantile(0.9).max())
        totals["lap_medians_s"] = {lap[:-2]: float(by_rank[lap].median().mean()) for lap in LAPS}

    edit(directory, change)


# ---------------------------------------------------------------------------------------------------- good


@pytest.mark.slow
def test_a_good_study_has_no_finding(good: Path) -> None:
    study = study_of(good)

    assert lint(study) == []
    assert all(each.totals > 20 for each in study.recounts)


def test_totals_made_by_other_means_agree(runs: Path) -> None:
    """The test's own totals, from one table of all ranks, are those that the check makes."""
    for name in PAIR:
        retotal(runs / name)

    assert [recount_of(runs / name).findings for name in PAIR] == [(), (), ()]


# ---------------------------------------------------------------------------------------------------- raw values


TOTALS = (
    *("samples_per_s", "steps", "excluded_steps", "step_s_median", "step_s_p90", "step_s", *LAPS),
    *("epochs", "train_mse", "test_mse", "train_s", "wall_s", "a_rmse", "g0_rmse_mpa"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOTALS)
def test_a_changed_total_is_found(runs: Path, name: str) -> None:
    directory = runs / PAIR[0]
    kept = json.loads((directory / "run.json").read_text())["totals"][name]
    changed = kept + 1 if isinstance(kept, int) else kept * 1.01
    edit(directory, lambda content: content["totals"].update({name: changed}))
    found = recount_of(directory).findings

    assert [(each.name, each.column, each.runs) for each in found] == [("total-differs", name, (PAIR[0],))]
    assert found[0].where == f"{PAIR[0]}/run.json"
    assert found[0].kept != found[0].again


def test_a_changed_window_is_found_by_the_throughput_and_by_the_steps(runs: Path) -> None:
    """Both changed together, the throughput is what the window says, and the steps do not fill it."""

    def change(content: dict[str, Any]) -> None:
        content["totals"]["window_s"] *= 0.9
        content["totals"]["samples_per_s"] /= 0.9

    directory = runs / PAIR[0]
    edit(directory, change)

    assert [each.name for each in recount_of(directory).findings] == ["steps-do-not-tile"]
    assert "its window is" in recount_of(directory).findings[0].text

    edit(directory, lambda content: content["totals"].update(window_s=content["totals"]["window_s"] * 1.5))
    names = {each.column for each in recount_of(directory).findings if each.name == "total-differs"}
    assert names == {"samples_per_s"}


@pytest.mark.parametrize(
    ("column", "wrong"),
    [
        ("forward_s", {"forward_s"}),
        ("sync_s", {"sync_s"}),
        ("step_s", {"step_s"}),
        ("residual_s", {"residual_s"}),
        ("samples", {"samples_per_s", "energy.per_sample_j"}),
        ("loss", {"train_mse"}),
        ("begin_s", set()),
    ],
)
def test_one_changed_value_of_one_step_row_is_found(runs: Path, column: str, wrong: set[str]) -> None:
    """Means show it always, quantiles may."""
    quantiles = {"step_s_median", "step_s_p90", *(f"lap_medians_s.{lap[:-2]}" for lap in LAPS)}
    directory = runs / PAIR[1]

    def change(frame: pd.DataFrame) -> None:
        frame[column] = frame[column].where(frame["step"] != 120, frame[column] * 2)

    rewrite(directory, 1, change)
    found = recount_of(directory).findings

    assert {each.column for each in found if each.name == "total-differs"} - quantiles == wrong - quantiles
    assert found and all(each.runs == (PAIR[1],) for each in found)
    if column in ("begin_s", "step_s"):
        assert any("step 121" in each.text or "step 120" in each.text for each in found)


def test_a_changed_evaluation_is_found(runs: Path) -> None:
    path = runs / PAIR[0] / "epochs.csv"
    lines = path.read_text().splitlines()
    cells = lines[1].split(",")
    cells[5] = f"{float(cells[5]) * 1.001!r}"
    path.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
    (found,) = recount_of(runs / PAIR[0]).findings

    assert (found.name, found.column, found.where) == ("total-differs", "train_mse", f"{PAIR[0]}/epochs.csv")
    assert found.row == f"after {cells[1]} steps"


def test_a_run_that_failed_has_nothing_to_recount(runs: Path, golden: Golden) -> None:
    edit(runs / PAIR[0], changed(status="failed", totals={}))

    assert recount_of(runs / PAIR[0]).findings == ()
    golden(recount_of(runs / PAIR[0]).not_recounted)


def test_totals_that_are_no_numbers_are_refused(runs: Path, golden: Golden) -> None:
    edit(runs / PAIR[0], lambda content: content["totals"].update(samples_per_s="fast"))

    with golden.raises(RecordError, match=r"run\.json.*totals\.samples_per_s.*fast"):
        recount_of(runs / PAIR[0])


# ------------------------------------------------------------------------------------------------------- faults


def remove(*names: str) -> Callable[[Path], None]:
    return lambda runs: [shutil.rmtree(runs / name) for name in names] and None


def for_all(names: Iterable[str], change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    return lambda runs: [edit(runs / name, change) for name in names] and None


def copied(runs: Path) -> None:
    shutil.rmtree(runs / PAIR[1])
    shutil.copytree(runs / PAIR[0], runs / PAIR[1])
    edit(runs / PAIR[1], changed(repeat=1, key=PAIR[1]))


def slow_begin(runs: Path) -> None:
    """The first tenth of the timed steps takes longer, in all repeats."""
    for name in PAIR:
        first = records.read_run(runs / name).totals["steady"]["step"]
        for rank in range(2):

            def change(frame: pd.DataFrame, first: int = first) -> None:
                late = (frame["step"] >= first) & (frame["step"] < first + (len(frame) - first) // 10)
                more = frame["forward_s"].where(late, 0.0)
                frame["forward_s"] += more
                frame["step_s"] += more
                frame["begin_s"] += more.cumsum().shift(fill_value=0.0)

            rewrite(runs / name, rank, change)
        retotal(runs / name)


def no_warm_up(runs: Path) -> None:
    remove(*PAIR)(runs)
    write_study(runs, ways=(("horovod", "nccl"),), workers=(2,), warmup=0)


def oversubscribed(content: dict[str, Any]) -> None:
    for rank in content["effective"]["ranks"]:
        rank["cores"] = [0]


def busy(runs: Path) -> None:
    """Another program takes two cores of the host."""
    host = "node1"
    table, meta = records.read_system_rows(runs / PAIR[2], host)
    rows = [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]
    for row in rows:
        if row["part"] == "host":
            row["cpu_percent"] += 200
    writer = records.SystemWriter(runs / PAIR[2], host, meta, keep_before_s=None)
    writer.append(rows)
    writer.close()


def torn(runs: Path) -> None:
    rewrite(runs / PAIR[0], 1, lambda frame: frame[frame["step"] != 200])


def rank_lost(runs: Path) -> None:
    (runs / PAIR[0] / "steps-00001.arrows").unlink()


def set_aside(runs: Path) -> None:
    shutil.copytree(runs / PAIR[0], runs / ".attempts" / f"{PAIR[0]}-1")


def mixed(runs: Path) -> None:
    for each in list(runs.iterdir()):
        shutil.rmtree(each)
    for count, batch in ((1, 75), (2, 50), (4, 30)):
        write_study(runs, ways=(("horovod", "nccl"),), workers=(count,), batches=(batch,))


def told(column: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["requested"].update({column: value})


def applied(column: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["effective"].update({column: value})


def changed(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update(values)


RATE = "samples_per_s_median"
FAILED = changed(status="failed", totals={}, reason="out of memory")
OTHER_DATA = for_all(PAIR[1:2], applied("dataset_digest", "0123"))
FAULTS: dict[str, tuple[str, Callable[[Path], Any], int | None, str, tuple[str, ...]]] = {
    "two repeats": ("few-repeats", remove(PAIR[2]), 2, "repeats", tuple(PAIR[:2])),
    "a repeat was left out": ("repeat-missing", for_all(PAIR[2:], changed(repeat=3)), 2, "repeats", tuple(PAIR)),
    "no run of a cell": ("missing-cell", remove(*PAIR), 2, RATE, ()),
    "all runs of a cell failed": ("missing-cell", for_all(PAIR, FAILED), 2, RATE, tuple(PAIR)),
    "a copy": ("duplicated-run", copied, 2, "step_s", (PAIR[1], PAIR[0])),
    "another learning rate": ("logged-unlike-applied", for_all(PAIR[:1], applied("lr", 1e-3)), 2, "lr", (PAIR[0],)),
    **{
        f"another {name}": ("logged-unlike-applied", for_all(PAIR[:1], told(name, value)), 2, name, (PAIR[0],))
        for name, value in (("precision", "bf16"), ("transport", "mpi"), ("reduction", "hooks"))
    },
    "more threads than asked for": (
        "logged-unlike-applied",
        for_all(SERIAL[:1], lambda content: content["effective"]["ranks"][0].update(threads=8)),
        1,
        "threads",
        (SERIAL[0],),
    ),
    "a slow begin": ("warm-up-in-window", slow_begin, 2, RATE, tuple(PAIR)),
    "cores are shared": ("oversubscribed-cores", for_all(PAIR[:1], oversubscribed), 2, RATE, (PAIR[0],)),
    "another program": ("other-load", busy, 2, RATE, (PAIR[2],)),
    "another process on a GPU": (
        "other-load",
        for_all(PAIR[2:3], applied("other_gpu_processes", {"node1": 1, "node2": 0, "node3": None})),
        2,
        RATE,
        (PAIR[2],),
    ),
    "a row is missing": ("steps-do-not-tile", torn, 2, "step_s", (PAIR[0],)),
    "a rank has no rows": ("steps-do-not-tile", rank_lost, 2, "step_s", (PAIR[0],)),
    "a finished run was set aside": ("run-set-aside", set_aside, 2, RATE, (PAIR[0],)),
    "another data set in one run": ("data-set-changed", OTHER_DATA, None, "train_samples", (PAIR[1],)),
    "another torch in one run": (
        "versions-differ",
        for_all(PAIR[1:2], lambda content: content["environment"].update(torch="1.0")),
        None,
        "torch",
        (PAIR[1],),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_and_nothing_else(runs: Path, fault: str) -> None:
    name, change, workers, column, involved = FAULTS[fault]
    change(runs)
    found = findings_of(runs)

    assert {each.name for each in found} - {"total-differs"} == {name}
    hit = next(each for each in found if each.name == name)
    assert (hit.workers, hit.column, hit.runs) == (workers, column, involved)
    assert hit.series in (SERIES, "alpha serial batch 75")
    assert audit.RULES[name].remedy and hit.text


@pytest.mark.slow
@pytest.mark.parametrize("column", ["dataset_digest", "device"])
def test_a_baseline_of_other_data_or_another_machine_is_found(runs: Path, column: str) -> None:
    for_all(SERIAL, applied(column, "another"))(runs)
    found = [each for each in findings_of(runs) if each.name == "unequal-baselines"]

    assert {(each.series, each.workers) for each in found} == {
        (f"alpha horovod/{transport} batch 75", workers) for transport in ("nccl", "mpi") for workers in (1, 2, 4)
    }
    assert all(each.column == "speedup_plain" and set(SERIAL) <= set(each.runs) for each in found)
    assert f"{column} is" in found[0].text


@pytest.mark.slow
def test_a_window_without_warm_up_is_found(runs: Path) -> None:
    no_warm_up(runs)
    found = [each for each in findings_of(runs) if each.name == "warm-up-in-window"]

    assert [each.runs for each in found if each.text.startswith("no step was left out")] == [(name,) for name in PAIR]


@pytest.mark.slow
def test_mixed_scaling_is_found(runs: Path) -> None:
    mixed(runs)
    found = findings_of(runs)

    assert {each.name for each in found} == {"mixed-scaling"}
    assert sorted(each.workers or 0 for each in found) == [1, 2, 4]


def test_a_missing_baseline_is_found(runs: Path) -> None:
    """Without plain workers speedups are over wrapped ones, and one of the two series lacks them as well."""
    remove(*SERIAL, *(NCCL.format(1, repeat) for repeat in range(3)))(runs)
    found = findings_of(runs)

    assert {(each.name, each.series, each.workers) for each in found} == {
        ("missing-baseline", SERIES, 2),
        ("missing-baseline", SERIES, 4),
    }


@pytest.mark.slow
def test_an_epoch_of_another_length_is_a_changed_data_set(runs: Path, golden: Golden) -> None:
    for name in PAIR:

        def change(frame: pd.DataFrame) -> None:
            frame["epoch"] = np.where(frame["step"] < 120, 0, 1)

        rewrite(runs / name, 0, change)
        edit(runs / name, applied("steps_per_epoch", 250))
    found = [each for each in findings_of(runs) if each.name == "data-set-changed"]

    assert [each.runs for each in found] == [(name,) for name in PAIR]
    golden(found[0].text, "epoch 1", "rank 0", "120 steps", "250")


@pytest.mark.slow
def test_a_planned_cell_without_a_run_is_found(good: Path) -> None:
    study = study_of(good)
    planned = replace(study, planned=(*PAIR, "never-started"))

    assert [(each.name, each.runs) for each in lint(planned)] == [("missing-cell", ("never-started",))]


@pytest.mark.slow
def test_rounds_of_a_shared_machine_are_found(good: Path) -> None:
    study = study_of(good)
    points = study.analysis.points
    loud = (points["workers"] == 2) & (points["series"] == SERIES)
    shared = points.assign(turns_shared=np.where(loud, 1.0, np.nan))
    found = lint(replace(study, analysis=replace(study.analysis, points=shared)))

    assert [(each.name, each.workers, each.runs) for each in found] == [("other-load", 2, tuple(PAIR))]


@pytest.mark.slow
def test_steady_runs_are_rarely_said_to_warm_up() -> None:
    """The stated rate of false alarms, with noise that comes in spells: fewer than 1 of 1,000 points of three runs."""
    rng = np.random.default_rng(4)
    alarms, points = 0, 2_000
    for _ in range(points):
        begins = []
        for _ in range(3):
            spells = np.repeat(rng.standard_normal(60) * (rng.random(60) < 0.1), 10)
            begins.append(audit.slow_begin(np.exp(0.05 * rng.standard_normal(600) + 0.3 * spells)))
        alarms += min(begins) >= audit._WARM_UP_LEVEL

    assert alarms / points < 1 / 1_000


# ------------------------------------------------------------------------------------------------------- tables


POINTS = (
    "series,workers,nodes,samples_per_s_median,samples_per_s_min,samples_per_s_max,speedup_plain,speedup_plain_low,"
    "speedup_plain_max\n"
    "a,1,1,100.0,99.0,101.0,1.0,1.0,1.01\n"
    "a,2,1,190.0,180.0,199.0,1.9,1.8,1.99\n"
)


@pytest.mark.parametrize(
    ("old", "new", "name", "column", "text"),
    [
        ("190.0", "191.0", "cell-differs", "samples_per_s_median", "is 191.0; the runs give 190.0"),
        ("190.0", "199.0", "best-of-n", "samples_per_s_median", "is 199.0, the best repeat; the median is 190.0"),
        ("1.9,1.8", "1.99,1.8", "best-of-n", "speedup_plain", "is 1.99, the best repeat; the median is 1.9"),
        ("1.9,1.8,", "1.9,,", "intervals-missing", "speedup_plain_low", "is empty; the repeats give 1.8"),
        ("190.0", "", "cell-differs", "samples_per_s_median", "is empty; the runs give 190.0"),
        ("190.0", "fast", "cell-differs", "samples_per_s_median", "is fast; the runs give 190.0"),
    ],
)
def test_a_changed_cell_is_named(old: str, new: str, name: str, column: str, text: str) -> None:
    found, compared = audit.compare_tables("points.csv", POINTS.replace(old, new), POINTS)

    assert [(each.name, each.series, each.workers, each.column, each.text) for each in found] == [
        (name, "a", 2, column, text)
    ]
    assert compared == 18


def test_equal_tables_and_rounding_in_the_last_place_are_no_findings() -> None:
    assert audit.compare_tables("points.csv", POINTS, POINTS) == ([], 18)
    assert audit.compare_tables("points.csv", POINTS.replace("190.0", "190.00000000000003"), POINTS)[0] == []
    assert len(audit.compare_tables("points.csv", POINTS.replace("190.0", "190.000001"), POINTS)[0]) == 1
    assert audit.compare_tables("points.csv", POINTS.replace("190.0", "190.000001"), POINTS, 1e-6)[0] == []


def test_missing_and_invented_rows_and_columns_are_named(golden: Golden) -> None:
    head, one, _ = POINTS.splitlines()
    less, _ = audit.compare_tables("points.csv", f"{head}\n{one}\n", POINTS)
    more, _ = audit.compare_tables("points.csv", f"{POINTS}a,64,1,9000,1,1,1,1,1\n", POINTS)
    narrow, _ = audit.compare_tables("points.csv", POINTS.replace("speedup_plain_low", "other"), POINTS)

    assert [(each.text, each.workers) for each in less] == [("the row is not there", 2)]
    assert [(each.text, each.workers) for each in more] == [("no run gives this row", 64)]
    golden([(each.text, each.column) for each in narrow], "speedup_plain_low", "other")
    assert audit.compare_tables("points.csv", 'a,"b', POINTS)[0][0].text.startswith("is not a table (")
    assert audit.compare_tables("points.csv", "", POINTS)[0][0].text == "is empty"


def test_an_unmarked_extrapolation_is_named() -> None:
    curves = "series,law,workers,speedup,extrapolated\na,usl,4,3.5,False\na,usl,8,5.5,True\n"
    (found,), _ = audit.compare_tables("curves.csv", curves.replace("True", "False"), curves)

    assert (found.name, found.workers, found.column, found.row) == (
        "extrapolation-unmarked", 8, "extrapolated", "law usl",
    )  # fmt: skip


def test_a_changed_value_of_a_document_is_named_by_its_line(golden: Golden) -> None:
    document = {"series": {"a": {"laws": [{"rmse": 0.5}]}}, "doubts": ["one", "two"], "none": None}
    other = {"series": {"a": {"laws": [{"rmse": 0.25}]}}, "doubts": ["one"], "none": None}
    old, new = (check._numbered(json.dumps(each, indent=1)) for each in (other, document))
    found = check._texts("fits.json", old, new, audit.TEXT_TOLERANCE)

    golden([(each.column, each.text) for each in found], "line 6", "0.25", "0.5", "two")


# --------------------------------------------------------------------------------------------------------- page


PAGE = """<html><head><title>T</title><style>b { x: 1 }</style></head><body><h1>3.9 times as fast</h1>
<h2>Points</h2><p>Some <b>text</b> here.</p><svg><text>0.5</text><circle><title>2 workers: 1.9x</title></circle></svg>
<table><thead><tr><th>Series</th><th>Workers</th><th>Speedup</th></tr></thead>
<tbody><tr><th rowspan="2">a</th><th>1</th><td>1.00</td></tr><tr><th>2</th><td>1.90<small>[1.8, 2.0]</small></td></tr>
</tbody></table>
<script type="application/json">"workers\\n2\\n"</script>
<script>let x = 3;</script></body></html>"""


def test_the_parts_of_a_page_are_its_texts_and_cells() -> None:
    parts = check.page_parts(PAGE)

    assert {("3.9 times as fast", "3.9 times as fast"), ("Points", "1.90"), ("Points", "[1.8, 2.0]")} <= set(parts)
    assert {("Points", "2 workers: 1.9x"), ("Points", r'"workers\n2\n"')} <= set(parts)
    assert not any("0.5" in text or "let x" in text or "x: 1" in text for _, text in parts)


def test_hostile_pages_are_read_to_their_end() -> None:
    for text in ("", "<table><tr><td rowspan=999999999 colspan=99999999>x", "<script type=json>{", "<svg><p>x", "<h1"):
        assert isinstance(check.page_parts(text), list)


def test_only_doubts_can_be_allowed(golden: Golden) -> None:
    assert check.allowed(["other-load", "few-repeats"]) == {"other-load", "few-repeats"}
    with golden.raises(ConfigError, match="--allow"):
        check.allowed(["best-of-n"])
    with golden.raises(ConfigError, match="--allow.*other-load"):
        check.allowed(["other-lod"])


# ------------------------------------------------------------------------------------------------- command line


def call(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that was analysed; its runs are in the folder above."""
    runs = write_study(
        tmp_path_factory.mktemp("reported") / "runs",
        ways=(("serial", "none"), ("horovod", "nccl")),
        workers=(1, 2),
        steps=110,
        evaluations=1,
    )
    assert main(["report", "--tables", str(runs), "--out", str(runs / "analysis")]) == 0
    return runs


@pytest.fixture
def study(reported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(reported, tmp_path / "moved"))


@pytest.fixture
def two_figures() -> Iterator[None]:
    with figures_only("throughput", "speedup"):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("two_figures")
def test_a_good_report_passes_and_a_changed_one_fails(capsys: pytest.CaptureFixture[str], study: Path) -> None:
    """One good check, and one with a changed number in the page, a figure's data, a table for print and a picture."""
    directory = study / "analysis"
    assert call(capsys, "report", directory)[0] == 0
    code, out, _ = call(capsys, "report", directory, "--check")
    assert (code, out.splitlines()[-1]) == (
        0, "0 findings: every number that was compared is what the raw rows give.",
    )  # fmt: skip
    assert max(map(len, out.splitlines())) <= 100

    median = pd.read_csv(directory / "points.csv")["samples_per_s_median"].iloc[-1]
    page = directory / "report.html"
    text, changed_cells = re.subn(r"(<td[^>]*>)\d+\.\d+", r"\g<1>9.99", page.read_text(), count=1)
    assert changed_cells == 1
    page.write_text(text)
    data = directory / "figures" / "throughput.csv"
    data.write_text(data.read_text().replace(repr(float(median)), repr(float(median) * 1.5)))
    table = directory / "tables" / "points.tex"
    lines = table.read_text().split("\n")
    row = next(place for place, line in enumerate(lines) if line.count("&") > 2 and line[0].isdigit())
    place = next(k for k, letter in enumerate(lines[row]) if letter.isdigit())
    lines[row] = f"{lines[row][:place]}7{lines[row][place:]}"
    table.write_text("\n".join(lines))
    with (directory / "figures" / "throughput.png").open("ab") as file:
        file.write(b"more")
    (directory / "figures" / "old.csv").write_text("x\n1\n")
    code, out, _ = call(capsys, "report", directory, "--check", "--json")
    found = json.loads(out)["findings"]

    assert code == 1
    assert {(each["name"], each["where"]) for each in found} == {
        ("cell-differs", "report.html"),
        ("cell-differs", "figures/throughput.csv"),
        ("cell-differs", f"tables/{table.name}"),
        ("picture-changed", "figures/throughput.png"),
        ("file-left-over", "figures/old.csv"),
    }
    changed = next(each for each in found if each["where"] == "report.html")
    assert "9.99" in changed["text"] and changed["column"]
    assert next(each for each in found if each["where"].endswith("throughput.csv"))["workers"] == 2


@pytest.mark.slow
def test_runs_left_out_and_gone_and_a_changed_cell(capsys: pytest.CaptureFixture[str], study: Path) -> None:
    directory = study / "analysis"
    extra = study / NCCL.format(2, 3)
    shutil.copytree(study / PAIR[0], extra)
    edit(extra, changed(status="failed", totals={}, key=extra.name, repeat=3))
    points = directory / "points.csv"
    table = pd.read_csv(points)
    best, median = (repr(float(table[f"samples_per_s_{name}"].iloc[-1])) for name in ("max", "median"))
    points.write_text(points.read_text().replace(f",{median},", f",{best},", 1))
    code, out, _ = call(capsys, "report", directory, "--check", "--json")
    found = json.loads(out)["findings"]

    assert code == 1
    assert [(each["name"], each["runs"]) for each in found] == [("best-of-n", []), ("run-left-out", [extra.name])]
    assert (found[0]["series"], found[0]["workers"], found[0]["column"]) == (SERIES, 2, "samples_per_s_median")

    shutil.rmtree(extra)
    shutil.rmtree(study / PAIR[1])
    code, out, _ = call(capsys, "report", directory, "--check")
    assert code == 1
    assert "error run-gone: a run of the study is not there any more" in " ".join(out.split())
    assert PAIR[1] in out


@pytest.mark.slow
def test_runs_that_moved_are_asked_for(
    capsys: pytest.CaptureFixture[str], study: Path, tmp_path: Path, golden: Golden
) -> None:
    (tmp_path / "elsewhere").mkdir()
    directory = Path(shutil.move(study / "analysis", tmp_path / "elsewhere" / "deep"))
    code, out, err = call(capsys, "report", directory, "--check")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    golden(err, "--runs RUNS")

    code, out, _ = call(capsys, "report", directory, "--check", "--runs", study)
    assert code == 0

    (directory / "source.json").unlink()
    code, out, err = call(capsys, "report", directory, "--check")
    assert code == 2
    golden(err)
    (directory / "source.json").write_text("[]")
    code, out, err = call(capsys, "report", directory, "--check", "--runs", study)
    assert code == 2
    golden(err)


@pytest.mark.slow
def test_doubts_are_allowed_by_name(capsys: pytest.CaptureFixture[str], study: Path) -> None:
    for_all(PAIR[:1], oversubscribed)(study)
    assert call(capsys, "report", "--tables", study, "--out", study / "analysis")[0] == 0
    code, out, _ = call(capsys, "report", study / "analysis", "--check", "--allow", "oversubscribed-cores")
    assert code == 0 and "accepted: doubt oversubscribed-cores" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--runs", "x"], "--check"),
        (["--allow", "other-load"], "--allow"),
        (["--check", "--allow", "total-differs"], "--allow"),
    ],
)
def test_wrong_use_is_one_line(
    capsys: pytest.CaptureFixture[str], study: Path, words: list[str], message: str, golden: Golden
) -> None:
    code, out, err = call(capsys, "report", study / "analysis", *words)

    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    golden(err, message)


@pytest.mark.slow
def test_missing_and_damaged_files_are_findings(capsys: pytest.CaptureFixture[str], study: Path) -> None:
    directory = study / "analysis"
    (directory / "points.csv").unlink()
    for name, content in (("curves.csv", b"\xff\xfe"), ("breakdown.csv", b""), ("fits.json", b"{")):
        (directory / name).write_bytes(content)
    code, out, _ = call(capsys, "report", directory, "--check", "--json")
    found = {each["where"]: each for each in json.loads(out)["findings"]}

    assert code == 1
    assert {name: (each["name"], each["text"][:12]) for name, each in found.items()} == {
        "points.csv": ("file-missing", "is not there"),
        "curves.csv": ("file-missing", "is not a tex"),
        "breakdown.csv": ("file-missing", "is empty"),
        "fits.json": ("cell-differs", "says nothing"),
    }


@pytest.mark.parametrize(
    "content",
    [
        '{"schema": 99}',
        '{"schema": 1}',
        '{"schema": 1, "runs": 3}',
        '{"schema": 1, "runs": "..", "targets": ["x"]}',
        '{"schema": 1, "runs": "..", "only": {}}',
        '{"schema": 1, "runs": "/"}',
        '{"schema": 1, "runs": "../../../../../../../../../../../.."}',
        '{"schema": 1, "runs": "a\\u0000"}',
        '{"schema": 1, "runs": "..", "report": {"pictures": {"figures/a\\u0000.pdf": ""}}}',
        '{"schema": 1, "runs": "..", "files": {"../a.csv": {}}}',
        '{"schema": 1, "runs": "..", "run_files": {"/etc": {}}}',
        "{",
    ],
)
def test_a_hostile_source_is_one_line(tmp_path: Path, content: str, golden: Golden) -> None:
    (tmp_path / "source.json").write_text(content)
    with golden.raises(RecordError, match=r"source\.json"):
        records.read_source(tmp_path)


def test_a_terminal_is_not_steered_by_names(golden: Golden) -> None:
    finding = Fault(name="other-load", text="x\x1b[2J", series="a\x07b", runs=("r\n1",))
    told = check.lines(check.PageCheck(directory="d", runs=1, findings=(finding,)))

    assert not any(letter in line for line in told for letter in "\x1b\x07")
    golden(told[-1], "1 finding", "1 doubt")
