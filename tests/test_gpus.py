"""Which GPU a rank takes, with fakes of CUDA: nothing here needs a GPU."""

import ast
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from make.wording import Golden

import horovod_study
from horovod_study.comm import detect, gpus
from horovod_study.comm.base import SerialBackend
from horovod_study.comm.distributed import DistributedBackend
from horovod_study.comm.horovod import HorovodBackend
from horovod_study.comm.raw import why_missing
from horovod_study.errors import BackendError, StudyError
from horovod_study.strain.options import StrainConfig

ROOT = Path(horovod_study.__file__).parent
A, B, C, D = "aaaa", "bbbb", "cccc", "dddd"


class Cuda:
    """What CUDA shows to one rank at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.uuids: Sequence[str] = ()
        self.current: torch.device | None = None
        self.broken = ""  # what CUDA says when it is asked
        self.busy = ""  # what it says when it is to begin
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(self.uuids))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(self.uuids))
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: setattr(self, "current", device))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: self.begin())
        monkeypatch.setattr(torch.cuda, "get_device_properties", self.properties)
        monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
        self.bus = SimpleNamespace(bus_ids=dict)
        monkeypatch.setattr(gpus, "Gpus", lambda uuids: self.bus)
        monkeypatch.setattr("os.uname", lambda: SimpleNamespace(nodename=self.host))

    def properties(self, device: torch.device) -> SimpleNamespace:
        if self.broken:
            raise RuntimeError(self.broken)
        return SimpleNamespace(name="a GPU", uuid=self.uuids[device.index])

    def begin(self) -> None:
        if self.busy:
            raise RuntimeError(self.busy)

    def rank(self, number: int, everybody: Sequence[gpus.Seen], **more: Any) -> Any:
        """Return the backend of one rank, and be what that rank sees."""
        self.host, self.uuids = everybody[number]
        self.current = None

        def gather(value: Any) -> list[Any]:
            if not isinstance(value, tuple):  # what else is gathered is the same on all ranks
                return [value] * len(everybody)
            assert value[:2] == (self.host, [] if self.broken else list(self.uuids))
            return [(host, uuids, value[2]) for host, uuids in everybody]

        return SimpleNamespace(rank=number, workers=len(everybody), gather=gather, **more)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    return Cuda(monkeypatch)


def on(host: str, *seen: Sequence[str]) -> list[gpus.Seen]:
    return [(host, list(uuids)) for uuids in seen]


SHARED = on("n1", [A], [A])
PLACES = {
    "all visible": (on("n1", *[[A, B, C, D]] * 4), [0, 1, 2, 3], None),
    "one for each rank": (on("n1", [A], [B], [C], [D]), [0, 0, 0, 0], None),
    "all, the own one first": (on("n1", [A, B], [B, A]), [0, 0], None),
    "two for each rank": (on("n1", [A, B], [C, D]), [0, 0], None),
    "the halves in turn": (on("n1", [A, B], [C, D], [A, B], [C, D]), [0, 0, 1, 1], None),
    "two hosts": (on("n1", [A, B], [A, B]) + on("n2", [C, D], [C, D]), [0, 1, 0, 1], None),
    "ranks of hosts alternate": ([*on("n1", [A, B]), *on("n2", [C, D])] * 2, [0, 0, 1, 1], None),
    "one for two": (SHARED, [0, 0], "n1 has 1 for 2 workers"),
    "two for four": (on("n1", *[[A, B]] * 4), [0, 1, 0, 1], "n1 has 2 for 4 workers"),
    "shared on the second host": (on("n1", [A]) + on("n2", [B], [B]), [0, 0, 0], "n2 has 1 for 2 workers"),
    "shared beside free ones": (on("n1", [A], [A], [B, C]), [0, 0, 0], "ranks 0 and 1 on n1 see the same one only"),
}


@pytest.mark.parametrize(("everybody", "numbers", "shared"), PLACES.values(), ids=list(PLACES))
def test_each_rank_takes_a_gpu_of_its_own_where_there_is_one(
    everybody: list[gpus.Seen], numbers: list[int], shared: str | None, cuda: Cuda
) -> None:
    for rank, number in enumerate(numbers):
        backend = cuda.rank(rank, everybody)
        assert gpus.take("auto", backend) == torch.device("cuda", number)
        assert cuda.current == torch.device("cuda", number)
        why = gpus.why_shared(backend)
        assert why == (None if shared is None else f"NCCL needs a GPU for each worker, and {shared}")


def test_a_cpu_is_taken_where_it_is_wanted_or_nobody_sees_a_gpu(cuda: Cuda, golden: Golden) -> None:
    none, both = on("n1", [], []), on("n1", [A], [B])
    assert gpus.take("cpu", cuda.rank(0, both)) == gpus.take("auto", cuda.rank(0, none)) == torch.device("cpu")
    assert cuda.current is None
    with golden.raises(BackendError, match="PyTorch.*GPU"):
        gpus.take("cuda", cuda.rank(0, none))


def test_a_rank_without_a_gpu_beside_others_is_named_on_all_of_them(cuda: Cuda, golden: Golden) -> None:
    for rank in range(3):
        with golden.raises(BackendError, match="rank 1.*n1.*GPU.*rank 0"):
            gpus.take("auto", cuda.rank(rank, on("n1", [A], [], [B])))


def test_a_gpu_that_does_not_work_is_named(cuda: Cuda, golden: Golden) -> None:
    backend = cuda.rank(1, on("n1", [A, B], [A, B]))
    cuda.busy = "CUDA error: all CUDA-capable devices are busy or unavailable\nCUDA kernel errors might be ..."
    with golden.raises(StudyError, match="GPU.*n1.*CUDA"):
        gpus.take("auto", backend)
    cuda.broken = "no CUDA-capable device is detected"
    with golden.raises(StudyError, match="rank 0.*n1.*PyTorch.*GPUs.*CUDA-capable"):
        gpus.take("auto", backend)


@pytest.mark.parametrize(
    ("allowed", "near", "kept"),
    [
        (range(16), range(8, 16), range(8, 16)),
        (range(4, 16), range(8), range(4, 8)),
        (range(8), range(16), None),  # all near
        (range(11), range(8, 16), None),  # too few of them
        (range(16), (), None),  # unknown
    ],
)
def test_a_rank_keeps_to_the_cores_near_its_gpu(
    allowed: Sequence[int], near: Sequence[int], kept: Sequence[int] | None, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: dict[int, set[int]] = {}
    own = {0: set(allowed), 11: set(allowed), 12: {0, 15}, 13: {1}}  # threads that have cores of their own
    cuda.bus.bus_ids = lambda: {"gpu 0": "00000000:3B:00.0"}
    monkeypatch.setattr(gpus, "cores_near", lambda bus_id: list(near) if bus_id == "00000000:3B:00.0" else [])
    monkeypatch.setattr(gpus, "threads", lambda: {11, 12, 13})
    monkeypatch.setattr("os.sched_getaffinity", own.__getitem__)
    monkeypatch.setattr("os.sched_setaffinity", pinned.__setitem__)
    gpus.take("cuda", cuda.rank(0, on("n1", [A])))

    few = {number: cores & set(near) for number, cores in own.items() if number}
    assert pinned == ({number: cores for number, cores in few.items() if cores} if kept else {})
    assert kept is None or pinned[11] == set(kept)


# --------------------------------------------------------------------------------------- who refuses a shared one

MESSAGE = "NCCL needs a GPU for each worker, and n1 has 1 for 2 workers"


def test_horovod_shares_over_mpi_only(cuda: Cuda, golden: Golden) -> None:
    model: Any = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(is_cuda=True)]))
    optimizer: Any = None
    with golden.raises(BackendError, match=f"{MESSAGE}"):
        HorovodBackend.bind(cuda.rank(1, SHARED, transport="nccl"), model, optimizer)
    with pytest.raises(AttributeError, match="_hvd"):  # on to the broadcast
        HorovodBackend.bind(cuda.rank(1, SHARED, transport="mpi"), model, optimizer)


def test_no_raw_nccl_on_a_shared_one(cuda: Cuda) -> None:
    assert why_missing(cuda.rank(1, SHARED, name="serial"))["nccl"] == MESSAGE
    assert "nccl" not in why_missing(cuda.rank(1, on("n1", [A], [B]), name="serial"))


@pytest.fixture
def ddp(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what opens torch.distributed over NCCL for one rank of several; Gloo stands in for NCCL."""
    opened, real = [], dist.init_process_group
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)

    def begin(transport: str, **_: Any) -> None:
        opened.append(transport)
        real("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]

    def open_for(number: int, everybody: list[gpus.Seen]) -> DistributedBackend:
        gather = cuda.rank(number, everybody).gather
        monkeypatch.setattr(DistributedBackend, "gather", lambda self, value: gather(value))
        monkeypatch.setattr(dist, "get_rank", lambda *_: number)
        return DistributedBackend(StrainConfig(transport="nccl"), detect({"RANK": "0", "WORLD_SIZE": "1"}))

    monkeypatch.setattr(dist, "init_process_group", begin)
    monkeypatch.setattr(dist, "barrier", lambda device_ids: opened.append((device_ids, cuda.current)))
    yield open_for
    taken = cuda.current
    assert opened == (["nccl"] if taken is None else ["nccl", ([taken.index], taken)]), "NCCL connects once it is taken"
    monkeypatch.undo()
    dist.destroy_process_group()


def test_ddp_takes_the_gpu_before_nccl_connects(ddp: Any, cuda: Cuda) -> None:
    backend = ddp(1, on("n1", [A, B], [A, B]))

    assert cuda.current == torch.device("cuda", 1)
    used: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dist, "all_reduce", lambda tensor, op, group: used.append((tensor.device.type, group)))
        assert backend.maximum(3.0) == 3.0
    assert used == [("cpu", backend._aside)] and backend._aside is not None, "the GPU would be waited for"
    assert dist.get_backend(backend._aside) == "gloo"


def test_ddp_over_nccl_takes_no_shared_one(ddp: Any, cuda: Cuda, golden: Golden) -> None:
    with golden.raises(BackendError, match=f"{MESSAGE}"):
        ddp(1, SHARED)
    assert cuda.current is None


# ------------------------------------------------------------------------------------------------------ nobody else


def test_nobody_else_counts_or_sets_the_gpu() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {node.attr}"
        for path in ROOT.rglob("*.py")
        if "_device" in (text := path.read_text(encoding="utf-8")) or "device_" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr in ("device_count", "set_device")
    }
    assert found == {"comm/gpus.py: device_count", "comm/gpus.py: set_device"}


def test_a_serial_run_asks_nobody(cuda: Cuda) -> None:
    cuda.rank(0, on("n1", [A, B]))
    backend = SerialBackend(StrainConfig(), detect({}))
    assert gpus.take("auto", backend) == torch.device("cuda", 0)
