"""MPI through mpi4py, without a runtime between it and the training loop: the least that averaging gradients can cost.

flat     backward first, then one all-reduce of one flat buffer
hooks    buckets of gradients leave during backward, each with an all-reduce that does not block

Gradients on a GPU are given to MPI where they are when it is CUDA-aware, and through page-locked host memory otherwise
(always with hooks: Open MPI's all-reduce that does not block is not CUDA-aware).
The parameter server is this backend with another way to average a part of the buffer.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

from horovod_study.comm import settings
from horovod_study.comm.base import BUCKET_MB, Averaging, FlatGradients, Optimizer
from horovod_study.comm.launch import (
    Launch,
    cuda_aware,
    load_mpi,
    loaded_library,
    require_connection,
    require_launchers_mpi,
)
from horovod_study.config.run import RunConfig
from horovod_study.errors import BackendError


class Bucket(NamedTuple):
    """A contiguous part of the gradient buffer: its number, and first and last + 1 element."""

    number: int
    start: int
    stop: int


class GradientBuckets(FlatGradients):
    """One buffer for all gradients, in reverse order of the parameters, cut into buckets of about `bucket_bytes`.

    A bucket ends with the parameter that fills it, so one larger parameter is one larger bucket. `send` is called from
    within backward with each bucket when it is full, always in the order of their numbers: the order in which gradients
    arrive may differ from rank to rank, that of collectives must not.
    """

    always_hooked = True

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, workers: int, bucket_bytes: float, send: Callable[[Bucket], None]
    ) -> None:
        trained = [parameter for parameter in reversed(list(parameters)) if parameter.requires_grad]
        self._send = send
        self.buckets: list[Bucket] = []
        self._places: list[int] = []  # parameter -> its bucket
        start = stop = 0
        for parameter in trained:
            self._places.append(len(self.buckets))
            stop += parameter.numel()
            if (stop - start) * parameter.element_size() >= bucket_bytes or parameter is trained[-1]:
                self.buckets.append(Bucket(len(self.buckets), start, stop))
                start = stop
        self._missing = Counter(self._places)  # bucket -> how many of its gradients are to come in this step
        self._next = 0  # the first bucket that has not been sent in this step
        super().__init__(trained, workers=workers)

    def _taker(self, view: torch.Tensor) -> Callable[[torch.Tensor], None]:
        take, bucket = super()._taker(view), self._places[len(self.views) - 1]

        def arrived(parameter: torch.Tensor) -> None:
            if parameter.grad is None or self.silent:
                return
            take(parameter)
            self._missing[bucket] -= 1
            while self._next < len(self.buckets) and self._missing[self._next] <= 0:
                self._send(self.buckets[self._next])
                self._next += 1

        return arrived

    def require_all_sent(self) -> None:
        """Be ready for the next step; raises BackendError if this step left a parameter without a gradient."""
        if self._next != len(self.buckets):
            raise BackendError(
                "a parameter got no gradient in this step, and the others would wait for it; use --reduction flat, or "
                "a model that uses all its parameters"
            )
        self._missing, self._next = Counter(self._places), 0


class _Wire:
    """The gradient buffer as MPI sees it: itself, or a copy of it in host memory where MPI cannot read the device."""

    def __init__(self, buffer: torch.Tensor, *, device_pointers: bool) -> None:
        self._buffer = buffer
        self._on_device = buffer.is_cuda
        staged = self._on_device and not device_pointers
        self.tensor = torch.empty_like(buffer, device="cpu", pin_memory=True) if staged else buffer

    def fill(self, start: int, stop: int) -> None:
        """Make a part of the buffer ready to be read by MPI, which knows nothing of the device's queue of work."""
        if self.tensor is not self._buffer:
            self.tensor[start:stop].copy_(self._buffer[start:stop], non_blocking=True)
        if self._on_device:  # wait for what it still has to compute
            torch.cuda.current_stream(self._buffer.device).synchronize()

    def deliver(self, start: int, stop: int) -> None:
        """Bring what MPI has written back into the buffer, in the order of the current stream.

        The copy is not waited for: MPI writes there again only after the next `fill`, which is behind it in the stream.
        """
        if self.tensor is not self._buffer:
            self._buffer[start:stop].copy_(self.tensor[start:stop], non_blocking=True)


def message(tensor: torch.Tensor) -> Any:
    """Return `tensor` as mpi4py takes it: an array on a CPU, the tensor itself, with its device pointer, on a GPU."""
    return tensor if tensor.is_cuda else tensor.numpy()


class MpiBackend(Averaging):
    """Ranks that MPI started and connects; they average with its own all-reduce."""

    name = "mpi"
    transport = "mpi"
    buckets_on_device = False  # whether buckets can be averaged through pointers to GPU memory, where MPI takes such

    def __init__(self, config: RunConfig, launch: Launch) -> None:
        if launch.launcher in ("horovodrun --gloo", "torchrun"):
            raise BackendError(
                f"backend {self.name} needs mpirun, but {launch.named} started this run; launch with mpirun"
            )
        require_connection(launch)
        self.settings = settings.apply(f"{self.name}/mpi", config=config)
        self._MPI = MPI = load_mpi("use --backend ddp")
        self._world = MPI.COMM_WORLD
        self.rank, self.workers = self._world.Get_rank(), self._world.Get_size()
        require_launchers_mpi(launch, self.workers, "mpi4py")
        self._config = config
        self.reduction = config.reduction if self.workers > 1 else "none"
        self._buckets: GradientBuckets | None = None
        self.settings["mpi_library"] = {"value": loaded_library(), "source": "loaded"}
        self.settings["cuda_aware"] = cuda_aware()

    def _prepare(self, buckets: list[Bucket]) -> None:
        """Be ready to make the wire the sum over ranks; `buckets` cover it, in the order in which they will start."""
        self._begun: list[Any] = []

    def _whole(self) -> None:
        """Return when all of the wire is the sum."""
        self._world.Allreduce(self._MPI.IN_PLACE, message(self._wire.tensor))

    def _start(self, bucket: Bucket) -> None:
        """Begin with a part of the wire, from within backward."""
        part = message(self._wire.tensor[bucket.start : bucket.stop])
        self._begun.append(self._world.Iallreduce(self._MPI.IN_PLACE, part))
        # MPI moves data only while it is called: each new bucket pushes those before it.
        self._MPI.Request.Testall(self._begun)

    def _finish(self) -> None:
        """Return when all parts that were begun are the sum."""
        self._MPI.Request.Waitall(self._begun)
        self._begun.clear()

    def bind(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        for parameter in model.parameters():
            start = parameter.detach().cpu().contiguous()
            self._world.Bcast(start.numpy(), root=0)
            parameter.data.copy_(start)
        self.choose(model, hooks_asked=self._config.bucket_mb is not None)
        if self.reduction == "none":
            return model, optimizer
        if self.reduction == "hooks":
            asked = self._config.bucket_mb
            size, source = (BUCKET_MB, "shipped") if asked is None else (asked, "asked")
            self.settings["bucket_mb"] = {"value": size, "source": source}
            self._buckets = GradientBuckets(
                model.parameters(), workers=self.workers, bucket_bytes=size * 1e6, send=self._send
            )
            buffer, parts = self._buckets.buffer, self._buckets.buckets
            self.settings["buckets"] = {"value": len(parts), "source": "from bucket_mb and the model"}
            if buffer.is_cuda and self._MPI.Query_thread() < self._MPI.THREAD_SERIALIZED:
                raise BackendError(
                    "this MPI was started for one thread only, and on a GPU gradients leave from a thread of PyTorch; "
                    "use --reduction flat"
                )
        else:
            self.flat = FlatGradients(model.parameters(), workers=self.workers)
            buffer = self.flat.buffer
            parts = [Bucket(0, 0, buffer.numel())]
        device_pointers, why = self.settings["cuda_aware"]["value"], "cuda_aware"
        if self._buckets and not self.buckets_on_device:
            device_pointers, why = False, "Open MPI's all-reduce that does not block takes no device pointers"
        if buffer.is_cuda:
            self.settings["staged"] = {"value": not device_pointers, "source": why}
        self._wire = _Wire(buffer, device_pointers=device_pointers)
        self._prepare(parts)
        return model, optimizer

    def _send(self, bucket: Bucket) -> None:
        self._wire.fill(bucket.start, bucket.stop)
        self._start(bucket)

    def exchange(self) -> None:
        if self.silent:
            return
        if self.flat is not None:
            total = self.flat.buffer.numel()
            self._wire.fill(0, total)
            self._whole()
            self._wire.deliver(0, total)
        elif self._buckets is not None:
            self._buckets.require_all_sent()
            self._finish()
            self._wire.deliver(0, self._buckets.buffer.numel())

    def _silence(self, silent: bool) -> None:
        super()._silence(silent)
        if self._buckets is not None:
            self._buckets.silent = silent

    def gather(self, value: Any) -> list[Any]:
        return list(self._world.allgather(value))

    def barrier(self) -> None:
        self._world.Barrier()

    def maximum(self, value: float) -> float:
        return float(self._world.allreduce(value, op=self._MPI.MAX))

    def close(self) -> None:
        self._MPI.Finalize()


class PsBackend(MpiBackend):
    """Averages through servers: what data-parallel training did before all-reduce, to show why that won.

    Every rank sends its gradients to the servers, which are ranks 0, 1, ... and train as all others do. Each server has
    a contiguous share of the gradient buffer: it receives it from all others, adds in the order of ranks, and sends the
    result to all of them. With N workers a server's link carries (N - 1) times its share in each direction, where a
    ring all-reduce carries 2 (N - 1) / N of the buffer over every link. As many servers as workers make it the same
    amount, in messages of another pattern. With hooks, buckets are sent during backward; the servers add and answer
    after their own. Only the servers add, each element once, so all ranks end with identical bits.
    """

    name = "ps"
    buckets_on_device = True

    def __init__(self, config: RunConfig, launch: Launch) -> None:
        super().__init__(config, launch)
        if config.ps_servers > self.workers:
            raise BackendError(
                f"ps_servers is {config.ps_servers}, but there {'is' if self.workers == 1 else 'are'} only "
                f"{self.workers} worker{'s' * (self.workers > 1)}, and servers are workers; use --ps-servers "
                f"{self.workers} or fewer, or start more workers"
            )
        asked = "shipped" if config.ps_servers == 1 else "asked"
        self.settings["ps_servers"] = {"value": config.ps_servers, "source": asked}

    def _prepare(self, buckets: list[Bucket]) -> None:
        """The same pieces are exchanged in every step: their messages are prepared once."""
        # Messages of its own, which none of the backend's others can be mistaken for.
        world, wire, tag = self._world.Dup(), self._wire.tensor, 0
        others = [rank for rank in range(self.workers) if rank != self.rank]
        self._pieces: list[list[_Piece]] = []  # by bucket
        for bucket in buckets:
            pieces: list[_Piece] = []
            for server, (first, last) in enumerate(shares(wire.numel(), self._config.ps_servers)):
                start, stop = max(bucket.start, first), min(bucket.stop, last)
                if start >= stop:
                    continue
                part, inbox = wire[start:stop], None
                receive = [world.Recv_init(message(part), source=server, tag=tag + 1)]
                send = [world.Send_init(message(part), dest=server, tag=tag)]
                if server == self.rank:
                    inbox = wire.new_empty((len(others), stop - start))
                    rows = zip(others, inbox, strict=True)
                    receive = [world.Recv_init(message(row), source=rank, tag=tag) for rank, row in rows]
                    send = [world.Send_init(message(part), dest=rank, tag=tag + 1) for rank in others]
                pieces.append(_Piece(part, inbox, receive, send))
                tag += 2
            self._pieces.append(pieces)

    def _whole(self) -> None:
        self._start(Bucket(0, 0, 0))
        self._finish()

    def _start(self, bucket: Bucket) -> None:
        for piece in self._pieces[bucket.number]:
            self._MPI.Prequest.Startall(piece.send if piece.inbox is None else piece.receive)

    def _finish(self) -> None:
        everything = list(itertools.chain(*self._pieces))
        for piece in everything:
            if piece.inbox is not None:
                self._MPI.Request.Waitall(piece.receive)
                add_in_order(piece.part, piece.inbox, self.rank)
                if piece.part.is_cuda:
                    torch.cuda.current_stream(piece.part.device).synchronize()
                self._MPI.Prequest.Startall(piece.send)
        for piece in everything:
            if piece.inbox is None:
                self._MPI.Request.Waitall(piece.send)  # the sum arrives where this rank's part was
                self._MPI.Prequest.Startall(piece.receive)
        for piece in everything:
            self._MPI.Request.Waitall(piece.receive if piece.inbox is None else piece.send)


def shares(total: int, servers: int) -> list[tuple[int, int]]:
    """Return first and last + 1 element of each server's share of a buffer of `total` elements; sizes differ by one."""
    edges = [total * server // servers for server in range(servers + 1)]
    return list(itertools.pairwise(edges))


def add_in_order(own: torch.Tensor, others: torch.Tensor, rank: int) -> None:
    """Add the rows of `others` (workers - 1, n), those of all ranks but `rank`, to `own` (n,), by rank."""
    if rank > 0:
        before = others[0]
        for row in others[1:rank]:
            before.add_(row)
        own.add_(before)
    for row in others[rank:]:
        own.add_(row)


class _Piece(NamedTuple):
    """What one bucket and one server have in common, and this rank's part in its exchange (MPI requests, reusable)."""

    part: torch.Tensor  # (n,) of the wire
    inbox: torch.Tensor | None  # (workers - 1, n) on the server, None elsewhere
    receive: list[Any]  # on the server: everybody's part; elsewhere: the sum
    send: list[Any]  # on the server: the sum, to everybody; elsewhere: this rank's part
