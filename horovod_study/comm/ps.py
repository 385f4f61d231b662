"""A parameter server over MPI: what data-parallel training did before all-reduce, to show why that won.

Every rank sends its gradients to the servers, which are ranks 0, 1, ... and train as all others do. Each server has a
contiguous share of the gradient buffer: it receives it from all other ranks, adds in the order of ranks, and sends the
result to all of them. With N workers a server's link carries (N - 1) times its share in each direction, where a ring
all-reduce carries 2 (N - 1) / N of the buffer over every link. As many servers as workers make it the same amount,
in messages of another pattern.

    flat     all gradients are sent after backward
    hooks    buckets of them are sent during backward; the servers add and answer after their own backward

Only the servers add, each element once, so all ranks end with identical bits.
"""

import itertools
from typing import Any, NamedTuple

import torch

from horovod_study.comm.launch import Launch
from horovod_study.comm.mpi import Bucket, MpiBackend, message
from horovod_study.config.run import RunConfig
from horovod_study.errors import BackendError


class PsBackend(MpiBackend):
    """Averages through servers."""

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

    def _exchange(self, wire: torch.Tensor, buckets: list[Bucket]) -> Any:
        return _Servers(self._MPI, wire, buckets, servers=self._config.ps_servers)


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


class _Servers:
    """The same pieces are exchanged in every step: their messages are prepared once."""

    def __init__(self, mpi: Any, wire: torch.Tensor, buckets: list[Bucket], *, servers: int) -> None:
        # Messages of its own, which none of the backend's can be mistaken for.
        self._MPI, world = mpi, mpi.COMM_WORLD.Dup()
        self._on_device = wire.is_cuda
        self._rank, workers = world.Get_rank(), world.Get_size()
        others = [rank for rank in range(workers) if rank != self._rank]
        self._pieces: list[list[_Piece]] = []  # by bucket
        tag = 0
        for bucket in buckets:
            pieces: list[_Piece] = []
            for server, (first, last) in enumerate(shares(wire.numel(), servers)):
                start, stop = max(bucket.start, first), min(bucket.stop, last)
                if start >= stop:
                    continue
                part, inbox = wire[start:stop], None
                receive = [world.Recv_init(message(part), source=server, tag=tag + 1)]
                send = [world.Send_init(message(part), dest=server, tag=tag)]
                if server == self._rank:
                    inbox = wire.new_empty((len(others), stop - start))
                    rows = zip(others, inbox, strict=True)
                    receive = [world.Recv_init(message(row), source=rank, tag=tag) for rank, row in rows]
                    send = [world.Send_init(message(part), dest=rank, tag=tag + 1) for rank in others]
                pieces.append(_Piece(part, inbox, receive, send))
                tag += 2
            self._pieces.append(pieces)

    def whole(self) -> None:
        self.start(Bucket(0, 0, 0))
        self.finish()

    def start(self, bucket: Bucket) -> None:
        for piece in self._pieces[bucket.number]:
            self._MPI.Prequest.Startall(piece.send if piece.inbox is None else piece.receive)

    def finish(self) -> None:
        everything = [piece for pieces in self._pieces for piece in pieces]
        for piece in everything:
            if piece.inbox is not None:
                self._MPI.Request.Waitall(piece.receive)
                add_in_order(piece.part, piece.inbox, self._rank)
                if self._on_device:
                    torch.cuda.current_stream(piece.part.device).synchronize()
                self._MPI.Prequest.Startall(piece.send)
        for piece in everything:
            if piece.inbox is None:
                self._MPI.Request.Waitall(piece.send)  # the sum arrives where this rank's part was
                self._MPI.Prequest.Startall(piece.receive)
        for piece in everything:
            self._MPI.Request.Waitall(piece.receive if piece.inbox is None else piece.send)
