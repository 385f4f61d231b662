"""Launch detection, settings, and the parts of the backends that need no second process."""

import pytest
import torch

from horovod_study.comm import detect, settings
from horovod_study.comm.base import FlatGradients, agreed, require_parity
from horovod_study.comm.launch import Launch
from horovod_study.comm.serial import SerialBackend
from horovod_study.config import RunConfig
from horovod_study.errors import BackendError, DataError, StudyError
from horovod_study.workload.model import StressCNN


@pytest.mark.parametrize(
    ("environment", "launcher", "rank", "workers"),
    [
        ({}, "none", 0, 1),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}, "horovodrun --gloo", 1, 2),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, "mpirun", 3, 4),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, "mpirun", 0, 1),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "torchrun", 0, 2),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, "none", 0, 1),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, "srun", 5, 8),
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
            "mpirun",
            1,
            2,
        ),
        ({"RANK": "0"}, "none", 0, 1),
    ],
)
def test_launchers_are_recognised(environment: dict[str, str], launcher: str, rank: int, workers: int) -> None:
    found = detect(environment)

    assert (found.launcher, found.rank, found.workers) == (launcher, rank, workers)


def test_what_auto_becomes() -> None:
    assert detect({}).backend == "serial"
    assert detect({"RANK": "0", "WORLD_SIZE": "1"}).backend == "ddp"
    assert detect({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}).backend == "horovod"


def test_shipped_settings_are_set_and_recorded() -> None:
    environment: dict[str, str] = {}
    effective = settings.apply("horovod/mpi", library_defaults=False, environ=environment)

    assert environment == settings.SHIPPED["horovod/mpi"]
    assert effective["HOROVOD_CYCLE_TIME"] == {"value": environment["HOROVOD_CYCLE_TIME"], "source": "shipped"}
    assert effective["HOROVOD_FUSION_THRESHOLD"]["source"] == "library default"


def test_the_user_wins_over_shipped_settings() -> None:
    environment = {"HOROVOD_CYCLE_TIME": "7"}
    effective = settings.apply("horovod/mpi", library_defaults=False, environ=environment)

    assert environment["HOROVOD_CYCLE_TIME"] == "7"
    assert effective["HOROVOD_CYCLE_TIME"] == {"value": "7", "source": "user"}


def test_a_setting_the_build_does_not_know_is_not_claimed() -> None:
    environment: dict[str, str] = {}
    effective = settings.apply(
        "horovod/mpi", library_defaults=False, unknown=["HOROVOD_IDLE_CYCLE_TIME"], environ=environment
    )

    assert "HOROVOD_IDLE_CYCLE_TIME" not in environment
    assert effective["HOROVOD_IDLE_CYCLE_TIME"] == {"value": None, "source": "not in this build"}


def test_horovod_defaults_set_nothing() -> None:
    environment: dict[str, str] = {}
    effective = settings.apply("horovod/mpi", library_defaults=True, environ=environment)

    assert environment == {}
    assert {each["source"] for each in effective.values()} == {"library default"}
    assert effective["HOROVOD_CYCLE_TIME"]["value"] == "1"


def test_only_settings_that_matter_are_recorded() -> None:
    assert set(settings.apply("mpi/mpi", library_defaults=False, environ={})) == {"OMPI_MCA_mpi_yield_when_idle"}
    assert not any(
        name.startswith("OMPI") for name in settings.apply("horovod/gloo", library_defaults=False, environ={})
    )


def test_flat_gradients_are_the_gradients() -> None:
    torch.manual_seed(0)
    model, twin = StressCNN(), StressCNN()
    twin.load_state_dict(model.state_dict())
    curves = torch.randn(4, 3, 201)
    flat = FlatGradients(list(model.parameters()))
    for each in (model, twin):
        each(curves).square().sum().backward()

    buffer = flat.pack()
    assert buffer.shape == (153_441,)
    assert torch.equal(buffer, torch.cat([parameter.grad.reshape(-1) for parameter in twin.parameters()]))
    buffer.mul_(0.5)
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad * 0.5), "what happens to the buffer happens to the gradients"


def serial() -> SerialBackend:
    return SerialBackend(RunConfig(), detect({}))


def test_serial_refuses_several_workers() -> None:
    launch = Launch(launcher="mpirun", rank=0, workers=2, backend="horovod")
    with pytest.raises(BackendError, match="backend serial is one worker, but mpirun started 2; use --backend auto"):
        SerialBackend(RunConfig(), launch)


class TwoRanks(SerialBackend):
    """Rank 0 of two, the other one answering as told."""

    workers = 2

    def __init__(self, other: object) -> None:
        super().__init__(RunConfig(), detect({}))
        self._other = other

    def gather(self, value: object) -> list[object]:
        return [value, self._other]


def test_a_failure_of_the_other_rank_is_everybodys() -> None:
    with (
        pytest.raises(StudyError, match="rank 1: /data: no such data set"),
        agreed(TwoRanks("/data: no such data set")),
    ):
        pass


def test_a_failure_of_all_is_told_without_a_rank() -> None:
    with pytest.raises(StudyError, match=r"^same$"), agreed(TwoRanks("same")):
        raise DataError("same")


def test_no_failure_no_error() -> None:
    with agreed(TwoRanks(None)):
        pass


def test_a_bug_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError), agreed(serial()):
        raise ZeroDivisionError


def test_parity_names_the_first_difference() -> None:
    other = {"host": "node2", "batch": 50, "seed": 1}
    with pytest.raises(BackendError, match=r"rank 1 on node2 has batch 50, rank 0 on \S+ has 75; start all ranks with"):
        require_parity(TwoRanks(other), {"batch": 75, "seed": 1})
    require_parity(TwoRanks({**other, "batch": 75}), {"batch": 75, "seed": 1})
