"""All-reduce, broadcast and barrier without a training runtime around them: the floor that runtimes are compared with.

A raw transport is opened beside a backend that is already connected, whichever it is, and nothing of that changes.
`open_runtime` gives the all-reduce of the backend itself the same methods, to compare the two call by call.

    mpi     mpi4py on a duplicate of MPI_COMM_WORLD; needs ranks started by mpirun (horovodrun over MPI is that too)
    gloo    torch's Gloo process group, made directly: torch.distributed's global state is not touched
    nccl    torch's NCCL process group, the same way; one GPU for each rank
"""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from horovod_study.comm import gpus
from horovod_study.comm.base import Backend, fail_together
from horovod_study.comm.launch import detect, load_mpi, meeting_at, require_connection, require_launchers_mpi
from horovod_study.errors import BackendError, nearest

TRANSPORTS = ("mpi", "gloo", "nccl")

_opened = 0  # how many process groups this process made: each needs names of its own in the store


class Raw:
    """Collectives of all ranks on float tensors; sums, never means. Every rank must make the same calls in order."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name  # mpi | gloo | nccl; of a runtime horovod/mpi, ddp/gloo, ...
        self.device = device  # where tensors are expected

    def allreduce_(self, tensor: torch.Tensor) -> None:
        """Replace `tensor` on every rank by the sum over ranks."""
        dist.all_reduce(tensor)  # as all that is not said otherwise: torch.distributed's, of a run whose backend is ddp

    def allreduce(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        """Make `output` the sum of `tensor` over ranks; `tensor` stays.

        Where the library reduces in place only, a copy comes first; where it makes the output itself, `output` is
        made to share its memory.
        """
        output.copy_(tensor)
        self.allreduce_(output)

    def broadcast_(self, tensor: torch.Tensor) -> None:
        """Replace `tensor` on every rank by rank 0's."""
        dist.broadcast(tensor, src=0)

    def barrier(self) -> None:
        """Return when every rank has come here."""
        dist.barrier()

    def settle(self) -> None:
        """Return when everything begun so far is done; on a CPU it is done when its call returns."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        """Leave; no other method may be called after this. What the backend itself has opened it closes."""


def open_raw(transport: str, backend: Backend) -> Raw:
    """Connect the ranks of `backend` once more, over `transport` alone. Collective.

    Raises BackendError, on every rank, when the transport is not there or not known.
    """
    missing = why_missing(backend)
    have = [name for name in TRANSPORTS if name not in missing]
    if transport not in have:
        why = missing.get(transport) or f"it is not known{nearest(transport, TRANSPORTS)}"
        raise BackendError(f"transport {transport} cannot be used here: {why}; available: {', '.join(have) or 'none'}")
    return MpiRaw("mpi") if transport == "mpi" else _GroupRaw(transport, backend)


def open_runtime(backend: Backend) -> Raw:
    """Return the all-reduce as the backend's own library does it for gradients, with the methods of a raw transport.

    Raises BackendError for a backend without one (serial, a parameter server).
    """
    if backend.name == "mpi":
        return MpiRaw("mpi/mpi")
    if backend.name not in ("horovod", "ddp"):
        raise BackendError(
            f"backend {backend.name} has no all-reduce of its own; measure horovod, ddp or mpi, or a raw transport"
        )
    device = gpus.take("cuda" if backend.transport == "nccl" else "cpu", backend)
    kind = _HorovodRuntime if backend.name == "horovod" else Raw
    return kind(f"{backend.name}/{backend.transport}", device)


def why_missing(backend: Backend) -> dict[str, str]:
    """Return the transports that cannot be opened beside `backend`, each with the first rank's reason. Collective.

    What is not in the result is available.
    """
    missing: dict[str, str] = {}
    for theirs in backend.gather(_missing_here(backend)):
        missing = theirs | missing
    if "nccl" not in missing and (why := gpus.why_shared(backend)):
        missing["nccl"] = why
    return missing


def _missing_here(backend: Backend) -> dict[str, str]:
    found, launch = dict[str, str](), detect(os.environ)
    try:
        if launch.launcher in ("horovodrun --gloo", "torchrun"):
            raise BackendError(f"{launch.launcher} started the ranks, and MPI does not know them; start with mpirun")
        require_connection(launch)
        mpi = load_mpi("leave it out")
        require_launchers_mpi(launch, mpi.COMM_WORLD.Get_size(), "mpi4py")
        if backend.name == "horovod" and mpi.Query_thread() < mpi.THREAD_MULTIPLE:
            raise BackendError("Horovod's thread uses MPI, which was started for one thread only")
    except BackendError as error:
        found["mpi"] = str(error)
    if not torch.cuda.is_available():
        found["nccl"] = "no GPU is visible"
    for name, label in (("gloo", "Gloo"), ("nccl", "NCCL")):
        if not dist.is_available() or not getattr(dist, f"is_{name}_available")():
            found[name] = f"PyTorch {torch.__version__} was built without {label}"
    return found


class MpiRaw(Raw):
    """MPI through mpi4py. Tensors on a GPU go through host memory."""

    def __init__(self, name: str) -> None:
        super().__init__(name, torch.device("cpu"))
        self._MPI = load_mpi("leave it out")
        self._world = self._MPI.COMM_WORLD.Dup()  # messages of its own, beside those of the backend

    def allreduce_(self, tensor: torch.Tensor) -> None:
        staged = tensor.cpu()  # the tensor itself on a CPU
        self._world.Allreduce(self._MPI.IN_PLACE, staged.numpy())
        if staged is not tensor:
            tensor.copy_(staged)

    def allreduce(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        if tensor.is_cuda:
            super().allreduce(tensor, output)
        else:
            self._world.Allreduce(tensor.numpy(), output.numpy())

    def broadcast_(self, tensor: torch.Tensor) -> None:
        staged = tensor.cpu()
        self._world.Bcast(staged.numpy(), root=0)
        if staged is not tensor:
            tensor.copy_(staged)

    def barrier(self) -> None:
        self._world.Barrier()

    def close(self) -> None:
        self._world.Free()


class _GroupRaw(Raw):
    """Gloo or NCCL through a process group of torch that belongs to nobody else.

    The ranks meet at a store that rank 0 opens on a free port; its address goes through the backend.
    """

    def __init__(self, transport: str, backend: Backend) -> None:
        global _opened
        _opened += 1
        super().__init__(transport, gpus.take("cuda" if transport == "nccl" else "cpu", backend))
        timeout = timedelta(seconds=300.0)
        hosts = backend.gather(os.uname().nodename)
        one_host = len(set(hosts)) == 1
        address = "127.0.0.1" if one_host else hosts[0]  # names of single machines often resolve to nothing
        own: Any = None
        with fail_together(backend):
            if backend.rank == 0:
                own = TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=timeout)
        port = backend.gather(own.port if own else None)[0]
        with fail_together(backend), meeting_at(address, port, backend.rank):
            self._store = own or TCPStore(address, port, is_master=False, timeout=timeout)
            store = PrefixStore(f"horovod_study/{transport}/{_opened}", self._store)
            if transport == "nccl":
                self._group: Any = dist.ProcessGroupNCCL(
                    store, backend.rank, backend.workers, dist.ProcessGroupNCCL.Options()
                )
            else:
                self._group = dist.ProcessGroupGloo(store, backend.rank, backend.workers, timeout)
        # NCCL connects at the first collective, Gloo in part: not what a measurement should see.
        self.allreduce_(torch.zeros(1, device=self.device))
        self.settle()

    def allreduce_(self, tensor: torch.Tensor) -> None:
        self._group.allreduce([tensor]).wait()

    def broadcast_(self, tensor: torch.Tensor) -> None:
        self._group.broadcast([tensor]).wait()

    def barrier(self) -> None:
        self._group.barrier().wait()

    def close(self) -> None:
        # A rank that leaves takes its sockets with it: not before the others have had their last message.
        self.barrier()
        self.settle()
        if self.name == "nccl":
            self._group.shutdown()  # torch complains of one that is only forgotten
        del self._group
        del self._store


class _HorovodRuntime(Raw):
    """The all-reduce of a run whose backend is Horovod: its thread, its cycle and its negotiation included.

    Messages are named after their size, as gradients are after their parameters: from the second one on the negotiation
    finds them in the response cache.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        import horovod.torch as hvd

        super().__init__(name, device)
        self._hvd = hvd

    def allreduce_(self, tensor: torch.Tensor) -> None:
        self._hvd.allreduce_(tensor, name=f"in place {tensor.numel()}", op=self._hvd.Sum)

    def allreduce(self, tensor: torch.Tensor, output: torch.Tensor) -> None:
        output.set_(self._hvd.allreduce(tensor, name=f"out of place {tensor.numel()}", op=self._hvd.Sum))

    def broadcast_(self, tensor: torch.Tensor) -> None:
        self._hvd.broadcast_(tensor, root_rank=0, name=f"broadcast {tensor.numel()}")

    def barrier(self) -> None:
        self._hvd.barrier()
