"""How workers communicate: one Backend protocol and its leaves.

base          the protocol, and what every leaf shares: agreement of the ranks, the flat gradient buffer; one worker
launch        how this process was started: by whom, which rank, how many workers; the MPI library that is loaded
settings      the communication settings that ship with the package, and what became of them
horovod       Horovod over NCCL, MPI or Gloo
builds        several builds of Horovod side by side, one of which is loaded
distributed   torch.distributed: DistributedDataParallel, or one flat all-reduce, over NCCL or Gloo
mpi           MPI through mpi4py: its all-reduce, of one flat buffer or of buckets, or a parameter server
priority      who gets the core when gradients arrive
traffic       the path that the gradients really took: from the kernel's counters, and from what NCCL says
gpus          which GPU is a rank's, and who shares one
raw           all-reduce over MPI, Gloo or NCCL without a runtime around it: the floor
liveness      ends a rank that waits too long for another one, and names that one; requests to stop that all follow
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from horovod_study.comm.launch import Launch, detect, require_limits
from horovod_study.config.run import RunConfig
from horovod_study.runtimes import LIBRARIES

if TYPE_CHECKING:
    from horovod_study.comm.base import Backend, fail_together, require_parity

__all__ = ["Backend", "Launch", "detect", "fail_together", "open_backend", "require_parity"]


def __getattr__(name: str) -> Any:
    """Load what needs PyTorch when it is asked for: `doctor` is there to say that PyTorch is missing."""
    if name in ("Backend", "fail_together", "require_parity"):
        return getattr(import_module("horovod_study.comm.base"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def open_backend(config: RunConfig, launch: Launch) -> "Backend":
    """Start the backend that `config` asks for, or that fits how the process was launched.

    Returns when this rank is connected. Raises BackendError if the backend is not installed, was built without the
    wanted transport, or does not fit the launch.
    """
    require_limits(launch)
    name = launch.backend if config.backend == "auto" else config.backend
    module, _, made = LIBRARIES[name].implementation.partition(":")
    # Imported here: a plain run must not load Horovod, and a Horovod run must not need mpi4py.
    backend: Backend = getattr(import_module(module), made)(config, launch)
    return backend
