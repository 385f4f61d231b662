"""MPI's own all-reduce, through mpi4py."""

from horovod_study.runtimes.library import Library, Transport

SHIPPED = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}

LIBRARY = Library(
    name="mpi",
    label="direct",
    place=3,
    implementation="horovod_study.comm.mpi:MpiBackend",
    transports=(Transport(name="mpi", shipped=SHIPPED),),
    start_up_s=4.0,
)
