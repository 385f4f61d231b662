"""Configuration values: what cannot exist."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make.wording import Golden

from horovod_study.config.documents import load_yaml
from horovod_study.config.run import Placement
from horovod_study.errors import ConfigError
from horovod_study.strain.model import INPUT_SCALINGS
from horovod_study.strain.options import DEFAULT_EPOCHS, STRAIN, StrainConfig, strain_config

TRAINING = Path(__file__).parent.parent / "experiments" / "training"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bach": 75}, r"train: unknown key 'bach' \(did you mean 'batch'\?\); allowed: batch"),
        ({"batch": "many"}, "train: batch is 'many'; it must be a whole number"),
        ({"batch": 1.5}, "batch is 1.5; it must be a whole number"),
        ({"batch": True}, "batch is True; it must be a whole number"),
        ({"batch": 0}, "batch is 0; it must be at least 1"),
        ({"lr": "nan"}, "lr is .nan.; it must be a number"),
        ({"lr": 0}, "lr is 0; it must be greater than 0"),
        ({"backend": "horovd"}, r"backend is 'horovd' \(did you mean 'horovod'\?\); allowed: auto, serial"),
        ({"horovod_defaults": "yes"}, "horovod_defaults is 'yes'; it must be true or false"),
        ({"epochs": 1, "seconds": 2}, "epochs and seconds are both given; give one of"),
        ({"backend": "serial", "transport": "mpi"}, "backend serial has no transport"),
        ({"backend": "mpi", "transport": "gloo"}, "backend mpi works over mpi only"),
        ({"backend": "ps", "transport": "nccl"}, "backend ps works over mpi only"),
        ({"thread_priority": "high"}, "thread_priority is 'high'; allowed: auto, realtime, slice, off"),
        ({"cycle_time_ms": -1}, "cycle_time_ms is -1; it must be at least 0"),
        ({"study": "a/b"}, "study is 'a/b'; it names a folder"),
        ({"study": ".."}, "study is '..'; it names a folder"),
        ({"dataset": None}, "dataset is None; it must be a text"),
        ({"widths": "15-38"}, "widths is '15-38'; it must be three whole numbers"),
        ({"widths": "15-0-197"}, "widths is '15-0-197'; it must be three whole numbers from 1"),
        ({"target_mse": 0}, "target_mse is 0; it must be greater than 0"),
        ({"evaluate_every": 0}, "evaluate_every is 0; it must be greater than 0"),
        ({"precision": "fp8"}, "precision is 'fp8'.*; allowed: fp32, tf32, bf16, fp16"),
        ({"loader_processes": 2}, "loader memory has no processes, but loader_processes is 2; use loader dataloader"),
    ],
)
def test_an_invalid_run_cannot_be_made(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        strain_config(values, source="train")


def test_without_a_budget_the_default_epochs() -> None:
    assert StrainConfig().epochs == DEFAULT_EPOCHS
    assert StrainConfig(seconds=3).epochs is None


@given(
    batch=st.integers(1, 4096),
    lr=st.floats(1e-6, 1.0),
    backend=st.sampled_from(["auto", "serial", "horovod", "ddp"]),
    steps=st.integers(1, 10**6),
    threads=st.integers(1, 64),
)
def test_plain_values_make_the_same_run_again(batch: int, lr: float, backend: str, steps: int, threads: int) -> None:
    config = StrainConfig(batch=batch, lr=lr, backend=backend, steps=steps, threads=threads)

    assert strain_config(vars(config)) == config


def test_options_are_texts_and_yaml_values_are_typed() -> None:
    assert strain_config({"batch": "75", "lr": "1e-3", "steps": "10"}) == strain_config(
        {"batch": 75, "lr": 0.001, "steps": 10}
    )


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

    assert {runtime for runtime in every if STRAIN.options[name].matters(runtime)} == runtimes


def test_a_missing_or_odd_yaml_file(tmp_path: Path, golden: Golden) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        load_yaml(tmp_path / "none.yaml")
    (path := tmp_path / "list.yaml").write_text("- a\n- b\n")
    with golden.raises(ConfigError):
        load_yaml(path)


def test_nodes_are_filled_one_after_the_other() -> None:
    assert Placement(workers=10, workers_per_node=8).nodes == 2
    assert Placement(workers=8, workers_per_node=8).nodes == 1
    with pytest.raises(ConfigError, match="both at least 1"):
        Placement(workers=0)


@pytest.mark.parametrize("path", sorted(TRAINING.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_shipped_training_configurations_are_valid(path: Path) -> None:
    config = strain_config(load_yaml(path), source=str(path))

    assert config.dataset == "1000000" and config.seconds is not None


def test_the_scalings_on_offer_are_those_of_the_network() -> None:
    assert set(STRAIN.options["input_scaling"].choices or ()) == set(INPUT_SCALINGS)
