"""The tables of published scaling data, and the benchmark that forecasts them."""

import importlib.util
import math
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from horovod_study.analysis.laws import LAWS

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PUBLISHED = BENCHMARKS / "published"
TABLES = sorted(path for path in PUBLISHED.glob("*.csv") if path.name != "sources.csv")


def load() -> ModuleType:
    """benchmarks/forecast.py as a module."""
    spec = importlib.util.spec_from_file_location("forecast_benchmark", BENCHMARKS / "forecast.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


forecast = load()


# The tables


@pytest.fixture(scope="module")
def sources() -> dict[str, dict[str, str]]:
    return forecast.read_sources(PUBLISHED)


@pytest.fixture(params=TABLES, ids=lambda path: path.stem, scope="module")
def table(request: pytest.FixtureRequest) -> pd.DataFrame:
    return pd.read_csv(request.param).assign(source=request.param.stem)


def test_every_table_has_a_source_and_every_source_a_table(sources: dict[str, dict[str, str]]):
    assert sorted(sources) == sorted(path.stem for path in TABLES)
    for name, row in sources.items():
        assert [column for column, text in row.items() if not text.strip()] == [], name
        assert row["kind"] in forecast.KINDS, name
        assert row["scaling"] in ("weak", "strong", "mixed", "weak and strong", "strong and weak"), name


@pytest.mark.slow
def test_there_is_enough_to_judge_by(sources: dict[str, dict[str, str]]):
    series = {path.stem: {task.series for task in forecast.read_tasks(path)} for path in TABLES}
    training = [name for name, row in sources.items() if row["kind"] == "training"]

    assert len(training) >= 12
    assert sum(len(series[name]) for name in training) >= 300


@pytest.mark.slow
def test_each_submitter_is_in_one_half_and_both_halves_are_large():
    tasks, sources = forecast.published(PUBLISHED, [])

    for half in ("constants", "unseen"):
        of_half = {name for name, row in sources.items() if row["used_for"] == half and "training" in row["kind"]}
        assert len(of_half) >= 9
        assert len({task.series for task in tasks if task.source in of_half}) >= 96
    assert sources["nvidia"]["used_for"] == sources["nvidia-more"]["used_for"] == sources["mlperf NVIDIA"]["used_for"]
    assert [forecast.half(name) for name in ("apache", "NVIDIA", "nvidia")] == ["unseen", "constants", "constants"]


def test_columns_and_roles(table: pd.DataFrame):
    assert tuple(table.columns.drop("source")) == forecast.COLUMNS
    assert set(table["role"]) == {"known", "target"}
    assert all(name.startswith(f"{table['source'].iloc[0]}/") for name in table["task"])


def test_numbers_are_positive_where_they_are_given(table: pd.DataFrame):
    for column in ("workers", "samples_per_s", "nodes", "workers_per_node", "sync_s", "batch_size"):
        given = table[column].dropna()
        assert np.isfinite(given).all() and (given > 0).all(), column
    for column in ("workers", "nodes", "workers_per_node", "repeat"):
        assert (table[column].dropna() % 1 == 0).all(), column
    assert table[["workers", "samples_per_s"]].notna().all(axis=None)


def test_workers_fit_on_their_nodes(table: pd.DataFrame):
    placed = table.dropna(subset=["nodes", "workers_per_node"])

    assert (placed["workers"] <= placed["nodes"] * placed["workers_per_node"]).all()
    assert (table["nodes"].isna() | (table["workers"] >= table["nodes"])).all()


def test_nothing_stands_twice(table: pd.DataFrame):
    known, targets = table[table["role"] == "known"], table[table["role"] == "target"]

    assert not known.duplicated(["task", "workers", "repeat"]).any()
    assert not targets.duplicated(["task", "workers"]).any()
    assert targets["repeat"].isna().all()
    several = known.groupby(["task", "workers"])["repeat"]
    assert (several.count() == several.size())[several.size() > 1].all(), "runs of one count have numbers"


@pytest.mark.slow
def test_targets_lie_beyond_at_least_two_known_counts(table: pd.DataFrame):
    for task, rows in table.groupby("task"):
        known, targets = rows[rows["role"] == "known"], rows[rows["role"] == "target"]
        assert known["workers"].nunique() >= 2, task
        assert len(targets) >= 1, task
        assert targets["workers"].min() > known["workers"].max(), task
        cut = f"N<={known['workers'].max()}->{targets['workers'].max()}"
        assert str(task).endswith(f"/{cut}"), task


def test_a_target_says_nothing_that_would_have_to_be_measured(table: pd.DataFrame, sources: dict[str, dict[str, str]]):
    targets = table[table["role"] == "target"]
    told = sources[table["source"].iloc[0]]["kind"] == forecast.BATCH_TOLD

    assert targets["sync_s"].isna().all()
    assert (targets["batch_size"].notna() == told).all(), (
        "a batch is chosen, not measured, and then told for every target"
    )


def test_numbers_as_published():
    def at(name: str, series: str, workers: int) -> float:
        rows = pd.read_csv(PUBLISHED / f"{name}.csv")
        found = rows[rows["task"].str.contains(f"/{series}/", regex=False) & (rows["workers"] == workers)]
        return float(found["samples_per_s"].iloc[0])

    assert at("mxnet", "resnet-152", 256) == 4630.42
    assert at("dlperf", "TensorFlow bert line 288", 32) == 1551.52
    assert at("maxtext", "v5e 16B", 8192) == 108 * 8192
    assert at("octotiger", "level 9", 64) == 6751.801674
    assert at("oceananigans", "shallow water strong", 128) == pytest.approx(1 / 0.060256)
    assert at("tensorpack", "tensorflow/benchmarks replicated gpu", 8) == 1580.58


@pytest.mark.parametrize("page", ["docs/predict.md", "benchmarks/published/README.md"])
def test_links_lead_somewhere(page: str):
    path = BENCHMARKS.parent / page
    links = re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8"))

    # The results are written by the benchmark itself.
    missing = [link for link in links if not link.startswith("http") and not (path.parent / link).exists()]
    assert [link for link in missing if "benchmarks/results/" not in link] == []


# The benchmark, on a source whose answers are known


def write_exact(folder: Path) -> None:
    """Write two tables: X = 100 N (every law that can be proportional is exact), and X = 100 N / (1 + 0.1 (N - 1))."""
    curves = {"line": lambda n: 100 * n, "amdahl": lambda n: 100 * n / (1 + 0.1 * (n - 1))}
    for name, curve in curves.items():
        rows = [
            (
                f"{name}/exact/N<=8->32",
                "known" if n <= 8 else "target",
                n,
                curve(n),
                1,
                32,
                "",
                10 if n <= 8 else "",
                "",
            )
            for n in (1, 2, 4, 8, 16, 32)
        ]
        pd.DataFrame(rows, columns=list(forecast.COLUMNS)).to_csv(folder / f"{name}.csv", index=False)
    head = "table,submitter,kind,repository,commit,path,system,scaling,unit\n"
    line = "line,NVIDIA,training,r,c,p,s,weak,u\n"
    (folder / "sources.csv").write_text(head + line + "amdahl,apache,training,r,c,p,s,strong,u\n")


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], pd.DataFrame]:
    folder = tmp_path_factory.mktemp("tables")
    write_exact(folder)
    result, table, _ = forecast.measure(*forecast.published(folder, []))
    return result, table


def error(table: pd.DataFrame, source: str, method: str) -> list[float]:
    rows = table[(table["source"] == source) & (table["method"] == method)]
    assert len(rows) == 2, (source, method)
    return list(rows["error"])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["linear", "amdahl", "gustafson", "power", "ring", "proportional", "forecast"])
def test_a_straight_line_is_foretold_exactly(exact: tuple[dict[str, object], pd.DataFrame], method: str):
    # What published trainings lose is a part of the forecast, a quarter with four counts.
    assert error(exact[1], "line", method) == pytest.approx([0, 0], abs=0.005 if method == "forecast" else 1e-6)


@pytest.mark.slow
def test_each_law_is_fitted_to_the_known_rows_alone(exact: tuple[dict[str, object], pd.DataFrame]):
    assert error(exact[1], "amdahl", "amdahl") == pytest.approx([0, 0], abs=1e-6)
    # At 8 workers 100 * 8 / 1.7; proportional to that, 16 and 32 workers are 2.5 / 1.7 and 4.1 / 1.7 times too high.
    assert error(exact[1], "amdahl", "proportional") == pytest.approx([2.5 / 1.7 - 1, 4.1 / 1.7 - 1])


@pytest.mark.slow
def test_every_law_is_among_the_methods(exact: tuple[dict[str, object], pd.DataFrame]):
    methods = set(exact[1]["method"])

    assert {"forecast", "selected", "proportional", *LAWS} <= methods
    assert {f"{law.name}, fixed work" for law in LAWS.values() if law.of_steps} <= methods


@pytest.mark.slow
def test_extra_p_is_among_them_or_is_missed(exact: tuple[dict[str, object], pd.DataFrame]):
    asked = [method for method in set(exact[1]["method"]) if method.startswith("Extra-P")]

    if importlib.util.find_spec("extrap") is None:
        assert asked == []
        return
    assert len(asked) == 1, "the best way to ask it stands for it"
    assert error(exact[1], "line", asked[0]) == pytest.approx([0, 0], abs=1e-6)


@pytest.mark.slow
def test_a_told_batch_makes_the_step_known(tmp_path: Path):
    """Steps of 1 ms + 0.1 ms x batch: the line through two of them is exact, and the law that knows no batch is not."""
    step = {n: 1e-3 + 1e-4 * batch for n, batch in ((8, 100), (16, 50), (64, 10))}
    rows = [
        ("told/exact/N<=16->64", "known" if n < 64 else "target", n, n * batch / step[n], 1, 64, "", batch, "")
        for n, batch in ((8, 100), (16, 50), (64, 10))
    ]
    pd.DataFrame(rows, columns=list(forecast.COLUMNS)).to_csv(tmp_path / "told.csv", index=False)
    kind = f'told,NVIDIA,"{forecast.BATCH_TOLD}",r,c,p,s,mixed,u\n'
    (tmp_path / "sources.csv").write_text(f"table,submitter,kind,repository,commit,path,system,scaling,unit\n{kind}")

    result, table, _ = forecast.measure(*forecast.published(tmp_path, []))

    errors = table.set_index("method")["error"]
    assert errors[forecast.STRAIGHT] == pytest.approx(0, abs=1e-9)
    assert errors["forecast"] < 0.1 < errors["proportional"]
    assert list(result["groups"]) == [f"constants: {forecast.BATCH_TOLD}"], (
        "what knows a batch is compared with nothing else"
    )


@pytest.mark.slow
def test_halves_are_kept_apart(exact: tuple[dict[str, object], pd.DataFrame]):
    groups = exact[0]["groups"]
    assert isinstance(groups, dict)

    assert list(groups) == ["unseen", "unseen: training", "constants", "constants: training"]
    assert groups["constants"]["scores"]["proportional"]["median_ape"] == 0
    assert groups["unseen"]["scores"]["proportional"]["median_ape"] == pytest.approx((2.5 + 4.1) / 1.7 / 2 - 1)
    assert groups["unseen"]["scores"]["proportional"]["targets"] == 2


def guesses(method: str, errors: list[float], *, reach: float = math.nan) -> list[object]:
    """Forecasts of 100 that are off by `errors`, two targets a series, with intervals of +-`reach`."""
    return [
        forecast.Guess(
            task=f"s/{i // 2}/t{i}",
            series=f"s/{i // 2}",
            source="s",
            method=method,
            workers=8,
            measured=100.0,
            forecast=100 * (1 + one),
            low=100 * (1 + one) - reach,
            high=100 * (1 + one) + reach,
        )
        for i, one in enumerate(errors)
    ]


def test_scores_of_errors_made_by_hand():
    table = forecast.frame(guesses("forecast", [0.0, 0.1, -0.2, 0.3], reach=15.0))
    found = forecast.scores(table)["forecast"]

    assert found["targets"] == 4
    assert found["median_ape"] == pytest.approx(0.15)
    assert found["worst_decile_ape"] == pytest.approx(0.27)
    assert found["coverage"] == 0.5, "0 and 10 % off are within 15, 20 and 30 % do not"
    assert found["median_width"] == pytest.approx(np.median([30 / 100, 30 / 110, 30 / 80, 30 / 130]))


def test_a_method_without_intervals_has_no_coverage():
    found = forecast.scores(forecast.frame(guesses("proportional", [0.1])))["proportional"]

    assert (found["coverage"], found["median_width"]) == (None, None)


@pytest.mark.parametrize("answer", [0.0, -5.0, math.inf, math.nan])
def test_an_answer_that_is_no_throughput_counts_as_zero(answer: float):
    one = forecast.Guess(
        task="t", series="s", source="s", method="m", workers=8, measured=100.0, forecast=answer, low=math.nan
    )

    assert list(forecast.frame([one])["error"]) == [1.0]


def test_the_paired_comparison_is_on_common_targets():
    ours = guesses("forecast", [0.1, 0.1, 0.1, 0.1])
    other = guesses("other", [0.3, -0.3, 0.05])
    found = forecast.paired(forecast.frame([*ours, *other]))["other"]

    assert found["targets"] == 3
    assert found["difference"] == pytest.approx(0.1 - 0.3)
    assert found["closer"] == pytest.approx(2 / 3)
    low, high = found["ci95"]
    assert low <= found["difference"] <= high
    assert low == pytest.approx(-0.2) and high == pytest.approx(0.05), "of two series, each may be drawn twice"


def test_the_interval_draws_whole_series():
    """Points of one series are no independent witnesses: a single series leaves nothing to draw."""
    other = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    table = forecast.frame([*guesses("forecast", [0.0] * 6), *guesses("other", other)])
    several, one = table, table.assign(series="s/0")

    low, high = forecast.paired(several)["other"]["ci95"]
    assert low < -0.35 < high
    assert forecast.paired(one)["other"]["ci95"] == pytest.approx([-0.35, -0.35])


@pytest.mark.slow
def test_the_same_tables_give_the_same_page(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    write_exact(tmp_path)
    pages = []
    for name in ("a", "b"):
        monkeypatch.setattr(
            sys, "argv", ["forecast.py", "--tables", str(tmp_path), "--only", "line", "--out", str(tmp_path / name)]
        )
        assert forecast.main() == 0
        pages.append((tmp_path / name / "forecast.md").read_text())
    shown = capsys.readouterr().out

    assert pages[0] == pages[1]
    assert shown.startswith("# Forecasts of published scaling data\n")
    assert "## Sources: constants" in shown and "## Sources: unseen" not in shown
    assert re.search(r"\| \*\*forecast\*\* \| 2 \| 0\.\d % \|", shown)
    listed = pd.read_csv(tmp_path / "a" / "forecasts.csv")
    assert sorted(zip(listed["workers"], listed["measured"], strict=True)) == [(16, 1600), (32, 3200)]


def test_a_long_table_is_cut_into_what_is_known_and_what_is_asked(tmp_path: Path):
    rows = [(who, n, n / 8, b, r, n * b / (0.1 + 0.01 * b)) for r in range(3) for n, b in ((8, 8), (16, 4), (32, 2))
            for who in ("one", "other")]  # fmt: skip
    rows += [("one", 16, 4, 4, 3, 1.0), ("few", 8, 1, 8, 0, 80.0), ("few", 16, 1, 8, 0, 80.0)]
    columns = ["submitter", "workers", "nodes", "batch_size", "repeat", "samples_per_s"]
    pd.DataFrame(rows, columns=columns).sample(frac=1, random_state=0).to_csv(tmp_path / "long.csv", index=False)
    tasks, told = forecast.given([tmp_path / "long.csv"])

    assert [(task.name, task.source) for task in tasks] == [("one/N<=16", "one"), ("other/N<=16", "other")]
    assert all(told[task.source]["kind"] == forecast.BATCH_TOLD for task in tasks)
    for task in tasks:
        assert list(task.known["workers"]) == [8, 8, 8, 16, 16, 16], "the run on other nodes is left out"
        assert task.targets[["workers", "batch_size"]].to_numpy().tolist() == [[32, 2]]
        straight = [one for one in forecast.forecasts(task) if one.method == forecast.STRAIGHT]
        assert straight[0].forecast == pytest.approx(straight[0].measured), "the step is a line in the batch"
    with pytest.raises(forecast.AnalysisError, match="batch_size"):
        pd.DataFrame({"workers": [1], "samples_per_s": [1.0]}).to_csv(tmp_path / "bare.csv")
        forecast.given([tmp_path / "bare.csv"])


def test_an_unknown_table(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch, golden):
    write_exact(tmp_path)
    monkeypatch.setattr(sys, "argv", ["forecast.py", "--tables", str(tmp_path), "--only", "lines"])

    assert forecast.main() == 2
    golden(capsys.readouterr().err, "lines")
