"""Horovod over MPI, Gloo or NCCL."""

from horovod_study.runtimes.library import Library, Transport

_STARTERS = ("horovodrun", "mpirun")
_IDLE = {"HOROVOD_IDLE_CYCLE_TIME": "10"}  # ms

LIBRARY = Library(
    name="horovod",
    label="Horovod",
    place=1,
    implementation="horovod_study.comm.horovod:HorovodBackend",
    transports=(
        Transport(
            name="mpi",
            here=_STARTERS,
            over_ssh=_STARTERS,
            in_job=("srun+mpi", "mpirun", "horovodrun"),
            start="horovodrun --mpi -np",
            shipped={
                **_IDLE,
                "HOROVOD_CYCLE_TIME": "0.05",  # ms
                "OMPI_MCA_mpi_yield_when_idle": "1",
                "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
            },
        ),
        Transport(
            name="gloo",
            here=_STARTERS,
            over_ssh=_STARTERS,
            in_job=("srun", "mpirun", "horovodrun"),
            start="horovodrun --gloo -np",
            shipped=_IDLE,
        ),
        Transport(
            name="nccl",
            here=_STARTERS,
            over_ssh=_STARTERS,
            in_job=("srun+mpi", "mpirun", "srun", "horovodrun"),
            start="horovodrun --mpi -np",
            shipped={**_IDLE, "HOROVOD_CYCLE_TIME": "0.1"},
        ),
    ),
    start_up_s=6.0,
)
