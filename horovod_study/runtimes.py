"""Runtimes: pairs of a library that averages gradients and what carries its messages, and where workers are put."""

BACKENDS = ("serial", "horovod", "ddp", "mpi", "ps")
TRANSPORTS = ("none", "nccl", "mpi", "gloo")
RUNTIMES = (
    *("serial", "horovod/mpi", "horovod/gloo", "horovod/nccl"),
    *("ddp/gloo", "ddp/nccl", "ddp/mpi", "mpi/mpi", "ps/mpi"),
)
"""backend/transport pairs that a study can sweep over."""
PLACEMENTS = ("fill", "spread", "list")
"""How workers are put on nodes: a node is filled before the next, all nodes get alike many, or the nodes are named."""
