"""To whom a script's process belongs, read from what the script has started, with nothing started here."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from make.wording import Golden
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from horovod_study.errors import BackendError
from horovod_study.recording import recorder as ranks
from horovod_study.recording.rank import facts


def fake_horovod(*, size: int = 2, rank: int = 1, mpi: bool = True, nccl: bool = False, started: bool = True) -> Any:
    def allgather_object(value: Any, name: str) -> list[Any]:
        assert name == "horovod_study.recorder"
        return [value] * size

    return SimpleNamespace(
        is_initialized=lambda: started,
        size=lambda: size,
        rank=lambda: rank,
        mpi_enabled=lambda: mpi,
        nccl_built=lambda: nccl,
        allgather_object=allgather_object,
    )


def fake_mpi(*, size: int, rank: int = 0, started: bool = True) -> Any:
    world = SimpleNamespace(Get_size=lambda: size, Get_rank=lambda: rank, allgather=lambda value: [value] * size)
    return SimpleNamespace(COMM_WORLD=world, Is_initialized=lambda: started, Is_finalized=lambda: False)


HOROVODS_OPTIMIZER = SimpleNamespace(synchronize=lambda: None, skip_synchronize=lambda: None)
PLAIN = nn.Linear(1, 1)


@pytest.fixture(autouse=True)
def nothing_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.delitem(sys.modules, "horovod.torch", raising=False)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)


@pytest.fixture
def gloo(tmp_path: Path) -> Any:
    """torch.distributed over Gloo, with one worker."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def found(model: nn.Module = PLAIN, optimizer: object = None, *, on_gpu: bool = False) -> tuple[Any, ...]:
    return tuple(facts.workers_of([model], optimizer, on_gpu=on_gpu).values())


def test_a_process_of_its_own_is_one_plain_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for environ in ({}, {"RANK": "0", "WORLD_SIZE": "1"}):
        monkeypatch.setattr(os, "environ", environ)
        assert found() == ("serial", "none", None, 0, 1)
        assert ranks._gathering("serial", PLAIN)("me") == ["me"]


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "torchrun"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, "mpirun"),
    ],
)
def test_processes_that_nobody_has_connected_are_refused(
    environ: dict[str, str], launcher: str, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where mpi4py was imported by some library, and knows nothing of the others."""
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", fake_mpi(size=1))
    monkeypatch.setattr(os, "environ", environ)
    with pytest.raises(BackendError) as caught:
        ranks._gathering(found()[0], PLAIN)

    golden(
        str(caught.value),
        launcher,
        environ.get("WORLD_SIZE", "4"),
        "hvd.init",
        "torch.distributed.init_process_group",
    )


@pytest.mark.parametrize(
    ("horovod", "optimizer", "on_gpu", "expected"),
    [
        ({}, HOROVODS_OPTIMIZER, False, ("horovod", "mpi", "synchronize", 1, 2)),
        ({"mpi": False}, HOROVODS_OPTIMIZER, False, ("horovod", "gloo", "synchronize", 1, 2)),
        ({"nccl": True}, HOROVODS_OPTIMIZER, False, ("horovod", "mpi", "synchronize", 1, 2)),
        ({"nccl": True}, HOROVODS_OPTIMIZER, True, ("horovod", "nccl", "synchronize", 1, 2)),
        ({}, None, False, ("horovod", "mpi", None, 1, 2)),
        ({"started": False}, None, False, ("serial", "none", None, 0, 1)),
    ],
)
def test_horovod_that_runs_is_found(
    horovod: dict[str, Any],
    optimizer: object,
    on_gpu: bool,
    expected: tuple[Any, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "horovod.torch", fake_horovod(**horovod))

    assert found(optimizer=optimizer, on_gpu=on_gpu) == expected
    assert ranks._gathering(expected[0], PLAIN)("me") == ["me"] * expected[-1]


@pytest.mark.parametrize(
    ("mpi", "expected"),
    [
        ({"size": 3, "rank": 2}, ("mpi", "mpi", "unseen", 2, 3)),
        ({"size": 1}, ("serial", "none", None, 0, 1)),
        ({"size": 3, "started": False}, ("serial", "none", None, 0, 1)),
    ],
)
def test_mpi_that_runs_is_found(
    mpi: dict[str, Any], expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", fake_mpi(**mpi))

    assert found() == expected
    assert ranks._gathering(expected[0], PLAIN)("me") == ["me"] * expected[-1]


def test_the_model_and_the_optimizer_say_over_what_they_average(gloo: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a script has started both, as some do for their data loading."""
    assert ranks._gathering("distributed", PLAIN)({"a": 1}) == [{"a": 1}]
    monkeypatch.setitem(sys.modules, "horovod.torch", fake_horovod())
    wrapped = DistributedDataParallel(nn.Linear(1, 1))

    assert found(wrapped)[:3] == ("ddp", "gloo", "backward")
    assert found(PLAIN, HOROVODS_OPTIMIZER)[0] == "horovod"
    assert found(PLAIN)[:3] == ("distributed", "gloo", None), "what is wrapped in nothing of DDP's is none"
    assert ranks._gathering("ddp", wrapped)({"a": 1}) == [{"a": 1}]


class Around(nn.Module):
    """As Fabric wraps a model: it holds the DDP model, and the bare one beside it."""

    def __init__(self, forward: nn.Module, original: nn.Module) -> None:
        super().__init__()
        self.forward_module, self.original = forward, original


def test_a_ddp_model_inside_a_wrapper_averages(gloo: None) -> None:
    inner = nn.Linear(1, 1)
    around = Around(DistributedDataParallel(inner), inner)

    assert facts.averaging(around) is around.forward_module and found(around)[2] == "backward"
    partly = Around(DistributedDataParallel(inner), nn.Linear(1, 1))
    assert facts.averaging(partly) is None, "some of its parameters are averaged by nobody"


def test_somebody_who_waits_is_told_for_what(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    with ranks._waiting("nobody reads this"):
        pass
    monkeypatch.setattr(ranks, "_PATIENCE_S", 0.01)
    with ranks._waiting("every rank must enter"):
        time.sleep(0.1)

    golden(capsys.readouterr().err)


@pytest.mark.slow
def test_no_library_is_loaded_by_looking_for_one() -> None:
    program = """
import sys
from torch import nn
from horovod_study.recording.rank import facts
facts.workers_of([nn.Linear(1, 1)], None, on_gpu=False)
sys.exit(str({"horovod", "mpi4py"} & set(sys.modules) or ""))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)

    assert done.stderr.strip() == ""
