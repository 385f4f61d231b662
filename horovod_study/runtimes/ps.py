"""A parameter server over MPI."""

from horovod_study.runtimes.library import Library, Transport
from horovod_study.runtimes.mpi import SHIPPED

LIBRARY = Library(
    name="ps",
    label="parameter server",
    place=4,
    implementation="horovod_study.comm.ps:PsBackend",
    transports=(Transport(name="mpi", shipped=SHIPPED),),
    start_up_s=4.0,
)
