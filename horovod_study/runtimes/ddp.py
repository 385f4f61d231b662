"""torch.distributed over Gloo, NCCL or MPI."""

from horovod_study.runtimes.library import Library, Transport

_START = "torchrun --nproc-per-node"

LIBRARY = Library(
    name="ddp",
    label="PyTorch DDP",
    place=2,
    implementation="horovod_study.comm.distributed:DistributedBackend",
    transports=(
        *(
            Transport(name=name, here=("torchrun", "mpirun"), in_job=("srun", "mpirun"), start=_START)
            for name in ("gloo", "nccl")
        ),
        Transport(name="mpi", start=_START),
    ),
    start_up_s=6.0,
    hooks=True,
)
