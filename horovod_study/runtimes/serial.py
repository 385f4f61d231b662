"""One worker, no communication library."""

from horovod_study.runtimes.library import Library, Transport

LIBRARY = Library(
    name="serial",
    label="plain PyTorch",
    place=0,
    implementation="horovod_study.comm.serial:SerialBackend",
    transports=(Transport(name="none", here=(), in_job=("srun", "mpirun")),),
    start_up_s=3.0,
)
