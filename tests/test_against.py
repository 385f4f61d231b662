"""Two studies against each other: known differences are found, equal studies are equal, and the gate says so."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from make.synthetic_runs import evaluation_table, run_table

from horovod_study import records
from horovod_study.analysis import against as compared
from horovod_study.analysis.against import compare_studies, gate
from horovod_study.analysis.learning.convergence import convergence
from horovod_study.analysis.series.points import scaling_points, with_series
from horovod_study.analysis.stats import holm, log_contrast
from horovod_study.analysis.steps.accounting import RUN_TABLE_COLUMNS as RUN_COLUMNS
from horovod_study.analysis.study import analyze
from horovod_study.cli import main
from horovod_study.errors import AnalysisError
from horovod_study.report import against
from horovod_study.report.kit.files import to_html, to_latex
from horovod_study.report.page import html

WAYS = (("serial", "none"), ("horovod", "mpi"))
TIMES = ("window_s", "step_s_median", "step_s_p90", "step_s", "data_s", "forward_s", "backward_s", "sync_s", "update_s")


def study(*, slower=1.0, **how):
    """A run table of a study whose steps are longer by a factor."""
    table = run_table(**{"workers": (1, 2, 4, 8), "ways": WAYS, "failed": (), "noise": 0.004, **how})
    factor = np.where(table["backend"] == "serial", 1.0, slower)
    changed = {name: table[name] * factor for name in TIMES} | {"samples_per_s": table["samples_per_s"] / factor}
    energy = {"energy_per_sample_j": 0.01 * factor, "energy_j": 1e3 * factor, "energy_of": "gpu"}
    return table.assign(**changed, **energy, started="2026-03-14T09:26:53+00:00")


def later(table):
    """The same runs with another scatter, as if they were measured again."""
    noise = np.exp(0.004 * np.random.default_rng(3).standard_normal(len(table)))
    changed = {name: table[name] / noise for name in TIMES} | {"samples_per_s": table["samples_per_s"] * noise}
    return table.assign(**changed, started="2026-03-20T09:00:00+00:00")


def quick(before, table):
    """What a study says that was measured as `before` was, without its fits: `table` is its run table."""
    named = with_series(table)
    columns = list(dict.fromkeys((*named.columns, *RUN_COLUMNS)))
    return replace(before, points=scaling_points(named), runs=named.reindex(columns=columns))


@pytest.fixture(scope="module")
def before():
    return analyze(study())


@pytest.fixture(scope="module")
def slow():
    """Its parallel runs have 0.9 of the throughput."""
    return analyze(later(study(slower=1 / 0.9)))


@pytest.fixture(scope="module")
def found(slow, before):
    return compare_studies(slow, before, names=("new", "old"))


def test_a_tenth_less_throughput_is_found_in_each_cell_and_what_follows_from_it(found):
    rows = found.of("throughput")
    parallel, plain = rows[rows["backend"] != "serial"], rows[rows["backend"] == "serial"]

    assert list(parallel["workers"]) == [1, 2, 4, 8]
    assert parallel["ratio"].to_numpy() == pytest.approx(0.9, abs=0.02)
    assert ((parallel["ratio_low"] < 0.9) & (0.9 < parallel["ratio_high"])).all()
    assert set(parallel["verdict"]) == {"worse"} and set(parallel["word"]) == {"slower"}
    assert list(plain["verdict"]) == ["no difference resolved"] and (rows["tests"] == 5).all()
    assert set(found.of("step").query("backend != 'serial'")["word"]) == {"longer"}
    assert set(found.of("sync")["workers"]) == {2, 4, 8}, "one worker waits for nobody"
    energy = found.of("energy").query("backend != 'serial'")
    assert energy["ratio"].to_numpy() == pytest.approx(1 / 0.9) and set(energy["word"]) == {"more"}


def test_the_numbers_are_those_of_the_runs_and_a_speedup_has_the_errors_of_both_baselines(found, slow, before):
    def runs(analysis, workers, backend="horovod"):
        return analysis.runs.query("workers == @workers and backend == @backend")["samples_per_s"].to_numpy()

    rates = [(1, runs(slow, 4)), (-1, runs(before, 4))]
    bases = [(-1, runs(slow, 1, "serial")), (1, runs(before, 1, "serial"))]
    for metric, parts in (("throughput", rates), ("speedup", rates + bases)):
        rows, effect = found.of(metric), log_contrast(parts)
        one = rows.query("workers == 4").iloc[0]
        assert one["ratio"] == pytest.approx(np.exp(sum(sign * np.log(values).mean() for sign, values in parts)))
        assert list(one[["ratio_low", "ratio_high", "p"]]) == pytest.approx([effect.low, effect.high, effect.p])
        assert list(rows["p_holm"]) == pytest.approx(list(holm(list(rows["p"]))))
        mean = np.exp(sum(sign * np.log(values).mean() for sign, values in parts[::2]))
        assert one["after"] == pytest.approx(mean) and one["before"] == pytest.approx(mean / one["ratio"])


def test_equal_studies_have_no_difference_and_one_against_itself_says_so(before, golden):
    found, itself = compare_studies(quick(before, later(study())), before), compare_studies(before, before)

    assert set(found.of("throughput")["verdict"]) == {"no difference resolved"}
    assert found.of("throughput")["no_more_than"].between(0.001, 0.1).all()
    golden(against.headline(found), "5 cells")
    assert gate(found, 0.05)["passed"]
    assert itself.differences["ratio"].dropna().to_numpy() == pytest.approx(1.0)
    golden(itself.doubts[0], "15 matched")


def test_the_other_way_round_is_the_inverse(found, slow, before):
    one, other = found.differences, compare_studies(before, slow).differences

    for name, inverse in (("ratio", "ratio"), ("ratio_low", "ratio_high"), ("ratio_high", "ratio_low")):
        assert one[name].to_numpy() == pytest.approx(1 / other[inverse].to_numpy(), nan_ok=True)
    assert list(one["p_holm"]) == pytest.approx(list(other["p_holm"]), nan_ok=True)
    assert list(one["verdict"].replace({"better": "worse", "worse": "better"})) == list(other["verdict"])


def test_neither_the_order_of_rows_nor_saving_them_matters(found, slow, before, tmp_path):
    def shuffled(analysis):
        tables = {name: getattr(analysis, name).sample(frac=1, random_state=3) for name in ("points", "runs")}
        return replace(analysis, **{name: each.reset_index(drop=True) for name, each in tables.items()})

    def saved(analysis, folder):
        records.save_tables(folder, analysis.tables(), analysis.documents())
        tables, documents = records.load_tables(folder, list(analysis.tables()), list(analysis.documents()))
        return type(analysis)(**tables, **documents)

    other = compare_studies(shuffled(slow), shuffled(before), names=("new", "old"))
    again = compare_studies(saved(slow, tmp_path / "new"), saved(before, tmp_path / "old"), names=("new", "old"))

    assert json.dumps(against.document(other)) == json.dumps(against.document(found))
    assert again.differences["ratio"].to_numpy() == pytest.approx(found.differences["ratio"].to_numpy(), nan_ok=True)
    assert list(again.differences["verdict"]) == list(found.differences["verdict"])


def test_cells_of_one_study_alone_are_listed_and_fail_the_gate(before, golden):
    table = later(study())
    gone = table[~((table["workers"] == 8) & (table["backend"] == "horovod"))]
    dead = {"status": "failed", "reason": "killed: out of memory", **dict.fromkeys(("samples_per_s", *TIMES), math.nan)}
    lost = table.assign(**{k: table[k].where(table["workers"] != 4, v) for k, v in dead.items()})

    for each in (gone, lost):
        compared_ = compare_studies(quick(before, each), before, names=("new", "old"))
        judged = gate(compared_, 0.05)
        assert len(compared_.of("throughput")) == 4 and len(judged["missing"]) == 1 and not judged["passed"]
        golden(against.gate_lines(compared_, judged)[0], "FAILED", "Horovod/MPI", "batch 75")
        assert not any(each["outcome"] == "failed" for each in judged["checks"])
    back = compare_studies(before, quick(before, gone))
    assert list(back.unmatched["study"]) == ["after"]
    assert gate(back, 0.05)["passed"], "a cell more is none that has vanished"


def test_another_cluster_or_a_setting_changed_as_a_whole_is_what_is_compared(before, golden):
    other = later(study(slower=0.5, partition="gpu2"))
    other["nodes"] = np.maximum(1, other["workers"] // 4)
    cluster = compare_studies(quick(before, other), before)
    fused = later(study()).assign(fusion_mb=lambda table: np.where(table["backend"] == "serial", None, 4.0))
    setting = compare_studies(quick(before, fused), before)

    assert cluster.matched_by_all_but == ("partition",)
    golden([cluster.matching, *against.texts(cluster)], "gpu2")
    eight = cluster.of("throughput").query("workers == 8").iloc[0]
    assert (eight["nodes"], eight["before_nodes"], eight["word"]) == (2, 1, "faster")
    assert setting.matched_by_all_but == ("fusion_mb",) and len(setting.of("throughput")) == 5
    golden(against.texts(setting))


def test_other_work_is_not_compared(before, golden):
    double = quick(before, study(batch=150))

    with golden.raises(AnalysisError, match="150 in after, 75 in"):
        compare_studies(double, before)
    with golden.raises(AnalysisError, match="6 in after"):
        compare_studies(quick(before, study(workers=(3, 6), ways=WAYS[1:])), before)


def test_too_few_repeats_are_no_verdict(before, golden):
    found = compare_studies(quick(before, later(study(repeats=2))), before)
    rows, judged = found.of("throughput"), gate(found, 0.05)

    assert set(rows["verdict"]) == {"too few repeats"} and rows["ratio_low"].isna().all()
    golden([against.headline(found), *found.doubts], "5 cells")
    assert judged["passed"] and {each["outcome"] for each in judged["checks"]} == {"undecided"}


def test_what_else_differs_is_named_and_a_plain_worker_that_changed_points_at_the_machine(before, golden):
    other = analyze(later(study(change={"torch": "2.14.0", "host": "node7"})).assign(budget="9 s"))
    found = compare_studies(other, before, names=("new", "old"))
    table = later(study()).assign(samples_per_s=lambda table: 0.8 * table["samples_per_s"])
    machine = compare_studies(quick(before, table), before)

    golden([*against.texts(found), found.doubts[1]], "2.13.0", "2.14.0", "node1", "node7", "9 s")
    golden(machine.doubts, "batch 75")
    assert set(machine.of("speedup")["verdict"]) == {"no difference resolved"}


def test_times_to_target_and_lower_bounds(before):
    def learned(table, waste=None):
        known = quick(before, table)
        met = convergence(known.runs, evaluation_table(table, waste=waste), targets=[1e-3, 6e-4])
        return replace(known, crossings=met.crossings)

    old, new = learned(study()), learned(later(study(slower=1 / 0.8)), waste={8: 40.0})
    rows = compare_studies(new, old).of("target")
    four, eight = rows.query("workers == 4"), rows.query("workers == 8")

    assert list(four["target_mse"]) == [1e-3, 6e-4] and set(four["word"]) == {"later"}
    assert set(eight["verdict"]) == {"not known"} and eight["ratio"].isna().all()
    assert set(eight["note"]) == {"3 of 3 runs after missed the target: the times are lower bounds"}


def test_energy_of_other_devices_is_not_compared(before):
    found = compare_studies(quick(before, later(study()).assign(energy_of="package")), before)

    assert set(found.of("energy")["note"]) == {"energy of gpu before, of package after"}
    assert {compared.outcome(row, 0.05) for row in found.of("energy").to_dict("records")} == {"undecided"}


def row(ratio, low, high, verdict, metric="throughput"):
    return {"metric": metric, "ratio": ratio, "ratio_low": low, "ratio_high": high, "verdict": verdict}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (row(0.90, 0.87, 0.93, "worse"), "failed"),
        (row(0.90, 0.79, 1.03, "no difference resolved"), "undecided"),
        (row(0.97, 0.96, 0.98, "worse"), "passed"),
        (row(0.97, 0.94, 0.99, "worse"), "undecided"),
        (row(1.10, 1.05, 1.15, "better"), "passed"),
        (row(0.90, math.nan, math.nan, "too few repeats"), "undecided"),
        (row(1.10, 1.07, 1.13, "worse", "sync"), "failed"),
        (row(0.90, 0.87, 0.93, "better", "sync"), "passed"),
    ],
)
def test_a_cell_fails_when_it_is_surely_worse_and_by_the_limit(values, expected):
    assert compared.outcome(values, 0.05) == expected


@pytest.mark.slow
@pytest.mark.parametrize("repeats", [3, 5])
def test_how_often_the_gate_is_wrong(repeats):
    """Nine cells, a scatter of 1 %: false alarms stay below 2.5 %, and a slowdown of 10 % in a cell is found."""
    rng = np.random.default_rng(repeats)
    alarms, hits, tries = 0, 0, 250
    for _ in range(tries):
        old, new = np.exp(0.01 * rng.standard_normal((2, 9, repeats)))
        for slow in (1.0, 0.9):
            new[0] *= slow
            effects = [log_contrast([(1, a), (-1, b)]) for a, b in zip(new, old, strict=True)]
            verdicts = [verdict for verdict, _ in compared.verdicts("throughput", effects)]
            rows = [row(e.value, e.low, e.high, v) for e, v in zip(effects, verdicts, strict=True)]
            failed = [compared.outcome(each, 0.0 if slow == 1 else 0.05) == "failed" for each in rows]
            alarms += slow == 1 and any(failed)
            hits += slow < 1 and failed[0]
    assert alarms / tries < 0.025 + 3 * math.sqrt(0.025 * 0.975 / tries)
    assert hits / tries > (0.8 if repeats == 3 else 0.97)


HOSTILE = "<script>alert(1)</script>\\input{x}|`=1+1`$%&\"'\x1b[31m"


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_hostile_names_are_escaped_everywhere():
    def named(table, partition):
        return table.assign(partition=partition, host=HOSTILE, study=HOSTILE, run=[HOSTILE + r for r in table["run"]])

    gone = named(later(study(slower=1 / 0.9)), HOSTILE + "x")
    after = analyze(gone[~((gone["workers"] == 4) & (gone["backend"] == "horovod"))])
    found = compare_studies(after, analyze(named(study(), HOSTILE)), names=(HOSTILE, "old"))
    told = (*against.lines(found), *against.gate_lines(found, gate(found, 0.05)))

    assert "<script>alert" not in html.render(after, against=found)
    assert "<script>" not in to_html(against.table(found)) and "\\input{x}" not in to_latex(against.table(found))
    assert not any("\x1b" in line for line in told)


def test_the_names_of_two_directories_tell_them_apart(tmp_path):
    assert against.names_of(tmp_path / "new" / "analysis", tmp_path / "old" / "analysis") == ("new", "old")
    assert against.names_of(tmp_path / "a", tmp_path / "a") == ("a", "a (before)")


@pytest.fixture(scope="module")
def directories(slow, before, tmp_path_factory):
    root = tmp_path_factory.mktemp("against")
    for name, analysis in (("new", slow), ("old", before)):
        written = records.save_tables(root / name, analysis.tables(), analysis.documents())
        records.write_source(root / name, root / "runs", files=written)
    return root


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_the_command_reports_and_fails(directories, found, capsys, golden):
    new, old = directories / "new", directories / "old"
    code = main(["report", str(new), "--against", str(old), "--fail-on", "5%"])
    page = (new / "report.html").read_text()

    assert code == 1
    golden(capsys.readouterr().out, "5 cells", "0 undecided", "0 missing")
    assert all((new / "tables" / f"against.{form}").is_file() for form in ("tex", "csv"))
    assert 0 < page.index('<section id="against">') < page.index('<section id="scaling">')
    golden.line(page, "5 cells")
    assert json.loads((new / "against.json").read_text())["gate"]["passed"] is False
    assert len(pd.read_csv(new / "tables" / "against.csv")) == len(found.differences)


def test_wrong_use_is_one_line(directories, capsys):
    new, old = str(directories / "new"), str(directories / "old")
    for words, message in (
        ([new, "--against", str(directories)], "holds no run"),
        ([new, "--against", old, "--fail-on", "quicker"], "--fail-on"),
        ([new, "--fail-on", "5%"], "--fail-on: goes with --against; give that too"),
        ([new, "--against", old, "--check"], "--against and --check ask for different things"),
    ):
        assert main(["report", *words]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
