"""What the ranks of the benchmark do: counting wrong elements, and the shape of what they return."""

from typing import Any

import pytest
import torch
from make.wording import Golden

from horovod_study.comm import Backend, Launch
from horovod_study.comm import raw as raw_transports
from horovod_study.comm.base import SerialBackend
from horovod_study.comm.raw import open_raw, open_runtime, why_missing
from horovod_study.errors import BackendError
from horovod_study.programs.microbench import (
    PERIOD,
    count_wrong,
    in_words,
    measure,
    measure_collectives,
    model_facts,
    step_flops,
    values_of,
)
from horovod_study.strain.options import StrainConfig


@pytest.fixture
def serial(monkeypatch: pytest.MonkeyPatch) -> SerialBackend:
    """One worker. MPI stays out: once it has started in this process, no mpirun can be started from it any more."""

    def no_mpi(remedy: str) -> None:
        raise BackendError("MPI is not started in the process of the tests")

    monkeypatch.setattr(raw_transports, "load_mpi", no_mpi)
    return SerialBackend(StrainConfig(), Launch(launcher="none", rank=0, workers=1, backend="serial"))


class Alone:
    """The collectives of one rank, where a sum is the value itself; `spoil` changes results."""

    name = "alone"
    device = torch.device("cpu")

    def __init__(self, spoil: str = "") -> None:
        self.spoil = spoil
        self.calls: list[str] = []

    def allreduce_(self, tensor: torch.Tensor) -> None:
        self.calls.append("in")
        if self.spoil == "element":
            tensor[-1] += 1
        elif self.spoil == "nan":
            tensor[0] = torch.nan
        elif self.spoil == "shifted":
            tensor.copy_(tensor.roll(1))

    def allreduce(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        self.calls.append("out")
        output.copy_(tensor)
        if self.spoil == "input":
            tensor[0] = -5.0
        elif self.spoil == "nothing written":
            output.fill_(-1.0)

    def broadcast_(self, tensor: torch.Tensor) -> None:
        self.calls.append("broadcast")

    def barrier(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("count", [1, PERIOD - 1, PERIOD, PERIOD + 1, 5 * PERIOD + 7])
def test_test_values_are_laid_out(count: int) -> None:
    period = torch.arange(count) % PERIOD

    assert torch.equal(values_of([2], torch.empty(count)), (period * 3 % PERIOD).float())
    assert torch.equal(values_of(range(2), torch.empty(count)), (period + period * 2 % PERIOD).float())


@pytest.mark.parametrize(
    ("spoil", "operation", "place", "wrong"),
    [
        ("", "allreduce", "in", 0),
        ("", "allreduce", "out", 0),
        ("", "broadcast", "in", 0),
        ("element", "allreduce", "in", 1),
        ("nan", "allreduce", "in", 1),
        ("shifted", "allreduce", "in", 3000),
        ("input", "allreduce", "out", 1),
        ("nothing written", "allreduce", "out", 3000),
    ],
)
def test_wrong_elements_are_counted(spoil: str, operation: str, place: str, wrong: int) -> None:
    buffers = (torch.empty(3000), torch.empty(3000))
    found = count_wrong(Alone(spoil), operation, place, buffers, rank=0, workers=1)

    assert found == wrong
    assert torch.equal(buffers[0], torch.zeros(3000))


def test_points_of_all_ways_and_sizes(serial: SerialBackend) -> None:
    good, bad = Alone(), Alone("element")
    bad.name = "bad"
    points, barriers = measure_collectives([good, bad], (4, 4096), serial, seconds=0.01, rounds=3)

    assert [(p["bytes"], p["way"], p["operation"], p["place"]) for p in points[:6]] == [
        (4, "alone", "allreduce", "out"),
        (4, "alone", "allreduce", "in"),
        (4, "alone", "broadcast", "in"),
        (4, "bad", "allreduce", "out"),
        (4, "bad", "allreduce", "in"),
        (4, "bad", "broadcast", "in"),
    ]
    assert len(points) == 2 * 2 * 3
    for point in points:
        assert len(point["seconds"]) == len(point["seconds_median_op"]) == 3
        assert all(seconds > 0 for seconds in point["seconds"])
        spoilt = (point["way"], point["operation"], point["place"]) == ("bad", "allreduce", "in")
        assert point["wrong"] == (1 if spoilt else 0)
    assert [each["way"] for each in barriers] == ["alone", "bad"]
    assert len(barriers[0]["seconds"]) == 3


@pytest.mark.parametrize(("slowest_s", "calls"), [(0.0, 1 + 20), (1.0, 1 + 1)])
def test_ranks_agree_on_the_number_of_calls(
    monkeypatch: pytest.MonkeyPatch, serial: SerialBackend, slowest_s: float, calls: int
) -> None:
    """What another rank measured decides here too: a rank that called more often would wait for ever."""

    def stop(value: Any) -> list[Any]:
        raise InterruptedError

    alone = Alone()
    monkeypatch.setattr(serial, "maximum", lambda value: slowest_s)
    monkeypatch.setattr(serial, "gather", stop)
    with pytest.raises(InterruptedError):
        measure_collectives([alone], (4,), serial, seconds=1.0)

    assert alone.calls.count("broadcast") == calls


def test_facts_of_the_shipped_model() -> None:
    facts = model_facts("15-38-197", 75)

    assert facts["flat_bytes"] == 4 * 153_441 == sum(facts["gradients"].values())
    assert facts["gradients"]["fc1.weight"] == 4 * 760 * 197
    assert facts["step_flops"] == 75 * step_flops((15, 38, 197))
    # Inputs and outputs of the four layers for one curve of 3 channels with 201 points.
    conv1, conv2, fc1, fc2 = 3 * 201 + 15 * 197, 15 * 65 + 38 * 61, 760 + 197, 197 + 2
    assert facts["activations_per_curve"] == conv1 + conv2 + fc1 + fc2


def test_sizes_in_words() -> None:
    assert [in_words(size) for size in (4, 1024, 613_764, 2**26)] == ["4 B", "1 kB", "613,764 B", "64 MB"]


# ---------------------------------------------------------------------------------------------- raw transports


def test_one_worker_has_nothing_to_reduce(serial: SerialBackend, golden: Golden) -> None:
    with pytest.raises(BackendError) as caught:
        measure({"sizes": (4,), "transports": ("gloo",), "runtime": False, "seconds": 1.0}, serial)
    golden(str(caught.value), "2 workers")


def test_raw_transports_that_are_not_there(serial: SerialBackend, golden: Golden) -> None:
    with pytest.raises(BackendError) as unknown:
        open_raw("glo", serial)
    golden(str(unknown.value), "gloo")
    with pytest.raises(BackendError) as none:
        open_runtime(serial)
    golden(str(none.value))


@pytest.mark.skipif(torch.cuda.is_available(), reason="NCCL is there")
def test_nccl_is_missing_with_a_reason(serial: Backend) -> None:
    reason = why_missing(serial)["nccl"]

    assert reason.endswith("was built without NCCL") or reason == "no GPU is visible"
    with pytest.raises(BackendError) as caught:
        open_raw("nccl", serial)
    assert str(caught.value).startswith(f"transport nccl cannot be used here: {reason}; available: ")


def test_gloo_alone_with_one_rank(serial: SerialBackend) -> None:
    raw = open_raw("gloo", serial)
    tensor, output = torch.arange(5.0), torch.empty(5)
    raw.allreduce_(tensor)
    raw.allreduce(tensor, output)
    raw.broadcast_(tensor)
    raw.barrier()
    raw.close()

    assert torch.equal(output, torch.arange(5.0))
