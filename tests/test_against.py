"""Two studies against each other: known differences are found, equal studies are equal, and the gate says so."""

import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from make.synthetic_runs import evaluation_table, run_table

from horovod_study import records
from horovod_study.analysis import against as compared
from horovod_study.analysis.against import compare_studies, gate, read_limits
from horovod_study.analysis.learning.convergence import convergence
from horovod_study.analysis.series.points import scaling_points, with_series
from horovod_study.analysis.stats import log_contrast
from horovod_study.analysis.steps.run_profiles import RUN_COLUMNS
from horovod_study.analysis.study import analyze
from horovod_study.cli import command_line, main
from horovod_study.errors import AnalysisError, ConfigError
from horovod_study.report import against
from horovod_study.report.kit.typeset import to_latex, to_markdown
from horovod_study.report.page import html

WAYS = (("serial", "none"), ("horovod", "mpi"))
WORKERS = (1, 2, 4, 8)
TIMES = ("window_s", "step_s_median", "step_s_p90", "step_s", "data_s", "forward_s", "backward_s", "sync_s", "update_s")


def study(*, slower=1.0, started="2026-03-14T09:26:53+00:00", energy_j=0.01, **how):
    """A run table of a study whose steps are longer by a factor."""
    table = run_table(**{"workers": WORKERS, "ways": WAYS, "failed": (), "train_samples": 7500, "noise": 0.004, **how})
    factor = np.where(table["backend"] == "serial", 1.0, slower)
    changed = {name: table[name] * factor for name in (*TIMES, "residual_s")}
    return table.assign(
        **changed,
        samples_per_s=table["samples_per_s"] / factor,
        started=started,
        energy_per_sample_j=energy_j * factor,
        energy_j=energy_j * factor * 1e5,
        energy_of="gpu",
    )


def later(table, seed=3):
    """The same runs with another scatter, as if they were measured again."""
    rng = np.random.default_rng(seed)
    noise = np.exp(0.004 * rng.standard_normal(len(table)))
    times = {name: table[name] / noise for name in (*TIMES, "residual_s")}
    return table.assign(**times, samples_per_s=table["samples_per_s"] * noise, started="2026-03-20T09:00:00+00:00")


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


@pytest.mark.slow
def test_a_tenth_less_throughput_is_found_in_each_cell(found):
    rows = found.of("throughput")
    parallel = rows[rows["backend"] != "serial"]

    assert list(parallel["workers"]) == list(WORKERS)
    assert parallel["ratio"].to_numpy() == pytest.approx(0.9, abs=0.02)
    assert ((parallel["ratio_low"] < 0.9) & (0.9 < parallel["ratio_high"])).all()
    assert set(parallel["verdict"]) == {"worse"} and set(parallel["word"]) == {"slower"}
    assert list(rows.loc[rows["backend"] == "serial", "verdict"]) == ["no difference resolved"]
    assert (rows["tests"] == 5).all()


def test_what_follows_from_it_is_found_too(found):
    assert set(found.of("step").query("backend != 'serial'")["word"]) == {"longer"}
    assert set(found.of("sync")["workers"]) == {2, 4, 8}, "one worker waits for nobody"
    energy = found.of("energy").query("backend != 'serial'")
    assert energy["ratio"].to_numpy() == pytest.approx(1 / 0.9) and set(energy["word"]) == {"more"}


def test_a_speedup_carries_the_errors_of_both_baselines(found, slow, before):
    speedup, throughput, efficiency = (found.of(name) for name in ("speedup", "throughput", "efficiency"))
    parallel = throughput[throughput["backend"] != "serial"]
    plain = throughput[throughput["backend"] == "serial"].iloc[0]

    assert speedup["ratio"].to_numpy() == pytest.approx(parallel["ratio"].to_numpy() / plain["ratio"])
    width = np.log(speedup["ratio_high"] / speedup["ratio_low"]).to_numpy()
    assert (width > np.log(parallel["ratio_high"] / parallel["ratio_low"]).to_numpy() * 0.9).all()
    assert efficiency["ratio"].to_numpy() == pytest.approx(speedup["ratio"].to_numpy())
    assert efficiency["before"].to_numpy() == pytest.approx(
        speedup["before"].to_numpy() / speedup["workers"].to_numpy()
    )


def test_equal_studies_have_no_difference(before, golden):
    found = compare_studies(quick(before, later(study())), before)

    assert set(found.of("throughput")["verdict"]) == {"no difference resolved"}
    assert found.of("throughput")["no_more_than"].between(0.001, 0.1).all()
    golden(against.headline(found), "5 cells")
    assert gate(found, read_limits(["slower=5%", "missing"])).passed


def test_a_study_against_itself_says_so(before, golden):
    found = compare_studies(before, before)

    assert found.differences["ratio"].dropna().to_numpy() == pytest.approx(1.0)
    golden(found.doubts[0], "15 matched")


def test_the_other_way_round_is_the_inverse(found, slow, before):
    back = compare_studies(before, slow)

    for name, other in (("ratio", "ratio"), ("ratio_low", "ratio_high"), ("ratio_high", "ratio_low")):
        ones, others = (each.differences[column].to_numpy() for each, column in ((found, name), (back, other)))
        assert ones == pytest.approx(1 / others, nan_ok=True)
    assert list(found.differences["p_holm"]) == pytest.approx(list(back.differences["p_holm"]), nan_ok=True)
    turned = {"better": "worse", "worse": "better"}
    assert [turned.get(each, each) for each in found.differences["verdict"]] == list(back.differences["verdict"])
    assert found.laws["difference"].to_numpy() == pytest.approx(-back.laws["difference"].to_numpy())


def test_the_order_of_rows_does_not_matter(found, slow, before):
    def shuffled(analysis):
        tables = {name: getattr(analysis, name).sample(frac=1, random_state=3) for name in ("points", "runs")}
        return replace(analysis, **{name: each.reset_index(drop=True) for name, each in tables.items()})

    other = compare_studies(shuffled(slow), shuffled(before), names=("new", "old"))

    assert json.dumps(other.to_dict()) == json.dumps(found.to_dict())


@pytest.mark.slow
def test_saved_and_read_again_gives_the_same(found, slow, before, tmp_path):
    read = []
    for name, analysis in (("new", slow), ("old", before)):
        records.save_tables(tmp_path / name, analysis.tables(), analysis.documents())
        tables, documents = records.load_tables(tmp_path / name, list(analysis.tables()), list(analysis.documents()))
        read.append(type(analysis)(**tables, **documents))

    again = compare_studies(*read, names=("new", "old"))

    assert again.differences["ratio"].to_numpy() == pytest.approx(found.differences["ratio"].to_numpy(), nan_ok=True)
    assert list(again.differences["verdict"]) == list(found.differences["verdict"])


@pytest.mark.slow
def test_cells_of_one_study_alone_are_listed_and_fail_the_gate(before, golden):
    table = later(study())
    gone = table[~((table["workers"] == 8) & (table["backend"] == "horovod"))]
    dead = {"status": "failed", "reason": "killed: out of memory", **dict.fromkeys(("samples_per_s", *TIMES), math.nan)}
    lost = table.assign(**{k: table[k].where(table["workers"] != 4, v) for k, v in dead.items()})

    absent, failed = (compare_studies(quick(before, each), before, names=("new", "old")) for each in (gone, lost))

    golden(list(absent.unmatched["reason"]))
    golden(list(failed.unmatched["reason"]))
    for each in (absent, failed):
        assert len(each.of("throughput")) == 4
        judged = gate(each, read_limits(["missing"]))
        assert not judged.passed and len(judged.missing) == 1
        golden(against.gate_lines(each, judged)[0], "FAILED", "Horovod/MPI", "batch 75")
        assert gate(each, read_limits(["slower=5%"])).passed
    back = compare_studies(before, quick(before, gone))
    assert list(back.unmatched["study"]) == ["after"]
    assert gate(back, read_limits(["missing"])).passed, "a cell more is none that has vanished"


def test_another_cluster_is_matched_by_all_but_the_partition(before, golden):
    other = later(study(slower=0.5, partition="gpu2"))
    other["nodes"] = np.maximum(1, other["workers"] // 4)
    found = compare_studies(quick(before, other), before)

    assert found.may_differ == ("partition",)
    golden(found.matching, "gpu2")
    eight = found.of("throughput").query("workers == 8").iloc[0]
    assert (eight["nodes"], eight["before_nodes"], eight["word"]) == (2, 1, "faster")
    with golden.raises(AnalysisError, match="gpu2.*--match"):
        compare_studies(quick(before, other), before, may_differ=())


def test_a_setting_that_was_changed_as_a_whole_is_the_change(before, golden):
    table = later(study())
    table["fusion_mb"] = np.where(table["backend"] == "serial", None, 4.0)
    found = compare_studies(quick(before, table), before)

    assert found.may_differ == ("fusion_mb",)
    golden([each.text for each in found.changes])
    assert len(found.of("throughput")) == 5


def test_another_batch_is_other_work(before, golden):
    double = quick(before, study(batch=150))

    with golden.raises(AnalysisError, match="150 against 75.*--match"):
        compare_studies(double, before)
    found = compare_studies(double, before, may_differ=read_match("except:batch"))
    assert len(found.of("throughput")) == 5


def test_other_worker_counts_cannot_be_matched(before, golden):
    table = study(workers=(3, 6), ways=(("horovod", "mpi"),))

    with golden.raises(AnalysisError, match="6 against"):
        compare_studies(quick(before, table), before)


def test_too_few_repeats_are_no_verdict(before, golden):
    found = compare_studies(quick(before, later(study(repeats=2))), before)
    rows = found.of("throughput")

    assert set(rows["verdict"]) == {"too few repeats"} and rows["ratio_low"].isna().all()
    golden(against.headline(found), "5 cells")
    golden(found.doubts, "5 matched", "3 repeats")
    limits = ["slower=5%"]
    assert gate(found, read_limits(limits)).passed
    assert not gate(found, read_limits([*limits, "unresolved"])).passed


def in_turns(table, minute):
    """Runs that started repeat by repeat, `minute` minutes into each."""
    return table.assign(started=[f"2026-03-14T{9 + repeat:02d}:{minute:02d}:00+00:00" for repeat in table["repeat"]])


@pytest.mark.slow
def test_runs_that_took_turns_are_paired(before, golden):
    drift = np.array([1.0, 0.9, 1.1, 0.95, 1.05])

    def drifting(table, minute):
        factor = drift[table["repeat"].to_numpy()]
        return quick(before, in_turns(table.assign(samples_per_s=table["samples_per_s"] * factor), minute))

    old = drifting(study(repeats=5), 0)
    new = drifting(study(repeats=5, slower=1 / 0.95, seed=9), 30)
    paired = compare_studies(new, old)

    assert paired.interleaved and set(paired.of("throughput")["test"]) == {"paired t on logarithms"}
    assert not any("alternate" in doubt for doubt in paired.doubts)
    parallel = paired.of("throughput").query("backend != 'serial'")
    assert set(parallel["word"]) == {"slower"}, "the common drift cancels"
    apart = compare_studies(replace(new, runs=new.runs.assign(started="2026-04-01T09:00:00+00:00")), old)
    assert set(apart.of("throughput")["verdict"]) == {"no difference resolved"}
    golden(apart.doubts, "2026-03-14", "2026-04-01")


@pytest.mark.slow
def test_what_else_differs_is_named(before):
    other = analyze(later(study(change={"torch": "2.14.0", "host": "node7"})).assign(budget="9 s"))
    found = compare_studies(other, before, names=("new", "old"))

    assert {each.what: (each.before, each.after) for each in found.changes} == {
        "host": ("node1", "node7"),
        "torch": ("2.13.0", "2.14.0"),
        "budget": ("", "9 s"),
    }
    assert any(
        doubt.startswith("3 things differ between old and new (host: node1 before, node7 after; torch: 2.13.0")
        for doubt in found.doubts
    )


def test_a_plain_worker_that_changed_points_at_the_machine(before, golden):
    table = later(study())
    table["samples_per_s"] *= 0.8
    found = compare_studies(quick(before, table), before)

    golden(found.doubts, "batch 75")
    assert set(found.of("speedup")["verdict"]) == {"no difference resolved"}


@pytest.mark.slow
def test_times_to_target_and_lower_bounds(before):
    def learned(table, waste=None):
        known = quick(before, table)
        return replace(
            known,
            crossings=convergence(known.runs, evaluation_table(table, waste=waste), targets=[1e-3, 6e-4]).crossings,
        )

    old, new = learned(study()), learned(later(study(slower=1 / 0.8)), waste={8: 40.0})
    rows = compare_studies(new, old).of("target")

    four = rows.query("workers == 4")
    assert list(four["target_mse"]) == [1e-3, 6e-4]
    assert set(four["word"]) == {"later"}
    eight = rows.query("workers == 8")
    assert set(eight["verdict"]) == {"not known"} and eight["ratio"].isna().all()
    assert set(eight["note"]) == {"3 of 3 runs after missed the target: the times are lower bounds"}


def test_energy_of_other_devices_is_not_compared(before):
    found = compare_studies(quick(before, later(study()).assign(energy_of="package")), before)

    assert set(found.of("energy")["note"]) == {"energy of gpu before, of package after"}
    judged = gate(found, read_limits(["energy=5%", "unresolved"]))
    assert not judged.passed and {each.outcome for each in judged.checks} == {"undecided"}


def test_laws_differ_with_intervals(found):
    slope = found.laws.query("law == 'linear' and parameter == 'slope'").iloc[0]

    assert slope["difference"] == pytest.approx(slope["after"] - slope["before"])
    assert slope["low"] < slope["difference"] < slope["high"]
    assert slope["verdict"] == "lower"


# ------------------------------------------------------------------------------------------------------ gate


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["slowr=5%"],
            "--fail-on slowr=5%.*slower.*slower=PERCENT",
        ),
        (["slower"], "slower=5%"),
        (["slower=5"], "slower=5%"),
        (["slower=-5%"], ""),
        (["slower=nan%"], ""),
        (["missing=3%"], "--fail-on"),
        (["slower=5%", "slower=7%"], ""),
    ],
)
def test_wrong_limits_name_the_right_ones(words, message, golden):
    with golden.raises(ConfigError, match=message or None):
        read_limits(words)


def test_limits_are_shares():
    assert read_limits(["slower=5%", "sync=10 %", "missing"]) == {"slower": 0.05, "sync": 0.1, "missing": 0.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partition", "--match"),
        ("except:", ""),
        ("except:bacth", "batch"),
        ("except:workers", ""),
    ],
)
def test_wrong_ways_to_match(text, message, golden):
    with golden.raises(ConfigError, match=message or None):
        read_match(text)


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


def test_the_gate_names_each_failing_cell(found):
    judged = gate(found, read_limits(["slower=5%", "missing"]))
    told = against.gate_lines(found, judged)

    assert not judged.passed and len(told) == 5
    assert told[3].startswith("FAILED slower: Horovod/MPI, batch 75, 8 workers: throughput ")
    assert told[3].endswith("; limit 5\u202f%") and "before" in told[3] and "[" in told[3]
    assert told[-1] == "gate FAILED: 4 failed, 0 undecided, 1 passed, 0 missing"


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
            limit = 0.0 if slow == 1 else 0.05
            failed = [
                compared.outcome(row(e.value, e.low, e.high, v), limit) == "failed"
                for e, v in zip(effects, verdicts, strict=True)
            ]
            alarms += slow == 1 and any(failed)
            hits += slow < 1 and failed[0]
    assert alarms / tries < 0.025 + 3 * math.sqrt(0.025 * 0.975 / tries)
    assert hits / tries > (0.8 if repeats == 3 else 0.97)


# ------------------------------------------------------------------------------------------------------ for readers


def test_the_headline_counts_and_names_the_worst(found, golden):
    text = against.headline(found)

    golden(text, "5 cells")
    assert text.endswith(" over Horovod/MPI") and "[" in text


def test_terminal_lines_are_a_table_and_hide_no_control_characters(slow, before):
    found = compare_studies(slow, before, names=("new\x1b[31m", "old"))
    told = against.lines(found)

    assert not any("\x1b" in line for line in told)
    assert any(line.startswith("Horovod/MPI, batch 75, 8 workers ") and line.endswith("slower") for line in told)


HOSTILE = "<script>alert(1)</script>\\input{x}|`=1+1`$%&\"'\x1b[31m"


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_hostile_names_are_escaped_everywhere():
    def named(table, partition):
        return table.assign(partition=partition, host=HOSTILE, study=HOSTILE, run=[HOSTILE + r for r in table["run"]])

    one = analyze(named(study(), HOSTILE))
    gone = named(later(study(slower=1 / 0.9)), HOSTILE + "x")
    gone = gone[~((gone["workers"] == 4) & (gone["backend"] == "horovod"))]
    found = compare_studies(analyze(gone), one, names=(HOSTILE, "old"))
    page = html.render(found.after, against=found)

    assert "<script>alert" not in page
    table = against.table(found)
    assert "<script>" not in to_markdown(table)
    assert "\\input{x}" not in to_latex(table)
    assert all(
        "\x1b" not in line
        for line in (*against.lines(found), *against.gate_lines(found, gate(found, {"missing": 0.0})))
    )


@pytest.mark.parametrize("width_in", [2.8, 5.9])
def test_the_figure_draws_what_the_table_says(found, width_in):
    drawing = against.drawing(found)
    with style():
        figure = drawing.draw(width_in)

    assert figure.get_size_inches()[0] == width_in
    assert list(drawing.data["ratio"]) == list(found.of("throughput")["ratio"])
    assert "did not alternate" in drawing.caption


def test_the_names_of_two_directories_tell_them_apart(tmp_path):
    assert against.names_of(tmp_path / "new" / "analysis", tmp_path / "old" / "analysis") == ("new", "old")
    assert against.names_of(tmp_path / "a", tmp_path / "b") == ("a", "b")
    assert against.names_of(tmp_path / "a", tmp_path / "a") == ("a", "a (before)")


# ------------------------------------------------------------------------------------------------------ the command


@pytest.fixture(scope="module")
def directories(slow, before, tmp_path_factory):
    root = tmp_path_factory.mktemp("against")
    for name, analysis in (("new", slow), ("old", before)):
        written = records.save_tables(root / name, analysis.tables(), analysis.documents())
        records.write_source(root / name, root / "runs", files=written)
    return root


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_the_command_reports_and_fails(directories, capsys, golden):
    new, old = str(directories / "new"), str(directories / "old")
    code = main(["report", new, "--against", old, "--fail-on", "slower=5%", "missing", "--width", "column"])
    out = capsys.readouterr().out

    assert code == 1
    golden(out, "5 cells")
    assert "gate FAILED: 4 failed, 0 undecided, 1 passed, 0 missing\nreport: " in out
    names = {f"figures/against.{form}" for form in ("pdf", "svg", "png", "txt", "csv")}
    names |= {f"tables/against.{form}" for form in ("tex", "csv", "md")} | {"against.json", "report.html"}
    assert all((directories / "new" / name).is_file() for name in names)
    page = (directories / "new" / "report.html").read_text()
    assert 0 < page.index('<section id="against">') < page.index('<section id="scaling">')
    golden.line(page, "5 cells")
    assert json.loads((directories / "new" / "against.json").read_text())["gate"]["passed"] is False
    assert pd.read_csv(directories / "new" / "tables" / "against.csv")["metric"].nunique() >= 5


def test_wrong_use_is_one_line(directories, capsys):
    new, old = str(directories / "new"), str(directories / "old")
    for words, message in (
        ([new, "--against", str(directories)], "holds no run"),
        ([new, "--against", old, "--fail-on", "quicker=5%"], "'quicker' is not known; allowed: slower=PERCENT"),
        ([new, "--fail-on", "slower=5%"], "--fail-on: is about another study; name its directory with --against"),
        ([new, "--match", "exact"], "--match: is about another study"),
        ([new, "--against", old, "--check"], "--against and --check ask for different things"),
    ):
        assert main(["report", *words]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def test_every_command_of_the_page_is_one_that_the_program_takes():
    page = (Path(__file__).parents[1] / "docs" / "compare_studies.md").read_text(encoding="utf-8")
    commands = re.findall(r"horovod-study (report .*|run .*)", page)
    parsed = [
        command_line().parse_strictly(shlex.split(each)) for each in commands if not each.startswith("report RUNS")
    ]

    assert len(parsed) == 5
    gates = [options for options in parsed if getattr(options, "fail_on", None)]
    assert len(gates) == 2 and all(read_limits(options.fail_on) for options in gates)
    for word in (*compared.GATE_WORDS, *compared.BARE_WORDS):
        assert f"`{word}" in page, f"docs/compare_studies.md does not say what {word} fails on"
