"""Precision as the aim of a study: who needs more turns, which launches are not needed, and what is said to be open."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_runner import make_study, run

from horovod_study.analysis import paired
from horovod_study.cli.verbs import until_share
from horovod_study.errors import ConfigError
from horovod_study.records import TurnSlice, read_turns
from horovod_study.strain.options import StrainConfig
from horovod_study.studies import turns
from horovod_study.studies.study_file import load_study, sweep_of
from horovod_study.studies.turns import Aim

FILE = """
study: aimed
run: {seconds: 2}
sweep: {workers: [1, 2], runtime: horovod/mpi}
precision: 2 %
"""


def study(**changes: Any) -> Any:
    return make_study(**{"turns": True, "precision": 0.02, "repeats": 10, **changes})


def made(
    aimed: Any, launches: int, *, rounds: int = 60, noise: float = 0.02, of: tuple[float, ...] = (1, 0.9, 1.6)
) -> list[TurnSlice]:
    """Slices of the first launches of all cells: serial, one and two workers."""
    generator = np.random.default_rng(1)
    found = []
    for repeat in range(launches):
        cells = [cell for cell in aimed.cells() if cell.config.repeat == repeat]
        cells.sort(key=lambda cell: (cell.runtime != "serial", cell.placement.workers))
        for number in range(rounds):
            for place, (cell, rate) in enumerate(zip(cells, of, strict=True)):
                samples = round(1e6 * rate * math.exp(noise * generator.standard_normal()))
                begin = number + 0.3 * place
                found.append(
                    TurnSlice(
                        block="local",
                        launch=repeat,
                        round=number,
                        position=place,
                        run=cell.key,
                        begin_s=begin,
                        end_s=begin + 0.25,
                        steps=9,
                        samples=samples,
                        other_load=0.0,
                    )
                )
    return found


def test_each_cell_is_paired_with_its_plain_baseline() -> None:
    aimed = study()

    assert list(aimed.wanted()) == [
        ("horovod/mpi, 1 worker", "serial, 1 worker"),
        ("horovod/mpi, 2 workers", "serial, 1 worker"),
    ]


def test_without_a_plain_baseline_it_is_the_wrapped_one() -> None:
    aimed = study(baselines=("wrapped",))

    assert list(aimed.wanted()) == [("horovod/mpi, 2 workers", "horovod/mpi, 1 worker")]


def test_a_launch_goes_on_until_it_is_long_enough_and_what_was_asked_for_is_made() -> None:
    aimed = study(run=StrainConfig(study="tiny", steps=60))
    first = [cell.key for cell in aimed.cells() if cell.config.repeat == 0]
    short, long = made(aimed, 1, rounds=8), made(aimed, 1, rounds=60)

    assert set(Aim(sweep_of(aimed, Path("runs")))(short, dict.fromkeys(first, True))) == set(first)
    assert list(Aim(sweep_of(aimed, Path("runs")))(long, dict.fromkeys(first, True))) == []
    assert list(Aim(sweep_of(aimed, Path("runs")))(long, {**dict.fromkeys(first, True), first[0]: False})) == [first[0]]


def test_a_precision_says_how_long_a_launch_is_in_place_of_seconds() -> None:
    aimed = study(run=StrainConfig(study="tiny", seconds=60.0))
    first = [cell.key for cell in aimed.cells() if cell.config.repeat == 0]
    short, long = made(aimed, 1, rounds=8), made(aimed, 1, rounds=60)
    before = dict.fromkeys(first, False)  # the seconds are not over

    assert set(Aim(sweep_of(aimed, Path("runs")))(short, before)) == set(first)
    assert list(Aim(sweep_of(aimed, Path("runs")))(long, before)) == []
    assert list(Aim(sweep_of(aimed, Path("runs")))(long, {first[0]: False})) == [first[0]], (
        "in no ratio without its baseline"
    )


def test_after_three_launches_that_agree_no_further_one_is_needed() -> None:
    aimed = study()
    fourth = [cell for cell in aimed.cells() if cell.config.repeat == 3]

    assert len(Aim(sweep_of(aimed, Path("runs")), made(aimed, 2)).needed(fourth)) == 3
    done = Aim(sweep_of(aimed, Path("runs")), made(aimed, 5))
    assert done.needed(fourth) == [] and done.open() == []
    assert len(done.lines()) == 2 and ": 1.5" in done.lines()[1] and "more rounds" not in done.lines()[1]


def test_a_resolved_ratio_drops_out_and_the_other_goes_on_with_its_baseline() -> None:
    aimed = study()
    rows = made(aimed, 5)
    noisy = made(aimed, 5, noise=0.2)
    two = {cell.key for cell in aimed.cells() if cell.placement.workers == 2}
    mixed = [other if one.run in two else one for one, other in zip(rows, noisy, strict=True)]
    left = Aim(sweep_of(aimed, Path("runs")), mixed).needed([cell for cell in aimed.cells() if cell.config.repeat == 5])

    assert {(cell.runtime, cell.placement.workers) for cell in left} == {("serial", 1), ("horovod/mpi", 2)}
    said = Aim(sweep_of(aimed, Path("runs")), mixed).lines()
    assert "more rounds" in said[1] and "more rounds" not in said[0]


def test_nothing_is_begun_after_the_budget() -> None:
    aimed = study()
    ended = Aim(sweep_of(aimed, Path("runs")), made(aimed, 1))
    ended._until = -math.inf
    cells = [cell for cell in aimed.cells() if cell.config.repeat == 1]

    assert ended.over and ended.needed(cells) == []
    assert list(ended(made(aimed, 1, rounds=3), {cells[0].key: False})) == []
    assert all("more rounds" in line for line in ended.lines())


def test_progress_says_interval_and_aim() -> None:
    aimed = study()

    assert Aim(sweep_of(aimed, Path("runs"))).progress() == "aim 2 %"
    assert Aim(sweep_of(aimed, Path("runs")), made(aimed, 3, noise=0.3)).progress().endswith("aim 2 %")
    assert Aim(sweep_of(aimed, Path("runs")), made(aimed, 3, noise=0.3)).progress().startswith("+-")


@pytest.mark.slow
def test_a_study_ends_when_it_is_precise_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "WARM_S", 0.05)
    monkeypatch.setattr(turns, "SLICE_S", (0.05, 0.05))
    monkeypatch.setattr(paired, "MIN_ROUNDS", 6)
    aimed = study(precision=0.5, run=make_study().run.changed(seconds=None, steps=20))
    result, said = run(aimed, tmp_path, {"*": "turns"})
    launches = {each.launch for each in read_turns(tmp_path / "tiny")}

    assert result.exit_code == 0
    assert 3 <= len(launches) < 10
    assert result.ledger.count("done") == 3 * len(launches)
    assert result.ledger.count("missing") == 3 * (10 - len(launches))
    assert "horovod/mpi, 2 workers / serial, 1 worker: " in said


class TestFile:
    def load(self, tmp_path: Path, text: str) -> Any:
        path = tmp_path / "aimed.yaml"
        path.write_text(text)
        return load_study(path)

    def test_a_precision_brings_turns_and_launches(self, tmp_path: Path) -> None:
        found = self.load(tmp_path, FILE)

        assert (found.precision, found.turns, found.repeats) == (0.02, True, 10)
        assert self.load(tmp_path, FILE + "repeats: 4\n").repeats == 4

    def test_until_is_the_same_for_a_study_without(self, tmp_path: Path) -> None:
        found = self.load(tmp_path, FILE.replace("precision: 2 %", "")).until(0.05)

        assert (found.precision, found.turns, found.repeats) == (0.05, True, 10)

    @pytest.mark.parametrize("value", ["0", "200 %", "narrow", "-1 %", "nan"])
    def test_what_is_no_precision_is_refused(self, tmp_path: Path, value: str) -> None:
        with pytest.raises(ConfigError, match="precision"):
            self.load(tmp_path, FILE.replace("2 %", value))

    def test_precision_without_turns_is_a_contradiction(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="turns"):
            self.load(tmp_path, FILE + "turns: no\n")

    @pytest.mark.parametrize(("text", "value"), [("2%", 0.02), (" 2 % ", 0.02), ("0.05", 0.05), ("0.5%", 0.005)])
    def test_shares(self, text: str, value: float) -> None:
        assert until_share(text) == pytest.approx(value)
