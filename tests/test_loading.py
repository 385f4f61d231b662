"""The comparison of loaders: its form and its words."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from make.wording import Golden

from horovod_study import cli
from horovod_study.errors import ConfigError
from horovod_study.programs import loading
from horovod_study.programs.loading import compare_loaders, judged, loader_options, spread, to_text
from horovod_study.strain import dataset as data
from horovod_study.strain.loaders import Batch
from horovod_study.strain.options import StrainConfig


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> data.Dataset:
    path = tmp_path_factory.mktemp("loading") / "data"
    data.generate(path, 400, seed=3)
    return data.open_dataset(path)


def rounds(median: float, low: float | None = None, high: float | None = None) -> dict[str, float]:
    return {"median": median, "min": median if low is None else low, "max": median if high is None else high}


def result(
    *, loads: dict[str, float], cached: dict[str, float], waiting: float = 0.01, together: float = 0.99
) -> dict[str, Any]:
    return judged(
        {
            "loader": "memory",
            "note": "",
            "loading": loads,
            "cached": cached,
            "together": rounds(cached["median"] * together),
            "waiting": rounds(waiting),
            "of_cached": rounds(together),
            "start_s": rounds(0.002),
            "restart_s": rounds(1.5),
        }
    )


def test_a_spread_holds_median_and_range() -> None:
    assert spread([3.0, 1.0, 10.0]) == {"median": 3.0, "min": 1.0, "max": 10.0}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("memory", {"loader": "memory", "loader_processes": 0}),
        ("dataloader", {"loader": "dataloader", "loader_processes": 0}),
        ("dataloader:3", {"loader": "dataloader", "loader_processes": 3}),
    ],
)
def test_names_of_loaders(name: str, options: dict[str, object]) -> None:
    assert loader_options(name) == options


@pytest.mark.parametrize(
    ("name", "hint"),
    [("memry", " (did you mean 'memory'?)"), ("memory:2", ""), ("dataloader:", ""), ("dataloader:-1", "")],
)
def test_unknown_loaders_are_refused(name: str, hint: str, golden: Golden) -> None:
    with pytest.raises(ConfigError) as error:
        loader_options(name)

    start, _, rest = str(error.value).partition("; ")
    golden(start, name, hint)
    golden(rest)


def test_computing_bounds_where_loading_alone_is_faster(golden: Golden) -> None:
    one = result(loads=rounds(3e6, 2e6, 4e6), cached=rounds(3e4, 2e4, 1e6))

    assert one["bound"] == "computing"
    golden(one["verdict"], "100 times", "1.0 %", "99 %")


def test_waiting_that_is_worth_a_word_gets_one(golden: Golden) -> None:
    one = result(loads=rounds(3e5), cached=rounds(3e4), waiting=0.09, together=0.9)

    assert one["bound"] == "computing"
    golden(one["verdict"], "90 %")


def test_loading_bounds_where_it_is_slower(golden: Golden) -> None:
    one = result(loads=rounds(1.5e4), cached=rounds(3e4), waiting=0.5, together=0.5)

    assert one["bound"] == "loading"
    golden(one["verdict"], "0.50 times", "50.0 %", "50 %")


def test_a_loader_that_does_not_keep_up_beside_the_step_is_found_out(golden: Golden) -> None:
    one = result(loads=rounds(3e4), cached=rounds(1.5e4), waiting=0.4, together=0.5)

    assert one["bound"] == "competition"
    golden(one["verdict"], "2 times", "40.0 %", "50 %")


def test_together_slower_than_one_after_the_other_is_said(golden: Golden) -> None:
    one = result(loads=rounds(3e6), cached=rounds(1.5e4), waiting=0.02, together=0.7)

    assert one["bound"] == "computing"
    golden(one["verdict"], "70 %")


def test_overlapping_rounds_decide_nothing(golden: Golden) -> None:
    one = result(loads=rounds(3.3e4, 2.9e4, 4e4), cached=rounds(3e4, 2e4, 3.1e4))

    assert one["bound"] == "either"
    golden(one["verdict"], "1.10 times")


def test_the_table_is_aligned_and_says_its_units(golden: Golden) -> None:
    loaders = [result(loads=rounds(3e6, 2e6, 4e6), cached=rounds(3.141e4))]
    one = {"curves": 400, "batch": 75, "device": "cpu", "threads": 1, "rounds": 3, "seconds": 1.0, "loaders": loaders}

    golden(
        to_text(one),
        "batch 75",
        "1 thread",
        "400 curves",
        "samples/s",
        "3 rounds",
        "1 s",
        "3,000",
        "2,000",
        "4,000",
        "31.4",
        "31.1",
        "1.0 %",
        "2.0 ms",
        "1.5 s",
        loaders[0]["verdict"],
    )


class _Counting:
    """A loader of somebody else, which says how it was used."""

    note = "counted"
    closed = 0

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        return iter([(torch.zeros(10, 3, 201), torch.zeros(10, 2))] * self._steps)

    def close(self) -> None:
        _Counting.closed += 1


def test_loaders_are_compared(dataset: data.Dataset) -> None:
    threads = torch.get_num_threads()
    told: list[str] = []
    found = compare_loaders(
        StrainConfig(batch=10),
        dataset,
        ["memory", "prefetch"],
        rounds=2,
        seconds=0.01,
        others={"mine": lambda: _Counting(30)},
        on_progress=told.append,
    )

    assert torch.get_num_threads() == threads
    known = {"batch": 10, "curves": 400, "rounds": 2, "device": "cpu", "threads": 1}
    assert {name: found[name] for name in known} == known
    loaders = found["loaders"]
    assert [each["loader"] for each in loaders] == ["memory", "prefetch", "mine"]
    assert loaders[2]["note"] == "counted"
    assert _Counting.closed == 2
    assert sorted(told) == sorted(
        f"batch 10, round {number} of 2: {name}" for number in (1, 2) for name in ("memory", "prefetch", "mine")
    )
    for each in loaders:
        for name in ("loading", "cached", "together", "start_s", "restart_s"):
            assert 0 < each[name]["min"] <= each[name]["median"] <= each[name]["max"]
        assert 0 < each["waiting"]["min"] <= each["waiting"]["max"] < 1
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(found, allow_nan=False))
    assert loaders[0]["bound"] in ("computing", "competition", "loading", "either")


def test_a_loader_is_closed_also_when_measuring_fails(dataset: data.Dataset) -> None:
    closed = _Counting.closed
    with pytest.raises(StopIteration):
        compare_loaders(
            StrainConfig(batch=10), dataset, [], rounds=1, seconds=0.01, others={"empty": lambda: _Counting(0)}
        )

    assert _Counting.closed == closed + 1


@pytest.mark.parametrize(("rounds", "seconds"), [(0, 1.0), (1, 0.0), (1, float("nan"))])
def test_measuring_nothing_is_refused(dataset: data.Dataset, rounds: int, seconds: float) -> None:
    with pytest.raises(ConfigError, match="measure nothing; use at least one round and a time above 0"):
        compare_loaders(StrainConfig(batch=10), dataset, ["memory"], rounds=rounds, seconds=seconds)


def test_bench_loading_prints_tables(capsys: pytest.CaptureFixture[str], dataset: data.Dataset, tmp_path: Path) -> None:
    words = ["bench", "loading", "--dataset", str(dataset.path), "--batch", "5", "50", "--rounds", "1"]
    code = cli.main([*words, "--seconds", "0.01", "--loader", "memory", "--out", str(tmp_path / "out")])

    out = capsys.readouterr().out
    assert code == 0
    assert [line.split(",")[0] for line in out.splitlines() if line.startswith("batch")] == ["batch 5", "batch 50"]
    assert out.endswith(f"written: {tmp_path / 'out' / 'loading.json'}\n")
    document = json.loads((tmp_path / "out" / "loading.json").read_text())
    assert [each["batch"] for each in document["comparisons"]] == [5, 50]


def test_bench_loading_prints_json(capsys: pytest.CaptureFixture[str], dataset: data.Dataset, golden: Golden) -> None:
    words = ["bench", "loading", "--dataset", str(dataset.path), "--batch", "5", "--rounds", "1"]
    code = cli.main([*words, "--seconds", "0.01", "--loader", "memory", "device", "--json"])

    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert len(lines) == 1
    found = json.loads(lines[0])["comparisons"][0]["loaders"]
    assert [each["loader"] for each in found] == ["memory", "device"]
    golden(found[1]["note"], "RAM", "0.00 GB")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--loader", "fast"], "loader 'fast' is not known"),
        (["--pin-memory"], "run: pin_memory needs a GPU"),
        (["--batch", "0"], "run: batch is 0; it must be at least 1"),
        (["--batch", "1000"], "batch 1000 x 1 workers = 1000 curves per step, but the training set has 300"),
        (["--rounds", "0"], "0 rounds of 1 s measure nothing"),
    ],
)
def test_bench_loading_refuses_in_one_line(
    capsys: pytest.CaptureFixture[str], dataset: data.Dataset, words: list[str], message: str
) -> None:
    code = cli.main(["bench", "loading", "--dataset", str(dataset.path), *words])

    error = capsys.readouterr().err
    assert code == 2
    assert error.splitlines()[-1].startswith(f"error: {message}")


@pytest.mark.slow
def test_the_benchmark_of_the_loaders_runs(tmp_path: Path) -> None:
    script = Path(loading.__file__).parents[2] / "benchmarks" / "loading.py"
    settings = ["--rounds", "1", "--seconds", "0.05", "--batches", "20", "--curves", "4000"]
    done = subprocess.run(
        [sys.executable, str(script), *settings, "--out", str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr

    document = json.loads((tmp_path / "loading.json").read_text())
    assert [each["loader"] for each in document["batches"]["20"]["loaders"]] == [
        *("memory", "prefetch", "device", "dataloader", "dataloader:2"),
        *("TensorDataset + DataLoader", "TensorDataset + DataLoader, 2 processes"),
    ]
    assert all(each["loading"]["median"] > 0 for each in document["batches"]["20"]["loaders"])
    text = (tmp_path / "loading.md").read_text()
    assert text in done.stdout
    assert sum(text.count(words) for words in (" bounds the run: ", "neither bounds", "computing compete")) == 7
