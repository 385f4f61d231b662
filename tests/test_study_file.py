"""The file of a study: what it refuses, and the cells it expands to."""

from pathlib import Path

import pytest

from horovod_study.cluster.study_file import load_study
from horovod_study.errors import ConfigError


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return path


GOOD = """
study: laptop
repeats: 2
run: {dataset: 1000, batch: 10, seconds: 1}
sweep: {workers: [1, 2], runtime: [horovod/mpi, horovod/gloo]}
"""


def test_cells_of_a_study(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, GOOD))
    cells = study.cells()
    found = sorted((cell.runtime, cell.placement.workers, cell.config.repeat) for cell in cells)

    # plain once, each runtime with 1 worker (its wrapped baseline) and 2 workers, everything twice
    assert found == sorted(
        (runtime, workers, repeat)
        for repeat in (0, 1)
        for runtime, workers in [("serial", 1), *((f"horovod/{t}", n) for t in ("mpi", "gloo") for n in (1, 2))]
    )
    assert len({cell.key for cell in cells}) == len(cells)
    assert {cell.config.backend for cell in cells} == {"serial", "horovod"}
    assert all(cell.config.study == "laptop" for cell in cells)


def test_baselines_are_added_by_themselves(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, GOOD.replace("[1, 2]", "[2]")))
    assert ("horovod/mpi", 1) in {(cell.runtime, cell.placement.workers) for cell in study.cells()}

    without = load_study(write(tmp_path, GOOD.replace("[1, 2]", "[2]") + "baselines: [plain]"))
    assert ("horovod/mpi", 1) not in {(cell.runtime, cell.placement.workers) for cell in without.cells()}


def test_varied_options_are_crossed(tmp_path: Path) -> None:
    study = load_study(
        write(tmp_path, GOOD.replace("batch: 10, ", "").replace("sweep: {", "sweep: {batch: [10, 20], "))
    )

    assert {cell.config.batch for cell in study.cells()} == {10, 20}
    assert len(study.cells()) == 2 * 2 * 5


def test_a_knob_of_communication_does_not_multiply_the_plain_baseline(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, GOOD.replace("sweep: {", "sweep: {horovod_defaults: [false, true], ")))
    plain = [cell for cell in study.cells() if cell.runtime == "serial"]

    assert len(plain) == 2, "one per repeat"
    assert len(study.cells()) == 2 * (1 + 2 * 4)


def test_an_option_without_effect_on_a_runtime_does_not_multiply_its_runs(tmp_path: Path) -> None:
    text = GOOD.replace("horovod/gloo]", "ddp/gloo], cycle_time_ms: [0.05, 1, 10]")
    cells = [cell for cell in load_study(write(tmp_path, text)).cells() if cell.config.repeat == 0]
    two = [(cell.runtime, cell.config.cycle_time_ms) for cell in cells if cell.placement.workers == 2]

    assert two == [("horovod/mpi", 0.05), ("ddp/gloo", None), ("horovod/mpi", 1.0), ("horovod/mpi", 10.0)]


def test_the_key_names_the_content(tmp_path: Path) -> None:
    first, again = (load_study(write(tmp_path, GOOD)).cells()[0] for _ in range(2))
    other = load_study(write(tmp_path, GOOD.replace("batch: 10", "batch: 11"))).cells()[0]

    assert first.key == again.key
    assert first.key != other.key
    assert first.key.startswith("serial-1w-b10-r0-")


@pytest.mark.parametrize(
    ("cores", "counts"), [(1, (1,)), (2, (1, 2)), (8, tuple(range(1, 9))), (48, (1, 2, 4, 8, 16, 32, 48))]
)
def test_workers_up_to_the_cores(tmp_path: Path, cores: int, counts: tuple[int, ...]) -> None:
    assert load_study(write(tmp_path, GOOD.replace("[1, 2]", "cores")), cores=cores).workers == counts


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("repeats:", "repeat:", r"study\.yaml: unknown key 'repeat' \(did you mean 'repeats'\?\); allowed: study"),
        ("batch: 10", "bach: 10", r"study\.yaml: run: unknown key 'bach' \(did you mean 'batch'\?\)"),
        ("workers:", "worker:", r"study\.yaml: sweep: unknown key 'worker' \(did you mean 'workers'\?\)"),
        ("horovod/mpi", "horovod/mpy", r"runtime 'horovod/mpy' is not known \(did you mean 'horovod/mpi'\?\)"),
        ("[1, 2]", "[0]", r"sweep: workers is 0; it must be at least 1"),
        ("[1, 2]", "[]", r"sweep: workers is empty; give counts"),
        ("repeats: 2", "repeats: 0", "repeats is 0; it must be at least 1"),
        ("batch: 10", "backend: ddp", r"run: backend cannot be fixed here; it comes from sweep\.runtime"),
        ("sweep: {", "sweep: {batch: [1], ", "batch is both fixed under run and varied under sweep"),
        ("study: laptop\n", "", "key 'study' is missing"),
        ("repeats: 2", "repeats: 2\nrepeats: 3", "line 4 is not valid YAML .*'repeats' is given twice"),
        ("repeats: 2", "repeats: [", r"study\.yaml: line \d+ is not valid YAML"),
        ("repeats: 2", "baselines: [fast]", "baselines: 'fast' is not known; allowed: plain, wrapped"),
    ],
)
def test_a_wrong_study_file(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_study(write(tmp_path, GOOD.replace(old, new)))
