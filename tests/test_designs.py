"""Every design, interrupted at its first, a middle and its last cell, goes on to the cells that it would have had."""

import os
import signal
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import make.records
import numpy as np
import pytest
from rich.console import Console
from test_pairs import made
from test_search import GOOD, write
from test_tune import study_of

from horovod_study import records
from horovod_study.cluster.launch import LaunchLine, cell_environment
from horovod_study.config.run import Cell
from horovod_study.studies import attempt, bench, designs
from horovod_study.studies.runner import RunOptions, follow
from horovod_study.studies.search import load_search, run_search

QUIET = Console(quiet=True)


class Launches:
    """Launches finished runs whose speed is told by their cell; at launch `stops_at` there is a Ctrl-C instead."""

    def __init__(self, stops_at: int = 0) -> None:
        self.stops_at, self.count = stops_at, 0

    def __call__(self, cell: Cell, config: Path, out: Path, **_: object) -> LaunchLine:
        argv: tuple[str, ...] = ("sleep", "60")
        if out.parent.exists():  # else it is only asked for its program
            self.count += 1
            if self.count == self.stops_at:
                os.kill(os.getpid(), signal.SIGINT)
            else:
                finished_run(cell, out.with_name(f".made-{out.name}"), out.name)
                argv = ("mv", "-T", str(out.with_name(f".made-{out.name}")), str(out))
        return LaunchLine(argv=argv, environment=cell_environment(os.environ, path=os.environ["PATH"], out=out))


def finished_run(cell: Cell, folder: Path, key: str) -> None:
    config, workers = cell.config, cell.placement.workers
    asked = {**vars(config), "workers": workers}
    effective = {"workers": workers, "global_batch": config.batch * workers, "steps_per_epoch": 10}
    told: dict[str, Any] = {"requested": asked, "effective": effective, "repeat": config.repeat}
    record = make.records.record(study=config.study, key=key, **told)
    records.create_run(folder, record)
    columns = {name: np.zeros(60) for name in records.step_schema().names} | {"step": np.arange(60)}
    make.records.write_rows(folder, dict.fromkeys(range(workers), columns))
    noise = 1e-4 * (zlib.crc32(key.encode()) % 100)
    speed = 1000.0 * (1.2 if asked["cycle_time_ms"] == 0.2 else 1.0) * (1 + noise)
    totals = {
        "samples_per_s": speed,
        "test_mse": noise,
        "steps": config.steps or 70,
        "excluded_steps": config.warmup_steps,
    }
    totals |= {"step_s_median": 0.01, "step_s_p90": 0.011}
    records.finish_run(folder, record, status="done", finished="now", totals=totals)


def pairs(folder: Path, how: Callable[..., RunOptions]) -> None:
    found = made(folder / "pairs", workers=(1, 2))
    follow(found.design(), how(command="again", policy=found.policy), QUIET)


def halving(folder: Path, how: Callable[..., RunOptions]) -> None:
    designs.tune(study_of(folder), folder, ["cycle_time_ms=0.2,1", "cache_capacity=0"], how(command="again"), QUIET)


def trials(folder: Path, how: Callable[..., RunOptions]) -> None:
    run_search(load_search(write(folder, GOOD)), folder, command="again")


def lr_range(folder: Path, how: Callable[..., RunOptions]) -> None:
    config = bench.range_config(None, {"steps": 60}, low=1e-4, high=1e-1)
    bench.run_range(config, folder / "range")


def arms(folder: Path, how: Callable[..., RunOptions]) -> None:
    bench.run_experiment({}, folder / "arms", runtimes=("mpi/mpi",), workers=2, rounds=2, turns=False)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, set[str]]]:
    """Return what runs a design in a folder, and returns how many launches that took and which runs are done then."""

    def go(design: Callable[..., None], folder: Path, stops_at: int = 0) -> tuple[int, set[str]]:
        folder.mkdir(exist_ok=True)
        launch = Launches(stops_at)
        quick: dict[str, Any] = {"launch": launch, "smoke": False, "watch_load_s": 0.0, "grace_s": 0.3, "cores": 2}
        how = partial(RunOptions, **quick)
        monkeypatch.setattr(attempt, "local_launch", launch)
        monkeypatch.setattr(bench, "RunOptions", lambda **told: how(**{**told, **quick}))
        monkeypatch.setattr(designs, "apart_because", lambda cells: "of a test")
        with suppress(KeyboardInterrupt):
            design(folder, how)
        paths = [path.parent for path in folder.glob("*/*/run.json") if path.parent.parent.name != ".attempts"]
        return launch.count, {path.name for path in paths if records.read_run(path).status == "done"}

    return go


@pytest.mark.slow
@pytest.mark.parametrize("design", [pairs, halving, trials, lr_range, arms])
@pytest.mark.parametrize("moment", ["first", "middle", "last"])
def test_an_interrupted_design_goes_on_to_the_same_cells(
    design: Callable[..., None], moment: str, run: Callable[..., tuple[int, set[str]]], tmp_path: Path
) -> None:
    count, whole = run(design, tmp_path / "whole")
    stops_at = {"first": 1, "middle": (count + 1) // 2, "last": count}[moment]
    begun, some = run(design, tmp_path / "interrupted", stops_at)

    assert begun == stops_at and len(some) == stops_at - 1 and some < whole
    run(design, tmp_path / "interrupted")
    assert run(design, tmp_path / "interrupted") == (0, whole), "all is there, and only read"
