"""Configuration values: what cannot exist, and what a study expands to."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod_study.config import (
    DEFAULT_EPOCHS,
    RUN_FIELDS,
    Placement,
    RunConfig,
    load_study,
    load_yaml,
    matters,
    run_config,
)
from horovod_study.errors import ConfigError
from horovod_study.workload.model import INPUT_SCALINGS

TRAINING = Path(__file__).parent.parent / "experiments" / "training"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bach": 75}, r"train: unknown key 'bach' \(did you mean 'batch'\?\); allowed: dataset"),
        ({"batch": "many"}, "train: batch is 'many'; it must be a whole number"),
        ({"batch": 1.5}, "batch is 1.5; it must be a whole number"),
        ({"batch": True}, "batch is True; it must be a whole number"),
        ({"batch": 0}, "batch is 0; it must be at least 1"),
        ({"lr": "nan"}, "lr is nan; it must be a number"),
        ({"lr": 0}, "lr is 0.0; it must be greater than 0"),
        ({"backend": "horovd"}, r"backend is 'horovd' \(did you mean 'horovod'\?\); allowed: auto, serial"),
        ({"horovod_defaults": "yes"}, "horovod_defaults is 'yes'; it must be true or false"),
        ({"epochs": 1, "seconds": 2}, "epochs and seconds are both given; give one of"),
        ({"backend": "serial", "transport": "mpi"}, "backend serial has no transport"),
        ({"backend": "mpi", "transport": "gloo"}, "backend mpi talks over mpi only"),
        ({"backend": "ps", "transport": "nccl"}, "backend ps talks over mpi only"),
        ({"thread_priority": "high"}, "thread_priority is 'high'; allowed: auto, realtime, slice, off"),
        ({"cycle_time_ms": -1}, "cycle_time_ms is -1.0; it must be at least 0"),
        ({"study": "a/b"}, "study is 'a/b'; it names a folder"),
        ({"study": ".."}, "study is '..'; it names a folder"),
        ({"dataset": None}, "dataset is None; it must be a text"),
        ({"widths": "15-38"}, "widths is '15-38'; it must be three whole numbers"),
        ({"widths": "15-0-197"}, "widths is '15-0-197'; it must be three whole numbers from 1"),
        ({"target_mse": 0}, "target_mse is 0.0; it must be greater than 0"),
        ({"evaluate_every": 0}, "evaluate_every is 0.0; it must be greater than 0"),
        ({"precision": "fp8"}, "precision is 'fp8'.*; allowed: fp32, tf32, bf16, fp16"),
        ({"loader_processes": 2}, "loader memory has no processes, but loader_processes is 2; use loader dataloader"),
    ],
)
def test_an_invalid_run_cannot_be_made(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_config(values, source="train")


def test_without_a_budget_the_default_epochs() -> None:
    assert RunConfig().epochs == DEFAULT_EPOCHS
    assert RunConfig(seconds=3).epochs is None


@given(
    batch=st.integers(1, 4096),
    lr=st.floats(1e-6, 1.0),
    backend=st.sampled_from(["auto", "serial", "horovod", "ddp"]),
    steps=st.integers(1, 10**6),
    threads=st.integers(1, 64),
)
def test_plain_values_make_the_same_run_again(batch: int, lr: float, backend: str, steps: int, threads: int) -> None:
    config = RunConfig(batch=batch, lr=lr, backend=backend, steps=steps, threads=threads)

    assert run_config(config.to_dict()) == config


def test_options_are_texts_and_yaml_values_are_typed() -> None:
    assert run_config({"batch": "75", "lr": "1e-3", "steps": "10"}) == run_config(
        {"batch": 75, "lr": 0.001, "steps": 10}
    )


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


@pytest.mark.parametrize(
    ("name", "runtimes"),
    [
        ("reduction", {"horovod/mpi", "horovod/gloo", "horovod/nccl", "ddp/gloo", "mpi/mpi", "ps/mpi"}),
        ("horovod_defaults", {"horovod/mpi", "horovod/gloo", "horovod/nccl", "mpi/mpi", "ps/mpi"}),
        ("cycle_time_ms", {"horovod/mpi", "horovod/gloo", "horovod/nccl"}),
        ("single_copy", {"horovod/mpi", "mpi/mpi", "ps/mpi"}),
        ("thread_priority", {"horovod/gloo", "ddp/gloo"}),
        ("bucket_mb", {"ddp/gloo", "mpi/mpi", "ps/mpi"}),
        ("static_graph", {"ddp/gloo"}),
        ("ps_servers", {"ps/mpi"}),
    ],
)
def test_what_an_option_matters_to(name: str, runtimes: set[str]) -> None:
    every = ("serial", "horovod/mpi", "horovod/gloo", "horovod/nccl", "ddp/gloo", "mpi/mpi", "ps/mpi")

    assert {runtime for runtime in every if matters(name, runtime)} == runtimes


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


def test_a_missing_or_odd_yaml_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_yaml(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="must hold `key: value` lines, not list"):
        load_yaml(write(tmp_path, "- a\n- b\n"))


def test_nodes_are_filled_one_after_the_other() -> None:
    assert Placement(workers=10, workers_per_node=8).nodes == 2
    assert Placement(workers=8, workers_per_node=8).nodes == 1
    with pytest.raises(ConfigError, match="both at least 1"):
        Placement(workers=0)


@pytest.mark.parametrize("path", sorted(TRAINING.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_shipped_training_configurations_are_valid(path: Path) -> None:
    config = run_config(load_yaml(path), source=str(path))

    assert config.dataset == "1000000" and config.seconds is not None


def test_the_scalings_on_offer_are_those_of_the_network() -> None:
    assert set(RUN_FIELDS["input_scaling"].metadata["choices"]) == set(INPUT_SCALINGS)
